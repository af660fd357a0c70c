/* SPDX-License-Identifier: MIT */
/*
 * A thread that looks at something at intervals. All watchers end before the program does: they
 * read pinned pages, which the exit handlers of the driver free.
 */
#ifndef TUTTI_CUDA_WATCHER_H
#define TUTTI_CUDA_WATCHER_H

#include "tutti/tutti.h"

#include <pthread.h>

enum { CUDA_WATCH_MS = 20 }; /* time between two looks */

struct cuda_watcher {
    /* Looks once, then sleeps; wake() ends the sleep. Returns false if there is nothing left to
     * look for, or if cuda_watcher_quits(). It reads the word that wake() changes before it calls
     * cuda_watcher_quits(), so that a wake() between the two counts. Makes no CUDA call. */
    bool (*poll)(void *context);
    void (*wake)(void *context);
    void *context;

    pthread_t thread;
    bool started;
    struct cuda_watcher *next;
    uint32_t quit; /* release K1 pairs K1a */
};

/* Starts the thread of a watcher whose first three members are set. Returns SYSTEM, NO_MEMORY. */
enum tutti_status cuda_watcher_start(struct cuda_watcher *watcher);
/* Ends the thread and waits for it. Does nothing if the thread was not started. */
void cuda_watcher_stop(struct cuda_watcher *watcher);
/* Returns true if the thread is to end. */
bool cuda_watcher_quits(const struct cuda_watcher *watcher);

#endif
