/* SPDX-License-Identifier: MIT */
/* Collectives, messages and reductions: NCCL's call as Tutti's. */
#include "real.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* NCCL's numbers. */
static const enum tutti_dtype dtypes[ncclNumTypes] = {
    [ncclInt8] = TUTTI_INT8,
    [ncclUint8] = TUTTI_UINT8,
    [ncclInt32] = TUTTI_INT32,
    [ncclUint32] = TUTTI_UINT32,
    [ncclInt64] = TUTTI_INT64,
    [ncclUint64] = TUTTI_UINT64,
    [ncclFloat16] = TUTTI_FLOAT16,
    [ncclFloat32] = TUTTI_FLOAT32,
    [ncclFloat64] = TUTTI_FLOAT64,
    [ncclBfloat16] = TUTTI_BFLOAT16,
    [ncclFloat8e4m3] = TUTTI_FLOAT8_E4M3,
    [ncclFloat8e5m2] = TUTTI_FLOAT8_E5M2,
};

static size_t dtype_bytes(ncclDataType_t dtype)
{
    return (unsigned)dtype < ncclNumTypes ? tutti_dtype_size(dtypes[dtype]) : 0;
}

/* ---- reductions ------------------------------------------------------------------------------ */

static struct scalar *scalar_of(const struct ncclComm *comm, ncclRedOp_t op)
{
    const unsigned index = (unsigned)op - ncclNumOps;
    struct scalar *scalar =
        op >= ncclNumOps && index < (unsigned)comm->scalar_count ? &comm->scalars[index] : NULL;
    return scalar && scalar->op ? scalar : NULL;
}

static ncclResult_t op_check(const struct ncclComm *comm, ncclRedOp_t op, ncclDataType_t dtype,
                             const char *name)
{
    if ((unsigned)op < ncclNumOps)
        return ncclSuccess;
    const struct scalar *scalar = scalar_of(comm, op);
    if (!scalar)
        return fail(ncclInvalidArgument, "%s: %d is no reduction of this communicator", name,
                    (int)op);
    if (scalar->dtype != dtype)
        return fail(ncclInvalidArgument,
                    "%s: the premultiplied sum was made for dtype %d, and the call has %d", name,
                    (int)scalar->dtype, (int)dtype);
    return ncclSuccess;
}

/* The reduction of a call, which was checked. */
static tutti_op_t op_of(const struct call *call)
{
    static const tutti_op_t ops[] = {TUTTI_SUM, TUTTI_PROD, TUTTI_MAX, TUTTI_MIN, TUTTI_AVG};
    return (unsigned)call->op < ncclNumOps ? ops[call->op] : scalar_of(call->comm, call->op)->op;
}

NCCL_DEFINE(ncclResult_t, ncclRedOpCreatePreMulSum, ncclRedOp_t *op, void *scalar,
            ncclDataType_t dtype, ncclScalarResidence_t residence, ncclComm_t comm)
{
    static const char name[] = "ncclRedOpCreatePreMulSum";
    struct scalar made = {.dtype = dtype};
    ncclResult_t result = comm_enter(comm, SYMBOL_ncclRedOpCreatePreMulSum, true);
    if (result != ncclSuccess)
        return result;
    if (!op || !scalar || (residence != ncclScalarDevice && residence != ncclScalarHostImmediate))
        return comm_leave(comm, fail(ncclInvalidArgument,
                                     "%s: op or scalar is NULL, or residence %d is neither 0 nor 1",
                                     name, (int)residence));
    if (!comm->comm)
        return comm_leave(comm, fail_real(REAL(ncclRedOpCreatePreMulSum)(op, scalar, dtype,
                                                                         residence, comm->real),
                                          name));
    if (!dtype_bytes(dtype))
        return comm_leave(
            comm, fail(ncclInvalidArgument, "%s: %d is no data type of NCCL's", name, (int)dtype));
    int index = 0;
    while (index < comm->scalar_count && comm->scalars[index].op)
        index++;
    if (index == comm->scalar_count) {
        struct scalar *scalars = realloc(comm->scalars, (size_t)(index + 1) * sizeof *scalars);
        if (!scalars)
            return comm_leave(comm, fail(ncclSystemError, "%s: no memory", name));
        comm->scalars = scalars;
        comm->scalar_count++;
    }
    result = fail_status((residence == ncclScalarDevice
                              ? tutti_op_create_premul_sum_device
                              : tutti_op_create_premul_sum_typed)(scalar, dtypes[dtype], &made.op),
                         name);
    comm->scalars[index] = made;
    *op = (ncclRedOp_t)(ncclNumOps + index);
    return comm_leave(comm, result);
}

NCCL_DEFINE(ncclResult_t, ncclRedOpDestroy, ncclRedOp_t op, ncclComm_t comm)
{
    const ncclResult_t result = comm_enter(comm, SYMBOL_ncclRedOpDestroy, false);
    if (result != ncclSuccess)
        return result;
    if (!comm->comm && comm->real)
        return comm_leave(comm,
                          fail_real(REAL(ncclRedOpDestroy)(op, comm->real), "ncclRedOpDestroy"));
    struct scalar *scalar = scalar_of(comm, op);
    if (!scalar)
        return comm_leave(comm, fail(ncclInvalidArgument,
                                     "ncclRedOpDestroy: %d is no premultiplied sum of this "
                                     "communicator",
                                     (int)op));
    tutti_op_destroy(scalar->op);
    *scalar = (struct scalar){.op = NULL};
    return comm_leave(comm, ncclSuccess);
}

/* ---- NCCL's functions ------------------------------------------------------------------------ */

static ncclResult_t config_read(struct call *call, const ncclCollConfig_t *config)
{
    const char *name = symbol_names[call->symbol];
    if (!config)
        return ncclSuccess;
    if (config->magic != NCCL_API_MAGIC || config->size < sizeof *config)
        return fail(ncclInvalidArgument,
                    "%s: the configuration was not initialized: use NCCL_COLLCONFIG_INITIALIZER",
                    name);
    if (config->algSelection && *config->algSelection && config->forceAlgSelection)
        return fail(ncclInvalidUsage,
                    "%s: algSelection \"%s\" names algorithms of NCCL's: leave it NULL, or set "
                    "forceAlgSelection to 0",
                    name, config->algSelection);
    if (config->maxCTAs != NCCL_CONFIG_UNDEF_INT && config->maxCTAs < 1)
        return fail(ncclInvalidArgument, "%s: maxCTAs is %d: expected 1 or more", name,
                    config->maxCTAs);
    call->max_blocks = config->maxCTAs == NCCL_CONFIG_UNDEF_INT ? 0 : config->maxCTAs;
    call->launched = config->launchCompletionEvent;
    return ncclSuccess;
}

static bool reduces(enum symbol kind)
{
    return kind == SYMBOL_ncclAllReduce || kind == SYMBOL_ncclReduceScatter ||
           kind == SYMBOL_ncclReduce;
}

/* Settles what the communicator decides. A reduction of one rank is a copy, as NCCL's is. */
static void call_settle(struct call *call)
{
    if (call->comm->ranks == 1 && reduces(call->kind) && (unsigned)call->op < ncclNumOps) {
        call->kind = SYMBOL_ncclBroadcast;
        call->peer = 0;
    }
    if (!call->max_blocks)
        call->max_blocks = call->comm->max_blocks;
}

/* Checks a call and passes it on, or keeps it for the end of the group. */
static ncclResult_t call_make(struct call call, const ncclCollConfig_t *config)
{
    const char *name = symbol_names[call.symbol];
    ncclResult_t result = comm_enter(call.comm, call.symbol, true);
    if (result != ncclSuccess)
        return group_refuse(result);
    if (!dtype_bytes(call.dtype))
        result =
            fail(ncclInvalidArgument, "%s: %d is no data type of NCCL's", name, (int)call.dtype);
    else if (call.peer < 0 || call.peer >= call.comm->ranks)
        result = fail(ncclInvalidArgument, "%s: rank %d: expected 0 to %d", name, call.peer,
                      call.comm->ranks - 1);
    else if (call.comm->comm && reduces(call.kind))
        result = op_check(call.comm, call.op, call.dtype, name);
    if (result == ncclSuccess)
        result = config_read(&call, config);
    if (result != ncclSuccess)
        return group_refuse(comm_leave(call.comm, result));
    call_settle(&call);
    return group_call(&call);
}

#define STREAM(stream) ((tutti_stream_t)(void *)(stream))

/* Defines a collective and its form with a configuration. */
#define COLLECTIVE(name, parameters, ...)                                                          \
    NCCL_DEFINE(ncclResult_t, name, COLLECTIVE_##parameters)                                       \
    {                                                                                              \
        return call_make(                                                                          \
            (struct call){.symbol = SYMBOL_##name, .kind = SYMBOL_##name, __VA_ARGS__}, NULL);     \
    }                                                                                              \
    NCCL_DEFINE(ncclResult_t, name##Config, COLLECTIVE_##parameters,                               \
                const ncclCollConfig_t *config)                                                    \
    {                                                                                              \
        return call_make(                                                                          \
            (struct call){.symbol = SYMBOL_##name##Config, .kind = SYMBOL_##name, __VA_ARGS__},    \
            config);                                                                               \
    }
#define COLLECTIVE_COPIES                                                                          \
    const void *send, void *recv, size_t count, ncclDataType_t dtype, ncclComm_t comm,             \
        cudaStream_t stream
#define COLLECTIVE_REDUCES                                                                         \
    const void *send, void *recv, size_t count, ncclDataType_t dtype, ncclRedOp_t op,              \
        ncclComm_t comm, cudaStream_t stream
#define COLLECTIVE_ROOTED                                                                          \
    const void *send, void *recv, size_t count, ncclDataType_t dtype, int root, ncclComm_t comm,   \
        cudaStream_t stream
#define COLLECTIVE_REDUCES_ROOTED                                                                  \
    const void *send, void *recv, size_t count, ncclDataType_t dtype, ncclRedOp_t op, int root,    \
        ncclComm_t comm, cudaStream_t stream
#define CALL_OPERANDS                                                                              \
    .comm = comm, .send = send, .recv = recv, .count = count, .dtype = dtype,                      \
    .stream = STREAM(stream)

COLLECTIVE(ncclAllReduce, REDUCES, .op = op, CALL_OPERANDS)
COLLECTIVE(ncclReduceScatter, REDUCES, .op = op, CALL_OPERANDS)
COLLECTIVE(ncclReduce, REDUCES_ROOTED, .op = op, .peer = root, CALL_OPERANDS)
COLLECTIVE(ncclAllGather, COPIES, CALL_OPERANDS)
COLLECTIVE(ncclAlltoAll, COPIES, CALL_OPERANDS)
COLLECTIVE(ncclBroadcast, ROOTED, .peer = root, CALL_OPERANDS)
COLLECTIVE(ncclGather, ROOTED, .peer = root, CALL_OPERANDS)
COLLECTIVE(ncclScatter, ROOTED, .peer = root, CALL_OPERANDS)

NCCL_DEFINE(ncclResult_t, ncclBcast, void *recv, size_t count, ncclDataType_t dtype, int root,
            ncclComm_t comm, cudaStream_t stream)
{
    const void *send = recv;
    return call_make(
        (struct call){
            .symbol = SYMBOL_ncclBcast, .kind = SYMBOL_ncclBroadcast, .peer = root, CALL_OPERANDS},
        NULL);
}

NCCL_DEFINE(ncclResult_t, ncclSend, const void *send, size_t count, ncclDataType_t dtype, int peer,
            ncclComm_t comm, cudaStream_t stream)
{
    void *recv = NULL;
    return call_make(
        (struct call){
            .symbol = SYMBOL_ncclSend, .kind = SYMBOL_ncclSend, .peer = peer, CALL_OPERANDS},
        NULL);
}

NCCL_DEFINE(ncclResult_t, ncclRecv, void *recv, size_t count, ncclDataType_t dtype, int peer,
            ncclComm_t comm, cudaStream_t stream)
{
    const void *send = NULL;
    return call_make(
        (struct call){
            .symbol = SYMBOL_ncclRecv, .kind = SYMBOL_ncclRecv, .peer = peer, CALL_OPERANDS},
        NULL);
}

/* ---- passing a call on ----------------------------------------------------------------------- */

static int64_t timeout_ms;

static void timeout_read(void)
{
    const char *text = getenv("TUTTI_TIMEOUT_MS");
    timeout_ms = text && *text ? 0 : -1;
}

/* NCCL's operations wait for a late rank for ever, and programs rely on it: ranks wait while one of
 * them writes a checkpoint. So there is no time-out, unless TUTTI_TIMEOUT_MS sets one. */
static int64_t call_timeout(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, timeout_read);
    return timeout_ms;
}

static enum tutti_status submit(const struct call *call, tutti_stream_t stream)
{
    const struct tutti_call_options options = {.struct_size = sizeof options,
                                               .timeout_ms = call_timeout(),
                                               .max_blocks = call->max_blocks};
    const enum tutti_dtype dtype = dtypes[call->dtype];
    const tutti_op_t op = op_of(call);
    tutti_comm_t *comm = call->comm->comm;
    switch ((int)call->kind) {
    case SYMBOL_ncclAllReduce:
        return tutti_all_reduce_with(call->send, call->recv, call->count, dtype, op, comm, stream,
                                     &options);
    case SYMBOL_ncclAllGather:
        return tutti_all_gather_with(call->send, call->recv, call->count, dtype, comm, stream,
                                     &options);
    case SYMBOL_ncclReduceScatter:
        return tutti_reduce_scatter_with(call->send, call->recv, call->count, dtype, op, comm,
                                         stream, &options);
    case SYMBOL_ncclAlltoAll:
        return tutti_all_to_all_with(call->send, call->recv, call->count, dtype, comm, stream,
                                     &options);
    case SYMBOL_ncclBroadcast:
        return tutti_broadcast_with(call->send, call->recv, call->count, dtype, call->peer, comm,
                                    stream, &options);
    case SYMBOL_ncclReduce:
        return tutti_reduce_with(call->send, call->recv, call->count, dtype, op, call->peer, comm,
                                 stream, &options);
    case SYMBOL_ncclGather:
        return tutti_gather_with(call->send, call->recv, call->count, dtype, call->peer, comm,
                                 stream, &options);
    case SYMBOL_ncclScatter:
        return tutti_scatter_with(call->send, call->recv, call->count, dtype, call->peer, comm,
                                  stream, &options);
    case SYMBOL_ncclSend:
        return tutti_send_with(call->send, call->count, dtype, call->peer, comm, stream, &options);
    case SYMBOL_ncclRecv:
        return tutti_recv_with(call->recv, call->count, dtype, call->peer, comm, stream, &options);
    }
    return TUTTI_ERR_INVALID;
}

/* Functions of NCCL have six forms of arguments. */
static ncclResult_t invoke(void *function, const struct call *call)
{
    const void *send = call->send;
    void *recv = call->recv;
    const size_t count = call->count;
    const ncclDataType_t dtype = call->dtype;
    ncclComm_t comm = call->comm->real;
    const cudaStream_t stream = (cudaStream_t)(void *)call->stream;
    switch ((int)call->kind) {
    case SYMBOL_ncclAllReduce:
    case SYMBOL_ncclReduceScatter:
        return ((__typeof__(&ncclAllReduce))function)(send, recv, count, dtype, call->op, comm,
                                                      stream);
    case SYMBOL_ncclAllGather:
    case SYMBOL_ncclAlltoAll:
        return ((__typeof__(&ncclAllGather))function)(send, recv, count, dtype, comm, stream);
    case SYMBOL_ncclBroadcast:
    case SYMBOL_ncclGather:
    case SYMBOL_ncclScatter:
        return ((__typeof__(&ncclBroadcast))function)(send, recv, count, dtype, call->peer, comm,
                                                      stream);
    case SYMBOL_ncclReduce:
        return ((__typeof__(&ncclReduce))function)(send, recv, count, dtype, call->op, call->peer,
                                                   comm, stream);
    case SYMBOL_ncclSend:
        return ((__typeof__(&ncclSend))function)(send, count, dtype, call->peer, comm, stream);
    case SYMBOL_ncclRecv:
        return ((__typeof__(&ncclRecv))function)(recv, count, dtype, call->peer, comm, stream);
    }
    return ncclInternalError;
}

static ncclResult_t submit_real(const struct call *call)
{
    void *function = real_function(call->kind);
    return function ? fail_real(invoke(function, call), symbol_names[call->symbol])
                    : real_absent(call->kind);
}

ncclResult_t call_submit(const struct call *call, tutti_stream_t stream)
{
    const bool by_tutti = call->comm->comm;
    const int64_t begin = report_begin();
    const ncclResult_t result = by_tutti
                                    ? fail_status(submit(call, stream), symbol_names[call->symbol])
                                    : submit_real(call);
    report_end(call->symbol, !by_tutti, call->count * dtype_bytes(call->dtype), begin);
    return result;
}
