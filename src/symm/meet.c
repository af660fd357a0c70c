/* SPDX-License-Identifier: MIT */
/*
 * The rendezvous of symmetric memory. In the first rendezvous of a group, the group's communicator
 * meets. Then for each allocation:
 * 1. The ranks exchange an offer: size, kind of device, id of the segment in its process.
 * 2. A rank looks up the segments of ranks of its own process by id. It receives the descriptors
 *    of the segments of other processes and maps these. A device's memory is exported as a
 *    descriptor; ranks of one process pass the descriptor's number instead of an id.
 * 3. The ranks exchange whether step 2 succeeded. So no rank frees a segment that a peer still
 *    looks up.
 *
 * If the kinds of device or the sizes differ, all ranks notice after step 1 and the group stays
 * usable: the caller may repeat the rendezvous with another allocation. After any other failure the
 * ranks' exchanges no longer match, and the group stays failed.
 */
#include "base/deadline.h"
#include "base/env.h"
#include "base/error.h"
#include "base/order.h"
#include "base/point.h"
#include "coll/coll.h"
#include "ipc/random.h"
#include "peers/segments.h"
#include "store/status_agree.h"
#include "symm/symm.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* What each rank states about its allocation, exchanged in each rendezvous. */
struct offer {
    uint64_t bytes;
    uint64_t id;         /* random; all ranks use rank 0's */
    uint64_t local;      /* allocation->id, for ranks of the same process */
    int32_t device;      /* enum tutti_device */
    int32_t fd;          /* on CUDA: of the memory, for ranks of the same process */
    int32_t overlapping; /* TUTTI_ALLOW_OVERLAPPING_DEVICES is set */
    uint8_t uuid[CUDA_UUID_BYTES];
};

static_assert(sizeof(struct offer) <= SYMM_OFFER_BYTES, "group->rows has room for it");

/* struct gather's run(). */
static enum tutti_status group_gather(void *context, const void *own, size_t bytes, void *all,
                                      int64_t timeout_ms)
{
    const struct tutti_symmetric_group *group = context;
    const struct coll_args args = coll_args_make(own, all, bytes, TUTTI_UINT8, NULL, 0);
    return comm_run(group->comm, TUTTI_COLLECTIVE_ALL_GATHER, &args, timeout_ms,
                    TUTTI_STREAM_DEFAULT);
}

static enum tutti_status exchange_offers(struct symm_allocation *allocation, struct gather *gather,
                                         struct offer *all, int64_t deadline)
{
    struct offer mine = {.bytes = allocation->region.bytes,
                         .local = allocation->id,
                         .device = allocation->device,
                         .fd = allocation->fd};
    bool overlapping = false;
    memcpy(mine.uuid, allocation->uuid, sizeof mine.uuid);
    enum tutti_status status = env_bool("TUTTI_ALLOW_OVERLAPPING_DEVICES", &overlapping);
    mine.overlapping = overlapping;
    if (status == TUTTI_OK)
        status = random_fill(&mine.id, sizeof mine.id);
    status = gather_agree(gather, status, &mine, sizeof mine, deadline_timeout_ms(deadline));
    if (status != TUTTI_OK)
        return status;
    for (int r = 0; r < gather->size; r++)
        gather_value(gather, r, &all[r], sizeof all[r]);
    allocation->region.id = all[0].id > LAYOUT_THIS_PROCESS ? all[0].id : LAYOUT_THIS_PROCESS + 1;
    return TUTTI_OK;
}

/* Compare each rank with rank 0. So either all ranks find a difference or no rank does. */
static enum tutti_status compare_memory(const struct symm_allocation *allocation,
                                        const struct offer *all)
{
    static const char *const names[] = {
        [TUTTI_DEVICE_CPU] = "memory of the host",
        [TUTTI_DEVICE_CUDA] = "memory of a CUDA device",
    };
    const struct tutti_symmetric_group *group = allocation->group;
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

/* Two ranks must not share a device unless the caller allows it: a kernel that waits for another
 * kernel on the same device may block the other one for a long time. */
static enum tutti_status compare_devices(const struct symm_allocation *allocation,
                                         const struct offer *all)
{
    const struct tutti_symmetric_group *group = allocation->group;
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

struct mapping {
    struct symm_allocation *allocation;
    const struct offer *offers;
    int64_t deadline;
};

static enum tutti_status map_peer(void *context, int rank, int fd)
{
    const struct mapping *self = context;
    struct symm_allocation *allocation = self->allocation;
    const size_t bytes = allocation->segment.bytes;
    if (allocation->cuda)
        return cuda_symm_map(allocation->cuda, rank, fd, self->deadline);
    enum tutti_status status =
        segments_join(allocation->group->comm->peers, rank, fd, self->offers[rank].local, bytes,
                      bytes, &allocation->buffers[rank]);
    return status == TUTTI_OK ? status
                              : error_context(status, "cannot map the segment of rank %d", rank);
}

static enum tutti_status map_peers(struct symm_allocation *allocation, const struct offer *offers,
                                   int64_t deadline)
{
    const struct tutti_symmetric_group *group = allocation->group;
    struct mapping mapping = {allocation, offers, deadline};
    int fds[NODE_RANKS];
    for (int r = 0; r < group->world_size; r++)
        fds[r] = offers[r].fd;
    enum tutti_status status =
        segments_exchange(group->comm->peers, fds, map_peer, &mapping, deadline);
    if (status == TUTTI_OK && allocation->cuda)
        status = cuda_symm_join(allocation->cuda, deadline, allocation->buffers,
                                &allocation->device_buffers, &allocation->device_pads);
    return status;
}

static enum tutti_status meet_allocation(struct symm_allocation *allocation, int64_t deadline,
                                         bool *usable)
{
    struct tutti_symmetric_group *group = allocation->group;
    struct gather gather = {.run = group_gather,
                            .context = group,
                            .rank = group->rank,
                            .size = group->world_size,
                            .rows = group->rows};
    struct offer all[NODE_RANKS];
    enum tutti_status status = exchange_offers(allocation, &gather, all, deadline);
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
    status = status_agree(&gather, status, deadline_timeout_ms(deadline));
    if (status != TUTTI_OK)
        return status;

    for (int r = 0; r < group->world_size; r++)
        allocation->pads[r] =
            (uint32_t *)(void *)((char *)allocation->buffers[r] + allocation->pad_offset);
    close(allocation->fd);
    allocation->fd = -1;
    order_store_release_u32(&allocation->region.ready, 1); /* Y4 pairs Y4a */
    return TUTTI_OK;
}

/* ---- a rendezvous ---------------------------------------------------------------------------- */

/* Rewrites the message of the communicator's fault for a group. Other failures have their
 * messages. */
static enum tutti_status explain(const struct tutti_symmetric_group *group,
                                 enum tutti_status status)
{
    struct tutti_fault fault;
    if (!peers_have_failed(group->comm->peers))
        return status;
    status = peers_status(group->comm->peers, &fault);
    if (status == TUTTI_ERR_PEER_DEAD)
        error_set(status,
                  "rank %d: the process ended or it destroyed its group: look at its log, and "
                  "register a new group on the remaining ranks",
                  fault.peer);
    if (status == TUTTI_ERR_TIMEOUT)
        error_set(status,
                  "rank %d did not come before the time-out: see whether it is late or stopped, "
                  "and register a new group",
                  fault.peer);
    return status;
}

enum tutti_status symm_meet(struct symm_allocation *allocation, int64_t timeout_ms)
{
    struct tutti_symmetric_group *group = allocation->group;
    if (!timeout_ms)
        timeout_ms = group->timeout_ms;
    const int64_t deadline = deadline_after(timeout_ms);
    if (pthread_mutex_trylock(&group->rendezvous_lock) != 0)
        return error_set(
            TUTTI_ERR_CONCURRENT,
            "tutti_symm_rendezvous: another thread is in a rendezvous of group \"%s\": "
            "make one call after the other, in the same order on all ranks",
            group->name);
    bool usable = false;
    enum tutti_status status = TUTTI_OK;
    if (allocation->region.ready)
        goto out; /* another thread has finished it since the caller looked */
    if (group->failed) {
        status = error_set(group->failed, "group \"%s\" has failed before: %s", group->name,
                           group->reason);
        goto out;
    }
    group->comm->timeout_ms = timeout_ms;
    status = tutti_comm_rendezvous(group->comm); /* of the first rendezvous, if it met then */
    if (status == TUTTI_OK)
        status = meet_allocation(allocation, deadline, &usable);
    if (status != TUTTI_OK && !usable) {
        status = error_context(explain(group, status), "tutti_symm_rendezvous of group \"%s\"",
                               group->name);
        group->failed = status;
        snprintf(group->reason, sizeof group->reason, "%.*s", (int)sizeof group->reason - 1,
                 tutti_last_error());
    } else if (status != TUTTI_OK) {
        status = error_context(status, "tutti_symm_rendezvous of group \"%s\"", group->name);
    }
out:
    pthread_mutex_unlock(&group->rendezvous_lock);
    return status;
}
