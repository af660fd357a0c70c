/* SPDX-License-Identifier: MIT */
/*
 * Points on streams: an event each. In a capture an event stands for edges of the graph; waiting
 * for it in that capture adds edges. Such an event never completes; a test of it returns an error
 * that says so.
 */
#include "base/error.h"
#include "cuda/comm/group_internal.h"

#include <stdlib.h>

struct cuda_work {
    const struct cuda_driver *driver;
    CUcontext context;
    CUevent event;
    uint64_t capture; /* the capture in which it was recorded; 0: none */
};

static enum tutti_status create(void *opaque, void **work)
{
    const struct cuda_group *group = opaque;
    const struct cuda_driver *driver = group->driver;
    struct cuda_visit visit;
    *work = NULL;
    struct cuda_work *made = malloc(sizeof *made);
    if (!made)
        return error_errno("malloc of a work's event");
    *made = (struct cuda_work){.driver = driver, .context = group->resources->context};
    enum tutti_status status = cuda_visit_begin(driver, made->context, &visit);
    if (status == TUTTI_OK) {
        status = CUDA_CALL(driver, event_create, &made->event, CU_EVENT_DISABLE_TIMING);
        cuda_visit_end(driver, &visit);
    }
    if (status == TUTTI_OK)
        *work = made;
    else
        free(made);
    return status;
}

static enum tutti_status record(void *opaque, void *point, tutti_stream_t stream)
{
    struct cuda_group *group = opaque;
    struct cuda_work *work = point;
    const struct cuda_driver *driver = group->driver;
    CUstream on = cuda_stream_of(stream);
    uint64_t capture = 0;
    bool pushed;
    enum tutti_status status = cuda_group_check(group);
    if (status == TUTTI_OK)
        status = cuda_enter(group, &pushed);
    if (status != TUTTI_OK)
        return status;
    status = cuda_capture_of(driver, on, &capture, NULL);
    if (status == TUTTI_OK)
        status = CUDA_CALL(driver, event_record, work->event, on);
    work->capture = capture;
    cuda_leave(group, pushed);
    return status;
}

static enum tutti_status test(const void *point, bool *done)
{
    const struct cuda_work *work = point;
    const struct cuda_driver *driver = work->driver;
    struct cuda_visit visit;
    *done = false;
    if (work->capture)
        return error_set(TUTTI_ERR_INVALID,
                         "the work was recorded in a capture, so it is an edge of a graph and is "
                         "never done: record a work on the stream on which the graph is launched");
    enum tutti_status status = cuda_visit_begin(driver, work->context, &visit);
    if (status != TUTTI_OK)
        return status;
    CUresult result = driver->event_query(work->event);
    if (result != CUDA_ERROR_NOT_READY)
        status = cuda_check(driver, result, cuda_names.event_query);
    cuda_visit_end(driver, &visit);
    *done = result == CUDA_SUCCESS;
    return status;
}

/* A wait that no edge can express would spoil the capture. */
static enum tutti_status capture_check(const struct cuda_work *work, CUstream stream)
{
    uint64_t capture = 0;
    enum tutti_status status = cuda_capture_of(work->driver, stream, &capture, NULL);
    if (status != TUTTI_OK || capture == work->capture)
        return status;
    return error_set(TUTTI_ERR_INVALID,
                     capture ? "stream %p is being captured, and the work was not recorded in that "
                               "capture: wait for it before the capture begins, or on the stream "
                               "that the graph is launched on"
                             : "stream %p takes no part in the capture in which the work was "
                               "recorded: record one on the stream that the graph is launched on",
                     (void *)stream);
}

static enum tutti_status wait(const void *point, tutti_stream_t stream)
{
    const struct cuda_work *work = point;
    const struct cuda_driver *driver = work->driver;
    CUstream on = cuda_stream_of(stream);
    bool pushed;
    enum tutti_status status = cuda_context_enter(driver, work->context, &pushed);
    if (status != TUTTI_OK)
        return status;
    status = capture_check(work, on);
    if (status == TUTTI_OK)
        status = CUDA_CALL(driver, stream_wait_event, on, work->event, 0);
    cuda_context_leave(driver, pushed);
    return status;
}

/* Errors are ignored: the context may be gone, and the event, too. */
static void destroy(void *point)
{
    struct cuda_work *work = point;
    struct cuda_visit visit;
    if (!work)
        return;
    if (cuda_visit_begin(work->driver, work->context, &visit) == TUTTI_OK) {
        work->driver->event_destroy(work->event);
        cuda_visit_end(work->driver, &visit);
    }
    free(work);
}

const struct backend_points cuda_points = {
    .create = create,
    .record = record,
    .test = test,
    .wait = wait,
    .destroy = destroy,
    .forget = free,
};
