/* SPDX-License-Identifier: MIT */
/*
 * Blocks of numbers, one from each rank, that the receiver reduces in the canonical tree:
 * reduce-scatter, where each rank receives, and reduce, where the root alone does.
 */
#ifndef TUTTI_CUDA_REDUCE_BLOCKS_CUH
#define TUTTI_CUDA_REDUCE_BLOCKS_CUH

#include "cuda/kernels/blocks.cuh"

/* A KIND (blocks.cuh). SUM_OF: as of `reduction`. OPERANDS: where the blocks lie. In place, a unit
 * of the result lies where the thread that writes it has read this rank's own unit. */
template <typename D, int SUM_OF, int UNIT_WORDS,
          template <typename, int> typename OPERANDS = block_operands>
struct reduce_kind {
    static constexpr int LEAVES = SUM_OF ? SUM_OF : CUDA_RANKS, WORDS = UNIT_WORDS;
    static constexpr bool ONE_COLUMN = SUM_OF == CUDA_RANKS;
    typedef D dtype;
    typedef OPERANDS<D, WORDS> operands;

    static __device__ __forceinline__ int size_of(const cuda_launch &launch)
    {
        return SUM_OF ? SUM_OF : launch.size;
    }

    typedef unit<WORDS> own;
    static __device__ __forceinline__ own own_of(const operands &user, uint64_t at)
    {
        return block_sources(user.launch) ? user.load_of(0, user.template spot_of<false>(at))
                                          : own{};
    }

    static __device__ __forceinline__ bool copies_own(const cuda_launch &)
    {
        return false;
    }

    struct collector {
        const operands &user;
        const typename operands::spot s;
        unit<WORDS> x[LEAVES];

        __device__ __forceinline__ collector(const operands &its, uint64_t at, own u)
            : user(its), s(its.template spot_of<false>(at)), x()
        {
            x[0] = u;
        }
        __device__ __forceinline__ void take(int p, unit<WORDS> u)
        {
            x[p] = u;
        }
        __device__ __forceinline__ void end()
        {
            user.store(s, reduction<D, SUM_OF, WORDS>::reduce(x, user.launch));
        }
    };
};

/* A WAY (relay.cuh), to a root or to all. */
template <typename D, int SUM_OF, bool ALL> struct reduce_way : reduce_kind<D, SUM_OF, 2> {
    typedef reduce_kind<D, SUM_OF, 2> kind;
    static constexpr bool TO_ROOT = !ALL, TO_ALL = ALL;

    static __device__ __forceinline__ unit<2> own_of(const typename kind::operands &user,
                                                     uint64_t at)
    {
        return user.load(user.template spot_of<false>(at));
    }
    static __device__ __forceinline__ unit<2> result_of(const typename kind::operands &user,
                                                        unit<2> own, unsigned,
                                                        unit<2> (&x)[kind::LEAVES])
    {
        x[0] = own;
        return reduction<D, SUM_OF, 2>::reduce(x, user.launch);
    }
};

#endif
