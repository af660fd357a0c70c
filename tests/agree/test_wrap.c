/* SPDX-License-Identifier: MIT */
/*
 * The counts wrap after 2^32 operations, and only some transports use each flag. A flag that was
 * not written for a whole cycle of the count must not be taken for a new one. The fast rank passes
 * the wrap before the slow one has written its input.
 */
#include "base/layout.h"
#include "comm/comm.h"
#include "cpu/transport/group.h"
#include "pool.h"
#include "ranks.h"

#include <stdlib.h>
#include <unistd.h>

enum { BYTES = 64 * 1024, BEFORE = 8 };

/* How the operations before the wrap and the one at the wrap travel. */
struct wrap {
    const struct pool *pool;
    struct tutti_call_options before;
    struct tutti_call_options at;
};

#define ZERO_COPY                                                                                  \
    {                                                                                              \
        .struct_size = sizeof(struct tutti_call_options)                                           \
    }
#define ONE_SHOT                                                                                   \
    {                                                                                              \
        .struct_size = sizeof(struct tutti_call_options), .algo = TUTTI_ALGO_ONE_SHOT,             \
        .flags = TUTTI_CALL_NO_ZERO_COPY                                                           \
    }
#define TWO_SHOT                                                                                   \
    {                                                                                              \
        .struct_size = sizeof(struct tutti_call_options), .algo = TUTTI_ALGO_TWO_SHOT,             \
        .flags = TUTTI_CALL_NO_ZERO_COPY                                                           \
    }

#define MESH                                                                                       \
    {                                                                                              \
        .struct_size = sizeof(struct tutti_call_options), .algo = TUTTI_ALGO_HYBRID_CUBE_MESH      \
    }

static int wrap(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const struct wrap *w = ranks->context;
    tutti_comm_t *comm;
    size_t index;
    unsigned char *data = malloc(BYTES);
    RANKS_CHECK(data);
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    uint32_t steps = UINT32_MAX - BEFORE;
    cpu_group_of(comm->peers)->counts.step = steps;
    for (uint32_t i = 0; i < 2 * BEFORE; i++) {
        bool first = i < BEFORE;
        pool_input(w->pool, rank, TUTTI_UINT8, i, BYTES, data);
        if (rank == 1 && cpu_group_of(comm->peers)->counts.step >= UINT32_MAX - 1)
            usleep(20000); /* late, so that the other rank can only have an old flag */
        RANKS_CHECK(tutti_all_reduce_with(data, data, BYTES, TUTTI_UINT8, TUTTI_SUM, comm,
                                          TUTTI_STREAM_DEFAULT,
                                          first ? &w->before : &w->at) == TUTTI_OK);
        RANKS_CHECK(pool_is_result(w->pool, TUTTI_UINT8, TUTTI_SUM, i, BYTES, data, &index));
        steps++; /* one a piece */
        RANKS_CHECK(cpu_group_of(comm->peers)->counts.step == steps);
    }
    tutti_comm_destroy(comm);
    free(data);
    return 0;
}

int main(void)
{
    int skip = ranks_skip_cuda("the counts of CPU ranks");
    if (skip)
        return skip;
    struct pool *pool = pool_create(3, NULL, 9), *eight = pool_create(8, NULL, 9);
    const struct wrap wraps[] = {
        {pool, ZERO_COPY, ONE_SHOT}, {pool, ZERO_COPY, TWO_SHOT}, {pool, ONE_SHOT, TWO_SHOT},
        {pool, ONE_SHOT, ZERO_COPY}, {pool, TWO_SHOT, ONE_SHOT},  {eight, TWO_SHOT, MESH},
        {eight, MESH, ONE_SHOT},     {eight, ONE_SHOT, MESH},
    };
    int failures = 0;
    for (size_t i = 0; i < sizeof wraps / sizeof *wraps; i++) {
        struct ranks *ranks = ranks_create(wraps[i].pool == pool ? 3 : 8, 0, 0);
        ranks->context = &wraps[i];
        failures += ranks_run(ranks, wrap);
        ranks_destroy(ranks);
    }
    pool_destroy(pool);
    pool_destroy(eight);
    return failures ? 1 : 0;
}
