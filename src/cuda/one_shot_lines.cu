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
    const unsigned units = (unsigned)user.units(), first = worker_index(), step = worker_count();

    operation op;
    if (is_clerk()) {
        operation_begin(launch, op);
        if (operation_take(launch, op)) {
            lines_take(&op.uses.low, units * size);
            operation_clerk(launch, op);
        }
        return;
    }
    const unsigned stride = units * CUDA_LINE;
    unsigned char *targets[LEAVES];
    auto spot = user.spot_of(first);
    uint64_t ready = spot.offset | spot.elements;
    operation_targets(launch, size, offsetof(cuda_arena, one_shot), stride, first * CUDA_LINE,
                      targets, ready);
    operation_begin(launch, op, ready);
    const unit<2> kept = user.load(spot);
    if (!operation_take(launch, op))
        return;
    const lines_use use = lines_take(&op.uses.low, units * size);
    const unsigned buffer = use.buffer * CUDA_ONE_SHOT_BYTES;

    /* 1. Push. */
    unit<2> u = kept;
    unsigned offset = buffer;
    for (unsigned at = first; at < units; offset += step * CUDA_LINE) {
        const order_line line = line_of(u);
#pragma unroll
        for (int p = 1; p < LEAVES; p++)
            if (p < size)
                order_store_line(targets[p] + offset, line);
        at += step;
        if (at < units)
            u = user.load(user.spot_of(at));
    }
    order_block_arrive(ORDER_ROW);
    lines_empty(launch.own->one_shot[use.last], use.dirty);

    /* 2. Collect, reduce, write. */
    u = kept;
    offset = buffer + first * CUDA_LINE;
    for (unsigned at = first; at < units; offset += step * CUDA_LINE) {
        unit<2> x[LEAVES];
        if (!lines_await(launch, op, launch.own->one_shot[0] + offset, stride, size,
                         all_peers(size), u, x))
            return;
        user.store(spot, reduction<D, SUM_OF, 2>::reduce(x, launch));
        at += step;
        if (at < units) {
            spot = user.spot_of(at);
            u = user.load(spot);
        }
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
