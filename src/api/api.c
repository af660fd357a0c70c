/* SPDX-License-Identifier: MIT */
/* The public collectives: check, fill one request, choose, run. No malloc, lock or system call. */
#include "base/dtype.h"
#include "base/error.h"
#include "base/op.h"
#include "base/options.h"
#include "base/order.h"
#include "base/signature.h"
#include "coll/backend.h"
#include "comm/comm.h"
#include "ipc/fork.h"
#include "record/recorder.h"
#include "symm/symm.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const struct tutti_call_options no_options;
static const char all_reduce_name[] = "tutti_all_reduce", barrier_name[] = "tutti_barrier";

/* Says why a caller may not enter. */
static enum tutti_status refuse(struct tutti_comm *comm, const char *call)
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

/* One caller at a time, on a communicator that has met. Counts the call. If false, see refuse(). */
static inline bool enter(struct tutti_comm *comm)
{
    if (__builtin_expect(!comm || fork_detected(comm->epoch) || !comm->ready ||
                             order_exchange_u32(&comm->busy, 1), /* C1: pairs leave() */
                         0))
        return false;
    order_store_relaxed_u64(&comm->calls, comm->calls + 1);
    return true;
}

static inline void leave(struct tutti_comm *comm)
{
    order_store_release_u32(&comm->busy, 0); /* C1 */
}

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

static enum tutti_status stream_check(const struct tutti_comm *comm, tutti_stream_t stream)
{
    if (__builtin_expect(stream == TUTTI_STREAM_DEFAULT || comm->cuda, 1))
        return TUTTI_OK;
    return error_set(TUTTI_ERR_INVALID,
                     "stream %p: a CPU communicator takes TUTTI_STREAM_DEFAULT only",
                     (const void *)stream);
}

/* ---- what is recorded ------------------------------------------------------------------------ */

/* Records a call that was refused. */
static __attribute__((cold, noinline)) enum tutti_status
refused(struct tutti_comm *comm, uint64_t signature, enum tutti_status status)
{
    const struct recorder_operation operation = {.sequence = comm->backend->sequence(comm->group),
                                                 .signature = signature};
    recorder_end(recorder_start(&comm->recorder, &operation, RECORD_REFUSED, ticks_now()),
                 RECORD_REFUSED, status, RECORD_CALL, 0);
    return status;
}

/* The signature of a call whose arguments may be wrong. */
static uint64_t signature_of(size_t count, enum tutti_dtype dtype, tutti_op_t op)
{
    const enum tutti_dtype none = (enum tutti_dtype)15;
    bool known = dtype_bytes(dtype) != 0;
    return signature_pack(TUTTI_COLLECTIVE_ALL_REDUCE, known ? dtype : none,
                          known ? op_kind(op) : (enum op_kind)0, TUTTI_ALGO_NONE,
                          count < SIGNATURE_COUNT_MAX ? count : SIGNATURE_COUNT_MAX);
}

/* The end of an operation. The clock is read again only if the operation took long enough: a quick
 * operation ended when its last rank had started. */
static inline enum tutti_status ended(struct tutti_comm *comm, const struct request *request,
                                      enum tutti_status status)
{
    if (__builtin_expect(!request->entry, 0))
        return refused(comm, request->signature, status);
    if (comm->cuda) /* the stream has it */
        return status;
    /* An operation that took a number and failed is not the last one that completed. */
    if (__builtin_expect(status != TUTTI_OK && !request->subset, 0))
        comm->unfinished = true;
    recorder_end(request->entry, status == TUTTI_OK ? RECORD_DONE : RECORD_FAILED, status,
                 request->subset ? RECORD_SUBSET : RECORD_CALL,
                 request->quick && status == TUTTI_OK ? 0 : ticks_now());
    return status;
}

/* ---- all-reduce ------------------------------------------------------------------------------ */

/* The caller puts the name of the call before the messages of this and of call_check(). */
static enum tutti_status kind_check(size_t count, enum tutti_dtype dtype, tutti_op_t op,
                                    const struct tutti_comm *comm)
{
    size_t width = dtype_bytes(dtype);
    if (!width)
        return error_set(TUTTI_ERR_INVALID, "dtype %d: expected a value of enum tutti_dtype",
                         (int)dtype);
    enum op_kind kind = op_kind(op);
    if (!kind)
        return error_set(TUTTI_ERR_INVALID,
                         "op is none: expected TUTTI_SUM or another constant, or one that "
                         "tutti_op_create_premul_sum() made and that is not destroyed");
    if (!reduce_function(comm->isa, dtype, kind))
        return error_set(TUTTI_ERR_INVALID, "%s is not defined for %s", tutti_op_name(op),
                         tutti_dtype_name(dtype));
    if (count > SIGNATURE_COUNT_MAX || count > SIZE_MAX / width)
        return error_set(TUTTI_ERR_INVALID, "count %zu is more than memory can hold", count);
    return TUTTI_OK;
}

/* `mine` is what the caller knows `send` as; `device` is where the operands have to be. */
static enum tutti_status call_check(const struct tutti_comm *comm, const void *send,
                                    const void *recv, size_t count, enum tutti_dtype dtype,
                                    tutti_op_t op, const char *mine, enum tutti_device device)
{
    int ordinal;
    enum tutti_status status = kind_check(count, dtype, op, comm);
    if (status != TUTTI_OK || !count)
        return status;
    size_t width = dtype_bytes(dtype), bytes = count * width;
    uintptr_t from = (uintptr_t)send, to = (uintptr_t)recv;
    if (!send || !recv)
        return error_set(TUTTI_ERR_INVALID, "%s is NULL with count %zu", send ? "recv" : mine,
                         count);
    if ((from | to) & (width - 1))
        return error_set(TUTTI_ERR_INVALID, "%s %p is not aligned to the %zu bytes of %s",
                         from & (width - 1) ? mine : "recv", from & (width - 1) ? send : recv,
                         width, tutti_dtype_name(dtype));
    if (from != to && from < to + bytes && to < from + bytes)
        return error_set(TUTTI_ERR_INVALID,
                         "send %p and recv %p of %zu bytes overlap in part: use the same address "
                         "or disjoint ones",
                         send, recv, bytes);
    if (device == TUTTI_DEVICE_CUDA)
        return TUTTI_OK;
    const bool from_device = symm_on_device(send, &ordinal);
    if (from_device || symm_on_device(recv, &ordinal))
        return error_set(TUTTI_ERR_INVALID,
                         "%s %p is symmetric memory of device %d: a CPU communicator takes memory "
                         "of the host",
                         from_device ? "send" : "recv", from_device ? send : recv, ordinal);
    return TUTTI_OK;
}

/* What every request begins with: nothing that only some of them have. */
static inline void request_fill(struct tutti_comm *comm, const struct tutti_call_options *options,
                                struct request *request)
{
    request->scalar = 0;
    request->subset = 0;
    request->timeout_ms = options->timeout_ms ? options->timeout_ms : comm->timeout_ms;
    request->timeout_source = options->timeout_ms ? TIMEOUT_OF_CALL : comm->timeout_source;
    request->parameter = 0;
    request->flags = options->flags;
    request->operands = (struct layout_operands){.send_id = LAYOUT_PRIVATE};
    request->send_buffers = request->recv_buffers = NULL;
    request->page = comm->recorder.page;
    request->numbers = &comm->recorder.number;
    request->entry = NULL;
    request->quick = false;
}

/* The scalar of a premultiplied sum is part of what the ranks must agree on. */
static void scalar_read(tutti_op_t op, struct request *request)
{
    uint64_t bits;
    request->scalar = op->scalar;
    memcpy(&bits, &op->scalar, sizeof bits);
    request->parameter = signature_hash(bits);
}

static bool view_find(const struct tutti_comm *comm, const void *pointer, size_t bytes,
                      struct symm_view *view)
{
    const struct symm_view *bounce = comm->bounce;
    if (!bounce)
        return symm_find(pointer, bytes, view);
    const size_t offset = (size_t)((uintptr_t)pointer - (uintptr_t)bounce->buffers[bounce->rank]);
    if (offset >= bounce->buffer_bytes || bytes > bounce->buffer_bytes - offset)
        return symm_find(pointer, bytes, view);
    *view = *bounce;
    view->offset = offset;
    return true;
}

/* Where the peers can reach the operands: if both lie in allocations of a group with these ranks.
 */
static void operands_find(const struct tutti_comm *comm, struct request *request)
{
    struct symm_view send, recv;
    if (request->flags & TUTTI_CALL_NO_ZERO_COPY)
        return;
    if (cpu_group_ranks(comm->host)->remote == 0) {
        request->operands = (struct layout_operands){.send_id = LAYOUT_THIS_PROCESS,
                                                     .send = (uintptr_t)request->send,
                                                     .recv_id = LAYOUT_THIS_PROCESS,
                                                     .recv = (uintptr_t)request->recv};
        return;
    }
    if (!view_find(comm, request->send, request->bytes, &send) ||
        !view_find(comm, request->recv, request->bytes, &recv) || send.rank != comm->rank ||
        send.world_size != comm->world_size || recv.rank != comm->rank ||
        recv.world_size != comm->world_size)
        return;
    request->operands = (struct layout_operands){
        .send_id = send.id, .send = send.offset, .recv_id = recv.id, .recv = recv.offset};
    request->send_buffers = send.buffers;
    request->recv_buffers = recv.buffers;
}

static enum tutti_status all_reduce(const void *send, void *recv, size_t count,
                                    enum tutti_dtype dtype, tutti_op_t op, struct tutti_comm *comm,
                                    tutti_stream_t stream, const struct tutti_call_options *options)
{
    struct request request;
    enum tutti_status status = stream_check(comm, stream);
    if (status == TUTTI_OK)
        status = call_check(comm, send, recv, count, dtype, op, "send",
                            (enum tutti_device)comm->config.device);
    if (__builtin_expect(status != TUTTI_OK, 0))
        return refused(comm, signature_of(count, dtype, op),
                       error_context(status, "%s", all_reduce_name));
    const size_t width = dtype_bytes(dtype);
    const enum op_kind kind = op_kind(op);
    const struct choice_call call = {
        .bytes = count * width,
        .dtype = dtype,
        .algo = options->algo,
        .storage_offset_bytes = options->storage_offset * width,
    };
    status = comm->backend->choose(comm->group, &call, &request.choice);
    if (status == TUTTI_OK && !request.choice.transport)
        status = error_set(TUTTI_ERR_DECLINED,
                           "%s: %s: fall back to another library, or switch strict mode off",
                           all_reduce_name, request.choice.reason);
    if (status != TUTTI_OK)
        return refused(comm, signature_of(count, dtype, op), status);
    request_fill(comm, options, &request);
    request.send = send;
    request.recv = recv;
    request.count = count;
    request.bytes = call.bytes;
    request.reduce = reduce_function(comm->isa, dtype, kind);
    /* On CUDA the launcher adds the kernel's algorithm. */
    request.signature = signature_pack(TUTTI_COLLECTIVE_ALL_REDUCE, dtype, kind,
                                       comm->cuda ? TUTTI_ALGO_NONE : request.choice.algo, count);
    request.element_bytes = (uint32_t)width;
    request.dtype = dtype;
    request.op = kind;
    if (kind == OP_PREMUL_SUM)
        scalar_read(op, &request);
    if (request.choice.zero_copy)
        operands_find(comm, &request);
    return ended(comm, &request, request.choice.transport->run(comm->group, &request, stream));
}

enum tutti_status comm_all_reduce_check(const struct tutti_comm *comm, const void *data,
                                        size_t count, enum tutti_dtype dtype, tutti_op_t op,
                                        enum tutti_device device)
{
    return call_check(comm, data, data, count, dtype, op, "data", device);
}

enum tutti_status comm_all_reduce_on(struct tutti_comm *comm, void *data, size_t count,
                                     enum tutti_dtype dtype, tutti_op_t op, int64_t timeout_ms,
                                     tutti_stream_t stream)
{
    /* 0 stands for the communicator's own time-out, whose source is known. */
    const struct tutti_call_options options = {.timeout_ms =
                                                   timeout_ms == comm->timeout_ms ? 0 : timeout_ms};
    return all_reduce(data, data, count, dtype, op, comm, stream, &options);
}

enum tutti_status comm_all_reduce(struct tutti_comm *comm, void *data, size_t count,
                                  enum tutti_dtype dtype, tutti_op_t op, int64_t timeout_ms)
{
    return comm_all_reduce_on(comm, data, count, dtype, op, timeout_ms, TUTTI_STREAM_DEFAULT);
}

enum tutti_status tutti_all_reduce(const void *send, void *recv, size_t count,
                                   enum tutti_dtype dtype, tutti_op_t op, tutti_comm_t *comm,
                                   tutti_stream_t stream)
{
    if (!enter(comm))
        return refuse(comm, all_reduce_name);
    enum tutti_status status =
        all_reduce(send, recv, count, dtype, op_known(op), comm, stream, &no_options);
    leave(comm);
    return status;
}

enum tutti_status tutti_all_reduce_with(const void *send, void *recv, size_t count,
                                        enum tutti_dtype dtype, tutti_op_t op, tutti_comm_t *comm,
                                        tutti_stream_t stream,
                                        const struct tutti_call_options *given)
{
    struct tutti_call_options options = no_options;
    if (!enter(comm))
        return refuse(comm, all_reduce_name);
    op = op_known(op);
    enum tutti_status status =
        given ? options_read(comm, given, all_reduce_name, &options) : TUTTI_OK;
    status = status == TUTTI_OK ? all_reduce(send, recv, count, dtype, op, comm, stream, &options)
                                : refused(comm, signature_of(count, dtype, op), status);
    leave(comm);
    return status;
}

/* The subset as bits. All ranks if none are named. */
static enum tutti_status subset_read(const struct tutti_comm *comm, const int *ranks, int count,
                                     uint64_t *subset)
{
    *subset = 0;
    if (!ranks && count == 0) {
        *subset = comm->world_size == 64 ? UINT64_MAX : (UINT64_C(1) << comm->world_size) - 1;
        return TUTTI_OK;
    }
    if (!ranks || count < 1)
        return error_set(TUTTI_ERR_INVALID,
                         "%d ranks at %p: expected NULL and 0 for all ranks, or "
                         "at least one rank",
                         count, (const void *)ranks);
    for (int i = 0; i < count; i++) {
        if (ranks[i] < 0 || ranks[i] >= comm->world_size)
            return error_set(TUTTI_ERR_INVALID, "ranks[%d] is %d: expected 0 to %d", i, ranks[i],
                             comm->world_size - 1);
        if (*subset >> ranks[i] & 1)
            return error_set(TUTTI_ERR_INVALID, "ranks[%d] names rank %d twice", i, ranks[i]);
        *subset |= UINT64_C(1) << ranks[i];
    }
    if (!(*subset >> comm->rank & 1))
        return error_set(TUTTI_ERR_INVALID, "the subset lacks the caller, rank %d", comm->rank);
    return TUTTI_OK;
}

static const uint64_t barrier_signature = (uint64_t)TUTTI_COLLECTIVE_BARRIER << 60;

static enum tutti_status barrier(struct tutti_comm *comm, const int *ranks, int count,
                                 tutti_stream_t stream, const struct tutti_call_options *options)
{
    uint64_t subset;
    struct request request = {0};
    enum tutti_status status = stream_check(comm, stream);
    if (status == TUTTI_OK)
        status = subset_read(comm, ranks, count, &subset);
    if (status != TUTTI_OK)
        return refused(comm, barrier_signature, error_context(status, "%s", barrier_name));
    request_fill(comm, options, &request);
    request.signature = barrier_signature;
    if (__builtin_popcountll(subset) != comm->world_size) {
        request.subset = subset;
        request.parameter = signature_hash(subset);
    }
    return ended(comm, &request, comm->backend->barrier->run(comm->group, &request, stream));
}

enum tutti_status tutti_barrier(tutti_comm_t *comm, const int *ranks, int count,
                                tutti_stream_t stream)
{
    return tutti_barrier_with(comm, ranks, count, stream, NULL);
}

enum tutti_status tutti_barrier_with(tutti_comm_t *comm, const int *ranks, int count,
                                     tutti_stream_t stream, const struct tutti_call_options *given)
{
    struct tutti_call_options options = no_options;
    if (!enter(comm))
        return refuse(comm, barrier_name);
    enum tutti_status status = given ? options_read(comm, given, barrier_name, &options) : TUTTI_OK;
    status = status == TUTTI_OK ? barrier(comm, ranks, count, stream, &options)
                                : refused(comm, barrier_signature, status);
    leave(comm);
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
    op = op_known(op);
    status = kind_check(count, dtype, op, comm);
    if (status != TUTTI_OK)
        return error_context(status, "%s", call);
    const size_t width = dtype_bytes(dtype);
    const struct choice_call asked = {
        .bytes = count || !comm->cuda ? count * width : 1, /* a kernel's answer needs a size */
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
