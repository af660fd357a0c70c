/* SPDX-License-Identifier: MIT */
/*
 * A group that cannot have the caller's communicator for itself, because it is of some ranks only
 * or of CUDA devices, has one of its own, hidden, on the host: this is how its members meet.
 *
 * Each rank of the communicator has an entry in the store: the group that it is making now, and how
 * the ones before came out. A rank makes one group at a time, so two ranks that wait for each other
 * in different groups would do so for ever: that is how a difference is found at once, although
 * nobody is obliged to come to anything. Once all members have been seen in the group, their
 * communicator is met as any other is.
 *
 * Keys lie under the communicator's nonce, so that no other communicator, and no earlier life, has
 * written them.
 */
#ifndef TUTTI_PG_MEMBERS_H
#define TUTTI_PG_MEMBERS_H

#include "comm.h"
#include "tutti/pg.h"

/* Ranks of the communicator, in the order of their numbers in the group. */
struct pg_members {
    bool listed; /* by the caller; else they are all ranks */
    int size;
    int place; /* of this rank */
    int ranks[TUTTI_MAX_RANKS];
};

/* Reads the caller's list, or takes all ranks. Returns INVALID. */
enum tutti_status pg_members_read(const struct tutti_comm *comm,
                                  const struct tutti_pg_options *options,
                                  struct pg_members *members);
/*
 * Collective among the members: makes their communicator on the host and, if the communicator is of
 * CUDA devices, which the caller's context is of, one of those (else, or if that cannot be, *direct
 * is NULL on all), both to be destroyed with tutti_comm_destroy(). Returns CONCURRENT (this rank is
 * making another group), MISMATCH (a member waits for this rank in another group), TIMEOUT,
 * PEER_DEAD, ABORTED, which name the communicator's ranks, the failure of a member that has given
 * up, and what tutti_comm_create() does.
 */
enum tutti_status pg_members_meet(struct tutti_comm *comm, tutti_store_t *store,
                                  const struct pg_members *members, int64_t timeout_ms,
                                  struct tutti_comm **made, struct tutti_comm **direct);

#endif
