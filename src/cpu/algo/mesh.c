/* SPDX-License-Identifier: MIT */
/*
 * Hybrid cube mesh all-reduce: the ranks form two quads, and each rank has one partner in the other
 * quad. A rank reads the arenas of its quad and of its partner only. The order of the sum is the
 * canonical one: the quads are the two halves of the leaf order. The sum of a quad is not rounded;
 * the sum of both is rounded once.
 *
 * A piece has a quarter for each rank of a quad. Each rank, in each step:
 *   fills its piece buffer with its inputs of the other ranks' quarters (flag P1);
 *   folds its own quarter of the quad's inputs into partial sums in the accumulation type, behind
 *   the piece (flag P2);
 *   crosses: adds the partner's partial sums of the same quarter to its own and writes the result
 *   into its output and into the piece buffer, at the place of its own quarter (flag Q1);
 *   collects the other quarters of its output from their owners' piece buffers.
 *
 * Iteration t collects piece t - 3, crosses t - 2, folds t - 1, then fills t. docs/ordering.md
 * proves that a place may be written again after four steps.
 *
 * This code is not tuned: it serves to test on CPU the algorithm of the GPU kernel (mesh.cu).
 */
#include "base/point.h"
#include "cpu/algo/algo.h"
#include "cpu/transport/chunk.h"
#include "cpu/transport/copy.h"
#include "cpu/transport/piece_buffer.h"

enum { QUAD = 4 };

static size_t cut(const struct cpu_group *group, const struct request *request)
{
    const size_t width = request->element_bytes, line = LAYOUT_LINE / width;
    /* Most bytes of inputs and partial sums (docs/ordering.md: P1); quarters are whole lines. */
    const size_t bytes = 3 * group->areas.piece_bytes / 2;
    const size_t partial = reduce_partial_bytes(request->dtype);
    const size_t most = bytes / (QUAD * width + partial) / line * line * QUAD;
    const size_t pieces = (request->count + most - 1) / most;
    return chunk_elements((request->count + pieces - 1) / pieces, QUAD, width) * QUAD;
}

static void place(struct cpu_group *group, const struct request *request,
                  const struct announced_state *state, struct piece *piece)
{
    const size_t width = request->element_bytes, partial = reduce_partial_bytes(request->dtype);
    (void)state;
    piece_take_step(group, piece);
    piece->chunk = chunk_elements(piece->count, QUAD, width);
    piece->owned = chunk_of(piece->count, piece->chunk, group->mesh.quarter, &piece->own);
    const size_t inputs = piece->chunk * width * QUAD;
    piece->at = piece_buffer_take(group, inputs + piece->chunk * partial);
    piece->partials = piece->at + inputs;
}

static bool fill(struct cpu_group *group, const struct request *request,
                 struct announced_state *state, const struct piece *piece)
{
    const size_t width = request->element_bytes;
    const unsigned char *send = (const unsigned char *)request->send + piece->first * width;
    unsigned char *buffer = piece_buffer_of(group, group->peers.rank) + piece->at;
    const size_t behind = piece->own + piece->owned;
    (void)state;
    copy_near(group, buffer, send, piece->own * width);
    copy_near(group, buffer + behind * width, send + behind * width,
              (piece->count - behind) * width);
    POINT("mesh.filled");
    wait_publish(group, &group->peers.own->in_flags[piece->slot].header, piece->step,
                 request); /* P1 */
    return true;
}

static bool fold(struct cpu_group *group, const struct request *request,
                 struct announced_state *state, const struct piece *piece)
{
    const size_t width = request->element_bytes;
    const void *in[QUAD];
    for (; state->base.at < QUAD; state->base.at++) {
        const int r = group->mesh.leaves[state->base.at];
        if (r != group->peers.rank &&
            !header_arrived(group, &state->base, r,
                            &group->peers.arenas[r]->in_flags[piece->slot].header, piece->step,
                            request))
            return false;
    }
    for (int leaf = 0; leaf < QUAD; leaf++) {
        const int r = group->mesh.leaves[leaf];
        in[leaf] = r == group->peers.rank
                       ? (const unsigned char *)request->send + (piece->first + piece->own) * width
                       : piece_buffer_of(group, r) + piece->at + piece->own * width;
    }
    request->reduce(&(struct reduce_call){
        .out = piece_buffer_of(group, group->peers.rank) + piece->partials,
        .in = in,
        .n = QUAD,
        .count = piece->owned,
        .scalar = request->scalar,
        .out_partial = true,
    });
    POINT("mesh.folded");
    wait_publish(group, &group->peers.own->part_flags[piece->slot].header, piece->step,
                 request); /* P2 */
    return true;
}

static bool cross(struct cpu_group *group, const struct request *request,
                  struct announced_state *state, const struct piece *piece)
{
    const size_t width = request->element_bytes;
    const int partner = group->mesh.partner;
    const void *const in[] = {piece_buffer_of(group, group->peers.rank) + piece->partials,
                              piece_buffer_of(group, partner) + piece->partials};
    if (!header_arrived(group, &state->base, partner,
                        &group->peers.arenas[partner]->part_flags[piece->slot].header, piece->step,
                        request))
        return false;
    request->reduce(&(struct reduce_call){
        .out = (unsigned char *)request->recv + (piece->first + piece->own) * width,
        .copy = piece_buffer_of(group, group->peers.rank) + piece->at + piece->own * width,
        .in = in,
        .n = 2,
        .partials = 2,
        .count = piece->owned,
        .divisor = group->peers.size,
    });
    POINT("mesh.crossed");
    wait_publish(group, &group->peers.own->out_flags[piece->slot].header, piece->step,
                 request); /* Q1 */
    return true;
}

static bool collect(struct cpu_group *group, const struct request *request,
                    struct announced_state *state, const struct piece *piece)
{
    const size_t width = request->element_bytes;
    unsigned char *recv = (unsigned char *)request->recv + piece->first * width;
    for (; state->base.at < QUAD - 1; state->base.at++) {
        const int quarter = (group->mesh.quarter + 1 + state->base.at) % QUAD;
        const int r = group->mesh.owners[quarter];
        const struct layout_arena *arena = group->peers.arenas[r];
        if (!header_arrived(group, &state->base, r, &arena->out_flags[piece->slot].header,
                            piece->step, request))
            return false;
        size_t first, count = chunk_of(piece->count, piece->chunk, quarter, &first);
        group->isa->copy(recv + first * width,
                         piece_buffer_of(group, r) + piece->at + first * width, count * width);
    }
    POINT("mesh.collected");
    return true;
}

const struct announced cpu_mesh = {
    .algorithm = ANNOUNCED_ALGORITHM,
    .cut = cut,
    .place = place,
    .passes = 4,
    .last_delay = 3,
    .pass = {{3, collect}, {2, cross}, {1, fold}, {0, fill}},
};
