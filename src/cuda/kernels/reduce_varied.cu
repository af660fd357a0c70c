/* SPDX-License-Identifier: MIT */
/* Reduce-scatter of blocks whose lengths the host knew. */
#include "cuda/kernels/reduce_varied.cuh"

#define KERNEL(name, T, SUM_OF, suffix, LINES)                                                     \
    extern "C" __global__ void BOUNDS reduce_varied_##name##suffix(                                \
        const __grid_constant__ cuda_varied varied)                                                \
    {                                                                                              \
        pipe_run<reduce_kind<dtype_##T, SUM_OF, 2, varied_operands>, LINES>(varied.launch);        \
    }
#define FLOATS(name, T, SUM_OF, suffix)   KERNEL(name, T, SUM_OF, suffix, full_pipe)
#define INTEGERS(name, T, SUM_OF, suffix) KERNEL(name, T, SUM_OF, suffix, byte_pipe)
KERNELS_OF_FLOATS(FLOATS)
KERNELS_OF_INTEGERS(INTEGERS)
KERNELS_OF_SUMS(FLOATS)
