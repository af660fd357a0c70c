/* SPDX-License-Identifier: MIT */
/*
 * CUDA tensors of a process group: when they are read and written, what waits for what, refused
 * calls, and operations that end before their data is exchanged.
 *
 * usage: test_pg_cuda processes|threads [direct]
 *
 * With "direct" the group is of a CUDA communicator, whose devices reduce the tensors that they can
 * reach.
 */
#include "pg_cuda.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

enum {
    SHORT = 1000,
    LONG = (5 << 20) / 4 + 3, /* several pieces, and a rest */
    SOON_MS = 50,
    MANY = 40,
    TENSORS = 3, /* of one call, each on another device */
    TENSOR = 200000,
    NEVER_MS = 30000, /* a limit for operations that must not complete */
};

static bool direct;

/* The state of one rank. */
struct life {
    struct ranks *ranks;
    int rank, device;
    tutti_comm_t *comm;
    tutti_pg_t *pg;
    tutti_stream_t a, b;
    float *data, *copy; /* on the device, LONG elements */
    struct pg_cuda_arena tensors[TENSORS];
    float *host;
};

static enum tutti_status submit(const struct life *life, float *data, int64_t count, uint32_t tag,
                                int64_t timeout_ms, tutti_stream_t stream, tutti_work_t **work)
{
    const struct tutti_tensor tensor = pg_cuda_vector(data, &count, life->device);
    const struct tutti_pg_call_options options = {
        .struct_size = sizeof options, .tag = tag, .timeout_ms = timeout_ms, .stream = stream};
    return tutti_pg_all_reduce(life->pg, &tensor, 1, TUTTI_SUM, &options, work);
}

static bool fill(const struct life *life, float *data, int count, float value)
{
    for (int i = 0; i < count; i++)
        life->host[i] = value + (float)(i % 10);
    return gpu_copy(data, life->host, (size_t)count * sizeof *data);
}

/* Whether `data` is the sum of what fill() wrote on all ranks, whose values sum to `sum`. */
static bool holds(const struct life *life, const float *data, int count, float sum)
{
    if (!gpu_copy(life->host, data, (size_t)count * sizeof *data))
        return false;
    for (int i = 0; i < count; i++)
        if (life->host[i] != sum + (float)(life->ranks->size * (i % 10)))
            return false;
    return true;
}

static int open_life(struct life *life, struct ranks *ranks, int rank, tutti_store_t *store)
{
    *life = (struct life){.ranks = ranks, .rank = rank};
    for (int i = 0; i < TENSORS; i++)
        RANKS_CHECK(pg_cuda_arena_open(&life->tensors[i], pg_cuda_device(rank, i),
                                       2 * TENSOR * sizeof(float)));
    RANKS_CHECK(pg_cuda_bind(rank));
    life->device = pg_cuda_device(rank, 0);
    RANKS_CHECK(gpu_stream_create(&life->a) && gpu_stream_create(&life->b));
    RANKS_CHECK((life->data = gpu_alloc(LONG * sizeof *life->data)) != NULL);
    RANKS_CHECK((life->copy = gpu_alloc(LONG * sizeof *life->copy)) != NULL);
    RANKS_CHECK((life->host = malloc(LONG * sizeof *life->host)) != NULL);
    /* CUDA may wait for the kernels of other ranks while it allocates, so it is done before. */
    RANKS_CHECK(pg_cuda_join(ranks, rank, store, direct, &life->comm, &life->pg) == TUTTI_OK);
    return 0;
}

static void close_life(struct life *life)
{
    pg_part(life->comm, life->pg);
    gpu_stream_destroy(life->a);
    gpu_stream_destroy(life->b);
    gpu_free(life->data);
    gpu_free(life->copy);
    for (int i = 0; i < TENSORS; i++)
        pg_cuda_arena_close(&life->tensors[i]);
    free(life->host);
}

static float ranks_sum(const struct ranks *ranks)
{
    return (float)(ranks->size * (ranks->size + 1) / 2);
}

/* The input is written late on the caller's stream, and another stream waits for the result and
 * reads it. The host waits for neither. */
static int late_input(struct life *life, int count)
{
    struct ranks *ranks = life->ranks;
    int rank = life->rank;
    struct pg_brake brake;
    tutti_work_t *work;
    bool done = true;
    RANKS_CHECK(fill(life, life->copy, count, (float)(rank + 1)));
    RANKS_CHECK(gpu_fill(life->data, 0x7f, (size_t)count * sizeof *life->data));
    RANKS_CHECK(pg_brake_put(&brake, life->a));
    RANKS_CHECK(
        gpu_copy_async(life->data, life->copy, (size_t)count * sizeof *life->data, life->a));
    RANKS_CHECK(submit(life, life->data, count, 1, 0, life->a, &work) == TUTTI_OK);
    RANKS_CHECK(tutti_work_wait_stream(work, life->b) == TUTTI_OK);
    RANKS_CHECK(
        gpu_copy_async(life->copy, life->data, (size_t)count * sizeof *life->data, life->b));
    RANKS_CHECK(tutti_work_wait_host(work, SOON_MS) == TUTTI_ERR_TIMEOUT);
    RANKS_CHECK(tutti_work_test(work, &done) == TUTTI_OK && !done);
    pg_brake_release(&brake);
    RANKS_CHECK(gpu_stream_synchronize(life->b));
    RANKS_CHECK(holds(life, life->copy, count, ranks_sum(ranks)));
    RANKS_CHECK(tutti_work_wait_host(work, RANKS_TIMEOUT_MS) == TUTTI_OK);
    RANKS_CHECK(tutti_work_wait_stream(work, life->a) == TUTTI_OK);
    RANKS_CHECK(holds(life, life->data, count, ranks_sum(ranks)));
    tutti_work_destroy(work);
    RANKS_CHECK(gpu_stream_synchronize(life->a));
    return 0;
}

/* An operation whose input is late delays the later ones of its tag and no others; in the end all
 * complete. */
static int held_tag(struct life *life)
{
    struct ranks *ranks = life->ranks;
    int rank = life->rank;
    struct pg_brake brake;
    tutti_work_t *held, *behind, *works[MANY];
    bool done = true;
    RANKS_CHECK(gpu_fill(life->data, 0, (2 + MANY) * SHORT * sizeof *life->data));
    RANKS_CHECK(pg_brake_put(&brake, life->a));
    RANKS_CHECK(submit(life, life->data, SHORT, 2, 0, life->a, &held) == TUTTI_OK);
    RANKS_CHECK(submit(life, life->data + SHORT, SHORT, 2, 0, life->b, &behind) == TUTTI_OK);
    for (int i = 0; i < MANY; i++)
        RANKS_CHECK(submit(life, life->data + (2 + i) * SHORT, SHORT, 3 + (uint32_t)i % 3, 0,
                           life->b, &works[i]) == TUTTI_OK);
    for (int i = 0; i < MANY; i++)
        RANKS_CHECK(pg_end(works[i]) == TUTTI_OK);
    RANKS_CHECK(tutti_work_test(held, &done) == TUTTI_OK && !done);
    RANKS_CHECK(tutti_work_test(behind, &done) == TUTTI_OK && !done);
    RANKS_CHECK(pg_goes_on(life->pg, 9, ranks->size)); /* a CPU tensor */
    pg_brake_release(&brake);
    RANKS_CHECK(pg_end(held) == TUTTI_OK && pg_end(behind) == TUTTI_OK);
    return 0;
}

/* Rank 0's input is not ready in time: the operation ends on all ranks, its tensors unchanged;
 * later operations do not. */
static int time_out(struct life *life)
{
    struct ranks *ranks = life->ranks;
    int rank = life->rank;
    struct pg_brake brake = {.go = 1};
    tutti_work_t *late, *next;
    RANKS_CHECK(fill(life, life->data, SHORT, (float)rank));
    RANKS_CHECK(fill(life, life->copy, SHORT, 1));
    if (rank == 0)
        RANKS_CHECK(pg_brake_put(&brake, life->a));
    RANKS_CHECK(submit(life, life->data, SHORT, 20, rank ? 0 : SOON_MS, life->a, &late) ==
                TUTTI_OK);
    RANKS_CHECK(submit(life, life->copy, SHORT, 20, 0, life->b, &next) == TUTTI_OK);
    RANKS_CHECK(tutti_work_wait_stream(late, life->b) == TUTTI_OK);
    RANKS_CHECK(tutti_work_wait_host(late, RANKS_TIMEOUT_MS) == TUTTI_ERR_TIMEOUT);
    RANKS_CHECK(strstr(tutti_last_error(), "stream of rank 0"));
    tutti_work_destroy(late);
    RANKS_CHECK(pg_end(next) == TUTTI_OK);
    RANKS_CHECK(gpu_stream_synchronize(life->b));
    RANKS_CHECK(holds(life, life->copy, SHORT, (float)ranks->size));
    pg_brake_release(&brake);
    RANKS_CHECK(gpu_stream_synchronize(life->a));
    RANKS_CHECK(gpu_copy(life->host, life->data, sizeof *life->data));
    RANKS_CHECK(life->host[0] == (float)rank);
    return 0;
}

/* Several tensors, on all devices; rank 0 has one tensor more than the others. They use the
 * devices' default streams, unless ranks would share those. */
static int several_devices(struct life *life)
{
    struct ranks *ranks = life->ranks;
    const int rank = life->rank, own = rank == 0 ? TENSORS : TENSORS - 1;
    const tutti_stream_t stream = ranks->processes ? TUTTI_STREAM_DEFAULT : life->b;
    const struct tutti_pg_call_options options = {
        .struct_size = sizeof options, .tag = 30, .stream = stream};
    const int64_t size = TENSOR;
    struct tutti_tensor tensors[TENSORS];
    tutti_work_t *work;
    float sum = 0;
    for (int i = 0; i < own; i++) {
        RANKS_CHECK(gpu_bind(pg_cuda_device(rank, i)));
        float *data = pg_cuda_arena_take(&life->tensors[i], TENSOR * sizeof *data);
        RANKS_CHECK(data && fill(life, data, TENSOR, 0));
        tensors[i] = pg_cuda_vector(data, &size, pg_cuda_device(rank, i));
    }
    RANKS_CHECK(tutti_pg_all_reduce(life->pg, tensors, own, TUTTI_SUM, &options, &work) ==
                TUTTI_OK);
    RANKS_CHECK(tutti_work_wait_stream(work, stream) == TUTTI_OK);
    RANKS_CHECK(pg_end(work) == TUTTI_OK);
    sum = (float)(ranks->size * (TENSORS - 1) + 1);
    for (int i = 0; i < own; i++) {
        RANKS_CHECK(gpu_bind(tensors[i].device_index));
        RANKS_CHECK(gpu_copy(life->host, tensors[i].data, TENSOR * sizeof(float)));
        for (int k = 0; k < TENSOR; k++)
            RANKS_CHECK(life->host[k] == sum * (float)(k % 10));
    }
    RANKS_CHECK(pg_cuda_bind(rank));
    return 0;
}

/* A small tensor, of all ranks but 0 on another device than the rank's: it goes through the host on
 * all ranks, also if the group is of a CUDA communicator. */
static int other_device(struct life *life)
{
    struct ranks *ranks = life->ranks;
    const int rank = life->rank, arena = rank ? 1 : 0;
    struct life other = *life;
    tutti_work_t *work;
    other.device = pg_cuda_device(rank, arena);
    RANKS_CHECK(gpu_bind(other.device));
    float *data = pg_cuda_arena_take(&life->tensors[arena], SHORT * sizeof *data);
    RANKS_CHECK(data && fill(life, data, SHORT, (float)(rank + 1)));
    RANKS_CHECK(submit(&other, data, SHORT, 60, 0, life->a, &work) == TUTTI_OK);
    RANKS_CHECK(pg_end(work) == TUTTI_OK);
    RANKS_CHECK(holds(life, data, SHORT, ranks_sum(ranks)));
    RANKS_CHECK(pg_cuda_bind(rank));
    return 0;
}

/* An operation without elements is an operation, too: the host does not wait for the other
 * ranks. */
static int empty(struct life *life)
{
    struct ranks *ranks = life->ranks;
    const int rank = life->rank;
    tutti_work_t *work;
    if (rank)
        RANKS_CHECK(ranks_await(ranks, 3, 1));
    RANKS_CHECK(submit(life, NULL, 0, 50, 0, life->a, &work) == TUTTI_OK);
    RANKS_CHECK(tutti_work_wait_stream(work, life->b) == TUTTI_OK);
    if (rank == 0)
        ranks_raise(ranks, 3);
    RANKS_CHECK(gpu_stream_synchronize(life->b));
    RANKS_CHECK(pg_end(work) == TUTTI_OK);
    return 0;
}

static int refusals(struct life *life)
{
    struct ranks *ranks = life->ranks;
    const int rank = life->rank;
    const int64_t size = 10;
    float here[10] = {0};
    struct tutti_tensor tensors[2] = {pg_cuda_vector(here, &size, life->device),
                                      pg_vector(here, &size)};
    tutti_work_t *work;
    void *graph;
    RANKS_CHECK(tutti_pg_all_reduce(life->pg, tensors, 1, TUTTI_SUM, NULL, &work) ==
                TUTTI_ERR_INVALID);
    RANKS_CHECK(!work && strstr(tutti_last_error(), "is host memory"));
    tensors[0].data = life->data;
    RANKS_CHECK(tutti_pg_all_reduce(life->pg, tensors, 2, TUTTI_SUM, NULL, &work) ==
                TUTTI_ERR_INVALID);
    RANKS_CHECK(strstr(tutti_last_error(), "one kind of device"));
    if (gpu_count() > 1) {
        char names[2][32];
        tensors[0].device_index = pg_cuda_device(life->device, 1);
        RANKS_CHECK(tutti_pg_all_reduce(life->pg, tensors, 1, TUTTI_SUM, NULL, &work) ==
                    TUTTI_ERR_INVALID);
        snprintf(names[0], sizeof names[0], "memory of device %d", life->device);
        snprintf(names[1], sizeof names[1], "names device %d", tensors[0].device_index);
        RANKS_CHECK(strstr(tutti_last_error(), names[0]) && strstr(tutti_last_error(), names[1]));
    }
    tensors[0].device_index = 1000;
    RANKS_CHECK(tutti_pg_all_reduce(life->pg, tensors, 1, TUTTI_SUM, NULL, &work) ==
                TUTTI_ERR_INVALID);
    RANKS_CHECK(strstr(tutti_last_error(), "device 1000"));
    const struct tutti_pg_call_options options = {.struct_size = sizeof options, .stream = life->a};
    RANKS_CHECK(tutti_pg_all_reduce(life->pg, &tensors[1], 1, TUTTI_SUM, &options, &work) ==
                TUTTI_ERR_INVALID);
    RANKS_CHECK(gpu_capture_begin(life->a));
    RANKS_CHECK(submit(life, life->data, 10, 0, 0, life->a, &work) == TUTTI_ERR_DECLINED);
    RANKS_CHECK(strstr(tutti_last_error(), "captured"));
    RANKS_CHECK((graph = gpu_capture_end(life->a)) != NULL);
    gpu_graph_destroy(graph);
    RANKS_CHECK(gpu_fill(life->data, 0, 40));
    RANKS_CHECK(submit(life, life->data, 10, 0, 0, life->a, &work) == TUTTI_OK);
    RANKS_CHECK(tutti_work_sequence(work) == 1 && pg_end(work) == TUTTI_OK);
    return 0;
}

/* Rank 0 has a CUDA tensor, the others a CPU tensor. */
static int mismatch(struct life *life)
{
    struct ranks *ranks = life->ranks;
    const int rank = life->rank;
    const int64_t size = 10;
    float here[10] = {0};
    struct tutti_tensor tensor = pg_vector(here, &size);
    const struct tutti_pg_call_options options = {.struct_size = sizeof options, .tag = 40};
    tutti_work_t *work;
    if (rank == 0)
        tensor = pg_cuda_vector(life->data, &size, life->device);
    RANKS_CHECK(tutti_pg_all_reduce(life->pg, &tensor, 1, TUTTI_SUM, &options, &work) == TUTTI_OK);
    RANKS_CHECK(tutti_work_wait_host(work, RANKS_TIMEOUT_MS) ==
                (ranks->size > 1 ? TUTTI_ERR_MISMATCH : TUTTI_OK));
    RANKS_CHECK(ranks->size == 1 || strstr(tutti_last_error(), "on CUDA devices"));
    tutti_work_destroy(work);
    ranks_raise(ranks, 0); /* no rank leaves before all have got the error */
    RANKS_CHECK(ranks_await(ranks, 0, (uint32_t)ranks->size));
    return 0;
}

static int live(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct life life;
    int failed = open_life(&life, ranks, rank, store);
    if (!failed)
        failed = refusals(&life);
    if (!failed)
        failed = other_device(&life);
    for (int i = 0; i < 3 && !failed; i++)
        failed = late_input(&life, i == 1 ? LONG : SHORT);
    if (!failed)
        failed = held_tag(&life);
    if (!failed)
        failed = time_out(&life);
    if (!failed)
        failed = empty(&life);
    if (!failed)
        failed = several_devices(&life);
    if (!failed)
        failed = mismatch(&life);
    close_life(&life);
    return failed;
}

/* One of the operations in flight waits for its input, another one for the other ranks; streams
 * that wait for them are released. The group's first operation allocates memory and loads code
 * before, since CUDA may wait for blocked streams then. A CUDA communicator frees memory, for which
 * CUDA waits until no stream is blocked: with it no stream is. */
static int destroyed(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct pg_brake brake;
    struct life life;
    tutti_work_t *held, *alone = NULL;
    int failed = open_life(&life, ranks, rank, store);
    if (failed)
        return failed;
    RANKS_CHECK(submit(&life, life.data, SHORT, 1, 0, life.a, &held) == TUTTI_OK);
    RANKS_CHECK(pg_end(held) == TUTTI_OK);
    RANKS_CHECK(direct || pg_brake_put(&brake, life.a));
    const uint32_t tag = direct ? 10 + (uint32_t)rank : 1; /* in both cases it does not begin */
    RANKS_CHECK(submit(&life, life.data, SHORT, tag, 0, life.a, &held) == TUTTI_OK);
    if (rank == 0)
        RANKS_CHECK(submit(&life, life.copy, SHORT, 2, NEVER_MS, life.b, &alone) == TUTTI_OK);
    RANKS_CHECK(tutti_work_wait_stream(held, life.b) == TUTTI_OK);
    RANKS_CHECK(!alone || tutti_work_wait_stream(alone, life.b) == TUTTI_OK);
    ranks_raise(ranks, 1);
    RANKS_CHECK(ranks_await(ranks, 1, (uint32_t)ranks->size));
    tutti_pg_destroy(life.pg);
    life.pg = NULL;
    RANKS_CHECK(gpu_stream_synchronize(life.b));
    enum tutti_status status = tutti_work_wait_host(held, -1);
    RANKS_CHECK(status == TUTTI_ERR_ABORTED || status == TUTTI_ERR_PEER_DEAD);
    tutti_work_destroy(held);
    tutti_work_destroy(alone);
    pg_brake_release(&brake);
    RANKS_CHECK(gpu_stream_synchronize(life.a));
    RANKS_CHECK(ranks_meet(ranks, 4)); /* no rank frees memory while another has a brake on */
    close_life(&life);
    return 0;
}

/* The last rank is killed; the others' operation ends, and streams that wait for it are
 * released. */
static int killed(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct life life;
    tutti_work_t *work;
    if (!ranks->processes || ranks->size == 1)
        return 0;
    ranks->expendable = UINT64_C(1) << (ranks->size - 1);
    int failed = open_life(&life, ranks, rank, store);
    if (failed)
        return failed;
    RANKS_CHECK(submit(&life, life.data, SHORT, 1, 0, life.a, &work) == TUTTI_OK);
    RANKS_CHECK(pg_end(work) == TUTTI_OK);
    if (rank == ranks->size - 1) {
        RANKS_CHECK(ranks_await(ranks, 2, (uint32_t)ranks->size - 1));
        kill(getpid(), SIGKILL);
    }
    RANKS_CHECK(submit(&life, life.data, SHORT, 1, NEVER_MS, life.a, &work) == TUTTI_OK);
    ranks_raise(ranks, 2);
    RANKS_CHECK(tutti_work_wait_stream(work, life.b) == TUTTI_OK);
    RANKS_CHECK(tutti_work_wait_host(work, RANKS_TIMEOUT_MS) == TUTTI_ERR_PEER_DEAD);
    RANKS_CHECK(gpu_stream_synchronize(life.b));
    tutti_work_destroy(work);
    close_life(&life);
    return 0;
}

/* Rank 0 frees memory while a stream waits for its work. CUDA then waits for that stream and starts
 * no copies, for which the stream waits. The stream goes on at the operation's time-out, and the
 * work reports why. On the other ranks, whose peer came late, the operation may succeed. */
static int freed(struct ranks *ranks, int rank, tutti_store_t *store)
{
    enum { SHORT_MS = 4000, AHEAD_US = 500000 };
    struct life life;
    tutti_work_t *work;
    if (ranks->size != 2)
        return 0;
    int failed = open_life(&life, ranks, rank, store);
    if (failed)
        return failed;
    void *spare = gpu_alloc(LONG);
    RANKS_CHECK(submit(&life, life.data, LONG, 1, 0, life.a, &work) == TUTTI_OK);
    RANKS_CHECK(spare && pg_end(work) == TUTTI_OK);
    if (rank > 0) {
        RANKS_CHECK(ranks_await(ranks, 3, 1));
        usleep(AHEAD_US);
    }
    const int64_t timeout_ms = rank ? NEVER_MS : SHORT_MS;
    RANKS_CHECK(submit(&life, life.data, LONG, 1, timeout_ms, life.a, &work) == TUTTI_OK);
    if (rank == 0) {
        RANKS_CHECK(tutti_work_wait_stream(work, life.b) == TUTTI_OK);
        ranks_raise(ranks, 3);
    }
    gpu_free(spare);
    enum tutti_status status = tutti_work_wait_host(work, RANKS_TIMEOUT_MS);
    RANKS_CHECK(status == TUTTI_ERR_TIMEOUT || (rank && status == TUTTI_OK));
    RANKS_CHECK(rank || strstr(tutti_last_error(), "cuMemFree"));
    tutti_work_destroy(work);
    close_life(&life);
    return 0;
}

int main(int argc, char **argv)
{
    static ranks_fn *const parts[] = {live, destroyed, killed, freed};
    int skip = pg_cuda_skip();
    direct = argc > 2 && strcmp(argv[2], "direct") == 0;
    if (direct && !skip)
        return pg_cuda_main_direct(strcmp(argv[1], "processes") == 0, parts, 4);
    return skip ? skip : pg_main(argc, argv, 1, parts, 4);
}
