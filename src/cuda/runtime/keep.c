/* SPDX-License-Identifier: MIT */
#include "cuda/runtime/keep.h"

#include "base/order.h"
#include "cuda/runtime/calls.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

/* For the destructor of a user object whose graphs are gone: 10 ms. */
enum { AWAIT_TURNS = 100, AWAIT_NS = 100000 };

/* Guards the list alone. No call of the driver is made under it: one that frees waits for streams,
 * which may need a thread that opens or closes something else. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct cuda_keep *list; /* of what no owner holds any more, and no thread looks at */

static void hold(void)
{
    pthread_mutex_lock(&lock);
}

static void release(void)
{
    pthread_mutex_unlock(&lock);
}

/* A child of fork() must not find the lock in the hands of a thread that it does not have. What is
 * on the list is its parent's. */
static void release_in_child(void)
{
    list = NULL;
    pthread_mutex_unlock(&lock);
}

static void install_fork_handlers(void)
{
    (void)pthread_atfork(hold, release, release_in_child);
}

/* The user object's destructor: the last graph is gone, and the owner. */
static void graphs_gone(void *argument)
{
    struct cuda_keep *keep = argument;
    order_store_release_u32(&keep->graphless, 1); /* K2 pairs K2a */
}

enum tutti_status cuda_keep_retain(struct cuda_keep *keep, CUgraph graph)
{
    const struct cuda_driver *driver = keep->driver;
    enum tutti_status status = TUTTI_OK;
    if (!keep->object)
        status = CUDA_CALL(driver, user_object_create, &keep->object, keep, graphs_gone, 1,
                           CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
    if (status == TUTTI_OK)
        status = CUDA_CALL(driver, graph_retain_user_object, graph, keep->object, 1, 0);
    return status;
}

/* Whether nothing runs that touches it. In the context. */
static bool is_idle(struct cuda_keep *keep)
{
    if (keep->idle && !keep->idle(keep->owner))
        return false;
    /* Any other result than "not ready" says that nothing runs: done, or the context is broken. */
    return !keep->pending || keep->driver->event_query(keep->pending) != CUDA_ERROR_NOT_READY;
}

/* Errors are of no interest. A context that is gone has taken pinned memory, events and streams
 * with it, and their addresses may be another's by now. */
static void dispose(struct cuda_keep *keep, bool lives)
{
    const struct cuda_driver *driver = keep->driver;
    if (keep->end)
        keep->end(keep->owner, lives);
    for (int r = 0; r < CUDA_RANKS; r++)
        cuda_memory_unmap(driver, &keep->arenas[r]);
    cuda_memory_unmap(driver, &keep->control);
    cuda_memory_unmap(driver, &keep->recorder);
    if (lives && keep->page)
        driver->mem_host_free(keep->page);
    if (lives && keep->symm_page)
        driver->mem_host_free(keep->symm_page);
    if (lives && keep->proxy_page)
        driver->mem_host_free(keep->proxy_page);
    if (lives && keep->pending)
        driver->event_destroy(keep->pending);
    free(keep);
}

bool cuda_keep_lives(const struct cuda_keep *keep)
{
    unsigned long long id = 0;
    return keep->context &&
           (!keep->context_id ||
            (keep->driver->ctx_id(keep->context, &id) == CUDA_SUCCESS && id == keep->context_id));
}

/* Frees it if it is due. */
static bool dispose_due(struct cuda_keep *keep)
{
    const struct cuda_driver *driver = keep->driver;
    struct cuda_visit visit;
    if (keep->stuck || (keep->object && !order_load_acquire_u32(&keep->graphless))) /* K2a */
        return false;
    const bool lives =
        cuda_keep_lives(keep) && cuda_visit_begin(driver, keep->context, &visit) == TUTTI_OK;
    const bool due = !lives || is_idle(keep);
    if (due)
        dispose(keep, lives);
    if (lives)
        cuda_visit_end(driver, &visit);
    return due;
}

/* The first one of the list, for the calling thread alone; NULL if there is none. */
static struct cuda_keep *list_take(void)
{
    pthread_mutex_lock(&lock);
    struct cuda_keep *keep = list;
    if (keep)
        list = keep->next;
    pthread_mutex_unlock(&lock);
    return keep;
}

static void list_give(struct cuda_keep *keep)
{
    pthread_mutex_lock(&lock);
    keep->next = list;
    list = keep;
    pthread_mutex_unlock(&lock);
}

void cuda_keep_sweep(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct cuda_keep *keep, *later = NULL;
    pthread_once(&once, install_fork_handlers);
    while ((keep = list_take())) {
        if (dispose_due(keep))
            continue;
        keep->next = later;
        later = keep;
    }
    while ((keep = later)) {
        later = keep->next;
        list_give(keep);
    }
}

/* If the graphs are gone already the destructor runs now, in a thread of the driver. */
static void await_destructor(struct cuda_keep *keep)
{
    for (int i = 0; i < AWAIT_TURNS && !order_load_acquire_u32(&keep->graphless); i++) /* K2a */
        nanosleep(&(struct timespec){.tv_nsec = AWAIT_NS}, NULL);
}

void cuda_keep_release(struct cuda_keep *keep, CUevent pending, bool stuck)
{
    if (!keep)
        return;
    keep->pending = pending;
    keep->stuck = stuck;
    if (keep->object && keep->driver->user_object_release(keep->object, 1) == CUDA_SUCCESS)
        await_destructor(keep);
    list_give(keep); /* from here on another thread may free it */
    cuda_keep_sweep();
}
