/* SPDX-License-Identifier: MIT */
/*
 * Collectives by copy engines: TUTTI_CALL_COPY_ENGINE. Each rank copies its blocks into the peers'
 * recv, which lies in symmetric memory at the same offset on all ranks. On a stream such a call is
 *   1. a barrier of all ranks, which takes the operation's number and compares the signatures: then
 *      all ranks' streams have come to the call, and no recv is in use;
 *   2. the copies, side by side in up to CUDA_COPY_CHAINS chains;
 *   3. a meeting of all ranks, which ends the operation: then all copies are done.
 * The two launches have one warp each. docs/ordering.md says what orders the copies. A rank begins
 * with the next rank's block, so that the ranks do not all write to one device.
 */
#ifndef TUTTI_CUDA_ENGINES_H
#define TUTTI_CUDA_ENGINES_H

#include "cuda/driver/driver.h"
#include "cuda/kernels/arena.h"

struct choice;
struct choice_call;
struct cuda_group;
struct request;

enum { CUDA_COPY_CHAINS = 4 }; /* the caller's stream, and streams of the communicator */

struct cuda_copy {
    CUdeviceptr to, from;
};

/* What a rank copies in one operation, each `bytes` long. */
struct cuda_copies {
    struct cuda_copy copies[CUDA_RANKS];
    int count;
    size_t bytes;
};

/* A group's own streams for copies beside those of the caller's stream. Made when first needed. */
struct cuda_engines {
    CUevent fork; /* on the caller's stream */
    CUstream streams[CUDA_COPY_CHAINS - 1];
    CUevent joins[CUDA_COPY_CHAINS - 1]; /* on the streams */
    int count;
};

/* Returns DECLINED, with a message, if the ranks' devices do not allow it. */
enum tutti_status cuda_engines_choose(const struct cuda_group *group,
                                      const struct choice_call *call);
/* Finds recv at the peers, lists the copies, and adds algorithm and place of recv to the request's
 * signature. Makes the streams that they need, unless `stream` is being captured. Returns INVALID,
 * CUDA. */
enum tutti_status cuda_engines_prepare(struct cuda_group *group, struct request *request,
                                       CUstream stream, struct cuda_copies *copies);
/* Enqueues the copies behind what is on the stream; what follows there begins when all are done. In
 * the group's context. The second is for a stream that is being captured. Return CUDA. */
enum tutti_status cuda_copies_enqueue(const struct cuda_group *group, CUstream stream,
                                      const struct cuda_copies *copies);
enum tutti_status cuda_copies_capture(const struct cuda_group *group, CUstream stream,
                                      const struct cuda_copies *copies);
/* In the context. */
void cuda_engines_close(struct cuda_group *group);

#endif
