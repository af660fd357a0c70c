/* SPDX-License-Identifier: MIT */
#include "peers/same_core.h"

#include "base/order.h"
#include "peers/peers_internal.h"

#include <sched.h>

enum { LOOK_NS = 1000000 }; /* between two looks, of about 1 us each */

/* Relaxed: a core that is out of date costs some polls at worst. */
void same_core_update(struct peers *peers, int64_t now)
{
    if (!peers->oversubscribed || now < peers->same_core.look_at)
        return;
    const uint32_t core = (uint32_t)sched_getcpu() + 1;
    order_store_relaxed_u32(&peers->own->core, core);
    peers->same_core.ranks = rank_set_none;
    for (int r = 0; r < peers->size; r++) {
        if (r != peers->rank && order_load_relaxed_u32(&peers->arenas[r]->core) == core)
            rank_set_add(&peers->same_core.ranks, r);
    }
    peers->same_core.look_at = now + LOOK_NS;
}

bool same_core_wanted(const struct peers *peers, int peer, const uint32_t *word, uint32_t value)
{
    const ptrdiff_t at = (const char *)word - (const char *)peers->arenas[peer];
    if (!peers->oversubscribed || peers->ranks.sparse)
        return true;
    const struct rank_set ranks = peers->same_core.ranks;
    for (int r = rank_set_next(ranks, -1); r >= 0; r = rank_set_next(ranks, r)) {
        const char *arena = (const char *)peers->arenas[r];
        /* Relaxed: the word only says which rank should run. */
        if ((int32_t)(order_load_relaxed_u32((const uint32_t *)(arena + at)) - value) < 0)
            return true;
    }
    return false;
}
