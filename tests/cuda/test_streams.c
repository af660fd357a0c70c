/* SPDX-License-Identifier: MIT */
/*
 * Several streams and captures of one communicator: what is ordered, by what, and what is refused.
 * Replays after the end of the communicator do nothing, and hold its memory until their graph goes.
 */
#include "streams.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { TURNS = 30 };

static enum tutti_status reduce(struct rank *self, CUstream stream)
{
    return tutti_all_reduce(self->data, self->data, COUNT, TUTTI_INT32, TUTTI_SUM, self->comm,
                            device_stream(stream));
}

/* The sum of ones, `turns` times over, wraps alike everywhere. */
static int check_data(struct rank *self, int turns)
{
    struct ranks *ranks = self->ranks;
    const int rank = self->rank;
    uint32_t expected = 1;
    for (int i = 0; i < turns; i++)
        expected *= (uint32_t)ranks->size;
    for (int i = 0; i < COUNT; i++)
        RANKS_CHECK((uint32_t)self->data[i] == expected);
    return 0;
}

/* Every call works on the former one's result, whatever their streams. */
static int alternate(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct rank self;
    int failed = open_rank(&self, ranks, rank, store);
    if (failed)
        return failed;
    CUstream streams[] = {self.a, self.b, CU_STREAM_PER_THREAD, CU_STREAM_LEGACY, NULL};
    for (int i = 0; i < TURNS; i++)
        RANKS_CHECK(reduce(&self, streams[(i / 2 + rank) % 5]) == TUTTI_OK);
    RANKS_CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
    failed = check_data(&self, TURNS);
    close_rank(&self);
    return failed;
}

static void stand_still(void *argument)
{
    const uint32_t *go = argument;
    while (!__atomic_load_n(go, __ATOMIC_ACQUIRE))
        usleep(100);
}

/* A message to itself sees the operation before it, and the one behind it does not spoil it. */
static int own_message(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct rank self;
    uint32_t go = 0;
    int failed = open_rank(&self, ranks, rank, store);
    if (failed)
        return failed;
    int32_t *copy = device_alloc(COUNT * sizeof *copy);
    memset(copy, 0, COUNT * sizeof *copy);
    RANKS_CHECK(cuLaunchHostFunc(self.a, stand_still, &go) == CUDA_SUCCESS);
    RANKS_CHECK(reduce(&self, self.a) == TUTTI_OK);
    RANKS_CHECK(tutti_group_start() == TUTTI_OK);
    RANKS_CHECK(tutti_send(self.data, COUNT, TUTTI_INT32, rank, self.comm, device_stream(self.b)) ==
                TUTTI_OK);
    RANKS_CHECK(tutti_recv(copy, COUNT, TUTTI_INT32, rank, self.comm, device_stream(self.b)) ==
                TUTTI_OK);
    RANKS_CHECK(tutti_group_end() == TUTTI_OK);
    RANKS_CHECK(reduce(&self, self.a) == TUTTI_OK);
    __atomic_store_n(&go, 1, __ATOMIC_RELEASE);
    RANKS_CHECK(cuStreamSynchronize(self.a) == CUDA_SUCCESS);
    RANKS_CHECK(cuStreamSynchronize(self.b) == CUDA_SUCCESS);
    for (int i = 0; i < COUNT; i++)
        RANKS_CHECK(copy[i] == ranks->size);
    failed = check_data(&self, 2);
    ranks_raise(ranks, 1);
    RANKS_CHECK(ranks_await(ranks, 1, (uint32_t)ranks->size));
    device_free(copy);
    close_rank(&self);
    return failed;
}

/* A rank by itself must not wait for its peer here: the other rank does the same calls. */
static int one_stream(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct rank self;
    int failed = open_rank(&self, ranks, rank, store);
    if (failed)
        return failed;
    ranks_raise(ranks, 1);
    RANKS_CHECK(ranks_await(ranks, 1, (uint32_t)ranks->size));
    uint64_t waits = standin_calls("cuStreamWaitEvent"), records = standin_calls("cuEventRecord");
    for (int i = 0; i < 5; i++)
        RANKS_CHECK(reduce(&self, self.a) == TUTTI_OK);
    RANKS_CHECK(cuStreamSynchronize(self.a) == CUDA_SUCCESS);
    ranks_raise(ranks, 2);
    RANKS_CHECK(ranks_await(ranks, 2, (uint32_t)ranks->size));
    /* Nothing is recorded while the stream stays. */
    RANKS_CHECK(standin_calls("cuStreamWaitEvent") == waits);
    RANKS_CHECK(standin_calls("cuEventRecord") == records);
    ranks_raise(ranks, 3);
    RANKS_CHECK(ranks_await(ranks, 3, (uint32_t)ranks->size));
    close_rank(&self);
    return 0;
}

/* Begins a capture on stream a that stream b takes part in from the start. */
static int begin(struct rank *self)
{
    struct ranks *ranks = self->ranks;
    const int rank = self->rank;
    CUevent fork;
    RANKS_CHECK(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS);
    RANKS_CHECK(cuStreamBeginCapture_v2(self->a, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
    RANKS_CHECK(cuEventRecord(fork, self->a) == CUDA_SUCCESS);
    RANKS_CHECK(cuStreamWaitEvent(self->b, fork, 0) == CUDA_SUCCESS);
    RANKS_CHECK(cuEventDestroy_v2(fork) == CUDA_SUCCESS);
    return 0;
}

/* How many nodes the stream's last one depends on; the stream has one tip. */
static size_t dependencies_of(CUstream stream)
{
    CUstreamCaptureStatus state;
    const CUgraphNode *nodes;
    const CUgraphEdgeData *edges;
    size_t tips = 0, count = 0;
    uint64_t id;
    if (cuStreamGetCaptureInfo_v3(stream, &state, &id, NULL, &nodes, &edges, &tips) !=
            CUDA_SUCCESS ||
        tips != 1 || cuGraphNodeGetDependencies_v2(nodes[0], NULL, NULL, &count) != CUDA_SUCCESS)
        abort();
    return count;
}

static int capture(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct rank self;
    CUgraph graph;
    CUgraphExec exec;
    int failed = open_rank(&self, ranks, rank, store);
    if (failed || (failed = begin(&self)))
        return failed;
    /* a, b, a, a: an edge from each to the next, across streams too. */
    RANKS_CHECK(reduce(&self, self.a) == TUTTI_OK && dependencies_of(self.a) == 0);
    RANKS_CHECK(reduce(&self, self.b) == TUTTI_OK && dependencies_of(self.b) == 1);
    RANKS_CHECK(reduce(&self, self.a) == TUTTI_OK && dependencies_of(self.a) == 2);
    RANKS_CHECK(reduce(&self, self.a) == TUTTI_OK && dependencies_of(self.a) == 1);
    RANKS_CHECK(cuStreamEndCapture(self.a, &graph) == CUDA_SUCCESS);
    RANKS_CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0) == CUDA_SUCCESS);
    RANKS_CHECK(cuGraphDestroy(graph) == CUDA_SUCCESS);
    failed = check_data(&self, 0);
    for (int i = 0; i < 3 && !failed; i++) {
        RANKS_CHECK(cuGraphLaunch(exec, self.a) == CUDA_SUCCESS);
        RANKS_CHECK(reduce(&self, self.a) == TUTTI_OK);
        RANKS_CHECK(cuStreamSynchronize(self.a) == CUDA_SUCCESS);
        failed = check_data(&self, 5 * (i + 1));
    }
    RANKS_CHECK(cuGraphExecDestroy(exec) == CUDA_SUCCESS);
    close_rank(&self);
    return failed;
}

/* What neither an event nor an edge can order. */
static int refuse(struct ranks *ranks, int rank, tutti_store_t *store)
{
    enum { STREAMS = 2 };
    struct rank self;
    CUstream streams[STREAMS];
    CUgraph graph;
    int failed = open_rank(&self, ranks, rank, store);
    if (failed)
        return failed;
    /* Eager on a, whose capture begins, then eager on b. */
    RANKS_CHECK(reduce(&self, self.a) == TUTTI_OK);
    RANKS_CHECK(cuStreamBeginCapture_v2(self.a, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
    RANKS_CHECK(reduce(&self, self.b) == TUTTI_ERR_CONCURRENT);
    RANKS_CHECK(strstr(tutti_last_error(), "captured now"));
    RANKS_CHECK(reduce(&self, self.a) == TUTTI_OK); /* this one is captured */
    RANKS_CHECK(cuStreamEndCapture(self.a, &graph) == CUDA_SUCCESS);
    RANKS_CHECK(cuGraphDestroy(graph) == CUDA_SUCCESS);
    RANKS_CHECK(reduce(&self, self.b) == TUTTI_OK);
    RANKS_CHECK(cuStreamSynchronize(self.b) == CUDA_SUCCESS);
    failed = check_data(&self, 2);

    /* Two captures at once, the first of which comes back last. */
    for (int i = 0; i < STREAMS; i++) {
        RANKS_CHECK(cuStreamCreateWithPriority(&streams[i], CU_STREAM_NON_BLOCKING, 0) ==
                    CUDA_SUCCESS);
        RANKS_CHECK(cuStreamBeginCapture_v2(streams[i], CU_STREAM_CAPTURE_MODE_RELAXED) ==
                    CUDA_SUCCESS);
        RANKS_CHECK(reduce(&self, streams[i]) == TUTTI_OK);
    }
    RANKS_CHECK(reduce(&self, streams[STREAMS - 1]) == TUTTI_OK);
    RANKS_CHECK(reduce(&self, streams[0]) == TUTTI_ERR_CONCURRENT);
    RANKS_CHECK(strstr(tutti_last_error(), "capture"));
    for (int i = 0; i < STREAMS; i++) {
        RANKS_CHECK(cuStreamEndCapture(streams[i], &graph) == CUDA_SUCCESS);
        RANKS_CHECK(cuGraphDestroy(graph) == CUDA_SUCCESS);
        RANKS_CHECK(cuStreamDestroy_v2(streams[i]) == CUDA_SUCCESS);
    }
    close_rank(&self);
    return failed;
}

/* A graph that outlives its communicator. Also: the communicator goes while a capture is on. */
static int outlive(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct rank self;
    CUgraph graph;
    CUgraphExec exec;
    int failed = open_rank(&self, ranks, rank, store);
    if (failed)
        return failed;
    RANKS_CHECK(cuStreamBeginCapture_v2(self.a, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) ==
                CUDA_SUCCESS);
    RANKS_CHECK(reduce(&self, self.a) == TUTTI_OK);
    RANKS_CHECK(cuStreamEndCapture(self.a, &graph) == CUDA_SUCCESS);
    RANKS_CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0) == CUDA_SUCCESS);
    RANKS_CHECK(cuGraphDestroy(graph) == CUDA_SUCCESS);
    RANKS_CHECK(cuGraphLaunch(exec, self.a) == CUDA_SUCCESS);
    RANKS_CHECK(cuStreamSynchronize(self.a) == CUDA_SUCCESS);
    failed = check_data(&self, 1);

    RANKS_CHECK(cuStreamBeginCapture_v2(self.b, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) ==
                CUDA_SUCCESS);
    tutti_comm_destroy(self.comm);
    self.comm = NULL;
    RANKS_CHECK(cuStreamEndCapture(self.b, &graph) == CUDA_SUCCESS);
    RANKS_CHECK(cuGraphDestroy(graph) == CUDA_SUCCESS);

    /* One rank alone: it would hang if it waited for the other, and crash without the arenas. */
    for (int i = 0; i < 3 && rank == 0; i++) {
        RANKS_CHECK(cuGraphLaunch(exec, self.a) == CUDA_SUCCESS);
        RANKS_CHECK(cuStreamSynchronize(self.a) == CUDA_SUCCESS);
        failed = failed ? failed : check_data(&self, 1);
    }
    RANKS_CHECK(cuGraphExecDestroy(exec) == CUDA_SUCCESS);
    /* What was due is freed by the next one that opens or closes. */
    RANKS_CHECK(device_join(ranks, rank, store, NULL, &self.comm) == TUTTI_OK);
    close_rank(&self);
    return failed;
}

/* Destroyed with an operation under way that no peer will join: bounded, and the stream goes on. */
static int abandon(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct rank self;
    int failed = open_rank(&self, ranks, rank, store);
    if (failed)
        return failed;
    if (rank == 0)
        RANKS_CHECK(reduce(&self, self.a) == TUTTI_OK);
    tutti_comm_destroy(self.comm);
    self.comm = NULL;
    RANKS_CHECK(cuStreamSynchronize(self.a) == CUDA_SUCCESS);
    close_rank(&self);
    return 0;
}

/* Calls from another thread, whose per-thread stream is another one, and which has no context. */
static void *call_elsewhere(void *argument)
{
    struct rank *self = argument;
    enum tutti_status status = reduce(self, self->a);
    CUcontext context = NULL;
    cuCtxGetCurrent(&context);
    if (status == TUTTI_OK && !context && device_enter(self->rank))
        status = reduce(self, CU_STREAM_PER_THREAD);
    return status == TUTTI_OK && !context ? self : NULL;
}

static int elsewhere(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct rank self;
    pthread_t thread;
    void *result = NULL;
    int failed = open_rank(&self, ranks, rank, store);
    if (failed)
        return failed;
    RANKS_CHECK(reduce(&self, CU_STREAM_PER_THREAD) == TUTTI_OK);
    RANKS_CHECK(pthread_create(&thread, NULL, call_elsewhere, &self) == 0);
    pthread_join(thread, &result);
    RANKS_CHECK(result);
    RANKS_CHECK(reduce(&self, CU_STREAM_PER_THREAD) == TUTTI_OK);
    RANKS_CHECK(cuStreamSynchronize(CU_STREAM_PER_THREAD) == CUDA_SUCCESS);
    failed = check_data(&self, 4);
    close_rank(&self);
    return failed;
}

static void *destroy_elsewhere(void *argument)
{
    tutti_comm_destroy(*(tutti_comm_t **)argument);
    __atomic_store_n((tutti_comm_t **)argument, NULL, __ATOMIC_RELEASE);
    return NULL;
}

/* Until the communicator is destroyed, or a busy machine has had time enough for that. */
static bool is_destroyed(tutti_comm_t **comm)
{
    enum { NAPS = 20000, NAP_US = 1000 };
    for (int i = 0; i < NAPS && __atomic_load_n(comm, __ATOMIC_ACQUIRE); i++)
        usleep(NAP_US);
    return !__atomic_load_n(comm, __ATOMIC_ACQUIRE);
}

/* While one destroy waits in CUDA for a stream, others need not. */
static int free_apart(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const struct tutti_comm_options options = {.struct_size = sizeof options, .name = "other"};
    struct rank self;
    tutti_comm_t *other;
    pthread_t first, second;
    bool destroyed = true;
    int failed = open_rank(&self, ranks, rank, store);
    if (failed)
        return failed;
    RANKS_CHECK(device_join(ranks, rank, store, &options, &other) == TUTTI_OK);
    ranks_raise(ranks, 1);
    RANKS_CHECK(ranks_await(ranks, 1, (uint32_t)ranks->size));
    if (rank == 0) {
        standin_hold_free(1);
        RANKS_CHECK(pthread_create(&first, NULL, destroy_elsewhere, &self.comm) == 0);
        while (!standin_free_is_held())
            usleep(1000);
        RANKS_CHECK(pthread_create(&second, NULL, destroy_elsewhere, &other) == 0);
        destroyed = is_destroyed(&other);
        standin_hold_free(0);
        pthread_join(first, NULL);
        pthread_join(second, NULL);
    }
    ranks_raise(ranks, 2);
    RANKS_CHECK(ranks_await(ranks, 2, (uint32_t)ranks->size));
    tutti_comm_destroy(other);
    close_rank(&self);
    RANKS_CHECK(destroyed);
    return 0;
}

int main(void)
{
    static const struct streams_part parts[] = {
        {"alternate", alternate}, {"own_message", own_message}, {"one_stream", one_stream},
        {"capture", capture},     {"refuse", refuse},           {"outlive", outlive},
        {"abandon", abandon},     {"elsewhere", elsewhere},     {"free_apart", free_apart}};
    return streams_main(parts, sizeof parts / sizeof *parts);
}
