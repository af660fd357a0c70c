/* SPDX-License-Identifier: MIT */
#include "pattern.h"

#include "base/deadline.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_RANKS = 16, MOST_DEPTH = 64 };

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition))                                                                          \
            return complain(__LINE__, #condition);                                                 \
    } while (0)

static bool complain(int line, const char *what)
{
    fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, line, what, tutti_last_error());
    return false;
}

bool pattern_connect(tutti_store_t *store, tutti_fabric_t *fabric, const char *name, int rank,
                     int size, struct fabric_link **link)
{
    unsigned char all[MOST_RANKS * FABRIC_ADDRESS_BYTES] = {0};
    const size_t each = fabric->ops->address_bytes;
    char key[64];
    CHECK(each <= FABRIC_ADDRESS_BYTES && size <= MOST_RANKS);
    CHECK(fabric->ops->address(fabric, rank, all + rank * each) == TUTTI_OK);
    snprintf(key, sizeof key, "%s/%d", name, rank);
    CHECK(tutti_store_set(store, key, all + rank * each, each) == TUTTI_OK);
    for (int r = 0; r < size; r++) {
        size_t length;
        snprintf(key, sizeof key, "%s/%d", name, r);
        CHECK(tutti_store_get(store, key, PATTERN_TIMEOUT_MS, all + r * each, each, &length) ==
                  TUTTI_OK &&
              length == each);
    }
    CHECK(fabric_connect(fabric, rank, size, all, deadline_after(PATTERN_TIMEOUT_MS), NULL, link) ==
          TUTTI_OK);
    return true;
}

enum tutti_status pattern_wait(struct fabric_link *link, struct fabric_batch *batch)
{
    const int64_t deadline = deadline_after(PATTERN_TIMEOUT_MS);
    enum tutti_status status = TUTTI_OK;
    for (bool done = false; !done && status == TUTTI_OK; sched_yield()) {
        if (deadline_passed(deadline))
            return TUTTI_ERR_TIMEOUT;
        status = fabric_test(link, batch, &done);
    }
    return status;
}

static unsigned char expected(size_t at, int from, int to, int tag)
{
    return (unsigned char)(at * 7 + at / 251 + (size_t)from * 31 + (size_t)to * 17 + (size_t)tag);
}

static void write_pattern(unsigned char *bytes, size_t count, int from, int to, int tag)
{
    for (size_t i = 0; i < count; i++)
        bytes[i] = expected(i, from, to, tag);
}

static bool is_pattern(const unsigned char *bytes, size_t count, int from, int to, int tag)
{
    for (size_t i = 0; i < count; i++)
        if (bytes[i] != expected(i, from, to, tag))
            return false;
    return true;
}

/* Fills the lists of this rank's sends and receives. Buffers lie at a multiple of bytes + 1: odd
 * addresses too. */
static int list(const struct fabric_link *link, unsigned char *memory, size_t bytes, int depth,
                bool backwards, struct fabric_transfer *sends, struct fabric_transfer *receives)
{
    int count = 0;
    for (int i = 0; i < depth; i++)
        for (int step = 1; step < link->size; step++, count++) {
            const int to = (link->rank + step) % link->size;
            const int from = (link->rank + link->size - step) % link->size;
            const int tag = backwards ? depth - 1 - i : i;
            unsigned char *send = memory + (size_t)(2 * count) * (bytes + 1);
            sends[count] = (struct fabric_transfer){to, i, true, send, bytes};
            receives[count] = (struct fabric_transfer){from, tag, false, send + bytes + 1, bytes};
            write_pattern(send, bytes, link->rank, to, i);
        }
    return count;
}

bool pattern_exchange(struct fabric_link *link, size_t bytes, int depth, bool sends_first,
                      bool backwards)
{
    static const enum tutti_status ok = TUTTI_OK;
    struct fabric_transfer lists[2][MOST_DEPTH * MOST_RANKS];
    struct fabric_batch *batches[2];
    CHECK(depth <= MOST_DEPTH && link->size <= MOST_RANKS);
    unsigned char *memory =
        calloc((size_t)(2 * depth * (link->size - 1)), bytes + 1); /* zero: no pattern is */
    CHECK(memory);
    const int count =
        list(link, memory, bytes, depth, backwards, lists[!sends_first], lists[sends_first]);
    for (int i = 0; i < 2; i++)
        CHECK(fabric_start(link, lists[i], count, &batches[i]) == ok);
    /* The batch that began last is awaited first: each may end before the other. */
    CHECK(pattern_wait(link, batches[1]) == ok && pattern_wait(link, batches[0]) == ok);
    for (int i = 0; i < count; i++) {
        const struct fabric_transfer *got = &lists[sends_first][i];
        CHECK(is_pattern(got->buffer, bytes, got->peer, link->rank, got->tag));
    }
    free(memory);
    return true;
}

bool pattern_all(struct fabric_link *link, size_t most)
{
    static const size_t sizes[] = {0, 1, 8, 4095, 65536, 1 << 20, 8 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes && sizes[i] <= most; i++)
        for (int way = 0; way < 4; way++)
            if (sizes[i] <= 65536 || way < 2)
                CHECK(pattern_exchange(link, sizes[i],
                                       sizes[i] <= 8       ? 40
                                       : sizes[i] <= 65536 ? 3
                                                           : 1,
                                       way & 1, way & 2));
    bool done = false;
    CHECK(fabric_test(link, NULL, &done) == TUTTI_OK && done);
    return true;
}

static void *abort_soon(void *link)
{
    usleep(50000);
    fabric_link_abort(link);
    return NULL;
}

bool pattern_abort(struct fabric_link *link)
{
    static unsigned char never[MOST_RANKS][8]; /* stays: the engine may still write there */
    struct fabric_transfer transfer = {(link->rank + 1) % link->size, 5, false, never[link->rank],
                                       8};
    struct fabric_batch *batch;
    pthread_t thread;
    CHECK(fabric_start(link, &transfer, 1, &batch) == TUTTI_OK);
    const int64_t before = deadline_now();
    CHECK(pthread_create(&thread, NULL, abort_soon, link) == 0);
    CHECK(pattern_wait(link, batch) == TUTTI_ERR_ABORTED);
    CHECK(deadline_now() - before < 1000000000);
    pthread_join(thread, NULL);
    CHECK(fabric_start(link, &transfer, 1, &batch) == TUTTI_ERR_ABORTED);
    return true;
}

bool pattern_mismatch(struct fabric_link *link, size_t bytes)
{
    static unsigned char buffers[2][16];
    struct fabric_transfer transfer = {!link->rank, 1, link->rank, buffers[link->rank > 0],
                                       link->rank ? bytes : 8};
    struct fabric_batch *batch;
    if (link->rank > 1)
        return true;
    CHECK(fabric_start(link, &transfer, 1, &batch) == TUTTI_OK);
    CHECK(pattern_wait(link, batch) == (link->rank ? TUTTI_OK : TUTTI_ERR_MISMATCH));
    return true;
}
