/* SPDX-License-Identifier: MIT */
#include "stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int samples_add(struct samples *samples, double value)
{
    if (samples->count == samples->capacity) {
        size_t capacity = samples->capacity != 0 ? 2 * samples->capacity : 16;
        double *values = realloc(samples->values, capacity * sizeof(*values));

        if (values == NULL)
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

static int ascending(const void *left, const void *right)
{
    double a = *(const double *)left;
    double b = *(const double *)right;

    return (a > b) - (a < b);
}

double samples_median(const struct samples *samples)
{
    size_t half = samples->count / 2;
    double median = NAN;
    double *sorted;

    if (samples->count == 0)
        return NAN;
    sorted = malloc(samples->count * sizeof(*sorted));
    if (sorted == NULL)
        return NAN;
    memcpy(sorted, samples->values, samples->count * sizeof(*sorted));
    qsort(sorted, samples->count, sizeof(*sorted), ascending);
    median = samples->count % 2 != 0 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
    free(sorted);
    return median;
}
