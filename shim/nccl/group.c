/* SPDX-License-Identifier: MIT */
/*
 * Groups. Between start and end a thread's calls and creations are checked and kept. The outermost
 * end first makes the communicators, then passes all calls to Tutti as one group of its own.
 */
#include "create.h"
#include "real.h"

#include <stdlib.h>

struct group {
    int depth;
    ncclResult_t refused; /* of the first call or creation that failed */
    char error[SHIM_ERROR_BYTES];
    struct call *calls;
    int count, most;
    struct create *creates, **creates_end;
};

static _Thread_local struct group *own;
static pthread_key_t key;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void group_clear(struct group *group)
{
    group->count = 0;
    group->creates = NULL;
    group->creates_end = &group->creates;
    group->refused = ncclSuccess;
}

/* Called at the end of the thread. */
static void group_free(void *opaque)
{
    struct group *group = opaque;
    creates_drop(group->creates);
    free(group->calls);
    free(group);
}

static void key_make(void)
{
    if (pthread_key_create(&key, group_free) != 0)
        abort();
}

static struct group *group_of_thread(void)
{
    if (own)
        return own;
    pthread_once(&once, key_make);
    own = calloc(1, sizeof *own);
    if (!own)
        return NULL;
    group_clear(own);
    pthread_setspecific(key, own);
    return own;
}

static bool is_open(void)
{
    return own && own->depth;
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
    return fail_status(status, "ncclGroupEnd");
}

/* NCCL takes messages of a group on several streams, Tutti on one: those of a communicator move to
 * the stream of its first message, which waits for the others, or is waited for by them. */
static ncclResult_t messages_join(struct call *calls, int count, bool before)
{
    static uint64_t groups;
    const uint64_t group = before ? order_fetch_add_relaxed_u64(&groups, 1) + 1 : 0;
    ncclResult_t result = ncclSuccess;
    for (int i = 0; i < count && result == ncclSuccess; i++) {
        ncclComm_t comm = calls[i].comm;
        if (!call_is_message(&calls[i]) || !comm->comm)
            continue;
        if (before && comm->group != group) {
            comm->group = group;
            comm->stream = calls[i].stream;
        }
        if (calls[i].stream != comm->stream)
            result = before ? stream_follow(comm, comm->stream, calls[i].stream)
                            : stream_follow(comm, calls[i].stream, comm->stream);
    }
    return result;
}

/* ---- running --------------------------------------------------------------------------------- */

/* Calls of communicators that NVIDIA's library serves are a group of its own. */
static ncclResult_t calls_run_real(const struct call *calls, int count)
{
    bool started = false;
    ncclResult_t result = ncclSuccess;
    for (int i = 0; i < count && result == ncclSuccess; i++) {
        if (calls[i].comm->comm)
            continue;
        if (!started)
            result = fail_real(REAL(ncclGroupStart)(), "ncclGroupStart");
        started = true;
        if (result == ncclSuccess)
            result = call_submit(&calls[i], calls[i].stream);
    }
    const ncclResult_t ended =
        started ? fail_real(REAL(ncclGroupEnd)(), "ncclGroupEnd") : ncclSuccess;
    return result == ncclSuccess ? ended : result;
}

static ncclResult_t calls_run(struct call *calls, int count)
{
    ncclResult_t result = ncclSuccess;
    if (count == 1)
        return call_submit(calls, calls->stream);
    result = messages_join(calls, count, true);
    if (result == ncclSuccess)
        result = fail_status(tutti_group_start(), "ncclGroupEnd");
    if (result != ncclSuccess)
        return result;
    /* A call that is refused makes the whole group fail; its error is the one to tell. */
    for (int i = 0; i < count && result == ncclSuccess; i++)
        if (calls[i].comm->comm)
            result = call_submit(&calls[i], call_is_message(&calls[i]) ? calls[i].comm->stream
                                                                       : calls[i].stream);
    const enum tutti_status status = tutti_group_end();
    if (result == ncclSuccess)
        result = fail_status(status, "ncclGroupEnd");
    if (result == ncclSuccess)
        result = messages_join(calls, count, false);
    return result == ncclSuccess ? calls_run_real(calls, count) : result;
}

static ncclResult_t calls_launched(const struct call *calls, int count)
{
    for (int i = 0; i < count; i++)
        if (calls[i].launched &&
            calls[i].comm->driver->event_record(calls[i].launched, cuda_stream_of(calls[i].stream)))
            return fail(ncclUnhandledCudaError, "%s: cannot record launchCompletionEvent",
                        symbol_names[calls[i].symbol]);
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
    struct group *group = own;
    if (!is_open())
        return calls_end(call, 1, calls_run(call, 1));
    if (group->count == group->most) {
        const int most = group->most ? 2 * group->most : 16;
        struct call *calls = realloc(group->calls, (size_t)most * sizeof *calls);
        if (!calls)
            return group_refuse(comm_leave(
                call->comm, fail(ncclSystemError, "%s: no memory", symbol_names[call->symbol])));
        group->calls = calls;
        group->most = most;
    }
    group->calls[group->count++] = *call;
    return ncclSuccess;
}

ncclResult_t group_create(struct create *create)
{
    struct group *group = own;
    if (!is_open())
        return creates_run(create);
    *group->creates_end = create;
    group->creates_end = &create->next;
    return ncclSuccess;
}

ncclResult_t group_refuse(ncclResult_t result)
{
    struct group *group = own;
    if (result != ncclSuccess && is_open() && group->refused == ncclSuccess) {
        group->refused = result;
        error_copy(group->error, sizeof group->error);
    }
    return result;
}

bool group_uses(ncclComm_t comm)
{
    for (int i = 0; is_open() && i < own->count; i++)
        if (own->calls[i].comm == comm)
            return true;
    return false;
}

NCCL_DEFINE(ncclResult_t, ncclGroupStart, void)
{
    struct group *group = group_of_thread();
    if (!group)
        return fail(ncclSystemError, "ncclGroupStart: no memory");
    group->depth++;
    return ncclSuccess;
}

/* Takes what the group holds; drops it if something was refused, or `drops`. */
static ncclResult_t group_end(struct group *group, bool drops)
{
    struct create *creates = group->creates;
    ncclResult_t result = group->refused;
    const int count = group->count;
    group_clear(group);
    if (result != ncclSuccess)
        fail_again(result, group->error);
    if (result != ncclSuccess || drops)
        creates_drop(creates);
    else
        result = creates_run(creates);
    const bool runs = !drops && (result == ncclSuccess || result == ncclInProgress);
    if (count && runs) {
        const ncclResult_t called = calls_end(group->calls, count, calls_run(group->calls, count));
        return called == ncclSuccess ? result : called;
    }
    for (int i = 0; i < count; i++)
        comm_leave(group->calls[i].comm, result);
    return result;
}

static ncclResult_t group_leave(enum symbol symbol, bool drops)
{
    if (!is_open())
        return fail(ncclInvalidUsage,
                    "%s: this thread has no open group: call ncclGroupStart() "
                    "first",
                    symbol_names[symbol]);
    if (--own->depth)
        return ncclSuccess;
    const int64_t begin = report_begin();
    const ncclResult_t result = group_end(own, drops);
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
        return fail(ncclInvalidArgument,
                    "ncclGroupSimulateEnd: the struct was not initialized: use "
                    "NCCL_SIM_INFO_INITIALIZER");
    if (info)
        info->estimatedTime = -1;
    return group_leave(SYMBOL_ncclGroupSimulateEnd, true);
}
