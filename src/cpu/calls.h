/* SPDX-License-Identifier: MIT */
/*
 * Several operations of one or several groups. The calling thread steps them in turn, so no
 * operation waits for the end of another one without need.
 *
 * Collectives of one group run one after the other. Messages in one direction with one peer do so,
 * too. A message and a collective run at the same time, unless both send messages of the lane PAIR.
 * Then each rank sends the messages of the earlier call first.
 *
 * So the calls of a group form chains: its collectives, and the messages in each direction with
 * each peer. Only the first call of a chain that has not ended can run. A poll steps these calls
 * alone, so the work for a call does not grow with the number of calls.
 */
#ifndef TUTTI_CPU_CALLS_H
#define TUTTI_CPU_CALLS_H

#include "coll/request.h"
#include "cpu/transport/sequence.h"

struct cpu_call;
struct cpu_group;
struct cpu_op;

/* The chains of a group, for calls.c alone. All fields are zero outside of cpu_calls_run(). */
struct cpu_chains {
    /* The last call of each chain; NULL: the chain has none. */
    struct cpu_call *collectives, *sends[LAYOUT_RANKS], *receives[LAYOUT_RANKS];
    /* Calls that send messages of the lane PAIR: [0] collectives, [1] sends. */
    int sending[2], sent[2]; /* in all, and those that have ended */
    uint64_t looked;         /* the last look that has asked the application */
};

struct cpu_call {
    struct cpu_group *group;   /* the caller may run operations of this group until the end */
    struct cpu_chains *chains; /* of that group */
    struct request request;
    struct cpu_op *op; /* choice.run->op_bytes of memory for the state */
    struct cpu_call *next;
    /* After cpu_calls_run(): how it ended. */
    enum tutti_status status;
    /* Only calls.c uses the fields below. */
    bool started, ended;
    bool is_message, sends;  /* a send or receive; it sends messages of the lane PAIR */
    int sent_before;         /* earlier calls that have to send their messages first: `sent` */
    struct cpu_call **chain; /* where the last call of its chain stands */
    struct cpu_call *after;  /* the next call of its chain */
    struct cpu_call *beside; /* the next call of struct calls' list */
    enum cpu_lane lane;      /* of the operation, like the deadline: see struct cpu_sequence */
    int64_t deadline;
};

/* Runs the calls of a list, which may be empty. Calls of one group have the same chains. Returns
 * when all have ended; a failure ends the calls of its group alone. */
void cpu_calls_run(struct cpu_call *first);

#endif
