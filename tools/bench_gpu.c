/* SPDX-License-Identifier: MIT */
/*
 * One rank of the benchmark with a GPU. For each row it makes a check, then rounds. In a round the
 * library or a rival replays its graph, or makes a batch of calls, between two events. The library
 * and its rivals alternate on the same streams. The ranks begin each round together and write their
 * times to the shared memory. The time of a round is that of its slowest rank; the result is the
 * median of the rounds.
 */
#include "bench.h"
#include "gpu.h"
#include "nccl.h"
#include "reference_table.h"
#include "stats.h"
#include "tool.h"

#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    LIBRARY,
    FIRST_RIVAL,
    FIRST_TUNING = FIRST_RIVAL + BENCH_RIVALS, /* the library with a tuning file */
    ENGINES = FIRST_TUNING + BENCH_TUNINGS,
    HOST_TIME = ENGINES,
};

enum {
    GUARD_BYTES = 256,
    GUARD = 0x5a,
    CHUNK_PERIODS = 64,     /* elements that are copied and compared at once */
    GRAPH_BATCH = 50,       /* operations in a round */
    EAGER_BATCH = 200,      /* fewer than the 1024 launches that a stream holds */
    LARGE_BYTES = 64 << 20, /* larger ones */
    LARGE_BATCH = 10,
    LEAST_ROUNDS = 10,
};

/* Without --iters: the target time for the rounds of one engine and place. */
static const double row_seconds = 0.06;

struct gpu_bench {
    const struct bench_rank *self;
    const struct bench_config *config;
    tutti_store_t *store;
    tutti_comm_t *comm, *tuned[BENCH_TUNINGS];
    tutti_op_t premul;
    bool exact; /* a ring sums: the inputs' sums are the same in any order */
    struct nccl_comm *nccl;
    tutti_stream_t streams[BENCH_STREAMS];
    void *forked, *joined[BENCH_STREAMS]; /* events */
    void *begin, *end;
    unsigned char *memory[2]; /* ordinary, and NCCL's symmetric: guard, send, guard, recv, guard */
    size_t reach;             /* from send to recv */
    char *input, *expected;   /* one period */
    unsigned char *chunk;
    double *values;
    unsigned long long meetings;
    enum tutti_status status; /* the failed engine */
    char message[600];
};

/* The current measurement. */
struct trial {
    const struct bench_row *row;
    enum bench_place place;
    int batch;
    void *graphs[ENGINES];
};

/* ---- failure --------------------------------------------------------------------------------- */

static bool fail(struct gpu_bench *bench, enum tutti_status status, const char *format, ...)
    TUTTI_PRINTF(3, 4);

static bool fail(struct gpu_bench *bench, enum tutti_status status, const char *format, ...)
{
    va_list args;
    if (bench->status)
        return false;
    va_start(args, format);
    vsnprintf(bench->message, sizeof bench->message, format, args);
    va_end(args);
    bench->status = status;
    return false;
}

static bool check_gpu(struct gpu_bench *bench, bool ok)
{
    return ok || fail(bench, TUTTI_ERR_CUDA, "%s", gpu_error());
}

static bool check_status(struct gpu_bench *bench, enum tutti_status status)
{
    return !status || fail(bench, status, "%s", tutti_last_error());
}

/* Asks the communicator whether a kernel failed. */
static bool synchronize(struct gpu_bench *bench)
{
    struct tutti_fault fault = {.struct_size = sizeof fault};
    bool ok = check_gpu(bench, gpu_stream_synchronize(bench->streams[0]));
    enum tutti_status status = tutti_comm_status(bench->comm, &fault);
    for (int i = 0; i < bench->config->tuning_count && !status; i++)
        status = tutti_comm_status(bench->tuned[i], &fault);
    if (status) {
        tutti_fault_format(&fault, bench->message, sizeof bench->message);
        bench->status = status;
    }
    return ok && !status;
}

/* All ranks meet on the host. The meeting runs no kernel, so it warms up neither our kernels nor a
 * rival's. */
static bool meet(struct gpu_bench *bench)
{
    struct bench_shared *shared = bench->self->shared;
    unsigned long long all = ++bench->meetings * (unsigned long long)bench->config->ranks;
    double deadline = clock_seconds() + bench->config->wait_seconds;
    atomic_fetch_add(&shared->arrivals, 1);
    for (int polls = 0; atomic_load(&shared->arrivals) < all; polls++) {
        if (polls % 1024 < 1000)
            continue;
        sched_yield();
        if (clock_seconds() > deadline)
            return fail(bench, TUTTI_ERR_TIMEOUT, "the other ranks did not come within %g s",
                        bench->config->wait_seconds);
    }
    return true;
}

/* ---- operations ------------------------------------------------------------------------------ */

static unsigned char *send_of(const struct gpu_bench *bench, int engine, enum bench_place place)
{
    unsigned char *memory = bench->memory[engine == FIRST_RIVAL + BENCH_NCCL_SYMMETRIC];
    return memory + GUARD_BYTES + (place == BENCH_IN_PLACE ? bench->reach : 0);
}

static unsigned char *recv_of(const struct gpu_bench *bench, int engine)
{
    return send_of(bench, engine, BENCH_IN_PLACE);
}

static bool is_rival(int engine)
{
    return engine >= FIRST_RIVAL && engine < FIRST_TUNING;
}

static tutti_comm_t *comm_of(const struct gpu_bench *bench, int engine)
{
    return engine < FIRST_TUNING ? bench->comm : bench->tuned[engine - FIRST_TUNING];
}

static tutti_op_t operation(const struct gpu_bench *bench, tutti_op_t kind)
{
    return kind == TUTTI_PREMUL_SUM ? bench->premul : kind;
}

static bool is_barrier(const struct gpu_bench *bench)
{
    return bench->config->collective == TUTTI_COLLECTIVE_BARRIER;
}

static bool enqueue(struct gpu_bench *bench, int engine, const struct trial *trial,
                    tutti_stream_t stream)
{
    const struct bench_row *row = trial->row;
    unsigned char *send = send_of(bench, engine, trial->place), *recv = recv_of(bench, engine);
    if (is_rival(engine))
        return nccl_all_reduce(bench->nccl, send, recv, row->count, row->dtype, row->op, stream) ||
               fail(bench, TUTTI_ERR_CUDA, "NCCL: %s", nccl_error());
    if (is_barrier(bench))
        return check_status(bench, tutti_barrier(bench->comm, NULL, 0, stream));
    return check_status(bench, tutti_all_reduce(send, recv, row->count, row->dtype,
                                                operation(bench, row->op), comm_of(bench, engine),
                                                stream));
}

/* A batch of operations. The streams alternate; the first one begins and ends the batch. */
static bool enqueue_batch(struct gpu_bench *bench, int engine, const struct trial *trial)
{
    const int streams = bench->config->streams;
    tutti_stream_t first = bench->streams[0];
    bool ok = streams == 1 || check_gpu(bench, gpu_event_record(bench->forked, first));
    for (int i = 1; i < streams && ok; i++)
        ok = check_gpu(bench, gpu_event_await(bench->forked, bench->streams[i]));
    for (int i = 0; i < trial->batch && ok; i++)
        ok = enqueue(bench, engine, trial, bench->streams[i % streams]);
    for (int i = 1; i < streams && ok; i++)
        ok = check_gpu(bench, gpu_event_record(bench->joined[i], bench->streams[i]) &&
                                  gpu_event_await(bench->joined[i], first));
    return ok;
}

static bool capture(struct gpu_bench *bench, int engine, struct trial *trial)
{
    if (!check_gpu(bench, gpu_capture_begin(bench->streams[0])))
        return false;
    bool ok = enqueue_batch(bench, engine, trial);
    trial->graphs[engine] = gpu_capture_end(bench->streams[0]);
    return ok && check_gpu(bench, trial->graphs[engine] != NULL);
}

static bool launch(struct gpu_bench *bench, int engine, const struct trial *trial)
{
    if (trial->graphs[engine])
        return check_gpu(bench, gpu_graph_launch(trial->graphs[engine], bench->streams[0]));
    return enqueue_batch(bench, engine, trial);
}

static bool takes_part(const struct gpu_bench *bench, int engine, const struct bench_row *row)
{
    if (engine == LIBRARY)
        return true;
    if (!is_rival(engine))
        return row->tunings >> (engine - FIRST_TUNING) & 1;
    if (!bench->nccl || is_barrier(bench) || !row->count || !nccl_serves(row->dtype, row->op))
        return false;
    return engine == FIRST_RIVAL + BENCH_NCCL || bench->memory[1];
}

/* ---- correctness ----------------------------------------------------------------------------- */

/* Fills device memory with the repeated table, and guard bytes around it. */
static bool fill(struct gpu_bench *bench, unsigned char *to, const struct bench_row *row,
                 const char *table)
{
    size_t width = tutti_dtype_size(row->dtype), most = CHUNK_PERIODS * REFERENCE_PERIOD * width;
    if (!check_gpu(bench, gpu_fill(to - GUARD_BYTES, GUARD, GUARD_BYTES) &&
                              gpu_fill(to + row->bytes, GUARD, GUARD_BYTES)))
        return false;
    reference_fill(bench->chunk, CHUNK_PERIODS * REFERENCE_PERIOD, width, table);
    for (size_t at = 0; at < row->bytes; at += most) {
        size_t part = row->bytes - at < most ? row->bytes - at : most;
        if (!check_gpu(bench, gpu_copy(to + at, bench->chunk, part)))
            return false;
    }
    return true;
}

static bool count_damage(struct gpu_bench *bench, const unsigned char *guard, uint64_t *wrong)
{
    if (!check_gpu(bench, gpu_copy(bench->chunk, guard, GUARD_BYTES)))
        return false;
    for (size_t i = 0; i < GUARD_BYTES; i++)
        *wrong += bench->chunk[i] != GUARD;
    return true;
}

/* Counts elements that differ from the repeated table, and changed guard bytes. */
static bool compare(struct gpu_bench *bench, const unsigned char *from, const struct bench_row *row,
                    const char *table, uint64_t *wrong)
{
    size_t width = tutti_dtype_size(row->dtype), most = CHUNK_PERIODS * REFERENCE_PERIOD * width;
    for (size_t at = 0; at < row->bytes; at += most) {
        size_t part = row->bytes - at < most ? row->bytes - at : most;
        if (!check_gpu(bench, gpu_copy(bench->chunk, from + at, part)))
            return false;
        *wrong += reference_differences(bench->chunk, part / width, width, table);
    }
    return count_damage(bench, from - GUARD_BYTES, wrong) &&
           count_damage(bench, from + row->bytes, wrong);
}

/* Writes the inputs of this row and place to the library's memory. The rivals get a copy. */
static bool fill_inputs(struct gpu_bench *bench, int index, const struct trial *trial)
{
    const struct bench_row *row = trial->row;
    const struct reference reference =
        bench_reference(bench->config, index, trial->place, bench->exact);
    reference_input(&reference, bench->self->rank, bench->input);
    reference_expected(&reference, bench->expected);
    unsigned char *send = send_of(bench, LIBRARY, BENCH_OUT_OF_PLACE);
    unsigned char *recv = recv_of(bench, LIBRARY);
    size_t both = bench->reach + row->bytes;
    return fill(bench, recv, row, bench->input) && fill(bench, send, row, bench->input) &&
           (!bench->memory[1] ||
            check_gpu(bench, gpu_copy(bench->memory[1] + GUARD_BYTES, send, both)));
}

/* Runs one operation in place, or a batch that repeats one operation. */
static bool check(struct gpu_bench *bench, int engine, struct trial *trial, uint64_t *wrong)
{
    unsigned char *recv = recv_of(bench, LIBRARY);
    bool out = trial->place == BENCH_OUT_OF_PLACE;
    if (out && !check_gpu(bench, gpu_fill(recv, 0xa5, trial->row->bytes)))
        return false;
    if (!meet(bench) ||
        !(out ? launch(bench, engine, trial) : enqueue(bench, engine, trial, bench->streams[0])))
        return false;
    return synchronize(bench) && compare(bench, recv, trial->row, bench->expected, wrong) &&
           compare(bench, send_of(bench, LIBRARY, BENCH_OUT_OF_PLACE), trial->row, bench->input,
                   wrong);
}

/* ---- time ------------------------------------------------------------------------------------ */

/* One round of one engine. Inputs are restored for sums in place, which would grow without bound.
 */
static bool time_round(struct gpu_bench *bench, int engine, const struct trial *trial, double *us,
                       double *host_us)
{
    tutti_stream_t stream = bench->streams[0];
    bool anew = trial->place == BENCH_IN_PLACE && trial->row->bytes;
    if (anew && !check_gpu(bench, gpu_copy_async(recv_of(bench, engine),
                                                 send_of(bench, engine, BENCH_OUT_OF_PLACE),
                                                 trial->row->bytes, stream) &&
                                      gpu_stream_synchronize(stream)))
        return false;
    if (!meet(bench) || !check_gpu(bench, gpu_event_record(bench->begin, stream)))
        return false;
    double start = clock_seconds();
    bool ok = launch(bench, engine, trial);
    *host_us = (clock_seconds() - start) * 1e6 / trial->batch;
    ok = ok && check_gpu(bench, gpu_event_record(bench->end, stream)) && synchronize(bench) &&
         check_gpu(bench, gpu_event_elapsed(bench->begin, bench->end, us));
    *us /= trial->batch;
    return ok;
}

/* Rank 0 decides for all. */
static bool agree_on_rounds(struct gpu_bench *bench, const struct trial *trial, double each_us,
                            int *rounds)
{
    double fit = row_seconds * 1e6 / (each_us * trial->batch + 1);
    int wanted = bench->config->iterations;
    if (!wanted)
        wanted = fit < LEAST_ROUNDS ? LEAST_ROUNDS : fit > BENCH_REPLAYS ? BENCH_REPLAYS : (int)fit;
    if (bench->self->rank == 0)
        atomic_store(&bench->self->shared->iterations,
                     wanted < BENCH_REPLAYS ? wanted : BENCH_REPLAYS);
    if (!meet(bench))
        return false;
    *rounds = atomic_load(&bench->self->shared->iterations);
    return true;
}

static double own_median(struct gpu_bench *bench, int series, int rounds)
{
    for (int i = 0; i < rounds; i++)
        bench->values[i] = (double)bench->self->shared->samples[series][i][bench->self->rank];
    return stats_of(bench->values, (size_t)rounds).p50;
}

/* Takes the slowest rank's time in each round. */
static struct stats stats_of_series(struct gpu_bench *bench, int series, int rounds)
{
    const struct bench_shared *shared = bench->self->shared;
    for (int i = 0; i < rounds; i++) {
        bench->values[i] = 0;
        for (int rank = 0; rank < bench->config->ranks; rank++)
            if (shared->samples[series][i][rank] > (float)bench->values[i])
                bench->values[i] = (double)shared->samples[series][i][rank];
    }
    return stats_of(bench->values, (size_t)rounds);
}

static void summarize(struct gpu_bench *bench, const struct trial *trial, int rounds,
                      struct bench_timing *timing)
{
    struct stats own = stats_of_series(bench, LIBRARY, rounds);
    timing->mean_us = own.mean;
    timing->p50_us = own.p50;
    timing->p99_us = own.p99;
    timing->own_us = own_median(bench, LIBRARY, rounds);
    if (!bench->config->graph)
        timing->host_us = stats_of_series(bench, HOST_TIME, rounds).p50;
    for (int rival = 0; rival < BENCH_RIVALS; rival++)
        if (takes_part(bench, FIRST_RIVAL + rival, trial->row))
            timing->rival_us[rival] = stats_of_series(bench, FIRST_RIVAL + rival, rounds).p50;
    for (int i = 0; i < BENCH_TUNINGS; i++)
        if (takes_part(bench, FIRST_TUNING + i, trial->row))
            timing->tuning_us[i] = stats_of_series(bench, FIRST_TUNING + i, rounds).p50;
}

static bool time_rounds(struct gpu_bench *bench, struct trial *trial, int rounds)
{
    struct bench_shared *shared = bench->self->shared;
    const int rank = bench->self->rank;
    double us = 0, host_us = 0;
    for (int i = 0; i < rounds; i++)
        for (int engine = 0; engine < ENGINES; engine++) {
            if (!takes_part(bench, engine, trial->row))
                continue;
            if (!time_round(bench, engine, trial, &us, &host_us))
                return false;
            shared->samples[engine][i][rank] = (float)us;
            if (engine == LIBRARY)
                shared->samples[HOST_TIME][i][rank] = (float)host_us;
        }
    return meet(bench);
}

/* First calls each engine once outside a graph, for rivals with a late set-up. Then captures and
 * warms up the graphs. */
static bool prepare(struct gpu_bench *bench, struct trial *trial, double *each_us)
{
    double host_us = 0;
    for (int engine = 0; engine < ENGINES; engine++) {
        if (!takes_part(bench, engine, trial->row))
            continue;
        if (!meet(bench) || !enqueue(bench, engine, trial, bench->streams[0]) ||
            !synchronize(bench) || !meet(bench))
            return false;
        if (bench->config->graph && !capture(bench, engine, trial))
            return false;
        for (int i = 0; i < bench->config->warmup || i == 0; i++)
            if (!time_round(bench, engine, trial, engine ? &host_us : each_us, &host_us))
                return false;
    }
    return true;
}

static bool check_all(struct gpu_bench *bench, int index, struct trial *trial,
                      struct bench_timing *timing)
{
    bool ok = fill_inputs(bench, index, trial) && check(bench, LIBRARY, trial, &timing->wrong);
    for (int i = 0; i < BENCH_TUNINGS && ok; i++)
        if (takes_part(bench, FIRST_TUNING + i, trial->row))
            ok = check(bench, FIRST_TUNING + i, trial, &timing->tuning_wrong[i]);
    return ok;
}

static bool run_place(struct gpu_bench *bench, int index, struct trial *trial,
                      struct bench_record *record)
{
    struct bench_timing *timing = &record->timing[trial->place];
    double each_us = 0;
    bool checked = bench->config->check && !is_barrier(bench);
    if (!fill_inputs(bench, index, trial) || !prepare(bench, trial, &each_us))
        return false;
    if (checked && !check_all(bench, index, trial, timing))
        return false;
    if (!agree_on_rounds(bench, trial, each_us, &record->iterations) ||
        !time_rounds(bench, trial, record->iterations))
        return false;
    summarize(bench, trial, record->iterations, timing);
    /* Checks the result again after the rounds. Rivals have written to the same buffer meanwhile.
     */
    return !checked || trial->place == BENCH_IN_PLACE ||
           (launch(bench, LIBRARY, trial) && synchronize(bench) &&
            compare(bench, recv_of(bench, LIBRARY), trial->row, bench->expected, &timing->wrong));
}

static int batch_of(const struct bench_config *config, const struct bench_row *row)
{
    int batch = config->graph ? GRAPH_BATCH : EAGER_BATCH;
    if (config->batch)
        return config->batch;
    return row->bytes < LARGE_BYTES ? batch : LARGE_BATCH;
}

/* Tests which transports can be forced. */
static unsigned serving(struct gpu_bench *bench, const struct bench_row *row)
{
    unsigned mask = 0;
    for (int algo = TUTTI_ALGO_ONE_SHOT_LL; algo <= TUTTI_ALGO_TWO_SHOT_PIPELINED; algo++) {
        struct tutti_call_options options = {.struct_size = sizeof options,
                                             .algo = (enum tutti_algo)algo};
        enum tutti_algo chosen;
        if (!tutti_comm_algorithm(bench->comm, row->count, row->dtype, operation(bench, row->op),
                                  &options, &chosen, NULL))
            mask |= 1u << algo;
    }
    return mask;
}

static bool run_row(struct gpu_bench *bench, int index, struct bench_record *record)
{
    const struct bench_row *row = &bench->config->rows[index];
    bool ok = is_barrier(bench) ||
              check_status(bench, tutti_comm_algorithm(bench->comm, row->count, row->dtype,
                                                       operation(bench, row->op), NULL,
                                                       &record->algo, NULL));
    const int places = is_barrier(bench) || bench->config->one_place ? 1 : BENCH_PLACES;
    record->serving = ok && !is_barrier(bench) ? serving(bench, row) : 0;
    for (int place = 0; place < places && ok; place++) {
        struct trial trial = {
            .row = row, .place = (enum bench_place)place, .batch = batch_of(bench->config, row)};
        ok = run_place(bench, index, &trial, record);
        for (int engine = 0; engine < ENGINES; engine++)
            gpu_graph_destroy(trial.graphs[engine]);
    }
    return ok;
}

/* ---- a rank ---------------------------------------------------------------------------------- */

static bool open_device(struct gpu_bench *bench, char *text, size_t capacity)
{
    int rank = bench->self->rank;
    struct gpu_facts facts;
    if (!check_gpu(bench, gpu_open()))
        return false;
    int count = gpu_count();
    if (!check_gpu(bench, count > 0 && gpu_bind(rank % count) && gpu_facts(rank % count, &facts)))
        return false;
    snprintf(text, capacity, "device %d %.20s %.63s", rank % count, facts.bus_id, facts.name);
    bench->begin = gpu_event_create();
    bench->end = gpu_event_create();
    bench->forked = gpu_event_create();
    bool ok = bench->begin && bench->end && bench->forked;
    for (int i = 0; i < bench->config->streams && ok; i++)
        ok = gpu_stream_create(&bench->streams[i]) && (bench->joined[i] = gpu_event_create());
    return check_gpu(bench, ok);
}

static bool create_comm(struct gpu_bench *bench, const char *name, tutti_comm_t **comm)
{
    const struct bench_config *config = bench->config;
    struct tutti_comm_options options = {
        .struct_size = sizeof options,
        .name = name,
        .device = TUTTI_DEVICE_CUDA,
        .timeout_ms = config->timeout_ms,
        .algo = config->algo,
        .programmatic_launch = config->pdl,
    };
    return check_status(
        bench, tutti_comm_create(bench->store, bench->self->rank, config->ranks, &options, comm));
}

static bool create_library(struct gpu_bench *bench)
{
    if (!check_status(bench, tutti_store_open(bench->self->store_url, bench->config->timeout_ms,
                                              &bench->store)) ||
        !create_comm(bench, "bench", &bench->comm))
        return false;
    bench->exact = sums_in_ring(bench->comm);
    if (bench->exact && bench->config->tuning_count)
        return fail(bench, TUTTI_ERR_INVALID,
                    "the ranks' links, or TUTTI_ALGO, make the algorithm a ring, which is in no "
                    "tuning table: there is nothing to measure");
    return check_status(
        bench, tutti_op_create_premul_sum(bench_premul_scalar(bench->exact), &bench->premul));
}

/* tutti_comm_create() reads the variable. Nothing else in this process reads variables any more. */
static bool create_tuned(struct gpu_bench *bench)
{
    bool ok = true;
    for (int i = 0; i < bench->config->tuning_count && ok; i++) {
        char name[32];
        snprintf(name, sizeof name, "bench-tuned-%d", i);
        setenv("TUTTI_TUNING_FILE", bench->config->tunings[i], 1);
        ok = create_comm(bench, name, &bench->tuned[i]);
    }
    return ok;
}

static bool create_rival(struct gpu_bench *bench, size_t bytes)
{
    if (!nccl_open())
        return fail(bench, TUTTI_ERR_DECLINED, "--vs nccl: %s", nccl_error());
    bench->nccl = nccl_comm_create(bench->store, bench->self->rank, bench->config->ranks);
    if (!bench->nccl)
        return fail(bench, TUTTI_ERR_CUDA, "--vs nccl: %s", nccl_error());
    if (!nccl_has_windows())
        return true;
    bench->memory[1] = nccl_window_create(bench->nccl, bytes);
    return bench->memory[1] || fail(bench, TUTTI_ERR_CUDA, "--vs nccl: %s", nccl_error());
}

static bool allocate(struct gpu_bench *bench)
{
    const struct bench_config *config = bench->config;
    size_t most = 0;
    for (int i = 0; i < config->row_count; i++)
        most = config->rows[i].bytes > most ? config->rows[i].bytes : most;
    bench->reach = (most + 2 * GUARD_BYTES + 4095) / 4096 * 4096;
    bench->input = malloc(REFERENCE_PERIOD * REFERENCE_WIDEST);
    bench->expected = malloc(REFERENCE_PERIOD * REFERENCE_WIDEST);
    bench->chunk = malloc(CHUNK_PERIODS * REFERENCE_PERIOD * REFERENCE_WIDEST);
    bench->values = malloc(BENCH_REPLAYS * sizeof *bench->values);
    if (!bench->input || !bench->expected || !bench->chunk || !bench->values)
        return fail(bench, TUTTI_ERR_NO_MEMORY, "no memory");
    bench->memory[0] = gpu_alloc(2 * bench->reach);
    return check_gpu(bench, bench->memory[0] != NULL) &&
           (!config->vs_nccl || create_rival(bench, 2 * bench->reach));
}

static void release(struct gpu_bench *bench)
{
    nccl_comm_destroy(bench->nccl);
    gpu_free(bench->memory[0]);
    tutti_op_destroy(bench->premul);
    for (int i = 0; i < bench->config->tuning_count; i++)
        tutti_comm_destroy(bench->tuned[i]);
    tutti_comm_destroy(bench->comm);
    tutti_store_close(bench->store);
    for (int i = 0; i < BENCH_STREAMS; i++) {
        gpu_event_destroy(bench->joined[i]);
        gpu_stream_destroy(bench->streams[i]);
    }
    gpu_event_destroy(bench->forked);
    gpu_event_destroy(bench->begin);
    gpu_event_destroy(bench->end);
    free(bench->values);
    free(bench->chunk);
    free(bench->expected);
    free(bench->input);
}

static bool run_rows(struct gpu_bench *bench, int *row)
{
    const struct bench_rank *self = bench->self;
    for (*row = 0; *row < self->config->row_count; (*row)++) {
        struct bench_record record = {.kind = BENCH_ROW, .rank = self->rank, .row = *row};
        if (!meet(bench) || !run_row(bench, *row, &record))
            return false;
        if (!bench_send_record(self, &record))
            return fail(bench, TUTTI_ERR_SYSTEM, "the pipe to the parent is closed");
    }
    return meet(bench); /* no rank leaves while another one is in its last operation */
}

bool bench_gpu_run(const struct bench_rank *self)
{
    struct gpu_bench bench = {.self = self, .config = self->config};
    struct bench_record ready = {.kind = BENCH_READY, .rank = self->rank, .pid = (int)getpid()};
    int row = -1;
    bool ok = open_device(&bench, ready.device, sizeof ready.device);
    double begin = clock_seconds();
    ok = ok && create_library(&bench);
    ready.setup_ms = (clock_seconds() - begin) * 1e3;
    ok = ok && create_tuned(&bench) && allocate(&bench);
    tutti_comm_describe(bench.comm, ready.message, sizeof ready.message);
    ready.nccl = bench.nccl ? nccl_version() : 0;
    ok = ok && bench_send_record(self, &ready) && run_rows(&bench, &row);
    if (!ok)
        bench_send_error(self, row, bench.status, bench.message);
    release(&bench);
    return ok;
}
