/* SPDX-License-Identifier: MIT */
#include "comm/options.h"

#include "base/env.h"
#include "base/error.h"
#include "base/options.h"
#include "cpu/group.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_TIMEOUT_MS = 600000 };

bool comm_is_enabled(void)
{
    bool disabled = false;
    /* A value that we cannot read was meant to switch the library off. */
    return env_bool("TUTTI_DISABLE", &disabled) == TUTTI_OK && !disabled;
}

const struct backend *comm_backend_of(enum tutti_device device)
{
    return device == TUTTI_DEVICE_CUDA ? &cuda_backend : &cpu_backend;
}

struct links comm_links_of(struct tutti_comm *comm)
{
    return (struct links){
        .rank = comm->rank,
        .world_size = comm->world_size,
        .backend = comm->backend,
        .config = &comm->config,
        .file = &comm->links,
        .topology = &comm->topology,
    };
}

enum tutti_status comm_leaf_order_read(const int *order, int size, uint8_t *leaf_order)
{
    struct rank_set seen = rank_set_none;
    for (int leaf = 0; leaf < size; leaf++) {
        int rank = order ? order[leaf] : leaf;
        if (rank < 0 || rank >= size || rank_set_has(seen, rank))
            return error_set(TUTTI_ERR_INVALID,
                             "leaf_order[%d] is %d: expected each rank from 0 to %d once", leaf,
                             rank, size - 1);
        rank_set_add(&seen, rank);
        leaf_order[leaf] = (uint8_t)rank;
    }
    return TUTTI_OK;
}

/* Checks a forced algorithm before the links are known; `variable` as in options.h. */
static enum tutti_status algo_check(const char *variable, enum tutti_algo algo,
                                    const struct tutti_comm *comm)
{
    const int world_size = comm->world_size;
    char text[OPTIONS_ALGO_BYTES];
    enum tutti_status status = options_algo_check(variable, algo, comm->backend->enqueues);
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
    int64_t max_blocks = 0;
    enum tutti_status status = env_bool(variable, &on);
    if (text && *text)
        comm->programmatic = on ? TUTTI_PROGRAMMATIC_ON : TUTTI_PROGRAMMATIC_OFF;
    if (status == TUTTI_OK)
        status = env_int64("TUTTI_MAX_BLOCKS", &max_blocks);
    if (status == TUTTI_OK && (max_blocks < 0 || max_blocks > INT_MAX))
        status = error_set(TUTTI_ERR_INVALID,
                           "TUTTI_MAX_BLOCKS=%" PRId64 ": expected 1 or more, or 0 for no limit",
                           max_blocks);
    comm->max_blocks = (int)max_blocks;
    return status;
}

/* Reads the forced algorithm of all-reduces. The name of one of the back end's kernels for these
 * stands for its algorithm, too. */
static enum tutti_status algo_read(const struct backend *backend, struct comm_config *config)
{
    const char *name = getenv("TUTTI_ALGO"), *kernel = "";
    enum tutti_algo algo = TUTTI_ALGO_NONE;
    const bool found =
        name && backend->kernel_find && backend->kernel_find(name, &algo, &kernel) != 0;
    const enum tutti_status status = found ? TUTTI_OK : env_algo("TUTTI_ALGO", &algo);
    config->algo = (int32_t)algo;
    snprintf(config->kernel, sizeof config->kernel, "%s", kernel);
    return status;
}

static enum tutti_status direct_read(struct comm_config *config)
{
    static const char variable[] = "TUTTI_DIRECT";
    const char *text = getenv(variable);
    bool on = false;
    if (!text || !*text || strcmp(text, "auto") == 0)
        return TUTTI_OK;
    if (env_bool(variable, &on) != TUTTI_OK)
        return error_set(TUTTI_ERR_INVALID, "%s=%.80s: expected on, off or auto", variable, text);
    config->direct = on ? TUTTI_DIRECT_ON : TUTTI_DIRECT_OFF;
    return TUTTI_OK;
}

/* Reads the environment, else takes defaults. */
static enum tutti_status environment_read(struct tutti_comm *comm)
{
    size_t buffer_size = TUTTI_DEFAULT_BUFFER_SIZE, arena_bytes = cpu_group_most_arena();
    bool strict = false, overlapping = false;
    comm->timeout_ms = DEFAULT_TIMEOUT_MS;
    enum tutti_status status = env_bytes("TUTTI_BUFFER_SIZE", &buffer_size);
    if (status == TUTTI_OK)
        status = env_bytes("TUTTI_ARENA_BYTES", &arena_bytes);
    if (status == TUTTI_OK)
        status = env_bool("TUTTI_STRICT", &strict);
    if (status == TUTTI_OK)
        status = algo_read(comm->backend, &comm->config);
    if (status == TUTTI_OK)
        status = env_bool("TUTTI_ALLOW_OVERLAPPING_DEVICES", &overlapping);
    if (status == TUTTI_OK && !comm->backend->enqueues)
        status = direct_read(&comm->config);
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
    comm->config.overlapping = overlapping;
    return status;
}

enum tutti_status comm_options_apply(const struct tutti_comm_options *options,
                                     struct tutti_comm *comm)
{
    struct comm_config *config = &comm->config;
    const int together = comm->world_size < NODE_RANKS ? comm->world_size : NODE_RANKS;
    const size_t least = cpu_group_least_arena(together); /* on one host */
    if (options->buffer_size)
        config->buffer_size = options->buffer_size;
    if (options->arena_bytes)
        config->arena_bytes = options->arena_bytes;
    if (options->timeout_ms) {
        comm->timeout_ms = options->timeout_ms;
        comm->timeout_source = TIMEOUT_OF_COMM;
    }
    if (options->direct != TUTTI_DIRECT_AUTO)
        config->direct = (int32_t)options->direct;
    if (options->strict != TUTTI_STRICT_ENV)
        config->strict = options->strict == TUTTI_STRICT_ON;
    if (options->progress) {
        comm->progress = options->progress;
        comm->progress_context = options->progress_context;
    }
    if (options->programmatic_launch != TUTTI_PROGRAMMATIC_AUTO)
        comm->programmatic = options->programmatic_launch;
    if (options->max_blocks)
        comm->max_blocks = options->max_blocks;
    if (options->parallel) {
        comm->parallel = options->parallel;
        comm->parallel_context = options->parallel_context;
        config->threads = options->threads;
    }
    if (options->transient_streams)
        comm->transient_streams = true;
    config->leaf_order_given = options->leaf_order != NULL;
    enum tutti_status status =
        comm_leaf_order_read(options->leaf_order, comm->world_size, config->leaf_order);
    if (status == TUTTI_OK && config->arena_bytes < least)
        status = error_set(TUTTI_ERR_INVALID,
                           "arena_bytes (TUTTI_ARENA_BYTES) is %" PRIu64
                           ": expected at least %zu bytes for %d ranks",
                           config->arena_bytes, least, together);
    if (status == TUTTI_OK && options->algo != TUTTI_ALGO_NONE) {
        config->algo = (int32_t)options->algo;
        *config->kernel = 0;
        status = algo_check(NULL, options->algo, comm);
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
        status = algo_check("TUTTI_ALGO", algo, comm);
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
    const bool enqueues = comm_backend_of(options->device)->enqueues;
    if (!enqueues && options->programmatic_launch)
        return error_set(TUTTI_ERR_INVALID,
                         "programmatic_launch is for CUDA communicators: leave it 0 on a CPU "
                         "communicator");
    if (enqueues && options->arena_bytes)
        return error_set(TUTTI_ERR_INVALID,
                         "arena_bytes is for CPU communicators: leave it 0 on a CUDA communicator");
    if (enqueues && options->direct)
        return error_set(TUTTI_ERR_INVALID,
                         "direct is for CPU communicators: leave it 0 on a CUDA communicator");
    if ((unsigned)options->direct > TUTTI_DIRECT_OFF)
        return error_set(TUTTI_ERR_INVALID,
                         "direct %d: expected TUTTI_DIRECT_AUTO (0), ON (1) or OFF (2)",
                         (int)options->direct);
    if ((unsigned)options->programmatic_launch > TUTTI_PROGRAMMATIC_OFF)
        return error_set(TUTTI_ERR_INVALID,
                         "programmatic_launch %d: expected TUTTI_PROGRAMMATIC_AUTO (0), ON (1) or "
                         "OFF (2)",
                         (int)options->programmatic_launch);
    if (options->max_blocks < 0)
        return error_set(TUTTI_ERR_INVALID, "max_blocks %d: expected 1 or more, or 0 for no limit",
                         options->max_blocks);
    if (enqueues && options->parallel)
        return error_set(TUTTI_ERR_INVALID,
                         "parallel is for CPU communicators: leave it NULL on a CUDA communicator");
    if (options->parallel ? options->threads < 1 || options->threads > TUTTI_MAX_THREADS
                          : options->threads != 0)
        return error_set(TUTTI_ERR_INVALID,
                         "threads %d with parallel %s: expected 1 to %d threads and the function "
                         "that runs tasks on them (tutti_parallel_openmp() is one), or 0 and NULL",
                         options->threads, options->parallel ? "set" : "NULL", TUTTI_MAX_THREADS);
    if ((unsigned)options->strict > TUTTI_STRICT_ON)
        return error_set(TUTTI_ERR_INVALID, "strict %d: expected a value of enum tutti_strict",
                         (int)options->strict);
    if (options->name && (!*options->name || strlen(options->name) >= RECORD_NAME_BYTES ||
                          strchr(options->name, '/')))
        return error_set(TUTTI_ERR_INVALID, "name \"%.80s\": expected 1 to %d bytes without '/'",
                         options->name, RECORD_NAME_BYTES - 1);
    return TUTTI_OK;
}

enum tutti_status comm_host_check(enum tutti_device device, int world_size, bool has_fabric)
{
    const struct backend *backend = comm_backend_of(device);
    if (!comm_is_enabled())
        return error_set(TUTTI_ERR_DECLINED, "TUTTI_DISABLE is set: unset it or set it to 0");
    if (!backend->enqueues && world_size > (has_fabric ? WORLD_RANKS : NODE_RANKS))
        return error_set(TUTTI_ERR_DECLINED,
                         "world size %d: CPU communicators have 1 to %d ranks on one host, and up "
                         "to %d on several (options->fabric)",
                         world_size, NODE_RANKS, WORLD_RANKS);
    if (backend->enqueues && world_size > backend->most_ranks)
        return error_set(TUTTI_ERR_DECLINED, "world size %d: %s communicators have 1 to %d ranks",
                         world_size, backend->title, backend->most_ranks);
    return TUTTI_OK;
}
