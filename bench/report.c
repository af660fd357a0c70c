/* SPDX-License-Identifier: MIT */
#include "report.h"

#include <jansson.h>
#include <math.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

/* Fewer blocks than this give no median worth printing. */
#define MIN_SAMPLES 3

static const char *const rivals[] = {"openmpi", "mpich", "gloo"};
#define RIVAL_COUNT ((int)(sizeof(rivals) / sizeof(rivals[0])))

/* The medians at one size and placement, in microseconds; NaN where there is none. */
struct row {
    double medians[COMPARISON_MAX_INSTANCES];
    int best[RIVAL_COUNT]; /* each rival's fastest instance, -1 if none */
    int rival;             /* the fastest of all rivals, -1 if none */
};

static const struct setting *setting_of(const struct comparison *comparison, int instance)
{
    return comparison->instances[instance].setting;
}

/* The fastest instance of a library, or of all but `tutti` if library is NULL. */
static int fastest(const struct comparison *comparison, const struct row *row, const char *library)
{
    double candidates[COMPARISON_MAX_INSTANCES];

    for (int i = 0; i < comparison->instance_count; i++) {
        const char *name = setting_of(comparison, i)->library;
        bool wanted = library != NULL ? strcmp(name, library) == 0 : strcmp(name, "tutti") != 0;

        candidates[i] = wanted ? row->medians[i] : NAN;
    }
    return smallest(candidates, (size_t)comparison->instance_count);
}

/*
 * The cell's median in microseconds, NaN if there are too few samples or any result was wrong. With
 * a core for each rank, blocks during which another process took a core away tell of that process;
 * they count only if there are hardly any others.
 */
static double median_us(const struct cell *cell, int placement)
{
    const struct samples *all = &cell->samples[placement];
    const struct samples *quiet = &cell->quiet[placement];

    if (all->count < MIN_SAMPLES || cell->wrong)
        return NAN;
    if (placement != PLACEMENT_OVERSUBSCRIBED && quiet->count >= MIN_SAMPLES)
        return samples_median(quiet) / 1000;
    return samples_median(all) / 1000;
}

/* Returns whether there is anything to report: a wrong result is, wherever the cores were. */
static bool make_row(const struct comparison *comparison, int size, int placement, struct row *row)
{
    bool possible = (placement != PLACEMENT_OVERSUBSCRIBED) == comparison->place.pinned;
    bool any = false;

    for (int i = 0; i < comparison->instance_count; i++) {
        const struct cell *cell = &comparison->cells[size][i];

        row->medians[i] = median_us(cell, placement);
        any |= !isnan(row->medians[i]) || (cell->wrong && possible);
    }
    for (int i = 0; i < RIVAL_COUNT; i++)
        row->best[i] = fastest(comparison, row, rivals[i]);
    row->rival = fastest(comparison, row, NULL);
    return any;
}

static double median_at(const struct row *row, int instance)
{
    return instance < 0 ? NAN : row->medians[instance];
}

static int instance_named(const struct comparison *comparison, const char *name)
{
    for (int i = 0; i < comparison->instance_count; i++) {
        if (strcmp(setting_of(comparison, i)->name, name) == 0)
            return i;
    }
    return -1;
}

/* Three digits that matter, or a dash. */
static void format_us(char *text, size_t size, double us)
{
    if (isnan(us))
        snprintf(text, size, "-");
    else
        snprintf(text, size, "%.*f", us < 1 ? 3 : us < 10 ? 2 : us < 100 ? 1 : 0, us);
}

static void print_us(FILE *out, int width, double us)
{
    char text[32];

    format_us(text, sizeof(text), us);
    fprintf(out, "%*s", width, text);
}

/* The settings that gave wrong results at this size. */
static void print_wrong(const struct comparison *comparison, int size, FILE *out)
{
    const char *before = "; wrong: ";

    for (int i = 0; i < comparison->instance_count; i++) {
        if (!comparison->cells[size][i].wrong)
            continue;
        fprintf(out, "%s%s", before, setting_of(comparison, i)->name);
        before = ", ";
    }
}

static void print_row(const struct comparison *comparison, const struct row *row, int size,
                      int placement, FILE *out)
{
    double ours = median_at(row, instance_named(comparison, "tutti"));
    double symmetric = median_at(row, instance_named(comparison, "tutti symmetric"));
    double theirs = median_at(row, row->rival);

    fprintf(out, "%9zu  %-14s", comparison->sizes[size], placement_name((enum placement)placement));
    print_us(out, 10, ours);
    print_us(out, 10, symmetric);
    for (int i = 0; i < RIVAL_COUNT; i++)
        print_us(out, 10, median_at(row, row->best[i]));
    print_us(out, 8, ours / theirs);
    print_us(out, 8, symmetric / theirs);
    fprintf(out, "  %s", row->rival < 0 ? "-" : setting_of(comparison, row->rival)->name);
    print_wrong(comparison, size, out);
    fprintf(out, "\n");
}

void report_table(const struct comparison *comparison, FILE *out)
{
    struct row row;

    fprintf(out, "# all-reduce, float32 sum, in place, %d ranks, microseconds, median of blocks\n",
            comparison->place.ranks);
    fprintf(out, "%9s  %-14s%10s%10s%10s%10s%10s%8s%8s  %s\n", "bytes", "placement", "tutti",
            "symmetric", "openmpi", "mpich", "gloo", "ratio", "symm.", "best rival");
    for (int placement = 0; placement < PLACEMENT_COUNT; placement++) {
        for (int size = 0; size < comparison->size_count; size++) {
            if (make_row(comparison, size, placement, &row))
                print_row(comparison, &row, size, placement, out);
        }
    }
    if (comparison->discarded > 0)
        fprintf(out, "# %zu blocks discarded: the cores moved meanwhile\n", comparison->discarded);
}

/* ---- JSON ---- */

/* Rounded to a tenth of a nanosecond, lest the file pretends to more. */
static json_t *json_us(double us)
{
    return isnan(us) ? json_null() : json_real(round(us * 1e4) / 1e4);
}

static json_t *json_ratio(double ratio)
{
    return isnan(ratio) ? json_null() : json_real(round(ratio * 1e3) / 1e3);
}

/* NULL if there is none. */
static json_t *json_wrong(const struct comparison *comparison, int size)
{
    json_t *names = NULL;

    for (int i = 0; i < comparison->instance_count; i++) {
        if (!comparison->cells[size][i].wrong)
            continue;
        if (names == NULL)
            names = json_array();
        json_array_append_new(names, json_string(setting_of(comparison, i)->name));
    }
    return names;
}

static json_t *json_row(const struct comparison *comparison, const struct row *row, int size,
                        int placement, int ours)
{
    double median = median_at(row, ours);
    json_t *others = json_object();
    json_t *wrong = json_wrong(comparison, size);
    json_t *object;

    for (int i = 0; i < comparison->instance_count; i++) {
        const struct setting *setting = setting_of(comparison, i);

        if (strcmp(setting->library, "tutti") != 0 && !isnan(row->medians[i]))
            json_object_set_new(others, setting->name, json_us(row->medians[i]));
    }
    object = json_pack(
        "{s:s, s:s, s:s, s:i, s:I, s:s, s:s*, s:o, s:o, s:o}", "collective", "all_reduce", "dtype",
        "float32", "op", "sum", "ranks", comparison->place.ranks, "bytes",
        (json_int_t)comparison->sizes[size], "placement", placement_name((enum placement)placement),
        "algo", ours < 0 ? NULL : comparison->cells[size][ours].algo, "tutti_us", json_us(median),
        "rivals", others, "ratio", json_ratio(median / median_at(row, row->rival)));
    if (wrong != NULL)
        json_object_set_new(object, "wrong_settings", wrong);
    if (ours >= 0 && strcmp(setting_of(comparison, ours)->name, "tutti symmetric") == 0)
        json_object_set_new(object, "buffers", json_string("symmetric"));
    return object;
}

static json_t *json_rows(const struct comparison *comparison)
{
    static const char *const ours[] = {"tutti", "tutti symmetric"};
    json_t *rows = json_array();
    struct row row;

    for (int i = 0; i < 2; i++) {
        int instance = instance_named(comparison, ours[i]);

        for (int placement = 0; placement < PLACEMENT_COUNT; placement++) {
            for (int size = 0; size < comparison->size_count; size++) {
                if (!make_row(comparison, size, placement, &row))
                    continue;
                /* Without ours, the rivals' figures stand alone once. */
                if (!isnan(median_at(&row, instance)) || i == 0)
                    json_array_append_new(rows,
                                          json_row(comparison, &row, size, placement, instance));
            }
        }
    }
    return rows;
}

/* "AMD EPYC (family 26, model 2), 2 cores, Linux 6.1.0": the name alone is that of five
 * generations. */
static void describe_machine(char *text, size_t size)
{
    FILE *file = fopen("/proc/cpuinfo", "r");
    struct utsname kernel;
    char model[128] = "unknown CPU";
    char line[256], generation[40] = "";
    int family = -1, number = -1;

    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        if (sscanf(line, "model name : %127[^\n]", model) == 1)
            break;
        if (sscanf(line, "cpu family : %d", &family) != 1)
            (void)sscanf(line, "model : %d", &number);
    }
    if (file != NULL)
        fclose(file);
    uname(&kernel);
    if (family >= 0 && number >= 0)
        snprintf(generation, sizeof(generation), " (family %d, model %d)", family, number);
    snprintf(text, size, "%s%s, %ld cores, %s %s", model, generation, sysconf(_SC_NPROCESSORS_ONLN),
             kernel.sysname, kernel.release);
}

/* The commit of the source tree, with "-dirty" if more than results differs, or "unknown". */
static void describe_commit(char *text, size_t size)
{
    FILE *git = popen("cd '" BENCH_SOURCE_DIR "' && exec 2>/dev/null && "
                      "commit=$(git rev-parse --short=12 HEAD) && "
                      "if git diff --quiet HEAD -- ':!bench/results' ':!docs/*.svg'; "
                      "then echo $commit; else echo $commit-dirty; fi",
                      "r");

    if (git == NULL || fgets(text, (int)size, git) == NULL)
        snprintf(text, size, "unknown");
    if (git != NULL)
        pclose(git);
    text[strcspn(text, "\n")] = '\0';
}

int report_json(const struct comparison *comparison, const char *command, const char *path)
{
    char machine[320];
    char commit[64];
    char date[32];
    time_t now = time(NULL);
    json_t *report;
    int error;

    describe_machine(machine, sizeof(machine));
    describe_commit(commit, sizeof(commit));
    strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%SZ", gmtime(&now));
    report = json_pack("{s:s, s:s, s:s, s:s, s:o}", "machine", machine, "commit", commit, "date",
                       date, "command", command, "rows", json_rows(comparison));
    error = json_dump_file(report, path, JSON_INDENT(1) | JSON_REAL_PRECISION(8));
    json_decref(report);
    if (error != 0)
        fprintf(stderr, "compare: cannot write %s\n", path);
    return error;
}

/* ---- columns ---- */

/* The best time of a library's settings in a row's "rivals", whose names begin with it. */
static double best_of(const json_t *others, const char *library)
{
    size_t length = strlen(library);
    double best = NAN;
    const char *name;
    json_t *value;

    json_object_foreach((json_t *)(uintptr_t)others, name, value)
    {
        bool same =
            strncmp(name, library, length) == 0 && (name[length] == '\0' || name[length] == ' ');

        if (same && !(json_number_value(value) >= best))
            best = json_number_value(value);
    }
    return best;
}

static void print_column(FILE *out, double us)
{
    if (isnan(us))
        fprintf(out, "\t?");
    else
        fprintf(out, "\t%.4f", us);
}

static void print_columns(const json_t *row, FILE *out)
{
    const json_t *ours = json_object_get(row, "tutti_us");
    const json_t *others = json_object_get(row, "rivals");
    const char *buffers = json_string_value(json_object_get(row, "buffers"));

    fprintf(out, "%lld\t%s\t%s\t%lld", (long long)json_integer_value(json_object_get(row, "ranks")),
            json_string_value(json_object_get(row, "placement")), buffers != NULL ? buffers : "any",
            (long long)json_integer_value(json_object_get(row, "bytes")));
    print_column(out, json_is_number(ours) ? json_number_value(ours) : NAN);
    for (int i = 0; i < RIVAL_COUNT; i++)
        print_column(out, best_of(others, rivals[i]));
    fprintf(out, "\n");
}

int report_columns(char *const *paths, int count, FILE *out)
{
    fprintf(out, "# ranks\tplacement\tbuffers\tbytes\ttutti");
    for (int i = 0; i < RIVAL_COUNT; i++)
        fprintf(out, "\t%s", rivals[i]);
    fprintf(out, "\n");
    for (int i = 0; i < count; i++) {
        json_error_t error;
        json_t *report = json_load_file(paths[i], 0, &error);
        size_t index;
        json_t *row;

        if (report == NULL) {
            fprintf(stderr, "compare: %s:%d: %s\n", paths[i], error.line, error.text);
            return -1;
        }
        json_array_foreach(json_object_get(report, "rows"), index, row) print_columns(row, out);
        json_decref(report);
    }
    return 0;
}
