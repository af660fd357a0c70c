/* SPDX-License-Identifier: MIT */
/*
 * A child process of fork() notices that it is a child, and gets an epoch and a nonce of its own.
 */
#include "ipc/fork.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* Runs fn in a child and returns what it returned. */
static int in_child(int (*fn)(uint32_t, const uint8_t *), uint32_t epoch, const uint8_t *nonce)
{
    pid_t child = fork();
    if (child == 0)
        _exit(fn(epoch, nonce));
    int how;
    if (waitpid(child, &how, 0) != child || !WIFEXITED(how))
        return 99;
    return WEXITSTATUS(how);
}

static int grandchild(uint32_t epoch, const uint8_t *nonce)
{
    if (!fork_detected(epoch))
        return 4;
    uint32_t own;
    if (fork_epoch(&own) != TUTTI_OK || own == epoch || !fork_detected(epoch))
        return 5;
    return memcmp(nonce, fork_process_nonce(), FORK_NONCE_BYTES) != 0 ? 0 : 6;
}

static int child(uint32_t epoch, const uint8_t *nonce)
{
    if (!fork_detected(epoch))
        return 1;
    uint32_t own;
    if (fork_epoch(&own) != TUTTI_OK || own == 0 || own == epoch || fork_detected(own))
        return 2;
    if (!fork_detected(epoch) || memcmp(nonce, fork_process_nonce(), FORK_NONCE_BYTES) == 0)
        return 3;
    uint8_t mine[FORK_NONCE_BYTES];
    memcpy(mine, fork_process_nonce(), sizeof mine);
    return in_child(grandchild, own, mine);
}

static void each_generation_differs(void **state)
{
    (void)state;
    assert_true(fork_detected(1)); /* nobody has an epoch before it asked for one */
    uint32_t epoch, again;
    assert_int_equal(fork_epoch(&epoch), TUTTI_OK);
    assert_int_not_equal(epoch, 0);
    assert_int_equal(fork_epoch(&again), TUTTI_OK);
    assert_int_equal(epoch, again);
    assert_false(fork_detected(epoch));
    uint8_t nonce[FORK_NONCE_BYTES];
    memcpy(nonce, fork_process_nonce(), sizeof nonce);
    assert_int_equal(in_child(child, epoch, nonce), 0);
    assert_false(fork_detected(epoch));
    assert_memory_equal(nonce, fork_process_nonce(), sizeof nonce);
}

static void *ask(void *epoch)
{
    return fork_epoch(epoch) == TUTTI_OK ? epoch : NULL;
}

static int ask_from_threads(uint32_t epoch, const uint8_t *nonce)
{
    (void)nonce;
    pthread_t threads[8];
    uint32_t epochs[8];
    for (int i = 0; i < 8; i++)
        if (pthread_create(&threads[i], NULL, ask, &epochs[i]) != 0)
            return 1;
    for (int i = 0; i < 8; i++) {
        void *ok;
        if (pthread_join(threads[i], &ok) != 0 || !ok || epochs[i] != epochs[0])
            return 2;
    }
    return epochs[0] != epoch ? 0 : 3;
}

static void threads_of_a_child_agree(void **state)
{
    (void)state;
    uint32_t epoch;
    assert_int_equal(fork_epoch(&epoch), TUTTI_OK);
    for (int i = 0; i < 20; i++)
        assert_int_equal(in_child(ask_from_threads, epoch, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_generation_differs),
        cmocka_unit_test(threads_of_a_child_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
