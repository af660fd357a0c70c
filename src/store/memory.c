/* SPDX-License-Identifier: MIT */
/* memory:NAME, shared by the threads of a process that open the same name. */
#include "base/error.h"
#include "base/fork_mutex.h"
#include "base/thread.h"
#include "store/map_store.h"

#include <stdlib.h>

struct memory {
    struct map_store base;
    struct memory *next;
    int handles;
    char name[];
};

static void forget_stores(void);

/* The open stores. The lock guards the list and all stores in it. */
static struct memory *stores;
static struct fork_mutex lock = FORK_MUTEX(forget_stores);
static pthread_cond_t changed; /* a key in any store */

static void init_changed(void)
{
    thread_condition_init(&changed);
}

/* The threads that use the stores and wait for changes are not in the child. */
static void forget_stores(void)
{
    stores = NULL;
    init_changed();
}

static enum tutti_status memory_lock(struct map_store *base, bool writes, struct store_call *call)
{
    (void)base;
    (void)writes;
    (void)call;
    fork_mutex_lock(&lock);
    return TUTTI_OK;
}

static void memory_unlock(struct map_store *base)
{
    (void)base;
    fork_mutex_unlock(&lock);
}

static enum tutti_status memory_put(struct map_store *base, const char *key,
                                    const struct store_bytes *value)
{
    if (!value)
        map_erase(&base->map, key, strlen(key));
    else if (!map_put(&base->map, key, strlen(key), false, value->data, value->size))
        return error_errno("storing %zu bytes in memory", value->size);
    pthread_cond_broadcast(&changed);
    return TUTTI_OK;
}

static void memory_await_change(struct map_store *base, const struct store_call *call)
{
    (void)base;
    const struct timespec until = deadline_timespec(store_call_pause(call));
    pthread_cond_timedwait(&changed, &lock.mutex, &until);
    fork_mutex_unlock(&lock);
}

static void memory_close(void *context)
{
    struct memory *memory = context, **link = &stores;
    fork_mutex_lock(&lock);
    if (--memory->handles == 0) {
        while (*link != memory)
            link = &(*link)->next;
        *link = memory->next;
        map_fini(&memory->base.map);
        free(memory);
    }
    fork_mutex_unlock(&lock);
}

static struct memory *memory_create(const char *name)
{
    static const struct map_store_ops ops = {memory_lock, memory_unlock, memory_put,
                                             memory_await_change};
    struct memory *memory = calloc(1, sizeof *memory + strlen(name) + 1);
    if (!memory)
        return NULL;
    memory->base.ops = &ops;
    strcpy(memory->name, name);
    memory->next = stores;
    stores = memory;
    return memory;
}

enum tutti_status memory_open(const struct store_url *url, int64_t timeout_ms,
                              tutti_store_t **store)
{
    static const struct store_kind kind = {.serve = map_store_serve, .close = memory_close};
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, init_changed);
    fork_mutex_lock(&lock);
    struct memory *memory = stores;
    while (memory && strcmp(memory->name, url->text) != 0)
        memory = memory->next;
    if (!memory)
        memory = memory_create(url->text);
    if (memory)
        memory->handles++;
    fork_mutex_unlock(&lock);
    if (!memory)
        return error_errno("creating the store");
    return store_create(&kind, memory, timeout_ms, NULL, store);
}
