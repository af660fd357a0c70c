/* SPDX-License-Identifier: MIT */
/*
 * What the machine's memory allows: two pinned threads each add 1 to every float of a buffer of
 * their own, at the same time. An all-reduce in place on 2 ranks must read and write as much,
 * whatever it does, and if both buffers together are larger than the last cache, from and to
 * memory. Prints the medians by the cores' distance.
 */
#include "now.h"
#include "probe.h"
#include "stats.h"

#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define THRESHOLD_NS 200 /* as in compare */
#define SKIPPED      77

struct worker {
    pthread_barrier_t *together;
    float *buffer;
    size_t count;
    int core;
    int rounds;
    double ns; /* of the last pass */
};

static void pass(struct worker *worker)
{
    int64_t start;

    pthread_barrier_wait(worker->together);
    start = now_ns();
    for (size_t i = 0; i < worker->count; i++)
        worker->buffer[i] += 1;
    worker->ns = (double)(now_ns() - start);
    pthread_barrier_wait(worker->together);
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

/* All rounds: this thread's passes beside the partner's, each between two probes. */
static void measure(struct worker *workers, struct probe *probe, struct samples *samples)
{
    for (int round = 0; round < workers[0].rounds; round++) {
        double before = probe_round_trip(probe);
        enum placement placement;

        pass(&workers[0]);
        if (placement_of(before, probe_round_trip(probe), THRESHOLD_NS, &placement))
            samples_add(&samples[placement],
                        workers[0].ns > workers[1].ns ? workers[0].ns : workers[1].ns);
    }
}

int main(int argc, char **argv)
{
    size_t mib = argc > 1 ? strtoul(argv[1], NULL, 10) : 64;
    int rounds = argc > 2 ? atoi(argv[2]) : 400;
    struct samples samples[PLACEMENT_COUNT] = {0};
    struct worker workers[2];
    pthread_barrier_t together;
    struct probe *probe;
    pthread_t thread;
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
        workers[i] = (struct worker){.together = &together, .core = core, .rounds = rounds};
        workers[i].count = (mib << 20) / sizeof(float);
        workers[i].buffer = calloc(workers[i].count, sizeof(float));
        if (workers[i].buffer == NULL)
            return EXIT_FAILURE;
    }
    if (pthread_create(&thread, NULL, partner, &workers[1]) != 0)
        return EXIT_FAILURE;
    measure(workers, probe, samples);
    pthread_join(thread, NULL);
    for (int i = 0; i < PLACEMENT_COUNT; i++) {
        if (samples[i].count > 0)
            printf("2 cores, %zu MiB each, read and written: %s %.0f us (median of %zu)\n", mib,
                   placement_name((enum placement)i), samples_median(&samples[i]) * 1e-3,
                   samples[i].count);
        samples_fini(&samples[i]);
    }
    probe_destroy(probe);
    pthread_barrier_destroy(&together);
    free(workers[0].buffer);
    free(workers[1].buffer);
    return EXIT_SUCCESS;
}
