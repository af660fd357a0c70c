/* SPDX-License-Identifier: MIT */
/*
 * Signals between devices: one word in the receiver's pad for each channel and sender. The sender
 * changes it from 0 to 1, the receiver from 1 to 0; each waits until it can. So a word has one
 * writer at a time, and loads and stores are enough, without atomics. A barrier sends one signal to
 * every peer and receives one from each, a thread for each peer. One fence between poll and store
 * serves both: it acquires what the poll has seen, and releases what was done before.
 */
#include "cuda/kernels/order.cuh"
#include "cuda/kernels/symm_launch.h"
#include "tutti/tutti.h"

namespace
{

enum { LOOK_POLLS = ORDER_POLLS / 4 }; /* between two looks at what may end a wait */

/* The lowest bit of the time that a wait keeps between two checks: the peer is gone, so the next
 * poll of the word is the last. */
enum : uint64_t { LAST_LOOK = 1 };

/* Ends all waits of this rank; all later calls do nothing. The first to fail tells the host. */
__device__ __noinline__ void fail(const cuda_symm_launch &launch, tutti_status status, int peer,
                                  uint32_t awaited)
{
    cuda_symm_page *page = launch.page;
    cuda_symm_tail *own = launch.tails[launch.rank];
    if (atomicCAS(&own->claimed, 0, 1) == 0) {
        page->status = status;
        page->peer = peer;
        page->channel = launch.channel;
        page->call = launch.call;
        page->awaited = awaited;
        order_store_release_u32(&page->failed, 1); /* K5 pairs K5a */
    }
    order_store_u32(&own->failed, 1);
}

/*
 * Looks at everything that may end a long wait. Returns the value for the next call (0 at first),
 * or 0 if the wait has failed.
 */
__device__ __noinline__ uint64_t keep_waiting(const cuda_symm_launch &launch, int peer,
                                              uint32_t awaited, uint64_t start_ns)
{
    cuda_symm_page *page = launch.page;
    cuda_symm_tail *own = launch.tails[launch.rank];
    const uint64_t now = order_time_ns() | LAST_LOOK;
    if (order_load_u32(&own->failed))
        return 0;
    if (order_load_u32(&page->stop)) { /* K6a pairs K6; the host knows why */
        order_store_u32(&own->failed, 1);
        return 0;
    }
    if (start_ns == 0)
        return now & ~LAST_LOOK;
    if (start_ns & LAST_LOOK) {
        fail(launch, TUTTI_ERR_PEER_DEAD, peer, awaited);
        return 0;
    }
    if (order_load_u32(&page->gone) >> peer & 1 || order_load_u32(&launch.tails[peer]->left)) {
        order_fence(); /* V3a pairs V3 */
        return start_ns | LAST_LOOK;
    }
    const uint64_t limit_ns =
        launch.timeout_ns ? launch.timeout_ns : order_load_u64(&page->timeout_ns);
    if (limit_ns && now - start_ns > limit_ns) {
        fail(launch, TUTTI_ERR_TIMEOUT, peer, awaited);
        return 0;
    }
    return start_ns;
}

/* Changes the signal of rank `from` in the pad of `owner`; one of the two is the peer. Returns
 * false, after a report, if it could not. start_ns is when the call began to wait; 0: it has not
 * waited. */
__device__ __forceinline__ bool turn(const cuda_symm_launch &launch, int owner, int from, int peer,
                                     uint32_t awaited, uint64_t &start_ns)
{
    uint32_t *word =
        launch.pads[owner] + (launch.channel * launch.size + from) * CUDA_SYMM_LINE_WORDS;
    for (unsigned polls = 1; order_load_u32(word) != awaited; polls++) {
        if (polls % LOOK_POLLS != 0)
            continue;
        start_ns = keep_waiting(launch, peer, awaited, start_ns);
        if (start_ns == 0)
            return false;
    }
    order_fence(); /* V2 pairs V2a: the acquire of the poll, the release of the store */
    order_store_u32(word, !awaited);
    return true;
}

/* Runs behind all other launches: peers see their stores before this one. */
__device__ __forceinline__ void leave(cuda_symm_tail *own)
{
    order_store_u32(&own->failed, 1);
    order_store_release_u32(&own->left, 1); /* V3 pairs V3a */
}

} // namespace

extern "C" __global__ void __launch_bounds__(CUDA_SYMM_THREADS)
    symm(const __grid_constant__ cuda_symm_launch launch)
{
    const int thread = threadIdx.x, rank = launch.rank;
    const bool all = launch.call == CUDA_SYMM_BARRIER;
    const int peer = all ? thread : launch.peer;
    cuda_symm_tail *own = launch.tails[rank];
    const bool serves = all ? thread < launch.size && thread != rank : thread == 0;
    order_grid_wait();
    if (launch.call == CUDA_SYMM_LEAVE) {
        if (thread == 0)
            leave(own);
    } else if (serves && !order_load_u32(&own->failed)) {
        uint64_t start_ns = 0;
        const bool put =
            launch.call == CUDA_SYMM_WAIT || turn(launch, peer, rank, peer, 0, start_ns);
        if (put && launch.call != CUDA_SYMM_PUT)
            turn(launch, rank, peer, peer, 1, start_ns);
    }
    if (!launch.counted)
        return;
    /* All stores of the block have arrived: the host may free the memory. */
    order_fence(); /* V4 pairs V4a */
    __syncwarp();
    if (thread == 0)
        atomicAdd((unsigned long long *)&own->ended, 1ULL);
}
