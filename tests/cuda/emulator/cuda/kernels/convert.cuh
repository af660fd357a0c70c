/* SPDX-License-Identifier: MIT */
/* The functions of src/cuda/kernels/convert.cuh for the emulator. */
#ifndef TUTTI_CUDA_CONVERT_CUH
#define TUTTI_CUDA_CONVERT_CUH

#include "base/numeric.h"

static inline uint32_t convert_pair_bf16(float low, float high)
{
    return numeric_bf16_store(low) | (uint32_t)numeric_bf16_store(high) << 16;
}

static inline uint32_t convert_pair_f16(float low, float high)
{
    return numeric_f16_store(low) | (uint32_t)numeric_f16_store(high) << 16;
}

static inline uint32_t convert_pair_e4m3(float low, float high)
{
    return numeric_e4m3_store(low) | (uint32_t)numeric_e4m3_store(high) << 8;
}

static inline uint16_t convert_to_f16(float value)
{
    return numeric_f16_store(value);
}

static inline float convert_from_f16(uint16_t value)
{
    return numeric_f16_load(value);
}

#endif
