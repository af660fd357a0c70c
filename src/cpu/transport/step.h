/* SPDX-License-Identifier: MIT */
/* A running operation on CPU, and the loop of a blocking call. */
#ifndef TUTTI_CPU_STEP_H
#define TUTTI_CPU_STEP_H

#include "cpu/transport/wait.h"

/* The first member of every operation's state (struct algorithm). */
struct cpu_state {
    enum tutti_status status; /* of a step that returned STEP_DONE */
    /* What a step that returned STEP_BUSY waits for: that peer's *word is value, or, if the word is
     * NULL, that the poll finds its event. */
    int peer;
    uint32_t value;
    const uint32_t *word;
    const struct wait_poll *poll;
    int at; /* the next peer, rank or leaf to check */
};

static inline void state_init(struct cpu_state *state)
{
    state->status = TUTTI_OK;
    state->at = 0;
}

/* The result of a step that cannot go on: it waits, or the operation has failed. */
static inline enum step_progress step_stopped(const struct cpu_state *state)
{
    return state->status == TUTTI_OK ? STEP_BUSY : STEP_DONE;
}

static inline enum step_progress step_end(struct cpu_state *state, enum tutti_status status)
{
    state->status = status;
    return STEP_DONE;
}

/* Whether *word is value. If not, the step returns step_stopped(). A1: pairs the release of the
 * word.
 */
static inline bool word_arrived(struct cpu_state *state, int peer, const uint32_t *word,
                                uint32_t value)
{
    state->peer = peer;
    state->value = value;
    state->word = word;
    return order_load_acquire_u32(word) == value;
}

/* The step has to wait by a poll, and returns step_stopped(). */
static inline void step_polls(struct cpu_group *group, struct cpu_state *state,
                              const struct wait_poll *poll)
{
    state->peer = group->peers.rank;
    state->word = NULL;
    state->poll = poll;
}

/* Whether the peer's header has this number and means the same operation after the same history.
 * If not, the step returns step_stopped(). */
static inline bool header_arrived(struct cpu_group *group, struct cpu_state *state, int peer,
                                  const struct layout_header *header, uint32_t number,
                                  const struct request *request)
{
    if (!word_arrived(state, peer, &header->number, number))
        return false;
    if (__builtin_expect(header->signature == request->signature &&
                             header->parameter == (request->parameter ^ group->counts.history),
                         1))
        return true;
    state->status = wait_mismatch(group, peer, header->signature,
                                  header->parameter ^ group->counts.history, request);
    return false;
}

/* Whether every peer has announced the same running operation. If not, the step returns
 * step_stopped(). */
static inline bool all_entered(struct cpu_group *group, struct cpu_state *state,
                               const struct request *request)
{
    const uint32_t sequence = (uint32_t)group->peers.sequence;
    for (; state->at < group->peers.size - 1; state->at++) {
        const int r = peer_at(group, state->at);
        if (!header_arrived(group, state, r,
                            announcement_place(&group->peers, r, group->counts.announcement),
                            sequence, request))
            return false;
    }
    return true;
}

typedef enum step_progress cpu_step_fn(void *group, struct request *request, void *state);

/* Steps until the end. Inlined, so that the compiler can also inline a known step function. `polls`
 * is a constant: whether a step may wait by a poll. */
static inline __attribute__((always_inline)) enum tutti_status
cpu_steps_run(struct cpu_group *group, struct request *request, struct cpu_state *state,
              cpu_step_fn *step, bool polls)
{
    while (step(group, request, state) == STEP_BUSY) {
        const enum tutti_status status =
            polls && !state->word
                ? wait_by_poll(&group->peers, state->poll, state, request)
                : wait_for(&group->peers, state->peer, state->word, state->value, request);
        if (__builtin_expect(status != TUTTI_OK, 0))
            return status;
    }
    return state->status;
}

#endif
