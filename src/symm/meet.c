/* SPDX-License-Identifier: MIT */
/*
 * The rendezvous of symmetric memory.
 *
 * Once per group: the ranks agree on a generation and a nonce (meet.h), exchange their identities
 * (version, host, user, process), and open a channel between the ranks of different processes.
 *
 * For each allocation:
 * 1. The ranks exchange an offer: size, kind of device, key of the segment in its process.
 * 2. A rank looks up the segments of ranks of its own process by key. It receives the descriptors
 *    of the segments of other processes and maps these. A device's memory is exported as a
 *    descriptor; ranks of one process pass the descriptor's number instead of a key.
 * 3. The ranks exchange whether step 2 succeeded. So no rank frees a segment that a peer still
 *    looks up.
 *
 * If the kinds of device or the sizes differ, all ranks notice after step 1 and the group stays
 * usable: the caller may repeat the rendezvous with another allocation. After any other failure the
 * ranks' exchanges no longer match, and the group stays failed.
 */
#include "bootstrap/meet.h"
#include "base/deadline.h"
#include "base/env.h"
#include "base/error.h"
#include "base/interrupt.h"
#include "base/order.h"
#include "base/point.h"
#include "base/text.h"
#include "base/wait.h"
#include "bootstrap/host.h"
#include "cpu/transport/local.h"
#include "ipc/channel.h"
#include "ipc/random.h"
#include "store/status_agree.h"
#include "store/store.h"
#include "symm/symm_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* What each rank states about its allocation, exchanged in each rendezvous. */
struct offer {
    uint64_t bytes;
    uint64_t id;         /* random; all ranks use rank 0's */
    uint64_t key[2];     /* of the segment, for ranks of the same process */
    int32_t device;      /* enum tutti_device */
    int32_t fd;          /* on CUDA: of the memory, for ranks of the same process */
    int32_t overlapping; /* TUTTI_ALLOW_OVERLAPPING_DEVICES is set */
    uint8_t uuid[CUDA_UUID_BYTES];
};

/* ---- the group ------------------------------------------------------------------------------ */

static enum tutti_status exchange_identities(struct tutti_symm_group *group,
                                             const struct host_identity *own, int64_t deadline)
{
    struct host_identity records[TUTTI_MAX_RANKS];
    const struct host_identities all = {records, sizeof *records, group->rank, group->world_size};
    enum tutti_status status = tutti_exchanger_all_gather(&group->exchanger, own, sizeof *own,
                                                          records, deadline_timeout_ms(deadline));
    if (status == TUTTI_OK)
        status = host_own_check(&all, own);
    if (status == TUTTI_OK)
        status = host_versions_compare(&all);
    if (status == TUTTI_OK)
        status = host_places_compare(&all);
    if (status != TUTTI_OK)
        return status;
    group->remote = host_remote_ranks(&all);
    /* Where ranks outnumber processors, a spinning waiter would occupy the core its peer needs. */
    group->spin = group->world_size > host_cores(&all) ? 0 : WAIT_POLLS;
    return TUTTI_OK;
}

static enum tutti_status meet_group(struct tutti_symm_group *group, tutti_store_t *store,
                                    int64_t deadline)
{
    char name[SYMM_NAME_BYTES + 8];
    struct host_identity own;
    struct meeting meeting;
    snprintf(name, sizeof name, "symm/%s", group->name);
    enum tutti_status status = host_identity_make(group->world_size, &own);
    if (status == TUTTI_OK)
        status = meet(store, name, group->rank, group->world_size, deadline_timeout_ms(deadline),
                      &meeting, NULL);
    if (status != TUTTI_OK)
        return status;
    memcpy(group->nonce, meeting.nonce, sizeof group->nonce);
    snprintf(group->prefix, sizeof group->prefix, "tutti/%s/%" PRId64, name, meeting.generation);
    group->exchanger = (struct tutti_exchanger){.struct_size = sizeof group->exchanger,
                                                .store = store,
                                                .prefix = group->prefix,
                                                .rank = group->rank,
                                                .size = group->world_size};
    status = exchange_identities(group, &own, deadline);
    POINT("symm.identities");
    /* All ranks decide alike: either every rank has a peer in another process, or no rank has. */
    if (status != TUTTI_OK || rank_set_empty(group->remote))
        return status;
    struct channel_config channel = {.rank = group->rank,
                                     .size = group->world_size,
                                     .peers = group->remote,
                                     .exchanger = &group->exchanger,
                                     .timeout_ms = deadline_left_ms(deadline)};
    memcpy(channel.nonce, group->nonce, sizeof channel.nonce);
    return channel_open(&channel, &group->channel);
}

/* ---- an allocation -------------------------------------------------------------------------- */

static enum tutti_status exchange_offers(struct symm_allocation *allocation, struct offer *all,
                                         int64_t deadline)
{
    struct tutti_symm_group *group = allocation->group;
    struct offer mine = {
        .bytes = allocation->bytes, .device = allocation->device, .fd = allocation->fd};
    memcpy(mine.uuid, allocation->uuid, sizeof mine.uuid);
    memcpy(mine.key, allocation->key, sizeof mine.key);
    bool overlapping = false;
    enum tutti_status status = env_bool("TUTTI_ALLOW_OVERLAPPING_DEVICES", &overlapping);
    mine.overlapping = overlapping;
    if (status == TUTTI_OK)
        status = random_fill(&mine.id, sizeof mine.id);
    if (status == TUTTI_OK)
        status = tutti_exchanger_all_gather(&group->exchanger, &mine, sizeof mine, all,
                                            deadline_timeout_ms(deadline));
    if (status == TUTTI_OK)
        allocation->id = all[0].id > LAYOUT_BOUNCE ? all[0].id : LAYOUT_BOUNCE + 1;
    return status;
}

/* Compare each rank with rank 0. So either all ranks find a difference or no rank does. */
static enum tutti_status compare_memory(const struct symm_allocation *allocation,
                                        const struct offer *all)
{
    static const char *const names[] = {
        [TUTTI_DEVICE_CPU] = "memory of the host",
        [TUTTI_DEVICE_CUDA] = "memory of a CUDA device",
    };
    const struct tutti_symm_group *group = allocation->group;
    const struct offer *mine = &all[group->rank];
    for (int r = 0; r < group->world_size; r++) {
        if (all[r].device == all[0].device && all[r].bytes == all[0].bytes)
            continue;
        const int other = mine->device != all[0].device || mine->bytes != all[0].bytes ? 0 : r;
        return error_set(TUTTI_ERR_MISMATCH,
                         "ranks disagree about the allocation: rank %d has %" PRIu64
                         " bytes in %s, rank %d has %" PRIu64
                         " in %s: call tutti_symm_rendezvous() for the allocations in the same "
                         "order, with the same size and kind of device, on all ranks",
                         group->rank, mine->bytes, names[allocation->device], other,
                         all[other].bytes, names[all[other].device == TUTTI_DEVICE_CUDA]);
    }
    return TUTTI_OK;
}

/* Two ranks must not share a device unless that is allowed: a kernel that waits for another kernel
 * on the same device may keep that one from running for a long time. */
static enum tutti_status compare_devices(const struct symm_allocation *allocation,
                                         const struct offer *all)
{
    const struct tutti_symm_group *group = allocation->group;
    int strict = 0;
    while (strict < group->world_size && all[strict].overlapping)
        strict++;
    if (strict == group->world_size || !allocation->cuda)
        return TUTTI_OK;
    for (int r = 0; r < group->world_size; r++)
        for (int other = 0; other < r; other++)
            if (memcmp(all[r].uuid, all[other].uuid, CUDA_UUID_BYTES) == 0)
                return error_set(TUTTI_ERR_DECLINED,
                                 "ranks %d and %d allocated on one device: give each rank its "
                                 "own device, or set TUTTI_ALLOW_OVERLAPPING_DEVICES on all ranks "
                                 "(rank %d has not set it)",
                                 other, r, strict);
    return TUTTI_OK;
}

/* fds[r]: the segment of a rank r of another process. */
static enum tutti_status map_host(struct symm_allocation *allocation, const struct offer *all,
                                  const int *fds)
{
    const struct tutti_symm_group *group = allocation->group;
    for (int r = 0; r < group->world_size; r++) {
        struct segment segment;
        if (symm_is_remote(group, r)) {
            enum tutti_status status = segment_map(fds[r], allocation->segment.bytes, &segment);
            if (status != TUTTI_OK)
                return error_context(status, "cannot map the segment of rank %d", r);
            allocation->buffers[r] = segment.base;
        } else if (r != group->rank) {
            allocation->buffers[r] = local_acquire((const uint8_t *)all[r].key, r);
            if (!allocation->buffers[r])
                return error_set(TUTTI_ERR_SYSTEM,
                                 "rank %d runs in this process but its buffer is not published "
                                 "there: look at that rank's error",
                                 r);
        }
    }
    return TUTTI_OK;
}

static enum tutti_status map_device(struct symm_allocation *allocation, const struct offer *all,
                                    const int *fds, int64_t deadline)
{
    struct tutti_symm_group *group = allocation->group;
    struct cuda_symm_places places;
    int joined[CUDA_RANKS];
    /* Within one process a descriptor's number is valid for all its threads. */
    for (int r = 0; r < group->world_size; r++)
        joined[r] = symm_is_remote(group, r) ? fds[r] : all[r].fd;
    enum tutti_status status = cuda_symm_join(allocation->cuda, joined, deadline, &places);
    /* A rank of this process reports its own end; only other processes need the watch. */
    if (status == TUTTI_OK && group->channel && !group->watch)
        status = cuda_symm_watch_open(group->channel, group->remote, &group->watch);
    if (status != TUTTI_OK)
        return status;
    if (group->watch)
        cuda_symm_watch_add(group->watch, allocation->cuda);
    memcpy(allocation->buffers, places.buffers, (size_t)group->world_size * sizeof(void *));
    allocation->device_buffers = places.device_buffers;
    allocation->device_pads = places.device_pads;
    return TUTTI_OK;
}

static enum tutti_status map_peers(struct symm_allocation *allocation, const struct offer *all,
                                   int64_t deadline)
{
    const struct tutti_symm_group *group = allocation->group;
    int fds[TUTTI_MAX_RANKS];
    enum tutti_status status = TUTTI_OK;
    memset(fds, -1, sizeof fds);
    if (group->channel)
        status = channel_all_gather_fds(group->channel, allocation->fd, fds,
                                        deadline_timeout_ms(deadline));
    if (status == TUTTI_OK)
        status = allocation->cuda ? map_device(allocation, all, fds, deadline)
                                  : map_host(allocation, all, fds);
    for (int r = 0; r < group->world_size; r++)
        if (fds[r] >= 0)
            close(fds[r]);
    return status;
}

/* Those that the ranks have left in the store by now. */
static void keys_delete(const struct tutti_symm_group *group, int64_t deadline)
{
    char name[SYMM_NAME_BYTES + 8], key[MEET_KEY_BYTES];
    snprintf(name, sizeof name, "symm/%s", group->name);
    meet_last_key(name, group->nonce, key);
    exchanger_end(&group->exchanger, key, deadline);
}

static enum tutti_status meet_allocation(struct symm_allocation *allocation, int64_t deadline,
                                         bool *usable)
{
    struct tutti_symm_group *group = allocation->group;
    struct offer all[TUTTI_MAX_RANKS];
    enum tutti_status status = exchange_offers(allocation, all, deadline);
    if (status != TUTTI_OK)
        return status;
    POINT("symm.offers");
    status = compare_memory(allocation, all);
    if (status == TUTTI_OK)
        status = compare_devices(allocation, all);
    *usable = status != TUTTI_OK;
    if (status != TUTTI_OK)
        return status;
    status = map_peers(allocation, all, deadline);
    POINT("symm.segments");
    status = status_agree(&group->exchanger, status, deadline_timeout_ms(deadline));
    if (status != TUTTI_OK)
        return status;
    keys_delete(group, deadline);

    for (int r = 0; r < group->world_size; r++)
        allocation->pads[r] =
            (uint32_t *)(void *)((char *)allocation->buffers[r] + allocation->pad_offset);
    close(allocation->fd);
    allocation->fd = -1;
    order_store_release_u32(&allocation->ready, 1); /* Y4 pairs Y4a */
    return TUTTI_OK;
}

/* ---- peers that have ended ------------------------------------------------------------------- */

/* After the group's first rendezvous its channel reports ended ranks of other processes. The
 * message names all of them: one rank may have failed only because another one ended first. */
static enum tutti_status check_peers(void *context)
{
    const struct tutti_symm_group *group = context;
    char names[300];
    struct rank_set ended = rank_set_none;
    for (int r = rank_set_next(group->remote, -1); r >= 0; r = rank_set_next(group->remote, r))
        if (!channel_peer_alive(group->channel, r))
            rank_set_add(&ended, r);
    if (rank_set_empty(ended))
        return TUTTI_OK;
    return error_set(TUTTI_ERR_PEER_DEAD,
                     "%s: the process ended or it destroyed its group: look at its log, and "
                     "register a new group on the remaining ranks",
                     text_ranks(ended, names, sizeof names));
}

enum tutti_status symm_meet(struct symm_allocation *allocation, int64_t timeout_ms)
{
    struct tutti_symm_group *group = allocation->group;
    int64_t deadline = deadline_after(timeout_ms ? timeout_ms : group->timeout_ms);
    const struct interrupt alive = {.ask_pointless = check_peers, .context = group};
    struct tutti_store store = store_bounded(group->store, deadline, NULL);
    if (pthread_mutex_trylock(&group->rendezvous_lock) != 0)
        return error_set(
            TUTTI_ERR_CONCURRENT,
            "tutti_symm_rendezvous: another thread is in a rendezvous of group \"%s\": "
            "make one call after the other, in the same order on all ranks",
            group->name);
    bool usable = false;
    enum tutti_status status = TUTTI_OK;
    if (allocation->ready)
        goto out; /* another thread has finished it since the caller looked */
    if (group->failed) {
        status = error_set(group->failed, "group \"%s\" has failed before: %s", group->name,
                           group->reason);
        goto out;
    }
    group->exchanger.store = &store; /* `store` lives only during this call: reset below */
    if (!group->met)
        status = meet_group(group, &store, deadline);
    group->met = true;
    if (group->channel)
        store.interrupt = &alive;
    if (status == TUTTI_OK)
        status = meet_allocation(allocation, deadline, &usable);
    if (status != TUTTI_OK) {
        status = error_context(status, "tutti_symm_rendezvous of group \"%s\"", group->name);
        if (!usable) {
            group->failed = status;
            snprintf(group->reason, sizeof group->reason, "%.*s", (int)sizeof group->reason - 1,
                     tutti_last_error());
        }
    }
out:
    group->exchanger.store = NULL;
    pthread_mutex_unlock(&group->rendezvous_lock);
    return status;
}
