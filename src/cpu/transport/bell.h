/* SPDX-License-Identifier: MIT */
/* How a waiter sleeps until its peer has something for it. */
#ifndef TUTTI_CPU_BELL_H
#define TUTTI_CPU_BELL_H

#include "base/order.h"
#include "cpu/transport/group.h"

/* In each process, before anybody sleeps: whether sleepers can fence the wakers. */
bool bell_prepare(void);
/* Wakes whoever sleeps on our bell. */
void bell_ring(struct cpu_group *group);
/* Wakes the peers' sleepers too: there is a fault to be seen. */
void bell_ring_all(struct cpu_group *group);
/* Sleeps until the peer's bell rings, for 50 ms or left_ms at most (negative: no such limit); not
 * at all once *word is value. */
void bell_sleep(struct cpu_group *group, int peer, const uint32_t *word, uint32_t value,
                int64_t left_ms);
/* For a watcher that looks at everything in turn: sleeps until our own bell, which stood at `bell`
 * before the look, rings, or a peer rings all, or ms have passed. May miss a peer's. */
void bell_nap(struct cpu_group *group, uint32_t bell, int64_t ms);

/* After a release: our bell, for one relaxed load when nobody sleeps. bell_sleep()'s membarrier()
 * relies on the program order of the two. */
static inline void bell_ring_if_heard(struct cpu_group *group)
{
    order_compiler();
    if (__builtin_expect(order_load_relaxed_u32(&group->own->sleepers) != 0, 0))
        bell_ring(group);
}

#endif
