/* SPDX-License-Identifier: MIT */
/* memory:NAME, shared by the threads of a process that open the same name. */
#include "store/store.h"

#include "base/error.h"
#include "store/map.h"
#include "store/nap.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct memory {
    struct memory *next;
    int handles;
    pthread_mutex_t lock; /* over map */
    pthread_cond_t grown; /* a key was added */
    struct map map;
    char name[];
};

/* The stores that are open, by name; the lock covers the list and the counts of handles. */
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

/* Its copies of its parent's are nobody's: they lie, some of them locked. */
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

static void copy_out(const struct map_entry *entry, void *value, size_t capacity, size_t *size)
{
    size_t bytes = entry->value_bytes < capacity ? entry->value_bytes : capacity;
    if (bytes)
        memcpy(value, entry->value, bytes);
    *size = entry->value_bytes;
}

/* The first key that is missing, NULL if all are there. The lock is held. */
static const char *missing(const struct memory *memory, const char *const *keys, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!map_find(&memory->map, keys[i], strlen(keys[i])))
            return keys[i];
    return NULL;
}

/* Waits until all keys exist; the lock is held before and after. */
static enum tutti_status await(struct memory *memory, const char *call, const char *const *keys,
                               size_t count, int64_t timeout_ms)
{
    int64_t deadline = deadline_after(timeout_ms);
    struct timespec until = deadline_timespec(deadline);
    for (;;) {
        const char *key = missing(memory, keys, count);
        if (!key)
            return TUTTI_OK;
        if (deadline_passed(deadline))
            return store_timed_out(call, key, count, timeout_ms);
        if (deadline == DEADLINE_NEVER)
            pthread_cond_wait(&memory->grown, &memory->lock);
        else
            pthread_cond_timedwait(&memory->grown, &memory->lock, &until);
    }
}

/* Stores a value and wakes those who may wait for its key; the lock is held. */
static enum tutti_status put(struct memory *memory, const char *key, const void *value, size_t size)
{
    if (!map_set(&memory->map, key, strlen(key), value, size))
        return error_errno("memory:%s: storing %zu bytes", memory->name, size);
    pthread_cond_broadcast(&memory->grown);
    return TUTTI_OK;
}

static enum tutti_status memory_set(void *context, const char *key, const void *value, size_t size)
{
    struct memory *memory = context;
    pthread_mutex_lock(&memory->lock);
    enum tutti_status status = put(memory, key, value, size);
    pthread_mutex_unlock(&memory->lock);
    return status;
}

static enum tutti_status memory_get(void *context, const char *key, int64_t timeout_ms, void *value,
                                    size_t capacity, size_t *size)
{
    struct memory *memory = context;
    pthread_mutex_lock(&memory->lock);
    enum tutti_status status = await(memory, "tutti_store_get", &key, 1, timeout_ms);
    if (status == TUTTI_OK)
        copy_out(map_find(&memory->map, key, strlen(key)), value, capacity, size);
    pthread_mutex_unlock(&memory->lock);
    return status;
}

static enum tutti_status memory_wait(void *context, const char *const *keys, size_t count,
                                     int64_t timeout_ms)
{
    struct memory *memory = context;
    pthread_mutex_lock(&memory->lock);
    enum tutti_status status = await(memory, "tutti_store_wait", keys, count, timeout_ms);
    pthread_mutex_unlock(&memory->lock);
    return status;
}

static enum tutti_status memory_add(void *context, const char *key, int64_t amount, int64_t *result)
{
    struct memory *memory = context;
    enum tutti_status status;
    int64_t sum;
    char text[MAP_NUMBER_BYTES];
    pthread_mutex_lock(&memory->lock);
    if (!map_number(map_find(&memory->map, key, strlen(key)), &sum) ||
        __builtin_add_overflow(sum, amount, &sum)) {
        status = error_set(TUTTI_ERR_INVALID,
                           "tutti_store_add(%s): the value is no 64-bit decimal number, or the sum "
                           "would not be",
                           key);
    } else {
        int length = snprintf(text, sizeof text, "%" PRId64, sum);
        status = put(memory, key, text, (size_t)length);
        *result = sum;
    }
    pthread_mutex_unlock(&memory->lock);
    return status;
}

static enum tutti_status memory_check(void *context, const char *const *keys, size_t count,
                                      bool *exists)
{
    struct memory *memory = context;
    pthread_mutex_lock(&memory->lock);
    *exists = !missing(memory, keys, count);
    pthread_mutex_unlock(&memory->lock);
    return TUTTI_OK;
}

static enum tutti_status memory_compare_set(void *context, const char *key, const void *expected,
                                            size_t expected_size, const void *desired,
                                            size_t desired_size, void *value, size_t capacity,
                                            size_t *size)
{
    struct memory *memory = context;
    enum tutti_status status = TUTTI_OK;
    pthread_mutex_lock(&memory->lock);
    struct map_entry *entry = map_find(&memory->map, key, strlen(key));
    if (map_entry_is(entry, expected, expected_size))
        status = put(memory, key, desired, desired_size);
    entry = map_find(&memory->map, key, strlen(key));
    if (entry) {
        copy_out(entry, value, capacity, size);
    } else {
        *size = expected_size;
        if (value && expected_size && capacity)
            memcpy(value, expected, expected_size < capacity ? expected_size : capacity);
    }
    pthread_mutex_unlock(&memory->lock);
    return status;
}

static enum tutti_status memory_delete(void *context, const char *key, bool *deleted)
{
    struct memory *memory = context;
    pthread_mutex_lock(&memory->lock);
    *deleted = map_erase(&memory->map, key, strlen(key));
    pthread_mutex_unlock(&memory->lock);
    return TUTTI_OK;
}

static enum tutti_status memory_num_keys(void *context, int64_t *count)
{
    struct memory *memory = context;
    pthread_mutex_lock(&memory->lock);
    *count = (int64_t)memory->map.count;
    pthread_mutex_unlock(&memory->lock);
    return TUTTI_OK;
}

static struct memory *memory_create(const char *name)
{
    struct memory *memory = calloc(1, sizeof *memory + strlen(name) + 1);
    if (!memory)
        return NULL;
    strcpy(memory->name, name);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&memory->lock, NULL);
    pthread_cond_init(&memory->grown, &attributes);
    pthread_condattr_destroy(&attributes);
    return memory;
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
    map_fini(&memory->map);
    pthread_cond_destroy(&memory->grown);
    pthread_mutex_destroy(&memory->lock);
    free(memory);
}

enum tutti_status memory_open(const struct store_url *url, int64_t timeout_ms,
                              tutti_store_t **store)
{
    static const struct store_ops ops = {
        .base =
            {
                .struct_size = sizeof ops.base,
                .set = memory_set,
                .get = memory_get,
                .wait = memory_wait,
                .add = memory_add,
                .check = memory_check,
                .compare_set = memory_compare_set,
                .delete_key = memory_delete,
                .num_keys = memory_num_keys,
                .close = memory_close,
            },
    };
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
    return store_create(&ops, memory, timeout_ms, NULL, store);
}
