/* SPDX-License-Identifier: MIT */
/* Reductions of blocks with flags in band, for the smallest operations. */
#include "cuda/kernels/reduce_blocks.cuh"

#define KERNEL(name, T, SUM_OF, suffix)                                                            \
    KERNEL_DEFINE(BOUNDS, reduce_ll_##name##suffix,                                                \
                  blocks_run<reduce_kind<dtype_##T, SUM_OF, 1>, flagged_region>)
KERNELS_OF_FLOATS(KERNEL)
KERNELS_OF_INTEGERS(KERNEL)
KERNELS_OF_SUMS(KERNEL)
