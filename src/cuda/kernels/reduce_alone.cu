/* SPDX-License-Identifier: MIT */
/*
 * A reduction of a rank alone: each element is premultiplied if the operation says so, averaged
 * over 1 and rounded, as reductions of several ranks round their results. The kernel touches
 * neither control words nor arena, and takes no number: the host does. `count` is of all blocks.
 */
#include "cuda/kernels/operation.cuh"
#include "cuda/kernels/reduce.cuh"

namespace
{

template <typename D> __device__ __forceinline__ void reduce_alone(const cuda_launch &launch)
{
    const operands<D, 2> data(launch);
    const uint64_t threads = (uint64_t)gridDim.x * blockDim.x;
    order_grid_wait();
    order_grid_trigger();
    const typename D::acc factor = factor_of<D>(launch);
    for (uint64_t at = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; at < data.units();
         at += threads) {
        const unit<2> input = data.load(at);
        data.store(at, result_of<D, 2>(launch, [&](const position &place) {
                       return input_at<D, 2>(input, place, launch, factor);
                   }));
    }
}

} // namespace

#define KERNEL(name, T, SUM_OF, suffix)                                                            \
    KERNEL_DEFINE(__launch_bounds__(256), reduce_alone_##name, reduce_alone<dtype_##T>)
KERNELS_OF_FLOATS(KERNEL)
KERNELS_OF_INTEGERS(KERNEL)
