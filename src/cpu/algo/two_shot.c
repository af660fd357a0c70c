/* SPDX-License-Identifier: MIT */
/*
 * Two-shot all-reduce: reduce-scatter, then all-gather, in pipelined pieces. Two hops. A long
 * reduce among many ranks does the same, but only the root collects; all ranks wait for all flags.
 *
 * A piece has one chunk for each rank, its owner. Each rank, in each step:
 *   writes its inputs of the other ranks' chunks into its arena (flag P1);
 *   reduces its own chunk from its input and all arenas. It writes the result into its output and
 *   to the place where the other ranks read it (flag Q1);
 *   collects the other chunks of its output.
 *
 * Push, for few ranks: the owner writes the result over the inputs that it has just read, in each
 * peer's exchange area, and a rank collects from its own area. Two cores then write each line in
 * turn, and no third copy of a line has to be invalidated (2 ranks, 256 KiB, Zen 5: near 8.6 us by
 * pull, 6.5 by push, far 14.0 and 10.2; Intel 49 and 25). Pull, for more ranks: the owner writes
 * the result into its own piece buffer, at the place of its own chunk, and the other ranks read it
 * there. With more ranks an owner stores more copies by push: 8 ranks on 8 cores gain nothing, and
 * small operations take 10 to 20 % longer.
 *
 * Iteration t fills piece t, reduces piece t - 1 and collects piece t - 2. docs/ordering.md (P1,
 * Q1) proves when a place may be written again.
 */
#include "base/point.h"
#include "cpu/algo/algo.h"
#include "cpu/transport/chunk.h"
#include "cpu/transport/copy.h"
#include "cpu/transport/piece_buffer.h"

enum {
    PLACES = 3, /* of pushed pieces: from their fill to their collect */
    /* Up to this size the lines of a chunk are prefetched (2 ranks near, 256 KiB: 6.5 us
     * without, 6.1 with, far 8 KiB: 1.16 and 1.03). For longer chunks prefetching costs up to 5 %.
     */
    AHEAD_MOST_BYTES = 128 * 1024,
};

/* Equal on all ranks. */
static bool pushes(const struct cpu_group *group)
{
    return group->limits.pushes;
}

/* A reduce sends its result to the root alone. It uses no pushes (choose.c). */
static bool has_result(const struct cpu_group *group, const struct request *request)
{
    return request->collective != TUTTI_COLLECTIVE_REDUCE || request->peer == group->peers.rank;
}

/* How many chunks of a piece lie in a rank's arena: all, or, if results are pushed, all but its own
 * chunk. */
static size_t held_chunks(const struct cpu_group *group)
{
    return (size_t)group->peers.size - pushes(group);
}

static size_t cut(const struct cpu_group *group, const struct request *request)
{
    const size_t width = request->element_bytes, ranks = (size_t)group->peers.size;
    const size_t held = held_chunks(group);
    size_t area = pushes(group) ? group->areas.exchange_bytes : group->areas.piece_bytes;
    size_t chunk = chunk_elements(request->count, group->peers.size, width);
    if (chunk * width * held > area) {
        if (pushes(group))
            area /= PLACES;
        const size_t most = area / held / LAYOUT_LINE * LAYOUT_LINE / width * ranks;
        const size_t pieces = (request->count + most - 1) / most;
        chunk = chunk_elements((request->count + pieces - 1) / pieces, group->peers.size, width);
    }
    return chunk * ranks;
}

static void place(struct cpu_group *group, const struct request *request,
                  const struct announced_state *state, struct piece *piece)
{
    const size_t width = request->element_bytes, whole = state->whole / (size_t)group->peers.size;
    piece_take_step(group, piece);
    piece->chunk =
        state->pieces == 1 ? whole : chunk_elements(piece->count, group->peers.size, width);
    piece->owned = chunk_of(piece->count, piece->chunk, group->peers.rank, &piece->own);
    piece->at = pushes(group) ? state->iteration % PLACES * whole * width * held_chunks(group)
                              : piece_buffer_take(group, piece->count * width);
}

/* The place of an owner's chunk in a rank's arena. */
static unsigned char *place_of(const struct cpu_group *group, const struct request *request,
                               const struct piece *piece, int rank, int owner)
{
    const size_t chunk_bytes = piece->chunk * request->element_bytes;
    if (pushes(group))
        return area_of(group, rank, group->areas.exchange) + piece->at +
               (size_t)(owner - (owner > rank)) * chunk_bytes;
    return piece_buffer_of(group, rank) + piece->at + (size_t)owner * chunk_bytes;
}

static bool fill(struct cpu_group *group, const struct request *request,
                 struct announced_state *state, const struct piece *piece)
{
    const size_t width = request->element_bytes, before = piece->own * width;
    const size_t behind = (piece->own + piece->owned) * width, end = piece->count * width;
    const unsigned char *send = (const unsigned char *)request->send + piece->first * width;
    void (*copy)(const struct cpu_group *, void *, const void *, size_t) =
        pushes(group) ? copy_near : copy_in;
    (void)state;
    copy(group, place_of(group, request, piece, group->peers.rank, 0), send, before);
    copy(group, place_of(group, request, piece, group->peers.rank, group->peers.rank + 1),
         send + behind, end - behind);
    POINT("two_shot.filled");
    invalidate_flag(&group->peers.own->part_flags[piece->slot].header, piece->step);
    wait_publish(group, &group->peers.own->in_flags[piece->slot].header, piece->step,
                 request); /* P1 */
    return true;
}

/* `in`: this rank's chunk of all ranks' inputs, in leaf order. `own`: its chunk of the output. */
static void result_push(const struct cpu_group *group, const struct request *request,
                        const struct piece *piece, const void *const *in, unsigned char *own)
{
    unsigned char *out[NODE_RANKS];
    for (int r = 0; r < group->peers.size; r++)
        out[r] =
            r == group->peers.rank ? own : place_of(group, request, piece, r, group->peers.rank);
    owner_reduce(group, request, in, out, piece->owned,
                 piece->owned * request->element_bytes <= AHEAD_MOST_BYTES);
}

static void result_pull(const struct cpu_group *group, const struct request *request,
                        const struct piece *piece, const void *const *in, unsigned char *own)
{
    const bool stream = group->distance.far && !copies_strings(group);
    unsigned char *shared = place_of(group, request, piece, group->peers.rank, group->peers.rank);
    const bool mine = has_result(group, request);
    request->reduce(&(struct reduce_call){
        .out = mine ? own : shared,
        .copy = mine ? shared : NULL,
        .stream_copy = stream,
        .in = in,
        .n = group->peers.size,
        .count = piece->owned,
        .scalar = request->scalar,
        .divisor = group->peers.size,
        .begin = group->peers.rank,
    });
    if (stream)
        order_drain_streams();
}

static bool reduce(struct cpu_group *group, const struct request *request,
                   struct announced_state *state, const struct piece *piece)
{
    const size_t at = (piece->first + piece->own) * request->element_bytes;
    const void *in[NODE_RANKS];
    if (!inputs_arrived(group, request, state, piece))
        return false;
    for (int leaf = 0; leaf < group->peers.size; leaf++) {
        const int r = group->order[leaf];
        in[leaf] = r == group->peers.rank ? (const unsigned char *)request->send + at
                                          : place_of(group, request, piece, r, group->peers.rank);
    }
    (pushes(group) ? result_push : result_pull)(group, request, piece, in,
                                                (unsigned char *)request->recv + at);
    POINT("two_shot.reduced");
    wait_publish(group, &group->peers.own->out_flags[piece->slot].header, piece->step,
                 request); /* Q1 */
    return true;
}

static bool collect(struct cpu_group *group, const struct request *request,
                    struct announced_state *state, const struct piece *piece)
{
    const size_t width = request->element_bytes;
    unsigned char *recv = (unsigned char *)request->recv + piece->first * width;
    for (; state->base.at < group->peers.size - 1; state->base.at++) {
        const int r = peer_at(group, state->base.at);
        if (!header_arrived(group, &state->base, r,
                            &group->peers.arenas[r]->out_flags[piece->slot].header, piece->step,
                            request))
            return false;
        size_t first, count = chunk_of(piece->count, piece->chunk, r, &first);
        if (has_result(group, request))
            copy_out(group, request, recv + first * width,
                     place_of(group, request, piece, pushes(group) ? group->peers.rank : r, r),
                     count * width);
    }
    POINT("two_shot.collected");
    return true;
}

const struct announced cpu_two_shot = {
    .algorithm = ANNOUNCED_ALGORITHM,
    .cut = cut,
    .place = place,
    .passes = 3,
    .last_delay = 2,
    .pass = {{0, fill}, {1, reduce}, {2, collect}},
};
