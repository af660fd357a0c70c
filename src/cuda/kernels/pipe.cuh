/* SPDX-License-Identifier: MIT */
/*
 * Blocks of any size in full lines (lines.cuh), piece by piece. A worker of a column serves DEPTH
 * units of each piece of each block; all ranks have the same columns (operation.cuh). In its turn
 * for piece q a worker (1) pushes its lines of q + 1, so that the link carries them while it waits;
 * (2) waits for its sources' lines of q, empties them, and writes what a KIND (blocks.cuh) makes of
 * them.
 *
 * Lines lie in copies[use mod 2][q mod 3][source][unit]. A line has one writer, the source's
 * worker, and one reader, the owner's worker of the same number. While the workers are in the next
 * turn, the control warp makes a fence behind what the last turn emptied, and then tells each
 * source so: the credit (Y1). A worker pushes its line of piece q, from the fourth on, once it has
 * the credit of every target for q - 3. So the line is empty when it is written. Lines of the first
 * three pieces were last used two pipelined operations ago, and all peers have left that operation
 * (operation.cuh). docs/models/pipe.pml is the model.
 *
 * A block with several columns serves all of them in each half of a turn. Its fence is behind what
 * it has emptied in all of them. In (1) it waits for turns q - 2 of its targets, in (2) for what
 * its sources push in their turns q - 1. So a wait is for an earlier turn of another rank, whatever
 * grids the ranks have, and none of them waits in a circle.
 */
#ifndef TUTTI_CUDA_PIPE_CUH
#define TUTTI_CUDA_PIPE_CUH

#include "cuda/kernels/blocks.cuh"

/* Takes the use's number; `buffers` is the one-shot word of the state. Returns its set of pipes. */
static __device__ __forceinline__ unsigned copies_take(uint64_t *buffers)
{
    const unsigned use = *buffers >> 16 & 0xffff;
    *buffers = (*buffers & ~UINT64_C(0xffff0000)) | (uint64_t)((use + 1) & 0xffff) << 16;
    return use & 1;
}

/* How lines of a pipe travel. `offset` is the line's place in the copies of an arena. Floats: */
struct full_pipe {
    static constexpr int WORDS = 2;

    static __device__ __forceinline__ void push(bool has, cuda_arena *arena, unsigned offset,
                                                unit<2> u, uint64_t, uint64_t)
    {
        if (has)
            order_store_line(arena->copies[0][0] + offset, line_of(u));
    }
    static __device__ __forceinline__ bool resolve(const cuda_launch &, const operation &, int,
                                                   unsigned, uint64_t, order_line &)
    {
        return true;
    }
};

/* Byte lines: */
struct byte_pipe {
    static constexpr int WORDS = 2;

    /* The place of the flagged line of a line's group. */
    static __device__ __forceinline__ void *told_at(cuda_arena *arena, unsigned offset)
    {
        return (unsigned char *)arena->escapes + offset / CUDA_LINE / CUDA_GROUP_LINES * CUDA_LINE;
    }
    /* What it says besides the escape. */
    static __device__ __forceinline__ uint64_t tag_of(uint64_t q)
    {
        return (q + 1) << 6;
    }
    static __device__ __forceinline__ void push(bool has, cuda_arena *arena, unsigned offset,
                                                unit<2> u, uint64_t q, uint64_t flag)
    {
        byte_lines_push(has, arena->copies[0][0] + offset, {u.word[0], u.word[1]},
                        told_at(arena, offset), tag_of(q), flag);
    }
    static __device__ __forceinline__ bool resolve(const cuda_launch &launch,
                                                   const operation &running, int peer,
                                                   unsigned offset, uint64_t q, order_line &line)
    {
        return byte_line_resolve(launch, running.sequence, told_at(launch.own, offset), peer,
                                 tag_of(q), running.flag, line);
    }
};

/* What operations in turns have in common. SELF has load(q), push(q), which also copies the rank's
 * own block, and collect(q). */
template <typename SELF, bool ONE_COLUMN> struct pipe_turns {
    const cuda_launch &launch;
    operation running;
    int size;
    unsigned to, from;             /* where push() and collect() have peers */
    bool loads;                    /* there is something to push or to copy */
    unsigned width, piece, stride; /* units of a worker's row, of a piece; bytes of a source */
    uint64_t turns;
    unsigned set;
    unsigned column, lane;
    bool well;

    __device__ __forceinline__ pipe_turns(const cuda_launch &l, int ranks, unsigned targets,
                                          unsigned sources)
        : launch(l), size(ranks), to(targets), from(sources), loads(targets), column(blockIdx.x),
          lane(threadIdx.x % CUDA_GROUP_LINES), well(true)
    {
    }

    /* Of all columns. Computed where it is needed: registers are scarce. */
    __device__ __forceinline__ unsigned worker() const
    {
        return column_worker(column);
    }

    /* Calls use() for each column of the block. */
    template <typename USE> __device__ __forceinline__ void each_column(USE use)
    {
        if constexpr (ONE_COLUMN) {
            use();
        } else {
#pragma unroll 1
            for (column = blockIdx.x; column < launch.columns; column += gridDim.x)
                use();
        }
    }

    /* `most`: units of a source's piece that fit, in rows of `depth`. */
    __device__ __forceinline__ void cut(uint64_t units, unsigned most, int depth)
    {
        const unsigned workers = column_workers(launch);
        most /= depth;
        width = (workers < most ? workers : most) & ~(CUDA_GROUP_LINES - 1);
        piece = width * depth;
        stride = piece * CUDA_LINE;
        turns = (units + piece - 1) / piece;
    }

    /* Where a worker's d-th line of piece q lies in the copies of an owner's arena. */
    __device__ __forceinline__ unsigned offset_of(uint64_t q, int d, int source, int owner) const
    {
        return (set * CUDA_PIPES + (unsigned)(q % CUDA_PIPES)) * CUDA_COPY_BYTES +
               slot_of<true>(source, owner) * stride + (d * width + worker()) * CUDA_LINE;
    }

    /* Waits until the targets have emptied the lines of piece q - 3. */
    __device__ __forceinline__ void credits_await(unsigned targets, uint64_t q)
    {
#pragma unroll 1
        for (int p = 1; p < size && well; p++) {
            order_line line;
            if (targets >> p & 1)
                well = operation_await_line(
                    launch, running.sequence, &launch.own->arrivals[0][column][launch.ranks[p]],
                    launch.ranks[p], line,
                    [&](const order_line &l) { /* Y1a pairs Y1 */
                                               return l.high == running.flag &&
                                                      l.low > q - CUDA_PIPES;
                    });
        }
    }

    /* Returns the same to all threads of a warp: they push together, or none does. */
    __device__ __forceinline__ bool warp_is_well()
    {
        well = __all_sync(~0u, well);
        return well;
    }

    /* Before a push of piece q to its targets. */
    __device__ __forceinline__ bool may_push(uint64_t q)
    {
        if (q >= CUDA_PIPES)
            credits_await(to, q);
        return warp_is_well();
    }

    /* The control warp: tells the sources what the last turn has emptied. Bit p of `sources`: data
     * of the p-th peer is sure to come. */
    __device__ __forceinline__ void control(unsigned sources)
    {
        blocks_control(launch, running, sources);
        for (uint64_t turn = 0; turn + CUDA_PIPES < turns && from; turn++) {
            order_block_sync(ORDER_EMPTIED);
            order_fence(); /* Y1 */
            each_column([&] {
                if (threadIdx.x < size && from >> threadIdx.x & 1)
                    order_store_line(&launch.peers[threadIdx.x]->arrivals[0][column][launch.rank],
                                     {turn + 1, running.flag});
            });
            order_block_arrive(ORDER_FENCED);
        }
    }

    /* Pushes the first piece of all columns. That of the first one is loaded. */
    __device__ __forceinline__ void push_first(SELF &self)
    {
        self.push(0);
        if constexpr (!ONE_COLUMN) {
#pragma unroll 1
            for (column += gridDim.x; column < launch.columns; column += gridDim.x) {
                self.load(0);
                self.push(0);
            }
        }
    }

    __device__ __forceinline__ void run(SELF &self, unsigned sources)
    {
        operation_begin(launch, running);
        if (!is_control_warp() && loads)
            self.load(0);
        if (!operation_take_together(launch, running))
            return;
        set = copies_take(&running.buffers.low);
        if (is_control_warp()) {
            control(sources);
            return;
        }
        order_block_arrive(ORDER_ROW);
        if (loads)
            push_first(self);
        for (uint64_t turn = 0; turn < turns; turn++) {
            if (loads && turn + 1 < turns)
                each_column([&] {
                    self.load(turn + 1);
                    self.push(turn + 1);
                });
            if (!from)
                continue;
            each_column([&] { self.collect(turn); });
            /* The control warp is at most a turn behind. */
            if (turn > 0 && turn + CUDA_PIPES <= turns)
                order_block_sync(ORDER_FENCED);
            if (turn + CUDA_PIPES < turns)
                order_block_arrive(ORDER_EMPTIED);
        }
    }
};

template <typename KIND, typename LINES, int DEPTH>
struct pipe : pipe_turns<pipe<KIND, LINES, DEPTH>, KIND::ONE_COLUMN> {
    static constexpr int LEAVES = KIND::LEAVES;
    typedef pipe_turns<pipe, KIND::ONE_COLUMN> base;
    using base::from, base::launch, base::lane, base::running, base::piece, base::size,
        base::stride, base::to, base::well, base::width;
    const typename KIND::operands user;
    const uint64_t units;     /* of the largest block */
    const bool copies;        /* the own block */
    unit<2> u[DEPTH][LEAVES]; /* of the next piece; [0]: of the own block */

    __device__ __forceinline__ pipe(const cuda_launch &l)
        : base(l, KIND::size_of(l), block_targets(l), block_sources(l)), user(l),
          units(user.most_units()), copies(KIND::copies_own(l))
    {
        base::loads = to || copies;
        base::cut(units, CUDA_COPY_BYTES / CUDA_LINE / (size - 1), DEPTH);
    }

    /* The worker's d-th unit of piece q. */
    __device__ __forceinline__ uint64_t unit_of(uint64_t q, int d) const
    {
        const unsigned worker = base::worker();
        return worker < width ? q * piece + d * width + worker : units + lane;
    }

    __device__ __forceinline__ void load(uint64_t q)
    {
#pragma unroll
        for (int d = 0; d < DEPTH; d++)
            user.load_all(to | copies, unit_of(q, d), u[d]);
    }

    __device__ __forceinline__ void push(uint64_t q)
    {
        if (!base::may_push(q))
            return;
#pragma unroll
        for (int d = 0; d < DEPTH; d++) {
            const uint64_t at = unit_of(q, d);
            if (at - lane >= units)
                continue;
#pragma unroll
            for (int p = 1; p < LEAVES; p++) {
                if (!(to >> p & 1))
                    continue;
                const unsigned offset = base::offset_of(q, d, launch.rank, launch.ranks[p]);
                LINES::push(at < user.units_of(p, units), launch.peers[p], offset, u[d][p], q,
                            running.flag);
            }
            if (copies && at < units)
                user.store_of(0, user.template spot_of<false>(at), u[d][0]);
        }
    }

    __device__ __forceinline__ void collect(uint64_t q)
    {
#pragma unroll
        for (int d = 0; d < DEPTH; d++) {
            const uint64_t at = unit_of(q, d);
            unsigned char *const slots =
                launch.own->copies[0][0] + base::offset_of(q, d, 0, CUDA_RANKS);
            order_line line[LEAVES];
            if (at >= user.units_of(0, units) || !well)
                continue;
            const auto own = KIND::own_of(user, at);
            well = operation_await<true>(launch, running, slots, stride, size, from, line,
                                         [](const order_line &l) { return !line_is_empty(l); });
            typename KIND::collector out(user, at, own);
#pragma unroll
            for (int p = 1; p < LEAVES; p++) {
                if (!(from >> p & 1) || !well)
                    continue;
                const unsigned offset = base::offset_of(q, d, launch.ranks[p], launch.rank);
                well = LINES::resolve(launch, running, launch.ranks[p], offset, q, line[p]);
                line_empty(launch.own->copies[0][0] + offset);
                out.take(p, {line[p].low, line[p].high});
            }
            if (well)
                out.end();
        }
    }
};

/* The kernels' part, with two units a turn if there is only one peer, so that a turn moves as many
 * bytes. */
template <typename KIND, typename LINES>
static __device__ __forceinline__ void pipe_run(const cuda_launch &launch)
{
    pipe<KIND, LINES, KIND::LEAVES == 2 ? 2 : 1> all(launch);
    all.run(all, all.from);
}

#endif
