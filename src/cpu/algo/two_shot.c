/* SPDX-License-Identifier: MIT */
/*
 * Two-shot all-reduce: reduce-scatter, then all-gather, in pipelined pieces. Two hops.
 *
 * A piece is one chunk a rank. In a step every rank
 *
 *   fills its arena with its inputs of the others' chunks (flag P1),
 *
 *   reduces its own chunk from its input and everybody's arena, into its output and to where the
 *   others find it (flag Q1),
 *
 *   collects the other chunks of its output.
 *
 * Few ranks *push*: the owner of a chunk writes the result over the inputs that it has just read,
 * in each peer's exchange area, and a rank collects from its own. So a line goes to and fro between
 * two cores that both write it, and each time comes whole and alone, while one that is written here
 * and read there has a copy to be withdrawn before it is written again. On 2 ranks, 256 KiB (Zen
 * 5): near 8.6 us by pulling, 6.5 by pushing, far 14.0 and 10.2; on an Intel 49 and 25. The more
 * ranks, the more results an owner stores: among 8 on cores of their own pushing and pulling are
 * level, and small operations slower by a tenth or two. They *pull*: the owner puts its result into
 * the hole that its chunk left in its ring, whence the others collect it.
 *
 * Iteration t fills piece t, reduces piece t - 1, collects piece t - 2, so that a peer that is a
 * little late costs nothing. docs/ordering.md has why a place may be written again: P1, Q1.
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
    /* Chunks up to here are asked for ahead (2 ranks near, 256 KiB: 6.5 us without, 6.1 with, far 8
     * KiB: 1.16 and 1.03; beyond it costs up to a twentieth). */
    AHEAD_MOST_BYTES = 128 * 1024,
};

/* One operation cut into pieces. */
struct cut {
    bool push;
    size_t pieces;
    size_t chunk; /* elements of each rank in a whole piece */
    uint32_t first_step;
};

/* Piece k: where it begins and how its elements are dealt out. */
struct piece {
    bool push;
    size_t first;
    size_t count;
    size_t chunk;       /* elements */
    size_t chunk_bytes; /* from one chunk to the next */
    uint32_t step;
    size_t slot; /* of flags */
    size_t at;   /* offset in the exchange area, or in the ring */
};

/* How many chunks of a piece lie in a rank's arena: all, or, if results are pushed, all but its own
 * chunk. */
static size_t held_chunks(const struct cpu_group *group, bool push)
{
    return (size_t)group->size - push;
}

static struct cut cut_request(const struct cpu_group *group, const struct request *request,
                              bool push)
{
    size_t width = request->element_bytes, ranks = (size_t)group->size;
    size_t held = held_chunks(group, push);
    size_t area = push ? LAYOUT_EXCHANGE_BYTES : LAYOUT_PIECE_BYTES;
    struct cut cut = {
        .push = push,
        .pieces = 1,
        .chunk = chunk_elements(request->count, group->size, width),
        .first_step = group->step + 1,
    };
    if (cut.chunk * width * held <= area)
        return cut;
    if (push)
        area /= IN_FLIGHT;
    size_t most = area / held / LAYOUT_LINE * LAYOUT_LINE / width * ranks;
    size_t pieces = (request->count + most - 1) / most;
    cut.chunk = chunk_elements((request->count + pieces - 1) / pieces, group->size, width);
    cut.pieces = (request->count + cut.chunk * ranks - 1) / (cut.chunk * ranks);
    return cut;
}

/* Takes its place: once a piece, in their order. */
static struct piece piece_take(struct cpu_group *group, const struct request *request,
                               const struct cut *cut, size_t k)
{
    size_t width = request->element_bytes, whole = cut->chunk * (size_t)group->size;
    struct piece piece = {
        .push = cut->push, .first = k * whole, .step = cut->first_step + (uint32_t)k};
    size_t left = request->count - piece.first;
    piece.count = left < whole ? left : whole;
    piece.chunk = cut->pieces == 1 ? cut->chunk : chunk_elements(piece.count, group->size, width);
    piece.chunk_bytes = piece.chunk * width;
    piece.slot = piece.step % LAYOUT_SLOTS;
    piece.at = cut->push ? k % IN_FLIGHT * cut->chunk * width * held_chunks(group, true)
                         : piece_buffer_take(group, piece.count * width);
    return piece;
}

/* Where an owner's chunk lies in that rank's arena. */
static unsigned char *place_of(const struct cpu_group *group, const struct piece *piece, int rank,
                               int owner)
{
    struct layout_arena *arena = group->arenas[rank];
    if (piece->push)
        return arena->exchange + piece->at + (size_t)(owner - (owner > rank)) * piece->chunk_bytes;
    return arena->ring + piece->at + (size_t)owner * piece->chunk_bytes;
}

static void fill(struct cpu_group *group, const struct request *request, const struct piece *piece)
{
    size_t width = request->element_bytes, own;
    size_t owned = chunk_of(piece->count, piece->chunk, group->rank, &own);
    size_t before = own * width, behind = (own + owned) * width, end = piece->count * width;
    const unsigned char *send = (const unsigned char *)request->send + piece->first * width;
    void (*copy)(struct cpu_group *, void *, const void *, size_t) =
        piece->push ? copy_near : copy_in;
    copy(group, place_of(group, piece, group->rank, 0), send, before);
    copy(group, place_of(group, piece, group->rank, group->rank + 1), send + behind, end - behind);
    POINT("two_shot.filled");
    wait_void(&group->own->part_flags[piece->slot].header, piece->step);
    wait_publish(group, &group->own->in_flags[piece->slot].header, piece->step, request); /* P1 */
}

/* `in` and `own`: this rank's chunk of everybody's inputs, in leaf order, and of its output. */
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
        .stream_copy = group->far,
        .in = in,
        .n = group->size,
        .count = count,
        .scalar = request->scalar,
        .divisor = group->size,
    });
    if (group->far)
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
        int r = group->order[leaf];
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
    (piece->push ? result_push : result_pull)(group, request, piece, in,
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
                         place_of(group, piece, piece->push ? group->rank : r, r), count * width);
    }
    POINT("two_shot.collected");
    return TUTTI_OK;
}

static enum tutti_status pieces_run(struct cpu_group *group, const struct request *request,
                                    bool push)
{
    struct cut cut = cut_request(group, request, push);
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
    group->step += (uint32_t)cut.pieces;
    return TUTTI_OK;
}

enum tutti_status two_shot_push(void *group, const struct request *request)
{
    return pieces_run(group, request, true);
}

enum tutti_status two_shot_pull(void *group, const struct request *request)
{
    return pieces_run(group, request, false);
}
