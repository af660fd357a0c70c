/* SPDX-License-Identifier: MIT */
/*
 * Processes that share a device, so that a host thread stages their operations: results, order,
 * room, captures; every way to end with operations under way; each call of the driver that fails.
 * Argument: processes or threads. With threads each rank reports another process.
 */
#include "base/deadline.h"
#include "bootstrap/host.h"
#include "failing_calls.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    ELEMENTS = (5 << 20) / 4 + 3, /* six pieces, the last one of three elements */
    MANY = 10000,
    MANY_SHORT = 500,
    ROOM = 256, /* CUDA_PROXY_OPERATIONS */
    SOON_MS = 10000,
    LEAVE_MS = 200,
};

/* The linker's: which process a rank says that it is. Each rank is a process of its own. */
__typeof__(host_record_make) __real_host_record_make, __wrap_host_record_make;

enum tutti_status __wrap_host_record_make(const struct comm_config *config, int world_size,
                                          const struct channel_address *address,
                                          const struct host_threads *threads,
                                          struct host_record *record)
{
    static uint8_t made;
    enum tutti_status status =
        __real_host_record_make(config, world_size, address, threads, record);
    record->identity.address.id[0] ^= __atomic_add_fetch(&made, 1, __ATOMIC_RELAXED);
    return status;
}

struct rank {
    struct ranks *ranks;
    int rank;
    tutti_comm_t *comm;
    CUstream a, b;
    int32_t *send, *recv;
};

static enum tutti_status join(struct ranks *ranks, int rank, tutti_store_t *store,
                              tutti_comm_t **comm)
{
    const struct tutti_comm_options options = {.struct_size = sizeof options,
                                               .device = TUTTI_DEVICE_CUDA};
    return ranks_join(ranks, rank, store, &options, comm);
}

static int open_rank(struct rank *self, struct ranks *ranks, int rank, tutti_store_t *store)
{
    *self = (struct rank){.ranks = ranks, .rank = rank};
    RANKS_CHECK(device_enter(0));
    RANKS_CHECK(join(ranks, rank, store, &self->comm) == TUTTI_OK);
    RANKS_CHECK(cuStreamCreateWithPriority(&self->a, CU_STREAM_NON_BLOCKING, 0) == CUDA_SUCCESS);
    RANKS_CHECK(cuStreamCreateWithPriority(&self->b, CU_STREAM_NON_BLOCKING, 0) == CUDA_SUCCESS);
    self->send = device_alloc(ELEMENTS * sizeof *self->send);
    self->recv = device_alloc(ELEMENTS * sizeof *self->recv);
    for (int i = 0; i < ELEMENTS; i++)
        self->send[i] = (i + 1) * (rank + 1);
    return 0;
}

static void close_rank(struct rank *self)
{
    tutti_comm_destroy(self->comm);
    cuStreamDestroy_v2(self->a);
    cuStreamDestroy_v2(self->b);
    device_free(self->send);
    device_free(self->recv);
}

static enum tutti_status reduce(struct rank *self, void *recv, size_t count, CUstream stream,
                                int64_t timeout_ms)
{
    struct tutti_call_options options = {.struct_size = sizeof options, .timeout_ms = timeout_ms};
    const void *send = recv == self->recv ? (void *)self->send : recv;
    return tutti_all_reduce_with(send, recv, count, TUTTI_INT32, TUTTI_SUM, self->comm,
                                 device_stream(stream), &options);
}

/* 1 + 2 + ... + size */
static int32_t ranks_sum(const struct ranks *ranks)
{
    return ranks->size * (ranks->size + 1) / 2;
}

/* size to the power of `times`, wrapped */
static uint32_t power(const struct ranks *ranks, int times)
{
    uint32_t value = 1;
    for (int i = 0; i < times; i++)
        value *= (uint32_t)ranks->size;
    return value;
}

static bool in_recv(const struct rank *self, int count)
{
    for (int i = 0; i < count; i++)
        if (self->recv[i] != (i + 1) * ranks_sum(self->ranks))
            return false;
    return true;
}

/* ---- what it does ---------------------------------------------------------------------------- */

static int speaks(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct tutti_call_options options = {.struct_size = sizeof options};
    struct rank self;
    enum tutti_algo algo;
    const char *reason;
    char text[4096];
    int failed = open_rank(&self, ranks, rank, store);
    if (failed)
        return failed;
    /* Of kernels it has rms_norm_rows of 3 dtypes. Ranks may be threads. */
    RANKS_CHECK(standin_calls("cuKernelGetFunction") <= (uint64_t)(3 * ranks->size));
    RANKS_CHECK(standin_calls("cuMemCreate") == 0);
    tutti_comm_describe(self.comm, text, sizeof text);
    RANKS_CHECK(strstr(text, "arena: none, for a host thread stages: processes share a device\n"));
    RANKS_CHECK(strstr(text, "plan: host_staged up to any size, by a host thread, pieces of "));
    RANKS_CHECK(tutti_comm_algorithm(self.comm, 10, TUTTI_INT32, TUTTI_SUM, NULL, &algo, &reason) ==
                    TUTTI_OK &&
                algo == TUTTI_ALGO_HOST_STAGED &&
                strcmp(reason, "staged by a host thread: processes share a device") == 0);
    for (int asked = TUTTI_ALGO_ONE_SHOT; asked <= TUTTI_ALGO_HOST_STAGED; asked++) {
        if (!strcmp(tutti_algo_name((enum tutti_algo)asked), "unknown"))
            continue;
        bool serves = asked <= TUTTI_ALGO_TWO_SHOT || asked == TUTTI_ALGO_HOST_STAGED;
        options.algo = (enum tutti_algo)asked;
        enum tutti_status status =
            tutti_all_reduce_with(self.send, self.recv, 1000, TUTTI_INT32, TUTTI_SUM, self.comm,
                                  device_stream(self.a), &options);
        RANKS_CHECK(status == (serves ? TUTTI_OK : TUTTI_ERR_INVALID));
        RANKS_CHECK(tutti_comm_algorithm(self.comm, 10, TUTTI_INT32, TUTTI_SUM, &options, &algo,
                                         &reason) == status);
        RANKS_CHECK(!serves || (int)algo == asked);
    }
    RANKS_CHECK(cuStreamSynchronize(self.a) == CUDA_SUCCESS && in_recv(&self, 1000));
    RANKS_CHECK(standin_calls("cuLaunchKernelEx") == 0);
    close_rank(&self);
    return 0;
}

/* Several pieces, some operations under way at once, barriers between them. */
static int goes_by_pieces(struct ranks *ranks, int rank, tutti_store_t *store)
{
    static const int counts[] = {ELEMENTS, (1 << 20) / 4, 0, 1, (2 << 20) / 4 + 1, 7};
    const int pair[] = {0, 1};
    struct rank self;
    int failed = open_rank(&self, ranks, rank, store);
    if (failed)
        return failed;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        memset(self.recv, 0, ELEMENTS * sizeof *self.recv);
        for (int again = 0; again < 2; again++)
            RANKS_CHECK(reduce(&self, self.recv, (size_t)counts[i], self.a, 0) == TUTTI_OK);
        RANKS_CHECK(tutti_barrier(self.comm, NULL, 0, device_stream(self.a)) == TUTTI_OK);
        if (rank < 2)
            RANKS_CHECK(tutti_barrier(self.comm, pair, 2, device_stream(self.a)) == TUTTI_OK);
        RANKS_CHECK(cuStreamSynchronize(self.a) == CUDA_SUCCESS);
        RANKS_CHECK(tutti_comm_status(self.comm, NULL) == TUTTI_OK);
        RANKS_CHECK(in_recv(&self, counts[i]));
        RANKS_CHECK(counts[i] == ELEMENTS || self.recv[counts[i]] == 0);
    }
    close_rank(&self);
    return 0;
}

/* Few bytes, odd and even ones, none but theirs is written: but for one byte, and for more than
 * 1024, by copies of rows. */
static int goes_by_rows(struct ranks *ranks, int rank, tutti_store_t *store)
{
    static const size_t counts[] = {1, 2, 3, 6, 255, 1021, 1023, 1024, 1025, 2049};
    struct rank self;
    int failed = open_rank(&self, ranks, rank, store);
    if (failed)
        return failed;
    int8_t *send = (int8_t *)self.send, *recv = (int8_t *)self.recv;
    for (size_t i = 0; i < 4096; i++)
        send[i] = (int8_t)(i % 3 * (size_t)(rank + 1));
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        const uint64_t copies = standin_calls("cuMemcpy2DAsync");
        memset(recv, 100, 4096);
        RANKS_CHECK(tutti_all_reduce(send, recv, counts[i], TUTTI_INT8, TUTTI_SUM, self.comm,
                                     device_stream(self.a)) == TUTTI_OK);
        bool rows = counts[i] > 1 && counts[i] <= 1024;
        RANKS_CHECK(!rows || standin_calls("cuMemcpy2DAsync") > copies);
        RANKS_CHECK(cuStreamSynchronize(self.a) == CUDA_SUCCESS);
        for (size_t at = 0; at < 4096; at++)
            RANKS_CHECK(recv[at] == (at < counts[i] ? (int)(at % 3) * ranks_sum(ranks) : 100));
    }
    close_rank(&self);
    return 0;
}

/* In place, from stream to stream: none before the one before. */
static int keeps_order(struct ranks *ranks, int rank, tutti_store_t *store)
{
    enum { TIMES = 60, COUNT = (1 << 20) / 4 + 5 };
    struct rank self;
    int failed = open_rank(&self, ranks, rank, store);
    if (failed)
        return failed;
    for (int i = 0; i < COUNT; i++)
        self.send[i] = 1;
    for (int i = 0; i < TIMES; i++)
        RANKS_CHECK(reduce(&self, self.send, i % 4 ? 10 : COUNT, i % 3 ? self.a : self.b, 0) ==
                    TUTTI_OK);
    RANKS_CHECK(cuStreamSynchronize(self.a) == CUDA_SUCCESS);
    RANKS_CHECK(cuStreamSynchronize(self.b) == CUDA_SUCCESS);
    for (int i = 0; i < COUNT; i++)
        RANKS_CHECK((uint32_t)self.send[i] == power(ranks, i < 10 ? TIMES : TIMES / 4));
    close_rank(&self);
    return 0;
}

static int does_many(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const int times = ranks_short() || ranks->size > 2 ? MANY_SHORT : MANY;
    struct rank self;
    int failed = open_rank(&self, ranks, rank, store);
    if (failed)
        return failed;
    self.send[0] = 1;
    for (int i = 0; i < times; i++)
        RANKS_CHECK(reduce(&self, self.send, 1, self.a, 0) == TUTTI_OK);
    RANKS_CHECK(cuStreamSynchronize(self.a) == CUDA_SUCCESS);
    RANKS_CHECK(tutti_comm_status(self.comm, NULL) == TUTTI_OK);
    RANKS_CHECK((uint32_t)self.send[0] == power(ranks, times));
    close_rank(&self);
    return 0;
}

/* A stream's host function, which waits until it may go on. */
static void stand_still(void *argument)
{
    const uint32_t *go = argument;
    while (!__atomic_load_n(go, __ATOMIC_ACQUIRE))
        usleep(100);
}

/* Refused, and the capture goes on. */
static int refuses_captures(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct rank self;
    CUgraph graph;
    int failed = open_rank(&self, ranks, rank, store);
    if (failed)
        return failed;
    RANKS_CHECK(cuStreamBeginCapture_v2(self.a, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) ==
                CUDA_SUCCESS);
    RANKS_CHECK(reduce(&self, self.recv, 10, self.a, 0) == TUTTI_ERR_DECLINED);
    RANKS_CHECK(strstr(tutti_last_error(), "host thread") &&
                strstr(tutti_last_error(), "threads of one process"));
    RANKS_CHECK(tutti_barrier(self.comm, NULL, 0, device_stream(self.a)) == TUTTI_ERR_DECLINED);
    RANKS_CHECK(tutti_broadcast(self.recv, self.recv, 10, TUTTI_INT32, 0, self.comm,
                                device_stream(self.a)) == TUTTI_ERR_DECLINED);
    RANKS_CHECK(reduce(&self, self.recv, 10, self.b, 0) == TUTTI_OK); /* beside it */
    RANKS_CHECK(cuStreamEndCapture(self.a, &graph) == CUDA_SUCCESS);
    RANKS_CHECK(cuGraphDestroy(graph) == CUDA_SUCCESS);
    RANKS_CHECK(reduce(&self, self.recv, 10, self.a, 0) == TUTTI_OK);
    RANKS_CHECK(cuStreamSynchronize(self.a) == CUDA_SUCCESS && in_recv(&self, 10));
    close_rank(&self);
    return 0;
}

/* Messages of a group on two streams are refused, before any of them is enqueued. */
static int asks_for_one_stream(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct rank self;
    int failed = open_rank(&self, ranks, rank, store);
    if (failed)
        return failed;
    const int next = (rank + 1) % ranks->size, before = (rank + ranks->size - 1) % ranks->size;
    for (int one = 0; one < 2; one++) {
        RANKS_CHECK(tutti_group_start() == TUTTI_OK);
        RANKS_CHECK(tutti_send(self.send, 10, TUTTI_INT32, next, self.comm,
                               device_stream(self.a)) == TUTTI_OK);
        RANKS_CHECK(tutti_recv(self.recv, 10, TUTTI_INT32, before, self.comm,
                               device_stream(one ? self.a : self.b)) == TUTTI_OK);
        RANKS_CHECK(tutti_group_end() == (one ? TUTTI_OK : TUTTI_ERR_INVALID));
        RANKS_CHECK(one || strstr(tutti_last_error(), "one stream"));
    }
    RANKS_CHECK(cuStreamSynchronize(self.a) == CUDA_SUCCESS);
    for (int i = 0; i < 10; i++)
        RANKS_CHECK(self.recv[i] == (i + 1) * (before + 1));
    /* To free memory waits for the streams of all threads, and holds up their other calls. */
    ranks_raise(ranks, 1);
    RANKS_CHECK(ranks_await(ranks, 1, (uint32_t)ranks->size));
    close_rank(&self);
    return 0;
}

/* ---- how it ends ----------------------------------------------------------------------------- */

/* All streams come to their end, and the communicator names the cause. */
static int suffer(struct rank *self, enum tutti_status expected, int peer)
{
    struct ranks *ranks = self->ranks;
    const int rank = self->rank;
    struct tutti_fault fault = {.struct_size = sizeof fault};
    int64_t start = deadline_now();
    RANKS_CHECK(cuStreamSynchronize(self->a) == CUDA_SUCCESS);
    RANKS_CHECK(cuStreamSynchronize(self->b) == CUDA_SUCCESS);
    RANKS_CHECK(tutti_comm_status(self->comm, &fault) == expected && fault.peer == peer);
    RANKS_CHECK(reduce(self, self->recv, 1, self->b, 0) == expected);
    RANKS_CHECK(deadline_now() - start < (int64_t)SOON_MS * 1000000);
    return 0;
}

/* Rank 0 has one more than there is room for, on a stream that stands still. */
static int has_no_room(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct rank self;
    uint32_t go = 0;
    int failed = open_rank(&self, ranks, rank, store);
    if (failed)
        return failed;
    RANKS_CHECK(cuLaunchHostFunc(self.a, stand_still, &go) == CUDA_SUCCESS);
    for (int i = 0; i < ROOM; i++)
        RANKS_CHECK(reduce(&self, self.send, 1, self.a, 0) == TUTTI_OK);
    ranks_raise(ranks, 1);
    RANKS_CHECK(ranks_await(ranks, 1, (uint32_t)ranks->size));
    if (rank == 0) {
        enum tutti_status status = reduce(&self, self.send, 1, self.a, 100);
        RANKS_CHECK(status == TUTTI_ERR_TIMEOUT && strstr(tutti_last_error(), "256 operations"));
        ranks_raise(ranks, 2);
    }
    RANKS_CHECK(ranks_await(ranks, 2, 1));
    __atomic_store_n(&go, 1, __ATOMIC_RELEASE);
    failed = suffer(&self, TUTTI_ERR_TIMEOUT, 0);
    close_rank(&self);
    return failed;
}

/* Rank 0 destroys what waits for the others: its work has failed, and the others hear that it has
 * left, no more. */
static int leaves(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct rank self;
    tutti_work_t *work;
    int failed = open_rank(&self, ranks, rank, store);
    if (failed)
        return failed;
    if (rank == 0) {
        int64_t start = deadline_now();
        RANKS_CHECK(reduce(&self, self.recv, ELEMENTS, self.a, 0) == TUTTI_OK);
        RANKS_CHECK(reduce(&self, self.recv, 1, self.b, 0) == TUTTI_OK);
        RANKS_CHECK(tutti_work_record(self.comm, device_stream(self.b), &work) == TUTTI_OK);
        device_destroy_within(self.comm, LEAVE_MS);
        tutti_comm_destroy(self.comm);
        self.comm = NULL;
        RANKS_CHECK(tutti_work_wait_host(work, SOON_MS) == TUTTI_ERR_ABORTED);
        tutti_work_destroy(work);
        RANKS_CHECK(cuStreamSynchronize(self.b) == CUDA_SUCCESS);
        RANKS_CHECK(deadline_now() - start < (int64_t)SOON_MS * 1000000);
        ranks_raise(ranks, 1);
    } else {
        RANKS_CHECK(ranks_await(ranks, 1, 1));
        RANKS_CHECK(reduce(&self, self.recv, ELEMENTS, self.a, 0) == TUTTI_OK);
        failed = suffer(&self, TUTTI_ERR_PEER_DEAD, 0);
    }
    close_rank(&self);
    return failed;
}

/* The last rank gives up amid operations of several pieces. */
static int aborts(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const int last = ranks->size - 1;
    struct rank self;
    int failed = open_rank(&self, ranks, rank, store);
    if (failed)
        return failed;
    for (int i = 0; i < 20; i++) {
        enum tutti_status status = reduce(&self, self.recv, ELEMENTS, self.a, 0);
        RANKS_CHECK(status == TUTTI_OK || status == TUTTI_ERR_ABORTED);
        if (rank == last && i == 10)
            tutti_comm_abort(self.comm);
    }
    failed = suffer(&self, TUTTI_ERR_ABORTED, last);
    close_rank(&self);
    return failed;
}

/* Rank 1 dies, or exits, with operations under way, some of which lack a rank. */
static int end_of_one(struct ranks *ranks, int rank, tutti_store_t *store, bool kills)
{
    struct rank self;
    int failed = open_rank(&self, ranks, rank, store);
    if (failed)
        return failed;
    for (int i = 0; i < 10 - (rank != 1); i++) {
        enum tutti_status status = reduce(&self, self.recv, ELEMENTS, self.a, 0);
        RANKS_CHECK(status == TUTTI_OK || (rank != 1 && status == TUTTI_ERR_PEER_DEAD));
    }
    if (rank == 1 && kills)
        raise(SIGKILL);
    if (rank == 1 && ranks_short())
        _exit(0); /* a sanitizer would find what nobody has freed */
    if (rank == 1)
        exit(0);
    enum tutti_status status = reduce(&self, self.recv, 1, self.b, 0);
    RANKS_CHECK(status == TUTTI_OK || status == TUTTI_ERR_PEER_DEAD ||
                status == TUTTI_ERR_MISMATCH);
    RANKS_CHECK(cuStreamSynchronize(self.b) == CUDA_SUCCESS);
    status = tutti_comm_status(self.comm, NULL);
    RANKS_CHECK(status == TUTTI_ERR_PEER_DEAD || status == TUTTI_ERR_MISMATCH);
    close_rank(&self);
    return 0;
}

static int dies(struct ranks *ranks, int rank, tutti_store_t *store)
{
    return end_of_one(ranks, rank, store, true);
}

static int exits(struct ranks *ranks, int rank, tutti_store_t *store)
{
    return end_of_one(ranks, rank, store, false);
}

/* The child has no thread and needs none; its parent's goes on. */
static int forks(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct rank self;
    int how = 0, failed = open_rank(&self, ranks, rank, store);
    if (failed)
        return failed;
    RANKS_CHECK(reduce(&self, self.recv, ELEMENTS, self.a, 0) == TUTTI_OK);
    pid_t child = fork();
    if (child == 0) {
        int wrong = reduce(&self, self.recv, 1, self.a, 0) != TUTTI_ERR_INVALID;
        tutti_comm_destroy(self.comm);
        ranks_short() ? _exit(wrong) : exit(wrong); /* a sanitizer finds what is the parent's */
    }
    RANKS_CHECK(child > 0 && waitpid(child, &how, 0) == child && how == 0);
    RANKS_CHECK(cuStreamSynchronize(self.a) == CUDA_SUCCESS && in_recv(&self, ELEMENTS));
    close_rank(&self);
    return 0;
}

/* ---- every call fails in turn ---------------------------------------------------------------- */

/* Not those with which the end asks what still runs: it keeps all memory if they fail. */
static const char *const calls[] = {
    "cuMemHostGetDevicePointer",
    "cuStreamCreateWithPriority",
    "cuEventCreate",
    "cuPointerGetAttributes",
    "cuMemcpyAsync",
    "cuMemcpy2DAsync",
    "cuThreadExchangeStreamCaptureMode",
    "cuMemHostAlloc",
    "cuStreamWaitEvent",
    "cuStreamWriteValue64",
    "cuStreamWaitValue64",
};

static CUstream streams[2][2];

static int reduce_once(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct failing_calls_outcome *outcome = (struct failing_calls_outcome *)(void *)ranks->shared;
    struct rank self = {.ranks = ranks, .rank = rank, .a = streams[rank][0], .b = streams[rank][1]};
    RANKS_CHECK(device_enter(0));
    outcome->whole[rank] = 0;
    if (join(ranks, rank, store, &self.comm) != TUTTI_OK) {
        RANKS_CHECK(!self.comm);
        return 0;
    }
    outcome->whole[rank] = 1;
    self.send = device_alloc(ELEMENTS * sizeof *self.send);
    self.recv = device_alloc(ELEMENTS * sizeof *self.recv);
    for (int i = 0; i < ELEMENTS; i++)
        self.send[i] = (i + 1) * (rank + 1);
    enum tutti_status status = reduce(&self, self.recv, ELEMENTS, self.a, 0);
    if (status == TUTTI_OK)
        status = tutti_barrier(self.comm, NULL, 0, device_stream(self.b));
    if (status == TUTTI_OK) {
        RANKS_CHECK(cuStreamSynchronize(self.a) == CUDA_SUCCESS);
        RANKS_CHECK(cuStreamSynchronize(self.b) == CUDA_SUCCESS);
        status = tutti_comm_status(self.comm, NULL);
    }
    bool expected = status == TUTTI_OK || status == TUTTI_ERR_CUDA ||
                    status == TUTTI_ERR_PEER_DEAD ||
                    status == TUTTI_ERR_INVALID; /* a pointer that the driver does not know */
    tutti_comm_destroy(self.comm);
    RANKS_CHECK(expected);
    RANKS_CHECK(cuStreamSynchronize(self.a) == CUDA_SUCCESS);
    RANKS_CHECK(cuStreamSynchronize(self.b) == CUDA_SUCCESS);
    RANKS_CHECK(status != TUTTI_OK || in_recv(&self, ELEMENTS));
    device_free(self.send);
    device_free(self.recv);
    return 0;
}

/* But for the four streams, which are there all the time. */
static size_t left_besides(void)
{
    return device_left() - 4;
}

static int fail_in_turn(void)
{
    CHECK(device_enter(0));
    for (int i = 0; i < 4; i++)
        CHECK(cuStreamCreateWithPriority(&streams[i / 2][i % 2], CU_STREAM_NON_BLOCKING, 0) ==
              CUDA_SUCCESS);
    int failed = failing_calls_run(
        &(struct failing_calls){.once = reduce_once,
                                .shared_bytes = sizeof(struct failing_calls_outcome),
                                .calls = calls,
                                .count = sizeof calls / sizeof *calls,
                                .doubling = true,
                                .left = left_besides});
    for (int i = 0; i < 4; i++)
        CHECK(cuStreamDestroy_v2(streams[i / 2][i % 2]) == CUDA_SUCCESS);
    return failed;
}

/* ---------------------------------------------------------------------------------------------- */

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        ranks_fn *fn;
        bool processes; /* only */
        uint64_t expendable;
    } parts[] = {
        {"speaks", speaks, false, 0},
        {"goes by pieces", goes_by_pieces, false, 0},
        {"goes by rows", goes_by_rows, false, 0},
        {"keeps order", keeps_order, false, 0},
        {"does many", does_many, false, 0},
        {"has no room", has_no_room, false, 0},
        {"refuses captures", refuses_captures, false, 0},
        {"asks for one stream", asks_for_one_stream, false, 0},
        {"leaves", leaves, false, 0},
        {"aborts", aborts, false, 0},
        {"dies", dies, true, 2},
        {"exits", exits, true, 0},
        {"forks", forks, true, 0},
    };
    int failures = 0;
    if (argc != 2)
        return 2;
    const bool threads = strcmp(argv[1], "threads") == 0;
    device_setup();
    setenv("TUTTI_STANDIN_DEVICES", "1", 1);
    setenv("TUTTI_ALLOW_OVERLAPPING_DEVICES", "1", 1);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (threads && parts[i].processes)
            continue;
        for (int size = 2; size <= 3; size++) {
            standin_forget();
            struct ranks *ranks = ranks_create(size, threads ? 0 : size, 0);
            ranks->expendable = parts[i].expendable;
            int failed = ranks_run(ranks, parts[i].fn);
            ranks_destroy(ranks);
            if (threads && device_left() != 0)
                failed++;
            if (failed)
                fprintf(stderr, "%s failed with %d ranks\n", parts[i].name, size);
            failures += failed;
        }
    }
    if (threads)
        failures += fail_in_turn();
    return failures ? 1 : 0;
}
