/* SPDX-License-Identifier: MIT */
#include "bootstrap/survivors.h"

#include "base/deadline.h"
#include "base/error.h"
#include "base/log.h"
#include "base/order.h"
#include "base/point.h"
#include "base/reminder.h"
#include "base/text.h"
#include "ipc/random.h"
#include "store/store.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum {
    KEY_BYTES = 192,
    LOOK_NS = 20000000,  /* between two looks at the verdict */
    MOURN_MS = 1000,     /* for a death that shows first in the new communicator */
    MOURN_NS = 10000000, /* between two looks at it */
};

/* What a rank leaves in a round. */
struct entry {
    uint64_t excluded;
    uint64_t completed;
};

/* How the members' work came out. */
struct verdict {
    int32_t status;
    int32_t rank;  /* who says so */
    uint64_t dead; /* members: the others go on without them */
    char text[SURVIVORS_TEXT_BYTES];
};
static_assert(sizeof(struct verdict) <= sizeof(struct survivors_decision), "propose() takes both");

static uint64_t bit(int rank)
{
    return UINT64_C(1) << rank;
}

static uint64_t everybody(const struct survivors *self)
{
    return UINT64_MAX >> (64 - self->comm->world_size);
}

static uint64_t gone(const struct survivors *self)
{
    uint64_t left, dead;
    cpu_group_gone(&self->comm->cpu, &left, &dead);
    return left | dead;
}

/* ---- keys ------------------------------------------------------------------------------------ */

static void key_make(const struct survivors *self, const char *what, char key[KEY_BYTES])
{
    const struct tutti_comm *comm = self->comm;
    int length = snprintf(key, KEY_BYTES, "tutti/%s/shrink/", comm->name);
    for (size_t i = 0; i < sizeof comm->nonce; i++)
        length += snprintf(key + length, KEY_BYTES - (size_t)length, "%02x", comm->nonce[i]);
    snprintf(key + length, KEY_BYTES - (size_t)length, "/%d/%s", self->round, what);
}

static void entry_key_make(const struct survivors *self, int rank, char key[KEY_BYTES])
{
    char what[32];
    snprintf(what, sizeof what, "entry/%d", rank);
    key_make(self, what, key);
}

/* The store is all that the ranks have: what it says stands, but it may have been of one of them.
 */
static enum tutti_status store_failed(const struct survivors *self, enum tutti_status status)
{
    if (status != TUTTI_ERR_SYSTEM && status != TUTTI_ERR_TIMEOUT)
        return error_context(status, "the ranks of communicator \"%s\" cannot agree",
                             self->comm->name);
    return error_context(status,
                         "the ranks of communicator \"%s\" cannot agree, for their store fails%s: "
                         "give one that outlives its ranks",
                         self->comm->name,
                         gone(self) & 1 ? " (rank 0, which may have served it, is gone)" : "");
}

/* What is there is also read after the deadline: see STORE_GRACE_MS. */
static enum tutti_status look_up(const struct survivors *self, const char *key, void *value,
                                 size_t bytes, bool *there)
{
    enum tutti_status status = store_look_up(self->store, key, value, bytes, there);
    return status == TUTTI_OK ? status : store_failed(self, status);
}

/* The first proposal is the answer: *value becomes it. */
static enum tutti_status propose(const struct survivors *self, const char *what, void *value,
                                 size_t bytes)
{
    unsigned char answer[sizeof(struct survivors_decision)];
    char key[KEY_BYTES];
    size_t size;
    key_make(self, what, key);
    enum tutti_status status =
        tutti_store_compare_set(self->store, key, NULL, 0, value, bytes, answer, bytes, &size);
    if (status != TUTTI_OK)
        return store_failed(self, status);
    status = store_value_check(key, size, bytes);
    if (status == TUTTI_OK)
        memcpy(value, answer, bytes);
    return status;
}

/* ---- words ----------------------------------------------------------------------------------- */

static void ranks_format(uint64_t ranks, char *text, size_t size)
{
    int length = 0;
    for (uint64_t rest = ranks; rest; rest &= rest - 1)
        text_append(text, size, &length, "%s%d", length ? ", " : "", __builtin_ctzll(rest));
}

/* Of a failure. What the store holds may be nobody's. */
static enum tutti_status told(const struct survivors *self, int32_t code, int rank,
                              const char *text)
{
    const enum tutti_status status = error_told(code);
    int bytes = SURVIVORS_TEXT_BYTES - 1;
    if (rank == self->comm->rank && *text)
        return error_set(status, "%.*s", bytes, text);
    return error_set(status, "rank %d: %.*s", rank, bytes, *text ? text : "no reason given");
}

/* ---- what ends a wait ------------------------------------------------------------------------ */

static enum tutti_status ask_abort(void *context)
{
    const struct survivors *self = context;
    if (order_load_relaxed_u32(&self->comm->aborts) == self->aborts)
        return TUTTI_OK;
    return error_set(TUTTI_ERR_ABORTED, "rank %d aborted while the ranks agreed who goes on",
                     self->comm->rank);
}

static enum tutti_status ask_deaths(const struct survivors *self)
{
    uint64_t dead = gone(self) & self->decision.members;
    char ranks[200];
    if (!dead)
        return TUTTI_OK;
    ranks_format(dead, ranks, sizeof ranks);
    return error_set(TUTTI_ERR_PEER_DEAD, "rank %s ended while the ranks went on without others",
                     ranks);
}

/* Of the members' work. A verdict goes before deaths: a rank that has its verdict may leave. */
static enum tutti_status ask(void *context)
{
    struct survivors *self = context;
    struct verdict verdict;
    char key[KEY_BYTES];
    bool there = false;
    int64_t now = deadline_now();
    enum tutti_status status = ask_abort(self);
    if (status != TUTTI_OK || now - self->looked_at < LOOK_NS)
        return status;
    self->looked_at = now;
    key_make(self, "verdict", key);
    status = look_up(self, key, &verdict, sizeof verdict, &there);
    if (status != TUTTI_OK)
        return status;
    if (!there)
        return ask_deaths(self);
    return verdict.status == TUTTI_OK ? TUTTI_OK
                                      : told(self, verdict.status, verdict.rank, verdict.text);
}

void survivors_begin(struct survivors *self)
{
    self->aborts = order_load_relaxed_u32(&self->comm->aborts);
    self->round = self->rounds = 0;
    self->interrupt = (struct interrupt){.ask = ask, .context = self};
    self->aborted = (struct interrupt){.ask = ask_abort, .context = self};
}

/* ---- a round's members ----------------------------------------------------------------------- */

/* Entries as they come. */
struct table {
    uint64_t present;
    uint64_t excluded; /* by anybody, or gone */
    struct entry entries[TUTTI_MAX_RANKS];
};

static enum tutti_status entries_read(const struct survivors *self, struct table *table)
{
    enum tutti_status status = TUTTI_OK;
    for (int r = 0; r < self->comm->world_size && status == TUTTI_OK; r++) {
        char key[KEY_BYTES];
        bool there = false;
        if (table->present & bit(r))
            continue;
        entry_key_make(self, r, key);
        status = look_up(self, key, &table->entries[r], sizeof table->entries[r], &there);
        if (status != TUTTI_OK || !there)
            continue;
        table->present |= bit(r);
        table->excluded |= table->entries[r].excluded;
    }
    return status;
}

/* A short while for those who are still to come. Of an abort the caller hears when it asks. */
static enum tutti_status entries_await(const struct survivors *self, uint64_t missing)
{
    char texts[TUTTI_MAX_RANKS][KEY_BYTES];
    const char *keys[TUTTI_MAX_RANKS];
    size_t count = 0;
    for (uint64_t rest = missing; rest; rest &= rest - 1, count++) {
        entry_key_make(self, __builtin_ctzll(rest), texts[count]);
        keys[count] = texts[count];
    }
    enum tutti_status status = tutti_store_wait(self->store, keys, count, INTERRUPT_MS);
    if (status == TUTTI_OK || status == TUTTI_ERR_TIMEOUT || status == TUTTI_ERR_ABORTED)
        return TUTTI_OK;
    return store_failed(self, status);
}

/* All have come: who they are, and under which name they meet. */
static enum tutti_status propose_members(struct survivors *self, const struct table *table)
{
    struct survivors_decision *decision = &self->decision;
    *decision = (struct survivors_decision){
        .rank = self->comm->rank,
        .members = everybody(self) & ~table->excluded,
        .completed_all = UINT64_MAX,
    };
    for (uint64_t rest = decision->members; rest; rest &= rest - 1) {
        uint64_t completed = table->entries[__builtin_ctzll(rest)].completed;
        if (completed < decision->completed_all)
            decision->completed_all = completed;
        if (completed > decision->completed_any)
            decision->completed_any = completed;
    }
    enum tutti_status status = random_fill(decision->meeting.nonce, sizeof decision->meeting.nonce);
    if (status != TUTTI_OK)
        return status;
    status = meet_generation(self->store, self->comm->name, &decision->meeting.generation);
    if (status != TUTTI_OK)
        return store_failed(self, status);
    return propose(self, "members", decision, sizeof *decision);
}

/* The thread's last error is why nobody goes on. */
static enum tutti_status propose_failure(struct survivors *self, enum tutti_status why,
                                         uint64_t absent)
{
    self->decision = (struct survivors_decision){
        .status = (int32_t)why, .rank = self->comm->rank, .absent = absent};
    snprintf(self->decision.text, sizeof self->decision.text, "%s", tutti_last_error());
    return propose(self, "members", &self->decision, sizeof self->decision);
}

static enum tutti_status absent_tell(uint64_t absent)
{
    char ranks[200];
    ranks_format(absent, ranks, sizeof ranks);
    return error_set(TUTTI_ERR_TIMEOUT,
                     "rank %s did not come to tutti_comm_shrink() in time: look at what it does, "
                     "or exclude it and call again",
                     ranks);
}

static void waiting_log(const struct survivors *self, uint64_t missing, struct reminder *reminder)
{
    char ranks[300];
    const int waited_s = reminder_due(reminder, deadline_now());
    if (waited_s)
        log_write(
            TUTTI_LOG_WARN, self->comm->rank,
            "rank %d has waited %d s in tutti_comm_shrink() of communicator \"%s\": %s has not "
            "called it",
            self->comm->rank, waited_s, self->comm->name, text_ranks(missing, ranks, sizeof ranks));
}

/* Leaves an entry and waits until the round is decided. */
static enum tutti_status take_part(struct survivors *self)
{
    const struct entry own = {.excluded = self->excluded, .completed = self->completed};
    struct table table = {.excluded = self->excluded};
    char entry_key[KEY_BYTES], key[KEY_BYTES];
    entry_key_make(self, self->comm->rank, entry_key);
    key_make(self, "members", key);
    enum tutti_status status = tutti_store_set(self->store, entry_key, &own, sizeof own);
    if (status != TUTTI_OK)
        return store_failed(self, status);
    self->rounds++;
    POINT("shrink.entered");
    struct reminder reminder = reminder_start(deadline_now());
    for (;;) {
        bool decided;
        status = entries_read(self, &table);
        if (status == TUTTI_OK)
            status = look_up(self, key, &self->decision, sizeof self->decision, &decided);
        if (status == TUTTI_ERR_ABORTED) /* the others may still hear of it */
            return propose_failure(self, status, 0);
        if (status != TUTTI_OK || decided)
            return status;
        table.excluded |= gone(self);
        uint64_t missing = everybody(self) & ~table.excluded & ~table.present;
        if (!missing)
            return propose_members(self, &table);
        waiting_log(self, missing, &reminder);
        status = ask_abort(self);
        if (status == TUTTI_OK && deadline_passed(self->deadline))
            status = absent_tell(missing);
        if (status != TUTTI_OK)
            return propose_failure(self, status,
                                   status == TUTTI_ERR_TIMEOUT ? missing : UINT64_C(0));
        status = entries_await(self, missing);
        if (status != TUTTI_OK)
            return status;
    }
}

/* The members are others, or nobody. */
static enum tutti_status left_out(const struct survivors *self)
{
    char ranks[200] = "none";
    ranks_format(self->decision.members, ranks, sizeof ranks);
    return error_set(TUTTI_ERR_DECLINED,
                     "rank %d was excluded from communicator \"%s\" by a rank that named it, or "
                     "found it gone; those who go on: %s",
                     self->comm->rank, self->comm->name, ranks);
}

/* A round that was decided before this call came to it: *open says that its members are still at
 * it, and this rank one of them. */
static enum tutti_status catch_up(struct survivors *self, bool *open)
{
    struct verdict verdict;
    char key[KEY_BYTES];
    bool there = false;
    *open = false;
    if (self->decision.status != TUTTI_OK)
        return TUTTI_OK; /* it came to nothing: there is a next one */
    key_make(self, "verdict", key);
    enum tutti_status status = look_up(self, key, &verdict, sizeof verdict, &there);
    if (status != TUTTI_OK)
        return status;
    if (there && verdict.status != TUTTI_OK) {
        if (verdict.dead)
            self->excluded |= verdict.dead | (everybody(self) & ~self->decision.members);
        return self->excluded & bit(self->comm->rank) ? left_out(self) : TUTTI_OK;
    }
    if (there || !(self->decision.members & bit(self->comm->rank)))
        return left_out(self);
    *open = true;
    return TUTTI_OK;
}

enum tutti_status survivors_agree(struct survivors *self)
{
    for (;; self->round++) {
        char key[KEY_BYTES];
        bool decided = false, open = false;
        key_make(self, "members", key);
        enum tutti_status status =
            look_up(self, key, &self->decision, sizeof self->decision, &decided);
        if (status == TUTTI_OK && decided)
            status = catch_up(self, &open);
        if (status != TUTTI_OK || open)
            return status;
        if (decided)
            continue;
        status = take_part(self);
        if (status != TUTTI_OK)
            return status;
        if (self->decision.status != TUTTI_OK)
            return told(self, self->decision.status, self->decision.rank, self->decision.text);
        return self->decision.members & bit(self->comm->rank) ? TUTTI_OK : left_out(self);
    }
}

/* ---- its verdict ----------------------------------------------------------------------------- */

/* A process that ends closes its descriptors one after the other: the new communicator may hear of
 * it before the old one does. Behind the call's deadline there is no next round to hear it for. */
static uint64_t mourn(const struct survivors *self, enum tutti_status status)
{
    int64_t deadline = deadline_after(status == TUTTI_ERR_PEER_DEAD ? MOURN_MS : 0);
    uint64_t dead;
    if (deadline > self->deadline)
        deadline = self->deadline;
    while (!(dead = gone(self) & self->decision.members) && !deadline_passed(deadline))
        nanosleep(&(struct timespec){.tv_nsec = MOURN_NS}, NULL);
    return dead;
}

enum tutti_status survivors_conclude(struct survivors *self, enum tutti_status mine, bool *again)
{
    struct verdict verdict = {.status = (int32_t)mine, .rank = self->comm->rank};
    *again = false;
    if (mine != TUTTI_OK) {
        snprintf(verdict.text, sizeof verdict.text, "%s", tutti_last_error());
        verdict.dead = mourn(self, mine);
    }
    enum tutti_status status = propose(self, "verdict", &verdict, sizeof verdict);
    if (status != TUTTI_OK || verdict.status == TUTTI_OK)
        return status;
    if (verdict.dead) {
        self->excluded |= verdict.dead | (everybody(self) & ~self->decision.members);
        self->round++;
        *again = !(self->excluded & bit(self->comm->rank));
    }
    return told(self, verdict.status, verdict.rank, verdict.text);
}
