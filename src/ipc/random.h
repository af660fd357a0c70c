/* SPDX-License-Identifier: MIT */
/* Randomness that cannot be guessed: nonces, names, identities. */
#ifndef TUTTI_IPC_RANDOM_H
#define TUTTI_IPC_RANDOM_H

#include "tutti/tutti.h"

/* Fills at most 256 bytes. Returns SYSTEM. */
enum tutti_status random_fill(void *bytes, size_t size);

#endif
