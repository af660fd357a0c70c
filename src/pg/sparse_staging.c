/* SPDX-License-Identifier: MIT */
/*
 * Sparse sums of CUDA tensors. Once the caller's stream has reached the call, all entries are
 * copied into one block of pinned memory, while the group still waits for other ranks. The indices
 * are checked there, since the call could not read them. The result is made in a second block and
 * copied to memory of the first input's device. The work owns that memory; the group reuses it
 * after the work is destroyed.
 */
#include "base/error.h"
#include "base/log.h"
#include "pg/pg.h"

#include <stdint.h>

/* [out] indices, values: the bytes of one input's two arrays. Return false if such an input cannot
 * exist, since its size overflows. */
static bool area_plan(const struct pg_sparse *sparse, int input, size_t *indices, size_t *values)
{
    const struct tutti_sparse_tensor *tensor = &sparse->tensors[input];
    const size_t row_bytes = sparse_row_bytes(&sparse->shape);
    *indices = *values = 0;
    return !__builtin_mul_overflow((size_t)sparse->shape.sparse_dim * sizeof(int64_t), tensor->nnz,
                                   indices) &&
           !__builtin_mul_overflow(row_bytes, tensor->nnz, values) && *indices <= PTRDIFF_MAX / 4 &&
           *values <= PTRDIFF_MAX / 4;
}

/* [out] bytes: the size of the block for all inputs. Return false if it overflows. */
static bool block_plan(const struct pg_sparse *sparse, size_t *bytes)
{
    size_t indices, values;
    *bytes = 0;
    for (int i = 0; i < sparse->count; i++)
        if (!area_plan(sparse, i, &indices, &values) ||
            __builtin_add_overflow(*bytes, pg_staging_align(indices) + pg_staging_align(values),
                                   bytes))
            return false;
    return true;
}

static enum tutti_status input_copy(struct tutti_pg *pg, const struct tutti_sparse_tensor *tensor,
                                    size_t indices, size_t values, unsigned char *to)
{
    const int device = tensor->device_index;
    enum tutti_status status = TUTTI_OK;
    if (indices)
        status = cuda_stage_copy(pg->stage, device, CUDA_WAY_IN, to, tensor->indices, indices);
    if (status == TUTTI_OK && values)
        status = cuda_stage_copy(pg->stage, device, CUDA_WAY_IN, to + pg_staging_align(indices),
                                 tensor->values, values);
    return status;
}

void pg_sparse_copy_in(struct tutti_pg *pg, struct pg_op *op)
{
    const struct pg_sparse *sparse = op->sparse;
    struct pg_staging *staging = op->staging;
    size_t bytes, at = 0, indices = 0, values = 0;
    enum tutti_status status = TUTTI_OK;
    staging->copied_early = true;
    if (!block_plan(sparse, &bytes))
        status = error_set(TUTTI_ERR_NO_MEMORY,
                           "the inputs' entries together are more than can be addressed");
    if (status == TUTTI_OK && bytes)
        status = cuda_block_take(pg->stage, bytes, &staging->block);
    for (int i = 0; i < sparse->count && bytes && status == TUTTI_OK; i++) {
        area_plan(sparse, i, &indices, &values);
        status = input_copy(pg, &sparse->tensors[i], indices, values, staging->block->memory + at);
        at += pg_staging_align(indices) + pg_staging_align(values);
    }
    staging->status = pg_staging_mark(pg, staging, CUDA_WAY_IN, status);
    if (staging->status != TUTTI_OK)
        log_write(TUTTI_LOG_WARN, pg->comm->rank, "%s: %s", op->title, tutti_last_error());
}

enum tutti_status pg_sparse_await_inputs(struct tutti_pg *pg, const struct pg_op *op,
                                         int64_t deadline, struct sparse_entries *inputs)
{
    const struct pg_sparse *sparse = op->sparse;
    const struct pg_staging *staging = op->staging;
    size_t at = 0, indices, values;
    enum tutti_status status = staging->status;
    if (status != TUTTI_OK)
        return error_set(status,
                         "rank %d cannot copy its entries to the host: %s; its log has more",
                         pg->comm->rank, tutti_status_text(status));
    status = pg_staging_await(pg, staging, CUDA_WAY_IN, staging->marks[CUDA_WAY_IN], deadline);
    for (int i = 0; i < sparse->count && status == TUTTI_OK; i++) {
        unsigned char *memory = staging->block ? staging->block->memory + at : NULL;
        area_plan(sparse, i, &indices, &values);
        inputs[i] = (struct sparse_entries){(const int64_t *)(const void *)memory,
                                            memory ? memory + pg_staging_align(indices) : NULL,
                                            sparse->tensors[i].nnz};
        at += pg_staging_align(indices) + pg_staging_align(values);
        status = sparse_check(&sparse->shape, &inputs[i]);
        if (status != TUTTI_OK)
            return error_context(status, "rank %d: tensors[%d]", pg->comm->rank, i);
    }
    return status;
}

enum tutti_status pg_sparse_reserve_result(struct tutti_pg *pg, struct pg_op *op,
                                           const struct sparse_entries *parts)
{
    struct pg_sparse *sparse = op->sparse;
    struct pg_staging *staging = op->staging;
    size_t nnz = 0, bytes;
    for (int leaf = 0; leaf < pg->comm->world_size; leaf++)
        nnz = __builtin_add_overflow(nnz, parts[leaf].nnz, &nnz) ? SIZE_MAX : nnz;
    if (!sparse_bytes(&sparse->shape, nnz, &bytes))
        return error_set(TUTTI_ERR_NO_MEMORY,
                         "the ranks' entries together are more than can be addressed");
    /* The inputs have been read, so their block can be given back. */
    cuda_block_give(pg->stage, staging->block);
    staging->block = NULL;
    enum tutti_status status =
        cuda_block_take(pg->stage, bytes + PG_STAGING_ALIGNMENT, &staging->block);
    if (status == TUTTI_OK)
        sparse->result.memory =
            (struct sparse_memory){staging->block->memory, staging->block->bytes};
    return status;
}

enum tutti_status pg_sparse_copy_out(struct tutti_pg *pg, struct pg_op *op)
{
    struct pg_sparse *sparse = op->sparse;
    struct pg_staging *staging = op->staging;
    const int device = sparse->tensors[0].device_index;
    struct sparse_result *result = &sparse->result;
    size_t bytes;
    enum tutti_status status = TUTTI_OK;
    sparse_bytes(&sparse->shape, result->entries.nnz, &bytes);
    if (bytes)
        status = cuda_result_take(pg->stage, device, bytes, &staging->result);
    if (bytes && status == TUTTI_OK)
        status = cuda_stage_copy(pg->stage, device, CUDA_WAY_OUT, staging->result->memory,
                                 staging->block->memory, bytes);
    status = pg_staging_mark(pg, staging, CUDA_WAY_OUT, status);
    const size_t nnz = result->entries.nnz;
    result->entries = (struct sparse_entries){.nnz = nnz};
    if (staging->result)
        result->entries = sparse_entries_at(&sparse->shape, staging->result->memory, nnz);
    return status;
}
