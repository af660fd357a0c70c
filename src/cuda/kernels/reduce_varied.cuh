/* SPDX-License-Identifier: MIT */
/*
 * Reduce-scatter of blocks of different lengths, as reduce_pipelined.cu does it for equal ones. All
 * ranks know all lengths, which the host (reduce_varied.cu) or the kernel (reduce_counted.cu) has
 * read. So they make the turns that the largest block needs, and where a block
 * has no units nobody pushes or waits. A rank whose block is empty waits for the headers alone.
 */
#ifndef TUTTI_CUDA_REDUCE_VARIED_CUH
#define TUTTI_CUDA_REDUCE_VARIED_CUH

#include "cuda/kernels/pipe.cuh"
#include "cuda/kernels/reduce_blocks.cuh"

namespace
{

/* As block_operands (blocks.cuh). The operands proper are those of this rank's own block. */
template <typename D, int WORDS> struct varied_operands : operands<D, WORDS> {
    typedef operands<D, WORDS> base;
    const cuda_launch &launch;

    static __device__ __forceinline__ const cuda_varied &varied_of(const cuda_launch &l)
    {
        return reinterpret_cast<const cuda_varied &>(l); /* begins with the launch */
    }

    __device__ __forceinline__ varied_operands(const cuda_launch &l)
        : base(l.send, l.recv, varied_of(l).counts[0]), launch(l)
    {
    }

    /* The block for the p-th peer. */
    __device__ __forceinline__ base block_of(int p) const
    {
        const cuda_varied &all = varied_of(launch);
        return base(this->send + all.firsts[p] * sizeof(typename D::element), this->recv,
                    all.counts[p]);
    }

    __device__ __forceinline__ uint64_t most_units() const
    {
        return (launch.count + base::ELEMENTS - 1) / base::ELEMENTS;
    }
    __device__ __forceinline__ uint64_t units_of(int p, uint64_t) const
    {
        return block_of(p).units();
    }

    __device__ __forceinline__ unit<WORDS> load_of(int p, typename base::spot s) const
    {
        return block_of(p).load(s);
    }

    __device__ __forceinline__ void store_of(int, typename base::spot s, unit<WORDS> u) const
    {
        this->store(s, u);
    }

    template <int LEAVES>
    __device__ __forceinline__ void load_all(unsigned to, uint64_t at,
                                             unit<WORDS> (&u)[LEAVES]) const
    {
#pragma unroll
        for (int p = 0; p < LEAVES; p++)
            u[p] =
                to >> p & 1 ? load_of(p, block_of(p).template spot_of<false>(at)) : unit<WORDS>{};
    }
};

} // namespace

#endif
