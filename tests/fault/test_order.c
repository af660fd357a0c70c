/* SPDX-License-Identifier: MIT */
/*
 * Ranks that disagree across the lanes, about a root, or about a v-form's blocks: no rank hangs,
 * none gets other data than it asked for, and each hears of MISMATCH with both sides' values, at
 * the latest in its next call.
 *
 * usage: test_order threads|processes
 */
#include "device.h"
#include "ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BEFORE = 3, MOST = 60000 };

struct call {
    enum tutti_collective collective; /* SEND: to the root, by all others; RECV: by the root */
    size_t count;
    int root;
};

/* Blocks of other lengths. */
#define V_FORMS(name, right, wrong, root, right_text, wrong_text)                                  \
    {                                                                                              \
        {TUTTI_COLLECTIVE_##name##_V, right, root}, {TUTTI_COLLECTIVE_##name##_V, wrong, root},    \
            right_text, wrong_text                                                                 \
    }

/* What the others call, what the victim calls; what both sides' texts contain. */
static const struct disagreement {
    struct call right, wrong;
    const char *right_text, *wrong_text;
} disagreements[] = {
    {{TUTTI_COLLECTIVE_BROADCAST, 10, 0},
     {TUTTI_COLLECTIVE_ALL_REDUCE, 10, 0},
     "broadcast",
     "all_reduce"},
    {{TUTTI_COLLECTIVE_ALL_REDUCE, 10, 0},
     {TUTTI_COLLECTIVE_BROADCAST, 10, 0},
     "all_reduce",
     "broadcast"},
    {{TUTTI_COLLECTIVE_ALL_REDUCE, MOST, 0},
     {TUTTI_COLLECTIVE_SCATTER, 10, 0},
     "all_reduce",
     "scatter"},
    {{TUTTI_COLLECTIVE_BROADCAST, 10, 0}, {TUTTI_COLLECTIVE_BROADCAST, 10, 1}, "root 0", "root 1"},
    {{TUTTI_COLLECTIVE_BROADCAST, MOST, 1},
     {TUTTI_COLLECTIVE_BROADCAST, MOST, 0},
     "root 1",
     "root 0"},
    {{TUTTI_COLLECTIVE_BROADCAST, 10, 0},
     {TUTTI_COLLECTIVE_BROADCAST, 11, 0},
     "broadcast of 10",
     "broadcast of 11"},
    {{TUTTI_COLLECTIVE_GATHER, 10, 0}, {TUTTI_COLLECTIVE_GATHER, 10, 1}, "root 0", "root 1"},
    {{TUTTI_COLLECTIVE_GATHER, 10, 1}, {TUTTI_COLLECTIVE_REDUCE, 10, 1}, "gather", "reduce"},
    {{TUTTI_COLLECTIVE_SCATTER, 10, 0}, {TUTTI_COLLECTIVE_BARRIER, 0, 0}, "scatter", "barrier"},
    {{TUTTI_COLLECTIVE_BARRIER, 0, 0}, {TUTTI_COLLECTIVE_REDUCE, 10, 0}, "barrier", "reduce"},
    V_FORMS(ALL_GATHER, 10, 11, 0, "counts hash", "all_gather_v of "),
    V_FORMS(REDUCE_SCATTER, MOST, 0, 0, "counts hash", "reduce_scatter_v of "),
    V_FORMS(ALL_TO_ALL, 10, 11, 0, "all_to_all_v of 10 ", "all_to_all_v of 11 "),
    V_FORMS(ALL_TO_ALL, 0, 10, 0, "all_to_all_v of 0 ", "all_to_all_v of 10 "),
    V_FORMS(ALL_TO_ALL, MOST, 0, 0, "all_to_all_v of 60000 ", "all_to_all_v of 0 "),
    V_FORMS(GATHER, 10, 11, 0, "gather_v of 10 ", "gather_v of 11 "),
    V_FORMS(GATHER, 0, 10, 1, "gather_v of 0 ", "gather_v of 10 "),
    V_FORMS(SCATTER, MOST, 10, 0, "scatter_v of 60000 ", "scatter_v of 10 "),
    V_FORMS(SCATTER, 10, 0, 1, "scatter_v of 10 ", "scatter_v of 0 "),
    {{TUTTI_COLLECTIVE_GATHER_V, 10, 0}, {TUTTI_COLLECTIVE_GATHER_V, 10, 1}, "root 0", "root 1"},
    {{TUTTI_COLLECTIVE_ALL_TO_ALL_V, 10, 0},
     {TUTTI_COLLECTIVE_ALL_REDUCE, 10, 0},
     "all_to_all_v of ",
     "all_reduce of 10"},
    {{TUTTI_COLLECTIVE_ALL_GATHER_V, 0, 0},
     {TUTTI_COLLECTIVE_REDUCE_SCATTER_V, 0, 0},
     "all_gather_v of ",
     "reduce_scatter_v of "},
};

enum { DISAGREEMENTS = sizeof disagreements / sizeof *disagreements };

struct context {
    const struct disagreement *disagreement;
    int victim;
};

static enum tutti_status call_run(const struct call *call, tutti_comm_t *comm, float *send,
                                  float *recv)
{
    size_t counts[TUTTI_MAX_RANKS];
    for (int r = 0; r < TUTTI_MAX_RANKS; r++)
        counts[r] = call->count;
    switch ((int)call->collective) {
    case TUTTI_COLLECTIVE_ALL_GATHER_V:
        return tutti_all_gather_v(send, call->count, recv, counts, NULL, TUTTI_FLOAT32, comm,
                                  TUTTI_STREAM_DEFAULT);
    case TUTTI_COLLECTIVE_REDUCE_SCATTER_V:
        return tutti_reduce_scatter_v(send, counts, NULL, recv, TUTTI_FLOAT32, TUTTI_SUM, comm,
                                      TUTTI_STREAM_DEFAULT);
    case TUTTI_COLLECTIVE_ALL_TO_ALL_V:
        return tutti_all_to_all_v(send, counts, NULL, recv, counts, NULL, TUTTI_FLOAT32, comm,
                                  TUTTI_STREAM_DEFAULT);
    case TUTTI_COLLECTIVE_GATHER_V:
        return tutti_gather_v(send, call->count, recv, counts, NULL, TUTTI_FLOAT32, call->root,
                              comm, TUTTI_STREAM_DEFAULT);
    case TUTTI_COLLECTIVE_SCATTER_V:
        return tutti_scatter_v(send, counts, NULL, recv, call->count, TUTTI_FLOAT32, call->root,
                               comm, TUTTI_STREAM_DEFAULT);
    case TUTTI_COLLECTIVE_BROADCAST:
        return tutti_broadcast(send, recv, call->count, TUTTI_FLOAT32, call->root, comm,
                               TUTTI_STREAM_DEFAULT);
    case TUTTI_COLLECTIVE_REDUCE:
        return tutti_reduce(send, recv, call->count, TUTTI_FLOAT32, TUTTI_SUM, call->root, comm,
                            TUTTI_STREAM_DEFAULT);
    case TUTTI_COLLECTIVE_GATHER:
        return tutti_gather(send, recv, call->count, TUTTI_FLOAT32, call->root, comm,
                            TUTTI_STREAM_DEFAULT);
    case TUTTI_COLLECTIVE_SCATTER:
        return tutti_scatter(send, recv, call->count, TUTTI_FLOAT32, call->root, comm,
                             TUTTI_STREAM_DEFAULT);
    case TUTTI_COLLECTIVE_ALL_REDUCE:
        return tutti_all_reduce(send, recv, call->count, TUTTI_FLOAT32, TUTTI_SUM, comm,
                                TUTTI_STREAM_DEFAULT);
    default:
        return tutti_barrier(comm, NULL, 0, TUTTI_STREAM_DEFAULT);
    }
}

static int disagree(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const struct context *context = ranks->context;
    const struct disagreement *d = context->disagreement;
    const size_t bytes = (size_t)ranks->size * MOST * sizeof(float);
    struct tutti_fault fault = {.struct_size = sizeof fault};
    char text[512];
    tutti_comm_t *comm;
    float *send = calloc(1, bytes), *recv = calloc(1, bytes);
    RANKS_CHECK(send && recv);
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    enum tutti_status status = TUTTI_OK;
    for (int i = 0; i < BEFORE && status == TUTTI_OK; i++)
        status = call_run(&d->right, comm, send, recv);
    /* On CUDA the fault of a rank that is ahead may come before this call is seen to have ended. */
    RANKS_CHECK(status == TUTTI_OK || device_is_cuda());
    const bool is_victim = rank == context->victim;
    if (status == TUTTI_OK)
        status = call_run(is_victim ? &d->wrong : &d->right, comm, send, recv);
    if (status == TUTTI_OK) /* a rank whose part was done without the others */
        status = call_run(&d->right, comm, send, recv);
    if (status == TUTTI_OK)
        status = tutti_barrier(comm, NULL, 0, TUTTI_STREAM_DEFAULT);
    RANKS_CHECK(status == TUTTI_ERR_MISMATCH);
    RANKS_CHECK(tutti_comm_status(comm, &fault) == TUTTI_ERR_MISMATCH);
    RANKS_CHECK(fault.sequence == BEFORE + 1);
    tutti_fault_format(&fault, text, sizeof text);
    RANKS_CHECK(strstr(text, d->right_text) && strstr(text, d->wrong_text));
    tutti_comm_destroy(comm);
    free(send);
    free(recv);
    return 0;
}

/* Rank 0 sends more than rank 1 expects. Both hear of it. */
static int message_differs(struct ranks *ranks, int rank, tutti_store_t *store)
{
    float data[16] = {0};
    char text[512];
    tutti_comm_t *comm;
    struct tutti_fault fault = {.struct_size = sizeof fault};
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    if (rank == 0) {
        const enum tutti_status status =
            tutti_send(data, 12, TUTTI_FLOAT32, 1, comm, TUTTI_STREAM_DEFAULT);
        RANKS_CHECK(status == TUTTI_OK || device_is_cuda());
    }
    if (rank == 1)
        RANKS_CHECK(tutti_recv(data, 10, TUTTI_FLOAT32, 0, comm, TUTTI_STREAM_DEFAULT) ==
                    TUTTI_ERR_MISMATCH);
    RANKS_CHECK(tutti_barrier(comm, NULL, 0, TUTTI_STREAM_DEFAULT) == TUTTI_ERR_MISMATCH);
    RANKS_CHECK(tutti_comm_status(comm, &fault) == TUTTI_ERR_MISMATCH);
    tutti_fault_format(&fault, text, sizeof text);
    RANKS_CHECK(strstr(text, "rank 1 has send of 10") && strstr(text, "rank 0 has send of 12"));
    tutti_comm_destroy(comm);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    const bool threads = strcmp(argv[1], "threads") == 0;
    int failures = 0;
    for (int i = 0; i < DISAGREEMENTS; i++) {
        int size = 3 + i % 4 + 2 * (i == DISAGREEMENTS - 1);
        while (size > 2 && !ranks_fit(size))
            size--;
        struct context context = {.disagreement = &disagreements[i]};
        for (context.victim = 0; context.victim < size; context.victim += 2) {
            struct ranks *ranks = ranks_create(size, threads ? 0 : size, 0);
            ranks->context = &context;
            if (ranks_run(ranks, disagree)) {
                fprintf(stderr, "disagreement %d, victim %d of %d\n", i, context.victim, size);
                failures++;
            }
            ranks_destroy(ranks);
        }
    }
    const int size = ranks_fit(3) ? 3 : 2;
    struct ranks *ranks = ranks_create(size, threads ? 0 : size, 0);
    failures += ranks_run(ranks, message_differs);
    ranks_destroy(ranks);
    return failures ? 1 : 0;
}
