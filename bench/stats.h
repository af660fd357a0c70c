/* SPDX-License-Identifier: MIT */
/* Samples and their median. */
#ifndef BENCH_STATS_H
#define BENCH_STATS_H

#include <stddef.h>

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

#endif
