/* SPDX-License-Identifier: MIT */
/* What the tests of tutti_comm_shrink() share. */
#ifndef TESTS_SHRINK_H
#define TESTS_SHRINK_H

#include "ranks.h"
#include "tutti/recovery.h"

#include <stdlib.h>
#include <string.h>

enum { SHRINK_MOST_FLOATS = 5000 };

enum { SHRINK_FEW = 50, SHRINK_MANY = 1000 }; /* operations of a new communicator */

/* Sums of numbers that only these ranks of this operation can have made. */
static inline bool shrink_check_one(tutti_comm_t *comm, int operation)
{
    static const int counts[] = {1, 12, 100, 1000, SHRINK_MOST_FLOATS, 3};
    static _Thread_local float in[SHRINK_MOST_FLOATS], out[SHRINK_MOST_FLOATS];
    const int count = counts[(size_t)operation % (sizeof counts / sizeof *counts)];
    const int rank = tutti_comm_rank(comm), size = tutti_comm_world_size(comm);
    for (int i = 0; i < count; i++)
        in[i] = (float)((operation % 97 + i) * size + rank);
    if (tutti_all_reduce(in, out, (size_t)count, TUTTI_FLOAT32, TUTTI_SUM, comm,
                         TUTTI_STREAM_DEFAULT) != TUTTI_OK)
        return false;
    for (int i = 0; i < count; i++)
        if (out[i] != (float)((operation % 97 + i) * size * size + size * (size - 1) / 2))
            return false;
    return true;
}

/* Whether the communicator does its work, in so many operations, or fewer where each takes its
 * time, as on GPUs. */
static inline bool shrink_check(tutti_comm_t *comm, int operations)
{
    if ((getenv("TUTTI_TEST_DEVICE") || ranks_short()) && operations > SHRINK_FEW)
        operations = SHRINK_FEW;
    for (int i = 0; i < operations; i++)
        if (!shrink_check_one(comm, i))
            return false;
    return tutti_barrier(comm, NULL, 0, TUTTI_STREAM_DEFAULT) == TUTTI_OK &&
           tutti_comm_status(comm, NULL) == TUTTI_OK;
}

/* An empty result; the array is the calling thread's. */
static inline struct tutti_shrink_result shrink_result(void)
{
    static _Thread_local int new_ranks[TUTTI_MAX_RANKS];
    return (struct tutti_shrink_result){.struct_size = sizeof(struct tutti_shrink_result),
                                        .capacity = TUTTI_MAX_RANKS,
                                        .new_ranks = new_ranks};
}

/* The call, with at most one rank to exclude (-1: none). */
static inline enum tutti_status shrink_without(tutti_comm_t *comm, tutti_store_t *store,
                                               int excluded, tutti_comm_t **shrunk,
                                               struct tutti_shrink_result *result)
{
    const struct tutti_shrink_options options = {.struct_size = sizeof options,
                                                 .exclude = &excluded,
                                                 .exclude_count = excluded >= 0,
                                                 .timeout_ms = RANKS_TIMEOUT_MS};
    *result = shrink_result();
    return tutti_comm_shrink(comm, store, &options, shrunk, result);
}

/* Whether the new communicator is that of these old ranks. */
static inline bool shrink_is(const struct tutti_shrink_result *result, const tutti_comm_t *shrunk,
                             int old_rank, uint64_t members)
{
    int size = 0;
    for (int old = 0; old < TUTTI_MAX_RANKS; old++)
        if (result->new_ranks[old] != (old < 64 && members >> old & 1 ? size++ : -1))
            return false;
    return result->world_size == size && result->rank == result->new_ranks[old_rank] &&
           tutti_comm_world_size(shrunk) == size && tutti_comm_rank(shrunk) == result->rank;
}

#endif
