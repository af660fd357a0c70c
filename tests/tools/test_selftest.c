/* SPDX-License-Identifier: MIT */
/* What the self-test of `tutti info` reports where it cannot make a test. */
#include "info.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static bool full;

int __real_mkostemp(char *, int);
int __wrap_mkostemp(char *, int);

int __wrap_mkostemp(char *path, int flags)
{
    if (!full)
        return __real_mkostemp(path, flags);
    errno = ENOSPC;
    return -1;
}

static void a_store_without_a_file_is_not_tried(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        bool failed = false;
        full = i == 1;
        json_t *results = selftest_stores(&failed);
        const json_t *file = json_array_get(results, 2);
        const char *result = json_string_value(json_object_get(file, "result"));
        assert_int_equal(failed, full);
        assert_string_equal(json_string_value(json_object_get(file, "test")), "file");
        assert_true(full ? strstr(result, strerror(ENOSPC)) != NULL : strcmp(result, "ok") == 0);
        json_decref(results);
    }
}

static bool deadly;

enum tutti_status __wrap_tutti_barrier(tutti_comm_t *, const int *, int, tutti_stream_t);
enum tutti_status __real_tutti_barrier(tutti_comm_t *, const int *, int, tutti_stream_t);

enum tutti_status __wrap_tutti_barrier(tutti_comm_t *comm, const int *ranks, int count,
                                       tutti_stream_t stream)
{
    if (deadly)
        raise(SIGKILL);
    return __real_tutti_barrier(comm, ranks, count, stream);
}

static void ranks_that_died_have_no_wrong_result(void **state)
{
    bool failed = false;
    (void)state;
    deadly = true;
    json_t *results = selftest_comms(2, &failed), *one;
    size_t i;
    deadly = false;
    assert_true(failed);
    assert_int_equal(json_array_size(results), 2); /* threads, processes */
    json_array_foreach(results, i, one)
    {
        int rank = -1, end = 0;
        const char *result = json_string_value(json_object_get(one, "result"));
        sscanf(result, "rank %d ended early%n", &rank, &end);
        assert_in_range(rank, 0, 1); /* either may be the first to die */
        assert_int_equal(end, strlen(result));
    }
    json_decref(results);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_store_without_a_file_is_not_tried),
        cmocka_unit_test(ranks_that_died_have_no_wrong_result),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
