/* SPDX-License-Identifier: MIT */
/*
 * A caller's store whose function does not return: a set-up ends at its deadline, with the name of
 * the function, and has said in the log after 5 s what it waits for. The context lives until the
 * function has returned.
 */
#include "tutti/tutti.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { TIMEOUT_MS = 6000, PATIENCE_MS = 60000 };

static int released, closed, reported;

static bool is_set(const int *flag)
{
    return __atomic_load_n(flag, __ATOMIC_ACQUIRE);
}

static bool await(const int *flag)
{
    for (int i = 0; i < PATIENCE_MS && !is_set(flag); i++)
        usleep(1000);
    return is_set(flag);
}

static enum tutti_status stand_still(void *context, const char *key, int64_t amount,
                                     int64_t *result)
{
    (void)context, (void)key, (void)amount;
    if (!await(&released))
        return TUTTI_ERR_SYSTEM;
    *result = 1; /* the caller has gone: this must be the library's own memory */
    return TUTTI_OK;
}

static enum tutti_status set(void *context, const char *key, const void *value, size_t size)
{
    (void)context, (void)key, (void)value, (void)size;
    return TUTTI_OK;
}

static enum tutti_status get(void *context, const char *key, int64_t timeout_ms, void *value,
                             size_t capacity, size_t *size)
{
    (void)context, (void)key, (void)timeout_ms, (void)value, (void)capacity;
    *size = 0;
    return TUTTI_ERR_TIMEOUT;
}

static enum tutti_status wait(void *context, const char *const *keys, size_t count,
                              int64_t timeout_ms)
{
    (void)context, (void)keys, (void)count, (void)timeout_ms;
    return TUTTI_ERR_TIMEOUT;
}

static enum tutti_status check(void *context, const char *const *keys, size_t count, bool *exists)
{
    (void)context, (void)keys, (void)count;
    *exists = false;
    return TUTTI_OK;
}

static enum tutti_status compare_set(void *context, const char *key, const void *expected,
                                     size_t expected_size, const void *desired, size_t desired_size,
                                     void *value, size_t capacity, size_t *size)
{
    (void)context, (void)key, (void)desired, (void)desired_size;
    memcpy(value, expected, expected_size < capacity ? expected_size : capacity);
    *size = expected_size;
    return TUTTI_OK;
}

static enum tutti_status delete_key(void *context, const char *key, bool *deleted)
{
    (void)context, (void)key;
    *deleted = false;
    return TUTTI_OK;
}

static enum tutti_status num_keys(void *context, int64_t *count)
{
    (void)context;
    *count = 0;
    return TUTTI_OK;
}

static void note_close(void *context)
{
    (void)context;
    __atomic_store_n(&closed, 1, __ATOMIC_RELEASE);
}

static void note_log(void *context, enum tutti_log_level level, const char *line)
{
    (void)context;
    if (level == TUTTI_LOG_WARN && strstr(line, "its function add() has not returned"))
        __atomic_store_n(&reported, 1, __ATOMIC_RELEASE);
}

static void a_set_up_ends_while_a_function_stands_still(void **state)
{
    const struct tutti_store_ops ops = {
        .struct_size = sizeof ops,
        .set = set,
        .get = get,
        .wait = wait,
        .add = stand_still,
        .check = check,
        .compare_set = compare_set,
        .delete_key = delete_key,
        .num_keys = num_keys,
        .close = note_close,
    };
    const struct tutti_comm_options options = {.struct_size = sizeof options,
                                               .timeout_ms = TIMEOUT_MS};
    tutti_store_t *store;
    tutti_comm_t *comm;
    (void)state;
    tutti_log_set(note_log, NULL);
    assert_int_equal(tutti_store_from_ops(&ops, NULL, &store), TUTTI_OK);
    assert_int_equal(tutti_comm_create(store, 0, 2, &options, &comm), TUTTI_ERR_TIMEOUT);
    assert_non_null(strstr(tutti_last_error(), "its function add() has not returned"));
    assert_true(is_set(&reported));
    tutti_store_close(store);
    assert_false(is_set(&closed));
    __atomic_store_n(&released, 1, __ATOMIC_RELEASE);
    assert_true(await(&closed));
    tutti_log_set(NULL, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_set_up_ends_while_a_function_stands_still),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
