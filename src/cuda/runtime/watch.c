/* SPDX-License-Identifier: MIT */
/*
 * The watcher: one thread for each communicator. It carries events between the device and the hosts
 * of all ranks. Kernels read nothing of the host but the pinned page, and callers may make no call
 * for a long time.
 *
 * From device to hosts: the record of a kernel that failed becomes the fault of the host group,
 * which wakes the watchers of all ranks. From hosts to device: a fault or an abort of any rank ends
 * all waits (`stop`). A rank that has left or died ends the waits for that rank alone (`gone`);
 * operations for which that rank had done its part succeed. A death becomes a fault one look later,
 * so that a kernel that waits for that rank can report it first, with the operation's sequence.
 *
 * - device -> recorder and arena: for which rank a kernel waits, if the wait is long
 * (device_trace.c). A kernel knows only its own wait. From these words a time-out names the rank
 * that is late.
 *
 * The watcher looks every 20 ms, and at once when a bell rings. It ends when a fault stands, since
 * then there is nothing left to carry.
 */
#include "base/layout.h"
#include "base/order.h"
#include "cuda/runtime/group_internal.h"

static int64_t look(void *context)
{
    struct cuda_group *group = context;
    struct cpu_group *host = group->host;
    struct tutti_fault fault;
    struct rank_set left, dead;
    const bool failed = cuda_fault_read(group, &fault);
    /* A rank that has failed keeps the word that says for whom it waited. */
    if (!failed)
        cuda_device_trace_look(group);
    if (failed || cpu_group_check_peers(host, group->launch.rank, false, &fault)) {
        cpu_group_fail(host, &fault);
    } else {
        cpu_group_exited_peers(host, &left, &dead);
        /* Relaxed: a kernel that reads it looks at its own word once more, and what a rank had
         * stored before it was gone is stored. */
        order_store_relaxed_u32(&group->resources->host->gone,
                                cuda_rank_bits(rank_set_union(left, dead)));
        const int overdue = rank_set_next(rank_set_common(dead, group->dead), -1);
        group->dead = dead;
        if (overdue >= 0) {
            fault.status = TUTTI_ERR_PEER_DEAD;
            fault.peer = overdue;
            cpu_group_fail(host, &fault);
        }
    }
    if (!cpu_group_has_failed(host))
        return CUDA_WATCH_MS;
    cpu_group_status(host, &fault);
    cuda_stop(group, fault.status, fault.peer);
    return -1;
}

enum tutti_status cuda_watch_start(struct cuda_group *group)
{
    group->watcher.look = look;
    group->watcher.context = group;
    group->watcher.bell = &cpu_group_arena(group->host, group->launch.rank)->bell;
    return cuda_watcher_start(&group->watcher);
}
