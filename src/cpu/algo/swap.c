/* SPDX-License-Identifier: MIT */
/*
 * One-shot all-reduce of two ranks, for inputs that are longer than a small message. In each piece
 * both ranks give their inputs to each other and reduce both.
 *
 * The ranks swap places from piece to piece: each writes where it has just read the peer's inputs.
 * No other rank uses that place, and its cache lines are already here. A line that the peer has
 * read would first have to be taken from the peer's cache (Zen 5, far, 16 KiB: 1.47 us through the
 * piece buffer, 0.97 us by swapping). Small messages swap their bodies in the same way: one_shot.c.
 *
 * A piece has two halves, each with a flag that is swapped with it. While the first half travels,
 * the rank fills the second one. So a rank first polls a flag when the flag has most likely
 * arrived: a poll that is too early takes the line from the writer.
 */
#include "base/point.h"
#include "cpu/algo/all_reduce.h"
#include "cpu/transport/chunk.h"
#include "cpu/transport/copy.h"
#include "cpu/transport/wait.h"

/* Elements of a request. `half`: elements of the first half. */
struct piece {
    size_t first;
    size_t count;
    size_t half;
};

static void give(struct cpu_group *group, const struct request *request, const struct piece *piece,
                 struct layout_swap *place)
{
    const size_t width = request->element_bytes;
    const unsigned char *send = (const unsigned char *)request->send + piece->first * width;
    for (int i = 0; i < LAYOUT_HALVES; i++) {
        size_t first, count = chunk_of(piece->count, piece->half, i, &first);
        copy_near(group, place->data + first * width, send + first * width, count * width);
        POINT("swap.filled");
        wait_publish(group, &place->flags[i].header, group->op.swaps, request); /* V1 */
        POINT("swap.published");
    }
}

static enum tutti_status take(struct cpu_group *group, const struct request *request,
                              const struct piece *piece, const struct layout_swap *place)
{
    const size_t width = request->element_bytes;
    const int peer = !group->rank, leaf = group->ranks.order[1] == peer;
    for (int i = 0; i < LAYOUT_HALVES; i++) {
        size_t first, count = chunk_of(piece->count, piece->half, i, &first);
        const size_t from = piece->first + first;
        const void *in[2];
        enum tutti_status status =
            wait_header(group, peer, &place->flags[i].header, group->op.swaps, request);
        if (status != TUTTI_OK)
            return status;
        in[leaf] = place->data + first * width;
        in[!leaf] = (const unsigned char *)request->send + from * width;
        one_shot_reduce(group, request, from, count, in);
        POINT("swap.taken");
    }
    return TUTTI_OK;
}

enum tutti_status swap_pieces(void *opaque, const struct request *request)
{
    struct cpu_group *group = opaque;
    const size_t most = LAYOUT_SWAP_BYTES / request->element_bytes;
    for (size_t first = 0; first < request->count; first += most) {
        const size_t left = request->count - first, count = left < most ? left : most;
        const struct piece piece = {
            .first = first,
            .count = count,
            .half = chunk_elements(count, LAYOUT_HALVES, request->element_bytes),
        };
        const int swapped = ++group->op.swaps & 1;
        give(group, request, &piece, &group->arenas[group->rank ^ swapped]->swap);
        enum tutti_status status =
            take(group, request, &piece, &group->arenas[!group->rank ^ swapped]->swap);
        if (status != TUTTI_OK)
            return status;
    }
    return TUTTI_OK;
}
