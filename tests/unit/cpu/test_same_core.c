/* SPDX-License-Identifier: MIT */
/* Which ranks share a core, and when a waiting rank yields to them. */
#include "base/order.h"
#include "cpu/transport/group.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

enum { RANKS = 4, MS = 1000000, TRIES = 1000 };

/* Of ranks 0 and 2 on one core and 1 and 3 elsewhere, as rank 0 sees it, which waits for rank 1. */
static void test_wanted(void **state)
{
    (void)state;
    enum { VALUE = 7 };
    static struct layout_arena arenas[RANKS];
    struct cpu_group group = {
        .size = RANKS, .oversubscribed = true, .same_core.ranks = rank_set_of(2)};
    uint32_t *words[RANKS];
    for (int r = 0; r < RANKS; r++) {
        group.arenas[r] = &arenas[r];
        words[r] = &group.arenas[r]->small_messages[1].header.number;
        *words[r] = VALUE - 1;
    }
    static const struct {
        uint32_t mate, elsewhere;
        bool wanted;
    } cases[] = {
        {VALUE - 1, VALUE - 1, true},  /* nobody has come */
        {VALUE - 1, VALUE, true},      /* the mate has not */
        {VALUE, VALUE - 1, false},     /* it has: rank 3 has a core of its own */
        {VALUE + 1, VALUE - 1, false}, /* and is ahead */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        *words[2] = cases[i].mate;
        *words[3] = cases[i].elsewhere;
        assert_int_equal(same_core_wanted(&group, 1, words[1], VALUE), cases[i].wanted);
    }
    *words[2] = 0; /* of the next round of numbers */
    assert_false(same_core_wanted(&group, 1, words[1], UINT32_MAX));
    *words[2] = UINT32_MAX;
    assert_true(same_core_wanted(&group, 1, words[1], 0));
    *words[2] = VALUE;
    group.same_core.ranks = rank_set_none; /* alone */
    assert_false(same_core_wanted(&group, 1, words[1], VALUE));
    group.same_core.ranks = rank_set_minus(rank_set_all(RANKS), rank_set_of(0)); /* not known */
    assert_true(same_core_wanted(&group, 1, words[1], VALUE));
    group.same_core.ranks = rank_set_of(2);
    group.oversubscribed = false;
    assert_true(same_core_wanted(&group, 1, words[1], VALUE));
    group.oversubscribed = true;
    group.ranks.sparse = true; /* not all arenas are mapped whole */
    assert_true(same_core_wanted(&group, 1, words[1], VALUE));
}

/* A group whose ranks but the last, ours, are words in memory. */
static void group_make(struct cpu_group *group)
{
    *group = (struct cpu_group){.rank = RANKS - 1, .size = RANKS, .oversubscribed = true};
    for (int r = 0; r < RANKS; r++) {
        group->arenas[r] = calloc(1, sizeof *group->arenas[r]);
        assert_non_null(group->arenas[r]);
    }
    group->own = group->arenas[group->rank];
}

static void group_free(struct cpu_group *group)
{
    for (int r = 0; r < RANKS; r++)
        free(group->arenas[r]);
}

static void test_look(void **state)
{
    (void)state;
    struct cpu_group group;
    const struct rank_set same = rank_set_union(rank_set_of(0), rank_set_of(2));
    group_make(&group);
    /* The kernel may move this thread between the two calls, but not for ever. */
    for (int i = 0; i < TRIES && !rank_set_equal(group.same_core.ranks, same); i++) {
        const uint32_t core = (uint32_t)sched_getcpu() + 1;
        order_store_relaxed_u32(&group.arenas[0]->core, core);
        order_store_relaxed_u32(&group.arenas[1]->core, core + 1);
        order_store_relaxed_u32(&group.arenas[2]->core, core);
        group.same_core.look_at = 0;
        same_core_update(&group, MS);
    }
    assert_true(rank_set_equal(group.same_core.ranks, same));
    assert_true(order_load_relaxed_u32(&group.own->core) > 0);

    /* Not again within a millisecond. */
    group.same_core.ranks = rank_set_none;
    order_store_relaxed_u32(&group.own->core, 0);
    same_core_update(&group, MS + MS / 2);
    assert_int_equal(order_load_relaxed_u32(&group.own->core), 0);
    same_core_update(&group, 2 * MS);
    assert_true(order_load_relaxed_u32(&group.own->core) > 0);
    group_free(&group);
}

static void test_cores_enough(void **state)
{
    (void)state;
    struct cpu_group group;
    group_make(&group);
    group.oversubscribed = false;
    for (int64_t now = MS; now < 20 * MS; now += MS)
        same_core_update(&group, now);
    assert_int_equal(order_load_relaxed_u32(&group.own->core), 0);
    group_free(&group);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wanted),
        cmocka_unit_test(test_look),
        cmocka_unit_test(test_cores_enough),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
