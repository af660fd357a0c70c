/* SPDX-License-Identifier: MIT */
/*
 * One-shot with full lines, for floats of some tens to hundreds of KiB: half as many bytes on the
 * wire as one_shot_ll.cu, but lines must be emptied one use later (lines.cuh).
 */
#include "cuda/kernels/one_shot.cuh"
#include "cuda/kernels/regions.cuh"

#define KERNEL_ANY(name, T, SUM_OF, suffix)                                                        \
    KERNEL_DEFINE(BOUNDS_ANY, one_shot_lines_##name##suffix,                                       \
                  one_shot<full_region, dtype_##T, SUM_OF, false>)
#define KERNEL(name, T, SUM_OF, suffix)                                                            \
    KERNEL_DEFINE(BOUNDS, one_shot_lines_##name##suffix,                                           \
                  one_shot<full_region, dtype_##T, SUM_OF, false>)
#define KERNEL_ONCE(name, T, SUM_OF, suffix)                                                       \
    KERNEL_DEFINE(BOUNDS, one_shot_lines_##name##suffix##_once,                                    \
                  one_shot<full_region, dtype_##T, SUM_OF, true>)
KERNELS_OF_FLOATS(KERNEL_ANY)
KERNELS_OF_SUMS(KERNEL)
KERNELS_OF_SUMS(KERNEL_ONCE)
