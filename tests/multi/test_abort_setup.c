/* SPDX-License-Identifier: MIT */
/* tutti_comm_abort() ends the wait for ranks that do not come, before and during the rendezvous. */
#include "tutti/tutti.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>

static tutti_comm_t *create(tutti_store_t *store, int rank)
{
    struct tutti_comm_options options = {
        .struct_size = sizeof options, .timeout_ms = 60000, .defer = true};
    tutti_comm_t *comm;
    assert_int_equal(tutti_comm_create(store, rank, 2, &options, &comm), TUTTI_OK);
    return comm;
}

static void *abort_soon(void *comm)
{
    usleep(50000); /* likely, not necessarily, inside the rendezvous by now */
    tutti_comm_abort(comm);
    return NULL;
}

/* Rank 0 waits for a token, rank 1 for an answer to its own. */
static void during_the_rendezvous(void **state)
{
    for (int rank = 0; rank < 2; rank++) {
        tutti_comm_t *comm = create(*state, rank);
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, abort_soon, comm), 0);
        assert_int_equal(tutti_comm_rendezvous(comm), TUTTI_ERR_ABORTED);
        pthread_join(thread, NULL);
        assert_int_equal(tutti_comm_status(comm, NULL), TUTTI_ERR_ABORTED);
        tutti_comm_destroy(comm);
    }
}

static void before_the_rendezvous(void **state)
{
    tutti_comm_t *comm = create(*state, 1);
    tutti_comm_abort(comm);
    assert_int_equal(tutti_comm_rendezvous(comm), TUTTI_ERR_ABORTED);
    tutti_comm_destroy(comm);
}

static int open_store(void **state)
{
    tutti_store_t *store;
    if (tutti_store_open("tcp://127.0.0.1:0?server=1", 10000, &store) != TUTTI_OK)
        return -1;
    *state = store;
    return 0;
}

static int close_store(void **state)
{
    tutti_store_close(*state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(during_the_rendezvous),
        cmocka_unit_test(before_the_rendezvous),
    };
    return cmocka_run_group_tests(tests, open_store, close_store);
}
