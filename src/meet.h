/* SPDX-License-Identifier: MIT */
/* How the ranks of a new communicator find each other on a store that may hold the keys of an
 * earlier life. */
#ifndef TUTTI_MEET_H
#define TUTTI_MEET_H

#include "tutti/tutti.h"

struct meeting {
    int64_t generation; /* counted by the store: which communicator of this name */
    uint8_t nonce[16];  /* the same on all ranks, never used before */
};

/*
 * Collective. Rank 0 leads: every rank leaves a fresh random token under its rank, rank 0 answers
 * each token with the generation and a fresh nonce, and goes on looking for newer tokens until all
 * have thanked it with that nonce; then it gives the word to go. A key of an earlier life can thus
 * only carry a token that nobody waits for, or thanks for another meeting. World sizes are compared
 * on the way: MISMATCH, on all ranks that come within two seconds of the first that differs.
 */
enum tutti_status meet(tutti_store_t *store, const char *name, int rank, int size,
                       int64_t timeout_ms, struct meeting *meeting);

enum { MEET_KEY_BYTES = 192 };

/* The key that stays behind meet(): it may be deleted once all ranks have returned. */
void meet_last_key(const char *name, const uint8_t nonce[16], char key[MEET_KEY_BYTES]);

/* A number that no communicator of this name has had on the store. */
enum tutti_status meet_generation(tutti_store_t *store, const char *name, int64_t *generation);

#endif
