/* SPDX-License-Identifier: MIT */
/*
 * Dumps of ranks of which one misbehaves, and what `tutti diagnose` makes of them: that rank, and
 * the operation. Dumps come of the failure itself, from outside while ranks wait, and of a rank
 * that is stopped; of GPUs also those that have replays, which no host sees.
 *
 * usage: test_dump threads|processes
 */
#include "../tools/collective_call.h"
#include "../tools/gpu.h"
#include "base/record_path.h"
#include "device.h"
#include "diagnose.h"
#include "dump.h"
#include "pg.h"
#include "tutti/recorder.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { SIZE = 3, VICTIM = 1, BEFORE = 2, AT = BEFORE + 1, PATIENCE_MS = 400 };
enum { READY, DONE, JOINED, CAPTURED }; /* flags */

static char folder[] = "/tmp/tutti-dumps-XXXXXX";

/* ---- dumps ----------------------------------------------------------------------------------- */

struct dumps {
    struct dump all[2 * SIZE];
    struct dump *members[2 * SIZE];
    size_t count;
    bool sound; /* all files were dumps */
};

static char *text_read(const char *path, size_t *bytes)
{
    enum { MOST = 1 << 20 };
    char *text = malloc(MOST);
    FILE *file = fopen(path, "re");
    if (!text || !file)
        abort();
    *bytes = fread(text, 1, MOST, file);
    fclose(file);
    return text;
}

/* Reads and removes what lies in the folder. */
static void dumps_take(struct dumps *dumps)
{
    const struct dirent *entry;
    DIR *stream = opendir(folder);
    *dumps = (struct dumps){.sound = stream != NULL};
    while (stream && (entry = readdir(stream)) != NULL) {
        char path[512], problem[256];
        size_t bytes;
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        char *text = text_read(path, &bytes);
        unlink(path);
        struct dump *dump = &dumps->all[dumps->count];
        if (dumps->count < 2 * SIZE && dump_parse(text, bytes, dump, problem, sizeof problem)) {
            dumps->members[dumps->count++] = dump;
        } else {
            fprintf(stderr, "%s: %s\n", path, problem);
            dumps->sound = false;
        }
        free(text);
    }
    if (stream)
        closedir(stream);
}

static void dumps_free(struct dumps *dumps)
{
    for (size_t i = 0; i < dumps->count; i++)
        dump_free(&dumps->all[i]);
}

/* Whether the dumps in the folder, of so many ranks, blame the victim, for this and in that
 * operation, and nobody else. */
static bool blame(size_t ranks, enum culprit_reason reason, int64_t lane, int64_t sequence)
{
    struct dumps dumps;
    struct verdict verdict = {0};
    const struct culprit *culprit = &verdict.culprits[0];
    dumps_take(&dumps);
    bool good = dumps.sound && dumps.count == ranks &&
                diagnose_judge(dumps.members, dumps.count, &verdict) && verdict.count == 1 &&
                culprit->rank == VICTIM && culprit->reason == reason && culprit->lane == lane &&
                culprit->sequence == sequence;
    dumps_free(&dumps);
    return good;
}

/* Says more than blame() where it is the last word. */
static int expect(const char *what, size_t ranks, enum culprit_reason reason, int64_t sequence)
{
    if (blame(ranks, reason, DIAGNOSE_CALLS, sequence))
        return 0;
    fprintf(stderr, "%s: expected %zu dumps that blame rank %d alone: %s\n", what, ranks, VICTIM,
            culprit_reason_text(reason));
    return 1;
}

/* Writes a page to the file in which the rank's own dump would be, and counts it. */
static bool page_write(void *context, const struct record_page *page)
{
    char path[256];
    json_t *root = dump_page_to_json(page);
    bool written =
        record_path(folder, ".raw", page, path, sizeof path) && json_dump_file(root, path, 0) == 0;
    json_decref(root);
    *(int *)context += written;
    return written;
}

/* Dumps all ranks from outside, or, if they are threads, their one process. */
static bool dump_all(const struct ranks *ranks)
{
    int total = 0;
    for (int r = 0; r < (ranks->processes ? ranks->size : 1); r++) {
        int pid = ranks->processes ? ranks->pids[r] : getpid();
        if (!dump_read_process(pid, page_write, &total))
            return false;
    }
    return total == ranks->size;
}

/* ---- ranks ----------------------------------------------------------------------------------- */

/* What all ranks call. */
static enum tutti_collective called = TUTTI_COLLECTIVE_ALL_REDUCE;

static enum tutti_status call(tutti_comm_t *comm, size_t count, int64_t timeout_ms)
{
    float send[8 * SIZE] = {1}, recv[8 * SIZE];
    const size_t counts[SIZE] = {count, count, count};
    const struct tutti_call_options options = {.struct_size = sizeof options,
                                               .timeout_ms = timeout_ms};
    return collective_call(called, send, recv, counts, TUTTI_FLOAT32, TUTTI_SUM, 0, comm, &options);
}

static int join(struct ranks *ranks, int rank, tutti_store_t *store, tutti_comm_t **comm)
{
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, comm) == TUTTI_OK);
    for (int i = 0; i < BEFORE; i++)
        RANKS_CHECK(call(*comm, 4, 0) == TUTTI_OK);
    /* On a device a rank asks for faults behind an operation, and may find that of the next one. */
    ranks_raise(ranks, JOINED);
    RANKS_CHECK(ranks_await(ranks, JOINED, (uint32_t)ranks->size));
    return 0;
}

static int part(struct ranks *ranks, tutti_comm_t *comm, int failed)
{
    ranks_raise(ranks, DONE);
    ranks_await(ranks, DONE, (uint32_t)ranks->size);
    tutti_comm_destroy(comm);
    return failed;
}

/* The victim, while the others wait for it, has all of them dumped until these say so. */
static bool dump_until(struct ranks *ranks, int64_t lane, int64_t sequence)
{
    for (int i = 0; i < RANKS_TIMEOUT_MS / 20; i++) {
        if (!dump_all(ranks))
            return false;
        if (blame((size_t)ranks->size, CULPRIT_BEHIND, lane, sequence))
            return true;
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    }
    return false;
}

/* Another count, once the others are inside: who comes later finds a communicator that has failed,
 * and tells nothing. Who fails dumps by itself. */
static int count(struct ranks *ranks, int rank, tutti_store_t *store)
{
    tutti_comm_t *comm;
    int failed = join(ranks, rank, store, &comm);
    if (failed)
        return failed;
    if (rank == VICTIM)
        RANKS_CHECK(dump_until(ranks, DIAGNOSE_CALLS, AT));
    RANKS_CHECK(call(comm, rank == VICTIM ? 5 : 4, 0) == TUTTI_ERR_MISMATCH);
    return part(ranks, comm, 0);
}

/* Another order. */
static int order(struct ranks *ranks, int rank, tutti_store_t *store)
{
    tutti_comm_t *comm;
    int failed = join(ranks, rank, store, &comm);
    if (failed)
        return failed;
    if (rank == VICTIM)
        RANKS_CHECK(dump_until(ranks, DIAGNOSE_CALLS, AT));
    enum tutti_status status =
        rank == VICTIM ? tutti_barrier(comm, NULL, 0, TUTTI_STREAM_DEFAULT) : call(comm, 4, 0);
    RANKS_CHECK(status == TUTTI_ERR_MISMATCH);
    return part(ranks, comm, 0);
}

/* Leaves, or is killed. The others notice in the operation in which they need it. */
static int leave(struct ranks *ranks, int rank, tutti_store_t *store)
{
    tutti_comm_t *comm;
    int failed = join(ranks, rank, store, &comm);
    if (failed)
        return failed;
    if (rank == VICTIM && ranks->expendable)
        raise(SIGKILL);
    if (rank == VICTIM) {
        tutti_comm_destroy(comm);
        return 0;
    }
    RANKS_CHECK(call(comm, 4, 0) == TUTTI_ERR_PEER_DEAD);
    tutti_comm_destroy(comm);
    return 0;
}

/* Stops; the others time out. The last of them has it dumped before it goes on. */
static int stop(struct ranks *ranks, int rank, tutti_store_t *store)
{
    tutti_comm_t *comm;
    int number = 0;
    int failed = join(ranks, rank, store, &comm);
    if (failed)
        return failed;
    if (rank == VICTIM) {
        raise(SIGSTOP);
        return part(ranks, comm, 0);
    }
    RANKS_CHECK(call(comm, 4, PATIENCE_MS) == TUTTI_ERR_TIMEOUT);
    ranks_raise(ranks, READY);
    RANKS_CHECK(ranks_await(ranks, READY, SIZE - 1));
    if (rank == 0) {
        RANKS_CHECK(dump_read_process(ranks->pids[VICTIM], page_write, &number));
        RANKS_CHECK(number == 1);
        kill(ranks->pids[VICTIM], SIGCONT);
    }
    return part(ranks, comm, 0);
}

/* Comes late: meanwhile nothing has failed, and nothing fails later. */
static int hang(struct ranks *ranks, int rank, tutti_store_t *store)
{
    tutti_comm_t *comm;
    int failed = join(ranks, rank, store, &comm);
    if (failed)
        return failed;
    if (rank == VICTIM)
        RANKS_CHECK(dump_until(ranks, DIAGNOSE_CALLS, AT));
    RANKS_CHECK(call(comm, 4, 0) == TUTTI_OK);
    return part(ranks, comm, 0);
}

/* Does not submit what the others have submitted, under one of two tags. */
static int group(struct ranks *ranks, int rank, tutti_store_t *store)
{
    enum { TAG = 7 };
    tutti_comm_t *comm;
    tutti_pg_t *pg;
    tutti_work_t *work;
    float x = 1;
    RANKS_CHECK(pg_join(ranks, rank, store, &comm, &pg) == TUTTI_OK);
    RANKS_CHECK(pg_goes_on(pg, TAG, ranks->size));
    if (rank == VICTIM)
        RANKS_CHECK(dump_until(ranks, TAG, 2));
    RANKS_CHECK(pg_sum(pg, &x, TAG, 0, &work) == TUTTI_OK && pg_end(work) == TUTTI_OK);
    ranks_raise(ranks, DONE);
    RANKS_CHECK(ranks_await(ranks, DONE, (uint32_t)ranks->size));
    pg_part(comm, pg);
    return 0;
}

/* What is refused stands in a rank's own dump, with why; and where dumps cannot go. */
static int refuse(struct ranks *ranks, int rank, tutti_store_t *store)
{
    tutti_comm_t *comm;
    char path[256], problem[256];
    size_t bytes;
    struct dump dump;
    int failed = join(ranks, rank, store, &comm);
    if (failed)
        return failed;
    RANKS_CHECK(tutti_all_reduce(NULL, NULL, 4, TUTTI_FLOAT32, TUTTI_SUM, comm,
                                 TUTTI_STREAM_DEFAULT) == TUTTI_ERR_INVALID);
    snprintf(path, sizeof path, "%s/own-%d", folder, rank);
    RANKS_CHECK(tutti_comm_dump(comm, path) == TUTTI_OK);
    char *text = text_read(path, &bytes);
    unlink(path);
    RANKS_CHECK(dump_parse(text, bytes, &dump, problem, sizeof problem));
    json_t *root = dump.root;
    json_t *operations = json_object_get(root, "operations");
    const json_t *last = json_array_get(operations, BEFORE);
    RANKS_CHECK(json_array_size(operations) == AT);
    RANKS_CHECK(!strcmp(json_string_value(json_object_get(last, "state")), "refused"));
    RANKS_CHECK(!strcmp(json_string_value(json_object_get(last, "status")), "TUTTI_ERR_INVALID"));
    RANKS_CHECK(json_integer_value(json_object_get(last, "count")) == 4);
    RANKS_CHECK(json_is_null(json_object_get(root, "fault")));
    dump_free(&dump);
    free(text);
    RANKS_CHECK(tutti_comm_dump(comm, "/no/such/directory/x") == TUTTI_ERR_SYSTEM);
    RANKS_CHECK(tutti_comm_dump(comm, "%x") == TUTTI_ERR_INVALID);
    RANKS_CHECK(tutti_comm_dump(NULL, folder) == TUTTI_ERR_INVALID);
    return part(ranks, comm, 0);
}

/* A rank that never comes to the meeting. */
static int absent(struct ranks *ranks, int rank, tutti_store_t *store)
{
    tutti_comm_t *comm;
    const struct tutti_comm_options options = {.struct_size = sizeof options,
                                               .timeout_ms = PATIENCE_MS};
    if (rank == VICTIM)
        return 0;
    RANKS_CHECK(tutti_comm_create(store, rank, ranks->size, &options, &comm) == TUTTI_ERR_TIMEOUT);
    return 0;
}

/* ---- replays --------------------------------------------------------------------------------- */

enum { IN_GRAPH = 3, REPLAYS = 400, LAST = IN_GRAPH * REPLAYS };

/* Operations on a stream that is captured. */
static void *graph_make(tutti_comm_t *comm, float *x, tutti_stream_t stream)
{
    enum tutti_status status = TUTTI_OK;
    if (!gpu_capture_begin(stream))
        return NULL;
    for (int i = 0; i < IN_GRAPH && status == TUTTI_OK; i++)
        status = i == 1 ? device_barrier(comm, stream)
                        : device_all_reduce(x, x, 4, TUTTI_FLOAT32, TUTTI_MAX, comm, stream, NULL);
    void *graph = gpu_capture_end(stream);
    return status == TUTTI_OK ? graph : NULL;
}

/* Replays a graph more often than the recorder has places. Then the victim does not: all see that
 * the others wait for it, and it goes. */
static int replay(struct ranks *ranks, int rank, tutti_store_t *store)
{
    tutti_comm_t *comm;
    tutti_stream_t stream;
    RANKS_CHECK(gpu_stream_create(&stream));
    /* CUDA may wait for the kernels of other ranks while it allocates, or makes a graph. */
    float *x = gpu_alloc(4 * sizeof *x);
    RANKS_CHECK(x && gpu_fill(x, 0, 4 * sizeof *x));
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    void *graph = graph_make(comm, x, stream);
    RANKS_CHECK(graph && ranks_meet(ranks, CAPTURED));
    for (int i = 0; i < REPLAYS; i++)
        RANKS_CHECK(gpu_graph_launch(graph, stream));
    RANKS_CHECK(gpu_stream_synchronize(stream) && tutti_comm_status(comm, NULL) == TUTTI_OK);
    ranks_raise(ranks, JOINED);
    RANKS_CHECK(ranks_await(ranks, JOINED, (uint32_t)ranks->size));
    if (rank == VICTIM) {
        RANKS_CHECK(dump_until(ranks, DIAGNOSE_CALLS, LAST + 1));
        if (ranks->expendable)
            raise(SIGKILL);
    } else {
        RANKS_CHECK(gpu_graph_launch(graph, stream) && gpu_stream_synchronize(stream));
        RANKS_CHECK(tutti_comm_status(comm, NULL) == TUTTI_ERR_PEER_DEAD);
    }
    tutti_comm_destroy(comm);
    gpu_graph_destroy(graph);
    gpu_free(x);
    gpu_stream_destroy(stream);
    return 0;
}

static bool is_text(const json_t *object, const char *key, const char *expected)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text && strcmp(text, expected) == 0;
}

/* What a survivor's dump has of its device: the last operations of all, one behind the other, and
 * under way the one that the victim did not come to. The host has nothing but the capture. */
static bool marks_are_good(const json_t *root)
{
    const json_t *marks = json_object_get(root, "device_operations"), *mark;
    const size_t count = json_array_size(marks);
    json_int_t before = json_integer_value(json_object_get(root, "created_ns"));
    bool good = count == 1024 && json_array_size(json_object_get(root, "operations")) == IN_GRAPH;
    size_t i;
    json_array_foreach(marks, i, mark)
    {
        const json_int_t sequence = json_integer_value(json_object_get(mark, "sequence"));
        const json_int_t begun = json_integer_value(json_object_get(mark, "begun_ns"));
        good = good && sequence == LAST + 2 - (json_int_t)count + (json_int_t)i &&
               begun >= before && is_text(mark, "state", i == count - 1 ? "failed" : "done") &&
               is_text(mark, "collective", sequence % IN_GRAPH == 2 ? "barrier" : "all_reduce");
        before = begun;
    }
    return good && before <= json_integer_value(json_object_get(root, "taken_ns"));
}

static int replays(int size, bool processes)
{
    struct dumps dumps;
    struct ranks *ranks = ranks_create(size, processes ? size : 0, 0);
    struct verdict verdict = {0};
    const struct culprit *culprit = &verdict.culprits[0];
    ranks->expendable = processes ? 1 << VICTIM : 0;
    int failures = ranks_run(ranks, replay);
    ranks_destroy(ranks);
    dumps_take(&dumps);
    bool good = dumps.sound && dumps.count == (size_t)size - 1 &&
                diagnose_judge(dumps.members, dumps.count, &verdict) && verdict.count == 1 &&
                culprit->rank == VICTIM && culprit->reason == CULPRIT_GONE &&
                culprit->sequence == LAST + 1;
    for (size_t i = 0; good && i < dumps.count; i++)
        good = marks_are_good(dumps.all[i].root);
    dumps_free(&dumps);
    if (!good)
        fprintf(stderr, "replays: expected the survivors' dumps to have them, and who is gone\n");
    return failures + !good;
}

/* ---- all ------------------------------------------------------------------------------------- */

static int run(ranks_fn *fn, bool processes, bool expendable)
{
    struct ranks *ranks = ranks_create(SIZE, processes ? SIZE : 0, 0);
    ranks->expendable = expendable ? 1 << VICTIM : 0;
    int failures = ranks_run(ranks, fn);
    ranks_destroy(ranks);
    return failures;
}

int main(int argc, char **argv)
{
    bool processes = argc == 2 && strcmp(argv[1], "processes") == 0;
    int failures = 0, skip = ranks_skip(2);
    if (skip)
        return skip;
    if (!mkdtemp(folder))
        return 1;
    if (device_is_cuda() && !device_is_shared()) { /* whose kernels leave marks if it is set */
        setenv("TUTTI_DUMP", folder, 1);
        failures += replays(ranks_fit(SIZE) ? SIZE : 2, processes);
    }
    if (!ranks_fit(SIZE))
        return rmdir(folder) != 0 || failures ? 1 : 0;
    if (!device_is_cuda()) /* its tensors are the host's */
        failures += run(group, processes, false);
    failures += run(refuse, processes, false);
    static const enum tutti_collective collectives_called[] = {
        TUTTI_COLLECTIVE_ALL_TO_ALL_V, TUTTI_COLLECTIVE_ALL_GATHER_V, TUTTI_COLLECTIVE_ALL_REDUCE};
    for (size_t i = 0; i < sizeof collectives_called / sizeof *collectives_called; i++) {
        called = collectives_called[i];
        if (device_is_cuda() && called != TUTTI_COLLECTIVE_ALL_REDUCE)
            continue;
        if (!device_is_cuda())
            unsetenv("TUTTI_DUMP");
        failures += run(hang, processes, false);
        setenv("TUTTI_DUMP", folder, 1);
        /* Two ranks alone know of an all-to-all's block: no third one shows who is wrong. */
        if (called == TUTTI_COLLECTIVE_ALL_TO_ALL_V)
            continue;
        failures += run(count, processes, false);
        failures += expect("another count", SIZE, CULPRIT_MISMATCH, AT);
    }
    failures += run(order, processes, false);
    failures += expect("another order", SIZE, CULPRIT_MISMATCH, AT);
    failures += run(leave, processes, false);
    failures += expect("left", SIZE - 1, CULPRIT_GONE, AT);
    failures += run(absent, processes, false);
    failures += expect("did not come", SIZE - 1, CULPRIT_MISSING, 0);
    if (processes) {
        failures += run(leave, processes, true);
        failures += expect("killed", SIZE - 1, CULPRIT_GONE, AT);
        failures += run(stop, processes, false);
        /* The victim, which goes on, hears of the fault at its end alone. */
        failures += expect("stopped", SIZE, CULPRIT_BEHIND, AT);
    }
    return rmdir(folder) != 0 || failures ? 1 : 0;
}
