/* SPDX-License-Identifier: MIT */
/* The ranks of the tool begin together or not at all. */
#include "ranks.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <cmocka.h>

enum { COUNT = 5 };

static int creations_left;

int __real_pthread_create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
int __wrap_pthread_create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*start)(void *), void *argument)
{
    if (creations_left-- <= 0)
        return EAGAIN;
    return __real_pthread_create(thread, attributes, start, argument);
}

static bool raise_flag(void *flag)
{
    ++*(int *)flag;
    return *(int *)flag == 1;
}

static void threads_begin_all_or_none(void **state)
{
    (void)state;
    int flags[COUNT] = {0};
    for (int most = 0; most < COUNT; most++) {
        creations_left = most;
        assert_int_equal(threads_run(COUNT, raise_flag, flags, sizeof *flags), -1);
        assert_int_equal(errno, EAGAIN);
        for (int i = 0; i < COUNT; i++)
            assert_int_equal(flags[i], 0);
    }
    creations_left = COUNT;
    flags[1] = 1;
    assert_int_equal(threads_run(COUNT, raise_flag, flags, sizeof *flags), COUNT - 1);
    for (int i = 0; i < COUNT; i++)
        assert_int_equal(flags[i], i == 1 ? 2 : 1);
}

static int never(int index, const char *start, void *context)
{
    (void)index, (void)start, (void)context;
    abort();
}

static void children_that_died_at_the_gate_are_an_error(void **state)
{
    struct ranks ranks;
    siginfo_t info;
    (void)state;
    assert_true(ranks_fork(&ranks, COUNT, never, NULL));
    ranks_signal(&ranks, SIGKILL);
    for (int i = 0; i < COUNT; i++)
        assert_int_equal(waitid(P_PID, (id_t)ranks.pids[i], &info, WEXITED | WNOWAIT), 0);
    assert_false(ranks_start(&ranks, ""));
    ranks_end(&ranks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_begin_all_or_none),
        cmocka_unit_test(children_that_died_at_the_gate_are_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
