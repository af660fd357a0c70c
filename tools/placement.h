/* SPDX-License-Identifier: MIT */
/* Which cores a rank runs on. */
#ifndef TUTTI_TOOL_PLACEMENT_H
#define TUTTI_TOOL_PLACEMENT_H

#include "tutti/tutti.h"

#include <jansson.h>
#include <sched.h>

struct placement {
    int cores;  /* number of cores that this process may use */
    bool bound; /* false: there are more ranks than cores, or no rank is to be bound */
    cpu_set_t sets[TUTTI_MAX_RANKS]; /* rank r's hardware threads */
    int cpus[TUTTI_MAX_RANKS];       /* the first of them, -1: not bound */
    char cpu_model[128];
    size_t cache_bytes; /* the last-level cache of the first core; 0 if unknown */
};

/* Examines the machine, within this process' affinity and cgroup. If bind is true, rank r gets core
 * r. */
bool placement_make(struct placement *placement, int ranks, bool bind);
/* The same, but each rank gets `each` neighbouring cores. */
bool placement_make_each(struct placement *placement, int ranks, int each);
/* The same, but each rank gets an equal share of all cores. */
bool placement_make_shares(struct placement *placement, int ranks);
/* Returns the number of cores in a rank's share, and sets the index of the first one. The shares
 * differ by one core at most. */
int placement_share(int cores, int ranks, int rank, int *first);
/* Binds the calling thread to its rank's cores, if ranks are bound. */
bool placement_bind(const struct placement *placement, int rank);
/* Finds the function that runs tasks on the threads of OpenMP. `bound`: the rank's threads get a
 * core each; OpenMP reads this when it is loaded. On failure sets tutti_last_error(). */
enum tutti_status placement_threads_find(bool bound, tutti_parallel_t *parallel);
/* Returns cores, NUMA nodes and caches as an object. NULL after a message. */
json_t *placement_describe(void);

#endif
