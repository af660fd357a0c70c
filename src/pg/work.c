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

static enum tutti_status op_test(struct tutti_work *work, const char *call, bool *done)
{
    const struct pg_op *op = (const struct pg_op *)work;
    enum tutti_status status = pg_op_check(op, call);
    if (status != TUTTI_OK)
        return status;
    status = pg_op_poll(op, done);
    if (!*done)
        pg_control_wake(op->pg->control.own); /* the caller may poll */
    return status;
}

static bool has_ended(void *context)
{
    return pg_op_is_done(context);
}

/* If H5 comes first, the state has changed and the thread does not sleep. */
static void sleep_on_state(void *context, int64_t ms)
{
    struct pg_op *op = context;
    (void)order_compare_exchange_u32(&op->state, PG_OPEN, PG_AWAITED);
    futex_sleep(&op->state, PG_AWAITED, ms);
}

static enum tutti_status op_result(struct tutti_work *work, const char *call, int64_t timeout_ms)
{
    struct pg_op *op = (struct pg_op *)work;
    enum tutti_status status = pg_op_check(op, call);
    if (status != TUTTI_OK)
        return status;
    timeout_ms = timeout_ms ? timeout_ms : op->pg->timeout_ms;
    /* A thread inside an operation may wait for the peers as long as the operation lets it. */
    const bool steps = timeout_ms < 0 || timeout_ms >= op->pg->timeout_ms;
    if (pg_op_is_done(op) || (steps && pg_engine_step_until(op)))
        return pg_op_status(op);
    pg_control_wake(op->pg->control.own);
    int64_t deadline = 0;
    const struct waiter waiter = {.poll = has_ended,
                                  .bell = sleep_on_state,
                                  .context = op,
                                  .deadline = &deadline,
                                  .timeout_ms = timeout_ms,
                                  .yields = YIELDS};
    if (wait_spin(has_ended, op, 0, op->pg->control.spare_cores ? SPINS_SPARE : SPINS) ||
        waiter_run(&waiter) == WAIT_DONE)
        return pg_op_status(op);
    return error_set(
        TUTTI_ERR_TIMEOUT,
        "%s: %s %" PRIu64 " of tag %" PRIu32 " has not ended within %" PRId64 " ms: wait again",
        call, pg_operation_name(&op->operation), work->sequence, work->tag, timeout_ms);
}

/* Once the work is done the results are on the devices, so no stream has to wait. */
static enum tutti_status staged_wait(struct pg_op *op, const char *call, tutti_stream_t stream)
{
    bool full = false;
    enum tutti_status status = pg_op_check(op, call);
    if (status != TUTTI_OK)
        return status;
    if (pg_op_is_done(op))
        return pg_op_status(op);
    /* Before the launch of the wait: the group's thread wakes meanwhile. */
    pg_control_wake(op->pg->control.own);
    status = pg_staging_wait(op, stream, &full);
    if (status != TUTTI_OK)
        return error_context(status, "%s", call);
    return full ? op_result(&op->work, call, -1) : TUTTI_OK;
}

static enum tutti_status op_wait(struct tutti_work *work, const char *call, tutti_stream_t stream)
{
    struct pg_op *op = (struct pg_op *)work;
    if (op->staging)
        return staged_wait(op, call, stream);
    if (stream != TUTTI_STREAM_DEFAULT && op->operation.device == TUTTI_DEVICE_CPU)
        return error_set(TUTTI_ERR_INVALID,
                         "%s: stream %p: the work of a group on CPU tensors takes "
                         "TUTTI_STREAM_DEFAULT only",
                         call, (const void *)stream);
    return op_result(work, call, -1);
}

static enum tutti_status op_fault(struct tutti_work *work, const char *call,
                                  struct tutti_fault *fault)
{
    const struct pg_op *op = (const struct pg_op *)work;
    const struct pg_outcome *outcome = &op->outcome;
    fault->status = pg_op_check(op, call);
    if (fault->status != TUTTI_OK || !order_load_acquire_u32(&op->has_outcome) || /* H7a */
        outcome->status == TUTTI_OK)
        return fault->status;
    fault->status = pg_op_status(op);
    fault->rank = outcome->rank;
    fault->peer = outcome->peer;
    fault->sequence = work->sequence;
    fault->expected = signature_unpack(op->operation.signature, op->operation.parameter);
    if (outcome->status == TUTTI_ERR_MISMATCH) {
        fault->expected =
            signature_unpack(outcome->expected.signature, outcome->expected.parameter);
        fault->seen = signature_unpack(outcome->seen.signature, outcome->seen.parameter);
    }
    return fault->status;
}

/* In the child of a fork() the group's lock may be held by a thread that does not exist there, so
 * the work is left alone. */
static void op_destroy(struct tutti_work *work)
{
    struct pg_op *op = (struct pg_op *)work;
    if (!fork_detected(op->epoch))
        pg_op_release(op);
}

static enum tutti_status op_check(const struct tutti_work *work, const char *call)
{
    return pg_op_check((const struct pg_op *)work, call);
}

const struct work_class pg_work_class = {
    .check = op_check,
    .test = op_test,
    .wait = op_wait,
    .result = op_result,
    .fault = op_fault,
    .destroy = op_destroy,
};
