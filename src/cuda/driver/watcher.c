/* SPDX-License-Identifier: MIT */
#include "cuda/driver/watcher.h"

#include "base/error.h"
#include "base/order.h"
#include "base/thread.h"
#include "ipc/fork.h"
#include "ipc/futex.h"

#include <stdlib.h>

/*
 * All watchers with a thread. A child of fork() has none, and takes no lock of this file. A program
 * may exit without stopping them. They must end before the driver frees pinned pages: our exit
 * handler, installed later than the driver's, runs before it.
 */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct cuda_watcher *watchers;
static uint32_t epoch;   /* of the process that owns them */
static uint32_t exiting; /* release K1 pairs K1a */

static void end(struct cuda_watcher *watcher)
{
    order_store_release_u32(&watcher->quit, 1); /* K9 pairs K9a */
    if (watcher->stop)
        watcher->stop(watcher->context);
    cuda_watcher_ring(watcher);
    pthread_join(watcher->thread, NULL);
}

static void end_all(void)
{
    if (fork_detected(epoch)) /* a child has no watchers */
        return;
    order_store_release_u32(&exiting, 1); /* K1 pairs K1a */
    pthread_mutex_lock(&lock);
    for (; watchers; watchers = watchers->next)
        end(watchers);
    pthread_mutex_unlock(&lock);
}

static void install_handlers(void)
{
    (void)fork_epoch(&epoch); /* this process has an epoch, or there would be no watcher */
    (void)atexit(end_all);
}

static void list_add(struct cuda_watcher *watcher)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, install_handlers);
    pthread_mutex_lock(&lock);
    watcher->next = watchers;
    watchers = watcher;
    pthread_mutex_unlock(&lock);
}

/* Returns false if the program's exit has already emptied the list. */
static bool list_remove(struct cuda_watcher *watcher)
{
    bool found = false;
    pthread_mutex_lock(&lock);
    for (struct cuda_watcher **link = &watchers; *link; link = &(*link)->next) {
        if (*link != watcher)
            continue;
        *link = watcher->next;
        found = true;
        break;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

static void *run(void *argument)
{
    struct cuda_watcher *watcher = argument;
    for (int64_t ms = 0; ms >= 0;) {
        const uint32_t bell = order_load_acquire_u32(watcher->bell); /* K8a pairs K8 */
        ms = order_load_acquire_u32(&watcher->quit)                  /* K9a pairs K9 */
                 ? -1
                 : watcher->look(watcher->context);
        if (ms > 0)
            futex_sleep(watcher->bell, bell, ms);
    }
    if (watcher->ended)
        watcher->ended(watcher->context);
    return NULL;
}

enum tutti_status cuda_watcher_start(struct cuda_watcher *watcher)
{
    watcher->started = thread_start(&watcher->thread, run, watcher);
    if (!watcher->started)
        return error_errno("pthread_create of a watcher");
    list_add(watcher);
    return TUTTI_OK;
}

void cuda_watcher_stop(struct cuda_watcher *watcher)
{
    if (watcher->started && list_remove(watcher))
        end(watcher);
    watcher->started = false;
}

void cuda_watcher_ring(const struct cuda_watcher *watcher)
{
    order_fetch_add_u32(watcher->bell, 1); /* K8 pairs K8a */
    futex_wake_all(watcher->bell);
}

bool cuda_watchers_ended(void)
{
    return order_load_acquire_u32(&exiting); /* K1a pairs K1 */
}

/* ---- the thread that watches all ------------------------------------------------------------- */

static pthread_mutex_t life = PTHREAD_MUTEX_INITIALIZER;  /* guards the thread's start and end */
static pthread_mutex_t looks = PTHREAD_MUTEX_INITIALIZER; /* guards the list; held by a look */
static struct cuda_watch *watches;
static struct cuda_watcher shared;

static int64_t look_at_all(void *context)
{
    (void)context;
    pthread_mutex_lock(&looks);
    for (struct cuda_watch *watch = watches; watch; watch = watch->next)
        watch->look(watch->context);
    pthread_mutex_unlock(&looks);
    return CUDA_WATCH_MS;
}

enum tutti_status cuda_watch_add(struct cuda_watch *watch)
{
    static uint32_t bell;
    enum tutti_status status = TUTTI_OK;
    pthread_mutex_lock(&life);
    if (!shared.started) {
        shared = (struct cuda_watcher){.look = look_at_all, .bell = &bell};
        status = cuda_watcher_start(&shared);
    }
    if (status == TUTTI_OK) {
        pthread_mutex_lock(&looks);
        watch->next = watches;
        watches = watch;
        pthread_mutex_unlock(&looks);
    }
    pthread_mutex_unlock(&life);
    return status;
}

void cuda_watch_remove(struct cuda_watch *watch)
{
    pthread_mutex_lock(&life);
    pthread_mutex_lock(&looks);
    struct cuda_watch **link = &watches;
    while (*link && *link != watch)
        link = &(*link)->next;
    if (*link)
        *link = watch->next;
    const bool is_last = !watches;
    pthread_mutex_unlock(&looks);
    if (is_last)
        cuda_watcher_stop(&shared);
    pthread_mutex_unlock(&life);
}
