/* SPDX-License-Identifier: MIT */
/*
 * Opening: every rank makes its arena. Threads of one process look up each other's arenas in the
 * process; other ranks send descriptors over the channel. Then the ranks meet in the arenas. A rank
 * that fails says why, and closes its arena and its channel, so that all ranks fail.
 */
#include "base/deadline.h"
#include "base/error.h"
#include "base/fd.h"
#include "base/point.h"
#include "coll/backend.h"
#include "ipc/channel.h"
#include "peers/part.h"
#include "peers/segments.h"
#include "peers/wait.h"
#include "store/status_agree.h"

#include <stdlib.h>
#include <string.h>

enum {
    /* With more ranks than cores, a peer may need this core several times to make progress. */
    YIELDS_OVERSUBSCRIBED = 4000,
    POLLS_OFTEN = 200, /* about 3 us, before the first progress */
};

/* [out] id, for threads of this process. */
static enum tutti_status arena_create(struct peers *peers, int *fd, uint64_t *id)
{
    struct segment segment;
    enum tutti_status status = segments_create("tutti-arena", peers->arena_bytes, &segment, fd, id);
    if (status != TUTTI_OK)
        return status;
    struct layout_arena *arena = segment.base;
    arena->magic = LAYOUT_MAGIC;
    arena->version = LAYOUT_VERSION;
    arena->rank = peers->rank;
    peers->own = arena;
    peers->arenas[peers->rank] = arena;
    return TUTTI_OK;
}

/* A peer is gone: returns why, if it has said so. */
static enum tutti_status why_dead(const struct peers_config *config, enum tutti_status status)
{
    const enum tutti_status why = interrupt_ask_why(config->interrupt);
    return why == TUTTI_OK ? status : why;
}

struct joining {
    struct peers *peers;
    const struct peers_config *config;
};

/* Only the data of ranks that exchange data with this one is mapped, so that a wrong access
 * faults. */
static enum tutti_status arena_join(void *context, int rank, int fd)
{
    const struct joining *self = context;
    struct peers *peers = self->peers;
    const bool has_data = rank_set_has(self->config->arenas->reach, rank);
    uint64_t id = 0;
    void *base;
    if (self->config->shared)
        gather_value(self->config->gather, rank, &id, sizeof id);
    enum tutti_status status =
        segments_join(peers, rank, fd, id, peers->arena_bytes,
                      has_data ? peers->arena_bytes : LAYOUT_CONTROL_BYTES, &base);
    if (status == TUTTI_ERR_PEER_DEAD)
        return why_dead(self->config, status);
    if (status != TUTTI_OK)
        return error_context(status, "arena of rank %d", rank);
    const struct layout_arena *arena = base;
    peers->arenas[rank] = base;
    if (arena->magic == LAYOUT_MAGIC && arena->version == LAYOUT_VERSION && arena->rank == rank)
        return TUTTI_OK;
    return error_set(TUTTI_ERR_VERSION,
                     "rank %d sent an arena of rank %d, layout %u, this library has %d: "
                     "run one version of Tutti on all ranks",
                     rank, (int)arena->rank, (unsigned)arena->version, LAYOUT_VERSION);
}

static enum tutti_status arenas_join(struct peers *peers, const struct peers_config *config,
                                     int own_fd, int64_t deadline)
{
    struct joining joining = {peers, config};
    int fds[NODE_RANKS];
    for (int r = 0; r < peers->size; r++)
        fds[r] = own_fd; /* every rank has one, whose number another rank does not need */
    return segments_exchange(peers, fds, arena_join, &joining, deadline);
}

/* Takes the channel, and connects it unless it is connected. */
static enum tutti_status connect_remote(struct peers *peers, const struct peers_config *config,
                                        enum tutti_status status, int64_t deadline)
{
    if (!config->connected) {
        struct channel_config channel = {
            .rank = config->rank,
            .size = config->size,
            .peers = config->remote,
            .addresses = config->addresses,
            .timeout_ms = deadline_left_ms(deadline),
            .interrupt = config->interrupt,
            .local_status = status,
        };
        memcpy(channel.nonce, config->nonce, sizeof channel.nonce);
        status = channel_open(config->channel, &channel);
    }
    peers->ranks.channel = *config->channel;
    *config->channel = NULL;
    if (status == TUTTI_OK)
        POINT("channel.opened");
    return status;
}

/* Every two ranks meet for the first time, as in a barrier of a subset: all have mapped all arenas.
 */
static enum tutti_status ranks_meet(struct peers *peers, const struct peers_config *config,
                                    int64_t deadline)
{
    const struct request request = {.timeout_ms = deadline_left_ms(deadline)};
    enum tutti_status status = TUTTI_OK;
    for (int r = peers->size; r-- > 0;) {
        POINT("open.meets");
        meeting_enter(peers, r, 0);
    }
    bell_ring_if_heard(peers);
    for (int r = 0; r < peers->size && status == TUTTI_OK; r++)
        status = wait_for(peers, r, &meeting_of(peers, r)->count, 1, &request);
    return status == TUTTI_ERR_PEER_DEAD ? why_dead(config, status) : status;
}

static void peers_init(struct peers *peers, const struct peers_config *config)
{
    peers->rank = config->rank;
    peers->size = config->size;
    peers->names = config->names;
    peers->ranks.remote = config->remote;
    peers->borrowed = config->borrowed;
    peers->ranks.sparse = config->arenas->sparse;
    peers->ranks.polls = config->oversubscribed ? 1 : WAIT_POLLS;
    peers->yields = config->oversubscribed ? YIELDS_OVERSUBSCRIBED : WAIT_YIELDS;
    peers->oversubscribed = config->oversubscribed;
    peers->arena_bytes =
        config->arenas->bytes ? config->arenas->bytes : sizeof(struct layout_arena);
    peers->faults.record = config->record;
    peers->faults.on_failure = config->on_failure;
    peers->faults.context = config->context;
    peers->faults.interrupt = config->interrupt;
    peers->same_core.ranks = rank_set_minus(rank_set_all(config->size), rank_set_of(config->rank));
}

void peers_part(struct peers *whole, size_t offset, size_t bytes, bool crowded, struct peers *part)
{
    part->rank = whole->rank;
    part->size = whole->size;
    part->names = whole->names;
    part->ranks = whole->ranks;
    part->ranks.polls = crowded ? 1 : WAIT_POLLS;
    part->yields = crowded ? YIELDS_OVERSUBSCRIBED : WAIT_YIELDS;
    part->oversubscribed = crowded;
    part->membarrier = whole->membarrier;
    part->borrowed = true;
    part->arena_bytes = bytes;
    part->operations = whole->operations;
    part->same_core.ranks = whole->same_core.ranks;
    part->whole = whole;
    for (int r = 0; r < whole->size; r++)
        part->arenas[r] = (struct layout_arena *)(void *)((char *)whole->arenas[r] + offset);
    part->own = part->arenas[part->rank];
    part->own->rank = part->rank;
    order_store_relaxed_u32(&part->faults.open, 1);
    part->part = whole->part;
    whole->part = part;
}

struct peers *peers_create(size_t bytes)
{
    bytes = (bytes + LAYOUT_LINE - 1) / LAYOUT_LINE * LAYOUT_LINE;
    struct peers *peers = aligned_alloc(LAYOUT_LINE, bytes);
    if (peers)
        memset(peers, 0, bytes);
    return peers;
}

void peers_free(struct peers *peers)
{
    free(peers);
}

static void give_up(struct peers *peers, const struct peers_config *config,
                    enum tutti_status status)
{
    interrupt_tell(config->interrupt, status);
    peers_close(peers);
}

enum tutti_status peers_open(const struct peers_config *config, struct peers *peers)
{
    const int64_t deadline = deadline_after(config->timeout_ms);
    int own_fd = -1;
    uint64_t id = 0;
    peers_init(peers, config);

    enum tutti_status status = arena_create(peers, &own_fd, &id);
    POINT("open.arena");
    if (!rank_set_empty(config->remote))
        status = connect_remote(peers, config, status, deadline);
    /* Threads look up each other's arenas after all ranks have made theirs. */
    if (config->shared)
        status =
            gather_agree(config->gather, status, &id, sizeof id, deadline_timeout_ms(deadline));
    if (status == TUTTI_OK)
        status = arenas_join(peers, config, own_fd, deadline);
    POINT("open.handles");
    fd_drop(&own_fd);
    if (status != TUTTI_OK) /* a peer may wait for this rank's descriptor */
        give_up(peers, config, status);

    if (config->connected && !config->gather->failed)
        status = status_agree(config->gather, status, deadline_timeout_ms(deadline));
    else if (status == TUTTI_OK)
        status = ranks_meet(peers, config, deadline);
    POINT("open.joined");
    if (status != TUTTI_OK)
        give_up(peers, config, status);
    return status;
}

/* From here on an abort writes into the arenas. An abort that came before, and after the opening's
 * last check, is reported here: at least one of the two threads sees the other's word. */
void peers_settle(struct peers *peers)
{
    POINT("open.settles");
    peers->faults.interrupt = NULL;
    order_store_release_u32(&peers->faults.open, 1); /* G1 pairs A7 */
    order_fence();
    if (order_load_relaxed_u32(&peers->faults.aborted))
        peers_abort(peers);
}

void peers_set_progress(struct peers *peers, int (*progress)(void *context), void *context)
{
    peers->progress = progress;
    peers->progress_context = context;
}

void peers_progress_often(struct peers *peers, const bool *soon)
{
    peers->progress_often = true;
    peers->progress_soon = soon;
    if (peers->ranks.polls > POLLS_OFTEN)
        peers->ranks.polls = POLLS_OFTEN;
}

void peers_close(struct peers *peers)
{
    if (!peers)
        return;
    if (peers->own) {
        order_store_release_u32(&peers->own->left, 1); /* F2 pairs A2 */
        POINT("close.left");
        bell_ring(peers);
        peers_copies_close(peers);
    }
    order_store_relaxed_u32(&peers->faults.open, 0);
    if (!peers->borrowed)
        channel_close(peers->ranks.channel);
    peers->ranks.channel = NULL;
    for (int r = 0; r < peers->size; r++) {
        if (peers->arenas[r])
            segments_leave(peers->arenas[r], peers->arena_bytes);
        peers->arenas[r] = NULL;
    }
    peers->own = NULL;
    peers->faults.interrupt = NULL;
}
