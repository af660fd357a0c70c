/* SPDX-License-Identifier: MIT */
/* Threads that begin all or none, as ranks that wait for each other must. */
#ifndef TUTTI_TOOL_THREADS_H
#define TUTTI_TOOL_THREADS_H

#include "tutti/tutti.h"

typedef bool threads_fn(void *argument);

/* Calls fn in so many threads, at most TUTTI_MAX_RANKS, each with an argument of its own out of an
 * array of them. Returns, once all have ended, how many returned true, or -1 with errno if they
 * could not all be started: then fn was not called. */
int threads_run(int count, threads_fn *fn, void *arguments, size_t argument_bytes);

#endif
