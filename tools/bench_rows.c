/* SPDX-License-Identifier: MIT */
/* What a measurement of tutti bench is, once its options are known: the rows, the ranks, the
 * operands' reference. */
#include "base/rank_set.h"
#include "bench.h"
#include "gpu.h"
#include "tool.h"
#include "vs.h"

#include <stdlib.h>
#include <unistd.h>

/* How long GPU ranks wait for each other on the host. */
enum { WAIT_SECONDS = 120 };

/* The time for each rival, with --vs but without --seconds. The target length of a timed block. */
enum { RIVAL_SECONDS = 10, BLOCK_MS = 5, CROWDED_BLOCK_MS = 20 };
enum { GPU_WARMUP = 5 };

/* ---- rows ------------------------------------------------------------------------------------ */

static size_t next_size(const struct bench_config *config, size_t bytes)
{
    size_t next = config->step_bytes ? bytes + config->step_bytes : bytes * (size_t)config->factor;
    return next > bytes ? next : SIZE_MAX;
}

/* Appends the rows of one dtype and operation. With rows == NULL it counts them only. */
static int add_sizes(const struct bench_config *config, enum tutti_dtype dtype, tutti_op_t op,
                     struct bench_row *rows)
{
    /* The bytes of one element of each block. */
    size_t element = tutti_dtype_size(dtype) *
                     (size_t)collective_blocks(bench_collective(config), config->ranks);
    int count = 0;
    for (; count < config->count_count; count++)
        if (rows)
            rows[count] = (struct bench_row){.dtype = dtype,
                                             .op = op,
                                             .count = config->counts[count],
                                             .bytes = config->counts[count] * element};
    if (config->count_count)
        return count;
    for (size_t bytes = config->min_bytes; bytes <= config->max_bytes;
         bytes = next_size(config, bytes), count++)
        if (rows)
            rows[count] = (struct bench_row){.dtype = dtype,
                                             .op = op,
                                             .count = bytes / element,
                                             .bytes = bytes / element * element};
    return count;
}

static int add_rows(const struct bench_config *config, struct bench_row *rows)
{
    int count = 0;
    for (int dtype = 0; dtype < TUTTI_DTYPE_COUNT; dtype++)
        for (int op = 1; op < REFERENCE_OPS; op++)
            if (config->dtypes[dtype] && config->ops[op] &&
                reference_has((enum tutti_dtype)dtype, (tutti_op_t)(uintptr_t)op))
                count += add_sizes(config, (enum tutti_dtype)dtype, (tutti_op_t)(uintptr_t)op,
                                   rows ? rows + count : NULL);
    return count;
}

static bool make_rows(struct bench_config *config)
{
    bool data = bench_collective(config)->data;
    config->row_count = data ? add_rows(config, NULL) : 1;
    config->rows = calloc((size_t)config->row_count, sizeof *config->rows);
    if (!config->rows)
        return tool_fail("no memory for %d rows", config->row_count);
    if (data)
        add_rows(config, config->rows);
    return true;
}

/* Refused here, because otherwise the kernel would kill some process when memory runs out. */
static bool fits_memory(const struct bench_config *config)
{
    size_t most = 0;
    if (config->device == TUTTI_DEVICE_CUDA)
        return true; /* the ranks will notice */
    for (int i = 0; i < config->row_count; i++)
        most = config->rows[i].bytes > most ? config->rows[i].bytes : most;
    const int ranks = config->launched.local_size > 0 ? config->launched.local_size : config->ranks;
    double need = 2.0 * (double)most * ranks;
    double have = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    if (need <= have)
        return true;
    return tool_fail("-e %zu: the buffers of %d ranks need %.0f bytes, this machine has %.0f: give "
                     "a smaller size or fewer ranks",
                     most, ranks, need, have);
}

/* One rank for each GPU, not bound to a core. */
static bool count_gpus(struct bench_config *config)
{
    int count = gpu_probe();
    config->bind = false;
    if (count == 0)
        return tool_fail("--device cuda: %s", library_error());
    if (config->ranks > count && !gpu_may_be_shared())
        return tool_fail("-n %d: each rank needs a GPU of its own, and this machine has %d; set "
                         "TUTTI_ALLOW_OVERLAPPING_DEVICES to have them share",
                         config->ranks, count);
    if (config->ranks == 0)
        config->ranks = count < BENCH_GPU_RANKS ? count : BENCH_GPU_RANKS;
    config->gpus = config->ranks < count ? config->ranks : count;
    return config->ranks >= 2 || tool_fail("--device cuda: needs two GPUs, this machine has one");
}

const struct collective *bench_collective(const struct bench_config *config)
{
    return &collectives[config->collective];
}

const char *bench_name(const struct bench_config *config)
{
    return config->norms ? tutti_collective_name(TUTTI_COLLECTIVE_ALL_REDUCE_RMS_NORM)
                         : collective_name(config->collective);
}

bool bench_pushes(const struct bench_config *config)
{
    const struct collective *collective = bench_collective(config);
    return config->device == TUTTI_DEVICE_CUDA && config->symmetric && collective->data &&
           !collective->reduces && !collective->varies &&
           config->collective != TUTTI_COLLECTIVE_SEND;
}

int bench_places(const struct bench_config *config)
{
    const struct collective *collective = bench_collective(config);
    /* No block is moved within a buffer that peers write to. A scatter in place would have another
     * recv on each rank. */
    const bool apart =
        collective->apart || config->vs_mpi || (bench_pushes(config) && collective->send_all);
    return collective->data && !apart && !config->norms ? BENCH_PLACES : 1;
}

bool bench_is_in_place(const struct bench_config *config, int place)
{
    return place == BENCH_IN_PLACE ||
           (config->vs_mpi && config->collective == TUTTI_COLLECTIVE_BROADCAST);
}

const char *bench_op_name(const struct bench_config *config, const struct bench_row *row)
{
    return bench_collective(config)->reduces ? tutti_op_name(row->op) : NULL;
}

double bench_premul_scalar(bool exact)
{
    return exact ? 2 : 3;
}

struct reference bench_reference(const struct bench_config *config, int index,
                                 enum bench_place place, bool exact)
{
    const struct bench_row *row = &config->rows[index];
    return (struct reference){
        .dtype = row->dtype,
        .op = row->op,
        .scalar = bench_premul_scalar(exact),
        .ranks = config->ranks,
        .seed = (uint64_t)index * BENCH_PLACES + (uint64_t)place,
        .exact = exact,
    };
}

void bench_config_default(struct bench_config *config)
{
    *config = (struct bench_config){
        .collective = TUTTI_COLLECTIVE_ALL_REDUCE,
        .bind = true,
        .min_bytes = 8,
        .factor = 2,
        .warmup = BENCH_UNTIL_STEADY,
        .check = true,
        .streams = 1,
        .wait_seconds = WAIT_SECONDS,
        .name = "bench",
    };
}

void bench_config_command(struct bench_config *config, int argc, char **argv)
{
    size_t length = 0;
    for (int i = 0; i < argc && length < sizeof config->command; i++)
        length += (size_t)snprintf(config->command + length, sizeof config->command - length,
                                   "%s%s", i ? " " : "", argv[i]);
}

static bool complete_vs(struct bench_config *config)
{
    int rivals = __builtin_popcount(config->vs_libraries);
    if (!rivals)
        return true;
    if (config->vs_seconds <= 0)
        config->vs_seconds = RIVAL_SECONDS * rivals;
    config->block_ms = config->placement.bound ? BLOCK_MS : CROWDED_BLOCK_MS;
    for (int i = 0; i < config->row_count; i++)
        if (config->rows[i].count == 0 || config->rows[i].count > INT_MAX)
            return tool_fail("--vs: a size of %zu bytes: give 4 bytes to 8G for each block of a "
                             "rank",
                             config->rows[i].bytes);
    return (config->ranks >= 2 && config->row_count <= VS_SIZES) ||
           tool_fail("--vs: give at least 2 ranks and at most %d sizes", VS_SIZES);
}

bool bench_config_complete(struct bench_config *config)
{
    if (config->launched.size > WORLD_RANKS)
        return tool_fail("%s has started %d ranks: a communicator has at most %d",
                         config->launched.name, config->launched.size, WORLD_RANKS);
    if (config->launched.size) {
        config->ranks = config->launched.size;
        config->bind = false; /* the launcher binds them, if anyone does */
    }
    if (config->device == TUTTI_DEVICE_CUDA && !count_gpus(config))
        return false;
    if (config->device == TUTTI_DEVICE_CUDA && config->warmup == BENCH_UNTIL_STEADY)
        config->warmup = GPU_WARMUP;
    if (config->ranks == 0) {
        if (!placement_make(&config->placement, 1, false))
            return false;
        config->ranks = config->placement.cores < 2 ? 2 : config->placement.cores;
        config->ranks = config->ranks < TUTTI_MAX_RANKS ? config->ranks : TUTTI_MAX_RANKS;
    }
    const bool placed =
        config->bind && config->threads_per_rank > 1
            ? placement_make_each(&config->placement, config->ranks, config->threads_per_rank)
            : placement_make(&config->placement, config->ranks, config->bind);
    return placed && make_rows(config) && fits_memory(config) && complete_vs(config);
}
