/* SPDX-License-Identifier: MIT */
/*
 * The arithmetic of all dtypes. gcc, clang and nvcc compile this one header, so that CPU and GPU
 * give the same bits.
 *
 * Each dtype T has an element type (its storage) and an accumulation type A: float for the floats
 * of 8, 16 and 32 bits, double for float64, the element type itself for integers and bool.
 *
 *     numeric_T_load(element)     converts to the accumulation type, exactly
 *     numeric_A_OP(a, b)          OP is sum, prod, min, max, div; for integers also band, bor, bxor
 *     numeric_T_store(value)      rounds to nearest even, makes NaN canonical
 *
 * - Build with -ffp-contract=off. Call with rounding to nearest and subnormals kept, which
 *   reduce_env_begin() sets. All code is straight line with selects, so that loops vectorise.
 * - A stored NaN is positive and quiet: 0x7fc00000, 0x7ff8000000000000, 0x7fc0 (bfloat16), 0x7e00
 *   (float16), 0x7f (both float8). Inside a tree any NaN may replace any other.
 * - min and max give NaN if either side is NaN, and order -0 below +0.
 * - float8 saturates. e4m3 has no infinity: a larger result is stored as 448. An infinite input of
 *   e5m2 is accumulated as infinity (inf - inf is NaN). A result that is infinite or too large is
 *   stored as 57344, so no infinity survives a reduction of e5m2.
 * - Integers wrap. A bool is true if its byte is not 0, and is stored as 0 or 1.
 */
#ifndef TUTTI_NUMERIC_H
#define TUTTI_NUMERIC_H

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define NUMERIC_FN static __host__ __device__ __forceinline__
#else
#define NUMERIC_FN static inline
#endif

/* X(dtype, T, element, A, accumulation type) */
#define NUMERIC_FLOAT_MAP(X)                                                                       \
    X(FLOAT32, f32, float, f32, float)                                                             \
    X(FLOAT64, f64, double, f64, double)                                                           \
    X(FLOAT16, f16, uint16_t, f32, float)                                                          \
    X(BFLOAT16, bf16, uint16_t, f32, float)                                                        \
    X(FLOAT8_E4M3, e4m3, uint8_t, f32, float)                                                      \
    X(FLOAT8_E5M2, e5m2, uint8_t, f32, float)

/* X(T, element, type of sums and products, type of quotients) */
#define NUMERIC_INTEGER_MAP(X)                                                                     \
    X(i8, int8_t, uint32_t, int32_t)                                                               \
    X(u8, uint8_t, uint32_t, uint32_t)                                                             \
    X(i16, int16_t, uint32_t, int32_t)                                                             \
    X(u16, uint16_t, uint32_t, uint32_t)                                                           \
    X(i32, int32_t, uint32_t, int32_t)                                                             \
    X(u32, uint32_t, uint32_t, uint32_t)                                                           \
    X(i64, int64_t, uint64_t, int64_t)                                                             \
    X(u64, uint64_t, uint64_t, uint64_t)

/* ---- bits ------------------------------------------------------------------------------------ */

NUMERIC_FN uint32_t numeric_f32_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

NUMERIC_FN float numeric_f32_from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

NUMERIC_FN uint64_t numeric_f64_bits(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

NUMERIC_FN double numeric_f64_from_bits(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* ---- small floats ---------------------------------------------------------------------------- */

/*
 * A code is a small float without its sign bit: an exponent, biased by `bias`, above `mantissa`
 * bits of mantissa. All callers of the two functions below pass constants for both.
 */

/* Returns the bits of the float that has the value of a finite code. */
NUMERIC_FN uint32_t numeric_widen(uint32_t code, int mantissa, int bias)
{
    const uint32_t rebias = (uint32_t)(127 - bias) << 23, one = UINT32_C(1) << 23;
    const uint32_t bits = code << (23 - mantissa);
    const uint32_t normal = bits + rebias;
    /* A subnormal has no implicit one. Add it in the smallest normal binade, then subtract it. */
    const float least = numeric_f32_from_bits(rebias + one);
    const uint32_t subnormal = numeric_f32_bits(numeric_f32_from_bits(normal + one) - least);
    return bits < one ? subnormal : normal;
}

/* Returns the code nearest to `magnitude` (the bits of a float that is not negative), ties to even,
 * at most `limit`. The result for NaN is unspecified. */
NUMERIC_FN uint32_t numeric_narrow(uint32_t magnitude, int mantissa, int bias, uint32_t limit)
{
    const int shift = 23 - mantissa;
    const uint32_t rebias = (uint32_t)(127 - bias);
    const uint32_t odd = (magnitude >> shift) & 1;
    const uint32_t up = magnitude + (UINT32_C(1) << (shift - 1)) - 1 + odd;
    const int32_t normal = (int32_t)((up >> shift) - (rebias << mantissa));
    /* Above this power of two, floats have the spacing of the subnormals: the addition rounds. */
    const float power = numeric_f32_from_bits((rebias + 1 + (uint32_t)shift) << 23);
    const float sum = numeric_f32_from_bits(magnitude) + power;
    const int32_t subnormal = (int32_t)(numeric_f32_bits(sum) - numeric_f32_bits(power));
    const int32_t code = (int32_t)magnitude < (int32_t)((rebias + 1) << 23) ? subnormal : normal;
    return (uint32_t)(code < (int32_t)limit ? code : (int32_t)limit);
}

/* ---- load: exact ----------------------------------------------------------------------------- */

NUMERIC_FN float numeric_f32_load(float element)
{
    return element;
}

NUMERIC_FN double numeric_f64_load(double element)
{
    return element;
}

NUMERIC_FN float numeric_bf16_load(uint16_t element)
{
    return numeric_f32_from_bits((uint32_t)element << 16);
}

NUMERIC_FN float numeric_f16_load(uint16_t element)
{
    const uint32_t code = element & UINT32_C(0x7fff), sign = (uint32_t)(element >> 15) << 31;
    const uint32_t special = code >= 0x7c00 ? UINT32_C(0x7f800000) : 0;
    return numeric_f32_from_bits(numeric_widen(code, 10, 15) | special | sign);
}

/* Return a float16: the value of an e4m3 divided by 256; the value of an e5m2, which is the upper
 * byte of that float16. */
NUMERIC_FN uint16_t numeric_e4m3_half(uint8_t element)
{
    const uint32_t code = element & UINT32_C(0x7f), sign = element & UINT32_C(0x80);
    return (uint16_t)((code == 0x7f ? UINT32_C(0x7e00) : code << 7) | sign << 8);
}

NUMERIC_FN uint16_t numeric_e5m2_half(uint8_t element)
{
    return (uint16_t)(element << 8);
}

NUMERIC_FN float numeric_e4m3_load(uint8_t element)
{
    return numeric_f16_load(numeric_e4m3_half(element)) * 256;
}

NUMERIC_FN float numeric_e5m2_load(uint8_t element)
{
    return numeric_f16_load(numeric_e5m2_half(element));
}

/* ---- store: round, canonical NaN ------------------------------------------------------------- */

NUMERIC_FN float numeric_f32_store(float value)
{
    return value != value ? numeric_f32_from_bits(UINT32_C(0x7fc00000)) : value;
}

NUMERIC_FN double numeric_f64_store(double value)
{
    return value != value ? numeric_f64_from_bits(UINT64_C(0x7ff8000000000000)) : value;
}

NUMERIC_FN uint16_t numeric_bf16_store(float value)
{
    const uint32_t bits = numeric_f32_bits(value);
    const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return (uint16_t)(value != value ? UINT32_C(0x7fc0) : rounded);
}

NUMERIC_FN uint16_t numeric_f16_store(float value)
{
    const uint32_t bits = numeric_f32_bits(value);
    const uint32_t code = numeric_narrow(bits & UINT32_C(0x7fffffff), 10, 15, 0x7c00);
    return (uint16_t)(value != value ? UINT32_C(0x7e00) : (bits >> 31) << 15 | code);
}

NUMERIC_FN uint8_t numeric_e4m3_store(float value)
{
    const uint32_t bits = numeric_f32_bits(value);
    const uint32_t code = numeric_narrow(bits & UINT32_C(0x7fffffff), 3, 7, 0x7e);
    return (uint8_t)(value != value ? UINT32_C(0x7f) : (bits >> 31) << 7 | code);
}

NUMERIC_FN uint8_t numeric_e5m2_store(float value)
{
    const uint32_t bits = numeric_f32_bits(value);
    const uint32_t code = numeric_narrow(bits & UINT32_C(0x7fffffff), 2, 15, 0x7b);
    return (uint8_t)(value != value ? UINT32_C(0x7f) : (bits >> 31) << 7 | code);
}

/* ---- floats: the operations ------------------------------------------------------------------ */

/* On a GPU, intrinsics prevent that the compiler contracts a product and a sum. */
#ifdef __CUDA_ARCH__
#define NUMERIC_ARITHMETIC(A, type, op, symbol, intrinsic)                                         \
    NUMERIC_FN type numeric_##A##_##op(type a, type b)                                             \
    {                                                                                              \
        return intrinsic(a, b);                                                                    \
    }
#else
#define NUMERIC_ARITHMETIC(A, type, op, symbol, intrinsic)                                         \
    NUMERIC_FN type numeric_##A##_##op(type a, type b)                                             \
    {                                                                                              \
        return a symbol b;                                                                         \
    }
#endif
NUMERIC_ARITHMETIC(f32, float, sum, +, __fadd_rn)
NUMERIC_ARITHMETIC(f32, float, prod, *, __fmul_rn)
NUMERIC_ARITHMETIC(f32, float, div, /, __fdiv_rn)
NUMERIC_ARITHMETIC(f64, double, sum, +, __dadd_rn)
NUMERIC_ARITHMETIC(f64, double, prod, *, __dmul_rn)
NUMERIC_ARITHMETIC(f64, double, div, /, __ddiv_rn)
#undef NUMERIC_ARITHMETIC

/* Equal numbers have equal bits, except +0 and -0: bitwise or of these gives -0, bitwise and gives
 * +0. If b is NaN, the comparison is false and `unequal` is b. */
#define NUMERIC_EXTREMUM(A, type, op, less, join)                                                  \
    NUMERIC_FN type numeric_##A##_##op(type a, type b)                                             \
    {                                                                                              \
        const type joined =                                                                        \
            numeric_##A##_from_bits(numeric_##A##_bits(a) join numeric_##A##_bits(b));             \
        const type unequal = a less b ? a : b;                                                     \
        const type number = a == b ? joined : unequal;                                             \
        return a != a ? a : number;                                                                \
    }
NUMERIC_EXTREMUM(f32, float, min, <, |)
NUMERIC_EXTREMUM(f32, float, max, >, &)
NUMERIC_EXTREMUM(f64, double, min, <, |)
NUMERIC_EXTREMUM(f64, double, max, >, &)
#undef NUMERIC_EXTREMUM

/* ---- integers -------------------------------------------------------------------------------- */

/* Sums and products use unsigned types, where overflow is defined; the narrowing wraps. */
#define NUMERIC_INTEGER(T, type, wide, quotient)                                                   \
    NUMERIC_FN type numeric_##T##_load(type element)                                               \
    {                                                                                              \
        return element;                                                                            \
    }                                                                                              \
    NUMERIC_FN type numeric_##T##_store(type value)                                                \
    {                                                                                              \
        return value;                                                                              \
    }                                                                                              \
    NUMERIC_FN type numeric_##T##_sum(type a, type b)                                              \
    {                                                                                              \
        return (type)((wide)a + (wide)b);                                                          \
    }                                                                                              \
    NUMERIC_FN type numeric_##T##_prod(type a, type b)                                             \
    {                                                                                              \
        return (type)((wide)a * (wide)b);                                                          \
    }                                                                                              \
    NUMERIC_FN type numeric_##T##_min(type a, type b)                                              \
    {                                                                                              \
        return a < b ? a : b;                                                                      \
    }                                                                                              \
    NUMERIC_FN type numeric_##T##_max(type a, type b)                                              \
    {                                                                                              \
        return a > b ? a : b;                                                                      \
    }                                                                                              \
    NUMERIC_FN type numeric_##T##_div(type a, int divisor)                                         \
    {                                                                                              \
        return (type)((quotient)a / (quotient)divisor);                                            \
    }                                                                                              \
    NUMERIC_FN type numeric_##T##_band(type a, type b)                                             \
    {                                                                                              \
        return (type)(a & b);                                                                      \
    }                                                                                              \
    NUMERIC_FN type numeric_##T##_bor(type a, type b)                                              \
    {                                                                                              \
        return (type)(a | b);                                                                      \
    }                                                                                              \
    NUMERIC_FN type numeric_##T##_bxor(type a, type b)                                             \
    {                                                                                              \
        return (type)(a ^ b);                                                                      \
    }
NUMERIC_INTEGER_MAP(NUMERIC_INTEGER)
#undef NUMERIC_INTEGER

/* A bool is reduced as a u8 that is 0 or 1 after the load. */
NUMERIC_FN uint8_t numeric_b8_load(uint8_t element)
{
    return element != 0;
}

#endif
