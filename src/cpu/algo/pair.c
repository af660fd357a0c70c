/* SPDX-License-Identifier: MIT */
/*
 * Rooted collectives, send and receive: messages of the lane PAIR (pair.h). A block moves in
 * pieces, a message each; an empty block is one empty message.
 *
 * A broadcast has one way to all, the others a way for each pair of ranks. The root of a reduction
 * takes a piece once all ranks have sent theirs, and reduces them where they lie.
 */
#include "cpu/transport/pair.h"
#include "base/point.h"
#include "coll/coll.h"
#include "cpu/algo/algo.h"

struct pair_op {
    struct cpu_op base;
    bool to_all;
    size_t whole;  /* bytes of a whole piece */
    size_t pieces; /* of a block */
    struct rank_set to, from;
    size_t sent[TUTTI_MAX_RANKS]; /* pieces; [the own rank]: to all */
    size_t received[TUTTI_MAX_RANKS];
};

/* Whom this rank sends to, and whom it hears from. */
static void ways_find(const struct cpu_group *group, const struct request *request,
                      struct pair_op *op)
{
    const struct rank_set root = rank_set_of(request->peer);
    const struct rank_set others =
        rank_set_minus(rank_set_all(group->size), rank_set_of(group->rank));
    const struct coll *coll = &coll_rows[request->collective];
    const bool is_root = group->rank == request->peer, to_root = coll->recv == COLL_OF_ROOT;
    op->to = op->from = rank_set_none;
    if (coll->peer == COLL_PARTNER)
        *(coll->recv == COLL_OF_NONE ? &op->to : &op->from) = root;
    else if (!is_root)
        *(to_root ? &op->to : &op->from) = root;
    else if (to_root)
        op->from = others;
    else if (!op->to_all)
        op->to = others;
    else if (group->size > 1)
        op->to = root;
}

/* The operands of a rank that is not the root are not its own. */
static void own_block_copy(const struct cpu_group *group, const struct request *request)
{
    if (group->rank != request->peer || request->reduce || !request->bytes ||
        request_sent(request, group->rank) == request_received(request, group->rank))
        return;
    group->isa->copy(request_received(request, group->rank), request_sent(request, group->rank),
                     request->bytes);
}

static enum tutti_status pair_start(void *opaque, struct request *request, void *state)
{
    struct cpu_group *group = opaque;
    struct pair_op *op = state;
    const enum tutti_status status = pair_begin(group, request);
    if (status != TUTTI_OK)
        return status;
    op_init(&op->base);
    op->to_all = request->collective == TUTTI_COLLECTIVE_BROADCAST;
    op->whole = message_bytes(group, op->to_all);
    op->pieces = request->bytes ? (request->bytes + op->whole - 1) / op->whole : 1;
    ways_find(group, request, op);
    for (int r = 0; r < group->size; r++)
        op->sent[r] = op->received[r] = 0;
    POINT("pair.entered");
    request_started(request, group->op.sequence, request_kind(request), RECORD_RUNNING);
    return TUTTI_OK;
}

static size_t piece_of(const struct request *request, const struct pair_op *op, size_t piece,
                       size_t *bytes)
{
    const size_t at = piece * op->whole;
    *bytes = request->bytes - at < op->whole ? request->bytes - at : op->whole;
    return at;
}

/* Whether all readers of the way have read what lies in its next place. */
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

/* Sends what there are places for. False if not all has been sent: the step waits for the first way
 * that has no place. */
static bool pieces_send(struct cpu_group *group, const struct request *request, struct pair_op *op)
{
    int waits = -1;
    for (int r = rank_set_next(op->to, -1); r >= 0; r = rank_set_next(op->to, r)) {
        while (op->sent[r] < op->pieces && is_free(group, op, r)) {
            size_t bytes;
            const size_t at = piece_of(request, op, op->sent[r]++, &bytes);
            message_send(group, r, request_sent(request, r) + at, bytes, request);
            POINT("pair.sent");
        }
        if (op->sent[r] < op->pieces && waits < 0)
            waits = r;
    }
    if (waits >= 0)
        (void)is_free(group, op, waits);
    return waits < 0;
}

/* Takes what has arrived. False if not all has: the step waits for the first way that has no
 * message. */
static bool pieces_take(struct cpu_group *group, const struct request *request, struct pair_op *op)
{
    int waits = -1;
    for (int r = rank_set_next(op->from, -1); r >= 0; r = rank_set_next(op->from, r)) {
        while (op->received[r] < op->pieces &&
               message_arrived(group, &op->base, r, op->to_all, request)) {
            size_t bytes;
            const size_t at = piece_of(request, op, op->received[r]++, &bytes);
            if (bytes)
                group->isa->copy(request_received(request, r) + at,
                                 message_peek(group, r, op->to_all, bytes), bytes);
            POINT("pair.received");
            message_release(group, r, op->to_all);
        }
        if (op->received[r] < op->pieces && waits < 0)
            waits = r;
    }
    if (waits >= 0 && op->base.status == TUTTI_OK)
        (void)message_arrived(group, &op->base, waits, op->to_all, request);
    return waits < 0;
}

/* By the root: the next pieces of all ranks, which have arrived. */
static void pieces_reduce(struct cpu_group *group, const struct request *request,
                          const struct pair_op *op, size_t piece)
{
    size_t bytes;
    const size_t at = piece_of(request, op, piece, &bytes);
    const void *in[TUTTI_MAX_RANKS];
    for (int leaf = 0; leaf < group->size; leaf++) {
        const int r = group->ranks.order[leaf];
        in[leaf] =
            r == group->rank ? request_sent(request, r) + at : message_peek(group, r, false, bytes);
    }
    const uint64_t environment = reduce_env_begin();
    leaves_reduce(group, request, request_received(request, group->rank) + at,
                  bytes / request->element_bytes, in);
    reduce_env_end(environment);
}

static bool all_reduced(struct cpu_group *group, const struct request *request, struct pair_op *op)
{
    size_t *done = &op->received[group->rank];
    for (; *done < op->pieces; ++*done) {
        for (; op->base.at < group->size; op->base.at++)
            if (op->base.at != group->rank &&
                !message_arrived(group, &op->base, op->base.at, false, request))
                return false;
        if (request->count)
            pieces_reduce(group, request, op, *done);
        POINT("pair.reduced");
        for (int r = rank_set_next(op->from, -1); r >= 0; r = rank_set_next(op->from, r))
            message_release(group, r, false);
        op->base.at = 0;
    }
    return true;
}

static enum op_progress pair_step(void *opaque, struct request *request, void *state)
{
    struct cpu_group *group = opaque;
    struct pair_op *op = state;
    const bool reduces = request->reduce && group->rank == request->peer;
    if (!pieces_send(group, request, op) ||
        !(reduces ? all_reduced : pieces_take)(group, request, op))
        return op_stopped(&op->base);
    own_block_copy(group, request);
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
