/* SPDX-License-Identifier: MIT */
/* What a fabric does not do between devices: headers of operations, and sums in the canonical tree.
 * combine_launch.h */
#include "cuda/kernels/combine_launch.h"

#include "cuda/kernels/operation.cuh"
#include "cuda/kernels/reduce.cuh"

namespace
{

template <typename D, int SUM_OF> __device__ __forceinline__ void combine(const cuda_combine &args)
{
    constexpr int LEAVES = SUM_OF ? SUM_OF : CUDA_RANKS;
    const cuda_launch &launch = args.launch;
    const operands<D, 2> result(launch.recv, launch.recv, launch.count);
    const uint64_t threads = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t u = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; u < result.units();
         u += threads) {
        unit<2> x[LEAVES];
#pragma unroll
        for (int l = 0; l < LEAVES; l++) {
            x[l] = unit<2>{};
            if (l < launch.size)
                x[l] = operands<D, 2>(args.from[l], launch.recv, launch.count).load(u);
        }
        result.store(u, reduction<D, SUM_OF, 2>::reduce(x, launch));
    }
}

/* An empty header has not come: the host has ended the link, and knows why. */
__device__ __forceinline__ void header_check(const cuda_announce &args, uint64_t sequence)
{
    const int i = threadIdx.x;
    if (i >= args.count || !args.expected[i])
        return;
    const order_line seen = order_load_plain(&args.words->theirs[args.at + i]);
    const order_line ours = {args.expected[i], args.parameter | sequence << 32};
    if (seen.low && (seen.low != ours.low || seen.high != ours.high))
        operation_fail(args.launch, TUTTI_ERR_MISMATCH, args.peers[i], sequence, ours, seen);
}

/* By thread 0. */
__device__ __forceinline__ void begin(const cuda_announce &args, uint64_t sequence)
{
    cuda_fabric_words *words = args.words;
    cuda_fabric_page *page = args.page;
    const uint64_t begun = order_load_plain_u64(&words->begun) + 1;
    order_store_plain_u64(&words->begun, begun);
    order_store_plain_u64(&words->sequence, sequence);
    page->sequence = sequence;
    page->headers = args.all;
    page->timeout_ns =
        args.timeout_ns ? args.timeout_ns : order_load_u64(&args.launch.host->timeout_ns);
    order_store_release_u32(&page->begun, (uint32_t)begun); /* Q1 pairs Q1a */
}

__device__ __forceinline__ void header_write(const cuda_announce &args, uint64_t sequence)
{
    const int i = threadIdx.x, at = args.at + i;
    if (i >= args.count)
        return;
    order_store_plain(&args.words->own[at], {args.own[i], args.parameter | sequence << 32});
    order_store_plain(&args.words->theirs[at], {0, 0});
    args.words->peers[at] = args.expected[i] ? args.peers[i] : CUDA_NO_PEER;
}

/* By thread 0. */
__device__ __forceinline__ void mark(const cuda_announce &args)
{
    const uint64_t marks = order_load_plain_u64(&args.words->marks) + 1;
    order_store_plain_u64(&args.words->marks, marks);
    order_store_u32(&args.page->marks, (uint32_t)marks);
}

/* By thread 0. */
__device__ __forceinline__ void end(const cuda_announce &args, uint64_t sequence)
{
    args.page->completed = sequence;
    order_store_release_u32(&args.page->ended,
                            (uint32_t)order_load_plain_u64(&args.words->begun)); /* Q2 pairs Q2a */
}

} // namespace

extern "C" __global__ void __launch_bounds__(CUDA_ANNOUNCED)
    announce(const __grid_constant__ cuda_announce args)
{
    const bool begins = args.step == CUDA_ANNOUNCE_BEGIN && args.at == 0;
    order_grid_wait();
    const uint64_t sequence =
        order_load_plain_u64(&args.words->sequence) + (begins && args.numbered);
    const uint64_t number = args.numbered ? sequence : 0;
    if (args.step == CUDA_ANNOUNCE_BEGIN)
        header_write(args, number);
    else if (args.step == CUDA_ANNOUNCE_CHECK)
        header_check(args, number);
    order_block_all(true); /* all threads have read the sequence, and the headers are there */
    if (threadIdx.x != 0)
        return;
    if (begins)
        begin(args, sequence);
    else if (args.step == CUDA_ANNOUNCE_END)
        end(args, sequence);
    else
        mark(args);
}

#define KERNEL(name, T, SUM_OF, suffix)                                                            \
    extern "C" __global__ void __launch_bounds__(CUDA_COMBINE_THREADS)                             \
        combine_##name##suffix(const __grid_constant__ cuda_combine args)                          \
    {                                                                                              \
        order_grid_wait();                                                                         \
        combine<dtype_##T, SUM_OF>(args);                                                          \
    }
KERNELS_OF_FLOATS(KERNEL)
KERNELS_OF_INTEGERS(KERNEL)
KERNELS_OF_SUMS(KERNEL)
