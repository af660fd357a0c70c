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
#include "base/order.h"
#include "cpu/transport/bell.h"
#include "cuda/runtime/group_internal.h"

/* Looks once. Returns true once a fault stands, which `stop` then carries. */
static bool carry(struct cuda_group *group)
{
    struct cpu_group *host = group->host;
    struct tutti_fault fault;
    uint64_t left, dead;
    const bool failed = cuda_fault_read(group, &fault);
    /* A rank that has failed keeps the word that says for whom it waited. */
    if (!failed)
        cuda_device_trace_look(group);
    if (failed || cpu_group_check_peers(host, host->rank, false, &fault)) {
        cpu_group_fail(host, &fault);
    } else {
        cpu_group_exited_peers(host, &left, &dead);
        /* Relaxed: a kernel that reads it looks at its own word once more, and what a rank had
         * stored before it was gone is stored. */
        order_store_relaxed_u32(&group->resources->host->gone, (uint32_t)(left | dead));
        uint64_t overdue = dead & group->dead;
        group->dead = dead;
        if (overdue) {
            fault.status = TUTTI_ERR_PEER_DEAD;
            fault.peer = __builtin_ctzll(overdue);
            cpu_group_fail(host, &fault);
        }
    }
    if (!order_load_acquire_u32(&host->faults.failed)) /* A4 pairs F4 */
        return false;
    cuda_stop(group, host->faults.fault.status, host->faults.fault.peer);
    return true;
}

static bool poll(void *context)
{
    struct cuda_group *group = context;
    uint32_t bell = order_load_acquire_u32(&group->host->own->bell); /* A5 pairs W1 */
    if (cuda_watcher_quits(&group->watcher) || carry(group))
        return false;
    bell_nap(group->host, bell, CUDA_WATCH_MS);
    return true;
}

static void wake(void *context)
{
    const struct cuda_group *group = context;
    bell_ring(group->host);
}

enum tutti_status cuda_watch_start(struct cuda_group *group)
{
    group->watcher.poll = poll;
    group->watcher.wake = wake;
    group->watcher.context = group;
    return cuda_watcher_start(&group->watcher);
}

void cuda_watch_stop(struct cuda_group *group)
{
    cuda_watcher_stop(&group->watcher);
}
