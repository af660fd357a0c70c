/* SPDX-License-Identifier: MIT */
/*
 * The CUDA objects with which a process group moves tensors through the host: pinned memory that is
 * reused, copies on the group's own streams, and stream fences, by which callers' streams and the
 * group tell each other how far they are. No CUDA type is visible here.
 *
 * The group's streams never wait: a copy is enqueued when its data is known to be there. So three
 * streams a device, one for each direction, serve any number of operations, and no operation delays
 * another one. Devices have their ordinals in this process.
 */
#ifndef TUTTI_CUDA_STAGE_H
#define TUTTI_CUDA_STAGE_H

#include "tutti/tutti.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cuda_stage;
struct cuda_fence;

/* Makes a stage, or takes one that an ended group left, with all its memory. Makes no CUDA call:
 * what a device needs is made when the device is first named. Any thread may call this and the
 * calls on fences. Returns NO_MEMORY. */
enum tutti_status cuda_stage_create(struct cuda_stage **stage);
/* Ends the stage of a group. Waits for its copies. Memory and streams are kept for later groups, as
 * long as the process lives. Takes NULL. */
void cuda_stage_close(struct cuda_stage *stage);

/* Creates the device's place: in the current context if that is of this device. Waits for kernels
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

/* [out] fence: comes once the stream has passed the work that is on it now. TUTTI_STREAM_DEFAULT
 * and TUTTI_STREAM_PER_THREAD mean the stream of each of the devices, which cuda_stage_check() has
 * accepted and which may be equal. Any other stream may be of any device. Returns INVALID (too many
 * devices), DECLINED (the stream is being captured), NO_MEMORY, CUDA. */
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

/* Directions: into host memory; out of host memory; on the device alone, by kernels of the
 * group. */
enum cuda_way { CUDA_WAY_IN, CUDA_WAY_OUT, CUDA_WAY_ACROSS, CUDA_WAYS };

/* Pinned memory, for all devices, or memory of a device. */
struct cuda_block {
    void *memory;
    size_t bytes;
    int fd;                  /* of the segment that it is, else -1 */
    int device;              /* negative: pinned */
    struct cuda_block *next; /* for the list that holds it */
};

/* Takes pinned memory of at least `bytes`, with any content. Makes new memory if none is idle.
 * Returns NO_MEMORY, CUDA. */
enum tutti_status cuda_block_take(struct cuda_stage *stage, size_t bytes,
                                  struct cuda_block **block);
/* The same, as a segment that other processes can map. Returns NO_MEMORY, SYSTEM, CUDA. */
enum tutti_status cuda_block_take_shared(struct cuda_stage *stage, size_t bytes,
                                         struct cuda_block **block);
/* Gives it back. No copy uses it any more. Takes NULL. */
void cuda_block_give(struct cuda_stage *stage, struct cuda_block *block);
/* The same if copies that do not end may use it. It is not reused before the group ends. A segment
 * is never reused, since a peer may use it. */
void cuda_block_lose(struct cuda_stage *stage, struct cuda_block *block);

/* Takes memory of a device that is open, at least `bytes`, with any content, for a result, which
 * may outlive the group. By any thread that has a fence. Returns NO_MEMORY, CUDA. */
enum tutti_status cuda_result_take(struct cuda_stage *stage, int device, size_t bytes,
                                   struct cuda_block **result);
/* Gives it back. No stream uses it any more. Takes NULL. */
void cuda_result_give(struct cuda_stage *stage, struct cuda_block *result);

/* Enqueues a copy between a block and device memory, behind earlier copies of the same direction.
 * Returns CUDA. */
enum tutti_status cuda_stage_copy(struct cuda_stage *stage, int device, enum cuda_way way, void *to,
                                  const void *from, size_t bytes);
/* The stream of a direction. */
tutti_stream_t cuda_stage_stream(const struct cuda_stage *stage, int device, enum cuda_way way);
/* Puts a mark behind the copies. Marks count up. Returns CUDA. */
enum tutti_status cuda_stage_mark(struct cuda_stage *stage, int device, enum cuda_way way,
                                  uint64_t *mark);
/* Returns true if the copies before the mark are done. Makes no CUDA call. */
bool cuda_stage_passed(const struct cuda_stage *stage, int device, enum cuda_way way,
                       uint64_t mark);

#endif
