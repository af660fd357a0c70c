/* SPDX-License-Identifier: MIT */
/*
 * All-reduces over every kind of matrix: what the communicator chooses and everything that may be
 * forced give the right bits on all ranks, what the links do not allow is refused with the reason,
 * and what they do not reach is not mapped, so that an algorithm that strayed would end here.
 *
 * usage: test_topologies processes|threads
 */
#include "comm/comm.h"
#include "cpu/transport/group.h"
#include "cuda/kernels/tiling.h"
#include "device.h"
#include "pool.h"
#include "ranks.h"
#include "reference.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    MOST_RANKS = 12,
    PIECE_BYTES = LAYOUT_PIECE_BUFFER_BYTES / 8, /* of the largest arena */
    MOST_BYTES = 3 * PIECE_BYTES + 4096,
    CUDA_MOST_BYTES = 12 << 20, /* several turns of a mesh */
    CHAIN_COUNT = 300,          /* elements that the scalar reference looks at */
    RANDOM_MATRICES = 12,
};

struct scenario {
    const char *name;
    struct topology_matrix matrix;
    struct topology topology;
    int order[TUTTI_MAX_RANKS];
    struct pool *pool;
    tutti_op_t premul_sum;
    bool processes;
    bool ring; /* is all that joins the ranks */
};

/* One rank's side. */
struct side {
    struct ranks *ranks;
    const struct scenario *scenario;
    tutti_comm_t *comm;
    int rank;
    unsigned char *send, *recv;
    bool staged;        /* links are nothing to arenas in the host's memory */
    bool proxied;       /* a host thread stages: there are no kernels */
    unsigned char *all; /* shared: [rank][CHAIN_COUNT * 16], results to compare */
};

/* ---- matrices -------------------------------------------------------------------------------- */

static uint64_t state = 7;

static int below(int bound)
{
    return (int)(pool_random(&state) % (uint64_t)bound);
}

static void link_pair(struct topology_matrix *matrix, int i, int j, int links)
{
    matrix->links[i][j] = matrix->links[j][i] = (int16_t)links;
}

static struct topology_matrix mesh_make(void)
{
    struct topology_matrix matrix = {.size = 8};
    for (int i = 0; i < 8; i++) {
        for (int j = 0; j < i; j++)
            link_pair(&matrix, i, j, i / 4 == j / 4);
        link_pair(&matrix, i, i ^ 4, 2);
    }
    return matrix;
}

static struct topology_matrix ring_make(int size)
{
    struct topology_matrix matrix = {.size = size};
    for (int i = 0; i < size; i++)
        link_pair(&matrix, i, (i + 1) % size, 1);
    return matrix;
}

static struct topology_matrix full_make(int size)
{
    struct topology_matrix matrix = {.size = size};
    for (int i = 0; i < size; i++)
        for (int j = 0; j < i; j++)
            link_pair(&matrix, i, j, 18);
    return matrix;
}

static struct topology_matrix islands_make(int bridges)
{
    struct topology_matrix matrix = {.size = 8};
    for (int i = 0; i < 8; i++)
        for (int j = 0; j < i; j++)
            link_pair(&matrix, i, j, i / 4 == j / 4);
    for (int i = 0; i < bridges; i++)
        link_pair(&matrix, i, i + 4, 1);
    return matrix;
}

static struct topology_matrix shuffle(struct topology_matrix from)
{
    struct topology_matrix to = {.size = from.size};
    int numbers[TUTTI_MAX_RANKS];
    for (int i = 0; i < from.size; i++)
        numbers[i] = i;
    for (int i = from.size - 1; i > 0; i--) {
        int j = below(i + 1), number = numbers[i];
        numbers[i] = numbers[j];
        numbers[j] = number;
    }
    for (int i = 0; i < from.size; i++)
        for (int j = 0; j < from.size; j++)
            to.links[numbers[i]][numbers[j]] = from.links[i][j];
    return to;
}

static struct topology_matrix random_make(void)
{
    struct topology_matrix matrix = {.size = 8};
    int density = 30 + below(60);
    for (int i = 0; i < 8; i++)
        for (int j = 0; j < 8; j++)
            if (below(100) < density)
                link_pair(&matrix, i, j, 1 + below(4));
    if (below(2))
        matrix.links[below(8)][below(8)] = TOPOLOGY_UNKNOWN_LINKS;
    return matrix;
}

static int file_write(const char *path, const struct topology_matrix *matrix)
{
    FILE *file = fopen(path, "w");
    if (!file)
        return 1;
    fprintf(file, "tutti-topology 1\nranks %d\n", (int)matrix->size);
    for (int i = 0; i < matrix->size; i++) {
        for (int j = 0; j < matrix->size; j++)
            if (i == j)
                fprintf(file, "X ");
            else if (matrix->links[i][j] < 0)
                fprintf(file, "? ");
            else
                fprintf(file, "%d ", matrix->links[i][j]);
        fprintf(file, "\n");
    }
    return fclose(file);
}

/* ---- what may run ---------------------------------------------------------------------------- */

static bool may_run(const struct side *side, enum tutti_algo algo)
{
    const struct topology *topology = &side->scenario->topology;
    const bool full = topology->kind == TUTTI_TOPOLOGY_FULLY_CONNECTED;
    const bool mesh = topology->kind == TUTTI_TOPOLOGY_HYBRID_CUBE_MESH;
    switch (algo) {
    case TUTTI_ALGO_ONE_SHOT:
    case TUTTI_ALGO_TWO_SHOT:
        return full || side->staged || side->proxied || (!mesh && !may_run(side, TUTTI_ALGO_RING));
    case TUTTI_ALGO_HYBRID_CUBE_MESH:
        return !side->proxied && (mesh || (full && topology->size == 8));
    case TUTTI_ALGO_RING:
        return topology->has_ring && device_is_cuda() && !side->proxied;
    case TUTTI_ALGO_NONE:
        return true;
    case TUTTI_ALGO_HOST_STAGED:
        return side->proxied;
    case TUTTI_ALGO_COPY_ENGINE: /* these are not asked for by their names */
    case TUTTI_ALGO_SYMMETRIC:
        return false;
    }
    return false;
}

static enum tutti_algo chosen(const struct side *side, size_t count)
{
    enum tutti_algo algo = TUTTI_ALGO_NONE;
    const char *reason = NULL;
    if (tutti_comm_algorithm(side->comm, count, TUTTI_FLOAT32, TUTTI_SUM, NULL, &algo, &reason) !=
            TUTTI_OK ||
        !reason || !*reason)
        return TUTTI_ALGO_NONE;
    return algo;
}

/* ---- operations ------------------------------------------------------------------------------ */

static enum tutti_status reduce(const struct side *side, enum tutti_algo algo,
                                enum tutti_dtype dtype, tutti_op_t kind, size_t count,
                                bool in_place)
{
    struct tutti_call_options options = {.struct_size = sizeof options, .algo = algo};
    tutti_op_t op = kind == TUTTI_PREMUL_SUM ? side->scenario->premul_sum : kind;
    if (!device_is_cuda())
        cpu_group_of(side->comm->peers)->distance.far =
            (count + (unsigned)side->rank) & 1; /* ranks need not agree */
    return tutti_all_reduce_with(side->send, in_place ? side->send : side->recv, count, dtype, op,
                                 side->comm, TUTTI_STREAM_DEFAULT, &options);
}

/* The result for element i: of the chain that begins with the rank at the place of its chunk. */
static bool is_chain(const struct side *side, enum tutti_dtype dtype, tutti_op_t op, size_t i,
                     size_t count, size_t offset, const unsigned char *result)
{
    const struct topology *topology = &side->scenario->topology;
    const size_t width = tutti_dtype_size(dtype);
    const size_t unit = tutti_dtype_size(reference_component(dtype)), parts = width / unit;
    const size_t from =
        i * parts / tiling_ring_chunk(count * parts, (unsigned)topology->size, (unsigned)unit);
    unsigned char inputs[TUTTI_MAX_RANKS][16], expected[16];
    const void *in[TUTTI_MAX_RANKS];
    for (int k = 0; k < topology->size; k++) {
        int r = topology->ring[((int)from + k) % topology->size];
        pool_input(side->scenario->pool, r, dtype, offset + i, 1, inputs[k]);
        in[k] = inputs[k];
    }
    reference_chain(expected, in, topology->size, dtype, op, POOL_SCALAR);
    return memcmp(expected, result, width) == 0;
}

/* Which element to look at: all, or some from everywhere and the last ones, where chunks and pieces
 * end. */
static size_t sample(size_t i, size_t some, size_t count)
{
    if (some == count)
        return i;
    return i < some / 2 ? count / some * 2 * i : count - 1 - (i - some / 2);
}

/* The same bits on all ranks, each of them a chain's. */
static int ring_check(const struct side *side, enum tutti_dtype dtype, tutti_op_t op, size_t count,
                      size_t offset, const unsigned char *result)
{
    struct ranks *ranks = side->ranks;
    const int rank = side->rank;
    size_t width = tutti_dtype_size(dtype), some = count < CHAIN_COUNT ? count : CHAIN_COUNT;
    const size_t most = (size_t)CHAIN_COUNT * 16;
    unsigned char *own = side->all + (size_t)rank * most;
    for (size_t i = 0; i < some; i++)
        memcpy(own + i * width, result + sample(i, some, count) * width, width);
    RANKS_CHECK(tutti_barrier(side->comm, NULL, 0, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    for (int r = 0; r < ranks->size; r++)
        RANKS_CHECK(memcmp(side->all + (size_t)r * most, own, some * width) == 0);
    RANKS_CHECK(tutti_barrier(side->comm, NULL, 0, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    for (size_t i = (size_t)rank; i < some; i += (size_t)ranks->size) /* the ranks share it */
        RANKS_CHECK(
            is_chain(side, dtype, op, sample(i, some, count), count, offset, own + i * width));
    return 0;
}

/* What is forced serves any count, but for one-shots on devices. */
static bool is_served(const struct side *side, enum tutti_algo algo, enum tutti_dtype dtype,
                      size_t count)
{
    const struct tutti_call_options options = {.struct_size = sizeof options, .algo = algo};
    enum tutti_algo taken;
    return !device_is_cuda() || algo != TUTTI_ALGO_ONE_SHOT ||
           tutti_comm_algorithm(side->comm, count, dtype, TUTTI_SUM, &options, &taken, NULL) ==
               TUTTI_OK;
}

static int operation_run(const struct side *side, enum tutti_algo algo, enum tutti_dtype dtype,
                         tutti_op_t op, size_t count)
{
    if (!is_served(side, algo, dtype, count))
        return 0;
    struct ranks *ranks = side->ranks;
    const int rank = side->rank;
    const struct pool *pool = side->scenario->pool;
    size_t offset = count * 3 % POOL_PERIOD, index;
    bool in_place = count % 2;
    const unsigned char *result = in_place ? side->send : side->recv;
    enum tutti_algo taken = algo ? algo : chosen(side, count);
    pool_input(pool, rank, dtype, offset, count, side->send);
    memset(side->recv, 0xa5, count * tutti_dtype_size(dtype));
    if (reduce(side, algo, dtype, op, count, in_place) != TUTTI_OK ||
        (taken != TUTTI_ALGO_RING &&
         !pool_is_result(pool, dtype, op, offset, count, result, &index)) ||
        (!in_place && !pool_is_input(pool, rank, dtype, offset, count, side->send))) {
        char text[160];
        snprintf(text, sizeof text, "%s: %s of %zu %s by %s", side->scenario->name,
                 tutti_op_name(op), count, tutti_dtype_name(dtype), tutti_algo_name(taken));
        return ranks_fail(ranks, rank, __FILE__, __LINE__, text);
    }
    return taken == TUTTI_ALGO_RING && count ? ring_check(side, dtype, op, count, offset, result)
                                             : 0;
}

/* Every dtype and operation of a few elements, then sums of many. */
static int algorithm_run(const struct side *side, enum tutti_algo algo)
{
    static const size_t counts[] = {1, 13, 130, 1000};
    static const enum tutti_dtype dtypes[] = {TUTTI_FLOAT32, TUTTI_BFLOAT16, TUTTI_FLOAT64,
                                              TUTTI_FLOAT8_E4M3, TUTTI_INT16};
    const size_t bytes[] = {
        16384,      16385,
        100000,     PIECE_BYTES + 64,
        MOST_BYTES, device_is_cuda() && !ranks_short() ? CUDA_MOST_BYTES - 20 : 65536 + 64};
    int failed = operation_run(side, algo, TUTTI_FLOAT32, TUTTI_SUM, 0);
    for (int d = 0; d < TUTTI_DTYPE_COUNT; d++)
        for (int op = 1; op < REFERENCE_OPS; op++)
            for (size_t c = 0; c < sizeof counts / sizeof *counts && !failed; c++)
                if (reference_has((enum tutti_dtype)d, (tutti_op_t)(uintptr_t)op))
                    failed = operation_run(side, algo, (enum tutti_dtype)d,
                                           (tutti_op_t)(uintptr_t)op, counts[c]);
    for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++)
        for (size_t b = 0; b < sizeof bytes / sizeof *bytes && !failed; b++)
            failed = operation_run(side, algo, dtypes[d], b % 2 ? TUTTI_AVG : TUTTI_SUM,
                                   bytes[b] / tutti_dtype_size(dtypes[d]));
    return failed;
}

static int refusal_check(const struct side *side, enum tutti_algo algo)
{
    struct ranks *ranks = side->ranks;
    const int rank = side->rank;
    RANKS_CHECK(reduce(side, algo, TUTTI_FLOAT32, TUTTI_SUM, 100, true) == TUTTI_ERR_INVALID);
    if (algo == TUTTI_ALGO_RING && !device_is_cuda()) {
        RANKS_CHECK(strstr(tutti_last_error(), "it is for CUDA communicators"));
        return 0;
    }
    RANKS_CHECK(strstr(tutti_last_error(), tutti_algo_name(algo)));
    if (side->proxied && strstr(tutti_last_error(), "a host thread stages"))
        return 0;
    RANKS_CHECK(strstr(tutti_last_error(), "it needs"));
    RANKS_CHECK(side->ranks->size != 8 ||
                strstr(tutti_last_error(), side->scenario->topology.reason));
    return 0;
}

/* Algorithms take turns, in lengths that leave flags and places everywhere. */
static int mixture_run(const struct side *side)
{
    static const enum tutti_algo algos[] = {TUTTI_ALGO_NONE, TUTTI_ALGO_RING,
                                            TUTTI_ALGO_HYBRID_CUBE_MESH, TUTTI_ALGO_TWO_SHOT,
                                            TUTTI_ALGO_ONE_SHOT};
    uint64_t random = 99;
    int failed = 0;
    for (int i = 0; i < 400 && !failed; i++) {
        enum tutti_algo algo = algos[pool_random(&random) % 5];
        size_t count = pool_random(&random) % (1 << pool_random(&random) % 18);
        if (may_run(side, algo))
            failed = operation_run(side, algo, TUTTI_INT32, TUTTI_SUM, count);
    }
    return failed;
}

/* ---- what is mapped -------------------------------------------------------------------------- */

/* Asks the kernel, which does not fault. */
static bool is_mapped(const void *address)
{
    int ends[2];
    if (pipe(ends) != 0)
        abort();
    bool mapped = write(ends[1], address, 1) == 1;
    close(ends[0]);
    close(ends[1]);
    return mapped;
}

static int mapping_check(const struct side *side)
{
    struct ranks *ranks = side->ranks;
    const int rank = side->rank;
    bool all = may_run(side, TUTTI_ALGO_ONE_SHOT);
    const size_t arena_bytes = peers_arena_bytes(side->comm->peers);
    for (int r = 0; r < ranks->size; r++) {
        struct layout_arena *arena = side->comm->peers->arenas[r];
        bool reaches = r == rank || all || rank_set_has(side->scenario->topology.linked[rank], r);
        RANKS_CHECK(is_mapped(&arena->magic) && is_mapped(&arena->notices[1]));
        RANKS_CHECK(is_mapped(arena->in_flags) == reaches);
        RANKS_CHECK(is_mapped(&arena->small_messages[1].body[LAYOUT_BODY_BYTES - 1]) == reaches);
        RANKS_CHECK(is_mapped((char *)arena + arena_bytes - 1) == reaches);
    }
    return 0;
}

/* ---- runs ------------------------------------------------------------------------------------ */

static int side_run(const struct side *side)
{
    static const enum tutti_algo algos[] = {TUTTI_ALGO_NONE, TUTTI_ALGO_RING,
                                            TUTTI_ALGO_HYBRID_CUBE_MESH, TUTTI_ALGO_TWO_SHOT,
                                            TUTTI_ALGO_ONE_SHOT};
    struct ranks *ranks = side->ranks;
    const int rank = side->rank;
    bool maps = side->scenario->processes && !device_is_cuda();
    int failed = maps ? mapping_check(side) : 0;
    if (failed)
        return failed;
    RANKS_CHECK(tutti_comm_topology(side->comm) == side->scenario->topology.kind);
    for (size_t count = 0; count < SIZE_MAX / 16 >> 20; count = count * 2 + 1)
        RANKS_CHECK(may_run(side, chosen(side, count)) && chosen(side, count));
    for (int i = 0; i < 5 && !failed; i++)
        failed =
            may_run(side, algos[i]) ? algorithm_run(side, algos[i]) : refusal_check(side, algos[i]);
    if (!failed)
        failed = mixture_run(side);
    if (failed || ranks->size < 3 || rank == 1)
        return failed;
    int others[TUTTI_MAX_RANKS] = {0}; /* all but rank 1 */
    for (int i = 1; i < ranks->size - 1; i++)
        others[i] = i + 1;
    RANKS_CHECK(tutti_barrier(side->comm, others, ranks->size - 1, TUTTI_STREAM_DEFAULT) ==
                TUTTI_OK);
    return failed;
}

/* One rank means another count: all hear of it, though most have no link to that one. */
static int disagree(const struct side *side)
{
    struct ranks *ranks = side->ranks;
    const int rank = side->rank;
    struct tutti_fault fault = {.struct_size = sizeof fault};
    size_t count = rank == 3 ? 999 : 1000;
    RANKS_CHECK(reduce(side, TUTTI_ALGO_NONE, TUTTI_FLOAT32, TUTTI_SUM, count, true) ==
                TUTTI_ERR_MISMATCH);
    RANKS_CHECK(tutti_comm_status(side->comm, &fault) == TUTTI_ERR_MISMATCH);
    RANKS_CHECK(fault.rank == 3 || fault.peer == 3);
    RANKS_CHECK(fault.expected.count + fault.seen.count == 1999);
    return 0;
}

/* One rank ends instead of taking part. */
static int die(const struct side *side)
{
    struct ranks *ranks = side->ranks;
    const int rank = side->rank;
    struct tutti_fault fault = {.struct_size = sizeof fault};
    if (rank == 3)
        _exit(0);
    RANKS_CHECK(reduce(side, TUTTI_ALGO_NONE, TUTTI_FLOAT32, TUTTI_SUM, 100000, true) ==
                TUTTI_ERR_PEER_DEAD);
    RANKS_CHECK(tutti_comm_status(side->comm, &fault) == TUTTI_ERR_PEER_DEAD && fault.peer == 3);
    return 0;
}

static int live(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const struct scenario *scenario = ranks->context;
    static int (*const endings[])(const struct side *) = {side_run, disagree, die};
    struct side side = {.ranks = ranks,
                        .scenario = scenario,
                        .rank = rank,
                        .send = malloc(CUDA_MOST_BYTES),
                        .recv = malloc(CUDA_MOST_BYTES),
                        .all = ranks->shared};
    int failed = 0;
    RANKS_CHECK(side.send && side.recv);
    for (int i = 0; i < (scenario->processes ? 3 : 2) && !failed; i++) {
        char text[8192];
        RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &side.comm) == TUTTI_OK);
        tutti_comm_describe(side.comm, text, sizeof text);
        side.staged = strstr(text, "arena: in the host's memory") != NULL;
        side.proxied = strstr(text, "a host thread stages") != NULL;
        /* Only where there are ranks that have no link to the one. */
        if (i == 0 || scenario->topology.kind == TUTTI_TOPOLOGY_HYBRID_CUBE_MESH ||
            (scenario->ring && scenario->topology.size < 6))
            failed = endings[i](&side);
        tutti_comm_destroy(side.comm);
    }
    free(side.send);
    free(side.recv);
    return failed;
}

static int scenario_run(const char *name, struct topology_matrix matrix, bool processes)
{
    struct scenario scenario = {.name = name, .matrix = matrix, .processes = processes};
    char path[] = "/tmp/tutti-test-topologies-XXXXXX";
    if (!ranks_fit(matrix.size)) {
        printf("skipped: %s: %d ranks need as many GPUs, or TUTTI_ALLOW_OVERLAPPING_DEVICES=1\n",
               name, (int)matrix.size);
        return 0;
    }
    topology_recognise(&matrix, &scenario.topology);
    scenario.ring = scenario.topology.kind == TUTTI_TOPOLOGY_UNKNOWN && scenario.topology.has_ring;
    for (int leaf = 0; leaf < matrix.size; leaf++)
        scenario.order[leaf] = leaf;
    if (scenario.topology.kind == TUTTI_TOPOLOGY_HYBRID_CUBE_MESH)
        topology_quads_order(&scenario.topology, scenario.order);
    scenario.pool = pool_create(matrix.size, scenario.order, (uint64_t)matrix.size);
    int fd = mkstemp(path);
    if (fd < 0 || file_write(path, &matrix) != 0 ||
        tutti_op_create_premul_sum(POOL_SCALAR, &scenario.premul_sum) != TUTTI_OK)
        abort();
    setenv("TUTTI_TOPOLOGY_FILE", path, 1);
    struct ranks *ranks = ranks_create(matrix.size, processes ? matrix.size : 0,
                                       (size_t)MOST_RANKS * CHAIN_COUNT * 16);
    ranks->context = &scenario;
    int failures = ranks_run(ranks, live);
    if (failures)
        printf("failed: %s (%s)\n", name, scenario.topology.reason);
    ranks_destroy(ranks);
    pool_destroy(scenario.pool);
    tutti_op_destroy(scenario.premul_sum);
    close(fd);
    unlink(path);
    return failures;
}

/* Of as many devices as there may be, which cost more. */
static int cuda_run(bool processes)
{
    int failures = scenario_run("pair", full_make(2), processes);
    failures += scenario_run("three", full_make(3), processes);
    failures += scenario_run("ring of 4", shuffle(ring_make(4)), processes);
    failures += scenario_run("switch of 4", full_make(4), processes);
    failures += scenario_run("shuffled cube mesh", shuffle(mesh_make()), processes);
    if (ranks_short())
        return failures;
    failures += scenario_run("cube mesh", mesh_make(), processes);
    failures += scenario_run("ring of 5", ring_make(5), processes);
    failures += scenario_run("ring", shuffle(ring_make(8)), processes);
    failures += scenario_run("switch", full_make(8), processes);
    return failures;
}

int main(int argc, char **argv)
{
    int skip = ranks_skip(2);
    if (skip)
        return skip;
    bool processes = argc == 2 && strcmp(argv[1], "processes") == 0;
    if (device_is_cuda())
        return cuda_run(processes) ? 1 : 0;
    struct topology_matrix missing = mesh_make(), one_way = mesh_make();
    link_pair(&missing, 1, 2, 0);
    one_way.links[6][2] = 0;
    int failures = scenario_run("cube mesh", mesh_make(), processes);
    failures += scenario_run("shuffled cube mesh", shuffle(mesh_make()), processes);
    failures += scenario_run("ring of 5", ring_make(5), processes);
    failures += scenario_run("one link missing", shuffle(missing), processes);
    failures += scenario_run("one link one way", one_way, processes);
    failures += scenario_run("islands", islands_make(0), processes);
    failures += scenario_run("ring", shuffle(ring_make(8)), processes);
    failures += scenario_run("switch", full_make(8), processes);
    if (ranks_short())
        return failures ? 1 : 0;
    failures += scenario_run("bridge", islands_make(1), processes);
    failures += scenario_run("two bridges", islands_make(2), processes);
    failures += scenario_run("pair", full_make(2), processes);
    failures += scenario_run("three", full_make(3), processes);
    failures += scenario_run("one", full_make(1), processes);
    failures += scenario_run("ring of 12", shuffle(ring_make(12)), processes);
    for (int i = 0; i < RANDOM_MATRICES; i++)
        failures += scenario_run("random", random_make(), processes);
    return failures ? 1 : 0;
}
