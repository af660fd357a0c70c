/* SPDX-License-Identifier: MIT */
/* The command line of tutti tune. */
#include "results.h"
#include "tool.h"
#include "tune.h"

#include <string.h>

enum {
    OPTION_DEVICE = 256,
    OPTION_QUICK,
    OPTION_GRAPH,
    OPTION_ITERS,
    OPTION_SECONDS,
    OPTION_JSON,
};

enum { LEAST_BYTES = 256, MOST_BYTES = 256 << 20, BATCH = 20, ROUNDS = 15, TIMEOUT_MS = 60000 };

static const struct argp_option options[] = {
    {"device", OPTION_DEVICE, "NAME", 0, "cuda; no other device can be tuned", 0},
    {"ranks", 'n', "N", 0, "Ranks, 2 to 8 (default: as many as there are GPUs)", 0},
    {"output", 'o', "FILE", 0,
     "The tuning file (default: $XDG_CACHE_HOME/tutti/tuning or ~/.cache/tutti/tuning, which the "
     "library loads)",
     0},
    {"minbytes", 'b', "SIZE", 0, "Smallest size, a power of two from 256 (default 1K)", 0},
    {"maxbytes", 'e', "SIZE", 0, "Largest size, a power of two up to 256M (default 64M)", 0},
    {"quick", OPTION_QUICK, 0, 0, "Try fewer block sizes, and only the largest grids", 0},
    {"graph", OPTION_GRAPH, "N", 0, "Operations of a CUDA graph (default 20)", 0},
    {"iters", OPTION_ITERS, "N", 0, "Replays of each graph (default 15)", 0},
    {"seconds", OPTION_SECONDS, "N", 0,
     "Begin no run that is likely to end later than this (default 120)", 0},
    {"json", OPTION_JSON, "FILE", 0,
     "Also write all measurements to FILE; - is standard output, and the rest of the output then "
     "goes to stderr",
     0},
    {0},
};

static const char doc[] =
    "Measures every kernel with many grids and blocks on this machine's GPUs, and writes the "
    "fastest ones as a tuning file.\v"
    "For each size several candidates and the built-in choice alternate. They run all-reduces "
    "(bfloat16, sum, out of place) in CUDA graphs. The median of the slowest rank counts. Every "
    "element of each candidate's result is checked once. The best candidate of each size is then "
    "measured again, and kept if it is faster than the built-in choice again. Rows of other "
    "devices and numbers of ranks in the file are kept.";

struct command_line {
    struct tune_options *options;
    struct bench_config *config;
};

static size_t power_argument(struct argp_state *state, const char *option, const char *text)
{
    size_t bytes = size_argument(state, option, text);
    if (bytes < LEAST_BYTES || bytes > MOST_BYTES || bytes & (bytes - 1))
        argp_error(state, "%s: '%s' is no power of two from 256 to 256M", option, text);
    return bytes;
}

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    struct command_line *line = state->input;
    switch (key) {
    case 'n':
        line->config->ranks = integer_argument(state, "-n", text, 2, BENCH_GPU_RANKS);
        return 0;
    case 'o':
        line->options->output = text;
        return 0;
    case 'b':
        line->config->min_bytes = power_argument(state, "-b", text);
        return 0;
    case 'e':
        line->config->max_bytes = power_argument(state, "-e", text);
        return 0;
    case OPTION_DEVICE:
        if (strcmp(text, "cuda") != 0)
            argp_error(state, "--device: '%s' cannot be tuned: give cuda", text);
        return 0;
    case OPTION_QUICK:
        line->options->quick = true;
        return 0;
    case OPTION_GRAPH:
        line->config->batch = integer_argument(state, "--graph", text, 1, 10000);
        return 0;
    case OPTION_ITERS:
        line->config->iterations = integer_argument(state, "--iters", text, 1, BENCH_REPLAYS);
        return 0;
    case OPTION_SECONDS:
        line->options->seconds = integer_argument(state, "--seconds", text, 1, 86400);
        return 0;
    case OPTION_JSON:
        results_argument(state, "--json", text);
        line->options->json_path = text;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "'%s': no argument is expected, options only", text);
        return 0;
    case ARGP_KEY_END:
        if (line->config->min_bytes > line->config->max_bytes)
            argp_error(state, "-b %zu is larger than -e %zu", line->config->min_bytes,
                       line->config->max_bytes);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

bool tune_options_init(struct tune_options *tune, struct bench_config *config, int argc,
                       char **argv)
{
    static const struct argp argp = {
        .options = options, .parser = parse_option, .doc = doc, .children = help_children};
    struct command_line line = {tune, config};
    *tune = (struct tune_options){.seconds = 120};
    bench_config_default(config);
    config->device = TUTTI_DEVICE_CUDA;
    config->min_bytes = 1 << 10;
    config->max_bytes = 64 << 20;
    config->dtypes[TUTTI_BFLOAT16] = true;
    config->ops[(uintptr_t)TUTTI_SUM] = true;
    config->graph = true;
    config->batch = BATCH;
    config->iterations = ROUNDS;
    config->warmup = 2;
    config->one_place = true;
    config->timeout_ms = TIMEOUT_MS;
    bench_config_command(config, argc, argv);
    if (argp_parse(&argp, argc, argv, 0, NULL, &line) || !results_take_output(tune->json_path))
        return false;
    tune_cache_path(tune->cache, sizeof tune->cache);
    if (!tune->output && !*tune->cache)
        return tool_fail("neither XDG_CACHE_HOME nor HOME names a folder: give -o FILE");
    tune->output = tune->output ? tune->output : tune->cache;
    return bench_config_complete(config);
}
