/* SPDX-License-Identifier: MIT */
/* The device's own conversions of 16-bit floats: rounded to the nearest, ties to even. A NaN gives
 * any NaN. */
#ifndef TUTTI_CUDA_CONVERT_CUH
#define TUTTI_CUDA_CONVERT_CUH

#include "base/numeric.h"

static __device__ __forceinline__ uint32_t convert_pair_bf16(float low, float high)
{
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

static __device__ __forceinline__ uint32_t convert_pair_f16(float low, float high)
{
    uint32_t pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

/* Two float8_e4m3, rounded to nearest even, saturated; NaN is 0x7f. */
static __device__ __forceinline__ uint32_t convert_pair_e4m3(float low, float high)
{
#if __CUDA_ARCH__ >= 890
    uint16_t pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    return pair;
#else
    return numeric_e4m3_store(low) | (uint32_t)numeric_e4m3_store(high) << 8;
#endif
}

static __device__ __forceinline__ uint16_t convert_to_f16(float value)
{
    uint16_t result;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result) : "f"(value));
    return result;
}

static __device__ __forceinline__ float convert_from_f16(uint16_t value)
{
    float result;
    asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value));
    return result;
}

#endif
