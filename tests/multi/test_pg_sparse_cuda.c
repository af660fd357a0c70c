/* SPDX-License-Identifier: MIT */
/*
 * Sparse sums of CUDA tensors: when the entries are read, when streams wait for the result, errors
 * that are found only once the indices are on the host, sums that end before their data is
 * exchanged, and who owns the result's memory.
 *
 * usage: test_pg_sparse_cuda processes|threads
 */
#include "pg_cuda.h"

#include <string.h>

enum {
    SOON_MS = 50,
    MANY = 30,
    WIDTH = 8,
    NEVER_MS = 30000, /* a limit for operations that must not complete */
};

/* The state of one rank. Each rank has one entry of its own and one that all ranks have. */
struct life {
    struct ranks *ranks;
    int rank, device;
    tutti_comm_t *comm;
    tutti_pg_t *pg;
    tutti_stream_t a, b;
    int64_t *indices, *late_indices; /* on the device, 2 */
    float *values, *late_values;     /* and 2 rows */
};

static const int64_t sizes[2] = {PG_ROWS, WIDTH};

static struct tutti_sparse_tensor tensor_of(const struct life *life, const int64_t *indices,
                                            const float *values, size_t nnz)
{
    return (struct tutti_sparse_tensor){.struct_size = sizeof(struct tutti_sparse_tensor),
                                        .dtype = TUTTI_FLOAT32,
                                        .device = TUTTI_DEVICE_CUDA,
                                        .device_index = life->device,
                                        .sparse_dim = 1,
                                        .dense_dim = 1,
                                        .sizes = sizes,
                                        .nnz = nnz,
                                        .indices = indices,
                                        .values = values};
}

static enum tutti_status submit(const struct life *life, const struct tutti_sparse_tensor *tensor,
                                uint32_t tag, int64_t timeout_ms, tutti_stream_t stream,
                                tutti_work_t **work)
{
    const struct tutti_pg_call_options options = {
        .struct_size = sizeof options, .tag = tag, .timeout_ms = timeout_ms, .stream = stream};
    return tutti_pg_all_reduce_sparse(life->pg, tensor, 1, &options, work);
}

/* The rank's own entry, of rank + 1, and the last one, of 1. */
static bool fill(const struct life *life, int64_t *indices, float *values)
{
    const int64_t own[2] = {PG_ROWS - 1, life->rank};
    float rows[2 * WIDTH];
    for (int i = 0; i < 2 * WIDTH; i++)
        rows[i] = i < WIDTH ? 1 : (float)(life->rank + 1);
    return gpu_copy(indices, own, sizeof own) && gpu_copy(values, rows, sizeof rows);
}

/* Whether it is the sum of all ranks' that fill() makes, of memory on the device. */
static bool is_sum(const struct life *life, size_t nnz, const int64_t *indices, const float *values)
{
    const size_t size = (size_t)life->ranks->size;
    int64_t at[TUTTI_MAX_RANKS + 1];
    float rows[(TUTTI_MAX_RANKS + 1) * WIDTH];
    if (nnz != size + 1 || !gpu_copy(at, indices, nnz * sizeof *at) ||
        !gpu_copy(rows, values, nnz * WIDTH * sizeof *rows))
        return false;
    for (size_t i = 0; i < nnz; i++)
        for (size_t k = 0; k < WIDTH; k++)
            if (at[i] != (int64_t)(i < size ? i : PG_ROWS - 1) ||
                rows[i * WIDTH + k] != (float)(i < size ? i + 1 : size))
                return false;
    return true;
}

static bool result_is_sum(const struct life *life, tutti_work_t *work)
{
    struct tutti_sparse_tensor result = {.struct_size = sizeof result};
    return tutti_work_sparse_result(work, &result) == TUTTI_OK &&
           result.device == TUTTI_DEVICE_CUDA && result.device_index == life->device &&
           is_sum(life, result.nnz, result.indices, result.values);
}

static int open_life(struct life *life, struct ranks *ranks, int rank, tutti_store_t *store)
{
    *life = (struct life){.ranks = ranks, .rank = rank};
    RANKS_CHECK(pg_cuda_bind(rank));
    life->device = pg_cuda_device(rank, 0);
    RANKS_CHECK(gpu_stream_create(&life->a) && gpu_stream_create(&life->b));
    RANKS_CHECK((life->indices = gpu_alloc(2 * sizeof *life->indices)) != NULL);
    RANKS_CHECK((life->values = gpu_alloc(2 * WIDTH * sizeof *life->values)) != NULL);
    RANKS_CHECK((life->late_indices = gpu_alloc(2 * sizeof *life->indices)) != NULL);
    RANKS_CHECK((life->late_values = gpu_alloc(2 * WIDTH * sizeof *life->values)) != NULL);
    RANKS_CHECK(fill(life, life->indices, life->values));
    /* CUDA may wait for the kernels of other ranks while it allocates, so it is done before. */
    RANKS_CHECK(pg_join(ranks, rank, store, &life->comm, &life->pg) == TUTTI_OK);
    return 0;
}

static void close_life(struct life *life)
{
    pg_part(life->comm, life->pg);
    gpu_stream_destroy(life->a);
    gpu_stream_destroy(life->b);
    gpu_free(life->indices);
    gpu_free(life->values);
    gpu_free(life->late_indices);
    gpu_free(life->late_values);
}

/* The entries, and their indices, are written late on the caller's stream: the operation reads them
 * after that. A stream that waits for the work, before it has begun, finds it done. */
static int late_input(struct life *life)
{
    struct ranks *ranks = life->ranks;
    const int rank = life->rank;
    const size_t bytes = 2 * WIDTH * sizeof *life->values;
    const struct tutti_sparse_tensor tensor =
        tensor_of(life, life->late_indices, life->late_values, 2);
    struct tutti_sparse_tensor result = {.struct_size = sizeof result};
    struct pg_brake brake;
    tutti_work_t *work;
    bool done = true;
    RANKS_CHECK(gpu_fill(life->late_indices, 0x7f, 2 * sizeof *life->indices));
    RANKS_CHECK(gpu_fill(life->late_values, 0x7f, bytes));
    RANKS_CHECK(pg_brake_put(&brake, life->a));
    RANKS_CHECK(
        gpu_copy_async(life->late_indices, life->indices, 2 * sizeof *life->indices, life->a));
    RANKS_CHECK(gpu_copy_async(life->late_values, life->values, bytes, life->a));
    RANKS_CHECK(submit(life, &tensor, 1, 0, life->a, &work) == TUTTI_OK);
    RANKS_CHECK(tutti_work_wait_stream(work, life->b) == TUTTI_OK);
    RANKS_CHECK(tutti_work_wait_host(work, SOON_MS) == TUTTI_ERR_TIMEOUT);
    RANKS_CHECK(tutti_work_test(work, &done) == TUTTI_OK && !done);
    RANKS_CHECK(tutti_work_sparse_result(work, &result) == TUTTI_ERR_INVALID);
    pg_brake_release(&brake);
    RANKS_CHECK(gpu_stream_synchronize(life->b));
    RANKS_CHECK(tutti_work_wait_host(work, RANKS_TIMEOUT_MS) == TUTTI_OK);
    RANKS_CHECK(result_is_sum(life, work));
    tutti_work_destroy(work);
    RANKS_CHECK(gpu_stream_synchronize(life->a));
    return 0;
}

/* An index outside the sizes on one rank ends the operation on all ranks, with that rank named. */
static int index_outside(struct life *life)
{
    struct ranks *ranks = life->ranks;
    const int rank = life->rank, culprit = ranks->size - 1;
    const int64_t outside[2] = {3, PG_ROWS};
    const struct tutti_sparse_tensor tensor =
        tensor_of(life, life->late_indices, life->late_values, 2);
    struct tutti_sparse_tensor result = {.struct_size = sizeof result};
    struct tutti_fault fault = {.struct_size = sizeof fault};
    char name[] = "rank 0";
    tutti_work_t *work;
    name[5] = (char)('0' + culprit);
    RANKS_CHECK(fill(life, life->late_indices, life->late_values));
    if (rank == culprit)
        RANKS_CHECK(gpu_copy(life->late_indices, outside, sizeof outside));
    RANKS_CHECK(submit(life, &tensor, 2, 0, life->a, &work) == TUTTI_OK);
    RANKS_CHECK(tutti_work_wait_host(work, RANKS_TIMEOUT_MS) == TUTTI_ERR_INVALID);
    RANKS_CHECK(strstr(tutti_last_error(), name));
    RANKS_CHECK(rank != culprit || strstr(tutti_last_error(), "entry 1 of a sparse tensor has "
                                                              "index 1000"));
    RANKS_CHECK(tutti_work_fault(work, &fault) == TUTTI_ERR_INVALID && fault.peer == culprit);
    RANKS_CHECK(tutti_work_sparse_result(work, &result) == TUTTI_ERR_INVALID);
    tutti_work_destroy(work);
    RANKS_CHECK(pg_goes_on_sparse(life->pg, 2, rank, ranks->size)); /* of the CPU */
    return 0;
}

/* Results in flight, and results kept by works; the memory of destroyed works is reused. */
static int many(struct life *life)
{
    struct ranks *ranks = life->ranks;
    const int rank = life->rank;
    const struct tutti_sparse_tensor tensor = tensor_of(life, life->indices, life->values, 2);
    const struct tutti_sparse_tensor none = tensor_of(life, NULL, NULL, 0);
    struct tutti_sparse_tensor result = {.struct_size = sizeof result};
    tutti_work_t *works[MANY], *empty;
    for (int turn = 0; turn < 3; turn++) {
        for (int i = 0; i < MANY; i++)
            RANKS_CHECK(submit(life, &tensor, (uint32_t)i % 4, 0, i % 2 ? life->a : life->b,
                               &works[i]) == TUTTI_OK);
        RANKS_CHECK(submit(life, &none, 5, 0, life->a, &empty) == TUTTI_OK);
        for (int i = 0; i < MANY; i++)
            RANKS_CHECK(tutti_work_wait_host(works[i], RANKS_TIMEOUT_MS) == TUTTI_OK);
        for (int i = 0; i < MANY; i++) {
            RANKS_CHECK(result_is_sum(life, works[i]));
            tutti_work_destroy(works[i]);
        }
        RANKS_CHECK(tutti_work_wait_host(empty, RANKS_TIMEOUT_MS) == TUTTI_OK);
        RANKS_CHECK(tutti_work_sparse_result(empty, &result) == TUTTI_OK && result.nnz == 0);
        tutti_work_destroy(empty);
    }
    return 0;
}

/* Rank 0's stream does not reach the call in time: the sum ends on all ranks, and the tag goes
 * on. */
static int time_out(struct life *life)
{
    struct ranks *ranks = life->ranks;
    const int rank = life->rank;
    const struct tutti_sparse_tensor tensor = tensor_of(life, life->indices, life->values, 2);
    struct pg_brake brake = {.go = 1};
    tutti_work_t *late, *next;
    if (rank == 0)
        RANKS_CHECK(pg_brake_put(&brake, life->a));
    RANKS_CHECK(submit(life, &tensor, 20, rank ? 0 : SOON_MS, life->a, &late) == TUTTI_OK);
    RANKS_CHECK(submit(life, &tensor, 20, 0, life->b, &next) == TUTTI_OK);
    RANKS_CHECK(tutti_work_wait_host(late, RANKS_TIMEOUT_MS) == TUTTI_ERR_TIMEOUT);
    RANKS_CHECK(strstr(tutti_last_error(), "stream of rank 0"));
    tutti_work_destroy(late);
    RANKS_CHECK(tutti_work_wait_host(next, RANKS_TIMEOUT_MS) == TUTTI_OK);
    pg_brake_release(&brake);
    RANKS_CHECK(gpu_stream_synchronize(life->a));
    RANKS_CHECK(result_is_sum(life, next));
    tutti_work_destroy(next);
    return 0;
}

static bool refuses(const struct life *life, const struct tutti_sparse_tensor *tensors, int count,
                    const char *text)
{
    tutti_work_t *work = (tutti_work_t *)(uintptr_t)life;
    return tutti_pg_all_reduce_sparse(life->pg, tensors, count, NULL, &work) == TUTTI_ERR_INVALID &&
           !work && strstr(tutti_last_error(), text);
}

static int refusals(struct life *life)
{
    struct ranks *ranks = life->ranks;
    const int rank = life->rank;
    const int64_t index = 0;
    const float row[WIDTH] = {0};
    const struct tutti_sparse_tensor good = tensor_of(life, life->indices, life->values, 2);
    struct tutti_sparse_tensor tensors[2] = {good, good};
    tutti_work_t *work;
    void *graph;
    tensors[0].indices = &index;
    RANKS_CHECK(refuses(life, tensors, 1, "its indices: 0x"));
    tensors[0] = good, tensors[0].values = row;
    RANKS_CHECK(refuses(life, tensors, 1, "its values: 0x") &&
                strstr(tutti_last_error(), "is host memory"));
    tensors[0] = good, tensors[0].device_index = 1000;
    RANKS_CHECK(refuses(life, tensors, 1, "device 1000"));
    tensors[0] = good, tensors[0].indices = NULL;
    RANKS_CHECK(refuses(life, tensors, 1, "NULL"));
    tensors[0] = good, tensors[1].device = TUTTI_DEVICE_CPU, tensors[1].nnz = 0;
    RANKS_CHECK(refuses(life, tensors, 2, "one kind"));
    if (gpu_count() > 1) {
        tensors[0] = good, tensors[0].device_index = pg_cuda_device(life->device, 1);
        RANKS_CHECK(refuses(life, tensors, 1, "the tensor names device"));
    }
    RANKS_CHECK(gpu_capture_begin(life->a));
    RANKS_CHECK(submit(life, &good, 0, 0, life->a, &work) == TUTTI_ERR_DECLINED && !work);
    RANKS_CHECK(strstr(tutti_last_error(), "captured"));
    RANKS_CHECK((graph = gpu_capture_end(life->a)) != NULL);
    gpu_graph_destroy(graph);
    return 0;
}

/* Rank 0 has a CUDA tensor, the others a CPU tensor. */
static int mismatch(struct life *life)
{
    struct ranks *ranks = life->ranks;
    const int rank = life->rank;
    struct tutti_sparse_tensor tensor = tensor_of(life, NULL, NULL, 0);
    tutti_work_t *work;
    if (rank)
        tensor.device = TUTTI_DEVICE_CPU;
    RANKS_CHECK(submit(life, &tensor, 40, 0, TUTTI_STREAM_DEFAULT, &work) == TUTTI_OK);
    RANKS_CHECK(tutti_work_wait_host(work, RANKS_TIMEOUT_MS) ==
                (ranks->size > 1 ? TUTTI_ERR_MISMATCH : TUTTI_OK));
    RANKS_CHECK(ranks->size == 1 || strstr(tutti_last_error(), "on CUDA devices"));
    tutti_work_destroy(work);
    return 0;
}

static int live(struct ranks *ranks, int rank, tutti_store_t *store)
{
    static int (*const parts[])(struct life * life) = {refusals,      late_input, many,
                                                       index_outside, time_out,   mismatch};
    const struct tutti_sparse_tensor *none = NULL;
    struct life life;
    tutti_work_t *work;
    int failed = open_life(&life, ranks, rank, store);
    for (size_t i = 0; i < sizeof parts / sizeof *parts && !failed; i++)
        failed = parts[i](&life);
    if (failed)
        return failed;
    RANKS_CHECK(tutti_pg_all_reduce_sparse(life.pg, none, 1, NULL, &work) == TUTTI_ERR_INVALID);
    /* The result outlives group and communicator. */
    const struct tutti_sparse_tensor tensor = tensor_of(&life, life.indices, life.values, 2);
    RANKS_CHECK(submit(&life, &tensor, 0, 0, life.a, &work) == TUTTI_OK);
    RANKS_CHECK(tutti_work_wait_host(work, RANKS_TIMEOUT_MS) == TUTTI_OK);
    ranks_raise(ranks, 0); /* no rank leaves before all have got the error */
    RANKS_CHECK(ranks_await(ranks, 0, (uint32_t)ranks->size));
    close_life(&life);
    RANKS_CHECK(result_is_sum(&life, work));
    tutti_work_destroy(work);
    return 0;
}

/* One of the sums in flight waits for its entries, another one for the other ranks. */
static int destroyed(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct pg_brake brake;
    struct life life;
    tutti_work_t *held, *alone = NULL;
    int failed = open_life(&life, ranks, rank, store);
    if (failed)
        return failed;
    const struct tutti_sparse_tensor tensor = tensor_of(&life, life.indices, life.values, 2);
    /* The first sum allocates memory and loads code, before a stream is blocked. */
    RANKS_CHECK(submit(&life, &tensor, 1, 0, life.a, &held) == TUTTI_OK);
    RANKS_CHECK(pg_end(held) == TUTTI_OK);
    RANKS_CHECK(pg_brake_put(&brake, life.a));
    RANKS_CHECK(submit(&life, &tensor, 1, 0, life.a, &held) == TUTTI_OK);
    if (rank == 0)
        RANKS_CHECK(submit(&life, &tensor, 2, NEVER_MS, life.b, &alone) == TUTTI_OK);
    ranks_raise(ranks, 1);
    RANKS_CHECK(ranks_await(ranks, 1, (uint32_t)ranks->size));
    tutti_pg_destroy(life.pg);
    life.pg = NULL;
    enum tutti_status status = tutti_work_wait_host(held, -1);
    RANKS_CHECK(status == TUTTI_ERR_ABORTED || status == TUTTI_ERR_PEER_DEAD);
    tutti_work_destroy(held);
    tutti_work_destroy(alone);
    pg_brake_release(&brake);
    RANKS_CHECK(gpu_stream_synchronize(life.a));
    RANKS_CHECK(ranks_meet(ranks, 2)); /* no rank frees memory while another has a brake on */
    close_life(&life);
    return 0;
}

int main(int argc, char **argv)
{
    int skip = pg_cuda_skip();
    return skip ? skip : pg_main(argc, argv, 1, (ranks_fn *const[]){live, destroyed}, 2);
}
