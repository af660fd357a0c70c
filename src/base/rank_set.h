/* SPDX-License-Identifier: MIT */
/* A set of a communicator's ranks: 0 to WORLD_RANKS - 1. Passed by value, also between
 * processes. To visit the members in order:
 *     for (int r = rank_set_next(set, -1); r >= 0; r = rank_set_next(set, r)) */
#ifndef TUTTI_RANK_SET_H
#define TUTTI_RANK_SET_H

#include "base/ranks.h"
#include "tutti/tutti.h"

#include <assert.h>

/* A communicator has up to WORLD_RANKS ranks in all, and up to NODE_RANKS of them on one host. */
enum { WORLD_RANKS = 256 };
static_assert((int)NODE_RANKS == TUTTI_MAX_RANKS, "the public header says how many a host has");

enum { RANK_SET_BITS = 64, RANK_SET_WORDS = (WORLD_RANKS + RANK_SET_BITS - 1) / RANK_SET_BITS };

struct rank_set {
    uint64_t words[RANK_SET_WORDS];
};

static const struct rank_set rank_set_none;

static inline uint64_t rank_set_bit(int rank)
{
    return UINT64_C(1) << rank % RANK_SET_BITS;
}

static inline void rank_set_add(struct rank_set *set, int rank)
{
    set->words[rank / RANK_SET_BITS] |= rank_set_bit(rank);
}

static inline void rank_set_remove(struct rank_set *set, int rank)
{
    set->words[rank / RANK_SET_BITS] &= ~rank_set_bit(rank);
}

static inline bool rank_set_has(struct rank_set set, int rank)
{
    return set.words[rank / RANK_SET_BITS] & rank_set_bit(rank);
}

static inline struct rank_set rank_set_of(int rank)
{
    struct rank_set set = rank_set_none;
    rank_set_add(&set, rank);
    return set;
}

/* The ranks 0 to size - 1. */
static inline struct rank_set rank_set_all(int size)
{
    struct rank_set set;
    for (int i = 0; i < RANK_SET_WORDS; i++) {
        const int rest = size - i * RANK_SET_BITS;
        set.words[i] = rest >= RANK_SET_BITS ? UINT64_MAX : rest > 0 ? rank_set_bit(rest) - 1 : 0;
    }
    return set;
}

static inline struct rank_set rank_set_union(struct rank_set a, struct rank_set b)
{
    for (int i = 0; i < RANK_SET_WORDS; i++)
        a.words[i] |= b.words[i];
    return a;
}

/* The ranks of `a` that are not in `b`. */
static inline struct rank_set rank_set_minus(struct rank_set a, struct rank_set b)
{
    for (int i = 0; i < RANK_SET_WORDS; i++)
        a.words[i] &= ~b.words[i];
    return a;
}

/* The ranks of both. */
static inline struct rank_set rank_set_common(struct rank_set a, struct rank_set b)
{
    return rank_set_minus(a, rank_set_minus(a, b));
}

static inline int rank_set_count(struct rank_set set)
{
    int count = 0;
    for (int i = 0; i < RANK_SET_WORDS; i++)
        count += __builtin_popcountll(set.words[i]);
    return count;
}

static inline bool rank_set_empty(struct rank_set set)
{
    uint64_t any = 0; /* a call asks this several times, and a count takes longer */
    for (int i = 0; i < RANK_SET_WORDS; i++)
        any |= set.words[i];
    return any == 0;
}

static inline bool rank_set_equal(struct rank_set a, struct rank_set b)
{
    return rank_set_empty(rank_set_minus(a, b)) && rank_set_empty(rank_set_minus(b, a));
}

/* The least rank of the set that is greater than `rank`, which may be -1; -1 if there is none. */
static inline int rank_set_next(struct rank_set set, int rank)
{
    for (int i = ++rank / RANK_SET_BITS; i < RANK_SET_WORDS; i++, rank = i * RANK_SET_BITS) {
        const uint64_t rest = set.words[i] >> rank % RANK_SET_BITS;
        if (rest)
            return rank + __builtin_ctzll(rest);
    }
    return -1;
}

#endif
