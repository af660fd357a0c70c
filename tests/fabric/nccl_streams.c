/* SPDX-License-Identifier: MIT */
/*
 * Stands in for NVIDIA's libnccl.so.2, for ranks that are processes of one machine with devices of
 * the stand-in for libcuda. A group of sends and receives is one piece of work of its stream, in a
 * graph too: it ends when all its bytes have gone and come, through a socket for each pair of
 * ranks. As with NCCL, bytes have no lengths of their own: a rank that receives more than its peer
 * sends waits, until an abort.
 */
#include "../cuda/driver_more.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum {
    SUCCESS = 0,
    UNHANDLED = 1,
    INVALID = 4,
    REMOTE = 6,
    IN_PROGRESS = 7,
    RANKS = 8,
    CALLS = 4096,
    POLL_MS = 1
};

struct id {
    char bytes[128];
};

struct config {
    size_t size;
    unsigned magic, version;
    int blocking;
};

struct call {
    int is_send, peer;
    char *buffer;
    size_t bytes, done;
};

struct batch {
    struct batch *next;
    struct comm *comm;
    int count;
    struct call calls[];
};

/* Never freed: work on a stream may look at it later. */
struct comm {
    struct comm *next;
    struct id id;
    int rank, size, listens;
    int peers[RANKS]; /* sockets; -1: not yet */
    int fault, aborted;
    int graphs; /* that have groups of this communicator: its end waits for theirs, as NCCL's does
                 */
    struct batch *batches;
    pthread_mutex_t running; /* held by the work that runs */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct comm *comms;
static _Thread_local int depth, count;
static _Thread_local struct comm *in_group;
static _Thread_local CUstream on;
static _Thread_local struct call calls[CALLS];

const char *pncclGetErrorString(int result);
const char *pncclGetLastError(void *comm);
int pncclGetVersion(int *version);
int pncclGetUniqueId(struct id *id);
int pncclCommInitRankConfig(struct comm **comm, int size, struct id id, int rank,
                            const struct config *config);
int pncclCommGetAsyncError(struct comm *comm, int *result);
int pncclCommFinalize(struct comm *comm);
int pncclCommDestroy(struct comm *comm);
int pncclCommAbort(struct comm *comm);
int pncclGroupStart(void);
int pncclGroupEnd(void);
int pncclSend(void *buffer, size_t bytes, int dtype, int peer, struct comm *comm, CUstream stream);
int pncclRecv(void *buffer, size_t bytes, int dtype, int peer, struct comm *comm, CUstream stream);

const char *pncclGetErrorString(int result)
{
    return result == REMOTE ? "remote process exited" : "the stand-in's error";
}

const char *pncclGetLastError(void *comm)
{
    (void)comm;
    return "the stand-in's last error";
}

int pncclGetVersion(int *version)
{
    *version = 22809;
    return SUCCESS;
}

int pncclGetUniqueId(struct id *id)
{
    unsigned long long bits;
    if (getrandom(&bits, sizeof bits, 0) != sizeof bits)
        return UNHANDLED;
    memset(id, 0, sizeof *id);
    snprintf(id->bytes, sizeof id->bytes, "nccl-%016llx", bits);
    return SUCCESS;
}

/* ---- connections ----------------------------------------------------------------------------- */

/* A name without a file, which is gone with its socket. */
static socklen_t name_make(const struct id *id, int rank, struct sockaddr_un *name)
{
    *name = (struct sockaddr_un){.sun_family = AF_UNIX};
    snprintf(name->sun_path + 1, sizeof name->sun_path - 1, "%.60s-%d", id->bytes, rank);
    return sizeof *name;
}

static void connect_lower(struct comm *comm, int peer)
{
    const char rank = (char)comm->rank;
    struct sockaddr_un name;
    const socklen_t length = name_make(&comm->id, peer, &name);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, (struct sockaddr *)&name, length) == 0 && write(fd, &rank, 1) == 1)
        comm->peers[peer] = fd;
    else
        close(fd);
}

/* Returns whether all ranks are connected. */
static int connect_all(struct comm *comm)
{
    int connected = 1;
    for (int peer = 0; peer < comm->rank; peer++)
        if (comm->peers[peer] < 0)
            connect_lower(comm, peer);
    for (int fd; (fd = accept4(comm->listens, NULL, NULL, SOCK_CLOEXEC)) >= 0;) {
        char rank = 0;
        if (read(fd, &rank, 1) == 1)
            comm->peers[(int)rank] = fd;
    }
    for (int peer = 0; peer < comm->size; peer++)
        connected &= peer == comm->rank || comm->peers[peer] >= 0;
    return connected;
}

int pncclCommInitRankConfig(struct comm **comm, int size, struct id id, int rank,
                            const struct config *config)
{
    struct sockaddr_un name;
    if (config->magic != 0xcafebeef || config->blocking || size > RANKS)
        return INVALID;
    struct comm *made = calloc(1, sizeof *made);
    made->id = id;
    made->rank = rank;
    made->size = size;
    for (int peer = 0; peer < RANKS; peer++)
        made->peers[peer] = -1;
    pthread_mutex_init(&made->running, NULL);
    made->listens = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const socklen_t length = name_make(&id, rank, &name);
    if (bind(made->listens, (struct sockaddr *)&name, length) != 0 ||
        listen(made->listens, RANKS) != 0)
        return UNHANDLED;
    pthread_mutex_lock(&lock);
    made->next = comms;
    comms = made;
    pthread_mutex_unlock(&lock);
    *comm = made;
    return IN_PROGRESS;
}

int pncclCommGetAsyncError(struct comm *comm, int *result)
{
    const int fault = __atomic_load_n(&comm->fault, __ATOMIC_SEQ_CST);
    *result = fault ? fault : comm->listens < 0 ? SUCCESS : IN_PROGRESS;
    if (*result == IN_PROGRESS && connect_all(comm)) {
        close(comm->listens);
        comm->listens = -1;
        *result = SUCCESS;
    }
    return SUCCESS;
}

int pncclCommFinalize(struct comm *comm)
{
    (void)comm;
    return SUCCESS;
}

/* Waits for the work that runs, and for graphs. */
int pncclCommAbort(struct comm *comm)
{
    __atomic_store_n(&comm->aborted, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&comm->graphs, __ATOMIC_SEQ_CST))
        poll(NULL, 0, POLL_MS);
    pthread_mutex_lock(&comm->running);
    for (int peer = 0; peer < comm->size; peer++)
        if (comm->peers[peer] >= 0)
            close(comm->peers[peer]);
    if (comm->listens >= 0)
        close(comm->listens);
    comm->listens = -1;
    pthread_mutex_unlock(&comm->running);
    return SUCCESS;
}

int pncclCommDestroy(struct comm *comm)
{
    return pncclCommAbort(comm);
}

/* ---- groups ---------------------------------------------------------------------------------- */

/* Moves what the socket takes or has. The words of a short message are written whole, as by a
 * device: the watch may look. Returns whether the call has ended. */
static int call_step(struct comm *comm, struct call *call, size_t done)
{
    const int fd = comm->peers[call->peer];
    const size_t left = call->bytes - done;
    unsigned long long words[2];
    const int is_header = !call->is_send && call->bytes == sizeof words && !done &&
                          (uintptr_t)call->buffer % sizeof *words == 0;
    const int flags = MSG_DONTWAIT | (is_header ? MSG_PEEK : MSG_NOSIGNAL);
    const ssize_t moved =
        call->is_send ? send(fd, call->buffer + done, left, flags)
                      : recv(fd, is_header ? (char *)words : call->buffer + done, left, flags);
    if (is_header && moved > 0) {
        if (moved != sizeof words || recv(fd, words, sizeof words, MSG_DONTWAIT) != moved)
            return 0; /* later, whole */
        __atomic_store_n((unsigned long long *)(void *)call->buffer + 1, words[1],
                         __ATOMIC_RELAXED);
        __atomic_store_n((unsigned long long *)(void *)call->buffer, words[0], __ATOMIC_RELAXED);
    }
    if (moved > 0)
        call->done = done + (size_t)moved;
    else if (moved == 0 || (errno != EAGAIN && errno != EINTR))
        __atomic_store_n(&comm->fault, REMOTE, __ATOMIC_SEQ_CST);
    return call->done == call->bytes;
}

/* The calls of each pair and direction in their order. Returns whether all have ended. */
static int batch_step(struct batch *batch, int *moved)
{
    int waits[2][RANKS] = {{0}}, all = 1;
    for (int i = 0; i < 2 * batch->count; i++) { /* receives first, as engines may */
        struct call *call = &batch->calls[i % batch->count];
        if (call->is_send != (i >= batch->count))
            continue;
        int *wait = &waits[call->is_send][call->peer];
        if (call->done < call->bytes && !*wait) {
            const size_t before = call->done;
            *wait = !call_step(batch->comm, call, before);
            *moved |= call->done != before;
        }
        all &= call->done == call->bytes;
    }
    return all;
}

static void run(void *argument)
{
    struct batch *batch = argument;
    struct comm *comm = batch->comm;
    int moved = 1;
    pthread_mutex_lock(&comm->running);
    for (int i = 0; i < batch->count; i++) /* of a graph that is launched again */
        batch->calls[i].done = 0;
    while (!__atomic_load_n(&comm->aborted, __ATOMIC_SEQ_CST) && !batch_step(batch, &moved)) {
        if (!moved)
            poll(NULL, 0, POLL_MS);
        moved = 0;
    }
    pthread_mutex_unlock(&comm->running);
}

int pncclGroupStart(void)
{
    count = depth++ ? count : 0;
    return SUCCESS;
}

static int add(int is_send, void *buffer, size_t bytes, int dtype, int peer, struct comm *comm,
               CUstream stream)
{
    if (dtype != 0 || !depth || peer < 0 || peer >= comm->size || peer == comm->rank ||
        count == CALLS || (count && (comm != in_group || stream != on)))
        return INVALID;
    in_group = comm;
    on = stream;
    calls[count++] = (struct call){is_send, peer, buffer, bytes, 0};
    return SUCCESS;
}

int pncclSend(void *buffer, size_t bytes, int dtype, int peer, struct comm *comm, CUstream stream)
{
    return add(1, buffer, bytes, dtype, peer, comm, stream);
}

int pncclRecv(void *buffer, size_t bytes, int dtype, int peer, struct comm *comm, CUstream stream)
{
    return add(0, buffer, bytes, dtype, peer, comm, stream);
}

static void graph_ended(void *comm)
{
    __atomic_sub_fetch(&((struct comm *)comm)->graphs, 1, __ATOMIC_SEQ_CST);
}

/* Notes the graph that the stream captures, if there is one. */
static int graph_note(struct comm *comm, CUstream stream)
{
    CUstreamCaptureStatus status;
    CUgraph graph = NULL;
    CUuserObject object;
    uint64_t id = 0;
    if (cuStreamGetCaptureInfo_v3(stream, &status, &id, &graph, NULL, NULL, NULL) != CUDA_SUCCESS)
        return UNHANDLED;
    if (!id || !graph)
        return SUCCESS;
    __atomic_add_fetch(&comm->graphs, 1, __ATOMIC_SEQ_CST);
    return cuUserObjectCreate(&object, comm, graph_ended, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) ==
                       CUDA_SUCCESS &&
                   cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE) ==
                       CUDA_SUCCESS
               ? SUCCESS
               : UNHANDLED;
}

int pncclGroupEnd(void)
{
    if (--depth || !count)
        return SUCCESS;
    struct batch *batch = malloc(sizeof *batch + (size_t)count * sizeof *calls);
    batch->comm = in_group;
    batch->count = count;
    memcpy(batch->calls, calls, (size_t)count * sizeof *calls);
    pthread_mutex_lock(&lock);
    batch->next = in_group->batches;
    in_group->batches = batch;
    pthread_mutex_unlock(&lock);
    if (graph_note(in_group, on) != SUCCESS)
        return UNHANDLED;
    return cuLaunchHostFunc(on, run, batch) == CUDA_SUCCESS ? IN_PROGRESS : UNHANDLED;
}
