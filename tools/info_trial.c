/* SPDX-License-Identifier: MIT */
#include "info_trial.h"

#include "gpu.h"
#include "info.h"
#include "json_text.h"
#include "ranks.h"
#include "reference_table.h"
#include "threads.h"
#include "tool.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    PROCESSES = 2,
    ALARM_S = 60,
    TIMEOUT_MS = 20000,
    ELEMENTS = 100003,
    TEXT_BYTES = 32 * 1024,
};

/* One rank: its task and its result. */
struct trial {
    int rank, ranks, device;
    enum tutti_algo algo;
    const char *url;
    json_t *description, *choices; /* rank 0's */
    double setup_ms;
    bool same;
    enum tutti_status status;
    char message[512]; /* "" for success */
};

/* The result of a process, in memory that it shares with its parent: JSON as text. */
struct report {
    double setup_ms;
    bool same;
    enum tutti_status status;
    char message[512];
    char description[TEXT_BYTES], choices[TEXT_BYTES];
};

/* ---- a rank ---------------------------------------------------------------------------------- */

static bool input_write(struct trial *self, enum tutti_dtype dtype, char *table, float *data,
                        void *memory)
{
    struct reference reference = {.dtype = dtype, .op = TUTTI_SUM, .ranks = self->ranks};
    reference_input(&reference, self->rank, table);
    reference_fill(data, ELEMENTS, sizeof *data, table);
    return gpu_copy(memory, data, ELEMENTS * sizeof *data);
}

/* Makes the input in device memory, and a stream. This comes before the communicator: if threads
 * share a device, a copy may wait for the kernels of other ranks, which would wait for this rank.
 */
static bool fill(struct trial *self, char *table, float *data, void **memory,
                 tutti_stream_t *stream)
{
    *memory = gpu_alloc(ELEMENTS * sizeof *data);
    return *memory && input_write(self, TUTTI_FLOAT32, table, data, *memory) &&
           gpu_stream_create(stream);
}

/* Runs an all-reduce and compares the result with the reference. If a ring sums, the elements are
 * integers of that width, whose sums have the same bits in any order. */
static bool reduce_and_check(struct trial *self, tutti_comm_t *comm, char *table, float *data,
                             void *memory, tutti_stream_t stream)
{
    struct reference reference = {.dtype = TUTTI_FLOAT32, .op = TUTTI_SUM, .ranks = self->ranks};
    if (sums_in_ring(comm)) {
        reference.dtype = TUTTI_INT32;
        if (!input_write(self, reference.dtype, table, data, memory))
            return false;
    }
    self->status =
        tutti_all_reduce(memory, memory, ELEMENTS, reference.dtype, TUTTI_SUM, comm, stream);
    if (self->status || !gpu_stream_synchronize(stream))
        return false;
    self->status = tutti_comm_status(comm, NULL);
    if (self->status || !gpu_copy(data, memory, ELEMENTS * sizeof *data))
        return false;
    reference_expected(&reference, table);
    self->same = reference_differences(data, ELEMENTS, sizeof *data, table) == 0;
    return true;
}

static bool rank_main(void *argument)
{
    struct trial *self = argument;
    struct tutti_comm_options options = {.struct_size = sizeof options,
                                         .name = "info",
                                         .device = TUTTI_DEVICE_CUDA,
                                         .algo = self->algo,
                                         .timeout_ms = TIMEOUT_MS};
    tutti_store_t *store = NULL;
    tutti_comm_t *comm = NULL;
    char *table = malloc(REFERENCE_PERIOD * sizeof(float));
    float *data = malloc(ELEMENTS * sizeof *data);
    tutti_stream_t stream = TUTTI_STREAM_DEFAULT;
    void *memory = NULL;
    bool ok = table && data && gpu_bind(self->device) && fill(self, table, data, &memory, &stream);
    double begin = clock_seconds();
    if (ok)
        self->status = tutti_store_open(self->url, TIMEOUT_MS, &store);
    if (ok && !self->status)
        self->status = tutti_comm_create(store, self->rank, self->ranks, &options, &comm);
    self->setup_ms = (clock_seconds() - begin) * 1e3;
    if (comm && self->rank == 0) {
        self->description = describe_comm(comm);
        self->choices = selftest_choices(comm, TUTTI_BFLOAT16);
    }
    if (comm)
        ok = reduce_and_check(self, comm, table, data, memory, stream);
    if (self->status)
        snprintf(self->message, sizeof self->message, "%s", tutti_last_error());
    else if (!ok)
        snprintf(self->message, sizeof self->message, "%s", gpu_error());
    tutti_comm_destroy(comm);
    tutti_store_close(store);
    gpu_stream_destroy(stream);
    gpu_free(memory);
    free(data);
    free(table);
    return ok && !self->status;
}

/* Joins the results of all ranks. The object has rank 0's description. */
static json_t *result_of(const struct trial *self, const char *test)
{
    double setup_ms = 0;
    const char *result = "ok";
    for (int rank = self->ranks - 1; rank >= 0; rank--) {
        setup_ms = self[rank].setup_ms > setup_ms ? self[rank].setup_ms : setup_ms;
        if (*self[rank].message || !self[rank].same)
            result = *self[rank].message ? self[rank].message : "the result is wrong";
    }
    return json_pack("{s:s, s:o, s:b, s:f, s:o*, s:o*}", "test", test, "result", json_text(result),
                     "declined", self[0].status == TUTTI_ERR_DECLINED, "setup_ms", setup_ms,
                     "describe", self[0].description, "choices", self[0].choices);
}

/* ---- threads --------------------------------------------------------------------------------- */

json_t *trial_of_threads(int ranks, bool share, enum tutti_algo algo)
{
    struct trial self[TRIAL_RANKS] = {{0}};
    char test[96];
    for (int rank = 0; rank < ranks; rank++)
        self[rank] = (struct trial){.rank = rank,
                                    .ranks = ranks,
                                    .device = share ? 0 : rank,
                                    .algo = algo,
                                    .url = "memory:info-cuda"};
    if (threads_run(ranks, rank_main, self, sizeof *self) < 0)
        snprintf(self->message, sizeof self->message, "cannot start %d threads: %s", ranks,
                 strerror(errno));
    snprintf(test, sizeof test, "all-reduce of %d threads%s", ranks, share ? " on device 0" : "");
    return result_of(self, test);
}

/* ---- processes ------------------------------------------------------------------------------- */

static void hand_over(json_t *object, char *text)
{
    if (object)
        json_dumpb(object, text, TEXT_BYTES - 1, 0);
    json_decref(object);
}

static int process_main(int rank, const char *url, void *context)
{
    struct report *report = (struct report *)context + rank;
    struct trial self = {.rank = rank, .ranks = PROCESSES, .url = url};
    alarm(ALARM_S);
    if (gpu_open())
        rank_main(&self);
    else
        snprintf(self.message, sizeof self.message, "%s", gpu_error());
    report->setup_ms = self.setup_ms;
    report->same = self.same;
    report->status = self.status;
    hand_over(self.description, report->description);
    hand_over(self.choices, report->choices);
    memcpy(report->message, self.message, sizeof report->message);
    return TOOL_OK;
}

/* Every wait in the ranks has a deadline, and each rank has an alarm. */
static bool run_processes(struct report *reports)
{
    struct ranks ranks;
    tutti_store_t *store = NULL;
    if (!ranks_fork(&ranks, PROCESSES, process_main, reports))
        return false;
    bool ok = tutti_store_open("tcp://127.0.0.1:0?server=1", TIMEOUT_MS, &store) == TUTTI_OK &&
              ranks_start(&ranks, tutti_store_url(store));
    if (ok)
        ranks_await(&ranks);
    ranks_end(&ranks);
    tutti_store_close(store);
    return ok;
}

json_t *trial_of_processes(void)
{
    const char *test = "all-reduce of 2 processes on device 0";
    const size_t size = PROCESSES * sizeof(struct report);
    struct trial self[PROCESSES];
    json_error_t error;
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return json_pack("{s:s, s:s}", "test", test, "result", strerror(errno));
    struct report *reports = memory;
    for (int rank = 0; rank < PROCESSES; rank++)
        snprintf(reports[rank].message, sizeof reports[rank].message, "rank %d ended early", rank);
    run_processes(reports);
    for (int rank = 0; rank < PROCESSES; rank++) {
        const struct report *report = &reports[rank];
        self[rank] = (struct trial){.ranks = PROCESSES,
                                    .setup_ms = report->setup_ms,
                                    .same = report->same,
                                    .status = report->status,
                                    .description = json_loads(report->description, 0, &error),
                                    .choices = json_loads(report->choices, 0, &error)};
        memcpy(self[rank].message, report->message, sizeof self[rank].message);
    }
    json_t *object = result_of(self, test);
    munmap(memory, size);
    return object;
}
