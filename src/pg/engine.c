/* SPDX-License-Identifier: MIT */
/*
 * The engine: from the queue to the end of an operation. One thread at a time steps it: the group's
 * thread, or one that waits for a work. The thread waits only inside an operation that all ranks
 * have started. An operation that some rank has not submitted stays in a map and delays nothing
 * else.
 *
 * A waiting thread handles only events. Faults, deadlines and the group's end are left to the
 * group's thread. While waiting threads step, that thread looks only every 0.2 ms, and no thread
 * wakes it.
 */
#include "base/deadline.h"
#include "base/order.h"
#include "base/point.h"
#include "base/wait.h"
#include "peers/peers.h"
#include "pg/pg.h"
#include "pg/wire.h"

#include <sys/prctl.h>

enum {
    CHECK_MS = 50,       /* between checks that the peers live, while there are operations */
    IDLE_MS = 1000,      /* the same while there are none */
    STOP_GRACE_MS = 100, /* time for operations to end when the group stops */
    ANSWER_MS = 5000,    /* within which the leader has to answer */
};

static struct pg_operation *operation_of(struct pg_key *key)
{
    return (struct pg_operation *)(void *)((char *)key - offsetof(struct pg_operation, key));
}

/* Whether the group has operations that are not done. */
static bool is_busy(const struct tutti_pg *pg)
{
    return pg->announced.count || pg->to_announce.first || pg->awaiting_input.first ||
           pg->copying_out.first || pg->sends.first || pg->receives.first ||
           !rank_set_empty(pg->noted);
}

/* ---- operations that wait for their input ---------------------------------------------------- */

/* Whether an operation cannot be announced yet: its input is not ready, or an earlier operation of
 * its tag waits in this scan. A late one is withdrawn anyway, so its order does not matter. */
static bool must_wait(const struct tutti_pg *pg, const struct pg_operation *operation)
{
    struct pg_tag *tag = operation->tag_state;
    if (operation->input_late)
        return false;
    if (tag->waits_in_scan != pg->scan && (!operation->cuda || pg_cuda_input_ready(operation)))
        return false;
    tag->waits_in_scan = pg->scan;
    return true;
}

/* Pass on an operation that need not wait any longer. */
static void pass_on(struct tutti_pg *pg, struct pg_operation *operation)
{
    const int own = pg->control.rank;
    if (pg_is_message(operation) && operation->input_late)
        pg_complete(pg, operation,
                    &(struct pg_outcome){.status = TUTTI_ERR_TIMEOUT, .rank = own, .peer = own});
    else if (pg_is_message(operation))
        pg_message_begin(pg, operation);
    else if (pg->lacks_rank) /* submitted before; only the stepping thread writes it */
        pg_complete(pg, operation, &pg->fault);
    else
        pg_list_append(&pg->to_announce, operation);
}

/* The stream has come: start what is copied before the announcement. */
static void copy_early(struct pg_operation *operation)
{
    if (operation->sparse)
        pg_sparse_copy_in(operation);
    else if (pg_is_message(operation))
        pg_staging_copy_message(operation);
}

/* Pass on the operations that need not wait any longer, except for what has to be copied first. */
static void release_ready(struct tutti_pg *pg)
{
    struct pg_list list = pg->awaiting_input;
    pg->awaiting_input = (struct pg_list){NULL, NULL};
    pg->scan++;
    for (struct pg_operation *operation; (operation = pg_list_take(&list));) {
        bool waits = must_wait(pg, operation);
        if (!waits && operation->cuda && !operation->input_late) {
            copy_early(operation);
            waits = must_wait(pg, operation);
        }
        if (waits)
            pg_list_append(&pg->awaiting_input, operation);
        else
            pass_on(pg, operation);
    }
}

/* One thread steps the engine: the group's own, or one that waits for a work. */
static bool take_engine(struct tutti_pg *pg)
{
    return !order_load_relaxed_u32(&pg->stepping) &&
           !order_exchange_u32(&pg->stepping, 1); /* H9a pairs H9 */
}

static void give_engine(struct tutti_pg *pg)
{
    order_store_release_u32(&pg->stepping, 0); /* H9 pairs H9a: the engine's state */
}

/* Whether there is a packet, a ready input, or a finished copy to a device to handle, or another
 * thread steps the engine. */
static bool has_polled_event(void *context)
{
    struct tutti_pg *pg = context;
    if (!take_engine(pg))
        return true;
    bool any = pg->control.wire && pg_wire_poll(pg->control.wire);
    pg->scan++;
    for (const struct pg_operation *operation = pg->awaiting_input.first; operation && !any;
         operation = operation->next)
        any = !must_wait(pg, operation);
    any = any || (pg->copying_out.first && pg_cuda_is_done(pg->copying_out.first));
    give_engine(pg);
    return any;
}

/* ---- the end of the group -------------------------------------------------------------------- */

/* Complete the collectives. */
static void fail_collectives(struct tutti_pg *pg, const struct pg_outcome *fault)
{
    struct pg_operation *operation;
    struct pg_key *key;
    while ((key = pg_map_take_any(&pg->announced)))
        pg_complete(pg, operation_of(key), fault);
    while ((operation = pg_list_take(&pg->to_announce)))
        pg_complete(pg, operation, fault);
    struct pg_list list = pg->awaiting_input;
    pg->awaiting_input = (struct pg_list){NULL, NULL};
    while ((operation = pg_list_take(&list)))
        if (pg_is_message(operation))
            pg_list_append(&pg->awaiting_input, operation);
        else
            pg_complete(pg, operation, fault);
}

/* The group has ended: complete all its operations with its fault. The first fault is kept. */
static void fail_group(struct tutti_pg *pg, const struct pg_outcome *fault)
{
    struct pg_operation *operation;
    pthread_mutex_lock(&pg->lock);
    if (!pg->has_failed)
        pg->fault = *fault;
    pg->has_failed = true;
    const struct pg_outcome first_fault = pg->fault;
    struct pg_list queue = pg->queue;
    pg->queue = (struct pg_list){NULL, NULL};
    pthread_mutex_unlock(&pg->lock);
    fail_collectives(pg, &first_fault);
    while ((operation = pg_list_take(&queue)))
        pg_complete(pg, operation, &first_fault);
    while ((operation = pg_list_take(&pg->awaiting_input)))
        pg_complete(pg, operation, &first_fault);
    pg_messages_drop(pg);
    while ((operation = pg_list_take(&pg->sends)))
        pg_complete(pg, operation, &first_fault);
    while ((operation = pg_list_take(&pg->receives)))
        pg_complete(pg, operation, &first_fault);
}

static struct pg_outcome outcome_of(const struct tutti_fault *fault)
{
    return (struct pg_outcome){
        .status = fault->status, .rank = fault->rank, .peer = fault->peer, .has_failed = true};
}

static void fail_with_comm_fault(struct tutti_pg *pg)
{
    struct tutti_fault fault = {.struct_size = sizeof fault};
    if (peers_status(pg->comm->peers, &fault) == TUTTI_OK)
        return;
    const struct pg_outcome outcome = outcome_of(&fault);
    fail_group(pg, &outcome);
}

/* Ranks that have left the group, and ranks that have died. */
struct exited {
    struct rank_set left, dead;
    int cause; /* the rank because of which the first one is gone */
};

/* A rank that leaves has run all collectives that it announced, or has failed the communicator. So
 * no rank is inside a collective with it, and each rank ends its waiting collectives by itself.
 * After a death a peer may be inside a collective that this rank has announced: the communicator
 * and the group fail. Of several hosts they always do, which tells the other hosts. */
static void handle_exited(struct tutti_pg *pg, const struct exited *exited)
{
    struct pg_outcome fault = {
        .status = TUTTI_ERR_PEER_DEAD, .rank = pg->control.rank, .peer = exited->cause};
    const struct rank_set all = rank_set_union(exited->left, exited->dead);
    if (rank_set_empty(rank_set_minus(all, pg->gone)))
        return;
    pg->gone = rank_set_union(pg->gone, all);
    if ((pg->announced.count || pg->control.wire) && !rank_set_empty(exited->dead)) {
        fault.has_failed = true;
        (void)pg_comm_fail(pg->comm, TUTTI_ERR_PEER_DEAD, fault.peer);
        fail_group(pg, &fault);
        return;
    }
    pthread_mutex_lock(&pg->lock);
    if (!pg->has_failed && !pg->lacks_rank)
        pg->fault = fault;
    pg->lacks_rank = true;
    pthread_mutex_unlock(&pg->lock);
    fail_collectives(pg, &pg->fault); /* only this thread writes it */
    pg_messages_drop_gone(pg);
}

/* Complete the operations whose results are on the device. An operation of the devices may have
 * failed there. */
static bool complete_copied(struct tutti_pg *pg)
{
    bool any = false;
    for (; pg->copying_out.first && pg_cuda_is_done(pg->copying_out.first); any = true) {
        struct pg_outcome outcome = {.rank = pg->control.rank, .peer = -1};
        struct tutti_fault fault = {.struct_size = sizeof fault};
        struct pg_operation *operation = pg_list_take(&pg->copying_out);
        if (pg_is_on_device(operation) && tutti_comm_status(pg->direct, &fault) != TUTTI_OK) {
            struct tutti_fault cause; /* of which a peer knows: pg_cuda_fail() */
            if (peers_check(pg->comm->peers, -1, false, &cause))
                fault = cause;
            fault.sequence = peers_sequence(pg->comm->peers);
            (void)peers_fail(pg->comm->peers, &fault);
            fail_with_comm_fault(pg);
            outcome = pg->fault; /* only this thread writes it */
        }
        pg_complete(pg, operation, &outcome);
    }
    return any;
}

/* ---- one step after another ------------------------------------------------------------------ */

/* Take the operations that callers have submitted. Return whether there were any. */
static bool take_submitted(struct tutti_pg *pg, bool is_own_thread, bool *stopping)
{
    struct pg_list queue = {NULL, NULL};
    struct pg_operation *operation;
    pthread_mutex_lock(&pg->lock);
    if (is_own_thread || !order_load_relaxed_u32(&pg->has_cuda)) {
        queue = pg->queue;
        pg->queue = (struct pg_list){NULL, NULL};
    }
    *stopping = pg->stopping;
    pthread_mutex_unlock(&pg->lock);
    const bool any = queue.first != NULL;
    while ((operation = pg_list_take(&queue))) {
        if (!operation->cuda && !pg->awaiting_input.first) {
            pass_on(pg, operation);
            continue;
        }
        pg_list_append(&pg->awaiting_input, operation);
        if (operation->deadline < pg->next_deadline)
            pg->next_deadline = operation->deadline;
    }
    release_ready(pg);
    return any;
}

static bool announce(struct tutti_pg *pg)
{
    bool any = false;
    for (struct pg_operation *operation; (operation = pg->to_announce.first); any = true) {
        const struct layout_announcement announcement = {
            .kind = operation->input_late ? LAYOUT_LATE : LAYOUT_ANNOUNCED,
            .tag = operation->key.tag,
            .inputs = operation->inputs,
            .facts = operation->facts,
            .sequence = operation->key.sequence,
            .operation = operation->description};
        if (!pg_control_announce(&pg->control, &announcement))
            break;
        pg_list_take(&pg->to_announce);
        pg_record(pg, operation);
        if (operation->input_late)
            operation->withdraw_at = deadline_now();
        operation->withdrawn = operation->input_late;
        pg_map_insert(&pg->announced, &operation->key);
        if (operation->deadline < pg->next_deadline)
            pg->next_deadline = operation->deadline;
    }
    return any;
}

static enum tutti_status run_dense(struct tutti_pg *pg, struct pg_operation *operation)
{
    struct pg_part part = {.count = operation->args.count};
    if (operation->cuda && !pg_is_on_device(operation)) {
        if (part.count)
            return pg_staging_run(pg, operation, 0, part.count);
        operation->op.memory = NULL; /* of a device; without elements no scalar is needed */
    }
    for (int i = 0; i < operation->work.tensor_count; i++)
        part.data[i] = operation->tensors[i].data;
    return pg_part_reduce(pg, operation, &part);
}

/* An operation begins, or ends. Relaxed: the count publishes no data, and may be seen late. */
static void count_run(struct tutti_pg *pg)
{
    uint32_t *runs = &pg->control.own->runs;
    order_store_relaxed_u32(runs, order_load_relaxed_u32(runs) + 1);
}

/* After a failure the communicator has failed, or its status is OK and the operation failed
 * alone. A barrier needs no further step: all ranks have announced it. */
static void run(struct tutti_pg *pg, struct pg_operation *operation)
{
    struct pg_outcome outcome = {.rank = pg->control.rank, .peer = -1};
    count_run(pg);
    if (operation->sparse)
        pg_sparse_run(pg, operation, &outcome);
    else if (operation->work.collective == TUTTI_COLLECTIVE_ALL_REDUCE)
        outcome.status = run_dense(pg, operation);
    else if (operation->work.collective != TUTTI_COLLECTIVE_BARRIER)
        pg_blocks_run(pg, operation, &outcome);
    if (pg_is_on_device(operation))
        outcome.status = pg_cuda_enqueued(pg, operation, outcome.status);
    count_run(pg);
    pg_messages_collective_ended(pg);
    pg->progress_at = 0; /* the operation has just ended */
    if (outcome.status == TUTTI_OK && operation->cuda) {
        pg_list_append(&pg->copying_out, operation);
        return;
    }
    if (outcome.status == TUTTI_OK || tutti_comm_status(pg->comm, NULL) == TUTTI_OK) {
        pg_complete(pg, operation, &outcome);
        return;
    }
    pg_map_insert(&pg->announced, &operation->key); /* fail_with_comm_fault() completes it */
    fail_with_comm_fault(pg);
}

/* Handle the next verdict. Return whether there was one. */
static bool handle_verdict(struct tutti_pg *pg)
{
    struct layout_verdict verdict;
    if (!pg_control_take_verdict(&pg->control, &verdict))
        return false;
    struct pg_key *key = pg_map_take(&pg->announced, verdict.tag, verdict.sequence);
    if (key && verdict.status == TUTTI_OK) {
        operation_of(key)->inputs = verdict.inputs;
        operation_of(key)->facts = verdict.facts;
        run(pg, operation_of(key));
    } else if (key) {
        const struct pg_outcome outcome = {.status = (enum tutti_status)verdict.status,
                                           .rank = verdict.rank,
                                           .peer = verdict.peer,
                                           .expected = verdict.expected,
                                           .seen = verdict.seen};
        pg_complete(pg, operation_of(key), &outcome);
    }
    return true;
}

/* ---- time ------------------------------------------------------------------------------------ */

/* One check of all deadlines. */
struct check {
    struct tutti_pg *pg;
    int64_t now;
    bool leader_overdue;
};

/* Whether the leader was asked at `asked_at` and should have answered by now. Time inside an
 * operation does not count. The leader may still be inside one that this rank has ended (a gather
 * to the leader); then the group's time-out is added. */
static bool is_leader_overdue(const struct check *check, int64_t asked_at)
{
    const struct tutti_pg *pg = check->pg;
    int64_t since = asked_at > pg->progress_at ? asked_at : pg->progress_at;
    int64_t late_ms = (check->now - since) / 1000000 - ANSWER_MS;
    const bool leader_is_inside = pg->leader_runs % 2 || pg->control.wire; /* or may be */
    return late_ms > 0 && (!leader_is_inside || (pg->timeout_ms >= 0 && late_ms > pg->timeout_ms));
}

/* Withdraw an announced operation whose deadline has passed. The leader answers with a verdict. */
static void check_announced(void *context, struct pg_key *key)
{
    struct check *check = context;
    struct tutti_pg *pg = check->pg;
    struct pg_operation *operation = operation_of(key);
    int64_t next_deadline = operation->deadline;
    if (next_deadline <= check->now) {
        POINT("group.overdue");
        const struct layout_announcement withdrawal = {
            .kind = LAYOUT_WITHDRAWN, .tag = key->tag, .sequence = key->sequence};
        if (!operation->withdraw_at)
            operation->withdraw_at = check->now;
        operation->withdrawn =
            operation->withdrawn || pg_control_announce(&pg->control, &withdrawal);
        check->leader_overdue |= is_leader_overdue(check, operation->withdraw_at);
        next_deadline = check->now + (int64_t)CHECK_MS * 1000000;
    }
    if (next_deadline < pg->next_deadline)
        pg->next_deadline = next_deadline;
}

/* Mark the operations late whose input is not ready at their deadline. They have not been
 * announced: LAYOUT_LATE announces and withdraws them at once. */
static void check_awaiting_input(struct tutti_pg *pg, int64_t now)
{
    for (struct pg_operation *operation = pg->awaiting_input.first; operation;
         operation = operation->next) {
        operation->input_late |= operation->deadline <= now;
        if (!operation->input_late && operation->deadline < pg->next_deadline)
            pg->next_deadline = operation->deadline;
    }
}

/* Check all deadlines; fail the group if the leader did not answer in time. Return the time until
 * the next check, in ms. */
static int64_t check_deadlines(struct tutti_pg *pg)
{
    struct check check = {.pg = pg, .now = deadline_now()};
    int stopped = -1; /* a rank that makes no progress */
    const uint32_t runs = order_load_relaxed_u32(&pg->control.rings[0]->runs);
    if (!pg->progress_at || runs != pg->leader_runs)
        pg->progress_at = check.now;
    pg->leader_runs = runs;
    if (pg->next_deadline <= check.now) {
        pg->next_deadline = DEADLINE_NEVER;
        pg_map_each(&pg->announced, check_announced, &check);
        check_awaiting_input(pg, check.now);
        stopped = pg_messages_check(pg, check.now);
    }
    /* These wait for the leader to make room for their announcement. */
    for (const struct pg_operation *operation = pg->to_announce.first; operation;
         operation = operation->next)
        check.leader_overdue |=
            operation->deadline < check.now && is_leader_overdue(&check, operation->deadline);
    if (check.leader_overdue)
        stopped = pg_control_unresponsive_rank(&pg->control);
    if (stopped >= 0) {
        (void)pg_comm_fail(pg->comm, TUTTI_ERR_TIMEOUT, stopped);
        fail_with_comm_fault(pg);
    }
    if (pg->leader && rank_set_empty(pg->gone))
        pg_leader_remind(pg->leader, check.now, pg->list);
    int64_t slice = is_busy(pg) ? CHECK_MS : IDLE_MS;
    int64_t left = deadline_left_ms(pg->next_deadline);
    return left < 0 || left > slice ? slice : left;
}

/* Asks the kernel for processes that have ended, at most every CHECK_MS. */
static struct exited exited_ranks(struct tutti_pg *pg)
{
    struct exited exited = {.cause = -1};
    struct rank_set left = rank_set_none, dead = rank_set_none;
    int64_t now = deadline_now();
    if (now - pg->peers_checked_at >= (int64_t)CHECK_MS * 1000000) {
        pg->peers_checked_at = now;
        peers_exited(pg->comm->peers, &left, &dead);
        left = peers_named(pg->comm->peers, left);
        dead = peers_named(pg->comm->peers, dead);
    }
    /* Afterwards: a rank leaves the group before its communicator. */
    exited.left = pg_control_left(&pg->control, &exited.cause);
    exited.dead = rank_set_minus(rank_set_union(left, dead), exited.left);
    if (exited.cause < 0)
        exited.cause = rank_set_next(exited.dead, -1);
    return exited;
}

/* ---- one thread at a time -------------------------------------------------------------------- */

/* Whether the stopping group has no operations left. Those that remain after STOP_GRACE_MS end
 * here. */
static bool finish_stopping(struct tutti_pg *pg)
{
    int64_t now = deadline_now();
    if (!is_busy(pg))
        return true;
    if (!pg->stop_at)
        pg->stop_at = now + (int64_t)STOP_GRACE_MS * 1000000;
    if (now < pg->stop_at)
        return false;
    /* A copy to a device that is not done by now does not end because the device makes no
     * progress. */
    struct pg_operation *operation;
    int own = pg->control.rank;
    const struct pg_outcome aborted = {
        .status = TUTTI_ERR_ABORTED, .rank = own, .peer = own, .has_failed = true};
    if (pg->direct)
        tutti_comm_abort(pg->direct);
    while ((operation = pg_list_take(&pg->copying_out)))
        pg_complete(pg, operation, &aborted);
    /* The leader may have started a collective meanwhile, which this rank will not run. */
    if (pg->announced.count)
        (void)pg_comm_fail(pg->comm, TUTTI_ERR_PEER_DEAD, own);
    fail_group(pg, &aborted);
    return true;
}

/* Handle events. Return whether there were any. */
static bool step(struct tutti_pg *pg, bool is_own_thread, bool *stopping)
{
    /* Take messages before submitted receives, and send messages before announcements: a rank that
     * has run a collective knows the sends that its peers withdrew before they announced it. */
    bool any = pg->control.wire && pg_wire_poll(pg->control.wire);
    any |= pg_messages_take(pg);
    /* Counts as an event even if the input is not ready: it likely is soon. */
    any |= take_submitted(pg, is_own_thread, stopping);
    any |= pg_messages_send(pg);
    any |= announce(pg);
    any |= complete_copied(pg);
    if (pg->leader)
        any |= pg_leader_poll(pg->leader);
    any |= handle_verdict(pg);
    return any;
}

bool pg_engine_step_until(const struct pg_operation *operation)
{
    enum { POLLS = 2000, YIELD_EVERY = 64 }; /* polls without an event */
    struct tutti_pg *pg = operation->pg;
    bool taken = false, stopping, yields = true;
    for (int poll = 0; poll < POLLS && yields && !pg_operation_is_done(operation); poll++) {
        if (!taken && !order_load_relaxed_u32(&pg->has_cuda) && take_engine(pg)) {
            taken = true;
            pg_control_take_over(pg->control.own);
        }
        if (taken && step(pg, false, &stopping))
            poll = 0;
        else if (pg->crowded || poll % YIELD_EVERY == YIELD_EVERY - 1)
            yields = wait_yield(&(int64_t){deadline_now()}); /* a peer may wait for this core */
        else
            order_pause();
    }
    const bool done = pg_operation_is_done(operation);
    if (taken) {
        const bool busy = is_busy(pg);
        pg->helped = done;
        give_engine(pg);
        pg_control_hand_back(pg->control.own, busy);
    }
    return done;
}

/* ---- the thread ------------------------------------------------------------------------------ */

/* Return false once the group has stopped. Then no other thread steps the engine any more. */
static bool poll_once(struct tutti_pg *pg)
{
    struct tutti_fault fault;
    bool stopping;
    uint32_t bell = pg_control_bell(&pg->control);
    if (!take_engine(pg)) {
        pg_control_nap(&pg->control);
        return true;
    }
    const bool helped = pg->helped;
    pg->helped = false;
    const struct exited exited = exited_ranks(pg); /* read before the posts of those ranks */
    const bool slept_in_vain = pg->slept_in_vain && bell == pg->slept_bell;
    pg->slept_in_vain = false;
    if (step(pg, true, &stopping)) {
        if (slept_in_vain)
            POINT("group.missed"); /* an event, of which nobody had told this rank */
        give_engine(pg);
        pg_control_reset_idle(&pg->control);
        return true;
    }

    /* The communicator's fault is checked first. A rank that left because of it adds nothing to
     * it. */
    if (pg->control.wire ? pg_wire_has_failed(pg->control.wire, is_busy(pg))
                         : peers_check(pg->comm->peers, -1, false, &fault))
        fail_with_comm_fault(pg);
    else
        handle_exited(pg, &exited);
    int64_t ms = check_deadlines(pg);
    if (stopping && finish_stopping(pg))
        return false;
    const bool busy = is_busy(pg);
    const bool polls = pg->awaiting_input.first || pg->copying_out.first || pg->control.wire;
    give_engine(pg);
    if (helped)
        pg_control_nap(&pg->control);
    else
        pg->slept_in_vain =
            !pg_control_sleep(&pg->control, bell, ms, busy, polls ? has_polled_event : NULL, pg);
    pg->slept_bell = bell;
    return true;
}

void *pg_engine(void *argument)
{
    struct tutti_pg *pg = argument;
    (void)prctl(PR_SET_TIMERSLACK, 1UL, 0, 0, 0); /* without it a nap of 50 us lasts 100 us */
    while (poll_once(pg))
        ;
    /* Only this thread writes these. */
    bool has_cause = (pg->has_failed || pg->lacks_rank) && pg->fault.peer >= 0;
    pg_control_leave(&pg->control, has_cause ? pg->fault.peer : pg->control.rank);
    return NULL;
}
