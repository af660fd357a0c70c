/* SPDX-License-Identifier: MIT */
/*
 * A thread that looks at something at intervals, and when a bell rings. All watchers end before the
 * program does: they read pinned pages, which the exit handlers of the driver free.
 */
#ifndef TUTTI_CUDA_WATCHER_H
#define TUTTI_CUDA_WATCHER_H

#include "tutti/tutti.h"

#include <pthread.h>

enum { CUDA_WATCH_MS = 20 }; /* time between two looks */

struct cuda_watcher {
    /* Looks once. Returns how many ms the thread then sleeps unless the bell rings; 0: it looks
     * again at once; negative: there is nothing left to look for. Makes no CUDA call. */
    int64_t (*look)(void *context);
    void (*stop)(void *context);  /* ends what look() waits for; by any thread; may be NULL */
    void (*ended)(void *context); /* the last call of the thread; may be NULL */
    void *context;
    uint32_t *bell; /* futex; a thread that has news advances it and wakes the sleepers */

    pthread_t thread;
    bool started;
    struct cuda_watcher *next;
    uint32_t quit; /* release K1 pairs K1a */
};

/* Starts the thread of a watcher whose first members, up to `bell`, are set. Returns SYSTEM,
 * NO_MEMORY. */
enum tutti_status cuda_watcher_start(struct cuda_watcher *watcher);
/* Ends the thread and waits for it. Does nothing if the thread was not started. */
void cuda_watcher_stop(struct cuda_watcher *watcher);
/* Wakes the thread if it sleeps. */
void cuda_watcher_ring(const struct cuda_watcher *watcher);
/* Returns true if the thread is to end. */
bool cuda_watcher_quits(const struct cuda_watcher *watcher);

#endif
