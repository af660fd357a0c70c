/* SPDX-License-Identifier: MIT */
/* The public calls on a store: they check what the caller gave, put the handle's prefix before the
 * keys, and call the kind. */
#include "store/store.h"

#include "base/deadline.h"
#include "base/env.h"
#include "base/error.h"
#include "ipc/fork.h"
#include "store/kind.h"

#include <stdlib.h>

#define DEFAULT_TIMEOUT_MS 600000

enum tutti_status store_default_timeout(int64_t *timeout_ms)
{
    int64_t number = 0;
    enum tutti_status status = TUTTI_OK;
    if (*timeout_ms == 0) {
        status = env_int64("TUTTI_TIMEOUT_MS", INT64_MIN, &number);
        *timeout_ms = number ? number : DEFAULT_TIMEOUT_MS;
    }
    return status;
}

enum tutti_status store_value_check(const char *key, size_t size, size_t bytes)
{
    if (size == bytes)
        return TUTTI_OK;
    return error_set(TUTTI_ERR_VERSION,
                     "key %s has %zu bytes instead of %zu: run one version of Tutti on all ranks",
                     key, size, bytes);
}

/* ---- handles --------------------------------------------------------------------------------- */

struct tutti_store store_bounded(const tutti_store_t *store, int64_t deadline,
                                 const struct interrupt *interrupt)
{
    struct tutti_store view = *store;
    view.deadline = deadline;
    view.interrupt = interrupt;
    return view;
}

enum tutti_status store_check(const tutti_store_t *store, const char *name)
{
    if (!store)
        return error_set(TUTTI_ERR_INVALID, "%s: store is NULL", name);
    if (fork_detected(store->epoch))
        return error_set(TUTTI_ERR_INVALID,
                         "%s: this store was opened before fork(): open it again in the child",
                         name);
    return TUTTI_OK;
}

enum tutti_status store_prefix_add(tutti_store_t *store, const char *prefix)
{
    const char *before = store->prefix ? store->prefix : "";
    const size_t bytes = strlen(before) + strlen(prefix);
    if (bytes >= STORE_KEY_BYTES)
        return error_set(TUTTI_ERR_INVALID,
                         "tutti_store_prefix: a prefix of %zu bytes leaves no room for a key "
                         "(%zu bytes in all)",
                         bytes, STORE_KEY_BYTES);
    char *joined = malloc(bytes + sizeof "/");
    if (!joined)
        return error_errno("tutti_store_prefix(%s)", prefix);
    stpcpy(stpcpy(stpcpy(joined, before), prefix), "/");
    store->prefix = joined;
    return TUTTI_OK;
}

enum tutti_status tutti_store_prefix(tutti_store_t *store, const char *prefix, tutti_store_t **view)
{
    if (view)
        *view = NULL;
    if (!prefix || !view)
        return error_set(TUTTI_ERR_INVALID, "tutti_store_prefix: %s is NULL",
                         prefix ? "view" : "prefix");
    enum tutti_status status = store_check(store, "tutti_store_prefix");
    if (status != TUTTI_OK)
        return status;
    tutti_store_t *self = malloc(sizeof *self);
    if (!self)
        return error_errno("tutti_store_prefix(%s)", prefix);
    *self = *store;
    self->is_view = true;
    self->url = NULL;
    status = store_prefix_add(self, prefix);
    if (status == TUTTI_OK)
        *view = self;
    else
        free(self);
    return status;
}

void tutti_store_close(tutti_store_t *store)
{
    if (!store)
        return;
    /* A forked child has no server thread to end and no place in the store to give up. */
    if (!store->is_view && !fork_detected(store->epoch))
        store->kind->close(store->context);
    free(store->prefix);
    free(store->url);
    free(store);
}

const char *tutti_store_url(const tutti_store_t *store)
{
    return store ? store->url : NULL;
}

/* ---- a call ---------------------------------------------------------------------------------- */

/* A call that has begun, and its keys as the kinds get them: free(keys). */
struct use {
    struct store_call call;
    const char **keys;
};

static struct store_call call_make(const tutti_store_t *store, const char *name, int64_t timeout_ms)
{
    if (timeout_ms == 0)
        timeout_ms = store->timeout_ms;
    int64_t left_ms = deadline_left_ms(store->deadline);
    if (left_ms >= 0 && left_ms < STORE_GRACE_MS)
        left_ms = STORE_GRACE_MS;
    if (left_ms >= 0 && (timeout_ms < 0 || timeout_ms > left_ms))
        timeout_ms = left_ms;
    return (struct store_call){
        .name = name,
        .timeout_ms = timeout_ms,
        .deadline = deadline_after(timeout_ms),
        .grace = deadline_after(STORE_GRACE_MS),
        .interrupt = store->interrupt,
    };
}

static enum tutti_status check_keys(const char *name, const char *const *keys, size_t count,
                                    size_t most)
{
    if (!keys && count > 0)
        return error_set(TUTTI_ERR_INVALID, "%s: keys is NULL", name);
    if (count > STORE_MAX_KEYS)
        return error_set(TUTTI_ERR_INVALID, "%s: %zu keys are more than %zu", name, count,
                         STORE_MAX_KEYS);
    for (size_t i = 0; i < count; i++) {
        if (!keys[i])
            return error_set(TUTTI_ERR_INVALID, "%s: key %zu is NULL", name, i);
        if (strnlen(keys[i], most + 1) > most)
            return error_set(TUTTI_ERR_INVALID, "%s: key %.40s... is longer than %zu bytes", name,
                             keys[i], most);
    }
    return TUTTI_OK;
}

/* Checks the store and the keys, and joins each key to the prefix. */
static enum tutti_status begin(struct use *use, const tutti_store_t *store, const char *name,
                               int64_t timeout_ms, const char *const *keys, size_t count)
{
    use->keys = NULL;
    enum tutti_status status = store_check(store, name);
    if (status != TUTTI_OK)
        return status;
    const char *prefix = store->prefix ? store->prefix : "";
    const size_t prefix_bytes = strlen(prefix);
    size_t bytes = 1;
    use->call = call_make(store, name, timeout_ms);
    status = check_keys(name, keys, count,
                        prefix_bytes < STORE_KEY_BYTES ? STORE_KEY_BYTES - prefix_bytes : 0);
    if (status != TUTTI_OK)
        return status;
    for (size_t i = 0; i < count; i++)
        bytes += sizeof *keys + prefix_bytes + strlen(keys[i]) + sizeof "/";
    use->keys = malloc(bytes);
    if (!use->keys)
        return error_errno("%s: %zu keys", name, count);
    char *text = (char *)(use->keys + count);
    for (size_t i = 0; i < count; i++) {
        use->keys[i] = text;
        text = stpcpy(stpcpy(stpcpy(text, "/"), prefix), keys[i]) + 1;
    }
    return TUTTI_OK;
}

static enum tutti_status check_value(const char *name, struct store_bytes value)
{
    if (!value.data && value.size > 0)
        return error_set(TUTTI_ERR_INVALID, "%s: %zu bytes at NULL", name, value.size);
    if (value.size > STORE_VALUE_BYTES)
        return error_set(TUTTI_ERR_INVALID,
                         "%s: a value of %zu bytes is longer than %zu: split it over keys", name,
                         value.size, STORE_VALUE_BYTES);
    return TUTTI_OK;
}

static enum tutti_status check_fits(const char *name, const char *key, size_t size, size_t capacity)
{
    if (size <= capacity)
        return TUTTI_OK;
    return error_set(TUTTI_ERR_INVALID,
                     "%s(%.200s): the value has %zu bytes, the buffer %zu: give a larger one", name,
                     key, size, capacity);
}

static enum tutti_status check_out(const char *name, const void *out)
{
    return out ? TUTTI_OK : error_set(TUTTI_ERR_INVALID, "%s: the result is NULL", name);
}

/* Waits for the keys. Where something may interrupt the wait, the wait is cut into slices. */
static enum tutti_status await_keys(const tutti_store_t *store, const struct use *use, size_t count)
{
    struct store_call slice = use->call;
    while (store->interrupt) {
        enum tutti_status status = interrupt_ask(store->interrupt);
        if (status != TUTTI_OK)
            return status;
        slice.deadline = deadline_min(use->call.deadline, deadline_after(INTERRUPT_MS));
        status = store->kind->get(store->context, &slice, use->keys, count, NULL);
        if (status != TUTTI_ERR_TIMEOUT || deadline_passed(use->call.deadline))
            return status;
        if (interrupt_ask_pointless(store->interrupt) == TUTTI_OK)
            continue;
        /* A rank that is gone may have written before it went. */
        slice.deadline = deadline_after(1);
        status = store->kind->get(store->context, &slice, use->keys, count, NULL);
        return status == TUTTI_ERR_TIMEOUT ? interrupt_ask_pointless(store->interrupt) : status;
    }
    return store->kind->get(store->context, &slice, use->keys, count, NULL);
}

/* Waits for the keys and reads them. */
static enum tutti_status read_keys(const tutti_store_t *store, struct use *use, int64_t timeout_ms,
                                   size_t count, const struct store_values *values)
{
    enum tutti_status status = store->interrupt ? await_keys(store, use, count) : TUTTI_OK;
    if (status != TUTTI_OK)
        return status;
    if (store->interrupt) /* the wait may have taken all the time */
        use->call = call_make(store, use->call.name, timeout_ms);
    return store->kind->get(store->context, &use->call, use->keys, count, values);
}

/* ---- the calls ------------------------------------------------------------------------------- */

enum tutti_status tutti_store_set(tutti_store_t *store, const char *key, const void *value,
                                  size_t size)
{
    struct use use;
    enum tutti_status status = begin(&use, store, "tutti_store_set", 0, &key, 1);
    if (status == TUTTI_OK)
        status = check_value(use.call.name, (struct store_bytes){value, size});
    if (status == TUTTI_OK)
        status = store->kind->set(store->context, &use.call, *use.keys,
                                  (struct store_bytes){value, size});
    free(use.keys);
    return status;
}

enum tutti_status tutti_store_get(tutti_store_t *store, const char *key, int64_t timeout_ms,
                                  void *value, size_t capacity, size_t *size)
{
    struct use use;
    size_t unused;
    if (!size)
        size = &unused;
    *size = 0;
    if (!value)
        capacity = 0;
    enum tutti_status status = begin(&use, store, "tutti_store_get", timeout_ms, &key, 1);
    if (status == TUTTI_OK)
        status =
            read_keys(store, &use, timeout_ms, 1, &(struct store_values){value, capacity, size});
    free(use.keys);
    return status == TUTTI_OK ? check_fits("tutti_store_get", key, *size, capacity) : status;
}

enum tutti_status store_multi_get(tutti_store_t *store, const char *const *keys, size_t count,
                                  int64_t timeout_ms, void *values, size_t each, size_t *sizes)
{
    struct use use;
    enum tutti_status status = begin(&use, store, "tutti_store_get", timeout_ms, keys, count);
    if (status == TUTTI_OK && count > 0)
        status =
            read_keys(store, &use, timeout_ms, count, &(struct store_values){values, each, sizes});
    free(use.keys);
    return status;
}

enum tutti_status tutti_store_wait(tutti_store_t *store, const char *const *keys, size_t count,
                                   int64_t timeout_ms)
{
    struct use use;
    enum tutti_status status = begin(&use, store, "tutti_store_wait", timeout_ms, keys, count);
    if (status == TUTTI_OK && count > 0)
        status = await_keys(store, &use, count);
    free(use.keys);
    return status;
}

enum tutti_status tutti_store_add(tutti_store_t *store, const char *key, int64_t amount,
                                  int64_t *result)
{
    struct use use;
    int64_t unused;
    enum tutti_status status = begin(&use, store, "tutti_store_add", 0, &key, 1);
    if (status == TUTTI_OK)
        status = store->kind->add(store->context, &use.call, *use.keys, amount,
                                  result ? result : &unused);
    free(use.keys);
    return status;
}

enum tutti_status tutti_store_check(tutti_store_t *store, const char *const *keys, size_t count,
                                    bool *exists)
{
    struct use use;
    enum tutti_status status = begin(&use, store, "tutti_store_check", 0, keys, count);
    if (status == TUTTI_OK)
        status = check_out(use.call.name, exists);
    if (status == TUTTI_OK)
        *exists = count == 0;
    if (status == TUTTI_OK && count > 0)
        status = store->kind->check(store->context, &use.call, use.keys, count, exists);
    free(use.keys);
    return status;
}

enum tutti_status tutti_store_compare_set(tutti_store_t *store, const char *key,
                                          const void *expected, size_t expected_size,
                                          const void *desired, size_t desired_size, void *value,
                                          size_t capacity, size_t *size)
{
    static const char name[] = "tutti_store_compare_set";
    const struct store_bytes before = {expected, expected_size}, after = {desired, desired_size};
    struct use use;
    size_t unused;
    if (!size)
        size = &unused;
    *size = 0;
    enum tutti_status status = begin(&use, store, name, 0, &key, 1);
    if (status == TUTTI_OK)
        status = check_value(name, before);
    if (status == TUTTI_OK)
        status = check_value(name, after);
    if (status == TUTTI_OK)
        status =
            store->kind->compare_set(store->context, &use.call, *use.keys, before, after,
                                     &(struct store_values){value, value ? capacity : 0, size});
    free(use.keys);
    return status == TUTTI_OK && value ? check_fits(name, key, *size, capacity) : status;
}

enum tutti_status tutti_store_delete(tutti_store_t *store, const char *key, bool *deleted)
{
    struct use use;
    bool unused;
    enum tutti_status status = begin(&use, store, "tutti_store_delete", 0, &key, 1);
    if (status == TUTTI_OK)
        status = store->kind->delete_key(store->context, &use.call, *use.keys,
                                         deleted ? deleted : &unused);
    free(use.keys);
    return status;
}

enum tutti_status tutti_store_num_keys(tutti_store_t *store, int64_t *count)
{
    struct use use;
    enum tutti_status status = begin(&use, store, "tutti_store_num_keys", 0, NULL, 0);
    if (status == TUTTI_OK)
        status = check_out(use.call.name, count);
    if (status == TUTTI_OK)
        status = store->kind->num_keys(store->context, &use.call, count);
    free(use.keys);
    return status;
}

/* ---- for set-ups ----------------------------------------------------------------------------- */

enum tutti_status store_answers(tutti_store_t *store, const char *key)
{
    bool exists;
    return tutti_store_check(store, &key, 1, &exists);
}

enum tutti_status store_look_up(tutti_store_t *store, const char *key, void *value, size_t bytes,
                                bool *there)
{
    size_t size = bytes;
    struct use use;
    enum tutti_status status = tutti_store_check(store, &key, 1, there);
    if (status != TUTTI_OK || !*there)
        return status;
    status = begin(&use, store, "tutti_store_get", 0, &key, 1);
    /* No public get, whose wait the interrupt would end before it begins. */
    if (status == TUTTI_OK)
        status = store->kind->get(store->context, &use.call, use.keys, 1,
                                  &(struct store_values){value, bytes, &size});
    free(use.keys);
    if (status == TUTTI_OK)
        return store_value_check(key, size, bytes);
    const enum tutti_status answer =
        status == TUTTI_ERR_TIMEOUT ? store_answers(store, key) : TUTTI_OK;
    return answer == TUTTI_OK ? status : answer;
}
