/* SPDX-License-Identifier: MIT */
/* Reductions of blocks in full lines: half as many bytes on the wire as reduce_ll.cu. Integers and
 * bool, of which all bits are values, travel in byte lines. */
#include "cuda/kernels/reduce_blocks.cuh"

#define KERNEL(bounds, name, T, SUM_OF, suffix, REGION)                                            \
    KERNEL_DEFINE(bounds, reduce_lines_##name##suffix,                                             \
                  blocks_run<reduce_kind<dtype_##T, SUM_OF, 2>, REGION>)
#define FLOATS(name, T, SUM_OF, suffix)   KERNEL(BOUNDS_ANY, name, T, SUM_OF, suffix, full_region)
#define INTEGERS(name, T, SUM_OF, suffix) KERNEL(BOUNDS_ANY, name, T, SUM_OF, suffix, byte_region)
#define SUMS(name, T, SUM_OF, suffix)     KERNEL(BOUNDS, name, T, SUM_OF, suffix, full_region)
KERNELS_OF_FLOATS(FLOATS)
KERNELS_OF_INTEGERS(INTEGERS)
KERNELS_OF_SUMS(SUMS)
