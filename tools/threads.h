/* SPDX-License-Identifier: MIT */
/* Starts all threads or none, because ranks wait for each other. */
#ifndef TUTTI_TOOL_THREADS_H
#define TUTTI_TOOL_THREADS_H

#include "tutti/tutti.h"

typedef bool threads_fn(void *argument);

/* Calls fn in `count` threads, at most TUTTI_MAX_RANKS, each with its own element of `arguments`.
 * When all have ended, returns how many returned true. Returns -1 with errno if not all could be
 * started; then fn was not called. */
int threads_run(int count, threads_fn *fn, void *arguments, size_t argument_bytes);

#endif
