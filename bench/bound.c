/* SPDX-License-Identifier: MIT */
/*
 * The shortest time that the machine allows for a collective of 2 ranks. Two pinned threads run at
 * the same time. Memory and link are for an all-reduce, copies for collectives without a sum.
 *
 * Memory: each thread adds 1 to every float of its own buffer, because each rank reads and writes
 * its buffer. If both buffers together are larger than the last-level cache, this measures memory.
 *
 * Link: each thread reads what the other one has just written, because each rank needs all bytes of
 * the other rank. The threads write in turns where they have read, as two ranks do.
 *
 * Copies: each thread copies a block that the other one has just written (all-gather, all-to-all),
 * or only one thread does (broadcast, gather, scatter, send): all bytes are read and written once.
 *
 * Prints the medians by the distance of the cores.
 */
#include "base/order.h"
#include "cores.h"
#include "now.h"
#include "ping.h"
#include "stats.h"

#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SKIPPED     77
#define LINK_FLOATS ((size_t)128 << 10)
#define LINK_PASSES 4 /* a round */

enum { NEAR, FAR, PLACEMENTS };
enum { ONE_WAY, BOTH_WAYS, WAYS };

static const size_t block_kib[] = {64, 1024, 16384};
enum { BLOCKS = sizeof(block_kib) / sizeof(*block_kib) };

static struct ping ping;
static _Alignas(4096) float places[2][LINK_FLOATS];

struct worker {
    _Alignas(64) uint32_t begun; /* passes; in one line with nothing else */
    _Alignas(64) struct worker *other;
    pthread_barrier_t *together;
    float *buffer;
    size_t count;
    float *places[2]; /* where to write and where to read, in turn */
    int side;
    int core;
    int rounds;
    float sink;
    double memory_ns; /* of the last round */
    double link_ns;
    double copy_ns[WAYS][BLOCKS];
    double before_ns, after_ns; /* a cache line's round trip */
};

static void memory_pass(struct worker *worker)
{
    int64_t start;

    pthread_barrier_wait(worker->together);
    start = now_ns();
    for (size_t i = 0; i < worker->count; i++)
        worker->buffer[i] += 1;
    worker->memory_ns = (double)(now_ns() - start);
    pthread_barrier_wait(worker->together);
}

/* A spin: of two that sleep one would begin before the other. */
static void meet(struct worker *worker)
{
    uint32_t pass = worker->begun + 1;

    order_store_release_u32(&worker->begun, pass); /* LR pairs LA: what was written is there */
    while ((int32_t)(order_load_acquire_u32(&worker->other->begun) - pass) < 0)
        order_pause();
}

static float sum(const float *from, size_t count)
{
    float sums[64] = {0}, all = 0;

    for (size_t i = 0; i < count; i += 64) {
        for (size_t j = 0; j < 64; j++)
            sums[j] += from[i + j];
    }
    for (size_t j = 0; j < 64; j++)
        all += sums[j];
    return all;
}

static void link_pass(struct worker *worker)
{
    float *write = worker->places[0], *read = worker->places[1];
    int64_t start;

    for (size_t i = 0; i < LINK_FLOATS; i++)
        write[i] = worker->sink;
    meet(worker);
    start = now_ns();
    worker->sink += sum(read, LINK_FLOATS);
    worker->link_ns = (double)(now_ns() - start);
    meet(worker);
    worker->places[0] = read;
    worker->places[1] = write;
}

/* At most 1 MiB at a time: longer copies of glibc go past the caches. */
static void block_copy(float *to, const float *from, size_t count)
{
    size_t most = (size_t)256 << 10, step = count < most ? count : most;

    for (size_t i = 0; i < count; i += step)
        memcpy(to + i, from + i, step * sizeof(float));
}

/* The first half of the buffer has the block that the other thread copies. */
static void copy_pass(struct worker *worker, int ways, int block)
{
    size_t count = block_kib[block] * 1024 / sizeof(float), half = worker->count / 2;
    bool gives = ways == BOTH_WAYS || worker->side == 1;
    bool takes = ways == BOTH_WAYS || worker->side == 0;
    int64_t start;

    if (count > half)
        return;
    for (size_t i = 0; gives && i < count; i++)
        worker->buffer[i] += 1;
    meet(worker);
    start = now_ns();
    if (takes)
        block_copy(worker->buffer + half, worker->other->buffer, count);
    worker->copy_ns[ways][block] = (double)(now_ns() - start);
    meet(worker);
}

/* The last of several link passes and of several copies counts. */
static void pass(struct worker *worker)
{
    worker->before_ns = ping_round_trip_ns(&ping, worker->side, 2);
    memory_pass(worker);
    for (int i = 0; i < LINK_PASSES; i++)
        link_pass(worker);
    for (int ways = 0; ways < WAYS; ways++)
        for (int i = 0; i < BLOCKS * LINK_PASSES; i++)
            copy_pass(worker, ways, i / LINK_PASSES);
    worker->after_ns = ping_round_trip_ns(&ping, worker->side, 2);
}

static void *partner(void *context)
{
    struct worker *worker = context;

    cores_bind(worker->core);
    for (int round = 0; round < worker->rounds; round++)
        pass(worker);
    return NULL;
}

/* By the distance of the cores. */
static struct samples memory[PLACEMENTS], link[PLACEMENTS], copies[WAYS][BLOCKS][PLACEMENTS];

/* All rounds: this thread's passes beside the partner's. */
static void measure(struct worker *workers)
{
    for (int round = 0; round < workers[0].rounds; round++) {
        int placement;

        pass(&workers[0]);
        placement = workers[0].after_ns < PING_NEAR_NS ? NEAR : FAR;
        if (workers[0].before_ns < 0 || workers[0].after_ns < 0 ||
            (workers[0].before_ns < PING_NEAR_NS ? NEAR : FAR) != placement)
            continue;
        samples_add(&memory[placement], fmax(workers[0].memory_ns, workers[1].memory_ns));
        samples_add(&link[placement], fmax(workers[0].link_ns, workers[1].link_ns));
        for (int i = 0; i < WAYS * BLOCKS; i++) {
            int ways = i / BLOCKS, block = i % BLOCKS;

            samples_add(&copies[ways][block][placement],
                        fmax(workers[0].copy_ns[ways][block], workers[1].copy_ns[ways][block]));
        }
    }
}

static void report(struct samples *samples, const char *what, size_t bytes)
{
    for (int i = 0; i < PLACEMENTS; i++) {
        if (samples[i].count > 0) {
            double ns = samples_median(&samples[i]);

            printf("2 cores, %s: %s %.2f us, %.1f GB/s each (median of %zu)\n", what,
                   i == NEAR ? "near" : "far", ns * 1e-3, (double)bytes / ns, samples[i].count);
        }
        samples_fini(&samples[i]);
    }
}

static void report_all(size_t mib)
{
    static const char *const names[] = {"broadcast, gather, scatter, send",
                                        "all-gather, all-to-all"};
    char what[64];

    snprintf(what, sizeof(what), "%zu MiB each, read and written", mib);
    report(memory, what, mib << 20);
    snprintf(what, sizeof(what), "%zu KiB each, from the other's caches",
             LINK_FLOATS * sizeof(float) >> 10);
    report(link, what, LINK_FLOATS * sizeof(float));
    for (int i = 0; i < WAYS * BLOCKS; i++) {
        size_t kib = block_kib[i % BLOCKS];

        snprintf(what, sizeof(what), "%s, a block of %zu KiB", names[i / BLOCKS], kib);
        if (kib * 2 <= mib * 1024)
            report(copies[i / BLOCKS][i % BLOCKS], what, kib << 10);
    }
}

int main(int argc, char **argv)
{
    size_t mib = argc > 1 ? strtoul(argv[1], NULL, 10) : 64;
    int rounds = argc > 2 ? atoi(argv[2]) : 400;
    struct worker workers[2] = {0};
    pthread_barrier_t together;
    pthread_t thread;
    int cores[2];

    if (argc > 3 || mib < 1 || rounds < 1) {
        fprintf(stderr, "usage: bound [MIB (64)] [ROUNDS (400)]\n");
        return EXIT_FAILURE;
    }
    if (cores_find(cores, 2) < 2) {
        fprintf(stderr, "bound: two cores are needed\n");
        return SKIPPED;
    }
    pthread_barrier_init(&together, NULL, 2);
    for (int i = 0; i < 2; i++) {
        workers[i] = (struct worker){
            .other = &workers[!i],
            .together = &together,
            .buffer = calloc(mib << 20, 1),
            .count = (mib << 20) / sizeof(float),
            .places = {places[i], places[!i]},
            .side = i,
            .core = cores[i],
            .rounds = rounds,
        };
        if (workers[i].buffer == NULL)
            return EXIT_FAILURE;
    }
    if (pthread_create(&thread, NULL, partner, &workers[1]) != 0)
        return EXIT_FAILURE;
    cores_bind(cores[0]);
    measure(workers);
    pthread_join(thread, NULL);
    report_all(mib);
    pthread_barrier_destroy(&together);
    free(workers[0].buffer);
    free(workers[1].buffer);
    return EXIT_SUCCESS;
}
