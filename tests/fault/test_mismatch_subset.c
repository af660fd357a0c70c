/* SPDX-License-Identifier: MIT */
/*
 * One rank enters a barrier of a subset, a rank of that subset an operation of all ranks: neither
 * can come to the other, and all get MISMATCH with both sides.
 *
 * usage: test_mismatch_subset threads|processes
 */
#include "device.h"
#include "ranks.h"

#include <string.h>

enum { PATIENCE_MS = 3000 };

static int disagree(struct ranks *ranks, int rank, tutti_store_t *store)
{
    bool reduces = *(const bool *)ranks->context;
    tutti_comm_t *comm, *after;
    float one = 1;
    /* Kernels see a subset's meetings and the operations of all apart: there the time-out ends it.
     */
    struct tutti_comm_options options = {.struct_size = sizeof options,
                                         .timeout_ms = device_is_cuda() ? PATIENCE_MS : 0};
    RANKS_CHECK(ranks_join(ranks, rank, store, &options, &comm) == TUTTI_OK);
    RANKS_CHECK(tutti_barrier(comm, (int[]){0, 1, 2}, 3, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    if (rank < 2) /* one good meeting before */
        RANKS_CHECK(tutti_barrier(comm, (int[]){0, 1}, 2, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    ranks_raise(ranks, 0);
    RANKS_CHECK(ranks_await(ranks, 0, (uint32_t)ranks->size));

    enum tutti_status status;
    if (rank == 0)
        status = tutti_barrier(comm, (int[]){1, 0}, 2, TUTTI_STREAM_DEFAULT);
    else if (reduces)
        status =
            tutti_all_reduce(&one, &one, 1, TUTTI_FLOAT32, TUTTI_SUM, comm, TUTTI_STREAM_DEFAULT);
    else
        status = tutti_barrier(comm, NULL, 0, TUTTI_STREAM_DEFAULT);
    bool late = device_is_cuda() && status == TUTTI_ERR_TIMEOUT;
    RANKS_CHECK(late || status == TUTTI_ERR_MISMATCH);
    RANKS_CHECK(late || strstr(tutti_last_error(), "subset"));
    RANKS_CHECK(late || strstr(tutti_last_error(), "rank 0 has"));
    if (reduces && !late)
        RANKS_CHECK(strstr(tutti_last_error(), "all_reduce of 1 float32"));
    tutti_comm_destroy(comm);

    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &after) == TUTTI_OK);
    RANKS_CHECK(tutti_barrier(after, NULL, 0, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    tutti_comm_destroy(after);
    return 0;
}

int main(int argc, char **argv)
{
    int failures = 0, skip = ranks_skip(3);
    if (skip)
        return skip;
    for (int reduces = 0; reduces < 2; reduces++) {
        bool context = reduces;
        struct ranks *ranks = ranks_create(3, argc > 1 && !strcmp(argv[1], "processes") ? 3 : 0, 0);
        ranks->context = &context;
        failures += ranks_run(ranks, disagree);
        ranks_destroy(ranks);
    }
    return failures ? 1 : 0;
}
