/* SPDX-License-Identifier: MIT */
/* Tutti's own ranks. The variant "symmetric" has its buffer in symmetric memory. */
#include "collective_call.h"
#include "placement.h"
#include "vs.h"

#include <stdlib.h>
#include <string.h>

static struct ping *ping;
static tutti_store_t *store;
static tutti_comm_t *comm;
static tutti_symm_group_t *group;
static int own_rank;
static int world_size;

static int failed(const char *call)
{
    return rival_error("%s: %s", call, tutti_last_error());
}

static int engine_init(int rank, int size)
{
    struct tutti_comm_options options = {
        .struct_size = sizeof options,
        .name = rival_env(RIVAL_VARIANT, "plain"),
        .timeout_ms = RIVAL_LIMIT_SECONDS * 1000,
        .threads = atoi(rival_env(RIVAL_THREADS, "0")),
    };
    own_rank = rank;
    world_size = size;
    if (options.threads &&
        placement_threads_find(*rival_env(RIVAL_CPUS, ""), &options.parallel) != TUTTI_OK)
        return failed("tutti_parallel_find");
    if (tutti_store_open(rival_env(RIVAL_STORE, ""), options.timeout_ms, &store) != TUTTI_OK)
        return failed("tutti_store_open");
    if (tutti_comm_create(store, rank, size, &options, &comm) != TUTTI_OK)
        return failed("tutti_comm_create");
    return 0;
}

static int engine_alloc(size_t bytes, float **buffer)
{
    void *memory;
    if (strcmp(rival_env(RIVAL_VARIANT, ""), "symmetric") != 0)
        return 0;
    if (tutti_symm_group("bench", own_rank, world_size, store, &group) != TUTTI_OK)
        return failed("tutti_symm_group");
    if (tutti_symm_alloc(group, TUTTI_DEVICE_CPU, bytes, &memory) != TUTTI_OK)
        return failed("tutti_symm_alloc");
    if (tutti_symm_rendezvous(memory, RIVAL_LIMIT_SECONDS * 1000, NULL) != TUTTI_OK)
        return failed("tutti_symm_rendezvous");
    *buffer = memory;
    return 0;
}

static inline __attribute__((always_inline)) int run(enum tutti_collective which, float *buffer,
                                                     size_t count, int root)
{
    static size_t counts[TUTTI_MAX_RANKS];
    const struct collective *collective = &collectives[which];
    const size_t own = (size_t)collective_own_block(collective, own_rank) * count;
    float *recv = buffer + (size_t)collective_blocks(collective, world_size) * count;
    if (collective_is_in_place(collective))
        recv = buffer + (collective->recv_all ? 0 : own);
    for (int r = 0; collective->varies && counts[0] != count && r < world_size; r++)
        counts[world_size - 1 - r] = count;
    return collective_call(which, buffer + (collective->send_all ? 0 : own), recv,
                           collective->varies ? counts : &count, TUTTI_FLOAT32, TUTTI_SUM, root,
                           comm, NULL) == TUTTI_OK
               ? 0
               : failed(collective_name(which));
}

/* Each has code of its own. */
#define ENGINE(name)                                                                               \
    static int engine_##name(float *buffer, size_t count, int root)                                \
    {                                                                                              \
        return run(TUTTI_COLLECTIVE_##name, buffer, count, root);                                  \
    }
RIVAL_MAP(ENGINE)

static const char *engine_algorithm(size_t count)
{
    enum tutti_algo algo = TUTTI_ALGO_NONE;
    tutti_comm_algorithm(comm, count, TUTTI_FLOAT32, TUTTI_SUM, NULL, &algo, NULL);
    return tutti_algo_name(algo);
}

static double engine_probe(void)
{
    return own_rank < 2 ? ping_round_trip_ns(ping, own_rank, 2) : 0;
}

static void engine_fini(void)
{
    tutti_symm_group_destroy(group);
    tutti_comm_destroy(comm);
    tutti_store_close(store);
}

int rival_tutti_main(struct ping *shared)
{
    static const struct rival_engine engine = {
        .init = engine_init,
        .alloc = engine_alloc,
        .operations = {RIVAL_MAP(RIVAL_ROW)},
        .algorithm = engine_algorithm,
        .probe = engine_probe,
        .fini = engine_fini,
    };
    ping = shared;
    return rival_main(&engine);
}
