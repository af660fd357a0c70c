/* SPDX-License-Identifier: MIT */
/*
 * A store between the library and the real one: it is slow, or reports another version of the
 * library.
 */
#include "matrix_store.h"

#include "bootstrap/host.h"
#include "bootstrap/meet_internal.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

struct between {
    tutti_store_t *store;
    const struct store_manner *manner;
};

static tutti_store_t *pass(void *context)
{
    const struct between *between = context;
    const int ms = between->manner->delay_ms;
    if (ms)
        nanosleep(&(struct timespec){.tv_nsec = ms * 1000000L}, NULL);
    return between->store;
}

/* The records in a value of the meeting: in a rank's answer one, in the result all. */
static struct host_record *find_records(const char *key, void *value, size_t size, size_t *count)
{
    const size_t head = strstr(key, "/go/") ? sizeof(struct meet_result) : sizeof(struct meet_join);
    *count = size > head && (size - head) % sizeof(struct host_record) == 0
                 ? (size - head) / sizeof(struct host_record)
                 : 0;
    return (struct host_record *)(void *)((char *)value + head);
}

/* In what this rank sets, its own record comes first. */
static enum tutti_status between_set(void *context, const char *key, const void *value, size_t size)
{
    const struct between *between = context;
    size_t count;
    void *copy = malloc(size + 1);
    if (!copy)
        abort();
    if (size)
        memcpy(copy, value, size);
    struct host_record *records = find_records(key, copy, size, &count);
    if (count)
        records[0].identity.version += (uint32_t)between->manner->version_ahead;
    enum tutti_status status = tutti_store_set(pass(context), key, copy, size);
    free(copy);
    return status;
}

static enum tutti_status between_get(void *context, const char *key, int64_t timeout_ms,
                                     void *value, size_t capacity, size_t *size)
{
    const struct between *between = context;
    size_t count;
    enum tutti_status status =
        tutti_store_get(pass(context), key, timeout_ms, value, capacity, size);
    if (status != TUTTI_OK || *size > capacity)
        return status;
    /* To this rank it is the others that are behind. */
    struct host_record *records = find_records(key, value, *size, &count);
    for (size_t i = 0; i < count; i++)
        records[i].identity.version -= (uint32_t)between->manner->version_ahead;
    return status;
}

static enum tutti_status between_wait(void *context, const char *const *keys, size_t count,
                                      int64_t timeout_ms)
{
    return tutti_store_wait(pass(context), keys, count, timeout_ms);
}

static enum tutti_status between_add(void *context, const char *key, int64_t amount,
                                     int64_t *result)
{
    return tutti_store_add(pass(context), key, amount, result);
}

static enum tutti_status between_check(void *context, const char *const *keys, size_t count,
                                       bool *exists)
{
    return tutti_store_check(pass(context), keys, count, exists);
}

static enum tutti_status between_compare_set(void *context, const char *key, const void *expected,
                                             size_t expected_size, const void *desired,
                                             size_t desired_size, void *value, size_t capacity,
                                             size_t *size)
{
    return tutti_store_compare_set(pass(context), key, expected, expected_size, desired,
                                   desired_size, value, capacity, size);
}

static enum tutti_status between_delete(void *context, const char *key, bool *deleted)
{
    return tutti_store_delete(pass(context), key, deleted);
}

static enum tutti_status between_num_keys(void *context, int64_t *count)
{
    return tutti_store_num_keys(pass(context), count);
}

tutti_store_t *store_between(tutti_store_t *store, const struct store_manner *manner)
{
    static const struct tutti_store_ops ops = {
        .struct_size = sizeof ops,
        .set = between_set,
        .get = between_get,
        .wait = between_wait,
        .add = between_add,
        .check = between_check,
        .compare_set = between_compare_set,
        .delete_key = between_delete,
        .num_keys = between_num_keys,
        .close = free,
    };
    struct between *between = malloc(sizeof *between);
    tutti_store_t *made = NULL;
    if (!between)
        return NULL;
    *between = (struct between){store, manner};
    if (tutti_store_from_ops(&ops, between, &made) != TUTTI_OK)
        free(between);
    return made;
}
