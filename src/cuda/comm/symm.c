/* SPDX-License-Identifier: MIT */
/*
 * An allocation of symmetric memory on a device, the allocations of the peers, and the launches on
 * them. A call launches one warp (symm.cu), one thread a peer, on the caller's stream.
 *
 * Calls may come on any number of streams, which are not ordered with each other. So no single
 * event says when all launches are over. The host counts launches outside graphs; each such launch
 * counts itself in the tail when it touches nothing any more. The host copies that count to see
 * whether any launch is left. A free gives launches 100 ms, then sets `stop`, then waits 2 s. The
 * free's own launch is the last: it fails the buffer for replays and tells the peers.
 *
 * A wait that fails writes one record and fails the buffer on this rank alone, for ever. A rank
 * that waits for this one has its own deadline.
 */
#include "cuda/comm/symm.h"
#include "base/deadline.h"
#include "base/error.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/order.h"
#include "base/wait.h"
#include "cuda/comm/resources.h"
#include "cuda/driver/kernels.h"
#include "cuda/driver/watcher.h"
#include "cuda/driver/wrappers.h"

#include <pthread.h>
#include <stdlib.h>

enum {
    GRACE_MS = 100,   /* time for launches under way, once the allocation is freed */
    LINGER_MS = 2000, /* time for them to see `stop` and end */
    COPY_MS = 100,    /* time for a copy of the count */
};

struct cuda_symm {
    const struct cuda_driver *driver;
    struct cuda_resources *resources; /* captured graphs need them; free this struct, too */
    struct cuda_symm_config config;
    CUfunction kernel;
    struct cuda_symm_launch launch; /* the template of every launch */
    CUdevice device;
    CUstream own; /* for set-up and end; no order with other streams */
    CUevent event;
    uint64_t launched;         /* outside of graphs */
    pthread_mutex_t capturing; /* guards `capture` and the user object of the resources */
    uint64_t capture;          /* the last capture whose graph was given the resources */
    struct cuda_watch watch;
};

/* ---- alone ----------------------------------------------------------------------------------- */

static CUdeviceptr tail_address(const struct cuda_symm *symm, int rank)
{
    return symm->resources->arenas[rank].base + symm->config.tail_offset;
}

static enum tutti_status finish(struct cuda_symm *symm, int64_t deadline)
{
    return cuda_stream_finish(symm->driver, symm->own, symm->event, symm->device, deadline);
}

static enum tutti_status page_create(struct cuda_symm *symm)
{
    const uint64_t timeout_ns = cuda_timeout_ns(symm->config.timeout_ms);
    CUdeviceptr address = 0;
    void *page;
    enum tutti_status status =
        cuda_page_alloc(symm->driver, sizeof(struct cuda_symm_page), &page, &address);
    symm->resources->symm_page = page;
    if (status != TUTTI_OK)
        return status;
    *symm->resources->symm_page = (struct cuda_symm_page){
        .timeout_ns = timeout_ns == UINT64_MAX ? 0 : timeout_ns, /* 0: never */
        .tail = {.rank = symm->config.rank, .magic = CUDA_SYMM_MAGIC},
    };
    symm->launch.page = (struct cuda_symm_page *)(uintptr_t)address;
    return TUTTI_OK;
}

/* Copies the page's tail, from `offset` to `until`, into this rank's tail. */
static enum tutti_status tail_write(struct cuda_symm *symm, size_t offset, size_t until)
{
    const char *tail = (const char *)&symm->resources->symm_page->tail;
    return CUDA_CALL(symm->driver, memcpy_async, tail_address(symm, symm->config.rank) + offset,
                     cuda_address(tail + offset), until - offset, symm->own);
}

/* Copies a rank's tail into the page. */
static enum tutti_status tail_read(struct cuda_symm *symm, int rank)
{
    struct cuda_symm_tail *tail = &symm->resources->symm_page->tail;
    *tail = (struct cuda_symm_tail){.rank = -1};
    return CUDA_CALL(symm->driver, memcpy_async, cuda_address(tail), tail_address(symm, rank),
                     sizeof *tail, symm->own);
}

static enum tutti_status memory_create(struct cuda_symm *symm, int *fd)
{
    const struct cuda_driver *driver = symm->driver;
    struct cuda_memory *memory = &symm->resources->arenas[symm->config.rank];
    size_t bytes = symm->config.tail_offset + sizeof(struct cuda_symm_tail);
    enum tutti_status status = cuda_memory_create(driver, symm->device, bytes, memory, fd);
    if (status != TUTTI_OK)
        return status;
    status = CUDA_CALL(driver, memset_d8_async, memory->base, 0, bytes, symm->own);
    if (status == TUTTI_OK)
        status = tail_write(symm, 0, offsetof(struct cuda_symm_tail, buffers));
    /* Also after an error: earlier work is on the stream. */
    enum tutti_status finished = finish(symm, deadline_after(symm->config.timeout_ms));
    return status == TUTTI_OK ? finished : status;
}

static enum tutti_status prepare(struct cuda_symm *symm, int *fd)
{
    const struct cuda_driver *driver = symm->driver;
    enum tutti_status status = CUDA_CALL(driver, ctx_current, &symm->resources->context);
    if (status == TUTTI_OK)
        status = cuda_own_create(driver, &symm->own, &symm->event);
    if (status == TUTTI_OK)
        status = page_create(symm);
    if (status == TUTTI_OK)
        status = cuda_kernel_load(driver, CUDA_SYMM, &symm->kernel);
    if (status == TUTTI_OK)
        status = memory_create(symm, fd);
    return status;
}

/* ---- the end of launches --------------------------------------------------------------------- */

/* Returns true if no launch outside of graphs is under way. In the context. */
static bool is_idle(void *owner)
{
    struct cuda_symm *symm = owner;
    struct cuda_symm_page *page = symm->resources->symm_page;
    if (!symm->resources->arenas[symm->config.rank].base)
        return true;
    CUresult result = symm->driver->memcpy_async(cuda_address(&page->ended),
                                                 tail_address(symm, symm->config.rank) +
                                                     offsetof(struct cuda_symm_tail, ended),
                                                 sizeof page->ended, symm->own);
    enum tutti_status status =
        result == CUDA_SUCCESS ? finish(symm, deadline_after(COPY_MS)) : TUTTI_ERR_CUDA;
    if (status != TUTTI_OK) /* the context is broken, and nothing runs; or the device is busy */
        return status != TUTTI_ERR_TIMEOUT;
    return page->ended == symm->launched; /* V4a pairs the device's V4 */
}

/* If the context is gone, the stream and the event are gone, too. */
static void end(void *owner, bool lives)
{
    struct cuda_symm *symm = owner;
    if (lives && symm->own)
        symm->driver->stream_destroy(symm->own);
    if (lives && symm->event)
        symm->driver->event_destroy(symm->event);
    pthread_mutex_destroy(&symm->capturing);
    free(symm);
}

static bool drain(struct cuda_symm *symm, int64_t timeout_ms)
{
    return wait_napping(is_idle, symm, deadline_after(timeout_ms), WAIT_NAP_NS);
}

static enum tutti_status launch_on(struct cuda_symm *symm, CUstream stream,
                                   struct cuda_symm_launch *launch)
{
    /* Relaxed: the sum is read after all calls, since no call may use the buffer then. */
    if (launch->counted)
        order_fetch_add_relaxed_u64(&symm->launched, 1);
    enum tutti_status status =
        cuda_launch_block(symm->driver, symm->kernel, CUDA_SYMM_THREADS, launch, stream);
    if (status != TUTTI_OK && launch->counted)
        order_fetch_add_relaxed_u64(&symm->launched, UINT64_MAX);
    return status;
}

/* Ends what runs, makes every later replay return at once, and tells the peers. */
static void launches_end(struct cuda_symm *symm)
{
    struct cuda_symm_launch launch = symm->launch;
    if (!drain(symm, GRACE_MS)) {
        /* K6 pairs the device's K6a */
        order_store_release_u32(&symm->resources->symm_page->stop, TUTTI_ERR_ABORTED);
        if (!drain(symm, LINGER_MS))
            log_write(TUTTI_LOG_WARN, symm->config.rank,
                      "kernels on a symmetric buffer that is being freed still wait in their "
                      "streams: its memory is freed once they have run");
    }
    launch.call = CUDA_SYMM_LEAVE;
    launch.counted = 1;
    if (launch_on(symm, symm->own, &launch) == TUTTI_OK)
        drain(symm, GRACE_MS);
}

void cuda_symm_destroy(struct cuda_symm *symm)
{
    struct cuda_visit visit;
    if (!symm)
        return;
    const struct cuda_driver *driver = symm->driver;
    cuda_watch_remove(&symm->watch);
    const bool entered = cuda_visit_begin(driver, symm->resources->context, &visit) == TUTTI_OK;
    if (entered && symm->launch.tails[symm->config.rank])
        launches_end(symm);
    cuda_resources_release(symm->resources, NULL, false);
    if (entered)
        cuda_visit_end(driver, &visit);
}

/* ---- the beginning --------------------------------------------------------------------------- */

/* Tells kernels which peers' processes have ended. A peer that frees its allocation sets
 * `left` in the tail of its segment, which kernels read. */
static void look(void *context)
{
    const struct cuda_symm *symm = context;
    struct rank_set gone = rank_set_none;
    for (int r = 0; r < symm->config.size; r++)
        if (!peers_alive(symm->config.peers, r))
            rank_set_add(&gone, r);
    /* Relaxed: a kernel that reads this polls its own word once more, and a process that has
     * ended stores nothing any more. */
    order_store_relaxed_u32(&symm->resources->symm_page->gone, cuda_rank_bits(gone));
}

static enum tutti_status symm_make(const struct cuda_symm_config *config,
                                   const struct cuda_driver *driver, CUdevice device,
                                   struct cuda_symm **symm)
{
    struct cuda_resources *resources;
    struct cuda_symm *made = cuda_resources_create(driver, sizeof *made, &resources);
    if (!made)
        return TUTTI_ERR_NO_MEMORY;
    made->driver = driver;
    made->resources = resources;
    resources->idle = is_idle;
    resources->end = end;
    resources->owner = made;
    made->config = *config;
    made->device = device;
    made->watch = (struct cuda_watch){.look = look, .context = made};
    made->launch.rank = config->rank;
    made->launch.size = config->size;
    pthread_mutex_init(&made->capturing, NULL);
    *symm = made;
    return TUTTI_OK;
}

enum tutti_status cuda_symm_create(const struct cuda_symm_config *config,
                                   struct cuda_device *device, struct cuda_symm **symm, void **base,
                                   int *fd)
{
    const struct cuda_driver *driver;
    struct cuda_symm *made = NULL;
    CUstreamCaptureMode mode;
    *symm = NULL;
    *fd = -1;
    enum tutti_status status = cuda_device_current(device);
    if (status == TUTTI_OK)
        status = cuda_driver_open(&driver);
    if (status == TUTTI_OK)
        status = symm_make(config, driver, device->ordinal, &made);
    if (status != TUTTI_OK)
        return status;
    cuda_resources_sweep();
    cuda_captures_ignore(driver, &mode);
    status = prepare(made, fd);
    cuda_captures_heed(driver, &mode);
    if (status != TUTTI_OK) {
        fd_drop(fd);
        cuda_symm_destroy(made);
        return status;
    }
    *base = (void *)(uintptr_t)made->resources->arenas[config->rank].base;
    *symm = made;
    return TUTTI_OK;
}

/* ---- together -------------------------------------------------------------------------------- */

/* Reads a peer's tail as kernels will. */
static enum tutti_status peer_check(struct cuda_symm *symm, int peer, int64_t deadline)
{
    const struct cuda_symm_tail *tail = &symm->resources->symm_page->tail;
    enum tutti_status status = tail_read(symm, peer);
    if (status == TUTTI_OK)
        status = finish(symm, deadline);
    if (status != TUTTI_OK)
        return error_context(status, "device %d reads the memory of rank %d", symm->device, peer);
    if (tail->magic != CUDA_SYMM_MAGIC || tail->rank != peer)
        return error_set(TUTTI_ERR_CUDA,
                         "device %d does not read what rank %d wrote into its memory (magic %llx, "
                         "rank %d): the link between the devices does not work",
                         symm->device, peer, (unsigned long long)tail->magic, (int)tail->rank);
    return TUTTI_OK;
}

enum tutti_status cuda_symm_map(struct cuda_symm *symm, int peer, int fd, int64_t deadline)
{
    struct cuda_visit visit;
    const size_t bytes = symm->config.tail_offset + sizeof(struct cuda_symm_tail);
    enum tutti_status status = cuda_visit_begin(symm->driver, symm->resources->context, &visit);
    if (status != TUTTI_OK)
        return status;
    status = cuda_memory_map(symm->driver, symm->device, fd, bytes, &symm->resources->arenas[peer]);
    status = status == TUTTI_OK ? peer_check(symm, peer, deadline)
                                : error_context(status, "the memory of rank %d", peer);
    cuda_visit_end(symm->driver, &visit);
    return status;
}

/* Writes all ranks' addresses into the tail, for the user's kernels. */
static enum tutti_status addresses_write(struct cuda_symm *symm, int64_t deadline, void **buffers)
{
    const struct cuda_symm_config *config = &symm->config;
    struct cuda_symm_tail *tail = &symm->resources->symm_page->tail;
    for (int r = 0; r < config->size; r++) {
        tail->buffers[r] = symm->resources->arenas[r].base;
        tail->pads[r] = symm->resources->arenas[r].base + config->pad_offset;
        buffers[r] = (void *)(uintptr_t)tail->buffers[r];
        symm->launch.pads[r] = (uint32_t *)(uintptr_t)tail->pads[r];
        symm->launch.tails[r] = (struct cuda_symm_tail *)(uintptr_t)tail_address(symm, r);
    }
    enum tutti_status status =
        tail_write(symm, offsetof(struct cuda_symm_tail, buffers), sizeof(struct cuda_symm_tail));
    return status == TUTTI_OK ? finish(symm, deadline) : status;
}

enum tutti_status cuda_symm_join(struct cuda_symm *symm, int64_t deadline, void **buffers,
                                 void *const **device_buffers, uint32_t *const **device_pads)
{
    const CUdeviceptr own = tail_address(symm, symm->config.rank);
    struct cuda_visit visit;
    enum tutti_status status = cuda_visit_begin(symm->driver, symm->resources->context, &visit);
    if (status != TUTTI_OK)
        return status;
    status = addresses_write(symm, deadline, buffers);
    cuda_visit_end(symm->driver, &visit);
    *device_buffers = (void *const *)(uintptr_t)(own + offsetof(struct cuda_symm_tail, buffers));
    *device_pads = (uint32_t *const *)(uintptr_t)(own + offsetof(struct cuda_symm_tail, pads));
    /* A rank of this process reports its own end. */
    if (status == TUTTI_OK && !rank_set_empty(peers_ranks(symm->config.peers)->remote))
        status = cuda_watch_add(&symm->watch);
    return status;
}

/* ---- calls ----------------------------------------------------------------------------------- */

/* Makes the graph of a capture hold the resources, which its replays need. */
static enum tutti_status capture_note(struct cuda_symm *symm, uint64_t id, CUgraph graph)
{
    enum tutti_status status = TUTTI_OK;
    pthread_mutex_lock(&symm->capturing);
    if (symm->capture != id)
        status = cuda_resources_retain(symm->resources, graph);
    if (status == TUTTI_OK)
        symm->capture = id;
    pthread_mutex_unlock(&symm->capturing);
    return status;
}

enum tutti_status cuda_symm_enqueue(struct cuda_symm *symm, enum cuda_symm_call call, int peer,
                                    int channel, int64_t timeout_ms, tutti_stream_t stream)
{
    struct cuda_symm_launch launch = symm->launch;
    CUstream on = cuda_stream_of(stream);
    CUgraph graph = NULL;
    uint64_t id = 0;
    bool pushed;
    launch.call = call;
    launch.peer = peer;
    launch.channel = channel;
    /* Kernels read the default from the page, so that a graph does not keep it. */
    launch.timeout_ns = timeout_ms ? cuda_timeout_ns(timeout_ms) : 0;
    enum tutti_status status = cuda_context_enter(symm->driver, symm->resources->context, &pushed);
    if (status != TUTTI_OK)
        return status;
    status = cuda_capture_of(symm->driver, on, &id, &graph);
    if (status == TUTTI_OK && id)
        status = capture_note(symm, id, graph);
    launch.counted = id == 0;
    if (status == TUTTI_OK)
        status = launch_on(symm, on, &launch);
    cuda_context_leave(symm->driver, pushed);
    return status;
}

bool cuda_symm_failed(const struct cuda_symm *symm, struct cuda_symm_fault *fault)
{
    const struct cuda_symm_page *page = symm->resources->symm_page;
    if (!order_load_acquire_u32(&page->failed)) /* K5a pairs the device's K5 */
        return false;
    *fault = (struct cuda_symm_fault){
        .status = (enum tutti_status)page->status,
        .call = (enum cuda_symm_call)page->call,
        .peer = page->peer,
        .channel = page->channel,
        .raised = page->awaited != 0,
    };
    return true;
}
