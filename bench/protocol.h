/* SPDX-License-Identifier: MIT */
/*
 * What compare and its workers say to each other, over one SOCK_SEQPACKET Unix socket per rank:
 * the worker says hello once, then answers each command with one result; a closed socket ends it.
 */
#ifndef BENCH_PROTOCOL_H
#define BENCH_PROTOCOL_H

#include <stdint.h>

#define BENCH_MAX_RANKS 64
/* Seconds that a rank may take for one command before it ends itself. */
#define BENCH_COMMAND_LIMIT_S 60

/* The environment of a worker. */
#define BENCH_ENV_SOCKET   "TUTTI_BENCH_SOCKET"   /* path to connect to */
#define BENCH_ENV_STORE    "TUTTI_BENCH_STORE"    /* path prefix for a rendezvous by files */
#define BENCH_ENV_RANK     "TUTTI_BENCH_RANK"     /* of engines without a launcher of their own */
#define BENCH_ENV_SIZE     "TUTTI_BENCH_SIZE"     /* likewise */
#define BENCH_ENV_BIND     "TUTTI_BENCH_BIND"     /* "core": rank r runs on the r-th allowed core */
#define BENCH_ENV_VARIANT  "TUTTI_BENCH_VARIANT"  /* which of an engine's variants */
#define BENCH_ENV_CAPACITY "TUTTI_BENCH_CAPACITY" /* bytes of the largest message */

struct bench_hello {
    int32_t rank;
    int32_t size;
};

enum bench_flags {
    BENCH_CHECK = 1, /* also check every element of one operation before and one after the block */
};

/* A block: `warmup` operations, then `iterations` timed as a whole; float32 sum, in place. */
struct bench_command {
    uint64_t bytes;
    uint32_t warmup;
    uint32_t iterations;
    uint32_t flags;
};

struct bench_result {
    uint64_t nanoseconds; /* of the timed operations together, on this rank */
    uint64_t preempted;   /* how often another process took this rank's core meanwhile */
    uint64_t wrong;       /* elements that a check found wrong */
    uint32_t failed;      /* the engine gave an error: `text` has it; the worker ends */
    char algo[24];        /* what the engine ran, if it says */
    char text[232];
};

#endif
