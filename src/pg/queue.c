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
#include <string.h>

static const char call[] = "tutti_pg_all_reduce";

enum tutti_status pg_call_check(const struct tutti_pg *pg, const char *name,
                                const struct tutti_pg_call_options *given,
                                struct tutti_pg_call_options *options)
{
    *options = (struct tutti_pg_call_options){.struct_size = sizeof *options};
    if (!pg)
        return error_set(TUTTI_ERR_INVALID, "%s: pg is NULL", name);
    if (fork_detected(pg->epoch))
        return error_set(TUTTI_ERR_INVALID,
                         "%s: the group belongs to the process that created it, not to its fork",
                         name);
    return given ? options_copy(name, "tutti_pg_call_options", given, options, sizeof *options)
                 : TUTTI_OK;
}

enum tutti_status pg_list_read(const char *name, const char *type, const void **list, int count,
                               void *room, size_t size)
{
    if (!*list || count < 1 || count > TUTTI_MAX_TENSORS)
        return error_set(TUTTI_ERR_INVALID, "%s: %d tensors at %p: expected 1 to %d", name, count,
                         *list, TUTTI_MAX_TENSORS);
    return options_list(name, type, list, count, room, size);
}

void pg_op_begin(struct pg_op *op, const struct tutti_pg *pg,
                 const struct tutti_pg_call_options *options)
{
    op->references = 2;
    op->epoch = pg->epoch;
    op->op_pool = pg->op_pool;
    pg_op_pool_hold(op->op_pool);
    op->wait_timeout_ms = pg->timeout_ms;
    op->spare_cores = pg->control.spare_cores;
    op->timeout_ms = options->timeout_ms ? options->timeout_ms : pg->timeout_ms;
    op->deadline = deadline_after(op->timeout_ms);
    op->callback = options->callback;
    op->context = options->context;
    op->key.tag = options->tag;
    op->work = (struct tutti_work){.class = &pg_work_class,
                                   .title = op->title,
                                   .collective = TUTTI_COLLECTIVE_ALL_REDUCE,
                                   .tag = options->tag};
}

/* Copy the tensors. Their sizes and strides follow them in memory. */
static void tensors_copy(struct pg_op *op, const struct tutti_tensor *tensors, int count)
{
    size_t dims = op->operation.dims;
    int64_t *sizes = (int64_t *)(void *)&op->tensors[count];
    int64_t *strides = sizes + dims;
    uint64_t stride = 1; /* overflows only if a size is 0; then strides mean nothing */
    for (size_t d = dims; d-- > 0; stride *= (uint64_t)tensors[0].sizes[d]) {
        sizes[d] = tensors[0].sizes[d];
        strides[d] = tensors[0].strides ? tensors[0].strides[d] : (int64_t)stride;
    }
    memcpy(op->tensors, tensors, (size_t)count * sizeof *tensors);
    for (int i = 0; i < count; i++) {
        op->tensors[i].sizes = sizes;
        op->tensors[i].strides = strides;
    }
}

static char *put_number(char *to, size_t number)
{
    char digits[20]; /* the last digit first */
    int count = 0;
    do
        digits[count++] = (char)('0' + number % 10);
    while (number /= 10);
    while (count)
        *to++ = digits[--count];
    return to;
}

/* "all_reduce of [tensors x ]elements dtype, op". Written by hand: snprintf() took a third of the
 * time of a submission. */
static void title_make(struct pg_op *op, int count)
{
    static_assert(PG_TITLE_BYTES >= sizeof "all_reduce of 16 x 18446744073709551615 float8_e4m3, "
                                           "premul_sum",
                  "the longest title");
    char *to = stpcpy(op->title, "all_reduce of ");
    if (count > 1)
        to = stpcpy(put_number(to, (size_t)count), " x ");
    to = stpcpy(put_number(to, op->count), " ");
    to = stpcpy(stpcpy(to, tutti_dtype_name(op->dtype)), ", ");
    stpcpy(to, tutti_op_name((tutti_op_t)(uintptr_t)op->op.kind));
}

static enum tutti_status op_make(const struct tutti_pg *pg, const struct tutti_tensor *tensors,
                                 int count, const struct pg_op *checked,
                                 const struct tutti_pg_call_options *options, struct pg_op **made)
{
    size_t bytes = sizeof **made + (size_t)count * sizeof *tensors +
                   2 * checked->operation.dims * sizeof *tensors->sizes;
    struct pg_op *op = malloc(bytes);
    if (!op)
        return error_errno("%s: malloc of %zu bytes", call, bytes);
    memcpy(op, checked, offsetof(struct pg_op, outcome));
    pg_op_begin(op, pg, options);
    tensors_copy(op, tensors, count);
    title_make(op, count);
    op->work.tensors = op->tensors;
    op->work.tensor_count = count;
    *made = op;
    return TUTTI_OK;
}

/* The caller holds the group's lock. */
static enum tutti_status enqueue(struct tutti_pg *pg, const char *name, struct pg_op *op)
{
    if (pg->has_failed)
        return pg_outcome_report(&pg->fault, NULL, pg->op_pool);
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

enum tutti_status pg_stream_check(const char *name, enum tutti_device device,
                                  const struct tutti_pg_call_options *options)
{
    if (device == TUTTI_DEVICE_CUDA || options->stream == TUTTI_STREAM_DEFAULT)
        return TUTTI_OK;
    return error_set(TUTTI_ERR_INVALID,
                     "%s: stream %p: CPU tensors have no stream: expected TUTTI_STREAM_DEFAULT",
                     name, (const void *)options->stream);
}

enum tutti_status pg_submit(struct tutti_pg *pg, const char *name, struct pg_op *op,
                            const tutti_stream_t *stream, tutti_work_t **work)
{
    enum tutti_status status = TUTTI_OK;
    if (stream)
        status = pg_staging_begin(pg, op, *stream);
    if (status != TUTTI_OK) {
        error_context(status, "%s", name);
    } else {
        pthread_mutex_lock(&pg->lock);
        status = enqueue(pg, name, op);
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

static enum tutti_status all_reduce(struct tutti_pg *pg, const void *list, int count,
                                    tutti_op_t reduction, const struct tutti_pg_call_options *given,
                                    tutti_work_t **work)
{
    struct tutti_pg_call_options options;
    struct tutti_tensor room[TUTTI_MAX_TENSORS]; /* of a program with another struct_size */
    struct pg_op checked = {.epoch = 0}, *op = NULL;
    enum tutti_status status = pg_call_check(pg, call, given, &options);
    if (status == TUTTI_OK)
        status = pg_list_read(call, "tutti_tensor", &list, count, room, sizeof *room);
    const struct tutti_tensor *tensors = list;
    if (status == TUTTI_OK)
        status = pg_tensors_check(pg, tensors, count, reduction, &checked);
    if (status == TUTTI_OK)
        status = pg_stream_check(call, tensors->device, &options);
    if (status == TUTTI_OK)
        status = op_make(pg, tensors, count, &checked, &options, &op);
    if (status != TUTTI_OK)
        return status;
    const bool staged = tensors->device == TUTTI_DEVICE_CUDA;
    return pg_submit(pg, call, op, staged ? &options.stream : NULL, work);
}

enum tutti_status tutti_pg_all_reduce(tutti_pg_t *pg, const struct tutti_tensor *tensors, int count,
                                      tutti_op_t reduction,
                                      const struct tutti_pg_call_options *options,
                                      tutti_work_t **work)
{
    if (work)
        *work = NULL;
    enum tutti_status status = all_reduce(pg, tensors, count, reduction, options, work);
    if (status != TUTTI_OK)
        comm_count_refused();
    return status;
}
