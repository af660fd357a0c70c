/* SPDX-License-Identifier: MIT */
/*
 * The areas of a rank's arena that longer operations use, computed from the size of the arena. They
 * are the same on all ranks. An arena has only the areas that its number of ranks uses:
 *   piece buffer  inputs, and results of the own chunk: pieces.c, two_shot.c, mesh.c; not of two
 *                 ranks
 *   exchange      inputs of the peers' chunks; each peer writes the result of its chunk over them:
 *                 two_shot.c, where results are pushed
 *   swap          of two ranks: written by the owner and by the peer, in turn: swap.c
 *   pair          messages to one rank or to all, which their readers acknowledge: pair.h
 *
 * NUMA: an arena lies on the node of the thread that has created it (segment.h), so inputs, results
 * and messages lie on their writer's node, and only an exchange on its reader's. A write to another
 * node fetches the line and gives it back; a read fetches it once, and the core fetches lines ahead
 * of sequential reads. No machine with two nodes has measured this. A rank that is bound to its
 * node before it creates its communicators has its arenas there; tutti_comm_describe() shows where.
 */
#ifndef TUTTI_CPU_AREAS_H
#define TUTTI_CPU_AREAS_H

#include "base/layout.h"

#include <stdbool.h>

enum {
    /* Where ranks share cores, messages to one rank have so many bytes more. A sender whose places
     * are full waits until the scheduler has let its reader run (4 ranks on 2 cores, gather of 1,
     * 4, 16 MiB, beside Intel MPI: 1.8, 1.6, 1.7 of its time with places of 21 KiB, 1.4, 1.0, 1.2
     * with 150 KiB; twice as much more gains nothing). */
    AREAS_CROWDED_BYTES = 3 << 19,
    AREAS_MOST_ARENA = LAYOUT_MOST_ARENA + AREAS_CROWDED_BYTES, /* the most that a rank can use */
};

/* Offsets from the arena's start, sizes in bytes; 0 bytes: there is no such area. */
struct areas {
    size_t piece_buffer, piece_buffer_bytes;
    size_t piece_bytes; /* most bytes of a piece in the piece buffer */
    size_t exchange, exchange_bytes;
    size_t swap, swap_bytes;                 /* swap_bytes: of struct layout_swap's data */
    size_t pair, pair_messages, pair_places; /* the latter two from `pair` on */
    size_t message_bytes[2]; /* most bytes of a piece of a message to one rank, to all */
    size_t arena_bytes;
};

/* The whole units in `bytes`, at most `most` bytes. */
static inline size_t areas_part(size_t bytes, size_t unit, size_t most)
{
    return bytes < most ? bytes / unit * unit : most;
}

static inline size_t areas_least(int ranks)
{
    const int more = ranks > LAYOUT_LEAST_RANKS ? ranks - LAYOUT_LEAST_RANKS : 0;
    return (size_t)(LAYOUT_LEAST_ARENA + more * LAYOUT_RANK_BYTES);
}

/* The lane PAIR: half of its places for messages to all, the rest divided among the peers. A piece
 * travels in the lines of the messages if there are no places. Returns the bytes taken: those of
 * the lines, and up to `bytes` in all, and `more`, which is for messages to one rank. */
static inline size_t areas_make_pair(struct areas *areas, size_t bytes, size_t more, int ranks)
{
    const size_t lines = (size_t)ranks * LAYOUT_LINE, unit = LAYOUT_WINDOW * LAYOUT_LINE;
    const size_t fixed = sizeof(struct layout_pair) + lines + lines * LAYOUT_WINDOW;
    const size_t places = bytes > fixed ? areas_part(bytes - fixed, unit, LAYOUT_PAIR_BYTES) : 0;
    const size_t peers = ranks > 1 ? (size_t)ranks - 1 : 1;
    areas->pair_messages = sizeof(struct layout_pair) + lines;
    areas->pair_places = fixed;
    areas->message_bytes[0] = (places / 2 + more) / peers / unit * LAYOUT_LINE;
    areas->message_bytes[1] = places / 2 / unit * LAYOUT_LINE;
    for (int i = 0; i < 2; i++)
        if (areas->message_bytes[i] < LAYOUT_MESSAGE_BYTES)
            areas->message_bytes[i] = LAYOUT_MESSAGE_BYTES;
    return fixed + places + more;
}

/* `bytes`: the most that the arena may take, at least areas_least(). `pushes`: the exchange area is
 * wanted. `crowded`: ranks share cores. docs/ordering.md (P1) says why six pieces fit into the
 * piece buffer. */
static inline struct areas areas_make(size_t bytes, int ranks, bool pushes, bool crowded)
{
    const size_t least_piece = (size_t)ranks * LAYOUT_LINE; /* a line for each rank */
    struct areas areas = {.piece_buffer = LAYOUT_AREAS_OFFSET};
    const size_t more =
        crowded && bytes > LAYOUT_MOST_ARENA
            ? areas_part(bytes - LAYOUT_MOST_ARENA, LAYOUT_LINE, AREAS_CROWDED_BYTES)
            : 0;
    const size_t pair_bytes =
        areas_make_pair(&areas, (bytes - more - LAYOUT_AREAS_OFFSET) / 4, more, ranks);
    const size_t room = bytes - LAYOUT_AREAS_OFFSET - pair_bytes;
    size_t rest = room;
    if (ranks == 2) {
        areas.swap_bytes = areas_part(room / 4, LAYOUT_HALVES * LAYOUT_LINE, LAYOUT_SWAP_BYTES);
        rest -= sizeof(struct layout_swap) + areas.swap_bytes;
        areas.exchange_bytes = areas_part(rest, LAYOUT_LINE, LAYOUT_EXCHANGE_BYTES);
    } else {
        if (pushes && room - room / 3 >= 6 * least_piece)
            areas.exchange_bytes = areas_part(room / 3, LAYOUT_LINE, LAYOUT_EXCHANGE_BYTES);
        rest -= areas.exchange_bytes;
        areas.piece_buffer_bytes = areas_part(rest, LAYOUT_LINE, LAYOUT_PIECE_BUFFER_BYTES);
        areas.piece_bytes = areas.piece_buffer_bytes / 8 / LAYOUT_LINE * LAYOUT_LINE;
        if (areas.piece_bytes < least_piece)
            areas.piece_bytes = least_piece;
    }
    areas.exchange = areas.piece_buffer + areas.piece_buffer_bytes;
    areas.swap = areas.exchange + areas.exchange_bytes;
    areas.pair = areas.swap + (ranks == 2) * sizeof(struct layout_swap) + areas.swap_bytes;
    areas.arena_bytes = areas.pair + pair_bytes;
    return areas;
}

#endif
