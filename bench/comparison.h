/* SPDX-License-Identifier: MIT */
/* One run: the instances that take part, the sizes, and a cell of samples for each pair of them. */
#ifndef BENCH_COMPARISON_H
#define BENCH_COMPARISON_H

#include "instance.h"
#include "probe.h"
#include "stats.h"

#define COMPARISON_MAX_SIZES     32
#define COMPARISON_MAX_INSTANCES 32

struct cell {
    struct samples samples[PLACEMENT_COUNT]; /* ns per operation, one a block */
    struct samples quiet[PLACEMENT_COUNT];   /* those of blocks that nobody else disturbed */
    double estimate_ns;                      /* of the last block */
    uint32_t blocks;                         /* so far, the first ones for calibration only */
    char algo[24];
    bool wrong; /* a check found wrong elements: the samples count for nothing */
};

struct comparison {
    struct instance_place place;
    const char *engines; /* comma-separated libraries; NULL is all */
    bool thorough;       /* every setting at every size */
    bool both;           /* go on until near and far are both sampled */
    double budget_s;     /* for all sizes together */
    double block_ns;     /* what a block aims to take */
    double threshold_ns; /* between near and far */
    size_t wanted;       /* samples of a placement */
    size_t sizes[COMPARISON_MAX_SIZES];
    int size_count;
    struct instance instances[COMPARISON_MAX_INSTANCES];
    bool alive[COMPARISON_MAX_INSTANCES];
    int instance_count;
    struct cell cells[COMPARISON_MAX_SIZES][COMPARISON_MAX_INSTANCES];
    struct probe *probe; /* NULL when ranks outnumber cores */
    size_t discarded;    /* blocks during which the cores moved */
    bool lost;           /* Tutti did not start, or ended: an error, or a wrong result */
};

/* Whether the setting takes part in this run at all. */
bool comparison_wants(const struct comparison *comparison, const struct setting *setting);
/* Starts the instances. Returns -1 if none came up. */
int comparison_start(struct comparison *comparison);
/* Samples until there is enough, the budget is used up, or *interrupted. */
void comparison_run(struct comparison *comparison, const volatile int *interrupted);
/* Stops the instances. */
void comparison_stop(struct comparison *comparison);
/* Frees the samples. */
void comparison_fini(struct comparison *comparison);

#endif
