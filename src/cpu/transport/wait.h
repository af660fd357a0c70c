/* SPDX-License-Identifier: MIT */
/*
 * All waits for a peer use base/wait.h. A waiter polls 2000 times, yields 2000 times, then sleeps
 * on the peer's bell, a futex in the peer's arena. If ranks outnumber cores, it polls once, because
 * the peer may need the core, and yields 4000 times.
 *
 * A look checks for a fault or an abort of any rank, another operation of the peer, and the exit or
 * death of the peer. A peer that died after its part does not end the wait. The deadline begins
 * with the first wait that polling has not ended, so a quick operation never reads the clock.
 *
 * A rank that releases a word rings its own bell if a rank sleeps on it; if none does, this costs
 * one load. A time-out names the rank for which all others wait: a rank that has waited for 20 ms
 * publishes the awaited rank, and a waiter follows these words.
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
/* A wait for a peer's word, for a caller that has several waits. */
struct word_wait {
    struct cpu_group *group;
    int peer;
    uint32_t value;
    const uint32_t *word;
    const struct request *request;
    struct tutti_fault fault; /* the trouble that was found */
};
/* Returns true if the peer will never write the word, or is too late. Then wait->fault says why;
 * the group has not failed yet. */
bool wait_look(struct word_wait *wait, enum wait_depth depth, bool late);
/* The struct waiter's remind(). `wait`: a struct word_wait. */
void wait_remind(void *wait, int waited_s);
/* Fails the group: the peer's operation has another signature or parameter than the request, or
 * the peer has another history. The fault is that of the first collective that is known to differ.
 * Returns MISMATCH. */
enum tutti_status wait_mismatch(struct cpu_group *group, int peer, uint64_t signature,
                                uint32_t parameter, const struct request *request);
/* The same for a message, where one with this signature is expected. */
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

/* Begins an operation, unless the group has failed or was aborted. */
static inline enum tutti_status lane_begin(struct cpu_group *group, enum cpu_lane lane)
{
    if (__builtin_expect(faults_stand(&group->faults), 0))
        return cpu_group_status(group, NULL);
    invariant(order_load_relaxed_u32(&group->faults.open));
    group->op.lane = lane;
    group->op.deadline = 0;
    return TUTTI_OK;
}

/* Takes the number of a collective. Relaxed: other threads read it only for reports. */
static inline void number_take(struct cpu_group *group)
{
    order_store_relaxed_u64(&group->op.sequence, group->op.sequence + 1);
}

/* Begins an operation of the lane ALL: takes a number and the next place of an announcement. */
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
    header->parameter = request->parameter ^ group->op.history;
    order_store_release_u32(&header->number, number); /* M1, P1, P2, Q1, V1 pair A1 */
    bell_ring_if_heard(group);
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
