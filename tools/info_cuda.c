/* SPDX-License-Identifier: MIT */
/*
 * The CUDA section of tutti info. A child process finds it out and hands it over as JSON: CUDA does
 * not survive a fork(), and a machine whose GPUs hang must not hang us.
 */
#include "gpu.h"
#include "info.h"
#include "reference.h"
#include "tool.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { DEVICES_MOST = 16, RANKS_MOST = 8, PATIENCE_S = 90, TIMEOUT_MS = 20000, ELEMENTS = 100003 };

/* ---- devices and links ----------------------------------------------------------------------- */

static json_t *describe_device(int ordinal, const struct gpu_facts *facts)
{
    return json_pack("{s:i, s:s, s:s, s:s, s:o, s:i, s:I, s:b}", "ordinal", ordinal, "name",
                     facts->name, "uuid", facts->uuid, "bus_id", facts->bus_id, "capability",
                     json_sprintf("%d.%d", facts->major, facts->minor), "multiprocessors",
                     facts->multiprocessors, "memory_bytes", (json_int_t)facts->memory_bytes,
                     "multicast", facts->multicast);
}

/* Each pair of devices whose links could be counted; a reason where they could not. */
static json_t *describe_links(const struct gpu_facts *facts, int count)
{
    const char *ids[DEVICES_MOST];
    int links[DEVICES_MOST * DEVICES_MOST];
    for (int i = 0; i < count; i++)
        ids[i] = facts[i].bus_id;
    if (tutti_info_links(ids, count, links))
        return json_string(tutti_last_error());
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
                                                gpu_try_peer(from, to) ? "ok" : gpu_error()));
    return array;
}

/* ---- a communicator -------------------------------------------------------------------------- */

/* Thread ranks of one trial; rank 0 describes it. */
struct trial {
    int ranks;
    json_t *description, *choices;
};

struct trial_rank {
    struct trial *trial;
    int rank;
    double setup_ms;
    bool same;
    enum tutti_status status;
    char message[512]; /* "" for success */
};

/* An all-reduce of device memory, compared with the reference. */
static bool reduce_and_check(struct trial_rank *self, tutti_comm_t *comm, char *table, float *data)
{
    struct reference reference = {
        .dtype = TUTTI_FLOAT32, .op = TUTTI_OP_SUM, .ranks = self->trial->ranks};
    const size_t bytes = ELEMENTS * sizeof *data;
    void *memory = gpu_alloc(bytes);
    reference_input(&reference, self->rank, table);
    reference_fill(data, ELEMENTS, sizeof *data, table);
    bool ok = memory && gpu_copy(memory, data, bytes);
    if (!ok)
        snprintf(self->message, sizeof self->message, "%s", gpu_error());
    if (ok)
        self->status = tutti_all_reduce(memory, memory, ELEMENTS, TUTTI_FLOAT32, TUTTI_SUM, comm,
                                        TUTTI_STREAM_PER_THREAD);
    ok = ok && !self->status && gpu_stream_synchronize(TUTTI_STREAM_PER_THREAD) &&
         !(self->status = tutti_comm_status(comm, NULL)) && gpu_copy(data, memory, bytes);
    reference_expected(&reference, table);
    self->same = ok && reference_differences(data, ELEMENTS, sizeof *data, table) == 0;
    gpu_free(memory);
    return ok;
}

static void *rank_main(void *argument)
{
    struct trial_rank *self = argument;
    struct tutti_comm_options options = {.struct_size = sizeof options,
                                         .name = "info",
                                         .device = TUTTI_DEVICE_CUDA,
                                         .timeout_ms = TIMEOUT_MS};
    tutti_store_t *store = NULL;
    tutti_comm_t *comm = NULL;
    char *table = malloc(REFERENCE_PERIOD * sizeof(float));
    float *data = malloc(ELEMENTS * sizeof *data);
    bool ok = table && data && gpu_bind(self->rank);
    double begin = clock_seconds();
    if (ok)
        self->status = tutti_store_open("memory:info-cuda", TIMEOUT_MS, &store);
    if (ok && !self->status)
        self->status = tutti_comm_create(store, self->rank, self->trial->ranks, &options, &comm);
    self->setup_ms = (clock_seconds() - begin) * 1e3;
    if (comm && self->rank == 0) {
        self->trial->description = describe_comm(comm);
        self->trial->choices = selftest_choices(comm, TUTTI_BFLOAT16);
    }
    if (comm)
        ok = reduce_and_check(self, comm, table, data);
    if (self->status)
        snprintf(self->message, sizeof self->message, "%s", tutti_last_error());
    else if (!ok && !*self->message)
        snprintf(self->message, sizeof self->message, "%s", gpu_error());
    tutti_comm_destroy(comm);
    tutti_store_close(store);
    free(data);
    free(table);
    return NULL;
}

static json_t *try_comm(int ranks)
{
    struct trial trial = {.ranks = ranks};
    struct trial_rank self[RANKS_MOST] = {{0}};
    pthread_t threads[RANKS_MOST];
    double setup_ms = 0;
    const char *result = "ok";
    for (int rank = 0; rank < ranks; rank++) {
        self[rank] = (struct trial_rank){.trial = &trial, .rank = rank};
        if (pthread_create(&threads[rank], NULL, rank_main, &self[rank]))
            return json_pack("{s:s, s:s}", "test", "threads", "result", "cannot start a thread");
    }
    for (int rank = 0; rank < ranks; rank++)
        pthread_join(threads[rank], NULL);
    for (int rank = ranks - 1; rank >= 0; rank--) {
        setup_ms = self[rank].setup_ms > setup_ms ? self[rank].setup_ms : setup_ms;
        if (*self[rank].message || !self[rank].same)
            result = *self[rank].message ? self[rank].message : "the result is wrong";
    }
    bool declined = self[0].status == TUTTI_ERR_DECLINED;
    json_t *object = json_pack("{s:o, s:s, s:b, s:f, s:o*, s:o*}", "test",
                               json_sprintf("all-reduce of %d threads", ranks), "result", result,
                               "declined", declined, "setup_ms", setup_ms, "describe",
                               trial.description, "choices", trial.choices);
    return object;
}

/* ---- symmetric memory ------------------------------------------------------------------------ */

struct symm_rank {
    int rank, ranks;
    enum tutti_status status;
    char message[512]; /* "" for success */
};

/* Writes to the right neighbour, meets the others, reads what the left one wrote. */
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
        self->status = tutti_symm_barrier(buffer, 0, TIMEOUT_MS, TUTTI_STREAM_PER_THREAD);
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

static void *symm_main(void *argument)
{
    struct symm_rank *self = argument;
    tutti_store_t *store = NULL;
    tutti_symm_group_t *group = NULL;
    void *buffer = NULL;
    bool ok = gpu_bind(self->rank);
    if (ok)
        self->status = tutti_store_open("memory:info-symm", TIMEOUT_MS, &store);
    if (store)
        self->status = tutti_symm_group("info", self->rank, self->ranks, store, &group);
    if (group)
        self->status = tutti_symm_alloc(group, TUTTI_DEVICE_CUDA, ELEMENTS, &buffer);
    if (buffer)
        self->status = tutti_symm_rendezvous(buffer, TIMEOUT_MS, NULL);
    if (buffer && !self->status)
        ok = pass_on(self, buffer);
    if (self->status)
        snprintf(self->message, sizeof self->message, "%s", tutti_last_error());
    else if (!ok && !*self->message)
        snprintf(self->message, sizeof self->message, "%s", gpu_error());
    tutti_symm_group_destroy(group);
    tutti_store_close(store);
    return NULL;
}

static json_t *try_symm(int ranks)
{
    struct symm_rank self[RANKS_MOST] = {{0}};
    pthread_t threads[RANKS_MOST];
    const char *result = "ok";
    for (int rank = 0; rank < ranks; rank++) {
        self[rank] = (struct symm_rank){.rank = rank, .ranks = ranks};
        if (pthread_create(&threads[rank], NULL, symm_main, &self[rank]))
            return json_pack("{s:s, s:s}", "test", "threads", "result", "cannot start a thread");
    }
    for (int rank = 0; rank < ranks; rank++)
        pthread_join(threads[rank], NULL);
    for (int rank = ranks - 1; rank >= 0; rank--)
        if (*self[rank].message)
            result = self[rank].message;
    return json_pack("{s:o, s:s, s:b}", "test",
                     json_sprintf("writes to peers, a barrier, %d threads", ranks), "result",
                     result, "declined", self[0].status == TUTTI_ERR_DECLINED);
}

/* ---- the child, the section ------------------------------------------------------------------ */

static json_t *look(void)
{
    struct gpu_facts facts[DEVICES_MOST];
    json_t *devices = json_array();
    if (!gpu_open())
        return json_pack("{s:s}", "missing", gpu_error());
    int version = gpu_driver_version(), count = gpu_count();
    count = count < DEVICES_MOST ? count : DEVICES_MOST;
    for (int i = 0; i < count; i++) {
        if (!gpu_facts(i, &facts[i]))
            return json_pack("{s:s}", "missing", gpu_error());
        json_array_append_new(devices, describe_device(i, &facts[i]));
    }
    json_t *section = json_pack("{s:o, s:o}", "driver",
                                json_sprintf("CUDA %d.%d", version / 1000, version % 1000 / 10),
                                "devices", devices);
    if (count < 2) {
        json_object_set_new(section, "missing", json_string("a second GPU: ranks need one each"));
        return section;
    }
    json_object_set_new(section, "nvlinks", describe_links(facts, count));
    json_object_set_new(section, "peers", try_peers(count));
    count = count < RANKS_MOST ? count : RANKS_MOST;
    json_object_set_new(section, "communicator", try_comm(count));
    json_object_set_new(section, "symmetric_memory", try_symm(count));
    return section;
}

static void child_main(int end)
{
    alarm(PATIENCE_S);
    json_t *section = look();
    char *text = json_dumps(section, 0);
    size_t length = text ? strlen(text) : 0;
    for (size_t done = 0; done < length;) {
        ssize_t part = write(end, text + done, length - done);
        if (part <= 0)
            _exit(1);
        done += (size_t)part;
    }
    _exit(0);
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

/* What a sound machine has not: peers that answer wrongly or not at all, though the driver calls
 * them within reach; a trial that fails where it is not declined. */
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
    return trial_failed(json_object_get(section, "communicator")) ||
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
    *failed |= section_failed(section);
    return section;
}
