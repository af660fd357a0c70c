/* SPDX-License-Identifier: MIT */
/* How a call becomes one request and runs: enter, check, choose, fill, run. No malloc, lock or
 * system call. The hot path is inlined, so that each public function has its own code. */
#ifndef TUTTI_COMM_RUN_H
#define TUTTI_COMM_RUN_H

#include "base/error.h"
#include "base/invariant.h"
#include "base/op.h"
#include "base/order.h"
#include "base/signature.h"
#include "base/thread.h"
#include "coll/region.h"
#include "coll/request.h"
#include "comm/comm.h"
#include "ipc/fork.h"

#include <string.h>

/* ---- run.c ----------------------------------------------------------------------------------- */

/* Says why a caller may not enter. */
enum tutti_status call_refuse_entry(struct tutti_comm *comm, const char *call);
/* Checks and copies the options of a public call. `call`: its name. Returns INVALID. */
enum tutti_status call_options_read(const struct tutti_comm *comm, enum tutti_collective which,
                                    const struct tutti_call_options *from, const char *call,
                                    struct tutti_call_options *options);
/* Makes the request of a barrier. `given`: its options, NULL for none. If the barrier is refused,
 * only the signature is set. */
enum tutti_status call_make_barrier(struct tutti_comm *comm, const int *ranks, int count,
                                    tutti_stream_t stream, const struct tutti_call_options *given,
                                    struct request *request);
/* The signature of a call whose arguments may be wrong. */
uint64_t call_signature(enum tutti_collective collective, const struct coll_args *args);
/* Records a call that was refused. Returns `status`. */
__attribute__((cold)) enum tutti_status call_refused(struct tutti_comm *comm, uint64_t signature,
                                                     enum tutti_status status);
/* The same, with call_signature(). */
__attribute__((cold)) enum tutti_status call_refused_args(struct tutti_comm *comm,
                                                          enum tutti_collective which,
                                                          const struct coll_args *args,
                                                          enum tutti_status status);
/* Refuses an operand on a device that a CPU communicator cannot reach. */
__attribute__((cold)) enum tutti_status call_refuse_device(const char *call, const char *operand,
                                                           const void *pointer, int ordinal);
/* Reads what the options of a v-form say of counts on the device. On CPU such counts are the
 * host's. */
void call_read_limits(const struct tutti_comm *comm, const struct coll *coll,
                      const struct tutti_call_options *options, struct coll_args *args);
/* Reads the scalar of a premultiplied sum. The ranks must agree on it, so its hash is the
 * parameter. */
void request_read_scalar(const struct tutti_comm *comm, tutti_op_t op, struct request *request);
/* Reads the blocks of a v-form. */
void request_read_blocks(const struct tutti_comm *comm, const struct coll *coll,
                         const struct coll_args *args, size_t width, struct request *request);
/* Finds how the peers can reach the operands. */
void request_find_operands(const struct tutti_comm *comm, const struct coll *coll,
                           struct request *request);

/* ---- the hot path ---------------------------------------------------------------------------- */

/* One caller at a time, on a communicator that has met. Counts the call. If false, see
 * call_refuse_entry(). */
static inline bool call_enter(struct tutti_comm *comm)
{
    /* C1: pairs call_leave() */
    if (__builtin_expect(!comm || fork_detected(comm->epoch) || !comm->ready ||
                             !order_compare_exchange_u32(&comm->busy, 0, thread_number()),
                         0))
        return false;
    order_store_relaxed_u64(&comm->calls, comm->calls + 1);
    return true;
}

static inline void call_leave(struct tutti_comm *comm)
{
    invariant(order_load_relaxed_u32(&comm->busy) != 0);
    order_store_release_u32(&comm->busy, 0); /* C1 */
}

static inline enum tutti_status call_check_stream(const struct tutti_comm *comm, const char *call,
                                                  tutti_stream_t stream)
{
    if (__builtin_expect(stream == TUTTI_STREAM_DEFAULT || comm->backend->enqueues, 1))
        return TUTTI_OK;
    return error_set(TUTTI_ERR_INVALID,
                     "%s: stream %p: a CPU communicator takes TUTTI_STREAM_DEFAULT only", call,
                     (const void *)stream);
}

/* `call` and `send`: for the message, as coll_explain() has them. `width`: of an element.
 * `on_device`: there the operands have to be, and the back end checks them. */
static inline __attribute__((always_inline)) enum tutti_status
call_check(const struct tutti_comm *comm, const char *call, const struct coll *coll,
           const struct coll_args *args, size_t width, const char *send, bool on_device, int rank)
{
    int ordinal;
    if (on_device && coll->varies && args->limits.most)
        return coll_counted_check(coll, args, rank, comm->world_size);
    const enum coll_error error = coll_check(coll, args, width, rank, comm->world_size);
    if (__builtin_expect(error != COLL_GOOD, 0))
        return coll_explain(call, coll, args, error, comm->rank, comm->world_size, send);
    if (on_device || (!args->count && !coll->varies))
        return TUTTI_OK;
    if (coll_has(coll->send, comm->rank, args->peer) && region_on_device(args->send, &ordinal))
        return call_refuse_device(call, send, args->send, ordinal);
    if (coll_has(coll->recv, comm->rank, args->peer) && region_on_device(args->recv, &ordinal))
        return call_refuse_device(call, "recv", args->recv, ordinal);
    return TUTTI_OK;
}

/* Fills the fields that every request has. */
static inline void request_fill(struct tutti_comm *comm, const struct tutti_call_options *options,
                                struct request *request)
{
    request->scalar.whole = 0;
    request->scalar_in_memory = false;
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

/* Reads the root, on which the ranks must agree, or the other rank of a message. */
static inline void request_read_peer(const struct tutti_comm *comm, const struct coll *coll,
                                     int peer, struct request *request)
{
    request->peer = peer;
    if (coll->peer == COLL_ROOT) {
        request->parameter = signature_root(request->parameter, peer);
        return;
    }
    request->subset = rank_set_of(comm->rank);
    rank_set_add(&request->subset, peer);
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
    enum tutti_status status = call_check_stream(comm, coll->call, stream);
    if (status == TUTTI_OK)
        status =
            call_check(comm, coll->call, coll, args, width, "send", comm->backend->enqueues, rank);
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
        .op = kind,
        .operands = (uintptr_t)args->send | (uintptr_t)args->recv,
        .storage_offset_bytes = options->storage_offset * width,
        .max_blocks = options->max_blocks,
        .flags = options->flags,
        .most = args->limits.most * width,
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
    request->signature =
        signature_pack(which == TUTTI_COLLECTIVE_RECV ? TUTTI_COLLECTIVE_SEND : which, args->dtype,
                       kind, comm->backend->enqueues ? TUTTI_ALGO_NONE : request->choice.algo,
                       coll->varies ? SIGNATURE_COUNT_VARIES : args->count);
    if (coll->reduces && kind == OP_PREMUL_SUM)
        request_read_scalar(comm, args->op, request);
    if (coll->varies)
        request_read_blocks(comm, coll, args, width, request);
    if (coll->peer)
        request_read_peer(comm, coll, args->peer, request);
    if (request->choice.zero_copy)
        request_find_operands(comm, coll, request);
    return TUTTI_OK;
}

/* The end of an operation. The clock is not read again after a quick operation: it ended when its
 * last rank had started. */
static inline enum tutti_status call_ended(struct tutti_comm *comm, const struct request *request,
                                           enum tutti_status status)
{
    if (__builtin_expect(!request->entry, 0))
        return call_refused(comm, request->signature, status);
    if (comm->backend->enqueues) /* it has not ended */
        return status;
    /* An operation that took a number and failed is not the last one that completed. */
    if (__builtin_expect(status != TUTTI_OK && rank_set_empty(request->subset), 0))
        comm->unfinished = true;
    recorder_end(request->entry, status == TUTTI_OK ? RECORD_DONE : RECORD_FAILED, status,
                 request_kind(request), request->quick && status == TUTTI_OK ? 0 : ticks_now());
    return status;
}

/* Runs a call that has entered. */
static inline __attribute__((always_inline)) enum tutti_status
call_run(struct tutti_comm *comm, enum tutti_collective which, const struct coll_args *args,
         tutti_stream_t stream, const struct tutti_call_options *options)
{
    struct request request;
    const enum tutti_status status =
        request_make(comm, which, args, stream, options, comm->rank, &request);
    if (__builtin_expect(status != TUTTI_OK, 0))
        return call_refused_args(comm, which, args, status);
    return call_ended(comm, &request, request.choice.run->run(comm->group, &request, stream));
}

#endif
