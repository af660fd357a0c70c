/* SPDX-License-Identifier: MIT */
/*
 * A kernel that makes its stream wait until the host sets a word. One thread polls a word of pinned
 * memory and sleeps between two polls. So it costs one slot of one multiprocessor and little bus
 * bandwidth. The host sets the word however the operation ends. The deadline is for a host that
 * does not.
 *
 * CUDA calls that wait for all streams, such as cuMemFree, wait for this kernel too, and meanwhile
 * hold up the copies for which the kernel waits. Nothing on the host notices that. So the kernel
 * watches the group's CUDA calls. If one call does not return for too long, the kernel ends and
 * reports that.
 */
#include "cuda/kernels/order.cuh"
#include "cuda/kernels/stream_wait_launch.h"

namespace
{
enum { REST_NS = 200 };
}

extern "C" __global__ void __launch_bounds__(CUDA_STREAM_WAIT_THREADS)
    stream_wait(const __grid_constant__ cuda_stream_wait_launch launch)
{
    order_grid_wait();
    if (threadIdx.x != 0)
        return;
    const uint64_t start_ns = order_time_ns();
    uint64_t seen = 0, seen_ns = start_ns;
    while ((int32_t)(order_load_u32(launch.open) - launch.number) < 0) {
        const uint64_t calls = order_load_u64((const uint64_t *)launch.calls);
        const uint64_t now_ns = order_time_ns();
        if (calls != seen || (uint32_t)calls == (uint32_t)(calls >> 32)) {
            seen = calls;
            seen_ns = now_ns;
        }
        if (now_ns - start_ns >= launch.timeout_ns || now_ns - seen_ns >= launch.call_limit_ns) {
            order_store_u32(launch.wait_expired, launch.number); /* L6 pairs L6a */
            break;
        }
        __nanosleep(REST_NS);
    }
    order_fence();                                        /* L2a pairs L2 */
    order_store_release_u32(launch.ended, launch.number); /* L3 pairs L3a */
}
