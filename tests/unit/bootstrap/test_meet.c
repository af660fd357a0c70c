/* SPDX-License-Identifier: MIT */
/* Ranks find each other though a key goes between the store's wait for it and its answer; a leader
 * whose ranks disagree tells those who come, within its time-out. */
#include "bootstrap/meet.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { SIZE = 2, TIMEOUT_MS = 60000 };

static tutti_store_t *memory;
static tutti_store_t *odd; /* a view of it */
static int empty_answers; /* that the follower's gets of "join" keys still give: its thread alone */
static int gets;
static int64_t longest_ms; /* that the leader would wait */

static enum tutti_status set(void *context, const char *key, const void *value, size_t size)
{
    (void)context;
    return tutti_store_set(memory, key, value, size);
}

/* What the tcp store's server says of a key that is deleted behind the client's wait. */
static enum tutti_status get(void *context, const char *key, int64_t timeout_ms, void *value,
                             size_t capacity, size_t *size)
{
    enum tutti_status status = tutti_store_get(memory, key, timeout_ms, value, capacity, size);
    (void)context;
    longest_ms = timeout_ms > longest_ms ? timeout_ms : longest_ms;
    if (status == TUTTI_OK && strstr(key, "/join/") && gets++ < empty_answers)
        *size = 0;
    return status;
}

static enum tutti_status wait(void *context, const char *const *keys, size_t count,
                              int64_t timeout_ms)
{
    (void)context;
    longest_ms = timeout_ms > longest_ms ? timeout_ms : longest_ms;
    return tutti_store_wait(memory, keys, count, timeout_ms);
}

static enum tutti_status add(void *context, const char *key, int64_t amount, int64_t *result)
{
    (void)context;
    return tutti_store_add(memory, key, amount, result);
}

static enum tutti_status check(void *context, const char *const *keys, size_t count, bool *exists)
{
    (void)context;
    return tutti_store_check(memory, keys, count, exists);
}

static enum tutti_status compare_set(void *context, const char *key, const void *expected,
                                     size_t expected_size, const void *desired, size_t desired_size,
                                     void *value, size_t capacity, size_t *size)
{
    (void)context;
    return tutti_store_compare_set(memory, key, expected, expected_size, desired, desired_size,
                                   value, capacity, size);
}

static enum tutti_status delete_key(void *context, const char *key, bool *deleted)
{
    (void)context;
    return tutti_store_delete(memory, key, deleted);
}

static enum tutti_status num_keys(void *context, int64_t *count)
{
    (void)context;
    return tutti_store_num_keys(memory, count);
}

static const struct tutti_store_ops ops = {
    .struct_size = sizeof(struct tutti_store_ops),
    .set = set,
    .get = get,
    .wait = wait,
    .add = add,
    .check = check,
    .compare_set = compare_set,
    .delete_key = delete_key,
    .num_keys = num_keys,
};

/* The record of rank 0 is 0, of rank 1 is 10... *given: of all, or NULL. */
static enum tutti_status meet_as(tutti_store_t *store, const char *name, int rank, int size,
                                 int64_t timeout_ms, struct meeting *meeting, int *given)
{
    const int own = 10 * rank;
    int records[SIZE + 1];
    const struct meet_call call = {
        .store = store,
        .name = name,
        .rank = rank,
        .size = size,
        .timeout_ms = timeout_ms,
        .record = &own,
        .record_bytes = sizeof own,
        .records = given ? given : records,
    };
    return meet(&call, meeting);
}

static int follower_records[SIZE];

static void *follow(void *argument)
{
    static enum tutti_status status;
    status = meet_as(odd, "gone", 1, SIZE, TIMEOUT_MS, argument, follower_records);
    return &status;
}

static void a_key_that_is_gone_is_no_other_version(void **state)
{
    int records[SIZE];
    struct meeting mine, theirs;
    pthread_t thread;
    void *result;
    (void)state;
    assert_int_equal(tutti_store_open("memory:meet", TIMEOUT_MS, &memory), TUTTI_OK);
    assert_int_equal(tutti_store_from_ops(&ops, NULL, &odd), TUTTI_OK);
    for (empty_answers = 0; empty_answers < 3; empty_answers++) {
        gets = 0;
        assert_int_equal(pthread_create(&thread, NULL, follow, &theirs), 0);
        assert_int_equal(meet_as(memory, "gone", 0, SIZE, TIMEOUT_MS, &mine, records), TUTTI_OK);
        assert_int_equal(pthread_join(thread, &result), 0);
        assert_int_equal(*(enum tutti_status *)result, TUTTI_OK);
        assert_int_equal(mine.generation, theirs.generation);
        assert_memory_equal(mine.nonce, theirs.nonce, sizeof mine.nonce);
        assert_true(records[0] == 0 && records[1] == 10);
        assert_memory_equal(records, follower_records, sizeof records);
        assert_true(gets > empty_answers);
    }
    tutti_store_close(odd);
    tutti_store_close(memory);
}

static void *follow_others(void *argument)
{
    static enum tutti_status status;
    status = meet_as(memory, "sizes", 1, SIZE + 1, TIMEOUT_MS, argument, NULL);
    return &status;
}

/* The third rank, of which the second tells, does not come. */
static void a_disagreement_is_told_within_the_time_out(void **state)
{
    enum { SHORT_MS = 500 };
    struct meeting mine, theirs;
    tutti_store_t *store;
    pthread_t thread;
    void *result;
    (void)state;
    assert_int_equal(tutti_store_open("memory:sizes", TIMEOUT_MS, &memory), TUTTI_OK);
    assert_int_equal(pthread_create(&thread, NULL, follow_others, &theirs), 0);
    assert_int_equal(tutti_store_from_ops(&ops, NULL, &store), TUTTI_OK);
    longest_ms = 0;
    assert_int_equal(meet_as(store, "sizes", 0, SIZE, SHORT_MS, &mine, NULL), TUTTI_ERR_MISMATCH);
    assert_in_range(longest_ms, 1, SHORT_MS);
    assert_int_equal(pthread_join(thread, &result), 0);
    assert_int_equal(*(enum tutti_status *)result, TUTTI_ERR_MISMATCH);
    tutti_store_close(store);
    tutti_store_close(memory);
}

/* Another one may have those that it waits for. */
static void a_leader_that_nobody_joins_is_asked_for_another(void **state)
{
    struct meeting meeting;
    (void)state;
    assert_int_equal(tutti_store_open("memory:leaders", TIMEOUT_MS, &memory), TUTTI_OK);
    assert_int_equal(meet_as(memory, "leaders", 0, SIZE, 1, &meeting, NULL), TUTTI_ERR_TIMEOUT);
    assert_non_null(strstr(tutti_last_error(), "rank 1 did not come"));
    assert_non_null(strstr(tutti_last_error(), "no other process also has rank 0"));
    tutti_store_close(memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_key_that_is_gone_is_no_other_version),
        cmocka_unit_test(a_disagreement_is_told_within_the_time_out),
        cmocka_unit_test(a_leader_that_nobody_joins_is_asked_for_another),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
