/* SPDX-License-Identifier: MIT */
/*
 * Peers of a part of an operation, which a thread of the caller runs while other threads run the
 * other parts. Each part has an arena of its own in every rank's arena, and so its own flags. Its
 * ranks, their lives and their aborts are those of the whole.
 */
#ifndef TUTTI_PEERS_PART_H
#define TUTTI_PEERS_PART_H

#include "peers/peers_internal.h"

/* Makes the peers of a part: [offset, offset + bytes) of the arenas of `whole`, which must be open
 * and live longer. `part` is zero before. Frees nothing. `crowded`: there are more threads than
 * cores. */
void peers_part(struct peers *whole, size_t offset, size_t bytes, bool crowded, struct peers *part);

#endif
