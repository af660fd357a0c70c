/* SPDX-License-Identifier: MIT */
/*
 * A thread that looks at something at intervals, and when its bell rings. One such thread of the
 * process watches all communicators and symmetric allocations. These threads end before the program
 * does, because they read pinned pages, which the exit handlers of the driver free.
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
    uint32_t *bell; /* futex; a thread with an event advances it and wakes sleepers */

    pthread_t thread;
    bool started;
    struct cuda_watcher *next;
    uint32_t quit; /* release K9 pairs K9a */
};

/* Starts the thread of a watcher whose first members, up to `bell`, are set. Returns SYSTEM,
 * NO_MEMORY. */
enum tutti_status cuda_watcher_start(struct cuda_watcher *watcher);
/* Ends the thread and waits for it. Does nothing if the thread was not started. */
void cuda_watcher_stop(struct cuda_watcher *watcher);
/* Wakes the thread if it sleeps. */
void cuda_watcher_ring(const struct cuda_watcher *watcher);

/* Returns true if the program exits, so that these threads have ended or soon end. */
bool cuda_watchers_ended(void);

/* Work for the process's thread: look() runs every CUDA_WATCH_MS. */
struct cuda_watch {
    void (*look)(void *context); /* makes no CUDA call, calls nothing of this file */
    void *context;
    struct cuda_watch *next;
};

/* Both may be called by any thread. Add starts the thread if this is its only watch; returns
 * SYSTEM, NO_MEMORY. After remove, look() is not called any more; remove also takes a watch
 * that was not added. */
enum tutti_status cuda_watch_add(struct cuda_watch *watch);
void cuda_watch_remove(struct cuda_watch *watch);

#endif
