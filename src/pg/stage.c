/* SPDX-License-Identifier: MIT */
/*
 * CUDA tensors through the host. The thread begins once it sees that the caller's stream has come
 * to the call: small tensors are copied in at once, others when all ranks have come. Then piece by
 * piece:
 *
 *     copy in k + 1 and k + 2, reduce k among the hosts, copy out k - 1
 *
 * all at the same time, for the two ways of the bus have a stream each, and where there are cores
 * to spare another thread, the courier, makes the calls that have the copies done. Pieces have the
 * same bounds on all ranks. The block has room for PIECES of them; where the tensors came ahead,
 * for all.
 *
 * The hosts reduce in the block, or the bounce buffer, a piece at a time, what run.c would reduce
 * in the tensors.
 */
#include "pg/stage.h"

#include "cpu/group.h"
#include "cpu/team.h"
#include "deadline.h"
#include "error.h"
#include "log.h"
#include "order.h"
#include "pg/pg.h"
#include "point.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    AHEAD_BYTES = 64 << 10, /* of all tensors: up to here they are copied in ahead */
    PIECES = PG_SLOTS,      /* of each tensor that a block has room for, or the bounce buffer */
    PIECES_OUT = 2,         /* of them on their way back while the next one is copied in */
    PIECE_BYTES = PG_SLOT_BYTES,
    PIECE_LEAST = 64 << 10, /* where ranks have many inputs */
    ALIGNMENT = 256,
    NAP_FIRST_NS = 1000, /* of a thread that awaits a copy, */
    NAP_MOST_NS = 50000, /* twice as long each time */
    DRAIN_MS = 1000,
    TEXT_BYTES = 256,
};

/* To have a piece copied in, if it brings one, and one out. */
struct errand {
    struct pipe *pipe;
    size_t in, out;
    bool brings;
};

/* An operation under way. */
struct pipe {
    struct tutti_pg *pg;
    struct pg_op *op;
    struct pg_staging *staging;
    uint32_t inputs;
    size_t width;             /* of an element */
    size_t piece;             /* elements */
    size_t count;             /* of pieces */
    size_t room;              /* pieces of a tensor that the block has room for */
    size_t area;              /* bytes of the block that a tensor has */
    struct pg_bounce *bounce; /* NULL: it goes through a block */
    uint64_t first;           /* slot of the first piece */
    int64_t deadline;
    uint64_t marks[CUDA_WAYS][PIECES][PG_STAGE_DEVICES];
    struct cpu_team *courier; /* NULL: there is none */
    struct errand errand;     /* the last one */
    enum tutti_status sent;   /* how it went */
    char why[TEXT_BYTES];     /* it failed: errors are a thread's own */
};

/* ---- submission ------------------------------------------------------------------------------ */

static enum tutti_status devices_note(struct pg_staging *staging, const struct pg_op *op)
{
    const int count = op->sparse ? op->sparse->count : op->work.tensor_count;
    for (int i = 0; i < count; i++) {
        int device = op->sparse ? op->sparse->tensors[i].device_index : op->tensors[i].device_index;
        int known = 0;
        while (known < staging->device_count && staging->devices[known] != device)
            known++;
        if (known == PG_STAGE_DEVICES)
            return error_set(TUTTI_ERR_INVALID, "tensors of more than %d devices",
                             PG_STAGE_DEVICES);
        staging->devices[known] = device;
        staging->device_count += known == staging->device_count;
    }
    return TUTTI_OK;
}

/* Whether this rank's tensors are where the group's devices take them. */
static bool is_direct(const struct tutti_pg *pg, const struct pg_op *op)
{
    return pg->direct && op->work.tensor_count == 1 && op->tensors[0].device_index == pg->device;
}

enum tutti_status pg_stage_begin(const struct tutti_pg *pg, struct pg_op *op, tutti_stream_t stream)
{
    struct pg_staging *staging = calloc(1, sizeof *staging);
    if (!staging)
        return error_errno("calloc of an operation's staging");
    op->staging = staging;
    staging->stage = pg->stage;
    if (!is_direct(pg, op))
        op->operation.inputs |= LAYOUT_APART;
    enum tutti_status status = devices_note(staging, op);
    return status == TUTTI_OK ? cuda_ticket_take(pg->stage, staging->devices, staging->device_count,
                                                 stream, &staging->ticket)
                              : status;
}

enum tutti_status pg_stage_wait(struct pg_op *op, tutti_stream_t stream, bool *full)
{
    /* The thread opens the gate, however the operation ends; this is longer than that may take. */
    enum { LEAST_MS = 3600 * 1000, TIMES = 100 };
    struct cuda_patience patience = {.all_ms = -1, .call_ms = op->timeout_ms};
    if (op->timeout_ms >= 0 && op->timeout_ms <= INT64_MAX / TIMES - LEAST_MS)
        patience.all_ms = LEAST_MS + TIMES * op->timeout_ms;
    return cuda_ticket_wait(op->staging->ticket, stream, &patience, full);
}

void pg_stage_open(const struct pg_op *op)
{
    cuda_ticket_open(op->staging->ticket);
}

void pg_stage_free(struct pg_staging *staging, bool child)
{
    if (staging && !child) {
        cuda_result_give(staging->stage, staging->result);
        cuda_ticket_give(staging->ticket);
    }
    free(staging);
}

bool pg_stage_come(const struct pg_op *op)
{
    return cuda_ticket_come(op->staging->ticket);
}

/* ---- copies ---------------------------------------------------------------------------------- */

enum tutti_status pg_stage_mark(struct tutti_pg *pg, struct pg_staging *staging, enum cuda_way way,
                                enum tutti_status status)
{
    for (int d = 0; d < staging->device_count; d++) {
        enum tutti_status marked =
            cuda_stage_mark(pg->stage, staging->devices[d], way, &staging->marks[way][d]);
        if (status == TUTTI_OK)
            status = marked;
    }
    return status;
}

static bool slot_passed(const struct tutti_pg *pg, const struct pg_slot *slot)
{
    return !slot->mark || cuda_stage_passed(pg->stage, slot->device, CUDA_WAY_OUT, slot->mark);
}

static bool marks_passed(const struct tutti_pg *pg, const struct pg_staging *staging,
                         enum cuda_way way, const uint64_t *marks)
{
    for (int d = 0; d < staging->device_count; d++)
        if (!cuda_stage_passed(pg->stage, staging->devices[d], way, marks[d]))
            return false;
    return true;
}

static size_t area_of(size_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

void pg_stage_ahead(struct tutti_pg *pg, struct pg_op *op)
{
    struct pg_staging *staging = op->staging;
    size_t bytes = op->count * tutti_dtype_size(op->dtype), area = area_of(bytes);
    int count = op->work.tensor_count;
    if (op->sparse) {
        pg_sparse_bring(pg, op);
        return;
    }
    if (!bytes || bytes > AHEAD_BYTES / (size_t)count || is_direct(pg, op))
        return;
    enum tutti_status status = cuda_block_take(pg->stage, area * (size_t)count, &staging->block);
    for (int i = 0; i < count && status == TUTTI_OK; i++)
        status =
            cuda_stage_copy(pg->stage, op->tensors[i].device_index, CUDA_WAY_IN,
                            staging->block->memory + area * (size_t)i, op->tensors[i].data, bytes);
    staging->ahead = true;
    staging->status = pg_stage_mark(pg, staging, CUDA_WAY_IN, status);
}

/* For copies. */
static void *piece_at(const struct pipe *pipe, int tensor, size_t piece)
{
    if (pipe->bounce)
        return pg_bounce_pinned(pipe->bounce, pipe->first + piece);
    return pipe->staging->block->memory + pipe->area * (size_t)tensor +
           piece % pipe->room * pipe->piece * pipe->width;
}

static size_t piece_count(const struct pipe *pipe, size_t piece)
{
    size_t left = pipe->op->count - piece * pipe->piece;
    return left < pipe->piece ? left : pipe->piece;
}

static enum tutti_status piece_copy(struct pipe *pipe, enum cuda_way way, size_t piece)
{
    struct pg_staging *staging = pipe->staging;
    enum tutti_status status = TUTTI_OK;
    for (int i = 0; i < pipe->op->work.tensor_count && status == TUTTI_OK; i++) {
        const struct tutti_tensor *tensor = &pipe->op->tensors[i];
        void *host = piece_at(pipe, i, piece);
        void *device = (char *)tensor->data + piece * pipe->piece * pipe->width;
        bool in = way == CUDA_WAY_IN;
        status = cuda_stage_copy(pipe->pg->stage, tensor->device_index, way, in ? host : device,
                                 in ? device : host, piece_count(pipe, piece) * pipe->width);
    }
    status = pg_stage_mark(pipe->pg, staging, way, status);
    if (pipe->bounce && way == CUDA_WAY_OUT)
        pipe->bounce->slots[(pipe->first + piece) % PG_SLOTS] =
            (struct pg_slot){staging->devices[0], staging->marks[way][0]};
    memcpy(pipe->marks[way][piece % PIECES], staging->marks[way], sizeof staging->marks[way]);
    return status;
}

/* A copy, or several, that the thread waits for. */
struct copies {
    const struct pg_staging *staging;
    enum cuda_way way;
    const uint64_t *marks;
    const struct pg_slot *slot; /* or NULL */
};

static bool copies_passed(const struct tutti_pg *pg, const struct copies *copies)
{
    return copies->slot ? slot_passed(pg, copies->slot)
                        : marks_passed(pg, copies->staging, copies->way, copies->marks);
}

static enum tutti_status copies_await(struct tutti_pg *pg, const struct copies *copies,
                                      int64_t deadline)
{
    struct cpu_group *host = &pg->comm->cpu;
    struct tutti_fault fault;
    for (int polls = host->spin; polls > 0; polls--) {
        if (copies_passed(pg, copies))
            return TUTTI_OK;
        order_pause();
    }
    for (int64_t ns = NAP_FIRST_NS; !copies_passed(pg, copies);
         ns = ns < NAP_MOST_NS / 2 ? 2 * ns : NAP_MOST_NS) {
        if (cpu_group_look(host, host->rank, false, &fault))
            return cpu_group_fail(host, &fault);
        if (deadline_passed(deadline))
            return error_set(TUTTI_ERR_TIMEOUT, "a copy between device and host did not end");
        nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
    }
    return TUTTI_OK;
}

enum tutti_status pg_stage_await(struct tutti_pg *pg, const struct pg_staging *staging,
                                 enum cuda_way way, const uint64_t *marks, int64_t deadline)
{
    return copies_await(pg, &(struct copies){staging, way, marks, NULL}, deadline);
}

/* Until the piece has been copied. */
static enum tutti_status piece_await(struct pipe *pipe, enum cuda_way way, size_t piece)
{
    return pg_stage_await(pipe->pg, pipe->staging, way, pipe->marks[way][piece % PIECES],
                          pipe->deadline);
}

static enum tutti_status slot_await(struct pipe *pipe, uint64_t slot)
{
    const struct copies copies = {.slot = &pipe->bounce->slots[slot % PG_SLOTS]};
    return copies_await(pipe->pg, &copies, pipe->deadline);
}

/* ---- the operation --------------------------------------------------------------------------- */

/* Elements of a piece, the same on all ranks. */
static size_t piece_elements(const struct pg_op *op, uint32_t inputs)
{
    size_t bytes = PIECE_BYTES;
    for (; inputs > 1; inputs = (inputs + 1) / 2)
        bytes = bytes / 2 > PIECE_LEAST ? bytes / 2 : PIECE_LEAST;
    return bytes / tutti_dtype_size(op->dtype);
}

/* Until what was in the piece's place is out. */
static enum tutti_status place_await(struct pipe *pipe, size_t piece)
{
    if (pipe->bounce)
        return slot_await(pipe, pipe->first + piece);
    return piece >= pipe->room ? piece_await(pipe, CUDA_WAY_OUT, piece - pipe->room) : TUTTI_OK;
}

static void errand_run(const void *context, int i)
{
    const struct errand *errand = context;
    struct pipe *pipe = errand->pipe;
    (void)i;
    /* First the one for which the hosts wait sooner. */
    pipe->sent = errand->brings ? piece_copy(pipe, CUDA_WAY_IN, errand->in) : TUTTI_OK;
    if (pipe->sent == TUTTI_OK)
        pipe->sent = piece_copy(pipe, CUDA_WAY_OUT, errand->out);
    if (pipe->sent != TUTTI_OK)
        snprintf(pipe->why, sizeof pipe->why, "%s", tutti_last_error());
}

/* Until the last errand has been run. */
static enum tutti_status errand_await(struct pipe *pipe)
{
    if (pipe->courier)
        cpu_team_await(pipe->courier);
    return pipe->sent == TUTTI_OK ? TUTTI_OK : error_set(pipe->sent, "%s", pipe->why);
}

/* Sends a piece back, and for the one that is to follow those that are here, or on their way. */
static enum tutti_status piece_send(struct pipe *pipe, size_t piece)
{
    const size_t next = piece + pipe->room - PIECES_OUT;
    const bool brings = piece >= PIECES_OUT && next < pipe->count;
    enum tutti_status status = errand_await(pipe);
    if (status == TUTTI_OK && brings)
        status = place_await(pipe, next);
    if (status != TUTTI_OK)
        return status;
    pipe->errand = (struct errand){.pipe = pipe, .out = piece, .in = next, .brings = brings};
    if (pipe->courier)
        cpu_team_begin(pipe->courier, errand_run, &pipe->errand);
    else
        errand_run(&pipe->errand, 0);
    return TUTTI_OK;
}

/* Threads that help, once there is something to help with; none if there are none to be had. They
 * wake up while the first piece is on its way. */
static void team_gather(struct tutti_pg *pg)
{
    if (pg->threads > 1 && !pg->comm->cpu.team)
        pg->comm->cpu.team = cpu_team_create(pg->threads);
    if (pg->threads > 1 && !pg->courier)
        pg->courier = cpu_team_create(2);
    if (pg->comm->cpu.team)
        cpu_team_rouse(pg->comm->cpu.team);
    else
        pg->threads = 1;
    if (pg->courier)
        cpu_team_rouse(pg->courier);
}

/* Whether the pieces go through memory that all ranks share: the same answer on all of them. */
static enum tutti_status bounce_try(struct pipe *pipe)
{
    struct tutti_pg *pg = pipe->pg;
    const struct cpu_group *host = &pg->comm->cpu;
    if (pipe->inputs > 1 || host->size == 1 || host->sparse)
        return TUTTI_OK;
    team_gather(pg);
    if (host->one_process) /* where ranks reach each other's blocks */
        return TUTTI_OK;
    enum tutti_status status = pg_bounce_open(pg, pipe->op->timeout_ms);
    if (status != TUTTI_OK || !pg->bounce.ready)
        return status;
    pipe->bounce = &pg->bounce;
    pipe->first = pg->bounce.taken;
    pg->bounce.taken += pipe->count;
    return TUTTI_OK;
}

static enum tutti_status room_take(struct pipe *pipe)
{
    const struct pg_op *op = pipe->op;
    pipe->room = pipe->count < PIECES ? pipe->count : PIECES;
    pipe->area = pipe->room * pipe->piece * pipe->width;
    enum tutti_status status = bounce_try(pipe);
    if (status != TUTTI_OK || pipe->bounce)
        return status;
    return cuda_block_take(pipe->pg->stage, pipe->area * (size_t)op->work.tensor_count,
                           &pipe->staging->block);
}

static enum tutti_status pipe_open(struct pipe *pipe)
{
    struct pg_staging *staging = pipe->staging;
    const struct pg_op *op = pipe->op;
    pipe->width = tutti_dtype_size(op->dtype);
    pipe->piece = piece_elements(op, pipe->inputs);
    pipe->count = (op->count + pipe->piece - 1) / pipe->piece;
    pipe->deadline = deadline_after(op->timeout_ms);
    if (staging->ahead) {
        pipe->room = pipe->count;
        pipe->area = area_of(op->count * pipe->width);
        for (int p = 0; p < PIECES; p++)
            memcpy(pipe->marks[CUDA_WAY_IN][p], staging->marks[CUDA_WAY_IN],
                   sizeof staging->marks[CUDA_WAY_IN]);
        return staging->status;
    }
    enum tutti_status status = room_take(pipe);
    for (size_t p = 0; p < pipe->room && status == TUTTI_OK; p++) {
        status = place_await(pipe, p);
        if (status == TUTTI_OK)
            status = piece_copy(pipe, CUDA_WAY_IN, p);
    }
    if (pipe->count > 1)
        pipe->courier = pipe->pg->courier;
    return status;
}

static enum tutti_status piece_reduce(struct pipe *pipe, size_t piece)
{
    struct pg_part part = {.count = piece_count(pipe, piece)};
    for (int i = 0; i < pipe->op->work.tensor_count; i++)
        part.data[i] = pipe->bounce ? pg_bounce_shared(pipe->bounce, pipe->first + piece)
                                    : piece_at(pipe, i, piece);
    return pg_run_part(pipe->pg, pipe->op, &part, pipe->inputs);
}

static enum tutti_status pipe_run(struct pipe *pipe)
{
    enum tutti_status status = pipe_open(pipe);
    for (size_t piece = 0; piece < pipe->count && status == TUTTI_OK; piece++) {
        status = piece_await(pipe, CUDA_WAY_IN, piece);
        if (status == TUTTI_OK)
            status = piece_reduce(pipe, piece);
        if (status == TUTTI_OK)
            status = piece_send(pipe, piece);
    }
    enum tutti_status sent = errand_await(pipe);
    return status == TUTTI_OK ? sent : status;
}

/* By the devices' own algorithms. All ranks launch in the order of the verdicts. */
static enum tutti_status direct_run(struct tutti_pg *pg, struct pg_op *op)
{
    const struct tutti_tensor *tensor = &op->tensors[0];
    tutti_op_t reduction = op->op.kind == TUTTI_OP_PREMUL_SUM ? (tutti_op_t)(uintptr_t)&op->op
                                                              : (tutti_op_t)(uintptr_t)op->op.kind;
    tutti_stream_t stream = cuda_stage_stream(pg->stage, pg->device, CUDA_WAY_ACROSS);
    op->staging->direct = true;
    POINT("group.decided");
    cuda_stage_call_begin(pg->stage);
    enum tutti_status status = comm_all_reduce_on(pg->direct, tensor->data, op->count, op->dtype,
                                                  reduction, op->timeout_ms, stream);
    cuda_stage_call_end(pg->stage);
    POINT("group.launched");
    return pg_stage_mark(pg, op->staging, CUDA_WAY_ACROSS, status);
}

enum tutti_status pg_stage_run(struct tutti_pg *pg, struct pg_op *op, uint32_t inputs)
{
    struct pipe pipe = {
        .pg = pg, .op = op, .staging = op->staging, .inputs = inputs & ~(uint32_t)LAYOUT_APART};
    struct cpu_group *host = &pg->comm->cpu;
    const bool direct = pg->direct && inputs == 1;
    enum tutti_status status = direct ? direct_run(pg, op) : pipe_run(&pipe);
    if (status == TUTTI_OK || tutti_comm_status(pg->comm, NULL) != TUTTI_OK)
        return status;
    /* The peers are amid it, and wait for us. */
    if (direct)
        tutti_comm_abort(pg->direct);
    log_write(TUTTI_LOG_WARN, host->rank, "%s of a process group: %s", op->title,
              tutti_last_error());
    const struct tutti_fault fault = {
        .struct_size = sizeof fault,
        .status = status,
        .rank = host->rank,
        .peer = host->rank,
        .sequence = order_load_relaxed_u64(&host->sequence),
    };
    return cpu_group_fail(host, &fault);
}

bool pg_stage_forsaken(const struct pg_op *op)
{
    return cuda_ticket_forsaken(op->staging->ticket);
}

bool pg_stage_landed(const struct tutti_pg *pg, const struct pg_op *op)
{
    for (int way = 0; way < CUDA_WAYS; way++)
        if (!marks_passed(pg, op->staging, (enum cuda_way)way, op->staging->marks[way]))
            return false;
    return true;
}

void pg_stage_end(struct tutti_pg *pg, struct pg_op *op)
{
    struct pg_staging *staging = op->staging;
    int64_t deadline = deadline_after(DRAIN_MS);
    while (!pg_stage_landed(pg, op) && !deadline_passed(deadline))
        nanosleep(&(struct timespec){.tv_nsec = NAP_MOST_NS}, NULL);
    if (pg_stage_landed(pg, op))
        cuda_block_give(pg->stage, staging->block);
    else if (staging->block)
        cuda_block_lose(pg->stage, staging->block);
    staging->block = NULL;
}
