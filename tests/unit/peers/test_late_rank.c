/* SPDX-License-Identifier: MIT */
/* Which rank a time-out names, by what the ranks say of whom they wait for. */
#include "base/deadline.h"
#include "peers/peers_internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

enum { RANKS = 4, OWN = 3 };

static struct layout_arena arenas[RANKS];

/* Each rank has said `ages_ms` ago that it waits for awaits[rank]; -1: for none. */
static int late(const int awaits[RANKS], const int ages_ms[RANKS], int peer)
{
    struct peers *peers = calloc(1, sizeof *peers);
    const uint32_t now_ms = (uint32_t)(deadline_now() / 1000000);
    assert_non_null(peers);
    peers->size = RANKS;
    peers->rank = OWN;
    for (int r = 0; r < RANKS; r++) {
        arenas[r].awaits = (uint32_t)(awaits[r] + 1);
        arenas[r].awaits_ms = now_ms - (uint32_t)ages_ms[r];
        peers->arenas[r] = &arenas[r];
    }
    const int rank = peers_late_rank(peers, peer);
    free(peers);
    return rank;
}

static void follows(void **state)
{
    const int none[] = {-1, -1, -1, 0}, chain[] = {1, 2, -1, 0}, circle[] = {1, 0, -1, 0},
              own[] = {1, OWN, -1, 0}, fresh[RANKS] = {0};
    (void)state;
    assert_int_equal(late(none, fresh, 0), 0);
    assert_int_equal(late(chain, fresh, 0), 2);
    assert_int_equal(late(circle, fresh, 0), 0);
    assert_int_equal(late(own, fresh, 0), 0);
}

/* A rank that was stopped between two looks of its watcher: what it awaited came long ago. */
static void stands_still(void **state)
{
    const int awaits[] = {1, -1, -1, 0}, chain[] = {1, 2, -1, 0};
    const int first[] = {3000, 0, 0, 0}, second[] = {20, 3000, 0, 0};
    (void)state;
    assert_int_equal(late(awaits, first, 0), 0);
    assert_int_equal(late(chain, second, 0), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(follows), cmocka_unit_test(stands_still)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
