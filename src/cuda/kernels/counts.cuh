/* SPDX-License-Identifier: MIT */
/* Counts and displacements that are in memory of the device: what a kernel reads and checks before
 * it stores anything. */
#ifndef TUTTI_CUDA_COUNTS_CUH
#define TUTTI_CUDA_COUNTS_CUH

#include "base/counts.h"
#include "base/signature.h"
#include "cuda/kernels/operation.cuh"

/* A block of an operand, in elements. */
struct counts_block {
    uint64_t start, count;
};

/* The first thing that is wrong with a block, and its limit. */
struct counts_finding {
    counts_fault fault;
    uint64_t limit, seen;
};

/* Reads entry r of the array at an address: of 64 bits, or of 32 with a sign. */
static __device__ __forceinline__ uint64_t counts_load(uint64_t array, int r, bool is_narrow)
{
    return is_narrow ? (uint64_t)(int32_t)order_load_plain_u32((const uint32_t *)array + r)
                     : order_load_plain_u64((const uint64_t *)array + r);
}

/* Reads block r. `counts` and `displacements` are addresses. displacements == 0: the blocks follow
 * each other, or, if `is_alone`, the block is the operand. All loads are under way at once. */
static __device__ __forceinline__ counts_block counts_read(uint64_t counts, uint64_t displacements,
                                                           int r, bool is_alone, bool is_narrow)
{
    counts_block block = {0, counts_load(counts, r, is_narrow)};
    if (displacements)
        block.start = counts_load(displacements, r, is_narrow);
#pragma unroll
    for (int b = 0; b < CUDA_RANKS - 1; b++)
        if (b < r && !displacements && !is_alone)
            block.start += counts_load(counts, b, is_narrow);
    return block;
}

/* An empty block may begin anywhere. Of a block that begins before its operand `seen` is the begin.
 */
static __device__ __forceinline__ counts_finding counts_check(counts_block block, uint64_t most,
                                                              uint64_t extent)
{
    if (block.count > most)
        return {COUNTS_ABOVE_MOST, most, block.count};
    if (block.count && (block.count > extent || block.start > extent - block.count))
        return {COUNTS_BEYOND_EXTENT, extent,
                (int64_t)block.start < 0 ? block.start : block.start + block.count};
    return {COUNTS_GOOD, 0, 0};
}

/* Ends the operation on all ranks. `signature` has no count. */
static __device__ __noinline__ void counts_fail(const cuda_launch &launch, uint64_t sequence,
                                                uint64_t signature, counts_finding what,
                                                bool is_recv, int block)
{
    const uint64_t most = SIGNATURE_COUNT_MAX;
    const bool is_negative = (int64_t)what.seen < 0;
    const uint64_t seen = is_negative ? 0 - what.seen : what.seen;
    operation_fail(launch, TUTTI_ERR_INVALID, launch.rank, sequence,
                   {signature | (what.limit < most ? what.limit : most),
                    (uint64_t)what.fault | (is_recv ? COUNTS_OF_RECV : 0) |
                        (is_negative ? COUNTS_NEGATIVE : 0)},
                   {signature | (seen < most ? seen : most), (uint64_t)block});
}

#endif
