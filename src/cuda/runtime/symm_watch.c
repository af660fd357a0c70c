/* SPDX-License-Identifier: MIT */
/*
 * One thread of the process watches all its allocations. Kernels learn of the end of a process only
 * by their pinned page. A peer that frees its allocation says so in the tail of its segment, which
 * kernels read.
 */
#include "base/order.h"
#include "cuda/runtime/symm_internal.h"
#include "cuda/runtime/watcher.h"

static pthread_mutex_t thread_lock = PTHREAD_MUTEX_INITIALIZER; /* guards the thread's life */
static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;   /* guards the list */
static struct cuda_symm *first;
static struct cuda_watcher watcher;

static int64_t look(void *context)
{
    (void)context;
    pthread_mutex_lock(&list_lock);
    for (struct cuda_symm *symm = first; symm; symm = symm->next_watched) {
        struct rank_set gone = rank_set_none;
        for (int r = 0; r < symm->config.size; r++)
            if (!cpu_group_peer_alive(symm->config.host, r))
                rank_set_add(&gone, r);
        /* Relaxed: a kernel that reads it looks at its word once more, and a process that has ended
         * stores nothing any more. */
        order_store_relaxed_u32(&symm->resources->symm_page->gone, cuda_rank_bits(gone));
    }
    pthread_mutex_unlock(&list_lock);
    return CUDA_WATCH_MS;
}

enum tutti_status cuda_symm_watch(struct cuda_symm *symm)
{
    static uint32_t bell;
    enum tutti_status status = TUTTI_OK;
    pthread_mutex_lock(&thread_lock);
    if (!watcher.started) {
        watcher = (struct cuda_watcher){.look = look, .bell = &bell};
        status = cuda_watcher_start(&watcher);
    }
    if (status == TUTTI_OK) {
        pthread_mutex_lock(&list_lock);
        symm->next_watched = first;
        first = symm;
        pthread_mutex_unlock(&list_lock);
    }
    pthread_mutex_unlock(&thread_lock);
    return status;
}

void cuda_symm_unwatch(struct cuda_symm *symm)
{
    pthread_mutex_lock(&thread_lock);
    pthread_mutex_lock(&list_lock);
    for (struct cuda_symm **link = &first; *link; link = &(*link)->next_watched)
        if (*link == symm) {
            *link = symm->next_watched;
            break;
        }
    const bool is_last = !first;
    pthread_mutex_unlock(&list_lock);
    if (is_last)
        cuda_watcher_stop(&watcher);
    pthread_mutex_unlock(&thread_lock);
}
