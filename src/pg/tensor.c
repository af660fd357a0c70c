/* SPDX-License-Identifier: MIT */
/* All-reduces of dense tensors, the call: the checks, and the encoding of the layout for other
 * ranks. */
#include "base/dtype.h"
#include "base/error.h"
#include "base/signature.h"
#include "cuda/staging/stage.h"
#include "pg/pg.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static_assert(TUTTI_MAX_DIMS == LAYOUT_DIMS, "dimensions of a tensor");

static const char call[] = "tutti_pg_all_reduce";

static enum tutti_status tensor_check(const struct tutti_tensor *tensor, int index)
{
    if (tensor->device != TUTTI_DEVICE_CPU && tensor->device != TUTTI_DEVICE_CUDA)
        return error_set(TUTTI_ERR_INVALID,
                         "%s: tensors[%d].device is %d: expected TUTTI_DEVICE_CPU (0) or "
                         "TUTTI_DEVICE_CUDA (1)",
                         call, index, (int)tensor->device);
    if (tensor->dims < 0 || tensor->dims > TUTTI_MAX_DIMS || (tensor->dims && !tensor->sizes))
        return error_set(TUTTI_ERR_INVALID,
                         "%s: tensors[%d] has %d dimensions, sizes at %p: expected 0 to %d, and "
                         "their sizes",
                         call, index, tensor->dims, (const void *)tensor->sizes, TUTTI_MAX_DIMS);
    return TUTTI_OK;
}

/* [out] count: the number of elements. */
static enum tutti_status count_read(const struct tutti_tensor *tensor, int index, size_t *count)
{
    bool empty = false;
    *count = 1;
    for (int d = 0; d < tensor->dims; d++) {
        int64_t size = tensor->sizes[d];
        if (size < 0)
            return error_set(TUTTI_ERR_INVALID,
                             "%s: tensors[%d].sizes[%d] is %" PRId64 ": expected at least 0", call,
                             index, d, size);
        empty |= size == 0;
        /* If one size is 0, the others may have any value. */
        if (size && *count > SIGNATURE_COUNT_MAX / (uint64_t)size)
            *count = SIZE_MAX;
        else if (size)
            *count *= (size_t)size;
    }
    if (empty)
        *count = 0;
    return TUTTI_OK;
}

/* Set the position of each dimension in memory, the least stride first. Refuse holes and
 * overlaps. */
static enum tutti_status order_read(const struct tutti_tensor *tensor, int index,
                                    struct layout_operation *operation)
{
    int64_t expected = 1;
    for (uint8_t position = 0;; position++) {
        int next = -1;
        /* Two equal strides overlap; whichever comes first, the second one is refused. */
        for (int d = tensor->dims - 1; d >= 0; d--) {
            if (tensor->sizes[d] == 1 || operation->order[d] != LAYOUT_NO_POSITION)
                continue;
            if (next < 0 || tensor->strides[d] < tensor->strides[next])
                next = d;
        }
        if (next < 0)
            return TUTTI_OK;
        if (tensor->strides[next] != expected)
            return error_set(TUTTI_ERR_INVALID,
                             "%s: tensors[%d] is not dense or overlaps itself: strides[%d] is "
                             "%" PRId64 ", expected %" PRId64 ": copy it to dense memory",
                             call, index, next, tensor->strides[next], expected);
        operation->order[next] = position;
        expected *= tensor->sizes[next];
    }
}

static enum tutti_status layout_read(const struct tutti_tensor *tensor, int index, size_t *count,
                                     struct layout_operation *operation)
{
    enum tutti_status status = count_read(tensor, index, count);
    if (status != TUTTI_OK)
        return status;
    memset(operation->order, LAYOUT_NO_POSITION, sizeof operation->order);
    operation->dims = (uint16_t)tensor->dims;
    operation->device = (uint8_t)tensor->device;
    if (tensor->dims)
        memcpy(operation->sizes, tensor->sizes, (size_t)tensor->dims * sizeof *tensor->sizes);
    if (*count > 1 && *count <= SIGNATURE_COUNT_MAX && tensor->strides)
        return order_read(tensor, index, operation);
    for (int d = tensor->dims - 1, position = 0; *count > 1 && d >= 0; d--)
        if (tensor->sizes[d] != 1)
            operation->order[d] = (uint8_t)position++;
    return TUTTI_OK;
}

enum tutti_status pg_same_check(const char *name, int index, enum tutti_dtype first_dtype,
                                enum tutti_dtype dtype, const struct layout_operation *first,
                                const struct layout_operation *other)
{
    static const char *const devices[] = {
        [TUTTI_DEVICE_CPU] = "the CPU", [TUTTI_DEVICE_CUDA] = "a CUDA device"};
    const char *what = NULL;
    size_t dims = (first->dims < LAYOUT_DIMS ? first->dims : LAYOUT_DIMS) * sizeof *first->sizes;
    if (first->device != other->device)
        return error_set(TUTTI_ERR_INVALID,
                         "%s: tensors[%d] is of %s, tensors[0] of %s: expected one kind of device; "
                         "copy the one or the other, or make it two calls",
                         name, index, devices[other->device], devices[first->device]);
    if (first_dtype != dtype)
        return error_set(TUTTI_ERR_INVALID,
                         "%s: tensors[%d] is of %s, tensors[0] of %s: expected one dtype", name,
                         index, tutti_dtype_name(dtype), tutti_dtype_name(first_dtype));
    if (first->dims != other->dims)
        what = "number of dimensions";
    else if (memcmp(first->sizes, other->sizes, dims) != 0)
        what = "sizes";
    else if (memcmp(first->order, other->order, sizeof first->order) != 0)
        what = first->dims == LAYOUT_SPARSE ? "sparse and dense dimensions" : "strides";
    if (!what)
        return TUTTI_OK;
    return error_set(TUTTI_ERR_INVALID,
                     "%s: tensors[%d] and tensors[0] differ in %s: expected one layout", name,
                     index, what);
}

static enum tutti_status disjoint_check(const struct tutti_tensor *tensors, int index, size_t bytes)
{
    uintptr_t mine = (uintptr_t)tensors[index].data;
    for (int other = 0; other < index && bytes; other++) {
        uintptr_t theirs = (uintptr_t)tensors[other].data;
        if (mine < theirs + bytes && theirs < mine + bytes)
            return error_set(TUTTI_ERR_INVALID,
                             "%s: tensors[%d] at %p and tensors[%d] at %p, %zu bytes each, "
                             "overlap: expected disjoint ones",
                             call, other, tensors[other].data, index, tensors[index].data, bytes);
    }
    return TUTTI_OK;
}

/* Check where the data is. */
static enum tutti_status data_check(const struct tutti_pg *pg, const struct tutti_tensor *tensor,
                                    int index, size_t count, tutti_op_t op)
{
    const bool cuda = tensor->device == TUTTI_DEVICE_CUDA;
    const struct coll_args args = {tensor->data, tensor->data, count, tensor->dtype, op};
    enum tutti_status status =
        comm_check_args(pg->comm, TUTTI_COLLECTIVE_ALL_REDUCE, &args, tensor->device);
    if (status == TUTTI_OK && cuda)
        status = cuda_stage_check(pg->stage, tensor->device_index, tensor->data,
                                  count * dtype_bytes(tensor->dtype));
    return status == TUTTI_OK ? status : error_context(status, "%s: tensors[%d]", call, index);
}

/* Check the list. [out] what: dtype, count, reduction and layout of the operation. */
static enum tutti_status tensors_check(const struct tutti_pg *pg,
                                       const struct tutti_tensor *tensors, int count, tutti_op_t op,
                                       struct pg_op *what)
{
    op = op_known(op);
    for (int i = 0; i < count; i++) {
        struct layout_operation other;
        size_t elements;
        enum tutti_status status = tensor_check(&tensors[i], i);
        if (status == TUTTI_OK)
            status = layout_read(&tensors[i], i, &elements, i ? &other : &what->operation);
        if (status == TUTTI_OK && i)
            status = pg_same_check(call, i, tensors[0].dtype, tensors[i].dtype, &what->operation,
                                   &other);
        if (status == TUTTI_OK)
            status = data_check(pg, &tensors[i], i, elements, op);
        if (status == TUTTI_OK)
            status = disjoint_check(tensors, i, elements * dtype_bytes(tensors[i].dtype));
        if (status != TUTTI_OK)
            return status;
        what->count = elements;
    }
    enum op_kind kind = op_kind(op);
    what->dtype = tensors[0].dtype;
    what->operation.inputs = (uint8_t)count;
    what->operation.signature = signature_pack(TUTTI_COLLECTIVE_ALL_REDUCE, what->dtype, kind,
                                               TUTTI_ALGO_NONE, what->count);
    what->op.kind = kind;
    if (kind == OP_PREMUL_SUM) {
        uint64_t bits;
        what->op.scalar = op->scalar;
        memcpy(&bits, &op->scalar, sizeof bits);
        what->operation.parameter = signature_hash(bits);
    }
    return TUTTI_OK;
}

/* ---- the operation --------------------------------------------------------------------------- */

/* Copy the tensors. Their strides follow them in memory. */
static void tensors_copy(struct pg_op *op, const struct tutti_tensor *tensors, int count)
{
    size_t dims = op->operation.dims;
    int64_t *strides = (int64_t *)(void *)&op->tensors[count];
    uint64_t stride = 1; /* overflows only if a size is 0; then strides mean nothing */
    for (size_t d = dims; d-- > 0; stride *= (uint64_t)tensors[0].sizes[d])
        strides[d] = tensors[0].strides ? tensors[0].strides[d] : (int64_t)stride;
    memcpy(op->tensors, tensors, (size_t)count * sizeof *tensors);
    for (int i = 0; i < count; i++) {
        op->tensors[i].sizes = op->operation.sizes;
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

static enum tutti_status op_make(const struct tutti_pg *pg, const void *list, int count,
                                 tutti_op_t reduction, struct pg_op **made)
{
    const struct tutti_tensor *tensors = list;
    struct pg_op checked = {.epoch = 0};
    enum tutti_status status = tensors_check(pg, tensors, count, reduction, &checked);
    if (status != TUTTI_OK)
        return status;
    size_t bytes = sizeof **made + (size_t)count * sizeof *tensors +
                   checked.operation.dims * sizeof *tensors->strides;
    struct pg_op *op = malloc(bytes);
    if (!op)
        return error_errno("%s: malloc of %zu bytes", call, bytes);
    memcpy(op, &checked, offsetof(struct pg_op, outcome));
    tensors_copy(op, tensors, count);
    title_make(op, count);
    op->work.tensors = op->tensors;
    op->work.tensor_count = count;
    *made = op;
    return TUTTI_OK;
}

enum tutti_status tutti_pg_all_reduce(tutti_pg_t *pg, const struct tutti_tensor *tensors, int count,
                                      tutti_op_t reduction,
                                      const struct tutti_pg_call_options *options,
                                      tutti_work_t **work)
{
    static const struct pg_call all_reduce = {call, "tutti_tensor", sizeof *tensors, op_make};
    return pg_submit(pg, &all_reduce, tensors, count, reduction, options, work);
}
