/* SPDX-License-Identifier: MIT */
/*
 * A communicator's life: any number of ranks, meeting later, many at once, one after another,
 * ending in any order.
 *
 * usage: test_comm threads|processes|mixed
 */
#include "ranks.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MANY = 12, GENERATIONS = 6 };

static tutti_comm_t *const none;

/* One all-reduce and one barrier that must work. */
static int check_works(struct ranks *ranks, int rank, tutti_comm_t *comm)
{
    int64_t in[300], out[300];
    int size = tutti_comm_world_size(comm);
    for (int i = 0; i < 300; i++)
        in[i] = tutti_comm_rank(comm) + i;
    RANKS_CHECK(tutti_all_reduce(in, out, 300, TUTTI_INT64, TUTTI_SUM, comm,
                                 TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    for (int i = 0; i < 300; i++)
        RANKS_CHECK(out[i] == size * (size - 1) / 2 + (int64_t)i * size);
    RANKS_CHECK(tutti_barrier(comm, NULL, 0, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    RANKS_CHECK(tutti_comm_status(comm, NULL) == TUTTI_OK);
    return 0;
}

static int live(struct ranks *ranks, int rank, tutti_store_t *store)
{
    tutti_comm_t *comm;
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    RANKS_CHECK(tutti_comm_rank(comm) == rank && tutti_comm_world_size(comm) == ranks->size);
    RANKS_CHECK(tutti_comm_topology(comm) == TUTTI_TOPOLOGY_FULLY_CONNECTED);
    RANKS_CHECK(tutti_comm_buffer_size(comm) == TUTTI_DEFAULT_BUFFER_SIZE);
    int failed = check_works(ranks, rank, comm);
    tutti_comm_destroy(comm);
    return failed;
}

/* Created here, met later, as often as one likes. */
static int defer(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct tutti_comm_options options = {.struct_size = sizeof options, .defer = true};
    tutti_comm_t *comm, *unmet;
    char text[1024];
    float one = 1;
    RANKS_CHECK(ranks_join(ranks, rank, store, &options, &comm) == TUTTI_OK);
    RANKS_CHECK(tutti_comm_topology(comm) == TUTTI_TOPOLOGY_UNKNOWN);
    RANKS_CHECK(tutti_comm_describe(comm, text, sizeof text) > 0 && strstr(text, "state: new"));
    RANKS_CHECK(tutti_all_reduce(&one, &one, 1, TUTTI_FLOAT32, TUTTI_SUM, comm,
                                 TUTTI_STREAM_DEFAULT) == TUTTI_ERR_INVALID);
    RANKS_CHECK(strstr(tutti_last_error(), "tutti_comm_rendezvous()"));
    for (int i = 0; i < 3; i++)
        RANKS_CHECK(tutti_comm_rendezvous(comm) == TUTTI_OK);
    RANKS_CHECK(tutti_comm_describe(comm, text, sizeof text) > 0 && strstr(text, "state: ready"));
    int failed = check_works(ranks, rank, comm);
    tutti_comm_destroy(comm);

    options.name = "never";
    RANKS_CHECK(ranks_join(ranks, rank, store, &options, &unmet) == TUTTI_OK);
    tutti_comm_destroy(unmet);
    return failed;
}

/* Many at once; each rank ends them in another order, while others still work. */
static int many(struct ranks *ranks, int rank, tutti_store_t *store)
{
    tutti_comm_t *comms[MANY];
    int failed = 0;
    for (int i = 0; i < MANY; i++) {
        char name[16];
        snprintf(name, sizeof name, "comm-%d", i);
        struct tutti_comm_options options = {.struct_size = sizeof options, .name = name};
        RANKS_CHECK(ranks_join(ranks, rank, store, &options, &comms[i]) == TUTTI_OK);
    }
    for (int round = 0; round < 3 && !failed; round++)
        for (int i = 0; i < MANY && !failed; i++)
            failed = check_works(ranks, rank, comms[(i * 5 + round) % MANY]);
    for (int i = 0; i < MANY / 2 && !failed; i++) {
        int last = MANY - 1 - i;
        tutti_comm_destroy(comms[rank % 2 ? i : MANY / 2 - 1 - i]);
        failed = check_works(ranks, rank, comms[last]);
    }
    for (int i = MANY / 2; i < MANY; i++)
        tutti_comm_destroy(comms[i]);
    return failed;
}

static int64_t generation_of(const tutti_comm_t *comm)
{
    char text[4096];
    tutti_comm_describe(comm, text, sizeof text);
    const char *line = strstr(text, "generation: ");
    return line ? atoll(line + strlen("generation: ")) : -1;
}

/* One name again and again, without a pause, the last one still open. */
static int again(struct ranks *ranks, int rank, tutti_store_t *store)
{
    tutti_comm_t *comm, *last = none;
    int64_t generation = 0;
    int failed = 0;
    for (int i = 0; i < GENERATIONS && !failed; i++) {
        RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
        RANKS_CHECK(generation_of(comm) > generation);
        generation = generation_of(comm);
        failed = check_works(ranks, rank, comm);
        tutti_comm_destroy(last);
        last = comm;
    }
    tutti_comm_destroy(last);
    return failed;
}

struct side {
    struct ranks *ranks;
    tutti_store_t *store;
    int rank;
    const char *name;
    int failed;
};

static void *side_main(void *argument)
{
    struct side *side = argument;
    struct tutti_comm_options options = {.struct_size = sizeof options, .name = side->name};
    tutti_comm_t *comm;
    for (int i = 0; i < 3 && !side->failed; i++) {
        if (ranks_join(side->ranks, side->rank, side->store, &options, &comm) != TUTTI_OK) {
            side->failed = ranks_fail(side->ranks, side->rank, __FILE__, __LINE__, side->name);
            break;
        }
        side->failed = check_works(side->ranks, side->rank, comm);
        tutti_comm_destroy(comm);
    }
    return NULL;
}

/* Two threads of every rank, each with its own communicator, on one store handle. */
static int beside(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct side sides[] = {{ranks, store, rank, "left", 0}, {ranks, store, rank, "right", 0}};
    pthread_t thread;
    RANKS_CHECK(pthread_create(&thread, NULL, side_main, &sides[0]) == 0);
    side_main(&sides[1]);
    pthread_join(thread, NULL);
    return sides[0].failed ? sides[0].failed : sides[1].failed;
}

static int world_run(const char *kind, int size, ranks_fn *fn)
{
    int processes = strcmp(kind, "threads") == 0 ? 0 : size;
    if (!ranks_fit(size))
        return 0;
    if (strcmp(kind, "mixed") == 0)
        processes = (size + 1) / 2;
    struct ranks *ranks = ranks_create(size, processes, 0);
    int failures = ranks_run(ranks, fn);
    ranks_destroy(ranks);
    return failures;
}

int main(int argc, char **argv)
{
    static const int sizes[] = {1, 2, 3, 5, 8, 13, 32, 64};
    static ranks_fn *const parts[] = {defer, many, again, beside};
    int failures = 0;
    if (argc != 2)
        return 2;
    int skip = ranks_skip(2);
    if (skip)
        return skip;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes - (ranks_short() ? 2 : 0); i++)
        failures += world_run(argv[1], sizes[i], live);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        for (int size = 1; size <= 4; size++)
            failures += world_run(argv[1], size, parts[i]);
    return failures ? 1 : 0;
}
