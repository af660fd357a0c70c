/* SPDX-License-Identifier: MIT */
/*
 * The arguments of exchange.cuh, and how it cuts messages. All messages of a launch run at the same
 * time. Those in one direction with one peer form a chain and run one after the other. A message is
 * cut into parts, one for each of its channels. The cut depends on the message's size and on a
 * limit that all ranks have agreed on, so both ends cut alike. A v-form is a message to and one
 * from each peer, empty ones too. If its counts are in memory, a chain has as many blocks as its
 * longest message may need. Compiles as C11 and as CUDA.
 */
#ifndef TUTTI_CUDA_EXCHANGE_H
#define TUTTI_CUDA_EXCHANGE_H

#include "cuda/kernels/launch.h"

enum {
    EXCHANGE_TRANSFERS = 128, /* in a launch, at most */
    EXCHANGE_CALLS = 8,       /* of v-forms whose counts are in memory: in a launch, at most */
    EXCHANGE_CHAINS = 2 * (CUDA_RANKS - 1),
    EXCHANGE_CHANNELS = 112, /* of all chains, at most: of 8 ranks 8 a chain */
    EXCHANGE_GROUP = CUDA_GROUP_LINES,
    EXCHANGE_DEPTH = 4,                             /* units of a piece that a worker serves */
    EXCHANGE_PIECE = EXCHANGE_DEPTH * CUDA_WORKERS, /* units */
    EXCHANGE_BATCH = 4,                             /* pieces that have one credit */
    EXCHANGE_LEAST = CUDA_WORKERS,                  /* units for which one more channel is taken */
    EXCHANGE_TOLD = EXCHANGE_PIECE * CUDA_LINE,     /* in a slot: the flagged lines of groups */
    EXCHANGE_HEADER = EXCHANGE_TOLD + EXCHANGE_PIECE / EXCHANGE_GROUP * CUDA_LINE,
};
static_assert(CUDA_MESSAGE_SLOTS >= 2 * EXCHANGE_BATCH,
              "a sender goes on while a batch is emptied");
static_assert(EXCHANGE_HEADER + CUDA_LINE <= CUDA_SLOT_BYTES, "a slot has room for a piece");

struct cuda_transfer {
    uint64_t address, bytes;
    uint64_t signature; /* of the message; those of both ends are equal */
};

/* The rank's own block of a collective, which the blocks that send copy behind their messages. */
struct cuda_own_block {
    uint64_t from, to, bytes; /* 0 bytes: nothing to copy */
};

/* The operands of a v-form whose counts are in memory. The arrays are addresses. */
enum { EXCHANGE_SEND, EXCHANGE_RECV };
struct cuda_counted_call {
    uint64_t operands[2], counts[2];
    uint64_t displacements[2]; /* 0: each block begins where the one before it ends */
    uint64_t extents[2];       /* elements of an operand */
    uint64_t most;             /* elements of a block */
    uint64_t signature;        /* of a message, without its count */
    uint32_t width;            /* bytes of an element */
    uint16_t sends_one;        /* send is one block, the own one of recv */
    uint16_t is_narrow;        /* the entries of the arrays are of 32 bits */
};

struct cuda_exchange {
    struct cuda_launch launch;
    /* By chain (cuda/pipe/messages.h): chain c has the transfers from begins[c] to begins[c + 1],
     * and channels[c] blocks. */
    uint16_t begins[EXCHANGE_CHAINS + 1];
    uint8_t channels[EXCHANGE_CHAINS];
    uint8_t most;     /* channels of a chain */
    uint8_t room;     /* channels for which an arena has slots, of each source: never changes */
    uint8_t numbered; /* a collective, which takes a number; messages take none */
    uint8_t calls;    /* that exchange_counted serves; in exchange 0 */
    uint8_t all;      /* channels of all chains */
    struct cuda_own_block own;
    union {
        struct cuda_transfer transfers[EXCHANGE_TRANSFERS];
        struct cuda_counted_call counted[EXCHANGE_CALLS];
    };
};
static_assert(sizeof(struct cuda_exchange) <= 4096, "the most that the arguments of a kernel take");

LAUNCH_FN uint64_t exchange_units(uint64_t bytes)
{
    return (bytes + CUDA_LINE - 1) / CUDA_LINE;
}

/* The number of channels of a message. The last ones may have no units. */
LAUNCH_FN unsigned exchange_channels(uint64_t bytes, unsigned most)
{
    const uint64_t wanted = (exchange_units(bytes) + EXCHANGE_LEAST - 1) / EXCHANGE_LEAST;
    return wanted < 1 ? 1 : wanted < most ? (unsigned)wanted : most;
}

/* The units of a channel's part: whole groups. Channel c begins at c times as many. */
LAUNCH_FN uint64_t exchange_part(uint64_t bytes, unsigned channels)
{
    const uint64_t even = (exchange_units(bytes) + channels - 1) / channels;
    return (even + EXCHANGE_GROUP - 1) / EXCHANGE_GROUP * EXCHANGE_GROUP;
}

#endif
