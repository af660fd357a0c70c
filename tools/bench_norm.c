/* SPDX-License-Identifier: MIT */
/*
 * The benchmark's engine of tutti_all_reduce_rms_norm(), for CPU and GPU ranks. Beside the fused
 * call it measures the same work apart: an all-reduce, then the call on a communicator of this rank
 * alone. Both write outputs of their own, whose bits must be equal. A round is a batch of calls, or
 * a replay of their graph; the two alternate. The time of a round is that of its slowest rank.
 */
#include "bench_rank.h"
#include "gpu.h"
#include "stats.h"
#include "tool.h"

#include <stdlib.h>
#include <string.h>

enum { FUSED, APART, WAYS };
enum { INPUT, RESIDUAL, WEIGHT, SCALE, OUTPUTS, OPERANDS = OUTPUTS + 4 * WAYS };
enum { RESIDUAL_OUT, NORM_OUT, QUANT_OUT, SCALES }; /* outputs of a way */
enum { BATCH = 50, ROUNDS = 50, WARMUP = 5, LINE = 256, GROUP = TUTTI_NORM_GROUP };

struct norm_measure {
    struct measure base;
    tutti_comm_t *alone;
    tutti_stream_t stream;
    void *begin, *end, *graphs[WAYS];
    char *memory, *host; /* `bytes` each: of the device, and the host's copy */
    size_t bytes, offsets[OPERANDS + 1];
    double values[BENCH_REPLAYS];
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
    if (is_gpu(&measure->base))
        return gpu_copy(to, from, bytes);
    memcpy(to, from, bytes);
    return true;
}

/* Small numbers that differ from rank to rank; the outputs have other bytes. */
static bool fill(struct norm_measure *measure)
{
    const struct bench_row *row = measure->base.row;
    const size_t width = tutti_dtype_size(row->dtype);
    const float scale = 0.05f;
    memset(measure->host, 0xa5, measure->bytes);
    for (int operand = INPUT; operand <= WEIGHT; operand++)
        for (size_t i = 0; i < operand_bytes(measure->base.config, row, operand) / width; i++) {
            const size_t number = i * 37 + i / 4096 * 11 +
                                  (operand == INPUT ? (size_t)measure->base.self->rank * 5 : 0);
            const uint64_t bits = reference_bits(row->dtype, (double)(number % 63) / 16 - 2);
            memcpy(measure->host + measure->offsets[operand] + i * width, &bits, width);
        }
    memcpy(measure->host + measure->offsets[SCALE], &scale, sizeof scale);
    return copy(measure, measure->memory, measure->host, measure->bytes);
}

static struct tutti_rms_norm norm_of(const struct norm_measure *measure, int way)
{
    const struct bench_config *config = measure->base.config;
    const int outputs = OUTPUTS + 4 * way;
    const bool has_scale = config->quant == TUTTI_QUANT_FP8_TENSOR;
    return (struct tutti_rms_norm){
        .struct_size = sizeof(struct tutti_rms_norm),
        .tokens = measure->base.row->count / config->hidden,
        .hidden = config->hidden,
        .dtype = measure->base.row->dtype,
        .input = way == FUSED ? at(measure, INPUT) : at(measure, outputs + NORM_OUT),
        .residual_in = at(measure, RESIDUAL),
        .residual_out = at(measure, outputs + RESIDUAL_OUT),
        .weight = at(measure, WEIGHT),
        .weight_dtype = measure->base.row->dtype,
        .epsilon = 1e-5f,
        .norm_out = at(measure, outputs + NORM_OUT),
        .quant = config->quant,
        .quant_out = config->quant ? at(measure, outputs + QUANT_OUT) : NULL,
        .scales = !config->quant ? NULL : at(measure, has_scale ? SCALE : outputs + SCALES),
    };
}

/* ---- calls ----------------------------------------------------------------------------------- */

static bool enqueue(struct norm_measure *measure, int way)
{
    struct measure *base = &measure->base;
    const struct tutti_rms_norm norm = norm_of(measure, way);
    if (way == FUSED)
        return measure_status(base, tutti_all_reduce_rms_norm(&norm, base->comm, measure->stream));
    return measure_status(base, tutti_all_reduce(at(measure, INPUT), norm.norm_out,
                                                 base->row->count, base->row->dtype, TUTTI_SUM,
                                                 base->comm, measure->stream)) &&
           measure_status(base, tutti_all_reduce_rms_norm(&norm, measure->alone, measure->stream));
}

static int batch_of(const struct measure *base)
{
    return base->config->batch ? base->config->batch : BATCH;
}

static bool enqueue_batch(struct norm_measure *measure, int way)
{
    bool ok = true;
    for (int i = 0; i < batch_of(&measure->base) && ok; i++)
        ok = enqueue(measure, way);
    return ok;
}

static bool launch(struct norm_measure *measure, int way)
{
    return measure->graphs[way] ? gpu_graph_launch(measure->graphs[way], measure->stream)
                                : enqueue_batch(measure, way);
}

/* Asks the communicators whether a kernel failed. */
static bool synchronize(struct norm_measure *measure)
{
    struct measure *base = &measure->base;
    const bool ok = !is_gpu(base) || gpu_stream_synchronize(measure->stream);
    return ok && measure_status(base, tutti_comm_status(base->comm, NULL)) &&
           measure_status(base, tutti_comm_status(measure->alone, NULL));
}

static void forget_graphs(struct norm_measure *measure)
{
    for (int way = 0; way < WAYS; way++) {
        gpu_graph_destroy(measure->graphs[way]);
        measure->graphs[way] = NULL;
    }
}

static bool capture(struct norm_measure *measure, int way)
{
    if (!gpu_capture_begin(measure->stream))
        return false;
    const bool ok = enqueue_batch(measure, way);
    measure->graphs[way] = gpu_capture_end(measure->stream);
    return ok && measure->graphs[way];
}

/* ---- time ------------------------------------------------------------------------------------ */

static bool time_round(struct norm_measure *measure, int way, double *us)
{
    struct measure *base = &measure->base;
    if (!measure_meet(base) || (is_gpu(base) && !gpu_event_record(measure->begin, measure->stream)))
        return false;
    const double start = clock_seconds();
    bool ok = launch(measure, way);
    *us = (clock_seconds() - start) * 1e6;
    if (ok && is_gpu(base))
        ok = gpu_event_record(measure->end, measure->stream) && synchronize(measure) &&
             gpu_event_elapsed(measure->begin, measure->end, us);
    *us /= batch_of(base);
    return ok;
}

/* The rounds of one way: of the slowest rank, or of this one. */
static struct stats stats_of_way(struct norm_measure *measure, int way, int rounds, bool slowest)
{
    const struct bench_rank *self = measure->base.self;
    for (int i = 0; i < rounds; i++) {
        const float *of_rank = self->shared->samples[way][i];
        float us = of_rank[self->rank];
        for (int rank = 0; rank < self->config->ranks && slowest; rank++)
            us = of_rank[rank] > us ? of_rank[rank] : us;
        measure->values[i] = (double)us;
    }
    return stats_of(measure->values, (size_t)rounds);
}

static bool time_rounds(struct measure *base, struct bench_timing *timing, int *rounds)
{
    struct norm_measure *measure = of(base);
    *rounds = base->config->iterations ? base->config->iterations : ROUNDS;
    *rounds = *rounds < BENCH_REPLAYS ? *rounds : BENCH_REPLAYS;
    for (int i = 0; i < *rounds; i++)
        for (int way = 0; way < WAYS; way++) {
            double us = 0;
            if (!time_round(measure, way, &us))
                return false;
            base->self->shared->samples[way][i][base->self->rank] = (float)us;
        }
    if (!measure_meet(base))
        return false;
    const struct stats fused = stats_of_way(measure, FUSED, *rounds, true);
    timing->mean_us = fused.mean;
    timing->p50_us = fused.p50;
    timing->p99_us = fused.p99;
    timing->apart_us = stats_of_way(measure, APART, *rounds, true).p50;
    timing->own_us = stats_of_way(measure, FUSED, *rounds, false).p50;
    return measure_meet(base);
}

/* ---- a row ----------------------------------------------------------------------------------- */

static bool begin_row(struct measure *base, const struct bench_row *row,
                      struct bench_record *record)
{
    (void)record;
    layout(base->config, row, of(base)->offsets);
    return fill(of(base));
}

static bool warm_up(struct measure *base)
{
    struct norm_measure *measure = of(base);
    const int rounds = base->config->warmup > 0 ? base->config->warmup : WARMUP;
    double us = 0;
    forget_graphs(measure);
    for (int way = 0; way < WAYS; way++) {
        if (!measure_meet(base) || !enqueue(measure, way) || !synchronize(measure) ||
            !measure_meet(base) || (base->config->graph && !capture(measure, way)))
            return false;
        for (int i = 0; i < rounds; i++)
            if (!time_round(measure, way, &us))
                return false;
    }
    return true;
}

/* Counts the bytes of the outputs that differ, and those of the inputs that have changed. */
static bool check(struct measure *base, struct bench_timing *timing)
{
    struct norm_measure *measure = of(base);
    const size_t apart = measure->offsets[OUTPUTS + 4] - measure->offsets[OUTPUTS];
    char *seen = malloc(measure->bytes);
    bool ok = seen && fill(measure) && measure_meet(base);
    for (int way = 0; way < WAYS && ok; way++)
        ok = launch(measure, way) && synchronize(measure);
    ok = ok && copy(measure, seen, measure->memory, measure->offsets[OPERANDS]);
    for (size_t i = 0; i < measure->offsets[OUTPUTS] && ok; i++)
        timing->wrong += seen[i] != measure->host[i];
    for (size_t i = measure->offsets[OUTPUTS]; i < measure->offsets[OUTPUTS + 4] && ok; i++)
        timing->wrong += seen[i] != seen[i + apart];
    free(seen);
    return ok;
}

static bool check_again(struct measure *base, struct bench_timing *timing)
{
    return check(base, timing);
}

/* ---- a rank ---------------------------------------------------------------------------------- */

static bool open_device(struct measure *base, struct bench_record *ready)
{
    struct norm_measure *measure = of(base);
    struct gpu_facts facts;
    if (!is_gpu(base))
        return true;
    if (!gpu_open())
        return false;
    const int count = gpu_count(), device = count ? base->self->rank % count : 0;
    if (count == 0 || !gpu_bind(device) || !gpu_facts(device, &facts))
        return false;
    snprintf(ready->device, sizeof ready->device, "device %d %.20s %.63s", device, facts.bus_id,
             facts.name);
    measure->begin = gpu_event_create();
    measure->end = gpu_event_create();
    return measure->begin && measure->end && gpu_stream_create(&measure->stream);
}

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
    return measure_status(base, tutti_comm_create(base->store, 0, 1, &options, &measure->alone));
}

static void release(struct measure *base)
{
    struct norm_measure *measure = of(base);
    forget_graphs(measure);
    tutti_comm_destroy(measure->alone);
    if (is_gpu(base))
        gpu_free(measure->memory);
    else
        free(measure->memory);
    free(measure->host);
}

static void close_device(struct measure *base)
{
    struct norm_measure *measure = of(base);
    gpu_stream_destroy(measure->stream);
    gpu_event_destroy(measure->begin);
    gpu_event_destroy(measure->end);
}

#define ENGINE(place)                                                                              \
    {                                                                                              \
        .bytes = sizeof(struct norm_measure), .device = TUTTI_DEVICE_##place, .open = open_device, \
        .allocate = allocate, .meet = measure_meet, .begin = begin_row, .warm_up = warm_up,        \
        .check = check, .time = time_rounds, .check_again = check_again, .release = release,       \
        .close = close_device,                                                                     \
    }
const struct bench_engine bench_norm_cpu = ENGINE(CPU), bench_norm_gpu = ENGINE(CUDA);
