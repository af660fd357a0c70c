/* SPDX-License-Identifier: MIT */
/* Arenas of thread ranks: ranks of one process share one mapping instead of exchanging descriptors.
 */
#ifndef TUTTI_CPU_LOCAL_H
#define TUTTI_CPU_LOCAL_H

#include "ipc/segment.h"

/* Takes over the mapped segment of `rank` of the group with this nonce and holds it once, for the
 * owner. */
enum tutti_status local_publish(const uint8_t *nonce, int rank, const struct segment *segment);
/* The base of a published segment, held once more; NULL if there is none. */
void *local_acquire(const uint8_t *nonce, int rank);
/* What is held is held once more. */
void local_hold(void *base);
/* Lets go; the last one unmaps. */
void local_release(void *base);

#endif
