/* SPDX-License-Identifier: MIT */
/*
 * A rank that comes to an operation after the others have given up waiting for it. It may still get
 * OK and the right result, if it needs nothing more from them; its next call gets their fault. The
 * others' error names the time-out that held, and the way on without that rank.
 */
#include "ranks.h"
#include "tutti/recovery.h"

#include <stdio.h>
#include <string.h>

enum {
    SIZE = 3,
    PATIENCE_MS = 300,
    COUNT_MOST = 1 << 16,
};
enum { GAVE_UP, TOLD }; /* flags */

static const struct scenario {
    enum tutti_algo algo; /* NONE: a barrier */
    int count;
    int late;
    bool succeeds; /* the late rank finds all it needs */
} scenarios[] = {
    {TUTTI_ALGO_ONE_SHOT, 4, 2, true},      {TUTTI_ALGO_ONE_SHOT, 1000, 0, true},
    {TUTTI_ALGO_TWO_SHOT, 20000, 2, false}, {TUTTI_ALGO_TWO_SHOT, COUNT_MOST, 1, false},
    {TUTTI_ALGO_NONE, 0, 1, true},
};

static enum tutti_status operate(const struct scenario *scenario, tutti_comm_t *comm, int rank,
                                 int64_t timeout_ms, float *data)
{
    const struct tutti_call_options options = {
        .struct_size = sizeof options, .algo = scenario->algo, .timeout_ms = timeout_ms};
    for (int i = 0; i < scenario->count; i++)
        data[i] = (float)(rank + i);
    return scenario->count
               ? tutti_all_reduce_with(data, data, (size_t)scenario->count, TUTTI_FLOAT32,
                                       TUTTI_SUM, comm, TUTTI_STREAM_DEFAULT, &options)
               : tutti_barrier_with(comm, NULL, 0, TUTTI_STREAM_DEFAULT, &options);
}

static int wait_and_go_on(struct ranks *ranks, int rank, tutti_store_t *store, tutti_comm_t *comm,
                          float *data)
{
    const struct scenario *scenario = ranks->context;
    struct tutti_fault fault = {.struct_size = sizeof fault};
    struct tutti_shrink_options shrink = {
        .struct_size = sizeof shrink, .exclude = &scenario->late, .exclude_count = 1};
    char remedy[128];
    tutti_comm_t *rest;
    enum tutti_status status = operate(scenario, comm, rank, PATIENCE_MS, data);
    ranks_raise(ranks, GAVE_UP);
    RANKS_CHECK(status == TUTTI_ERR_TIMEOUT);
    RANKS_CHECK(strstr(tutti_last_error(), "until its time-out of 300 ms"));
    RANKS_CHECK(strstr(tutti_last_error(), "raise timeout_ms in the options of the call;"));
    snprintf(remedy, sizeof remedy,
             "go on without it by tutti_comm_shrink() with rank %d in options->exclude",
             scenario->late);
    RANKS_CHECK(strstr(tutti_last_error(), remedy));
    RANKS_CHECK(tutti_comm_status(comm, &fault) == TUTTI_ERR_TIMEOUT);
    RANKS_CHECK(fault.peer == scenario->late);
    /* A shrink ends the old communicator on the late rank, too. */
    RANKS_CHECK(ranks_await(ranks, TOLD, 1));
    RANKS_CHECK(tutti_comm_shrink(comm, store, &shrink, &rest, NULL) == TUTTI_OK);
    RANKS_CHECK(tutti_comm_world_size(rest) == SIZE - 1);
    RANKS_CHECK(tutti_barrier(rest, NULL, 0, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    tutti_comm_destroy(rest);
    return 0;
}

static int come_late(struct ranks *ranks, int rank, tutti_comm_t *comm, float *data)
{
    const struct scenario *scenario = ranks->context;
    struct tutti_fault fault = {.struct_size = sizeof fault};
    RANKS_CHECK(ranks_await(ranks, GAVE_UP, SIZE - 1));
    enum tutti_status status = operate(scenario, comm, rank, RANKS_TIMEOUT_MS, data);
    RANKS_CHECK(status == (scenario->succeeds ? TUTTI_OK : TUTTI_ERR_TIMEOUT));
    for (int i = 0; i < scenario->count && status == TUTTI_OK; i++)
        RANKS_CHECK(data[i] == (float)(SIZE * i + SIZE * (SIZE - 1) / 2));
    RANKS_CHECK(operate(scenario, comm, rank, RANKS_TIMEOUT_MS, data) == TUTTI_ERR_TIMEOUT);
    RANKS_CHECK(strstr(tutti_last_error(), "until its time-out of 300 ms"));
    RANKS_CHECK(tutti_comm_status(comm, &fault) == TUTTI_ERR_TIMEOUT && fault.peer == rank);
    ranks_raise(ranks, TOLD);
    return 0;
}

static int live(struct ranks *ranks, int rank, tutti_store_t *store)
{
    static float data[SIZE][COUNT_MOST];
    const struct scenario *scenario = ranks->context;
    tutti_comm_t *comm;
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    RANKS_CHECK(operate(scenario, comm, rank, 0, data[rank]) == TUTTI_OK);
    int failed = rank == scenario->late ? come_late(ranks, rank, comm, data[rank])
                                        : wait_and_go_on(ranks, rank, store, comm, data[rank]);
    tutti_comm_destroy(comm);
    return failed;
}

int main(int argc, char **argv)
{
    int failures = 0, skip = ranks_skip_cuda("of devices the watchers tell: test_stop");
    if (skip)
        return skip;
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++) {
        bool processes = argc > 1 && strcmp(argv[1], "processes") == 0;
        struct ranks *ranks = ranks_create(SIZE, processes ? SIZE : 0, 0);
        ranks->context = &scenarios[i];
        failures += ranks_run(ranks, live);
        ranks_destroy(ranks);
    }
    return failures ? 1 : 0;
}
