/* SPDX-License-Identifier: MIT */
/*
 * An exchange of bytes between all ranks of a group: each rank writes bytes that the others read.
 * The other ranks do not know the number of bytes in advance.
 *
 * A rank writes into a segment of its own, which the others have mapped, and they read them there:
 * one writer, and no copy. The segment is a sealed memfd without a name. Its descriptor travels
 * through the handle channel when it is made; ranks of the same process use it as it is. A segment
 * that is too small is replaced by a new one. Each rank has two segments, used alternately. A rank
 * that has received all headers of exchange e knows that all ranks have finished reading exchange e
 * - 1, so in exchange e + 1 it may overwrite the segment of e - 1. The headers, with the sizes and
 * the status, travel by all-gathers of the communicator. The all-gathers provide waits, deadlines
 * and faults, and their release makes the bytes visible. Ranks of several hosts gather the bytes.
 */
#ifndef TUTTI_PG_SHARE_H
#define TUTTI_PG_SHARE_H

#include "comm/comm.h"

struct pg_share;

/* A rank's bytes as this process maps them. They are valid until this rank begins its next exchange
 * but one. */
struct pg_view {
    const unsigned char *bytes; /* aligned to a cache line */
    size_t size;
};

/* Return NULL if there is no memory. */
struct pg_share *pg_share_create(struct tutti_comm *comm);
/* Takes NULL. */
void pg_share_destroy(struct pg_share *share);

/* Local. [out] memory: at least `bytes`, aligned to a cache line, for the next exchange. Returns
 * NO_MEMORY, SYSTEM; the caller then passes that status to pg_share_exchange(). */
enum tutti_status pg_share_reserve(struct pg_share *share, size_t bytes, void **memory);
/*
 * Collective. Offer the first `bytes` of the own segment to all ranks; if `status` is not OK, tell
 * them that this rank has nothing, and why. [out] views: each rank's bytes. If a rank has nothing,
 * or cannot map another rank's segment, such a rank returns its own status and the others that of
 * the first such rank; *failed_rank is that rank. Otherwise *failed_rank is -1, also if the
 * communicator has failed.
 */
enum tutti_status pg_share_exchange(struct pg_share *share, enum tutti_status status, size_t bytes,
                                    int64_t timeout_ms, struct pg_view *views, int *failed_rank);

#endif
