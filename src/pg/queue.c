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
#include "base/signature.h"
#include "ipc/fork.h"
#include "pg/pg.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

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
}

/* ---- the operation --------------------------------------------------------------------------- */

enum tutti_status pg_device_check(enum tutti_device device)
{
    if (device == TUTTI_DEVICE_CPU || device == TUTTI_DEVICE_CUDA)
        return TUTTI_OK;
    return error_set(TUTTI_ERR_INVALID,
                     "device is %d: expected TUTTI_DEVICE_CPU (0) or TUTTI_DEVICE_CUDA (1)",
                     (int)device);
}

enum tutti_status pg_same_kind(enum tutti_dtype first_dtype, enum tutti_dtype dtype,
                               const struct layout_operation *first,
                               const struct layout_operation *other)
{
    static const char *const devices[] = {
        [TUTTI_DEVICE_CPU] = "the CPU", [TUTTI_DEVICE_CUDA] = "a CUDA device"};
    if (first->device != other->device)
        return error_set(
            TUTTI_ERR_INVALID,
            "on %s, the first tensor on %s: expected one kind of device; copy the one or "
            "the other, or make it two calls",
            devices[other->device], devices[first->device]);
    if (first_dtype != dtype)
        return error_set(TUTTI_ERR_INVALID, "of %s, the first tensor of %s: expected one dtype",
                         tutti_dtype_name(dtype), tutti_dtype_name(first_dtype));
    return TUTTI_OK;
}

enum tutti_status pg_same_layout(const struct layout_operation *first,
                                 const struct layout_operation *other)
{
    const char *what = NULL;
    if (first->dims != other->dims)
        what = "number of dimensions";
    else if (memcmp(first->sizes, other->sizes, first->dims * sizeof *first->sizes) != 0)
        what = "sizes";
    else if (memcmp(first->order, other->order, sizeof first->order) != 0)
        what = first->format == LAYOUT_SPARSE ? "sparse and dense dimensions" : "strides";
    if (!what)
        return TUTTI_OK;
    return error_set(TUTTI_ERR_INVALID, "it and the first tensor differ in %s: expected one layout",
                     what);
}

enum tutti_status pg_list_read(const struct tutti_pg *pg, const struct pg_call *call,
                               struct pg_lists *lists, struct pg_op *op)
{
    const void *list = lists->list[0];
    const int count = lists->count[0];
    if (!list || count < 1 || count > TUTTI_MAX_TENSORS)
        return error_set(TUTTI_ERR_INVALID, "%s: %d tensors at %p: expected 1 to %d", call->name,
                         count, list, TUTTI_MAX_TENSORS);
    for (int i = 0; i < count; i++) {
        struct layout_operation other, *operation = i ? &other : &op->operation;
        const enum tutti_dtype first_dtype = op->args.dtype;
        const void *tensor = (const char *)list + (size_t)i * call->tensor_bytes;
        enum tutti_device device = TUTTI_DEVICE_CPU;
        enum tutti_status status = call->describe(tensor, &device, &op->args, operation);
        if (status == TUTTI_OK)
            status = pg_device_check(device);
        operation->device = (uint8_t)device;
        if (status == TUTTI_OK && i)
            status = pg_same_kind(first_dtype, op->args.dtype, &op->operation, &other);
        if (status == TUTTI_OK && i)
            status = pg_same_layout(&op->operation, &other);
        if (status == TUTTI_OK)
            status = call->check(pg, list, i, &op->args);
        if (status != TUTTI_OK)
            return error_context(status, "%s: tensors[%d]", call->name, i);
    }
    return TUTTI_OK;
}

/* Complete the description of the call for other ranks. */
static void sign(const struct pg_call *call, const struct coll_args *args,
                 struct layout_operation *operation)
{
    const struct coll *coll = &coll_rows[call->collective];
    const enum op_kind kind = coll->reduces ? op_kind(args->op) : (enum op_kind)0;
    uint64_t bits;
    operation->signature =
        signature_pack(call->collective, args->dtype, kind, TUTTI_ALGO_NONE, args->count);
    operation->parameter = 0;
    if (kind == OP_PREMUL_SUM) {
        memcpy(&bits, &args->op->scalar, sizeof bits);
        operation->parameter = signature_hash(bits);
    }
    if (coll->peer == COLL_ROOT)
        operation->parameter = signature_root(operation->parameter, args->peer);
}

static enum tutti_status op_make(const struct tutti_pg *pg, const struct pg_call *call,
                                 struct pg_lists *lists, const struct coll_args *args,
                                 struct pg_op **made)
{
    struct pg_op what = {.args = *args, .work.collective = call->collective};
    what.args.op = op_known(args->op);
    enum tutti_status status = call->read(pg, call, lists, &what);
    if (status != TUTTI_OK)
        return status;
    sign(call, &what.args, &what.operation);
    const size_t count = (size_t)lists->count[0] + (size_t)lists->count[1];
    const size_t bytes =
        sizeof **made + count * (call->tensor_bytes + call->more_tensor_bytes) + call->more_bytes;
    struct pg_op *op = malloc(bytes);
    if (!op)
        return error_errno("%s: malloc of %zu bytes", call->name, bytes);
    memcpy(op, &what, offsetof(struct pg_op, outcome));
    if (op_kind(op->args.op) == OP_PREMUL_SUM) {
        op->op = *op->args.op;
        op->args.op = &op->op;
    }
    call->fill(op, lists);
    *made = op;
    return TUTTI_OK;
}

/* ---- submission ------------------------------------------------------------------------------ */

/* The caller holds the group's lock. Messages have numbers of their own: ranks submit different
 * messages. */
static enum tutti_status number_in_tag(struct tutti_pg *pg, const char *name, struct pg_op *op)
{
    const bool is_message = pg_is_message(op);
    struct pg_tag *tag = (struct pg_tag *)pg_table_find(&pg->tags, op->key.tag, is_message);
    if (!tag) {
        tag = calloc(1, sizeof *tag);
        if (!tag)
            return error_errno("%s: calloc of a tag", name);
        tag->key.tag = op->key.tag;
        tag->key.sequence = is_message;
        pg_table_insert(&pg->tags, &tag->key);
    }
    op->tag_state = tag;
    op->key.sequence = op->work.sequence = is_message ? ++pg->submitted_messages : ++tag->sequence;
    return TUTTI_OK;
}

/* The caller holds the group's lock. */
static enum tutti_status enqueue(struct tutti_pg *pg, const char *name, struct pg_op *op)
{
    if (pg->has_failed || (pg->lacks_rank && !pg_is_message(op)))
        return pg_outcome_report(&pg->fault, NULL, pg->list);
    if (pg->stopping)
        return error_set(TUTTI_ERR_INVALID, "%s: the group is being destroyed", name);
    enum tutti_status status = number_in_tag(pg, name, op);
    if (status != TUTTI_OK)
        return status;
    if (op->staging)
        order_store_relaxed_u32(&pg->staged, 1);
    pg_list_append(&pg->queue, op);
    order_store_relaxed_u64(&pg->comm->calls, pg->comm->calls + 1);
    return TUTTI_OK;
}

/* CPU tensors have no stream. An operation on CUDA tensors waits for the work on its stream. */
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

/* The structs of a program with another struct_size are copied to `room`. */
union room {
    struct tutti_tensor dense[2][TUTTI_MAX_TENSORS];
    struct tutti_sparse_tensor sparse[TUTTI_MAX_TENSORS];
};

static enum tutti_status lists_read(const struct pg_call *call, struct pg_lists *lists,
                                    union room *room)
{
    void *const rooms[] = {room, room->dense[1]};
    enum tutti_status status = TUTTI_OK;
    for (int i = 0; i < 2 && status == TUTTI_OK; i++) {
        const int count = lists->count[i];
        if (lists->list[i] && count > 0 && count <= TUTTI_MAX_TENSORS) /* call->read() refuses */
            status = options_list(call->name, call->type, &lists->list[i], count, rooms[i],
                                  call->tensor_bytes);
    }
    return status;
}

static enum tutti_status submit(struct tutti_pg *pg, const struct pg_call *call,
                                struct pg_lists lists, const struct coll_args *args,
                                const struct tutti_pg_call_options *given, tutti_work_t **work)
{
    struct tutti_pg_call_options options = {.struct_size = sizeof options};
    union room room;
    struct pg_op *op = NULL;
    enum tutti_status status = options_read(pg, call->name, given, &options);
    if (status == TUTTI_OK)
        status = lists_read(call, &lists, &room);
    if (status == TUTTI_OK)
        status = op_make(pg, call, &lists, args, &op);
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

enum tutti_status pg_submit(struct tutti_pg *pg, const struct pg_call *call,
                            const struct pg_lists *lists, const struct coll_args *args,
                            const struct tutti_pg_call_options *options, tutti_work_t **work)
{
    if (work)
        *work = NULL;
    enum tutti_status status = submit(pg, call, *lists, args, options, work);
    if (status != TUTTI_OK)
        comm_count_refused();
    return status;
}
