/* SPDX-License-Identifier: MIT */
/*
 * The one way to wait for a peer: base/wait.h. A waiter polls once, instead of 2000 times, if ranks
 * outnumber cores, since the peer needs the core; it yields 2000 times (4000 if ranks outnumber
 * cores), then sleeps on the peer's bell, a futex in its arena.
 *
 * A look is for a fault or an abort of any rank, another operation of the peer, its exit, its
 * process. A peer that did its part and then died is no trouble. The deadline begins with the first
 * wait that polling has not ended, so a quick operation never reads the clock.
 *
 * A rank that releases a word rings its own bell if a rank sleeps on it: one load if none does. A
 * time-out names the rank that keeps all others waiting: each rank publishes the rank that it has
 * waited for, after 20 ms, and a waiter follows these words.
 */
#ifndef TUTTI_CPU_WAIT_H
#define TUTTI_CPU_WAIT_H

#include "base/invariant.h"
#include "base/wait.h"
#include "coll/request.h"
#include "cpu/transport/bell.h"
#include "cpu/transport/group.h"

/* The slow part of wait_for(): yields, sleeps, checks the peers, ends at the deadline. */
enum tutti_status wait_slowly(struct cpu_group *group, int peer, const uint32_t *word,
                              uint32_t value, const struct request *request);
/* A wait for a peer's word, of a caller that has several. */
struct word_wait {
    struct cpu_group *group;
    int peer;
    uint32_t value;
    const uint32_t *word;
    const struct request *request;
    struct tutti_fault fault; /* the trouble that was found */
};
/* Whether the peer will never write the word, or is too late: wait->fault says how. Nothing has
 * failed yet. */
bool wait_look(struct word_wait *wait, enum wait_depth depth, bool late);
/* The struct waiter's remind(). `wait`: a struct word_wait. */
void wait_remind(void *wait, int waited_s);
/* Fails the group: the peer's header differs from the request. Returns MISMATCH. */
enum tutti_status wait_mismatch(struct cpu_group *group, int peer,
                                const struct layout_header *header, const struct request *request);
/* The same for a message where one with this signature is expected. If only its number of the order
 * differs, the fault is of that operation, as far as it is still known: two ranks have each taken
 * themselves for the root. */
enum tutti_status wait_message_mismatch(struct cpu_group *group, int peer,
                                        const struct layout_message *message, uint64_t signature,
                                        const struct request *request);

/* Returns true once *word is value, false after that many polls. A1: pairs the release of the word.
 */
static inline bool wait_polls(const uint32_t *word, uint32_t value, int polls)
{
    for (int poll = 0; poll < polls; poll++) {
        if (order_load_acquire_u32(word) == value)
            return true;
        if (poll >= WAIT_QUICK_POLLS)
            order_pause();
    }
    return false;
}

/* Waits until peer's *word is value. */
static inline enum tutti_status wait_for(struct cpu_group *group, int peer, const uint32_t *word,
                                         uint32_t value, const struct request *request)
{
    return wait_polls(word, value, group->ranks.polls)
               ? TUTTI_OK
               : wait_slowly(group, peer, word, value, request);
}

/* An operation begins, unless the group has failed or was aborted. */
static inline enum tutti_status lane_begin(struct cpu_group *group, enum cpu_lane lane)
{
    if (__builtin_expect(faults_stand(&group->faults), 0))
        return cpu_group_status(group, NULL);
    invariant(order_load_relaxed_u32(&group->faults.open));
    group->op.lane = lane;
    group->op.deadline = 0;
    return TUTTI_OK;
}

/* A collective takes its number. Relaxed: other threads read it only for reports. */
static inline void number_take(struct cpu_group *group)
{
    order_store_relaxed_u64(&group->op.sequence, group->op.sequence + 1);
}

/* An operation of the lane ALL begins: it takes a number and announces itself. */
static inline enum tutti_status operation_begin(struct cpu_group *group)
{
    const enum tutti_status status = lane_begin(group, LANE_ALL);
    if (__builtin_expect(status != TUTTI_OK, 0))
        return status;
    number_take(group);
    /* Relaxed: an announcement_prefetch() of another thread may read it. */
    order_store_relaxed_u32(&group->op.announcement, group->op.announcement + 1);
    return TUTTI_OK;
}

/* Publishes a header, then rings the bell. */
static inline void wait_publish(struct cpu_group *group, struct layout_header *header,
                                uint32_t number, const struct request *request)
{
    header->signature = request->signature;
    header->parameter = request->parameter;
    order_store_release_u32(&header->number, number); /* M1, P1, P2, Q1, V1 pair A1 */
    bell_ring_if_heard(group);
}

/*
 * For a flag that this step does not use: writes the number of the step before, for which no rank
 * waits in this slot. Otherwise the old number would be mistaken for a new one 2^32 steps later.
 * Relaxed: a peer finds this value or the old one, and waits for neither.
 */
static inline void invalidate_flag(struct layout_header *header, uint32_t step)
{
    order_store_relaxed_u32(&header->number, step - 1);
}

#endif
