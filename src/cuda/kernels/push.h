/* SPDX-License-Identifier: MIT */
/*
 * Blocks that a rank writes into the peers' recv, without a place in between: the caller's recv is
 * symmetric memory. By copy engines (comm/engines.h) or by a kernel (copy_symmetric.cu). Compiles
 * as C11 and as CUDA.
 */
#ifndef TUTTI_CUDA_PUSH_H
#define TUTTI_CUDA_PUSH_H

#include "cuda/kernels/launch.h"

/* Addresses, as this rank's device sees them. */
struct cuda_copy {
    uint64_t to, from;
};

/* What a rank copies in one operation: `count` blocks, each `bytes` long. */
struct cuda_copies {
    struct cuda_copy copies[CUDA_RANKS];
    int count;
    uint64_t bytes;
};

/* The argument of the kernel. */
struct cuda_push {
    struct cuda_launch launch;
    struct cuda_copies copies;
};

#endif
