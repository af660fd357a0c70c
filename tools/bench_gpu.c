/* SPDX-License-Identifier: MIT */
/*
 * The benchmark's engine of GPU ranks. For each place it makes a check, then rounds of the library,
 * its rivals and its tunings. The result is the median of the rounds.
 *
 * With --beside a round has matrix products on one stream and the operations on another. The
 * products' time counts while operations run all the time, and the reverse.
 */
#include "bench_rounds.h"
#include "collective_call.h"
#include "gpu.h"
#include "nccl.h"
#include "product.h"
#include "tool.h"

#include <stdlib.h>

enum {
    LIBRARY,
    FIRST_RIVAL,
    FIRST_TUNING = FIRST_RIVAL + BENCH_RIVALS, /* the library with a tuning file */
    ENGINES = FIRST_TUNING + BENCH_TUNINGS,
};

enum {
    GUARD_BYTES = 256,
    GRAPH_BATCH = 50,       /* operations in a round */
    EAGER_BATCH = 200,      /* fewer than the 1024 launches that a stream holds */
    LARGE_BYTES = 64 << 20, /* larger ones */
    LARGE_BATCH = 10,
    LEAST_ROUNDS = 10,
};

/* Without --iters: the target time for the rounds of one engine and place. */
static const double row_seconds = 0.06;

struct gpu_measure {
    struct rounds rounds;
    struct nccl_comm *nccl;
    struct product *product; /* NULL without --beside */
    tutti_stream_t product_stream;
    void *product_begin, *product_end;
    char *memory[2]; /* the library's, and NCCL's symmetric: guard, buffer, guard, buffer, guard */
    tutti_symm_group_t *group; /* of the first memory; NULL: it is ordinary */
    size_t reach;              /* from one buffer to the other */
    size_t *counts;            /* on the device, with --device-counts */
};

static struct gpu_measure *of(struct measure *base)
{
    return (struct gpu_measure *)base;
}

/* ---- operations ------------------------------------------------------------------------------ */

/* One of the two buffers in the memory of an engine. Out of place they are send and recv. */
static char *buffer_of(const struct gpu_measure *measure, int engine, int which)
{
    return measure->memory[engine == FIRST_RIVAL + BENCH_NCCL_SYMMETRIC] + GUARD_BYTES +
           (which ? measure->reach : 0);
}

/* In place one buffer has both operands. The other one keeps the input. */
static int kept_buffer(const struct measure *base)
{
    const struct collective *collective = bench_collective(base->config);
    return collective->send_all && !collective->recv_all ? 1 : 0;
}

static void operands_of(const struct gpu_measure *measure, int engine, char **send, char **recv)
{
    const struct measure *base = &measure->rounds.base;
    operands_find(&base->operands, base->place == BENCH_IN_PLACE, buffer_of(measure, engine, 0),
                  buffer_of(measure, engine, 1), send, recv);
}

static size_t send_bytes(const struct measure *base)
{
    return base->row->count * tutti_dtype_size(base->row->dtype) *
           (size_t)collective_send_blocks(bench_collective(base->config), base->config->ranks);
}

static size_t recv_bytes(const struct measure *base)
{
    return base->row->count * tutti_dtype_size(base->row->dtype) *
           (size_t)collective_recv_blocks(bench_collective(base->config), base->config->ranks);
}

static bool is_rival(int engine)
{
    return engine >= FIRST_RIVAL && engine < FIRST_TUNING;
}

static bool is_barrier(const struct gpu_measure *measure)
{
    return measure->rounds.base.config->collective == TUTTI_COLLECTIVE_BARRIER;
}

/* The root of the i-th operation of a batch: each rank in turn. */
static int root_of(const struct gpu_measure *measure, int i)
{
    const struct bench_config *config = measure->rounds.base.config;
    return collectives[config->collective].rooted ? i % config->ranks : 0;
}

static bool enqueue(struct measure *base, int engine, tutti_stream_t stream, int i)
{
    struct gpu_measure *measure = of(base);
    const struct bench_row *row = base->row;
    const enum tutti_collective which = base->config->collective;
    const int root = root_of(measure, i);
    char *send, *recv;
    if (is_barrier(measure))
        return measure_status(base, tutti_barrier(base->comm, NULL, 0, stream));
    operands_of(measure, engine, &send, &recv);
    if (is_rival(engine)) {
        const struct rival_call call = {.which = which,
                                        .send = send,
                                        .recv = recv,
                                        .count = row->count,
                                        .dtype = row->dtype,
                                        .op = row->op,
                                        .root = root};
        return nccl_enqueue(measure->nccl, &call, stream) ||
               measure_fail(base, TUTTI_ERR_CUDA, "NCCL: %s", library_error());
    }
    tutti_comm_t *comm =
        engine < FIRST_TUNING ? base->comm : measure->rounds.others[engine - FIRST_TUNING];
    return measure_status(base,
                          collective_call_on(stream, which, send, recv,
                                             measure->counts ? measure->counts : base->counts.wide,
                                             row->dtype, measure_op(base), root, comm,
                                             base->options.flags ? &base->options : NULL));
}

static bool takes_part(struct measure *base, int engine)
{
    const struct gpu_measure *measure = of(base);
    const struct bench_row *row = base->row;
    if (engine == LIBRARY)
        return true;
    if (!is_rival(engine))
        return row->tunings >> (engine - FIRST_TUNING) & 1;
    const enum tutti_collective which = base->config->collective;
    if (!measure->nccl || engine == FIRST_RIVAL + BENCH_MPI || !row->count ||
        !nccl_serves(which, row->dtype, row->op) ||
        (base->place == BENCH_IN_PLACE && !collective_is_in_place(&collectives[which])))
        return false;
    return engine == FIRST_RIVAL + BENCH_NCCL || measure->memory[1];
}

/* ---- correctness ----------------------------------------------------------------------------- */

/* Makes the buffers of an engine those of the check. */
static void operands_point(struct gpu_measure *measure, int engine)
{
    struct measure *base = &measure->rounds.base;
    struct operands *operands = &base->operands;
    const bool in_place = base->place == BENCH_IN_PLACE;
    for (int i = 0; i < 2; i++) {
        operands->buffers[i] = buffer_of(measure, engine, i);
        operands->bytes[i] = in_place ? base->row->bytes : i ? recv_bytes(base) : send_bytes(base);
    }
    operands->guard_bytes = GUARD_BYTES;
    operands_of(measure, engine, &operands->send, &operands->recv);
}

/* Writes the input of the place; in place also to the buffer that keeps it. The memory of NCCL's
 * symmetric window gets a copy. */
static bool fill_inputs(struct gpu_measure *measure)
{
    struct measure *base = &measure->rounds.base;
    struct operands *operands = &base->operands;
    bool ok = true;
    operands_point(measure, LIBRARY);
    if (base->place == BENCH_IN_PLACE) {
        char *send = operands->send;
        operands->send = operands->buffers[kept_buffer(base)];
        ok = operands_write(operands);
        operands->send = send;
    }
    ok = ok && operands_write(operands);
    if (ok && measure->memory[1])
        ok = gpu_copy(measure->memory[1], measure->memory[0], 2 * measure->reach);
    return ok;
}

/* Runs one operation in place, or a batch. A batch repeats one operation, but for its root. */
static bool check(struct gpu_measure *measure, int engine, uint64_t *wrong)
{
    struct measure *base = &measure->rounds.base;
    struct operands *operands = &base->operands;
    bool out = base->place == BENCH_OUT_OF_PLACE;
    operands_point(measure, engine);
    operands->root = root_of(measure, out ? measure->rounds.batch - 1 : 0);
    if (out && !operands_spoil(operands))
        return false;
    if (!measure_meet(base) || !(out ? rounds_launch(&measure->rounds, engine)
                                     : enqueue(base, engine, measure->rounds.streams[0], 0)))
        return false;
    return rounds_synchronize(&measure->rounds) && operands_check_result(operands, wrong) &&
           operands_check_input(operands, wrong);
}

/* A rival's result too, unless it has sums, whose order is the rival's own. */
static bool check_all(struct measure *base, struct bench_timing *timing)
{
    struct gpu_measure *measure = of(base);
    const bool reduces = bench_collective(base->config)->reduces;
    bool ok = true;
    for (int engine = 0; engine < ENGINES && ok; engine++) {
        uint64_t others = 0, *wrong = &others;
        if (!takes_part(&measure->rounds.base, engine) || (is_rival(engine) && reduces))
            continue;
        if (engine == LIBRARY)
            wrong = &timing->wrong;
        else if (!is_rival(engine))
            wrong = &timing->tuning_wrong[engine - FIRST_TUNING];
        ok = fill_inputs(measure) && check(measure, engine, wrong);
        if (ok && others)
            ok = measure_fail(base, TUTTI_ERR_CUDA, "NCCL: %llu wrong elements",
                              (unsigned long long)others);
    }
    operands_point(measure, LIBRARY);
    return ok;
}

/* Checks the result again after the rounds. Rivals have written to the same buffer meanwhile. */
static bool check_again(struct measure *base, struct bench_timing *timing)
{
    struct gpu_measure *measure = of(base);
    return base->place == BENCH_IN_PLACE ||
           (rounds_launch(&measure->rounds, LIBRARY) && rounds_synchronize(&measure->rounds) &&
            operands_check_result(&base->operands, &timing->wrong));
}

/* ---- time ------------------------------------------------------------------------------------ */

/* Inputs are restored in place, where sums would grow without bound. */
static bool restore(struct measure *base, int engine)
{
    tutti_stream_t stream = of(base)->rounds.streams[0];
    const size_t bytes = send_bytes(base);
    char *send, *recv;
    operands_of(of(base), engine, &send, &recv);
    return base->place != BENCH_IN_PLACE || !bytes ||
           (gpu_copy_async(send, buffer_of(of(base), engine, kept_buffer(base)), bytes, stream) &&
            gpu_stream_synchronize(stream));
}

/* Rank 0 decides for all. */
static bool agree_on_rounds(struct gpu_measure *measure, int *rounds)
{
    double fit = row_seconds * 1e6 / (measure->rounds.each_us * measure->rounds.batch + 1);
    int wanted = measure->rounds.base.config->iterations;
    if (!wanted)
        wanted = fit < LEAST_ROUNDS ? LEAST_ROUNDS : fit > BENCH_REPLAYS ? BENCH_REPLAYS : (int)fit;
    *rounds = wanted < BENCH_REPLAYS ? wanted : BENCH_REPLAYS;
    return measure_agree(&measure->rounds.base, rounds);
}

/* ---- beside a matrix product ----------------------------------------------------------------- */

/* What a round of --beside has: so many products, and batches of operations. */
struct mix {
    int engine, products, batches;
    bool of_products; /* their time counts, else that of the operations; it begins last */
};

static bool enqueue_products(struct gpu_measure *measure, int count)
{
    bool ok = gpu_event_record(measure->product_begin, measure->product_stream);
    for (int i = 0; i < count && ok; i++)
        ok = product_enqueue(measure->product, measure->product_stream);
    return ok && gpu_event_record(measure->product_end, measure->product_stream);
}

static bool enqueue_batches(struct gpu_measure *measure, int engine, int count)
{
    bool ok = gpu_event_record(measure->rounds.begin, measure->rounds.streams[0]);
    for (int i = 0; i < count && ok; i++)
        ok = rounds_launch(&measure->rounds, engine);
    return ok && gpu_event_record(measure->rounds.end, measure->rounds.streams[0]);
}

/* *us: of one product, or of one operation. */
static bool mix_round(struct gpu_measure *measure, const struct mix *mix, double *us)
{
    bool ok = measure_meet(&measure->rounds.base);
    if (mix->of_products)
        ok = ok && enqueue_batches(measure, mix->engine, mix->batches) &&
             enqueue_products(measure, mix->products);
    else
        ok = ok && enqueue_products(measure, mix->products) &&
             enqueue_batches(measure, mix->engine, mix->batches);
    ok = ok && gpu_stream_synchronize(measure->product_stream) &&
         rounds_synchronize(&measure->rounds);
    if (!ok)
        return false;
    ok = mix->of_products ? gpu_event_elapsed(measure->product_begin, measure->product_end, us)
                          : gpu_event_elapsed(measure->rounds.begin, measure->rounds.end, us);
    *us /= mix->of_products ? mix->products : mix->batches * measure->rounds.batch;
    return ok;
}

/* The median of some rounds, of the slowest rank. */
static bool mix_time(struct gpu_measure *measure, const struct mix *mix, double *median_us)
{
    struct bench_shared *shared = measure->rounds.base.self->shared;
    double us = 0;
    for (int i = 0; i <= LEAST_ROUNDS; i++) {
        if (!mix_round(measure, mix, &us))
            return false;
        if (i > 0) /* the first one warms up */
            shared->samples[0][i - 1][measure->rounds.base.self->rank] = (float)us;
    }
    if (!measure_meet(&measure->rounds.base))
        return false;
    *median_us = rounds_stats(&measure->rounds, 0, LEAST_ROUNDS, true).p50;
    return measure_meet(&measure->rounds.base);
}

/* A whole number of times, which rank 0 decides, that `each_us` fits into `us`, and one more. */
static bool agree_on_count(struct gpu_measure *measure, double us, double each_us, int *count)
{
    enum { MOST = 200 };
    const double fit = each_us > 0 ? us / each_us : MOST;
    *count = fit < MOST ? (int)fit + 1 : MOST;
    return measure_agree(&measure->rounds.base, count);
}

static bool time_beside(struct gpu_measure *measure, struct bench_timing *timing)
{
    struct bench_beside *beside = &timing->beside;
    struct mix mix = {.of_products = true, .products = 1};
    bool ok = mix_time(measure, &mix, &beside->product_us);
    for (int i = 0; i <= BENCH_RIVALS && ok; i++) {
        const double batch_us =
            measure->rounds.batch * (i ? timing->rival_us[i - 1] : timing->p50_us);
        int products = 1, batches = 1;
        mix.engine = i;
        if (!takes_part(&measure->rounds.base, i))
            continue;
        /* Each lasts at least as long as the other, and twice as long where it is the other's
         * load. */
        ok = agree_on_count(measure, batch_us, beside->product_us, &products) &&
             agree_on_count(measure, 2 * products * beside->product_us, batch_us, &batches);
        mix.of_products = true;
        mix.products = products;
        mix.batches = batches;
        ok = ok && mix_time(measure, &mix, &beside->products_us[i]);
        mix.of_products = false;
        mix.products = 3 * products;
        mix.batches = 1;
        ok = ok && mix_time(measure, &mix, &beside->operations_us[i]);
    }
    return ok;
}

static bool time_rounds(struct measure *base, struct bench_timing *timing, int *count)
{
    struct gpu_measure *measure = of(base);
    struct rounds *rounds = &measure->rounds;
    if (!agree_on_rounds(measure, count) || !rounds_run(rounds, *count, timing))
        return false;
    if (!base->config->graph)
        timing->host_us = rounds_stats(rounds, ROUNDS_HOST, *count, true).p50;
    for (int engine = FIRST_RIVAL; engine < ENGINES; engine++)
        if (takes_part(base, engine))
            *(is_rival(engine) ? &timing->rival_us[engine - FIRST_RIVAL]
                               : &timing->tuning_us[engine - FIRST_TUNING]) =
                rounds_stats(rounds, engine, *count, true).p50;
    return measure_meet(base) && (!measure->product || time_beside(measure, timing));
}

static bool warm_up(struct measure *base)
{
    const int count = base->config->warmup;
    return fill_inputs(of(base)) && rounds_warm_up(&of(base)->rounds, count ? count : 1);
}

/* ---- a row ----------------------------------------------------------------------------------- */

static int batch_of(const struct bench_config *config, const struct bench_row *row)
{
    int batch = config->graph ? GRAPH_BATCH : EAGER_BATCH;
    if (config->batch)
        return config->batch;
    return row->bytes < LARGE_BYTES ? batch : LARGE_BATCH;
}

static bool begin_row(struct measure *base, const struct bench_row *row,
                      struct bench_record *record)
{
    struct gpu_measure *measure = of(base);
    (void)record;
    measure->rounds.batch = batch_of(base->config, row);
    return measure_counts(base) &&
           (!measure->counts || gpu_copy(measure->counts, &base->counts, sizeof base->counts));
}

/* ---- a rank ---------------------------------------------------------------------------------- */

/* tutti_comm_create() reads the variable. Nothing else in this process reads variables any more. */
static bool create_tuned(struct gpu_measure *measure)
{
    const struct bench_config *config = measure->rounds.base.config;
    bool ok = true;
    if (measure->rounds.base.exact && config->tuning_count)
        return measure_fail(&measure->rounds.base, TUTTI_ERR_INVALID,
                            "the ranks' links, or TUTTI_ALGO, make the algorithm a ring, which is "
                            "in no tuning table: there is nothing to measure");
    for (int i = 0; i < config->tuning_count && ok; i++) {
        char name[32];
        snprintf(name, sizeof name, "bench-tuned-%d", i);
        setenv("TUTTI_TUNING_FILE", config->tunings[i], 1);
        ok = measure_comm(&measure->rounds.base, name, &measure->rounds.others[i]);
    }
    return ok;
}

static bool create_product(struct gpu_measure *measure)
{
    measure->product = product_create();
    measure->product_begin = gpu_event_create();
    measure->product_end = gpu_event_create();
    return (measure->product && measure->product_begin && measure->product_end &&
            gpu_stream_create(&measure->product_stream)) ||
           measure_fail(&measure->rounds.base, TUTTI_ERR_DECLINED, "--beside gemm: %s",
                        library_error());
}

static bool create_rival(struct gpu_measure *measure, size_t bytes)
{
    struct measure *base = &measure->rounds.base;
    if (!nccl_open())
        return measure_fail(base, TUTTI_ERR_DECLINED, "--vs nccl: %s", library_error());
    measure->nccl = nccl_comm_create(base->store, base->self->rank, base->config->ranks);
    if (measure->nccl && nccl_has_windows())
        measure->memory[1] = nccl_window_create(measure->nccl, bytes);
    return (measure->nccl && (measure->memory[1] || !nccl_has_windows())) ||
           measure_fail(base, TUTTI_ERR_CUDA, "--vs nccl: %s", library_error());
}

static bool allocate(struct measure *base, struct bench_record *ready)
{
    struct gpu_measure *measure = of(base);
    const struct bench_config *config = base->config;
    size_t most = 0;
    if (!create_tuned(measure))
        return false;
    for (int i = 0; i < config->row_count; i++)
        most = config->rows[i].bytes > most ? config->rows[i].bytes : most;
    measure->reach = (most + 2 * GUARD_BYTES + 4095) / 4096 * 4096;
    if (!measure_alloc(base, 2 * measure->reach, &measure->group, measure->memory) ||
        (config->vs_nccl && !create_rival(measure, 2 * measure->reach)) ||
        (config->beside && !create_product(measure)) ||
        (config->count_bits && !(measure->counts = gpu_alloc(sizeof base->counts))))
        return false;
    tutti_comm_describe(base->comm, ready->message, sizeof ready->message);
    ready->nccl = measure->nccl ? nccl_version() : 0;
    return true;
}

static void release(struct measure *base)
{
    struct gpu_measure *measure = of(base);
    rounds_release(&measure->rounds);
    nccl_comm_destroy(measure->nccl);
    product_destroy(measure->product);
    gpu_event_destroy(measure->product_begin);
    gpu_event_destroy(measure->product_end);
    gpu_stream_destroy(measure->product_stream);
    if (!measure->group)
        gpu_free(measure->memory[0]);
    gpu_free(measure->counts);
    tutti_symm_group_destroy(measure->group);
}

const struct bench_engine bench_gpu = {
    .bytes = sizeof(struct gpu_measure),
    .device = TUTTI_DEVICE_CUDA,
    .open = rounds_open,
    .allocate = allocate,
    .meet = measure_meet,
    .begin = begin_row,
    .warm_up = warm_up,
    .check = check_all,
    .time = time_rounds,
    .check_again = check_again,
    .release = release,
    .contestants = ENGINES,
    .takes_part = takes_part,
    .enqueue = enqueue,
    .restore = restore,
    .close = rounds_close,
};
