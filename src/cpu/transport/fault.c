/* SPDX-License-Identifier: MIT */
/*
 * Faults of a group. The first fault of a rank stands for good: the thread that claims it writes it
 * for this process (F4) and into the arena for the peers (F1). The peers take it over when they
 * next wait, so all ranks name the same cause. It wakes all sleepers. A fault of a later operation
 * does not disturb a waiter of an earlier one.
 *
 * A waiter checks the life of the rank that it waits for, and every 20 ms the lives of all. No rank
 * ends an operation before all have announced it. So a rank that exited without having announced
 * the operation is named even if the waiter waits for another rank, which may have heard of that
 * death and may never call again.
 */
#include "cpu/transport/group.h"

#include "base/error.h"
#include "base/log.h"
#include "base/point.h"
#include "base/record.h"
#include "base/signature.h"
#include "cpu/transport/bell.h"
#include "ipc/channel.h"

/* Signatures travel packed, as they do in headers. */
static uint64_t pack(const struct tutti_signature *signature)
{
    return signature_pack(signature->collective, signature->dtype,
                          (enum op_kind)(uintptr_t)signature->op, signature->algo,
                          signature->count);
}

/* In an arena, or in the recorder. */
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
    *fault = (struct tutti_fault){
        .struct_size = sizeof *fault,
        .status = (enum tutti_status)in->status,
        .rank = in->rank,
        .peer = in->peer,
        .sequence = in->sequence,
        .expected = signature_unpack(in->expected, in->expected_parameter),
        .seen = signature_unpack(in->seen, in->seen_parameter),
    };
    return true;
}

static enum tutti_status tell(const struct tutti_fault *fault)
{
    char text[512];
    tutti_fault_format(fault, text, sizeof text);
    return error_set(fault->status, "%s", text);
}

enum tutti_status cpu_group_fail(struct cpu_group *group, const struct tutti_fault *fault)
{
    if (order_exchange_u32(&group->claimed, 1) == 0) {
        group->fault = *fault;
        if (!order_load_relaxed_u32(&group->quit)) /* relaxed: nothing but itself, as `aborted` */
            arena_write_fault(&group->own->fault, fault);
        if (group->record)
            arena_write_fault(&group->record->fault, fault);
        order_store_release_u32(&group->failed, 1); /* F4 pairs A4 */
        bell_ring_all(group);
        if (group->on_failure)
            group->on_failure(group->context);
        enum tutti_status status = tell(fault);
        log_write(TUTTI_LOG_WARN, group->rank, "%s", tutti_last_error());
        return status;
    }
    while (!order_load_acquire_u32(&group->failed)) /* A4: the claimer is a few stores away */
        order_pause();
    return tell(&group->fault);
}

/* The kernel's word on a peer's life. */
static bool peer_alive(struct cpu_group *group, int peer)
{
    return !(group->remote >> peer & 1) || channel_peer_alive(group->channel, peer);
}

/* Whether another rank tells of an end that is one for a wait for the peer, too: a fault in a later
 * operation does not stand in its way. */
static bool is_told(const struct cpu_group *group, int rank, int peer, struct tutti_fault *fault)
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
    if (!arena_read_fault(&arena->fault, &theirs) ||
        (peer != group->rank && (int64_t)(theirs.sequence - fault->sequence) > 0))
        return false;
    *fault = theirs;
    return true;
}

bool cpu_group_look(struct cpu_group *group, int peer, bool life, struct tutti_fault *fault)
{
    *fault = (struct tutti_fault){
        .struct_size = sizeof *fault,
        .rank = group->rank,
        .peer = group->rank,
        .sequence = order_load_relaxed_u64(&group->sequence),
    };
    if (order_load_relaxed_u32(&group->quit) &&
        order_load_acquire_u32(&group->failed)) { /* A4 pairs F4 */
        *fault = group->fault;
        return true;
    }
    if (order_load_relaxed_u32(&group->aborted) || order_load_relaxed_u32(&group->quit) ||
        interrupt_ask(group->interrupt) != TUTTI_OK) {
        fault->status = TUTTI_ERR_ABORTED;
        return true;
    }
    /* While the group opens, only a rank with a complete group can tell of a fault, unless it has
     * left. This rank's group is about to be complete, too: its first operation reports the fault.
     */
    const bool opens = !order_load_relaxed_u32(&group->open);
    for (int r = 0; r < group->size && !opens; r++)
        if (is_told(group, r, peer, fault))
            return true;
    POINT("look.told");
    if (peer == group->rank ||
        (!order_load_acquire_u32(&group->arenas[peer]->left) && /* A2 pairs F2 */
         (!life || peer_alive(group, peer))))
        return false;
    /* It may have told why and gone since we looked. */
    if (is_told(group, peer, peer, fault))
        return true;
    fault->status = TUTTI_ERR_PEER_DEAD;
    fault->peer = peer;
    return true;
}

void cpu_group_gone(struct cpu_group *group, uint64_t *left, uint64_t *dead)
{
    *left = *dead = 0;
    for (int r = 0; r < group->size; r++) {
        if (r == group->rank)
            continue;
        bool alive = peer_alive(group, r); /* first: who leaves says so before its channel closes */
        if (order_load_acquire_u32(&group->arenas[r]->left)) /* A2 pairs F2 */
            *left |= UINT64_C(1) << r;
        else if (!alive)
            *dead |= UINT64_C(1) << r;
    }
}

void cpu_group_abort(struct cpu_group *group)
{
    order_store_relaxed_u32(&group->aborted, 1);
    order_fence(); /* between our word and the look at `open`, as there is at the opening's end */
    /* Before, the rank itself finds the word in its waits, and its arena may come and go. */
    if (!order_load_acquire_u32(&group->open)) /* A7 pairs G1 */
        return;
    order_store_relaxed_u32(&group->own->aborted, 1);
    bell_ring_all(group);
}

void cpu_group_quit(struct cpu_group *group)
{
    if (order_exchange_u32(&group->quit, 1) == 0)
        bell_ring_all(group); /* the peers' bells: it is on those that we sleep */
}

enum tutti_status cpu_group_status(struct cpu_group *group, struct tutti_fault *fault)
{
    struct tutti_fault found;
    if (!order_load_acquire_u32(&group->failed)) { /* A4 pairs F4 */
        if (!cpu_group_look(group, group->rank, false, &found)) {
            uint64_t left, dead;
            cpu_group_gone(group, &left, &dead);
            if (!dead)
                return TUTTI_OK;
            found.status = TUTTI_ERR_PEER_DEAD;
            found.peer = __builtin_ctzll(dead);
        }
        cpu_group_fail(group, &found);
    }
    if (fault)
        *fault = group->fault;
    return tell(&group->fault);
}
