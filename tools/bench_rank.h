/* SPDX-License-Identifier: MIT */
/*
 * One rank of the benchmark, on CPU or with a GPU. bench_rank.c has what both do: it meets the
 * others, goes through the rows, and reports. The two engines have the rest: how operations are
 * called, how their time is taken, and how ranks wait for each other between them.
 */
#ifndef TUTTI_TOOL_BENCH_RANK_H
#define TUTTI_TOOL_BENCH_RANK_H

#include "base/rank_set.h"
#include "bench.h"
#include "operands.h"

struct measure;

/* If a function returns false, one of the measure_ functions below has kept the failure, or a
 * function of gpu.h has failed. */
struct bench_engine {
    size_t bytes; /* of its struct, which begins with a struct measure */
    enum tutti_device device;
    /* Before the ranks meet, and after they have met. Fill the rank's first record. */
    bool (*open)(struct measure *measure, struct bench_record *ready);
    bool (*allocate)(struct measure *measure, struct bench_record *ready);
    /* Waits until all ranks call it. */
    bool (*meet)(struct measure *measure);
    /* Around a row. */
    bool (*begin)(struct measure *measure, const struct bench_row *row,
                  struct bench_record *record);
    bool (*end)(struct measure *measure, struct bench_record *record);
    /* One place of a row, in this order. NULL: nothing. */
    bool (*warm_up)(struct measure *measure);
    bool (*check)(struct measure *measure, struct bench_timing *timing);
    bool (*time)(struct measure *measure, struct bench_timing *timing, int *iterations);
    bool (*check_again)(struct measure *measure, struct bench_timing *timing);
    /* Of an engine with rounds (bench_rounds.h). The library is contestant 0. `i`: the place in the
     * batch. NULL: all take part; a round needs nothing restored. */
    int contestants;
    bool (*takes_part)(struct measure *measure, int contestant);
    bool (*enqueue)(struct measure *measure, int contestant, tutti_stream_t stream, int i);
    bool (*restore)(struct measure *measure, int contestant);
    /* Before the communicator is destroyed, and after that. Free what is there; NULL: nothing. */
    void (*release)(struct measure *measure);
    void (*close)(struct measure *measure);
};

struct measure {
    const struct bench_engine *engine;
    const struct bench_rank *self;
    const struct bench_config *config;
    tutti_store_t *store;
    tutti_comm_t *comm;
    tutti_op_t premul;
    bool exact; /* a ring sums: the inputs' sums are the same in any order */
    /* The current row and place. */
    const struct bench_row *row;
    enum bench_place place;
    /* Of the row's blocks, in entries of size_t, or with --device-counts of its type. */
    union {
        size_t wide[WORLD_RANKS];
        int32_t narrow[WORLD_RANKS];
    } counts;
    struct tutti_call_options options; /* of the row's operations */
    struct operands operands;          /* the engine sets the buffers */
    unsigned long long meetings;       /* of measure_meet() */
    enum tutti_status status;          /* the first failure */
    char message[sizeof((struct bench_record *)0)->message];
};

extern const struct bench_engine bench_cpu, bench_gpu, bench_norm_cpu, bench_norm_gpu;

/* Keeps the first failure. Returns false. */
bool measure_fail(struct measure *measure, enum tutti_status status, const char *format, ...)
    TUTTI_PRINTF(3, 4);
/* Returns whether the status is TUTTI_OK; else the failure is the library's last error. */
bool measure_status(struct measure *measure, enum tutti_status status);
/* All ranks meet on the host. The meeting runs no kernel, so it warms up neither our kernels nor a
 * rival's. */
bool measure_meet(struct measure *measure);
/* Creates a communicator of the engine's device. */
bool measure_comm(struct measure *measure, const char *name, tutti_comm_t **comm);
/* Allocates memory on the engine's device: ordinary, or with --symmetric that of a group, whose
 * destruction frees it. Collective then. */
bool measure_alloc(struct measure *measure, size_t bytes, tutti_symm_group_t **group,
                   char **memory);
/* The operation of the current row. */
static inline tutti_op_t measure_op(const struct measure *measure)
{
    return measure->row->op == TUTTI_PREMUL_SUM ? measure->premul : measure->row->op;
}
/* Sets the counts and the options of the row's operations. */
bool measure_counts(struct measure *measure);
/* Rank 0 announces a number to all. They meet before they read it. */
bool measure_agree(struct measure *measure, int *value);

#endif
