/* SPDX-License-Identifier: MIT */
/*
 * Faults of a group. The first fault of a rank is final. The thread that claims it writes it for
 * this process (F4) and into the arena for the peers (F1), then wakes all sleepers. The peers adopt
 * the fault when they next wait, so all ranks name the same cause. A fault of a later operation
 * does not disturb a waiter of an earlier one.
 *
 * A waiter checks whether the awaited rank lives, and every 20 ms whether all ranks live. No rank
 * ends an operation of the lane ALL before all ranks have announced it. So if a rank exited before
 * announcing it, the fault names that rank, even if the waiter waits for another one. The awaited
 * rank may know of the exit and never call again.
 */
#include "cpu/transport/group.h"

#include "base/error.h"
#include "base/invariant.h"
#include "base/log.h"
#include "base/point.h"
#include "base/record.h"
#include "base/signature.h"
#include "cpu/transport/bell.h"
#include "ipc/channel.h"

/* Packs a signature as headers have it. */
static uint64_t pack(const struct tutti_signature *signature)
{
    return signature_pack(signature->collective, signature->dtype,
                          (enum op_kind)(uintptr_t)signature->op, signature->algo,
                          signature->count);
}

/* Writes a fault into an arena or the recorder. */
static void arena_write_fault(struct layout_fault *out, const struct tutti_fault *fault)
{
    out->status = (int32_t)fault->status;
    out->rank = fault->rank;
    out->peer = fault->peer;
    out->sequence = fault->sequence;
    out->expected = pack(&fault->expected);
    out->seen = pack(&fault->seen);
    out->expected_parameter = fault->expected.parameter;
    out->seen_parameter = fault->seen.parameter;
    order_store_release_u32(&out->set, 1); /* F1 pairs A1 in arena_read_fault() */
}

static bool arena_read_fault(const struct layout_fault *in, struct tutti_fault *fault)
{
    if (!order_load_acquire_u32(&in->set)) /* A1 pairs F1 */
        return false;
    *fault = signature_unpack_fault(in);
    return true;
}

static enum tutti_status report(const struct tutti_fault *fault)
{
    char text[512];
    tutti_fault_format(fault, text, sizeof text);
    return error_set(fault->status, "%s", text);
}

enum tutti_status cpu_group_fail(struct cpu_group *group, const struct tutti_fault *fault)
{
    invariant(fault->status != TUTTI_OK && fault->peer >= 0 && fault->peer < group->size);
    if (order_exchange_u32(&group->faults.claimed, 1) == 0) {
        group->faults.fault = *fault;
        if (fault->sequence >= GATHERS_FROM) /* name the operation that would have come next */
            group->faults.fault.sequence = order_load_relaxed_u64(&group->op.before) + 1;
        fault = &group->faults.fault;
        if (!order_load_relaxed_u32(&group->faults.quit)) /* relaxed: carries nothing else */
            arena_write_fault(&group->own->fault, fault);
        if (group->faults.record)
            arena_write_fault(&group->faults.record->fault, fault);
        order_store_release_u32(&group->faults.failed, 1); /* F4 pairs A4 */
        bell_ring_all(group);
        if (group->faults.on_failure)
            group->faults.on_failure(group->faults.context);
        enum tutti_status status = report(fault);
        log_write(TUTTI_LOG_WARN, group->rank, "%s", tutti_last_error());
        return status;
    }
    while (!order_load_acquire_u32(&group->faults.failed)) /* A4: a few stores away */
        order_pause();
    return report(&group->faults.fault);
}

bool cpu_group_peer_alive(const struct cpu_group *group, int peer)
{
    return !rank_set_has(group->ranks.remote, peer) ||
           channel_peer_alive(group->ranks.channel, peer);
}

/* Whether `rank` has reported an abort, or a fault that also ends a wait for `peer`. A fault of a
 * later operation does not: the peer has done its part in this one. Exception: in the lane PAIR a
 * fault of the peer always ends the wait, because the peer sends no more messages. */
static bool peer_reported_fault(const struct cpu_group *group, int rank, int peer,
                                struct tutti_fault *fault)
{
    const struct layout_arena *arena = group->arenas[rank];
    struct tutti_fault theirs;
    if (rank == group->rank)
        return false;
    if (order_load_relaxed_u32(&arena->aborted)) {
        fault->status = TUTTI_ERR_ABORTED;
        fault->peer = rank;
        return true;
    }
    const bool ends_all = peer == group->rank || (rank == peer && group->op.lane == LANE_PAIR);
    if (!arena_read_fault(&arena->fault, &theirs) ||
        (!ends_all && (int64_t)(theirs.sequence - fault->sequence) > 0))
        return false;
    *fault = theirs;
    return true;
}

bool cpu_group_check_peers(struct cpu_group *group, int peer, bool life, struct tutti_fault *fault)
{
    *fault = (struct tutti_fault){
        .struct_size = sizeof *fault,
        .rank = group->rank,
        .peer = group->rank,
        .sequence = order_load_relaxed_u64(&group->op.sequence),
    };
    if (order_load_relaxed_u32(&group->faults.quit) &&
        order_load_acquire_u32(&group->faults.failed)) { /* A4 pairs F4 */
        *fault = group->faults.fault;
        return true;
    }
    if (order_load_relaxed_u32(&group->faults.aborted) ||
        order_load_relaxed_u32(&group->faults.quit) ||
        interrupt_ask(group->faults.interrupt) != TUTTI_OK) {
        fault->status = TUTTI_ERR_ABORTED;
        return true;
    }
    /* While the group opens, only a rank that has already opened it can report a fault. This rank
     * will soon have opened it, too; its first operation then reports the fault. */
    const bool opens = !order_load_relaxed_u32(&group->faults.open);
    for (int r = 0; r < group->size && !opens; r++)
        if (peer_reported_fault(group, r, peer, fault))
            return true;
    POINT("look.told");
    if (peer == group->rank ||
        (!order_load_acquire_u32(&group->arenas[peer]->left) && /* A2 pairs F2 */
         (!life || cpu_group_peer_alive(group, peer))))
        return false;
    /* The peer may have reported a fault and left since the check. */
    if (peer_reported_fault(group, peer, peer, fault))
        return true;
    fault->status = TUTTI_ERR_PEER_DEAD;
    fault->peer = peer;
    return true;
}

void cpu_group_exited_peers(struct cpu_group *group, struct rank_set *left, struct rank_set *dead)
{
    *left = *dead = rank_set_none;
    for (int r = 0; r < group->size; r++) {
        if (r == group->rank)
            continue;
        /* Check this before `left`: a rank sets `left` before its channel closes. */
        const bool alive = cpu_group_peer_alive(group, r);
        if (order_load_acquire_u32(&group->arenas[r]->left)) /* A2 pairs F2 */
            rank_set_add(left, r);
        else if (!alive)
            rank_set_add(dead, r);
    }
}

void cpu_group_abort(struct cpu_group *group)
{
    order_store_relaxed_u32(&group->faults.aborted, 1);
    order_fence(); /* between this word and the load of `open`; arenas_show() has the other fence */
    /* Until the group is open, this rank finds the word in its own waits. */
    if (!order_load_acquire_u32(&group->faults.open)) /* A7 pairs G1 */
        return;
    order_store_relaxed_u32(&group->own->aborted, 1);
    bell_ring_all(group);
}

void cpu_group_quit(struct cpu_group *group)
{
    if (order_exchange_u32(&group->faults.quit, 1) == 0)
        bell_ring_all(group); /* of the peers, too: this rank's thread sleeps on those */
}

enum tutti_status cpu_group_status(void *opaque, struct tutti_fault *fault)
{
    struct cpu_group *group = opaque;
    struct tutti_fault found;
    if (!order_load_acquire_u32(&group->faults.failed)) { /* A4 pairs F4 */
        if (!cpu_group_check_peers(group, group->rank, false, &found)) {
            struct rank_set left, dead;
            cpu_group_exited_peers(group, &left, &dead);
            if (rank_set_empty(dead))
                return TUTTI_OK;
            found.status = TUTTI_ERR_PEER_DEAD;
            found.peer = rank_set_next(dead, -1);
        }
        cpu_group_fail(group, &found);
    }
    if (fault)
        *fault = group->faults.fault;
    return report(&group->faults.fault);
}
