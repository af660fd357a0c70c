/* SPDX-License-Identifier: MIT */
/*
 * Rounds, in which the library and what is measured beside it take turns. In a round one of these
 * contestants replays its graph, or makes a batch of calls; on a GPU between two events. The ranks
 * begin each round together and write their times to the shared memory. The time of a round is that
 * of its slowest rank.
 */
#ifndef TUTTI_TOOL_BENCH_ROUNDS_H
#define TUTTI_TOOL_BENCH_ROUNDS_H

#include "bench_rank.h"
#include "stats.h"

/* The series of the library's time on the host. */
enum { ROUNDS_HOST = BENCH_SERIES - 1 };

/* The struct of such an engine begins with it. The streams and events are NULL on CPU. */
struct rounds {
    struct measure base;
    tutti_comm_t *others[BENCH_TUNINGS]; /* further communicators of the engine; NULL ends them */
    tutti_stream_t streams[BENCH_STREAMS];
    void *begin, *end, *forked, *joined[BENCH_STREAMS]; /* events */
    double values[BENCH_REPLAYS];
    /* The current place. */
    int batch;      /* operations in a round; the engine sets it */
    double each_us; /* of the library's operation, in the warm-up */
    void *graphs[BENCH_SERIES];
};

bool rounds_open(struct measure *measure, struct bench_record *ready);
/* Frees the graphs and the communicators. */
void rounds_release(struct rounds *rounds);
void rounds_close(struct measure *measure);
/* Enqueues a batch, or the contestant's graph. */
bool rounds_launch(struct rounds *rounds, int contestant);
/* Waits for the first stream, and asks the communicators whether a kernel failed. */
bool rounds_synchronize(struct rounds *rounds);
/* Calls each contestant once outside a graph, for rivals with a late set-up. Then captures the
 * graphs, and makes `count` rounds. */
bool rounds_warm_up(struct rounds *rounds, int count);
/* Makes the rounds and sets the library's times. Until the ranks meet again the series stay. */
bool rounds_run(struct rounds *rounds, int count, struct bench_timing *timing);
/* The times of this rank in each round; with `slowest` those of the slowest rank. */
struct stats rounds_stats(struct rounds *rounds, int series, int count, bool slowest);

#endif
