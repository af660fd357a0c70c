/* SPDX-License-Identifier: MIT */
/*
 * The cores of a process group's own thread, one a rank. Where ranks have few cores, the kernel
 * often puts two of these threads on one core while another core is idle. So each keeps to a part
 * of the cores.
 */
#ifndef TUTTI_PG_AFFINITY_H
#define TUTTI_PG_AFFINITY_H

#include <sched.h>
#include <stdbool.h>

/* Sets *part to the cores that the thread of `rank` keeps to: neighbours among `allowed`, disjoint
 * from the other ranks' parts. `cores` is how many cores the `size` ranks have together. Returns
 * false, and does not set *part, if the thread may not run on all of those cores, if there are
 * fewer cores than ranks, or at least four cores a rank (the kernel then finds an idle one). */
bool affinity_part(const cpu_set_t *allowed, int cores, int rank, int size, cpu_set_t *part);

/* Binds the calling thread, and threads that it starts, to its part if it has one. */
void affinity_keep_to_part(int cores, int rank, int size);

#endif
