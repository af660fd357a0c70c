/* SPDX-License-Identifier: MIT */
#include "pg/members.h"

#include "deadline.h"
#include "error.h"
#include "interrupt.h"
#include "links.h"
#include "log.h"
#include "order.h"
#include "point.h"
#include "store/nap.h"
#include "store/store.h"
#include "text.h"

#include <stdio.h>
#include <string.h>

enum {
    KEY_BYTES = 192,
    LIST_BYTES = 200,
    TEXT_BYTES = 1024,
    FIRST_NAP_NS = 500000,
    LONGEST_NAP_NS = 20000000,
    LOOK_NS = 50000000, /* between two looks at members that have been seen */
};

static const char call[] = "tutti_pg_create";

/* What a rank tells of its groups; they are numbered, on each rank for itself, from 1. */
struct entry {
    uint64_t number;                /* of the group that it is making, or has made last */
    uint64_t failed;                /* the last one that failed */
    uint64_t made;                  /* the last one that did not */
    uint64_t over[TUTTI_MAX_RANKS]; /* by rank: that one's number of the last group which is over */
    int32_t status;                 /* enum tutti_status with which `failed` did */
    int32_t size;
    int32_t ranks[TUTTI_MAX_RANKS];
};

struct meeting_of_members {
    struct tutti_comm *comm;
    tutti_store_t *store;
    const struct pg_members *members;
    int64_t deadline;
    int64_t looked_at; /* at all members */
    uint32_t aborts;   /* of the communicator, before */
    struct entry own;
    uint64_t seen[TUTTI_MAX_RANKS]; /* by place: the member's number of this group; 0: not yet */
};

/* ---- the list -------------------------------------------------------------------------------- */

static enum tutti_status list_refuse(int index, int rank, const char *what)
{
    return error_set(TUTTI_ERR_INVALID, "%s: ranks[%d] is %d, %s", call, index, rank, what);
}

static enum tutti_status list_read(const struct tutti_comm *comm,
                                   const struct tutti_pg_options *options,
                                   struct pg_members *members)
{
    uint64_t listed = 0;
    members->place = -1;
    for (int i = 0; i < options->rank_count; i++) {
        int rank = options->ranks[i];
        if (rank < 0 || rank >= comm->world_size)
            return error_set(TUTTI_ERR_INVALID,
                             "%s: ranks[%d] is %d: expected ranks of communicator \"%s\", 0 to %d",
                             call, i, rank, comm->name, comm->world_size - 1);
        if (listed >> rank & 1)
            return list_refuse(i, rank, "as is one before it: expected each member once");
        listed |= UINT64_C(1) << rank;
        members->ranks[i] = rank;
        if (rank == comm->rank)
            members->place = i;
    }
    members->size = options->rank_count;
    if (members->place >= 0)
        return TUTTI_OK;
    return error_set(TUTTI_ERR_INVALID,
                     "%s: the caller, rank %d, is not in the list of %d ranks: only members make a "
                     "group",
                     call, comm->rank, options->rank_count);
}

enum tutti_status pg_members_read(const struct tutti_comm *comm,
                                  const struct tutti_pg_options *options,
                                  struct pg_members *members)
{
    *members = (struct pg_members){.listed = options->ranks != NULL};
    if (!options->ranks != !options->rank_count || options->rank_count < 0 ||
        options->rank_count > comm->world_size)
        return error_set(TUTTI_ERR_INVALID,
                         "%s: a list of %d ranks at %p: expected NULL and 0 for all ranks, or 1 to "
                         "%d members",
                         call, options->rank_count, (const void *)options->ranks, comm->world_size);
    if (members->listed)
        return list_read(comm, options, members);
    members->size = comm->world_size;
    members->place = comm->rank;
    for (int r = 0; r < comm->world_size; r++)
        members->ranks[r] = r;
    return TUTTI_OK;
}

/* "0,4,2"; comes from another process: what it says of itself is not trusted. */
static void list_format(const struct entry *entry, char text[LIST_BYTES])
{
    int length = 0;
    text[0] = 0;
    for (int i = 0; i < entry->size && i < TUTTI_MAX_RANKS; i++)
        text_append(text, LIST_BYTES, &length, "%s%d", i ? "," : "", entry->ranks[i]);
}

static bool list_has(const struct entry *entry, int rank)
{
    for (int i = 0; i < entry->size && i < TUTTI_MAX_RANKS; i++)
        if (entry->ranks[i] == rank)
            return true;
    return false;
}

static bool list_equals(const struct entry *a, const struct entry *b)
{
    return a->size == b->size &&
           memcmp(a->ranks, b->ranks, (size_t)a->size * sizeof *a->ranks) == 0;
}

/* ---- the store ------------------------------------------------------------------------------- */

static void prefix_make(const struct tutti_comm *comm, char key[KEY_BYTES], const char *what)
{
    int length = snprintf(key, KEY_BYTES, "tutti/%s/groups/", comm->name);
    for (size_t i = 0; i < sizeof comm->nonce; i++)
        text_append(key, KEY_BYTES, &length, "%02x", comm->nonce[i]);
    text_append(key, KEY_BYTES, &length, "/%s", what);
}

static void entry_key_make(const struct tutti_comm *comm, int rank, char key[KEY_BYTES])
{
    char what[32];
    snprintf(what, sizeof what, "%d", rank);
    prefix_make(comm, key, what);
}

static enum tutti_status entry_write(const struct meeting_of_members *self)
{
    char key[KEY_BYTES];
    entry_key_make(self->comm, self->comm->rank, key);
    return tutti_store_set(self->store, key, &self->own, sizeof self->own);
}

/* An empty one if there is none. */
static enum tutti_status entry_read(const struct meeting_of_members *self, int rank,
                                    struct entry *entry)
{
    char key[KEY_BYTES];
    const char *keys[] = {key};
    bool there = false;
    size_t size = sizeof *entry;
    memset(entry, 0, sizeof *entry);
    entry_key_make(self->comm, rank, key);
    enum tutti_status status = tutti_store_check(self->store, keys, 1, &there);
    if (status == TUTTI_OK && there)
        status = tutti_store_get(self->store, key, 0, entry, sizeof *entry, &size);
    return status == TUTTI_OK ? store_value_check(key, size, sizeof *entry) : status;
}

/* ---- one member ------------------------------------------------------------------------------ */

static enum tutti_status disagree(const struct meeting_of_members *self, int rank,
                                  const struct entry *entry)
{
    char mine[LIST_BYTES], theirs[LIST_BYTES];
    list_format(&self->own, mine);
    list_format(entry, theirs);
    return error_set(TUTTI_ERR_MISMATCH,
                     "%s: ranks disagree about the members of a group of communicator \"%s\": rank "
                     "%d has [%s], rank %d, which waits for it, has [%s]: give the same list, in "
                     "the same order, and make groups in the same order",
                     call, self->comm->name, self->comm->rank, mine, rank, theirs);
}

static enum tutti_status has_given_up(const struct meeting_of_members *self, int rank,
                                      const struct entry *entry)
{
    bool known = entry->status > TUTTI_OK && entry->status <= TUTTI_ERR_VERSION;
    enum tutti_status status = known ? (enum tutti_status)entry->status : TUTTI_ERR_SYSTEM;
    return error_set(status,
                     "%s: rank %d of communicator \"%s\" has given the group up with %s: its error "
                     "says why; call again on all members",
                     call, rank, self->comm->name, tutti_status_name(status));
}

/* A member that waits for something now: for this group, or, if it waits for this rank elsewhere,
 * neither will ever come. */
static enum tutti_status waiting_look(struct meeting_of_members *self, int place,
                                      const struct entry *entry)
{
    const int rank = self->members->ranks[place];
    if (list_equals(entry, &self->own))
        self->seen[place] = entry->number;
    else if (list_has(entry, self->comm->rank)) {
        self->comm->groups_over[rank] = entry->number;
        return disagree(self, rank, entry);
    }
    return TUTTI_OK;
}

/* One that has failed: who gives up this group gives it up for all, also for those who come later,
 * unless that was when this rank's last one failed, too. */
static enum tutti_status failed_look(const struct meeting_of_members *self, int rank,
                                     const struct entry *entry)
{
    const struct entry *own = &self->own;
    const uint64_t last = own->failed == own->number - 1 ? own->failed : 0;
    if (!list_equals(entry, own))
        return TUTTI_OK;
    self->comm->groups_over[rank] = entry->number;
    return last && entry->over[self->comm->rank] == last ? TUTTI_OK
                                                         : has_given_up(self, rank, entry);
}

/* Whether the member, who has not been seen yet, has come. */
static enum tutti_status member_look(struct meeting_of_members *self, int place,
                                     const struct entry *entry)
{
    const int rank = self->members->ranks[place], me = self->comm->rank;
    const bool waits = entry->number > entry->failed && entry->number > entry->made;
    if (entry->number <= self->comm->groups_over[rank])
        return TUTTI_OK;
    if (entry->over[me] >= self->own.number) { /* it has met this rank, here or elsewhere */
        self->comm->groups_over[rank] = waits ? entry->number - 1 : entry->number;
        return waits || list_equals(entry, &self->own) ? has_given_up(self, rank, entry)
                                                       : disagree(self, rank, entry);
    }
    if (waits)
        return waiting_look(self, place, entry);
    return entry->number == entry->failed ? failed_look(self, rank, entry) : TUTTI_OK;
}

/* ---- what ends it ---------------------------------------------------------------------------- */

static enum tutti_status ask_abort(const struct meeting_of_members *self)
{
    if (order_load_relaxed_u32(&self->comm->aborts) == self->aborts)
        return TUTTI_OK;
    return error_set(TUTTI_ERR_ABORTED, "%s: rank %d aborted communicator \"%s\"", call,
                     self->comm->rank, self->comm->name);
}

/* A member that is gone, or has given up. One that has made the group may go where it likes. */
static enum tutti_status ask_member(struct meeting_of_members *self, int place, bool gone)
{
    const int rank = self->members->ranks[place];
    struct entry entry;
    enum tutti_status status = entry_read(self, rank, &entry);
    if (status != TUTTI_OK)
        return status;
    const uint64_t seen = self->seen[place];
    if (seen && entry.made >= seen)
        return TUTTI_OK;
    if (seen && entry.failed >= seen)
        return has_given_up(self, rank, &entry);
    if (gone)
        return error_set(TUTTI_ERR_PEER_DEAD,
                         "%s: rank %d of communicator \"%s\" is gone (its process ended or it "
                         "destroyed the communicator): make the group without it",
                         call, rank, self->comm->name);
    return seen ? TUTTI_OK : member_look(self, place, &entry);
}

static enum tutti_status ask(void *context)
{
    struct meeting_of_members *self = context;
    const struct pg_members *members = self->members;
    uint64_t left, dead;
    int64_t now = deadline_now();
    enum tutti_status status = ask_abort(self);
    if (status != TUTTI_OK || now - self->looked_at < LOOK_NS)
        return status;
    self->looked_at = now;
    cpu_group_gone(&self->comm->cpu, &left, &dead); /* before what they have said is read */
    for (int i = 0; i < members->size && status == TUTTI_OK; i++)
        if (i != members->place)
            status = ask_member(self, i, (left | dead) >> members->ranks[i] & 1);
    return status;
}

/* ---- all of them ----------------------------------------------------------------------------- */

/* Looks at those who have not come; *missing is one of them, -1 if all have. */
static enum tutti_status members_look(struct meeting_of_members *self, int *missing)
{
    const struct pg_members *members = self->members;
    enum tutti_status status = TUTTI_OK;
    *missing = -1;
    for (int i = 0; i < members->size && status == TUTTI_OK; i++) {
        struct entry entry;
        if (i == members->place || self->seen[i])
            continue;
        status = entry_read(self, members->ranks[i], &entry);
        if (status == TUTTI_OK)
            status = member_look(self, i, &entry);
        if (!self->seen[i])
            *missing = members->ranks[i];
    }
    return status;
}

static enum tutti_status missing_tell(const struct meeting_of_members *self, int missing)
{
    char list[LIST_BYTES];
    list_format(&self->own, list);
    return error_set(TUTTI_ERR_TIMEOUT,
                     "%s: rank %d did not come to the group of ranks [%s] of communicator \"%s\" "
                     "in time: does it call %s() with this list, on the same store?",
                     call, missing, list, self->comm->name, call);
}

static enum tutti_status members_await(struct meeting_of_members *self)
{
    int64_t nap_ns = FIRST_NAP_NS;
    enum tutti_status status = entry_write(self);
    POINT("members.entered");
    while (status == TUTTI_OK) {
        int missing;
        status = members_look(self, &missing);
        if (status != TUTTI_OK || missing < 0)
            return status;
        status = ask(self);
        if (status == TUTTI_OK && deadline_passed(self->deadline))
            status = missing_tell(self, missing);
        if (status == TUTTI_OK)
            nap(self->deadline, &nap_ns, LONGEST_NAP_NS);
    }
    return status;
}

/* ---- their communicator ---------------------------------------------------------------------- */

/* That on the host is of no device and knows nothing of links between devices. The order of sums is
 * that of the list; all ranks keep the communicator's. */
static void config_adapt(const struct tutti_comm *from, const struct pg_members *members, bool host,
                         struct tutti_comm *made)
{
    if (host && from->config.device != TUTTI_DEVICE_CPU) {
        links_free(made);
        made->config.device = TUTTI_DEVICE_CPU;
        made->config.algo = TUTTI_ALGO_NONE;
        made->config.topology_size = 0;
        made->programmatic = false;
    }
    for (int leaf = 0; leaf < members->size; leaf++)
        made->config.leaf_order[leaf] = members->listed ? leaf : from->config.leaf_order[leaf];
    made->config.leaf_order_given = true;
}

/* Its name says who its ranks are: errors that name a rank name it, too. */
static enum tutti_status comm_make(const struct meeting_of_members *self, bool host,
                                   struct tutti_comm **made)
{
    char list[LIST_BYTES], name[COMM_NAME_BYTES];
    list_format(&self->own, list);
    int length = snprintf(name, sizeof name, "%s[%s]", self->comm->name, list);
    if ((size_t)length >= sizeof name)
        memcpy(name + sizeof name - 5, "...]", 5);
    enum tutti_status status = comm_derive(self->comm, self->members->ranks, self->members->size,
                                           self->members->place, name, made);
    if (status != TUTTI_OK)
        return status;
    config_adapt(self->comm, self->members, host, *made);
    return TUTTI_OK;
}

/* The list is the name of the place at which they meet. */
static enum tutti_status view_open(const struct meeting_of_members *self, bool host,
                                   tutti_store_t **view)
{
    char list[LIST_BYTES], prefix[KEY_BYTES + LIST_BYTES];
    list_format(&self->own, list);
    prefix_make(self->comm, prefix, host ? "of/" : "direct/");
    snprintf(prefix + strlen(prefix), LIST_BYTES, "%s", list);
    return tutti_store_prefix(self->store, prefix, view);
}

/* Puts one of the members' communicators together. */
static enum tutti_status assemble(struct meeting_of_members *self, bool host,
                                  struct tutti_comm **made)
{
    const struct interrupt interrupt = {.ask = ask, .context = self};
    tutti_store_t *view;
    enum tutti_status status = view_open(self, host, &view);
    if (status != TUTTI_OK)
        return status;
    struct tutti_store store = store_interruptible(view, &interrupt);
    status = comm_make(self, host, made);
    if (status == TUTTI_OK)
        status = comm_assemble(*made, &store, NULL, &interrupt, self->deadline);
    tutti_store_close(view);
    return status == TUTTI_OK
               ? TUTTI_OK
               : error_context(status, "%s: the communicator of the group's members", call);
}

/* The one of their devices, beside that of their hosts; none, on all members, if one has none. */
static enum tutti_status assemble_direct(struct meeting_of_members *self, struct tutti_comm *made,
                                         struct tutti_comm **direct)
{
    if (!self->comm->cuda || self->members->size < 2)
        return TUTTI_OK;
    enum tutti_status status = assemble(self, false, direct);
    uint32_t all = status == TUTTI_OK;
    if (!all)
        log_write(TUTTI_LOG_INFO, self->comm->rank,
                  "a process group goes through the host alone: %s", tutti_last_error());
    status = comm_all_reduce(made, &all, 1, TUTTI_UINT32, TUTTI_MIN, made->timeout_ms);
    if (status == TUTTI_OK && all)
        return TUTTI_OK;
    tutti_comm_destroy(*direct);
    *direct = NULL;
    return status;
}

static void entry_begin(struct meeting_of_members *self)
{
    struct tutti_comm *comm = self->comm;
    self->own = (struct entry){
        .number = ++comm->groups,
        .failed = comm->groups_failed,
        .made = comm->groups_made,
        .status = comm->groups_status,
        .size = self->members->size,
    };
    memcpy(self->own.over, comm->groups_over, sizeof self->own.over);
    for (int i = 0; i < self->members->size; i++)
        self->own.ranks[i] = self->members->ranks[i];
}

/* Tells the others how it came out here. */
static enum tutti_status conclude(struct meeting_of_members *self, enum tutti_status status)
{
    struct tutti_comm *comm = self->comm;
    char text[TEXT_BYTES];
    for (int i = 0; i < self->members->size; i++)
        if (self->seen[i])
            comm->groups_over[self->members->ranks[i]] = self->seen[i];
    memcpy(self->own.over, comm->groups_over, sizeof self->own.over);
    if (status == TUTTI_OK) {
        self->own.made = comm->groups_made = self->own.number;
        return entry_write(self);
    }
    self->own.failed = comm->groups_failed = self->own.number;
    self->own.status = comm->groups_status = (int32_t)status;
    snprintf(text, sizeof text, "%s", tutti_last_error());
    (void)entry_write(self); /* who does not hear it waits for its own time-out */
    return error_set(status, "%s", text);
}

enum tutti_status pg_members_meet(struct tutti_comm *comm, tutti_store_t *store,
                                  const struct pg_members *members, int64_t timeout_ms,
                                  struct tutti_comm **made, struct tutti_comm **direct)
{
    *made = *direct = NULL;
    if (order_exchange_u32(&comm->grouping, 1)) /* C2: pairs the release below */
        return error_set(TUTTI_ERR_CONCURRENT,
                         "%s: another thread of rank %d is making a group of communicator \"%s\": "
                         "one at a time",
                         call, comm->rank, comm->name);
    struct meeting_of_members self = {
        .comm = comm,
        .store = store,
        .members = members,
        .deadline = deadline_after(timeout_ms),
        .aborts = order_load_relaxed_u32(&comm->aborts),
    };
    entry_begin(&self);
    enum tutti_status status = members_await(&self);
    if (status == TUTTI_OK)
        status = assemble(&self, true, made);
    if (status == TUTTI_OK)
        status = assemble_direct(&self, *made, direct);
    status = conclude(&self, status);
    if (status != TUTTI_OK) {
        tutti_comm_destroy(*direct);
        tutti_comm_destroy(*made);
        *made = *direct = NULL;
    }
    order_store_release_u32(&comm->grouping, 0); /* C2 */
    return status;
}
