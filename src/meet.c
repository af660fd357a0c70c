/* SPDX-License-Identifier: MIT */
#include "meet.h"

#include "deadline.h"
#include "error.h"
#include "point.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

enum { KEY_BYTES = 192, TOKEN_BYTES = 33, RETRY_MS = 20 };

/* A random token, as text so that any store takes it. */
static enum tutti_status token_make(char token[TOKEN_BYTES])
{
    uint8_t bytes[16];
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
        return error_errno("getrandom");
    for (size_t i = 0; i < sizeof bytes; i++)
        snprintf(token + 2 * i, 3, "%02x", bytes[i]);
    return TUTTI_OK;
}

static void key_make(char key[KEY_BYTES], const char *name, const char *what, const char *detail)
{
    snprintf(key, KEY_BYTES, "tutti/%s/%s/%s", name, what, detail);
}

static void rank_key_make(char key[KEY_BYTES], const char *name, int rank)
{
    char detail[16];
    snprintf(detail, sizeof detail, "%d", rank);
    key_make(key, name, "join", detail);
}

static enum tutti_status follow(tutti_store_t *store, const char *name, int rank, int64_t deadline,
                                struct meeting *meeting)
{
    char token[TOKEN_BYTES], key[KEY_BYTES];
    size_t size;
    bool deleted;
    enum tutti_status status = token_make(token);
    if (status != TUTTI_OK)
        return status;
    rank_key_make(key, name, rank);
    status = tutti_store_set(store, key, token, TOKEN_BYTES);
    if (status != TUTTI_OK)
        return status;

    POINT("meet.joined");
    key_make(key, name, "invite", token);
    status =
        tutti_store_get(store, key, deadline_timeout_ms(deadline), meeting, sizeof *meeting, &size);
    if (status == TUTTI_ERR_TIMEOUT)
        return error_set(
            status,
            "rank %d met no rank 0 of communicator \"%s\": is rank 0 running, with the "
            "same store and name?",
            rank, name);
    if (status != TUTTI_OK)
        return status;
    if (size != sizeof *meeting)
        return error_set(TUTTI_ERR_VERSION,
                         "rank 0's invitation has %zu bytes instead of %zu: run "
                         "one version of Tutti on all ranks",
                         size, sizeof *meeting);
    /* Stores need not be able to delete; stale keys harm nobody. */
    (void)tutti_store_delete(store, key, &deleted);
    rank_key_make(key, name, rank);
    (void)tutti_store_delete(store, key, &deleted);
    key_make(key, name, "thanks", token);
    return tutti_store_set(store, key, "1", 1);
}

/* Rank 0's side of one other rank; returns TIMEOUT at the deadline. */
static enum tutti_status invite(tutti_store_t *store, const char *name, int rank, int64_t deadline,
                                const struct meeting *meeting)
{
    char answered[TOKEN_BYTES] = "", token[TOKEN_BYTES], join[KEY_BYTES], key[KEY_BYTES];
    const char *keys[] = {key};
    size_t size;
    bool there, deleted;
    rank_key_make(join, name, rank);
    for (;;) {
        int64_t left = deadline_timeout_ms(deadline);
        enum tutti_status status;
        if (!*answered) {
            status = tutti_store_get(store, join, left, token, sizeof token, &size);
        } else {
            const char *joins[] = {join};
            status = tutti_store_check(store, joins, 1, &there);
            if (status == TUTTI_OK && there)
                status = tutti_store_get(store, join, RETRY_MS, token, sizeof token, &size);
            else if (status == TUTTI_OK)
                memcpy(token, answered, sizeof token);
        }
        if (status == TUTTI_ERR_TIMEOUT && (left < 0 || deadline_left_ms(deadline) > 0))
            continue; /* deleted between check and get */
        if (status != TUTTI_OK)
            return status;
        token[TOKEN_BYTES - 1] = 0;
        if (strcmp(token, answered) != 0) {
            memcpy(answered, token, sizeof answered);
            key_make(key, name, "invite", token);
            status = tutti_store_set(store, key, meeting, sizeof *meeting);
            if (status != TUTTI_OK)
                return status;
        }
        key_make(key, name, "thanks", answered);
        left = deadline_timeout_ms(deadline);
        status = tutti_store_wait(store, keys, 1, left < 0 || left > RETRY_MS ? RETRY_MS : left);
        if (status == TUTTI_OK) {
            (void)tutti_store_delete(store, key, &deleted);
            return TUTTI_OK;
        }
        if (status != TUTTI_ERR_TIMEOUT || deadline_left_ms(deadline) == 0)
            return status;
    }
}

static enum tutti_status lead(tutti_store_t *store, const char *name, int size, int64_t deadline,
                              struct meeting *meeting)
{
    char key[KEY_BYTES];
    memset(meeting, 0, sizeof *meeting);
    if (getrandom(meeting->nonce, sizeof meeting->nonce, 0) != (ssize_t)sizeof meeting->nonce)
        return error_errno("getrandom");
    key_make(key, name, "generation", "count");
    enum tutti_status status = tutti_store_add(store, key, 1, &meeting->generation);
    for (int r = 1; status == TUTTI_OK && r < size; r++) {
        status = invite(store, name, r, deadline, meeting);
        if (status == TUTTI_ERR_TIMEOUT)
            status =
                error_set(status,
                          "rank %d did not come to communicator \"%s\": is it running, with the "
                          "same store, name and world size?",
                          r, name);
    }
    return status;
}

enum tutti_status meet(tutti_store_t *store, const char *name, int rank, int size,
                       int64_t timeout_ms, struct meeting *meeting)
{
    int64_t deadline = deadline_after(timeout_ms);
    return rank == 0 ? lead(store, name, size, deadline, meeting)
                     : follow(store, name, rank, deadline, meeting);
}
