/* SPDX-License-Identifier: MIT */
#include "reference_table.h"

#include "base/rank_set.h"
#include "reference.h"

#include <math.h>
#include <string.h>

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
 * products stay in range; sometimes a zero of either sign. */
static double input_float(uint64_t random)
{
    double sign = random & 1 ? -1 : 1;
    if ((random >> 1) % 64 == 0)
        return 0 * sign;
    int exponent = (int)(random >> 7 & 1) - 1;
    return sign * ldexp(1 + (double)(random >> 11) * 0x1p-53, exponent);
}

/* Whole numbers up to 7, which every format holds; for products 1/2, 1 or 2. Sums over all ranks or
 * half of them, and products, have few digits, too. */
static double input_exact(tutti_op_t op, uint64_t random)
{
    double sign = random & 1 ? -1 : 1;
    if ((random >> 1) % 64 == 0)
        return 0 * sign;
    if (op == TUTTI_PROD)
        return sign * ldexp(1, (int)((random >> 7) % 3) - 1);
    return sign * (double)((random >> 7) % 7 + 1);
}

/* Any bits, except for averages: their sums must not wrap, since wrapped averages are undefined. */
static uint64_t input_integer(enum tutti_dtype dtype, tutti_op_t op, uint64_t random)
{
    if (dtype == TUTTI_BOOL)
        return random & 1;
    if (op != TUTTI_AVG)
        return random;
    return reference_is_signed(dtype) ? random % 3 - 1 : random % 4;
}

/* The number of values in a period: for complex numbers two floats each, whose dtype it sets. */
static size_t components_of(struct reference *reference)
{
    const size_t bytes = REFERENCE_PERIOD * tutti_dtype_size(reference->dtype);
    reference->dtype = reference_component(reference->dtype);
    return bytes / tutti_dtype_size(reference->dtype);
}

static uint64_t input_seed(const struct reference *reference, int rank)
{
    return mix(reference->seed ^ mix((uint64_t)rank));
}

/* Element `index` of the input with that seed. */
static uint64_t input_bits(const struct reference *reference, uint64_t seed, size_t index)
{
    const uint64_t random = mix(seed + index);
    if (!reference_is_float(reference->dtype))
        return input_integer(reference->dtype, reference->op, random);
    return reference_bits(reference->dtype, reference->exact ? input_exact(reference->op, random)
                                                             : input_float(random));
}

void reference_input(const struct reference *reference, int rank, void *table)
{
    struct reference part = *reference;
    const size_t count = components_of(&part), bytes = tutti_dtype_size(part.dtype);
    const uint64_t seed = input_seed(reference, rank);
    for (size_t i = 0; i < count; i++) {
        const uint64_t bits = input_bits(&part, seed, i);
        memcpy((char *)table + i * bytes, &bits, bytes);
    }
}

void reference_expected(const struct reference *reference, void *table)
{
    struct reference part = *reference;
    const size_t count = components_of(&part), bytes = tutti_dtype_size(part.dtype);
    uint64_t seeds[WORLD_RANKS], bits[WORLD_RANKS];
    const void *in[WORLD_RANKS];
    for (int rank = 0; rank < reference->ranks; rank++) {
        seeds[rank] = input_seed(reference, rank);
        in[rank] = &bits[rank];
    }
    for (size_t i = 0; i < count; i++) {
        for (int rank = 0; rank < part.ranks; rank++)
            bits[rank] = input_bits(&part, seeds[rank], i);
        reference_reduce((char *)table + i * bytes, in, part.ranks, 1, part.dtype, part.op,
                         part.scalar);
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
