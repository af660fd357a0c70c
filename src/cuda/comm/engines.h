/* SPDX-License-Identifier: MIT */
/*
 * Collectives by copy engines: TUTTI_CALL_COPY_ENGINE. Each rank copies its blocks into the peers'
 * recv (push.h). On a stream such a call is
 *   1. a barrier of all ranks, which takes the operation's number and compares the signatures: then
 *      all ranks' streams have come to the call, and no recv is in use;
 *   2. the copies, side by side in up to CUDA_COPY_CHAINS chains;
 *   3. a meeting of all ranks, which ends the operation: then all copies are done.
 * The two launches have one warp each. docs/ordering.md says what orders the copies.
 */
#ifndef TUTTI_CUDA_ENGINES_H
#define TUTTI_CUDA_ENGINES_H

#include "cuda/comm/push.h"
#include "cuda/driver/driver.h"

enum { CUDA_COPY_CHAINS = 4 }; /* the caller's stream, and streams of the communicator */

/* A group's own streams for copies beside those of the caller's stream. Made when first needed. */
struct cuda_engines {
    CUevent fork; /* on the caller's stream */
    CUstream streams[CUDA_COPY_CHAINS - 1];
    CUevent joins[CUDA_COPY_CHAINS - 1]; /* on the streams */
    int count;
};

/* Makes the streams that so many copies need beside the caller's. A stream that is being captured
 * needs none. Returns CUDA. */
enum tutti_status cuda_engines_ensure(struct cuda_group *group, int copies, CUstream stream);
/* Enqueues the copies behind what is on the stream; what follows there begins when all are done. In
 * the group's context. The second is for a stream that is being captured. Return CUDA. */
enum tutti_status cuda_copies_enqueue(const struct cuda_group *group, CUstream stream,
                                      const struct cuda_copies *copies);
enum tutti_status cuda_copies_capture(const struct cuda_group *group, CUstream stream,
                                      const struct cuda_copies *copies);
/* In the context. */
void cuda_engines_close(struct cuda_group *group);

#endif
