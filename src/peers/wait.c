/* SPDX-License-Identifier: MIT */
#include "peers/wait.h"

#include "base/log.h"
#include "base/signature.h"
#include "base/text.h"

#include <inttypes.h>

struct tutti_fault wait_fault(const struct peers *peers, enum tutti_status status, int peer,
                              const struct request *request)
{
    return (struct tutti_fault){
        .struct_size = sizeof(struct tutti_fault),
        .status = status,
        .rank = peers->rank,
        .peer = peer,
        .sequence = peers->sequence,
        .expected = signature_unpack(request->signature, request->parameter),
    };
}

/* Return true if some rank exited before announcing this operation; the operation can then never
 * complete. The peer may know of this already and never write the word. */
static bool some_rank_exited(struct peers *peers, int peer, struct tutti_fault *fault)
{
    struct rank_set left, dead;
    if (peers->lane != LANE_ALL)
        return false;
    peers_exited(peers, &left, &dead); /* before the announcements are read */
    const struct rank_set exited = rank_set_union(left, dead);
    for (int r = rank_set_next(exited, -1); r >= 0; r = rank_set_next(exited, r))
        if (!peers->operations->entered(peers, r) || !peers->operations->entered(peers, peer))
            return peers_check(peers, r, true, fault);
    return false;
}

static bool has_come(void *context)
{
    const struct peers_wait *wait = context;
    if (!wait->word)
        return wait->poll->poll(wait->peers, wait->state);
    return order_load_acquire_u32(wait->word) == wait->value; /* A1 pairs the word's release */
}

/* What the poll itself says of its event. */
static bool poll_look(struct peers_wait *wait, enum wait_depth depth, bool late)
{
    if (wait->word || !wait->poll->look)
        return false;
    wait->fault = wait_fault(wait->peers, TUTTI_ERR_TIMEOUT, wait->peer, wait->request);
    return wait->poll->look(wait->peers, wait->state, depth, late, &wait->fault);
}

/* For reports: the rank for which the wait is. */
static int awaited(const struct peers_wait *wait)
{
    return wait->word || !wait->poll->peer ? wait->peer : wait->poll->peer(wait->state);
}

static bool trouble_find(void *context, enum wait_depth depth)
{
    struct peers_wait *wait = context;
    struct peers *peers = wait->peers;
    if (depth == WAIT_ALL)
        peers_awaits(peers, awaited(wait));
    return poll_look(wait, depth, false) ||
           (peers->operations && peers->operations->differs(wait)) ||
           peers_check(peers, wait->peer, depth != WAIT_MEMORY, &wait->fault) ||
           (depth == WAIT_ALL && some_rank_exited(peers, wait->peer, &wait->fault));
}

static void find_why_late(struct peers_wait *wait)
{
    struct peers *peers = wait->peers;
    if (poll_look(wait, WAIT_ALL, true))
        return;
    peers_awaits(peers, wait->peer); /* this wait may not have looked at all ranks yet */
    wait->fault =
        wait_fault(peers, TUTTI_ERR_TIMEOUT, peers_late_rank(peers, wait->peer), wait->request);
    wait->fault.seen.count = (uint64_t)wait->request->timeout_ms & SIGNATURE_COUNT_MAX;
    wait->fault.seen.parameter = (uint32_t)wait->request->timeout_source;
}

/* The ranks that have not announced the operation, by name. If all have, the rank for which the
 * peer waits. */
static struct rank_set missing_of(const struct peers *peers, int peer)
{
    struct rank_set missing = rank_set_none;
    for (int r = 0; r < peers->size && peers->lane == LANE_ALL; r++)
        if (r != peers->rank && !peers->operations->entered(peers, r))
            rank_set_add(&missing, name_of(peers, r));
    return rank_set_empty(missing) ? rank_set_of(name_of(peers, peers_late_rank(peers, peer)))
                                   : missing;
}

void wait_remind(void *context, int waited_s)
{
    const struct peers_wait *wait = context;
    const struct peers *peers = wait->peers;
    const int own = name_of(peers, peers->rank);
    const uint64_t sequence =
        peers->names ? order_load_relaxed_u64(peers->names->sequence) : peers->sequence;
    const struct tutti_signature expected =
        signature_unpack(wait->request->signature, wait->request->parameter);
    char ranks[300], what[96];
    if (!order_load_relaxed_u32(&peers->faults.open))
        snprintf(what, sizeof what, "in the set-up");
    else if (expected.collective == TUTTI_COLLECTIVE_BARRIER && expected.parameter)
        snprintf(what, sizeof what, "in a barrier of some ranks");
    else if (expected.count == SIGNATURE_COUNT_VARIES)
        snprintf(what, sizeof what, "in operation %" PRIu64 " (%s)", sequence,
                 tutti_collective_name(expected.collective));
    else
        snprintf(what, sizeof what, "in operation %" PRIu64 " (%s, %" PRIu64 " elements)", sequence,
                 tutti_collective_name(expected.collective), expected.count);
    log_write(TUTTI_LOG_WARN, own, "rank %d has waited %d s %s for %s", own, waited_s, what,
              text_ranks(missing_of(peers, wait->peer), ranks, sizeof ranks));
}

static bool yields_at_once(void *context, int64_t now)
{
    const struct peers_wait *wait = context;
    same_core_update(wait->peers, now);
    return same_core_wanted(wait->peers, wait->peer, wait->word, wait->value);
}

static void sleep_on_bell(void *context, int64_t ms)
{
    const struct peers_wait *wait = context;
    bell_sleep(wait->peers, wait->peer, wait->word, wait->value, ms);
}

/* The application's progress function has ended the wait. What this rank has published cannot be
 * taken back, so the communicator ends on all ranks. */
static enum tutti_status cancelled(struct peers *peers)
{
    peers_abort(peers);
    return peers_status(peers, NULL);
}

bool wait_look(struct peers_wait *wait, enum wait_depth depth, bool late)
{
    if (trouble_find(wait, depth))
        return true;
    if (late)
        find_why_late(wait);
    return late;
}

static enum tutti_status wait_run(struct peers_wait *wait)
{
    struct peers *peers = wait->peers;
    const int64_t timeout_ms = wait->request->timeout_ms;
    const struct waiter waiter = {
        .poll = has_come,
        .look = trouble_find,
        .yields_at_once = wait->word ? yields_at_once : NULL,
        .bell = wait->word ? sleep_on_bell : NULL,
        .remind = wait_remind,
        .context = wait,
        .progress = peers->progress,
        .progress_context = peers->progress_context,
        .progress_soon = peers->progress_soon,
        .deadline = &peers->deadline, /* of the operation */
        .timeout_ms = timeout_ms < 0 ? timeout_ms : timeout_ms + peers->later_ms,
        .yields = peers->yields,
        .nap_ns = WAIT_NAP_NS,
    };
    enum tutti_status status = TUTTI_OK;
    switch (waiter_run(&waiter)) {
    case WAIT_DONE:
        break;
    case WAIT_TROUBLE:
        status = peers_fail(peers, &wait->fault);
        break;
    case WAIT_LATE:
        find_why_late(wait);
        status = peers_fail(peers, &wait->fault);
        break;
    case WAIT_CANCELLED:
        status = cancelled(peers);
        break;
    }
    if (order_load_relaxed_u32(&peers->own->awaits))
        peers_awaits_none(peers);
    return status;
}

enum tutti_status wait_slowly(struct peers *peers, int peer, const uint32_t *word, uint32_t value,
                              const struct request *request)
{
    struct peers_wait wait = {
        .peers = peers, .peer = peer, .value = value, .word = word, .request = request};
    return wait_run(&wait);
}

enum tutti_status wait_by_poll(struct peers *peers, const struct wait_poll *poll, void *state,
                               const struct request *request)
{
    struct peers_wait wait = {
        .peers = peers, .peer = peers->rank, .poll = poll, .state = state, .request = request};
    return wait_spin(has_come, &wait, 0, peers->ranks.polls) ? TUTTI_OK : wait_run(&wait);
}
