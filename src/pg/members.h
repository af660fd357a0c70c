/* SPDX-License-Identifier: MIT */
/*
 * A group that cannot have the caller's communicator for itself, because it is of some ranks only
 * or of CUDA devices, has one of its own, hidden, on the host: this is how its members meet.
 *
 * For each list there are attempts, one after the other. In an attempt a member leaves an entry and
 * waits for those of the others; the first one who has seen all, or cannot wait any longer, decides
 * for all what it has come to, since the first who sets a key has set it. Who calls again, or comes
 * late, finds the next attempt.
 *
 * A rank makes one group at a time and says where it is. So two that wait for each other with
 * different lists would do so for ever: whoever sees that ends both attempts.
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
    int own_index; /* of this rank */
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
