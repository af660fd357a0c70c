/* SPDX-License-Identifier: MIT */
/*
 * Ranks that die while a communicator is set up: the others give up in time, and when all start
 * anew on the same store, which still holds the keys of the life before, they meet. So they do when
 * a rank has died with its communicator ready, but before the keys of that meeting were deleted.
 * The new communicator deletes its own keys.
 */
#include "base/deadline.h"
#include "base/point.h"
#include "faults.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATIENCE_MS = 1000, SLACK_MS = 5000 };

/* Who dies where in the first life. */
struct crash {
    const char *point;
    uint64_t victims;
};

static const char *deadly_point;

static void hook(const char *name)
{
    if (deadly_point && strcmp(name, deadly_point) == 0)
        raise(SIGKILL);
}

static int first_life(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const struct crash *crash = ranks->context;
    struct tutti_comm_options options = {
        .struct_size = sizeof options, .timeout_ms = PATIENCE_MS, .defer = true};
    tutti_comm_t *comm;
    deadly_point = crash->victims >> rank & 1 ? crash->point : NULL;
    int64_t start = deadline_now();
    RANKS_CHECK(ranks_join(ranks, rank, store, &options, &comm) == TUTTI_OK);
    enum tutti_status status = tutti_comm_rendezvous(comm);
    RANKS_CHECK(!deadly_point);
    if (strcmp(crash->point, "comm.ready") == 0) { /* the others had heard of nothing */
        RANKS_CHECK(status == TUTTI_OK);
        RANKS_CHECK(tutti_barrier(comm, NULL, 0, 0) == TUTTI_ERR_PEER_DEAD);
        tutti_comm_destroy(comm);
        return 0;
    }
    /* A process that ends before anybody can see it is not known. */
    RANKS_CHECK(status == TUTTI_ERR_PEER_DEAD ||
                (status == TUTTI_ERR_TIMEOUT && strcmp(crash->point, "meet.joined") == 0));
    /* Of several one may have ended first. */
    bool named = false;
    for (int r = 0; r < ranks->size; r++) {
        char name[16];
        snprintf(name, sizeof name, "rank %d", r);
        named |= (crash->victims >> r & 1) && strstr(tutti_last_error(), name);
    }
    RANKS_CHECK(named || strstr(tutti_last_error(), "ranks 0 to 2"));
    RANKS_CHECK(deadline_now() - start < (int64_t)(PATIENCE_MS + SLACK_MS) * 1000000);
    /* It holds its handle and its reason, nothing that an abort could touch. */
    tutti_comm_abort(comm);
    RANKS_CHECK(tutti_comm_status(comm, NULL) == status);
    tutti_comm_destroy(comm);
    return 0;
}

static int second_life(struct ranks *ranks, int rank, tutti_store_t *store)
{
    tutti_comm_t *comm;
    float one = 1, sum;
    deadly_point = NULL;
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    RANKS_CHECK(tutti_all_reduce(&one, &sum, 1, TUTTI_FLOAT32, TUTTI_SUM, comm, 0) == TUTTI_OK);
    RANKS_CHECK(sum == (float)ranks->size);
    RANKS_CHECK(tutti_barrier(comm, NULL, 0, 0) == TUTTI_OK);
    tutti_comm_destroy(comm);
    return 0;
}

/* With the two keys of a file store, of which its first close makes one. */
static int64_t keys_count(const struct ranks *ranks)
{
    tutti_store_t *store;
    int64_t count = -1;
    for (int i = 0; i < 2; i++) {
        if (tutti_store_open(ranks->url, RANKS_TIMEOUT_MS, &store) != TUTTI_OK)
            return -1;
        (void)tutti_store_num_keys(store, &count);
        tutti_store_close(store);
    }
    return count;
}

/* A path of NULL is the tcp server. */
static int run(const char *path, int size, const struct crash *crash)
{
    struct ranks *ranks = ranks_create(size, size, 0);
    int failures = 0;
    if (path)
        snprintf(ranks->url, sizeof ranks->url, "file:%s", path);
    ranks->context = crash;
    ranks->expendable = crash->victims;
    for (int life = 0; life < 2; life++) {
        failures += ranks_run(ranks, first_life);
        for (int r = 0; r < size; r++)
            if (crash->victims >> r & 1 && ranks->results[r].signal != SIGKILL)
                failures += printf("rank %d was not at its point\n", r) > 0;
        const int64_t keys = keys_count(ranks);
        failures += ranks_run(ranks, second_life);
        if (keys < 0 || keys_count(ranks) > keys)
            failures += printf("the second life has left keys in the store\n") > 0;
    }
    if (failures)
        printf("failed: %s, victims %x of %d, %s\n", crash->point, (unsigned)crash->victims, size,
               ranks->url);
    ranks_destroy(ranks);
    if (path)
        unlink(path);
    return failures;
}

int main(void)
{
    static const struct crash crashes[] = {
        {"meet.joined", 2},  {"meet.joined", 6},  {"open.arena", 1},
        {"open.arena", 2},   {"open.arena", 7},   {"open.handles", 1},
        {"open.handles", 4}, {"open.handles", 7}, {"comm.ready", 2},
    };
    char path[64];
    int failures = 0;
    int skip = ranks_skip(3);
    if (skip)
        return skip;
    point_hook = hook;
    faults_directory_create();
    snprintf(path, sizeof path, "%s-store", getenv("TUTTI_DIR"));
    for (size_t i = 0; i < sizeof crashes / sizeof *crashes; i++) {
        failures += run(NULL, 3, &crashes[i]);
        failures += run(path, 3, &crashes[i]);
    }
    return failures + faults_directory_check() ? 1 : 0;
}
