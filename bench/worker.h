/* SPDX-License-Identifier: MIT */
/*
 * One rank of one library under comparison. An engine file defines `bench_engine`; worker.c has
 * main(), obeys compare's commands and sleeps in read() between them, so that an idle engine costs
 * nothing. Every callback returns 0, or -1 with a reason in bench_error().
 */
#ifndef BENCH_WORKER_H
#define BENCH_WORKER_H

#include "protocol.h"

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct bench_engine {
    /* Joins the group. [out] rank, size of this process in it. */
    int (*init)(int *argc, char ***argv, int *rank, int *size);
    /* Memory for messages of up to bytes, freed by fini. May be NULL, or leave *buffer NULL, for
     * ordinary memory. */
    int (*alloc)(size_t bytes, float **buffer);
    /* Called on all ranks before messages of a new count; may be NULL. */
    int (*prepare)(float *buffer, size_t count);
    /* buffer[i] = sum over the ranks, in place. */
    int (*all_reduce)(float *buffer, size_t count);
    /* The algorithm that a message of count takes; may be NULL. */
    const char *(*algorithm)(size_t count);
    void (*fini)(void);
};

extern const struct bench_engine bench_engine;

/* Keeps the reason of a failure; returns -1, so that a callback can end with it. */
int bench_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* An environment variable, or the fallback. */
const char *bench_env(const char *name, const char *fallback);
/* The rank and size that compare gave to a process that it started itself. */
int bench_env_rank(int *rank, int *size);

#ifdef __cplusplus
}
#endif

#endif
