/* SPDX-License-Identifier: MIT */
/*
 * Process groups on CUDA tensors that go through pinned memory which all ranks share. SIGKILL of a
 * rank while it reduces there: the others' works end with PEER_DEAD, which names it. The others go
 * on without it in a new group, through memory that the dead rank may have been using. Also a rank
 * that cannot pin memory: then all ranks do without it.
 */
#include "pg_cuda.h"

#include "base/point.h"

#include <signal.h>

enum { COUNT = (1 << 20) / 4 + 3, PIECES = 5, OPERATIONS = 4 };

struct scenario {
    const char *point; /* at which the victim dies, in its third operation; NULL: it does not */
    int victim;
    int unable; /* the rank that cannot share memory, -1: none */
};

static const char *deadly; /* the point at which this process dies */

static void hook(const char *name)
{
    static int passages;
    if (deadly && strcmp(name, deadly) == 0 && ++passages == 2 * PIECES + 2)
        raise(SIGKILL);
}

void (*point_hook)(const char *name) = hook;

/* How often this process has mapped such memory. */
static int mappings(void)
{
    char line[512];
    int count = 0;
    FILE *maps = fopen("/proc/self/maps", "re");
    while (maps && fgets(line, sizeof line, maps))
        count += strstr(line, "memfd:tutti-bounce") != NULL;
    if (maps)
        fclose(maps);
    return count;
}

/* A sum of ones of all ranks, which are `size`. */
static enum tutti_status sum(tutti_pg_t *pg, float *data, float *host, int rank, int size)
{
    const int64_t count = COUNT;
    const struct tutti_tensor tensor = pg_cuda_vector(data, &count, pg_cuda_device(rank, 0));
    tutti_work_t *work;
    for (int i = 0; i < COUNT; i++)
        host[i] = (float)(i % 100);
    if (!gpu_copy(data, host, COUNT * sizeof *data))
        return TUTTI_ERR_CUDA;
    enum tutti_status status = tutti_pg_all_reduce(pg, &tensor, 1, TUTTI_SUM, NULL, &work);
    if (status == TUTTI_OK)
        status = pg_end(work);
    if (status == TUTTI_OK && !gpu_copy(host, data, COUNT * sizeof *data))
        return TUTTI_ERR_CUDA;
    for (int i = 0; i < COUNT && status == TUTTI_OK; i++)
        if (host[i] != (float)(i % 100 * size))
            return TUTTI_ERR_INVALID;
    return status;
}

/* The remaining ranks, in a new communicator. */
static int go_on(struct ranks *ranks, int rank, tutti_store_t *store, int victim, float *data,
                 float *host)
{
    const int size = ranks->size - 1, number = rank - (rank > victim);
    const struct tutti_comm_options options = {.struct_size = sizeof options, .name = "again"};
    tutti_comm_t *comm;
    tutti_pg_t *pg;
    RANKS_CHECK(tutti_comm_create(store, number, size, &options, &comm) == TUTTI_OK);
    RANKS_CHECK(tutti_pg_create(comm, NULL, &pg) == TUTTI_OK);
    for (int i = 0; i < OPERATIONS; i++)
        RANKS_CHECK(sum(pg, data, host, rank, size) == TUTTI_OK);
    RANKS_CHECK(mappings() == (size > 1 ? size + 1 : 1));
    pg_part(comm, pg);
    RANKS_CHECK(mappings() == 1); /* kept for later groups */
    return 0;
}

static int live(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const struct scenario *scenario = ranks->context;
    enum tutti_status status = TUTTI_OK;
    tutti_comm_t *comm;
    tutti_pg_t *pg;
    float *data, *host = malloc(COUNT * sizeof *host);
    char name[32];
    int shared = ranks->size + 1; /* its own for the devices, and those of all ranks */
    snprintf(name, sizeof name, "rank %d", scenario->victim);
    deadly = rank == scenario->victim ? scenario->point : NULL;
    if (rank == scenario->unable)
        setenv("TUTTI_STANDIN_FAIL", "cuMemHostRegister:0", 1);
    if (scenario->unable >= 0)
        shared = rank != scenario->unable;
    RANKS_CHECK(host && pg_cuda_bind(rank) && (data = gpu_alloc(COUNT * sizeof *data)));
    RANKS_CHECK(pg_cuda_join(ranks, rank, store, false, &comm, &pg) == TUTTI_OK);
    for (int i = 0; i < OPERATIONS && status == TUTTI_OK; i++) {
        status = sum(pg, data, host, rank, ranks->size);
        RANKS_CHECK(mappings() == shared);
        RANKS_CHECK(status == TUTTI_OK || (scenario->point && i == 2));
    }
    RANKS_CHECK(scenario->point == NULL || status == TUTTI_ERR_PEER_DEAD);
    RANKS_CHECK(status == TUTTI_OK || strstr(tutti_last_error(), name));
    pg_part(comm, pg);
    if (scenario->point && go_on(ranks, rank, store, scenario->victim, data, host) != 0)
        return 1;
    gpu_free(data);
    free(host);
    return 0;
}

int main(void)
{
    static const struct scenario scenarios[] = {
        {.victim = 1, .unable = -1},
        {.victim = 0, .unable = 1},
        {.point = "direct.entered", .victim = 0, .unable = -1},
        {.point = "direct.entered", .victim = 2, .unable = -1},
        {.point = "direct.reduced", .victim = 1, .unable = -1},
    };
    int failures = 0, skip = pg_cuda_skip();
    if (skip)
        return skip;
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++) {
        if (scenarios[i].unable >= 0 && !getenv("TUTTI_CUDA_LIBRARY"))
            continue; /* a real GPU can pin any memory */
        struct scenario scenario = scenarios[i];
        struct ranks *ranks = ranks_create(3, 3, 0);
        ranks->context = &scenario;
        if (scenario.point)
            ranks->expendable = UINT64_C(1) << scenario.victim;
        failures += ranks_run(ranks, live);
        if (scenario.point && ranks->results[scenario.victim].signal != SIGKILL) {
            fprintf(stderr, "rank %d did not come to %s\n", scenario.victim, scenario.point);
            failures++;
        }
        ranks_destroy(ranks);
    }
    return failures ? 1 : 0;
}
