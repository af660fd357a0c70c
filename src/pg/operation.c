/* SPDX-License-Identifier: MIT */
/* The life of an operation. It keeps the memory of its group, so it may outlive the group. */
#include "base/error.h"
#include "base/invariant.h"
#include "base/order.h"
#include "ipc/fork.h"
#include "ipc/futex.h"
#include "peers/segments.h"
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
    segments_leave(pg->arena, 0);
    free(pg);
}

static void operation_free(struct pg_operation *operation)
{
    if (operation->sparse)
        result_give(operation->pg, operation->sparse->result.memory);
    pg_cuda_free(operation->cuda);
    pg_release(operation->pg);
    free(operation);
}

void pg_operation_release(struct pg_operation *operation)
{
    /* N1; N1a for the last reference */
    if (order_fetch_add_u32(&operation->references, UINT32_MAX) == 1)
        operation_free(operation);
}

/* The group's thread is the only caller of the communicator. */
void pg_record(struct tutti_pg *pg, struct pg_operation *operation)
{
    const bool is_message = pg_is_message(operation);
    const struct recorder_operation record = {.sequence = operation->key.sequence,
                                              .signature = operation->description.signature,
                                              .parameter = is_message
                                                               ? 1 + (uint32_t)operation->args.peer
                                                               : operation->description.parameter,
                                              .tag = operation->key.tag,
                                              .kind = is_message ? RECORD_MESSAGE : RECORD_GROUP};
    recorder_start(&pg->comm->recorder, &record, RECORD_SUBMITTED, ticks_now());
    operation->record = pg->comm->recorder.number;
}

/* Calls the callback, then wakes the waiting threads. Releases the engine's reference. */
static void operation_complete(struct pg_operation *operation, const struct pg_outcome *outcome)
{
    invariant(order_load_relaxed_u32(&operation->state) != PG_DONE);
    operation->outcome.status = outcome->status;
    if (outcome->status != TUTTI_OK)
        operation->outcome = *outcome;
    /* H7 pairs H7a: the outcome, a sparse result */
    order_store_release_u32(&operation->has_outcome, 1);
    if (operation->callback)
        operation->callback(operation->context, &operation->work, outcome->status);
    /* H5 pairs H5a: outcome and tensors. It is an exchange, so that no thread that starts to wait
     * meanwhile is missed. */
    if (order_exchange_u32(&operation->state, PG_DONE) == PG_AWAITED)
        futex_wake_all(&operation->state);
    if (operation->cuda)
        cuda_fence_open(operation->cuda->fence); /* its streams go on */
    pg_operation_release(operation);
}

void pg_complete(struct tutti_pg *pg, struct pg_operation *operation,
                 const struct pg_outcome *outcome)
{
    struct pg_outcome expired;
    if (operation->cuda)
        pg_cuda_end(pg, operation);
    if (operation->cuda && cuda_fence_wait_expired(operation->cuda->fence)) {
        expired = *outcome;
        expired.status = TUTTI_ERR_TIMEOUT;
        expired.rank = expired.peer = pg->control.rank;
        expired.wait_expired = true;
        outcome = &expired;
    }
    recorder_end_later(&pg->comm->recorder, operation->record, outcome->status);
    operation_complete(operation, outcome);
}

enum tutti_status pg_operation_check(const struct pg_operation *operation, const char *call)
{
    if (fork_detected(operation->epoch))
        return error_set(TUTTI_ERR_INVALID,
                         "%s: the work belongs to the process that submitted it, not to its fork",
                         call);
    return TUTTI_OK;
}

enum tutti_status pg_operation_status(const struct pg_operation *operation)
{
    return operation->outcome.status == TUTTI_OK
               ? TUTTI_OK
               : pg_outcome_report(&operation->outcome, operation, operation->pg->list);
}

bool pg_operation_is_done(const struct pg_operation *operation)
{
    return order_load_acquire_u32(&operation->state) == PG_DONE; /* H5a pairs H5 */
}

enum tutti_status pg_operation_poll(const struct pg_operation *operation, bool *done)
{
    *done = pg_operation_is_done(operation);
    return *done ? pg_operation_status(operation) : TUTTI_OK;
}
