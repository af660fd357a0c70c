/* SPDX-License-Identifier: MIT */
/*
 * All-reduce with RMSNorm, in one hop of full lines, as one_shot_lines.cu. A block serves rows. It
 * pushes all of its rows to every peer, then collects one row after the other. The block that
 * serves a row need not be the same on all ranks: a line has one writer, the peer, and one reader.
 */
#include "cuda/kernels/regions.cuh"
#include "cuda/kernels/rms_norm_await.cuh"

namespace
{

template <typename D, int SUM_OF, int UNITS>
__device__ __forceinline__ void rms_norm_lines(const cuda_rms_norm &norm)
{
    constexpr int LEAVES = SUM_OF ? SUM_OF : CUDA_RANKS;
    const cuda_launch &launch = norm.launch;
    const int size = SUM_OF ? SUM_OF : launch.size;
    /* Longer rows of more ranks leave no registers. */
    rms_row<D, UNITS, SUM_OF && SUM_OF <= (UNITS <= RMS_FEW_UNITS ? 4 : 3)> row(norm);
    const unsigned row_bytes = row.row_bytes(), stride = norm.tokens * row_bytes,
                   lines = stride / CUDA_LINE * (size - 1);

    operation running;
    if (is_control_warp()) {
        operation_begin(launch, running);
        if (operation_take(launch, running)) {
            full_region(running, lines);
            operation_control(launch, running);
        }
        return;
    }
    unsigned char *targets[LEAVES];
    uint64_t ready = 1;
    operation_targets<true>(launch, size, full_region::BASE, stride, row.worker * CUDA_LINE,
                            targets, ready);
    operation_begin(launch, running, ready);
    row.load_input(blockIdx.x);
    row.load_residual(blockIdx.x);
    row.ok = operation_take(launch, running);
    const full_region region(running, lines);

    /* 1. Push. */
    for (unsigned r = blockIdx.x; r < norm.tokens && row.ok; r += gridDim.x)
        row.push(
            [&](int l, const unit<2> &u) {
                operation_push(targets, size, region.offset + r * row_bytes + row.offset(l),
                               line_of(u));
            },
            r, r == blockIdx.x);
    if (row.ok) {
        order_block_arrive(ORDER_ROW);
        region.empty(launch);
    }
    row.load_weights();

    /* 2. Collect, reduce, norm. */
    const unsigned char *const slots =
        (const unsigned char *)launch.own + full_region::BASE + row.worker * CUDA_LINE;
    for (unsigned r = blockIdx.x; r < norm.tokens; r += gridDim.x) {
        if (r != blockIdx.x) {
            row.load_input(r);
            row.load_residual(r);
        }
        rms_await_sums<D, SUM_OF>(launch, running, size, slots + region.offset + r * row_bytes,
                                  stride, r, row);
        if (!row.finish(r))
            return;
    }
}

} // namespace

#define RMS_FUNCTION rms_norm_lines
RMS_KERNELS
