/* SPDX-License-Identifier: MIT */
/*
 * What a stage has in one context: streams for copies, words that those streams write, the code of
 * the waiting kernel. A device's place is in the context that is current when the device is first
 * named, if it is of this device, else in the device's primary context. A stream that waits may be
 * of another context: that context gets a place with the kernel alone.
 */
#include "base/error.h"
#include "base/order.h"
#include "cuda/staging/stage_internal.h"

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
                                    struct cuda_stage_place *place)
{
    enum { LINE_WORDS = 8 };
    int able = 0;
    void *words = NULL;
    enum tutti_status status =
        CUDA_CALL(driver, device_attribute, &able,
                  CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, place->device);
    if (status == TUTTI_OK && !able)
        status = error_set(TUTTI_ERR_DECLINED,
                           "streams of device %d cannot write words in memory, which staging its "
                           "tensors through the host needs: copy the tensors to the host first",
                           place->device);
    if (status == TUTTI_OK)
        status = cuda_pinned_alloc(driver, CUDA_WAYS * LINE_WORDS * sizeof(uint64_t),
                                   CU_MEMHOSTALLOC_PORTABLE, &words);
    if (status != TUTTI_OK)
        return status;
    place->words = words;
    for (int way = 0; way < CUDA_WAYS && status == TUTTI_OK; way++) {
        struct cuda_flow *flow = &place->flows[way];
        flow->passed = &place->words[way * LINE_WORDS];
        *flow->passed = 0;
        status = CUDA_CALL(driver, stream_create, &flow->stream, CU_STREAM_NON_BLOCKING, 0);
    }
    for (int way = 0; way < CUDA_WAYS && status != TUTTI_OK; way++)
        if (place->flows[way].stream)
            driver->stream_destroy(place->flows[way].stream);
    if (status != TUTTI_OK)
        driver->mem_host_free(words);
    return status;
}

bool cuda_place_lives(const struct cuda_driver *driver, const struct cuda_stage_place *place)
{
    unsigned long long id = 0;
    return driver->ctx_id(place->context, &id) == CUDA_SUCCESS && id == place->id;
}

/* Under the lock. `context` is the context of the place; `copies` asks for streams for copies. */
static enum tutti_status place_open(struct cuda_stage *stage, CUcontext context, CUdevice device,
                                    bool copies, int *place)
{
    const struct cuda_driver *driver = stage->driver;
    struct cuda_stage_place *made = &stage->places[stage->place_count];
    struct cuda_visit visit;
    if (stage->place_count == CUDA_STAGE_PLACES)
        return error_set(
            TUTTI_ERR_NO_MEMORY,
            "the tensors and streams of a group are of more than %d contexts: use fewer",
            CUDA_STAGE_PLACES);
    *made = (struct cuda_stage_place){.context = context, .device = device, .copies = copies};
    enum tutti_status status = cuda_visit_begin(driver, context, &visit);
    if (status != TUTTI_OK)
        return status;
    status = CUDA_CALL(driver, ctx_id, context, &made->id);
    if (status == TUTTI_OK)
        status = cuda_kernel_load_stream_wait(driver, &made->stream_wait);
    if (status == TUTTI_OK && copies)
        status = flows_open(driver, made);
    cuda_visit_end(driver, &visit);
    if (status != TUTTI_OK)
        return status;
    *place = (int)stage->place_count;
    order_store_release_u32(&stage->place_count, stage->place_count + 1); /* L5 pairs L5a */
    return TUTTI_OK;
}

int cuda_place_of_device(const struct cuda_stage *stage, int device)
{
    const int count = (int)order_load_acquire_u32(&stage->place_count); /* L5a pairs L5 */
    for (int i = 0; i < count; i++)
        if (stage->places[i].copies && stage->places[i].device == device)
            return i;
    return -1;
}

enum tutti_status cuda_device_open(struct cuda_stage *stage, int device, int *place)
{
    const struct cuda_driver *driver;
    CUcontext context = NULL;
    CUdevice current = -1;
    int count = 0;
    *place = cuda_place_of_device(stage, device);
    if (*place >= 0)
        return TUTTI_OK;
    enum tutti_status status = cuda_driver_open(&driver);
    if (status != TUTTI_OK)
        return status;
    if (!stage->driver) /* the group's thread reads it once there is a place */
        stage->driver = driver;
    status = CUDA_CALL(driver, device_count, &count);
    if (status == TUTTI_OK && (device < 0 || device >= count))
        status = error_set(TUTTI_ERR_INVALID, "device %d: expected 0 to %d", device, count - 1);
    if (status != TUTTI_OK)
        return status;
    driver->ctx_current(&context);
    if (context && driver->ctx_device(&current) == CUDA_SUCCESS && current == device)
        return place_open(stage, context, device, true, place);
    status = CUDA_CALL(driver, primary_retain, &context, device);
    if (status != TUTTI_OK)
        return status;
    status = place_open(stage, context, device, true, place);
    if (status != TUTTI_OK)
        driver->primary_release(device);
    return status; /* after a success the context stays retained, as the stage stays */
}

enum tutti_status cuda_context_open(struct cuda_stage *stage, CUcontext context, int *place)
{
    const struct cuda_driver *driver = stage->driver;
    CUdevice device = -1;
    bool pushed;
    for (*place = 0; *place < (int)stage->place_count; ++*place)
        if (stage->places[*place].context == context)
            return TUTTI_OK;
    enum tutti_status status = cuda_context_enter(driver, context, &pushed);
    if (status != TUTTI_OK)
        return status;
    status = CUDA_CALL(driver, ctx_device, &device);
    cuda_context_leave(driver, pushed);
    return status == TUTTI_OK ? place_open(stage, context, device, false, place) : status;
}

void cuda_flow_drain(const struct cuda_driver *driver, const struct cuda_stage_place *place,
                     const struct cuda_flow *flow)
{
    bool pushed;
    if (cuda_context_enter(driver, place->context, &pushed) != TUTTI_OK)
        return;
    driver->stream_synchronize(flow->stream);
    cuda_context_leave(driver, pushed);
}

void cuda_flows_drain(const struct cuda_driver *driver, const struct cuda_stage_place *place)
{
    for (int way = 0; way < CUDA_WAYS; way++) {
        const struct cuda_flow *flow = &place->flows[way];
        if (flow->unmarked || order_load_acquire_u64(flow->passed) != flow->marks) /* L4a */
            cuda_flow_drain(driver, place, flow);
    }
}
