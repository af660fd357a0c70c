/* SPDX-License-Identifier: MIT */
/* Helpers of the tests of groups with a list of members. */
#ifndef TESTS_PG_MEMBERS_H
#define TESTS_PG_MEMBERS_H

#include "ranks.h"
#include "tutti/pg.h"

#include <string.h>

static inline enum tutti_status pg_of(tutti_comm_t *comm, tutti_store_t *store, const int *list,
                                      int count, int64_t timeout_ms, tutti_pg_t **pg)
{
    const struct tutti_pg_options options = {.struct_size = sizeof options,
                                             .timeout_ms = timeout_ms,
                                             .ranks = list,
                                             .rank_count = count,
                                             .store = store};
    return tutti_pg_create(comm, &options, pg);
}

/* A main(): runs the parts, one after the other, with 2 to 4 ranks, as threads, processes, or, with
 * 4 ranks, two threads in each of two processes. */
static inline int pg_members_main(int argc, char **argv, ranks_fn *const *parts, int count)
{
    const char *kind = argc > 1 ? argv[1] : "threads";
    const bool mixed = strcmp(kind, "mixed") == 0, processes = strcmp(kind, "processes") == 0;
    int failures = 0, skip = ranks_skip(2);
    if (skip)
        return skip;
    for (int size = mixed ? 4 : 2; size <= 4 && ranks_fit(size); size++) {
        struct ranks *ranks = ranks_create(size, mixed ? 2 : processes ? size : 0, 0);
        for (int i = 0; i < count; i++)
            failures += ranks_run(ranks, parts[i]);
        ranks_destroy(ranks);
    }
    return failures ? 1 : 0;
}

#endif
