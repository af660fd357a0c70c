/* SPDX-License-Identifier: MIT */
/* Starts the ranks of a measurement, gathers their records, and notices a rank that ends too early.
 */
#include "bench.h"
#include "ranks.h"
#include "tool.h"

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* The parent checks its children every LOOK_MS. After the first error it waits settle_seconds for
 * one nearer to the cause: the peers of a killed rank may report before the kernel does. */
enum { LOOK_MS = 100 };
static const double settle_seconds = 0.3, progress_seconds = 0.5;

struct bench {
    const struct bench_config *config;
    const struct bench_listener *listener;
    struct bench_shared *shared;
    bool begun;
    tutti_store_t *store;
    struct ranks ranks;
    int pipe[2];
    struct bench_record *records; /* of the current row, by rank */
    int received;                 /* records of this row so far */
    int rows_done;
    double row_began;
    bool progress; /* a progress line is on the terminal */

    double trouble_at; /* time of the first error; 0: none */
    struct bench_record error;
    char death[160]; /* how a rank failed */
    int dead;        /* the first rank, by number, that has failed so */
    bool killed;     /* a signal killed a rank: the errors of the others are its consequences */
};

/* ---- in the children ------------------------------------------------------------------------- */

static struct bench_rank rank_of(const struct bench *bench, int rank, const char *url)
{
    return (struct bench_rank){.config = bench->config,
                               .shared = bench->shared,
                               .store_url = url,
                               .rank = rank,
                               .pipe = bench->pipe[1]};
}

static int process_main(int index, const char *url, void *context)
{
    const struct bench *bench = context;
    const struct bench_rank self = rank_of(bench, index, url);
    close(bench->pipe[0]);
    alarm(bench->config->alarm_s);
    return bench_rank_run(&self) ? TOOL_OK : TOOL_FAILED;
}

static bool thread_main(void *rank)
{
    return bench_rank_run(rank);
}

static int threads_main(int index, const char *url, void *context)
{
    const struct bench *bench = context;
    struct bench_rank self[TUTTI_MAX_RANKS];
    const int ranks = bench->config->ranks;
    (void)index;
    close(bench->pipe[0]);
    alarm(bench->config->alarm_s);
    for (int rank = 0; rank < ranks; rank++)
        self[rank] = rank_of(bench, rank, url);
    int good = threads_run(ranks, thread_main, self, sizeof *self);
    if (good < 0)
        tool_fail_errno("cannot start %d threads", ranks);
    return good == ranks ? TOOL_OK : TOOL_FAILED;
}

/* ---- progress -------------------------------------------------------------------------------- */

static void clear_progress(struct bench *bench)
{
    if (bench->progress)
        fputs("\r\033[K", stderr);
    bench->progress = false;
}

static void show_progress(struct bench *bench)
{
    double elapsed = clock_seconds() - bench->row_began;
    if (!isatty(STDERR_FILENO) || bench->listener->failed || elapsed < progress_seconds ||
        bench->rows_done == bench->config->row_count)
        return;
    const struct bench_row *row = &bench->config->rows[bench->rows_done];
    char size[32];
    format_size(row->bytes, size, sizeof size);
    const char *op = bench_op_name(bench->config, row);
    fprintf(stderr, "\r\033[K[%d/%d] %s %s %s, %.0f s", bench->rows_done + 1,
            bench->config->row_count, size, tutti_dtype_name(row->dtype), op ? op : "", elapsed);
    bench->progress = true;
}

/* ---- records --------------------------------------------------------------------------------- */

static const char *placement_name(const struct bench_config *config,
                                  const struct bench_record *first)
{
    if (config->device == TUTTI_DEVICE_CUDA)
        return "gpu";
    if (config->launched.size)
        return "launched";
    if (config->ranks > config->placement.cores)
        return "oversubscribed";
    if (first->round_trip_ns <= 0)
        return config->ranks == 1 ? "near" : "unknown";
    return first->moved ? "moved" : ping_name(first->round_trip_ns);
}

/* Takes the times of the slowest rank, the wrong values of all ranks, and the spread of their
 * times. */
static void join_ranks(const struct bench_record *records, int ranks, int place,
                       struct bench_result *result)
{
    struct bench_timing *slowest = &result->timing[place];
    struct bench_spread *spread = &result->ranks[place];
    uint64_t wrong = 0, tuning_wrong[BENCH_TUNINGS] = {0};
    for (int rank = 0; rank < ranks; rank++) {
        const struct bench_timing *timing = &records[rank].timing[place];
        wrong += timing->wrong;
        for (int t = 0; t < BENCH_TUNINGS; t++)
            tuning_wrong[t] += timing->tuning_wrong[t];
        if (timing->mean_us >= slowest->mean_us)
            *slowest = *timing;
        spread->min_us = rank && spread->min_us < timing->own_us ? spread->min_us : timing->own_us;
        spread->max_us = spread->max_us > timing->own_us ? spread->max_us : timing->own_us;
        spread->mean_us += timing->own_us / ranks;
    }
    slowest->wrong = wrong;
    memcpy(slowest->tuning_wrong, tuning_wrong, sizeof tuning_wrong);
}

bool bench_pass_on(const struct bench_config *config, const struct bench_listener *listener,
                   const struct bench_record *records, int row)
{
    if (row < 0)
        return !listener->begin || listener->begin(listener->context, records);
    struct bench_result result = {
        .row = &config->rows[row],
        .algo = records[0].algo,
        .kernel = records[0].kernel,
        .placement = placement_name(config, &records[0]),
        .iterations = records[0].iterations,
    };
    for (int place = 0; place < BENCH_PLACES; place++)
        join_ranks(records, config->ranks, place, &result);
    return listener->row(listener->context, &result);
}

/* Called when all ranks have reported their set-up, or the same row. A barrier separates the rows,
 * so that the records of two rows never mix. */
static bool finish_round(struct bench *bench)
{
    clear_progress(bench);
    const bool ok = bench_pass_on(bench->config, bench->listener, bench->records,
                                  bench->begun ? bench->rows_done : -1);
    bench->rows_done += bench->begun;
    bench->begun = true;
    bench->received = 0;
    bench->row_began = clock_seconds();
    return ok;
}

static void note_trouble(struct bench *bench)
{
    if (bench->trouble_at == 0)
        bench->trouble_at = clock_seconds();
}

static bool take_record(struct bench *bench, const struct bench_record *record)
{
    if (record->kind == BENCH_ERROR) {
        note_trouble(bench);
        /* Keeps the first error that is not the consequence of another rank's end. */
        if (!bench->error.status || bench->error.status == TUTTI_ERR_PEER_DEAD)
            bench->error = *record;
        return true;
    }
    bench->records[record->rank] = *record;
    return ++bench->received < bench->config->ranks || finish_round(bench);
}

static bool read_records(struct bench *bench)
{
    struct bench_record record;
    while (read(bench->pipe[0], &record, sizeof record) == (ssize_t)sizeof record)
        if (!take_record(bench, &record))
            return false;
    return true;
}

/* ---- the watch ------------------------------------------------------------------------------- */

static void look_at_children(struct bench *bench)
{
    int status;
    for (int i = 0; i < bench->ranks.count; i++) {
        pid_t pid = bench->ranks.pids[i];
        if (!pid || waitpid(pid, &status, WNOHANG) != pid)
            continue;
        ranks_reaped(&bench->ranks, pid);
        if (status == 0)
            continue;
        note_trouble(bench);
        /* A rank that exits has reported why. A rank that was killed has not, so the parent reports
         * its death. */
        if (!*bench->death || (WIFSIGNALED(status) && !bench->killed)) {
            char how[96];
            ranks_describe_exit(status, how, sizeof how);
            snprintf(bench->death, sizeof bench->death, "%s %d (pid %d) %s",
                     bench->config->threads ? "the process of thread rank" : "rank", i, (int)pid,
                     how);
        }
        bench->dead = i < bench->dead ? i : bench->dead;
        bench->killed |= WIFSIGNALED(status);
    }
}

static bool report_trouble(struct bench *bench)
{
    const struct bench_record *error = &bench->error;
    const struct bench_listener *listener = bench->listener;
    clear_progress(bench);
    if (listener->failed && (bench->killed || !error->status))
        listener->failed(listener->context, bench->dead, TUTTI_OK, bench->death);
    else if (listener->failed)
        listener->failed(listener->context, error->rank, error->status, error->message);
    if (listener->failed)
        return false;
    if (bench->killed || !error->status)
        return tool_fail("%s", bench->death);
    return tool_fail("rank %d: %s: %s", error->rank, tutti_status_name(error->status),
                     error->message);
}

/* Returns when all ranks have ended. False, after a message, as soon as one has failed. */
static bool watch(struct bench *bench)
{
    struct pollfd readable = {.fd = bench->pipe[0], .events = POLLIN};
    bench->row_began = clock_seconds();
    while (bench->ranks.running > 0) {
        poll(&readable, 1, LOOK_MS);
        look_at_children(bench);
        if (!read_records(bench))
            return false;
        if (bench->trouble_at > 0 && clock_seconds() > bench->trouble_at + settle_seconds)
            return report_trouble(bench);
        show_progress(bench);
        if (readable.revents & POLLHUP)
            poll(NULL, 0, 1); /* the ranks have closed the pipe and are about to end */
    }
    return bench->trouble_at > 0 ? report_trouble(bench) : true;
}

/* ---- start and end --------------------------------------------------------------------------- */

static bool prepare(struct bench *bench)
{
    bench->records = calloc((size_t)bench->config->ranks, sizeof *bench->records);
    if (!bench->records)
        return tool_fail("no memory for the ranks' records");
    void *shared = mmap(NULL, sizeof *bench->shared, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return tool_fail_errno("cannot map memory for the ranks");
    bench->shared = shared;
    if (pipe2(bench->pipe, O_CLOEXEC) < 0)
        return tool_fail_errno("cannot make a pipe");
    /* Only the parent's end is non-blocking. */
    fcntl(bench->pipe[0], F_SETFL, O_NONBLOCK);
    return true;
}

/* Processes meet at a store of the parent, which outlives every rank. Threads meet in memory. */
static bool start(struct bench *bench)
{
    bool threads = bench->config->threads;
    if (!ranks_fork(&bench->ranks, threads ? 1 : bench->config->ranks,
                    threads ? threads_main : process_main, bench))
        return false;
    close(bench->pipe[1]);
    bench->pipe[1] = -1;
    if (threads)
        return ranks_start(&bench->ranks, "memory:bench");
    if (tutti_store_open("tcp://127.0.0.1:0?server=1", bench->config->timeout_ms, &bench->store))
        return tool_fail("%s", tutti_last_error());
    return ranks_start(&bench->ranks, tutti_store_url(bench->store));
}

static void finish(struct bench *bench)
{
    ranks_end(&bench->ranks);
    tutti_store_close(bench->store);
    for (int i = 0; i < 2; i++)
        if (bench->pipe[i] >= 0)
            close(bench->pipe[i]);
    if (bench->shared)
        munmap(bench->shared, sizeof *bench->shared);
    free(bench->records);
}

bool bench_run(const struct bench_config *config, const struct bench_listener *listener)
{
    struct bench bench = {
        .config = config, .listener = listener, .pipe = {-1, -1}, .dead = TUTTI_MAX_RANKS};
    bool ok = prepare(&bench) && start(&bench) && watch(&bench);
    finish(&bench);
    return ok && (!listener->end || listener->end(listener->context));
}
