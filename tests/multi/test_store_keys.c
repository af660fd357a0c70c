/* SPDX-License-Identifier: MIT */
/*
 * Communicators and groups of symmetric memory leave the store as it was: what ranks wrote to meet
 * is deleted once all have met. So do process groups of some ranks. The process that served a
 * thousand of them has as much memory as before. A store that deletes nothing serves communicators
 * all the same.
 */
#include "pg_members.h"
#include "ranks.h"
#include "tutti/recovery.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SIZE = 3, FIRST = 50, HEAP_BYTES = 64 * 1024 };

struct lives {
    int count;
    bool deletes; /* else through a table whose delete fails */
};

/* ---- a store that cannot delete -------------------------------------------------------------- */

static enum tutti_status set(void *context, const char *key, const void *value, size_t size)
{
    return tutti_store_set(context, key, value, size);
}

static enum tutti_status get(void *context, const char *key, int64_t timeout_ms, void *value,
                             size_t capacity, size_t *size)
{
    return tutti_store_get(context, key, timeout_ms, value, capacity, size);
}

static enum tutti_status wait(void *context, const char *const *keys, size_t count,
                              int64_t timeout_ms)
{
    return tutti_store_wait(context, keys, count, timeout_ms);
}

static enum tutti_status add(void *context, const char *key, int64_t amount, int64_t *result)
{
    return tutti_store_add(context, key, amount, result);
}

static enum tutti_status check(void *context, const char *const *keys, size_t count, bool *exists)
{
    return tutti_store_check(context, keys, count, exists);
}

static enum tutti_status compare_set(void *context, const char *key, const void *expected,
                                     size_t expected_size, const void *desired, size_t desired_size,
                                     void *value, size_t capacity, size_t *size)
{
    return tutti_store_compare_set(context, key, expected, expected_size, desired, desired_size,
                                   value, capacity, size);
}

static enum tutti_status delete_key(void *context, const char *key, bool *deleted)
{
    (void)context, (void)key, (void)deleted;
    return TUTTI_ERR_DECLINED;
}

static enum tutti_status num_keys(void *context, int64_t *count)
{
    return tutti_store_num_keys(context, count);
}

static const struct tutti_store_ops ops = {
    .struct_size = sizeof(struct tutti_store_ops),
    .set = set,
    .get = get,
    .wait = wait,
    .add = add,
    .check = check,
    .compare_set = compare_set,
    .delete_key = delete_key,
    .num_keys = num_keys,
};

/* ---- lives ----------------------------------------------------------------------------------- */

static int live(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const struct lives *lives = ranks->context;
    tutti_store_t *keeper = NULL;
    if (!lives->deletes)
        RANKS_CHECK(tutti_store_from_ops(&ops, store, &keeper) == TUTTI_OK);
    for (int i = 0; i < lives->count; i++) {
        float one = 1, sum = 0;
        tutti_comm_t *comm;
        RANKS_CHECK(ranks_join(ranks, rank, keeper ? keeper : store, NULL, &comm) == TUTTI_OK);
        RANKS_CHECK(tutti_all_reduce(&one, &sum, 1, TUTTI_FLOAT32, TUTTI_SUM, comm,
                                     TUTTI_STREAM_DEFAULT) == TUTTI_OK);
        RANKS_CHECK(sum == (float)SIZE);
        tutti_comm_destroy(comm);
    }
    tutti_store_close(keeper);
    return 0;
}

/* No rank is left out, so nobody needs the decision later. */
static int live_shrink(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const struct lives *lives = ranks->context;
    for (int i = 0; i < lives->count; i++) {
        tutti_comm_t *comm, *shrunk;
        RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
        RANKS_CHECK(tutti_comm_shrink(comm, store, NULL, &shrunk, NULL) == TUTTI_OK);
        RANKS_CHECK(tutti_barrier(shrunk, NULL, 0, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
        tutti_comm_destroy(shrunk);
        tutti_comm_destroy(comm);
    }
    return 0;
}

/* Groups of lists that take turns. Now and then a rank comes too late, and all call again. */
static int live_groups(struct ranks *ranks, int rank, tutti_store_t *store)
{
    enum { LATE_MS = 10, LATE_EVERY = 5 };
    static const int lists[][SIZE] = {{0, 1, 2}, {1, 0}, {2, 1, 0}, {0, 1}, {0, 1, 2}};
    static const int counts[] = {3, 2, 3, 2, 3};
    const struct lives *lives = ranks->context;
    for (int i = 0; i < lives->count; i++) {
        tutti_comm_t *comm;
        tutti_pg_t *pg;
        RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
        if (i % LATE_EVERY == 0) {
            if (rank)
                RANKS_CHECK(pg_of(comm, store, lists[0], SIZE, LATE_MS, &pg) == TUTTI_ERR_TIMEOUT);
            RANKS_CHECK(tutti_barrier(comm, NULL, 0, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
        }
        for (size_t j = 0; j < sizeof counts / sizeof *counts; j++) {
            if (rank >= counts[j])
                continue;
            RANKS_CHECK(pg_of(comm, store, lists[j], counts[j], 0, &pg) == TUTTI_OK);
            tutti_pg_destroy(pg);
        }
        tutti_comm_destroy(comm);
    }
    return 0;
}

/* Two allocations a group: the second one meets under the same prefix. */
static int live_symmetric(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const struct lives *lives = ranks->context;
    for (int i = 0; i < lives->count; i++) {
        tutti_symm_group_t *group;
        RANKS_CHECK(tutti_symm_group("keys", rank, SIZE, store, &group) == TUTTI_OK);
        for (int j = 0; j < 2; j++) {
            void *buffer;
            RANKS_CHECK(tutti_symm_alloc(group, TUTTI_DEVICE_CPU, 4096, &buffer) == TUTTI_OK);
            RANKS_CHECK(tutti_symm_rendezvous(buffer, RANKS_TIMEOUT_MS, NULL) == TUTTI_OK);
        }
        tutti_symm_group_destroy(group);
    }
    return 0;
}

static int64_t keys_count(const struct ranks *ranks)
{
    tutti_store_t *store;
    int64_t count = -1;
    if (tutti_store_open(ranks->url, RANKS_TIMEOUT_MS, &store) == TUTTI_OK) {
        (void)tutti_store_num_keys(store, &count);
        tutti_store_close(store);
    }
    return count;
}

static int failed(const char *title, const char *what, int64_t before, int64_t after)
{
    return printf("failed: %s: %lld %s, then %lld\n", title, (long long)before, what,
                  (long long)after) > 0;
}

/* A path of NULL is a `memory:` store of threads, or a tcp server of processes. */
static int run(const char *title, ranks_fn *fn, int processes, const char *path, int lives)
{
    const struct lives first = {.count = FIRST, .deletes = true}, more = {lives, true};
    struct ranks *ranks = ranks_create(SIZE, processes, 0);
    if (path)
        snprintf(ranks->url, sizeof ranks->url, "file:%s", path);
    ranks->context = &first;
    int failures = ranks_run(ranks, fn);
    const int64_t keys = keys_count(ranks), heap = (int64_t)mallinfo2().uordblks;
    ranks->context = &more;
    failures += ranks_run(ranks, fn);
    const int64_t keys_after = keys_count(ranks), heap_after = (int64_t)mallinfo2().uordblks;
    if (keys < 0 || keys_after != keys)
        failures += failed(title, "keys", keys, keys_after);
    if (heap_after - heap > HEAP_BYTES)
        failures += failed(title, "bytes", heap, heap_after);
    printf("%s: %lld keys%s\n", title, (long long)keys_after, failures ? ", FAILED" : "");
    ranks_destroy(ranks);
    return failures;
}

static int run_without_delete(void)
{
    const struct lives lives = {.count = 10};
    struct ranks *ranks = ranks_create(SIZE, 0, 0);
    ranks->context = &lives;
    int failures = ranks_run(ranks, live);
    ranks_destroy(ranks);
    return failures;
}

int main(void)
{
    char path[] = "/tmp/tutti-keys-XXXXXX";
    int skip = ranks_skip(SIZE);
    if (skip)
        return skip;
    int fd = mkstemp(path);
    if (fd < 0)
        return 1;
    close(fd);
    int failures = run("memory", live, 0, NULL, ranks_operations(1000, 100));
    failures += run("tcp", live, SIZE, NULL, ranks_operations(200, 50));
    failures += run("file", live, SIZE, path, ranks_operations(50, 10));
    failures += run("shrink", live_shrink, SIZE, NULL, ranks_operations(50, 10));
    failures += run("process groups", live_groups, SIZE, NULL, ranks_operations(50, 10));
    failures += run("symmetric memory", live_symmetric, SIZE, NULL, ranks_operations(50, 10));
    failures += run_without_delete();
    unlink(path);
    return failures ? 1 : 0;
}
