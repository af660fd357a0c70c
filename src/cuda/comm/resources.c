/* SPDX-License-Identifier: MIT */
#include "cuda/comm/resources.h"

#include "base/deadline.h"
#include "base/error.h"
#include "base/order.h"
#include "base/wait.h"
#include "cuda/driver/wrappers.h"

#include <pthread.h>
#include <stdlib.h>

enum { DESTRUCTOR_MS = 50 }; /* a wait for the destructor of a user object whose graphs are gone */

/* Guards the list alone. No driver call is made under it: a call that frees waits for streams, and
 * these may need a thread that opens or closes something else. A child of fork() uses neither. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct cuda_resources *list; /* given up by their owners; no thread uses them */

void *cuda_resources_create(const struct cuda_driver *driver, size_t owner_bytes,
                            struct cuda_resources **resources)
{
    void *owner = calloc(1, owner_bytes);
    *resources = calloc(1, sizeof **resources);
    if (owner && *resources) {
        (*resources)->driver = driver;
        return owner;
    }
    free(owner);
    free(*resources);
    error_set(TUTTI_ERR_NO_MEMORY, "no memory for %zu bytes", owner_bytes + sizeof **resources);
    return NULL;
}

/* The destructor of the user object: the last graph and the owner are gone. */
static void graphs_gone(void *argument)
{
    struct cuda_resources *resources = argument;
    order_store_release_u32(&resources->graphless, 1); /* K2 pairs K2a */
}

static bool is_graphless(void *context)
{
    const struct cuda_resources *resources = context;
    return order_load_acquire_u32(&resources->graphless); /* K2a */
}

enum tutti_status cuda_resources_retain(struct cuda_resources *resources, CUgraph graph)
{
    const struct cuda_driver *driver = resources->driver;
    enum tutti_status status = TUTTI_OK;
    if (!resources->object)
        status = CUDA_CALL(driver, user_object_create, &resources->object, resources, graphs_gone,
                           1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
    if (status == TUTTI_OK)
        status = CUDA_CALL(driver, graph_retain_user_object, graph, resources->object, 1, 0);
    return status;
}

/* Returns true if nothing runs that uses the resources. In the context. */
static bool is_idle(struct cuda_resources *resources)
{
    if (resources->idle && !resources->idle(resources->owner))
        return false;
    /* Any result but "not ready" means that nothing runs: done, or the context is broken. */
    return !resources->pending ||
           resources->driver->event_query(resources->pending) != CUDA_ERROR_NOT_READY;
}

/* Errors are ignored. A context that is gone took pinned memory, events and streams with it, and
 * their addresses may be used again. */
static void dispose(struct cuda_resources *resources, bool lives)
{
    const struct cuda_driver *driver = resources->driver;
    if (resources->end)
        resources->end(resources->owner, lives);
    for (int r = 0; r < CUDA_RANKS; r++)
        cuda_memory_unmap(driver, &resources->arenas[r]);
    cuda_memory_unmap(driver, &resources->control);
    cuda_memory_unmap(driver, &resources->recorder);
    if (lives && resources->page)
        driver->mem_host_free(resources->page);
    if (lives && resources->symm_page)
        driver->mem_host_free(resources->symm_page);
    if (lives && resources->proxy_page)
        driver->mem_host_free(resources->proxy_page);
    if (lives && resources->fabric_page)
        driver->mem_host_free(resources->fabric_page);
    if (lives && resources->pending)
        driver->event_destroy(resources->pending);
    free(resources);
}

bool cuda_resources_live(const struct cuda_resources *resources)
{
    unsigned long long id = 0;
    return resources->context &&
           (!resources->context_id ||
            (resources->driver->ctx_id(resources->context, &id) == CUDA_SUCCESS &&
             id == resources->context_id));
}

/* Frees the resources if they are due. */
static bool dispose_due(struct cuda_resources *resources)
{
    const struct cuda_driver *driver = resources->driver;
    struct cuda_visit visit;
    if (resources->stuck || (resources->object && !is_graphless(resources)))
        return false;
    const bool lives = cuda_resources_live(resources) &&
                       cuda_visit_begin(driver, resources->context, &visit) == TUTTI_OK;
    const bool due = !lives || is_idle(resources);
    if (due)
        dispose(resources, lives);
    if (lives)
        cuda_visit_end(driver, &visit);
    return due;
}

/* Takes the first entry off the list; NULL if the list is empty. */
static struct cuda_resources *list_take(void)
{
    pthread_mutex_lock(&lock);
    struct cuda_resources *resources = list;
    if (resources)
        list = resources->next;
    pthread_mutex_unlock(&lock);
    return resources;
}

static void list_give(struct cuda_resources *resources)
{
    pthread_mutex_lock(&lock);
    resources->next = list;
    list = resources;
    pthread_mutex_unlock(&lock);
}

void cuda_resources_sweep(void)
{
    struct cuda_resources *resources, *later = NULL;
    while ((resources = list_take())) {
        if (dispose_due(resources))
            continue;
        resources->next = later;
        later = resources;
    }
    while ((resources = later)) {
        later = resources->next;
        list_give(resources);
    }
}

bool cuda_resources_let_go(struct cuda_resources *resources)
{
    if (!resources->object)
        return true;
    /* If the graphs are already gone, a thread of the driver runs the destructor now. */
    if (!resources->let_go &&
        resources->driver->user_object_release(resources->object, 1) == CUDA_SUCCESS) {
        resources->let_go = true;
        wait_napping(is_graphless, resources, deadline_after(DESTRUCTOR_MS), WAIT_NAP_NS);
    }
    return is_graphless(resources);
}

void cuda_resources_release(struct cuda_resources *resources, CUevent pending, bool stuck)
{
    if (!resources)
        return;
    resources->pending = pending;
    resources->stuck = stuck;
    (void)cuda_resources_let_go(resources);
    list_give(resources); /* from here on another thread may free it */
    cuda_resources_sweep();
}
