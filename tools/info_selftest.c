/* SPDX-License-Identifier: MIT */
/* Tests stores and communicators, and measures distances and choices, in child processes that end
 * with the tool. */
#include "info.h"
#include "info_trial.h"
#include "ranks.h"
#include "results.h"
#include "tool.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

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
    enum tutti_status status = tutti_store_open(url, TRIAL_TIMEOUT_MS, &store);
    if (!status)
        status = tutti_store_set(store, key, "value", 5);
    if (!status)
        status = tutti_store_get(store, key, TRIAL_TIMEOUT_MS, value, sizeof value, &size);
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

struct distances {
    struct ping pings[TUTTI_MAX_RANKS];
    struct placement placement;
    int ranks;
    double round_trip_ns[TUTTI_MAX_RANKS];
};

static int distance_main(int rank, const char *start, void *context)
{
    static const double wait_seconds = 2;
    struct distances *distances = context;
    (void)start;
    if (!placement_bind(&distances->placement, rank))
        return TOOL_FAILED;
    if (rank > 0)
        ping_round_trip_ns(&distances->pings[rank], 1, wait_seconds * distances->ranks);
    for (int peer = 1; rank == 0 && peer < distances->ranks; peer++)
        distances->round_trip_ns[peer] =
            ping_round_trip_ns(&distances->pings[peer], 0, wait_seconds);
    return TOOL_OK;
}

/* Forks a rank for each core, and waits until all have ended. */
static bool measure_distances(struct distances *distances)
{
    struct ranks ranks;
    if (!placement_make(&distances->placement, 1, true))
        return false;
    const int cores = distances->placement.cores;
    distances->ranks = cores < TUTTI_MAX_RANKS ? cores : TUTTI_MAX_RANKS;
    if (!placement_make(&distances->placement, distances->ranks, true) ||
        !ranks_fork(&ranks, distances->ranks, distance_main, distances))
        return false;
    bool ok = ranks_start(&ranks, "");
    if (ok)
        ranks_await(&ranks);
    ranks_end(&ranks);
    return ok;
}

json_t *selftest_distances(void)
{
    json_t *results = json_array();
    const int flags = MAP_SHARED | MAP_ANONYMOUS;
    struct distances *distances =
        mmap(NULL, sizeof *distances, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (distances == MAP_FAILED) {
        tool_fail_errno("cannot map memory for the self-test");
        return results;
    }
    if (measure_distances(distances))
        for (int peer = 1; peer < distances->ranks; peer++)
            if (distances->round_trip_ns[peer] > 0)
                json_array_append_new(results,
                                      json_pack("{s:i, s:i, s:f, s:s}", "from_cpu",
                                                distances->placement.cpus[0], "to_cpu",
                                                distances->placement.cpus[peer], "round_trip_ns",
                                                distances->round_trip_ns[peer], "distance",
                                                ping_name(distances->round_trip_ns[peer])));
    munmap(distances, sizeof *distances);
    return results;
}

/* ---- communicators --------------------------------------------------------------------------- */

static void add_comm(json_t *results, int ranks, bool threads, bool *failed)
{
    struct trial *trial = trial_run(ranks, threads, false);
    *failed |= !trial || trial->wrong || (*trial->message && trial->status != TUTTI_ERR_DECLINED);
    if (trial)
        json_array_append_new(results, trial_result(trial));
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
    json_t *object = json_pack("{s:i}", "ranks", trial->config.ranks);
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
    json_object_set_new(object, "choices", trial_choices(trial, (enum tutti_dtype)dtype));
    json_decref(description);
    return object;
}

static void add_choices(json_t *results, int ranks, bool whole, bool *failed)
{
    bool done[TUTTI_DTYPE_COUNT] = {false};
    struct trial *trial = trial_run(ranks, true, true);
    if (!trial) {
        *failed = true;
        return;
    }
    for (int dtype = 0; dtype < (whole ? TUTTI_DTYPE_COUNT : 1); dtype++)
        if (!done[dtype])
            json_array_append_new(results, choices_of(trial, dtype, whole, done));
    if (!trial->choices[0] && trial->status != TUTTI_ERR_DECLINED)
        *failed = !tool_fail("no choices among %d ranks: %s", ranks, trial->message);
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
