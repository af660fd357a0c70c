/* SPDX-License-Identifier: MIT */
/*
 * The watch of a group. Kernels learn of the end of a process only by their pinned page. A peer
 * that frees its allocation says so in the tail of its segment, which kernels read.
 */
#include "base/error.h"
#include "base/order.h"
#include "cuda/runtime/symm_internal.h"
#include "cuda/runtime/watcher.h"
#include "ipc/channel.h"

#include <stdlib.h>

struct cuda_symm_watch {
    struct cuda_watcher watcher;
    struct channel *channel;
    struct rank_set peers;
    uint32_t bell;        /* of the watcher */
    pthread_mutex_t lock; /* guards the list */
    struct cuda_symm *first;
};

static int64_t look(void *context)
{
    struct cuda_symm_watch *watch = context;
    struct rank_set gone = rank_set_none;
    for (int r = rank_set_next(watch->peers, -1); r >= 0; r = rank_set_next(watch->peers, r))
        if (!channel_peer_alive(watch->channel, r))
            rank_set_add(&gone, r);
    pthread_mutex_lock(&watch->lock);
    /* Relaxed: a kernel that reads it looks at its word once more, and a process that has ended
     * stores nothing any more. */
    for (struct cuda_symm *symm = watch->first; symm; symm = symm->next_watched)
        order_store_relaxed_u32(&symm->resources->symm_page->gone, cuda_rank_bits(gone));
    pthread_mutex_unlock(&watch->lock);
    return CUDA_WATCH_MS;
}

enum tutti_status cuda_symm_watch_open(struct channel *channel, struct rank_set peers,
                                       struct cuda_symm_watch **watch)
{
    *watch = NULL;
    struct cuda_symm_watch *made = calloc(1, sizeof *made);
    if (!made)
        return error_set(TUTTI_ERR_NO_MEMORY, "no memory for %zu bytes", sizeof *made);
    made->watcher = (struct cuda_watcher){.look = look, .context = made, .bell = &made->bell};
    made->channel = channel;
    made->peers = peers;
    pthread_mutex_init(&made->lock, NULL);
    enum tutti_status status = cuda_watcher_start(&made->watcher);
    if (status == TUTTI_OK)
        *watch = made;
    else
        cuda_symm_watch_close(made);
    return status;
}

void cuda_symm_watch_add(struct cuda_symm_watch *watch, struct cuda_symm *symm)
{
    pthread_mutex_lock(&watch->lock);
    symm->watch = watch;
    symm->next_watched = watch->first;
    watch->first = symm;
    pthread_mutex_unlock(&watch->lock);
}

void cuda_symm_watch_remove(struct cuda_symm *symm)
{
    struct cuda_symm_watch *watch = symm->watch;
    if (!watch)
        return;
    pthread_mutex_lock(&watch->lock);
    for (struct cuda_symm **link = &watch->first; *link; link = &(*link)->next_watched)
        if (*link == symm) {
            *link = symm->next_watched;
            break;
        }
    pthread_mutex_unlock(&watch->lock);
    symm->watch = NULL;
}

void cuda_symm_watch_close(struct cuda_symm_watch *watch)
{
    if (!watch)
        return;
    cuda_watcher_stop(&watch->watcher);
    pthread_mutex_destroy(&watch->lock);
    free(watch);
}
