/* SPDX-License-Identifier: MIT */
/* The public calls: they check what the caller gave and hand on to the store's kind. */
#include "store/store.h"

#include "base/deadline.h"
#include "base/env.h"
#include "base/error.h"
#include "base/options.h"
#include "ipc/fork.h"
#include "store/nap.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

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

enum tutti_status store_timed_out(const char *call, const char *key, size_t count,
                                  int64_t timeout_ms)
{
    return error_set(TUTTI_ERR_TIMEOUT,
                     "%s: key \"%.200s\" (of %zu) does not exist after %lld ms: the rank that sets "
                     "it is late, has ended or uses another store",
                     call, key, count, (long long)timeout_ms);
}

enum tutti_status store_create(const struct store_ops *ops, void *context, int64_t timeout_ms,
                               char *url, tutti_store_t **store)
{
    uint32_t epoch;
    enum tutti_status status = fork_epoch(&epoch);
    tutti_store_t *handle = status == TUTTI_OK ? malloc(sizeof *handle) : NULL;
    if (status == TUTTI_OK && !handle)
        status = error_errno("opening a store");
    if (!handle) {
        if (ops->base.close)
            ops->base.close(context);
        free(url);
        return status;
    }
    *handle = (struct tutti_store){.ops = *ops,
                                   .context = context,
                                   .timeout_ms = timeout_ms,
                                   .epoch = epoch,
                                   .url = url,
                                   .deadline = DEADLINE_NEVER};
    *store = handle;
    return TUTTI_OK;
}

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

enum tutti_status tutti_store_from_ops(const struct tutti_store_ops *ops, void *context,
                                       tutti_store_t **store)
{
    if (store)
        *store = NULL;
    if (!ops || !store)
        return error_set(TUTTI_ERR_INVALID, "tutti_store_from_ops: %s is NULL",
                         ops ? "store" : "ops");
    struct store_ops table = {.base = {0}};
    enum tutti_status status = options_copy("tutti_store_from_ops", "tutti_store_ops", ops,
                                            &table.base, sizeof table.base);
    if (status != TUTTI_OK)
        return status;
    ops = &table.base;
    if (!ops->set || !ops->get || !ops->wait || !ops->add || !ops->check || !ops->compare_set ||
        !ops->delete_key || !ops->num_keys)
        return error_set(TUTTI_ERR_INVALID,
                         "tutti_store_from_ops: an operation is NULL; all but close are required");
    int64_t timeout_ms = 0;
    status = store_default_timeout(&timeout_ms);
    if (status != TUTTI_OK)
        return status;
    /* On failure the context stays the caller's: its close must not run. */
    void (*close)(void *) = table.base.close;
    table.base.close = NULL;
    status = store_create(&table, context, timeout_ms, NULL, store);
    if (status == TUTTI_OK)
        (*store)->ops.base.close = close;
    return status;
}

void tutti_store_close(tutti_store_t *store)
{
    if (!store)
        return;
    /* A forked child has no server thread to end and no place in the store to give up. */
    if (store->ops.base.close && !fork_detected(store->epoch))
        store->ops.base.close(store->context);
    free(store->url);
    free(store);
}

const char *tutti_store_url(const tutti_store_t *store)
{
    return store ? store->url : NULL;
}

enum tutti_status store_check(const tutti_store_t *store, const char *call)
{
    if (!store)
        return error_set(TUTTI_ERR_INVALID, "%s: store is NULL", call);
    if (fork_detected(store->epoch))
        return error_set(TUTTI_ERR_INVALID,
                         "%s: this store was opened before fork(): open it again in the child",
                         call);
    return TUTTI_OK;
}

static enum tutti_status check_keys(const tutti_store_t *store, const char *call,
                                    const char *const *keys, size_t count)
{
    enum tutti_status status = store_check(store, call);
    if (status != TUTTI_OK)
        return status;
    if (!keys && count > 0)
        return error_set(TUTTI_ERR_INVALID, "%s: keys is NULL", call);
    if (count > STORE_MAX_KEYS)
        return error_set(TUTTI_ERR_INVALID, "%s: %zu keys are more than %zu", call, count,
                         STORE_MAX_KEYS);
    for (size_t i = 0; i < count; i++) {
        if (!keys[i])
            return error_set(TUTTI_ERR_INVALID, "%s: key %zu is NULL", call, i);
        if (strnlen(keys[i], STORE_KEY_BYTES + 1) > STORE_KEY_BYTES)
            return error_set(TUTTI_ERR_INVALID, "%s: key %.40s... is longer than %zu bytes", call,
                             keys[i], STORE_KEY_BYTES);
    }
    return TUTTI_OK;
}

static enum tutti_status check_value(const char *call, const void *value, size_t size)
{
    if (!value && size > 0)
        return error_set(TUTTI_ERR_INVALID, "%s: %zu bytes at NULL", call, size);
    if (size > STORE_VALUE_BYTES)
        return error_set(TUTTI_ERR_INVALID,
                         "%s: a value of %zu bytes is longer than %zu: split it over keys", call,
                         size, STORE_VALUE_BYTES);
    return TUTTI_OK;
}

static enum tutti_status check_fits(const char *call, const char *key, size_t size, size_t capacity)
{
    if (size <= capacity)
        return TUTTI_OK;
    return error_set(TUTTI_ERR_INVALID,
                     "%s(%.200s): the value has %zu bytes, the buffer %zu: give a larger one", call,
                     key, size, capacity);
}

static enum tutti_status check_out(const char *call, const void *out)
{
    return out ? TUTTI_OK : error_set(TUTTI_ERR_INVALID, "%s: the result is NULL", call);
}

/* ---- bounds ----------------------------------------------------------------------------------
 */

struct tutti_store store_bounded(const tutti_store_t *store, int64_t deadline,
                                 const struct interrupt *interrupt)
{
    struct tutti_store view = *store;
    view.deadline = deadline;
    view.interrupt = interrupt;
    return view;
}

/* Of an operation that begins now. */
static int64_t resolve(const tutti_store_t *store, int64_t timeout_ms)
{
    if (timeout_ms == 0)
        timeout_ms = store->timeout_ms;
    int64_t left_ms = deadline_left_ms(store->deadline);
    if (left_ms < 0)
        return timeout_ms;
    if (left_ms < STORE_GRACE_MS)
        left_ms = STORE_GRACE_MS;
    return timeout_ms < 0 || timeout_ms > left_ms ? left_ms : timeout_ms;
}

struct store_limit store_limit(const tutti_store_t *store, int64_t timeout_ms)
{
    return (struct store_limit){
        .deadline = deadline_after(resolve(store, timeout_ms)),
        .grace = deadline_after(STORE_GRACE_MS),
        .interrupt = store->interrupt,
    };
}

int64_t store_limit_pause(const struct store_limit *limit)
{
    if (!limit->interrupt)
        return limit->deadline;
    int64_t soon = deadline_after(INTERRUPT_MS);
    return deadline_min(limit->deadline, soon > limit->grace ? soon : limit->grace);
}

enum tutti_status store_limit_ask(const struct store_limit *limit)
{
    return deadline_passed(limit->grace) ? interrupt_ask(limit->interrupt) : TUTTI_OK;
}

/* What an operation gets as its context: see struct store_ops. */
static void *subject(tutti_store_t *store)
{
    return store->ops.bounded ? (void *)store : store->context;
}

/* Waits for keys; in slices where something may interrupt. */
static enum tutti_status wait_for_keys(tutti_store_t *store, const char *const *keys, size_t count,
                                       int64_t timeout_ms)
{
    if (!store->interrupt)
        return store->ops.base.wait(subject(store), keys, count, timeout_ms);
    int64_t deadline = deadline_after(timeout_ms);
    for (;;) {
        enum tutti_status status = interrupt_ask(store->interrupt);
        if (status != TUTTI_OK)
            return status;
        int64_t slice = interrupt_slice(store->interrupt, deadline_timeout_ms(deadline));
        status = store->ops.base.wait(subject(store), keys, count, slice);
        if (status != TUTTI_ERR_TIMEOUT)
            return status;
        if (deadline_passed(deadline))
            return store_timed_out("tutti_store_wait", *keys, count, timeout_ms);
        /* Whoever is gone may have written before it went. */
        if (interrupt_ask_pointless(store->interrupt) != TUTTI_OK) {
            status = store->ops.base.wait(subject(store), keys, count, 1);
            return status == TUTTI_ERR_TIMEOUT ? interrupt_ask_pointless(store->interrupt) : status;
        }
    }
}

enum tutti_status tutti_store_set(tutti_store_t *store, const char *key, const void *value,
                                  size_t size)
{
    enum tutti_status status = check_keys(store, "tutti_store_set", &key, 1);
    if (status == TUTTI_OK)
        status = check_value("tutti_store_set", value, size);
    return status == TUTTI_OK ? store->ops.base.set(subject(store), key, value, size) : status;
}

enum tutti_status tutti_store_get(tutti_store_t *store, const char *key, int64_t timeout_ms,
                                  void *value, size_t capacity, size_t *size)
{
    size_t unused;
    if (!size)
        size = &unused;
    *size = 0;
    enum tutti_status status = check_keys(store, "tutti_store_get", &key, 1);
    if (status == TUTTI_OK && !value)
        capacity = 0;
    if (status == TUTTI_OK && store->interrupt)
        status = wait_for_keys(store, &key, 1, resolve(store, timeout_ms));
    if (status == TUTTI_OK)
        status = store->ops.base.get(subject(store), key, resolve(store, timeout_ms), value,
                                     capacity, size);
    return status == TUTTI_OK ? check_fits("tutti_store_get", key, *size, capacity) : status;
}

enum tutti_status tutti_store_wait(tutti_store_t *store, const char *const *keys, size_t count,
                                   int64_t timeout_ms)
{
    enum tutti_status status = check_keys(store, "tutti_store_wait", keys, count);
    if (status != TUTTI_OK || count == 0)
        return status;
    return wait_for_keys(store, keys, count, resolve(store, timeout_ms));
}

enum tutti_status tutti_store_add(tutti_store_t *store, const char *key, int64_t amount,
                                  int64_t *result)
{
    int64_t unused;
    enum tutti_status status = check_keys(store, "tutti_store_add", &key, 1);
    if (status != TUTTI_OK)
        return status;
    return store->ops.base.add(subject(store), key, amount, result ? result : &unused);
}

enum tutti_status tutti_store_check(tutti_store_t *store, const char *const *keys, size_t count,
                                    bool *exists)
{
    enum tutti_status status = check_keys(store, "tutti_store_check", keys, count);
    if (status == TUTTI_OK)
        status = check_out("tutti_store_check", exists);
    if (status != TUTTI_OK)
        return status;
    *exists = count == 0;
    return count ? store->ops.base.check(subject(store), keys, count, exists) : TUTTI_OK;
}

enum tutti_status tutti_store_compare_set(tutti_store_t *store, const char *key,
                                          const void *expected, size_t expected_size,
                                          const void *desired, size_t desired_size, void *value,
                                          size_t capacity, size_t *size)
{
    static const char call[] = "tutti_store_compare_set";
    size_t unused;
    if (!size)
        size = &unused;
    *size = 0;
    enum tutti_status status = check_keys(store, call, &key, 1);
    if (status == TUTTI_OK)
        status = check_value(call, expected, expected_size);
    if (status == TUTTI_OK)
        status = check_value(call, desired, desired_size);
    if (status == TUTTI_OK && !value)
        capacity = 0;
    if (status == TUTTI_OK)
        status = store->ops.base.compare_set(subject(store), key, expected, expected_size, desired,
                                             desired_size, value, capacity, size);
    return status == TUTTI_OK && value ? check_fits(call, key, *size, capacity) : status;
}

enum tutti_status tutti_store_delete(tutti_store_t *store, const char *key, bool *deleted)
{
    bool unused;
    enum tutti_status status = check_keys(store, "tutti_store_delete", &key, 1);
    if (status != TUTTI_OK)
        return status;
    return store->ops.base.delete_key(subject(store), key, deleted ? deleted : &unused);
}

enum tutti_status tutti_store_num_keys(tutti_store_t *store, int64_t *count)
{
    enum tutti_status status = store_check(store, "tutti_store_num_keys");
    if (status == TUTTI_OK)
        status = check_out("tutti_store_num_keys", count);
    return status == TUTTI_OK ? store->ops.base.num_keys(subject(store), count) : status;
}

enum tutti_status store_multi_get(tutti_store_t *store, const char *const *keys, size_t count,
                                  int64_t timeout_ms, void *values, size_t each, size_t *sizes)
{
    enum tutti_status status = check_keys(store, "tutti_store_get", keys, count);
    if (status != TUTTI_OK || count == 0)
        return status;
    timeout_ms = resolve(store, timeout_ms);
    if (store->ops.multi_get && store->interrupt)
        status = wait_for_keys(store, keys, count, timeout_ms);
    if (status != TUTTI_OK)
        return status;
    if (store->ops.multi_get)
        return store->ops.multi_get(subject(store), keys, count, timeout_ms, values, each, sizes);

    /* Of one key the get is the wait. */
    if (count > 1 || store->interrupt)
        status = wait_for_keys(store, keys, count, timeout_ms);
    for (size_t i = 0; i < count && status == TUTTI_OK; i++)
        status = store->ops.base.get(subject(store), keys[i], timeout_ms,
                                     each ? (char *)values + i * each : NULL, each, &sizes[i]);
    return status;
}

enum tutti_status store_answers(tutti_store_t *store, const char *key)
{
    bool exists;
    return tutti_store_check(store, &key, 1, &exists);
}

enum tutti_status store_look_up(tutti_store_t *store, const char *key, void *value, size_t bytes,
                                bool *there)
{
    size_t size = bytes;
    enum tutti_status status = tutti_store_check(store, &key, 1, there);
    /* Not a public get, which is a wait: the interrupt would end that before it begins. */
    if (status == TUTTI_OK && *there)
        status = store->ops.base.get(subject(store), key, resolve(store, 0), value, bytes, &size);
    if (status == TUTTI_OK)
        return store_value_check(key, size, bytes);
    const enum tutti_status answer =
        status == TUTTI_ERR_TIMEOUT && *there ? store_answers(store, key) : TUTTI_OK;
    return answer == TUTTI_OK ? status : answer;
}
