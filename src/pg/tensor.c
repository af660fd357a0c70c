/* SPDX-License-Identifier: MIT */
/* The checks of dense tensors, and the encoding of their layout for other ranks. */
#include "base/dtype.h"
#include "base/error.h"
#include "base/signature.h"
#include "cuda/staging/stage.h"
#include "pg/pg.h"

#include <inttypes.h>
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
    if (tensor->dims)
        memcpy(operation->sizes, tensor->sizes, (size_t)tensor->dims * sizeof *tensor->sizes);
    if (*count > 1 && *count <= SIGNATURE_COUNT_MAX && tensor->strides)
        return order_read(tensor, index, operation);
    for (int d = tensor->dims - 1, position = 0; *count > 1 && d >= 0; d--)
        if (tensor->sizes[d] != 1)
            operation->order[d] = (uint8_t)position++;
    return TUTTI_OK;
}

static const char *device_text(enum tutti_device device)
{
    return device == TUTTI_DEVICE_CUDA ? "a CUDA device" : "the CPU";
}

/* Compare the layout of one tensor of the list with that of the first one. */
static enum tutti_status same_check(const struct tutti_tensor *tensors, int index,
                                    const struct layout_operation *first,
                                    const struct layout_operation *other)
{
    const char *what = NULL;
    size_t dims = first->dims * sizeof *first->sizes;
    if (tensors[index].device != tensors[0].device)
        return error_set(TUTTI_ERR_INVALID,
                         "%s: tensors[%d] is of %s, tensors[0] of %s: expected one kind of device; "
                         "copy the one or the other, or make it two calls",
                         call, index, device_text(tensors[index].device),
                         device_text(tensors[0].device));
    if (tensors[index].dtype != tensors[0].dtype)
        return error_set(TUTTI_ERR_INVALID,
                         "%s: tensors[%d] is of %s, tensors[0] of %s: expected one dtype", call,
                         index, tutti_dtype_name(tensors[index].dtype),
                         tutti_dtype_name(tensors[0].dtype));
    if (first->dims != other->dims)
        what = "number of dimensions";
    else if (memcmp(first->sizes, other->sizes, dims) != 0)
        what = "sizes";
    else if (memcmp(first->order, other->order, sizeof first->order) != 0)
        what = "strides";
    if (!what)
        return TUTTI_OK;
    return error_set(TUTTI_ERR_INVALID,
                     "%s: tensors[%d] and tensors[0] differ in %s: expected one layout", call,
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
    enum tutti_status status =
        comm_all_reduce_check(pg->comm, tensor->data, count, tensor->dtype, op,
                              cuda ? TUTTI_DEVICE_CUDA : TUTTI_DEVICE_CPU);
    if (status == TUTTI_OK && cuda)
        status = cuda_stage_check(pg->stage, tensor->device_index, tensor->data,
                                  count * dtype_bytes(tensor->dtype));
    return status == TUTTI_OK ? status : error_context(status, "%s: tensors[%d]", call, index);
}

enum tutti_status pg_tensors_check(const struct tutti_pg *pg, const struct tutti_tensor *tensors,
                                   int count, tutti_op_t op, struct pg_op *what)
{
    op = op_known(op);
    for (int i = 0; i < count; i++) {
        struct layout_operation other;
        size_t elements;
        enum tutti_status status = tensor_check(&tensors[i], i);
        if (status == TUTTI_OK)
            status = layout_read(&tensors[i], i, &elements, i ? &other : &what->operation);
        if (status == TUTTI_OK && i)
            status = same_check(tensors, i, &what->operation, &other);
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
    what->operation.device = (uint8_t)tensors[0].device;
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
