/* SPDX-License-Identifier: MIT */
/* One rank of the benchmark: set-up, and for each row a check, a warm-up and timed operations. */
#include "bench.h"
#include "bench_buffers.h"
#include "collective_call.h"
#include "reference_table.h"
#include "stats.h"
#include "tool.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Without --iters: the target time for one place of one row, the time after which it ends early,
 * and the bounds of the number of operations. */
static const double row_seconds = 0.05, most_row_seconds = 0.5;
enum { LEAST_ITERATIONS = 20, MOST_ITERATIONS = 100000 };

/* Without -w: the warm-up ends after STEADY_BATCHES consecutive batches that took more than
 * steady_share of the best earlier batch, or after most_warmup_seconds. */
static const double batch_seconds = 0.002, steady_share = 0.97, most_warmup_seconds = 0.2;
enum { STEADY_BATCHES = 5 };

struct measure {
    const struct bench_rank *self;
    const struct bench_config *config;
    tutti_store_t *store;
    tutti_comm_t *comm;
    tutti_op_t premul;
    struct bench_buffers buffers;
    size_t next_slot;
    unsigned operations;            /* of a collective with a root, so far: the roots take turns */
    size_t counts[TUTTI_MAX_RANKS]; /* the elements of each rank's block of this row */
    char *table;                    /* one period of the inputs or of the result */
    double *samples;
};

/* ---- one operation --------------------------------------------------------------------------- */

static tutti_op_t operation(const struct measure *measure, tutti_op_t kind)
{
    return kind == TUTTI_PREMUL_SUM ? measure->premul : kind;
}

static size_t block_bytes(const struct bench_row *row)
{
    return row->count * tutti_dtype_size(row->dtype);
}

/* Finds the operands of operation i. In place the smaller one is this rank's block of the larger
 * one. */
static void find_operands(const struct measure *measure, const struct bench_row *row,
                          enum bench_place place, size_t i, char **send, char **recv)
{
    const struct collective *collective = bench_collective(measure->config);
    *send = bench_buffers_send(&measure->buffers, i);
    *recv = bench_buffers_recv(&measure->buffers, i);
    if (place == BENCH_OUT_OF_PLACE)
        return;
    const size_t own =
        (size_t)collective_own_block(collective, measure->self->rank) * block_bytes(row);
    if (collective->send_all)
        *recv = *send + own;
    else
        *send = *recv + own;
}

/* The root of the next operation. */
static int root_of(const struct measure *measure)
{
    return (int)(measure->operations % (unsigned)measure->config->ranks);
}

static int next_root(struct measure *measure)
{
    const int root = root_of(measure);
    measure->operations++;
    return root;
}

/* Runs one operation of a row. A cold one uses the next slot. */
static enum tutti_status run_once(struct measure *measure, const struct bench_row *row,
                                  enum bench_place place)
{
    const enum tutti_collective which = measure->config->collective;
    char *send, *recv;
    if (which == TUTTI_COLLECTIVE_BARRIER)
        return tutti_barrier(measure->comm, NULL, 0, TUTTI_STREAM_DEFAULT);
    find_operands(measure, row, place, measure->next_slot++, &send, &recv);
    return collective_call(which, send, recv, measure->counts, row->dtype,
                           operation(measure, row->op),
                           collectives[which].rooted ? next_root(measure) : 0, measure->comm, NULL);
}

/* ---- correctness ----------------------------------------------------------------------------- */

/* Each block of an input has different numbers. */
static struct reference reference_of(const struct measure *measure, int index,
                                     enum bench_place place, int block)
{
    struct reference reference = bench_reference(measure->config, index, place, false);
    reference.seed ^= (uint64_t)block << 32;
    return reference;
}

/* Returns one period of a block of this rank's input. */
static const char *input_table(struct measure *measure, int index, enum bench_place place,
                               int block)
{
    const struct reference reference = reference_of(measure, index, place, block);
    reference_input(&reference, measure->self->rank, measure->table);
    return measure->table;
}

/* Returns one period of a block of this rank's result. */
static const char *result_table(struct measure *measure, int index, enum bench_place place,
                                int block, int root)
{
    const struct collective *collective = bench_collective(measure->config);
    const int reduced = collective->send_all ? measure->self->rank : 0;
    const struct reference reference = reference_of(measure, index, place, reduced);
    int from = collective->send_at_root ? root : block;
    if (measure->config->collective == TUTTI_COLLECTIVE_SEND)
        from = collective_neighbour(measure->self->rank, -1, measure->config->ranks);
    if (collective->reduces)
        reference_expected(&reference, measure->table);
    else
        reference_input(&reference, from, measure->table);
    return measure->table;
}

/* Runs the row once on fresh inputs. *wrong counts result elements with a wrong bit, input elements
 * that changed, and changed guard bytes. */
static enum tutti_status check(struct measure *measure, int index, enum bench_place place,
                               uint64_t *wrong)
{
    const struct bench_row *row = &measure->config->rows[index];
    const struct collective *collective = bench_collective(measure->config);
    const int ranks = measure->config->ranks;
    const int send_blocks = collective_send_blocks(collective, ranks);
    const int recv_blocks = collective_recv_blocks(collective, ranks);
    const size_t width = tutti_dtype_size(row->dtype), bytes = block_bytes(row);
    const int root = root_of(measure);
    const bool receives = !collective->recv_at_root || measure->self->rank == root;
    char *send, *recv;
    find_operands(measure, row, place, 0, &send, &recv);
    bench_buffers_guard(&measure->buffers);
    memset(recv, 0xa5, bytes * (size_t)recv_blocks);
    for (int i = 0; i < send_blocks; i++)
        reference_fill(send + (size_t)i * bytes, row->count, width,
                       input_table(measure, index, place, i));

    measure->next_slot = 0;
    enum tutti_status status = run_once(measure, row, place);
    *wrong = bench_buffers_damage(&measure->buffers);
    for (int i = 0; i < recv_blocks && receives; i++)
        *wrong += reference_differences(recv + (size_t)i * bytes, row->count, width,
                                        result_table(measure, index, place, i, root));
    for (int i = 0; i < send_blocks; i++) {
        const char *input = send + (size_t)i * bytes;
        if (input < recv || input >= recv + bytes * (size_t)recv_blocks)
            *wrong += reference_differences(input, row->count, width,
                                            input_table(measure, index, place, i));
    }
    return status;
}

/* Writes the inputs of the timed operations: ordinary numbers in every slot. For a cold measurement
 * it then evicts them from the caches. */
static void prepare(struct measure *measure, const struct bench_row *row)
{
    struct reference reference = {.dtype = row->dtype, .op = row->op, .ranks = 1};
    size_t width = tutti_dtype_size(row->dtype), count = row->bytes / width;
    reference_input(&reference, measure->self->rank, measure->table);
    for (size_t i = 0; i < measure->buffers.slots; i++) {
        reference_fill(bench_buffers_send(&measure->buffers, i), count, width, measure->table);
        reference_fill(bench_buffers_recv(&measure->buffers, i), count, width, measure->table);
    }
    bench_buffers_chill(&measure->buffers);
}

/* ---- time ------------------------------------------------------------------------------------ */

/* The number of operations for one reading of the clock; a reading costs some 25 ns. */
static int batch_of(const struct bench_config *config, const struct bench_row *row, int iterations)
{
    int batch = row->bytes <= 1024 ? 32 : row->bytes <= 16384 ? 8 : 1;
    if (config->ranks > config->placement.cores)
        batch = 1; /* an operation takes longer than reading the clock */
    int most = iterations / 10 > 1 ? iterations / 10 : 1;
    return batch < most ? batch : most;
}

/* Rank 0 announces a number to all ranks, between two operations. */
static enum tutti_status agree(struct measure *measure, int *value)
{
    atomic_int *shared = &measure->self->shared->iterations;
    if (measure->self->rank == 0)
        atomic_store(shared, *value);
    enum tutti_status status = tutti_barrier(measure->comm, NULL, 0, TUTTI_STREAM_DEFAULT);
    if (status)
        return status;
    *value = atomic_load(shared);
    /* Rank 0 writes the next number only after all ranks have read this one. */
    return tutti_barrier(measure->comm, NULL, 0, TUTTI_STREAM_DEFAULT);
}

/* Runs a few operations. *each is the time of one operation, in seconds. */
static enum tutti_status run_batch(struct measure *measure, const struct bench_row *row,
                                   enum bench_place place, int count, double *each)
{
    enum tutti_status status = TUTTI_OK;
    double begin = clock_seconds();
    for (int i = 0; i < count && !status; i++)
        status = run_once(measure, row, place);
    *each = (clock_seconds() - begin) / (count ? count : 1);
    return status;
}

/* The number of operations that take this long, within bounds. */
static int operations_in(double seconds, double each, int least, int most)
{
    double fit = seconds / (each > 1e-9 ? each : 1e-9);
    return fit < least ? least : fit > most ? most : (int)fit;
}

/* Runs batches until the last few were not faster than the best earlier one by more than a few
 * percent. The first thousands of operations of a row are slower: memory is touched for the first
 * time, and cores wake up. */
static enum tutti_status settle_times(struct measure *measure, const struct bench_row *row,
                                      enum bench_place place, double *each)
{
    double begin = clock_seconds(), best = 0;
    int count = 1, without_gain = 0;
    enum tutti_status status = TUTTI_OK;
    while (count > 0 && !status) {
        status = run_batch(measure, row, place, count, each);
        without_gain = best > 0 && *each > steady_share * best ? without_gain + 1 : 0;
        best = best > 0 && best < *each ? best : *each;
        bool over = clock_seconds() - begin > most_warmup_seconds || without_gain >= STEADY_BATCHES;
        count = over ? 0 : operations_in(batch_seconds, *each, 1, MOST_ITERATIONS);
        if (!status)
            status = agree(measure, &count);
    }
    return status;
}

/* Returns the number of operations to time. */
static enum tutti_status warm_up(struct measure *measure, const struct bench_row *row,
                                 enum bench_place place, int *iterations)
{
    const struct bench_config *config = measure->config;
    double each = 0;
    enum tutti_status status;
    if (config->warmup == BENCH_UNTIL_STEADY)
        status = settle_times(measure, row, place, &each);
    else
        status =
            run_batch(measure, row, place,
                      config->iterations == 0 && config->warmup == 0 ? 1 : config->warmup, &each);
    *iterations = config->iterations
                      ? config->iterations
                      : operations_in(row_seconds, each, LEAST_ITERATIONS, MOST_ITERATIONS);
    return status ? status : agree(measure, iterations);
}

/* Times operations, a batch at a time. Adds to *spent_us and to the samples. */
static enum tutti_status time_batches(struct measure *measure, const struct bench_row *row,
                                      enum bench_place place, int batch, int count, size_t *samples,
                                      double *spent_us)
{
    enum tutti_status status = TUTTI_OK;
    double last = clock_seconds();
    for (int left = count; left > 0 && !status;) {
        int now = left < batch ? left : batch;
        for (int i = 0; i < now && !status; i++)
            status = run_once(measure, row, place);
        double end = clock_seconds();
        measure->samples[(*samples)++] = (end - last) / now * 1e6;
        *spent_us += (end - last) * 1e6;
        last = end;
        left -= now;
    }
    return status;
}

/* Beside other load an operation can take a thousand times as long as in the warm-up. So the
 * operations that the warm-up has planned come in parts, and after most_row_seconds none begins. */
static enum tutti_status time_row(struct measure *measure, const struct bench_row *row,
                                  enum bench_place place, struct bench_timing *timing,
                                  int *iterations)
{
    enum tutti_status status = warm_up(measure, row, place, iterations);
    int batch = batch_of(measure->config, row, *iterations);
    int done = 0, next = measure->config->iterations ? *iterations : LEAST_ITERATIONS;
    size_t samples = 0;
    double spent_us = 0;
    while (next > 0 && !status) {
        status = time_batches(measure, row, place, batch, next, &samples, &spent_us);
        done += next;
        int left = *iterations - done;
        next = left < done ? left : done;
        if (spent_us > most_row_seconds * 1e6)
            next = 0;
        if (left > 0 && !status)
            status = agree(measure, &next);
    }
    if (status)
        return status;
    *iterations = done;
    struct stats stats = stats_of(measure->samples, samples);
    timing->mean_us = spent_us / done;
    timing->own_us = timing->mean_us;
    timing->p50_us = stats.p50;
    timing->p99_us = stats.p99;
    /* A rank that goes on to compute could take the core of a rank that has not yet seen the end of
     * its last operation. */
    return tutti_barrier(measure->comm, NULL, 0, TUTTI_STREAM_DEFAULT);
}

/* ---- where the cores are --------------------------------------------------------------------- */

/* Measures rank 0's round trip to the farthest rank; 0: unknown. All ranks call it. */
static double probe(struct measure *measure)
{
    static const double wait_seconds = 2;
    struct ping *pings = measure->self->shared->pings;
    int rank = measure->self->rank;
    if (!measure->config->placement.bound)
        return 0;
    if (rank != 0) {
        ping_round_trip_ns(&pings[rank], 1, wait_seconds);
        return 0;
    }
    double farthest = 0;
    for (int peer = 1; peer < measure->config->ranks; peer++) {
        double ns = ping_round_trip_ns(&pings[peer], 0, wait_seconds);
        if (ns < 0)
            return 0;
        farthest = ns > farthest ? ns : farthest;
    }
    return farthest;
}

/* ---- a row, a rank --------------------------------------------------------------------------- */

static enum tutti_status run_row(struct measure *measure, int index, struct bench_record *record)
{
    const struct bench_config *config = measure->config;
    const struct bench_row *row = &config->rows[index];
    const struct collective *collective = bench_collective(config);
    enum tutti_status status = TUTTI_OK;
    bench_buffers_shape(
        &measure->buffers,
        block_bytes(row) * (size_t)collective_send_blocks(collective, config->ranks),
        block_bytes(row) * (size_t)collective_recv_blocks(collective, config->ranks));
    if (collective->chosen)
        status = tutti_comm_algorithm(measure->comm, row->count, row->dtype,
                                      operation(measure, row->op), NULL, &record->algo, NULL);
    for (int rank = 0; rank < config->ranks; rank++)
        measure->counts[rank] = row->count;
    for (int place = 0; place < bench_places(config) && !status; place++) {
        struct bench_timing *timing = &record->timing[place];
        if (config->check && collective->data)
            status = check(measure, index, (enum bench_place)place, &timing->wrong);
        if (!status && collective->data)
            prepare(measure, row);
        if (!status)
            status = time_row(measure, row, (enum bench_place)place, timing, &record->iterations);
    }
    return status;
}

static enum tutti_status run_row_probed(struct measure *measure, int index,
                                        struct bench_record *record)
{
    enum tutti_status status = tutti_barrier(measure->comm, NULL, 0, TUTTI_STREAM_DEFAULT);
    if (status)
        return status;
    double before = probe(measure);
    status = run_row(measure, index, record);
    if (status)
        return status;
    double after = probe(measure);
    record->round_trip_ns = before > 0 && after > 0 ? (before > after ? before : after) : 0;
    record->moved = (before < PING_NEAR_NS) != (after < PING_NEAR_NS);
    return TUTTI_OK;
}

bool bench_send_record(const struct bench_rank *self, const struct bench_record *record)
{
    return write(self->pipe, record, sizeof *record) == (ssize_t)sizeof *record;
}

void bench_send_error(const struct bench_rank *self, int row, enum tutti_status status,
                      const char *message)
{
    struct bench_record record = {
        .kind = BENCH_ERROR, .rank = self->rank, .row = row, .status = status};
    snprintf(record.message, sizeof record.message, "%s",
             *message ? message : tutti_status_text(status));
    bench_send_record(self, &record);
}

static enum tutti_status meet(struct measure *measure)
{
    const struct bench_config *config = measure->config;
    const struct bench_rank *self = measure->self;
    struct tutti_comm_options options = {
        .struct_size = sizeof options,
        .name = "bench",
        .timeout_ms = config->timeout_ms,
        .algo = config->algo,
    };
    enum tutti_status status =
        tutti_store_open(self->store_url, config->timeout_ms, &measure->store);
    if (!status)
        status =
            tutti_comm_create(measure->store, self->rank, config->ranks, &options, &measure->comm);
    return status;
}

static bool allocate(struct measure *measure)
{
    const struct bench_config *config = measure->config;
    size_t table = REFERENCE_PERIOD * REFERENCE_WIDEST;
    size_t samples =
        (size_t)(config->iterations > MOST_ITERATIONS ? config->iterations : MOST_ITERATIONS);
    measure->table = malloc(table);
    measure->samples = malloc(samples * sizeof *measure->samples);
    return measure->table && measure->samples;
}

static enum tutti_status prepare_rank(struct measure *measure, double *setup_ms)
{
    double begin = clock_seconds();
    enum tutti_status status = meet(measure);
    *setup_ms = (clock_seconds() - begin) * 1e3;
    if (!status)
        status = tutti_op_create_premul_sum(bench_premul_scalar(false), &measure->premul);
    if (!status)
        status = bench_buffers_init(&measure->buffers, measure->config, measure->self->rank,
                                    measure->store);
    return status;
}

static void release(struct measure *measure)
{
    bench_buffers_fini(&measure->buffers);
    tutti_op_destroy(measure->premul);
    tutti_comm_destroy(measure->comm);
    tutti_store_close(measure->store);
    free(measure->table);
    free(measure->samples);
}

static bool run_rows(struct measure *measure, enum tutti_status *status, int *row)
{
    const struct bench_rank *self = measure->self;
    for (*row = 0; *row < self->config->row_count; (*row)++) {
        struct bench_record record = {.kind = BENCH_ROW, .rank = self->rank, .row = *row};
        *status = run_row_probed(measure, *row, &record);
        if (*status || !bench_send_record(self, &record))
            return false;
    }
    /* No rank leaves while another one is in its last operation. */
    *status = tutti_barrier(measure->comm, NULL, 0, TUTTI_STREAM_DEFAULT);
    return *status == TUTTI_OK;
}

bool bench_rank_run(const struct bench_rank *self)
{
    struct measure measure = {.self = self, .config = self->config};
    struct bench_record ready = {.kind = BENCH_READY, .rank = self->rank, .pid = (int)getpid()};
    int row = -1;
    bool ok = false;
    enum tutti_status status = TUTTI_ERR_SYSTEM;
    if (!place_bind(&self->config->placement, self->rank))
        goto err_release;
    status = TUTTI_ERR_NO_MEMORY;
    if (allocate(&measure))
        status = prepare_rank(&measure, &ready.setup_ms);
    ok = status == TUTTI_OK && bench_send_record(self, &ready) && run_rows(&measure, &status, &row);

err_release:
    if (!ok) /* the library wrote the message, unless this function had no memory */
        bench_send_error(self, row, status, tutti_last_error());
    release(&measure);
    return ok;
}
