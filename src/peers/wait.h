/* SPDX-License-Identifier: MIT */
/*
 * All waits for a peer use base/wait.h. A waiter polls 2000 times, yields 2000 times, then sleeps
 * on the peer's bell, a futex in the peer's arena; without a bell, in naps. If ranks outnumber
 * cores, it polls once, because the peer may need the core, and yields 4000 times.
 *
 * A look checks for a fault or an abort of any rank, another operation of the peer, and the exit or
 * death of the peer. A peer that died after its part does not end the wait. The deadline begins
 * with the first wait that polling has not ended, so a quick operation never reads the clock.
 *
 * A rank that releases a word rings its own bell if a rank sleeps on it; if none does, this costs
 * one load. A time-out names the rank for which all others wait: a rank that has waited for 20 ms
 * publishes the awaited rank, and a waiter follows these words.
 */
#ifndef TUTTI_PEERS_WAIT_H
#define TUTTI_PEERS_WAIT_H

#include "base/invariant.h"
#include "base/wait.h"
#include "coll/request.h"
#include "peers/bell.h"

/* The slow part of wait_for(): yields, sleeps, checks the peers, ends at the deadline. */
enum tutti_status wait_slowly(struct peers *peers, int peer, const uint32_t *word, uint32_t value,
                              const struct request *request);
/* An event that is no word of a peer. `state`: of the operation that waits for it. */
struct wait_poll {
    /* Returns true if the event has come. It may consume the event. */
    bool (*poll)(struct peers *peers, void *state);
    /* Returns true if the event will never come, or, `late`: after the deadline, if it is known why
     * the event has not come. *fault is a time-out of this rank; look() changes it to say why.
     * NULL: the faults and exits of the ranks and the deadline end the wait. */
    bool (*look)(struct peers *peers, void *state, enum wait_depth depth, bool late,
                 struct tutti_fault *fault);
    /* For reports: the rank for which the wait is, as peers_awaits() takes it. NULL: none. */
    int (*peer)(const void *state);
};
/* Waits until the poll finds its event. */
enum tutti_status wait_by_poll(struct peers *peers, const struct wait_poll *poll, void *state,
                               const struct request *request);

/* A wait for a peer's word or by a poll, for a caller that has several waits. */
struct peers_wait {
    struct peers *peers;
    const struct request *request;
    int peer; /* of a poll: this rank */
    uint32_t value;
    const uint32_t *word;         /* NULL: the wait is by the poll */
    const struct wait_poll *poll; /* without a word */
    void *state;
    struct tutti_fault fault; /* the trouble that was found */
};
/* Returns true if the event will never come, or is too late. Then wait->fault says why; the ranks
 * have not failed yet. */
bool wait_look(struct peers_wait *wait, enum wait_depth depth, bool late);
/* The struct waiter's remind(). `wait`: a struct peers_wait. */
void wait_remind(void *wait, int waited_s);
/* A fault of the running operation, which is the request's. */
struct tutti_fault wait_fault(const struct peers *peers, enum tutti_status status, int peer,
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
static inline enum tutti_status wait_for(struct peers *peers, int peer, const uint32_t *word,
                                         uint32_t value, const struct request *request)
{
    return wait_polls(word, value, peers->ranks.polls)
               ? TUTTI_OK
               : wait_slowly(peers, peer, word, value, request);
}

/* Begins an operation, unless the ranks have failed or were aborted. */
static inline enum tutti_status lane_begin(struct peers *peers, enum lane lane)
{
    if (__builtin_expect(faults_stand(&peers->faults), 0))
        return peers_status(peers, NULL);
    invariant(order_load_relaxed_u32(&peers->faults.open));
    peers->lane = lane;
    peers->deadline = 0;
    return TUTTI_OK;
}

/* Takes the number of a collective. Relaxed: other threads read it only for reports. */
static inline void number_take(struct peers *peers)
{
    order_store_relaxed_u64(&peers->sequence, peers->sequence + 1);
}

#endif
