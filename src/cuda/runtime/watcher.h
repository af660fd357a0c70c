/* SPDX-License-Identifier: MIT */
/*
 * A thread that looks around every now and then on somebody's behalf. All of them end before the
 * program does: they read pinned pages, which the driver takes away in its own exit handlers.
 */
#ifndef TUTTI_CUDA_WATCHER_H
#define TUTTI_CUDA_WATCHER_H

#include "tutti/tutti.h"

#include <pthread.h>

enum { CUDA_WATCH_MS = 20 }; /* between two looks */

struct cuda_watcher {
    /* One look, then a nap that wake() ends. Returns false when there is nothing left to look for,
     * or cuda_watcher_quits(), which it asks after whatever its nap goes by: so a wake() counts
     * that comes between the two. Makes no CUDA call. */
    bool (*poll)(void *context);
    void (*wake)(void *context);
    void *context;

    pthread_t thread;
    bool started;
    struct cuda_watcher *next;
    uint32_t quit; /* release K1 pairs K1a */
};

/* Starts the thread of a watcher that has its first three members. Returns SYSTEM, NO_MEMORY. */
enum tutti_status cuda_watcher_start(struct cuda_watcher *watcher);
/* Waits for the thread's end; takes one that was not started. */
void cuda_watcher_stop(struct cuda_watcher *watcher);
/* Whether the thread is to end. */
bool cuda_watcher_quits(const struct cuda_watcher *watcher);

#endif
