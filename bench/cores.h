/* SPDX-License-Identifier: MIT */
/* The cores of threads that are bound. */
#ifndef BENCH_CORES_H
#define BENCH_CORES_H

#include <pthread.h>
#include <sched.h>

/* The first cores that this process may use. Returns how many of the wanted ones there are. */
static inline int cores_find(int *cores, int wanted)
{
    cpu_set_t allowed;
    int found = 0;

    if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0)
        return 0;
    for (int core = 0; core < CPU_SETSIZE && found < wanted; core++) {
        if (CPU_ISSET((unsigned)core, &allowed))
            cores[found++] = core;
    }
    return found;
}

/* Binds the calling thread. */
static inline void cores_bind(int core)
{
    cpu_set_t one;

    CPU_ZERO(&one);
    CPU_SET((unsigned)core, &one);
    pthread_setaffinity_np(pthread_self(), sizeof(one), &one);
}

#endif
