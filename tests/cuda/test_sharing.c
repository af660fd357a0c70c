/* SPDX-License-Identifier: MIT */
/*
 * Threads that share a device, and whose streams share a hardware queue: what one rank has enqueued
 * delays no other rank, results are right, and the error names a rank that does not come.
 */
#include "streams.h"

enum { TURNS = 40, LATE_MS = 1000 };

static CUstream stream_of(const struct rank *self, int which)
{
    return which ? self->b : self->a;
}

static enum tutti_status reduce(struct rank *self, size_t count, int stream, int64_t timeout_ms)
{
    struct tutti_call_options options = {.struct_size = sizeof options, .timeout_ms = timeout_ms};
    return tutti_all_reduce_with(self->data, self->data, count, TUTTI_INT32, TUTTI_SUM, self->comm,
                                 device_stream(stream_of(self, stream)), &options);
}

static int synchronize(struct rank *self)
{
    struct ranks *ranks = self->ranks;
    const int rank = self->rank;
    for (int i = 0; i < 2; i++)
        RANKS_CHECK(cuStreamSynchronize(stream_of(self, i)) == CUDA_SUCCESS);
    return 0;
}

/* Many calls ahead of the device, from stream to stream, each behind the one before by an event,
 * with barriers of all and of two between them. */
static int run_ahead(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const int pair[] = {0, 1};
    struct rank self;
    uint32_t expected = 1;
    int failed = open_rank_on(&self, ranks, rank, store, 0);
    if (failed)
        return failed;
    for (int i = 0; i < TURNS; i++) {
        const tutti_stream_t stream = device_stream(stream_of(&self, i / 2 % 2));
        RANKS_CHECK(reduce(&self, COUNT, i % 2, 0) == TUTTI_OK);
        RANKS_CHECK(i % 5 || tutti_barrier(self.comm, NULL, 0, stream) == TUTTI_OK);
        RANKS_CHECK(i % 7 || rank > 1 || tutti_barrier(self.comm, pair, 2, stream) == TUTTI_OK);
        expected *= (uint32_t)ranks->size;
    }
    failed = synchronize(&self);
    if (failed)
        return failed;
    for (int i = 0; i < COUNT; i++)
        RANKS_CHECK((uint32_t)self.data[i] == expected);
    RANKS_CHECK(tutti_comm_status(self.comm, NULL) == TUTTI_OK);
    close_rank(&self);
    return 0;
}

/* The last rank does not come: the others' calls, which wait for it, end with its name. */
static int stay_away(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const int last = ranks->size - 1;
    struct tutti_fault fault = {.struct_size = sizeof fault};
    struct rank self;
    int failed = open_rank_on(&self, ranks, rank, store, 0);
    if (failed)
        return failed;
    RANKS_CHECK(reduce(&self, COUNT, 0, 0) == TUTTI_OK);
    ranks_raise(ranks, 1);
    RANKS_CHECK(ranks_await(ranks, 1, (uint32_t)ranks->size)); /* none but the last is late */
    if (rank != last) {
        RANKS_CHECK(reduce(&self, COUNT, 0, LATE_MS) == TUTTI_ERR_TIMEOUT);
        ranks_raise(ranks, 2);
    }
    RANKS_CHECK(ranks_await(ranks, 2, (uint32_t)last));
    RANKS_CHECK(tutti_comm_status(self.comm, &fault) == TUTTI_ERR_TIMEOUT);
    RANKS_CHECK(fault.peer == last && fault.sequence == 2);
    RANKS_CHECK(reduce(&self, COUNT, 0, 0) == TUTTI_ERR_TIMEOUT);
    failed = synchronize(&self);
    close_rank(&self);
    return failed;
}

/* The last rank means something else, which the kernels find out, maybe while a rank still waits
 * for all to have launched. */
static int disagree(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const int last = ranks->size - 1;
    struct tutti_fault fault = {.struct_size = sizeof fault};
    struct rank self;
    int failed = open_rank_on(&self, ranks, rank, store, 0);
    if (failed)
        return failed;
    enum tutti_status status = reduce(&self, rank == last ? COUNT / 2 : COUNT, 0, 0);
    RANKS_CHECK(status == TUTTI_OK || status == TUTTI_ERR_MISMATCH);
    failed = synchronize(&self);
    if (failed)
        return failed;
    RANKS_CHECK(tutti_comm_status(self.comm, &fault) == TUTTI_ERR_MISMATCH);
    RANKS_CHECK(fault.rank == last || fault.peer == last);
    close_rank(&self);
    return 0;
}

/* One rank cannot launch: that keeps no other one's call, and all hear of it. */
static int launch_fails(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct rank self;
    int failed = open_rank_on(&self, ranks, rank, store, 0);
    if (failed)
        return failed;
    if (rank == 0)
        standin_fail("cuLaunchKernelEx", 1, CUDA_ERROR_INVALID_VALUE);
    ranks_raise(ranks, 1);
    RANKS_CHECK(ranks_await(ranks, 1, (uint32_t)ranks->size));
    enum tutti_status status = reduce(&self, COUNT, 0, 0);
    RANKS_CHECK(status == TUTTI_OK || status == TUTTI_ERR_CUDA);
    ranks_raise(ranks, 2);
    RANKS_CHECK(ranks_await(ranks, 2, (uint32_t)ranks->size));
    failed = synchronize(&self);
    if (failed)
        return failed;
    RANKS_CHECK(tutti_comm_status(self.comm, NULL) == TUTTI_ERR_CUDA);
    RANKS_CHECK(strstr(tutti_last_error(), "could not do its part of operation"));
    close_rank(&self);
    return 0;
}

int main(void)
{
    static const struct {
        const char *name;
        ranks_fn *fn;
    } parts[] = {
        {"run_ahead", run_ahead},
        {"stay_away", stay_away},
        {"disagree", disagree},
        {"launch_fails", launch_fails},
    };
    static const char *const algos[] = {NULL, "one_shot", "two_shot"}; /* NULL: staged */
    int failures = 0;
    device_setup();
    setenv("TUTTI_STANDIN_DEVICES", "1", 1);
    setenv("TUTTI_STANDIN_ONE_CHANNEL", "1", 1);
    setenv("TUTTI_ALLOW_OVERLAPPING_DEVICES", "1", 1);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        for (size_t a = 0; a < sizeof algos / sizeof *algos; a++) {
            const int size = a == 2 ? 4 : 2;
            algos[a] ? setenv("TUTTI_ALGO", algos[a], 1) : unsetenv("TUTTI_ALGO");
            struct ranks *ranks = ranks_create(size, 0, 0);
            int failed = ranks_run(ranks, parts[i].fn);
            ranks_destroy(ranks);
            standin_fail(NULL, 0, CUDA_SUCCESS);
            if (device_left() != 0)
                failed++;
            if (failed)
                fprintf(stderr, "%s failed with %d ranks, %s\n", parts[i].name, size,
                        algos[a] ? algos[a] : "staged");
            failures += failed;
        }
    }
    return failures ? 1 : 0;
}
