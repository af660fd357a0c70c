/* SPDX-License-Identifier: MIT */
/* One pause of a thread that spins. */
#ifndef TUTTI_SPIN_H
#define TUTTI_SPIN_H

#include "base/order.h"

#include <sched.h>

enum { SPIN_YIELD_EVERY = 64 };

/* Called between two polls. `poll` counts the polls, from 0. Every SPIN_YIELD_EVERY polls it yields
 * the core, since the thread that it waits for may run on the same core. */
static inline void spin_rest(int poll)
{
    if (poll % SPIN_YIELD_EVERY == SPIN_YIELD_EVERY - 1)
        sched_yield();
    else
        order_pause();
}

#endif
