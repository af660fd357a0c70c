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

static void operation_begin(struct pg_operation *operation, struct tutti_pg *pg,
                            const struct tutti_pg_call_options *options)
{
    operation->references = 2;
    operation->epoch = pg->epoch;
    operation->pg = pg;
    order_fetch_add_u32(&pg->references, 1); /* N1 needs no order here: the caller has one */
    operation->timeout_ms = options->timeout_ms ? options->timeout_ms : pg->timeout_ms;
    operation->deadline = deadline_after(operation->timeout_ms);
    operation->callback = options->callback;
    operation->context = options->context;
    operation->key.tag = operation->work.tag = options->tag;
    operation->work.class = &pg_work_class;
    operation->work.title = operation->title;
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
                               struct pg_lists *lists, struct pg_operation *operation)
{
    const void *list = lists->list[0];
    const int count = lists->count[0];
    if (!list || count < 1 || count > TUTTI_MAX_TENSORS)
        return error_set(TUTTI_ERR_INVALID, "%s: %d tensors at %p: expected 1 to %d", call->name,
                         count, list, TUTTI_MAX_TENSORS);
    for (int i = 0; i < count; i++) {
        struct layout_operation other, *description = i ? &other : &operation->description;
        const enum tutti_dtype first_dtype = operation->args.dtype;
        const void *tensor = (const char *)list + (size_t)i * call->tensor_bytes;
        enum tutti_device device = TUTTI_DEVICE_CPU;
        enum tutti_status status = call->describe(tensor, &device, &operation->args, description);
        if (status == TUTTI_OK)
            status = pg_device_check(device);
        description->device = (uint8_t)device;
        if (status == TUTTI_OK && i)
            status =
                pg_same_kind(first_dtype, operation->args.dtype, &operation->description, &other);
        if (status == TUTTI_OK && i)
            status = pg_same_layout(&operation->description, &other);
        if (status == TUTTI_OK)
            status = call->check(pg, list, i, &operation->args);
        if (status != TUTTI_OK)
            return error_context(status, "%s: tensors[%d]", call->name, i);
    }
    return TUTTI_OK;
}

/* Complete the description of the call for other ranks. */
static void sign(const struct pg_call *call, const struct coll_args *args,
                 struct layout_operation *description)
{
    const struct coll *coll = &coll_rows[call->collective];
    const enum op_kind kind = coll->reduces ? op_kind(args->op) : (enum op_kind)0;
    description->signature =
        signature_pack(call->collective, args->dtype, kind, TUTTI_ALGO_NONE, args->count);
    description->parameter = 0;
    if (kind == OP_PREMUL_SUM)
        description->parameter = signature_hash(
            args->op->memory ? OP_SCALAR_IN_MEMORY
                             : op_scalar_of(args->op, dtype_component(args->dtype)).whole);
    if (coll->peer == COLL_ROOT)
        description->parameter = signature_root(description->parameter, args->peer);
}

static enum tutti_status operation_make(const struct tutti_pg *pg, const struct pg_call *call,
                                        struct pg_lists *lists, const struct coll_args *args,
                                        struct pg_operation **made)
{
    struct pg_operation what = {.args = *args, .work.collective = call->collective};
    what.args.op = op_known(args->op);
    enum tutti_status status = call->read(pg, call, lists, &what);
    if (status != TUTTI_OK)
        return status;
    sign(call, &what.args, &what.description);
    const size_t count = (size_t)lists->count[0] + (size_t)lists->count[1];
    const size_t bytes =
        sizeof **made + count * (call->tensor_bytes + call->more_tensor_bytes) + call->more_bytes;
    struct pg_operation *operation = malloc(bytes);
    if (!operation)
        return error_errno("%s: malloc of %zu bytes", call->name, bytes);
    memcpy(operation, &what, offsetof(struct pg_operation, outcome));
    if (op_kind(operation->args.op) == OP_PREMUL_SUM) {
        operation->op = *operation->args.op;
        operation->args.op = &operation->op;
    }
    call->fill(operation, lists);
    *made = operation;
    return TUTTI_OK;
}

/* ---- submission ------------------------------------------------------------------------------ */

/* The caller holds the group's lock. Messages have numbers of their own: ranks submit different
 * messages. */
static enum tutti_status number_in_tag(struct tutti_pg *pg, const char *name,
                                       struct pg_operation *operation)
{
    const bool is_message = pg_is_message(operation);
    struct pg_tag *tag = (struct pg_tag *)pg_map_find(&pg->tags, operation->key.tag, is_message);
    if (!tag) {
        tag = calloc(1, sizeof *tag);
        if (!tag)
            return error_errno("%s: calloc of a tag", name);
        tag->key.tag = operation->key.tag;
        tag->key.sequence = is_message;
        pg_map_insert(&pg->tags, &tag->key);
    }
    operation->tag_state = tag;
    operation->key.sequence = operation->work.sequence =
        is_message ? ++pg->submitted_messages : ++tag->sequence;
    return TUTTI_OK;
}

/* The caller holds the group's lock. */
static enum tutti_status enqueue(struct tutti_pg *pg, const char *name,
                                 struct pg_operation *operation)
{
    if (pg->has_failed || (pg->lacks_rank && !pg_is_message(operation)))
        return pg_outcome_report(&pg->fault, NULL, pg->list);
    if (pg->stopping)
        return error_set(TUTTI_ERR_INVALID, "%s: the group is being destroyed", name);
    enum tutti_status status = number_in_tag(pg, name, operation);
    if (status != TUTTI_OK)
        return status;
    if (operation->cuda)
        order_store_relaxed_u32(&pg->has_cuda, 1);
    pg_list_append(&pg->queue, operation);
    order_store_relaxed_u64(&pg->comm->calls, pg->comm->calls + 1);
    return TUTTI_OK;
}

/* CPU tensors have no stream. An operation on CUDA tensors waits for the work on its stream. */
static enum tutti_status stream_take(const struct tutti_pg *pg, const char *name,
                                     struct pg_operation *operation, tutti_stream_t stream)
{
    if (operation->description.device == TUTTI_DEVICE_CUDA) {
        enum tutti_status status = pg_cuda_begin(pg, operation, stream);
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
    struct tutti_tensor dense[2][WORLD_RANKS];
    struct tutti_sparse_tensor sparse[WORLD_RANKS];
};

static enum tutti_status lists_read(const struct tutti_pg *pg, const struct pg_call *call,
                                    struct pg_lists *lists, union room *room)
{
    void *const rooms[] = {room, room->dense[1]};
    enum tutti_status status = TUTTI_OK;
    for (int i = 0; i < 2 && status == TUTTI_OK; i++) {
        const int count = lists->count[i];
        if (lists->list[i] && count > 0 && count <= pg_most_tensors(pg)) /* call->read() refuses */
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
    struct pg_operation *operation = NULL;
    enum tutti_status status = options_read(pg, call->name, given, &options);
    if (status == TUTTI_OK)
        status = lists_read(pg, call, &lists, &room);
    if (status == TUTTI_OK)
        status = operation_make(pg, call, &lists, args, &operation);
    if (status != TUTTI_OK)
        return status;
    operation_begin(operation, pg, &options);
    status = stream_take(pg, call->name, operation, options.stream);
    if (status == TUTTI_OK) {
        pthread_mutex_lock(&pg->lock);
        status = enqueue(pg, call->name, operation);
        pthread_mutex_unlock(&pg->lock);
    }
    if (status != TUTTI_OK)
        pg_operation_release(operation); /* the engine's reference */
    if (status == TUTTI_OK && work)
        *work = &operation->work;
    else
        pg_operation_release(operation);
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
