/* SPDX-License-Identifier: MIT */
/* The inside of struct peers, for this room and for the CPU's operations. Constant after
 * peers_settle() except for the running operation, `same_core` and `faults`. An operation of a
 * small message reads the part up to `arenas`, and two words of `faults`. */
#ifndef TUTTI_PEERS_INTERNAL_H
#define TUTTI_PEERS_INTERNAL_H

#include "base/layout.h"
#include "base/order.h"
#include "peers/peers.h"
#include "peers/same_core.h"

struct peers_wait;

/* How a communicator ends: its fault, its aborts, and where to report them. */
struct peers_faults {
    uint32_t failed;  /* `fault` is written: release F4 pairs A4 */
    uint32_t aborted; /* by tutti_comm_abort() in this process */
    uint32_t claimed; /* the first thread that fails writes `fault` */
    uint32_t open;    /* the arenas are there: release G1 pairs A7 */
    uint32_t quit;    /* by peers_quit() */
    struct tutti_fault fault;
    struct record_page *record;        /* the communicator's recorder; NULL: it has none */
    void (*on_failure)(void *context); /* called once the fault stands; may be NULL */
    void *context;
    const struct interrupt *interrupt; /* during the opening; else NULL */
};

/* Whether no operation may begin any more: a fault stands, or this process has aborted. */
static inline bool faults_stand(const struct peers_faults *faults)
{
    return order_load_acquire_u32(&faults->failed) || /* A4 pairs F4 */
           order_load_relaxed_u32(&faults->aborted);
}

/* The rule by which the running operation may write a place again: docs/ordering.md. */
enum lane {
    LANE_NONE,   /* no operation has begun: the set-up */
    LANE_ALL,    /* every rank announces it and hears from every other */
    LANE_PAIR,   /* ranks acknowledge what they read: cpu/transport/pair.h */
    LANE_SUBSET, /* a barrier of some ranks */
};

/* Whether every rank can copy the memory of every rank of another process: copies.c. */
struct peers_copies {
    bool work;
    char why[320]; /* not, or that they were not tried */
};

/* What a wait asks of the operations that these ranks run on their hosts. */
struct peers_operations {
    /* Whether a rank has entered another operation, so that the peer never writes the word. Then
     * wait->fault says so. */
    bool (*differs)(struct peers_wait *wait);
    /* Whether a rank has entered the running operation of the lane ALL. */
    bool (*entered)(const struct peers *peers, int rank);
};

/* A gather is an operation with this number: all others have smaller ones, so that a fault of any
 * operation ends a gather. */
#define GATHER_SEQUENCE ((UINT64_C(1) << 62) + (UINT64_C(1) << 31))

struct peers {
    struct peers_faults faults;
    /* The running operation. One caller at a time writes it. */
    uint64_t sequence; /* number of the collective that runs, or of the last one, of any lane */
    uint64_t before;   /* the number before the last gather */
    int64_t deadline;  /* of the operation; 0 until it first has to wait slowly */
    int64_t later_ms;  /* how much later than its time-out that is; 0 but in a hierarchy's node */
    enum lane lane;

    int rank;
    int size;
    const struct peers_names *names; /* NULL: their own numbers */
    struct peers_ranks ranks;
    int yields;                     /* until a waiter sleeps */
    int (*progress)(void *context); /* the application's: tutti.h; may be NULL */
    void *progress_context;
    bool progress_often;       /* every millisecond, also while the rank sleeps */
    const bool *progress_soon; /* in each round of a wait while true: struct waiter; may be NULL */
    bool oversubscribed;
    bool membarrier; /* see bell.c */
    bool borrowed;   /* the channel is other peers' */
    struct layout_arena *own;
    struct layout_arena *arenas[NODE_RANKS]; /* the data of other ranks may not be mapped */

    size_t arena_bytes;
    const struct peers_operations *operations; /* NULL: the hosts run none */
    struct peers_same_core same_core;
    uint32_t meetings[NODE_RANKS]; /* of subset barriers, with each peer */
    struct peers *whole;           /* of a part: part.h; else NULL */
    struct peers *part;            /* the first part, of a part the next one; NULL: none */
    struct peers_copies copies;    /* equal on all ranks */
};

/* The peers that these are a part of, or themselves. */
static inline struct peers *peers_whole(const struct peers *peers)
{
    return peers->whole ? peers->whole : (struct peers *)(uintptr_t)peers;
}

/* Whether a rank of another process may still let the kernel write into this one: enum
 * layout_touching. False once it has died. */
bool peers_copies_into(const struct peers *peers, int rank);
/* Returns once no rank does, of peers that know that this rank has left. */
void peers_copies_close(const struct peers *peers);

/* What faults and messages call a rank, which may be on another host. */
static inline int name_of(const struct peers *peers, int rank)
{
    if (!peers->names)
        return rank;
    return rank >= PEERS_ELSEWHERE ? rank - PEERS_ELSEWHERE : peers->names->ranks[rank];
}

/* Where a rank announces an operation: in its small message, or, if not all ranks map that, in its
 * notice. */
static inline struct layout_header *announcement_place(const struct peers *peers, int rank,
                                                       uint32_t announcement)
{
    struct layout_arena *arena = peers->arenas[rank];
    const uint32_t place = announcement % LAYOUT_SMALL_MESSAGES;
    return peers->ranks.sparse ? &arena->notices[place].header
                               : &arena->small_messages[place].header;
}

/* Begins this rank's next meeting with a peer: a barrier of a subset, whose hash is `subset`. */
static inline void meeting_enter(struct peers *peers, int peer, uint32_t subset)
{
    const uint32_t count = ++peers->meetings[peer];
    struct layout_meeting *own = &peers->own->meetings[peer][count % 2];
    own->subset = subset;
    order_store_release_u32(&own->count, count); /* B1 pairs A1 */
}

/* A peer's part of the meeting: the peer has entered it once `count` is peers->meetings[peer]. */
static inline const struct layout_meeting *meeting_of(const struct peers *peers, int peer)
{
    return &peers->arenas[peer]->meetings[peers->rank][peers->meetings[peer] % 2];
}

#endif
