/* SPDX-License-Identifier: MIT */
/* Sparse sums, the calls: the checks before a submission, and access to the result. */
#include "base/dtype.h"
#include "base/error.h"
#include "base/options.h"
#include "base/order.h"
#include "base/signature.h"
#include "pg/pg.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char call[] = "tutti_pg_all_reduce_sparse";

static struct sparse_shape shape_of(const struct tutti_sparse_tensor *tensor)
{
    return (struct sparse_shape){tensor->dtype, tensor->sparse_dim, tensor->dense_dim,
                                 tensor->sizes};
}

/* ---- check ----------------------------------------------------------------------------------- */

static enum tutti_status header_check(const struct tutti_sparse_tensor *tensor)
{
    if (tensor->device != TUTTI_DEVICE_CPU && tensor->device != TUTTI_DEVICE_CUDA)
        return error_set(TUTTI_ERR_INVALID,
                         "its device is %d: expected TUTTI_DEVICE_CPU (0) or TUTTI_DEVICE_CUDA (1)",
                         (int)tensor->device);
    const struct sparse_shape shape = shape_of(tensor);
    return sparse_shape_check(&shape);
}

/* Describe a checked tensor. A position in memory tells sparse dimensions, 0, from dense ones, 1.
 */
static struct layout_operation operation_of(const struct tutti_sparse_tensor *tensor)
{
    struct layout_operation operation = {
        .signature =
            signature_pack(TUTTI_COLLECTIVE_ALL_REDUCE, tensor->dtype, OP_SUM, TUTTI_ALGO_NONE, 0),
        .device = (uint8_t)tensor->device,
        .dims = LAYOUT_SPARSE,
    };
    memset(operation.order, LAYOUT_NO_POSITION, sizeof operation.order);
    for (int d = 0; d < tensor->sparse_dim + tensor->dense_dim; d++) {
        operation.sizes[d] = tensor->sizes[d];
        operation.order[d] = d >= tensor->sparse_dim;
    }
    return operation;
}

/* Check one array of a tensor: it is aligned, and in memory of the device that the tensor names. */
static enum tutti_status array_check(const struct tutti_pg *pg,
                                     const struct tutti_sparse_tensor *tensor, const char *what,
                                     const void *array, size_t bytes, enum tutti_dtype dtype)
{
    const bool cuda = tensor->device == TUTTI_DEVICE_CUDA;
    if (!array || !bytes)
        return TUTTI_OK;
    const struct coll_args args = {array, (void *)(uintptr_t)array, 1, dtype, TUTTI_SUM};
    enum tutti_status status =
        comm_check_args(pg->comm, TUTTI_COLLECTIVE_ALL_REDUCE, &args, tensor->device);
    if (status == TUTTI_OK && cuda)
        status = cuda_stage_check(pg->stage, tensor->device_index, array, bytes);
    return status == TUTTI_OK ? status : error_context(status, "%s", what);
}

/* Check the entries before any byte is read. Then the indices of a CPU tensor are checked here;
 * those of a CUDA tensor are checked once they are copied to the host. */
static enum tutti_status entries_check(const struct tutti_pg *pg,
                                       const struct tutti_sparse_tensor *tensor)
{
    const struct sparse_shape shape = shape_of(tensor);
    const struct sparse_entries entries = {tensor->indices, tensor->values, tensor->nnz};
    const bool cuda = tensor->device == TUTTI_DEVICE_CUDA;
    enum tutti_status status = TUTTI_OK;
    if (cuda)
        status = cuda_stage_open(pg->stage, tensor->device_index);
    if (status == TUTTI_OK)
        status = sparse_entries_check(&shape, &entries);
    if (status == TUTTI_OK)
        status = array_check(pg, tensor, "its indices", tensor->indices,
                             tensor->nnz * (size_t)tensor->sparse_dim * sizeof *tensor->indices,
                             TUTTI_INT64);
    if (status == TUTTI_OK)
        status = array_check(pg, tensor, "its values", tensor->values,
                             tensor->nnz * sparse_row_bytes(&shape), tensor->dtype);
    return status == TUTTI_OK && !cuda ? sparse_check(&shape, &entries) : status;
}

/* [out] operation: the description of the first tensor. */
static enum tutti_status tensors_check(const struct tutti_pg *pg,
                                       const struct tutti_sparse_tensor *tensors, int count,
                                       struct layout_operation *operation)
{
    for (int i = 0; i < count; i++) {
        enum tutti_status status = header_check(&tensors[i]);
        if (status != TUTTI_OK)
            return error_context(status, "%s: tensors[%d]", call, i);
        const struct layout_operation other = operation_of(&tensors[i]);
        *operation = i ? *operation : other;
        status = pg_same_check(call, i, tensors[0].dtype, tensors[i].dtype, operation, &other);
        if (status != TUTTI_OK)
            return status;
        status = entries_check(pg, &tensors[i]);
        if (status != TUTTI_OK)
            return error_context(status, "%s: tensors[%d]", call, i);
    }
    operation->inputs = (uint8_t)count;
    return TUTTI_OK;
}

/* ---- submit ---------------------------------------------------------------------------------- */

static void title_make(struct pg_op *op)
{
    const struct pg_sparse *sparse = op->sparse;
    const size_t width = sparse_row_bytes(&sparse->shape) / dtype_bytes(op->dtype);
    size_t nnz = 0;
    for (int i = 0; i < sparse->count; i++)
        nnz += sparse->tensors[i].nnz;
    snprintf(op->title, sizeof op->title, "all_reduce_sparse of %zu x %zu %s, sum", nnz, width,
             tutti_dtype_name(op->dtype));
}

static enum tutti_status op_make(const struct tutti_pg *pg, const void *list, int count,
                                 tutti_op_t reduction, struct pg_op **made)
{
    const struct tutti_sparse_tensor *tensors = list;
    struct layout_operation operation;
    (void)reduction;
    enum tutti_status status = tensors_check(pg, tensors, count, &operation);
    if (status != TUTTI_OK)
        return status;
    size_t bytes = sizeof **made + sizeof *(*made)->sparse + (size_t)count * sizeof *tensors;
    struct pg_op *op = calloc(1, bytes);
    if (!op)
        return error_errno("%s: calloc of %zu bytes", call, bytes);
    struct pg_sparse *sparse = op->sparse = (struct pg_sparse *)(void *)(op + 1);
    op->dtype = tensors->dtype;
    op->op.kind = OP_SUM;
    op->operation = operation;
    sparse->count = count;
    memcpy(sparse->tensors, tensors, (size_t)count * sizeof *tensors);
    for (int i = 0; i < count; i++)
        sparse->tensors[i].sizes = op->operation.sizes;
    sparse->shape = shape_of(&sparse->tensors[0]);
    title_make(op);
    *made = op;
    return TUTTI_OK;
}

enum tutti_status tutti_pg_all_reduce_sparse(struct tutti_pg *pg,
                                             const struct tutti_sparse_tensor *tensors, int count,
                                             const struct tutti_pg_call_options *options,
                                             tutti_work_t **work)
{
    static const struct pg_call all_reduce = {call, "tutti_sparse_tensor", sizeof *tensors,
                                              op_make};
    return pg_submit(pg, &all_reduce, tensors, count, TUTTI_SUM, options, work);
}

/* ---- the work -------------------------------------------------------------------------------- */

enum tutti_status tutti_work_sparse_result(tutti_work_t *work, struct tutti_sparse_tensor *tensor)
{
    static const char name[] = "tutti_work_sparse_result";
    const struct pg_op *op = (const struct pg_op *)work;
    bool done;
    if (!work || work->class != &pg_work_class || !op->sparse)
        return error_set(TUTTI_ERR_INVALID, "%s: the work is %s, no sparse sum", name,
                         work ? work->title : "NULL");
    if (!tensor)
        return error_set(TUTTI_ERR_INVALID, "%s: tensor is NULL", name);
    enum tutti_status status =
        options_check_out(name, "tutti_sparse_tensor", tensor, sizeof *tensor);
    if (status == TUTTI_OK)
        status = pg_op_check(op, name);
    if (status != TUTTI_OK)
        return status;
    const struct pg_sparse *sparse = op->sparse;
    if (!order_load_acquire_u32(&sparse->result_ready)) { /* H7a pairs H7 */
        status = pg_op_poll(op, &done);
        return done ? status
                    : error_set(TUTTI_ERR_INVALID, "%s: %s is not done: wait for it first", name,
                                work->title);
    }
    const struct tutti_sparse_tensor result = {
        .dtype = sparse->shape.dtype,
        .device = sparse->tensors[0].device,
        .device_index = sparse->tensors[0].device_index,
        .sparse_dim = sparse->shape.sparse_dim,
        .dense_dim = sparse->shape.dense_dim,
        .sizes = sparse->shape.sizes,
        .nnz = sparse->result.entries.nnz,
        .indices = sparse->result.entries.indices,
        .values = sparse->result.entries.values,
    };
    options_copy_out(tensor, &result, sizeof result);
    return TUTTI_OK;
}

enum tutti_status tutti_work_sparse_tensors(const tutti_work_t *work,
                                            const struct tutti_sparse_tensor **tensors, int *count)
{
    static const char name[] = "tutti_work_sparse_tensors";
    const struct pg_sparse *sparse = NULL;
    if (!work || !tensors || !count)
        return error_set(TUTTI_ERR_INVALID, "%s: %s is NULL", name,
                         !work      ? "work"
                         : !tensors ? "tensors"
                                    : "count");
    enum tutti_status status = work->class->check(work, name);
    if (status == TUTTI_OK && work->class == &pg_work_class)
        sparse = ((const struct pg_op *)work)->sparse;
    *tensors = sparse ? sparse->tensors : NULL;
    *count = sparse ? sparse->count : 0;
    return status;
}
