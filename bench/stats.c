/* SPDX-License-Identifier: MIT */
#include "stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *placement_name(enum placement placement)
{
    static const char *const names[] = {
#define PLACEMENT_NAME(name, text) text,
        PLACEMENT_MAP(PLACEMENT_NAME)
#undef PLACEMENT_NAME
    };

    return names[placement];
}

bool placement_of(double before_ns, double after_ns, double threshold_ns, enum placement *placement)
{
    double low = 0.9 * threshold_ns;
    double high = 1.1 * threshold_ns;

    if (before_ns < low && after_ns < low)
        *placement = PLACEMENT_NEAR;
    else if (before_ns > high && after_ns > high)
        *placement = PLACEMENT_FAR;
    else
        return false;
    return true;
}

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

int smallest(const double *values, size_t count)
{
    int best = -1;

    for (size_t i = 0; i < count; i++) {
        if (!isnan(values[i]) && (best < 0 || values[i] < values[best]))
            best = (int)i;
    }
    return best;
}

uint32_t iterations_for(double target_ns, double per_operation_ns, uint32_t limit)
{
    double wanted = target_ns / per_operation_ns;

    /* Also when the time of an operation is 0 or not a number. */
    if (!(wanted < (double)limit))
        return limit;
    return wanted < 1 ? 1 : (uint32_t)wanted;
}
