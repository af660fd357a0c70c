/* SPDX-License-Identifier: MIT */
/* Reductions of blocks of any size in full lines, of integers and bool in byte lines. */
#include "cuda/kernels/pipe.cuh"
#include "cuda/kernels/reduce_blocks.cuh"

#define KERNEL(name, T, SUM_OF, suffix, LINES)                                                     \
    KERNEL_DEFINE(BOUNDS, reduce_pipelined_##name##suffix,                                         \
                  pipe_run<reduce_kind<dtype_##T, SUM_OF, 2>, LINES>)
#define FLOATS(name, T, SUM_OF, suffix)   KERNEL(name, T, SUM_OF, suffix, full_pipe)
#define INTEGERS(name, T, SUM_OF, suffix) KERNEL(name, T, SUM_OF, suffix, byte_pipe)
KERNELS_OF_FLOATS(FLOATS)
KERNELS_OF_INTEGERS(INTEGERS)
KERNELS_OF_SUMS(FLOATS)
