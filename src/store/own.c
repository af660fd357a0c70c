/* SPDX-License-Identifier: MIT */
/*
 * A store of a caller's own functions. They get keys without the "/".
 *
 * Nothing can end a function that does not return: PyTorch's stores, for example, wait for the lock
 * of a file or for the answer of a server. A call with a bound (store_bounded()) runs the function
 * in a thread of its own. The caller waits until the function returns, the deadline passes or the
 * interrupt ends the call, and writes to the log every time that the wait has doubled. A function
 * that has not returned by then is left alone: its call has copies of all arguments, and its thread
 * frees them. The store's context is closed by the last thread that uses it.
 */
#include "base/error.h"
#include "base/fork_mutex.h"
#include "base/log.h"
#include "base/options.h"
#include "base/reminder.h"
#include "base/thread.h"
#include "store/kind.h"

#include <stdio.h>
#include <stdlib.h>

enum { TEXT_BYTES = 512, MOST_LEFT = 64 };

struct own {
    struct tutti_store_ops ops;
    void *context;
    int left;    /* calls that were left alone and have not returned */
    bool closed; /* the last of these calls closes the context */
};

/* One call of a function, with copies of what it reads and room for what it writes. */
struct job {
    struct own *own;
    enum store_op op;
    const char **keys;
    size_t count;
    struct store_bytes value, expected;
    void *found; /* `capacity` bytes: what GET and COMPARE_SET read */
    size_t capacity, size;
    int64_t timeout_ms; /* of GET and WAIT */
    int64_t number;     /* the amount of ADD, then as in struct store_call */
    enum tutti_status status;
    char text[TEXT_BYTES]; /* of the error; "": the function has set none */
    bool returned;
    bool is_left; /* the caller has gone; the job's thread frees the job */
};

static void init_returned(void);

/* The lock guards `left` and `closed` of all stores, `returned` and `is_left` of all jobs. */
static struct fork_mutex lock = FORK_MUTEX(init_returned);
static pthread_cond_t returned;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* In a child, too: the threads that wait are not there. */
static void init_returned(void)
{
    thread_condition_init(&returned);
}

/* ---- one function ---------------------------------------------------------------------------- */

static const char *const functions[] = {
    [STORE_SET] = "set",           [STORE_GET] = "get",
    [STORE_WAIT] = "wait",         [STORE_ADD] = "add",
    [STORE_CHECK] = "check",       [STORE_COMPARE_SET] = "compare_set",
    [STORE_DELETE] = "delete_key", [STORE_NUM_KEYS] = "num_keys",
};

static enum tutti_status call_function(struct job *job)
{
    const struct tutti_store_ops *ops = &job->own->ops;
    const char *const *keys = job->keys;
    void *context = job->own->context;
    enum tutti_status status = TUTTI_OK;
    bool yes = false;
    switch (job->op) {
    case STORE_SET:
        return ops->set(context, *keys, job->value.data, job->value.size);
    case STORE_GET:
        return ops->get(context, *keys, job->timeout_ms, job->found, job->capacity, &job->size);
    case STORE_WAIT:
        return ops->wait(context, keys, job->count, job->timeout_ms);
    case STORE_ADD:
        return ops->add(context, *keys, job->number, &job->number);
    case STORE_CHECK:
        status = ops->check(context, keys, job->count, &yes);
        break;
    case STORE_COMPARE_SET:
        return ops->compare_set(context, *keys, job->expected.data, job->expected.size,
                                job->value.data, job->value.size, job->found, job->capacity,
                                &job->size);
    case STORE_DELETE:
        status = ops->delete_key(context, *keys, &yes);
        break;
    case STORE_NUM_KEYS:
        return ops->num_keys(context, &job->number);
    }
    job->number = yes;
    return status;
}

static void own_free(struct own *own)
{
    if (own->ops.close)
        own->ops.close(own->context);
    free(own);
}

static void *job_run(void *argument)
{
    struct job *job = argument;
    struct own *own = job->own;
    job->status = call_function(job);
    if (job->status != TUTTI_OK)
        snprintf(job->text, sizeof job->text, "%s", tutti_last_error());
    fork_mutex_lock(&lock);
    const bool is_left = job->is_left;
    job->returned = true;
    pthread_cond_broadcast(&returned);
    const bool last = is_left && --own->left == 0 && own->closed;
    fork_mutex_unlock(&lock);
    if (is_left)
        free(job);
    if (last)
        own_free(own);
    return NULL;
}

/* ---- waiting for it -------------------------------------------------------------------------- */

static void waiting_log(const struct job *job, struct reminder *reminder)
{
    const int waited_s = reminder_due(reminder, deadline_now());
    if (waited_s)
        log_write(TUTTI_LOG_WARN, -1,
                  "the caller's store has not answered for %d s: its function %s() has not "
                  "returned (key \"%.200s\")",
                  waited_s, functions[job->op], job->count ? *job->keys : "");
}

static enum tutti_status no_answer(const struct job *job)
{
    return error_set(TUTTI_ERR_TIMEOUT,
                     "the caller's store did not answer in time: its function %s() has not "
                     "returned (key \"%.200s\"): see whether another process holds its lock, or "
                     "its server is stopped",
                     functions[job->op], job->count ? *job->keys : "");
}

/* Waits until the function has returned. Otherwise returns why the caller leaves it alone. */
static enum tutti_status job_await(struct job *job, struct store_call *call)
{
    /* A function with a time-out gets the time to return by itself. */
    const bool ends = job->op == STORE_GET || job->op == STORE_WAIT;
    const int64_t grace = !ends                 ? 0
                          : job->timeout_ms < 0 ? DEADLINE_NEVER
                                                : deadline_after(job->timeout_ms + STORE_GRACE_MS);
    struct reminder reminder = reminder_start(deadline_now());
    enum tutti_status status = TUTTI_OK;
    fork_mutex_lock(&lock);
    while (!job->returned && status == TUTTI_OK) {
        const int64_t deadline = grace > call->deadline ? grace : call->deadline;
        int64_t until = deadline_after(reminder_left_ms(&reminder));
        until = deadline_min(deadline_min(deadline, until), store_call_pause(call));
        const struct timespec time = deadline_timespec(until);
        pthread_cond_timedwait(&returned, &lock.mutex, &time);
        if (job->returned || !deadline_passed(until))
            continue;
        fork_mutex_unlock(&lock);
        waiting_log(job, &reminder);
        status = deadline_passed(deadline) ? no_answer(job) : store_call_check(call);
        fork_mutex_lock(&lock);
    }
    job->is_left = !job->returned;
    job->own->left += job->is_left;
    fork_mutex_unlock(&lock);
    return job->is_left ? status : TUTTI_OK;
}

static enum tutti_status job_serve(struct job *job, struct store_call *call)
{
    pthread_t thread;
    pthread_once(&once, init_returned);
    fork_mutex_lock(&lock);
    const int left = job->own->left;
    fork_mutex_unlock(&lock);
    if (left >= MOST_LEFT)
        return no_answer(job);
    if (!call->is_bounded || !thread_start(&thread, job_run, job)) {
        job_run(job);
        return TUTTI_OK;
    }
    pthread_detach(thread);
    return job_await(job, call);
}

/* ---- a call ---------------------------------------------------------------------------------- */

static size_t texts_bytes(const char *const *keys, size_t count)
{
    size_t bytes = 0;
    for (size_t i = 0; i < count; i++)
        bytes += strlen(keys[i]) + 1;
    return bytes;
}

static struct store_bytes bytes_copy(char **room, struct store_bytes from)
{
    const struct store_bytes copy = {*room, from.size};
    if (from.size > 0)
        memcpy(*room, from.data, from.size);
    *room += from.size;
    return copy;
}

/* One block: free(). NULL when there is no memory. */
static struct job *job_create(struct own *own, const struct store_call *call, enum store_op op,
                              size_t first, size_t count)
{
    const bool reads = op == STORE_GET || op == STORE_COMPARE_SET;
    const char *const *keys = call->keys + first;
    const size_t capacity = reads ? call->each : 0;
    struct job *job = calloc(1, sizeof *job + count * sizeof *keys + texts_bytes(keys, count) +
                                    call->value.size + call->expected.size + capacity);
    if (!job)
        return NULL;
    *job = (struct job){.own = own,
                        .op = op,
                        .keys = (const char **)(job + 1),
                        .count = count,
                        .capacity = capacity,
                        .number = call->amount};
    char *room = (char *)(job->keys + count);
    for (size_t i = 0; i < count; i++) {
        job->keys[i] = room;
        room = stpcpy(room, keys[i] + 1) + 1; /* without the "/" */
    }
    job->value = bytes_copy(&room, call->value);
    job->expected = bytes_copy(&room, call->expected);
    job->found = room;
    return job;
}

/* Calls one function with the keys from `first` on, and puts what it returns into the call. */
static enum tutti_status own_call(struct own *own, struct store_call *call, enum store_op op,
                                  size_t first, size_t count, int64_t timeout_ms)
{
    struct job *job = job_create(own, call, op, first, count);
    if (!job)
        return error_errno("%s: %zu keys", call->name, count);
    job->timeout_ms = timeout_ms;
    enum tutti_status status = job_serve(job, call);
    if (job->is_left)
        return status;
    if (status == TUTTI_OK) {
        status = job->status;
        if (op == STORE_GET || op == STORE_COMPARE_SET)
            store_call_put(call, first, (struct store_bytes){job->found, job->size});
        call->number = job->number;
        if (status != TUTTI_OK && *job->text)
            error_set(status, "%s", job->text);
    }
    free(job);
    return status;
}

static enum tutti_status own_wait(struct own *own, struct store_call *call)
{
    for (;;) {
        enum tutti_status status = own_call(own, call, STORE_WAIT, 0, call->count,
                                            deadline_timeout_ms(store_call_pause(call)));
        if (status != TUTTI_ERR_TIMEOUT || deadline_passed(call->deadline))
            return status;
        status = store_call_check(call);
        if (status != TUTTI_OK)
            return status;
    }
}

static enum tutti_status own_get(struct own *own, struct store_call *call)
{
    enum tutti_status status = TUTTI_OK;
    if (!call->is_there && (call->count > 1 || call->interrupt)) { /* else get() waits, too */
        status = own_wait(own, call);
        store_call_found(call);
    }
    for (size_t i = 0; i < call->count && status == TUTTI_OK; i++)
        status = own_call(own, call, STORE_GET, i, 1, deadline_timeout_ms(call->deadline));
    return status;
}

static enum tutti_status own_serve(void *context, struct store_call *call)
{
    switch (call->op) {
    case STORE_WAIT:
        return own_wait(context, call);
    case STORE_GET:
        return own_get(context, call);
    case STORE_SET:
    case STORE_ADD:
    case STORE_CHECK:
    case STORE_COMPARE_SET:
    case STORE_DELETE:
    case STORE_NUM_KEYS:
        break;
    }
    return own_call(context, call, call->op, 0, call->count, 0);
}

/* A call that was left alone may still use the context. Its thread closes it then. */
static void own_close(void *context)
{
    struct own *own = context;
    fork_mutex_lock(&lock);
    own->closed = true;
    const bool last = own->left == 0;
    fork_mutex_unlock(&lock);
    if (last)
        own_free(own);
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
    static const struct store_kind kind = {.serve = own_serve, .close = own_close};
    struct tutti_store_ops copy = {0};
    int64_t timeout_ms = 0;
    if (store)
        *store = NULL;
    if (!ops || !store)
        return error_set(TUTTI_ERR_INVALID, "tutti_store_from_ops: %s is NULL",
                         ops ? "store" : "ops");
    enum tutti_status status =
        options_copy("tutti_store_from_ops", "tutti_store_ops", ops, &copy, sizeof copy);
    if (status == TUTTI_OK)
        status = check_ops(&copy);
    if (status == TUTTI_OK)
        status = store_default_timeout(&timeout_ms);
    if (status != TUTTI_OK)
        return status;
    struct own *own = malloc(sizeof *own);
    if (!own)
        return error_errno("tutti_store_from_ops");
    *own = (struct own){.ops = copy, .context = context};
    own->ops.close = NULL; /* after a failure the context stays the caller's */
    status = store_create(&kind, own, timeout_ms, NULL, store);
    if (status == TUTTI_OK)
        own->ops.close = copy.close;
    return status;
}
