/* SPDX-License-Identifier: MIT */
/* memory:NAME, shared by the threads of a process that open the same name. */
#include "base/error.h"
#include "store/map_store.h"

#include <pthread.h>
#include <stdlib.h>

struct memory {
    struct map_store base;
    struct memory *next;
    int handles;
    pthread_mutex_t lock; /* over the map */
    pthread_cond_t grown; /* a key was added */
    char name[];
};

/* The open stores by name; the lock covers the list and the counts of handles. */
static struct memory *stores;
static pthread_mutex_t stores_lock = PTHREAD_MUTEX_INITIALIZER;

static void lock_stores(void)
{
    pthread_mutex_lock(&stores_lock);
}

static void unlock_stores(void)
{
    pthread_mutex_unlock(&stores_lock);
}

/* The child's copies of the stores belong to no thread, and some of them are locked. */
static void forget_stores(void)
{
    stores = NULL;
    pthread_mutex_unlock(&stores_lock);
}

/* A child of fork() must not find the lock in the hands of a thread that it does not have. */
static void install_fork_handlers(void)
{
    (void)pthread_atfork(lock_stores, unlock_stores, forget_stores);
}

static struct memory *memory_of(struct map_store *base)
{
    return (struct memory *)(void *)base;
}

static enum tutti_status memory_lock(struct map_store *base, bool writes,
                                     const struct store_call *call)
{
    (void)writes;
    (void)call;
    pthread_mutex_lock(&memory_of(base)->lock);
    return TUTTI_OK;
}

static void memory_unlock(struct map_store *base)
{
    pthread_mutex_unlock(&memory_of(base)->lock);
}

static enum tutti_status memory_put(struct map_store *base, const char *key,
                                    const struct store_bytes *value)
{
    struct memory *memory = memory_of(base);
    if (!value)
        map_erase(&base->map, key, strlen(key));
    else if (!map_set(&base->map, key, strlen(key), value->data, value->size))
        return error_errno("memory:%s: storing %zu bytes", memory->name, value->size);
    pthread_cond_broadcast(&memory->grown);
    return TUTTI_OK;
}

static void memory_await_change(struct map_store *base, const struct store_call *call)
{
    struct memory *memory = memory_of(base);
    const struct timespec until = deadline_timespec(store_call_pause(call));
    pthread_cond_timedwait(&memory->grown, &memory->lock, &until);
    pthread_mutex_unlock(&memory->lock);
}

static void memory_close(void *context)
{
    struct memory *memory = context;
    pthread_mutex_lock(&stores_lock);
    bool last = --memory->handles == 0;
    struct memory **link = &stores;
    while (last && *link != memory)
        link = &(*link)->next;
    if (last)
        *link = memory->next;
    pthread_mutex_unlock(&stores_lock);
    if (!last)
        return;
    map_fini(&memory->base.map);
    pthread_cond_destroy(&memory->grown);
    pthread_mutex_destroy(&memory->lock);
    free(memory);
}

static struct memory *memory_create(const char *name)
{
    static const struct map_store_ops ops = {
        .lock = memory_lock,
        .unlock = memory_unlock,
        .put = memory_put,
        .await_change = memory_await_change,
        .close = memory_close,
    };
    struct memory *memory = calloc(1, sizeof *memory + strlen(name) + 1);
    if (!memory)
        return NULL;
    memory->base.ops = &ops;
    strcpy(memory->name, name);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&memory->lock, NULL);
    pthread_cond_init(&memory->grown, &attributes);
    pthread_condattr_destroy(&attributes);
    return memory;
}

enum tutti_status memory_open(const struct store_url *url, int64_t timeout_ms,
                              tutti_store_t **store)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, install_fork_handlers);
    pthread_mutex_lock(&stores_lock);
    struct memory *memory = stores;
    while (memory && strcmp(memory->name, url->text) != 0)
        memory = memory->next;
    if (!memory) {
        memory = memory_create(url->text);
        if (memory) {
            memory->next = stores;
            stores = memory;
        }
    }
    if (memory)
        memory->handles++;
    pthread_mutex_unlock(&stores_lock);
    if (!memory)
        return error_errno("creating the store");
    return store_create(&map_store_kind, memory, timeout_ms, NULL, store);
}
