/* SPDX-License-Identifier: MIT */
/*
 * The benchmark's engine of tutti_all_reduce_rms_norm(), for CPU and GPU ranks. Beside the fused
 * call it measures the same work apart: an all-reduce, then the call on a communicator of this rank
 * alone. Both write outputs of their own, whose bits must be equal.
 */
#include "bench_rounds.h"
#include "gpu.h"

#include <stdlib.h>
#include <string.h>

enum { FUSED, APART, WAYS };
enum { INPUT, RESIDUAL, WEIGHT, SCALE, OUTPUTS, OPERANDS = OUTPUTS + 4 * WAYS };
enum { RESIDUAL_OUT, NORM_OUT, QUANT_OUT, SCALES }; /* outputs of a way */
enum { BATCH = 50, ROUNDS = 50, WARMUP = 5, LINE = 256, GROUP = TUTTI_NORM_GROUP };

struct norm_measure {
    struct rounds rounds; /* whose others[0] has this rank alone */
    char *memory, *host;  /* `bytes` each: of the device, and the host's copy */
    size_t bytes, offsets[OPERANDS + 1];
};

static struct norm_measure *of(struct measure *base)
{
    return (struct norm_measure *)base;
}

static bool is_gpu(const struct measure *base)
{
    return base->config->device == TUTTI_DEVICE_CUDA;
}

/* ---- operands -------------------------------------------------------------------------------- */

static size_t operand_bytes(const struct bench_config *config, const struct bench_row *row,
                            int operand)
{
    const size_t width = tutti_dtype_size(row->dtype);
    if (operand < WEIGHT)
        return row->count * width;
    if (operand == WEIGHT)
        return config->hidden * width;
    if (operand == SCALE)
        return sizeof(float);
    switch ((operand - OUTPUTS) % 4) {
    case QUANT_OUT:
        return config->quant ? row->count : 0;
    case SCALES:
        return config->quant
                   ? row->count / config->hidden * (config->hidden / GROUP + 1) * sizeof(float)
                   : 0;
    default:
        return row->count * width;
    }
}

static size_t layout(const struct bench_config *config, const struct bench_row *row,
                     size_t offsets[OPERANDS + 1])
{
    offsets[0] = 0;
    for (int o = 0; o < OPERANDS; o++)
        offsets[o + 1] =
            offsets[o] + (operand_bytes(config, row, o) + LINE - 1) / LINE * LINE + LINE;
    return offsets[OPERANDS];
}

static void *at(const struct norm_measure *measure, int operand)
{
    return measure->memory + measure->offsets[operand];
}

static bool copy(const struct norm_measure *measure, void *to, const void *from, size_t bytes)
{
    if (is_gpu(&measure->rounds.base))
        return gpu_copy(to, from, bytes);
    memcpy(to, from, bytes);
    return true;
}

/* Small numbers that differ from rank to rank; the outputs have other bytes. */
static bool fill(struct norm_measure *measure)
{
    const struct bench_row *row = measure->rounds.base.row;
    const size_t width = tutti_dtype_size(row->dtype);
    const float scale = 0.05f;
    memset(measure->host, 0xa5, measure->bytes);
    for (int operand = INPUT; operand <= WEIGHT; operand++)
        for (size_t i = 0; i < operand_bytes(measure->rounds.base.config, row, operand) / width;
             i++) {
            const size_t number =
                i * 37 + i / 4096 * 11 +
                (operand == INPUT ? (size_t)measure->rounds.base.self->rank * 5 : 0);
            const uint64_t bits = reference_bits(row->dtype, (double)(number % 63) / 16 - 2);
            memcpy(measure->host + measure->offsets[operand] + i * width, &bits, width);
        }
    memcpy(measure->host + measure->offsets[SCALE], &scale, sizeof scale);
    return copy(measure, measure->memory, measure->host, measure->bytes);
}

static struct tutti_rms_norm norm_of(const struct norm_measure *measure, int way)
{
    const struct bench_config *config = measure->rounds.base.config;
    const int outputs = OUTPUTS + 4 * way;
    const bool has_scale = config->quant == TUTTI_QUANT_FP8_TENSOR;
    return (struct tutti_rms_norm){
        .struct_size = sizeof(struct tutti_rms_norm),
        .tokens = measure->rounds.base.row->count / config->hidden,
        .hidden = config->hidden,
        .dtype = measure->rounds.base.row->dtype,
        .input = way == FUSED ? at(measure, INPUT) : at(measure, outputs + NORM_OUT),
        .residual_in = at(measure, RESIDUAL),
        .residual_out = at(measure, outputs + RESIDUAL_OUT),
        .weight = at(measure, WEIGHT),
        .weight_dtype = measure->rounds.base.row->dtype,
        .epsilon = 1e-5f,
        .norm_out = at(measure, outputs + NORM_OUT),
        .quant = config->quant,
        .quant_out = config->quant ? at(measure, outputs + QUANT_OUT) : NULL,
        .scales = !config->quant ? NULL : at(measure, has_scale ? SCALE : outputs + SCALES),
    };
}

/* ---- calls ----------------------------------------------------------------------------------- */

static bool enqueue(struct measure *base, int way, tutti_stream_t stream, int i)
{
    struct norm_measure *measure = of(base);
    const struct tutti_rms_norm norm = norm_of(measure, way);
    (void)i;
    if (way == FUSED)
        return measure_status(base, tutti_all_reduce_rms_norm(&norm, base->comm, stream));
    return measure_status(base,
                          tutti_all_reduce(at(measure, INPUT), norm.norm_out, base->row->count,
                                           base->row->dtype, TUTTI_SUM, base->comm, stream)) &&
           measure_status(base,
                          tutti_all_reduce_rms_norm(&norm, measure->rounds.others[0], stream));
}

/* ---- time ------------------------------------------------------------------------------------ */

static bool time_rounds(struct measure *base, struct bench_timing *timing, int *count)
{
    struct rounds *rounds = &of(base)->rounds;
    *count = base->config->iterations ? base->config->iterations : ROUNDS;
    *count = *count < BENCH_REPLAYS ? *count : BENCH_REPLAYS;
    if (!rounds_run(rounds, *count, timing))
        return false;
    timing->apart_us = rounds_stats(rounds, APART, *count, true).p50;
    return measure_meet(base);
}

/* ---- a row ----------------------------------------------------------------------------------- */

static bool begin_row(struct measure *base, const struct bench_row *row,
                      struct bench_record *record)
{
    (void)record;
    layout(base->config, row, of(base)->offsets);
    of(base)->rounds.batch = base->config->batch ? base->config->batch : BATCH;
    return fill(of(base));
}

static bool warm_up(struct measure *base)
{
    const int count = base->config->warmup;
    return rounds_warm_up(&of(base)->rounds, count > 0 ? count : WARMUP);
}

/* Counts the bytes of the outputs that differ, and those of the inputs that have changed. */
static bool check(struct measure *base, struct bench_timing *timing)
{
    struct norm_measure *measure = of(base);
    const size_t apart = measure->offsets[OUTPUTS + 4] - measure->offsets[OUTPUTS];
    char *seen = malloc(measure->bytes);
    bool ok = seen && fill(measure) && measure_meet(base);
    for (int way = 0; way < WAYS && ok; way++)
        ok = rounds_launch(&measure->rounds, way) && rounds_synchronize(&measure->rounds);
    ok = ok && copy(measure, seen, measure->memory, measure->offsets[OPERANDS]);
    for (size_t i = 0; i < measure->offsets[OUTPUTS] && ok; i++)
        timing->wrong += seen[i] != measure->host[i];
    for (size_t i = measure->offsets[OUTPUTS]; i < measure->offsets[OUTPUTS + 4] && ok; i++)
        timing->wrong += seen[i] != seen[i + apart];
    free(seen);
    return ok;
}

/* ---- a rank ---------------------------------------------------------------------------------- */

static bool allocate(struct measure *base, struct bench_record *ready)
{
    struct norm_measure *measure = of(base);
    const struct bench_config *config = base->config;
    char name[32];
    for (int i = 0; i < config->row_count; i++) {
        const size_t bytes = layout(config, &config->rows[i], measure->offsets);
        measure->bytes = bytes > measure->bytes ? bytes : measure->bytes;
    }
    measure->host = malloc(measure->bytes);
    measure->memory = is_gpu(base) ? gpu_alloc(measure->bytes)
                                   : aligned_alloc(LINE, (measure->bytes + LINE - 1) / LINE * LINE);
    if (!measure->host || !measure->memory)
        return measure_fail(base, TUTTI_ERR_NO_MEMORY, "no memory for %zu bytes", measure->bytes);
    snprintf(name, sizeof name, "bench-alone-%d", base->self->rank);
    const struct tutti_comm_options options = {
        .struct_size = sizeof options,
        .name = name,
        .device = base->engine->device,
        .timeout_ms = config->timeout_ms,
        .programmatic_launch = config->pdl,
    };
    tutti_comm_describe(base->comm, ready->message, sizeof ready->message);
    return measure_status(base,
                          tutti_comm_create(base->store, 0, 1, &options, measure->rounds.others));
}

static void release(struct measure *base)
{
    struct norm_measure *measure = of(base);
    rounds_release(&measure->rounds);
    if (is_gpu(base))
        gpu_free(measure->memory);
    else
        free(measure->memory);
    free(measure->host);
}

#define ENGINE(place)                                                                              \
    {                                                                                              \
        .bytes = sizeof(struct norm_measure), .device = TUTTI_DEVICE_##place, .open = rounds_open, \
        .allocate = allocate, .meet = measure_meet, .begin = begin_row, .warm_up = warm_up,        \
        .check = check, .time = time_rounds, .check_again = check, .release = release,             \
        .close = rounds_close, .contestants = WAYS, .enqueue = enqueue,                            \
    }
const struct bench_engine bench_norm_cpu = ENGINE(CPU), bench_norm_gpu = ENGINE(CUDA);
