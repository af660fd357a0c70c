/* SPDX-License-Identifier: MIT */
/*
 * Two-shot all-reduce: reduce-scatter, then all-gather, in pipelined pieces. Two hops.
 *
 * A piece has one chunk for each rank, its owner. Each rank, in each step:
 *   fills its arena with its inputs of the other ranks' chunks (flag P1);
 *   reduces its own chunk from its input and all arenas, into its output and to where the other
 *   ranks find the result (flag Q1);
 *   collects the other chunks of its output.
 *
 * Push, for few ranks: the owner writes the result over the inputs that it has just read, in each
 * peer's exchange area, and a rank collects from its own area. Two cores then write each line by
 * turns, and no third copy of a line has to be invalidated (2 ranks, 256 KiB, Zen 5: near 8.6 us by
 * pull, 6.5 by push, far 14.0 and 10.2; Intel 49 and 25). Pull, for more ranks: the owner writes
 * the result into its own piece buffer, at the place of its own chunk, and the other ranks read it
 * there. With more ranks an owner stores more copies by push: 8 ranks on 8 cores gain nothing, and
 * small operations lose a tenth or two.
 *
 * Iteration t fills piece t, reduces piece t - 1 and collects piece t - 2, so a peer that is a
 * little late costs nothing. docs/ordering.md (P1, Q1) proves when a place may be written again.
 */
#include "base/point.h"
#include "cpu/algo/all_reduce.h"
#include "cpu/transport/chunk.h"
#include "cpu/transport/copy.h"
#include "cpu/transport/owner.h"
#include "cpu/transport/piece_buffer.h"
#include "cpu/transport/wait.h"

enum {
    IN_FLIGHT = 3, /* pieces from their fill to their collect */
    /* Up to this size the lines of a chunk are prefetched (2 ranks near, 256 KiB: 6.5 us
     * without, 6.1 with, far 8 KiB: 1.16 and 1.03). For longer chunks prefetching costs up to 5 %.
     */
    AHEAD_MOST_BYTES = 128 * 1024,
};

/* One operation cut into pieces. */
struct cut {
    size_t pieces;
    size_t chunk; /* elements of each rank in a whole piece */
    uint32_t first_step;
};

/* Where a piece begins and how its elements are divided. */
struct piece {
    size_t first;
    size_t count;
    size_t chunk;       /* elements */
    size_t chunk_bytes; /* from one chunk to the next */
    uint32_t step;
    size_t slot; /* of flags */
    size_t at;   /* offset in the exchange area or in the piece buffer */
};

/* Equal on all ranks. */
static bool pushes(const struct cpu_group *group)
{
    return group->table.two_shot == CPU_TWO_SHOT_PUSH;
}

/* How many chunks of a piece lie in a rank's arena: all, or, if results are pushed, all but its own
 * chunk. */
static size_t held_chunks(const struct cpu_group *group)
{
    return (size_t)group->size - pushes(group);
}

static struct cut cut_request(const struct cpu_group *group, const struct request *request)
{
    size_t width = request->element_bytes, ranks = (size_t)group->size, held = held_chunks(group);
    size_t area = pushes(group) ? LAYOUT_EXCHANGE_BYTES : LAYOUT_PIECE_BYTES;
    struct cut cut = {
        .pieces = 1,
        .chunk = chunk_elements(request->count, group->size, width),
        .first_step = group->op.step + 1,
    };
    if (cut.chunk * width * held <= area)
        return cut;
    if (pushes(group))
        area /= IN_FLIGHT;
    size_t most = area / held / LAYOUT_LINE * LAYOUT_LINE / width * ranks;
    size_t pieces = (request->count + most - 1) / most;
    cut.chunk = chunk_elements((request->count + pieces - 1) / pieces, group->size, width);
    cut.pieces = (request->count + cut.chunk * ranks - 1) / (cut.chunk * ranks);
    return cut;
}

/* Called once for each piece, in order: a piece takes its place here. */
static struct piece piece_take(struct cpu_group *group, const struct request *request,
                               const struct cut *cut, size_t k)
{
    size_t width = request->element_bytes, whole = cut->chunk * (size_t)group->size;
    struct piece piece = {.first = k * whole, .step = cut->first_step + (uint32_t)k};
    size_t left = request->count - piece.first;
    piece.count = left < whole ? left : whole;
    piece.chunk = cut->pieces == 1 ? cut->chunk : chunk_elements(piece.count, group->size, width);
    piece.chunk_bytes = piece.chunk * width;
    piece.slot = piece.step % LAYOUT_SLOTS;
    piece.at = pushes(group) ? k % IN_FLIGHT * cut->chunk * width * held_chunks(group)
                             : piece_buffer_take(group, piece.count * width);
    return piece;
}

/* The place of an owner's chunk in a rank's arena. */
static unsigned char *place_of(const struct cpu_group *group, const struct piece *piece, int rank,
                               int owner)
{
    struct layout_arena *arena = group->arenas[rank];
    if (pushes(group))
        return arena->exchange + piece->at + (size_t)(owner - (owner > rank)) * piece->chunk_bytes;
    return arena->piece_buffer + piece->at + (size_t)owner * piece->chunk_bytes;
}

static void fill(struct cpu_group *group, const struct request *request, const struct piece *piece)
{
    size_t width = request->element_bytes, own;
    size_t owned = chunk_of(piece->count, piece->chunk, group->rank, &own);
    size_t before = own * width, behind = (own + owned) * width, end = piece->count * width;
    const unsigned char *send = (const unsigned char *)request->send + piece->first * width;
    void (*copy)(struct cpu_group *, void *, const void *, size_t) =
        pushes(group) ? copy_near : copy_in;
    copy(group, place_of(group, piece, group->rank, 0), send, before);
    copy(group, place_of(group, piece, group->rank, group->rank + 1), send + behind, end - behind);
    POINT("two_shot.filled");
    invalidate_flag(&group->own->part_flags[piece->slot].header, piece->step);
    wait_publish(group, &group->own->in_flags[piece->slot].header, piece->step, request); /* P1 */
}

/* `in`: this rank's chunk of all ranks' inputs, in leaf order. `own`: its chunk of the output. */
static void result_push(const struct cpu_group *group, const struct request *request,
                        const struct piece *piece, const void *const *in, unsigned char *own,
                        size_t count)
{
    unsigned char *out[TUTTI_MAX_RANKS];
    for (int r = 0; r < group->size; r++)
        out[r] = r == group->rank ? own : place_of(group, piece, r, group->rank);
    owner_reduce(group, request, in, out, count,
                 count * request->element_bytes <= AHEAD_MOST_BYTES);
}

static void result_pull(const struct cpu_group *group, const struct request *request,
                        const struct piece *piece, const void *const *in, unsigned char *own,
                        size_t count)
{
    request->reduce(&(struct reduce_call){
        .out = own,
        .copy = place_of(group, piece, group->rank, group->rank),
        .stream_copy = group->distance.far,
        .in = in,
        .n = group->size,
        .count = count,
        .scalar = request->scalar,
        .divisor = group->size,
    });
    if (group->distance.far)
        order_drain_streams();
}

static enum tutti_status reduce(struct cpu_group *group, const struct request *request,
                                const struct piece *piece)
{
    size_t width = request->element_bytes, own;
    size_t owned = chunk_of(piece->count, piece->chunk, group->rank, &own);
    size_t at = (piece->first + own) * width;
    const void *in[TUTTI_MAX_RANKS];
    for (int leaf = 0; leaf < group->size; leaf++) {
        int r = group->ranks.order[leaf];
        if (r == group->rank) {
            in[leaf] = (const unsigned char *)request->send + at;
            continue;
        }
        in[leaf] = place_of(group, piece, r, group->rank);
        enum tutti_status status = wait_header(
            group, r, &group->arenas[r]->in_flags[piece->slot].header, piece->step, request);
        if (status != TUTTI_OK)
            return status;
    }
    (pushes(group) ? result_push : result_pull)(group, request, piece, in,
                                                (unsigned char *)request->recv + at, owned);
    POINT("two_shot.reduced");
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
        enum tutti_status status = wait_header(
            group, r, &group->arenas[r]->out_flags[piece->slot].header, piece->step, request);
        if (status != TUTTI_OK)
            return status;
        size_t first, count = chunk_of(piece->count, piece->chunk, r, &first);
        group->isa->copy(recv + first * width,
                         place_of(group, piece, pushes(group) ? group->rank : r, r), count * width);
    }
    POINT("two_shot.collected");
    return TUTTI_OK;
}

enum tutti_status two_shot_pieces(void *opaque, const struct request *request)
{
    struct cpu_group *group = opaque;
    struct cut cut = cut_request(group, request);
    struct piece pieces[IN_FLIGHT];
    for (size_t iteration = 0; iteration < cut.pieces + 2; iteration++) {
        enum tutti_status status = TUTTI_OK;
        if (iteration < cut.pieces) {
            struct piece *piece = &pieces[iteration % IN_FLIGHT];
            *piece = piece_take(group, request, &cut, iteration);
            fill(group, request, piece);
        }
        if (iteration >= 1 && iteration <= cut.pieces)
            status = reduce(group, request, &pieces[(iteration - 1) % IN_FLIGHT]);
        if (status == TUTTI_OK && iteration >= 2)
            status = collect(group, request, &pieces[(iteration - 2) % IN_FLIGHT]);
        if (status != TUTTI_OK)
            return status;
    }
    group->op.step += (uint32_t)cut.pieces;
    return TUTTI_OK;
}
