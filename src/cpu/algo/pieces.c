/* SPDX-License-Identifier: MIT */
/*
 * One hop, for more than two ranks: each rank writes into its piece buffer the block that all
 * others need, or a block for each other rank. Then it reads all others' buffers and reduces or
 * copies.
 *
 * Iteration t fills piece t and uses piece t - 1. docs/ordering.md (P1) proves when a place may be
 * written again.
 *
 * A rank reads its own input in the user's memory. A copy that it has just written may still wait
 * in the store buffer until the peers give up the cache line.
 */
#include "base/point.h"
#include "cpu/algo/algo.h"
#include "cpu/transport/chunk.h"
#include "cpu/transport/copy.h"
#include "cpu/transport/piece_buffer.h"

static size_t blocks_of(const struct cpu_group *group, const struct request *request)
{
    return request->send_all ? (size_t)group->peers.size : 1;
}

static size_t cut(const struct cpu_group *group, const struct request *request)
{
    const size_t blocks = blocks_of(group, request);
    const size_t most =
        group->areas.piece_bytes / blocks / LAYOUT_LINE * LAYOUT_LINE / request->element_bytes;
    return request->count < most ? request->count : most;
}

/* A chunk is a block's part of the piece. */
static void place(struct cpu_group *group, const struct request *request,
                  const struct announced_state *state, struct piece *piece)
{
    const size_t blocks = blocks_of(group, request);
    (void)state;
    piece_take_step(group, piece);
    piece->chunk = chunk_elements(piece->count, 1, request->element_bytes);
    piece->at = piece_buffer_take(group, piece->chunk * request->element_bytes * blocks);
}

static bool fill(struct cpu_group *group, const struct request *request,
                 struct announced_state *state, const struct piece *piece)
{
    const size_t width = request->element_bytes, at = piece->first * width;
    unsigned char *to = piece_buffer_of(group, group->peers.rank) + piece->at;
    (void)state;
    for (int r = 0; r < (int)blocks_of(group, request); r++, to += piece->chunk * width)
        if (r != group->peers.rank || !request->send_all)
            copy_in(group, to, request_sent(request, r) + at, piece->count * width);
    POINT("pieces.filled");
    invalidate_flag(&group->peers.own->part_flags[piece->slot].header, piece->step);
    invalidate_flag(&group->peers.own->out_flags[piece->slot].header, piece->step);
    wait_publish(group, &group->peers.own->in_flags[piece->slot].header, piece->step,
                 request); /* P1 */
    POINT("pieces.published");
    return true;
}

/* A peer's part of the piece for this rank. */
static const unsigned char *part_of(const struct cpu_group *group, const struct request *request,
                                    const struct piece *piece, int rank)
{
    const size_t block = request->send_all ? (size_t)group->peers.rank : 0;
    return piece_buffer_of(group, rank) + piece->at + block * piece->chunk * request->element_bytes;
}

static bool copy(struct cpu_group *group, const struct request *request,
                 struct announced_state *state, const struct piece *piece)
{
    const size_t width = request->element_bytes, at = piece->first * width;
    for (; state->base.at < group->peers.size - 1; state->base.at++) {
        const int r = peer_at(group, state->base.at);
        if (!header_arrived(group, &state->base, r,
                            &group->peers.arenas[r]->in_flags[piece->slot].header, piece->step,
                            request))
            return false;
        copy_out(group, request, request_received(request, r) + at,
                 part_of(group, request, piece, r), piece->count * width);
    }
    return true;
}

static bool reduce(struct cpu_group *group, const struct request *request,
                   struct announced_state *state, const struct piece *piece)
{
    const size_t at = piece->first * request->element_bytes;
    const void *in[NODE_RANKS];
    if (!inputs_arrived(group, request, state, piece))
        return false;
    for (int leaf = 0; leaf < group->peers.size; leaf++) {
        const int r = group->order[leaf];
        in[leaf] = r == group->peers.rank ? request_sent(request, r) + at
                                          : part_of(group, request, piece, r);
    }
    leaves_reduce(group, request, (unsigned char *)request->recv + at, piece->count, in);
    return true;
}

static bool use(struct cpu_group *group, const struct request *request,
                struct announced_state *state, const struct piece *piece)
{
    return (request->reduce ? reduce : copy)(group, request, state, piece);
}

const struct announced cpu_pieces = {
    .algorithm = ANNOUNCED_ALGORITHM,
    .cut = cut,
    .place = place,
    .passes = 3,
    .last_delay = 1,
    .pass = {{0, fill}, {0, own_copy}, {1, use}},
};
