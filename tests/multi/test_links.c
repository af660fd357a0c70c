/* SPDX-License-Identifier: MIT */
/* Where a communicator's matrix of links comes from, what it says of it, and ranks whose files
 * differ. */
#include "ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MESH = 8 };

static const char mesh[] = "tutti-topology 1\nranks 8\n"
                           "X 1 1 2 2 0 0 0\n1 X 2 1 0 2 0 0\n1 2 X 2 0 0 1 0\n2 1 2 X 0 0 0 1\n"
                           "2 0 0 0 X 1 1 2\n0 2 0 0 1 X 2 1\n0 0 1 0 1 2 X 2\n0 0 0 1 2 1 2 X\n";
/* The same with the evens and the odds as quads. */
static const char mixed[] = "tutti-topology 1\nranks 8\n"
                            "X 1 1 0 1 0 1 0\n1 X 0 1 0 1 0 1\n1 0 X 1 1 0 1 0\n0 1 1 X 0 1 0 1\n"
                            "1 0 1 0 X 1 1 0\n0 1 0 1 1 X 0 1\n1 0 1 0 1 0 X 1\n0 1 0 1 0 1 1 X\n";
static const char pair[] = "tutti-topology 1\nranks 2\nX 3\n3 X\n";
static const char one_way[] = "tutti-topology 1\nranks 2\nX 3\n0 X\n";
static const char unknown[] = "tutti-topology 1\nranks 2\nX ?\n3 X\n";

/* What the ranks are given, the last one instead `odd`, and what comes of it. */
struct scenario {
    const char *even, *odd; /* files; NULL: none */
    const char *force;      /* TUTTI_FORCE_FULLY_CONNECTED */
    const int *leaf_order;  /* of the last rank */
    int size;
    enum tutti_status status;
    enum tutti_topology topology;
    const char *words[3]; /* of the error, or of the description */
    enum tutti_algo algo; /* forced by all */
};

static const struct scenario scenarios[] = {
    {.size = 2,
     .topology = TUTTI_TOPOLOGY_FULLY_CONNECTED,
     .words = {"topology: fully_connected\n", "CPU ranks share their memory", ""}},
    {.even = pair,
     .odd = pair,
     .size = 2,
     .topology = TUTTI_TOPOLOGY_FULLY_CONNECTED,
     .words = {"every pair is linked", "links: X 3\nlinks: 3 X\n", "topology_source: "}},
    {.even = one_way,
     .odd = one_way,
     .size = 2,
     .words = {"topology: unknown\n", "rank 0 is linked to rank 1, but not back", ""}},
    {.even = unknown,
     .odd = unknown,
     .size = 2,
     .words = {"links: X ?\n", "the links between ranks 0 and 1 are not known", ""}},
    {.even = one_way,
     .odd = one_way,
     .size = 2,
     .force = "1",
     .topology = TUTTI_TOPOLOGY_FULLY_CONNECTED,
     .words = {"TUTTI_FORCE_FULLY_CONNECTED is set", "", ""}},
    {.even = mesh,
     .odd = mesh,
     .size = 8,
     .topology = TUTTI_TOPOLOGY_HYBRID_CUBE_MESH,
     .words = {"topology: hybrid_cube_mesh\n", "partners 0-4", "leaf_order: 0 1 2 3 4 5 6 7\n"}},
    {.even = mixed,
     .odd = mixed,
     .size = 8,
     .topology = TUTTI_TOPOLOGY_HYBRID_CUBE_MESH,
     .words = {"quads 0 2 4 6 and 1 3 5 7, partners 0-1 2-3", "leaf_order: 0 2 4 6 1 3 5 7\n", ""}},
    /* who gives an order and who leaves it to the links mean the same one, or they do not */
    {.even = mixed,
     .odd = mixed,
     .size = 8,
     .leaf_order = (const int[]){0, 2, 4, 6, 1, 3, 5, 7},
     .status = TUTTI_ERR_MISMATCH,
     .words = {"leaf order", "leaf 1", ""}},
    {.even = mixed,
     .odd = mixed,
     .size = 8,
     .leaf_order = (const int[]){0, 1, 2, 3, 4, 5, 6, 7},
     .status = TUTTI_ERR_MISMATCH,
     .words = {"leaf order", "has 2", "quads' order"}},
    {.even = pair,
     .odd = one_way,
     .size = 2,
     .status = TUTTI_ERR_MISMATCH,
     .words = {"links from 1 to 0", "has 3 (", "has 0 ("}},
    {.even = pair,
     .odd = unknown,
     .size = 2,
     .status = TUTTI_ERR_MISMATCH,
     .words = {"links from 0 to 1", "has 3 (", "has -1 ("}},
    {.even = pair,
     .odd = NULL,
     .size = 2,
     .status = TUTTI_ERR_MISMATCH,
     .words = {"TUTTI_TOPOLOGY_FILE", "has 2 rows", "has no matrix"}},
    /* forced, and not allowed by the links: refused on all ranks, with the reason */
    {.even = mesh,
     .odd = mesh,
     .size = 8,
     .algo = TUTTI_ALGO_TWO_SHOT,
     .status = TUTTI_ERR_INVALID,
     .words = {"(two_shot) does not serve", "a link between any two", "quads 0 1 2 3"}},
};

static int write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    return !file || fputs(text, file) < 0 || fclose(file);
}

static int join(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const struct scenario *scenario = ranks->context;
    bool odd = rank == ranks->size - 1;
    struct tutti_comm_options options = {.struct_size = sizeof options,
                                         .algo = scenario->algo,
                                         .leaf_order = odd ? scenario->leaf_order : NULL};
    const char *text = odd ? scenario->odd : scenario->even;
    char path[64], described[4096];
    tutti_comm_t *comm;
    snprintf(path, sizeof path, "/tmp/tutti-test-links-%d-%d", (int)getpid(), rank);
    if (text) {
        RANKS_CHECK(write_file(path, text) == 0);
        setenv("TUTTI_TOPOLOGY_FILE", path, 1);
    }
    if (scenario->force)
        setenv("TUTTI_FORCE_FULLY_CONNECTED", scenario->force, 1);
    enum tutti_status status = ranks_join(ranks, rank, store, &options, &comm);
    unlink(path);
    RANKS_CHECK(status == scenario->status);
    RANKS_CHECK(tutti_comm_topology(comm) == scenario->topology);
    if (status == TUTTI_OK)
        tutti_comm_describe(comm, described, sizeof described);
    for (int i = 0; i < 3; i++)
        RANKS_CHECK(
            strstr(status == TUTTI_OK ? described : tutti_last_error(), scenario->words[i]));
    tutti_comm_destroy(comm);
    return 0;
}

/* What one rank finds out by itself, before the store is touched. */
static int refuse(struct ranks *ranks, int rank, tutti_store_t *store)
{
    static const struct {
        const char *text;
        int size;
        const char *what;
    } rows[] = {
        {"tutti-topology 1\nranks 2\nX 3\n3\n", 2, "line 4: the row is too short"},
        {pair, 3, "is of 2 ranks, the world size is 3"},
    };
    char path[64];
    tutti_comm_t *comm;
    snprintf(path, sizeof path, "/tmp/tutti-test-links-%d", (int)getpid());
    setenv("TUTTI_TOPOLOGY_FILE", path, 1);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        RANKS_CHECK(write_file(path, rows[i].text) == 0);
        enum tutti_status status = tutti_comm_create(store, 0, rows[i].size, NULL, &comm);
        unlink(path);
        RANKS_CHECK(status == TUTTI_ERR_INVALID && strstr(tutti_last_error(), rows[i].what));
    }
    RANKS_CHECK(tutti_comm_create(store, 0, 2, NULL, &comm) == TUTTI_ERR_SYSTEM);
    RANKS_CHECK(strstr(tutti_last_error(), path));
    setenv("TUTTI_FORCE_FULLY_CONNECTED", "perhaps", 1);
    RANKS_CHECK(tutti_comm_create(store, 0, 2, NULL, &comm) == TUTTI_ERR_INVALID);
    RANKS_CHECK(strstr(tutti_last_error(), "TUTTI_FORCE_FULLY_CONNECTED=perhaps"));
    return 0;
}

static int run(const void *context, int size, ranks_fn *fn)
{
    struct ranks *ranks = ranks_create(size, size, 0);
    ranks->context = context;
    int failures = ranks_run(ranks, fn);
    ranks_destroy(ranks);
    return failures;
}

int main(void)
{
    int skip = ranks_skip_cuda("files of CPU ranks");
    if (skip)
        return skip;
    int failures = run(NULL, 1, refuse);
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++) {
        int failed = run(&scenarios[i], scenarios[i].size, join);
        if (failed)
            printf("failed: scenario %zu\n", i);
        failures += failed;
    }
    return failures ? 1 : 0;
}
