/* SPDX-License-Identifier: MIT */
/*
 * What each rank of a group shows all others: bytes, of which it alone knows how many.
 *
 * A rank writes them into memory of its own that the others map, and they read them there: one
 * writer, and nothing is copied. That memory is a sealed segment without a name, which travels
 * through the handle channel when it is made, and is made anew when it is too small. There are two
 * of it, which take turns: who has seen all ranks in turn t knows that all have left turn t - 1,
 * and may write what it showed there in turn t + 1. The numbers, and the word that all is there, go
 * by all-reduces of the communicator, whose waits, deadlines and faults are all there are.
 *
 * Where links do not join all ranks the bytes go along the links: by an all-reduce, too.
 */
#ifndef TUTTI_PG_SHARE_H
#define TUTTI_PG_SHARE_H

#include "comm.h"

struct pg_share;

/* What for: a communicator has one of each at most. */
enum pg_share_use { PG_SHARE_SPARSE, PG_SHARE_BOUNCE };

/* What a rank shows; it stays until the own next turn but one begins. */
struct pg_shown {
    const unsigned char *bytes; /* aligned to a line */
    size_t size;
};

/* NULL if there is no memory. */
struct pg_share *pg_share_create(struct tutti_comm *comm, enum pg_share_use use);
/* Takes NULL. */
void pg_share_destroy(struct pg_share *share);
/* In a child of fork(): gives up the copy. Takes NULL. */
void pg_share_forget(struct pg_share *share);

/* Local: memory of so many bytes, aligned to a line, for what is shown next. Returns NO_MEMORY,
 * SYSTEM; then pg_share_show() is called with it all the same. */
enum tutti_status pg_share_reserve(struct pg_share *share, size_t bytes, int64_t timeout_ms,
                                   void **memory);
/* The same of a segment, which is mapped once more; the descriptor stays the caller's. */
enum tutti_status pg_share_offer(struct pg_share *share, int fd, size_t bytes, int64_t timeout_ms);
/*
 * Collective: the first `bytes` of it, or, if `status` is not OK, that this rank has nothing and
 * why. [out] shown, of each rank. If any has nothing, or cannot take what the others have, all get
 * the status of the first of them, with *culprit; else *culprit is -1, as it is if the communicator
 * has failed.
 */
enum tutti_status pg_share_show(struct pg_share *share, enum tutti_status status, size_t bytes,
                                int64_t timeout_ms, struct pg_shown *shown, int *culprit);

#endif
