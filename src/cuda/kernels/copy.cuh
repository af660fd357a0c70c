/* SPDX-License-Identifier: MIT */
/* Blocks of bytes: all-gather, all-to-all, broadcast, gather, scatter. */
#ifndef TUTTI_CUDA_COPY_CUH
#define TUTTI_CUDA_COPY_CUH

#include "cuda/kernels/blocks.cuh"

/* A KIND (blocks.cuh) for two ranks, or for any number. */
template <int MOST, int UNIT_WORDS> struct copy_kind {
    static constexpr int LEAVES = MOST, WORDS = UNIT_WORDS;
    static constexpr bool ONE_COLUMN = false;
    typedef dtype_u8 dtype;
    typedef block_operands<dtype, WORDS> operands;

    static __device__ __forceinline__ int size_of(const cuda_launch &launch)
    {
        return LEAVES == 2 ? 2 : launch.size;
    }

    struct own {
    };
    static __device__ __forceinline__ own own_of(const operands &, uint64_t)
    {
        return {};
    }

    static __device__ __forceinline__ bool copies_own(const cuda_launch &launch)
    {
        return launch.moves.receives & 1;
    }

    struct collector {
        const operands &user;
        const typename operands::spot s;

        __device__ __forceinline__ collector(const operands &its, uint64_t at, own)
            : user(its), s(its.template spot_of<false>(at))
        {
        }
        __device__ __forceinline__ void take(int p, unit<WORDS> u)
        {
            user.store_of(p, s, u);
        }
        __device__ __forceinline__ void end()
        {
        }
    };
};

/* A kernel: for two ranks, and for any number. RUN is a function template of a KIND and a type. */
#define COPY_KERNEL(bounds, name, RUN, TYPE)                                                       \
    extern "C" __global__ void bounds name(const __grid_constant__ cuda_launch launch)             \
    {                                                                                              \
        if (launch.size == 2)                                                                      \
            RUN<copy_kind<2, TYPE::WORDS>, TYPE>(launch);                                          \
        else                                                                                       \
            RUN<copy_kind<CUDA_RANKS, TYPE::WORDS>, TYPE>(launch);                                 \
    }

#endif
