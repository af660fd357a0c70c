/* SPDX-License-Identifier: MIT */
#include "comm/call_set.h"

#include "base/error.h"
#include "coll/coll.h"
#include "comm/run.h"
#include "cpu/call_list.h"
#include "tutti/collectives.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A call of the set. */
struct call_slot {
    struct cpu_call call;
    struct tutti_comm *comm;
    struct call_slot *partner;      /* of a message to the rank itself: its receive, or its send */
    struct call_slot *unmatched;    /* the next one that has no partner yet: own_add() */
    struct call_slot *next_of_list; /* of the set's list `own` or `enqueued` */
    struct call_slot *next;
    tutti_stream_t stream;
    int index; /* in the list `enqueued` */
};

struct call_set {
    uint32_t epoch; /* of the process: ipc/fork.h */
    int depth;      /* of nested starts; 0: the thread makes its calls at once */
    enum tutti_status refused;
    bool enters; /* the call that is being made is the first one on its communicator */
    struct tutti_comm *entered;                 /* the communicators with a call in the set */
    struct cpu_call *calls, **calls_end;        /* those that concern other ranks, on CPU */
    struct call_slot *enqueued, **enqueued_end; /* ... that are put on streams */
    struct call_slot *own, **own_end;           /* messages to this rank itself */
    /* Room for `most` calls on streams; set->order has `count`. */
    struct call_slot **order;
    struct request **messages; /* of one call of the back end, or collectives that it runs as one */
    int count, most;
    struct call_slot *slots; /* kept for later sets, as the states are */
    struct call_slot **free; /* points to the first slot without a call; no later slot has one */
    struct cpu_states states;
};

uint32_t call_sets_open;
static pthread_key_t key;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Forgets the calls, and lets others use the communicators. */
static void set_clear(struct call_set *set)
{
    for (struct tutti_comm *comm; (comm = set->entered);) {
        set->entered = comm->beside;
        order_store_relaxed_u64(&comm->set, 0);
        call_leave(comm);
    }
    set->free = &set->slots;
    set->calls_end = &set->calls;
    set->enqueued_end = &set->enqueued;
    set->own_end = &set->own;
    set->calls = NULL;
    set->enqueued = set->own = NULL;
    set->refused = TUTTI_OK;
}

/* Called at the end of the thread. */
static void set_free(void *opaque)
{
    struct call_set *set = opaque;
    if (set->depth && !fork_detected(set->epoch)) {
        set_clear(set);
        order_fetch_add_relaxed_u32(&call_sets_open, (uint32_t)-1);
    }
    for (struct call_slot *slot = set->slots, *next; slot; slot = next) {
        next = slot->next;
        free(slot);
    }
    free(set->states.memory);
    free(set->order);
    free(set->messages);
    free(set);
}

static void make_key(void)
{
    if (pthread_key_create(&key, set_free) != 0)
        abort();
}

/* The set of the calling thread; NULL if it has none. */
static struct call_set *set_of_thread(void)
{
    pthread_once(&once, make_key);
    struct call_set *set = pthread_getspecific(key);
    return set && !fork_detected(set->epoch) ? set : NULL;
}

struct call_set *call_set_find(void)
{
    struct call_set *set = set_of_thread();
    return set && set->depth ? set : NULL;
}

/* Refuses the set: it will start none of its calls. */
static enum tutti_status set_refuse(struct call_set *set, enum tutti_status status)
{
    if (set->refused == TUTTI_OK)
        set->refused = status;
    return status;
}

enum tutti_status call_set_enter(struct call_set *set, struct tutti_comm *comm, const char *call)
{
    set->enters = !comm || order_load_relaxed_u64(&comm->set) != (uintptr_t)set;
    if (!set->enters)
        return TUTTI_OK;
    if (!call_enter(comm))
        return set_refuse(set, call_refuse_entry(comm, call));
    comm->own = NULL;
    return TUTTI_OK;
}

/* Adds a message to this rank itself. Send n of a communicator belongs to its receive n. The list
 * of messages that have no partner yet has only sends, or only receives. */
static void own_add(struct call_set *set, struct call_slot *slot)
{
    struct tutti_comm *comm = slot->comm;
    struct call_slot *other = comm->own;
    slot->partner = slot->unmatched = NULL;
    *set->own_end = slot;
    set->own_end = &slot->next_of_list;
    if (other && other->call.request.collective != slot->call.request.collective) {
        comm->own = other->unmatched;
        other->partner = slot;
        slot->partner = other;
        return;
    }
    *(other ? &comm->own_last->unmatched : &comm->own) = slot;
    comm->own_last = slot;
}

static enum tutti_status slot_fill(struct call_set *set, struct tutti_comm *comm,
                                   const struct request *request, tutti_stream_t stream)
{
    const bool own =
        coll_rows[request->collective].peer == COLL_PARTNER && request->peer == comm->rank;
    struct call_slot *slot = *set->free;
    if (!slot) {
        slot = malloc(sizeof *slot);
        if (!slot)
            return error_set(TUTTI_ERR_NO_MEMORY, "no memory for one more call of a group");
        slot->next = NULL;
        *set->free = slot;
    }
    slot->comm = comm;
    slot->call.group = comm->group;
    slot->call.peers = comm->peers;
    slot->call.request = *request;
    slot->call.next = NULL;
    slot->stream = stream;
    slot->next_of_list = NULL;
    set->free = &slot->next;
    if (own) {
        own_add(set, slot);
    } else if (comm->backend->send_recv) {
        *set->enqueued_end = slot;
        set->enqueued_end = &slot->next_of_list;
    } else {
        *set->calls_end = &slot->call;
        set->calls_end = &slot->call.next;
    }
    return TUTTI_OK;
}

enum tutti_status call_set_add(struct call_set *set, struct tutti_comm *comm,
                               const struct request *request, tutti_stream_t stream,
                               uint64_t signature, enum tutti_status status)
{
    if (status == TUTTI_OK)
        status = slot_fill(set, comm, request, stream);
    if (status != TUTTI_OK) {
        call_refused(comm, signature, status);
        if (set->enters)
            call_leave(comm);
        return set_refuse(set, status);
    }
    if (set->enters) {
        /* Relaxed: a thread compares the word with its own set alone. */
        order_store_relaxed_u64(&comm->set, (uintptr_t)set);
        comm->beside = set->entered;
        set->entered = comm;
    }
    return TUTTI_OK;
}

/* ---- messages to oneself --------------------------------------------------------------------- */

static enum tutti_status own_check(const struct call_slot *slot)
{
    const struct request *request = &slot->call.request;
    const struct call_slot *other = slot->partner;
    if (!other)
        return error_set(
            TUTTI_ERR_INVALID,
            "tutti_group_end: %s to itself by rank %d of communicator \"%s\": expected "
            "as many sends as receives in the group",
            tutti_collective_name(request->collective), slot->comm->rank, slot->comm->name);
    if (other->call.request.signature == request->signature)
        return TUTTI_OK;
    return error_set(TUTTI_ERR_INVALID,
                     "tutti_group_end: rank %d of communicator \"%s\" sends itself %zu elements of "
                     "%s and receives %zu of %s",
                     slot->comm->rank, slot->comm->name, request->count,
                     tutti_dtype_name(request->dtype), other->call.request.count,
                     tutti_dtype_name(other->call.request.dtype));
}

static enum tutti_status own_check_all(const struct call_set *set)
{
    for (const struct call_slot *slot = set->own; slot; slot = slot->next_of_list) {
        const enum tutti_status status = own_check(slot);
        if (status != TUTTI_OK)
            return status;
    }
    return TUTTI_OK;
}

/* Runs a send and its receive. */
static void own_run(struct call_slot *send)
{
    struct call_slot *recv = send->partner;
    send->call.status = recv->call.status = send->comm->backend->send_own(
        send->comm->group, &send->call.request, &recv->call.request, recv->stream);
}

/* ---- calls on streams ------------------------------------------------------------------------ */

/*
 * A stream runs one operation after the other. So that no two ranks wait for each other, all ranks
 * enqueue a set of calls in the same order, in whichever order they have made them: by
 * communicator, and by rank if several ranks of one are in the set; of each the collectives in
 * their order, then all messages, which run at the same time.
 */

static bool is_message(const struct call_slot *slot)
{
    return coll_rows[slot->call.request.collective].peer == COLL_PARTNER;
}

static int slots_compare(const void *left, const void *right)
{
    const struct call_slot *a = *(struct call_slot *const *)left,
                           *b = *(struct call_slot *const *)right;
    const int nonces = memcmp(a->comm->nonce, b->comm->nonce, sizeof a->comm->nonce);
    if (nonces)
        return nonces;
    if (a->comm != b->comm)
        return a->comm->rank < b->comm->rank ? -1 : 1;
    if (is_message(a) != is_message(b))
        return is_message(a) ? 1 : -1;
    return a->index < b->index ? -1 : 1;
}

/* Sorts the calls into set->order. */
static enum tutti_status order_make(struct call_set *set)
{
    int count = 0;
    for (struct call_slot *slot = set->enqueued; slot; slot = slot->next_of_list)
        slot->index = count++;
    if (count > set->most) {
        struct call_slot **order = realloc(set->order, (size_t)count * sizeof *order);
        set->order = order ? order : set->order;
        struct request **messages = realloc(set->messages, (size_t)count * sizeof *messages);
        set->messages = messages ? messages : set->messages;
        if (!order || !messages)
            return error_set(TUTTI_ERR_NO_MEMORY, "no memory for %d calls of a group", count);
        set->most = count;
    }
    set->count = count;
    for (struct call_slot *slot = set->enqueued; slot; slot = slot->next_of_list)
        set->order[slot->index] = slot;
    if (count > 1)
        qsort(set->order, (size_t)count, sizeof *set->order, slots_compare);
    return TUTTI_OK;
}

/* Enqueues the messages of a communicator, the first of which is order[first]. Returns the index
 * behind them. */
static int messages_enqueue(struct call_set *set, int first)
{
    struct call_slot *const *slots = &set->order[first];
    const struct tutti_comm *comm = slots[0]->comm;
    enum tutti_status status = TUTTI_OK;
    int count = 0;
    for (; first + count < set->count && slots[count]->comm == comm; count++) {
        set->messages[count] = &slots[count]->call.request;
        if (slots[count]->stream != slots[0]->stream)
            status = error_set(TUTTI_ERR_INVALID,
                               "tutti_group_end: messages of communicator \"%s\" are on the "
                               "streams %p and %p: expected one stream for those of a group",
                               comm->name, (const void *)slots[0]->stream,
                               (const void *)slots[count]->stream);
    }
    if (status == TUTTI_OK)
        status = comm->backend->send_recv(comm->group, set->messages, count, slots[0]->stream);
    for (int i = 0; i < count; i++)
        slots[i]->call.status = status;
    return first + count;
}

/* Enqueues order[first] and the calls behind it that run with it as one operation. Returns the
 * index behind them. */
static int several_enqueue(struct call_set *set, int first)
{
    struct call_slot *const *slots = &set->order[first];
    const struct algorithm *how = slots[0]->call.request.choice.run;
    int count = 0;
    while (first + count < set->count && count < how->several &&
           slots[count]->comm == slots[0]->comm && slots[count]->stream == slots[0]->stream &&
           slots[count]->call.request.choice.run == how) {
        set->messages[count] = &slots[count]->call.request;
        count++;
    }
    const enum tutti_status status =
        how->run_several(slots[0]->comm->group, set->messages, count, slots[0]->stream);
    for (int i = 0; i < count; i++)
        slots[i]->call.status = status;
    return first + count;
}

/* After a failure no more calls of that communicator are enqueued. Returns the first failure, whose
 * error is the last one then. */
static enum tutti_status enqueue_all(struct call_set *set)
{
    const struct tutti_comm *lost = NULL;
    enum tutti_status first = TUTTI_OK, status = TUTTI_OK;
    char why[512] = "";
    for (int i = 0, next; i < set->count; i = next) {
        struct call_slot *slot = set->order[i];
        struct request *request = &slot->call.request;
        next = i + 1;
        if (slot->comm == lost) {
            slot->call.status = status;
            continue;
        }
        if (is_message(slot))
            next = messages_enqueue(set, i);
        else if (request->choice.run->run_several)
            next = several_enqueue(set, i);
        else
            slot->call.status = request->choice.run->run(slot->comm->group, request, slot->stream);
        status = slot->call.status;
        if (status == TUTTI_OK)
            continue;
        lost = slot->comm;
        if (first == TUTTI_OK)
            snprintf(why, sizeof why, "%s", tutti_last_error());
        first = first == TUTTI_OK ? status : first;
    }
    return first == TUTTI_OK ? first : error_set(first, "%s", why);
}

/* ---- the public functions -------------------------------------------------------------------- */

/* Returns the first call's status that is not OK. */
static enum tutti_status set_end(struct call_set *set)
{
    enum tutti_status status = set->refused == TUTTI_OK ? own_check_all(set) : set->refused;
    if (status == TUTTI_OK)
        status = order_make(set);
    const bool refused = status != TUTTI_OK;
    const struct call_slot *failed = NULL;
    if (!refused) {
        for (struct call_slot *slot = set->own; slot; slot = slot->next_of_list)
            if (slot->call.request.collective == TUTTI_COLLECTIVE_SEND)
                own_run(slot);
        status = enqueue_all(set);
        cpu_call_list_run(set->calls, &set->states);
    }
    for (struct call_slot *slot = set->slots; slot != *set->free; slot = slot->next) {
        const enum tutti_status ended =
            call_ended(slot->comm, &slot->call.request, refused ? status : slot->call.status);
        if (!failed && ended != TUTTI_OK)
            failed = slot;
    }
    if (failed && status == TUTTI_OK) {
        (void)failed->comm->backend->status(failed->comm->group, NULL); /* sets the last error */
        status = failed->call.status;
    }
    set_clear(set);
    return status;
}

enum tutti_status tutti_group_start(void)
{
    struct call_set *set = set_of_thread();
    if (!set) {
        uint32_t epoch;
        const enum tutti_status status = fork_epoch(&epoch);
        if (status != TUTTI_OK)
            return status;
        set = calloc(1, sizeof *set);
        if (!set || pthread_setspecific(key, set) != 0) {
            free(set);
            return error_set(TUTTI_ERR_NO_MEMORY, "tutti_group_start: no memory for a group");
        }
        set->epoch = epoch;
        set_clear(set);
    }
    if (!set->depth++)
        order_fetch_add_relaxed_u32(&call_sets_open, 1);
    return TUTTI_OK;
}

enum tutti_status tutti_group_end(void)
{
    struct call_set *set = set_of_thread();
    if (!set || !set->depth)
        return error_set(TUTTI_ERR_INVALID, "tutti_group_end: this thread has begun no group: call "
                                            "tutti_group_start() first");
    if (--set->depth)
        return TUTTI_OK;
    order_fetch_add_relaxed_u32(&call_sets_open, (uint32_t)-1);
    return set_end(set);
}
