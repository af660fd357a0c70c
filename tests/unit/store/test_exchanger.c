/* SPDX-License-Identifier: MIT */
/* All-gather and barrier: what they say of ranks that are late, disagree or make no sense. The
 * suite (store_suite.c) runs them on every kind of store. */
#include "store_suite.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { PLENTY_MS = 60000 };

static tutti_store_t *store;

static int setup(void **state)
{
    (void)state;
    return tutti_store_open("memory:exchanger", 0, &store) != TUTTI_OK;
}

static int teardown(void **state)
{
    (void)state;
    tutti_store_close(store);
    return 0;
}

static struct tutti_exchanger make(int rank, int size)
{
    return (struct tutti_exchanger){.struct_size = sizeof(struct tutti_exchanger),
                                    .store = store,
                                    .prefix = "group/1",
                                    .rank = rank,
                                    .size = size};
}

static void one_rank_meets_itself(void **state)
{
    int mine = 42, all = 0;
    (void)state;
    struct tutti_exchanger exchanger = make(0, 1);
    assert_int_equal(tutti_exchanger_all_gather(&exchanger, &mine, sizeof mine, &all, PLENTY_MS),
                     0);
    assert_int_equal(all, 42);
    assert_int_equal(tutti_exchanger_barrier(&exchanger, PLENTY_MS), 0);
    assert_int_equal(exchanger.sequence, 2);
}

/* Those of the last round alone stay. */
static void keys_are_prefix_sequence_rank(void **state)
{
    const char *keys[] = {"group/1/0/0", "group/1/1/0"};
    int mine = 1, all;
    (void)state;
    struct tutti_exchanger exchanger = make(0, 1);
    for (int round = 0; round < 2; round++) {
        if (round)
            assert_int_equal(tutti_exchanger_barrier(&exchanger, PLENTY_MS), 0);
        else
            assert_int_equal(
                tutti_exchanger_all_gather(&exchanger, &mine, sizeof mine, &all, PLENTY_MS), 0);
        for (int key = 0; key < 2; key++) {
            bool exists = false;
            assert_int_equal(tutti_store_check(store, &keys[key], 1, &exists), 0);
            assert_int_equal(exists, key == round);
        }
    }
}

static void late_ranks_are_named(void **state)
{
    (void)state;
    struct tutti_exchanger here = make(2, 4), there = make(0, 4);
    assert_int_equal(tutti_exchanger_barrier(&there, 5), TUTTI_ERR_TIMEOUT);
    assert_int_equal(tutti_exchanger_barrier(&here, 5), TUTTI_ERR_TIMEOUT);
    assert_non_null(strstr(tutti_last_error(), "2 of 4"));
    assert_non_null(strstr(tutti_last_error(), "rank 1, rank 3 (2 of"));
    assert_int_equal(here.sequence, 1);
    struct tutti_exchanger alone = make(0, 1000);
    alone.prefix = "group/2";
    assert_int_equal(tutti_exchanger_barrier(&alone, 5), TUTTI_ERR_TIMEOUT);
    assert_non_null(strstr(tutti_last_error(), "999 of 1000"));
    assert_non_null(strstr(tutti_last_error(), "..."));
}

static int gather_own_length(void *context, int index)
{
    char value[8] = {0}, all[16];
    (void)context;
    struct tutti_exchanger exchanger = make(index, 2);
    enum tutti_status status =
        tutti_exchanger_all_gather(&exchanger, value, index ? 8 : 4, all, PLENTY_MS);
    return status != TUTTI_ERR_MISMATCH || !strstr(tutti_last_error(), index ? "4" : "8");
}

static int gather_or_barrier(void *context, int index)
{
    char value[8] = {0}, all[16];
    (void)context;
    struct tutti_exchanger exchanger = make(index, 2);
    enum tutti_status status =
        index ? tutti_exchanger_barrier(&exchanger, PLENTY_MS)
              : tutti_exchanger_all_gather(&exchanger, value, 8, all, PLENTY_MS);
    return status != TUTTI_ERR_MISMATCH;
}

static void lengths_that_differ_are_named(void **state)
{
    (void)state;
    assert_int_equal(suite_threads(2, gather_own_length, NULL), 0);
}

enum { MANY = 40 }; /* ranks for which rank 0 reads */

static int gather_many(void *context, int index)
{
    int all[MANY], bad = 0;
    (void)context;
    struct tutti_exchanger exchanger = make(index, MANY);
    for (int round = 0; round < 3 && !bad; round++) {
        const int mine = 1000 * round + index;
        bad = tutti_exchanger_all_gather(&exchanger, &mine, sizeof mine, all, PLENTY_MS) != 0;
        for (int r = 0; r < MANY && !bad; r++)
            bad = all[r] != 1000 * round + r;
    }
    return bad || tutti_exchanger_barrier(&exchanger, PLENTY_MS) != 0;
}

static void many_ranks_read_what_rank_0_hands_on(void **state)
{
    const char *keys[] = {"group/1/2/all", "group/1/2/7", "group/1/3/all"};
    (void)state;
    assert_int_equal(suite_threads(MANY, gather_many, NULL), 0);
    for (int key = 0; key < 3; key++) {
        bool exists = false;
        assert_int_equal(tutti_store_check(store, &keys[key], 1, &exists), 0);
        assert_int_equal(exists, key == 2);
    }
}

static int gather_many_lengths(void *context, int index)
{
    char value[8] = {0}, all[8 * MANY];
    (void)context;
    struct tutti_exchanger exchanger = make(index, MANY);
    return tutti_exchanger_all_gather(&exchanger, value, index == MANY - 1 ? 8 : 4, all,
                                      PLENTY_MS) != TUTTI_ERR_MISMATCH;
}

static void lengths_of_many_ranks_are_compared(void **state)
{
    (void)state;
    assert_int_equal(suite_threads(MANY, gather_many_lengths, NULL), 0);
}

/* It has come, and is stopped or dead. */
static void nobody_needs_what_rank_0_hands_on(void **state)
{
    const int own = 5;
    int all[MANY];
    (void)state;
    for (int r = 0; r < MANY; r++) {
        char key[32];
        snprintf(key, sizeof key, "group/1/0/%d", r);
        if (r != own)
            assert_int_equal(tutti_store_set(store, key, &r, sizeof r), 0);
    }
    struct tutti_exchanger exchanger = make(own, MANY);
    assert_int_equal(tutti_exchanger_all_gather(&exchanger, &own, sizeof own, all, 20), 0);
    for (int r = 0; r < MANY; r++)
        assert_int_equal(all[r], r);
}

static void a_barrier_is_no_all_gather(void **state)
{
    (void)state;
    assert_int_equal(suite_threads(2, gather_or_barrier, NULL), 0);
}

static void nonsense_is_refused(void **state)
{
    char byte = 0;
    (void)state;
    struct tutti_exchanger exchanger = make(2, 2);
    assert_int_equal(tutti_exchanger_barrier(&exchanger, 1), TUTTI_ERR_INVALID);
    exchanger = make(-1, 2);
    assert_int_equal(tutti_exchanger_barrier(&exchanger, 1), TUTTI_ERR_INVALID);
    exchanger = make(0, 0);
    assert_int_equal(tutti_exchanger_barrier(&exchanger, 1), TUTTI_ERR_INVALID);
    exchanger = make(0, 1);
    assert_int_equal(tutti_exchanger_all_gather(&exchanger, NULL, 1, &byte, 1), TUTTI_ERR_INVALID);
    assert_int_equal(tutti_exchanger_all_gather(&exchanger, &byte, 1, NULL, 1), TUTTI_ERR_INVALID);
    exchanger.prefix = NULL;
    assert_int_equal(tutti_exchanger_barrier(&exchanger, 1), TUTTI_ERR_INVALID);
    exchanger = make(0, 1);
    exchanger.struct_size = 3;
    assert_int_equal(tutti_exchanger_barrier(&exchanger, 1), TUTTI_ERR_INVALID);
    assert_int_equal(tutti_exchanger_barrier(NULL, 1), TUTTI_ERR_INVALID);
}

int main(void)
{
#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(one_rank_meets_itself),
        TEST(keys_are_prefix_sequence_rank),
        TEST(late_ranks_are_named),
        TEST(lengths_that_differ_are_named),
        TEST(a_barrier_is_no_all_gather),
        TEST(many_ranks_read_what_rank_0_hands_on),
        TEST(lengths_of_many_ranks_are_compared),
        TEST(nobody_needs_what_rank_0_hands_on),
        TEST(nonsense_is_refused),
    };
#undef TEST
    return cmocka_run_group_tests(tests, NULL, NULL);
}
