/* SPDX-License-Identifier: MIT */
/* Which cores a rank runs on. */
#ifndef TUTTI_TOOL_PLACE_H
#define TUTTI_TOOL_PLACE_H

#include "tutti/tutti.h"

#include <jansson.h>
#include <sched.h>

struct placement {
    int cores;  /* that this process may use */
    bool bound; /* false when ranks outnumber the cores, or when no rank is to be bound */
    cpu_set_t sets[TUTTI_MAX_RANKS]; /* rank r's hardware threads */
    int cpus[TUTTI_MAX_RANKS];       /* the first of them, -1 when not bound */
    char cpu_model[128];
    size_t cache_bytes; /* the last-level cache of the first core; 0 if unknown */
};

/* Looks at the machine as far as this process' affinity and cgroup allow. If bind is true, rank r
 * gets core r. */
bool place_ranks(struct placement *placement, int ranks, bool bind);
/* The same, but the ranks share out all cores. */
bool place_shares(struct placement *placement, int ranks);
/* Returns how many cores are the rank's share, and sets the index of the first. The shares of all
 * ranks differ by one core at most. */
int place_share(int cores, int ranks, int rank, int *first);
/* Binds the calling thread to its rank's cores; nothing to do when not bound. */
bool place_bind(const struct placement *placement, int rank);
/* Cores, NUMA nodes and caches as an object; NULL after a message. */
json_t *place_describe(void);

#endif
