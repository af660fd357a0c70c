/* SPDX-License-Identifier: MIT */
/*
 * One-shot with full lines, for floats of some tens to hundreds of KiB: half as many bytes on the
 * wire as one_shot_ll.cu, but lines must be emptied one use later (lines.cuh).
 */
#include "cuda/kernels/lines.cuh"
#include "cuda/kernels/one_shot.cuh"

namespace
{

struct full_region {
    static constexpr int WORDS = 2;
    static constexpr bool PACKED = true;
    static constexpr uint64_t BASE = offsetof(cuda_arena, one_shot);
    const lines_use use;
    const unsigned offset;

    __device__ __forceinline__ full_region(operation &op, unsigned lines)
        : use(lines_take(&op.buffers.low, lines)), offset(use.buffer * CUDA_ONE_SHOT_BYTES)
    {
    }
    static __device__ __forceinline__ unsigned stride(unsigned units, int)
    {
        return units * CUDA_LINE;
    }
    static __device__ __forceinline__ order_line line_of(const operation &, unit<2> u)
    {
        return ::line_of(u);
    }
    static __device__ __forceinline__ bool has_come(const operation &, const order_line &line)
    {
        return !line_is_empty(line);
    }
    static __device__ __forceinline__ unit<2> unit_of(const order_line &line)
    {
        return {line.low, line.high};
    }
    __device__ __forceinline__ void empty(const cuda_launch &launch) const
    {
        lines_empty(launch.own->one_shot[use.last], use.dirty);
    }
};

} // namespace

#define KERNEL_ANY(name, T, SUM_OF, suffix)                                                        \
    KERNEL_DEFINE(BOUNDS_ANY, one_shot_lines_##name##suffix,                                       \
                  one_shot<full_region, dtype_##T, SUM_OF, false>)
#define KERNEL(name, T, SUM_OF, suffix)                                                            \
    KERNEL_DEFINE(BOUNDS, one_shot_lines_##name##suffix,                                           \
                  one_shot<full_region, dtype_##T, SUM_OF, false>)
#define KERNEL_ONCE(name, T, SUM_OF, suffix)                                                       \
    KERNEL_DEFINE(BOUNDS, one_shot_lines_##name##suffix##_once,                                    \
                  one_shot<full_region, dtype_##T, SUM_OF, true>)
KERNELS_OF_FLOATS(KERNEL_ANY)
KERNELS_OF_SUMS(KERNEL)
KERNELS_OF_SUMS(KERNEL_ONCE)
