/* SPDX-License-Identifier: MIT */
/* Trials of `tutti info`: the ranks of the benchmark meet, make a checked all-reduce, and say what
 * the library would choose. */
#ifndef TUTTI_TOOL_INFO_TRIAL_H
#define TUTTI_TOOL_INFO_TRIAL_H

#include "bench.h"

#include <jansson.h>

enum { TRIAL_CHOICES = 32, TRIAL_TIMEOUT_MS = 20000 };

struct choice {
    size_t from_bytes, to_bytes;
    enum tutti_algo algo;
    char reason[256];
};

/* In memory that the ranks share with the parent. */
struct trial {
    struct bench_config config;
    struct bench_row row;
    double setup_ms;
    uint64_t wrong;
    enum tutti_status status;
    char message[512];              /* of the failure; "": none */
    int choices[TUTTI_DTYPE_COUNT]; /* on GPUs of bfloat16 alone */
    struct choice choice[TUTTI_DTYPE_COUNT][TRIAL_CHOICES];
    char description[64 * 1024]; /* JSON */
};

/* Runs a trial whose ranks are children. The caller has no other thread, and has not opened CUDA.
 * `choose`: CPU ranks list the choices; GPU ranks always do. `share`: all ranks have device 0. NULL
 * after a message. */
struct trial *trial_run(int ranks, bool threads, bool choose);
struct trial *trial_run_gpus(int ranks, bool threads, bool share, enum tutti_algo algo);
void trial_destroy(struct trial *trial);

/* {"test", "result", "declined", "setup_ms", "direct_copies", "arena_nodes", "describe",
 * "choices"}; for CPU ranks without "declined" and what follows "arena_nodes". The two before are
 * of CPU processes only. A result is "ok" or what went wrong. */
json_t *trial_result(const struct trial *trial);
/* [{"from_bytes", "to_bytes", "algo", "why"}] */
json_t *trial_choices(const struct trial *trial, enum tutti_dtype dtype);

#endif
