/* SPDX-License-Identifier: MIT */
/* The public collectives: enter the communicator, read the options, run one call (comm/run.h). */
#include "comm/call_set.h"
#include "comm/run.h"

static const struct tutti_call_options no_options;

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
        status = call_options_read(comm, which, given, call, &options);
    if (coll_rows[which].varies && status == TUTTI_OK)
        call_read_limits(comm, &coll_rows[which], &options, &args);
    if (status == TUTTI_OK)
        status = request_make(comm, which, &args, stream, &options,
                              coll_rows[which].peer == COLL_PARTNER ? -1 : comm->rank, &request);
    return call_set_add(set, comm, &request, stream, call_signature(which, &args), status);
}

/* A public call. `given`: its options, NULL for none. The arguments are not copied: the processor
 * would wait for their stores. */
static inline __attribute__((always_inline)) enum tutti_status
public_call(struct tutti_comm *comm, enum tutti_collective which, struct coll_args *args,
            tutti_stream_t stream, const struct tutti_call_options *given)
{
    const char *call = coll_rows[which].call;
    struct tutti_call_options options = no_options;
    enum tutti_status status = TUTTI_OK;
    struct call_set *set = call_set_of_thread();
    if (__builtin_expect(set != NULL, 0))
        return call_collect(set, comm, which, *args, stream, given);
    if (!call_enter(comm))
        return call_refuse_entry(comm, call);
    args->op = args->op ? op_known(args->op) : NULL;
    if (given)
        status = call_options_read(comm, which, given, call, &options);
    if (coll_rows[which].varies && status == TUTTI_OK)
        call_read_limits(comm, &coll_rows[which], &options, args);
    status = status == TUTTI_OK ? call_run(comm, which, args, stream, &options)
                                : call_refused_args(comm, which, args, status);
    call_leave(comm);
    return status;
}

enum tutti_status tutti_all_reduce(const void *send, void *recv, size_t count,
                                   enum tutti_dtype dtype, tutti_op_t op, tutti_comm_t *comm,
                                   tutti_stream_t stream)
{
    struct coll_args args = coll_args_make(send, recv, count, dtype, op, 0);
    return public_call(comm, TUTTI_COLLECTIVE_ALL_REDUCE, &args, stream, NULL);
}

enum tutti_status tutti_all_reduce_with(const void *send, void *recv, size_t count,
                                        enum tutti_dtype dtype, tutti_op_t op, tutti_comm_t *comm,
                                        tutti_stream_t stream,
                                        const struct tutti_call_options *options)
{
    struct coll_args args = coll_args_make(send, recv, count, dtype, op, 0);
    return public_call(comm, TUTTI_COLLECTIVE_ALL_REDUCE, &args, stream, options);
}

/* Defines both public forms of a collective: tutti_NAME_with(), and tutti_NAME(), which has no
 * options. Both are functions of the library, since programs look them up by name (dlsym, cffi).
 * `run`: public_call() or v_call(). Behind it the parameters before `comm`, their names, and the
 * fields of struct coll_args that they fill. */
#define UNPACK(...) __VA_ARGS__
#define FORMS(name, COLLECTIVE, run, parameters, names, ...)                                       \
    enum tutti_status tutti_##name##_with(UNPACK parameters, tutti_comm_t *comm,                   \
                                          tutti_stream_t stream,                                   \
                                          const struct tutti_call_options *options)                \
    {                                                                                              \
        struct coll_args args = {__VA_ARGS__};                                                     \
        return run(comm, TUTTI_COLLECTIVE_##COLLECTIVE, &args, stream, options);                   \
    }                                                                                              \
    enum tutti_status tutti_##name(UNPACK parameters, tutti_comm_t *comm, tutti_stream_t stream)   \
    {                                                                                              \
        return tutti_##name##_with(UNPACK names, comm, stream, NULL);                              \
    }

/* A copy of the code for each v-form would not be faster. */
static __attribute__((noinline)) enum tutti_status
v_call(struct tutti_comm *comm, enum tutti_collective which, struct coll_args *args,
       tutti_stream_t stream, const struct tutti_call_options *given)
{
    return public_call(comm, which, args, stream, given);
}

/* clang-format off */
FORMS(all_gather, ALL_GATHER, public_call,
      (const void *send, void *recv, size_t count, enum tutti_dtype dtype),
      (send, recv, count, dtype), .send = send, .recv = recv, .count = count, .dtype = dtype)
FORMS(reduce_scatter, REDUCE_SCATTER, public_call,
      (const void *send, void *recv, size_t count, enum tutti_dtype dtype, tutti_op_t op),
      (send, recv, count, dtype, op),
      .send = send, .recv = recv, .count = count, .dtype = dtype, .op = op)
FORMS(all_to_all, ALL_TO_ALL, public_call,
      (const void *send, void *recv, size_t count, enum tutti_dtype dtype),
      (send, recv, count, dtype), .send = send, .recv = recv, .count = count, .dtype = dtype)
FORMS(broadcast, BROADCAST, public_call,
      (const void *send, void *recv, size_t count, enum tutti_dtype dtype, int root),
      (send, recv, count, dtype, root),
      .send = send, .recv = recv, .count = count, .dtype = dtype, .peer = root)
FORMS(reduce, REDUCE, public_call,
      (const void *send, void *recv, size_t count, enum tutti_dtype dtype, tutti_op_t op, int root),
      (send, recv, count, dtype, op, root),
      .send = send, .recv = recv, .count = count, .dtype = dtype, .op = op, .peer = root)
FORMS(gather, GATHER, public_call,
      (const void *send, void *recv, size_t count, enum tutti_dtype dtype, int root),
      (send, recv, count, dtype, root),
      .send = send, .recv = recv, .count = count, .dtype = dtype, .peer = root)
FORMS(scatter, SCATTER, public_call,
      (const void *send, void *recv, size_t count, enum tutti_dtype dtype, int root),
      (send, recv, count, dtype, root),
      .send = send, .recv = recv, .count = count, .dtype = dtype, .peer = root)
FORMS(send, SEND, public_call,
      (const void *send, size_t count, enum tutti_dtype dtype, int peer),
      (send, count, dtype, peer), .send = send, .count = count, .dtype = dtype, .peer = peer)
FORMS(recv, RECV, public_call,
      (void *recv, size_t count, enum tutti_dtype dtype, int peer),
      (recv, count, dtype, peer), .recv = recv, .count = count, .dtype = dtype, .peer = peer)
FORMS(all_gather_v, ALL_GATHER_V, v_call,
      (const void *send, size_t count, void *recv, const size_t *counts,
       const size_t *displacements, enum tutti_dtype dtype),
      (send, count, recv, counts, displacements, dtype),
      .send = send, .recv = recv, .count = count, .dtype = dtype,
      .recv_blocks = {counts, displacements, false})
FORMS(reduce_scatter_v, REDUCE_SCATTER_V, v_call,
      (const void *send, const size_t *counts, const size_t *displacements, void *recv,
       enum tutti_dtype dtype, tutti_op_t op),
      (send, counts, displacements, recv, dtype, op),
      .send = send, .recv = recv, .dtype = dtype, .op = op,
      .send_blocks = {counts, displacements, false})
FORMS(all_to_all_v, ALL_TO_ALL_V, v_call,
      (const void *send, const size_t *send_counts, const size_t *send_displacements, void *recv,
       const size_t *recv_counts, const size_t *recv_displacements, enum tutti_dtype dtype),
      (send, send_counts, send_displacements, recv, recv_counts, recv_displacements, dtype),
      .send = send, .recv = recv, .dtype = dtype,
      .send_blocks = {send_counts, send_displacements, false},
      .recv_blocks = {recv_counts, recv_displacements, false})
FORMS(gather_v, GATHER_V, v_call,
      (const void *send, size_t count, void *recv, const size_t *counts,
       const size_t *displacements, enum tutti_dtype dtype, int root),
      (send, count, recv, counts, displacements, dtype, root),
      .send = send, .recv = recv, .count = count, .dtype = dtype, .peer = root,
      .recv_blocks = {counts, displacements, false})
FORMS(scatter_v, SCATTER_V, v_call,
      (const void *send, const size_t *counts, const size_t *displacements, void *recv,
       size_t count, enum tutti_dtype dtype, int root),
      (send, counts, displacements, recv, count, dtype, root),
      .send = send, .recv = recv, .count = count, .dtype = dtype, .peer = root,
      .send_blocks = {counts, displacements, false})
/* clang-format on */

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

/* ---- barriers and queries ------------------------------------------------------------------- */

enum tutti_status tutti_barrier(tutti_comm_t *comm, const int *ranks, int count,
                                tutti_stream_t stream)
{
    return tutti_barrier_with(comm, ranks, count, stream, NULL);
}

enum tutti_status tutti_barrier_with(tutti_comm_t *comm, const int *ranks, int count,
                                     tutti_stream_t stream, const struct tutti_call_options *given)
{
    const char *call = coll_rows[TUTTI_COLLECTIVE_BARRIER].call;
    struct request request;
    struct call_set *set = call_set_of_thread();
    enum tutti_status status = TUTTI_OK;
    if (set)
        status = call_set_enter(set, comm, call);
    else if (!call_enter(comm))
        status = call_refuse_entry(comm, call);
    if (status != TUTTI_OK)
        return status;
    status = call_make_barrier(comm, ranks, count, stream, given, &request);
    if (set)
        return call_set_add(set, comm, &request, stream, request.signature, status);
    status = status == TUTTI_OK ? call_ended(comm, &request,
                                             request.choice.run->run(comm->group, &request, stream))
                                : call_refused(comm, request.signature, status);
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
        status = call_options_read(comm, TUTTI_COLLECTIVE_ALL_REDUCE, given, call, &options);
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
        .bytes = count || !comm->backend->enqueues ? count * width
                                                   : 1, /* a choice among kernels needs a size */
        .dtype = dtype,
        .algo = options.algo,
        .op = op_kind(args.op),
        .storage_offset_bytes = options.storage_offset * width,
    };
    status = comm->backend->choose(comm->group, &asked, &choice);
    *algo = choice.algo;
    if (reason)
        *reason = choice.reason;
    return status;
}
