/* SPDX-License-Identifier: MIT */
/*
 * tutti_comm_shrink() and what a CUDA communicator has on streams: operations under way, works,
 * captured graphs, whose replays count. The context lives on and has the new communicator.
 */
#include "streams.h"

#include "shrink.h"

static enum tutti_status reduce(struct rank *self, tutti_comm_t *comm, CUstream stream)
{
    return tutti_all_reduce(self->data, self->data, COUNT, TUTTI_INT32, TUTTI_SUM, comm,
                            device_stream(stream));
}

static bool data_is(const struct rank *self, int32_t value)
{
    for (int i = 0; i < COUNT; i++)
        if (self->data[i] != value)
            return false;
    return true;
}

static int all_come(struct ranks *ranks, int rank, int flag)
{
    ranks_raise(ranks, flag);
    RANKS_CHECK(ranks_await(ranks, flag, (uint32_t)ranks->size));
    return 0;
}

/* A captured operation: replays of the old communicator's graph count, and do nothing once it has
 * shrunk, before and after its end. */
static int graphs(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct tutti_shrink_result result;
    struct rank self;
    tutti_comm_t *shrunk;
    CUgraph graph;
    CUgraphExec exec;
    int failed = open_rank(&self, ranks, rank, store);
    if (failed)
        return failed;
    RANKS_CHECK(cuStreamBeginCapture_v2(self.a, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
    RANKS_CHECK(reduce(&self, self.comm, self.a) == TUTTI_OK);
    RANKS_CHECK(cuStreamEndCapture(self.a, &graph) == CUDA_SUCCESS);
    RANKS_CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0) == CUDA_SUCCESS);
    RANKS_CHECK(cuGraphDestroy(graph) == CUDA_SUCCESS);
    for (int i = 0; i < 3; i++)
        RANKS_CHECK(cuGraphLaunch(exec, self.a) == CUDA_SUCCESS);
    RANKS_CHECK(cuStreamSynchronize(self.a) == CUDA_SUCCESS && data_is(&self, 8));
    RANKS_CHECK(shrink_without(self.comm, store, -1, &shrunk, &result) == TUTTI_OK);
    RANKS_CHECK(result.completed_by_all == 3 && result.completed_by_any == 3);
    if ((failed = all_come(ranks, rank, 1)))
        return failed;
    RANKS_CHECK(cuGraphLaunch(exec, self.a) == CUDA_SUCCESS);
    RANKS_CHECK(cuStreamSynchronize(self.a) == CUDA_SUCCESS && data_is(&self, 8));
    RANKS_CHECK(tutti_comm_status(self.comm, NULL) == TUTTI_ERR_ABORTED);
    tutti_comm_destroy(self.comm);
    self.comm = shrunk;
    RANKS_CHECK(reduce(&self, shrunk, self.b) == TUTTI_OK);
    RANKS_CHECK(cuGraphLaunch(exec, self.a) == CUDA_SUCCESS);
    RANKS_CHECK(cuStreamSynchronize(self.a) == CUDA_SUCCESS);
    RANKS_CHECK(cuStreamSynchronize(self.b) == CUDA_SUCCESS && data_is(&self, 16));
    RANKS_CHECK(cuGraphExecDestroy(exec) == CUDA_SUCCESS);
    close_rank(&self);
    return 0;
}

/* The other rank never makes the operation: it is ended, and repeated in the new communicator. */
static int under_way(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct tutti_shrink_result result;
    struct rank self;
    tutti_comm_t *shrunk;
    tutti_work_t *before, *behind = NULL;
    int failed = open_rank(&self, ranks, rank, store);
    if (failed)
        return failed;
    RANKS_CHECK(reduce(&self, self.comm, self.a) == TUTTI_OK);
    RANKS_CHECK(tutti_work_record(self.comm, device_stream(self.a), &before) == TUTTI_OK);
    RANKS_CHECK(tutti_work_wait_host(before, RANKS_TIMEOUT_MS) == TUTTI_OK);
    if (rank == 0) {
        RANKS_CHECK(reduce(&self, self.comm, self.a) == TUTTI_OK);
        RANKS_CHECK(tutti_work_record(self.comm, device_stream(self.a), &behind) == TUTTI_OK);
    }
    RANKS_CHECK(shrink_without(self.comm, store, -1, &shrunk, &result) == TUTTI_OK);
    RANKS_CHECK(result.completed_by_all == 1 && result.completed_by_any == 1);
    RANKS_CHECK(tutti_work_wait_host(before, RANKS_TIMEOUT_MS) == TUTTI_OK);
    RANKS_CHECK(!behind || tutti_work_wait_host(behind, RANKS_TIMEOUT_MS) == TUTTI_ERR_ABORTED);
    tutti_work_destroy(before);
    tutti_work_destroy(behind);
    RANKS_CHECK(cuStreamSynchronize(self.a) == CUDA_SUCCESS);
    for (int i = 0; i < COUNT; i++)
        self.data[i] = 2;
    tutti_comm_destroy(self.comm);
    self.comm = shrunk;
    RANKS_CHECK(reduce(&self, shrunk, self.a) == TUTTI_OK);
    RANKS_CHECK(cuStreamSynchronize(self.a) == CUDA_SUCCESS && data_is(&self, 4));
    close_rank(&self);
    return 0;
}

/* What this rank has finished with, and cannot, while its stream is in capture. */
static int captured(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct tutti_shrink_result result;
    struct rank self;
    tutti_comm_t *shrunk;
    CUgraph graph;
    int failed = open_rank(&self, ranks, rank, store);
    if (failed)
        return failed;
    RANKS_CHECK(reduce(&self, self.comm, self.a) == TUTTI_OK);
    /* What the other one still sets up would spoil the capture. */
    if ((failed = all_come(ranks, rank, 2)))
        return failed;
    RANKS_CHECK(cuStreamBeginCapture_v2(self.a, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
    RANKS_CHECK(shrink_without(self.comm, store, -1, &shrunk, &result) == TUTTI_ERR_TIMEOUT);
    RANKS_CHECK(!shrunk && strstr(tutti_last_error(), "must not be in capture"));
    RANKS_CHECK(cuStreamEndCapture(self.a, &graph) == CUDA_SUCCESS);
    if ((failed = all_come(ranks, rank, 1))) /* a graph is not destroyed amid the other's capture */
        return failed;
    RANKS_CHECK(cuGraphDestroy(graph) == CUDA_SUCCESS);
    RANKS_CHECK(shrink_without(self.comm, store, -1, &shrunk, &result) == TUTTI_OK);
    RANKS_CHECK(result.completed_by_all == 1);
    tutti_comm_destroy(self.comm);
    self.comm = shrunk;
    RANKS_CHECK(reduce(&self, shrunk, self.a) == TUTTI_OK);
    RANKS_CHECK(cuStreamSynchronize(self.a) == CUDA_SUCCESS && data_is(&self, 4));
    close_rank(&self);
    return 0;
}

int main(void)
{
    static const struct streams_part parts[] = {
        {"graphs", graphs}, {"under way", under_way}, {"captured", captured}};
    return streams_main(parts, sizeof parts / sizeof *parts);
}
