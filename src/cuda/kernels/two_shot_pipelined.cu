/* SPDX-License-Identifier: MIT */
/*
 * Two-shot with full lines, piece by piece, for floats of any size (others: two_shot_relayed.cu). A
 * worker serves DEPTH units of each piece of each chunk, the same on every rank. In its turn for
 * piece q it (1) waits for all sources' lines of q, reduces, and pushes the result to all; (2)
 * pushes its lines of q + 1 to their owners; (3) waits for the other owners' results of q and
 * writes them. So the link carries q + 1 while a worker waits for results of q.
 *
 * Lines lie in pipes[q mod 3][hop][source][unit]. A line has one writer, the source's worker, and
 * one reader, the owner's worker of the same number. The reader empties a line when it has read it.
 * While the workers are in the next turn, the control warp makes a fence behind what the last turn
 * emptied. The fence waits until all pushes of the block have arrived.
 *
 * A line is empty when it is written (Z1, Z1a), because its last use was three pieces earlier:
 * - Hop 1, piece q + 1, last used by piece q - 2. The owner emptied it in turn q - 2. Behind the
 *   fence for that turn the owner pushed its result of q - 1. The writer received this result in
 *   turn q - 1, so before it writes.
 * - Hop 2, piece q, last used by piece q - 3. This rank emptied it before the fence for turn q - 2.
 *   Behind this fence, in turn q - 1, this rank pushed its line of q to the owner. The owner
 *   received that line before it writes.
 * The same holds from one operation to the next, of any geometry: the next operation goes on with
 * the next pipe, and the end of a kernel orders what its last turn emptied.
 */
#include "cuda/kernels/lines.cuh"
#include "cuda/kernels/tiles.cuh"

namespace
{

/* Up to this many ranks, registers hold everything at once. Kernels for more ranks load the data of
 * step 2 in step 2, not before step 1 waits. They keep a thread's own unit in shared memory, which
 * no other thread reads, and compute the address of a peer's line where they use it. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr int EARLY_LEAVES = 3; /* nvcc 13.0 takes more registers there */
#else
constexpr int EARLY_LEAVES = 4;
#endif

/* The address to which a worker pushes for the p-th peer: its first line of this source in the
 * pipes. */
template <int LEAVES> struct pushes {
    const cuda_launch &launch;
    unsigned char *targets[LEAVES];
    uint32_t source;

    __device__ __forceinline__ pushes(const cuda_launch &operands, int size, unsigned stride,
                                      unsigned at, uint64_t &ready)
        : launch(operands), source(offsetof(cuda_arena, pipes) + operands.rank * stride + at)
    {
        ready = source;
        if (LEAVES <= EARLY_LEAVES)
            operation_targets<false>(launch, size, offsetof(cuda_arena, pipes), stride, at, targets,
                                     ready);
    }

    __device__ __forceinline__ unsigned char *to(int p, uint64_t offset) const
    {
        return LEAVES <= EARLY_LEAVES ? targets[p] + offset
                                      : (unsigned char *)launch.peers[p] + source + offset;
    }

    __device__ __forceinline__ auto at(uint64_t offset) const
    {
        return [this, offset](int p) { return to(p, offset); };
    }
};

/* The pipe with which an operation of `turns` turns begins; `buffers` is the word of the state for
 * the next operation. */
__device__ __forceinline__ unsigned pipes_take(uint64_t *buffers, unsigned turns)
{
    const unsigned pipe = *buffers >> 16 & 0xffff;
    *buffers = (*buffers & ~UINT64_C(0xffff0000)) | (uint64_t)((pipe + turns) % CUDA_PIPES) << 16;
    return pipe;
}

/* How an operation is cut: units of a chunk, of a row of workers and of a piece, bytes of a
 * source's lines, turns. */
struct cut {
    uint64_t chunk;
    unsigned width, piece, stride, turns;

    /* `workers`: of all columns. */
    __device__ __forceinline__ cut(unsigned workers, uint64_t units, int size, int depth)
        : chunk((units + size - 1) / size)
    {
        const unsigned most = CUDA_PIPE_BYTES / CUDA_LINE / size / depth;
        width = workers < most ? workers : most;
        piece = width * depth;
        stride = piece * CUDA_LINE;
        turns = (unsigned)((chunk + piece - 1) / piece);
    }
};

/*
 * A worker's part in a block with several columns (operation.cuh). The block takes each step of a
 * turn for all of them, and waits for the fence before step 1. A wait in step 1 is for what other
 * ranks push in the turn before, in step 3 for what they push in step 1 of the same turn. So nobody
 * waits in a circle, whatever grids the ranks have. A worker keeps no unit from step to step.
 */
template <typename D, int SUM_OF, int DEPTH> struct shared_block {
    static constexpr int LEAVES = SUM_OF ? SUM_OF : CUDA_RANKS;
    const cuda_launch &launch;
    operation running;
    const operands<D, 2> user;
    const int size;
    const uint64_t chunk;
    const unsigned width, stride, turns;
    bool well;

    __device__ __forceinline__ shared_block(const cuda_launch &l, int ranks, const cut &its)
        : launch(l), user(l), size(ranks), chunk(its.chunk), width(its.width), stride(its.stride),
          turns(its.turns), well(true)
    {
    }

    /* Calls use(i, at, chunks) for each unit of the worker in a turn: the number of the unit in a
     * chunk, the place of its line in a source's lines, the chunks that have it. */
    template <typename USE> __device__ __forceinline__ void units(unsigned turn, USE use)
    {
#pragma unroll 1
        for (unsigned column = blockIdx.x; column < launch.columns; column += gridDim.x) {
            const unsigned worker = column_worker(column);
#pragma unroll 1
            for (unsigned d = 0; d < DEPTH && worker < width; d++) {
                const unsigned unit = d * width + worker;
                const uint64_t i = (uint64_t)turn * DEPTH * width + unit;
                use(i, unit * CUDA_LINE, chunks_of<LEAVES>(launch, user, chunk, size, i));
            }
        }
    }

    __device__ __forceinline__ void reduce(unsigned turn, unsigned pipe)
    {
        units(turn, [&](uint64_t i, unsigned at, unsigned chunks) {
            unsigned char *const slots = launch.own->pipes[pipe][0] + at;
            unit<2> x[LEAVES];
            if (!(chunks & 1) || !well)
                return;
            const unit<2> own = user.load(launch.rank * chunk + i);
            well =
                lines_await<false>(launch, running, slots, stride, size, all_peers(size), own, x);
            if (!well)
                return;
            const unit<2> result = reduction<D, SUM_OF, 2>::reduce(x, launch);
#pragma unroll
            for (int p = 1; p < LEAVES; p++)
                if (p < size) {
                    line_empty(slots + launch.ranks[p] * stride);
                    order_store_line(launch.peers[p]->pipes[pipe][1] + launch.rank * stride + at,
                                     line_of(result));
                }
            user.store(launch.rank * chunk + i, result);
        });
    }

    __device__ __forceinline__ void push(unsigned turn, unsigned pipe)
    {
        units(turn, [&](uint64_t i, unsigned at, unsigned chunks) {
            unit<2> u[LEAVES];
            chunks_load(launch, user, chunk, size, chunks, i, u);
            if (well)
                chunks_push(
                    [&](int p) {
                        return launch.peers[p]->pipes[pipe][0] + launch.rank * stride + at;
                    },
                    chunks, u);
        });
    }

    __device__ __forceinline__ void collect(unsigned turn, unsigned pipe)
    {
        units(turn, [&](uint64_t i, unsigned at, unsigned chunks) {
            unsigned char *const results = launch.own->pipes[pipe][1] + at;
            well = well && chunks_collect<false, LEAVES>(launch, running, user, chunk, results,
                                                         stride, size, chunks, i);
#pragma unroll
            for (int p = 1; p < LEAVES; p++)
                if (well && chunks >> p & 1)
                    line_empty(results + launch.ranks[p] * stride);
        });
    }

    __device__ __forceinline__ void run()
    {
        operation_begin(launch, running);
        if (!operation_take_together(launch, running))
            return;
        order_block_arrive(ORDER_ROW);
        unsigned pipe = pipes_take(&running.buffers.high, 0);
        push(0, pipe);
        for (unsigned turn = 0; turn < turns; turn++) {
            const unsigned next = pipe + 1 < CUDA_PIPES ? pipe + 1 : 0;
            if (turn > 0)
                order_block_sync(ORDER_FENCED);
            reduce(turn, pipe);
            if (turn + 1 < turns) {
                order_block_arrive(ORDER_EMPTIED);
                push(turn + 1, next);
            }
            collect(turn, pipe);
            pipe = next;
        }
    }
};

/* Not inlined: the other part of the kernel is to have the registers that it has without this. */
template <typename D, int SUM_OF, int DEPTH>
__device__ __noinline__ void shared_block_run(const cuda_launch &launch)
{
    const int size = SUM_OF ? SUM_OF : launch.size;
    const cut its(column_workers(launch), operands<D, 2>(launch).units(), size, DEPTH);
    shared_block<D, SUM_OF, DEPTH>(launch, size, its).run();
}

/* The work of the control warp. */
__device__ __forceinline__ void control(const cuda_launch &launch, unsigned turns)
{
    operation running;
    operation_begin(launch, running);
    if (!operation_take_together(launch, running))
        return;
    pipes_take(&running.buffers.high, turns);
    operation_control(launch, running);
    for (unsigned turn = 0; turn + 1 < turns; turn++) {
        order_block_sync(ORDER_EMPTIED);
        order_fence(); /* Z1 */
        order_block_arrive(ORDER_FENCED);
    }
}

template <typename D, int SUM_OF, int DEPTH>
__device__ __forceinline__ void two_shot_pipelined(const cuda_launch &launch)
{
    constexpr int LEAVES = SUM_OF ? SUM_OF : CUDA_RANKS;
    constexpr bool EARLY = LEAVES <= EARLY_LEAVES; /* else DEPTH is 1 */
    const int size = SUM_OF ? SUM_OF : launch.size;
    const operands<D, 2> user(launch);

    const cut its(worker_count(), user.units(), size, DEPTH);
    if constexpr (SUM_OF < CUDA_RANKS) { /* else the kernel for any op does this: rows.h */
        if (is_control_warp())
            return control(launch, cut(column_workers(launch), user.units(), size, DEPTH).turns);
        if (gridDim.x < launch.columns)
            return shared_block_run<D, SUM_OF, DEPTH>(launch);
    } else if (is_control_warp()) {
        return control(launch, its.turns);
    }
    const uint64_t chunk = its.chunk;
    const unsigned width = its.width, piece = its.piece, stride = its.stride, turns = its.turns;
    operation running;
    const unsigned worker = worker_index();
    uint64_t ready;
    const pushes<LEAVES> push(launch, size, stride, worker * CUDA_LINE, ready);
    /* A surplus worker has no units, but takes part in the barriers. */
    uint64_t at = worker < width ? worker : chunk;
    /* [0]: of this piece's own chunk; [p]: of the next piece's other chunks. */
    unit<2> u[DEPTH][LEAVES];
    __shared__ unit<2> kept[EARLY ? 1 : CUDA_WORKERS];
    unit<2> &own_kept = kept[EARLY ? 0 : threadIdx.x - CUDA_CONTROL_THREADS];
    unsigned chunks[DEPTH];
    const auto load = [&](uint64_t i, unsigned &its_chunks, unit<2>(&its)[LEAVES]) {
        its_chunks = chunks_of<LEAVES>(launch, user, chunk, size, i);
        chunks_load(launch, user, chunk, size, its_chunks, i, its);
    };
    operation_begin(launch, running, ready);
#pragma unroll
    for (int d = 0; d < DEPTH; d++)
        load(at + d * width, chunks[d], u[d]);
    if (!operation_take_together(launch, running))
        return;
    unsigned pipe = pipes_take(&running.buffers.high, 0);
#pragma unroll
    for (int d = 0; d < DEPTH; d++)
        chunks_push(push.at(pipe * 2 * CUDA_PIPE_BYTES + d * width * CUDA_LINE), chunks[d], u[d]);
    if (!EARLY)
        own_kept = u[0][0];
    order_block_arrive(ORDER_ROW);

    const unsigned char *const slots = launch.own->pipes[0][0] + worker * CUDA_LINE;
    bool well = true;
    for (unsigned turn = 0; turn < turns; turn++, at += piece) {
        const unsigned offset = pipe * 2 * CUDA_PIPE_BYTES;
        pipe = pipe + 1 < CUDA_PIPES ? pipe + 1 : 0;
        const unsigned next_offset = pipe * 2 * CUDA_PIPE_BYTES;
        unsigned next[DEPTH];
        unit<2> result[DEPTH];

        /* 1. */
#pragma unroll
        for (int d = 0; d < DEPTH; d++) {
            const unit<2> own = u[d][0];
            const unsigned slot = offset + d * width * CUDA_LINE;
            unit<2> x[LEAVES];
            if (EARLY)
                load(at + piece + d * width, next[d], u[d]);
            if (!(chunks[d] & 1))
                continue;
            well = well && lines_await<false>(launch, running, slots + slot, stride, size,
                                              all_peers(size), {}, x);
            x[0] = EARLY ? own : own_kept;
            result[d] = reduction<D, SUM_OF, 2>::reduce(x, launch);
#pragma unroll
            for (int p = 1; p < LEAVES; p++)
                if (p < size)
                    line_empty((void *)(slots + slot + launch.ranks[p] * stride));
        }
        if (turn > 0)
            order_block_sync(ORDER_FENCED);
        if (turn + 1 < turns)
            order_block_arrive(ORDER_EMPTIED);
#pragma unroll
        for (int d = 0; d < DEPTH; d++) {
            const order_line line = line_of(result[d]);
            if (!(chunks[d] & 1) || !well)
                continue;
#pragma unroll
            for (int p = 1; p < LEAVES; p++)
                if (p < size)
                    order_store_line(push.to(p, offset + CUDA_PIPE_BYTES + d * width * CUDA_LINE),
                                     line);
            user.store(launch.rank * chunk + at + d * width, result[d]);
        }
        /* 2. */
#pragma unroll
        for (int d = 0; d < DEPTH; d++) {
            if (!EARLY)
                load(at + piece + d * width, next[d], u[d]);
            if (well)
                chunks_push(push.at(next_offset + d * width * CUDA_LINE), next[d], u[d]);
            if (!EARLY)
                own_kept = u[d][0];
        }
        /* 3. */
#pragma unroll
        for (int d = 0; d < DEPTH; d++) {
            const unsigned char *const results =
                slots + offset + CUDA_PIPE_BYTES + d * width * CUDA_LINE;
            well = well && chunks_collect<false, LEAVES>(launch, running, user, chunk, results,
                                                         stride, size, chunks[d], at + d * width);
#pragma unroll
            for (int p = 1; p < LEAVES; p++)
                if (well && chunks[d] >> p & 1)
                    line_empty((void *)(results + launch.ranks[p] * stride));
            chunks[d] = next[d];
        }
    }
}

} // namespace

/* Two units a turn if there is only one peer, so that a turn moves as many bytes. */
#define DEPTH_OF(sum_of) ((sum_of) == 2 ? 2 : 1)

#define KERNEL(name, T, SUM_OF, suffix)                                                            \
    KERNEL_DEFINE(BOUNDS, two_shot_pipelined_##name##suffix,                                       \
                  two_shot_pipelined<dtype_##T, SUM_OF, DEPTH_OF(SUM_OF)>)
KERNELS_OF_FLOATS(KERNEL)
KERNELS_OF_SUMS(KERNEL)

/* The tile kernels are for arenas in host memory: a line that is emptied there crosses
 * PCIe once more. */
#define KERNEL_OF_TILES(name, T, SUM_OF, suffix)                                                   \
    KERNEL_DEFINE(BOUNDS, two_shot_tiles_##name##suffix, two_shot_tiles<dtype_##T>)
KERNELS_OF_FLOATS(KERNEL_OF_TILES)
KERNELS_OF_INTEGERS(KERNEL_OF_TILES)
