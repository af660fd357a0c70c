/* SPDX-License-Identifier: MIT */
#include "cpu/call_list.h"

#include "base/deadline.h"
#include "base/error.h"
#include "coll/coll.h"
#include "cpu/algo/algo.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    SLICE_MS = 1,     /* of a sleep while several operations wait */
    LOOK_EVERY = 256, /* rounds in which something has moved */
};

struct call_list {
    struct cpu_call *first;
    int left; /* that have not ended */
    /* The first call of each chain that has not ended, in the order in which they came to the
     * front. all_step() removes a call that has ended and appends the next one of its chain. */
    struct cpu_call *fronts, **fronts_end;
    size_t state_bytes; /* of the largest state */
    uint64_t looks;
    bool moved; /* a call has moved something in this round of steps */
};

/* ---- the order of calls ---------------------------------------------------------------------- */

static struct cpu_group *hosts_of(const struct cpu_call *call)
{
    return cpu_group_of(call->peers);
}

static const struct algorithm *algorithm_of(const struct cpu_call *call)
{
    return call->request.choice.run;
}

/* Finds the chain of a call, and whether the call sends messages. A broadcast that a rank refuses
 * to read where it lies uses the queues of sends, too. */
static void call_classify(struct cpu_call *call)
{
    const bool receives = call->request.collective == TUTTI_COLLECTIVE_RECV;
    struct cpu_chains *chains = &hosts_of(call)->chains;
    call->is_message = coll_rows[call->request.collective].peer == COLL_PARTNER;
    call->sends =
        algorithm_of(call)->sends && algorithm_of(call)->sends(call->group, &call->request);
    call->chain = call->is_message
                      ? &(receives ? chains->receives : chains->sends)[call->request.peer]
                      : &chains->collectives;
}

static void front_append(struct call_list *list, struct cpu_call *call)
{
    call->beside = NULL;
    *list->fronts_end = call;
    list->fronts_end = &call->beside;
}

/* Adds a call behind all earlier ones. */
static void call_add(struct call_list *list, struct cpu_call *call)
{
    call_classify(call);
    call->started = call->ended = false;
    call->sent_before = 0;
    call->word = NULL;
    call->after = NULL;
    if (call->sends) {
        call->sent_before = hosts_of(call)->chains.sending[!call->is_message];
        hosts_of(call)->chains.sending[call->is_message]++;
    }
    if (*call->chain)
        (*call->chain)->after = call;
    else
        front_append(list, call);
    *call->chain = call;
    if (algorithm_of(call)->state_bytes > list->state_bytes)
        list->state_bytes = algorithm_of(call)->state_bytes;
    list->left++;
    hosts_of(call)->counts.calls++;
}

/* Whether the first call of a chain still has to wait. Sends that have ended are earlier than any
 * collective that sends and waits for them, since later ones wait for that collective; and the same
 * the other way round. So their number tells whether all earlier ones have ended. */
static bool must_wait(const struct cpu_call *call)
{
    return call->sent_before && hosts_of(call)->chains.sent[!call->is_message] < call->sent_before;
}

/* ---- the end of a call ----------------------------------------------------------------------- */

/* The ranks have no call any more. The next call list expects their chains so. */
static void group_leave(struct cpu_group *group)
{
    struct cpu_chains *chains = &group->chains;
    memset(chains->sending, 0, sizeof chains->sending);
    memset(chains->sent, 0, sizeof chains->sent);
    chains->looked = 0;
    if (order_load_relaxed_u32(&group->peers.own->awaits))
        peers_awaits_none(&group->peers);
}

static void call_end(struct call_list *list, struct cpu_call *call, enum tutti_status status)
{
    call->status = status;
    call->ended = true;
    list->left--;
    if (call->sends)
        hosts_of(call)->chains.sent[call->is_message]++;
    if (--hosts_of(call)->counts.calls == 0)
        group_leave(hosts_of(call));
}

/* The communicator of these ranks has failed, and so have its calls. */
static void group_end(struct call_list *list, const struct peers *peers, enum tutti_status status)
{
    for (struct cpu_call *call = list->first; call; call = call->next) {
        if (call->peers != peers || call->ended)
            continue;
        if (call->started && algorithm_of(call)->leave_failed)
            algorithm_of(call)->leave_failed(call->group, &call->request, call->state);
        call_end(list, call, status);
    }
}

/* ---- the states of operations ------------------------------------------------------------------
 */

/* Gives each chain memory for the largest state, since only one of its calls runs at a time. */
static bool states_set(const struct call_list *list, struct cpu_states *states)
{
    const size_t state_bytes = (list->state_bytes + 63) & ~(size_t)63;
    size_t bytes = 0;
    for (const struct cpu_call *call = list->fronts; call; call = call->beside)
        bytes += state_bytes;
    if (bytes > states->bytes) {
        unsigned char *memory = aligned_alloc(64, bytes);
        if (!memory)
            return false;
        free(states->memory);
        *states = (struct cpu_states){.memory = memory, .bytes = bytes};
    }
    unsigned char *next = states->memory;
    for (struct cpu_call *call = list->fronts; call; call = call->beside, next += state_bytes)
        call->state = (struct cpu_state *)(void *)next;
    return true;
}

/* No call has started, and none will. */
static void list_refuse(struct call_list *list)
{
    const enum tutti_status status =
        error_set(TUTTI_ERR_NO_MEMORY, "no memory for the operations of a group of calls");
    for (struct cpu_call *call = list->first; call; call = call->next)
        call_end(list, call, status);
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* Sets the peers' fields of the running operation to those of this call. */
static void call_enter(struct cpu_call *call)
{
    call->peers->lane = call->lane;
    call->peers->deadline = call->deadline;
    call->peers->later_ms = call->later_ms;
}

static void call_start(struct call_list *list, struct cpu_call *call)
{
    const enum tutti_status status =
        algorithm_of(call)->start(call->group, &call->request, call->state);
    if (status != TUTTI_OK) {
        call_end(list, call, status);
        return;
    }
    call->lane = call->peers->lane;
    call->deadline = call->later_ms = 0;
    call->started = true;
}

/* Returns whether the call still waits. */
static bool call_step(struct call_list *list, struct cpu_call *call)
{
    call_enter(call);
    if (algorithm_of(call)->step(call->group, &call->request, call->state) == STEP_BUSY) {
        call->lane = call->peers->lane; /* between hosts an operation has several parts */
        call->later_ms = call->peers->later_ms;
        list->moved |= call->word != call->state->word || call->value != call->state->value;
        call->word = call->state->word;
        call->value = call->state->value;
        return true;
    }
    if (call->state->status == TUTTI_OK)
        call_end(list, call, TUTTI_OK);
    else
        group_end(list, call->peers, call->state->status);
    return false;
}

/* Returns whether a call has ended or has moved something, so that it waits for another word; or
 * all have ended. The next wait begins anew, without a sleep. (Rings of 16 ranks that pass on 8 MiB
 * slept for each piece: 58 ms.) */
static bool all_step(void *context)
{
    struct call_list *list = context;
    const int left = list->left;
    list->moved = false;
    struct cpu_call *call, **link = &list->fronts;
    while ((call = *link)) {
        if (!call->started && !call->ended && !must_wait(call))
            call_start(list, call);
        if (call->started && !call->ended)
            call_step(list, call);
        if (!call->ended) {
            link = &call->beside;
            continue;
        }
        if (call->after) {
            call->after->state = call->state;
            front_append(list, call->after);
        } else {
            *call->chain = NULL;
        }
        *link = call->beside;
        if (!*link)
            list->fronts_end = link;
    }
    return list->moved || list->left < left || left == 0;
}

/* ---- a wait for the next end ----------------------------------------------------------------- */

/* A call that waits: one that waits by a poll, else the first one; NULL: none waits. */
static struct cpu_call *first_waiting(const struct call_list *list)
{
    struct cpu_call *first = NULL;
    for (struct cpu_call *call = list->fronts; call; call = call->beside)
        if (call->started && !call->ended && (!first || !call->state->word))
            first = call;
    return first;
}

static struct peers_wait wait_of(const struct cpu_call *call)
{
    return (struct peers_wait){.peers = call->peers,
                               .request = &call->request,
                               .peer = call->state->peer,
                               .value = call->state->value,
                               .word = call->state->word,
                               .poll = call->state->poll,
                               .state = call->state};
}

/* The application's progress function is called once for each communicator in a look. */
static bool is_cancelled(const struct call_list *list, const struct cpu_call *call)
{
    const struct peers *peers = call->peers;
    struct cpu_chains *chains = &hosts_of(call)->chains;
    if (!peers->progress || chains->looked == list->looks)
        return false;
    chains->looked = list->looks;
    return peers->progress(peers->progress_context);
}

static void call_look(struct call_list *list, struct cpu_call *call, enum wait_depth depth,
                      int64_t now)
{
    struct peers_wait wait = wait_of(call);
    if (!call->deadline)
        call->deadline = deadline_after(call->request.timeout_ms);
    call_enter(call);
    /* An event that has come in the meantime wins. */
    const bool late = now - call->later_ms * 1000000 >= call->deadline;
    if (wait_look(&wait, depth, late) && call_step(list, call))
        group_end(list, call->peers, peers_fail(call->peers, &wait.fault));
}

static bool all_look(void *context, enum wait_depth depth)
{
    struct call_list *list = context;
    const int64_t now = deadline_now();
    list->looks++;
    for (struct cpu_call *call = list->fronts; call; call = call->beside) {
        if (call->ended)
            continue;
        if (is_cancelled(list, call)) {
            peers_abort(call->peers);
            group_end(list, call->peers, peers_status(call->peers, NULL));
        } else if (call->started) {
            call_look(list, call, depth, now);
        }
    }
    return false;
}

static void remind(void *context, int waited_s)
{
    const struct cpu_call *call = first_waiting(context);
    struct peers_wait wait;
    if (!call)
        return;
    wait = wait_of(call);
    wait_remind(&wait, waited_s);
}

static bool yields_at_once(void *context, int64_t now)
{
    const struct cpu_call *call = first_waiting(context);
    if (!call || !call->state->word)
        return true;
    same_core_update(call->peers, now);
    return same_core_wanted(call->peers, call->state->peer, call->state->word, call->state->value);
}

/* Sleeps on the bell of the first call's peer. Another call's peer does not ring it, and no bell
 * rings for a poll. */
static void sleep_on_bell(void *context, int64_t ms)
{
    const struct call_list *list = context;
    const struct cpu_call *call = first_waiting(list);
    if (call && !call->state->word)
        nanosleep(&(struct timespec){.tv_nsec = WAIT_NAP_NS}, NULL);
    else if (call)
        bell_sleep(call->peers, call->state->peer, call->state->word, call->state->value,
                   list->fronts->beside && ms > SLICE_MS ? SLICE_MS : ms);
}

void cpu_call_list_run(struct cpu_call *first, struct cpu_states *states)
{
    struct call_list list = {.first = first, .fronts_end = &list.fronts};
    if (!first)
        return;
    if (!first->next) { /* as outside of a group of calls */
        first->status =
            algorithm_of(first)->run(first->group, &first->request, TUTTI_STREAM_DEFAULT);
        return;
    }
    for (struct cpu_call *call = first; call; call = call->next)
        call_add(&list, call);
    const struct waiter waiter = {
        .poll = all_step,
        .look = all_look,
        .yields_at_once = yields_at_once,
        .bell = sleep_on_bell,
        .remind = remind,
        .context = &list,
        .yields = first->peers->yields,
    };
    if (!states_set(&list, states))
        list_refuse(&list);
    for (unsigned round = 1; list.left; round++)
        if (!wait_spin(all_step, &list, 0, first->peers->ranks.polls))
            (void)waiter_run(&waiter); /* has no deadline of its own */
        else if (round % LOOK_EVERY == 0)
            (void)all_look(&list, WAIT_PEER);
    while (list.fronts) /* of a communicator that has failed */
        (void)all_step(&list);
}
