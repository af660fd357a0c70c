/* SPDX-License-Identifier: MIT */
/*
 * Hybrid cube mesh all-reduce: two quads, each rank has one partner in the other quad. A rank reads
 * the arenas of its quad and of its partner only. The order of the sum is the canonical one: the
 * quads are the two halves of the leaf order, a quad does not round, and both together round once.
 *
 * A piece has a quarter for each rank of a quad. Each rank, in each step:
 *   fills its piece buffer with its inputs of the other ranks' quarters (flag P1);
 *   folds its own quarter of the quad's inputs into partial sums in the accumulation type, behind
 *   the piece (flag P2);
 *   crosses: adds its partial sums and the partner's, of the same quarter, into its output and into
 *   the piece buffer at the place of its own quarter (flag Q1);
 *   collects the other quarters of its output from their owners' piece buffers.
 *
 * Iteration t collects piece t - 3, crosses t - 2, folds t - 1, then fills t. A short operation is
 * one piece that is not divided: every rank folds all of it, and has ended once it has crossed.
 *
 * docs/ordering.md proves that a place may be written again after four steps.
 */
#include "base/point.h"
#include "cpu/algo/all_reduce.h"
#include "cpu/transport/chunk.h"
#include "cpu/transport/copy.h"
#include "cpu/transport/piece_buffer.h"
#include "cpu/transport/wait.h"

enum {
    QUAD = 4,
    IN_FLIGHT = 4, /* pieces from their fill to their collect */
    /* Partial sums up to this size: a third hop costs more than four times the work. */
    WHOLE_BYTES = 4 * 1024,
    PIECE_BYTES = 3 * LAYOUT_PIECE_BYTES / 2, /* see docs/ordering.md: P1 */
};

/* One operation cut into pieces. */
struct cut {
    size_t pieces;
    size_t piece; /* elements of a whole piece */
    bool whole;   /* one piece that is not divided */
    uint32_t first_step;
};

struct piece {
    size_t first; /* element of the operation */
    size_t count;
    size_t chunk; /* elements of a quarter */
    size_t own;   /* the first element that this rank folds, from the piece's first */
    size_t owned; /* how many */
    uint32_t step;
    size_t slot;     /* of flags */
    size_t at;       /* offset in the piece buffer */
    size_t partials; /* offset of the partial sums in the piece buffer */
};

static struct cut cut_request(const struct cpu_group *group, const struct request *request)
{
    size_t width = request->element_bytes, line = LAYOUT_LINE / width;
    size_t partial = reduce_partial_bytes(request->dtype);
    if (request->count * partial <= WHOLE_BYTES)
        return (struct cut){1, request->count, true, group->op.step + 1};
    /* A quarter in whole lines, its inputs and its partial sums. */
    size_t most = PIECE_BYTES / (QUAD * width + partial) / line * line * QUAD;
    size_t pieces = (request->count + most - 1) / most;
    size_t piece = chunk_elements((request->count + pieces - 1) / pieces, QUAD, width) * QUAD;
    return (struct cut){(request->count + piece - 1) / piece, piece, false, group->op.step + 1};
}

/* Called once for each piece, in order: a piece takes its place in the piece buffer here. */
static struct piece piece_take(struct cpu_group *group, const struct request *request,
                               const struct cut *cut, size_t k)
{
    size_t width = request->element_bytes, left = request->count - k * cut->piece;
    struct piece piece = {.first = k * cut->piece, .step = cut->first_step + (uint32_t)k};
    piece.count = left < cut->piece ? left : cut->piece;
    piece.chunk = chunk_elements(piece.count, cut->whole ? 1 : QUAD, width);
    piece.owned =
        chunk_of(piece.count, piece.chunk, cut->whole ? 0 : group->ranks.mesh.quarter, &piece.own);
    piece.slot = piece.step % LAYOUT_SLOTS;
    size_t inputs = piece.chunk * width * (cut->whole ? 1 : QUAD);
    piece.at =
        piece_buffer_take(group, inputs + piece.chunk * reduce_partial_bytes(request->dtype));
    piece.partials = piece.at + inputs;
    return piece;
}

static void fill(struct cpu_group *group, const struct request *request, const struct cut *cut,
                 const struct piece *piece)
{
    size_t width = request->element_bytes;
    const unsigned char *send = (const unsigned char *)request->send + piece->first * width;
    unsigned char *buffer = group->own->piece_buffer + piece->at;
    if (cut->whole) {
        copy_in(group, buffer, send, piece->count * width);
    } else {
        size_t behind = piece->own + piece->owned;
        copy_in(group, buffer, send, piece->own * width);
        copy_in(group, buffer + behind * width, send + behind * width,
                (piece->count - behind) * width);
    }
    POINT("mesh.filled");
    wait_publish(group, &group->own->in_flags[piece->slot].header, piece->step, request); /* P1 */
}

/* Where this rank reads its own partial sums: in the piece buffer, where the partner reads them
 * too. If they go there past the caches, this rank keeps a copy where the result will be, if they
 * fit. */
static unsigned char *sums_of(const struct cpu_group *group, const struct request *request,
                              const struct piece *piece)
{
    if (!group->distance.far || reduce_partial_bytes(request->dtype) != request->element_bytes)
        return group->own->piece_buffer + piece->partials;
    return (unsigned char *)request->recv + (piece->first + piece->own) * request->element_bytes;
}

static enum tutti_status fold(struct cpu_group *group, const struct request *request,
                              const struct piece *piece)
{
    size_t width = request->element_bytes;
    const void *in[QUAD];
    for (int leaf = 0; leaf < QUAD; leaf++) {
        int r = group->ranks.mesh.leaves[leaf];
        const struct layout_arena *arena = group->arenas[r];
        in[leaf] = r == group->rank
                       ? (const unsigned char *)request->send + (piece->first + piece->own) * width
                       : arena->piece_buffer + piece->at + piece->own * width;
        if (r == group->rank)
            continue;
        enum tutti_status status =
            wait_header(group, r, &arena->in_flags[piece->slot].header, piece->step, request);
        if (status != TUTTI_OK)
            return status;
    }
    unsigned char *sums = sums_of(group, request, piece);
    unsigned char *buffer = group->own->piece_buffer + piece->partials;
    request->reduce(&(struct reduce_call){
        .out = sums,
        .copy = sums == buffer ? NULL : buffer,
        .in = in,
        .n = QUAD,
        .count = piece->owned,
        .scalar = request->scalar,
        .stream_out = sums == buffer && group->distance.far,
        .stream_copy = group->distance.far,
        .out_partial = true,
    });
    if (group->distance.far)
        order_drain_streams();
    POINT("mesh.folded");
    wait_publish(group, &group->own->part_flags[piece->slot].header, piece->step, request); /* P2 */
    return TUTTI_OK;
}

static enum tutti_status cross(struct cpu_group *group, const struct request *request,
                               const struct cut *cut, const struct piece *piece)
{
    size_t width = request->element_bytes;
    const struct layout_arena *theirs = group->arenas[group->ranks.mesh.partner];
    struct layout_header *out = &group->own->out_flags[piece->slot].header;
    const void *const in[] = {sums_of(group, request, piece),
                              theirs->piece_buffer + piece->partials};
    enum tutti_status status =
        wait_header(group, group->ranks.mesh.partner, &theirs->part_flags[piece->slot].header,
                    piece->step, request);
    if (status != TUTTI_OK)
        return status;
    request->reduce(&(struct reduce_call){
        .out = (unsigned char *)request->recv + (piece->first + piece->own) * width,
        .copy = cut->whole ? NULL : group->own->piece_buffer + piece->at + piece->own * width,
        .stream_copy = group->distance.far,
        .in = in,
        .n = 2,
        .partials = 2,
        .count = piece->owned,
        .divisor = group->size,
    });
    POINT("mesh.crossed");
    if (cut->whole) {
        invalidate_flag(out, piece->step);
        return TUTTI_OK;
    }
    if (group->distance.far)
        order_drain_streams();
    wait_publish(group, out, piece->step, request); /* Q1 */
    return TUTTI_OK;
}

static enum tutti_status collect(struct cpu_group *group, const struct request *request,
                                 const struct piece *piece)
{
    size_t width = request->element_bytes;
    unsigned char *recv = (unsigned char *)request->recv + piece->first * width;
    for (int i = 1; i < QUAD; i++) {
        int quarter = (group->ranks.mesh.quarter + i) % QUAD, r = group->ranks.mesh.owners[quarter];
        const struct layout_arena *arena = group->arenas[r];
        enum tutti_status status =
            wait_header(group, r, &arena->out_flags[piece->slot].header, piece->step, request);
        if (status != TUTTI_OK)
            return status;
        size_t first, count = chunk_of(piece->count, piece->chunk, quarter, &first);
        group->isa->copy(recv + first * width, arena->piece_buffer + piece->at + first * width,
                         count * width);
    }
    POINT("mesh.collected");
    return TUTTI_OK;
}

enum tutti_status mesh_pieces(void *opaque, const struct request *request)
{
    struct cpu_group *group = opaque;
    struct cut cut = cut_request(group, request);
    struct piece pieces[IN_FLIGHT];
    for (size_t iteration = 0; iteration < cut.pieces + 3; iteration++) {
        enum tutti_status status = TUTTI_OK;
        if (iteration >= 3 && !cut.whole)
            status = collect(group, request, &pieces[(iteration - 3) % IN_FLIGHT]);
        if (status == TUTTI_OK && iteration >= 2 && iteration < cut.pieces + 2)
            status = cross(group, request, &cut, &pieces[(iteration - 2) % IN_FLIGHT]);
        if (status == TUTTI_OK && iteration >= 1 && iteration < cut.pieces + 1)
            status = fold(group, request, &pieces[(iteration - 1) % IN_FLIGHT]);
        if (status != TUTTI_OK)
            return status;
        if (iteration < cut.pieces) {
            struct piece *piece = &pieces[iteration % IN_FLIGHT];
            *piece = piece_take(group, request, &cut, iteration);
            fill(group, request, &cut, piece);
        }
    }
    group->op.step += (uint32_t)cut.pieces;
    return TUTTI_OK;
}
