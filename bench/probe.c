/* SPDX-License-Identifier: MIT */
#include "probe.h"

#include "now.h"
#include "order.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#define BATCHES 5
#define TRIPS   24 /* a batch, of 80 to 350 ns each */

struct probe {
    _Alignas(64) uint32_t ball; /* odd: the other thread's turn; in one line with nothing else */
    _Alignas(64) sem_t asked;
    sem_t ready;
    uint32_t quit;
    int core;
    pthread_t thread;
};

static int bind_to(int core)
{
    cpu_set_t one;

    CPU_ZERO(&one);
    CPU_SET(core, &one);
    return pthread_setaffinity_np(pthread_self(), sizeof(one), &one);
}

/* Waits for the ball to show value. A preempted partner ends the wait after a second. */
static int await(const uint32_t *ball, uint32_t value)
{
    int64_t deadline = 0;

    /* PA pairs PR: nothing but the ball itself is passed. */
    for (uint32_t spin = 1; order_load_acquire_u32(ball) != value; spin++) {
        order_pause();
        if (spin % 4096 != 0)
            continue;
        if (deadline == 0)
            deadline = now_ns() + 1000000000;
        else if (now_ns() > deadline)
            return -1;
    }
    return 0;
}

static void *partner(void *context)
{
    struct probe *probe = context;

    bind_to(probe->core);
    for (;;) {
        while (sem_wait(&probe->asked) != 0) {
        }
        if (probe->quit)
            return NULL;
        sem_post(&probe->ready);
        for (uint32_t trip = 0; trip < BATCHES * TRIPS; trip++) {
            if (await(&probe->ball, 2 * trip + 1) != 0)
                break;
            order_store_release_u32(&probe->ball, 2 * trip + 2); /* PR pairs PA in await() */
        }
    }
}

double probe_round_trip(struct probe *probe)
{
    struct timespec deadline;
    double best = INFINITY;
    uint32_t trip = 0;

    order_store_relaxed_u32(&probe->ball, 0); /* the semaphore orders it */
    sem_post(&probe->asked);
    clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_sec += 1;
    if (sem_timedwait(&probe->ready, &deadline) != 0)
        return NAN;
    for (int batch = 0; batch < BATCHES; batch++) {
        const int64_t start = now_ns();
        double mean;

        for (uint32_t end = trip + TRIPS; trip < end; trip++) {
            order_store_release_u32(&probe->ball, 2 * trip + 1); /* PR pairs PA in await() */
            if (await(&probe->ball, 2 * trip + 2) != 0)
                return NAN;
        }
        mean = (double)(now_ns() - start) / TRIPS;
        if (mean < best)
            best = mean;
    }
    return best;
}

struct probe *probe_create(void)
{
    struct probe *probe = aligned_alloc(64, sizeof(*probe));
    cpu_set_t allowed;
    int cores[2];
    int found = 0;

    if (probe == NULL)
        return NULL;
    if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0)
        goto err_free;
    for (int core = 0; core < CPU_SETSIZE && found < 2; core++) {
        if (CPU_ISSET(core, &allowed))
            cores[found++] = core;
    }
    if (found < 2)
        goto err_free;
    *probe = (struct probe){.core = cores[1]};
    sem_init(&probe->asked, 0, 0);
    sem_init(&probe->ready, 0, 0);
    if (pthread_create(&probe->thread, NULL, partner, probe) != 0)
        goto err_free;
    bind_to(cores[0]);
    return probe;

err_free:
    free(probe);
    return NULL;
}

void probe_destroy(struct probe *probe)
{
    if (probe == NULL)
        return;
    probe->quit = 1; /* the semaphore orders it */
    sem_post(&probe->asked);
    pthread_join(probe->thread, NULL);
    free(probe);
}
