/* SPDX-License-Identifier: MIT */
/*
 * Rooted collectives, v-forms, send and receive: messages of the lane PAIR (pair.h). A block moves
 * in pieces, a message each; an empty block is one empty message, whose receiver compares its
 * length.
 *
 * A broadcast and an all-gather use one queue to all ranks, the others a queue for each pair of
 * ranks. A rank that reduces waits for a piece of every rank, then reduces the pieces where they
 * lie.
 *
 * With a root, and in a message, a rank offers a long block that other ranks may reach: in an
 * allocation of theirs, or, where the kernel copies between processes, by its address. They read it
 * where it lies, and the sender writes a share of it into their memory. The sender's call ends once
 * all have read. A rank that cannot reach the block refuses; it then gets pieces. direct.c says
 * what a rank that fails waits for.
 *
 * A rank of a v-form sends and receives at the same time, but waits for one word at a time. It
 * waits for the block with the fewest bytes moved, so that ranks never wait in a circle:
 * docs/ordering.md.
 */
#include "cpu/transport/pair.h"
#include "base/point.h"
#include "coll/coll.h"
#include "cpu/algo/algo.h"
#include "cpu/transport/chunk.h"

/* A block has at least four pieces, so that a receiver copies one while the sender copies the next
 * one. But it is not cut into pieces shorter than this (2 ranks, 64 KiB, near: 1.6 us in one piece,
 * 1.2 in four of 16 KiB; far: 3.6, 2.8, and 3.3 in eight of 8 KiB). Where ranks share cores a wait
 * for the next piece may take a turn of the scheduler, about 1 us (4 ranks on 2 cores, gather of
 * 16 MiB: 1.5 of Intel MPI's time in pieces as long as the places, 140 KiB, 1.4 in pieces of 64
 * KiB, 1.2 in pieces of 32 KiB). */
enum { PIECE_LEAST_BYTES = 16 * 1024, PIECE_LEAST_CROWDED_BYTES = 32 * 1024 };

/* Both ends copy a part of an offered block from this size on. (2 ranks, near, in place: a scatter
 * of 2 MiB takes 8 us instead of 16. Broadcasts of 64 KiB whose root changes would take 2.4 us
 * instead of 1.5.) */
enum { SHARE_LEAST_BYTES = 256 * 1024 };

/* While a rank that reduces waits for a piece, it prefetches those that have arrived, up to so many
 * bytes in all. Without that it would read them from the other cores after the last one: 480 lines
 * of 16 ranks' 2 KiB, 8 ns each on Xeon. (Two near cores of Zen 5, from the last of 16 pieces to
 * the sum: 256 B 80 ns instead of 100, 2 KiB 250 ns instead of 421.) A tree of partial sums would
 * read 330 lines on the path of the last piece, with one more hop. */
enum { FETCH_MOST_BYTES = 64 * 1024 };

/* A block that moves. */
struct pair_block {
    size_t at; /* in its operand */
    size_t bytes;
    size_t done;                   /* of the bytes */
    uint64_t signature;            /* of its messages */
    uint64_t message;              /* the one that offered it */
    const unsigned char *accepted; /* where an offered block lies that this rank reads; else NULL */
    bool by_address;               /* in the sender's process */
};

struct pair_state {
    struct cpu_state base;
    bool to_all;
    bool sends, receives;     /* the rank has that operand */
    bool copies_own;          /* the rank has to copy its own block */
    bool own_waits;           /* it has not done so yet */
    size_t least, whole;      /* bytes of a piece, unless it is the last one */
    struct rank_set to, from; /* whose blocks have not all moved; a reduction's own one counts */
    struct rank_set offered;  /* the ranks that have an offer and have not read the block */
    struct rank_set answered; /* of these, the ranks whose share is written */
    struct rank_set refused;
    struct rank_set fetched; /* whose next piece a rank that reduces has prefetched */
    bool offers;             /* the blocks that this rank sends, where they lie */
    struct distance_probe probe;
    struct pair_block sent[NODE_RANKS]; /* [the own rank]: to all */
    struct pair_block received[NODE_RANKS];
};
static_assert(sizeof(struct pair_state) <= CPU_STATE_BYTES, "no state is larger");

/* Sets the ranks to which this rank sends, and those from which it receives. */
static void ends_find(const struct cpu_group *group, const struct request *request,
                      struct pair_state *state)
{
    const struct coll *coll = &coll_rows[request->collective];
    const struct rank_set root = coll->peer ? rank_set_of(request->peer) : rank_set_none;
    const struct rank_set own = rank_set_of(group->peers.rank);
    const struct rank_set others = rank_set_minus(rank_set_all(group->peers.size), own);
    const bool is_root = group->peers.rank == request->peer, to_root = coll->recv == COLL_OF_ROOT;
    state->to = state->from = rank_set_none;
    if (coll->peer == COLL_PARTNER)
        *(coll->recv == COLL_OF_NONE ? &state->to : &state->from) = root;
    else if (coll->peer == COLL_ROOT && !is_root)
        *(to_root ? &state->to : &state->from) = root;
    else {
        if (to_root || !coll->peer)
            state->from = request->reduce ? rank_set_all(group->peers.size) : others;
        if (!to_root)
            state->to = state->to_all && group->peers.size > 1 ? own : others;
    }
}

/* Finds the blocks of an operand that concern these ranks. `many`: it has a block for each rank.
 * Returns the ranks whose blocks have nothing in this part of a v-form. */
static struct rank_set blocks_find(const struct request *request, bool many,
                                   const struct coll_blocks *given, struct rank_set ranks,
                                   struct pair_block *blocks)
{
    const bool varies = coll_rows[request->collective].varies;
    struct rank_set absent = rank_set_none;
    size_t next = 0;
    for (int r = rank_set_next(ranks, -1); r >= 0; r = rank_set_next(ranks, r)) {
        struct pair_block *block = &blocks[r];
        block->done = 0;
        block->accepted = NULL;
        block->by_address = false;
        if (!varies) {
            block->at = many ? (size_t)r * request->bytes : 0;
            block->bytes = request->count * request->element_bytes; /* of a part: fewer */
            block->signature = request->signature;
            continue;
        }
        const size_t count = many ? coll_block_count(given, r) : request->count;
        block->at = (many ? coll_block_start(given, r, &next) : 0) * request->bytes;
        block->bytes = count * request->bytes;
        block->signature = signature_set_count(request->signature, count);
        if (request->choice.parts &&
            !block_cut(request->choice.part, request->choice.parts, &block->at, &block->bytes))
            rank_set_add(&absent, r);
    }
    return absent;
}

/* The root and its next partner measure their distance if the block is so long that they wait for
 * each other. All ranks count the operation. */
static void probe_begin(struct cpu_group *group, const struct request *request,
                        struct pair_state *state)
{
    const struct coll *coll = &coll_rows[request->collective];
    state->probe.done = DISTANCE_PING_PONGS;
    if (coll->peer != COLL_ROOT || coll->varies || request->bytes <= LAYOUT_WINDOW * state->whole)
        return;
    state->probe = distance_begin(group, request);
    if (group->peers.rank != request->peer && state->probe.partner != request->peer)
        state->probe.done = DISTANCE_PING_PONGS;
}

/* Sets everything but the probe. */
static void state_prepare(struct cpu_group *group, const struct request *request,
                          struct pair_state *state)
{
    const struct coll *coll = &coll_rows[request->collective];
    state_init(&state->base);
    state->to_all = !coll->send_all && !coll->reduces && coll->peer != COLL_PARTNER &&
                    coll->recv == COLL_OF_ALL;
    state->offered = state->answered = state->refused = state->fetched = rank_set_none;
    state->offers = request->choice.zero_copy && (request->operands.send_id != LAYOUT_PRIVATE ||
                                                  (is_direct_call(request) && request->shows_send));
    state->whole = message_bytes(group, state->to_all);
    state->least = group->peers.oversubscribed ? PIECE_LEAST_CROWDED_BYTES : PIECE_LEAST_BYTES;
    state->sends = coll_has(coll->send, group->peers.rank, request->peer);
    state->receives = coll_has(coll->recv, group->peers.rank, request->peer);
    ends_find(group, request, state);
    struct rank_set to = state->to, from = state->from;
    if (state->sends && state->receives) {
        rank_set_add(&to, group->peers.rank);
        rank_set_add(&from, group->peers.rank);
    }
    state->to = rank_set_minus(
        state->to, blocks_find(request, coll->send_all, &request->send_blocks, to, state->sent));
    state->from =
        rank_set_minus(state->from, blocks_find(request, coll->recv_all, &request->recv_blocks,
                                                from, state->received));
    state->copies_own =
        state->sends && state->receives && !request->reduce &&
        state->received[group->peers.rank].bytes &&
        (const unsigned char *)request->send + state->sent[group->peers.rank].at !=
            (const unsigned char *)request->recv + state->received[group->peers.rank].at;
    state->own_waits = state->copies_own;
}

static enum tutti_status pair_start(void *opaque, struct request *request, void *memory)
{
    struct cpu_group *group = opaque;
    struct pair_state *state = memory;
    const enum tutti_status status = pair_begin(group, request);
    if (status != TUTTI_OK)
        return status;
    state_prepare(group, request, state);
    probe_begin(group, request, state);
    POINT("pair.entered");
    request_started(request, group->peers.sequence, request_kind(request), RECORD_RUNNING);
    return TUTTI_OK;
}

/* The bytes of a block's next piece. */
static size_t piece_of(const struct pair_state *state, const struct pair_block *block)
{
    const size_t left = block->bytes - block->done;
    const size_t quarter = block->bytes / 4 / LAYOUT_LINE * LAYOUT_LINE;
    const size_t wanted = quarter > state->least ? quarter : state->least;
    const size_t most = wanted < state->whole ? wanted : state->whole;
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

/* Whether all readers of the queue have read the old message in its next place. */
static bool is_free(struct cpu_group *group, struct pair_state *state, int to)
{
    if (to != group->peers.rank)
        return place_is_free(group, &state->base, to, false);
    for (; state->base.at < group->peers.size; state->base.at++)
        if (state->base.at != group->peers.rank &&
            !place_is_free(group, &state->base, state->base.at, true))
            return false;
    state->base.at = 0;
    return true;
}

/* ---- blocks that are read where they lie ----------------------------------------------------- */

/* After a refusal: from now on the ranks use the queues of each pair of ranks. */
static void to_each(const struct cpu_group *group, struct pair_state *state)
{
    state->to_all = false;
    state->whole = message_bytes(group, false);
}

/* Offers the block for a rank, or for all. The place of the message must be free. */
static void block_offer(struct cpu_group *group, const struct request *request,
                        struct pair_state *state, int to)
{
    struct layout_message *message = message_next(group, to);
    struct pair_block *block = &state->sent[to];
    struct layout_operands *offer = &message->u.operands;
    *offer = request->operands;
    offer->send += block->at;
    offer->recv =
        is_direct_call(request) && request->shows_send ? (uintptr_t)sent_at(request, block) : 0;
    if (offer->send_id == LAYOUT_PRIVATE)
        offer->send_id = LAYOUT_ADDRESS;
    offer->recv_id = state->copies_own ? LAYOUT_PRIVATE : offer->send_id;
    message->order = message_order(group, request) | LAYOUT_OFFER_ORDER;
    block->message = group->counts.sent[to];
    message_post(group, to, block->signature, request->parameter);
    POINT("pair.offered");
    rank_set_remove(&state->to, to);
    for (int r = 0; r < group->peers.size; r++)
        if (r != group->peers.rank && (r == to || state->to_all)) {
            rank_set_add(&state->offered, r);
            group->counts.offers[r]++;
        }
}

static enum tutti_status share_copy(struct cpu_group *group, const struct request *request,
                                    const struct pair_block *block, int to)
{
    const struct layout_read *answer = reads_of(group, to, group->peers.rank);
    const size_t share = answer->share_bytes;
    const unsigned char *from =
        (const unsigned char *)request->send + block->at + block->bytes - share;
    if (answer->by_address)
        return direct_write(group, to, answer->share_at, from, share);
    const enum tutti_status status = direct_touch_begin(group, rank_set_of(to));
    if (status != TUTTI_OK)
        return status;
    copy_near(group, operand_at(request->send_buffers, to, answer->share_at), from, share);
    return direct_touch_end(group, rank_set_of(to));
}

/* Writes this rank's share of an offered block, which the reader has asked for. */
static enum tutti_status share_write(struct cpu_group *group, const struct request *request,
                                     const struct pair_block *block, int to)
{
    const enum tutti_status status = share_copy(group, request, block, to);
    if (status != TUTTI_OK)
        return status;
    order_store_release_u32(&reads_of(group, group->peers.rank, to)->written, /* X5 pairs A1 */
                            group->counts.offers[to]);
    bell_ring_if_heard(&group->peers);
    return TUTTI_OK;
}

/* Whether a reader has answered and ended. */
static bool offer_ended(struct cpu_group *group, const struct request *request,
                        struct pair_state *state, int to)
{
    struct pair_block *block = &state->sent[state->to_all ? group->peers.rank : to];
    const struct layout_read *answer = reads_of(group, to, group->peers.rank);
    if (!rank_set_has(state->answered, to)) {
        if (!word_arrived(&state->base, to, &answer->answered,
                          group->counts.offers[to])) /* A1: X4 */
            return false;
        rank_set_add(&state->answered, to);
        if (answer->share_bytes == LAYOUT_REFUSED)
            rank_set_add(&state->refused, to);
        else if (answer->share_bytes && state->base.status == TUTTI_OK)
            state->base.status = share_write(group, request, block, to);
    }
    return state->base.status == TUTTI_OK &&
           word_arrived(&state->base, to,
                        message_read(group, to, group->peers.rank, state->to_all, block->message),
                        message_number(block->message));
}

/* Goes on with the offers. At their end the block is sent in pieces to the ranks that have refused,
 * to each one by itself. */
static void offers_end(struct cpu_group *group, const struct request *request,
                       struct pair_state *state)
{
    const struct pair_block *block = &state->sent[group->peers.rank];
    for (int r = rank_set_next(state->offered, -1); r >= 0; r = rank_set_next(state->offered, r))
        if (offer_ended(group, request, state, r))
            rank_set_remove(&state->offered, r);
    if (!rank_set_empty(state->offered) || rank_set_empty(state->refused))
        return;
    for (int r = rank_set_next(state->refused, -1); r >= 0; r = rank_set_next(state->refused, r)) {
        rank_set_add(&state->to, r);
        if (state->to_all)
            state->sent[r] = *block;
    }
    state->refused = rank_set_none;
    state->offers = false;
    to_each(group, state);
}

/* The part, in pages, that the root of a scatter writes by the kernel. The readers' calls all pin
 * pages of the root, and those of one page table, 2 MiB, wait for one lock: some .4 us a page. The
 * root's calls take as long for a page, but wait for nobody. So the root writes what it can until
 * the others have read the rest. (16 ranks with a core each, 64 and 256 KiB a block: 63 and 153 us,
 * without a part 95 and 185; 1 MiB a block: 360 us, without 300. 32 ranks, 32 and 128 KiB: 108 and
 * 172 us, without 100 and 217, since each call of the root takes 2 us.) */
static size_t root_part(const struct cpu_group *group, const struct pair_block *block)
{
    const size_t page = 4096, table = (size_t)2 << 20, least = (size_t)64 << 10;
    const size_t total = block->bytes * (size_t)(group->peers.size - 1);
    const size_t locked = total < table ? total : table;
    return block->bytes < least || total > 2 * table
               ? 0
               : block->bytes * locked / (locked + total) / page * page;
}

/* The bytes of an offered block that its sender writes. The root of a collective has a part in the
 * blocks of all other ranks, unless it copies its own block meanwhile. By address the senders of a
 * gather also write short blocks, or, if ranks share cores, long ones, since the kernel copies
 * slowly. */
static size_t share_of(const struct cpu_group *group, const struct request *request,
                       const struct pair_state *state, const struct layout_operands *offer,
                       const struct pair_block *block)
{
    const bool partner = coll_rows[request->collective].peer == COLL_PARTNER;
    const bool is_root = !partner && request->peer == group->peers.rank;
    const bool scatters = block->by_address && coll_rows[request->collective].send_all;
    const size_t ranks = partner ? 2 : (size_t)group->peers.size, bytes = block->bytes;
    const size_t part = bytes / ranks / LAYOUT_LINE * LAYOUT_LINE;
    const bool shared_cores = group->peers.oversubscribed, is_short = bytes < SHARE_LEAST_BYTES;
    if (block->by_address ? !request->shows_recv
                          : shared_cores || is_short || request->operands.recv_id != offer->send_id)
        return 0;
    if (shared_cores)
        return is_root && !is_short ? bytes : 0;
    if (is_short && is_root)
        return bytes;
    const size_t written = scatters ? root_part(group, block) : 0;
    if (is_short || written)
        return written;
    if (is_root)
        return state->copies_own ? bytes : bytes - part;
    return offer->recv_id == LAYOUT_PRIVATE ? 0 : part;
}

/* Answers an offer. Accepts it, and sets block->accepted, if this rank has an operand of its own in
 * the same allocation, whose caller keeps that allocation and so the peers' mappings, or if the
 * block may be read by its address. */
static void offer_answer(struct cpu_group *group, const struct request *request,
                         struct pair_state *state, int from)
{
    struct layout_read *answer = reads_of(group, group->peers.rank, from);
    struct pair_block *block = &state->received[from];
    const struct layout_operands *offer = &message_front(group, from, state->to_all)->u.operands;
    const struct layout_operands *own = &request->operands;
    if (request->choice.zero_copy && own->recv_id == offer->send_id)
        block->accepted = operand_at(request->recv_buffers, from, offer->send);
    else if (request->choice.zero_copy && own->send_id == offer->send_id)
        block->accepted = operand_at(request->send_buffers, from, offer->send);
    else if (offer->recv && is_direct_call(request)) {
        block->accepted = (const unsigned char *)(uintptr_t)offer->recv;
        block->by_address = true;
    }
    answer->share_bytes =
        block->accepted ? share_of(group, request, state, offer, block) : LAYOUT_REFUSED;
    answer->by_address = block->by_address;
    if (block->accepted)
        answer->share_at =
            (block->by_address ? (uintptr_t)received_at(request, block) : own->recv + block->at) +
            block->bytes - answer->share_bytes;
    order_store_release_u32(&answer->answered, ++group->counts.answers[from]); /* X4 pairs A1 */
    bell_ring_if_heard(&group->peers);
    POINT("pair.answered");
    if (block->accepted)
        return;
    message_release(group, from, state->to_all);
    to_each(group, state);
}

/* Whether a piece of the block has arrived, or this rank has accepted the whole block. */
static bool has_arrived(struct cpu_group *group, const struct request *request,
                        struct pair_state *state, int from)
{
    const struct pair_block *block = &state->received[from];
    do {
        if (!message_arrived(group, &state->base, from, state->to_all, block->signature, request))
            return false;
        if (block->accepted ||
            !(message_front(group, from, state->to_all)->order & LAYOUT_OFFER_ORDER))
            return true;
        offer_answer(group, request, state, from);
    } while (!block->accepted); /* pieces follow */
    return true;
}

static enum tutti_status block_read(struct cpu_group *group, int from, unsigned char *to,
                                    const struct pair_block *block, size_t bytes)
{
    if (block->by_address)
        return bytes ? direct_read(group, from, to, (uintptr_t)block->accepted, bytes) : TUTTI_OK;
    const enum tutti_status status = direct_touch_begin(group, rank_set_of(from));
    if (status != TUTTI_OK)
        return status;
    copy_near(group, to, block->accepted, bytes);
    return direct_touch_end(group, rank_set_of(from));
}

/* Reads an accepted block, except for its sender's share. Returns whether that, too, is there. */
static bool offer_take(struct cpu_group *group, const struct request *request,
                       struct pair_state *state, int from)
{
    struct layout_read *answer = reads_of(group, group->peers.rank, from);
    struct pair_block *block = &state->received[from];
    if (!block->done && state->base.status == TUTTI_OK) {
        state->base.status = block_read(group, from, received_at(request, block), block,
                                        block->bytes - answer->share_bytes);
        if (state->base.status != TUTTI_OK)
            return false;
        block->done = block->bytes;
    }
    return state->base.status == TUTTI_OK &&
           (!answer->share_bytes ||
            word_arrived(&state->base, from, &reads_of(group, from, group->peers.rank)->written,
                         group->counts.answers[from])); /* A1 pairs X5 */
}

/* ---- pieces ---------------------------------------------------------------------------------- */

/* Sends pieces while places are free. */
static void pieces_send(struct cpu_group *group, const struct request *request,
                        struct pair_state *state)
{
    for (int r = rank_set_next(state->to, -1); r >= 0; r = rank_set_next(state->to, r)) {
        struct pair_block *block = &state->sent[r];
        bool more = true;
        if (state->offers) {
            if (is_free(group, state, r))
                block_offer(group, request, state, r);
            continue;
        }
        while (more && is_free(group, state, r)) {
            const size_t bytes = piece_of(state, block);
            message_send(group, r, bytes ? sent_at(request, block) : NULL, bytes, block->signature,
                         request);
            POINT("pair.sent");
            block->done += bytes;
            more = block->done < block->bytes;
        }
        if (!more)
            rank_set_remove(&state->to, r);
    }
}

/* Takes the pieces that have arrived. */
static void pieces_take(struct cpu_group *group, const struct request *request,
                        struct pair_state *state)
{
    for (int r = rank_set_next(state->from, -1); r >= 0; r = rank_set_next(state->from, r)) {
        struct pair_block *block = &state->received[r];
        bool more = true;
        while (more && has_arrived(group, request, state, r)) {
            const size_t bytes = block->accepted ? 0 : piece_of(state, block);
            if (block->accepted && !offer_take(group, request, state, r))
                break;
            if (bytes)
                copy_near(group, received_at(request, block),
                          message_peek(group, r, state->to_all, bytes), bytes);
            POINT("pair.received");
            message_release(group, r, state->to_all);
            block->done += bytes;
            more = block->done < block->bytes;
        }
        if (!more)
            rank_set_remove(&state->from, r);
    }
}

/* Reduces the next piece of every rank; all have arrived. */
static void piece_reduce(struct cpu_group *group, const struct request *request,
                         const struct pair_state *state, size_t bytes)
{
    const void *in[NODE_RANKS];
    const struct pair_block *result = &state->received[group->peers.rank];
    const unsigned char *own = request->send;
    own += state->sent[group->peers.rank].at + result->done;
    for (int leaf = 0; leaf < group->peers.size; leaf++) {
        const int r = group->order[leaf];
        in[leaf] = r == group->peers.rank ? own : message_peek(group, r, false, bytes);
    }
    const uint64_t environment = reduce_env_begin();
    leaves_reduce(group, request, received_at(request, result), bytes / request->element_bytes, in);
    reduce_env_end(environment);
}

/* Prefetches the pieces that have arrived, because another piece has not. Ranks that share a core
 * share its caches, too. */
static void pieces_fetch(struct cpu_group *group, struct pair_state *state, size_t bytes)
{
    if (group->peers.oversubscribed || group->peers.size < 3 || bytes <= LAYOUT_MESSAGE_BYTES ||
        bytes * (size_t)group->peers.size > FETCH_MOST_BYTES)
        return;
    const struct rank_set wanted = rank_set_minus(state->from, state->fetched);
    for (int r = rank_set_next(wanted, -1); r >= 0; r = rank_set_next(wanted, r)) {
        /* Relaxed: has_arrived() looks again before the data is used. */
        if (r == group->peers.rank ||
            order_load_relaxed_u32(&message_front(group, r, false)->header.number) !=
                message_number(*messages_read(group, r, false)))
            continue;
        const unsigned char *data = message_peek(group, r, false, bytes);
        for (size_t at = 0; at < bytes; at += LAYOUT_LINE)
            order_prefetch(data + at);
        rank_set_add(&state->fetched, r);
    }
}

/* Reduces the pieces that have arrived from every rank. */
static void pieces_reduce(struct cpu_group *group, const struct request *request,
                          struct pair_state *state)
{
    struct pair_block *result = &state->received[group->peers.rank];
    while (!rank_set_empty(state->from)) {
        const size_t bytes = piece_of(state, result);
        for (; state->base.at < group->peers.size; state->base.at++)
            if (state->base.at != group->peers.rank &&
                !has_arrived(group, request, state, state->base.at)) {
                pieces_fetch(group, state, bytes);
                return;
            }
        if (bytes)
            piece_reduce(group, request, state, bytes);
        POINT("pair.reduced");
        state->base.at = 0;
        state->fetched = rank_set_none;
        for (int r = rank_set_next(state->from, -1); r >= 0; r = rank_set_next(state->from, r)) {
            state->received[r].done += bytes;
            if (r != group->peers.rank)
                message_release(group, r, false);
        }
        if (result->done == result->bytes)
            state->from = rank_set_none;
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

/* Chooses the word that the step waits for. If this rank waits for one message only, the step has
 * read its word last, and that word stays. Otherwise the last word that was read may belong to a
 * message that has arrived. So this reads the word of the block of which the least has moved. */
static void wait_choose(struct cpu_group *group, const struct request *request,
                        struct pair_state *state, bool reduces)
{
    if (rank_set_empty(state->to) && (reduces || (rank_set_count(state->from) == 1 &&
                                                  rank_set_has(state->from, state->base.peer))))
        return;
    const int to = least_moved(state->to, state->sent),
              from = least_moved(state->from, state->received);
    if (from >= 0 && (to < 0 || state->received[from].done < state->sent[to].done))
        (void)(state->received[from].accepted ? offer_take : has_arrived)(
            group, request, state, reduces ? state->base.at : from);
    else if (to >= 0)
        (void)is_free(group, state, to);
    else
        (void)offer_ended(group, request, state, rank_set_next(state->offered, -1));
}

static void own_block_copy(const struct cpu_group *group, const struct request *request,
                           struct pair_state *state)
{
    const struct pair_block *block = &state->received[group->peers.rank];
    state->own_waits = false;
    copy_near(group, received_at(request, block),
              (const unsigned char *)request->send + state->sent[group->peers.rank].at,
              block->bytes);
}

static enum step_progress pair_step(void *opaque, struct request *request, void *memory)
{
    struct cpu_group *group = opaque;
    struct pair_state *state = memory;
    const bool reduces = request->reduce && state->receives;
    if (!distance_step(group, &state->base, &state->probe))
        return step_stopped(&state->base);
    pieces_send(group, request, state);
    (reduces ? pieces_reduce : pieces_take)(group, request, state);
    if (state->own_waits &&
        rank_set_empty(state->to)) /* meanwhile the peers read what they were sent */
        own_block_copy(group, request, state);
    if (!rank_set_empty(state->offered) && state->base.status == TUTTI_OK)
        offers_end(group, request, state);
    if (state->base.status != TUTTI_OK)
        return STEP_DONE;
    if (!rank_set_empty(rank_set_union(state->to, rank_set_union(state->from, state->offered)))) {
        wait_choose(group, request, state, reduces);
        return step_stopped(&state->base);
    }
    request->quick = group->peers.deadline == 0;
    return step_end(&state->base, TUTTI_OK);
}

static enum tutti_status pair_run(void *group, struct request *request, tutti_stream_t stream)
{
    struct pair_state state;
    (void)stream;
    return operation_run(group, request, &state.base, pair_start, pair_step, true);
}

/* A block of a v-form that has no further elements has no message. */
enum tutti_status pair_more(struct cpu_group *group, struct request *request)
{
    struct pair_state state;
    state_prepare(group, request, &state);
    state.probe.done = DISTANCE_PING_PONGS;
    for (int r = 0; r < group->peers.size; r++) {
        if (rank_set_has(state.to, r) && !state.sent[r].bytes)
            rank_set_remove(&state.to, r);
        if (rank_set_has(state.from, r) && !state.received[r].bytes)
            rank_set_remove(&state.from, r);
    }
    group->peers.deadline = 0;
    return cpu_steps_run(group, request, &state.base, pair_step, true);
}

static bool sends(const void *group, const struct request *request)
{
    (void)group;
    return request->collective != TUTTI_COLLECTIVE_RECV;
}

/* ---- the first part of a v-form -------------------------------------------------------------- */

static enum tutti_status begun_start(void *opaque, struct request *request, void *memory)
{
    struct cpu_group *group = opaque;
    struct pair_state *state = memory;
    state_prepare(group, request, state);
    state->probe.done = DISTANCE_PING_PONGS;
    POINT("pair.entered");
    return TUTTI_OK;
}

static enum tutti_status begun_run(void *group, struct request *request, tutti_stream_t stream)
{
    struct pair_state state;
    (void)stream;
    return operation_run(group, request, &state.base, begun_start, pair_step, true);
}

const struct algorithm cpu_pair_begun = {.state_bytes = sizeof(struct pair_state),
                                         .start = begun_start,
                                         .step = pair_step,
                                         .run = begun_run,
                                         .sends = sends};

const struct algorithm cpu_pair = {.state_bytes = sizeof(struct pair_state),
                                   .start = pair_start,
                                   .step = pair_step,
                                   .run = pair_run,
                                   .sends = sends,
                                   .leave_failed = direct_leave_failed};
