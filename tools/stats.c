/* SPDX-License-Identifier: MIT */
#include "stats.h"

#include <math.h>
#include <stdlib.h>

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double stats_percentile(const double *sorted, size_t count, double percent)
{
    double rank = ceil(percent / 100 * (double)count);
    size_t index = rank < 1 ? 0 : (size_t)rank - 1;
    return sorted[index < count ? index : count - 1];
}

struct stats stats_of(double *values, size_t count)
{
    struct stats stats = {0};
    if (count == 0)
        return stats;
    qsort(values, count, sizeof *values, ascending);
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += values[i];
    stats.mean = sum / (double)count;
    stats.p50 = stats_percentile(values, count, 50);
    stats.p99 = stats_percentile(values, count, 99);
    return stats;
}

int samples_add(struct samples *samples, double value)
{
    if (samples->count == samples->capacity) {
        size_t capacity = samples->capacity ? 2 * samples->capacity : 16;
        double *values = realloc(samples->values, capacity * sizeof *values);
        if (!values)
            return -1;
        samples->values = values;
        samples->capacity = capacity;
    }
    samples->values[samples->count++] = value;
    return 0;
}

void samples_fini(struct samples *samples)
{
    free(samples->values);
    *samples = (struct samples){0};
}

double samples_median(struct samples *samples)
{
    return samples->count ? stats_of(samples->values, samples->count).p50 : NAN;
}
