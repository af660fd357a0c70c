/* SPDX-License-Identifier: MIT */
/*
 * Runs the collectives other than the all-reduce, pair by pair. CUDA tensors are staged
 * (staging.c). A pair of CPU tensors whose blocks lie side by side on all ranks is one operation of
 * the communicator. Otherwise the blocks of a list go through a buffer, one piece of each block at
 * a time, with the same bounds on all ranks.
 *
 * The tensors of an all-to-all of lists have any lengths. All ranks exchange the lengths first, so
 * that all find a disagreement and no rank waits for bytes that do not come. Then the lists are the
 * operands of the communicator's v-form. If they are short, or in place or mixed in memory on any
 * rank, the blocks go through the buffer as if each were as long as the longest one of any rank.
 */
#include "base/error.h"
#include "pg/pg.h"

#include <string.h>

enum { BUFFER_BYTES = PG_WIDE_ELEMENTS * sizeof(float), PIECE_ALIGNMENT = 64 };
enum { PADDED_BYTES = 16 << 10 }; /* up to this size of a list's padded blocks no v-form runs */

/* One pair of an operation. */
struct move {
    struct tutti_pg *pg;
    const struct pg_op *op;
    int pair;
    size_t count; /* elements of a block; in an all-to-all of lists, of the longest block */
};

static enum tutti_status part_run(const struct move *move, const void *send, void *recv,
                                  size_t count)
{
    struct coll_args args = move->op->args;
    args.send = send;
    args.recv = recv;
    args.count = count;
    return comm_run(move->pg->comm, move->op->work.collective, &args, move->op->timeout_ms,
                    TUTTI_STREAM_DEFAULT);
}

static void *first_block(const struct move *move, const struct pg_operand *operand)
{
    size_t count;
    return operand->count ? pg_block(move->op, operand, move->pair, 0, &count) : NULL;
}

/* Copy elements of all blocks, from `first` on, to the buffer or back; at most `count` of each. */
static void blocks_copy(const struct move *move, const struct pg_operand *operand, bool back,
                        size_t first, size_t count)
{
    const size_t width = dtype_bytes(move->op->args.dtype);
    for (int b = 0; operand->count && b < operand->each * operand->blocks; b++) {
        size_t elements;
        char *block = pg_block(move->op, operand, move->pair, b, &elements);
        char *buffer = (char *)move->pg->widened + (size_t)b * count * width;
        const size_t left = elements > first ? elements - first : 0;
        block += first * width;
        if (left)
            move->pg->comm->isa->copy(back ? block : buffer, back ? buffer : block,
                                      (left < count ? left : count) * width);
    }
}

/* The buffer takes the operands that have a block for each rank, a piece of every block at a time.
 */
static enum tutti_status pieces_run(const struct move *move)
{
    const struct pg_op *op = move->op;
    const struct coll *coll = &coll_rows[op->work.collective];
    const size_t width = dtype_bytes(op->args.dtype);
    const size_t most = BUFFER_BYTES / (size_t)move->pg->comm->world_size / PIECE_ALIGNMENT *
                        PIECE_ALIGNMENT / width;
    enum tutti_status status = TUTTI_OK;
    for (size_t first = 0; first < move->count && status == TUTTI_OK; first += most) {
        const size_t left = move->count - first, count = left < most ? left : most;
        char *send = first_block(move, &op->send), *recv = first_block(move, &op->recv);
        send = coll->send_all ? (char *)move->pg->widened : send ? send + first * width : NULL;
        recv = coll->recv_all ? (char *)move->pg->widened : recv ? recv + first * width : NULL;
        if (coll->send_all)
            blocks_copy(move, &op->send, false, first, count);
        status = part_run(move, send, recv, count);
        if (coll->recv_all && status == TUTTI_OK)
            blocks_copy(move, &op->recv, true, first, count);
    }
    return status;
}

/* ---- all-to-all of lists --------------------------------------------------------------------- */

/* What a rank sends to each rank, then what it expects of each. */
static void lengths_set(const struct pg_op *op, int size, uint64_t *lengths)
{
    for (int r = 0; r < 2 * size; r++) {
        size_t count;
        (void)pg_block(op, r < size ? &op->send : &op->recv, 0, r % size, &count);
        lengths[r] = count;
    }
}

/* Exchange the lengths. *longest: of all ranks'. Returns MISMATCH if two ranks disagree. */
static enum tutti_status lengths_agree(struct tutti_pg *pg, const struct pg_op *op,
                                       struct pg_outcome *outcome, size_t *longest)
{
    const int size = pg->comm->world_size;
    uint64_t *all = (uint64_t *)(void *)pg->widened, *own = all + 2 * size * pg->comm->rank;
    static_assert(2 * TUTTI_MAX_RANKS * TUTTI_MAX_RANKS * sizeof *all <= BUFFER_BYTES, "room");
    lengths_set(op, size, own);
    const struct coll_args args = coll_args_make(own, all, 2 * (size_t)size, TUTTI_UINT64, NULL, 0);
    enum tutti_status status = comm_run(pg->comm, TUTTI_COLLECTIVE_ALL_GATHER, &args,
                                        op->timeout_ms, TUTTI_STREAM_DEFAULT);
    for (int from = 0; from < size && status == TUTTI_OK; from++)
        for (int to = 0; to < size; to++) {
            const uint64_t sent = all[2 * size * from + to];
            const uint64_t expected = all[2 * size * to + size + from];
            *longest = sent > *longest ? sent : *longest;
            if (sent == expected)
                continue;
            outcome->rank = from;
            outcome->peer = to;
            outcome->expected = outcome->seen = op->operation;
            outcome->expected.dims = outcome->seen.dims = 2; /* for the message */
            outcome->expected.sizes[0] = outcome->seen.sizes[0] = from;
            outcome->expected.sizes[1] = outcome->seen.sizes[1] = to;
            outcome->expected.signature |= sent & SIGNATURE_COUNT_MAX;
            outcome->seen.signature |= expected & SIGNATURE_COUNT_MAX;
            return TUTTI_ERR_MISMATCH;
        }
    return status;
}

/* A list as an operand of the v-form. Returns the address of its first tensor in memory. */
static void *list_read(const struct pg_op *op, const struct pg_operand *operand, size_t *counts,
                       size_t *displacements)
{
    char *first = NULL;
    for (int r = 0; r < operand->count; r++) {
        char *data = pg_block(op, operand, 0, r, &counts[r]);
        if (counts[r] && (!first || data < first))
            first = data;
    }
    for (int r = 0; r < operand->count; r++)
        displacements[r] = counts[r] ? (size_t)((char *)operand->tensors[r].data - first) /
                                           dtype_bytes(op->args.dtype)
                                     : 0;
    return first;
}

static enum tutti_status lists_run(struct tutti_pg *pg, const struct pg_op *op)
{
    size_t counts[2][TUTTI_MAX_RANKS], displacements[2][TUTTI_MAX_RANKS];
    struct coll_args args = op->args;
    args.send = list_read(op, &op->send, counts[0], displacements[0]);
    args.recv = list_read(op, &op->recv, counts[1], displacements[1]);
    args.send_blocks = (struct coll_blocks){counts[0], displacements[0]};
    args.recv_blocks = (struct coll_blocks){counts[1], displacements[1]};
    return comm_run(pg->comm, TUTTI_COLLECTIVE_ALL_TO_ALL_V, &args, op->timeout_ms,
                    TUTTI_STREAM_DEFAULT);
}

void pg_blocks_run(struct tutti_pg *pg, struct pg_op *op, struct pg_outcome *outcome)
{
    struct move move = {.pg = pg, .op = op};
    enum tutti_status status = TUTTI_OK;
    const bool lists = op->operation.format == LAYOUT_LISTS;
    const struct pg_operand *operand = op->send.count ? &op->send : &op->recv;
    if (lists)
        status = lengths_agree(pg, op, outcome, &move.count);
    for (; move.pair < (int)op->operation.pairs && status == TUTTI_OK; move.pair++) {
        if (!lists)
            (void)pg_block(op, operand, move.pair, 0, &move.count);
        if (op->staging && move.count)
            status = pg_staging_run(pg, op, move.pair, move.count);
        else if (lists && op->direct &&
                 move.count * (size_t)pg->comm->world_size >
                     PADDED_BYTES / dtype_bytes(op->args.dtype))
            status = lists_run(pg, op);
        else
            status = op->direct && !lists ? part_run(&move, first_block(&move, &op->send),
                                                     first_block(&move, &op->recv), move.count)
                                          : pieces_run(&move);
    }
    outcome->status = status;
}
