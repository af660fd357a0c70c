/* SPDX-License-Identifier: MIT */
/* A wake-up that comes between a sleeper's word that it may sleep and its falling asleep. */
#include "pg/control_ring.h"

#include "layout.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* It finds nobody in the kernel, and those who ring later find the sleeper awake. */
static void nobody_falls_asleep_behind_a_wake(void **state)
{
    static const enum layout_sleep ways[] = {LAYOUT_NAPPING, LAYOUT_SLEEPING};
    (void)state;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct layout_control_ring ring = {.bell = 7, .asleep = ways[i]};
        pg_control_wake(&ring);
        assert_int_equal(ring.asleep, LAYOUT_AWAKE);
        assert_int_not_equal(ring.bell, 7);
    }
}

static void who_is_awake_is_left_alone(void **state)
{
    struct layout_control_ring ring = {.bell = 7, .asleep = LAYOUT_AWAKE};
    (void)state;
    pg_control_wake(&ring);
    assert_int_equal(ring.bell, 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nobody_falls_asleep_behind_a_wake),
        cmocka_unit_test(who_is_awake_is_left_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
