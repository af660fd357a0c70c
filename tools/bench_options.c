/* SPDX-License-Identifier: MIT */
/* The command line of tutti bench, and the list of rows that it asks for. */
#include "bench.h"
#include "gpu.h"
#include "reference.h"
#include "results.h"
#include "tool.h"
#include "vs.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* With --timeout GPU ranks wait so much longer for each other on the host: one rank's host may need
 * longer than another's to fill and compare large buffers. */
enum { ALLOWANCE_SECONDS = 10 };

enum {
    OPTION_ITERS = 256,
    OPTION_ALGO,
    OPTION_JSON,
    OPTION_CSV,
    OPTION_LONG,
    OPTION_STYLE,
    OPTION_COLD,
    OPTION_SYMMETRIC,
    OPTION_COLLECTIVE,
    OPTION_TIMEOUT,
    OPTION_THREADS,
    OPTION_NO_BIND,
    OPTION_DEVICE,
    OPTION_GRAPH,
    OPTION_PDL,
    OPTION_NO_PDL,
    OPTION_THREADS_PER_RANK,
    OPTION_MAX_BLOCKS,
    OPTION_COPY_ENGINE,
    OPTION_DEVICE_COUNTS,
    OPTION_BESIDE,
    OPTION_VS,
    OPTION_STREAMS,
    OPTION_RANKS_AS,
    OPTION_COUNTS,
    OPTION_SECONDS,
    OPTION_BOTH,
    OPTION_ROW,
    OPTION_TOKENS,
    OPTION_QUANT,
    OPTION_FABRIC,
};

/* The collectives of collective.h. */
#define COLLECTIVE_NAMES                                                                           \
    " all_reduce, barrier, all_gather, reduce_scatter, all_to_all, broadcast, reduce, gather, "    \
    "scatter, send_recv, all_gather_v, reduce_scatter_v, all_to_all_v, gather_v, scatter_v, "      \
    "all_reduce_rms_norm"

static const struct argp_option options[] = {
    {0, 0, 0, 0, "What is measured:", 1},
    {"minbytes", 'b', "SIZE", 0,
     "Smallest message of a rank (default 8), which is its larger buffer, with the blocks of all "
     "ranks if it has them, as in nccl-tests; SIZE is bytes, or such as 64K, 1.5M, 1G",
     0},
    {"maxbytes", 'e', "SIZE", 0, "Largest message (default 64M, or the smallest if that is larger)",
     0},
    {"stepfactor", 'f', "FACTOR", 0, "Multiply by FACTOR from one size to the next (default 2)", 0},
    {"stepbytes", 'i', "SIZE", 0, "Add SIZE instead, at least 1", 0},
    {"counts", OPTION_COUNTS, "COUNTS", 0,
     "Numbers of elements of a block, joined by commas, instead of sizes: odd or prime ones, say",
     0},
    {"datatype", 'd', "TYPES", 0, "Names joined by commas, or all (default float32)", 0},
    {"op", 'o', "OPS", 0,
     "sum prod min max avg band bor bxor premul_sum, joined by commas, or all (default sum)", 0},
    {"collective", OPTION_COLLECTIVE, "NAME", 0,
     "One of" COLLECTIVE_NAMES " (default all_reduce); a barrier has no sizes, types, operations, "
     "buffers or check; send_recv is to the next rank, from the one before; the blocks of those "
     "with _v have one length",
     0},
    {"hidden", OPTION_ROW, "N", 0,
     "Of all_reduce_rms_norm: the elements of a row, a multiple of 8 up to 16384 (default 4096)",
     0},
    {"tokens", OPTION_TOKENS, "COUNTS", 0,
     "Of all_reduce_rms_norm: the rows, joined by commas (default 1,8,32,64,128,512)", 0},
    {"quant", OPTION_QUANT, "NAME", 0,
     "Of all_reduce_rms_norm: the quantised output: none (default), fp8_tensor, fp8_token, "
     "fp8_group, fp8_group_ue8m0 or int8_token",
     0},
    {"algo", OPTION_ALGO, "NAME", 0,
     "none (default), which leaves the choice to the library, one_shot, two_shot or "
     "hybrid_cube_mesh (8 ranks); with a GPU also ring or host_staged (of the communicator); "
     "TUTTI_ALGO may also name a kernel, as tuning files do",
     0},
    {"cold", OPTION_COLD, 0, 0, "Give every operation buffers that are in no cache", 0},
    {"symmetric", OPTION_SYMMETRIC, 0, 0, "Take the buffers from tutti_symm_alloc()", 0},
    {"device-counts", OPTION_DEVICE_COUNTS, "TYPE", OPTION_ARG_OPTIONAL,
     "all_gather_v, reduce_scatter_v and all_to_all_v read their counts when they run, with a GPU "
     "in its memory: int64 (default) or int32",
     0},
    {0, 0, 0, 0, "Who takes part:", 2},
    {"ranks", 'n', "N", 0,
     "Ranks, 1 to 64 (default: those that a launcher has started, such as mpirun; else one for "
     "each "
     "core, at least 2, or for each GPU). nccl-tests' -n is --iters",
     0},
    {"fabric", OPTION_FABRIC, "URL", 0,
     "What joins a launcher's ranks on several hosts (default mpi:, the launcher's MPI, unless it "
     "is torchrun). mpi:PATH names a library",
     0},
    {"device", OPTION_DEVICE, "NAME", 0, "cpu (default) or cuda: one GPU a rank, 2 to 8", 0},
    {"ranks-as", OPTION_RANKS_AS, "KIND", 0, "processes (default), or threads of one process", 0},
    {"threads", OPTION_THREADS, 0, 0, "The same as --ranks-as threads", 0},
    {"nthreads", 't', "N", 0,
     "As in nccl-tests: N threads of one process, with -g GPUs each. The same as -n N --threads",
     0},
    {"ngpus", 'g', "N", 0,
     "As in nccl-tests: N GPUs, or N for each of -t threads. The same as -n N --device cuda", 0},
    {"threads-per-rank", OPTION_THREADS_PER_RANK, "N", 0,
     "N threads of OpenMP in each rank share the work of a long operation; each rank gets N cores",
     0},
    {"no-bind", OPTION_NO_BIND, 0, 0,
     "Do not bind each rank to a core of its own (never done when ranks, or their threads, "
     "outnumber the cores)",
     0},
    {0, 0, 0, 0, "How it is measured:", 3},
    {"warmup_iters", 'w', "N", 0,
     "Operations before the timed ones (default: until the times of a row settle, 0.2 s at most; "
     "with a GPU 5 rounds)",
     0},
    {"iters", OPTION_ITERS, "N", 0,
     "Timed operations (default: what 50 ms take, from 20 to 100000; "
     "fewer where these take longer than 0.5 s)",
     0},
    {"check", 'c', "0|1", 0, "Compare every element of every rank, bit for bit (default 1)", 0},
    {"timeout", OPTION_TIMEOUT, "SECONDS", 0,
     "Time limit of set-up and of each operation (default: the library's); GPU ranks wait 10 s "
     "longer for each other (default 120)",
     0},
    {0, 0, 0, 0, "Beside other libraries:", 4},
    {"vs", OPTION_VS, "NAMES", 0,
     "openmpi, openmpi5, mpich, mpich5, intelmpi, gloo, joined by commas, or all: measure the same "
     "collective of theirs too (gloo: all_reduce alone), in turn with ours, as `make bench` builds "
     "them. With --device cuda nccl, with ordinary and with symmetric buffers; what it has no "
     "collective for, by grouped messages. mpi: the MPI of the launcher that has started the ranks",
     0},
    {"seconds", OPTION_SECONDS, "N", 0, "End after this time (default: 10 for each rival)", 0},
    {"both", OPTION_BOTH, 0, 0, "Go on until the cores have been both near and far", 0},
    {0, 0, 0, 0, "With --device cuda:", 5},
    {"graph", OPTION_GRAPH, "N", OPTION_ARG_OPTIONAL,
     "Capture N operations in one CUDA graph and time its replays (default 50, from 64M on 10)", 0},
    {"pdl", OPTION_PDL, 0, 0,
     "Launch programmatically: a kernel may start while the one before it ends. Without this or "
     "--no-pdl the communicator decides",
     0},
    {"no-pdl", OPTION_NO_PDL, 0, 0, "Do not launch programmatically", 0},
    {"max-blocks", OPTION_MAX_BLOCKS, "N", 0,
     "Launch no kernel of more than N blocks, so that at most N multiprocessors run it", 0},
    {"copy-engine", OPTION_COPY_ENGINE, 0, 0,
     "Move the blocks of all_gather, all_to_all, broadcast, gather or scatter by copy engines, "
     "which leaves the multiprocessors free; implies --symmetric",
     0},
    {"beside", OPTION_BESIDE, "gemm", 0,
     "Also time a matrix product (bfloat16, 4096 x 4096, by cuBLAS) and the collective while the "
     "other runs on another stream; needs --graph",
     0},
    {"streams", OPTION_STREAMS, "N", 0,
     "Operations alternate between N streams, 1 to 8 (default 1)", 0},
    {0, 0, 0, 0, "Output:", 6},
    {"long", OPTION_LONG, 0, 0,
     "A row for each place, with the fastest rank and the mean of all ranks, p50 and p99, and what "
     "a call took the host of a GPU",
     0},
    {"style", OPTION_STYLE, "NAME", 0,
     "The columns of nccl-tests (default), or osu: those of the OSU micro-benchmarks, out of "
     "place, "
     "with the bytes of a block",
     0},
    {"json", OPTION_JSON, "FILE", 0,
     "Write the results to FILE as well; - is standard output, and the table then goes to stderr",
     0},
    {"csv", OPTION_CSV, "FILE", 0, "Write the rows of --json as comma-separated values", 0},
    {0},
};

static const char doc[] =
    "Measures collective operations between ranks that it starts itself, and prints the columns of "
    "nccl-tests.\v"
    "time is the mean of the slowest rank, in microseconds; algbw is size/time and busbw is algbw "
    "times 2(n-1)/n for all_reduce, 1 for broadcast, reduce and send_recv, (n-1)/n for the "
    "others. size is of a rank's larger buffer, count the elements of one block. --long adds min, "
    "the time of the fastest rank, the "
    "mean over all ranks, and "
    "p50 and p99, percentiles of the slowest rank's times. Operations of up to 1 KiB are timed in "
    "batches of 32, up to 16 KiB of 8, but in at least 10 batches, so that the clock does not "
    "dominate. A percentile is then one of batch means. If there are more ranks than cores, they "
    "are timed one by one.\n\n"
    "Without -w each row runs batches of 2 ms until five in a row are no more than 3 % faster than "
    "the fastest one before, or 0.2 s have passed.\n\n"
    "--vs prints other columns: medians of blocks of about 5 ms (20 ms if ranks share cores) of "
    "float32 in place, with sum, each rival with its best setting, and Tutti's time divided by the "
    "best "
    "rival's. A rival that is missing or wrong is named and left out. Rivals' programs are looked "
    "for in $TUTTI_BENCH_RIVALS, or else beside tutti.\n\n"
    "With a GPU a round is a replay of the graph, or a batch of 200 calls (from 64M on 10), "
    "between "
    "two events. time is the median of the rounds, host the time of a call on the host. --iters "
    "and -w count rounds.\n\n"
    "#wrong counts, over all ranks, the elements of the result that differ in any bit from a "
    "reference computed one by one, elements of the input that changed, and bytes around both that "
    "changed. Inputs show the order of the additions; if a ring sums, which has another order, "
    "they "
    "are whole numbers. The exit status is 1 if #wrong is not 0 or a rank failed.";

static void dtypes_argument(struct argp_state *state, char *text, bool *chosen)
{
    memset(chosen, 0, TUTTI_DTYPE_COUNT);
    bool all = strcmp(text, "all") == 0;
    if (!*text)
        argp_error(state, "-d: a data type is missing: give names such as float32, or all");
    for (int dtype = 0; dtype < TUTTI_DTYPE_COUNT; dtype++)
        chosen[dtype] = all;
    char *rest = NULL;
    for (char *name = all ? NULL : strtok_r(text, ",", &rest); name;
         name = strtok_r(NULL, ",", &rest)) {
        enum tutti_dtype dtype = TUTTI_FLOAT32;
        if (!parse_dtype(name, &dtype))
            argp_error(
                state,
                "-d: '%s' is no data type: give names such as float32,bfloat16,int64, or all",
                name);
        chosen[dtype] = true;
    }
}

static void ops_argument(struct argp_state *state, char *text, bool *chosen)
{
    memset(chosen, 0, REFERENCE_OPS);
    bool all = strcmp(text, "all") == 0;
    if (!*text)
        argp_error(state, "-o: an operation is missing: give names such as sum, or all");
    for (int op = 1; op < REFERENCE_OPS; op++)
        chosen[op] = all;
    char *rest = NULL;
    for (char *name = all ? NULL : strtok_r(text, ",", &rest); name;
         name = strtok_r(NULL, ",", &rest)) {
        tutti_op_t op = TUTTI_SUM;
        if (!parse_op(name, &op))
            argp_error(state, "-o: '%s' is no operation: give names such as sum,max,bxor, or all",
                       name);
        chosen[(uintptr_t)op] = true;
    }
}

static void counts_argument(struct argp_state *state, const char *option, char *text,
                            struct bench_config *config)
{
    char *rest = NULL;
    config->count_count = 0;
    for (char *word = strtok_r(text, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
        if (config->count_count == BENCH_COUNTS)
            argp_error(state, "%s: more than %d numbers", option, BENCH_COUNTS);
        config->counts[config->count_count++] = size_argument(state, option, word);
    }
    if (!config->count_count)
        argp_error(state, "%s: a number is missing", option);
}

static void quant_argument(struct argp_state *state, const char *text, struct bench_config *config)
{
    int quant = TUTTI_QUANT_NONE;
    while (quant <= TUTTI_QUANT_INT8_TOKEN &&
           strcmp(text, tutti_quant_name((enum tutti_quant)quant)) != 0)
        quant++;
    if (quant > TUTTI_QUANT_INT8_TOKEN)
        argp_error(state,
                   "--quant: '%s' is unknown: give none, fp8_tensor, fp8_token, fp8_group, "
                   "fp8_group_ue8m0 or int8_token",
                   text);
    config->quant = (enum tutti_quant)quant;
}

static void vs_argument(struct argp_state *state, char *text, struct bench_config *config)
{
    const char *bad;
    config->vs_nccl = strcmp(text, "nccl") == 0;
    config->vs_mpi = strcmp(text, "mpi") == 0;
    config->vs_libraries = 0;
    if (!config->vs_nccl && !config->vs_mpi && !vs_parse(text, &config->vs_libraries, &bad))
        argp_error(state,
                   "--vs: '%s' is no rival: give %s or all, with --device cuda nccl, or under a "
                   "launcher mpi",
                   bad, vs_names());
}

/* Options of all_reduce_rms_norm. */
static error_t parse_norm_option(int key, char *text, struct argp_state *state)
{
    struct bench_config *config = state->input;
    switch (key) {
    case OPTION_ROW:
        config->hidden =
            (size_t)integer_argument(state, "--hidden", text, 8, TUTTI_NORM_HIDDEN_MAX);
        return 0;
    case OPTION_TOKENS:
        counts_argument(state, "--tokens", text, config);
        return 0;
    case OPTION_QUANT:
        quant_argument(state, text, config);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse_gpu_option(int key, char *text, struct argp_state *state)
{
    struct bench_config *config = state->input;
    switch (key) {
    case OPTION_DEVICE:
        if (strcmp(text, "cuda") != 0 && strcmp(text, "cpu") != 0)
            argp_error(state, "--device: '%s' is no device: give cpu or cuda", text);
        config->device = strcmp(text, "cuda") == 0 ? TUTTI_DEVICE_CUDA : TUTTI_DEVICE_CPU;
        return 0;
    case OPTION_RANKS_AS:
        if (strcmp(text, "threads") != 0 && strcmp(text, "processes") != 0)
            argp_error(state, "--ranks-as: '%s' is no kind: give threads or processes", text);
        config->threads = strcmp(text, "threads") == 0;
        return 0;
    case OPTION_GRAPH:
        config->graph = true;
        config->batch = text ? integer_argument(state, "--graph", text, 1, 10000) : 0;
        return 0;
    case OPTION_PDL:
        config->pdl = TUTTI_PROGRAMMATIC_ON;
        return 0;
    case OPTION_NO_PDL:
        config->pdl = TUTTI_PROGRAMMATIC_OFF;
        return 0;
    case OPTION_THREADS_PER_RANK:
        config->threads_per_rank =
            integer_argument(state, "--threads-per-rank", text, 1, TUTTI_MAX_THREADS);
        return 0;
    case OPTION_MAX_BLOCKS:
        config->max_blocks = integer_argument(state, "--max-blocks", text, 1, INT_MAX);
        return 0;
    case OPTION_COPY_ENGINE:
        config->copy_engine = config->symmetric = true;
        return 0;
    case OPTION_DEVICE_COUNTS:
        config->count_bits = !text || strcmp(text, "int64") == 0 ? 64 : 32;
        if (text && strcmp(text, "int64") != 0 && strcmp(text, "int32") != 0)
            argp_error(state, "--device-counts: '%s' is no type: give int64 or int32", text);
        return 0;
    case OPTION_BESIDE:
        if (strcmp(text, "gemm") != 0)
            argp_error(state, "--beside: '%s' is unknown: give gemm", text);
        config->beside = true;
        return 0;
    case OPTION_FABRIC:
        config->fabric = text;
        return 0;
    case OPTION_VS:
        vs_argument(state, text, config);
        return 0;
    case OPTION_STREAMS:
        config->streams = integer_argument(state, "--streams", text, 1, BENCH_STREAMS);
        return 0;
    default:
        return parse_norm_option(key, text, state);
    }
}

static bool is_osu_argument(struct argp_state *state, const char *text)
{
    if (strcmp(text, "osu") != 0 && strcmp(text, "nccl-tests") != 0)
        argp_error(state, "--style: '%s' is no style: give nccl-tests or osu", text);
    return strcmp(text, "osu") == 0;
}

/* Options that are flags, or whose value is a name in a map. */
static error_t parse_long_option(int key, char *text, struct argp_state *state)
{
    struct bench_config *config = state->input;
    switch (key) {
    case OPTION_ITERS:
        config->iterations = integer_argument(state, "--iters", text, 1, 1000000000);
        return 0;
    case OPTION_ALGO:
        if (!parse_algo(text, &config->algo))
            argp_error(state,
                       "--algo: '%s' is no algorithm: give none, one_shot, two_shot, "
                       "hybrid_cube_mesh, or for GPUs ring or host_staged",
                       text);
        return 0;
    case OPTION_COLLECTIVE:
        config->norms = strcmp(text, "all_reduce_rms_norm") == 0;
        if (!config->norms && !parse_collective(text, &config->collective))
            argp_error(state, "--collective: '%s' is no collective: give one of" COLLECTIVE_NAMES,
                       text);
        return 0;
    case OPTION_COUNTS:
        counts_argument(state, "--counts", text, config);
        return 0;
    case OPTION_TIMEOUT:
        config->timeout_ms = 1000 * (int64_t)integer_argument(state, "--timeout", text, 1, 86400);
        config->wait_seconds = (double)config->timeout_ms * 1e-3 + ALLOWANCE_SECONDS;
        return 0;
    case OPTION_JSON:
        config->json_path = text;
        return 0;
    case OPTION_CSV:
        config->csv_path = text;
        return 0;
    case OPTION_LONG:
        config->long_rows = true;
        return 0;
    case OPTION_STYLE:
        config->osu = is_osu_argument(state, text);
        return 0;
    case OPTION_COLD:
        config->cold = true;
        return 0;
    case OPTION_SYMMETRIC:
        config->symmetric = true;
        return 0;
    case OPTION_THREADS:
        config->threads = true;
        return 0;
    case OPTION_NO_BIND:
        config->bind = false;
        return 0;
    case OPTION_SECONDS:
        config->vs_seconds = integer_argument(state, "--seconds", text, 1, 86400);
        return 0;
    case OPTION_BOTH:
        config->vs_both = true;
        return 0;
    default:
        return parse_gpu_option(key, text, state);
    }
}

static int ranks_argument(struct argp_state *state, const char *text)
{
    long ranks = 1;
    if (!parse_integer(text, 1, TUTTI_MAX_RANKS, &ranks))
        argp_error(state,
                   "-n: '%s' is no whole number from 1 to %d; -n is the number of ranks, and "
                   "nccl-tests' -n is --iters",
                   text, TUTTI_MAX_RANKS);
    return (int)ranks;
}

/* Applies nccl-tests' -t (threads) and -g (GPUs of each). */
static void count_threads_and_gpus(struct argp_state *state, struct bench_config *config)
{
    int threads = config->threads_given ? config->threads_given : 1;
    int gpus = config->gpus_given ? config->gpus_given : 1;
    if (!config->threads_given && !config->gpus_given)
        return;
    if (config->ranks)
        argp_error(state,
                   "-n %d: %s already says how many ranks there are; nccl-tests' -n is --iters",
                   config->ranks, config->threads_given ? "-t" : "-g");
    if (threads * gpus > TUTTI_MAX_RANKS)
        argp_error(state, "-t %d -g %d: give at most %d ranks", threads, gpus, TUTTI_MAX_RANKS);
    config->ranks = threads * gpus;
    if (config->threads_given)
        config->threads = true;
    if (config->gpus_given)
        config->device = TUTTI_DEVICE_CUDA;
}

static void check_device(struct argp_state *state, const struct bench_config *config)
{
    bool cuda = config->device == TUTTI_DEVICE_CUDA;
    const struct {
        bool wrong;
        const char *text;
    } rules[] = {
        {!cuda && config->graph, "--graph"},
        {!cuda && config->pdl, "--pdl"},
        {!cuda && config->vs_nccl, "--vs nccl"},
        {!cuda && config->streams > 1, "--streams"},
        {!cuda && config->max_blocks, "--max-blocks"},
        {!cuda && config->copy_engine, "--copy-engine"},
        {!cuda && config->beside, "--beside"},
        {!cuda && config->algo > TUTTI_ALGO_TWO_SHOT && config->algo != TUTTI_ALGO_HYBRID_CUBE_MESH,
         "--algo with an algorithm of GPUs"},
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (rules[i].wrong)
            argp_error(state, "%s needs --device cuda", rules[i].text);
    if (cuda && config->threads_per_rank)
        argp_error(state, "--threads-per-rank needs --device cpu");
    if (config->beside && !config->graph)
        argp_error(state, "--beside needs --graph: calls one by one would not fill the time");
    if (config->osu && (config->long_rows || config->vs_nccl || config->vs_mpi ||
                        config->vs_libraries || config->beside))
        argp_error(state, "--style osu has no place for more columns: leave out %s",
                   config->long_rows ? "--long"
                   : config->beside  ? "--beside"
                                     : "--vs");
    if (cuda && config->vs_libraries)
        argp_error(state,
                   "--vs: with --device cuda give nccl; the other libraries are for CPU ranks");
    if (!config->vs_libraries && (config->vs_seconds > 0 || config->vs_both))
        argp_error(state, "%s needs --vs with a library of CPU ranks",
                   config->vs_both ? "--both" : "--seconds");
    if (cuda && config->cold)
        argp_error(state, "--cold is for CPU ranks");
    if (config->copy_engine && !bench_pushes(config))
        argp_error(state, "--copy-engine: give --collective all_gather, all_to_all, broadcast, "
                          "gather or scatter");
    const struct collective *collective = bench_collective(config);
    if (config->count_bits && (!collective->varies || collective->rooted))
        argp_error(state, "--device-counts: give --collective all_gather_v, reduce_scatter_v or "
                          "all_to_all_v");
    if (cuda && config->iterations > BENCH_REPLAYS)
        argp_error(state, "--iters: '%d': with --device cuda give 1 to %d rounds",
                   config->iterations, BENCH_REPLAYS);
    if (cuda && config->ranks && (config->ranks < 2 || config->ranks > BENCH_GPU_RANKS))
        argp_error(state,
                   "--device cuda: give 2 to %d ranks instead of %d; nccl-tests' -n is --iters",
                   BENCH_GPU_RANKS, config->ranks);
}

/* Options that not every measurement accepts. They need a collective with data, with a reduction or
 * with a choice of algorithms. A comparison with other libraries measures float32, with sum, in
 * place, and chooses the length of blocks itself. */
enum { NO_DATA = 1, NO_OP = 2, NO_CHOICE = 4, VS = 8, NORM = 16, NO_NORM = 32 };
static const struct {
    int key;
    const char *name;
    unsigned refused; /* the measurements that refuse it */
} limited_options[] = {
    {'b', "-b", NO_DATA | NORM},
    {'e', "-e", NO_DATA | NORM},
    {'f', "-f", NO_DATA | NORM},
    {'i', "-i", NO_DATA | NORM},
    {OPTION_COUNTS, "--counts", NO_DATA | NORM},
    {'d', "-d", NO_DATA | VS},
    {'o', "-o", NO_OP | VS | NORM},
    {OPTION_COLD, "--cold", NO_DATA | VS | NORM},
    {OPTION_SYMMETRIC, "--symmetric", NO_DATA | VS | NORM},
    {OPTION_DEVICE_COUNTS, "--device-counts", VS | NORM},
    {'c', "-c", NO_DATA | VS},
    {OPTION_VS, "--vs", NO_DATA | NORM},
    {OPTION_ALGO, "--algo", NO_CHOICE | VS}, /* a barrier of GPU ranks takes it */
    {'w', "-w", VS},
    {OPTION_ITERS, "--iters", VS},
    {OPTION_THREADS, "--threads", VS},
    {'t', "-t", VS},
    {OPTION_RANKS_AS, "--ranks-as", VS},
    {OPTION_TIMEOUT, "--timeout", VS},
    {OPTION_STREAMS, "--streams", NORM},
    {OPTION_BESIDE, "--beside", NORM},
    {OPTION_STYLE, "--style", NORM},
    {OPTION_ROW, "--hidden", NO_NORM},
    {OPTION_TOKENS, "--tokens", NO_NORM},
    {OPTION_QUANT, "--quant", NO_NORM},
};
enum { LIMITED_OPTIONS = sizeof limited_options / sizeof *limited_options };

static void note_option(struct bench_config *config, int key)
{
    for (int i = 0; i < LIMITED_OPTIONS; i++)
        if (limited_options[i].key == key)
            config->options_given |= 1u << i;
}

static void refuse_options(struct argp_state *state, unsigned measurement, const char *why)
{
    const struct bench_config *config = state->input;
    char names[160] = "";
    size_t length = 0;
    for (int i = 0; i < LIMITED_OPTIONS; i++) {
        bool gpu_algo =
            limited_options[i].key == OPTION_ALGO && config->device == TUTTI_DEVICE_CUDA;
        if (limited_options[i].refused & measurement && !gpu_algo && config->options_given >> i & 1)
            length += (size_t)snprintf(names + length, sizeof names - length, "%s%s",
                                       length ? ", " : "", limited_options[i].name);
    }
    if (length)
        argp_error(state, "%s: leave out %s", why, names);
}

/* Refuses the options that have no meaning for the collective. */
static void check_collective(struct argp_state *state)
{
    struct bench_config *config = state->input;
    const struct collective *collective = bench_collective(config);
    unsigned lacks = (collective->data ? 0 : NO_DATA) | (collective->reduces ? 0 : NO_OP) |
                     (collective->chosen ? 0 : NO_CHOICE);
    char why[128];
    snprintf(why, sizeof why, "--collective %s: it has %s", collective_name(config->collective),
             !collective->data      ? "no message and no result to compare"
             : !collective->reduces ? "no operation and one algorithm"
                                    : "one algorithm");
    refuse_options(state, lacks, why);
    if (!collective->data)
        config->check = false;
}

/* Completes what --collective all_reduce_rms_norm asks for: rows of whole tokens. */
static void check_norm(struct argp_state *state)
{
    static const size_t usual[] = {1, 8, 32, 64, 128, 512};
    struct bench_config *config = state->input;
    if (!config->norms) {
        refuse_options(state, NO_NORM, "only --collective all_reduce_rms_norm has rows of tokens");
        return;
    }
    refuse_options(state, NORM, "--collective all_reduce_rms_norm: --hidden and --tokens say all");
    for (int dtype = 0; dtype < TUTTI_DTYPE_COUNT; dtype++)
        if (config->dtypes[dtype] && dtype != TUTTI_FLOAT32 && dtype != TUTTI_FLOAT16 &&
            dtype != TUTTI_BFLOAT16)
            argp_error(state, "-d: all_reduce_rms_norm has float32, float16 and bfloat16");
    config->hidden = config->hidden ? config->hidden : 4096;
    if (!config->count_count) {
        memcpy(config->counts, usual, sizeof usual);
        config->count_count = sizeof usual / sizeof *usual;
    }
    for (int i = 0; i < config->count_count; i++)
        config->counts[i] *= config->hidden;
    if (config->hidden % 8 ||
        (config->quant >= TUTTI_QUANT_FP8_GROUP && config->quant < TUTTI_QUANT_INT8_TOKEN &&
         config->hidden % TUTTI_NORM_GROUP))
        argp_error(state, "--hidden %zu: give a multiple of %d", config->hidden,
                   config->hidden % 8 ? 8 : TUTTI_NORM_GROUP);
    if (config->ranks > BENCH_GPU_RANKS)
        argp_error(state, "-n %d: all_reduce_rms_norm is measured with up to %d ranks",
                   config->ranks, BENCH_GPU_RANKS);
}

/* Whether one of the given operations exists for one of the given data types. */
static bool any_defined(const struct bench_config *config)
{
    for (int dtype = 0; dtype < TUTTI_DTYPE_COUNT; dtype++)
        for (int op = 1; op < REFERENCE_OPS; op++)
            if (config->dtypes[dtype] && config->ops[op] &&
                reference_has((enum tutti_dtype)dtype, (tutti_op_t)(uintptr_t)op))
                return true;
    return false;
}

/* Rank 0 alone writes the results. */
static void check_files(struct argp_state *state, struct bench_config *config)
{
    if (config->json_path && config->csv_path && strcmp(config->json_path, config->csv_path) == 0)
        argp_error(state, "--json and --csv: both write '%s'", config->csv_path);
    if (config->launched.rank != 0)
        config->json_path = config->csv_path = NULL;
    if (config->json_path)
        results_argument(state, "--json", config->json_path);
    if (config->csv_path)
        results_argument(state, "--csv", config->csv_path);
}

static void check_together(struct argp_state *state)
{
    struct bench_config *config = state->input;
    count_threads_and_gpus(state, config);
    bench_launched_check(state, config);
    check_files(state, config);
    check_norm(state);
    check_collective(state);
    check_device(state, config);
    if (config->vs_libraries)
        refuse_options(state, VS, "--vs: float32 in place is measured, with sum, by processes");
    if (!any_defined(config))
        argp_error(state, "none of the operations of -o exists for any data type of -d: averages "
                          "need numbers, band, bor and bxor integers, premul_sum no bool");
    if (!config->max_given)
        config->max_bytes = config->min_bytes > (64u << 20) ? config->min_bytes : 64u << 20;
    if (config->min_bytes > config->max_bytes)
        argp_error(state, "-b %zu is larger than -e %zu", config->min_bytes, config->max_bytes);
    if (!config->count_count && config->min_bytes == 0 && config->max_bytes > 0 &&
        !config->step_bytes)
        argp_error(state, "-b 0: a factor cannot increase 0 bytes; give -i SIZE, or -e 0");
    if (!config->count_count && config->step_bytes &&
        (config->max_bytes - config->min_bytes) / config->step_bytes >= BENCH_SIZES)
        argp_error(state, "-i %zu: more than %d sizes", config->step_bytes, BENCH_SIZES);
}

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    struct bench_config *config = state->input;
    note_option(config, key);
    switch (key) {
    case 'b':
        config->min_bytes = size_argument(state, "-b", text);
        return 0;
    case 'e':
        config->max_bytes = size_argument(state, "-e", text);
        config->max_given = true;
        return 0;
    case 'f':
        config->factor = integer_argument(state, "-f", text, 2, 1024);
        return 0;
    case 'i':
        config->step_bytes = size_argument(state, "-i", text);
        if (config->step_bytes == 0)
            argp_error(state, "-i: '%s': a step of 0 bytes reaches no other size: give 1 or more",
                       text);
        return 0;
    case 'd':
        dtypes_argument(state, text, config->dtypes);
        return 0;
    case 'o':
        ops_argument(state, text, config->ops);
        return 0;
    case 'n':
        config->ranks = ranks_argument(state, text);
        return 0;
    case 't':
        config->threads_given = integer_argument(state, "-t", text, 1, TUTTI_MAX_RANKS);
        return 0;
    case 'g':
        config->gpus_given = integer_argument(state, "-g", text, 1, TUTTI_MAX_RANKS);
        return 0;
    case 'w':
        config->warmup = integer_argument(state, "-w", text, 0, 1000000);
        return 0;
    case 'c':
        config->check = integer_argument(state, "-c", text, 0, 1);
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "'%s': no argument is expected, options only", text);
        return 0;
    case ARGP_KEY_END:
        check_together(state);
        return 0;
    default:
        return parse_long_option(key, text, state);
    }
}

/* In nccl-tests -n is the number of iterations, usually 20 or more. So many ranks are unlikely on
 * few cores. */
static void hint_at_iterations(const struct bench_config *config, int asked)
{
    if (config->device == TUTTI_DEVICE_CPU && asked >= 10 && asked > 2 * config->placement.cores)
        tool_fail("-n %d: %d ranks share %d cores; nccl-tests' -n is --iters", asked, asked,
                  config->placement.cores);
}

bool bench_config_init(struct bench_config *config, int argc, char **argv)
{
    static const struct argp argp = {
        .options = options, .parser = parse_option, .doc = doc, .children = help_children};
    bench_config_default(config);
    config->dtypes[TUTTI_FLOAT32] = true;
    config->ops[(uintptr_t)TUTTI_SUM] = true;
    bench_config_command(config, argc, argv);
    if (argp_parse(&argp, argc, argv, 0, NULL, config))
        return false;
    const int asked = config->threads_given ? 0 : config->ranks;
    if (!results_take_output(config->json_path) || !results_take_output(config->csv_path) ||
        !bench_config_complete(config))
        return false;
    hint_at_iterations(config, asked);
    return true;
}

void bench_config_fini(struct bench_config *config)
{
    free(config->rows);
    config->rows = NULL;
}

bool bench_write_files(const struct bench_config *config, json_t *result)
{
    bool ok = true;
    if (config->json_path && !results_write_json(result, config->json_path))
        ok = tool_fail_errno("--json: cannot write '%s'", config->json_path);
    if (config->csv_path && !results_write_csv(json_object_get(result, "rows"), config->csv_path))
        ok = tool_fail_errno("--csv: cannot write '%s'", config->csv_path);
    json_decref(result);
    return ok;
}
