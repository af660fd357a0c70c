/* SPDX-License-Identifier: MIT */
/* Operations that differ between ranks, and how an operation of the lane ALL begins. */
#ifndef TUTTI_CPU_WAIT_H
#define TUTTI_CPU_WAIT_H

#include "cpu/transport/group.h"
#include "peers/wait.h"

/* Fails the group: the peer's operation has another signature or parameter than the request, or
 * the peer has another history. The fault is that of the first collective that is known to differ.
 * Returns MISMATCH. */
enum tutti_status wait_mismatch(struct cpu_group *group, int peer, uint64_t signature,
                                uint32_t parameter, const struct request *request);
/* The same for a message, where one with this signature is expected. */
enum tutti_status wait_message_mismatch(struct cpu_group *group, int peer,
                                        const struct layout_message *message, uint64_t signature,
                                        const struct request *request);

/* Begins an operation of the lane ALL: takes a number and the next place of an announcement. */
static inline enum tutti_status operation_begin(struct cpu_group *group)
{
    const enum tutti_status status = lane_begin(&group->peers, LANE_ALL);
    if (__builtin_expect(status != TUTTI_OK, 0))
        return status;
    number_take(&group->peers);
    /* Relaxed: an announcement_prefetch() of another thread may read it. */
    order_store_relaxed_u32(&group->counts.announcement, group->counts.announcement + 1);
    return TUTTI_OK;
}

/* Publishes a header, then rings the bell. */
static inline void wait_publish(struct cpu_group *group, struct layout_header *header,
                                uint32_t number, const struct request *request)
{
    header->signature = request->signature;
    header->parameter = request->parameter ^ group->counts.history;
    order_store_release_u32(&header->number, number); /* M1, P1, P2, Q1, V1 pair A1 */
    bell_ring_if_heard(&group->peers);
}

/*
 * Invalidates a flag that this step does not use. Writes the number of the previous step, for which
 * no rank waits in this slot. Otherwise the old number would be mistaken for a new one 2^32 steps
 * later. Relaxed: a peer reads this value or the old one, and waits for neither.
 */
static inline void invalidate_flag(struct layout_header *header, uint32_t step)
{
    order_store_relaxed_u32(&header->number, step - 1);
}

#endif
