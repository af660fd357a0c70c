/* SPDX-License-Identifier: MIT */
/*
 * NCCL as a fabric: a group of its sends and receives on the caller's stream. Functions are called
 * by their second names (pnccl), so that no tool counts them as the program's.
 *
 * Communicators are of NCCL's non-blocking kind: a call that has to wait for peers returns
 * ncclInProgress, and is polled here, so that an abort or the deadline ends the wait. Such a wait
 * occurs in connect(), and in the first enqueue() to a peer.
 *
 * The thread that watches the communicator calls test() beside the one that enqueues. A mutex keeps
 * one from aborting NCCL's communicator while the other uses it.
 */
#include "fabric/fabric.h"

#include "base/deadline.h"
#include "base/error.h"
#include "base/interrupt.h"

#include <assert.h>
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NCCL_SUCCESS = 0, NCCL_IN_PROGRESS = 7, NCCL_INT8 = 0, POLL_US = 20, SPIN_US = 200 };

/* ncclConfig_t as it was in 2.14. Newer versions take the rest from the version. */
struct config {
    size_t size;
    unsigned magic, version;
    int blocking, unset;
};

struct id {
    char bytes[FABRIC_ADDRESS_BYTES];
};

/* X(member, name, arguments) */
#define NCCL_FUNCTION_MAP(X)                                                                       \
    X(version, GetVersion, (int *version))                                                         \
    X(unique_id, GetUniqueId, (struct id * id))                                                    \
    X(init, CommInitRankConfig,                                                                    \
      (void **comm, int size, struct id id, int rank, struct config *config))                      \
    X(async_error, CommGetAsyncError, (void *comm, int *result))                                   \
    X(finalize, CommFinalize, (void *comm))                                                        \
    X(destroy, CommDestroy, (void *comm))                                                          \
    X(abort, CommAbort, (void *comm))                                                              \
    X(group_start, GroupStart, (void))                                                             \
    X(group_end, GroupEnd, (void))                                                                 \
    X(send, Send,                                                                                  \
      (const void *buffer, size_t count, int dtype, int peer, void *comm, tutti_stream_t stream))  \
    X(recv, Recv,                                                                                  \
      (void *buffer, size_t count, int dtype, int peer, void *comm, tutti_stream_t stream))

struct engine {
    const char *(*error_string)(int result);
    const char *(*last_error)(void *comm);
#define NCCL_MEMBER(member, name, arguments) int(*member) arguments;
    NCCL_FUNCTION_MAP(NCCL_MEMBER)
#undef NCCL_MEMBER
};

struct nccl_link {
    struct fabric_link base;
    const struct engine *nccl;
    void *comm;            /* NULL: ended */
    bool failed;           /* what is on streams stays until an abort, which may tell why first */
    int64_t timeout_ms;    /* of connect(), and so of a wait in enqueue() */
    pthread_mutex_t mutex; /* of comm */
};

static enum tutti_status nccl_error(const struct engine *nccl, void *comm, const char *call,
                                    int result)
{
    return error_set(TUTTI_ERR_SYSTEM, "%s: %s: %.300s", call, nccl->error_string(result),
                     nccl->last_error(comm));
}

/* ---- the library ----------------------------------------------------------------------------- */

static enum tutti_status find_functions(void *library, const char *file, struct engine *nccl)
{
    static const char *const names[] = {"pncclGetErrorString", "pncclGetLastError",
#define NCCL_NAME(member, name, arguments) "pnccl" #name,
                                        NCCL_FUNCTION_MAP(NCCL_NAME)
#undef NCCL_NAME
    };
    enum { COUNT = sizeof names / sizeof *names };
    void *found[COUNT];
    static_assert(sizeof found == sizeof *nccl, "members");
    for (int i = 0; i < COUNT; i++) {
        found[i] = dlsym(library, names[i]);
        if (!found[i])
            return error_set(TUTTI_ERR_DECLINED,
                             "%s has no %s: NVIDIA's NCCL 2.14 or newer is needed; name it in "
                             "TUTTI_NCCL_LIBRARY",
                             file, names[i]);
    }
    memcpy(nccl, found, sizeof found);
    return TUTTI_OK;
}

static enum tutti_status nccl_open(const char *rest, struct tutti_fabric *fabric)
{
    const char *named = getenv("TUTTI_NCCL_LIBRARY");
    const char *file = *rest ? rest : named && *named ? named : "libnccl.so.2";
    int version = 0;
    struct engine *nccl = calloc(1, sizeof *nccl);
    if (!nccl)
        return error_errno("nccl");
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL); /* stays: it has threads */
    enum tutti_status status = TUTTI_OK;
    if (!library)
        status =
            error_set(TUTTI_ERR_DECLINED, "no NCCL: %s; name it in TUTTI_NCCL_LIBRARY", dlerror());
    if (status == TUTTI_OK)
        status = find_functions(library, file, nccl);
    if (status != TUTTI_OK) {
        free(nccl);
        return status;
    }
    nccl->version(&version);
    fabric->engine = nccl;
    snprintf(fabric->description, sizeof fabric->description, "nccl (NCCL %d.%d.%d)",
             version / 10000, version / 100 % 100, version % 100);
    return TUTTI_OK;
}

static void nccl_close(struct tutti_fabric *fabric)
{
    free(fabric->engine);
}

static bool nccl_threads(const struct tutti_fabric *fabric)
{
    (void)fabric;
    return true;
}

/* ---- links ----------------------------------------------------------------------------------- */

/* Rank 0's number names NCCL's communicator; the others' say nothing. */
static enum tutti_status nccl_address(struct tutti_fabric *fabric, int rank, void *to)
{
    const struct engine *nccl = fabric->engine;
    struct id id = {{0}};
    const int result = rank == 0 ? nccl->unique_id(&id) : NCCL_SUCCESS;
    memcpy(to, &id, sizeof id);
    return result == NCCL_SUCCESS ? TUTTI_OK : nccl_error(nccl, NULL, "ncclGetUniqueId", result);
}

/* Ends NCCL's communicator with all that waits on streams. Under the mutex. */
static void end_comm(struct nccl_link *link)
{
    if (link->comm)
        link->nccl->abort(link->comm);
    link->comm = NULL;
}

/* Waits for what a call has begun. Most of it is done by a thread of NCCL's, soon. */
static enum tutti_status await(const struct nccl_link *link, const char *call, int result,
                               int64_t deadline, const struct interrupt *interrupt)
{
    const struct timespec nap = {.tv_nsec = POLL_US * 1000};
    const int64_t begun = deadline_now();
    while (result == NCCL_IN_PROGRESS) {
        const int asked = link->nccl->async_error(link->comm, &result);
        if (asked != NCCL_SUCCESS)
            result = asked;
        if (result != NCCL_IN_PROGRESS)
            break;
        const enum tutti_status status = interrupt_ask(interrupt);
        if (status != TUTTI_OK)
            return status;
        if (fabric_link_is_aborted(&link->base))
            return error_set(TUTTI_ERR_ABORTED, "the link over NCCL was aborted");
        if (deadline_passed(deadline))
            return error_set(TUTTI_ERR_TIMEOUT,
                             "%s of rank %d: NCCL has waited for the other %d ranks for %lld ms",
                             call, link->base.rank, link->base.size - 1,
                             (long long)link->timeout_ms);
        if (deadline_now() - begun < SPIN_US * INT64_C(1000))
            sched_yield();
        else
            nanosleep(&nap, NULL);
    }
    return result == NCCL_SUCCESS ? TUTTI_OK : nccl_error(link->nccl, link->comm, call, result);
}

static enum tutti_status nccl_connect(struct tutti_fabric *fabric, int rank, int size,
                                      const void *addresses, int64_t deadline,
                                      const struct interrupt *interrupt, struct fabric_link **made)
{
    struct config config = {.size = sizeof config,
                            .magic = 0xcafebeef,
                            .version = 21400,
                            .blocking = 0,
                            .unset = INT_MIN};
    struct id id;
    struct nccl_link *link = calloc(1, sizeof *link);
    if (!link)
        return error_errno("nccl");
    memcpy(&id, addresses, sizeof id);
    link->base = (struct fabric_link){.fabric = fabric, .rank = rank, .size = size};
    link->nccl = fabric->engine;
    link->timeout_ms = deadline_left_ms(deadline);
    pthread_mutex_init(&link->mutex, NULL);
    const int result = link->nccl->init(&link->comm, size, id, rank, &config);
    const enum tutti_status status =
        await(link, "ncclCommInitRankConfig", result, deadline, interrupt);
    if (status == TUTTI_OK) {
        *made = &link->base;
        return TUTTI_OK;
    }
    end_comm(link);
    pthread_mutex_destroy(&link->mutex);
    free(link);
    return status;
}

static bool nccl_disconnect(struct fabric_link *base, int64_t deadline)
{
    struct nccl_link *link = (struct nccl_link *)base;
    if (base->held && !fabric_link_is_aborted(base))
        link->comm = NULL;
    if (link->comm && !link->failed && !fabric_link_is_aborted(base) &&
        await(link, "ncclCommFinalize", link->nccl->finalize(link->comm), deadline, NULL) ==
            TUTTI_OK) {
        link->nccl->destroy(link->comm);
        link->comm = NULL;
    }
    end_comm(link);
    pthread_mutex_destroy(&link->mutex);
    free(link);
    return true; /* an abort waits for the kernels */
}

/* ---- transfers ------------------------------------------------------------------------------- */

/* Ends the communicator if it was aborted. Under the mutex. */
static enum tutti_status check(struct nccl_link *link)
{
    if (fabric_link_is_aborted(&link->base)) {
        end_comm(link);
        return error_set(TUTTI_ERR_ABORTED, "the link over NCCL was aborted");
    }
    return link->comm && !link->failed
               ? TUTTI_OK
               : error_set(TUTTI_ERR_SYSTEM, "the link over NCCL has failed before");
}

static enum tutti_status nccl_enqueue(struct fabric_link *base,
                                      const struct fabric_transfer *transfers, int count,
                                      tutti_stream_t stream)
{
    struct nccl_link *link = (struct nccl_link *)base;
    const struct engine *nccl = link->nccl;
    const char *call = "ncclGroupEnd";
    pthread_mutex_lock(&link->mutex);
    enum tutti_status status = check(link);
    int result = status == TUTTI_OK ? nccl->group_start() : NCCL_SUCCESS;
    if (status == TUTTI_OK && result == NCCL_SUCCESS) {
        for (int i = 0; i < count && result == NCCL_SUCCESS; i++) {
            const struct fabric_transfer *one = &transfers[i];
            call = one->is_send ? "ncclSend" : "ncclRecv";
            result =
                one->is_send
                    ? nccl->send(one->buffer, one->bytes, NCCL_INT8, one->peer, link->comm, stream)
                    : nccl->recv(one->buffer, one->bytes, NCCL_INT8, one->peer, link->comm, stream);
        }
        const int ended = nccl->group_end();
        if (result == NCCL_SUCCESS) {
            call = "ncclGroupEnd";
            result = ended;
        }
    }
    if (status == TUTTI_OK)
        status = await(link, call, result, deadline_after(link->timeout_ms), NULL);
    link->failed |= status != TUTTI_OK;
    pthread_mutex_unlock(&link->mutex);
    return status;
}

static enum tutti_status nccl_test(struct fabric_link *base, struct fabric_batch *batch, bool *done)
{
    struct nccl_link *link = (struct nccl_link *)base;
    int result = NCCL_SUCCESS;
    (void)batch;
    *done = true;
    if (pthread_mutex_trylock(&link->mutex) != 0)
        return TUTTI_OK; /* enqueue() looks at the link itself */
    enum tutti_status status = check(link);
    if (status == TUTTI_OK) {
        const int asked = link->nccl->async_error(link->comm, &result);
        if (asked != NCCL_SUCCESS)
            result = asked;
        if (result != NCCL_SUCCESS && result != NCCL_IN_PROGRESS) {
            status = nccl_error(link->nccl, link->comm, "ncclCommGetAsyncError", result);
            link->failed = true;
        }
    }
    pthread_mutex_unlock(&link->mutex);
    return status;
}

const struct fabric_ops nccl_fabric = {
    .name = "nccl",
    .device_memory = true,
    .address_bytes = sizeof(struct id),
    .open = nccl_open,
    .close = nccl_close,
    .threads = nccl_threads,
    .address = nccl_address,
    .connect = nccl_connect,
    .disconnect = nccl_disconnect,
    .start = NULL,
    .test = nccl_test,
    .enqueue = nccl_enqueue,
};
