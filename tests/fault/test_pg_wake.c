/* SPDX-License-Identifier: MIT */
/*
 * A rank that waits for a place for its messages is told when there is one. The library names a
 * point when the group's thread finds an event after it has slept its whole time, and nobody has
 * told it of the event.
 */
#include "pg.h"

#include "base/order.h"
#include "base/point.h"

#include <stdio.h>
#include <unistd.h>

enum {
    ROUNDS = 16,
    PLACES = 4, /* for messages to one rank */
    MOST = 12,  /* messages */
    SHORT = 4,
    LONG = 300, /* elements: their receiver answers */
    SOON_MS = 20,
    BUSY_US = 75000, /* one and a half of the times that the group's thread sleeps at once */
    TAG = 3,
    LONELY_TAG = 4, /* nobody receives */
};

/* What rank 0 sends in a round. Rank 1 is inside the first scatter, and reads nothing meanwhile. */
static const struct part {
    const char *name;
    int scatters, messages, elements;
    bool lonely;
} parts[] = {
    {"messages behind a scatter", 1, MOST, SHORT, false},
    {"a message behind scatters", PLACES, 1, SHORT, false},
    {"withdrawals", 1, MOST, LONG, true},
};

static uint32_t *missed; /* shared by the ranks */
static bool dawdles;     /* on this rank, in the next collective */

static void hook(const char *name)
{
    if (strcmp(name, "group.missed") == 0)
        order_fetch_add_relaxed_u32(missed, 1);
    if (dawdles && strcmp(name, "pair.entered") == 0) {
        dawdles = false;
        usleep(BUSY_US);
    }
}

void (*point_hook)(const char *name) = hook;

static enum tutti_status submit(tutti_pg_t *pg, bool sends, float *data, int64_t count,
                                uint32_t tag, int64_t timeout_ms, tutti_work_t **work)
{
    const struct tutti_tensor tensor = pg_vector(data, &count);
    const struct tutti_pg_call_options options = {
        .struct_size = sizeof options, .tag = tag, .timeout_ms = timeout_ms};
    return sends ? tutti_pg_send(pg, &tensor, 1, &options, work)
                 : tutti_pg_recv(pg, &tensor, 0, &options, work);
}

/* Awaits the works. Returns whether all have ended so. A thread that would wait for less than the
 * group's time-out does not run the group's operations itself. */
static bool all_end(tutti_work_t **works, int count, enum tutti_status expected)
{
    bool good = true;
    for (int i = 0; i < count; i++) {
        good = tutti_work_wait_host(works[i], RANKS_TIMEOUT_MS / 2) == expected && good;
        tutti_work_destroy(works[i]);
    }
    return good;
}

static int round_run(struct ranks *ranks, int rank, tutti_pg_t *pg, const struct part *part)
{
    const int64_t one = 1, two = 2;
    float all[PLACES][2] = {{0}}, own[PLACES], data[MOST][LONG] = {{0}};
    tutti_work_t *scatters[PLACES], *messages[MOST];
    const int count = part->lonely && rank == 1 ? 0 : part->messages;
    dawdles = rank == 1;
    for (int i = 0; i < part->scatters; i++) {
        struct tutti_tensor whole = pg_vector(all[i], &two), block = pg_vector(&own[i], &one);
        RANKS_CHECK(tutti_pg_scatter(pg, &whole, 1, &block, 1, 0, NULL, &scatters[i]) == TUTTI_OK);
    }
    if (rank == 0)
        RANKS_CHECK(all_end(scatters, part->scatters, TUTTI_OK));
    for (int i = 0; i < count; i++)
        RANKS_CHECK(submit(pg, rank == 0, data[i], part->elements, part->lonely ? LONELY_TAG : TAG,
                           part->lonely ? SOON_MS : 0, &messages[i]) == TUTTI_OK);
    if (rank == 1)
        RANKS_CHECK(all_end(scatters, part->scatters, TUTTI_OK));
    RANKS_CHECK(all_end(messages, count, part->lonely ? TUTTI_ERR_TIMEOUT : TUTTI_OK));
    if (part->lonely)
        usleep(BUSY_US + BUSY_US / 2); /* until rank 1 has read, and this rank has slept */
    return 0;
}

static int live(struct ranks *ranks, int rank, tutti_store_t *store)
{
    tutti_comm_t *comm;
    tutti_pg_t *pg;
    missed = (uint32_t *)(void *)ranks->shared;
    RANKS_CHECK(pg_join(ranks, rank, store, &comm, &pg) == TUTTI_OK);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        RANKS_CHECK(pg_goes_on(pg, 1, ranks->size));
        const uint32_t before = order_load_relaxed_u32(missed);
        for (int round = 0; round < ROUNDS; round++) {
            const int failed = round_run(ranks, rank, pg, &parts[i]);
            if (failed)
                return failed;
        }
        RANKS_CHECK(pg_goes_on(pg, 1, ranks->size));
        const uint32_t times = order_load_relaxed_u32(missed) - before;
        if (rank == 0)
            printf("%s: missed %u times of %d\n", parts[i].name, times, ROUNDS);
        RANKS_CHECK(times <= ROUNDS / 2);
    }
    pg_part(comm, pg);
    return 0;
}

int main(void)
{
    int failures, skip = ranks_skip_cuda("this test's tensors are the host's");
    if (skip)
        return skip;
    struct ranks *ranks = ranks_create(2, 2, sizeof *missed);
    failures = ranks_run(ranks, live);
    ranks_destroy(ranks);
    return failures ? 1 : 0;
}
