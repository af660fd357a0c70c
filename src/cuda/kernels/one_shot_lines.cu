/* SPDX-License-Identifier: MIT */
/*
 * One-shot with full lines, for floats of some tens to hundreds of KiB. As one_shot_ll.cu, with
 * half the bytes on the wire, and lines that must be emptied (lines.cuh). A line has one writer
 * (the peer whose part of the buffer holds it) and one reader (the owner's thread that serves its
 * unit). The line is emptied one use later.
 */
#include "cuda/kernels/lines.cuh"

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
    if (is_control_warp()) {
        operation_begin(launch, op);
        if (operation_take(launch, op)) {
            lines_take(&op.buffers.low, units * (size - 1));
            operation_control(launch, op);
        }
        return;
    }
    const unsigned stride = units * CUDA_LINE;
    unsigned char *targets[LEAVES];
    auto spot = user.spot_of(first);
    uint64_t ready = spot.offset | spot.elements;
    operation_targets<true>(launch, size, offsetof(cuda_arena, one_shot), stride, first * CUDA_LINE,
                            targets, ready);
    operation_begin(launch, op, ready);
    const unit<2> kept = user.load(spot);
    if (!operation_take(launch, op))
        return;
    const lines_use use = lines_take(&op.buffers.low, units * (size - 1));
    const unsigned buffer = use.buffer * CUDA_ONE_SHOT_BYTES;

    /* 1. Push. */
    unit<2> u = kept;
    unsigned offset = buffer;
    for (unsigned at = first; at < units; offset += step * CUDA_LINE) {
        operation_push(targets, size, offset, line_of(u));
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
        if (!lines_await<true>(launch, op, launch.own->one_shot[0] + offset, stride, size,
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

/* The same where every worker has at most one whole, aligned unit, as in small operations: no loop,
 * and all addresses are computed before the grid dependency. */
template <typename D, int SUM_OF>
__device__ __forceinline__ void one_shot_lines_once(const cuda_launch &launch)
{
    const operands<D, 2> user(launch);
    const unsigned units = (unsigned)(user.count / user.ELEMENTS), at = worker_index();
    const unsigned stride = units * CUDA_LINE;
    const bool mine = at < units;

    operation op;
    if (is_control_warp()) {
        operation_begin(launch, op);
        if (operation_take(launch, op)) {
            lines_take(&op.buffers.low, units * (SUM_OF - 1));
            operation_control(launch, op);
        }
        return;
    }
    unsigned char *targets[SUM_OF];
    const unsigned char *from = user.send + at * CUDA_LINE;
    unsigned char *to = user.recv + at * CUDA_LINE;
    uint64_t ready = (uint64_t)order_ready(from) | (uint64_t)order_ready(to);
    operation_targets<true>(launch, SUM_OF, offsetof(cuda_arena, one_shot), stride, at * CUDA_LINE,
                            targets, ready);
    operation_begin(launch, op, ready);
    unit<2> x[SUM_OF] = {};
    if (mine)
        x[0] = unit_load<2>(from);
    if (!operation_take(launch, op))
        return;
    const lines_use use = lines_take(&op.buffers.low, units * (SUM_OF - 1));
    const unsigned buffer = use.buffer * CUDA_ONE_SHOT_BYTES;
    if (mine)
        operation_push(targets, SUM_OF, buffer, line_of(x[0]));
    order_block_arrive(ORDER_ROW);
    lines_empty(launch.own->one_shot[use.last], use.dirty);
    if (mine && lines_await<true>(launch, op, launch.own->one_shot[0] + buffer + at * CUDA_LINE,
                                  stride, SUM_OF, all_peers(SUM_OF), x[0], x))
        unit_store(to, reduction<D, SUM_OF, 2>::reduce(x, launch));
}

} // namespace

#define KERNEL_ANY(name, T, SUM_OF, suffix)                                                        \
    KERNEL_DEFINE(BOUNDS_ANY, one_shot_lines_##name##suffix, one_shot_lines<dtype_##T, SUM_OF>)
#define KERNEL(name, T, SUM_OF, suffix)                                                            \
    KERNEL_DEFINE(BOUNDS, one_shot_lines_##name##suffix, one_shot_lines<dtype_##T, SUM_OF>)
#define KERNEL_ONCE(name, T, SUM_OF, suffix)                                                       \
    KERNEL_DEFINE(BOUNDS, one_shot_lines_##name##suffix##_once,                                    \
                  one_shot_lines_once<dtype_##T, SUM_OF>)
KERNELS_OF_FLOATS(KERNEL_ANY)
KERNELS_OF_SUMS(KERNEL)
KERNELS_OF_SUMS(KERNEL_ONCE)
