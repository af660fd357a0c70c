/* SPDX-License-Identifier: MIT */
#include "comm/options.h"

#include "base/env.h"
#include "base/error.h"
#include "base/options.h"
#include "cuda/runtime/group.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_TIMEOUT_MS = 600000 };

bool comm_is_enabled(void)
{
    bool disabled = false;
    /* A value that we cannot read was meant to switch the library off. */
    return env_bool("TUTTI_DISABLE", &disabled) == TUTTI_OK && !disabled;
}

struct links comm_links_of(struct tutti_comm *comm)
{
    return (struct links){
        .rank = comm->rank,
        .world_size = comm->world_size,
        .config = &comm->config,
        .file = &comm->links,
        .topology = &comm->topology,
    };
}

enum tutti_status comm_leaf_order_read(const int *order, int size, int32_t *leaf_order)
{
    struct rank_set seen = rank_set_none;
    for (int leaf = 0; leaf < size; leaf++) {
        int rank = order ? order[leaf] : leaf;
        if (rank < 0 || rank >= size || rank_set_has(seen, rank))
            return error_set(TUTTI_ERR_INVALID,
                             "leaf_order[%d] is %d: expected each rank from 0 to %d once", leaf,
                             rank, size - 1);
        rank_set_add(&seen, rank);
        leaf_order[leaf] = rank;
    }
    return TUTTI_OK;
}

/* Checks a forced algorithm before the links are known; `variable` as in options.h. */
static enum tutti_status algo_check(const char *variable, enum tutti_algo algo,
                                    enum tutti_device device, int world_size)
{
    char text[OPTIONS_ALGO_BYTES];
    enum tutti_status status = options_algo_check(variable, algo, device == TUTTI_DEVICE_CUDA);
    if (status != TUTTI_OK || algo != TUTTI_ALGO_HYBRID_CUBE_MESH ||
        world_size == TOPOLOGY_MESH_RANKS)
        return status;
    options_algo_text(variable, algo, text, sizeof text);
    return error_set(TUTTI_ERR_INVALID,
                     "%s serves 8 ranks, not %d: expected none, one_shot, two_shot or ring", text,
                     world_size);
}

/* Reads how to launch kernels: from the environment, else the device decides. */
static enum tutti_status launches_read(struct tutti_comm *comm)
{
    static const char variable[] = "TUTTI_PROGRAMMATIC_LAUNCH";
    const char *text = getenv(variable);
    bool on = false;
    enum tutti_status status = env_bool(variable, &on);
    if (text && *text)
        comm->programmatic = on ? TUTTI_PROGRAMMATIC_ON : TUTTI_PROGRAMMATIC_OFF;
    return status;
}

/* Reads the environment, else takes defaults. */
static enum tutti_status environment_read(struct tutti_comm *comm)
{
    size_t buffer_size = TUTTI_DEFAULT_BUFFER_SIZE, arena_bytes = LAYOUT_MOST_ARENA;
    bool strict = false, overlapping = false;
    enum tutti_algo algo = TUTTI_ALGO_NONE;
    comm->timeout_ms = DEFAULT_TIMEOUT_MS;
    enum tutti_status status = env_bytes("TUTTI_BUFFER_SIZE", &buffer_size);
    if (status == TUTTI_OK)
        status = env_bytes("TUTTI_ARENA_BYTES", &arena_bytes);
    if (status == TUTTI_OK)
        status = env_bool("TUTTI_STRICT", &strict);
    if (status == TUTTI_OK)
        status = env_algo("TUTTI_ALGO", &algo);
    if (status == TUTTI_OK)
        status = env_bool("TUTTI_ALLOW_OVERLAPPING_DEVICES", &overlapping);
    if (status == TUTTI_OK)
        status = env_int64("TUTTI_TIMEOUT_MS", &comm->timeout_ms);
    if (status == TUTTI_OK)
        status = launches_read(comm);
    if (comm->timeout_ms == 0)
        comm->timeout_ms = DEFAULT_TIMEOUT_MS;
    comm->timeout_source =
        comm->timeout_ms == DEFAULT_TIMEOUT_MS ? TIMEOUT_OF_DEFAULT : TIMEOUT_OF_ENVIRONMENT;
    comm->config.buffer_size = buffer_size;
    comm->config.arena_bytes = arena_bytes;
    comm->config.strict = strict;
    comm->config.algo = (int32_t)algo;
    comm->config.overlapping = overlapping;
    return status;
}

enum tutti_status comm_options_apply(const struct tutti_comm_options *options,
                                     struct tutti_comm *comm)
{
    struct comm_config *config = &comm->config;
    const size_t least = cpu_group_least_arena(comm->world_size);
    if (options->buffer_size)
        config->buffer_size = options->buffer_size;
    if (options->arena_bytes)
        config->arena_bytes = options->arena_bytes;
    if (options->timeout_ms) {
        comm->timeout_ms = options->timeout_ms;
        comm->timeout_source = TIMEOUT_OF_COMM;
    }
    if (options->strict != TUTTI_STRICT_ENV)
        config->strict = options->strict == TUTTI_STRICT_ON;
    if (options->progress) {
        comm->progress = options->progress;
        comm->progress_context = options->progress_context;
    }
    if (options->programmatic_launch != TUTTI_PROGRAMMATIC_AUTO)
        comm->programmatic = options->programmatic_launch;
    config->leaf_order_given = options->leaf_order != NULL;
    enum tutti_status status =
        comm_leaf_order_read(options->leaf_order, comm->world_size, config->leaf_order);
    if (status == TUTTI_OK && config->arena_bytes < least)
        status = error_set(TUTTI_ERR_INVALID,
                           "arena_bytes (TUTTI_ARENA_BYTES) is %" PRIu64
                           ": expected at least %zu bytes for %d ranks",
                           config->arena_bytes, least, comm->world_size);
    if (status == TUTTI_OK && options->algo != TUTTI_ALGO_NONE) {
        config->algo = (int32_t)options->algo;
        status = algo_check(NULL, options->algo, options->device, comm->world_size);
    }
    return status;
}

enum tutti_status comm_config_read(const struct tutti_comm_options *options,
                                   struct tutti_comm *comm)
{
    enum tutti_status status = environment_read(comm);
    if (status != TUTTI_OK)
        return status;
    const enum tutti_algo algo = (enum tutti_algo)comm->config.algo;
    status = comm_options_apply(options, comm);
    if (status == TUTTI_OK && comm->config.buffer_size == 0)
        status = error_set(TUTTI_ERR_INVALID, "TUTTI_BUFFER_SIZE=0: expected at least 1 byte");
    if (status == TUTTI_OK && options->algo == TUTTI_ALGO_NONE)
        status = algo_check("TUTTI_ALGO", algo, options->device, comm->world_size);
    if (status != TUTTI_OK)
        return status;
    const struct links links = comm_links_of(comm);
    return links_read(&links);
}

enum tutti_status comm_arguments_check(int rank, int world_size,
                                       const struct tutti_comm_options *options)
{
    if (world_size < 1 || rank < 0 || rank >= world_size)
        return error_set(TUTTI_ERR_INVALID,
                         "rank %d of world size %d: expected 0 <= rank < world size", rank,
                         world_size);
    if (options->device != TUTTI_DEVICE_CPU && options->device != TUTTI_DEVICE_CUDA)
        return error_set(TUTTI_ERR_INVALID,
                         "device %d: expected TUTTI_DEVICE_CPU (0) or TUTTI_DEVICE_CUDA (1)",
                         (int)options->device);
    if (options->device == TUTTI_DEVICE_CPU && options->programmatic_launch)
        return error_set(TUTTI_ERR_INVALID,
                         "programmatic_launch is for CUDA communicators: leave it 0 on a CPU "
                         "communicator");
    if (options->device == TUTTI_DEVICE_CUDA && options->arena_bytes)
        return error_set(TUTTI_ERR_INVALID,
                         "arena_bytes is for CPU communicators: leave it 0 on a CUDA communicator");
    if ((unsigned)options->programmatic_launch > TUTTI_PROGRAMMATIC_OFF)
        return error_set(TUTTI_ERR_INVALID,
                         "programmatic_launch %d: expected TUTTI_PROGRAMMATIC_AUTO (0), ON (1) or "
                         "OFF (2)",
                         (int)options->programmatic_launch);
    if ((unsigned)options->strict > TUTTI_STRICT_ON)
        return error_set(TUTTI_ERR_INVALID, "strict %d: expected a value of enum tutti_strict",
                         (int)options->strict);
    if (options->name && (!*options->name || strlen(options->name) >= RECORD_NAME_BYTES ||
                          strchr(options->name, '/')))
        return error_set(TUTTI_ERR_INVALID, "name \"%.80s\": expected 1 to %d bytes without '/'",
                         options->name, RECORD_NAME_BYTES - 1);
    return TUTTI_OK;
}

/* Checks hardware and world size, before the first use of the store. */
enum tutti_status comm_host_check(enum tutti_device device, int world_size)
{
    if (!comm_is_enabled())
        return error_set(TUTTI_ERR_DECLINED, "TUTTI_DISABLE is set: unset it or set it to 0");
    if (device == TUTTI_DEVICE_CUDA && (world_size < 2 || world_size > CUDA_RANKS))
        return error_set(TUTTI_ERR_DECLINED, "world size %d: CUDA communicators have 2 to %d ranks",
                         world_size, CUDA_RANKS);
    if (world_size > TUTTI_MAX_RANKS)
        return error_set(TUTTI_ERR_DECLINED, "world size %d: CPU communicators have 1 to %d ranks",
                         world_size, TUTTI_MAX_RANKS);
    return TUTTI_OK;
}
