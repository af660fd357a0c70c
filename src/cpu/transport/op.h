/* SPDX-License-Identifier: MIT */
/* A running operation on CPU, and the loop of a blocking call. */
#ifndef TUTTI_CPU_OP_H
#define TUTTI_CPU_OP_H

#include "cpu/transport/wait.h"

/* The first member of every operation's state (struct algorithm). */
struct cpu_op {
    enum tutti_status status; /* of a step that returned OP_DONE */
    /* What a step that returned OP_BUSY waits for: that peer's *word is value. */
    int peer;
    uint32_t value;
    const uint32_t *word;
    int at; /* the next peer, rank or leaf to check */
};

static inline void op_init(struct cpu_op *op)
{
    op->status = TUTTI_OK;
    op->at = 0;
}

/* The result of a step that cannot go on: it waits, or the operation has failed. */
static inline enum op_progress op_stopped(const struct cpu_op *op)
{
    return op->status == TUTTI_OK ? OP_BUSY : OP_DONE;
}

static inline enum op_progress op_end(struct cpu_op *op, enum tutti_status status)
{
    op->status = status;
    return OP_DONE;
}

/* Whether *word is value. If not, the step returns op_stopped(). A1: pairs the release of the word.
 */
static inline bool word_arrived(struct cpu_op *op, int peer, const uint32_t *word, uint32_t value)
{
    op->peer = peer;
    op->value = value;
    op->word = word;
    return order_load_acquire_u32(word) == value;
}

/* Whether the peer's header has this number and means the same operation after the same history.
 * If not, the step returns op_stopped(). */
static inline bool header_arrived(struct cpu_group *group, struct cpu_op *op, int peer,
                                  const struct layout_header *header, uint32_t number,
                                  const struct request *request)
{
    if (!word_arrived(op, peer, &header->number, number))
        return false;
    if (__builtin_expect(header->signature == request->signature &&
                             header->parameter == (request->parameter ^ group->op.history),
                         1))
        return true;
    op->status = wait_mismatch(group, peer, header->signature,
                               header->parameter ^ group->op.history, request);
    return false;
}

/* Whether every peer has announced the same running operation. If not, the step returns
 * op_stopped(). */
static inline bool all_entered(struct cpu_group *group, struct cpu_op *op,
                               const struct request *request)
{
    const uint32_t sequence = (uint32_t)group->op.sequence;
    for (; op->at < group->size - 1; op->at++) {
        const int r = peer_at(group, op->at);
        if (!header_arrived(group, op, r, announcement_place(group, r, group->op.announcement),
                            sequence, request))
            return false;
    }
    return true;
}

typedef enum op_progress cpu_step_fn(void *group, struct request *request, void *op);

/* Steps until the end. Inlined, so that the compiler can also inline a known step function. */
static inline __attribute__((always_inline)) enum tutti_status
cpu_steps_run(struct cpu_group *group, struct request *request, struct cpu_op *op,
              cpu_step_fn *step)
{
    while (step(group, request, op) == OP_BUSY) {
        const enum tutti_status status = wait_for(group, op->peer, op->word, op->value, request);
        if (__builtin_expect(status != TUTTI_OK, 0))
            return status;
    }
    return op->status;
}

#endif
