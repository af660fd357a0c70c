/* SPDX-License-Identifier: MIT */
/*
 * Operations of two ranks that are longer than a small message. In each piece each rank sends the
 * data that the peer needs.
 *
 * The ranks swap places from piece to piece: each writes where it has just read the peer's inputs.
 * No other rank uses that place, and its cache lines are already in this core's cache. A line that
 * the peer has read would have to come from the peer's cache first (Zen 5, far, 16 KiB: 1.47 us
 * through the piece buffer, 0.97 us by swapping). Small messages swap their bodies in the same way:
 * small.c.
 *
 * A piece has two halves, each with a flag that is swapped with it. While the first half travels,
 * the rank fills the second one. So the first flag has most likely arrived when the rank first
 * polls it. A poll that is too early takes the line from the writer.
 */
#include "base/point.h"
#include "cpu/algo/algo.h"
#include "cpu/transport/chunk.h"
#include "cpu/transport/copy.h"

static size_t cut(const struct cpu_group *group, const struct request *request)
{
    return group->areas.swap_bytes / request->element_bytes;
}

static void place(struct cpu_group *group, const struct request *request,
                  const struct announced_state *state, struct piece *piece)
{
    (void)state;
    group->counts.swaps++;
    piece->chunk = chunk_elements(piece->count, LAYOUT_HALVES, request->element_bytes);
}

static struct layout_swap *place_of(const struct cpu_group *group, int rank)
{
    return (struct layout_swap *)(void *)area_of(group, rank ^ (int)(group->counts.swaps & 1),
                                                 group->areas.swap);
}

static bool give(struct cpu_group *group, const struct request *request,
                 struct announced_state *state, const struct piece *piece)
{
    const size_t width = request->element_bytes;
    const unsigned char *send = request_sent(request, !group->peers.rank) + piece->first * width;
    struct layout_swap *to = place_of(group, group->peers.rank);
    (void)state;
    for (int i = 0; i < LAYOUT_HALVES; i++) {
        size_t first, count = chunk_of(piece->count, piece->chunk, i, &first);
        copy_near(group, to->data + first * width, send + first * width, count * width);
        POINT("swap.filled");
        wait_publish(group, &to->flags[i].header, group->counts.swaps, request); /* V1 */
        POINT("swap.published");
    }
    return true;
}

/* Uses `count` of the peer's elements, from element `first`. */
static void half_take(struct cpu_group *group, const struct request *request, size_t first,
                      size_t count, const unsigned char *theirs)
{
    const size_t at = first * request->element_bytes;
    const int peer = !group->peers.rank, leaf = group->order[1] == peer;
    unsigned char *recv = request_received(request, peer) + at;
    const void *in[2];
    if (!request->reduce) {
        copy_out(group, request, recv, theirs, count * request->element_bytes);
        return;
    }
    in[leaf] = theirs;
    in[!leaf] = request_sent(request, group->peers.rank) + at;
    leaves_reduce(group, request, recv, count, in);
}

static bool take(struct cpu_group *group, const struct request *request,
                 struct announced_state *state, const struct piece *piece)
{
    const struct layout_swap *from = place_of(group, !group->peers.rank);
    for (; state->base.at < LAYOUT_HALVES; state->base.at++) {
        size_t first, count = chunk_of(piece->count, piece->chunk, state->base.at, &first);
        if (!header_arrived(group, &state->base, !group->peers.rank,
                            &from->flags[state->base.at].header, group->counts.swaps, request))
            return false;
        half_take(group, request, piece->first + first, count,
                  from->data + first * request->element_bytes);
        POINT("swap.taken");
    }
    return true;
}

const struct announced cpu_swap = {
    .algorithm = ANNOUNCED_ALGORITHM,
    .cut = cut,
    .place = place,
    .passes = 3,
    .pass = {{0, give}, {0, own_copy}, {0, take}},
};
