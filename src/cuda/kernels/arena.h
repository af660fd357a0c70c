/* SPDX-License-Identifier: MIT */
/*
 * Every byte that two ranks of a CUDA communicator share: one arena for each rank, one physical
 * allocation, mapped by all. Peers push: a peer writes here, the owner alone reads. Where devices
 * do not reach each other the arena is host memory and ends behind the tiles, but the owner's
 * control words are on its device. docs/layout.md explains the arena; docs/ordering.md says
 * why each word is free when it is written. Compiles as C11 and as CUDA.
 *
 * The operations of a communicator have a 64-bit sequence, equal on all ranks. It is kept in device
 * memory, so that a replayed graph advances it. What an operation leaves in a region never equals
 * what a later one waits for: flags hold the sequence, and lines are emptied after use.
 */
#ifndef TUTTI_CUDA_ARENA_H
#define TUTTI_CUDA_ARENA_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

enum {
    CUDA_RANKS = 8,
    CUDA_BLOCKS = 512,         /* at most, in a launch */
    CUDA_CONTROL_THREADS = 32, /* in each block: operation.cuh */
    CUDA_WORKERS = 480,        /* at most, in a block: the other threads */
    CUDA_THREADS = CUDA_WORKERS + CUDA_CONTROL_THREADS,
    CUDA_LINE = 16,                       /* bytes: one store, one poll */
    CUDA_PROBE_THREADS = 32 * CUDA_RANKS, /* a warp a peer, a line a thread */
    CUDA_HALVES = 2,                      /* of the flagged region, by parity of the sequence */
    CUDA_FLAGGED_BYTES = 2 << 20,
    CUDA_BUFFERS = 3, /* of lines, in turn */
    CUDA_ONE_SHOT_BYTES = 3 << 19,
    CUDA_TWO_SHOT_BYTES = 8 << 20,
    CUDA_TILE_BLOCKS = 128, /* of a launch with tiles, at most */
    CUDA_TILE_SLOTS = 3,
    CUDA_TILES_BYTES = 9 << 19, /* of each hop */
    CUDA_PIPES = 3,             /* of pieces, in turn */
    CUDA_PIPE_BYTES = 4 << 20,  /* of each of its two hops */
    CUDA_COPY_BYTES = 2 << 20,  /* of a pipe of copies */
    CUDA_GROUP_LINES = 32,      /* byte lines that have one escape: lines.cuh */
    CUDA_CHANNELS = 32,         /* of messages, from one rank to another, at most: exchange.cuh */
    CUDA_MESSAGE_SLOTS = 8,     /* of a channel */
    CUDA_SLOT_BYTES = 31 << 10, /* of a slot */
    CUDA_MESSAGES_BYTES = 14 << 20,
};

/* {data, flag}: written by one 16-byte store, read by one 16-byte load. The flag is
 * the operation's sequence above 16 bits of hash of what it is. */
struct cuda_flagged {
    uint64_t data;
    uint64_t flag;
};

/* Sent with every operation (promise 4); an arena keeps the last two of each source, by parity. */
struct cuda_header {
    uint64_t signature; /* signature.h */
    uint32_t parameter;
    uint32_t sequence; /* its low 32 bits */
};

/* The number of tiles that have arrived, for each hop, block and source. */
struct cuda_arrival_count {
    uint64_t tiles;
    uint64_t flag;
};

/* The number of pieces of a channel that its receiver has emptied. */
struct cuda_credit {
    uint64_t pieces;
    uint64_t reserved;
};

/* Pieces of a channel that the owner has received, and its last credit. */
struct cuda_received {
    uint64_t pieces;
    uint64_t credit;
};

/* Meetings of subset barriers. */
struct cuda_meeting {
    uint64_t count;
    uint64_t subset; /* hash of the subset's ranks */
};

/* The state of one algorithm's lines. */
struct cuda_buffer_state {
    uint16_t buffer; /* of the last use */
    uint16_t pipe;   /* two-shot: where the next pipelined use begins; one-shot: the number of
                      * pipelined copies */
    uint32_t dirty;  /* lines that the last use has filled, from the buffer's start */
};

/*
 * The state between operations: one row for each possible block; all rows are equal between
 * launches. Block b of a launch reads row b and writes rows b, b + grid, ...: no block reads what
 * another one writes.
 */
struct cuda_row {
    uint64_t sequence;                   /* of the last operation */
    uint64_t failed;                     /* never cleared: later launches return at once */
    struct cuda_buffer_state buffers[2]; /* one-shot, two-shot */
};

/* The owner's own words: no peer touches them. */
struct cuda_control {
    struct cuda_row rows[CUDA_BLOCKS];
    struct cuda_header former[2]; /* what the owner's last two operations were, by parity */
    uint64_t meetings[CUDA_RANKS];
    uint32_t claimed; /* the first to fail writes the record in struct cuda_host */
    uint32_t failed;  /* every wait reads it; never cleared */
    uint64_t
        look_ns;   /* when a thread may next read the host's words over PCIe: one thread for all */
    uint32_t gone; /* a copy of the host's `gone`: struct cuda_host */
    unsigned char pad[256 - 116];
};

struct cuda_arena {
    struct cuda_control control;
    struct cuda_header headers[2][CUDA_RANKS];   /* [sequence mod 2][source] */
    struct cuda_meeting meetings[CUDA_RANKS][2]; /* [source][meeting mod 2] */
    struct cuda_arrival_count arrivals[2][CUDA_TILE_BLOCKS][CUDA_RANKS]; /* [hop][block][source] */
    struct cuda_credit credits[CUDA_RANKS][CUDA_CHANNELS];               /* [receiver][channel] */
    uint64_t sent[CUDA_RANKS][CUDA_CHANNELS];                 /* pieces; the owner's: [receiver] */
    struct cuda_received received[CUDA_RANKS][CUDA_CHANNELS]; /* the owner's: [source] */
    unsigned char pad[65536 - sizeof(struct cuda_control) - 4 * CUDA_RANKS * 16 -
                      2 * CUDA_TILE_BLOCKS * CUDA_RANKS * 16 - 5 * CUDA_RANKS * CUDA_CHANNELS * 8];

    /* [half][source][line]: as many lines a source as fit; one-shot with flags in band */
    unsigned char flagged[CUDA_FLAGGED_BYTES];
    unsigned char tiles[2][CUDA_TILES_BYTES]; /* [hop]: [block][source][slot][tile] */
    /* [buffer]: full lines, packed from the start of the buffer, of all sources but the owner. An
     * empty line is all ones. */
    unsigned char one_shot[CUDA_BUFFERS][CUDA_ONE_SHOT_BYTES]; /* [source][line] */
    unsigned char two_shot[CUDA_BUFFERS][CUDA_TWO_SHOT_BYTES]; /* [hop][source][line of a chunk] */
    unsigned char pipes[CUDA_PIPES][2][CUDA_PIPE_BYTES]; /* [piece][hop]: [source][unit]; emptied */
    /* [use mod 2][piece]: [source][unit]; emptied. Behind it the escapes of its groups of lines. */
    unsigned char copies[2][CUDA_PIPES][CUDA_COPY_BYTES];
    struct cuda_flagged escapes[2][CUDA_PIPES][CUDA_COPY_BYTES / CUDA_LINE / CUDA_GROUP_LINES];
    unsigned char messages[CUDA_MESSAGES_BYTES]; /* [source][channel][slot]: exchange.h; emptied */
};

/* The size of an arena in host memory. */
#define CUDA_HOST_ARENA_BYTES offsetof(struct cuda_arena, one_shot)

/* Host memory of one rank, mapped on its device only. A struct device_trace begins with it. */
struct cuda_host {
    /* The host writes, the device polls while it waits. */
    uint32_t stop; /* enum tutti_status: end every wait with it */
    int32_t stop_peer;
    uint64_t timeout_ns; /* of operations without their own; 0: none */
    uint32_t gone;       /* bit r: rank r is gone; a wait for it polls once more, then PEER_DEAD */
    unsigned char pad[64 - 20];
    /* The device writes, once. */
    uint32_t failed; /* 1: the record is complete */
    int32_t status;
    int32_t peer;
    uint32_t parameters[2]; /* expected, seen */
    uint32_t reserved;
    uint64_t sequence;
    uint64_t signatures[2]; /* expected, seen */
    unsigned char pad2[64 - 48];
};

static_assert(sizeof(struct cuda_flagged) == CUDA_LINE, "flagged line");
static_assert(sizeof(struct cuda_header) == 16, "header");
static_assert(sizeof(struct cuda_arrival_count) == 16, "count");
static_assert(sizeof(struct cuda_row) == 32, "row");
static_assert(sizeof(struct cuda_control) == CUDA_BLOCKS * 32 + 256, "control");
static_assert(offsetof(struct cuda_arena, flagged) == 65536, "flagged");
static_assert(offsetof(struct cuda_host, failed) == 64, "host");
static_assert(sizeof(struct cuda_host) == 128, "host");

#endif
