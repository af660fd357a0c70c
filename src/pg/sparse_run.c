/* SPDX-License-Identifier: MIT */
/*
 * A sparse sum on the group's thread, once all ranks have submitted it:
 *
 *     block_make()         coalesce the own inputs into a segment that the peers read
 *     pg_share_exchange()  make the segments of all ranks readable: share.h
 *     blocks_read()        check and compare the metadata of all ranks
 *     union_make()         sum all entries, in leaf order, into memory of the work
 *
 * A block is a rank's metadata and, from the next cache line on, its entries. Every rank compares
 * all blocks with that of rank 0, in rank order. So all ranks find the same first difference. CUDA
 * tensors are copied to the host before the first step, and the result to the device after the last
 * one: sparse_staging.c.
 */
#include "base/deadline.h"
#include "base/error.h"
#include "base/order.h"
#include "base/point.h"
#include "pg/pg.h"

#include <stdio.h>
#include <string.h>

enum { STREAM_BYTES = 1 << 20 };

/* Return the offset of the entries, after the metadata. */
static size_t entries_offset(const struct sparse_shape *shape)
{
    return pg_round_up(sparse_meta_bytes(shape), LAYOUT_LINE);
}

/* [out] bytes: the size of a block, with at least a cache line of entries. Return false if it
 * overflows. */
static bool block_bytes(const struct sparse_shape *shape, size_t nnz, size_t *bytes)
{
    if (!sparse_bytes(shape, nnz, bytes))
        return false;
    if (*bytes < LAYOUT_LINE)
        *bytes = LAYOUT_LINE;
    return !__builtin_add_overflow(*bytes, entries_offset(shape), bytes) && *bytes <= PTRDIFF_MAX;
}

/* Copy entries to where a block has them. */
static void entries_copy(const struct tutti_pg *pg, const struct sparse_shape *shape,
                         const struct sparse_entries *from, unsigned char *to)
{
    const struct sparse_entries target = sparse_entries_at(shape, to, from->nnz);
    const size_t values_at = (size_t)((const unsigned char *)target.values - to);
    copy_fn *copy = pg->worker.stream ? pg->comm->isa->copy_stream : pg->comm->isa->copy;
    if (values_at)
        copy(to, from->indices, (size_t)shape->sparse_dim * from->nnz * sizeof *from->indices);
    if (from->nnz && sparse_row_bytes(shape))
        copy(to + values_at, from->values, from->nnz * sparse_row_bytes(shape));
}

/* [out] inputs: the entries of the own inputs, in host memory. [out] nnz: their sum. */
static enum tutti_status inputs_read(struct tutti_pg *pg, const struct pg_op *op,
                                     struct sparse_entries *inputs, size_t *nnz)
{
    const struct pg_sparse *sparse = op->sparse;
    *nnz = 0;
    for (int i = 0; i < sparse->count; i++) {
        const struct tutti_sparse_tensor *tensor = &sparse->tensors[i];
        inputs[i] = (struct sparse_entries){tensor->indices, tensor->values, tensor->nnz};
        *nnz = __builtin_add_overflow(*nnz, tensor->nnz, nnz) ? SIZE_MAX : *nnz;
    }
    if (!op->staging)
        return TUTTI_OK;
    return pg_sparse_await_inputs(pg, op, deadline_after(op->timeout_ms), inputs);
}

static enum tutti_status block_make(struct tutti_pg *pg, const struct pg_op *op, size_t *bytes)
{
    const struct pg_sparse *sparse = op->sparse;
    const struct sparse_shape *shape = &sparse->shape;
    const size_t head = entries_offset(shape);
    struct sparse_entries inputs[TUTTI_MAX_TENSORS];
    size_t nnz = 0, room;
    void *block;
    enum tutti_status status = inputs_read(pg, op, inputs, &nnz);
    if (status != TUTTI_OK)
        return status;
    if (!block_bytes(shape, nnz, &room))
        return error_set(TUTTI_ERR_NO_MEMORY,
                         "the inputs' entries together are more than can be addressed");
    status = pg_share_reserve(pg->share, room, op->timeout_ms, &block);
    if (status != TUTTI_OK)
        return error_context(status, "rank %d makes room for its entries", pg->comm->rank);

    /* The block has room for all entries, so it does not grow. If it is large, the peers' caches
     * hold lines of it from the exchange before the last. To write these lines in the cache costs
     * more than to write past all caches (2 far ranks, 2.5 MB each: 1.95 ms against 0.87 ms). */
    const size_t row_bytes = sparse_row_bytes(shape);
    unsigned char *entries = (unsigned char *)block + head;
    struct sparse_result result = {.memory = {entries, room - head}};
    pg->worker.stream =
        pg->comm->world_size > 1 && room > STREAM_BYTES && row_bytes % LAYOUT_LINE == 0;
    status = sparse_coalesce(&pg->worker, shape, inputs, sparse->count, &result);
    if (status != TUTTI_OK)
        return error_context(status, "rank %d coalesces its entries", pg->comm->rank);
    if ((const void *)result.entries.indices != (const void *)entries)
        entries_copy(pg, shape, &result.entries, entries);
    order_drain_streams();
    sparse_meta_encode(shape, result.entries.nnz, block);
    block_bytes(shape, result.entries.nnz, bytes);
    POINT("sparse.coalesced");
    return TUTTI_OK;
}

/* Read one rank's metadata and check every field. */
static enum tutti_status meta_read(const struct pg_view *views, int rank,
                                   struct sparse_shape *shape, size_t *nnz)
{
    struct sparse_meta meta = {.bytes = 0};
    if (views->size >= sizeof meta)
        memcpy(&meta, views->bytes, sizeof meta);
    return sparse_meta_decode(views->bytes, meta.bytes < views->size ? meta.bytes : views->size,
                              rank, shape, nnz);
}

/* [out] entries: one rank's entries. Their layout follows from this rank's own shape, so a peer
 * that changes its metadata meanwhile does no harm. */
static enum tutti_status entries_read(const struct pg_view *views, int rank,
                                      const struct sparse_shape *shape, size_t nnz,
                                      struct sparse_entries *entries)
{
    size_t needed;
    if (!block_bytes(shape, nnz, &needed) || needed > views->size)
        return error_set(TUTTI_ERR_MISMATCH,
                         "rank %d announces %zu entries, but its block has %zu bytes", rank, nnz,
                         views->size);
    *entries = sparse_entries_at(shape, views->bytes + entries_offset(shape), nnz);
    return TUTTI_OK;
}

/* [out] parts: all ranks' entries, in leaf order. */
static enum tutti_status blocks_read(const struct tutti_pg *pg, const struct sparse_shape *own,
                                     const struct pg_view *views, struct sparse_entries *parts,
                                     struct pg_outcome *outcome)
{
    struct sparse_shape first, shape;
    size_t nnz[TUTTI_MAX_RANKS];
    enum tutti_status status = TUTTI_OK;
    for (int r = 0; r < pg->comm->world_size && status == TUTTI_OK; r++) {
        status = meta_read(&views[r], r, r ? &shape : &first, &nnz[r]);
        if (status == TUTTI_OK && r)
            status = sparse_meta_compare(&first, 0, &shape, r);
        outcome->peer = r;
    }
    for (int leaf = 0; leaf < pg->comm->world_size && status == TUTTI_OK; leaf++) {
        int r = cpu_group_ranks(pg->comm->host)->order[leaf];
        status = entries_read(&views[r], r, own, nnz[r], &parts[leaf]);
        outcome->peer = r;
    }
    if (status == TUTTI_OK)
        outcome->peer = -1;
    else
        outcome->rank = 0;
    return status;
}

static enum tutti_status union_make(struct tutti_pg *pg, struct pg_op *op,
                                    const struct sparse_entries *parts)
{
    struct pg_sparse *sparse = op->sparse;
    enum tutti_status status = TUTTI_OK;
    if (op->staging)
        status = pg_sparse_reserve_result(pg, op, parts);
    else
        sparse->result.memory = pg_op_pool_take(pg->op_pool);
    if (status == TUTTI_OK)
        status =
            sparse_union(&pg->worker, &sparse->shape, parts, pg->comm->world_size, &sparse->result);
    if (op->staging) {
        sparse->result.memory =
            (struct sparse_memory){.bytes = NULL}; /* the memory belongs to the block */
        if (status == TUTTI_OK)
            status = pg_sparse_copy_out(pg, op);
    }
    if (status != TUTTI_OK)
        return error_context(status, "rank %d has no room for the result", pg->comm->rank);
    POINT("sparse.united");
    return TUTTI_OK;
}

void pg_sparse_run(struct tutti_pg *pg, struct pg_op *op, struct pg_outcome *outcome)
{
    struct pg_view views[TUTTI_MAX_RANKS];
    struct sparse_entries parts[TUTTI_MAX_RANKS];
    int failed_rank;
    size_t bytes = 0;
    enum tutti_status status = block_make(pg, op, &bytes);
    status = pg_share_exchange(pg->share, status, bytes, op->timeout_ms, views, &failed_rank);
    if (failed_rank >= 0)
        outcome->rank = outcome->peer = failed_rank;
    POINT("sparse.shown");
    if (status == TUTTI_OK)
        status = blocks_read(pg, &op->sparse->shape, views, parts, outcome);
    if (status == TUTTI_OK)
        status = union_make(pg, op, parts);
    outcome->status = status;
    if (status == TUTTI_ERR_MISMATCH)
        outcome->expected = outcome->seen = op->operation;
    if (status != TUTTI_OK)
        snprintf(op->sparse->error_text, sizeof op->sparse->error_text, "%s", tutti_last_error());
}
