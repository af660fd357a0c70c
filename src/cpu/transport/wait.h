/* SPDX-License-Identifier: MIT */
/*
 * The one way to wait for a peer.
 *
 * 1. Poll 2000 times, about 30 us, the first 40 without a pause. Poll once if ranks outnumber
 *    cores, since the peer needs the core.
 * 2. Yield 2000 times (4000 if ranks outnumber cores).
 * 3. Sleep on the peer's bell, a futex in its arena, in slices of 50 ms.
 *
 * Every 64 yields or 20 ms, and before each slice, the waiter looks at its peers: a fault or an
 * abort of any rank, another operation of the peer, its exit, its process, the deadline. After it
 * has found trouble it reads its word once more, since a peer that did its part and then died is no
 * trouble. The deadline begins with the first wait that polling has not ended, so a quick operation
 * never reads the clock.
 *
 * A rank that releases a word rings its own bell if a rank sleeps on it: one load if none does. A
 * time-out names the rank that keeps all others waiting: each rank publishes for whom it has waited
 * for 20 ms, and a waiter follows these words.
 */
#ifndef TUTTI_CPU_WAIT_H
#define TUTTI_CPU_WAIT_H

#include "base/order.h"
#include "coll/request.h"
#include "cpu/transport/bell.h"
#include "cpu/transport/group.h"

/* The rest of wait_for(), out of line: yields, sleeps, looks for trouble, ends at the deadline. */
enum tutti_status wait_slowly(struct cpu_group *group, int peer, const uint32_t *word,
                              uint32_t value, const struct request *request);
/* Compares a peer's header with the request; MISMATCH, recorded, with both sides' values. */
enum tutti_status wait_mismatch(struct cpu_group *group, int peer,
                                const struct layout_header *header, const struct request *request);

/* The first ones follow each other at once: what comes soon is seen some 5 ns earlier, and nobody
 * misses what the core does meanwhile. */
enum { QUICK_POLLS = 40 };

/* Whether *word is value within so many polls. A1: pairs the release of that word. */
static inline bool wait_polls(const uint32_t *word, uint32_t value, int polls)
{
    for (int poll = 0; poll < polls; poll++) {
        if (order_load_acquire_u32(word) == value)
            return true;
        if (poll >= QUICK_POLLS)
            order_pause();
    }
    return false;
}

/* Waits until peer's *word is value. */
static inline enum tutti_status wait_for(struct cpu_group *group, int peer, const uint32_t *word,
                                         uint32_t value, const struct request *request)
{
    return wait_polls(word, value, group->spin) ? TUTTI_OK
                                                : wait_slowly(group, peer, word, value, request);
}

/* An operation of all ranks begins: it takes a number, unless the group has failed or was aborted.
 */
static inline enum tutti_status operation_begin(struct cpu_group *group)
{
    if (__builtin_expect(cpu_group_is_over(group), 0))
        return cpu_group_status(group, NULL);
    /* Relaxed: other threads read it for their reports. */
    order_store_relaxed_u64(&group->sequence, group->sequence + 1);
    group->mailed = true;
    group->deadline = 0;
    return TUTTI_OK;
}

/* Waits until the peer's header is of this turn, and checks that it means the same operation. */
static inline enum tutti_status wait_header(struct cpu_group *group, int peer,
                                            const struct layout_header *header, uint32_t turn,
                                            const struct request *request)
{
    enum tutti_status status = wait_for(group, peer, &header->turn, turn, request);
    if (status != TUTTI_OK)
        return status;
    if (__builtin_expect(
            header->signature != request->signature || header->parameter != request->parameter, 0))
        return wait_mismatch(group, peer, header, request);
    return TUTTI_OK;
}

/* Where a rank announces the operation of that sequence to all others: in its mail, or, where not
 * all of them map that, in its notice. */
static inline struct layout_header *wait_announcement(const struct cpu_group *group, int rank,
                                                      uint32_t sequence)
{
    struct layout_arena *arena = group->arenas[rank];
    return group->sparse ? &arena->notices[sequence % LAYOUT_MAILS].header
                         : &arena->mails[sequence % LAYOUT_MAILS].header;
}

/* Waits until every rank has announced the operation that runs, and means the same. */
enum tutti_status wait_all_enter(struct cpu_group *group, const struct request *request);

/* Publishes a header, then rings the bell. */
static inline void wait_publish(struct cpu_group *group, struct layout_header *header,
                                uint32_t turn, const struct request *request)
{
    header->signature = request->signature;
    header->parameter = request->parameter;
    order_store_release_u32(&header->turn, turn); /* M1, P1, P2, Q1, V1 pair A1 */
    bell_ring_if_heard(group);
}

/*
 * Empties the flag that this step's transport does not use, so that an old turn in it never comes
 * round again, 2^32 steps later: nobody awaits the step before in the same slot. Relaxed: peers
 * meet this value or the old one, and await neither.
 */
static inline void wait_void(struct layout_header *header, uint32_t step)
{
    order_store_relaxed_u32(&header->turn, step - 1);
}

#endif
