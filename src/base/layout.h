/* SPDX-License-Identifier: MIT */
/*
 * Every byte that two ranks of a CPU communicator share: one arena for each rank. Its owner writes
 * it and its peers read it, except for words that say otherwise. docs/layout.md explains the arena,
 * docs/ordering.md lists which rank waits for which word. Fixed-width integers and offsets only.
 *
 * A header has a 32-bit number, which starts at 1 and is equal on all ranks. In a small message it
 * is the operation's sequence (message = announcements mod 2); in a flag it is the step of the
 * piece buffer (slot = step mod 4); in a swap place it is the piece (arena = rank xor piece mod 2).
 * Each piece takes the next number.
 *
 * Every peer maps the first LAYOUT_CONTROL_BYTES. The rest is data: only ranks whose links reach it
 * map it. Other ranks only reserve the addresses. Behind struct layout_arena lie the areas of
 * longer operations, whose sizes are fixed at creation: cpu/transport/areas.h.
 */
#ifndef TUTTI_LAYOUT_H
#define TUTTI_LAYOUT_H

#include "base/ranks.h"

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

enum {
    LAYOUT_VERSION = 12,
    LAYOUT_LINE = 64,
    LAYOUT_CONTROL_BYTES = 24 * 1024,
    LAYOUT_SMALL_MESSAGES = 2, /* see docs/ordering.md: M1 */
    LAYOUT_INLINE_BYTES = 48,
    LAYOUT_BODY_BYTES = 4096,
    LAYOUT_SMALL_MESSAGE_BYTES = LAYOUT_LINE + LAYOUT_BODY_BYTES,
    LAYOUT_SLOTS = 4,                    /* of flags; see docs/ordering.md: P1 */
    LAYOUT_PIECE_BUFFER_BYTES = 2 << 20, /* of areas: the most */
    LAYOUT_AREAS_OFFSET = 40 * 1024,
    LAYOUT_EXCHANGE_BYTES = 1 << 20,
    LAYOUT_SWAP_BYTES = 64 * 1024,
    LAYOUT_HALVES = 2,
    LAYOUT_PAIR_BYTES = 512 << 10, /* of messages to one rank, or to all: the most */
    LAYOUT_WINDOW = 4,             /* messages that may be unread: docs/ordering.md, X1 */
    LAYOUT_MESSAGE_BYTES = 32,
    LAYOUT_LOG = 8,
    LAYOUT_LEAST_ARENA = 64 * 1024,
    LAYOUT_RANK_BYTES = 512, /* added to the least arena for each rank beyond LAYOUT_LEAST_RANKS */
    LAYOUT_LEAST_RANKS = 16,
    LAYOUT_DIMS = 16,
    LAYOUT_POSTS = 32, /* announcements of one rank, and verdicts, that may be unread */
};

/* `order` of a process group's message is this bit and the kind of the message. */
#define LAYOUT_GROUP_ORDER (UINT64_C(1) << 63)
/* Added to `order` if the message is an offer. */
#define LAYOUT_OFFER_ORDER (UINT64_C(1) << 62)
/* `order` of a collective's message is this bit, 29 bits of the sender's history, and the lower 32
 * bits of the collective's number. */
#define LAYOUT_COLLECTIVE_ORDER (UINT64_C(1) << 61)

#define LAYOUT_MAGIC UINT64_C(0x74757474692d6331)

/* The description that travels with every operation (promise 4). */
struct layout_header {
    uint64_t signature; /* collective, dtype, op, algorithm, count: signature.h */
    uint32_t parameter; /* hash of the scalar; lane ALL: xor the owner's history (signature.h) */
    uint32_t number;    /* a count, written last: release M1, P1, P2, Q1, V1, X1 */
};

/* Where the operands lie, for peers that can reach them. Follows the header in the announcement of
 * an operation that is longer than a small message. */
struct layout_operands {
    uint64_t send_id; /* of the symmetric allocation, or one of the two below */
    uint64_t send;    /* offset in it */
    uint64_t recv_id;
    uint64_t recv;
};

/* ADDRESS: an address in the owner's process, which the kernel can read there. */
enum { LAYOUT_PRIVATE = 0, LAYOUT_THIS_PROCESS = 1, LAYOUT_ADDRESS = 2 };

/* A payload of up to 48 bytes travels in the header's cache line, a longer one in the body. Two
 * ranks use the bodies of their first messages only, and swap them from operation to operation. */
struct layout_small_message {
    struct layout_header header;
    union {
        unsigned char payload[LAYOUT_INLINE_BYTES];
        struct layout_operands operands;
    } u;
    unsigned char body[LAYOUT_BODY_BYTES];
};

/* A message of the lane PAIR, to one rank or to all. A piece of up to 32 bytes travels in the
 * header's line, a longer one lies in the owner's place for it: cpu/transport/pair.h. */
struct layout_message {
    struct layout_header header;
    uint64_t order; /* LAYOUT_COLLECTIVE_ORDER or LAYOUT_GROUP_ORDER and more bits; 0 in a send */
    uint64_t id;    /* of a process group's message: the group's own */
    union {
        unsigned char payload[LAYOUT_MESSAGE_BYTES];
        /* Of an offer: the block; recv_id: if the sender writes a share; recv: the address of the
         * block in the sender's process if the kernel may read it there, else 0. */
        struct layout_operands operands;
    } u;
};

/* What a rank has told one peer: as the reader of its messages, and as the sender of an offer. */
struct layout_read {
    uint32_t pair[LAYOUT_WINDOW]; /* the messages that it has read: release X2 */
    uint32_t all[LAYOUT_WINDOW];  /* release X2 */
    /* The answer to the peer's last offer: how many bytes from the block's end the peer writes, and
     * where to, in the allocation that the offer names, or, if by_address, at that address in this
     * rank's process. */
    uint64_t share_bytes; /* or LAYOUT_REFUSED */
    uint64_t share_at;
    uint32_t answered; /* the number of the offer: release X4 */
    uint32_t written;  /* the number of the offer to the peer whose share is written: release X5 */
    uint32_t by_address;
    unsigned char pad[LAYOUT_LINE - 8 * LAYOUT_WINDOW - 28];
};

#define LAYOUT_REFUSED UINT64_MAX

/* A collective of the lane PAIR, in the log of a rank that has called it. */
struct layout_logged {
    uint64_t sequence; /* its number, written last: release X3; 0: being written, or none */
    uint64_t signature;
    uint32_t parameter;
    uint32_t history; /* of the owner, this collective included */
    uint64_t unused;
};

/* Begins the area of the lane PAIR. Behind it lie the messages, LAYOUT_WINDOW lines for each rank;
 * the lines for the rank itself hold the messages to all. Behind these lie the places for longer
 * pieces. */
struct layout_pair {
    struct layout_logged log[LAYOUT_LOG]; /* [sequence mod LAYOUT_LOG]: release X3 */
    struct layout_read read[];            /* of each rank's messages */
};

/* A header alone in its cache line: "the piece of this step is in the piece buffer". */
struct layout_flag {
    struct layout_header header;
    unsigned char pad[LAYOUT_LINE - sizeof(struct layout_header)];
};

/* A piece of a one-shot between two ranks, in two halves: swap.c. */
struct layout_swap {
    struct layout_flag flags[LAYOUT_HALVES];
    unsigned char data[];
};

/* A rank's fault: written once, `set` last. */
struct layout_fault {
    uint32_t set; /* release F1 */
    int32_t status;
    int32_t rank;
    int32_t peer;
    uint64_t sequence;
    uint64_t expected;
    uint64_t seen;
    uint32_t expected_parameter;
    uint32_t seen_parameter;
    unsigned char pad[LAYOUT_LINE - 48];
};

/* One rank's part of the meetings with one peer in subset barriers. */
struct layout_meeting {
    uint32_t count;  /* release B1; how many meetings this rank has entered with that peer */
    uint32_t subset; /* hash of the subset's ranks */
};

/* The description of a process group's operation. It must be equal on all ranks. */
struct layout_operation {
    uint64_t signature; /* signature.h, without an algorithm */
    uint32_t parameter; /* hash of the scalar, or of a rooted one signature_root(); 0 if none */
    uint8_t device;     /* of its tensors: enum tutti_device */
    uint8_t format;     /* of its tensors: enum layout_format */
    uint16_t dims;      /* number of sizes */
    /* Of each dimension. Dense tensors: its position in memory, 0: contiguous. Sparse ones: 0:
     * sparse, 1: dense. */
    uint8_t order[LAYOUT_DIMS];
    uint32_t pairs;      /* pairs of tensors that move one after the other; 0: all-reduce */
    uint32_t more_pairs; /* hash of the pairs after the first; other fields describe the first */
    int64_t sizes[LAYOUT_DIMS];
};

/* LISTS: an all-to-all of lists, whose lengths the ranks exchange when they run it. */
enum layout_format { LAYOUT_DENSE, LAYOUT_SPARSE, LAYOUT_LISTS };

enum layout_announcement_kind {
    LAYOUT_ANNOUNCED,
    LAYOUT_WITHDRAWN,
    LAYOUT_LATE, /* announced and withdrawn: the input was not ready in time */
};

enum {
    LAYOUT_NO_POSITION = 255, /* order[] of a dimension of size 1, and behind the last dimension */
};

/* Facts about a rank's tensors, as bits. An operation goes by those that hold on all ranks. */
enum layout_facts {
    LAYOUT_WHOLE = 1,     /* they can be a communicator's operands as they are */
    LAYOUT_ON_DEVICE = 2, /* the group's device serves them */
    LAYOUT_FACTS = LAYOUT_WHOLE | LAYOUT_ON_DEVICE,
};

/* A rank to the leader, rank 0: "I have this operation", or "my time-out for it has passed", or
 * both. */
struct layout_announcement {
    uint32_t post_number; /* counts from 1; written last: release H1 */
    uint32_t kind;        /* enum layout_announcement_kind */
    uint32_t tag;
    uint16_t inputs;   /* this rank's dense tensors */
    uint16_t facts;    /* enum layout_facts */
    uint64_t sequence; /* of the tag */
    struct layout_operation operation;
};

/* The leader to all ranks: "all have this operation: run it now", or why it ends. */
struct layout_verdict {
    uint32_t post_number; /* counts from 1; written last: release H2 */
    int32_t status;
    int32_t rank;
    int32_t peer;
    uint32_t tag;
    uint16_t inputs; /* the largest of any rank */
    uint16_t facts;  /* those that hold on all ranks */
    uint64_t sequence;
    struct layout_operation expected; /* of a mismatch: what `rank` has, what `peer` has */
    struct layout_operation seen;
    unsigned char pad[16];
};

/* How the owner of a control ring sleeps. A nap ends within 1 ms, by itself. An owner without
 * operations naps as RESTING; only a thread that waits for it wakes it. */
enum layout_sleep { LAYOUT_AWAKE, LAYOUT_RESTING, LAYOUT_NAPPING, LAYOUT_SLEEPING };

/* A rank's messages in its process group: pg/control_ring.h. */
struct layout_control_ring {
    uint32_t bell;   /* futex: advanced by a thread with an event for the owner */
    uint32_t asleep; /* the owner may sleep on it: enum layout_sleep */
    unsigned char pad0[LAYOUT_LINE - 8];
    uint32_t left; /* release H4: the owner has destroyed its group; 1 + the rank that caused it */
    uint32_t verdicts_taken; /* release H3: verdicts that the owner has taken */
    uint32_t runs; /* counts where the owner begins and ends operations; relaxed: engine.c */
    unsigned char pad1[LAYOUT_LINE - 12];
    uint32_t announcements_taken[NODE_RANKS]; /* release H3: the leader's, announcements of each
                                                   rank */
    struct layout_announcement announcements[LAYOUT_POSTS];
    struct layout_verdict verdicts[LAYOUT_POSTS]; /* the leader's */
};

/* What a rank does in its peers' operands: nothing; it reads or writes them in its own address
 * space; WRITES + r: it lets the kernel write into the process of rank r. */
enum layout_touching { LAYOUT_APART, LAYOUT_INSIDE, LAYOUT_WRITES };

struct layout_arena {
    /* Written before the handshake, constant afterwards. */
    uint64_t magic;
    uint32_t version;
    int32_t rank;
    unsigned char pad0[LAYOUT_LINE - 16];

    struct layout_fault fault;

    /* The state of the owner. */
    uint32_t left;      /* release F2: the owner destroyed its communicator */
    uint32_t aborted;   /* the owner was aborted; relaxed: it carries nothing but itself */
    uint32_t touching;  /* release T1: the owner uses its peers' operands: enum layout_touching */
    uint32_t core;      /* 1 + the core that the owner last ran on; relaxed: same_core.c */
    uint32_t awaits;    /* 1 + the rank that the owner has long waited for; relaxed: survey.c */
    uint32_t awaits_ms; /* when the owner last wrote that, by the monotonic clock; relaxed */
    unsigned char pad1[LAYOUT_LINE - 24];

    /* Sleep. Peers write only `sleepers`. */
    uint32_t
        sleepers;  /* peers that sleep on `bell`: added to and subtracted from by each of them */
    uint32_t bell; /* futex: advanced by the owner, who wakes all sleepers */
    unsigned char pad2[LAYOUT_LINE - 8];

    /* Distance probe: the owner's count of ping-pongs with each peer. */
    uint32_t probes[NODE_RANKS]; /* release D1 */

    struct layout_meeting meetings[NODE_RANKS][2]; /* [peer][meeting mod 2] */
    struct layout_flag
        notices[LAYOUT_SMALL_MESSAGES]; /* used instead of messages if not all peers map those */
    struct layout_control_ring control_ring;
    unsigned char pad3[LAYOUT_CONTROL_BYTES - 8 * LAYOUT_LINE - NODE_RANKS * 16 -
                       LAYOUT_SMALL_MESSAGES * LAYOUT_LINE - sizeof(struct layout_control_ring)];

    /* Data from here on. */
    struct layout_flag in_flags[LAYOUT_SLOTS];
    struct layout_flag part_flags[LAYOUT_SLOTS];
    struct layout_flag out_flags[LAYOUT_SLOTS];
    struct layout_small_message small_messages[LAYOUT_SMALL_MESSAGES];
    unsigned char pad4[LAYOUT_AREAS_OFFSET - LAYOUT_CONTROL_BYTES - 3 * LAYOUT_SLOTS * LAYOUT_LINE -
                       LAYOUT_SMALL_MESSAGES * LAYOUT_SMALL_MESSAGE_BYTES];
    /* The areas from here on. */
};

enum {
    /* The most bytes that a rank can use. */
    LAYOUT_MOST_ARENA = LAYOUT_AREAS_OFFSET + LAYOUT_PIECE_BUFFER_BYTES + LAYOUT_EXCHANGE_BYTES +
                        LAYOUT_SWAP_BYTES + LAYOUT_HALVES * LAYOUT_LINE +
                        NODE_RANKS * (1 + LAYOUT_WINDOW) * LAYOUT_LINE + LAYOUT_LOG * 32 +
                        LAYOUT_PAIR_BYTES,
};

static_assert(sizeof(struct layout_header) == 16, "header");
static_assert(sizeof(struct layout_message) == LAYOUT_LINE, "message");
static_assert(sizeof(struct layout_read) == LAYOUT_LINE, "read");
static_assert(sizeof(struct layout_logged) == 32, "logged");
static_assert(sizeof(struct layout_small_message) == LAYOUT_SMALL_MESSAGE_BYTES, "small message");
static_assert(offsetof(struct layout_small_message, body) == LAYOUT_LINE, "body");
static_assert(sizeof(struct layout_flag) == LAYOUT_LINE, "flag");
static_assert(sizeof(struct layout_fault) == LAYOUT_LINE, "fault");
static_assert(offsetof(struct layout_arena, fault) == 64, "fault");
static_assert(offsetof(struct layout_arena, left) == 128, "life");
static_assert(offsetof(struct layout_arena, sleepers) == 192, "sleep");
static_assert(offsetof(struct layout_arena, meetings) == 512, "meetings");
static_assert(offsetof(struct layout_arena, notices) == 1536, "notices");
static_assert(offsetof(struct layout_arena, in_flags) == LAYOUT_CONTROL_BYTES, "in flags");
static_assert(offsetof(struct layout_arena, part_flags) == 24832, "part flags");
static_assert(offsetof(struct layout_arena, out_flags) == 25088, "out flags");
static_assert(offsetof(struct layout_arena, small_messages) == 25344, "small messages");
static_assert(sizeof(struct layout_announcement) == 3 * LAYOUT_LINE, "announcement");
static_assert(sizeof(struct layout_verdict) == 6 * LAYOUT_LINE, "verdict");
static_assert(offsetof(struct layout_control_ring, announcements_taken) == 2 * LAYOUT_LINE,
              "announcements taken");
static_assert(offsetof(struct layout_arena, control_ring) == 1664, "control ring");
static_assert(sizeof(struct layout_control_ring) == 18816, "control ring");
static_assert(sizeof(struct layout_arena) == LAYOUT_AREAS_OFFSET, "areas start on a page");
static_assert(sizeof(struct layout_swap) == LAYOUT_HALVES * LAYOUT_LINE, "swap");

#endif
