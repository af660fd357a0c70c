/* SPDX-License-Identifier: MIT */
/* The stand-in's streams, each a thread that does its work in order, and events. */
#include "standin_internal.h"

#include "base/deadline.h"
#include "base/order.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

struct task {
    struct task *next;
    struct work work;
    uint64_t place; /* in the device's channel */
};

static int copies_before; /* the one that is held, 0: none is */
static bool copy_held;

void standin_hold_copy(int at)
{
    pthread_mutex_lock(&standin_lock);
    copies_before = at;
    copy_held = false;
    pthread_cond_broadcast(&standin_changed);
    pthread_mutex_unlock(&standin_lock);
}

/* With the lock held. */
static void await_copy(void)
{
    if (copies_before == 0 || --copies_before > 0)
        return;
    copy_held = true;
    while (copy_held)
        pthread_cond_wait(&standin_changed, &standin_lock);
}

/* ---- the thread ------------------------------------------------------------------------------ */

static void release_event(struct event *event)
{
    event->pending--;
    if (event->destroyed && event->pending == 0)
        free(event);
}

/* The word is written whole, as by a device, even if another thread writes there. */
static void copy_word(void *to, const void *from)
{
    if (((uintptr_t)to | (uintptr_t)from) % sizeof(uint64_t) == 0)
        *(uint64_t *)to = order_load_relaxed_u64(from);
    else
        memmove(to, from, sizeof(uint64_t));
}

/* "At least" as the driver has it: cyclic. */
static void await_word(const uint64_t *at, uint64_t word)
{
    while ((int64_t)(order_load_acquire_u64(at) - word) < 0)
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
}

/* With the lock held, which the long ones give up. */
static void do_work(struct device *device, const struct work *work)
{
    switch (work->kind) {
    case WORK_RECORD:
        if (work->event->completed < work->turn)
            work->event->completed = work->turn;
        work->event->completed_ns = deadline_now();
        release_event(work->event);
        return;
    case WORK_WAIT:
        while (work->event->completed < work->turn)
            pthread_cond_wait(&standin_changed, &standin_lock);
        release_event(work->event);
        return;
    case WORK_END:
        standin_exec_ran(work->exec);
        return;
    case WORK_KERNEL:
        device->kernels++;
        break;
    case WORK_COPY:
        await_copy();
        break;
    case WORK_SET:
    case WORK_CALL:
    case WORK_WRITE:
    case WORK_AWAIT:
        break;
    }
    pthread_mutex_unlock(&standin_lock);
    if (work->kind == WORK_KERNEL)
        standin_run(work);
    else if (work->kind == WORK_COPY && work->bytes == sizeof(uint64_t))
        copy_word(standin_reach(work->to), standin_reach(work->from));
    else if (work->kind == WORK_COPY)
        memmove(standin_reach(work->to), standin_reach(work->from), work->bytes);
    else if (work->kind == WORK_SET)
        standin_fill(standin_reach(work->to), work->value, work->bytes);
    else if (work->kind == WORK_WRITE)
        order_store_release_u64(work->to, work->word);
    else if (work->kind == WORK_AWAIT)
        await_word(work->from, work->word);
    else
        work->call(work->argument);
    pthread_mutex_lock(&standin_lock);
    device->kernels -= work->kind == WORK_KERNEL;
}

/* Returns true if the work has a place in the channel; words that its stream writes have none. */
static bool is_placed(const struct work *work)
{
    return work->kind != WORK_RECORD && work->kind != WORK_WRITE && work->kind != WORK_END;
}

/* With the lock held. If streams share a channel, earlier work of any stream has begun, and earlier
 * waits are over. */
static void do_task(struct device *device, const struct task *task)
{
    const bool waits = task->work.kind == WORK_WAIT || task->work.kind == WORK_AWAIT;
    const bool placed = standin_one_channel && is_placed(&task->work);
    while (placed && device->begun != task->place)
        pthread_cond_wait(&standin_changed, &standin_lock);
    device->begun += placed && !waits;
    pthread_cond_broadcast(&standin_changed);
    do_work(device, &task->work);
    device->begun += placed && waits;
}

static void *serve(void *argument)
{
    struct stream *stream = argument;
    pthread_mutex_lock(&standin_lock);
    for (;;) {
        struct task *task = stream->first;
        if (!task && stream->closing)
            break;
        if (!task) {
            pthread_cond_wait(&standin_changed, &standin_lock);
            continue;
        }
        stream->first = task->next;
        if (!stream->first)
            stream->last = &stream->first;
        stream->busy = true;
        do_task(stream->device, task);
        free(task);
        stream->busy = false;
        pthread_cond_broadcast(&standin_changed);
    }
    free(stream);
    pthread_mutex_unlock(&standin_lock);
    return NULL;
}

static struct stream *create_stream(struct device *device)
{
    struct stream *stream = standin_object_create(OBJECT_STREAM, sizeof *stream);
    sigset_t all, old;
    pthread_t thread;
    stream->device = device;
    stream->last = &stream->first;
    /* Signals are for the caller's threads. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    if (pthread_create(&thread, NULL, serve, stream) != 0)
        abort();
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_detach(thread);
    return stream;
}

static struct stream *default_stream(struct stream **stream, struct device *device)
{
    if (!*stream) {
        *stream = create_stream(device);
        (*stream)->object.hidden = true;
    }
    return *stream;
}

struct stream *standin_stream_anywhere(CUstream handle, CUresult *result)
{
    struct device *device = standin_device_of(standin_context());
    struct stream *stream = NULL;
    if (!device)
        *result = CUDA_ERROR_INVALID_CONTEXT;
    else if (handle == NULL || handle == CU_STREAM_LEGACY)
        stream = default_stream(&device->legacy, device);
    else if (handle == CU_STREAM_PER_THREAD)
        stream = default_stream(&device->per_thread, device);
    else if (standin_object_is(handle, OBJECT_STREAM))
        stream = (struct stream *)handle;
    if (device && !stream)
        *result = CUDA_ERROR_INVALID_HANDLE;
    return stream;
}

struct stream *standin_stream(CUstream handle, CUresult *result)
{
    struct stream *stream = standin_stream_anywhere(handle, result);
    if (!stream || stream->device == standin_device_of(standin_context()))
        return stream;
    *result = CUDA_ERROR_INVALID_HANDLE;
    return NULL;
}

void standin_enqueue(struct stream *stream, const struct work *work)
{
    struct task *task = calloc(1, sizeof *task);
    if (!task)
        abort();
    task->work = *work;
    task->place = stream->device->put;
    stream->device->put += is_placed(work);
    *stream->last = task;
    stream->last = &task->next;
    pthread_cond_broadcast(&standin_changed);
}

CUresult standin_submit(struct stream *stream, const struct work *work)
{
    if (stream->capture)
        standin_capture_into(stream->capture, stream, work);
    else
        standin_enqueue(stream, work);
    return CUDA_SUCCESS;
}

/* ---- streams --------------------------------------------------------------------------------- */

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority)
{
    struct device *device;
    CUresult result = standin_enter_context(__func__, &device);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&standin_lock);
    struct stream *created = create_stream(device);
    created->flags = flags;
    created->priority = priority;
    pthread_mutex_unlock(&standin_lock);
    *stream = (CUstream)created;
    return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx(CUstream handle, CUcontext *context)
{
    CUresult result = standin_enter(__func__);
    pthread_mutex_lock(&standin_lock);
    const struct stream *stream =
        result == CUDA_SUCCESS ? standin_stream_anywhere(handle, &result) : NULL;
    if (stream)
        *context = (CUcontext)stream->device;
    pthread_mutex_unlock(&standin_lock);
    return result;
}

/* What is in the stream is still done. */
CUresult cuStreamDestroy_v2(CUstream handle)
{
    CUresult result = standin_enter_unsafe(__func__);
    pthread_mutex_lock(&standin_lock);
    if (result == CUDA_SUCCESS && !standin_object_is(handle, OBJECT_STREAM))
        result = CUDA_ERROR_INVALID_HANDLE;
    if (result == CUDA_SUCCESS) {
        standin_object_forget(handle);
        ((struct stream *)handle)->closing = true;
        pthread_cond_broadcast(&standin_changed);
    }
    pthread_mutex_unlock(&standin_lock);
    return result;
}

static CUresult await_stream(CUstream handle, bool wait)
{
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&standin_lock);
    struct stream *stream = standin_stream(handle, &result);
    if (stream && stream->capture) {
        standin_capture_spoil(stream->capture);
        result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    } else if (stream && !wait) {
        result = stream->first || stream->busy ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
    }
    while (stream && result == CUDA_SUCCESS && (stream->first || stream->busy))
        pthread_cond_wait(&standin_changed, &standin_lock);
    pthread_mutex_unlock(&standin_lock);
    return result;
}

CUresult cuStreamSynchronize(CUstream stream)
{
    CUresult result = standin_enter_unsafe(__func__);
    return result == CUDA_SUCCESS ? await_stream(stream, true) : result;
}

CUresult cuStreamQuery(CUstream stream)
{
    CUresult result = standin_enter_unsafe(__func__);
    return result == CUDA_SUCCESS ? await_stream(stream, false) : result;
}

static struct stream *busy_stream(const struct device *device)
{
    for (struct object *object = standin_objects(); object; object = object->next) {
        struct stream *stream = (struct stream *)object;
        if (object->kind == OBJECT_STREAM && stream->device == device &&
            (stream->first || stream->busy))
            return stream;
    }
    return NULL;
}

/* With the lock held. */
static void await_device(const struct device *device)
{
    while (busy_stream(device))
        pthread_cond_wait(&standin_changed, &standin_lock);
}

void standin_drain(void)
{
    struct device *device;
    pthread_mutex_lock(&standin_lock);
    for (int i = 0; (device = standin_device(i)); i++) {
        device->drains++;
        await_device(device);
        device->drains--;
        pthread_cond_broadcast(&standin_changed);
    }
    pthread_mutex_unlock(&standin_lock);
}

void standin_await_drains(const struct stream *stream)
{
    while (!stream->capture && stream->device->drains)
        pthread_cond_wait(&standin_changed, &standin_lock);
}

CUresult cuCtxSynchronize(void)
{
    struct device *device;
    CUresult result = standin_enter_context(__func__, &device);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&standin_lock);
    await_device(device);
    pthread_mutex_unlock(&standin_lock);
    return CUDA_SUCCESS;
}

/* Submits work to a stream of the current context. */
static CUresult submit(CUstream handle, const struct work *work)
{
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&standin_lock);
    struct stream *stream = standin_stream(handle, &result);
    if (stream) {
        standin_await_drains(stream);
        result = standin_submit(stream, work);
    }
    pthread_mutex_unlock(&standin_lock);
    return result;
}

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    CUresult result = standin_enter(__func__);
    struct work work = {.kind = WORK_COPY,
                        .to = (void *)(uintptr_t)to,
                        .from = (const void *)(uintptr_t)from,
                        .bytes = bytes};
    return result == CUDA_SUCCESS ? submit(stream, &work) : result;
}

/* Rows without gaps, the only kind that the library copies. */
/* Each row is a copy of its own. */
CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *copy, CUstream stream)
{
    CUresult result = standin_enter(__func__);
    if (result == CUDA_SUCCESS &&
        (copy->srcMemoryType != CU_MEMORYTYPE_UNIFIED ||
         copy->dstMemoryType != CU_MEMORYTYPE_UNIFIED || copy->srcXInBytes || copy->srcY ||
         copy->dstXInBytes || copy->dstY || copy->srcPitch < copy->WidthInBytes ||
         copy->dstPitch < copy->WidthInBytes || copy->srcPitch > INT32_MAX ||
         copy->dstPitch > INT32_MAX))
        result = CUDA_ERROR_INVALID_VALUE;
    for (size_t row = 0; row < copy->Height && result == CUDA_SUCCESS; row++) {
        struct work work = {.kind = WORK_COPY,
                            .to = (void *)(uintptr_t)(copy->dstDevice + row * copy->dstPitch),
                            .from =
                                (const void *)(uintptr_t)(copy->srcDevice + row * copy->srcPitch),
                            .bytes = copy->WidthInBytes};
        result = submit(stream, &work);
    }
    return result;
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream)
{
    CUresult result = standin_enter(__func__);
    struct work work = {
        .kind = WORK_SET, .to = (void *)(uintptr_t)to, .value = value, .bytes = bytes};
    return result == CUDA_SUCCESS ? submit(stream, &work) : result;
}

/* In a graph this would be a node, but the library adds none. */
static CUresult submit_word(CUstream handle, const struct work *work, CUdeviceptr at)
{
    CUresult result = at % sizeof(uint64_t) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    pthread_mutex_lock(&standin_lock);
    struct stream *stream = result == CUDA_SUCCESS ? standin_stream(handle, &result) : NULL;
    if (stream && stream->capture) {
        standin_capture_spoil(stream->capture);
        result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    } else if (stream) {
        result = standin_submit(stream, work);
    }
    pthread_mutex_unlock(&standin_lock);
    return result;
}

CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr at, uint64_t word, unsigned flags)
{
    CUresult result = standin_enter(__func__);
    struct work work = {.kind = WORK_WRITE, .to = (void *)(uintptr_t)at, .word = word};
    if (result == CUDA_SUCCESS && flags != CU_STREAM_WRITE_VALUE_DEFAULT)
        result = CUDA_ERROR_INVALID_VALUE;
    return result == CUDA_SUCCESS ? submit_word(stream, &work, at) : result;
}

CUresult cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr at, uint64_t word, unsigned flags)
{
    CUresult result = standin_enter(__func__);
    struct work work = {.kind = WORK_AWAIT, .from = (const void *)(uintptr_t)at, .word = word};
    if (result == CUDA_SUCCESS && flags != CU_STREAM_WAIT_VALUE_GEQ)
        result = CUDA_ERROR_INVALID_VALUE;
    return result == CUDA_SUCCESS ? submit_word(stream, &work, at) : result;
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn call, void *argument)
{
    CUresult result = standin_enter(__func__);
    struct work work = {.kind = WORK_CALL, .call = call, .argument = argument};
    return result == CUDA_SUCCESS ? submit(stream, &work) : result;
}

/* The parameter is the library's: one struct cuda_launch, cuda_symm_launch or
 * cuda_stream_wait_launch. */
CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters,
                          void **extra)
{
    CUresult result = standin_enter(__func__);
    if (result == CUDA_SUCCESS &&
        (!config->gridDimX || config->gridDimY != 1 || config->gridDimZ != 1 ||
         !config->blockDimX || config->blockDimX > 1024 || config->blockDimY != 1 ||
         config->blockDimZ != 1 || !parameters || extra || config->numAttrs > STANDIN_ATTRIBUTES))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS)
        return result;
    struct work work = {.kind = WORK_KERNEL,
                        .function = (const struct function *)function,
                        .grid = config->gridDimX,
                        .block = config->blockDimX};
    if (work.function->symm)
        work.symm = *(const struct cuda_symm_launch *)parameters[0];
    else if (work.function->stream_wait)
        work.stream_wait = *(const struct cuda_stream_wait_launch *)parameters[0];
    else if (work.function->exchange)
        work.exchange = *(const struct cuda_exchange *)parameters[0];
    else if (work.function->varied)
        work.varied = *(const struct cuda_varied *)parameters[0];
    else if (work.function->counted)
        work.counted = *(const struct cuda_counted *)parameters[0];
    else if (work.function->norm)
        work.norm = *(const struct cuda_rms_norm *)parameters[0];
    else if (work.function->push)
        work.push = *(const struct cuda_push *)parameters[0];
    else if (work.function->combine)
        work.combine = *(const struct cuda_combine *)parameters[0];
    else if (work.function->announce)
        work.announce = *(const struct cuda_announce *)parameters[0];
    else
        work.launch = *(const struct cuda_launch *)parameters[0];
    pthread_mutex_lock(&standin_lock);
    struct stream *stream = standin_stream(config->hStream, &result);
    if (stream && work.function->device != stream->device)
        result = CUDA_ERROR_INVALID_HANDLE;
    if (stream && result == CUDA_SUCCESS) {
        standin_await_drains(stream);
        standin_note_launch(config, &work, stream->capture != NULL);
        result = standin_submit(stream, &work);
    }
    pthread_mutex_unlock(&standin_lock);
    return result;
}

/* ---- events ---------------------------------------------------------------------------------- */

CUresult cuEventCreate(CUevent *event, unsigned flags)
{
    struct device *device;
    CUresult result = standin_enter_context(__func__, &device);
    (void)flags;
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&standin_lock);
    struct event *created = standin_object_create(OBJECT_EVENT, sizeof *created);
    created->device = device;
    pthread_mutex_unlock(&standin_lock);
    *event = (CUevent)created;
    return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent handle)
{
    CUresult result = standin_enter_unsafe(__func__);
    struct event *event = (struct event *)handle;
    pthread_mutex_lock(&standin_lock);
    if (result == CUDA_SUCCESS && !standin_object_is(handle, OBJECT_EVENT))
        result = CUDA_ERROR_INVALID_HANDLE;
    if (result == CUDA_SUCCESS) {
        standin_object_forget(event);
        event->destroyed = true;
        if (event->pending == 0)
            free(event);
    }
    pthread_mutex_unlock(&standin_lock);
    return result;
}

/* In a capture the event stands for what the stream's next node would depend on. */
static void record(struct stream *stream, struct event *event)
{
    event->capture = standin_capture_id(stream->capture);
    memcpy(event->tips, stream->tips, sizeof event->tips);
    event->tip_count = stream->tip_count;
    if (stream->capture)
        return;
    event->pending++;
    standin_enqueue(stream,
                    &(struct work){.kind = WORK_RECORD, .event = event, .turn = ++event->recorded});
}

CUresult cuEventRecord(CUevent handle, CUstream stream_handle)
{
    CUresult result = standin_enter(__func__);
    struct event *event = (struct event *)handle;
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&standin_lock);
    struct stream *stream = standin_stream(stream_handle, &result);
    if (stream && (!standin_object_is(event, OBJECT_EVENT) || event->device != stream->device))
        result = CUDA_ERROR_INVALID_HANDLE;
    if (stream && result == CUDA_SUCCESS) {
        standin_await_drains(stream);
        record(stream, event);
    }
    pthread_mutex_unlock(&standin_lock);
    return result;
}

static CUresult wait_event(struct stream *stream, struct event *event)
{
    if (event->capture)
        return standin_capture_join(stream, event);
    if (stream->capture) {
        standin_capture_spoil(stream->capture);
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    event->pending++;
    standin_enqueue(stream,
                    &(struct work){.kind = WORK_WAIT, .event = event, .turn = event->recorded});
    return CUDA_SUCCESS;
}

CUresult cuStreamWaitEvent(CUstream stream_handle, CUevent handle, unsigned flags)
{
    CUresult result = standin_enter(__func__);
    struct event *event = (struct event *)handle;
    (void)flags;
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&standin_lock);
    struct stream *stream = standin_stream_anywhere(stream_handle, &result);
    if (stream && !standin_object_is(event, OBJECT_EVENT))
        result = CUDA_ERROR_INVALID_HANDLE;
    else if (stream)
        result = wait_event(stream, event);
    pthread_mutex_unlock(&standin_lock);
    return result;
}

CUresult cuEventQuery(CUevent handle)
{
    CUresult result = standin_enter_unsafe(__func__);
    const struct event *event = (const struct event *)handle;
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&standin_lock);
    if (!standin_object_is(event, OBJECT_EVENT))
        result = CUDA_ERROR_INVALID_HANDLE;
    else if (event->capture)
        result = CUDA_ERROR_CAPTURED_EVENT;
    else if (event->completed < event->recorded)
        result = CUDA_ERROR_NOT_READY;
    pthread_mutex_unlock(&standin_lock);
    return result;
}

CUresult cuEventElapsedTime(float *ms, CUevent from_handle, CUevent to_handle)
{
    CUresult result = standin_enter(__func__);
    struct event *from = (struct event *)from_handle, *to = (struct event *)to_handle;
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&standin_lock);
    if (!standin_object_is(from, OBJECT_EVENT) || !standin_object_is(to, OBJECT_EVENT))
        result = CUDA_ERROR_INVALID_HANDLE;
    else if (from->completed < from->recorded || to->completed < to->recorded)
        result = CUDA_ERROR_NOT_READY;
    else
        *ms = (float)(to->completed_ns - from->completed_ns) * 1e-6F;
    pthread_mutex_unlock(&standin_lock);
    return result;
}
