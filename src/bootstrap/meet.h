/* SPDX-License-Identifier: MIT */
/* How the ranks of a new communicator find each other on a store that may hold the keys of earlier
 * meetings. */
#ifndef TUTTI_MEET_H
#define TUTTI_MEET_H

#include "tutti/tutti.h"

struct meeting {
    int64_t generation; /* counted by the store: which communicator of this name */
    uint8_t nonce[16];  /* the same on all ranks, never used before */
};

struct meet_call {
    tutti_store_t *store;
    const char *name; /* of the communicator */
    int rank;
    int size;
    int64_t timeout_ms;
    const void *record; /* what this rank tells the others */
    size_t record_bytes;
    void *records; /* [out] of all ranks, rank by rank */
};

/*
 * Collective. Every rank leaves a fresh random token and its process under its number. Rank 0
 * leads: its token is the nonce. The other ranks answer it with their records, until rank 0 has
 * heard from all. Then rank 0 writes a result with all tokens and records. A rank takes only a
 * result with its own token, so keys of earlier meetings have no effect.
 *
 * If the meeting fails, all waiting ranks return the same error:
 * - TIMEOUT names all ranks that did not come;
 * - PEER_DEAD names the ranks whose processes ended after this call had begun;
 * - MISMATCH: the world sizes differ, or two processes have one rank. Ranks that come within two
 *   seconds get it, too.
 * A rank that waits for 5 seconds logs the missing ranks at WARN, and again at each doubling.
 */
enum tutti_status meet(const struct meet_call *call, struct meeting *meeting);

/* Deletes the keys that this rank has left in a meeting that succeeded. A rank may look at them
 * until all ranks have met in the arenas (all_met). If they do not meet, the result stays, which a
 * rank may not have read yet. Best effort: a store that has stopped gets STORE_GRACE_MS a key. */
void meet_end(const tutti_store_t *store, const char *name, int rank, const uint8_t nonce[16],
              bool all_met);

/* A number that no communicator of this name has had on the store. */
enum tutti_status meet_generation(tutti_store_t *store, const char *name, int64_t *generation);

#endif
