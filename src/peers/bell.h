/* SPDX-License-Identifier: MIT */
/* How a waiter sleeps until its peer releases a word. */
#ifndef TUTTI_PEERS_BELL_H
#define TUTTI_PEERS_BELL_H

#include "base/order.h"
#include "peers/peers_internal.h"

/* Called in each process before any rank sleeps. Returns whether the kernel has membarrier(). */
bool bell_prepare(void);
/* Wakes the ranks that sleep on this rank's bell. */
void bell_ring(struct peers *peers);
/* Wakes all sleepers of all ranks, for a fault. */
void bell_ring_all(struct peers *peers);
/* Sleeps until the peer's bell rings, for 50 ms or left_ms at most (negative: 50 ms). Returns at
 * once if *word is value. */
void bell_sleep(struct peers *peers, int peer, const uint32_t *word, uint32_t value,
                int64_t left_ms);

/* Called after a release. Costs one relaxed load if no rank sleeps. bell_sleep()'s membarrier()
 * relies on the program order of the release and that load. */
static inline void bell_ring_if_heard(struct peers *peers)
{
    order_compiler();
    if (__builtin_expect(order_load_relaxed_u32(&peers->own->sleepers) != 0, 0))
        bell_ring(peers);
}

#endif
