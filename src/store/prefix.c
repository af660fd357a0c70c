/* SPDX-License-Identifier: MIT */
/* A view of a store: every key gets "PREFIX/" before it. */
#include "store/store.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>

struct prefix {
    tutti_store_t *base;
    bool owns;    /* closes the base with the view */
    size_t bytes; /* of text, the "/" counted */
    char text[];
};

/* Rows and texts in one block, to be freed by the caller. NULL when there is no memory. */
static const char **join(const void *context, const char *const *keys, size_t count)
{
    const struct prefix *prefix = ((const tutti_store_t *)context)->context;
    size_t bytes = count * sizeof *keys;
    for (size_t i = 0; i < count; i++)
        bytes += prefix->bytes + strlen(keys[i]) + 1;
    const char **rows = malloc(bytes);
    if (!rows) {
        error_errno("a prefix store's keys");
        return NULL;
    }
    char *text = (char *)(rows + count);
    for (size_t i = 0; i < count; i++) {
        rows[i] = text;
        memcpy(text, prefix->text, prefix->bytes);
        text = stpcpy(text + prefix->bytes, keys[i]) + 1;
    }
    return rows;
}

/* What bounds the view that is called, which is an operation's context, bounds its base. */
static struct tutti_store base_of(const void *context)
{
    const tutti_store_t *view = context;
    const struct prefix *prefix = view->context;
    return store_bounded(prefix->base, view->deadline, view->interrupt);
}

static enum tutti_status prefix_set(void *context, const char *key, const void *value, size_t size)
{
    struct tutti_store base = base_of(context);
    const char **joined = join(context, &key, 1);
    if (!joined)
        return TUTTI_ERR_NO_MEMORY;
    enum tutti_status status = tutti_store_set(&base, *joined, value, size);
    free(joined);
    return status;
}

static enum tutti_status prefix_get(void *context, const char *key, int64_t timeout_ms, void *value,
                                    size_t capacity, size_t *size)
{
    struct tutti_store base = base_of(context);
    const char **joined = join(context, &key, 1);
    if (!joined)
        return TUTTI_ERR_NO_MEMORY;
    /* multi_get reports a longer value by its size, where the public get makes it an error. */
    enum tutti_status status = store_multi_get(&base, joined, 1, timeout_ms, value, capacity, size);
    free(joined);
    return status;
}

static enum tutti_status prefix_wait(void *context, const char *const *keys, size_t count,
                                     int64_t timeout_ms)
{
    struct tutti_store base = base_of(context);
    const char **joined = join(context, keys, count);
    if (!joined)
        return TUTTI_ERR_NO_MEMORY;
    enum tutti_status status = tutti_store_wait(&base, joined, count, timeout_ms);
    free(joined);
    return status;
}

static enum tutti_status prefix_add(void *context, const char *key, int64_t amount, int64_t *result)
{
    struct tutti_store base = base_of(context);
    const char **joined = join(context, &key, 1);
    if (!joined)
        return TUTTI_ERR_NO_MEMORY;
    enum tutti_status status = tutti_store_add(&base, *joined, amount, result);
    free(joined);
    return status;
}

static enum tutti_status prefix_check(void *context, const char *const *keys, size_t count,
                                      bool *exists)
{
    struct tutti_store base = base_of(context);
    const char **joined = join(context, keys, count);
    if (!joined)
        return TUTTI_ERR_NO_MEMORY;
    enum tutti_status status = tutti_store_check(&base, joined, count, exists);
    free(joined);
    return status;
}

static enum tutti_status prefix_compare_set(void *context, const char *key, const void *expected,
                                            size_t expected_size, const void *desired,
                                            size_t desired_size, void *value, size_t capacity,
                                            size_t *size)
{
    struct tutti_store base = base_of(context);
    const char **joined = join(context, &key, 1);
    if (!joined)
        return TUTTI_ERR_NO_MEMORY;
    enum tutti_status status = tutti_store_compare_set(
        &base, *joined, expected, expected_size, desired, desired_size, value, capacity, size);
    free(joined);
    return status;
}

static enum tutti_status prefix_delete(void *context, const char *key, bool *deleted)
{
    struct tutti_store base = base_of(context);
    const char **joined = join(context, &key, 1);
    if (!joined)
        return TUTTI_ERR_NO_MEMORY;
    enum tutti_status status = tutti_store_delete(&base, *joined, deleted);
    free(joined);
    return status;
}

static enum tutti_status prefix_num_keys(void *context, int64_t *count)
{
    struct tutti_store base = base_of(context);
    return tutti_store_num_keys(&base, count);
}

static enum tutti_status prefix_multi_get(void *context, const char *const *keys, size_t count,
                                          int64_t timeout_ms, void *values, size_t each,
                                          size_t *sizes)
{
    struct tutti_store base = base_of(context);
    const char **joined = join(context, keys, count);
    if (!joined)
        return TUTTI_ERR_NO_MEMORY;
    enum tutti_status status =
        store_multi_get(&base, joined, count, timeout_ms, values, each, sizes);
    free(joined);
    return status;
}

static void prefix_close(void *context)
{
    struct prefix *self = context;
    if (self->owns)
        tutti_store_close(self->base);
    free(self);
}

static enum tutti_status open_view(tutti_store_t *store, const char *prefix, bool owns,
                                   tutti_store_t **view)
{
    static const struct store_ops ops = {
        .base =
            {
                .struct_size = sizeof ops.base,
                .set = prefix_set,
                .get = prefix_get,
                .wait = prefix_wait,
                .add = prefix_add,
                .check = prefix_check,
                .compare_set = prefix_compare_set,
                .delete_key = prefix_delete,
                .num_keys = prefix_num_keys,
                .close = prefix_close,
            },
        .bounded = true,
        .multi_get = prefix_multi_get,
    };
    size_t bytes = strlen(prefix);
    if (bytes >= STORE_KEY_BYTES)
        return error_set(TUTTI_ERR_INVALID,
                         "tutti_store_prefix: a prefix of %zu bytes leaves no room for a key "
                         "(%zu bytes in all)",
                         bytes, STORE_KEY_BYTES);
    struct prefix *self = malloc(sizeof *self + bytes + 2);
    if (!self)
        return error_errno("tutti_store_prefix(%s)", prefix);
    self->base = store;
    self->owns = false;
    self->bytes = bytes + 1;
    memcpy(self->text, prefix, bytes);
    memcpy(self->text + bytes, "/", 2);
    enum tutti_status status = store_create(&ops, self, store->timeout_ms, NULL, view);
    if (status == TUTTI_OK)
        self->owns = owns;
    return status;
}

enum tutti_status tutti_store_prefix(tutti_store_t *store, const char *prefix, tutti_store_t **view)
{
    if (view)
        *view = NULL;
    if (!prefix || !view)
        return error_set(TUTTI_ERR_INVALID, "tutti_store_prefix: %s is NULL",
                         prefix ? "view" : "prefix");
    enum tutti_status status = store_check(store, "tutti_store_prefix");
    return status == TUTTI_OK ? open_view(store, prefix, false, view) : status;
}

enum tutti_status prefix_open(tutti_store_t *store, const char *prefix, tutti_store_t **view)
{
    return open_view(store, prefix, true, view);
}
