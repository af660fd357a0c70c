/* SPDX-License-Identifier: MIT */
/* Work objects of a CPU communicator are done at once, before and after its destroy. */
#include "tutti/tutti.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { MANY = 100 }; /* more than a communicator keeps for reuse */

static tutti_store_t *store;

static int open_store(void **state)
{
    (void)state;
    return tutti_store_open("memory:work", 1000, &store) == TUTTI_OK ? 0 : -1;
}

static int close_store(void **state)
{
    (void)state;
    tutti_store_close(store);
    return 0;
}

static tutti_comm_t *make(void)
{
    tutti_comm_t *comm;
    assert_int_equal(tutti_comm_create(store, 0, 1, NULL, &comm), TUTTI_OK);
    return comm;
}

static void assert_succeeded(tutti_work_t *work)
{
    bool done = false;
    assert_int_equal(tutti_work_test(work, &done), TUTTI_OK);
    assert_true(done);
    assert_int_equal(tutti_work_wait_stream(work, TUTTI_STREAM_DEFAULT), TUTTI_OK);
    assert_int_equal(tutti_work_wait_host(work, 1), TUTTI_OK);
    assert_int_equal(tutti_work_wait_host(work, 0), TUTTI_OK);
}

static void done_at_once(void **state)
{
    (void)state;
    tutti_comm_t *comm = make();
    tutti_work_t *works[MANY];
    float x = 2;
    assert_int_equal(tutti_all_reduce(&x, &x, 1, TUTTI_FLOAT32, TUTTI_SUM, comm, 0), TUTTI_OK);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < MANY; i++)
            assert_int_equal(tutti_work_record(comm, 0, &works[i]), TUTTI_OK);
        for (int i = 0; i < MANY; i++) {
            for (int k = 0; k < i; k++)
                assert_ptr_not_equal(works[i], works[k]);
            assert_succeeded(works[i]);
        }
        for (int i = 0; i < MANY; i++)
            tutti_work_destroy(works[i]);
    }
    tutti_comm_destroy(comm);
}

static void outlives_its_communicator(void **state)
{
    (void)state;
    tutti_comm_t *comm = make();
    tutti_work_t *first, *second;
    assert_int_equal(tutti_work_record(comm, 0, &first), TUTTI_OK);
    assert_int_equal(tutti_work_record(comm, 0, &second), TUTTI_OK);
    tutti_work_destroy(first);
    tutti_comm_destroy(comm);
    assert_succeeded(second);
    tutti_work_destroy(second);
}

/* A work that was done stays done. A communicator that has failed records no work. */
static void after_a_fault(void **state)
{
    (void)state;
    tutti_comm_t *comm = make();
    tutti_work_t *work, *late = (tutti_work_t *)&store;
    assert_int_equal(tutti_work_record(comm, 0, &work), TUTTI_OK);
    tutti_comm_abort(comm);
    assert_int_equal(tutti_work_record(comm, 0, &late), TUTTI_ERR_ABORTED);
    assert_null(late);
    assert_non_null(strstr(tutti_last_error(), "aborted"));
    assert_succeeded(work);
    tutti_comm_destroy(comm);
    assert_succeeded(work);
    tutti_work_destroy(work);
}

static void assert_invalid(enum tutti_status status, const char *text)
{
    assert_int_equal(status, TUTTI_ERR_INVALID);
    assert_non_null(strstr(tutti_last_error(), text));
}

static void refusals(void **state)
{
    (void)state;
    const struct tutti_comm_options options = {.struct_size = sizeof options, .defer = true};
    tutti_comm_t *comm = make(), *deferred;
    tutti_work_t *work = (tutti_work_t *)&store;
    bool done = true;
    assert_invalid(tutti_work_record(NULL, 0, &work), "comm is NULL");
    assert_null(work);
    assert_invalid(tutti_work_record(comm, 0, NULL), "work is NULL");
    assert_invalid(tutti_work_record(comm, TUTTI_STREAM_LEGACY, &work), "TUTTI_STREAM_DEFAULT");
    assert_null(work);
    assert_int_equal(tutti_comm_create(store, 0, 1, &options, &deferred), TUTTI_OK);
    assert_invalid(tutti_work_record(deferred, 0, &work), "has not met");
    tutti_comm_destroy(deferred);

    assert_invalid(tutti_work_test(NULL, &done), "work is NULL");
    assert_false(done);
    assert_invalid(tutti_work_wait_stream(NULL, 0), "work is NULL");
    assert_invalid(tutti_work_wait_host(NULL, 0), "work is NULL");
    tutti_work_destroy(NULL);
    assert_int_equal(tutti_work_record(comm, 0, &work), TUTTI_OK);
    assert_invalid(tutti_work_test(work, NULL), "done is NULL");
    assert_invalid(tutti_work_wait_stream(work, TUTTI_STREAM_PER_THREAD), "TUTTI_STREAM_DEFAULT");
    tutti_work_destroy(work);
    tutti_comm_destroy(comm);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(done_at_once),
        cmocka_unit_test(outlives_its_communicator),
        cmocka_unit_test(after_a_fault),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, open_store, close_store);
}
