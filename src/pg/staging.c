/* SPDX-License-Identifier: MIT */
/*
 * CUDA tensors through the host, once all ranks have announced the operation. It is cut into
 * pieces, at the same bounds on all ranks (cuda/pipe/pipe.h), which go through slots of pinned
 * memory, several at the same time. The hosts reduce each piece of an all-reduce in its slot by
 * pg_part_reduce(). Any other collective runs pair by pair; both operands share the slots, so it
 * runs in place there.
 *
 * A message is copied as a whole, before it is announced.
 */
#include "pg/staging.h"

#include "base/deadline.h"
#include "cpu/group.h"
#include "pg/pg.h"

enum {
    PIECES_OUT = 2,         /* pieces being copied out while the next one is copied in */
    PIECE_LEAST = 64 << 10, /* least size of a piece if ranks have many inputs */
    TEAM_BYTES = 64 << 10,  /* from here on several threads reduce */
};

static bool is_all_reduce(const struct pg_operation *operation)
{
    return operation->work.collective == TUTTI_COLLECTIVE_ALL_REDUCE;
}

/* ---- a piece --------------------------------------------------------------------------------- */

/* Wait for the last copies to or from the slot of a piece. */
static enum tutti_status slot_await(const struct pg_operation *operation,
                                    const struct cuda_marks *marks, uint64_t piece)
{
    const struct pg_cuda *cuda = operation->cuda;
    return pg_cuda_await(operation->pg, &marks[cuda_slot_number(&cuda->slots, piece)],
                         cuda->deadline);
}

/* The host memory of a block of a piece. */
static void *place_of(const struct pg_operation *operation, bool in, int block, uint64_t piece)
{
    const struct pg_cuda *cuda = operation->cuda;
    return cuda_slot(&cuda->slots, piece) +
           cuda_cut_place(&cuda->cut, in ? CUDA_SEND : CUDA_RECV, block, piece);
}

static enum tutti_status block_copy(const struct pg_operation *operation, bool in, uint64_t piece,
                                    int block)
{
    const struct pg_cuda *cuda = operation->cuda;
    const struct cuda_cut *cut = &cuda->cut;
    const struct pg_operand *operand = in ? &operation->send : &operation->recv;
    const int tensor = cuda->pair * operand->each + block / operand->blocks;
    size_t count;
    char *device = (char *)pg_block(operation, operand, cuda->pair, block, &count) +
                   piece * cut->piece * cut->width;
    void *host = place_of(operation, in, block, piece);
    const size_t bytes = cuda_cut_count(cut, count, piece) * cut->width;
    return bytes ? cuda_stage_copy(cuda->stage, operand->tensors[tensor].device_index,
                                   in ? CUDA_TO_HOST : CUDA_FROM_HOST, in ? host : device,
                                   in ? device : host, bytes)
                 : TUTTI_OK;
}

static enum tutti_status piece_copy(const struct pg_operation *operation, bool in, uint64_t piece)
{
    struct pg_cuda *cuda = operation->cuda;
    const struct pg_operand *operand = in ? &operation->send : &operation->recv;
    const enum cuda_direction direction = in ? CUDA_TO_HOST : CUDA_FROM_HOST;
    const int blocks = is_all_reduce(operation) ? operand->count
                       : operand->count         ? operand->each * operand->blocks
                                                : 0;
    enum tutti_status status = TUTTI_OK;
    for (int b = 0; b < blocks && status == TUTTI_OK; b++)
        status = block_copy(operation, in, piece, b);
    status = pg_cuda_mark(cuda, direction, status);
    (in ? cuda->in : cuda->out)[cuda_slot_number(&cuda->slots, piece)] = cuda->marks[direction];
    return status;
}

static enum tutti_status piece_in(void *context, uint64_t piece)
{
    const struct pg_operation *operation = context;
    enum tutti_status status = slot_await(operation, operation->cuda->out, piece);
    return status == TUTTI_OK ? piece_copy(operation, true, piece) : status;
}

static enum tutti_status piece_run(void *context, uint64_t piece)
{
    const struct pg_operation *operation = context;
    const struct cuda_cut *cut = &operation->cuda->cut;
    struct pg_part part = {.count = cuda_cut_count(cut, cut->own, piece)};
    struct coll_args args = operation->args;
    enum tutti_status status = slot_await(operation, operation->cuda->in, piece);
    if (status != TUTTI_OK)
        return status;
    if (is_all_reduce(operation)) {
        for (int i = 0; i < operation->work.tensor_count; i++)
            part.data[i] = place_of(operation, true, i, piece);
        return pg_part_reduce(operation->pg, operation, &part);
    }
    args.send = operation->send.count ? place_of(operation, true, 0, piece) : NULL;
    args.recv = operation->recv.count ? place_of(operation, false, 0, piece) : NULL;
    args.count = part.count;
    return comm_run(operation->pg->comm, operation->work.collective, &args, operation->timeout_ms,
                    TUTTI_STREAM_DEFAULT);
}

static enum tutti_status piece_out(void *context, uint64_t piece)
{
    return piece_copy(context, false, piece);
}

/* ---- slots ----------------------------------------------------------------------------------- */

/* Start the threads that help to reduce, at the first operation that needs them; they reach the
 * slots of ranks of this process. If they cannot be started, the group does without. They wake up
 * while the first piece is being copied. */
static void team_start(struct tutti_pg *pg, const struct pg_operation *operation)
{
    const struct cuda_cut *cut = &operation->cuda->cut;
    if (pg->control.wire || pg->threads < 2 || !is_all_reduce(operation) || operation->inputs > 1 ||
        cut->own * cut->width <= TEAM_BYTES ||
        !rank_set_empty(peers_ranks(pg->comm->peers)->remote))
        return;
    struct cpu_team **team = cpu_group_team(pg->comm->group);
    if (!*team)
        *team = cpu_team_create(pg->threads);
    if (*team)
        cpu_team_wake(*team);
    else
        pg->threads = 1;
}

/* The places of a slot: of an all-reduce one for each tensor. */
static int places_of(const struct pg_operation *operation)
{
    return is_all_reduce(operation) ? operation->work.tensor_count
                                    : cuda_cut_places(&coll_rows[operation->work.collective],
                                                      operation->pg->comm->world_size);
}

/* Return the bytes of a block in a piece. The result is the same on all ranks. */
static size_t piece_bytes(int blocks)
{
    size_t bytes = PG_SLOT_BYTES;
    for (; blocks > 1; blocks = (blocks + 1) / 2)
        bytes = bytes / 2 > PIECE_LEAST ? bytes / 2 : PIECE_LEAST;
    return bytes;
}

/* Cut an operation, or one pair, of which a block has `elements`, into pieces. */
static void cut_set(const struct pg_operation *operation, size_t elements)
{
    struct cuda_cut *cut = &operation->cuda->cut;
    const int blocks = is_all_reduce(operation) ? operation->inputs : places_of(operation);
    *cut = (struct cuda_cut){.coll = &coll_rows[operation->work.collective],
                             .rank = operation->pg->comm->rank,
                             .size = operation->pg->comm->world_size,
                             .own = elements,
                             .width = tutti_dtype_size(operation->args.dtype),
                             .place_bytes = piece_bytes(blocks)};
    cuda_cut_set(cut, elements);
}

/* Further pairs use the slots of the first one. */
static enum tutti_status slots_take(const struct pg_operation *operation)
{
    struct pg_cuda *cuda = operation->cuda;
    struct cuda_slots slots = {.bytes = (size_t)places_of(operation) * cuda->cut.place_bytes,
                               .count = PG_SLOTS};
    if (cuda->slots.memory)
        return TUTTI_OK;
    enum tutti_status status =
        cuda_block_take(cuda->stage, slots.count * slots.bytes, &cuda->block);
    if (status != TUTTI_OK)
        return status;
    slots.memory = cuda->block->memory;
    cuda->slots = slots;
    return TUTTI_OK;
}

/* Read a scalar that is in the memory of a device, once, through memory of the slots. */
static enum tutti_status scalar_take(struct pg_operation *operation)
{
    struct pg_cuda *cuda = operation->cuda;
    const enum tutti_dtype dtype = dtype_component(operation->args.dtype);
    const void *memory = operation->op.memory;
    if (!memory)
        return TUTTI_OK;
    enum tutti_status status =
        cuda_stage_copy(cuda->stage, operation->tensors[0].device_index, CUDA_TO_HOST,
                        cuda->slots.memory, memory, dtype_bytes(dtype));
    status = pg_cuda_mark(cuda, CUDA_TO_HOST, status);
    if (status == TUTTI_OK)
        status = pg_cuda_await(operation->pg, &cuda->marks[CUDA_TO_HOST], cuda->deadline);
    if (status != TUTTI_OK)
        return status;
    const union op_scalar scalar = op_scalar_load(cuda->slots.memory, dtype);
    operation->op.memory = NULL;
    if (dtype_is_float(dtype))
        operation->op.real = scalar.real;
    else
        operation->op.whole = scalar.whole;
    return TUTTI_OK;
}

enum tutti_status pg_staging_run(struct tutti_pg *pg, struct pg_operation *operation, int pair,
                                 size_t elements)
{
    struct pg_cuda *cuda = operation->cuda;
    cuda->pair = pair;
    cuda->deadline = deadline_after(operation->timeout_ms);
    cut_set(operation, elements);
    team_start(pg, operation);
    enum tutti_status status = slots_take(operation);
    if (status == TUTTI_OK)
        status = scalar_take(operation);
    if (status == TUTTI_OK)
        status = cuda_pipe_run(&(struct cuda_pipe){
            .pieces = cuda->cut.pieces,
            .slots = PG_SLOTS,
            .lag = PIECES_OUT,
            .context = operation,
            .in = piece_in,
            .run = piece_run,
            .out = piece_out,
        });
    cuda->slots.used += cuda->cut.pieces;
    return status == TUTTI_OK ? TUTTI_OK : pg_cuda_fail(pg, operation, status);
}

/* ---- messages -------------------------------------------------------------------------------- */

static size_t message_bytes(const struct pg_operation *operation)
{
    return operation->args.count * tutti_dtype_size(operation->args.dtype);
}

void pg_staging_copy_message(struct pg_operation *operation)
{
    const struct tutti_tensor *tensor = &operation->tensors[0];
    const size_t bytes = message_bytes(operation);
    struct pg_cuda *cuda = operation->cuda;
    if (!bytes || cuda->copied_early)
        return;
    cuda->copied_early = true;
    cuda->status = cuda_block_take(cuda->stage, bytes, &cuda->block);
    if (cuda->status != TUTTI_OK || operation->work.collective == TUTTI_COLLECTIVE_RECV)
        return;
    cuda->status = cuda_stage_copy(cuda->stage, tensor->device_index, CUDA_TO_HOST,
                                   cuda->block->memory, tensor->data, bytes);
    cuda->status = pg_cuda_mark(cuda, CUDA_TO_HOST, cuda->status);
}

void *pg_staging_message_data(const struct pg_operation *operation)
{
    return operation->cuda && operation->cuda->block ? operation->cuda->block->memory
                                                     : operation->tensors[0].data;
}

enum tutti_status pg_staging_message_out(const struct pg_operation *operation)
{
    const struct tutti_tensor *tensor = &operation->tensors[0];
    struct pg_cuda *cuda = operation->cuda;
    if (!cuda->block)
        return TUTTI_OK;
    enum tutti_status status =
        cuda_stage_copy(cuda->stage, tensor->device_index, CUDA_FROM_HOST, tensor->data,
                        cuda->block->memory, message_bytes(operation));
    return pg_cuda_mark(cuda, CUDA_FROM_HOST, status);
}
