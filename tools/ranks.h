/* SPDX-License-Identifier: MIT */
/*
 * Child processes that cannot outlive their parent, and threads that start all or not at all,
 * because ranks wait for each other.
 *
 * The children are forked first and wait at a gate. Then the parent may start threads (a store's
 * server). It opens the gate with a line of text for each child. The kernel kills the children when
 * the parent ends.
 */
#ifndef TUTTI_TOOL_RANKS_H
#define TUTTI_TOOL_RANKS_H

#include "tutti/tutti.h"

#include <sys/types.h>

enum { RANKS_START_BYTES = 256 };

/* Runs in child `index` after the gate was opened. Its return value is the child's exit status. */
typedef int ranks_fn(int index, const char *start, void *context);

struct ranks {
    int count;
    int running;                 /* forked and not reaped yet */
    int gate;                    /* -1: opened */
    pid_t pids[TUTTI_MAX_RANKS]; /* 0: reaped */
};

/* Forks `count` children. The caller has no other thread. */
bool ranks_fork(struct ranks *ranks, int count, ranks_fn *fn, void *context);
/* Opens the gate. */
bool ranks_start(struct ranks *ranks, const char *start);
/* Marks a child as reaped. Returns its index, or -1 if no child has that pid. */
int ranks_reaped(struct ranks *ranks, pid_t pid);
/* Waits until all children have ended. */
void ranks_await(struct ranks *ranks);
void ranks_signal(const struct ranks *ranks, int signal);
/* Kills and reaps the children that still run. Takes an all-zero struct. */
void ranks_end(struct ranks *ranks);
/* Writes "exited with status 3" or "was killed by signal 9 (Killed)". */
void ranks_describe_exit(int status, char *text, size_t capacity);

typedef bool threads_fn(void *argument);

/* Calls fn in `count` threads, at most TUTTI_MAX_RANKS, each with its own element of `arguments`.
 * When all have ended, returns how many returned true. Returns -1 with errno if not all could be
 * started; then fn was not called. */
int threads_run(int count, threads_fn *fn, void *arguments, size_t argument_bytes);

#endif
