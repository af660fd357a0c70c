/* SPDX-License-Identifier: MIT */
/* Which libraries are compared, each with the settings that make it fastest somewhere. */
#ifndef BENCH_SETTING_H
#define BENCH_SETTING_H

#include <stdbool.h>
#include <stddef.h>

#define SETTING_MAX_WORDS 8

/* How a library's ranks are started: PROGRAM ARGUMENTS -n RANKS WORKER. */
struct launcher {
    const char *program;
    const char *pinned[SETTING_MAX_WORDS];  /* arguments for one rank per core */
    const char *crowded[SETTING_MAX_WORDS]; /* arguments for more ranks than cores */
};

enum setting_use {
    SETTING_PINNED = 1,  /* worth running with one rank per core */
    SETTING_CROWDED = 2, /* worth running with more ranks than cores */
};

struct setting {
    const char *name;    /* unique; it stands in the results */
    const char *library; /* what --engines names; its best setting counts */
    const char *program; /* of one rank, beside compare; skipped if it is absent */
    unsigned uses;       /* enum setting_use */
    size_t from, to;     /* bytes, inclusive; elsewhere a sibling has been measured to win */
    const struct launcher *launcher;            /* NULL: compare starts the ranks itself */
    const char *environment[SETTING_MAX_WORDS]; /* NAME=VALUE */
};

extern const struct setting settings[];
extern const int setting_count;

#endif
