/* SPDX-License-Identifier: MIT */
/* The inside of a group, one nested struct for each task. Constant after cpu_group_open() except
 * for `op`, `distance`, `same_core` and `faults`. An operation of a small message reads the part up
 * to `arenas`, and two words of `faults`. */
#ifndef TUTTI_CPU_GROUP_INTERNAL_H
#define TUTTI_CPU_GROUP_INTERNAL_H

#include "cpu/choose.h"
#include "cpu/group.h"
#include "cpu/reduce/reduce.h"
#include "cpu/transport/areas.h"
#include "cpu/transport/distance.h"
#include "cpu/transport/faults.h"
#include "cpu/transport/same_core.h"
#include "cpu/transport/sequence.h"

struct cpu_group {
    struct cpu_faults faults;
    struct cpu_table table;
    struct cpu_sequence op;

    int rank;
    int size;
    struct cpu_ranks ranks;
    int yields;                     /* yields until it sleeps */
    int (*progress)(void *context); /* the application's: tutti.h; may be NULL */
    void *progress_context;
    bool (*take_message)(void *context, int from); /* a process group's: cpu/group.h; or NULL */
    void *take_message_context;
    bool oversubscribed;
    bool membarrier; /* see bell.c */
    const struct reduce_isa *isa;
    copy_fn *copy_long;
    size_t cache_bytes; /* of the last cache */
    struct layout_arena *own;
    struct layout_arena *arenas[TUTTI_MAX_RANKS]; /* the data of other ranks may not be mapped */
    struct areas areas;

    struct cpu_distance distance;
    struct cpu_same_core same_core;
    struct cpu_team *team; /* of zero-copy operations, the caller's; NULL: there is none */
};

/* Another rank, for `at` from 0 to size - 2. Every rank begins with another peer, so that not all
 * ask for the same cache line at the same time (16 ranks on Xeon, 8 B: 0.75 us in the order of the
 * ranks, 0.63 us so). */
static inline int peer_at(const struct cpu_group *group, int at)
{
    const int rank = group->rank + 1 + at;
    return rank < group->size ? rank : rank - group->size;
}

/* An area of a rank's arena. */
static inline unsigned char *area_of(const struct cpu_group *group, int rank, size_t area)
{
    return (unsigned char *)group->arenas[rank] + area;
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
    const uint64_t sequence = group->op.sequence;
    return sequence + (uint64_t)(int64_t)(int32_t)((uint32_t)order - (uint32_t)sequence);
}

/* A rank's small message of the operation that runs. */
static inline struct layout_small_message *small_message_of(const struct cpu_group *group, int rank)
{
    return &group->arenas[rank]->small_messages[group->op.announcement % LAYOUT_SMALL_MESSAGES];
}

/* Where a rank announces an operation: in its small message, or, if not all ranks map that, in its
 * notice. */
static inline struct layout_header *announcement_place(const struct cpu_group *group, int rank,
                                                       uint32_t announcement)
{
    struct layout_arena *arena = group->arenas[rank];
    const uint32_t place = announcement % LAYOUT_SMALL_MESSAGES;
    return group->ranks.sparse ? &arena->notices[place].header
                               : &arena->small_messages[place].header;
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
    const uint32_t next = order_load_relaxed_u32(&group->op.announcement) + 1;
    if (group->own && bytes <= (group->size == 2 ? (size_t)MOST_OF_TWO : LAYOUT_INLINE_BYTES))
        order_prefetch_for_writing(&group->own->small_messages[next % LAYOUT_SMALL_MESSAGES]);
}

#endif
