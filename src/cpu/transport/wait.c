/* SPDX-License-Identifier: MIT */
#include "cpu/transport/wait.h"

#include "base/log.h"
#include "base/signature.h"
#include "base/text.h"
#include "base/wait.h"
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

enum tutti_status wait_mismatch(struct cpu_group *group, int peer,
                                const struct layout_header *header, const struct request *request)
{
    struct tutti_fault fault = fault_of(group, TUTTI_ERR_MISMATCH, peer, request);
    fault.seen = signature_unpack(header->signature, header->parameter);
    return cpu_group_fail(group, &fault);
}

/* Copies the header that a rank has under this number. Returns false if the rank has none yet or is
 * writing it. */
static bool header_read(const struct layout_header *header, uint32_t number,
                        struct layout_header *copy)
{
    if (order_load_acquire_u32(&header->number) != number) /* A1 pairs M1, X3 */
        return false;
    copy->signature = order_load_acquire_u64(&header->signature); /* X3a pairs X3 */
    copy->parameter = order_load_acquire_u32(&header->parameter);
    return copy->signature && order_load_relaxed_u32(&header->number) == number;
}

/* Whether the peer has entered the collective of this number. Copies its header from the peer's
 * announcement, or, for a collective of the lane PAIR, from the peer's log. */
static bool has_entered(const struct cpu_group *group, int peer, uint32_t number,
                        struct layout_header *header)
{
    for (uint32_t place = 0; place < LAYOUT_SMALL_MESSAGES; place++)
        if (header_read(announcement_place(group, peer, place), number, header))
            return true;
    return !group->ranks.sparse && header_read(log_entry(group, peer, number), number, header);
}

enum tutti_status wait_message_mismatch(struct cpu_group *group, int peer,
                                        const struct layout_message *message, uint64_t signature,
                                        const struct request *request)
{
    struct tutti_fault fault = fault_of(group, TUTTI_ERR_MISMATCH, peer, request);
    const uint64_t sent = message->order & ~LAYOUT_OFFER_ORDER;
    struct layout_header header = message->header;
    fault.expected = signature_unpack(signature, request->parameter);
    fault.seen = signature_unpack(header.signature, header.parameter);
    if (header.signature != signature || header.parameter != request->parameter)
        return cpu_group_fail(group, &fault);
    /* The ranks' calls differ from the earlier of the two operations on. */
    const bool is_early = sent > group->op.sequence;
    if (!is_early)
        fault.sequence = sent;
    if (has_entered(group, is_early ? peer : group->rank, (uint32_t)fault.sequence, &header))
        *(is_early ? &fault.seen : &fault.expected) =
            signature_unpack(header.signature, header.parameter);
    return cpu_group_fail(group, &fault);
}

/* Whether a rank has entered another operation, so that the peer never writes the word. In a
 * barrier of a subset: whether the peer has entered the next collective. In any other collective:
 * also whether the peer has entered a barrier of a subset. Returns false in a set-up, and in a send
 * or receive, where only the message is compared. */
static bool is_mismatch(struct cpu_group *group, int peer, const struct request *request,
                        struct tutti_fault *fault)
{
    const bool subset = group->op.lane == LANE_SUBSET;
    const uint32_t number = (uint32_t)group->op.sequence + subset;
    const uint32_t next = group->op.meetings[peer] + 1;
    const struct layout_meeting *meeting = &group->arenas[peer]->meetings[group->rank][next % 2];
    struct layout_header header;
    *fault = fault_of(group, TUTTI_ERR_MISMATCH, peer, request);
    if (group->op.lane == LANE_NONE ||
        (group->op.lane == LANE_PAIR && !rank_set_empty(request->subset)))
        return false;
    for (int r = 0; r < group->size; r++) {
        if (r == group->rank || (subset && r != peer) || !has_entered(group, r, number, &header) ||
            (header.signature == request->signature && header.parameter == request->parameter))
            continue;
        fault->peer = r;
        fault->seen = signature_unpack(header.signature, header.parameter);
        return true;
    }
    if (!subset && !has_entered(group, peer, number, &header) &&
        order_load_acquire_u32(&meeting->count) == next) { /* A1: B1 */
        fault->seen.collective = TUTTI_COLLECTIVE_BARRIER;
        fault->seen.parameter = meeting->subset;
        return true;
    }
    return false;
}

/* Return true if some rank exited before announcing this operation; the operation can then never
 * complete. The peer may know of this already and never write the word. */
static bool some_rank_exited(struct cpu_group *group, int peer, struct tutti_fault *fault)
{
    const uint32_t number = (uint32_t)group->op.sequence;
    struct layout_header header;
    struct rank_set left, dead;
    if (group->op.lane != LANE_ALL)
        return false;
    cpu_group_exited_peers(group, &left, &dead); /* before the announcements are read */
    const struct rank_set exited = rank_set_union(left, dead);
    for (int r = rank_set_next(exited, -1); r >= 0; r = rank_set_next(exited, r))
        if (!has_entered(group, r, number, &header) || !has_entered(group, peer, number, &header))
            return cpu_group_check_peers(group, r, true, fault);
    return false;
}

static bool has_arrived(void *context)
{
    const struct word_wait *wait = context;
    return order_load_acquire_u32(wait->word) == wait->value; /* A1 pairs the word's release */
}

static bool trouble_find(void *context, enum wait_depth depth)
{
    struct word_wait *wait = context;
    struct cpu_group *group = wait->group;
    if (depth == WAIT_ALL)
        cpu_group_awaits(group, wait->peer);
    return is_mismatch(group, wait->peer, wait->request, &wait->fault) ||
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
    struct layout_header header;
    for (int r = 0; r < group->size && group->op.lane == LANE_ALL; r++)
        if (r != group->rank && !has_entered(group, r, (uint32_t)group->op.sequence, &header))
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
        .poll = has_arrived,
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
