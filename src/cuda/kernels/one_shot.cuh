/* SPDX-License-Identifier: MIT */
/*
 * One-shot: one hop, no barrier. Each rank stores every unit of its input as a line into its part
 * of a region of every peer's arena. Then it polls its own arena for the peers' lines, reduces, and
 * writes the result. A thread serves the same units on all ranks. So a line has one writer (the
 * peer) and one reader (the owner's thread of that number).
 *
 * A REGION says how a unit travels (regions.cuh).
 *
 * ONCE: every worker has at most one whole, aligned unit, as in small operations. No loop is left,
 * and all addresses are computed before the grid dependency.
 */
#ifndef TUTTI_CUDA_ONE_SHOT_CUH
#define TUTTI_CUDA_ONE_SHOT_CUH

#include "cuda/kernels/operation.cuh"
#include "cuda/kernels/reduce.cuh"

template <typename REGION, typename D, int SUM_OF, bool ONCE>
static __device__ __forceinline__ void one_shot(const cuda_launch &launch)
{
    constexpr int LEAVES = SUM_OF ? SUM_OF : CUDA_RANKS, WORDS = REGION::WORDS;
    const int size = SUM_OF ? SUM_OF : launch.size;
    const operands<D, WORDS> user(launch);
    const unsigned units = (unsigned)(ONCE ? user.count / user.ELEMENTS : user.units());
    const unsigned first = worker_index(), step = worker_count();
    const unsigned stride = REGION::stride(units, size);

    operation running;
    if (is_control_warp()) {
        operation_begin(launch, running);
        if (operation_take(launch, running)) {
            REGION(running, units * (size - 1));
            operation_control(launch, running);
        }
        return;
    }
    unsigned char *targets[LEAVES];
    auto spot = user.template spot_of<ONCE>(first);
    uint64_t ready = spot.ready();
    operation_targets<REGION::PACKED>(launch, size, REGION::BASE, stride, first * CUDA_LINE,
                                      targets, ready);
    operation_begin(launch, running, ready);
    const unit<WORDS> kept = user.load(spot);
    if (!operation_take(launch, running))
        return;
    const REGION region(running, units * (size - 1));

    /* 1. Push. */
    unit<WORDS> u = kept;
    unsigned offset = region.offset;
    for (unsigned at = first; at < units; offset += step * CUDA_LINE) {
        operation_push(targets, size, offset, REGION::line_of(running, u));
        at += step;
        if (ONCE)
            break;
        if (at < units)
            u = user.load(user.template spot_of<ONCE>(at));
    }
    order_block_arrive(ORDER_ROW);
    region.empty(launch);

    /* 2. Collect, reduce, write. */
    const unsigned char *const slots = (const unsigned char *)launch.own + REGION::BASE;
    u = kept;
    offset = region.offset + first * CUDA_LINE;
    for (unsigned at = first; at < units; offset += step * CUDA_LINE) {
        order_line line[LEAVES];
        unit<WORDS> x[LEAVES];
        if (!operation_await<REGION::PACKED>(
                launch, running, slots + offset, stride, size, all_peers(size), line,
                [&](const order_line &l) { return REGION::has_come(running, l); }))
            return;
        x[0] = u;
#pragma unroll
        for (int p = 1; p < LEAVES; p++)
            x[p] = REGION::unit_of(line[p]);
        user.store(spot, reduction<D, SUM_OF, WORDS>::reduce(x, launch));
        at += step;
        if (ONCE)
            return;
        if (at < units) {
            spot = user.template spot_of<ONCE>(at);
            u = user.load(spot);
        }
    }
}

#endif
