/* SPDX-License-Identifier: MIT */
/* Ranks that were set up differently do not become a communicator: every one of them learns which
 * setting differs and how. */
#include "ranks.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The last rank has `odd`, the others `even`. */
struct difference {
    const char *what;      /* part of every rank's reason */
    const char *values[2]; /* likewise */
    struct tutti_comm_options even, odd;
    int odd_world_size; /* 0: the others' */
};

#define SIZE .struct_size = sizeof(struct tutti_comm_options)

static const struct difference differences[] = {
    {"buffer size",
     {"1048576", "2097152"},
     {SIZE, .buffer_size = 1 << 20},
     {SIZE, .buffer_size = 2 << 20},
     0},
    {"buffer size", {"10485760", "4096"}, {SIZE}, {SIZE, .buffer_size = 4096}, 0},
    {"buffer size",
     {"1048576", "18446744073709551615"},
     {SIZE, .buffer_size = 1 << 20},
     {SIZE, .buffer_size = SIZE_MAX},
     0},
    {"arena's size",
     {"has 1048576 bytes", "has 65536 bytes"},
     {SIZE, .arena_bytes = 1 << 20},
     {SIZE, .arena_bytes = 65536},
     0},
    {"strict mode",
     {"has off", "has on"},
     {SIZE, .strict = TUTTI_STRICT_OFF},
     {SIZE, .strict = TUTTI_STRICT_ON},
     0},
    {"forced algorithm",
     {"has one_shot", "has two_shot"},
     {SIZE, .algo = TUTTI_ALGO_ONE_SHOT},
     {SIZE, .algo = TUTTI_ALGO_TWO_SHOT},
     0},
    {"forced algorithm",
     {"has none", "has two_shot"},
     {SIZE},
     {SIZE, .algo = TUTTI_ALGO_TWO_SHOT},
     0},
    {"direct copies",
     {"has on", "has off"},
     {SIZE, .direct = TUTTI_DIRECT_ON},
     {SIZE, .direct = TUTTI_DIRECT_OFF},
     0},
    {"leaf order",
     {"has 1", "has 2"},
     {SIZE, .leaf_order = (int[]){0, 1, 2}},
     {SIZE, .leaf_order = (int[]){0, 2, 1}},
     0},
    {"world size", {"3", "4"}, {SIZE}, {SIZE}, 4},
};

static int join(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const struct difference *difference = ranks->context;
    bool is_odd = rank == ranks->size - 1;
    struct tutti_comm_options options = is_odd ? difference->odd : difference->even;
    int size = is_odd && difference->odd_world_size ? difference->odd_world_size : ranks->size;
    tutti_comm_t *comm, *after;
    options.defer = true;
    options.timeout_ms = RANKS_TIMEOUT_MS;
    RANKS_CHECK(tutti_comm_create(store, rank, size, &options, &comm) == TUTTI_OK);
    enum tutti_status status = tutti_comm_rendezvous(comm);
    RANKS_CHECK(status == TUTTI_ERR_MISMATCH);
    RANKS_CHECK(strstr(tutti_last_error(), difference->what));
    RANKS_CHECK(strstr(tutti_last_error(), difference->values[0]));
    RANKS_CHECK(strstr(tutti_last_error(), difference->values[1]));
    /* It holds its reason and no more: it is not tried again. */
    char first[512];
    snprintf(first, sizeof first, "%s", tutti_last_error());
    RANKS_CHECK(tutti_comm_rendezvous(comm) == status);
    RANKS_CHECK(strcmp(tutti_last_error(), first) == 0);
    RANKS_CHECK(tutti_comm_status(comm, NULL) == status);
    RANKS_CHECK(tutti_barrier(comm, NULL, 0, TUTTI_STREAM_DEFAULT) == TUTTI_ERR_INVALID);
    RANKS_CHECK(tutti_comm_topology(comm) == TUTTI_TOPOLOGY_UNKNOWN);
    tutti_comm_destroy(comm);

    /* The others find what it has noted of the meeting that failed, after they have begun another.
     */
    if (rank == 0)
        nanosleep(&(struct timespec){.tv_nsec = 400000000}, NULL);
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &after) == TUTTI_OK);
    RANKS_CHECK(tutti_barrier(after, NULL, 0, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    tutti_comm_destroy(after);
    return 0;
}

/* An arena has the size that is asked for, and serves operations that are longer. */
static int arena_fits(struct ranks *ranks, int rank, tutti_store_t *store)
{
    static const struct {
        size_t asked, least, most;
    } rows[] = {{65536, 60000, 65536}, {100001, 95000, 100001}, {0, 2 << 20, 6 << 20}};
    static const char key[] = "\narena_bytes: ";
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct tutti_comm_options options = {SIZE, .arena_bytes = rows[i].asked};
        char text[4096];
        tutti_comm_t *comm;
        RANKS_CHECK(ranks_join(ranks, rank, store, &options, &comm) == TUTTI_OK);
        tutti_comm_describe(comm, text, sizeof text);
        const char *line = strstr(text, key);
        RANKS_CHECK(line);
        const size_t bytes = strtoul(line + strlen(key), NULL, 10);
        RANKS_CHECK(bytes >= rows[i].least && bytes <= rows[i].most);
        int32_t *data = calloc(300000, sizeof *data);
        RANKS_CHECK(data);
        for (int at = 0; at < 300000; at++)
            data[at] = at + rank;
        RANKS_CHECK(tutti_all_reduce(data, data, 300000, TUTTI_INT32, TUTTI_SUM, comm,
                                     TUTTI_STREAM_DEFAULT) == TUTTI_OK);
        for (int at = 0; at < 300000; at++)
            RANKS_CHECK(data[at] == 3 * at + 3);
        free(data);
        tutti_comm_destroy(comm);
    }
    return 0;
}

int main(void)
{
    int failures = 0, skip = ranks_skip(3);
    if (skip)
        return skip;
    for (int processes = 0; processes <= 3; processes += 3) {
        struct ranks *ranks = ranks_create(3, processes, 0);
        failures += ranks_run(ranks, arena_fits);
        ranks_destroy(ranks);
    }
    for (size_t i = 0; i < sizeof differences / sizeof *differences; i++) {
        for (int processes = 0; processes <= 3; processes += 3) {
            struct ranks *ranks = ranks_create(3, processes, 0);
            ranks->context = &differences[i];
            failures += ranks_run(ranks, join);
            ranks_destroy(ranks);
        }
    }
    return failures ? 1 : 0;
}
