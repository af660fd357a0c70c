/* SPDX-License-Identifier: MIT */
/*
 * What lies in the store, under tutti/NAME/
 *   generation/count  how many meetings there were
 *   join/RANK         the token and the process of a rank that waits, or why it has given up
 *   answer/LEAD/RANK  a rank's answer to the token LEAD of rank 0, with its record: it has come
 *   go/LEAD           how the meeting came out, the tokens and records of the ranks
 *
 * While the meeting makes progress a rank looks at the next key that it needs and at no other. A
 * rank that gets nothing for a while looks around: whether the processes that it knows still run,
 * whether another process has its number, and which ranks are missing.
 *
 * A rank deletes its keys when all ranks have met in the arenas (meet_end()), since until then a
 * peer may look at them; one counter for each name stays. If a rank died meanwhile, the keys of
 * that meeting stay.
 */
#include "base/deadline.h"
#include "base/ended_key.h"
#include "base/error.h"
#include "base/point.h"
#include "bootstrap/meet_internal.h"
#include "ipc/random.h"
#include "store/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    MOST_LOOK_MS = 160, /* MEET_LOOK_MS doubles up to this */
    SURVEY_MS = 250,    /* the first look at all ranks while rank 0 is missing; doubles */
    LINGER_MS = 2000,   /* for ranks that come after the meeting has failed */
    DEATH_MS = 1000,    /* a process closes its connections before the kernel says that it ended */
    DEATH_LOOK_MS = 10,
};

static void nap(int64_t ms)
{
    nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL);
}

/* ---- all but rank 0 -------------------------------------------------------------------------- */

/* Look at the keys of all ranks: some may have ended, or may have been refused. */
static enum tutti_status survey(struct meet_view *view, struct rank_set *missing)
{
    struct rank_set doubtful = rank_set_none;
    *missing = rank_set_none;
    for (int r = 0; r < view->size; r++) {
        struct meet_join join;
        bool there;
        if (r == view->rank)
            continue;
        enum tutti_status status = meet_join_look_up(view, r, &join, &there);
        if (status != TUTTI_OK)
            return status;
        const bool stays = there && join.status == TUTTI_OK;
        const bool left = there && !stays && join.left_ns >= view->began;
        if (left && join.status == TUTTI_ERR_MISMATCH)
            return meet_reported(join.status, join.text);
        const enum meet_life life = stays ? meet_life_of(view, r, &join) : MEET_FORMER;
        if (life == MEET_ENDED)
            rank_set_add(&doubtful, r);
        if (life == MEET_FORMER && !left)
            rank_set_add(missing, r);
    }
    return meet_deaths(view, doubtful);
}

/* Of the missing ranks, those to name: a rank that came a moment ago is named only if no other rank
 * is missing. */
static struct rank_set to_blame(struct rank_set missing, struct rank_set just_came)
{
    const struct rank_set absent = rank_set_minus(missing, just_came);
    return rank_set_empty(absent) ? missing : absent;
}

/* Find the ranks that keep the meeting from going on. */
static enum tutti_status missing_find(struct meet_view *view, struct rank_set *missing)
{
    struct rank_set unanswered;
    enum tutti_status status = survey(view, missing);
    if (status == TUTTI_OK && *view->lead) {
        status = meet_unanswered(view, &unanswered);
        *missing = to_blame(unanswered, rank_set_minus(unanswered, *missing));
    }
    if (!*view->lead || rank_set_empty(*missing))
        rank_set_add(missing, 0);
    return status;
}

static void answer_delete(struct meet_view *view)
{
    char key[MEET_KEY_BYTES];
    meet_answer_key_make(key, view, view->rank);
    meet_key_delete(view, key);
    *view->lead = 0;
}

/* Check whether rank 0 has given up, or this rank has answered a token of an earlier meeting. */
static enum tutti_status leader_check(struct meet_view *view)
{
    struct meet_join join;
    bool there;
    enum tutti_status status = meet_join_look_up(view, 0, &join, &there);
    if (status != TUTTI_OK || !there)
        return status;
    if (*view->lead && strcmp(view->lead, join.token) != 0)
        answer_delete(view);
    if (join.status != TUTTI_OK)
        return join.left_ns >= view->began ? meet_gave_up_error(0, &join) : TUTTI_OK;
    (void)meet_life_of(view, 0, &join);
    return TUTTI_OK;
}

/* `tutti run` notes which of its ranks have ended with status 0. One that is missing never comes.
 */
static enum tutti_status check_ended(const struct meet_view *view, struct rank_set missing)
{
    if (!view->launched)
        return TUTTI_OK;
    for (int r = rank_set_next(missing, -1); r >= 0; r = rank_set_next(missing, r)) {
        char key[MEET_KEY_BYTES];
        bool there = false;
        snprintf(key, sizeof key, ENDED_KEY, r);
        enum tutti_status status = store_has(view->store, key, &there);
        if (status != TUTTI_OK)
            return status;
        if (there)
            return error_set(TUTTI_ERR_PEER_DEAD,
                             "rank %d ended with status 0 before it came to communicator \"%s\": "
                             "see why its program returned, or start fewer ranks",
                             r, view->name);
    }
    return TUTTI_OK;
}

/* Nothing has come for a while. */
static enum tutti_status look_around(struct meet_view *view)
{
    struct rank_set missing;
    const int64_t now = deadline_now();
    enum tutti_status status = meet_own_check(view);
    if (status == TUTTI_OK)
        status = leader_check(view);
    if (status == TUTTI_OK)
        status = meet_deaths(view, *view->lead ? rank_set_of(0) : view->known);
    if (status == TUTTI_OK && !*view->lead)
        status = check_ended(view, rank_set_of(0));
    if (status != TUTTI_OK)
        return status;
    if (now - view->reminder.began >= view->reminder.next_s * 1000000000) {
        status = missing_find(view, &missing);
        meet_waiting_log(view, missing);
    } else if (!*view->lead && now - view->began >= view->survey_ms * 1000000) {
        view->survey_ms *= 2;
        status = survey(view, &missing);
    }
    return status;
}

/* Wait for rank 0's token and answer it. TIMEOUT: there is no token of a waiting rank 0. */
static enum tutti_status leader_answer(struct meet_view *view, int64_t timeout_ms)
{
    struct meet_join join;
    char key[MEET_KEY_BYTES];
    enum tutti_status status = meet_join_await(view, 0, timeout_ms, &join);
    if (status != TUTTI_OK)
        return status;
    if (join.status != TUTTI_OK || meet_life_of(view, 0, &join) != MEET_ALIVE) {
        nap(timeout_ms);
        return TUTTI_ERR_TIMEOUT;
    }
    memcpy(view->lead, join.token, sizeof view->lead);
    meet_answer_key_make(key, view, view->rank);
    *view->answer = view->own;
    memcpy(view->answer + 1, view->call->record, view->call->record_bytes);
    status = tutti_store_set(view->store, key, view->answer,
                             sizeof *view->answer + view->call->record_bytes);
    POINT("meet.answered");
    return status;
}

static size_t result_bytes(const struct meet_view *view, int32_t status)
{
    const struct meet_call *call = view->call;
    return sizeof *view->result +
           (status == TUTTI_OK ? (size_t)call->size * call->record_bytes : 0);
}

/* TIMEOUT: there is no result for this rank. A result without this rank's token is of an earlier
 * meeting, or of a failure that rank 0 is about to tell this rank. */
static enum tutti_status result_get(const struct meet_view *view, int64_t timeout_ms)
{
    struct meet_result *result = view->result;
    char key[MEET_KEY_BYTES];
    size_t size;
    meet_key_make(key, view->name, "go", view->lead);
    enum tutti_status status =
        meet_get(view, key, timeout_ms, result, result_bytes(view, TUTTI_OK), &size);
    if (status != TUTTI_OK)
        return status;
    if (size < sizeof *result || result->tokens[view->rank] == meet_token_half(view->own.token))
        return store_value_check(key, size, result_bytes(view, result->status));
    nap(timeout_ms);
    return TUTTI_ERR_TIMEOUT;
}

/* A last look, after an error. The store gets the time to answer: a rank that has read the result
 * has deleted its keys, so that this rank would name it as missing. */
static bool result_exists(const struct meet_view *view)
{
    char key[MEET_KEY_BYTES];
    bool there = false;
    meet_key_make(key, view->name, "go", view->lead);
    return *view->lead && store_has(view->store, key, &there) == TUTTI_OK && there &&
           result_get(view, STORE_GRACE_MS) == TUTTI_OK;
}

static enum tutti_status result_await(struct meet_view *view)
{
    char key[MEET_KEY_BYTES];
    bool there; /* after a time-out, only whether the store answers counts */
    struct rank_set missing = rank_set_none;
    for (int64_t slice = MEET_LOOK_MS;; slice = slice < MOST_LOOK_MS ? 2 * slice : slice) {
        const int64_t left = deadline_timeout_ms(view->deadline);
        const int64_t ms = left < 0 || left > slice ? slice : left;
        enum tutti_status status = *view->lead ? TUTTI_OK : leader_answer(view, ms);
        if (status == TUTTI_OK)
            status = result_get(view, ms);
        if (status != TUTTI_ERR_TIMEOUT)
            return status;
        const bool over = deadline_passed(view->deadline);
        if (over)
            meet_key_make(key, view->name, *view->lead ? "go" : "join",
                          *view->lead ? view->lead : "0");
        status = over ? store_has(view->store, key, &there) : look_around(view);
        if (status == TUTTI_OK && over)
            status = missing_find(view, &missing);
        if (status == TUTTI_OK && over)
            status = meet_absent_error(view, missing);
        if (status == TUTTI_OK)
            continue;
        /* Rank 0 may have written the result and ended since the last look. */
        char text[MEET_TEXT_BYTES];
        snprintf(text, sizeof text, "%.*s", MEET_TEXT_BYTES - 1, tutti_last_error());
        if (status != TUTTI_ERR_ABORTED && result_exists(view))
            return TUTTI_OK;
        return error_set(status, "%s", text);
    }
}

/* If rank 0 serves the store, the store ends with rank 0. The error then names rank 0. */
static enum tutti_status store_lost(const struct meet_view *view, enum tutti_status status)
{
    int64_t deadline = deadline_after(DEATH_MS);
    if (status != TUTTI_ERR_SYSTEM || !rank_set_has(view->known, 0))
        return status;
    while (!process_has_ended(&view->processes[0], &view->self)) {
        if (deadline_passed(deadline))
            return status;
        nap(DEATH_LOOK_MS);
    }
    return meet_dead_error(rank_set_of(0));
}

static enum tutti_status follow(struct meet_view *view)
{
    struct meet_result *result = view->result;
    uint8_t token[16];
    enum tutti_status status = random_fill(token, sizeof token);
    if (status == TUTTI_OK)
        status = meet_own_make(view, token);
    if (status != TUTTI_OK)
        return status;
    POINT("meet.joined");
    status = result_await(view);
    if (status != TUTTI_OK) {
        status = store_lost(view, status);
        meet_own_end(view, status);
        memset(result, 0, sizeof *result); /* it may be of an earlier meeting */
        return status;
    }
    if (result->status == TUTTI_OK)
        return TUTTI_OK;
    const bool mismatch = result->status == TUTTI_ERR_MISMATCH;
    view->failed_ns = result->failed_ns;
    answer_delete(view); /* tells rank 0 that this rank has the result */
    if (!mismatch)
        meet_own_end(view, TUTTI_OK);
    status = meet_reported(result->status, result->text);
    if (mismatch) /* another process with this rank's number reads the error in this key */
        meet_own_end(view, status);
    return status;
}

/* ---- rank 0 ---------------------------------------------------------------------------------- */

struct lead {
    struct meet_view *view;
    struct meet_result *result;
    char *records;            /* behind the result */
    int most;                 /* the largest world size that a rank was given */
    struct process *answered; /* the processes that have answered: WORLD_RANKS */
    struct rank_set met;      /* the ranks that have answered */
    struct rank_set late;     /* the ranks that gave up because their time was over first */
};

static enum tutti_status result_set(const struct lead *self)
{
    char key[MEET_KEY_BYTES];
    meet_key_make(key, self->view->name, "go", self->view->lead);
    return tutti_store_set(self->view->store, key, self->result,
                           result_bytes(self->view, self->result->status));
}

/* Takes an answer that has arrived. TIMEOUT: it came from another process. */
static enum tutti_status answer_take(struct lead *self, int rank, const unsigned char *bytes)
{
    struct meet_view *view = self->view;
    struct meet_join answer;
    memcpy(&answer, bytes, sizeof answer);
    const uint64_t token = meet_token_half(answer.token);
    if (token == self->result->tokens[rank])
        return TUTTI_ERR_TIMEOUT;
    self->result->tokens[rank] = token;
    self->answered[rank] = view->processes[rank] = answer.process;
    if (rank < view->call->size)
        memcpy(self->records + (size_t)rank * view->call->record_bytes, bytes + sizeof answer,
               view->call->record_bytes);
    rank_set_add(&view->known, rank);
    rank_set_add(&self->met, rank);
    self->most = answer.size > self->most ? answer.size : self->most;
    if (answer.size == view->size)
        return TUTTI_OK;
    return error_set(TUTTI_ERR_MISMATCH,
                     "ranks disagree about the world size: rank 0 has %d, rank %d has %d: set the "
                     "same on all ranks",
                     view->size, rank, answer.size);
}

/* Awaits the answers of all these ranks. TIMEOUT: one is missing, or came from another process. */
static enum tutti_status answers_await(struct lead *self, struct rank_set ranks, int64_t timeout_ms)
{
    const struct meet_view *view = self->view;
    const size_t bytes = sizeof *view->answer + view->call->record_bytes;
    const size_t most = (size_t)rank_set_count(ranks);
    size_t count = 0;
    unsigned char *next = (unsigned char *)view->answer;
    const char **keys = malloc(most * (sizeof *keys + sizeof(size_t) + MEET_KEY_BYTES));
    if (!keys)
        return error_errno("the keys of %zu answers", most);
    size_t *const sizes = (size_t *)(void *)(keys + most);
    char *text = (char *)(sizes + most);
    for (int r = rank_set_next(ranks, -1); r >= 0; r = rank_set_next(ranks, r)) {
        meet_answer_key_make(text, view, r);
        keys[count++] = text;
        text += MEET_KEY_BYTES;
    }
    enum tutti_status status =
        store_multi_get(view->store, keys, count, timeout_ms, next, bytes, sizes);
    count = 0;
    for (int r = rank_set_next(ranks, -1); r >= 0 && status == TUTTI_OK;
         r = rank_set_next(ranks, r), count++, next += bytes) {
        if (sizes[count] == 0) { /* deleted between the store's wait and its answer */
            status = TUTTI_ERR_TIMEOUT;
            break;
        }
        status = store_value_check(keys[count], sizes[count], bytes);
        if (status == TUTTI_OK)
            status = answer_take(self, r, next);
        if (status == TUTTI_ERR_TIMEOUT)
            nap(timeout_ms);
    }
    free(keys);
    return status;
}

/* Look at a rank without waiting. Another process may have taken its number. */
static enum tutti_status visit(struct lead *self, int rank)
{
    struct meet_view *view = self->view;
    const struct process *answered = &self->answered[rank];
    struct meet_join join;
    bool there;
    enum tutti_status status = meet_join_look_up(view, rank, &join, &there);
    if (status == TUTTI_OK && there && join.status != TUTTI_OK && join.left_ns >= view->began) {
        if (join.status != TUTTI_ERR_TIMEOUT)
            return meet_gave_up_error(rank, &join);
        rank_set_add(&self->late, rank);
    } else if (status == TUTTI_OK && there && join.status == TUTTI_OK &&
               meet_life_of(view, rank, &join) == MEET_ALIVE && rank_set_has(self->met, rank) &&
               meet_token_half(join.token) != self->result->tokens[rank]) {
        if (!process_has_ended(answered, &view->self) && process_differs(answered, &join.process))
            return meet_twice(view, rank, answered, &join);
        rank_set_remove(&self->met, rank);
    }
    if (status == TUTTI_OK && !rank_set_has(self->met, rank))
        status = answers_await(self, rank_set_of(rank), 1);
    return status == TUTTI_ERR_TIMEOUT ? TUTTI_OK : status;
}

static struct rank_set missing_of(const struct lead *self)
{
    return rank_set_minus(rank_set_all(self->view->size),
                          rank_set_union(self->met, rank_set_of(0)));
}

static enum tutti_status absent_error(const struct lead *self)
{
    const struct rank_set missing = rank_set_minus(missing_of(self), self->late);
    return meet_absent_error(self->view, to_blame(missing, self->view->known));
}

/* Nothing has come for a while from the rank that is awaited. */
static enum tutti_status visit_all(struct lead *self)
{
    struct meet_view *view = self->view;
    enum tutti_status status = meet_own_check(view);
    for (int r = 1; r < view->size && status == TUTTI_OK; r++)
        status = visit(self, r);
    if (status == TUTTI_OK)
        status = meet_deaths(view, view->known);
    if (status == TUTTI_OK)
        status = check_ended(view, missing_of(self));
    if (status != TUTTI_OK)
        return status;
    if (!rank_set_empty(self->late))
        return absent_error(self);
    meet_waiting_log(view, missing_of(self));
    return TUTTI_OK;
}

/* Wait until all ranks have come, or the meeting has failed. */
static enum tutti_status gather(struct lead *self)
{
    struct meet_view *view = self->view;
    int64_t slice = MEET_LOOK_MS;
    while (!rank_set_empty(missing_of(self))) {
        const int64_t left = deadline_timeout_ms(view->deadline);
        enum tutti_status status =
            answers_await(self, missing_of(self), left < 0 || left > slice ? slice : left);
        const bool over = deadline_passed(view->deadline);
        if (status == TUTTI_ERR_TIMEOUT)
            status = visit_all(self);
        if (status == TUTTI_OK && over && !rank_set_empty(missing_of(self)))
            status = absent_error(self);
        if (status != TUTTI_OK)
            return status;
        slice = slice < MOST_LOOK_MS ? 2 * slice : slice;
    }
    return TUTTI_OK;
}

/* Tell the failure to ranks that come within LINGER_MS and before the deadline. */
static void linger(struct lead *self)
{
    struct meet_view *view = self->view;
    int64_t deadline = deadline_after(LINGER_MS);
    if (deadline > view->deadline)
        deadline = view->deadline;
    view->size = self->most < WORLD_RANKS ? self->most : WORLD_RANKS;
    for (;;) {
        const struct rank_set told = self->met;
        for (int r = 1; r < view->size; r++)
            if (!rank_set_has(self->met, r))
                (void)visit(self, r);
        if (!rank_set_equal(self->met, told))
            (void)result_set(self);
        if (rank_set_empty(rank_set_minus(missing_of(self), meet_ended(view, view->known))) ||
            deadline_passed(deadline))
            return;
        nap(MEET_LOOK_MS);
    }
}

/* Rank 0 may serve the store, which then ends with it. So wait, at most LINGER_MS, until each rank
 * that has answered has read the result, or has ended. */
static void await_readers(const struct lead *self)
{
    const struct meet_view *view = self->view;
    const int64_t deadline = deadline_after(LINGER_MS);
    struct rank_set unread = self->met;
    for (;;) {
        unread = rank_set_minus(unread, meet_ended(view, unread));
        for (int r = rank_set_next(unread, -1); r >= 0; r = rank_set_next(unread, r)) {
            char key[MEET_KEY_BYTES];
            bool there = false;
            meet_answer_key_make(key, view, r);
            if (store_has(view->store, key, &there) != TUTTI_OK)
                return;
            if (!there)
                rank_set_remove(&unread, r);
        }
        if (rank_set_empty(unread) || deadline_passed(deadline))
            return;
        nap(DEATH_LOOK_MS);
    }
}

/* Tell all ranks how the meeting came out, and return it. */
static enum tutti_status conclude(struct lead *self, enum tutti_status outcome)
{
    struct meet_result *result = self->result;
    result->status = (int32_t)outcome;
    if (outcome != TUTTI_OK) {
        result->failed_ns = self->view->failed_ns = deadline_now();
        snprintf(result->text, sizeof result->text, "%s", tutti_last_error());
    }
    enum tutti_status status = result_set(self);
    if (outcome == TUTTI_OK)
        return status;
    if (status == TUTTI_OK && outcome != TUTTI_ERR_TIMEOUT && outcome != TUTTI_ERR_ABORTED)
        linger(self);
    if (status == TUTTI_OK)
        await_readers(self);
    return meet_reported(result->status, result->text);
}

static enum tutti_status lead_begun(struct lead *self)
{
    struct meet_view *view = self->view;
    uint8_t *nonce = self->result->meeting.nonce;
    enum tutti_status status = random_fill(nonce, sizeof self->result->meeting.nonce);
    if (status == TUTTI_OK)
        status = meet_generation(view->store, view->name, &self->result->meeting.generation);
    if (status == TUTTI_OK)
        status = meet_own_make(view, nonce);
    if (status != TUTTI_OK)
        return status;
    memcpy(view->lead, view->own.token, sizeof view->lead);
    memcpy(self->records, view->call->record, view->call->record_bytes);
    POINT("meet.led");
    status = conclude(self, gather(self));
    if (status != TUTTI_OK)
        meet_own_end(view, status);
    return status;
}

static enum tutti_status lead(struct meet_view *view)
{
    struct lead self = {.view = view,
                        .result = view->result,
                        .records = (char *)(view->result + 1),
                        .most = view->size,
                        .answered = calloc(WORLD_RANKS, sizeof *self.answered)};
    const enum tutti_status status =
        self.answered
            ? lead_begun(&self)
            : error_set(TUTTI_ERR_NO_MEMORY, "no memory for the answers of %d ranks", view->size);
    free(self.answered);
    return status;
}

/* ---- the call -------------------------------------------------------------------------------- */

enum tutti_status meet_generation(tutti_store_t *store, const char *name, int64_t *generation)
{
    char key[MEET_KEY_BYTES];
    meet_key_make(key, name, "generation", "count");
    return tutti_store_add(store, key, 1, generation);
}

/* Whether the communicator's ranks are those that `tutti run` started. */
static bool is_launched(const struct meet_call *call)
{
    struct tutti_launcher launcher = {.struct_size = sizeof launcher};
    const char *run = getenv("TORCHELASTIC_RUN_ID");
    return run && strcmp(run, "tutti") == 0 && tutti_info_launcher(&launcher) == TUTTI_OK &&
           launcher.rank == call->rank && launcher.world_size == call->size;
}

enum tutti_status meet(const struct meet_call *call, struct meeting *meeting)
{
    const int64_t now = deadline_now();
    const size_t records_bytes = (size_t)call->size * call->record_bytes;
    const size_t answers = call->rank == 0 ? (size_t)call->size : 1;
    struct meet_view view = {.call = call,
                             .store = call->store,
                             .name = call->name,
                             .rank = call->rank,
                             .size = call->size,
                             .launched = is_launched(call),
                             .began = now,
                             .deadline = deadline_after(call->timeout_ms),
                             .answer = malloc(answers * (sizeof *view.answer + call->record_bytes)),
                             .result = malloc(sizeof *view.result + records_bytes),
                             .processes = calloc(WORLD_RANKS, sizeof *view.processes),
                             .reminder = reminder_start(now),
                             .survey_ms = SURVEY_MS};
    enum tutti_status status = TUTTI_ERR_NO_MEMORY;
    if (!view.answer || !view.result || !view.processes) {
        error_set(status, "no memory for the records of %d ranks", call->size);
        goto out;
    }
    memset(view.result, 0, sizeof *view.result);
    status = call->rank == 0 ? lead(&view) : follow(&view);
    *meeting = view.result->meeting;
    if (status == TUTTI_OK)
        memcpy(call->records, view.result + 1, records_bytes);
out:
    free(view.answer);
    free(view.result);
    free(view.processes);
    return status;
}
