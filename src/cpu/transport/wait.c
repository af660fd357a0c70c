/* SPDX-License-Identifier: MIT */
#include "cpu/transport/wait.h"

#include "base/signature.h"
#include "coll/coll.h"

/* ---- which collectives the ranks have called ------------------------------------------------- */

/* What a rank has called. The parameter is right if the rank has the same history. */
struct called {
    uint64_t signature;
    uint32_t parameter;
};

/* Without the parameter of a collective that has none, which may come from another history. */
static struct tutti_signature called_unpack(const struct called *called)
{
    struct tutti_signature signature = signature_unpack(called->signature, called->parameter);
    if (signature.op != TUTTI_PREMUL_SUM && !coll_is_rooted(signature.collective) &&
        !coll_varies(signature.collective) &&
        signature.collective != TUTTI_COLLECTIVE_ALL_REDUCE_RMS_NORM)
        signature.parameter = 0;
    return signature;
}

/* Copies an entry of a rank's log. Returns its number; 0 if it is empty or being written. */
static uint64_t log_read(const struct layout_logged *entry, struct called *called,
                         uint32_t *history)
{
    const uint64_t sequence = order_load_acquire_u64(&entry->sequence); /* X3a, these: pair X3 */
    called->signature = order_load_acquire_u64(&entry->signature);
    called->parameter = order_load_acquire_u32(&entry->parameter);
    *history = order_load_acquire_u32(&entry->history);
    return order_load_relaxed_u64(&entry->sequence) == sequence ? sequence : 0;
}

static bool is_logged(const struct cpu_group *group, int rank, uint64_t sequence,
                      struct called *called)
{
    uint32_t history;
    return !group->peers.ranks.sparse && sequence &&
           log_read(log_entry(group, rank, sequence), called, &history) == sequence;
}

/* Whether a rank has entered the collective of this number, and what it is: from the rank's
 * announcement, or, for a collective of the lane PAIR, from its log. */
static bool has_entered(const struct cpu_group *group, int rank, uint64_t sequence,
                        struct called *called)
{
    const bool own_is_pair = group->peers.lane == LANE_PAIR && sequence == group->peers.sequence;
    const uint32_t history = own_is_pair ? group->counts.history_before : group->counts.history;
    for (uint32_t place = 0; place < LAYOUT_SMALL_MESSAGES; place++) {
        const struct layout_header *header = announcement_place(&group->peers, rank, place);
        if (order_load_acquire_u32(&header->number) != (uint32_t)sequence) /* A1 pairs M1 */
            continue;
        called->signature = order_load_acquire_u64(&header->signature);
        called->parameter = order_load_acquire_u32(&header->parameter) ^ history;
        return called->signature && order_load_relaxed_u32(&header->number) == (uint32_t)sequence;
    }
    return is_logged(group, rank, sequence, called);
}

/* What a rank has called under this number; zeros if that is not known any more. */
static struct tutti_signature called_by(const struct cpu_group *group, int rank, uint64_t sequence)
{
    struct called called;
    return has_entered(group, rank, sequence, &called) ? called_unpack(&called)
                                                       : (struct tutti_signature){0};
}

/* The history of a rank before its collective of this number. Returns false if that is not known
 * any more. */
static bool history_read(const struct cpu_group *group, int rank, uint64_t before,
                         uint32_t *history)
{
    uint64_t newest = 0;
    *history = 0;
    for (uint64_t i = 0; i < LAYOUT_LOG && !group->peers.ranks.sparse; i++) {
        struct called called;
        uint32_t of_entry;
        const uint64_t sequence = log_read(log_entry(group, rank, i), &called, &of_entry);
        if (sequence >= before)
            return false;
        if (sequence > newest) {
            newest = sequence;
            *history = of_entry;
        }
    }
    return true;
}

/* Whether the logs of this rank and of a peer show that the two have called different collectives
 * before this number. The fault is then the first of these that is known. */
static bool logs_differ(const struct cpu_group *group, int peer, uint64_t before,
                        struct tutti_fault *fault)
{
    uint64_t first = before;
    for (uint64_t i = 0; i < LAYOUT_LOG && !group->peers.ranks.sparse; i++) {
        struct called own, theirs;
        uint32_t history;
        const uint64_t sequence = log_read(log_entry(group, group->peers.rank, i), &own, &history);
        if (sequence >= first || !is_logged(group, peer, sequence, &theirs) ||
            (own.signature == theirs.signature && own.parameter == theirs.parameter))
            continue;
        first = fault->sequence = sequence;
        fault->expected = called_unpack(&own);
        fault->seen = called_unpack(&theirs);
    }
    return first < before;
}

/* The group whose logs have all collectives. */
static const struct cpu_group *logging(const struct cpu_group *group)
{
    return cpu_group_of(peers_whole(&group->peers));
}

/* A mismatch of this rank's operation with a peer's. `theirs` has come with the peer's history. */
static struct tutti_fault mismatch_of(const struct cpu_group *group, int peer,
                                      const struct called *theirs, const struct request *request)
{
    struct tutti_fault fault = wait_fault(&group->peers, TUTTI_ERR_MISMATCH, peer, request);
    uint32_t history;
    const bool same_call = theirs->signature == request->signature;
    fault.seen = called_unpack(theirs);
    if (group->peers.lane == LANE_SUBSET ||
        logs_differ(logging(group), peer, group->peers.sequence, &fault) || !same_call ||
        group->peers.lane != LANE_ALL)
        return fault;
    if (history_read(logging(group), peer, group->peers.sequence, &history)
            ? history != group->counts.history
            : !request->parameter)
        fault.expected = fault.seen = (struct tutti_signature){0};
    return fault;
}

enum tutti_status wait_mismatch(struct cpu_group *group, int peer, uint64_t signature,
                                uint32_t parameter, const struct request *request)
{
    const struct called theirs = {signature, parameter};
    struct tutti_fault fault = mismatch_of(group, peer, &theirs, request);
    if (group->peers.lane == LANE_SUBSET)
        fault.seen.parameter = parameter;
    return peers_fail(&group->peers, &fault);
}

enum tutti_status wait_message_mismatch(struct cpu_group *group, int peer,
                                        const struct layout_message *message, uint64_t signature,
                                        const struct request *request)
{
    struct tutti_fault fault = wait_fault(&group->peers, TUTTI_ERR_MISMATCH, peer, request);
    const uint64_t order = message->order & ~LAYOUT_OFFER_ORDER;
    const uint64_t own = group->peers.sequence;
    fault.expected = signature_unpack(signature, request->parameter);
    fault.seen = signature_unpack(message->header.signature, message->header.parameter);
    const bool same_call =
        message->header.signature == signature && message->header.parameter == request->parameter;
    if (!rank_set_empty(request->subset) || !(order & LAYOUT_COLLECTIVE_ORDER))
        return peers_fail(&group->peers, &fault); /* a send on one side, or on both */
    /* The ranks' calls differ from the earlier of the two operations on, or from an earlier one. */
    const uint64_t sent = sequence_of_order(group, order), first = sent < own ? sent : own;
    if (logs_differ(logging(group), peer, first, &fault))
        return peers_fail(&group->peers, &fault);
    fault.sequence = first;
    if (sent > own)
        fault.seen = called_by(logging(group), peer, own);
    else if (sent < own)
        fault.expected = called_by(logging(group), group->peers.rank, sent);
    else if (same_call)
        fault.expected = fault.seen = (struct tutti_signature){0};
    return peers_fail(&group->peers, &fault);
}

/* Whether a peer has entered a collective of the lane PAIR behind this number. */
static bool has_passed(const struct cpu_group *group, int peer, uint64_t sequence)
{
    for (uint64_t i = 0; i < LAYOUT_LOG && !group->peers.ranks.sparse; i++)
        if (order_load_acquire_u64(&log_entry(group, peer, i)->sequence) > sequence) /* X3a: X3 */
            return true;
    return false;
}

/* Whether a rank has entered another operation, so that the peer never writes the word. In a
 * barrier of a subset: whether the peer has entered the next collective. In any other collective:
 * also whether the peer whose word is awaited has passed this collective without writing it, or has
 * entered a barrier of a subset. Returns false in a set-up, and in a send or receive, where only
 * the message is compared. */
static bool is_mismatch(struct peers_wait *wait)
{
    struct cpu_group *group = cpu_group_of(wait->peers);
    if (group->peers.whole) {
        struct peers_wait whole = *wait;
        whole.peers = group->peers.whole;
        whole.word = NULL; /* it is of this part */
        if (whole.peers->lane == LANE_ALL) {
            whole.word = &announcement_place(whole.peers, wait->peer,
                                             cpu_group_of(whole.peers)->counts.announcement)
                              ->number;
            whole.value = (uint32_t)whole.peers->sequence;
        }
        if (is_mismatch(&whole)) {
            wait->fault = whole.fault;
            return true;
        }
    }
    const struct request *request = wait->request;
    const int peer = wait->peer;
    const bool subset = group->peers.lane == LANE_SUBSET;
    const uint64_t sequence = group->peers.sequence + subset;
    const uint32_t next = group->peers.meetings[peer] + 1;
    const struct layout_meeting *meeting =
        &group->peers.arenas[peer]->meetings[group->peers.rank][next % 2];
    struct called called = {0};
    if (group->peers.lane == LANE_NONE ||
        (group->peers.lane == LANE_PAIR && !rank_set_empty(request->subset)))
        return false;
    for (int r = 0; r < group->peers.size; r++) {
        if (r == group->peers.rank || (subset && r != peer) ||
            !has_entered(group, r, sequence, &called) ||
            (called.signature == request->signature && called.parameter == request->parameter))
            continue;
        wait->fault = mismatch_of(group, r, &called, request);
        return true;
    }
    if (subset || !wait->word)
        return false;
    if (has_passed(group, peer, sequence) && order_load_acquire_u32(wait->word) != wait->value) {
        called = (struct called){0};
        wait->fault = mismatch_of(group, peer, &called, request);
        return true;
    }
    if (!has_entered(group, peer, sequence, &called) &&
        order_load_acquire_u32(&meeting->count) == next) { /* A1: B1 */
        wait->fault = wait_fault(&group->peers, TUTTI_ERR_MISMATCH, peer, request);
        wait->fault.seen.collective = TUTTI_COLLECTIVE_BARRIER;
        wait->fault.seen.parameter = meeting->subset;
        return true;
    }
    return false;
}

static bool is_entered(const struct peers *peers, int rank)
{
    struct called called;
    return has_entered((const struct cpu_group *)peers, rank, peers->sequence, &called);
}

const struct peers_operations cpu_operations = {.differs = is_mismatch, .entered = is_entered};
