/* SPDX-License-Identifier: MIT */
/*
 * tutti tune: lists candidates for every size, and writes the best ones as a tuning file. The ranks
 * of the benchmark measure a few candidates at a time, in alternation with the built-in choice.
 *
 * The t-th candidates of all sizes are the rows of one tuning file, and so of one communicator.
 * Candidates are compared by their time divided by that of the built-in choice in the same run.
 */
#include "tune.h"
#include "commit.h"
#include "results.h"
#include "tool.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SIZES = 24, CANDIDATES = 128 };

/* A candidate replaces the built-in choice only if it is faster by this much, because two runs
 * differ by less. */
static const double worthwhile = 0.99;

struct candidate {
    struct tune_choice choice;
    double us, built_in_us; /* of the same run; 0: not measured */
    uint64_t wrong;
};

struct size {
    size_t bytes;
    struct tune_choice built_in;
    struct candidate candidates[CANDIDATES];
    int count;
    const struct candidate *best; /* NULL: the built-in choice stays */
    double best_us, built_in_us;  /* of the last run */
};

struct tune {
    struct tune_options options;
    struct bench_config config;
    char gpus[128];
    struct tune_plan built_in, chosen;
    struct size sizes[SIZES];
    int first;       /* index of each size's candidate, among those that are measured now */
    bool confirming; /* the best candidates are measured instead */
    int fds[BENCH_TUNINGS + 1]; /* tuning files; the last one has no rows */
    char paths[BENCH_TUNINGS + 1][32];
    double began;
    int left;       /* candidates that were left out for lack of time */
    uint64_t wrong; /* wrong elements of all candidates */
};

/* ---- candidates ------------------------------------------------------------------------------ */

/* The units of work that a kernel divides among its threads. */
static size_t work(const struct tune_kernel *kernel, size_t bytes)
{
    return (bytes / kernel->unit_bytes + kernel->parts - 1) / kernel->parts;
}

static void add_candidate(struct size *size, const struct tune_choice *choice)
{
    bool fresh = size->count < CANDIDATES && !tune_choice_equal(choice, &size->built_in);
    for (int i = 0; i < size->count && fresh; i++)
        fresh = !tune_choice_equal(choice, &size->candidates[i].choice);
    if (fresh)
        size->candidates[size->count++].choice = *choice;
}

/* Returns false for blocks that are more than half idle, and for grids with idle blocks. Smaller
 * ones are as good. */
static bool is_distinct(const struct tune_choice *choice, size_t units, bool smallest_block,
                        bool largest_grid)
{
    size_t block = (size_t)choice->threads * (size_t)choice->units;
    return (smallest_block || units > (size_t)choice->threads / 2) &&
           (choice->units == 1 || units > (size_t)choice->threads) &&
           (largest_grid || units > block * (size_t)choice->blocks);
}

static void list_kernels(struct size *size, const struct tune_plan *plan,
                         const struct tune_choice *geometry, bool smallest_block, bool largest_grid)
{
    for (int k = 0; k < plan->kernel_count; k++) {
        const struct tune_kernel *kernel = &plan->kernels[k];
        struct tune_choice choice = *geometry;
        memcpy(choice.kernel, kernel->name, sizeof choice.kernel);
        if (choice.blocks > kernel->blocks)
            choice.blocks = kernel->blocks;
        /* Only a kernel for any size loops often enough that more units a thread can be faster. */
        if (size->bytes <= kernel->bytes && (kernel->bytes == TUNE_REST || choice.units == 1) &&
            is_distinct(&choice, work(kernel, size->bytes), smallest_block, largest_grid))
            add_candidate(size, &choice);
    }
}

/* Likely candidates come first, because time may run out. */
static void list_candidates(struct size *size, const struct tune_plan *plan, bool quick)
{
    static const int threads[] = {64, 128, 480, 256, 32}, blocks[] = {512, 128, 64, 32};
    const int smallest = quick ? 64 : 32;
    for (int grid = 0; grid < (quick ? 1 : 4); grid++)
        for (int units = 1; units <= (quick ? 1 : 2); units++)
            for (int i = 0; i < (quick ? 3 : 5); i++) {
                struct tune_choice geometry = {"", threads[i], blocks[grid], units};
                list_kernels(size, plan, &geometry, threads[i] == smallest, grid == 0);
            }
}

/* ---- runs ------------------------------------------------------------------------------------ */

/* The rows of the ranks' least compute capability apply. */
static bool hear_of_plan(void *context, const struct bench_record *ready)
{
    struct tune *tune = context;
    int capability = 0;
    for (int rank = 0; rank < tune->config.ranks; rank++) {
        if (!tune_plan_read(&tune->built_in, ready[rank].message))
            return false;
        if (!capability || tune->built_in.capability < capability)
            capability = tune->built_in.capability;
    }
    tune->built_in.capability = capability;
    tune->built_in.ranks = tune->config.ranks;
    bench_name_gpus(&tune->config, ready, tune->gpus, sizeof tune->gpus);
    return true;
}

static bool hear_of_size(void *context, const struct bench_result *result)
{
    struct tune *tune = context;
    struct size *size = &tune->sizes[result->row - tune->config.rows];
    struct tune_plan part = {.count = 0};
    size->built_in_us = result->timing[0].p50_us;
    tune->wrong += result->timing[0].wrong;
    if (!tune_plan_append_part(&part, &tune->built_in, size->bytes - 1, size->bytes))
        return false;
    size->built_in = part.choices[0];
    return true;
}

static bool hear_of_candidates(void *context, const struct bench_result *result)
{
    struct tune *tune = context;
    struct size *size = &tune->sizes[result->row - tune->config.rows];
    const struct bench_timing *timing = &result->timing[0];
    tune->wrong += timing->wrong;
    for (int t = 0; t < tune->config.tuning_count; t++)
        tune->wrong += timing->tuning_wrong[t];
    size->built_in_us = timing->p50_us;
    if (tune->confirming) {
        size->best_us = timing->tuning_us[0];
        return true;
    }
    for (int t = 0; t < tune->config.tuning_count && tune->first + t < size->count; t++) {
        struct candidate *candidate = &size->candidates[tune->first + t];
        candidate->us = timing->tuning_us[t];
        candidate->built_in_us = timing->p50_us;
        candidate->wrong = timing->tuning_wrong[t];
    }
    return true;
}

/* The choice of this run's t-th tuning for a size. NULL: the built-in choice. */
static const struct tune_choice *choice_of(const struct tune *tune, const struct size *size, int t)
{
    if (tune->confirming)
        return size->best ? &size->best->choice : NULL;
    return tune->first + t < size->count ? &size->candidates[tune->first + t].choice : NULL;
}

/* A size's choice applies to all sizes above the previous one. The choice for 1 KiB or less
 * applies to all smaller sizes. */
static bool compose(const struct tune *tune, int t, struct tune_plan *plan)
{
    size_t low = tune->sizes[0].bytes > 1024 ? tune->sizes[0].bytes / 2 : 0;
    bool ok = true;
    *plan =
        (struct tune_plan){.capability = tune->built_in.capability, .ranks = tune->built_in.ranks};
    if (low)
        ok = tune_plan_append_part(plan, &tune->built_in, 0, low);
    for (int i = 0; i < tune->config.row_count && ok; i++) {
        const struct size *size = &tune->sizes[i];
        const struct tune_choice *choice = choice_of(tune, size, t);
        ok = choice ? tune_plan_append(plan, size->bytes, choice)
                    : tune_plan_append_part(plan, &tune->built_in, low, size->bytes);
        low = size->bytes;
    }
    return ok && tune_plan_append_part(plan, &tune->built_in, low, TUNE_REST);
}

/* Measures `count` tunings, at all sizes that have them. */
static bool run(struct tune *tune, int count)
{
    const struct bench_listener listener = {.context = tune, .row = hear_of_candidates};
    for (int i = 0; i < tune->config.row_count; i++)
        tune->config.rows[i].tunings = 0;
    for (int t = 0; t < count; t++) {
        struct tune_plan plan;
        if (!compose(tune, t, &plan) || !tune_scratch_write(tune->fds[t], &plan))
            return false;
        tune->config.tunings[t] = tune->paths[t];
        for (int i = 0; i < tune->config.row_count; i++)
            if (choice_of(tune, &tune->sizes[i], t))
                tune->config.rows[i].tunings |= 1u << t;
    }
    tune->config.tuning_count = count;
    return bench_run(&tune->config, &listener);
}

/* Makes a short run of the built-in choices only. It also reads the file that exists. */
static bool look(struct tune *tune)
{
    const struct bench_listener listener = {
        .context = tune, .begin = hear_of_plan, .row = hear_of_size};
    const int rounds = tune->config.iterations;
    tune->config.iterations = 1;
    tune->config.tuning_count = access(tune->options.output, F_OK) == 0;
    tune->config.tunings[0] = tune->options.output;
    if (!bench_run(&tune->config, &listener))
        return false;
    tune->config.iterations = rounds;
    for (int i = 0; i < tune->config.row_count; i++)
        list_candidates(&tune->sizes[i], &tune->built_in, tune->options.quick);
    return true;
}

/* ---- the choice ------------------------------------------------------------------------------ */

static double ratio(const struct candidate *candidate)
{
    return candidate->us / candidate->built_in_us;
}

static void choose(struct size *size)
{
    for (int i = 0; i < size->count; i++) {
        const struct candidate *candidate = &size->candidates[i];
        if (candidate->us <= 0 || candidate->built_in_us <= 0 || candidate->wrong)
            continue;
        if (ratio(candidate) < (size->best ? ratio(size->best) : worthwhile))
            size->best = candidate;
    }
}

/* Whether another run, and one to confirm it, are likely to end in time. Runs with candidates take
 * a little longer than the first one. */
static bool measure(struct tune *tune)
{
    int most = 0, all = 0;
    double longest = clock_seconds() - tune->began;
    for (int i = 0; i < tune->config.row_count; i++) {
        most = tune->sizes[i].count > most ? tune->sizes[i].count : most;
        all += tune->sizes[i].count;
    }
    printf("# %s: %d candidates for %d sizes, at most %g s\n", tune->gpus, all,
           tune->config.row_count, tune->options.seconds);
    fflush(stdout);
    for (; tune->first < most; tune->first += BENCH_TUNINGS) {
        double begin = clock_seconds();
        if (begin + 2 * longest - tune->began > tune->options.seconds)
            break;
        int count = most - tune->first < BENCH_TUNINGS ? most - tune->first : BENCH_TUNINGS;
        if (!run(tune, count))
            return false;
        double took = clock_seconds() - begin;
        longest = took > longest ? took : longest;
    }
    for (int i = 0; i < tune->config.row_count; i++) {
        const struct size *size = &tune->sizes[i];
        tune->left += size->count > tune->first ? size->count - tune->first : 0;
    }
    return true;
}

static bool confirm(struct tune *tune)
{
    bool any = false;
    for (int i = 0; i < tune->config.row_count; i++) {
        choose(&tune->sizes[i]);
        any |= tune->sizes[i].best != NULL;
    }
    tune->confirming = true;
    if (any && !run(tune, 1))
        return false;
    for (int i = 0; i < tune->config.row_count; i++) {
        struct size *size = &tune->sizes[i];
        if (size->best && size->best_us >= worthwhile * size->built_in_us)
            size->best = NULL;
    }
    return compose(tune, 0, &tune->chosen);
}

/* ---- output ---------------------------------------------------------------------------------- */

static void describe_choice(const struct tune_choice *choice, char *text, size_t capacity)
{
    snprintf(text, capacity, "%s %dx%d/%d", choice->kernel, choice->blocks, choice->threads,
             choice->units);
}

static void print_table(const struct tune *tune)
{
    printf("# kernel blocks x threads / units a thread; the slowest rank's median, in us\n");
    printf("# %10s  %-28s %9s  %-28s %9s %7s\n", "bytes", "built in", "time", "chosen", "time",
           "gain");
    for (int i = 0; i < tune->config.row_count; i++) {
        const struct size *size = &tune->sizes[i];
        char built_in[64], chosen[64];
        describe_choice(&size->built_in, built_in, sizeof built_in);
        if (!size->best) {
            printf("  %10zu  %-28s %9.2f  the same\n", size->bytes, built_in, size->built_in_us);
            continue;
        }
        describe_choice(&size->best->choice, chosen, sizeof chosen);
        printf("  %10zu  %-28s %9.2f  %-28s %9.2f %6.1f%%\n", size->bytes, built_in,
               size->built_in_us, chosen, size->best_us,
               100 * (1 - size->best_us / size->built_in_us));
    }
    if (tune->left)
        printf("# %d candidates were not reached in %g s: give more --seconds\n", tune->left,
               tune->options.seconds);
}

static json_t *pack_choice(const struct tune_choice *choice)
{
    return json_pack("{s:s, s:i, s:i, s:i}", "kernel", choice->kernel, "threads", choice->threads,
                     "blocks", choice->blocks, "units", choice->units);
}

static json_t *pack_size(const struct size *size)
{
    json_t *candidates = json_array();
    for (int i = 0; i < size->count; i++) {
        const struct candidate *candidate = &size->candidates[i];
        json_t *object = pack_choice(&candidate->choice);
        bool measured = candidate->us > 0;
        json_object_set_new(object, "us", measured ? json_real(candidate->us) : json_null());
        json_object_set_new(object, "built_in_us",
                            measured ? json_real(candidate->built_in_us) : json_null());
        json_object_set_new(object, "wrong", json_integer((json_int_t)candidate->wrong));
        json_array_append_new(candidates, object);
    }
    const struct candidate *best = size->best;
    return json_pack("{s:I, s:o, s:o, s:o, s:o, s:o}", "bytes", (json_int_t)size->bytes, "built_in",
                     pack_choice(&size->built_in), "built_in_us", json_real(size->built_in_us),
                     "chosen", best ? pack_choice(&best->choice) : json_null(), "chosen_us",
                     best ? json_real(size->best_us) : json_null(), "candidates", candidates);
}

static bool write_json(const struct tune *tune, const char *date)
{
    if (!tune->options.json_path)
        return true;
    json_t *rows = json_array();
    for (int i = 0; i < tune->config.row_count; i++)
        json_array_append_new(rows, pack_size(&tune->sizes[i]));
    json_t *file = json_pack(
        "{s:s, s:s, s:s, s:o, s:i, s:i, s:i, s:o}", "machine", tune->gpus, "commit", TOOL_COMMIT,
        "date", date, "command", json_text(tune->config.command), "ranks", tune->config.ranks,
        "capability", tune->built_in.capability, "not_reached", tune->left, "rows", rows);
    bool ok = results_write_json(file, tune->options.json_path);
    json_decref(file);
    return ok || tool_fail_errno("--json: cannot write '%s'", tune->options.json_path);
}

static bool report(const struct tune *tune)
{
    char date[32], comment[2048];
    format_date(date, sizeof date);
    snprintf(comment, sizeof comment, "%s, %s\ntutti %s, commit %s: %s", tune->gpus, date,
             tutti_version_string(), TOOL_COMMIT, tune->config.command);
    print_table(tune);
    if (!write_json(tune, date))
        return false;
    if (tune->wrong)
        return tool_fail("%llu elements were wrong: %s is left as it is",
                         (unsigned long long)tune->wrong, tune->options.output);
    if (!tune_file_write(tune->options.output, &tune->chosen, comment))
        return false;
    printf("# written: %s\n", tune->options.output);
    return true;
}

/* ---- the command ----------------------------------------------------------------------------- */

/* Variables of the environment would override the tunings that are measured. */
static bool prepare(struct tune *tune)
{
    for (int i = 0; i <= BENCH_TUNINGS; i++)
        tune->fds[i] = -1;
    for (int i = 0; i <= BENCH_TUNINGS; i++)
        if ((tune->fds[i] = tune_scratch_open(tune->paths[i], sizeof tune->paths[i])) < 0)
            return false;
    for (int i = 0; i < tune->config.row_count; i++)
        tune->sizes[i].bytes = tune->config.rows[i].bytes;
    unsetenv("TUTTI_ALGO");
    setenv("TUTTI_TUNING_FILE", tune->paths[BENCH_TUNINGS], 1);
    tune->began = clock_seconds();
    return tune_scratch_write(tune->fds[BENCH_TUNINGS], NULL);
}

int command_tune(int argc, char **argv)
{
    struct tune *tune = calloc(1, sizeof *tune);
    bool ok = tune || tool_fail("no memory");
    if (!ok)
        return TOOL_FAILED;
    ok = tune_options_init(&tune->options, &tune->config, argc, argv);
    if (ok) {
        ok = prepare(tune) && look(tune) && measure(tune) && confirm(tune) && report(tune);
        for (int i = 0; i <= BENCH_TUNINGS; i++)
            if (tune->fds[i] >= 0)
                close(tune->fds[i]);
    }
    bench_config_fini(&tune->config);
    free(tune);
    return ok ? TOOL_OK : TOOL_FAILED;
}
