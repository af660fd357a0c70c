/* SPDX-License-Identifier: MIT */
/* The public calls on a store: they check what the caller gave, put the handle's prefix before the
 * keys, and call the kind. */
#include "store/store.h"

#include "base/env.h"
#include "base/error.h"
#include "ipc/fork.h"
#include "store/kind.h"

#include <stdlib.h>

#define DEFAULT_TIMEOUT_MS 600000

enum { LAST_LOOK_MS = 10 };

enum tutti_status store_default_timeout(int64_t *timeout_ms)
{
    int64_t number = 0;
    enum tutti_status status = TUTTI_OK;
    if (*timeout_ms == 0) {
        status = env_int64("TUTTI_TIMEOUT_MS", &number);
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

enum tutti_status store_create(const struct store_kind *kind, void *context, int64_t timeout_ms,
                               char *url, tutti_store_t **store)
{
    uint32_t epoch;
    enum tutti_status status = fork_epoch(&epoch);
    tutti_store_t *handle = status == TUTTI_OK ? malloc(sizeof *handle) : NULL;
    if (status == TUTTI_OK && !handle)
        status = error_errno("opening a store");
    if (!handle) {
        kind->close(context);
        free(url);
        return status;
    }
    *handle = (struct tutti_store){.kind = kind,
                                   .context = context,
                                   .timeout_ms = timeout_ms,
                                   .epoch = epoch,
                                   .url = url,
                                   .deadline = DEADLINE_NEVER};
    *store = handle;
    return TUTTI_OK;
}

struct tutti_store store_bounded(const tutti_store_t *store, int64_t deadline,
                                 const struct interrupt *interrupt)
{
    struct tutti_store view = *store;
    view.is_bounded = true;
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
    /* A forked child has no server thread to end and no membership of the store to give up. */
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

static bool waits(const struct store_call *call)
{
    return call->op == STORE_WAIT || (call->op == STORE_GET && !call->is_there);
}

int64_t store_call_pause(const struct store_call *call)
{
    return call->interrupt ? deadline_min(call->deadline, call->ask_at) : call->deadline;
}

enum tutti_status store_call_check(struct store_call *call)
{
    if (!call->interrupt || !deadline_passed(call->ask_at))
        return TUTTI_OK;
    call->ask_at = deadline_after(INTERRUPT_MS);
    enum tutti_status status = interrupt_ask(call->interrupt);
    if (status == TUTTI_OK && waits(call) && interrupt_ask_pointless(call->interrupt) != TUTTI_OK) {
        /* A rank that is gone may have written before it went. */
        call->is_pointless = true;
        call->interrupt = NULL;
        call->deadline = deadline_after(LAST_LOOK_MS);
    }
    return status;
}

void store_call_found(struct store_call *call)
{
    const int64_t grace = deadline_after(STORE_GRACE_MS);
    call->is_there = true;
    call->ask_at = grace;
    call->deadline = call->deadline > grace ? call->deadline : grace;
}

enum tutti_status store_timed_out(const struct store_call *call, const char *key)
{
    return error_set(TUTTI_ERR_TIMEOUT,
                     "%s: key \"%.200s\" (of %zu) does not exist after %lld ms: the rank that sets "
                     "it is late, has ended or uses another store",
                     call->name, key + 1, call->count, (long long)call->timeout_ms);
}

enum tutti_status store_no_number(const char *key)
{
    return error_set(TUTTI_ERR_INVALID,
                     "tutti_store_add(%s): the value is no 64-bit decimal number, or the sum "
                     "would not be",
                     key + (*key == '/'));
}

static void set_times(struct store_call *call, const tutti_store_t *store, int64_t timeout_ms)
{
    if (timeout_ms == 0)
        timeout_ms = store->timeout_ms;
    int64_t left_ms = deadline_left_ms(store->deadline);
    if (left_ms >= 0 && left_ms < STORE_GRACE_MS)
        left_ms = STORE_GRACE_MS;
    if (left_ms >= 0 && (timeout_ms < 0 || timeout_ms > left_ms))
        timeout_ms = left_ms;
    call->timeout_ms = timeout_ms;
    call->deadline = deadline_after(timeout_ms);
    call->ask_at = deadline_after(waits(call) ? INTERRUPT_MS : STORE_GRACE_MS);
    call->interrupt = store->interrupt;
    call->is_bounded = store->is_bounded;
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

/* Joins the handle's prefix to each key. Returns one block, NULL when there is no memory. */
static const char **full_keys(const char *prefix, const char *const *keys, size_t count)
{
    size_t bytes = 1;
    for (size_t i = 0; i < count; i++)
        bytes += sizeof *keys + strlen(prefix) + strlen(keys[i]) + sizeof "/";
    const char **full = malloc(bytes);
    if (!full)
        return NULL;
    char *text = (char *)(full + count);
    for (size_t i = 0; i < count; i++) {
        full[i] = text;
        text = stpcpy(stpcpy(stpcpy(text, "/"), prefix), keys[i]) + 1;
    }
    return full;
}

static enum tutti_status run_checked(const tutti_store_t *store, struct store_call *call)
{
    enum tutti_status status = waits(call) ? interrupt_ask(store->interrupt) : TUTTI_OK;
    if (status == TUTTI_OK)
        status = call->will == STORE_WILL_NONE ? store->kind->serve(store->context, call)
                                               : store->kind->will(store->context, call);
    return status == TUTTI_ERR_TIMEOUT && call->is_pointless
               ? interrupt_ask_pointless(store->interrupt)
               : status;
}

/* Checks the store and the caller's arguments, and runs the call. */
static enum tutti_status run(const tutti_store_t *store, struct store_call *call, const char *name,
                             const char *const *keys, size_t count, int64_t timeout_ms)
{
    enum tutti_status status = store_check(store, name);
    if (status != TUTTI_OK)
        return status;
    const char *prefix = store->prefix ? store->prefix : "";
    const size_t bytes = strlen(prefix);
    status = check_keys(name, keys, count, bytes < STORE_KEY_BYTES ? STORE_KEY_BYTES - bytes : 0);
    if (status == TUTTI_OK)
        status = check_value(name, call->expected);
    if (status == TUTTI_OK)
        status = check_value(name, call->value);
    const char **full = status == TUTTI_OK ? full_keys(prefix, keys, count) : NULL;
    if (status == TUTTI_OK && !full)
        status = error_errno("%s: %zu keys", name, count);
    call->name = name;
    call->keys = full;
    call->count = count;
    call->number = count == 0; /* CHECK of no keys */
    set_times(call, store, timeout_ms);
    if (status == TUTTI_OK && (count > 0 || call->op == STORE_NUM_KEYS))
        status = run_checked(store, call);
    free(full);
    return status;
}

/* ---- the calls ------------------------------------------------------------------------------- */

enum tutti_status tutti_store_set(tutti_store_t *store, const char *key, const void *value,
                                  size_t size)
{
    struct store_call call = {.op = STORE_SET, .value = {value, size}};
    return run(store, &call, "tutti_store_set", &key, 1, 0);
}

/* Runs a call that reads one value. */
static enum tutti_status read_value(tutti_store_t *store, struct store_call *call, const char *name,
                                    const char *key, int64_t timeout_ms, void *value,
                                    size_t capacity, size_t *size)
{
    size_t unused;
    call->values = value;
    call->each = value ? capacity : 0;
    call->sizes = size ? size : &unused;
    *call->sizes = 0;
    enum tutti_status status = run(store, call, name, &key, 1, timeout_ms);
    if (status != TUTTI_OK || *call->sizes <= call->each || (!value && call->op != STORE_GET))
        return status;
    return error_set(TUTTI_ERR_INVALID,
                     "%s(%.200s): the value has %zu bytes, the buffer %zu: give a larger one", name,
                     key, *call->sizes, call->each);
}

enum tutti_status tutti_store_get(tutti_store_t *store, const char *key, int64_t timeout_ms,
                                  void *value, size_t capacity, size_t *size)
{
    struct store_call call = {.op = STORE_GET};
    return read_value(store, &call, "tutti_store_get", key, timeout_ms, value, capacity, size);
}

enum tutti_status tutti_store_compare_set(tutti_store_t *store, const char *key,
                                          const void *expected, size_t expected_size,
                                          const void *desired, size_t desired_size, void *value,
                                          size_t capacity, size_t *size)
{
    struct store_call call = {.op = STORE_COMPARE_SET,
                              .expected = {expected, expected_size},
                              .value = {desired, desired_size}};
    return read_value(store, &call, "tutti_store_compare_set", key, 0, value, capacity, size);
}

enum tutti_status store_multi_get(tutti_store_t *store, const char *const *keys, size_t count,
                                  int64_t timeout_ms, void *values, size_t each, size_t *sizes)
{
    struct store_call call = {.op = STORE_GET, .values = values, .each = each, .sizes = sizes};
    return run(store, &call, "tutti_store_get", keys, count, timeout_ms);
}

enum tutti_status tutti_store_wait(tutti_store_t *store, const char *const *keys, size_t count,
                                   int64_t timeout_ms)
{
    struct store_call call = {.op = STORE_WAIT};
    return run(store, &call, "tutti_store_wait", keys, count, timeout_ms);
}

enum tutti_status tutti_store_add(tutti_store_t *store, const char *key, int64_t amount,
                                  int64_t *result)
{
    struct store_call call = {.op = STORE_ADD, .amount = amount};
    enum tutti_status status = run(store, &call, "tutti_store_add", &key, 1, 0);
    if (status == TUTTI_OK && result)
        *result = call.number;
    return status;
}

enum tutti_status tutti_store_check(tutti_store_t *store, const char *const *keys, size_t count,
                                    bool *exists)
{
    struct store_call call = {.op = STORE_CHECK};
    if (!exists)
        return error_set(TUTTI_ERR_INVALID, "tutti_store_check: exists is NULL");
    enum tutti_status status = run(store, &call, "tutti_store_check", keys, count, 0);
    if (status == TUTTI_OK)
        *exists = call.number;
    return status;
}

enum tutti_status tutti_store_delete(tutti_store_t *store, const char *key, bool *deleted)
{
    struct store_call call = {.op = STORE_DELETE};
    enum tutti_status status = run(store, &call, "tutti_store_delete", &key, 1, 0);
    if (status == TUTTI_OK && deleted)
        *deleted = call.number;
    return status;
}

enum tutti_status tutti_store_num_keys(tutti_store_t *store, int64_t *count)
{
    struct store_call call = {.op = STORE_NUM_KEYS};
    if (!count)
        return error_set(TUTTI_ERR_INVALID, "tutti_store_num_keys: count is NULL");
    enum tutti_status status = run(store, &call, "tutti_store_num_keys", NULL, 0, 0);
    if (status == TUTTI_OK)
        *count = call.number;
    return status;
}

/* ---- for set-ups ----------------------------------------------------------------------------- */

enum tutti_status store_has(tutti_store_t *store, const char *key, bool *there)
{
    return tutti_store_check(store, &key, 1, there);
}

enum tutti_status store_look_up(tutti_store_t *store, const char *key, void *value, size_t bytes,
                                bool *there)
{
    static const char absent[] = "-"; /* compare_set() tells it if the key is absent */
    size_t size = 0;
    struct store_call call = {.op = STORE_COMPARE_SET,
                              .expected = {absent, 1},
                              .value = {absent, 1},
                              .values = value,
                              .each = bytes,
                              .sizes = &size};
    const enum tutti_status status = run(store, &call, "tutti_store_compare_set", &key, 1, 0);
    *there = status == TUTTI_OK && size != 1;
    return *there ? store_value_check(key, size, bytes) : status;
}

/* ---- wills ----------------------------------------------------------------------------------- */

enum tutti_status store_will(tutti_store_t *store, const char *key, const void *value, size_t size)
{
    struct store_call call = {.op = STORE_SET, .will = STORE_WILL_MAKE, .value = {value, size}};
    if (!store->kind->will)
        return error_set(TUTTI_ERR_DECLINED, "the store does not notice the end of a process");
    return run(store, &call, "a will", &key, 1, 0);
}

void store_wills_end(tutti_store_t *store, const char *beginning)
{
    struct store_call call = {.op = STORE_SET, .will = STORE_WILL_END};
    if (store->kind->will)
        (void)run(store, &call, "a will", &beginning, 1, 0);
}

bool store_server_has_died(const tutti_store_t *store)
{
    return store->kind->server_has_died && store->kind->server_has_died(store->context);
}
