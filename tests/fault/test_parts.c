/* SPDX-License-Identifier: MIT */
/*
 * Operations that the ranks' threads run in parts. Something happens to the victim inside its
 * function `parallel`, after all ranks have announced the operation or before: the other ranks have
 * as many threads as they like, and all get the same fault.
 */
#include "ranks.h"

#include "tutti/openmp.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { AT = 3, COUNT = 300 * 1000, THREADS = 3, LATE_MS = 300, VICTIM = 1 };

struct scenario {
    const char *name;
    void (*happen)(tutti_comm_t *comm);
    enum tutti_status status;
    bool is_first; /* before the victim has run a part; else when it has run all of a task */
    size_t fewer;  /* elements of the victim's call */
};

struct rank_threads {
    const struct scenario *scenario; /* NULL: nothing happens */
    tutti_comm_t *comm;
    int calls, inside;
    bool refused; /* a call from inside */
};

/* Tasks one after the other, the last one first: also a way to run them. */
static void parallel(void *context, int tasks, void (*task)(void *argument, int i), void *argument)
{
    struct rank_threads *threads = context;
    if (threads->comm) /* else the creation counts the cores */
        threads->calls++;
    const struct scenario *scenario = threads->calls == AT ? threads->scenario : NULL;
    float value = 1;
    threads->refused = tutti_all_reduce(&value, &value, 1, TUTTI_FLOAT32, TUTTI_SUM, threads->comm,
                                        TUTTI_STREAM_DEFAULT) == TUTTI_ERR_CONCURRENT;
    if (scenario && scenario->happen && scenario->is_first)
        scenario->happen(threads->comm);
    for (int i = tasks; i-- > 0;)
        task(argument, i);
    if (scenario && scenario->happen && !scenario->is_first)
        scenario->happen(threads->comm);
}

static void kill_now(tutti_comm_t *comm)
{
    (void)comm;
    raise(SIGKILL);
}

static void wait_long(tutti_comm_t *comm)
{
    (void)comm;
    usleep(4 * LATE_MS * 1000);
}

/* The victim waits, and its progress function ends the wait. */
static void cancel(tutti_comm_t *comm)
{
    (void)comm;
}

static int progress(void *context)
{
    const struct rank_threads *threads = context;
    return threads->calls == AT;
}

static const struct scenario scenarios[] = {
    {"nothing", NULL, TUTTI_OK, true, 0},
    {"dies first", kill_now, TUTTI_ERR_PEER_DEAD, true, 0},
    {"dies last", kill_now, TUTTI_ERR_PEER_DEAD, false, 0},
    {"aborts", tutti_comm_abort, TUTTI_ERR_ABORTED, true, 0},
    {"is cancelled", cancel, TUTTI_ERR_ABORTED, true, 0},
    {"is late", wait_long, TUTTI_ERR_TIMEOUT, true, 0},
    {"calls another long operation", NULL, TUTTI_ERR_MISMATCH, true, 8},
    {"calls a short one", NULL, TUTTI_ERR_MISMATCH, true, COUNT - 8},
};

/* The operation in which it happens is an all-reduce, or a v-form. */
struct trial {
    const struct scenario *scenario;
    bool varies;
};

/* An all-gather whose other blocks have the usual length. */
static enum tutti_status gather(float *data, size_t count, int rank, tutti_comm_t *comm,
                                const struct tutti_call_options *call)
{
    size_t counts[3] = {COUNT, COUNT, COUNT};
    counts[rank] = count;
    return tutti_all_gather_v_with(data + (size_t)rank * COUNT, count, data, counts, NULL,
                                   TUTTI_FLOAT32, comm, TUTTI_STREAM_DEFAULT, call);
}

static int live(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const struct trial *trial = ranks->context;
    const struct scenario *scenario = trial->scenario;
    const bool is_victim = rank == VICTIM;
    struct rank_threads threads = {.scenario = is_victim ? scenario : NULL};
    struct tutti_comm_options options = {.struct_size = sizeof options,
                                         .parallel = parallel,
                                         .parallel_context = &threads,
                                         .threads = rank == 2 ? 1 : THREADS};
    struct tutti_fault fault = {.struct_size = sizeof fault};
    enum tutti_status status = TUTTI_OK;
    if (is_victim && scenario->happen == cancel) {
        options.progress = progress;
        options.progress_context = &threads;
    }
    float *data = calloc((size_t)3 * COUNT, sizeof *data);
    char text[2048];
    RANKS_CHECK(data);
    RANKS_CHECK(ranks_join(ranks, rank, store, &options, &threads.comm) == TUTTI_OK);
    tutti_comm_describe(threads.comm, text, sizeof text);
    RANKS_CHECK(strstr(text, "most_threads: 3\n"));
    for (int i = 1; i <= AT + 2 && status == TUTTI_OK; i++) {
        const bool is_hasty = i == AT && !is_victim && scenario->happen == wait_long;
        const struct tutti_call_options call = {.struct_size = sizeof call,
                                                .timeout_ms = is_hasty ? LATE_MS : 0};
        const size_t count = is_victim && i == AT ? COUNT - scenario->fewer : COUNT;
        if (i == AT && !is_victim && scenario->happen == cancel)
            usleep(LATE_MS * 1000);
        const bool is_broadcast = i == AT - 1; /* of the lane PAIR */
        if (i == AT && trial->varies) {
            status = gather(data, count, rank, threads.comm, &call);
            continue;
        }
        status = is_broadcast ? tutti_broadcast(data, data, count, TUTTI_FLOAT32, 0, threads.comm,
                                                TUTTI_STREAM_DEFAULT)
                              : tutti_all_reduce_with(data, data, count, TUTTI_FLOAT32, TUTTI_SUM,
                                                      threads.comm, TUTTI_STREAM_DEFAULT, &call);
    }
    RANKS_CHECK(status == scenario->status);
    RANKS_CHECK(rank == 2 || threads.refused);
    if (status != TUTTI_OK) {
        RANKS_CHECK(tutti_comm_status(threads.comm, &fault) == status);
        RANKS_CHECK(fault.sequence == (uint64_t)AT + !scenario->is_first);
        RANKS_CHECK(status == TUTTI_ERR_MISMATCH || fault.peer == VICTIM);
    }
    tutti_comm_destroy(threads.comm);
    free(data);
    return 0;
}

/* What can be asked for. */
static int refuse(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct tutti_comm_options options = {.struct_size = sizeof options, .threads = 2};
    tutti_comm_t *comm = NULL;
    (void)ranks;
    RANKS_CHECK(tutti_comm_create(store, rank, 1, &options, &comm) == TUTTI_ERR_INVALID);
    options.parallel = parallel;
    options.threads = 0;
    RANKS_CHECK(tutti_comm_create(store, rank, 1, &options, &comm) == TUTTI_ERR_INVALID);
    options.threads = TUTTI_MAX_THREADS + 1;
    RANKS_CHECK(tutti_comm_create(store, rank, 1, &options, &comm) == TUTTI_ERR_INVALID);
    options.threads = 2;
    options.device = TUTTI_DEVICE_CUDA;
    RANKS_CHECK(tutti_comm_create(store, rank, 1, &options, &comm) == TUTTI_ERR_INVALID);
    RANKS_CHECK(!comm);
    return 0;
}

int main(void)
{
    int failures = 0;
    struct ranks *alone = ranks_create(1, 1, 0);
    failures += ranks_run(alone, refuse);
    ranks_destroy(alone);
    for (size_t i = 0; i < 2 * sizeof scenarios / sizeof *scenarios; i++) {
        struct ranks *ranks = ranks_create(3, 3, 0);
        const struct trial trial = {&scenarios[i / 2], i % 2};
        ranks->context = &trial;
        if (trial.scenario->happen == kill_now)
            ranks->expendable = 1 << VICTIM;
        const int failed = ranks_run(ranks, live);
        ranks_destroy(ranks);
        if (failed)
            fprintf(stderr, "%s, in %s: failed\n", trial.scenario->name,
                    trial.varies ? "a v-form" : "an all-reduce");
        failures += failed;
    }
    return failures != 0;
}
