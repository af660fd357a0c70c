/* SPDX-License-Identifier: MIT */
/* One-shot with flags in band, for the smallest operations. */
#include "cuda/kernels/one_shot.cuh"
#include "cuda/kernels/regions.cuh"

#define KERNEL(name, T, SUM_OF, suffix)                                                            \
    KERNEL_DEFINE(BOUNDS, one_shot_ll_##name##suffix,                                              \
                  one_shot<flagged_region, dtype_##T, SUM_OF, false>)
#define KERNEL_ONCE(name, T, SUM_OF, suffix)                                                       \
    KERNEL_DEFINE(BOUNDS, one_shot_ll_##name##suffix##_once,                                       \
                  one_shot<flagged_region, dtype_##T, SUM_OF, true>)
KERNELS_OF_FLOATS(KERNEL)
KERNELS_OF_INTEGERS(KERNEL)
KERNELS_OF_SUMS(KERNEL)
KERNELS_OF_SUMS(KERNEL_ONCE)
