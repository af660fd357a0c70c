/* SPDX-License-Identifier: MIT */
/*
 * The work of a group of calls grows with the number of its calls and no faster. One thread makes
 * the calls of both ranks in one group, so it never waits for another thread: its processor time is
 * the work. A call of a long group may take several times that of a short group, because its memory
 * has left the caches. Work that grows with the square of the number takes 64 times. The memory for
 * the states of operations does not grow at all, since the calls of a chain share one.
 */
#include "tutti/tutti.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { RANKS = 2, FEW = 125, MANY = 8000, MOST_TIMES = 32, LEAST_OF = 20 };

static tutti_comm_t *comms[2][RANKS]; /* the second ones have a progress function */
static tutti_store_t *store;
static int failures;

static int progress(void *context)
{
    (void)context;
    return 0;
}

static void require(enum tutti_status status)
{
    if (status == TUTTI_OK)
        return;
    fprintf(stderr, "test_groups_many: %s\n", tutti_last_error());
    exit(1);
}

static void *rank_main(void *argument)
{
    const int rank = (int)(intptr_t)argument;
    for (int i = 0; i < 2; i++) {
        const struct tutti_comm_options options = {.struct_size = sizeof options,
                                                   .name = i ? "with progress" : "without",
                                                   .progress = i ? progress : NULL};
        require(tutti_comm_create(store, rank, RANKS, &options, &comms[i][rank]));
    }
    return NULL;
}

/* Makes call i of a rank; both ranks make the same number of calls. */
typedef void call_fn(tutti_comm_t *comm, int rank, int i, int32_t *data);

static void all_reduce(tutti_comm_t *comm, int rank, int i, int32_t *data)
{
    (void)rank;
    (void)i;
    require(tutti_all_reduce(data, data, 1, TUTTI_INT32, TUTTI_SUM, comm, TUTTI_STREAM_DEFAULT));
}

static void pair(tutti_comm_t *comm, int rank, int i, int32_t *data)
{
    require((rank + i) % 2 ? tutti_send(data, 1, TUTTI_INT32, !rank, comm, TUTTI_STREAM_DEFAULT)
                           : tutti_recv(data, 1, TUTTI_INT32, !rank, comm, TUTTI_STREAM_DEFAULT));
}

static void to_itself(tutti_comm_t *comm, int rank, int i, int32_t *data)
{
    /* All sends come first: each finds its receive far behind it. */
    require(i < 0 ? tutti_send(data, 1, TUTTI_INT32, rank, comm, TUTTI_STREAM_DEFAULT)
                  : tutti_recv(data, 1, TUTTI_INT32, rank, comm, TUTTI_STREAM_DEFAULT));
}

static void broadcast(tutti_comm_t *comm, int rank, int i, int32_t *data)
{
    (void)rank;
    require(tutti_broadcast(data, data, 1, TUTTI_INT32, i % RANKS, comm, TUTTI_STREAM_DEFAULT));
}

static void reduce(tutti_comm_t *comm, int rank, int i, int32_t *data)
{
    (void)rank;
    require(
        tutti_reduce(data, data, 1, TUTTI_INT32, TUTTI_SUM, i % RANKS, comm, TUTTI_STREAM_DEFAULT));
}

static void mixed(tutti_comm_t *comm, int rank, int i, int32_t *data)
{
    static call_fn *const calls[] = {all_reduce, pair, broadcast, pair, reduce};
    calls[i % 5](comm, rank, i / 5, data);
}

static int64_t processor_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* Each rank makes calls `from` to `to` of the kind. */
static enum tutti_status group_make(call_fn *call, tutti_comm_t *const *comm, int from, int to)
{
    static int32_t data[RANKS][2 * MANY];
    require(tutti_group_start());
    for (int i = from; i < to; i++)
        for (int rank = 0; rank < RANKS; rank++)
            call(comm[rank], rank, i, &data[rank][i - from]);
    return tutti_group_end();
}

static int64_t group_run(call_fn *call, tutti_comm_t *const *comm, int from, int to)
{
    const int64_t begun = processor_ns();
    require(group_make(call, comm, from, to));
    return processor_ns() - begun;
}

/* The ns of a call: the least of several runs. */
static double cost_of(call_fn *call, tutti_comm_t *const *comm, int from, int to)
{
    int64_t least = INT64_MAX;
    for (int i = 0; i < (to > FEW ? 3 : LEAST_OF); i++) {
        const int64_t ns = group_run(call, comm, from, to);
        least = ns < least ? ns : least;
    }
    return (double)least / (to - from);
}

static void kind_test(const char *name, call_fn *call, bool own)
{
    for (int i = 0; i < 2; i++) {
        const double few = cost_of(call, comms[i], own ? -FEW : 0, FEW);
        for (int n = 4 * FEW; n <= MANY; n *= 4) { /* bad code is not run with the most calls */
            const double many = cost_of(call, comms[i], own ? -n : 0, n);
            printf("%-10s %s progress: %5d calls %8.0f ns each, %.1f times\n", name,
                   i ? "with" : "without", n, many, many / few);
            if (many <= MOST_TIMES * few)
                continue;
            failures++;
            break;
        }
    }
}

/* ---- the memory of a group ------------------------------------------------------------------- */

static _Atomic size_t aligned_bytes; /* asked for in all, by both ranks' threads */
static bool fails;

void *__real_aligned_alloc(size_t alignment, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    aligned_bytes += size;
    return fails ? NULL : __real_aligned_alloc(alignment, size);
}

/* Runs before all others: a thread keeps the memory of its groups. */
static void memory_test(void)
{
    fails = true;
    const enum tutti_status status = group_make(all_reduce, comms[0], 0, FEW);
    fails = false;
    if (status != TUTTI_ERR_NO_MEMORY || !strstr(tutti_last_error(), "no memory")) {
        fprintf(stderr, "without memory: expected NO_MEMORY, found %s: %s\n",
                tutti_status_name(status), tutti_last_error());
        failures++;
    }
    require(group_make(all_reduce, comms[0], 0, FEW)); /* the failure has left nothing behind */
    require(group_make(pair, comms[0], 0, FEW));
    aligned_bytes = 0;
    require(group_make(pair, comms[0], 0, MANY));
    const size_t bytes = aligned_bytes;
    printf("send, recv: %zu bytes of memory for the states of %d calls more\n", bytes,
           RANKS * (MANY - FEW));
    if (bytes)
        failures++;
}

int main(void)
{
    pthread_t threads[RANKS];
    require(tutti_store_open("memory:groups", 0, &store));
    for (int r = 0; r < RANKS; r++)
        if (pthread_create(&threads[r], NULL, rank_main, (void *)(intptr_t)r) != 0)
            return 1;
    for (int r = 0; r < RANKS; r++)
        pthread_join(threads[r], NULL);
    memory_test();
    kind_test("all_reduce", all_reduce, false);
    kind_test("send, recv", pair, false);
    kind_test("to itself", to_itself, true);
    kind_test("broadcast", broadcast, false);
    kind_test("reduce", reduce, false);
    kind_test("mixed", mixed, false);
    for (int i = 0; i < 2; i++)
        for (int r = 0; r < RANKS; r++)
            tutti_comm_destroy(comms[i][r]);
    tutti_store_close(store);
    return failures ? 1 : 0;
}
