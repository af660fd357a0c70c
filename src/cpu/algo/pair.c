/* SPDX-License-Identifier: MIT */
/*
 * Rooted collectives, v-forms, send and receive: messages of the lane PAIR (pair.h). A block moves
 * in pieces, a message each; an empty block is one empty message, whose receiver compares its
 * length.
 *
 * A broadcast and an all-gather use one way to all ranks, the others a way for each pair of ranks.
 * A rank that reduces waits for a piece of every rank, then reduces the pieces where they lie.
 *
 * With a root, and in a message, a rank offers a long block that other ranks may reach. They read
 * it where it lies, and the sender writes a share of it into their memory. The sender's call ends
 * once all have read. A rank that cannot reach the block refuses; it then gets pieces. direct.c
 * says what a rank that fails waits for.
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

/* Both ends copy a part of an offered block from this size on. (2 ranks, near, in place: a scatter
 * of 2 MiB takes 8 us instead of 16. Broadcasts of 64 KiB whose root changes would take 2.4 us
 * instead of 1.5.) */
enum { SHARE_LEAST_BYTES = 256 * 1024 };

/* A block on its way. */
struct pair_block {
    size_t at; /* in its operand */
    size_t bytes;
    size_t done;                /* of the bytes */
    uint64_t signature;         /* of its messages */
    uint64_t message;           /* the one that offered it */
    const unsigned char *place; /* of an offered block that this rank has accepted; else NULL */
};

struct pair_op {
    struct cpu_op base;
    bool to_all;
    bool sends, receives;     /* the rank has that operand */
    bool copies_own;          /* the rank has to copy its own block */
    bool own_waits;           /* it has not done so yet */
    size_t least, whole;      /* bytes of a piece, unless it is the last one */
    struct rank_set to, from; /* whose blocks have not all moved; a reduction's own one counts */
    struct rank_set offered;  /* the ranks that have an offer and have not read the block */
    struct rank_set answered; /* of these, the ranks whose share is written */
    struct rank_set refused;
    bool offers; /* the blocks that this rank sends, where they lie */
    struct distance_probe probe;
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
        block->place = NULL;
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

/* The root and its next partner measure their distance if the block is so long that they wait for
 * each other. All ranks count the operation. */
static void probe_begin(struct cpu_group *group, const struct request *request, struct pair_op *op)
{
    const struct coll *coll = &coll_rows[request->collective];
    op->probe.done = DISTANCE_PING_PONGS;
    if (coll->peer != COLL_ROOT || coll->varies || request->bytes <= LAYOUT_WINDOW * op->whole)
        return;
    op->probe = distance_begin(group, request);
    if (group->rank != request->peer && op->probe.partner != request->peer)
        op->probe.done = DISTANCE_PING_PONGS;
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
    op->offered = op->answered = op->refused = rank_set_none;
    op->offers = request->choice.zero_copy && request->operands.send_id != LAYOUT_PRIVATE;
    op->whole = message_bytes(group, op->to_all);
    op->least = group->oversubscribed ? op->whole : PIECE_LEAST_BYTES;
    op->sends = coll_has(coll->send, group->rank, request->peer);
    op->receives = coll_has(coll->recv, group->rank, request->peer);
    probe_begin(group, request, op);
    ways_find(group, request, op);
    struct rank_set to = op->to, from = op->from;
    if (op->sends && op->receives) {
        rank_set_add(&to, group->rank);
        rank_set_add(&from, group->rank);
    }
    blocks_find(request, coll->send_all, &request->send_blocks, to, op->sent);
    blocks_find(request, coll->recv_all, &request->recv_blocks, from, op->received);
    op->copies_own = op->sends && op->receives && !request->reduce &&
                     op->received[group->rank].bytes &&
                     (const unsigned char *)request->send + op->sent[group->rank].at !=
                         (const unsigned char *)request->recv + op->received[group->rank].at;
    op->own_waits = op->copies_own;
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

/* ---- blocks that are read where they lie ----------------------------------------------------- */

/* After a refusal: from now on the ranks use the ways for each pair of ranks. */
static void to_each(const struct cpu_group *group, struct pair_op *op)
{
    op->to_all = false;
    op->whole = message_bytes(group, false);
}

/* Offers the block for a rank, or for all. The place of the message must be free. */
static void block_offer(struct cpu_group *group, const struct request *request, struct pair_op *op,
                        int to)
{
    struct layout_message *message = message_next(group, to);
    struct pair_block *block = &op->sent[to];
    message->u.operands = request->operands;
    message->u.operands.send += block->at;
    message->u.operands.recv_id = op->copies_own ? LAYOUT_PRIVATE : request->operands.send_id;
    message->order = message_order(group, request) | LAYOUT_OFFER_ORDER;
    block->message = group->op.sent[to];
    message_post(group, to, block->signature, request->parameter);
    POINT("pair.offered");
    rank_set_remove(&op->to, to);
    for (int r = 0; r < group->size; r++)
        if (r != group->rank && (r == to || op->to_all)) {
            rank_set_add(&op->offered, r);
            group->op.offers[r]++;
        }
}

/* Writes this rank's share of an offered block, which the reader has asked for. */
static enum tutti_status share_write(struct cpu_group *group, const struct request *request,
                                     const struct pair_block *block, int to)
{
    const struct layout_read *answer = reads_of(group, to, group->rank);
    const size_t share = answer->share_bytes;
    enum tutti_status status = direct_touch_begin(group, rank_set_of(to));
    if (status == TUTTI_OK) {
        copy_near(group, operand_at(request->send_buffers, to, answer->place),
                  (const unsigned char *)request->send + block->at + block->bytes - share, share);
        status = direct_touch_end(group, rank_set_of(to));
    }
    if (status != TUTTI_OK)
        return status;
    order_store_release_u32(&reads_of(group, group->rank, to)->written, /* X5 pairs A1 */
                            group->op.offers[to]);
    bell_ring_if_heard(group);
    return TUTTI_OK;
}

/* Whether a reader has answered and ended. */
static bool offer_ended(struct cpu_group *group, const struct request *request, struct pair_op *op,
                        int to)
{
    struct pair_block *block = &op->sent[op->to_all ? group->rank : to];
    const struct layout_read *answer = reads_of(group, to, group->rank);
    if (!rank_set_has(op->answered, to)) {
        if (!word_arrived(&op->base, to, &answer->answered, group->op.offers[to])) /* A1: X4 */
            return false;
        rank_set_add(&op->answered, to);
        if (answer->share_bytes == LAYOUT_REFUSED)
            rank_set_add(&op->refused, to);
        else if (answer->share_bytes && op->base.status == TUTTI_OK)
            op->base.status = share_write(group, request, block, to);
    }
    return op->base.status == TUTTI_OK &&
           word_arrived(&op->base, to,
                        message_read(group, to, group->rank, op->to_all, block->message),
                        message_number(block->message));
}

/* Goes on with the offers. At their end the block is sent in pieces to the ranks that have refused,
 * to each one by itself. */
static void offers_end(struct cpu_group *group, const struct request *request, struct pair_op *op)
{
    const struct pair_block *block = &op->sent[group->rank];
    for (int r = rank_set_next(op->offered, -1); r >= 0; r = rank_set_next(op->offered, r))
        if (offer_ended(group, request, op, r))
            rank_set_remove(&op->offered, r);
    if (!rank_set_empty(op->offered) || rank_set_empty(op->refused))
        return;
    for (int r = rank_set_next(op->refused, -1); r >= 0; r = rank_set_next(op->refused, r)) {
        rank_set_add(&op->to, r);
        if (op->to_all)
            op->sent[r] = *block;
    }
    op->refused = rank_set_none;
    op->offers = false;
    to_each(group, op);
}

/* The bytes of an offered block that its sender writes. The root of a collective has a part in the
 * blocks of all other ranks, unless it copies its own block meanwhile. */
static size_t share_of(const struct cpu_group *group, const struct request *request,
                       const struct pair_op *op, const struct layout_operands *offer, size_t bytes)
{
    const bool partner = coll_rows[request->collective].peer == COLL_PARTNER;
    const size_t ranks = partner ? 2 : (size_t)group->size;
    const size_t part = bytes / ranks / LAYOUT_LINE * LAYOUT_LINE;
    if (group->oversubscribed || bytes < SHARE_LEAST_BYTES ||
        request->operands.recv_id != offer->send_id)
        return 0;
    if (!partner && request->peer == group->rank)
        return op->copies_own ? bytes : bytes - part;
    return offer->recv_id == LAYOUT_PRIVATE ? 0 : part;
}

/* Answers an offer. Accepts it, and sets block->place, if this rank has an operand of its own in
 * the same allocation. Its caller keeps that allocation, and so the peers' mappings. */
static void offer_answer(struct cpu_group *group, const struct request *request, struct pair_op *op,
                         int from)
{
    struct layout_read *answer = reads_of(group, group->rank, from);
    struct pair_block *block = &op->received[from];
    const struct layout_operands *offer = &message_front(group, from, op->to_all)->u.operands;
    const struct layout_operands *own = &request->operands;
    if (request->choice.zero_copy && own->recv_id == offer->send_id)
        block->place = operand_at(request->recv_buffers, from, offer->send);
    else if (request->choice.zero_copy && own->send_id == offer->send_id)
        block->place = operand_at(request->send_buffers, from, offer->send);
    answer->share_bytes =
        block->place ? share_of(group, request, op, offer, block->bytes) : LAYOUT_REFUSED;
    if (block->place)
        answer->place = own->recv + block->at + block->bytes - answer->share_bytes;
    order_store_release_u32(&answer->answered, ++group->op.answers[from]); /* X4 pairs A1 */
    bell_ring_if_heard(group);
    POINT("pair.answered");
    if (block->place)
        return;
    message_release(group, from, op->to_all);
    to_each(group, op);
}

/* Whether a piece of the block has arrived, or this rank has accepted the whole block. */
static bool has_arrived(struct cpu_group *group, const struct request *request, struct pair_op *op,
                        int from)
{
    const struct pair_block *block = &op->received[from];
    do {
        if (!message_arrived(group, &op->base, from, op->to_all, block->signature, request))
            return false;
        if (block->place || !(message_front(group, from, op->to_all)->order & LAYOUT_OFFER_ORDER))
            return true;
        offer_answer(group, request, op, from);
    } while (!block->place); /* pieces follow */
    return true;
}

/* Reads an accepted block, except for its sender's share. Returns whether that, too, is there. */
static bool offer_take(struct cpu_group *group, const struct request *request, struct pair_op *op,
                       int from)
{
    struct layout_read *answer = reads_of(group, group->rank, from);
    struct pair_block *block = &op->received[from];
    if (!block->done && op->base.status == TUTTI_OK) {
        op->base.status = direct_touch_begin(group, rank_set_of(from));
        if (op->base.status != TUTTI_OK)
            return false;
        copy_near(group, received_at(request, block), block->place,
                  block->bytes - answer->share_bytes);
        op->base.status = direct_touch_end(group, rank_set_of(from));
        block->done = block->bytes;
    }
    return op->base.status == TUTTI_OK &&
           (!answer->share_bytes ||
            word_arrived(&op->base, from, &reads_of(group, from, group->rank)->written,
                         group->op.answers[from])); /* A1 pairs X5 */
}

/* ---- pieces ---------------------------------------------------------------------------------- */

/* Sends pieces while places are free. */
static void pieces_send(struct cpu_group *group, const struct request *request, struct pair_op *op)
{
    for (int r = rank_set_next(op->to, -1); r >= 0; r = rank_set_next(op->to, r)) {
        struct pair_block *block = &op->sent[r];
        bool more = true;
        if (op->offers) {
            if (is_free(group, op, r))
                block_offer(group, request, op, r);
            continue;
        }
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
            const size_t bytes = block->place ? 0 : piece_of(op, block);
            if (block->place && !offer_take(group, request, op, r))
                break;
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
        (void)(op->received[from].place ? offer_take : has_arrived)(group, request, op,
                                                                    reduces ? op->base.at : from);
    else if (to >= 0)
        (void)is_free(group, op, to);
    else
        (void)offer_ended(group, request, op, rank_set_next(op->offered, -1));
}

static void own_block_copy(const struct cpu_group *group, const struct request *request,
                           struct pair_op *op)
{
    const struct pair_block *block = &op->received[group->rank];
    op->own_waits = false;
    copy_near(group, received_at(request, block),
              (const unsigned char *)request->send + op->sent[group->rank].at, block->bytes);
}

static enum op_progress pair_step(void *opaque, struct request *request, void *state)
{
    struct cpu_group *group = opaque;
    struct pair_op *op = state;
    const bool reduces = request->reduce && op->receives;
    if (!distance_step(group, &op->base, &op->probe))
        return op_stopped(&op->base);
    pieces_send(group, request, op);
    (reduces ? pieces_reduce : pieces_take)(group, request, op);
    if (op->own_waits && rank_set_empty(op->to)) /* meanwhile the peers read what they were sent */
        own_block_copy(group, request, op);
    if (!rank_set_empty(op->offered) && op->base.status == TUTTI_OK)
        offers_end(group, request, op);
    if (op->base.status != TUTTI_OK)
        return OP_DONE;
    if (!rank_set_empty(rank_set_union(op->to, rank_set_union(op->from, op->offered)))) {
        wait_choose(group, request, op, reduces);
        return op_stopped(&op->base);
    }
    request->quick = group->op.deadline == 0;
    return op_end(&op->base, TUTTI_OK);
}

static enum tutti_status pair_run(void *group, struct request *request, tutti_stream_t stream)
{
    struct pair_op op;
    (void)stream;
    return operation_run(group, request, &op.base, pair_start, pair_step);
}

const struct algorithm cpu_pair = {sizeof(struct pair_op), pair_start, pair_step, pair_run};
