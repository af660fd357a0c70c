/* SPDX-License-Identifier: MIT */
/* What every kind of store must do, run by the test program of each. Add a behaviour here once. */
#ifndef TUTTI_TESTS_STORE_SUITE_H
#define TUTTI_TESTS_STORE_SUITE_H

#include "tutti/tutti.h"

struct suite_kind {
    void (*begin)(void);          /* makes a fresh store */
    tutti_store_t *(*open)(void); /* another handle on it; NULL with the last error set */
    void (*end)(void);            /* all handles are closed */
    bool processes;               /* open() works in a forked child too */
};

/* Runs the suite; what main() returns. */
int store_suite_run(const char *name, const struct suite_kind *kind);

/* Runs `count` threads on fn(context, index), which returns 0 if all went well; the sum of what
 * they return. */
int suite_threads(int count, int (*fn)(void *context, int index), void *context);
/* The same with forked processes, which exit with what fn returns. */
int suite_processes(int count, int (*fn)(void *context, int index), void *context);

#endif
