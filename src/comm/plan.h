/* SPDX-License-Identifier: MIT */
/* Which algorithm: a pure function of the request and what the ranks have agreed on. */
#ifndef TUTTI_PLAN_H
#define TUTTI_PLAN_H

#include "topology/topology.h"
#include "tutti/tutti.h"

/* What the links of a communicator allow. */
struct plan_paths {
    bool all;    /* one-shot and two-shot: every rank reaches every other one */
    bool staged; /* all, though no path of links joins the ranks: they share the host's memory */
    bool mesh;
    bool ring; /* of GPUs: its algorithm is a kernel */
};

/* order is the leaf order; cuda: the ranks' device is a GPU. */
void plan_paths_make(const struct topology *topology, const int *order, bool cuda,
                     struct plan_paths *paths);
/* Whether an algorithm can run: INVALID says why not. */
enum tutti_status plan_check(const struct plan_paths *paths, const struct topology *topology,
                             enum tutti_algo algo);

/* What is chosen where not all ranks reach each other; else NONE. */
static inline enum tutti_algo plan_by_links(const struct plan_paths *paths)
{
    if (paths->all)
        return TUTTI_ALGO_NONE;
    return paths->mesh ? TUTTI_ALGO_HYBRID_CUBE_MESH : TUTTI_ALGO_RING;
}

struct plan_input {
    size_t bytes;
    enum tutti_dtype dtype;
    enum tutti_algo forced; /* by the call or the communicator, else NONE */
    bool strict;
    uint64_t storage_offset_bytes;
    size_t buffer_size;
    int world_size;
    enum tutti_topology topology;
    struct plan_paths paths;
    bool oversubscribed;
    bool table; /* the back end has one: what is measured is left to it */
};

/* Up to how many bytes plan_pick() says one-shot whatever the call, but for its own choice of
 * algorithm: 0 in strict mode, where one is forced, and where one-shot has no way. Looked up at
 * set-up, so that small operations need not ask. */
size_t plan_small_bytes(const struct plan_input *input);

/* NONE only in strict mode, and for the back end's table. *reason is a static sentence. */
enum tutti_algo plan_pick(const struct plan_input *input, const char **reason);

#endif
