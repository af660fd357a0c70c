/* SPDX-License-Identifier: MIT */
/* tutti bench: the command, and its report: the table (bench_table.c) and the files. */
#include "bench.h"
#include "commit.h"
#include "mpi_calls.h"
#include "results.h"
#include "tool.h"
#include "vs.h"

#include <string.h>
#include <sys/utsname.h>

struct bench_report {
    const struct bench_config *config;
    json_t *rows;
    char gpus[128]; /* "4 H200" */
    char nccl[32];  /* "2.28.9", or "" */
    json_t *hosts;  /* of a launcher's ranks: how many ranks each has */
    uint64_t wrong;
    double busbw_sum;
    int busbw_count;
};

/* ---- files ----------------------------------------------------------------------------------- */

static json_t *rivals_of(const struct bench_timing *timing)
{
#define BENCH_RIVAL_NAME(name, text) [BENCH_##name] = text,
    static const char *const names[] = {BENCH_RIVAL_MAP(BENCH_RIVAL_NAME)};
#undef BENCH_RIVAL_NAME
    json_t *object = json_object();
    for (int rival = 0; rival < BENCH_RIVALS; rival++)
        if (timing->rival_us[rival] > 0)
            json_object_set_new(object, names[rival], json_real(timing->rival_us[rival]));
    return object;
}

/* The times of --beside by library. */
static json_t *beside_of(const struct bench_beside *beside)
{
#define BENCH_RIVAL_NAME(name, text) text,
    static const char *const names[] = {"tutti", BENCH_RIVAL_MAP(BENCH_RIVAL_NAME)};
#undef BENCH_RIVAL_NAME
    json_t *object = json_pack("{s:f}", "product_us", beside->product_us);
    for (int i = 0; i <= BENCH_RIVALS; i++)
        if (beside->products_us[i] > 0)
            json_object_set_new(object, names[i],
                                json_pack("{s:f, s:f}", "product_us", beside->products_us[i],
                                          "operation_us", beside->operations_us[i]));
    return object;
}

/* Adds the members that only a row of a GPU has. */
static void add_gpu(json_t *object, const struct bench_config *config,
                    const struct bench_timing *timing)
{
    json_object_set_new(object, "graph", json_boolean(config->graph));
    json_object_set_new(object, "programmatic_launch",
                        json_boolean(config->pdl != TUTTI_PROGRAMMATIC_OFF));
    json_object_set_new(object, "streams", json_integer(config->streams));
    json_object_set_new(object, "max_blocks",
                        config->max_blocks ? json_integer(config->max_blocks) : json_null());
    json_object_set_new(object, "copy_engine", json_boolean(config->copy_engine));
    if (config->beside)
        json_object_set_new(object, "beside", beside_of(&timing->beside));
    json_object_set_new(object, "host_us",
                        timing->host_us > 0 ? json_real(timing->host_us) : json_null());
}

/* Adds the members that only a row of all_reduce_rms_norm has. */
static void add_norm(json_t *object, const struct bench_config *config, const struct bench_row *row,
                     const struct bench_timing *timing)
{
    json_object_set_new(object, "hidden", json_integer((json_int_t)config->hidden));
    json_object_set_new(object, "tokens", json_integer((json_int_t)(row->count / config->hidden)));
    json_object_set_new(object, "quant", json_string(tutti_quant_name(config->quant)));
    json_object_set_new(object, "apart_us", json_real(timing->apart_us));
}

static bool append_row(struct bench_report *report, const struct bench_result *result,
                       enum bench_place place)
{
    const struct bench_config *config = report->config;
    const struct bench_row *row = result->row;
    const struct bench_timing *timing = &result->timing[place];
    const struct bench_spread *ranks = &result->ranks[place];
    const struct collective *collective = bench_collective(config);
    json_t *object = json_pack(
        "{s:s, s:s?, s:s?, s:i, s:I, s:s, s:s?, s:f, s:o, s:o, s:f, s:f, s:f, s:b, s:b, s:b, "
        "s:b, s:i, s:i, s:f, s:f, s:f}",
        "collective", bench_name(config), "dtype",
        collective->data ? tutti_dtype_name(row->dtype) : NULL, "op", bench_op_name(config, row),
        "ranks", config->ranks, "bytes", (json_int_t)row->bytes, "placement", result->placement,
        "algo",
        !collective->chosen ? NULL
        : *result->kernel   ? result->kernel
                            : tutti_algo_name(result->algo),
        "tutti_us", timing->p50_us, "rivals", rivals_of(timing), "ratio",
        bench_ratio(timing) > 0 ? json_real(bench_ratio(timing)) : json_null(), "mean_us",
        timing->mean_us, "p50_us", timing->p50_us, "p99_us", timing->p99_us, "in_place",
        bench_is_in_place(config, place), "cold", config->cold, "symmetric", config->symmetric,
        "threads", config->threads, "threads_per_rank", bench_threads(config), "iterations",
        result->iterations, "rank_min_us", ranks->min_us, "rank_mean_us", ranks->mean_us,
        "rank_max_us", ranks->max_us);
    if (object)
        json_object_set_new(object, "wrong",
                            config->check && collective->data
                                ? json_integer((json_int_t)timing->wrong)
                                : json_null());
    if (object && config->norms)
        add_norm(object, config, row, timing);
    if (object && config->count_bits)
        json_object_set_new(object, "device_counts",
                            json_string(config->count_bits == 32 ? "int32" : "int64"));
    if (object && bench_is_gpu(config))
        add_gpu(object, config, timing);
    return json_array_append_new(report->rows, object) == 0;
}

json_t *bench_describe(const struct bench_config *config, const char *gpus)
{
    struct utsname host = {0};
    char machine[512], date[32];
    uname(&host);
    format_date(date, sizeof date);
    if (gpus)
        snprintf(machine, sizeof machine, "%s, %s, %d cores", gpus, config->placement.cpu_model,
                 config->placement.cores);
    else
        snprintf(machine, sizeof machine, "%s, %d cores, %s %s", config->placement.cpu_model,
                 config->placement.cores, host.sysname, host.release);
    return json_pack("{s:o, s:s, s:s, s:o}", "machine", json_text(machine), "commit", TOOL_COMMIT,
                     "date", date, "command", json_text(config->command));
}

static bool write_files(const struct bench_report *report)
{
    const struct bench_config *config = report->config;
    json_t *file = bench_describe(config, bench_is_gpu(config) ? report->gpus : NULL);
    json_object_set(file, "rows", report->rows);
    if (*report->nccl)
        json_object_set_new(file, "nccl", json_string(report->nccl));
    if (config->launched.size) {
        json_object_set_new(file, "launcher", json_string(config->launched.name));
        json_object_set(file, "hosts", report->hosts);
    }
    if (config->vs_mpi)
        json_object_set_new(file, "mpi", json_text(mpi_calls_version()));
    return bench_write_files(config, file);
}

/* ---- the report ------------------------------------------------------------------------------ */

void bench_name_gpus(const struct bench_config *config, const struct bench_record *ready,
                     char *text, size_t capacity)
{
    const char *name = strstr(ready->device, "NVIDIA ");
    snprintf(text, capacity, "%d %s", config->gpus,
             name                ? name + strlen("NVIDIA ")
             : config->gpus == 1 ? "GPU"
                                 : "GPUs");
}

static void name_machine(struct bench_report *report, const struct bench_record *ready)
{
    bench_name_gpus(report->config, ready, report->gpus, sizeof report->gpus);
    if (ready->nccl)
        snprintf(report->nccl, sizeof report->nccl, "%d.%d.%d", ready->nccl / 10000,
                 ready->nccl / 100 % 100, ready->nccl % 100);
}

static void count_hosts(struct bench_report *report, const struct bench_record *ready)
{
    for (int rank = 0; rank < report->config->ranks; rank++) {
        const char *host = ready[rank].device;
        const json_int_t others = json_integer_value(json_object_get(report->hosts, host));
        json_object_set_new(report->hosts, host, json_integer(others + 1));
    }
}

static bool report_begin(void *context, const struct bench_record *ready)
{
    struct bench_report *report = context;
    char nccl[64] = "";
    name_machine(report, ready);
    if (report->config->launched.size)
        count_hosts(report, ready);
    if (*report->nccl)
        snprintf(nccl, sizeof nccl, "NCCL %s", report->nccl);
    table_begin(report->config, ready, report->config->vs_mpi ? mpi_calls_version() : nccl);
    return true;
}

static bool report_row(void *context, const struct bench_result *result)
{
    struct bench_report *report = context;
    table_row(report->config, result);
    for (int place = 0; place < bench_places(report->config); place++) {
        report->wrong += result->timing[place].wrong;
        report->busbw_sum += bench_busbw(report->config, result->row, &result->timing[place]);
        report->busbw_count++;
        if (!append_row(report, result, (enum bench_place)place))
            return tool_fail("no memory for the report");
    }
    return true;
}

/* Prints the foot and writes the files. False if values were wrong or a file was not written. */
static bool report_end(void *context)
{
    const struct bench_report *report = context;
    bool ok = report->wrong == 0;
    printf("# Out of bounds values : %llu %s\n", (unsigned long long)report->wrong,
           !report->config->check ? "(not checked)"
           : ok                   ? "OK"
                                  : "FAILED");
    printf("# Avg bus bandwidth    : %g\n",
           report->busbw_count ? report->busbw_sum / report->busbw_count : 0);
    fflush(stdout);
    return write_files(report) && ok;
}

/* ---- the command ----------------------------------------------------------------------------- */

static bool measure(const struct bench_config *config)
{
    const bool launched = config->launched.size;
    struct bench_report report = {.config = config, .rows = json_array(), .hosts = json_object()};
    const struct bench_listener listener = {
        .context = &report, .begin = report_begin, .row = report_row, .end = report_end};
    bool ok = (report.rows && report.hosts) || tool_fail("no memory for the report");
    ok = ok && (launched ? bench_run_launched : bench_run)(config, &listener);
    json_decref(report.rows);
    json_decref(report.hosts);
    return ok;
}

int command_bench(int argc, char **argv)
{
    struct bench_config config;
    bool ok = bench_config_init(&config, argc, argv) &&
              (config.vs_libraries ? vs_run(&config) : measure(&config));
    bench_config_fini(&config);
    return ok ? TOOL_OK : TOOL_FAILED;
}
