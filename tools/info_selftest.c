/* SPDX-License-Identifier: MIT */
/* Tests stores and communicators, and measures distances and choices, in child processes that end
 * with the tool. */
#include "info.h"
#include "json_text.h"
#include "ping.h"
#include "place.h"
#include "ranks.h"
#include "reference_table.h"
#include "threads.h"
#include "tool.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { TIMEOUT_MS = 20000, CHOICES = 32, ELEMENTS = 10000, DESCRIPTION_BYTES = 64 * 1024 };

struct choice {
    size_t from_bytes, to_bytes;
    enum tutti_algo algo;
    char reason[256];
};

/* The results of one trial's ranks, in memory that they share with the parent. */
struct trial {
    struct ping pings[TUTTI_MAX_RANKS];
    struct placement placement;
    int ranks;
    bool threads;
    bool choose; /* fill `choices` instead of reducing */
    double round_trip_ns[TUTTI_MAX_RANKS];
    double setup_ms[TUTTI_MAX_RANKS];
    bool passed[TUTTI_MAX_RANKS], declined[TUTTI_MAX_RANKS];
    char message[TUTTI_MAX_RANKS][512];
    int choices[TUTTI_DTYPE_COUNT];
    struct choice choice[TUTTI_DTYPE_COUNT][CHOICES];
    char description[DESCRIPTION_BYTES]; /* JSON */
};

/* ---- trials ---------------------------------------------------------------------------------- */

static struct trial *trial_create(int ranks, bool threads)
{
    void *memory =
        mmap(NULL, sizeof(struct trial), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        tool_fail_errno("cannot map memory for the self-test");
        return NULL;
    }
    struct trial *trial = memory;
    trial->ranks = ranks;
    trial->threads = threads;
    for (int rank = 0; rank < ranks; rank++)
        snprintf(trial->message[rank], sizeof trial->message[0], "rank %d ended early", rank);
    if (place_ranks(&trial->placement, ranks, true))
        return trial;
    munmap(memory, sizeof *trial);
    return NULL;
}

static void trial_destroy(struct trial *trial)
{
    munmap(trial, sizeof *trial);
}

/* Forks the ranks (threads: one process for all), starts them, and waits until all have ended.
 * Every wait in the ranks has a deadline. */
static bool trial_run(struct trial *trial, ranks_fn *fn)
{
    struct ranks ranks;
    tutti_store_t *store = NULL;
    if (!ranks_fork(&ranks, trial->threads ? 1 : trial->ranks, fn, trial))
        return false;
    bool ok = trial->threads ||
              tutti_store_open("tcp://127.0.0.1:0?server=1", TIMEOUT_MS, &store) == TUTTI_OK;
    if (!ok)
        tool_fail("the self-test's store: %s", tutti_last_error());
    ok = ok && ranks_start(&ranks, store ? tutti_store_url(store) : "memory:info");
    if (ok)
        ranks_await(&ranks);
    ranks_end(&ranks);
    tutti_store_close(store);
    return ok;
}

/* ---- stores ---------------------------------------------------------------------------------- */

/* Returns NULL, or what went wrong. */
static const char *try_store(const char *url)
{
    static char wrong[600];
    tutti_store_t *store = NULL;
    const char *key = "key";
    char value[8] = "";
    size_t size = 0;
    int64_t sum = 0;
    bool exists = false, deleted = false;
    enum tutti_status status = tutti_store_open(url, TIMEOUT_MS, &store);
    if (!status)
        status = tutti_store_set(store, key, "value", 5);
    if (!status)
        status = tutti_store_get(store, key, TIMEOUT_MS, value, sizeof value, &size);
    if (!status)
        status = tutti_store_add(store, "sum", 20, &sum);
    if (!status)
        status = tutti_store_add(store, "sum", 22, &sum);
    if (!status)
        status = tutti_store_delete(store, key, &deleted);
    if (!status)
        status = tutti_store_check(store, &key, 1, &exists);
    tutti_store_close(store);
    if (status)
        snprintf(wrong, sizeof wrong, "%s", tutti_last_error());
    else if (size != 5 || memcmp(value, "value", 5) != 0 || sum != 42 || !deleted || exists)
        snprintf(wrong, sizeof wrong, "a value came back changed");
    else
        return NULL;
    return wrong;
}

static const char *try_file_store(void)
{
    static char wrong[128];
    char path[] = "/tmp/tutti-info-XXXXXX", url[64];
    int file = mkostemp(path, O_CLOEXEC);
    if (file < 0) {
        snprintf(wrong, sizeof wrong, "cannot make a file in /tmp: %s", strerror(errno));
        return wrong;
    }
    close(file);
    snprintf(url, sizeof url, "file:%s", path);
    const char *result = try_store(url);
    unlink(path);
    return result;
}

/* If url is NULL, uses a store in a temporary file. */
static void add_store(json_t *results, const char *name, const char *url, bool *failed)
{
    double begin = clock_seconds();
    const char *wrong = url ? try_store(url) : try_file_store();
    double ms = (clock_seconds() - begin) * 1e3;
    if (wrong)
        *failed = true;
    json_array_append_new(results, json_pack("{s:s, s:o, s:f}", "test", name, "result",
                                             json_text(wrong ? wrong : "ok"), "ms", ms));
}

json_t *selftest_stores(bool *failed)
{
    json_t *results = json_array();
    add_store(results, "memory", "memory:info", failed);
    add_store(results, "tcp", "tcp://127.0.0.1:0?server=1", failed);
    add_store(results, "file", NULL, failed);
    return results;
}

/* ---- distances ------------------------------------------------------------------------------- */

static int distance_main(int rank, const char *start, void *context)
{
    static const double wait_seconds = 2;
    struct trial *trial = context;
    (void)start;
    if (!place_bind(&trial->placement, rank))
        return TOOL_FAILED;
    if (rank > 0)
        ping_round_trip_ns(&trial->pings[rank], 1, wait_seconds * trial->ranks);
    for (int peer = 1; rank == 0 && peer < trial->ranks; peer++)
        trial->round_trip_ns[peer] = ping_round_trip_ns(&trial->pings[peer], 0, wait_seconds);
    return TOOL_OK;
}

json_t *selftest_distances(void)
{
    json_t *results = json_array();
    struct trial *trial = trial_create(1, false);
    if (!trial)
        return results;
    int cores = trial->placement.cores;
    trial->ranks = cores < TUTTI_MAX_RANKS ? cores : TUTTI_MAX_RANKS;
    if (place_ranks(&trial->placement, trial->ranks, true) && trial_run(trial, distance_main))
        for (int peer = 1; peer < trial->ranks; peer++)
            if (trial->round_trip_ns[peer] > 0)
                json_array_append_new(
                    results, json_pack("{s:i, s:i, s:f, s:s}", "from_cpu", trial->placement.cpus[0],
                                       "to_cpu", trial->placement.cpus[peer], "round_trip_ns",
                                       trial->round_trip_ns[peer], "distance",
                                       ping_name(trial->round_trip_ns[peer])));
    trial_destroy(trial);
    return results;
}

/* ---- communicators --------------------------------------------------------------------------- */

static enum tutti_status reduce_and_check(tutti_comm_t *comm, int rank, int ranks, bool *same)
{
    enum tutti_status status = TUTTI_ERR_NO_MEMORY;
    struct reference reference = {.dtype = TUTTI_FLOAT32, .op = TUTTI_SUM, .ranks = ranks};
    float *table = malloc(REFERENCE_PERIOD * sizeof *table);
    float *data = malloc(ELEMENTS * sizeof *data);
    if (table && data) {
        reference_input(&reference, rank, table);
        reference_fill(data, ELEMENTS, sizeof *data, table);
        status = tutti_all_reduce(data, data, ELEMENTS, reference.dtype, TUTTI_SUM, comm,
                                  TUTTI_STREAM_DEFAULT);
        reference_expected(&reference, table);
        *same = reference_differences(data, ELEMENTS, sizeof *data, table) == 0;
    }
    free(table);
    free(data);
    return status;
}

static bool same_choice(tutti_comm_t *comm, enum tutti_dtype dtype, size_t count,
                        const struct choice *choice)
{
    enum tutti_algo algo = TUTTI_ALGO_NONE;
    const char *reason = "";
    tutti_comm_algorithm(comm, count, dtype, TUTTI_SUM, NULL, &algo, &reason);
    return algo == choice->algo && strcmp(reason, choice->reason) == 0;
}

/* Finds the sizes at which the choice changes: doubles the size until it does, then halves the
 * step. Returns the number of choices. */
static int list_choices(tutti_comm_t *comm, enum tutti_dtype dtype, struct choice *choices)
{
    const size_t width = tutti_dtype_size(dtype), most = ((size_t)1 << 32) / width;
    size_t first = 1;
    int count = 0;
    while (first <= most && count < CHOICES) {
        struct choice *choice = &choices[count++];
        const char *reason = "";
        tutti_comm_algorithm(comm, first, dtype, TUTTI_SUM, NULL, &choice->algo, &reason);
        snprintf(choice->reason, sizeof choice->reason, "%s", reason);
        size_t last = first, step = first;
        while (last < most && same_choice(comm, dtype, last + step, choice)) {
            last += step;
            step = last;
        }
        for (; step > 0 && last < most; step /= 2)
            if (same_choice(comm, dtype, last + step, choice))
                last += step;
        choice->from_bytes = first * width;
        choice->to_bytes = last < most ? last * width : 0;
        first = last + 1;
    }
    return count;
}

static json_t *describe_choices(const struct choice *choices, int count)
{
    json_t *array = json_array();
    for (int i = 0; i < count; i++)
        json_array_append_new(
            array, json_pack("{s:I, s:o, s:s, s:s}", "from_bytes",
                             (json_int_t)choices[i].from_bytes, "to_bytes",
                             choices[i].to_bytes ? json_integer((json_int_t)choices[i].to_bytes)
                                                 : json_string("any"),
                             "algo", tutti_algo_name(choices[i].algo), "why", choices[i].reason));
    return array;
}

json_t *selftest_choices(tutti_comm_t *comm, enum tutti_dtype dtype)
{
    struct choice choices[CHOICES];
    return describe_choices(choices, list_choices(comm, dtype, choices));
}

/* Fills the choices for every dtype, and the description of the links. */
static void note_choices(tutti_comm_t *comm, struct trial *trial)
{
    json_t *description = describe_comm(comm);
    for (int dtype = 0; dtype < TUTTI_DTYPE_COUNT; dtype++)
        trial->choices[dtype] = list_choices(comm, (enum tutti_dtype)dtype, trial->choice[dtype]);
    json_dumpb(description, trial->description, sizeof trial->description - 1, 0);
    json_decref(description);
}

struct trial_rank {
    struct trial *trial;
    const char *url;
    int rank;
};

static bool comm_rank(void *context)
{
    const struct trial_rank *self = context;
    struct trial *trial = self->trial;
    struct tutti_comm_options options = {
        .struct_size = sizeof options, .name = "info", .timeout_ms = TIMEOUT_MS};
    tutti_store_t *store = NULL;
    tutti_comm_t *comm = NULL;
    bool same = true;
    double begin = clock_seconds();
    place_bind(&trial->placement, self->rank);
    enum tutti_status status = tutti_store_open(self->url, TIMEOUT_MS, &store);
    if (!status)
        status = tutti_comm_create(store, self->rank, trial->ranks, &options, &comm);
    trial->setup_ms[self->rank] = (clock_seconds() - begin) * 1e3;
    if (!status && trial->choose && self->rank == 0)
        note_choices(comm, trial);
    if (!status && !trial->choose)
        status = reduce_and_check(comm, self->rank, trial->ranks, &same);
    if (!status)
        status = tutti_barrier(comm, NULL, 0, TUTTI_STREAM_DEFAULT);
    snprintf(trial->message[self->rank], sizeof trial->message[0], "%s",
             status ? tutti_last_error() : "");
    trial->passed[self->rank] = !status && same;
    trial->declined[self->rank] = status == TUTTI_ERR_DECLINED;
    tutti_comm_destroy(comm);
    tutti_store_close(store);
    return trial->passed[self->rank];
}

static int comm_process(int rank, const char *url, void *context)
{
    struct trial_rank self = {context, url, rank};
    return comm_rank(&self) ? TOOL_OK : TOOL_FAILED;
}

static int comm_threads(int index, const char *url, void *context)
{
    struct trial *trial = context;
    struct trial_rank self[TUTTI_MAX_RANKS];
    (void)index;
    for (int rank = 0; rank < trial->ranks; rank++)
        self[rank] = (struct trial_rank){trial, url, rank};
    int good = threads_run(trial->ranks, comm_rank, self, sizeof *self);
    if (good < 0)
        snprintf(trial->message[0], sizeof trial->message[0], "cannot start %d threads: %s",
                 trial->ranks, strerror(errno));
    return good == trial->ranks ? TOOL_OK : TOOL_FAILED;
}

static json_t *comm_result(const struct trial *trial)
{
    double setup_ms = 0;
    const char *wrong = NULL;
    for (int rank = 0; rank < trial->ranks; rank++) {
        setup_ms = trial->setup_ms[rank] > setup_ms ? trial->setup_ms[rank] : setup_ms;
        if (!trial->passed[rank] && !wrong)
            wrong = *trial->message[rank] ? trial->message[rank] : "the result is wrong";
    }
    return json_pack(
        "{s:o, s:o, s:f}", "test",
        json_sprintf("all-reduce of %d %s", trial->ranks, trial->threads ? "threads" : "processes"),
        "result", json_text(wrong ? wrong : "ok"), "setup_ms", setup_ms);
}

static void add_comm(json_t *results, int ranks, bool threads, bool *failed)
{
    struct trial *trial = trial_create(ranks, threads);
    if (!trial || !trial_run(trial, threads ? comm_threads : comm_process))
        *failed = true;
    if (!trial)
        return;
    for (int rank = 0; rank < ranks; rank++)
        *failed |= !trial->passed[rank] && !trial->declined[rank];
    json_array_append_new(results, comm_result(trial));
    trial_destroy(trial);
}

json_t *selftest_comms(int ranks, bool *failed)
{
    json_t *results = json_array();
    for (int threads = 1; threads >= 0; threads--) {
        if (ranks == 2 || !has_topology_file())
            add_comm(results, 2, threads, failed);
        if (ranks != 2)
            add_comm(results, ranks, threads, failed);
    }
    return results;
}

/* ---- algorithms ------------------------------------------------------------------------------ */

bool has_topology_file(void)
{
    const char *path = getenv("TUTTI_TOPOLOGY_FILE");
    return path && *path;
}

static bool same_choices(const struct trial *trial, int a, int b)
{
    if (trial->choices[a] != trial->choices[b])
        return false;
    for (int i = 0; i < trial->choices[a]; i++) {
        const struct choice *one = &trial->choice[a][i], *other = &trial->choice[b][i];
        /* Sizes are multiples of the element's. */
        if (one->algo != other->algo || strcmp(one->reason, other->reason) != 0 ||
            one->to_bytes / sizeof(double) != other->to_bytes / sizeof(double))
            return false;
    }
    return true;
}

/* The choices for a dtype and for all later dtypes with the same choices, which are removed from
 * the list. */
static json_t *choices_of(const struct trial *trial, int dtype, bool whole, bool *done)
{
    json_error_t error;
    json_t *object = json_pack("{s:i}", "ranks", trial->ranks);
    json_t *description = json_loads(trial->description, 0, &error);
    static const char *const keys[] = {"topology", "topology_reason", "topology_source", "links"};
    char names[256] = "";
    for (int other = dtype; other < TUTTI_DTYPE_COUNT; other++) {
        if (done[other] || !same_choices(trial, dtype, other) || (!whole && other != dtype))
            continue;
        done[other] = true;
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", *names ? " " : "",
                 tutti_dtype_name((enum tutti_dtype)other));
    }
    json_object_set_new(object, "dtype", json_string(names));
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (json_object_get(description, keys[i]))
            json_object_set(object, keys[i], json_object_get(description, keys[i]));
    json_object_set_new(object, "choices",
                        describe_choices(trial->choice[dtype], trial->choices[dtype]));
    json_decref(description);
    return object;
}

static void add_choices(json_t *results, int ranks, bool whole, bool *failed)
{
    bool done[TUTTI_DTYPE_COUNT] = {false};
    struct trial *trial = trial_create(ranks, true);
    if (!trial) {
        *failed = true;
        return;
    }
    trial->choose = true;
    trial_run(trial, comm_threads);
    for (int dtype = 0; dtype < (whole ? TUTTI_DTYPE_COUNT : 1); dtype++)
        if (!done[dtype])
            json_array_append_new(results, choices_of(trial, dtype, whole, done));
    if (!trial->choices[0] && !trial->declined[0])
        *failed = !tool_fail("no choices among %d ranks: %s", ranks, trial->message[0]);
    trial_destroy(trial);
}

json_t *selftest_algorithms(int ranks, bool whole, bool *failed)
{
    json_t *results = json_array();
    for (int n = 2; n < (whole && ranks < 8 ? 9 : ranks + 1); n++)
        if (n == ranks || (!has_topology_file() && (whole || n == 2)))
            add_choices(results, n, whole, failed);
    return results;
}
