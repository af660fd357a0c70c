/* SPDX-License-Identifier: MIT */
/*
 * A rank destroys its process group with operations in flight. It does not wait for its peers, all
 * its works end, and its peers get errors that name it. Before that, handles are destroyed earlier
 * than their operations end.
 *
 * usage: test_pg_leave processes|threads
 */
#include "pg.h"

#include "base/order.h"

#include <string.h>

enum { MANY = 50, JOINT_TAG = 1, LONELY_TAG = 2, LATER_TAG = 3 };
enum { SUBMITTED = 0 }; /* a flag */

static void count_call(void *context, tutti_work_t *work, enum tutti_status status)
{
    (void)work;
    if (status == TUTTI_OK)
        order_fetch_add_u32(context, 1);
}

/* No handle is kept; the callbacks are called all the same. */
static int let_go(struct ranks *ranks, int rank, tutti_pg_t *pg)
{
    static const int64_t one = 1;
    float data[MANY];
    uint32_t called = 0;
    const struct tutti_pg_call_options options = {.struct_size = sizeof options,
                                                  .tag = JOINT_TAG,
                                                  .callback = count_call,
                                                  .context = &called};
    for (int i = 0; i < MANY; i++) {
        const struct tutti_tensor tensor = pg_vector(&data[i], &one);
        tutti_work_t *work;
        data[i] = 1;
        RANKS_CHECK(tutti_pg_all_reduce(pg, &tensor, 1, TUTTI_SUM, &options,
                                        i % 2 ? &work : NULL) == TUTTI_OK);
        if (i % 2)
            tutti_work_destroy(work);
    }
    RANKS_CHECK(pg_goes_on(pg, JOINT_TAG, ranks->size)); /* it runs after them */
    RANKS_CHECK(order_load_acquire_u32(&called) == MANY);
    for (int i = 0; i < MANY; i++)
        RANKS_CHECK(data[i] == (float)ranks->size);
    return 0;
}

static int leave(struct ranks *ranks, int rank, tutti_store_t *store, int leaver)
{
    tutti_comm_t *comm;
    tutti_pg_t *pg;
    tutti_work_t *works[MANY];
    float data[MANY] = {0};
    char name[32] = "rank ";
    name[5] = (char)('0' + leaver);
    RANKS_CHECK(pg_join(ranks, rank, store, &comm, &pg) == TUTTI_OK);
    int failed = let_go(ranks, rank, pg);
    if (failed)
        return failed;
    /* The rank after the leaver never submits these. */
    bool lonely = rank != (leaver + 1) % ranks->size;
    for (int i = 0; i < MANY && lonely; i++)
        RANKS_CHECK(pg_sum(pg, &data[i], LONELY_TAG, 0, &works[i]) == TUTTI_OK);
    ranks_raise(ranks, SUBMITTED);
    if (rank == leaver) {
        RANKS_CHECK(ranks_await(ranks, SUBMITTED, (uint32_t)ranks->size));
        tutti_pg_destroy(pg);
        pg = NULL;
    }
    for (int i = 0; i < MANY && lonely; i++) {
        struct tutti_fault fault = {.struct_size = sizeof fault};
        enum tutti_status expected = rank == leaver ? TUTTI_ERR_ABORTED : TUTTI_ERR_PEER_DEAD;
        RANKS_CHECK(tutti_work_wait_host(works[i], RANKS_TIMEOUT_MS) == expected);
        RANKS_CHECK(strstr(tutti_last_error(), name));
        RANKS_CHECK(tutti_work_fault(works[i], &fault) == expected && fault.peer == leaver);
        tutti_work_destroy(works[i]);
    }
    if (rank != leaver) {
        enum tutti_status status = TUTTI_OK;
        while (status == TUTTI_OK) { /* until this rank has noticed, too */
            status = pg_sum(pg, &data[0], LATER_TAG, 0, &works[0]);
            if (status == TUTTI_OK)
                RANKS_CHECK(pg_end(works[0]) == TUTTI_ERR_PEER_DEAD);
        }
        RANKS_CHECK(status == TUTTI_ERR_PEER_DEAD && strstr(tutti_last_error(), name));
    }
    tutti_pg_destroy(pg);
    tutti_comm_destroy(comm);
    return 0;
}

static int live_first(struct ranks *ranks, int rank, tutti_store_t *store)
{
    return leave(ranks, rank, store, 0);
}

static int live_last(struct ranks *ranks, int rank, tutti_store_t *store)
{
    return leave(ranks, rank, store, ranks->size - 1);
}

/* Receives one float, which does not come: returns the rank that the work names, or -1. */
static int named(tutti_pg_t *pg, int from)
{
    static const int64_t one = 1;
    float x;
    struct tutti_fault fault = {.struct_size = sizeof fault};
    const struct tutti_tensor tensor = pg_vector(&x, &one);
    tutti_work_t *work;
    if (tutti_pg_recv(pg, &tensor, from, NULL, &work) != TUTTI_OK)
        return -1;
    const enum tutti_status status = tutti_work_wait_host(work, RANKS_TIMEOUT_MS);
    const bool tells = status == TUTTI_ERR_PEER_DEAD && tutti_work_fault(work, &fault) == status;
    tutti_work_destroy(work);
    return tells ? fault.peer : -1;
}

/* Each rank but the last waits for a message of the next one, and leaves when that one has left. So
 * all leave because of the last one, and name it. */
static int live_chain(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const int last = ranks->size - 1;
    tutti_comm_t *comm;
    tutti_pg_t *pg;
    RANKS_CHECK(pg_join(ranks, rank, store, &comm, &pg) == TUTTI_OK);
    RANKS_CHECK(pg_goes_on(pg, JOINT_TAG, ranks->size));
    if (rank < last)
        RANKS_CHECK(named(pg, rank + 1) == last);
    if (rank == 0)
        RANKS_CHECK(named(pg, TUTTI_ANY_SOURCE) == last);
    tutti_pg_destroy(pg);
    tutti_comm_destroy(comm);
    return 0;
}

int main(int argc, char **argv)
{
    return pg_main(argc, argv, 2, (ranks_fn *const[]){live_first, live_last, live_chain}, 3);
}
