/* SPDX-License-Identifier: MIT */
/*
 * A rank of a process group that makes no progress. Stopped while idle: an operation of the others
 * ends by its time-out, alone, and the group goes on with the rank. Stopped as the leader, or
 * inside an operation that all have begun: the group ends by the time-out, on all ranks. Stopped so
 * long that there is no room for the verdicts that it has not read: the group ends, too.
 */
#include "base/layout.h"
#include "pg.h"

#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    SOON_MS = 100,
    ENDED_MS = 20000,
    STALL_MS = 1500,
    STOPPED = 1,
    CONTINUED = 2,
    DONE = 3,
    MANY = 48
};

/* Rank `victim` stops itself; the other ranks check what follows. */
static int stop(struct ranks *ranks, int rank, tutti_store_t *store, int victim)
{
    tutti_comm_t *comm;
    tutti_pg_t *pg;
    tutti_work_t *work;
    float x = 1;
    struct tutti_fault fault = {.struct_size = sizeof fault};
    bool leads = victim == 0;
    RANKS_CHECK(pg_join(ranks, rank, store, &comm, &pg) == TUTTI_OK);
    RANKS_CHECK(pg_goes_on(pg, 0, ranks->size));
    if (rank == victim) {
        ranks_raise(ranks, STOPPED);
        raise(SIGSTOP);
        RANKS_CHECK(ranks_await(ranks, DONE, (uint32_t)ranks->size - 1));
    } else {
        /* The rank may stop a little later; it does not submit the operation in any case. */
        RANKS_CHECK(ranks_await(ranks, STOPPED, 1));
        usleep(SOON_MS * 1000);
        RANKS_CHECK(pg_sum(pg, &x, 1, SOON_MS, &work) == TUTTI_OK);
        RANKS_CHECK(tutti_work_wait_host(work, RANKS_TIMEOUT_MS) == TUTTI_ERR_TIMEOUT);
        RANKS_CHECK(tutti_work_fault(work, &fault) == TUTTI_ERR_TIMEOUT && fault.peer == victim);
        RANKS_CHECK(!leads || strstr(tutti_last_error(), "does not go on"));
        tutti_work_destroy(work);
        ranks_raise(ranks, CONTINUED);
        RANKS_CHECK(ranks_await(ranks, CONTINUED, (uint32_t)ranks->size - 1));
        RANKS_CHECK(kill(ranks->pids[victim], SIGCONT) == 0);
        ranks_raise(ranks, DONE);
    }
    if (leads) {
        enum tutti_status status = TUTTI_OK;
        while (status == TUTTI_OK) {
            status = pg_sum(pg, &x, 2, 0, &work);
            if (status == TUTTI_OK)
                RANKS_CHECK(pg_end(work) == TUTTI_ERR_TIMEOUT);
        }
        RANKS_CHECK(status == TUTTI_ERR_TIMEOUT && strstr(tutti_last_error(), "rank 0"));
    } else {
        if (rank == victim) /* submits tag 1 late, and gets the same verdict */
            RANKS_CHECK(pg_sum(pg, &x, 1, 0, &work) == TUTTI_OK &&
                        pg_end(work) == TUTTI_ERR_TIMEOUT);
        RANKS_CHECK(pg_goes_on(pg, 1, ranks->size));
        RANKS_CHECK(pg_goes_on(pg, 2, ranks->size));
    }
    pg_part(comm, pg);
    return 0;
}

static int live_last(struct ranks *ranks, int rank, tutti_store_t *store)
{
    return stop(ranks, rank, store, ranks->size - 1);
}

static int live_leader(struct ranks *ranks, int rank, tutti_store_t *store)
{
    return stop(ranks, rank, store, 0);
}

/* More operations than there is room for verdicts that the stopped victim has not read. The
 * time-outs of operations without a verdict name that rank, not the leader. */
static int fill(struct ranks *ranks, int rank, tutti_store_t *store, int victim, int count,
                int64_t timeout_ms)
{
    tutti_comm_t *comm;
    tutti_pg_t *pg;
    tutti_work_t *works[MANY];
    float data[MANY] = {0}, x = 1;
    struct tutti_fault fault = {.struct_size = sizeof fault};
    int named = 0;
    RANKS_CHECK(pg_join(ranks, rank, store, &comm, &pg) == TUTTI_OK);
    RANKS_CHECK(pg_goes_on(pg, 0, ranks->size));
    if (rank == victim) {
        ranks_raise(ranks, STOPPED);
        raise(SIGSTOP);
        RANKS_CHECK(ranks_await(ranks, DONE, (uint32_t)ranks->size - 1));
    } else {
        RANKS_CHECK(ranks_await(ranks, STOPPED, 1));
        usleep(SOON_MS * 1000);
        for (int i = 0; i < count; i++)
            RANKS_CHECK(pg_sum(pg, &data[i], 1, i < count - 1 ? timeout_ms : SOON_MS, &works[i]) ==
                        TUTTI_OK);
        while (named < count && tutti_work_wait_host(works[named], ENDED_MS) == TUTTI_ERR_TIMEOUT &&
               tutti_work_fault(works[named], &fault) == TUTTI_ERR_TIMEOUT && fault.peer == victim)
            named++;
        ranks_raise(ranks, CONTINUED);
        RANKS_CHECK(ranks_await(ranks, CONTINUED, (uint32_t)ranks->size - 1));
        RANKS_CHECK(kill(ranks->pids[victim], SIGCONT) == 0);
        ranks_raise(ranks, DONE);
        RANKS_CHECK(named == count);
    }
    for (int i = 0; i < count && rank != victim; i++)
        tutti_work_destroy(works[i]);
    enum tutti_status status = TUTTI_OK;
    while (status == TUTTI_OK) {
        status = pg_sum(pg, &x, 2, 0, &works[0]);
        if (status == TUTTI_OK)
            RANKS_CHECK(pg_end(works[0]) == TUTTI_ERR_TIMEOUT);
    }
    RANKS_CHECK(status == TUTTI_ERR_TIMEOUT);
    pg_part(comm, pg);
    return 0;
}

static int live_full(struct ranks *ranks, int rank, tutti_store_t *store)
{
    return fill(ranks, rank, store, ranks->size - 1, MANY, SOON_MS);
}

/* The stopped leader has room for this many unread announcements, but then for no withdrawal. */
static int live_full_leader(struct ranks *ranks, int rank, tutti_store_t *store)
{
    return fill(ranks, rank, store, 0, LAYOUT_POSTS, SOON_MS);
}

/* The operation whose time-out passes has not been announced; operations before it have time
 * left. */
static int live_behind(struct ranks *ranks, int rank, tutti_store_t *store)
{
    return fill(ranks, rank, store, 0, LAYOUT_POSTS + 2, RANKS_TIMEOUT_MS);
}

static void stall(void *context, tutti_work_t *work, enum tutti_status status)
{
    (void)context;
    (void)work;
    (void)status;
    nanosleep(&(struct timespec){.tv_sec = STALL_MS / 1000, .tv_nsec = STALL_MS % 1000 * 1000000},
              NULL);
}

/* The last rank's thread is inside a callback while the next operation has begun. */
static int live_amid(struct ranks *ranks, int rank, tutti_store_t *store)
{
    static const int64_t one = 1;
    tutti_comm_t *comm;
    tutti_pg_t *pg;
    tutti_work_t *first, *second;
    float x = 1, y = 1;
    bool last = rank == ranks->size - 1;
    const struct tutti_tensor tensor = pg_vector(&x, &one);
    const struct tutti_pg_call_options options = {.struct_size = sizeof options,
                                                  .callback = last ? stall : NULL};
    RANKS_CHECK(pg_join(ranks, rank, store, &comm, &pg) == TUTTI_OK);
    RANKS_CHECK(tutti_pg_all_reduce(pg, &tensor, 1, TUTTI_SUM, &options, &first) == TUTTI_OK);
    RANKS_CHECK(pg_sum(pg, &y, 1, last ? 0 : SOON_MS, &second) == TUTTI_OK);
    RANKS_CHECK(pg_end(first) == TUTTI_OK && x == (float)ranks->size);
    enum tutti_status status = pg_end(second);
    /* The others did their part before their time-out. */
    RANKS_CHECK(status == TUTTI_ERR_TIMEOUT || (last && status == TUTTI_OK));
    status = pg_sum(pg, &y, 2, 0, &second);
    RANKS_CHECK(status == TUTTI_ERR_TIMEOUT ||
                (status == TUTTI_OK && pg_end(second) == TUTTI_ERR_TIMEOUT));
    pg_part(comm, pg);
    return 0;
}

static int run(int size, ranks_fn *fn)
{
    struct ranks *ranks = ranks_create(size, size, 0);
    int failures = ranks_run(ranks, fn);
    ranks_destroy(ranks);
    return failures;
}

int main(void)
{
    int failures = 0, skip = ranks_skip_cuda("this test's tensors are the host's");
    if (skip)
        return skip;
    ranks_fn *const lives[] = {live_last, live_leader, live_amid};
    for (int size = 2; size <= 3; size++)
        for (size_t i = 0; i < sizeof lives / sizeof *lives; i++)
            failures += run(size, lives[i]);
    failures += run(3, live_full) + run(3, live_full_leader) + run(3, live_behind);
    return failures ? 1 : 0;
}
