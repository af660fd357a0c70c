/* SPDX-License-Identifier: MIT */
#include "bench_rank.h"

#include "gpu.h"
#include "tool.h"

#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { PAGE = 4096 };

/* ---- failure --------------------------------------------------------------------------------- */

bool measure_fail(struct measure *measure, enum tutti_status status, const char *format, ...)
{
    va_list args;
    if (measure->status)
        return false;
    va_start(args, format);
    vsnprintf(measure->message, sizeof measure->message, format, args);
    va_end(args);
    measure->status = status;
    return false;
}

bool measure_status(struct measure *measure, enum tutti_status status)
{
    return !status || measure_fail(measure, status, "%s", tutti_last_error());
}

static bool write_record(const struct bench_rank *self, const struct bench_record *record)
{
    return write(self->pipe, record, sizeof *record) == (ssize_t)sizeof *record;
}

static void send_error(const struct bench_rank *self, int row, enum tutti_status status,
                       const char *message)
{
    struct bench_record record = {
        .kind = BENCH_ERROR, .rank = self->rank, .row = row, .status = status};
    snprintf(record.message, sizeof record.message, "%s",
             *message ? message : tutti_status_text(status));
    if (self->gather)
        tool_fail("rank %d: %s: %s", self->rank, tutti_status_name(status), record.message);
    else
        write_record(self, &record);
}

static bool send_record(struct measure *measure, const struct bench_record *record)
{
    const struct bench_rank *self = measure->self;
    if (self->gather)
        return self->gather(self->context, measure->comm, record) ||
               measure_fail(measure, TUTTI_ERR_SYSTEM, "%s", tutti_last_error());
    return write_record(self, record) ||
           measure_fail(measure, TUTTI_ERR_SYSTEM, "the pipe to the parent is closed");
}

/* ---- for the engines ------------------------------------------------------------------------- */

bool measure_counts(struct measure *measure)
{
    const struct bench_config *config = measure->config;
    const size_t count = measure->row->count;
    const int bits = config->count_bits;
    const uint32_t pushes = !bench_pushes(config) ? 0
                            : config->copy_engine ? TUTTI_CALL_COPY_ENGINE
                                                  : TUTTI_CALL_SYMMETRIC;
    measure->options =
        (struct tutti_call_options){.struct_size = sizeof measure->options,
                                    .flags = pushes | (bits ? TUTTI_CALL_DEVICE_COUNTS : 0) |
                                             (bits == 32 ? TUTTI_CALL_INT32_COUNTS : 0),
                                    .max_count = !bits   ? 0
                                                 : count ? count
                                                         : 1};
    if (bits == 32 && count > INT32_MAX)
        return measure_fail(measure, TUTTI_ERR_INVALID,
                            "--device-counts=int32: a block of %zu elements is too long", count);
    for (int rank = 0; rank < config->ranks; rank++)
        if (bits == 32)
            measure->counts.narrow[rank] = (int32_t)count;
        else
            measure->counts.wide[rank] = count;
    return true;
}

bool measure_comm(struct measure *measure, const char *name, tutti_comm_t **comm)
{
    const struct bench_config *config = measure->config;
    struct tutti_comm_options options = {
        .struct_size = sizeof options,
        .name = name,
        .device = measure->engine->device,
        .timeout_ms = config->timeout_ms,
        .algo = config->algo,
        .programmatic_launch = config->pdl,
        .max_blocks = config->max_blocks,
        .threads = config->threads_per_rank,
        .fabric = measure->self->fabric,
    };
    if (config->threads_per_rank &&
        !measure_status(measure, placement_threads_find(!config->threads && config->placement.bound,
                                                        &options.parallel)))
        return false;
    return measure_status(measure, tutti_comm_create(measure->store, measure->self->rank,
                                                     config->ranks, &options, comm));
}

bool measure_alloc(struct measure *measure, size_t bytes, tutti_symm_group_t **group, char **memory)
{
    const struct bench_config *config = measure->config;
    const enum tutti_device device = measure->engine->device;
    void *symmetric = NULL;
    if (!config->symmetric) {
        *memory = device == TUTTI_DEVICE_CUDA ? gpu_alloc(bytes) : aligned_alloc(PAGE, bytes);
        return *memory || (device == TUTTI_DEVICE_CPU &&
                           measure_fail(measure, TUTTI_ERR_NO_MEMORY, "no memory"));
    }
    const bool ok =
        measure_status(measure, tutti_symm_group("bench", measure->self->rank, config->ranks,
                                                 measure->store, group)) &&
        measure_status(measure, tutti_symm_alloc(*group, device, bytes, &symmetric)) &&
        measure_status(measure, tutti_symm_rendezvous(symmetric, config->timeout_ms, NULL));
    *memory = symmetric;
    return ok;
}

bool measure_agree(struct measure *measure, int *value)
{
    atomic_int *shared = &measure->self->shared->iterations;
    if (measure->config->launched.size)
        return measure_status(measure, tutti_broadcast(value, value, 1, TUTTI_INT32, 0,
                                                       measure->comm, TUTTI_STREAM_DEFAULT));
    if (measure->self->rank == 0)
        atomic_store(shared, *value);
    if (!measure->engine->meet(measure))
        return false;
    *value = atomic_load(shared);
    /* Rank 0 writes the next number only after all ranks have read this one. */
    return measure->engine->meet(measure);
}

bool measure_meet(struct measure *measure)
{
    struct bench_shared *shared = measure->self->shared;
    const struct bench_config *config = measure->config;
    unsigned long long all = ++measure->meetings * (unsigned long long)config->ranks;
    double deadline = clock_seconds() + config->wait_seconds;
    atomic_fetch_add(&shared->arrivals, 1);
    for (int polls = 0; atomic_load(&shared->arrivals) < all; polls++) {
        if (polls % 1024 < 1000)
            continue;
        sched_yield();
        if (clock_seconds() > deadline)
            return measure_fail(measure, TUTTI_ERR_TIMEOUT,
                                "the other ranks did not come within %g s", config->wait_seconds);
    }
    return true;
}

/* ---- rows ------------------------------------------------------------------------------------ */

static bool run_place(struct measure *measure, int index, struct bench_record *record)
{
    const struct bench_engine *engine = measure->engine;
    const bool checked = measure->config->check && bench_collective(measure->config)->data;
    struct bench_timing *timing = &record->timing[measure->place];
    measure->operands.reference =
        bench_reference(measure->config, index, measure->place, measure->exact);
    return (!engine->warm_up || engine->warm_up(measure)) &&
           (!checked || engine->check(measure, timing)) &&
           engine->time(measure, timing, &record->iterations) &&
           (!checked || !engine->check_again || engine->check_again(measure, timing));
}

static bool run_row(struct measure *measure, int index, struct bench_record *record)
{
    const struct bench_config *config = measure->config;
    const struct bench_engine *engine = measure->engine;
    measure->row = &config->rows[index];
    measure->operands.count = measure->row->count;
    const char *reason = "";
    bool ok = engine->meet(measure) && engine->begin(measure, measure->row, record);
    if (ok && bench_collective(config)->chosen)
        ok = measure_status(measure, tutti_comm_algorithm(measure->comm, measure->row->count,
                                                          measure->row->dtype, measure_op(measure),
                                                          NULL, &record->algo, &reason));
    sscanf(reason, "kernel %23[a-z_]:", record->kernel);
    for (int place = 0; place < (config->one_place ? 1 : bench_places(config)) && ok; place++) {
        measure->place = (enum bench_place)place;
        ok = run_place(measure, index, record);
    }
    return ok && (!engine->end || engine->end(measure, record));
}

static bool run_rows(struct measure *measure, int *row)
{
    const struct bench_rank *self = measure->self;
    for (*row = 0; *row < self->config->row_count; (*row)++) {
        struct bench_record record = {.kind = BENCH_ROW, .rank = self->rank, .row = *row};
        if (!run_row(measure, *row, &record) || !send_record(measure, &record))
            return false;
    }
    /* No rank leaves while another one is in its last operation. */
    return measure->engine->meet(measure);
}

/* ---- a rank ---------------------------------------------------------------------------------- */

static bool meet(struct measure *measure, double *setup_ms)
{
    const double begin = clock_seconds();
    bool ok =
        measure_status(measure, tutti_store_open(measure->self->store_url,
                                                 measure->config->timeout_ms, &measure->store)) &&
        measure_comm(measure, measure->config->name, &measure->comm);
    *setup_ms = (clock_seconds() - begin) * 1e3;
    if (!ok)
        return false;
    if (measure->config->visit && measure->self->rank == 0)
        measure->config->visit(measure->comm, measure->config->visitor);
    measure->exact = sums_in_ring(measure->comm);
    measure->operands.which = measure->config->collective;
    measure->operands.rank = measure->self->rank;
    if (!operands_init(&measure->operands, measure->engine->device == TUTTI_DEVICE_CUDA))
        return measure_fail(measure, TUTTI_ERR_NO_MEMORY, "no memory");
    return measure_status(
        measure, tutti_op_create_premul_sum(bench_premul_scalar(measure->exact), &measure->premul));
}

static void release(struct measure *measure)
{
    measure->engine->release(measure);
    operands_fini(&measure->operands);
    tutti_op_destroy(measure->premul);
    tutti_comm_destroy(measure->comm);
    tutti_store_close(measure->store);
    if (measure->engine->close)
        measure->engine->close(measure);
    free(measure);
}

bool bench_rank_run(const struct bench_rank *self)
{
    const bool cuda = self->config->device == TUTTI_DEVICE_CUDA;
    const struct bench_engine *engine = self->config->norms
                                            ? cuda ? &bench_norm_gpu : &bench_norm_cpu
                                        : cuda ? &bench_gpu
                                               : &bench_cpu;
    struct measure *measure = calloc(1, engine->bytes);
    struct bench_record ready = {.kind = BENCH_READY, .rank = self->rank, .pid = (int)getpid()};
    int row = -1;
    bool ok = false;
    if (!measure) {
        send_error(self, row, TUTTI_ERR_NO_MEMORY, "");
        return false;
    }
    *measure = (struct measure){.engine = engine, .self = self, .config = self->config};
    ok = engine->open(measure, &ready) && meet(measure, &ready.setup_ms) &&
         engine->allocate(measure, &ready) && send_record(measure, &ready) &&
         run_rows(measure, &row);
    if (!ok && !measure->status)
        measure_fail(measure, TUTTI_ERR_CUDA, "%s", library_error());
    if (!ok)
        send_error(self, row, measure->status, measure->message);
    release(measure);
    return ok;
}
