/* SPDX-License-Identifier: MIT */
/*
 * Several operations of one or several communicators, whose ranks may run on several hosts. The
 * calling thread steps them in turn, so no operation waits for the end of another one without need.
 *
 * Collectives of one communicator run one after the other. Messages in one direction with one peer
 * do so, too. A message and a collective run at the same time, unless both send messages of the
 * lane PAIR. Then each rank sends the messages of the earlier call first.
 *
 * So the calls of a group form chains: its collectives, and the messages in each direction with
 * each peer. Only the first call of a chain that has not ended can run. A poll steps these calls
 * alone, so the work for a call does not grow with the number of calls.
 */
#ifndef TUTTI_CPU_CALL_LIST_H
#define TUTTI_CPU_CALL_LIST_H

#include "coll/request.h"
#include "peers/peers_internal.h"

struct cpu_state;

struct cpu_call {
    void *group; /* of the request's algorithm; the caller may run its operations until the end */
    struct peers *peers; /* the ranks of this host, with which a struct cpu_group begins */
    struct request request;
    struct cpu_call *next;
    /* After cpu_call_list_run(): how it ended. */
    enum tutti_status status;
    /* Only call_list.c uses the fields below. */
    bool started, ended;
    bool is_message, sends;  /* a send or receive; it sends messages of the lane PAIR */
    int sent_before;         /* earlier calls that have to send their messages first: `sent` */
    struct cpu_call **chain; /* where the last call of its chain stands */
    struct cpu_call *after;  /* the next call of its chain */
    struct cpu_call *beside; /* the next call of the list of fronts */
    struct cpu_state *state; /* the state of its operation; the calls of a chain have one */
    const uint32_t *word;    /* for which it waited after its last step */
    uint32_t value;
    enum lane lane; /* of the operation, like the deadline: see struct cpu_counts */
    int64_t deadline, later_ms;
};

/* Memory for the states of operations, kept from list to list. Zero before the first one. */
struct cpu_states {
    unsigned char *memory; /* the owner frees it */
    size_t bytes;
};

/* Runs the calls of a list, which may be empty. Returns when all have ended; a failure ends the
 * calls of its communicator alone. Without memory for the states, sets the thread's last error, and
 * all calls end with NO_MEMORY before the first one starts. */
void cpu_call_list_run(struct cpu_call *first, struct cpu_states *states);

#endif
