/* SPDX-License-Identifier: MIT */
/*
 * tutti bench: bench_report.c is the command and its report, bench_options.c reads the command
 * line, bench.c starts the ranks and watches them, bench_measure.c is what a rank does (bench_gpu.c
 * with a GPU), bench_table.c prints the table. tutti tune has the same ranks measure tuning files
 * in turn.
 *
 * The ranks are children of the tool or, with --threads, threads of one child. All of them measure
 * the same list of rows. After each row a rank writes one record to the pipe that they share.
 */
#ifndef TUTTI_TOOL_BENCH_H
#define TUTTI_TOOL_BENCH_H

#include "ping.h"
#include "place.h"
#include "reference.h"

#include <limits.h>
#include <stdio.h>

struct bench_row {
    enum tutti_dtype dtype;
    tutti_op_t op;
    size_t count;
    size_t bytes;
    unsigned tunings; /* bit t: measure with config's tuning t as well */
};

/* Warm up each row until its times settle. */
enum { BENCH_UNTIL_STEADY = -1 };

enum { BENCH_COUNTS = 64, BENCH_SIZES = 1000000, BENCH_TUNINGS = 8 };

struct bench_config {
    enum tutti_collective collective;
    int ranks;
    int threads_given, gpus_given; /* nccl-tests' -t and -g; 0: not given */
    bool threads;
    bool bind;
    size_t min_bytes, max_bytes;
    bool max_given;
    size_t step_bytes; /* 0: multiply by factor */
    int factor;
    size_t counts[BENCH_COUNTS]; /* elements, instead of sizes; how many there are */
    int count_count;
    bool dtypes[TUTTI_DTYPE_COUNT];
    bool ops[REFERENCE_OPS];
    enum tutti_algo algo;
    int warmup;     /* operations; or BENCH_UNTIL_STEADY */
    int iterations; /* 0: chosen by rank 0, row by row */
    bool check;
    bool cold;
    bool symmetric;
    int64_t timeout_ms;               /* 0: the library's */
    double patience_seconds;          /* of GPU ranks that wait for each other on the host */
    bool long_rows;                   /* the table shows more, with a row for each place */
    const char *json_path, *csv_path; /* "-": the standard output */
    unsigned options_given;           /* of those that not every measurement takes, a bit each */
    enum tutti_device device;
    /* Beside other libraries, on CPUs. */
    unsigned vs_libraries; /* a bit each; 0: by itself */
    double vs_seconds;     /* to measure at most */
    bool vs_both;          /* go on until near and far are both measured */
    double block_ms;       /* what a timed block aims to take */
    /* The rest with a GPU alone. */
    bool graph;                  /* the operations of a round are captured in one */
    int batch;                   /* operations of a round; 0: chosen by size */
    enum tutti_programmatic pdl; /* programmatic launch */
    bool vs_nccl;                /* measure NCCL in turn */
    int streams;                 /* that operations take in turn */
    bool one_place;              /* out of place alone */
    int tuning_count;            /* communicators with a tuning file each, measured in turn */
    const char *tunings[BENCH_TUNINGS]; /* their paths */
    char command[1024];                 /* the command line, for the record */

    struct placement placement;
    struct bench_row *rows;
    int row_count;
};

/* Reads the command line (and ends the program when it is wrong) and completes. */
bool bench_config_init(struct bench_config *config, int argc, char **argv);
/* What holds where no option is given. */
void bench_config_default(struct bench_config *config);
/* Notes the words as they were given; before argp reorders them. */
void bench_config_command(struct bench_config *config, int argc, char **argv);
/* Looks at the machine, lists the rows. False after a message. */
bool bench_config_complete(struct bench_config *config);
void bench_config_fini(struct bench_config *config);
/* Writes the files that --json and --csv name. False after a message. */
bool bench_write_files(const struct bench_config *config, json_t *result);

enum bench_place { BENCH_OUT_OF_PLACE, BENCH_IN_PLACE, BENCH_PLACES };

/* Of premul_sum; exact where a ring sums: then the products are. */
double bench_premul_scalar(bool exact);
/* What the row's inputs are and its results should be. */
struct reference bench_reference(const struct bench_config *config, int index,
                                 enum bench_place place, bool exact);

/* X(name, text): what is measured beside the library. */
#define BENCH_RIVAL_MAP(X)                                                                         \
    X(NCCL, "nccl")                                                                                \
    X(NCCL_SYMMETRIC, "nccl_symmetric")

enum bench_rival {
#define BENCH_RIVAL_ENUM(name, text) BENCH_##name,
    BENCH_RIVAL_MAP(BENCH_RIVAL_ENUM)
#undef BENCH_RIVAL_ENUM
        BENCH_RIVALS
};

struct bench_timing {
    double mean_us, p50_us, p99_us; /* of a GPU: of the slowest rank of each round */
    double own_us;                  /* this rank's mean; of a GPU its median */
    double host_us;                 /* of a call, on a GPU without a graph; else 0 */
    double rival_us[BENCH_RIVALS];  /* medians; 0: not measured */
    double tuning_us[BENCH_TUNINGS];
    uint64_t wrong;
    uint64_t tuning_wrong[BENCH_TUNINGS];
};

enum bench_record_kind { BENCH_READY, BENCH_ROW, BENCH_ERROR };

/* One write to the pipe: not longer than PIPE_BUF, so that records never mix. */
struct bench_record {
    enum bench_record_kind kind;
    int rank;
    int row;
    enum tutti_status status; /* BENCH_ERROR */
    int pid;                  /* BENCH_READY */
    char device[128];         /* BENCH_READY, of a GPU */
    int nccl;                 /* BENCH_READY: the version measured beside, 0 if none is */
    double setup_ms;          /* BENCH_READY */
    double round_trip_ns;     /* rank 0's BENCH_ROW: the farther of before and after, 0 unknown */
    bool moved;               /* rank 0's BENCH_ROW: near before, far after, or the reverse */
    enum tutti_algo algo;     /* rank 0's BENCH_ROW */
    unsigned serving;         /* rank 0's BENCH_ROW on a GPU: bit a: transport a serves it */
    int iterations;
    struct bench_timing timing[BENCH_PLACES];
    char message[2048]; /* BENCH_ERROR; BENCH_READY on a GPU: the communicator in words */
};
_Static_assert(sizeof(struct bench_record) <= PIPE_BUF, "records are written in one piece");

/* Memory that all ranks share, whether processes or threads. */
enum {
    BENCH_GPU_RANKS = 8,
    BENCH_REPLAYS = 400,
    /* the library, its rivals, it with other tunings, its host time */
    BENCH_SERIES = BENCH_RIVALS + BENCH_TUNINGS + 2,
    BENCH_STREAMS = 8,
};

struct bench_board {
    struct ping pings[TUTTI_MAX_RANKS]; /* between rank 0 and each other one */
    atomic_int iterations;  /* rank 0 writes it before a barrier, the others read it after */
    atomic_ullong arrivals; /* GPU ranks' meetings on the host, all of them together */
    float samples[BENCH_SERIES][BENCH_REPLAYS][BENCH_GPU_RANKS]; /* us; each rank writes its own */
};

/* What a rank needs to begin. */
struct bench_rank {
    const struct bench_config *config;
    struct bench_board *board;
    const char *store_url;
    int rank;
    int pipe;
};

/* Runs all rows as one rank; errors have been reported through the pipe when it returns false. */
bool bench_rank_run(const struct bench_rank *self);
/* The same with a GPU. */
bool bench_gpu_run(const struct bench_rank *self);
/* Reports through the pipe. */
bool bench_send_record(const struct bench_rank *self, const struct bench_record *record);
void bench_send_error(const struct bench_rank *self, int row, enum tutti_status status,
                      const char *message);

/* Of own_us, over the ranks. */
struct bench_spread {
    double min_us, mean_us, max_us;
};

/* One row as the table shows it: of the slowest rank. */
struct bench_result {
    const struct bench_row *row;
    enum tutti_algo algo;
    unsigned serving;
    const char *placement; /* "near", "far", "moved", "oversubscribed", "unknown" */
    int iterations;
    struct bench_timing timing[BENCH_PLACES];
    struct bench_spread ranks[BENCH_PLACES];
};

/* Who hears of what is measured: either returns false, after a message, to end it. */
struct bench_listener {
    void *context;
    bool (*begin)(void *context, const struct bench_record *ready); /* by rank */
    bool (*row)(void *context, const struct bench_result *result);
};

/* Starts the ranks, watches over them and gathers what they report. The caller has no other thread,
 * and CUDA is not open in it. False after a message. */
bool bench_run(const struct bench_config *config, const struct bench_listener *listener);

/* "4 H200": the ranks' GPUs without their maker, from a ready rank's "device 0 0000:01:00.0 NVIDIA
 * H200". */
void bench_name_gpus(const struct bench_config *config, const struct bench_record *ready,
                     char *text, size_t capacity);

#endif
