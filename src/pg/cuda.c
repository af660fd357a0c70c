/* SPDX-License-Identifier: MIT */
/*
 * The group's thread begins with an operation once the caller's stream has reached the point of the
 * submission: the stream writes a word then (cuda/pipe/stream_fence.c). An operation that ends
 * before that has touched nothing. What the group enqueues is on streams of its own, which never
 * wait for a stream of the caller. So three streams, one for each direction of the bus and one for
 * the device's own work, serve any number of operations.
 */
#include "pg/cuda.h"

#include "base/deadline.h"
#include "base/error.h"
#include "base/log.h"
#include "base/point.h"
#include "base/wait.h"
#include "pg/pg.h"

#include <stdlib.h>

enum { DRAIN_MS = 1000 };

/* ---- any thread ------------------------------------------------------------------------------ */

/* Whether the group's device can serve this rank's tensors. A rank's own inputs are reduced by no
 * kernel. */
static bool is_on_device(const struct tutti_pg *pg, const struct pg_operation *operation)
{
    const bool sums_own = operation->work.collective == TUTTI_COLLECTIVE_ALL_REDUCE &&
                          operation->work.tensor_count > 1;
    bool on_device = pg->direct && !operation->sparse && !pg_is_message(operation) && !sums_own;
    for (int i = 0; i < operation->work.tensor_count && on_device; i++)
        on_device = operation->tensors[i].device_index == pg->device;
    return on_device;
}

enum tutti_status pg_cuda_begin(const struct tutti_pg *pg, struct pg_operation *operation,
                                tutti_stream_t stream)
{
    int devices[2 * WORLD_RANKS];
    const int count = operation->sparse ? operation->sparse->count : operation->work.tensor_count;
    struct pg_cuda *cuda = calloc(1, sizeof *cuda);
    if (!cuda)
        return error_errno("calloc of an operation on CUDA tensors");
    operation->cuda = cuda;
    cuda->stage = pg->stage;
    if (is_on_device(pg, operation))
        operation->facts |= LAYOUT_ON_DEVICE;
    for (int i = 0; i < count; i++)
        devices[i] = operation->sparse ? operation->sparse->tensors[i].device_index
                                       : operation->tensors[i].device_index;
    return cuda_fence_take(pg->stage, devices, count, stream, &cuda->fence);
}

enum tutti_status pg_cuda_wait(struct pg_operation *operation, tutti_stream_t stream, bool *full)
{
    /* The group's thread releases the streams however the operation ends. This limit is longer than
     * that may take. */
    enum { LEAST_MS = 3600 * 1000, TIMES = 100 };
    struct cuda_wait_limits limits = {.all_ms = -1, .call_ms = operation->timeout_ms};
    if (operation->timeout_ms >= 0 && operation->timeout_ms <= INT64_MAX / TIMES - LEAST_MS)
        limits.all_ms = LEAST_MS + TIMES * operation->timeout_ms;
    return cuda_fence_wait(operation->cuda->fence, stream, &limits, full);
}

void pg_cuda_free(struct pg_cuda *cuda)
{
    if (cuda) {
        cuda_result_give(cuda->stage, cuda->result);
        cuda_fence_give(cuda->fence);
    }
    free(cuda);
}

/* ---- the group's thread ---------------------------------------------------------------------- */

bool pg_cuda_input_ready(const struct pg_operation *operation)
{
    return cuda_fence_come(operation->cuda->fence) &&
           (!pg_is_message(operation) || cuda_marks_passed(&operation->cuda->marks[CUDA_TO_HOST]));
}

enum tutti_status pg_cuda_await(struct tutti_pg *pg, const struct cuda_marks *marks,
                                int64_t deadline)
{
    return cuda_marks_await(marks, pg->comm->peers, deadline);
}

bool pg_cuda_is_done(const struct pg_operation *operation)
{
    for (int direction = 0; direction < CUDA_DIRECTIONS; direction++)
        if (!cuda_marks_passed(&operation->cuda->marks[direction]))
            return false;
    return true;
}

static bool is_done(void *context)
{
    return pg_cuda_is_done(context);
}

void pg_cuda_end(struct tutti_pg *pg, struct pg_operation *operation)
{
    struct pg_cuda *cuda = operation->cuda;
    if (is_done(operation) ||
        wait_napping(is_done, operation, deadline_after(DRAIN_MS), WAIT_NAP_NS))
        cuda_block_give(pg->stage, cuda->block);
    else if (cuda->block)
        cuda_block_lose(pg->stage, cuda->block);
    cuda->block = NULL;
}

enum tutti_status pg_cuda_fail(struct tutti_pg *pg, const struct pg_operation *operation,
                               enum tutti_status status)
{
    if (tutti_comm_status(pg->comm, NULL) != TUTTI_OK)
        return status;
    log_write(TUTTI_LOG_WARN, pg->comm->rank, "%s of a process group: %s", operation->title,
              tutti_last_error());
    status = pg_comm_fail(pg->comm, status, pg->comm->rank);
    if (pg_is_on_device(operation)) /* afterwards, so that all ranks find that fault */
        tutti_comm_abort(pg->direct);
    return status;
}

/* ---- operations that the group's devices serve ----------------------------------------------- */

enum tutti_status pg_cuda_run(struct tutti_pg *pg, const struct pg_operation *operation,
                              const struct coll_args *args)
{
    tutti_stream_t stream = cuda_stage_stream(pg->stage, pg->device, CUDA_ON_DEVICE);
    if (!args->count) /* all ranks have announced the operation: there is no more to do */
        return TUTTI_OK;
    POINT("group.decided");
    cuda_stage_call_begin(pg->stage);
    enum tutti_status status =
        comm_run(pg->direct, operation->work.collective, args, operation->timeout_ms, stream);
    cuda_stage_call_end(pg->stage);
    POINT("group.launched");
    return status == TUTTI_OK ? TUTTI_OK : pg_cuda_fail(pg, operation, status);
}

enum tutti_status pg_cuda_copy(struct tutti_pg *pg, const struct pg_operation *operation, void *to,
                               const void *from, size_t bytes)
{
    enum tutti_status status =
        cuda_stage_copy(pg->stage, pg->device, CUDA_ON_DEVICE, to, from, bytes);
    return status == TUTTI_OK ? TUTTI_OK : pg_cuda_fail(pg, operation, status);
}

enum tutti_status pg_cuda_enqueued(struct tutti_pg *pg, struct pg_operation *operation,
                                   enum tutti_status status)
{
    enum tutti_status marked = pg_cuda_mark(operation->cuda, CUDA_ON_DEVICE, status);
    return marked == status ? status : pg_cuda_fail(pg, operation, marked);
}
