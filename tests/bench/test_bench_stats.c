/* SPDX-License-Identifier: MIT */
/* The comparison's arithmetic: medians, placements, the choice of the best and of iterations. */
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

static void a_block_counts_only_if_both_probes_agree(void **state)
{
    enum placement placement = PLACEMENT_OVERSUBSCRIBED;

    (void)state;
    assert_true(placement_of(80, 90, 200, &placement));
    assert_int_equal(placement, PLACEMENT_NEAR);
    assert_true(placement_of(340, 350, 200, &placement));
    assert_int_equal(placement, PLACEMENT_FAR);
    assert_false(placement_of(80, 340, 200, &placement));
    assert_false(placement_of(340, 80, 200, &placement));
    assert_false(placement_of(195, 80, 200, &placement));
    assert_false(placement_of(340, 205, 200, &placement));
    assert_false(placement_of(NAN, 80, 200, &placement));
    assert_false(placement_of(80, NAN, 200, &placement));
}

static void placements_have_names(void **state)
{
    (void)state;
    assert_string_equal(placement_name(PLACEMENT_NEAR), "near");
    assert_string_equal(placement_name(PLACEMENT_FAR), "far");
    assert_string_equal(placement_name(PLACEMENT_OVERSUBSCRIBED), "oversubscribed");
}

static void smallest_ignores_absent_values(void **state)
{
    (void)state;
    assert_int_equal(smallest((const double[]){3, NAN, 1, 2}, 4), 2);
    assert_int_equal(smallest((const double[]){NAN, 4}, 2), 1);
    assert_int_equal(smallest((const double[]){NAN, NAN}, 2), -1);
    assert_int_equal(smallest(NULL, 0), -1);
}

static void iterations_fill_a_block(void **state)
{
    (void)state;
    assert_int_equal(iterations_for(5e6, 1000, 200000), 5000);
    assert_int_equal(iterations_for(5e6, 7e6, 200000), 1);
    assert_int_equal(iterations_for(5e6, 1, 200000), 200000);
    assert_int_equal(iterations_for(5e6, 0, 200000), 200000);
    assert_int_equal(iterations_for(5e6, NAN, 200000), 200000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(median_is_the_middle),
        cmocka_unit_test(a_block_counts_only_if_both_probes_agree),
        cmocka_unit_test(placements_have_names),
        cmocka_unit_test(smallest_ignores_absent_values),
        cmocka_unit_test(iterations_fill_a_block),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
