/* SPDX-License-Identifier: MIT */
/*
 * The CUDA objects of a process group: stream fences, by which callers' streams and the group tell
 * each other how far they are; streams of the group's own; memory that is reused. No CUDA type is
 * visible here.
 *
 * The group's streams never wait for a stream of a caller: work is enqueued when its data is known
 * to be there. So three streams a device, one for each direction, serve any number of operations.
 * Devices have their ordinals in this process.
 */
#ifndef TUTTI_CUDA_STAGE_H
#define TUTTI_CUDA_STAGE_H

#include "cuda/kernels/stream_wait_launch.h"
#include "tutti/tutti.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cuda_stage;
struct cuda_fence;
struct peers;

/* Makes a stage, or takes one that an ended group left, with all its memory. Makes no CUDA call:
 * what a device needs is made when the device is first named. Any thread may call this and the
 * calls on fences. Returns NO_MEMORY. */
enum tutti_status cuda_stage_create(struct cuda_stage **stage);
/* Ends the stage of a group. Waits for its copies. Memory and streams are kept for later groups, as
 * long as the process lives. Takes NULL. */
void cuda_stage_close(struct cuda_stage *stage);

/* Makes what the device needs, in the current context if that is of this device. Waits for kernels
 * that run on the device if this is its first group. Returns as cuda_stage_check(). */
enum tutti_status cuda_stage_open(struct cuda_stage *stage, int device);
/* The same for the device of the current context, as far as possible. Does nothing without one. */
void cuda_stage_open_current(struct cuda_stage *stage);
/* Checks that [pointer, pointer + bytes), which may be empty, is memory of the device. Makes what
 * the device needs, once. Returns INVALID (host memory; memory of another device: both numbers
 * named; no such device), DECLINED (no CUDA; the device's streams cannot write words), NO_MEMORY,
 * CUDA. */
enum tutti_status cuda_stage_check(struct cuda_stage *stage, int device, const void *pointer,
                                   size_t bytes);

/* ---- fences: of an operation, from its submission on ------------------------------------------
 */

/* Takes a fence and puts it behind the work that is on the stream now. cuda_fence_come() is true
 * once the stream has done that work. TUTTI_STREAM_DEFAULT and TUTTI_STREAM_PER_THREAD stand for
 * one stream on each of the devices; any other stream may be of any device. cuda_stage_check() has
 * accepted the devices, and two of them may be equal. Returns INVALID (too many devices), DECLINED
 * (the stream is being captured), NO_MEMORY, CUDA. */
enum tutti_status cuda_fence_take(struct cuda_stage *stage, const int *devices, int count,
                                  tutti_stream_t stream, struct cuda_fence **fence);
/* Returns true if the stream has come: its earlier work is done and visible to copies. One thread
 * calls this. */
bool cuda_fence_come(struct cuda_fence *fence);
/* How long a stream waits: for the operation, and for one CUDA call of the group that does not
 * return. */
struct cuda_wait_limits {
    int64_t all_ms, call_ms;
};

/* Makes the stream wait for cuda_fence_open(), within the limits. TUTTI_STREAM_DEFAULT and
 * TUTTI_STREAM_PER_THREAD mean the stream of each of the fence's devices. *full: nothing was
 * enqueued, because too many streams wait for this fence. Returns DECLINED (a stream is being
 * captured), NO_MEMORY, CUDA. */
enum tutti_status cuda_fence_wait(struct cuda_fence *fence, tutti_stream_t stream,
                                  const struct cuda_wait_limits *limits, bool *full);
/* Returns true if a stream went on without cuda_fence_open(). */
bool cuda_fence_wait_expired(const struct cuda_fence *fence);
/* Lets all waiting streams go on. What the caller has seen complete, also copies, is complete for
 * the later work on those streams. */
void cuda_fence_open(struct cuda_fence *fence);
/* Gives the fence back. Takes NULL. The fence must be open if a stream may wait for it. */
void cuda_fence_give(struct cuda_fence *fence);

/* Mark the begin and end of a CUDA call that may have to wait for streams. Waiting kernels watch
 * how long such a call takes. */
void cuda_stage_call_begin(const struct cuda_stage *stage);
void cuda_stage_call_end(const struct cuda_stage *stage);

/* ---- copies: by the group's thread alone -------------------------------------------------------
 */

/* Directions: into host memory; out of host memory; on the device alone, where the group's
 * communicator runs, too. */
enum cuda_direction { CUDA_TO_HOST, CUDA_FROM_HOST, CUDA_ON_DEVICE, CUDA_DIRECTIONS };

enum { CUDA_PINNED = -1 }; /* a block of pinned memory, for all devices */

struct cuda_block {
    void *memory;
    size_t bytes;
    int device;              /* or CUDA_PINNED */
    struct cuda_block *next; /* for the list that holds it */
};

/* Takes pinned memory, at least `bytes`, with any content. Makes new memory if none is idle.
 * Returns NO_MEMORY, CUDA. */
enum tutti_status cuda_block_take(struct cuda_stage *stage, size_t bytes,
                                  struct cuda_block **block);
/* Gives it back. No copy uses it any more. Takes NULL. */
void cuda_block_give(struct cuda_stage *stage, struct cuda_block *block);
/* The same if copies that do not end may use it. It is not reused before the group ends. */
void cuda_block_lose(struct cuda_stage *stage, struct cuda_block *block);

/* Takes memory of a device that is open, at least `bytes`, with any content. As a result it may
 * outlive the group. By any thread that has a fence. Returns NO_MEMORY, CUDA. */
enum tutti_status cuda_result_take(struct cuda_stage *stage, int device, size_t bytes,
                                   struct cuda_block **result);
/* Gives it back. No stream uses it any more. Takes NULL. */
void cuda_result_give(struct cuda_stage *stage, struct cuda_block *result);

/* Enqueues a copy from or to device memory, behind earlier work of the same direction. Returns
 * CUDA. */
enum tutti_status cuda_stage_copy(struct cuda_stage *stage, int device,
                                  enum cuda_direction direction, void *to, const void *from,
                                  size_t bytes);
/* The stream of a direction. */
tutti_stream_t cuda_stage_stream(const struct cuda_stage *stage, int device,
                                 enum cuda_direction direction);

/* Marks behind copies of one operation in one direction: one for each device of its fence. */
struct cuda_marks {
    const struct cuda_stage *stage;
    enum cuda_direction direction;
    int count; /* 0: there were no copies */
    uint8_t contexts[CUDA_FENCE_STREAMS];
    uint64_t marks[CUDA_FENCE_STREAMS];
};

/* Puts marks behind what was enqueued so far; also after the error `status`, since earlier copies
 * are on their way. Returns `status` if it is an error, else CUDA. */
enum tutti_status cuda_marks_set(const struct cuda_fence *fence, enum cuda_direction direction,
                                 enum tutti_status status, struct cuda_marks *marks);
/* Returns true if the copies before the marks are done. Makes no CUDA call. */
bool cuda_marks_passed(const struct cuda_marks *marks);
/* Waits for that. Returns TIMEOUT, or the fault of the ranks. */
enum tutti_status cuda_marks_await(const struct cuda_marks *marks, struct peers *peers,
                                   int64_t deadline);

#endif
