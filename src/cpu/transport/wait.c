/* SPDX-License-Identifier: MIT */
#include "cpu/transport/wait.h"

#include "base/deadline.h"
#include "base/log.h"
#include "base/reminder.h"
#include "base/signature.h"
#include "base/text.h"
#include "cpu/transport/same_core.h"

#include <inttypes.h>
#include <sched.h>

enum { LOOK_EVERY = 64, LOOK_NS = 20000000, POLLS = 100 };

static struct tutti_fault fault_of(const struct cpu_group *group, enum tutti_status status,
                                   int peer, const struct request *request)
{
    return (struct tutti_fault){
        .struct_size = sizeof(struct tutti_fault),
        .status = status,
        .rank = group->rank,
        .peer = peer,
        .sequence = group->sequence,
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

/* The peer's announcement of that sequence, NULL if it has written none. */
static const struct layout_header *announcement_of(const struct cpu_group *group, int peer,
                                                   uint32_t sequence)
{
    const struct layout_header *header = wait_announcement(group, peer, sequence);
    return order_load_acquire_u32(&header->turn) == sequence ? header : NULL; /* A1 pairs M1 */
}

/* A peer that means another operation says so, and never writes the word that we wait for: in its
 * announcement, or, for a barrier of a subset, by entering its next meeting with us. */
static bool means_another(struct cpu_group *group, int peer, const struct request *request,
                          struct tutti_fault *fault)
{
    uint32_t sequence = (uint32_t)group->sequence, next = group->meetings[peer] + 1;
    const struct layout_meeting *meeting = &group->arenas[peer]->meetings[group->rank][next % 2];
    const struct layout_header *header = announcement_of(group, peer, sequence + !group->mailed);
    *fault = fault_of(group, TUTTI_ERR_MISMATCH, peer, request);
    if (header &&
        (header->signature != request->signature || header->parameter != request->parameter)) {
        fault->seen = signature_unpack(header->signature, header->parameter);
        return true;
    }
    if (!header && group->mailed && order_load_acquire_u32(&meeting->count) == next) { /* A1: B1 */
        fault->seen.collective = TUTTI_COLLECTIVE_BARRIER;
        fault->seen.parameter = meeting->subset;
        return true;
    }
    return false;
}

/* Whether a rank is gone without having done the operation, whomever we wait for: that one may know
 * of it by other means, and never call again. Nobody is through before all have announced it. */
static bool is_short(struct cpu_group *group, int peer, struct tutti_fault *fault)
{
    uint32_t sequence = (uint32_t)group->sequence;
    uint64_t left, dead;
    if (!group->mailed)
        return false;
    cpu_group_gone(group, &left, &dead); /* before what anybody has announced is read */
    for (uint64_t rest = left | dead; rest; rest &= rest - 1) {
        int rank = __builtin_ctzll(rest);
        if (!announcement_of(group, rank, sequence) || !announcement_of(group, peer, sequence))
            return cpu_group_look(group, rank, true, fault);
    }
    return false;
}

/* What a look is at but the word: the others' lives cost a system call each. */
enum look { LOOK_MEMORY, LOOK_LIFE, LOOK_LIVES };

static bool trouble(struct cpu_group *group, int peer, const struct request *request,
                    int64_t deadline, enum look look, struct tutti_fault *fault)
{
    if (means_another(group, peer, request, fault) ||
        cpu_group_look(group, peer, look != LOOK_MEMORY, fault) ||
        (look == LOOK_LIVES && is_short(group, peer, fault)))
        return true;
    if (!deadline_passed(deadline))
        return false;
    cpu_group_awaits(group, peer); /* it may not have been long in this wait */
    *fault = fault_of(group, TUTTI_ERR_TIMEOUT, cpu_group_culprit(group, peer), request);
    fault->seen.count = (uint64_t)request->timeout_ms & SIGNATURE_COUNT_MAX;
    fault->seen.parameter = (uint32_t)request->timeout_source;
    return true;
}

/* The other ranks that have not announced the operation; or the one that keeps the peer waiting. */
static uint64_t missing_of(const struct cpu_group *group, int peer)
{
    uint64_t missing = 0;
    for (int r = 0; r < group->size && group->mailed; r++)
        if (r != group->rank && !announcement_of(group, r, (uint32_t)group->sequence))
            missing |= UINT64_C(1) << r;
    return missing ? missing : UINT64_C(1) << cpu_group_culprit(group, peer);
}

/* Says in the log whom the rank waits for, if it has waited for long. */
static void wait_log(struct cpu_group *group, int peer, const struct request *request,
                     struct reminder *reminder, int64_t now)
{
    const struct tutti_signature expected =
        signature_unpack(request->signature, request->parameter);
    char ranks[300], what[96];
    const int waited_s = reminder_due(reminder, now);
    if (!waited_s)
        return;
    if (!order_load_relaxed_u32(&group->open))
        snprintf(what, sizeof what, "in the set-up");
    else if (expected.collective == TUTTI_COLLECTIVE_BARRIER && expected.parameter)
        snprintf(what, sizeof what, "in a barrier of some ranks");
    else
        snprintf(what, sizeof what, "in operation %" PRIu64 " (%s, %" PRIu64 " elements)",
                 group->sequence, tutti_collective_name(expected.collective), expected.count);
    log_write(TUTTI_LOG_WARN, group->rank, "rank %d has waited %d s %s for %s", group->rank,
              waited_s, what, text_ranks(missing_of(group, peer), ranks, sizeof ranks));
}

static enum tutti_status wait_long(struct cpu_group *group, int peer, const uint32_t *word,
                                   uint32_t value, const struct request *request)
{
    /* The time-out is the operation's: it counts from its first wait that is no short one. */
    if (!group->deadline)
        group->deadline = deadline_after(request->timeout_ms);
    int64_t deadline = group->deadline, now = deadline_now(), looked = now, surveyed = 0;
    struct reminder reminder = reminder_start(now);
    for (int turn = 0;; turn++) {
        if (order_load_acquire_u32(word) == value)
            return TUTTI_OK;

        /* Where others want the core too a yield may take milliseconds: the clock counts, not
         * the turns. */
        bool sleeps = turn >= group->yields;
        enum look look = sleeps || now - looked > LOOK_NS ? LOOK_LIFE : LOOK_MEMORY;
        struct tutti_fault fault;
        if (look == LOOK_LIFE)
            looked = now;
        if (look == LOOK_LIFE && now - surveyed > LOOK_NS) {
            look = LOOK_LIVES;
            surveyed = now;
            cpu_group_awaits(group, peer);
            wait_log(group, peer, request, &reminder, now);
        }
        if ((look != LOOK_MEMORY || turn % LOOK_EVERY == LOOK_EVERY - 1) &&
            trouble(group, peer, request, deadline, look, &fault)) {
            /* A peer that wrote the word and then left, or died, has done its part. */
            if (order_load_acquire_u32(word) == value)
                return TUTTI_OK;
            return cpu_group_fail(group, &fault);
        }
        if (sleeps)
            bell_sleep(group, peer, word, value, deadline_left_ms(deadline));
        else if (same_core_wanted(group, peer, word, value) || !wait_polls(word, value, POLLS))
            sched_yield();
        now = deadline_now();
        if (!sleeps)
            same_core_update(group, now);
    }
}

enum tutti_status wait_slowly(struct cpu_group *group, int peer, const uint32_t *word,
                              uint32_t value, const struct request *request)
{
    enum tutti_status status = wait_long(group, peer, word, value, request);
    if (order_load_relaxed_u32(&group->own->awaits))
        cpu_group_awaits_none(group);
    return status;
}

enum tutti_status wait_all_enter(struct cpu_group *group, const struct request *request)
{
    uint32_t sequence = (uint32_t)group->sequence;
    for (int r = 0; r < group->size; r++) {
        if (r == group->rank)
            continue;
        enum tutti_status status =
            wait_header(group, r, wait_announcement(group, r, sequence), sequence, request);
        if (status != TUTTI_OK)
            return status;
    }
    return TUTTI_OK;
}
