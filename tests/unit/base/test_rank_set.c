/* SPDX-License-Identifier: MIT */
/* Sets of ranks: the first and the last rank, and the visit in order. */
#include "base/rank_set.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void visit_is_in_order(void **state)
{
    static const int ranks[] = {63, 0, 255, 31, 64, 32, 1};
    static const int sorted[] = {0, 1, 31, 32, 63, 64, 255};
    struct rank_set set = rank_set_none;
    int visited = 0;
    (void)state;
    assert_true(rank_set_empty(set));
    assert_int_equal(rank_set_next(set, -1), -1);
    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++)
        rank_set_add(&set, ranks[i]);
    for (int r = rank_set_next(set, -1); r >= 0; r = rank_set_next(set, r))
        assert_int_equal(r, sorted[visited++]);
    assert_int_equal(visited, 7);
    assert_int_equal(rank_set_count(set), 7);
    rank_set_remove(&set, 63);
    rank_set_remove(&set, 255);
    assert_false(rank_set_has(set, 63));
    assert_int_equal(rank_set_next(set, 32), 64);
    assert_int_equal(rank_set_next(set, 64), -1);
}

static void all_of_every_size(void **state)
{
    (void)state;
    for (int size = 0; size <= WORLD_RANKS; size++) {
        const struct rank_set all = rank_set_all(size);
        assert_int_equal(rank_set_count(all), size);
        assert_true(size == 0 || rank_set_has(all, size - 1));
        assert_true(size == WORLD_RANKS || !rank_set_has(all, size));
    }
}

static void union_and_difference(void **state)
{
    const struct rank_set low = rank_set_all(40), high = rank_set_minus(rank_set_all(140), low);
    (void)state;
    assert_int_equal(rank_set_next(high, -1), 40);
    assert_true(rank_set_equal(rank_set_union(low, high), rank_set_all(140)));
    assert_false(rank_set_equal(low, rank_set_all(41)));
    assert_false(rank_set_equal(rank_set_all(41), low));
    assert_true(rank_set_empty(rank_set_minus(low, rank_set_all(40))));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(visit_is_in_order),
        cmocka_unit_test(all_of_every_size),
        cmocka_unit_test(union_and_difference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
