/* SPDX-License-Identifier: MIT */
/*
 * tutti_comm_shrink() without a death: of a communicator that is well or was aborted, with ranks
 * that are excluded, that left, that never call or call late; what it says, what it refuses, and
 * what becomes of the old one. Ranks that die are in tests/fault.
 *
 * usage: test_shrink threads|processes|mixed (two processes with two ranks each)
 */
#include "device.h"
#include "shrink.h"

#include <stdio.h>

enum { SIZE = 4, BEFORE = 3, PATIENCE_MS = 600 };
enum { ENTERED, DONE, TRIED }; /* flags */

static const uint64_t everybody = (1 << SIZE) - 1;

/* A communicator that has done something. */
static int open_comm(struct ranks *ranks, int rank, tutti_store_t *store, tutti_comm_t **comm)
{
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, comm) == TUTTI_OK);
    for (int i = 0; i < BEFORE; i++)
        RANKS_CHECK(shrink_check_one(*comm, i));
    ranks_raise(ranks, ENTERED);
    RANKS_CHECK(ranks_await(ranks, ENTERED, SIZE));
    return 0;
}

/* The old one is over, the new one works; then both go. */
static int go_on(struct ranks *ranks, int rank, tutti_comm_t *comm, tutti_comm_t *shrunk,
                 enum tutti_status over)
{
    float x = 1;
    RANKS_CHECK(tutti_comm_status(comm, NULL) == over);
    RANKS_CHECK(tutti_all_reduce(&x, &x, 1, TUTTI_FLOAT32, TUTTI_SUM, comm, TUTTI_STREAM_DEFAULT) ==
                over);
    RANKS_CHECK(shrink_check(shrunk, SHRINK_FEW));
    tutti_comm_destroy(comm);
    RANKS_CHECK(shrink_check(shrunk, 5));
    tutti_comm_destroy(shrunk);
    return 0;
}

static int healthy(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct tutti_shrink_result result;
    tutti_comm_t *comm, *shrunk, *second;
    int failed = open_comm(ranks, rank, store, &comm);
    if (failed)
        return failed;
    RANKS_CHECK(shrink_without(comm, store, -1, &shrunk, &result) == TUTTI_OK);
    RANKS_CHECK(shrink_is(&result, shrunk, rank, everybody));
    RANKS_CHECK(result.completed_by_all == BEFORE && result.completed_by_any == BEFORE);
    RANKS_CHECK(result.rounds == 1);
    RANKS_CHECK(shrink_without(comm, store, -1, &second, &result) == TUTTI_ERR_INVALID && !second);
    RANKS_CHECK(result.rank == -1 && result.world_size == -1 && result.new_ranks[0] == -1);
    return go_on(ranks, rank, comm, shrunk, TUTTI_ERR_ABORTED);
}

static int aborted(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct tutti_shrink_result result;
    tutti_comm_t *comm, *shrunk;
    int failed = open_comm(ranks, rank, store, &comm);
    if (failed)
        return failed;
    if (rank == 1)
        tutti_comm_abort(comm);
    RANKS_CHECK(shrink_without(comm, store, -1, &shrunk, &result) == TUTTI_OK);
    RANKS_CHECK(shrink_is(&result, shrunk, rank, everybody));
    RANKS_CHECK(result.completed_by_all == BEFORE && result.completed_by_any == BEFORE);
    return go_on(ranks, rank, comm, shrunk, TUTTI_ERR_ABORTED);
}

/* Rank 1 is left out by some, does not know of it, and finds the communicator over. */
static int excluded(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct tutti_shrink_result result;
    tutti_comm_t *comm, *shrunk;
    float x = 1;
    int failed = open_comm(ranks, rank, store, &comm);
    if (failed)
        return failed;
    if (rank == 1) {
        RANKS_CHECK(tutti_all_reduce(&x, &x, 1, TUTTI_FLOAT32, TUTTI_SUM, comm,
                                     TUTTI_STREAM_DEFAULT) == TUTTI_ERR_ABORTED);
        RANKS_CHECK(shrink_without(comm, store, -1, &shrunk, &result) == TUTTI_ERR_DECLINED);
        RANKS_CHECK(!shrunk && strstr(tutti_last_error(), "rank 0, rank 2, rank 3"));
        tutti_comm_destroy(comm);
        return 0;
    }
    RANKS_CHECK(shrink_without(comm, store, rank == 2 ? -1 : 1, &shrunk, &result) == TUTTI_OK);
    RANKS_CHECK(shrink_is(&result, shrunk, rank, everybody & ~UINT64_C(2)));
    return go_on(ranks, rank, comm, shrunk, TUTTI_ERR_ABORTED);
}

/* Two ranks are excluded, by one rank each, and call nevertheless. */
static int differing(struct ranks *ranks, int rank, tutti_store_t *store)
{
    static const int lists[SIZE] = {3, 2, -1, -1};
    struct tutti_shrink_result result;
    tutti_comm_t *comm, *shrunk;
    int failed = open_comm(ranks, rank, store, &comm);
    if (failed)
        return failed;
    enum tutti_status status = shrink_without(comm, store, lists[rank], &shrunk, &result);
    if (rank >= 2) {
        RANKS_CHECK(status == TUTTI_ERR_DECLINED && !shrunk);
        tutti_comm_destroy(comm);
        return 0;
    }
    RANKS_CHECK(status == TUTTI_OK);
    RANKS_CHECK(shrink_is(&result, shrunk, rank, 3));
    return go_on(ranks, rank, comm, shrunk, TUTTI_ERR_ABORTED);
}

/* Who has destroyed the communicator is gone, and need not be named. */
static int left(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct tutti_shrink_result result;
    tutti_comm_t *comm, *shrunk;
    int failed = open_comm(ranks, rank, store, &comm);
    if (failed)
        return failed;
    if (rank == SIZE - 1) {
        tutti_comm_destroy(comm);
        return 0;
    }
    RANKS_CHECK(shrink_without(comm, store, -1, &shrunk, &result) == TUTTI_OK);
    RANKS_CHECK(shrink_is(&result, shrunk, rank, everybody >> 1));
    return go_on(ranks, rank, comm, shrunk, TUTTI_ERR_ABORTED);
}

/* Rank 2 does not come: it is named, then excluded, and hears of it when it comes after all. */
static int never(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const struct tutti_shrink_options hasty = {.struct_size = sizeof hasty,
                                               .timeout_ms = PATIENCE_MS};
    int new_ranks[SIZE];
    struct tutti_shrink_result result = {
        .struct_size = sizeof result, .capacity = SIZE, .new_ranks = new_ranks};
    tutti_comm_t *comm, *shrunk;
    int failed = open_comm(ranks, rank, store, &comm);
    if (failed)
        return failed;
    if (rank == 2) {
        RANKS_CHECK(ranks_await(ranks, DONE, SIZE - 1));
        RANKS_CHECK(shrink_without(comm, store, -1, &shrunk, &result) == TUTTI_ERR_DECLINED);
        tutti_comm_destroy(comm);
        return 0;
    }
    RANKS_CHECK(tutti_comm_shrink(comm, store, &hasty, &shrunk, &result) == TUTTI_ERR_TIMEOUT);
    RANKS_CHECK(!shrunk && strstr(tutti_last_error(), "rank 2 did not come"));
    for (int r = 0; r < SIZE; r++)
        RANKS_CHECK(new_ranks[r] == (r == 2 ? TUTTI_SHRINK_ABSENT : TUTTI_SHRINK_LEFT_OUT));
    RANKS_CHECK(tutti_comm_status(comm, NULL) == TUTTI_OK);
    ranks_raise(ranks, TRIED);
    RANKS_CHECK(shrink_without(comm, store, rank ? -1 : 2, &shrunk, &result) == TUTTI_OK);
    RANKS_CHECK(shrink_is(&result, shrunk, rank, everybody & ~UINT64_C(4)));
    ranks_raise(ranks, DONE);
    return go_on(ranks, rank, comm, shrunk, TUTTI_ERR_ABORTED);
}

/* Rank 0 comes when the others have given up, and all try again. */
static int late(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const struct tutti_shrink_options hasty = {.struct_size = sizeof hasty,
                                               .timeout_ms = PATIENCE_MS};
    int new_ranks[SIZE];
    struct tutti_shrink_result result = {
        .struct_size = sizeof result, .capacity = SIZE, .new_ranks = new_ranks};
    tutti_comm_t *comm, *shrunk;
    int failed = open_comm(ranks, rank, store, &comm);
    if (failed)
        return failed;
    if (rank != 0) {
        RANKS_CHECK(tutti_comm_shrink(comm, store, &hasty, &shrunk, &result) == TUTTI_ERR_TIMEOUT);
        RANKS_CHECK(new_ranks[0] == TUTTI_SHRINK_ABSENT && new_ranks[1] == TUTTI_SHRINK_LEFT_OUT);
        ranks_raise(ranks, TRIED);
    } else {
        RANKS_CHECK(ranks_await(ranks, TRIED, SIZE - 1));
    }
    RANKS_CHECK(shrink_without(comm, store, -1, &shrunk, &result) == TUTTI_OK);
    RANKS_CHECK(shrink_is(&result, shrunk, rank, everybody));
    return go_on(ranks, rank, comm, shrunk, TUTTI_ERR_ABORTED);
}

/* Some wait in an operation that lacks a rank: it fails, and that one is not to be repeated. */
static int unfinished(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct tutti_call_options hasty = {.struct_size = sizeof hasty, .timeout_ms = PATIENCE_MS};
    struct tutti_shrink_result result;
    tutti_comm_t *comm, *shrunk;
    float x = 1;
    int failed = open_comm(ranks, rank, store, &comm);
    if (failed)
        return failed;
    if (rank != 1)
        RANKS_CHECK(tutti_all_reduce_with(&x, &x, 1, TUTTI_FLOAT32, TUTTI_SUM, comm,
                                          TUTTI_STREAM_DEFAULT, &hasty) == TUTTI_ERR_TIMEOUT);
    ranks_raise(ranks, TRIED);
    RANKS_CHECK(ranks_await(ranks, TRIED, SIZE));
    RANKS_CHECK(shrink_without(comm, store, -1, &shrunk, &result) == TUTTI_OK);
    RANKS_CHECK(shrink_is(&result, shrunk, rank, everybody));
    RANKS_CHECK(result.completed_by_all == BEFORE && result.completed_by_any == BEFORE);
    return go_on(ranks, rank, comm, shrunk, TUTTI_ERR_TIMEOUT);
}

static int refused(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const int own = rank, far = SIZE;
    const struct tutti_shrink_options options[] = {
        {.struct_size = sizeof *options, .exclude = &own, .exclude_count = 1},
        {.struct_size = sizeof *options, .exclude = &far, .exclude_count = 1},
        {.struct_size = sizeof *options, .exclude_count = 1},
        {.struct_size = sizeof *options, .exclude = &far, .exclude_count = -1},
        {.struct_size = 1},
    };
    struct tutti_shrink_result result = {.struct_size = sizeof result}, bad = {.struct_size = 1};
    int few[SIZE];
    struct tutti_shrink_result small = {
        .struct_size = sizeof small, .capacity = SIZE - 1, .new_ranks = few};
    const struct tutti_comm_options deferred = {.struct_size = sizeof deferred, .defer = true};
    tutti_comm_t *comm, *shrunk, *unmet;
    int failed = open_comm(ranks, rank, store, &comm);
    if (failed)
        return failed;
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        RANKS_CHECK(tutti_comm_shrink(comm, store, &options[i], &shrunk, &result) ==
                        TUTTI_ERR_INVALID &&
                    !shrunk && result.rounds == 0);
    RANKS_CHECK(tutti_comm_shrink(NULL, store, NULL, &shrunk, NULL) == TUTTI_ERR_INVALID);
    RANKS_CHECK(tutti_comm_shrink(comm, NULL, NULL, &shrunk, NULL) == TUTTI_ERR_INVALID);
    RANKS_CHECK(tutti_comm_shrink(comm, store, NULL, NULL, NULL) == TUTTI_ERR_INVALID);
    RANKS_CHECK(tutti_comm_shrink(comm, store, NULL, &shrunk, &bad) == TUTTI_ERR_INVALID);
    RANKS_CHECK(tutti_comm_shrink(comm, store, NULL, &shrunk, &small) == TUTTI_ERR_INVALID);
    small.capacity = SIZE, small.new_ranks = NULL;
    RANKS_CHECK(tutti_comm_shrink(comm, store, NULL, &shrunk, &small) == TUTTI_ERR_INVALID);
    RANKS_CHECK(ranks_join(ranks, rank, store, &deferred, &unmet) == TUTTI_OK);
    RANKS_CHECK(tutti_comm_shrink(unmet, store, NULL, &shrunk, NULL) == TUTTI_ERR_INVALID);
    tutti_comm_destroy(unmet);
    RANKS_CHECK(shrink_check(comm, 5)); /* it is as it was */
    tutti_comm_destroy(comm);
    return 0;
}

/* One after the other, down to a rank alone. */
static int repeated(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct tutti_shrink_result result;
    tutti_comm_t *comm, *shrunk;
    int failed = open_comm(ranks, rank, store, &comm), own = rank;
    if (failed)
        return failed;
    for (int size = SIZE - 1; size >= 1; size--) {
        enum tutti_status status =
            shrink_without(comm, store, own == 0 && size > 0 ? size : -1, &shrunk, &result);
        if (own == size) {
            RANKS_CHECK(status == TUTTI_ERR_DECLINED);
            tutti_comm_destroy(comm);
            return 0;
        }
        RANKS_CHECK(status == TUTTI_OK &&
                    shrink_is(&result, shrunk, own, (UINT64_C(1) << size) - 1));
        tutti_comm_destroy(comm);
        comm = shrunk;
        own = result.rank;
        for (int i = 0; i < 20; i++) /* no more: who is left out next finds it over */
            RANKS_CHECK(shrink_check_one(comm, i));
    }
    tutti_comm_destroy(comm);
    return 0;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        ranks_fn *fn;
        bool soon; /* run also where it should be quick */
    } cases[] = {
        {"healthy", healthy, true},   {"aborted", aborted, false},
        {"excluded", excluded, true}, {"differing", differing, false},
        {"left", left, false},        {"never", never, true},
        {"late", late, false},        {"unfinished", unfinished, true},
        {"refused", refused, false},  {"repeated", repeated, false},
    };
    int failures = 0, skip = ranks_skip(SIZE);
    if (skip)
        return skip;
    const char *how = argc == 2 ? argv[1] : "threads";
    int processes = strcmp(how, "processes") == 0 ? SIZE : strcmp(how, "mixed") == 0 ? 2 : 0;
    struct ranks *ranks = ranks_create(SIZE, processes, 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (device_is_cuda() && ranks_short() && !cases[i].soon)
            continue;
        int failed = ranks_run(ranks, cases[i].fn);
        if (failed)
            printf("failed: %s\n", cases[i].name);
        failures += failed;
    }
    ranks_destroy(ranks);
    return failures ? 1 : 0;
}
