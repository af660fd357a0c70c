/* SPDX-License-Identifier: MIT */
/*
 * How the ranks of a communicator agree who of them goes on without the others. All they have in
 * common is the store, where the first who sets a key has set it: so every question is a key, and
 * an answer, once it is there, is everybody's.
 *
 * In a round each rank that goes on leaves an entry {whom it excludes, its last operation} and
 * waits for the entries of all whom nobody has excluded and who live. Who sees them all proposes
 * the members; who cannot wait any longer proposes why not. The members put the new communicator
 * together; who has done so once all have proposes that it is good, who has failed that it is bad.
 * If it is bad because members have died meanwhile, the others begin the next round without them.
 *
 * Keys lie under the communicator's nonce, so that no other communicator, and no earlier life, has
 * written them.
 */
#ifndef TUTTI_SURVIVORS_H
#define TUTTI_SURVIVORS_H

#include "base/interrupt.h"
#include "bootstrap/meet.h"
#include "comm/comm.h"

enum { SURVIVORS_TEXT_BYTES = 400 };

/* What a round has come to: fixed-size, for all ranks alike. */
struct survivors_decision {
    int32_t status; /* enum tutti_status: OK, or why nobody goes on */
    int32_t rank;   /* who says so */
    uint64_t members;
    uint64_t absent;        /* of a TIMEOUT: who has not come */
    uint64_t completed_all; /* the last operation that all members have completed, */
    uint64_t completed_any; /* or any of them */
    struct meeting meeting; /* of the members */
    char text[SURVIVORS_TEXT_BYTES];
};

struct survivors {
    /* The caller's: */
    struct tutti_comm *comm; /* the old one; `busy` is held */
    tutti_store_t *store;    /* a view that the deadline ends, and `aborted` */
    int64_t deadline;
    uint64_t excluded;
    uint64_t completed;
    /* survivors_begin()'s: */
    uint32_t aborts; /* of the communicator, before */
    int round;
    int rounds;                         /* that this call has taken part in */
    int64_t looked_at;                  /* at the verdict */
    struct survivors_decision decision; /* of the round */
    struct interrupt interrupt;         /* of what the members do: aborts, deaths, bad verdicts */
    struct interrupt aborted;           /* of the agreement itself */
};

/* From now on an abort of the communicator ends it all. */
void survivors_begin(struct survivors *self);
/* Takes part in the next round that is open, until self->decision has members, of which this rank
 * is one. Returns DECLINED (the others go on without this rank), TIMEOUT (the ranks that did not
 * come are named), ABORTED, what a store does. */
enum tutti_status survivors_agree(struct survivors *self);
/* `mine` is how the new communicator came out here; returns how it came out for all. *again says
 * that it did not, for members that are dead: agree once more. */
enum tutti_status survivors_conclude(struct survivors *self, enum tutti_status mine, bool *again);

#endif
