/* SPDX-License-Identifier: MIT */
/*
 * A large block to the root or from it, among three ranks and more, in two hops over all links. The
 * block's units are cut into one chunk for each rank but the root: its owner. Hop 1 takes chunks to
 * their owners, hop 2 takes what a WAY makes of them to the receivers. To reduce, all ranks push to
 * the owners, and the owners to the root. To broadcast, the root pushes to the owners, and each
 * owner to the others. So a link carries the block at most once in each direction. An all-reduce
 * has no root: all ranks are owners, and all receive.
 *
 * It goes piece by piece, as in pipe.cuh; a worker serves one unit of each piece of each chunk. In
 * its turn for piece q a worker (1) pushes its lines of q + 1 to their owners; (2) if it is an
 * owner, waits for its sources' lines of q and pushes the result; (3) waits for the other owners'
 * results of q and writes them.
 *
 * Lines lie in copies[use mod 2][q mod 3][source][unit]: with a root no rank gets lines of both
 * hops from one source. Without one, those of hop 2 lie behind those of hop 1. The credit of a turn
 * (Y1) says that all lines of that turn are empty again. A worker pushes its lines of piece q to
 * their owners once it has these ranks' credits for q - 3. It has them in the end: a turn needs
 * only lines that the others push in that turn or before.
 *
 * Hop 2 awaits no credits. An owner that has the root's line of piece q knows that its receivers
 * have emptied the lines of q - 3: the root had the credits of all owners for q - 3, and its own
 * fence for q - 3, before it pushed that line. Without a root the owner has the lines of its
 * receivers, each behind that rank's own fence. docs/models/relay.pml is the model.
 */
#ifndef TUTTI_CUDA_RELAY_CUH
#define TUTTI_CUDA_RELAY_CUH

#include "cuda/kernels/pipe.cuh"

/*
 * A WAY:
 *
 *     LEAVES, ONE_COLUMN, dtype, size_of(launch)   as of a KIND
 *     TO_ROOT, TO_ALL                  reduces to a root; without one; neither: broadcasts
 *     own_of(user, at)                 what an owner adds to its sources' lines
 *     result_of(user, own, from, x)    the unit that it pushes; x[p] is the p-th peer's, if `from`
 *                                      has bit p
 */
template <typename WAY, typename LINES>
struct relay : pipe_turns<relay<WAY, LINES>, WAY::ONE_COLUMN> {
    static constexpr int LEAVES = WAY::LEAVES;
    typedef pipe_turns<relay, WAY::ONE_COLUMN> base;
    using base::launch, base::lane, base::running, base::size, base::stride, base::to, base::well,
        base::width;
    const block_operands<typename WAY::dtype, 2> user;
    static constexpr bool TO_ALL = WAY::TO_ALL;
    const uint64_t units, chunk;
    const unsigned all, peers; /* all peers; of the root the same, of the others the root */
    const bool is_root;        /* or there is none */
    unit<2> u[LEAVES];         /* of the next piece */

    __device__ __forceinline__ relay(const cuda_launch &l)
        : base(l, WAY::size_of(l), 0, 0), user(l), units(user.units()),
          chunk((units + size - 2 + TO_ALL) / (size - 1 + TO_ALL)), all(all_peers(size)),
          peers(TO_ALL ? all : block_targets(l) | block_sources(l)),
          is_root(TO_ALL || peers & (peers - 1))
    {
        to = is_root ? all : WAY::TO_ROOT ? all & ~peers : 0;
        base::loads = to;
        base::from = is_root && !WAY::TO_ROOT && !TO_ALL ? 0 : all;
        base::cut(chunk, CUDA_COPY_BYTES / CUDA_LINE / (size - 1) / (TO_ALL ? 2 : 1), 1);
    }

    /* A rank. Computed where it is needed: registers are scarce. */
    __device__ __forceinline__ int root() const
    {
        return is_root ? launch.rank : launch.ranks[__ffs(peers) - 1];
    }

    /* The worker's unit of piece q of each chunk, and which unit of the block that is in the chunk
     * of an owner; `units` if there is none. */
    __device__ __forceinline__ uint64_t index_of(uint64_t q) const
    {
        const unsigned worker = base::worker();
        return worker < width ? q * width + worker : chunk + lane;
    }
    __device__ __forceinline__ uint64_t at_of(int owner, uint64_t i) const
    {
        const uint64_t at = (owner - (!TO_ALL && owner > root())) * chunk + i;
        return i < chunk && at < units ? at : units;
    }

    __device__ __forceinline__ unsigned offset_of(uint64_t q, int hop, int source, int owner) const
    {
        return base::offset_of(q, 0, source, owner) + (TO_ALL && hop ? (size - 1) * stride : 0);
    }

    __device__ __forceinline__ void load(uint64_t q)
    {
#pragma unroll
        for (int p = 1; p < LEAVES; p++)
            u[p] =
                to >> p & 1
                    ? user.load(user.template spot_of<false>(at_of(launch.ranks[p], index_of(q))))
                    : unit<2>{};
    }

    __device__ __forceinline__ void push(uint64_t q)
    {
        const uint64_t i = index_of(q);
        if (!base::may_push(q) || i - lane >= chunk)
            return;
#pragma unroll
        for (int p = 1; p < LEAVES; p++) {
            const uint64_t at = at_of(launch.ranks[p], i);
            if (!(to >> p & 1))
                continue;
            LINES::push(at < units, launch.peers[p], offset_of(q, 0, launch.rank, launch.ranks[p]),
                        u[p], q, running.flag);
            if (WAY::copies_own(launch) && at < units)
                user.store(user.template spot_of<false>(at), u[p]);
        }
    }

    /* Waits for the wanted lines, empties them and calls take(p, unit) for each. */
    template <typename TAKE>
    __device__ __forceinline__ void take_lines(uint64_t q, int hop, unsigned wanted, TAKE take)
    {
        unsigned char *const slots = launch.own->copies[0][0] + offset_of(q, hop, 0, CUDA_RANKS);
        order_line line[LEAVES];
        well = operation_await<true>(launch, running, slots, stride, size, wanted, line,
                                     [](const order_line &l) { return !line_is_empty(l); });
#pragma unroll
        for (int p = 1; p < LEAVES; p++) {
            if (!(wanted >> p & 1) || !well)
                continue;
            const unsigned offset = offset_of(q, hop, launch.ranks[p], launch.rank);
            well = LINES::resolve(launch, running, launch.ranks[p], offset, q, line[p]);
            line_empty(launch.own->copies[0][0] + offset);
            take(p, unit<2>{line[p].low, line[p].high});
        }
    }

    /* An owner's part. All threads of the warp. */
    __device__ __forceinline__ void hand_on(uint64_t q, uint64_t i)
    {
        const uint64_t at = at_of(launch.rank, i);
        const unsigned sources = WAY::TO_ROOT ? all : peers,
                       receivers = WAY::TO_ROOT || TO_ALL ? peers : all & ~peers;
        unit<2> result = {};
        if (at < units && well) {
            unit<2> x[LEAVES];
            take_lines(q, 0, sources, [&](int p, unit<2> its) { x[p] = its; });
            result = WAY::result_of(user, WAY::own_of(user, at), sources, x);
        }
        if (!base::warp_is_well())
            return;
#pragma unroll
        for (int p = 1; p < LEAVES; p++)
            if (receivers >> p & 1)
                LINES::push(at < units, launch.peers[p],
                            offset_of(q, 1, launch.rank, launch.ranks[p]), result, q, running.flag);
        if (!WAY::TO_ROOT && at < units)
            user.store(user.template spot_of<false>(at), result);
    }

    /* A block with several columns calls this in ascending order. gather() waits for the same turn
     * and column of another rank. So the least column that a rank has not served is served on every
     * rank, and goes on. */
    __device__ __forceinline__ void collect(uint64_t q)
    {
        const uint64_t i = index_of(q);
        if (i - lane >= chunk)
            return;
        if (TO_ALL || !is_root)
            hand_on(q, i);
        if (TO_ALL || is_root == WAY::TO_ROOT)
            gather(q, i);
    }

    /* Writes what the other owners have made. */
    __device__ __forceinline__ void gather(uint64_t q, uint64_t i)
    {
        unsigned wanted = 0;
#pragma unroll
        for (int p = 1; p < LEAVES; p++)
            if (((is_root ? all : all & ~peers) >> p & 1) && at_of(launch.ranks[p], i) < units)
                wanted |= 1u << p;
        if (wanted && well)
            take_lines(q, 1, wanted, [&](int p, unit<2> its) {
                user.store(user.template spot_of<false>(at_of(launch.ranks[p], i)), its);
            });
    }
};

template <typename WAY, typename LINES>
static __device__ __forceinline__ void relay_run(const cuda_launch &launch)
{
    relay<WAY, LINES> all(launch);
    all.run(all, 0); /* a small block has empty chunks: no peer is sure to send data */
}

#endif
