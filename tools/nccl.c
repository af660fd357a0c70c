/* SPDX-License-Identifier: MIT */
/* The types and numbers of NCCL's binary interface that the tool needs. */
#include "nccl.h"

#include "library.h"

#include <pthread.h>
#include <stdarg.h>
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
       handle_t stream))

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
};

static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static bool opened;

/* ---- errors ---------------------------------------------------------------------------------- */

static _Thread_local char error[512];

const char *nccl_error(void)
{
    return error;
}

static bool fail(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(error, sizeof error, format, args);
    va_end(args);
    return false;
}

static bool check(result_t result, const char *call)
{
    return result ? fail("%s: %s", call, nccl.error_string(result)) : true;
}

/* ---- opening --------------------------------------------------------------------------------- */

static bool open_library(void)
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
    static const struct library library = {
        .variable = "TUTTI_NCCL_LIBRARY",
        .file = "libnccl.so.2",
        .absent = "name the file in TUTTI_NCCL_LIBRARY",
        .lacking = "",
        .symbols = symbols,
        .count = sizeof symbols / sizeof *symbols,
    };
    return library_open(&library, &nccl, error, sizeof error);
}

bool nccl_open(void)
{
    pthread_mutex_lock(&opening);
    opened = opened || open_library();
    bool ok = opened;
    pthread_mutex_unlock(&opening);
    return ok;
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

bool nccl_serves(enum tutti_dtype dtype, tutti_op_t op)
{
    return dtypes[dtype] >= 0 && reduction(op) >= 0;
}

/* ---- communicators --------------------------------------------------------------------------- */

static bool exchange_id(tutti_store_t *store, int rank, struct nccl_id *id)
{
    size_t size = 0;
    if (rank == 0) {
        if (!check(nccl.get_id(id), "ncclGetUniqueId"))
            return false;
        return tutti_store_set(store, "nccl", id, sizeof *id) == TUTTI_OK ||
               fail("%s", tutti_last_error());
    }
    return tutti_store_get(store, "nccl", 0, id, sizeof *id, &size) == TUTTI_OK ||
           fail("%s", tutti_last_error());
}

struct nccl_comm *nccl_comm_create(tutti_store_t *store, int rank, int size)
{
    struct nccl_id id = {{0}};
    struct nccl_comm *comm = calloc(1, sizeof *comm);
    if (!comm) {
        fail("no memory");
        return NULL;
    }
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

bool nccl_all_reduce(struct nccl_comm *comm, const void *send, void *recv, size_t count,
                     enum tutti_dtype dtype, tutti_op_t op, tutti_stream_t stream)
{
    return check(
        nccl.all_reduce(send, recv, count, dtypes[dtype], reduction(op), comm->comm, stream),
        "ncclAllReduce");
}
