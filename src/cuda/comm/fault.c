/* SPDX-License-Identifier: MIT */
/*
 * Faults of a communicator. A kernel that fails writes a record into the pinned page. This file
 * turns the record into the fault of the peers, which all ranks see. In the other direction,
 * a fault of the peers ends the waits of this rank's kernels.
 */
#include "base/error.h"
#include "base/order.h"
#include "base/signature.h"
#include "base/timeout_source.h"
#include "cuda/comm/group_internal.h"

#include <stdio.h>

void cuda_stop(struct cuda_group *group, enum tutti_status status, int peer)
{
    struct cuda_host *page = group->resources->host;
    if (order_exchange_u32(&group->stopping, 1))
        return;
    page->stop_peer = peer;
    order_store_release_u32(&page->stop, (uint32_t)status); /* K3 pairs the device's K3d */
}

void cuda_hosts_quit(struct cuda_group *group)
{
    if (!group->proxy)
        return;
    order_store_relaxed_u32(&group->quits, 1); /* the fences of the quit order it */
    peers_quit(group->beside ? group->beside : group->peers);
}

bool cuda_fault_read(const struct cuda_group *group, struct tutti_fault *fault)
{
    const struct cuda_host *page = group->resources->host;
    if (!order_load_acquire_u32(&page->failed)) /* K4a pairs the device's K4 */
        return false;
    const int first = group->many_hosts ? PEERS_ELSEWHERE : 0;
    *fault = (struct tutti_fault){
        .struct_size = sizeof *fault,
        .status = (enum tutti_status)page->status,
        .rank = first + group->launch.rank,
        .peer = page->status == TUTTI_ERR_TIMEOUT ? peers_late_rank(group->peers, page->peer)
                                                  : first + page->peer,
        .sequence = page->sequence,
        .expected = signature_unpack(page->signatures[0], page->parameters[0]),
        .seen = signature_unpack(page->signatures[1], page->parameters[1]),
    };
    if (fault->status == TUTTI_ERR_TIMEOUT && cuda_is_thread(group, fault->peer))
        fault->seen.parameter |= TIMEOUT_OF_THREAD;
    return true;
}

enum tutti_status cuda_group_status(void *opaque, struct tutti_fault *fault)
{
    struct cuda_group *group = opaque;
    struct tutti_fault found;
    if (cuda_fault_read(group, &found))
        peers_fail(group->peers, &found);
    const struct backend_hosts *hosts = &group->hosts;
    enum tutti_status status = group->many_hosts ? hosts->backend->status(hosts->group, fault)
                                                 : peers_status(group->peers, fault);
    /* A thread that stages may wait for a rank that has nothing to do with it. */
    if (status != TUTTI_OK)
        cuda_hosts_quit(group);
    return status;
}

bool cuda_group_has_failed(const struct cuda_group *group)
{
    return peers_have_failed(group->peers) ||
           order_load_relaxed_u32(&group->resources->host->failed);
}

/* A group that has failed or was aborted enqueues nothing more. */
enum tutti_status cuda_group_check(struct cuda_group *group)
{
    return __builtin_expect(cuda_group_has_failed(group), 0) ? cuda_group_status(group, NULL)
                                                             : TUTTI_OK;
}

enum tutti_status cuda_group_fail(struct cuda_group *group, enum tutti_status status,
                                  uint64_t sequence, const char *what)
{
    char why[300];
    const int rank = group->launch.rank + (group->many_hosts ? PEERS_ELSEWHERE : 0);
    const struct tutti_fault fault = {
        .struct_size = sizeof fault,
        .status = status,
        .rank = rank,
        .peer = rank,
        .sequence = sequence,
    };
    snprintf(why, sizeof why, "%s", tutti_last_error());
    status = peers_fail(group->peers, &fault);
    cuda_hosts_quit(group);
    return error_set(status, "%s; %s", why, what);
}

enum tutti_status cuda_launch_failed(struct cuda_group *group, enum tutti_status status,
                                     uint64_t sequence)
{
    char what[128];
    snprintf(what, sizeof what,
             "operation %llu is not enqueued on rank %d, so the communicator has failed on all "
             "ranks",
             (unsigned long long)sequence, group->launch.rank);
    return cuda_group_fail(group, status, sequence, what);
}
