/* SPDX-License-Identifier: MIT */
#include "api/call_set.h"

#include "base/error.h"
#include "base/signature.h"
#include "coll/coll.h"
#include "comm/run.h"
#include "cpu/calls.h"
#include "tutti/collectives.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* A call of the set, and the memory for its operation's state. */
struct call_slot {
    struct cpu_call call;
    struct tutti_comm *comm;
    struct call_slot *partner;   /* of a message to the rank itself: its receive, or its send */
    struct call_slot *unmatched; /* the next one that has no partner yet: own_add() */
    struct call_slot *next_own;
    struct call_slot *next;
    size_t state_bytes;
    _Alignas(64) unsigned char state[];
};

struct call_set {
    uint32_t epoch; /* of the process: ipc/fork.h */
    int depth;      /* of nested starts; 0: the thread makes its calls at once */
    enum tutti_status refused;
    bool enters; /* the call that is being made is the first one on its communicator */
    struct tutti_comm *entered;          /* the communicators with a call in the set */
    struct cpu_call *calls, **calls_end; /* those that concern other ranks */
    struct call_slot *own, **own_end;    /* messages to this rank itself */
    struct call_slot *slots;             /* kept for later sets */
    struct call_slot **free; /* points to the first slot without a call; no later slot has one */
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
    set->own_end = &set->own;
    set->calls = NULL;
    set->own = NULL;
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

struct call_set *call_set_find(const struct tutti_comm *comm)
{
    struct call_set *set = set_of_thread();
    return set && set->depth && !(comm && comm->cuda) ? set : NULL;
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
    slot->partner = slot->unmatched = slot->next_own = NULL;
    *set->own_end = slot;
    set->own_end = &slot->next_own;
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
                                   const struct request *request)
{
    const bool own =
        coll_rows[request->collective].peer == COLL_PARTNER && request->peer == comm->rank;
    const size_t bytes = own ? 0 : request->choice.run->op_bytes;
    struct call_slot *slot = *set->free;
    if (!slot || slot->state_bytes < bytes) {
        struct call_slot *made = aligned_alloc(64, (sizeof *made + bytes + 63) & ~(size_t)63);
        if (!made)
            return error_set(TUTTI_ERR_NO_MEMORY, "no memory for one more call of a group");
        made->next = slot ? slot->next : NULL;
        made->state_bytes = bytes;
        free(slot);
        *set->free = slot = made;
    }
    slot->comm = comm;
    slot->call.group = comm->host;
    slot->call.chains = &comm->chains;
    slot->call.request = *request;
    slot->call.op = (struct cpu_op *)(void *)slot->state;
    slot->call.next = NULL;
    set->free = &slot->next;
    if (own) {
        own_add(set, slot);
    } else {
        *set->calls_end = &slot->call;
        set->calls_end = &slot->call.next;
    }
    return TUTTI_OK;
}

enum tutti_status call_set_add(struct call_set *set, struct tutti_comm *comm,
                               const struct request *request, uint64_t signature,
                               enum tutti_status status)
{
    if (status == TUTTI_OK)
        status = slot_fill(set, comm, request);
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
    for (const struct call_slot *slot = set->own; slot; slot = slot->next_own) {
        const enum tutti_status status = own_check(slot);
        if (status != TUTTI_OK)
            return status;
    }
    return TUTTI_OK;
}

static enum tutti_status own_run(struct call_slot *slot)
{
    struct request *request = &slot->call.request;
    const enum tutti_status status = cpu_group_status(slot->comm->host, NULL);
    if (status != TUTTI_OK)
        return status;
    request_started(request, cpu_group_sequence(slot->comm->host), RECORD_SUBSET, RECORD_RUNNING);
    if (request->collective == TUTTI_COLLECTIVE_RECV && request->bytes)
        memmove(request->recv, slot->partner->call.request.send, request->bytes);
    return TUTTI_OK;
}

/* ---- the public functions -------------------------------------------------------------------- */

/* Returns the first call's status that is not OK. */
static enum tutti_status set_end(struct call_set *set)
{
    enum tutti_status status = set->refused == TUTTI_OK ? own_check_all(set) : set->refused;
    const bool refused = status != TUTTI_OK;
    const struct call_slot *failed = NULL;
    if (!refused) {
        for (struct call_slot *slot = set->own; slot; slot = slot->next_own)
            slot->call.status = own_run(slot);
        cpu_calls_run(set->calls);
    }
    for (struct call_slot *slot = set->slots; slot != *set->free; slot = slot->next) {
        const enum tutti_status ended =
            call_ended(slot->comm, &slot->call.request, refused ? status : slot->call.status);
        if (!failed && ended != TUTTI_OK)
            failed = slot;
    }
    if (failed && !refused) {
        (void)cpu_group_status(failed->comm->host, NULL); /* sets the thread's last error */
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
