/* SPDX-License-Identifier: MIT */
/*
 * The end of a communicator while operations are under way: tutti_comm_finalize() and
 * tutti_comm_destroy() let them end, unless the communicator has failed.
 *
 * usage: test_finalize processes|threads [cuda]
 *
 * With "cuda" the communicators are those of GPUs, or of the stand-in for libcuda. Rank 0's stream
 * stands still before its operation, so that no rank's operation can end until it goes on.
 */
#include "pg_cuda.h"
#include "tutti/recovery.h"

#include <pthread.h>
#include <string.h>

enum {
    COUNT = 1000,
    SOON_MS = 50,
    LATE_MS = 400, /* longer than what a communicator that has failed leaves its operations */
};

static bool cuda;

struct life {
    struct ranks *ranks;
    int rank;
    tutti_comm_t *comm;
    tutti_stream_t stream;
    int32_t *data, *host;
    struct pg_brake brake; /* of rank 0's stream */
};

static enum tutti_status reduce(const struct life *life)
{
    return tutti_all_reduce(life->data, life->data, COUNT, TUTTI_INT32, TUTTI_SUM, life->comm,
                            life->stream);
}

/* All ranks' operations are enqueued, on rank 0 behind the brake. */
static int begin(struct life *life, struct ranks *ranks, int rank, tutti_store_t *store)
{
    const struct tutti_comm_options options = {
        .struct_size = sizeof options, .device = cuda ? TUTTI_DEVICE_CUDA : TUTTI_DEVICE_CPU};
    *life = (struct life){.ranks = ranks, .rank = rank};
    RANKS_CHECK(!cuda || pg_cuda_bind(rank));
    RANKS_CHECK((life->host = malloc(COUNT * sizeof *life->host)) != NULL);
    for (int i = 0; i < COUNT; i++)
        life->host[i] = rank + 1;
    life->data = life->host;
    if (cuda)
        RANKS_CHECK(gpu_stream_create(&life->stream) &&
                    (life->data = gpu_alloc(COUNT * sizeof *life->data)) != NULL);
    /* CUDA may wait for the kernels of other ranks while it allocates, so it is done before. */
    RANKS_CHECK(ranks_join(ranks, rank, store, &options, &life->comm) == TUTTI_OK);
    if (cuda) {
        RANKS_CHECK(gpu_copy(life->data, life->host, COUNT * sizeof *life->data));
        RANKS_CHECK(reduce(life) == TUTTI_OK && gpu_stream_synchronize(life->stream));
        RANKS_CHECK(gpu_copy(life->data, life->host, COUNT * sizeof *life->data));
        RANKS_CHECK(rank != 0 || pg_brake_put(&life->brake, life->stream));
    }
    RANKS_CHECK(reduce(life) == TUTTI_OK);
    ranks_raise(ranks, 1);
    RANKS_CHECK(ranks_await(ranks, 1, (uint32_t)ranks->size));
    return 0;
}

static int end(struct life *life, bool holds)
{
    struct ranks *ranks = life->ranks;
    const int rank = life->rank;
    tutti_comm_destroy(life->comm);
    if (cuda) {
        RANKS_CHECK(gpu_stream_synchronize(life->stream));
        RANKS_CHECK(gpu_copy(life->host, life->data, COUNT * sizeof *life->data));
    }
    for (int i = 0; i < COUNT && holds; i++)
        RANKS_CHECK(life->host[i] == ranks->size * (ranks->size + 1) / 2);
    if (cuda) {
        gpu_stream_destroy(life->stream);
        gpu_free(life->data);
    }
    free(life->host);
    ranks_raise(ranks, 7);
    RANKS_CHECK(ranks_await(ranks, 7, (uint32_t)ranks->size));
    return 0;
}

static void *release_late(void *argument)
{
    nanosleep(&(struct timespec){.tv_nsec = LATE_MS * 1000000}, NULL);
    pg_brake_release(argument);
    return NULL;
}

/* The operation ends while the communicator waits for it. */
static int wait_for(struct ranks *ranks, int rank, tutti_store_t *store, bool finalize)
{
    struct life life;
    pthread_t thread;
    int failed = begin(&life, ranks, rank, store);
    if (failed)
        return failed;
    if (rank == 0)
        RANKS_CHECK(pthread_create(&thread, NULL, release_late, &life.brake) == 0);
    for (int i = 0; i < 2 && finalize; i++)
        RANKS_CHECK(tutti_comm_finalize(life.comm, 0) == TUTTI_OK);
    if (finalize) {
        struct tutti_shrink_result result = {.struct_size = sizeof result};
        tutti_comm_t *shrunk;
        RANKS_CHECK(reduce(&life) == TUTTI_ERR_INVALID);
        RANKS_CHECK(strstr(tutti_last_error(), "was finalized"));
        RANKS_CHECK(tutti_barrier(life.comm, NULL, 0, life.stream) == TUTTI_ERR_INVALID);
        RANKS_CHECK(tutti_comm_shrink(life.comm, store, NULL, &shrunk, &result) ==
                    TUTTI_ERR_INVALID);
        RANKS_CHECK(tutti_comm_status(life.comm, NULL) == TUTTI_OK);
    }
    failed = end(&life, true);
    if (rank == 0)
        pthread_join(thread, NULL);
    return failed;
}

static int finalizes(struct ranks *ranks, int rank, tutti_store_t *store)
{
    return wait_for(ranks, rank, store, true);
}

static int destroys(struct ranks *ranks, int rank, tutti_store_t *store)
{
    return wait_for(ranks, rank, store, false);
}

/* It does not end in time; then it does. */
static int times_out(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct life life;
    int failed = begin(&life, ranks, rank, store);
    if (failed)
        return failed;
    enum tutti_status status = tutti_comm_finalize(life.comm, SOON_MS);
    RANKS_CHECK(status == (cuda ? TUTTI_ERR_TIMEOUT : TUTTI_OK));
    RANKS_CHECK(!cuda || strstr(tutti_last_error(), "did not end in 50 ms"));
    RANKS_CHECK(reduce(&life) == TUTTI_ERR_INVALID);
    ranks_raise(ranks, 2);
    RANKS_CHECK(ranks_await(ranks, 2, (uint32_t)ranks->size));
    pg_brake_release(&life.brake);
    RANKS_CHECK(tutti_comm_finalize(life.comm, 0) == TUTTI_OK);
    return end(&life, true);
}

/* Rank 0 aborts instead. */
static int aborts(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct life life;
    int failed = begin(&life, ranks, rank, store);
    if (failed)
        return failed;
    if (rank == 0)
        tutti_comm_abort(life.comm);
    else
        RANKS_CHECK(!cuda || tutti_comm_finalize(life.comm, 0) == TUTTI_ERR_ABORTED);
    RANKS_CHECK(rank == 0 || !cuda || strstr(tutti_last_error(), "rank 0 aborted"));
    ranks_raise(ranks, 2);
    RANKS_CHECK(ranks_await(ranks, 2, (uint32_t)ranks->size));
    pg_brake_release(&life.brake);
    return end(&life, false);
}

static int refuses(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const struct tutti_comm_options deferred = {.struct_size = sizeof deferred,
                                                .name = "deferred",
                                                .device =
                                                    cuda ? TUTTI_DEVICE_CUDA : TUTTI_DEVICE_CPU,
                                                .defer = true};
    tutti_comm_t *comm;
    RANKS_CHECK(tutti_comm_finalize(NULL, 0) == TUTTI_ERR_INVALID);
    RANKS_CHECK(tutti_comm_create(store, rank, ranks->size, &deferred, &comm) == TUTTI_OK);
    RANKS_CHECK(tutti_comm_finalize(comm, 0) == TUTTI_ERR_INVALID);
    RANKS_CHECK(strstr(tutti_last_error(), "has not met"));
    tutti_comm_destroy(comm);
    return 0;
}

int main(int argc, char **argv)
{
    static ranks_fn *const parts[] = {finalizes, destroys, times_out, aborts, refuses};
    const bool processes = argc > 1 && strcmp(argv[1], "processes") == 0;
    cuda = argc > 2 && strcmp(argv[2], "cuda") == 0;
    int failures = 0;
    const int gpus = cuda ? gpu_probe() : 0;
    if (cuda && gpus == 0) {
        printf("skipped: %s\n", library_error());
        return 77;
    }
    for (int size = 2; size <= 3; size++) {
        if (cuda && size > gpus && !gpu_may_be_shared())
            continue;
        for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
            struct ranks *ranks = ranks_create(size, processes ? size : 0, 0);
            failures += ranks_run(ranks, parts[i]);
            ranks_destroy(ranks);
        }
    }
    return failures ? 1 : 0;
}
