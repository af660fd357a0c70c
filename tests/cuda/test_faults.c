/* SPDX-License-Identifier: MIT */
/*
 * What goes wrong with CUDA communicators: a rank aborts, dies, leaves, is late, stands still amid
 * an operation, or means something else. Every rank's work ends, every rank names the same cause,
 * the context and other communicators are used afterwards. Wrong pointers and calls are refused and
 * change nothing. Arguments: processes or threads.
 */
#include "device.h"
#include "forced.h"

#include "base/deadline.h"
#include "cuda/tuning/table.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { COUNT = 70000, PATIENCE_MS = 1000, SOON_MS = 20000 };

struct rank {
    struct ranks *ranks;
    int rank, victim;
    tutti_comm_t *comm, *other;
    CUstream stream;
    float *data;
};

static enum tutti_status reduce(struct rank *self, size_t count, int64_t timeout_ms)
{
    struct tutti_call_options options = {.struct_size = sizeof options, .timeout_ms = timeout_ms};
    return tutti_all_reduce_with(self->data, self->data, count, TUTTI_FLOAT32, TUTTI_SUM,
                                 self->comm, device_stream(self->stream), &options);
}

/* `other` has all ranks but the victim. */
static int open_rank(struct rank *self, struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct tutti_comm_options options = {.struct_size = sizeof options,
                                         .name = "survivors",
                                         .device = TUTTI_DEVICE_CUDA,
                                         .timeout_ms = RANKS_TIMEOUT_MS};
    *self = (struct rank){.ranks = ranks, .rank = rank, .victim = 1};
    RANKS_CHECK(device_join(ranks, rank, store, NULL, &self->comm) == TUTTI_OK);
    if (rank != self->victim && ranks->size > 2)
        RANKS_CHECK(tutti_comm_create(store, rank - (rank > self->victim), ranks->size - 1,
                                      &options, &self->other) == TUTTI_OK);
    RANKS_CHECK(cuStreamCreateWithPriority(&self->stream, CU_STREAM_NON_BLOCKING, 0) ==
                CUDA_SUCCESS);
    self->data = device_alloc(COUNT * sizeof *self->data);
    for (int i = 0; i < 3; i++)
        RANKS_CHECK(reduce(self, COUNT, 0) == TUTTI_OK);
    RANKS_CHECK(cuStreamSynchronize(self->stream) == CUDA_SUCCESS);
    ranks_raise(ranks, 1);
    RANKS_CHECK(ranks_await(ranks, 1, (uint32_t)ranks->size));
    return 0;
}

static void close_rank(struct rank *self)
{
    tutti_comm_destroy(self->comm);
    tutti_comm_destroy(self->other);
    cuStreamDestroy_v2(self->stream);
    device_free(self->data);
}

/* The stream comes to its end, and the communicator names the cause, for good. */
static int suffer(struct rank *self, enum tutti_status expected, int peer)
{
    struct ranks *ranks = self->ranks;
    const int rank = self->rank;
    struct tutti_fault fault = {.struct_size = sizeof fault};
    char word[32];
    int64_t start = deadline_now();
    RANKS_CHECK(cuStreamSynchronize(self->stream) == CUDA_SUCCESS);
    RANKS_CHECK(deadline_now() - start < (int64_t)SOON_MS * 1000000);
    while (tutti_comm_status(self->comm, NULL) == TUTTI_OK) {
        RANKS_CHECK(deadline_now() - start < (int64_t)SOON_MS * 1000000);
        usleep(1000);
    }
    RANKS_CHECK(tutti_comm_status(self->comm, &fault) == expected);
    RANKS_CHECK(fault.status == expected && (peer < 0 || fault.peer == peer));
    RANKS_CHECK(fault.sequence >= 3 && fault.sequence <= 4);
    snprintf(word, sizeof word, "rank %d", fault.peer);
    RANKS_CHECK(strstr(tutti_last_error(), word));
    RANKS_CHECK(reduce(self, 1, 0) == expected && strstr(tutti_last_error(), word));
    RANKS_CHECK(tutti_barrier(self->comm, NULL, 0, device_stream(self->stream)) == expected);
    return 0;
}

/* What else there is works on. */
static int survive(struct rank *self)
{
    struct ranks *ranks = self->ranks;
    const int rank = self->rank;
    if (!self->other)
        return 0;
    for (int i = 0; i < 100; i++)
        self->data[i] = 1;
    RANKS_CHECK(tutti_all_reduce(self->data, self->data, 100, TUTTI_FLOAT32, TUTTI_SUM, self->other,
                                 device_stream(self->stream)) == TUTTI_OK);
    RANKS_CHECK(cuStreamSynchronize(self->stream) == CUDA_SUCCESS);
    RANKS_CHECK(tutti_comm_status(self->other, NULL) == TUTTI_OK);
    for (int i = 0; i < 100; i++)
        RANKS_CHECK(self->data[i] == (float)(ranks->size - 1));
    return 0;
}

/* All but the victim have an operation under way that lacks the victim. */
static int begin(struct rank *self)
{
    struct ranks *ranks = self->ranks;
    const int rank = self->rank;
    if (rank != self->victim) {
        RANKS_CHECK(reduce(self, COUNT, 0) == TUTTI_OK);
        ranks_raise(ranks, 2);
    } else {
        RANKS_CHECK(ranks_await(ranks, 2, (uint32_t)ranks->size - 1));
    }
    return 0;
}

/* ---- what happens ---------------------------------------------------------------------------- */

static tutti_comm_t *signalled;

static void on_signal(int number)
{
    (void)number;
    tutti_comm_abort(signalled);
}

/* By a signal handler where the rank has a process of its own. */
static int aborts(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct rank self;
    int failed = open_rank(&self, ranks, rank, store);
    if (failed || (failed = begin(&self)))
        return failed;
    if (rank != self.victim) {
        /* the others are told */
    } else if (ranks->processes) {
        struct sigaction action = {.sa_handler = on_signal};
        signalled = self.comm;
        sigaction(SIGUSR1, &action, NULL);
        raise(SIGUSR1);
    } else {
        tutti_comm_abort(self.comm);
    }
    failed = suffer(&self, TUTTI_ERR_ABORTED, self.victim);
    if (!failed && rank != self.victim)
        failed = survive(&self);
    close_rank(&self);
    return failed;
}

static int dies(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct rank self;
    int failed = open_rank(&self, ranks, rank, store);
    if (failed || (failed = begin(&self)))
        return failed;
    if (rank == self.victim)
        raise(SIGKILL);
    failed = suffer(&self, TUTTI_ERR_PEER_DEAD, self.victim);
    if (!failed)
        failed = survive(&self);
    close_rank(&self);
    return failed;
}

/* A rank that leaves does not disturb those who have all they need from it. */
static int leaves(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct rank self;
    int failed = open_rank(&self, ranks, rank, store);
    if (failed)
        return failed;
    if (rank == self.victim) {
        tutti_comm_destroy(self.comm);
        self.comm = NULL;
        ranks_raise(ranks, 2);
    } else {
        RANKS_CHECK(ranks_await(ranks, 2, 1));
        usleep(100000); /* several looks of the watcher */
        RANKS_CHECK(tutti_comm_status(self.comm, NULL) == TUTTI_OK);
        if (ranks->size > 2) { /* those that remain may still meet */
            int others[CUDA_RANKS], count = 0;
            for (int r = 0; r < ranks->size; r++)
                if (r != self.victim)
                    others[count++] = r;
            RANKS_CHECK(tutti_barrier(self.comm, others, count, device_stream(self.stream)) ==
                        TUTTI_OK);
            RANKS_CHECK(cuStreamSynchronize(self.stream) == CUDA_SUCCESS);
            RANKS_CHECK(tutti_comm_status(self.comm, NULL) == TUTTI_OK);
            ranks_raise(ranks, 3);
            RANKS_CHECK(ranks_await(ranks, 3, (uint32_t)count));
        }
        /* Another rank's operation may have failed already. */
        enum tutti_status status = reduce(&self, COUNT, 0);
        RANKS_CHECK(status == TUTTI_OK || status == TUTTI_ERR_PEER_DEAD);
        failed = suffer(&self, TUTTI_ERR_PEER_DEAD, self.victim);
        if (!failed)
            failed = survive(&self);
    }
    close_rank(&self);
    return failed;
}

/* The others have enqueued theirs when the victim's launch fails. */
static int cannot_launch(struct ranks *ranks, int rank, tutti_store_t *store, const char *call)
{
    struct rank self;
    int failed = open_rank(&self, ranks, rank, store);
    if (failed || (failed = begin(&self)))
        return failed;
    if (rank == self.victim) {
        standin_fail(call, call[0] != '*', CUDA_ERROR_LAUNCH_FAILED);
        RANKS_CHECK(reduce(&self, COUNT, 0) == TUTTI_ERR_CUDA);
        RANKS_CHECK(strstr(tutti_last_error(), "operation 4 is not enqueued on rank 1"));
        RANKS_CHECK(strstr(tutti_last_error(), "719"));
        standin_fail(NULL, 0, CUDA_SUCCESS);
    }
    failed = suffer(&self, TUTTI_ERR_CUDA, self.victim);
    if (!failed && rank != self.victim)
        failed = survive(&self);
    close_rank(&self);
    return failed;
}

static int launch_fails(struct ranks *ranks, int rank, tutti_store_t *store)
{
    return cannot_launch(ranks, rank, store, "cuLaunchKernelEx");
}

/* A kernel of the program has failed: all calls of the driver fail from then on. */
static int context_breaks(struct ranks *ranks, int rank, tutti_store_t *store)
{
    return cannot_launch(ranks, rank, store, "*");
}

/* What is wrong with a call alone is no fault: it can be made again. */
static int order_fails(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct rank self;
    int failed = open_rank(&self, ranks, rank, store);
    if (failed || (failed = begin(&self)))
        return failed;
    if (rank == self.victim) {
        standin_fail("cuStreamGetCaptureInfo", 1, CUDA_ERROR_INVALID_VALUE);
        RANKS_CHECK(reduce(&self, COUNT, 0) == TUTTI_ERR_CUDA);
        RANKS_CHECK(tutti_comm_status(self.comm, NULL) == TUTTI_OK);
        RANKS_CHECK(reduce(&self, COUNT, 0) == TUTTI_OK);
    }
    RANKS_CHECK(cuStreamSynchronize(self.stream) == CUDA_SUCCESS);
    RANKS_CHECK(tutti_comm_status(self.comm, NULL) == TUTTI_OK);
    close_rank(&self);
    return 0;
}

/* The program resets its device while the communicator lives: what was there is gone, and the
 * destroy makes no calls about it. */
static int loses_its_device(struct ranks *ranks, int rank, tutti_store_t *store)
{
    static const char *const none[] = {"cuStreamDestroy", "cuEventDestroy",  "cuMemFreeHost",
                                       "cuEventQuery",    "cuMemsetD8Async", "cuEventRecord"};
    struct rank self;
    int failed = open_rank(&self, ranks, rank, store);
    if (failed)
        return failed;
    RANKS_CHECK(cuDevicePrimaryCtxReset_v2(rank) == CUDA_SUCCESS);
    standin_forget();
    tutti_comm_destroy(self.comm);
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        RANKS_CHECK(standin_calls(none[i]) == 0);
    return 0;
}

static int is_late(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct rank self;
    int failed = open_rank(&self, ranks, rank, store);
    if (failed)
        return failed;
    if (rank != self.victim)
        RANKS_CHECK(reduce(&self, COUNT, PATIENCE_MS) == TUTTI_OK);
    failed = suffer(&self, TUTTI_ERR_TIMEOUT, self.victim);
    if (!failed && rank != self.victim)
        failed = survive(&self);
    close_rank(&self);
    return failed;
}

/* The victim frees memory instead of making its call. The free of a thread waits for the others'
 * kernels, which wait for the victim: the message says so. */
static int frees(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct rank self;
    void *memory = NULL;
    int failed = open_rank(&self, ranks, rank, store);
    if (failed)
        return failed;
    if (rank == self.victim) {
        memory = device_alloc(100);
        RANKS_CHECK(ranks_await(ranks, 2, (uint32_t)ranks->size - 1));
    } else {
        RANKS_CHECK(reduce(&self, COUNT, PATIENCE_MS) == TUTTI_OK);
        ranks_raise(ranks, 2);
    }
    if (rank == self.victim)
        device_free(memory);
    failed = suffer(&self, TUTTI_ERR_TIMEOUT, self.victim);
    if (!failed)
        RANKS_CHECK(!strstr(tutti_last_error(), "a thread of the same process: a call such as "
                                                "cuMemFree") == (ranks->processes > 0));
    if (!failed && rank != self.victim)
        failed = survive(&self);
    close_rank(&self);
    return failed;
}

/* The last rank's device, amid the operation: rank 0 has its part, the others wait for it. Rank 0,
 * which comes last and whose time is up first, waits for rank 1. */
static int stands_still(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct rank self;
    const int last = ranks->size - 1;
    int failed = open_rank(&self, ranks, rank, store);
    if (failed)
        return failed;
    standin_stand_still(last);
    RANKS_CHECK(rank || ranks_await(ranks, 2, (uint32_t)last));
    RANKS_CHECK(reduce(&self, COUNT, rank ? 0 : 3 * PATIENCE_MS) == TUTTI_OK);
    ranks_raise(ranks, 2);
    failed = suffer(&self, TUTTI_ERR_TIMEOUT, last);
    standin_stand_still(-1);
    if (!failed && rank != self.victim)
        failed = survive(&self);
    close_rank(&self);
    return failed;
}

static int differs(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct rank self;
    struct tutti_fault fault = {.struct_size = sizeof fault};
    int failed = open_rank(&self, ranks, rank, store);
    if (failed)
        return failed;
    /* Another rank may have noticed already. */
    enum tutti_status status = reduce(&self, rank == self.victim ? 11 : 10, 0);
    RANKS_CHECK(status == TUTTI_OK || status == TUTTI_ERR_MISMATCH);
    failed = suffer(&self, TUTTI_ERR_MISMATCH, -1);
    RANKS_CHECK(failed || tutti_comm_status(self.comm, &fault) == TUTTI_ERR_MISMATCH);
    RANKS_CHECK(failed || (fault.expected.count + fault.seen.count == 21 &&
                           fault.expected.algo == TUTTI_ALGO_ONE_SHOT &&
                           fault.expected.dtype == TUTTI_FLOAT32 && fault.sequence == 4));
    if (!failed && rank != self.victim)
        failed = survive(&self);
    close_rank(&self);
    return failed;
}

/* A replayed graph is stopped, too, and what is replayed later. */
static int replays(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct rank self;
    CUgraph graph;
    CUgraphExec exec;
    int failed = open_rank(&self, ranks, rank, store);
    if (failed)
        return failed;
    RANKS_CHECK(cuStreamBeginCapture_v2(self.stream, CU_STREAM_CAPTURE_MODE_RELAXED) ==
                CUDA_SUCCESS);
    RANKS_CHECK(reduce(&self, COUNT, 0) == TUTTI_OK);
    RANKS_CHECK(cuStreamEndCapture(self.stream, &graph) == CUDA_SUCCESS);
    RANKS_CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0) == CUDA_SUCCESS);
    RANKS_CHECK(cuGraphDestroy(graph) == CUDA_SUCCESS);
    ranks_raise(ranks, 2);
    RANKS_CHECK(ranks_await(ranks, 2, (uint32_t)ranks->size));
    if (rank != self.victim)
        RANKS_CHECK(cuGraphLaunch(exec, self.stream) == CUDA_SUCCESS);
    else
        tutti_comm_abort(self.comm); /* before, within or after the others' waits */
    failed = suffer(&self, TUTTI_ERR_ABORTED, self.victim);
    for (int i = 0; i < 3 && !failed; i++) {
        RANKS_CHECK(cuGraphLaunch(exec, self.stream) == CUDA_SUCCESS);
        failed = suffer(&self, TUTTI_ERR_ABORTED, self.victim);
    }
    RANKS_CHECK(cuGraphExecDestroy(exec) == CUDA_SUCCESS);
    close_rank(&self);
    return failed;
}

/* ---- what is refused ------------------------------------------------------------------------- */

static bool refused(struct rank *self, const void *send, void *recv, size_t count,
                    const char *first, const char *second)
{
    enum tutti_status status = tutti_all_reduce(send, recv, count, TUTTI_FLOAT32, TUTTI_SUM,
                                                self->comm, device_stream(self->stream));
    return status == TUTTI_ERR_INVALID && strstr(tutti_last_error(), first) &&
           strstr(tutti_last_error(), second);
}

static int refuses(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct tutti_call_options options = {.struct_size = sizeof options};
    struct rank self;
    float host[64];
    char ours[32], theirs[32];
    void *pinned = NULL, *foreign;
    enum tutti_algo algo;
    const char *reason;
    if (open_rank(&self, ranks, rank, store))
        return 1;
    int elsewhere = (rank + 1) % ranks->size;
    CUcontext context;
    RANKS_CHECK(cuDevicePrimaryCtxRetain(&context, elsewhere) == CUDA_SUCCESS &&
                cuCtxSetCurrent(context) == CUDA_SUCCESS);
    foreign = device_alloc(256);
    RANKS_CHECK(device_enter(rank));
    RANKS_CHECK(cuMemHostAlloc(&pinned, 256, 0) == CUDA_SUCCESS);
    snprintf(ours, sizeof ours, "on device %d", rank);
    snprintf(theirs, sizeof theirs, "memory of device %d", elsewhere);
    for (int i = 0; i < 2; i++) { /* no refusal is remembered as a success */
        RANKS_CHECK(refused(&self, host, self.data, 64, "send", "host memory"));
        RANKS_CHECK(refused(&self, self.data, host, 64, "recv", "host memory"));
        standin_pinned_away(4096);
        RANKS_CHECK(refused(&self, pinned, self.data, 64, "another address", ours + 3));
        RANKS_CHECK(refused(&self, foreign, self.data, 64, theirs, ours));
        RANKS_CHECK(refused(&self, self.data, foreign, 64, "recv", theirs));
        RANKS_CHECK(refused(&self, self.data, self.data + 1, 64, "overlap", "part"));
        RANKS_CHECK(refused(&self, NULL, self.data, 64, "send", "NULL"));
        RANKS_CHECK(refused(&self, (char *)self.data + 1, self.data, 4, "aligned", "float32"));
    }
    size_t most =
        cuda_kernel_capacity(&cuda_kernel_rows[CUDA_ONE_SHOT_LL], ranks->size) / sizeof *self.data;
    options.algo = forced_algo(self.comm, FORCED(ONE_SHOT_LL));
    RANKS_CHECK(most < COUNT);
    RANKS_CHECK(tutti_all_reduce_with(self.data, self.data, most + 1, TUTTI_FLOAT32, TUTTI_SUM,
                                      self.comm, device_stream(self.stream),
                                      &options) == TUTTI_ERR_INVALID);
    RANKS_CHECK(strstr(tutti_last_error(), "(one_shot) by kernel one_shot_ll does not serve"));
    options.algo = forced_algo(self.comm, FORCED(TWO_SHOT_LINES));
    RANKS_CHECK(tutti_all_reduce_with(self.data, self.data, 16, TUTTI_INT32, TUTTI_SUM, self.comm,
                                      device_stream(self.stream), &options) == TUTTI_ERR_INVALID);
    RANKS_CHECK(strstr(tutti_last_error(), "int32") && strstr(tutti_last_error(), "one_shot_ll"));
    options.algo = TUTTI_ALGO_HYBRID_CUBE_MESH;
    RANKS_CHECK(tutti_comm_algorithm(self.comm, 16, TUTTI_INT32, TUTTI_SUM, &options, &algo,
                                     NULL) == TUTTI_ERR_INVALID);
    for (int k = 0; k < FORCED_TUNED; k++) {
        options.algo = forced_algo(self.comm, FORCED_KERNEL + k);
        RANKS_CHECK(tutti_comm_algorithm(self.comm, 16, TUTTI_FLOAT32, TUTTI_SUM, &options, &algo,
                                         &reason) == TUTTI_OK &&
                    algo == options.algo && strstr(reason, cuda_kernel_rows[k].name) &&
                    strstr(reason, "forced by the call"));
        RANKS_CHECK(tutti_all_reduce_with(self.data, self.data, 16, TUTTI_FLOAT32, TUTTI_SUM,
                                          self.comm, device_stream(self.stream),
                                          &options) == TUTTI_OK);
    }
    RANKS_CHECK(cuStreamSynchronize(self.stream) == CUDA_SUCCESS &&
                tutti_comm_status(self.comm, NULL) == TUTTI_OK);
    cuMemFreeHost(pinned);
    device_free(foreign);
    close_rank(&self);
    return 0;
}

/* ---------------------------------------------------------------------------------------------- */

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        ranks_fn *fn;
        bool kills, apart; /* apart: the stand-in's failures are a process's */
    } parts[] = {{"aborts", aborts, false, false},
                 {"dies", dies, true, true},
                 {"leaves", leaves, false, false},
                 {"launch fails", launch_fails, false, true},
                 {"context breaks", context_breaks, false, true},
                 {"order fails", order_fails, false, true},
                 {"loses its device", loses_its_device, false, true},
                 {"is late", is_late, false, false},
                 {"frees", frees, false, false},
                 {"stands still", stands_still, false, false},
                 {"differs", differs, false, false},
                 {"replays", replays, false, false},
                 {"refuses", refuses, false, false}};
    int failures = 0;
    if (argc != 2)
        return 2;
    bool threads = strcmp(argv[1], "threads") == 0;
    device_setup();
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        for (int size = 2; size <= 4 && !(threads && parts[i].apart); size++) {
            struct ranks *ranks = ranks_create(size, threads ? 0 : size, 0);
            ranks->expendable = parts[i].kills ? UINT64_C(1) << 1 : 0;
            int failed = ranks_run(ranks, parts[i].fn);
            ranks_destroy(ranks);
            if (threads && device_left() != 0)
                failed++;
            if (failed)
                fprintf(stderr, "%s failed with %d ranks\n", parts[i].name, size);
            failures += failed;
        }
    }
    return failures ? 1 : 0;
}
