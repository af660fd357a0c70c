/* SPDX-License-Identifier: MIT */
/* The reduction of a large block to a root, over all links: reduce-scatter and gather. */
#include "cuda/kernels/reduce_blocks.cuh"
#include "cuda/kernels/relay.cuh"

#define KERNEL(name, T, SUM_OF, suffix, LINES)                                                     \
    KERNEL_DEFINE(BOUNDS, reduce_relayed_##name##suffix,                                           \
                  relay_run<reduce_way<dtype_##T, SUM_OF, false>, LINES>)
#define FLOATS(name, T, SUM_OF, suffix)   KERNEL(name, T, SUM_OF, suffix, full_pipe)
#define INTEGERS(name, T, SUM_OF, suffix) KERNEL(name, T, SUM_OF, suffix, byte_pipe)
KERNELS_OF_FLOATS(FLOATS)
KERNELS_OF_INTEGERS(INTEGERS)
KERNELS_OF_SUMS(FLOATS)
