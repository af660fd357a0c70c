/* SPDX-License-Identifier: MIT */
/* The life of an operation. It keeps the memory of its group, so it may outlive the group. */
#include "base/error.h"
#include "base/invariant.h"
#include "base/order.h"
#include "ipc/fork.h"
#include "ipc/futex.h"
#include "pg/pg.h"

#include <stdlib.h>

/* Keep the memory for later results, except for a group that is being destroyed. */
static void result_give(struct tutti_pg *pg, struct sparse_memory memory)
{
    pthread_mutex_lock(&pg->lock);
    bool keep = memory.bytes && !pg->stopping && pg->idle_count < PG_IDLE_RESULTS;
    if (keep)
        pg->idle[pg->idle_count++] = memory;
    pthread_mutex_unlock(&pg->lock);
    if (!keep)
        sparse_memory_fini(&memory);
}

void pg_release(struct tutti_pg *pg)
{
    if (order_fetch_add_u32(&pg->references, UINT32_MAX) != 1) /* N1, N1a if it is the last */
        return;
    pthread_mutex_destroy(&pg->lock);
    local_release(pg->arena);
    free(pg);
}

static void op_free(struct pg_op *op)
{
    if (op->sparse)
        result_give(op->pg, op->sparse->result.memory);
    pg_staging_free(op->staging);
    pg_release(op->pg);
    free(op);
}

void pg_op_release(struct pg_op *op)
{
    if (order_fetch_add_u32(&op->references, UINT32_MAX) == 1) /* N1; N1a for the last reference */
        op_free(op);
}

/* The group's thread is the only caller of the communicator. */
void pg_record(struct tutti_pg *pg, struct pg_op *op)
{
    const bool is_message = pg_is_message(op);
    const struct recorder_operation operation = {
        .sequence = op->key.sequence,
        .signature = op->operation.signature,
        .parameter = is_message ? 1 + (uint32_t)op->args.peer : op->operation.parameter,
        .tag = op->key.tag,
        .kind = is_message ? RECORD_MESSAGE : RECORD_GROUP};
    recorder_start(&pg->comm->recorder, &operation, RECORD_SUBMITTED, ticks_now());
    op->record = pg->comm->recorder.number;
}

/* Calls the callback, then wakes the waiting threads. Releases the engine's reference. */
static void op_complete(struct pg_op *op, const struct pg_outcome *outcome)
{
    invariant(order_load_relaxed_u32(&op->state) != PG_DONE);
    op->outcome.status = outcome->status;
    if (outcome->status != TUTTI_OK)
        op->outcome = *outcome;
    order_store_release_u32(&op->has_outcome, 1); /* H7 pairs H7a: the outcome, a sparse result */
    if (op->callback)
        op->callback(op->context, &op->work, outcome->status);
    /* H5 pairs H5a: outcome and tensors. It is an exchange, so that no thread that starts to wait
     * meanwhile is missed. */
    if (order_exchange_u32(&op->state, PG_DONE) == PG_AWAITED)
        futex_wake_all(&op->state);
    if (op->staging)
        pg_staging_release_streams(op);
    pg_op_release(op);
}

void pg_complete(struct tutti_pg *pg, struct pg_op *op, const struct pg_outcome *outcome)
{
    struct pg_outcome expired;
    if (op->staging)
        pg_staging_end(pg, op);
    if (op->staging && pg_staging_wait_expired(op)) {
        expired = *outcome;
        expired.status = TUTTI_ERR_TIMEOUT;
        expired.rank = expired.peer = pg->control.rank;
        expired.wait_expired = true;
        outcome = &expired;
    }
    recorder_end_later(&pg->comm->recorder, op->record, outcome->status);
    op_complete(op, outcome);
}

enum tutti_status pg_op_check(const struct pg_op *op, const char *call)
{
    if (fork_detected(op->epoch))
        return error_set(TUTTI_ERR_INVALID,
                         "%s: the work belongs to the process that submitted it, not to its fork",
                         call);
    return TUTTI_OK;
}

enum tutti_status pg_op_status(const struct pg_op *op)
{
    return op->outcome.status == TUTTI_OK ? TUTTI_OK
                                          : pg_outcome_report(&op->outcome, op, op->pg->list);
}

bool pg_op_is_done(const struct pg_op *op)
{
    return order_load_acquire_u32(&op->state) == PG_DONE; /* H5a pairs H5 */
}

enum tutti_status pg_op_poll(const struct pg_op *op, bool *done)
{
    *done = pg_op_is_done(op);
    return *done ? pg_op_status(op) : TUTTI_OK;
}
