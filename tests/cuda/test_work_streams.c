/* SPDX-License-Identifier: MIT */
/*
 * Work objects on streams: what waits for them and what does not, faults, captures, any order of
 * ends, and driver calls that fail.
 */
#include "streams.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { SOON_MS = 20, TURNS = 50, MANY = 40 };

/* A stream stands at a gate until it is opened. */
struct gate {
    pthread_mutex_t lock;
    pthread_cond_t moved;
    bool open;
    bool seen; /* what passed() saw */
};

static void stand(void *argument)
{
    struct gate *gate = argument;
    pthread_mutex_lock(&gate->lock);
    while (!gate->open)
        pthread_cond_wait(&gate->moved, &gate->lock);
    pthread_mutex_unlock(&gate->lock);
}

static void passed(void *argument)
{
    struct gate *gate = argument;
    pthread_mutex_lock(&gate->lock);
    gate->seen = gate->open;
    pthread_mutex_unlock(&gate->lock);
}

static void gate_open(struct gate *gate)
{
    pthread_mutex_lock(&gate->lock);
    gate->open = true;
    pthread_cond_broadcast(&gate->moved);
    pthread_mutex_unlock(&gate->lock);
}

static enum tutti_status reduce(struct rank *self, CUstream stream, int64_t timeout_ms)
{
    const struct tutti_call_options options = {.struct_size = sizeof options,
                                               .timeout_ms = timeout_ms};
    return tutti_all_reduce_with(self->data, self->data, COUNT, TUTTI_INT32, TUTTI_SUM, self->comm,
                                 device_stream(stream), &options);
}

static enum tutti_status record(struct rank *self, CUstream stream, tutti_work_t **work)
{
    return tutti_work_record(self->comm, device_stream(stream), work);
}

static bool is_done(tutti_work_t *work)
{
    bool done = false;
    return tutti_work_test(work, &done) == TUTTI_OK && done;
}

static bool is_pending(tutti_work_t *work)
{
    bool done = true;
    return tutti_work_test(work, &done) == TUTTI_OK && !done;
}

/* Done, and failed so. */
static bool has_failed(tutti_work_t *work, enum tutti_status expected, const char *text)
{
    bool done = false;
    return tutti_work_wait_host(work, RANKS_TIMEOUT_MS) == expected &&
           tutti_work_test(work, &done) == expected && done && strstr(tutti_last_error(), text);
}

static bool is_refused(enum tutti_status status, const char *text)
{
    return status == TUTTI_ERR_INVALID && strstr(tutti_last_error(), text);
}

static int check_data(struct rank *self, int32_t expected)
{
    struct ranks *ranks = self->ranks;
    const int rank = self->rank;
    for (int i = 0; i < COUNT; i++)
        RANKS_CHECK(self->data[i] == expected);
    return 0;
}

/* All ranks are here; flags are used in turn. */
static int meet(struct rank *self, int flag)
{
    struct ranks *ranks = self->ranks;
    const int rank = self->rank;
    ranks_raise(ranks, flag);
    RANKS_CHECK(ranks_await(ranks, flag, (uint32_t)ranks->size));
    return 0;
}

/* Stream a works, stream b waits, the host does when it asks to. */
static int follow(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct gate gate = {.lock = PTHREAD_MUTEX_INITIALIZER, .moved = PTHREAD_COND_INITIALIZER};
    struct rank self;
    tutti_work_t *work, *after, *elsewhere;
    CUstream foreign;
    int failed = open_rank(&self, ranks, rank, store);
    if (failed)
        return failed;
    RANKS_CHECK(cuLaunchHostFunc(self.a, stand, &gate) == CUDA_SUCCESS);
    RANKS_CHECK(reduce(&self, self.a, 0) == TUTTI_OK);
    RANKS_CHECK(record(&self, self.a, &work) == TUTTI_OK);
    RANKS_CHECK(is_pending(work));
    RANKS_CHECK(tutti_work_wait_stream(work, device_stream(self.b)) == TUTTI_OK);
    RANKS_CHECK(cuLaunchHostFunc(self.b, passed, &gate) == CUDA_SUCCESS);
    RANKS_CHECK(record(&self, self.b, &after) == TUTTI_OK);
    /* The host's time-out is the host's alone. */
    RANKS_CHECK(tutti_work_wait_host(after, SOON_MS) == TUTTI_ERR_TIMEOUT);
    RANKS_CHECK(strstr(tutti_last_error(), "within 20 ms"));
    RANKS_CHECK(tutti_work_wait_host(work, 1) == TUTTI_ERR_TIMEOUT && is_pending(work));
    RANKS_CHECK(tutti_comm_status(self.comm, NULL) == TUTTI_OK);

    /* A stream of another device waits as well; only the communicator's are recorded on. */
    RANKS_CHECK(device_enter(rank + 4));
    RANKS_CHECK(cuStreamCreateWithPriority(&foreign, CU_STREAM_NON_BLOCKING, 0) == CUDA_SUCCESS);
    RANKS_CHECK(tutti_work_wait_stream(work, device_stream(foreign)) == TUTTI_OK);
    RANKS_CHECK(record(&self, foreign, &elsewhere) == TUTTI_ERR_CUDA && !elsewhere);
    RANKS_CHECK(strstr(tutti_last_error(), "tutti_work_record: cuEventRecord"));

    gate_open(&gate);
    RANKS_CHECK(tutti_work_wait_host(after, 0) == TUTTI_OK && is_done(after));
    RANKS_CHECK(gate.seen);
    failed = check_data(&self, ranks->size);
    RANKS_CHECK(is_done(work) && tutti_work_wait_host(work, 1) == TUTTI_OK);
    RANKS_CHECK(tutti_work_wait_stream(work, TUTTI_STREAM_PER_THREAD) == TUTTI_OK);
    RANKS_CHECK(cuStreamDestroy_v2(foreign) == CUDA_SUCCESS && device_enter(rank));
    tutti_work_destroy(work);
    tutti_work_destroy(after);
    close_rank(&self);
    return failed;
}

/* The event passes, and yet the operation has failed. */
static int fault(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct rank self;
    tutti_work_t *good, *bad, *unasked, *late;
    int failed = open_rank(&self, ranks, rank, store);
    if (failed)
        return failed;
    RANKS_CHECK(reduce(&self, self.a, 0) == TUTTI_OK);
    RANKS_CHECK(record(&self, self.a, &good) == TUTTI_OK);
    RANKS_CHECK(tutti_work_wait_host(good, 0) == TUTTI_OK);
    if ((failed = meet(&self, 1)))
        return failed;
    if (rank == 0) {
        RANKS_CHECK(reduce(&self, self.a, SOON_MS) == TUTTI_OK);
        RANKS_CHECK(record(&self, self.a, &bad) == TUTTI_OK);
        RANKS_CHECK(record(&self, self.a, &unasked) == TUTTI_OK);
        RANKS_CHECK(has_failed(bad, TUTTI_ERR_TIMEOUT, "rank 0 waited for rank 1"));
        RANKS_CHECK(tutti_work_wait_stream(bad, device_stream(self.b)) == TUTTI_OK);
        RANKS_CHECK(cuStreamSynchronize(self.b) == CUDA_SUCCESS);
    }
    if ((failed = meet(&self, 2)))
        return failed;
    while (tutti_comm_status(self.comm, NULL) == TUTTI_OK)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    RANKS_CHECK(record(&self, self.a, &late) == TUTTI_ERR_TIMEOUT && !late);
    RANKS_CHECK(is_done(good));
    tutti_comm_destroy(self.comm);
    self.comm = NULL;
    RANKS_CHECK(is_done(good));
    if (rank == 0) {
        RANKS_CHECK(has_failed(bad, TUTTI_ERR_TIMEOUT, "rank 0 waited for rank 1"));
        RANKS_CHECK(has_failed(unasked, TUTTI_ERR_TIMEOUT, "rank 0 waited for rank 1"));
        tutti_work_destroy(bad);
        tutti_work_destroy(unasked);
    }
    tutti_work_destroy(good);
    close_rank(&self);
    return 0;
}

static int aborted(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct rank self;
    tutti_work_t *work;
    int failed = open_rank(&self, ranks, rank, store);
    if (failed)
        return failed;
    if (rank == 0) {
        RANKS_CHECK(reduce(&self, self.a, 0) == TUTTI_OK);
        RANKS_CHECK(record(&self, self.a, &work) == TUTTI_OK);
        RANKS_CHECK(is_pending(work));
    }
    if ((failed = meet(&self, 1)))
        return failed;
    if (rank == 1)
        tutti_comm_abort(self.comm);
    else
        RANKS_CHECK(has_failed(work, TUTTI_ERR_ABORTED, "rank 1 aborted"));
    if (rank == 0)
        tutti_work_destroy(work);
    if ((failed = meet(&self, 2)))
        return failed;
    close_rank(&self);
    return 0;
}

/* The peer goes instead of coming. */
static int left(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct rank self;
    tutti_work_t *work;
    int failed = open_rank(&self, ranks, rank, store);
    if (failed)
        return failed;
    if (rank == 0) {
        RANKS_CHECK(reduce(&self, self.a, 0) == TUTTI_OK);
        RANKS_CHECK(record(&self, self.a, &work) == TUTTI_OK);
    }
    if ((failed = meet(&self, 1)))
        return failed;
    if (rank == 0) {
        RANKS_CHECK(has_failed(work, TUTTI_ERR_PEER_DEAD, "rank 1 is gone"));
        tutti_work_destroy(work);
    }
    close_rank(&self);
    return 0;
}

/* All hear of it at the latest by the next operation. */
static int mismatch(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct rank self;
    tutti_work_t *work;
    int failed = open_rank(&self, ranks, rank, store);
    if (failed)
        return failed;
    RANKS_CHECK(tutti_all_reduce(self.data, self.data, COUNT, TUTTI_INT32,
                                 rank ? TUTTI_MAX : TUTTI_SUM, self.comm,
                                 device_stream(self.a)) == TUTTI_OK);
    RANKS_CHECK(reduce(&self, self.a, 0) == TUTTI_OK ||
                tutti_comm_status(self.comm, NULL) == TUTTI_ERR_MISMATCH);
    enum tutti_status status = record(&self, self.a, &work);
    if (status == TUTTI_OK)
        RANKS_CHECK(has_failed(work, TUTTI_ERR_MISMATCH, "ranks disagree"));
    else
        RANKS_CHECK(status == TUTTI_ERR_MISMATCH);
    tutti_work_destroy(work);
    if ((failed = meet(&self, 1)))
        return failed;
    close_rank(&self);
    return 0;
}

/* Before completion, after it, after the communicator, which has one of them under way. */
static int ends(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct gate gate = {.lock = PTHREAD_MUTEX_INITIALIZER, .moved = PTHREAD_COND_INITIALIZER};
    struct rank self;
    tutti_work_t *early, *kept, *alone;
    int failed = open_rank(&self, ranks, rank, store);
    if (failed)
        return failed;
    RANKS_CHECK(cuLaunchHostFunc(self.b, stand, &gate) == CUDA_SUCCESS);
    RANKS_CHECK(record(&self, self.b, &early) == TUTTI_OK);
    tutti_work_destroy(early); /* pending, and used again at once */
    RANKS_CHECK(reduce(&self, self.a, 0) == TUTTI_OK);
    RANKS_CHECK(record(&self, self.a, &kept) == TUTTI_OK && kept == early);
    RANKS_CHECK(tutti_work_wait_host(kept, 0) == TUTTI_OK);
    failed = check_data(&self, ranks->size);
    if (failed || (failed = meet(&self, 1)))
        return failed;
    if (rank == 0) {
        RANKS_CHECK(reduce(&self, self.a, 0) == TUTTI_OK);
        RANKS_CHECK(record(&self, self.a, &alone) == TUTTI_OK);
        RANKS_CHECK(record(&self, self.b, &early) == TUTTI_OK);
        device_destroy_within(self.comm, SOON_MS);
        tutti_comm_destroy(self.comm);
        self.comm = NULL;
        RANKS_CHECK(has_failed(alone, TUTTI_ERR_ABORTED, "aborted"));
        RANKS_CHECK(is_pending(early)); /* of the caller's own */
        RANKS_CHECK(tutti_work_wait_stream(early, device_stream(self.a)) == TUTTI_OK);
        tutti_work_destroy(alone);
    }
    if ((failed = meet(&self, 2)))
        return failed;
    gate_open(&gate);
    RANKS_CHECK(is_done(kept));
    tutti_work_destroy(kept);
    RANKS_CHECK(cuStreamSynchronize(self.a) == CUDA_SUCCESS);
    RANKS_CHECK(cuStreamSynchronize(self.b) == CUDA_SUCCESS);
    if (rank == 0)
        tutti_work_destroy(early);
    close_rank(&self);
    return 0;
}

/* Edges within a capture; what would be none is refused, and spoils nothing. */
static int captured(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct rank self;
    tutti_work_t *fork, *join, *eager;
    CUgraph graph;
    CUgraphExec exec;
    CUevent event;
    bool done;
    int failed = open_rank(&self, ranks, rank, store);
    if (failed)
        return failed;
    RANKS_CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS);
    RANKS_CHECK(record(&self, self.a, &eager) == TUTTI_OK);
    RANKS_CHECK(cuStreamBeginCapture_v2(self.a, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) ==
                CUDA_SUCCESS);
    RANKS_CHECK(tutti_work_wait_host(eager, 0) == TUTTI_OK);
    RANKS_CHECK(
        is_refused(tutti_work_wait_stream(eager, device_stream(self.a)), "is being captured"));
    RANKS_CHECK(reduce(&self, self.a, 0) == TUTTI_OK);
    RANKS_CHECK(record(&self, self.a, &fork) == TUTTI_OK);
    RANKS_CHECK(is_refused(tutti_work_test(fork, &done), "edge") && !done);
    RANKS_CHECK(is_refused(tutti_work_wait_host(fork, 0), "edge"));
    RANKS_CHECK(is_refused(tutti_work_wait_stream(fork, device_stream(self.b)), "takes no part"));
    /* b takes part by an event of the caller's, and then by works. */
    RANKS_CHECK(cuEventRecord(event, self.a) == CUDA_SUCCESS);
    RANKS_CHECK(cuStreamWaitEvent(self.b, event, 0) == CUDA_SUCCESS);
    RANKS_CHECK(tutti_work_wait_stream(fork, device_stream(self.b)) == TUTTI_OK);
    RANKS_CHECK(reduce(&self, self.b, 0) == TUTTI_OK);
    RANKS_CHECK(record(&self, self.b, &join) == TUTTI_OK);
    RANKS_CHECK(tutti_work_wait_stream(join, device_stream(self.a)) == TUTTI_OK);
    RANKS_CHECK(cuStreamEndCapture(self.a, &graph) == CUDA_SUCCESS); /* b has been joined */
    RANKS_CHECK(is_refused(tutti_work_wait_stream(join, device_stream(self.a)), "takes no part"));
    RANKS_CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0) == CUDA_SUCCESS);
    RANKS_CHECK(cuGraphDestroy(graph) == CUDA_SUCCESS);
    RANKS_CHECK(cuEventDestroy_v2(event) == CUDA_SUCCESS);
    tutti_work_destroy(fork);
    tutti_work_destroy(eager);
    /* The place of a captured work serves an eager one. */
    RANKS_CHECK(cuGraphLaunch(exec, self.a) == CUDA_SUCCESS);
    RANKS_CHECK(record(&self, self.a, &eager) == TUTTI_OK);
    RANKS_CHECK(tutti_work_wait_host(eager, 0) == TUTTI_OK);
    failed = check_data(&self, ranks->size * ranks->size);
    tutti_work_destroy(eager);
    tutti_work_destroy(join);
    RANKS_CHECK(cuGraphExecDestroy(exec) == CUDA_SUCCESS);
    close_rank(&self);
    return failed;
}

/* Rank 0 alone: its calls fail one by one, and nothing is created twice. */
static int driver_calls(struct rank *self)
{
    struct ranks *ranks = self->ranks;
    const int rank = self->rank;
    tutti_work_t *work, *more[MANY];
    bool done;
    standin_fail("cuEventCreate", 0, CUDA_ERROR_OUT_OF_MEMORY);
    RANKS_CHECK(record(self, self->a, &work) == TUTTI_ERR_NO_MEMORY && !work);
    static const char *const calls[] = {"cuEventRecord", "cuStreamGetCaptureInfo"};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        standin_fail(calls[i], 0, CUDA_ERROR_UNKNOWN);
        RANKS_CHECK(record(self, self->a, &work) == TUTTI_ERR_CUDA && !work);
        RANKS_CHECK(strstr(tutti_last_error(), calls[i]));
    }
    standin_fail(NULL, 0, CUDA_SUCCESS);
    RANKS_CHECK(record(self, self->a, &work) == TUTTI_OK);
    standin_fail("cuEventQuery", 0, CUDA_ERROR_UNKNOWN);
    RANKS_CHECK(tutti_work_test(work, &done) == TUTTI_ERR_CUDA && !done);
    RANKS_CHECK(tutti_work_wait_host(work, 0) == TUTTI_ERR_CUDA);
    RANKS_CHECK(strstr(tutti_last_error(), "tutti_work_wait_host: cuEventQuery"));
    standin_fail("cuStreamWaitEvent", 0, CUDA_ERROR_UNKNOWN);
    RANKS_CHECK(tutti_work_wait_stream(work, device_stream(self->b)) == TUTTI_ERR_CUDA);
    standin_fail(NULL, 0, CUDA_SUCCESS);
    RANKS_CHECK(tutti_work_wait_host(work, 0) == TUTTI_OK);
    tutti_work_destroy(work);

    /* One event serves all who come after each other; of many at once some are kept. */
    uint64_t created = standin_calls("cuEventCreate"), destroyed = standin_calls("cuEventDestroy");
    for (int i = 0; i < TURNS; i++) {
        RANKS_CHECK(record(self, self->a, &work) == TUTTI_OK);
        tutti_work_destroy(work);
    }
    RANKS_CHECK(standin_calls("cuEventCreate") == created);
    for (int i = 0; i < MANY; i++)
        RANKS_CHECK(record(self, self->a, &more[i]) == TUTTI_OK);
    for (int i = 0; i < MANY; i++)
        tutti_work_destroy(more[i]);
    RANKS_CHECK(standin_calls("cuEventCreate") == created + MANY - 1);
    RANKS_CHECK(standin_calls("cuEventDestroy") == destroyed + MANY - 32);
    return 0;
}

static int calls(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct rank self;
    int failed = open_rank(&self, ranks, rank, store);
    if (failed || (failed = meet(&self, 1)))
        return failed;
    if (rank == 0)
        failed = driver_calls(&self);
    if (failed || (failed = meet(&self, 2)))
        return failed;
    close_rank(&self);
    return 0;
}

/* Asks until it is done, while the communicator ends. */
static void *ask(void *argument)
{
    tutti_work_t *work = argument;
    return tutti_work_wait_host(work, RANKS_TIMEOUT_MS) == TUTTI_OK ? NULL : work;
}

static void *record_often(void *argument)
{
    struct rank *self = argument;
    tutti_work_t *work;
    void *failed = NULL;
    for (int i = 0; i < TURNS; i++) {
        if (record(self, self->b, &work) != TUTTI_OK)
            return self;
        if (i % 2 && tutti_work_wait_host(work, 0) != TUTTI_OK)
            failed = self;
        tutti_work_destroy(work);
    }
    return failed;
}

static int threads(struct ranks *ranks, int rank, tutti_store_t *store)
{
    enum { THREADS = 3 };
    struct rank self;
    tutti_work_t *work;
    pthread_t others[THREADS];
    void *result, *failures = NULL;
    int failed = open_rank(&self, ranks, rank, store);
    if (failed)
        return failed;
    for (int i = 0; i < THREADS; i++)
        RANKS_CHECK(pthread_create(&others[i], NULL, record_often, &self) == 0);
    for (int i = 0; i < 5; i++)
        RANKS_CHECK(reduce(&self, self.a, 0) == TUTTI_OK);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(others[i], &result);
        failures = result ? result : failures;
    }
    RANKS_CHECK(record(&self, self.a, &work) == TUTTI_OK);
    for (int i = 0; i < THREADS; i++)
        RANKS_CHECK(pthread_create(&others[i], NULL, ask, work) == 0);
    RANKS_CHECK(cuStreamSynchronize(self.a) == CUDA_SUCCESS);
    tutti_comm_destroy(self.comm);
    self.comm = NULL;
    for (int i = 0; i < THREADS; i++) {
        pthread_join(others[i], &result);
        failures = result ? result : failures;
    }
    RANKS_CHECK(!failures);
    tutti_work_destroy(work);
    close_rank(&self);
    return 0;
}

int main(void)
{
    static const struct streams_part parts[] = {
        {"follow", follow},     {"fault", fault},       {"aborted", aborted},
        {"left", left},         {"mismatch", mismatch}, {"ends", ends},
        {"captured", captured}, {"calls", calls},       {"threads", threads}};
    return streams_main(parts, sizeof parts / sizeof *parts);
}
