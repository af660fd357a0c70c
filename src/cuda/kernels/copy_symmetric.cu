/* SPDX-License-Identifier: MIT */
/*
 * Blocks of bytes straight into the peers' recv (push.h), with flags beside the data. A rank's
 * header says that its recv may be written: the rank has entered the operation. Every block of
 * threads waits for the headers of the ranks to which it sends, writes its columns (operation.cuh)
 * of each block of bytes, and then tells these ranks, by an arrival count for each column, that the
 * column is there. It waits for the counts of the same columns from the ranks that send to it. So
 * no block waits for another one of its own launch, and ranks may have different grids. Block 0
 * also waits for all headers: a rank that ends an operation knows that all have entered it.
 * docs/models/copy_symmetric.pml is the model.
 */
#include "cuda/kernels/push.h"
#include "cuda/kernels/tiles.cuh"

namespace
{

enum { UNITS = 4 };    /* of a thread, on their way at the same time */
enum { HOP_SENT = 1 }; /* of the arrival counts; the other hop's are credits of copies */

typedef operands<dtype_u8, 2> bytes_of;

/* Copies a column of one block of bytes to `count` places, the one that is `first` first. */
__device__ __forceinline__ void column_copy(const cuda_launch &launch, unsigned column,
                                            const cuda_copy *copies, int count, int first,
                                            uint64_t bytes)
{
    const bytes_of from((const void *)copies->from, (void *)copies->to, bytes);
    const uint64_t units = from.units(), step = (uint64_t)launch.columns * blockDim.x;
    for (uint64_t at = (uint64_t)column * blockDim.x + threadIdx.x; at < units;
         at += UNITS * step) {
        unit<2> u[UNITS];
#pragma unroll
        for (int i = 0; i < UNITS; i++)
            u[i] = from.load(from.spot_of<false>(at + i * step));
#pragma unroll 1
        for (int c = 0, to = first; c < count; c++, to = to + 1 < count ? to + 1 : 0) {
            const bytes_of user((const void *)copies->from, (void *)copies[to].to, bytes);
#pragma unroll
            for (int i = 0; i < UNITS; i++)
                user.store(user.spot_of<false>(at + i * step), u[i]);
        }
    }
}

/* A block that goes to several ranks is read once. Columns begin with different ranks, so that all
 * links are in use. */
__device__ __forceinline__ void column_push(const cuda_push &push, unsigned column)
{
    const cuda_copies &copies = push.copies;
    const int count = copies.count, first = count ? (int)(column % (unsigned)count) : 0;
    if (push.launch.moves.send_stride == 0 && count) {
        column_copy(push.launch, column, copies.copies, count, first, copies.bytes);
        return;
    }
#pragma unroll 1
    for (int c = 0, to = first; c < count; c++, to = to + 1 < count ? to + 1 : 0)
        column_copy(push.launch, column, &copies.copies[to], 1, 0, copies.bytes);
}

/* Calls `serve` for every column of the block and each of the peers, bit p for the p-th, by threads
 * in turn. This thread is one of `threads`. */
template <typename SERVE>
__device__ __forceinline__ void each_count(const cuda_launch &launch, operation &running,
                                           unsigned peers, unsigned thread, unsigned threads,
                                           SERVE serve)
{
#pragma unroll 1
    for (unsigned i = thread;; i += threads) {
        const unsigned p = i % CUDA_RANKS;
        running.column = blockIdx.x + i / CUDA_RANKS * gridDim.x;
        if (running.column >= launch.columns)
            return;
        if (peers >> p & 1)
            serve(p);
    }
}

/* The control warp, behind the stores of the whole block. */
__device__ __forceinline__ void columns_tell(const cuda_launch &launch, operation &running,
                                             unsigned to)
{
    order_fence(); /* U2 pairs U2a */
    each_count(launch, running, to, threadIdx.x, CUDA_CONTROL_THREADS, [&](unsigned p) {
        order_store_line(&launch.peers[p]->arrivals[HOP_SENT][running.column][launch.rank],
                         {1, running.flag});
    });
}

/* The workers. */
__device__ __forceinline__ void columns_hear(const cuda_launch &launch, operation &running,
                                             unsigned from)
{
    each_count(launch, running, from, threadIdx.x - CUDA_CONTROL_THREADS,
               blockDim.x - CUDA_CONTROL_THREADS,
               [&](unsigned p) { arrivals_hear(launch, running, HOP_SENT, launch.ranks[p], 0); });
}

/* The control warp, a thread for each peer. */
__device__ __forceinline__ bool headers_await(const cuda_launch &launch, const operation &running,
                                              unsigned peers)
{
    const unsigned p = threadIdx.x;
    return p >= CUDA_RANKS || !(peers >> p & 1) ||
           operation_await_header(launch, running, launch.ranks[p]);
}

__device__ __forceinline__ void push(const cuda_push &push)
{
    const cuda_launch &launch = push.launch;
    const unsigned all = all_peers(launch.size), to = launch.moves.sends & all;
    bool well = true;
    operation running;
    operation_begin(launch, running);
    if (!operation_take_together(launch, running))
        return;
    /* A header needs no fence: the launch has begun, so what the stream did with recv before has
     * ended. Nor does its poll: the stores to recv depend on it through a branch. */
    if (is_control_warp()) {
        operation_control(launch, running);
        well = headers_await(launch, running, to);
    } else {
        order_block_arrive(ORDER_ROW);
    }
    if (!order_block_all(well))
        return;
#pragma unroll 1
    for (unsigned column = blockIdx.x; column < launch.columns; column += gridDim.x)
        column_push(push, column);
    __syncthreads(); /* the copies of the whole block come before its arrival counts */
    if (!is_control_warp()) {
        columns_hear(launch, running, launch.moves.receives & all);
        return;
    }
    columns_tell(launch, running, to);
    if (blockIdx.x == 0)
        headers_await(launch, running, all & ~to);
}

} // namespace

extern "C" __global__ void BOUNDS copy_symmetric(const __grid_constant__ cuda_push argument)
{
    push(argument);
}
