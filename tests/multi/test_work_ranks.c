/* SPDX-License-Identifier: MIT */
/*
 * Work objects among processes or threads: the time-out of a host wait, the wait of another stream,
 * a fault, the destroy of the communicator. On GPUs the operations are barriers on streams of the
 * test. On CPU works are done at once.
 */
#include "../tools/gpu.h"
#include "device.h"
#include "ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SOON_MS = 20 };

static bool is_done(tutti_work_t *work, bool expected)
{
    bool done = !expected;
    return tutti_work_test(work, &done) == TUTTI_OK && done == expected;
}

/* Run by all ranks but 0. Rank 0 calls its barrier last. */
static int await_late(struct ranks *ranks, int rank, tutti_comm_t *comm, const tutti_stream_t *on)
{
    tutti_work_t *work, *after;
    RANKS_CHECK(device_barrier(comm, on[0]) == TUTTI_OK);
    RANKS_CHECK(tutti_work_record(comm, on[0], &work) == TUTTI_OK);
    RANKS_CHECK(tutti_work_wait_stream(work, on[1]) == TUTTI_OK);
    RANKS_CHECK(tutti_work_record(comm, on[1], &after) == TUTTI_OK);
    if (device_is_cuda()) {
        RANKS_CHECK(is_done(work, false));
        RANKS_CHECK(tutti_work_wait_host(after, SOON_MS) == TUTTI_ERR_TIMEOUT);
        RANKS_CHECK(strstr(tutti_last_error(), "within 20 ms"));
        RANKS_CHECK(is_done(work, false));
    }
    ranks_raise(ranks, 1);
    RANKS_CHECK(tutti_work_wait_host(after, 0) == TUTTI_OK && is_done(after, true));
    RANKS_CHECK(is_done(work, true) && tutti_work_wait_host(work, 1) == TUTTI_OK);
    tutti_work_destroy(work);
    tutti_work_destroy(after);
    return 0;
}

/* Rank 0 aborts instead of joining an operation. */
static int fail(struct ranks *ranks, int rank, tutti_comm_t *comm, tutti_stream_t on)
{
    tutti_work_t *work;
    bool done = false;
    if (rank == 0) {
        RANKS_CHECK(ranks_await(ranks, 2, (uint32_t)ranks->size - 1));
        tutti_comm_abort(comm);
        ranks_raise(ranks, 3);
        RANKS_CHECK(tutti_work_record(comm, on, &work) == TUTTI_ERR_ABORTED && !work);
        return 0;
    }
    if (!device_is_cuda()) {
        RANKS_CHECK(tutti_work_record(comm, on, &work) == TUTTI_OK);
        ranks_raise(ranks, 2);
        RANKS_CHECK(ranks_await(ranks, 3, 1));
        RANKS_CHECK(device_barrier(comm, on) == TUTTI_ERR_ABORTED);
        RANKS_CHECK(is_done(work, true));
        tutti_work_destroy(work);
        RANKS_CHECK(tutti_work_record(comm, on, &work) == TUTTI_ERR_ABORTED && !work);
        return 0;
    }
    RANKS_CHECK(device_barrier(comm, on) == TUTTI_OK);
    RANKS_CHECK(tutti_work_record(comm, on, &work) == TUTTI_OK);
    ranks_raise(ranks, 2);
    RANKS_CHECK(tutti_work_wait_host(work, RANKS_TIMEOUT_MS) == TUTTI_ERR_ABORTED);
    RANKS_CHECK(strstr(tutti_last_error(), "rank 0 aborted"));
    RANKS_CHECK(tutti_work_test(work, &done) == TUTTI_ERR_ABORTED && done);
    tutti_work_destroy(work);
    return 0;
}

static int live(struct ranks *ranks, int rank, tutti_store_t *store)
{
    tutti_stream_t on[2] = {TUTTI_STREAM_DEFAULT, TUTTI_STREAM_DEFAULT};
    tutti_comm_t *comm;
    tutti_work_t *kept;
    int failed = 0;
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    if (device_is_cuda())
        RANKS_CHECK(gpu_stream_create(&on[0]) && gpu_stream_create(&on[1]));
    if (rank == 0) {
        RANKS_CHECK(!device_is_cuda() || ranks_await(ranks, 1, (uint32_t)ranks->size - 1));
        RANKS_CHECK(device_barrier(comm, on[0]) == TUTTI_OK);
    } else {
        failed = await_late(ranks, rank, comm, on);
    }
    RANKS_CHECK(!failed && tutti_work_record(comm, on[0], &kept) == TUTTI_OK);
    RANKS_CHECK(tutti_work_wait_host(kept, 0) == TUTTI_OK);
    failed = fail(ranks, rank, comm, on[0]);
    tutti_comm_destroy(comm);
    RANKS_CHECK(is_done(kept, true));
    tutti_work_destroy(kept);
    for (int i = 0; i < 2 && device_is_cuda(); i++)
        gpu_stream_destroy(on[i]);
    return failed;
}

int main(int argc, char **argv)
{
    bool processes = argc > 1 && strcmp(argv[1], "processes") == 0;
    int failures = 0, runs = 0, skip = ranks_skip(2);
    if (skip)
        return skip;
    for (int size = 2; size <= 4 && ranks_fit(size); size++) {
        if (device_is_cuda() && !processes && device_skips_threads(size))
            continue;
        runs++;
        struct ranks *ranks = ranks_create(size, processes ? size : 0, 0);
        failures += ranks_run(ranks, live);
        ranks_destroy(ranks);
    }
    return failures ? 1 : runs ? 0 : 77;
}
