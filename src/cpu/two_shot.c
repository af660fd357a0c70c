/* SPDX-License-Identifier: MIT */
/*
 * Two-shot all-reduce: reduce-scatter, then all-gather, in pipelined pieces. Two hops.
 *
 * A piece is one chunk a rank. In a step every rank
 *
 *   fills its ring with its inputs of the others' chunks (flag P1),
 *
 *   reduces its own chunk from its input and everybody's ring, into its output and into the hole
 *   that its own chunk left in its ring (flag Q1),
 *
 *   collects the other chunks of its output from their owners' rings.
 *
 * Turn t fills piece t, collects piece t - 2, reduces piece t - 1, so that a peer that is a little
 * late costs nothing.
 *
 * A piece is over after four steps. Before it fills piece t a rank has collected t - 3: everybody
 * has reduced t - 3, which they do after collecting t - 4. Across operations the same holds: who
 * ends an operation has seen all ranks reduce its last piece, and whoever fills a fourth piece has
 * seen all ranks in this operation.
 */
#include "cpu/all_reduce.h"
#include "cpu/chunk.h"
#include "cpu/copy.h"
#include "cpu/ring.h"
#include "cpu/wait.h"
#include "point.h"

/* One operation cut into pieces. */
struct cut {
    size_t pieces;
    size_t piece; /* elements of a whole piece */
    uint32_t first_step;
};

/* Piece k: where it begins and how its elements are dealt out. */
struct piece {
    size_t first;
    size_t count;
    size_t chunk; /* elements */
    uint32_t step;
    size_t slot; /* of flags */
    size_t at;   /* offset in the ring */
};

enum { IN_FLIGHT = 4 }; /* pieces between their fill and their collect, and one */

static struct cut cut_request(const struct cpu_group *group, const struct request *request)
{
    size_t line = LAYOUT_LINE / request->element_bytes;
    size_t most = LAYOUT_PIECE_BYTES / request->element_bytes;
    /* A piece is whole lines for each rank. */
    most -= most % (line * (size_t)group->size);
    size_t pieces = (request->count + most - 1) / most;
    size_t piece = chunk_elements((request->count + pieces - 1) / pieces, group->size,
                                  request->element_bytes) *
                   (size_t)group->size;
    return (struct cut){
        .pieces = (request->count + piece - 1) / piece,
        .piece = piece,
        .first_step = group->step + 1,
    };
}

/* Takes its place in the ring: once a piece, in their order. */
static struct piece piece_take(struct cpu_group *group, const struct request *request,
                               const struct cut *cut, size_t k)
{
    struct piece piece = {.first = k * cut->piece, .step = cut->first_step + (uint32_t)k};
    size_t left = request->count - piece.first;
    piece.count = left < cut->piece ? left : cut->piece;
    piece.chunk = chunk_elements(piece.count, group->size, request->element_bytes);
    piece.slot = piece.step % LAYOUT_SLOTS;
    piece.at = ring_take(group, piece.count * request->element_bytes);
    return piece;
}

static void fill(struct cpu_group *group, const struct request *request, const struct piece *piece)
{
    size_t width = request->element_bytes, own;
    size_t owned = chunk_of(piece->count, piece->chunk, group->rank, &own);
    const unsigned char *send = (const unsigned char *)request->send + piece->first * width;
    unsigned char *ring = group->own->ring + piece->at;
    copy_in(group, ring, send, own * width);
    copy_in(group, ring + (own + owned) * width, send + (own + owned) * width,
            (piece->count - own - owned) * width);
    POINT("two_shot.filled");
    wait_void(&group->own->part_flags[piece->slot].header, piece->step);
    wait_publish(group, &group->own->in_flags[piece->slot].header, piece->step, request); /* P1 */
}

static enum tutti_status reduce(struct cpu_group *group, const struct request *request,
                                const struct piece *piece)
{
    size_t width = request->element_bytes, own;
    size_t owned = chunk_of(piece->count, piece->chunk, group->rank, &own);
    const void *in[TUTTI_MAX_RANKS];
    for (int leaf = 0; leaf < group->size; leaf++) {
        int r = group->order[leaf];
        const struct layout_arena *arena = group->arenas[r];
        in[leaf] = r == group->rank
                       ? (const unsigned char *)request->send + (piece->first + own) * width
                       : arena->ring + piece->at + own * width;
        if (r == group->rank)
            continue;
        enum tutti_status status =
            wait_header(group, r, &arena->in_flags[piece->slot].header, piece->step, request);
        if (status != TUTTI_OK)
            return status;
        copy_ahead(group, in[leaf], owned * width, request->bytes);
    }
    request->reduce(&(struct reduce_call){
        .out = (unsigned char *)request->recv + (piece->first + own) * width,
        .copy = group->own->ring + piece->at + own * width,
        .stream_copy = group->far,
        .in = in,
        .n = group->size,
        .count = owned,
        .scalar = request->scalar,
        .divisor = group->size,
    });
    POINT("two_shot.reduced");
    if (group->far)
        order_drain_streams();
    wait_publish(group, &group->own->out_flags[piece->slot].header, piece->step, request); /* Q1 */
    return TUTTI_OK;
}

static enum tutti_status collect(struct cpu_group *group, const struct request *request,
                                 const struct piece *piece)
{
    size_t width = request->element_bytes;
    unsigned char *recv = (unsigned char *)request->recv + piece->first * width;
    for (int i = 1; i < group->size; i++) {
        int r = (group->rank + i) % group->size;
        const struct layout_arena *arena = group->arenas[r];
        enum tutti_status status =
            wait_header(group, r, &arena->out_flags[piece->slot].header, piece->step, request);
        if (status != TUTTI_OK)
            return status;
        size_t first, count = chunk_of(piece->count, piece->chunk, r, &first);
        copy_out(group, recv + first * width, arena->ring + piece->at + first * width,
                 count * width, request->bytes);
    }
    POINT("two_shot.collected");
    return TUTTI_OK;
}

enum tutti_status two_shot_pieces(struct cpu_group *group, const struct request *request)
{
    struct cut cut = cut_request(group, request);
    struct piece pieces[IN_FLIGHT];
    for (size_t turn = 0; turn < cut.pieces + 2; turn++) {
        enum tutti_status status = TUTTI_OK;
        if (turn < cut.pieces) {
            struct piece *piece = &pieces[turn % IN_FLIGHT];
            *piece = piece_take(group, request, &cut, turn);
            fill(group, request, piece);
        }
        if (turn >= 2)
            status = collect(group, request, &pieces[(turn - 2) % IN_FLIGHT]);
        if (status == TUTTI_OK && turn >= 1 && turn <= cut.pieces)
            status = reduce(group, request, &pieces[(turn - 1) % IN_FLIGHT]);
        if (status != TUTTI_OK)
            return status;
    }
    group->step += (uint32_t)cut.pieces;
    return TUTTI_OK;
}
