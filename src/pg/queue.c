/* SPDX-License-Identifier: MIT */
/*
 * Submission: check everything and make the work. Only then, under the group's lock, does the
 * operation get its tag's next number and its position in the queue. The submitting thread and the
 * group's thread hold the lock for a few instructions only, so no thread waits long for it.
 */
#include "base/deadline.h"
#include "base/error.h"
#include "base/options.h"
#include "base/order.h"
#include "ipc/fork.h"
#include "pg/pg.h"

#include <stdlib.h>

/* Check that the group is alive in this process. [out] options: those given, or the defaults. */
static enum tutti_status options_read(const struct tutti_pg *pg, const char *name,
                                      const struct tutti_pg_call_options *given,
                                      struct tutti_pg_call_options *options)
{
    if (!pg)
        return error_set(TUTTI_ERR_INVALID, "%s: pg is NULL", name);
    if (fork_detected(pg->epoch))
        return error_set(TUTTI_ERR_INVALID,
                         "%s: the group belongs to the process that created it, not to its fork",
                         name);
    return given ? options_copy(name, "tutti_pg_call_options", given, options, sizeof *options)
                 : TUTTI_OK;
}

static void op_begin(struct pg_op *op, struct tutti_pg *pg,
                     const struct tutti_pg_call_options *options)
{
    op->references = 2;
    op->epoch = pg->epoch;
    op->pg = pg;
    order_fetch_add_u32(&pg->references, 1); /* N1 needs no order here: the caller has one */
    op->timeout_ms = options->timeout_ms ? options->timeout_ms : pg->timeout_ms;
    op->deadline = deadline_after(op->timeout_ms);
    op->callback = options->callback;
    op->context = options->context;
    op->key.tag = op->work.tag = options->tag;
    op->work.class = &pg_work_class;
    op->work.title = op->title;
    op->work.collective = TUTTI_COLLECTIVE_ALL_REDUCE;
}

/* The caller holds the group's lock. */
static enum tutti_status enqueue(struct tutti_pg *pg, const char *name, struct pg_op *op)
{
    if (pg->has_failed)
        return pg_outcome_report(&pg->fault, NULL, pg->list);
    if (pg->stopping)
        return error_set(TUTTI_ERR_INVALID, "%s: the group is being destroyed", name);
    struct pg_tag *tag = (struct pg_tag *)pg_table_find(&pg->tags, op->key.tag, 0);
    if (!tag) {
        tag = calloc(1, sizeof *tag);
        if (!tag)
            return error_errno("%s: calloc of a tag", name);
        tag->key.tag = op->key.tag;
        pg_table_insert(&pg->tags, &tag->key);
    }
    op->tag_state = tag;
    op->key.sequence = op->work.sequence = ++tag->sequence;
    pg_list_append(&pg->queue, op);
    order_store_relaxed_u64(&pg->comm->calls, pg->comm->calls + 1);
    return TUTTI_OK;
}

/* CPU tensors have no stream. The operation of CUDA tensors waits for the work that is on it. */
static enum tutti_status stream_take(const struct tutti_pg *pg, const char *name, struct pg_op *op,
                                     tutti_stream_t stream)
{
    if (op->operation.device == TUTTI_DEVICE_CUDA) {
        enum tutti_status status = pg_staging_begin(pg, op, stream);
        return status == TUTTI_OK ? status : error_context(status, "%s", name);
    }
    if (stream == TUTTI_STREAM_DEFAULT)
        return TUTTI_OK;
    return error_set(TUTTI_ERR_INVALID,
                     "%s: stream %p: CPU tensors have no stream: expected TUTTI_STREAM_DEFAULT",
                     name, (const void *)stream);
}

static enum tutti_status submit(struct tutti_pg *pg, const struct pg_call *call, const void *list,
                                int count, tutti_op_t reduction,
                                const struct tutti_pg_call_options *given, tutti_work_t **work)
{
    struct tutti_pg_call_options options = {.struct_size = sizeof options};
    union {
        struct tutti_tensor dense[TUTTI_MAX_TENSORS];
        struct tutti_sparse_tensor sparse[TUTTI_MAX_TENSORS];
    } room; /* of a program with another struct_size */
    struct pg_op *op = NULL;
    enum tutti_status status = options_read(pg, call->name, given, &options);
    if (status == TUTTI_OK && (!list || count < 1 || count > TUTTI_MAX_TENSORS))
        status = error_set(TUTTI_ERR_INVALID, "%s: %d tensors at %p: expected 1 to %d", call->name,
                           count, list, TUTTI_MAX_TENSORS);
    if (status == TUTTI_OK)
        status = options_list(call->name, call->type, &list, count, &room, call->tensor_bytes);
    if (status == TUTTI_OK)
        status = call->make(pg, list, count, reduction, &op);
    if (status != TUTTI_OK)
        return status;
    op_begin(op, pg, &options);
    status = stream_take(pg, call->name, op, options.stream);
    if (status == TUTTI_OK) {
        pthread_mutex_lock(&pg->lock);
        status = enqueue(pg, call->name, op);
        pthread_mutex_unlock(&pg->lock);
    }
    if (status != TUTTI_OK)
        pg_op_release(op); /* the engine's reference */
    if (status == TUTTI_OK && work)
        *work = &op->work;
    else
        pg_op_release(op);
    if (status == TUTTI_OK)
        pg_control_wake_if_asleep(pg->control.own);
    return status;
}

enum tutti_status pg_submit(struct tutti_pg *pg, const struct pg_call *call, const void *tensors,
                            int count, tutti_op_t reduction,
                            const struct tutti_pg_call_options *options, tutti_work_t **work)
{
    if (work)
        *work = NULL;
    enum tutti_status status = submit(pg, call, tensors, count, reduction, options, work);
    if (status != TUTTI_OK)
        comm_count_refused();
    return status;
}
