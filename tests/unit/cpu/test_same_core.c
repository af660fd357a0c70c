/* SPDX-License-Identifier: MIT */
/* Which ranks share a core, and when a waiting rank yields to them. */
#include "base/order.h"
#include "peers/peers_internal.h"

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
    struct peers peers = {.size = RANKS, .oversubscribed = true, .same_core.ranks = rank_set_of(2)};
    uint32_t *words[RANKS];
    for (int r = 0; r < RANKS; r++) {
        peers.arenas[r] = &arenas[r];
        words[r] = &peers.arenas[r]->small_messages[1].header.number;
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
        assert_int_equal(same_core_wanted(&peers, 1, words[1], VALUE), cases[i].wanted);
    }
    *words[2] = 0; /* of the next round of numbers */
    assert_false(same_core_wanted(&peers, 1, words[1], UINT32_MAX));
    *words[2] = UINT32_MAX;
    assert_true(same_core_wanted(&peers, 1, words[1], 0));
    *words[2] = VALUE;
    peers.same_core.ranks = rank_set_none; /* alone */
    assert_false(same_core_wanted(&peers, 1, words[1], VALUE));
    peers.same_core.ranks = rank_set_minus(rank_set_all(RANKS), rank_set_of(0)); /* not known */
    assert_true(same_core_wanted(&peers, 1, words[1], VALUE));
    peers.same_core.ranks = rank_set_of(2);
    peers.oversubscribed = false;
    assert_true(same_core_wanted(&peers, 1, words[1], VALUE));
    peers.oversubscribed = true;
    peers.ranks.sparse = true; /* not all arenas are mapped whole */
    assert_true(same_core_wanted(&peers, 1, words[1], VALUE));
}

/* All ranks but the last, ours, are words in memory. */
static void peers_make(struct peers *peers)
{
    *peers = (struct peers){.rank = RANKS - 1, .size = RANKS, .oversubscribed = true};
    for (int r = 0; r < RANKS; r++) {
        peers->arenas[r] = calloc(1, sizeof *peers->arenas[r]);
        assert_non_null(peers->arenas[r]);
    }
    peers->own = peers->arenas[peers->rank];
}

static void peers_drop(struct peers *peers)
{
    for (int r = 0; r < RANKS; r++)
        free(peers->arenas[r]);
}

static void test_look(void **state)
{
    (void)state;
    struct peers peers;
    const struct rank_set same = rank_set_union(rank_set_of(0), rank_set_of(2));
    peers_make(&peers);
    /* The kernel may move this thread between the two calls, but not for ever. */
    for (int i = 0; i < TRIES && !rank_set_equal(peers.same_core.ranks, same); i++) {
        const uint32_t core = (uint32_t)sched_getcpu() + 1;
        order_store_relaxed_u32(&peers.arenas[0]->core, core);
        order_store_relaxed_u32(&peers.arenas[1]->core, core + 1);
        order_store_relaxed_u32(&peers.arenas[2]->core, core);
        peers.same_core.look_at = 0;
        same_core_update(&peers, MS);
    }
    assert_true(rank_set_equal(peers.same_core.ranks, same));
    assert_true(order_load_relaxed_u32(&peers.own->core) > 0);

    /* Not again within a millisecond. */
    peers.same_core.ranks = rank_set_none;
    order_store_relaxed_u32(&peers.own->core, 0);
    same_core_update(&peers, MS + MS / 2);
    assert_int_equal(order_load_relaxed_u32(&peers.own->core), 0);
    same_core_update(&peers, 2 * MS);
    assert_true(order_load_relaxed_u32(&peers.own->core) > 0);
    peers_drop(&peers);
}

static void test_cores_enough(void **state)
{
    (void)state;
    struct peers peers;
    peers_make(&peers);
    peers.oversubscribed = false;
    for (int64_t now = MS; now < 20 * MS; now += MS)
        same_core_update(&peers, now);
    assert_int_equal(order_load_relaxed_u32(&peers.own->core), 0);
    peers_drop(&peers);
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
