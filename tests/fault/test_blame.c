/* SPDX-License-Identifier: MIT */
/*
 * Who is to blame. A rank that tells of its end and leaves between a waiter's look at what the
 * others tell and its look at who has left: the waiter says what the rank told, not that it is
 * gone. A rank that is gone before the operation, or dies in it: a waiter for another one, who
 * never calls, says so at once. A rank that comes late in a hybrid cube mesh: every rank whose time
 * ends names it, even if the rank that it waits for has itself failed a moment ago.
 */
#include "base/point.h"
#include "ranks.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { LOOKING = 1, LEFT, READY, DONE, FAILED };
enum { LARGE = 1 << 18 }; /* elements */

void (*point_hook)(const char *name);

static _Thread_local struct ranks *waiter;
static bool doomed; /* this process, once it waits */

/* Time-outs of rank 0 and of rank 4, which reaches the moment in question before its own ends. */
enum { SHORT_MS = 100, LATE_MS = 2000, MESH = 8 };

/* A rank of a hybrid cube mesh in which rank 2 stands still before it publishes its input. Rank 0,
 * of the same quad, waits for rank 2; rank 4 of the other quad waits for rank 0, its partner. */
static _Thread_local struct {
    struct ranks *ranks;
    int rank;
    bool folded; /* the sums of the own quad are published */
} link_of;

/* Rank 4 stands between its look at the others' faults and its look at the clock until both
 * time-outs have ended and rank 0 has failed. */
static void hook_late(const char *name)
{
    struct ranks *ranks = link_of.ranks;
    if (strcmp(name, "mesh.filled") == 0 && link_of.rank == 2)
        (void)ranks_await(ranks, FAILED, MESH - 1);
    if (strcmp(name, "mesh.folded") == 0)
        link_of.folded = true;
    if (strcmp(name, "look.told") != 0 || link_of.rank != 4 || !link_of.folded)
        return;
    link_of.ranks = NULL;
    (void)ranks_await(ranks, FAILED, 1);
    usleep(LATE_MS * 1000);
}

/* The other rank ends and leaves while this one stands here. */
static void hook(const char *name)
{
    struct ranks *ranks = waiter;
    if (link_of.ranks)
        hook_late(name);
    if (strcmp(name, "look.told") != 0)
        return;
    if (doomed)
        raise(SIGKILL);
    if (!ranks)
        return;
    waiter = NULL;
    ranks_raise(ranks, LOOKING);
    (void)ranks_await(ranks, LEFT, 1);
}

static int blame(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct tutti_fault fault = {.struct_size = sizeof fault};
    tutti_comm_t *comm;
    float x = 1;
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    if (rank == 0) {
        waiter = ranks;
        RANKS_CHECK(tutti_all_reduce(&x, &x, 1, TUTTI_FLOAT32, TUTTI_SUM, comm, 0) ==
                    TUTTI_ERR_ABORTED);
        RANKS_CHECK(tutti_comm_status(comm, &fault) == TUTTI_ERR_ABORTED && fault.peer == 1);
    } else {
        RANKS_CHECK(ranks_await(ranks, LOOKING, 1));
        tutti_comm_abort(comm);
    }
    tutti_comm_destroy(comm);
    ranks_raise(ranks, LEFT);
    return 0;
}

static int late(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct tutti_call_options options = {.struct_size = sizeof options,
                                         .algo = TUTTI_ALGO_HYBRID_CUBE_MESH,
                                         .timeout_ms = rank == 0   ? SHORT_MS
                                                       : rank == 4 ? LATE_MS
                                                                   : RANKS_TIMEOUT_MS};
    struct tutti_fault fault = {.struct_size = sizeof fault};
    unsigned char data[20000] = {0};
    tutti_comm_t *comm;
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    link_of.ranks = ranks;
    link_of.rank = rank;
    link_of.folded = false;
    RANKS_CHECK(tutti_all_reduce_with(data, data, sizeof data, TUTTI_UINT8, TUTTI_SUM, comm, 0,
                                      &options) == TUTTI_ERR_TIMEOUT);
    link_of.ranks = NULL;
    ranks_raise(ranks, FAILED);
    RANKS_CHECK(tutti_comm_status(comm, &fault) == TUTTI_ERR_TIMEOUT && fault.peer == 2);
    RANKS_CHECK(ranks_await(ranks, FAILED, MESH));
    tutti_comm_destroy(comm);
    return 0;
}

/* One of three is gone, by death or by leaving, one waits, one never calls. */
struct absence {
    int gone;
    size_t count; /* of elements; 0: a barrier */
    bool amid;    /* it dies where it waits, too */
};

static enum tutti_status operation(tutti_comm_t *comm, size_t count)
{
    static float data[LARGE];
    return count ? tutti_all_reduce(data, data, count, TUTTI_FLOAT32, TUTTI_SUM, comm, 0)
                 : tutti_barrier(comm, NULL, 0, 0);
}

static int absent(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const struct absence *absence = ranks->context;
    struct tutti_fault fault = {.struct_size = sizeof fault};
    tutti_comm_t *comm;
    float x = 1;
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    RANKS_CHECK(tutti_all_reduce(&x, &x, 1, TUTTI_FLOAT32, TUTTI_SUM, comm, 0) == TUTTI_OK);
    ranks_raise(ranks, READY);
    RANKS_CHECK(ranks_await(ranks, READY, 3));
    if (rank == absence->gone && ranks->processes && !absence->amid)
        raise(SIGKILL);
    if (rank == absence->gone && absence->amid) {
        doomed = true;
        RANKS_CHECK(operation(comm, absence->count) != TUTTI_OK); /* not reached */
    } else if (rank == 0) {
        RANKS_CHECK(operation(comm, absence->count) == TUTTI_ERR_PEER_DEAD);
        RANKS_CHECK(tutti_comm_status(comm, &fault) == TUTTI_ERR_PEER_DEAD);
        RANKS_CHECK(fault.peer == absence->gone);
        ranks_raise(ranks, DONE);
    } else if (rank != absence->gone) {
        RANKS_CHECK(ranks_await(ranks, DONE, 1));
    }
    tutti_comm_destroy(comm);
    return 0;
}

static int run(int size, bool processes, ranks_fn *fn, const struct absence *absence)
{
    struct ranks *ranks = ranks_create(size, processes ? size : 0, 0);
    ranks->context = absence;
    if (processes && absence)
        ranks->expendable = UINT64_C(1) << absence->gone;
    int failed = ranks_run(ranks, fn);
    if (ranks->expendable && ranks->results[absence->gone].signal != SIGKILL)
        failed += printf("rank %d was not at its point\n", absence->gone) > 0;
    ranks_destroy(ranks);
    return failed;
}

int main(int argc, char **argv)
{
    static const size_t counts[] = {0, 1, LARGE};
    bool processes = argc == 2 && strcmp(argv[1], "processes") == 0;
    point_hook = hook;
    int failed = run(2, processes, blame, NULL) + run(MESH, processes, late, NULL);
    for (int gone = 1; gone < 3; gone++)
        for (int i = 0; i < 6; i++)
            if (processes || i < 3)
                failed += run(3, processes, absent,
                              &(struct absence){gone, .count = counts[i % 3], .amid = i >= 3});
    return failed;
}
