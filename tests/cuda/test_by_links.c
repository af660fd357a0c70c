/* SPDX-License-Identifier: MIT */
/*
 * Where links do not join all devices: which kernel is chosen, what may be forced and what is
 * refused with the reason, and what the launch says of the rank's role in the mesh or the ring.
 */
#include "device.h"
#include "forced.h"

#include "comm/comm.h"
#include "cuda/tuning/table.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { COUNT = 70000 };

struct scenario {
    const char *name;
    int size;
    const char *links; /* rows of a topology file */
    enum tutti_algo chosen;
    const char *reason;
    bool mesh, ring, all; /* what may be forced */
};

static const struct scenario scenarios[] = {
    {"cube mesh", 8,
     "X 1 1 1 2 0 0 0\n1 X 1 1 0 2 0 0\n1 1 X 1 0 0 2 0\n1 1 1 X 0 0 0 2\n"
     "2 0 0 0 X 1 1 1\n0 2 0 0 1 X 1 1\n0 0 2 0 1 1 X 1\n0 0 0 2 1 1 1 X\n",
     TUTTI_ALGO_HYBRID_CUBE_MESH, "links are those of a hybrid cube mesh", true, true, false},
    /* Partners across in another order than the ranks'. */
    {"crossed cube mesh", 8,
     "X 1 1 1 0 2 0 0\n1 X 1 1 0 0 0 2\n1 1 X 1 2 0 0 0\n1 1 1 X 0 0 2 0\n"
     "0 0 2 0 X 1 1 1\n2 0 0 0 1 X 1 1\n0 0 0 2 1 1 X 1\n0 2 0 0 1 1 1 X\n",
     TUTTI_ALGO_HYBRID_CUBE_MESH, "links are those of a hybrid cube mesh", true, true, false},
    {"ring", 5, "X 0 1 1 0\n0 X 1 0 1\n1 1 X 0 0\n1 0 0 X 1\n0 1 0 1 X\n", TUTTI_ALGO_RING,
     "only the links of a ring", false, true, false},
    {"switch", 8,
     "X 1 1 1 1 1 1 1\n1 X 1 1 1 1 1 1\n1 1 X 1 1 1 1 1\n1 1 1 X 1 1 1 1\n"
     "1 1 1 1 X 1 1 1\n1 1 1 1 1 X 1 1\n1 1 1 1 1 1 X 1\n1 1 1 1 1 1 1 X\n",
     TUTTI_ALGO_NONE, "tuning table", true, true, true},
    {"pair", 2, "X 1\n1 X\n", TUTTI_ALGO_NONE, "tuning table", false, true, true},
    {"star", 3, "X 1 1\n1 X 0\n1 0 X\n", TUTTI_ALGO_NONE, "tuning table", false, false, true},
};

/* What each rank says of itself, for the others to compare. */
struct word {
    int mesh[5]; /* quarters of ranks[0] to ranks[3], partner */
    int ranks[4];
    int ring[3];
};

static struct standin_launch last_launch(void)
{
    struct standin_launch launch = {.grid = 0};
    (void)standin_launches(&launch, 1);
    return launch;
}

static enum tutti_status reduce(tutti_comm_t *comm, int32_t *data, size_t count, int forced)
{
    struct tutti_call_options options = {.struct_size = sizeof options,
                                         .algo = forced_algo(comm, forced)};
    enum tutti_status status = tutti_all_reduce_with(data, data, count, TUTTI_INT32, TUTTI_SUM,
                                                     comm, TUTTI_STREAM_LEGACY, &options);
    return cuCtxSynchronize() == CUDA_SUCCESS ? status : TUTTI_ERR_CUDA;
}

/* Runs, by that kernel, within its geometry; or is refused with the reason. */
static int force(struct ranks *ranks, int rank, tutti_comm_t *comm, int32_t *data, int algo,
                 bool may)
{
    const bool mesh = algo == TUTTI_ALGO_HYBRID_CUBE_MESH;
    for (int i = 0; i < COUNT; i++)
        data[i] = i + rank;
    enum tutti_status status = reduce(comm, data, COUNT, algo);
    RANKS_CHECK(status == (may ? TUTTI_OK : TUTTI_ERR_INVALID));
    if (!may) {
        RANKS_CHECK(
            strstr(tutti_last_error(), algo < FORCED_KERNEL ? forced_name(algo) : "_shot") &&
            strstr(tutti_last_error(), "it needs"));
        return 0;
    }
    for (int i = 0; i < COUNT; i++)
        RANKS_CHECK(data[i] == i * ranks->size + ranks->size * (ranks->size - 1) / 2);
    struct standin_launch launch = last_launch();
    if (algo == TUTTI_ALGO_HYBRID_CUBE_MESH || algo == TUTTI_ALGO_RING) {
        RANKS_CHECK(strcmp(launch.name, mesh ? "mesh_int32" : "ring_int32") == 0);
        RANKS_CHECK(launch.grid > 1 && launch.grid <= CUDA_TILE_BLOCKS);
        RANKS_CHECK(launch.block == (mesh ? 192 : CUDA_WORKERS) + CUDA_CONTROL_THREADS);
    }
    return 0;
}

/* Quads and partners are linked and agree on who has which quarter; places follow each other. */
static int places_check(struct ranks *ranks, int rank, tutti_comm_t *comm, int32_t *data,
                        const struct scenario *scenario)
{
    if (scenario->mesh)
        RANKS_CHECK(reduce(comm, data, COUNT, TUTTI_ALGO_HYBRID_CUBE_MESH) == TUTTI_OK);
    const struct cuda_launch launch = last_launch().parameters;
    if (scenario->ring)
        RANKS_CHECK(reduce(comm, data, COUNT, TUTTI_ALGO_RING) == TUTTI_OK);
    const struct cuda_ring ring = last_launch().parameters.ring;
    struct word *words = (struct word *)(void *)ranks->shared, *own = &words[rank];
    const struct rank_set linked = comm->topology.linked[rank];
    for (int p = 0; p < 4 && p < ranks->size; p++) {
        own->mesh[p] = launch.mesh.quarters[p];
        own->ranks[p] = launch.ranks[p];
    }
    own->mesh[4] = launch.mesh.partner;
    own->ring[0] = ring.position;
    own->ring[1] = ring.before;
    own->ring[2] = ring.after;
    ranks_raise(ranks, 1);
    RANKS_CHECK(ranks_await(ranks, 1, (uint32_t)ranks->size));
    for (int p = 0; p < 4 && scenario->mesh; p++) {
        const struct word *other = &words[own->ranks[p]];
        RANKS_CHECK(other->mesh[0] == own->mesh[p] && other->ranks[p] == rank);
        RANKS_CHECK(p == 0 || rank_set_has(linked, own->ranks[p]));
        RANKS_CHECK(p == 0 || own->mesh[p] != own->mesh[0]);
        RANKS_CHECK(own->mesh[4] != own->ranks[p]);
    }
    if (scenario->mesh) {
        const struct word *partner = &words[own->mesh[4]];
        RANKS_CHECK(rank_set_has(linked, own->mesh[4]));
        RANKS_CHECK(partner->mesh[4] == rank && partner->mesh[0] == own->mesh[0]);
    }
    if (scenario->ring) {
        RANKS_CHECK(rank_set_has(linked, own->ring[1]) && rank_set_has(linked, own->ring[2]));
        RANKS_CHECK(words[own->ring[2]].ring[1] == rank && words[own->ring[1]].ring[2] == rank);
        RANKS_CHECK(words[own->ring[2]].ring[0] == (own->ring[0] + 1) % ranks->size);
    }
    return 0;
}

static int chosen_check(struct ranks *ranks, int rank, tutti_comm_t *comm, int32_t *data,
                        const struct scenario *scenario)
{
    char text[4096], plan[64];
    enum tutti_algo algo;
    const char *reason;
    for (size_t count = 1; count <= (size_t)1 << 40; count = count * 32) {
        RANKS_CHECK(tutti_comm_algorithm(comm, count, TUTTI_FLOAT32, TUTTI_SUM, NULL, &algo,
                                         &reason) == TUTTI_OK);
        RANKS_CHECK(strstr(reason, scenario->reason));
        if (scenario->chosen)
            RANKS_CHECK(algo == scenario->chosen);
        else
            RANKS_CHECK(algo == TUTTI_ALGO_ONE_SHOT || algo == TUTTI_ALGO_TWO_SHOT);
    }
    RANKS_CHECK(reduce(comm, data, 100, TUTTI_ALGO_NONE) == TUTTI_OK);
    tutti_comm_describe(comm, text, sizeof text);
    snprintf(plan, sizeof plan, "plan: %s up to any size",
             scenario->chosen == TUTTI_ALGO_RING ? "ring" : "mesh");
    RANKS_CHECK((strstr(text, plan) != NULL) == (scenario->chosen != TUTTI_ALGO_NONE));
    RANKS_CHECK((strstr(text, "plan: one_shot_ll") != NULL) == scenario->all);
    return 0;
}

/* The roots' table: the mesh up to 256 KiB, nothing where only a ring is. */
static int strict_check(struct ranks *ranks, int rank, tutti_store_t *store,
                        const struct scenario *scenario, int32_t *data)
{
    struct tutti_comm_options options = {.struct_size = sizeof options, .strict = TUTTI_STRICT_ON};
    const bool mesh = scenario->chosen == TUTTI_ALGO_HYBRID_CUBE_MESH;
    enum tutti_algo algo;
    tutti_comm_t *comm;
    RANKS_CHECK(device_join(ranks, rank, store, &options, &comm) == TUTTI_OK);
    RANKS_CHECK(tutti_comm_algorithm(comm, 65536, TUTTI_FLOAT32, TUTTI_SUM, NULL, &algo, NULL) ==
                TUTTI_OK);
    RANKS_CHECK(algo == (mesh ? TUTTI_ALGO_HYBRID_CUBE_MESH : TUTTI_ALGO_NONE));
    RANKS_CHECK(tutti_all_reduce(data, data, 65536, TUTTI_FLOAT32, TUTTI_SUM, comm,
                                 TUTTI_STREAM_LEGACY) == (mesh ? TUTTI_OK : TUTTI_ERR_DECLINED));
    RANKS_CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
    RANKS_CHECK(!mesh || strcmp(last_launch().name, "mesh_float32") == 0);
    RANKS_CHECK(tutti_all_reduce(data, data, 65537, TUTTI_FLOAT32, TUTTI_SUM, comm,
                                 TUTTI_STREAM_LEGACY) == TUTTI_ERR_DECLINED);
    tutti_comm_destroy(comm);
    return 0;
}

static int live(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const struct scenario *scenario = ranks->context;
    tutti_comm_t *comm;
    RANKS_CHECK(device_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    int32_t *data = device_alloc(COUNT * sizeof *data);
    int failed = chosen_check(ranks, rank, comm, data, scenario);
    if (!failed)
        failed = force(ranks, rank, comm, data, TUTTI_ALGO_HYBRID_CUBE_MESH, scenario->mesh);
    if (!failed)
        failed = force(ranks, rank, comm, data, TUTTI_ALGO_RING, scenario->ring);
    for (int algo = FORCED(ONE_SHOT_LL); algo <= FORCED(TWO_SHOT_RELAYED) && !failed; algo++)
        if (!scenario->all || algo == FORCED(TWO_SHOT_RELAYED))
            failed = force(ranks, rank, comm, data, algo, scenario->all);
    if (!failed)
        failed = force(ranks, rank, comm, data, TUTTI_ALGO_TWO_SHOT, scenario->all);
    if (!failed)
        failed = places_check(ranks, rank, comm, data, scenario);
    tutti_comm_destroy(comm);
    if (!failed && scenario->chosen)
        failed = strict_check(ranks, rank, store, scenario, data);
    device_free(data);
    return failed;
}

static int scenario_run(const struct scenario *scenario)
{
    char path[64];
    snprintf(path, sizeof path, "/tmp/tutti-test-by-links-%d", (int)getpid());
    FILE *file = fopen(path, "w");
    if (!file)
        abort();
    fprintf(file, "tutti-topology 1\nranks %d\n%s", scenario->size, scenario->links);
    fclose(file);
    setenv("TUTTI_TOPOLOGY_FILE", path, 1);
    /* Processes, for the log of launches is a process's. */
    struct ranks *ranks =
        ranks_create(scenario->size, scenario->size, CUDA_RANKS * sizeof(struct word));
    ranks->context = scenario;
    int failed = ranks_run(ranks, live);
    ranks_destroy(ranks);
    unlink(path);
    if (failed)
        fprintf(stderr, "%s failed\n", scenario->name);
    return failed;
}

int main(void)
{
    int failures = 0;
    device_setup();
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++)
        failures += scenario_run(&scenarios[i]);
    return failures ? 1 : 0;
}
