/* SPDX-License-Identifier: MIT */
/* Threads around one communicator: a second caller is turned away, status and describe come from
 * anywhere at any time. */
#include "device.h"
#include "ranks.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

enum { ROUNDS = 2000 };

struct caller {
    tutti_comm_t *comm;
    enum tutti_status status;
};

static void *call(void *argument)
{
    struct caller *caller = argument;
    float one = 1;
    do /* the other thread's refused calls may get in between */
        caller->status = tutti_all_reduce(&one, &one, 1, TUTTI_FLOAT32, TUTTI_SUM, caller->comm,
                                          TUTTI_STREAM_DEFAULT);
    while (caller->status == TUTTI_ERR_CONCURRENT);
    return NULL;
}

/* Rank 0's first caller waits for rank 1, which waits until the second caller was refused. */
static int second_caller(struct ranks *ranks, int rank, tutti_store_t *store)
{
    tutti_comm_t *comm;
    float one = 1;
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    if (rank == 0) {
        struct caller first = {comm, TUTTI_ERR_SYSTEM};
        pthread_t thread;
        RANKS_CHECK(pthread_create(&thread, NULL, call, &first) == 0);
        /* Whether the first is inside yet cannot be seen: a barrier with a short time-out would
         * fail the communicator, so we ask with a call that is refused in either case. */
        enum tutti_status status;
        int rank_9 = 9, tries = 0;
        while ((status = tutti_barrier(comm, &rank_9, 1, TUTTI_STREAM_DEFAULT)) ==
                   TUTTI_ERR_INVALID &&
               tries++ < 100000)
            usleep(100);
        RANKS_CHECK(status == TUTTI_ERR_CONCURRENT);
        RANKS_CHECK(strstr(tutti_last_error(), "one caller at a time"));
        RANKS_CHECK(tutti_all_reduce(&one, &one, 1, TUTTI_FLOAT32, TUTTI_SUM, comm,
                                     TUTTI_STREAM_DEFAULT) == TUTTI_ERR_CONCURRENT);
        RANKS_CHECK(tutti_comm_destroy(comm) == TUTTI_ERR_CONCURRENT);
        RANKS_CHECK(strstr(tutti_last_error(), "tutti_comm_destroy: another thread is inside"));
        RANKS_CHECK(tutti_comm_status(comm, NULL) == TUTTI_OK);
        ranks_raise(ranks, 0);
        pthread_join(thread, NULL);
        RANKS_CHECK(first.status == TUTTI_OK);
    } else {
        RANKS_CHECK(ranks_await(ranks, 0, 1));
        RANKS_CHECK(tutti_all_reduce(&one, &one, 1, TUTTI_FLOAT32, TUTTI_SUM, comm,
                                     TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    }
    /* It did the communicator no harm. */
    RANKS_CHECK(tutti_barrier(comm, NULL, 0, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    RANKS_CHECK(tutti_comm_destroy(comm) == TUTTI_OK);
    return 0;
}

struct watcher {
    tutti_comm_t *comm;
    uint32_t stop;
    int wrong;
    int looks;
};

static void *watch(void *argument)
{
    struct watcher *watcher = argument;
    char text[4096];
    while (!__atomic_load_n(&watcher->stop, __ATOMIC_ACQUIRE)) {
        struct tutti_fault fault = {.struct_size = sizeof fault};
        enum tutti_status status = tutti_comm_status(watcher->comm, &fault);
        watcher->wrong += status != TUTTI_OK || fault.status != TUTTI_OK;
        watcher->wrong += tutti_comm_describe(watcher->comm, text, sizeof text) <= 0;
        __atomic_fetch_add(&watcher->looks, 1, __ATOMIC_RELEASE);
        usleep(50);
    }
    return NULL;
}

static int watched(struct ranks *ranks, int rank, tutti_store_t *store)
{
    tutti_comm_t *comm;
    pthread_t thread;
    static _Thread_local float data[20000];
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    struct watcher watcher = {.comm = comm};
    RANKS_CHECK(pthread_create(&thread, NULL, watch, &watcher) == 0);
    while (!__atomic_load_n(&watcher.looks, __ATOMIC_ACQUIRE)) /* it is at work */
        usleep(100);
    for (int i = 0; i < ROUNDS; i++)
        RANKS_CHECK(tutti_all_reduce(data, data, i % 100 ? (size_t)i % 50 : 20000, TUTTI_FLOAT32,
                                     TUTTI_SUM, comm, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    __atomic_store_n(&watcher.stop, 1, __ATOMIC_RELEASE);
    pthread_join(thread, NULL);
    RANKS_CHECK(watcher.wrong == 0);
    RANKS_CHECK(tutti_barrier(comm, NULL, 0, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    tutti_comm_destroy(comm);
    return 0;
}

int main(void)
{
    static ranks_fn *const parts[] = {second_caller, watched};
    int failures = 0, skip = ranks_skip(2);
    if (skip)
        return skip;
    /* On a GPU the first caller does not stay inside. */
    for (int i = device_is_cuda() ? 1 : 0; i < 2; i++) {
        struct ranks *ranks = ranks_create(2, 0, 0);
        failures += ranks_run(ranks, parts[i]);
        ranks_destroy(ranks);
    }
    return failures ? 1 : 0;
}
