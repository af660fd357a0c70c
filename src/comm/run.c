/* SPDX-License-Identifier: MIT */
#include "comm/run.h"

#include "base/options.h"
#include "base/point.h"

#include <inttypes.h>
#include <stdio.h>

enum tutti_status call_refuse_entry(struct tutti_comm *comm, const char *call)
{
    char advice[sizeof comm->reason + 64] = COMM_MEET_FIRST;
    comm_count_refused();
    if (comm && comm->reason[0])
        snprintf(advice, sizeof advice, COMM_MEET_FIRST "; it failed: %s", comm->reason);
    enum tutti_status status = comm_check_met(comm, call, advice);
    if (status == TUTTI_OK)
        status = comm_check_finalized(comm, call);
    if (status != TUTTI_OK)
        return status;
    return error_set(TUTTI_ERR_CONCURRENT,
                     "%s: another thread is inside communicator \"%s\", or it serves a process "
                     "group: one caller at a time, or a communicator for each thread and group",
                     call, comm->name);
}

/* What can be said of the flags for symmetric recv without the operands. */
static enum tutti_status push_check(const struct tutti_comm *comm, enum tutti_collective which,
                                    uint32_t flags, const char *call)
{
    const bool by_engines = flags & TUTTI_CALL_COPY_ENGINE;
    const char *flag = by_engines ? "COPY_ENGINE" : "SYMMETRIC"; /* after TUTTI_CALL_ */
    if (!by_engines && !(flags & TUTTI_CALL_SYMMETRIC))
        return TUTTI_OK;
    if (by_engines && flags & TUTTI_CALL_SYMMETRIC)
        return error_set(TUTTI_ERR_INVALID,
                         "%s: TUTTI_CALL_COPY_ENGINE and TUTTI_CALL_SYMMETRIC: expected one of "
                         "them at most",
                         call);
    if (!comm->backend->enqueues)
        return error_set(
            TUTTI_ERR_INVALID,
            "%s: TUTTI_CALL_%s is for CUDA, and this is a CPU communicator: leave the flag out",
            call, flag);
    if (!coll_moves(which))
        return error_set(
            TUTTI_ERR_INVALID,
            "%s: TUTTI_CALL_%s is for all_gather, all_to_all, broadcast, gather and scatter: "
            "leave the flag out",
            call, flag);
    return TUTTI_OK;
}

/* Checks TUTTI_CALL_DEVICE_COUNTS and the fields that belong to it. */
static enum tutti_status device_counts_check(enum tutti_collective which,
                                             const struct tutti_call_options *options,
                                             const char *call)
{
    const bool is_set = options->flags & TUTTI_CALL_DEVICE_COUNTS;
    if (!is_set && !options->max_count && !options->send_extent && !options->recv_extent &&
        !(options->flags & TUTTI_CALL_INT32_COUNTS))
        return TUTTI_OK;
    if (!is_set)
        return error_set(TUTTI_ERR_INVALID,
                         "%s: max_count, send_extent, recv_extent and TUTTI_CALL_INT32_COUNTS "
                         "belong to TUTTI_CALL_DEVICE_COUNTS: set that flag, or leave them out",
                         call);
    if (!coll_varies(which) || coll_is_rooted(which))
        return error_set(TUTTI_ERR_INVALID,
                         "%s: TUTTI_CALL_DEVICE_COUNTS is for all_gather_v, reduce_scatter_v and "
                         "all_to_all_v: leave the flag out",
                         call);
    if (!options->max_count || options->max_count >= SIGNATURE_COUNT_MAX)
        return error_set(TUTTI_ERR_INVALID,
                         "%s: TUTTI_CALL_DEVICE_COUNTS: max_count %zu: expected the most elements "
                         "of a block, 1 or more",
                         call, options->max_count);
    return TUTTI_OK;
}

enum tutti_status call_options_read(const struct tutti_comm *comm, enum tutti_collective which,
                                    const struct tutti_call_options *from, const char *call,
                                    struct tutti_call_options *options)
{
    const uint32_t known = TUTTI_CALL_NO_ZERO_COPY | TUTTI_CALL_COPY_ENGINE |
                           TUTTI_CALL_DEVICE_COUNTS | TUTTI_CALL_INT32_COUNTS |
                           TUTTI_CALL_SYMMETRIC;
    enum tutti_status status =
        options_copy(call, "tutti_call_options", from, options, sizeof *options);
    if (status != TUTTI_OK)
        return status;
    if (options->flags & ~known)
        return error_set(TUTTI_ERR_INVALID,
                         "%s: flags 0x%" PRIx32 ": expected TUTTI_CALL_NO_ZERO_COPY, "
                         "TUTTI_CALL_COPY_ENGINE, TUTTI_CALL_DEVICE_COUNTS, "
                         "TUTTI_CALL_INT32_COUNTS and TUTTI_CALL_SYMMETRIC, any of them or 0",
                         call, options->flags);
    status = push_check(comm, which, options->flags, call);
    if (status != TUTTI_OK)
        return status;
    status = device_counts_check(which, options, call);
    if (status != TUTTI_OK)
        return status;
    if (options->max_blocks < 0)
        return error_set(TUTTI_ERR_INVALID,
                         "%s: max_blocks %d: expected 1 or more, or 0 for the communicator's limit",
                         call, options->max_blocks);
    status = options_algo_check(NULL, options->algo, comm->backend->enqueues);
    if (status == TUTTI_OK)
        status = choice_check(&comm->rules.paths, &comm->topology, options->algo);
    return status == TUTTI_OK ? TUTTI_OK : error_context(status, "%s", call);
}

uint64_t call_signature(enum tutti_collective collective, const struct coll_args *args)
{
    const size_t count = coll_varies(collective) ? SIGNATURE_COUNT_VARIES : args->count;
    const bool known = dtype_bytes(args->dtype) != 0;
    return signature_pack(collective, known ? args->dtype : SIGNATURE_NO_DTYPE,
                          known && args->op ? op_kind(args->op) : (enum op_kind)0, TUTTI_ALGO_NONE,
                          count < SIGNATURE_COUNT_MAX ? count : SIGNATURE_COUNT_MAX);
}

enum tutti_status call_refused(struct tutti_comm *comm, uint64_t signature,
                               enum tutti_status status)
{
    const struct recorder_operation operation = {.sequence = comm->backend->sequence(comm->group),
                                                 .signature = signature};
    recorder_end(recorder_start(&comm->recorder, &operation, RECORD_REFUSED, ticks_now()),
                 RECORD_REFUSED, status, RECORD_CALL, 0);
    return status;
}

enum tutti_status call_refused_args(struct tutti_comm *comm, enum tutti_collective which,
                                    const struct coll_args *args, enum tutti_status status)
{
    return call_refused(comm, call_signature(which, args), status);
}

enum tutti_status call_refuse_device(const char *call, const char *operand, const void *pointer,
                                     int ordinal)
{
    return error_set(TUTTI_ERR_INVALID,
                     "%s%s%s %p is symmetric memory of device %d: a CPU communicator takes memory "
                     "of the host",
                     call ? call : "", call ? ": " : "", operand, pointer, ordinal);
}

/* ---- requests -------------------------------------------------------------------------------- */

void call_read_limits(const struct tutti_comm *comm, const struct coll *coll,
                      const struct tutti_call_options *options, struct coll_args *args)
{
    if (!(options->flags & TUTTI_CALL_DEVICE_COUNTS))
        return;
    args->limits = (struct coll_limits){
        .most = options->max_count,
        .send_extent = options->send_extent
                           ? options->send_extent
                           : options->max_count * coll_send_blocks(coll, comm->world_size),
        .recv_extent = options->recv_extent
                           ? options->recv_extent
                           : options->max_count * coll_recv_blocks(coll, comm->world_size),
    };
    args->send_blocks.is_narrow = args->recv_blocks.is_narrow =
        options->flags & TUTTI_CALL_INT32_COUNTS;
    if (!coll->send_all)
        args->count = comm->backend->enqueues || !args->recv_blocks.counts
                          ? 0
                          : coll_block_count(&args->recv_blocks, comm->rank);
}

void request_read_scalar(const struct tutti_comm *comm, tutti_op_t op, struct request *request)
{
    request->scalar_in_memory = op->memory && comm->backend->enqueues;
    if (request->scalar_in_memory)
        request->scalar.memory = op->memory;
    else
        request->scalar = op_scalar_of(op, request->dtype);
    request->parameter =
        signature_hash(request->scalar_in_memory ? OP_SCALAR_IN_MEMORY : request->scalar.whole);
}

/* Where all ranks pass the same counts, they must agree on these, and on max_count. Other counts,
 * and those on a device, are compared with each message, or by the kernel. */
void request_read_blocks(const struct tutti_comm *comm, const struct coll *coll,
                         const struct coll_args *args, size_t width, struct request *request)
{
    const struct coll_blocks *blocks = coll->send_all ? &args->send_blocks : &args->recv_blocks;
    const bool is_counted = args->limits.most && comm->backend->enqueues;
    request->send_blocks = args->send_blocks;
    request->recv_blocks = args->recv_blocks;
    request->limits = args->limits;
    request->count = is_counted ? 0 : coll_own_count(coll, args, comm->rank);
    request->bytes = width;
    if (args->limits.most)
        request->parameter = signature_hash(args->limits.most ^ (uint64_t)request->parameter << 32);
    if (is_counted || !coll_has_common_counts(request->collective))
        return;
    for (int r = 0; r < comm->world_size; r++)
        request->parameter =
            signature_hash(coll_block_count(blocks, r) ^ (uint64_t)request->parameter << 32);
}

/* Finds how the peers can reach an operand. They cannot unless the operand lies in a region of a
 * group with these ranks. */
static void operand_find(const struct tutti_comm *comm, const void *operand, size_t bytes,
                         uint64_t *id, uint64_t *offset, void *const **buffers)
{
    const struct region *region = region_find(operand, bytes);
    if (!region || region->rank != comm->rank || region->world_size != comm->world_size)
        return;
    *id = region->id;
    *offset = (uintptr_t)operand - (uintptr_t)region->base;
    *buffers = region->buffers;
}

/* In a collective of all ranks, if an operand has a block for each rank, the peers only read
 * `send`. They must not do so in an all-to-all in place: each rank would write over blocks that its
 * peers still need. With a root, and in a message, the ranks use what they can reach (pair.c).
 * Where the kernel copies between processes, an all-gather and an all-to-all show addresses. */
void request_find_operands(const struct tutti_comm *comm, const struct coll *coll,
                           struct request *request)
{
    const bool sends = coll_has(coll->send, comm->rank, request->peer);
    const bool receives = coll_has(coll->recv, comm->rank, request->peer);
    const bool shows_recv = coll->peer ? receives : !coll->send_all && !coll->recv_all;
    const size_t send_bytes = request->bytes * coll_send_blocks(coll, comm->world_size);
    const size_t recv_bytes = request->bytes * coll_recv_blocks(coll, comm->world_size);
    struct layout_operands *operands = &request->operands;
    *operands = (struct layout_operands){.send_id = LAYOUT_PRIVATE, .recv_id = LAYOUT_PRIVATE};
    request->send_buffers = request->recv_buffers = NULL;
    request->shows_send = request->shows_recv = false;
    if (request->flags & TUTTI_CALL_NO_ZERO_COPY ||
        (coll->send_all && coll->recv_all && request->send == request->recv))
        return;
    if (rank_set_empty(peers_ranks(comm->peers)->remote)) {
        *operands = (struct layout_operands){.send_id = LAYOUT_THIS_PROCESS,
                                             .send = (uintptr_t)request->send,
                                             .recv_id = LAYOUT_THIS_PROCESS,
                                             .recv = (uintptr_t)request->recv};
        return;
    }
    if (sends)
        operand_find(comm, request->send, send_bytes, &operands->send_id, &operands->send,
                     &request->send_buffers);
    if (shows_recv)
        operand_find(comm, request->recv, recv_bytes, &operands->recv_id, &operands->recv,
                     &request->recv_buffers);
    if (!coll->peer && shows_recv && operands->recv_id == LAYOUT_PRIVATE)
        operands->send_id = LAYOUT_PRIVATE;
    if (!request->choice.direct)
        return;
    request->shows_send =
        sends && peers_copies_reach(comm->peers, request->send, send_bytes, false);
    request->shows_recv =
        coll->peer && receives && peers_copies_reach(comm->peers, request->recv, recv_bytes, true);
    if (!coll->peer && request->shows_send && operands->send_id == LAYOUT_PRIVATE) {
        operands->send_id = LAYOUT_ADDRESS;
        operands->send = (uintptr_t)request->send;
    }
    POINT("run.shown");
}

/* Reads the subset of a barrier. It is empty if all ranks belong to it. */
static enum tutti_status subset_read(const struct tutti_comm *comm, const int *ranks, int count,
                                     struct rank_set *subset)
{
    *subset = rank_set_none;
    if (!ranks && count == 0)
        return TUTTI_OK;
    if (!ranks || count < 1)
        return error_set(TUTTI_ERR_INVALID,
                         "tutti_barrier: %d ranks at %p: expected NULL and 0 for all ranks, or "
                         "at least one rank",
                         count, (const void *)ranks);
    for (int i = 0; i < count; i++) {
        if (ranks[i] < 0 || ranks[i] >= comm->world_size)
            return error_set(TUTTI_ERR_INVALID, "tutti_barrier: ranks[%d] is %d: expected 0 to %d",
                             i, ranks[i], comm->world_size - 1);
        if (rank_set_has(*subset, ranks[i]))
            return error_set(TUTTI_ERR_INVALID, "tutti_barrier: ranks[%d] names rank %d twice", i,
                             ranks[i]);
        rank_set_add(subset, ranks[i]);
    }
    if (!rank_set_has(*subset, comm->rank))
        return error_set(TUTTI_ERR_INVALID, "tutti_barrier: the subset lacks the caller, rank %d",
                         comm->rank);
    if (count == comm->world_size)
        *subset = rank_set_none;
    return TUTTI_OK;
}

enum tutti_status call_make_barrier(struct tutti_comm *comm, const int *ranks, int count,
                                    tutti_stream_t stream, const struct tutti_call_options *given,
                                    struct request *request)
{
    const char *call = coll_rows[TUTTI_COLLECTIVE_BARRIER].call;
    struct rank_set subset;
    struct tutti_call_options options = {0};
    *request = (struct request){.choice.run = comm->backend->barrier,
                                .collective = TUTTI_COLLECTIVE_BARRIER,
                                .signature = (uint64_t)TUTTI_COLLECTIVE_BARRIER
                                             << SIGNATURE_COLLECTIVE_AT};
    enum tutti_status status =
        given ? call_options_read(comm, request->collective, given, call, &options) : TUTTI_OK;
    if (status == TUTTI_OK)
        status = call_check_stream(comm, call, stream);
    if (status == TUTTI_OK)
        status = subset_read(comm, ranks, count, &subset);
    if (status != TUTTI_OK)
        return status;
    request_fill(comm, &options, request);
    if (!rank_set_empty(subset))
        request_set_subset(request, subset);
    return TUTTI_OK;
}

/* ---- calls of other rooms ----------------------------------------------------------------------
 */

enum tutti_status comm_check_args(const struct tutti_comm *comm, enum tutti_collective which,
                                  const struct coll_args *args, enum tutti_device device)
{
    return call_check(comm, NULL, &coll_rows[which], args, dtype_bytes(args->dtype), "data",
                      device == TUTTI_DEVICE_CUDA, comm->rank);
}

enum tutti_status comm_run(struct tutti_comm *comm, enum tutti_collective which,
                           const struct coll_args *args, int64_t timeout_ms, tutti_stream_t stream)
{
    /* 0 stands for the communicator's own time-out, whose source is known. */
    const struct tutti_call_options options = {.timeout_ms =
                                                   timeout_ms == comm->timeout_ms ? 0 : timeout_ms};
    return call_run(comm, which, args, stream, &options);
}
