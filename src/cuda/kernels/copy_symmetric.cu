/* SPDX-License-Identifier: MIT */
/*
 * Blocks of bytes straight into the peers' recv (push.h). Every block of threads waits until all
 * ranks have entered the operation: then no recv is in use. It copies its part of each block of
 * bytes, tells the others of its launch that it has, and leaves. The last one meets the peers: then
 * all have copied all. So the kernel needs few multiprocessors, most of which it leaves early, and
 * ranks may have different grids.
 */
#include "cuda/kernels/meeting.cuh"
#include "cuda/kernels/push.h"
#include "cuda/kernels/reduce.cuh"

namespace
{

enum { UNITS = 4 }; /* of a thread, on their way at the same time */

typedef operands<dtype_u8, 2> bytes_of;

__device__ __forceinline__ void copy(const cuda_copy &copy, uint64_t bytes)
{
    const bytes_of user((const void *)copy.from, (void *)copy.to, bytes);
    const uint64_t units = user.units(), step = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t at = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; at < units;
         at += UNITS * step) {
        unit<2> u[UNITS];
#pragma unroll
        for (int i = 0; i < UNITS; i++)
            u[i] = user.load(user.spot_of<false>(at + i * step));
#pragma unroll
        for (int i = 0; i < UNITS; i++)
            user.store(user.spot_of<false>(at + i * step), u[i]);
    }
}

/* Returns true to the control warp of the last block that has copied. */
__device__ __forceinline__ bool is_last(cuda_control *control)
{
    bool last = false;
    __syncthreads(); /* the block's copies come before its count */
    if (!is_control_warp())
        return false;
    if (threadIdx.x == 0) {
        order_fence(); /* V5 pairs V5a */
        last = atomicAdd(&control->copied, 1u) == gridDim.x - 1;
        order_fence(); /* V5a pairs V5 */
    }
    return __any_sync(~0u, last);
}

__device__ __forceinline__ void push(const cuda_push &push)
{
    const cuda_launch &launch = push.launch;
    const int peer = threadIdx.x;
    const bool is_peer = peer < launch.size && peer != launch.rank;
    bool well = true;
    operation op;
    operation_begin(launch, op);
    if (!operation_take_together(launch, op))
        return;
    if (is_control_warp()) {
        order_fence(); /* V1 pairs V1a */
        operation_control(launch, op);
        well = !is_peer || operation_await_header(launch, op, peer);
        order_fence(); /* V1a pairs V1 */
    } else {
        order_block_arrive(ORDER_ROW);
    }
    if (!order_block_all(well))
        return;
    /* Blocks of threads begin with different blocks of bytes, so that all links are in use. */
    for (int i = 0; i < push.copies.count; i++)
        copy(push.copies.copies[(i + blockIdx.x) % push.copies.count], push.copies.bytes);
    if (!is_last(launch.control))
        return;
    if (threadIdx.x == 0)
        order_store_u32(&launch.control->copied, 0);
    if (is_peer)
        meeting_with(launch, op.sequence, peer);
}

} // namespace

extern "C" __global__ void BOUNDS copy_symmetric(const __grid_constant__ cuda_push argument)
{
    push(argument);
}
