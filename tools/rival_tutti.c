/* SPDX-License-Identifier: MIT */
/* Tutti's own ranks. The variant "symmetric" has its buffer in symmetric memory. */
#include "rival_tutti.h"

#include "collective_call.h"

#include <string.h>

#include <tutti/tutti.h>

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
    };
    own_rank = rank;
    world_size = size;
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

static inline int run(enum tutti_collective which, const float *send, float *recv, size_t count,
                      int root)
{
    return collective_call(which, send, recv, &count, TUTTI_FLOAT32, TUTTI_SUM, root, comm, NULL) ==
                   TUTTI_OK
               ? 0
               : failed(tutti_collective_name(which));
}

static int engine_all_reduce(float *buffer, size_t count, int root)
{
    return run(TUTTI_COLLECTIVE_ALL_REDUCE, buffer, buffer, count, root);
}

static int engine_all_gather(float *buffer, size_t count, int root)
{
    return run(TUTTI_COLLECTIVE_ALL_GATHER, buffer + (size_t)own_rank * count, buffer, count, root);
}

static int engine_reduce_scatter(float *buffer, size_t count, int root)
{
    return run(TUTTI_COLLECTIVE_REDUCE_SCATTER, buffer, buffer + (size_t)own_rank * count, count,
               root);
}

static int engine_all_to_all(float *buffer, size_t count, int root)
{
    return run(TUTTI_COLLECTIVE_ALL_TO_ALL, buffer, buffer + (size_t)world_size * count, count,
               root);
}

static int engine_broadcast(float *buffer, size_t count, int root)
{
    return run(TUTTI_COLLECTIVE_BROADCAST, buffer, buffer, count, root);
}

static int engine_reduce(float *buffer, size_t count, int root)
{
    return run(TUTTI_COLLECTIVE_REDUCE, buffer, buffer, count, root);
}

static int engine_gather(float *buffer, size_t count, int root)
{
    return run(TUTTI_COLLECTIVE_GATHER, buffer + (size_t)own_rank * count, buffer, count, root);
}

static int engine_scatter(float *buffer, size_t count, int root)
{
    return run(TUTTI_COLLECTIVE_SCATTER, buffer, buffer + (size_t)own_rank * count, count, root);
}

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
        .operations = {[TUTTI_COLLECTIVE_ALL_REDUCE] = engine_all_reduce,
                       [TUTTI_COLLECTIVE_ALL_GATHER] = engine_all_gather,
                       [TUTTI_COLLECTIVE_REDUCE_SCATTER] = engine_reduce_scatter,
                       [TUTTI_COLLECTIVE_ALL_TO_ALL] = engine_all_to_all,
                       [TUTTI_COLLECTIVE_BROADCAST] = engine_broadcast,
                       [TUTTI_COLLECTIVE_REDUCE] = engine_reduce,
                       [TUTTI_COLLECTIVE_GATHER] = engine_gather,
                       [TUTTI_COLLECTIVE_SCATTER] = engine_scatter},
        .algorithm = engine_algorithm,
        .probe = engine_probe,
        .fini = engine_fini,
    };
    ping = shared;
    return rival_main(&engine);
}
