/* SPDX-License-Identifier: MIT */
/* The benchmark's engine of CPU ranks: for each place a check, a warm-up and timed operations. */
#include "bench_rank.h"
#include "collective_call.h"
#include "mpi_calls.h"
#include "reference.h"
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

/* Beside MPI: rounds of each library, and the target time of one. */
static const double round_seconds = 0.01;
enum { ROUNDS = 11 };
enum { BY_TUTTI, BY_MPI, WAYS };

/* ---- buffers --------------------------------------------------------------------------------- */

/* Slots of one size with guard bytes before and after each. A cold measurement has enough slots to
 * fill the last-level cache twice. It uses them in an order that no prefetcher follows. */
struct buffers {
    bool cold;
    size_t cache_bytes;
    tutti_symm_group_t *group;     /* NULL: ordinary memory */
    char *send, *recv;             /* the arenas, in one allocation */
    size_t send_bytes, recv_bytes; /* of a slot's buffer */
    size_t stride;                 /* distance of two slots */
    size_t slots;                  /* a power of two */
};

enum { GUARD_BYTES = 64, ALIGNMENT = 4096 };

static size_t stride_of(size_t bytes)
{
    return (bytes + 2 * GUARD_BYTES - 1) / GUARD_BYTES * GUARD_BYTES;
}

static size_t slots_of(const struct buffers *buffers, size_t bytes)
{
    size_t slots = 1;
    while (buffers->cold && slots * stride_of(bytes) < 2 * buffers->cache_bytes)
        slots *= 2;
    return slots;
}

static size_t arena_bytes(const struct buffers *buffers, const struct bench_config *config)
{
    size_t most = 0;
    for (int i = 0; i < config->row_count; i++) {
        size_t bytes = config->rows[i].bytes;
        size_t need = slots_of(buffers, bytes) * stride_of(bytes);
        most = need > most ? need : most;
    }
    return (GUARD_BYTES + most + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* Large enough for every row. Collective with --symmetric. */
static bool buffers_init(struct buffers *buffers, struct measure *measure)
{
    const struct bench_config *config = measure->config;
    *buffers = (struct buffers){
        .cold = config->cold, .cache_bytes = config->placement.cache_bytes, .slots = 1};
    const size_t bytes = arena_bytes(buffers, config);
    if (!measure_alloc(measure, 2 * bytes, &buffers->group, &buffers->send))
        return false;
    buffers->recv = buffers->send + bytes;
    memset(buffers->send, 0, 2 * bytes);
    return true;
}

/* Divides the arenas into slots for the next row, of as many bytes as the larger buffer needs. */
static void buffers_shape(struct buffers *buffers, size_t send_bytes, size_t recv_bytes)
{
    size_t bytes = send_bytes > recv_bytes ? send_bytes : recv_bytes;
    buffers->send_bytes = send_bytes;
    buffers->recv_bytes = recv_bytes;
    buffers->stride = stride_of(bytes);
    buffers->slots = slots_of(buffers, bytes);
}

/* With an odd multiplier all slots, whose number is a power of two, are visited before one is
 * visited again. */
static size_t slot_offset(const struct buffers *buffers, size_t i)
{
    return GUARD_BYTES + (i * 2654435761u & (buffers->slots - 1)) * buffers->stride;
}

static char *buffers_send(const struct buffers *buffers, size_t i)
{
    return buffers->send + slot_offset(buffers, i);
}

static char *buffers_recv(const struct buffers *buffers, size_t i)
{
    return buffers->recv + slot_offset(buffers, i);
}

/* Makes slot 0 of both arenas the buffers of a check, with their guards. */
static void buffers_lend(const struct buffers *buffers, struct operands *operands)
{
    operands->buffers[0] = buffers_send(buffers, 0);
    operands->buffers[1] = buffers_recv(buffers, 0);
    operands->bytes[0] = buffers->send_bytes;
    operands->bytes[1] = buffers->recv_bytes;
    operands->guard_bytes = GUARD_BYTES;
}

/* Evicts the buffers from every cache, if the measurement is a cold one. */
static void buffers_chill(const struct buffers *buffers)
{
    if (!buffers->cold)
        return;
    size_t bytes = 2 * buffers->cache_bytes;
    volatile char *other = calloc(1, bytes ? bytes : 1);
    for (size_t i = 0; other && i < bytes; i += 64)
        other[i] = 1;
    free((void *)(uintptr_t)other);
}

static void buffers_fini(struct buffers *buffers)
{
    if (buffers->group)
        tutti_symm_group_destroy(buffers->group); /* also frees the arenas */
    else
        free(buffers->send);
    *buffers = (struct buffers){0};
}

/* ---- one operation --------------------------------------------------------------------------- */

struct cpu_measure {
    struct measure base;
    struct buffers buffers;
    size_t next_slot;
    unsigned operations; /* of a collective with a root, so far: the roots take turns */
    double *samples;
    bool has_mpi; /* MPI is measured beside the row */
    bool by_mpi;  /* MPI runs the operations */
};

static struct cpu_measure *of(struct measure *base)
{
    return (struct cpu_measure *)base;
}

/* The root of the next operation. */
static int root_of(const struct cpu_measure *measure)
{
    return (int)(measure->operations % (unsigned)measure->base.config->ranks);
}

static int next_root(struct cpu_measure *measure)
{
    const int root = root_of(measure);
    measure->operations++;
    return root;
}

static bool meet(struct measure *base)
{
    return measure_status(base, tutti_barrier(base->comm, NULL, 0, TUTTI_STREAM_DEFAULT));
}

static bool meet_mpi(struct measure *base)
{
    return mpi_calls_barrier() || measure_fail(base, TUTTI_ERR_SYSTEM, "%s", library_error());
}

static enum tutti_status run_mpi(struct cpu_measure *measure, const char *send, char *recv,
                                 int root)
{
    struct measure *base = &measure->base;
    const struct rival_call call = {.which = base->config->collective,
                                    .send = send,
                                    .recv = recv,
                                    .count = base->row->count,
                                    .dtype = base->row->dtype,
                                    .op = base->row->op,
                                    .root = root};
    if (mpi_calls_run(&call))
        return TUTTI_OK;
    measure_fail(base, TUTTI_ERR_SYSTEM, "%s", library_error());
    return TUTTI_ERR_SYSTEM;
}

/* Runs one operation of the row. A cold one uses the next slot. */
static enum tutti_status run_once(struct cpu_measure *measure)
{
    const struct measure *base = &measure->base;
    const enum tutti_collective which = base->config->collective;
    char *send, *recv;
    if (which == TUTTI_COLLECTIVE_BARRIER)
        return tutti_barrier(base->comm, NULL, 0, TUTTI_STREAM_DEFAULT);
    const size_t slot = measure->next_slot++;
    const int root = collectives[which].rooted ? next_root(measure) : 0;
    operands_find(&base->operands, bench_is_in_place(base->config, base->place),
                  buffers_send(&measure->buffers, slot), buffers_recv(&measure->buffers, slot),
                  &send, &recv);
    if (measure->by_mpi)
        return run_mpi(measure, send, recv, root);
    return collective_call(which, send, recv, base->counts.wide, base->row->dtype, measure_op(base),
                           root, base->comm, base->options.flags ? &base->options : NULL);
}

/* ---- correctness ----------------------------------------------------------------------------- */

static bool check_one(struct measure *base, uint64_t *wrong)
{
    struct cpu_measure *measure = of(base);
    struct operands *operands = &base->operands;
    buffers_lend(&measure->buffers, operands);
    operands_find(operands, bench_is_in_place(base->config, base->place), operands->buffers[0],
                  operands->buffers[1], &operands->send, &operands->recv);
    operands->root = root_of(measure);
    measure->next_slot = 0;
    return operands_spoil(operands) && operands_write(operands) &&
           measure_status(base, run_once(measure)) && operands_check_result(operands, wrong) &&
           operands_check_input(operands, wrong);
}

/* MPI's additions have an order of their own, so its inputs have sums that are equal in any order.
 * Which zero a minimum or maximum of floats is, MPI leaves open: those are not checked. */
static bool check_mpi(struct measure *base)
{
    struct cpu_measure *measure = of(base);
    const struct bench_row *row = base->row;
    const bool exact = base->operands.reference.exact;
    const bool open = collectives[base->config->collective].reduces &&
                      (row->op == TUTTI_MIN || row->op == TUTTI_MAX) &&
                      reference_is_float(row->dtype);
    const char *op = bench_op_name(base->config, row);
    uint64_t wrong = 0;
    measure->has_mpi = mpi_calls_serve(base->config->collective, row->dtype, row->op, row->count);
    if (!measure->has_mpi || open || !base->config->check)
        return true;
    measure->by_mpi = base->operands.reference.exact = true;
    const bool ok = check_one(base, &wrong) && meet_mpi(base);
    measure->by_mpi = false;
    base->operands.reference.exact = exact;
    if (!ok || !measure_status(base, tutti_all_reduce(&wrong, &wrong, 1, TUTTI_UINT64, TUTTI_SUM,
                                                      base->comm, TUTTI_STREAM_DEFAULT)))
        return false;
    measure->has_mpi = !wrong;
    if (wrong && base->self->rank == 0)
        tool_fail("%s: %llu wrong elements in its %s of %zu bytes, %s, %s; left out there",
                  mpi_calls_version(), (unsigned long long)wrong, bench_name(base->config),
                  row->bytes, tutti_dtype_name(row->dtype), op ? op : "moved as bytes");
    return true;
}

static bool check(struct measure *base, struct bench_timing *timing)
{
    return check_one(base, &timing->wrong);
}

/* Writes the inputs of the timed operations: ordinary numbers in every slot. For a cold measurement
 * it then evicts them from the caches. */
static void prepare(struct cpu_measure *measure)
{
    const struct operands *operands = &measure->base.operands;
    const struct bench_row *row = measure->base.row;
    const struct reference reference = {.dtype = row->dtype, .op = row->op, .ranks = 1};
    const size_t count = row->bytes / tutti_dtype_size(row->dtype);
    reference_input(&reference, operands->rank, operands->table);
    for (size_t i = 0; i < measure->buffers.slots; i++) {
        operands_fill(operands, buffers_send(&measure->buffers, i), count, operands->table);
        operands_fill(operands, buffers_recv(&measure->buffers, i), count, operands->table);
    }
    buffers_chill(&measure->buffers);
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

/* Runs a few operations. *each is the time of one operation, in seconds. */
static bool run_batch(struct cpu_measure *measure, int count, double *each)
{
    enum tutti_status status = TUTTI_OK;
    double begin = clock_seconds();
    for (int i = 0; i < count && !status; i++)
        status = run_once(measure);
    *each = (clock_seconds() - begin) / (count ? count : 1);
    return measure_status(&measure->base, status);
}

/* The number of operations that take this long, within bounds. */
static int operations_in(double seconds, double each, int least, int most)
{
    double fit = seconds / (each > 1e-9 ? each : 1e-9);
    return fit < least ? least : fit > most ? most : (int)fit;
}

/* Rank 0 announces a number to all. A rank that waits in Tutti may make no progress in MPI, so
 * MPI's operations end first. */
static bool agree(struct cpu_measure *measure, int *value)
{
    return (!measure->by_mpi || meet_mpi(&measure->base)) && measure_agree(&measure->base, value);
}

/* Runs batches until the last few were not faster than the best earlier one by more than a few
 * percent. The first thousands of operations of a row are slower: memory is touched for the first
 * time, and cores wake up. */
static bool settle_times(struct cpu_measure *measure, double *each)
{
    double begin = clock_seconds(), best = 0;
    int count = 1, without_gain = 0;
    bool ok = true;
    while (count > 0 && ok) {
        ok = run_batch(measure, count, each);
        without_gain = best > 0 && *each > steady_share * best ? without_gain + 1 : 0;
        best = best > 0 && best < *each ? best : *each;
        bool over = clock_seconds() - begin > most_warmup_seconds || without_gain >= STEADY_BATCHES;
        count = over ? 0 : operations_in(batch_seconds, *each, 1, MOST_ITERATIONS);
        ok = ok && agree(measure, &count);
    }
    return ok;
}

/* Finds the number of operations to time. *each is the time of one. */
static bool warm_up(struct cpu_measure *measure, int *iterations, double *each)
{
    const struct bench_config *config = measure->base.config;
    const int fixed = config->iterations == 0 && config->warmup == 0 ? 1 : config->warmup;
    *each = 0;
    bool ok = config->warmup == BENCH_UNTIL_STEADY ? settle_times(measure, each)
                                                   : run_batch(measure, fixed, each);
    *iterations = config->iterations
                      ? config->iterations
                      : operations_in(row_seconds, *each, LEAST_ITERATIONS, MOST_ITERATIONS);
    return ok && agree(measure, iterations);
}

/* Times operations, a batch at a time. Adds to *spent_us and to the samples. */
static bool time_batches(struct cpu_measure *measure, int batch, int count, size_t *samples,
                         double *spent_us)
{
    enum tutti_status status = TUTTI_OK;
    double last = clock_seconds();
    for (int left = count; left > 0 && !status;) {
        int now = left < batch ? left : batch;
        for (int i = 0; i < now && !status; i++)
            status = run_once(measure);
        double end = clock_seconds();
        measure->samples[(*samples)++] = (end - last) / now * 1e6;
        *spent_us += (end - last) * 1e6;
        last = end;
        left -= now;
    }
    return measure_status(&measure->base, status);
}

/* Operations of both libraries in turn: rounds of round_seconds each. The time of an operation is
 * the median of the rounds, each of its slowest rank. Before a round the ranks meet by MPI, so that
 * its messages have ended, and then by Tutti. */
static bool time_beside(struct measure *base, struct bench_timing *timing, int *iterations)
{
    struct cpu_measure *measure = of(base);
    const int asked = base->config->iterations;
    double us[WAYS][ROUNDS], each = 0;
    int counts[WAYS];
    bool ok = true;
    prepare(measure);
    for (int way = 0; way < WAYS && ok; way++) {
        measure->by_mpi = way == BY_MPI;
        ok = meet_mpi(base) && meet(base) && warm_up(measure, &counts[way], &each);
        if (!asked)
            counts[way] = operations_in(round_seconds, each, 1, MOST_ITERATIONS);
        else
            counts[way] = asked / ROUNDS ? asked / ROUNDS : 1;
        ok = ok && agree(measure, &counts[way]);
    }
    for (int i = 0; i < WAYS * ROUNDS && ok; i++) {
        measure->by_mpi = i % WAYS == BY_MPI;
        ok = meet_mpi(base) && meet(base) && run_batch(measure, counts[i % WAYS], &each);
        us[i % WAYS][i / WAYS] = each * 1e6;
    }
    measure->by_mpi = false;
    if (!ok || !meet_mpi(base) || !meet(base))
        return false;
    for (int i = 0; i < ROUNDS; i++)
        timing->own_us += us[BY_TUTTI][i] / ROUNDS;
    if (!measure_status(base, tutti_all_reduce(us, us, (size_t)WAYS * ROUNDS, TUTTI_FLOAT64,
                                               TUTTI_MAX, base->comm, TUTTI_STREAM_DEFAULT)))
        return false;
    const struct stats ours = stats_of(us[BY_TUTTI], ROUNDS);
    timing->mean_us = ours.mean;
    timing->p50_us = ours.p50;
    timing->p99_us = ours.p99;
    timing->rival_us[BENCH_MPI] = stats_of(us[BY_MPI], ROUNDS).p50;
    *iterations = counts[BY_TUTTI] * ROUNDS;
    return true;
}

/* Beside other load an operation can take a thousand times as long as in the warm-up. So the
 * operations that the warm-up has planned come in parts, and after most_row_seconds none begins. */
static bool time_place(struct measure *base, struct bench_timing *timing, int *iterations)
{
    struct cpu_measure *measure = of(base);
    double each;
    if (base->config->vs_mpi && !check_mpi(base))
        return false;
    if (measure->has_mpi)
        return time_beside(base, timing, iterations);
    if (bench_collective(base->config)->data)
        prepare(measure);
    bool ok = warm_up(measure, iterations, &each);
    int batch = batch_of(base->config, base->row, *iterations);
    int done = 0, next = base->config->iterations ? *iterations : LEAST_ITERATIONS;
    size_t samples = 0;
    double spent_us = 0;
    while (next > 0 && ok) {
        ok = time_batches(measure, batch, next, &samples, &spent_us);
        done += next;
        int left = *iterations - done;
        next = left < done ? left : done;
        if (spent_us > most_row_seconds * 1e6)
            next = 0;
        ok = ok && (left <= 0 || measure_agree(base, &next));
    }
    if (!ok)
        return false;
    *iterations = done;
    struct stats stats = stats_of(measure->samples, samples);
    timing->mean_us = spent_us / done;
    timing->own_us = timing->mean_us;
    timing->p50_us = stats.p50;
    timing->p99_us = stats.p99;
    /* A rank that goes on to compute could take the core of a rank that has not yet seen the end of
     * its last operation. */
    return meet(base);
}

/* ---- where the cores are --------------------------------------------------------------------- */

/* Measures rank 0's round trip to the farthest rank; 0: unknown. All ranks call it. */
static double probe(const struct measure *base)
{
    static const double wait_seconds = 2;
    struct ping *pings = base->self->shared->pings;
    int rank = base->self->rank;
    if (!base->config->placement.bound)
        return 0;
    if (rank != 0) {
        ping_round_trip_ns(&pings[rank], 1, wait_seconds);
        return 0;
    }
    double farthest = 0;
    for (int peer = 1; peer < base->config->ranks; peer++) {
        double ns = ping_round_trip_ns(&pings[peer], 0, wait_seconds);
        if (ns < 0)
            return 0;
        farthest = ns > farthest ? ns : farthest;
    }
    return farthest;
}

/* ---- a row, a rank --------------------------------------------------------------------------- */

static bool begin_row(struct measure *base, const struct bench_row *row,
                      struct bench_record *record)
{
    struct cpu_measure *measure = of(base);
    const struct collective *collective = bench_collective(base->config);
    const int ranks = base->config->ranks;
    const size_t block = row->count * tutti_dtype_size(row->dtype);
    record->round_trip_ns = probe(base);
    buffers_shape(&measure->buffers, block * (size_t)collective_send_blocks(collective, ranks),
                  block * (size_t)collective_recv_blocks(collective, ranks));
    return measure_counts(base);
}

static bool end_row(struct measure *base, struct bench_record *record)
{
    const double before = record->round_trip_ns, after = probe(base);
    record->round_trip_ns = before > 0 && after > 0 ? (before > after ? before : after) : 0;
    record->moved = (before < PING_NEAR_NS) != (after < PING_NEAR_NS);
    return true;
}

/* The ranks are bound before the library has threads and memory. A launcher's rank names its host.
 */
static bool bind(struct measure *base, struct bench_record *ready)
{
    const char *host = getenv("TUTTI_HOST_ID");
    if (base->config->launched.size && host && *host)
        snprintf(ready->device, sizeof ready->device, "%s", host);
    else if (base->config->launched.size)
        gethostname(ready->device, sizeof ready->device - 1);
    return placement_bind(&base->config->placement, base->self->rank) ||
           measure_fail(base, TUTTI_ERR_SYSTEM, "%s", tutti_last_error());
}

static bool allocate(struct measure *base, struct bench_record *ready)
{
    struct cpu_measure *measure = of(base);
    const int iterations = base->config->iterations;
    const size_t samples = (size_t)(iterations > MOST_ITERATIONS ? iterations : MOST_ITERATIONS);
    (void)ready;
    measure->samples = malloc(samples * sizeof *measure->samples);
    if (!measure->samples)
        return measure_fail(base, TUTTI_ERR_NO_MEMORY, "no memory");
    return buffers_init(&measure->buffers, base);
}

static void release(struct measure *base)
{
    buffers_fini(&of(base)->buffers);
    free(of(base)->samples);
}

const struct bench_engine bench_cpu = {
    .bytes = sizeof(struct cpu_measure),
    .device = TUTTI_DEVICE_CPU,
    .open = bind,
    .allocate = allocate,
    .meet = meet,
    .begin = begin_row,
    .end = end_row,
    .check = check,
    .time = time_place,
    .release = release,
};
