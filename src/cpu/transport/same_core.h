/* SPDX-License-Identifier: MIT */
/*
 * Ranks that outnumber the cores wait for each other in turns. A rank that waits polls, unless
 * another rank of its core needs the core to make progress; then it yields. For this each rank
 * writes into its arena which core it runs on, once a millisecond at most.
 */
#ifndef TUTTI_CPU_SAME_CORE_H
#define TUTTI_CPU_SAME_CORE_H

#include "cpu/transport/group.h"

/* Whether a rank on the core of this one still has to reach `value` before this rank, which waits
 * until the peer's *word has that value, can go on. All ranks have *word at the same offset in
 * their arenas. True if nothing is known. If false, the ranks of this core all wait for another
 * core: to yield to them and back would take longer than the peer. */
bool same_core_wanted(const struct cpu_group *group, int peer, const uint32_t *word,
                      uint32_t value);

/* Writes where this rank runs, and reads which ranks run on the same core. */
void same_core_look(struct cpu_group *group, int64_t now);

/* Called at each yield; looks only where ranks outnumber cores, and once a millisecond. */
static inline void same_core_update(struct cpu_group *group, int64_t now)
{
    if (group->oversubscribed && now >= group->look_at)
        same_core_look(group, now);
}

#endif
