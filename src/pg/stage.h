/* SPDX-License-Identifier: MIT */
/* CUDA tensors through the host: what an operation on them has besides. */
#ifndef TUTTI_PG_STAGE_H
#define TUTTI_PG_STAGE_H

#include "cuda/stage.h"
#include "tutti/pg.h"

struct pg_op;
struct tutti_pg;

enum { PG_STAGE_DEVICES = 16 };

struct pg_staging {
    struct cuda_stage *stage; /* that the ticket keeps */
    struct cuda_ticket *ticket;
    struct cuda_result *result; /* of a sparse sum; NULL: none */
    struct cuda_block *block;   /* the thread's, as is all below; NULL: none yet */
    bool ahead;                 /* all its tensors are on their way into the block */
    bool direct;                /* it went by the devices */
    enum tutti_status status;   /* how that went */
    int device_count;
    int devices[PG_STAGE_DEVICES];               /* each once */
    uint64_t marks[CUDA_WAYS][PG_STAGE_DEVICES]; /* of the last copies */
};

/* Submission: takes a ticket, for what is on the stream now; *op has its tensors. Returns INVALID,
 * DECLINED, NO_MEMORY, CUDA. */
enum tutti_status pg_stage_begin(const struct tutti_pg *pg, struct pg_op *op,
                                 tutti_stream_t stream);
/* Has the stream wait for the operation's end; the host, if that cannot be. */
enum tutti_status pg_stage_wait(struct pg_op *op, tutti_stream_t stream, bool *full);
/* The operation has ended, and all may see it. */
void pg_stage_open(const struct pg_op *op);
/* Takes NULL. */
void pg_stage_free(struct pg_staging *staging, bool child);

/* ---- the thread's ---------------------------------------------------------------------------- */

/* Whether the streams have come to where the operation was submitted. */
bool pg_stage_come(const struct pg_op *op);
/* They have: what is small, or sparse, is copied in ahead of the verdict. */
void pg_stage_ahead(struct tutti_pg *pg, struct pg_op *op);
/* Behind the copies so far: also after an error, which it returns, for those before it are on their
 * way. */
enum tutti_status pg_stage_mark(struct tutti_pg *pg, struct pg_staging *staging, enum cuda_way way,
                                enum tutti_status status);
/* Until they have ended. Returns TIMEOUT, and what ends the group's communicator. */
enum tutti_status pg_stage_await(struct tutti_pg *pg, const struct pg_staging *staging,
                                 enum cuda_way way, const uint64_t *marks, int64_t deadline);
/* The operation, amid all ranks: `inputs` is the most of any rank. When it returns OK the last
 * results are on their way back. */
enum tutti_status pg_stage_run(struct tutti_pg *pg, struct pg_op *op, uint32_t inputs);
/* Whether a stream that waited for the operation has gone on without it. */
bool pg_stage_forsaken(const struct pg_op *op);
/* Whether all copies have ended. */
bool pg_stage_landed(const struct tutti_pg *pg, const struct pg_op *op);
/* Gives up the memory; waits for copies that still touch it, a second at most. */
void pg_stage_end(struct tutti_pg *pg, struct pg_op *op);

#endif
