/* SPDX-License-Identifier: MIT */
/*
 * Ranks that outnumber the cores wait for each other in turns, so an operation is as slow as the
 * fullest core. The kernel may leave three of four ranks on one of two cores for as long as they
 * run (8 bytes: 4.2 us, 2.3 us with two on each). So a rank that waits looks now and then where all
 * of them are, and leaves a core that has two ranks more than another one. Where other programs
 * want that core too it goes back: they would keep it for milliseconds at each turn.
 */
#ifndef TUTTI_CPU_BALANCE_H
#define TUTTI_CPU_BALANCE_H

#include "cpu/group.h"

#include <sched.h>

/* Where a rank should go, or -1: to the core of `allowed` with the fewest ranks, if its own has at
 * least two more and no higher rank, lest two go at once. cores[r] is rank r's, negative if not
 * known. */
int balance_target(const int *cores, int size, int rank, const cpu_set_t *allowed);

/* Puts the calling thread on a core; its mask is afterwards what it was. False if it may not. */
bool balance_move(int core);

/* For threads of the library's own, one a rank, of which there are `size`: which of the cores
 * `allowed`, `cores` of all ranks together, that of `rank` should keep to, lest two of them share
 * one while another is idle: a part for each, of neighbours. False, and *part is not set, where
 * the thread may not run wherever others may, there are fewer cores than ranks, or so many that the
 * kernel finds an idle one. */
bool balance_part(const cpu_set_t *allowed, int cores, int rank, int size, cpu_set_t *part);

/* Has the calling thread, and those that it starts, keep to its part, if there is one. */
void balance_keep_to_part(int cores, int rank, int size);

/* Whether somebody else should have our core while we wait for the peer's word to be `value`: yes
 * if a rank that was there at the last look has not come as far itself (all ranks have that word at
 * the same place in their arenas), or if nothing is known. If all have, they wait for the same peer
 * and cannot go on: switching to them and back takes longer than the peer will, on its own core. */
bool balance_core_is_wanted(const struct cpu_group *group, int peer, const uint32_t *word,
                            uint32_t value);

/* Says where this rank is, and moves it if it should, or back if it should not have. */
void balance_look(struct cpu_group *group, int64_t now, int64_t yielded_ns);

/* For whoever yields while he waits, as often as he likes: the time, and what the last yield took.
 */
static inline void balance(struct cpu_group *group, int64_t now, int64_t yielded_ns)
{
    if (group->oversubscribed && now >= group->look_at)
        balance_look(group, now, yielded_ns);
}

#endif
