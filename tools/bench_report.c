/* SPDX-License-Identifier: MIT */
/* The table, in the columns of nccl-tests, and the JSON file in this project's one format. */
#include "bench.h"
#include "commit.h"
#include "json_text.h"
#include "tool.h"

#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

struct bench_report {
    const struct bench_config *config;
    json_t *rows;
    char gpus[128]; /* "4 H200" */
    char nccl[32];  /* "2.28.9", or "" */
    uint64_t wrong;
    double busbw_sum;
    int busbw_count;
};

/* ---- the table ------------------------------------------------------------------------------- */

static bool is_gpu(const struct bench_config *config)
{
    return config->device == TUTTI_DEVICE_CUDA;
}

/* Which sizes, in nccl-tests' words, or which counts. */
static void print_sizes(const struct bench_config *config)
{
    for (int i = 0; i < config->count_count; i++)
        printf("%s%zu", i ? "," : " counts ", config->counts[i]);
    if (config->count_count)
        return;
    printf(" minBytes %zu maxBytes %zu step: ", config->min_bytes, config->max_bytes);
    if (config->step_bytes)
        printf("%zu(bytes)", config->step_bytes);
    else
        printf("%d(factor)", config->factor);
}

static void print_parameters(const struct bench_config *config)
{
    int version = tutti_version();
    printf("# tutti %d.%d.%d %s, isa %s, commit %s\n", version / 10000, version / 100 % 100,
           version % 100, tutti_collective_name(config->collective), tutti_info_isa(), TOOL_COMMIT);
    printf("# nRanks %d %s", config->ranks, config->threads ? "threads" : "processes");
    if (config->collective != TUTTI_COLLECTIVE_BARRIER)
        print_sizes(config);
    if (config->warmup == BENCH_UNTIL_STEADY)
        printf(" warmup iters: auto iters: ");
    else
        printf(" warmup iters: %d iters: ", config->warmup);
    if (config->iterations)
        printf("%d", config->iterations);
    else
        printf("auto");
    printf(" validation: %d", config->check);
    if (!is_gpu(config)) {
        printf(" caches: %s buffers: %s\n", config->cold ? "cold" : "hot",
               config->symmetric ? "symmetric" : "ordinary");
        return;
    }
    printf(" device: cuda graph: ");
    if (config->graph && config->batch)
        printf("%d", config->batch);
    else
        printf("%s", config->graph ? "auto" : "no");
    printf(" pdl: %d streams: %d\n", config->pdl, config->streams);
}

static void print_ranks(const struct bench_config *config, const struct bench_record *ready,
                        const char *nccl)
{
    double setup_ms = 0;
    printf("#\n# Using ranks\n");
    for (int rank = 0; rank < config->ranks; rank++) {
        printf("#  Rank %2d pid %6d ", rank, ready[rank].pid);
        if (is_gpu(config))
            printf("%s\n", ready[rank].device);
        else if (config->placement.bound)
            printf("on CPU %d\n", config->placement.cpus[rank]);
        else
            printf("not bound (%d cores)\n", config->placement.cores);
        setup_ms = ready[rank].setup_ms > setup_ms ? ready[rank].setup_ms : setup_ms;
    }
    printf("# Set-up of the communicator: %.3f ms (slowest rank)\n", setup_ms);
    if (*nccl)
        printf("# NCCL %s\n", nccl);
    printf("#\n");
}

/* Of a GPU: what stands behind the columns that all have. */
static void print_gpu_columns(const struct bench_config *config, bool units)
{
    if (is_gpu(config) && !config->graph)
        printf(" %9s %9s", units ? "(us)" : "host(out)", units ? "(us)" : "host(in)");
    if (config->vs_nccl)
        printf(" %9s %9s %6s %9s %9s %6s", units ? "(us,out)" : "nccl", units ? "(us,out)" : "symm",
               units ? "" : "ratio", units ? "(us,in)" : "nccl", units ? "(us,in)" : "symm",
               units ? "" : "ratio");
    printf("\n");
}

static void print_columns(const struct bench_config *config)
{
    const char *quantities = " %8s %7s %7s %6s ";
    printf("# %46s %36s %36s\n", "", "out-of-place", "in-place");
    printf("# %10s %12s %11s %10s %6s", "size", "count", "type", "redop", "root");
    for (int place = 0; place < BENCH_PLACES; place++)
        printf(quantities, "time", "algbw", "busbw", "#wrong");
    printf("%9s %9s %9s %9s", "p50(out)", "p99(out)", "p50(in)", "p99(in)");
    print_gpu_columns(config, false);
    printf("# %10s %12s %11s %10s %6s", "(B)", "(elements)", "", "", "");
    for (int place = 0; place < BENCH_PLACES; place++)
        printf(quantities, "(us)", "(GB/s)", "(GB/s)", "");
    printf("%9s %9s %9s %9s", "(us)", "(us)", "(us)", "(us)");
    print_gpu_columns(config, true);
}

/* Five significant digits whatever the size. */
static void format_us(double us, char *text, size_t capacity)
{
    snprintf(text, capacity,
             us < 10     ? "%.3f"
             : us < 1000 ? "%.2f"
             : us < 1e5  ? "%.1f"
                         : "%.0f",
             us);
}

/* Rounds on a GPU have outliers that say nothing: their median counts. */
static double time_us(const struct bench_config *config, const struct bench_timing *timing)
{
    return is_gpu(config) ? timing->p50_us : timing->mean_us;
}

/* algbw in GB/s: 1e9 bytes a second. */
static double algbw(const struct bench_report *report, const struct bench_row *row,
                    const struct bench_timing *timing)
{
    double us = time_us(report->config, timing);
    return us > 0 ? (double)row->bytes / us * 1e-3 : 0;
}

static double busbw(const struct bench_report *report, const struct bench_row *row,
                    const struct bench_timing *timing)
{
    int ranks = report->config->ranks;
    return algbw(report, row, timing) * 2 * (ranks - 1) / ranks;
}

static void print_timing(const struct bench_report *report, const struct bench_row *row,
                         const struct bench_timing *timing)
{
    char time[32], wrong[32] = "N/A";
    format_us(time_us(report->config, timing), time, sizeof time);
    if (report->config->check)
        snprintf(wrong, sizeof wrong, "%llu", (unsigned long long)timing->wrong);
    printf(" %8s %7.2f %7.2f %6s ", time, algbw(report, row, timing), busbw(report, row, timing),
           wrong);
}

/* To the fastest rival; 0 if there is none. */
static double ratio(const struct bench_timing *timing)
{
    double best = 0;
    for (int rival = 0; rival < BENCH_RIVALS; rival++)
        if (timing->rival_us[rival] > 0 && (best <= 0 || timing->rival_us[rival] < best))
            best = timing->rival_us[rival];
    return best > 0 ? timing->p50_us / best : 0;
}

static void print_us(double us)
{
    char text[32] = "-";
    if (us > 0)
        format_us(us, text, sizeof text);
    printf(" %9s", text);
}

static void print_gpu_cells(const struct bench_config *config, const struct bench_result *result)
{
    for (int place = 0; place < BENCH_PLACES && is_gpu(config) && !config->graph; place++)
        print_us(result->timing[place].host_us);
    for (int place = 0; place < BENCH_PLACES && config->vs_nccl; place++) {
        const struct bench_timing *timing = &result->timing[place];
        for (int rival = 0; rival < BENCH_RIVALS; rival++)
            print_us(timing->rival_us[rival]);
        if (ratio(timing) > 0)
            printf(" %6.2f", ratio(timing));
        else
            printf(" %6s", "-");
    }
    printf("\n");
    fflush(stdout);
}

static void print_row(struct bench_report *report, const struct bench_result *result)
{
    const struct bench_row *row = result->row;
    bool barrier = report->config->collective == TUTTI_COLLECTIVE_BARRIER;
    printf("  %10zu %12zu %11s %10s %6d", row->bytes, row->count,
           barrier ? "-" : tutti_dtype_name(row->dtype), barrier ? "-" : op_kind_name(row->op), -1);
    for (int place = 0; place < BENCH_PLACES; place++) {
        if (barrier && place == BENCH_IN_PLACE)
            printf(" %8s %7s %7s %6s ", "-", "-", "-", "-");
        else
            print_timing(report, row, &result->timing[place]);
    }
    for (int place = 0; place < BENCH_PLACES; place++) {
        char p50[32] = "-", p99[32] = "-";
        if (!barrier || place == BENCH_OUT_OF_PLACE) {
            format_us(result->timing[place].p50_us, p50, sizeof p50);
            format_us(result->timing[place].p99_us, p99, sizeof p99);
        }
        printf("%9s %9s ", p50, p99);
    }
    print_gpu_cells(report->config, result);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

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

/* What only a row of a GPU has. */
static void add_gpu(json_t *object, const struct bench_config *config,
                    const struct bench_timing *timing)
{
    json_object_set_new(object, "graph", json_boolean(config->graph));
    json_object_set_new(object, "programmatic_launch", json_boolean(config->pdl));
    json_object_set_new(object, "streams", json_integer(config->streams));
    json_object_set_new(object, "host_us",
                        timing->host_us > 0 ? json_real(timing->host_us) : json_null());
}

static bool append_row(struct bench_report *report, const struct bench_result *result,
                       enum bench_place place)
{
    const struct bench_config *config = report->config;
    const struct bench_row *row = result->row;
    const struct bench_timing *timing = &result->timing[place];
    bool barrier = config->collective == TUTTI_COLLECTIVE_BARRIER;
    json_t *object = json_pack(
        "{s:s, s:s?, s:s?, s:i, s:I, s:s, s:s?, s:f, s:o, s:o, s:f, s:f, s:f, s:b, s:b, s:b, "
        "s:b, s:i}",
        "collective", tutti_collective_name(config->collective), "dtype",
        barrier ? NULL : tutti_dtype_name(row->dtype), "op", barrier ? NULL : op_kind_name(row->op),
        "ranks", config->ranks, "bytes", (json_int_t)row->bytes, "placement", result->placement,
        "algo", barrier ? NULL : tutti_algo_name(result->algo), "tutti_us", timing->p50_us,
        "rivals", rivals_of(timing), "ratio",
        ratio(timing) > 0 ? json_real(ratio(timing)) : json_null(), "mean_us", timing->mean_us,
        "p50_us", timing->p50_us, "p99_us", timing->p99_us, "in_place", place == BENCH_IN_PLACE,
        "cold", config->cold, "symmetric", config->symmetric, "threads", config->threads,
        "iterations", result->iterations);
    if (object)
        json_object_set_new(object, "wrong",
                            config->check && !barrier ? json_integer((json_int_t)timing->wrong)
                                                      : json_null());
    if (object && is_gpu(config))
        add_gpu(object, config, timing);
    return json_array_append_new(report->rows, object) == 0;
}

static bool write_json(const struct bench_report *report)
{
    const struct bench_config *config = report->config;
    struct utsname host = {0};
    char machine[512], date[32];
    uname(&host);
    format_date(date, sizeof date);
    if (is_gpu(config))
        snprintf(machine, sizeof machine, "%s, %s, %d cores", report->gpus,
                 config->placement.cpu_model, config->placement.cores);
    else
        snprintf(machine, sizeof machine, "%s, %d cores, %s %s", config->placement.cpu_model,
                 config->placement.cores, host.sysname, host.release);
    json_t *file =
        json_pack("{s:o, s:s, s:s, s:o, s:O}", "machine", json_text(machine), "commit", TOOL_COMMIT,
                  "date", date, "command", json_text(config->command), "rows", report->rows);
    if (file && *report->nccl)
        json_object_set_new(file, "nccl", json_string(report->nccl));
    bool ok = json_write_rows(file, config->json_path);
    json_decref(file);
    return ok ? ok : tool_fail_errno("--json: cannot write '%s'", config->json_path);
}

/* ---- the report ------------------------------------------------------------------------------ */

void bench_name_gpus(const struct bench_config *config, const struct bench_record *ready,
                     char *text, size_t capacity)
{
    const char *name = strstr(ready->device, "NVIDIA ");
    snprintf(text, capacity, "%d %s", config->ranks, name ? name + strlen("NVIDIA ") : "GPUs");
}

static void name_machine(struct bench_report *report, const struct bench_record *ready)
{
    bench_name_gpus(report->config, ready, report->gpus, sizeof report->gpus);
    if (ready->nccl)
        snprintf(report->nccl, sizeof report->nccl, "%d.%d.%d", ready->nccl / 10000,
                 ready->nccl / 100 % 100, ready->nccl % 100);
}

struct bench_report *bench_report_begin(const struct bench_config *config,
                                        const struct bench_record *ready)
{
    struct bench_report *report = calloc(1, sizeof *report);
    json_t *rows = json_array();
    if (!report || !rows) {
        tool_fail("no memory for the report");
        json_decref(rows);
        free(report);
        return NULL;
    }
    report->config = config;
    report->rows = rows;
    name_machine(report, ready);
    print_parameters(config);
    print_ranks(config, ready, report->nccl);
    print_columns(config);
    fflush(stdout);
    return report;
}

bool bench_report_row(struct bench_report *report, const struct bench_result *result)
{
    bool barrier = report->config->collective == TUTTI_COLLECTIVE_BARRIER;
    print_row(report, result);
    for (int place = 0; place < (barrier ? 1 : BENCH_PLACES); place++) {
        report->wrong += result->timing[place].wrong;
        report->busbw_sum += busbw(report, result->row, &result->timing[place]);
        report->busbw_count++;
        if (!append_row(report, result, (enum bench_place)place))
            return tool_fail("no memory for the report");
    }
    return true;
}

bool bench_report_end(struct bench_report *report)
{
    bool ok = report->wrong == 0;
    printf("# Out of bounds values : %llu %s\n", (unsigned long long)report->wrong,
           !report->config->check ? "(not checked)"
           : ok                   ? "OK"
                                  : "FAILED");
    printf("# Avg bus bandwidth    : %g\n",
           report->busbw_count ? report->busbw_sum / report->busbw_count : 0);
    if (report->config->json_path && !write_json(report))
        ok = false;
    bench_report_abandon(report);
    return ok;
}

void bench_report_abandon(struct bench_report *report)
{
    if (!report)
        return;
    json_decref(report->rows);
    free(report);
}
