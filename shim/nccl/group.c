/* SPDX-License-Identifier: MIT */
/*
 * Groups. Between start and end a thread's calls and creations are checked and kept. The outermost
 * end first makes the communicators, then passes all calls to Tutti as one group of its own.
 */
#include "shim.h"

#include <stdlib.h>

struct group {
    int depth;
    struct outcome refused; /* the first call or creation that failed */
    struct call *calls;
    int count, most;
    struct create *creates, *last_create;
    tutti_op_t *dropped; /* premultiplied sums that were destroyed behind a call */
    int dropped_count;
};

static _Thread_local struct group own;
static pthread_key_t key;

static bool is_open(void)
{
    return own.depth;
}

/* ---- streams --------------------------------------------------------------------------------- */

/* Makes one stream of the communicator's device wait for another. */
static ncclResult_t stream_follow(ncclComm_t comm, tutti_stream_t after, tutti_stream_t stream)
{
    const struct cuda_driver *driver = comm->driver;
    bool pushed;
    enum tutti_status status = cuda_context_enter(driver, comm->context, &pushed);
    if (status == TUTTI_OK && !comm->event)
        status = CUDA_CALL(driver, event_create, &comm->event, CU_EVENT_DISABLE_TIMING);
    if (status == TUTTI_OK)
        status = CUDA_CALL(driver, event_record, comm->event, cuda_stream_of(stream));
    if (status == TUTTI_OK)
        status = CUDA_CALL(driver, stream_wait_event, cuda_stream_of(after), comm->event, 0);
    cuda_context_leave(driver, pushed);
    return fail_status(status, SYMBOL_ncclGroupEnd);
}

static bool is_message(const struct call *call)
{
    return call->comm->comm && (call->kind == SYMBOL_ncclSend || call->kind == SYMBOL_ncclRecv);
}

/* NCCL takes messages of a group on several streams, Tutti on one: those of a communicator move to
 * the stream of its first message, which waits for the others, or is waited for by them. */
static ncclResult_t messages_join(const struct call *calls, int count, bool before)
{
    ncclResult_t result = ncclSuccess;
    for (int i = count - 1; i >= 0; i--)
        if (is_message(&calls[i]))
            calls[i].comm->stream = calls[i].stream;
    for (int i = 0; i < count && result == ncclSuccess; i++) {
        const tutti_stream_t own_stream = calls[i].stream, stream = calls[i].comm->stream;
        if (is_message(&calls[i]) && own_stream != stream)
            result = before ? stream_follow(calls[i].comm, stream, own_stream)
                            : stream_follow(calls[i].comm, own_stream, stream);
    }
    return result;
}

/* ---- running --------------------------------------------------------------------------------- */

/* Calls of communicators that NVIDIA's library serves are a group of its own. A call that is
 * refused makes the whole group fail; its error is the one to tell. */
static ncclResult_t calls_submit(struct call *calls, int count)
{
    bool by_real = false;
    if (count == 1)
        return call_submit(calls, calls->stream);
    ncclResult_t result = messages_join(calls, count, true);
    if (result == ncclSuccess)
        result = fail_status(tutti_group_start(), SYMBOL_ncclGroupEnd);
    if (result != ncclSuccess)
        return result;
    for (int i = 0; i < count; i++)
        by_real |= !calls[i].comm->comm;
    if (by_real)
        result = fail_real(REAL(ncclGroupStart)(), SYMBOL_ncclGroupStart);
    for (int i = 0; i < count && result == ncclSuccess; i++)
        result =
            call_submit(&calls[i], is_message(&calls[i]) ? calls[i].comm->stream : calls[i].stream);
    const enum tutti_status status = tutti_group_end();
    if (result == ncclSuccess)
        result = fail_status(status, SYMBOL_ncclGroupEnd);
    const ncclResult_t ended = by_real ? REAL(ncclGroupEnd)() : ncclSuccess;
    if (result == ncclSuccess)
        result = fail_real(ended, SYMBOL_ncclGroupEnd);
    return result == ncclSuccess ? messages_join(calls, count, false) : result;
}

static ncclResult_t calls_run(struct call *calls, int count)
{
    ncclResult_t result = ncclSuccess;
    for (int i = 0; i < count && result == ncclSuccess; i++)
        result = call_multiply(&calls[i]);
    if (result == ncclSuccess)
        result = calls_submit(calls, count);
    for (int i = 0; i < count; i++)
        result = call_release(&calls[i], result);
    return result;
}

static ncclResult_t calls_launched(const struct call *calls, int count)
{
    for (int i = 0; i < count; i++)
        if (calls[i].launched &&
            calls[i].comm->driver->event_record(calls[i].launched, cuda_stream_of(calls[i].stream)))
            return fail(ncclUnhandledCudaError, calls[i].symbol,
                        "cannot record launchCompletionEvent");
    return ncclSuccess;
}

static ncclResult_t calls_end(struct call *calls, int count, ncclResult_t result)
{
    if (result == ncclSuccess)
        result = calls_launched(calls, count);
    for (int i = 0; i < count; i++)
        comm_leave(calls[i].comm, result);
    return result;
}

ncclResult_t group_call(struct call *call)
{
    if (!is_open())
        return calls_end(call, 1, calls_run(call, 1));
    if (own.count == own.most) {
        const int most = own.most ? 2 * own.most : 16;
        struct call *calls = realloc(own.calls, (size_t)most * sizeof *calls);
        if (!calls)
            return group_refuse(
                comm_leave(call->comm, fail(ncclSystemError, call->symbol, "no memory")));
        own.calls = calls;
        own.most = most;
    }
    own.calls[own.count++] = *call;
    return ncclSuccess;
}

ncclResult_t group_create(struct create *create)
{
    if (!is_open())
        return creates_run(create);
    if (own.creates)
        own.last_create->next = create;
    else
        own.creates = create;
    own.last_create = create;
    return ncclSuccess;
}

ncclResult_t group_refuse(ncclResult_t result)
{
    if (is_open() && own.refused.result == ncclSuccess)
        outcome_keep(&own.refused, result);
    return result;
}

bool group_uses(ncclComm_t comm)
{
    for (int i = 0; is_open() && i < own.count; i++)
        if (own.calls[i].comm == comm)
            return true;
    return false;
}

ncclResult_t group_drop(ncclComm_t comm, tutti_op_t op)
{
    if (!group_uses(comm)) {
        tutti_op_destroy(op);
        return ncclSuccess;
    }
    tutti_op_t *dropped =
        realloc(own.dropped, (size_t)(own.dropped_count + 1) * sizeof *own.dropped);
    if (!dropped)
        return fail(ncclSystemError, SYMBOL_ncclRedOpDestroy, "no memory");
    own.dropped = dropped;
    own.dropped[own.dropped_count++] = op;
    return ncclSuccess;
}

/* Runs what the group holds; drops it if something was refused, or `drops`. */
static ncclResult_t held_end(bool drops)
{
    struct create *creates = own.creates;
    const int count = own.count;
    ncclResult_t result = own.refused.result;
    if (result != ncclSuccess || drops) {
        creates_drop(creates);
        outcome_tell(&own.refused);
    }
    own.creates = NULL;
    own.count = 0;
    own.refused.result = ncclSuccess;
    if (result == ncclSuccess && !drops)
        result = creates_run(creates);
    if (count && !drops && (result == ncclSuccess || result == ncclInProgress)) {
        const ncclResult_t called = calls_end(own.calls, count, calls_run(own.calls, count));
        return called == ncclSuccess ? result : called;
    }
    for (int i = 0; i < count; i++)
        comm_leave(own.calls[i].comm, result);
    return result;
}

static ncclResult_t group_end(bool drops)
{
    const ncclResult_t result = held_end(drops);
    for (int i = 0; i < own.dropped_count; i++)
        tutti_op_destroy(own.dropped[i]);
    free(own.dropped);
    own.dropped = NULL;
    own.dropped_count = 0;
    return result;
}

/* Called at the end of a thread that has had a group, which may still be open. */
static void group_free(void *unused)
{
    (void)unused;
    own.depth = 0;
    group_end(true);
    free(own.calls);
    own.calls = NULL;
    own.most = 0;
}

static void key_make(void)
{
    if (pthread_key_create(&key, group_free) != 0)
        abort();
}

NCCL_DEFINE(ncclResult_t, ncclGroupStart, void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, key_make);
    if (own.depth++ == 0 && pthread_setspecific(key, &own) != 0) {
        own.depth = 0;
        return fail(ncclSystemError, SYMBOL_ncclGroupStart, "no memory");
    }
    return ncclSuccess;
}

static ncclResult_t group_leave(enum symbol symbol, bool drops)
{
    if (!is_open())
        return fail(ncclInvalidUsage, symbol,
                    "this thread has no open group: call ncclGroupStart() first");
    if (--own.depth)
        return ncclSuccess;
    const int64_t begin = report_begin();
    const ncclResult_t result = group_end(drops);
    report_end(symbol, false, 0, begin);
    return result;
}

NCCL_DEFINE(ncclResult_t, ncclGroupEnd, void)
{
    return group_leave(SYMBOL_ncclGroupEnd, false);
}

/* Ends the group without running its calls. Tutti does not estimate times: it says "undefined". */
NCCL_DEFINE(ncclResult_t, ncclGroupSimulateEnd, ncclSimInfo_t *info)
{
    if (info && info->magic != NCCL_SIM_MAGIC)
        return fail(ncclInvalidArgument, SYMBOL_ncclGroupSimulateEnd,
                    "the struct was not initialized: use NCCL_SIM_INFO_INITIALIZER");
    if (info)
        info->estimatedTime = -1;
    return group_leave(SYMBOL_ncclGroupSimulateEnd, true);
}
