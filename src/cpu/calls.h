/* SPDX-License-Identifier: MIT */
/*
 * Several operations of one or several groups. The calling thread steps them in turn, so no
 * operation waits for the end of another one without need.
 *
 * Collectives of one group run one after the other. Messages in one direction with one peer do so,
 * too. A message and a collective run at the same time, unless both send messages of the lane PAIR.
 * Then each rank sends the messages of the earlier call first.
 */
#ifndef TUTTI_CPU_CALLS_H
#define TUTTI_CPU_CALLS_H

#include "coll/request.h"
#include "cpu/transport/sequence.h"

struct cpu_group;
struct cpu_op;

struct cpu_call {
    struct cpu_group *group; /* the caller may run operations of this group until the end */
    struct request request;
    struct cpu_op *op; /* choice.run->op_bytes of memory for the state */
    struct cpu_call *next;
    /* After cpu_calls_run(): how it ended. */
    enum tutti_status status;
    /* Only calls.c uses the fields below. */
    bool started, ended;
    int blockers;       /* earlier calls that have to end first */
    enum cpu_lane lane; /* of the operation, like the deadline: see struct cpu_sequence */
    int64_t deadline;
};

/* Runs the calls of a list, which may be empty. Returns when all have ended; a failure ends the
 * calls of its group alone. */
void cpu_calls_run(struct cpu_call *first);

#endif
