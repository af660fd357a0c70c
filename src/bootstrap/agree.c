/* SPDX-License-Identifier: MIT */
#include "bootstrap/agree.h"

#include "base/deadline.h"
#include "base/error.h"
#include "base/log.h"
#include "base/order.h"
#include "base/point.h"
#include "base/reminder.h"
#include "base/text.h"
#include "ipc/random.h"
#include "peers/peers.h"
#include "store/store.h"

#include <assert.h>
#include <string.h>
#include <time.h>

enum {
    RANKS_BYTES = 300,
    CHECK_NS = 20000000, /* between two checks of the members */
    EXIT_MS = 1000,      /* the new communicator may notice an exit before the old one does */
    EXIT_NS = 10000000,  /* between two checks for that exit */
    AWAITED_MOST = 64,   /* keys that fit on the stack */
};

/* What a rank leaves in a round. */
struct entry {
    struct rank_set excluded;
    uint64_t completed;
};

/* The ranks of `ranks` that have exited. */
static struct rank_set exited_of(const struct agree *self, struct rank_set ranks)
{
    struct rank_set left, dead;
    peers_exited(self->peers, &left, &dead);
    struct rank_set exited = peers_named(self->peers, rank_set_union(left, dead));
    if (self->left_elsewhere)
        exited = rank_set_union(exited, self->left_elsewhere(self->hierarchy));
    return rank_set_common(ranks, exited);
}

/* ---- keys ------------------------------------------------------------------------------------ */

void agree_key_make(const struct agree *self, const char *what, int rank, char key[AGREE_KEY_BYTES])
{
    int length = 0;
    text_append(key, AGREE_KEY_BYTES, &length, "tutti/%s/agree/", self->name);
    for (int i = 0; i < 16; i++)
        text_append(key, AGREE_KEY_BYTES, &length, "%02x", self->nonce[i]);
    text_append(key, AGREE_KEY_BYTES, &length, "/%s/%d/%s", self->topic, self->round, what);
    if (rank >= 0)
        text_append(key, AGREE_KEY_BYTES, &length, "/%d", rank);
}

static enum tutti_status store_failed(const struct agree *self, enum tutti_status status)
{
    if (status != TUTTI_ERR_SYSTEM && status != TUTTI_ERR_TIMEOUT)
        return error_context(status, "the ranks of communicator \"%s\" cannot agree", self->name);
    return error_context(status,
                         "the ranks of communicator \"%s\" cannot agree, because their store "
                         "failed%s: give a store that outlives its ranks",
                         self->name,
                         rank_set_empty(exited_of(self, rank_set_of(0)))
                             ? ""
                             : " (rank 0, which may have served it, is gone)");
}

/* Also works for STORE_GRACE_MS after the deadline. */
static enum tutti_status look_up(const struct agree *self, const char *what, int rank, void *value,
                                 size_t bytes, bool *found)
{
    char key[AGREE_KEY_BYTES];
    agree_key_make(self, what, rank, key);
    enum tutti_status status = store_look_up(self->store, key, value, bytes, found);
    return status == TUTTI_OK ? status : store_failed(self, status);
}

/* *value becomes the first proposal of any rank. */
static enum tutti_status propose(const struct agree *self, const char *what, void *value,
                                 size_t bytes)
{
    unsigned char answer[sizeof(struct agree_decision)];
    char key[AGREE_KEY_BYTES];
    size_t size;
    static_assert(sizeof(struct agree_result) <= sizeof answer, "propose() takes both");
    agree_key_make(self, what, -1, key);
    enum tutti_status status =
        tutti_store_compare_set(self->store, key, NULL, 0, value, bytes, answer, bytes, &size);
    if (status != TUTTI_OK)
        return store_failed(self, status);
    status = store_value_check(key, size, bytes);
    if (status == TUTTI_OK)
        memcpy(value, answer, bytes);
    return status;
}

enum tutti_status agree_decision_look(const struct agree *self, struct agree_decision *decision,
                                      bool *found)
{
    enum tutti_status status = look_up(self, "decision", -1, decision, sizeof *decision, found);
    /* What the store holds is not trusted. */
    decision->members = rank_set_common(self->ranks, decision->members);
    return status;
}

enum tutti_status agree_result_look(const struct agree *self, struct agree_result *result,
                                    bool *found)
{
    return look_up(self, "result", -1, result, sizeof *result, found);
}

/* ---- what ends a wait ------------------------------------------------------------------------ */

static enum tutti_status check_abort(void *context)
{
    const struct agree *self = context;
    if (order_load_relaxed_u32(self->aborts) == self->aborts_before)
        return TUTTI_OK;
    return error_set(TUTTI_ERR_ABORTED, "%s: rank %d aborted communicator \"%s\"", self->call,
                     self->rank, self->name);
}

/* OK if no rank is given. */
static enum tutti_status exited_error(const struct agree *self, struct rank_set exited)
{
    char ranks[RANKS_BYTES];
    if (rank_set_empty(exited))
        return TUTTI_OK;
    return error_set(TUTTI_ERR_PEER_DEAD,
                     "%s: %s of communicator \"%s\" %s gone (the process ended or it destroyed the "
                     "communicator): %s",
                     self->call, text_ranks(exited, ranks, sizeof ranks), self->name,
                     rank_set_count(exited) > 1 ? "are" : "is", self->exited_advice);
}

/* Interrupt of the members' work. Look for the result before exits: a rank may exit once it has
 * read an OK. */
static enum tutti_status check_members(void *context)
{
    struct agree *self = context;
    struct agree_result result;
    bool found = false;
    int64_t now = deadline_now();
    enum tutti_status status = check_abort(self);
    if (status != TUTTI_OK || now - self->checked_at < CHECK_NS)
        return status;
    self->checked_at = now;
    status = agree_result_look(self, &result, &found);
    if (status != TUTTI_OK)
        return status;
    if (!found)
        return exited_error(self, exited_of(self, self->decision.members));
    return result.report.status == TUTTI_OK ? TUTTI_OK
                                            : status_report_error(&result.report, self->rank);
}

void agree_begin(struct agree *self)
{
    self->interrupt = (struct interrupt){.ask = check_members, .context = self};
    self->aborted = (struct interrupt){.ask = check_abort, .context = self};
}

/* ---- the decision ---------------------------------------------------------------------------- */

/* The entries that have been read. */
struct entries {
    struct rank_set present;
    struct rank_set excluded; /* by any rank, or exited */
    uint64_t completed[WORLD_RANKS];
};

static enum tutti_status entries_read(const struct agree *self, struct entries *entries)
{
    const struct rank_set wanted = rank_set_minus(self->ranks, entries->present);
    enum tutti_status status = TUTTI_OK;
    for (int rank = rank_set_next(wanted, -1); rank >= 0 && status == TUTTI_OK;
         rank = rank_set_next(wanted, rank)) {
        struct entry entry;
        bool found = false;
        status = look_up(self, "entry", rank, &entry, sizeof entry, &found);
        if (status != TUTTI_OK || !found)
            continue;
        rank_set_add(&entries->present, rank);
        entries->excluded = rank_set_union(entries->excluded, entry.excluded);
        entries->completed[rank] = entry.completed;
    }
    return status;
}

/* Wait a moment for the entries of these ranks, or of the first AWAITED_MOST of them. The caller
 * checks for an abort and the deadline. */
static enum tutti_status entries_await(const struct agree *self, struct rank_set missing)
{
    char texts[AWAITED_MOST][AGREE_KEY_BYTES];
    const char *keys[AWAITED_MOST];
    size_t count = 0;
    for (int r = rank_set_next(missing, -1); r >= 0 && count < AWAITED_MOST;
         r = rank_set_next(missing, r), count++) {
        agree_key_make(self, "entry", r, texts[count]);
        keys[count] = texts[count];
    }
    enum tutti_status status = tutti_store_wait(self->store, keys, count, INTERRUPT_MS);
    if (status == TUTTI_OK || status == TUTTI_ERR_TIMEOUT || status == TUTTI_ERR_ABORTED)
        return TUTTI_OK;
    return store_failed(self, status);
}

/* All entries are there. */
static enum tutti_status propose_members(struct agree *self, const struct entries *entries)
{
    struct agree_decision *decision = &self->decision;
    *decision = (struct agree_decision){
        .report.rank = self->rank,
        .members = rank_set_minus(self->ranks, entries->excluded),
        .completed_all = UINT64_MAX,
    };
    for (int r = rank_set_next(decision->members, -1); r >= 0;
         r = rank_set_next(decision->members, r)) {
        const uint64_t completed = entries->completed[r];
        if (completed < decision->completed_all)
            decision->completed_all = completed;
        if (completed > decision->completed_any)
            decision->completed_any = completed;
    }
    for (int i = 0; i < self->made; i++) {
        struct meeting *meeting = &decision->meetings[i];
        enum tutti_status status = random_fill(meeting->nonce, sizeof meeting->nonce);
        if (status != TUTTI_OK)
            return status;
        status = meet_generation(self->store, self->name, &meeting->generation);
        if (status != TUTTI_OK)
            return store_failed(self, status);
    }
    return propose(self, "decision", decision, sizeof *decision);
}

enum tutti_status agree_fail(const struct agree *self, enum tutti_status why,
                             struct rank_set absent, struct agree_decision *decision)
{
    *decision =
        (struct agree_decision){.report = status_report_make(why, self->rank), .absent = absent};
    return propose(self, "decision", decision, sizeof *decision);
}

/* OK if the round may still get its entries. *absent: the ranks that a time-out names. */
static enum tutti_status check_missing(const struct agree *self, struct rank_set missing,
                                       struct rank_set *absent)
{
    char ranks[RANKS_BYTES];
    enum tutti_status status = check_abort((void *)(uintptr_t)self);
    if (status == TUTTI_OK && self->all_needed)
        status = exited_error(self, exited_of(self, self->ranks));
    for (int r = rank_set_next(missing, -1); r >= 0 && self->check_missing && status == TUTTI_OK;
         r = rank_set_next(missing, r))
        status = self->check_missing(self, r);
    if (status != TUTTI_OK || !deadline_passed(self->deadline))
        return status;
    *absent = missing;
    return error_set(TUTTI_ERR_TIMEOUT,
                     "%s: %s did not come to %s of communicator \"%s\" in time: %s", self->call,
                     text_ranks(missing, ranks, sizeof ranks), self->subject, self->name,
                     self->late_advice);
}

static void waiting_log(const struct agree *self, struct rank_set missing,
                        struct reminder *reminder)
{
    char ranks[RANKS_BYTES];
    const int waited_s = reminder_due(reminder, deadline_now());
    if (waited_s)
        log_write(TUTTI_LOG_WARN, self->rank,
                  "rank %d has waited %d s in %s() of communicator \"%s\": %s %s not called it",
                  self->rank, waited_s, self->call, self->name,
                  text_ranks(missing, ranks, sizeof ranks),
                  rank_set_count(missing) > 1 ? "have" : "has");
}

enum tutti_status agree_join(struct agree *self)
{
    const struct entry own = {.excluded = self->excluded, .completed = self->completed};
    struct entries entries = {.excluded = self->excluded};
    char key[AGREE_KEY_BYTES];
    bool decided = false;
    agree_key_make(self, "entry", self->rank, key);
    enum tutti_status status = tutti_store_set(self->store, key, &own, sizeof own);
    if (status != TUTTI_OK)
        return store_failed(self, status);
    self->rounds_joined++;
    POINT("agree.entered");
    struct reminder reminder = reminder_start(deadline_now());
    while (!decided) {
        struct rank_set missing, absent = rank_set_none;
        status = entries_read(self, &entries);
        if (status == TUTTI_OK)
            status = agree_decision_look(self, &self->decision, &decided);
        if (status == TUTTI_OK && decided)
            break;
        if (!self->all_needed)
            entries.excluded = rank_set_union(entries.excluded, exited_of(self, self->ranks));
        missing = rank_set_minus(self->ranks, rank_set_union(entries.excluded, entries.present));
        if (status == TUTTI_OK && rank_set_empty(missing)) {
            status = propose_members(self, &entries);
            break;
        }
        if (status == TUTTI_OK)
            status = check_missing(self, missing, &absent);
        if (status == TUTTI_OK) {
            waiting_log(self, missing, &reminder);
            status = entries_await(self, missing);
        }
        if (status != TUTTI_OK) {
            status = agree_fail(self, status, absent, &self->decision);
            break;
        }
    }
    if (status == TUTTI_OK) /* nobody needs entries behind a decision */
        (void)tutti_store_delete(self->store, key, NULL);
    if (status == TUTTI_OK && self->beside)
        (void)tutti_store_delete(self->store, self->beside, NULL);
    self->decision.members = rank_set_common(self->ranks, self->decision.members);
    if (status == TUTTI_OK && self->decision.report.status != TUTTI_OK)
        status = status_report_error(&self->decision.report, self->rank);
    return status;
}

/* ---- the result ------------------------------------------------------------------------------ */

/* Wait until all members have done their work. */
static enum tutti_status await_members(struct agree *self)
{
    char prefix[AGREE_KEY_BYTES];
    struct tutti_store view = store_bounded(self->store, self->deadline, &self->interrupt);
    struct tutti_exchanger exchanger = {
        .struct_size = sizeof exchanger,
        .store = &view,
        .prefix = prefix,
        .rank = agree_new_rank(self->decision.members, self->rank),
        .size = rank_set_count(self->decision.members),
    };
    agree_key_make(self, "made", -1, prefix);
    enum tutti_status status =
        tutti_exchanger_barrier(&exchanger, deadline_timeout_ms(self->deadline));
    if (status == TUTTI_OK)
        exchanger_end(&exchanger, self->deadline);
    return status;
}

/* A process that ends closes its descriptors one after the other, so the new communicator may
 * notice the exit first. Wait until the old one has noticed it, too. Returns the members that have
 * exited. */
static struct rank_set await_peer_death(const struct agree *self, enum tutti_status status)
{
    int64_t deadline = deadline_after(status == TUTTI_ERR_PEER_DEAD ? EXIT_MS : 0);
    struct rank_set dead;
    if (deadline > self->deadline) /* there is no round after the deadline */
        deadline = self->deadline;
    while (dead = exited_of(self, self->decision.members),
           rank_set_empty(dead) && !deadline_passed(deadline))
        nanosleep(&(struct timespec){.tv_nsec = EXIT_NS}, NULL);
    return dead;
}

bool agree_exclude(struct agree *self, struct rank_set dead)
{
    dead = rank_set_union(dead, rank_set_minus(self->ranks, self->decision.members));
    self->excluded = rank_set_union(self->excluded, dead);
    return !rank_set_has(self->excluded, self->rank);
}

static void key_delete(const struct agree *self, const char *what)
{
    char key[AGREE_KEY_BYTES];
    agree_key_make(self, what, -1, key);
    (void)tutti_store_delete(self->store, key, NULL);
}

/* Counts this member as one that has read the result, OK. The last one deletes it. The decision
 * tells ranks that were left out that they were. Without such ranks it goes, too, and what earlier
 * rounds have left: all ranks are past them. */
static void result_end(const struct agree *self)
{
    const bool all = rank_set_equal(self->decision.members, self->ranks);
    struct agree each = *self;
    char key[AGREE_KEY_BYTES];
    int64_t over = 0;
    agree_key_make(self, "over", -1, key);
    (void)tutti_store_add(self->store, key, 1, &over);
    if (over < rank_set_count(self->decision.members))
        return;
    for (each.round = all ? self->first : self->round; each.round <= self->round; each.round++) {
        key_delete(&each, "result");
        if (all)
            key_delete(&each, "decision");
    }
    key_delete(self, "over");
}

enum tutti_status agree_conclude(struct agree *self, enum tutti_status mine, bool *again)
{
    *again = false;
    if (mine == TUTTI_OK)
        mine = await_members(self);
    const struct rank_set dead = mine == TUTTI_OK ? rank_set_none : await_peer_death(self, mine);
    if (!rank_set_empty(dead) &&
        mine == TUTTI_ERR_PEER_DEAD) /* its text may name ranks of the new communicator */
        (void)exited_error(self, dead);
    struct agree_result result = {.report = status_report_make(mine, self->rank), .dead = dead};
    enum tutti_status status = propose(self, "result", &result, sizeof result);
    if (status == TUTTI_OK && result.report.status == TUTTI_OK)
        result_end(self);
    if (status != TUTTI_OK || result.report.status == TUTTI_OK)
        return status;
    if (!rank_set_empty(result.dead)) {
        *again = agree_exclude(self, result.dead);
        self->round++;
    }
    return status_report_error(&result.report, self->rank);
}
