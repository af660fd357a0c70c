/* SPDX-License-Identifier: MIT */
/*
 * RMSNorm of sums that are in memory of the device: of a rank alone its input, else what an
 * all-reduce before this kernel has written. No rank waits for another one. It touches neither
 * control words nor arena, and takes no number: other kernels or the host have done so.
 */
#include "cuda/kernels/rms_norm_await.cuh"

namespace
{

/* What an all-reduce of one rank writes: a NaN becomes canonical. */
template <typename D, int UNITS>
__device__ __forceinline__ void rms_norm_rows(const cuda_rms_norm &norm)
{
    rms_row<D, UNITS, false> row(norm);
    order_grid_wait();
    order_grid_trigger();
    if (is_control_warp())
        return;
    for (unsigned r = blockIdx.x; r < norm.tokens; r += gridDim.x) {
        row.template load<row.ALL>(norm.launch.send, r, 0, row.x);
        row.load_residual(r);
#pragma unroll
        for (int i = 0; i < UNITS; i++) {
            float x[RMS_UNIT];
            rms_widen<D>(row.x + i * row.LINES, x);
            rms_narrow<D, row.LINES>(x, row.x + i * row.LINES);
        }
        if (!row.finish(r))
            return;
    }
}

} // namespace

#define KERNEL(name, T)                                                                            \
    extern "C" __global__ void RMS_BOUNDS rms_norm_rows_##name(                                    \
        const __grid_constant__ cuda_rms_norm norm)                                                \
    {                                                                                              \
        rms_norm_rows<dtype_##T, RMS_MANY_UNITS>(norm);                                            \
    }
RMS_DTYPES(KERNEL)
