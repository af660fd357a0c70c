/* SPDX-License-Identifier: MIT */
/*
 * Runs the collectives other than the all-reduce, pair by pair. A pair whose blocks lie side by
 * side on all ranks is one operation of the communicator. Otherwise the blocks of a list go through
 * a buffer, one piece of each block at a time, with the same bounds on all ranks.
 *
 * The tensors of an all-to-all of lists have any lengths. All ranks exchange the lengths first, so
 * that all find a disagreement and no rank waits for bytes that do not come. Then the lists are the
 * operands of the communicator's v-form. If they are short, or in place or mixed in memory on any
 * rank, the blocks go through the buffer as if each were as long as the longest one of any rank.
 *
 * The group's devices run all this on a stream: the collectives by the CUDA communicator, the
 * copies to and from the buffer, which is memory of the device. The communicator has no kernel for
 * the v-form, so there lists of any lengths go through the buffer. CUDA tensors elsewhere are
 * staged (staging.c).
 */
#include "base/error.h"
#include "pg/pg.h"

#include <string.h>

enum { BUFFER_BYTES = PG_WIDE_ELEMENTS * sizeof(float), PIECE_ALIGNMENT = 64 };
enum { PADDED_BYTES = 16 << 10 }; /* up to this size of a list's padded blocks no v-form runs */

/* One pair of an operation. */
struct move {
    struct tutti_pg *pg;
    struct pg_operation *operation;
    int pair;
    size_t count; /* elements of a block; in an all-to-all of lists, of the longest block */
    bool even;    /* lists whose blocks all have that length */
};

static enum tutti_status part_run(const struct move *move, const void *send, void *recv,
                                  size_t count)
{
    struct coll_args args = move->operation->args;
    args.send = send;
    args.recv = recv;
    args.count = count;
    return pg_run(move->pg, move->operation, &args);
}

static void *first_block(const struct move *move, const struct pg_operand *operand)
{
    size_t count;
    return operand->count ? pg_block(move->operation, operand, move->pair, 0, &count) : NULL;
}

static enum tutti_status whole_run(const struct move *move)
{
    return part_run(move, first_block(move, &move->operation->send),
                    first_block(move, &move->operation->recv), move->count);
}

static char *buffer_of(const struct move *move)
{
    return pg_is_on_device(move->operation) ? (char *)move->pg->buffer->memory
                                            : (char *)move->pg->widened;
}

/* Elements of each block that the buffer holds. */
static size_t buffer_elements(const struct move *move)
{
    const size_t bytes = pg_is_on_device(move->operation) ? PG_BUFFER_BYTES : BUFFER_BYTES;
    return bytes / (size_t)move->pg->comm->world_size / PIECE_ALIGNMENT * PIECE_ALIGNMENT /
           dtype_bytes(move->operation->args.dtype);
}

static enum tutti_status block_copy(const struct move *move, void *to, const void *from,
                                    size_t bytes)
{
    if (pg_is_on_device(move->operation))
        return pg_cuda_copy(move->pg, move->operation, to, from, bytes);
    move->pg->comm->isa->copy(to, from, bytes);
    return TUTTI_OK;
}

/* Copy elements of all blocks, from `first` on, to the buffer or back; at most `count` of each. */
static enum tutti_status blocks_copy(const struct move *move, const struct pg_operand *operand,
                                     bool back, size_t first, size_t count)
{
    const size_t width = dtype_bytes(move->operation->args.dtype);
    const int blocks = operand->count ? operand->each * operand->blocks : 0;
    enum tutti_status status = TUTTI_OK;
    for (int b = 0; b < blocks && status == TUTTI_OK; b++) {
        size_t elements;
        char *block = pg_block(move->operation, operand, move->pair, b, &elements);
        char *buffer = buffer_of(move) + (size_t)b * count * width;
        const size_t left = elements > first ? elements - first : 0;
        block += first * width;
        if (left)
            status = block_copy(move, back ? block : buffer, back ? buffer : block,
                                (left < count ? left : count) * width);
    }
    return status;
}

/* The buffer takes the operands that have a block for each rank, a piece of every block at a time.
 */
static enum tutti_status pieces_run(const struct move *move)
{
    const struct pg_operation *operation = move->operation;
    const struct coll *coll = &coll_rows[operation->work.collective];
    const size_t width = dtype_bytes(operation->args.dtype), most = buffer_elements(move);
    enum tutti_status status = TUTTI_OK;
    for (size_t first = 0; first < move->count && status == TUTTI_OK; first += most) {
        const size_t left = move->count - first, count = left < most ? left : most;
        char *send = first_block(move, &operation->send);
        char *recv = first_block(move, &operation->recv);
        send = coll->send_all ? buffer_of(move) : send ? send + first * width : NULL;
        recv = coll->recv_all ? buffer_of(move) : recv ? recv + first * width : NULL;
        if (coll->send_all)
            status = blocks_copy(move, &operation->send, false, first, count);
        if (status == TUTTI_OK)
            status = part_run(move, send, recv, count);
        if (coll->recv_all && status == TUTTI_OK)
            status = blocks_copy(move, &operation->recv, true, first, count);
    }
    return status;
}

/* ---- all-to-all of lists --------------------------------------------------------------------- */

/* What a rank sends to each rank, then what it expects of each. */
static void lengths_set(const struct pg_operation *operation, int size, uint64_t *lengths)
{
    for (int r = 0; r < 2 * size; r++) {
        size_t count;
        (void)pg_block(operation, r < size ? &operation->send : &operation->recv, 0, r % size,
                       &count);
        lengths[r] = count;
    }
}

/* Exchange the lengths, on the hosts. Sets `count` and `even`. Returns MISMATCH if two ranks
 * disagree. */
static enum tutti_status lengths_agree(struct move *move, struct pg_outcome *outcome)
{
    struct tutti_pg *pg = move->pg;
    const struct pg_operation *operation = move->operation;
    const int size = pg->comm->world_size;
    uint64_t *all = (uint64_t *)(void *)pg->widened, *own = all + 2 * size * pg->comm->rank;
    lengths_set(operation, size, own);
    const struct coll_args args = coll_args_make(own, all, 2 * (size_t)size, TUTTI_UINT64, NULL, 0);
    enum tutti_status status = comm_run(pg->comm, TUTTI_COLLECTIVE_ALL_GATHER, &args,
                                        operation->timeout_ms, TUTTI_STREAM_DEFAULT);
    for (int from = 0; from < size && status == TUTTI_OK; from++)
        for (int to = 0; to < size; to++) {
            const uint64_t sent = all[2 * size * from + to];
            const uint64_t expected = all[2 * size * to + size + from];
            move->even = sent == all[0] && (move->even || from + to == 0);
            move->count = sent > move->count ? sent : move->count;
            if (sent == expected)
                continue;
            outcome->rank = from;
            outcome->peer = to;
            outcome->expected = outcome->seen = operation->description;
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
static void *list_read(const struct pg_operation *operation, const struct pg_operand *operand,
                       size_t *counts, size_t *displacements)
{
    char *first = NULL;
    for (int r = 0; r < operand->count; r++) {
        char *data = pg_block(operation, operand, 0, r, &counts[r]);
        if (counts[r] && (!first || data < first))
            first = data;
    }
    for (int r = 0; r < operand->count; r++)
        displacements[r] = counts[r] ? (size_t)((char *)operand->tensors[r].data - first) /
                                           dtype_bytes(operation->args.dtype)
                                     : 0;
    return first;
}

static enum tutti_status v_form_run(const struct move *move)
{
    const struct pg_operation *operation = move->operation;
    size_t counts[2][WORLD_RANKS], displacements[2][WORLD_RANKS];
    struct coll_args args = operation->args;
    args.send = list_read(operation, &operation->send, counts[0], displacements[0]);
    args.recv = list_read(operation, &operation->recv, counts[1], displacements[1]);
    args.send_blocks = (struct coll_blocks){.counts = counts[0], .displacements = displacements[0]};
    args.recv_blocks = (struct coll_blocks){.counts = counts[1], .displacements = displacements[1]};
    return comm_run(move->pg->comm, TUTTI_COLLECTIVE_ALL_TO_ALL_V, &args, operation->timeout_ms,
                    TUTTI_STREAM_DEFAULT);
}

static enum tutti_status lists_run(const struct move *move)
{
    const struct pg_operation *operation = move->operation;
    const size_t padded =
        move->count * (size_t)move->pg->comm->world_size * dtype_bytes(operation->args.dtype);
    const bool is_short = padded <= PADDED_BYTES;
    if (pg_is_on_device(operation))
        return operation->facts & LAYOUT_WHOLE && move->even ? whole_run(move) : pieces_run(move);
    return operation->facts & LAYOUT_WHOLE && !is_short ? v_form_run(move) : pieces_run(move);
}

/* ---- the operation --------------------------------------------------------------------------- */

static enum tutti_status pair_run(const struct move *move)
{
    const struct pg_operation *operation = move->operation;
    if (operation->cuda && !move->count)
        return TUTTI_OK;
    if (operation->cuda && !pg_is_on_device(operation))
        return pg_staging_run(move->pg, move->operation, move->pair, move->count);
    if (operation->description.format == LAYOUT_LISTS)
        return lists_run(move);
    return operation->facts & LAYOUT_WHOLE ? whole_run(move) : pieces_run(move);
}

void pg_blocks_run(struct tutti_pg *pg, struct pg_operation *operation, struct pg_outcome *outcome)
{
    struct move move = {.pg = pg, .operation = operation};
    const struct pg_operand *operand = operation->send.count ? &operation->send : &operation->recv;
    const bool lists = operation->description.format == LAYOUT_LISTS;
    enum tutti_status status = lists ? lengths_agree(&move, outcome) : TUTTI_OK;
    for (; move.pair < (int)operation->description.pairs && status == TUTTI_OK; move.pair++) {
        if (!lists)
            (void)pg_block(operation, operand, move.pair, 0, &move.count);
        status = pair_run(&move);
    }
    outcome->status = status;
}
