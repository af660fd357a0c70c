/* SPDX-License-Identifier: MIT */
/* The arithmetic of the programs in bench: medians. */
#include "stats.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static double median_of(const double *values, size_t count)
{
    struct samples samples = {0};
    double median;

    for (size_t i = 0; i < count; i++)
        assert_int_equal(samples_add(&samples, values[i]), 0);
    median = samples_median(&samples);
    samples_fini(&samples);
    assert_int_equal(samples.count, 0);
    return median;
}

static void median_is_the_middle(void **state)
{
    double many[101];

    (void)state;
    for (int i = 0; i < 101; i++)
        many[i] = (i * 37) % 101; /* 0 to 100 in disorder */
    assert_true(isnan(median_of(NULL, 0)));
    assert_true(median_of((const double[]){7}, 1) == 7);
    assert_true(median_of((const double[]){9, 1}, 2) == 5);
    assert_true(median_of((const double[]){1e9, 2, 1}, 3) == 2);
    assert_true(median_of(many, 101) == 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(median_is_the_middle),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
