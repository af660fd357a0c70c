/* SPDX-License-Identifier: MIT */
#include "info_trial.h"

#include "info.h"
#include "results.h"
#include "tool.h"

#include <string.h>
#include <sys/mman.h>

enum { ALARM_S = 60, CPU_ELEMENTS = 10000, GPU_ELEMENTS = 100003 };

static bool is_gpu(const struct trial *trial)
{
    return trial->config.device == TUTTI_DEVICE_CUDA;
}

/* ---- choices --------------------------------------------------------------------------------- */

static bool same_choice(tutti_comm_t *comm, enum tutti_dtype dtype, size_t count,
                        const struct choice *choice)
{
    enum tutti_algo algo = TUTTI_ALGO_NONE;
    const char *reason = "";
    tutti_comm_algorithm(comm, count, dtype, TUTTI_SUM, NULL, &algo, &reason);
    return algo == choice->algo && strcmp(reason, choice->reason) == 0;
}

/* Finds the sizes at which the choice changes: doubles the size until it does, then halves the
 * step. */
static void list_choices(tutti_comm_t *comm, enum tutti_dtype dtype, struct trial *trial)
{
    const size_t width = tutti_dtype_size(dtype), most = ((size_t)1 << 32) / width;
    size_t first = 1;
    int count = 0;
    while (first <= most && count < TRIAL_CHOICES) {
        struct choice *choice = &trial->choice[dtype][count++];
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
    trial->choices[dtype] = count;
}

/* Rank 0 fills the description of the communicator. */
static void note_description(tutti_comm_t *comm, void *context)
{
    struct trial *trial = context;
    json_t *description = describe_comm(comm);
    json_dumpb(description, trial->description, sizeof trial->description - 1, 0);
    json_decref(description);
}

/* It also fills the choices. */
static void note_choices(tutti_comm_t *comm, void *context)
{
    struct trial *trial = context;
    for (int dtype = 0; dtype < TUTTI_DTYPE_COUNT; dtype++)
        if (!is_gpu(trial) || dtype == TUTTI_BFLOAT16)
            list_choices(comm, (enum tutti_dtype)dtype, trial);
    note_description(comm, context);
}

json_t *trial_choices(const struct trial *trial, enum tutti_dtype dtype)
{
    json_t *array = json_array();
    for (int i = 0; i < trial->choices[dtype]; i++) {
        const struct choice *choice = &trial->choice[dtype][i];
        json_array_append_new(
            array, json_pack("{s:I, s:o, s:s, s:s}", "from_bytes", (json_int_t)choice->from_bytes,
                             "to_bytes",
                             choice->to_bytes ? json_integer((json_int_t)choice->to_bytes)
                                              : json_string("any"),
                             "algo", tutti_algo_name(choice->algo), "why", choice->reason));
    }
    return array;
}

/* ---- a trial --------------------------------------------------------------------------------- */

static bool note_setup(void *context, const struct bench_record *ready)
{
    struct trial *trial = context;
    for (int rank = 0; rank < trial->config.ranks; rank++)
        if (ready[rank].setup_ms > trial->setup_ms)
            trial->setup_ms = ready[rank].setup_ms;
    return true;
}

static bool note_result(void *context, const struct bench_result *result)
{
    ((struct trial *)context)->wrong = result->timing[0].wrong;
    return true;
}

static void note_failure(void *context, int rank, enum tutti_status status, const char *text)
{
    struct trial *trial = context;
    trial->status = status;
    if (status)
        snprintf(trial->message, sizeof trial->message, "%s", text);
    else
        snprintf(trial->message, sizeof trial->message, "rank %d ended early", rank);
}

static struct trial *create(int ranks, bool threads, enum tutti_device device)
{
    void *memory =
        mmap(NULL, sizeof(struct trial), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        tool_fail_errno("cannot map memory for the self-test");
        return NULL;
    }
    struct trial *trial = memory;
    struct bench_config *config = &trial->config;
    const size_t count = device == TUTTI_DEVICE_CUDA ? GPU_ELEMENTS : CPU_ELEMENTS;
    trial->row = (struct bench_row){
        .dtype = TUTTI_FLOAT32, .op = TUTTI_SUM, .count = count, .bytes = count * sizeof(float)};
    bench_config_default(config);
    config->name = "info";
    config->ranks = ranks;
    config->threads = threads;
    config->device = device;
    config->rows = &trial->row;
    config->row_count = config->iterations = config->batch = 1;
    config->warmup = 0;
    config->one_place = true;
    config->timeout_ms = TRIAL_TIMEOUT_MS;
    config->alarm_s = device == TUTTI_DEVICE_CUDA ? ALARM_S : 0;
    config->visitor = trial;
    return trial;
}

static struct trial *run(struct trial *trial)
{
    const struct bench_listener listener = {
        .context = trial, .begin = note_setup, .row = note_result, .failed = note_failure};
    if (!trial || !placement_make(&trial->config.placement, trial->config.ranks, !is_gpu(trial))) {
        trial_destroy(trial);
        return NULL;
    }
    if (!bench_run(&trial->config, &listener) && !*trial->message)
        note_failure(trial, 0, TUTTI_OK, "");
    return trial;
}

struct trial *trial_run(int ranks, bool threads, bool choose)
{
    struct trial *trial = create(ranks, threads, TUTTI_DEVICE_CPU);
    if (trial)
        trial->config.visit = choose ? note_choices : note_description;
    return run(trial);
}

struct trial *trial_run_gpus(int ranks, bool threads, bool share, enum tutti_algo algo)
{
    struct trial *trial = create(ranks, threads, TUTTI_DEVICE_CUDA);
    if (!trial)
        return NULL;
    trial->config.visit = note_choices;
    trial->config.share = share;
    trial->config.algo = algo;
    return run(trial);
}

void trial_destroy(struct trial *trial)
{
    if (trial)
        munmap(trial, sizeof *trial);
}

/* Among processes: an entry of their communicator's description. */
static json_t *described(const struct trial *trial, const char *key)
{
    json_error_t error;
    json_t *description = json_loads(trial->description, 0, &error);
    json_t *text = json_object_get(description, key);
    text = is_gpu(trial) || trial->config.threads ? NULL : json_incref(text);
    json_decref(description);
    return text;
}

json_t *trial_result(const struct trial *trial)
{
    const char *result = *trial->message ? trial->message : "ok";
    json_error_t error;
    if (trial->wrong)
        result = "the result is wrong";
    return json_pack(
        "{s:o, s:o, s:o*, s:f, s:o*, s:o*, s:o*, s:o*}", "test",
        json_sprintf("all-reduce of %d %s%s", trial->config.ranks,
                     trial->config.threads ? "threads" : "processes",
                     trial->config.share ? " on device 0" : ""),
        "result", json_text(result), "declined",
        is_gpu(trial) ? json_boolean(trial->status == TUTTI_ERR_DECLINED) : NULL, "setup_ms",
        trial->setup_ms, "direct_copies", described(trial, "direct_copies"), "arena_nodes",
        described(trial, "arena_nodes"), "describe",
        is_gpu(trial) ? json_loads(trial->description, 0, &error) : NULL, "choices",
        is_gpu(trial) && *trial->description ? trial_choices(trial, TUTTI_BFLOAT16) : NULL);
}
