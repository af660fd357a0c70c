/* SPDX-License-Identifier: MIT */
/* Meetings: each pair of ranks counts its own. */
#ifndef TUTTI_CUDA_MEETING_CUH
#define TUTTI_CUDA_MEETING_CUH

#include "cuda/kernels/operation.cuh"

/* Tells the peer that this rank has come, and waits for it: one thread for each peer. What the rank
 * has written before is visible to the peer behind the meeting. `sequence` is the operation's, 0 if
 * none was announced. */
static __device__ __forceinline__ void meeting_with(const cuda_launch &launch, uint64_t sequence,
                                                    int peer)
{
    cuda_control *control = launch.control;
    const uint64_t count = order_load_plain_u64(&control->meetings[peer]) + 1;
    order_store_plain_u64(&control->meetings[peer], count);
    order_fence(); /* V1 pairs V1a */
    order_store_line(&launch.arenas[peer]->meetings[launch.rank][count & 1],
                     {count, launch.parameter});
    order_line line;
    if (operation_await_line(launch, sequence, &launch.own->meetings[peer][count & 1], peer, line,
                             [&](const order_line &l) { return l.low == count; }) &&
        line.high != launch.parameter)
        operation_fail(launch, TUTTI_ERR_MISMATCH, peer, sequence,
                       {launch.signature, launch.parameter}, {launch.signature, line.high});
    order_fence(); /* V1a pairs V1 */
}

#endif
