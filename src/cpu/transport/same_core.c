/* SPDX-License-Identifier: MIT */
#include "cpu/transport/same_core.h"

#include "base/order.h"
#include "cpu/transport/group.h"

#include <sched.h>

enum { LOOK_NS = 1000000 }; /* between two looks, of about 1 us each */

/* Relaxed: a core that is out of date costs some polls at worst. */
void same_core_update(struct cpu_group *group, int64_t now)
{
    if (!group->oversubscribed || now < group->same_core.look_at)
        return;
    const uint32_t core = (uint32_t)sched_getcpu() + 1;
    order_store_relaxed_u32(&group->own->core, core);
    group->same_core.ranks = rank_set_none;
    for (int r = 0; r < group->size; r++) {
        if (r != group->rank && order_load_relaxed_u32(&group->arenas[r]->core) == core)
            rank_set_add(&group->same_core.ranks, r);
    }
    group->same_core.look_at = now + LOOK_NS;
}

bool same_core_wanted(const struct cpu_group *group, int peer, const uint32_t *word, uint32_t value)
{
    const ptrdiff_t at = (const char *)word - (const char *)group->arenas[peer];
    if (!group->oversubscribed || group->ranks.sparse)
        return true;
    const struct rank_set ranks = group->same_core.ranks;
    for (int r = rank_set_next(ranks, -1); r >= 0; r = rank_set_next(ranks, r)) {
        const char *arena = (const char *)group->arenas[r];
        /* Relaxed: the word only says which rank should run. */
        if ((int32_t)(order_load_relaxed_u32((const uint32_t *)(arena + at)) - value) < 0)
            return true;
    }
    return false;
}
