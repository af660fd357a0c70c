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

static enum tutti_status own_wait(const struct own *own, struct store_call *call,
                                  const char *const *keys)
{
    for (;;) {
        enum tutti_status status = own->ops.wait(own->context, keys, call->count,
                                                 deadline_timeout_ms(store_call_pause(call)));
        if (status != TUTTI_ERR_TIMEOUT || deadline_passed(call->deadline))
            return status;
        status = store_call_check(call);
        if (status != TUTTI_OK)
            return status;
    }
}

static enum tutti_status own_get(const struct own *own, struct store_call *call,
                                 const char *const *keys)
{
    enum tutti_status status = TUTTI_OK;
    if (!call->is_there && (call->count > 1 || call->interrupt)) { /* else get() waits, too */
        status = own_wait(own, call, keys);
        store_call_found(call);
    }
    for (size_t i = 0; i < call->count && status == TUTTI_OK; i++)
        status = own->ops.get(own->context, keys[i], deadline_timeout_ms(call->deadline),
                              call->each ? (char *)call->values + i * call->each : call->values,
                              call->each, &call->sizes[i]);
    return status;
}

static enum tutti_status own_run(const struct own *own, struct store_call *call,
                                 const char *const *keys)
{
    const struct tutti_store_ops *ops = &own->ops;
    const struct store_bytes value = call->value, expected = call->expected;
    enum tutti_status status = TUTTI_OK;
    bool yes = false;
    switch (call->op) {
    case STORE_SET:
        return ops->set(own->context, *keys, value.data, value.size);
    case STORE_WAIT:
        return own_wait(own, call, keys);
    case STORE_GET:
        return own_get(own, call, keys);
    case STORE_ADD:
        return ops->add(own->context, *keys, call->amount, &call->number);
    case STORE_CHECK:
        status = ops->check(own->context, keys, call->count, &yes);
        break;
    case STORE_COMPARE_SET:
        return ops->compare_set(own->context, *keys, expected.data, expected.size, value.data,
                                value.size, call->values, call->each, call->sizes);
    case STORE_DELETE:
        status = ops->delete_key(own->context, *keys, &yes);
        break;
    case STORE_NUM_KEYS:
        return ops->num_keys(own->context, &call->number);
    }
    call->number = yes;
    return status;
}

static enum tutti_status own_serve(void *context, struct store_call *call)
{
    const char **keys = malloc(call->count * sizeof *keys + 1);
    if (!keys)
        return error_errno("%s: %zu keys", call->name, call->count);
    for (size_t i = 0; i < call->count; i++)
        keys[i] = call->keys[i] + 1;
    enum tutti_status status = own_run(context, call, keys);
    free(keys);
    return status;
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
    static const struct store_kind kind = {own_serve, own_close};
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
