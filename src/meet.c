/* SPDX-License-Identifier: MIT */
#include "meet.h"

#include "deadline.h"
#include "error.h"
#include "ipc/random.h"
#include "point.h"
#include "store/store.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum {
    KEY_BYTES = MEET_KEY_BYTES,
    TOKEN_BYTES = 36, /* 32 hexadecimal digits, so that any store takes it in a key */
    RETRY_MS = 20,    /* between two looks for a newer token */
    LINGER_MS = 2000, /* for ranks that come after a disagreement was found */
};

/* What a rank leaves under its number. */
struct join {
    char token[TOKEN_BYTES];
    int32_t size;
};

/* What rank 0 has to say once all have come. */
struct verdict {
    int32_t rank; /* that has another world size than rank 0, or -1 */
    int32_t size; /* its world size */
    int32_t ours; /* rank 0's */
};

static void token_make(const uint8_t bytes[16], char token[TOKEN_BYTES])
{
    memset(token, 0, TOKEN_BYTES);
    for (size_t i = 0; i < 16; i++)
        snprintf(token + 2 * i, 3, "%02x", bytes[i]);
}

static void key_make(char key[KEY_BYTES], const char *name, const char *what, const char *detail)
{
    snprintf(key, KEY_BYTES, "tutti/%s/%s/%s", name, what, detail);
}

static void join_key_make(char key[KEY_BYTES], const char *name, int rank)
{
    char detail[16];
    snprintf(detail, sizeof detail, "%d", rank);
    key_make(key, name, "join", detail);
}

/* Under which rank 0 gives the word to go. */
void meet_last_key(const char *name, const uint8_t nonce[16], char key[MEET_KEY_BYTES])
{
    char token[TOKEN_BYTES];
    token_make(nonce, token);
    key_make(key, name, "go", token);
}

/* A get of exactly so many bytes. */
static enum tutti_status get_exactly(tutti_store_t *store, const char *key, int64_t timeout_ms,
                                     void *value, size_t bytes)
{
    size_t size;
    enum tutti_status status = tutti_store_get(store, key, timeout_ms, value, bytes, &size);
    return status == TUTTI_OK ? store_value_check(key, size, bytes) : status;
}

static enum tutti_status disagreement(const struct verdict *verdict)
{
    return error_set(TUTTI_ERR_MISMATCH,
                     "ranks disagree about the world size: rank 0 has %d, rank %d has %d: set the "
                     "same on all ranks",
                     verdict->ours, verdict->rank, verdict->size);
}

static enum tutti_status follow(tutti_store_t *store, const char *name, int rank, int size,
                                int64_t deadline, struct meeting *meeting)
{
    struct join join = {.size = size};
    struct verdict verdict;
    uint8_t random[16];
    char key[KEY_BYTES];
    bool deleted;
    enum tutti_status status = random_fill(random, sizeof random);
    if (status != TUTTI_OK)
        return status;
    token_make(random, join.token);
    join_key_make(key, name, rank);
    status = tutti_store_set(store, key, &join, sizeof join);
    if (status != TUTTI_OK)
        return status;

    POINT("meet.joined");
    key_make(key, name, "invite", join.token);
    status = get_exactly(store, key, deadline_timeout_ms(deadline), meeting, sizeof *meeting);
    if (status == TUTTI_ERR_TIMEOUT && (status = store_answers(store, key)) == TUTTI_OK)
        return error_set(
            TUTTI_ERR_TIMEOUT,
            "rank %d met no rank 0 of communicator \"%s\": is rank 0 running, with the "
            "same store and name, and is no other process rank %d, too?",
            rank, name, rank);
    if (status != TUTTI_OK)
        return status;
    /* Stores need not be able to delete: old keys carry tokens that nobody waits for. */
    (void)tutti_store_delete(store, key, &deleted);
    join_key_make(key, name, rank);
    (void)tutti_store_delete(store, key, &deleted);
    key_make(key, name, "thanks", join.token);
    status = tutti_store_set(store, key, meeting->nonce, sizeof meeting->nonce);
    if (status != TUTTI_OK)
        return status;

    meet_last_key(name, meeting->nonce, key);
    status = get_exactly(store, key, deadline_timeout_ms(deadline), &verdict, sizeof verdict);
    if (status == TUTTI_ERR_TIMEOUT && (status = store_answers(store, key)) == TUTTI_OK)
        return error_set(TUTTI_ERR_TIMEOUT,
                         "rank %d and rank 0 wait for other ranks of communicator \"%s\": do all "
                         "run, each with a rank of its own and with the same store, name and world "
                         "size?",
                         rank, name);
    if (status == TUTTI_OK && verdict.rank >= 0)
        status = disagreement(&verdict);
    return status;
}

/* The newest token of a rank, or the one that is answered already if there is none now. */
static enum tutti_status join_read(tutti_store_t *store, const char *key, int64_t timeout_ms,
                                   const struct join *answered, struct join *join)
{
    const char *keys[] = {key};
    bool there = true;
    size_t size = 0;
    enum tutti_status status = TUTTI_OK;
    if (*answered->token)
        status = tutti_store_check(store, keys, 1, &there);
    *join = *answered;
    if (status != TUTTI_OK || !there)
        return status;
    status = tutti_store_get(store, key, timeout_ms, join, sizeof *join, &size);
    if (status != TUTTI_OK)
        return status;
    if (size == 0) { /* its rank has deleted it between the store's wait and its answer */
        *join = *answered;
        return *answered->token ? TUTTI_OK : TUTTI_ERR_TIMEOUT;
    }
    join->token[TOKEN_BYTES - 1] = 0;
    return store_value_check(key, size, sizeof *join);
}

/* Whether the thanks are for this meeting: a store that cannot delete may hold those of an earlier
 * one. */
static enum tutti_status thanked(tutti_store_t *store, const char *key, int64_t timeout_ms,
                                 const struct meeting *meeting)
{
    uint8_t nonce[sizeof meeting->nonce];
    bool deleted;
    enum tutti_status status = get_exactly(store, key, timeout_ms, nonce, sizeof nonce);
    if (status != TUTTI_OK)
        return status;
    if (memcmp(nonce, meeting->nonce, sizeof nonce) != 0) {
        nanosleep(&(struct timespec){.tv_nsec = timeout_ms * 1000000}, NULL);
        return TUTTI_ERR_TIMEOUT;
    }
    (void)tutti_store_delete(store, key, &deleted);
    return TUTTI_OK;
}

/* Rank 0's side of one other rank, whose world size it tells; returns TIMEOUT at the deadline. */
static enum tutti_status invite(tutti_store_t *store, const char *name, int rank, int64_t deadline,
                                const struct meeting *meeting, int32_t *their_size)
{
    struct join answered = {.token = ""}, join;
    char join_key[KEY_BYTES], key[KEY_BYTES];
    join_key_make(join_key, name, rank);
    for (;;) {
        int64_t left = deadline_timeout_ms(deadline);
        int64_t slice = left < 0 || left > RETRY_MS ? RETRY_MS : left;
        enum tutti_status status =
            join_read(store, join_key, *answered.token ? slice : left, &answered, &join);
        if (status == TUTTI_OK && strcmp(join.token, answered.token) != 0) {
            key_make(key, name, "invite", join.token);
            status = tutti_store_set(store, key, meeting, sizeof *meeting);
            answered = join;
        }
        if (status == TUTTI_OK) {
            key_make(key, name, "thanks", answered.token);
            status = thanked(store, key, slice, meeting);
        }
        *their_size = answered.size;
        /* A time-out before the deadline: a token of an earlier life, or one deleted meanwhile. */
        if (status != TUTTI_ERR_TIMEOUT || deadline_passed(deadline))
            return status;
    }
}

/* Tells those who have not heard yet, as far as they come soon, and before the deadline. */
static void spread(tutti_store_t *store, const char *name, int first, int size, int64_t deadline,
                   const struct meeting *meeting)
{
    int64_t soon = deadline_after(LINGER_MS);
    int32_t ignored;
    if (deadline > soon)
        deadline = soon;
    for (int r = first; r < size && !deadline_passed(deadline); r++)
        (void)invite(store, name, r, deadline, meeting, &ignored);
}

enum tutti_status meet_generation(tutti_store_t *store, const char *name, int64_t *generation)
{
    char key[KEY_BYTES];
    key_make(key, name, "generation", "count");
    return tutti_store_add(store, key, 1, generation);
}

static enum tutti_status lead(tutti_store_t *store, const char *name, int size, int64_t deadline,
                              struct meeting *meeting)
{
    struct verdict verdict = {.rank = -1, .size = size, .ours = size};
    char key[KEY_BYTES];
    int r = 1;
    memset(meeting, 0, sizeof *meeting);
    enum tutti_status status = random_fill(meeting->nonce, sizeof meeting->nonce);
    if (status == TUTTI_OK)
        status = meet_generation(store, name, &meeting->generation);
    for (; r < size && status == TUTTI_OK && verdict.rank < 0; r++) {
        status = invite(store, name, r, deadline, meeting, &verdict.size);
        join_key_make(key, name, r);
        if (status == TUTTI_ERR_TIMEOUT && (status = store_answers(store, key)) == TUTTI_OK)
            return error_set(
                TUTTI_ERR_TIMEOUT,
                "rank %d did not come to communicator \"%s\": is it running, with that "
                "rank and with the same store, name and world size, and is no other process rank "
                "0, too?",
                r, name);
        if (status == TUTTI_OK && verdict.size != size)
            verdict.rank = r;
    }
    if (status != TUTTI_OK)
        return status;

    meet_last_key(name, meeting->nonce, key);
    status = tutti_store_set(store, key, &verdict, sizeof verdict);
    if (status != TUTTI_OK || verdict.rank < 0)
        return status;
    /* Of a size that nobody can have, no rank beyond the most comes. */
    int most = verdict.size < TUTTI_MAX_RANKS ? verdict.size : TUTTI_MAX_RANKS;
    spread(store, name, r, most > size ? most : size, deadline, meeting);
    return disagreement(&verdict);
}

enum tutti_status meet(tutti_store_t *store, const char *name, int rank, int size,
                       int64_t timeout_ms, struct meeting *meeting)
{
    int64_t deadline = deadline_after(timeout_ms);
    return rank == 0 ? lead(store, name, size, deadline, meeting)
                     : follow(store, name, rank, size, deadline, meeting);
}
