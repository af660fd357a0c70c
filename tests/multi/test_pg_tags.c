/* SPDX-License-Identifier: MIT */
/*
 * The tags of a process group do not affect each other: a tag whose peer does not come, an
 * operation whose time-out passes, an operation about which the ranks disagree, threads that wait.
 *
 * usage: test_pg_tags processes|threads
 */
#include "pg.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum {
    LATE_TAG = 7,
    BUSY_TAG = 8,
    MANY = 100, /* operations in flight: more than a control ring has room for */
    SOON_MS = 50,
    WAITERS = 3,
    WAITS = 100,
};

/* The last rank stays away from one tag until all have finished another. */
static int stopped_tag(struct ranks *ranks, int rank, tutti_pg_t *pg)
{
    float late[MANY], busy[MANY];
    tutti_work_t *late_works[MANY], *busy_works[MANY];
    bool last = rank == ranks->size - 1, done;
    for (int i = 0; i < MANY; i++) {
        late[i] = busy[i] = (float)i;
        if (!last)
            RANKS_CHECK(pg_sum(pg, &late[i], LATE_TAG, 0, &late_works[i]) == TUTTI_OK);
        RANKS_CHECK(pg_sum(pg, &busy[i], BUSY_TAG, 0, &busy_works[i]) == TUTTI_OK);
    }
    for (int i = 0; i < MANY; i++) {
        RANKS_CHECK(pg_end(busy_works[i]) == TUTTI_OK);
        RANKS_CHECK(busy[i] == (float)(i * ranks->size));
    }
    for (int i = 0; i < MANY && !last; i++) {
        RANKS_CHECK(tutti_work_test(late_works[i], &done) == TUTTI_OK && !done);
        RANKS_CHECK(tutti_work_wait_host(late_works[i], i ? 1 : SOON_MS) == TUTTI_ERR_TIMEOUT);
        RANKS_CHECK(strstr(tutti_last_error(), "has not ended within"));
    }
    ranks_raise(ranks, 0);
    RANKS_CHECK(ranks_await(ranks, 0, (uint32_t)ranks->size));
    for (int i = 0; i < MANY && last; i++)
        RANKS_CHECK(pg_sum(pg, &late[i], LATE_TAG, 0, &late_works[i]) == TUTTI_OK);
    for (int i = 0; i < MANY; i++) {
        RANKS_CHECK(tutti_work_sequence(late_works[i]) == (uint64_t)i + 1);
        RANKS_CHECK(pg_end(late_works[i]) == TUTTI_OK);
        RANKS_CHECK(late[i] == (float)(i * ranks->size));
    }
    return 0;
}

/* One rank after the other comes too late. Only its operation ends; the tensors are unchanged. */
static int time_out(struct ranks *ranks, int rank, tutti_pg_t *pg, int late)
{
    int turn = 1 + late;
    uint32_t tag = (uint32_t)(100 + late);
    char name[64];
    float x = 1, y = 1;
    tutti_work_t *work, *next;
    struct tutti_fault fault = {.struct_size = sizeof fault};
    snprintf(name, sizeof name, "rank %d had not submitted it", late);
    if (rank == late) {
        RANKS_CHECK(ranks_await(ranks, turn, (uint32_t)ranks->size - 1));
        RANKS_CHECK(pg_sum(pg, &x, tag, 0, &work) == TUTTI_OK);
        RANKS_CHECK(pg_sum(pg, &y, tag, 0, &next) == TUTTI_OK);
    } else {
        /* If several ranks wait, the first whose time-out passes counts. */
        RANKS_CHECK(pg_sum(pg, &x, tag, SOON_MS, &work) == TUTTI_OK);
        RANKS_CHECK(pg_sum(pg, &y, tag, 0, &next) == TUTTI_OK);
        RANKS_CHECK(tutti_work_wait_stream(work, TUTTI_STREAM_DEFAULT) == TUTTI_ERR_TIMEOUT);
        ranks_raise(ranks, turn);
    }
    RANKS_CHECK(tutti_work_wait_host(work, RANKS_TIMEOUT_MS) == TUTTI_ERR_TIMEOUT);
    /* With three or more ranks the error may name another rank that was slow. */
    RANKS_CHECK(ranks->size > 2 || strstr(tutti_last_error(), name));
    RANKS_CHECK(tutti_work_fault(work, &fault) == TUTTI_ERR_TIMEOUT);
    RANKS_CHECK(fault.status == TUTTI_ERR_TIMEOUT && fault.sequence == 1);
    RANKS_CHECK(ranks->size > 2 || (fault.peer == late && fault.rank == 1 - late));
    RANKS_CHECK(fault.expected.count == 1 && fault.expected.op == TUTTI_SUM);
    tutti_work_destroy(work);
    RANKS_CHECK(x == 1);
    RANKS_CHECK(pg_end(next) == TUTTI_OK && y == (float)ranks->size);
    return 0;
}

/* One rank has another dtype, op, length, or order of its dimensions. */
static int mismatch(struct ranks *ranks, int rank, tutti_pg_t *pg)
{
    static const char *const texts[] = {
        "all_reduce of 6 int32, sum", "all_reduce of 6 float32, max",
        "sizes [3, 2], strides [2, 1]", "sizes [2, 3], strides [1, 2]", "scalar hash"};
    static const int64_t sizes[] = {2, 3}, turned[] = {3, 2}, columns[] = {1, 2};
    bool other = rank == ranks->size - 1;
    float data[6] = {0};
    tutti_op_t scaled;
    RANKS_CHECK(tutti_op_create_premul_sum(other ? 2 : 3, &scaled) == TUTTI_OK);
    for (int i = 0; i < 5; i++) {
        struct tutti_tensor tensor = pg_vector(data, sizes);
        struct tutti_fault fault = {.struct_size = sizeof fault};
        tutti_work_t *work;
        tutti_op_t op = i == 4 ? scaled : i == 1 && other ? TUTTI_MAX : TUTTI_SUM;
        tensor.dims = 2;
        tensor.dtype = i == 0 && other ? TUTTI_INT32 : TUTTI_FLOAT32;
        tensor.sizes = i == 2 && other ? turned : sizes;
        tensor.strides = i == 3 && other ? columns : NULL;
        RANKS_CHECK(tutti_pg_all_reduce(pg, &tensor, 1, op, NULL, &work) == TUTTI_OK);
        RANKS_CHECK(tutti_work_wait_host(work, RANKS_TIMEOUT_MS) == TUTTI_ERR_MISMATCH);
        RANKS_CHECK(strstr(tutti_last_error(), texts[i]));
        RANKS_CHECK(i > 3 ||
                    strstr(tutti_last_error(), "all_reduce of 6 float32, sum, sizes [2, 3], "
                                               "strides [3, 1]"));
        RANKS_CHECK(tutti_work_fault(work, &fault) == TUTTI_ERR_MISMATCH);
        RANKS_CHECK(fault.rank != fault.peer);
        RANKS_CHECK(fault.rank == ranks->size - 1 || fault.peer == ranks->size - 1);
        tutti_work_destroy(work);
    }
    tutti_op_destroy(scaled);
    RANKS_CHECK(pg_goes_on(pg, 0, ranks->size));
    return 0;
}

/* A thread that submits and waits, with a tag of its own. */
struct waiter {
    tutti_pg_t *pg;
    int size;
    uint32_t tag;
    bool good;
};

static void *waiter_run(void *argument)
{
    struct waiter *waiter = argument;
    waiter->good = true;
    for (int i = 0; i < WAITS && waiter->good; i++)
        waiter->good = pg_goes_on(waiter->pg, waiter->tag, waiter->size);
    return NULL;
}

/* Several threads of a rank wait, so each of them steps the group at times. No thread waits for the
 * works of BUSY_TAG meanwhile. */
static int waiting_threads(struct ranks *ranks, int rank, tutti_pg_t *pg)
{
    struct waiter waiters[WAITERS];
    pthread_t threads[WAITERS];
    tutti_work_t *works[MANY];
    float x[MANY];
    for (int i = 0; i < WAITERS; i++) {
        waiters[i] = (struct waiter){pg, ranks->size, (uint32_t)(200 + i), false};
        RANKS_CHECK(pthread_create(&threads[i], NULL, waiter_run, &waiters[i]) == 0);
    }
    for (int i = 0; i < MANY; i++) {
        x[i] = 1;
        RANKS_CHECK(pg_sum(pg, &x[i], BUSY_TAG, 0, &works[i]) == TUTTI_OK);
    }
    for (int i = 0; i < WAITERS; i++)
        RANKS_CHECK(pthread_join(threads[i], NULL) == 0 && waiters[i].good);
    for (int i = 0; i < MANY; i++)
        RANKS_CHECK(pg_end(works[i]) == TUTTI_OK && x[i] == (float)ranks->size);
    return 0;
}

static int live(struct ranks *ranks, int rank, tutti_store_t *store)
{
    tutti_comm_t *comm;
    tutti_pg_t *pg;
    RANKS_CHECK(pg_join(ranks, rank, store, &comm, &pg) == TUTTI_OK);
    int failed = stopped_tag(ranks, rank, pg);
    for (int late = 0; late < ranks->size && !failed; late++)
        failed = time_out(ranks, rank, pg, late);
    if (!failed)
        failed = mismatch(ranks, rank, pg);
    if (!failed)
        failed = waiting_threads(ranks, rank, pg);
    if (!failed) /* no rank leaves before all have finished */
        RANKS_CHECK(pg_goes_on(pg, 1, ranks->size));
    pg_part(comm, pg);
    return failed;
}

int main(int argc, char **argv)
{
    return pg_main(argc, argv, 2, (ranks_fn *const[]){live}, 1);
}
