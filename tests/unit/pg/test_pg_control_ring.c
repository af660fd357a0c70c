/* SPDX-License-Identifier: MIT */
/* A wake-up between a thread's announcement that it may sleep and its falling asleep. */
#include "pg/control_ring.h"

#include "base/layout.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* The wake-up finds no sleeper in the kernel, but advances the bell. Threads that notify later find
 * the owner awake. */
static void wake_before_sleep_is_not_lost(void **state)
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

static void awake_owner_is_not_woken(void **state)
{
    struct layout_control_ring ring = {.bell = 7, .asleep = LAYOUT_AWAKE};
    (void)state;
    pg_control_wake(&ring);
    assert_int_equal(ring.bell, 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wake_before_sleep_is_not_lost),
        cmocka_unit_test(awake_owner_is_not_woken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
