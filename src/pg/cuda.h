/* SPDX-License-Identifier: MIT */
/*
 * Operations on CUDA tensors: their order with the caller's streams, and the group's devices.
 *
 * If the tensors of all ranks lie on the group's device, the group's CUDA communicator serves the
 * operation (blocks.c), on a stream of the group. The host only launches it. All else goes through
 * the host (staging.c): tensors of other devices, and of groups without a CUDA communicator;
 * several inputs that one rank reduces; sparse tensors; messages.
 */
#ifndef TUTTI_PG_CUDA_H
#define TUTTI_PG_CUDA_H

#include "coll/coll.h"
#include "cuda/pipe/pipe.h"
#include "cuda/pipe/stage.h"

struct pg_operation;
struct tutti_pg;

/* The slots are small: many pages cost the hosts more than small copies cost the devices. */
enum { PG_SLOTS = 4, PG_SLOT_BYTES = 256 << 10 };
/* The buffer in the device's memory for blocks that do not lie side by side. */
enum { PG_BUFFER_BYTES = 8 << 20 };

/* The additional state of an operation on CUDA tensors. */
struct pg_cuda {
    struct cuda_stage *stage; /* kept alive by the fence */
    struct cuda_fence *fence;
    struct cuda_block *result; /* the result of a sparse sum; NULL: none */
    /* All below is for the group's thread only. */
    struct cuda_block *block; /* pinned memory; NULL: none yet */
    bool copied_early;        /* a message or sparse tensors: the copies to it have begun */
    enum tutti_status status; /* of these copies */
    struct cuda_marks marks[CUDA_DIRECTIONS]; /* behind the last work in each direction */
    /* Of dense tensors that go through the host: */
    int pair;
    struct cuda_cut cut;
    struct cuda_slots slots;                       /* without memory: none yet */
    struct cuda_marks in[PG_SLOTS], out[PG_SLOTS]; /* [slot]: behind the last copies to, from it */
    int64_t deadline;                              /* of waits for copies */
};

/* ---- any thread ------------------------------------------------------------------------------ */

/* At submission: take a fence that tells when `stream` has passed the work that is on it now. The
 * tensors of *operation are set. Returns INVALID, DECLINED, NO_MEMORY, CUDA. */
enum tutti_status pg_cuda_begin(const struct tutti_pg *pg, struct pg_operation *operation,
                                tutti_stream_t stream);
/* Make the stream wait for the end of the operation. [out] full: the fence has no room for another
 * waiting stream, so the host must wait. */
enum tutti_status pg_cuda_wait(struct pg_operation *operation, tutti_stream_t stream, bool *full);
/* Takes NULL. */
void pg_cuda_free(struct pg_cuda *cuda);

/* ---- the group's thread ---------------------------------------------------------------------- */

/* Whether the caller's streams have reached the point of the submission. If the copy of a message
 * to send has begun, it must also be done. */
bool pg_cuda_input_ready(const struct pg_operation *operation);
/* As cuda_marks_set(). */
static inline enum tutti_status pg_cuda_mark(struct pg_cuda *cuda, enum cuda_direction direction,
                                             enum tutti_status status)
{
    return cuda_marks_set(cuda->fence, direction, status, &cuda->marks[direction]);
}
/* Wait for copies. Returns TIMEOUT, and what ends the group's communicator. */
enum tutti_status pg_cuda_await(struct tutti_pg *pg, const struct cuda_marks *marks,
                                int64_t deadline);
/* Whether all that was enqueued for the operation is done. */
bool pg_cuda_is_done(const struct pg_operation *operation);
/* Give back the pinned memory. Waits at most one second for copies that still use it. */
void pg_cuda_end(struct tutti_pg *pg, struct pg_operation *operation);
/* A step failed on this rank. The peers are inside the operation and wait for this rank, so the
 * communicators fail. Returns the status of the group's communicator. */
enum tutti_status pg_cuda_fail(struct tutti_pg *pg, const struct pg_operation *operation,
                               enum tutti_status status);

/* Operations that the group's devices serve. What these enqueue follows what they enqueued before,
 * on all ranks in the order of the verdicts. Return as pg_cuda_fail(). */

/* Enqueue a collective. */
enum tutti_status pg_cuda_run(struct tutti_pg *pg, const struct pg_operation *operation,
                              const struct coll_args *args);
/* Enqueue a copy within the device's memory. */
enum tutti_status pg_cuda_copy(struct tutti_pg *pg, const struct pg_operation *operation, void *to,
                               const void *from, size_t bytes);
/* All is enqueued, or `status` says why not. */
enum tutti_status pg_cuda_enqueued(struct tutti_pg *pg, struct pg_operation *operation,
                                   enum tutti_status status);

#endif
