/* SPDX-License-Identifier: MIT */
/* How a store is opened: by a URL, or on a caller's own functions. */
#include "base/error.h"
#include "base/options.h"
#include "store/kind.h"

#include <stdlib.h>

enum tutti_status tutti_store_open(const char *url, int64_t timeout_ms, tutti_store_t **store)
{
    static enum tutti_status (*const openers[])(const struct store_url *, int64_t,
                                                tutti_store_t **) = {
        [STORE_MEMORY] = memory_open,
        [STORE_FILE] = file_open,
        [STORE_TCP] = tcp_open,
        [STORE_ENV] = env_open,
    };
    if (store)
        *store = NULL;
    if (!url || !store)
        return error_set(TUTTI_ERR_INVALID, "tutti_store_open: %s is NULL", url ? "store" : "url");
    struct store_url *parsed = malloc(sizeof *parsed);
    if (!parsed)
        return error_errno("tutti_store_open(%s)", url);
    enum tutti_status status = store_url_parse(url, parsed);
    if (status == TUTTI_OK)
        status = store_default_timeout(&timeout_ms);
    if (status == TUTTI_OK)
        status = openers[parsed->kind](parsed, timeout_ms, store);
    free(parsed);
    return status == TUTTI_OK ? status : error_context(status, "tutti_store_open(%s)", url);
}

/* ---- a caller's own functions ---------------------------------------------------------------- */

/* They get keys without the "/", and no deadline but that of a wait. */
struct own {
    struct tutti_store_ops ops;
    void *context;
};

static enum tutti_status own_set(void *context, const struct store_call *call, const char *key,
                                 struct store_bytes value)
{
    const struct own *own = context;
    (void)call;
    return own->ops.set(own->context, key + 1, value.data, value.size);
}

/* The keys without the "/": free() them. NULL when there is no memory. */
static const char **plain_keys(const struct store_call *call, const char *const *keys, size_t count)
{
    const char **plain = malloc(count * sizeof *plain);
    if (!plain)
        error_errno("%s: %zu keys", call->name, count);
    for (size_t i = 0; i < count && plain; i++)
        plain[i] = keys[i] + 1;
    return plain;
}

static enum tutti_status own_get(void *context, const struct store_call *call,
                                 const char *const *keys, size_t count,
                                 const struct store_values *values)
{
    const struct own *own = context;
    const int64_t timeout_ms = deadline_timeout_ms(call->deadline);
    const char **plain = plain_keys(call, keys, count);
    if (!plain)
        return TUTTI_ERR_NO_MEMORY;
    enum tutti_status status = TUTTI_OK;
    if (count > 1 || !values) /* the get of one key is a wait, too */
        status = own->ops.wait(own->context, plain, count, timeout_ms);
    for (size_t i = 0; i < count && values && status == TUTTI_OK; i++)
        status = own->ops.get(own->context, plain[i], timeout_ms,
                              values->each ? (char *)values->data + i * values->each : values->data,
                              values->each, &values->sizes[i]);
    free(plain);
    return status;
}

static enum tutti_status own_add(void *context, const struct store_call *call, const char *key,
                                 int64_t amount, int64_t *result)
{
    const struct own *own = context;
    (void)call;
    return own->ops.add(own->context, key + 1, amount, result);
}

static enum tutti_status own_check(void *context, const struct store_call *call,
                                   const char *const *keys, size_t count, bool *exists)
{
    const struct own *own = context;
    const char **plain = plain_keys(call, keys, count);
    if (!plain)
        return TUTTI_ERR_NO_MEMORY;
    enum tutti_status status = own->ops.check(own->context, plain, count, exists);
    free(plain);
    return status;
}

static enum tutti_status own_compare_set(void *context, const struct store_call *call,
                                         const char *key, struct store_bytes expected,
                                         struct store_bytes desired,
                                         const struct store_values *value)
{
    const struct own *own = context;
    (void)call;
    return own->ops.compare_set(own->context, key + 1, expected.data, expected.size, desired.data,
                                desired.size, value->data, value->each, value->sizes);
}

static enum tutti_status own_delete(void *context, const struct store_call *call, const char *key,
                                    bool *deleted)
{
    const struct own *own = context;
    (void)call;
    return own->ops.delete_key(own->context, key + 1, deleted);
}

static enum tutti_status own_num_keys(void *context, const struct store_call *call, int64_t *count)
{
    const struct own *own = context;
    (void)call;
    return own->ops.num_keys(own->context, count);
}

static void own_close(void *context)
{
    struct own *own = context;
    if (own->ops.close)
        own->ops.close(own->context);
    free(own);
}

static enum tutti_status check_ops(const struct tutti_store_ops *ops)
{
    if (ops->set && ops->get && ops->wait && ops->add && ops->check && ops->compare_set &&
        ops->delete_key && ops->num_keys)
        return TUTTI_OK;
    return error_set(TUTTI_ERR_INVALID,
                     "tutti_store_from_ops: an operation is NULL; all but close are required");
}

enum tutti_status tutti_store_from_ops(const struct tutti_store_ops *ops, void *context,
                                       tutti_store_t **store)
{
    static const struct store_kind kind = {
        .set = own_set,
        .get = own_get,
        .add = own_add,
        .check = own_check,
        .compare_set = own_compare_set,
        .delete_key = own_delete,
        .num_keys = own_num_keys,
        .close = own_close,
    };
    struct tutti_store_ops table = {0};
    int64_t timeout_ms = 0;
    if (store)
        *store = NULL;
    if (!ops || !store)
        return error_set(TUTTI_ERR_INVALID, "tutti_store_from_ops: %s is NULL",
                         ops ? "store" : "ops");
    enum tutti_status status =
        options_copy("tutti_store_from_ops", "tutti_store_ops", ops, &table, sizeof table);
    if (status == TUTTI_OK)
        status = check_ops(&table);
    if (status == TUTTI_OK)
        status = store_default_timeout(&timeout_ms);
    if (status != TUTTI_OK)
        return status;
    struct own *own = malloc(sizeof *own);
    if (!own)
        return error_errno("tutti_store_from_ops");
    *own = (struct own){.ops = table, .context = context};
    own->ops.close = NULL; /* after a failure the context stays the caller's */
    status = store_create(&kind, own, timeout_ms, NULL, store);
    if (status == TUTTI_OK)
        own->ops.close = table.close;
    return status;
}
