/* SPDX-License-Identifier: MIT */
/*
 * The table of tutti bench. A row has at most 120 columns. The first cells name what was measured,
 * the others have the times. By default they are those of nccl-tests, for both places in one row.
 * With --long, and beside NCCL or MPI, there are more cells, and each place has a row.
 */
#include "bench.h"
#include "commit.h"
#include "tool.h"

/* X(name, title, unit, width) */
#define CELL_MAP(X)                                                                                \
    X(TIME, "time", "(us)", 8)                                                                     \
    X(RANK_MIN, "min", "(us)", 8)                                                                  \
    X(RANK_MEAN, "mean", "(us)", 8)                                                                \
    X(P50, "p50", "(us)", 8)                                                                       \
    X(P99, "p99", "(us)", 8)                                                                       \
    X(ALGBW, "algbw", "(GB/s)", 7)                                                                 \
    X(BUSBW, "busbw", "(GB/s)", 7)                                                                 \
    X(APART, "apart", "(us)", 8)                                                                   \
    X(WRONG, "#wrong", "", 6)                                                                      \
    X(HOST, "host", "(us)", 8)                                                                     \
    X(RIVAL, "nccl", "(us)", 8)                                                                    \
    X(RIVAL_SYMMETRIC, "symm", "(us)", 8)                                                          \
    X(RIVAL_MPI, "mpi", "(us)", 8)                                                                 \
    X(RATIO, "ratio", "", 6)                                                                       \
    X(PRODUCT, "gemm", "(us)", 8)                                                                  \
    X(PRODUCT_BESIDE, "beside", "(us)", 8)                                                         \
    X(TIME_BESIDE, "time+", "(us)", 8)

enum cell {
#define ENUM(name, title, unit, width) name,
    CELL_MAP(ENUM)
#undef ENUM
        CELLS
};

static const struct {
    const char *title, *unit;
    int width;
} cells[CELLS] = {
#define ROW(name, title, unit, width) [name] = {title, unit, width},
    CELL_MAP(ROW)
#undef ROW
};

int bench_threads(const struct bench_config *config)
{
    return config->threads_per_rank ? config->threads_per_rank : 1;
}

bool bench_is_gpu(const struct bench_config *config)
{
    return config->device == TUTTI_DEVICE_CUDA;
}

/* Whether each place has a row. */
static bool is_long(const struct bench_config *config)
{
    return config->long_rows || config->vs_nccl || config->vs_mpi || config->beside ||
           config->norms;
}

static bool is_shown(const struct bench_config *config, enum cell cell)
{
    /* Not all fit in a row. */
    bool details = config->long_rows && !config->vs_nccl && !config->vs_mpi && !config->beside;
    switch (cell) {
    case RANK_MIN:
    case RANK_MEAN:
    case P99:
        return details;
    case P50:
        return details && !bench_is_gpu(config); /* the time is the GPU's */
    case HOST:
        return is_long(config) && bench_is_gpu(config) && !config->graph && !config->beside &&
               !config->norms;
    case RIVAL:
    case RIVAL_SYMMETRIC:
        return config->vs_nccl;
    case RIVAL_MPI:
        return config->vs_mpi;
    case RATIO:
        return config->vs_nccl || config->vs_mpi || config->norms;
    case APART:
        return config->norms;
    case PRODUCT:
    case PRODUCT_BESIDE:
    case TIME_BESIDE:
        return config->beside;
    case ALGBW:
    case BUSBW:
        return !config->beside;
    case TIME:
    case WRONG:
    case CELLS:
        break;
    }
    return true;
}

/* ---- the head -------------------------------------------------------------------------------- */

/* Prints the sizes in nccl-tests' words, or the counts. */
static void print_sizes(const struct bench_config *config)
{
    for (int i = 0; i < config->count_count; i++)
        printf("%s%zu",
               i               ? ","
               : config->norms ? " tokens "
                               : " counts ",
               config->counts[i] / (config->norms ? config->hidden : 1));
    if (config->norms)
        printf(" hidden %zu quant %s", config->hidden, tutti_quant_name(config->quant));
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
    char isa[32] = "";
    (void)tutti_info("isa", isa, sizeof isa);
    printf("# tutti %s %s, isa %s, commit %s\n", tutti_version_string(), bench_name(config), isa,
           TOOL_COMMIT);
    printf("# nRanks %d %s", config->ranks, config->threads ? "threads" : "processes");
    if (bench_collective(config)->data)
        print_sizes(config);
    if (config->warmup == BENCH_UNTIL_STEADY)
        printf(" warmup iters: auto iters: ");
    else
        printf(" warmup iters: %d iters: ", config->warmup);
    if (config->iterations)
        printf("%d", config->iterations);
    else
        printf("auto");
    printf("\n# validation: %d", config->check);
    if (config->count_bits)
        printf(" counts: int%d, read by the operation", config->count_bits);
    if (!bench_is_gpu(config)) {
        printf(" caches: %s buffers: %s\n", config->cold ? "cold" : "hot",
               config->symmetric ? "symmetric" : "ordinary");
        return;
    }
    printf(" device: cuda graph: ");
    if (config->graph && config->batch)
        printf("%d", config->batch);
    else
        printf("%s", config->graph ? "auto" : "no");
    printf(" pdl: %s streams: %d",
           config->pdl == TUTTI_PROGRAMMATIC_AUTO ? "auto"
           : config->pdl == TUTTI_PROGRAMMATIC_ON ? "1"
                                                  : "0",
           config->streams);
    if (config->max_blocks)
        printf(" max blocks: %d", config->max_blocks);
    if (config->symmetric)
        printf(" buffers: symmetric%s", config->copy_engine ? ", by copy engines" : "");
    printf("\n");
}

static void print_ranks(const struct bench_config *config, const struct bench_record *ready,
                        const char *rival)
{
    double setup_ms = 0;
    printf("#\n# Using ranks\n");
    for (int rank = 0; rank < config->ranks; rank++) {
        printf("#  Rank %2d pid %6d ", rank, ready[rank].pid);
        if (bench_is_gpu(config))
            printf("%s\n", ready[rank].device);
        else if (config->launched.size)
            printf("on host %s, started by %s\n", ready[rank].device, config->launched.name);
        else if (config->placement.bound)
            printf("on CPU %d\n", config->placement.cpus[rank]);
        else
            printf("not bound (%d cores)\n", config->placement.cores);
        setup_ms = ready[rank].setup_ms > setup_ms ? ready[rank].setup_ms : setup_ms;
    }
    printf("# Set-up of the communicator: %.3f ms (slowest rank)\n", setup_ms);
    if (*rival)
        printf("# %s\n", rival);
    printf("#\n");
}

static void print_titles(const struct bench_config *config, bool units)
{
    for (int cell = 0; cell < CELLS; cell++)
        if (is_shown(config, (enum cell)cell))
            printf(" %*s", cells[cell].width, units ? cells[cell].unit : cells[cell].title);
}

static void print_columns(const struct bench_config *config)
{
    const int rows = is_long(config) ? 1 : BENCH_PLACES;
    if (config->osu) {
        printf("# %-12s %18s %18s %18s %12s\n", "Size", "Avg Latency(us)", "Min Latency(us)",
               "Max Latency(us)", "Iterations");
        return;
    }
    if (!is_long(config))
        printf("# %49s %31s %31s\n", "", "out-of-place", "in-place");
    for (int line = 0; line < 2; line++) {
        printf("#%10s %11s %11s %10s %4s", line ? "(B)" : "size",
               line            ? config->norms ? "" : "(elements)"
               : config->norms ? "tokens"
                               : "count",
               line ? "" : "type",
               line            ? ""
               : config->norms ? "hidden"
                               : "redop",
               line || config->norms ? ""
               : is_long(config)     ? "into"
                                     : "root");
        for (int i = 0; i < rows; i++)
            print_titles(config, line == 1);
        printf("\n");
    }
}

void table_begin(const struct bench_config *config, const struct bench_record *ready,
                 const char *rival)
{
    print_parameters(config);
    print_ranks(config, ready, rival);
    print_columns(config);
    fflush(stdout);
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* On a GPU and beside MPI the median is shown, because rounds have outliers. */
static double time_us(const struct bench_config *config, const struct bench_timing *timing)
{
    return bench_is_gpu(config) || config->vs_mpi ? timing->p50_us : timing->mean_us;
}

static double algbw(const struct bench_config *config, const struct bench_row *row,
                    const struct bench_timing *timing)
{
    double us = time_us(config, timing);
    return us > 0 ? (double)row->bytes / us * 1e-3 : 0;
}

double bench_busbw(const struct bench_config *config, const struct bench_row *row,
                   const struct bench_timing *timing)
{
    const int factor = bench_collective(config)->bus_factor;
    const double share = (double)(config->ranks - 1) / config->ranks;
    return algbw(config, row, timing) * (factor ? factor * share : 1);
}

double bench_ratio(const struct bench_timing *timing)
{
    double best = 0;
    for (int rival = 0; rival < BENCH_RIVALS; rival++)
        if (timing->rival_us[rival] > 0 && (best <= 0 || timing->rival_us[rival] < best))
            best = timing->rival_us[rival];
    if (timing->apart_us > 0)
        best = timing->apart_us;
    return best > 0 ? timing->p50_us / best : 0;
}

/* Prints five significant digits; nothing for a time of 0, which was not measured. */
static void format_us(double us, char *text, size_t capacity)
{
    if (us <= 0)
        return;
    snprintf(text, capacity,
             us < 10     ? "%.3f"
             : us < 1000 ? "%.2f"
             : us < 1e5  ? "%.1f"
                         : "%.0f",
             us);
}

/* The value of a cell: a time in us, in which 0 is no value, or a number with two digits. */
static double value_of(const struct bench_config *config, const struct bench_result *result,
                       int place, enum cell cell)
{
    const struct bench_timing *timing = &result->timing[place];
    switch (cell) {
    case TIME:
        return time_us(config, timing);
    case RANK_MIN:
        return result->ranks[place].min_us;
    case RANK_MEAN:
        return result->ranks[place].mean_us;
    case P50:
        return timing->p50_us;
    case P99:
        return timing->p99_us;
    case ALGBW:
        return algbw(config, result->row, timing);
    case BUSBW:
        return bench_busbw(config, result->row, timing);
    case HOST:
        return timing->host_us;
    case APART:
        return timing->apart_us;
    case RIVAL:
        return timing->rival_us[BENCH_NCCL];
    case RIVAL_SYMMETRIC:
        return timing->rival_us[BENCH_NCCL_SYMMETRIC];
    case RIVAL_MPI:
        return timing->rival_us[BENCH_MPI];
    case RATIO:
        return bench_ratio(timing);
    case PRODUCT:
        return timing->beside.product_us;
    case PRODUCT_BESIDE:
        return timing->beside.products_us[0];
    case TIME_BESIDE:
        return timing->beside.operations_us[0];
    case WRONG:
    case CELLS:
        break;
    }
    return 0;
}

/* Does not change the text if there is no value. */
static void format_cell(const struct bench_config *config, const struct bench_result *result,
                        int place, enum cell cell, char *text, size_t capacity)
{
    const double value = value_of(config, result, place, cell);
    if (cell == WRONG && config->check)
        snprintf(text, capacity, "%llu", (unsigned long long)result->timing[place].wrong);
    else if (cell == WRONG)
        snprintf(text, capacity, "N/A");
    else if (cell == ALGBW || cell == BUSBW || (cell == RATIO && value > 0))
        snprintf(text, capacity, "%.2f", value);
    else
        format_us(value, text, capacity);
}

static void print_cells(const struct bench_config *config, const struct bench_result *result,
                        int place)
{
    const bool none = place >= bench_places(config);
    for (int cell = 0; cell < CELLS; cell++) {
        char text[32] = "-";
        if (!is_shown(config, (enum cell)cell))
            continue;
        if (!none)
            format_cell(config, result, place, (enum cell)cell, text, sizeof text);
        printf(" %*s", cells[cell].width, text);
    }
}

static void print_subject(const struct bench_config *config, const struct bench_row *row,
                          const char *last)
{
    const char *op = bench_op_name(config, row);
    if (config->norms) {
        printf("%11zu %11zu %11s %10zu %4s", row->bytes, row->count / config->hidden,
               tutti_dtype_name(row->dtype), config->hidden, "");
        return;
    }
    printf("%11zu %11zu %11s %10s %4s", row->bytes, row->count,
           bench_collective(config)->data ? tutti_dtype_name(row->dtype) : "-", op ? op : "-",
           last);
}

/* Times are those of all ranks, out of place. The size is that of a block, as in the MPI call.
 */
static void print_osu(const struct bench_config *config, const struct bench_result *result)
{
    const struct bench_row *row = result->row;
    const struct bench_spread *ranks = &result->ranks[BENCH_OUT_OF_PLACE];
    const size_t width = bench_collective(config)->data ? tutti_dtype_size(row->dtype) : 0;
    printf("%-14zu %18.3f %18.3f %18.3f %12d\n", row->count * width, ranks->mean_us, ranks->min_us,
           ranks->max_us, result->iterations);
    fflush(stdout);
}

void table_row(const struct bench_config *config, const struct bench_result *result)
{
    if (config->osu) {
        print_osu(config, result);
        return;
    }
    static const char *const into[BENCH_PLACES] = {"out", "in"};
    for (int place = 0; is_long(config) && place < bench_places(config); place++) {
        print_subject(config, result->row, into[bench_is_in_place(config, place)]);
        print_cells(config, result, place);
        printf("\n");
    }
    if (!is_long(config)) {
        print_subject(config, result->row, "-1");
        for (int place = 0; place < BENCH_PLACES; place++)
            print_cells(config, result, place);
        printf("\n");
    }
    fflush(stdout);
}
