/* SPDX-License-Identifier: MIT */
/*
 * A stream fence is a line of words in pinned memory, for one operation of a process group at a
 * time.
 *
 * At submission we enqueue a write of the first word on the caller's stream. The group's thread
 * reads the word, without a CUDA call, and so knows that the stream has come to the submission.
 * Until then nothing else of ours is on that stream.
 *
 * A stream that is to wait for the operation gets a waiting kernel (stream_wait.cu), which polls a
 * word that the host writes when the operation ends. So there is one waiting kernel for each stream
 * that waits, and none on a stream of ours.
 *
 * A stream may write its word late, after the operation, the group and the work are gone. So a
 * fence is used again only when all its words are written.
 */
#include "base/error.h"
#include "base/order.h"
#include "cuda/pipe/stage_internal.h"

#include <stdlib.h>

enum { TRIES = 4 }; /* how many idle fences are tried before a page is added */

static bool is_quiet(struct cuda_fence *fence)
{
    const struct cuda_fence_words *words = fence->words;
    for (int i = 0; i < fence->waits; i++)
        if (order_load_acquire_u32(&words->ended[i]) !=
            fence->number) /* L3a pairs the waiting kernel's L3 */
            return false;
    return cuda_fence_come(fence);
}

bool cuda_fences_quiet(const struct cuda_stage *stage)
{
    for (struct cuda_fence *fence = stage->first; fence; fence = fence->next)
        if (!is_quiet(fence))
            return false;
    return true;
}

void cuda_fences_free(struct cuda_stage *stage)
{
    while (stage->pages) {
        struct cuda_fence_page *page = stage->pages;
        stage->pages = page->next;
        free(page);
    }
}

static void fence_idle(struct cuda_stage *stage, struct cuda_fence *fence)
{
    fence->next = NULL;
    if (stage->last)
        stage->last->next = fence;
    else
        stage->first = fence;
    stage->last = fence;
}

static enum tutti_status page_add(struct cuda_stage *stage)
{
    const struct cuda_driver *driver = stage->driver;
    struct cuda_fence_page *page = calloc(1, sizeof *page);
    struct cuda_visit visit;
    void *words = NULL;
    if (!page)
        return error_errno("calloc of fences");
    enum tutti_status status = cuda_visit_begin(driver, stage->contexts[0].handle, &visit);
    if (status == TUTTI_OK) {
        status =
            cuda_pinned_alloc(driver, CUDA_PAGE_FENCES * sizeof *page->words + sizeof *stage->calls,
                              CU_MEMHOSTALLOC_PORTABLE, &words);
        cuda_visit_end(driver, &visit);
    }
    if (status != TUTTI_OK) {
        free(page);
        return status;
    }
    page->words = words;
    page->next = stage->pages;
    stage->pages = page;
    if (!stage->calls) {
        stage->calls = (struct cuda_calls *)(void *)&page->words[CUDA_PAGE_FENCES];
        *stage->calls = (struct cuda_calls){.begun = 0};
    }
    for (int i = 0; i < CUDA_PAGE_FENCES; i++) {
        page->words[i] = (struct cuda_fence_words){.open = 0};
        page->fences[i] = (struct cuda_fence){.stage = stage, .words = &page->words[i]};
        fence_idle(stage, &page->fences[i]);
    }
    return TUTTI_OK;
}

static struct cuda_fence *idle_take(struct cuda_stage *stage)
{
    struct cuda_fence *fence = stage->first;
    stage->first = fence->next;
    if (!stage->first)
        stage->last = NULL;
    return fence;
}

/* Under the lock. */
static enum tutti_status fence_find(struct cuda_stage *stage, struct cuda_fence **fence)
{
    for (int tries = 0; stage->first && tries < TRIES; tries++) {
        *fence = idle_take(stage);
        if (is_quiet(*fence))
            return TUTTI_OK;
        fence_idle(stage, *fence);
    }
    enum tutti_status status = page_add(stage);
    while (status == TUTTI_OK && !is_quiet(*fence = idle_take(stage)))
        fence_idle(stage, *fence);
    return status;
}

static bool is_each_devices(tutti_stream_t stream)
{
    return stream == TUTTI_STREAM_DEFAULT || stream == TUTTI_STREAM_LEGACY ||
           stream == TUTTI_STREAM_PER_THREAD;
}

/* Has the stream write the next word of the fence. */
static enum tutti_status come_enqueue(struct cuda_stage *stage, struct cuda_fence *fence,
                                      CUcontext handle, CUstream stream)
{
    const struct cuda_driver *driver = stage->driver;
    bool pushed;
    enum tutti_status status = cuda_context_enter(driver, handle, &pushed);
    if (status != TUTTI_OK)
        return status;
    status =
        cuda_uncaptured_check(driver, stream,
                              "a process group's operation is done by a thread of the host, which "
                              "a replay would not reach: submit it on a stream that is not");
    /* L1 pairs L1a: by default the write comes behind a fence for the whole system. */
    if (status == TUTTI_OK)
        status = CUDA_CALL(driver, stream_write_64, stream,
                           cuda_address(&fence->words->come[fence->comes]), fence->number,
                           CU_STREAM_WRITE_VALUE_DEFAULT);
    if (status == TUTTI_OK)
        fence->comes++;
    cuda_context_leave(driver, pushed);
    return status;
}

/* Notes the contexts of the devices, each context once. */
static enum tutti_status devices_note(struct cuda_fence *fence, const int *devices, int count)
{
    for (int i = 0; i < count; i++) {
        int context = cuda_stage_context_of(fence->stage, devices[i]), known = 0;
        while (known < fence->devices && fence->contexts[known] != context)
            known++;
        if (known == CUDA_FENCE_STREAMS)
            return error_set(TUTTI_ERR_INVALID, "tensors of more than %d devices",
                             CUDA_FENCE_STREAMS);
        fence->contexts[known] = (uint8_t)context;
        fence->devices += known == fence->devices;
    }
    return TUTTI_OK;
}

static enum tutti_status fence_begin(struct cuda_stage *stage, struct cuda_fence *fence,
                                     const int *devices, int count, tutti_stream_t stream)
{
    CUcontext handle;
    enum tutti_status status = devices_note(fence, devices, count);
    if (status != TUTTI_OK)
        return status;
    if (!is_each_devices(stream)) {
        status = CUDA_CALL(stage->driver, stream_context, cuda_stream_of(stream), &handle);
        return status == TUTTI_OK ? come_enqueue(stage, fence, handle, cuda_stream_of(stream))
                                  : status;
    }
    for (int i = 0; i < fence->devices && status == TUTTI_OK; i++)
        status = come_enqueue(stage, fence, stage->contexts[fence->contexts[i]].handle,
                              cuda_stream_of(stream));
    return status;
}

enum tutti_status cuda_fence_take(struct cuda_stage *stage, const int *devices, int count,
                                  tutti_stream_t stream, struct cuda_fence **fence)
{
    pthread_mutex_lock(&stage->lock);
    enum tutti_status status = fence_find(stage, fence);
    if (status == TUTTI_OK)
        stage->out++;
    pthread_mutex_unlock(&stage->lock);
    if (status != TUTTI_OK)
        return status;
    (*fence)->number++;
    (*fence)->comes = (*fence)->waits = (*fence)->devices = 0;
    status = fence_begin(stage, *fence, devices, count, stream);
    if (status != TUTTI_OK) {
        (void)cuda_fence_return(*fence); /* the caller has the group, so the stage is not closed */
        *fence = NULL;
    }
    return status;
}

bool cuda_fence_come(struct cuda_fence *fence)
{
    for (int i = 0; i < fence->comes; i++)
        if (order_load_acquire_u64(&fence->words->come[i]) != fence->number) /* L1a pairs L1 */
            return false;
    fence->comes = 0; /* the next user need not read what the device wrote */
    return true;
}

static enum tutti_status wait_launch(struct cuda_fence *fence,
                                     const struct cuda_stage_context *context, CUstream stream,
                                     const struct cuda_wait_limits *limits)
{
    const struct cuda_driver *driver = fence->stage->driver;
    struct cuda_stream_wait_launch launch = {.open = &fence->words->open,
                                             .ended = &fence->words->ended[fence->waits],
                                             .wait_expired = &fence->words->wait_expired,
                                             .calls = fence->stage->calls,
                                             .number = fence->number,
                                             .timeout_ns = cuda_timeout_ns(limits->all_ms),
                                             .call_limit_ns = cuda_timeout_ns(limits->call_ms)};
    bool pushed;
    enum tutti_status status = cuda_context_enter(driver, context->handle, &pushed);
    if (status != TUTTI_OK)
        return status;
    status =
        cuda_uncaptured_check(driver, stream,
                              "the work would be done long before a replay: wait for it before the "
                              "capture begins, or on the stream that the graph is launched on");
    if (status == TUTTI_OK)
        status = cuda_launch_block(driver, context->stream_wait, CUDA_STREAM_WAIT_THREADS, &launch,
                                   stream);
    cuda_context_leave(driver, pushed);
    return status;
}

/* Under the lock, which guards the number of waiting kernels. */
static enum tutti_status waits_launch(struct cuda_fence *fence, tutti_stream_t stream,
                                      const struct cuda_wait_limits *limits, bool *full)
{
    struct cuda_stage *stage = fence->stage;
    const bool each = is_each_devices(stream);
    const int count = each ? fence->devices : 1;
    enum tutti_status status = TUTTI_OK;
    CUcontext handle;
    int context = -1;
    *full = fence->waits + count > CUDA_FENCE_WAITS;
    if (*full)
        return TUTTI_OK;
    if (!each)
        status = CUDA_CALL(stage->driver, stream_context, cuda_stream_of(stream), &handle);
    if (!each && status == TUTTI_OK)
        status = cuda_stage_context_find(stage, handle, &context);
    for (int i = 0; i < count && status == TUTTI_OK; i++) {
        if (each)
            context = fence->contexts[i];
        status = wait_launch(fence, &stage->contexts[context], cuda_stream_of(stream), limits);
        fence->waits += status == TUTTI_OK;
    }
    return status;
}

enum tutti_status cuda_fence_wait(struct cuda_fence *fence, tutti_stream_t stream,
                                  const struct cuda_wait_limits *limits, bool *full)
{
    pthread_mutex_lock(&fence->stage->lock); /* the group's thread may wait for this lock */
    cuda_stage_call_begin(fence->stage);
    enum tutti_status status = waits_launch(fence, stream, limits, full);
    cuda_stage_call_end(fence->stage);
    pthread_mutex_unlock(&fence->stage->lock);
    return status;
}

bool cuda_fence_wait_expired(const struct cuda_fence *fence)
{
    return order_load_acquire_u32(&fence->words->wait_expired) == fence->number; /* L6a pairs L6 */
}

void cuda_fence_open(struct cuda_fence *fence)
{
    order_store_release_u32(&fence->words->open,
                            fence->number); /* L2 pairs the waiting kernel's L2a */
}

bool cuda_fence_return(struct cuda_fence *fence)
{
    struct cuda_stage *stage = fence->stage;
    pthread_mutex_lock(&stage->lock);
    fence_idle(stage, fence);
    bool last = --stage->out == 0 && stage->closed;
    pthread_mutex_unlock(&stage->lock);
    return last;
}
