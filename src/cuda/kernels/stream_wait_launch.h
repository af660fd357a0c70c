/* SPDX-License-Identifier: MIT */
/* What the host and the kernel of stream_wait.cu share. Compiles as C11 and as CUDA. */
#ifndef TUTTI_CUDA_STREAM_WAIT_LAUNCH_H
#define TUTTI_CUDA_STREAM_WAIT_LAUNCH_H

#include <assert.h>
#include <stdalign.h>
#include <stddef.h>
#include <stdint.h>

enum {
    CUDA_STREAM_WAIT_THREADS = 32, /* one of them polls */
    CUDA_FENCE_STREAMS = 16,
    CUDA_FENCE_WAITS = 24,
};

/* Pinned: the words of one operation at a time. A writer stores the operation's number from its
 * fence when the event has happened. Every word but wait_expired has one writer. */
struct cuda_fence_words {
    uint64_t come[CUDA_FENCE_STREAMS]; /* written by the caller's streams when they have passed the
                                          call: L1 */
    uint32_t open;         /* written by the host when the waiting kernels may end: release L2 */
    uint32_t wait_expired; /* written by a waiting kernel that ended without `open`: L6 */
    uint32_t ended[CUDA_FENCE_WAITS]; /* written by each waiting kernel when it ends: L3 */
    unsigned char pad2[24];
};
static_assert(sizeof(struct cuda_fence_words) == 256, "words");

/* Pinned: counts of CUDA calls by threads for which waiting kernels wait. */
struct cuda_calls {
    alignas(8) uint32_t begun;
    uint32_t ended;
};

/* Passed by value. A time of UINT64_MAX means no limit. */
struct cuda_stream_wait_launch {
    const uint32_t *open;
    uint32_t *ended;
    uint32_t *wait_expired;
    const struct cuda_calls *calls;
    uint32_t number; /* compared cyclically */
    uint32_t reserved;
    uint64_t timeout_ns;
    uint64_t call_limit_ns; /* for one CUDA call of the group that does not return */
};

#endif
