/* SPDX-License-Identifier: MIT */
/* The calls of well-known programs on libnccl.so.2, in their order: vLLM, PyTorch, CuPy and XLA. */
#include "harness.h"

enum { COUNT = 1000 };

static float *floats(float value, int count)
{
    float *made = device_alloc((size_t)count * sizeof *made);
    for (int i = 0; i < count; i++)
        made[i] = value;
    return made;
}

static void equal(const float *values, float expected, int count)
{
    for (int i = 0; i < count; i++)
        CHECK(values[i] == expected);
}

/* ---- vLLM's pynccl --------------------------------------------------------------------------- */

/* A warm-up, the calls of tensor parallelism, pipeline messages, a window in a pool of memory. */
static void pynccl(struct rank *self)
{
    const int next = (self->rank + 1) % self->ranks,
              last = (self->rank + self->ranks - 1) % self->ranks;
    float *own = floats((float)self->rank, COUNT), *out = floats(-1, self->ranks * COUNT);
    ncclWindow_t window;
    void *pool;
    int version = 0;
    OK(ncclGetVersion(&version));
    OK(ncclCommInitRank(&self->comm, self->ranks, self->id, self->rank));
    OK(ncclAllReduce(own, out, 1, ncclFloat32, ncclSum, self->comm, self->stream));
    stream_wait(self->stream);
    CHECK(out[0] == 3);
    OK(ncclAllGather(own, out, COUNT, ncclFloat32, self->comm, self->stream));
    OK(ncclReduceScatter(out, own, COUNT, ncclFloat32, ncclSum, self->comm, self->stream));
    stream_wait(self->stream);
    equal(own, (float)(self->ranks * self->rank), COUNT);
    /* Blocks of different sizes: a broadcast, or a reduction, for each. */
    OK(ncclGroupStart());
    for (int r = 0; r < self->ranks; r++)
        OK(ncclBroadcast(own, out + r * COUNT, (size_t)(COUNT - r), ncclFloat32, r, self->comm,
                         self->stream));
    OK(ncclGroupEnd());
    OK(ncclGroupStart());
    for (int r = 0; r < self->ranks; r++)
        OK(ncclReduce(out + r * COUNT, own, (size_t)(COUNT - r), ncclFloat32, ncclSum, r,
                      self->comm, self->stream));
    OK(ncclGroupEnd());
    stream_wait(self->stream);
    equal(own, (float)(self->ranks * self->ranks * self->rank), COUNT - self->rank);
    OK(ncclGroupStart());
    OK(ncclSend(own, 1, ncclFloat32, next, self->comm, self->stream));
    OK(ncclRecv(out, 1, ncclFloat32, last, self->comm, self->stream));
    OK(ncclGroupEnd());
    stream_wait(self->stream);
    CHECK(out[0] == (float)(self->ranks * self->ranks * last));
    OK(ncclMemAlloc(&pool, COUNT * sizeof *own));
    OK(ncclCommWindowRegister(self->comm, pool, COUNT * sizeof *own, &window, 1));
    for (int i = 0; i < COUNT; i++)
        ((float *)pool)[i] = 1;
    OK(ncclAllReduce(pool, pool, COUNT, ncclFloat32, ncclSum, self->comm, self->stream));
    stream_wait(self->stream);
    equal(pool, (float)self->ranks, COUNT);
    OK(ncclCommWindowDeregister(self->comm, window));
    pthread_barrier_wait(self->barrier); /* cuMemUnmap() of a peer's thread waits for no stream */
    OK(ncclMemFree(pool));
}

static void test_pynccl(void **unused)
{
    (void)unused;
    ranks_run(RANKS, false, pynccl);
}

/* ---- PyTorch's ProcessGroupNCCL -------------------------------------------------------------- */

/* Its watchdog asks for errors in a thread of its own, while the program calls. */
struct watchdog {
    ncclComm_t comm;
    bool ends;
};

static void *watchdog_run(void *opaque)
{
    struct watchdog *watchdog = opaque;
    ncclResult_t error;
    while (!__atomic_load_n(&watchdog->ends, __ATOMIC_ACQUIRE)) {
        OK(ncclCommGetAsyncError(watchdog->comm, &error));
        CHECK(error == ncclSuccess || error == ncclInProgress);
        nap_ms(1);
    }
    return NULL;
}

/* An eager group without blocking, a group split from it, a coalesced call, the end by an abort. */
static void process_group(struct rank *self)
{
    ncclConfig_t config = config_of(22809, 0);
    float *own = floats(1, COUNT), *all = floats(0, self->ranks * COUNT);
    struct watchdog watchdog = {.ends = false};
    ncclComm_t child = NULL;
    ncclResult_t result;
    pthread_t thread;
    void *segment;
    result = ncclCommInitRankConfig(&self->comm, self->ranks, self->id, self->rank, &config);
    CHECK(result == ncclSuccess || result == ncclInProgress);
    watchdog.comm = self->comm;
    CHECK(pthread_create(&thread, NULL, watchdog_run, &watchdog) == 0);
    OK(comm_wait(self->comm));
    OK(ncclCommRegister(self->comm, own, COUNT * sizeof *own, &segment));
    for (int i = 0; i < 5; i++)
        OK(ncclAllReduce(own, own, COUNT, ncclFloat32, ncclAvg, self->comm, self->stream));
    OK(ncclGroupStart());
    OK(ncclAllGather(own, all, COUNT, ncclFloat32, self->comm, self->stream));
    OK(ncclAllReduce(own, own, COUNT, ncclFloat32, ncclSum, self->comm, self->stream));
    result = ncclGroupEnd();
    CHECK(result == ncclSuccess || result == ncclInProgress);
    OK(comm_wait(self->comm));
    stream_wait(self->stream);
    equal(all, 1, self->ranks * COUNT);
    equal(own, (float)self->ranks, COUNT);
    result = ncclCommSplit(self->comm, self->rank == 0 ? NCCL_SPLIT_NOCOLOR : 1, self->rank, &child,
                           &config);
    CHECK(result == ncclSuccess || result == ncclInProgress);
    OK(comm_wait(self->comm));
    CHECK((child == NULL) == (self->rank == 0));
    if (child)
        comm_check(child, self->ranks - 1, self->stream);
    __atomic_store_n(&watchdog.ends, true, __ATOMIC_RELEASE);
    pthread_join(thread, NULL);
    pthread_barrier_wait(self->barrier); /* torch's store has one before the end */
    if (child)
        OK(ncclCommAbort(child));
    OK(ncclCommDeregister(self->comm, segment));
    OK(ncclCommAbort(self->comm));
    self->comm = NULL;
}

static void test_process_group(void **unused)
{
    (void)unused;
    ranks_run(RANKS, false, process_group);
}

/* ---- CuPy ------------------------------------------------------------------------------------ */

/* NcclCommunicator.initAll(): a thread has all ranks, and moves from device to device. */
static void test_cupy(void **unused)
{
    ncclComm_t comms[RANKS], children[RANKS];
    float *own[RANKS], *out[RANKS];
    int devices[RANKS], rank = -1, size = -1, device = -1;
    (void)unused;
    for (int r = 0; r < RANKS; r++)
        devices[r] = r;
    OK(ncclCommInitAll(comms, RANKS, devices));
    for (int r = 0; r < RANKS; r++) {
        device_enter(r);
        own[r] = floats((float)r + 1, COUNT);
        out[r] = floats(0, COUNT);
        OK(ncclCommUserRank(comms[r], &rank));
        OK(ncclCommCount(comms[r], &size));
        OK(ncclCommCuDevice(comms[r], &device));
        CHECK(rank == r && size == RANKS && device == r);
    }
    for (int turn = 0; turn < 2; turn++) {
        OK(ncclGroupStart());
        for (int r = 0; r < RANKS; r++) {
            device_enter(r);
            OK(turn == 0
                   ? ncclAllReduce(own[r], out[r], COUNT, ncclFloat32, ncclProd, comms[r], NULL)
                   : ncclBcast(out[r], COUNT, ncclFloat32, 2, comms[r], NULL));
        }
        OK(ncclGroupEnd());
        for (int r = 0; r < RANKS; r++) {
            device_enter(r);
            CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
            equal(out[r], 6, COUNT);
        }
    }
    OK(ncclGroupStart());
    for (int r = 0; r < RANKS; r++)
        OK(ncclCommSplit(comms[r], r == 1, 0, &children[r], NULL));
    OK(ncclGroupEnd());
    for (int r = 0; r < RANKS; r++) {
        OK(ncclCommCount(children[r], &size));
        CHECK(size == (r == 1 ? 1 : 2));
    }
    device_free_all();
    for (int r = 0; r < RANKS; r++) {
        OK(ncclCommDestroy(children[r]));
        OK(ncclCommAbort(comms[r]));
    }
}

/* ---- XLA ------------------------------------------------------------------------------------- */

/* A clique of one process: its ranks are made in one group, without blocking, and asked for until
 * they are there. The calls of a collective of several operands are a group on one stream. */
static void test_xla(void **unused)
{
    ncclConfig_t config = config_of(22809, 0);
    ncclComm_t comms[RANKS];
    ncclUniqueId id;
    uint16_t *shorts[RANKS];
    float *own[RANKS];
    (void)unused;
    OK(ncclGetUniqueId(&id));
    OK(ncclGroupStart());
    for (int r = 0; r < RANKS; r++) {
        device_enter(r);
        const ncclResult_t made = ncclCommInitRankConfig(&comms[r], RANKS, id, r, &config);
        CHECK(made == ncclSuccess || made == ncclInProgress);
        shorts[r] = device_alloc(COUNT * sizeof **shorts);
        own[r] = floats(1, COUNT);
        shorts[r][0] = (uint16_t)(0x7c01 + r); /* int16 goes as float16, where this is NaN */
    }
    const ncclResult_t ended = ncclGroupEnd();
    CHECK(ended == ncclSuccess || ended == ncclInProgress);
    for (int r = 0; r < RANKS; r++)
        OK(comm_wait(comms[r]));
    OK(ncclGroupStart());
    for (int r = 0; r < RANKS; r++) {
        device_enter(r);
        const int to = (r + 1) % RANKS, from = (r + RANKS - 1) % RANKS;
        OK(ncclSend(shorts[r], 1, ncclFloat16, to, comms[r], NULL));
        OK(ncclRecv(shorts[r] + 1, 1, ncclFloat16, from, comms[r], NULL));
        OK(ncclAllReduce(own[r], own[r], COUNT / 2, ncclFloat32, ncclSum, comms[r], NULL));
        OK(ncclAllReduce(own[r] + COUNT / 2, own[r] + COUNT / 2, COUNT / 2, ncclFloat32, ncclMax,
                         comms[r], NULL));
    }
    OK(ncclGroupEnd());
    for (int r = 0; r < RANKS; r++) {
        device_enter(r);
        CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
        CHECK(shorts[r][1] == 0x7c01 + (r + RANKS - 1) % RANKS);
        equal(own[r], (float)RANKS, COUNT / 2);
        equal(own[r] + COUNT / 2, 1, COUNT / 2);
    }
    device_free_all();
    for (int r = 0; r < RANKS; r++)
        OK(ncclCommDestroy(comms[r]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pynccl),
        cmocka_unit_test(test_process_group),
        cmocka_unit_test(test_cupy),
        cmocka_unit_test(test_xla),
    };
    harness_setup();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
