/* SPDX-License-Identifier: MIT */
/*
 * A bounce buffer: pinned memory for copies from and to devices, which all ranks of the group have
 * mapped. The hosts reduce the data in it (cpu/direct.c) and copy nothing. It has PG_SLOTS slots,
 * which the pieces of operations use one after the other. The hosts finish with a slot, on all
 * ranks, before the next piece begins. So a slot is busy only until its copy to the device is done.
 */
#ifndef TUTTI_PG_BOUNCE_H
#define TUTTI_PG_BOUNCE_H

#include "cuda/staging/stage.h"
#include "pg/share.h"
#include "symm/symm.h"

struct tutti_pg;

/* The slots are small: many pages cost the hosts more than small copies cost the devices. */
enum { PG_SLOTS = 4, PG_SLOT_BYTES = 256 << 10 };

/* The last copy from a slot to a device. */
struct pg_slot {
    int device;
    uint64_t mark; /* 0: there was none */
};

struct pg_bounce {
    struct pg_share *share;
    bool open_tried; /* pg_bounce_open() was called; all ranks call it for the same operation */
    bool ready;
    struct cuda_block *block; /* for copies of the devices */
    struct symm_view view;    /* for the hosts' reductions */
    void *buffers[TUTTI_MAX_RANKS];
    struct pg_slot slots[PG_SLOTS];
    uint64_t slots_used; /* number of slots used so far */
};

/* Called once the group's thread has ended. */
void pg_bounce_close(struct tutti_pg *pg);
/* In the child of a fork(). */
void pg_bounce_abandon(struct tutti_pg *pg);

/* ---- for the group's thread ------------------------------------------------------------------ */

/* Collective. Make the buffer, at the first call only. If one rank cannot make or map it, no rank
 * has one, and the status is OK. Returns what ends the group's communicator. */
enum tutti_status pg_bounce_open(struct tutti_pg *pg, int64_t timeout_ms);
/* The address of a slot for copies of the devices, and for the hosts' reductions. */
void *pg_bounce_device_address(const struct pg_bounce *bounce, uint64_t slot);
void *pg_bounce_host_address(const struct pg_bounce *bounce, uint64_t slot);

#endif
