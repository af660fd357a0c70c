/* SPDX-License-Identifier: MIT */
/*
 * tutti bench: bench_report.c is the command and its report, bench_options.c reads the command
 * line, bench_rows.c completes what it asks for, bench.c starts the ranks and watches them,
 * bench_launched.c is for ranks that a launcher has started, bench_rank.c is one rank (by
 * bench_cpu.c, or in rounds by bench_gpu.c, bench_norm.c), bench_table.c prints the table. For
 * tutti tune the same ranks measure tuning files in turn.
 *
 * The ranks are children of the tool or, with --threads, threads of one child. All of them measure
 * the same list of rows. After each row a rank writes one record to the pipe that they share. Under
 * a launcher each rank is a tool of its own, and rank 0 gathers the records.
 */
#ifndef TUTTI_TOOL_BENCH_H
#define TUTTI_TOOL_BENCH_H

#include "collective.h"
#include "ping.h"
#include "placement.h"
#include "reference.h"
#include "reference_table.h"

#include <limits.h>
#include <stdio.h>

struct bench_row {
    enum tutti_dtype dtype;
    tutti_op_t op;    /* of a collective that reduces */
    size_t count;     /* elements of a block */
    size_t bytes;     /* of the larger operand */
    unsigned tunings; /* bit t: also measure with tuning t of the configuration */
};

/* Warm up each row until its times settle. */
enum { BENCH_UNTIL_STEADY = -1 };

enum { BENCH_COUNTS = 64, BENCH_SIZES = 1000000, BENCH_TUNINGS = 8 };

typedef void bench_visit_fn(tutti_comm_t *comm, void *context);

/* What a launcher says of this process, which is one of its ranks. */
struct bench_launched {
    const char *name; /* of the launcher */
    int rank, size;   /* size 0: the tool starts the ranks */
    int local_size;   /* ranks of this host; -1: unknown */
};

struct bench_config {
    enum tutti_collective collective;
    int ranks;
    int gpus;                      /* that the ranks of this machine use */
    int threads_given, gpus_given; /* nccl-tests' -t and -g; 0: not given */
    bool threads;
    bool bind;
    size_t min_bytes, max_bytes;
    bool max_given;
    size_t step_bytes; /* 0: multiply by factor */
    int factor;
    size_t counts[BENCH_COUNTS]; /* numbers of elements, instead of sizes */
    int count_count;
    bool dtypes[TUTTI_DTYPE_COUNT];
    bool ops[REFERENCE_OPS];
    bool norms;    /* all_reduce_rms_norm; `collective` is that of its sum */
    size_t hidden; /* of all_reduce_rms_norm: the length of a row; 0: another collective */
    enum tutti_quant quant;
    enum tutti_algo algo;
    int warmup;     /* operations; or BENCH_UNTIL_STEADY */
    int iterations; /* 0: chosen by rank 0, row by row */
    bool check;
    bool cold;
    bool symmetric;
    int count_bits; /* of counts that the operation reads, on a GPU there: 32 or 64; 0: the host's
                     */
    int64_t timeout_ms;               /* 0: the library's default */
    double wait_seconds;              /* how long GPU ranks wait for each other on the host */
    bool long_rows;                   /* more columns, and a row for each place */
    bool osu;                         /* the table has the columns of the OSU micro-benchmarks */
    const char *json_path, *csv_path; /* "-": the standard output */
    unsigned options_given;           /* bits of the options that not every measurement accepts */
    enum tutti_device device;
    /* Comparison with other libraries, on CPU only. */
    unsigned vs_libraries; /* a bit for each library; 0: no comparison */
    double vs_seconds;     /* time limit of the measurement */
    bool vs_both;          /* go on until near and far are both measured */
    double block_ms;       /* target length of a timed block */
    /* The following members are for GPUs only. */
    bool graph;                  /* capture the operations of a round in a graph */
    int batch;                   /* operations in a round; 0: chosen by size */
    enum tutti_programmatic pdl; /* programmatic launch */
    int threads_per_rank;        /* on CPU; 0: the calling one alone */
    int max_blocks;              /* of a kernel of the library; 0: no limit */
    bool vs_nccl;                /* measure NCCL in alternation */
    bool vs_mpi;                 /* measure the launcher's MPI in alternation, on CPU */
    const char *fabric;          /* URL; NULL: as bench_launched.c decides */
    struct bench_launched launched;
    bool copy_engine; /* move blocks by copy engines; the buffers are symmetric */
    bool beside;      /* measure a matrix product and the collective beside each other */
    int streams;      /* streams; the operations alternate between them */
    bool one_place;   /* measure out of place only */
    int tuning_count; /* tuning files, each with its own communicator, measured in alternation */
    const char *tunings[BENCH_TUNINGS]; /* their paths */
    bool share;                         /* all ranks have device 0 */
    /* For tutti info. */
    const char *name;      /* of the communicators */
    unsigned alarm_s;      /* the kernel ends the ranks after this time; 0: never */
    bench_visit_fn *visit; /* called on rank 0 with the new communicator; NULL: nothing */
    void *visitor;         /* its context, in shared memory */
    char command[1024];    /* the command line, for the record */

    struct placement placement;
    struct bench_row *rows;
    int row_count;
};

/* Takes a launcher's ranks, unless this process is to start some of its own. Ends the program after
 * a message if options do not fit. */
struct argp_state;
void bench_launched_check(struct argp_state *state, struct bench_config *config);
/* Reads the command line and completes the configuration. A wrong command line ends the program.
 * False after a message. */
bool bench_config_init(struct bench_config *config, int argc, char **argv);
/* Sets the defaults. */
void bench_config_default(struct bench_config *config);
/* Keeps the words of the command line. Call it before argp reorders them. */
void bench_config_command(struct bench_config *config, int argc, char **argv);
/* Examines the machine and lists the rows. Returns false after a message. */
bool bench_config_complete(struct bench_config *config);
void bench_config_fini(struct bench_config *config);
const struct collective *bench_collective(const struct bench_config *config);
/* Returns true if the ranks write into each other's symmetric recv: TUTTI_CALL_SYMMETRIC or
 * TUTTI_CALL_COPY_ENGINE. */
bool bench_pushes(const struct bench_config *config);
/* The name of what is measured. */
const char *bench_name(const struct bench_config *config);
/* Number of places to measure: 1 if there are no operands, or if they may not overlap. */
int bench_places(const struct bench_config *config);
/* Whether the place's operands are one buffer: beside MPI a broadcast's always, as MPI has it. */
bool bench_is_in_place(const struct bench_config *config, int place);
/* The row's operation as text. NULL: it has none. */
const char *bench_op_name(const struct bench_config *config, const struct bench_row *row);
/* A file of results so far: {"machine", "commit", "date", "command"}. `gpus`: "4 H200", or NULL. */
json_t *bench_describe(const struct bench_config *config, const char *gpus);
/* Writes the files that --json and --csv name, and frees the result. False after a message. */
bool bench_write_files(const struct bench_config *config, json_t *result);

enum bench_place { BENCH_OUT_OF_PLACE, BENCH_IN_PLACE, BENCH_PLACES };

/* The scalar of premul_sum, which integers have, too. With `exact` the products are exact, as sums
 * along a ring need. */
double bench_premul_scalar(bool exact);
/* The inputs of a row and its expected results. */
struct reference bench_reference(const struct bench_config *config, int index,
                                 enum bench_place place, bool exact);

/* X(name, text): what is measured in addition to the library. */
#define BENCH_RIVAL_MAP(X)                                                                         \
    X(NCCL, "nccl")                                                                                \
    X(NCCL_SYMMETRIC, "nccl_symmetric")                                                            \
    X(MPI, "mpi")

enum bench_rival {
#define BENCH_RIVAL_ENUM(name, text) BENCH_##name,
    BENCH_RIVAL_MAP(BENCH_RIVAL_ENUM)
#undef BENCH_RIVAL_ENUM
        BENCH_RIVALS
};

/* Of the library, then of its rivals: a matrix product, and an operation, while the other runs on
 * another stream. 0: not measured. */
struct bench_beside {
    double product_us; /* alone */
    double products_us[1 + BENCH_RIVALS];
    double operations_us[1 + BENCH_RIVALS];
};

struct bench_timing {
    double mean_us, p50_us, p99_us; /* on a GPU: of the slowest rank in each round */
    double own_us;                  /* this rank's mean; on a GPU its median */
    double host_us;                 /* of a call on the host, on a GPU without a graph; else 0 */
    double apart_us;               /* all_reduce_rms_norm's work in two calls, the median; else 0 */
    double rival_us[BENCH_RIVALS]; /* medians; 0: not measured */
    double tuning_us[BENCH_TUNINGS];
    struct bench_beside beside;
    uint64_t wrong;
    uint64_t tuning_wrong[BENCH_TUNINGS];
};

enum bench_record_kind { BENCH_READY, BENCH_ROW, BENCH_ERROR };

/* One write to the pipe. It is not longer than PIPE_BUF, so that records never mix. */
struct bench_record {
    enum bench_record_kind kind;
    int rank;
    int row;
    enum tutti_status status; /* BENCH_ERROR */
    int pid;                  /* BENCH_READY */
    char device[128];         /* BENCH_READY, of a GPU; of a launcher's rank its host */
    int nccl;                 /* BENCH_READY: NCCL's version, 0 if it is not measured */
    double setup_ms;          /* BENCH_READY */
    double round_trip_ns; /* rank 0's BENCH_ROW: the larger of two, before and after; 0: unknown */
    bool moved;           /* rank 0's BENCH_ROW: near before and far after, or the reverse */
    enum tutti_algo algo; /* rank 0's BENCH_ROW */
    char kernel[24];      /* rank 0's BENCH_ROW on a GPU */
    int iterations;
    struct bench_timing timing[BENCH_PLACES];
    char message[3072]; /* BENCH_ERROR; BENCH_READY on a GPU: the communicator in words */
};
_Static_assert(sizeof(struct bench_record) <= PIPE_BUF, "records are written in one piece");

/* Memory that all ranks share, processes or threads. */
enum {
    BENCH_GPU_RANKS = 8,
    BENCH_REPLAYS = 400,
    /* the library, its rivals, the other tunings, the host time */
    BENCH_SERIES = BENCH_RIVALS + BENCH_TUNINGS + 2,
    BENCH_STREAMS = 8,
};

struct bench_shared {
    struct ping pings[TUTTI_MAX_RANKS]; /* between rank 0 and each other rank */
    atomic_int iterations;  /* rank 0 writes it before a barrier, the others read it after */
    atomic_ullong arrivals; /* counts the arrivals of GPU ranks at all their meetings on the host */
    float samples[BENCH_SERIES][BENCH_REPLAYS]
                 [BENCH_GPU_RANKS]; /* in us; each rank writes its own */
};

/* What a rank needs to begin. */
struct bench_rank {
    const struct bench_config *config;
    struct bench_shared *shared;
    const char *store_url;
    int rank;
    int pipe; /* -1: the ranks are a launcher's */
    struct tutti_fabric *fabric;
    /* Of a launcher's rank: takes a record, with those of all ranks. Collective. */
    bool (*gather)(void *context, tutti_comm_t *comm, const struct bench_record *record);
    void *context;
};

/* Runs all rows as one rank. False after an error, which was reported through the pipe. */
bool bench_rank_run(const struct bench_rank *self);

/* The spread of own_us over the ranks. */
struct bench_spread {
    double min_us, mean_us, max_us;
};

/* One row of the table: the values of the slowest rank. */
struct bench_result {
    const struct bench_row *row;
    enum tutti_algo algo;
    const char *kernel;    /* "" on CPU */
    const char *placement; /* "near", "far", "moved", "oversubscribed", "launched", "unknown" */
    int iterations;
    struct bench_timing timing[BENCH_PLACES];
    struct bench_spread ranks[BENCH_PLACES];
};

/* Receives the results. The first functions return false, after a message, to end the
 * measurement, or because it has failed. */
struct bench_listener {
    void *context;
    bool (*begin)(void *context, const struct bench_record *ready); /* by rank; may be NULL */
    bool (*row)(void *context, const struct bench_result *result);
    bool (*end)(void *context); /* after the last row; may be NULL */
    /* Gets the failure, of which then no message is printed. NULL: a message is. `status` is
     * TUTTI_OK if a rank ended without an error. */
    void (*failed)(void *context, int rank, enum tutti_status status, const char *text);
};

/* Starts the ranks, watches them and gathers their records. The caller has no other thread and has
 * not opened CUDA. False after a message. */
bool bench_run(const struct bench_config *config, const struct bench_listener *listener);

/* The same in a process that a launcher has started as a rank. Rank 0's listener gets the results.
 */
bool bench_run_launched(const struct bench_config *config, const struct bench_listener *listener);
/* Passes the records of all ranks on: those of a row, or of the set-up if `row` is -1. */
bool bench_pass_on(const struct bench_config *config, const struct bench_listener *listener,
                   const struct bench_record *records, int row);

/* Writes "4 H200", the number and model of the ranks' GPUs. The record of a rank's set-up has
 * "device 0 0000:01:00.0 NVIDIA H200". */
void bench_name_gpus(const struct bench_config *config, const struct bench_record *ready,
                     char *text, size_t capacity);

/* The table: a head, then a row for each size, or with --long for each size and place. `ready`: the
 * ranks' first records. `rival`: its name and version, "" if it is not measured. */
void table_begin(const struct bench_config *config, const struct bench_record *ready,
                 const char *rival);
void table_row(const struct bench_config *config, const struct bench_result *result);

bool bench_is_gpu(const struct bench_config *config);
/* Of each of Tutti's ranks, the calling one too. */
int bench_threads(const struct bench_config *config);
/* In GB/s, 1e9 bytes a second. */
double bench_busbw(const struct bench_config *config, const struct bench_row *row,
                   const struct bench_timing *timing);
/* The library's time divided by that of the fastest rival; 0: there is no rival. */
double bench_ratio(const struct bench_timing *timing);

#endif
