/* SPDX-License-Identifier: MIT */
/* Times Tutti and the libraries that people use today side by side, interleaved in one run. */
#include "comparison.h"
#include "report.h"

#include <argp.h>
#include <errno.h>
#include <ftw.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum option_key {
    KEY_QUICK = 256,
    KEY_THOROUGH,
    KEY_BOTH,
    KEY_CROWDED,
    KEY_LIST,
    KEY_COLUMNS,
    KEY_BLOCK,
    KEY_THRESHOLD,
};

static const struct argp_option options[] = {
    {"ranks", 'n', "N", 0, "ranks, processes of this machine (2)", 0},
    {"sizes", 's', "LIST", 0, "bytes, such as 8,64K,1M (ten sizes from 8 to 64M)", 0},
    {"engines", 'e', "LIST", 0, "libraries among tutti,openmpi,mpich,gloo (all)", 0},
    {"budget", 'b', "SECONDS", 0, "stop sampling after this time (120)", 0},
    {"samples", 'k', "K", 0, "blocks wanted of each setting, size and placement (15)", 0},
    {"both", KEY_BOTH, NULL, 0, "go on until near and far are both sampled", 0},
    {"crowded", KEY_CROWDED, NULL, 0, "do not pin, as with more ranks than cores", 0},
    {"quick", KEY_QUICK, NULL, 0, "five sizes, few samples: under 20 s", 0},
    {"thorough", KEY_THOROUGH, NULL, 0, "run every setting at every size", 0},
    {"block", KEY_BLOCK, "MS", 0, "what a timed block aims to take (5; 20 if crowded)", 0},
    {"threshold", KEY_THRESHOLD, "NS", 0, "round trip between near and far (200)", 0},
    {"json", 'j', "FILE", 0, "write the results there", 0},
    {"list", KEY_LIST, NULL, 0, "list the settings and end", 0},
    {"columns", KEY_COLUMNS, NULL, 0, "print the result files FILE... as columns and end", 0},
    {0},
};

struct settings_asked {
    struct comparison *comparison;
    const char *json;
    bool list;
    bool columns;
    bool crowded;
    char **files;
    int file_count;
};

static volatile int interrupted;

static void interrupt(int signal_number)
{
    (void)signal_number;
    interrupted = 1;
}

/* "8,64K,1M" */
static void parse_sizes(struct comparison *comparison, const char *list, struct argp_state *state)
{
    const char *at = list;

    comparison->size_count = 0;
    for (;;) {
        char *end;
        unsigned long long bytes = strtoull(at, &end, 10);

        if (*end == 'K' || *end == 'M')
            bytes <<= *end++ == 'K' ? 10 : 20;
        if (end == at || (*end != ',' && *end != '\0') || bytes < 4 || bytes > 1ull << 30 ||
            bytes % 4 != 0 || comparison->size_count == COMPARISON_MAX_SIZES)
            argp_error(state,
                       "sizes \"%s\": at \"%s\" expected up to %d multiples of 4 up to 1024M", list,
                       at, COMPARISON_MAX_SIZES);
        comparison->sizes[comparison->size_count++] = (size_t)bytes;
        if (*end == '\0')
            return;
        at = end + 1;
    }
}

/* "tutti,gloo": each word is a library of a setting. */
static void parse_engines(struct comparison *comparison, const char *list, struct argp_state *state)
{
    for (const char *word = list; word != NULL; word = strchr(word, ',')) {
        bool known = false;
        size_t length;

        word += *word == ',';
        length = strcspn(word, ",");
        for (int i = 0; i < setting_count; i++)
            known |= strlen(settings[i].library) == length &&
                     strncmp(settings[i].library, word, length) == 0;
        if (!known)
            argp_error(state,
                       "engines \"%s\": at \"%s\" expected a name among tutti,openmpi,mpich,gloo",
                       list, word);
    }
    comparison->engines = list;
}

static double parse_number(const char *text, double least, double most, struct argp_state *state)
{
    char *end;
    double value = strtod(text, &end);

    if (end == text || *end != '\0' || !(value >= least && value <= most))
        argp_error(state, "\"%s\" is no number from %g to %g", text, least, most);
    return value;
}

static error_t parse(int key, char *argument, struct argp_state *state)
{
    struct settings_asked *asked = state->input;
    struct comparison *comparison = asked->comparison;

    switch (key) {
    case 'n':
        comparison->place.ranks = (int)parse_number(argument, 2, BENCH_MAX_RANKS, state);
        break;
    case 's':
        parse_sizes(comparison, argument, state);
        break;
    case 'e':
        parse_engines(comparison, argument, state);
        break;
    case 'b':
        comparison->budget_s = parse_number(argument, 0, 1e6, state);
        break;
    case 'k':
        comparison->wanted = (size_t)parse_number(argument, 1, 1e6, state);
        break;
    case KEY_BOTH:
        comparison->both = true;
        break;
    case KEY_CROWDED:
        asked->crowded = true;
        break;
    case KEY_QUICK:
        parse_sizes(comparison, "8,1K,64K,1M,16M", state);
        comparison->budget_s = 10;
        comparison->wanted = 5;
        break;
    case KEY_THOROUGH:
        comparison->thorough = true;
        break;
    case KEY_BLOCK:
        comparison->block_ns = 1e6 * parse_number(argument, 0.01, 1000, state);
        break;
    case KEY_THRESHOLD:
        comparison->threshold_ns = parse_number(argument, 1, 1e6, state);
        break;
    case 'j':
        asked->json = argument;
        break;
    case KEY_LIST:
        asked->list = true;
        break;
    case KEY_COLUMNS:
        asked->columns = true;
        break;
    case ARGP_KEY_ARG:
        if (!asked->columns)
            argp_error(state, "\"%s\": no argument is expected", argument);
        asked->files = &state->argv[state->next - 1];
        asked->file_count = state->argc - state->next + 1;
        state->next = state->argc;
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static int remove_entry(const char *path, const struct stat *status, int type, struct FTW *walk)
{
    (void)status;
    (void)type;
    (void)walk;
    return remove(path);
}

static void list_settings(const struct comparison *comparison)
{
    for (int i = 0; i < setting_count; i++) {
        const struct setting *setting = &settings[i];

        if (!comparison_wants(comparison, setting))
            continue;
        printf("%s\n    %s\n", setting->name, setting->program);
        for (int j = 0; j < SETTING_MAX_WORDS && setting->environment[j] != NULL; j++)
            printf("    %s\n", setting->environment[j]);
    }
}

static int measure(struct comparison *comparison, const char *command, const char *json)
{
    char programs[256] = "";
    char directory[] = "/tmp/tutti-bench-XXXXXX";
    ssize_t length = readlink("/proc/self/exe", programs, sizeof(programs) - 1);
    int error = -1;

    if (length < 0 || mkdtemp(directory) == NULL) {
        fprintf(stderr, "compare: %s: %s\n", directory, strerror(errno));
        return -1;
    }
    *strrchr(programs, '/') = '\0';
    comparison->place.programs = programs;
    comparison->place.directory = directory;
    if (comparison_start(comparison) != 0)
        goto out;
    /* After the ranks have started: it binds this process, which they would inherit. */
    if (comparison->place.pinned && (comparison->probe = probe_create()) == NULL) {
        fprintf(stderr, "compare: cannot probe the distance of two cores\n");
        goto out;
    }
    comparison_run(comparison, &interrupted);
    report_table(comparison, stdout);
    error = json != NULL ? report_json(comparison, command, json) : 0;
    if (comparison->lost)
        error = -1;

out:
    probe_destroy(comparison->probe);
    comparison_stop(comparison);
    comparison_fini(comparison);
    nftw(directory, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    return error;
}

/* Joins the words of the command line. */
static void join(char *text, size_t size, int count, char **words)
{
    size_t used = 0;

    for (int i = 0; i < count && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%s", i > 0 ? " " : "", words[i]);
}

int main(int argc, char **argv)
{
    static const struct argp argp = {
        options, parse, "[FILE...]", "Compares all-reduce of Tutti with other libraries.",
        NULL,    NULL,  NULL};
    static struct comparison comparison = {.place.ranks = 2,
                                           .budget_s = 120,
                                           .threshold_ns = 200,
                                           .wanted = 15,
                                           .sizes = {8, 64, 1 << 10, 8 << 10, 64 << 10, 256 << 10,
                                                     1 << 20, 4 << 20, 16 << 20, 64 << 20},
                                           .size_count = 10};
    struct settings_asked asked = {.comparison = &comparison};
    struct sigaction action = {.sa_handler = interrupt};
    char command[1024];
    cpu_set_t allowed;
    int error = 0;

    join(command, sizeof(command), argc, argv);
    if (argp_parse(&argp, argc, argv, 0, NULL, &asked) != 0)
        return EXIT_FAILURE;
    sched_getaffinity(0, sizeof(allowed), &allowed);
    comparison.place.pinned = !asked.crowded && comparison.place.ranks <= CPU_COUNT(&allowed);
    for (int i = 0; i < comparison.size_count; i++) {
        if (comparison.sizes[i] > comparison.place.capacity)
            comparison.place.capacity = comparison.sizes[i];
    }
    if (comparison.block_ns == 0)
        comparison.block_ns = comparison.place.pinned ? 5e6 : 20e6;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    if (asked.columns)
        error = report_columns(asked.files, asked.file_count, stdout);
    else if (asked.list)
        list_settings(&comparison);
    else
        error = measure(&comparison, command, asked.json);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fprintf(stderr, "compare: cannot write the output\n");
        error = -1;
    }
    return error != 0;
}
