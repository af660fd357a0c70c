/* SPDX-License-Identifier: MIT */
/*
 * What belongs to a device is made in the context that is current when the device is first named
 * if that is the device's, else in its primary one. Streams that wait may be of other contexts:
 * those get a place of their own, for the gate's code. Tickets are in ticket.c.
 */
#include "cuda/staging/stage.h"

#include "base/error.h"
#include "base/order.h"
#include "cuda/staging/stage_internal.h"

#include <stdlib.h>
#include <string.h>

enum { KEPT_MOST = 64 }; /* stages */

/*
 * Stages that have ended, for groups to come. To free what is theirs waits for all streams of all
 * devices, one of which may stand still for an operation of another rank of this process, which may
 * need the very thread that frees.
 */
static pthread_mutex_t kept_lock = PTHREAD_MUTEX_INITIALIZER;
static struct cuda_stage *kept;

static void hold(void)
{
    pthread_mutex_lock(&kept_lock);
}

static void release(void)
{
    pthread_mutex_unlock(&kept_lock);
}

/* What is on the list is the parent's. */
static void release_in_child(void)
{
    kept = NULL;
    pthread_mutex_unlock(&kept_lock);
}

static void install_fork_handlers(void)
{
    (void)pthread_atfork(hold, release, release_in_child);
}

/* ---- in a context ---------------------------------------------------------------------------- */

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

enum tutti_status cuda_pinned_alloc(const struct cuda_driver *driver, size_t bytes, void **memory)
{
    CUresult result =
        driver->mem_host_alloc(memory, bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
    return cuda_check(driver, result, "cuMemHostAlloc");
}

static void flow_drain(const struct cuda_driver *driver, const struct cuda_stage_place *place,
                       const struct cuda_flow *flow)
{
    bool pushed;
    if (cuda_context_enter(driver, place->context, &pushed) != TUTTI_OK)
        return;
    driver->stream_synchronize(flow->stream);
    cuda_context_leave(driver, pushed);
}

/* ---- places ---------------------------------------------------------------------------------- */

/* Within the context. Errors are of no interest: the context may be gone, and all of this. */
static void flows_close(const struct cuda_driver *driver, struct cuda_stage_place *place)
{
    for (int way = 0; way < CUDA_WAYS; way++)
        if (place->flows[way].stream) {
            driver->stream_synchronize(place->flows[way].stream); /* copies alone: they end */
            driver->stream_destroy(place->flows[way].stream);
            place->flows[way].stream = NULL;
        }
    if (place->words)
        driver->mem_host_free(place->words);
    place->words = NULL;
}

static void place_close(const struct cuda_driver *driver, struct cuda_stage_place *place)
{
    struct cuda_visit visit;
    if (cuda_visit_begin(driver, place->context, &visit) == TUTTI_OK) {
        flows_close(driver, place);
        cuda_visit_end(driver, &visit);
    }
    if (place->retained)
        driver->primary_release(place->device);
}

static enum tutti_status flows_open(const struct cuda_driver *driver,
                                    struct cuda_stage_place *place)
{
    enum { LINE_WORDS = 8 };
    int able = 0;
    void *words = NULL;
    enum tutti_status status =
        cuda_check(driver,
                   driver->device_attribute(
                       &able, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, place->device),
                   "cuDeviceGetAttribute");
    if (status == TUTTI_OK && !able)
        status = error_set(TUTTI_ERR_DECLINED,
                           "streams of device %d cannot write words in memory, as bringing its "
                           "tensors through the host needs: copy them to the host yourself",
                           place->device);
    if (status == TUTTI_OK)
        status = cuda_pinned_alloc(driver, CUDA_WAYS * LINE_WORDS * sizeof(uint64_t), &words);
    if (status != TUTTI_OK)
        return status;
    place->words = words;
    for (int way = 0; way < CUDA_WAYS && status == TUTTI_OK; way++) {
        struct cuda_flow *flow = &place->flows[way];
        flow->passed = &place->words[way * LINE_WORDS];
        *flow->passed = 0;
        status = cuda_check(driver, driver->stream_create(&flow->stream, CU_STREAM_NON_BLOCKING, 0),
                            "cuStreamCreateWithPriority");
    }
    if (status != TUTTI_OK)
        flows_close(driver, place);
    return status;
}

/* Holds the context if it is the device's primary one. */
static bool primary_hold(const struct cuda_driver *driver, CUdevice device, CUcontext context)
{
    CUcontext primary = NULL;
    unsigned flags;
    int active = 0;
    if (driver->primary_state(device, &flags, &active) != CUDA_SUCCESS || !active ||
        driver->primary_retain(&primary, device) != CUDA_SUCCESS)
        return false;
    if (primary != context)
        driver->primary_release(device);
    return primary == context;
}

/* Under the lock; `context` is the place's, and `copies` asks for flows. */
static enum tutti_status place_open(struct cuda_stage *stage, CUcontext context, CUdevice device,
                                    bool copies, int *place)
{
    const struct cuda_driver *driver = stage->driver;
    struct cuda_stage_place *made = &stage->places[stage->place_count];
    struct cuda_visit visit;
    if (stage->place_count == CUDA_STAGE_PLACES)
        return error_set(TUTTI_ERR_NO_MEMORY,
                         "a group has tensors and streams of %d contexts, at "
                         "most: use fewer",
                         CUDA_STAGE_PLACES);
    *made = (struct cuda_stage_place){.context = context, .device = device, .copies = copies};
    enum tutti_status status = cuda_visit_begin(driver, context, &visit);
    if (status != TUTTI_OK)
        return status;
    status = cuda_check(driver, driver->ctx_id(context, &made->id), "cuCtxGetId");
    if (status == TUTTI_OK)
        status = cuda_kernel_load_gate(driver, &made->gate);
    if (status == TUTTI_OK && copies)
        status = flows_open(driver, made);
    cuda_visit_end(driver, &visit);
    if (status != TUTTI_OK)
        return status;
    made->retained = primary_hold(driver, device, context);
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

/* Under the lock. */
static enum tutti_status device_open(struct cuda_stage *stage, int device, int *place)
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
    if (!stage->driver) /* the thread reads it once there is a place */
        stage->driver = driver;
    status = cuda_check(driver, driver->device_count(&count), "cuDeviceGetCount");
    if (status == TUTTI_OK && (device < 0 || device >= count))
        status = error_set(TUTTI_ERR_INVALID, "device %d: expected 0 to %d", device, count - 1);
    if (status != TUTTI_OK)
        return status;
    driver->ctx_current(&context);
    if (context && driver->ctx_device(&current) == CUDA_SUCCESS && current == device)
        return place_open(stage, context, device, true, place);
    status =
        cuda_check(driver, driver->primary_retain(&context, device), "cuDevicePrimaryCtxRetain");
    if (status != TUTTI_OK)
        return status;
    status = place_open(stage, context, device, true, place);
    driver->primary_release(device); /* the place holds it */
    return status;
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
    status = cuda_check(driver, driver->ctx_device(&device), "cuCtxGetDevice");
    cuda_context_leave(driver, pushed);
    return status == TUTTI_OK ? place_open(stage, context, device, false, place) : status;
}

/* ---- life ------------------------------------------------------------------------------------ */

static void stage_free(struct cuda_stage *stage)
{
    cuda_tickets_free(stage, false);
    cuda_blocks_free(stage, false);
    cuda_results_free(stage, false);
    for (uint32_t i = 0; i < stage->place_count; i++)
        place_close(stage->driver, &stage->places[i]);
    pthread_mutex_destroy(&stage->lock);
    free(stage);
}

/* Off the list. */
static void stage_drop(struct cuda_stage *stage)
{
    pthread_mutex_destroy(&stage->lock);
    cuda_stage_forget(stage);
}

/* A context other than a device's primary one, which we hold, is its maker's, and may go. */
static bool is_ours(const struct cuda_stage *stage)
{
    for (uint32_t i = 0; i < stage->place_count; i++)
        if (!stage->places[i].retained)
            return false;
    return true;
}

void cuda_stage_trim(int most)
{
    struct cuda_stage *due = NULL;
    pthread_mutex_lock(&kept_lock);
    for (struct cuda_stage **link = &kept; *link;) {
        struct cuda_stage *stage = *link;
        if ((most > 0 && is_ours(stage)) || !cuda_tickets_quiet(stage)) {
            most -= is_ours(stage);
            link = &stage->next;
            continue;
        }
        *link = stage->next;
        stage->next = due;
        due = stage;
    }
    pthread_mutex_unlock(&kept_lock);
    while (due) {
        struct cuda_stage *stage = due;
        due = stage->next;
        stage_free(stage);
    }
}

void cuda_stage_end(struct cuda_stage *stage)
{
    if (!stage->place_count) {
        stage_free(stage);
        return;
    }
    pthread_mutex_lock(&kept_lock);
    stage->next = kept;
    kept = stage;
    pthread_mutex_unlock(&kept_lock);
    cuda_stage_trim(KEPT_MOST);
}

/* Not if the device has been reset: what was there is gone, and the context may be another one. */
static bool place_lives(const struct cuda_driver *driver, const struct cuda_stage_place *place)
{
    unsigned long long id = 0;
    if (!primary_hold(driver, place->device, place->context))
        return false;
    bool lives = driver->ctx_id(place->context, &id) == CUDA_SUCCESS && id == place->id;
    driver->primary_release(place->device);
    return lives;
}

/* One that no stream writes to any more, NULL if there is none. */
static struct cuda_stage *kept_take(void)
{
    pthread_mutex_lock(&kept_lock);
    struct cuda_stage **link = &kept;
    while (*link && !(is_ours(*link) && cuda_tickets_quiet(*link)))
        link = &(*link)->next;
    struct cuda_stage *stage = *link;
    if (stage)
        *link = stage->next;
    pthread_mutex_unlock(&kept_lock);
    return stage;
}

static struct cuda_stage *kept_revive(void)
{
    struct cuda_stage *stage;
    while ((stage = kept_take())) {
        uint32_t i = 0;
        while (i < stage->place_count && place_lives(stage->driver, &stage->places[i]))
            i++;
        if (i == stage->place_count)
            break;
        stage_drop(stage);
    }
    if (!stage)
        return NULL;
    stage->closed = false;
    memset(stage->ranges, 0, sizeof stage->ranges);
    return stage;
}

enum tutti_status cuda_stage_create(struct cuda_stage **stage)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, install_fork_handlers);
    *stage = kept_revive();
    if (*stage)
        return TUTTI_OK;
    *stage = calloc(1, sizeof **stage);
    if (!*stage)
        return error_errno("calloc of a group's staging");
    pthread_mutex_init(&(*stage)->lock, NULL);
    return TUTTI_OK;
}

/* Waits for what is on the place's streams, without a call if that is known to have ended. */
static void flows_drain(const struct cuda_driver *driver, const struct cuda_stage_place *place)
{
    for (int way = 0; way < CUDA_WAYS; way++) {
        const struct cuda_flow *flow = &place->flows[way];
        if (flow->unmarked || order_load_acquire_u64(flow->passed) != flow->marks) /* L4a */
            flow_drain(driver, place, flow);
    }
}

void cuda_stage_close(struct cuda_stage *stage)
{
    if (!stage)
        return;
    for (uint32_t i = 0; i < stage->place_count; i++)
        if (stage->places[i].copies)
            flows_drain(stage->driver, &stage->places[i]);
    cuda_blocks_find(stage);
    pthread_mutex_lock(&stage->lock);
    stage->closed = true;
    bool last = stage->out == 0;
    pthread_mutex_unlock(&stage->lock);
    if (last)
        cuda_stage_end(stage);
}

void cuda_stage_forget(struct cuda_stage *stage)
{
    if (!stage)
        return;
    cuda_tickets_free(stage, true);
    cuda_blocks_free(stage, true);
    cuda_results_free(stage, true);
    free(stage);
}

/* ---- operands -------------------------------------------------------------------------------- */

/* Under the lock. */
static bool is_known(const struct cuda_stage *stage, int device, CUdeviceptr first,
                     CUdeviceptr last)
{
    for (int i = 0; i < CUDA_STAGE_RANGES; i++) {
        const struct cuda_range *range = &stage->ranges[i];
        if (stage->range_devices[i] == device && first - range->base < range->bytes &&
            last - range->base < range->bytes)
            return true;
    }
    return false;
}

static enum tutti_status operand_check(struct cuda_stage *stage, int device, const void *pointer,
                                       CUdeviceptr at, struct cuda_range *range)
{
    struct cuda_pointer facts;
    enum tutti_status status = cuda_pointer_ask(stage->driver, at, &facts);
    if (status != TUTTI_OK)
        return status;
    if (!facts.device && !facts.managed)
        return error_set(TUTTI_ERR_INVALID,
                         "%p is host memory, and is said to be of CUDA device %d: name it a CPU "
                         "tensor, or copy it to the device",
                         pointer, device);
    if (facts.ordinal != device && !facts.managed)
        return error_set(TUTTI_ERR_INVALID,
                         "%p is memory of device %d, and is said to be of device %d", pointer,
                         facts.ordinal, device);
    *range = facts.range;
    return TUTTI_OK;
}

enum tutti_status cuda_stage_open(struct cuda_stage *stage, int device)
{
    int place;
    pthread_mutex_lock(&stage->lock);
    enum tutti_status status = device_open(stage, device, &place);
    pthread_mutex_unlock(&stage->lock);
    return status;
}

void cuda_stage_open_current(struct cuda_stage *stage)
{
    const struct cuda_driver *driver;
    CUdevice device = -1;
    if (cuda_driver_in_use() && cuda_driver_open(&driver) == TUTTI_OK &&
        driver->ctx_device(&device) == CUDA_SUCCESS)
        (void)cuda_stage_open(stage, device); /* a call that names the device says why not */
}

enum tutti_status cuda_stage_check(struct cuda_stage *stage, int device, const void *pointer,
                                   size_t bytes)
{
    CUdeviceptr first = (CUdeviceptr)(uintptr_t)pointer, last = first + bytes - 1;
    struct cuda_range range, other;
    int place;
    pthread_mutex_lock(&stage->lock);
    enum tutti_status status = device_open(stage, device, &place);
    if (status == TUTTI_OK && bytes && !is_known(stage, device, first, last)) {
        status = operand_check(stage, device, pointer, first, &range);
        if (status == TUTTI_OK && last - range.base >= range.bytes)
            status = operand_check(stage, device, pointer, last, &other);
        if (status == TUTTI_OK) {
            stage->ranges[stage->next_range % CUDA_STAGE_RANGES] = range;
            stage->range_devices[stage->next_range++ % CUDA_STAGE_RANGES] = device;
        }
    }
    pthread_mutex_unlock(&stage->lock);
    return status;
}

/* ---- copies ---------------------------------------------------------------------------------- */

void cuda_stage_call_begin(const struct cuda_stage *stage)
{
    if (stage->calls) /* before the first ticket nobody waits */
        order_fetch_add_relaxed_u32(&stage->calls->begun, 1);
}

void cuda_stage_call_end(const struct cuda_stage *stage)
{
    if (stage->calls)
        order_fetch_add_relaxed_u32(&stage->calls->ended, 1);
}

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
    status =
        cuda_check(driver,
                   driver->memcpy_async((CUdeviceptr)(uintptr_t)to, (CUdeviceptr)(uintptr_t)from,
                                        bytes, place->flows[way].stream),
                   "cuMemcpyAsync");
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
        status =
            cuda_check(driver,
                       driver->stream_write_64(flow->stream, (CUdeviceptr)(uintptr_t)flow->passed,
                                               flow->marks + 1, CU_STREAM_WRITE_VALUE_DEFAULT),
                       "cuStreamWriteValue64");
        cuda_context_leave(driver, pushed);
    }
    if (status == TUTTI_OK)
        *mark = ++flow->marks;
    else if (way != CUDA_WAY_ACROSS)
        flow_drain(driver, place, flow); /* copies alone, which end */
    else
        flow->unmarked = true;
    return status;
}

bool cuda_stage_passed(const struct cuda_stage *stage, int device, enum cuda_way way, uint64_t mark)
{
    const struct cuda_stage_place *place = &stage->places[cuda_place_of_device(stage, device)];
    return order_load_acquire_u64(place->flows[way].passed) >= mark; /* L4a pairs L4 */
}
