/* SPDX-License-Identifier: MIT */
/* The public collectives: check, fill one request, choose, run. No malloc, lock or system call. */
#include "api/call.h"
#include "api/call_set.h"
#include "base/error.h"
#include "base/op.h"
#include "base/options.h"
#include "base/order.h"
#include "base/signature.h"
#include "coll/backend.h"
#include "coll/coll.h"
#include "coll/region.h"
#include "comm/comm.h"
#include "ipc/fork.h"
#include "record/recorder.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const struct tutti_call_options no_options;

static enum tutti_status options_read(const struct tutti_comm *comm,
                                      const struct tutti_call_options *from, const char *call,
                                      struct tutti_call_options *options)
{
    enum tutti_status status =
        options_copy(call, "tutti_call_options", from, options, sizeof *options);
    if (status != TUTTI_OK)
        return status;
    if (options->flags & ~(uint32_t)TUTTI_CALL_NO_ZERO_COPY)
        return error_set(TUTTI_ERR_INVALID,
                         "%s: flags 0x%" PRIx32 ": expected TUTTI_CALL_NO_ZERO_COPY "
                         "or 0",
                         call, options->flags);
    status = options_algo_check(NULL, options->algo, comm->cuda != NULL);
    if (status == TUTTI_OK)
        status = choice_check(&comm->rules.paths, &comm->topology, options->algo);
    return status == TUTTI_OK ? TUTTI_OK : error_context(status, "%s", call);
}

static enum tutti_status stream_check(const struct tutti_comm *comm, const char *call,
                                      tutti_stream_t stream)
{
    if (__builtin_expect(stream == TUTTI_STREAM_DEFAULT || comm->cuda, 1))
        return TUTTI_OK;
    return error_set(TUTTI_ERR_INVALID,
                     "%s: stream %p: a CPU communicator takes TUTTI_STREAM_DEFAULT only", call,
                     (const void *)stream);
}

/* The signature of a call whose arguments may be wrong. */
static uint64_t signature_of(enum tutti_collective collective, const struct coll_args *args)
{
    const size_t count = coll_varies(collective) ? SIGNATURE_COUNT_VARIES : args->count;
    const bool known = dtype_bytes(args->dtype) != 0;
    return signature_pack(collective, known ? args->dtype : SIGNATURE_NO_DTYPE,
                          known && args->op ? op_kind(args->op) : (enum op_kind)0, TUTTI_ALGO_NONE,
                          count < SIGNATURE_COUNT_MAX ? count : SIGNATURE_COUNT_MAX);
}

/* ---- collectives with elements ----------------------------------------------------------------
 */

/* Refuses an operand on a device that a CPU communicator cannot reach. */
static enum tutti_status device_refuse(const char *call, const char *operand, const void *pointer,
                                       int ordinal)
{
    return error_set(TUTTI_ERR_INVALID,
                     "%s%s%s %p is symmetric memory of device %d: a CPU communicator takes memory "
                     "of the host",
                     call ? call : "", call ? ": " : "", operand, pointer, ordinal);
}

/* `call` and `send`: for the message, as coll_explain() has them. `width`: of an element. `device`
 * is where the operands have to be. */
static inline __attribute__((always_inline)) enum tutti_status
call_check(const struct tutti_comm *comm, const char *call, const struct coll *coll,
           const struct coll_args *args, size_t width, const char *send, enum tutti_device device,
           int rank)
{
    int ordinal;
    const enum coll_error error = coll_check(coll, args, width, rank, comm->world_size);
    if (__builtin_expect(error != COLL_GOOD, 0))
        return coll_explain(call, coll, args, error, comm->rank, comm->world_size, send);
    if (device == TUTTI_DEVICE_CUDA || (!args->count && !coll->varies))
        return TUTTI_OK;
    if (coll_has(coll->send, comm->rank, args->peer) && region_on_device(args->send, &ordinal))
        return device_refuse(call, send, args->send, ordinal);
    if (coll_has(coll->recv, comm->rank, args->peer) && region_on_device(args->recv, &ordinal))
        return device_refuse(call, "recv", args->recv, ordinal);
    return TUTTI_OK;
}

/* Fills the fields that every request has. */
static inline void request_fill(struct tutti_comm *comm, const struct tutti_call_options *options,
                                struct request *request)
{
    request->scalar = 0;
    request->subset = (struct rank_set){{0}}; /* rank_set_none would be loaded */
    request->timeout_ms = options->timeout_ms ? options->timeout_ms : comm->timeout_ms;
    request->timeout_source = options->timeout_ms ? TIMEOUT_OF_CALL : comm->timeout_source;
    request->parameter = 0;
    request->flags = options->flags;
    request->page = comm->recorder.page;
    request->numbers = &comm->recorder.number;
    request->entry = NULL;
    request->quick = false;
}

/* Reads the scalar of a premultiplied sum. The ranks must agree on it, so its hash is the
 * parameter. */
static void scalar_read(tutti_op_t op, struct request *request)
{
    uint64_t bits;
    request->scalar = op->scalar;
    memcpy(&bits, &op->scalar, sizeof bits);
    request->parameter = signature_hash(bits);
}

/* Reads the root, on which the ranks must agree, or the other rank of a message. */
static void peer_read(const struct tutti_comm *comm, const struct coll *coll, int peer,
                      struct request *request)
{
    request->peer = peer;
    if (coll->peer == COLL_ROOT) {
        request->parameter = signature_root(request->parameter, peer);
        return;
    }
    request->subset = rank_set_of(comm->rank);
    rank_set_add(&request->subset, peer);
}

/* Reads the blocks. Where all ranks pass the same counts, they must agree on these. Other counts
 * are compared with each message. */
static void blocks_read(const struct tutti_comm *comm, const struct coll *coll,
                        const struct coll_args *args, size_t width, struct request *request)
{
    const struct coll_blocks *blocks = coll->send_all ? &args->send_blocks : &args->recv_blocks;
    request->send_blocks = args->send_blocks;
    request->recv_blocks = args->recv_blocks;
    request->count = coll_own_count(coll, args, comm->rank);
    request->bytes = width;
    if (coll->peer || coll->send_all == coll->recv_all)
        return;
    for (int r = 0; r < comm->world_size; r++)
        request->parameter = signature_hash(blocks->counts[r] ^ (uint64_t)request->parameter << 32);
}

/* Finds the place where the peers can reach an operand. There is none unless the operand lies in a
 * region of a group with these ranks. */
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

/* Finds the places where the peers can reach the operands. In a collective of all ranks, if an
 * operand has a block for each rank, the peers only read `send`. They must not do so in an
 * all-to-all in place: each rank would write over blocks that its peers still need. With a root,
 * and in a message, the ranks use what they can reach (pair.c). */
static void operands_find(const struct tutti_comm *comm, const struct coll *coll,
                          struct request *request)
{
    const bool sends = coll_has(coll->send, comm->rank, request->peer);
    const bool shows_recv = coll->peer ? coll_has(coll->recv, comm->rank, request->peer)
                                       : !coll->send_all && !coll->recv_all;
    struct layout_operands *operands = &request->operands;
    *operands = (struct layout_operands){.send_id = LAYOUT_PRIVATE, .recv_id = LAYOUT_PRIVATE};
    request->send_buffers = request->recv_buffers = NULL;
    if (request->flags & TUTTI_CALL_NO_ZERO_COPY ||
        (coll->send_all && coll->recv_all && request->send == request->recv))
        return;
    if (rank_set_empty(cpu_group_ranks(comm->host)->remote)) {
        *operands = (struct layout_operands){.send_id = LAYOUT_THIS_PROCESS,
                                             .send = (uintptr_t)request->send,
                                             .recv_id = LAYOUT_THIS_PROCESS,
                                             .recv = (uintptr_t)request->recv};
        return;
    }
    if (sends)
        operand_find(comm, request->send, request->bytes * coll_send_blocks(coll, comm->world_size),
                     &operands->send_id, &operands->send, &request->send_buffers);
    if (shows_recv)
        operand_find(comm, request->recv, request->bytes * coll_recv_blocks(coll, comm->world_size),
                     &operands->recv_id, &operands->recv, &request->recv_buffers);
    if (!coll->peer && shows_recv && operands->recv_id == LAYOUT_PRIVATE)
        operands->send_id = LAYOUT_PRIVATE;
}

/* Checks a call, chooses and makes the request. `rank`: the caller; -1: it may also name itself as
 * the peer. Inlined, so that each collective has its own code. */
static inline __attribute__((always_inline)) enum tutti_status
request_make(struct tutti_comm *comm, enum tutti_collective which, const struct coll_args *args,
             tutti_stream_t stream, const struct tutti_call_options *options, int rank,
             struct request *request)
{
    const struct coll *coll = &coll_rows[which];
    const size_t width = dtype_bytes(args->dtype);
    enum tutti_status status = stream_check(comm, coll->call, stream);
    if (status == TUTTI_OK)
        status = call_check(comm, coll->call, coll, args, width, "send",
                            (enum tutti_device)comm->config.device, rank);
    if (__builtin_expect(status != TUTTI_OK, 0))
        return status;
    const enum op_kind kind = coll->reduces ? op_kind(args->op) : (enum op_kind)0;
    const enum tutti_dtype component = dtype_component(args->dtype);
    const bool is_complex = dtype_is_complex(args->dtype);
    const struct choice_call call = {
        .collective = which,
        .bytes = args->count * width,
        .dtype = args->dtype,
        .algo = options->algo,
        .storage_offset_bytes = options->storage_offset * width,
    };
    status = comm->backend->choose(comm->group, &call, &request->choice);
    if (status == TUTTI_OK && !request->choice.run)
        status = error_set(TUTTI_ERR_DECLINED, "%s: %s: fall back to another library%s", coll->call,
                           request->choice.reason,
                           comm->rules.strict ? ", or switch strict mode off" : "");
    if (status != TUTTI_OK)
        return status;
    request_fill(comm, options, request);
    request->collective = which;
    request->dtype = component;
    request->op = kind;
    request->send_all = coll->send_all;
    request->recv_all = coll->recv_all;
    request->send = args->send;
    request->recv = args->recv;
    request->count = args->count << is_complex;
    request->bytes = call.bytes;
    request->element_bytes = (uint32_t)(width >> is_complex);
    request->reduce = coll->reduces ? reduce_function(comm->isa, component, kind) : NULL;
    /* On CUDA the launcher adds the algorithm of the kernel. */
    request->signature =
        signature_pack(which == TUTTI_COLLECTIVE_RECV ? TUTTI_COLLECTIVE_SEND : which, args->dtype,
                       kind, comm->cuda ? TUTTI_ALGO_NONE : request->choice.algo,
                       coll->varies ? SIGNATURE_COUNT_VARIES : args->count);
    if (coll->reduces && kind == OP_PREMUL_SUM)
        scalar_read(args->op, request);
    if (coll->varies)
        blocks_read(comm, coll, args, width, request);
    if (coll->peer)
        peer_read(comm, coll, args->peer, request);
    if (request->choice.zero_copy)
        operands_find(comm, coll, request);
    return TUTTI_OK;
}

static inline __attribute__((always_inline)) enum tutti_status
collective(struct tutti_comm *comm, enum tutti_collective which, const struct coll_args *args,
           tutti_stream_t stream, const struct tutti_call_options *options)
{
    struct request request;
    const enum tutti_status status =
        request_make(comm, which, args, stream, options, comm->rank, &request);
    if (__builtin_expect(status != TUTTI_OK, 0))
        return call_refused(comm, signature_of(which, args), status);
    return call_ended(comm, &request, request.choice.run->run(comm->group, &request, stream));
}

/* Adds a call to a group of calls: it runs at the group's end. */
static __attribute__((cold, noinline)) enum tutti_status
call_collect(struct call_set *set, struct tutti_comm *comm, enum tutti_collective which,
             struct coll_args args, tutti_stream_t stream, const struct tutti_call_options *given)
{
    const char *call = coll_rows[which].call;
    struct tutti_call_options options = no_options;
    struct request request;
    enum tutti_status status = call_set_enter(set, comm, call);
    if (status != TUTTI_OK)
        return status;
    args.op = args.op ? op_known(args.op) : NULL;
    if (given)
        status = options_read(comm, given, call, &options);
    if (status == TUTTI_OK)
        status = request_make(comm, which, &args, stream, &options,
                              coll_rows[which].peer == COLL_PARTNER ? -1 : comm->rank, &request);
    return call_set_add(set, comm, &request, signature_of(which, &args), status);
}

/* A public call. `given`: its options, NULL for none. The arguments are not copied: the processor
 * would wait for their stores. */
static inline __attribute__((always_inline)) enum tutti_status
call_run(struct tutti_comm *comm, enum tutti_collective which, struct coll_args *args,
         tutti_stream_t stream, const struct tutti_call_options *given)
{
    const char *call = coll_rows[which].call;
    struct tutti_call_options options = no_options;
    enum tutti_status status = TUTTI_OK;
    struct call_set *set = call_set_of(comm);
    if (__builtin_expect(set != NULL, 0))
        return call_collect(set, comm, which, *args, stream, given);
    if (!call_enter(comm))
        return call_refuse_entry(comm, call);
    args->op = args->op ? op_known(args->op) : NULL;
    if (given)
        status = options_read(comm, given, call, &options);
    status = status == TUTTI_OK ? collective(comm, which, args, stream, &options)
                                : call_refused(comm, signature_of(which, args), status);
    call_leave(comm);
    return status;
}

enum tutti_status comm_call_v(struct tutti_comm *comm, enum tutti_collective which,
                              struct coll_args *args, tutti_stream_t stream,
                              const struct tutti_call_options *given)
{
    return call_run(comm, which, args, stream, given);
}

enum tutti_status comm_check_args(const struct tutti_comm *comm, enum tutti_collective which,
                                  const struct coll_args *args, enum tutti_device device)
{
    return call_check(comm, NULL, &coll_rows[which], args, dtype_bytes(args->dtype), "data", device,
                      comm->rank);
}

enum tutti_status comm_run(struct tutti_comm *comm, enum tutti_collective which,
                           const struct coll_args *args, int64_t timeout_ms, tutti_stream_t stream)
{
    /* 0 stands for the communicator's own time-out, whose source is known. */
    const struct tutti_call_options options = {.timeout_ms =
                                                   timeout_ms == comm->timeout_ms ? 0 : timeout_ms};
    return collective(comm, which, args, stream, &options);
}

enum tutti_status tutti_all_reduce(const void *send, void *recv, size_t count,
                                   enum tutti_dtype dtype, tutti_op_t op, tutti_comm_t *comm,
                                   tutti_stream_t stream)
{
    struct coll_args args = coll_args_make(send, recv, count, dtype, op, 0);
    return call_run(comm, TUTTI_COLLECTIVE_ALL_REDUCE, &args, stream, NULL);
}

enum tutti_status tutti_all_reduce_with(const void *send, void *recv, size_t count,
                                        enum tutti_dtype dtype, tutti_op_t op, tutti_comm_t *comm,
                                        tutti_stream_t stream,
                                        const struct tutti_call_options *options)
{
    struct coll_args args = coll_args_make(send, recv, count, dtype, op, 0);
    return call_run(comm, TUTTI_COLLECTIVE_ALL_REDUCE, &args, stream, options);
}

enum tutti_status tutti_all_gather(const void *send, void *recv, size_t count,
                                   enum tutti_dtype dtype, tutti_comm_t *comm,
                                   tutti_stream_t stream)
{
    return tutti_all_gather_with(send, recv, count, dtype, comm, stream, NULL);
}

enum tutti_status tutti_all_gather_with(const void *send, void *recv, size_t count,
                                        enum tutti_dtype dtype, tutti_comm_t *comm,
                                        tutti_stream_t stream,
                                        const struct tutti_call_options *options)
{
    struct coll_args args = coll_args_make(send, recv, count, dtype, NULL, 0);
    return call_run(comm, TUTTI_COLLECTIVE_ALL_GATHER, &args, stream, options);
}

enum tutti_status tutti_reduce_scatter(const void *send, void *recv, size_t count,
                                       enum tutti_dtype dtype, tutti_op_t op, tutti_comm_t *comm,
                                       tutti_stream_t stream)
{
    return tutti_reduce_scatter_with(send, recv, count, dtype, op, comm, stream, NULL);
}

enum tutti_status tutti_reduce_scatter_with(const void *send, void *recv, size_t count,
                                            enum tutti_dtype dtype, tutti_op_t op,
                                            tutti_comm_t *comm, tutti_stream_t stream,
                                            const struct tutti_call_options *options)
{
    struct coll_args args = coll_args_make(send, recv, count, dtype, op, 0);
    return call_run(comm, TUTTI_COLLECTIVE_REDUCE_SCATTER, &args, stream, options);
}

enum tutti_status tutti_broadcast(const void *send, void *recv, size_t count,
                                  enum tutti_dtype dtype, int root, tutti_comm_t *comm,
                                  tutti_stream_t stream)
{
    return tutti_broadcast_with(send, recv, count, dtype, root, comm, stream, NULL);
}

enum tutti_status tutti_broadcast_with(const void *send, void *recv, size_t count,
                                       enum tutti_dtype dtype, int root, tutti_comm_t *comm,
                                       tutti_stream_t stream,
                                       const struct tutti_call_options *options)
{
    struct coll_args args = coll_args_make(send, recv, count, dtype, NULL, root);
    return call_run(comm, TUTTI_COLLECTIVE_BROADCAST, &args, stream, options);
}

enum tutti_status tutti_reduce(const void *send, void *recv, size_t count, enum tutti_dtype dtype,
                               tutti_op_t op, int root, tutti_comm_t *comm, tutti_stream_t stream)
{
    return tutti_reduce_with(send, recv, count, dtype, op, root, comm, stream, NULL);
}

enum tutti_status tutti_reduce_with(const void *send, void *recv, size_t count,
                                    enum tutti_dtype dtype, tutti_op_t op, int root,
                                    tutti_comm_t *comm, tutti_stream_t stream,
                                    const struct tutti_call_options *options)
{
    struct coll_args args = coll_args_make(send, recv, count, dtype, op, root);
    return call_run(comm, TUTTI_COLLECTIVE_REDUCE, &args, stream, options);
}

enum tutti_status tutti_gather(const void *send, void *recv, size_t count, enum tutti_dtype dtype,
                               int root, tutti_comm_t *comm, tutti_stream_t stream)
{
    return tutti_gather_with(send, recv, count, dtype, root, comm, stream, NULL);
}

enum tutti_status tutti_gather_with(const void *send, void *recv, size_t count,
                                    enum tutti_dtype dtype, int root, tutti_comm_t *comm,
                                    tutti_stream_t stream, const struct tutti_call_options *options)
{
    struct coll_args args = coll_args_make(send, recv, count, dtype, NULL, root);
    return call_run(comm, TUTTI_COLLECTIVE_GATHER, &args, stream, options);
}

enum tutti_status tutti_scatter(const void *send, void *recv, size_t count, enum tutti_dtype dtype,
                                int root, tutti_comm_t *comm, tutti_stream_t stream)
{
    return tutti_scatter_with(send, recv, count, dtype, root, comm, stream, NULL);
}

enum tutti_status tutti_scatter_with(const void *send, void *recv, size_t count,
                                     enum tutti_dtype dtype, int root, tutti_comm_t *comm,
                                     tutti_stream_t stream,
                                     const struct tutti_call_options *options)
{
    struct coll_args args = coll_args_make(send, recv, count, dtype, NULL, root);
    return call_run(comm, TUTTI_COLLECTIVE_SCATTER, &args, stream, options);
}

enum tutti_status tutti_send(const void *send, size_t count, enum tutti_dtype dtype, int peer,
                             tutti_comm_t *comm, tutti_stream_t stream)
{
    return tutti_send_with(send, count, dtype, peer, comm, stream, NULL);
}

enum tutti_status tutti_send_with(const void *send, size_t count, enum tutti_dtype dtype, int peer,
                                  tutti_comm_t *comm, tutti_stream_t stream,
                                  const struct tutti_call_options *options)
{
    struct coll_args args = coll_args_make(send, NULL, count, dtype, NULL, peer);
    return call_run(comm, TUTTI_COLLECTIVE_SEND, &args, stream, options);
}

enum tutti_status tutti_recv(void *recv, size_t count, enum tutti_dtype dtype, int peer,
                             tutti_comm_t *comm, tutti_stream_t stream)
{
    return tutti_recv_with(recv, count, dtype, peer, comm, stream, NULL);
}

enum tutti_status tutti_recv_with(void *recv, size_t count, enum tutti_dtype dtype, int peer,
                                  tutti_comm_t *comm, tutti_stream_t stream,
                                  const struct tutti_call_options *options)
{
    struct coll_args args = coll_args_make(NULL, recv, count, dtype, NULL, peer);
    return call_run(comm, TUTTI_COLLECTIVE_RECV, &args, stream, options);
}

enum tutti_status tutti_send_recv(const void *send, size_t send_count, int to, void *recv,
                                  size_t recv_count, int from, enum tutti_dtype dtype,
                                  tutti_comm_t *comm, tutti_stream_t stream)
{
    const enum tutti_status status = tutti_group_start();
    if (status != TUTTI_OK)
        return status;
    if (tutti_send(send, send_count, dtype, to, comm, stream) == TUTTI_OK)
        (void)tutti_recv(recv, recv_count, dtype, from, comm, stream);
    return tutti_group_end();
}

enum tutti_status tutti_all_to_all(const void *send, void *recv, size_t count,
                                   enum tutti_dtype dtype, tutti_comm_t *comm,
                                   tutti_stream_t stream)
{
    return tutti_all_to_all_with(send, recv, count, dtype, comm, stream, NULL);
}

enum tutti_status tutti_all_to_all_with(const void *send, void *recv, size_t count,
                                        enum tutti_dtype dtype, tutti_comm_t *comm,
                                        tutti_stream_t stream,
                                        const struct tutti_call_options *options)
{
    struct coll_args args = coll_args_make(send, recv, count, dtype, NULL, 0);
    return call_run(comm, TUTTI_COLLECTIVE_ALL_TO_ALL, &args, stream, options);
}

/* Reads the subset: all ranks if `ranks` is NULL. */
static enum tutti_status subset_read(const struct tutti_comm *comm, const int *ranks, int count,
                                     struct rank_set *subset)
{
    *subset = rank_set_none;
    if (!ranks && count == 0) {
        *subset = rank_set_all(comm->world_size);
        return TUTTI_OK;
    }
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
    return TUTTI_OK;
}

static const uint64_t barrier_signature = (uint64_t)TUTTI_COLLECTIVE_BARRIER
                                          << SIGNATURE_COLLECTIVE_AT;
static const char barrier_name[] = "tutti_barrier";

static enum tutti_status barrier_make(struct tutti_comm *comm, const int *ranks, int count,
                                      tutti_stream_t stream, const struct tutti_call_options *given,
                                      struct request *request)
{
    struct rank_set subset;
    struct tutti_call_options options = no_options;
    enum tutti_status status = given ? options_read(comm, given, barrier_name, &options) : TUTTI_OK;
    if (status == TUTTI_OK)
        status = stream_check(comm, barrier_name, stream);
    if (status == TUTTI_OK)
        status = subset_read(comm, ranks, count, &subset);
    if (status != TUTTI_OK)
        return status;
    *request = (struct request){.choice.run = comm->backend->barrier};
    request_fill(comm, &options, request);
    request->collective = TUTTI_COLLECTIVE_BARRIER;
    request->signature = barrier_signature;
    if (rank_set_count(subset) != comm->world_size)
        request_set_subset(request, subset);
    return TUTTI_OK;
}

enum tutti_status tutti_barrier(tutti_comm_t *comm, const int *ranks, int count,
                                tutti_stream_t stream)
{
    return tutti_barrier_with(comm, ranks, count, stream, NULL);
}

enum tutti_status tutti_barrier_with(tutti_comm_t *comm, const int *ranks, int count,
                                     tutti_stream_t stream, const struct tutti_call_options *given)
{
    struct request request;
    struct call_set *set = call_set_of(comm);
    enum tutti_status status = TUTTI_OK;
    if (set)
        status = call_set_enter(set, comm, barrier_name);
    else if (!call_enter(comm))
        status = call_refuse_entry(comm, barrier_name);
    if (status != TUTTI_OK)
        return status;
    status = barrier_make(comm, ranks, count, stream, given, &request);
    if (set)
        return call_set_add(set, comm, &request, barrier_signature, status);
    status = status == TUTTI_OK ? call_ended(comm, &request,
                                             request.choice.run->run(comm->group, &request, stream))
                                : call_refused(comm, barrier_signature, status);
    call_leave(comm);
    return status;
}

enum tutti_status tutti_comm_algorithm(tutti_comm_t *comm, size_t count, enum tutti_dtype dtype,
                                       tutti_op_t op, const struct tutti_call_options *given,
                                       enum tutti_algo *algo, const char **reason)
{
    static const char call[] = "tutti_comm_algorithm";
    struct tutti_call_options options = no_options;
    struct choice choice;
    if (comm && !algo)
        return error_set(TUTTI_ERR_INVALID, "%s: algo is NULL", call);
    enum tutti_status status = comm_check_met(comm, call, COMM_MEET_FIRST);
    if (status == TUTTI_OK && given)
        status = options_read(comm, given, call, &options);
    if (status != TUTTI_OK)
        return status;
    const struct coll *coll = &coll_rows[TUTTI_COLLECTIVE_ALL_REDUCE];
    const struct coll_args args = {.count = count, .dtype = dtype, .op = op_known(op)};
    const size_t width = dtype_bytes(dtype);
    const enum coll_error error = coll_kind_check(coll, &args, width);
    if (error != COLL_GOOD)
        return coll_explain(call, coll, &args, error, comm->rank, comm->world_size, "send");
    const struct choice_call asked = {
        .collective = TUTTI_COLLECTIVE_ALL_REDUCE,
        .bytes = count || !comm->cuda ? count * width : 1, /* a choice among kernels needs a size */
        .dtype = dtype,
        .algo = options.algo,
        .storage_offset_bytes = options.storage_offset * width,
    };
    status = comm->backend->choose(comm->group, &asked, &choice);
    *algo = choice.algo;
    if (reason)
        *reason = choice.reason;
    return status;
}
