/* SPDX-License-Identifier: MIT */
#include "pg/members.h"

#include "base/deadline.h"
#include "base/error.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "base/order.h"
#include "base/point.h"
#include "base/reminder.h"
#include "base/text.h"
#include "bootstrap/links.h"
#include "bootstrap/meet.h"
#include "ipc/random.h"
#include "store/store.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum {
    KEY_BYTES = 448,
    LIST_BYTES = 200,
    TEXT_BYTES = 640,
    CHECK_NS = 50000000, /* between two checks of the other members */
};

/* The communicators that the members make: one on the host and, possibly, one of the devices. */
enum { COMM_HOST, COMM_DIRECT, COMMS };

static const char call[] = "tutti_pg_create";

/* The attempt in which a rank waits, or waited last. */
struct attempt_key {
    int64_t attempt;
    int32_t size;
    int32_t ranks[TUTTI_MAX_RANKS];
};

/* The decision of an attempt. The first member to propose one decides for all. */
struct decision {
    int32_t status; /* enum tutti_status */
    int32_t rank;   /* the rank that proposed it */
    struct meeting meetings[COMMS];
    char text[TEXT_BYTES];
};

struct attempt {
    struct tutti_comm *comm;
    tutti_store_t *store; /* a view whose calls end at the deadline, or at an abort */
    const struct pg_members *members;
    int64_t deadline;
    int64_t checked_at;
    struct attempt_key own;
    struct decision decision;
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
    members->own_index = -1;
    for (int i = 0; i < options->rank_count; i++) {
        int rank = options->ranks[i];
        if (rank < 0 || rank >= comm->world_size)
            return error_set(TUTTI_ERR_INVALID,
                             "%s: ranks[%d] is %d: expected ranks of communicator \"%s\", 0 to %d",
                             call, i, rank, comm->name, comm->world_size - 1);
        if (listed >> rank & 1)
            return list_refuse(i, rank, "which is listed twice: expected each member once");
        listed |= UINT64_C(1) << rank;
        members->ranks[i] = rank;
        if (rank == comm->rank)
            members->own_index = i;
    }
    members->size = options->rank_count;
    if (members->own_index >= 0)
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
    members->own_index = comm->rank;
    for (int r = 0; r < comm->world_size; r++)
        members->ranks[r] = r;
    return TUTTI_OK;
}

/* Format "0,4,2". `at` may come from another process, so its fields are not trusted. */
static void list_format(const struct attempt_key *at, char text[LIST_BYTES])
{
    int length = 0;
    text[0] = 0;
    for (int i = 0; i < at->size && i < TUTTI_MAX_RANKS; i++)
        text_append(text, LIST_BYTES, &length, "%s%d", i ? "," : "", at->ranks[i]);
}

static bool list_has(const struct attempt_key *at, int rank)
{
    for (int i = 0; i < at->size && i < TUTTI_MAX_RANKS; i++)
        if (at->ranks[i] == rank)
            return true;
    return false;
}

static bool list_equals(const struct attempt_key *a, const struct attempt_key *b)
{
    return a->size == b->size &&
           memcmp(a->ranks, b->ranks, (size_t)a->size * sizeof *a->ranks) == 0;
}

/* ---- keys ------------------------------------------------------------------------------------ */

static int prefix_make(const struct tutti_comm *comm, char key[KEY_BYTES])
{
    int length = snprintf(key, KEY_BYTES, "tutti/%s/groups/", comm->name);
    for (size_t i = 0; i < sizeof comm->nonce; i++)
        text_append(key, KEY_BYTES, &length, "%02x", comm->nonce[i]);
    return length;
}

static void rank_key_make(const struct tutti_comm *comm, int rank, char key[KEY_BYTES])
{
    int length = prefix_make(comm, key);
    text_append(key, KEY_BYTES, &length, "/at/%d", rank);
}

/* The key of one value of an attempt. `rank` is -1 if the value is not a rank's. */
static void key_make(const struct tutti_comm *comm, const struct attempt_key *at, const char *what,
                     int rank, char key[KEY_BYTES])
{
    char list[LIST_BYTES];
    int length = prefix_make(comm, key);
    list_format(at, list);
    text_append(key, KEY_BYTES, &length, "/of/%s/%" PRId64 "/%s", list, at->attempt, what);
    if (rank >= 0)
        text_append(key, KEY_BYTES, &length, "/%d", rank);
}

/* ---- decisions ------------------------------------------------------------------------------- */

static enum tutti_status decision_look(const struct attempt *self, const struct attempt_key *at,
                                       struct decision *decision, bool *found)
{
    char key[KEY_BYTES];
    key_make(self->comm, at, "decision", -1, key);
    return store_look_up(self->store, key, decision, sizeof *decision, found);
}

/* Propose a decision. *decision becomes the first proposal of any member. */
static enum tutti_status propose(const struct attempt *self, const struct attempt_key *at,
                                 struct decision *decision)
{
    struct decision answer;
    char key[KEY_BYTES];
    size_t size;
    key_make(self->comm, at, "decision", -1, key);
    enum tutti_status status = tutti_store_compare_set(
        self->store, key, NULL, 0, decision, sizeof *decision, &answer, sizeof answer, &size);
    if (status == TUTTI_OK)
        status = store_value_check(key, size, sizeof answer);
    if (status == TUTTI_OK)
        *decision = answer;
    return status;
}

static enum tutti_status propose_meeting(struct attempt *self)
{
    struct decision *decision = &self->decision;
    *decision = (struct decision){.status = TUTTI_OK, .rank = self->comm->rank};
    enum tutti_status status = TUTTI_OK;
    for (int i = 0; i < COMMS && status == TUTTI_OK; i++) {
        struct meeting *meeting = &decision->meetings[i];
        status = random_fill(meeting->nonce, sizeof meeting->nonce);
        if (status == TUTTI_OK)
            status = meet_generation(self->store, self->comm->name, &meeting->generation);
    }
    return status == TUTTI_OK ? propose(self, &self->own, decision) : status;
}

/* Propose to fail with `why` and the calling thread's last error. */
static enum tutti_status propose_failure(const struct attempt *self, const struct attempt_key *at,
                                         enum tutti_status why, struct decision *decision)
{
    *decision = (struct decision){.status = (int32_t)why, .rank = self->comm->rank};
    snprintf(decision->text, sizeof decision->text, "%s", tutti_last_error());
    return propose(self, at, decision);
}

static enum tutti_status decision_status(const struct attempt *self)
{
    const struct decision *decision = &self->decision;
    const enum tutti_status status = error_told(decision->status);
    const int bytes = TEXT_BYTES - 1;
    if (status == TUTTI_OK)
        return TUTTI_OK;
    if (decision->rank == self->comm->rank)
        return error_set(status, "%.*s", bytes, decision->text);
    return error_set(status, "rank %d gave up making the group: %.*s", (int)decision->rank, bytes,
                     decision->text);
}

/* ---- what ends an attempt -------------------------------------------------------------------- */

/* Whether the communicator has been aborted since the call began. */
static enum tutti_status check_abort(void *context)
{
    const struct attempt *self = context;
    if (!order_load_relaxed_u32(&self->comm->cpu.aborted))
        return TUTTI_OK;
    return error_set(TUTTI_ERR_ABORTED, "%s: rank %d aborted communicator \"%s\"", call,
                     self->comm->rank, self->comm->name);
}

/* Fail if a member has exited. A member that has made the group may exit. */
static enum tutti_status check_exited_members(const struct attempt *self)
{
    uint64_t left, dead;
    cpu_group_gone(&self->comm->cpu, &left, &dead); /* read before the keys that they have set */
    for (int i = 0; i < self->members->size; i++) {
        const int rank = self->members->ranks[i];
        char key[KEY_BYTES];
        const char *keys[] = {key};
        bool done = false;
        if (!((left | dead) >> rank & 1))
            continue;
        key_make(self->comm, &self->own, "done", rank, key);
        enum tutti_status status = tutti_store_check(self->store, keys, 1, &done);
        if (status == TUTTI_OK && !done)
            status = error_set(TUTTI_ERR_PEER_DEAD,
                               "%s: rank %d of communicator \"%s\" is gone (its process ended or "
                               "it destroyed the communicator): make the group without it",
                               call, rank, self->comm->name);
        if (status != TUTTI_OK)
            return status;
    }
    return TUTTI_OK;
}

static enum tutti_status lists_differ(const struct attempt *self, int rank,
                                      const struct attempt_key *other)
{
    char mine[LIST_BYTES], theirs[LIST_BYTES];
    list_format(&self->own, mine);
    list_format(other, theirs);
    return error_set(TUTTI_ERR_MISMATCH,
                     "%s: ranks disagree about the members of a group of communicator \"%s\": rank "
                     "%d has [%s], rank %d, which waits for it, has [%s]: give the same list, in "
                     "the same order, and make groups in the same order",
                     call, self->comm->name, self->comm->rank, mine, rank, theirs);
}

/* Check whether a member that has not come waits for this rank with another list, in an attempt
 * without a decision. Neither would ever come, so both attempts are ended. */
static enum tutti_status check_other_attempt(const struct attempt *self, int rank)
{
    struct attempt_key other;
    struct decision decision;
    char key[KEY_BYTES];
    bool found = false;
    rank_key_make(self->comm, rank, key);
    enum tutti_status status = store_look_up(self->store, key, &other, sizeof other, &found);
    if (status != TUTTI_OK || !found || list_equals(&other, &self->own) ||
        !list_has(&other, self->comm->rank))
        return status;
    status = decision_look(self, &other, &decision, &found);
    if (status != TUTTI_OK || found)
        return status;
    status = lists_differ(self, rank, &other);
    (void)propose_failure(self, &other, status, &decision);
    return decision.rank == self->comm->rank ? lists_differ(self, rank, &other) : TUTTI_OK;
}

static enum tutti_status interrupt_check(void *context)
{
    struct attempt *self = context;
    int64_t now = deadline_now();
    enum tutti_status status = check_abort(self);
    if (status != TUTTI_OK || now - self->checked_at < CHECK_NS)
        return status;
    self->checked_at = now;
    return check_exited_members(self);
}

/* ---- an attempt ------------------------------------------------------------------------------ */

/* The keys of the members' entries. */
struct entries {
    char texts[TUTTI_MAX_RANKS][KEY_BYTES];
    const char *keys[TUTTI_MAX_RANKS];
    size_t count;
};

static void entries_name(const struct attempt *self, struct entries *entries)
{
    entries->count = (size_t)self->members->size;
    for (size_t i = 0; i < entries->count; i++) {
        key_make(self->comm, &self->own, "entry", self->members->ranks[i], entries->texts[i]);
        entries->keys[i] = entries->texts[i];
    }
}

/* Report the first member that has not come. */
static enum tutti_status report_missing(const struct attempt *self, const struct entries *entries)
{
    char list[LIST_BYTES];
    size_t i = 0;
    bool found = true;
    enum tutti_status status = TUTTI_OK;
    for (; i < entries->count && found && status == TUTTI_OK; i++)
        status = tutti_store_check(self->store, &entries->keys[i], 1, &found);
    if (status != TUTTI_OK || found) /* all members have come meanwhile */
        return status;
    list_format(&self->own, list);
    return error_set(TUTTI_ERR_TIMEOUT,
                     "%s: rank %d did not come to the group of ranks [%s] of communicator \"%s\" "
                     "in time: does it call %s() with this list, on the same store?",
                     call, self->members->ranks[i - 1], list, self->comm->name, call);
}

/* Check for members that will not come. */
static enum tutti_status check_missing(struct attempt *self, const struct entries *entries)
{
    enum tutti_status status = interrupt_check(self);
    for (size_t i = 0; i < entries->count && status == TUTTI_OK; i++) {
        bool found = true;
        status = tutti_store_check(self->store, &entries->keys[i], 1, &found);
        if (status == TUTTI_OK && !found)
            status = check_other_attempt(self, self->members->ranks[i]);
    }
    if (status == TUTTI_OK && deadline_passed(self->deadline))
        status = report_missing(self, entries);
    return status;
}

/* Says in the log which members have not come, if the wait is long. */
static void waiting_log(const struct attempt *self, const struct entries *entries,
                        struct reminder *reminder)
{
    char ranks[300];
    uint64_t missing = 0;
    const int waited_s = reminder_due(reminder, deadline_now());
    for (size_t i = 0; i < entries->count && waited_s; i++) {
        bool there = false;
        if (tutti_store_check(self->store, &entries->keys[i], 1, &there) == TUTTI_OK && !there)
            missing |= UINT64_C(1) << self->members->ranks[i];
    }
    if (waited_s)
        log_write(TUTTI_LOG_WARN, self->comm->rank,
                  "rank %d has waited %d s to meet the members of a process group: %s %s not come",
                  self->comm->rank, waited_s, text_ranks(missing, ranks, sizeof ranks),
                  missing & (missing - 1) ? "have" : "has");
}

/* Write an entry and wait until the attempt is decided. */
static enum tutti_status join_attempt(struct attempt *self)
{
    struct entries entries;
    char key[KEY_BYTES];
    bool decided = false, complete = false;
    const int rank = self->comm->rank;
    entries_name(self, &entries);
    rank_key_make(self->comm, rank, key);
    enum tutti_status status = tutti_store_set(self->store, key, &self->own, sizeof self->own);
    if (status == TUTTI_OK)
        status = tutti_store_set(self->store, entries.keys[self->members->own_index], &rank, 1);
    POINT("members.entered");
    struct reminder reminder = reminder_start(deadline_now());
    while (status == TUTTI_OK) {
        status = decision_look(self, &self->own, &self->decision, &decided);
        if (status == TUTTI_OK && decided)
            break;
        if (status == TUTTI_OK)
            status = tutti_store_check(self->store, entries.keys, entries.count, &complete);
        if (status == TUTTI_OK && complete)
            return propose_meeting(self);
        if (status == TUTTI_OK)
            status = check_missing(self, &entries);
        if (status != TUTTI_OK)
            return propose_failure(self, &self->own, status, &self->decision);
        waiting_log(self, &entries, &reminder);
        const int64_t left = deadline_timeout_ms(self->deadline);
        status = tutti_store_wait(self->store, entries.keys, entries.count,
                                  left < 0 || left > INTERRUPT_MS ? INTERRUPT_MS : left);
        if (status == TUTTI_ERR_TIMEOUT ||
            status == TUTTI_ERR_ABORTED) /* check_missing() checks both */
            status = TUTTI_OK;
    }
    return status;
}

/* Find the first attempt with this list that has no decision. All members with this list wait
 * there. */
static enum tutti_status find_open_attempt(struct attempt *self)
{
    enum tutti_status status;
    bool decided = false;
    do
        status = decision_look(self, &self->own, &self->decision, &decided);
    while (status == TUTTI_OK && decided && ++self->own.attempt);
    return status;
}

/* ---- the members' communicators -------------------------------------------------------------- */

/* Adapt the configuration. The communicator on the host has no device and no links between devices.
 * With a list the order of sums is that of the list; without one it is that of the caller's
 * communicator. */
static void config_adapt(const struct tutti_comm *from, const struct pg_members *members, int which,
                         struct tutti_comm *made)
{
    if (which == COMM_HOST && from->config.device != TUTTI_DEVICE_CPU) {
        links_free(made);
        made->config.device = TUTTI_DEVICE_CPU;
        made->config.algo = TUTTI_ALGO_NONE;
        made->config.topology_size = 0;
        made->programmatic = TUTTI_PROGRAMMATIC_AUTO;
    }
    for (int leaf = 0; leaf < members->size; leaf++)
        made->config.leaf_order[leaf] = members->listed ? leaf : from->config.leaf_order[leaf];
    made->config.leaf_order_given = true;
}

/* Make the communicator's handle. Its name lists the members, since errors that name a rank also
 * name the communicator. */
static enum tutti_status comm_make(const struct attempt *self, int which, struct tutti_comm **made)
{
    char list[LIST_BYTES], name[COMM_NAME_BYTES];
    list_format(&self->own, list);
    int length = snprintf(name, sizeof name, "%s[%s]", self->comm->name, list);
    if ((size_t)length >= sizeof name)
        memcpy(name + sizeof name - 5, "...]", 5);
    enum tutti_status status = comm_derive(self->comm, self->members->ranks, self->members->size,
                                           self->members->own_index, name, made);
    if (status == TUTTI_OK)
        config_adapt(self->comm, self->members, which, *made);
    return status;
}

/* Make one of the members' communicators. */
static enum tutti_status assemble(struct attempt *self, int which, struct tutti_comm **made)
{
    const struct interrupt interrupt = {.ask = interrupt_check, .context = self};
    char key[KEY_BYTES];
    tutti_store_t *view;
    key_make(self->comm, &self->own, "meeting", which, key);
    enum tutti_status status = tutti_store_prefix(self->store, key, &view);
    if (status != TUTTI_OK)
        return status;
    struct tutti_store store = store_bounded(view, self->deadline, &interrupt);
    status = comm_make(self, which, made);
    if (status == TUTTI_OK)
        status = comm_assemble(*made, &store, &self->decision.meetings[which], &interrupt,
                               self->deadline);
    tutti_store_close(view);
    return status == TUTTI_OK
               ? TUTTI_OK
               : error_context(status, "%s: the communicator of the group's members", call);
}

/* Make the communicator of the devices. If one member has none, all members give it up. A member
 * that was aborted returns at once; its peers notice that in the communicator on the host. */
static enum tutti_status assemble_direct(struct attempt *self, struct tutti_comm *made,
                                         struct tutti_comm **direct)
{
    if (!self->comm->cuda || self->members->size < 2)
        return TUTTI_OK;
    enum tutti_status status = assemble(self, COMM_DIRECT, direct);
    uint32_t all = status == TUTTI_OK;
    if (status == TUTTI_ERR_ABORTED)
        return status;
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

static enum tutti_status meet_members(struct attempt *self, struct tutti_comm **made,
                                      struct tutti_comm **direct)
{
    char key[KEY_BYTES];
    enum tutti_status status = find_open_attempt(self);
    if (status == TUTTI_OK)
        status = join_attempt(self);
    if (status == TUTTI_OK)
        status = decision_status(self);
    if (status == TUTTI_OK)
        status = assemble(self, COMM_HOST, made);
    if (status == TUTTI_OK)
        status = assemble_direct(self, *made, direct);
    key_make(self->comm, &self->own, "done", self->comm->rank, key);
    return status == TUTTI_OK ? tutti_store_set(self->store, key, "1", 1) : status;
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
    struct attempt self = {
        .comm = comm,
        .members = members,
        .deadline = deadline_after(timeout_ms),
        .own = {.size = members->size},
    };
    const struct interrupt aborted = {.ask = check_abort, .context = &self};
    struct tutti_store view = store_bounded(store, self.deadline, &aborted);
    self.store = &view;
    for (int i = 0; i < members->size; i++)
        self.own.ranks[i] = members->ranks[i];
    enum tutti_status status = meet_members(&self, made, direct);
    if (status != TUTTI_OK) {
        tutti_comm_destroy(*direct);
        tutti_comm_destroy(*made);
        *made = *direct = NULL;
    }
    order_store_release_u32(&comm->grouping, 0); /* C2 */
    return status;
}
