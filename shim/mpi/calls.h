/* SPDX-License-Identifier: MIT */
/*
 * MPI's functions as this library needs them: own prototypes, of one form for all MPIs. A handle is
 * an uintptr_t, as in fabric/mpi_abi.h.
 */
#ifndef SHIM_MPI_CALLS_H
#define SHIM_MPI_CALLS_H

#include "fabric/mpi_abi.h"

#include <stdbool.h>

/*
 * The parts of a collective's arguments. P: the parameters, with counts N and displacements D,
 * which are int, or 64 bits in the form whose name ends with _c. F: a struct call of them. A: the
 * arguments again, of a struct call.
 */
#define P_SEND(N, D)  const void *send, N send_count, uintptr_t send_type,
#define F_SEND        .send = {.buffer = send, .count = send_count, .type = send_type},
#define A_SEND        call->send.buffer, call->send.count, call->send.type,
#define P_SENDS(N, D) const void *send, const N *counts, const D *at, uintptr_t send_type,
#define F_SENDS       .send = {.buffer = send, .counts = counts, .displs = at, .type = send_type},
#define A_SENDS       call->send.buffer, call->send.counts, call->send.displs, call->send.type,
#define P_RECV(N, D)  void *recv, N recv_count, uintptr_t recv_type,
#define F_RECV        .recv = {.buffer = recv, .count = recv_count, .type = recv_type},
#define A_RECV        recv_of(call), call->recv.count, call->recv.type,
#define P_RECVS(N, D) void *recv, const N *to_counts, const D *to_displs, uintptr_t recv_type,
#define F_RECVS                                                                                    \
    .recv = {.buffer = recv, .counts = to_counts, .displs = to_displs, .type = recv_type},
#define A_RECVS         recv_of(call), call->recv.counts, call->recv.displs, call->recv.type,
#define P_BUFFERS(N, D) const void *send, void *recv,
#define F_BUFFERS       .send.buffer = send, .recv.buffer = recv,
#define A_BUFFERS       call->send.buffer, recv_of(call),
#define P_COUNT(N, D)   N count, uintptr_t type, uintptr_t op,
#define F_COUNT         .send.count = count, .send.type = type, .op = op,
#define A_COUNT         call->send.count, call->send.type, call->op,
#define P_COUNTS(N, D)  const N *counts, uintptr_t type, uintptr_t op,
#define F_COUNTS        .send.counts = counts, .send.type = type, .op = op,
#define A_COUNTS        call->send.counts, call->send.type, call->op,
#define P_NONE(N, D)
#define F_NONE
#define A_NONE
#define P_ROOT int root, uintptr_t comm
#define F_ROOT .root = root, .comm = comm
#define A_ROOT call->root, call->comm
#define P_COMM uintptr_t comm
#define F_COMM .comm = comm
#define A_COMM call->comm

/* X(name, parts): the collectives that have both forms; the reductions first. */
#define COLLECTIVE_MAP(X)                                                                          \
    X(Allreduce, BUFFERS, COUNT, COMM)                                                             \
    X(Reduce, BUFFERS, COUNT, ROOT)                                                                \
    X(Reduce_scatter, BUFFERS, COUNTS, COMM)                                                       \
    X(Reduce_scatter_block, BUFFERS, COUNT, COMM)                                                  \
    X(Bcast, NONE, RECV, ROOT)                                                                     \
    X(Allgather, SEND, RECV, COMM)                                                                 \
    X(Allgatherv, SEND, RECVS, COMM)                                                               \
    X(Alltoall, SEND, RECV, COMM)                                                                  \
    X(Alltoallv, SENDS, RECVS, COMM)                                                               \
    X(Gather, SEND, RECV, ROOT)                                                                    \
    X(Gatherv, SEND, RECVS, ROOT)                                                                  \
    X(Scatter, SEND, RECV, ROOT)                                                                   \
    X(Scatterv, SENDS, RECV, ROOT)

#define PARAMETERS(N, D, first, second, end) (P_##first(N, D) P_##second(N, D) P_##end)
#define FIELDS(first, second, end)           F_##first F_##second F_##end
#define ARGUMENTS(first, second, end)        (A_##first A_##second A_##end)

/* X(name, arguments) */
typedef int copy_attr_fn(uintptr_t comm, int key, void *extra, void *in, void *out, int *flag);
typedef int delete_attr_fn(uintptr_t comm, int key, void *value, void *extra);
#define REAL_MAP(X)                                                                                \
    X(Barrier, (uintptr_t comm))                                                                   \
    X(Comm_test_inter, (uintptr_t comm, int *flag))                                                \
    X(Comm_remote_size, (uintptr_t comm, int *size))                                               \
    X(Comm_create_keyval, (copy_attr_fn * copy, delete_attr_fn * delete, int *key, void *extra))   \
    X(Comm_set_attr, (uintptr_t comm, int key, void *value))                                       \
    X(Comm_get_attr, (uintptr_t comm, int key, void *value, int *flag))                            \
    X(Comm_call_errhandler, (uintptr_t comm, int code))                                            \
    X(Iprobe, (int from, int tag, uintptr_t comm, int *flag, void *status))                        \
    X(Type_size_x, (uintptr_t type, int64_t * bytes))                                              \
    X(Type_get_extent, (uintptr_t type, intptr_t * bound, intptr_t * extent))                      \
    X(Pack, (const void *from, int count, uintptr_t type, void *to, int bytes, int *position,      \
             uintptr_t comm))                                                                      \
    X(Unpack, (const void *from, int bytes, int *position, void *to, int count, uintptr_t type,    \
               uintptr_t comm))

enum function {
#define FUNCTION_ENUM(name, first, second, end) FUNCTION_##name,
    COLLECTIVE_MAP(FUNCTION_ENUM)
#undef FUNCTION_ENUM
        FUNCTION_Barrier,
    FUNCTIONS,
};

/* What a rank sends or receives: `count` elements, or as many for each rank, one behind the other;
 * or a block for each rank, as the arrays say. */
struct side {
    const void *buffer;
    int64_t count;
    const void *counts, *displs; /* of int, in the form _c of 64 bits */
    uintptr_t type;
};

/* A collective as the program called it. What it lacks is 0. The type and counts of a reduction are
 * in `send`, of a broadcast in `recv`. */
struct call {
    enum function function;
    bool wide; /* the form _c */
    struct side send, recv;
    uintptr_t op, comm;
    int root;
};

static inline bool call_reduces(const struct call *call)
{
    return call->function <= FUNCTION_Reduce_scatter_block;
}

static inline void *recv_of(const struct call *call)
{
    return (void *)(uintptr_t)call->recv.buffer;
}

/* How many elements the block of a rank has, and where it begins. */
static inline int64_t block_count(const struct call *call, const struct side *side, int rank)
{
    if (!side->counts)
        return side->count;
    return call->wide ? ((const int64_t *)side->counts)[rank] : ((const int *)side->counts)[rank];
}

static inline int64_t block_displ(const struct call *call, const struct side *side, int rank)
{
    if (!side->displs)
        return rank * side->count;
    return call->wide ? ((const int64_t *)side->displs)[rank] : ((const int *)side->displs)[rank];
}

#endif
