/* SPDX-License-Identifier: MIT */
/*
 * What happens while ranks shrink: ranks that die or stop at named points of it, an abort, a store
 * that dies with its rank; and one shrink after the other, which leaves nothing behind.
 */
#include "faults.h"

#include "base/point.h"
#include "device.h"
#include "shrink.h"

#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { SIZE = 4, PATIENCE_MS = 1500, MANY = 100, MANY_CUDA = 8 };
enum { READY, WOKEN, TOLD, STEP }; /* flags */

/* What rank 1 does at a point of its shrink, after rank 3 has died. */
struct scenario {
    const char *point;
    int signal;
};

static const struct scenario *plan; /* the victim's */

static void hook(const char *name)
{
    if (!plan || strcmp(name, plan->point) != 0)
        return;
    const struct scenario *now = plan;
    plan = NULL;
    raise(now->signal);
}

static int open_comm(struct ranks *ranks, int rank, tutti_store_t *store, tutti_comm_t **comm)
{
    plan = NULL;
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, comm) == TUTTI_OK);
    RANKS_CHECK(shrink_check_one(*comm, 0));
    ranks_raise(ranks, READY);
    RANKS_CHECK(ranks_await(ranks, READY, SIZE));
    return 0;
}

/* ---- deaths ---------------------------------------------------------------------------------- */

static int live_twice(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct tutti_shrink_result result;
    tutti_comm_t *comm, *shrunk;
    int failed = open_comm(ranks, rank, store, &comm);
    if (failed)
        return failed;
    if (rank == 3)
        raise(SIGKILL);
    if (rank == 1)
        plan = ranks->context;
    RANKS_CHECK(shrink_without(comm, store, rank ? -1 : 3, &shrunk, &result) == TUTTI_OK);
    RANKS_CHECK(rank != 1);
    RANKS_CHECK(shrink_is(&result, shrunk, rank, 5));
    RANKS_CHECK(result.rounds == 1 || result.rounds == 2);
    tutti_comm_destroy(comm);
    RANKS_CHECK(shrink_check(shrunk, SHRINK_FEW));
    tutti_comm_destroy(shrunk);
    return 0;
}

/* 4 ranks, 3, 2: each time the last one dies amid an operation of the others. */
static int live_down(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct tutti_shrink_result result;
    tutti_comm_t *comm, *shrunk;
    uint32_t come = 0;
    int failed = open_comm(ranks, rank, store, &comm);
    if (failed)
        return failed;
    for (int size = SIZE; size > 2; size--) {
        for (int i = 0; i < SHRINK_FEW; i++)
            RANKS_CHECK(shrink_check_one(comm, i));
        /* What one rank has noticed ends the operations of all, one that it is through with too. */
        ranks_raise(ranks, STEP);
        come += (uint32_t)size;
        if (rank == size - 1) {
            RANKS_CHECK(ranks_await(ranks, STEP, come));
            raise(SIGKILL);
        }
        while (shrink_check_one(comm, 1))
            ;
        RANKS_CHECK(tutti_comm_status(comm, NULL) == TUTTI_ERR_PEER_DEAD);
        RANKS_CHECK(shrink_without(comm, store, -1, &shrunk, &result) == TUTTI_OK);
        RANKS_CHECK(shrink_is(&result, shrunk, rank, (UINT64_C(1) << (size - 1)) - 1));
        tutti_comm_destroy(comm);
        comm = shrunk;
    }
    RANKS_CHECK(shrink_check(comm, SHRINK_MANY));
    tutti_comm_destroy(comm);
    return 0;
}

/* ---- rank 1 stops ---------------------------------------------------------------------------- */

/* All others give up, name no one for dead, and exclude it. It wakes, and is told. */
static int live_stopped(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const struct tutti_shrink_options hasty = {.struct_size = sizeof hasty,
                                               .timeout_ms = PATIENCE_MS};
    struct tutti_shrink_result result = shrink_result();
    tutti_comm_t *comm, *shrunk;
    int failed = open_comm(ranks, rank, store, &comm);
    if (failed)
        return failed;
    if (rank == 1) {
        plan = ranks->context;
        RANKS_CHECK(shrink_without(comm, store, -1, &shrunk, &result) != TUTTI_OK && !shrunk);
        RANKS_CHECK(!plan);
        RANKS_CHECK(ranks_await(ranks, TOLD, SIZE - 1));
        RANKS_CHECK(shrink_without(comm, store, -1, &shrunk, &result) == TUTTI_ERR_DECLINED);
        RANKS_CHECK(tutti_comm_status(comm, NULL) != TUTTI_OK);
        tutti_comm_destroy(comm);
        return 0;
    }
    enum tutti_status status = tutti_comm_shrink(comm, store, &hasty, &shrunk, &result);
    RANKS_CHECK(status == TUTTI_ERR_TIMEOUT && strstr(tutti_last_error(), "rank"));
    RANKS_CHECK(shrink_without(comm, store, rank ? -1 : 1, &shrunk, &result) == TUTTI_OK);
    RANKS_CHECK(shrink_is(&result, shrunk, rank, 13));
    ranks_raise(ranks, TOLD);
    if (rank == 0)
        RANKS_CHECK(ranks_await(ranks, TOLD, SIZE - 1) && kill(ranks->pids[1], SIGCONT) == 0);
    RANKS_CHECK(shrink_check(shrunk, SHRINK_FEW));
    tutti_comm_destroy(comm);
    tutti_comm_destroy(shrunk);
    return 0;
}

/* ---- an abort -------------------------------------------------------------------------------- */

static void *abort_soon(void *comm)
{
    usleep(100000);
    tutti_comm_abort(comm);
    return NULL;
}

/* Rank 0 waits for rank 1, which does not come until rank 0 has aborted: nobody waits on. Then all
 * of them come. */
static int live_abort(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct tutti_shrink_result result;
    tutti_comm_t *comm, *shrunk;
    pthread_t thread;
    int failed = open_comm(ranks, rank, store, &comm);
    if (failed)
        return failed;
    if (rank == 1) {
        RANKS_CHECK(ranks_await(ranks, TOLD, SIZE - 1));
    } else {
        RANKS_CHECK(rank || pthread_create(&thread, NULL, abort_soon, comm) == 0);
        RANKS_CHECK(shrink_without(comm, store, -1, &shrunk, &result) == TUTTI_ERR_ABORTED);
        RANKS_CHECK(!shrunk && strstr(tutti_last_error(), "rank 0 aborted"));
        if (rank == 0)
            pthread_join(thread, NULL);
        ranks_raise(ranks, TOLD);
    }
    RANKS_CHECK(shrink_without(comm, store, -1, &shrunk, &result) == TUTTI_OK);
    RANKS_CHECK(shrink_is(&result, shrunk, rank, 15));
    RANKS_CHECK(shrink_check(shrunk, SHRINK_FEW));
    tutti_comm_destroy(comm);
    tutti_comm_destroy(shrunk);
    return 0;
}

/* ---- the store ------------------------------------------------------------------------------- */

/* Rank 0 serves the store and dies: that is what is said. Another store does. */
static int live_orphan(struct ranks *ranks, int rank, tutti_store_t *unused)
{
    char *url = (char *)ranks->shared;
    struct tutti_shrink_result result;
    tutti_comm_t *comm, *shrunk;
    tutti_store_t *store, *other;
    (void)unused;
    RANKS_CHECK(rank == 0 || ranks_await(ranks, STEP, 1));
    RANKS_CHECK(tutti_store_open(rank ? url : "tcp://127.0.0.1:0?server=1", RANKS_TIMEOUT_MS,
                                 &store) == TUTTI_OK);
    if (rank == 0) {
        snprintf(url, 128, "%s", tutti_store_url(store));
        ranks_raise(ranks, STEP);
    }
    int failed = open_comm(ranks, rank, store, &comm);
    if (failed)
        return failed;
    if (rank == 0)
        raise(SIGKILL);
    while (shrink_check_one(comm, 1))
        ;
    RANKS_CHECK(shrink_without(comm, store, -1, &shrunk, &result) == TUTTI_ERR_SYSTEM && !shrunk);
    RANKS_CHECK(strstr(tutti_last_error(), "their store failed (rank 0"));
    snprintf(url + 128 * rank, 128, "file:%s-store", getenv("TUTTI_DIR"));
    RANKS_CHECK(tutti_store_open(url + 128 * rank, RANKS_TIMEOUT_MS, &other) == TUTTI_OK);
    RANKS_CHECK(shrink_without(comm, other, -1, &shrunk, &result) == TUTTI_OK);
    RANKS_CHECK(shrink_is(&result, shrunk, rank, 14));
    RANKS_CHECK(shrink_check(shrunk, SHRINK_FEW));
    tutti_comm_destroy(comm);
    tutti_comm_destroy(shrunk);
    tutti_store_close(store);
    tutti_store_close(other);
    return 0;
}

/* ---- nothing left ---------------------------------------------------------------------------- */

static int entries_of(const char *path)
{
    int count = 0;
    DIR *stream = opendir(path);
    while (stream && readdir(stream))
        count++;
    if (stream)
        closedir(stream);
    return count;
}

static int mappings(void)
{
    int count = 0;
    FILE *file = fopen("/proc/self/maps", "r");
    for (int c; file && (c = fgetc(file)) != EOF;)
        count += c == '\n';
    if (file)
        fclose(file);
    return count;
}

static int live_many(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const int many = device_is_cuda() ? MANY_CUDA : MANY;
    struct tutti_shrink_result result;
    int descriptors = 0, maps = 0;
    tutti_comm_t *comm, *shrunk;
    int failed = open_comm(ranks, rank, store, &comm);
    if (failed)
        return failed;
    for (int i = 1; i <= many; i++) {
        RANKS_CHECK(shrink_without(comm, store, -1, &shrunk, &result) == TUTTI_OK);
        tutti_comm_destroy(comm);
        comm = shrunk;
        RANKS_CHECK(shrink_check(comm, 2));
        if (i != 5 && i != many)
            continue;
        /* The first ones have opened what a process opens once. A mapping that the allocator of
         * memory has added to its own is none of ours. A long wait for the store looks for exits by
         * a second connection, which the store keeps. */
        RANKS_CHECK(i == 5 || entries_of("/proc/self/fd") <= descriptors + 1);
        RANKS_CHECK(i == 5 || mappings() <= maps + 8);
        descriptors = entries_of("/proc/self/fd");
        maps = mappings();
    }
    tutti_comm_destroy(comm);
    return 0;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static int run(const char *title, ranks_fn *fn, const struct scenario *scenario,
               uint64_t expendable)
{
    struct ranks *ranks = ranks_create(SIZE, SIZE, 128 * SIZE);
    ranks->context = scenario;
    ranks->expendable = expendable;
    int failures = ranks_run(ranks, fn);
    for (int r = 0; r < SIZE; r++)
        if (expendable >> r & 1 && ranks->results[r].signal != SIGKILL)
            failures += printf("rank %d was not at its point\n", r) > 0;
    if (failures)
        printf("failed: %s %s\n", title, scenario ? scenario->point : "");
    ranks_destroy(ranks);
    return failures;
}

int main(void)
{
    static const char *const points[] = {"agree.entered", "shrink.agreed",    "open.arena",
                                         "open.handles",  "shrink.assembled", "cuda.prepared",
                                         "cuda.handles"};
    char path[64];
    int failures = 0, skip = ranks_skip(SIZE);
    if (skip)
        return skip;
    point_hook = hook;
    faults_directory_create();
    snprintf(path, sizeof path, "%s-store", getenv("TUTTI_DIR"));
    for (size_t i = 0; i < (device_is_cuda() ? 7 : 5); i++) {
        const struct scenario dies = {points[i], SIGKILL}, stops = {points[i], SIGSTOP};
        failures += run("dies", live_twice, &dies, 10);
        if (!ranks_short() || i == 1)
            failures += run("stops", live_stopped, &stops, 0);
    }
    failures += run("down", live_down, NULL, 12);
    failures += run("abort", live_abort, NULL, 0);
    failures += run("orphan", live_orphan, NULL, 1);
    failures += run("many", live_many, NULL, 0);
    unlink(path);
    return failures + faults_directory_check() ? 1 : 0;
}
