/* SPDX-License-Identifier: MIT */
/*
 * tutti_comm_abort() ends every kind of wait of a communicator, on all ranks: by a rank that the
 * others wait for, and by another thread of a rank that waits itself. Says how long that took; the
 * bound of the test is ten times what is promised. Points inside operations are in tests/fault, as
 * are the waits of a set-up.
 *
 * usage: test_abort_waits threads|processes
 */
#include "base/deadline.h"
#include "device.h"
#include "pg.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { BYTES = 640 * 1024, SOON_MS = 10000, WAITING = 0 };

/* One way to wait for the last rank. */
struct wait {
    const char *name;
    int size;
    enum tutti_algo algo;
    size_t bytes; /* of an all-reduce */
    uint32_t flags;
    enum { REDUCES, MEETS, MEETS_SOME, SUBMITS } kind;
};

static const struct wait waits[] = {
    {"small", 3, TUTTI_ALGO_ONE_SHOT, 100, 0, REDUCES},
    {"empty", 3, TUTTI_ALGO_NONE, 0, 0, REDUCES},
    {"one-shot", 3, TUTTI_ALGO_ONE_SHOT, BYTES / 5, TUTTI_CALL_NO_ZERO_COPY, REDUCES},
    {"two-shot", 3, TUTTI_ALGO_TWO_SHOT, BYTES, TUTTI_CALL_NO_ZERO_COPY, REDUCES},
    {"zero-copy", 3, TUTTI_ALGO_TWO_SHOT, BYTES, 0, REDUCES},
    {"mesh, short", 8, TUTTI_ALGO_HYBRID_CUBE_MESH, 1000, 0, REDUCES},
    {"mesh", 8, TUTTI_ALGO_HYBRID_CUBE_MESH, BYTES, 0, REDUCES},
    {"barrier", 3, TUTTI_ALGO_NONE, 0, 0, MEETS},
    {"subset", 3, TUTTI_ALGO_NONE, 0, 0, MEETS_SOME},
    {"process group", 3, TUTTI_ALGO_NONE, 4, 0, SUBMITS},
};

/* Who aborts. */
enum { BY_LAST, BY_FIRST };

struct scenario {
    const struct wait *wait;
    int who;
};

/* Lies in the shared bytes. */
struct shared {
    int64_t aborted_ns;
    int64_t took_ns; /* the longest */
};

static struct shared *shared_of(struct ranks *ranks)
{
    return (struct shared *)(void *)ranks->shared;
}

static void note_time(struct ranks *ranks)
{
    struct shared *shared = shared_of(ranks);
    int64_t took = deadline_now() - __atomic_load_n(&shared->aborted_ns, __ATOMIC_ACQUIRE);
    int64_t longest = __atomic_load_n(&shared->took_ns, __ATOMIC_RELAXED);
    while (took > longest && !__atomic_compare_exchange_n(&shared->took_ns, &longest, took, false,
                                                          __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
}

/* ---- a rank ---------------------------------------------------------------------------------- */

struct rank {
    struct ranks *ranks;
    int rank;
    tutti_comm_t *comm;
    tutti_pg_t *pg;
    tutti_symm_group_t *group; /* owns the memory of processes that take no copies */
    void *memory;
};

static int open_rank(struct rank *self, struct ranks *ranks, int rank, tutti_store_t *store)
{
    const struct scenario *scenario = ranks->context;
    *self = (struct rank){.ranks = ranks, .rank = rank};
    if (ranks->processes && !device_is_cuda()) {
        RANKS_CHECK(tutti_symm_group("waits", rank, ranks->size, store, &self->group) == TUTTI_OK);
        RANKS_CHECK(tutti_symm_alloc(self->group, TUTTI_DEVICE_CPU, BYTES, &self->memory) ==
                    TUTTI_OK);
        RANKS_CHECK(tutti_symm_rendezvous(self->memory, RANKS_TIMEOUT_MS, NULL) == TUTTI_OK);
    } else {
        self->memory = calloc(1, BYTES);
        RANKS_CHECK(self->memory);
    }
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &self->comm) == TUTTI_OK);
    if (scenario->wait->kind == SUBMITS)
        RANKS_CHECK(tutti_pg_create(self->comm, NULL, &self->pg) == TUTTI_OK);
    return 0;
}

static void close_rank(struct rank *self)
{
    tutti_pg_destroy(self->pg);
    tutti_comm_destroy(self->comm);
    if (!self->group)
        free(self->memory);
    tutti_symm_group_destroy(self->group);
}

static enum tutti_status wait_once(struct rank *self, const struct wait *wait)
{
    const int last = self->ranks->size - 1, pair[] = {self->rank, last};
    const struct tutti_call_options options = {
        .struct_size = sizeof options, .algo = wait->algo, .flags = wait->flags};
    tutti_work_t *work;
    enum tutti_status status;
    switch (wait->kind) {
    case REDUCES:
        return tutti_all_reduce_with(self->memory, self->memory, wait->bytes, TUTTI_UINT8,
                                     TUTTI_SUM, self->comm, TUTTI_STREAM_DEFAULT, &options);
    case MEETS:
        return tutti_barrier(self->comm, NULL, 0, TUTTI_STREAM_DEFAULT);
    case MEETS_SOME:
        return tutti_barrier(self->comm, pair, 2, TUTTI_STREAM_DEFAULT);
    case SUBMITS:
        status = pg_sum(self->pg, self->memory, 0, 0, &work);
        return status == TUTTI_OK ? pg_end(work) : status;
    }
    return TUTTI_ERR_INVALID;
}

/* Once all others wait, likely all asleep. */
static void abort_now(struct rank *self)
{
    if (!ranks_await(self->ranks, WAITING, (uint32_t)self->ranks->size - 1))
        return;
    usleep(30000);
    __atomic_store_n(&shared_of(self->ranks)->aborted_ns, deadline_now(), __ATOMIC_RELEASE);
    tutti_comm_abort(self->comm);
    ranks_raise(self->ranks, WAITING + 1);
}

static void *abort_elsewhere(void *self)
{
    abort_now(self);
    return NULL;
}

static int live(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const struct scenario *scenario = ranks->context;
    const int aborter = scenario->who == BY_LAST ? ranks->size - 1 : 0;
    struct rank self;
    pthread_t thread;
    char name[32];
    int failed = open_rank(&self, ranks, rank, store);
    if (failed)
        return failed;
    if (rank == ranks->size - 1) {
        if (aborter == rank)
            abort_now(&self);
        RANKS_CHECK(ranks_await(ranks, WAITING + 1, 1));
    } else {
        if (aborter == rank)
            RANKS_CHECK(pthread_create(&thread, NULL, abort_elsewhere, &self) == 0);
        ranks_raise(ranks, WAITING);
        RANKS_CHECK(wait_once(&self, scenario->wait) == TUTTI_ERR_ABORTED);
        note_time(ranks);
        snprintf(name, sizeof name, "rank %d", aborter);
        RANKS_CHECK(strstr(tutti_last_error(), name));
        if (aborter == rank)
            pthread_join(thread, NULL);
    }
    RANKS_CHECK(tutti_comm_status(self.comm, NULL) == TUTTI_ERR_ABORTED);
    if (!self.pg)
        RANKS_CHECK(tutti_barrier(self.comm, NULL, 0, TUTTI_STREAM_DEFAULT) == TUTTI_ERR_ABORTED);
    close_rank(&self);
    return 0;
}

/* ---- all of them ----------------------------------------------------------------------------- */

static int run(const struct scenario *scenario, bool processes)
{
    const int size = scenario->wait->size;
    struct ranks *ranks = ranks_create(size, processes ? size : 0, sizeof(struct shared));
    ranks->context = scenario;
    int failures = ranks_run(ranks, live);
    double took_ms = (double)shared_of(ranks)->took_ns / 1e6;
    printf("%-14s by %s: within %.2f ms%s\n", scenario->wait->name,
           scenario->who == BY_LAST ? "who is awaited" : "who waits     ", took_ms,
           failures ? ", FAILED" : "");
    ranks_destroy(ranks);
    return failures || took_ms > SOON_MS ? 1 : 0;
}

/* On CUDA ranks the CPU's algorithms and groups are not to be had. */
static bool fits(const struct wait *wait)
{
    if (!device_is_cuda())
        return true;
    return ranks_fit(wait->size) && wait->kind != SUBMITS && wait->algo <= TUTTI_ALGO_TWO_SHOT;
}

int main(int argc, char **argv)
{
    int failures = 0, skip = ranks_skip(3);
    if (skip)
        return skip;
    bool processes = argc == 2 && strcmp(argv[1], "processes") == 0;
    for (size_t i = 0; i < sizeof waits / sizeof *waits; i++)
        for (int who = BY_LAST; who <= BY_FIRST && fits(&waits[i]); who++)
            failures += run(&(struct scenario){&waits[i], who}, processes);
    return failures ? 1 : 0;
}
