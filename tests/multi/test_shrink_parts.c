/* SPDX-License-Identifier: MIT */
/*
 * What the new communicator of tutti_comm_shrink() inherits, and what becomes of what belonged to
 * the old one: links, leaf order, a forced algorithm; process groups, works, symmetric memory.
 */
#include "pg.h"
#include "shrink.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { SIZE = 4, MESH = 8 };

static char path[] = "/tmp/tutti-shrink-XXXXXX"; /* of a topology file */

/* ---- what is inherited ----------------------------------------------------------------------- */

/* Whether the description has these lines. */
static bool describes(const tutti_comm_t *comm, const char *lines)
{
    char text[8192];
    return tutti_comm_describe(comm, text, sizeof text) < (int)sizeof text && strstr(text, lines);
}

/* Two quads, {0, 1, 2, 3} and {4, 5, 6, 7}, and a partner across: 8 ranks that become 4. */
static bool topology_write(void)
{
    int fd = mkstemp(path);
    FILE *file = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (!file)
        return false;
    fprintf(file, "tutti-topology 1\nranks %d\n", MESH);
    for (int i = 0; i < MESH; i++) {
        for (int j = 0; j < MESH; j++)
            fprintf(file, "%d ", i == j ? 0 : i / 4 == j / 4 ? 1 + i + j : 2 * (i % 4 == j % 4));
        fprintf(file, "\n");
    }
    return fclose(file) == 0;
}

/* A quad is fully connected: what was forced for the mesh gives way. */
static int live_mesh(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const struct tutti_comm_options options = {.struct_size = sizeof options,
                                               .name = "mesh",
                                               .buffer_size = 12345,
                                               .strict = TUTTI_STRICT_ON,
                                               .algo = TUTTI_ALGO_HYBRID_CUBE_MESH};
    struct tutti_shrink_result result = shrink_result();
    static const int others[] = {0, 1, 2, 3};
    const struct tutti_shrink_options shrink = {.struct_size = sizeof shrink,
                                                .exclude = rank < 4 ? NULL : others,
                                                .exclude_count = rank < 4 ? 0 : 4};
    tutti_comm_t *comm, *shrunk;
    RANKS_CHECK(ranks_join(ranks, rank, store, &options, &comm) == TUTTI_OK);
    RANKS_CHECK(tutti_comm_topology(comm) == TUTTI_TOPOLOGY_HYBRID_CUBE_MESH);
    if (rank < 4) {
        tutti_comm_destroy(comm);
        return 0;
    }
    RANKS_CHECK(tutti_comm_shrink(comm, store, &shrink, &shrunk, &result) == TUTTI_OK);
    RANKS_CHECK(shrink_is(&result, shrunk, rank, 0xf0));
    RANKS_CHECK(tutti_comm_topology(shrunk) == TUTTI_TOPOLOGY_FULLY_CONNECTED);
    RANKS_CHECK(describes(shrunk, "links: X 10 11 12\nlinks: 10 X 12 13\n"));
    RANKS_CHECK(describes(shrunk, "name: mesh\n") && describes(shrunk, "algorithm: measured\n"));
    RANKS_CHECK(describes(shrunk, "strict: on\n") && tutti_comm_buffer_size(shrunk) == 12345);
    RANKS_CHECK(shrink_check_one(shrunk, 0));
    tutti_comm_destroy(comm);
    tutti_comm_destroy(shrunk);
    return 0;
}

static int live_leaves(struct ranks *ranks, int rank, tutti_store_t *store)
{
    static const int order[SIZE] = {2, 0, 3, 1};
    const struct tutti_comm_options options = {.struct_size = sizeof options,
                                               .leaf_order = order,
                                               .algo = TUTTI_ALGO_TWO_SHOT,
                                               .timeout_ms = 54321};
    struct tutti_shrink_result result;
    tutti_comm_t *comm, *shrunk;
    RANKS_CHECK(ranks_join(ranks, rank, store, &options, &comm) == TUTTI_OK);
    if (rank == 0) {
        tutti_comm_destroy(comm);
        return 0;
    }
    RANKS_CHECK(shrink_without(comm, store, -1, &shrunk, &result) == TUTTI_OK);
    RANKS_CHECK(describes(shrunk, "leaf_order: 1 2 0\n"));
    RANKS_CHECK(describes(shrunk, "algorithm: two_shot\n"));
    RANKS_CHECK(describes(shrunk, "timeout_ms: 54321\n"));
    RANKS_CHECK(shrink_check(shrunk, 20));
    tutti_comm_destroy(comm);
    tutti_comm_destroy(shrunk);
    return 0;
}

/* ---- what belonged to the old one ------------------------------------------------------------ */

/* A group that lives keeps the communicator; once it is gone the ranks shrink, and the new
 * communicator has a group again. */
static int live_group(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct tutti_shrink_result result;
    tutti_comm_t *comm, *shrunk;
    tutti_pg_t *pg;
    RANKS_CHECK(pg_join(ranks, rank, store, &comm, &pg) == TUTTI_OK);
    RANKS_CHECK(pg_goes_on(pg, 0, SIZE));
    RANKS_CHECK(shrink_without(comm, store, -1, &shrunk, &result) == TUTTI_ERR_CONCURRENT);
    RANKS_CHECK(!shrunk && strstr(tutti_last_error(), "destroy that first"));
    tutti_pg_destroy(pg);
    RANKS_CHECK(tutti_barrier(comm, NULL, 0, TUTTI_STREAM_DEFAULT) == TUTTI_ERR_CONCURRENT);
    if (rank == 1) {
        tutti_comm_destroy(comm);
        return 0;
    }
    RANKS_CHECK(shrink_without(comm, store, -1, &shrunk, &result) == TUTTI_OK);
    RANKS_CHECK(shrink_is(&result, shrunk, rank, 13));
    RANKS_CHECK(tutti_barrier(comm, NULL, 0, TUTTI_STREAM_DEFAULT) == TUTTI_ERR_ABORTED);
    tutti_comm_destroy(comm);
    RANKS_CHECK(tutti_pg_create(shrunk, NULL, &pg) == TUTTI_OK);
    RANKS_CHECK(pg_goes_on(pg, 0, SIZE - 1));
    pg_part(shrunk, pg);
    return 0;
}

static int live_work(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct tutti_shrink_result result;
    tutti_comm_t *comm, *shrunk;
    tutti_work_t *work, *later;
    bool done = false;
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    RANKS_CHECK(shrink_check_one(comm, 0));
    RANKS_CHECK(tutti_work_record(comm, TUTTI_STREAM_DEFAULT, &work) == TUTTI_OK);
    RANKS_CHECK(tutti_work_test(work, &done) == TUTTI_OK && done);
    RANKS_CHECK(shrink_without(comm, store, -1, &shrunk, &result) == TUTTI_OK);
    RANKS_CHECK(tutti_work_test(work, &done) == TUTTI_OK && done);
    RANKS_CHECK(tutti_work_record(comm, TUTTI_STREAM_DEFAULT, &later) == TUTTI_ERR_ABORTED);
    tutti_comm_destroy(comm);
    RANKS_CHECK(tutti_work_wait_host(work, 0) == TUTTI_OK);
    tutti_work_destroy(work);
    RANKS_CHECK(tutti_work_record(shrunk, TUTTI_STREAM_DEFAULT, &work) == TUTTI_OK);
    tutti_work_destroy(work);
    tutti_comm_destroy(shrunk);
    return 0;
}

/* A group of symmetric memory stays as it is; of the new communicator its memory is an operand. */
static int live_symm(struct ranks *ranks, int rank, tutti_store_t *store)
{
    enum { COUNT = 40000 };
    struct tutti_shrink_result result;
    tutti_symm_group_t *group;
    tutti_comm_t *comm, *shrunk;
    void *memory;
    RANKS_CHECK(tutti_symm_group("parts", rank, SIZE, store, &group) == TUTTI_OK);
    RANKS_CHECK(tutti_symm_alloc(group, TUTTI_DEVICE_CPU, COUNT * sizeof(float), &memory) ==
                TUTTI_OK);
    RANKS_CHECK(tutti_symm_rendezvous(memory, RANKS_TIMEOUT_MS, NULL) == TUTTI_OK);
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    if (rank != 2) {
        float *x = memory;
        RANKS_CHECK(shrink_without(comm, store, 2, &shrunk, &result) == TUTTI_OK);
        RANKS_CHECK(shrink_is(&result, shrunk, rank, 11));
        for (int i = 0; i < COUNT; i++)
            x[i] = (float)(i % 100 + result.rank);
        RANKS_CHECK(tutti_all_reduce(x, x, COUNT, TUTTI_FLOAT32, TUTTI_SUM, shrunk,
                                     TUTTI_STREAM_DEFAULT) == TUTTI_OK);
        for (int i = 0; i < COUNT; i++)
            RANKS_CHECK(x[i] == (float)(3 * (i % 100) + 3));
        tutti_comm_destroy(shrunk);
    }
    RANKS_CHECK(tutti_symm_barrier(memory, 0, RANKS_TIMEOUT_MS, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    tutti_symm_group_destroy(group);
    tutti_comm_destroy(comm);
    return 0;
}

static int run(const char *title, int size, int processes, ranks_fn *fn)
{
    struct ranks *ranks = ranks_create(size, processes, 0);
    int failures = ranks_run(ranks, fn);
    if (failures)
        printf("failed: %s\n", title);
    ranks_destroy(ranks);
    return failures;
}

int main(int argc, char **argv)
{
    int failures = 0, skip = ranks_skip_cuda("most of it is of CPU ranks");
    if (skip)
        return skip;
    bool processes = argc == 2 && strcmp(argv[1], "processes") == 0;
    failures += run("leaves", SIZE, processes ? SIZE : 0, live_leaves);
    failures += run("group", SIZE, processes ? SIZE : 0, live_group);
    failures += run("work", SIZE, processes ? SIZE : 0, live_work);
    failures += run("symmetric memory", SIZE, processes ? SIZE : 0, live_symm);
    if (!topology_write() || setenv("TUTTI_TOPOLOGY_FILE", path, 1) != 0)
        return 1;
    failures += run("mesh", MESH, processes ? MESH : 0, live_mesh);
    unlink(path);
    return failures ? 1 : 0;
}
