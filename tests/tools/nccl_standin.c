/* SPDX-License-Identifier: MIT */
/*
 * A stand-in for NCCL: enough to be measured, and for what moves data to be checked. Linked with
 * the stand-in for libcuda. Sums are copies. Where all ranks are threads of this process, a call
 * waits on the host until all ranks have made it, and copies from the peers' memory; messages come
 * in groups. Where they are processes, a call copies the own data. TUTTI_STANDIN_NCCL_STALL names a
 * rank that never returns from an all-reduce, TUTTI_STANDIN_NCCL_WRONG one that copies nothing.
 */
#include "cuda/driver/driver_abi.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS, WRONG = 4, WINDOW_SYMMETRIC = 1, RANKS = 8, CALLS = 64 };

struct id {
    char bytes[128];
};

/* One call of a group, or the only one. */
struct call {
    char kind; /* 'g': all-gather, 'b': broadcast, 's': send, 'r': receive, 'c': a copy */
    const char *send;
    char *recv;
    size_t bytes;
    int peer; /* or the root */
};

struct comm {
    int rank, size;
    CUstream stream;
    struct call calls[CALLS];
    int count;
};

/* The ranks that are threads of this process. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t barrier;
static struct comm *members[RANKS];
static int member_count;

static _Thread_local int depth;              /* of open groups */
static _Thread_local struct comm *collected; /* the communicator of the open group */

const char *ncclGetErrorString(int result);
int ncclGetVersion(int *version);
int ncclGetUniqueId(struct id *id);
int ncclCommInitRank(void **comm, int size, struct id id, int rank);
int ncclCommDestroy(void *comm);
int ncclAllReduce(const void *send, void *recv, size_t count, int dtype, int op, void *comm,
                  CUstream stream);
int ncclAllGather(const void *send, void *recv, size_t count, int dtype, void *comm,
                  CUstream stream);
int ncclReduceScatter(const void *send, void *recv, size_t count, int dtype, int op, void *comm,
                      CUstream stream);
int ncclBroadcast(const void *send, void *recv, size_t count, int dtype, int root, void *comm,
                  CUstream stream);
int ncclReduce(const void *send, void *recv, size_t count, int dtype, int op, int root, void *comm,
               CUstream stream);
int ncclSend(const void *send, size_t count, int dtype, int peer, void *comm, CUstream stream);
int ncclRecv(void *recv, size_t count, int dtype, int peer, void *comm, CUstream stream);
int ncclGroupStart(void);
int ncclGroupEnd(void);
int ncclMemAlloc(void **memory, size_t bytes);
int ncclMemFree(void *memory);
int ncclCommWindowRegister(void *comm, void *memory, size_t bytes, void **window, int flags);
int ncclCommWindowDeregister(void *comm, void *window);

const char *ncclGetErrorString(int result)
{
    return result == WRONG ? "the stand-in was called wrongly" : "no error";
}

int ncclGetVersion(int *version)
{
    *version = 22809;
    return SUCCESS;
}

int ncclGetUniqueId(struct id *id)
{
    memset(id->bytes, 7, sizeof id->bytes);
    return SUCCESS;
}

/* The id has come from rank 0 to all. */
int ncclCommInitRank(void **comm, int size, struct id id, int rank)
{
    struct comm *made = calloc(1, sizeof *made);
    if (!made || rank >= size || size > RANKS || id.bytes[127] != 7)
        return WRONG;
    *made = (struct comm){.rank = rank, .size = size};
    pthread_mutex_lock(&lock);
    if (member_count == 0)
        pthread_barrier_init(&barrier, NULL, (unsigned)size);
    members[rank] = made;
    member_count++;
    pthread_mutex_unlock(&lock);
    *comm = made;
    return SUCCESS;
}

int ncclCommDestroy(void *comm)
{
    free(comm);
    return SUCCESS;
}

/* ---- calls ----------------------------------------------------------------------------------- */

static bool copy(void *to, const void *from, size_t bytes, CUstream stream)
{
    return cuMemcpyAsync((CUdeviceptr)(uintptr_t)to, (CUdeviceptr)(uintptr_t)from, bytes, stream) ==
           CUDA_SUCCESS;
}

/* The n-th message that `from` sends to `to` in its group; NULL: there is none. */
static const struct call *message_find(const struct comm *from, int to, int n)
{
    for (int i = 0; i < from->count; i++)
        if (from->calls[i].kind == 's' && from->calls[i].peer == to && n-- == 0)
            return &from->calls[i];
    return NULL;
}

/* All ranks have noted their calls. */
static bool call_run(const struct comm *self, int index)
{
    const struct call *call = &self->calls[index];
    bool ok = true;
    int earlier = 0;
    switch (call->kind) {
    case 'g':
        for (int r = 0; r < self->size && ok; r++)
            ok = members[r]->calls[index].bytes == call->bytes &&
                 copy(call->recv + (size_t)r * call->bytes, members[r]->calls[index].send,
                      call->bytes, self->stream);
        return ok;
    case 'b':
        return members[call->peer]->calls[index].bytes == call->bytes &&
               copy(call->recv, members[call->peer]->calls[index].send, call->bytes, self->stream);
    case 's': /* somebody receives it */
        for (int i = 0; i < members[call->peer]->count; i++) {
            const struct call *theirs = &members[call->peer]->calls[i];
            if (theirs->kind == 'r' && theirs->peer == self->rank && theirs->bytes == call->bytes)
                return true;
        }
        return false;
    case 'r':
        for (int i = 0; i < index; i++)
            earlier += self->calls[i].kind == 'r' && self->calls[i].peer == call->peer;
        call = message_find(members[call->peer], self->rank, earlier);
        return call && call->bytes == self->calls[index].bytes &&
               copy(self->calls[index].recv, call->send, call->bytes, self->stream);
    default:
        return copy(call->recv, call->send, call->bytes, self->stream);
    }
}

static bool is_named(const char *variable, const struct comm *self)
{
    const char *rank = getenv(variable);
    return rank && self && atoi(rank) == self->rank;
}

static int calls_run(struct comm *self)
{
    const bool together = member_count == self->size;
    const bool is_wrong = is_named("TUTTI_STANDIN_NCCL_WRONG", self);
    bool ok = true;
    if (together)
        pthread_barrier_wait(&barrier);
    for (int i = 0; i < self->count && !is_wrong; i++) {
        const struct call *call = &self->calls[i];
        if (together)
            ok = call_run(self, i) && ok;
        else if (call->recv && call->send)
            ok = copy(call->recv, call->send, call->bytes, self->stream) && ok;
    }
    if (together)
        pthread_barrier_wait(&barrier);
    self->count = 0;
    return ok ? SUCCESS : WRONG;
}

static size_t width(int dtype)
{
    static const size_t bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return dtype < 0 || dtype >= (int)(sizeof bytes / sizeof *bytes) ? 0 : bytes[dtype];
}

static int call_add(void *opaque, struct call call, CUstream stream)
{
    struct comm *self = opaque;
    if (!self || !call.bytes || call.peer < 0 || call.peer >= self->size || self->count == CALLS ||
        (collected && collected != self))
        return WRONG;
    self->calls[self->count++] = call;
    self->stream = stream;
    if (!depth)
        return calls_run(self);
    collected = self;
    return SUCCESS;
}

int ncclAllReduce(const void *send, void *recv, size_t count, int dtype, int op, void *comm,
                  CUstream stream)
{
    while (is_named("TUTTI_STANDIN_NCCL_STALL", comm))
        pause();
    if (op < 0 || op > 4)
        return WRONG;
    return call_add(comm, (struct call){'c', send, recv, count * width(dtype), 0}, stream);
}

int ncclAllGather(const void *send, void *recv, size_t count, int dtype, void *comm,
                  CUstream stream)
{
    return call_add(comm, (struct call){'g', send, recv, count * width(dtype), 0}, stream);
}

int ncclReduceScatter(const void *send, void *recv, size_t count, int dtype, int op, void *comm,
                      CUstream stream)
{
    return ncclAllReduce(send, recv, count, dtype, op, comm, stream);
}

int ncclBroadcast(const void *send, void *recv, size_t count, int dtype, int root, void *comm,
                  CUstream stream)
{
    return call_add(comm, (struct call){'b', send, recv, count * width(dtype), root}, stream);
}

int ncclReduce(const void *send, void *recv, size_t count, int dtype, int op, int root, void *comm,
               CUstream stream)
{
    if (op < 0 || op > 4)
        return WRONG;
    return call_add(comm, (struct call){'c', send, recv, count * width(dtype), root}, stream);
}

int ncclSend(const void *send, size_t count, int dtype, int peer, void *comm, CUstream stream)
{
    return depth
               ? call_add(comm, (struct call){'s', send, NULL, count * width(dtype), peer}, stream)
               : WRONG;
}

int ncclRecv(void *recv, size_t count, int dtype, int peer, void *comm, CUstream stream)
{
    return depth
               ? call_add(comm, (struct call){'r', NULL, recv, count * width(dtype), peer}, stream)
               : WRONG;
}

int ncclGroupStart(void)
{
    depth++;
    return SUCCESS;
}

int ncclGroupEnd(void)
{
    struct comm *self = collected;
    if (depth-- != 1)
        return WRONG;
    collected = NULL;
    return self ? calls_run(self) : SUCCESS;
}

int ncclMemAlloc(void **memory, size_t bytes)
{
    CUdeviceptr address = 0;
    if (cuMemAlloc_v2(&address, bytes) != CUDA_SUCCESS)
        return WRONG;
    *memory = (void *)(uintptr_t)address;
    return SUCCESS;
}

int ncclMemFree(void *memory)
{
    return cuMemFree_v2((CUdeviceptr)memory) == CUDA_SUCCESS ? SUCCESS : WRONG;
}

int ncclCommWindowRegister(void *comm, void *memory, size_t bytes, void **window, int flags)
{
    *window = memory;
    return comm && bytes && flags == WINDOW_SYMMETRIC ? SUCCESS : WRONG;
}

int ncclCommWindowDeregister(void *comm, void *window)
{
    return comm && window ? SUCCESS : WRONG;
}
