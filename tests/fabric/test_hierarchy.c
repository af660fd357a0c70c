/* SPDX-License-Identifier: MIT */
/*
 * Communicators of several hosts, by the fabric of the tests.
 * - splits: an all-reduce has the bits of the scalar reference, and so of one host, however the
 *   ranks are spread over two or three hosts.
 * - groups: the calls of a group go on together, so that a rank may make them one by one in any
 *   order that the contract leaves free.
 * - faults: what happens to one rank, or between hosts, is a fault on all ranks, which names it.
 * - varied: v-forms in which one block is long.
 * - parts: what becomes of a split.
 * - ids: the ranks of hosts meet on an id's store, where its maker says.
 * - refusals: what such a communicator does not serve says so, and so do ranks without a fabric.
 *
 * usage: test_hierarchy. With TUTTI_TEST_DEVICE=cuda a host thread stages all operations, but with
 * TUTTI_TEST_FABRIC=nccl: then NCCL joins the devices.
 */
#include "../device.h"
#include "../pool.h"
#include "../ranks.h"
#include "comm/hierarchy_internal.h"
#include "cuda/comm/fabric.h"
#include "loopback_fabric.h"
#include "reference.h"
#include "tutti/collectives.h"
#include "tutti/communicators.h"
#include "tutti/pg.h"
#include "tutti/recovery.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 12, MOST_CUDA = 6, LONG_COUNT = 700 * 1024, BEGUN = 10 };

static struct loopback *loopback;
static struct pool *pool;
static tutti_fabric_t *fabric;
static int communicators;
static bool nccl;

__typeof__(tutti_comm_create) __real_tutti_comm_create; /* of the CPU, whatever the device is */

/* The host of rank r. */
static void host_set(char letter)
{
    setenv("TUTTI_HOST_ID", (char[]){letter, 0}, 1);
}

/* A communicator of ranks whose hosts have these letters. */
static int join(struct ranks *ranks, int rank, tutti_store_t *store, const char *hosts,
                tutti_comm_t **comm)
{
    char name[16];
    snprintf(name, sizeof name, "%d", communicators++);
    host_set(hosts[rank]);
    RANKS_CHECK(fabric || (nccl ? tutti_fabric_open("nccl:", &fabric)
                                : loopback_open(loopback, rank, &fabric)) == TUTTI_OK);
    const struct tutti_comm_options options = {
        .struct_size = sizeof options, .name = name, .fabric = fabric};
    RANKS_CHECK(ranks_join(ranks, rank, store, &options, comm) == TUTTI_OK);
    return 0;
}

/* ---- splits ---------------------------------------------------------------------------------- */

static int sum_check(struct ranks *ranks, int rank, tutti_comm_t *comm, enum tutti_dtype dtype,
                     tutti_op_t op, size_t count, void *memory)
{
    char text[200];
    size_t index = 0;
    pool_input(pool, rank, dtype, count, count, memory);
    if (tutti_all_reduce(memory, memory, count, dtype, op, comm, TUTTI_STREAM_DEFAULT) ==
            TUTTI_OK &&
        pool_is_result(pool, dtype, op, count, count, memory, &index))
        return 0;
    snprintf(text, sizeof text, "%s of %zu %s on %s, element %zu", tutti_op_name(op), count,
             tutti_dtype_name(dtype), getenv("TUTTI_HOST_ID"), index);
    return ranks_fail(ranks, rank, __FILE__, __LINE__, text);
}

static int split_run(struct ranks *ranks, int rank, tutti_store_t *store, const char *hosts,
                     bool is_long)
{
    static const size_t counts[] = {5, 3000, 20001};
    void *memory = malloc((size_t)LONG_COUNT * sizeof(float));
    tutti_comm_t *comm;
    int failed = memory ? join(ranks, rank, store, hosts, &comm) : 1;
    if (failed)
        return failed;
    for (int d = 0; d < TUTTI_DTYPE_COUNT && !failed; d++)
        for (size_t i = 0; i < sizeof counts / sizeof *counts && !failed; i++)
            if (reference_has_order((enum tutti_dtype)d, TUTTI_SUM))
                failed = sum_check(ranks, rank, comm, (enum tutti_dtype)d,
                                   i == 1 ? TUTTI_AVG : TUTTI_SUM, counts[i], memory);
    if (!failed && is_long)
        failed = sum_check(ranks, rank, comm, TUTTI_FLOAT32, TUTTI_SUM, LONG_COUNT, memory);
    tutti_comm_destroy(comm);
    free(memory);
    return failed;
}

/* The splits of the ranks into two or three hosts, each with the ranks that follow each other: all
 * of few ranks, else a sample. */
static int splits(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const int size = ranks->size;
    for (int first = 1, i = 0; first < size; first++) {
        for (int second = first + 1; second <= size; second++, i++) {
            char hosts[MOST + 1];
            if (i % (ranks_short() ? 7 : size > 8 ? 4 : 1))
                continue;
            for (int r = 0; r < size; r++)
                hosts[r] = r < first ? 'A' : r < second ? 'B' : 'C';
            const int failed = split_run(ranks, rank, store, hosts, i % 8 == 0);
            if (failed)
                return failed;
        }
    }
    return 0;
}

/* As many hosts as ranks, and fewer. Short sums go in rounds. */
static int many_hosts(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const int size = ranks->size;
    for (int hosts = size; hosts >= hierarchy_rounds_from; hosts -= ranks_short() ? 3 : 1) {
        char letters[MOST + 1];
        for (int r = 0; r < size; r++)
            letters[r] = (char)('A' + r * hosts / size);
        const int failed = split_run(ranks, rank, store, letters, false);
        if (failed)
            return failed;
    }
    return 0;
}

static int splits_run(int size)
{
    hierarchy_rounds_from = 3;
    pool = pool_create(size, NULL, (uint64_t)size);
    struct ranks *ranks = ranks_create(size, size, 0);
    int failures = ranks_short() && size % 5 != 2 ? 0 : ranks_run(ranks, many_hosts);
    if (!failures) {
        hierarchy_rounds_from = size % 2 ? 3 : TUTTI_MAX_RANKS;
        failures = ranks_run(ranks, splits);
    }
    ranks_destroy(ranks);
    pool_destroy(pool);
    return failures;
}

/* ---- faults ---------------------------------------------------------------------------------- */

static enum tutti_status sum(tutti_comm_t *comm, size_t count, void *memory)
{
    return tutti_all_reduce(memory, memory, count, TUTTI_FLOAT32, TUTTI_SUM, comm,
                            TUTTI_STREAM_DEFAULT);
}

/* Rank 0 makes its calls as one group. The others wait for the messages before the collective. */
static int beside(struct ranks *ranks, int rank, tutti_comm_t *comm, float *memory)
{
    int32_t message = rank;
    if (rank == 0) {
        RANKS_CHECK(tutti_group_start() == TUTTI_OK);
        RANKS_CHECK(tutti_send(&message, 1, TUTTI_INT32, 1, comm, TUTTI_STREAM_DEFAULT) ==
                    TUTTI_OK);
        RANKS_CHECK(sum(comm, LONG_COUNT, memory) == TUTTI_OK);
        RANKS_CHECK(tutti_send(&message, 1, TUTTI_INT32, 2, comm, TUTTI_STREAM_DEFAULT) ==
                    TUTTI_OK);
        RANKS_CHECK(tutti_group_end() == TUTTI_OK);
        return 0;
    }
    if (rank < 3)
        RANKS_CHECK(tutti_recv(&message, 1, TUTTI_INT32, 0, comm, TUTTI_STREAM_DEFAULT) ==
                        TUTTI_OK &&
                    message == 0);
    RANKS_CHECK(sum(comm, LONG_COUNT, memory) == TUTTI_OK);
    return 0;
}

/* Rank 3 makes the calls one by one, the other ranks as one group. */
static int opposite(struct ranks *ranks, int rank, tutti_comm_t *first, tutti_comm_t *second,
                    float *memory)
{
    RANKS_CHECK(rank == 3 || tutti_group_start() == TUTTI_OK);
    RANKS_CHECK(sum(first, 100, memory) == TUTTI_OK);
    RANKS_CHECK(sum(second, 100, memory + 100) == TUTTI_OK);
    RANKS_CHECK(rank == 3 || tutti_group_end() == TUTTI_OK);
    return 0;
}

static int groups(struct ranks *ranks, int rank, tutti_store_t *store)
{
    float *memory = calloc(LONG_COUNT, sizeof *memory);
    tutti_comm_t *first, *second;
    int failed = memory ? join(ranks, rank, store, "AABB", &first) : 1;
    if (!failed)
        failed = join(ranks, rank, store, "ABBA", &second);
    for (int i = 0; i < 20 && !failed; i++) {
        failed = beside(ranks, rank, first, memory);
        if (!failed)
            failed = i % 2 && rank == 3 ? opposite(ranks, rank, second, first, memory)
                                        : opposite(ranks, rank, first, second, memory);
    }
    if (failed)
        return failed;
    tutti_comm_destroy(first);
    tutti_comm_destroy(second);
    free(memory);
    return 0;
}

static int fault_is(struct ranks *ranks, int rank, tutti_comm_t *comm, enum tutti_status status,
                    int peer)
{
    struct tutti_fault fault = {.struct_size = sizeof fault};
    RANKS_CHECK(tutti_comm_status(comm, &fault) == status);
    RANKS_CHECK(fault.status == status);
    RANKS_CHECK(peer < 0 || fault.peer == peer);
    RANKS_CHECK(fault.sequence == 1 || fault.sequence == 2); /* between the two, or in the second */
    tutti_comm_destroy(comm);
    return 0;
}

/* A communicator whose ranks have done an operation. */
static int begin_on(struct ranks *ranks, int rank, tutti_store_t *store, const char *hosts,
                    tutti_comm_t **comm, float *memory)
{
    const int failed = join(ranks, rank, store, hosts, comm);
    if (failed)
        return failed;
    RANKS_CHECK(sum(*comm, 10, memory) == TUTTI_OK);
    RANKS_CHECK(ranks_meet(ranks, BEGUN + communicators)); /* no rank has a later fault before */
    return 0;
}

static int begin(struct ranks *ranks, int rank, tutti_store_t *store, tutti_comm_t **comm,
                 float *memory)
{
    return begin_on(ranks, rank, store, "AABB", comm, memory);
}

static int mismatch(struct ranks *ranks, int rank, tutti_store_t *store)
{
    float memory[101] = {0};
    tutti_comm_t *comm;
    int failed = begin(ranks, rank, store, &comm, memory);
    if (failed)
        return failed;
    RANKS_CHECK(sum(comm, rank < 2 ? 100 : 101, memory) == TUTTI_ERR_MISMATCH);
    failed = fault_is(ranks, rank, comm, TUTTI_ERR_MISMATCH, -1);
    if (!failed)
        failed = begin(ranks, rank, store, &comm, memory);
    if (failed)
        return failed;
    const enum tutti_status status =
        rank < 3 ? sum(comm, 100, memory) : tutti_barrier(comm, NULL, 0, TUTTI_STREAM_DEFAULT);
    RANKS_CHECK(status == TUTTI_ERR_MISMATCH);
    failed = fault_is(ranks, rank, comm, TUTTI_ERR_MISMATCH, -1);
    if (!failed) /* a host compares its call with that of one other host */
        failed = join(ranks, rank, store, "ABCD", &comm);
    if (failed)
        return failed;
    RANKS_CHECK(sum(comm, 10, memory) == TUTTI_OK);
    RANKS_CHECK(sum(comm, rank == 2 ? 101 : 100, memory) == TUTTI_ERR_MISMATCH);
    return fault_is(ranks, rank, comm, TUTTI_ERR_MISMATCH, -1);
}

static void *ask(void *comm)
{
    while (tutti_comm_status(comm, NULL) == TUTTI_OK)
        usleep(1000);
    return NULL;
}

/* Another thread asks for the status meanwhile. */
static int dead(struct ranks *ranks, int rank, tutti_store_t *store)
{
    float memory[100] = {0};
    tutti_comm_t *comm;
    pthread_t asker;
    loopback_set(loopback->silent_deaths, 1);
    const int failed = begin(ranks, rank, store, &comm, memory);
    if (failed)
        return failed;
    ranks->expendable = 1 << 3;
    if (rank == 3)
        raise(SIGKILL);
    RANKS_CHECK(pthread_create(&asker, NULL, ask, comm) == 0);
    RANKS_CHECK(sum(comm, 100, memory) == TUTTI_ERR_PEER_DEAD);
    pthread_join(asker, NULL);
    return fault_is(ranks, rank, comm, TUTTI_ERR_PEER_DEAD, 3);
}

/* A rank that has its host for itself. The store notices its end, and a shrink needs no word of it.
 * A child of that rank lives on. */
static int dead_alone(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct tutti_shrink_result result = {.struct_size = sizeof result};
    float memory[100] = {0};
    char host[64] = "";
    tutti_comm_t *comm, *shrunk;
    loopback_set(loopback->silent_deaths, 1);
    const int failed = begin_on(ranks, rank, store, "AABC", &comm, memory);
    if (failed)
        return failed;
    ranks->expendable = 1 << 3;
    if (rank == 3 && fork() == 0) { /* until the others have seen the end */
        ranks_await(ranks, 1, 3);
        _exit(0);
    }
    if (rank == 3)
        raise(SIGKILL);
    const enum tutti_status status = sum(comm, 100, memory);
    ranks_raise(ranks, 1);
    RANKS_CHECK(status == TUTTI_ERR_PEER_DEAD);
    gethostname(host, sizeof host - 1);
    RANKS_CHECK(strstr(tutti_last_error(), "rank 3 is gone") && strstr(tutti_last_error(), host));
    RANKS_CHECK(tutti_comm_shrink(comm, store, NULL, &shrunk, &result) == TUTTI_OK);
    RANKS_CHECK(result.world_size == 3 && result.rank == rank);
    RANKS_CHECK(sum(shrunk, 100, memory) == TUTTI_OK);
    tutti_comm_destroy(shrunk);
    return fault_is(ranks, rank, comm, TUTTI_ERR_PEER_DEAD, 3);
}

/* Opens a store that rank 0 serves. */
static int open_served(struct ranks *ranks, int rank, tutti_store_t *store, tutti_store_t **served)
{
    char url[64] = "";
    size_t size;
    if (rank == 0) {
        RANKS_CHECK(tutti_store_open("tcp://127.0.0.1:0?server=1", 0, served) == TUTTI_OK);
        snprintf(url, sizeof url, "%s", tutti_store_url(*served));
        RANKS_CHECK(tutti_store_set(store, "url", url, sizeof url) == TUTTI_OK);
    } else {
        RANKS_CHECK(tutti_store_get(store, "url", 0, url, sizeof url, &size) == TUTTI_OK);
        RANKS_CHECK(tutti_store_open(url, 0, served) == TUTTI_OK);
    }
    return 0;
}

/* The rank that serves the store has its host for itself, and takes the store with it. */
static int dead_server(struct ranks *ranks, int rank, tutti_store_t *store)
{
    float memory[100] = {0};
    tutti_store_t *served;
    tutti_comm_t *comm;
    loopback_set(loopback->silent_deaths, 1);
    int failed = open_served(ranks, rank, store, &served);
    if (!failed)
        failed = begin_on(ranks, rank, served, "ABBC", &comm, memory);
    if (failed)
        return failed;
    ranks->expendable = 1;
    if (rank == 0)
        raise(SIGKILL);
    RANKS_CHECK(sum(comm, 100, memory) == TUTTI_ERR_PEER_DEAD);
    failed = fault_is(ranks, rank, comm, TUTTI_ERR_PEER_DEAD, 0);
    tutti_store_close(served);
    return failed;
}

/* A rank that serves the store, and leaves in order, is no dead rank to those that go on. */
static int closed_server(struct ranks *ranks, int rank, tutti_store_t *store)
{
    float memory[100] = {0};
    tutti_store_t *served;
    tutti_comm_t *comm;
    int failed = open_served(ranks, rank, store, &served);
    if (!failed)
        failed = begin_on(ranks, rank, served, "ABC", &comm, memory);
    if (failed)
        return failed;
    if (rank == 0) {
        tutti_comm_destroy(comm);
        tutti_store_close(served);
        ranks_raise(ranks, 1);
        return 0;
    }
    RANKS_CHECK(ranks_await(ranks, 1, 1));
    if (rank == 1) {
        usleep(500000); /* rank 2 looks for faults meanwhile */
        RANKS_CHECK(tutti_send(memory, 100, TUTTI_FLOAT32, 2, comm, TUTTI_STREAM_DEFAULT) ==
                    TUTTI_OK);
    } else {
        RANKS_CHECK(tutti_recv(memory, 100, TUTTI_FLOAT32, 1, comm, TUTTI_STREAM_DEFAULT) ==
                    TUTTI_OK);
    }
    tutti_comm_destroy(comm);
    tutti_store_close(served);
    return 0;
}

/* A group of calls ends, too: those that wait for the dead rank, and those that do not. */
static int dead_in_group(struct ranks *ranks, int rank, tutti_store_t *store)
{
    float memory[100] = {0}, message = 0;
    tutti_comm_t *comm;
    loopback_set(loopback->silent_deaths, 1);
    const int failed = begin(ranks, rank, store, &comm, memory);
    if (failed)
        return failed;
    ranks->expendable = 1 << 3;
    if (rank == 3)
        raise(SIGKILL);
    RANKS_CHECK(tutti_group_start() == TUTTI_OK);
    RANKS_CHECK(sum(comm, 100, memory) == TUTTI_OK);
    RANKS_CHECK(rank == 0 ||
                tutti_send(&message, 1, TUTTI_FLOAT32, 0, comm, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    for (int r = 1; r < 4; r++)
        RANKS_CHECK(rank != 0 || tutti_recv(&message, 1, TUTTI_FLOAT32, r, comm,
                                            TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    RANKS_CHECK(tutti_group_end() == TUTTI_ERR_PEER_DEAD);
    return fault_is(ranks, rank, comm, TUTTI_ERR_PEER_DEAD, 3);
}

static int aborted(struct ranks *ranks, int rank, tutti_store_t *store)
{
    float memory[100] = {0};
    tutti_comm_t *comm;
    const int failed = begin(ranks, rank, store, &comm, memory);
    if (failed)
        return failed;
    if (rank == 2)
        tutti_comm_abort(comm);
    RANKS_CHECK(sum(comm, 100, memory) == TUTTI_ERR_ABORTED);
    return fault_is(ranks, rank, comm, TUTTI_ERR_ABORTED, 2);
}

static int left(struct ranks *ranks, int rank, tutti_store_t *store)
{
    float memory[100] = {0};
    tutti_comm_t *comm;
    loopback_set(loopback->silent_deaths, 1);
    const int failed = begin(ranks, rank, store, &comm, memory);
    if (failed)
        return failed;
    if (rank == 2)
        return tutti_comm_destroy(comm) != TUTTI_OK;
    RANKS_CHECK(sum(comm, 100, memory) == TUTTI_ERR_PEER_DEAD);
    return fault_is(ranks, rank, comm, TUTTI_ERR_PEER_DEAD, 2);
}

static enum tutti_status sum_shortly(tutti_comm_t *comm, float *memory)
{
    const struct tutti_call_options options = {.struct_size = sizeof options, .timeout_ms = 1000};
    return tutti_all_reduce_with(memory, memory, 100, TUTTI_FLOAT32, TUTTI_SUM, comm,
                                 TUTTI_STREAM_DEFAULT, &options);
}

/* The other host waits for rank 0, which waits for rank 1. */
static int late(struct ranks *ranks, int rank, tutti_store_t *store)
{
    float memory[100] = {0};
    tutti_comm_t *comm;
    const int failed = begin(ranks, rank, store, &comm, memory);
    if (failed)
        return failed;
    RANKS_CHECK(rank != 1 || ranks_await(ranks, 1, 3));
    RANKS_CHECK(sum_shortly(comm, memory) == TUTTI_ERR_TIMEOUT);
    ranks_raise(ranks, 1);
    return fault_is(ranks, rank, comm, TUTTI_ERR_TIMEOUT, 1);
}

/* The link between the hosts carries nothing any more. */
static int silent(struct ranks *ranks, int rank, tutti_store_t *store)
{
    float memory[100] = {0};
    tutti_comm_t *comm;
    const int failed = begin(ranks, rank, store, &comm, memory);
    if (failed)
        return failed;
    RANKS_CHECK(ranks_meet(ranks, 1));
    loopback_cut_hosts(loopback, 2, LOOPBACK_SILENT);
    RANKS_CHECK(ranks_meet(ranks, 2));
    struct tutti_fault fault = {.struct_size = sizeof fault};
    RANKS_CHECK(sum_shortly(comm, memory) == TUTTI_ERR_TIMEOUT);
    RANKS_CHECK(tutti_comm_status(comm, &fault) == TUTTI_ERR_TIMEOUT);
    RANKS_CHECK((fault.rank < 2) != (fault.peer < 2)); /* one of each host */
    return fault_is(ranks, rank, comm, TUTTI_ERR_TIMEOUT, -1);
}

static int broken(struct ranks *ranks, int rank, tutti_store_t *store)
{
    float memory[100] = {0};
    tutti_comm_t *comm;
    const int failed = begin(ranks, rank, store, &comm, memory);
    if (failed)
        return failed;
    RANKS_CHECK(ranks_meet(ranks, 1));
    loopback_cut_hosts(loopback, 2, LOOPBACK_BROKEN);
    RANKS_CHECK(ranks_meet(ranks, 2));
    RANKS_CHECK(sum(comm, 100, memory) == TUTTI_ERR_SYSTEM);
    RANKS_CHECK(strstr(tutti_last_error(), "the fabric failed between rank"));
    return fault_is(ranks, rank, comm, TUTTI_ERR_SYSTEM, -1);
}

/* ---- counts that differ ---------------------------------------------------------------------- */

/* The elements from one rank to another. */
static size_t count_of(int from, int to)
{
    return from == 1 && to == 2 ? LONG_COUNT : (size_t)(5 * from + to);
}

static float value_of(int from, int to, size_t i)
{
    return (float)(1000 * from + 100 * to) + (float)(i % 97);
}

/* Fills, or checks, the blocks from one rank to all, or to one from all, one behind the other. */
static bool blocks_pass(float *memory, int rank, int size, bool sent, bool fills)
{
    bool is_right = true;
    for (int r = 0; r < size; r++) {
        const int from = sent ? rank : r, to = sent ? r : rank;
        for (size_t i = 0; i < count_of(from, to); i++, memory++) {
            if (fills)
                *memory = value_of(from, to, i);
            is_right = is_right && *memory == value_of(from, to, i);
        }
    }
    return is_right;
}

/* One block is long: on CUDA some ranks have one piece, others many. A rank that has none left
 * goes at once. */
static int varied(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const int size = ranks->size;
    const size_t bytes = (LONG_COUNT + 1000) * sizeof(float);
    float *send = calloc(1, bytes), *recv = calloc(1, bytes);
    size_t sent[MOST], received[MOST];
    tutti_comm_t *comm;
    const int failed = send && recv ? join(ranks, rank, store, "AABB", &comm) : 1;
    if (failed)
        return failed;
    for (int r = 0; r < size; r++) {
        sent[r] = count_of(rank, r);
        received[r] = count_of(r, rank);
    }
    blocks_pass(send, rank, size, true, true);
    RANKS_CHECK(tutti_all_to_all_v(send, sent, NULL, recv, received, NULL, TUTTI_FLOAT32, comm,
                                   TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    RANKS_CHECK(blocks_pass(recv, rank, size, false, false));
    memset(recv, 0, bytes);
    RANKS_CHECK(tutti_scatter_v(send, sent, NULL, recv, count_of(1, rank), TUTTI_FLOAT32, 1, comm,
                                TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    for (size_t i = 0; i < count_of(1, rank); i++)
        RANKS_CHECK(recv[i] == value_of(1, rank, i));
    for (size_t i = 0; i < count_of(rank, 2); i++)
        send[i] = value_of(rank, 2, i);
    for (int r = 0; r < size; r++)
        received[r] = count_of(r, 2);
    RANKS_CHECK(tutti_gather_v(send, count_of(rank, 2), recv, received, NULL, TUTTI_FLOAT32, 2,
                               comm, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    RANKS_CHECK(rank != 2 || blocks_pass(recv, rank, size, false, false));
    tutti_comm_destroy(comm);
    free(send);
    free(recv);
    return 0;
}

/* ---- splits ---------------------------------------------------------------------------------- */

/* A failure of some ranks is one of all, and the parent goes on. */
static int split_parts(struct ranks *ranks, int rank, tutti_store_t *store)
{
    float memory[100] = {0};
    tutti_comm_t *comm, *sub;
    const int failed = begin(ranks, rank, store, &comm, memory);
    if (failed)
        return failed;
    RANKS_CHECK(ranks_meet(ranks, 1));
    loopback_set(loopback->fail_connect, 1);
    RANKS_CHECK(tutti_comm_split(comm, rank == 1, 0, NULL, &sub) == TUTTI_ERR_SYSTEM && !sub);
    RANKS_CHECK(ranks_meet(ranks, 2));
    loopback_set(loopback->fail_connect, 0);
    RANKS_CHECK(ranks_meet(ranks, 3));
    for (int whole = 0; whole < 2; whole++) { /* of each host, then of one rank of each host */
        const int color = whole ? rank % 2 : rank / 2;
        RANKS_CHECK(tutti_comm_split(comm, color, -rank, NULL, &sub) == TUTTI_OK);
        RANKS_CHECK(tutti_comm_world_size(sub) == 2 &&
                    tutti_comm_rank(sub) == !(whole ? rank / 2 : rank % 2));
        memory[0] = (float)rank;
        RANKS_CHECK(sum(sub, 100, memory) == TUTTI_OK);
        RANKS_CHECK(memory[0] == (float)(whole ? 2 * (rank % 2) + 2 : 4 * (rank / 2) + 1));
        tutti_comm_destroy(sub);
    }
    RANKS_CHECK(sum(comm, 100, memory) == TUTTI_OK);
    tutti_comm_destroy(comm);
    return 0;
}

/* ---- refusals -------------------------------------------------------------------------------- */

static bool says(const char *what)
{
    return strstr(tutti_last_error(), what) != NULL;
}

/* A host thread stages: it needs the fabric, and no replay reaches it. */
static int cuda_refusals(struct ranks *ranks, int rank, tutti_store_t *store, tutti_comm_t *comm,
                         struct tutti_comm_options *options)
{
    float memory[100] = {0};
    char text[4096];
    tutti_comm_t *other;
    tutti_comm_describe(comm, text, sizeof text);
    RANKS_CHECK(strstr(text, "a host thread stages: the ranks run on several hosts\n"));
    setenv("TUTTI_TEST_GRAPH", "1", 1);
    RANKS_CHECK(sum(comm, 100, memory) == TUTTI_ERR_DECLINED && says("a replay would not reach"));
    unsetenv("TUTTI_TEST_GRAPH");
    RANKS_CHECK(sum(comm, 100, memory) == TUTTI_OK);
    options->name = "forced";
    options->algo = TUTTI_ALGO_TWO_SHOT;
    RANKS_CHECK(ranks_join(ranks, rank, store, options, &other) == TUTTI_ERR_DECLINED);
    RANKS_CHECK(says("the ranks run on several hosts") && says("two_shot"));
    options->name = "threads";
    options->algo = TUTTI_ALGO_HOST_STAGED;
    loopback_set(loopback->one_thread, 1);
    RANKS_CHECK(ranks_join(ranks, rank, store, options, &other) == TUTTI_ERR_DECLINED);
    RANKS_CHECK(says("MPI_THREAD_MULTIPLE"));
    RANKS_CHECK(ranks_meet(ranks, 3));
    loopback_set(loopback->one_thread, 0);
    RANKS_CHECK(ranks_meet(ranks, 4));
    options->name = "staged";
    RANKS_CHECK(ranks_join(ranks, rank, store, options, &other) == TUTTI_OK);
    RANKS_CHECK(sum(other, 100, memory) == TUTTI_OK);
    tutti_comm_destroy(other);
    return 0;
}

static int refusals(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct tutti_comm_options options = {.struct_size = sizeof options, .name = "plain"};
    char text[4096];
    tutti_comm_t *comm;
    host_set("AAB"[rank]);
    RANKS_CHECK(ranks_join(ranks, rank, store, &options, &comm) == TUTTI_ERR_DECLINED);
    RANKS_CHECK(says("rank 0, rank 1 on") && says("rank 2 on") && says("options->fabric"));
    RANKS_CHECK(loopback_open(loopback, rank, &fabric) == TUTTI_OK);
    options.fabric = rank ? fabric : NULL;
    options.name = "some";
    RANKS_CHECK(ranks_join(ranks, rank, store, &options, &comm) == TUTTI_ERR_MISMATCH);
    RANKS_CHECK(says("options->fabric"));
    options.fabric = fabric;
    options.name = "failing";
    loopback_set(loopback->fail_connect, 1);
    RANKS_CHECK(ranks_join(ranks, rank, store, &options, &comm) == TUTTI_ERR_SYSTEM);
    RANKS_CHECK(ranks_meet(ranks, 1));
    loopback_set(loopback->fail_connect, 0);
    RANKS_CHECK(ranks_meet(ranks, 2));
    options.name = "joined";
    RANKS_CHECK(ranks_join(ranks, rank, store, &options, &comm) == TUTTI_OK);
    tutti_comm_describe(comm, text, sizeof text);
    RANKS_CHECK(strstr(text, "hosts: 2\n") && strstr(text, "host: rank 0, rank 1,") &&
                strstr(text, "fabric: loopback"));
    RANKS_CHECK(tutti_barrier(comm, NULL, 0, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    const int failed = device_is_cuda() ? cuda_refusals(ranks, rank, store, comm, &options) : 0;
    tutti_comm_destroy(comm);
    tutti_fabric_close(fabric);
    return failed;
}

/* The fabric moves memory of devices alone, and the ranks call nothing of the hosts. */
static int nccl_refusals(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct tutti_comm_options options = {.struct_size = sizeof options, .name = "cpu"};
    float memory[100] = {0};
    char text[4096];
    tutti_comm_t *comm, *sub;
    tutti_pg_t *group;
    const int failed = begin(ranks, rank, store, &comm, memory);
    if (failed)
        return failed;
    tutti_comm_describe(comm, text, sizeof text);
    RANKS_CHECK(strstr(text, "a fabric joins the devices\n") && strstr(text, "fabric: nccl (NCCL"));
    RANKS_CHECK(tutti_pg_create(comm, NULL, &group) == TUTTI_ERR_DECLINED && says("open mpi:"));
    RANKS_CHECK(sum(comm, 100, memory) == TUTTI_OK);
    options.fabric = fabric;
    RANKS_CHECK(__real_tutti_comm_create(store, rank, 4, &options, &sub) == TUTTI_ERR_DECLINED);
    RANKS_CHECK(says("a CPU communicator"));
    options.name = "forced";
    options.algo = TUTTI_ALGO_HOST_STAGED;
    RANKS_CHECK(ranks_join(ranks, rank, store, &options, &sub) == TUTTI_ERR_DECLINED);
    RANKS_CHECK(says("a fabric joins the devices"));
    tutti_comm_destroy(comm);
    return 0;
}

/* ---- ids ------------------------------------------------------------------------------------- */

/* Rank 0 makes the id. What is split from a communicator uses the id's store after its end. */
static int from_id(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct tutti_comm_options options = {.struct_size = sizeof options};
    struct tutti_unique_id id;
    tutti_comm_t *comm, *sub;
    float memory[100] = {0};
    size_t size;
    host_set("AAB"[rank]);
    RANKS_CHECK(loopback_open(loopback, rank, &fabric) == TUTTI_OK);
    if (rank == 0) {
        setenv("TUTTI_ID_ADDRESS", "127.0.0.2", 1);
        RANKS_CHECK(tutti_unique_id_create(&id) == TUTTI_OK);
        RANKS_CHECK(tutti_store_set(store, "id", &id, sizeof id) == TUTTI_OK);
    }
    RANKS_CHECK(tutti_store_get(store, "id", RANKS_TIMEOUT_MS, &id, sizeof id, &size) == TUTTI_OK);
    RANKS_CHECK(tutti_comm_create_from_id(&id, rank, 3, &options, &comm) == TUTTI_ERR_DECLINED);
    RANKS_CHECK(says("options->fabric"));
    options.fabric = fabric;
    RANKS_CHECK(ranks_meet(ranks, 1)); /* no rank asks for it again before all were declined */
    RANKS_CHECK(tutti_comm_create_from_id(&id, rank, 3, &options, &comm) == TUTTI_OK);
    RANKS_CHECK(sum(comm, 100, memory) == TUTTI_OK);
    RANKS_CHECK(tutti_comm_split(comm, 0, -rank, NULL, &sub) == TUTTI_OK);
    tutti_comm_destroy(comm);
    RANKS_CHECK(ranks_meet(ranks, 2));
    if (rank == 2)
        tutti_comm_abort(sub);
    RANKS_CHECK(sum(sub, 100, memory) == TUTTI_ERR_ABORTED); /* by the store, to the other host */
    RANKS_CHECK(ranks_meet(ranks, 3));
    tutti_comm_destroy(sub);
    RANKS_CHECK(ranks_meet(ranks, 4)); /* rank 0 serves them until then */
    return 0;
}

/* Rank 0's store is on a Unix socket. */
static int from_near_id(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const struct tutti_comm_options options = {.struct_size = sizeof options, .timeout_ms = 300};
    struct tutti_unique_id id;
    tutti_comm_t *comm;
    size_t size;
    host_set("AB"[rank]);
    if (rank == 0)
        RANKS_CHECK(tutti_unique_id_create(&id) == TUTTI_OK &&
                    tutti_store_set(store, "id", &id, sizeof id) == TUTTI_OK);
    RANKS_CHECK(tutti_store_get(store, "id", RANKS_TIMEOUT_MS, &id, sizeof id, &size) == TUTTI_OK);
    const enum tutti_status status = tutti_comm_create_from_id(&id, rank, 2, &options, &comm);
    RANKS_CHECK(status == (rank ? TUTTI_ERR_DECLINED : TUTTI_ERR_TIMEOUT));
    RANKS_CHECK(rank == 0 || says("TUTTI_ID_ADDRESS"));
    return 0;
}

enum { ON_HOSTS = 1, STAGED = 2, BY_NCCL = 4, EVERYWHERE = 7, STAGES = ON_HOSTS | STAGED };

static const struct part {
    struct ranks_part part;
    int where;
} parts[] = {
    {{"groups", groups, {4}}, ON_HOSTS}, /* elsewhere a stream orders them */
    {{"mismatch", mismatch, {4}}, EVERYWHERE},
    {{"dead", dead, {4}}, EVERYWHERE},
    {{"dead_in_group", dead_in_group, {4}}, EVERYWHERE},
    {{"dead_alone", dead_alone, {4}}, EVERYWHERE},
    {{"dead_server", dead_server, {4}}, EVERYWHERE},
    {{"closed_server", closed_server, {3}}, EVERYWHERE},
    {{"aborted", aborted, {4}}, EVERYWHERE},
    {{"left", left, {4}}, EVERYWHERE},
    {{"late", late, {4}}, EVERYWHERE},
    {{"silent", silent, {4}}, STAGES},
    {{"broken", broken, {4}}, STAGES},
    {{"varied", varied, {4}}, EVERYWHERE},
    {{"parts", split_parts, {4}}, STAGES},
    {{"refusals", refusals, {3}}, STAGES},
    {{"refusals", nccl_refusals, {4}}, BY_NCCL},
    {{"from_id", from_id, {3}}, STAGES},
    {{"from_near_id", from_near_id, {2}}, STAGES},
};

int main(void)
{
    const char *by = getenv("TUTTI_TEST_FABRIC");
    const bool cuda = device_is_cuda();
    int failures = 0;
    nccl = cuda && by && strcmp(by, "nccl") == 0;
    if (nccl)
        cuda_fabric_slot_bytes = 4096; /* pieces */
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (!(parts[i].where & (nccl ? BY_NCCL : cuda ? STAGED : ON_HOSTS)))
            continue;
        loopback = loopback_create();
        failures += ranks_run_parts(&parts[i].part, 1);
    }
    loopback = loopback_create();
    for (int size = cuda ? 3 : 2; size <= (cuda ? MOST_CUDA : MOST); size += cuda ? 3 : 1)
        failures += splits_run(size);
    return failures ? 1 : 0;
}
