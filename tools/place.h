/* SPDX-License-Identifier: MIT */
/* Which core a rank runs on. */
#ifndef TUTTI_TOOL_PLACE_H
#define TUTTI_TOOL_PLACE_H

#include "tutti/tutti.h"

#include <jansson.h>
#include <sched.h>

struct placement {
    int cores;  /* that this process may use */
    bool bound; /* one rank a core; false when ranks outnumber the cores or binding was refused */
    cpu_set_t sets[TUTTI_MAX_RANKS]; /* rank r's hardware threads */
    int cpus[TUTTI_MAX_RANKS];       /* the first of them, -1 when not bound */
    char cpu_model[128];
    size_t cache_bytes; /* the last-level cache of the first core; 0 if unknown */
};

/* Looks at the machine as far as this process' affinity and cgroup allow. */
bool place_ranks(struct placement *placement, int ranks, bool bind);
/* Binds the calling thread to its rank's core; nothing to do when not bound. */
bool place_bind(const struct placement *placement, int rank);
/* Cores, NUMA nodes and caches as an object; NULL after a message. */
json_t *place_describe(void);

#endif
