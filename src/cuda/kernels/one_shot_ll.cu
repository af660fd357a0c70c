/* SPDX-License-Identifier: MIT */
/*
 * One-shot with flags in band, for the smallest operations. No line needs clearing. A line has 8
 * bytes of input and the operation's flag.
 *
 * A line is free when it is written: operation e writes half e mod 2, which e - 2 used last. This
 * rank ended e - 1 before e, with data of every peer. So every peer had entered e - 1, and had left
 * e - 2. A line is new if its flag is this operation's: flags hold the sequence, which never comes
 * again.
 */
#include "cuda/kernels/one_shot.cuh"

namespace
{

struct flagged_region {
    static constexpr int WORDS = 1;
    static constexpr bool PACKED = false;
    static constexpr uint64_t BASE = offsetof(cuda_arena, flagged);
    static constexpr unsigned HALF = CUDA_FLAGGED_BYTES / CUDA_HALVES;
    const unsigned offset;

    __device__ __forceinline__ flagged_region(const operation &op, unsigned)
        : offset((op.sequence & 1) * HALF)
    {
    }
    static __device__ __forceinline__ unsigned stride(unsigned, int size)
    {
        return HALF / size / CUDA_LINE * CUDA_LINE;
    }
    static __device__ __forceinline__ order_line line_of(const operation &op, unit<1> u)
    {
        return {u.word[0], op.flag};
    }
    static __device__ __forceinline__ bool has_come(const operation &op, const order_line &line)
    {
        return line.high == op.flag;
    }
    static __device__ __forceinline__ unit<1> unit_of(const order_line &line)
    {
        return {line.low};
    }
    static __device__ __forceinline__ void empty(const cuda_launch &)
    {
    }
};

} // namespace

#define KERNEL(name, T, SUM_OF, suffix)                                                            \
    KERNEL_DEFINE(BOUNDS, one_shot_ll_##name##suffix,                                              \
                  one_shot<flagged_region, dtype_##T, SUM_OF, false>)
#define KERNEL_ONCE(name, T, SUM_OF, suffix)                                                       \
    KERNEL_DEFINE(BOUNDS, one_shot_ll_##name##suffix##_once,                                       \
                  one_shot<flagged_region, dtype_##T, SUM_OF, true>)
KERNELS_OF_FLOATS(KERNEL)
KERNELS_OF_INTEGERS(KERNEL)
KERNELS_OF_SUMS(KERNEL)
KERNELS_OF_SUMS(KERNEL_ONCE)
