/* SPDX-License-Identifier: MIT */
/*
 * The device's own sums of two pairs of 16-bit floats. The results are those of a float32 addition
 * that is rounded to 16 bits: float32 has more than twice as many bits in the mantissa, so the
 * first rounding changes nothing. A NaN gives any NaN.
 */
#ifndef TUTTI_CUDA_PAIRS_CUH
#define TUTTI_CUDA_PAIRS_CUH

#include <stdint.h>

/* By a fused multiplication with one: devices before sm_90 have no addition. */
static __device__ __forceinline__ uint32_t pairs_add_bf16(uint32_t a, uint32_t b)
{
    uint32_t sum;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(0x3f803f80), "r"(b));
    return sum;
}

static __device__ __forceinline__ uint32_t pairs_add_f16(uint32_t a, uint32_t b)
{
    uint32_t sum;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b));
    return sum;
}

#endif
