/* SPDX-License-Identifier: MIT */
/*
 * The arithmetic of tutti_all_reduce_rms_norm() behind the sum, for CPU and GPU: tutti/fused.h says
 * what it computes, in which order. Every function is one or a few float32 operations, each rounded
 * once. numeric.h says how to compile it.
 */
#ifndef TUTTI_RMS_NORM_H
#define TUTTI_RMS_NORM_H

#include "base/numeric.h"
#include "tutti/tutti.h"

#include <assert.h>
#include <math.h>

enum {
    RMS_UNIT = 8,
    RMS_LANES = 512,
    RMS_WARP = 32, /* lanes whose sums are added before those of other lanes */
    RMS_WARPS = RMS_LANES / RMS_WARP,
    RMS_SHORT_ROW = 4096, /* rows up to these have kernels of their own */
    RMS_MIDDLE_ROW = 8192,
    RMS_GROUPS_OF_WORD = 4, /* exponents in a word of scales */
};

NUMERIC_FN float rms_square_add(float sum, float x)
{
    return sum + x * x;
}

/* Adds those 4 apart, then 2, then 1. */
NUMERIC_FN float rms_add_eight(const float *x)
{
    return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
}

/* Adds the warps' sums: those 8 apart, then 4, 2 and 1. */
NUMERIC_FN float rms_add_warps(const float *warps)
{
    float sums[RMS_UNIT];
    static_assert(RMS_WARPS == 2 * RMS_UNIT, "the rest is added by rms_add_eight()");
    for (int w = 0; w < RMS_UNIT; w++)
        sums[w] = warps[w] + warps[w + RMS_UNIT];
    return rms_add_eight(sums);
}

/* The factor of a row. */
NUMERIC_FN float rms_factor(float sum, int hidden, float epsilon)
{
    return 1.0f / sqrtf(sum / (float)hidden + epsilon);
}

NUMERIC_FN float rms_weight(float weight, float bias)
{
    return weight + bias;
}

NUMERIC_FN float rms_value(float x, float factor, float weight)
{
    return (x * factor) * weight;
}

/* The bits of |y|, which compare as the values do, and as integers, NaN above all. */
NUMERIC_FN uint32_t rms_magnitude(float y)
{
    const uint32_t bits = numeric_f32_bits(y) & UINT32_C(0x7fffffff);
    return y != y ? UINT32_C(0x7fc00000) : bits;
}

/* The scale for the largest magnitude. `limit`: the largest value of the quantised type. Integers
 * are compared: a GPU's max.f32 would have other bits for a NaN. */
NUMERIC_FN float rms_scale(uint32_t magnitude, float limit)
{
    const uint32_t least = UINT32_C(1) << 23, most = UINT32_C(0xff) << 23; /* 2^-126, infinity */
    const uint32_t bits = numeric_f32_bits(numeric_f32_from_bits(magnitude) / limit);
    const uint32_t scale = bits > most ? UINT32_C(0x7fc00000) : bits < least ? least : bits;
    return magnitude == 0 ? 1.0f : numeric_f32_from_bits(scale);
}

/* The exponent, plus 127, of the least power of two that is not below the scale; 255 for infinity
 * and NaN. The scale is at least 2^-126. */
NUMERIC_FN uint8_t rms_exponent(float scale)
{
    const uint32_t bits = numeric_f32_bits(scale), up = (bits + UINT32_C(0x7fffff)) >> 23;
    return (uint8_t)(up < 255 ? up : 255);
}

/* The scale of an exponent; NaN of 255. */
NUMERIC_FN float rms_power(uint8_t exponent)
{
    return numeric_f32_from_bits(exponent < 255 ? (uint32_t)exponent << 23 : UINT32_C(0x7fc00000));
}

NUMERIC_FN uint8_t rms_to_e4m3(float y, float inverse)
{
    return numeric_e4m3_store(y * inverse);
}

/* To the nearest integer, ties to even: the addition rounds. */
NUMERIC_FN uint8_t rms_to_int8(float y, float inverse)
{
    const float value = y * inverse;
    const float above = value > -128.0f ? value : -128.0f, inside = above < 127.0f ? above : 127.0f;
    const uint32_t bits = numeric_f32_bits(inside + 12582912.0f);
    return value != value ? 0 : (uint8_t)(bits - UINT32_C(0x4b400000));
}

NUMERIC_FN float rms_limit(enum tutti_quant quant)
{
    return quant == TUTTI_QUANT_INT8_TOKEN ? 127.0f : 448.0f;
}

NUMERIC_FN bool rms_is_by_group(enum tutti_quant quant)
{
    return quant == TUTTI_QUANT_FP8_GROUP || quant == TUTTI_QUANT_FP8_GROUP_UE8M0;
}

/* The scales by group, or words of them, of a token. */
NUMERIC_FN size_t rms_groups(const struct tutti_rms_norm *norm)
{
    const size_t groups = norm->hidden / TUTTI_NORM_GROUP;
    return norm->quant == TUTTI_QUANT_FP8_GROUP_UE8M0
               ? (groups + RMS_GROUPS_OF_WORD - 1) / RMS_GROUPS_OF_WORD
               : groups;
}

/* From the first scale to the end of the last one. There are tokens, and all strides are set. */
NUMERIC_FN size_t rms_scales_bytes(const struct tutti_rms_norm *norm)
{
    if (!norm->quant || norm->quant == TUTTI_QUANT_FP8_TENSOR)
        return norm->quant ? sizeof(float) : 0;
    if (!rms_is_by_group(norm->quant))
        return norm->tokens * sizeof(float);
    return ((norm->tokens - 1) * norm->scale_token_stride +
            (rms_groups(norm) - 1) * norm->scale_group_stride + 1) *
           sizeof(float);
}

/* Writes the exponent of a group into its word; that of the last group also clears the bytes behind
 * it. */
NUMERIC_FN void rms_exponent_store(void *word, uint32_t group, uint32_t groups, uint8_t exponent)
{
    uint8_t *bytes = (uint8_t *)word;
    bytes[group % RMS_GROUPS_OF_WORD] = exponent;
    for (uint32_t b = group % RMS_GROUPS_OF_WORD + 1; group + 1 == groups && b < RMS_GROUPS_OF_WORD;
         b++)
        bytes[b] = 0;
}

NUMERIC_FN bool rms_is_by_token(enum tutti_quant quant)
{
    return quant == TUTTI_QUANT_FP8_TOKEN || quant == TUTTI_QUANT_INT8_TOKEN;
}

#endif
