/* SPDX-License-Identifier: MIT */
/* Randomness that cannot be guessed: nonces, names, identities. */
#ifndef TUTTI_IPC_RANDOM_H
#define TUTTI_IPC_RANDOM_H

#include "tutti/tutti.h"

/* Fills at most 256 bytes. Returns SYSTEM. */
enum tutti_status random_fill(void *bytes, size_t size);

/* Compares secrets. Takes the same time wherever they differ, so that nobody can guess a secret
 * byte by byte. */
bool secret_equal(const uint8_t *a, const uint8_t *b, size_t size);

#endif
