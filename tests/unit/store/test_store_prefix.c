/* SPDX-License-Identifier: MIT */
/* A prefix view and a caller's own operations: the suite over both, and what they pass on. */
#include "store_suite.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* ---- a caller's store: a memory store behind a table of functions ------------------------------
 */

static enum tutti_status own_set(void *context, const char *key, const void *value, size_t size)
{
    return tutti_store_set(context, key, value, size);
}

static enum tutti_status own_get(void *context, const char *key, int64_t timeout_ms, void *value,
                                 size_t capacity, size_t *size)
{
    enum tutti_status status = tutti_store_get(context, key, timeout_ms, value, capacity, size);
    return status == TUTTI_ERR_INVALID && *size > capacity ? TUTTI_OK : status;
}

static enum tutti_status own_wait(void *context, const char *const *keys, size_t count,
                                  int64_t timeout_ms)
{
    return tutti_store_wait(context, keys, count, timeout_ms);
}

static enum tutti_status own_add(void *context, const char *key, int64_t amount, int64_t *result)
{
    return tutti_store_add(context, key, amount, result);
}

static enum tutti_status own_check(void *context, const char *const *keys, size_t count,
                                   bool *exists)
{
    return tutti_store_check(context, keys, count, exists);
}

static enum tutti_status own_compare_set(void *context, const char *key, const void *expected,
                                         size_t expected_size, const void *desired,
                                         size_t desired_size, void *value, size_t capacity,
                                         size_t *size)
{
    return tutti_store_compare_set(context, key, expected, expected_size, desired, desired_size,
                                   value, capacity, size);
}

static enum tutti_status own_delete(void *context, const char *key, bool *deleted)
{
    return tutti_store_delete(context, key, deleted);
}

static enum tutti_status own_num_keys(void *context, int64_t *count)
{
    return tutti_store_num_keys(context, count);
}

static int closed;

static void own_close(void *context)
{
    __atomic_fetch_add(&closed, 1, __ATOMIC_RELAXED);
    tutti_store_close(context);
}

static const struct tutti_store_ops own_ops = {
    .struct_size = sizeof own_ops,
    .set = own_set,
    .get = own_get,
    .wait = own_wait,
    .add = own_add,
    .check = own_check,
    .compare_set = own_compare_set,
    .delete_key = own_delete,
    .num_keys = own_num_keys,
    .close = own_close,
};

static tutti_store_t *open_own(void)
{
    tutti_store_t *memory, *store;
    if (tutti_store_open("memory:own", 0, &memory) != TUTTI_OK)
        return NULL;
    return tutti_store_from_ops(&own_ops, memory, &store) == TUTTI_OK ? store : NULL;
}

static void incomplete_tables_are_refused(void **state)
{
    struct tutti_store_ops ops = own_ops;
    tutti_store_t *const garbage = (tutti_store_t *)&ops, *store = garbage;
    (void)state;
    ops.check = NULL;
    closed = 0;
    assert_int_equal(tutti_store_from_ops(&ops, NULL, &store), TUTTI_ERR_INVALID);
    ops = own_ops;
    ops.struct_size--;
    assert_int_equal(tutti_store_from_ops(&ops, NULL, &store), TUTTI_ERR_INVALID);
    store = garbage;
    assert_int_equal(tutti_store_from_ops(NULL, NULL, &store), TUTTI_ERR_INVALID);
    assert_null(store);
    assert_int_equal(closed, 0);
    ops = own_ops;
    ops.close = NULL;
    assert_int_equal(tutti_store_from_ops(&ops, NULL, &store), TUTTI_OK);
    tutti_store_close(store);
    store = open_own();
    tutti_store_close(store);
    assert_int_equal(closed, 1);
}

/* ---- views ------------------------------------------------------------------------------------
 */

static tutti_store_t *base;

static void begin(void)
{
    if (tutti_store_open("memory:base", 0, &base) != TUTTI_OK)
        base = NULL;
}

static void end(void)
{
    tutti_store_close(base);
}

static tutti_store_t *open_view(void)
{
    tutti_store_t *view;
    return tutti_store_prefix(base, "view", &view) == TUTTI_OK ? view : NULL;
}

static void a_view_puts_its_prefix_before_each_key(void **state)
{
    tutti_store_t *a, *b, *inner, *none;
    const char *whole = "a/inner/key", *key = "key";
    char long_prefix[9000];
    bool exists;
    (void)state;
    begin();
    memset(long_prefix, 'p', sizeof long_prefix);
    long_prefix[sizeof long_prefix - 1] = 0;
    assert_int_equal(tutti_store_prefix(base, "a", &a), TUTTI_OK);
    assert_int_equal(tutti_store_prefix(base, "b", &b), TUTTI_OK);
    assert_int_equal(tutti_store_prefix(a, "inner", &inner), TUTTI_OK);
    assert_int_equal(tutti_store_set(inner, key, "v", 1), TUTTI_OK);
    assert_int_equal(tutti_store_check(base, &whole, 1, &exists), TUTTI_OK);
    assert_true(exists);
    assert_int_equal(tutti_store_check(b, &key, 1, &exists), TUTTI_OK);
    assert_false(exists);
    assert_int_equal(tutti_store_prefix(base, long_prefix, &none), TUTTI_ERR_INVALID);
    none = a;
    assert_int_equal(tutti_store_prefix(base, NULL, &none), TUTTI_ERR_INVALID);
    assert_null(none);
    none = a;
    assert_int_equal(tutti_store_prefix(NULL, "x", &none), TUTTI_ERR_INVALID);
    assert_null(none);
    none = a;
    assert_int_equal(tutti_store_open(NULL, 0, &none), TUTTI_ERR_INVALID);
    assert_null(none);
    tutti_store_close(inner);
    tutti_store_close(a);
    tutti_store_close(b);
    end();
}

static void nothing(void)
{
}

int main(void)
{
    static const struct suite_kind view = {begin, open_view, end, false};
    static const struct suite_kind own = {nothing, open_own, nothing, false};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(incomplete_tables_are_refused),
        cmocka_unit_test(a_view_puts_its_prefix_before_each_key),
    };
    return store_suite_run("prefix", &view) + store_suite_run("from_ops", &own) +
           cmocka_run_group_tests(tests, NULL, NULL);
}
