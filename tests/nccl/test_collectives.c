/* SPDX-License-Identifier: MIT */
/* Collectives, messages and groups of libnccl.so.2, as NCCL's manual has them. */
#include "harness.h"

enum { COUNT = 1000, MANY = 100000 };

static int32_t value(int rank, int i)
{
    return rank * 10000 + i;
}

/* Two buffers with a block for each rank. */
struct buffers {
    int32_t *send, *recv;
};

static struct buffers buffers_make(const struct rank *self)
{
    const size_t bytes = (size_t)self->ranks * COUNT * sizeof(int32_t);
    struct buffers made = {device_alloc(bytes), device_alloc(bytes)};
    for (int i = 0; i < self->ranks * COUNT; i++)
        made.send[i] = value(self->rank, i);
    return made;
}

/* ---- each collective ------------------------------------------------------------------------- */

static int32_t sum(int ranks, int i)
{
    int32_t all = 0;
    for (int r = 0; r < ranks; r++)
        all += value(r, i);
    return all;
}

static void all_reduce(struct rank *self)
{
    struct buffers b = buffers_make(self);
    OK(ncclAllReduce(b.send, b.recv, COUNT, ncclInt32, ncclSum, self->comm, self->stream));
    OK(ncclAllReduce(b.send, b.send, COUNT, ncclInt32, ncclMax, self->comm, self->stream));
    OK(ncclAllReduce(NULL, NULL, 0, ncclInt32, ncclSum, self->comm, self->stream));
    stream_wait(self->stream);
    for (int i = 0; i < COUNT; i++)
        CHECK(b.recv[i] == sum(self->ranks, i) && b.send[i] == value(self->ranks - 1, i));
}

static void reduce_scatter(struct rank *self)
{
    struct buffers b = buffers_make(self);
    int32_t *own = b.send + self->rank * COUNT;
    OK(ncclReduceScatter(b.send, b.recv, COUNT, ncclInt32, ncclSum, self->comm, self->stream));
    OK(ncclReduceScatter(b.send, own, COUNT, ncclInt32, ncclMin, self->comm, self->stream));
    stream_wait(self->stream);
    for (int i = 0; i < COUNT; i++)
        CHECK(b.recv[i] == sum(self->ranks, self->rank * COUNT + i) &&
              own[i] == value(0, self->rank * COUNT + i));
}

static void all_gather(struct rank *self)
{
    struct buffers b = buffers_make(self);
    int32_t *own = b.send + self->rank * COUNT;
    OK(ncclAllGather(b.send, b.recv, COUNT, ncclInt32, self->comm, self->stream));
    OK(ncclAllGather(own, b.send, COUNT, ncclInt32, self->comm, self->stream));
    stream_wait(self->stream);
    for (int r = 0; r < self->ranks; r++)
        for (int i = 0; i < COUNT; i++)
            CHECK(b.recv[r * COUNT + i] == value(r, i) &&
                  b.send[r * COUNT + i] == value(r, r * COUNT + i));
}

static void all_to_all(struct rank *self)
{
    struct buffers b = buffers_make(self);
    OK(ncclAlltoAll(b.send, b.recv, COUNT, ncclInt32, self->comm, self->stream));
    stream_wait(self->stream);
    for (int r = 0; r < self->ranks; r++)
        for (int i = 0; i < COUNT; i++)
            CHECK(b.recv[r * COUNT + i] == value(r, self->rank * COUNT + i));
}

static void rooted(struct rank *self)
{
    struct buffers b = buffers_make(self);
    for (int root = 0; root < self->ranks; root++) {
        const bool is_root = self->rank == root;
        OK(ncclReduce(b.send, is_root ? b.recv : NULL, COUNT, ncclInt32, ncclSum, root, self->comm,
                      self->stream));
        stream_wait(self->stream);
        for (int i = 0; is_root && i < COUNT; i++)
            CHECK(b.recv[i] == sum(self->ranks, i));
        OK(ncclGather(b.send, is_root ? b.recv : NULL, COUNT, ncclInt32, root, self->comm,
                      self->stream));
        stream_wait(self->stream);
        for (int i = 0; is_root && i < self->ranks * COUNT; i++)
            CHECK(b.recv[i] == value(i / COUNT, i % COUNT));
        OK(ncclScatter(is_root ? b.send : NULL, b.recv, COUNT, ncclInt32, root, self->comm,
                       self->stream));
        stream_wait(self->stream);
        for (int i = 0; i < COUNT; i++)
            CHECK(b.recv[i] == value(root, self->rank * COUNT + i));
        OK(ncclBroadcast(b.send, b.recv, COUNT, ncclInt32, root, self->comm, self->stream));
        stream_wait(self->stream);
        for (int i = 0; i < COUNT; i++)
            CHECK(b.recv[i] == value(root, i));
        memcpy(b.recv, b.send, COUNT * sizeof *b.recv);
        OK(ncclBcast(b.recv, COUNT, ncclInt32, root, self->comm, self->stream));
        stream_wait(self->stream);
        for (int i = 0; i < COUNT; i++)
            CHECK(b.recv[i] == value(root, i));
    }
}

/* In place, as NCCL's manual has it: the rank's own block of the larger buffer. */
static void rooted_in_place(struct rank *self)
{
    struct buffers b = buffers_make(self);
    const int root = 1;
    int32_t *own = b.send + self->rank * COUNT;
    OK(ncclGather(own, b.send, COUNT, ncclInt32, root, self->comm, self->stream));
    stream_wait(self->stream);
    for (int i = 0; self->rank == root && i < self->ranks * COUNT; i++)
        CHECK(b.send[i] == value(i / COUNT, i));
    OK(ncclScatter(b.send, self->rank == root ? own : b.recv, COUNT, ncclInt32, root, self->comm,
                   self->stream));
    OK(ncclReduce(own, own, COUNT, ncclInt32, ncclMax, root, self->comm, self->stream));
    stream_wait(self->stream);
    for (int i = 0; i < COUNT; i++)
        CHECK(self->rank == root || b.recv[i] == value(self->rank, self->rank * COUNT + i));
}

/* No elements, and so no addresses: alone and in a group. */
static void nothing(struct rank *self)
{
    for (int grouped = 0; grouped < 2; grouped++) {
        ncclComm_t comm = self->comm;
        cudaStream_t stream = self->stream;
        if (grouped)
            OK(ncclGroupStart());
        OK(ncclAllReduce(NULL, NULL, 0, ncclFloat8e4m3, ncclAvg, comm, stream));
        OK(ncclReduceScatter(NULL, NULL, 0, ncclInt32, ncclSum, comm, stream));
        OK(ncclReduce(NULL, NULL, 0, ncclInt32, ncclSum, 0, comm, stream));
        OK(ncclAllGather(NULL, NULL, 0, ncclInt32, comm, stream));
        OK(ncclAlltoAll(NULL, NULL, 0, ncclInt32, comm, stream));
        OK(ncclBroadcast(NULL, NULL, 0, ncclInt32, 2, comm, stream));
        OK(ncclGather(NULL, NULL, 0, ncclInt32, 1, comm, stream));
        OK(ncclScatter(NULL, NULL, 0, ncclInt32, 1, comm, stream));
        if (grouped) {
            OK(ncclSend(NULL, 0, ncclInt32, (self->rank + 1) % self->ranks, comm, stream));
            OK(ncclRecv(NULL, 0, ncclInt32, (self->rank + 2) % self->ranks, comm, stream));
            OK(ncclGroupEnd());
        }
    }
    stream_wait(self->stream);
    comm_check(self->comm, self->ranks, self->stream);
}

/* A copy moves bits, whatever dtype a program names: XLA passes int16 as float16. */
static void bits(struct rank *self)
{
    uint16_t *data = device_alloc((size_t)self->ranks * 65536 * sizeof *data);
    uint16_t *own = data + self->rank * 65536;
    for (int i = 0; i < 65536; i++)
        own[i] = (uint16_t)i;
    OK(ncclAllGather(own, data, 65536, ncclFloat16, self->comm, self->stream));
    stream_wait(self->stream);
    for (int i = 0; i < self->ranks * 65536; i++)
        CHECK(data[i] == (uint16_t)i);
}

static void dtypes(struct rank *self)
{
    /* One and its multiples in each dtype of NCCL. */
    static const struct {
        ncclDataType_t dtype;
        size_t size;
        uint64_t one, three;
    } rows[] = {
        {ncclInt8, 1, 1, 3},
        {ncclUint8, 1, 1, 3},
        {ncclInt32, 4, 1, 3},
        {ncclUint32, 4, 1, 3},
        {ncclInt64, 8, 1, 3},
        {ncclUint64, 8, 1, 3},
        {ncclFloat16, 2, 0x3c00, 0x4200},
        {ncclFloat32, 4, 0x3f800000, 0x40400000},
        {ncclFloat64, 8, UINT64_C(0x3ff0000000000000), UINT64_C(0x4008000000000000)},
        {ncclBfloat16, 2, 0x3f80, 0x4040},
        {ncclFloat8e4m3, 1, 0x38, 0x44},
        {ncclFloat8e5m2, 1, 0x3c, 0x42},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint64_t *data = device_alloc(sizeof *data);
        memcpy(data, &rows[i].one, rows[i].size);
        OK(ncclAllReduce(data, data, 1, rows[i].dtype, ncclSum, self->comm, self->stream));
        stream_wait(self->stream);
        CHECK(memcmp(data, &rows[i].three, rows[i].size) == 0);
        OK(ncclAllReduce(data, data, 1, rows[i].dtype, ncclAvg, self->comm, self->stream));
        stream_wait(self->stream);
        CHECK(memcmp(data, &rows[i].three, rows[i].size) == 0);
    }
}

static void test_all_reduce(void **unused)
{
    (void)unused;
    ranks_run(RANKS, true, all_reduce);
    ranks_run(1, true, all_reduce);
}

static void test_reduce_scatter(void **unused)
{
    (void)unused;
    ranks_run(RANKS, true, reduce_scatter);
}

static void test_all_gather(void **unused)
{
    (void)unused;
    ranks_run(RANKS, true, all_gather);
}

static void test_all_to_all(void **unused)
{
    (void)unused;
    ranks_run(RANKS, true, all_to_all);
}

static void test_rooted(void **unused)
{
    (void)unused;
    ranks_run(RANKS, true, rooted);
    ranks_run(RANKS, true, rooted_in_place);
    ranks_run(RANKS, true, nothing);
}

static void test_bits(void **unused)
{
    (void)unused;
    ranks_run(RANKS, true, bits);
}

static void test_dtypes(void **unused)
{
    (void)unused;
    ranks_run(RANKS, true, dtypes);
}

/* ---- messages and groups --------------------------------------------------------------------- */

/* Each rank to each, itself too; the receives first. */
static void exchange(struct rank *self)
{
    struct buffers b = buffers_make(self);
    OK(ncclGroupStart());
    for (int r = 0; r < self->ranks; r++)
        OK(ncclRecv(b.recv + r * COUNT, COUNT, ncclInt32, r, self->comm, self->stream));
    for (int r = 0; r < self->ranks; r++)
        OK(ncclSend(b.send + r * COUNT, COUNT, ncclInt32, r, self->comm, self->stream));
    OK(ncclGroupEnd());
    stream_wait(self->stream);
    for (int r = 0; r < self->ranks; r++)
        for (int i = 0; i < COUNT; i++)
            CHECK(b.recv[r * COUNT + i] == value(r, self->rank * COUNT + i));
}

/* A message outside a group; messages of a group on streams of their own. */
static void streams(struct rank *self)
{
    struct buffers b = buffers_make(self);
    cudaStream_t other = stream_create();
    const int next = (self->rank + 1) % self->ranks,
              last = (self->rank + self->ranks - 1) % self->ranks;
    if (self->rank == 0)
        OK(ncclSend(b.send, COUNT, ncclInt32, 1, self->comm, self->stream));
    if (self->rank == 1)
        OK(ncclRecv(b.recv, COUNT, ncclInt32, 0, self->comm, self->stream));
    stream_wait(self->stream);
    for (int i = 0; self->rank == 1 && i < COUNT; i++)
        CHECK(b.recv[i] == value(0, i));
    for (int turn = 0; turn < 3; turn++) {
        OK(ncclGroupStart());
        OK(ncclGroupStart());
        OK(ncclSend(b.send, COUNT, ncclInt32, next, self->comm, self->stream));
        OK(ncclRecv(b.recv, COUNT, ncclInt32, last, self->comm, other));
        OK(ncclGroupEnd());
        OK(ncclGroupEnd());
        stream_wait(other);
        for (int i = 0; i < COUNT; i++)
            CHECK(b.recv[i] == value(last, i));
        memset(b.recv, 0, COUNT * sizeof *b.recv);
    }
    stream_wait(self->stream);
    CHECK(cuStreamDestroy_v2(other) == CUDA_SUCCESS);
}

/* Collectives of a group run in order, messages beside them. */
static void mixed(struct rank *self)
{
    struct buffers b = buffers_make(self);
    const int peer = self->rank ^ 1;
    OK(ncclGroupStart());
    if (peer < self->ranks) {
        OK(ncclSend(b.send + COUNT, COUNT, ncclInt32, peer, self->comm, self->stream));
        OK(ncclRecv(b.recv + COUNT, COUNT, ncclInt32, peer, self->comm, self->stream));
    }
    OK(ncclAllReduce(b.send, b.recv, COUNT, ncclInt32, ncclSum, self->comm, self->stream));
    OK(ncclAllReduce(b.recv, b.recv, COUNT, ncclInt32, ncclMax, self->comm, self->stream));
    OK(ncclGroupEnd());
    stream_wait(self->stream);
    for (int i = 0; i < COUNT; i++) {
        CHECK(b.recv[i] == sum(self->ranks, i));
        if (peer < self->ranks)
            CHECK(b.recv[COUNT + i] == value(peer, COUNT + i));
    }
}

static void captured(struct rank *self)
{
    struct buffers b = buffers_make(self);
    CUgraph graph;
    CUgraphExec executable;
    const int next = (self->rank + 1) % self->ranks,
              last = (self->rank + self->ranks - 1) % self->ranks;
    CHECK(cuStreamBeginCapture_v2(self->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) ==
          CUDA_SUCCESS);
    OK(ncclAllReduce(b.send, b.recv, COUNT, ncclInt32, ncclSum, self->comm, self->stream));
    OK(ncclGroupStart());
    OK(ncclSend(b.send, COUNT, ncclInt32, next, self->comm, self->stream));
    OK(ncclRecv(b.recv + COUNT, COUNT, ncclInt32, last, self->comm, self->stream));
    OK(ncclGroupEnd());
    CHECK(cuStreamEndCapture(self->stream, &graph) == CUDA_SUCCESS);
    CHECK(cuGraphInstantiateWithFlags(&executable, graph, 0) == CUDA_SUCCESS);
    for (int turn = 0; turn < 3; turn++) {
        memset(b.recv, 0, 2 * COUNT * sizeof *b.recv);
        CHECK(cuGraphLaunch(executable, self->stream) == CUDA_SUCCESS);
        stream_wait(self->stream);
        for (int i = 0; i < COUNT; i++)
            CHECK(b.recv[i] == sum(self->ranks, i) && b.recv[COUNT + i] == value(last, i));
    }
    CHECK(cuGraphExecDestroy(executable) == CUDA_SUCCESS);
    CHECK(cuGraphDestroy(graph) == CUDA_SUCCESS);
}

/* A reduction of one rank is a copy or a kernel, which may be captured. */
static void captured_alone(struct rank *self)
{
    struct buffers b = buffers_make(self);
    float half = .5f;
    ncclRedOp_t op;
    CUgraph graph;
    CHECK(cuStreamBeginCapture_v2(self->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) ==
          CUDA_SUCCESS);
    OK(ncclAllReduce(b.send, b.recv, COUNT, ncclFloat32, ncclAvg, self->comm, self->stream));
    OK(ncclRedOpCreatePreMulSum(&op, &half, ncclFloat32, ncclScalarHostImmediate, self->comm));
    OK(ncclAllReduce(b.send, b.recv, COUNT, ncclFloat32, op, self->comm, self->stream));
    CHECK(cuStreamEndCapture(self->stream, &graph) == CUDA_SUCCESS);
    CHECK(cuGraphDestroy(graph) == CUDA_SUCCESS);
}

static void test_exchange(void **unused)
{
    (void)unused;
    ranks_run(RANKS, true, exchange);
    ranks_run(1, true, exchange);
}

static void test_streams(void **unused)
{
    (void)unused;
    ranks_run(RANKS, true, streams);
}

static void test_mixed(void **unused)
{
    (void)unused;
    ranks_run(RANKS, true, mixed);
}

static void test_captured(void **unused)
{
    (void)unused;
    ranks_run(RANKS, true, captured);
    ranks_run(1, true, captured_alone);
}

static void streams_wait(const cudaStream_t *all)
{
    for (int r = 0; r < RANKS; r++) {
        device_enter(r);
        stream_wait(all[r]);
    }
}

/* One thread calls for all ranks, as programs do that have one process for all GPUs. */
static void test_one_thread(void **unused)
{
    ncclComm_t comms[RANKS];
    cudaStream_t streams_of[RANKS];
    int32_t *data[RANKS], *from[RANKS];
    (void)unused;
    OK(ncclCommInitAll(comms, RANKS, NULL));
    for (int r = 0; r < RANKS; r++) {
        device_enter(r);
        streams_of[r] = stream_create();
        data[r] = device_alloc(MANY * sizeof **data);
        from[r] = device_alloc(MANY * sizeof **from);
        for (int i = 0; i < MANY; i++)
            data[r][i] = value(r, i);
    }
    /* All receives come before all sends, and the ranks in turn. */
    OK(ncclGroupStart());
    for (int r = 0; r < RANKS; r++)
        OK(ncclRecv(from[r], MANY, ncclInt32, (r + RANKS - 1) % RANKS, comms[r], streams_of[r]));
    for (int r = 0; r < RANKS; r++)
        OK(ncclSend(data[r], MANY, ncclInt32, (r + 1) % RANKS, comms[r], streams_of[r]));
    OK(ncclGroupEnd());
    streams_wait(streams_of);
    for (int r = 0; r < RANKS; r++)
        for (int i = 0; i < MANY; i++)
            CHECK(from[r][i] == value((r + RANKS - 1) % RANKS, i));
    OK(ncclGroupStart());
    for (int r = 0; r < RANKS; r++)
        OK(ncclAllReduce(data[r], data[r], MANY, ncclInt32, ncclSum, comms[r], streams_of[r]));
    OK(ncclGroupEnd());
    streams_wait(streams_of);
    for (int r = 0; r < RANKS; r++) {
        for (int i = 0; i < MANY; i++)
            CHECK(data[r][i] == sum(RANKS, i));
        device_enter(r);
        OK(ncclCommDestroy(comms[r]));
        CHECK(cuStreamDestroy_v2(streams_of[r]) == CUDA_SUCCESS);
    }
    device_free_all();
}

/* ---- configurations of a call, misuse -------------------------------------------------------- */

static void configured(struct rank *self)
{
    ncclCollConfig_t config = {.size = sizeof config,
                               .magic = NCCL_API_MAGIC,
                               .version = 23203,
                               .minCTAs = NCCL_CONFIG_UNDEF_INT,
                               .maxCTAs = 4,
                               .forceAlgSelection = 1};
    int32_t *data = device_alloc(sizeof *data);
    *data = 1;
    CHECK(cuEventCreate(&config.launchCompletionEvent, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS);
    OK(ncclAllReduceConfig(data, data, 1, ncclInt32, ncclSum, self->comm, self->stream, &config));
    OK(ncclAllReduceConfig(data, data, 1, ncclInt32, ncclSum, self->comm, self->stream, NULL));
    stream_wait(self->stream);
    CHECK(cuEventQuery(config.launchCompletionEvent) == CUDA_SUCCESS && *data == 9);
    config.algSelection = "ring";
    CHECK(ncclAllReduceConfig(data, data, 1, ncclInt32, ncclSum, self->comm, self->stream,
                              &config) == ncclInvalidUsage);
    config.forceAlgSelection = 0;
    OK(ncclAllReduceConfig(data, data, 1, ncclInt32, ncclSum, self->comm, self->stream, &config));
    config.magic = 0;
    CHECK(ncclAllReduceConfig(data, data, 1, ncclInt32, ncclSum, self->comm, self->stream,
                              &config) == ncclInvalidArgument);
    stream_wait(self->stream);
    CHECK(cuEventDestroy_v2(config.launchCompletionEvent) == CUDA_SUCCESS);
}

/* Each form with a configuration does what the form without does. */
static void configured_forms(struct rank *self)
{
    const ncclCollConfig_t config = {.size = sizeof config,
                                     .magic = NCCL_API_MAGIC,
                                     .version = 23203,
                                     .minCTAs = NCCL_CONFIG_UNDEF_INT,
                                     .maxCTAs = 1,
                                     .forceAlgSelection = 1};
    struct buffers b = buffers_make(self);
    int32_t *own = b.recv + self->rank * COUNT;
    OK(ncclAllGatherConfig(b.send, b.recv, COUNT, ncclInt32, self->comm, self->stream, &config));
    OK(ncclReduceScatterConfig(b.recv, own, COUNT, ncclInt32, ncclMax, self->comm, self->stream,
                               &config));
    OK(ncclBroadcastConfig(own, own, COUNT, ncclInt32, 1, self->comm, self->stream, &config));
    stream_wait(self->stream);
    for (int i = 0; i < COUNT; i++)
        CHECK(own[i] == value(1, i));
    OK(ncclGatherConfig(b.send, b.recv, COUNT, ncclInt32, 2, self->comm, self->stream, &config));
    OK(ncclScatterConfig(b.recv, b.send, COUNT, ncclInt32, 2, self->comm, self->stream, &config));
    OK(ncclReduceConfig(b.send, b.recv, COUNT, ncclInt32, ncclSum, 0, self->comm, self->stream,
                        &config));
    OK(ncclAlltoAllConfig(b.recv, b.send, COUNT, ncclInt32, self->comm, self->stream, &config));
    stream_wait(self->stream);
    for (int i = 0; self->rank == 0 && i < COUNT; i++)
        CHECK(b.send[i] == sum(self->ranks, i));
}

static void misused(struct rank *self)
{
    int32_t *data = device_alloc(sizeof *data);
    ncclSimInfo_t info = {.size = sizeof info, .magic = NCCL_SIM_MAGIC};
    CHECK(ncclAllReduce(data, data, 1, ncclInt32, ncclSum, NULL, self->stream) ==
          ncclInvalidArgument);
    CHECK(strstr(ncclGetLastError(NULL), "ncclAllReduce: comm is NULL"));
    CHECK(ncclAllReduce(data, data, 1, ncclNumTypes, ncclSum, self->comm, self->stream) ==
          ncclInvalidArgument);
    CHECK(ncclAllReduce(data, data, 1, ncclInt32, (ncclRedOp_t)7, self->comm, self->stream) ==
          ncclInvalidArgument);
    CHECK(ncclBroadcast(data, data, 1, ncclInt32, self->ranks, self->comm, self->stream) ==
          ncclInvalidArgument);
    CHECK(ncclSend(data, 1, ncclInt32, -1, self->comm, self->stream) == ncclInvalidArgument);
    CHECK(ncclAllReduce(NULL, data, 1, ncclInt32, ncclSum, self->comm, self->stream) ==
          ncclInvalidArgument);
    CHECK(ncclGroupEnd() == ncclInvalidUsage);
    /* A call that is refused makes its group fail, which then does nothing. */
    OK(ncclGroupStart());
    OK(ncclAllReduce(data, data, 1, ncclInt32, ncclSum, self->comm, self->stream));
    CHECK(ncclSend(data, 1, ncclInt32, 99, self->comm, self->stream) == ncclInvalidArgument);
    CHECK(ncclCommDestroy(self->comm) == ncclInvalidUsage);
    CHECK(ncclGroupEnd() == ncclInvalidArgument);
    CHECK(strstr(ncclGetLastError(NULL), "rank 99"));
    OK(ncclGroupStart());
    OK(ncclAllReduce(data, data, 1, ncclInt32, ncclSum, self->comm, self->stream));
    OK(ncclGroupSimulateEnd(&info));
    CHECK(info.estimatedTime < 0);
    comm_check(self->comm, self->ranks, self->stream);
}

/* Ranks that disagree get an error, in NCCL's words, with the reason behind them. */
static void disagreeing(struct rank *self)
{
    int32_t *data = device_alloc(2 * sizeof *data);
    ncclResult_t error = ncclSuccess;
    const size_t count = self->rank == 0 ? 1 : 2;
    const ncclResult_t called =
        ncclAllReduce(data, data, count, ncclInt32, ncclSum, self->comm, self->stream);
    CHECK(called == ncclSuccess || called == ncclInvalidUsage);
    stream_wait(self->stream);
    OK(ncclCommGetAsyncError(self->comm, &error));
    CHECK(error == ncclInvalidUsage);
    CHECK(strstr(ncclGetLastError(self->comm), "all_reduce"));
    CHECK(strstr(ncclGetErrorString(error), "invalid usage"));
    /* An abort before another rank has looked would be that rank's error. */
    pthread_barrier_wait(self->barrier);
    OK(ncclCommAbort(self->comm));
    self->comm = NULL;
}

/* A program's limit of blocks holds for what can keep it, and refuses nothing. */
static void limited(struct rank *self)
{
    ncclConfig_t config = {.size = sizeof config,
                           .magic = NCCL_API_MAGIC,
                           .blocking = NCCL_CONFIG_UNDEF_INT,
                           .maxCTAs = 1};
    OK(ncclCommInitRankConfig(&self->comm, self->ranks, self->id, self->rank, &config));
    all_reduce(self);
    reduce_scatter(self);
    all_gather(self);
    all_to_all(self);
    rooted(self);
    exchange(self);
}

static void test_limited(void **unused)
{
    (void)unused;
    ranks_run(RANKS, false, limited);
}

static void test_configured(void **unused)
{
    (void)unused;
    ranks_run(RANKS, true, configured);
    ranks_run(RANKS, true, configured_forms);
}

static void test_misused(void **unused)
{
    (void)unused;
    ranks_run(RANKS, true, misused);
}

static void test_disagreeing(void **unused)
{
    (void)unused;
    ranks_run(RANKS, true, disagreeing);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_reduce),  cmocka_unit_test(test_reduce_scatter),
        cmocka_unit_test(test_all_gather),  cmocka_unit_test(test_all_to_all),
        cmocka_unit_test(test_rooted),      cmocka_unit_test(test_bits),
        cmocka_unit_test(test_dtypes),      cmocka_unit_test(test_exchange),
        cmocka_unit_test(test_streams),     cmocka_unit_test(test_mixed),
        cmocka_unit_test(test_captured),    cmocka_unit_test(test_one_thread),
        cmocka_unit_test(test_configured),  cmocka_unit_test(test_misused),
        cmocka_unit_test(test_disagreeing), cmocka_unit_test(test_limited),
    };
    harness_setup();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
