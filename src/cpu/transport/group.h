/* SPDX-License-Identifier: MIT */
/* The inside of a group, one nested struct for each task. Constant after cpu_group_open() except
 * for `counts`, `distance` and what changes in `peers`. An operation of a small message reads the
 * part up to `isa`. */
#ifndef TUTTI_CPU_GROUP_INTERNAL_H
#define TUTTI_CPU_GROUP_INTERNAL_H

#include "cpu/choose.h"
#include "cpu/group.h"
#include "cpu/reduce/reduce.h"
#include "cpu/transport/areas.h"
#include "cpu/transport/distance.h"
#include "peers/peers_internal.h"

struct cpu_call;
struct cpu_parts;

/* Counts of operations, equal on all ranks. One caller at a time writes them. */
struct cpu_counts {
    uint32_t announcement;         /* operations of the lane ALL; modulo LAYOUT_SMALL_MESSAGES it is
                                    * the index of the last one's small message */
    uint32_t history;              /* signature.h */
    uint32_t history_before;       /* the last collective of the lane PAIR */
    uint64_t order;                /* of the messages of that collective: layout_message */
    int calls;                     /* calls of a call list that have not ended */
    uint32_t step;                 /* the last one taken: layout.h */
    uint32_t swaps;                /* pieces that two ranks have swapped: swap.c */
    size_t cursor;                 /* piece_buffer.h */
    uint64_t sent[NODE_RANKS];     /* messages to each peer; [the own rank]: to all */
    uint64_t received[NODE_RANKS]; /* messages from each peer */
    uint64_t heard[NODE_RANKS];    /* messages to all, from each peer */
    uint32_t offers[NODE_RANKS];   /* to each peer, those to all among them: pair.c */
    uint32_t answers[NODE_RANKS];  /* to offers of each peer */
};

/* The chains of a call list: call_list.c. All fields are zero outside of cpu_call_list_run(). */
struct cpu_chains {
    /* The last call of each chain; NULL: the chain has none. [peer]: as the call names it, which
     * may be a rank of another host. */
    struct cpu_call *collectives, *sends[WORLD_RANKS], *receives[WORLD_RANKS];
    /* Calls that send messages of the lane PAIR: [0] collectives, [1] sends. */
    int sending[2], sent[2]; /* in all, and those that have ended */
    uint64_t looked;         /* the last look that has asked the application */
};

struct cpu_group {
    struct peers peers; /* the first member: cpu_group_of() */
    struct cpu_limits limits;
    struct cpu_counts counts;
    int order[NODE_RANKS];                         /* [leaf] is a rank */
    bool (*take_message)(void *context, int from); /* a process group's: cpu/group.h; or NULL */
    void *take_message_context;
    const struct reduce_isa *isa;
    copy_fn *copy_long;
    size_t cache_bytes; /* of the last cache */
    struct areas areas;
    struct topology_mesh mesh;
    struct cpu_distance distance;
    struct cpu_parts *parts; /* algo/parts.h; NULL: operations are not cut */
    struct cpu_team *team;   /* of zero-copy operations, the caller's; NULL: there is none */
    struct cpu_chains chains;
};

static_assert(offsetof(struct cpu_group, peers) == 0, "a group begins with its peers");

/* The group that begins with these peers. */
static inline struct cpu_group *cpu_group_of(struct peers *peers)
{
    return (struct cpu_group *)peers;
}

/* What waits for peers ask of the operations: wait.c. */
extern const struct peers_operations cpu_operations;

/* Another rank, for `at` from 0 to size - 2. Every rank begins with another peer, so that not all
 * ask for the same cache line at the same time (16 ranks on Xeon, 8 B: 0.75 us in the order of the
 * ranks, 0.63 us so). */
static inline int peer_at(const struct cpu_group *group, int at)
{
    const int rank = group->peers.rank + 1 + at;
    return rank < group->peers.size ? rank : rank - group->peers.size;
}

/* An area of a rank's arena. */
static inline unsigned char *area_of(const struct cpu_group *group, int rank, size_t area)
{
    return (unsigned char *)group->peers.arenas[rank] + area;
}

static inline unsigned char *piece_buffer_of(const struct cpu_group *group, int rank)
{
    return area_of(group, rank, group->areas.piece_buffer);
}

/* Where a rank logs the collective of that number, if it is one of the lane PAIR. */
static inline struct layout_logged *log_entry(const struct cpu_group *group, int rank,
                                              uint64_t sequence)
{
    struct layout_pair *pair =
        (struct layout_pair *)(void *)area_of(group, rank, group->areas.pair);
    return &pair->log[sequence % LAYOUT_LOG];
}

/* The number of the collective whose message has this order. */
static inline uint64_t sequence_of_order(const struct cpu_group *group, uint64_t order)
{
    const uint64_t sequence = group->peers.sequence;
    return sequence + (uint64_t)(int64_t)(int32_t)((uint32_t)order - (uint32_t)sequence);
}

/* A rank's small message of the operation that runs. */
static inline struct layout_small_message *small_message_of(const struct cpu_group *group, int rank)
{
    return &group->peers.arenas[rank]
                ->small_messages[group->counts.announcement % LAYOUT_SMALL_MESSAGES];
}

/* Call it while the next operation, of that many bytes, is still being checked. Meanwhile the line
 * leaves the peers' caches (8 B, 2 cores without a common cache: saves 4 % of the time on Zen 4, 7
 * % on Xeon). With a body, which is written first, ranks that are ahead would read the line in
 * between, and it would have to leave again. So this does nothing for a body of more than two ranks
 * (64 B, 4 ranks on Xeon: 17 % slower), nor for a long body of two (4 KiB on Zen 4: 20 % slower
 * far, 6 % near). Thread-safe. */
static inline void announcement_prefetch(const struct cpu_group *group, size_t bytes)
{
    enum { MOST_OF_TWO = 1024 };
    const uint32_t next = order_load_relaxed_u32(&group->counts.announcement) + 1;
    if (group->peers.own &&
        bytes <= (group->peers.size == 2 ? (size_t)MOST_OF_TWO : LAYOUT_INLINE_BYTES))
        order_prefetch_for_writing(&group->peers.own->small_messages[next % LAYOUT_SMALL_MESSAGES]);
}

#endif
