/* SPDX-License-Identifier: MIT */
/*
 * Launches, and their order. The operations of one communicator share its arena. So each operation
 * must end before the next begins, on any streams.
 *
 * Eager: the stream of the last operation gets an event, and the new stream waits for the event.
 * The event is recorded only when the stream changes. For the per-thread stream, which is another
 * stream in every thread, it is recorded behind each operation.
 *
 * Captured: an edge from the last operation of the same capture, if the stream differs. An
 * operation of a capture is refused after an operation of a later capture: its predecessor is then
 * unknown.
 *
 * Between an eager operation and a captured one there is no order: the graph runs later, on the
 * stream of its launch.
 *
 * Ranks that share a device as threads share its hardware queues: 8 a process, unless
 * CUDA_DEVICE_MAX_CONNECTIONS says otherwise. A kernel that waits blocks the work behind it in
 * its queue, and the rank for which the kernel waits may need that work. So such ranks launch
 * together: none launches before all have arrived, and none goes on before all have launched.
 */
#include "base/deadline.h"
#include "base/error.h"
#include "base/interrupt.h"
#include "coll/request.h"
#include "cuda/comm/group_internal.h"

enum { SLICE_MS = 20 }; /* a wait for operations checks for a failure this often */

enum tutti_status cuda_event_wait(struct cuda_group *group, int64_t deadline)
{
    return cuda_event_await(group->driver, group->event, group->device.ordinal, deadline);
}

enum tutti_status cuda_own_finish(struct cuda_group *group, int64_t deadline)
{
    for (;;) {
        const int64_t slice = deadline_after(INTERRUPT_MS);
        enum tutti_status status =
            cuda_stream_finish(group->driver, group->own, group->event, group->device.ordinal,
                               group->interrupt ? deadline_min(slice, deadline) : deadline);
        if (status != TUTTI_ERR_TIMEOUT || deadline_passed(deadline))
            return status;
        status = interrupt_ask(group->interrupt);
        if (status == TUTTI_OK)
            status = interrupt_ask_pointless(group->interrupt);
        if (status != TUTTI_OK)
            return status;
    }
}

/* ---- eager ----------------------------------------------------------------------------------- */

/* Puts the event behind the last eager operation, unless it is there. */
static enum tutti_status stream_mark(struct cuda_group *group)
{
    uint64_t capture = 0;
    enum tutti_status status = TUTTI_OK;
    if (group->recorded)
        return TUTTI_OK;
    /* A stream that waits for an event of a captured stream would join the capture. */
    if (group->last != CU_STREAM_LEGACY)
        status = cuda_capture_of(group->driver, group->last, &capture, NULL);
    if (status == TUTTI_OK && capture)
        status = error_set(TUTTI_ERR_CONCURRENT,
                           "the communicator's last operation was on stream %p, which is being "
                           "captured now, so an operation on another stream cannot be ordered "
                           "behind it: make that call before the capture begins, or after it",
                           (void *)group->last);
    if (status == TUTTI_OK)
        status = CUDA_CALL(group->driver, event_record, group->event, group->last);
    group->recorded = status == TUTTI_OK;
    return status;
}

enum tutti_status cuda_eager_order(struct cuda_group *group, CUstream stream)
{
    if (!group->enqueued || (group->last == stream && stream != CU_STREAM_PER_THREAD))
        return TUTTI_OK;
    enum tutti_status status = stream_mark(group);
    if (status == TUTTI_OK)
        status = CUDA_CALL(group->driver, stream_wait_event, stream, group->event, 0);
    return status;
}

enum tutti_status cuda_eager_note(struct cuda_group *group, CUstream stream)
{
    group->last = stream;
    group->enqueued = true;
    group->recorded = false;
    if (!group->marks && stream != CU_STREAM_PER_THREAD)
        return TUTTI_OK;
    const enum tutti_status status =
        CUDA_CALL(group->driver, event_record, group->event, group->last);
    group->recorded = status == TUTTI_OK;
    return status;
}

/* ---- the end of what was enqueued --------------------------------------------------------------
 */

/* Also true if the program exits: no thread then looks for a failure. */
static bool has_failed(const struct cuda_group *group)
{
    return cuda_group_has_failed(group) || cuda_watchers_ended();
}

enum tutti_status cuda_flush(struct cuda_group *group, int64_t deadline)
{
    const int64_t grace = deadline_after(CUDA_GRACE_MS);
    enum tutti_status status = group->enqueued ? stream_mark(group) : TUTTI_OK;
    if (status != TUTTI_OK)
        return status;
    for (;;) {
        const int64_t slice = deadline_after(SLICE_MS);
        status = cuda_event_wait(group, slice < deadline ? slice : deadline);
        if (status != TUTTI_ERR_TIMEOUT || deadline_passed(deadline) ||
            (has_failed(group) && deadline_passed(grace)))
            return status;
    }
}

/* ---- captured -------------------------------------------------------------------------------- */

/* Puts the next operation of a capture behind the last one. */
enum tutti_status cuda_captured_order(struct cuda_group *group, CUstream stream, uint64_t id,
                                      CUgraph graph)
{
    struct cuda_capture *capture = &group->capture;
    /* Ids count up. */
    if (id < capture->id)
        return error_set(TUTTI_ERR_CONCURRENT,
                         "an operation of a later capture of the communicator came between those "
                         "of this one: end a capture before another one begins");
    if (id > capture->id) {
        enum tutti_status status = cuda_resources_retain(group->resources, graph);
        if (status == TUTTI_OK)
            *capture = (struct cuda_capture){.id = id};
        return status;
    }
    if (!capture->node || capture->stream == stream)
        return TUTTI_OK;
    return CUDA_CALL(group->driver, stream_capture_depend, stream, &capture->node, NULL, 1,
                     CU_STREAM_ADD_CAPTURE_DEPENDENCIES);
}

/* The stream now depends on the operation's node alone. */
enum tutti_status cuda_captured_note(struct cuda_group *group, CUstream stream)
{
    CUstreamCaptureStatus state;
    const CUgraphNode *nodes = NULL;
    const CUgraphEdgeData *edges = NULL;
    size_t count = 0;
    uint64_t id;
    enum tutti_status status = CUDA_CALL(group->driver, stream_capture_info, stream, &state, &id,
                                         NULL, &nodes, &edges, &count);
    if (status == TUTTI_OK && count != 1)
        status = error_set(TUTTI_ERR_CUDA,
                           "a captured operation left %zu nodes on its stream instead of 1", count);
    if (status != TUTTI_OK)
        return status;
    group->capture.node = nodes[0];
    group->capture.stream = stream;
    return TUTTI_OK;
}

/* ---- launch ---------------------------------------------------------------------------------- */

/* *weight: before the call, of the communicator's last operation; after it, of this one. */
static enum tutti_status launch_on(struct cuda_group *group, CUstream stream,
                                   const struct cuda_task *task, unsigned *weight)
{
    const unsigned former = *weight;
    if (!task->function)
        return task->bytes ? CUDA_CALL(group->driver, memcpy_async, task->to, task->from,
                                       task->bytes, stream)
                           : TUTTI_OK;
    *weight = cuda_task_weight(group, task);
    void *parameters[] = {task->launch};
    const CUlaunchConfig config = {
        .gridDimX = task->blocks,
        .gridDimY = 1,
        .gridDimZ = 1,
        .blockDimX = task->threads,
        .blockDimY = 1,
        .blockDimZ = 1,
        .hStream = stream,
        .attrs = &group->attribute,
        .numAttrs = !task->copies && cuda_may_launch_ahead(group, former, *weight),
    };
    return CUDA_CALL(group->driver, launch, &config, task->function, parameters, NULL);
}

/* An operation of a subset takes no number. The end of one by copy engines has that of its begin.
 */
static void sequence_add(struct cuda_group *group, const struct cuda_task *task, int count)
{
    if (rank_set_empty(task->request->subset))
        peers_sequence_add(group->peers, count);
}

/* Waits for those ranks of the operation that share the device as threads, on their hosts. Kernels
 * compare the ranks' operations. */
static enum tutti_status same_gpu_meet(struct cuda_group *group, const struct request *request)
{
    const struct rank_set subset = request->subset;
    const struct rank_set same_gpu =
        rank_set_empty(subset) ? group->same_gpu : rank_set_common(group->same_gpu, subset);
    if (rank_set_empty(rank_set_minus(same_gpu, rank_set_of(group->launch.rank))))
        return TUTTI_OK;
    struct request meeting = {.signature = request->signature, .timeout_ms = request->timeout_ms};
    request_set_subset(&meeting, same_gpu);
    return peers_meet(group->peers, &meeting);
}

static enum tutti_status captured_launch(struct cuda_group *group, CUstream stream,
                                         const struct cuda_task *task, uint64_t id, CUgraph graph)
{
    enum tutti_status status = cuda_captured_order(group, stream, id, graph);
    if (status == TUTTI_OK && task->copies)
        status = cuda_copies_capture(group, stream, task->copies);
    if (status == TUTTI_OK)
        status = launch_on(group, stream, task, &group->capture.weight);
    return status == TUTTI_OK && (task->function || task->bytes) ? cuda_captured_note(group, stream)
                                                                 : status;
}

enum tutti_status cuda_enqueue_eager(struct cuda_group *group, tutti_stream_t stream,
                                     const struct cuda_task *task)
{
    const CUstream on = cuda_stream_of(stream);
    sequence_add(group, task, 1); /* before the meetings, whose faults carry this number */
    enum tutti_status status = same_gpu_meet(group, task->request);
    if (status != TUTTI_OK)
        return status;
    status = cuda_eager_order(group, on);
    const bool ordered = status == TUTTI_OK;
    if (ordered && task->copies)
        status = cuda_copies_enqueue(group, on, task->copies);
    if (status == TUTTI_OK)
        status = launch_on(group, on, task, &group->weight);
    const bool launched = status == TUTTI_OK;
    if (launched)
        status = cuda_eager_note(group, on);
    else
        sequence_add(group, task, -1);
    if (ordered && !launched)
        status = cuda_launch_failed(group, status, peers_sequence(group->peers) + !task->copies);
    /* Also after a failure, so that the others go on: their kernels wait. */
    enum tutti_status met = same_gpu_meet(group, task->request);
    return status == TUTTI_OK ? met : status;
}

enum tutti_status cuda_enqueue(struct cuda_group *group, tutti_stream_t stream,
                               const struct cuda_task *task)
{
    const CUstream on = cuda_stream_of(stream);
    CUgraph graph = NULL;
    uint64_t id = 0;
    bool pushed;
    enum tutti_status status = cuda_enter(group, &pushed);
    if (status != TUTTI_OK)
        return status;
    status = cuda_capture_of(group->driver, on, &id, &graph);
    if (status == TUTTI_OK)
        status = id ? captured_launch(group, on, task, id, graph)
                    : cuda_enqueue_eager(group, stream, task);
    cuda_leave(group, pushed);
    return status;
}
