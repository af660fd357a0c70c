/* SPDX-License-Identifier: MIT */
/* What the host and the kernel of stream_wait.cu share. Compiles as C11 and as CUDA. */
#ifndef TUTTI_CUDA_STREAM_WAIT_LAUNCH_H
#define TUTTI_CUDA_STREAM_WAIT_LAUNCH_H

#include <assert.h>
#include <stdalign.h>
#include <stddef.h>
#include <stdint.h>

enum {
    CUDA_STREAM_WAIT_THREADS = 32, /* of which one looks */
    CUDA_FENCE_STREAMS = 16,
    CUDA_FENCE_WAITS = 24,
};

/* Pinned: the words of one operation at a time. Each has one writer, and says `number`, which the
 * operation has from its fence, once what it stands for has happened. */
struct cuda_fence_words {
    uint64_t come[CUDA_FENCE_STREAMS]; /* the caller's streams have passed the call: L1 */
    uint32_t open;                     /* the host: waiting kernels let pass: release L2 */
    uint32_t wait_expired;             /* a waiting kernel: it let pass unopened: L6 */
    uint32_t ended[CUDA_FENCE_WAITS];  /* the waiting kernels: they touch nothing any more: L3 */
    unsigned char pad2[24];
};
static_assert(sizeof(struct cuda_fence_words) == 256, "words");

/* Pinned: calls of CUDA by threads that waiting kernels wait for. */
struct cuda_calls {
    alignas(8) uint32_t begun;
    uint32_t ended;
};

/* By value. Times are UINT64_MAX if they never end. */
struct cuda_stream_wait_launch {
    const uint32_t *open;
    uint32_t *ended;
    uint32_t *wait_expired;
    const struct cuda_calls *calls;
    uint32_t number; /* compared cyclically */
    uint32_t reserved;
    uint64_t timeout_ns;
    uint64_t call_limit_ns; /* with one call of the group's that does not end */
};

#endif
