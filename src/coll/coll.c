/* SPDX-License-Identifier: MIT */
#include "coll/coll.h"

#include "base/error.h"
#include "coll/request.h"

#include <inttypes.h>
#include <stdio.h>

/* The addresses of a block; an empty one has none. */
struct span {
    uintptr_t begin, end;
};

/* An operand of a v-form: its blocks, and the span from their first to their last byte. */
struct operand {
    int n;
    struct span blocks[WORLD_RANKS], all;
};

/* Fills *operand, which has no block if the rank does not have it. If it is one block, its count
 * comes from coll_own_count(). If a block is wrong, operand->n is its number. */
static enum coll_error operand_read(const struct coll *coll, const struct coll_args *args,
                                    bool is_send, int rank, int world_size, struct operand *operand)
{
    const bool many = is_send ? coll->send_all : coll->recv_all;
    const void *memory = is_send ? args->send : args->recv;
    struct coll_blocks blocks = is_send ? args->send_blocks : args->recv_blocks;
    const size_t width = dtype_bytes(args->dtype), most = SIZE_MAX / WORLD_RANKS / width;
    const struct coll_limits *limits = &args->limits;
    const size_t extent = is_send ? limits->send_extent : limits->recv_extent;
    size_t next = 0, own;
    operand->n = 0;
    operand->all = (struct span){UINTPTR_MAX, 0};
    if (!coll_has(is_send ? coll->send : coll->recv, rank, args->peer))
        return COLL_GOOD;
    if (!many) {
        own = coll_own_count(coll, args, rank);
        blocks = (struct coll_blocks){.counts = &own};
    }
    if (!blocks.counts)
        return COLL_NO_COUNTS;
    for (; operand->n < (many ? world_size : 1); operand->n++) {
        struct span *block = &operand->blocks[operand->n];
        const size_t count = coll_block_count(&blocks, operand->n);
        const size_t at = coll_block_start(&blocks, operand->n, &next);
        *block = (struct span){0, 0};
        if (!count)
            continue;
        if (limits->most && count > limits->most)
            return COLL_ABOVE_MOST;
        if (limits->most && (count > extent || at > extent - count))
            return COLL_BEYOND_EXTENT;
        if (count > SIGNATURE_COUNT_MAX || count > most || at > SIZE_MAX / width - count ||
            (at + count) * width > UINTPTR_MAX - (uintptr_t)memory)
            return COLL_COUNT;
        block->begin = (uintptr_t)memory + at * width;
        block->end = block->begin + count * width;
        operand->all.begin = block->begin < operand->all.begin ? block->begin : operand->all.begin;
        operand->all.end = block->end > operand->all.end ? block->end : operand->all.end;
    }
    if (operand->all.end && !memory)
        return COLL_NULL;
    return operand->all.end && coll_is_misaligned((uintptr_t)memory, args->dtype, width)
               ? COLL_ALIGNMENT
               : COLL_GOOD;
}

static bool spans_overlap(struct span a, struct span b)
{
    return a.begin < b.end && b.begin < a.end;
}

/* Whether two blocks of an operand overlap. If they are in ascending order, each is compared
 * once. */
static bool has_overlap(const struct operand *operand)
{
    const struct span *blocks = operand->blocks;
    uintptr_t end = 0;
    for (int i = 0; i < operand->n; i++) {
        for (int j = 0; j < i && blocks[i].begin < end; j++)
            if (spans_overlap(blocks[i], blocks[j]))
                return true;
        end = blocks[i].end > end ? blocks[i].end : end;
    }
    return false;
}

enum coll_error coll_blocks_check(const struct coll *coll, const struct coll_args *args, int rank,
                                  int world_size)
{
    struct operand send, recv;
    enum coll_error error = operand_read(coll, args, true, rank, world_size, &send);
    if (error == COLL_GOOD)
        error = operand_read(coll, args, false, rank, world_size, &recv);
    if (error != COLL_GOOD)
        return error;
    if (send.n && recv.n) {
        const size_t own = coll_own_count(coll, args, rank);
        if ((coll->send_all && coll_block_count(&args->send_blocks, rank) != own) ||
            (coll->recv_all && coll_block_count(&args->recv_blocks, rank) != own))
            return COLL_OWN_COUNT;
    }
    if (coll->recv_all && has_overlap(&recv))
        return COLL_OUTPUTS_OVERLAP;
    if (!spans_overlap(send.all, recv.all))
        return COLL_GOOD;
    if (coll->send_all == coll->recv_all)
        return COLL_OVERLAP;
    const struct operand *many = coll->send_all ? &send : &recv;
    const struct span one = (coll->send_all ? &recv : &send)->blocks[0];
    for (int r = 0; r < world_size; r++)
        if (spans_overlap(one, many->blocks[r]) &&
            (r != rank || one.begin != many->blocks[r].begin))
            return COLL_OVERLAP;
    return COLL_GOOD;
}

/* Returns whether the wrong operand of a v-form is send, and the number of the wrong block. */
static bool wrong_block_find(const struct coll *coll, const struct coll_args *args,
                             enum coll_error error, int rank, int world_size, int *block)
{
    struct operand found;
    const bool is_send = operand_read(coll, args, true, rank, world_size, &found) == error;
    if (!is_send)
        (void)operand_read(coll, args, false, rank, world_size, &found);
    *block = found.n;
    return is_send;
}

/* A block of a call with max_count. An operand that is one block has block 0. */
static void limits_explain(const struct coll *coll, const struct coll_args *args,
                           enum coll_error error, const char *operand, bool is_send, int block,
                           int rank, char *text, size_t size)
{
    const bool many = is_send ? coll->send_all : coll->recv_all;
    const struct coll_blocks *blocks = is_send ? &args->send_blocks : &args->recv_blocks;
    const size_t count = many ? coll_block_count(blocks, block) : coll_own_count(coll, args, rank);
    size_t next = 0, at = 0;
    for (int b = 0; many && b <= block; b++)
        at = coll_block_start(blocks, b, &next);
    if (error == COLL_ABOVE_MOST)
        snprintf(text, size, "block %d of %s has %" PRId64 " elements, and max_count is %zu", block,
                 operand, (int64_t)count, args->limits.most);
    else
        snprintf(text, size,
                 "block %d of %s, %zu elements from %" PRId64 " on, is not in its extent of %zu "
                 "elements",
                 block, operand, count, (int64_t)at,
                 is_send ? args->limits.send_extent : args->limits.recv_extent);
}

/* `operand`: the name of the operand that is wrong. */
static void blocks_explain(const struct coll *coll, const struct coll_args *args,
                           enum coll_error error, int rank, const char *operand, char *text,
                           size_t size)
{
    if (error == COLL_NO_COUNTS)
        snprintf(text, size, "the counts of %s are NULL: expected one for each rank", operand);
    else if (error == COLL_COUNT)
        snprintf(text, size,
                 "a block of %s has a count or a displacement that is more than memory "
                 "can hold",
                 operand);
    else if (error == COLL_NULL)
        snprintf(text, size, "%s is NULL, but its blocks are not empty", operand);
    else if (error == COLL_OWN_COUNT)
        snprintf(text, size, "rank %d sends %zu elements to itself and expects %zu", rank,
                 coll->send_all ? coll_block_count(&args->send_blocks, rank) : args->count,
                 coll->recv_all ? coll_block_count(&args->recv_blocks, rank) : args->count);
    else if (error == COLL_OUTPUTS_OVERLAP)
        snprintf(text, size, "two blocks of recv overlap");
    else if (coll->send_all && coll->recv_all)
        snprintf(text, size, "send %p and recv %p overlap: use disjoint ones", args->send,
                 args->recv);
    else
        snprintf(text, size, "send %p and recv %p overlap in part: use %s, or disjoint ones",
                 args->send, args->recv,
                 coll->recv_all ? "the own block of recv as send"
                                : "the own block of send as recv");
}

static void overlap_explain(const struct coll *coll, const struct coll_args *args, int world_size,
                            char *text, size_t size)
{
    const size_t block = args->count * dtype_bytes(args->dtype);
    const char *allowed = "the same address";
    if (coll->recv_all != coll->send_all)
        allowed = coll->recv_all ? "recv + rank * count as send" : "send + rank * count as recv";
    snprintf(text, size,
             "send %p of %zu bytes and recv %p of %zu bytes overlap in part: use %s, or disjoint "
             "ones",
             args->send, block * coll_send_blocks(coll, world_size), args->recv,
             block * coll_recv_blocks(coll, world_size), allowed);
}

/* No reduction, or one that the dtype does not have. */
static void op_explain(const struct coll_args *args, enum coll_error error, char *text, size_t size)
{
    if (error == COLL_OP)
        snprintf(text, size,
                 "op is none: expected TUTTI_SUM or another constant, or one that "
                 "tutti_op_create_premul_sum() made and that is not destroyed");
    else if (error == COLL_UNDEFINED)
        snprintf(text, size, "%s is not defined for %s", tutti_op_name(args->op),
                 tutti_dtype_name(args->dtype));
    else if ((int)args->op->dtype == OP_ANY_DTYPE)
        snprintf(text, size,
                 "the scalar of premul_sum is %.17g, and %s needs a whole number from -2^63 to "
                 "2^64 - 1",
                 args->op->real, tutti_dtype_name(args->dtype));
    else
        snprintf(text, size, "premul_sum was created for %s, and the call has %s",
                 tutti_dtype_name(args->op->dtype), tutti_dtype_name(args->dtype));
}

enum tutti_status coll_explain(const char *call, const struct coll *coll,
                               const struct coll_args *args, enum coll_error error, int rank,
                               int world_size, const char *send)
{
    char text[256] = "";
    const size_t width = dtype_bytes(dtype_component(args->dtype));
    bool send_is_bad = coll_has(coll->send, rank, args->peer) &&
                       (error == COLL_NULL ? !args->send : (uintptr_t)args->send & (width - 1));
    int block = 0;
    if (coll->varies && error > COLL_BAD_PEER)
        send_is_bad = wrong_block_find(coll, args, error, rank, world_size, &block);
    const char *operand = send_is_bad ? send : "recv";
    if (error >= COLL_ABOVE_MOST)
        limits_explain(coll, args, error, operand, send_is_bad, block, rank, text, sizeof text);
    else if (coll->varies && error > COLL_BAD_PEER && error != COLL_ALIGNMENT) {
        blocks_explain(coll, args, error, rank, operand, text, sizeof text);
        error = COLL_GOOD;
    }
    switch (error) {
    case COLL_GOOD:
    case COLL_NO_COUNTS:
    case COLL_OWN_COUNT:
    case COLL_OUTPUTS_OVERLAP:
    case COLL_ABOVE_MOST:
    case COLL_BEYOND_EXTENT:
        break;
    case COLL_DTYPE:
        snprintf(text, sizeof text, "dtype %d: expected a value of enum tutti_dtype",
                 (int)args->dtype);
        break;
    case COLL_OP:
    case COLL_UNDEFINED:
    case COLL_SCALAR:
        op_explain(args, error, text, sizeof text);
        break;
    case COLL_BAD_PEER:
        if (coll->peer == COLL_ROOT || args->peer != rank)
            snprintf(text, sizeof text, "%s is %d: expected 0 to %d",
                     coll->peer == COLL_ROOT ? "root" : "peer", args->peer, world_size - 1);
        else
            snprintf(text, sizeof text,
                     "peer %d is the caller: make both calls in a group (tutti_group_start()), or "
                     "copy the data",
                     args->peer);
        break;
    case COLL_COUNT:
        snprintf(text, sizeof text, "count %zu is more than memory can hold", args->count);
        break;
    case COLL_NULL:
        snprintf(text, sizeof text, "%s is NULL with count %zu", operand, args->count);
        break;
    case COLL_ALIGNMENT:
        snprintf(text, sizeof text, "%s %p is not aligned to the %zu bytes of %s", operand,
                 send_is_bad ? args->send : args->recv, width, tutti_dtype_name(args->dtype));
        break;
    case COLL_OVERLAP:
        overlap_explain(coll, args, world_size, text, sizeof text);
        break;
    }
    return error_set(TUTTI_ERR_INVALID, "%s%s%s", call ? call : "", call ? ": " : "", text);
}

/* An operand of a v-form whose counts are in memory of the device. */
static enum tutti_status counted_operand_check(const struct coll *coll,
                                               const struct coll_args *args, bool is_send)
{
    const struct coll_blocks *blocks = is_send ? &args->send_blocks : &args->recv_blocks;
    const uintptr_t operand = is_send ? (uintptr_t)args->send : (uintptr_t)args->recv;
    const size_t extent = is_send ? args->limits.send_extent : args->limits.recv_extent;
    const size_t width = dtype_bytes(args->dtype);
    const char *name = is_send ? "send" : "recv";
    if (!operand)
        return error_set(TUTTI_ERR_INVALID, "%s: %s is NULL", coll->call, name);
    if (coll_is_misaligned(operand, args->dtype, width))
        return error_set(TUTTI_ERR_INVALID, "%s: %s %p is not aligned to the elements of %s",
                         coll->call, name, (void *)operand, tutti_dtype_name(args->dtype));
    if (args->limits.most > SIZE_MAX / WORLD_RANKS / width || extent > SIZE_MAX / width ||
        extent * width > UINTPTR_MAX - operand)
        return error_set(
            TUTTI_ERR_INVALID,
            "%s: max_count %zu, or the extent of %s, %zu, is more than memory can hold", coll->call,
            args->limits.most, name, extent);
    if (!(is_send ? coll->send_all : coll->recv_all))
        return TUTTI_OK;
    if (!blocks->counts)
        return error_set(TUTTI_ERR_INVALID, "%s: the counts of %s are NULL", coll->call, name);
    if (((uintptr_t)blocks->counts | (uintptr_t)blocks->displacements) % coll_entry_bytes(blocks))
        return error_set(TUTTI_ERR_INVALID,
                         "%s: the counts %p or displacements %p of %s are not aligned to %zu bytes",
                         coll->call, blocks->counts, blocks->displacements, name,
                         coll_entry_bytes(blocks));
    return TUTTI_OK;
}

enum tutti_status coll_counted_check(const struct coll *coll, const struct coll_args *args,
                                     int rank, int world_size)
{
    const size_t width = dtype_bytes(args->dtype);
    const enum coll_error error = coll_kind_check(coll, args, width);
    if (error != COLL_GOOD)
        return coll_explain(coll->call, coll, args, error, rank, world_size, "send");
    enum tutti_status status = counted_operand_check(coll, args, true);
    if (status == TUTTI_OK)
        status = counted_operand_check(coll, args, false);
    if (status != TUTTI_OK || coll->send_all != coll->recv_all)
        return status;
    const struct span send = {(uintptr_t)args->send,
                              (uintptr_t)args->send + args->limits.send_extent * width},
                      recv = {(uintptr_t)args->recv,
                              (uintptr_t)args->recv + args->limits.recv_extent * width};
    if (!spans_overlap(send, recv))
        return TUTTI_OK;
    return error_set(
        TUTTI_ERR_INVALID,
        "%s: send %p of %zu elements and recv %p of %zu overlap: use disjoint ones, or "
        "set send_extent and recv_extent",
        coll->call, args->send, args->limits.send_extent, args->recv, args->limits.recv_extent);
}

size_t request_span(const struct request *request, bool is_send, int rank, int size, size_t *first)
{
    const struct coll *coll = &coll_rows[request->collective];
    const bool many = is_send ? coll->send_all : coll->recv_all;
    const struct coll_blocks own = {.counts = &request->count};
    const struct coll_blocks *blocks = !many     ? &own
                                       : is_send ? &request->send_blocks
                                                 : &request->recv_blocks;
    size_t begin = SIZE_MAX, end = 0, next = 0;
    *first = 0;
    if (!coll_has(is_send ? coll->send : coll->recv, rank, request->peer))
        return 0;
    if (!coll->varies)
        return request->bytes * (many ? (size_t)size : 1);
    if (request->limits.most)
        return request->bytes *
               (is_send ? request->limits.send_extent : request->limits.recv_extent);
    for (int b = 0; b < (many ? size : 1); b++) {
        const size_t count = coll_block_count(blocks, b), at = coll_block_start(blocks, b, &next);
        if (!count)
            continue;
        begin = at < begin ? at : begin;
        end = at + count > end ? at + count : end;
    }
    if (!end)
        return 0;
    *first = begin * request->bytes;
    return (end - begin) * request->bytes;
}
