/* SPDX-License-Identifier: MIT */
#include "cpu/transport/wait.h"

#include "base/log.h"
#include "base/signature.h"
#include "base/text.h"
#include "base/wait.h"
#include "coll/coll.h"
#include "cpu/transport/same_core.h"

#include <inttypes.h>

static struct tutti_fault fault_of(const struct cpu_group *group, enum tutti_status status,
                                   int peer, const struct request *request)
{
    return (struct tutti_fault){
        .struct_size = sizeof(struct tutti_fault),
        .status = status,
        .rank = group->rank,
        .peer = peer,
        .sequence = group->op.sequence,
        .expected = signature_unpack(request->signature, request->parameter),
    };
}

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
        !coll_varies(signature.collective))
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
    return !group->ranks.sparse && sequence &&
           log_read(log_entry(group, rank, sequence), called, &history) == sequence;
}

/* Whether a rank has entered the collective of this number, and what it is: from the rank's
 * announcement, or, for a collective of the lane PAIR, from its log. */
static bool has_entered(const struct cpu_group *group, int rank, uint64_t sequence,
                        struct called *called)
{
    const bool own_is_pair = group->op.lane == LANE_PAIR && sequence == group->op.sequence;
    const uint32_t history = own_is_pair ? group->op.history_before : group->op.history;
    for (uint32_t place = 0; place < LAYOUT_SMALL_MESSAGES; place++) {
        const struct layout_header *header = announcement_place(group, rank, place);
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
    for (uint64_t i = 0; i < LAYOUT_LOG && !group->ranks.sparse; i++) {
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
    for (uint64_t i = 0; i < LAYOUT_LOG && !group->ranks.sparse; i++) {
        struct called own, theirs;
        uint32_t history;
        const uint64_t sequence = log_read(log_entry(group, group->rank, i), &own, &history);
        if (sequence >= first || !is_logged(group, peer, sequence, &theirs) ||
            (own.signature == theirs.signature && own.parameter == theirs.parameter))
            continue;
        first = fault->sequence = sequence;
        fault->expected = called_unpack(&own);
        fault->seen = called_unpack(&theirs);
    }
    return first < before;
}

/* A mismatch of this rank's operation with a peer's. `theirs` has come with the peer's history. */
static struct tutti_fault mismatch_of(const struct cpu_group *group, int peer,
                                      const struct called *theirs, const struct request *request)
{
    struct tutti_fault fault = fault_of(group, TUTTI_ERR_MISMATCH, peer, request);
    uint32_t history;
    const bool same_call = theirs->signature == request->signature;
    fault.seen = called_unpack(theirs);
    if (group->op.lane == LANE_SUBSET || logs_differ(group, peer, group->op.sequence, &fault) ||
        !same_call || group->op.lane != LANE_ALL)
        return fault;
    if (history_read(group, peer, group->op.sequence, &history) ? history != group->op.history
                                                                : !request->parameter)
        fault.expected = fault.seen = (struct tutti_signature){0};
    return fault;
}

enum tutti_status wait_mismatch(struct cpu_group *group, int peer, uint64_t signature,
                                uint32_t parameter, const struct request *request)
{
    const struct called theirs = {signature, parameter};
    struct tutti_fault fault = mismatch_of(group, peer, &theirs, request);
    if (group->op.lane == LANE_SUBSET)
        fault.seen.parameter = parameter;
    return cpu_group_fail(group, &fault);
}

enum tutti_status wait_message_mismatch(struct cpu_group *group, int peer,
                                        const struct layout_message *message, uint64_t signature,
                                        const struct request *request)
{
    struct tutti_fault fault = fault_of(group, TUTTI_ERR_MISMATCH, peer, request);
    const uint64_t order = message->order & ~LAYOUT_OFFER_ORDER;
    const uint64_t own = group->op.sequence;
    fault.expected = signature_unpack(signature, request->parameter);
    fault.seen = signature_unpack(message->header.signature, message->header.parameter);
    const bool same_call =
        message->header.signature == signature && message->header.parameter == request->parameter;
    if (!rank_set_empty(request->subset) || !(order & LAYOUT_COLLECTIVE_ORDER))
        return cpu_group_fail(group, &fault); /* a send on one side, or on both */
    /* The ranks' calls differ from the earlier of the two operations on, or from an earlier one. */
    const uint64_t sent = sequence_of_order(group, order), first = sent < own ? sent : own;
    if (logs_differ(group, peer, first, &fault))
        return cpu_group_fail(group, &fault);
    fault.sequence = first;
    if (sent > own)
        fault.seen = called_by(group, peer, own);
    else if (sent < own)
        fault.expected = called_by(group, group->rank, sent);
    else if (same_call)
        fault.expected = fault.seen = (struct tutti_signature){0};
    return cpu_group_fail(group, &fault);
}

/* Whether a peer has entered a collective of the lane PAIR behind this number. */
static bool has_passed(const struct cpu_group *group, int peer, uint64_t sequence)
{
    for (uint64_t i = 0; i < LAYOUT_LOG && !group->ranks.sparse; i++)
        if (order_load_acquire_u64(&log_entry(group, peer, i)->sequence) > sequence) /* X3a: X3 */
            return true;
    return false;
}

static bool has_arrived(const struct word_wait *wait)
{
    return order_load_acquire_u32(wait->word) == wait->value; /* A1 pairs the word's release */
}

/* Whether a rank has entered another operation, so that the peer never writes the word. In a
 * barrier of a subset: whether the peer has entered the next collective. In any other collective:
 * also whether the peer has passed this collective without writing the word, or has entered a
 * barrier of a subset. Returns false in a set-up, and in a send or receive, where only the message
 * is compared. */
static bool is_mismatch(struct word_wait *wait)
{
    struct cpu_group *group = wait->group;
    const struct request *request = wait->request;
    const int peer = wait->peer;
    const bool subset = group->op.lane == LANE_SUBSET;
    const uint64_t sequence = group->op.sequence + subset;
    const uint32_t next = group->op.meetings[peer] + 1;
    const struct layout_meeting *meeting = &group->arenas[peer]->meetings[group->rank][next % 2];
    struct called called = {0};
    if (group->op.lane == LANE_NONE ||
        (group->op.lane == LANE_PAIR && !rank_set_empty(request->subset)))
        return false;
    for (int r = 0; r < group->size; r++) {
        if (r == group->rank || (subset && r != peer) ||
            !has_entered(group, r, sequence, &called) ||
            (called.signature == request->signature && called.parameter == request->parameter))
            continue;
        wait->fault = mismatch_of(group, r, &called, request);
        return true;
    }
    if (subset)
        return false;
    if (has_passed(group, peer, sequence) && !has_arrived(wait)) {
        called = (struct called){0};
        wait->fault = mismatch_of(group, peer, &called, request);
        return true;
    }
    if (!has_entered(group, peer, sequence, &called) &&
        order_load_acquire_u32(&meeting->count) == next) { /* A1: B1 */
        wait->fault = fault_of(group, TUTTI_ERR_MISMATCH, peer, request);
        wait->fault.seen.collective = TUTTI_COLLECTIVE_BARRIER;
        wait->fault.seen.parameter = meeting->subset;
        return true;
    }
    return false;
}

/* Return true if some rank exited before announcing this operation; the operation can then never
 * complete. The peer may know of this already and never write the word. */
static bool some_rank_exited(struct cpu_group *group, int peer, struct tutti_fault *fault)
{
    const uint64_t sequence = group->op.sequence;
    struct called called;
    struct rank_set left, dead;
    if (group->op.lane != LANE_ALL)
        return false;
    cpu_group_exited_peers(group, &left, &dead); /* before the announcements are read */
    const struct rank_set exited = rank_set_union(left, dead);
    for (int r = rank_set_next(exited, -1); r >= 0; r = rank_set_next(exited, r))
        if (!has_entered(group, r, sequence, &called) ||
            !has_entered(group, peer, sequence, &called))
            return cpu_group_check_peers(group, r, true, fault);
    return false;
}

static bool poll(void *context)
{
    return has_arrived(context);
}

static bool trouble_find(void *context, enum wait_depth depth)
{
    struct word_wait *wait = context;
    struct cpu_group *group = wait->group;
    if (depth == WAIT_ALL)
        cpu_group_awaits(group, wait->peer);
    return is_mismatch(wait) ||
           cpu_group_check_peers(group, wait->peer, depth != WAIT_MEMORY, &wait->fault) ||
           (depth == WAIT_ALL && some_rank_exited(group, wait->peer, &wait->fault));
}

static struct tutti_fault timeout_fault(const struct word_wait *wait)
{
    struct cpu_group *group = wait->group;
    cpu_group_awaits(group, wait->peer); /* this wait may not have looked at all ranks yet */
    struct tutti_fault fault =
        fault_of(group, TUTTI_ERR_TIMEOUT, cpu_group_late_rank(group, wait->peer), wait->request);
    fault.seen.count = (uint64_t)wait->request->timeout_ms & SIGNATURE_COUNT_MAX;
    fault.seen.parameter = (uint32_t)wait->request->timeout_source;
    return fault;
}

/* The ranks that have not announced the operation. If all have, the rank for which the peer
 * waits. */
static struct rank_set missing_of(const struct cpu_group *group, int peer)
{
    struct rank_set missing = rank_set_none;
    struct called called;
    for (int r = 0; r < group->size && group->op.lane == LANE_ALL; r++)
        if (r != group->rank && !has_entered(group, r, group->op.sequence, &called))
            rank_set_add(&missing, r);
    return rank_set_empty(missing) ? rank_set_of(cpu_group_late_rank(group, peer)) : missing;
}

void wait_remind(void *context, int waited_s)
{
    const struct word_wait *wait = context;
    const struct cpu_group *group = wait->group;
    const struct tutti_signature expected =
        signature_unpack(wait->request->signature, wait->request->parameter);
    char ranks[300], what[96];
    if (!order_load_relaxed_u32(&group->faults.open))
        snprintf(what, sizeof what, "in the set-up");
    else if (expected.collective == TUTTI_COLLECTIVE_BARRIER && expected.parameter)
        snprintf(what, sizeof what, "in a barrier of some ranks");
    else if (expected.count == SIGNATURE_COUNT_VARIES)
        snprintf(what, sizeof what, "in operation %" PRIu64 " (%s)", group->op.sequence,
                 tutti_collective_name(expected.collective));
    else
        snprintf(what, sizeof what, "in operation %" PRIu64 " (%s, %" PRIu64 " elements)",
                 group->op.sequence, tutti_collective_name(expected.collective), expected.count);
    log_write(TUTTI_LOG_WARN, group->rank, "rank %d has waited %d s %s for %s", group->rank,
              waited_s, what, text_ranks(missing_of(group, wait->peer), ranks, sizeof ranks));
}

static bool yields_at_once(void *context, int64_t now)
{
    const struct word_wait *wait = context;
    same_core_update(wait->group, now);
    return same_core_wanted(wait->group, wait->peer, wait->word, wait->value);
}

static void sleep_on_bell(void *context, int64_t ms)
{
    const struct word_wait *wait = context;
    bell_sleep(wait->group, wait->peer, wait->word, wait->value, ms);
}

/* The application's progress function has ended the wait. What this rank has published cannot be
 * taken back, so the communicator ends on all ranks. */
static enum tutti_status cancelled(struct cpu_group *group)
{
    cpu_group_abort(group);
    return cpu_group_status(group, NULL);
}

bool wait_look(struct word_wait *wait, enum wait_depth depth, bool late)
{
    if (trouble_find(wait, depth))
        return true;
    if (late)
        wait->fault = timeout_fault(wait);
    return late;
}

enum tutti_status wait_slowly(struct cpu_group *group, int peer, const uint32_t *word,
                              uint32_t value, const struct request *request)
{
    struct word_wait wait = {
        .group = group, .peer = peer, .value = value, .word = word, .request = request};
    const struct waiter waiter = {
        .poll = poll,
        .look = trouble_find,
        .yields_at_once = yields_at_once,
        .bell = sleep_on_bell,
        .remind = wait_remind,
        .context = &wait,
        .progress = group->progress,
        .progress_context = group->progress_context,
        .deadline = &group->op.deadline, /* of the operation */
        .timeout_ms = request->timeout_ms,
        .yields = group->yields,
    };
    enum tutti_status status = TUTTI_OK;
    switch (waiter_run(&waiter)) {
    case WAIT_DONE:
        break;
    case WAIT_TROUBLE:
        status = cpu_group_fail(group, &wait.fault);
        break;
    case WAIT_LATE:
        wait.fault = timeout_fault(&wait);
        status = cpu_group_fail(group, &wait.fault);
        break;
    case WAIT_CANCELLED:
        status = cancelled(group);
        break;
    }
    if (order_load_relaxed_u32(&group->own->awaits))
        cpu_group_awaits_none(group);
    return status;
}
