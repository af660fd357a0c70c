/* SPDX-License-Identifier: MIT */
/*
 * The meeting of the ranks. What lies in the store, under tutti/NAME/
 *     generation/count  how many meetings there were
 *     join/RANK         the token and the process of a rank that waits; or why it has given up
 *     invite/TOKEN      rank 0's answer to that token; or why the rank is refused
 *     thanks/TOKEN      the nonce of the answer: the rank has read it
 *     here/NONCE        which ranks have come, once rank 0 has waited for a while
 *     go/NONCE          rank 0's verdict, with the processes of all ranks
 *
 * The store may hold keys of an earlier run under the same name. They do no harm. Each rank writes
 * a new random token; each other rank waits for an answer to its own token. Rank 0 answers a token
 * with the generation and a nonce, and looks for newer tokens until thanks/TOKEN holds that nonce.
 * A key of an earlier run has a token for which nobody waits, or another nonce. All later keys lie
 * under the generation, which is never used twice.
 *
 * While the meeting makes progress a rank reads only the next key that it needs. After 20 ms
 * without news, then 40, up to 160, it looks at the other ranks (meet_view.c).
 *
 * When a communicator is complete its ranks delete their keys; one counter a name stays. If a rank
 * died meanwhile, the keys of that meeting stay.
 */
#include "base/deadline.h"
#include "base/error.h"
#include "base/point.h"
#include "bootstrap/meet_internal.h"
#include "ipc/random.h"
#include "store/store.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

enum {
    MOST_LOOK_MS = 160, /* MEET_LOOK_MS doubles up to this */
    SURVEY_MS = 250,    /* the first look at all ranks by a rank that nobody answers; doubles */
    LINGER_MS = 2000,   /* for ranks that come after the meeting has failed */
    DEATH_MS = 1000,    /* a process closes its connections before the kernel says that it ended */
    DEATH_LOOK_MS = 10,
};

/* ---- all but rank 0 -------------------------------------------------------------------------- */

/* Looks at the keys of all ranks: some may have ended, or have been refused. */
static enum tutti_status survey(struct meet_view *view, uint64_t *missing)
{
    uint64_t doubtful = 0;
    *missing = 0;
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
            return meet_told(join.status, join.text);
        const enum meet_life life = stays ? meet_life_of(view, r, &join) : MEET_FORMER;
        if (life == MEET_ENDED)
            doubtful |= meet_bit(r);
        if (life == MEET_FORMER && !left)
            *missing |= meet_bit(r);
    }
    return meet_deaths(view, doubtful);
}

/* Who keeps the meeting from going on. Rank 0 answers all that come, and tells whom it has seen. */
static enum tutti_status missing_find(struct meet_view *view, const struct meeting *meeting,
                                      uint64_t *missing)
{
    char key[MEET_KEY_BYTES];
    uint64_t here;
    bool there = false;
    enum tutti_status status = TUTTI_OK;
    if (meeting) {
        meet_nonce_key_make(key, view->name, "here", meeting);
        status = meet_key_exists(view, key, &there);
    }
    if (status == TUTTI_OK && there)
        status = meet_get_exactly(view, key, MEET_LOOK_MS, &here, sizeof here);
    if (status == TUTTI_ERR_TIMEOUT) { /* rank 0 deletes it in the end */
        there = false;
        status = TUTTI_OK;
    }
    if (status == TUTTI_OK)
        status = survey(view, missing);
    if (!meeting)
        *missing |= meet_bit(0);
    if (meeting && there) {
        /* A rank that has come a moment ago is not to blame, unless nobody else is. */
        const uint64_t unseen = meet_everybody(view) & ~here & ~meet_bit(view->rank);
        *missing = *missing & unseen ? *missing & unseen : unseen;
    }
    if (!*missing)
        *missing = meet_bit(0);
    return status;
}

/* Rank 0, before it has answered. */
static enum tutti_status leader_find(struct meet_view *view)
{
    struct meet_join join;
    bool there;
    enum tutti_status status = meet_join_look_up(view, 0, &join, &there);
    if (status != TUTTI_OK || !there)
        return status;
    if (join.status != TUTTI_OK)
        return join.left_ns >= view->began ? meet_gave_up_error(0, &join) : TUTTI_OK;
    (void)meet_life_of(view, 0, &join);
    return TUTTI_OK;
}

/* Nothing has come for a while. `meeting` is that of the invitation; NULL: there is none yet. */
static enum tutti_status look_around(struct meet_view *view, const struct meeting *meeting)
{
    uint64_t missing = 0;
    const int64_t now = deadline_now();
    enum tutti_status status = meet_own_check(view);
    if (status == TUTTI_OK && !(view->known & meet_bit(0)))
        status = leader_find(view);
    if (status == TUTTI_OK)
        status = meet_deaths(view, meeting ? meet_bit(0) : UINT64_MAX);
    if (status != TUTTI_OK)
        return status;
    if (now - view->reminder.began >= view->reminder.next_s * 1000000000) {
        status = missing_find(view, meeting, &missing);
        meet_waiting_log(view, missing);
    } else if (!meeting && now - view->began >= view->survey_ms * 1000000) {
        view->survey_ms *= 2;
        status = survey(view, &missing);
    }
    return status;
}

/* Waits for a key of rank 0's. */
static enum tutti_status word_await(struct meet_view *view, const char *key,
                                    const struct meeting *meeting, void *value, size_t bytes)
{
    uint64_t missing = 0;
    for (int64_t slice = MEET_LOOK_MS;; slice = slice < MOST_LOOK_MS ? 2 * slice : slice) {
        int64_t left = deadline_timeout_ms(view->deadline);
        enum tutti_status status =
            meet_get_exactly(view, key, left < 0 || left > slice ? slice : left, value, bytes);
        if (status != TUTTI_ERR_TIMEOUT)
            return status;
        const bool over = deadline_passed(view->deadline);
        status = over ? store_answers(view->store, key) : look_around(view, meeting);
        if (status == TUTTI_OK && over)
            status = missing_find(view, meeting, &missing);
        if (status == TUTTI_OK && over)
            status = meet_absent_error(view, missing);
        if (status == TUTTI_OK)
            continue;
        /* Rank 0 may have given its word, and have ended, since. */
        char text[MEET_TEXT_BYTES];
        snprintf(text, sizeof text, "%.*s", MEET_TEXT_BYTES - 1, tutti_last_error());
        if (status != TUTTI_ERR_ABORTED && meet_get_exactly(view, key, 1, value, bytes) == TUTTI_OK)
            return TUTTI_OK;
        return error_set(status, "%s", text);
    }
}

/* A store that rank 0 has served ends with it: then rank 0 is to be named. */
static enum tutti_status store_lost(const struct meet_view *view, enum tutti_status status)
{
    int64_t deadline = deadline_after(DEATH_MS);
    uint64_t dead = 0;
    if (status != TUTTI_ERR_SYSTEM || !(view->known & meet_bit(0)))
        return status;
    while (!(dead = meet_ended(view, meet_bit(0))) && !deadline_passed(deadline))
        nanosleep(&(struct timespec){.tv_nsec = DEATH_LOOK_MS * 1000000}, NULL);
    return dead ? meet_dead_error(dead) : status;
}

/* Leaves a token, and waits for the answer to it. */
static enum tutti_status be_invited(struct meet_view *view, struct meeting *meeting)
{
    struct meet_invitation invitation;
    char key[MEET_KEY_BYTES];
    enum tutti_status status = meet_own_make(view);
    if (status != TUTTI_OK)
        return status;
    POINT("meet.joined");
    meet_key_make(key, view->name, "invite", view->own.token);
    status = word_await(view, key, NULL, &invitation, sizeof invitation);
    if (status != TUTTI_OK)
        return status;
    meet_key_delete(view, key);
    if (invitation.status != TUTTI_OK)
        return meet_told(invitation.status, invitation.text);
    *meeting = invitation.meeting;
    view->known = meet_bit(0);
    view->processes[0] = invitation.leader;
    meet_key_make(key, view->name, "thanks", view->own.token);
    return tutti_store_set(view->store, key, meeting->nonce, sizeof meeting->nonce);
}

static enum tutti_status follow(struct meet_view *view, struct meeting *meeting,
                                struct process *processes)
{
    struct meet_verdict verdict;
    char key[MEET_KEY_BYTES];
    enum tutti_status status = be_invited(view, meeting);
    POINT("meet.thanked");
    if (status == TUTTI_OK) {
        meet_nonce_key_make(key, view->name, "go", meeting);
        status = word_await(view, key, meeting, &verdict, sizeof verdict);
    }
    if (status == TUTTI_OK) { /* of the meeting, be it as it may */
        meet_own_end(view, TUTTI_OK);
        if (processes)
            memcpy(processes, verdict.processes, (size_t)view->size * sizeof *processes);
        return verdict.status == TUTTI_OK ? TUTTI_OK : meet_told(verdict.status, verdict.text);
    }
    status = store_lost(view, status);
    meet_own_end(view, status);
    return status;
}

/* ---- rank 0 ---------------------------------------------------------------------------------- */

/* A rank as rank 0 sees it. */
struct guest {
    char token[MEET_TOKEN_BYTES]; /* the one that was answered; "" for none */
    int32_t size;
    struct process process;
};

struct lead {
    struct meet_view view;
    struct meeting meeting;
    struct guest guests[TUTTI_MAX_RANKS];
    uint64_t met;  /* bit r: rank r has thanked */
    uint64_t here; /* as it lies in the store */
    uint64_t late; /* they gave up: their time was over first */
};

static enum tutti_status sizes_error(int ours, int rank, int size)
{
    return error_set(TUTTI_ERR_MISMATCH,
                     "ranks disagree about the world size: rank 0 has %d, rank %d has %d: set the "
                     "same on all ranks",
                     ours, rank, size);
}

static enum tutti_status answer(struct lead *self, int rank, const struct meet_join *join)
{
    const struct meet_view *view = &self->view;
    struct meet_invitation invitation = {.meeting = self->meeting, .leader = view->self};
    struct guest *guest = &self->guests[rank];
    char key[MEET_KEY_BYTES];
    memcpy(guest->token, join->token, sizeof guest->token);
    guest->size = join->size;
    guest->process = join->process;
    self->met &= ~meet_bit(rank);
    meet_key_make(key, view->name, "invite", guest->token);
    return tutti_store_set(view->store, key, &invitation, sizeof invitation);
}

/* A rank that waits no more. */
static enum tutti_status has_left(struct lead *self, int rank, const struct meet_join *join)
{
    if (join->left_ns < self->view.began)
        return TUTTI_OK;
    if (join->status != TUTTI_ERR_TIMEOUT)
        return meet_gave_up_error(rank, join);
    self->late |= meet_bit(rank);
    return TUTTI_OK;
}

/* A token of that rank which was not answered. */
static enum tutti_status consider(struct lead *self, int rank, const struct meet_join *join)
{
    struct meet_view *view = &self->view;
    const struct guest *guest = &self->guests[rank];
    if (join->status != TUTTI_OK)
        return has_left(self, rank, join);
    const bool waits =
        (self->met & meet_bit(rank)) && !process_has_ended(&guest->process, &view->self);
    if (meet_life_of(view, rank, join) != MEET_ALIVE)
        return TUTTI_OK;
    if (waits && process_differs(&guest->process, &join->process))
        return meet_twice(view, rank, &guest->process, join);
    return answer(self, rank, join);
}

/* The thanks of a rank that was answered. A store that cannot delete may hold those of another
 * meeting. */
static enum tutti_status thanks_await(struct lead *self, int rank, int64_t timeout_ms)
{
    const struct guest *guest = &self->guests[rank];
    uint8_t nonce[sizeof self->meeting.nonce];
    char key[MEET_KEY_BYTES];
    meet_key_make(key, self->view.name, "thanks", guest->token);
    enum tutti_status status = meet_get_exactly(&self->view, key, timeout_ms, nonce, sizeof nonce);
    if (status != TUTTI_OK)
        return status;
    if (memcmp(nonce, self->meeting.nonce, sizeof nonce) != 0) {
        nanosleep(&(struct timespec){.tv_nsec = MEET_LOOK_MS * 1000000}, NULL);
        return TUTTI_ERR_TIMEOUT;
    }
    meet_key_delete(&self->view, key);
    self->met |= meet_bit(rank);
    return guest->size == self->view.size ? TUTTI_OK
                                          : sizes_error(self->view.size, rank, guest->size);
}

/* The next step of a rank: TIMEOUT if it does not come within so many milliseconds. */
static enum tutti_status attend(struct lead *self, int rank, int64_t timeout_ms)
{
    const struct meet_view *view = &self->view;
    struct meet_join join;
    char key[MEET_KEY_BYTES];
    const char *keys[] = {key};
    if (*self->guests[rank].token)
        return thanks_await(self, rank, timeout_ms);
    enum tutti_status status = meet_join_await(view, rank, timeout_ms, &join);
    if (status == TUTTI_OK)
        status = consider(self, rank, &join);
    if (status != TUTTI_OK || *self->guests[rank].token)
        return status;
    /* What lies there is of a former life: nobody sets this key before the end. */
    meet_nonce_key_make(key, view->name, "go", &self->meeting);
    return tutti_store_wait(view->store, keys, 1, timeout_ms);
}

/* The same of one among all, without a wait. */
static enum tutti_status visit(struct lead *self, int rank)
{
    const struct guest *guest = &self->guests[rank];
    struct meet_join join;
    char key[MEET_KEY_BYTES];
    bool there, thanks = false;
    enum tutti_status status = meet_join_look_up(&self->view, rank, &join, &there);
    if (status == TUTTI_OK && there && strcmp(join.token, guest->token) != 0)
        status = consider(self, rank, &join);
    else if (status == TUTTI_OK && there && join.status != TUTTI_OK)
        status = has_left(self, rank, &join);
    if (status != TUTTI_OK || !*guest->token || (self->met & meet_bit(rank)))
        return status;
    meet_key_make(key, self->view.name, "thanks", guest->token);
    status = meet_key_exists(&self->view, key, &thanks);
    if (status == TUTTI_OK && thanks)
        status = thanks_await(self, rank, MEET_LOOK_MS);
    return status == TUTTI_ERR_TIMEOUT ? TUTTI_OK : status;
}

/* Another rank 0 may have found this one's key, and have refused it. */
static enum tutti_status refusal_check(struct lead *self)
{
    const struct meet_view *view = &self->view;
    struct meet_invitation refusal;
    char key[MEET_KEY_BYTES];
    bool there;
    meet_key_make(key, view->name, "invite", view->own.token);
    enum tutti_status status = meet_key_exists(view, key, &there);
    if (status != TUTTI_OK || !there)
        return status;
    status = meet_get_exactly(view, key, MEET_LOOK_MS, &refusal, sizeof refusal);
    meet_key_delete(view, key);
    if (status == TUTTI_ERR_TIMEOUT)
        return TUTTI_OK;
    return status == TUTTI_OK ? meet_told(refusal.status, refusal.text) : status;
}

static uint64_t missing_of(const struct lead *self)
{
    return meet_everybody(&self->view) & ~self->met & ~meet_bit(0);
}

/* Once the time is over: a rank that has come a moment ago is not to blame, unless nobody else is.
 */
static uint64_t to_blame(const struct lead *self)
{
    const uint64_t missing = missing_of(self) & ~self->late;
    uint64_t silent = missing;
    for (uint64_t rest = missing; rest; rest &= rest - 1)
        if (*self->guests[__builtin_ctzll(rest)].token)
            silent &= ~meet_bit(__builtin_ctzll(rest));
    return silent ? silent : missing;
}

/* Tells the others whom to name, should their time be over first. */
static enum tutti_status here_tell(struct lead *self)
{
    char key[MEET_KEY_BYTES];
    const uint64_t here = meet_everybody(&self->view) & ~missing_of(self);
    if (here == self->here)
        return TUTTI_OK;
    self->here = here;
    meet_nonce_key_make(key, self->view.name, "here", &self->meeting);
    return tutti_store_set(self->view.store, key, &here, sizeof here);
}

/* Nothing has come for a while from the rank that is awaited: the others' turn. */
static enum tutti_status visit_all(struct lead *self)
{
    struct meet_view *view = &self->view;
    enum tutti_status status = meet_own_check(view);
    if (status == TUTTI_OK)
        status = refusal_check(self);
    for (int r = 1; r < view->size && status == TUTTI_OK; r++)
        status = visit(self, r);
    if (status == TUTTI_OK)
        status = meet_deaths(view, UINT64_MAX);
    if (status != TUTTI_OK)
        return status;
    if (self->late)
        return meet_absent_error(view, to_blame(self));
    meet_waiting_log(view, missing_of(self));
    return here_tell(self);
}

/* Until all have come, or the meeting has failed. */
static enum tutti_status gather(struct lead *self)
{
    struct meet_view *view = &self->view;
    int64_t slice = MEET_LOOK_MS;
    for (uint64_t missing; (missing = missing_of(self));) {
        const int rank = __builtin_ctzll(missing);
        int64_t left = deadline_timeout_ms(view->deadline);
        enum tutti_status status = attend(self, rank, left < 0 || left > slice ? slice : left);
        if (status == TUTTI_OK) {
            slice = MEET_LOOK_MS;
            continue;
        }
        const bool over = deadline_passed(view->deadline);
        if (status == TUTTI_ERR_TIMEOUT)
            status = visit_all(self);
        if (status == TUTTI_OK && over && missing_of(self))
            status = meet_absent_error(view, to_blame(self));
        if (status != TUTTI_OK)
            return status;
        slice = slice < MOST_LOOK_MS ? 2 * slice : slice;
    }
    return TUTTI_OK;
}

/* After a failure: those who come soon, and before the deadline, hear of it, too. */
static void linger(struct lead *self, int size)
{
    struct meet_view *view = &self->view;
    int64_t deadline = deadline_after(LINGER_MS);
    if (deadline > view->deadline)
        deadline = view->deadline;
    view->size = size < TUTTI_MAX_RANKS ? size : TUTTI_MAX_RANKS;
    for (;;) {
        bool all = true;
        for (int r = 1; r < view->size; r++) {
            if (!(self->met & meet_bit(r)))
                (void)visit(self, r);
            all &= ((self->met | meet_ended(view, UINT64_MAX)) & meet_bit(r)) != 0;
        }
        if (all || deadline_passed(deadline))
            return;
        nanosleep(&(struct timespec){.tv_nsec = MEET_LOOK_MS * 1000000}, NULL);
    }
}

/* Tells everybody how it came out. Returns that. */
static enum tutti_status conclude(struct lead *self, enum tutti_status outcome)
{
    struct meet_view *view = &self->view;
    struct meet_verdict verdict = {.status = (int32_t)outcome};
    char key[MEET_KEY_BYTES];
    int most = view->size;
    if (outcome != TUTTI_OK)
        snprintf(verdict.text, sizeof verdict.text, "%s", tutti_last_error());
    verdict.processes[0] = view->self;
    for (int r = 1; r < view->size; r++) {
        verdict.processes[r] = self->guests[r].process;
        most = self->guests[r].size > most ? self->guests[r].size : most;
    }
    meet_nonce_key_make(key, view->name, "go", &self->meeting);
    enum tutti_status status = tutti_store_set(view->store, key, &verdict, sizeof verdict);
    if (self->here) {
        meet_nonce_key_make(key, view->name, "here", &self->meeting);
        meet_key_delete(view, key);
    }
    if (outcome == TUTTI_OK)
        return status;
    if (status == TUTTI_OK && outcome != TUTTI_ERR_TIMEOUT && outcome != TUTTI_ERR_ABORTED)
        linger(self, most);
    return meet_told(verdict.status, verdict.text);
}

static enum tutti_status lead(struct lead *self, struct meeting *meeting, struct process *processes)
{
    struct meet_view *view = &self->view;
    enum tutti_status status = random_fill(self->meeting.nonce, sizeof self->meeting.nonce);
    if (status == TUTTI_OK)
        status = meet_generation(view->store, view->name, &self->meeting.generation);
    if (status == TUTTI_OK)
        status = meet_own_make(view);
    if (status != TUTTI_OK)
        return status;
    POINT("meet.led");
    status = conclude(self, gather(self));
    meet_own_end(view, status);
    *meeting = self->meeting;
    for (int r = 0; r < view->size && processes; r++)
        processes[r] = r ? self->guests[r].process : view->self;
    return status;
}

/* ---- the call -------------------------------------------------------------------------------- */

enum tutti_status meet_generation(tutti_store_t *store, const char *name, int64_t *generation)
{
    char key[MEET_KEY_BYTES];
    meet_key_make(key, name, "generation", "count");
    return tutti_store_add(store, key, 1, generation);
}

enum tutti_status meet(tutti_store_t *store, const char *name, int rank, int size,
                       int64_t timeout_ms, struct meeting *meeting, struct process *processes)
{
    const int64_t now = deadline_now();
    struct lead self = {.view = {.store = store,
                                 .name = name,
                                 .rank = rank,
                                 .size = size,
                                 .timeout_ms = timeout_ms,
                                 .began = now,
                                 .deadline = deadline_after(timeout_ms),
                                 .reminder = reminder_start(now),
                                 .survey_ms = SURVEY_MS}};
    if (processes)
        memset(processes, 0, (size_t)size * sizeof *processes);
    memset(meeting, 0, sizeof *meeting);
    return rank == 0 ? lead(&self, meeting, processes) : follow(&self.view, meeting, processes);
}
