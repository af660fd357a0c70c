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

static struct sparse_shape shape_of(const struct tutti_sparse_tensor *tensor)
{
    return (struct sparse_shape){tensor->dtype, tensor->sparse_dim, tensor->dense_dim,
                                 tensor->sizes};
}

/* ---- check ----------------------------------------------------------------------------------- */

static enum tutti_status describe(const void *given, enum tutti_device *device,
                                  struct coll_args *args, struct layout_operation *description)
{
    const struct tutti_sparse_tensor *tensor = given;
    const struct sparse_shape shape = shape_of(tensor);
    enum tutti_status status = sparse_shape_check(&shape);
    if (status != TUTTI_OK)
        return status;
    *device = tensor->device;
    args->dtype = tensor->dtype;
    *description = (struct layout_operation){
        .format = LAYOUT_SPARSE,
        .dims = (uint16_t)(tensor->sparse_dim + tensor->dense_dim),
    };
    memset(description->order, LAYOUT_NO_POSITION, sizeof description->order);
    for (int d = 0; d < description->dims; d++) {
        description->sizes[d] = tensor->sizes[d];
        description->order[d] = d >= tensor->sparse_dim;
    }
    return TUTTI_OK;
}

/* Check one array of a tensor: it is aligned, and in memory of the device that the tensor names. */
static enum tutti_status array_check(const struct tutti_pg *pg,
                                     const struct tutti_sparse_tensor *tensor, const char *what,
                                     const void *array, size_t bytes, enum tutti_dtype dtype)
{
    if (!array || !bytes)
        return TUTTI_OK;
    const struct coll_args args =
        coll_args_make(NULL, NULL, bytes / dtype_bytes(dtype), dtype, TUTTI_SUM, 0);
    const enum tutti_status status =
        pg_memory_check(pg, tensor->device, tensor->device_index, array, &args);
    return status == TUTTI_OK ? status : error_context(status, "%s", what);
}

/* Check the entries before any byte is read. Then the indices of a CPU tensor are checked here;
 * those of a CUDA tensor are checked once they are copied to the host. */
static enum tutti_status check(const struct tutti_pg *pg, const void *tensors, int index,
                               const struct coll_args *args)
{
    const struct tutti_sparse_tensor *tensor = (const struct tutti_sparse_tensor *)tensors + index;
    const struct sparse_shape shape = shape_of(tensor);
    const struct sparse_entries entries = {tensor->indices, tensor->values, tensor->nnz};
    const bool cuda = tensor->device == TUTTI_DEVICE_CUDA;
    enum tutti_status status = TUTTI_OK;
    (void)args;
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

/* ---- submit ---------------------------------------------------------------------------------- */

static void title_make(struct pg_operation *operation)
{
    const struct pg_sparse *sparse = operation->sparse;
    const size_t width = sparse_row_bytes(&sparse->shape) / dtype_bytes(operation->args.dtype);
    size_t nnz = 0;
    for (int i = 0; i < sparse->count; i++)
        nnz += sparse->tensors[i].nnz;
    snprintf(operation->title, sizeof operation->title, "all_reduce_sparse of %zu x %zu %s, sum",
             nnz, width, tutti_dtype_name(operation->args.dtype));
}

static void fill(struct pg_operation *operation, const struct pg_lists *lists)
{
    const struct tutti_sparse_tensor *tensors = lists->list[0];
    const int count = lists->count[0];
    struct pg_sparse *sparse = operation->sparse = (struct pg_sparse *)(void *)(operation + 1);
    *sparse = (struct pg_sparse){.count = count};
    memcpy(sparse->tensors, tensors, (size_t)count * sizeof *tensors);
    for (int i = 0; i < count; i++)
        sparse->tensors[i].sizes = operation->description.sizes;
    sparse->shape = shape_of(&sparse->tensors[0]);
    title_make(operation);
}

enum tutti_status tutti_pg_all_reduce_sparse(struct tutti_pg *pg,
                                             const struct tutti_sparse_tensor *tensors, int count,
                                             const struct tutti_pg_call_options *options,
                                             tutti_work_t **work)
{
    static const struct pg_call call = {.name = "tutti_pg_all_reduce_sparse",
                                        .collective = TUTTI_COLLECTIVE_ALL_REDUCE,
                                        .type = "tutti_sparse_tensor",
                                        .tensor_bytes = sizeof *tensors,
                                        .more_bytes = sizeof(struct pg_sparse),
                                        .read = pg_list_read,
                                        .describe = describe,
                                        .check = check,
                                        .fill = fill};
    const struct coll_args args = {.op = TUTTI_SUM};
    return pg_submit(pg, &call, &(struct pg_lists){{tensors}, {count}}, &args, options, work);
}

/* ---- the work -------------------------------------------------------------------------------- */

enum tutti_status tutti_work_sparse_result(tutti_work_t *work, struct tutti_sparse_tensor *tensor)
{
    static const char name[] = "tutti_work_sparse_result";
    const struct pg_operation *operation = (const struct pg_operation *)work;
    if (!work || work->class != &pg_work_class || !operation->sparse)
        return error_set(TUTTI_ERR_INVALID, "%s: the work is %s, no sparse sum", name,
                         work ? work->title : "NULL");
    if (!tensor)
        return error_set(TUTTI_ERR_INVALID, "%s: tensor is NULL", name);
    enum tutti_status status =
        options_check_out(name, "tutti_sparse_tensor", tensor, sizeof *tensor);
    if (status == TUTTI_OK)
        status = pg_operation_check(operation, name);
    if (status != TUTTI_OK)
        return status;
    const struct pg_sparse *sparse = operation->sparse;
    if (!order_load_acquire_u32(&operation->has_outcome)) /* H7a pairs H7 */
        return error_set(TUTTI_ERR_INVALID, "%s: %s is not done: wait for it first", name,
                         work->title);
    status = pg_operation_status(operation);
    if (status != TUTTI_OK)
        return status;
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
        sparse = ((const struct pg_operation *)work)->sparse;
    *tensors = sparse ? sparse->tensors : NULL;
    *count = sparse ? sparse->count : 0;
    return status;
}
