/* SPDX-License-Identifier: MIT */
/*
 * Faults of one rank while a communicator is split: it dies, aborts the parent, calls something
 * else or nothing, or has no memory. No rank waits longer than the time-out, all name the victim,
 * and what had succeeded works on.
 *
 * usage: test_split_faults threads|processes
 */
#include "base/point.h"
#include "device.h"
#include "ranks.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

enum { VICTIM = 2, SHORT_MS = 300 };

/* What the victim does, and where. */
struct scenario {
    const char *point;
    int passage; /* from 1 */
    bool early;  /* the other ranks cannot succeed any more; on CUDA everywhere but at the end */
    bool cuda;   /* on CUDA alone */
};

/* A rank passes "open.handles" after it has sent its descriptor, and needs a round after it. */
static const struct scenario scenarios[] = {
    {"split.members", 1, true, false},  {"open.arena", 1, true, false},
    {"channel.opened", 1, true, false}, {"open.handles", 1, true, false},
    {"open.joined", 1, false, false},   {"open.settles", 1, false, false},
    {"cuda.prepared", 1, true, true},   {"cuda.handles", 1, true, true},
    {"cuda.joined", 1, true, true},     {"split.done", 1, false, false},
};

static bool is_early(const struct scenario *scenario)
{
    return scenario->early || (device_is_cuda() && strcmp(scenario->point, "split.done") != 0);
}

void (*point_hook)(const char *name);

static tutti_comm_t *const none;
static _Thread_local struct armed {
    const struct scenario *scenario;
    int passages;
    bool dies;
    bool has_passed;
    tutti_comm_t *comm;
} armed;

static void hook(const char *name)
{
    if (!armed.scenario || strcmp(name, armed.scenario->point) != 0 ||
        ++armed.passages != armed.scenario->passage)
        return;
    armed.has_passed = true;
    if (armed.dies)
        raise(SIGKILL);
    tutti_comm_abort(armed.comm);
}

int __real_memfd_create(const char *name, unsigned flags);
int __wrap_memfd_create(const char *name, unsigned flags);
static _Thread_local bool has_no_memory;

int __wrap_memfd_create(const char *name, unsigned flags)
{
    if (has_no_memory && strcmp(name, "tutti-arena") == 0) {
        errno = ENOMEM;
        return -1;
    }
    return __real_memfd_create(name, flags);
}

static bool works(tutti_comm_t *comm)
{
    int32_t one = 1, sum = 0;
    return tutti_all_reduce(&one, &sum, 1, TUTTI_INT32, TUTTI_SUM, comm, TUTTI_STREAM_DEFAULT) ==
               TUTTI_OK &&
           sum == tutti_comm_world_size(comm);
}

static enum tutti_status call(tutti_comm_t *comm)
{
    int32_t one = 1, sum = 0;
    return tutti_all_reduce(&one, &sum, 1, TUTTI_INT32, TUTTI_SUM, comm, TUTTI_STREAM_DEFAULT);
}

/* The odd ranks are not in the victim's communicator. */
static int suffer(struct ranks *ranks, int rank, tutti_comm_t *comm, enum tutti_status expected)
{
    const struct scenario *scenario = ranks->context;
    const bool with_victim = rank % 2 == VICTIM % 2;
    tutti_comm_t *sub;
    enum tutti_status status = tutti_comm_split(comm, rank % 2, 0, NULL, &sub);
    RANKS_CHECK(status == TUTTI_OK || status == expected);
    RANKS_CHECK(!is_early(scenario) || (status == expected && sub == none));
    RANKS_CHECK(status == TUTTI_OK || (is_early(scenario) || with_victim));
    if (status != TUTTI_OK)
        RANKS_CHECK(
            strstr(tutti_last_error(), "rank 2") ||
            ((device_is_cuda() || !is_early(scenario)) && strstr(tutti_last_error(), "rank 1")));
    if (sub && !with_victim)
        RANKS_CHECK(works(sub));
    if (sub && with_victim && expected == TUTTI_ERR_PEER_DEAD)
        RANKS_CHECK(call(sub) == TUTTI_ERR_PEER_DEAD && call(sub) == TUTTI_ERR_PEER_DEAD);
    RANKS_CHECK(call(comm) == expected);
    tutti_comm_destroy(sub);
    return 0;
}

static int die(struct ranks *ranks, int rank, tutti_store_t *store)
{
    tutti_comm_t *comm;
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    if (rank == VICTIM)
        armed = (struct armed){.scenario = ranks->context, .dies = true};
    const int failed = suffer(ranks, rank, comm, TUTTI_ERR_PEER_DEAD);
    RANKS_CHECK(rank != VICTIM || !"passed its point alive");
    tutti_comm_destroy(comm);
    return failed;
}

/* An abort ends the split on all ranks that are in it. Communicators that are complete live on. */
static int end(struct ranks *ranks, int rank, tutti_store_t *store)
{
    tutti_comm_t *comm, *sub = none;
    const struct scenario *scenario = ranks->context;
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    if (rank == VICTIM)
        armed = (struct armed){.scenario = scenario, .comm = comm};
    const enum tutti_status status = tutti_comm_split(comm, rank % 2, 0, NULL, &sub);
    RANKS_CHECK(status == TUTTI_ERR_ABORTED || (status == TUTTI_OK && !is_early(scenario)));
    RANKS_CHECK((sub != none) == (status == TUTTI_OK));
    RANKS_CHECK(rank != VICTIM || armed.has_passed);
    armed.scenario = NULL;
    RANKS_CHECK(call(comm) == TUTTI_ERR_ABORTED);
    tutti_comm_destroy(sub);
    tutti_comm_destroy(comm);
    return 0;
}

static int mismatch(struct ranks *ranks, int rank, tutti_store_t *store)
{
    for (int splits = 0; splits < 2; splits++) { /* the victim alone, or all others */
        tutti_comm_t *comm, *sub = none;
        enum tutti_status status;
        RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
        RANKS_CHECK(works(comm));
        if ((rank == VICTIM) == (splits == 0))
            status = tutti_comm_split(comm, 0, 0, NULL, &sub);
        else
            status = call(comm);
        RANKS_CHECK(status == TUTTI_ERR_MISMATCH && sub == none);
        RANKS_CHECK(strstr(tutti_last_error(), " has split") &&
                    strstr(tutti_last_error(), " has all_reduce of 1 int32"));
        tutti_comm_destroy(comm);
    }
    return 0;
}

static int late(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const struct tutti_comm_options options = {.struct_size = sizeof options,
                                               .timeout_ms = SHORT_MS};
    struct tutti_fault fault = {.struct_size = sizeof fault};
    tutti_comm_t *first, *comm, *sub;
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &first) == TUTTI_OK);
    RANKS_CHECK(tutti_comm_dup(first, &options, &comm) == TUTTI_OK);
    if (rank != VICTIM) {
        RANKS_CHECK(tutti_comm_dup(comm, NULL, &sub) == TUTTI_ERR_TIMEOUT && sub == none);
        RANKS_CHECK(strstr(tutti_last_error(), "rank 2"));
        RANKS_CHECK(tutti_comm_status(comm, &fault) == TUTTI_ERR_TIMEOUT && fault.sequence == 1);
    }
    RANKS_CHECK(works(first)); /* the victim waits here */
    tutti_comm_destroy(comm);
    tutti_comm_destroy(first);
    return 0;
}

/* The failure is that of all ranks, and the parent works on. */
static int shortage(struct ranks *ranks, int rank, tutti_store_t *store)
{
    tutti_comm_t *comm, *sub;
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    for (int i = 0; i < 3; i++) {
        has_no_memory = rank == VICTIM;
        const enum tutti_status status = tutti_comm_split(comm, rank % 2, 0, NULL, &sub);
        has_no_memory = false;
        RANKS_CHECK(status == TUTTI_ERR_NO_MEMORY && sub == none);
        RANKS_CHECK(rank == VICTIM || strstr(tutti_last_error(), "rank 2: "));
        RANKS_CHECK(works(comm));
    }
    RANKS_CHECK(tutti_comm_split(comm, rank % 2, 0, NULL, &sub) == TUTTI_OK && works(sub));
    tutti_comm_destroy(sub);
    tutti_comm_destroy(comm);
    return 0;
}

static int run(const char *kind, const char *title, const struct scenario *scenario, ranks_fn *fn)
{
    const bool threads = strcmp(kind, "threads") == 0;
    int failures = 0;
    for (int size = device_is_cuda() ? 4 : 3; size <= 5 && ranks_fit(size); size++) {
        struct ranks *ranks = ranks_create(size, threads ? 0 : size, 0);
        ranks->context = scenario;
        if (fn == die)
            ranks->expendable = 1 << VICTIM;
        const int failed = ranks_run(ranks, fn);
        if (failed)
            fprintf(stderr, "%s at %s, %d ranks: %d failed\n", title,
                    scenario ? scenario->point : "none", size, failed);
        failures += failed;
        ranks_destroy(ranks);
    }
    return failures;
}

int main(int argc, char **argv)
{
    int failures = 0;
    if (argc != 2)
        return 2;
    const int skip = ranks_skip(4);
    if (skip)
        return skip;
    const bool threads = strcmp(argv[1], "threads") == 0;
    point_hook = hook;
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++) {
        if ((threads && strcmp(scenarios[i].point, "channel.opened") == 0) ||
            (scenarios[i].cuda && !device_is_cuda()))
            continue;
        if (!threads)
            failures += run(argv[1], "death", &scenarios[i], die);
        failures += run(argv[1], "abort", &scenarios[i], end);
    }
    if (!device_is_cuda()) /* where a kernel waits for this rank, and this rank for its host */
        failures += run(argv[1], "mismatch", NULL, mismatch);
    failures += run(argv[1], "late", NULL, late);
    failures += run(argv[1], "shortage", NULL, shortage);
    return failures ? 1 : 0;
}
