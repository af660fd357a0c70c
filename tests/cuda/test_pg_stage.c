/* SPDX-License-Identifier: MIT */
/*
 * A process group's staging over the stand-in: each call of the driver fails in turn. Every
 * operation ends, every waiting thread returns, results of operations that succeed are right, and
 * nothing is left. Then: words that streams write after the work and the group have ended, and a
 * result that comes late.
 */
#include "cuda/pipe/stage_internal.h"
#include "failing_calls.h"
#include "pg.h"

#include <pthread.h>

enum {
    SMALL = 1000,
    LARGE = (2 << 20) / 4 + 5, /* several pieces */
    SHORT_MS = 150,            /* for ranks whose peer does not come */
    DONE = 0,                  /* a flag */
};

static struct tutti_tensor tensor_of(float *data, const int64_t *size, int device)
{
    struct tutti_tensor tensor = pg_vector(data, size);
    tensor.device = TUTTI_DEVICE_CUDA;
    tensor.device_index = device;
    return tensor;
}

/* Whether an operation that a call of the driver has spoilt may end so. */
static bool is_end(enum tutti_status status)
{
    return status == TUTTI_OK || status == TUTTI_ERR_CUDA || status == TUTTI_ERR_TIMEOUT ||
           status == TUTTI_ERR_PEER_DEAD || status == TUTTI_ERR_NO_MEMORY ||
           status == TUTTI_ERR_ABORTED ||
           status == TUTTI_ERR_INVALID; /* an address that the driver does not know */
}

/* Sums ones, and has a stream wait. Whether that came out as it may. */
static bool sum(tutti_pg_t *pg, float *data, int64_t count, int rank, uint32_t tag)
{
    const struct tutti_tensor tensor = tensor_of(data, &count, rank);
    const struct tutti_pg_call_options options = {
        .struct_size = sizeof options, .tag = tag, .timeout_ms = SHORT_MS};
    tutti_work_t *work;
    for (int64_t i = 0; i < count; i++)
        data[i] = 1;
    enum tutti_status status = tutti_pg_all_reduce(pg, &tensor, 1, TUTTI_SUM, &options, &work);
    if (status != TUTTI_OK)
        return is_end(status) && !work;
    (void)tutti_work_wait_stream(work, TUTTI_STREAM_DEFAULT);
    status = tutti_work_wait_host(work, RANKS_TIMEOUT_MS);
    tutti_work_destroy(work);
    for (int64_t i = 0; i < count && status == TUTTI_OK; i++)
        if (data[i] != 2)
            return false;
    return is_end(status);
}

static int once(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct failing_calls_outcome *outcome = (struct failing_calls_outcome *)(void *)ranks->shared;
    tutti_comm_t *comm;
    tutti_pg_t *pg;
    if (!device_enter(rank)) { /* which is no concern of the library */
        outcome->whole[rank] = 1;
        return 0;
    }
    RANKS_CHECK(pg_join(ranks, rank, store, &comm, &pg) == TUTTI_OK);
    float *data = device_alloc(LARGE * sizeof *data);
    bool good = sum(pg, data, SMALL, rank, 1);
    good &= sum(pg, data, LARGE, rank, 2);
    good &= sum(pg, data, SMALL, rank, 3);
    /* What cannot enter its context any more cannot free what is there: that is no concern here. */
    ranks_raise(ranks, DONE);
    RANKS_CHECK(ranks_await(ranks, DONE, 2));
    standin_fail(NULL, 0, CUDA_SUCCESS);
    pg_part(comm, pg);
    device_free(data);
    outcome->whole[rank] = good;
    return good ? 0 : ranks_fail(ranks, rank, __FILE__, __LINE__, "an end as it may be");
}

static void blocks_free(const struct cuda_block *block)
{
    for (; block; block = block->next) {
        if (block->device >= 0)
            cuMemFree_v2((uintptr_t)block->memory);
        else
            cuMemFreeHost(block->memory);
    }
}

/* Frees what the library keeps for groups to come. */
static void stage_free(struct cuda_stage *stage)
{
    for (uint32_t i = 0; i < stage->context_count; i++) {
        const struct cuda_stage_context *context = &stage->contexts[i];
        CUcontext handle;
        cuCtxPushCurrent_v2(context->handle);
        for (const struct cuda_fence_page *page = stage->pages; page && i == 0; page = page->next)
            cuMemFreeHost(page->words);
        for (int d = 0; d < CUDA_DIRECTIONS && context->copies; d++)
            cuStreamDestroy_v2(context->flows[d].stream);
        if (context->copies)
            cuMemFreeHost(context->words);
        cuCtxPopCurrent_v2(&handle);
    }
    blocks_free(stage->idle);
    blocks_free(stage->lost);
    blocks_free(stage->results);
    cuda_stage_free(stage);
}

static size_t left_now(void)
{
    struct cuda_stage *stage;
    while ((stage = cuda_stage_take_kept()))
        stage_free(stage);
    return device_left();
}

/* After what streams have still to write. */
static size_t left(void)
{
    size_t count = left_now();
    for (int i = 0; i < 1000 && count; i++) {
        usleep(20000);
        count = left_now();
    }
    return count;
}

static int each_call_fails(void)
{
    static const char *const calls[] = {
        "cuCtxGetId",
        "cuCtxPushCurrent",
        "cuDeviceGetAttribute",
        "cuDeviceGetCount",
        "cuFuncLoad",
        "cuKernelGetFunction",
        "cuLaunchKernelEx",
        "cuLibraryGetKernel",
        "cuMemHostAlloc",
        "cuMemcpyAsync",
        "cuPointerGetAttributes",
        "cuStreamCreateWithPriority",
        "cuStreamGetCaptureInfo",
        "cuStreamWriteValue64",
    };
    const struct failing_calls all = {
        .once = once,
        .shared_bytes = sizeof(struct failing_calls_outcome),
        .calls = calls,
        .count = sizeof calls / sizeof *calls,
        .doubling = true,
        .left = left,
    };
    return failing_calls_run(&all);
}

static void stand_still(void *argument)
{
    const uint32_t *go = argument;
    while (!__atomic_load_n(go, __ATOMIC_ACQUIRE))
        usleep(100);
}

/* A group of one rank, whose device is current when it is made. */
struct alone {
    tutti_store_t *store;
    tutti_comm_t *comm;
    tutti_pg_t *pg;
};

static int alone_open(struct alone *alone, const char *url)
{
    CHECK(tutti_store_open(url, 1000, &alone->store) == TUTTI_OK);
    CHECK(tutti_comm_create(alone->store, 0, 1, NULL, &alone->comm) == TUTTI_OK);
    CHECK(tutti_pg_create(alone->comm, NULL, &alone->pg) == TUTTI_OK);
    return 0;
}

static void alone_close(const struct alone *alone)
{
    tutti_pg_destroy(alone->pg);
    tutti_comm_destroy(alone->comm);
    tutti_store_close(alone->store);
}

/* The caller's stream comes to the call, and a waiting one to its waiting kernel, long after. */
static int words_come_late(void)
{
    static const int64_t size = SMALL;
    static uint32_t go;
    struct alone alone;
    tutti_work_t *work;
    CUstream streams[2];
    CHECK(device_enter(0));
    float *data = device_alloc(SMALL * sizeof *data);
    const struct tutti_tensor tensor = tensor_of(data, &size, 0);
    CHECK(alone_open(&alone, "memory:late") == 0);
    const uint64_t loads = standin_calls("cuFuncLoad");
    for (int i = 0; i < 2; i++) {
        CHECK(cuStreamCreateWithPriority(&streams[i], CU_STREAM_NON_BLOCKING, 0) == CUDA_SUCCESS);
        CHECK(cuLaunchHostFunc(streams[i], stand_still, &go) == CUDA_SUCCESS);
    }
    const struct tutti_pg_call_options options = {.struct_size = sizeof options,
                                                  .stream = device_stream(streams[0])};
    CHECK(tutti_pg_all_reduce(alone.pg, &tensor, 1, TUTTI_SUM, &options, &work) == TUTTI_OK);
    for (int i = 0; i < 20; i++)
        CHECK(tutti_work_wait_stream(work, device_stream(streams[1])) == TUTTI_OK);
    CHECK(loads == 1 && standin_calls("cuFuncLoad") == loads); /* which waits for kernels */
    alone_close(&alone);
    CHECK(tutti_work_wait_host(work, 0) == TUTTI_ERR_ABORTED);
    CHECK(tutti_work_wait_stream(work, device_stream(streams[1])) == TUTTI_ERR_ABORTED);
    tutti_work_destroy(work);
    CHECK(left_now() != 0); /* the words */
    __atomic_store_n(&go, 1, __ATOMIC_RELEASE);
    for (int i = 0; i < 2; i++) {
        CHECK(cuStreamSynchronize(streams[i]) == CUDA_SUCCESS);
        cuStreamDestroy_v2(streams[i]);
    }
    device_free(data);
    CHECK(left() == 0);
    return 0;
}

static int sum_alone(const struct alone *alone, float *data)
{
    static const int64_t size = SMALL;
    const struct tutti_tensor tensor = tensor_of(data, &size, 0);
    tutti_work_t *work;
    CHECK(tutti_pg_all_reduce(alone->pg, &tensor, 1, TUTTI_SUM, NULL, &work) == TUTTI_OK);
    CHECK(tutti_work_wait_host(work, -1) == TUTTI_OK);
    tutti_work_destroy(work);
    return 0;
}

/* What one group has made serves the next one. It is not freed, since libcuda waits for all streams
 * when it frees. It goes with the device. */
static int used_again(void)
{
    enum { GROUPS = 20 };
    struct alone alone;
    CHECK(device_enter(0));
    float *data = device_alloc(SMALL * sizeof *data);
    uint64_t allocations = 0, frees = standin_calls("cuMemFreeHost");
    for (int i = 0; i < GROUPS; i++) {
        CHECK(alone_open(&alone, "memory:again") == 0 && sum_alone(&alone, data) == 0);
        alone_close(&alone);
        CHECK(i == 0 || standin_calls("cuMemHostAlloc") == allocations);
        allocations = standin_calls("cuMemHostAlloc");
    }
    CHECK(standin_calls("cuMemFreeHost") == frees);
    CHECK(cuDevicePrimaryCtxReset_v2(0) == CUDA_SUCCESS && device_enter(0));
    CHECK(alone_open(&alone, "memory:reset") == 0 && sum_alone(&alone, data) == 0);
    CHECK(standin_calls("cuMemHostAlloc") > allocations);
    alone_close(&alone);
    return 0;
}

static void *destroy(void *pg)
{
    tutti_pg_destroy(pg);
    return NULL;
}

/* A sum of one entry of one rank, whose result does not come to the device. */
static enum tutti_status sum_sparse(tutti_pg_t *pg, int64_t *index, float *value,
                                    tutti_work_t **work)
{
    static const int64_t size = 4;
    const struct tutti_sparse_tensor tensor = {.struct_size = sizeof tensor,
                                               .dtype = TUTTI_FLOAT32,
                                               .device = TUTTI_DEVICE_CUDA,
                                               .sparse_dim = 1,
                                               .sizes = &size,
                                               .nnz = 1,
                                               .indices = index,
                                               .values = value};
    *index = 2;
    *value = 1;
    standin_hold_copy(3); /* behind index and value */
    return tutti_pg_all_reduce_sparse(pg, &tensor, 1, NULL, work);
}

static bool is_under_way(tutti_work_t *work)
{
    struct tutti_sparse_tensor result = {.struct_size = sizeof result};
    return tutti_work_wait_host(work, SHORT_MS) == TUTTI_ERR_TIMEOUT &&
           tutti_work_sparse_result(work, &result) == TUTTI_ERR_INVALID;
}

/* The result of a sparse sum is there once it is on the device, and not at all of one that ended
 * before. */
static int result_comes_late(void)
{
    struct alone alone;
    tutti_work_t *work;
    struct tutti_sparse_tensor result = {.struct_size = sizeof result};
    pthread_t thread;
    CHECK(device_enter(0));
    int64_t *index = device_alloc(sizeof *index);
    float *value = device_alloc(sizeof *value);
    CHECK(alone_open(&alone, "memory:result") == 0);
    CHECK(sum_sparse(alone.pg, index, value, &work) == TUTTI_OK && is_under_way(work));
    standin_hold_copy(0);
    CHECK(tutti_work_wait_host(work, -1) == TUTTI_OK);
    CHECK(tutti_work_sparse_result(work, &result) == TUTTI_OK);
    CHECK(result.nnz == 1 && *result.indices == 2 && *(const float *)result.values == 1);
    tutti_work_destroy(work);
    CHECK(sum_sparse(alone.pg, index, value, &work) == TUTTI_OK && is_under_way(work));
    CHECK(pthread_create(&thread, NULL, destroy, alone.pg) == 0); /* which waits for the copy */
    CHECK(tutti_work_wait_host(work, -1) == TUTTI_ERR_ABORTED);
    CHECK(tutti_work_sparse_result(work, &result) == TUTTI_ERR_ABORTED);
    standin_hold_copy(0);
    CHECK(pthread_join(thread, NULL) == 0);
    tutti_work_destroy(work);
    alone.pg = NULL;
    alone_close(&alone);
    device_free(index);
    device_free(value);
    CHECK(left() == 0);
    return 0;
}

int main(void)
{
    device_setup();
    return words_come_late() || result_comes_late() || each_call_fails() || used_again();
}
