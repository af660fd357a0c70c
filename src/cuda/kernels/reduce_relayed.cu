/* SPDX-License-Identifier: MIT */
/* The reduction of a large block to a root, over all links: reduce-scatter and gather. */
#include "cuda/kernels/reduce_blocks.cuh"
#include "cuda/kernels/relay.cuh"

namespace
{

template <typename D, int SUM_OF> struct reduce_way : reduce_kind<D, SUM_OF, 2> {
    typedef reduce_kind<D, SUM_OF, 2> kind;
    static constexpr bool TO_ROOT = true;

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

} // namespace

#define KERNEL(name, T, SUM_OF, suffix, LINES)                                                     \
    KERNEL_DEFINE(BOUNDS, reduce_relayed_##name##suffix,                                           \
                  relay_run<reduce_way<dtype_##T, SUM_OF>, LINES>)
#define FLOATS(name, T, SUM_OF, suffix)   KERNEL(name, T, SUM_OF, suffix, full_pipe)
#define INTEGERS(name, T, SUM_OF, suffix) KERNEL(name, T, SUM_OF, suffix, byte_pipe)
KERNELS_OF_FLOATS(FLOATS)
KERNELS_OF_INTEGERS(INTEGERS)
KERNELS_OF_SUMS(FLOATS)
