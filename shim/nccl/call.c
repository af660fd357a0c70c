/* SPDX-License-Identifier: MIT */
/* Collectives, messages and reductions: NCCL's call as Tutti's. */
#include "shim.h"

#include <stdlib.h>

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

/* Where the communicator has a premultiplied sum; NULL if there is none of this number. */
static tutti_op_t *place_of(const struct ncclComm *comm, ncclRedOp_t op)
{
    const unsigned index = (unsigned)op - ncclNumOps;
    return op >= ncclNumOps && index < (unsigned)comm->op_count ? &comm->ops[index] : NULL;
}

/* NULL, which Tutti refuses, if there is no such reduction. */
static tutti_op_t op_of(const struct ncclComm *comm, ncclRedOp_t op)
{
    static const tutti_op_t ops[] = {TUTTI_SUM, TUTTI_PROD, TUTTI_MAX, TUTTI_MIN, TUTTI_AVG};
    const tutti_op_t *place = place_of(comm, op);
    return (unsigned)op < ncclNumOps ? ops[op] : place ? *place : NULL;
}

static ncclResult_t op_create(ncclComm_t comm, ncclRedOp_t *op, const void *scalar,
                              ncclDataType_t dtype, ncclScalarResidence_t residence)
{
    int index = 0;
    while (index < comm->op_count && comm->ops[index])
        index++;
    if (index == comm->op_count) {
        tutti_op_t *ops = realloc(comm->ops, (size_t)(index + 1) * sizeof *ops);
        if (!ops)
            return fail(ncclSystemError, SYMBOL_ncclRedOpCreatePreMulSum, "no memory");
        comm->ops = ops;
        comm->op_count++;
    }
    *op = (ncclRedOp_t)(ncclNumOps + index);
    return fail_status((residence == ncclScalarDevice ? tutti_op_create_premul_sum_device
                                                      : tutti_op_create_premul_sum_typed)(
                           scalar, dtypes[dtype], &comm->ops[index]),
                       SYMBOL_ncclRedOpCreatePreMulSum);
}

NCCL_DEFINE(ncclResult_t, ncclRedOpCreatePreMulSum, ncclRedOp_t *op, void *scalar,
            ncclDataType_t dtype, ncclScalarResidence_t residence, ncclComm_t comm)
{
    ncclResult_t result = comm_enter(comm, SYMBOL_ncclRedOpCreatePreMulSum, true);
    if (result != ncclSuccess)
        return result;
    if (!op || !scalar || !dtype_bytes(dtype) ||
        (residence != ncclScalarDevice && residence != ncclScalarHostImmediate))
        result = fail(ncclInvalidArgument, SYMBOL_ncclRedOpCreatePreMulSum,
                      "op or scalar is NULL, or data type %d or residence %d is not NCCL's",
                      (int)dtype, (int)residence);
    else if (comm->comm)
        result = create_alone(comm, SYMBOL_ncclRedOpCreatePreMulSum);
    else
        result = fail_real(REAL(ncclRedOpCreatePreMulSum)(op, scalar, dtype, residence, comm->real),
                           SYMBOL_ncclRedOpCreatePreMulSum);
    if (result == ncclSuccess && comm->comm)
        result = op_create(comm, op, scalar, dtype, residence);
    return comm_leave(comm, result);
}

NCCL_DEFINE(ncclResult_t, ncclRedOpDestroy, ncclRedOp_t op, ncclComm_t comm)
{
    ncclResult_t result = comm_enter(comm, SYMBOL_ncclRedOpDestroy, false);
    if (result != ncclSuccess)
        return result;
    tutti_op_t *place = place_of(comm, op);
    if (!comm->comm && comm->real) {
        result = fail_real(REAL(ncclRedOpDestroy)(op, comm->real), SYMBOL_ncclRedOpDestroy);
    } else if (!place || !*place) {
        result = fail(ncclInvalidArgument, SYMBOL_ncclRedOpDestroy,
                      "%d is no premultiplied sum of this communicator", (int)op);
    } else {
        result = group_drop(comm, *place);
        if (result == ncclSuccess)
            *place = NULL;
    }
    return comm_leave(comm, result);
}

/* ---- NCCL's functions ------------------------------------------------------------------------ */

static ncclResult_t config_read(struct call *call, const ncclCollConfig_t *config)
{
    if (config->magic != NCCL_API_MAGIC || config->size < sizeof *config)
        return fail(ncclInvalidArgument, call->symbol,
                    "the configuration was not initialized: use NCCL_COLLCONFIG_INITIALIZER");
    if (config->algSelection && *config->algSelection && config->forceAlgSelection)
        return fail(ncclInvalidUsage, call->symbol,
                    "algSelection \"%s\" names algorithms of NCCL's: leave it NULL, or set "
                    "forceAlgSelection to 0",
                    config->algSelection);
    call->launched = config->launchCompletionEvent;
    return max_blocks_read(config->maxCTAs, &call->max_blocks, call->symbol);
}

static bool reduces(enum symbol kind)
{
    return kind == SYMBOL_ncclAllReduce || kind == SYMBOL_ncclReduceScatter ||
           kind == SYMBOL_ncclReduce;
}

/* Checks a call and passes it on, or keeps it for the end of the group. */
static ncclResult_t call_make(struct call call, const ncclCollConfig_t *config)
{
    const struct ncclComm *comm = call.comm;
    ncclResult_t result = comm_enter(call.comm, call.symbol, true);
    if (result != ncclSuccess)
        return group_refuse(result);
    call.max_blocks = comm->max_blocks;
    if (!dtype_bytes(call.dtype))
        result =
            fail(ncclInvalidArgument, call.symbol, "%d is no data type of NCCL's", (int)call.dtype);
    else if (call.peer < 0 || call.peer >= comm->ranks)
        result = fail(ncclInvalidArgument, call.symbol, "rank %d: expected 0 to %d", call.peer,
                      comm->ranks - 1);
    else if (config)
        result = config_read(&call, config);
    if (result != ncclSuccess)
        return group_refuse(comm_leave(call.comm, result));
    /* A reduction of one rank is a copy, as NCCL's is. */
    if (comm->ranks == 1 && reduces(call.kind) && (unsigned)call.op < ncclNumOps) {
        call.kind = SYMBOL_ncclBroadcast;
        call.peer = 0;
    }
    call.reduction = op_of(comm, call.op);
    return group_call(&call);
}

/* The arguments that all calls have, and others, as a struct call. */
#define CALL(name, of, ...)                                                                        \
    ((struct call){.symbol = SYMBOL_##name,                                                        \
                   .kind = SYMBOL_##of,                                                            \
                   .comm = comm,                                                                   \
                   .count = count,                                                                 \
                   .dtype = dtype,                                                                 \
                   .stream = (tutti_stream_t)(void *)stream,                                       \
                   __VA_ARGS__})

/* Defines a collective and its form with a configuration. */
#define COLLECTIVE(name, parameters, ...)                                                          \
    NCCL_DEFINE(ncclResult_t, name, COLLECTIVE_##parameters)                                       \
    {                                                                                              \
        return call_make(CALL(name, name, .send = send, .recv = recv, __VA_ARGS__), NULL);         \
    }                                                                                              \
    NCCL_DEFINE(ncclResult_t, name##Config, COLLECTIVE_##parameters,                               \
                const ncclCollConfig_t *config)                                                    \
    {                                                                                              \
        return call_make(CALL(name##Config, name, .send = send, .recv = recv, __VA_ARGS__),        \
                         config);                                                                  \
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
COLLECTIVE(ncclAllReduce, REDUCES, .op = op)
COLLECTIVE(ncclReduceScatter, REDUCES, .op = op)
COLLECTIVE(ncclReduce, REDUCES_ROOTED, .op = op, .peer = root)
COLLECTIVE(ncclAllGather, COPIES)
COLLECTIVE(ncclAlltoAll, COPIES)
COLLECTIVE(ncclBroadcast, ROOTED, .peer = root)
COLLECTIVE(ncclGather, ROOTED, .peer = root)
COLLECTIVE(ncclScatter, ROOTED, .peer = root)

NCCL_DEFINE(ncclResult_t, ncclBcast, void *recv, size_t count, ncclDataType_t dtype, int root,
            ncclComm_t comm, cudaStream_t stream)
{
    return call_make(CALL(ncclBcast, ncclBroadcast, .send = recv, .recv = recv, .peer = root),
                     NULL);
}

NCCL_DEFINE(ncclResult_t, ncclSend, const void *send, size_t count, ncclDataType_t dtype, int peer,
            ncclComm_t comm, cudaStream_t stream)
{
    return call_make(CALL(ncclSend, ncclSend, .send = send, .peer = peer), NULL);
}

NCCL_DEFINE(ncclResult_t, ncclRecv, void *recv, size_t count, ncclDataType_t dtype, int peer,
            ncclComm_t comm, cudaStream_t stream)
{
    return call_make(CALL(ncclRecv, ncclRecv, .recv = recv, .peer = peer), NULL);
}

/* ---- passing a call on ----------------------------------------------------------------------- */

static struct tutti_call_options options_of(const struct call *call)
{
    return (struct tutti_call_options){.struct_size = sizeof(struct tutti_call_options),
                                       .timeout_ms = call->comm->timeout_ms,
                                       .max_blocks = call->max_blocks};
}

/* Allocates or frees call->product on the call's stream. */
static enum tutti_status product_memory(struct call *call, size_t bytes)
{
    const struct cuda_driver *driver = call->comm->driver;
    const CUstream stream = cuda_stream_of(call->stream);
    bool pushed;
    enum tutti_status status = cuda_context_enter(driver, call->comm->context, &pushed);
    if (status != TUTTI_OK)
        return status;
    status = bytes ? CUDA_CALL(driver, mem_alloc_async, &call->product, bytes, stream)
                   : CUDA_CALL(driver, mem_free_async, call->product, stream);
    cuda_context_leave(driver, pushed);
    return status;
}

ncclResult_t call_multiply(struct call *call)
{
    const struct ncclComm *comm = call->comm;
    if (!comm->comm || comm->ranks == 1 || !reduces(call->kind) || call->op < ncclNumOps ||
        !call->reduction)
        return ncclSuccess;
    const struct tutti_call_options with = options_of(call);
    const bool scatters = call->kind == SYMBOL_ncclReduceScatter,
               has_result =
                   !scatters && (call->kind == SYMBOL_ncclAllReduce || call->peer == comm->rank);
    const size_t count = call->count * (scatters ? (size_t)comm->ranks : 1);
    void *target = call->recv;
    enum tutti_status status = TUTTI_OK;
    if (count && !has_result) {
        status = product_memory(call, count * dtype_bytes(call->dtype));
        target = (void *)(uintptr_t)call->product;
    }
    if (status == TUTTI_OK)
        status = tutti_all_reduce_with(call->send, target, count, dtypes[call->dtype],
                                       call->reduction, comm->alone, call->stream, &with);
    call->send = target;
    call->reduction = TUTTI_SUM;
    return fail_status(status, call->symbol);
}

ncclResult_t call_release(struct call *call, ncclResult_t result)
{
    if (!call->product)
        return result;
    const enum tutti_status status = product_memory(call, 0);
    return result == ncclSuccess ? fail_status(status, call->symbol) : result;
}

static enum tutti_status submit(const struct call *call, tutti_stream_t stream)
{
    const struct tutti_call_options with = options_of(call);
    const void *send = call->send;
    void *recv = call->recv;
    const size_t count = call->count;
    const enum tutti_dtype dtype = dtypes[call->dtype];
    const tutti_op_t op = call->reduction;
    const int peer = call->peer;
    tutti_comm_t *comm = call->comm->comm;
    switch ((int)call->kind) {
    case SYMBOL_ncclAllReduce:
        return tutti_all_reduce_with(send, recv, count, dtype, op, comm, stream, &with);
    case SYMBOL_ncclAllGather:
        return tutti_all_gather_with(send, recv, count, dtype, comm, stream, &with);
    case SYMBOL_ncclReduceScatter:
        return tutti_reduce_scatter_with(send, recv, count, dtype, op, comm, stream, &with);
    case SYMBOL_ncclAlltoAll:
        return tutti_all_to_all_with(send, recv, count, dtype, comm, stream, &with);
    case SYMBOL_ncclBroadcast:
        return tutti_broadcast_with(send, recv, count, dtype, peer, comm, stream, &with);
    case SYMBOL_ncclReduce:
        return tutti_reduce_with(send, recv, count, dtype, op, peer, comm, stream, &with);
    case SYMBOL_ncclGather:
        return tutti_gather_with(send, recv, count, dtype, peer, comm, stream, &with);
    case SYMBOL_ncclScatter:
        return tutti_scatter_with(send, recv, count, dtype, peer, comm, stream, &with);
    case SYMBOL_ncclSend:
        return tutti_send_with(send, count, dtype, peer, comm, stream, &with);
    case SYMBOL_ncclRecv:
        return tutti_recv_with(recv, count, dtype, peer, comm, stream, &with);
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
    return function ? fail_real(invoke(function, call), call->symbol) : real_absent(call->kind);
}

ncclResult_t call_submit(const struct call *call, tutti_stream_t stream)
{
    const bool by_tutti = call->comm->comm;
    const int64_t begin = report_begin();
    const ncclResult_t result =
        by_tutti ? fail_status(submit(call, stream), call->symbol) : submit_real(call);
    report_end(call->symbol, !by_tutti, call->count * dtype_bytes(call->dtype), begin);
    return result;
}
