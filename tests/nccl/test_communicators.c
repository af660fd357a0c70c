/* SPDX-License-Identifier: MIT */
/* The life of communicators of libnccl.so.2: made, split, shrunk, grown, aborted; memory and
 * parameters. */
#include "harness.h"

/* ---- making ---------------------------------------------------------------------------------- */

static void queried(struct rank *self)
{
    int count = -1, device = -1, rank = -1;
    struct {
        size_t size;
        unsigned magic, version;
        int rank, ranks, device, nvml;
        bool device_api, multimem;
    } properties = {.size = sizeof properties, .magic = NCCL_API_MAGIC};
    OK(ncclCommCount(self->comm, &count));
    OK(ncclCommCuDevice(self->comm, &device));
    OK(ncclCommUserRank(self->comm, &rank));
    CHECK(count == self->ranks && device == self->rank && rank == self->rank);
    OK(ncclCommQueryProperties(self->comm, &properties));
    CHECK(properties.ranks == count && properties.rank == rank && !properties.device_api);
    CHECK(ncclTeamWorld(self->comm).nRanks == count && ncclTeamWorld(self->comm).rank == rank);
    CHECK(ncclCommCount(self->comm, NULL) == ncclInvalidArgument);
    comm_check(self->comm, self->ranks, self->stream);
}

/* CuPy's streams end with the objects that hold them: before the next call, and before the
 * communicator. */
static void short_streams(struct rank *self)
{
    for (int i = 0; i < 3; i++) {
        const cudaStream_t stream = stream_create();
        comm_check(self->comm, self->ranks, stream);
        CHECK(cuStreamDestroy_v2(stream) == CUDA_SUCCESS);
    }
    OK(ncclCommDestroy(self->comm));
    self->comm = NULL;
}

/* PyTorch polls a communicator that does not block, and a child that is NULL until it is there. */
static void unblocking(struct rank *self)
{
    ncclConfig_t config = config_of(23203, 0);
    ncclComm_t child = NULL;
    ncclResult_t state;
    const ncclResult_t made =
        ncclCommInitRankConfig(&self->comm, self->ranks, self->id, self->rank, &config);
    CHECK((made == ncclSuccess || made == ncclInProgress) && self->comm);
    OK(comm_wait(self->comm));
    comm_check(self->comm, self->ranks, self->stream);
    state = ncclCommSplit(self->comm, self->rank % 2, 0, &child, NULL);
    CHECK(state == ncclSuccess || state == ncclInProgress);
    OK(comm_wait(self->comm));
    CHECK(child);
    comm_check(child, self->rank % 2 ? 1 : 2, self->stream);
    state = ncclCommFinalize(child);
    CHECK(state == ncclSuccess || state == ncclInProgress);
    OK(comm_wait(child));
    CHECK(ncclAllReduce(self, self, 0, ncclInt8, ncclSum, child, self->stream) == ncclInvalidUsage);
    pthread_barrier_wait(self->barrier);
    OK(ncclCommDestroy(child));
}

/* As with NCCL, its variable goes before the configuration. */
static void unblocking_by_variable(struct rank *self)
{
    ncclConfig_t config = config_of(23203, 1);
    const ncclResult_t made =
        ncclCommInitRankConfig(&self->comm, self->ranks, self->id, self->rank, &config);
    CHECK(made == ncclInProgress && self->comm);
    OK(comm_wait(self->comm));
}

static void split(struct rank *self)
{
    ncclComm_t child = self->comm;
    int rank = -1;
    const bool apart = self->rank == 0;
    OK(ncclCommSplit(self->comm, apart ? NCCL_SPLIT_NOCOLOR : 7, -self->rank, &child, NULL));
    CHECK(apart == (child == NULL));
    if (child) {
        OK(ncclCommUserRank(child, &rank));
        CHECK(rank == self->ranks - 1 - self->rank); /* by the key */
        comm_check(child, self->ranks - 1, self->stream);
    }
    CHECK(ncclCommSplit(self->comm, -2, 0, &child, NULL) == ncclInvalidArgument);
    comm_check(self->comm, self->ranks, self->stream);
    pthread_barrier_wait(self->barrier);
    OK(ncclCommDestroy(child));
}

/* Several communicators of one group, whose ranks differ. */
static void grouped(struct rank *self)
{
    ncclComm_t first = NULL, second = NULL;
    OK(ncclGroupStart());
    OK(ncclCommInitRank(&self->comm, self->ranks, self->id, self->rank));
    CHECK(self->comm == NULL);
    OK(ncclGroupEnd());
    OK(ncclGroupStart());
    OK(ncclCommSplit(self->comm, 0, 0, &first, NULL));
    OK(ncclGroupEnd());
    OK(ncclCommSplit(first, self->rank == 2, 0, &second, NULL));
    comm_check(first, self->ranks, self->stream);
    comm_check(second, self->rank == 2 ? 1 : 2, self->stream);
    pthread_barrier_wait(self->barrier);
    OK(ncclCommDestroy(first));
    OK(ncclCommDestroy(second));
}

static void scalable(struct rank *self)
{
    ncclUniqueId ids[2] = {self->id, self->id};
    OK(ncclCommInitRankScalable(&self->comm, self->ranks, self->rank, 2, ids, NULL));
    comm_check(self->comm, self->ranks, self->stream);
}

static void misused(struct rank *self)
{
    ncclConfig_t config = config_of(23203, 1);
    ncclComm_t comm = NULL;
    CHECK(ncclCommInitRank(&comm, 0, self->id, 0) == ncclInvalidArgument);
    CHECK(ncclCommInitRank(&comm, 2, self->id, 2) == ncclInvalidArgument);
    CHECK(ncclCommInitRank(NULL, 1, self->id, 0) == ncclInvalidArgument);
    config.magic = 0;
    CHECK(ncclCommInitRankConfig(&comm, 1, self->id, 0, &config) == ncclInvalidArgument);
    CHECK(strstr(ncclGetLastError(NULL), "NCCL_CONFIG_INITIALIZER"));
    config = config_of(23203, 5);
    CHECK(ncclCommInitRankConfig(&comm, 1, self->id, 0, &config) == ncclInvalidArgument);
    config = config_of(23203, 1);
    config.maxCTAs = 0;
    CHECK(ncclCommInitRankConfig(&comm, 1, self->id, 0, &config) == ncclInvalidArgument);
    ncclUniqueId wrong = {.internal = {1}};
    CHECK(ncclCommInitRank(&comm, 1, wrong, 0) == ncclInvalidArgument && !comm);
    CHECK(ncclCommDestroy(NULL) == ncclSuccess);
    /* A group in which one creation is refused makes none. */
    OK(ncclGroupStart());
    OK(ncclCommInitRank(&comm, 1, self->id, 0));
    CHECK(ncclCommInitRank(&comm, 1, self->id, 1) == ncclInvalidArgument);
    CHECK(ncclGroupEnd() == ncclInvalidArgument && !comm);
    /* A handle that the program has already says so. */
    config = config_of(23203, 0);
    OK(ncclGroupStart());
    OK(ncclCommInitRankConfig(&comm, 1, self->id, 0, &config));
    CHECK(comm);
    CHECK(ncclCommInitRank(NULL, 1, self->id, 0) == ncclInvalidArgument);
    CHECK(ncclGroupEnd() == ncclInvalidArgument);
    CHECK(comm_wait(comm) == ncclInvalidUsage);
    OK(ncclCommDestroy(comm));
    /* The program's struct may be an older, shorter one. */
    config = config_of(23203, 1);
    config.size = offsetof(ncclConfig_t, netName);
    OK(ncclCommInitRankConfig(&comm, 1, self->id, 0, &config));
    comm_check(comm, 1, self->stream);
    OK(ncclCommDestroy(comm));
}

static void test_queried(void **unused)
{
    (void)unused;
    ranks_run(RANKS, true, queried);
}

static void test_unblocking(void **unused)
{
    (void)unused;
    ranks_run(RANKS, false, unblocking);
    setenv("NCCL_COMM_BLOCKING", "0", 1);
    ranks_run(RANKS, false, unblocking_by_variable);
    unsetenv("NCCL_COMM_BLOCKING");
}

static void test_split(void **unused)
{
    (void)unused;
    ranks_run(RANKS, true, split);
}

static void test_grouped(void **unused)
{
    (void)unused;
    ranks_run(RANKS, false, grouped);
}

static void test_scalable(void **unused)
{
    (void)unused;
    ranks_run(RANKS, false, scalable);
}

static void test_misused(void **unused)
{
    (void)unused;
    ranks_run(1, false, misused);
}

/* ---- without some ranks, with more ----------------------------------------------------------- */

static void shrink(struct rank *self)
{
    ncclComm_t fewer = NULL, last = NULL;
    int first = 0, rank = -1;
    if (self->rank == 0)
        return;
    OK(ncclCommShrink(self->comm, &first, 1, &fewer, NULL, 0));
    OK(ncclCommUserRank(fewer, &rank));
    CHECK(rank == self->rank - 1);
    comm_check(fewer, self->ranks - 1, self->stream);
    /* The same ranks again, now ending what the parent does. */
    OK(ncclCommShrink(self->comm, &first, 1, &last, NULL, NCCL_SHRINK_ABORT));
    comm_check(last, self->ranks - 1, self->stream);
    CHECK(ncclAllReduce(self, self, 0, ncclInt8, ncclSum, self->comm, self->stream) ==
          ncclInvalidUsage);
    CHECK(ncclCommShrink(self->comm, &self->rank, 1, &fewer, NULL, 0) == ncclInvalidArgument);
    OK(ncclCommDestroy(fewer));
    OK(ncclCommDestroy(last));
}

/* Ranks that have lost one go on without it. */
static void shrink_after_death(struct rank *self)
{
    ncclComm_t fewer = NULL;
    ncclResult_t error = ncclSuccess;
    int32_t *data = device_alloc(sizeof *data);
    int lost = 1;
    if (self->rank == lost) {
        OK(ncclCommAbort(self->comm));
        self->comm = NULL;
        return;
    }
    (void)ncclAllReduce(data, data, 1, ncclInt32, ncclSum, self->comm, self->stream);
    stream_wait(self->stream);
    while (error == ncclSuccess)
        OK(ncclCommGetAsyncError(self->comm, &error));
    CHECK(error == ncclRemoteError && strstr(ncclGetLastError(self->comm), "rank 1"));
    OK(ncclCommShrink(self->comm, &lost, 1, &fewer, NULL, NCCL_SHRINK_ABORT));
    comm_check(fewer, self->ranks - 1, self->stream);
    OK(ncclCommDestroy(self->comm));
    self->comm = fewer;
}

static void revoked(struct rank *self)
{
    ncclComm_t child = NULL;
    OK(ncclCommRevoke(self->comm, 0));
    CHECK(ncclAllReduce(self, self, 0, ncclInt8, ncclSum, self->comm, self->stream) ==
          ncclInvalidUsage);
    CHECK(ncclCommFinalize(self->comm) == ncclInvalidUsage);
    OK(ncclCommSplit(self->comm, self->rank == 1, 0, &child, NULL));
    comm_check(child, self->rank == 1 ? 1 : self->ranks - 1, self->stream);
    pthread_barrier_wait(self->barrier);
    OK(ncclCommDestroy(child));
}

/* Ranks 0 and 1 take rank 2 in. */
static ncclUniqueId grow_id;

static void grow(struct rank *self)
{
    ncclComm_t more = NULL;
    if (self->rank < 2)
        OK(ncclCommInitRank(&self->comm, 2, self->id, self->rank));
    if (self->rank == 1) {
        OK(ncclCommGetUniqueId(self->comm, &grow_id));
        CHECK(ncclCommGetUniqueId(self->comm, &grow_id) == ncclInvalidUsage);
    }
    pthread_barrier_wait(self->barrier);
    OK(ncclCommGrow(self->comm, 3, self->rank ? &grow_id : NULL, self->rank < 2 ? -1 : 2, &more,
                    NULL));
    comm_check(more, 3, self->stream);
    pthread_barrier_wait(self->barrier);
    OK(ncclCommDestroy(more));
}

/* An abort ends what another thread waits for, on this rank and the others. */
static void abort_waiting(struct rank *self)
{
    int32_t *data = device_alloc(sizeof *data);
    ncclResult_t error = ncclSuccess;
    if (self->rank == 0) {
        nap_ms(100);
    } else {
        OK(ncclAllReduce(data, data, 1, ncclInt32, ncclSum, self->comm, self->stream));
        stream_wait(self->stream);
        while (error == ncclSuccess)
            OK(ncclCommGetAsyncError(self->comm, &error));
        CHECK(error == ncclRemoteError);
    }
    OK(ncclCommAbort(self->comm));
    self->comm = NULL;
}

/* An abort of a communicator that is still being made does not wait for the others. */
static void abort_unmade(struct rank *self)
{
    ncclConfig_t config = config_of(23203, 0);
    ncclComm_t comm;
    const ncclResult_t made = ncclCommInitRankConfig(&comm, 2, self->id, 0, &config);
    CHECK(made == ncclInProgress || made == ncclSuccess);
    OK(ncclCommAbort(comm));
}

/* An abort also ends a split for which other ranks never come, and the other ranks see it. */
static void abort_splitting(struct rank *self)
{
    static ncclComm_t child; /* a thread may be at work on it */
    ncclConfig_t config = config_of(23203, 0);
    ncclResult_t error = ncclSuccess;
    ncclCommInitRankConfig(&self->comm, self->ranks, self->id, self->rank, &config);
    OK(comm_wait(self->comm));
    pthread_barrier_wait(self->barrier);
    if (self->rank == 0)
        CHECK(ncclCommSplit(self->comm, 0, 0, &child, NULL) == ncclInProgress);
    for (int ms = 0; self->rank && error == ncclSuccess && ms < 10000; ms++) {
        OK(ncclCommGetAsyncError(self->comm, &error));
        nap_ms(1);
    }
    CHECK(self->rank == 0 || error == ncclRemoteError);
    OK(ncclCommAbort(self->comm));
    self->comm = NULL;
}

static void *group_begun(void *opaque)
{
    const struct rank *self = opaque;
    device_enter(self->rank);
    OK(ncclGroupStart());
    OK(ncclAllReduce(NULL, NULL, 0, ncclInt8, ncclSum, self->comm, self->stream));
    return NULL;
}

/* A thread that ends inside a group drops its calls: they keep no communicator from its end. */
static void thread_ends(struct rank *self)
{
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, group_begun, self) == 0);
    pthread_join(thread, NULL);
    comm_check(self->comm, self->ranks, self->stream);
    pthread_barrier_wait(self->barrier);
    OK(ncclCommDestroy(self->comm));
    self->comm = NULL;
}

static void test_shrink(void **unused)
{
    (void)unused;
    ranks_run(RANKS, true, shrink);
}

static void test_shrink_after_death(void **unused)
{
    (void)unused;
    ranks_run(RANKS, true, shrink_after_death);
}

static void test_revoke(void **unused)
{
    (void)unused;
    ranks_run(RANKS, true, revoked);
}

static void test_grow(void **unused)
{
    (void)unused;
    ranks_run(RANKS, false, grow);
}

static void test_abort_waiting(void **unused)
{
    (void)unused;
    ranks_run(RANKS, true, abort_waiting);
}

static void test_abort_splitting(void **unused)
{
    (void)unused;
    ranks_run(RANKS, false, abort_splitting);
}

static void test_thread_ends(void **unused)
{
    (void)unused;
    ranks_run(RANKS, true, thread_ends);
}

static void test_abort_unmade(void **unused)
{
    (void)unused;
    ranks_run(1, false, abort_unmade);
}

/* ---- memory, parameters ---------------------------------------------------------------------- */

static void memory(struct rank *self)
{
    void *data = NULL, *again = NULL, *handle = NULL;
    ncclWindow_t window = NULL;
    uint64_t total = 0, suspended = 2;
    OK(ncclMemAlloc(&data, 4096));
    OK(ncclCommRegister(self->comm, data, 4096, &handle));
    CHECK(handle);
    OK(ncclCommWindowRegister(self->comm, data, 4096, &window, 1));
    OK(ncclWinGetUserPtr(self->comm, window, &again));
    CHECK(again == data);
    OK(ncclAllReduce(data, data, 1024, ncclInt32, ncclSum, self->comm, self->stream));
    OK(ncclCommMemStats(self->comm, ncclStatGpuMemTotal, &total));
    CHECK(total > 1 << 20);
    OK(ncclCommSuspend(self->comm, NCCL_SUSPEND_MEM));
    OK(ncclCommMemStats(self->comm, ncclStatGpuMemSuspended, &suspended));
    CHECK(suspended == 1);
    CHECK(ncclAllReduce(data, data, 1, ncclInt32, ncclSum, self->comm, self->stream) ==
          ncclInvalidUsage);
    OK(ncclCommResume(self->comm));
    CHECK(ncclCommResume(self->comm) == ncclInvalidUsage);
    comm_check(self->comm, self->ranks, self->stream);
    pthread_barrier_wait(self->barrier);
    /* A program deregisters before it aborts, also if the communicator is broken. */
    OK(ncclCommRevoke(self->comm, 0));
    OK(ncclCommWindowDeregister(self->comm, window));
    CHECK(ncclCommWindowDeregister(self->comm, (ncclWindow_t)data) == ncclInvalidArgument);
    OK(ncclCommDeregister(self->comm, handle));
    /* A mapping, as NVIDIA's library needs it for symmetric windows. */
    CHECK(cuMemFree_v2((CUdeviceptr)(uintptr_t)data) != CUDA_SUCCESS);
    OK(ncclMemFree(data));
    CHECK(ncclMemFree(data) == ncclInvalidArgument);
    OK(ncclMemFree(NULL));
    CHECK(ncclMemAlloc(NULL, 1) == ncclInvalidArgument);
}

/* A thread without a context, while devices are captured. More windows than one page has. */
static void windows(struct rank *self)
{
    enum { WINDOWS = 200 };
    ncclWindow_t all[WINDOWS];
    CUgraph graph;
    CUcontext context;
    void *data = device_alloc(WINDOWS), *memory;
    pthread_barrier_wait(self->barrier); /* a capture refuses the allocations of all threads */
    CHECK(cuStreamBeginCapture_v2(self->stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
    CHECK(cuCtxGetCurrent(&context) == CUDA_SUCCESS && cuCtxSetCurrent(NULL) == CUDA_SUCCESS);
    for (int i = 0; i < WINDOWS; i++)
        OK(ncclCommWindowRegister(self->comm, (char *)data + i, 1, &all[i], 0));
    CHECK(cuCtxSetCurrent(context) == CUDA_SUCCESS);
    CHECK(cuStreamEndCapture(self->stream, &graph) == CUDA_SUCCESS);
    pthread_barrier_wait(self->barrier);
    CHECK(cuGraphDestroy(graph) == CUDA_SUCCESS);
    for (int i = 0; i < WINDOWS; i++) {
        OK(ncclWinGetUserPtr(self->comm, all[i], &memory));
        CHECK(memory == (char *)data + i);
        OK(ncclCommWindowDeregister(self->comm, all[i]));
        CHECK(ncclWinGetUserPtr(self->comm, all[i], &memory) == ncclInvalidArgument);
    }
    OK(ncclCommWindowRegister(self->comm, data, 1, &all[0], 0)); /* ends with the communicator */
}

static void test_windows(void **unused)
{
    (void)unused;
    ranks_run(RANKS, true, windows);
}

/* Without NVIDIA's library these name it; the teams are those of ranks that reach each other. */
static void for_kernels(struct rank *self)
{
    ncclComm_t comm = self->comm;
    ncclWaitSignalDesc_t wait = {.opCnt = 1};
    ncclWindow_t window;
    void *data = device_alloc(64), *address;
    size_t at;
    OK(ncclCommWindowRegister(comm, data, 64, &window, 1));
    const ncclTeam_t team = ncclTeamLsa(comm);
    const ncclResult_t results[] = {
        ncclPutSignal(data, 1, ncclInt8, 0, window, 0, 0, 0, 0, comm, self->stream),
        ncclSignal(0, 0, 0, 0, comm, self->stream),
        ncclWaitSignal(1, &wait, comm, self->stream),
        ncclDevCommCreate(comm, NULL, &address),
        ncclDevCommDestroy(comm, &address),
        ncclGetLsaMultimemDevicePointer(window, 0, &address),
        ncclGetMultimemDevicePointer(window, 0, (struct multimem){data}, &address),
        ncclGetLsaDevicePointer(window, 0, 0, &address),
        ncclGetPeerDevicePointer(window, 0, 0, &address),
        ncclGetMultimemDeviceLeInfo(window, 0, &address, &at),
        ncclGetCftDeviceLeInfo(window, 0, 0, team, &address, &at),
        ncclGetPeerDeviceLeInfo(window, 0, 0, &address, &at),
        ncclLsaBarrierCreateRequirement(team, 1, &address, &at),
        ncclGinBarrierCreateRequirement(comm, team, 1, &address, &at),
        ncclLLA2ACreateRequirement(1, 1, &address, &at),
        ncclGinOutboxCreateRequirement(1, 1, &address, &at),
        ncclGinInboxA2ACreateRequirement(team, 1, 1, &address, &at),
    };
    for (size_t i = 0; i < sizeof results / sizeof *results; i++)
        CHECK(results[i] == ncclInvalidUsage);
    CHECK(strstr(ncclGetLastError(NULL), "ncclGinInboxA2ACreateRequirement"));
    CHECK(strstr(ncclGetLastError(NULL), "TUTTI_NCCL_LIBRARY"));
    CHECK(ncclLLA2ACalcSlots(8, 4) == 0);
    CHECK(team.nRanks == self->ranks && team.rank == self->rank && team.stride == 1);
    CHECK(ncclTeamRail(comm).nRanks == 1 && ncclTeamCft(comm, 0).nRanks == 0 &&
          ncclTeamCftMultimem(comm).nRanks == 0);
    CHECK(ncclTeamRankToWorld(comm, team, 2) == 2 && ncclTeamRankToLsa(comm, team, 1) == 1);
    comm_check(comm, self->ranks, self->stream);
    OK(ncclCommWindowDeregister(comm, window));
}

static void test_for_kernels(void **unused)
{
    (void)unused;
    ranks_run(RANKS, true, for_kernels);
}

static void test_short_streams(void **unused)
{
    (void)unused;
    ranks_run(RANKS, true, short_streams);
}

static void test_memory(void **unused)
{
    (void)unused;
    ranks_run(RANKS, true, memory);
}

static void test_parameters(void **unused)
{
    ncclParamHandle_t handle;
    const char **keys, *text;
    int count = 0, length = 0;
    int32_t number = 0;
    uint8_t byte;
    char copy[8];
    (void)unused;
    OK(ncclParamGetAllParameterKeys(&keys, &count));
    CHECK(count > 0);
    for (int i = 0; i < count; i++)
        OK(ncclParamBind(&handle, keys[i]));
    CHECK(ncclParamBind(&handle, "NCCL_NO_SUCH") == ncclInvalidArgument);
    setenv("NCCL_MAX_CTAS", "300", 1);
    OK(ncclParamBind(&handle, "NCCL_MAX_CTAS"));
    OK(ncclParamGetI32(handle, &number));
    CHECK(number == 300 && ncclParamGetU8(handle, &byte) == ncclInvalidArgument);
    int8_t i8;
    int16_t i16 = 0;
    int64_t i64 = 0;
    uint16_t u16 = 0;
    uint32_t u32 = 0;
    uint64_t u64 = 0;
    CHECK(ncclParamGetI8(handle, &i8) == ncclInvalidArgument);
    OK(ncclParamGetI16(handle, &i16));
    OK(ncclParamGetI64(handle, &i64));
    OK(ncclParamGetU16(handle, &u16));
    OK(ncclParamGetU32(handle, &u32));
    OK(ncclParamGetU64(handle, &u64));
    CHECK(i16 == 300 && i64 == 300 && u16 == 300 && u32 == 300 && u64 == 300);
    OK(ncclParamGetStr(handle, &text));
    CHECK(strcmp(text, "300") == 0);
    ncclParamDumpAll();
    ncclResetDebugInit();
    ncclResetDebugInitInternal();
    OK(ncclParamGet(handle, copy, sizeof copy, &length));
    CHECK(strcmp(copy, "300") == 0 && length == 4);
    CHECK(ncclParamGet(handle, copy, 2, &length) == ncclInvalidArgument);
    OK(ncclParamGetParameter("NCCL_MAX_CTAS", &text, &length));
    CHECK(strcmp(text, "300") == 0);
    unsetenv("NCCL_MAX_CTAS");
}

static void test_versions(void **unused)
{
    const ncclEncryptionConfig_t encryption = {.size = sizeof encryption, .magic = NCCL_API_MAGIC};
    int version = 0;
    (void)unused;
    OK(ncclGetVersion(&version));
    CHECK(version == 23203);
    CHECK(strcmp(ncclGetErrorString(ncclSuccess), "no error") == 0);
    CHECK(strcmp(ncclGetErrorString((ncclResult_t)77), "unknown result code") == 0);
    OK(ncclSetEncryption(&encryption));
    CHECK(ncclSetEncryption(NULL) == ncclInvalidArgument);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_queried),         cmocka_unit_test(test_unblocking),
        cmocka_unit_test(test_split),           cmocka_unit_test(test_grouped),
        cmocka_unit_test(test_scalable),        cmocka_unit_test(test_misused),
        cmocka_unit_test(test_shrink),          cmocka_unit_test(test_shrink_after_death),
        cmocka_unit_test(test_revoke),          cmocka_unit_test(test_grow),
        cmocka_unit_test(test_abort_waiting),   cmocka_unit_test(test_abort_unmade),
        cmocka_unit_test(test_memory),          cmocka_unit_test(test_parameters),
        cmocka_unit_test(test_versions),        cmocka_unit_test(test_short_streams),
        cmocka_unit_test(test_windows),         cmocka_unit_test(test_for_kernels),
        cmocka_unit_test(test_abort_splitting), cmocka_unit_test(test_thread_ends),
    };
    harness_setup();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
