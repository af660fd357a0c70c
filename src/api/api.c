/* SPDX-License-Identifier: MIT */
/* The way in of every collective: check, fill one request, choose, go. No malloc, lock or system
 * call on it. */
#include "base/dtype.h"
#include "base/error.h"
#include "base/op.h"
#include "base/options.h"
#include "base/order.h"
#include "base/signature.h"
#include "coll/request.h"
#include "comm/comm.h"
#include "comm/plan.h"
#include "cuda/runtime/group.h"
#include "ipc/fork.h"
#include "record/recorder.h"
#include "symm/symm.h"

#include <inttypes.h>
#include <string.h>

static const struct tutti_call_options no_options;

/* Longer one-shots are worth zero-copy and its second hop, which costs more where ranks share
 * cores. */
static inline size_t copied_bytes(const struct tutti_comm *comm)
{
    return comm->cpu.oversubscribed ? 2 * LAYOUT_BODY_BYTES : LAYOUT_BODY_BYTES;
}

/* Why a caller may not enter. */
static enum tutti_status refuse(struct tutti_comm *comm, const char *call)
{
    comm_count_refused();
    if (!comm)
        return error_set(TUTTI_ERR_INVALID, "%s: comm is NULL", call);
    if (fork_detected(comm->epoch))
        return comm_refuse_child(comm, call);
    if (!comm->ready)
        return error_set(TUTTI_ERR_INVALID,
                         "%s: communicator \"%s\" has not met: call tutti_comm_rendezvous()%s%s",
                         call, comm->name, comm->reason[0] ? "; it failed: " : "", comm->reason);
    if (order_load_relaxed_u32(&comm->finalized)) /* relaxed: nothing but itself */
        return error_set(
            TUTTI_ERR_INVALID,
            "%s: communicator \"%s\" was finalized: destroy it, and create another one", call,
            comm->name);
    return error_set(TUTTI_ERR_CONCURRENT,
                     "%s: another thread is inside communicator \"%s\", or it serves a process "
                     "group: one caller at a time, or a communicator for each thread and group",
                     call, comm->name);
}

/* One caller at a time, on a communicator that has met. Counts the call. */
static enum tutti_status enter(struct tutti_comm *comm, const char *call)
{
    if (__builtin_expect(!comm || fork_detected(comm->epoch) || !comm->ready ||
                             order_exchange_u32(&comm->busy, 1), /* C1: pairs leave() */
                         0))
        return refuse(comm, call);
    order_store_relaxed_u64(&comm->calls, comm->calls + 1);
    return TUTTI_OK;
}

static void leave(struct tutti_comm *comm)
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
        status = plan_check(&comm->paths, &comm->topology, options->algo);
    return status == TUTTI_OK ? TUTTI_OK : error_context(status, "%s", call);
}

static enum tutti_status refuse_stream(tutti_stream_t stream, const char *call)
{
    return error_set(TUTTI_ERR_INVALID,
                     "%s: stream %p: a CPU communicator takes TUTTI_STREAM_DEFAULT "
                     "only",
                     call, (const void *)stream);
}

/* The options that hold: the caller's, read into *copy, or none. */
static inline enum tutti_status settle(struct tutti_comm *comm, const char *call,
                                       tutti_stream_t stream,
                                       const struct tutti_call_options *given,
                                       struct tutti_call_options *copy,
                                       const struct tutti_call_options **options)
{
    *options = given ? copy : &no_options;
    if (stream != TUTTI_STREAM_DEFAULT && !comm->cuda)
        return refuse_stream(stream, call);
    return given ? options_read(comm, given, call, copy) : TUTTI_OK;
}

/* ---- what is recorded ------------------------------------------------------------------------ */

/* Of the last operation that was begun, or enqueued. */
static inline uint64_t sequence_of(const struct tutti_comm *comm)
{
    return __builtin_expect(comm->cuda != NULL, 0) ? cuda_group_sequence(comm->cuda)
                                                   : comm->cpu.sequence;
}

/* An operation that nothing came of. */
static __attribute__((cold, noinline)) enum tutti_status
refused(struct tutti_comm *comm, uint64_t signature, enum tutti_status status)
{
    const struct recorder_operation operation = {.sequence = sequence_of(comm),
                                                 .signature = signature};
    recorder_end(recorder_start(&comm->recorder, &operation, RECORD_REFUSED, ticks_now()),
                 RECORD_REFUSED, status, RECORD_CALL, 0);
    return status;
}

/* Of a call that may be nonsense. */
static uint64_t signature_of(size_t count, enum tutti_dtype dtype, tutti_op_t op)
{
    const enum tutti_dtype none = (enum tutti_dtype)15;
    bool known = dtype_bytes(dtype) != 0;
    return signature_pack(TUTTI_COLLECTIVE_ALL_REDUCE, known ? dtype : none,
                          known ? op_kind(op) : (enum op_kind)0, TUTTI_ALGO_NONE,
                          count < SIGNATURE_COUNT_MAX ? count : SIGNATURE_COUNT_MAX);
}

static inline struct record_entry *started(struct tutti_comm *comm, const struct request *request,
                                           enum record_kind kind)
{
    const struct recorder_operation operation = {.sequence = comm->cpu.sequence,
                                                 .signature = request->signature,
                                                 .parameter = request->parameter,
                                                 .kind = kind};
    return recorder_start(&comm->recorder, &operation, RECORD_RUNNING, ticks_now());
}

/* The clock is asked once more only where that is little beside the operation: one that was quick
 * ended when its last rank had started. */
static inline enum tutti_status ended(const struct tutti_comm *comm, struct record_entry *entry,
                                      const struct request *request, enum record_kind kind,
                                      enum tutti_status status)
{
    bool quick = status == TUTTI_OK && !comm->cpu.deadline && request->bytes <= LAYOUT_BODY_BYTES;
    recorder_end(entry, status == TUTTI_OK ? RECORD_DONE : RECORD_FAILED, status, kind,
                 quick ? 0 : ticks_now());
    return status;
}

/* Of a CUDA communicator: the stream has it, or it was refused. `former` is the sequence before. */
static enum tutti_status enqueued(struct tutti_comm *comm, const struct request *request,
                                  uint64_t former, bool subset, enum tutti_status status)
{
    if (status != TUTTI_OK)
        return refused(comm, request->signature, status);
    const struct recorder_operation operation = {
        .sequence = sequence_of(comm),
        .signature = request->signature,
        .parameter = request->parameter,
        .kind = subset                        ? RECORD_SUBSET
                : sequence_of(comm) == former ? RECORD_CAPTURED
                                              : RECORD_CALL,
    };
    recorder_start(&comm->recorder, &operation, RECORD_ENQUEUED, ticks_now());
    return TUTTI_OK;
}

/* ---- all-reduce ------------------------------------------------------------------------------ */

/* dtype, op and count. Who calls this and the two below puts the call before what they say. */
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

/* Both operands of one or more elements; `mine` is what the caller knows the first one as. */
static enum tutti_status operands_check(const void *send, const void *recv, size_t count,
                                        enum tutti_dtype dtype, const char *mine)
{
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
    return TUTTI_OK;
}

/* Of a CPU communicator: other memory of devices is not known here. */
static enum tutti_status host_check(const void *send, const void *recv)
{
    int ordinal;
    bool from = symm_on_device(send, &ordinal);
    if (!from && !symm_on_device(recv, &ordinal))
        return TUTTI_OK;
    return error_set(TUTTI_ERR_INVALID,
                     "%s %p is symmetric memory of device %d: a CPU communicator takes memory of "
                     "the host",
                     from ? "send" : "recv", from ? send : recv, ordinal);
}

/* The scalar of a premultiplied sum is part of what the ranks must agree on. */
static void op_read(tutti_op_t op, enum op_kind kind, struct request *request)
{
    if (kind != OP_PREMUL_SUM)
        return;
    uint64_t bits;
    request->scalar = op->scalar;
    memcpy(&bits, &op->scalar, sizeof bits);
    request->parameter = signature_hash(bits);
}

static bool is_float(enum tutti_dtype dtype)
{
    return dtype <= TUTTI_FLOAT8_E5M2;
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

/* Where peers can find the operands, if they can: both in allocations of a group with our ranks. */
static void operands_find(const struct tutti_comm *comm, struct request *request)
{
    struct symm_view send, recv;
    if (request->flags & TUTTI_CALL_NO_ZERO_COPY)
        return;
    if (comm->cpu.one_process) {
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

static enum tutti_algo algorithm_pick(const struct tutti_comm *comm, size_t bytes,
                                      enum tutti_dtype dtype,
                                      const struct tutti_call_options *options, const char **reason)
{
    const struct plan_input input = {
        .bytes = bytes,
        .dtype = dtype,
        .forced = options->algo ? options->algo : (enum tutti_algo)comm->config.algo,
        .strict = comm->config.strict,
        .storage_offset_bytes = options->storage_offset * dtype_bytes(dtype),
        .buffer_size = (size_t)comm->config.buffer_size,
        .world_size = comm->world_size,
        .topology = comm->topology.kind,
        .paths = comm->paths,
        .oversubscribed = comm->cpu.oversubscribed,
        .table = comm->cuda != NULL,
    };
    return plan_pick(&input, reason);
}

/* An abort ends the next operation too, whether or not it would have had to wait. */
static bool is_over(const struct cpu_group *group)
{
    return order_load_acquire_u32(&group->failed) || /* A4 pairs F4 */
           order_load_relaxed_u32(&group->aborted);
}

/* An operation of the whole group begins: it takes a number, unless the group has failed. */
static enum tutti_status operation_begin(struct cpu_group *group)
{
    if (__builtin_expect(is_over(group), 0))
        return cpu_group_status(group, NULL);
    /* Relaxed: tutti_comm_status() reads it from other threads, for its reports. */
    order_store_relaxed_u64(&group->sequence, group->sequence + 1);
    group->mailed = true;
    group->deadline = 0;
    return TUTTI_OK;
}

/* An operation that took a number and failed is not the last that completed. */
static enum tutti_status operation_end(struct tutti_comm *comm, enum tutti_status status)
{
    if (__builtin_expect(status != TUTTI_OK, 0))
        comm->unfinished = true;
    return status;
}

static inline enum tutti_status request_make(const void *send, void *recv, size_t count,
                                             enum tutti_dtype dtype, tutti_op_t op,
                                             const struct tutti_comm *comm,
                                             const struct tutti_call_options *options,
                                             struct request *request)
{
    const char *reason;
    enum tutti_status status = kind_check(count, dtype, op, comm);
    if (status == TUTTI_OK && count)
        status = operands_check(send, recv, count, dtype, "send");
    if (status == TUTTI_OK && count && !comm->cuda)
        status = host_check(send, recv);
    if (status != TUTTI_OK)
        return error_context(status, "tutti_all_reduce");

    enum op_kind kind = op_kind(op);
    size_t bytes = count * dtype_bytes(dtype);
    enum tutti_algo algo = TUTTI_ALGO_ONE_SHOT;
    if (bytes > comm->small_bytes || options->algo || comm->cuda)
        algo = algorithm_pick(comm, bytes, dtype, options, &reason);
    if (algo == TUTTI_ALGO_NONE && comm->config.strict)
        return error_set(TUTTI_ERR_DECLINED,
                         "tutti_all_reduce: %s: fall back to another library, or switch strict "
                         "mode off",
                         reason);
    /* Every field by name: what is left out would be cleared first, the whole struct with it. */
    *request = (struct request){
        .send = send,
        .recv = recv,
        .count = count,
        .bytes = bytes,
        .reduce = reduce_function(comm->isa, dtype, kind),
        .scalar = 0,
        /* On CUDA the launcher adds the transport that it takes. */
        .signature = signature_pack(TUTTI_COLLECTIVE_ALL_REDUCE, dtype, kind,
                                    comm->cuda ? TUTTI_ALGO_NONE : algo, count),
        .timeout_ms = options->timeout_ms ? options->timeout_ms : comm->timeout_ms,
        .timeout_source = options->timeout_ms ? TIMEOUT_OF_CALL : comm->timeout_source,
        .parameter = 0,
        .flags = options->flags,
        .element_bytes = (uint32_t)dtype_bytes(dtype),
        .algo = algo,
        .dtype = dtype,
        .op = kind,
        .operands = {.send_id = LAYOUT_PRIVATE, .send = 0, .recv_id = LAYOUT_PRIVATE, .recv = 0},
        .send_buffers = NULL,
        .recv_buffers = NULL,
    };
    op_read(op, kind, request);
    return TUTTI_OK;
}

static inline enum tutti_status run(struct tutti_comm *comm, const struct request *request)
{
    if (request->count == 0)
        return cpu_barrier(&comm->cpu, request);
    if (!is_float(request->dtype))
        return cpu_all_reduce(&comm->cpu, request);
    uint64_t environment = reduce_env_begin();
    enum tutti_status status = cpu_all_reduce(&comm->cpu, request);
    reduce_env_end(environment);
    return status;
}

static enum tutti_status all_reduce(const void *send, void *recv, size_t count,
                                    enum tutti_dtype dtype, tutti_op_t op, struct tutti_comm *comm,
                                    tutti_stream_t stream, const struct tutti_call_options *options)
{
    struct request request;
    enum tutti_status status = request_make(send, recv, count, dtype, op, comm, options, &request);
    if (status != TUTTI_OK)
        return refused(comm, signature_of(count, dtype, op), status);
    if (comm->cuda) {
        uint64_t former = sequence_of(comm);
        status = cuda_all_reduce(comm->cuda, &request, stream);
        return enqueued(comm, &request, former, false, status);
    }
    if (request.algo == TUTTI_ALGO_TWO_SHOT ||
        (request.algo == TUTTI_ALGO_ONE_SHOT && request.bytes > copied_bytes(comm)))
        operands_find(comm, &request);
    status = operation_begin(&comm->cpu);
    if (status != TUTTI_OK)
        return refused(comm, request.signature, status);
    cpu_all_reduce_begin(&comm->cpu, &request);
    struct record_entry *entry = started(comm, &request, RECORD_CALL);
    return ended(comm, entry, &request, RECORD_CALL, operation_end(comm, run(comm, &request)));
}

enum tutti_status comm_all_reduce_check_device(const struct tutti_comm *comm, const void *data,
                                               size_t count, enum tutti_dtype dtype, tutti_op_t op)
{
    enum tutti_status status = kind_check(count, dtype, op, comm);
    return status == TUTTI_OK && count ? operands_check(data, data, count, dtype, "data") : status;
}

enum tutti_status comm_all_reduce_check(const struct tutti_comm *comm, const void *data,
                                        size_t count, enum tutti_dtype dtype, tutti_op_t op)
{
    enum tutti_status status = comm_all_reduce_check_device(comm, data, count, dtype, op);
    return status == TUTTI_OK && count ? host_check(data, data) : status;
}

enum tutti_status comm_all_reduce_on(struct tutti_comm *comm, void *data, size_t count,
                                     enum tutti_dtype dtype, tutti_op_t op, int64_t timeout_ms,
                                     tutti_stream_t stream)
{
    /* The communicator's own is left to it, which knows where it comes from. */
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
    return tutti_all_reduce_with(send, recv, count, dtype, op, comm, stream, NULL);
}

enum tutti_status tutti_all_reduce_with(const void *send, void *recv, size_t count,
                                        enum tutti_dtype dtype, tutti_op_t op, tutti_comm_t *comm,
                                        tutti_stream_t stream,
                                        const struct tutti_call_options *given)
{
    struct tutti_call_options copy;
    const struct tutti_call_options *options;
    static const char call[] = "tutti_all_reduce";
    enum tutti_status status = enter(comm, call);
    if (status != TUTTI_OK)
        return status;
    op = op_known(op);
    status = settle(comm, call, stream, given, &copy, &options);
    status = status == TUTTI_OK ? all_reduce(send, recv, count, dtype, op, comm, stream, options)
                                : refused(comm, signature_of(count, dtype, op), status);
    leave(comm);
    return status;
}

/* The subset as bits; all ranks when none are named. */
static enum tutti_status subset_read(const struct tutti_comm *comm, const int *ranks, int count,
                                     uint64_t *subset)
{
    static const char call[] = "tutti_barrier";
    *subset = 0;
    if (!ranks && count == 0) {
        *subset = comm->world_size == 64 ? UINT64_MAX : (UINT64_C(1) << comm->world_size) - 1;
        return TUTTI_OK;
    }
    if (!ranks || count < 1)
        return error_set(TUTTI_ERR_INVALID,
                         "%s: %d ranks at %p: expected NULL and 0 for all ranks, or "
                         "at least one rank",
                         call, count, (const void *)ranks);
    for (int i = 0; i < count; i++) {
        if (ranks[i] < 0 || ranks[i] >= comm->world_size)
            return error_set(TUTTI_ERR_INVALID, "%s: ranks[%d] is %d: expected 0 to %d", call, i,
                             ranks[i], comm->world_size - 1);
        if (*subset >> ranks[i] & 1)
            return error_set(TUTTI_ERR_INVALID, "%s: ranks[%d] names rank %d twice", call, i,
                             ranks[i]);
        *subset |= UINT64_C(1) << ranks[i];
    }
    if (!(*subset >> comm->rank & 1))
        return error_set(TUTTI_ERR_INVALID, "%s: the subset lacks the caller, rank %d", call,
                         comm->rank);
    return TUTTI_OK;
}

static const uint64_t barrier_signature = (uint64_t)TUTTI_COLLECTIVE_BARRIER << 60;

static enum tutti_status barrier_run(struct tutti_comm *comm, uint64_t subset,
                                     const struct request *request)
{
    enum tutti_status status = TUTTI_OK;
    if (!subset)
        status = operation_begin(&comm->cpu);
    else if (is_over(&comm->cpu))
        status = cpu_group_status(&comm->cpu, NULL);
    if (status != TUTTI_OK)
        return refused(comm, request->signature, status);
    enum record_kind kind = subset ? RECORD_SUBSET : RECORD_CALL;
    if (subset) {
        comm->cpu.mailed = false;
        comm->cpu.deadline = 0;
    }
    struct record_entry *entry = started(comm, request, kind);
    status = subset ? cpu_barrier_subset(&comm->cpu, subset, request)
                    : operation_end(comm, cpu_barrier(&comm->cpu, request));
    return ended(comm, entry, request, kind, status);
}

static enum tutti_status barrier(struct tutti_comm *comm, const int *ranks, int count,
                                 tutti_stream_t stream, const struct tutti_call_options *options)
{
    uint64_t subset;
    enum tutti_status status = subset_read(comm, ranks, count, &subset);
    if (status != TUTTI_OK)
        return refused(comm, barrier_signature, status);
    if (__builtin_popcountll(subset) == comm->world_size)
        subset = 0;
    const struct request request = {
        .signature = barrier_signature,
        .timeout_ms = options->timeout_ms ? options->timeout_ms : comm->timeout_ms,
        .timeout_source = options->timeout_ms ? TIMEOUT_OF_CALL : comm->timeout_source,
        .parameter = subset ? signature_hash(subset) : 0,
    };
    if (!comm->cuda)
        return barrier_run(comm, subset, &request);
    uint64_t former = sequence_of(comm);
    status = cuda_barrier(comm->cuda, subset, &request, stream);
    return enqueued(comm, &request, former, subset != 0, status);
}

enum tutti_status tutti_barrier(tutti_comm_t *comm, const int *ranks, int count,
                                tutti_stream_t stream)
{
    return tutti_barrier_with(comm, ranks, count, stream, NULL);
}

enum tutti_status tutti_barrier_with(tutti_comm_t *comm, const int *ranks, int count,
                                     tutti_stream_t stream, const struct tutti_call_options *given)
{
    struct tutti_call_options copy;
    const struct tutti_call_options *options;
    static const char call[] = "tutti_barrier";
    enum tutti_status status = enter(comm, call);
    if (status != TUTTI_OK)
        return status;
    status = settle(comm, call, stream, given, &copy, &options);
    status = status == TUTTI_OK ? barrier(comm, ranks, count, stream, options)
                                : refused(comm, barrier_signature, status);
    leave(comm);
    return status;
}

enum tutti_status tutti_comm_algorithm(tutti_comm_t *comm, size_t count, enum tutti_dtype dtype,
                                       tutti_op_t op, const struct tutti_call_options *given,
                                       enum tutti_algo *algo, const char **reason)
{
    static const char call[] = "tutti_comm_algorithm";
    struct tutti_call_options options;
    const char *why, *table_why;
    if (!comm || !algo)
        return error_set(TUTTI_ERR_INVALID, "%s: %s is NULL", call, comm ? "algo" : "comm");
    if (fork_detected(comm->epoch))
        return comm_refuse_child(comm, call);
    if (!comm->ready)
        return error_set(TUTTI_ERR_INVALID,
                         "%s: communicator \"%s\" has not met: call tutti_comm_rendezvous()", call,
                         comm->name);
    enum tutti_status status = given ? options_read(comm, given, call, &options) : TUTTI_OK;
    if (status != TUTTI_OK)
        return status;
    op = op_known(op);
    status = kind_check(count, dtype, op, comm);
    if (status != TUTTI_OK)
        return error_context(status, "%s", call);
    size_t bytes = count * dtype_bytes(dtype);
    *algo = algorithm_pick(comm, bytes, dtype, given ? &options : &no_options, &why);
    /* Strict mode has but the roots' names. */
    if (comm->cuda && !comm->config.strict)
        status = cuda_algorithm(comm->cuda, *algo, dtype, bytes ? bytes : 1, algo,
                                *algo == TUTTI_ALGO_NONE ? &why : &table_why);
    if (reason)
        *reason = why;
    return status;
}
