/* SPDX-License-Identifier: MIT */
/*
 * One-shot all-reduce of two ranks, beyond a mail: each gives the other its inputs, piece by piece,
 * and reduces both.
 *
 * From piece to piece they swap places: each writes where it has just read the other's inputs.
 * There nobody else reads or writes any more, and the lines have come with what was read, while one
 * that the other has read would first have to be withdrawn from it (Zen 5, far, 16 KiB: 1.47 us
 * through the ring, 0.97 by swapping). Mails swap their bodies likewise:
 * one_shot.c.
 *
 * A piece goes in two halves, each with a flag that swaps, too: while the first flag and what it
 * announces travel the second half is filled, and a flag is first looked at when it is most likely
 * there; one that is not would be taken from its writer by the look.
 */
#include "base/point.h"
#include "cpu/algo/all_reduce.h"
#include "cpu/transport/chunk.h"
#include "cpu/transport/copy.h"
#include "cpu/transport/wait.h"

/* Elements of a request, and how many of them the first half has. */
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
        wait_publish(group, &place->flags[i].header, group->swaps, request); /* V1 */
        POINT("swap.published");
    }
}

static enum tutti_status take(struct cpu_group *group, const struct request *request,
                              const struct piece *piece, const struct layout_swap *place)
{
    const size_t width = request->element_bytes;
    const int peer = !group->rank, leaf = group->order[1] == peer;
    for (int i = 0; i < LAYOUT_HALVES; i++) {
        size_t first, count = chunk_of(piece->count, piece->half, i, &first);
        const size_t from = piece->first + first;
        const void *in[2];
        enum tutti_status status =
            wait_header(group, peer, &place->flags[i].header, group->swaps, request);
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
        const int swapped = ++group->swaps & 1;
        give(group, request, &piece, &group->arenas[group->rank ^ swapped]->swap);
        enum tutti_status status =
            take(group, request, &piece, &group->arenas[!group->rank ^ swapped]->swap);
        if (status != TUTTI_OK)
            return status;
    }
    return TUTTI_OK;
}
