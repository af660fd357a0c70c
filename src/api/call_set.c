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
struct slot {
    struct cpu_call call;
    struct tutti_comm *comm;
    bool enters; /* the first call of the set on that communicator */
    struct slot *next;
    size_t state_bytes;
    _Alignas(64) unsigned char state[];
};

struct call_set {
    uint32_t epoch; /* of the process: ipc/fork.h */
    int depth;      /* of nested starts; 0: the thread makes its calls at once */
    enum tutti_status refused;
    bool enters;        /* the call that is being made is the first one on its communicator */
    struct slot *slots; /* kept for later sets */
    struct slot **free; /* points to the first slot without a call; no later slot has one */
};

uint32_t call_sets_open;
static pthread_key_t key;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Forgets the calls, and lets others use the communicators. */
static void set_clear(struct call_set *set)
{
    for (const struct slot *slot = set->slots; slot != *set->free; slot = slot->next)
        if (slot->enters)
            call_leave(slot->comm);
    set->free = &set->slots;
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
    for (struct slot *slot = set->slots, *next; slot; slot = next) {
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

static bool has_entered(const struct call_set *set, const struct tutti_comm *comm)
{
    for (const struct slot *slot = set->slots; slot != *set->free; slot = slot->next)
        if (slot->comm == comm)
            return true;
    return false;
}

enum tutti_status call_set_enter(struct call_set *set, struct tutti_comm *comm, const char *call)
{
    set->enters = !has_entered(set, comm);
    return !set->enters || call_enter(comm) ? TUTTI_OK
                                            : set_refuse(set, call_refuse_entry(comm, call));
}

static enum tutti_status slot_fill(struct call_set *set, struct tutti_comm *comm,
                                   const struct request *request)
{
    const size_t bytes = request->choice.run->op_bytes;
    struct slot *slot = *set->free;
    if (!slot || slot->state_bytes < bytes) {
        struct slot *made = aligned_alloc(64, (sizeof *made + bytes + 63) & ~(size_t)63);
        if (!made)
            return error_set(TUTTI_ERR_NO_MEMORY, "no memory for one more call of a group");
        made->next = slot ? slot->next : NULL;
        made->state_bytes = bytes;
        free(slot);
        *set->free = slot = made;
    }
    slot->enters = set->enters;
    slot->comm = comm;
    slot->call.group = comm->host;
    slot->call.request = *request;
    slot->call.op = (struct cpu_op *)(void *)slot->state;
    set->free = &slot->next;
    return TUTTI_OK;
}

enum tutti_status call_set_add(struct call_set *set, struct tutti_comm *comm,
                               const struct request *request, uint64_t signature,
                               enum tutti_status status)
{
    if (status == TUTTI_OK)
        status = slot_fill(set, comm, request);
    if (status == TUTTI_OK)
        return TUTTI_OK;
    call_refused(comm, signature, status);
    if (set->enters)
        call_leave(comm);
    return set_refuse(set, status);
}

/* ---- messages to oneself --------------------------------------------------------------------- */

static bool is_own(const struct slot *slot)
{
    const struct request *request = &slot->call.request;
    return coll_rows[request->collective].peer == COLL_PARTNER && request->peer == slot->comm->rank;
}

/* The receive of a send, or the send of a receive, to oneself. Send n of a communicator belongs to
 * its receive n. NULL: there is none. */
static const struct slot *own_partner(const struct call_set *set, const struct slot *slot)
{
    int number = 0;
    for (const struct slot *other = set->slots; other != slot; other = other->next)
        number += is_own(other) && other->comm == slot->comm &&
                  other->call.request.collective == slot->call.request.collective;
    for (const struct slot *other = set->slots; other != *set->free; other = other->next)
        if (is_own(other) && other->comm == slot->comm &&
            other->call.request.collective != slot->call.request.collective && number-- == 0)
            return other;
    return NULL;
}

static enum tutti_status own_check(const struct call_set *set, const struct slot *slot)
{
    const struct request *request = &slot->call.request;
    const struct slot *other = own_partner(set, slot);
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
    for (const struct slot *slot = set->slots; slot != *set->free; slot = slot->next) {
        const enum tutti_status status = is_own(slot) ? own_check(set, slot) : TUTTI_OK;
        if (status != TUTTI_OK)
            return status;
    }
    return TUTTI_OK;
}

static enum tutti_status own_run(const struct call_set *set, struct slot *slot)
{
    struct request *request = &slot->call.request;
    const enum tutti_status status = cpu_group_status(slot->comm->host, NULL);
    if (status != TUTTI_OK)
        return status;
    request_started(request, cpu_group_sequence(slot->comm->host), RECORD_SUBSET, RECORD_RUNNING);
    if (request->collective == TUTTI_COLLECTIVE_RECV && request->bytes)
        memmove(request->recv, own_partner(set, slot)->call.request.send, request->bytes);
    return TUTTI_OK;
}

/* ---- the public functions -------------------------------------------------------------------- */

static void set_run(struct call_set *set)
{
    struct cpu_call *first = NULL, **last = &first;
    for (struct slot *slot = set->slots; slot != *set->free; slot = slot->next) {
        if (is_own(slot)) {
            slot->call.status = own_run(set, slot);
            continue;
        }
        *last = &slot->call;
        slot->call.next = NULL;
        last = &slot->call.next;
    }
    cpu_calls_run(first);
}

/* Returns the first call's status that is not OK. */
static enum tutti_status set_end(struct call_set *set)
{
    enum tutti_status status = set->refused == TUTTI_OK ? own_check_all(set) : set->refused;
    const bool refused = status != TUTTI_OK;
    const struct slot *failed = NULL;
    if (!refused)
        set_run(set);
    for (struct slot *slot = set->slots; slot != *set->free; slot = slot->next) {
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
        set->free = &set->slots;
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
