/* SPDX-License-Identifier: MIT */
/* Arenas of ranks that are threads of one process: they share one mapping. */
#ifndef TUTTI_CPU_LOCAL_H
#define TUTTI_CPU_LOCAL_H

#include "ipc/segment.h"

/* Takes ownership of the mapped segment of `rank` in the group with this nonce. The segment then
 * has one reference: the owner's. */
enum tutti_status local_publish(const uint8_t *nonce, int rank, const struct segment *segment);
/* The base of a published segment, with one more reference; NULL if there is none. */
void *local_acquire(const uint8_t *nonce, int rank);
/* Adds a reference. */
void local_hold(void *base);
/* Drops a reference; the last one unmaps. */
void local_release(void *base);

#endif
