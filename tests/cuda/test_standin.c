/* SPDX-License-Identifier: MIT */
/*
 * The stand-in does what the tests of the host path rely on: its kernels reduce through the arenas,
 * fail as arena.h says, and are captured, replayed and owned as libcuda's.
 */
#include "standin.h"

#include "base/device_trace.h"
#include "base/order.h"
#include "base/signature.h"
#include "cuda/driver/kernels.h"
#include "cuda/driver/memory.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { RANKS = 3, COUNT_MAX = 40000 };

/* All ranks live here; each has a device and a stream, and the streams are threads. */
static struct rank {
    CUcontext context;
    CUstream stream;
    struct cuda_memory memory[RANKS]; /* every rank's arena as this one sees it */
    struct cuda_host *host;
    struct cuda_kernels kernels;
    CUdeviceptr data;
} ranks[RANKS];

static const struct cuda_driver *driver;

static void check(CUresult result)
{
    assert_int_equal(result, CUDA_SUCCESS);
}

static int open_ranks(void **state)
{
    (void)state;
    int fds[RANKS];
    setenv("TUTTI_CUDA_LIBRARY", STANDIN, 1);
    assert_int_equal(cuda_driver_open(&driver), TUTTI_OK);
    for (int r = 0; r < RANKS; r++) {
        struct rank *rank = &ranks[r];
        check(cuDevicePrimaryCtxRetain(&rank->context, r));
        check(cuCtxSetCurrent(rank->context));
        assert_int_equal(
            cuda_memory_create(driver, r, sizeof(struct cuda_arena), &rank->memory[r], &fds[r]),
            TUTTI_OK);
        check(cuStreamCreateWithPriority(&rank->stream, CU_STREAM_NON_BLOCKING, 0));
        check(cuMemHostAlloc((void **)&rank->host, sizeof(struct device_trace),
                             CU_MEMHOSTALLOC_DEVICEMAP));
        memset(rank->host, 0, sizeof(struct device_trace));
        check(cuMemAlloc_v2(&rank->data, COUNT_MAX * sizeof(float)));
        assert_int_equal(cuda_kernels_load(driver, 4, false, &rank->kernels), TUTTI_OK);
    }
    for (int r = 0; r < RANKS; r++)
        for (int peer = 0; peer < RANKS; peer++)
            if (peer != r)
                assert_int_equal(cuda_memory_map(driver, r, fds[peer], sizeof(struct cuda_arena),
                                                 &ranks[r].memory[peer]),
                                 TUTTI_OK);
    for (int r = 0; r < RANKS; r++)
        close(fds[r]);
    standin_forget();
    return 0;
}

static int close_ranks(void **state)
{
    (void)state;
    for (int r = 0; r < RANKS; r++) {
        struct rank *rank = &ranks[r];
        check(cuCtxSetCurrent(rank->context));
        check(cuStreamSynchronize(rank->stream));
        check(cuStreamDestroy_v2(rank->stream));
        check(cuMemFreeHost(rank->host));
        check(cuMemFree_v2(rank->data));
        for (int peer = 0; peer < RANKS; peer++)
            cuda_memory_unmap(driver, &rank->memory[peer]);
        check(cuDevicePrimaryCtxRelease_v2(r));
    }
    assert_int_equal(standin_late_loads(), 0);
    assert_int_equal(standin_left(), 0);
    return 0;
}

static struct cuda_launch launch_of(int r, uint64_t count, uint64_t timeout_ms)
{
    struct cuda_launch launch = {
        .host = ranks[r].host,
        .send = (const void *)(uintptr_t)ranks[r].data,
        .recv = (void *)(uintptr_t)ranks[r].data,
        .count = count,
        .signature = signature_pack(TUTTI_COLLECTIVE_ALL_REDUCE, TUTTI_FLOAT32, OP_SUM,
                                    TUTTI_ALGO_ONE_SHOT, count),
        .timeout_ns = timeout_ms * 1000000,
        .op = OP_SUM,
        .rank = r,
        .size = RANKS,
        .leaf = r,
        .tag = (uint32_t)count & 0xffff,
    };
    for (int leaf = 0; leaf < RANKS; leaf++)
        launch.ranks[launch_leaf(leaf, r)] = (uint8_t)leaf;
    for (int peer = 0; peer < RANKS; peer++)
        launch.arenas[peer] = (struct cuda_arena *)(uintptr_t)ranks[r].memory[peer].base;
    for (int p = 0; p < RANKS; p++)
        launch.peers[p] = launch.arenas[launch.ranks[p]];
    launch.own = launch.arenas[r];
    launch.control = &launch.own->control;
    return launch;
}

static void submit(int r, CUfunction function, struct cuda_launch *launch, unsigned blocks,
                   unsigned threads)
{
    void *parameters[] = {launch};
    CUlaunchConfig config = {.gridDimX = blocks,
                             .gridDimY = 1,
                             .gridDimZ = 1,
                             .blockDimX = threads,
                             .blockDimY = 1,
                             .blockDimZ = 1,
                             .hStream = ranks[r].stream};
    check(cuCtxSetCurrent(ranks[r].context));
    check(cuLaunchKernelEx(&config, function, parameters, NULL));
}

static void submit_sum(int r, uint64_t count, uint64_t timeout_ms)
{
    struct cuda_launch launch = launch_of(r, count, timeout_ms);
    submit(r, ranks[r].kernels.functions[CUDA_ONE_SHOT_LL][TUTTI_FLOAT32][CUDA_ANY], &launch, 4,
           128);
}

static float *data_of(int r)
{
    return (float *)(uintptr_t)ranks[r].data;
}

static void fill(uint64_t count)
{
    for (int r = 0; r < RANKS; r++)
        for (uint64_t i = 0; i < count; i++)
            data_of(r)[i] = (float)(i + (uint64_t)r);
}

static void synchronize(int r)
{
    check(cuCtxSetCurrent(ranks[r].context));
    check(cuStreamSynchronize(ranks[r].stream));
}

static void assert_sums(uint64_t count, float times)
{
    for (int r = 0; r < RANKS; r++)
        for (uint64_t i = 0; i < count; i++)
            if (data_of(r)[i] != (3 * (float)i + 3) * times)
                fail_msg("rank %d, element %d: %f", r, (int)i, (double)data_of(r)[i]);
}

static void sums_of_any_count(void **state)
{
    (void)state;
    static const uint64_t counts[] = {1, 7, 16384, 16385, COUNT_MAX, 3};
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        fill(counts[c]);
        for (int r = 0; r < RANKS; r++)
            submit_sum(r, counts[c], 60000);
        for (int r = 0; r < RANKS; r++)
            synchronize(r);
        assert_sums(counts[c], 1);
        for (int r = 0; r < RANKS; r++)
            assert_int_equal(ranks[r].host->failed, 0);
    }
}

static void launches_are_recorded(void **state)
{
    (void)state;
    struct standin_launch last[RANKS];
    standin_forget();
    fill(5);
    for (int r = 0; r < RANKS; r++)
        submit_sum(r, 5, 60000);
    for (int r = 0; r < RANKS; r++)
        synchronize(r);
    assert_int_equal(standin_launches(last, RANKS), RANKS);
    for (int r = 0; r < RANKS; r++) {
        assert_string_equal(last[r].name, "one_shot_ll_float32");
        assert_int_equal(last[r].grid, 4);
        assert_int_equal(last[r].block, 128);
        assert_int_equal(last[r].parameters.count, 5);
        assert_int_equal(last[r].parameters.rank, r);
        assert_false(last[r].captured);
    }
    assert_int_equal(standin_calls("cuLaunchKernelEx"), RANKS);
}

static void barriers_meet(void **state)
{
    (void)state;
    for (int turn = 0; turn < 5; turn++)
        for (int r = 0; r < RANKS; r++) {
            struct cuda_launch launch = launch_of(r, 0, 60000);
            launch.signature = signature_pack(TUTTI_COLLECTIVE_BARRIER, 0, 0, 0, 0);
            launch.subset = turn % 2 && r != 1 ? 5 : 0;
            if (turn % 2 == 0 || r != 1)
                submit(r, ranks[r].kernels.functions[CUDA_BARRIER][0][CUDA_ANY], &launch, 1,
                       CUDA_CONTROL_THREADS);
        }
    for (int r = 0; r < RANKS; r++) {
        synchronize(r);
        assert_int_equal(ranks[r].host->failed, 0);
    }
}

static void finish(void *flag)
{
    order_store_release_u32(flag, 1);
}

static void graphs_are_replayed_and_own(void **state)
{
    (void)state;
    CUgraphExec execs[RANKS];
    uint32_t finished[RANKS] = {0};
    fill(1000);
    for (int r = 0; r < RANKS; r++) {
        CUgraph graph, seen;
        CUuserObject object;
        CUstreamCaptureStatus status;
        check(cuCtxSetCurrent(ranks[r].context));
        check(cuStreamBeginCapture_v2(ranks[r].stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
        submit_sum(r, 1000, 60000);
        check(cuUserObjectCreate(&object, &finished[r], finish, 1,
                                 CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
        check(cuStreamGetCaptureInfo_v3(ranks[r].stream, &status, NULL, &seen, NULL, NULL, NULL));
        assert_int_equal(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
        check(cuGraphRetainUserObject(seen, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
        check(cuStreamEndCapture(ranks[r].stream, &graph));
        assert_ptr_equal(graph, seen);
        check(cuGraphInstantiateWithFlags(&execs[r], graph, 0));
        check(cuGraphDestroy(graph));
    }
    assert_sums(0, 1);
    for (int turn = 0; turn < 3; turn++)
        for (int r = 0; r < RANKS; r++) {
            check(cuCtxSetCurrent(ranks[r].context));
            check(cuGraphLaunch(execs[r], ranks[r].stream));
        }
    for (int r = 0; r < RANKS; r++)
        synchronize(r);
    assert_sums(1000, 9);
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(order_load_acquire_u32(&finished[r]), 0);
        check(cuGraphExecDestroy(execs[r]));
    }
    standin_wait_idle();
    for (int r = 0; r < RANKS; r++)
        assert_int_equal(order_load_acquire_u32(&finished[r]), 1);
}

static void capture_forbids_what_synchronises(void **state)
{
    (void)state;
    CUgraph graph;
    CUdeviceptr memory;
    check(cuCtxSetCurrent(ranks[0].context));
    check(cuStreamBeginCapture_v2(ranks[0].stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    assert_int_equal(cuMemAlloc_v2(&memory, 64), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    assert_int_equal(cuStreamEndCapture(ranks[0].stream, &graph),
                     CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    assert_null(graph);
}

static void captures_spread_by_events(void **state)
{
    (void)state;
    CUstream other;
    CUevent fork, join;
    CUgraph graph;
    CUstreamCaptureStatus status;
    const CUgraphNode *tips;
    size_t count;
    check(cuCtxSetCurrent(ranks[0].context));
    check(cuStreamCreateWithPriority(&other, CU_STREAM_NON_BLOCKING, 0));
    check(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
    check(cuEventCreate(&join, CU_EVENT_DISABLE_TIMING));
    check(cuStreamBeginCapture_v2(ranks[0].stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    check(cuMemsetD8Async(ranks[0].data, 1, 4, ranks[0].stream));
    check(cuEventRecord(fork, ranks[0].stream));
    check(cuStreamWaitEvent(other, fork, 0));
    check(cuMemsetD8Async(ranks[0].data + 4, 2, 4, other));
    check(cuMemsetD8Async(ranks[0].data + 8, 3, 4, ranks[0].stream));
    check(cuEventRecord(join, other));
    check(cuStreamWaitEvent(ranks[0].stream, join, 0));
    check(cuStreamGetCaptureInfo_v3(ranks[0].stream, &status, NULL, NULL, &tips, NULL, &count));
    assert_int_equal(count, 2);
    check(cuStreamEndCapture(ranks[0].stream, &graph));
    check(cuStreamGetCaptureInfo_v3(other, &status, NULL, NULL, NULL, NULL, NULL));
    assert_int_equal(status, CU_STREAM_CAPTURE_STATUS_NONE);
    check(cuGraphDestroy(graph));
    check(cuEventDestroy_v2(fork));
    check(cuEventDestroy_v2(join));
    check(cuStreamDestroy_v2(other));
}

static void streams_wait_for_events(void **state)
{
    (void)state;
    CUevent event;
    check(cuCtxSetCurrent(ranks[0].context));
    check(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    fill(10);
    /* Rank 0's sum cannot end before the others come, nor the event behind it. */
    submit_sum(0, 10, 60000);
    check(cuEventRecord(event, ranks[0].stream));
    assert_int_equal(cuEventQuery(event), CUDA_ERROR_NOT_READY);
    check(cuStreamWaitEvent(CU_STREAM_PER_THREAD, event, 0));
    check(cuMemcpyAsync(ranks[0].data + 80, ranks[0].data, 40, CU_STREAM_PER_THREAD));
    for (int r = 1; r < RANKS; r++)
        submit_sum(r, 10, 60000);
    check(cuCtxSetCurrent(ranks[0].context));
    check(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    check(cuEventQuery(event));
    assert_memory_equal(data_of(0), data_of(0) + 20, 40);
    check(cuEventDestroy_v2(event));
    for (int r = 0; r < RANKS; r++)
        synchronize(r);
    assert_sums(10, 1);
}

/* The tests from here on spoil the ranks: each has new ones. */

static void stop_ends_waits(void **state)
{
    (void)state;
    submit_sum(0, 10, 0);
    order_store_release_u32(&ranks[0].host->stop, TUTTI_ERR_ABORTED);
    synchronize(0);
    assert_int_equal(ranks[0].host->failed, 0);
    submit_sum(0, 10, 0); /* returns at once */
    synchronize(0);
}

static void lateness_is_told(void **state)
{
    (void)state;
    submit_sum(0, 10, 60000);
    submit_sum(1, 10, 20);
    synchronize(1);
    const struct cuda_host *host = ranks[1].host;
    assert_int_equal(host->failed, 1);
    assert_int_equal(host->status, TUTTI_ERR_TIMEOUT);
    assert_int_equal(host->peer, 2);
    assert_int_equal(host->sequence, 1);
    order_store_release_u32(&ranks[0].host->stop, TUTTI_ERR_TIMEOUT);
    synchronize(0);
}

static void default_deadline_is_the_hosts(void **state)
{
    (void)state;
    ranks[2].host->timeout_ns = 20000000;
    submit_sum(2, 10, 0);
    synchronize(2);
    assert_int_equal(ranks[2].host->status, TUTTI_ERR_TIMEOUT);
    assert_in_range(ranks[2].host->peer, 0, 1);
}

static void disagreement_is_told(void **state)
{
    (void)state;
    submit_sum(0, 10, 60000);
    submit_sum(1, 11, 60000);
    submit_sum(2, 10, 60000);
    synchronize(1);
    synchronize(0);
    const struct cuda_host *host = ranks[1].host;
    assert_int_equal(host->status, TUTTI_ERR_MISMATCH);
    assert_int_not_equal(host->peer, 1);
    assert_int_equal(signature_unpack(host->signatures[0], 0).count, 11);
    assert_int_equal(signature_unpack(host->signatures[1], 0).count, 10);
    assert_int_equal(ranks[0].host->peer, 1);
    synchronize(2);
    assert_int_equal(ranks[2].host->peer, 1);
}

static void wrong_handles_are_refused(void **state)
{
    (void)state;
    check(cuCtxSetCurrent(ranks[0].context));
    assert_int_equal(cuStreamSynchronize(ranks[1].stream), CUDA_ERROR_INVALID_HANDLE);
    assert_int_equal(cuStreamDestroy_v2((CUstream)&ranks), CUDA_ERROR_INVALID_HANDLE);
    check(cuCtxSetCurrent(NULL));
    assert_int_equal(cuStreamSynchronize(ranks[0].stream), CUDA_ERROR_INVALID_CONTEXT);
    unsigned type = 9;
    int ordinal = 9;
    CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
    void *values[] = {&type, &ordinal};
    check(cuPointerGetAttributes(2, attributes, values, ranks[2].data + 100));
    assert_int_equal(type, CU_MEMORYTYPE_DEVICE);
    assert_int_equal(ordinal, 2);
    check(cuPointerGetAttributes(2, attributes, values, ranks[0].memory[1].base + 100));
    assert_int_equal(type, CU_MEMORYTYPE_DEVICE);
    check(cuPointerGetAttributes(2, attributes, values, (CUdeviceptr)(uintptr_t)&type));
    assert_int_equal(type, 0);
}

#define SPOILING(test) cmocka_unit_test_setup_teardown(test, open_ranks, close_ranks)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_of_any_count),
        cmocka_unit_test(launches_are_recorded),
        cmocka_unit_test(barriers_meet),
        cmocka_unit_test(graphs_are_replayed_and_own),
        cmocka_unit_test(capture_forbids_what_synchronises),
        cmocka_unit_test(captures_spread_by_events),
        cmocka_unit_test(streams_wait_for_events),
        cmocka_unit_test(wrong_handles_are_refused),
    };
    const struct CMUnitTest spoiling[] = {
        SPOILING(stop_ends_waits),
        SPOILING(lateness_is_told),
        SPOILING(default_deadline_is_the_hosts),
        SPOILING(disagreement_is_told),
    };
    return cmocka_run_group_tests(tests, open_ranks, close_ranks) +
           cmocka_run_group_tests(spoiling, NULL, NULL);
}
