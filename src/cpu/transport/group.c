/* SPDX-License-Identifier: MIT */
/*
 * Opening: every rank makes its arena. Threads of one process look up each other's arenas in the
 * process; other ranks send descriptors over the channel. Then the ranks meet in the arenas. A rank
 * that fails says why, and closes its arena and its channel, so that all ranks fail.
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

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* With more ranks than cores, a peer may need this core several times to make progress. */
enum { YIELDS_OVERSUBSCRIBED = 4000 };

static bool is_remote(const struct cpu_group *group, int rank)
{
    return rank_set_has(group->ranks.remote, rank);
}

static enum tutti_status arena_create(struct cpu_group *group, const uint8_t *nonce, int *fd)
{
    struct segment segment;
    enum tutti_status status =
        segment_create("tutti-arena", group->areas.arena_bytes, &segment, fd);
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

/* `data`: the peer exchanges data with this rank. If not, its data is not mapped, so that a wrong
 * access faults. */
static enum tutti_status arena_map(struct cpu_group *group, int peer, bool data, int fd)
{
    struct segment segment;
    enum tutti_status status =
        segment_map_part(fd, group->areas.arena_bytes,
                         data ? group->areas.arena_bytes : LAYOUT_CONTROL_BYTES, &segment);
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

/* A peer is gone: returns why, if it has said so. */
static enum tutti_status why_dead(const struct cpu_group_config *config, enum tutti_status status)
{
    const enum tutti_status why = interrupt_ask_why(config->interrupt);
    return why == TUTTI_OK ? status : why;
}

/* Threads of one process share a mapping; other ranks map the descriptor. */
static enum tutti_status arenas_join(struct cpu_group *group, const struct cpu_group_config *config,
                                     const int *fds)
{
    for (int r = 0; r < group->size; r++) {
        enum tutti_status status = TUTTI_OK;
        if (r == group->rank)
            continue;
        if (is_remote(group, r)) {
            status = arena_map(group, r, rank_set_has(config->links->reach, r), fds[r]);
        } else {
            group->arenas[r] = local_acquire(config->nonce, r);
            if (!group->arenas[r])
                status = why_dead(config, error_set(TUTTI_ERR_PEER_DEAD,
                                                    "rank %d, of this process, has given up", r));
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
                &(struct segment){.base = group->arenas[r], .bytes = group->areas.arena_bytes});
        else
            local_release(group->arenas[r]);
        group->arenas[r] = NULL;
    }
}

static enum tutti_status handles_exchange(struct cpu_group *group,
                                          const struct cpu_group_config *config,
                                          enum tutti_status local_status, int own_fd,
                                          int64_t deadline, int *fds)
{
    struct channel_config channel = {
        .rank = config->rank,
        .size = config->size,
        .peers = config->remote,
        .addresses = config->addresses,
        .timeout_ms = deadline_left_ms(deadline),
        .interrupt = config->interrupt,
        .local_status = local_status,
    };
    memcpy(channel.nonce, config->nonce, sizeof channel.nonce);
    enum tutti_status status =
        config->connected ? local_status : channel_open(config->channel, &channel);
    group->ranks.channel = *config->channel;
    *config->channel = NULL;
    if (status == TUTTI_OK) {
        POINT("channel.opened");
        status =
            channel_all_gather_fds(group->ranks.channel, own_fd, fds, deadline_left_ms(deadline));
    }
    if (status != TUTTI_OK && group->ranks.channel) {
        interrupt_tell(config->interrupt, status);
        channel_close(group->ranks.channel); /* a peer may wait for this rank's descriptor */
        group->ranks.channel = NULL;
    }
    return status;
}

/* Every two ranks meet for the first time, as in a barrier of a subset: all have mapped all arenas.
 */
static enum tutti_status ranks_meet(struct cpu_group *group, const struct cpu_group_config *config,
                                    int64_t deadline)
{
    const struct request request = {.timeout_ms = deadline_left_ms(deadline)};
    enum tutti_status status = TUTTI_OK;
    for (int r = group->size; r-- > 0;) {
        POINT("open.meets");
        group->op.meetings[r] = 1;
        order_store_release_u32(&group->own->meetings[r][1].count, 1); /* B1 pairs A1 */
    }
    bell_ring_if_heard(group);
    for (int r = 0; r < group->size && status == TUTTI_OK; r++)
        status = wait_for(group, r, &group->arenas[r]->meetings[group->rank][1].count, 1, &request);
    return status == TUTTI_ERR_PEER_DEAD ? why_dead(config, status) : status;
}

/* Measures every partner once, before the first operation. Not called with more ranks than cores:
 * a round trip between two ranks of one core takes two switches of the scheduler. */
static enum tutti_status distances_measure(struct cpu_group *group, int64_t deadline)
{
    const struct request request = {.timeout_ms = deadline_left_ms(deadline)};
    enum tutti_status status = TUTTI_OK;
    for (int ranks = 1; ranks < group->size; ranks *= 2)
        if (status == TUTTI_OK)
            status = distance_measure(group, &request);
    return status;
}

/* From here on an abort writes into the arenas. An abort that came before, and after the opening's
 * last check, is reported here: at least one of the two threads sees the other's word. */
static void arenas_show(struct cpu_group *group)
{
    order_store_release_u32(&group->faults.open, 1); /* G1 pairs A7 */
    order_fence();
    if (order_load_relaxed_u32(&group->faults.aborted))
        cpu_group_abort(group);
}

void cpu_group_set_progress(struct cpu_group *group, int (*progress)(void *context), void *context)
{
    group->progress = progress;
    group->progress_context = context;
}

static void group_init(struct cpu_group *group, const struct cpu_group_config *config)
{
    const struct cpu_links *links = config->links;
    group->rank = config->rank;
    group->size = config->size;
    group->ranks.remote = config->remote;
    group->ranks.sparse = links->sparse;
    group->ranks.mesh = links->mesh;
    group->isa = config->isa;
    group->copy_long = reduce_copy_long(config->isa);
    group->cache_bytes = reduce_cache_bytes();
    group->faults.record = config->record;
    group->faults.on_failure = config->on_failure;
    group->faults.context = config->context;
    group->faults.interrupt = config->interrupt;
    group->oversubscribed = config->oversubscribed;
    cpu_table_fill(config->rules, config->size, config->oversubscribed, &group->table);
    group->areas = areas_make(config->arena_bytes ? config->arena_bytes : areas_least(config->size),
                              config->size, group->table.pushes);
    group->table.pushes = group->areas.exchange_bytes > 0;
    group->same_core.ranks = rank_set_minus(rank_set_all(config->size), rank_set_of(config->rank));
    group->ranks.polls = config->oversubscribed ? 1 : WAIT_POLLS;
    group->yields = config->oversubscribed ? YIELDS_OVERSUBSCRIBED : WAIT_YIELDS;
    /* Registering takes 20 ms on machines with many cores. */
    group->membarrier = !config->idle && bell_prepare();
    for (int leaf = 0; leaf < config->size; leaf++)
        group->ranks.order[leaf] = config->order[leaf];
}

struct cpu_group *cpu_group_create(void)
{
    const size_t bytes = (sizeof(struct cpu_group) + LAYOUT_LINE - 1) / LAYOUT_LINE * LAYOUT_LINE;
    struct cpu_group *group = aligned_alloc(LAYOUT_LINE, bytes);
    if (group)
        memset(group, 0, bytes);
    return group;
}

void cpu_group_free(struct cpu_group *group)
{
    free(group);
}

enum tutti_status cpu_group_open(const struct cpu_group_config *config, struct cpu_group *group)
{
    int64_t deadline = deadline_after(config->timeout_ms);
    int own_fd = -1, fds[TUTTI_MAX_RANKS];
    memset(fds, -1, sizeof fds);
    group_init(group, config);

    enum tutti_status status = arena_create(group, config->nonce, &own_fd);
    POINT("open.arena");
    if (!rank_set_empty(config->remote))
        status = handles_exchange(group, config, status, own_fd, deadline, fds);
    POINT("open.handles");
    /* Threads look up each other's arenas after all ranks have made theirs. */
    if (config->shared)
        status = config->agree(config->agree_context, status, deadline_timeout_ms(deadline));
    if (status == TUTTI_OK)
        status = arenas_join(group, config, fds);
    if (status == TUTTI_OK)
        status = config->connected
                     ? config->agree(config->agree_context, TUTTI_OK, deadline_timeout_ms(deadline))
                     : ranks_meet(group, config, deadline);

    POINT("open.joined");
    if (status == TUTTI_OK && !config->idle && !config->oversubscribed)
        status = distances_measure(group, deadline);
    POINT("open.measured");

    if (own_fd >= 0)
        close(own_fd);
    for (int r = 0; r < config->size; r++)
        if (fds[r] >= 0)
            close(fds[r]);
    group->faults.interrupt = NULL;
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
    if (!group || !group->own)
        return;
    order_store_release_u32(&group->own->left, 1); /* F2 pairs A2 */
    POINT("close.left");
    bell_ring(group);
    order_store_relaxed_u32(&group->faults.open, 0);
    channel_close(group->ranks.channel);
    group->ranks.channel = NULL;
    arenas_release(group);
    group->own = NULL;
}
