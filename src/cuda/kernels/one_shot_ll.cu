/* SPDX-License-Identifier: MIT */
/*
 * One-shot with flags in band, for the smallest operations: one hop, no barrier, nothing to clear.
 * Each rank stores every 8 bytes of its input, with the operation's flag, as one line into its slot
 * of every peer's arena. Then it polls its own arena for the peers' lines, reduces, and writes the
 * result. A thread serves the same units on all ranks.
 *
 * A line has one writer (the peer that owns the slot) and one reader (the owner's thread that
 * serves its unit). A line is free when it is written: operation e writes half e mod 2, which e - 2
 * used last. This rank ended e - 1 before e, with data of every peer. So every peer had entered e -
 * 1, and had left e - 2. A line is new if its flag is this operation's: flags hold the sequence,
 * which never comes again.
 */
#include "cuda/kernels/operation.cuh"
#include "cuda/kernels/reduce.cuh"

namespace
{

template <typename D, int SUM_OF>
__device__ __forceinline__ void one_shot_ll(const cuda_launch &launch)
{
    constexpr int LEAVES = SUM_OF ? SUM_OF : CUDA_RANKS;
    const int size = SUM_OF ? SUM_OF : launch.size;
    const operands<D, 1> user(launch);
    const unsigned units = (unsigned)user.units(), first = worker_index(), step = worker_count();
    const unsigned stride = CUDA_FLAGGED_BYTES / CUDA_HALVES / size / CUDA_LINE * CUDA_LINE;

    operation op;
    if (is_control_warp()) {
        operation_begin(launch, op);
        if (operation_take(launch, op))
            operation_control(launch, op);
        return;
    }
    unsigned char *targets[LEAVES];
    auto spot = user.spot_of(first);
    uint64_t ready = spot.offset | spot.elements;
    operation_targets<false>(launch, size, offsetof(cuda_arena, flagged), stride, first * CUDA_LINE,
                             targets, ready);
    operation_begin(launch, op, ready);
    const unit<1> kept = user.load(spot);
    if (!operation_take(launch, op))
        return;
    const unsigned half = (op.sequence & 1) * (CUDA_FLAGGED_BYTES / CUDA_HALVES);

    /* 1. Push. */
    unit<1> u = kept;
    unsigned offset = half;
    for (unsigned at = first; at < units; offset += step * CUDA_LINE) {
        operation_push(targets, size, offset, {u.word[0], op.flag});
        at += step;
        if (at < units)
            u = user.load(user.spot_of(at));
    }
    order_block_arrive(ORDER_ROW);

    /* 2. Collect, reduce, write. */
    u = kept;
    offset = half + first * CUDA_LINE;
    for (unsigned at = first; at < units; offset += step * CUDA_LINE) {
        order_line line[LEAVES];
        unit<1> x[LEAVES];
        if (!operation_await<false>(launch, op, launch.own->flagged + offset, stride, size,
                                    all_peers(size), line,
                                    [&](const order_line &l) { return l.high == op.flag; }))
            return;
        x[0] = u;
#pragma unroll
        for (int p = 1; p < LEAVES; p++)
            x[p] = {line[p].low};
        user.store(spot, reduction<D, SUM_OF, 1>::reduce(x, launch));
        at += step;
        if (at < units) {
            spot = user.spot_of(at);
            u = user.load(spot);
        }
    }
}

/* As one_shot_lines_once(). */
template <typename D, int SUM_OF>
__device__ __forceinline__ void one_shot_ll_once(const cuda_launch &launch)
{
    const operands<D, 1> user(launch);
    const unsigned units = (unsigned)(user.count / user.ELEMENTS), at = worker_index();
    constexpr unsigned HALF = CUDA_FLAGGED_BYTES / CUDA_HALVES;
    constexpr unsigned STRIDE = HALF / SUM_OF / CUDA_LINE * CUDA_LINE;
    const bool mine = at < units;

    operation op;
    if (is_control_warp()) {
        operation_begin(launch, op);
        if (operation_take(launch, op))
            operation_control(launch, op);
        return;
    }
    unsigned char *targets[SUM_OF];
    const unsigned char *from = user.send + at * sizeof(uint64_t);
    unsigned char *to = user.recv + at * sizeof(uint64_t);
    uint64_t ready = (uint64_t)order_ready(from) | (uint64_t)order_ready(to);
    operation_targets<false>(launch, SUM_OF, offsetof(cuda_arena, flagged), STRIDE, at * CUDA_LINE,
                             targets, ready);
    operation_begin(launch, op, ready);
    unit<1> x[SUM_OF] = {};
    if (mine)
        x[0] = unit_load<1>(from);
    if (!operation_take(launch, op))
        return;
    const unsigned half = (op.sequence & 1) * HALF;
    if (mine)
        operation_push(targets, SUM_OF, half, {x[0].word[0], op.flag});
    order_block_arrive(ORDER_ROW);
    order_line line[SUM_OF];
    if (!mine || !operation_await<false>(launch, op, launch.own->flagged + half + at * CUDA_LINE,
                                         STRIDE, SUM_OF, all_peers(SUM_OF), line,
                                         [&](const order_line &l) { return l.high == op.flag; }))
        return;
#pragma unroll
    for (int p = 1; p < SUM_OF; p++)
        x[p] = {line[p].low};
    unit_store(to, reduction<D, SUM_OF, 1>::reduce(x, launch));
}

} // namespace

#define KERNEL(name, T, SUM_OF, suffix)                                                            \
    KERNEL_DEFINE(BOUNDS, one_shot_ll_##name##suffix, one_shot_ll<dtype_##T, SUM_OF>)
#define KERNEL_ONCE(name, T, SUM_OF, suffix)                                                       \
    KERNEL_DEFINE(BOUNDS, one_shot_ll_##name##suffix##_once, one_shot_ll_once<dtype_##T, SUM_OF>)
KERNELS_OF_FLOATS(KERNEL)
KERNELS_OF_INTEGERS(KERNEL)
KERNELS_OF_SUMS(KERNEL)
KERNELS_OF_SUMS(KERNEL_ONCE)
