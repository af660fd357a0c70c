/* SPDX-License-Identifier: MIT */
/*
 * tutti bench --vs: vs_settings.c lists the rivals and their settings, vs_ranks.c starts their
 * ranks and makes them run blocks, vs.c decides which block is next, vs_report.c prints the
 * results.
 */
#ifndef TUTTI_TOOL_VS_H
#define TUTTI_TOOL_VS_H

#include "bench.h"
#include "ranks.h"
#include "rival.h"

#include <jansson.h>

/* ---- the rivals ------------------------------------------------------------------------------ */

enum { VS_WORDS = 8, VS_SIZES = 64, VS_INSTANCES = 40, VS_SAMPLES = 100 };

/* In the words and variables, '@' stands for the environment of scripts/rivals. */
struct vs_library {
    const char *name;                  /* its name for --vs */
    const char *title;                 /* its name in the chart */
    const char *program;               /* of one rank */
    const char *root;                  /* below .rivals; NULL: the system's */
    const char *launcher;              /* NULL: the tool starts the ranks itself */
    const char *bound[VS_WORDS];       /* the launcher's arguments for one rank a core */
    const char *crowded[VS_WORDS];     /* its arguments for unbound ranks */
    const char *environment[VS_WORDS]; /* NAME=VALUE */
    bool all_reduce_only;              /* its program has no other collective */
};

enum vs_use {
    VS_BOUND = 1,   /* worth running with one rank a core */
    VS_CROWDED = 2, /* worth running with more ranks than cores */
    VS_BOTH = VS_BOUND | VS_CROWDED,
};

/* A library with a set of variables. */
struct vs_setting {
    int library;      /* the first one is Tutti */
    const char *name; /* unique; it stands in the results */
    unsigned uses;    /* enum vs_use */
    size_t from, to;  /* bytes, inclusive; for other sizes another setting is faster */
    const char *environment[VS_WORDS]; /* NAME=VALUE */
    bool all_reduce_only;              /* the variables have no effect on other collectives */
};

extern const struct vs_library vs_libraries[];
extern const int vs_library_count;
extern const struct vs_setting vs_settings[];
extern const int vs_setting_count;

/* Reads names joined by commas, or "all", into a bit for each library. False, with the word in
 * *bad, if a word is unknown. */
bool vs_parse(char *text, unsigned *libraries, const char **bad);
/* "openmpi, mpich, ..." */
const char *vs_names(void);
/* Copies the text and replaces '@'. */
void vs_expand(const struct vs_library *library, const char *text, char *expanded, size_t capacity);

/* ---- their ranks ----------------------------------------------------------------------------- */

/* One setting and its ranks, which sleep until they are told to run a block. */
struct vs_instance {
    const struct vs_setting *setting;
    const struct bench_config *config;
    struct ping *ping; /* of Tutti's own ranks */
    size_t capacity;   /* bytes of the largest message */
    bool alive;
    struct ranks ranks; /* the processes: its ranks, or their launcher */
    int listener, log;  /* -1: closed; the log has the output of the processes */
    char address[16];   /* abstract name of the listener */
    char version[sizeof((struct rival_hello *)0)->version];
    int sockets[TUTTI_MAX_RANKS]; /* by rank; -1: none */
};

struct vs_block {
    double us;            /* of one operation, on the slowest rank */
    double round_trip_ns; /* between our ranks 0 and 1 */
    bool preempted;       /* a rank lost its core to another process meanwhile */
    bool wrong;           /* the block failed because a rank found wrong elements */
    char algo[24];
};

/* Forks the processes, which wait. Tutti's own are forked before the tool has another thread. False
 * after a message. */
bool vs_instance_fork(struct vs_instance *instance);
/* Starts the processes and connects to all ranks. False after a message; then only
 * vs_instance_stop() may be called. */
bool vs_instance_meet(struct vs_instance *instance, const char *store_url);
/* Sends all ranks a command and reads their results. False, after a message, if a rank failed or a
 * result is wrong. */
bool vs_instance_run(struct vs_instance *instance, const struct rival_command *command,
                     struct vs_block *block);
/* Ends the ranks. Those that still run after a few seconds are killed. */
void vs_instance_stop(struct vs_instance *instance);

/* rival_tutti.c: one of Tutti's ranks, in a process forked from the tool. Ranks 0 and 1 measure
 * their round trip with `ping`. Returns the exit status. */
int rival_tutti_main(struct ping *shared);

/* ---- what is measured ------------------------------------------------------------------------ */

/* The placements of a run: how far the cores were from each other. */
enum { VS_NEAR, VS_FAR, VS_PLACEMENTS };

struct vs_samples {
    int count, quiet_count;
    double us[VS_SAMPLES];    /* of one operation; a value for each block */
    double quiet[VS_SAMPLES]; /* the same, of blocks that no other process disturbed */
};

/* One instance at one size. */
struct vs_cell {
    struct vs_samples samples[VS_PLACEMENTS];
    double last_us; /* of the last block */
    int blocks;     /* number of blocks, including the first ones for calibration */
    bool wrong;     /* a check found wrong elements, so the samples are not used */
    char algo[24];
};

struct vs {
    const struct bench_config *config;
    tutti_store_t *store;
    struct ping *ping;
    struct vs_instance *instances; /* ours first: VS_OURS and VS_SYMMETRIC */
    int instance_count;
    struct vs_cell *cells; /* [row][VS_INSTANCES] */
    int discarded;         /* blocks during which the cores moved */
};

enum { VS_OURS, VS_SYMMETRIC, VS_FIRST_RIVAL };
/* With fewer blocks no median is printed. */
enum { VS_LEAST_SAMPLES = 3 };

struct vs_cell *vs_cell(const struct vs *vs, int row, int instance);
/* Whether the instance still runs and is measured at this size. */
bool vs_takes_part(const struct vs *vs, int row, int instance);
/* "near" or "far", or why the distance is not known. */
const char *vs_placement_name(const struct bench_config *config, int placement);
/* Starts the ranks of all libraries and measures. False after a message. The caller calls
 * vs_finish() in both cases. */
bool vs_measure(struct vs *vs);
void vs_finish(struct vs *vs);
/* Measures and reports. False after a message. */
bool vs_run(const struct bench_config *config);

#endif
