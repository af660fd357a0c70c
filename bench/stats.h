/* SPDX-License-Identifier: MIT */
/* Samples of blocks, kept apart by where the host had put the cores meanwhile. Pure functions. */
#ifndef BENCH_STATS_H
#define BENCH_STATS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* X(name, text) */
#define PLACEMENT_MAP(X)                                                                           \
    X(NEAR, "near")                                                                                \
    X(FAR, "far")                                                                                  \
    X(OVERSUBSCRIBED, "oversubscribed")

enum placement {
#define PLACEMENT_ENUM(name, text) PLACEMENT_##name,
    PLACEMENT_MAP(PLACEMENT_ENUM)
#undef PLACEMENT_ENUM
};
#define PLACEMENT_COUNT 3

const char *placement_name(enum placement placement);
/*
 * Where the cores were throughout a block, by a cache line's round trip before and after it.
 * Returns false if they moved meanwhile, or if it cannot be told because a trip is within a tenth
 * of the threshold: such a block is worth nothing.
 */
bool placement_of(double before_ns, double after_ns, double threshold_ns,
                  enum placement *placement);

/* Values in the order of arrival; zero is empty. */
struct samples {
    double *values;
    size_t count;
    size_t capacity;
};
/* Returns -1 if memory ran out. */
int samples_add(struct samples *samples, double value);
void samples_fini(struct samples *samples);
/* NaN if there are none. */
double samples_median(const struct samples *samples);

/* Index of the smallest value that is not NaN, or -1. */
int smallest(const double *values, size_t count);
/* How many operations fill target_ns at per_operation_ns each: from 1 to limit. */
uint32_t iterations_for(double target_ns, double per_operation_ns, uint32_t limit);

#endif
