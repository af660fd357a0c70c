/* SPDX-License-Identifier: MIT */
/*
 * Rooted collectives, v-forms, send and receive: messages of the lane PAIR (pair.h). A block moves
 * in pieces, a message each; an empty block is one empty message, whose receiver compares its
 * length.
 *
 * A broadcast and an all-gather use one way to all ranks, the others a way for each pair of ranks.
 * A rank that reduces waits for a piece of every rank, then reduces the pieces where they lie.
 *
 * A rank of a v-form sends and receives at the same time, but waits for one word at a time. It
 * waits for the block with the fewest bytes moved, so that ranks never wait in a circle:
 * docs/ordering.md.
 */
#include "cpu/transport/pair.h"
#include "base/point.h"
#include "coll/coll.h"
#include "cpu/algo/algo.h"

/* A block has at least four pieces, so that a receiver copies one while the sender copies the next
 * one. But it is not cut into pieces shorter than this (2 ranks, 64 KiB, near: 1.6 us in one piece,
 * 1.2 in four of 16 KiB; far: 3.6, 2.8, and 3.3 in eight of 8 KiB). Ranks that share cores cannot
 * copy at the same time, so their pieces are as long as the places. */
enum { PIECE_LEAST_BYTES = 16 * 1024 };

/* A block on its way. */
struct pair_block {
    size_t at; /* in its operand */
    size_t bytes;
    size_t done;        /* of the bytes */
    uint64_t signature; /* of its messages */
};

struct pair_op {
    struct cpu_op base;
    bool to_all;
    bool sends, receives;     /* the rank has that operand */
    size_t least, whole;      /* bytes of a piece, unless it is the last one */
    struct rank_set to, from; /* whose blocks have not all moved; a reduction's own one counts */
    struct pair_block sent[TUTTI_MAX_RANKS]; /* [the own rank]: to all */
    struct pair_block received[TUTTI_MAX_RANKS];
};

/* Sets the ranks to which this rank sends, and those from which it receives. */
static void ways_find(const struct cpu_group *group, const struct request *request,
                      struct pair_op *op)
{
    const struct coll *coll = &coll_rows[request->collective];
    const struct rank_set root = coll->peer ? rank_set_of(request->peer) : rank_set_none;
    const struct rank_set own = rank_set_of(group->rank);
    const struct rank_set others = rank_set_minus(rank_set_all(group->size), own);
    const bool is_root = group->rank == request->peer, to_root = coll->recv == COLL_OF_ROOT;
    op->to = op->from = rank_set_none;
    if (coll->peer == COLL_PARTNER)
        *(coll->recv == COLL_OF_NONE ? &op->to : &op->from) = root;
    else if (coll->peer == COLL_ROOT && !is_root)
        *(to_root ? &op->to : &op->from) = root;
    else {
        if (to_root || !coll->peer)
            op->from = request->reduce ? rank_set_all(group->size) : others;
        if (!to_root)
            op->to = op->to_all && group->size > 1 ? own : others;
    }
}

/* Finds the blocks of an operand that concern these ranks. `many`: it has a block for each rank. */
static void blocks_find(const struct request *request, bool many, const struct coll_blocks *given,
                        struct rank_set ranks, struct pair_block *blocks)
{
    const bool varies = coll_rows[request->collective].varies;
    size_t next = 0;
    for (int r = rank_set_next(ranks, -1); r >= 0; r = rank_set_next(ranks, r)) {
        struct pair_block *block = &blocks[r];
        block->done = 0;
        if (!varies) {
            block->at = many ? (size_t)r * request->bytes : 0;
            block->bytes = request->bytes;
            block->signature = request->signature;
            continue;
        }
        const size_t count = many ? given->counts[r] : request->count;
        const size_t at = many && given->displacements ? given->displacements[r] : next;
        block->at = at * request->bytes;
        block->bytes = count * request->bytes;
        block->signature = signature_set_count(request->signature, count);
        next += many ? count : 0;
    }
}

static enum tutti_status pair_start(void *opaque, struct request *request, void *state)
{
    struct cpu_group *group = opaque;
    struct pair_op *op = state;
    const struct coll *coll = &coll_rows[request->collective];
    const enum tutti_status status = pair_begin(group, request);
    if (status != TUTTI_OK)
        return status;
    op_init(&op->base);
    op->to_all = !coll->send_all && !coll->reduces && coll->peer != COLL_PARTNER &&
                 coll->recv == COLL_OF_ALL;
    op->whole = message_bytes(group, op->to_all);
    op->least = group->oversubscribed ? op->whole : PIECE_LEAST_BYTES;
    op->sends = coll_has(coll->send, group->rank, request->peer);
    op->receives = coll_has(coll->recv, group->rank, request->peer);
    ways_find(group, request, op);
    struct rank_set to = op->to, from = op->from;
    if (op->sends && op->receives) {
        rank_set_add(&to, group->rank);
        rank_set_add(&from, group->rank);
    }
    blocks_find(request, coll->send_all, &request->send_blocks, to, op->sent);
    blocks_find(request, coll->recv_all, &request->recv_blocks, from, op->received);
    POINT("pair.entered");
    request_started(request, group->op.sequence, request_kind(request), RECORD_RUNNING);
    return TUTTI_OK;
}

/* The bytes of a block's next piece. */
static size_t piece_of(const struct pair_op *op, const struct pair_block *block)
{
    const size_t left = block->bytes - block->done;
    const size_t quarter = block->bytes / 4 / LAYOUT_LINE * LAYOUT_LINE;
    const size_t wanted = quarter > op->least ? quarter : op->least;
    const size_t most = wanted < op->whole ? wanted : op->whole;
    return left < most ? left : most;
}

/* Where the rest of a block lies. The block must not be empty: its operand may be NULL. */
static const unsigned char *sent_at(const struct request *request, const struct pair_block *block)
{
    return (const unsigned char *)request->send + block->at + block->done;
}

static unsigned char *received_at(const struct request *request, const struct pair_block *block)
{
    return (unsigned char *)request->recv + block->at + block->done;
}

/* Whether all readers of the way have read the old message in its next place. */
static bool is_free(struct cpu_group *group, struct pair_op *op, int to)
{
    if (to != group->rank)
        return place_is_free(group, &op->base, to, false);
    for (; op->base.at < group->size; op->base.at++)
        if (op->base.at != group->rank && !place_is_free(group, &op->base, op->base.at, true))
            return false;
    op->base.at = 0;
    return true;
}

static bool has_arrived(struct cpu_group *group, const struct request *request, struct pair_op *op,
                        int from)
{
    return message_arrived(group, &op->base, from, op->to_all, op->received[from].signature,
                           request);
}

/* Sends pieces while places are free. */
static void pieces_send(struct cpu_group *group, const struct request *request, struct pair_op *op)
{
    for (int r = rank_set_next(op->to, -1); r >= 0; r = rank_set_next(op->to, r)) {
        struct pair_block *block = &op->sent[r];
        bool more = true;
        while (more && is_free(group, op, r)) {
            const size_t bytes = piece_of(op, block);
            message_send(group, r, bytes ? sent_at(request, block) : NULL, bytes, block->signature,
                         request);
            POINT("pair.sent");
            block->done += bytes;
            more = block->done < block->bytes;
        }
        if (!more)
            rank_set_remove(&op->to, r);
    }
}

/* Takes the pieces that have arrived. */
static void pieces_take(struct cpu_group *group, const struct request *request, struct pair_op *op)
{
    for (int r = rank_set_next(op->from, -1); r >= 0; r = rank_set_next(op->from, r)) {
        struct pair_block *block = &op->received[r];
        bool more = true;
        while (more && has_arrived(group, request, op, r)) {
            const size_t bytes = piece_of(op, block);
            if (bytes)
                copy_near(group, received_at(request, block),
                          message_peek(group, r, op->to_all, bytes), bytes);
            POINT("pair.received");
            message_release(group, r, op->to_all);
            block->done += bytes;
            more = block->done < block->bytes;
        }
        if (!more)
            rank_set_remove(&op->from, r);
    }
}

/* Reduces the next piece of every rank; all have arrived. */
static void piece_reduce(struct cpu_group *group, const struct request *request,
                         const struct pair_op *op, size_t bytes)
{
    const void *in[TUTTI_MAX_RANKS];
    const struct pair_block *result = &op->received[group->rank];
    const unsigned char *own = request->send;
    own += op->sent[group->rank].at + result->done;
    for (int leaf = 0; leaf < group->size; leaf++) {
        const int r = group->ranks.order[leaf];
        in[leaf] = r == group->rank ? own : message_peek(group, r, false, bytes);
    }
    const uint64_t environment = reduce_env_begin();
    leaves_reduce(group, request, received_at(request, result), bytes / request->element_bytes, in);
    reduce_env_end(environment);
}

/* Reduces the pieces that have arrived from every rank. */
static void pieces_reduce(struct cpu_group *group, const struct request *request,
                          struct pair_op *op)
{
    struct pair_block *result = &op->received[group->rank];
    while (!rank_set_empty(op->from)) {
        const size_t bytes = piece_of(op, result);
        for (; op->base.at < group->size; op->base.at++)
            if (op->base.at != group->rank && !has_arrived(group, request, op, op->base.at))
                return;
        if (bytes)
            piece_reduce(group, request, op, bytes);
        POINT("pair.reduced");
        op->base.at = 0;
        for (int r = rank_set_next(op->from, -1); r >= 0; r = rank_set_next(op->from, r)) {
            op->received[r].done += bytes;
            if (r != group->rank)
                message_release(group, r, false);
        }
        if (result->done == result->bytes)
            op->from = rank_set_none;
    }
}

/* The rank of the set whose block has the fewest bytes moved; -1: the set is empty. */
static int least_moved(struct rank_set ranks, const struct pair_block *blocks)
{
    int least = rank_set_next(ranks, -1);
    for (int r = least; r >= 0; r = rank_set_next(ranks, r))
        if (blocks[r].done < blocks[least].done)
            least = r;
    return least;
}

/* Chooses the word that the step waits for. Keeps the word that was read last if only that one is
 * missing. Otherwise that word may belong to a message that has arrived, so reads another one.
 */
static void wait_choose(struct cpu_group *group, const struct request *request, struct pair_op *op,
                        bool reduces)
{
    if (rank_set_empty(op->to) &&
        (reduces || (rank_set_count(op->from) == 1 && rank_set_has(op->from, op->base.peer))))
        return;
    const int to = least_moved(op->to, op->sent), from = least_moved(op->from, op->received);
    if (from >= 0 && (to < 0 || op->received[from].done < op->sent[to].done))
        (void)has_arrived(group, request, op, reduces ? op->base.at : from);
    else
        (void)is_free(group, op, to);
}

static void own_block_copy(const struct cpu_group *group, const struct request *request,
                           const struct pair_op *op)
{
    const struct pair_block *block = &op->received[group->rank];
    if (!block->bytes)
        return;
    const unsigned char *send = request->send;
    send += op->sent[group->rank].at;
    unsigned char *recv = received_at(request, block);
    if (send != recv)
        copy_near(group, recv, send, block->bytes);
}

static enum op_progress pair_step(void *opaque, struct request *request, void *state)
{
    struct cpu_group *group = opaque;
    struct pair_op *op = state;
    const bool reduces = request->reduce && op->receives;
    pieces_send(group, request, op);
    (reduces ? pieces_reduce : pieces_take)(group, request, op);
    if (op->base.status != TUTTI_OK)
        return OP_DONE;
    if (!rank_set_empty(op->to) || !rank_set_empty(op->from)) {
        wait_choose(group, request, op, reduces);
        return op_stopped(&op->base);
    }
    if (op->sends && op->receives && !reduces)
        own_block_copy(group, request, op);
    request->quick = group->op.deadline == 0;
    return op_end(&op->base, TUTTI_OK);
}

static enum tutti_status pair_run(void *group, struct request *request, tutti_stream_t stream)
{
    struct pair_op op;
    const enum tutti_status status = pair_start(group, request, &op);
    (void)stream;
    return status == TUTTI_OK ? cpu_steps_run(group, request, &op.base, pair_step) : status;
}

const struct algorithm cpu_pair = {sizeof(struct pair_op), pair_start, pair_step, pair_run};
