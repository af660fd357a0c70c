/* SPDX-License-Identifier: MIT */
/* memory:NAME: the suite, and that names are apart and end with their last handle. */
#include "store_suite.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void nothing(void)
{
}

static tutti_store_t *open_one(void)
{
    tutti_store_t *store;
    return tutti_store_open("memory:suite", 0, &store) == TUTTI_OK ? store : NULL;
}

static void names_are_apart(void **state)
{
    tutti_store_t *a, *b;
    const char *key = "key";
    bool exists = true;
    (void)state;
    assert_int_equal(tutti_store_open("memory:a", 0, &a), TUTTI_OK);
    assert_int_equal(tutti_store_open("memory:b", 0, &b), TUTTI_OK);
    assert_int_equal(tutti_store_set(a, key, "", 0), TUTTI_OK);
    assert_int_equal(tutti_store_check(b, &key, 1, &exists), TUTTI_OK);
    assert_false(exists);
    assert_null(tutti_store_url(a));
    tutti_store_close(a);
    /* The last handle is gone, and the contents with it. */
    assert_int_equal(tutti_store_open("memory:a", 0, &a), TUTTI_OK);
    assert_int_equal(tutti_store_check(a, &key, 1, &exists), TUTTI_OK);
    assert_false(exists);
    tutti_store_close(a);
    tutti_store_close(b);
    tutti_store_close(NULL);
}

int main(void)
{
    static const struct suite_kind kind = {nothing, open_one, nothing, false};
    const struct CMUnitTest tests[] = {cmocka_unit_test(names_are_apart)};
    return store_suite_run("memory", &kind) + cmocka_run_group_tests(tests, NULL, NULL);
}
