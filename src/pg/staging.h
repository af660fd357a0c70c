/* SPDX-License-Identifier: MIT */
/* Staging: copying CUDA tensors through host memory. The additional state of an operation on
 * them. */
#ifndef TUTTI_PG_STAGING_H
#define TUTTI_PG_STAGING_H

#include "coll/region.h"
#include "cuda/staging/stage.h"
#include "pg/share.h"
#include "tutti/pg.h"

struct pg_op;
struct tutti_pg;

enum { PG_STAGING_DEVICES = 16 }; /* devices of one operation, at most */

struct pg_staging {
    struct cuda_stage *stage; /* kept alive by the fence */
    struct cuda_fence *fence;
    struct cuda_block *result; /* the result of a sparse sum; NULL: none */
    struct cuda_block
        *block;        /* this and all below are for the group's thread only; NULL: none yet */
    bool copied_early; /* all tensors are being copied into the block, or have been */
    enum tutti_status status; /* of the early copies */
    int device_count;
    int devices[PG_STAGING_DEVICES];               /* each device once */
    uint64_t marks[CUDA_WAYS][PG_STAGING_DEVICES]; /* of the last copies in each direction */
};

/* ---- the bounce buffer ----------------------------------------------------------------------- */

/*
 * The bounce buffer: pinned memory for copies from and to devices, which all ranks of the group
 * have mapped. The hosts reduce the data in it (cpu/direct.c) and copy nothing. It has PG_SLOTS
 * slots, which the pieces of operations use one after the other. The hosts finish with a slot, on
 * all ranks, before the next piece begins. So a slot is busy only until its copy to the device is
 * done.
 */

/* The slots are small: many pages cost the hosts more than small copies cost the devices. */
enum { PG_SLOTS = 4, PG_SLOT_BYTES = 256 << 10 };

/* The last copy from a slot to a device. */
struct pg_slot {
    int device;
    uint64_t mark; /* 0: there was none */
};

struct pg_bounce {
    struct pg_share *share;
    bool open_tried; /* all ranks try for the same operation; region.ready is set if that succeeded
                      */
    struct cuda_block *block; /* for copies of the devices */
    struct region region;     /* for the hosts' reductions */
    void *buffers[TUTTI_MAX_RANKS];
    struct pg_slot slots[PG_SLOTS];
    uint64_t slots_used; /* number of slots used so far */
};

/* Called once the group's thread has ended. */
void pg_bounce_close(struct tutti_pg *pg);

/* ---- operations ------------------------------------------------------------------------------ */

/* At submission: take a fence that tells when `stream` has passed the work that is on it now. The
 * tensors of *op are set. Returns INVALID, DECLINED, NO_MEMORY, CUDA. */
enum tutti_status pg_staging_begin(const struct tutti_pg *pg, struct pg_op *op,
                                   tutti_stream_t stream);
/* Make the stream wait for the end of the operation. [out] full: the fence has no room for another
 * waiting stream, so the host must wait. */
enum tutti_status pg_staging_wait(struct pg_op *op, tutti_stream_t stream, bool *full);
/* The operation is done: let the waiting streams go on. */
void pg_staging_release_streams(const struct pg_op *op);
/* Takes NULL. */
void pg_staging_free(struct pg_staging *staging);

/* ---- for the group's thread ------------------------------------------------------------------ */

/* Whether the caller's streams have reached the point of the submission. If the copy of a message
 * to send has begun, it must also be done. */
bool pg_staging_input_ready(const struct tutti_pg *pg, const struct pg_op *op);
/* For dense tensors, once the streams have reached that point: start copying small tensors to the
 * host before the verdict. Take a block for a message, and start copying a message to send. */
void pg_staging_copy_early(struct tutti_pg *pg, struct pg_op *op);
/* Set a mark behind the copies enqueued so far in one direction. Do so also after the error
 * `status`, since earlier copies are on their way. Return `status` if it is an error. */
enum tutti_status pg_staging_mark(struct tutti_pg *pg, struct pg_staging *staging,
                                  enum cuda_way way, enum tutti_status status);
/* The host memory of a message's tensor. */
void *pg_staging_message_data(const struct pg_op *op);
/* Start copying a received message to the device. Returns CUDA. */
enum tutti_status pg_staging_message_out(struct tutti_pg *pg, struct pg_op *op);
/* Wait until the copies before the marks are done. Returns TIMEOUT, and what ends the group's
 * communicator. */
enum tutti_status pg_staging_await(struct tutti_pg *pg, const struct pg_staging *staging,
                                   enum cuda_way way, const uint64_t *marks, int64_t deadline);
/* Run the operation, or one pair with `elements` elements in a block, together with all ranks.
 * After OK the last copies to the device may still be under way. */
enum tutti_status pg_staging_run(struct tutti_pg *pg, struct pg_op *op, int pair, size_t elements);
/* Whether a stream that waited for the operation gave up and went on without it. */
bool pg_staging_wait_expired(const struct pg_op *op);
/* Whether all copies of the operation are done. */
bool pg_staging_copies_done(const struct tutti_pg *pg, const struct pg_op *op);
/* Give back the pinned memory. Waits at most one second for copies that still use it. */
void pg_staging_end(struct tutti_pg *pg, struct pg_op *op);

#endif
