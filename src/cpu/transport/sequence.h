/* SPDX-License-Identifier: MIT */
/* Counts of operations, equal on all ranks except for the deadline. One caller at a time writes
 * them. */
#ifndef TUTTI_CPU_SEQUENCE_H
#define TUTTI_CPU_SEQUENCE_H

#include "base/layout.h"
#include "tutti/tutti.h"

/* The rule by which the running operation may write a place again: docs/ordering.md. */
enum cpu_lane {
    LANE_NONE,   /* no operation has begun: the set-up */
    LANE_ALL,    /* every rank announces it and hears from every other */
    LANE_PAIR,   /* ranks acknowledge what they read: pair.h */
    LANE_SUBSET, /* a barrier of some ranks */
};

/* The numbers of cpu_group_gather() begin here. All operations have smaller numbers, so that a
 * fault of any operation ends a gather. */
#define GATHERS_FROM ((UINT64_C(1) << 62) + (UINT64_C(1) << 31))

struct cpu_sequence {
    uint64_t sequence;     /* number of the collective that runs, or of the last one, of any lane */
    uint64_t gathers;      /* count of cpu_group_gather()'s */
    uint64_t before;       /* the sequence before the last of them */
    uint32_t announcement; /* count of the lane ALL's: the place of the small message */
    uint32_t history;      /* signature.h */
    uint32_t history_before; /* the last collective of the lane PAIR */
    uint64_t order;          /* of the messages of that collective: layout_message */
    int64_t deadline;        /* of the operation; 0 until it first has to wait slowly */
    enum cpu_lane lane;
    int calls;                       /* calls of a group of calls that have not ended: calls.h */
    uint32_t step;                   /* the last one taken: layout.h */
    uint32_t swaps;                  /* pieces that two ranks have swapped: swap.c */
    size_t cursor;                   /* piece_buffer.h */
    uint32_t meetings[LAYOUT_RANKS]; /* of subset barriers, with each peer */
    uint64_t sent[LAYOUT_RANKS];     /* messages to each peer; [the own rank]: to all */
    uint64_t received[LAYOUT_RANKS]; /* messages from each peer */
    uint64_t heard[LAYOUT_RANKS];    /* messages to all, from each peer */
    uint32_t offers[LAYOUT_RANKS];   /* to each peer, those to all among them: pair.c */
    uint32_t answers[LAYOUT_RANKS];  /* to offers of each peer */
};

#endif
