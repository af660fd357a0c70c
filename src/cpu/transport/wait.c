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

enum { CHECK_EVERY = 64, CHECK_NS = 20000000, POLLS = 100 };

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

/* The peer's announcement of that sequence; NULL if the peer has not written one. */
static const struct layout_header *announcement_of(const struct cpu_group *group, int peer,
                                                   uint32_t sequence)
{
    const struct layout_header *header = announcement_place(group, peer, sequence);
    return order_load_acquire_u32(&header->number) == sequence ? header : NULL; /* A1 pairs M1 */
}

/* Whether the peer has entered another operation, so that it never writes the word. The peer's
 * announcement shows this, or, for a barrier of a subset, its entry into the next meeting. */
static bool is_mismatch(struct cpu_group *group, int peer, const struct request *request,
                        struct tutti_fault *fault)
{
    uint32_t sequence = (uint32_t)group->op.sequence, next = group->op.meetings[peer] + 1;
    const struct layout_meeting *meeting = &group->arenas[peer]->meetings[group->rank][next % 2];
    const struct layout_header *header =
        announcement_of(group, peer, sequence + !group->op.announced);
    *fault = fault_of(group, TUTTI_ERR_MISMATCH, peer, request);
    if (header &&
        (header->signature != request->signature || header->parameter != request->parameter)) {
        fault->seen = signature_unpack(header->signature, header->parameter);
        return true;
    }
    if (!header && group->op.announced &&
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
    uint32_t sequence = (uint32_t)group->op.sequence;
    uint64_t left, dead;
    if (!group->op.announced)
        return false;
    cpu_group_exited_peers(group, &left, &dead); /* before the announcements are read */
    for (uint64_t rest = left | dead; rest; rest &= rest - 1) {
        int rank = __builtin_ctzll(rest);
        if (!announcement_of(group, rank, sequence) || !announcement_of(group, peer, sequence))
            return cpu_group_check_peers(group, rank, true, fault);
    }
    return false;
}

/* What is checked besides the word. Each process that is asked about costs a system call. */
enum check { CHECK_MEMORY, CHECK_PEER, CHECK_ALL };

static bool wait_must_end(struct cpu_group *group, int peer, const struct request *request,
                          int64_t deadline, enum check check, struct tutti_fault *fault)
{
    if (is_mismatch(group, peer, request, fault) ||
        cpu_group_check_peers(group, peer, check != CHECK_MEMORY, fault) ||
        (check == CHECK_ALL && some_rank_exited(group, peer, fault)))
        return true;
    if (!deadline_passed(deadline))
        return false;
    cpu_group_awaits(group, peer); /* this wait may be younger than CHECK_NS */
    *fault = fault_of(group, TUTTI_ERR_TIMEOUT, cpu_group_late_rank(group, peer), request);
    fault->seen.count = (uint64_t)request->timeout_ms & SIGNATURE_COUNT_MAX;
    fault->seen.parameter = (uint32_t)request->timeout_source;
    return true;
}

/* The ranks that have not announced the operation; if there is none, the rank that keeps the peer
 * waiting. */
static uint64_t missing_of(const struct cpu_group *group, int peer)
{
    uint64_t missing = 0;
    for (int r = 0; r < group->size && group->op.announced; r++)
        if (r != group->rank && !announcement_of(group, r, (uint32_t)group->op.sequence))
            missing |= UINT64_C(1) << r;
    return missing ? missing : UINT64_C(1) << cpu_group_late_rank(group, peer);
}

/* Logs for which ranks this rank waits, if it has waited for long. */
static void wait_log(struct cpu_group *group, int peer, const struct request *request,
                     struct reminder *reminder, int64_t now)
{
    const struct tutti_signature expected =
        signature_unpack(request->signature, request->parameter);
    char ranks[300], what[96];
    const int waited_s = reminder_due(reminder, now);
    if (!waited_s)
        return;
    if (!order_load_relaxed_u32(&group->faults.open))
        snprintf(what, sizeof what, "in the set-up");
    else if (expected.collective == TUTTI_COLLECTIVE_BARRIER && expected.parameter)
        snprintf(what, sizeof what, "in a barrier of some ranks");
    else
        snprintf(what, sizeof what, "in operation %" PRIu64 " (%s, %" PRIu64 " elements)",
                 group->op.sequence, tutti_collective_name(expected.collective), expected.count);
    log_write(TUTTI_LOG_WARN, group->rank, "rank %d has waited %d s %s for %s", group->rank,
              waited_s, what, text_ranks(missing_of(group, peer), ranks, sizeof ranks));
}

static enum tutti_status wait_long(struct cpu_group *group, int peer, const uint32_t *word,
                                   uint32_t value, const struct request *request)
{
    /* The time-out is the operation's: it counts from the operation's first slow wait. */
    if (!group->op.deadline)
        group->op.deadline = deadline_after(request->timeout_ms);
    int64_t deadline = group->op.deadline, now = deadline_now(), checked = now, surveyed = 0;
    struct reminder reminder = reminder_start(now);
    for (int round = 0;; round++) {
        if (order_load_acquire_u32(word) == value)
            return TUTTI_OK;

        /* A yield may take milliseconds if other threads want the core, so the clock decides when
         * to check, not the number of rounds. */
        bool sleeps = round >= group->yields;
        enum check check = sleeps || now - checked > CHECK_NS ? CHECK_PEER : CHECK_MEMORY;
        struct tutti_fault fault;
        if (check == CHECK_PEER)
            checked = now;
        if (check == CHECK_PEER && now - surveyed > CHECK_NS) {
            check = CHECK_ALL;
            surveyed = now;
            cpu_group_awaits(group, peer);
            wait_log(group, peer, request, &reminder, now);
        }
        if ((check != CHECK_MEMORY || round % CHECK_EVERY == CHECK_EVERY - 1) &&
            wait_must_end(group, peer, request, deadline, check, &fault)) {
            /* A peer that wrote the word, then left or died, has done its part. */
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
