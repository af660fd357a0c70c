/* SPDX-License-Identifier: MIT */
/*
 * A sparse sum on the group's thread. CUDA tensors are copied to the host as soon as the caller's
 * stream has reached the call. Once all ranks have submitted the operation:
 *
 *     block_make()         coalesce the own inputs into a segment that the peers read
 *     pg_share_exchange()  make the segments of all ranks readable: share.h
 *     blocks_read()        check that all entries lie within the segments
 *     union_make()         sum all entries, in leaf order, into memory of the work
 *
 * The result of CUDA tensors is made in pinned memory and copied to memory of the first input's
 * device. The work owns that memory; the group reuses it after the work is destroyed.
 */
#include "base/deadline.h"
#include "base/error.h"
#include "base/log.h"
#include "base/order.h"
#include "base/point.h"
#include "pg/pg.h"

#include <stdio.h>
#include <string.h>

enum { STREAM_BYTES = 1 << 20 };

/* The first line of a block; the entries follow. */
struct block {
    uint64_t nnz;
    unsigned char pad[LAYOUT_LINE - sizeof(uint64_t)];
};

static size_t indices_bytes(const struct sparse_shape *shape, size_t nnz)
{
    return (size_t)shape->sparse_dim * nnz * sizeof(int64_t);
}

/* ---- CUDA tensors ---------------------------------------------------------------------------- */

static enum tutti_status array_copy_in(struct tutti_pg *pg, int device, const void *to,
                                       const void *from, size_t bytes)
{
    return bytes ? cuda_stage_copy(pg->stage, device, CUDA_TO_HOST, (void *)(uintptr_t)to, from,
                                   bytes)
                 : TUTTI_OK;
}

static enum tutti_status input_copy_in(struct tutti_pg *pg, const struct sparse_shape *shape,
                                       const struct tutti_sparse_tensor *tensor, const void *memory)
{
    const struct sparse_entries to = sparse_entries_at(shape, memory, tensor->nnz);
    enum tutti_status status = array_copy_in(pg, tensor->device_index, to.indices, tensor->indices,
                                             indices_bytes(shape, tensor->nnz));
    return status == TUTTI_OK ? array_copy_in(pg, tensor->device_index, to.values, tensor->values,
                                              tensor->nnz * sparse_row_bytes(shape))
                              : status;
}

void pg_sparse_copy_in(struct pg_operation *operation)
{
    struct tutti_pg *pg = operation->pg;
    const struct pg_sparse *sparse = operation->sparse;
    struct pg_cuda *cuda = operation->cuda;
    size_t bytes = 0, at = 0;
    enum tutti_status status = TUTTI_OK;
    for (int i = 0; i < sparse->count; i++)
        bytes += sparse_bytes(&sparse->shape, sparse->tensors[i].nnz);
    if (bytes)
        status = cuda_block_take(pg->stage, bytes, &cuda->block);
    for (int i = 0; i < sparse->count && bytes && status == TUTTI_OK; i++) {
        status = input_copy_in(pg, &sparse->shape, &sparse->tensors[i], cuda->block->memory + at);
        at += sparse_bytes(&sparse->shape, sparse->tensors[i].nnz);
    }
    cuda->copied_early = true;
    cuda->status = pg_cuda_mark(cuda, CUDA_TO_HOST, status);
    if (cuda->status != TUTTI_OK)
        log_write(TUTTI_LOG_WARN, pg->comm->rank, "%s: %s", operation->title, tutti_last_error());
}

/* Wait for the copies and check the indices, which the call could not read. [out] inputs: the
 * entries in host memory. */
static enum tutti_status await_inputs(struct tutti_pg *pg, const struct pg_operation *operation,
                                      struct sparse_entries *inputs)
{
    const struct pg_sparse *sparse = operation->sparse;
    const struct pg_cuda *cuda = operation->cuda;
    size_t at = 0;
    enum tutti_status status = cuda->status;
    if (status != TUTTI_OK)
        return error_set(status,
                         "rank %d cannot copy its entries to the host: %s; its log has more",
                         pg->comm->rank, tutti_status_text(status));
    status = pg_cuda_await(pg, &cuda->marks[CUDA_TO_HOST], deadline_after(operation->timeout_ms));
    for (int i = 0; i < sparse->count && status == TUTTI_OK; i++) {
        const size_t nnz = sparse->tensors[i].nnz;
        inputs[i] = (struct sparse_entries){.nnz = nnz};
        if (cuda->block)
            inputs[i] = sparse_entries_at(&sparse->shape, cuda->block->memory + at, nnz);
        at += sparse_bytes(&sparse->shape, nnz);
        status = sparse_check(&sparse->shape, &inputs[i]);
        if (status != TUTTI_OK)
            return error_context(status, "rank %d: tensors[%d]", pg->comm->rank, i);
    }
    return status;
}

/* Take pinned memory for the union of the parts, large enough that it does not grow. The inputs
 * have been read. */
static enum tutti_status result_take_pinned(struct tutti_pg *pg, struct pg_operation *operation,
                                            const struct sparse_entries *parts)
{
    struct pg_cuda *cuda = operation->cuda;
    size_t nnz = 0;
    for (int leaf = 0; leaf < pg->comm->world_size; leaf++)
        nnz += parts[leaf].nnz;
    cuda_block_give(pg->stage, cuda->block);
    cuda->block = NULL;
    enum tutti_status status = cuda_block_take(
        pg->stage, sparse_bytes(&operation->sparse->shape, nnz) + LAYOUT_LINE, &cuda->block);
    if (status == TUTTI_OK)
        operation->sparse->result.memory =
            (struct sparse_memory){cuda->block->memory, cuda->block->bytes};
    return status;
}

/* Enqueue the copy of the union to the device. */
static enum tutti_status result_copy_out(struct tutti_pg *pg, struct pg_operation *operation)
{
    struct pg_cuda *cuda = operation->cuda;
    const int device = operation->sparse->tensors[0].device_index;
    struct sparse_entries *entries = &operation->sparse->result.entries;
    const size_t bytes = sparse_bytes(&operation->sparse->shape, entries->nnz);
    enum tutti_status status = TUTTI_OK;
    if (bytes)
        status = cuda_result_take(pg->stage, device, bytes, &cuda->result);
    if (bytes && status == TUTTI_OK)
        status = cuda_stage_copy(pg->stage, device, CUDA_FROM_HOST, cuda->result->memory,
                                 cuda->block->memory, bytes);
    *entries = cuda->result ? sparse_entries_at(&operation->sparse->shape, cuda->result->memory,
                                                entries->nnz)
                            : (struct sparse_entries){.nnz = entries->nnz};
    return pg_cuda_mark(cuda, CUDA_FROM_HOST, status);
}

/* ---- the own block --------------------------------------------------------------------------- */

/* Copy entries to where a block has them. */
static void entries_copy(const struct tutti_pg *pg, const struct sparse_shape *shape,
                         const struct sparse_entries *from, const void *to)
{
    const struct sparse_entries target = sparse_entries_at(shape, to, from->nnz);
    copy_fn *copy = pg->worker.stream ? pg->comm->isa->copy_stream : pg->comm->isa->copy;
    if (from->nnz && shape->sparse_dim)
        copy((void *)(uintptr_t)target.indices, from->indices, indices_bytes(shape, from->nnz));
    if (from->nnz && sparse_row_bytes(shape))
        copy((void *)(uintptr_t)target.values, from->values, from->nnz * sparse_row_bytes(shape));
}

/* [out] bytes: of the block. */
static enum tutti_status block_make(struct tutti_pg *pg, const struct pg_operation *operation,
                                    size_t *bytes)
{
    const struct pg_sparse *sparse = operation->sparse;
    const struct sparse_shape *shape = &sparse->shape;
    struct sparse_entries inputs[TUTTI_MAX_TENSORS];
    size_t nnz = 0;
    void *memory;
    for (int i = 0; i < sparse->count; i++) {
        const struct tutti_sparse_tensor *tensor = &sparse->tensors[i];
        inputs[i] = (struct sparse_entries){tensor->indices, tensor->values, tensor->nnz};
        nnz += tensor->nnz;
    }
    enum tutti_status status = operation->cuda ? await_inputs(pg, operation, inputs) : TUTTI_OK;
    if (status != TUTTI_OK)
        return status;
    /* At least one line, which is what sparse_coalesce() asks for. */
    const size_t room = sparse_bytes(shape, nnz) + LAYOUT_LINE;
    status = pg_share_reserve(pg->share, sizeof(struct block) + room, &memory);
    if (status != TUTTI_OK)
        return error_context(status, "rank %d makes room for its entries", pg->comm->rank);

    /* If the block is large, the peers' caches hold lines of it from the exchange before the last.
     * To write these lines in the cache costs more than to write past all caches (2 far ranks, 2.5
     * MB each: 1.95 ms against 0.87 ms). */
    struct block *block = memory;
    struct sparse_result result = {.memory = {block + 1, room}};
    pg->worker.stream = pg->comm->world_size > 1 && room > STREAM_BYTES &&
                        sparse_row_bytes(shape) % LAYOUT_LINE == 0;
    status = sparse_coalesce(&pg->worker, shape, inputs, sparse->count, &result);
    if (status != TUTTI_OK)
        return error_context(status, "rank %d coalesces its entries", pg->comm->rank);
    if ((const void *)result.entries.indices != (const void *)(block + 1))
        entries_copy(pg, shape, &result.entries, block + 1);
    order_drain_streams();
    block->nnz = result.entries.nnz;
    *bytes = sizeof *block + sparse_bytes(shape, result.entries.nnz);
    POINT("sparse.coalesced");
    return TUTTI_OK;
}

/* ---- the union ------------------------------------------------------------------------------- */

/* [out] parts: all ranks' entries, in leaf order. nnz is read once, so a peer that changes it
 * meanwhile does no harm. */
static enum tutti_status blocks_read(const struct tutti_pg *pg, const struct sparse_shape *shape,
                                     const struct pg_view *views, struct sparse_entries *parts,
                                     struct pg_outcome *outcome)
{
    for (int leaf = 0; leaf < pg->comm->world_size; leaf++) {
        const int r = pg->comm->config.leaf_order[leaf];
        const struct block *block = (const void *)views[r].bytes;
        const uint64_t nnz =
            views[r].size < sizeof *block ? UINT64_MAX : order_load_relaxed_u64(&block->nnz);
        if (!sparse_nnz_fits(shape, nnz) ||
            sparse_bytes(shape, nnz) > views[r].size - sizeof *block) {
            outcome->peer = r;
            return error_set(TUTTI_ERR_MISMATCH,
                             "rank %d misbehaves: its %zu bytes have no room for its entries", r,
                             views[r].size);
        }
        parts[leaf] = sparse_entries_at(shape, block + 1, nnz);
    }
    return TUTTI_OK;
}

static struct sparse_memory result_take(struct tutti_pg *pg)
{
    struct sparse_memory memory = {0};
    pthread_mutex_lock(&pg->lock);
    if (pg->idle_count)
        memory = pg->idle[--pg->idle_count];
    pthread_mutex_unlock(&pg->lock);
    return memory;
}

static enum tutti_status union_make(struct tutti_pg *pg, struct pg_operation *operation,
                                    const struct sparse_entries *parts)
{
    struct pg_sparse *sparse = operation->sparse;
    enum tutti_status status = TUTTI_OK;
    if (operation->cuda)
        status = result_take_pinned(pg, operation, parts);
    else
        sparse->result.memory = result_take(pg);
    if (status == TUTTI_OK)
        status =
            sparse_union(&pg->worker, &sparse->shape, parts, pg->comm->world_size, &sparse->result);
    if (operation->cuda) {
        sparse->result.memory = (struct sparse_memory){0}; /* the memory belongs to the block */
        if (status == TUTTI_OK)
            status = result_copy_out(pg, operation);
    }
    if (status != TUTTI_OK)
        return error_context(status, "rank %d has no room for the result", pg->comm->rank);
    POINT("sparse.united");
    return TUTTI_OK;
}

void pg_sparse_run(struct tutti_pg *pg, struct pg_operation *operation, struct pg_outcome *outcome)
{
    struct pg_view views[WORLD_RANKS];
    struct sparse_entries parts[WORLD_RANKS];
    int failed_rank;
    size_t bytes = 0;
    enum tutti_status status = block_make(pg, operation, &bytes);
    status =
        pg_share_exchange(pg->share, status, bytes, operation->timeout_ms, views, &failed_rank);
    if (failed_rank >= 0)
        outcome->rank = outcome->peer = failed_rank;
    POINT("sparse.shown");
    if (status == TUTTI_OK)
        status = blocks_read(pg, &operation->sparse->shape, views, parts, outcome);
    if (status == TUTTI_OK)
        status = union_make(pg, operation, parts);
    outcome->status = status;
    if (status == TUTTI_ERR_MISMATCH)
        outcome->expected = outcome->seen = operation->description;
    if (status != TUTTI_OK)
        snprintf(operation->sparse->error_text, sizeof operation->sparse->error_text, "%s",
                 tutti_last_error());
}
