/* SPDX-License-Identifier: MIT */
/* The orchestrator's side of an instance, against an engine that misbehaves as it is told. */
#include "instance.h"

#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static bool interrupted; /* every other poll() */

int __real_poll(struct pollfd *, nfds_t, int);
int __wrap_poll(struct pollfd *, nfds_t, int);

int __wrap_poll(struct pollfd *fds, nfds_t count, int timeout_ms)
{
    static int calls;

    if (!interrupted || calls++ % 2)
        return __real_poll(fds, count, timeout_ms);
    errno = EINTR;
    return -1;
}

static char directory[] = "/tmp/tutti-test-XXXXXX";

static int set_up(void **state)
{
    (void)state;
    return mkdtemp(directory) != NULL ? 0 : -1;
}

static int tear_down(void **state)
{
    char path[64];

    (void)state;
    snprintf(path, sizeof(path), "%s/fake.log", directory);
    unlink(path);
    return rmdir(directory);
}

/* Starts three ranks of the engine's variant. */
static int start(struct instance *instance, struct setting *setting, const char *variant)
{
    const struct instance_place place = {
        .programs = PROGRAMS, .directory = directory, .ranks = 3, .capacity = 4096};

    *setting = (struct setting){.name = "fake", .program = "bench-fake", .environment = {variant}};
    return instance_start(instance, setting, &place);
}

static const struct bench_command checked = {
    .bytes = 4096, .warmup = 1, .iterations = 10, .flags = BENCH_CHECK};

/* No child is left, not even a dead one. */
static void assert_nothing_left(void)
{
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
}

static void blocks_run_until_the_stop(void **state)
{
    struct bench_command one = {.bytes = 4, .warmup = 0, .iterations = 1};
    struct instance_block block = {0};
    struct instance instance;
    struct setting setting;

    (void)state;
    assert_int_equal(start(&instance, &setting, "TUTTI_BENCH_VARIANT=right"), 0);
    assert_int_equal(instance_run(&instance, &checked, &block), 0);
    assert_true(block.nanoseconds > 0);
    assert_string_equal(block.algo, "many");
    assert_int_equal(instance_run(&instance, &one, &block), 0);
    assert_string_equal(block.algo, "one");
    instance_stop(&instance);
    instance_stop(&instance);
    assert_nothing_left();
}

static void a_signal_ends_no_block(void **state)
{
    struct instance_block block;
    struct instance instance;
    struct setting setting;

    (void)state;
    assert_int_equal(start(&instance, &setting, "TUTTI_BENCH_VARIANT=right"), 0);
    interrupted = true;
    assert_int_equal(instance_run(&instance, &checked, &block), 0);
    interrupted = false;
    instance_stop(&instance);
    assert_nothing_left();
}

/* Starts the variant, whose first block is to fail, for wrong elements or for another reason. */
static void assert_block_fails(const char *variant, bool wrong)
{
    struct instance_block block;
    struct instance instance;
    struct setting setting;

    assert_int_equal(start(&instance, &setting, variant), 0);
    assert_int_equal(instance_run(&instance, &checked, &block), -1);
    assert_int_equal(block.wrong, wrong);
    instance_stop(&instance);
    assert_nothing_left();
}

static void one_wrong_element_is_noticed(void **state)
{
    (void)state;
    assert_block_fails("TUTTI_BENCH_VARIANT=wrong", true);
}

static void an_engines_error_is_noticed(void **state)
{
    (void)state;
    assert_block_fails("TUTTI_BENCH_VARIANT=fails", false);
}

static void a_dying_rank_is_noticed(void **state)
{
    (void)state;
    assert_block_fails("TUTTI_BENCH_VARIANT=dies", false);
}

static void a_rank_that_does_not_come_is_noticed(void **state)
{
    struct instance instance;
    struct setting setting;

    (void)state;
    assert_int_equal(start(&instance, &setting, "TUTTI_BENCH_VARIANT=absent"), -1);
    assert_nothing_left();
}

static void a_message_beyond_the_capacity_is_refused(void **state)
{
    struct bench_command large = {.bytes = 8192, .iterations = 1};
    struct instance_block block;
    struct instance instance;
    struct setting setting;

    (void)state;
    assert_int_equal(start(&instance, &setting, "TUTTI_BENCH_VARIANT=right"), 0);
    assert_int_equal(instance_run(&instance, &large, &block), -1);
    instance_stop(&instance);
    assert_nothing_left();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_run_until_the_stop),
        cmocka_unit_test(a_signal_ends_no_block),
        cmocka_unit_test(one_wrong_element_is_noticed),
        cmocka_unit_test(an_engines_error_is_noticed),
        cmocka_unit_test(a_dying_rank_is_noticed),
        cmocka_unit_test(a_rank_that_does_not_come_is_noticed),
        cmocka_unit_test(a_message_beyond_the_capacity_is_refused),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
