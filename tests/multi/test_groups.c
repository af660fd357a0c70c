/* SPDX-License-Identifier: MIT */
/*
 * Groups of calls: what they allow, what is refused, and how they end after a fault.
 *
 * usage: test_groups threads|processes
 */
#include "device.h"
#include "ranks.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LONG = 1 << 20, SHORT_MS = 300 };

static enum tutti_status send_one(int32_t value, int to, tutti_comm_t *comm)
{
    return tutti_send(&value, 1, TUTTI_INT32, to, comm, TUTTI_STREAM_DEFAULT);
}

static enum tutti_status sum_one(int32_t *value, tutti_comm_t *comm)
{
    return tutti_all_reduce(value, value, 1, TUTTI_INT32, TUTTI_SUM, comm, TUTTI_STREAM_DEFAULT);
}

/* Each rank passes long messages on at the same time; outside a group all would wait. */
static int ring(struct ranks *ranks, int rank, tutti_store_t *store)
{
    tutti_comm_t *comm;
    const int next = (rank + 1) % ranks->size, before = (rank + ranks->size - 1) % ranks->size;
    int32_t *send = malloc(LONG * sizeof *send), *recv = malloc(LONG * sizeof *recv);
    RANKS_CHECK(send && recv);
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    for (int i = 0; i < LONG; i++)
        send[i] = rank * LONG + i;
    RANKS_CHECK(tutti_send_recv(send, LONG, next, recv, LONG, before, TUTTI_INT32, comm,
                                TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    for (int i = 0; i < LONG; i++)
        RANKS_CHECK(recv[i] == before * LONG + i);
    /* Both are the caller. */
    RANKS_CHECK(tutti_send_recv(send, 100, rank, recv, 100, rank, TUTTI_INT32, comm,
                                TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    RANKS_CHECK(memcmp(send, recv, 100 * sizeof *send) == 0);
    tutti_comm_destroy(comm);
    free(send);
    free(recv);
    return 0;
}

static void *sum_elsewhere(void *comm)
{
    int32_t value = 1;
    return (void *)(uintptr_t)sum_one(&value, comm);
}

/* Of a group in which a call is refused nothing happens. */
static int refused(struct ranks *ranks, int rank, tutti_store_t *store)
{
    tutti_comm_t *comm;
    int32_t value = rank, other = -1, values[2] = {0};
    pthread_t thread;
    void *status;
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    RANKS_CHECK(tutti_group_end() == TUTTI_ERR_INVALID);
    RANKS_CHECK(strstr(tutti_last_error(), "tutti_group_start()"));
    RANKS_CHECK(send_one(1, rank, comm) == TUTTI_ERR_INVALID);
    RANKS_CHECK(strstr(tutti_last_error(), "group"));

    RANKS_CHECK(tutti_group_start() == TUTTI_OK);
    RANKS_CHECK(tutti_send(values, 1, TUTTI_INT32, !rank, comm, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    RANKS_CHECK(tutti_recv(NULL, 1, TUTTI_INT32, !rank, comm, TUTTI_STREAM_DEFAULT) ==
                TUTTI_ERR_INVALID);
    RANKS_CHECK(tutti_barrier(comm, &rank, -1, TUTTI_STREAM_DEFAULT) == TUTTI_ERR_INVALID);
    RANKS_CHECK(tutti_group_end() == TUTTI_ERR_INVALID);

    RANKS_CHECK(tutti_group_start() == TUTTI_OK);
    RANKS_CHECK(tutti_recv(NULL, 1, TUTTI_INT32, !rank, comm, TUTTI_STREAM_DEFAULT) ==
                TUTTI_ERR_INVALID);
    RANKS_CHECK(tutti_group_end() == TUTTI_ERR_INVALID);

    static const int receives[] = {0, 2}; /* none, and one of another length */
    for (int i = 0; i < 2; i++) {
        RANKS_CHECK(tutti_group_start() == TUTTI_OK);
        RANKS_CHECK(tutti_send(&value, 1, TUTTI_INT32, rank, comm, TUTTI_STREAM_DEFAULT) ==
                    TUTTI_OK);
        if (receives[i])
            RANKS_CHECK(tutti_recv(values, 2, TUTTI_INT32, rank, comm, TUTTI_STREAM_DEFAULT) ==
                        TUTTI_OK);
        RANKS_CHECK(tutti_group_end() == TUTTI_ERR_INVALID);
        RANKS_CHECK(strstr(tutti_last_error(), receives[i] ? "receives 2" : "to itself"));
    }

    /* The communicator is this thread's until the group's end, and free then. */
    RANKS_CHECK(tutti_group_start() == TUTTI_OK && tutti_group_start() == TUTTI_OK);
    RANKS_CHECK(tutti_send(&value, 1, TUTTI_INT32, !rank, comm, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    RANKS_CHECK(tutti_group_end() == TUTTI_OK);
    RANKS_CHECK(tutti_comm_finalize(comm, 0) == TUTTI_ERR_CONCURRENT);
    RANKS_CHECK(strstr(tutti_last_error(), "group of calls"));
    RANKS_CHECK(tutti_comm_destroy(comm) == TUTTI_ERR_CONCURRENT);
    RANKS_CHECK(pthread_create(&thread, NULL, sum_elsewhere, comm) == 0);
    RANKS_CHECK(pthread_join(thread, &status) == 0);
    RANKS_CHECK((enum tutti_status)(uintptr_t)status == TUTTI_ERR_CONCURRENT);
    RANKS_CHECK(tutti_recv(&other, 1, TUTTI_INT32, !rank, comm, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    RANKS_CHECK(other == -1);
    RANKS_CHECK(tutti_group_end() == TUTTI_OK);
    RANKS_CHECK(other == !rank); /* not what the refused group would have sent */
    value = 1;
    RANKS_CHECK(sum_one(&value, comm) == TUTTI_OK && value == ranks->size);
    tutti_comm_destroy(comm);
    return 0;
}

static void *begin_and_end(void *comm)
{
    static int32_t value;
    return (void *)(uintptr_t)(tutti_group_start() != TUTTI_OK || sum_one(&value, comm));
}

/* A thread that ends in a group drops its calls; the child of a fork has no group. */
static int left(struct ranks *ranks, int rank, tutti_store_t *store)
{
    tutti_comm_t *comm;
    int32_t value = 1;
    pthread_t thread;
    void *failed;
    int exit_status = -1;
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    RANKS_CHECK(pthread_create(&thread, NULL, begin_and_end, comm) == 0);
    RANKS_CHECK(pthread_join(thread, &failed) == 0 && !failed);
    RANKS_CHECK(tutti_group_start() == TUTTI_OK);
    RANKS_CHECK(sum_one(&value, comm) == TUTTI_OK);
    RANKS_CHECK(tutti_barrier(comm, NULL, 0, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    RANKS_CHECK(tutti_barrier(comm, (const int[]){0, 1}, 2, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    const pid_t child = fork();
    if (child == 0)
        _exit(tutti_group_end() != TUTTI_ERR_INVALID);
    RANKS_CHECK(child > 0 && waitpid(child, &exit_status, 0) == child && exit_status == 0);
    RANKS_CHECK(tutti_group_end() == TUTTI_OK && value == ranks->size);
    tutti_comm_destroy(comm);
    return 0;
}

static enum tutti_status recv_late(int32_t *value, int from, tutti_comm_t *comm)
{
    const struct tutti_call_options options = {.struct_size = sizeof options,
                                               .timeout_ms = SHORT_MS};
    return tutti_recv_with(value, 1, TUTTI_INT32, from, comm, TUTTI_STREAM_DEFAULT, &options);
}

/* Rank 1 never sends. The time-out of one communicator does not concern the other. */
static int late(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const struct tutti_comm_options options = {.struct_size = sizeof options, .name = "second"};
    struct tutti_fault fault = {.struct_size = sizeof fault};
    tutti_comm_t *comm, *second;
    int32_t value = 1, missing = 0;
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    RANKS_CHECK(ranks_join(ranks, rank, store, &options, &second) == TUTTI_OK);
    RANKS_CHECK(tutti_group_start() == TUTTI_OK);
    if (rank == 0)
        RANKS_CHECK(recv_late(&missing, 1, comm) == TUTTI_OK);
    RANKS_CHECK(sum_one(&value, second) == TUTTI_OK);
    const enum tutti_status status = tutti_group_end();
    RANKS_CHECK(status == (rank == 0 ? TUTTI_ERR_TIMEOUT : TUTTI_OK));
    RANKS_CHECK(value == ranks->size);
    RANKS_CHECK(rank == 1 || strstr(tutti_last_error(), "rank 1"));
    RANKS_CHECK(tutti_comm_status(second, NULL) == TUTTI_OK);
    RANKS_CHECK(sum_one(&value, second) == TUTTI_OK);
    RANKS_CHECK(tutti_comm_status(comm, &fault) == TUTTI_ERR_TIMEOUT);
    RANKS_CHECK(fault.rank == 0 && fault.peer == 1);
    RANKS_CHECK(sum_one(&value, second) == TUTTI_OK);
    tutti_comm_destroy(comm);
    tutti_comm_destroy(second);
    return 0;
}

/* Rank 1 leaves while rank 0 waits for messages from it, or sends it more than fits. */
static int gone(struct ranks *ranks, int rank, tutti_store_t *store)
{
    tutti_comm_t *comm;
    int32_t value = 1, *data = calloc(LONG, sizeof *data);
    RANKS_CHECK(data && ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    RANKS_CHECK(sum_one(&value, comm) == TUTTI_OK);
    if (rank == 0) {
        RANKS_CHECK(tutti_group_start() == TUTTI_OK);
        RANKS_CHECK(tutti_send(data, LONG, TUTTI_INT32, 1, comm, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
        RANKS_CHECK(tutti_recv(&value, 1, TUTTI_INT32, 1, comm, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
        RANKS_CHECK(tutti_barrier(comm, NULL, 0, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
        RANKS_CHECK(tutti_group_end() == TUTTI_ERR_PEER_DEAD);
        RANKS_CHECK(strstr(tutti_last_error(), "rank 1"));
    }
    tutti_comm_destroy(comm);
    free(data);
    return 0;
}

/* The lengths differ: in a group too both ranks hear of it. */
static int differs(struct ranks *ranks, int rank, tutti_store_t *store)
{
    tutti_comm_t *comm;
    int32_t data[16] = {0}, value = 1;
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    RANKS_CHECK(tutti_group_start() == TUTTI_OK);
    if (rank == 0)
        RANKS_CHECK(tutti_send(data, 12, TUTTI_INT32, 1, comm, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    else
        RANKS_CHECK(tutti_recv(data, 10, TUTTI_INT32, 0, comm, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    const enum tutti_status status = tutti_group_end();
    RANKS_CHECK(status == (rank == 0 ? TUTTI_OK : TUTTI_ERR_MISMATCH) ||
                (device_is_cuda() && status == TUTTI_ERR_MISMATCH)); /* its stream has ended */
    RANKS_CHECK(sum_one(&value, comm) == TUTTI_ERR_MISMATCH);
    RANKS_CHECK(strstr(tutti_last_error(), "send of 10") &&
                strstr(tutti_last_error(), "send of 12"));
    tutti_comm_destroy(comm);
    return 0;
}

static int cancel(void *cancelled)
{
    return *(const bool *)cancelled;
}

/* The application's progress function ends a group. */
static int cancelled(struct ranks *ranks, int rank, tutti_store_t *store)
{
    bool ends = rank == 0;
    const struct tutti_comm_options options = {.struct_size = sizeof options,
                                               .progress = rank == 0 ? cancel : NULL,
                                               .progress_context = &ends};
    tutti_comm_t *comm;
    char text[8192];
    int32_t value = 1;
    RANKS_CHECK(ranks_join(ranks, rank, store, &options, &comm) == TUTTI_OK);
    tutti_comm_describe(comm, text, sizeof text);
    if (device_is_cuda() && !strstr(text, "a host thread stages")) { /* a kernel does not ask it */
        tutti_comm_destroy(comm);
        return 0;
    }
    if (rank == 1)
        RANKS_CHECK(ranks_await(ranks, 0, 1));
    RANKS_CHECK(tutti_group_start() == TUTTI_OK);
    RANKS_CHECK(tutti_recv(&value, 1, TUTTI_INT32, !rank, comm, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    RANKS_CHECK(sum_one(&value, comm) == TUTTI_OK);
    RANKS_CHECK(tutti_group_end() == TUTTI_ERR_ABORTED);
    ranks_raise(ranks, 0);
    tutti_comm_destroy(comm);
    return 0;
}

int main(int argc, char **argv)
{
    static const struct {
        ranks_fn *run;
        int size;
    } parts[] = {{ring, 2}, {ring, 4}, {refused, 2}, {left, 2},
                 {late, 2}, {gone, 2}, {differs, 2}, {cancelled, 2}};
    int failures = 0;
    if (argc != 2)
        return 2;
    const bool threads = strcmp(argv[1], "threads") == 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (!ranks_fit(parts[i].size))
            continue;
        struct ranks *ranks = ranks_create(parts[i].size, threads ? 0 : parts[i].size, 0);
        failures += ranks_run(ranks, parts[i].run);
        ranks_destroy(ranks);
    }
    return failures ? 1 : 0;
}
