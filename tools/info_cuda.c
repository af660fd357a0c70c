/* SPDX-License-Identifier: MIT */
/*
 * The CUDA section of tutti info. A child process makes it and sends it as JSON, because CUDA does
 * not survive fork(), and because GPUs that hang must not hang the tool.
 */
#include "gpu.h"
#include "info.h"
#include "info_trial.h"
#include "ranks.h"
#include "results.h"
#include "tool.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { DEVICES_MOST = 16, ALARM_S = 90, ELEMENTS = 100003 };

/* ---- devices and links ----------------------------------------------------------------------- */

static json_t *describe_device(int ordinal, const struct gpu_facts *facts)
{
    return json_pack("{s:i, s:s, s:s, s:s, s:o, s:i, s:I, s:b}", "ordinal", ordinal, "name",
                     facts->name, "uuid", facts->uuid, "bus_id", facts->bus_id, "capability",
                     json_sprintf("%d.%d", facts->major, facts->minor), "multiprocessors",
                     facts->multiprocessors, "memory_bytes", (json_int_t)facts->memory_bytes,
                     "multicast", facts->multicast);
}

/* The links of each pair of devices, or the reason why they could not be counted. */
static json_t *describe_links(const struct gpu_facts *facts, int count)
{
    const char *ids[DEVICES_MOST];
    int links[DEVICES_MOST * DEVICES_MOST];
    for (int i = 0; i < count; i++)
        ids[i] = facts[i].bus_id;
    if (tutti_info_links(ids, count, links))
        return json_text(tutti_last_error());
    json_t *array = json_array();
    for (int from = 0; from < count; from++)
        for (int to = 0; to < count; to++)
            if (to != from)
                json_array_append_new(array, json_pack("{s:i, s:i, s:i}", "from", from, "to", to,
                                                       "links", links[from * count + to]));
    return array;
}

static json_t *try_peers(int count)
{
    json_t *array = json_array();
    for (int from = 0; from < count; from++)
        for (int to = 0; to < count; to++)
            if (to != from)
                json_array_append_new(array,
                                      json_pack("{s:i, s:i, s:s}", "from", from, "to", to, "result",
                                                gpu_try_peer(from, to) ? "ok" : library_error()));
    return array;
}

/* ---- symmetric memory ------------------------------------------------------------------------ */

struct symm_rank {
    int rank, ranks;
    enum tutti_status status;
    char message[512]; /* "" for success */
};

/* Writes to the right neighbour, waits for the others, reads what the left neighbour wrote. */
static bool pass_on(struct symm_rank *self, void *buffer)
{
    const int64_t shape[] = {ELEMENTS};
    int right = (self->rank + 1) % self->ranks, left = (self->rank + self->ranks - 1) % self->ranks;
    unsigned char *data = malloc(ELEMENTS);
    void *theirs = NULL;
    bool same = false;
    if (!data) {
        snprintf(self->message, sizeof self->message, "no memory");
        return false;
    }
    memset(data, 'a' + self->rank, ELEMENTS);
    self->status = tutti_symm_buffer(buffer, right, shape, 1, TUTTI_UINT8, 0, &theirs);
    bool ok = !self->status && gpu_copy(theirs, data, ELEMENTS);
    if (ok)
        self->status = tutti_symm_barrier(buffer, 0, TRIAL_TIMEOUT_MS, TUTTI_STREAM_PER_THREAD);
    ok = ok && !self->status && gpu_stream_synchronize(TUTTI_STREAM_PER_THREAD) &&
         !(self->status = tutti_symm_status(buffer, NULL)) && gpu_copy(data, buffer, ELEMENTS);
    for (int i = 0; i < ELEMENTS && ok; i++)
        same = data[i] == 'a' + left && (same || i == 0);
    if (ok && !same)
        snprintf(self->message, sizeof self->message, "rank %d reads other data than rank %d wrote",
                 self->rank, left);
    free(data);
    return ok;
}

static bool symm_main(void *argument)
{
    struct symm_rank *self = argument;
    tutti_store_t *store = NULL;
    tutti_symm_group_t *group = NULL;
    void *buffer = NULL;
    bool ok = gpu_bind(self->rank);
    if (ok)
        self->status = tutti_store_open("memory:info-symm", TRIAL_TIMEOUT_MS, &store);
    if (store)
        self->status = tutti_symm_group("info", self->rank, self->ranks, store, &group);
    if (group)
        self->status = tutti_symm_alloc(group, TUTTI_DEVICE_CUDA, ELEMENTS, &buffer);
    if (buffer)
        self->status = tutti_symm_rendezvous(buffer, TRIAL_TIMEOUT_MS, NULL);
    if (buffer && !self->status)
        ok = pass_on(self, buffer);
    if (self->status)
        snprintf(self->message, sizeof self->message, "%s", tutti_last_error());
    else if (!ok && !*self->message)
        snprintf(self->message, sizeof self->message, "%s", library_error());
    tutti_symm_group_destroy(group);
    tutti_store_close(store);
    return ok && !self->status;
}

static json_t *try_symm(int ranks)
{
    struct symm_rank self[BENCH_GPU_RANKS] = {{0}};
    const char *result = "ok";
    for (int rank = 0; rank < ranks; rank++)
        self[rank] = (struct symm_rank){.rank = rank, .ranks = ranks};
    if (threads_run(ranks, symm_main, self, sizeof *self) < 0)
        snprintf(self->message, sizeof self->message, "cannot start %d threads: %s", ranks,
                 strerror(errno));
    for (int rank = ranks - 1; rank >= 0; rank--)
        if (*self[rank].message)
            result = self[rank].message;
    return json_pack("{s:o, s:o, s:b}", "test",
                     json_sprintf("writes to peers, a barrier, %d threads", ranks), "result",
                     json_text(result), "declined", self[0].status == TUTTI_ERR_DECLINED);
}

/* ---- communicators ----------------------------------------------------------------------------
 */

static json_t *try_gpus(int ranks, bool threads, bool share, enum tutti_algo algo)
{
    struct trial *trial = trial_run_gpus(ranks, threads, share, algo);
    json_t *object = trial ? trial_result(trial) : NULL;
    trial_destroy(trial);
    return object;
}

static json_t *try_shared(void)
{
    if (has_topology_file()) /* it may be for another number of ranks */
        return json_array();
    if (!gpu_may_be_shared())
        return json_pack("[{s:s, s:s, s:b}]", "test", "two ranks on device 0", "result",
                         "refused unless TUTTI_ALLOW_OVERLAPPING_DEVICES is set", "declined", 1);
    return json_pack("[o, o]", try_gpus(2, true, true, TUTTI_ALGO_NONE),
                     try_gpus(2, false, true, TUTTI_ALGO_NONE));
}

/* Fills the members that the child has left null. */
static void try_all(json_t *section)
{
    const int devices = (int)json_array_size(json_object_get(section, "devices"));
    const int ranks = devices < BENCH_GPU_RANKS ? devices : BENCH_GPU_RANKS;
    if (json_object_get(section, "shared_device"))
        json_object_set_new(section, "shared_device", try_shared());
    if (!json_object_get(section, "communicator"))
        return;
    json_object_set_new(section, "communicator", try_gpus(ranks, true, false, TUTTI_ALGO_NONE));
    json_object_set_new(section, "host_staged",
                        try_gpus(ranks, true, false, TUTTI_ALGO_HOST_STAGED));
}

/* ---- the child, the section ------------------------------------------------------------------ */

/* The communicators are tried by the parent, since this process cannot fork ranks. */
static json_t *look(void)
{
    struct gpu_facts facts[DEVICES_MOST];
    json_t *devices = json_array();
    if (!gpu_open())
        return json_pack("{s:o}", "missing", json_text(library_error()));
    int version = gpu_driver_version(), count = gpu_count();
    count = count < DEVICES_MOST ? count : DEVICES_MOST;
    if (count == 0)
        return json_pack("{s:o}", "missing",
                         json_text(*library_error() ? library_error() : "there is no GPU"));
    for (int i = 0; i < count; i++) {
        if (!gpu_facts(i, &facts[i]))
            return json_pack("{s:o}", "missing", json_text(library_error()));
        json_array_append_new(devices, describe_device(i, &facts[i]));
    }
    json_t *section = json_pack("{s:o, s:o}", "driver",
                                json_sprintf("CUDA %d.%d", version / 1000, version % 1000 / 10),
                                "devices", devices);
    json_object_set_new(section, "shared_device", json_null());
    if (count < 2) {
        json_object_set_new(section, "missing", json_string("a second GPU: ranks need one each"));
        return section;
    }
    json_object_set_new(section, "nvlinks", describe_links(facts, count));
    json_object_set_new(section, "peers", try_peers(count));
    json_object_set_new(section, "communicator", json_null());
    json_object_set_new(section, "host_staged", json_null());
    json_object_set_new(section, "symmetric_memory",
                        try_symm(count < BENCH_GPU_RANKS ? count : BENCH_GPU_RANKS));
    return section;
}

static void child_main(int end)
{
    alarm(ALARM_S);
    FILE *file = fdopen(end, "w");
    json_t *section = look();
    _exit(!file || json_dumpf(section, file, 0) != 0 || fclose(file) != 0);
}

static bool is_ok(const json_t *object)
{
    const char *result = json_string_value(json_object_get(object, "result"));
    return result && strcmp(result, "ok") == 0;
}

static bool trial_failed(const json_t *trial)
{
    return trial && !is_ok(trial) && !json_is_true(json_object_get(trial, "declined"));
}

/* Finds the faults of a machine: peers that the driver reports as accessible but that answer
 * wrongly or not at all; trials that fail without being declined. */
static bool section_failed(const json_t *section)
{
    const json_t *peer;
    size_t index;
    json_array_foreach(json_object_get(section, "peers"), index, peer)
    {
        const char *result = json_string_value(json_object_get(peer, "result"));
        if (!is_ok(peer) && (!result || strncmp(result, "the driver says", 15) != 0))
            return true;
    }
    json_array_foreach(json_object_get(section, "shared_device"), index, peer)
    {
        if (trial_failed(peer))
            return true;
    }
    return trial_failed(json_object_get(section, "communicator")) ||
           trial_failed(json_object_get(section, "host_staged")) ||
           trial_failed(json_object_get(section, "symmetric_memory"));
}

json_t *describe_cuda(bool *failed)
{
    int ends[2];
    json_error_t error;
    if (pipe(ends) < 0)
        return json_pack("{s:s}", "missing", strerror(errno));
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        close(ends[0]);
        child_main(ends[1]);
    }
    close(ends[1]);
    FILE *file = fdopen(ends[0], "re");
    json_t *section = file && child > 0 ? json_loadf(file, 0, &error) : NULL;
    if (file)
        fclose(file);
    while (child > 0 && waitpid(child, NULL, 0) < 0 && errno == EINTR)
        ;
    if (!section) {
        *failed = true;
        return json_pack("{s:s}", "missing", "the process that looked for it ended early");
    }
    try_all(section);
    *failed |= section_failed(section);
    return section;
}
