/* SPDX-License-Identifier: MIT */
/*
 * Process groups on CUDA tensors that go through the host. SIGKILL of a rank while it reduces a
 * piece: the others' works end with PEER_DEAD, which names it. The others go on without it in a new
 * group.
 */
#include "pg_cuda.h"

#include "base/point.h"

#include <signal.h>

enum { COUNT = (1 << 20) / 4 + 3, OPERATIONS = 4, LAST = 2 };

struct scenario {
    const char *point; /* at which the victim dies, in operation LAST; NULL: it does not */
    int victim;
};

static const char *deadly; /* the point at which this process dies, when it passes it again */

static void hook(const char *name)
{
    static int passages;
    if (deadly && strcmp(name, deadly) == 0 && ++passages == 2)
        raise(SIGKILL);
}

void (*point_hook)(const char *name) = hook;

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
    pg_part(comm, pg);
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
    snprintf(name, sizeof name, "rank %d", scenario->victim);
    RANKS_CHECK(host && pg_cuda_bind(rank) && (data = gpu_alloc(COUNT * sizeof *data)));
    RANKS_CHECK(pg_cuda_join(ranks, rank, store, false, &comm, &pg) == TUTTI_OK);
    for (int i = 0; i < OPERATIONS && status == TUTTI_OK; i++) {
        if (i == LAST && rank == scenario->victim)
            deadly = scenario->point;
        status = sum(pg, data, host, rank, ranks->size);
        RANKS_CHECK(status == TUTTI_OK || (scenario->point && i == LAST));
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
        {.victim = 1},
        {.point = "two_shot.filled", .victim = 0},
        {.point = "two_shot.filled", .victim = 2},
        {.point = "two_shot.reduced", .victim = 1},
    };
    int failures = 0, skip = pg_cuda_skip();
    if (skip)
        return skip;
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++) {
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
