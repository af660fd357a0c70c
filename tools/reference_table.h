/* SPDX-License-Identifier: MIT */
/*
 * Inputs of an all-reduce and what it must return for them, by reference.h.
 *
 * Inputs repeat with a prime period, so a table of one period serves any count, and a chunk in the
 * place of another one is noticed. The result depends on the order of the additions, which the
 * header promises for every algorithm but the ring. For the ring, inputs can be exact: floats are
 * then small whole numbers, or factors of two, and the result is the same in any order.
 */
#ifndef TUTTI_TOOL_REFERENCE_TABLE_H
#define TUTTI_TOOL_REFERENCE_TABLE_H

#include "tutti/tutti.h"

enum { REFERENCE_PERIOD = 8191, REFERENCE_WIDEST = 16 /* bytes of an element */ };

struct reference {
    enum tutti_dtype dtype;
    tutti_op_t op;
    double scalar; /* of premul_sum */
    int ranks;
    uint64_t seed; /* another seed gives other inputs */
    bool exact;    /* no intermediate result is rounded, if scalar is a power of two: see above */
};

/* One period of rank's input; table holds REFERENCE_PERIOD elements. */
void reference_input(const struct reference *reference, int rank, void *table);
/* One period of the result. */
void reference_expected(const struct reference *reference, void *table);

/* Repeats a table of one period over count elements. */
void reference_fill(void *buffer, size_t count, size_t element_bytes, const void *table);
/* Returns how many of count elements differ from the repeated table in any bit. */
uint64_t reference_differences(const void *buffer, size_t count, size_t element_bytes,
                               const void *table);

#endif
