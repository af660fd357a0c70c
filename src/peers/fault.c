/* SPDX-License-Identifier: MIT */
/*
 * Faults. The first fault of a rank is final. The thread that claims it writes it for
 * this process (F4) and into the arena for the peers (F1), then wakes all sleepers. The peers adopt
 * the fault when they next wait, so all ranks name the same cause. A fault of a later operation
 * does not disturb a waiter of an earlier one.
 *
 * A waiter checks whether the awaited rank lives, and every 20 ms whether all ranks live. No rank
 * ends an operation of the lane ALL before all ranks have announced it. So if a rank exited before
 * announcing it, the fault names that rank, even if the waiter waits for another one. The awaited
 * rank may know of the exit and never call again.
 */
#include "base/error.h"
#include "base/invariant.h"
#include "base/log.h"
#include "base/point.h"
#include "base/record.h"
#include "base/signature.h"
#include "ipc/channel.h"
#include "peers/bell.h"

#include <inttypes.h>
#include <stdio.h>

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

/* The fault that stands, as users know its ranks and its operation. */
static struct tutti_fault fault_named(const struct peers *peers)
{
    struct tutti_fault fault = peers->faults.fault;
    if (!peers->names)
        return fault;
    fault.rank = name_of(peers, fault.rank);
    fault.peer = name_of(peers, fault.peer);
    fault.sequence = order_load_relaxed_u64(peers->names->sequence);
    return fault;
}

static enum tutti_status report(const struct peers *peers)
{
    const struct tutti_fault fault = fault_named(peers);
    const struct peers_names *names = peers->names;
    char text[512];
    tutti_fault_format(&fault, text, sizeof text);
    if (!names)
        return error_set(fault.status, "%s", text);
    if (fault.status == TUTTI_ERR_SYSTEM &&
        names->host_of[fault.rank] != names->host_of[fault.peer])
        snprintf(text, sizeof text,
                 "the fabric failed between rank %d and rank %d in operation %" PRIu64
                 ": the log of rank %d has the engine's error; create a new communicator",
                 fault.rank, fault.peer, fault.sequence, fault.rank);
    if (fault.rank == fault.peer)
        return error_set(fault.status, "%s (rank %d runs on %s)", text, fault.peer,
                         names->hosts[names->host_of[fault.peer]]);
    return error_set(fault.status, "%s (rank %d runs on %s, rank %d on %s)", text, fault.rank,
                     names->hosts[names->host_of[fault.rank]], fault.peer,
                     names->hosts[names->host_of[fault.peer]]);
}

enum tutti_status peers_fail(struct peers *peers, const struct tutti_fault *fault)
{
    invariant(fault->status != TUTTI_OK && fault->peer >= 0 &&
              (fault->peer < peers->size || (peers->names && fault->peer >= PEERS_ELSEWHERE)));
    if (order_exchange_u32(&peers->faults.claimed, 1) == 0) {
        peers->faults.fault = *fault;
        if (fault->sequence >= GATHER_SEQUENCE) /* name the operation that would have come next */
            peers->faults.fault.sequence = order_load_relaxed_u64(&peers->before) + 1;
        const struct tutti_fault named = fault_named(peers);
        if (!order_load_relaxed_u32(&peers->faults.quit)) /* relaxed: carries nothing else */
            arena_write_fault(&peers->own->fault, &peers->faults.fault);
        if (peers->faults.record)
            arena_write_fault(&peers->faults.record->fault, &named);
        order_store_release_u32(&peers->faults.failed, 1); /* F4 pairs A4 */
        bell_ring_all(peers);
        if (peers->faults.on_failure)
            peers->faults.on_failure(peers->faults.context);
        enum tutti_status status = report(peers);
        if (!peers->whole) /* the whole says it for its parts */
            log_write(TUTTI_LOG_WARN, name_of(peers, peers->rank), "%s", tutti_last_error());
        return status;
    }
    while (!order_load_acquire_u32(&peers->faults.failed)) /* A4: a few stores away */
        order_pause();
    return report(peers);
}

bool peers_alive(const struct peers *peers, int peer)
{
    return !rank_set_has(peers->ranks.remote, peer) ||
           channel_peer_alive(peers->ranks.channel, peer);
}

/* Whether `rank` has reported an abort, or a fault that also ends a wait for `peer`. A fault of a
 * later operation does not: the peer has done its part in this one. Exception: in the lane PAIR a
 * fault of the peer always ends the wait, because the peer sends no more messages. */
static bool peer_reported_fault(const struct peers *peers, int rank, int peer,
                                struct tutti_fault *fault)
{
    const struct layout_arena *arena = peers->arenas[rank];
    struct tutti_fault theirs;
    if (rank == peers->rank)
        return false;
    if (order_load_relaxed_u32(&arena->aborted)) {
        fault->status = TUTTI_ERR_ABORTED;
        fault->peer = rank;
        return true;
    }
    const bool ends_all = peer == peers->rank || (rank == peer && peers->lane == LANE_PAIR);
    if (!arena_read_fault(&arena->fault, &theirs) ||
        (!ends_all && (int64_t)(theirs.sequence - fault->sequence) > 0))
        return false;
    *fault = theirs;
    return true;
}

bool peers_check(struct peers *peers, int peer, bool life, struct tutti_fault *fault)
{
    if (peer < 0)
        peer = peers->rank;
    *fault = (struct tutti_fault){
        .struct_size = sizeof *fault,
        .rank = peers->rank,
        .peer = peers->rank,
        .sequence = order_load_relaxed_u64(&peers->sequence),
    };
    if (peers->whole && peers_check(peers->whole, peer, life, fault))
        return true;
    if (order_load_relaxed_u32(&peers->faults.quit) &&
        order_load_acquire_u32(&peers->faults.failed)) { /* A4 pairs F4 */
        *fault = peers->faults.fault;
        return true;
    }
    if (order_load_relaxed_u32(&peers->faults.aborted) ||
        order_load_relaxed_u32(&peers->faults.quit) ||
        interrupt_ask(peers->faults.interrupt) != TUTTI_OK) {
        fault->status = TUTTI_ERR_ABORTED;
        return true;
    }
    /* While the ranks open, only a rank that has already opened it can report a fault. This rank
     * will soon have opened it, too; its first operation then reports the fault. */
    const bool opens = !order_load_relaxed_u32(&peers->faults.open);
    for (int r = 0; r < peers->size && !opens; r++)
        if (peer_reported_fault(peers, r, peer, fault))
            return true;
    POINT("look.told");
    if (peer == peers->rank ||
        (!order_load_acquire_u32(&peers->arenas[peer]->left) && /* A2 pairs F2 */
         (!life || peers_alive(peers, peer))))
        return false;
    /* The peer may have reported a fault and left since the check. */
    if (peer_reported_fault(peers, peer, peer, fault))
        return true;
    fault->status = TUTTI_ERR_PEER_DEAD;
    fault->peer = peer;
    return true;
}

void peers_exited(const struct peers *peers, struct rank_set *left, struct rank_set *dead)
{
    *left = *dead = rank_set_none;
    peers = peers_whole(peers);
    for (int r = 0; r < peers->size; r++) {
        if (r == peers->rank)
            continue;
        /* Check this before `left`: a rank sets `left` before its channel closes. */
        const bool alive = peers_alive(peers, r);
        if (order_load_acquire_u32(&peers->arenas[r]->left)) /* A2 pairs F2 */
            rank_set_add(left, r);
        else if (!alive)
            rank_set_add(dead, r);
    }
}

struct rank_set peers_named(const struct peers *peers, struct rank_set ranks)
{
    struct rank_set named = rank_set_none;
    for (int r = rank_set_next(ranks, -1); r >= 0; r = rank_set_next(ranks, r))
        rank_set_add(&named, name_of(peers, r));
    return named;
}

void peers_abort(struct peers *peers)
{
    order_store_relaxed_u32(&peers->faults.aborted, 1);
    order_fence(); /* between this word and the load of `open`; peers_settle() has the other fence
                    */
    /* Until peers_settle(), this rank finds the word in its own waits. */
    if (!order_load_acquire_u32(&peers->faults.open)) /* A7 pairs G1 */
        return;
    order_store_relaxed_u32(&peers->own->aborted, 1);
    bell_ring_all(peers);
}

void peers_quit(struct peers *peers)
{
    if (order_exchange_u32(&peers->faults.quit, 1) == 0)
        bell_ring_all(peers); /* of the peers, too: this rank's thread sleeps on those */
}

enum tutti_status peers_status(void *opaque, struct tutti_fault *fault)
{
    struct peers *peers = opaque;
    struct tutti_fault found;
    if (!order_load_acquire_u32(&peers->faults.failed)) { /* A4 pairs F4 */
        if (!peers_check(peers, -1, false, &found)) {
            struct rank_set left, dead;
            peers_exited(peers, &left, &dead);
            if (rank_set_empty(dead))
                return TUTTI_OK;
            found.status = TUTTI_ERR_PEER_DEAD;
            found.peer = rank_set_next(dead, -1);
        }
        peers_fail(peers, &found);
    }
    if (fault)
        *fault = fault_named(peers);
    return report(peers);
}
