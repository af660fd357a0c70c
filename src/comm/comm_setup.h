/* SPDX-License-Identifier: MIT */
/* During the set-up of a communicator, after the meeting, a rank learns here that another rank will
 * not come, and why. */
#ifndef TUTTI_COMM_SETUP_H
#define TUTTI_COMM_SETUP_H

#include "base/interrupt.h"
#include "comm/comm.h"
#include "ipc/process.h"

/*
 * The interrupt of a rendezvous, asked every 50 ms. A wait ends
 * - by this rank's abort, at once;
 * - by the end of a process, once nothing has come for a while: PEER_DEAD names the ranks;
 * - by a peer that closes its connection. The first rank that gives up writes its error under
 *   GENERATION/why in the store before it closes its connections or exits. All other ranks return
 *   that error.
 */
struct comm_setup {
    struct tutti_comm *comm;
    bool reported;         /* this rank's error is in the store */
    enum tutti_status why; /* status of another rank that has given up; OK: none is known */
    int dead;              /* 1 + a rank whose will the store has; 0: none is known */
    int64_t looked_at;     /* for that, last */
    struct process self;
    struct process *processes; /* by rank; NULL until the ranks have met */
    struct interrupt interrupt;
};

/* The ranks have met. Returns NO_MEMORY. */
enum tutti_status comm_setup_met(struct comm_setup *self, const struct host_record *records);
/* Sets comm->setup; the caller's structure must live until comm_setup_end(). */
void comm_setup_begin(struct comm_setup *self, struct tutti_comm *comm);
/* Returns the rendezvous's status; PEER_DEAD instead where the store failed because the process
 * that served it has ended. */
enum tutti_status comm_setup_end(struct comm_setup *self, enum tutti_status status);

#endif
