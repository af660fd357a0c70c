/* SPDX-License-Identifier: MIT */
/* Tutti through its public interface; the variant "symmetric" has its buffer in shared memory. */
#include "worker.h"

#include <stdio.h>
#include <string.h>

#include <tutti/tutti.h>

static tutti_store_t *store;
static tutti_comm_t *comm;
static tutti_symm_group_t *group;
static int own_rank;
static int world_size;

/* The first failure's words for compare. */
static int failed(const char *call)
{
    return bench_error("%s: %s", call, tutti_last_error());
}

static int engine_init(int *argc, char ***argv, int *rank, int *size)
{
    struct tutti_comm_options options = {
        .struct_size = sizeof(options),
        .timeout_ms = BENCH_COMMAND_LIMIT_S * 1000,
    };
    char url[256];

    (void)argc;
    (void)argv;
    if (bench_env_rank(rank, size) != 0)
        return -1;
    own_rank = *rank;
    world_size = *size;
    snprintf(url, sizeof(url), "file:%s", bench_env(BENCH_ENV_STORE, ""));
    if (tutti_store_open(url, options.timeout_ms, &store) != TUTTI_OK)
        return failed("tutti_store_open");
    if (tutti_comm_create(store, own_rank, world_size, &options, &comm) != TUTTI_OK)
        return failed("tutti_comm_create");
    return 0;
}

static int engine_alloc(size_t bytes, float **buffer)
{
    void *memory;

    if (strcmp(bench_env(BENCH_ENV_VARIANT, ""), "symmetric") != 0)
        return 0;
    if (tutti_symm_group("bench", own_rank, world_size, store, &group) != TUTTI_OK)
        return failed("tutti_symm_group");
    if (tutti_symm_alloc(group, TUTTI_DEVICE_CPU, bytes, &memory) != TUTTI_OK)
        return failed("tutti_symm_alloc");
    if (tutti_symm_rendezvous(memory, BENCH_COMMAND_LIMIT_S * 1000, NULL) != TUTTI_OK)
        return failed("tutti_symm_rendezvous");
    *buffer = memory;
    return 0;
}

static int engine_all_reduce(float *buffer, size_t count)
{
    if (tutti_all_reduce(buffer, buffer, count, TUTTI_FLOAT32, TUTTI_SUM, comm,
                         TUTTI_STREAM_DEFAULT) != TUTTI_OK)
        return failed("tutti_all_reduce");
    return 0;
}

static const char *engine_algorithm(size_t count)
{
    enum tutti_algo algo = TUTTI_ALGO_NONE;

    tutti_comm_algorithm(comm, count, TUTTI_FLOAT32, TUTTI_SUM, NULL, &algo, NULL);
    return tutti_algo_name(algo);
}

static void engine_fini(void)
{
    tutti_symm_group_destroy(group);
    tutti_comm_destroy(comm);
    tutti_store_close(store);
}

const struct bench_engine bench_engine = {
    .init = engine_init,
    .alloc = engine_alloc,
    .all_reduce = engine_all_reduce,
    .algorithm = engine_algorithm,
    .fini = engine_fini,
};
