/* SPDX-License-Identifier: MIT */
/*
 * Stands in for NVIDIA's libnccl.so.2, for ranks that are threads and memory of the host. What is
 * on a stream ends when both sides of a message have enqueued it. nccl_standin_pending() says how
 * many messages of a rank have not. Waits for peers are those of NCCL's non-blocking communicators:
 * ncclInProgress, until a later poll.
 *
 * nccl_standin_fault becomes the asynchronous error of all communicators, nccl_standin_alive counts
 * them.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID = 4, IN_PROGRESS = 7, RANKS = 8, CALLS = 256, WORLDS = 64 };

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
    void *buffer;
    size_t bytes;
};

struct world;

struct comm {
    struct world *world;
    int rank;
    int polls; /* that still say IN_PROGRESS */
    int count;
    struct call calls[CALLS]; /* not ended */
};

struct world {
    int size, joined;
    struct comm *comms[RANKS];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct world worlds[WORLDS];
static int world_count;
static _Thread_local int depth;
int nccl_standin_fault, nccl_standin_alive;

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
int pncclSend(void *buffer, size_t count, int dtype, int peer, struct comm *comm, void *stream);
int pncclRecv(void *buffer, size_t count, int dtype, int peer, struct comm *comm, void *stream);
int nccl_standin_pending(int rank);

const char *pncclGetErrorString(int result)
{
    return result == INVALID ? "invalid argument" : "the stand-in's error";
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
    pthread_mutex_lock(&lock);
    const int world = ++world_count;
    pthread_mutex_unlock(&lock);
    memset(id, 0, sizeof *id);
    id->bytes[0] = (char)world;
    return world < WORLDS ? SUCCESS : INVALID;
}

int pncclCommInitRankConfig(struct comm **comm, int size, struct id id, int rank,
                            const struct config *config)
{
    if (config->magic != 0xcafebeef || config->blocking || !id.bytes[0])
        return INVALID;
    struct comm *made = calloc(1, sizeof *made);
    pthread_mutex_lock(&lock);
    made->world = &worlds[(int)id.bytes[0]];
    made->rank = rank;
    made->world->size = size;
    made->world->comms[rank] = made;
    made->world->joined++;
    nccl_standin_alive++;
    pthread_mutex_unlock(&lock);
    *comm = made;
    return IN_PROGRESS;
}

int pncclCommGetAsyncError(struct comm *comm, int *result)
{
    pthread_mutex_lock(&lock);
    const int fault = __atomic_load_n(&nccl_standin_fault, __ATOMIC_SEQ_CST);
    const int waits = comm->world->joined < comm->world->size || comm->polls;
    comm->polls -= comm->polls > 0;
    *result = fault ? fault : waits ? IN_PROGRESS : SUCCESS;
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

int pncclCommFinalize(struct comm *comm)
{
    pthread_mutex_lock(&lock);
    comm->polls = 3;
    pthread_mutex_unlock(&lock);
    return IN_PROGRESS;
}

int pncclCommAbort(struct comm *comm)
{
    pthread_mutex_lock(&lock);
    comm->world->comms[comm->rank] = NULL;
    nccl_standin_alive--;
    pthread_mutex_unlock(&lock);
    free(comm);
    return SUCCESS;
}

int pncclCommDestroy(struct comm *comm)
{
    return pncclCommAbort(comm);
}

int pncclGroupStart(void)
{
    depth++;
    return SUCCESS;
}

static void take(struct comm *comm, int at)
{
    memmove(&comm->calls[at], &comm->calls[at + 1],
            (size_t)(--comm->count - at) * sizeof *comm->calls);
}

/* The first call of that kind between two ranks. */
static int find(const struct comm *comm, int is_send, int peer)
{
    for (int i = 0; i < comm->count; i++)
        if (comm->calls[i].is_send == is_send && comm->calls[i].peer == peer)
            return i;
    return -1;
}

static int enqueue(int is_send, void *buffer, size_t bytes, int dtype, int peer, struct comm *comm)
{
    int result = SUCCESS;
    if (dtype != 0 || !depth || peer < 0 || peer >= comm->world->size)
        return INVALID;
    pthread_mutex_lock(&lock);
    struct comm *other = comm->world->comms[peer];
    const int at = other ? find(other, !is_send, comm->rank) : -1;
    comm->polls = 2; /* the end of the group */
    if (at < 0 && comm->count == CALLS) {
        result = INVALID;
    } else if (at < 0) {
        comm->calls[comm->count++] = (struct call){is_send, peer, buffer, bytes};
    } else {
        void *from = is_send ? buffer : other->calls[at].buffer;
        memcpy(is_send ? other->calls[at].buffer : buffer, from, bytes);
        take(other, at);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

int pncclSend(void *buffer, size_t count, int dtype, int peer, struct comm *comm, void *stream)
{
    (void)stream;
    return enqueue(1, buffer, count, dtype, peer, comm);
}

int pncclRecv(void *buffer, size_t count, int dtype, int peer, struct comm *comm, void *stream)
{
    (void)stream;
    return enqueue(0, buffer, count, dtype, peer, comm);
}

int pncclGroupEnd(void)
{
    return --depth ? SUCCESS : IN_PROGRESS;
}

int nccl_standin_pending(int rank)
{
    int count = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < WORLDS; i++)
        if (worlds[i].comms[rank])
            count += worlds[i].comms[rank]->count;
    pthread_mutex_unlock(&lock);
    return count;
}
