/* SPDX-License-Identifier: MIT */
/*
 * All-gather and barrier over any store. Rank r writes PREFIX/SEQUENCE/r and waits for the keys of
 * the others. No key is written twice, so it has one value. Once all ranks have come to a round, no
 * rank reads the round before it: each rank deletes its key there. After the last round the ranks
 * count themselves under PREFIX/SEQUENCE/over; the last one deletes the keys of that round and the
 * count. If a rank has died before it counted itself, these keys stay.
 *
 * Of many ranks, rank 0 alone reads all keys, and hands all values on under PREFIX/SEQUENCE/all: so
 * a round has O(N) reads, not O(N^2). A rank that waits for that key in vain reads the others'.
 */
#include "store/kind.h"
#include "store/store.h"

#include "base/deadline.h"
#include "base/error.h"
#include "base/log.h"
#include "base/options.h"
#include "base/reminder.h"
#include "base/text.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MANY = 32, MOST = 65536 }; /* of so many ranks rank 0 reads for all */

struct round {
    const char **keys; /* one for each rank */
    size_t *sizes;     /* of their values */
    char *own;         /* this rank's key */
    char *handed_on;   /* the key of all values; NULL: each rank reads all keys */
    size_t each;       /* bytes that a key may have */
};

static enum tutti_status check(const struct tutti_exchanger *exchanger, const void *value,
                               size_t bytes, const void *all)
{
    if (!exchanger)
        return error_set(TUTTI_ERR_INVALID, "exchanger is NULL");
    /* Each call advances `sequence`, the last field of 0.2, so no struct is shorter. */
    if (exchanger->struct_size < sizeof *exchanger)
        return error_set(TUTTI_ERR_INVALID,
                         "struct_size is %zu: set it to sizeof(struct tutti_exchanger), %zu",
                         exchanger->struct_size, sizeof *exchanger);
    enum tutti_status status =
        options_check("exchanger", "tutti_exchanger", exchanger, sizeof *exchanger);
    if (status != TUTTI_OK)
        return status;
    if (!exchanger->store || !exchanger->prefix)
        return error_set(TUTTI_ERR_INVALID, "the exchanger's %s is NULL",
                         exchanger->store ? "prefix" : "store");
    if (exchanger->size < 1 || exchanger->rank < 0 || exchanger->rank >= exchanger->size)
        return error_set(TUTTI_ERR_INVALID, "rank %d of %d ranks: expected 0 <= rank < size",
                         exchanger->rank, exchanger->size);
    if (bytes > 0 && (!value || !all))
        return error_set(TUTTI_ERR_INVALID, "%s is NULL", value ? "all" : "value");
    return TUTTI_OK;
}

static void key_write(const struct tutti_exchanger *exchanger, uint64_t sequence, int rank,
                      char *text, size_t room)
{
    snprintf(text, room, "%s/%" PRIu64 "/%d", exchanger->prefix, sequence, rank);
}

static void handed_on_write(const struct tutti_exchanger *exchanger, uint64_t sequence, char *text,
                            size_t room)
{
    snprintf(text, room, "%s/%" PRIu64 "/all", exchanger->prefix, sequence);
}

/* Rows, sizes and texts in one block: free(round->keys). */
static enum tutti_status round_init(struct round *round, const struct tutti_exchanger *exchanger)
{
    size_t size = (size_t)exchanger->size;
    size_t each = strlen(exchanger->prefix) + sizeof "/18446744073709551615/2147483647";
    round->keys = malloc(size * (sizeof *round->keys + sizeof *round->sizes + each) + each);
    if (!round->keys)
        return error_errno("keys of %d ranks", exchanger->size);
    round->sizes = (size_t *)(round->keys + size);
    round->each = each;
    char *text = (char *)(round->sizes + size);
    for (int rank = 0; rank < exchanger->size; rank++, text += each) {
        round->keys[rank] = text;
        key_write(exchanger, exchanger->sequence, rank, text, each);
        if (rank == exchanger->rank)
            round->own = text;
    }
    round->handed_on = exchanger->size >= MANY && exchanger->size <= MOST ? text : NULL;
    handed_on_write(exchanger, exchanger->sequence, text, each);
    return TUTTI_OK;
}

/* After a time-out: the error that names the ranks that did not write, or the store's. */
static enum tutti_status name_missing(const struct tutti_exchanger *exchanger,
                                      const struct round *round)
{
    char names[200] = "";
    int length = 0, count = 0;
    for (int rank = 0; rank < exchanger->size; rank++) {
        bool exists;
        enum tutti_status status = store_has(exchanger->store, round->keys[rank], &exists);
        if (status != TUTTI_OK)
            return status;
        if (!exists)
            text_append(names, sizeof names, &length, "%srank %d", count++ ? ", " : "", rank);
    }
    if (count == 0)
        return error_set(TUTTI_ERR_TIMEOUT,
                         "rank %d: all %d ranks came to \"%s\", round %" PRIu64
                         ", but only after the time-out",
                         exchanger->rank, exchanger->size, exchanger->prefix, exchanger->sequence);
    return error_set(TUTTI_ERR_TIMEOUT,
                     "rank %d: %s%s (%d of %d) did not come to \"%s\", round %" PRIu64
                     ": check whether they run, are stopped or use another store",
                     exchanger->rank, names, (size_t)length >= sizeof names ? "..." : "", count,
                     exchanger->size, exchanger->prefix, exchanger->sequence);
}

static enum tutti_status check_sizes(const struct tutti_exchanger *exchanger,
                                     const struct round *round, size_t bytes)
{
    for (int rank = 0; rank < exchanger->size; rank++)
        if (round->sizes[rank] != bytes)
            return error_set(TUTTI_ERR_MISMATCH,
                             "rank %d gave %zu bytes to \"%s\", round %" PRIu64 ", rank %d gave "
                             "%zu: all ranks make the same calls in the same order",
                             rank, round->sizes[rank], exchanger->prefix, exchanger->sequence,
                             exchanger->rank, bytes);
    return TUTTI_OK;
}

static enum tutti_status all_read(const struct tutti_exchanger *exchanger,
                                  const struct round *round, size_t bytes, void *all,
                                  int64_t timeout_ms)
{
    return store_multi_get(exchanger->store, round->keys, (size_t)exchanger->size, timeout_ms, all,
                           bytes, round->sizes);
}

/* Rank 0 hands on, or another rank gets, the sizes of all values and then these. Ranks that gave
 * another number of bytes than rank 0 find that in the sizes. */
static enum tutti_status hand_on(const struct tutti_exchanger *exchanger, const struct round *round,
                                 size_t bytes, void *all, int64_t timeout_ms)
{
    const size_t size = (size_t)exchanger->size, head = size * sizeof *round->sizes;
    const size_t whole = head + size * bytes;
    enum tutti_status status;
    size_t got = 0;
    char *value = malloc(whole);
    if (!value)
        return error_errno("the values of %d ranks", exchanger->size);
    if (exchanger->rank == 0) {
        memcpy(value, round->sizes, head);
        if (bytes)
            memcpy(value + head, all, whole - head);
        status = tutti_store_set(exchanger->store, round->handed_on, value, whole);
    } else {
        status =
            tutti_store_get(exchanger->store, round->handed_on, timeout_ms, value, whole, &got);
        if (status == TUTTI_OK && got < head)
            status = error_set(TUTTI_ERR_MISMATCH, "key %s has %zu bytes: expected %zu at least",
                               round->handed_on, got, head);
        if (status == TUTTI_OK)
            memcpy(round->sizes, value, head);
        if (status == TUTTI_OK && bytes)
            memcpy(all, value + head, (got < whole ? got : whole) - head);
    }
    free(value);
    return status;
}

static enum tutti_status values_get(const struct tutti_exchanger *exchanger,
                                    const struct round *round, size_t bytes, void *all,
                                    int64_t timeout_ms)
{
    const size_t longest = STORE_VALUE_BYTES / (size_t)exchanger->size - sizeof *round->sizes;
    const bool hands_on = round->handed_on && bytes <= longest, reads = exchanger->rank == 0;
    enum tutti_status status = TUTTI_OK;
    if (reads || !hands_on)
        status = all_read(exchanger, round, bytes, all, timeout_ms);
    if (status == TUTTI_OK && hands_on)
        status = hand_on(exchanger, round, bytes, all, timeout_ms);
    return status == TUTTI_ERR_TIMEOUT && hands_on && !reads
               ? all_read(exchanger, round, bytes, all, 1)
               : status;
}

/* Reads the values of all ranks. A long wait logs the missing ranks at WARN. */
static enum tutti_status gather(const struct tutti_exchanger *exchanger, const struct round *round,
                                size_t bytes, void *all, int64_t timeout_ms)
{
    const int64_t deadline = deadline_after(timeout_ms ? timeout_ms : exchanger->store->timeout_ms);
    struct reminder reminder = reminder_start(deadline_now());
    for (;;) {
        const int64_t left = deadline_timeout_ms(deadline), soon = reminder_left_ms(&reminder);
        const int64_t slice = left < 0 || left > soon ? soon : left;
        const int64_t slice_end = deadline_after(slice);
        enum tutti_status status = values_get(exchanger, round, bytes, all, slice);
        if (status != TUTTI_ERR_TIMEOUT)
            return status;
        /* A wait that ended before its time was interrupted. */
        const bool over = !deadline_passed(slice_end) || deadline_passed(deadline) ||
                          deadline_passed(exchanger->store->deadline);
        status = name_missing(exchanger, round);
        if (status != TUTTI_ERR_TIMEOUT || over)
            return status;
        const int waited_s = reminder_due(&reminder, deadline_now());
        if (waited_s)
            log_write(TUTTI_LOG_WARN, exchanger->rank, "a wait of %d s goes on: %s", waited_s,
                      tutti_last_error());
    }
}

static enum tutti_status all_gather(struct tutti_exchanger *exchanger, const void *value,
                                    size_t bytes, void *all, int64_t timeout_ms)
{
    struct round round = {0};
    enum tutti_status status = check(exchanger, value, bytes, all);
    if (status == TUTTI_OK)
        status = round_init(&round, exchanger);
    if (status != TUTTI_OK)
        return status;
    status = tutti_store_set(exchanger->store, round.keys[exchanger->rank], value, bytes);
    if (status == TUTTI_OK)
        status = gather(exchanger, &round, bytes, all, timeout_ms);
    if (status == TUTTI_OK && exchanger->sequence > 0) { /* no rank reads the round before */
        key_write(exchanger, exchanger->sequence - 1, exchanger->rank, round.own, round.each);
        (void)tutti_store_delete(exchanger->store, round.own, NULL);
        if (round.handed_on && exchanger->rank == 0) {
            handed_on_write(exchanger, exchanger->sequence - 1, round.handed_on, round.each);
            (void)tutti_store_delete(exchanger->store, round.handed_on, NULL);
        }
    }
    if (status == TUTTI_OK)
        status = check_sizes(exchanger, &round, bytes);
    exchanger->sequence++;
    free(round.keys);
    return status;
}

enum tutti_status tutti_exchanger_all_gather(struct tutti_exchanger *exchanger, const void *value,
                                             size_t bytes, void *all, int64_t timeout_ms)
{
    enum tutti_status status = all_gather(exchanger, value, bytes, all, timeout_ms);
    return status == TUTTI_OK ? status : error_context(status, "tutti_exchanger_all_gather");
}

void exchanger_end(const struct tutti_exchanger *exchanger, int64_t deadline)
{
    enum { END_MS = 1000 }; /* the longest time that a stopped store delays the caller */
    const int64_t soon = deadline_after(END_MS);
    struct tutti_store store =
        store_bounded(exchanger->store, soon < deadline ? soon : deadline, NULL);
    struct tutti_exchanger last = *exchanger;
    struct round round = {0};
    int64_t over = 0;
    if (last.sequence-- == 0 || round_init(&round, &last) != TUTTI_OK)
        return;
    char *key = malloc(round.each);
    if (key) {
        snprintf(key, round.each, "%s/%" PRIu64 "/over", last.prefix, last.sequence);
        (void)tutti_store_add(&store, key, 1, &over);
    }
    if (over == exchanger->size) {
        for (int rank = 0; rank < last.size && !deadline_passed(soon); rank++)
            (void)tutti_store_delete(&store, round.keys[rank], NULL);
        if (round.handed_on)
            (void)tutti_store_delete(&store, round.handed_on, NULL);
        (void)tutti_store_delete(&store, key, NULL);
    }
    free(key);
    free(round.keys);
}

enum tutti_status tutti_exchanger_barrier(struct tutti_exchanger *exchanger, int64_t timeout_ms)
{
    enum tutti_status status = all_gather(exchanger, NULL, 0, NULL, timeout_ms);
    return status == TUTTI_OK ? status : error_context(status, "tutti_exchanger_barrier");
}
