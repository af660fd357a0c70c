/* SPDX-License-Identifier: MIT */
/* `tutti bench --vs`: its table, and its files. */
#include "commit.h"
#include "results.h"
#include "stats.h"
#include "tool.h"
#include "vs.h"

#include <math.h>
#include <string.h>

/* The medians of one size and placement, in microseconds. NaN: none. */
struct line {
    int row, placement;
    double us[VS_INSTANCES];
    int best; /* the fastest rival's instance, -1 if none */
};

static const struct vs_setting *setting_of(const struct vs *vs, int instance)
{
    return vs->instances[instance].setting;
}

/* A block is disturbed if another process took a rank's core. Disturbed blocks count only if there
 * are too few others, or if ranks share cores. */
static double median_us(const struct vs *vs, const struct vs_cell *cell, int placement)
{
    const struct vs_samples *samples = &cell->samples[placement];
    bool quiet = vs->config->placement.bound && samples->quiet_count >= VS_LEAST_SAMPLES;
    double sorted[VS_SAMPLES];
    if (cell->wrong || samples->count < VS_LEAST_SAMPLES)
        return NAN;
    memcpy(sorted, quiet ? samples->quiet : samples->us, sizeof sorted);
    return stats_of(sorted, (size_t)(quiet ? samples->quiet_count : samples->count)).p50;
}

/* The fastest instance of a library, or of all rivals if library is -1. -1: none. */
static int fastest(const struct vs *vs, const struct line *line, int library)
{
    int best = -1;
    for (int i = VS_FIRST_RIVAL; i < vs->instance_count; i++)
        if ((library < 0 || setting_of(vs, i)->library == library) && !isnan(line->us[i]) &&
            (best < 0 || line->us[i] < line->us[best]))
            best = i;
    return best;
}

/* False if a setting has no median: the best of the others would then mean little. */
static bool make_line(const struct vs *vs, int row, int placement, struct line *line)
{
    bool complete = true;
    *line = (struct line){.row = row, .placement = placement};
    for (int i = 0; i < vs->instance_count; i++) {
        line->us[i] = median_us(vs, vs_cell(vs, row, i), placement);
        complete &= !vs_takes_part(vs, row, i) || !isnan(line->us[i]);
    }
    line->best = fastest(vs, line, -1);
    return complete;
}

static bool has_rival(const struct vs *vs, int library)
{
    for (int i = VS_FIRST_RIVAL; i < vs->instance_count; i++)
        if (setting_of(vs, i)->library == library)
            return true;
    return false;
}

/* NaN: there is no rival. */
static double ratio(const struct line *line, int ours)
{
    return line->best < 0 ? NAN : line->us[ours] / line->us[line->best];
}

/* ---- the table ------------------------------------------------------------------------------- */

/* Prints three significant digits, or a dash. */
static void print_us(int width, double us)
{
    if (isnan(us))
        printf(" %*s", width, "-");
    else
        printf(" %*.*f", width, us < 1 ? 3 : us < 10 ? 2 : us < 100 ? 1 : 0, us);
}

/* Prints the settings with wrong results on a line of their own. */
static void print_wrong(const struct vs *vs, int row)
{
    const char *before = "#  wrong: ";
    for (int i = 0; i < vs->instance_count; i++)
        if (vs_cell(vs, row, i)->wrong) {
            printf("%s%s", before, setting_of(vs, i)->name);
            before = ", ";
        }
    if (*before == ',')
        printf("\n");
}

static void print_line(const struct vs *vs, const struct line *line)
{
    printf("%10zu", vs->config->rows[line->row].bytes);
    for (int i = VS_OURS; i < VS_FIRST_RIVAL; i++)
        print_us(8, line->us[i]);
    for (int library = 1; library < vs_library_count; library++) {
        int best = fastest(vs, line, library);
        if (has_rival(vs, library))
            print_us(8, best < 0 ? NAN : line->us[best]);
    }
    print_us(6, ratio(line, VS_OURS));
    print_us(6, ratio(line, VS_SYMMETRIC));
    printf("  %s\n", line->best < 0 ? "-" : setting_of(vs, line->best)->name);
    print_wrong(vs, line->row);
}

static void print_placement(const struct vs *vs, int placement)
{
    struct line line;
    bool named = false;
    for (int row = 0; row < vs->config->row_count; row++) {
        if (!make_line(vs, row, placement, &line))
            continue;
        if (!named)
            printf("# placement: %s\n", vs_placement_name(vs->config, placement));
        named = true;
        print_line(vs, &line);
    }
}

static void print_table(const struct vs *vs)
{
    struct line line;
    const struct collective *collective = bench_collective(vs->config);
    printf("# tutti %s beside others, float32%s%s, %d ranks %s, commit %s\n",
           collective_name(vs->config->collective), collective->reduces ? " sum" : "",
           collective_is_in_place(collective) ? " in place" : "", vs->config->ranks,
           !vs->config->placement.bound    ? "not bound"
           : bench_threads(vs->config) > 1 ? "on their cores"
                                           : "on a core each",
           TOOL_COMMIT);
    if (vs->config->threads_per_rank)
        printf("# threads of a rank: Tutti's has %d, a rival's has its calling thread; %s\n",
               vs->config->threads_per_rank,
               vs->config->placement.bound ? "both are bound to the same cores"
                                           : "none is bound; Tutti runs no more than the cores");
    printf("# microseconds: medians of blocks, of each rival's best setting\n");
    printf("#%9s %8s %8s", "size", "tutti", "symm.");
    for (int library = 1; library < vs_library_count; library++)
        if (has_rival(vs, library))
            printf(" %8s", vs_libraries[library].name);
    printf(" %6s %6s  %s\n", "ratio", "symm.", "best rival");
    for (int placement = 0; placement < VS_PLACEMENTS; placement++)
        print_placement(vs, placement);
    for (int row = 0; row < vs->config->row_count; row++)
        if (!make_line(vs, row, VS_NEAR, &line) && !make_line(vs, row, VS_FAR, &line))
            printf("# %zu bytes: not every setting had its blocks in time; give --seconds\n",
                   vs->config->rows[row].bytes);
    if (vs->discarded > 0)
        printf("# %d blocks discarded: the cores moved meanwhile\n", vs->discarded);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

/* Rounds to the precision of the measurement. NaN becomes null. */
static json_t *json_number(double value, double digits)
{
    return isnan(value) ? json_null() : json_real(round(value * digits) / digits);
}

static json_t *json_line(const struct vs *vs, const struct line *line, int ours)
{
    const struct vs_cell *cell = vs_cell(vs, line->row, ours);
    const struct bench_row *row = &vs->config->rows[line->row];
    json_t *rivals = json_object(), *wrong = json_array();
    for (int i = 0; i < vs->instance_count; i++) {
        const char *name = setting_of(vs, i)->name;
        if (i >= VS_FIRST_RIVAL && !isnan(line->us[i]))
            json_object_set_new(rivals, name, json_number(line->us[i], 1e4));
        if (vs_cell(vs, line->row, i)->wrong)
            json_array_append_new(wrong, json_string(name));
    }
    return json_pack(
        "{s:s, s:s, s:s?, s:i, s:i, s:i, s:I, s:s, s:s, s:s?, s:o, s:o, s:o, s:i, s:o}",
        "collective", collective_name(vs->config->collective), "dtype",
        tutti_dtype_name(row->dtype), "op", bench_op_name(vs->config, row), "ranks",
        vs->config->ranks, "threads_per_rank", bench_threads(vs->config), "rival_threads_per_rank",
        1, "bytes", (json_int_t)row->bytes, "placement",
        vs_placement_name(vs->config, line->placement), "buffers",
        ours == VS_SYMMETRIC ? "symmetric" : "ordinary", "algo", *cell->algo ? cell->algo : NULL,
        "tutti_us", json_number(line->us[ours], 1e4), "rivals", rivals, "ratio",
        json_number(ratio(line, ours), 1e3), "samples", cell->samples[line->placement].count,
        "wrong_settings", wrong);
}

/* Returns {"openmpi": "Open MPI 4.1.4"}. The names of a library's settings begin with the key. */
static json_t *json_versions(const struct vs *vs)
{
    json_t *versions = json_object();
    for (int i = VS_FIRST_RIVAL; i < vs->instance_count; i++) {
        const struct vs_library *library = &vs_libraries[setting_of(vs, i)->library];
        char text[64];
        snprintf(text, sizeof text, "%s%s%s", library->title, *vs->instances[i].version ? " " : "",
                 vs->instances[i].version);
        json_object_set_new(versions, library->name, json_text(text));
    }
    return versions;
}

static bool write_files(const struct vs *vs)
{
    const struct bench_config *config = vs->config;
    struct line line;
    json_t *file = bench_describe(config, NULL), *rows = json_array();
    for (int ours = VS_OURS; ours < VS_FIRST_RIVAL; ours++)
        for (int placement = 0; placement < VS_PLACEMENTS; placement++)
            for (int row = 0; row < config->row_count; row++)
                if (make_line(vs, row, placement, &line) && !isnan(line.us[ours]))
                    json_array_append_new(rows, json_line(vs, &line, ours));
    json_object_set_new(file, "versions", json_versions(vs));
    json_object_set_new(file, "discarded_blocks", json_integer(vs->discarded));
    json_object_set_new(file, "rows", rows);
    return bench_write_files(config, file);
}

bool vs_run(const struct bench_config *config)
{
    struct vs vs = {.config = config};
    bool ok = vs_measure(&vs);
    if (ok) {
        print_table(&vs);
        ok = write_files(&vs);
    }
    vs_finish(&vs);
    return ok;
}
