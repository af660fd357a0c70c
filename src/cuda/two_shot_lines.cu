/* SPDX-License-Identifier: MIT */
/*
 * Two-shot with full lines, for floats of some hundred KiB to a few MiB: two hops, no barrier. The
 * units are cut into one chunk a rank. Every rank pushes unit i of chunk r to rank r, its owner;
 * the owner's thread for i waits for the line of every source, reduces, and pushes the result to
 * all; then it waits for the results of the other chunks' unit i and writes them.
 *
 * A buffer holds [hop][source][unit of a chunk], packed. There is exactly one writer of a line (its
 * source) and one reader (the thread of the owner of the arena that serves its unit); lines.cuh
 * says why it is empty when it is written. Each phase is pushed whole before anything is waited
 * for.
 */
#include "cuda/lines.cuh"

namespace
{

template <typename D, int SUM_OF>
__device__ __forceinline__ void two_shot_lines(const cuda_launch &launch)
{
    constexpr int LEAVES = SUM_OF ? SUM_OF : CUDA_RANKS;
    const int size = SUM_OF ? SUM_OF : launch.size;
    const operands<D, 2> user(launch);
    const unsigned units = (unsigned)user.units();
    const unsigned chunk = (units + size - 1) / size;
    const unsigned first = worker_index();
    const unsigned step = worker_count();

    operation op;
    operation_begin(launch, op);
    if (is_clerk()) {
        if (operation_take(op)) {
            lines_take(&op.uses.high, 2 * size * chunk);
            operation_clerk(launch, op);
        }
        return;
    }
    unit<2> kept[LEAVES]; /* [0] of the own chunk, [p] of the p-th peer's */
    lines_load<LEAVES>(launch, user, units, chunk, size, first, kept);
    if (!operation_take(op))
        return;
    const lines_use use = lines_take(&op.uses.high, 2 * size * chunk);
    const unsigned stride = chunk * CUDA_LINE, hop = size * stride;
    const unsigned own_chunk = launch.rank * chunk;
    const unit<2> own_first = kept[0];

    /* 1. Push every chunk to its owner. */
    for (unsigned i = first; i < chunk; i += step) {
        const unsigned slot = launch.rank * stride + i * CUDA_LINE;
        if (i != first)
            lines_load<LEAVES>(launch, user, units, chunk, size, i, kept);
#pragma unroll
        for (int p = 1; p < LEAVES; p++) {
            const int peer = peer_at(launch, p);
            if (p < size && peer * chunk + i < units)
                order_store_line(launch.peers[p]->two_shot[use.buffer] + slot, line_of(kept[p]));
        }
    }
    order_block_arrive();
    lines_empty(launch.own->two_shot[use.last], use.dirty);

    /* 2. Reduce the own chunk and push it to all. */
    for (unsigned i = first; i < chunk && own_chunk + i < units; i += step) {
        unit<2> leaf[LEAVES];
        const unit<2> mine = i == first ? own_first : user.load(own_chunk + i);
        const unsigned slot = i * CUDA_LINE;
        if (!lines_wait<LEAVES>(launch, op, launch.own->two_shot[use.buffer] + slot, stride, size,
                                mine, leaf))
            return;
        const unit<2> result = reduction<D, SUM_OF, 2>::reduce(leaf, launch);
#pragma unroll
        for (int p = 1; p < LEAVES; p++)
            if (p < size)
                order_store_line(launch.peers[p]->two_shot[use.buffer] + hop +
                                     launch.rank * stride + slot,
                                 line_of(result));
        user.store(own_chunk + i, result);
    }

    /* 3. Write the others' results. */
    for (unsigned i = first; i < chunk; i += step)
        if (!lines_collect<LEAVES, false>(launch, op, user, units, chunk, size, i,
                                          launch.own->two_shot[use.buffer] + hop + i * CUDA_LINE,
                                          stride))
            return;
}

} // namespace

#define KERNEL(name, T, SUM_OF, suffix)                                                            \
    extern "C" __global__ void __launch_bounds__(CUDA_THREADS)                                     \
        two_shot_lines_##name##suffix(const __grid_constant__ cuda_launch launch)                  \
    {                                                                                              \
        two_shot_lines<dtype_##T, SUM_OF>(launch);                                                 \
    }
KERNELS_OF_FLOATS(KERNEL)
KERNELS_OF_SUMS(KERNEL)
