/* SPDX-License-Identifier: MIT */
/*
 * tutti tune: tune_options.c reads the command line, tune.c lists candidates, makes the ranks of
 * the benchmark measure them and chooses, tune_file.c reads and writes plans.
 */
#ifndef TUTTI_TOOL_TUNE_H
#define TUTTI_TOOL_TUNE_H

#include "bench.h"

enum { TUNE_ROWS = 32, TUNE_KERNELS = 16 };
#define TUNE_REST SIZE_MAX /* bytes of the row for all larger sizes */

struct tune_options {
    const char *output;
    const char *json_path;
    char cache[512]; /* the default output */
    bool quick;
    double seconds;
};

/* The launch of one kernel, as in a row of the file. */
struct tune_choice {
    char kernel[24];
    int threads, blocks, units;
};

/* A kernel that rows of the file may name. */
struct tune_kernel {
    char name[24];
    size_t bytes;             /* that it serves; TUNE_REST: any number */
    size_t unit_bytes, parts; /* how it divides an operation among its threads */
    int blocks;               /* at most */
};

/* The rows of one capability and number of ranks. Row i is for up to bytes[i]; the last one is for
 * all larger sizes. */
struct tune_plan {
    int capability; /* 10 * major + minor */
    int ranks;
    int count;
    struct tune_choice choices[TUNE_ROWS];
    size_t bytes[TUNE_ROWS];
    struct tune_kernel kernels[TUNE_KERNELS]; /* as a description lists them */
    int kernel_count;
};

/* Reads the command line and completes the benchmark's configuration with a row for each size. A
 * wrong command line ends the program. */
bool tune_options_init(struct tune_options *options, struct bench_config *config, int argc,
                       char **argv);

bool tune_choice_equal(const struct tune_choice *a, const struct tune_choice *b);
/* Reads the rows from the text of tutti_comm_describe(). */
bool tune_plan_read(struct tune_plan *plan, const char *description);
/* Appends a row, or extends the last one if it has the same choice. */
bool tune_plan_append(struct tune_plan *plan, size_t bytes, const struct tune_choice *choice);
/* Appends the rows of `from` for more than `low` and up to `high` bytes. */
bool tune_plan_append_part(struct tune_plan *plan, const struct tune_plan *from, size_t low,
                           size_t high);

/* Opens a file in memory. `path` gets a path that this process and its children can open. -1 after
 * a message. */
int tune_scratch_open(char *path, size_t capacity);
/* Replaces the file's content by the plan. NULL: a plan without rows. */
bool tune_scratch_write(int fd, const struct tune_plan *plan);

/* The path that the library uses: $XDG_CACHE_HOME/tutti/tuning, or ~/.cache/tutti/tuning; "" if
 * neither variable is set. */
void tune_cache_path(char *path, size_t capacity);
/* Replaces the file's rows for the plan's capability and number of ranks, and keeps the others.
 * Creates the file and its folder. The lines of `comment` are written before the rows. */
bool tune_file_write(const char *path, const struct tune_plan *plan, const char *comment);

#endif
