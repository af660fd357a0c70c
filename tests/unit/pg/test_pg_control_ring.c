/* SPDX-License-Identifier: MIT */
/* A wake-up that comes after a thread has announced that it may sleep, and before it sleeps. */
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

/* A peer's event wakes an owner that has operations, and leaves one alone that rests. */
static void resting_owner_is_not_woken(void **state)
{
    struct layout_control_ring ring = {.bell = 7, .asleep = LAYOUT_RESTING};
    (void)state;
    pg_control_notify(&ring);
    assert_int_equal(ring.asleep, LAYOUT_RESTING);
    assert_int_equal(ring.bell, 8);
    ring.asleep = LAYOUT_NAPPING;
    pg_control_notify(&ring);
    assert_int_equal(ring.asleep, LAYOUT_AWAKE);
}

/* An owner that sleeps for long is woken when a waiting thread takes over, since nobody else would
 * wake it afterwards; or when that thread ends, if the owner fell asleep meanwhile. */
static void no_owner_sleeps_behind_a_waiter(void **state)
{
    struct layout_control_ring ring = {.bell = 7, .asleep = LAYOUT_SLEEPING};
    (void)state;
    pg_control_take_over(&ring);
    assert_int_equal(ring.asleep, LAYOUT_AWAKE);
    assert_int_equal(ring.bell, 8);
    pg_control_hand_back(&ring, true);
    assert_int_equal(ring.asleep, LAYOUT_RESTING);
    pg_control_take_over(&ring);
    assert_int_equal(ring.bell, 8);
    ring.asleep = LAYOUT_SLEEPING;
    pg_control_hand_back(&ring, false);
    assert_int_equal(ring.asleep, LAYOUT_SLEEPING);
    pg_control_hand_back(&ring, true);
    assert_int_equal(ring.asleep, LAYOUT_AWAKE);
    assert_int_equal(ring.bell, 9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wake_before_sleep_is_not_lost),
        cmocka_unit_test(awake_owner_is_not_woken),
        cmocka_unit_test(resting_owner_is_not_woken),
        cmocka_unit_test(no_owner_sleeps_behind_a_waiter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
