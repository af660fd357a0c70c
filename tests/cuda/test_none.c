/* SPDX-License-Identifier: MIT */
/* A library without CUDA says so, and why. Linked with src/cuda/none.c, whatever this build has. */
#include "cuda/group.h"
#include "cuda/symm.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void assert_declined(enum tutti_status status)
{
    assert_int_equal(status, TUTTI_ERR_DECLINED);
    assert_string_equal(tutti_last_error(), "this library was built without CUDA: a test's reason");
}

static void everything_declines(void **state)
{
    (void)state;
    struct cuda_device device;
    struct cuda_group *group = (struct cuda_group *)1;
    struct cuda_work *work = (struct cuda_work *)1;
    bool done = true;
    memset(&device, 1, sizeof device);
    assert_declined(cuda_device_current(&device));
    assert_int_equal(device.major, 0);
    assert_declined(cuda_group_open(NULL, &group));
    assert_null(group);
    assert_declined(cuda_all_reduce(NULL, NULL, TUTTI_STREAM_DEFAULT));
    assert_declined(cuda_barrier(NULL, 3, NULL, TUTTI_STREAM_DEFAULT));
    assert_declined(cuda_group_status(NULL, NULL));
    assert_declined(cuda_algorithm(NULL, TUTTI_ALGO_NONE, TUTTI_INT8, 1, NULL, NULL));
    assert_int_equal(cuda_group_describe(NULL, NULL, 0), 0);
    cuda_group_forget(NULL);
    cuda_group_close(NULL, NULL);
    assert_declined(cuda_work_create(NULL, &work));
    assert_null(work);
    assert_declined(cuda_work_record(NULL, NULL, TUTTI_STREAM_DEFAULT));
    assert_declined(cuda_work_test(NULL, &done));
    assert_false(done);
    assert_declined(cuda_work_wait(NULL, TUTTI_STREAM_DEFAULT));
    cuda_work_destroy(NULL);
    cuda_work_forget(NULL);
    struct cuda_symm *symm = (struct cuda_symm *)1;
    struct cuda_symm_watch *watch = (struct cuda_symm_watch *)1;
    void *base = NULL;
    int fd = 3;
    assert_declined(cuda_symm_create(NULL, &device, &symm, &base, &fd));
    assert_null(symm);
    assert_int_equal(fd, -1);
    assert_declined(cuda_symm_join(NULL, NULL, 0, NULL));
    assert_declined(cuda_symm_enqueue(NULL, CUDA_SYMM_PUT, 0, 0, 0, TUTTI_STREAM_DEFAULT));
    assert_false(cuda_symm_failed(NULL, NULL));
    cuda_symm_destroy(NULL);
    assert_declined(cuda_symm_watch_open(NULL, 0, &watch));
    assert_null(watch);
    cuda_symm_watch_add(NULL, NULL);
    cuda_symm_watch_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everything_declines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
