/* SPDX-License-Identifier: MIT */
/*
 * Symmetric memory on devices, its host path: what is refused, in words; what is launched and what
 * a call costs; what a captured graph holds, and what a stream that is behind; every driver call
 * that fails, one after the other: all ranks hear of it, and nothing is left.
 */
#include "failing_calls.h"

#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 5000 };

static bool says(const char *words)
{
    return strstr(tutti_last_error(), words) != NULL;
}

/* ---- alone, each in a process of its own ------------------------------------------------------
 */

struct refusal {
    const char *name, *value; /* of a variable, or NULL */
    bool context;
    int size;
    int device;
    size_t bytes;
    enum tutti_status status;
    const char *first, *second; /* words of the message */
};

static const struct refusal rows[] = {
    {NULL, NULL, true, 8, 1, BYTES, TUTTI_OK, "", ""},
    {NULL, NULL, true, 2, 7, BYTES, TUTTI_ERR_INVALID, "device 7", "tutti_device"},
    {NULL, NULL, true, 9, 1, BYTES, TUTTI_ERR_DECLINED, "9 ranks", "at most 8"},
    {NULL, NULL, false, 2, 1, BYTES, TUTTI_ERR_DECLINED, "no current CUDA context",
     "cudaSetDevice"},
    {"TUTTI_CUDA_LIBRARY", "/nonexistent/libcuda.so", true, 2, 1, BYTES, TUTTI_ERR_DECLINED,
     "no CUDA", "nonexistent"},
    {"TUTTI_STANDIN_CAPABILITY", "7.5", true, 2, 1, BYTES, TUTTI_ERR_DECLINED, "7.5", "8.0"},
    {"TUTTI_STANDIN_FAIL", "cuMemCreate:1:2", true, 2, 1, BYTES, TUTTI_ERR_NO_MEMORY, "5000 bytes",
     "are free"},
};

static int refuse(const struct refusal *refusal)
{
    tutti_symm_group_t *group;
    tutti_store_t *store;
    void *buffer = &store;
    if (refusal->name)
        setenv(refusal->name, refusal->value, 1);
    if (refusal->context)
        CHECK(device_enter(0));
    CHECK(tutti_store_open("memory:refuse", 1000, &store) == TUTTI_OK);
    CHECK(tutti_symm_group("refuse", 0, refusal->size, store, &group) == TUTTI_OK);
    enum tutti_status status =
        tutti_symm_alloc(group, (enum tutti_device)refusal->device, refusal->bytes, &buffer);
    CHECK(status == refusal->status && !buffer == (status != TUTTI_OK));
    CHECK(status == TUTTI_OK || (says(refusal->first) && says(refusal->second)));
    if (buffer) {
        CHECK((uintptr_t)buffer % 4096 == 0);
        CHECK(tutti_symm_barrier(buffer, 0, 0, TUTTI_STREAM_DEFAULT) == TUTTI_ERR_INVALID);
        CHECK(says("tutti_symm_rendezvous"));
        CHECK(tutti_symm_status(buffer, NULL) == TUTTI_OK);
    }
    tutti_symm_group_destroy(group);
    tutti_store_close(store);
    CHECK(standin_left() == 0);
    return 0;
}

/* A group of one rank signals itself. */
static int alone(void)
{
    tutti_symm_group_t *group;
    tutti_store_t *store;
    void *buffer, *theirs = NULL;
    CHECK(device_enter(2));
    CHECK(tutti_store_open("memory:alone", 1000, &store) == TUTTI_OK);
    CHECK(tutti_symm_group("alone", 0, 1, store, &group) == TUTTI_OK);
    CHECK(tutti_symm_alloc(group, TUTTI_DEVICE_CUDA, BYTES, &buffer) == TUTTI_OK);
    CHECK(tutti_symm_rendezvous(buffer, 0, NULL) == TUTTI_OK);
    CHECK(tutti_symm_barrier(buffer, 0, 0, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    CHECK(tutti_symm_put_signal(buffer, 0, 1, 0, TUTTI_STREAM_LEGACY) == TUTTI_OK);
    CHECK(tutti_symm_wait_signal(buffer, 0, 1, 0, TUTTI_STREAM_LEGACY) == TUTTI_OK);
    CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
    CHECK(tutti_symm_status(buffer, NULL) == TUTTI_OK);
    CHECK(tutti_symm_buffer(buffer, 0, NULL, 0, TUTTI_INT8, BYTES, &theirs) == TUTTI_ERR_INVALID);
    CHECK(tutti_symm_buffer(buffer, 0, NULL, 0, TUTTI_INT8, 7, &theirs) == TUTTI_OK);
    CHECK(theirs == (char *)buffer + 7);
    tutti_symm_group_destroy(group);
    tutti_store_close(store);
    CHECK(standin_left() == 0);
    return 0;
}

static int in_child(const struct refusal *refusal)
{
    int how = 0;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0)
        _exit(refusal ? refuse(refusal) : alone());
    return child < 0 || waitpid(child, &how, 0) != child || how != 0;
}

static int refusals(void)
{
    int failures = in_child(NULL);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (in_child(&rows[i])) {
            fprintf(stderr, "refusal %zu failed\n", i);
            failures++;
        }
    return failures;
}

/* ---- ranks ----------------------------------------------------------------------------------- */

struct side {
    tutti_symm_group_t *group;
    void *buffer;
    struct tutti_symm_info info;
    CUstream stream;
};

static int side_open(struct side *side, struct ranks *ranks, int rank, tutti_store_t *store)
{
    *side = (struct side){.info.struct_size = sizeof side->info};
    RANKS_CHECK(device_enter(rank));
    RANKS_CHECK(cuStreamCreateWithPriority(&side->stream, CU_STREAM_NON_BLOCKING, 0) ==
                CUDA_SUCCESS);
    RANKS_CHECK(tutti_symm_group("test", rank, ranks->size, store, &side->group) == TUTTI_OK);
    RANKS_CHECK(tutti_symm_alloc(side->group, TUTTI_DEVICE_CUDA, BYTES, &side->buffer) == TUTTI_OK);
    RANKS_CHECK(tutti_symm_rendezvous(side->buffer, RANKS_TIMEOUT_MS, &side->info) == TUTTI_OK);
    return 0;
}

static void side_close(struct side *side)
{
    tutti_symm_group_destroy(side->group);
    cuStreamDestroy_v2(side->stream);
}

/* All ranks are here. */
static bool meet(struct ranks *ranks, int flag)
{
    ranks_raise(ranks, flag);
    return ranks_await(ranks, flag, (uint32_t)ranks->size);
}

static struct standin_launch last_launch(void)
{
    struct standin_launch launch = {.grid = 0};
    (void)standin_launches(&launch, 1);
    return launch;
}

/* Two ranks on one device; then each on its own, in the same group. */
static int share_a_device(struct ranks *ranks, int rank, tutti_store_t *store)
{
    tutti_symm_group_t *group;
    void *buffer;
    RANKS_CHECK(device_enter(0));
    RANKS_CHECK(tutti_symm_group("share", rank, 2, store, &group) == TUTTI_OK);
    RANKS_CHECK(tutti_symm_alloc(group, TUTTI_DEVICE_CUDA, BYTES, &buffer) == TUTTI_OK);
    RANKS_CHECK(tutti_symm_rendezvous(buffer, 0, NULL) == TUTTI_ERR_DECLINED);
    RANKS_CHECK(says("ranks 0 and 1") && says("one device"));
    RANKS_CHECK(tutti_symm_free(buffer) == TUTTI_OK);
    RANKS_CHECK(device_enter(rank));
    RANKS_CHECK(tutti_symm_alloc(group, TUTTI_DEVICE_CUDA, BYTES, &buffer) == TUTTI_OK);
    RANKS_CHECK(tutti_symm_rendezvous(buffer, 0, NULL) == TUTTI_OK);
    tutti_symm_group_destroy(group);
    return 0;
}

static int separate(struct ranks *ranks, int rank, tutti_store_t *store)
{
    tutti_symm_group_t *group;
    void *buffer;
    setenv("TUTTI_STANDIN_NO_PEER", "0-1", 1);
    RANKS_CHECK(device_enter(rank));
    RANKS_CHECK(tutti_symm_group("separate", rank, 2, store, &group) == TUTTI_OK);
    RANKS_CHECK(tutti_symm_alloc(group, TUTTI_DEVICE_CUDA, BYTES, &buffer) == TUTTI_OK);
    RANKS_CHECK(tutti_symm_rendezvous(buffer, 0, NULL) == TUTTI_ERR_CUDA);
    RANKS_CHECK(says("peer access") && says("the memory of rank"));
    tutti_symm_group_destroy(group);
    RANKS_CHECK(standin_left() == 0);
    return 0;
}

/* One launch, one look at the stream, one at the context. */
static int launches(struct ranks *ranks, int rank, tutti_store_t *store)
{
    static const char *const once[] = {"cuLaunchKernelEx", "cuStreamGetCaptureInfo",
                                       "cuCtxGetCurrent"};
    static const char *const never[] = {"cuPointerGetAttributes", "cuEventRecord",
                                        "cuStreamWaitEvent", "cuMemcpyAsync"};
    struct side side;
    setenv("TUTTI_TIMEOUT_MS", "45000", 1);
    int failed = side_open(&side, ranks, rank, store);
    tutti_stream_t stream = device_stream(side.stream);
    RANKS_CHECK(!failed);
    RANKS_CHECK(tutti_symm_barrier(side.buffer, 5, 0, stream) == TUTTI_OK);
    struct standin_launch launch = last_launch();
    RANKS_CHECK(strcmp(launch.name, "symm") == 0 && launch.grid == 1);
    RANKS_CHECK(launch.block == CUDA_SYMM_THREADS && launch.attribute_count == 0);
    RANKS_CHECK(launch.stream == side.stream && !launch.captured);
    RANKS_CHECK(launch.symm.call == CUDA_SYMM_BARRIER && launch.symm.channel == 5);
    RANKS_CHECK(launch.symm.rank == rank && launch.symm.size == 2 && launch.symm.counted);
    for (int r = 0; r < 2; r++)
        RANKS_CHECK(launch.symm.pads[r] == side.info.signal_pads[r]);
    /* The default is in the page. */
    RANKS_CHECK(launch.symm.timeout_ns == 0);
    RANKS_CHECK(launch.symm.page->timeout_ns == UINT64_C(45000000000));
    RANKS_CHECK(tutti_symm_put_signal(side.buffer, !rank, 0, 1234, stream) == TUTTI_OK);
    RANKS_CHECK(last_launch().symm.timeout_ns == 1234000000 && last_launch().symm.peer == !rank);
    RANKS_CHECK(tutti_symm_wait_signal(side.buffer, !rank, 0, -1, stream) == TUTTI_OK);
    RANKS_CHECK(last_launch().symm.timeout_ns == UINT64_MAX);
    standin_forget();
    for (int i = 0; i < 10; i++)
        RANKS_CHECK(tutti_symm_barrier(side.buffer, 5, 0, stream) == TUTTI_OK);
    for (size_t i = 0; i < sizeof once / sizeof *once; i++)
        RANKS_CHECK(standin_calls(once[i]) == 10);
    for (size_t i = 0; i < sizeof never / sizeof *never; i++)
        RANKS_CHECK(standin_calls(never[i]) == 0);
    RANKS_CHECK(standin_late_loads() == 0);
    RANKS_CHECK(cuStreamSynchronize(side.stream) == CUDA_SUCCESS);
    side_close(&side);
    RANKS_CHECK(standin_left() == 0);
    return 0;
}

/* What fails in a call is the call's, and nothing else. */
static int failing_calls(struct ranks *ranks, int rank, tutti_store_t *store)
{
    static const char *const calls[] = {"cuLaunchKernelEx", "cuStreamGetCaptureInfo"};
    static const char *const captured[] = {"cuUserObjectCreate", "cuGraphRetainUserObject"};
    struct side side;
    CUgraph graph;
    int failed = side_open(&side, ranks, rank, store);
    tutti_stream_t stream = device_stream(side.stream);
    RANKS_CHECK(!failed);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        standin_fail(calls[i], 1, CUDA_ERROR_INVALID_VALUE);
        RANKS_CHECK(tutti_symm_barrier(side.buffer, 0, 0, stream) == TUTTI_ERR_CUDA);
        RANKS_CHECK(says(calls[i]));
    }
    standin_fail(NULL, 0, CUDA_SUCCESS);
    RANKS_CHECK(tutti_symm_barrier(side.buffer, 0, 0, stream) == TUTTI_OK);
    for (size_t i = 0; i < sizeof captured / sizeof *captured; i++) {
        RANKS_CHECK(cuStreamBeginCapture_v2(side.stream, CU_STREAM_CAPTURE_MODE_GLOBAL) ==
                    CUDA_SUCCESS);
        standin_fail(captured[i], 1, CUDA_ERROR_INVALID_VALUE);
        RANKS_CHECK(tutti_symm_barrier(side.buffer, 0, 0, stream) == TUTTI_ERR_CUDA);
        RANKS_CHECK(says(captured[i]));
        standin_fail(NULL, 0, CUDA_SUCCESS);
        RANKS_CHECK(cuStreamEndCapture(side.stream, &graph) == CUDA_SUCCESS);
        RANKS_CHECK(cuGraphDestroy(graph) == CUDA_SUCCESS);
    }
    RANKS_CHECK(tutti_symm_barrier(side.buffer, 0, 0, stream) == TUTTI_OK);
    RANKS_CHECK(cuStreamSynchronize(side.stream) == CUDA_SUCCESS);
    RANKS_CHECK(tutti_symm_status(side.buffer, NULL) == TUTTI_OK);
    side_close(&side);
    RANKS_CHECK(device_left() == 0);
    return 0;
}

/* The graph holds what its replays need, once for all calls of its capture. */
static int graph_holds(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct side side;
    CUgraph graph;
    CUgraphExec exec;
    void *other;
    int failed = side_open(&side, ranks, rank, store);
    RANKS_CHECK(!failed);
    RANKS_CHECK(cuStreamBeginCapture_v2(side.stream, CU_STREAM_CAPTURE_MODE_GLOBAL) ==
                CUDA_SUCCESS);
    standin_forget();
    for (int i = 0; i < 5; i++)
        RANKS_CHECK(tutti_symm_barrier(side.buffer, 0, 0, device_stream(side.stream)) == TUTTI_OK);
    RANKS_CHECK(standin_calls("cuGraphRetainUserObject") == 1);
    RANKS_CHECK(last_launch().captured && !last_launch().symm.counted);
    /* Other buffers come and go meanwhile, and do not disturb the capture. */
    RANKS_CHECK(tutti_symm_alloc(side.group, TUTTI_DEVICE_CUDA, BYTES, &other) == TUTTI_OK);
    RANKS_CHECK(tutti_symm_rendezvous(other, RANKS_TIMEOUT_MS, NULL) == TUTTI_OK);
    RANKS_CHECK(tutti_symm_barrier(other, 0, 0, TUTTI_STREAM_PER_THREAD) == TUTTI_OK);
    RANKS_CHECK(tutti_symm_free(other) == TUTTI_OK);
    RANKS_CHECK(cuStreamEndCapture(side.stream, &graph) == CUDA_SUCCESS);
    RANKS_CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0) == CUDA_SUCCESS);
    RANKS_CHECK(cuGraphDestroy(graph) == CUDA_SUCCESS);
    for (int i = 0; i < 3; i++)
        RANKS_CHECK(cuGraphLaunch(exec, side.stream) == CUDA_SUCCESS);
    RANKS_CHECK(cuStreamSynchronize(side.stream) == CUDA_SUCCESS);
    RANKS_CHECK(tutti_symm_status(side.buffer, NULL) == TUTTI_OK);
    uint32_t word;
    RANKS_CHECK(meet(ranks, 1));
    const uint32_t *pad = side.info.signal_pads[rank];
    RANKS_CHECK(tutti_symm_free(side.buffer) == TUTTI_OK);
    memcpy(&word, pad, sizeof word); /* still mapped */
    RANKS_CHECK(cuGraphLaunch(exec, side.stream) == CUDA_SUCCESS);
    RANKS_CHECK(cuStreamSynchronize(side.stream) == CUDA_SUCCESS);
    RANKS_CHECK(cuGraphExecDestroy(exec) == CUDA_SUCCESS);
    side_close(&side);
    RANKS_CHECK(device_left() == 0);
    return 0;
}

struct gate {
    struct ranks *ranks;
    int flag;
};

static void stand_before(void *argument)
{
    struct gate *gate = argument;
    ranks_await(gate->ranks, gate->flag, 1);
}

/* A launch that its stream does not come to: the free goes on, the memory stays until then. */
static int stream_is_behind(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct side side;
    struct gate gate = {ranks, 2 + rank};
    int failed = side_open(&side, ranks, rank, store);
    RANKS_CHECK(!failed);
    RANKS_CHECK(cuLaunchHostFunc(side.stream, stand_before, &gate) == CUDA_SUCCESS);
    RANKS_CHECK(tutti_symm_barrier(side.buffer, 0, -1, device_stream(side.stream)) == TUTTI_OK);
    RANKS_CHECK(tutti_symm_free(side.buffer) == TUTTI_OK);
    cuda_resources_sweep();
    ranks_raise(ranks, gate.flag);
    RANKS_CHECK(cuStreamSynchronize(side.stream) == CUDA_SUCCESS);
    side_close(&side);
    RANKS_CHECK(device_left() == 0);
    return 0;
}

/* A CPU communicator would read it with the host. */
static int host_refuses(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct side side;
    tutti_comm_t *comm;
    float values[2] = {1, 2};
    int failed = side_open(&side, ranks, rank, store);
    RANKS_CHECK(!failed);
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    float *inside = (float *)side.buffer + 4;
    char words[32];
    snprintf(words, sizeof words, "memory of device %d", rank);
    RANKS_CHECK(tutti_all_reduce(inside, values, 2, TUTTI_FLOAT32, TUTTI_SUM, comm,
                                 TUTTI_STREAM_DEFAULT) == TUTTI_ERR_INVALID);
    RANKS_CHECK(says("send") && says(words));
    RANKS_CHECK(tutti_all_reduce(values, inside, 2, TUTTI_FLOAT32, TUTTI_SUM, comm,
                                 TUTTI_STREAM_DEFAULT) == TUTTI_ERR_INVALID);
    RANKS_CHECK(says("recv") && says(words));
    RANKS_CHECK(tutti_all_reduce(values, values, 2, TUTTI_FLOAT32, TUTTI_SUM, comm,
                                 TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    RANKS_CHECK(values[0] == 2 && values[1] == 4);
    /* What a rank does not have is not looked at. */
    RANKS_CHECK(tutti_broadcast(rank == 0 ? values : inside, values, 2, TUTTI_FLOAT32, 0, comm,
                                TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    tutti_comm_destroy(comm);
    side_close(&side);
    return 0;
}

/* The child owns nothing; the parent goes on. */
static int forks(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct side side;
    int how = 0;
    int failed = side_open(&side, ranks, rank, store);
    tutti_stream_t stream = device_stream(side.stream);
    RANKS_CHECK(!failed);
    pid_t child = fork();
    if (child == 0) {
        int wrong = tutti_symm_barrier(side.buffer, 0, 0, stream) != TUTTI_ERR_INVALID;
        wrong += tutti_symm_status(side.buffer, NULL) != TUTTI_ERR_INVALID;
        tutti_symm_group_destroy(side.group);
        ranks_short() ? _exit(wrong) : exit(wrong); /* a sanitizer finds what is the parent's */
    }
    RANKS_CHECK(child > 0 && waitpid(child, &how, 0) == child && how == 0);
    RANKS_CHECK(tutti_symm_barrier(side.buffer, 0, 0, stream) == TUTTI_OK);
    RANKS_CHECK(cuStreamSynchronize(side.stream) == CUDA_SUCCESS);
    RANKS_CHECK(tutti_symm_status(side.buffer, NULL) == TUTTI_OK);
    side_close(&side);
    return 0;
}

/* A group that nobody destroys: its watcher is gone before the driver's exit handlers. */
static int exits(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct side side;
    int failed = side_open(&side, ranks, rank, store);
    RANKS_CHECK(!failed && meet(ranks, 1));
    if (rank == 0 && !ranks_short())
        exit(0);
    return 0;
}

/* ---- every call fails in turn ---------------------------------------------------------------- */

static const char *const calls[] = {
    "cuCtxGetCurrent",
    "cuMemGetAllocationGranularity",
    "cuMemCreate",
    "cuMemExportToShareableHandle",
    "cuMemImportFromShareableHandle",
    "cuMemAddressReserve",
    "cuMemMap",
    "cuMemSetAccess",
    "cuMemHostAlloc",
    "cuMemHostGetDevicePointer",
    "cuMemsetD8Async",
    "cuMemcpyAsync",
    "cuLibraryGetKernel",
    "cuKernelGetFunction",
    "cuFuncLoad",
    "cuStreamCreateWithPriority",
    "cuEventCreate",
    "cuEventRecord",
    "cuEventQuery",
    "cuThreadExchangeStreamCaptureMode",
};

struct outcome {
    struct failing_calls_outcome common; /* whole: has met */
    int allocated[2];
};

static int create_once(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct outcome *outcome = (struct outcome *)(void *)ranks->shared;
    tutti_symm_group_t *group;
    void *buffer;
    RANKS_CHECK(device_enter(rank));
    RANKS_CHECK(tutti_symm_group("calls", rank, 2, store, &group) == TUTTI_OK);
    outcome->allocated[rank] =
        tutti_symm_alloc(group, TUTTI_DEVICE_CUDA, BYTES, &buffer) == TUTTI_OK;
    RANKS_CHECK(outcome->allocated[rank] == (buffer != NULL));
    /* A rank that has none would be waited for. */
    RANKS_CHECK(meet(ranks, 1));
    if (outcome->allocated[0] && outcome->allocated[1])
        outcome->common.whole[rank] =
            tutti_symm_rendezvous(buffer, RANKS_TIMEOUT_MS, NULL) == TUTTI_OK;
    RANKS_CHECK(meet(ranks, 2));
    tutti_symm_group_destroy(group);
    return 0;
}

static int fail_in_turn(void)
{
    return failing_calls_run(&(struct failing_calls){.once = create_once,
                                                     .shared_bytes = sizeof(struct outcome),
                                                     .calls = calls,
                                                     .count = sizeof calls / sizeof *calls,
                                                     .left = device_left});
}

/* ---- all ------------------------------------------------------------------------------------- */

int main(void)
{
    static const struct {
        const char *name;
        ranks_fn *fn;
    } parts[] = {{"share_a_device", share_a_device},
                 {"separate", separate},
                 {"launches", launches},
                 {"failing_calls", failing_calls},
                 {"graph_holds", graph_holds},
                 {"stream_is_behind", stream_is_behind},
                 {"host_refuses", host_refuses},
                 {"forks", forks},
                 {"exits", exits}};
    device_setup();
    int failures = refusals();
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        struct ranks *ranks = ranks_create(2, 2, 0);
        int failed = ranks_run(ranks, parts[i].fn);
        ranks_destroy(ranks);
        if (failed)
            fprintf(stderr, "%s failed\n", parts[i].name);
        failures += failed;
    }
    return failures + fail_in_turn() ? 1 : 0;
}
