/* SPDX-License-Identifier: MIT */
/*
 * Two-shot with full lines, piece by piece, for floats of any size up to what memory holds (other
 * dtypes take tiles.cuh). A worker
 * serves DEPTH units of each piece of each chunk, the same ones on every rank. In its turn for
 * piece q it
 *   1. waits for all sources' lines of q, reduces, pushes the result to all,
 *   2. pushes its lines of q + 1 to their owners,
 *   3. waits for the other owners' results of q, and writes them,
 * so that the link carries q + 1 while the results of q are awaited.
 *
 * Lines lie in pipes[q mod 2][hop][source][unit], with one writer (the source's worker) and one
 * reader (the owner's worker of the same number), who empties a line as soon as it has read it. A
 * line is empty when it is written:
 *   hop 1, piece q + 1: the pusher had our result of q - 1 in its turn before, and we had emptied
 *     hop 1 of q - 1 before we pushed that result (release Z1, acquire Z1a);
 *   hop 2, piece q: the owner had our line of q, which we pushed in turn q - 1, and we had emptied
 *     hop 2 of q - 2 in the turn before (Z1, Z1a);
 *   and of the operation before, of any geometry: what hop 1 held of it was emptied before our last
 *     result went out, what hop 2 held before our first line of this one does.
 * One fence a turn and block, between two barriers, serves as both: one for each warp took a fifth
 * of the bandwidth.
 */
#include "cuda/lines.cuh"
#include "cuda/tiles.cuh"

namespace
{

template <typename D, int SUM_OF, int DEPTH>
__device__ __forceinline__ void two_shot_pipelined(const cuda_launch &launch)
{
    constexpr int LEAVES = SUM_OF ? SUM_OF : CUDA_RANKS;
    const int size = SUM_OF ? SUM_OF : launch.size;
    const operands<D, 2> user(launch);
    const uint64_t units = user.units(), chunk = (units + size - 1) / size;
    const unsigned most = CUDA_PIPE_BYTES / CUDA_LINE / size / DEPTH;
    const unsigned width = worker_count() < most ? worker_count() : most;
    const unsigned stride = width * DEPTH * CUDA_LINE;
    const uint64_t own_chunk = launch.rank * chunk;

    operation op;
    operation_begin(launch, op);
    if (is_clerk()) {
        if (operation_take(op))
            operation_clerk(launch, op);
        return;
    }
    const unsigned worker = worker_index();
    /* A worker too many has no units, but meets the others at the barriers. */
    uint64_t at = worker < width ? worker : chunk;
    /* Of this piece's own chunk in [0], of the next one's others in [p]. */
    unit<2> u[DEPTH][LEAVES];
#pragma unroll
    for (int d = 0; d < DEPTH; d++)
        lines_load<LEAVES>(launch, user, units, chunk, size, at + d * width, u[d]);
    if (!operation_take(op))
        return;
    const unsigned mine = launch.rank * stride + worker * CUDA_LINE;
#pragma unroll
    for (int d = 0; d < DEPTH; d++)
        lines_push<LEAVES>(launch, units, chunk, size, at + d * width, u[d], 0,
                           mine + d * width * CUDA_LINE);
    order_block_arrive();

    unsigned parity = 0;
    bool well = true;
    for (uint64_t start = 0; start < chunk; start += (uint64_t)width * DEPTH, parity ^= 1) {
        unsigned char *const pipe = launch.own->pipes[parity][0] + worker * CUDA_LINE;
        const uint64_t next = at + (uint64_t)width * DEPTH;
        unit<2> result[DEPTH];

        /* 1. */
#pragma unroll
        for (int d = 0; d < DEPTH; d++) {
            const unit<2> own = u[d][0];
            unsigned char *const slots = pipe + d * width * CUDA_LINE;
            unit<2> leaf[LEAVES];
            lines_load<LEAVES>(launch, user, units, chunk, size, next + d * width, u[d]);
            if (at + d * width >= chunk || own_chunk + at + d * width >= units)
                continue;
            well = well && lines_wait<LEAVES>(launch, op, slots, stride, size, own, leaf);
            result[d] = reduction<D, SUM_OF, 2>::reduce(leaf, launch);
#pragma unroll
            for (int p = 1; p < LEAVES; p++)
                if (p < size)
                    line_empty(slots + peer_at(launch, p) * stride);
        }
        if (!order_workers_all(well))
            return;
        if (threadIdx.x == CUDA_CLERKS)
            order_fence(); /* Z1 and Z1a */
        order_workers_all(true);
#pragma unroll
        for (int d = 0; d < DEPTH; d++) {
            if (at + d * width >= chunk || own_chunk + at + d * width >= units)
                continue;
#pragma unroll
            for (int p = 1; p < LEAVES; p++)
                if (p < size)
                    order_store_line(launch.peers[p]->pipes[parity][1] + mine +
                                         d * width * CUDA_LINE,
                                     line_of(result[d]));
            user.store(own_chunk + at + d * width, result[d]);
        }
        /* 2. */
#pragma unroll
        for (int d = 0; d < DEPTH; d++)
            lines_push<LEAVES>(launch, units, chunk, size, next + d * width, u[d], parity ^ 1,
                               mine + d * width * CUDA_LINE);
            /* 3. */
#pragma unroll
        for (int d = 0; d < DEPTH; d++)
            well = well && lines_collect<LEAVES, true>(
                               launch, op, user, units, chunk, size, at + d * width,
                               pipe + CUDA_PIPE_BYTES + d * width * CUDA_LINE, stride);
        at = next;
    }
}

} // namespace

/* Two units a turn where there is but one peer, so that a turn moves as many bytes. */
#define DEPTH_OF(sum_of) ((sum_of) == 2 ? 2 : 1)

#define KERNEL(name, T, SUM_OF, suffix)                                                            \
    extern "C" __global__ void __launch_bounds__(CUDA_THREADS)                                     \
        two_shot_pipelined_##name##suffix(const __grid_constant__ cuda_launch launch)              \
    {                                                                                              \
        two_shot_pipelined<dtype_##T, SUM_OF, DEPTH_OF(SUM_OF)>(launch);                           \
    }
KERNELS_OF_FLOATS(KERNEL)
KERNELS_OF_SUMS(KERNEL)

#define KERNEL_OF_TILES(name, T, SUM_OF, suffix)                                                   \
    extern "C" __global__ void __launch_bounds__(CUDA_THREADS)                                     \
        two_shot_pipelined_##name##suffix(const __grid_constant__ cuda_launch launch)              \
    {                                                                                              \
        two_shot_tiles<dtype_##T>(launch);                                                         \
    }
KERNELS_OF_INTEGERS(KERNEL_OF_TILES)
