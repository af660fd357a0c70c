/* SPDX-License-Identifier: MIT */
/*
 * A gate: what is behind it on its stream waits until the host opens it. One thread looks at a word
 * of pinned memory, over the bus, and rests between two looks, so that it costs one slot of one
 * multiprocessor and next to nothing of the bus. The host opens every gate, whatever becomes of the
 * operation; the deadline is for a host that does not.
 */
#include "cuda/gate_launch.h"
#include "cuda/order.cuh"

namespace
{
enum { REST_NS = 200 };
}

extern "C" __global__ void __launch_bounds__(CUDA_GATE_THREADS)
    gate(const __grid_constant__ cuda_gate_launch launch)
{
    order_grid_wait();
    if (threadIdx.x != 0)
        return;
    const uint64_t start_ns = order_time_ns();
    while ((int32_t)(order_load_u32(launch.open) - launch.number) < 0 &&
           order_time_ns() - start_ns < launch.timeout_ns)
        __nanosleep(REST_NS);
    order_fence();                                        /* L2a pairs L2 */
    order_store_release_u32(launch.ended, launch.number); /* L3 pairs L3a */
}
