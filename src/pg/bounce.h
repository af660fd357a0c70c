/* SPDX-License-Identifier: MIT */
/*
 * A bounce buffer: pinned memory, for copies from and to devices, that all ranks of the group have
 * mapped, so that the hosts reduce where it lies (cpu/direct.c) and copy nothing. It has PG_SLOTS
 * slots, which pieces of operations take one after the other; what the hosts do with one ends, for
 * all ranks, before the next piece, so that only copies back keep it.
 */
#ifndef TUTTI_PG_BOUNCE_H
#define TUTTI_PG_BOUNCE_H

#include "cuda/stage.h"
#include "pg/share.h"
#include "symm.h"

struct tutti_pg;

/* Small: what many pages do to the hosts costs more than what few bytes do to the devices. */
enum { PG_SLOTS = 4, PG_SLOT_BYTES = 256 << 10 };

/* The copy back out of a slot that came last. */
struct pg_slot {
    int device;
    uint64_t mark; /* 0: there was none */
};

struct pg_bounce {
    struct pg_share *share;
    bool tried; /* to open it, which all ranks do together */
    bool ready;
    struct cuda_block *block; /* as the devices know it */
    struct symm_view view;    /* as the hosts do */
    void *buffers[TUTTI_MAX_RANKS];
    struct pg_slot slots[PG_SLOTS];
    uint64_t taken; /* slots, so far */
};

/* When there is no thread any more. */
void pg_bounce_close(struct tutti_pg *pg);
/* In a child. */
void pg_bounce_forget(struct tutti_pg *pg);

/* ---- the thread's ---------------------------------------------------------------------------- */

/* Collective: makes it, once. If one of the ranks cannot there is none, on all of them. Returns
 * what ends the group's communicator. */
enum tutti_status pg_bounce_open(struct tutti_pg *pg, int64_t timeout_ms);
/* A slot as the devices know it, or the hosts. */
void *pg_bounce_pinned(const struct pg_bounce *bounce, uint64_t slot);
void *pg_bounce_shared(const struct pg_bounce *bounce, uint64_t slot);

#endif
