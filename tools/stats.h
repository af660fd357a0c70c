/* SPDX-License-Identifier: MIT */
/* Summary of a series of times. */
#ifndef TUTTI_TOOL_STATS_H
#define TUTTI_TOOL_STATS_H

#include <stddef.h>

struct stats {
    double mean;
    double p50;
    double p99;
};

/* The nearest-rank percentile (0 to 100) of count > 0 values in ascending order. */
double stats_percentile(const double *sorted, size_t count, double percent);
/* Sorts the values; all zero for none. */
struct stats stats_of(double *values, size_t count);

#endif
