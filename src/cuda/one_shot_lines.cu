/* SPDX-License-Identifier: MIT */
/*
 * One-shot with full lines, for floats of some tens to hundreds of KiB: as one_shot_ll.cu, with
 * half the bytes on the wire and lines that must be emptied (lines.cuh). There is exactly one
 * writer of a line (the peer in whose part of the buffer it is) and one reader (the owner's thread
 * that serves its unit); whoever empties it does so one use later.
 */
#include "cuda/lines.cuh"

namespace
{

template <typename D, int SUM_OF>
__device__ __forceinline__ void one_shot_lines(const cuda_launch &launch)
{
    constexpr int LEAVES = SUM_OF ? SUM_OF : CUDA_RANKS;
    const int size = SUM_OF ? SUM_OF : launch.size;
    const operands<D, 2> user(launch);
    const unsigned units = (unsigned)user.units();
    const unsigned first = worker_index();
    const unsigned step = worker_count();

    operation op;
    operation_begin(launch, op);
    if (is_clerk()) {
        if (operation_take(op)) {
            lines_take(&op.uses.low, units * size);
            operation_clerk(launch, op);
        }
        return;
    }
    const unit<2> kept = first < units ? user.load(first) : unit<2>{};
    if (!operation_take(op))
        return;
    const lines_use use = lines_take(&op.uses.low, units * size);
    const unsigned stride = units * CUDA_LINE;

    /* 1. Push. */
    for (unsigned at = first; at < units; at += step) {
        const unit<2> u = at == first ? kept : user.load(at);
        const order_line line = line_of(u);
        const unsigned slot = launch.rank * stride + at * CUDA_LINE;
#pragma unroll
        for (int i = 1; i < LEAVES; i++)
            if (i < size)
                order_store_line(launch.peers[i]->one_shot[use.buffer] + slot, line);
    }
    order_block_arrive();
    lines_empty(launch.own->one_shot[use.last], use.dirty);

    /* 2. Collect, reduce, write. */
    for (unsigned at = first; at < units; at += step) {
        unit<2> leaf[LEAVES];
        const unit<2> mine = at == first ? kept : user.load(at);
        if (!lines_wait<LEAVES>(launch, op, launch.own->one_shot[use.buffer] + at * CUDA_LINE,
                                stride, size, mine, leaf))
            return;
        user.store(at, reduction<D, SUM_OF, 2>::reduce(leaf, launch));
    }
}

} // namespace

#define KERNEL(name, T, SUM_OF, suffix)                                                            \
    extern "C" __global__ void __launch_bounds__(CUDA_THREADS)                                     \
        one_shot_lines_##name##suffix(const __grid_constant__ cuda_launch launch)                  \
    {                                                                                              \
        one_shot_lines<dtype_##T, SUM_OF>(launch);                                                 \
    }
KERNELS_OF_FLOATS(KERNEL)
KERNELS_OF_SUMS(KERNEL)
