/* SPDX-License-Identifier: MIT */
/* The broadcast of a large block, over all links: scatter and all-gather. */
#include "cuda/kernels/copy.cuh"
#include "cuda/kernels/relay.cuh"

namespace
{

struct copy_way : copy_kind<CUDA_RANKS, 2> {
    static constexpr bool TO_ROOT = false, TO_ALL = false;

    static __device__ __forceinline__ unit<2> result_of(const operands &, own, unsigned from,
                                                        unit<2> (&x)[LEAVES])
    {
        unit<2> result = x[1];
#pragma unroll
        for (int p = 2; p < LEAVES; p++)
            if (from >> p & 1)
                result = x[p];
        return result;
    }
};

} // namespace

KERNEL_DEFINE(BOUNDS, copy_relayed, relay_run<copy_way, byte_pipe>)
