/* SPDX-License-Identifier: MIT */
/* Spinning where there are cores to spare. */
#ifndef TUTTI_SPIN_H
#define TUTTI_SPIN_H

#include "order.h"

#include <sched.h>

enum { SPIN_YIELD_EVERY = 64 };

/* Between two looks, which are counted from 0. Others are let run now and then: a thread that works
 * may be on the same core all the same. */
static inline void spin_rest(int look)
{
    if (look % SPIN_YIELD_EVERY == SPIN_YIELD_EVERY - 1)
        sched_yield();
    else
        order_pause();
}

#endif
