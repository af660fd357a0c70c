/* SPDX-License-Identifier: MIT */
/*
 * One rank of a library that `tutti bench --vs` measures, and what it and the tool say to each
 * other.
 *
 * An engine is one library. rival_main() joins its ranks, connects to the tool, says hello once and
 * answers each command with one result, over a SOCK_SEQPACKET socket a rank. Between commands it
 * sleeps in read(). A closed socket ends it. Tutti's own ranks are forked from the tool; each rival
 * has a program of its own, tutti-bench-NAME.
 */
#ifndef TUTTI_TOOL_RIVAL_H
#define TUTTI_TOOL_RIVAL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A rank ends itself if start, stop or a command takes longer. */
#define RIVAL_LIMIT_SECONDS 60

/* The environment of a rank. */
#define RIVAL_SOCKET   "TUTTI_BENCH_SOCKET"   /* abstract name to connect to */
#define RIVAL_STORE    "TUTTI_BENCH_STORE"    /* URL of a store where ranks can meet */
#define RIVAL_RANK     "TUTTI_BENCH_RANK"     /* where no launcher says it */
#define RIVAL_SIZE     "TUTTI_BENCH_SIZE"     /* ranks */
#define RIVAL_CPUS     "TUTTI_BENCH_CPUS"     /* "0,2": the CPU of each rank; unset: not bound */
#define RIVAL_VARIANT  "TUTTI_BENCH_VARIANT"  /* which of an engine's variants */
#define RIVAL_CAPACITY "TUTTI_BENCH_CAPACITY" /* bytes of the largest message */

struct rival_hello {
    int32_t rank;
    char version[28]; /* of the library, such as "4.1.4"; empty: unknown */
};

/* A block: `warmup` operations, then `iterations` timed as a whole; float32 sum, in place. */
struct rival_command {
    uint64_t bytes; /* 0: no block; measure how far ranks 0 and 1 are from each other */
    uint32_t warmup;
    uint32_t iterations;
    uint32_t check; /* also check every element of one operation before and one after the block */
};

struct rival_result {
    uint64_t nanoseconds; /* of the timed operations together, on this rank */
    double round_trip_ns; /* of a cache line; not positive: unknown */
    uint64_t preempted;   /* how often another process took this rank's core meanwhile */
    uint64_t wrong;       /* elements that a check found wrong */
    uint32_t failed;      /* the engine gave an error: `text` has it; the rank ends */
    char algo[24];        /* what the engine ran, if it says */
    char text[232];
};

/* Every callback that returns int returns 0, or -1 with a reason in rival_error(). */
struct rival_engine {
    int (*init)(int rank, int size);
    /* May be NULL. */
    const char *(*version)(void);
    /* Memory for messages of up to bytes, freed by fini. NULL, or *buffer left NULL: ordinary. */
    int (*alloc)(size_t bytes, float **buffer);
    /* Called on all ranks before messages of a new count; may be NULL. */
    int (*prepare)(float *buffer, size_t count);
    /* buffer[i] = sum over the ranks, in place. */
    int (*all_reduce)(float *buffer, size_t count);
    /* The algorithm that a message of count takes; may be NULL. */
    const char *(*algorithm)(size_t count);
    /* The round trip between ranks 0 and 1; may be NULL. */
    double (*probe)(void);
    void (*fini)(void);
};

/* Obeys the tool's commands; returns the exit status. */
int rival_main(const struct rival_engine *engine);
/* Keeps the reason of a failure; returns -1, so that a callback can end with it. */
int rival_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* An environment variable, or the fallback. */
const char *rival_env(const char *name, const char *fallback);

#ifdef __cplusplus
}
#endif

#endif
