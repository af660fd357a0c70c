/* SPDX-License-Identifier: MIT */
#include "mpi_calls.h"

#include "base/rank_set.h"
#include "fabric/mpi_handles.h"
#include "reference.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

typedef uintptr_t handle_t; /* as in fabric/mpi_abi.h: MPICH's are ints, in the low half */

/* X(member, name, arguments): called by their second names, PMPI_. */
#define MPI_MAP(X)                                                                                 \
    X(version_text, Get_library_version, (char *text, int *length))                                \
    X(error_string, Error_string, (int code, char *text, int *length))                             \
    X(comm_rank, Comm_rank, (handle_t comm, int *rank))                                            \
    X(comm_size, Comm_size, (handle_t comm, int *size))                                            \
    X(barrier, Barrier, (handle_t comm))                                                           \
    X(bcast, Bcast, (void *buffer, int count, handle_t type, int root, handle_t comm))             \
    X(all_reduce, Allreduce,                                                                       \
      (const void *send, void *recv, int count, handle_t type, handle_t op, handle_t comm))        \
    X(all_gather, Allgather,                                                                       \
      (const void *send, int sends, handle_t send_type, void *recv, int recvs, handle_t recv_type, \
       handle_t comm))                                                                             \
    X(reduce_scatter_block, Reduce_scatter_block,                                                  \
      (const void *send, void *recv, int count, handle_t type, handle_t op, handle_t comm))        \
    X(all_to_all, Alltoall,                                                                        \
      (const void *send, int sends, handle_t send_type, void *recv, int recvs, handle_t recv_type, \
       handle_t comm))                                                                             \
    X(reduce, Reduce,                                                                              \
      (const void *send, void *recv, int count, handle_t type, handle_t op, int root,              \
       handle_t comm))                                                                             \
    X(gather, Gather,                                                                              \
      (const void *send, int sends, handle_t send_type, void *recv, int recvs, handle_t recv_type, \
       int root, handle_t comm))                                                                   \
    X(scatter, Scatter,                                                                            \
      (const void *send, int sends, handle_t send_type, void *recv, int recvs, handle_t recv_type, \
       int root, handle_t comm))                                                                   \
    X(send_recv, Sendrecv,                                                                         \
      (const void *send, int sends, handle_t send_type, int to, int send_tag, void *recv,          \
       int recvs, handle_t recv_type, int from, int recv_tag, handle_t comm, void *status))        \
    X(all_gather_v, Allgatherv,                                                                    \
      (const void *send, int sends, handle_t send_type, void *recv, const int *recvs,              \
       const int *places, handle_t recv_type, handle_t comm))                                      \
    X(reduce_scatter, Reduce_scatter,                                                              \
      (const void *send, void *recv, const int *counts, handle_t type, handle_t op,                \
       handle_t comm))                                                                             \
    X(all_to_all_v, Alltoallv,                                                                     \
      (const void *send, const int *sends, const int *from, handle_t send_type, void *recv,        \
       const int *recvs, const int *to, handle_t recv_type, handle_t comm))                        \
    X(gather_v, Gatherv,                                                                           \
      (const void *send, int sends, handle_t send_type, void *recv, const int *recvs,              \
       const int *places, handle_t recv_type, int root, handle_t comm))                            \
    X(scatter_v, Scatterv,                                                                         \
      (const void *send, const int *sends, const int *places, handle_t send_type, void *recv,      \
       int recvs, handle_t recv_type, int root, handle_t comm))

static struct {
#define MPI_MEMBER(member, name, arguments) int(*member) arguments;
    MPI_MAP(MPI_MEMBER)
#undef MPI_MEMBER
    handle_t world, byte;
    handle_t types[TUTTI_DTYPE_COUNT][REFERENCE_OPS]; /* 0: MPI does not have the operation */
    handle_t ops[REFERENCE_OPS];
    int rank, size;
    char version[64];
} mpi;

/* ---- opening --------------------------------------------------------------------------------- */

/* A library with this name that the process has loaded, if it is initialised. */
static void *loaded(const char *file)
{
    int (*initialized)(int *flag) = NULL;
    int flag = 0;
    void *library = dlopen(file, RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
    if (library)
        *(void **)&initialized = dlsym(library, "PMPI_Initialized");
    return initialized && initialized(&flag) == 0 && flag ? library : NULL;
}

static handle_t handle(void *library, enum mpi_kind kind, const char *object, handle_t mpich,
                       handle_t standard)
{
    return kind == MPI_KIND_OPENMPI ? (handle_t)dlsym(library, object)
           : kind == MPI_KIND_MPICH ? mpich
                                    : standard;
}

/* Of each dtype and operation the first type that has both. Logical operations are not measured. */
static void find_types(void *library, enum mpi_kind kind)
{
    static const struct {
        const char *object;
        handle_t mpich, standard;
        enum tutti_dtype dtype;
        unsigned ops;
    } rows[] = {
#define ROW(object, mpich, standard, dtype, ops)                                                   \
    {"ompi_mpi_" #object, mpich, standard, TUTTI_##dtype, MPI_OPS_##ops},
        MPI_TYPE_MAP(ROW)
#undef ROW
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const handle_t type =
            handle(library, kind, rows[i].object, rows[i].mpich, rows[i].standard);
        if (strcmp(rows[i].object, "ompi_mpi_byte") == 0)
            mpi.byte = type;
        for (int op = 1; op < REFERENCE_OPS; op++)
            if (rows[i].ops >> op & 1 && !mpi.types[rows[i].dtype][op])
                mpi.types[rows[i].dtype][op] = type;
    }
}

static void find_ops(void *library, enum mpi_kind kind)
{
#define FIND(object, mpich, standard, op, is_logical)                                              \
    if (!(is_logical))                                                                             \
        mpi.ops[(uintptr_t)TUTTI_##op] =                                                           \
            handle(library, kind, "ompi_mpi_op_" #object, mpich, standard);
    MPI_OP_MAP(FIND)
#undef FIND
}

static bool find_functions(void *library, const char *file)
{
    static const struct {
        const char *name;
        void **member;
    } functions[] = {
#define MPI_FUNCTION(member, name, arguments) {"PMPI_" #name, (void **)&mpi.member},
        MPI_MAP(MPI_FUNCTION)
#undef MPI_FUNCTION
    };
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        *functions[i].member = dlsym(library, functions[i].name);
        if (!*functions[i].member)
            return library_fail("%s has no %s: an MPI 3.0 or newer is needed", file,
                                functions[i].name);
    }
    return true;
}

/* The first words of MPI's description of itself: "MPICH Version: 4.0.2", "Open MPI v4.1.4". */
static void find_version(void)
{
    static char text[MPI_TEXT_BYTES];
    int length = 0;
    size_t used = 0;
    if (mpi.version_text(text, &length) != 0)
        text[0] = '\0';
    for (const char *c = text; *c && !strchr(",\n", *c) && used + 1 < sizeof mpi.version; c++)
        if (!strchr(" \t", *c))
            mpi.version[used++] = *c;
        else if (used && mpi.version[used - 1] != ' ')
            mpi.version[used++] = ' ';
    mpi.version[used] = '\0';
}

static bool check(int code, const char *function)
{
    static char text[MPI_TEXT_BYTES];
    int length = 0;
    if (code == 0)
        return true;
    if (mpi.error_string(code, text, &length) != 0)
        text[0] = '\0';
    return library_fail("MPI_%s: error %d: %.300s", function, code, text);
}

bool mpi_calls_open(void)
{
    static const char *const files[] = {"libmpi_abi.so.1", "libmpi.so.40", "libmpi.so.12",
                                        "libmpich.so.12"};
    const char *file = NULL;
    void *library = NULL;
    for (size_t i = 0; i < sizeof files / sizeof *files && !library; i++)
        library = loaded(file = files[i]);
    if (!library)
        return library_fail("the process has not loaded and initialised an MPI");
    const enum mpi_kind kind = dlsym(library, MPI_WORLD_OBJECT)       ? MPI_KIND_OPENMPI
                               : strcmp(file, "libmpi_abi.so.1") == 0 ? MPI_KIND_STANDARD
                                                                      : MPI_KIND_MPICH;
    if (!find_functions(library, file))
        return false;
    mpi.world = handle(library, kind, MPI_WORLD_OBJECT, MPI_WORLD_MPICH, MPI_WORLD_STANDARD);
    find_types(library, kind);
    find_ops(library, kind);
    find_version();
    return check(mpi.comm_rank(mpi.world, &mpi.rank), "Comm_rank") &&
           check(mpi.comm_size(mpi.world, &mpi.size), "Comm_size");
}

const char *mpi_calls_version(void)
{
    return mpi.version;
}

/* ---- operations ------------------------------------------------------------------------------ */

static handle_t operation_type(const struct rival_call *call)
{
    return (uintptr_t)call->op < REFERENCE_OPS ? mpi.types[call->dtype][(uintptr_t)call->op] : 0;
}

bool mpi_calls_serve(enum tutti_collective which, enum tutti_dtype dtype, tutti_op_t op,
                     size_t count)
{
    const struct rival_call call = {.dtype = dtype, .op = op};
    const size_t all = count * (size_t)mpi.size;
    if (collectives[which].reduces)
        return all <= INT_MAX && operation_type(&call);
    return collectives[which].data && all * tutti_dtype_size(dtype) <= INT_MAX;
}

/* Of the v-forms: blocks of one length, in the order of the ranks. */
static int counts[WORLD_RANKS], places[WORLD_RANKS];

static void set_counts(int count)
{
    for (int r = 0; counts[0] != count && r < mpi.size; r++) {
        counts[mpi.size - 1 - r] = count;
        places[r] = r * count;
    }
}

static int run_reduction(const struct rival_call *call)
{
    const int count = (int)call->count;
    const handle_t type = operation_type(call), op = mpi.ops[(uintptr_t)call->op];
    if (call->which == TUTTI_COLLECTIVE_ALL_REDUCE)
        return mpi.all_reduce(call->send, call->recv, count, type, op, mpi.world);
    if (call->which == TUTTI_COLLECTIVE_REDUCE)
        return mpi.reduce(call->send, call->recv, count, type, op, call->root, mpi.world);
    if (call->which == TUTTI_COLLECTIVE_REDUCE_SCATTER)
        return mpi.reduce_scatter_block(call->send, call->recv, count, type, op, mpi.world);
    set_counts(count);
    return mpi.reduce_scatter(call->send, call->recv, counts, type, op, mpi.world);
}

static int run_varying(const struct rival_call *call, int count, handle_t type)
{
    const void *send = call->send;
    void *recv = call->recv;
    set_counts(count);
    if (call->which == TUTTI_COLLECTIVE_ALL_GATHER_V)
        return mpi.all_gather_v(send, count, type, recv, counts, places, type, mpi.world);
    if (call->which == TUTTI_COLLECTIVE_GATHER_V)
        return mpi.gather_v(send, count, type, recv, counts, places, type, call->root, mpi.world);
    if (call->which == TUTTI_COLLECTIVE_SCATTER_V)
        return mpi.scatter_v(send, counts, places, type, recv, count, type, call->root, mpi.world);
    return mpi.all_to_all_v(send, counts, places, type, recv, counts, places, type, mpi.world);
}

static int run_copy(const struct rival_call *call, int count, handle_t type)
{
    const void *send = call->send;
    void *recv = call->recv;
    const int next = (mpi.rank + 1) % mpi.size, last = (mpi.rank + mpi.size - 1) % mpi.size;
    char status[MPI_STATUS_BYTES];
    if (call->which == TUTTI_COLLECTIVE_BROADCAST)
        return mpi.bcast(recv, count, type, call->root, mpi.world);
    if (call->which == TUTTI_COLLECTIVE_ALL_GATHER)
        return mpi.all_gather(send, count, type, recv, count, type, mpi.world);
    if (call->which == TUTTI_COLLECTIVE_ALL_TO_ALL)
        return mpi.all_to_all(send, count, type, recv, count, type, mpi.world);
    if (call->which == TUTTI_COLLECTIVE_GATHER)
        return mpi.gather(send, count, type, recv, count, type, call->root, mpi.world);
    if (call->which == TUTTI_COLLECTIVE_SCATTER)
        return mpi.scatter(send, count, type, recv, count, type, call->root, mpi.world);
    return mpi.send_recv(send, count, type, next, 0, recv, count, type, last, 0, mpi.world, status);
}

bool mpi_calls_run(const struct rival_call *call)
{
    const struct collective *collective = &collectives[call->which];
    const int bytes = (int)(call->count * tutti_dtype_size(call->dtype));
    const int code = collective->reduces  ? run_reduction(call)
                     : collective->varies ? run_varying(call, bytes, mpi.byte)
                                          : run_copy(call, bytes, mpi.byte);
    return check(code, tutti_collective_name(call->which));
}

bool mpi_calls_barrier(void)
{
    return check(mpi.barrier(mpi.world), "Barrier");
}

bool mpi_calls_share(void *data, size_t bytes)
{
    return check(mpi.bcast(data, (int)bytes, mpi.byte, 0, mpi.world), "Bcast");
}
