/* SPDX-License-Identifier: MIT */
/*
 * The cores on which a process group's thread may run, one thread a rank. If ranks have few cores,
 * the kernel often puts two of these threads on one core while another core is idle. So each thread
 * is bound to a part of the cores.
 */
#ifndef TUTTI_PG_AFFINITY_H
#define TUTTI_PG_AFFINITY_H

#include <sched.h>
#include <stdbool.h>

/* [out] part: the cores of the thread of `rank`: neighbours among `allowed`, disjoint from the
 * parts of the other ranks. `cores` is the number of cores that the `size` ranks have together.
 * Return false, with *part unset, if the thread may not run on all of those cores, if there are
 * fewer cores than ranks, or if there are at least four cores a rank (the kernel then finds an idle
 * one). */
bool affinity_part(const cpu_set_t *allowed, int cores, int rank, int size, cpu_set_t *part);

/* Bind the calling thread, and threads that it starts, to its part, if it has one. */
void affinity_keep_to_part(int cores, int rank, int size);

#endif
