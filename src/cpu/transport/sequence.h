/* SPDX-License-Identifier: MIT */
/* Counts of operations, equal on all ranks except for the deadline. One caller at a time writes
 * them. */
#ifndef TUTTI_CPU_SEQUENCE_H
#define TUTTI_CPU_SEQUENCE_H

#include "base/layout.h"
#include "tutti/tutti.h"

struct cpu_sequence {
    uint64_t sequence; /* of the operation that runs, or of the last one */
    int64_t deadline;  /* of the operation; 0 until it first has to wait slowly */
    bool announced;    /* the operation that runs is of all ranks, so each announces it */
    uint32_t step;     /* the last one taken: layout.h */
    uint32_t swaps;    /* pieces that two ranks have swapped: swap.c */
    size_t cursor;     /* piece_buffer.h */
    uint32_t meetings[LAYOUT_RANKS]; /* of subset barriers, with each peer */
};

#endif
