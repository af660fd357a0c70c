/* SPDX-License-Identifier: MIT */
/* fork() while a thread takes one mutex under another one: neither waits for the other for ever,
 * and the child can take both. */
#include "base/fork_mutex.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { FORKS = 200, LONGEST_S = 120 };

static struct fork_mutex outer = FORK_MUTEX(NULL), inner = FORK_MUTEX(NULL);
static int stop; /* under inner */

static int take_both(void)
{
    fork_mutex_lock(&outer);
    fork_mutex_lock(&inner);
    const int ends = stop;
    fork_mutex_unlock(&inner);
    fork_mutex_unlock(&outer);
    return ends;
}

static void *nest(void *unused)
{
    while (!take_both())
        ;
    return unused;
}

static void test_nested(void **unused)
{
    pthread_t thread;
    int status;
    (void)unused;
    alarm(LONGEST_S); /* ends a process that stands still */
    take_both();
    assert_int_equal(pthread_create(&thread, NULL, nest, NULL), 0);
    for (int i = 0; i < FORKS; i++) {
        const pid_t pid = fork();
        if (pid == 0) {
            take_both();
            _exit(0);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_int_equal(status, 0);
    }
    fork_mutex_lock(&inner);
    stop = 1;
    fork_mutex_unlock(&inner);
    pthread_join(thread, NULL);
    alarm(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_nested)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
