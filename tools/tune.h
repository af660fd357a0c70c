/* SPDX-License-Identifier: MIT */
/*
 * tutti tune: tune_options.c reads the command line, tune.c lists candidates, has them measured by
 * the ranks of the benchmark and chooses, tune_file.c knows the tuning file.
 */
#ifndef TUTTI_TOOL_TUNE_H
#define TUTTI_TOOL_TUNE_H

#include "bench.h"

enum { TUNE_ROWS = 32 };
#define TUNE_REST SIZE_MAX /* bytes of the row for all larger sizes */

struct tune_options {
    const char *output;
    const char *json_path;
    char cache[512]; /* the output unless one is given */
    bool quick;
    double seconds;
};

/* How to launch one kernel, as a row of the file says it. */
struct tune_choice {
    enum tutti_algo kernel; /* a transport */
    int threads, blocks, units;
};

/* The rows of one capability and number of ranks: up to so many bytes, the last one for the rest.
 */
struct tune_plan {
    int capability; /* 10 * major + minor */
    int ranks;
    int count;
    struct tune_choice choices[TUNE_ROWS];
    size_t bytes[TUNE_ROWS];
};

/* Reads the command line (and ends the program when it is wrong) and completes the benchmark's
 * configuration: a row for each size. */
bool tune_options_init(struct tune_options *options, struct bench_config *config, int argc,
                       char **argv);

bool tune_choice_equal(const struct tune_choice *a, const struct tune_choice *b);
/* Takes the rows from what tutti_comm_describe() has written. */
bool tune_plan_read(struct tune_plan *plan, const char *description);
/* Appends a row, or lengthens the last one if it has the same choice. */
bool tune_plan_append(struct tune_plan *plan, size_t bytes, const struct tune_choice *choice);
/* Appends what `from` has for more than `low` and up to `high` bytes. */
bool tune_plan_append_part(struct tune_plan *plan, const struct tune_plan *from, size_t low,
                           size_t high);

/* A file without a name: *path is its path as this process and its children see it. -1 after a
 * message. */
int tune_scratch_open(char *path, size_t capacity);
/* Replaces what it holds by the plan; NULL: by no row at all. */
bool tune_scratch_write(int fd, const struct tune_plan *plan);

/* $XDG_CACHE_HOME/tutti/tuning, or ~/.cache/tutti/tuning, as the library has it; "" if there is
 * neither. */
void tune_cache_path(char *path, size_t capacity);
/* Replaces the plan's capability's and number of ranks' rows in the file, and keeps the others;
 * makes it and its folder. The lines of `comment` go before the rows. */
bool tune_file_write(const char *path, const struct tune_plan *plan, const char *comment);

#endif
