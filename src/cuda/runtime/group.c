/* SPDX-License-Identifier: MIT */
/*
 * Creation and end of a CUDA communicator.
 *
 * Creation: every rank makes its arena, empties it and loads its kernels. Then the ranks exchange
 * arenas as descriptors and map them. Each rank pushes a pattern to every peer and waits for the
 * patterns of the peers. This finds a link that does not work; all ranks then begin again with
 * arenas in host memory. The ranks agree on grids: a block that waits for a peer's block needs that
 * block to run, so all blocks must fit at once on the smallest device. All ranks agree on the
 * status of each step.
 */
#include "base/deadline.h"
#include "base/error.h"
#include "base/log.h"
#include "base/order.h"
#include "base/point.h"
#include "cuda/runtime/group_internal.h"
#include "ipc/channel.h"
#include "store/status_agree.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    PROBE_MS = 2000, /* time for a peer's pattern to arrive */
    LINGER_MS = 2000 /* time for operations to see `stop` and end */
};

/* Pinned. The device copies to this page, not to the stack: a copy may end after its caller has
 * stopped waiting. */
struct page {
    struct device_trace trace;   /* of a rank without a recorder */
    struct cuda_control control; /* a copy of this rank's control words */
};

/* What a rank sends to the others once it is ready. */
struct offer {
    int32_t fd;                         /* of its arena, for ranks of the same process */
    uint16_t blocks[CUDA_PLAN_CHOICES]; /* for each choice of the plan: how many fit at once */
};

static bool is_remote(const struct cuda_group *group, int rank)
{
    return rank_set_has(cpu_group_ranks(group->host)->remote, rank);
}

/* ---- alone ----------------------------------------------------------------------------------- */

static enum tutti_status context_bind(struct cuda_group *group)
{
    const struct cuda_driver *driver = group->driver;
    enum tutti_status status = CUDA_CALL(driver, ctx_current, &group->resources->context);
    if (status == TUTTI_OK)
        status =
            CUDA_CALL(driver, ctx_id, group->resources->context, &group->resources->context_id);
    return status == TUTTI_OK ? cuda_own_create(driver, &group->own, &group->event) : status;
}

static enum tutti_status page_create(struct cuda_group *group)
{
    CUdeviceptr address = 0;
    enum tutti_status status =
        cuda_page_alloc(group->driver, sizeof(struct page), &group->resources->page, &address);
    group->resources->host = group->resources->page;
    group->device_trace = group->resources->page;
    if (status != TUTTI_OK)
        return status;
    const uint64_t timeout_ns = cuda_timeout_ns(group->default_timeout_ms);
    group->resources->host->timeout_ns = timeout_ns == UINT64_MAX ? 0 : timeout_ns; /* 0: never */
    group->launch.host = (struct cuda_host *)(uintptr_t)address;
    return TUTTI_OK;
}

static size_t arena_bytes(const struct cuda_group *group)
{
    return group->staged ? CUDA_STAGED_BYTES : sizeof(struct cuda_arena);
}

static enum tutti_status fill(struct cuda_group *group, CUdeviceptr from, CUdeviceptr to,
                              unsigned char value)
{
    return CUDA_CALL(group->driver, memset_d8_async, from, value, to - from, group->own);
}

/* Makes an arena on the device, with all lines empty. */
static enum tutti_status arena_on_device(struct cuda_group *group, struct cuda_memory *memory,
                                         int *fd)
{
    enum tutti_status status = cuda_memory_create(group->driver, group->device.ordinal,
                                                  sizeof(struct cuda_arena), memory, fd);
    CUdeviceptr lines = memory->base + offsetof(struct cuda_arena, one_shot);
    if (status == TUTTI_OK)
        status = fill(group, memory->base, lines, 0);
    if (status == TUTTI_OK)
        status = fill(group, lines, memory->base + sizeof(struct cuda_arena), 0xff);
    return status;
}

/* Makes an arena in host memory, which is zero. The control words are on the device: a read
 * over PCIe would cost each operation a microsecond, and peers do not need these words. */
static enum tutti_status arena_on_host(struct cuda_group *group, struct cuda_memory *memory,
                                       int *fd)
{
    struct cuda_memory *control = &group->resources->control;
    int control_fd = -1;
    enum tutti_status status =
        cuda_memory_create_host(group->driver, CUDA_STAGED_BYTES, memory, fd);
    if (status == TUTTI_OK)
        status = cuda_memory_create(group->driver, group->device.ordinal,
                                    sizeof(struct cuda_control), control, &control_fd);
    if (status == TUTTI_OK)
        status = fill(group, control->base, control->base + sizeof(struct cuda_control), 0);
    if (control_fd >= 0)
        close(control_fd);
    return status;
}

/* Peers push only after all ranks have agreed on this step. By then the arena is empty. */
static enum tutti_status arena_create(struct cuda_group *group, int64_t deadline, int *fd)
{
    struct cuda_memory *memory = &group->resources->arenas[group->launch.rank];
    enum tutti_status status =
        group->staged ? arena_on_host(group, memory, fd) : arena_on_device(group, memory, fd);
    /* Also after an error: earlier work is on the stream. */
    enum tutti_status finished = cuda_own_finish(group, deadline);
    return status == TUTTI_OK ? finished : status;
}

static enum tutti_status prepare(struct cuda_group *group, const struct cuda_group_config *config,
                                 int64_t deadline, int *fd)
{
    enum tutti_status status = context_bind(group);
    if (status == TUTTI_OK)
        status = page_create(group);
    if (status == TUTTI_OK)
        cuda_device_trace_open(group, config->recorder_fd);
    if (status == TUTTI_OK)
        status =
            cuda_kernels_load(group->driver, group->launch.size, group->staged, &group->kernels);
    if (status == TUTTI_OK)
        status = cuda_grids_limit(group);
    if (status == TUTTI_OK)
        status = arena_create(group, deadline, fd);
    return status;
}

/* ---- together -------------------------------------------------------------------------------- */

static void grids_agree(struct cuda_group *group, const struct offer *offers)
{
    for (int r = 0; r < group->launch.size; r++)
        for (int i = 0; i < CUDA_PLAN_CHOICES; i++)
            if (offers[r].blocks[i] < group->plan.choices[i].blocks)
                group->plan.choices[i].blocks = offers[r].blocks[i];
}

/* Tests the links to all peers at once, as kernels use them: each rank pushes and waits. A pattern
 * has no operation number, so a missing one fails this creation alone. */
static enum tutti_status links_probe(struct cuda_group *group, int64_t deadline)
{
    struct cuda_launch launch = group->launch;
    int64_t limit_ms = deadline_left_ms(deadline);
    struct tutti_fault fault = {.struct_size = sizeof fault};
    launch.timeout_ns = cuda_timeout_ns(limit_ms < PROBE_MS ? limit_ms : PROBE_MS);
    enum tutti_status status = cuda_launch_block(group->driver, group->kernels.probe,
                                                 CUDA_PROBE_THREADS, &launch, group->own);
    if (status == TUTTI_OK)
        status = cuda_own_finish(group, deadline);
    if (status != TUTTI_OK) {
        cuda_stop(group, status, launch.rank); /* nothing is watched yet */
        return error_context(status, "device %d pushes to its peers", group->device.ordinal);
    }
    if (cuda_fault_read(group, &fault))
        return error_set(TUTTI_ERR_DECLINED,
                         "device %d did not receive within %lld ms what rank %d's device pushed to "
                         "it: the link between the devices does not work",
                         group->device.ordinal, (long long)(launch.timeout_ns / 1000000),
                         fault.peer);
    return TUTTI_OK;
}

static enum tutti_status arena_map(struct cuda_group *group, int rank, int fd)
{
    struct cuda_memory *memory = &group->resources->arenas[rank];
    enum tutti_status status =
        group->staged ? cuda_memory_map_host(group->driver, fd, CUDA_STAGED_BYTES, memory)
                      : cuda_memory_map(group->driver, group->device.ordinal, fd,
                                        sizeof(struct cuda_arena), memory);
    if (status == TUTTI_OK)
        return TUTTI_OK;
    /* All devices reach host memory. */
    bool unreachable = status == TUTTI_ERR_CUDA && !group->staged;
    return error_context(unreachable ? TUTTI_ERR_DECLINED : status, "arena of rank %d", rank);
}

static enum tutti_status arenas_map(struct cuda_group *group, const struct offer *offers,
                                    const int *fds)
{
    struct cuda_launch *launch = &group->launch;
    enum tutti_status status = TUTTI_OK;
    for (int r = 0; r < launch->size && status == TUTTI_OK; r++)
        if (r != launch->rank)
            status = arena_map(group, r, is_remote(group, r) ? fds[r] : offers[r].fd);
    for (int r = 0; r < launch->size; r++)
        launch->arenas[r] = (struct cuda_arena *)(uintptr_t)group->resources->arenas[r].base;
    for (int p = 0; p < launch->size; p++)
        launch->peers[p] = launch->arenas[launch->ranks[p]];
    launch->own = launch->arenas[launch->rank];
    launch->control = group->staged
                          ? (struct cuda_control *)(uintptr_t)group->resources->control.base
                          : &launch->own->control;
    return status;
}

static enum tutti_status gather_run(const struct cuda_group_config *config, const void *own,
                                    size_t bytes, void *all, int64_t deadline)
{
    return config->gather->run(config->gather->context, own, bytes, all,
                               deadline_timeout_ms(deadline));
}

static enum tutti_status join(struct cuda_group *group, const struct cuda_group_config *config,
                              int own_fd, int64_t deadline, int *fds)
{
    struct offer own = {.fd = own_fd}, all[CUDA_RANKS];
    for (int i = 0; i < CUDA_PLAN_CHOICES; i++)
        own.blocks[i] = group->plan.choices[i].blocks;
    enum tutti_status status = gather_run(config, &own, sizeof own, all, deadline);
    if (status != TUTTI_OK)
        return status;
    grids_agree(group, all);
    if (!rank_set_empty(cpu_group_ranks(group->host)->remote))
        status = channel_all_gather_fds(cpu_group_ranks(group->host)->channel, own_fd, fds,
                                        deadline_left_ms(deadline));
    POINT("cuda.handles");
    return status == TUTTI_OK ? arenas_map(group, all, fds) : status;
}

static enum tutti_status begin(struct cuda_group *group, int64_t deadline)
{
    enum tutti_status status = links_probe(group, deadline);
    if (status != TUTTI_OK)
        return status;
    cuda_device_trace_begin(group);
    status = cuda_watch_start(group);
    if (status == TUTTI_OK)
        cuda_residents_add(group, 1);
    return status;
}

/* See launch.h. */
static void ranks_order(const struct cuda_group_config *config, struct cuda_launch *launch)
{
    int own = 0;
    while (config->order[own] != config->rank)
        own++;
    bool power_of_two = (config->size & (config->size - 1)) == 0;
    for (int leaf = 0; leaf < config->size; leaf++)
        launch->ranks[power_of_two ? own ^ leaf : launch_leaf(leaf, own)] =
            (uint8_t)config->order[leaf];
    launch->place = power_of_two ? 0 : own;
}

/* The rank's part in the algorithms for few links. */
static void links_place(const struct cuda_group_config *config, struct cuda_launch *launch)
{
    const struct topology_mesh *mesh = &cpu_group_ranks(config->host)->mesh;
    const struct topology_ring *ring = &config->ring;
    launch->mesh.partner = (uint8_t)mesh->partner;
    for (int p = 0; p < 4 && p < launch->size; p++)
        for (int quarter = 0; quarter < 4; quarter++)
            if (mesh->owners[quarter] == launch->ranks[p])
                launch->mesh.quarters[p] = (uint8_t)quarter;
    launch->ring =
        (struct cuda_ring){(uint8_t)ring->position, (uint8_t)ring->before, (uint8_t)ring->after};
}

/* Counts the ranks on this rank's device. */
static void devices_count(struct cuda_group *group, const struct cuda_group_config *config)
{
    struct rank_set threads = rank_set_none;
    for (int r = 0; r < config->size; r++) {
        if (memcmp(config->devices[r].uuid, group->device.uuid, CUDA_UUID_BYTES) != 0)
            continue;
        group->sharing++;
        if (!is_remote(group, r))
            rank_set_add(&threads, r);
    }
    if (group->sharing > 1 && config->place != CUDA_PLACE_PROXY)
        group->same_gpu = threads;
}

static enum tutti_status group_make(const struct cuda_group_config *config,
                                    struct cuda_group **group)
{
    const struct cuda_driver *driver;
    *group = NULL;
    enum tutti_status status = cuda_driver_open(&driver);
    if (status != TUTTI_OK)
        return status;
    struct cuda_resources *resources;
    struct cuda_group *made = cuda_resources_create(driver, sizeof *made, &resources);
    if (!made)
        return TUTTI_ERR_NO_MEMORY;
    made->driver = driver;
    made->resources = resources;
    made->host = config->host;
    made->device = config->devices[config->rank];
    made->default_timeout_ms = config->default_timeout_ms;
    made->rules = config->rules;
    made->interrupt = config->interrupt;
    made->staged = config->place == CUDA_PLACE_HOST;
    if (made->staged || config->place == CUDA_PLACE_PROXY)
        snprintf(made->why, sizeof made->why, "%s", config->why);
    devices_count(made, config);
    made->launch.rank = config->rank;
    made->launch.size = config->size;
    made->launch.marked = config->marked;
    ranks_order(config, &made->launch);
    links_place(config, &made->launch);
    made->attribute = (CUlaunchAttribute){
        .id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
        .value = {.programmaticStreamSerializationAllowed = 1},
    };
    made->programmatic =
        config->programmatic == TUTTI_PROGRAMMATIC_ON ||
        (config->programmatic == TUTTI_PROGRAMMATIC_AUTO && made->device.major >= 9);
    *group = made;
    return TUTTI_OK;
}

/* All devices use the rows of the device with the least compute capability. */
static void plan_choose(struct cuda_group *group, const struct cuda_group_config *config)
{
    const struct cuda_device *least = &config->devices[0];
    for (int r = 1; r < config->size; r++) {
        const struct cuda_device *device = &config->devices[r];
        if (10 * device->major + device->minor < 10 * least->major + least->minor)
            least = device;
    }
    cuda_plan_make(config->table, least->major, least->minor, config->size, group->staged,
                   &group->plan);
}

/* There are no arenas, kernels or grids: the ranks share only host memory. */
static enum tutti_status open_proxy(struct cuda_group *group,
                                    const struct cuda_group_config *config,
                                    enum tutti_status status, int64_t deadline)
{
    if (status == TUTTI_OK)
        status = context_bind(group);
    if (status == TUTTI_OK)
        status = page_create(group);
    if (status == TUTTI_OK)
        status = cuda_proxy_open(group);
    return status_agree(config->gather, status, deadline_timeout_ms(deadline));
}

static enum tutti_status open_in(struct cuda_group *group, const struct cuda_group_config *config,
                                 enum tutti_status status, int64_t deadline)
{
    int own_fd = -1, fds[TUTTI_MAX_RANKS];
    if (config->place == CUDA_PLACE_PROXY)
        return open_proxy(group, config, status, deadline);
    memset(fds, -1, sizeof fds);
    if (status == TUTTI_OK) {
        plan_choose(group, config);
        status = prepare(group, config, deadline, &own_fd);
    }
    POINT("cuda.prepared");
    status = status_agree(config->gather, status, deadline_timeout_ms(deadline));
    if (status == TUTTI_OK)
        status = status_agree(config->gather, join(group, config, own_fd, deadline, fds),
                              deadline_timeout_ms(deadline));
    POINT("cuda.joined");
    if (status == TUTTI_OK)
        status =
            status_agree(config->gather, begin(group, deadline), deadline_timeout_ms(deadline));
    if (own_fd >= 0)
        close(own_fd);
    for (int r = 0; r < config->size; r++)
        if (fds[r] >= 0)
            close(fds[r]);
    return status;
}

static enum tutti_status open_at(const struct cuda_group_config *config, int64_t deadline,
                                 struct cuda_group **group)
{
    CUstreamCaptureMode mode;
    enum tutti_status status = group_make(config, group);
    if (status != TUTTI_OK) /* open_in() tells the others */
        return open_in(NULL, config, status, deadline);
    const struct cuda_driver *driver = (*group)->driver;
    cuda_resources_sweep();
    cuda_captures_ignore(driver, &mode);
    status = open_in(*group, config, status, deadline);
    cuda_captures_heed(driver, &mode);
    (*group)->interrupt = NULL;
    if (status != TUTTI_OK) {
        char why[1024]; /* the close may set another error */
        snprintf(why, sizeof why, "%s", tutti_last_error());
        cuda_group_close(*group, NULL);
        *group = NULL;
        error_set(status, "%s", why);
    }
    return status;
}

/* [out] only: every rank was declined because of links, its own or another rank's. Returns the
 * status of the exchange between the ranks. */
static enum tutti_status links_only(const struct cuda_group_config *config,
                                    enum tutti_status status, int64_t deadline, bool *only)
{
    int32_t own = (int32_t)status, all[TUTTI_MAX_RANKS];
    enum tutti_status asked = gather_run(config, &own, sizeof own, all, deadline);
    *only = asked == TUTTI_OK;
    for (int r = 0; *only && r < config->size; r++)
        *only = all[r] == TUTTI_ERR_DECLINED;
    return asked;
}

enum tutti_status cuda_group_open(const struct cuda_group_config *config, struct cuda_group **group)
{
    char why[sizeof((*group)->why)];
    struct cuda_group_config staged = *config;
    bool only;
    int64_t deadline = deadline_after(config->timeout_ms);
    enum tutti_status status = open_at(config, deadline, group);
    /* A rank whose time is over does not exchange statuses: a late rank would mistake this
     * exchange for another one. */
    if (status == TUTTI_OK || config->place != CUDA_PLACE_FOUND || status == TUTTI_ERR_TIMEOUT)
        return status;
    snprintf(why, sizeof why, "%s", tutti_last_error());
    enum tutti_status asked = links_only(config, status, deadline, &only);
    if (asked != TUTTI_OK && status == TUTTI_ERR_DECLINED)
        return asked; /* the interrupt says why the exchange failed */
    if (!only)
        return error_set(status, "%s", why);
    log_write(TUTTI_LOG_WARN, config->rank,
              "the devices do not reach each other, so all data goes through host memory: %s", why);
    staged.place = CUDA_PLACE_HOST;
    staged.why = why;
    return open_at(&staged, deadline, group);
}

/* ---- end ------------------------------------------------------------------------------------- */

/* Ends operations that still run after cuda_flush(), which returned `flushed`. Returns false if one
 * may still run. */
static bool halt(struct cuda_group *group, enum tutti_status flushed)
{
    if (group->enqueued && !group->recorded)
        return false;
    if (flushed != TUTTI_ERR_TIMEOUT)
        return true;
    cuda_stop(group, TUTTI_ERR_ABORTED, group->launch.rank);
    cuda_proxy_stop(group->proxy);
    return cuda_event_wait(group, deadline_after(LINGER_MS)) != TUTTI_ERR_TIMEOUT;
}

/* Makes every later launch of this communicator return at once. The event is behind this write. */
static void poison(struct cuda_group *group)
{
    const struct cuda_driver *driver = group->driver;
    CUdeviceptr control = cuda_address(group->launch.control);
    cuda_stop(group, TUTTI_ERR_ABORTED, group->launch.rank);
    if (control) {
        /* Whole rows: once a communicator has failed, kernels read only `failed` of them. */
        driver->memset_d8_async(control + offsetof(struct cuda_control, rows), 1,
                                sizeof(((struct cuda_control *)0)->rows), group->own);
        driver->memset_d8_async(control + offsetof(struct cuda_control, failed), 1,
                                sizeof(uint32_t), group->own);
    }
    if (group->enqueued)
        driver->stream_wait_event(group->own, group->event, 0);
    driver->event_record(group->event, group->own);
    cuda_event_wait(group, deadline_after(CUDA_GRACE_MS));
}

/* The fault with which the group ends. Peers do not get it: the operations that this end aborts are
 * this rank's alone. */
static void last_words(const struct cuda_group *group, bool idle, struct tutti_fault *fault)
{
    if (cpu_group_has_failed(group->host))
        cpu_group_status(group->host, fault);
    else if (!cuda_fault_read(group, fault) &&
             (!idle || order_load_relaxed_u32(&group->stopping))) /* relaxed: by this thread */
        *fault = (struct tutti_fault){.struct_size = sizeof *fault,
                                      .status = TUTTI_ERR_ABORTED,
                                      .rank = group->launch.rank,
                                      .peer = group->launch.rank,
                                      .sequence = cpu_group_sequence(group->host)};
}

/* The last operation that succeeded. */
static enum tutti_status completed_read(struct cuda_group *group, uint64_t *completed)
{
    const struct cuda_control *control = &((struct page *)group->resources->page)->control;
    struct tutti_fault fault;
    uint64_t begun = 0;
    if (cuda_is_proxied(group)) {
        *completed = cuda_proxy_completed(group->proxy);
        return TUTTI_OK;
    }
    enum tutti_status status =
        CUDA_CALL(group->driver, memcpy_async, cuda_address(control),
                  cuda_address(group->launch.control), sizeof *control, group->own);
    if (status == TUTTI_OK)
        status = cuda_own_finish(group, deadline_after(LINGER_MS));
    if (status != TUTTI_OK)
        return status;
    /* The first block that fails stops the others, and some of these may not have taken their rows
     * yet. */
    for (int i = 0; i < CUDA_BLOCKS; i++)
        if (control->rows[i].sequence > begun)
            begun = control->rows[i].sequence;
    *completed = begun;
    if (cuda_fault_read(group, &fault)) /* a barrier of a subset has no number */
        *completed = fault.sequence ? fault.sequence - 1 : begun;
    else if (control->failed && begun)
        *completed = begun - 1;
    return TUTTI_OK;
}

enum tutti_status cuda_group_retire(struct cuda_group *group, uint64_t *completed)
{
    struct cuda_visit visit;
    enum tutti_status status = cuda_visit_begin(group->driver, group->resources->context, &visit);
    if (status != TUTTI_OK)
        return status;
    if (halt(group, cuda_flush(group, deadline_after(CUDA_GRACE_MS))))
        status = completed_read(group, completed);
    else
        status = error_set(TUTTI_ERR_TIMEOUT,
                           "device %d does not end the operations of the old communicator: "
                           "synchronize the stream of the last one, which must not be in capture",
                           group->device.ordinal);
    cuda_visit_end(group->driver, &visit);
    return status;
}

void cuda_group_invalidate(struct cuda_group *group)
{
    struct cuda_visit visit;
    if (cuda_visit_begin(group->driver, group->resources->context, &visit) != TUTTI_OK)
        return;
    poison(group);
    cuda_visit_end(group->driver, &visit);
}

/* In the context. Ends all operations. Returns true if the last one may still run, for an unknown
 * time. */
static bool wind_up(struct cuda_group *group, struct tutti_fault *fault)
{
    const struct cuda_driver *driver = group->driver;
    bool stuck = false;
    enum tutti_status flushed = TUTTI_OK;
    if (group->event) /* the watch still runs, and ends this wait after a fault */
        flushed = cuda_flush(group, deadline_after(group->default_timeout_ms));
    cuda_watch_remove(&group->watch);
    if (group->event) {
        bool idle = halt(group, flushed);
        cuda_proxy_stop(group->proxy);
        stuck = group->enqueued && !group->recorded;
        if (fault)
            last_words(group, idle, fault);
        if (!idle || group->resources->object)
            poison(group);
    }
    if (stuck)
        log_write(TUTTI_LOG_WARN, group->launch.rank,
                  "the stream of the last operation is gone or captured: %zu bytes of memory are "
                  "not freed, because the operation may still run",
                  arena_bytes(group));
    if (group->own)
        driver->stream_destroy(group->own);
    return stuck;
}

void cuda_group_close(void *opaque, struct tutti_fault *fault)
{
    struct cuda_group *group = opaque;
    struct cuda_visit visit;
    bool stuck = false;
    if (!group)
        return;
    /* If the context is gone, the handles may name objects of a new one. */
    const bool lives =
        cuda_resources_live(group->resources) &&
        cuda_visit_begin(group->driver, group->resources->context, &visit) == TUTTI_OK;
    if (lives) {
        stuck = wind_up(group, fault);
    } else {
        cuda_watch_remove(&group->watch);
        cuda_proxy_stop(group->proxy);
        if (fault)
            last_words(group, !group->enqueued, fault);
    }
    if (group->resident)
        cuda_residents_add(group, -1);
    cuda_resources_release(group->resources, lives ? group->event : NULL, stuck);
    if (lives)
        cuda_visit_end(group->driver, &visit);
    cuda_proxy_free(group->proxy);
    free(group);
}

uint64_t cuda_group_sequence(const void *opaque)
{
    const struct cuda_group *group = opaque;
    return group->proxy ? cuda_proxy_enqueued(group->proxy) : cpu_group_sequence(group->host);
}

enum tutti_status cuda_group_enter(struct cuda_group *group, bool *pushed)
{
    return cuda_enter(group, pushed);
}

void cuda_group_leave(struct cuda_group *group, bool pushed)
{
    cuda_leave(group, pushed);
}

int cuda_group_device(const struct cuda_group *group)
{
    return group->device.ordinal;
}

bool cuda_group_is_proxied(const struct cuda_group *group)
{
    return cuda_is_proxied(group);
}

bool cuda_group_is_staged(const struct cuda_group *group)
{
    return group->staged || cuda_is_proxied(group);
}

void cuda_group_forget(struct cuda_group *group)
{
    if (!group)
        return;
    cuda_proxy_free(group->proxy);
    free(group->resources);
    free(group);
}
