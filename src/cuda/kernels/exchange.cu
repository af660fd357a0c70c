/* SPDX-License-Identifier: MIT */
/* Messages, and v-forms whose counts the host knew: all lengths are arguments. */
#include "cuda/kernels/exchange_turns.cuh"

namespace
{

struct listed_messages {
    static constexpr bool COUNTED = false;
    const cuda_exchange &exchange;
    const uint16_t *const numbers; /* of the chain's first transfer, and the one behind */

    __device__ __forceinline__ bool take()
    {
        return true;
    }
    __device__ __forceinline__ void taken()
    {
    }
    __device__ __forceinline__ unsigned begin() const
    {
        return numbers[0];
    }
    __device__ __forceinline__ unsigned end() const
    {
        return numbers[1];
    }
    __device__ __forceinline__ const cuda_transfer &operator[](unsigned t) const
    {
        return exchange.transfers[t];
    }
    __device__ __forceinline__ unsigned owns() const
    {
        return exchange.own.bytes != 0;
    }
    __device__ __forceinline__ const cuda_own_block &own(unsigned) const
    {
        return exchange.own;
    }
};

} // namespace

extern "C" __global__ void BOUNDS exchange(const __grid_constant__ cuda_exchange launch)
{
    exchange_run(launch, [&](int chain, int, bool) {
        return listed_messages{launch, &launch.begins[chain]};
    });
}
