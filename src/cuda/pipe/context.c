/* SPDX-License-Identifier: MIT */
/*
 * What a stage has in one context: streams for copies, words that those streams write, the code of
 * the waiting kernel. A device's is the context that is current when the device is first named, if
 * it is of this device, else the device's primary context. A stream that waits may be of another
 * context, which gets the kernel alone.
 */
#include "base/error.h"
#include "base/order.h"
#include "cuda/pipe/stage_internal.h"

void cuda_stage_call_begin(const struct cuda_stage *stage)
{
    if (stage->calls) /* before the first fence no stream waits */
        order_fetch_add_relaxed_u32(&stage->calls->begun, 1);
}

void cuda_stage_call_end(const struct cuda_stage *stage)
{
    if (stage->calls)
        order_fetch_add_relaxed_u32(&stage->calls->ended, 1);
}

static enum tutti_status flows_open(const struct cuda_driver *driver,
                                    struct cuda_stage_context *context)
{
    enum { LINE_WORDS = 8 };
    int able = 0;
    void *words = NULL;
    enum tutti_status status =
        CUDA_CALL(driver, device_attribute, &able,
                  CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, context->device);
    if (status == TUTTI_OK && !able)
        status = error_set(TUTTI_ERR_DECLINED,
                           "streams of device %d cannot write words in memory, which staging its "
                           "tensors through the host needs: copy the tensors to the host first",
                           context->device);
    if (status == TUTTI_OK)
        status = cuda_pinned_alloc(driver, CUDA_DIRECTIONS * LINE_WORDS * sizeof(uint64_t),
                                   CU_MEMHOSTALLOC_PORTABLE, &words);
    if (status != TUTTI_OK)
        return status;
    context->words = words;
    for (int direction = 0; direction < CUDA_DIRECTIONS && status == TUTTI_OK; direction++) {
        struct cuda_flow *flow = &context->flows[direction];
        flow->passed = &context->words[direction * LINE_WORDS];
        *flow->passed = 0;
        status = CUDA_CALL(driver, stream_create, &flow->stream, CU_STREAM_NON_BLOCKING, 0);
    }
    for (int direction = 0; direction < CUDA_DIRECTIONS && status != TUTTI_OK; direction++)
        if (context->flows[direction].stream)
            driver->stream_destroy(context->flows[direction].stream);
    if (status != TUTTI_OK)
        driver->mem_host_free(words);
    return status;
}

bool cuda_stage_context_lives(const struct cuda_driver *driver,
                              const struct cuda_stage_context *context)
{
    unsigned long long id = 0;
    return driver->ctx_id(context->handle, &id) == CUDA_SUCCESS && id == context->id;
}

/* Under the lock. `copies` asks for streams for copies. */
static enum tutti_status context_open(struct cuda_stage *stage, CUcontext handle, CUdevice device,
                                      bool copies, int *context)
{
    const struct cuda_driver *driver = stage->driver;
    struct cuda_stage_context *made = &stage->contexts[stage->context_count];
    struct cuda_visit visit;
    if (stage->context_count == CUDA_STAGE_CONTEXTS)
        return error_set(
            TUTTI_ERR_NO_MEMORY,
            "the tensors and streams of a group are of more than %d contexts: use fewer",
            CUDA_STAGE_CONTEXTS);
    *made = (struct cuda_stage_context){.handle = handle, .device = device, .copies = copies};
    enum tutti_status status = cuda_visit_begin(driver, handle, &visit);
    if (status != TUTTI_OK)
        return status;
    status = CUDA_CALL(driver, ctx_id, handle, &made->id);
    if (status == TUTTI_OK)
        status = cuda_kernel_load(driver, CUDA_STREAM_WAIT, &made->stream_wait);
    if (status == TUTTI_OK && copies)
        status = flows_open(driver, made);
    cuda_visit_end(driver, &visit);
    if (status != TUTTI_OK)
        return status;
    *context = (int)stage->context_count;
    order_store_release_u32(&stage->context_count, stage->context_count + 1); /* L5 pairs L5a */
    return TUTTI_OK;
}

int cuda_stage_context_of(const struct cuda_stage *stage, int device)
{
    const int count = (int)order_load_acquire_u32(&stage->context_count); /* L5a pairs L5 */
    for (int i = 0; i < count; i++)
        if (stage->contexts[i].copies && stage->contexts[i].device == device)
            return i;
    return -1;
}

enum tutti_status cuda_stage_device_find(struct cuda_stage *stage, int device, int *context)
{
    const struct cuda_driver *driver;
    CUcontext handle = NULL;
    CUdevice current = -1;
    int count = 0;
    *context = cuda_stage_context_of(stage, device);
    if (*context >= 0)
        return TUTTI_OK;
    enum tutti_status status = cuda_driver_open(&driver);
    if (status != TUTTI_OK)
        return status;
    if (!stage->driver) /* the group's thread reads it once there is a context */
        stage->driver = driver;
    status = CUDA_CALL(driver, device_count, &count);
    if (status == TUTTI_OK && (device < 0 || device >= count))
        status = error_set(TUTTI_ERR_INVALID, "device %d: expected 0 to %d", device, count - 1);
    if (status != TUTTI_OK)
        return status;
    driver->ctx_current(&handle);
    if (handle && driver->ctx_device(&current) == CUDA_SUCCESS && current == device)
        return context_open(stage, handle, device, true, context);
    status = CUDA_CALL(driver, primary_retain, &handle, device);
    if (status != TUTTI_OK)
        return status;
    status = context_open(stage, handle, device, true, context);
    if (status != TUTTI_OK)
        driver->primary_release(device);
    return status; /* after a success the context stays retained, as the stage stays */
}

enum tutti_status cuda_stage_context_find(struct cuda_stage *stage, CUcontext handle, int *context)
{
    const struct cuda_driver *driver = stage->driver;
    CUdevice device = -1;
    bool pushed;
    for (*context = 0; *context < (int)stage->context_count; ++*context)
        if (stage->contexts[*context].handle == handle)
            return TUTTI_OK;
    enum tutti_status status = cuda_context_enter(driver, handle, &pushed);
    if (status != TUTTI_OK)
        return status;
    status = CUDA_CALL(driver, ctx_device, &device);
    cuda_context_leave(driver, pushed);
    return status == TUTTI_OK ? context_open(stage, handle, device, false, context) : status;
}

void cuda_flow_drain(const struct cuda_driver *driver, const struct cuda_stage_context *context,
                     const struct cuda_flow *flow)
{
    bool pushed;
    if (cuda_context_enter(driver, context->handle, &pushed) != TUTTI_OK)
        return;
    driver->stream_synchronize(flow->stream);
    cuda_context_leave(driver, pushed);
}

void cuda_flows_drain(const struct cuda_driver *driver, const struct cuda_stage_context *context)
{
    for (int direction = 0; direction < CUDA_DIRECTIONS; direction++) {
        const struct cuda_flow *flow = &context->flows[direction];
        if (flow->unmarked || order_load_acquire_u64(flow->passed) != flow->marks) /* L4a */
            cuda_flow_drain(driver, context, flow);
    }
}
