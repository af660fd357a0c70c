/* SPDX-License-Identifier: MIT */
/*
 * Writes into the recorder what this rank knows of each other rank, its last operation and whether
 * it lives, and for which rank this rank waits. The awaited rank is also written into the arena.
 * All this is written only during a wait, or for a dump. All accesses are relaxed: the words are
 * for reports.
 */
#include "base/deadline.h"
#include "base/record.h"
#include "base/ticks.h"
#include "peers/peers_internal.h"

/* A rank that waits writes so every 20 ms or so, or its watcher does. After this time without it
 * the rank stands still itself, and the word is of a wait that may be over. */
enum { AWAITS_MS = 1000 };

static uint32_t now_ms(void)
{
    return (uint32_t)(deadline_now() / 1000000);
}

/* The 64-bit number of the last operation that a peer has announced; 0: none. */
static uint64_t entered_by(const struct peers *peers, int peer)
{
    uint64_t sequence = order_load_relaxed_u64(&peers->sequence), last = 0;
    for (uint32_t slot = 0; slot < LAYOUT_SMALL_MESSAGES; slot++) {
        const struct layout_header *header = announcement_place(peers, peer, slot);
        uint32_t number = order_load_relaxed_u32(&header->number);
        uint64_t entered = sequence + (uint64_t)(int64_t)(int32_t)(number - (uint32_t)sequence);
        if (number && entered > last)
            last = entered;
    }
    return last;
}

void peers_survey(struct peers *peers)
{
    struct record_page *record = peers->faults.record;
    struct rank_set left, dead;
    if (!order_load_acquire_u32(&peers->faults.open) || !record) /* A7 pairs G1 */
        return;
    peers_exited(peers, &left, &dead);
    /* The ranks of a host have operations of their own, and do not know which one the whole has
     * announced. */
    for (int r = 0; r < record->world_size && peers->names; r++)
        order_store_relaxed_u64(&record->peers[r].entered, RECORD_UNKNOWN);
    for (int r = 0; r < peers->size; r++) {
        enum record_life life = rank_set_has(left, r)   ? RECORD_LEFT
                                : rank_set_has(dead, r) ? RECORD_DEAD
                                                        : RECORD_ALIVE;
        struct record_peer *const of = &record->peers[name_of(peers, r)];
        order_store_relaxed_u32(&of->life, (uint32_t)life);
        if (!peers->names)
            order_store_relaxed_u64(&of->entered, entered_by(peers, r));
    }
    order_store_relaxed_u64(&record->looked, ticks_now());
}

void peers_awaits(struct peers *peers, int peer)
{
    peers = peers_whole(peers);
    struct record_page *record = peers->faults.record;
    const bool any = peer != peers->rank;
    order_store_relaxed_u32(&peers->own->awaits_ms, now_ms());
    order_store_relaxed_u32(&peers->own->awaits, any ? (uint32_t)peer + 1 : 0);
    if (!record)
        return;
    const uint32_t awaits = any ? (uint32_t)name_of(peers, peer) + 1 : 0;
    if (order_load_relaxed_u32(&record->awaits) != awaits) {
        order_store_relaxed_u64(&record->awaited_since, ticks_now());
        order_store_relaxed_u32(&record->awaits, awaits);
    }
    peers_survey(peers);
}

void peers_awaits_none(struct peers *peers)
{
    peers = peers_whole(peers);
    /* A rank that has failed keeps the word for ranks whose deadline comes a moment later. */
    if (!order_load_relaxed_u32(&peers->faults.failed))
        order_store_relaxed_u32(&peers->own->awaits, 0);
    if (peers->faults.record)
        order_store_relaxed_u32(&peers->faults.record->awaits, 0);
}

/* The rank for which another one, or this one, waits, as awaits has it; 0: none is known. */
static uint32_t awaited_by(const struct peers *peers, int rank, uint32_t now)
{
    const struct layout_arena *arena = peers->arenas[rank];
    const uint32_t next = order_load_relaxed_u32(&arena->awaits);
    const int32_t age_ms = (int32_t)(now - order_load_relaxed_u32(&arena->awaits_ms));
    return age_ms > AWAITS_MS ? 0 : next;
}

int peers_late_rank(const struct peers *peers, int peer)
{
    const uint32_t now = now_ms();
    int rank = peer;
    peers = peers_whole(peers);
    for (int i = 0; i < peers->size; i++) {
        const uint32_t next = awaited_by(peers, rank, now);
        if (peers->names && next > PEERS_ELSEWHERE)
            return (int)next - 1;
        if (rank == peers->rank)
            break;
        if (next == 0 || next > (uint32_t)peers->size)
            return rank;
        rank = (int)next - 1;
    }
    return peer;
}
