/* SPDX-License-Identifier: MIT */
/*
 * What the measurement of a collective needs to know: one row each.
 *
 * A call has `count` elements: a block. An operand is one block, or one block for each rank, in
 * rank order. The size of a measurement is that of the larger operand, as in nccl-tests. In place,
 * the smaller operand is the rank's own block in the larger one, as NCCL has it. Rivals' programs
 * use this header, so that it needs no function of the library.
 */
#ifndef TUTTI_TOOL_COLLECTIVE_H
#define TUTTI_TOOL_COLLECTIVE_H

#include "tutti/tutti.h"

struct collective {
    bool data;     /* it has operands */
    bool send_all; /* the operand has a block for each rank */
    bool recv_all;
    bool reduces;
    bool chosen;    /* it has more than one algorithm */
    int bus_factor; /* the bus bandwidth is the size over the time, times this, times (n - 1) / n */
};

static const struct collective collectives[] = {
    [TUTTI_COLLECTIVE_ALL_REDUCE] = {true, false, false, true, true, 2},
    [TUTTI_COLLECTIVE_BARRIER] = {false, false, false, false, false, 0},
    [TUTTI_COLLECTIVE_ALL_GATHER] = {true, false, true, false, false, 1},
    [TUTTI_COLLECTIVE_REDUCE_SCATTER] = {true, true, false, true, false, 1},
};

/* Blocks in the larger operand. */
static inline int collective_blocks(const struct collective *collective, int ranks)
{
    return collective->send_all || collective->recv_all ? ranks : 1;
}

#endif
