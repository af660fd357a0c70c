/* SPDX-License-Identifier: MIT */
/* An operation as a work: how threads wait for it. */
#include "base/error.h"
#include "base/order.h"
#include "base/signature.h"
#include "base/wait.h"
#include "ipc/fork.h"
#include "ipc/futex.h"
#include "pg/pg.h"

#include <inttypes.h>

enum {
    SPINS = 64, /* polls of a waiting thread before it yields; with idle cores: */
    SPINS_SPARE = 4000,
    YIELDS = 3, /* before it sleeps */
};

static enum tutti_status operation_test(struct tutti_work *work, const char *call, bool *done)
{
    const struct pg_operation *operation = (const struct pg_operation *)work;
    enum tutti_status status = pg_operation_check(operation, call);
    if (status != TUTTI_OK)
        return status;
    status = pg_operation_poll(operation, done);
    if (!*done)
        pg_control_wake(operation->pg->control.own); /* the caller may poll */
    return status;
}

static bool has_ended(void *context)
{
    return pg_operation_is_done(context);
}

/* If H5 comes first, the state has changed and the thread does not sleep. */
static void sleep_on_state(void *context, int64_t ms)
{
    struct pg_operation *operation = context;
    (void)order_compare_exchange_u32(&operation->state, PG_OPEN, PG_AWAITED);
    futex_sleep(&operation->state, PG_AWAITED, ms);
}

static enum tutti_status operation_result(struct tutti_work *work, const char *call,
                                          int64_t timeout_ms)
{
    struct pg_operation *operation = (struct pg_operation *)work;
    enum tutti_status status = pg_operation_check(operation, call);
    if (status != TUTTI_OK)
        return status;
    timeout_ms = timeout_ms ? timeout_ms : operation->pg->timeout_ms;
    /* A thread inside an operation may wait for the peers as long as the operation lets it. */
    const bool steps = timeout_ms < 0 || timeout_ms >= operation->pg->timeout_ms;
    if (pg_operation_is_done(operation) || (steps && pg_engine_step_until(operation)))
        return pg_operation_status(operation);
    pg_control_wake(operation->pg->control.own);
    int64_t deadline = 0;
    const struct waiter waiter = {.poll = has_ended,
                                  .bell = sleep_on_state,
                                  .context = operation,
                                  .deadline = &deadline,
                                  .timeout_ms = timeout_ms,
                                  .yields = YIELDS};
    if (wait_spin(has_ended, operation, 0,
                  operation->pg->control.spare_cores ? SPINS_SPARE : SPINS) ||
        waiter_run(&waiter) == WAIT_DONE)
        return pg_operation_status(operation);
    return error_set(
        TUTTI_ERR_TIMEOUT,
        "%s: %s %" PRIu64 " of tag %" PRIu32 " has not ended within %" PRId64 " ms: wait again",
        call, pg_description_name(&operation->description), work->sequence, work->tag, timeout_ms);
}

/* Once the work is done the results are on the devices, so no stream has to wait. */
static enum tutti_status staged_wait(struct pg_operation *operation, const char *call,
                                     tutti_stream_t stream)
{
    bool full = false;
    enum tutti_status status = pg_operation_check(operation, call);
    if (status != TUTTI_OK)
        return status;
    if (pg_operation_is_done(operation))
        return pg_operation_status(operation);
    /* Before the launch of the wait: the group's thread wakes meanwhile. */
    pg_control_wake(operation->pg->control.own);
    status = pg_cuda_wait(operation, stream, &full);
    if (status != TUTTI_OK)
        return error_context(status, "%s", call);
    return full ? operation_result(&operation->work, call, -1) : TUTTI_OK;
}

static enum tutti_status operation_wait(struct tutti_work *work, const char *call,
                                        tutti_stream_t stream)
{
    struct pg_operation *operation = (struct pg_operation *)work;
    if (operation->cuda)
        return staged_wait(operation, call, stream);
    if (stream != TUTTI_STREAM_DEFAULT && operation->description.device == TUTTI_DEVICE_CPU)
        return error_set(TUTTI_ERR_INVALID,
                         "%s: stream %p: the work of a group on CPU tensors takes "
                         "TUTTI_STREAM_DEFAULT only",
                         call, (const void *)stream);
    return operation_result(work, call, -1);
}

static enum tutti_status operation_fault(struct tutti_work *work, const char *call,
                                         struct tutti_fault *fault)
{
    const struct pg_operation *operation = (const struct pg_operation *)work;
    const struct pg_outcome *outcome = &operation->outcome;
    fault->status = pg_operation_check(operation, call);
    if (fault->status != TUTTI_OK || !order_load_acquire_u32(&operation->has_outcome) || /* H7a */
        outcome->status == TUTTI_OK)
        return fault->status;
    fault->status = pg_operation_status(operation);
    fault->rank = outcome->rank;
    fault->peer = outcome->peer;
    fault->sequence = work->sequence;
    fault->expected =
        signature_unpack(operation->description.signature, operation->description.parameter);
    if (outcome->status == TUTTI_ERR_MISMATCH) {
        fault->expected =
            signature_unpack(outcome->expected.signature, outcome->expected.parameter);
        fault->seen = signature_unpack(outcome->seen.signature, outcome->seen.parameter);
    }
    return fault->status;
}

/* In the child of a fork() the group's lock may be held by a thread that does not exist there, so
 * the work is left alone. */
static void operation_destroy(struct tutti_work *work)
{
    struct pg_operation *operation = (struct pg_operation *)work;
    if (!fork_detected(operation->epoch))
        pg_operation_release(operation);
}

static enum tutti_status operation_check(const struct tutti_work *work, const char *call)
{
    return pg_operation_check((const struct pg_operation *)work, call);
}

const struct work_class pg_work_class = {
    .check = operation_check,
    .test = operation_test,
    .wait = operation_wait,
    .result = operation_result,
    .fault = operation_fault,
    .destroy = operation_destroy,
};
