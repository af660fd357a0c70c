/* SPDX-License-Identifier: MIT */
#include "store/map_store.h"

static struct map_entry *find(const struct map_store *base, const char *key)
{
    return map_find(&base->map, key, strlen(key));
}

/* The first key that is missing, NULL if all are there. */
static const char *missing(const struct map_store *base, const char *const *keys, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!find(base, keys[i]))
            return keys[i];
    return NULL;
}

static struct store_bytes value_of(const struct map_entry *entry)
{
    return (struct store_bytes){entry->value, entry->value_bytes};
}

static enum tutti_status map_store_set(void *context, const struct store_call *call,
                                       const char *key, struct store_bytes value)
{
    struct map_store *base = context;
    enum tutti_status status = base->ops->lock(base, true, call);
    if (status != TUTTI_OK)
        return status;
    status = base->ops->put(base, key, &value);
    base->ops->unlock(base);
    return status;
}

static enum tutti_status map_store_get(void *context, const struct store_call *call,
                                       const char *const *keys, size_t count,
                                       const struct store_values *values)
{
    struct map_store *base = context;
    for (;;) {
        enum tutti_status status = base->ops->lock(base, false, call);
        if (status != TUTTI_OK)
            return status;
        const char *key = missing(base, keys, count);
        if (key && !deadline_passed(call->deadline)) {
            base->ops->await_change(base, call);
            status = store_call_check(call);
            if (status != TUTTI_OK)
                return status;
            continue;
        }
        for (size_t i = 0; i < count && values && !key; i++)
            store_values_put(values, i, value_of(find(base, keys[i])));
        base->ops->unlock(base);
        return key ? store_timed_out(call, key, count) : TUTTI_OK;
    }
}

enum tutti_status map_store_add(void *context, const struct store_call *call, const char *key,
                                int64_t amount, int64_t *result)
{
    struct map_store *base = context;
    char text[MAP_NUMBER_BYTES];
    enum tutti_status status = base->ops->lock(base, true, call);
    if (status != TUTTI_OK)
        return status;
    size_t bytes = map_sum(find(base, key), amount, result, text);
    status = bytes ? base->ops->put(base, key, &(struct store_bytes){text, bytes})
                   : store_no_number(key);
    base->ops->unlock(base);
    return status;
}

static enum tutti_status map_store_check(void *context, const struct store_call *call,
                                         const char *const *keys, size_t count, bool *exists)
{
    struct map_store *base = context;
    enum tutti_status status = base->ops->lock(base, false, call);
    if (status != TUTTI_OK)
        return status;
    *exists = !missing(base, keys, count);
    base->ops->unlock(base);
    return TUTTI_OK;
}

static enum tutti_status map_store_compare_set(void *context, const struct store_call *call,
                                               const char *key, struct store_bytes expected,
                                               struct store_bytes desired,
                                               const struct store_values *value)
{
    struct map_store *base = context;
    enum tutti_status status = base->ops->lock(base, true, call);
    if (status != TUTTI_OK)
        return status;
    if (map_entry_is(find(base, key), expected.data, expected.size))
        status = base->ops->put(base, key, &desired);
    const struct map_entry *entry = find(base, key);
    store_values_put(value, 0, entry ? value_of(entry) : expected);
    base->ops->unlock(base);
    return status;
}

static enum tutti_status map_store_delete(void *context, const struct store_call *call,
                                          const char *key, bool *deleted)
{
    struct map_store *base = context;
    enum tutti_status status = base->ops->lock(base, true, call);
    if (status != TUTTI_OK)
        return status;
    *deleted = find(base, key) != NULL;
    if (*deleted)
        status = base->ops->put(base, key, NULL);
    base->ops->unlock(base);
    return status;
}

static enum tutti_status map_store_num_keys(void *context, const struct store_call *call,
                                            int64_t *count)
{
    struct map_store *base = context;
    enum tutti_status status = base->ops->lock(base, false, call);
    if (status != TUTTI_OK)
        return status;
    *count = (int64_t)base->map.count;
    base->ops->unlock(base);
    return TUTTI_OK;
}

static void map_store_close(void *context)
{
    struct map_store *base = context;
    base->ops->close(base);
}

const struct store_kind map_store_kind = {
    .set = map_store_set,
    .get = map_store_get,
    .add = map_store_add,
    .check = map_store_check,
    .compare_set = map_store_compare_set,
    .delete_key = map_store_delete,
    .num_keys = map_store_num_keys,
    .close = map_store_close,
};
