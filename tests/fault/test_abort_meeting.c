/* SPDX-License-Identifier: MIT */
/*
 * tutti_comm_abort() while ranks meet, or shrink, and one of them is stuck at a named point: the
 * waits of those who abort end at once, those of a shrink on all ranks, which may shrink again.
 * Says how long that took; the bound is ten times what is promised. An abort that comes when the
 * meeting has looked for one the last time ends what comes after it.
 */
#include "faults.h"

#include "base/deadline.h"
#include "base/point.h"
#include "device.h"
#include "shrink.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { SIZE = 3, STUCK = 2, PATIENCE_MS = 2000, SOON_MS = 10000 };
enum { AT_POINT, OVER, HEARD }; /* flags */

struct shared {
    int64_t aborted_ns[SIZE];
    int64_t took_ns[SIZE];
};

/* Set on the rank that is to be stuck. */
static struct ranks *stuck;

/* Set on the rank that is to abort when it has met. */
static tutti_comm_t *hasty;

/* Set on the rank that aborts when it has told the others where it listens, and on those that go on
 * from there when it has given up. */
static tutti_comm_t *alone;
static struct ranks *behind;

static void hook(const char *name)
{
    struct ranks *ranks = stuck;
    if (hasty && strcmp(name, "open.settles") == 0)
        tutti_comm_abort(hasty);
    if (alone && strcmp(name, "channel.announced") == 0)
        tutti_comm_abort(alone);
    if (behind && strcmp(name, "channel.announced") == 0)
        ranks_await(behind, OVER, 1);
    if (!ranks || strcmp(name, ranks->context) != 0)
        return;
    stuck = NULL;
    ranks_raise(ranks, AT_POINT);
    ranks_await(ranks, OVER, SIZE - 1);
}

/* ---- aborting -------------------------------------------------------------------------------- */

struct aborter {
    pthread_t thread;
    struct ranks *ranks;
    int rank;
    tutti_comm_t *comm;
};

static void *abort_soon(void *argument)
{
    struct aborter *self = argument;
    struct shared *shared = (struct shared *)(void *)self->ranks->shared;
    if (!ranks_await(self->ranks, AT_POINT, 1))
        return NULL;
    usleep(30000); /* likely, not necessarily, in the wait by now */
    shared->aborted_ns[self->rank] = deadline_now();
    tutti_comm_abort(self->comm);
    return NULL;
}

static bool aborter_start(struct aborter *self, struct ranks *ranks, int rank, tutti_comm_t *comm)
{
    *self = (struct aborter){.ranks = ranks, .rank = rank, .comm = comm};
    return pthread_create(&self->thread, NULL, abort_soon, self) == 0;
}

/* After the call that was aborted. */
static void aborter_end(struct aborter *self)
{
    struct shared *shared = (struct shared *)(void *)self->ranks->shared;
    int64_t now = deadline_now();
    pthread_join(self->thread, NULL);
    shared->took_ns[self->rank] = now - shared->aborted_ns[self->rank];
    ranks_raise(self->ranks, OVER);
}

/* ---- the two meetings ------------------------------------------------------------------------ */

static int live_meet(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct tutti_comm_options options = {.struct_size = sizeof options, .defer = true};
    struct aborter aborter;
    tutti_comm_t *comm;
    stuck = rank == STUCK ? ranks : NULL;
    if (rank == STUCK)
        options.timeout_ms = PATIENCE_MS;
    RANKS_CHECK(ranks_join(ranks, rank, store, &options, &comm) == TUTTI_OK);
    if (rank == STUCK) {
        enum tutti_status status = tutti_comm_rendezvous(comm);
        if (status == TUTTI_OK) /* the others had done their part */
            status = tutti_comm_status(comm, NULL);
        RANKS_CHECK(status != TUTTI_OK && !stuck);
    } else {
        RANKS_CHECK(aborter_start(&aborter, ranks, rank, comm));
        enum tutti_status status = tutti_comm_rendezvous(comm);
        aborter_end(&aborter);
        if (status == TUTTI_OK) /* it did not wait for the one that is stuck */
            status = tutti_comm_status(comm, NULL);
        /* Or the other one's abort was faster, and shows as its departure. */
        RANKS_CHECK(status == TUTTI_ERR_ABORTED || status == TUTTI_ERR_PEER_DEAD);
    }
    tutti_comm_destroy(comm);
    return 0;
}

static int live_shrink(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct tutti_shrink_result result;
    struct aborter aborter;
    tutti_comm_t *comm, *shrunk;
    stuck = NULL;
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    stuck = rank == STUCK ? ranks : NULL;
    if (rank == 0)
        RANKS_CHECK(aborter_start(&aborter, ranks, rank, comm));
    enum tutti_status status = shrink_without(comm, store, -1, &shrunk, &result);
    if (rank == 0)
        aborter_end(&aborter);
    RANKS_CHECK(status == TUTTI_ERR_ABORTED && !shrunk);
    RANKS_CHECK(strstr(tutti_last_error(), "rank 0 aborted"));
    if (rank == 1)
        ranks_raise(ranks, OVER);
    RANKS_CHECK(shrink_without(comm, store, -1, &shrunk, &result) == TUTTI_OK);
    RANKS_CHECK(shrink_is(&result, shrunk, rank, 7) && shrink_check(shrunk, 20));
    tutti_comm_destroy(comm);
    tutti_comm_destroy(shrunk);
    return 0;
}

/* Rank 0 makes no call, in which it would tell the others itself. */
static int live_late(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const struct tutti_comm_options options = {.struct_size = sizeof options, .defer = true};
    const struct tutti_call_options limit = {.struct_size = sizeof limit,
                                             .timeout_ms = PATIENCE_MS};
    tutti_comm_t *comm;
    RANKS_CHECK(ranks_join(ranks, rank, store, &options, &comm) == TUTTI_OK);
    hasty = rank == 0 ? comm : NULL;
    RANKS_CHECK(tutti_comm_rendezvous(comm) == TUTTI_OK);
    hasty = NULL;
    if (rank == 0) {
        RANKS_CHECK(ranks_await(ranks, OVER, SIZE - 1));
    } else {
        enum tutti_status status = tutti_barrier_with(comm, NULL, 0, TUTTI_STREAM_DEFAULT, &limit);
        ranks_raise(ranks, OVER);
        RANKS_CHECK(status == TUTTI_ERR_ABORTED);
    }
    tutti_comm_destroy(comm);
    return 0;
}

/* One rank alone aborts. It has been to the others' sockets by then, who find it gone, or, rank 1,
 * rank 0, which heard of it first. */
static int live_alone(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct shared *shared = (struct shared *)(void *)ranks->shared;
    const struct tutti_comm_options options = {.struct_size = sizeof options, .defer = true};
    char text[512];
    tutti_comm_t *comm;
    RANKS_CHECK(ranks_join(ranks, rank, store, &options, &comm) == TUTTI_OK);
    alone = rank == STUCK ? comm : NULL;
    behind = rank == STUCK ? NULL : ranks;
    int64_t began = deadline_now();
    enum tutti_status status = tutti_comm_rendezvous(comm);
    snprintf(text, sizeof text, "%s", tutti_last_error());
    shared->took_ns[rank] = deadline_now() - began;
    ranks_raise(ranks, rank == STUCK ? OVER : HEARD);
    if (rank == STUCK) /* a process that ends is noticed anyway */
        RANKS_CHECK(ranks_await(ranks, HEARD, SIZE - 1));
    RANKS_CHECK(status == (rank == STUCK ? TUTTI_ERR_ABORTED : TUTTI_ERR_PEER_DEAD));
    RANKS_CHECK(strstr(text, rank == STUCK ? "aborted" : "rank 2") ||
                (rank == 1 && strstr(text, "rank 0 ended, or gave up")));
    tutti_comm_destroy(comm);
    return 0;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static int run(const char *title, ranks_fn *fn, const char *point)
{
    struct ranks *ranks = ranks_create(SIZE, SIZE, sizeof(struct shared));
    const struct shared *shared = (const struct shared *)(void *)ranks->shared;
    ranks->context = point;
    int failures = ranks_run(ranks, fn);
    int64_t took_ns = 0;
    for (int r = 0; r < SIZE; r++)
        took_ns = shared->took_ns[r] > took_ns ? shared->took_ns[r] : took_ns;
    printf("%s, at %s: within %.2f ms%s\n", title, point, (double)took_ns / 1e6,
           failures ? ", FAILED" : "");
    ranks_destroy(ranks);
    return failures || took_ns > (int64_t)SOON_MS * 1000000 ? 1 : 0;
}

int main(void)
{
    static const char *const points[] = {"meet.joined",    "open.arena",   "channel.announced",
                                         "channel.opened", "open.handles", "open.joined",
                                         "cuda.prepared",  "cuda.handles", "cuda.joined"};
    static const char *const shrink_points[] = {"agree.entered", "shrink.agreed",
                                                "shrink.assembled"};
    enum { MEET = 1, CPU_POINTS = 6 }; /* that a shrink lacks; of any device */
    const size_t count = device_is_cuda() ? sizeof points / sizeof *points : CPU_POINTS;
    const size_t stride = ranks_short() ? 3 : 1; /* over points of any device */
    int failures = 0, skip = ranks_skip(SIZE);
    if (skip)
        return skip;
    point_hook = hook;
    faults_directory_create();
    for (size_t i = 0; i < count; i += i < CPU_POINTS ? stride : 1)
        failures += run("meeting", live_meet, points[i]);
    for (size_t i = MEET; i < count; i += i < CPU_POINTS ? stride : 1)
        failures += run("shrinking", live_shrink, points[i]);
    for (size_t i = 0; i < sizeof shrink_points / sizeof *shrink_points; i++)
        failures += run("shrinking", live_shrink, shrink_points[i]);
    failures += run("meeting, aborted by one", live_alone, "channel.announced");
    /* A device's meeting looks again behind this point. */
    if (!device_is_cuda())
        failures += run("meeting, aborted at its end", live_late, "open.settles");
    return failures + faults_directory_check() ? 1 : 0;
}
