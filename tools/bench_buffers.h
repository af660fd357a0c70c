/* SPDX-License-Identifier: MIT */
/*
 * A rank's send and receive buffers: slots of one size with guard bytes before and after each. A
 * cold measurement has enough slots to fill the last-level cache twice. It uses them in an order
 * that no prefetcher follows.
 */
#ifndef TUTTI_TOOL_BENCH_BUFFERS_H
#define TUTTI_TOOL_BENCH_BUFFERS_H

#include "bench.h"

struct bench_buffers {
    bool cold;
    size_t cache_bytes;
    tutti_symm_group_t *group;     /* NULL: ordinary memory */
    char *send, *recv;             /* the arenas, in one allocation */
    size_t send_bytes, recv_bytes; /* of a slot's buffer */
    size_t stride;                 /* distance of two slots */
    size_t slots;                  /* a power of two */
};

/* Large enough for every row. Collective with --symmetric. */
enum tutti_status bench_buffers_init(struct bench_buffers *buffers,
                                     const struct bench_config *config, int rank,
                                     tutti_store_t *store);
/* Divides the arenas into slots for the next row, of as many bytes as the larger buffer needs. */
void bench_buffers_shape(struct bench_buffers *buffers, size_t send_bytes, size_t recv_bytes);
void *bench_buffers_send(const struct bench_buffers *buffers, size_t i);
void *bench_buffers_recv(const struct bench_buffers *buffers, size_t i);
/* Fills slot 0 of both arenas, and what is before it, with the guard byte. damage() counts the
 * changed bytes outside the buffers. */
void bench_buffers_guard(struct bench_buffers *buffers);
uint64_t bench_buffers_damage(const struct bench_buffers *buffers);
/* Evicts the buffers from every cache, if the measurement is a cold one. */
void bench_buffers_chill(const struct bench_buffers *buffers);
void bench_buffers_fini(struct bench_buffers *buffers);

#endif
