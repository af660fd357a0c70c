/* SPDX-License-Identifier: MIT */
/* memory:NAME: the suite, and that names are apart, end with their last handle and are of one
 * process. */
#include "store_suite.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>

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

static bool over; /* atomic */

static void *open_again_and_again(void *unused)
{
    while (!__atomic_load_n(&over, __ATOMIC_RELAXED))
        tutti_store_close(open_one());
    return unused;
}

/* A child of fork() begins with no stores, whatever its parent's other threads were at. */
static void a_child_has_none(void **state)
{
    enum { CHILDREN = 200, PATIENCE_S = 20 };
    tutti_store_t *store, *own;
    const char *key = "key";
    bool exists = true;
    pthread_t thread;
    int how = 0;
    (void)state;
    assert_int_equal(tutti_store_open("memory:a", 0, &store), TUTTI_OK);
    assert_int_equal(tutti_store_set(store, key, "", 0), TUTTI_OK);
    assert_int_equal(pthread_create(&thread, NULL, open_again_and_again, NULL), 0);
    for (int i = 0; i < CHILDREN && how == 0; i++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(PATIENCE_S);
            bool good = tutti_store_open("memory:a", 0, &own) == TUTTI_OK &&
                        tutti_store_check(own, &key, 1, &exists) == TUTTI_OK && !exists;
            _exit(good ? 0 : 1);
        }
        assert_int_equal(waitpid(child, &how, 0), child);
    }
    __atomic_store_n(&over, true, __ATOMIC_RELAXED);
    pthread_join(thread, NULL);
    assert_int_equal(how, 0);
    tutti_store_close(store);
}

int main(void)
{
    static const struct suite_kind kind = {nothing, open_one, nothing, false};
    const struct CMUnitTest tests[] = {cmocka_unit_test(names_are_apart),
                                       cmocka_unit_test(a_child_has_none)};
    return store_suite_run("memory", &kind) + cmocka_run_group_tests(tests, NULL, NULL);
}
