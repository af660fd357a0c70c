/* SPDX-License-Identifier: MIT */
/*
 * Reduce-scatter of blocks whose lengths are in memory. Each block of the launch reads and checks
 * them behind the grid dependency, and completes its copy of the arguments: the lengths, and, so
 * that ranks with other lengths notice it, their hash in what peers compare. If a length is wrong,
 * the first block that finds it writes the fault, and none stores anything.
 */
#include "cuda/kernels/counts.cuh"
#include "cuda/kernels/reduce_varied.cuh"

namespace
{

/* Whether recv, which is one block, overlaps a block of send; it may be the own one. */
__device__ __forceinline__ bool overlaps(const cuda_counted &args, counts_block its, uint64_t own,
                                         bool is_own)
{
    const uint64_t recv = (uint64_t)args.launch.recv,
                   at = (uint64_t)args.launch.send + its.start * args.width;
    return (!is_own || at != recv) && at < recv + own * args.width &&
           recv < at + its.count * args.width;
}

/* One thread fills what depends on the lengths. */
__device__ __forceinline__ bool blocks_take(const cuda_counted &args, cuda_varied &varied)
{
    const cuda_launch &given = args.launch;
    const uint64_t own = counts_load(args.counts, given.rank, args.is_narrow);
    uint32_t parameter = given.parameter;
    uint64_t most = 0, next = 0;
    unsigned sends = 0;
    counts_finding found = counts_check({0, own}, args.most, args.extents[1]);
    int wrong = given.rank;
    bool is_recv = found.fault != COUNTS_GOOD;
#pragma unroll 1
    for (int r = 0; r < given.size && found.fault == COUNTS_GOOD; r++) {
        counts_block its = counts_read(args.counts, args.displacements, r, true, args.is_narrow);
        if (!args.displacements)
            its.start = next;
        next += its.count;
        wrong = r;
        found = counts_check(its, args.most, args.extents[0]);
        if (found.fault == COUNTS_GOOD && overlaps(args, its, own, r == given.rank))
            found = {COUNTS_OVERLAP, own, its.count};
        int p = 0;
        while (given.ranks[p] != r)
            p++;
        varied.firsts[p] = its.start * args.components;
        varied.counts[p] = its.count * args.components;
        most = varied.counts[p] > most ? varied.counts[p] : most;
        sends |= (unsigned)(its.count != 0) << p;
        parameter = signature_hash(its.count ^ (uint64_t)parameter << 32);
    }
    varied.launch.count = most;
    varied.launch.moves.sends = (uint8_t)sends;
    varied.launch.moves.receives = own ? (uint8_t)((1 << given.size) - 1) : 0;
    varied.launch.parameter = parameter;
    varied.launch.tag = signature_hash(given.signature ^ parameter) >> 16;
    if (found.fault != COUNTS_GOOD)
        counts_fail(given, order_load_plain_u64(&given.control->rows[blockIdx.x].sequence) + 1,
                    given.signature & ~SIGNATURE_COUNT_MAX, found, is_recv, wrong);
    return found.fault == COUNTS_GOOD;
}

/* Returns false to all threads of the block if a length is wrong. */
__device__ __forceinline__ bool counted_take(const cuda_counted &args, cuda_varied &varied)
{
    const uint64_t *const from = (const uint64_t *)&args.launch;
    uint64_t *const to = (uint64_t *)&varied.launch;
    for (unsigned i = threadIdx.x; i < sizeof(cuda_launch) / sizeof *to; i += blockDim.x)
        to[i] = from[i];
    order_block_all(true);
    order_grid_wait();
    return order_block_all(threadIdx.x != 0 || blocks_take(args, varied));
}

} // namespace

#define KERNEL(name, T, SUM_OF, suffix, LINES)                                                     \
    extern "C" __global__ void BOUNDS reduce_counted_##name##suffix(                               \
        const __grid_constant__ cuda_counted args)                                                 \
    {                                                                                              \
        cuda_varied &varied = order_block_shared<cuda_varied>();                                   \
        if (counted_take(args, varied))                                                            \
            pipe_run<reduce_kind<dtype_##T, SUM_OF, 2, varied_operands>, LINES>(varied.launch);    \
    }
#define FLOATS(name, T, SUM_OF, suffix)   KERNEL(name, T, SUM_OF, suffix, full_pipe)
#define INTEGERS(name, T, SUM_OF, suffix) KERNEL(name, T, SUM_OF, suffix, byte_pipe)
KERNELS_OF_FLOATS(FLOATS)
KERNELS_OF_INTEGERS(INTEGERS)
KERNELS_OF_SUMS(FLOATS)
