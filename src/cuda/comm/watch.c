/* SPDX-License-Identifier: MIT */
/*
 * The watch of a communicator carries events between the device and the hosts of all ranks. Kernels
 * read nothing of the host but the pinned page, and callers may make no call for a long time.
 *
 * From device to hosts: the record of a kernel that failed becomes the fault of the peers,
 * which all ranks see. From hosts to device: a fault or an abort of any rank ends all waits
 * (`stop`). A rank that has left or died ends the waits for that rank alone (`gone`); operations
 * for which that rank had done its part succeed. The watch makes a death a fault one look later, so
 * that a kernel that waits for that rank can report it first, with the operation's sequence.
 *
 * From device to recorder and arena: for which rank a kernel waits, if the wait is long
 * (device_trace.c). A kernel knows only its own wait. From these words a time-out names the rank
 * that is late.
 */
#include "base/order.h"
#include "cuda/comm/group_internal.h"

static void look(void *context)
{
    struct cuda_group *group = context;
    struct peers *peers = group->peers;
    struct tutti_fault fault;
    struct rank_set left, dead;
    if (order_load_relaxed_u32(&group->stopping)) /* relaxed: nothing is left to carry */
        return;
    const bool failed = cuda_fault_read(group, &fault);
    /* A rank that has failed keeps the word that names the rank for which it waited. */
    if (!failed)
        cuda_device_trace_look(group);
    if (failed || peers_check(peers, -1, false, &fault)) {
        peers_fail(peers, &fault);
    } else {
        peers_exited(peers, &left, &dead);
        /* Relaxed: a kernel that reads this polls its own word once more, and the stores that a
         * rank made before it was gone have arrived. */
        order_store_relaxed_u32(&group->resources->host->gone,
                                cuda_rank_bits(rank_set_union(left, dead)));
        const int overdue = rank_set_next(rank_set_common(dead, group->dead), -1);
        group->dead = dead;
        if (overdue >= 0) {
            fault.status = TUTTI_ERR_PEER_DEAD;
            fault.peer = overdue;
            peers_fail(peers, &fault);
        }
    }
    if (peers_have_failed(peers)) {
        peers_status(peers, &fault);
        cuda_stop(group, fault.status, fault.peer);
    }
}

enum tutti_status cuda_watch_start(struct cuda_group *group)
{
    group->watch = (struct cuda_watch){.look = look, .context = group};
    return cuda_watch_add(&group->watch);
}
