/* SPDX-License-Identifier: MIT */
/*
 * Collectives on dense tensors, the calls: the checks, and the description for other ranks. What
 * an all-reduce checks is in tensor.c.
 *
 * Any other call moves pairs, one after the other. In a pair each side is one block, or a block for
 * each rank. These blocks are one tensor, or a list of tensors. The ranks compare the block of the
 * first pair, and a hash of the further pairs.
 */
#include "base/error.h"
#include "pg/pg.h"

#include <string.h>

static const char *const side_names[] = {"send", "recv"};

/* A call whose arguments are being read. */
struct reading {
    const struct tutti_pg *pg;
    const struct pg_call *call;
    const struct coll *coll;
    const struct pg_lists *lists;
    struct pg_operation *operation;
    struct pg_operand *sides[2]; /* send, recv */
    int model;                   /* the side that is one block and that all ranks have */
};

static const struct tutti_tensor *tensor_at(const struct reading *reading, int side, int index)
{
    return (const struct tutti_tensor *)reading->lists->list[side] + index;
}

static bool has_all(const struct reading *reading, int side)
{
    return side ? reading->coll->recv_all : reading->coll->send_all;
}

/* Whether the tensors of an all-to-all are lists. */
static bool is_lists(const struct reading *reading)
{
    return reading->coll->send_all && reading->coll->recv_all && reading->sides[0]->each > 1;
}

/* ---- the number of tensors ------------------------------------------------------------------- */

static enum tutti_status side_read(const struct reading *reading, int side, int pairs)
{
    const int count = reading->lists->count[side], size = reading->pg->comm->world_size;
    struct pg_operand *operand = reading->sides[side];
    const bool all = has_all(reading, side);
    operand->count = count;
    operand->each = all && count == pairs * size ? size : 1;
    operand->blocks = all ? size / operand->each : 1;
    if (count == pairs * operand->each)
        return TUTTI_OK;
    return error_set(TUTTI_ERR_INVALID,
                     all ? "%s: %d tensors in %s: expected %d, or %d, a list of one for each rank"
                         : "%s: %d tensors in %s: expected %d",
                     reading->call->name, count, side_names[side], pairs, pairs * size);
}

/* An operand that this rank does not have becomes empty. */
static enum tutti_status sides_read(const struct reading *reading, struct pg_lists *lists)
{
    const struct coll *coll = reading->coll;
    const int root = reading->operation->args.peer, rank = reading->pg->comm->rank;
    const int most = pg_most_tensors(reading->pg);
    for (int side = 0; side < 2; side++) {
        if (!coll_has(side ? coll->recv : coll->send, rank, root))
            lists->count[side] = 0;
        else if (!lists->list[side] || lists->count[side] < 1 || lists->count[side] > most)
            return error_set(TUTTI_ERR_INVALID, "%s: %d tensors at %s %p: expected 1 to %d",
                             reading->call->name, lists->count[side], side_names[side],
                             lists->list[side], most);
    }
    const int pairs = coll->send_all && coll->recv_all ? 1 : lists->count[reading->model];
    reading->operation->description.pairs = (uint32_t)pairs;
    for (int side = 0; side < 2; side++) {
        enum tutti_status status = lists->count[side] ? side_read(reading, side, pairs) : TUTTI_OK;
        if (status != TUTTI_OK)
            return status;
    }
    if (coll->send_all && coll->recv_all && lists->count[0] != lists->count[1])
        return error_set(TUTTI_ERR_INVALID,
                         "%s: %d tensors in send, %d in recv: expected one each, or a list each",
                         reading->call->name, lists->count[0], lists->count[1]);
    return TUTTI_OK;
}

/* ---- one tensor ------------------------------------------------------------------------------ */

/* Whether the dimensions lie in memory in row-major order. */
static bool is_row_major(const struct layout_operation *description)
{
    int position = 0;
    for (int d = description->dims - 1; d >= 0; d--)
        if (description->order[d] != LAYOUT_NO_POSITION && description->order[d] != position++)
            return false;
    return true;
}

/* Check that the scalar of a premultiplied sum is on the device of the first tensor. */
static enum tutti_status scalar_check(const struct reading *reading, tutti_op_t op,
                                      const struct tutti_tensor *tensor)
{
    if (op_kind(op) != OP_PREMUL_SUM || !op->memory)
        return TUTTI_OK;
    const enum tutti_status status = cuda_stage_check(reading->pg->stage, tensor->device_index,
                                                      op->memory, dtype_bytes(op->dtype));
    return status == TUTTI_OK ? status : error_context(status, "the scalar");
}

/* Describe a tensor and check its data. */
static enum tutti_status tensor_read(const struct reading *reading, int side, int index,
                                     struct coll_args *args, struct layout_operation *description)
{
    const struct tutti_tensor *tensor = tensor_at(reading, side, index);
    enum tutti_device device;
    enum tutti_status status = pg_tensor_describe(tensor, &device, args, description);
    if (status == TUTTI_OK)
        status = pg_device_check(device);
    description->device = (uint8_t)device;
    const tutti_op_t op = reading->coll->reduces ? reading->operation->args.op : TUTTI_SUM;
    const struct coll_args data = coll_args_make(NULL, NULL, args->count, args->dtype, op, 0);
    if (status == TUTTI_OK)
        status = pg_memory_check(reading->pg, device, tensor->device_index, tensor->data, &data);
    if (status == TUTTI_OK && device == TUTTI_DEVICE_CUDA && index == 0)
        status = scalar_check(reading, op, tensor);
    return status;
}

/* Compare a tensor with the block of its pair. */
static enum tutti_status tensor_compare(const struct reading *reading, int side,
                                        const struct layout_operation *block, size_t count,
                                        const struct coll_args *args,
                                        const struct layout_operation *description)
{
    const size_t blocks = (size_t)reading->sides[side]->blocks;
    if (is_lists(reading) || blocks > 1) {
        if (!is_row_major(description) || !is_row_major(block))
            return error_set(
                TUTTI_ERR_INVALID,
                "only the last dimension may be contiguous: expected row-major strides "
                "where a tensor has a block for each rank");
        if (!is_lists(reading) && args->count != blocks * count)
            return error_set(TUTTI_ERR_INVALID,
                             "it has %zu elements: expected %zu for each of %zu ranks", args->count,
                             count, blocks);
        return TUTTI_OK;
    }
    return pg_same_layout(block, description);
}

/* ---- a pair ---------------------------------------------------------------------------------- */

static uint32_t hash_add(uint32_t hash, uint64_t value)
{
    return signature_hash((uint64_t)hash << 32 ^ value);
}

/* Add a pair behind the first to the hash that the ranks compare. */
static void pair_hash(struct pg_operation *operation, const struct layout_operation *block,
                      size_t count)
{
    uint32_t hash = hash_add(hash_add(operation->description.more_pairs, count), block->dims);
    for (int d = 0; d < block->dims; d++)
        hash = hash_add(hash, (uint64_t)block->sizes[d] << 8 ^ block->order[d]);
    operation->description.more_pairs = hash;
}

/* Read the block of a pair. The description of the first pair's block is the call's. */
static enum tutti_status block_read(const struct reading *reading, int pair,
                                    struct layout_operation *block, size_t *count)
{
    struct pg_operation *operation = reading->operation;
    struct coll_args args = operation->args;
    const size_t blocks = (size_t)reading->sides[reading->model]->blocks;
    const uint32_t pairs = operation->description.pairs;
    enum tutti_status status = tensor_read(
        reading, reading->model, pair * reading->sides[reading->model]->each, &args, block);
    if (status == TUTTI_OK && args.count % blocks)
        status = error_set(TUTTI_ERR_INVALID,
                           "it has %zu elements: expected a multiple of %zu, the number of ranks",
                           args.count, blocks);
    if (status == TUTTI_OK && pair)
        status = pg_same_kind(operation->args.dtype, args.dtype, &operation->description, block);
    if (status != TUTTI_OK)
        return error_context(status, "%s: %s[%d]", reading->call->name, side_names[reading->model],
                             pair);
    *count = args.count / blocks;
    if (pair) {
        pair_hash(operation, block, *count);
        return TUTTI_OK;
    }
    operation->args = args;
    operation->args.count = *count;
    operation->description = *block;
    operation->description.pairs = pairs;
    if (is_lists(reading)) {
        operation->description.format = LAYOUT_LISTS;
        operation->description.dims = 0;
        memset(operation->description.order, LAYOUT_NO_POSITION,
               sizeof operation->description.order);
        operation->args.count = 0;
    }
    return TUTTI_OK;
}

static enum tutti_status pair_read(const struct reading *reading, int pair)
{
    struct layout_operation block, description;
    size_t count = 0;
    enum tutti_status status = block_read(reading, pair, &block, &count);
    for (int side = 0; side < 2 && status == TUTTI_OK; side++) {
        const struct pg_operand *operand = reading->sides[side];
        if (side == reading->model && operand->each * operand->blocks == 1)
            continue;
        for (int i = 0; operand->count && i < operand->each && status == TUTTI_OK; i++) {
            const int index = pair * operand->each + i;
            struct coll_args args = reading->operation->args;
            status = tensor_read(reading, side, index, &args, &description);
            if (status == TUTTI_OK)
                status = pg_same_kind(reading->operation->args.dtype, args.dtype,
                                      &reading->operation->description, &description);
            if (status == TUTTI_OK)
                status = tensor_compare(reading, side, &block, count, &args, &description);
            if (status != TUTTI_OK)
                return error_context(status, "%s: %s[%d]", reading->call->name, side_names[side],
                                     index);
        }
    }
    return status;
}

/* ---- overlaps -------------------------------------------------------------------------------- */

/* Whether two tensors that overlap are in place: this rank's block has one address in both. */
static bool is_in_place(const struct reading *reading, int send, int recv)
{
    const struct pg_operand *const *sides = (const struct pg_operand *const *)reading->sides;
    const int own = reading->pg->comm->rank;
    const struct tutti_tensor *from = tensor_at(reading, 0, send);
    const struct tutti_tensor *to = tensor_at(reading, 1, recv);
    const size_t width = dtype_bytes(reading->operation->args.dtype);
    const int send_index = send % sides[0]->each, recv_index = recv % sides[1]->each;
    uintptr_t at[2] = {(uintptr_t)from->data, (uintptr_t)to->data};
    if (send / sides[0]->each != recv / sides[1]->each)
        return false;
    if (has_all(reading, 0) && has_all(reading, 1))
        return at[0] == at[1] && send_index == recv_index;
    if (sides[0]->blocks > 1)
        at[0] += (size_t)own * pg_elements(to) * width;
    if (sides[1]->blocks > 1)
        at[1] += (size_t)own * pg_elements(from) * width;
    return at[0] == at[1] && (sides[0]->each == 1 || send_index == own) &&
           (sides[1]->each == 1 || recv_index == own);
}

static bool overlap(const struct tutti_tensor *a, const struct tutti_tensor *b, size_t width)
{
    const uintptr_t at = (uintptr_t)a->data, other = (uintptr_t)b->data;
    const size_t bytes = pg_elements(a) * width, other_bytes = pg_elements(b) * width;
    return bytes && other_bytes && at < other + other_bytes && other < at + bytes;
}

/* Check that no other tensor overlaps one that is received, except in place. */
static enum tutti_status overlaps_check(const struct reading *reading)
{
    const size_t width = dtype_bytes(reading->operation->args.dtype);
    for (int recv = 0; recv < reading->lists->count[1]; recv++) {
        const struct tutti_tensor *to = tensor_at(reading, 1, recv);
        for (int side = 0; side < 2; side++) {
            const int count = side ? recv : reading->lists->count[0];
            for (int i = 0; i < count; i++) {
                const struct tutti_tensor *other = tensor_at(reading, side, i);
                if (!overlap(to, other, width) || (side == 0 && is_in_place(reading, i, recv)))
                    continue;
                return error_set(TUTTI_ERR_INVALID,
                                 "%s: recv[%d] at %p and %s[%d] at %p overlap: expected disjoint "
                                 "ones, or this rank's block in place",
                                 reading->call->name, recv, to->data, side_names[side], i,
                                 other->data);
            }
        }
    }
    return TUTTI_OK;
}

/* ---- the operation --------------------------------------------------------------------------- */

static enum tutti_status collective_read(const struct tutti_pg *pg, const struct pg_call *call,
                                         struct pg_lists *lists, struct pg_operation *operation)
{
    const struct coll *coll = &coll_rows[call->collective];
    const struct reading reading = {
        .pg = pg,
        .call = call,
        .coll = coll,
        .lists = lists,
        .operation = operation,
        .sides = {&operation->send, &operation->recv},
        .model = coll->send != COLL_OF_ALL || (coll->send_all && !coll->recv_all),
    };
    if (coll->peer && (unsigned)operation->args.peer >= (unsigned)pg->comm->world_size)
        return coll_explain(call->name, coll, &operation->args, COLL_BAD_PEER, pg->comm->rank,
                            pg->comm->world_size, "send");
    if (!pg->comm->rules.paths.all)
        return error_set(TUTTI_ERR_DECLINED,
                         "%s: not all ranks of the topology file are linked: only all-reduces and "
                         "barriers run",
                         call->name);
    enum tutti_status status = sides_read(&reading, lists);
    for (uint32_t pair = 0; status == TUTTI_OK && pair < operation->description.pairs; pair++)
        status = pair_read(&reading, (int)pair);
    return status == TUTTI_OK ? overlaps_check(&reading) : status;
}

/* Whether the blocks of each pair lie side by side. */
static bool is_contiguous(const struct pg_operation *operation, const struct pg_operand *operand)
{
    const size_t width = dtype_bytes(operation->args.dtype);
    for (int i = 1; i < operand->count; i++) {
        const struct tutti_tensor *before = &operand->tensors[i - 1];
        if (i % operand->each &&
            (char *)before->data + pg_elements(before) * width != operand->tensors[i].data)
            return false;
    }
    return true;
}

/* Whether the lists of an all-to-all can be the operands of its v-form: no tensor that is sent lies
 * between two that are received, and the other way round; each lies a whole number of elements
 * behind the first. */
static bool is_apart(const struct pg_operation *operation)
{
    const size_t width = dtype_bytes(operation->args.dtype);
    const struct pg_operand *operands[] = {&operation->send, &operation->recv};
    uintptr_t begin[2] = {UINTPTR_MAX, UINTPTR_MAX}, end[2] = {0, 0};
    uintptr_t phase = UINTPTR_MAX;
    for (int i = 0; i < operation->send.count + operation->recv.count; i++) {
        const int side = i >= operation->send.count;
        const struct tutti_tensor *tensor =
            &operands[side]->tensors[side ? i - operation->send.count : i];
        const uintptr_t at = (uintptr_t)tensor->data;
        const size_t bytes = pg_elements(tensor) * width;
        if (!bytes)
            continue;
        if (phase != UINTPTR_MAX && at % width != phase)
            return false;
        phase = at % width;
        begin[side] = at < begin[side] ? at : begin[side];
        end[side] = at + bytes > end[side] ? at + bytes : end[side];
    }
    return end[0] <= begin[1] || end[1] <= begin[0];
}

/* Copy a tensor. Its sizes and strides follow the tensors in memory. */
static void tensor_copy(struct pg_operation *operation, int index, const struct tutti_tensor *from,
                        int64_t *numbers)
{
    struct tutti_tensor *to = &operation->tensors[index];
    int64_t *sizes = numbers + 2 * TUTTI_MAX_DIMS * index, *strides = sizes + TUTTI_MAX_DIMS;
    uint64_t stride = 1; /* overflows only if a size is 0; then strides mean nothing */
    *to = *from;
    to->sizes = sizes;
    to->strides = strides;
    for (int d = to->dims - 1; d >= 0; stride *= (uint64_t)sizes[d--]) {
        sizes[d] = from->sizes[d];
        strides[d] = from->strides ? from->strides[d] : (int64_t)stride;
    }
}

static void collective_fill(struct pg_operation *operation, const struct pg_lists *lists)
{
    const int sends = lists->count[0], all = sends + lists->count[1];
    int64_t *numbers = (int64_t *)(void *)&operation->tensors[all];
    for (int i = 0; i < all; i++)
        tensor_copy(operation, i,
                    (const struct tutti_tensor *)lists->list[i >= sends] +
                        (i < sends ? i : i - sends),
                    numbers);
    operation->send.tensors = operation->tensors;
    operation->recv.tensors = operation->tensors + sends;
    /* CUDA has no kernel for the v-form. */
    const bool is_v_form = operation->description.format == LAYOUT_LISTS &&
                           operation->description.device == TUTTI_DEVICE_CPU;
    if (is_v_form ? is_apart(operation)
                  : is_contiguous(operation, &operation->send) &&
                        is_contiguous(operation, &operation->recv))
        operation->facts = LAYOUT_WHOLE;
    pg_title_make(operation, (int)operation->description.pairs);
    operation->work.tensors = operation->tensors;
    operation->work.tensor_count = all;
    operation->inputs = 1;
}

static enum tutti_status submit(tutti_pg_t *pg, enum tutti_collective collective, const char *name,
                                const struct pg_lists *lists, tutti_op_t op, int root,
                                const struct tutti_pg_call_options *options, tutti_work_t **work)
{
    const struct pg_call call = {.name = name,
                                 .collective = collective,
                                 .type = "tutti_tensor",
                                 .tensor_bytes = sizeof(struct tutti_tensor),
                                 .more_tensor_bytes = 2 * TUTTI_MAX_DIMS * sizeof(int64_t),
                                 .read = collective_read,
                                 .fill = collective_fill};
    const struct coll_args args = {.op = op, .peer = root};
    return pg_submit(pg, &call, lists, &args, options, work);
}

enum tutti_status tutti_pg_all_gather(tutti_pg_t *pg, const struct tutti_tensor *send,
                                      int send_count, const struct tutti_tensor *recv,
                                      int recv_count, const struct tutti_pg_call_options *options,
                                      tutti_work_t **work)
{
    return submit(pg, TUTTI_COLLECTIVE_ALL_GATHER, "tutti_pg_all_gather",
                  &(struct pg_lists){{send, recv}, {send_count, recv_count}}, NULL, 0, options,
                  work);
}

enum tutti_status tutti_pg_reduce_scatter(tutti_pg_t *pg, const struct tutti_tensor *send,
                                          int send_count, const struct tutti_tensor *recv,
                                          int recv_count, tutti_op_t op,
                                          const struct tutti_pg_call_options *options,
                                          tutti_work_t **work)
{
    return submit(pg, TUTTI_COLLECTIVE_REDUCE_SCATTER, "tutti_pg_reduce_scatter",
                  &(struct pg_lists){{send, recv}, {send_count, recv_count}}, op, 0, options, work);
}

enum tutti_status tutti_pg_all_to_all(tutti_pg_t *pg, const struct tutti_tensor *send,
                                      int send_count, const struct tutti_tensor *recv,
                                      int recv_count, const struct tutti_pg_call_options *options,
                                      tutti_work_t **work)
{
    return submit(pg, TUTTI_COLLECTIVE_ALL_TO_ALL, "tutti_pg_all_to_all",
                  &(struct pg_lists){{send, recv}, {send_count, recv_count}}, NULL, 0, options,
                  work);
}

enum tutti_status tutti_pg_broadcast(tutti_pg_t *pg, const struct tutti_tensor *send,
                                     int send_count, const struct tutti_tensor *recv,
                                     int recv_count, int root,
                                     const struct tutti_pg_call_options *options,
                                     tutti_work_t **work)
{
    return submit(pg, TUTTI_COLLECTIVE_BROADCAST, "tutti_pg_broadcast",
                  &(struct pg_lists){{send, recv}, {send_count, recv_count}}, NULL, root, options,
                  work);
}

enum tutti_status tutti_pg_reduce(tutti_pg_t *pg, const struct tutti_tensor *send, int send_count,
                                  const struct tutti_tensor *recv, int recv_count, tutti_op_t op,
                                  int root, const struct tutti_pg_call_options *options,
                                  tutti_work_t **work)
{
    return submit(pg, TUTTI_COLLECTIVE_REDUCE, "tutti_pg_reduce",
                  &(struct pg_lists){{send, recv}, {send_count, recv_count}}, op, root, options,
                  work);
}

enum tutti_status tutti_pg_gather(tutti_pg_t *pg, const struct tutti_tensor *send, int send_count,
                                  const struct tutti_tensor *recv, int recv_count, int root,
                                  const struct tutti_pg_call_options *options, tutti_work_t **work)
{
    return submit(pg, TUTTI_COLLECTIVE_GATHER, "tutti_pg_gather",
                  &(struct pg_lists){{send, recv}, {send_count, recv_count}}, NULL, root, options,
                  work);
}

enum tutti_status tutti_pg_scatter(tutti_pg_t *pg, const struct tutti_tensor *send, int send_count,
                                   const struct tutti_tensor *recv, int recv_count, int root,
                                   const struct tutti_pg_call_options *options, tutti_work_t **work)
{
    return submit(pg, TUTTI_COLLECTIVE_SCATTER, "tutti_pg_scatter",
                  &(struct pg_lists){{send, recv}, {send_count, recv_count}}, NULL, root, options,
                  work);
}

enum tutti_status tutti_pg_all_reduce(tutti_pg_t *pg, const struct tutti_tensor *tensors, int count,
                                      tutti_op_t reduction,
                                      const struct tutti_pg_call_options *options,
                                      tutti_work_t **work)
{
    static const struct pg_call call =
        PG_TENSORS_CALL("tutti_pg_all_reduce", TUTTI_COLLECTIVE_ALL_REDUCE, pg_list_read);
    const struct coll_args args = {.op = reduction};
    return pg_submit(pg, &call, &(struct pg_lists){{tensors}, {count}}, &args, options, work);
}

static enum tutti_status barrier_read(const struct tutti_pg *pg, const struct pg_call *call,
                                      struct pg_lists *lists, struct pg_operation *operation)
{
    (void)pg, (void)call, (void)lists;
    memset(operation->description.order, LAYOUT_NO_POSITION, sizeof operation->description.order);
    return TUTTI_OK;
}

static void barrier_fill(struct pg_operation *operation, const struct pg_lists *lists)
{
    (void)lists;
    pg_title_make(operation, 0);
}

enum tutti_status tutti_pg_barrier(tutti_pg_t *pg, const struct tutti_pg_call_options *options,
                                   tutti_work_t **work)
{
    static const struct pg_call call = {.name = "tutti_pg_barrier",
                                        .collective = TUTTI_COLLECTIVE_BARRIER,
                                        .read = barrier_read,
                                        .fill = barrier_fill};
    const struct coll_args args = {0};
    return pg_submit(pg, &call, &(struct pg_lists){0}, &args, options, work);
}
