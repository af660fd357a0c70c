/* SPDX-License-Identifier: MIT */
/*
 * All-reduce with RMSNorm, in two hops of full lines, as two_shot_lines.cu. The rows are cut into
 * one chunk for each rank, its owner. A row goes to its owner, a block of which reduces it and
 * pushes the sums to all. Each rank adds its own residual to all rows and norms them. The block
 * that serves a row need not be the same on all ranks. It serves the rows that its rank owns first,
 * since the others wait for those.
 *
 * A buffer holds [hop][source][row of a chunk], packed. A phase is pushed whole before a thread
 * waits.
 */
#include "cuda/kernels/rms_norm_await.cuh"

namespace
{

template <typename D, int SUM_OF, int UNITS>
__device__ __forceinline__ void rms_norm_two_shot(const cuda_rms_norm &norm)
{
    constexpr int LEAVES = SUM_OF ? SUM_OF : CUDA_RANKS;
    const cuda_launch &launch = norm.launch;
    const int size = SUM_OF ? SUM_OF : launch.size;
    /* Longer rows of more ranks leave no registers. */
    rms_row<D, UNITS, SUM_OF && SUM_OF <= (UNITS <= RMS_FEW_UNITS ? 4 : 2)> row(norm);
    const unsigned chunk = (norm.tokens + size - 1) / size, row_bytes = row.row_bytes(),
                   stride = chunk * row_bytes, hop = (size - 1) * stride,
                   lines = 2 * hop / CUDA_LINE;

    operation running;
    if (is_control_warp()) {
        operation_begin(launch, running);
        if (operation_take(launch, running)) {
            lines_take(&running.buffers.high, lines);
            operation_control(launch, running);
        }
        return;
    }
    operation_begin(launch, running);
    row.ok = operation_take(launch, running);
    const lines_use use = lines_take(&running.buffers.high, lines);
    const unsigned char *const slots = launch.own->two_shot[use.buffer] + row.worker * CUDA_LINE;
    /* This worker's first line of this rank's rows in a hop of a peer's buffer. */
    const auto target = [&](cuda_arena *arena, unsigned rank) {
        return arena->two_shot[use.buffer] + slot_of<true>(launch.rank, rank) * stride +
               row.worker * CUDA_LINE;
    };

    /* 1. Push every row to its owner. */
#pragma unroll 1
    for (unsigned r = blockIdx.x; r < norm.tokens && row.ok; r += gridDim.x) {
        const unsigned owner = r / chunk;
        if (owner == launch.rank)
            continue;
        unsigned char *const to = target(launch.arenas[owner], owner) + r % chunk * row_bytes;
        row.push([&](int l, const unit<2> &u) { order_store_line(to + row.offset(l), line_of(u)); },
                 r, false);
    }
    if (row.ok) {
        order_block_arrive(ORDER_ROW);
        lines_empty(launch.own->two_shot[use.last], use.dirty);
    }
    row.load_weights();

    /* 2. Reduce the own rows and push them to all. 3. Collect the others' sums. */
#pragma unroll 1
    for (int others = 0; others < 2; others++)
#pragma unroll 1
        for (unsigned r = blockIdx.x; r < norm.tokens; r += gridDim.x) {
            const unsigned owner = r / chunk, at = r % chunk * row_bytes;
            const unsigned char *const slot = slots + at;
            if ((owner != launch.rank) != others)
                continue;
            row.load_residual(r);
            if (!others) {
                row.load_input(r);
                rms_await_sums<D, SUM_OF>(launch, running, size, slot, stride, r, row);
#pragma unroll
                for (int p = 1; p < LEAVES; p++) {
                    unsigned char *const to =
                        target(launch.peers[p < size ? p : 0], launch.ranks[p]) + hop + at;
#pragma unroll
                    for (int l = 0; l < row.ALL; l++)
                        if (p < size && row.ok && row.has(l))
                            order_store_line(to + row.offset(l), line_of(row.x[l]));
                }
            } else {
                const unsigned index = slot_of<true>(owner, launch.rank);
                rms_await_row<D>(launch, running, owner, slot + hop + index * stride, row);
            }
            if (!row.finish(r))
                return;
        }
}

} // namespace

#define RMS_FUNCTION rms_norm_two_shot
RMS_KERNELS
