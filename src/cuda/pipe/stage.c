/* SPDX-License-Identifier: MIT */
/*
 * A process group's staging: create, close, check operands, copy. It uses context.c (what a stage
 * has in a context), pool.c (memory) and stream_fence.c (how streams and the group tell each other
 * how far they are).
 */
#include "cuda/pipe/stage.h"

#include "base/error.h"
#include "base/fork_mutex.h"
#include "base/order.h"
#include "base/wait.h"
#include "cuda/pipe/stage_internal.h"
#include "peers/peers.h"

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

/* Returns true if all contexts live. Its driver calls do not wait. */
static bool lives(const struct cuda_stage *stage)
{
    for (uint32_t i = 0; i < stage->context_count; i++)
        if (!cuda_stage_context_lives(stage->driver, &stage->contexts[i]))
            return false;
    return true;
}

/* The stage is closed and no fence is taken. */
static void stage_end(struct cuda_stage *stage)
{
    if (!stage->context_count) {
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
    for (uint32_t i = 0; i < stage->context_count; i++)
        if (stage->contexts[i].copies)
            cuda_flows_drain(stage->driver, &stage->contexts[i]);
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
    int context;
    pthread_mutex_lock(&stage->lock);
    enum tutti_status status = cuda_stage_device_find(stage, device, &context);
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
    int context;
    pthread_mutex_lock(&stage->lock);
    enum tutti_status status = cuda_stage_device_find(stage, device, &context);
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

enum tutti_status cuda_stage_copy(struct cuda_stage *stage, int device,
                                  enum cuda_direction direction, void *to, const void *from,
                                  size_t bytes)
{
    const struct cuda_driver *driver = stage->driver;
    const struct cuda_stage_context *context =
        &stage->contexts[cuda_stage_context_of(stage, device)];
    bool pushed;
    enum tutti_status status = cuda_context_enter(driver, context->handle, &pushed);
    if (status != TUTTI_OK)
        return status;
    cuda_stage_call_begin(stage);
    status = CUDA_CALL(driver, memcpy_async, cuda_address(to), cuda_address(from), bytes,
                       context->flows[direction].stream);
    cuda_stage_call_end(stage);
    cuda_context_leave(driver, pushed);
    return status;
}

tutti_stream_t cuda_stage_stream(const struct cuda_stage *stage, int device,
                                 enum cuda_direction direction)
{
    const struct cuda_stage_context *context =
        &stage->contexts[cuda_stage_context_of(stage, device)];
    return (tutti_stream_t)(void *)context->flows[direction].stream;
}

static enum tutti_status mark_set(const struct cuda_driver *driver,
                                  struct cuda_stage_context *context, enum cuda_direction direction,
                                  uint64_t *mark)
{
    struct cuda_flow *flow = &context->flows[direction];
    bool pushed;
    enum tutti_status status = cuda_context_enter(driver, context->handle, &pushed);
    if (status == TUTTI_OK) {
        /* L4 pairs L4a: by default the write comes behind a fence for the whole system. */
        status = CUDA_CALL(driver, stream_write_64, flow->stream, cuda_address(flow->passed),
                           flow->marks + 1, CU_STREAM_WRITE_VALUE_DEFAULT);
        cuda_context_leave(driver, pushed);
    }
    if (status == TUTTI_OK)
        *mark = ++flow->marks;
    else if (direction != CUDA_ON_DEVICE)
        cuda_flow_drain(driver, context, flow); /* copies end by themselves */
    else
        flow->unmarked = true;
    return status;
}

enum tutti_status cuda_marks_set(const struct cuda_fence *fence, enum cuda_direction direction,
                                 enum tutti_status status, struct cuda_marks *marks)
{
    marks->stage = fence->stage;
    marks->direction = direction;
    marks->count = fence->devices;
    for (int d = 0; d < marks->count; d++) {
        marks->contexts[d] = fence->contexts[d];
        enum tutti_status marked =
            mark_set(fence->stage->driver, &fence->stage->contexts[marks->contexts[d]], direction,
                     &marks->marks[d]);
        if (status == TUTTI_OK)
            status = marked;
    }
    return status;
}

bool cuda_marks_passed(const struct cuda_marks *marks)
{
    for (int d = 0; d < marks->count; d++) {
        const struct cuda_flow *flow =
            &marks->stage->contexts[marks->contexts[d]].flows[marks->direction];
        if (order_load_acquire_u64(flow->passed) < marks->marks[d]) /* L4a pairs L4 */
            return false;
    }
    return true;
}

/* A wait for copies. */
struct marks_wait {
    const struct cuda_marks *marks;
    struct peers *peers;
    struct tutti_fault fault;
};

static bool have_passed(void *context)
{
    return cuda_marks_passed(((const struct marks_wait *)context)->marks);
}

static bool have_failed(void *context, enum wait_depth depth)
{
    struct marks_wait *wait = context;
    (void)depth;
    return peers_check(wait->peers, -1, false, &wait->fault);
}

enum tutti_status cuda_marks_await(const struct cuda_marks *marks, struct peers *peers,
                                   int64_t deadline)
{
    struct marks_wait wait = {.marks = marks, .peers = peers};
    const struct waiter waiter = {.poll = have_passed,
                                  .look = have_failed,
                                  .context = &wait,
                                  .deadline = &deadline,
                                  .nap_ns = WAIT_NAP_NS};
    if (wait_spin(have_passed, &wait, 0, peers_ranks(peers)->polls))
        return TUTTI_OK;
    const enum wait_end end = waiter_run(&waiter);
    if (end == WAIT_TROUBLE)
        return peers_fail(peers, &wait.fault);
    return end == WAIT_DONE
               ? TUTTI_OK
               : error_set(TUTTI_ERR_TIMEOUT, "a copy between device and host did not end");
}
