/* SPDX-License-Identifier: MIT */
/*
 * Communicators of more ranks than a host may have. A process is a host, and its threads are the
 * ranks there; the fabric of the tests joins them.
 * - collectives: a sum has the bits of the scalar reference over all leaves; what the copies move
 *   comes from the rank that it names; the ranks of one host split off and come back.
 * - faults: a mismatch and a death name ranks above 64, and the ranks of the other hosts go on.
 * - process groups: of all ranks, in either order: sums, sparse sums, lists, messages.
 * - refusals: too many ranks on a host, or in all.
 *
 * usage: test_world [PART]
 */
#include "../pg.h"
#include "loopback_fabric.h"
#include "reference.h"
#include "tutti/collectives.h"
#include "tutti/communicators.h"
#include "tutti/recovery.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { COUNT = 24, ARENA_BYTES = 1 << 20, FIRST_DEAD = 96 };

static struct loopback *loopback;
static int each; /* ranks a host */

/* Before the ranks of a process begin. */
void hosts_enter(int rank)
{
    char host[16];
    snprintf(host, sizeof host, "host-%d", rank / each);
    setenv("TUTTI_HOST_ID", host, 1);
}

static struct tutti_comm_options options_of(int rank, const char *name)
{
    static _Thread_local tutti_fabric_t *fabric; /* lives as long as the process */
    if (!fabric && loopback_open(loopback, rank, &fabric) != TUTTI_OK)
        abort();
    return (struct tutti_comm_options){.struct_size = sizeof(struct tutti_comm_options),
                                       .name = name,
                                       .fabric = fabric,
                                       .arena_bytes = ARENA_BYTES,
                                       .timeout_ms = RANKS_TIMEOUT_MS};
}

static bool says(const char *what)
{
    return strstr(tutti_last_error(), what) != NULL;
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* Of very different sizes, so that another order of additions gives other bits. */
static float input(int rank, size_t i)
{
    const uint32_t random = ((uint32_t)rank * 2654435761u + (uint32_t)i * 40503u) * 2246822519u;
    const float sizes[] = {1e-3f, 1.0f, 1e4f, 3e7f};
    return ((float)(random >> 8) - 8388608.0f) * sizes[random & 3];
}

/* The sum of the inputs of ranks `first` to first + n - 1. */
static int sum_check(struct ranks *ranks, int rank, tutti_comm_t *comm, int first, int n,
                     size_t count)
{
    float inputs[RANKS_MOST][COUNT], *memory = malloc(count * sizeof *memory), expected[COUNT];
    const void *in[RANKS_MOST];
    RANKS_CHECK(memory);
    for (size_t i = 0; i < count; i++)
        memory[i] = input(rank, i % COUNT);
    RANKS_CHECK(tutti_all_reduce(memory, memory, count, TUTTI_FLOAT32, TUTTI_SUM, comm,
                                 TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    for (int r = 0; r < n; r++) {
        for (size_t i = 0; i < COUNT; i++)
            inputs[r][i] = input(first + r, i);
        in[r] = inputs[r];
    }
    reference_reduce(expected, in, n, COUNT, TUTTI_FLOAT32, TUTTI_SUM, 0);
    for (size_t i = 0; i < count; i++)
        RANKS_CHECK(memcmp(&memory[i], &expected[i % COUNT], sizeof *memory) == 0);
    free(memory);
    return 0;
}

/* ---- collectives ----------------------------------------------------------------------------- */

static int copies(struct ranks *ranks, int rank, tutti_comm_t *comm)
{
    const int size = ranks->size, root = size - 5;
    int32_t one = rank == root ? 12345 : 0, sent[RANKS_MOST], all[RANKS_MOST];
    RANKS_CHECK(tutti_broadcast(&one, &one, 1, TUTTI_INT32, root, comm, TUTTI_STREAM_DEFAULT) ==
                TUTTI_OK);
    RANKS_CHECK(one == 12345);
    RANKS_CHECK(tutti_all_gather(&rank, all, 1, TUTTI_INT32, comm, TUTTI_STREAM_DEFAULT) ==
                TUTTI_OK);
    for (int r = 0; r < size; r++)
        RANKS_CHECK(all[r] == r);
    for (int r = 0; r < size; r++)
        sent[r] = 1000 * rank + r;
    RANKS_CHECK(tutti_all_to_all(sent, all, 1, TUTTI_INT32, comm, TUTTI_STREAM_DEFAULT) ==
                TUTTI_OK);
    for (int r = 0; r < size; r++)
        RANKS_CHECK(all[r] == 1000 * r + rank);
    RANKS_CHECK(tutti_reduce_scatter(sent, &one, 1, TUTTI_INT32, TUTTI_MAX, comm,
                                     TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    RANKS_CHECK(one == 1000 * (size - 1) + rank);
    const int to = (rank + 70) % size, from = (rank + size - 70) % size;
    RANKS_CHECK(tutti_group_start() == TUTTI_OK);
    RANKS_CHECK(tutti_send(&rank, 1, TUTTI_INT32, to, comm, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    RANKS_CHECK(tutti_recv(&one, 1, TUTTI_INT32, from, comm, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    RANKS_CHECK(tutti_group_end() == TUTTI_OK);
    RANKS_CHECK(one == from);
    const int few[] = {1, 70, size - 1};
    if (rank == few[0] || rank == few[1] || rank == few[2])
        RANKS_CHECK(tutti_barrier(comm, few, 3, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    return 0;
}

/* Each host for itself, then all again in the opposite order. */
static int parts(struct ranks *ranks, int rank, tutti_comm_t *comm)
{
    tutti_comm_t *host, *all;
    int number = -1;
    RANKS_CHECK(tutti_comm_split(comm, rank / each, 0, NULL, &host) == TUTTI_OK);
    RANKS_CHECK(tutti_comm_world_size(host) == each);
    const int failed = sum_check(ranks, rank, host, rank / each * each, each, COUNT);
    if (failed)
        return failed;
    tutti_comm_destroy(host);
    RANKS_CHECK(tutti_comm_split(comm, 0, -rank, NULL, &all) == TUTTI_OK);
    RANKS_CHECK(tutti_comm_rank(all) == ranks->size - 1 - rank);
    if (rank == ranks->size - 2)
        number = rank;
    RANKS_CHECK(tutti_broadcast(&number, &number, 1, TUTTI_INT32, 1, all, TUTTI_STREAM_DEFAULT) ==
                TUTTI_OK);
    RANKS_CHECK(number == ranks->size - 2);
    tutti_comm_destroy(all);
    return 0;
}

static int collectives(struct ranks *ranks, int rank, tutti_store_t *store)
{
    static const size_t counts[] = {COUNT, 400 * COUNT};
    const struct tutti_comm_options options = options_of(rank, "collectives");
    tutti_comm_t *comm;
    RANKS_CHECK(tutti_comm_create(store, rank, ranks->size, &options, &comm) == TUTTI_OK);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        const int failed = sum_check(ranks, rank, comm, 0, ranks->size, counts[i]);
        if (failed)
            return failed;
    }
    int failed = copies(ranks, rank, comm);
    if (!failed)
        failed = parts(ranks, rank, comm);
    if (failed)
        return failed;
    tutti_comm_destroy(comm);
    return 0;
}

/* As many ranks as hosts may have. */
static int full(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const struct tutti_comm_options options = options_of(rank, "full");
    tutti_comm_t *comm;
    RANKS_CHECK(tutti_comm_create(store, rank, ranks->size, &options, &comm) == TUTTI_OK);
    const int failed = sum_check(ranks, rank, comm, 0, ranks->size, COUNT);
    tutti_comm_destroy(comm);
    return failed;
}

/* ---- process groups -------------------------------------------------------------------------- */

/* Each rank sends every rank a list of one or two numbers. */
static int lists(struct ranks *ranks, int rank, tutti_pg_t *pg)
{
    static const int64_t lengths[] = {1, 2};
    const int size = ranks->size;
    struct tutti_tensor send[RANKS_MOST], recv[RANKS_MOST];
    float sent[RANKS_MOST][2], received[RANKS_MOST][2];
    tutti_work_t *work;
    for (int r = 0; r < size; r++) {
        sent[r][0] = sent[r][1] = (float)(rank * 1000 + r);
        send[r] = pg_vector(sent[r], &lengths[(rank + r) % 3 == 0]);
        recv[r] = pg_vector(received[r], &lengths[(rank + r) % 3 == 0]);
    }
    RANKS_CHECK(tutti_pg_all_to_all(pg, send, size, recv, size, NULL, &work) == TUTTI_OK &&
                pg_end(work) == TUTTI_OK);
    for (int r = 0; r < size; r++)
        RANKS_CHECK(received[r][(rank + r) % 3 == 0] == (float)(r * 1000 + rank));
    send[size - 1].struct_size = 0;
    RANKS_CHECK(tutti_pg_all_to_all(pg, send, size, recv, size, NULL, &work) == TUTTI_ERR_INVALID);
    return 0;
}

/* To the rank of the same place on the other host. */
static int messages(struct ranks *ranks, int rank, tutti_pg_t *pg)
{
    static const int64_t size = 1000; /* more than comes with an announcement */
    const int other = (rank + each) % ranks->size;
    float *sent = calloc(2 * (size_t)size, sizeof *sent), *received = sent + size;
    const struct tutti_tensor send = pg_vector(sent, &size), recv = pg_vector(received, &size);
    tutti_work_t *works[2];
    RANKS_CHECK(sent);
    sent[size - 1] = (float)rank;
    RANKS_CHECK(tutti_pg_send(pg, &send, other, NULL, &works[0]) == TUTTI_OK);
    RANKS_CHECK(tutti_pg_recv(pg, &recv, other, NULL, &works[1]) == TUTTI_OK);
    RANKS_CHECK(pg_end(works[0]) == TUTTI_OK && pg_end(works[1]) == TUTTI_OK);
    RANKS_CHECK(received[size - 1] == (float)other);
    free(sent);
    return 0;
}

/* The group of all ranks, and one of all in the opposite order. */
static int group(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const struct tutti_comm_options options = options_of(rank, "group");
    const int size = ranks->size;
    int backwards[RANKS_MOST];
    struct tutti_pg_options listed = {
        .struct_size = sizeof listed, .store = store, .ranks = backwards, .rank_count = size};
    tutti_comm_t *comm;
    tutti_pg_t *pg;
    for (int r = 0; r < size; r++)
        backwards[r] = size - 1 - r;
    RANKS_CHECK(tutti_comm_create(store, rank, size, &options, &comm) == TUTTI_OK);
    RANKS_CHECK(tutti_pg_create(comm, &listed, &pg) == TUTTI_OK);
    RANKS_CHECK(pg_goes_on(pg, 0, size));
    tutti_pg_destroy(pg);
    RANKS_CHECK(tutti_pg_create(comm, NULL, &pg) == TUTTI_OK);
    RANKS_CHECK(pg_goes_on(pg, 0, size) && pg_goes_on_sparse(pg, 1, rank, size));
    int failed = lists(ranks, rank, pg);
    if (!failed)
        failed = messages(ranks, rank, pg);
    RANKS_CHECK(failed || ranks_meet(ranks, 3)); /* a rank that leaves ends what others wait for */
    tutti_pg_destroy(pg);
    tutti_comm_destroy(comm);
    return failed;
}

/* ---- faults ---------------------------------------------------------------------------------- */

/* One rank has another configuration. */
static int differs(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct tutti_comm_options options = options_of(rank, "differs");
    tutti_comm_t *comm;
    if (rank == ranks->size - 1)
        options.buffer_size = 1 << 20;
    RANKS_CHECK(tutti_comm_create(store, rank, ranks->size, &options, &comm) == TUTTI_ERR_MISMATCH);
    char name[32];
    snprintf(name, sizeof name, "rank %d", ranks->size - 1);
    RANKS_CHECK(says(name) && says("buffer size"));
    return 0;
}

static int mismatch(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const struct tutti_comm_options options = options_of(rank, "mismatch");
    struct tutti_fault fault = {.struct_size = sizeof fault};
    float memory[COUNT] = {0};
    tutti_comm_t *comm;
    RANKS_CHECK(tutti_comm_create(store, rank, ranks->size, &options, &comm) == TUTTI_OK);
    RANKS_CHECK(tutti_all_reduce(memory, memory, COUNT - (rank == 100), TUTTI_FLOAT32, TUTTI_SUM,
                                 comm, TUTTI_STREAM_DEFAULT) == TUTTI_ERR_MISMATCH);
    RANKS_CHECK(tutti_comm_status(comm, &fault) == TUTTI_ERR_MISMATCH);
    RANKS_CHECK(fault.rank / each == 100 / each && fault.peer / each == 100 / each);
    RANKS_CHECK(fault.rank == 100 || fault.peer == 100);
    tutti_comm_destroy(comm);
    return 0;
}

/* The last host ends. */
static int dead(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const struct tutti_comm_options options = options_of(rank, "dead");
    struct tutti_fault fault = {.struct_size = sizeof fault};
    struct tutti_shrink_result result = {.struct_size = sizeof result};
    float memory[COUNT] = {0};
    tutti_comm_t *comm, *shrunk;
    RANKS_CHECK(tutti_comm_create(store, rank, ranks->size, &options, &comm) == TUTTI_OK);
    int failed = sum_check(ranks, rank, comm, 0, ranks->size, COUNT);
    if (failed)
        return failed;
    RANKS_CHECK(ranks_meet(ranks, 1)); /* all have ended the sum */
    if (rank == FIRST_DEAD)
        _exit(0);
    if (rank > FIRST_DEAD)
        for (;;)
            pause();
    RANKS_CHECK(tutti_all_reduce(memory, memory, COUNT, TUTTI_FLOAT32, TUTTI_SUM, comm,
                                 TUTTI_STREAM_DEFAULT) == TUTTI_ERR_PEER_DEAD);
    RANKS_CHECK(tutti_comm_status(comm, &fault) == TUTTI_ERR_PEER_DEAD && fault.peer >= FIRST_DEAD);
    RANKS_CHECK(tutti_comm_shrink(comm, store, NULL, &shrunk, &result) == TUTTI_OK);
    RANKS_CHECK(result.world_size == FIRST_DEAD && result.rank == rank);
    failed = sum_check(ranks, rank, shrunk, 0, FIRST_DEAD, COUNT);
    tutti_comm_destroy(shrunk);
    tutti_comm_destroy(comm);
    return failed;
}

/* ---- refusals -------------------------------------------------------------------------------- */

static int crowded(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct tutti_comm_options options = options_of(rank, "crowded");
    tutti_comm_t *comm;
    RANKS_CHECK(tutti_comm_create(store, rank, ranks->size, &options, &comm) == TUTTI_ERR_DECLINED);
    RANKS_CHECK(says("more than 64 of the 66 ranks"));
    RANKS_CHECK(tutti_comm_create(store, rank, 257, &options, &comm) == TUTTI_ERR_DECLINED);
    RANKS_CHECK(says("up to 256"));
    options.fabric = NULL;
    RANKS_CHECK(tutti_comm_create(store, rank, ranks->size, &options, &comm) == TUTTI_ERR_DECLINED);
    RANKS_CHECK(says("1 to 64 ranks on one host") && says("options->fabric"));
    return 0;
}

int main(int argc, char **argv)
{
    static const struct {
        ranks_fn *fn;
        int size, hosts;
        const char *name;
    } rows[] = {
        {collectives, 96, 4, "collectives"},
        {full, 128, 2, "full"},
        {group, 72, 2, "group"},
        {differs, 70, 2, "differs"},
        {mismatch, 128, 4, "mismatch"},
        {dead, 128, 4, "dead"},
        {crowded, 66, 1, "crowded"},
    };
    const int skip = ranks_skip_cuda("fabrics of CPU ranks");
    int failures = 0;
    if (skip)
        return skip;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (argc > 1 && strcmp(argv[1], rows[i].name) != 0)
            continue;
        loopback = loopback_create();
        loopback_set(loopback->silent_deaths, 1);
        each = rows[i].size / rows[i].hosts;
        struct ranks *ranks = ranks_create(rows[i].size, rows[i].hosts, 0);
        const int failed = ranks_run(ranks, rows[i].fn);
        ranks_destroy(ranks);
        if (failed)
            fprintf(stderr, "%s failed\n", rows[i].name);
        failures += failed;
    }
    return failures ? 1 : 0;
}
