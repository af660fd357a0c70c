/* SPDX-License-Identifier: MIT */
/* The types and numbers of NCCL's binary interface that the tool needs. */
#include "nccl.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int result_t;   /* ncclResult_t; 0 is success */
typedef void *handle_t; /* ncclComm_t, ncclWindow_t, cudaStream_t */

struct nccl_id { /* ncclUniqueId */
    char bytes[128];
};

enum { WINDOW_SYMMETRIC = 1 }; /* NCCL_WIN_COLL_SYMMETRIC */

/* X(member, symbol, arguments) */
#define NCCL_MAP(X)                                                                                \
    X(get_version, ncclGetVersion, (int *version))                                                 \
    X(get_id, ncclGetUniqueId, (struct nccl_id * id))                                              \
    X(init_rank, ncclCommInitRank, (handle_t * comm, int size, struct nccl_id id, int rank))       \
    X(destroy, ncclCommDestroy, (handle_t comm))                                                   \
    X(all_reduce, ncclAllReduce,                                                                   \
      (const void *send, void *recv, size_t count, int dtype, int op, handle_t comm,               \
       handle_t stream))                                                                           \
    X(all_gather, ncclAllGather,                                                                   \
      (const void *send, void *recv, size_t count, int dtype, handle_t comm, handle_t stream))     \
    X(reduce_scatter, ncclReduceScatter,                                                           \
      (const void *send, void *recv, size_t count, int dtype, int op, handle_t comm,               \
       handle_t stream))                                                                           \
    X(broadcast, ncclBroadcast,                                                                    \
      (const void *send, void *recv, size_t count, int dtype, int root, handle_t comm,             \
       handle_t stream))                                                                           \
    X(reduce, ncclReduce,                                                                          \
      (const void *send, void *recv, size_t count, int dtype, int op, int root, handle_t comm,     \
       handle_t stream))                                                                           \
    X(send, ncclSend,                                                                              \
      (const void *send, size_t count, int dtype, int peer, handle_t comm, handle_t stream))       \
    X(recv, ncclRecv,                                                                              \
      (void *recv, size_t count, int dtype, int peer, handle_t comm, handle_t stream))             \
    X(group_start, ncclGroupStart, (void))                                                         \
    X(group_end, ncclGroupEnd, (void))

/* The same for newer versions. In older ones they are NULL. */
#define NCCL_WINDOW_MAP(X)                                                                         \
    X(mem_alloc, ncclMemAlloc, (void **memory, size_t bytes))                                      \
    X(mem_free, ncclMemFree, (void *memory))                                                       \
    X(window_register, ncclCommWindowRegister,                                                     \
      (handle_t comm, void *memory, size_t bytes, handle_t *window, int flags))                    \
    X(window_deregister, ncclCommWindowDeregister, (handle_t comm, handle_t window))

static struct {
    const char *(*error_string)(result_t result);
#define NCCL_MEMBER(member, symbol, arguments) result_t(*member) arguments;
    NCCL_MAP(NCCL_MEMBER) NCCL_WINDOW_MAP(NCCL_MEMBER)
#undef NCCL_MEMBER
} nccl;

/* Numbers of ncclDataType_t and ncclRedOp_t; -1: NCCL does not have it. */
static const int dtypes[TUTTI_DTYPE_COUNT] = {
    [TUTTI_FLOAT32] = 7,     [TUTTI_FLOAT64] = 8,      [TUTTI_FLOAT16] = 6,
    [TUTTI_BFLOAT16] = 9,    [TUTTI_FLOAT8_E4M3] = 10, [TUTTI_FLOAT8_E5M2] = 11,
    [TUTTI_INT8] = 0,        [TUTTI_UINT8] = 1,        [TUTTI_INT16] = -1,
    [TUTTI_INT32] = 2,       [TUTTI_INT64] = 4,        [TUTTI_UINT32] = 3,
    [TUTTI_UINT64] = 5,      [TUTTI_BOOL] = -1,        [TUTTI_COMPLEX64] = -1,
    [TUTTI_COMPLEX128] = -1,
};
static int reduction(tutti_op_t op)
{
    return op == TUTTI_SUM    ? 0
           : op == TUTTI_PROD ? 1
           : op == TUTTI_MAX  ? 2
           : op == TUTTI_MIN  ? 3
           : op == TUTTI_AVG  ? 4
                              : -1;
}

struct nccl_comm {
    handle_t comm;
    handle_t window;
    void *memory; /* of the window */
    int rank, size;
};

static bool check(result_t result, const char *call)
{
    return result ? library_fail("%s: %s", call, nccl.error_string(result)) : true;
}

/* ---- opening --------------------------------------------------------------------------------- */

bool nccl_open(void)
{
    static const struct library_symbol symbols[] = {{"ncclGetErrorString", 0, false},
#define NCCL_SYMBOL(member, symbol, arguments)                                                     \
    {#symbol, (size_t)((char *)&nccl.member - (char *)&nccl), false},
#define NCCL_OPTIONAL(member, symbol, arguments)                                                   \
    {#symbol, (size_t)((char *)&nccl.member - (char *)&nccl), true},
                                                    NCCL_MAP(NCCL_SYMBOL)
                                                        NCCL_WINDOW_MAP(NCCL_OPTIONAL)
#undef NCCL_SYMBOL
#undef NCCL_OPTIONAL
    };
    static struct library library = {
        .variable = "TUTTI_NCCL_LIBRARY",
        .file = "libnccl.so.2",
        .absent = "name the file in TUTTI_NCCL_LIBRARY",
        .lacking = "",
        .symbols = symbols,
        .count = sizeof symbols / sizeof *symbols,
    };
    return library_open(&library, &nccl, NULL);
}

int nccl_version(void)
{
    int version = 0;
    return nccl.get_version(&version) ? 0 : version;
}

bool nccl_has_windows(void)
{
    return nccl.mem_alloc && nccl.mem_free && nccl.window_register && nccl.window_deregister;
}

bool nccl_serves(enum tutti_collective which, enum tutti_dtype dtype, tutti_op_t op)
{
    return collectives[which].data &&
           (!collectives[which].reduces || (dtypes[dtype] >= 0 && reduction(op) >= 0));
}

/* ---- communicators --------------------------------------------------------------------------- */

static bool exchange_id(tutti_store_t *store, int rank, struct nccl_id *id)
{
    size_t size = 0;
    if (rank == 0) {
        if (!check(nccl.get_id(id), "ncclGetUniqueId"))
            return false;
        return tutti_store_set(store, "nccl", id, sizeof *id) == TUTTI_OK ||
               library_fail("%s", tutti_last_error());
    }
    return tutti_store_get(store, "nccl", 0, id, sizeof *id, &size) == TUTTI_OK ||
           library_fail("%s", tutti_last_error());
}

struct nccl_comm *nccl_comm_create(tutti_store_t *store, int rank, int size)
{
    struct nccl_id id = {{0}};
    struct nccl_comm *comm = calloc(1, sizeof *comm);
    if (!comm) {
        library_fail("no memory");
        return NULL;
    }
    comm->rank = rank;
    comm->size = size;
    if (exchange_id(store, rank, &id) &&
        check(nccl.init_rank(&comm->comm, size, id, rank), "ncclCommInitRank"))
        return comm;
    free(comm);
    return NULL;
}

void nccl_comm_destroy(struct nccl_comm *comm)
{
    if (!comm)
        return;
    if (comm->window)
        nccl.window_deregister(comm->comm, comm->window);
    if (comm->memory)
        nccl.mem_free(comm->memory);
    nccl.destroy(comm->comm);
    free(comm);
}

void *nccl_window_create(struct nccl_comm *comm, size_t bytes)
{
    if (check(nccl.mem_alloc(&comm->memory, bytes), "ncclMemAlloc") &&
        check(
            nccl.window_register(comm->comm, comm->memory, bytes, &comm->window, WINDOW_SYMMETRIC),
            "ncclCommWindowRegister"))
        return comm->memory;
    return NULL;
}

/* ---- operations ------------------------------------------------------------------------------ */

/* The number of an element's type, and of elements. What does not reduce is moved as bytes. */
static int type_of(const struct rival_call *call, size_t *count)
{
    *count = call->count;
    if (collectives[call->which].reduces)
        return dtypes[call->dtype];
    *count *= tutti_dtype_size(call->dtype);
    return dtypes[TUTTI_UINT8];
}

/* One message to rank r, and one from it, as far as this rank and r exchange any. A block that is
 * where it belongs stays there. */
static bool exchange(const struct nccl_comm *comm, const struct rival_call *call, int r,
                     handle_t stream)
{
    const struct collective *collective = &collectives[call->which];
    const bool ring = call->which == TUTTI_COLLECTIVE_SEND;
    size_t count;
    const int type = type_of(call, &count), rank = comm->rank, size = comm->size;
    const char *send = (const char *)call->send + (collective->send_all ? (size_t)r * count : 0);
    char *recv = (char *)call->recv + (collective->recv_all ? (size_t)r * count : 0);
    bool sends = !collective->send_at_root || rank == call->root;
    bool receives = !collective->recv_at_root || rank == call->root;
    sends = sends && (!collective->recv_at_root || r == call->root);
    receives = receives && (!collective->send_at_root || r == call->root);
    if (ring) {
        sends = r == (rank + 1) % size;
        receives = r == (rank + size - 1) % size;
    }
    if (r == rank && send == recv)
        return true;
    return (!sends || check(nccl.send(send, count, type, r, comm->comm, stream), "ncclSend")) &&
           (!receives || check(nccl.recv(recv, count, type, r, comm->comm, stream), "ncclRecv"));
}

/* Block r of a v-form that has all ranks' counts: to all from rank r, or to rank r from all. */
static bool block_of_all(const struct nccl_comm *comm, const struct rival_call *call, int r,
                         handle_t stream)
{
    size_t count;
    const int type = type_of(call, &count);
    const size_t offset = (size_t)r * call->count * tutti_dtype_size(call->dtype);
    if (call->which == TUTTI_COLLECTIVE_ALL_GATHER_V)
        return check(nccl.broadcast(call->send, (char *)call->recv + offset, count, type, r,
                                    comm->comm, stream),
                     "ncclBroadcast");
    return check(nccl.reduce((const char *)call->send + offset, call->recv, count, type,
                             reduction(call->op), r, comm->comm, stream),
                 "ncclReduce");
}

/* For each rank one part, all at the same time. */
static bool group(const struct nccl_comm *comm, const struct rival_call *call, handle_t stream,
                  bool (*part)(const struct nccl_comm *comm, const struct rival_call *call, int r,
                               handle_t stream))
{
    bool ok = check(nccl.group_start(), "ncclGroupStart");
    if (!ok)
        return false;
    for (int r = 0; r < comm->size && ok; r++)
        ok = part(comm, call, r, stream);
    return check(nccl.group_end(), "ncclGroupEnd") && ok;
}

bool nccl_enqueue(struct nccl_comm *comm, const struct rival_call *call, tutti_stream_t stream)
{
    const void *send = call->send;
    void *recv = call->recv;
    size_t count;
    const int type = type_of(call, &count), op = reduction(call->op);
    switch (call->which) {
    case TUTTI_COLLECTIVE_ALL_REDUCE:
        return check(nccl.all_reduce(send, recv, count, type, op, comm->comm, stream),
                     "ncclAllReduce");
    case TUTTI_COLLECTIVE_ALL_GATHER:
        return check(nccl.all_gather(send, recv, count, type, comm->comm, stream), "ncclAllGather");
    case TUTTI_COLLECTIVE_REDUCE_SCATTER:
        return check(nccl.reduce_scatter(send, recv, count, type, op, comm->comm, stream),
                     "ncclReduceScatter");
    case TUTTI_COLLECTIVE_BROADCAST:
        return check(nccl.broadcast(send, recv, count, type, call->root, comm->comm, stream),
                     "ncclBroadcast");
    case TUTTI_COLLECTIVE_REDUCE:
        return check(nccl.reduce(send, recv, count, type, op, call->root, comm->comm, stream),
                     "ncclReduce");
    case TUTTI_COLLECTIVE_ALL_GATHER_V:
    case TUTTI_COLLECTIVE_REDUCE_SCATTER_V:
        return group(comm, call, stream, block_of_all);
    case TUTTI_COLLECTIVE_ALL_TO_ALL:
    case TUTTI_COLLECTIVE_GATHER:
    case TUTTI_COLLECTIVE_SCATTER:
    case TUTTI_COLLECTIVE_SEND:
    case TUTTI_COLLECTIVE_ALL_TO_ALL_V:
    case TUTTI_COLLECTIVE_GATHER_V:
    case TUTTI_COLLECTIVE_SCATTER_V:
        return group(comm, call, stream, exchange);
    case TUTTI_COLLECTIVE_RECV:
    case TUTTI_COLLECTIVE_BARRIER:
    case TUTTI_COLLECTIVE_SPLIT:
    case TUTTI_COLLECTIVE_ALL_REDUCE_RMS_NORM:
        break;
    }
    return library_fail("NCCL has no %s", tutti_collective_name(call->which));
}
