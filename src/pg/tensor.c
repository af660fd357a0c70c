/* SPDX-License-Identifier: MIT */
/* Dense tensors: the checks of an all-reduce, and the encoding of the layout for other
 * ranks. */
#include "base/dtype.h"
#include "base/error.h"
#include "base/signature.h"
#include "cuda/pipe/stage.h"
#include "pg/pg.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static_assert(TUTTI_MAX_DIMS == LAYOUT_DIMS, "dimensions of a tensor");

/* [out] count: the number of elements. */
static enum tutti_status count_read(const struct tutti_tensor *tensor, size_t *count)
{
    bool empty = false;
    *count = 1;
    for (int d = 0; d < tensor->dims; d++) {
        int64_t size = tensor->sizes[d];
        if (size < 0)
            return error_set(TUTTI_ERR_INVALID, "sizes[%d] is %" PRId64 ": expected at least 0", d,
                             size);
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

size_t pg_elements(const struct tutti_tensor *tensor)
{
    size_t count = 1;
    for (int d = 0; d < tensor->dims; d++)
        count *= (size_t)tensor->sizes[d]; /* overflows only if a size is 0 */
    return count;
}

/* Set the position of each dimension in memory, the least stride first. Refuse holes and
 * overlaps. */
static enum tutti_status order_read(const struct tutti_tensor *tensor,
                                    struct layout_operation *description)
{
    int64_t expected = 1;
    for (uint8_t position = 0;; position++) {
        int next = -1;
        /* Two equal strides overlap; whichever comes first, the second one is refused. */
        for (int d = tensor->dims - 1; d >= 0; d--) {
            if (tensor->sizes[d] == 1 || description->order[d] != LAYOUT_NO_POSITION)
                continue;
            if (next < 0 || tensor->strides[d] < tensor->strides[next])
                next = d;
        }
        if (next < 0)
            return TUTTI_OK;
        if (tensor->strides[next] != expected)
            return error_set(TUTTI_ERR_INVALID,
                             "it is not dense or overlaps itself: strides[%d] is %" PRId64
                             ", expected %" PRId64 ": copy it to dense memory",
                             next, tensor->strides[next], expected);
        description->order[next] = position;
        expected *= tensor->sizes[next];
    }
}

enum tutti_status pg_tensor_describe(const void *given, enum tutti_device *device,
                                     struct coll_args *args, struct layout_operation *description)
{
    const struct tutti_tensor *tensor = given;
    const int dims = tensor->dims;
    if (dims < 0 || dims > TUTTI_MAX_DIMS || (dims && !tensor->sizes))
        return error_set(TUTTI_ERR_INVALID,
                         "%d dimensions, sizes at %p: expected 0 to %d, and their sizes", dims,
                         (const void *)tensor->sizes, TUTTI_MAX_DIMS);
    *device = tensor->device;
    args->dtype = tensor->dtype;
    enum tutti_status status = count_read(tensor, &args->count);
    if (status != TUTTI_OK)
        return status;
    memset(description->order, LAYOUT_NO_POSITION, sizeof description->order);
    description->format = LAYOUT_DENSE;
    description->pairs = description->more_pairs = 0;
    description->dims = (uint16_t)dims;
    if (dims)
        memcpy(description->sizes, tensor->sizes, (size_t)dims * sizeof *tensor->sizes);
    if (args->count > 1 && args->count <= SIGNATURE_COUNT_MAX && tensor->strides)
        return order_read(tensor, description);
    for (int d = dims - 1, position = 0; args->count > 1 && d >= 0; d--)
        if (tensor->sizes[d] != 1)
            description->order[d] = (uint8_t)position++;
    return TUTTI_OK;
}

enum tutti_status pg_memory_check(const struct tutti_pg *pg, enum tutti_device device,
                                  int device_index, const void *data, const struct coll_args *what)
{
    struct coll_args args = *what;
    args.send = data;
    args.recv = (void *)(uintptr_t)data;
    const enum tutti_status status =
        comm_check_args(pg->comm, TUTTI_COLLECTIVE_ALL_REDUCE, &args, device);
    return status == TUTTI_OK && device == TUTTI_DEVICE_CUDA
               ? cuda_stage_check(pg->stage, device_index, data,
                                  args.count * dtype_bytes(args.dtype))
               : status;
}

/* Check where the data is: on the device, and disjoint from earlier tensors. */
enum tutti_status pg_tensor_check(const struct tutti_pg *pg, const void *list, int index,
                                  const struct coll_args *what)
{
    const struct tutti_tensor *tensors = list, *tensor = &tensors[index];
    const size_t bytes = what->count * dtype_bytes(what->dtype);
    enum tutti_status status =
        pg_memory_check(pg, tensor->device, tensor->device_index, tensor->data, what);
    const uintptr_t mine = (uintptr_t)tensor->data;
    for (int other = 0; other < index && bytes && status == TUTTI_OK; other++) {
        uintptr_t theirs = (uintptr_t)tensors[other].data;
        if (mine < theirs + bytes && theirs < mine + bytes)
            status =
                error_set(TUTTI_ERR_INVALID,
                          "it is at %p and tensors[%d] at %p, %zu bytes each, so they overlap: "
                          "expected disjoint ones",
                          tensor->data, other, tensors[other].data, bytes);
    }
    return status;
}

void *pg_block(const struct pg_operation *operation, const struct pg_operand *operand, int pair,
               int index, size_t *count)
{
    const struct tutti_tensor *tensor =
        &operand->tensors[pair * operand->each + index / operand->blocks];
    *count = pg_elements(tensor) / (size_t)operand->blocks;
    return (char *)tensor->data +
           (size_t)(index % operand->blocks) * *count * dtype_bytes(operation->args.dtype);
}

/* ---- the operation --------------------------------------------------------------------------- */

/* Copy the tensors. Their strides follow them in memory. */
static void tensors_copy(struct pg_operation *operation, const struct tutti_tensor *tensors,
                         int count)
{
    size_t dims = operation->description.dims;
    int64_t *strides = (int64_t *)(void *)&operation->tensors[count];
    uint64_t stride = 1; /* overflows only if a size is 0; then strides mean nothing */
    for (size_t d = dims; d-- > 0; stride *= (uint64_t)tensors[0].sizes[d])
        strides[d] = tensors[0].strides ? tensors[0].strides[d] : (int64_t)stride;
    memcpy(operation->tensors, tensors, (size_t)count * sizeof *tensors);
    for (int i = 0; i < count; i++) {
        operation->tensors[i].sizes = operation->description.sizes;
        operation->tensors[i].strides = strides;
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

/* Written by hand: snprintf() took a third of the time of a submission. */
void pg_title_make(struct pg_operation *operation, int pairs)
{
    static_assert(PG_TITLE_BYTES >= sizeof "reduce of 16 x 18446744073709551615 float8_e4m3, "
                                           "premul_sum, root 63",
                  "the longest title");
    char *to = stpcpy(operation->title, tutti_collective_name(operation->work.collective));
    if (operation->work.collective == TUTTI_COLLECTIVE_BARRIER)
        return;
    to = stpcpy(to, " of ");
    if (pairs > 1)
        to = stpcpy(put_number(to, (size_t)pairs), " x ");
    if (operation->description.format == LAYOUT_LISTS)
        to = stpcpy(to, "lists of ");
    else
        to = stpcpy(put_number(to, operation->args.count), " ");
    to = stpcpy(to, tutti_dtype_name(operation->args.dtype));
    if (operation->args.op)
        to = stpcpy(stpcpy(to, ", "), tutti_op_name(operation->args.op));
    if (coll_is_rooted(operation->work.collective))
        to = put_number(stpcpy(to, ", root "), (size_t)operation->args.peer);
    if (pg_is_message(operation)) {
        to = stpcpy(to, operation->work.collective == TUTTI_COLLECTIVE_SEND ? " to " : " from ");
        to = operation->args.peer == TUTTI_ANY_SOURCE
                 ? stpcpy(to, "any rank")
                 : put_number(stpcpy(to, "rank "), (size_t)operation->args.peer);
    }
    *to = 0;
}

void pg_tensors_fill(struct pg_operation *operation, const struct pg_lists *lists)
{
    const int count = lists->count[0];
    tensors_copy(operation, lists->list[0], count);
    pg_title_make(operation, count);
    operation->work.tensors = operation->tensors;
    operation->work.tensor_count = count;
    operation->send = operation->recv = (struct pg_operand){operation->tensors, count, 1, 1};
    operation->inputs = (uint16_t)count;
}
