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
                  const struct announced_op *op, struct piece *piece)
{
    const size_t width = request->element_bytes, partial = reduce_partial_bytes(request->dtype);
    (void)op;
    piece_take_step(group, piece);
    piece->chunk = chunk_elements(piece->count, QUAD, width);
    piece->owned = chunk_of(piece->count, piece->chunk, group->ranks.mesh.quarter, &piece->own);
    const size_t inputs = piece->chunk * width * QUAD;
    piece->at = piece_buffer_take(group, inputs + piece->chunk * partial);
    piece->partials = piece->at + inputs;
}

static bool fill(struct cpu_group *group, const struct request *request, struct announced_op *op,
                 const struct piece *piece)
{
    const size_t width = request->element_bytes;
    const unsigned char *send = (const unsigned char *)request->send + piece->first * width;
    unsigned char *buffer = piece_buffer_of(group, group->rank) + piece->at;
    const size_t behind = piece->own + piece->owned;
    (void)op;
    copy_near(group, buffer, send, piece->own * width);
    copy_near(group, buffer + behind * width, send + behind * width,
              (piece->count - behind) * width);
    POINT("mesh.filled");
    wait_publish(group, &group->own->in_flags[piece->slot].header, piece->step, request); /* P1 */
    return true;
}

static bool fold(struct cpu_group *group, const struct request *request, struct announced_op *op,
                 const struct piece *piece)
{
    const size_t width = request->element_bytes;
    const void *in[QUAD];
    for (; op->base.at < QUAD; op->base.at++) {
        const int r = group->ranks.mesh.leaves[op->base.at];
        if (r != group->rank &&
            !header_arrived(group, &op->base, r, &group->arenas[r]->in_flags[piece->slot].header,
                            piece->step, request))
            return false;
    }
    for (int leaf = 0; leaf < QUAD; leaf++) {
        const int r = group->ranks.mesh.leaves[leaf];
        in[leaf] = r == group->rank
                       ? (const unsigned char *)request->send + (piece->first + piece->own) * width
                       : piece_buffer_of(group, r) + piece->at + piece->own * width;
    }
    request->reduce(&(struct reduce_call){
        .out = piece_buffer_of(group, group->rank) + piece->partials,
        .in = in,
        .n = QUAD,
        .count = piece->owned,
        .scalar = request->scalar,
        .out_partial = true,
    });
    POINT("mesh.folded");
    wait_publish(group, &group->own->part_flags[piece->slot].header, piece->step, request); /* P2 */
    return true;
}

static bool cross(struct cpu_group *group, const struct request *request, struct announced_op *op,
                  const struct piece *piece)
{
    const size_t width = request->element_bytes;
    const int partner = group->ranks.mesh.partner;
    const void *const in[] = {piece_buffer_of(group, group->rank) + piece->partials,
                              piece_buffer_of(group, partner) + piece->partials};
    if (!header_arrived(group, &op->base, partner,
                        &group->arenas[partner]->part_flags[piece->slot].header, piece->step,
                        request))
        return false;
    request->reduce(&(struct reduce_call){
        .out = (unsigned char *)request->recv + (piece->first + piece->own) * width,
        .copy = piece_buffer_of(group, group->rank) + piece->at + piece->own * width,
        .in = in,
        .n = 2,
        .partials = 2,
        .count = piece->owned,
        .divisor = group->size,
    });
    POINT("mesh.crossed");
    wait_publish(group, &group->own->out_flags[piece->slot].header, piece->step, request); /* Q1 */
    return true;
}

static bool collect(struct cpu_group *group, const struct request *request, struct announced_op *op,
                    const struct piece *piece)
{
    const size_t width = request->element_bytes;
    unsigned char *recv = (unsigned char *)request->recv + piece->first * width;
    for (; op->base.at < QUAD - 1; op->base.at++) {
        const int quarter = (group->ranks.mesh.quarter + 1 + op->base.at) % QUAD;
        const int r = group->ranks.mesh.owners[quarter];
        const struct layout_arena *arena = group->arenas[r];
        if (!header_arrived(group, &op->base, r, &arena->out_flags[piece->slot].header, piece->step,
                            request))
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
    .stages = 4,
    .last_delay = 3,
    .stage = {{3, collect}, {2, cross}, {1, fold}, {0, fill}},
};
