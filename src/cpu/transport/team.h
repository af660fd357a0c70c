/* SPDX-License-Identifier: MIT */
/* Threads that share one rank's work, where it has cores to spare. */
#ifndef TUTTI_CPU_TEAM_H
#define TUTTI_CPU_TEAM_H

#include "tutti/tutti.h"

struct cpu_team;

enum { CPU_TEAM_MOST = 16 };

/* Creates a team of `size` threads, 2 to CPU_TEAM_MOST, including the caller of cpu_team_run().
 * Returns NULL if the system has no memory or threads. */
struct cpu_team *cpu_team_create(int size);
/* Takes NULL. Must not be called in a child of fork(). */
void cpu_team_destroy(struct cpu_team *team);
int cpu_team_size(const struct cpu_team *team);
/* Wakes the members that sleep, because a job comes soon. */
void cpu_team_wake(struct cpu_team *team);
/* Calls part(context, i) for each i below cpu_team_size(), each in its own thread, 0 in the
 * caller's. Returns when all have returned. One caller at a time. */
void cpu_team_run(struct cpu_team *team, void (*part)(const void *context, int i),
                  const void *context);

#endif
