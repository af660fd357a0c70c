/* SPDX-License-Identifier: MIT */
/*
 * One rank of a library that `tutti bench --vs` measures, and its protocol with the tool.
 *
 * An engine is one library. rival_main() joins the ranks, connects to the tool, sends one hello,
 * and answers each command with one result. Each rank has a SOCK_SEQPACKET socket. Between commands
 * the rank sleeps in read(). A closed socket ends the rank. Tutti's own ranks are forked from the
 * tool. Each rival has its own program, tutti-bench-NAME.
 */
#ifndef TUTTI_TOOL_RIVAL_H
#define TUTTI_TOOL_RIVAL_H

#include "tutti/tutti.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A rank ends itself if its start, its end or a command takes longer. */
#define RIVAL_LIMIT_SECONDS 60

/* Environment variables of a rank. */
#define RIVAL_COLLECTIVE "TUTTI_BENCH_COLLECTIVE" /* value of enum tutti_collective */
#define RIVAL_SOCKET     "TUTTI_BENCH_SOCKET"     /* abstract name to connect to */
#define RIVAL_STORE      "TUTTI_BENCH_STORE"      /* URL of a store where ranks can meet */
#define RIVAL_RANK       "TUTTI_BENCH_RANK"       /* the rank, if no launcher sets it */
#define RIVAL_SIZE       "TUTTI_BENCH_SIZE"       /* ranks */
#define RIVAL_CPUS       "TUTTI_BENCH_CPUS"     /* "0+1,2+3": each rank's CPUs; unset: not bound */
#define RIVAL_THREADS    "TUTTI_BENCH_THREADS"  /* of each of Tutti's ranks; unset: one */
#define RIVAL_VARIANT    "TUTTI_BENCH_VARIANT"  /* the engine's variant */
#define RIVAL_CAPACITY   "TUTTI_BENCH_CAPACITY" /* bytes of the largest message */

struct rival_hello {
    int32_t rank;
    char version[28]; /* the library's version, such as "4.1.4"; empty: unknown */
};

/* A block: `warmup` operations, then `iterations` operations that are timed together. Float32, with
 * sum if the collective reduces. */
struct rival_command {
    uint64_t bytes; /* of the buffer; 0: no block; measure the round trip between ranks 0 and 1 */
    uint32_t warmup;
    uint32_t iterations;
    uint32_t
        check; /* also check all elements of one operation before the block and of one after it */
};

struct rival_result {
    uint64_t nanoseconds; /* of all timed operations together, on this rank */
    double round_trip_ns; /* of a cache line; not positive: unknown */
    uint64_t preempted;   /* how often another process took this rank's core */
    uint64_t wrong;       /* number of wrong elements */
    uint32_t failed;      /* the engine failed with the error in `text`, and the rank ends */
    char algo[24];        /* the engine's algorithm, if it is known */
    char text[232];
};

/* An operation in place on the buffer: `count` floats, or `count` for each rank (collective.h). An
 * all_to_all and a message are not in place: the result goes behind what they read. A message goes
 * to the next rank, and comes from the one before. `root`: for a collective that has one; the other
 * ranks receive in their own block. */
typedef int rival_operation(float *buffer, size_t count, int root);
#define RIVAL_ONE(name, value, text) +1
enum { RIVAL_OPERATIONS = 1 TUTTI_COLLECTIVE_MAP(RIVAL_ONE) };

/* X(name): the operations that a program can have, of enum tutti_collective. */
#define RIVAL_MAP(X)                                                                               \
    X(ALL_REDUCE)                                                                                  \
    X(ALL_GATHER)                                                                                  \
    X(REDUCE_SCATTER)                                                                              \
    X(ALL_TO_ALL)                                                                                  \
    X(BROADCAST)                                                                                   \
    X(REDUCE)                                                                                      \
    X(GATHER)                                                                                      \
    X(SCATTER)                                                                                     \
    X(SEND)                                                                                        \
    X(ALL_GATHER_V)                                                                                \
    X(REDUCE_SCATTER_V)                                                                            \
    X(ALL_TO_ALL_V)                                                                                \
    X(GATHER_V)                                                                                    \
    X(SCATTER_V)
#define RIVAL_ROW(name) [TUTTI_COLLECTIVE_##name] = engine_##name,

/* Callbacks that return int return 0 or, with a reason, rival_error(). */
struct rival_engine {
    int (*init)(int rank, int size);
    /* May be NULL. */
    const char *(*version)(void);
    /* Allocates memory for messages of up to `bytes`, which fini frees. May be NULL or leave
     * *buffer NULL; then ordinary memory is used. */
    int (*alloc)(size_t bytes, float **buffer);
    /* Called on all ranks before messages with another count. May be NULL. */
    int (*prepare)(float *buffer, size_t count);
    /* By enum tutti_collective. NULL: the engine lacks it. */
    rival_operation *operations[RIVAL_OPERATIONS];
    /* Whether a reduce_scatter leaves the result in the first block instead of this rank's. */
    int scatters_to_first;
    /* The algorithm of an all_reduce of `count` elements. May be NULL. */
    const char *(*algorithm)(size_t count);
    /* The round trip between ranks 0 and 1. May be NULL. */
    double (*probe)(void);
    void (*fini)(void);
};

/* Runs the tool's commands. Returns the exit status. */
int rival_main(const struct rival_engine *engine);
/* Keeps the reason of a failure. Returns -1, which a callback can return. */
int rival_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* An environment variable, or the fallback. */
const char *rival_env(const char *name, const char *fallback);

#ifdef __cplusplus
}
#endif

#endif
