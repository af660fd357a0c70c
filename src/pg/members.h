/* SPDX-License-Identifier: MIT */
/*
 * How the members of a group meet. A group of listed ranks, or of a CUDA communicator, cannot use
 * the caller's communicator. Its members make one of their own on the host, hidden from the caller.
 *
 * The members of each list agree by rounds (bootstrap/agree.h). A round ends if a member exits. A
 * member that calls again, or comes late, joins the next round.
 *
 * A rank makes one group at a time and publishes the list with which it waits. Two ranks that wait
 * for each other with different lists would wait until the time-out; the rank that notices this
 * ends both rounds.
 */
#ifndef TUTTI_PG_MEMBERS_H
#define TUTTI_PG_MEMBERS_H

#include "comm/comm.h"
#include "tutti/pg.h"

/* Ranks of the communicator, in the order of their numbers in the group. */
struct pg_members {
    bool listed; /* the caller gave the list; otherwise all ranks */
    int size;
    int own_index;  /* the index of this rank in `ranks` */
    int max_blocks; /* of the communicator of the devices; 0: as in the caller's */
    int ranks[WORLD_RANKS];
};

/* Read the caller's list; without one, take all ranks. Returns INVALID. */
enum tutti_status pg_members_read(const struct tutti_comm *comm,
                                  const struct tutti_pg_options *options,
                                  struct pg_members *members);
/*
 * Collective among the members. Make their communicator on the host. If the caller's communicator
 * is of CUDA devices, whose context is current, also make one of the devices; if that fails,
 * *direct is NULL on all members. Both are destroyed with tutti_comm_destroy(). Returns CONCURRENT
 * (another thread of this rank is making a group), MISMATCH (a member waits for this rank with
 * another list), TIMEOUT, PEER_DEAD, ABORTED, whose texts name ranks of the caller's communicator,
 * the failure of a member that gave up, and what tutti_comm_create() returns.
 */
enum tutti_status pg_members_meet(struct tutti_comm *comm, tutti_store_t *store,
                                  const struct pg_members *members, int64_t timeout_ms,
                                  struct tutti_comm **made, struct tutti_comm **direct);

#endif
