/* SPDX-License-Identifier: MIT */
#include "cpu/calls.h"

#include "base/deadline.h"
#include "coll/coll.h"
#include "cpu/algo/algo.h"

#include <stdbool.h>
#include <string.h>

enum { SLICE_MS = 1 }; /* of a sleep while several operations wait */

struct calls {
    struct cpu_call *first;
    int left; /* that have not ended */
    /* The first call of each chain that has not ended, in the order in which they came to the
     * front. all_step() removes a call that has ended and appends the next one of its chain. */
    struct cpu_call *fronts, **fronts_end;
    uint64_t looks;
};

/* ---- the order of calls ---------------------------------------------------------------------- */

/* Finds the chain of a call, and whether the call sends messages. A broadcast that a rank refuses
 * to read where it lies uses the ways of sends, too. */
static void call_classify(struct cpu_call *call)
{
    const bool receives = call->request.collective == TUTTI_COLLECTIVE_RECV;
    struct cpu_chains *chains = call->chains;
    call->is_message = coll_rows[call->request.collective].peer == COLL_PARTNER;
    call->sends = call->request.choice.run == &cpu_pair && !receives;
    call->chain = call->is_message
                      ? &(receives ? chains->receives : chains->sends)[call->request.peer]
                      : &chains->collectives;
}

static void front_append(struct calls *calls, struct cpu_call *call)
{
    call->beside = NULL;
    *calls->fronts_end = call;
    calls->fronts_end = &call->beside;
}

/* Adds a call behind all earlier ones. */
static void call_add(struct calls *calls, struct cpu_call *call)
{
    call_classify(call);
    call->started = call->ended = false;
    call->sent_before = 0;
    call->after = NULL;
    if (call->sends) {
        call->sent_before = call->chains->sending[!call->is_message];
        call->chains->sending[call->is_message]++;
    }
    if (*call->chain)
        (*call->chain)->after = call;
    else
        front_append(calls, call);
    *call->chain = call;
    calls->left++;
    call->group->op.calls++;
}

/* Whether the first call of a chain still has to wait. Sends that have ended are earlier than any
 * collective that sends and waits for them, since later ones wait for that collective; and the same
 * the other way round. So their number tells whether all earlier ones have ended. */
static bool must_wait(const struct cpu_call *call)
{
    return call->sent_before && call->chains->sent[!call->is_message] < call->sent_before;
}

/* ---- the end of a call ----------------------------------------------------------------------- */

/* The group has no call any more. The next list of calls expects its chains so. */
static void group_leave(struct cpu_group *group, struct cpu_chains *chains)
{
    memset(chains->sending, 0, sizeof chains->sending);
    memset(chains->sent, 0, sizeof chains->sent);
    chains->looked = 0;
    if (order_load_relaxed_u32(&group->own->awaits))
        cpu_group_awaits_none(group);
}

static void call_end(struct calls *calls, struct cpu_call *call, enum tutti_status status)
{
    call->status = status;
    call->ended = true;
    calls->left--;
    if (call->sends)
        call->chains->sent[call->is_message]++;
    if (--call->group->op.calls == 0)
        group_leave(call->group, call->chains);
}

/* The group has failed, and so have its calls. */
static void group_end(struct calls *calls, struct cpu_group *group, enum tutti_status status)
{
    for (struct cpu_call *call = calls->first; call; call = call->next) {
        if (call->group != group || call->ended)
            continue;
        if (call->started)
            direct_leave_failed(group, &call->request);
        call_end(calls, call, status);
    }
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* Sets the group's fields of the running operation to those of this call. */
static void call_enter(struct cpu_call *call)
{
    call->group->op.lane = call->lane;
    call->group->op.deadline = call->deadline;
}

static void call_start(struct calls *calls, struct cpu_call *call)
{
    const enum tutti_status status =
        call->request.choice.run->start(call->group, &call->request, call->op);
    if (status != TUTTI_OK) {
        call_end(calls, call, status);
        return;
    }
    call->lane = call->group->op.lane;
    call->deadline = 0;
    call->started = true;
}

/* Returns whether the call still waits. */
static bool call_step(struct calls *calls, struct cpu_call *call)
{
    call_enter(call);
    if (call->request.choice.run->step(call->group, &call->request, call->op) == OP_BUSY)
        return true;
    if (call->op->status == TUTTI_OK)
        call_end(calls, call, TUTTI_OK);
    else
        group_end(calls, call->group, call->op->status);
    return false;
}

/* Returns whether all calls have ended. */
static bool all_step(void *context)
{
    struct calls *calls = context;
    struct cpu_call *call, **link = &calls->fronts;
    while ((call = *link)) {
        if (!call->started && !call->ended && !must_wait(call))
            call_start(calls, call);
        if (call->started && !call->ended)
            call_step(calls, call);
        if (!call->ended) {
            link = &call->beside;
            continue;
        }
        if (call->after)
            front_append(calls, call->after);
        else
            *call->chain = NULL;
        *link = call->beside;
        if (!*link)
            calls->fronts_end = link;
    }
    return calls->left == 0;
}

/* ---- a wait for all of them ------------------------------------------------------------------ */

/* The first call that waits for a peer; NULL: there is none. */
static struct cpu_call *first_waiting(const struct calls *calls)
{
    for (struct cpu_call *call = calls->fronts; call; call = call->beside)
        if (call->started && !call->ended)
            return call;
    return NULL;
}

static struct word_wait wait_of(const struct cpu_call *call)
{
    return (struct word_wait){.group = call->group,
                              .peer = call->op->peer,
                              .value = call->op->value,
                              .word = call->op->word,
                              .request = &call->request};
}

/* The application's progress function is called once for each group in a look. */
static bool is_cancelled(const struct calls *calls, const struct cpu_call *call)
{
    const struct cpu_group *group = call->group;
    if (!group->progress || call->chains->looked == calls->looks)
        return false;
    call->chains->looked = calls->looks;
    return group->progress(group->progress_context);
}

static void call_look(struct calls *calls, struct cpu_call *call, enum wait_depth depth,
                      int64_t now)
{
    struct word_wait wait = wait_of(call);
    if (!call->deadline)
        call->deadline = deadline_after(call->request.timeout_ms);
    call_enter(call);
    /* An event that has come in the meantime wins. */
    if (wait_look(&wait, depth, now >= call->deadline) && call_step(calls, call))
        group_end(calls, call->group, cpu_group_fail(call->group, &wait.fault));
}

static bool all_look(void *context, enum wait_depth depth)
{
    struct calls *calls = context;
    const int64_t now = deadline_now();
    calls->looks++;
    for (struct cpu_call *call = calls->fronts; call; call = call->beside) {
        if (call->ended)
            continue;
        if (is_cancelled(calls, call)) {
            cpu_group_abort(call->group);
            group_end(calls, call->group, cpu_group_status(call->group, NULL));
        } else if (call->started) {
            call_look(calls, call, depth, now);
        }
    }
    return false;
}

static void remind(void *context, int waited_s)
{
    const struct cpu_call *call = first_waiting(context);
    struct word_wait wait;
    if (!call)
        return;
    wait = wait_of(call);
    wait_remind(&wait, waited_s);
}

static bool yields_at_once(void *context, int64_t now)
{
    const struct cpu_call *call = first_waiting(context);
    if (!call)
        return true;
    same_core_update(call->group, now);
    return same_core_wanted(call->group, call->op->peer, call->op->word, call->op->value);
}

/* Sleeps on the bell of the first call's peer. Another call's peer does not ring it. */
static void sleep_on_bell(void *context, int64_t ms)
{
    const struct calls *calls = context;
    const struct cpu_call *call = first_waiting(calls);
    if (call)
        bell_sleep(call->group, call->op->peer, call->op->word, call->op->value,
                   calls->fronts->beside && ms > SLICE_MS ? SLICE_MS : ms);
}

void cpu_calls_run(struct cpu_call *first)
{
    struct calls calls = {.first = first, .fronts_end = &calls.fronts};
    if (!first)
        return;
    if (!first->next) { /* as outside of a group */
        first->status =
            first->request.choice.run->run(first->group, &first->request, TUTTI_STREAM_DEFAULT);
        return;
    }
    for (struct cpu_call *call = first; call; call = call->next)
        call_add(&calls, call);
    const struct waiter waiter = {
        .poll = all_step,
        .look = all_look,
        .yields_at_once = yields_at_once,
        .bell = sleep_on_bell,
        .remind = remind,
        .context = &calls,
        .yields = first->group->yields,
    };
    if (!wait_spin(all_step, &calls, 0, first->group->ranks.polls))
        (void)waiter_run(&waiter); /* no deadline of its own: returns when all have ended */
    while (calls.fronts)           /* of a group that has failed */
        (void)all_step(&calls);
}
