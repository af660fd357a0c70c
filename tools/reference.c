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

enum family { FLOATING, SIGNED, UNSIGNED, BOOLEAN };

/* What overflows: to infinity, or to the largest finite number. */
enum overflow { TO_INFINITY, SATURATES };

struct format {
    enum family family;
    int exponent_bits; /* of floats */
    int mantissa_bits;
    double largest;
    enum overflow overflow;
    uint64_t nan;
};

static const struct format formats[TUTTI_DTYPE_COUNT] = {
    [TUTTI_FLOAT32] = {FLOATING, 8, 23, 0x1.fffffep127, TO_INFINITY, 0x7fc00000},
    [TUTTI_FLOAT64] = {FLOATING, 11, 52, 0x1.fffffffffffffp1023, TO_INFINITY, 0x7ff8000000000000},
    [TUTTI_FLOAT16] = {FLOATING, 5, 10, 65504, TO_INFINITY, 0x7e00},
    [TUTTI_BFLOAT16] = {FLOATING, 8, 7, 0x1.fep127, TO_INFINITY, 0x7fc0},
    [TUTTI_FLOAT8_E4M3] = {FLOATING, 4, 3, 448, SATURATES, 0x7f},
    [TUTTI_FLOAT8_E5M2] = {FLOATING, 5, 2, 57344, SATURATES, 0x7f},
    [TUTTI_INT8] = {.family = SIGNED},
    [TUTTI_INT16] = {.family = SIGNED},
    [TUTTI_INT32] = {.family = SIGNED},
    [TUTTI_INT64] = {.family = SIGNED},
    [TUTTI_UINT8] = {.family = UNSIGNED},
    [TUTTI_UINT32] = {.family = UNSIGNED},
    [TUTTI_UINT64] = {.family = UNSIGNED},
    [TUTTI_BOOL] = {.family = BOOLEAN},
};

bool reference_defined(enum tutti_dtype dtype, tutti_op_t op)
{
    enum family family = formats[dtype].family;
    switch ((enum op)(uintptr_t)op) {
    case OP_SUM:
    case OP_PROD:
    case OP_MIN:
    case OP_MAX:
        return true;
    case OP_AVG:
        return family != BOOLEAN;
    case OP_BAND:
    case OP_BOR:
    case OP_BXOR:
        return family != FLOATING;
    case OP_PREMUL_SUM:
        return family == FLOATING;
    }
    return false;
}

/* ---- bits of an element ---------------------------------------------------------------------- */

static void bits_store(void *table, size_t index, size_t bytes, uint64_t bits)
{
    memcpy((char *)table + index * bytes, &bits, bytes);
}

static double decode(const struct format *format, uint64_t bits)
{
    int bias = (1 << (format->exponent_bits - 1)) - 1;
    uint64_t fraction = bits & ((1ull << format->mantissa_bits) - 1);
    int exponent = (int)(bits >> format->mantissa_bits) & ((1 << format->exponent_bits) - 1);
    bool negative = bits >> (format->mantissa_bits + format->exponent_bits) & 1;
    uint64_t whole = exponent ? fraction | 1ull << format->mantissa_bits : fraction;
    double value = ldexp((double)whole, (exponent ? exponent : 1) - bias - format->mantissa_bits);
    return negative ? -value : value;
}

/* Rounds to nearest even. Inputs are finite; results may overflow or, as infinity less infinity,
 * be no number. */
static uint64_t encode(const struct format *format, double value)
{
    if (isnan(value))
        return format->nan;
    int bias = (1 << (format->exponent_bits - 1)) - 1, exponent = 0;
    uint64_t sign = (uint64_t)(signbit(value) != 0)
                    << (format->mantissa_bits + format->exponent_bits);
    double size = fabs(value);
    if (isfinite(size)) {
        frexp(size, &exponent);
        if (exponent - 1 < 1 - bias || size == 0)
            exponent = 2 - bias; /* subnormals share the least exponent */
        int unit = exponent - 1 - format->mantissa_bits;
        size = ldexp(nearbyint(ldexp(size, -unit)), unit);
    }
    if (size > format->largest && format->overflow == SATURATES)
        size = format->largest;
    if (size > format->largest)
        return sign | ((1ull << format->exponent_bits) - 1) << format->mantissa_bits;
    frexp(size, &exponent);
    if (size == 0 || exponent - 1 < 1 - bias)
        return sign | (uint64_t)ldexp(size, bias - 1 + format->mantissa_bits);
    uint64_t whole = (uint64_t)ldexp(size, format->mantissa_bits + 1 - exponent);
    uint64_t hidden = 1ull << format->mantissa_bits;
    return sign | (uint64_t)(exponent - 1 + bias) << format->mantissa_bits | (whole ^ hidden);
}

/* ---- inputs ---------------------------------------------------------------------------------- */

/* splitmix64: every bit of the result depends on every bit of the state. */
static uint64_t mix(uint64_t state)
{
    state += 0x9e3779b97f4a7c15;
    state = (state ^ state >> 30) * 0xbf58476d1ce4e5b9;
    state = (state ^ state >> 27) * 0x94d049bb133111eb;
    return state ^ state >> 31;
}

/* Full mantissas at two exponents about 1, so that the order of the additions shows and long
 * products stay in range; now and then a zero of either sign. */
static uint64_t input_float(const struct format *format, uint64_t random)
{
    double sign = random & 1 ? -1 : 1;
    if ((random >> 1) % 64 == 0)
        return encode(format, 0 * sign);
    int exponent = (int)(random >> 7 & 1) - 1;
    return encode(format, sign * ldexp(1 + (double)(random >> 11) * 0x1p-53, exponent));
}

/* Whole numbers of up to 7, which every format holds; to be multiplied 1/2, 1 or 2. The sums of all
 * ranks, and of halves of them, and their products have few digits, too. */
static uint64_t input_exact(const struct format *format, tutti_op_t op, uint64_t random)
{
    double sign = random & 1 ? -1 : 1;
    if ((random >> 1) % 64 == 0)
        return encode(format, 0 * sign);
    if (op == TUTTI_PROD)
        return encode(format, sign * ldexp(1, (int)((random >> 7) % 3) - 1));
    return encode(format, sign * (double)((random >> 7) % 7 + 1));
}

/* Any bits, but for averages, whose sums must not wrap: what a wrapped average is, is left open. */
static uint64_t input_integer(enum family family, tutti_op_t op, uint64_t random)
{
    if (family == BOOLEAN)
        return random & 1;
    if (op != TUTTI_AVG)
        return random;
    return family == SIGNED ? random % 3 - 1 : random % 4;
}

static uint64_t input_seed(const struct reference *reference, int rank)
{
    return mix(reference->seed ^ mix((uint64_t)rank));
}

static uint64_t input_bits(const struct reference *reference, uint64_t seed, size_t index)
{
    const struct format *format = &formats[reference->dtype];
    uint64_t random = mix(seed + index);
    if (format->family == FLOATING && reference->exact)
        return input_exact(format, reference->op, random);
    if (format->family == FLOATING)
        return input_float(format, random);
    int spare = 64 - 8 * (int)tutti_dtype_size(reference->dtype);
    return input_integer(format->family, reference->op, random) << spare >> spare;
}

void reference_input(const struct reference *reference, int rank, void *table)
{
    size_t bytes = tutti_dtype_size(reference->dtype);
    uint64_t seed = input_seed(reference, rank);
    for (size_t i = 0; i < REFERENCE_PERIOD; i++)
        bits_store(table, i, bytes, input_bits(reference, seed, i));
}

/* ---- the reduction --------------------------------------------------------------------------- */

/* The canonical order: the largest power of two below n on the left. */
static int left_size(int n)
{
    int left = 1;
    while (2 * left < n)
        left *= 2;
    return left;
}

/* A float32 operation done in double and rounded again gives float32's own result for + * /: a
 * double has more than twice its digits. */
static double narrow(enum tutti_dtype dtype, double value)
{
    return dtype == TUTTI_FLOAT64 ? value : (double)(float)value;
}

static double lesser(double a, double b)
{
    if (isnan(a) || isnan(b))
        return NAN;
    return a < b || (a == b && signbit(a)) ? a : b;
}

static double tree_float(const struct reference *reference, const double *in, int n)
{
    if (n == 1)
        return in[0];
    int left = left_size(n);
    double a = tree_float(reference, in, left);
    double b = tree_float(reference, in + left, n - left);
    if (reference->op == TUTTI_PROD)
        return narrow(reference->dtype, a * b);
    if (reference->op == TUTTI_MIN)
        return lesser(a, b);
    if (reference->op == TUTTI_MAX)
        return -lesser(-a, -b);
    return narrow(reference->dtype, a + b);
}

static uint64_t expected_float(const struct reference *reference, const uint64_t *bits)
{
    const struct format *format = &formats[reference->dtype];
    double in[TUTTI_MAX_RANKS];
    for (int rank = 0; rank < reference->ranks; rank++) {
        in[rank] = decode(format, bits[rank]);
        if (reference->op == TUTTI_PREMUL_SUM)
            in[rank] =
                narrow(reference->dtype, in[rank] * narrow(reference->dtype, reference->scalar));
    }
    double result = tree_float(reference, in, reference->ranks);
    if (reference->op == TUTTI_AVG)
        result = narrow(reference->dtype, result / reference->ranks);
    return encode(format, result);
}

/* Integers have no order to keep: wrapping sums and products commute. A sum of truth values is or,
 * a product and. */
static uint64_t combine_integer(enum family family, tutti_op_t op, uint64_t a, uint64_t b)
{
    bool less = family == SIGNED ? (int64_t)a < (int64_t)b : a < b;
    switch ((enum op)(uintptr_t)op) {
    case OP_SUM:
    case OP_AVG:
    case OP_PREMUL_SUM:
        return family == BOOLEAN ? a | b : a + b;
    case OP_PROD:
        return a * b;
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

static uint64_t expected_integer(const struct reference *reference, const uint64_t *bits)
{
    enum family family = formats[reference->dtype].family;
    int spare = 64 - 8 * (int)tutti_dtype_size(reference->dtype);
    uint64_t result = 0;
    for (int rank = 0; rank < reference->ranks; rank++) {
        uint64_t value = bits[rank];
        if (family == SIGNED) /* spread the sign over the upper bits */
            value = (uint64_t)((int64_t)(value << spare) >> spare);
        result = rank ? combine_integer(family, reference->op, result, value) : value;
    }
    if (reference->op == TUTTI_AVG && family == SIGNED)
        return (uint64_t)((int64_t)result / reference->ranks);
    return reference->op == TUTTI_AVG ? result / (uint64_t)reference->ranks : result;
}

void reference_expected(const struct reference *reference, void *table)
{
    bool floating = formats[reference->dtype].family == FLOATING;
    size_t bytes = tutti_dtype_size(reference->dtype);
    uint64_t seeds[TUTTI_MAX_RANKS], bits[TUTTI_MAX_RANKS];
    for (int rank = 0; rank < reference->ranks; rank++)
        seeds[rank] = input_seed(reference, rank);
    for (size_t i = 0; i < REFERENCE_PERIOD; i++) {
        for (int rank = 0; rank < reference->ranks; rank++)
            bits[rank] = input_bits(reference, seeds[rank], i);
        bits_store(table, i, bytes,
                   floating ? expected_float(reference, bits) : expected_integer(reference, bits));
    }
}

/* ---- whole buffers --------------------------------------------------------------------------- */

void reference_fill(void *buffer, size_t count, size_t element_bytes, const void *table)
{
    for (size_t i = 0; i < count; i += REFERENCE_PERIOD) {
        size_t part = count - i < REFERENCE_PERIOD ? count - i : REFERENCE_PERIOD;
        memcpy((char *)buffer + i * element_bytes, table, part * element_bytes);
    }
}

uint64_t reference_differences(const void *buffer, size_t count, size_t element_bytes,
                               const void *table)
{
    uint64_t differences = 0;
    for (size_t i = 0; i < count; i += REFERENCE_PERIOD) {
        size_t part = count - i < REFERENCE_PERIOD ? count - i : REFERENCE_PERIOD;
        const char *have = (const char *)buffer + i * element_bytes;
        if (memcmp(have, table, part * element_bytes) == 0)
            continue;
        for (size_t k = 0; k < part; k++)
            differences += memcmp(have + k * element_bytes, (const char *)table + k * element_bytes,
                                  element_bytes) != 0;
    }
    return differences;
}
