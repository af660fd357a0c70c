/* SPDX-License-Identifier: MIT */
#include "store_suite.h"

#include <inttypes.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { PLENTY_MS = 60000, THREADS = 4, ROUNDS = 100 };

static const struct suite_kind *kind;

struct handles {
    tutti_store_t *a, *b; /* two on one store */
};

static void ok(enum tutti_status status)
{
    if (status != TUTTI_OK)
        fail_msg("%s: %s", tutti_status_name(status), tutti_last_error());
}

static int setup(void **state)
{
    struct handles *handles = calloc(1, sizeof *handles);
    kind->begin();
    handles->a = kind->open();
    handles->b = kind->open();
    if (!handles->a || !handles->b)
        fail_msg("open: %s", tutti_last_error());
    *state = handles;
    return 0;
}

static int teardown(void **state)
{
    struct handles *handles = *state;
    tutti_store_close(handles->b);
    tutti_store_close(handles->a);
    kind->end();
    free(handles);
    return 0;
}

/* ---- threads and processes --------------------------------------------------------------------
 */

struct call {
    int (*fn)(void *context, int index);
    void *context;
    int index, result;
};

static void *run_call(void *argument)
{
    struct call *call = argument;
    call->result = call->fn(call->context, call->index);
    if (call->result)
        print_message("thread %d: %s\n", call->index, tutti_last_error());
    return NULL;
}

int suite_threads(int count, int (*fn)(void *context, int index), void *context)
{
    struct call *calls = calloc((size_t)count, sizeof *calls);
    pthread_t *threads = calloc((size_t)count, sizeof *threads);
    int failures = 0;
    for (int i = 0; i < count; i++) {
        calls[i] = (struct call){fn, context, i, 0};
        if (pthread_create(&threads[i], NULL, run_call, &calls[i]) != 0)
            abort();
    }
    for (int i = 0; i < count; i++) {
        pthread_join(threads[i], NULL);
        failures += calls[i].result;
    }
    free(threads);
    free(calls);
    return failures;
}

int suite_processes(int count, int (*fn)(void *context, int index), void *context)
{
    pid_t children[64];
    int failures = 0, status;
    fflush(NULL);
    for (int i = 0; i < count; i++) {
        children[i] = fork();
        if (children[i] == 0) {
            int result = fn(context, i);
            if (result)
                fprintf(stderr, "process %d: %s\n", i, tutti_last_error());
            _exit(result);
        }
    }
    for (int i = 0; i < count; i++)
        if (waitpid(children[i], &status, 0) < 0 || status != 0)
            failures++;
    return failures;
}

/* ---- values -----------------------------------------------------------------------------------
 */

static void a_value_is_what_was_set(void **state)
{
    struct handles *h = *state;
    char value[64];
    size_t size;
    ok(tutti_store_set(h->a, "key", "one", 3));
    ok(tutti_store_get(h->b, "key", PLENTY_MS, value, sizeof value, &size));
    assert_int_equal(size, 3);
    assert_memory_equal(value, "one", 3);
    ok(tutti_store_set(h->b, "key", "other\0bytes", 11));
    ok(tutti_store_get(h->a, "key", PLENTY_MS, value, sizeof value, &size));
    assert_int_equal(size, 11);
    assert_memory_equal(value, "other\0bytes", 11);
}

static void empty_keys_and_values_are_fine(void **state)
{
    struct handles *h = *state;
    size_t size = 9;
    ok(tutti_store_set(h->a, "", "", 0));
    ok(tutti_store_get(h->b, "", PLENTY_MS, NULL, 0, &size));
    assert_int_equal(size, 0);
    ok(tutti_store_set(h->a, "-/odd", NULL, 0));
    ok(tutti_store_get(h->b, "-/odd", PLENTY_MS, NULL, 0, NULL));
    ok(tutti_store_set(h->a, "refcount/", "x", 1));
    ok(tutti_store_get(h->b, "refcount/", PLENTY_MS, &size, 1, NULL));
}

static void large_values_come_whole(void **state)
{
    struct handles *h = *state;
    size_t bytes = (size_t)8 << 20, size;
    unsigned char *value = malloc(bytes), *back = malloc(bytes);
    for (size_t i = 0; i < bytes; i++)
        value[i] = (unsigned char)(i * 2654435761u >> 13);
    ok(tutti_store_set(h->a, "large", value, bytes));
    ok(tutti_store_get(h->b, "large", PLENTY_MS, back, bytes, &size));
    assert_int_equal(size, bytes);
    assert_memory_equal(value, back, bytes);
    assert_int_equal(tutti_store_set(h->a, "large", value, bytes + 1), TUTTI_ERR_INVALID);
    free(value);
    free(back);
}

static void a_short_buffer_is_told_the_length(void **state)
{
    struct handles *h = *state;
    char value[5] = "....";
    size_t size;
    ok(tutti_store_set(h->a, "key", "0123456789", 10));
    assert_int_equal(tutti_store_get(h->b, "key", PLENTY_MS, value, 4, &size), TUTTI_ERR_INVALID);
    assert_int_equal(size, 10);
    assert_int_equal(value[4], 0);
    /* The handle is still usable. */
    ok(tutti_store_set(h->b, "key", "0", 1));
    ok(tutti_store_get(h->b, "key", PLENTY_MS, value, 4, &size));
    assert_int_equal(size, 1);
}

/* ---- waiting ----------------------------------------------------------------------------------
 */

static void an_absent_key_times_out_and_is_named(void **state)
{
    struct handles *h = *state;
    char value[4];
    assert_int_equal(tutti_store_get(h->a, "absent", 10, value, 4, NULL), TUTTI_ERR_TIMEOUT);
    assert_non_null(strstr(tutti_last_error(), "tutti_store_get: key"));
    assert_non_null(strstr(tutti_last_error(), "absent"));
    const char *keys[] = {"there", "absent"};
    ok(tutti_store_set(h->a, "there", "", 0));
    assert_int_equal(tutti_store_wait(h->b, keys, 2, 10), TUTTI_ERR_TIMEOUT);
    assert_non_null(strstr(tutti_last_error(), "tutti_store_wait: key"));
    assert_non_null(strstr(tutti_last_error(), "absent\" (of 2)"));
    /* A handle whose wait timed out still works, and the wait is not left behind. */
    ok(tutti_store_set(h->b, "absent", "", 0));
    ok(tutti_store_wait(h->b, keys, 2, PLENTY_MS));
}

/* Thread 0 waits on handle a; thread 1 uses the same handle and then sets what 0 waits for. */
static int wait_and_work(void *context, int index)
{
    struct handles *h = context;
    const char *keys[] = {"later/0", "later/1", "later/0"};
    int64_t sum;
    if (index == 0)
        return tutti_store_wait(h->a, keys, 3, PLENTY_MS) != TUTTI_OK;
    for (int i = 0; i < 20; i++)
        if (tutti_store_add(h->a, "work", 1, &sum) != TUTTI_OK)
            return 1;
    return tutti_store_set(h->a, "later/1", "", 0) != TUTTI_OK ||
           tutti_store_set(h->a, "later/0", "", 0) != TUTTI_OK;
}

static void a_waiter_blocks_nobody(void **state)
{
    assert_int_equal(suite_threads(2, wait_and_work, *state), 0);
}

/* All wait for the keys of all, on shared handles. */
static int set_and_wait(void *context, int index)
{
    struct handles *h = context;
    char texts[32][20];
    const char *keys[32];
    for (int i = 0; i < 32; i++) {
        snprintf(texts[i], sizeof texts[i], "many/%d", i);
        keys[i] = texts[i];
    }
    for (int i = index; i < 32; i += THREADS)
        if (tutti_store_set(h->b, keys[i], &i, sizeof i) != TUTTI_OK)
            return 1;
    return tutti_store_wait(index % 2 ? h->a : h->b, keys, 32, PLENTY_MS) != TUTTI_OK;
}

static void many_wait_for_many(void **state)
{
    assert_int_equal(suite_threads(THREADS, set_and_wait, *state), 0);
}

/* ---- the other operations ---------------------------------------------------------------------
 */

static void counters_add_up(void **state)
{
    struct handles *h = *state;
    int64_t sum;
    char text[32];
    size_t size;
    ok(tutti_store_add(h->a, "count", 5, &sum));
    assert_int_equal(sum, 5);
    ok(tutti_store_add(h->b, "count", -12, &sum));
    assert_int_equal(sum, -7);
    ok(tutti_store_get(h->a, "count", PLENTY_MS, text, sizeof text, &size));
    assert_int_equal(size, 2);
    assert_memory_equal(text, "-7", 2);
    ok(tutti_store_set(h->a, "count", "41", 2));
    ok(tutti_store_add(h->b, "count", 1, &sum));
    assert_int_equal(sum, 42);
    ok(tutti_store_set(h->a, "least", "-9223372036854775808", 20));
    ok(tutti_store_add(h->b, "least", 0, &sum));
    assert_true(sum == INT64_MIN);
}

static void what_is_no_number_cannot_be_added_to(void **state)
{
    struct handles *h = *state;
    int64_t sum;
    static const char *const texts[] = {"one", "1x", "-", "9223372036854775808", "+1", " 1"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        ok(tutti_store_set(h->a, "text", texts[i], strlen(texts[i])));
        assert_int_equal(tutti_store_add(h->a, "text", 1, &sum), TUTTI_ERR_INVALID);
    }
    ok(tutti_store_set(h->a, "most", "9223372036854775807", 19));
    assert_int_equal(tutti_store_add(h->b, "most", 1, &sum), TUTTI_ERR_INVALID);
    assert_non_null(strstr(tutti_last_error(), "most"));
    ok(tutti_store_add(h->b, "most", -1, &sum));
}

static int add_often(void *context, int index)
{
    struct handles *h = context;
    int64_t sum;
    for (int i = 0; i < ROUNDS; i++)
        if (tutti_store_add(index % 2 ? h->a : h->b, "shared", 1, &sum) != TUTTI_OK)
            return 1;
    return 0;
}

static void additions_are_atomic(void **state)
{
    struct handles *h = *state;
    int64_t sum;
    assert_int_equal(suite_threads(THREADS, add_often, h), 0);
    ok(tutti_store_add(h->a, "shared", 0, &sum));
    assert_int_equal(sum, THREADS * ROUNDS);
}

static void check_asks_for_all_keys(void **state)
{
    struct handles *h = *state;
    const char *keys[] = {"x", "y"};
    bool exists = true;
    ok(tutti_store_check(h->a, keys, 2, &exists));
    assert_false(exists);
    ok(tutti_store_set(h->b, "x", "", 0));
    ok(tutti_store_check(h->a, keys, 2, &exists));
    assert_false(exists);
    ok(tutti_store_set(h->b, "y", "", 0));
    ok(tutti_store_check(h->a, keys, 2, &exists));
    assert_true(exists);
    ok(tutti_store_check(h->a, NULL, 0, &exists));
    assert_true(exists);
    ok(tutti_store_wait(h->a, NULL, 0, 1));
}

static void expect_compare_set(struct handles *h, const char *expected, const char *desired,
                               const char *after)
{
    char value[32];
    size_t size;
    ok(tutti_store_compare_set(h->a, "cs", expected, strlen(expected), desired, strlen(desired),
                               value, sizeof value, &size));
    assert_int_equal(size, strlen(after));
    assert_memory_equal(value, after, size);
}

static void compare_set_sets_what_compares(void **state)
{
    struct handles *h = *state;
    bool exists;
    const char *key = "cs";
    expect_compare_set(h, "expected", "new", "expected"); /* absent: as PyTorch tells it */
    ok(tutti_store_check(h->b, &key, 1, &exists));
    assert_false(exists);
    expect_compare_set(h, "", "first", "first");
    expect_compare_set(h, "wrong", "second", "first");
    expect_compare_set(h, "", "second", "first");
    expect_compare_set(h, "first", "second", "second");
    expect_compare_set(h, "second", "", "");
    expect_compare_set(h, "", "third", "third");
}

/* One of all wins. */
static int try_to_lead(void *context, int index)
{
    struct handles *h = context;
    char mine = (char)('a' + index), value;
    int64_t sum;
    if (tutti_store_compare_set(h->a, "leader", NULL, 0, &mine, 1, &value, 1, NULL) != TUTTI_OK)
        return 1;
    return value == mine && tutti_store_add(h->b, "leaders", 1, &sum) != TUTTI_OK;
}

static void compare_set_is_atomic(void **state)
{
    struct handles *h = *state;
    int64_t sum;
    assert_int_equal(suite_threads(THREADS, try_to_lead, h), 0);
    ok(tutti_store_add(h->a, "leaders", 0, &sum));
    assert_int_equal(sum, 1);
}

static void a_deleted_key_is_gone(void **state)
{
    struct handles *h = *state;
    bool deleted;
    char value[8];
    ok(tutti_store_delete(h->a, "gone", &deleted));
    assert_false(deleted);
    ok(tutti_store_set(h->a, "gone", "v", 1));
    ok(tutti_store_delete(h->b, "gone", &deleted));
    assert_true(deleted);
    assert_int_equal(tutti_store_get(h->a, "gone", 10, value, 8, NULL), TUTTI_ERR_TIMEOUT);
    ok(tutti_store_delete(h->b, "gone", &deleted));
    assert_false(deleted);
    ok(tutti_store_set(h->b, "gone", "w", 1));
    ok(tutti_store_get(h->a, "gone", PLENTY_MS, value, 8, NULL));
    assert_int_equal(value[0], 'w');
}

static void keys_are_counted(void **state)
{
    struct handles *h = *state;
    int64_t before, after;
    ok(tutti_store_num_keys(h->a, &before));
    ok(tutti_store_set(h->a, "1", "", 0));
    ok(tutti_store_set(h->b, "1", "", 0));
    ok(tutti_store_add(h->b, "2", 1, NULL));
    ok(tutti_store_num_keys(h->b, &after));
    assert_int_equal(after - before, 2);
    ok(tutti_store_delete(h->a, "1", NULL));
    ok(tutti_store_num_keys(h->b, &after));
    assert_int_equal(after - before, 1);
}

static void wrong_arguments_are_refused(void **state)
{
    struct handles *h = *state;
    static char key[8 * 1024 + 2];
    bool exists;
    memset(key, 'k', sizeof key - 1);
    const char *keys[] = {"x", NULL};
    assert_int_equal(tutti_store_set(NULL, "x", "", 0), TUTTI_ERR_INVALID);
    assert_int_equal(tutti_store_set(h->a, NULL, "", 0), TUTTI_ERR_INVALID);
    assert_int_equal(tutti_store_set(h->a, "x", NULL, 1), TUTTI_ERR_INVALID);
    assert_int_equal(tutti_store_set(h->a, key, "", 0), TUTTI_ERR_INVALID);
    assert_int_equal(tutti_store_wait(h->a, keys, 2, 1), TUTTI_ERR_INVALID);
    assert_int_equal(tutti_store_wait(h->a, NULL, 1, 1), TUTTI_ERR_INVALID);
    assert_int_equal(tutti_store_check(h->a, keys, 1, NULL), TUTTI_ERR_INVALID);
    assert_int_equal(tutti_store_check(h->a, keys, 2, &exists), TUTTI_ERR_INVALID);
    assert_int_equal(tutti_store_num_keys(h->a, NULL), TUTTI_ERR_INVALID);
}

static int use_inherited(void *context, int index)
{
    struct handles *h = context;
    tutti_store_t *view;
    (void)index;
    if (tutti_store_set(h->a, "x", "", 0) != TUTTI_ERR_INVALID ||
        tutti_store_prefix(h->a, "x", &view) != TUTTI_ERR_INVALID)
        return 1;
    tutti_store_close(h->a); /* frees the child's copy and nothing else */
    return 0;
}

static void a_forked_child_owns_nothing(void **state)
{
    struct handles *h = *state;
    assert_int_equal(suite_processes(1, use_inherited, h), 0);
    ok(tutti_store_set(h->a, "still", "", 0));
    ok(tutti_store_get(h->b, "still", PLENTY_MS, NULL, 0, NULL));
}

static int meet(void *context, int index)
{
    int all[THREADS];
    int64_t sum = 0;
    (void)context;
    tutti_store_t *store = kind->open();
    if (!store)
        return 1;
    struct tutti_exchanger exchanger = {.struct_size = sizeof exchanger,
                                        .store = store,
                                        .prefix = "g",
                                        .rank = index,
                                        .size = THREADS};
    for (int round = 0; round < 10; round++) {
        int mine = index * 100 + round;
        if (tutti_exchanger_all_gather(&exchanger, &mine, sizeof mine, all, PLENTY_MS) != TUTTI_OK)
            return 1;
        for (int rank = 0; rank < THREADS; rank++)
            if (all[rank] != rank * 100 + round)
                return 1;
    }
    if (tutti_store_add(store, "sum", index, &sum) != TUTTI_OK ||
        tutti_exchanger_barrier(&exchanger, PLENTY_MS) != TUTTI_OK ||
        tutti_store_add(store, "sum", 0, &sum) != TUTTI_OK)
        return 1;
    tutti_store_close(store);
    return sum != THREADS * (THREADS - 1) / 2;
}

static void threads_meet(void **state)
{
    (void)state;
    assert_int_equal(suite_threads(THREADS, meet, NULL), 0);
}

static void processes_meet(void **state)
{
    (void)state;
    if (!kind->processes)
        skip();
    assert_int_equal(suite_processes(THREADS, meet, NULL), 0);
}

int store_suite_run(const char *name, const struct suite_kind *under_test)
{
#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(a_value_is_what_was_set),
        TEST(empty_keys_and_values_are_fine),
        TEST(large_values_come_whole),
        TEST(a_short_buffer_is_told_the_length),
        TEST(an_absent_key_times_out_and_is_named),
        TEST(a_waiter_blocks_nobody),
        TEST(many_wait_for_many),
        TEST(counters_add_up),
        TEST(what_is_no_number_cannot_be_added_to),
        TEST(additions_are_atomic),
        TEST(check_asks_for_all_keys),
        TEST(compare_set_sets_what_compares),
        TEST(compare_set_is_atomic),
        TEST(a_deleted_key_is_gone),
        TEST(keys_are_counted),
        TEST(wrong_arguments_are_refused),
        TEST(a_forked_child_owns_nothing),
        TEST(threads_meet),
        TEST(processes_meet),
    };
#undef TEST
    kind = under_test;
    return cmocka_run_group_tests_name(name, tests, NULL, NULL);
}
