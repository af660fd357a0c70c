/* SPDX-License-Identifier: MIT */
/*
 * A process group's staging: create, close, check operands, copy. It uses place.c (what a stage has
 * in a context), pool.c (memory) and stream_fence.c (how streams and the group tell each other how
 * far they are).
 */
#include "cuda/staging/stage.h"

#include "base/error.h"
#include "base/fork_mutex.h"
#include "base/order.h"
#include "cuda/staging/stage_internal.h"

#include <stdlib.h>
#include <string.h>

static void kept_forget(void);

/*
 * Stages of groups that have ended, for later groups. They are never freed: a call of the driver
 * that frees memory waits for all streams of all devices. One of these streams may wait for an
 * operation of another rank of this process, and that rank may need the thread that frees.
 */
static struct fork_mutex kept_lock = FORK_MUTEX(kept_forget);
static struct cuda_stage *kept;

static void kept_forget(void)
{
    kept = NULL; /* the list belongs to the parent */
}

/* ---- life ------------------------------------------------------------------------------------ */

void cuda_stage_free(struct cuda_stage *stage)
{
    pthread_mutex_destroy(&stage->lock);
    cuda_fences_free(stage);
    cuda_blocks_free(stage);
    free(stage);
}

/* Returns true if the contexts of all places live. Its driver calls do not wait. */
static bool lives(const struct cuda_stage *stage)
{
    for (uint32_t i = 0; i < stage->place_count; i++)
        if (!cuda_place_lives(stage->driver, &stage->places[i]))
            return false;
    return true;
}

/* The stage is closed and no fence is taken. */
static void stage_end(struct cuda_stage *stage)
{
    if (!stage->place_count) {
        cuda_stage_free(stage);
        return;
    }
    fork_mutex_lock(&kept_lock);
    stage->next = kept;
    kept = stage;
    fork_mutex_unlock(&kept_lock);
}

struct cuda_stage *cuda_stage_take_kept(void)
{
    fork_mutex_lock(&kept_lock);
    struct cuda_stage **link = &kept;
    while (*link && lives(*link) && !cuda_fences_quiet(*link))
        link = &(*link)->next;
    struct cuda_stage *stage = *link;
    if (stage)
        *link = stage->next;
    fork_mutex_unlock(&kept_lock);
    return stage;
}

static struct cuda_stage *kept_revive(void)
{
    struct cuda_stage *stage;
    while ((stage = cuda_stage_take_kept()) && !lives(stage))
        cuda_stage_free(stage);
    if (!stage)
        return NULL;
    stage->closed = false;
    memset(&stage->ranges, 0, sizeof stage->ranges);
    return stage;
}

enum tutti_status cuda_stage_create(struct cuda_stage **stage)
{
    *stage = kept_revive();
    if (*stage)
        return TUTTI_OK;
    *stage = calloc(1, sizeof **stage);
    if (!*stage)
        return error_errno("calloc of a group's staging");
    pthread_mutex_init(&(*stage)->lock, NULL);
    return TUTTI_OK;
}

void cuda_stage_close(struct cuda_stage *stage)
{
    if (!stage)
        return;
    for (uint32_t i = 0; i < stage->place_count; i++)
        if (stage->places[i].copies)
            cuda_flows_drain(stage->driver, &stage->places[i]);
    cuda_blocks_find(stage);
    pthread_mutex_lock(&stage->lock);
    stage->closed = true;
    bool last = stage->out == 0;
    pthread_mutex_unlock(&stage->lock);
    if (last)
        stage_end(stage);
}

void cuda_fence_give(struct cuda_fence *fence)
{
    if (!fence)
        return;
    struct cuda_stage *stage = fence->stage;
    if (cuda_fence_return(fence))
        stage_end(stage);
}

/* ---- operands -------------------------------------------------------------------------------- */

static enum tutti_status operand_check(struct cuda_stage *stage, int device, const void *pointer,
                                       CUdeviceptr at, struct cuda_range *range)
{
    struct cuda_pointer facts;
    enum tutti_status status = cuda_pointer_ask(stage->driver, at, &facts);
    if (status != TUTTI_OK)
        return status;
    if (!facts.device && !facts.managed)
        return error_set(TUTTI_ERR_INVALID,
                         "%p is host memory, but the tensor names CUDA device %d: make it a CPU "
                         "tensor, or copy the data to the device",
                         pointer, device);
    if (facts.ordinal != device && !facts.managed)
        return error_set(TUTTI_ERR_INVALID,
                         "%p is memory of device %d, but the tensor names device %d", pointer,
                         facts.ordinal, device);
    *range = facts.range;
    return TUTTI_OK;
}

enum tutti_status cuda_stage_open(struct cuda_stage *stage, int device)
{
    int place;
    pthread_mutex_lock(&stage->lock);
    enum tutti_status status = cuda_device_open(stage, device, &place);
    pthread_mutex_unlock(&stage->lock);
    return status;
}

void cuda_stage_open_current(struct cuda_stage *stage)
{
    const struct cuda_driver *driver;
    CUdevice device = -1;
    if (cuda_driver_in_use() && cuda_driver_open(&driver) == TUTTI_OK &&
        driver->ctx_device(&device) == CUDA_SUCCESS)
        (void)cuda_stage_open(stage,
                              device); /* a later call that names the device returns the error */
}

enum tutti_status cuda_stage_check(struct cuda_stage *stage, int device, const void *pointer,
                                   size_t bytes)
{
    CUdeviceptr first = cuda_address(pointer), last = first + bytes - 1;
    struct cuda_range range, other;
    int place;
    pthread_mutex_lock(&stage->lock);
    enum tutti_status status = cuda_device_open(stage, device, &place);
    if (status == TUTTI_OK && bytes && !cuda_ranges_have(&stage->ranges, device, first, last)) {
        status = operand_check(stage, device, pointer, first, &range);
        if (status == TUTTI_OK && last - range.base >= range.bytes)
            status = operand_check(stage, device, pointer, last, &other);
        if (status == TUTTI_OK)
            cuda_ranges_add(&stage->ranges, device, &range);
    }
    pthread_mutex_unlock(&stage->lock);
    return status;
}

/* ---- copies ---------------------------------------------------------------------------------- */

enum tutti_status cuda_stage_copy(struct cuda_stage *stage, int device, enum cuda_way way, void *to,
                                  const void *from, size_t bytes)
{
    const struct cuda_driver *driver = stage->driver;
    const struct cuda_stage_place *place = &stage->places[cuda_place_of_device(stage, device)];
    bool pushed;
    enum tutti_status status = cuda_context_enter(driver, place->context, &pushed);
    if (status != TUTTI_OK)
        return status;
    cuda_stage_call_begin(stage);
    status = CUDA_CALL(driver, memcpy_async, cuda_address(to), cuda_address(from), bytes,
                       place->flows[way].stream);
    cuda_stage_call_end(stage);
    cuda_context_leave(driver, pushed);
    return status;
}

tutti_stream_t cuda_stage_stream(const struct cuda_stage *stage, int device, enum cuda_way way)
{
    const struct cuda_stage_place *place = &stage->places[cuda_place_of_device(stage, device)];
    return (tutti_stream_t)(void *)place->flows[way].stream;
}

enum tutti_status cuda_stage_mark(struct cuda_stage *stage, int device, enum cuda_way way,
                                  uint64_t *mark)
{
    const struct cuda_driver *driver = stage->driver;
    struct cuda_stage_place *place = &stage->places[cuda_place_of_device(stage, device)];
    struct cuda_flow *flow = &place->flows[way];
    bool pushed;
    enum tutti_status status = cuda_context_enter(driver, place->context, &pushed);
    if (status == TUTTI_OK) {
        /* L4 pairs L4a: by default the write comes behind a fence for the whole system. */
        status = CUDA_CALL(driver, stream_write_64, flow->stream, cuda_address(flow->passed),
                           flow->marks + 1, CU_STREAM_WRITE_VALUE_DEFAULT);
        cuda_context_leave(driver, pushed);
    }
    if (status == TUTTI_OK)
        *mark = ++flow->marks;
    else if (way != CUDA_WAY_ACROSS)
        cuda_flow_drain(driver, place, flow); /* copies end by themselves */
    else
        flow->unmarked = true;
    return status;
}

bool cuda_stage_passed(const struct cuda_stage *stage, int device, enum cuda_way way, uint64_t mark)
{
    const struct cuda_stage_place *place = &stage->places[cuda_place_of_device(stage, device)];
    return order_load_acquire_u64(place->flows[way].passed) >= mark; /* L4a pairs L4 */
}
