/* SPDX-License-Identifier: MIT */
/* Threads that share a job: each part is done once, by a thread of its own, before the call is
 * over, whether they were awake or asleep. */
#include "cpu/transport/team.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>

enum { JOBS = 2000, ASLEEP_US = 20000 };

struct job {
    int *done; /* by each part: plain words, so that a sanitizer sees who reads too early */
    pthread_t *by;
};

static void part(const void *context, int i)
{
    const struct job *job = context;
    job->done[i]++;
    job->by[i] = pthread_self();
}

static void check_job(struct cpu_team *team, int job_number)
{
    int done[CPU_TEAM_MOST] = {0};
    pthread_t by[CPU_TEAM_MOST];
    const struct job job = {.done = done, .by = by};
    if (job_number % (JOBS / 16) == 0)
        usleep(ASLEEP_US);
    cpu_team_run(team, part, &job);
    for (int i = 0; i < cpu_team_size(team); i++) {
        assert_int_equal(done[i], 1);
        for (int k = 0; k < i; k++)
            assert_false(pthread_equal(by[i], by[k]));
    }
    assert_true(pthread_equal(by[0], pthread_self()));
}

static void test_each_part_once(void **state)
{
    static const int sizes[] = {2, 3, CPU_TEAM_MOST};
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct cpu_team *team = cpu_team_create(sizes[i]);
        assert_non_null(team);
        assert_int_equal(cpu_team_size(team), sizes[i]);
        for (int job = 0; job < JOBS / sizes[i]; job++)
            check_job(team, job);
        cpu_team_destroy(team);
    }
}

static void test_ends_at_once(void **state)
{
    (void)state;
    cpu_team_destroy(NULL);
    for (int i = 0; i < 100; i++)
        cpu_team_destroy(cpu_team_create(4));
    struct cpu_team *team = cpu_team_create(2);
    usleep(ASLEEP_US); /* asleep */
    cpu_team_destroy(team);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_part_once),
        cmocka_unit_test(test_ends_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
