/* SPDX-License-Identifier: MIT */
/*
 * Barriers of all ranks and of subsets: nobody leaves before all have come, ranks outside take no
 * part, subsets may overlap, and a wrong subset is refused.
 *
 * usage: test_barrier threads|processes
 */
#include "comm/comm.h"
#include "cpu/transport/group.h"
#include "device.h"
#include "ranks.h"

#include <string.h>
#include <unistd.h>

enum { SIZE = 5, CUDA_SIZE = 4, ROUNDS = 300 };

/* entered[r]: how many barriers rank r has entered. */
static uint32_t *entered_of(struct ranks *ranks)
{
    return (uint32_t *)(void *)ranks->shared;
}

/* Enters, and checks that at its end all members have entered as often. */
static int meet(struct ranks *ranks, int rank, tutti_comm_t *comm, const int *members, int count)
{
    uint32_t *entered = entered_of(ranks);
    uint32_t own = __atomic_add_fetch(&entered[rank], 1, __ATOMIC_SEQ_CST);
    RANKS_CHECK(tutti_barrier(comm, members, count, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    for (int i = 0; i < (members ? count : ranks->size); i++)
        RANKS_CHECK(__atomic_load_n(&entered[members ? members[i] : i], __ATOMIC_SEQ_CST) >= own);
    return 0;
}

static int all(struct ranks *ranks, int rank, tutti_store_t *store)
{
    static const int five[SIZE] = {4, 2, 0, 1, 3};
    const int *everybody = five + SIZE - ranks->size;
    tutti_comm_t *comm;
    int failed = 0;
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    RANKS_CHECK(device_sequence_set(comm, UINT32_MAX - ROUNDS / 2));
    for (int i = 0; i < ROUNDS && !failed; i++) {
        if (i % 100 == rank)
            usleep(2000);
        failed = i % 3 ? meet(ranks, rank, comm, NULL, 0)
                       : meet(ranks, rank, comm, everybody, ranks->size);
    }
    tutti_comm_destroy(comm);
    return failed;
}

/* Two subsets that share rank 2, in the same order on all their ranks; rank 4, if there is one,
 * stays outside. Their counts of meetings wrap. */
static int subsets(struct ranks *ranks, int rank, tutti_store_t *store)
{
    static const int left[] = {0, 1, 2}, right[] = {3, 2};
    tutti_comm_t *comm;
    float sum = 1;
    int failed = 0;
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    for (int peer = 0; peer < ranks->size; peer++)
        comm->peers->meetings[peer] = UINT32_MAX - ROUNDS / 2;
    /* Each group counts for itself: rank 2 enters twice as often. */
    for (int i = 0; i < ROUNDS && !failed; i++) {
        if (i % 100 == rank)
            usleep(2000);
        if (rank <= 2)
            RANKS_CHECK(tutti_barrier(comm, left, 3, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
        if (rank == 2 || rank == 3)
            RANKS_CHECK(tutti_barrier(comm, right, 2, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
        /* Operations of all ranks in between do not mind. */
        if (i % 50 == 0)
            RANKS_CHECK(tutti_all_reduce(&sum, &sum, 1, TUTTI_FLOAT32, TUTTI_MAX, comm,
                                         TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    }
    for (int i = 0; i < ROUNDS && !failed && rank <= 2; i++)
        failed = meet(ranks, rank, comm, left, 3);
    /* A subset of one is nobody to wait for. */
    RANKS_CHECK(tutti_barrier(comm, &rank, 1, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    RANKS_CHECK(tutti_comm_status(comm, NULL) == TUTTI_OK);
    tutti_comm_destroy(comm);
    return failed;
}

/* Gathers of one piece and of several, between operations that use the same bytes of the arenas. */
static int gathers(struct ranks *ranks, int rank, tutti_store_t *store)
{
    enum { LONG = 3 * LAYOUT_BODY_BYTES + 1, COUNT = 900 };
    static const size_t lengths[] = {1, LAYOUT_BODY_BYTES, LAYOUT_BODY_BYTES + 1, LONG};
    static _Thread_local unsigned char own[LONG], rows[SIZE * LONG];
    static _Thread_local int32_t sums[COUNT];
    tutti_comm_t *comm;
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    const bool shares = comm->backend->check_split(comm->group, "") == TUTTI_OK;
    for (int i = 0; i < ROUNDS && shares; i++) {
        const size_t length = lengths[i % 4];
        for (int k = 0; k < COUNT; k++)
            sums[k] = k;
        for (size_t k = 0; k < length; k++)
            own[k] = (unsigned char)((size_t)(rank + i) + k % 251);
        if (i % 100 == rank)
            usleep(2000);
        RANKS_CHECK(peers_gather(comm->peers, own, length, rows, comm->timeout_ms) == TUTTI_OK);
        for (int r = 0; r < ranks->size; r++)
            for (size_t k = 0; k < length; k++)
                RANKS_CHECK(rows[(size_t)r * length + k] ==
                            (unsigned char)((size_t)(r + i) + k % 251));
        RANKS_CHECK(tutti_all_reduce(sums, sums, COUNT, TUTTI_INT32, TUTTI_SUM, comm,
                                     TUTTI_STREAM_DEFAULT) == TUTTI_OK);
        RANKS_CHECK(sums[COUNT - 1] == ranks->size * (COUNT - 1));
    }
    tutti_comm_destroy(comm);
    return 0;
}

static int refused(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const int size = ranks->size, next = (rank + 1) % size;
    const struct {
        const int *members;
        int count;
        const char *why;
    } wrong[] = {
        {(int[]){next}, 1, "lacks the caller"},
        {(int[]){rank, rank}, 2, "twice"},
        {(int[]){rank, size}, 2, size == 5 ? "is 5: expected 0 to 4" : "is 4: expected 0 to 3"},
        {(int[]){-1, rank}, 2, "is -1"},
        {(int[]){rank}, 0, "at least one rank"},
        {(int[]){rank}, -1, "at least one rank"},
        {NULL, 2, "at least one rank"},
    };
    tutti_comm_t *comm;
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        RANKS_CHECK(tutti_barrier(comm, wrong[i].members, wrong[i].count, TUTTI_STREAM_DEFAULT) ==
                    TUTTI_ERR_INVALID);
        RANKS_CHECK(strstr(tutti_last_error(), wrong[i].why));
    }
    if (!device_is_cuda()) {
        RANKS_CHECK(tutti_barrier(comm, NULL, 0, TUTTI_STREAM_LEGACY) == TUTTI_ERR_INVALID);
        RANKS_CHECK(strstr(tutti_last_error(), "TUTTI_STREAM_DEFAULT"));
    }
    RANKS_CHECK(tutti_barrier(comm, NULL, 0, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    tutti_comm_destroy(comm);
    return 0;
}

/* Members that name different subsets disagree. */
static int different(struct ranks *ranks, int rank, tutti_store_t *store)
{
    static const int three[] = {0, 1, 2}, two[] = {0, 1};
    tutti_comm_t *comm;
    struct tutti_fault fault = {.struct_size = sizeof fault};
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    if (rank < 3) {
        const int *members = rank == 1 ? two : three;
        RANKS_CHECK(tutti_barrier(comm, members, rank == 1 ? 2 : 3, TUTTI_STREAM_DEFAULT) ==
                    TUTTI_ERR_MISMATCH);
        RANKS_CHECK(tutti_comm_status(comm, &fault) == TUTTI_ERR_MISMATCH);
        RANKS_CHECK(fault.expected.collective == TUTTI_COLLECTIVE_BARRIER);
        RANKS_CHECK(fault.expected.parameter != fault.seen.parameter);
    }
    ranks_raise(ranks, 0);
    RANKS_CHECK(ranks_await(ranks, 0, (uint32_t)ranks->size));
    tutti_comm_destroy(comm);
    return 0;
}

int main(int argc, char **argv)
{
    static ranks_fn *const parts[] = {all, subsets, gathers, refused, different};
    int failures = 0;
    int size = device_is_cuda() ? CUDA_SIZE : SIZE, skip = ranks_skip(size);
    int processes = argc == 2 && strcmp(argv[1], "processes") == 0 ? size : 0;
    if (skip)
        return skip;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        struct ranks *ranks = ranks_create(size, processes, SIZE * sizeof(uint32_t));
        failures += ranks_run(ranks, parts[i]);
        ranks_destroy(ranks);
    }
    return failures ? 1 : 0;
}
