/* SPDX-License-Identifier: MIT */
#include "store/map_store.h"

static struct map_entry *find(const struct map_store *base, const char *key)
{
    return map_find(&base->map, key, strlen(key));
}

/* The first key that is missing, NULL if all are there. */
static const char *missing(const struct map_store *base, const struct store_call *call)
{
    for (size_t i = 0; i < call->count; i++)
        if (!find(base, call->keys[i]))
            return call->keys[i];
    return NULL;
}

static enum tutti_status add(struct map_store *base, struct store_call *call)
{
    char text[MAP_NUMBER_BYTES];
    size_t bytes = map_sum(find(base, *call->keys), call->amount, &call->number, text);
    return bytes ? base->ops->put(base, *call->keys, &(struct store_bytes){text, bytes})
                 : store_no_number(*call->keys);
}

static enum tutti_status compare_set(struct map_store *base, struct store_call *call)
{
    enum tutti_status status = TUTTI_OK;
    if (map_entry_is(find(base, *call->keys), call->expected.data, call->expected.size))
        status = base->ops->put(base, *call->keys, &call->value);
    const struct map_entry *entry = find(base, *call->keys);
    store_call_put(call, 0,
                   entry ? (struct store_bytes){entry->value, entry->value_bytes} : call->expected);
    return status;
}

/* With the lock; the keys of WAIT and GET are there. */
static enum tutti_status serve_locked(struct map_store *base, struct store_call *call)
{
    switch (call->op) {
    case STORE_SET:
        return base->ops->put(base, *call->keys, &call->value);
    case STORE_GET:
        for (size_t i = 0; i < call->count; i++) {
            const struct map_entry *entry = find(base, call->keys[i]);
            store_call_put(call, i, (struct store_bytes){entry->value, entry->value_bytes});
        }
        break;
    case STORE_WAIT:
        break;
    case STORE_ADD:
        return add(base, call);
    case STORE_CHECK:
        call->number = !missing(base, call);
        break;
    case STORE_COMPARE_SET:
        return compare_set(base, call);
    case STORE_DELETE:
        call->number = find(base, *call->keys) != NULL;
        return call->number ? base->ops->put(base, *call->keys, NULL) : TUTTI_OK;
    case STORE_NUM_KEYS:
        call->number = (int64_t)base->map.count;
        break;
    }
    return TUTTI_OK;
}

enum tutti_status map_store_serve(void *context, struct store_call *call)
{
    struct map_store *base = context;
    const bool waits = call->op == STORE_WAIT || call->op == STORE_GET;
    const bool writes = !waits && call->op != STORE_CHECK && call->op != STORE_NUM_KEYS;
    for (;;) {
        enum tutti_status status = base->ops->lock(base, writes, call);
        if (status != TUTTI_OK)
            return status;
        const char *key = waits ? missing(base, call) : NULL;
        if (!key || deadline_passed(call->deadline)) {
            status = key ? store_timed_out(call, key) : serve_locked(base, call);
            base->ops->unlock(base);
            return status;
        }
        base->ops->await_change(base, call);
        status = store_call_check(call);
        if (status != TUTTI_OK)
            return status;
    }
}
