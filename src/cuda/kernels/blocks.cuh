/* SPDX-License-Identifier: MIT */
/*
 * Operations on blocks in one hop. A rank pushes each unit of its blocks as a line into a region of
 * the receiver's arena. The receiver polls its own arena and writes to its operand what a KIND
 * makes of the units: copy.cuh, reduce_blocks.cuh. A thread serves unit i of all blocks of a rank.
 * A line has one writer, the source, and one reader, a thread of the owner. Ranks may have
 * different grids.
 *
 * Data from a peer proves that the peer has entered. Block 0 awaits the headers of the other peers,
 * so all peers have entered an operation that has ended, as in an all-reduce.
 *
 * A KIND:
 *
 *     LEAVES, size_of(launch)   the most ranks, their number
 *     ONE_COLUMN                a block serves one column (pipe.cuh): no registers are left for
 * more dtype, WORDS              of the operands' units own, own_of(user, at)     what it needs of
 * this rank's own block at unit `at` copies_own(launch)        the own block is copied, if it is
 * not there yet collector(user, at, own)  take(p, u): the p-th peer's unit has come; end(): all
 * have
 */
#ifndef TUTTI_CUDA_BLOCKS_CUH
#define TUTTI_CUDA_BLOCKS_CUH

#include "cuda/kernels/reduce.cuh"
#include "cuda/kernels/regions.cuh"

/* The caller's operands. Block p is that for, or from, rank launch.ranks[p]. */
template <typename D, int WORDS> struct block_operands : operands<D, WORDS> {
    typedef operands<D, WORDS> base;
    const cuda_launch &launch;

    __device__ __forceinline__ block_operands(const cuda_launch &l) : base(l), launch(l)
    {
        this->whole_send = this->whole_send && l.moves.send_stride % (WORDS * 8) == 0;
        this->whole_recv = this->whole_recv && l.moves.recv_stride % (WORDS * 8) == 0;
    }

    /* The units of the largest block; and of the p-th one, which has as many here. */
    __device__ __forceinline__ uint64_t most_units() const
    {
        return this->units();
    }
    __device__ __forceinline__ uint64_t units_of(int, uint64_t most) const
    {
        return most;
    }

    /* Loads unit `at` of each block that is sent: u[p] for the p-th peer. With bit 0 of `to` also
     * that of the own block. */
    template <int LEAVES>
    __device__ __forceinline__ void load_all(unsigned to, uint64_t at,
                                             unit<WORDS> (&u)[LEAVES]) const
    {
        const auto s = this->template spot_of<false>(at);
        if (launch.moves.send_stride == 0) {
            const unit<WORDS> one = this->load(s);
#pragma unroll
            for (int p = 0; p < LEAVES; p++)
                u[p] = one;
        } else {
#pragma unroll
            for (int p = 0; p < LEAVES; p++)
                u[p] = to >> p & 1 ? load_of(p, s) : unit<WORDS>{};
        }
    }

    __device__ __forceinline__ unit<WORDS> load_of(int p, typename base::spot s) const
    {
        s.offset += launch.ranks[p] * launch.moves.send_stride;
        return this->load(s);
    }

    __device__ __forceinline__ void store_of(int p, typename base::spot s, unit<WORDS> u) const
    {
        s.offset += launch.ranks[p] * launch.moves.recv_stride;
        this->store(s, u);
    }
};

/* Bit p for the p-th peer. */
static __device__ __forceinline__ unsigned block_targets(const cuda_launch &launch)
{
    return launch.moves.sends & ~1u;
}

static __device__ __forceinline__ unsigned block_sources(const cuda_launch &launch)
{
    return launch.moves.receives & ~1u;
}

/* All the work of the control warp. Bit p of `sources`: data of the p-th peer will come. */
static __device__ __forceinline__ void blocks_control(const cuda_launch &launch,
                                                      const operation &running, unsigned sources)
{
    const int p = threadIdx.x;
    operation_control(launch, running);
    if (blockIdx.x == 0 && p > 0 && p < launch.size && !(sources >> p & 1))
        operation_await_header(launch, running, launch.ranks[p]);
}

template <typename KIND, typename REGION>
static __device__ __forceinline__ void blocks_run(const cuda_launch &launch)
{
    constexpr int WORDS = KIND::WORDS, LEAVES = KIND::LEAVES;
    static_assert(WORDS == REGION::WORDS, "a unit travels in a line");
    const int size = KIND::size_of(launch);
    const block_operands<typename KIND::dtype, WORDS> user(launch);
    const unsigned units = (unsigned)user.units(), first = worker_index(), step = worker_count();
    const unsigned stride = REGION::stride(units, size);
    const unsigned to = block_targets(launch), from = block_sources(launch);
    const unsigned lines = from ? units * (size - 1) : 0; /* in the own region, at most */

    operation running;
    if (is_control_warp()) {
        operation_begin(launch, running);
        if (operation_take(launch, running)) {
            REGION(running, lines);
            blocks_control(launch, running, block_sources(launch));
        }
        return;
    }
    unsigned char *targets[LEAVES];
    uint64_t ready = 1;
    operation_targets<REGION::PACKED>(launch, size, REGION::BASE, stride, first * CUDA_LINE,
                                      targets, ready);
    operation_begin(launch, running, ready);
    unit<WORDS> u[LEAVES];
    if (to)
        user.load_all(to, first, u);
    auto own = KIND::own_of(user, first);
    if (!operation_take(launch, running))
        return;
    const REGION region(running, lines);

    /* 1. Push. A warp goes on until its last thread has no unit: the lines of a group meet. */
    const unsigned lane = threadIdx.x % 32;
    unsigned offset = region.offset;
    for (unsigned at = first; at - lane < units && to; offset += step * CUDA_LINE) {
#pragma unroll
        for (int p = 1; p < LEAVES; p++)
            if (to >> p & 1)
                region.push(launch, running, p, at, at < units, targets[p] + offset, u[p]);
        at += step;
        if (at - lane < units)
            user.load_all(to, at, u);
    }
    order_block_arrive(ORDER_ROW);
    region.empty(launch);
    for (unsigned at = first; at < units && KIND::copies_own(launch); at += step) {
        const auto s = user.template spot_of<false>(at);
        user.store_of(0, s, user.load_of(0, s));
    }

    /* 2. Collect and write. */
    const unsigned char *const slots = (const unsigned char *)launch.own + REGION::BASE;
    offset = region.offset + first * CUDA_LINE;
    for (unsigned at = first; at < units && from; at += step, offset += step * CUDA_LINE) {
        order_line line[LEAVES];
        if (!operation_await<REGION::PACKED>(
                launch, running, slots + offset, stride, size, from, line,
                [&](const order_line &l) { return REGION::has_come(running, l); }))
            return;
        typename KIND::collector out(user, at, own);
#pragma unroll
        for (int p = 1; p < LEAVES; p++)
            if (from >> p & 1) {
                if (!region.resolve(launch, running, p, at, line[p]))
                    return;
                out.take(p, REGION::unit_of(line[p]));
            }
        out.end();
        own = KIND::own_of(user, at + step);
    }
}

#endif
