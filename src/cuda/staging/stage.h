/* SPDX-License-Identifier: MIT */
/*
 * What a process group needs of CUDA to bring tensors through the host: pinned memory that is used
 * again, copies on streams of the group's own, fences by which callers' streams and the group tell
 * each other how far they are. Shows no CUDA type.
 *
 * The group's streams never wait for anything: a copy is enqueued once what it needs is known to be
 * there, so that three streams a device, one for each way, serve any number of operations, and none
 * keeps another one up. Devices are numbered as in this process.
 */
#ifndef TUTTI_CUDA_STAGE_H
#define TUTTI_CUDA_STAGE_H

#include "tutti/tutti.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cuda_stage;
struct cuda_fence;

/* One that has ended, with all it has, or a new one, without a call of CUDA: what a device needs is
 * made when it is first named. From any thread, as are the calls on fences. Returns NO_MEMORY. */
enum tutti_status cuda_stage_create(struct cuda_stage **stage);
/* The group's end, or that of what it was to be: waits for its copies. Memory and streams are kept
 * for groups to come, or, in contexts that are not primary ones, freed with the last fence; if
 * callers' streams still hold that up, later. Takes NULL. */
void cuda_stage_close(struct cuda_stage *stage);
/* In a child of fork(): all is its parent's. */
void cuda_stage_forget(struct cuda_stage *stage);
/* Frees what is kept, but for `most` stages and those that a stream holds up: waits for all streams
 * of the process. */
void cuda_stage_trim(int most);

/* Makes what the device needs, in the current context if that is the device's. Waits for kernels
 * that run there if no group has. Returns as cuda_stage_check(). */
enum tutti_status cuda_stage_open(struct cuda_stage *stage, int device);
/* The same of the current context's device, as far as it can be had; nothing if there is none. */
void cuda_stage_open_current(struct cuda_stage *stage);
/* Whether [pointer, pointer + bytes), which may be empty, is memory of the device. Makes what the
 * device needs, once. Returns INVALID (memory of the host, or of another device: both
 * numbers named; no such device), DECLINED (no CUDA; the device lacks words written by streams),
 * NO_MEMORY, CUDA. */
enum tutti_status cuda_stage_check(struct cuda_stage *stage, int device, const void *pointer,
                                   size_t bytes);

/* ---- fences: of an operation, from its submission on ------------------------------------------
 */

/* [out] fence: comes once the stream has passed what is on it now. TUTTI_STREAM_DEFAULT and
 * TUTTI_STREAM_PER_THREAD are those of each of the devices, which cuda_stage_check() has found
 * good and of which some may be equal; any other stream may be of any device. Returns INVALID (too
 * many devices), DECLINED (the stream is being captured), NO_MEMORY, CUDA. */
enum tutti_status cuda_fence_take(struct cuda_stage *stage, const int *devices, int count,
                                  tutti_stream_t stream, struct cuda_fence **fence);
/* Whether it has come: what was on the stream is done, and visible to copies. By one thread. */
bool cuda_fence_come(struct cuda_fence *fence);
/* Of a stream that waits: with all, and with one call of CUDA by the group that does not end. */
struct cuda_wait_limits {
    int64_t all_ms, call_ms;
};

/* Has the stream wait for cuda_fence_open(), for a while: TUTTI_STREAM_DEFAULT and
 * TUTTI_STREAM_PER_THREAD are those of each of the fence's devices. *full says that nothing was
 * enqueued, since too many streams wait for it. Returns DECLINED (a stream is being captured),
 * NO_MEMORY, CUDA. */
enum tutti_status cuda_fence_wait(struct cuda_fence *fence, tutti_stream_t stream,
                                  const struct cuda_wait_limits *limits, bool *full);
/* Whether a stream has gone on without cuda_fence_open(). */
bool cuda_fence_wait_expired(const struct cuda_fence *fence);
/* Lets all who wait pass: what the caller has seen done before, its copies among it, is done for
 * what follows on those streams. */
void cuda_fence_open(struct cuda_fence *fence);
/* Takes NULL. The fence must be open if anybody may wait for it. */
void cuda_fence_give(struct cuda_fence *fence);

/* Around what may be kept up by a call of CUDA that waits for streams: those that wait for fences
 * look at how long it takes. */
void cuda_stage_call_begin(const struct cuda_stage *stage);
void cuda_stage_call_end(const struct cuda_stage *stage);

/* ---- copies: by the group's thread alone -------------------------------------------------------
 */

/* Into the host's memory; out of it; or not at all: kernels of the group. */
enum cuda_way { CUDA_WAY_IN, CUDA_WAY_OUT, CUDA_WAY_ACROSS, CUDA_WAYS };

/* Pinned memory, for all devices, or memory of a device. */
struct cuda_block {
    void *memory;
    size_t bytes;
    int fd;                  /* of the segment that it is, else -1 */
    int device;              /* negative: pinned */
    struct cuda_block *next; /* for who holds it */
};

/* One of at least so many bytes, with whatever is in them; the pool grows where it has none.
 * Returns NO_MEMORY, CUDA. */
enum tutti_status cuda_block_take(struct cuda_stage *stage, size_t bytes,
                                  struct cuda_block **block);
/* The same of a segment. Returns NO_MEMORY, SYSTEM, CUDA. */
enum tutti_status cuda_block_take_shared(struct cuda_stage *stage, size_t bytes,
                                         struct cuda_block **block);
/* No copy touches it any more. Takes NULL. */
void cuda_block_give(struct cuda_stage *stage, struct cuda_block *block);
/* Copies that do not end may: it is not used again before the group's end; a segment, which a peer
 * may touch, not at all. */
void cuda_block_lose(struct cuda_stage *stage, struct cuda_block *block);

/* Memory of a device that is open, for a result, which may outlive the group. By any thread that
 * has a fence. At least so many bytes, with whatever is in them. Returns NO_MEMORY, CUDA. */
enum tutti_status cuda_result_take(struct cuda_stage *stage, int device, size_t bytes,
                                   struct cuda_block **result);
/* Takes NULL. No stream uses it any more. */
void cuda_result_give(struct cuda_stage *stage, struct cuda_block *result);

/* Enqueues a copy between a block and memory of the device, behind the former ones of that way.
 * Return CUDA. */
enum tutti_status cuda_stage_copy(struct cuda_stage *stage, int device, enum cuda_way way, void *to,
                                  const void *from, size_t bytes);
/* The stream of a way. */
tutti_stream_t cuda_stage_stream(const struct cuda_stage *stage, int device, enum cuda_way way);
/* A mark behind them; marks count up. */
enum tutti_status cuda_stage_mark(struct cuda_stage *stage, int device, enum cuda_way way,
                                  uint64_t *mark);
/* Whether the copies before the mark are done: no call of CUDA. */
bool cuda_stage_passed(const struct cuda_stage *stage, int device, enum cuda_way way,
                       uint64_t mark);

#endif
