/* SPDX-License-Identifier: MIT */
/*
 * For ranks that outnumber the cores. A waiting rank polls, unless another rank of its core needs
 * the core to make progress; then it yields. Each rank writes into its arena which core it runs on,
 * at most once a millisecond.
 */
#ifndef TUTTI_PEERS_SAME_CORE_H
#define TUTTI_PEERS_SAME_CORE_H

#include "base/rank_set.h"

struct peers;

struct peers_same_core {
    struct rank_set ranks; /* on the same core; before the first look all other ranks */
    int64_t look_at;       /* time of the next look */
};

/* This rank waits until the peer's *word is `value`. Returns whether a rank on the same core still
 * has to reach `value`, so that this rank should yield. All ranks have *word at the same offset in
 * their arenas. Returns true if nothing is known. If false, all ranks of this core wait for another
 * core, and a yield would take longer than the wait. */
bool same_core_wanted(const struct peers *peers, int peer, const uint32_t *word, uint32_t value);

/* Called at each yield. If ranks outnumber the cores, writes once a millisecond on which core this
 * rank runs, and reads which ranks run on the same core. */
void same_core_update(struct peers *peers, int64_t now);

#endif
