/* SPDX-License-Identifier: MIT */
/* The functions of src/cuda/kernels/pairs.cuh for the emulator. */
#ifndef TUTTI_CUDA_PAIRS_CUH
#define TUTTI_CUDA_PAIRS_CUH

#include "cuda/kernels/convert.cuh"

static inline uint32_t pairs_add_bf16(uint32_t a, uint32_t b)
{
    return convert_pair_bf16(numeric_bf16_load((uint16_t)a) + numeric_bf16_load((uint16_t)b),
                             numeric_bf16_load((uint16_t)(a >> 16)) +
                                 numeric_bf16_load((uint16_t)(b >> 16)));
}

static inline uint32_t pairs_add_f16(uint32_t a, uint32_t b)
{
    return convert_pair_f16(numeric_f16_load((uint16_t)a) + numeric_f16_load((uint16_t)b),
                            numeric_f16_load((uint16_t)(a >> 16)) +
                                numeric_f16_load((uint16_t)(b >> 16)));
}

#endif
