/* SPDX-License-Identifier: MIT */
/*
 * CUDA tensors through the host. The group's thread begins once the caller's stream has reached the
 * point of the submission: the stream writes a word then (cuda/staging/stream_fence.c). The thread
 * copies small tensors to the host at once, others when all ranks have announced the operation. An
 * operation is cut into pieces, at the same bounds on all ranks. Three steps run at the same time:
 *
 *     copy in pieces k + 1 and k + 2, reduce piece k on the hosts, copy out piece k - 1
 *
 * Each direction of the bus has a stream of the group's own, which never waits for a stream of the
 * caller. So two streams serve any number of operations, and an operation that waits delays no
 * other one. An operation that ends before its input is ready has touched nothing. If there are
 * idle cores, another thread, the copy thread, makes the CUDA calls that start the copies. The
 * pinned block has room for PIECES pieces, or for all if the tensors were copied early.
 *
 * The hosts reduce each piece of an all-reduce in the block, or in the bounce buffer, by
 * pg_part_reduce(). If each rank has one input, all ranks map the bounce buffer, which saves two of
 * three copies. If one rank cannot map it, no rank uses it. It is four pieces long, since a longer
 * one exceeds a core's TLB.
 *
 * Any other collective runs pair by pair, in a block. Both operands share the memory of the block,
 * so the collective runs in place there.
 */
#include "pg/staging.h"

#include "base/deadline.h"
#include "base/error.h"
#include "base/log.h"
#include "base/point.h"
#include "base/wait.h"
#include "cpu/group.h"
#include "pg/pg.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    EARLY_BYTES =
        64 << 10,      /* tensors of up to this many bytes together are copied before the verdict */
    PIECES = PG_SLOTS, /* pieces of each tensor for which a block, or the bounce buffer, has room */
    PIECES_OUT = 2,    /* pieces being copied out while the next one is copied in */
    PIECE_BYTES = PG_SLOT_BYTES,
    PIECE_LEAST = 64 << 10, /* least size of a piece if ranks have many inputs */
    DRAIN_MS = 1000,
    LEAVE_MS = 100,
    BOUNCE_BYTES = PG_SLOTS * PG_SLOT_BYTES,
    TEXT_BYTES = 256,
};

/* A task of the copy thread: start copying piece `out` to the device and, if has_in, piece `in` to
 * the host. */
struct copy_task {
    struct pipe *pipe;
    size_t in, out;
    bool has_in;
};

/* An operation that runs. */
struct pipe {
    struct tutti_pg *pg;
    struct pg_op *op;
    struct pg_staging *staging;
    int pair;
    size_t elements;    /* of a block; of an all-to-all of lists, of the longest one */
    int places;         /* blocks of a piece in host memory */
    size_t width;       /* bytes of an element */
    size_t piece;       /* elements of a piece */
    size_t count;       /* number of pieces */
    size_t capacity;    /* pieces for which the block has room */
    size_t place_bytes; /* bytes of the block for each place of a piece; 0: as many as needed */
    struct pg_bounce *bounce; /* NULL: the pieces go through a block */
    uint64_t first_slot;      /* the slot of the first piece */
    int64_t deadline;
    uint64_t marks[CUDA_WAYS][PIECES][PG_STAGING_DEVICES];
    struct cpu_team *copy_thread;  /* NULL: the group's thread starts the copies */
    struct copy_task copy_task;    /* the last one */
    enum tutti_status copy_status; /* of the last task */
    char copy_error[TEXT_BYTES];   /* its error text, since the last error belongs to one thread */
};

/* ---- submission ------------------------------------------------------------------------------ */

/* The bytes of a tensor in a block, with a pad. */
static size_t aligned(size_t bytes)
{
    enum { ALIGNMENT = 256 };
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static enum tutti_status devices_collect(struct pg_staging *staging, const struct pg_op *op)
{
    const int count = op->sparse ? op->sparse->count : op->work.tensor_count;
    for (int i = 0; i < count; i++) {
        int device = op->sparse ? op->sparse->tensors[i].device_index : op->tensors[i].device_index;
        int known = 0;
        while (known < staging->device_count && staging->devices[known] != device)
            known++;
        if (known == PG_STAGING_DEVICES)
            return error_set(TUTTI_ERR_INVALID, "tensors of more than %d devices",
                             PG_STAGING_DEVICES);
        staging->devices[known] = device;
        staging->device_count += known == staging->device_count;
    }
    return TUTTI_OK;
}

static bool is_all_reduce(const struct pg_op *op)
{
    return op->work.collective == TUTTI_COLLECTIVE_ALL_REDUCE;
}

/* Whether the group's devices can reduce this rank's tensors directly. */
static bool is_direct(const struct tutti_pg *pg, const struct pg_op *op)
{
    return pg->direct && is_all_reduce(op) && op->work.tensor_count == 1 &&
           op->tensors[0].device_index == pg->device;
}

enum tutti_status pg_staging_begin(const struct tutti_pg *pg, struct pg_op *op,
                                   tutti_stream_t stream)
{
    struct pg_staging *staging = calloc(1, sizeof *staging);
    if (!staging)
        return error_errno("calloc of an operation's staging");
    op->staging = staging;
    staging->stage = pg->stage;
    op->direct = is_direct(pg, op);
    enum tutti_status status = devices_collect(staging, op);
    return status == TUTTI_OK ? cuda_fence_take(pg->stage, staging->devices, staging->device_count,
                                                stream, &staging->fence)
                              : status;
}

enum tutti_status pg_staging_wait(struct pg_op *op, tutti_stream_t stream, bool *full)
{
    /* The group's thread releases the streams however the operation ends. This limit is longer than
     * that may take. */
    enum { LEAST_MS = 3600 * 1000, TIMES = 100 };
    struct cuda_wait_limits limits = {.all_ms = -1, .call_ms = op->timeout_ms};
    if (op->timeout_ms >= 0 && op->timeout_ms <= INT64_MAX / TIMES - LEAST_MS)
        limits.all_ms = LEAST_MS + TIMES * op->timeout_ms;
    return cuda_fence_wait(op->staging->fence, stream, &limits, full);
}

void pg_staging_release_streams(const struct pg_op *op)
{
    cuda_fence_open(op->staging->fence);
}

void pg_staging_free(struct pg_staging *staging)
{
    if (staging) {
        cuda_result_give(staging->stage, staging->result);
        cuda_fence_give(staging->fence);
    }
    free(staging);
}

/* ---- copies ---------------------------------------------------------------------------------- */

enum tutti_status pg_staging_mark(struct tutti_pg *pg, struct pg_staging *staging,
                                  enum cuda_way way, enum tutti_status status)
{
    for (int d = 0; d < staging->device_count; d++) {
        enum tutti_status marked =
            cuda_stage_mark(pg->stage, staging->devices[d], way, &staging->marks[way][d]);
        if (status == TUTTI_OK)
            status = marked;
    }
    return status;
}

static bool slot_copied(const struct tutti_pg *pg, const struct pg_slot *slot)
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

bool pg_staging_input_ready(const struct tutti_pg *pg, const struct pg_op *op)
{
    return cuda_fence_come(op->staging->fence) &&
           (!pg_is_message(op) ||
            marks_passed(pg, op->staging, CUDA_WAY_IN, op->staging->marks[CUDA_WAY_IN]));
}

void pg_staging_copy_early(struct tutti_pg *pg, struct pg_op *op)
{
    struct pg_staging *staging = op->staging;
    size_t bytes = op->args.count * tutti_dtype_size(op->args.dtype), tensor_bytes = aligned(bytes);
    int count = op->work.tensor_count;
    const bool early = pg_is_message(op) ||
                       (is_all_reduce(op) && bytes <= EARLY_BYTES / (size_t)count && !op->direct);
    if (!early || !bytes || staging->copied_early)
        return;
    enum tutti_status status =
        cuda_block_take(pg->stage, tensor_bytes * (size_t)count, &staging->block);
    if (op->work.collective == TUTTI_COLLECTIVE_RECV)
        count = 0;
    for (int i = 0; i < count && status == TUTTI_OK; i++)
        status = cuda_stage_copy(pg->stage, op->tensors[i].device_index, CUDA_WAY_IN,
                                 staging->block->memory + tensor_bytes * (size_t)i,
                                 op->tensors[i].data, bytes);
    staging->copied_early = true;
    staging->status = pg_staging_mark(pg, staging, CUDA_WAY_IN, status);
}

void *pg_staging_message_data(const struct pg_op *op)
{
    return op->staging && op->staging->block ? op->staging->block->memory : op->tensors[0].data;
}

enum tutti_status pg_staging_message_out(struct tutti_pg *pg, struct pg_op *op)
{
    const struct tutti_tensor *tensor = &op->tensors[0];
    const size_t bytes = op->args.count * tutti_dtype_size(op->args.dtype);
    enum tutti_status status = TUTTI_OK;
    if (bytes)
        status = cuda_stage_copy(pg->stage, tensor->device_index, CUDA_WAY_OUT, tensor->data,
                                 op->staging->block->memory, bytes);
    return pg_staging_mark(pg, op->staging, CUDA_WAY_OUT, status);
}

static size_t slot_offset(const struct pipe *pipe, size_t piece)
{
    return (pipe->first_slot + piece) % PG_SLOTS * PG_SLOT_BYTES;
}

static size_t piece_count(const struct pipe *pipe, size_t piece)
{
    size_t left = pipe->elements - piece * pipe->piece;
    return left < pipe->piece ? left : pipe->piece;
}

/* The address of a place of a piece, for copies. */
static void *piece_at(const struct pipe *pipe, int place, size_t piece)
{
    const size_t bytes =
        pipe->place_bytes ? pipe->place_bytes : piece_count(pipe, piece) * pipe->width;
    if (pipe->bounce)
        return pipe->bounce->block->memory + slot_offset(pipe, piece);
    return pipe->staging->block->memory +
           piece % pipe->capacity * (size_t)pipe->places *
               (pipe->place_bytes ? pipe->place_bytes : pipe->piece * pipe->width) +
           (size_t)place * bytes;
}

/* The place of a block of an operand. A block that is alone in its operand has the place of this
 * rank's block in the other one. */
static int place_of(const struct pipe *pipe, enum cuda_way way, int block)
{
    const struct coll *coll = &coll_rows[pipe->op->work.collective];
    if (is_all_reduce(pipe->op) || (way == CUDA_WAY_IN ? coll->send_all : coll->recv_all))
        return block;
    return coll->send_all || coll->recv_all ? pipe->pg->comm->rank : 0;
}

static enum tutti_status block_copy(struct pipe *pipe, enum cuda_way way, size_t piece, int block)
{
    const struct pg_op *op = pipe->op;
    const struct pg_operand *operand = way == CUDA_WAY_IN ? &op->send : &op->recv;
    const int pair = is_all_reduce(op) ? block : pipe->pair, index = is_all_reduce(op) ? 0 : block;
    const struct tutti_tensor *tensor =
        &operand->tensors[pair * operand->each + index / operand->blocks];
    const size_t first = piece * pipe->piece, count = piece_count(pipe, piece);
    size_t elements;
    void *host = piece_at(pipe, place_of(pipe, way, block), piece);
    void *device = (char *)pg_block(op, operand, pair, index, &elements) + first * pipe->width;
    const size_t left = elements > first ? elements - first : 0;
    const size_t bytes = (left < count ? left : count) * pipe->width;
    const bool in = way == CUDA_WAY_IN;
    return bytes ? cuda_stage_copy(pipe->pg->stage, tensor->device_index, way, in ? host : device,
                                   in ? device : host, bytes)
                 : TUTTI_OK;
}

static enum tutti_status piece_copy(struct pipe *pipe, enum cuda_way way, size_t piece)
{
    struct pg_staging *staging = pipe->staging;
    const struct pg_operand *operand = way == CUDA_WAY_IN ? &pipe->op->send : &pipe->op->recv;
    const int blocks = is_all_reduce(pipe->op) ? operand->count
                       : operand->count        ? operand->each * operand->blocks
                                               : 0;
    enum tutti_status status = TUTTI_OK;
    for (int b = 0; b < blocks && status == TUTTI_OK; b++)
        status = block_copy(pipe, way, piece, b);
    status = pg_staging_mark(pipe->pg, staging, way, status);
    if (pipe->bounce && way == CUDA_WAY_OUT)
        pipe->bounce->slots[(pipe->first_slot + piece) % PG_SLOTS] =
            (struct pg_slot){staging->devices[0], staging->marks[way][0]};
    memcpy(pipe->marks[way][piece % PIECES], staging->marks[way], sizeof staging->marks[way]);
    return status;
}

/* One or more copies for which the thread waits. */
struct copies {
    struct tutti_pg *pg;
    const struct pg_staging *staging;
    enum cuda_way way;
    const uint64_t *marks;
    const struct pg_slot *slot; /* or NULL */
    struct tutti_fault fault;
};

static bool copies_done(void *context)
{
    const struct copies *copies = context;
    return copies->slot ? slot_copied(copies->pg, copies->slot)
                        : marks_passed(copies->pg, copies->staging, copies->way, copies->marks);
}

static bool comm_has_failed(void *context, enum wait_depth depth)
{
    struct copies *copies = context;
    struct tutti_comm *comm = copies->pg->comm;
    (void)depth;
    return cpu_group_check_peers(comm->host, comm->rank, false, &copies->fault);
}

static enum tutti_status copies_await(struct copies *copies, int64_t deadline)
{
    struct cpu_group *host = copies->pg->comm->host;
    const struct waiter waiter = {.poll = copies_done,
                                  .look = comm_has_failed,
                                  .context = copies,
                                  .deadline = &deadline,
                                  .nap_ns = WAIT_NAP_NS};
    if (wait_spin(copies_done, copies, 0, cpu_group_ranks(host)->polls))
        return TUTTI_OK;
    const enum wait_end end = waiter_run(&waiter);
    if (end == WAIT_TROUBLE)
        return cpu_group_fail(host, &copies->fault);
    return end == WAIT_DONE
               ? TUTTI_OK
               : error_set(TUTTI_ERR_TIMEOUT, "a copy between device and host did not end");
}

enum tutti_status pg_staging_await(struct tutti_pg *pg, const struct pg_staging *staging,
                                   enum cuda_way way, const uint64_t *marks, int64_t deadline)
{
    struct copies copies = {.pg = pg, .staging = staging, .way = way, .marks = marks};
    return copies_await(&copies, deadline);
}

/* Wait until the piece has been copied. */
static enum tutti_status piece_await(struct pipe *pipe, enum cuda_way way, size_t piece)
{
    return pg_staging_await(pipe->pg, pipe->staging, way, pipe->marks[way][piece % PIECES],
                            pipe->deadline);
}

static enum tutti_status slot_await(struct pipe *pipe, uint64_t slot)
{
    struct copies copies = {.pg = pipe->pg, .slot = &pipe->bounce->slots[slot % PG_SLOTS]};
    return copies_await(&copies, pipe->deadline);
}

/* ---- the bounce buffer ----------------------------------------------------------------------- */

static bool is_untouched(void *context)
{
    return !direct_is_touched(context);
}

/* Whether no peer uses the buffer any more. After a failure a peer may still be inside an
 * operation. */
static bool is_unused_by_peers(const struct tutti_pg *pg)
{
    return tutti_comm_status(pg->comm, NULL) == TUTTI_OK ||
           wait_napping(is_untouched, pg->comm->host, deadline_after(LEAVE_MS), WAIT_NAP_NS);
}

void pg_bounce_close(struct tutti_pg *pg)
{
    struct pg_bounce *bounce = &pg->bounce;
    region_remove(&bounce->region);
    if (bounce->block && is_unused_by_peers(pg))
        cuda_block_give(pg->stage, bounce->block);
    else if (bounce->block)
        cuda_block_lose(pg->stage, bounce->block);
    pg_share_destroy(bounce->share);
}

/* ---- the operation --------------------------------------------------------------------------- */

/* Return the elements of a piece. The result is the same on all ranks. */
static size_t piece_elements(const struct pipe *pipe)
{
    const struct pg_op *op = pipe->op;
    size_t bytes = PIECE_BYTES;
    for (int inputs = is_all_reduce(op) ? op->inputs : pipe->places; inputs > 1;
         inputs = (inputs + 1) / 2)
        bytes = bytes / 2 > PIECE_LEAST ? bytes / 2 : PIECE_LEAST;
    return bytes / tutti_dtype_size(op->args.dtype);
}

/* Wait until the memory for a piece is free: its former piece has been copied to the device. */
static enum tutti_status free_slot_await(struct pipe *pipe, size_t piece)
{
    if (pipe->bounce)
        return slot_await(pipe, pipe->first_slot + piece);
    return piece >= pipe->capacity ? piece_await(pipe, CUDA_WAY_OUT, piece - pipe->capacity)
                                   : TUTTI_OK;
}

static void copy_task_run(const void *context, int i)
{
    const struct copy_task *task = context;
    struct pipe *pipe = task->pipe;
    (void)i;
    /* The copy in comes first: the hosts wait for it sooner. */
    pipe->copy_status = task->has_in ? piece_copy(pipe, CUDA_WAY_IN, task->in) : TUTTI_OK;
    if (pipe->copy_status == TUTTI_OK)
        pipe->copy_status = piece_copy(pipe, CUDA_WAY_OUT, task->out);
    if (pipe->copy_status != TUTTI_OK)
        snprintf(pipe->copy_error, sizeof pipe->copy_error, "%s", tutti_last_error());
}

/* Wait until the last copy task has run. */
static enum tutti_status copy_task_await(struct pipe *pipe)
{
    if (pipe->copy_thread)
        cpu_team_await(pipe->copy_thread);
    return pipe->copy_status == TUTTI_OK ? TUTTI_OK
                                         : error_set(pipe->copy_status, "%s", pipe->copy_error);
}

/* Start copying a piece to the device, and a later piece to the host, which takes the memory of an
 * earlier one. */
static enum tutti_status piece_copy_back(struct pipe *pipe, size_t piece)
{
    const size_t next = piece + pipe->capacity - PIECES_OUT;
    const bool has_in = piece >= PIECES_OUT && next < pipe->count;
    enum tutti_status status = copy_task_await(pipe);
    if (status == TUTTI_OK && has_in)
        status = free_slot_await(pipe, next);
    if (status != TUTTI_OK)
        return status;
    pipe->copy_task = (struct copy_task){.pipe = pipe, .out = piece, .in = next, .has_in = has_in};
    if (pipe->copy_thread)
        cpu_team_begin(pipe->copy_thread, copy_task_run, &pipe->copy_task);
    else
        copy_task_run(&pipe->copy_task, 0);
    return TUTTI_OK;
}

/* Start the helping threads at the first operation that needs them. If they cannot be started, the
 * group does without. They wake up while the first piece is being copied. */
static void team_start(struct tutti_pg *pg)
{
    if (pg->threads > 1 && !*cpu_group_team(pg->comm->host))
        *cpu_group_team(pg->comm->host) = cpu_team_create(pg->threads);
    if (pg->threads > 1 && !pg->copy_thread)
        pg->copy_thread = cpu_team_create(2);
    if (*cpu_group_team(pg->comm->host))
        cpu_team_wake(*cpu_group_team(pg->comm->host));
    else
        pg->threads = 1;
    if (pg->copy_thread)
        cpu_team_wake(pg->copy_thread);
}

/* Collective. Make the buffer, at the first call only. If one rank cannot make or map it, no rank
 * has one, and the status is OK. Returns what ends the group's communicator. */
static enum tutti_status bounce_open(struct tutti_pg *pg, int64_t timeout_ms)
{
    struct pg_bounce *bounce = &pg->bounce;
    struct pg_view views[TUTTI_MAX_RANKS];
    int failed_rank = -1;
    if (bounce->open_tried)
        return TUTTI_OK;
    bounce->open_tried = true;
    enum tutti_status status = cuda_block_take_shared(pg->stage, BOUNCE_BYTES, &bounce->block);
    if (status == TUTTI_OK)
        status = pg_share_use_segment(bounce->share, bounce->block->fd, BOUNCE_BYTES, timeout_ms);
    status =
        pg_share_exchange(bounce->share, status, BOUNCE_BYTES, timeout_ms, views, &failed_rank);
    if (status != TUTTI_OK && failed_rank < 0)
        return status;
    if (status != TUTTI_OK) {
        log_write(TUTTI_LOG_INFO, pg->comm->rank, "no bounce buffer that ranks share: %s",
                  tutti_last_error());
        pg_share_destroy(bounce->share);
        cuda_block_give(pg->stage, bounce->block);
        bounce->share = NULL;
        bounce->block = NULL;
        return TUTTI_OK;
    }
    for (int r = 0; r < pg->comm->world_size; r++)
        bounce->buffers[r] = (void *)(uintptr_t)views[r].bytes;
    bounce->region = (struct region){
        .base = bounce->buffers[pg->comm->rank],
        .bytes = BOUNCE_BYTES,
        .epoch = pg->epoch,
        .ordinal = -1,
        .rank = pg->comm->rank,
        .world_size = pg->comm->world_size,
        .ready = 1,
        .id = LAYOUT_BOUNCE,
        .buffers = bounce->buffers,
    };
    (void)region_add(&bounce->region); /* if there is no room, the hosts copy */
    return TUTTI_OK;
}

/* Decide whether the pieces go through the bounce buffer. All ranks decide the same. */
static enum tutti_status bounce_choose(struct pipe *pipe)
{
    struct tutti_pg *pg = pipe->pg;
    const struct cpu_group *host = pg->comm->host;
    if (!is_all_reduce(pipe->op) || pipe->op->inputs > 1 || pg->comm->world_size == 1 ||
        cpu_group_ranks(host)->sparse)
        return TUTTI_OK;
    team_start(pg);
    if (rank_set_empty(
            cpu_group_ranks(host)->remote)) /* threads of one process reach each other's blocks */
        return TUTTI_OK;
    enum tutti_status status = bounce_open(pg, pipe->op->timeout_ms);
    if (status != TUTTI_OK || !pg->bounce.region.ready)
        return status;
    pipe->bounce = &pg->bounce;
    pipe->first_slot = pg->bounce.slots_used;
    pg->bounce.slots_used += pipe->count;
    return TUTTI_OK;
}

static enum tutti_status memory_take(struct pipe *pipe)
{
    pipe->capacity = pipe->count < PIECES ? pipe->count : PIECES;
    enum tutti_status status = bounce_choose(pipe);
    if (status != TUTTI_OK || pipe->bounce)
        return status;
    return cuda_block_take(pipe->pg->stage,
                           pipe->capacity * (size_t)pipe->places * pipe->piece * pipe->width,
                           &pipe->staging->block);
}

static enum tutti_status pipe_open(struct pipe *pipe)
{
    struct pg_staging *staging = pipe->staging;
    const struct pg_op *op = pipe->op;
    const struct coll *coll = &coll_rows[op->work.collective];
    pipe->width = tutti_dtype_size(op->args.dtype);
    pipe->places = is_all_reduce(op)                  ? op->work.tensor_count
                   : coll->send_all || coll->recv_all ? pipe->pg->comm->world_size
                                                      : 1;
    pipe->piece = piece_elements(pipe);
    pipe->count = (pipe->elements + pipe->piece - 1) / pipe->piece;
    if (is_all_reduce(op))
        pipe->place_bytes = pipe->piece * pipe->width;
    pipe->deadline = deadline_after(op->timeout_ms);
    if (staging->copied_early) {
        pipe->capacity = pipe->count;
        pipe->place_bytes = aligned(op->args.count * pipe->width);
        for (int p = 0; p < PIECES; p++)
            memcpy(pipe->marks[CUDA_WAY_IN][p], staging->marks[CUDA_WAY_IN],
                   sizeof staging->marks[CUDA_WAY_IN]);
        return staging->status;
    }
    enum tutti_status status = memory_take(pipe);
    for (size_t p = 0; p < pipe->capacity && status == TUTTI_OK; p++) {
        status = free_slot_await(pipe, p);
        if (status == TUTTI_OK)
            status = piece_copy(pipe, CUDA_WAY_IN, p);
    }
    if (pipe->count > 1)
        pipe->copy_thread = pipe->pg->copy_thread;
    return status;
}

/* Run a piece of another collective. */
static enum tutti_status piece_run(struct pipe *pipe, size_t piece)
{
    const struct pg_op *op = pipe->op;
    struct coll_args args = op->args;
    args.send = op->send.count ? piece_at(pipe, place_of(pipe, CUDA_WAY_IN, 0), piece) : NULL;
    args.recv = op->recv.count ? piece_at(pipe, place_of(pipe, CUDA_WAY_OUT, 0), piece) : NULL;
    args.count = piece_count(pipe, piece);
    return comm_run(pipe->pg->comm, op->work.collective, &args, op->timeout_ms,
                    TUTTI_STREAM_DEFAULT);
}

static enum tutti_status piece_reduce(struct pipe *pipe, size_t piece)
{
    struct pg_part part = {.count = piece_count(pipe, piece)};
    void *own = pipe->pg->bounce.buffers[pipe->pg->comm->rank];
    for (int i = 0; i < pipe->op->work.tensor_count; i++)
        part.data[i] =
            pipe->bounce ? (char *)own + slot_offset(pipe, piece) : piece_at(pipe, i, piece);
    return pg_part_reduce(pipe->pg, pipe->op, &part);
}

static enum tutti_status pipe_run(struct pipe *pipe)
{
    enum tutti_status status = pipe_open(pipe);
    for (size_t piece = 0; piece < pipe->count && status == TUTTI_OK; piece++) {
        status = piece_await(pipe, CUDA_WAY_IN, piece);
        if (status == TUTTI_OK)
            status = (is_all_reduce(pipe->op) ? piece_reduce : piece_run)(pipe, piece);
        if (status == TUTTI_OK)
            status = piece_copy_back(pipe, piece);
    }
    enum tutti_status copy_status = copy_task_await(pipe);
    return status == TUTTI_OK ? copy_status : status;
}

/* Let the devices reduce, by their own algorithms. All ranks launch in the order of the
 * verdicts. */
static enum tutti_status direct_run(struct tutti_pg *pg, struct pg_op *op)
{
    const struct tutti_tensor *tensor = &op->tensors[0];
    tutti_stream_t stream = cuda_stage_stream(pg->stage, pg->device, CUDA_WAY_ACROSS);
    struct coll_args args = op->args;
    args.send = args.recv = tensor->data;
    POINT("group.decided");
    cuda_stage_call_begin(pg->stage);
    enum tutti_status status =
        comm_run(pg->direct, op->work.collective, &args, op->timeout_ms, stream);
    cuda_stage_call_end(pg->stage);
    POINT("group.launched");
    return pg_staging_mark(pg, op->staging, CUDA_WAY_ACROSS, status);
}

/* The block of the pair before is free once its copies are done. */
static enum tutti_status next_pair_begin(struct tutti_pg *pg, const struct pg_op *op)
{
    struct pg_staging *staging = op->staging;
    enum tutti_status status = pg_staging_await(
        pg, staging, CUDA_WAY_OUT, staging->marks[CUDA_WAY_OUT], deadline_after(op->timeout_ms));
    if (status != TUTTI_OK)
        return status;
    cuda_block_give(pg->stage, staging->block);
    staging->block = NULL;
    return TUTTI_OK;
}

enum tutti_status pg_staging_run(struct tutti_pg *pg, struct pg_op *op, int pair, size_t elements)
{
    struct pipe pipe = {
        .pg = pg, .op = op, .staging = op->staging, .pair = pair, .elements = elements};
    enum tutti_status status = pair ? next_pair_begin(pg, op) : TUTTI_OK;
    if (status == TUTTI_OK)
        status = op->direct ? direct_run(pg, op) : pipe_run(&pipe);
    if (status == TUTTI_OK || tutti_comm_status(pg->comm, NULL) != TUTTI_OK)
        return status;
    /* The peers are inside the operation and wait for this rank: fail the communicator. */
    if (op->direct)
        tutti_comm_abort(pg->direct);
    log_write(TUTTI_LOG_WARN, pg->comm->rank, "%s of a process group: %s", op->title,
              tutti_last_error());
    return pg_comm_fail(pg->comm, status, pg->comm->rank);
}

bool pg_staging_wait_expired(const struct pg_op *op)
{
    return cuda_fence_wait_expired(op->staging->fence);
}

bool pg_staging_copies_done(const struct tutti_pg *pg, const struct pg_op *op)
{
    for (int way = 0; way < CUDA_WAYS; way++)
        if (!marks_passed(pg, op->staging, (enum cuda_way)way, op->staging->marks[way]))
            return false;
    return true;
}

static bool op_copied(void *context)
{
    const struct pg_op *op = context;
    return pg_staging_copies_done(op->pg, op);
}

void pg_staging_end(struct tutti_pg *pg, struct pg_op *op)
{
    struct pg_staging *staging = op->staging;
    if (op_copied(op) || wait_napping(op_copied, op, deadline_after(DRAIN_MS), WAIT_NAP_NS))
        cuda_block_give(pg->stage, staging->block);
    else if (staging->block)
        cuda_block_lose(pg->stage, staging->block);
    staging->block = NULL;
}
