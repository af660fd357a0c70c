/* SPDX-License-Identifier: MIT */
#include "cuda/driver/wrappers.h"

#include "base/error.h"
#include "base/wait.h"

#include <string.h>

const struct cuda_names cuda_names = {
#define CUDA_NAME_ROW(member, symbol, arguments) #symbol,
    CUDA_DRIVER_MAP(CUDA_NAME_ROW)
#undef CUDA_NAME_ROW
};

enum tutti_status cuda_failed(const struct cuda_driver *driver, CUresult result, const char *call)
{
    const char *name = NULL, *text = NULL, *version = strstr(call, "_v");
    if (driver->error_name(result, &name) != CUDA_SUCCESS || !name)
        name = "unknown error";
    if (driver->error_string(result, &text) != CUDA_SUCCESS || !text)
        text = "no description";
    return error_set(result == CUDA_ERROR_OUT_OF_MEMORY ? TUTTI_ERR_NO_MEMORY : TUTTI_ERR_CUDA,
                     "%.*s: %s (%d: %s)", (int)(version ? (size_t)(version - call) : strlen(call)),
                     call, name, (int)result, text);
}

enum tutti_status cuda_launch_block(const struct cuda_driver *driver, CUfunction function,
                                    unsigned threads, void *launch, CUstream stream)
{
    void *parameters[] = {launch};
    const CUlaunchConfig config = {
        .gridDimX = 1,
        .gridDimY = 1,
        .gridDimZ = 1,
        .blockDimX = threads,
        .blockDimY = 1,
        .blockDimZ = 1,
        .hStream = stream,
    };
    return CUDA_CALL(driver, launch, &config, function, parameters, NULL);
}

/* ---- contexts and captures ------------------------------------------------------------------- */

enum tutti_status cuda_context_enter(const struct cuda_driver *driver, CUcontext context,
                                     bool *pushed)
{
    CUcontext current = NULL;
    *pushed = false;
    driver->ctx_current(&current);
    if (__builtin_expect(current == context, 1))
        return TUTTI_OK;
    enum tutti_status status = CUDA_CALL(driver, ctx_push, context);
    *pushed = status == TUTTI_OK;
    return status;
}

void cuda_context_leave(const struct cuda_driver *driver, bool pushed)
{
    CUcontext context;
    if (__builtin_expect(pushed, 0))
        driver->ctx_pop(&context);
}

void cuda_captures_ignore(const struct cuda_driver *driver, CUstreamCaptureMode *mode)
{
    *mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    if (driver->capture_mode_exchange(mode) != CUDA_SUCCESS)
        *mode = CU_STREAM_CAPTURE_MODE_GLOBAL; /* the default of a thread */
}

void cuda_captures_heed(const struct cuda_driver *driver, CUstreamCaptureMode *mode)
{
    driver->capture_mode_exchange(mode);
}

enum tutti_status cuda_visit_begin(const struct cuda_driver *driver, CUcontext context,
                                   struct cuda_visit *visit)
{
    enum tutti_status status = cuda_context_enter(driver, context, &visit->pushed);
    if (status == TUTTI_OK)
        cuda_captures_ignore(driver, &visit->mode);
    return status;
}

void cuda_visit_end(const struct cuda_driver *driver, struct cuda_visit *visit)
{
    cuda_captures_heed(driver, &visit->mode);
    cuda_context_leave(driver, visit->pushed);
}

enum tutti_status cuda_capture_of(const struct cuda_driver *driver, CUstream stream, uint64_t *id,
                                  CUgraph *graph)
{
    CUstreamCaptureStatus state = CU_STREAM_CAPTURE_STATUS_NONE;
    enum tutti_status status =
        CUDA_CALL(driver, stream_capture_info, stream, &state, id, graph, NULL, NULL, NULL);
    if (status == TUTTI_OK && state == CU_STREAM_CAPTURE_STATUS_INVALIDATED)
        status = error_set(TUTTI_ERR_CUDA,
                           "the capture of stream %p was invalidated by an earlier call: end it "
                           "and begin another one",
                           (void *)stream);
    if (state != CU_STREAM_CAPTURE_STATUS_ACTIVE)
        *id = 0;
    return status;
}

enum tutti_status cuda_uncaptured_check(const struct cuda_driver *driver, CUstream stream,
                                        const char *why)
{
    uint64_t capture = 0;
    enum tutti_status status = cuda_capture_of(driver, stream, &capture, NULL);
    if (status != TUTTI_OK || !capture)
        return status;
    return error_set(TUTTI_ERR_DECLINED, "stream %p is being captured, and %s", (void *)stream,
                     why);
}

/* ---- streams and pinned memory --------------------------------------------------------------- */

enum tutti_status cuda_own_create(const struct cuda_driver *driver, CUstream *stream,
                                  CUevent *event)
{
    enum tutti_status status = CUDA_CALL(driver, stream_create, stream, CU_STREAM_NON_BLOCKING, 0);
    return status == TUTTI_OK ? CUDA_CALL(driver, event_create, event, CU_EVENT_DISABLE_TIMING)
                              : status;
}

struct event_wait {
    const struct cuda_driver *driver;
    CUevent event;
    CUresult result;
};

static bool event_is_over(void *context)
{
    struct event_wait *wait = context;
    wait->result = wait->driver->event_query(wait->event);
    return wait->result != CUDA_ERROR_NOT_READY;
}

enum tutti_status cuda_event_await(const struct cuda_driver *driver, CUevent event, CUdevice device,
                                   int64_t deadline)
{
    struct event_wait wait = {.driver = driver, .event = event};
    if (wait_napping(event_is_over, &wait, deadline, WAIT_NAP_NS))
        return cuda_check(driver, wait.result, cuda_names.event_query);
    return error_set(TUTTI_ERR_TIMEOUT,
                     "device %d did not end its work in time: look at what else runs on it, or "
                     "raise TUTTI_TIMEOUT_MS",
                     device);
}

enum tutti_status cuda_stream_finish(const struct cuda_driver *driver, CUstream stream,
                                     CUevent event, CUdevice device, int64_t deadline)
{
    enum tutti_status status = CUDA_CALL(driver, event_record, event, stream);
    if (status == TUTTI_OK)
        status = cuda_event_await(driver, event, device, deadline);
    /* The work must end before its memory is freed. It is our own work, so it is short. */
    if (status != TUTTI_OK && status != TUTTI_ERR_TIMEOUT)
        driver->stream_synchronize(stream);
    return status;
}

enum tutti_status cuda_pinned_alloc(const struct cuda_driver *driver, size_t bytes, unsigned flags,
                                    void **memory)
{
    return CUDA_CALL(driver, mem_host_alloc, memory, bytes, CU_MEMHOSTALLOC_DEVICEMAP | flags);
}

enum tutti_status cuda_page_alloc(const struct cuda_driver *driver, size_t bytes, void **memory,
                                  CUdeviceptr *address)
{
    *memory = NULL;
    enum tutti_status status = cuda_pinned_alloc(driver, bytes, 0, memory);
    if (status != TUTTI_OK)
        return status;
    memset(*memory, 0, bytes);
    return CUDA_CALL(driver, mem_host_device_pointer, address, *memory, 0);
}
