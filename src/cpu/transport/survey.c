/* SPDX-License-Identifier: MIT */
/*
 * What a rank sees of the others, written into its recorder: who has come to which operation, who
 * lives, whom it waits for; the last in its arena, too. Only while a wait lasts, or for a dump. All
 * of it is relaxed: each word is for reports, and carries nothing but itself.
 */
#include "base/record.h"
#include "base/ticks.h"
#include "cpu/transport/group.h"
#include "cpu/transport/wait.h"

/* The last operation that a peer has announced, of 64 bits again; 0 if there was none. */
static uint64_t entered_by(const struct cpu_group *group, int peer)
{
    uint64_t sequence = order_load_relaxed_u64(&group->sequence), last = 0;
    for (uint32_t slot = 0; slot < LAYOUT_MAILS; slot++) {
        const struct layout_header *header = wait_announcement(group, peer, slot);
        uint32_t turn = order_load_relaxed_u32(&header->turn);
        uint64_t entered = sequence + (uint64_t)(int64_t)(int32_t)(turn - (uint32_t)sequence);
        if (turn && entered > last)
            last = entered;
    }
    return last;
}

void cpu_group_survey(struct cpu_group *group)
{
    struct record_page *record = group->record;
    uint64_t left, dead;
    if (!order_load_acquire_u32(&group->open) || !record) /* A7 pairs G1 */
        return;
    cpu_group_gone(group, &left, &dead);
    for (int r = 0; r < group->size; r++) {
        enum record_life life = left >> r & 1   ? RECORD_LEFT
                                : dead >> r & 1 ? RECORD_DEAD
                                                : RECORD_ALIVE;
        order_store_relaxed_u32(&record->peers[r].life, (uint32_t)life);
        order_store_relaxed_u64(&record->peers[r].entered, entered_by(group, r));
    }
    order_store_relaxed_u64(&record->looked, ticks_now());
}

void cpu_group_awaits(struct cpu_group *group, int peer)
{
    struct record_page *record = group->record;
    uint32_t awaits = (uint32_t)peer + 1;
    order_store_relaxed_u32(&group->own->awaits, awaits);
    if (!record)
        return;
    if (order_load_relaxed_u32(&record->awaits) != awaits) {
        order_store_relaxed_u64(&record->awaited_since, ticks_now());
        order_store_relaxed_u32(&record->awaits, awaits);
    }
    cpu_group_survey(group);
}

void cpu_group_awaits_none(struct cpu_group *group)
{
    /* Who has failed goes on telling, for those whose time ends a moment later. */
    if (!order_load_relaxed_u32(&group->failed))
        order_store_relaxed_u32(&group->own->awaits, 0);
    if (group->record)
        order_store_relaxed_u32(&group->record->awaits, 0);
}

int cpu_group_culprit(const struct cpu_group *group, int peer)
{
    int rank = peer;
    for (int i = 0; i < group->size && rank != group->rank; i++) {
        uint32_t next = order_load_relaxed_u32(&group->arenas[rank]->awaits);
        if (next == 0 || next > (uint32_t)group->size)
            return rank;
        rank = (int)next - 1;
    }
    return peer;
}
