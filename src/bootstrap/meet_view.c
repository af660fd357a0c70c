/* SPDX-License-Identifier: MIT */
/*
 * A rank's look at the other ranks while they meet: which keys they have left, and which process
 * left them.
 *
 * - Rank 0 looks at all ranks. Any other rank looks at its own key and at rank 0's. If rank 0 does
 *   not answer, that rank looks at all keys after 250 ms, and again at each doubling. A rank that
 *   times out looks at all keys and at the answers to rank 0, and names all ranks that are missing.
 * - A process is {boot id, namespaces, pid, start time}; /proc says whether it has ended. A rank
 *   counts as dead if its process was seen alive, or came later than this rank, and has ended. A
 *   key of a process that ended before is one of an earlier run; this rank waits for a new one.
 * - Two processes may have one rank number. The second one overwrites the key of the first one. The
 *   first one notices that and refuses the second one with MISMATCH.
 * - A rank that gives up writes its error into its key, so that its exit is not taken for a death.
 *   Rank 0 tells the cause of a failed meeting to all ranks.
 */
#include "base/deadline.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "bootstrap/meet_internal.h"
#include "store/store.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { RANKS_BYTES = 300 };

/* ---- keys ------------------------------------------------------------------------------------ */

static void token_make(const uint8_t bytes[16], char token[MEET_TOKEN_BYTES])
{
    memset(token, 0, MEET_TOKEN_BYTES);
    for (size_t i = 0; i < 16; i++)
        snprintf(token + 2 * i, 3, "%02x", bytes[i]);
}

void meet_key_make(char key[MEET_KEY_BYTES], const char *name, const char *what, const char *detail)
{
    snprintf(key, MEET_KEY_BYTES, "tutti/%s/%s/%s", name, what, detail);
}

void meet_answer_key_make(char key[MEET_KEY_BYTES], const struct meet_view *view, int rank)
{
    char detail[MEET_TOKEN_BYTES + 16];
    snprintf(detail, sizeof detail, "%s/%d", view->lead, rank);
    meet_key_make(key, view->name, "answer", detail);
}

static void join_key_make(char key[MEET_KEY_BYTES], const char *name, int rank)
{
    char detail[16];
    snprintf(detail, sizeof detail, "%d", rank);
    meet_key_make(key, name, "join", detail);
}

void meet_key_delete(const struct meet_view *view, const char *key)
{
    bool deleted;
    /* A store may be unable to delete. No rank waits for the tokens in old keys. */
    (void)tutti_store_delete(view->store, key, &deleted);
}

void meet_end(const tutti_store_t *store, const char *name, int rank, const uint8_t nonce[16],
              bool all_met)
{
    struct tutti_store bounded = store_bounded(store, deadline_now(), NULL);
    struct meet_view view = {.store = &bounded, .name = name, .rank = rank};
    char key[MEET_KEY_BYTES];
    token_make(nonce, view.lead); /* rank 0's */
    meet_own_end(&view, TUTTI_OK);
    if (rank > 0)
        meet_answer_key_make(key, &view, rank);
    else
        meet_key_make(key, name, "go", view.lead);
    if (rank > 0 || all_met)
        meet_key_delete(&view, key);
}

enum tutti_status meet_get(const struct meet_view *view, const char *key, int64_t timeout_ms,
                           void *value, size_t capacity, size_t *size)
{
    enum tutti_status status = tutti_store_get(view->store, key, timeout_ms, value, capacity, size);
    if (status == TUTTI_OK && *size == 0) /* deleted between the store's wait and its answer */
        return error_set(TUTTI_ERR_TIMEOUT, "key %s has gone", key);
    return status;
}

enum tutti_status meet_unanswered(const struct meet_view *view, struct rank_set *ranks)
{
    enum tutti_status status = TUTTI_OK;
    *ranks = rank_set_none;
    for (int r = 1; r < view->size && status == TUTTI_OK; r++) {
        char key[MEET_KEY_BYTES];
        bool there = true;
        meet_answer_key_make(key, view, r);
        status = store_has(view->store, key, &there);
        if (!there)
            rank_set_add(ranks, r);
    }
    return status;
}

/* What the store holds is not trusted. */
static void join_end_texts(struct meet_join *join)
{
    join->token[MEET_TOKEN_BYTES - 1] = 0;
    join->text[MEET_TEXT_BYTES - 1] = 0;
}

enum tutti_status meet_join_await(const struct meet_view *view, int rank, int64_t timeout_ms,
                                  struct meet_join *join)
{
    char key[MEET_KEY_BYTES];
    size_t size;
    join_key_make(key, view->name, rank);
    enum tutti_status status = meet_get(view, key, timeout_ms, join, sizeof *join, &size);
    if (status == TUTTI_OK)
        status = store_value_check(key, size, sizeof *join);
    join_end_texts(join);
    return status;
}

enum tutti_status meet_join_look_up(const struct meet_view *view, int rank, struct meet_join *join,
                                    bool *there)
{
    char key[MEET_KEY_BYTES];
    join_key_make(key, view->name, rank);
    enum tutti_status status = store_look_up(view->store, key, join, sizeof *join, there);
    join_end_texts(join);
    return status;
}

static enum tutti_status own_set(const struct meet_view *view)
{
    char key[MEET_KEY_BYTES];
    join_key_make(key, view->name, view->rank);
    return tutti_store_set(view->store, key, &view->own, sizeof view->own);
}

enum tutti_status meet_own_make(struct meet_view *view, const uint8_t token[16])
{
    process_identify(&view->self);
    view->own =
        (struct meet_join){.size = view->size, .joined_ns = deadline_now(), .process = view->self};
    token_make(token, view->own.token);
    return own_set(view);
}

void meet_own_end(struct meet_view *view, enum tutti_status status)
{
    char key[MEET_KEY_BYTES];
    if (status == TUTTI_OK) {
        join_key_make(key, view->name, view->rank);
        meet_key_delete(view, key);
        return;
    }
    view->own.status = (int32_t)status;
    view->own.left_ns = view->failed_ns ? view->failed_ns : deadline_now();
    snprintf(view->own.text, sizeof view->own.text, "%s", tutti_last_error());
    (void)own_set(view);
    error_set(status, "%s", view->own.text);
}

/* ---- words ----------------------------------------------------------------------------------- */

enum tutti_status meet_reported(int32_t status, const char *text)
{
    return error_set(error_told(status), "%.*s", MEET_TEXT_BYTES - 1, text);
}

enum tutti_status meet_absent_error(const struct meet_view *view, struct rank_set missing)
{
    char ranks[RANKS_BYTES];
    const bool several = rank_set_count(missing) > 1;
    if (rank_set_empty(missing))
        return error_set(TUTTI_ERR_TIMEOUT,
                         "all ranks came to communicator \"%s\", but only after %" PRIi64
                         " ms: look at what delayed them, or raise TUTTI_TIMEOUT_MS",
                         view->name, view->call->timeout_ms);
    return error_set(TUTTI_ERR_TIMEOUT,
                     "%s did not come to communicator \"%s\" within %" PRIi64
                     " ms: check that %s, with the same store, name and world size, and that no "
                     "other process also has rank %d",
                     text_ranks(missing, ranks, sizeof ranks), view->name, view->call->timeout_ms,
                     several ? "they run, with these ranks" : "it runs, with that rank",
                     view->rank);
}

enum tutti_status meet_dead_error(struct rank_set dead)
{
    char ranks[RANKS_BYTES];
    return error_set(TUTTI_ERR_PEER_DEAD,
                     "%s ended while the ranks met: look at the log of %s, then restart the group",
                     text_ranks(dead, ranks, sizeof ranks),
                     rank_set_count(dead) > 1 ? "these ranks" : "that rank");
}

enum tutti_status meet_gave_up_error(int rank, const struct meet_join *join)
{
    const enum tutti_status status = error_told(join->status);
    if (status == TUTTI_ERR_ABORTED)
        return error_set(TUTTI_ERR_PEER_DEAD,
                         "rank %d ended, or gave up, while the ranks met (%s): look at its log, "
                         "then restart the group",
                         rank, join->text);
    return error_set(status, "%s", join->text);
}

void meet_waiting_log(struct meet_view *view, struct rank_set missing)
{
    char ranks[RANKS_BYTES];
    int waited_s = reminder_due(&view->reminder, deadline_now());
    if (waited_s)
        log_write(TUTTI_LOG_WARN, view->rank,
                  "rank %d has waited %d s to meet the others in communicator \"%s\": %s %s not "
                  "come",
                  view->rank, waited_s, view->name, text_ranks(missing, ranks, sizeof ranks),
                  rank_set_count(missing) > 1 ? "have" : "has");
}

/* ---- other ranks ----------------------------------------------------------------------------- */

enum meet_life meet_life_of(struct meet_view *view, int rank, const struct meet_join *join)
{
    const bool has_ended = process_has_ended(&join->process, &view->self);
    if (has_ended && join->joined_ns < view->began &&
        (!rank_set_has(view->known, rank) ||
         process_differs(&view->processes[rank], &join->process)))
        return MEET_FORMER;
    rank_set_add(&view->known, rank);
    view->processes[rank] = join->process;
    return has_ended ? MEET_ENDED : MEET_ALIVE;
}

struct rank_set meet_ended(const struct meet_view *view, struct rank_set ranks)
{
    struct rank_set ended = rank_set_none;
    ranks = rank_set_common(ranks, view->known);
    for (int r = rank_set_next(ranks, -1); r >= 0; r = rank_set_next(ranks, r))
        if (process_has_ended(&view->processes[r], &view->self))
            rank_set_add(&ended, r);
    return ended;
}

enum tutti_status meet_deaths(struct meet_view *view, struct rank_set ranks)
{
    const struct rank_set ended = meet_ended(view, ranks);
    struct rank_set dead = rank_set_none;
    for (int rank = rank_set_next(ended, -1); rank >= 0; rank = rank_set_next(ended, rank)) {
        struct meet_join join;
        bool there;
        enum tutti_status status = meet_join_look_up(view, rank, &join, &there);
        if (status != TUTTI_OK)
            return status;
        there = there && !process_differs(&join.process, &view->processes[rank]);
        if (there && join.status == TUTTI_OK)
            rank_set_add(&dead, rank);
        else if (there && rank == 0 && join.left_ns >= view->began)
            return meet_gave_up_error(rank, &join);
        else
            rank_set_remove(&view->known, rank);
    }
    return rank_set_empty(dead) ? TUTTI_OK : meet_dead_error(dead);
}

enum tutti_status meet_twice(const struct meet_view *view, int rank, const struct process *first,
                             const struct meet_join *other)
{
    const bool threads = first->pid == other->process.pid;
    return error_set(TUTTI_ERR_MISMATCH,
                     "rank %d of communicator \"%s\" is given to two %s, %" PRIi64 " and %" PRIi64
                     ": give each rank a number of its own",
                     rank, view->name, threads ? "threads" : "processes",
                     threads ? first->tid : first->pid,
                     threads ? other->process.tid : other->process.pid);
}

enum tutti_status meet_own_check(struct meet_view *view)
{
    struct meet_join join;
    bool there;
    enum tutti_status status = meet_join_look_up(view, view->rank, &join, &there);
    if (status != TUTTI_OK || !there || strcmp(join.token, view->own.token) == 0)
        return status;
    const bool other = process_differs(&join.process, &view->self);
    /* The other process may have ended after it wrote why it gave up. */
    if (other && join.status == TUTTI_ERR_MISMATCH && join.left_ns >= view->began)
        return meet_reported(join.status, join.text);
    if (!other || join.status != TUTTI_OK || process_has_ended(&join.process, &view->self))
        return own_set(view);
    return meet_twice(view, view->rank, &view->self, &join);
}
