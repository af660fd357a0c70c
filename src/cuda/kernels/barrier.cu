/* SPDX-License-Identifier: MIT */
/*
 * Barriers: one block of control threads (operation.cuh), one thread for each peer. A barrier of
 * all ranks is an operation that sends only headers, so the threads wait for the headers. For a
 * barrier of a subset each pair of ranks counts its meetings; the other ranks take no part, so the
 * sequence does not change. A thread stores its header behind a fence (release V1) and polls before
 * a fence (acquire V1a): what a rank wrote before the barrier is visible after it.
 *
 * A collective by copy engines has a barrier of all ranks before its copies, which takes its
 * number, and a meeting of all ranks behind them, which ends it: comm/engines.c.
 */
#include "cuda/kernels/meeting.cuh"

namespace
{

__device__ __forceinline__ void barrier_all(const cuda_launch &launch)
{
    const int peer = threadIdx.x;
    operation running;
    operation_begin(launch, running);
    if (!operation_take(launch, running))
        return;
    order_grid_trigger();
    __syncwarp();  /* all lanes have read the row */
    order_fence(); /* V1 pairs V1a */
    operation_announce(launch, running);
    if (launch.marked)
        operation_mark(launch, running);
    operation_advance(launch, running);
    operation_compare_former(launch, running.sequence);
    if (peer >= launch.size || peer == launch.rank)
        return;
    operation_await_header(launch, running, peer);
    order_fence(); /* V1a pairs V1 */
}

__device__ __forceinline__ void barrier_subset(const cuda_launch &launch)
{
    const int peer = threadIdx.x;
    order_grid_wait();
    cuda_control *control = launch.control;
    if (order_load_u32(&control->failed) || !(launch.subset >> peer & 1) || peer >= launch.size ||
        peer == launch.rank)
        return;
    const bool ends_operation = launch.subset == (1u << launch.size) - 1;
    const uint64_t sequence = ends_operation ? order_load_plain_u64(&control->rows[0].sequence) : 0;
    meeting_with(launch, sequence, peer);
}

/* A line that no operation and no other thread writes: flags are sequences, which are far
 * smaller. */
__device__ __forceinline__ order_line probe_line(int rank, int lane)
{
    const uint64_t seed = (uint64_t)rank << 8 | lane;
    return {seed * UINT64_C(0x9e3779b97f4a7c15), UINT64_C(0xffff000000000000) | seed};
}

/* Tests the links at set-up: a warp for each peer, a line for each lane, in both directions. */
__device__ __forceinline__ void probe_links(const cuda_launch &launch)
{
    const int peer = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (peer >= launch.size || peer == launch.rank)
        return;
    order_store_line(launch.arenas[peer]->flagged + (launch.rank * 32 + lane) * CUDA_LINE,
                     probe_line(launch.rank, lane));
    const order_line expected = probe_line(peer, lane);
    order_line line;
    operation_await_line(
        launch, 0, launch.own->flagged + (peer * 32 + lane) * CUDA_LINE, peer, line,
        [&](const order_line &l) { return l.low == expected.low && l.high == expected.high; });
}

} // namespace

extern "C" __global__ void __launch_bounds__(CUDA_PROBE_THREADS)
    probe(const __grid_constant__ cuda_launch launch)
{
    probe_links(launch);
    __syncthreads(); /* the end: soon after it the host reads its own clock */
    if (threadIdx.x == 0)
        order_store_line(&operation_device_trace(launch)->wait, {order_time_ns(), 0});
}

extern "C" __global__ void __launch_bounds__(CUDA_CONTROL_THREADS)
    barrier(const __grid_constant__ cuda_launch launch)
{
    if (launch.subset)
        barrier_subset(launch);
    else
        barrier_all(launch);
}
