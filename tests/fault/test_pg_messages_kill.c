/* SPDX-License-Identifier: MIT */
/*
 * A rank that is killed or stopped at each point inside a message of a process group. Its peer's
 * work ends: with PEER_DEAD, and the other ranks go on exchanging messages; with TIMEOUT, if the
 * rank is stopped. Both name the rank. A short message that it had sent is received.
 */
#include "pg.h"

#include "base/point.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

enum { VICTIM = 1, LONG = 200000, SHORT = 10, MANY = 50, STALL_MS = 2000, OTHERS_TAG = 7 };

struct scenario {
    const char *point;
    bool sends; /* the victim */
    int count;  /* elements of a message */
    int passage;
    int signal;
};

static const struct scenario *deadly; /* the scenario, in the victim */

static void hook(const char *name)
{
    static int passages;
    if (deadly && strcmp(name, deadly->point) == 0 && ++passages == deadly->passage)
        raise(deadly->signal);
}

void (*point_hook)(const char *name) = hook;

static enum tutti_status move(tutti_pg_t *pg, bool sends, float *data, int64_t count, int peer,
                              uint32_t tag, int64_t timeout_ms, tutti_work_t **work)
{
    const struct tutti_tensor tensor = pg_vector(data, &count);
    const struct tutti_pg_call_options options = {
        .struct_size = sizeof options, .tag = tag, .timeout_ms = timeout_ms};
    const enum tutti_status status = sends ? tutti_pg_send(pg, &tensor, peer, &options, work)
                                           : tutti_pg_recv(pg, &tensor, peer, &options, work);
    return status == TUTTI_OK ? tutti_work_wait_host(*work, RANKS_TIMEOUT_MS) : status;
}

/* Rank 0: the messages with the victim end, and name it. *moved: how many were good. */
static int suffer(struct ranks *ranks, int rank, tutti_pg_t *pg, float *data, int *moved)
{
    const struct scenario *scenario = ranks->context;
    const bool dies = scenario->signal == SIGKILL;
    const enum tutti_status expected = dies ? TUTTI_ERR_PEER_DEAD : TUTTI_ERR_TIMEOUT;
    enum tutti_status status = TUTTI_OK;
    for (*moved = 0; status == TUTTI_OK; ++*moved) {
        struct tutti_fault fault = {.struct_size = sizeof fault};
        tutti_work_t *work;
        RANKS_CHECK(*moved < MANY);
        status = move(pg, !scenario->sends, data, scenario->count, VICTIM, 0, dies ? 0 : STALL_MS,
                      &work);
        RANKS_CHECK(status == TUTTI_OK || status == expected);
        if (status != TUTTI_OK)
            RANKS_CHECK(tutti_work_fault(work, &fault) == expected && fault.peer == VICTIM);
        tutti_work_destroy(work);
    }
    --*moved;
    return 0;
}

static int live(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const struct scenario *scenario = ranks->context;
    float *data = calloc(LONG, sizeof *data), x = (float)rank;
    int moved = 0, failed = 0;
    tutti_comm_t *comm;
    tutti_pg_t *pg;
    tutti_work_t *work;
    RANKS_CHECK(data && pg_join(ranks, rank, store, &comm, &pg) == TUTTI_OK);
    RANKS_CHECK(pg_goes_on(pg, 0, ranks->size));
    deadly = rank == VICTIM ? scenario : NULL;
    for (int i = 0; i < MANY && rank == VICTIM; i++)
        RANKS_CHECK(move(pg, scenario->sends, data, scenario->count, 0, 0, 0, &work) == TUTTI_OK);
    if (rank == 0)
        failed = suffer(ranks, rank, pg, data, &moved);
    if (rank == 0 && scenario->signal == SIGSTOP)
        RANKS_CHECK(kill(ranks->pids[VICTIM], SIGKILL) == 0);
    if (rank == 0 && scenario->count == SHORT && scenario->sends)
        RANKS_CHECK(moved == scenario->passage);
    if (failed)
        return failed;
    /* If data were moving to or from a rank that is stopped, the group has ended with TIMEOUT. */
    const enum tutti_status status = move(pg, rank == 0, &x, 1, 2 - rank, OTHERS_TAG, 0, &work);
    RANKS_CHECK(status == TUTTI_OK || (scenario->signal == SIGSTOP && status == TUTTI_ERR_TIMEOUT));
    RANKS_CHECK(status != TUTTI_OK || x == 0);
    tutti_work_destroy(work);
    pg_part(comm, pg);
    free(data);
    return 0;
}

int main(void)
{
    static const struct scenario scenarios[] = {
        {"message.announced", true, SHORT, 2, SIGKILL},
        {"message.announced", true, LONG, 2, SIGKILL},
        {"message.sent", true, LONG, 2, SIGKILL},
        {"message.matched", false, SHORT, 2, SIGKILL},
        {"message.matched", false, LONG, 2, SIGKILL},
        {"message.taken", false, LONG, 2, SIGKILL},
        {"message.announced", true, SHORT, 2, SIGSTOP},
        {"message.announced", true, LONG, 2, SIGSTOP},
        {"message.sent", true, LONG, 2, SIGSTOP},
        {"message.matched", false, LONG, 2, SIGSTOP},
        {"message.taken", false, LONG, 2, SIGSTOP},
    };
    int failures = 0, skip = ranks_skip_cuda("this test's tensors are the host's");
    if (skip)
        return skip;
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++) {
        struct scenario scenario = scenarios[i];
        struct ranks *ranks = ranks_create(3, 3, 0);
        ranks->context = &scenario;
        ranks->expendable = UINT64_C(1) << VICTIM;
        failures += ranks_run(ranks, live);
        if (ranks->results[VICTIM].signal != SIGKILL) {
            fprintf(stderr, "rank %d did not come to %s\n", VICTIM, scenario.point);
            failures++;
        }
        ranks_destroy(ranks);
    }
    return failures ? 1 : 0;
}
