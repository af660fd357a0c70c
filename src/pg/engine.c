/* SPDX-License-Identifier: MIT */
/*
 * The group's thread. It never waits but for its bell, or amid an operation that all ranks have
 * begun: an operation that some rank has not submitted lies in a table, and keeps nothing up.
 */
#include "cpu/group.h"
#include "deadline.h"
#include "ipc/futex.h"
#include "order.h"
#include "pg/affinity.h"
#include "pg/pg.h"
#include "point.h"

#include <sys/prctl.h>

enum {
    LOOK_MS = 50,     /* between looks at the peers' lives, while there is something to do */
    IDLE_MS = 1000,   /* while there is nothing */
    LINGER_MS = 100,  /* of a group that stops */
    ANSWER_MS = 5000, /* that the leader has to answer in */
};

static struct pg_op *op_of(struct pg_key *key)
{
    return (struct pg_op *)(void *)((char *)key - offsetof(struct pg_op, key));
}

/* Whether anything is under way. */
static bool is_busy(const struct tutti_pg *pg)
{
    return pg->open.count || pg->waiting.first || pg->held || pg->landing.first;
}

/* ---- what is recorded ------------------------------------------------------------------------ */

/* The thread is the communicator's one caller. */
static void record(struct tutti_pg *pg, struct pg_op *op)
{
    const struct recorder_operation operation = {.sequence = op->key.sequence,
                                                 .signature = op->operation.signature,
                                                 .parameter = op->operation.parameter,
                                                 .tag = op->key.tag,
                                                 .kind = RECORD_GROUP};
    recorder_start(&pg->comm->recorder, &operation, RECORD_SUBMITTED, ticks_now());
    op->record = pg->comm->recorder.number;
}

static void complete(struct tutti_pg *pg, struct pg_op *op, const struct pg_outcome *outcome)
{
    struct pg_outcome forsaken;
    if (op->staging)
        pg_stage_end(pg, op);
    if (op->staging && pg_stage_forsaken(op)) {
        forsaken = *outcome;
        forsaken.status = TUTTI_ERR_TIMEOUT;
        forsaken.rank = forsaken.peer = pg->boards.rank;
        forsaken.forsaken = true;
        outcome = &forsaken;
    }
    recorder_end_later(&pg->comm->recorder, op->record, outcome->status);
    pg_op_complete(op, outcome);
}

/* ---- what is held: its input is on the way ----------------------------------------------------
 */

/* Behind an operation that is held those of its tag are, too. */
static void hold(struct tutti_pg *pg, struct pg_op *op)
{
    struct pg_tag *tag = op->of;
    if (!tag->held.first) {
        tag->next = pg->held;
        pg->held = tag;
    }
    pg_list_append(&tag->held, op);
    if (op->deadline < pg->due_at)
        pg->due_at = op->deadline;
}

/* Whether the first operation of a tag need be held no longer. */
static bool is_free(const struct pg_op *op)
{
    return !op->staging || op->late || pg_stage_come(op);
}

/* Sends on what need not be held: the first ones, in order, and those that are late, for which
 * order is nothing any more. */
static void tag_free(struct tutti_pg *pg, struct pg_tag *tag)
{
    struct pg_list held = tag->held;
    struct pg_op *op;
    tag->held = (struct pg_list){NULL, NULL};
    while ((op = pg_list_take(&held))) {
        bool goes = op->late || (!tag->held.first && is_free(op));
        if (goes && op->staging && !op->late)
            pg_stage_ahead(pg, op);
        pg_list_append(goes ? &pg->waiting : &tag->held, op);
    }
}

static void free_held(struct tutti_pg *pg)
{
    for (struct pg_tag **link = &pg->held; *link;) {
        struct pg_tag *tag = *link;
        if (is_free(tag->held.first) || pg->late)
            tag_free(pg, tag);
        if (tag->held.first)
            link = &tag->next;
        else
            *link = tag->next;
    }
    pg->late = false;
}

/* Whether any input has come, or result is back, since the thread looked. */
static bool has_news(const void *context)
{
    const struct tutti_pg *pg = context;
    if (pg->late)
        return true;
    for (const struct pg_tag *tag = pg->held; tag; tag = tag->next)
        if (is_free(tag->held.first))
            return true;
    return pg->landing.first && pg_stage_landed(pg, pg->landing.first);
}

/* ---- the end --------------------------------------------------------------------------------- */

/* The group has ended, and everything in it does. The first fault stands. */
static void fail(struct tutti_pg *pg, const struct pg_outcome *fault)
{
    struct pg_op *op;
    struct pg_key *key;
    pthread_mutex_lock(&pg->lock);
    if (!pg->over)
        pg->fault = *fault;
    pg->over = true;
    const struct pg_outcome stands = pg->fault;
    struct pg_list queue = pg->queue;
    pg->queue = (struct pg_list){NULL, NULL};
    pthread_mutex_unlock(&pg->lock);
    while ((key = pg_table_take_any(&pg->open)))
        complete(pg, op_of(key), &stands);
    while ((op = pg_list_take(&pg->waiting)))
        complete(pg, op, &stands);
    for (struct pg_tag *tag = pg->held; tag; tag = tag->next)
        while ((op = pg_list_take(&tag->held)))
            complete(pg, op, &stands);
    pg->held = NULL;
    while ((op = pg_list_take(&queue)))
        complete(pg, op, &stands);
}

static void fail_as_communicator(struct tutti_pg *pg)
{
    struct tutti_fault fault = {.struct_size = sizeof fault};
    if (cpu_group_status(&pg->comm->cpu, &fault) == TUTTI_OK)
        return;
    const struct pg_outcome outcome = {
        .status = fault.status, .rank = fault.rank, .peer = fault.peer, .over = true};
    fail(pg, &outcome);
}

/* Ends the operations amid which the others' threads may be. */
static void fail_communicator(struct tutti_pg *pg, enum tutti_status status, int peer)
{
    const struct tutti_fault fault = {
        .struct_size = sizeof fault,
        .status = status,
        .rank = pg->boards.rank,
        .peer = peer,
        .sequence = order_load_relaxed_u64(&pg->comm->cpu.sequence),
    };
    cpu_group_fail(&pg->comm->cpu, &fault);
}

/* Whose departure ends nothing is not to be complained of; else peers that are amid data, and wait
 * for this rank, are told whose fault it is. */
static void fail_missing(struct tutti_pg *pg, int missing)
{
    const struct pg_outcome gone = {
        .status = TUTTI_ERR_PEER_DEAD, .rank = pg->boards.rank, .peer = missing, .over = true};
    if (is_busy(pg))
        fail_communicator(pg, TUTTI_ERR_PEER_DEAD, missing);
    fail(pg, &gone);
}

/* Completes those whose results are back. What went by the devices may have failed there. */
static bool land(struct tutti_pg *pg)
{
    bool any = false;
    for (; pg->landing.first && pg_stage_landed(pg, pg->landing.first); any = true) {
        struct pg_outcome outcome = {.rank = pg->boards.rank, .peer = -1};
        struct tutti_fault fault = {.struct_size = sizeof fault};
        struct pg_op *op = pg_list_take(&pg->landing);
        if (op->staging->direct && tutti_comm_status(pg->direct, &fault) != TUTTI_OK) {
            outcome = (struct pg_outcome){
                .status = fault.status, .rank = fault.rank, .peer = fault.peer, .over = true};
            fail_communicator(pg, fault.status, fault.peer);
            fail(pg, &outcome);
            outcome = pg->fault; /* nobody else writes it: the first one */
        }
        complete(pg, op, &outcome);
    }
    return any;
}

/* ---- one thing after the other --------------------------------------------------------------- */

/* Takes what callers have submitted; whether there was anything. */
static bool intake(struct tutti_pg *pg, bool *stopping)
{
    struct pg_op *op;
    pthread_mutex_lock(&pg->lock);
    struct pg_list queue = pg->queue;
    pg->queue = (struct pg_list){NULL, NULL};
    *stopping = pg->stopping;
    pthread_mutex_unlock(&pg->lock);
    const bool any = queue.first != NULL;
    while ((op = pg_list_take(&queue))) {
        if (op->staging || op->of->held.first)
            hold(pg, op);
        else
            pg_list_append(&pg->waiting, op);
    }
    free_held(pg);
    return any;
}

static bool announce(struct tutti_pg *pg)
{
    bool any = false;
    for (struct pg_op *op; (op = pg->waiting.first); any = true) {
        const struct layout_announcement announcement = {.withdrawn = op->late ? LAYOUT_LATE
                                                                               : LAYOUT_OFFERED,
                                                         .tag = op->key.tag,
                                                         .sequence = op->key.sequence,
                                                         .operation = op->operation};
        if (!pg_board_announce(&pg->boards, &announcement))
            break;
        pg_list_take(&pg->waiting);
        record(pg, op);
        if (op->late)
            op->withdrawn_at = deadline_now();
        pg_table_insert(&pg->open, &op->key);
        if (op->deadline < pg->due_at)
            pg->due_at = op->deadline;
    }
    return any;
}

static void run(struct tutti_pg *pg, struct pg_op *op, uint32_t inputs)
{
    struct pg_outcome outcome = {.rank = pg->boards.rank, .peer = -1};
    pg_run(pg, op, inputs, &outcome);
    pg->idle_at = 0; /* it has just ended */
    if (outcome.status == TUTTI_OK && op->staging) {
        pg_list_append(&pg->landing, op);
        return;
    }
    if (outcome.status == TUTTI_OK || tutti_comm_status(pg->comm, NULL) == TUTTI_OK) {
        complete(pg, op, &outcome);
        return;
    }
    pg_table_insert(&pg->open, &op->key); /* ends with the others */
    fail_as_communicator(pg);
}

/* The next verdict, if there is one. */
static bool hear(struct tutti_pg *pg)
{
    struct layout_verdict verdict;
    if (!pg_board_hear(&pg->boards, &verdict))
        return false;
    struct pg_key *key = pg_table_take(&pg->open, verdict.tag, verdict.sequence);
    if (key && verdict.status == TUTTI_OK) {
        run(pg, op_of(key), verdict.inputs);
    } else if (key) {
        const struct pg_outcome outcome = {.status = (enum tutti_status)verdict.status,
                                           .rank = verdict.rank,
                                           .peer = verdict.peer,
                                           .expected = verdict.expected,
                                           .seen = verdict.seen};
        complete(pg, op_of(key), &outcome);
    }
    return true;
}

/* ---- time ------------------------------------------------------------------------------------ */

/* One look at all deadlines. */
struct look {
    struct tutti_pg *pg;
    int64_t now;
    bool no_answer;
};

/* Whether the leader, asked at that time, should have answered by now. While all ranks are busy
 * with an operation it is, too. */
static bool is_owed(const struct look *look, int64_t asked_at)
{
    int64_t since = asked_at > look->pg->idle_at ? asked_at : look->pg->idle_at;
    return look->now - since > (int64_t)ANSWER_MS * 1000000;
}

/* Past its deadline an operation is withdrawn, which the leader answers with a verdict. */
static void expire(void *context, struct pg_key *key)
{
    struct look *look = context;
    struct tutti_pg *pg = look->pg;
    struct pg_op *op = op_of(key);
    int64_t due_at = op->deadline;
    if (due_at <= look->now) {
        POINT("group.overdue");
        const struct layout_announcement withdrawal = {
            .withdrawn = LAYOUT_WITHDRAWN, .tag = key->tag, .sequence = key->sequence};
        if (!op->withdrawn_at && pg_board_announce(&pg->boards, &withdrawal))
            op->withdrawn_at = look->now;
        else if (!op->withdrawn_at && !op->unheard_at)
            op->unheard_at = look->now;
        look->no_answer |= is_owed(look, op->withdrawn_at ? op->withdrawn_at : op->unheard_at);
        due_at = look->now + (int64_t)LOOK_MS * 1000000;
    }
    if (due_at < pg->due_at)
        pg->due_at = due_at;
}

/* The same of those that are held, but that there is nothing to withdraw: both is said at once. */
static void expire_held(struct tutti_pg *pg, int64_t now)
{
    for (struct pg_tag *tag = pg->held; tag; tag = tag->next)
        for (struct pg_op *op = tag->held.first; op; op = op->next) {
            op->late |= op->deadline <= now;
            pg->late |= op->late;
            if (!op->late && op->deadline < pg->due_at)
                pg->due_at = op->deadline;
        }
}

/* Whether the time of any that waits for room to be announced is over. */
static bool is_overdue(const struct pg_list *waiting, int64_t now)
{
    for (const struct pg_op *op = waiting->first; op; op = op->next)
        if (op->deadline < now)
            return true;
    return false;
}

/* Milliseconds to sleep; ends the group if the leader owes an answer. */
static int64_t times(struct tutti_pg *pg)
{
    struct look look = {.pg = pg, .now = deadline_now()};
    if (!pg->idle_at)
        pg->idle_at = look.now;
    if (pg->due_at <= look.now) {
        pg->due_at = DEADLINE_NEVER;
        pg_table_each(&pg->open, expire, &look);
        expire_held(pg, look.now);
    }
    /* What waits for room to be announced hears nothing at all if the leader does not answer. */
    if (!pg->waiting.first)
        pg->blocked_at = 0;
    else if (!pg->blocked_at)
        pg->blocked_at = look.now;
    else if (is_owed(&look, pg->blocked_at) && is_overdue(&pg->waiting, look.now))
        look.no_answer = true;
    if (look.no_answer) {
        fail_communicator(pg, TUTTI_ERR_TIMEOUT, pg_board_silent(&pg->boards));
        fail_as_communicator(pg);
    }
    int64_t slice = is_busy(pg) ? LOOK_MS : IDLE_MS;
    int64_t left = deadline_left_ms(pg->due_at);
    return left < 0 || left > slice ? slice : left;
}

/* A process that has ended, -1 if all live. Asks the kernel, now and then. */
static int dead_rank(struct tutti_pg *pg)
{
    uint64_t left, dead;
    int64_t now = deadline_now();
    if (now - pg->looked_at < (int64_t)LOOK_MS * 1000000)
        return -1;
    pg->looked_at = now;
    cpu_group_gone(&pg->comm->cpu, &left, &dead);
    return left | dead ? __builtin_ctzll(left | dead) : -1;
}

/* The rank without which the group cannot go on, -1 if there is none. */
static int missing_rank(struct tutti_pg *pg)
{
    int left = pg_board_left(&pg->boards);
    return left >= 0 ? left : dead_rank(pg);
}

/* ---- the thread ------------------------------------------------------------------------------ */

/* Whether the group, which stops, has nothing left to do. What remains after a while ends. */
static bool stopped(struct tutti_pg *pg)
{
    int64_t now = deadline_now();
    if (!is_busy(pg))
        return true;
    if (!pg->stop_at)
        pg->stop_at = now + (int64_t)LINGER_MS * 1000000;
    if (now < pg->stop_at)
        return false;
    /* What is still on its way back is so because the device does not go on. */
    struct pg_op *op;
    int own = pg->boards.rank;
    const struct pg_outcome aborted = {
        .status = TUTTI_ERR_ABORTED, .rank = own, .peer = own, .over = true};
    if (pg->direct)
        tutti_comm_abort(pg->direct);
    while ((op = pg_list_take(&pg->landing)))
        complete(pg, op, &aborted);
    /* The leader may have begun an operation meanwhile, for which we shall not come. */
    fail_communicator(pg, TUTTI_ERR_PEER_DEAD, own);
    fail(pg, &aborted);
    return true;
}

static bool turn(struct tutti_pg *pg)
{
    struct tutti_fault fault;
    bool stopping;
    uint32_t bell = pg_board_bell(&pg->boards);
    int missing = missing_rank(pg);   /* before what it has said is heard */
    bool any = intake(pg, &stopping); /* if it is held its input is likely to be here soon */
    any |= announce(pg);
    any |= land(pg);
    if (pg->leader)
        any |= pg_leader_turn(pg->leader);
    any |= hear(pg);
    if (any) {
        pg_board_stir(&pg->boards);
        return true;
    }

    /* The communicator's fault first: who left because of it says no more than it does. */
    if (cpu_group_look(&pg->comm->cpu, pg->boards.rank, false, &fault))
        fail_as_communicator(pg);
    else if (missing >= 0)
        fail_missing(pg, missing);
    int64_t ms = times(pg);
    if (stopping && stopped(pg))
        return false;
    const struct pg_watch watch = {.news = has_news, .context = pg};
    pg_board_sleep(&pg->boards, bell, ms, pg->held || pg->landing.first ? &watch : NULL);
    return true;
}

void *pg_engine(void *argument)
{
    struct tutti_pg *pg = argument;
    (void)prctl(PR_SET_TIMERSLACK, 1UL, 0, 0, 0); /* naps of 50 us are 100 without it */
    affinity_keep_to_part(pg->comm->cores, pg->boards.rank, pg->boards.size);
    while (turn(pg))
        ;
    bool caused = pg->over && pg->fault.peer >= 0; /* nobody else writes these */
    pg_board_leave(&pg->boards, caused ? pg->fault.peer : pg->boards.rank);
    order_store_release_u32(&pg->ended, 1); /* H6 pairs H6a: the thread is as good as gone */
    futex_wake_all(&pg->ended);
    return NULL;
}
