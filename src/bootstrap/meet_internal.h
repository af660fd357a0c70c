/* SPDX-License-Identifier: MIT */
/* What meet.c (the meeting) and meet_view.c (a rank's look at the others) share. */
#ifndef TUTTI_MEET_INTERNAL_H
#define TUTTI_MEET_INTERNAL_H

#include "base/rank_set.h"
#include "base/reminder.h"
#include "bootstrap/meet.h"
#include "ipc/process.h"

#include <stdlib.h>
#include <string.h>

enum {
    MEET_TOKEN_BYTES = 36, /* 32 hexadecimal digits, so that any store takes it in a key */
    MEET_TEXT_BYTES = 512, /* so that struct meet_join has another size than in 0.1: VERSION */
    MEET_KEY_BYTES = 192,
    MEET_LOOK_MS = 20, /* the first wait for a key, before the rank looks around */
};

/* What a rank leaves under its number, and, with its record behind it, as its answer to rank 0. */
struct meet_join {
    char token[MEET_TOKEN_BYTES];
    int32_t size;   /* the world size that it was given */
    int32_t status; /* enum tutti_status: OK, the rank waits; else why it has given up */
    int32_t unused;
    int64_t joined_ns; /* both times by CLOCK_MONOTONIC */
    /* When the meeting failed that it gave up. A rank that has begun since then is not concerned:
     * the ranks that have had the result may meet again before this one has written its own. */
    int64_t left_ns;
    struct process process;
    char text[MEET_TEXT_BYTES]; /* of the error */
};

/* How the meeting came out, for the ranks whose tokens it contains. All records follow if the
 * status is OK. */
struct meet_result {
    struct meeting meeting;
    int32_t status; /* enum tutti_status */
    int32_t unused;
    int64_t failed_ns; /* when rank 0 knew that; 0: it has not failed */
    char text[MEET_TEXT_BYTES];
    uint64_t tokens[WORLD_RANKS]; /* the first half of each: meet_token_half(); 0: none */
};

static inline uint64_t meet_token_half(const char token[MEET_TOKEN_BYTES])
{
    char half[17] = "";
    memcpy(half, token, sizeof half - 1);
    return strtoull(half, NULL, 16);
}

/* A meeting as one rank sees it. */
struct meet_view {
    const struct meet_call *call;
    tutti_store_t *store; /* these four are the call's */
    const char *name;
    int rank;
    int size;      /* after a mismatch, the largest that a rank was given */
    bool launched; /* `tutti run` started these ranks */
    int64_t began, deadline;
    int64_t failed_ns;          /* of the result; 0: there is none, or it is OK */
    struct meet_join *answer;   /* call->record_bytes follow; rank 0: the others' answers */
    struct meet_result *result; /* with room for all records */
    struct process self;
    struct meet_join own;        /* as it lies in the store */
    char lead[MEET_TOKEN_BYTES]; /* rank 0's token, which this rank has answered; "": none */
    struct rank_set known;       /* processes[r] has been seen alive since the call began */
    struct process *processes;   /* WORLD_RANKS */
    struct reminder reminder;
    int64_t survey_ms; /* when the next survey is due, from the beginning */
};

/* ---- keys ------------------------------------------------------------------------------------ */

void meet_key_make(char key[MEET_KEY_BYTES], const char *name, const char *what,
                   const char *detail);
/* The key of a rank's answer to view->lead. */
void meet_answer_key_make(char key[MEET_KEY_BYTES], const struct meet_view *view, int rank);
/* Best effort. */
void meet_key_delete(const struct meet_view *view, const char *key);
/* TIMEOUT: the key is not there. */
enum tutti_status meet_get(const struct meet_view *view, const char *key, int64_t timeout_ms,
                           void *value, size_t capacity, size_t *size);
/* The ranks that have not answered rank 0's token, which this rank has answered. */
enum tutti_status meet_unanswered(const struct meet_view *view, struct rank_set *ranks);
/* Waits for the key of a rank. TIMEOUT: it is not there. */
enum tutti_status meet_join_await(const struct meet_view *view, int rank, int64_t timeout_ms,
                                  struct meet_join *join);
enum tutti_status meet_join_look_up(const struct meet_view *view, int rank, struct meet_join *join,
                                    bool *there);
/* Leaves this rank's key. token: random bytes. */
enum tutti_status meet_own_make(struct meet_view *view, const uint8_t token[16]);
/* Ends this rank's wait. After a failure its key says why, so that ranks that look for it see that
 * it had come. Keeps the thread's last error. */
void meet_own_end(struct meet_view *view, enum tutti_status status);

/* ---- errors ---------------------------------------------------------------------------------- */

/* The error that another rank has written. */
enum tutti_status meet_reported(int32_t status, const char *text);
enum tutti_status meet_absent_error(const struct meet_view *view, struct rank_set missing);
enum tutti_status meet_dead_error(struct rank_set dead);
/* The error of a rank that gave up while this rank waited. */
enum tutti_status meet_gave_up_error(int rank, const struct meet_join *join);
/* Logs which ranks are missing, if a report is due. */
void meet_waiting_log(struct meet_view *view, struct rank_set missing);

/* ---- other ranks ----------------------------------------------------------------------------- */

enum meet_life { MEET_ALIVE, MEET_ENDED, MEET_FORMER };

/* The state of the process that left this key. FORMER: it had ended before this rank came or could
 * see it, so the key is of an earlier meeting of this name. Any other process is known from now on.
 * ENDED: see meet_deaths(). */
enum meet_life meet_life_of(struct meet_view *view, int rank, const struct meet_join *join);
/* The known ranks among `ranks` whose processes have ended. */
struct rank_set meet_ended(const struct meet_view *view, struct rank_set ranks);
/* PEER_DEAD that names the ranks whose processes ended while their keys still say that they wait.
 * If rank 0 gave up before it ended, returns rank 0's error. */
enum tutti_status meet_deaths(struct meet_view *view, struct rank_set ranks);
/* The MISMATCH of two processes that wait with one rank. */
enum tutti_status meet_twice(const struct meet_view *view, int rank, const struct process *first,
                             const struct meet_join *other);
/* MISMATCH if another process has written its own key over this rank's. */
enum tutti_status meet_own_check(struct meet_view *view);

#endif
