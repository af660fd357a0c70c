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
#include "cpu/group.h"
#include "base/deadline.h"
#include "base/error.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/order.h"
#include "base/point.h"
#include "cuda/comm/fabric.h"
#include "peers/segments.h"
#include "store/status_agree.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    int32_t max_blocks;                 /* the option; 0: no limit */
    uint16_t blocks[CUDA_PLAN_CHOICES]; /* for each choice of the plan: how many fit at once */
};
static_assert(sizeof(struct offer) <= BACKEND_VALUE_BYTES, "the most that opening->gather takes");

static struct cuda_setup *setup_of(const struct backend_opening *opening)
{
    return opening->setup;
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
    return group->on_host ? CUDA_HOST_ARENA_BYTES : sizeof(struct cuda_arena);
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
        cuda_memory_create_host(group->driver, CUDA_HOST_ARENA_BYTES, memory, fd);
    if (status == TUTTI_OK)
        status = cuda_memory_create(group->driver, group->device.ordinal,
                                    sizeof(struct cuda_control), control, &control_fd);
    if (status == TUTTI_OK)
        status = fill(group, control->base, control->base + sizeof(struct cuda_control), 0);
    fd_drop(&control_fd);
    return status;
}

/* Peers push only after all ranks have agreed on this step. By then the arena is empty. */
static enum tutti_status arena_create(struct cuda_group *group, int64_t deadline, int *fd)
{
    struct cuda_memory *memory = &group->resources->arenas[group->launch.rank];
    enum tutti_status status =
        group->on_host ? arena_on_host(group, memory, fd) : arena_on_device(group, memory, fd);
    /* Also after an error: earlier work is on the stream. */
    enum tutti_status finished = cuda_own_finish(group, deadline);
    return status == TUTTI_OK ? finished : status;
}

static enum tutti_status prepare(struct cuda_group *group, const struct backend_opening *opening,
                                 int64_t deadline, int *fd)
{
    enum tutti_status status = context_bind(group);
    if (status == TUTTI_OK)
        status = page_create(group);
    if (status == TUTTI_OK)
        cuda_device_trace_open(group, opening->recorder_fd);
    if (status == TUTTI_OK)
        status =
            cuda_kernels_load(group->driver, group->launch.size, group->on_host, &group->kernels);
    if (status == TUTTI_OK)
        status = cuda_grids_limit(group);
    if (status == TUTTI_OK)
        status = arena_create(group, deadline, fd);
    return status;
}

/* ---- together -------------------------------------------------------------------------------- */

static void grids_limit(struct cuda_group *group, const struct offer *offer)
{
    for (int i = 0; i < CUDA_PLAN_CHOICES; i++)
        if (offer->blocks[i] < group->plan.choices[i].blocks)
            group->plan.choices[i].blocks = offer->blocks[i];
    if (offer->max_blocks && (!group->max_blocks || offer->max_blocks < group->max_blocks))
        group->max_blocks = offer->max_blocks;
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

static enum tutti_status arena_map(void *context, int rank, int fd)
{
    struct cuda_group *group = context;
    struct cuda_memory *memory = &group->resources->arenas[rank];
    enum tutti_status status =
        group->on_host ? cuda_memory_map_host(group->driver, fd, CUDA_HOST_ARENA_BYTES, memory)
                       : cuda_memory_map(group->driver, group->device.ordinal, fd,
                                         sizeof(struct cuda_arena), memory);
    if (status == TUTTI_OK)
        return TUTTI_OK;
    /* All devices reach host memory. */
    bool unreachable = status == TUTTI_ERR_CUDA && !group->on_host;
    return error_context(unreachable ? TUTTI_ERR_DECLINED : status, "arena of rank %d", rank);
}

static void arenas_take(struct cuda_group *group)
{
    struct cuda_launch *launch = &group->launch;
    for (int r = 0; r < launch->size; r++)
        launch->arenas[r] = (struct cuda_arena *)(uintptr_t)group->resources->arenas[r].base;
    for (int p = 0; p < launch->size; p++)
        launch->peers[p] = launch->arenas[launch->ranks[p]];
    launch->own = launch->arenas[launch->rank];
    launch->control = group->on_host
                          ? (struct cuda_control *)(uintptr_t)group->resources->control.base
                          : &launch->own->control;
}

/* `status`: whether this rank is ready. */
static enum tutti_status join(struct cuda_group *group, const struct backend_opening *opening,
                              enum tutti_status status, int own_fd, int64_t deadline)
{
    struct offer offer = {.fd = own_fd, .max_blocks = group->max_blocks};
    int fds[NODE_RANKS];
    for (int i = 0; i < CUDA_PLAN_CHOICES && status == TUTTI_OK; i++)
        offer.blocks[i] = group->plan.choices[i].blocks;
    /* Threads that share a device launch together, which messages between some of them cannot. */
    if (rank_set_count(group->same_gpu) > 1)
        offer.blocks[CUDA_PLAN_ROWS + CUDA_EXCHANGE] = 0;
    status =
        gather_agree(opening->gather, status, &offer, sizeof offer, deadline_timeout_ms(deadline));
    if (status != TUTTI_OK)
        return status;
    for (int r = 0; r < opening->size; r++) {
        gather_value(opening->gather, r, &offer, sizeof offer);
        grids_limit(group, &offer);
        fds[r] = offer.fd;
    }
    group->channels = cuda_exchange_channels(group);
    status = segments_exchange(group->peers, fds, arena_map, group, deadline);
    arenas_take(group);
    POINT("cuda.handles");
    return status_agree(opening->gather, status, deadline_timeout_ms(deadline));
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
static void ranks_order(const struct backend_opening *opening, struct cuda_launch *launch)
{
    int own = 0;
    while (opening->order[own] != opening->rank)
        own++;
    bool power_of_two = (opening->size & (opening->size - 1)) == 0;
    for (int leaf = 0; leaf < opening->size; leaf++)
        launch->ranks[power_of_two ? own ^ leaf : launch_leaf(leaf, own)] = opening->order[leaf];
    launch->leaf = power_of_two ? 0 : own;
}

/* The rank's part in the algorithms for few links. */
static void links_roles(const struct backend_opening *opening, struct cuda_group *group)
{
    struct topology_mesh mesh = {.partner = 0};
    const struct topology_ring ring = topology_ring_role(opening->topology, opening->rank);
    if (opening->rules->paths.mesh)
        topology_mesh_role(opening->topology, opening->order, opening->rank, &mesh);
    group->mesh.partner = (uint8_t)mesh.partner;
    for (int p = 0; p < 4 && p < opening->size; p++)
        for (int quarter = 0; quarter < 4; quarter++)
            if (mesh.owners[quarter] == group->launch.ranks[p])
                group->mesh.quarters[p] = (uint8_t)quarter;
    group->ring = (struct cuda_ring){.position = (uint8_t)ring.position,
                                     .before = (uint8_t)ring.before,
                                     .after = (uint8_t)ring.after};
}

/* Counts the ranks on this rank's device. */
static void devices_count(struct cuda_group *group, const struct backend_opening *opening)
{
    struct rank_set threads = rank_set_none;
    for (int r = 0; r < opening->size; r++) {
        if (memcmp(setup_of(opening)->devices[r].uuid, group->device.uuid, CUDA_UUID_BYTES) != 0)
            continue;
        group->sharing++;
        if (opening->processes[r] == opening->processes[opening->rank])
            rank_set_add(&threads, r);
    }
    group->shares_queues = rank_set_count(threads) > 1;
    if (group->sharing > 1 && setup_of(opening)->route != CUDA_ROUTE_PROXY &&
        setup_of(opening)->route != CUDA_ROUTE_FABRIC)
        group->same_gpu = threads;
}

static enum tutti_status group_make(const struct backend_opening *opening,
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
    made->peers = opening->peers;
    made->hosts = setup_of(opening)->hosts;
    made->many_hosts = opening->hosts.group;
    made->device = setup_of(opening)->devices[opening->rank];
    made->default_timeout_ms = opening->default_timeout_ms;
    made->rules = opening->rules;
    made->max_blocks = opening->max_blocks;
    made->marks = opening->transient_streams;
    made->interrupt = opening->interrupt;
    made->proxied = setup_of(opening)->route == CUDA_ROUTE_PROXY;
    made->on_host = setup_of(opening)->route == CUDA_ROUTE_HOST;
    if (made->on_host || made->many_hosts || setup_of(opening)->route == CUDA_ROUTE_PROXY)
        snprintf(made->why, sizeof made->why, "%s", setup_of(opening)->why);
    devices_count(made, opening);
    made->launch.rank = opening->rank;
    made->launch.size = opening->size;
    made->launch.marked = opening->marked;
    ranks_order(opening, &made->launch);
    links_roles(opening, made);
    made->attribute = (CUlaunchAttribute){
        .id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
        .value = {.programmaticStreamSerializationAllowed = 1},
    };
    made->programmatic =
        opening->programmatic == TUTTI_PROGRAMMATIC_ON ||
        (opening->programmatic == TUTTI_PROGRAMMATIC_AUTO && made->device.major >= 9);
    *group = made;
    return TUTTI_OK;
}

/* All devices use the rows of the device with the least compute capability. */
static void plan_choose(struct cuda_group *group, const struct backend_opening *opening)
{
    const struct cuda_device *least = &setup_of(opening)->devices[0];
    for (int r = 1; r < opening->size; r++) {
        const struct cuda_device *device = &setup_of(opening)->devices[r];
        if (10 * device->major + device->minor < 10 * least->major + least->minor)
            least = device;
    }
    cuda_plan_make(&setup_of(opening)->table, least->major, least->minor, opening->size,
                   group->on_host, &group->plan);
}

static enum tutti_status hosts_open(const struct backend_opening *opening,
                                    struct backend_hosts *hosts)
{
    struct cpu_group *group;
    const enum tutti_status status = cpu_group_open(opening, &choice_rules_free, &group);
    if (status == TUTTI_OK)
        *hosts = (struct backend_hosts){.backend = &cpu_backend, .group = group};
    return status;
}

/* Opens the proxy of a communicator that has kernels. Its hosts have peers of their own, since the
 * caller uses the communicator's while the proxy runs. */
static enum tutti_status open_beside(struct cuda_group *group,
                                     const struct backend_opening *opening, int64_t deadline)
{
    const struct peers_ranks *ranks = peers_ranks(opening->peers);
    const struct backend_arenas arenas = {.bytes =
                                              cpu_group_arena_bytes(opening, &choice_rules_free),
                                          .reach = rank_set_all(opening->size)};
    struct backend_opening hosts = *opening;
    struct channel *channel = ranks->channel;
    const struct peers_config config = {
        .rank = opening->rank,
        .size = opening->size,
        .arenas = &arenas,
        .remote = ranks->remote,
        .shared = true,
        .channel = &channel,
        .connected = true,
        .borrowed = true,
        .oversubscribed = opening->oversubscribed,
        .gather = opening->gather,
        .interrupt = opening->interrupt,
        .timeout_ms = deadline_timeout_ms(deadline),
    };
    hosts.peers = group->beside = cpu_group_create();
    enum tutti_status status =
        group->beside
            ? peers_open(&config, group->beside)
            : status_agree(opening->gather, error_set(TUTTI_ERR_NO_MEMORY, "no memory for peers"),
                           config.timeout_ms);
    hosts.timeout_ms = deadline_timeout_ms(deadline);
    if (status == TUTTI_OK)
        status = hosts_open(&hosts, &group->hosts);
    if (status == TUTTI_OK) {
        peers_settle(group->beside);
        status = cuda_proxy_open(group);
    }
    return status;
}

static bool all_wait(const struct backend_opening *opening)
{
    for (int r = 0; r < opening->size; r++)
        if (!setup_of(opening)->devices[r].waits)
            return false;
    return true;
}

/* There are no arenas, nor kernels that wait: the ranks share only host memory, or the rank is
 * alone. */
static enum tutti_status open_proxy(struct cuda_group *group, const struct backend_opening *opening,
                                    enum tutti_status status, int64_t deadline)
{
    if (status == TUTTI_OK)
        status = context_bind(group);
    if (status == TUTTI_OK)
        status = page_create(group);
    if (status == TUTTI_OK)
        status = cuda_kernels_load_rows(group->driver, !group->proxied, &group->kernels);
    if (status == TUTTI_OK && group->proxied)
        status = cuda_proxy_open(group);
    return status_agree(opening->gather, status, deadline_timeout_ms(deadline));
}

/* The same for ranks that a fabric joins. */
static enum tutti_status open_fabric(struct cuda_group *group,
                                     const struct backend_opening *opening,
                                     enum tutti_status status, int64_t deadline)
{
    if (status == TUTTI_OK)
        status = context_bind(group);
    if (status == TUTTI_OK)
        status = page_create(group);
    if (status == TUTTI_OK)
        status = cuda_fabric_open(group, opening->order, deadline);
    status = status_agree(opening->gather, status, deadline_timeout_ms(deadline));
    return status == TUTTI_OK ? status_agree(opening->gather, cuda_fabric_begin(group, deadline),
                                             deadline_timeout_ms(deadline))
                              : status;
}

static enum tutti_status open_in(struct cuda_group *group, const struct backend_opening *opening,
                                 enum tutti_status status, int64_t deadline)
{
    int own_fd = -1;
    if (setup_of(opening)->route == CUDA_ROUTE_FABRIC)
        return open_fabric(group, opening, status, deadline);
    if (setup_of(opening)->route == CUDA_ROUTE_PROXY ||
        setup_of(opening)->route == CUDA_ROUTE_ALONE)
        return open_proxy(group, opening, status, deadline);
    if (status == TUTTI_OK) {
        plan_choose(group, opening);
        status = prepare(group, opening, deadline, &own_fd);
    }
    POINT("cuda.prepared");
    status = join(group, opening, status, own_fd, deadline);
    POINT("cuda.joined");
    fd_drop(&own_fd);
    if (status == TUTTI_OK)
        status =
            status_agree(opening->gather, begin(group, deadline), deadline_timeout_ms(deadline));
    if (status == TUTTI_OK && all_wait(opening))
        status = status_agree(opening->gather, open_beside(group, opening, deadline),
                              deadline_timeout_ms(deadline));
    return status;
}

static enum tutti_status open_at(const struct backend_opening *opening, int64_t deadline,
                                 void **group)
{
    struct choice_paths *paths = &opening->rules->paths;
    CUstreamCaptureMode mode;
    struct cuda_group *made;
    enum tutti_status status = group_make(opening, &made);
    if (status != TUTTI_OK) /* open_in() tells the others */
        return open_in(NULL, opening, status, deadline);
    cuda_resources_sweep();
    cuda_captures_ignore(made->driver, &mode);
    status = open_in(made, opening, status, deadline);
    cuda_captures_heed(made->driver, &mode);
    made->interrupt = NULL;
    if (status != TUTTI_OK) {
        char why[1024]; /* the close may set another error */
        snprintf(why, sizeof why, "%s", tutti_last_error());
        cuda_group_close(made, NULL);
        return error_set(status, "%s", why);
    }
    *group = made;
    /* If all data goes through host memory, links do not matter. A host thread runs no kernels. */
    if (made->on_host || made->proxied)
        paths->all = paths->by_host = true;
    if (made->proxied)
        paths->ring = false;
    return TUTTI_OK;
}

enum tutti_status cuda_group_open(const struct backend_opening *opening, void **group)
{
    struct cuda_setup *setup = opening->setup;
    char why[sizeof((struct cuda_group *)0)->why];
    int64_t deadline = deadline_after(opening->timeout_ms);
    enum tutti_status status = TUTTI_OK;
    setup->hosts = opening->hosts;
    if (!setup->hosts.group)
        peers_settle(opening->peers);
    /* Ranks that share a device share host memory, whatever the links of the devices. */
    const bool needs_hosts = setup->route == CUDA_ROUTE_PROXY && !setup->hosts.group;
    if (needs_hosts) /* before steps in which a rank alone may fail */
        status = hosts_open(opening, &setup->hosts);
    if (status == TUTTI_OK)
        status = open_at(opening, deadline, group);
    /* All ranks know whether links alone are the reason. */
    if (status != TUTTI_ERR_DECLINED || setup->route != CUDA_ROUTE_FOUND || !opening->gather->alike)
        return status;
    snprintf(why, sizeof why, "%s", tutti_last_error());
    log_write(TUTTI_LOG_WARN, opening->rank,
              "the devices do not reach each other, so all data goes through host memory: %s", why);
    setup->route = CUDA_ROUTE_HOST;
    setup->why = why;
    return open_at(opening, deadline, group);
}

/* ---- end ------------------------------------------------------------------------------------- */

/* cuda_flush(). Between hosts the thread may have pieces behind those of the stream. */
static enum tutti_status flush(struct cuda_group *group, int64_t deadline)
{
    const enum tutti_status status = cuda_flush(group, deadline);
    return status == TUTTI_OK && group->many_hosts && group->proxy
               ? cuda_proxy_drain(group->proxy, deadline)
               : status;
}

enum tutti_status cuda_group_finish(void *opaque, int64_t timeout_ms)
{
    struct cuda_group *group = opaque;
    struct cuda_visit visit;
    enum tutti_status status = cuda_visit_begin(group->driver, group->resources->context, &visit);
    if (status != TUTTI_OK)
        return status;
    status = flush(group, deadline_after(timeout_ms));
    cuda_visit_end(group->driver, &visit);
    if (status == TUTTI_OK || cuda_group_has_failed(group) || cuda_watchers_ended()) {
        enum tutti_status fault = cuda_group_status(group, NULL);
        return fault == TUTTI_OK ? status : fault;
    }
    if (status != TUTTI_ERR_TIMEOUT)
        return status;
    return error_set(TUTTI_ERR_TIMEOUT,
                     "operations that were enqueued on device %d did not end in %lld ms: wait once "
                     "more, or end them with tutti_comm_abort()",
                     group->device.ordinal, (long long)timeout_ms);
}

/* Ends operations that still run after flush(), which returned `flushed`. Returns false if one
 * may still run. */
static bool halt(struct cuda_group *group, enum tutti_status flushed)
{
    if (group->enqueued && !group->recorded)
        return false;
    if (flushed != TUTTI_ERR_TIMEOUT)
        return true;
    cuda_stop(group, TUTTI_ERR_ABORTED, group->launch.rank);
    cuda_proxy_stop(group->proxy);
    cuda_fabric_stop(group);
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
    if (peers_have_failed(group->peers))
        peers_status(group->peers, fault);
    else if (!cuda_fault_read(group, fault) &&
             (!idle || order_load_relaxed_u32(&group->stopping))) /* relaxed: by this thread */
        *fault = (struct tutti_fault){
            .struct_size = sizeof *fault,
            .status = TUTTI_ERR_ABORTED,
            .rank = group->launch.rank,
            .peer = group->launch.rank,
            .sequence = group->fabric       ? cuda_fabric_completed(group->fabric) + 1
                        : group->many_hosts ? cuda_proxy_completed(group->proxy) + 1
                                            : peers_sequence(group->peers)};
}

/* The last operation that succeeded. */
static enum tutti_status completed_read(struct cuda_group *group, uint64_t *completed)
{
    const struct cuda_control *control = &((struct page *)group->resources->page)->control;
    struct tutti_fault fault;
    uint64_t begun = 0;
    if (!cuda_has_kernels(group)) {
        *completed = group->fabric  ? cuda_fabric_completed(group->fabric)
                     : group->proxy ? cuda_proxy_completed(group->proxy)
                                    : cuda_group_sequence(group);
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

enum tutti_status cuda_group_retire(void *opaque, uint64_t *completed)
{
    struct cuda_group *group = opaque;
    struct cuda_visit visit;
    enum tutti_status status = cuda_visit_begin(group->driver, group->resources->context, &visit);
    if (status != TUTTI_OK)
        return status;
    if (halt(group, flush(group, deadline_after(CUDA_GRACE_MS))))
        status = completed_read(group, completed);
    else
        status = error_set(TUTTI_ERR_TIMEOUT,
                           "device %d does not end the operations of the old communicator: "
                           "synchronize the stream of the last one, which must not be in capture",
                           group->device.ordinal);
    cuda_visit_end(group->driver, &visit);
    return status;
}

void cuda_group_invalidate(void *opaque)
{
    struct cuda_group *group = opaque;
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
        flushed = flush(group, deadline_after(group->default_timeout_ms));
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
    cuda_engines_close(group);
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
    cuda_fabric_close(group, lives);
    if (group->resident)
        cuda_residents_add(group, -1);
    cuda_resources_release(group->resources, lives ? group->event : NULL, stuck);
    if (lives)
        cuda_visit_end(group->driver, &visit);
    cuda_proxy_free(group->proxy);
    peers_close(group->beside);
    peers_free(group->beside);
    free(group);
}

uint64_t cuda_group_sequence(const void *opaque)
{
    const struct cuda_group *group = opaque;
    return group->fabric    ? group->fabric->enqueued
           : group->proxied ? cuda_proxy_enqueued(group->proxy)
                            : peers_sequence(group->peers);
}

int cuda_group_device(const struct cuda_group *group)
{
    return group->device.ordinal;
}

enum tutti_status cuda_check_split(const void *group, const char *name)
{
    const struct cuda_group *own = group;
    if (!own->proxied || own->many_hosts)
        return TUTTI_OK;
    return error_set(TUTTI_ERR_DECLINED,
                     "a host thread serves the ranks of communicator \"%s\", since processes "
                     "share a device: create one for each color by tutti_comm_create(), with "
                     "the color in its name",
                     name);
}

void cuda_group_forget(void *opaque)
{
    struct cuda_group *group = opaque;
    if (!group)
        return;
    cuda_proxy_free(group->proxy);
    peers_free(group->beside);
    free(group->fabric);
    free(group->resources);
    free(group);
}
