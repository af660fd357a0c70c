/* SPDX-License-Identifier: MIT */
/*
 * Set-up names the ranks to blame, on all survivors: those that never come, within the time-out;
 * those that die, as PEER_DEAD, however long the time-out is; those whose number two processes
 * have. Victims at every index, among 3 to 8 ranks.
 *
 * usage: test_missing absent|deaths|twice
 */
#include "base/point.h"
#include "faults.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATIENCE_MS = 500, SEEN_MS = 1500, FEW = 3, MANY = 8 };

/* One run. */
struct episode {
    const char *point;
    uint64_t victims;
};

enum { STARTED }; /* flag */

static uint32_t survivors(const struct ranks *ranks)
{
    const struct episode *episode = ranks->context;
    return (uint32_t)(ranks->size - __builtin_popcountll(episode->victims));
}

static const char *deadly_point;
static _Thread_local struct ranks *joining; /* until this rank has left its key */

/* All survivors have come before the time of any is over, however busy the machine. */
static void join_hook(const char *name)
{
    struct ranks *ranks = joining;
    if (!ranks || (strcmp(name, "meet.led") != 0 && strcmp(name, "meet.joined") != 0))
        return;
    joining = NULL;
    ranks_raise(ranks, STARTED);
    (void)ranks_await(ranks, STARTED, survivors(ranks));
}

/* A process that ends before anybody can see it is not known. */
static void hook(const char *name)
{
    join_hook(name);
    if (!deadly_point || strcmp(name, deadly_point) != 0)
        return;
    if (strcmp(name, "meet.led") == 0 || strcmp(name, "meet.joined") == 0)
        usleep(SEEN_MS * 1000);
    raise(SIGKILL);
}

/* Whether the text has "rank N", or "ranks A to B" around it. */
static bool names(const char *text, int rank)
{
    char name[16];
    int length = snprintf(name, sizeof name, "rank %d", rank), first, last;
    for (const char *at = text; (at = strstr(at, name)); at += length)
        if (at[length] < '0' || at[length] > '9')
            return true;
    for (const char *at = text; (at = strstr(at, "ranks ")); at++)
        if (sscanf(at, "ranks %d to %d", &first, &last) == 2 && first <= rank && rank <= last)
            return true;
    return false;
}

/* What stands before the verb is the list of those to blame. */
static bool blames(const char *text, const char *verb, uint64_t victims, int size)
{
    char list[512];
    const char *end = strstr(text, verb), *begin = end;
    if (!end)
        return false;
    while (begin > text && strncmp(begin, ": ", 2) != 0)
        begin--;
    snprintf(list, sizeof list, "%.*s", (int)(end - begin), begin);
    for (int r = 0; r < size; r++)
        if (names(list, r) != (victims >> r & 1))
            return false;
    return true;
}

/* ---- ranks that never come ------------------------------------------------------------------- */

static int absent(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const struct episode *episode = ranks->context;
    struct tutti_comm_options options = {.struct_size = sizeof options, .timeout_ms = PATIENCE_MS};
    tutti_comm_t *comm;
    if (episode->victims >> rank & 1)
        return 0;
    joining = ranks;
    RANKS_CHECK(ranks_join(ranks, rank, store, &options, &comm) == TUTTI_ERR_TIMEOUT);
    RANKS_CHECK(!joining);
    RANKS_CHECK(blames(tutti_last_error(), "did not come", episode->victims, ranks->size));
    return 0;
}

/* ---- ranks that die -------------------------------------------------------------------------- */

static int die(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const struct episode *episode = ranks->context;
    struct tutti_comm_options options = {.struct_size = sizeof options, .defer = true};
    tutti_comm_t *comm;
    deadly_point = episode->victims >> rank & 1 ? episode->point : NULL;
    ranks_raise(ranks, STARTED);
    RANKS_CHECK(ranks_await(ranks, STARTED, (uint32_t)ranks->size));
    RANKS_CHECK(ranks_join(ranks, rank, store, &options, &comm) == TUTTI_OK);
    enum tutti_status status = tutti_comm_rendezvous(comm);
    const bool whole = status == TUTTI_OK; /* the victim had done its part */
    if (whole)
        status = tutti_barrier(comm, NULL, 0, TUTTI_STREAM_DEFAULT);
    RANKS_CHECK(!deadly_point && status == TUTTI_ERR_PEER_DEAD);
    RANKS_CHECK(
        blames(tutti_last_error(), whole ? "is gone" : "ended", episode->victims, ranks->size));
    tutti_comm_destroy(comm);
    return 0;
}

/* ---- two of one number ----------------------------------------------------------------------- */

/* The victim takes the next rank's number. */
static int twice(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const struct episode *episode = ranks->context;
    struct tutti_comm_options options = {.struct_size = sizeof options, .name = "twice"};
    const int victim = __builtin_ctzll(episode->victims), taken = (victim + 1) % ranks->size;
    char name[40];
    tutti_comm_t *comm;
    snprintf(name, sizeof name, "rank %d of communicator", taken);
    enum tutti_status status =
        tutti_comm_create(store, rank == victim ? taken : rank, ranks->size, &options, &comm);
    RANKS_CHECK(status == TUTTI_ERR_MISMATCH);
    RANKS_CHECK(strstr(tutti_last_error(), name) && strstr(tutti_last_error(), "is given to two"));
    return 0;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static int run(const char *what, int size, bool processes, ranks_fn *fn,
               const struct episode *episode)
{
    struct ranks *ranks = ranks_create(size, processes ? size : 0, 0);
    ranks->context = episode;
    if (fn == die)
        ranks->expendable = episode->victims;
    int failed = ranks_run(ranks, fn);
    for (int r = 0; r < size && fn == die; r++)
        if (episode->victims >> r & 1 && ranks->results[r].signal != SIGKILL)
            failed += printf("rank %d was not at its point\n", r) > 0;
    if (failed)
        printf("failed: %s, victims %#x of %d, %s\n", what, (unsigned)episode->victims, size,
               episode->point ? episode->point : "");
    ranks_destroy(ranks);
    return failed ? 1 : 0;
}

/* One rank after the other, then two. */
static int run_absent(int size)
{
    int failures = 0;
    for (int victim = 0; victim < size; victim++) {
        struct episode episode = {.victims = UINT64_C(1) << victim};
        failures += run("absent", size, victim % 2 == 0, absent, &episode);
        if (size != 4 && size != MANY)
            continue;
        episode.victims |= UINT64_C(1) << (victim + 2) % size;
        failures += run("absent", size, victim % 2 != 0, absent, &episode);
    }
    return failures;
}

/* Rank 0 does not pass the points of those that it leads, and the other way round. */
static int run_deaths(int size)
{
    static const char *const points[] = {"meet.led",     "meet.joined",       "meet.answered",
                                         "open.arena",   "channel.announced", "channel.opened",
                                         "open.handles", "open.joined"};
    int failures = 0;
    for (size_t i = 0; i < sizeof points / sizeof *points; i++) {
        for (int victim = 0; victim < size; victim++) {
            struct episode episode = {.point = points[i], .victims = UINT64_C(1) << victim};
            const bool leads = strcmp(points[i], "meet.led") == 0;
            if (victim == 0 ? i == 1 || i == 2 : leads)
                continue;
            /* All points for 3 and 8 ranks; in between they take turns. */
            if (size > FEW && size < MANY && i % 4 != (size_t)(victim + size) % 4)
                continue;
            failures += run("death", size, true, die, &episode);
        }
    }
    return failures;
}

static int run_twice(int size)
{
    int failures = 0;
    for (int victim = 0; victim < size; victim++) {
        struct episode episode = {.victims = UINT64_C(1) << victim};
        failures += run("twice", size, victim % 2 == 0, twice, &episode);
    }
    return failures;
}

int main(int argc, char **argv)
{
    const char *what = argc == 2 ? argv[1] : "";
    int failures = 0, step = ranks_short() ? MANY - FEW : 1;
    point_hook = hook;
    faults_directory_create();
    for (int size = FEW; size <= MANY; size += step) {
        if (strcmp(what, "absent") == 0)
            failures += run_absent(size);
        else if (strcmp(what, "deaths") == 0)
            failures += run_deaths(size);
        else if (strcmp(what, "twice") == 0)
            failures += run_twice(size);
        else
            return 2;
    }
    return failures + faults_directory_check() ? 1 : 0;
}
