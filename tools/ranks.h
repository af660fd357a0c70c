/* SPDX-License-Identifier: MIT */
/*
 * Child processes that cannot outlive their parent.
 *
 * The children are forked first and wait at a gate; then the parent may start threads (a store's
 * server) and opens the gate with a line of text for each. The kernel kills the children when the
 * parent ends, however it ends.
 */
#ifndef TUTTI_TOOL_RANKS_H
#define TUTTI_TOOL_RANKS_H

#include "tutti/tutti.h"

#include <sys/types.h>

enum { RANKS_START_BYTES = 256 };

/* Runs in child `index` once the gate is open; its return value is the child's exit status. */
typedef int ranks_fn(int index, const char *start, void *context);

struct ranks {
    int count;
    int running;                 /* forked and not reaped yet */
    int gate;                    /* -1 once opened */
    pid_t pids[TUTTI_MAX_RANKS]; /* 0 once reaped */
};

/* Forks count children. The caller has no other thread yet. */
bool ranks_fork(struct ranks *ranks, int count, ranks_fn *fn, void *context);
/* Opens the gate. */
bool ranks_start(struct ranks *ranks, const char *start);
/* The child's index, or -1 for a pid that is none of ours; counts it as reaped. */
int ranks_reaped(struct ranks *ranks, pid_t pid);
/* Waits until all have ended. */
void ranks_await(struct ranks *ranks);
void ranks_signal(const struct ranks *ranks, int signal);
/* Kills and reaps what still runs. Takes an all-zero struct. */
void ranks_end(struct ranks *ranks);
/* "exited with status 3" or "was killed by signal 9 (Killed)". */
void ranks_describe_exit(int status, char *text, size_t capacity);

#endif
