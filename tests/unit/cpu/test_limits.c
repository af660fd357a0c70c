/* SPDX-License-Identifier: MIT */
/* From which block on the kernel copies between the ranks' processes. */
#include "cpu/choose.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { QUEUE = 119 << 10 };

static struct cpu_limits limits_of(int ranks, bool crowded, size_t queue_bytes, bool always)
{
    static const struct choice_rules rules = {.paths.all = true};
    struct cpu_limits limits;
    cpu_limits_set(&rules, ranks, crowded, &limits);
    cpu_limits_set_direct(&limits, crowded, queue_bytes, always);
    return limits;
}

/* Such ranks wait for a turn of the scheduler only if a block is longer than the places. */
static void shared_cores_copy_what_is_longer_than_the_places(void **state)
{
    (void)state;
    const struct cpu_limits limits = limits_of(16, true, QUEUE, false);
    assert_int_equal(limits.direct_bytes[DIRECT_GATHER], QUEUE + 1);
    assert_int_equal(limits.direct_bytes[DIRECT_SCATTER], QUEUE + 1);
    assert_true(limits.direct_bytes[DIRECT_OTHER] == SIZE_MAX);
}

static void places_of_a_small_arena_do_not_count(void **state)
{
    (void)state;
    const struct cpu_limits limits = limits_of(16, true, 4 << 10, false);
    assert_int_equal(limits.direct_bytes[DIRECT_GATHER], 64 << 10);
}

static void few_ranks_that_share_cores_never_do(void **state)
{
    (void)state;
    const struct cpu_limits limits = limits_of(8, true, QUEUE, false);
    assert_true(limits.direct_bytes[DIRECT_GATHER] == SIZE_MAX);
}

static void a_core_each_or_a_request_ignores_the_places(void **state)
{
    (void)state;
    struct cpu_limits limits = limits_of(16, false, QUEUE, false);
    assert_int_equal(limits.direct_bytes[DIRECT_GATHER], 64 << 10);
    assert_int_equal(limits.direct_bytes[DIRECT_SCATTER], 32 << 10);
    limits = limits_of(16, true, QUEUE, true);
    assert_int_equal(limits.direct_bytes[DIRECT_GATHER], limits.offered_bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shared_cores_copy_what_is_longer_than_the_places),
        cmocka_unit_test(places_of_a_small_arena_do_not_count),
        cmocka_unit_test(few_ranks_that_share_cores_never_do),
        cmocka_unit_test(a_core_each_or_a_request_ignores_the_places),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
