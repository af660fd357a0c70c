/* SPDX-License-Identifier: MIT */
#include "reference.h"

#include <math.h>
#include <string.h>

/* The operations as integers. */
enum op {
#define ENUM(name, value, text) OP_##name = value,
    TUTTI_OP_MAP(ENUM)
#undef ENUM
};

/* ---- small floats, by their definitions ------------------------------------------------------ */

/* A format of 1 sign bit, `exponent` bits and `mantissa` bits. */
struct format {
    int exponent;
    int mantissa;
    bool infinities; /* the top exponent means infinity and NaN; else only the top code is NaN */
    double most;     /* greater values become this one; INFINITY: nothing saturates */
    uint32_t nan;    /* how a NaN is stored */
};

static const struct format *format_of(enum tutti_dtype dtype)
{
    static const struct format float16 = {5, 10, true, INFINITY, 0x7e00},
                               bfloat16 = {8, 7, true, INFINITY, 0x7fc0},
                               e4m3 = {4, 3, false, 448, 0x7f}, e5m2 = {5, 2, true, 57344, 0x7f};
    static const struct format *const formats[TUTTI_DTYPE_COUNT] = {
        [TUTTI_FLOAT16] = &float16,
        [TUTTI_BFLOAT16] = &bfloat16,
        [TUTTI_FLOAT8_E4M3] = &e4m3,
        [TUTTI_FLOAT8_E5M2] = &e5m2,
    };
    return formats[dtype];
}

static int bias_of(const struct format *f)
{
    return (1 << (f->exponent - 1)) - 1;
}

double reference_decode(enum tutti_dtype dtype, uint32_t code)
{
    const struct format *f = format_of(dtype);
    const int top = (1 << f->exponent) - 1;
    const int exponent = (int)(code >> f->mantissa) & top;
    const int fraction = (int)code & ((1 << f->mantissa) - 1);
    const double sign = (code >> (f->exponent + f->mantissa)) & 1 ? -1 : 1;
    if (f->infinities && exponent == top)
        return fraction ? NAN : sign * INFINITY;
    if (!f->infinities && exponent == top && fraction == (1 << f->mantissa) - 1)
        return NAN;
    if (exponent == 0)
        return sign * ldexp(fraction, 1 - bias_of(f) - f->mantissa);
    return sign * ldexp(fraction + (1 << f->mantissa), exponent - bias_of(f) - f->mantissa);
}

/* Rounds a value of at least 0 to the nearest integer, ties to even. */
static double nearest_even(double value)
{
    const double below = floor(value), rest = value - below;
    if (rest == 0.5)
        return fmod(below, 2) == 0 ? below : below + 1;
    return rest < 0.5 ? below : below + 1;
}

uint32_t reference_encode(enum tutti_dtype dtype, double value)
{
    const struct format *f = format_of(dtype);
    const uint32_t sign = (signbit(value) ? 1U : 0U) << (f->exponent + f->mantissa);
    const uint32_t infinity = ((1U << f->exponent) - 1) << f->mantissa;
    if (isnan(value))
        return f->nan;
    const double magnitude = fabs(value) > f->most ? f->most : fabs(value);
    if (isinf(magnitude))
        return sign | infinity;
    int exponent; /* of the binade: 2^(exponent - 1) <= magnitude < 2^exponent */
    frexp(magnitude, &exponent);
    const int least = 2 - bias_of(f);
    if (exponent < least || magnitude == 0)
        exponent = least;
    const int unit = exponent - 1 - f->mantissa; /* log2 of the distance between neighbours */
    const double units = nearest_even(ldexp(magnitude, -unit));
    /* Neighbouring codes are neighbouring numbers: a carry out of the fraction is the next binade.
     */
    const double code = units + ldexp(exponent - least, f->mantissa);
    return sign | (code < infinity || !f->infinities ? (uint32_t)code : infinity);
}

/* ---- one element, in a type that holds every dtype ------------------------------------------- */

/* A float in `real`; an integer or bool in `bits`, extended from the dtype's width. */
struct number {
    double real;
    uint64_t bits;
};

struct problem {
    const void *const *in;
    size_t at;
    enum tutti_dtype dtype;
    tutti_op_t op;
    double scalar;
};

bool reference_is_float(enum tutti_dtype dtype)
{
    return dtype <= TUTTI_FLOAT8_E5M2;
}

bool reference_is_signed(enum tutti_dtype dtype)
{
    return dtype == TUTTI_INT8 || dtype == TUTTI_INT16 || dtype == TUTTI_INT32 ||
           dtype == TUTTI_INT64;
}

enum tutti_dtype reference_component(enum tutti_dtype dtype)
{
    return dtype == TUTTI_COMPLEX64    ? TUTTI_FLOAT32
           : dtype == TUTTI_COMPLEX128 ? TUTTI_FLOAT64
                                       : dtype;
}

bool reference_has(enum tutti_dtype dtype, tutti_op_t op)
{
    if (reference_component(dtype) != dtype)
        return op == TUTTI_SUM || op == TUTTI_AVG || op == TUTTI_PREMUL_SUM;
    const bool bitwise = op == TUTTI_BAND || op == TUTTI_BOR || op == TUTTI_BXOR;
    if (reference_is_float(dtype))
        return !bitwise;
    return dtype != TUTTI_BOOL || (op != TUTTI_AVG && op != TUTTI_PREMUL_SUM);
}

bool reference_has_order(enum tutti_dtype dtype, tutti_op_t op)
{
    return reference_is_float(reference_component(dtype)) && op != TUTTI_MIN && op != TUTTI_MAX;
}

/* Rounds to the accumulation type. */
static double rounded(enum tutti_dtype dtype, double value)
{
    return dtype == TUTTI_FLOAT64 ? value : (double)(float)value;
}

/* Cuts to the dtype's width and extends again. */
static uint64_t wrapped(enum tutti_dtype dtype, uint64_t bits)
{
    const int spare = 64 - 8 * (int)tutti_dtype_size(dtype);
    bits <<= spare;
    bool negative = reference_is_signed(dtype) && bits >> 63;
    bits >>= spare;
    return negative && spare > 0 ? bits | ~UINT64_C(0) << (64 - spare) : bits;
}

static struct number number_load(const struct problem *p, int input)
{
    const size_t size = tutti_dtype_size(p->dtype);
    const unsigned char *bytes = (const unsigned char *)p->in[input] + p->at * size;
    struct number number = {0, 0};
    float single;
    memcpy(&number.bits, bytes, size); /* both supported architectures are little-endian */
    memcpy(&single, bytes, size < sizeof single ? size : sizeof single);
    if (p->dtype == TUTTI_FLOAT32)
        number.real = single;
    else if (p->dtype == TUTTI_FLOAT64)
        memcpy(&number.real, bytes, sizeof number.real);
    else if (reference_is_float(p->dtype))
        number.real = reference_decode(p->dtype, (uint32_t)number.bits);
    else if (p->dtype == TUTTI_BOOL)
        number.bits = number.bits != 0;
    else
        number.bits = wrapped(p->dtype, number.bits);
    if (p->op == TUTTI_PREMUL_SUM && !reference_is_float(p->dtype))
        number.bits = wrapped(p->dtype, (uint64_t)(int64_t)p->scalar * number.bits);
    else if (p->op == TUTTI_PREMUL_SUM)
        number.real = rounded(p->dtype, rounded(p->dtype, p->scalar) * number.real);
    return number;
}

static void number_store(unsigned char *to, enum tutti_dtype dtype, struct number number)
{
    const size_t size = tutti_dtype_size(dtype);
    const float single = (float)number.real;
    if (dtype == TUTTI_FLOAT32)
        number.bits = 0, memcpy(&number.bits, &single, sizeof single);
    else if (dtype == TUTTI_FLOAT64)
        memcpy(&number.bits, &number.real, sizeof number.real);
    else if (reference_is_float(dtype))
        number.bits = reference_encode(dtype, number.real);
    if (dtype == TUTTI_FLOAT32 && isnan(number.real))
        number.bits = UINT32_C(0x7fc00000);
    if (dtype == TUTTI_FLOAT64 && isnan(number.real))
        number.bits = UINT64_C(0x7ff8000000000000);
    memcpy(to, &number.bits, size);
}

uint64_t reference_bits(enum tutti_dtype dtype, double value)
{
    uint64_t bits = 0;
    number_store((unsigned char *)&bits, dtype, (struct number){.real = value});
    return bits;
}

/* ---- operations ------------------------------------------------------------------------------ */

/* Whether a is below b; -0 is below +0. */
static bool real_less(double a, double b)
{
    return a < b || (a == b && signbit(a) && !signbit(b));
}

static double real_combine(const struct problem *p, double a, double b)
{
    switch ((enum op)(uintptr_t)p->op) {
    case OP_SUM:
    case OP_AVG:
    case OP_PREMUL_SUM:
        return rounded(p->dtype, a + b);
    case OP_PROD:
        return rounded(p->dtype, a * b);
    case OP_MIN:
        return isnan(a) || isnan(b) ? NAN : real_less(a, b) ? a : b;
    case OP_MAX:
        return isnan(a) || isnan(b) ? NAN : real_less(a, b) ? b : a;
    case OP_BAND:
    case OP_BOR:
    case OP_BXOR:
        break;
    }
    return NAN;
}

static uint64_t integer_combine(const struct problem *p, uint64_t a, uint64_t b)
{
    const bool truth = p->dtype == TUTTI_BOOL;
    const bool less = reference_is_signed(p->dtype) ? (int64_t)a < (int64_t)b : a < b;
    switch ((enum op)(uintptr_t)p->op) {
    case OP_SUM:
    case OP_AVG:
    case OP_PREMUL_SUM:
        return truth ? a | b : wrapped(p->dtype, a + b);
    case OP_PROD:
        return truth ? a & b : wrapped(p->dtype, a * b);
    case OP_MIN:
        return less ? a : b;
    case OP_MAX:
        return less ? b : a;
    case OP_BAND:
        return a & b;
    case OP_BOR:
        return a | b;
    case OP_BXOR:
        return a ^ b;
    }
    return 0;
}

static struct number combined(const struct problem *p, struct number a, struct number b)
{
    if (reference_is_float(p->dtype))
        a.real = real_combine(p, a.real, b.real);
    else
        a.bits = integer_combine(p, a.bits, b.bits);
    return a;
}

/* Reduces inputs first to first + n - 1: the largest power of two below n is on the left. */
static struct number tree(const struct problem *p, int first, int n)
{
    if (n == 1)
        return number_load(p, first);
    int left = 1;
    while (left * 2 < n)
        left *= 2;
    return combined(p, tree(p, first, left), tree(p, first + left, n - left));
}

static struct number divided(const struct problem *p, struct number sum, int n)
{
    if (reference_is_float(p->dtype))
        sum.real = rounded(p->dtype, sum.real / n);
    else if (reference_is_signed(p->dtype))
        sum.bits = (uint64_t)((int64_t)sum.bits / n);
    else
        sum.bits /= (uint64_t)n;
    return sum;
}

void reference_reduce(void *out, const void *const *in, int n, size_t count, enum tutti_dtype dtype,
                      tutti_op_t op, double scalar)
{
    struct problem p = {in, 0, reference_component(dtype), op, scalar};
    const size_t size = tutti_dtype_size(p.dtype);
    count = count * tutti_dtype_size(dtype) / size;
    for (; p.at < count; p.at++) {
        struct number result = tree(&p, 0, n);
        if (op == TUTTI_AVG)
            result = divided(&p, result, n);
        number_store((unsigned char *)out + p.at * size, p.dtype, result);
    }
}

void reference_chain(void *out, const void *const *in, int n, enum tutti_dtype dtype, tutti_op_t op,
                     double scalar)
{
    struct problem p = {in, 0, reference_component(dtype), op, scalar};
    const size_t size = tutti_dtype_size(p.dtype), count = tutti_dtype_size(dtype) / size;
    for (; p.at < count; p.at++) {
        struct number result = number_load(&p, 0);
        for (int i = 1; i < n; i++)
            result = combined(&p, result, number_load(&p, i));
        if (op == TUTTI_AVG)
            result = divided(&p, result, n);
        number_store((unsigned char *)out + p.at * size, p.dtype, result);
    }
}
