/* SPDX-License-Identifier: MIT */
/*
 * What the machine allows an all-reduce of 2 ranks, whatever it does: two pinned threads, at the
 * same time.
 *
 * Memory: each adds 1 to every float of a buffer of its own, since each rank's buffer is read and
 * written. If both are larger than the last cache together, that is from and to memory.
 *
 * Link: each reads what the other one has just written, since each rank needs as many bytes of the
 * other as the buffer has. They write in turn where they have read, as two ranks do.
 *
 * Prints the medians by the cores' distance.
 */
#include "now.h"
#include "order.h"
#include "probe.h"
#include "stats.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define THRESHOLD_NS 200 /* as in compare */
#define SKIPPED      77
#define LINK_FLOATS  ((size_t)128 << 10)
#define LINK_PASSES  4 /* a round */

static _Alignas(4096) float places[2][LINK_FLOATS];

struct worker {
    _Alignas(64) uint32_t begun; /* passes; in one line with nothing else */
    _Alignas(64) struct worker *other;
    pthread_barrier_t *together;
    float *buffer;
    size_t count;
    float *places[2]; /* where to write and where to read, in turn */
    int core;
    int rounds;
    float sink;
    double memory_ns; /* of the last round */
    double link_ns;
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

/* The last of several link passes counts. */
static void pass(struct worker *worker)
{
    memory_pass(worker);
    for (int i = 0; i < LINK_PASSES; i++)
        link_pass(worker);
}

static void *partner(void *context)
{
    struct worker *worker = context;
    cpu_set_t one;

    CPU_ZERO(&one);
    CPU_SET(worker->core, &one);
    pthread_setaffinity_np(pthread_self(), sizeof(one), &one);
    for (int round = 0; round < worker->rounds; round++)
        pass(worker);
    return NULL;
}

static int second_core(void)
{
    cpu_set_t allowed;
    int found = 0;

    if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0)
        return -1;
    for (int core = 0; core < CPU_SETSIZE; core++) {
        if (CPU_ISSET(core, &allowed) && ++found == 2)
            return core;
    }
    return -1;
}

/* All rounds: this thread's passes beside the partner's, between two probes. */
static void measure(struct worker *workers, struct probe *probe, struct samples *memory,
                    struct samples *link)
{
    for (int round = 0; round < workers[0].rounds; round++) {
        double before = probe_round_trip(probe);
        enum placement placement;

        pass(&workers[0]);
        if (!placement_of(before, probe_round_trip(probe), THRESHOLD_NS, &placement))
            continue;
        samples_add(&memory[placement], fmax(workers[0].memory_ns, workers[1].memory_ns));
        samples_add(&link[placement], fmax(workers[0].link_ns, workers[1].link_ns));
    }
}

static void report(struct samples *samples, const char *what, size_t bytes)
{
    for (int i = 0; i < PLACEMENT_COUNT; i++) {
        if (samples[i].count > 0) {
            double ns = samples_median(&samples[i]);

            printf("2 cores, %s: %s %.1f us, %.1f GB/s each (median of %zu)\n", what,
                   placement_name((enum placement)i), ns * 1e-3, (double)bytes / ns,
                   samples[i].count);
        }
        samples_fini(&samples[i]);
    }
}

int main(int argc, char **argv)
{
    size_t mib = argc > 1 ? strtoul(argv[1], NULL, 10) : 64;
    int rounds = argc > 2 ? atoi(argv[2]) : 400;
    struct samples memory[PLACEMENT_COUNT] = {0}, link[PLACEMENT_COUNT] = {0};
    struct worker workers[2] = {0};
    pthread_barrier_t together;
    struct probe *probe;
    pthread_t thread;
    char what[64];
    int core = second_core();

    if (argc > 3 || mib < 1 || rounds < 1) {
        fprintf(stderr, "usage: bound [MIB (64)] [ROUNDS (400)]\n");
        return EXIT_FAILURE;
    }
    probe = core >= 0 ? probe_create() : NULL; /* pins this thread to the first core */
    if (probe == NULL) {
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
            .core = core,
            .rounds = rounds,
        };
        if (workers[i].buffer == NULL)
            return EXIT_FAILURE;
    }
    if (pthread_create(&thread, NULL, partner, &workers[1]) != 0)
        return EXIT_FAILURE;
    measure(workers, probe, memory, link);
    pthread_join(thread, NULL);
    snprintf(what, sizeof(what), "%zu MiB each, read and written", mib);
    report(memory, what, mib << 20);
    snprintf(what, sizeof(what), "%zu KiB each, from the other's caches",
             LINK_FLOATS * sizeof(float) >> 10);
    report(link, what, LINK_FLOATS * sizeof(float));
    probe_destroy(probe);
    pthread_barrier_destroy(&together);
    free(workers[0].buffer);
    free(workers[1].buffer);
    return EXIT_SUCCESS;
}
