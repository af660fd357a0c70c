/* SPDX-License-Identifier: MIT */
/*
 * Opening: every rank makes its arena, thread ranks find each other's in the process, the others
 * send descriptors over the channel. A last exchange tells whether everybody could; a rank that
 * could not fails all.
 */
#include "cpu/transport/group.h"

#include "base/deadline.h"
#include "base/error.h"
#include "base/point.h"
#include "cpu/transport/distance.h"
#include "cpu/transport/local.h"
#include "cpu/transport/wait.h"
#include "ipc/channel.h"
#include "ipc/segment.h"
#include "store/status_agree.h"

#include <string.h>
#include <unistd.h>

enum {
    /* About 30 us: longer than ranks in step differ, shorter than a scheduler's quantum. */
    SPIN_POLLS = 2000,
    /* About 1 ms of sched_yield() with nobody else to run. */
    YIELDS = 2000,
    /* With more ranks than cores a peer needs our core to make progress: a turn each, several times
       over. */
    YIELDS_OVERSUBSCRIBED = 4000,
};

static bool is_remote(const struct cpu_group *group, int rank)
{
    return group->remote >> rank & 1;
}

static enum tutti_status arena_create(struct cpu_group *group, const uint8_t *nonce, int *fd)
{
    struct segment segment;
    enum tutti_status status =
        segment_create("tutti-arena", sizeof(struct layout_arena), &segment, fd);
    if (status != TUTTI_OK)
        return status;
    struct layout_arena *arena = segment.base;
    arena->magic = LAYOUT_MAGIC;
    arena->version = LAYOUT_VERSION;
    arena->rank = group->rank;
    status = local_publish(nonce, group->rank, &segment);
    if (status != TUTTI_OK) {
        segment_unmap(&segment);
        close(*fd);
        *fd = -1;
        return status;
    }
    group->own = arena;
    group->arenas[group->rank] = arena;
    return TUTTI_OK;
}

/* Of a peer that exchanges no data with us the data are not there: an algorithm that strays faults.
 */
static enum tutti_status arena_map(struct cpu_group *group, int peer, bool data, int fd)
{
    struct segment segment;
    enum tutti_status status =
        segment_map_part(fd, sizeof(struct layout_arena),
                         data ? sizeof(struct layout_arena) : LAYOUT_CONTROL_BYTES, &segment);
    if (status != TUTTI_OK)
        return error_context(status, "arena of rank %d", peer);
    const struct layout_arena *arena = segment.base;
    if (arena->magic != LAYOUT_MAGIC || arena->version != LAYOUT_VERSION || arena->rank != peer) {
        status = error_set(TUTTI_ERR_VERSION,
                           "rank %d sent an arena of rank %d, layout %u, this library has %d: "
                           "run one version of Tutti on all ranks",
                           peer, (int)arena->rank, (unsigned)arena->version, LAYOUT_VERSION);
        segment_unmap(&segment);
        return status;
    }
    group->arenas[peer] = segment.base;
    return TUTTI_OK;
}

/* Thread ranks find the pointer, others map the descriptor. */
static enum tutti_status arenas_join(struct cpu_group *group, const struct cpu_group_config *config,
                                     const int *fds)
{
    for (int r = 0; r < group->size; r++) {
        enum tutti_status status = TUTTI_OK;
        if (r == group->rank)
            continue;
        if (is_remote(group, r)) {
            status = arena_map(group, r, config->links->reach >> r & 1, fds[r]);
        } else {
            group->arenas[r] = local_acquire(config->nonce, r);
            if (!group->arenas[r])
                status = error_set(TUTTI_ERR_SYSTEM,
                                   "rank %d is of this process but has no arena here", r);
        }
        if (status != TUTTI_OK)
            return status;
    }
    return TUTTI_OK;
}

static void arenas_release(struct cpu_group *group)
{
    for (int r = 0; r < group->size; r++) {
        if (!group->arenas[r])
            continue;
        if (is_remote(group, r))
            segment_unmap(
                &(struct segment){.base = group->arenas[r], .bytes = sizeof(struct layout_arena)});
        else
            local_release(group->arenas[r]);
        group->arenas[r] = NULL;
    }
}

static enum tutti_status handles_exchange(struct cpu_group *group,
                                          const struct cpu_group_config *config,
                                          enum tutti_status hindrance, int own_fd, int64_t deadline,
                                          int *fds)
{
    struct channel_config channel = {
        .rank = config->rank,
        .size = config->size,
        .peers = config->remote,
        .exchanger = config->exchanger,
        .timeout_ms = deadline_left_ms(deadline),
        .interrupt = config->interrupt,
        .hindrance = hindrance,
    };
    memcpy(channel.nonce, config->nonce, sizeof channel.nonce);
    enum tutti_status status = channel_open(&channel, &group->channel);
    if (status != TUTTI_OK)
        return status;
    POINT("channel.opened");
    return channel_all_gather_fds(group->channel, own_fd, fds, deadline_left_ms(deadline));
}

/* Every partner once, before the first operation. */
static enum tutti_status distances_measure(struct cpu_group *group, int64_t deadline)
{
    const struct request request = {.timeout_ms = deadline_left_ms(deadline)};
    enum tutti_status status = TUTTI_OK;
    for (int ranks = 1; ranks < group->size; ranks *= 2)
        if (status == TUTTI_OK)
            status = distance_probe(group, &request);
    return status;
}

/* To aborts. One that came too early to find them, and too late for any look of the opening, is
 * told here: of the two, one sees the other. */
static void arenas_show(struct cpu_group *group)
{
    order_store_release_u32(&group->open, 1); /* G1 pairs A7 */
    order_fence();
    if (order_load_relaxed_u32(&group->aborted))
        cpu_group_abort(group);
}

static void group_init(struct cpu_group *group, const struct cpu_group_config *config)
{
    const struct cpu_links *links = config->links;
    group->rank = config->rank;
    group->size = config->size;
    group->remote = config->remote;
    group->one_process = config->remote == 0;
    group->sparse = links->sparse;
    group->mesh = links->mesh;
    group->isa = config->isa;
    group->copy_long = reduce_copy_long(config->isa);
    group->record = config->record;
    group->on_failure = config->on_failure;
    group->context = config->context;
    group->interrupt = config->interrupt;
    group->oversubscribed = config->oversubscribed;
    cpu_table_fill(config->rules, config->size, config->oversubscribed, &group->table);
    group->same_core =
        UINT64_MAX >> (TUTTI_MAX_RANKS - config->size) & ~(UINT64_C(1) << config->rank);
    group->spin = config->oversubscribed ? 1 : SPIN_POLLS;
    group->yields = config->oversubscribed ? YIELDS_OVERSUBSCRIBED : YIELDS;
    /* Registering takes 20 ms where many cores are to hear of it. */
    group->membarrier = !config->idle && bell_prepare();
    for (int leaf = 0; leaf < config->size; leaf++)
        group->order[leaf] = config->order[leaf];
}

enum tutti_status cpu_group_open(const struct cpu_group_config *config, struct cpu_group *group)
{
    int64_t deadline = deadline_after(config->timeout_ms);
    int own_fd = -1, fds[TUTTI_MAX_RANKS];
    memset(fds, -1, sizeof fds);
    group_init(group, config);

    /* Thread ranks look for each other's arena once all have made theirs: the handshake and this
     * barrier see to that. A rank that failed says so there. */
    enum tutti_status status = arena_create(group, config->nonce, &own_fd);
    POINT("open.arena");
    if (config->remote)
        status = handles_exchange(group, config, status, own_fd, deadline, fds);
    POINT("open.handles");
    status = status_agree(config->exchanger, status, deadline_timeout_ms(deadline));
    if (status == TUTTI_OK)
        status = status_agree(config->exchanger, arenas_join(group, config, fds),
                              deadline_timeout_ms(deadline));

    POINT("open.joined");
    if (status == TUTTI_OK && !config->idle)
        status = distances_measure(group, deadline);
    POINT("open.measured");

    if (own_fd >= 0)
        close(own_fd);
    for (int r = 0; r < config->size; r++)
        if (fds[r] >= 0)
            close(fds[r]);
    group->interrupt = NULL;
    if (status == TUTTI_OK) {
        arenas_show(group);
    } else {
        interrupt_tell(config->interrupt, status);
        cpu_group_close(group);
    }
    return status;
}

void cpu_group_close(struct cpu_group *group)
{
    if (!group->own)
        return;
    order_store_release_u32(&group->own->left, 1); /* F2 pairs A2 */
    POINT("close.left");
    bell_ring(group);
    order_store_relaxed_u32(&group->open, 0);
    channel_close(group->channel);
    group->channel = NULL;
    arenas_release(group);
    group->own = NULL;
}
