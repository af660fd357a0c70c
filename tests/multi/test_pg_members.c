/* SPDX-License-Identifier: MIT */
/*
 * Several groups of one communicator at once, of some of its ranks, in the order of a list. The
 * groups and the communicator do not affect each other; the communicator may end first.
 *
 * usage: test_pg_members processes|threads|mixed
 */
#include "pg.h"

#include "device.h"
#include "pg_members.h"

#include <string.h>

enum { MANY = 20, GROUPS = 3 };

/* The communicator's own operation, between those of groups. */
static bool comm_goes_on(tutti_comm_t *comm, int size)
{
    float one = 1, sum = 0;
    return tutti_all_reduce(&one, &sum, 1, TUTTI_FLOAT32, TUTTI_SUM, comm, TUTTI_STREAM_DEFAULT) ==
               TUTTI_OK &&
           sum == (float)size;
}

/* A group of all ranks in reverse order, a second group of all ranks, and a group of each half,
 * with operations in flight in all of them. */
static int live_side_by_side(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const int size = ranks->size, half = size / 2, first = rank < half ? 0 : half;
    int lists[GROUPS][TUTTI_MAX_RANKS];
    const int counts[GROUPS] = {size, size, rank < half ? half : size - half};
    tutti_comm_t *comm;
    tutti_pg_t *groups[GROUPS];
    tutti_work_t *works[GROUPS][MANY];
    float data[GROUPS][MANY];
    for (int i = 0; i < size; i++) {
        lists[0][i] = lists[1][i] = size - 1 - i;
        lists[2][i] = first + i;
    }
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    for (int g = 0; g < GROUPS; g++)
        RANKS_CHECK(pg_of(comm, store, lists[g], counts[g], 0, &groups[g]) == TUTTI_OK);
    for (int i = 0; i < MANY; i++) {
        for (int g = 0; g < GROUPS; g++) {
            data[g][i] = (float)(i + 1);
            RANKS_CHECK(pg_sum(groups[g], &data[g][i], (uint32_t)i % 3, 0, &works[g][i]) ==
                        TUTTI_OK);
        }
        RANKS_CHECK(comm_goes_on(comm, size));
    }
    for (int i = 0; i < MANY; i++)
        for (int g = GROUPS - 1; g >= 0; g--) {
            RANKS_CHECK(pg_end(works[g][i]) == TUTTI_OK);
            RANKS_CHECK(data[g][i] == (float)((i + 1) * counts[g]));
        }
    /* One group is destroyed, then the communicator; the other groups go on. */
    tutti_pg_destroy(groups[1]);
    RANKS_CHECK(comm_goes_on(comm, size));
    tutti_comm_destroy(comm);
    RANKS_CHECK(pg_goes_on(groups[0], 7, counts[0]));
    RANKS_CHECK(pg_goes_on_sparse(groups[0], 7, size - 1 - rank, counts[0]));
    RANKS_CHECK(pg_goes_on(groups[2], 7, counts[2]));
    tutti_pg_destroy(groups[2]);
    RANKS_CHECK(pg_goes_on(groups[0], 7, counts[0]));
    tutti_pg_destroy(groups[0]);
    return 0;
}

/* ((a + b) + (c + d)) of numbers whose sum depends on the order of ranks. */
static float sum_in_order(const float *x, const int *list, int count)
{
    volatile float left = x[list[0]] + x[list[1]];
    if (count == 2)
        return left;
    volatile float right = count == 3 ? x[list[2]] : x[list[2]] + x[list[3]];
    return left + right;
}

/* Members are numbered and summed in the order of the list; without a list, in the order of the
 * communicator. */
static int live_in_order(struct ranks *ranks, int rank, tutti_store_t *store)
{
    static const float x[4] = {1, 1e8F, -1e8F, 3};
    static const int orders[][4] = {{0, 1, 2, 3}, {1, 2, 0, 3}, {0, 3, 2, 1}};
    tutti_comm_t *comm;
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    for (size_t i = 0; i < sizeof orders / sizeof *orders; i++) {
        int list[4], count = 0;
        tutti_pg_t *pg;
        tutti_work_t *work;
        for (int j = 0; j < 4; j++)
            if (orders[i][j] < ranks->size)
                list[count++] = orders[i][j];
        float sum = x[rank];
        RANKS_CHECK(pg_of(comm, store, list, count, 0, &pg) == TUTTI_OK);
        RANKS_CHECK(pg_sum(pg, &sum, 0, 0, &work) == TUTTI_OK && pg_end(work) == TUTTI_OK);
        RANKS_CHECK(sum == sum_in_order(x, list, count));
        tutti_pg_destroy(pg);
    }
    tutti_comm_destroy(comm);
    return 0;
}

/* A rank alone; one that is in no group; groups one after the other; one rank's time-out. */
static int live_apart(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const int ends[2] = {ranks->size - 1, 0};
    tutti_comm_t *comm;
    tutti_pg_t *pg;
    tutti_work_t *work;
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    RANKS_CHECK(pg_of(comm, store, &rank, 1, 0, &pg) == TUTTI_OK);
    RANKS_CHECK(pg_goes_on(pg, 0, 1));
    tutti_pg_destroy(pg);
    for (int turn = 0; turn < 3 && (rank == ends[0] || rank == ends[1]); turn++) {
        float x = 1;
        RANKS_CHECK(pg_of(comm, store, ends, 2, 0, &pg) == TUTTI_OK);
        if (rank == 0) {
            struct tutti_fault fault = {.struct_size = sizeof fault};
            RANKS_CHECK(pg_sum(pg, &x, 1, 20, &work) == TUTTI_OK);
            RANKS_CHECK(tutti_work_wait_host(work, RANKS_TIMEOUT_MS) == TUTTI_ERR_TIMEOUT);
            RANKS_CHECK(strstr(tutti_last_error(), "rank 0 had not submitted it"));
            RANKS_CHECK(strstr(tutti_last_error(), "first in the list of default["));
            RANKS_CHECK(tutti_work_fault(work, &fault) == TUTTI_ERR_TIMEOUT && fault.peer == 0);
            tutti_work_destroy(work);
        }
        RANKS_CHECK(pg_goes_on(pg, 0, 2));
        tutti_pg_destroy(pg);
    }
    RANKS_CHECK(comm_goes_on(comm, ranks->size));
    tutti_comm_destroy(comm);
    return 0;
}

/* A caller with the shorter struct of an earlier version, which has no list, gets what it got
 * before. */
static int live_as_before(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const struct tutti_pg_options whole = {.struct_size = sizeof whole, .store = store};
    const struct tutti_pg_options old = {.struct_size = 2 * sizeof(size_t), .timeout_ms = 60000};
    tutti_comm_t *comm;
    tutti_pg_t *pg;
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    if (device_is_cuda()) {
        RANKS_CHECK(tutti_pg_create(comm, &old, &pg) == TUTTI_ERR_INVALID && !pg);
        RANKS_CHECK(strstr(tutti_last_error(), "options->store is NULL"));
    }
    RANKS_CHECK(tutti_pg_create(comm, device_is_cuda() ? &whole : &old, &pg) == TUTTI_OK);
    RANKS_CHECK(pg_goes_on(pg, 0, ranks->size));
    RANKS_CHECK(pg_goes_on_sparse(pg, 0, rank, ranks->size));
    tutti_pg_destroy(pg);
    tutti_comm_destroy(comm);
    return 0;
}

int main(int argc, char **argv)
{
    ranks_fn *const parts[] = {live_side_by_side, live_in_order, live_apart, live_as_before};
    return pg_members_main(argc, argv, parts, (int)(sizeof parts / sizeof *parts));
}
