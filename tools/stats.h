/* SPDX-License-Identifier: MIT */
/* Series of times, and their summary. */
#ifndef TUTTI_TOOL_STATS_H
#define TUTTI_TOOL_STATS_H

#include <stddef.h>

struct stats {
    double mean;
    double p50;
    double p99;
};

/* The nearest-rank percentile (0 to 100) of `count` > 0 values in ascending order. */
double stats_percentile(const double *sorted, size_t count, double percent);
/* Sorts the values. All results are 0 if there are none. */
struct stats stats_of(double *values, size_t count);

/* A series that grows. All zero: empty. */
struct samples {
    double *values;
    size_t count;
    size_t capacity;
};
/* Returns -1 if memory ran out. */
int samples_add(struct samples *samples, double value);
void samples_fini(struct samples *samples);
/* Sorts the values. NaN if there are none. */
double samples_median(struct samples *samples);

#endif
