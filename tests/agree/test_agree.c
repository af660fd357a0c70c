/* SPDX-License-Identifier: MIT */
/*
 * Every all-reduce gives the bits of the scalar reference on every rank: algorithm x dtype x
 * operation x count, in place, out of place or some ranks so and some so, at any address that the
 * dtype allows, and touches nothing else.
 *
 * usage: test_agree threads|processes|isa|symmetric WORLD_SIZE...
 * isa: processes that reduce with different instruction sets.
 * symmetric: processes whose operands lie in symmetric memory.
 */
#include "base/layout.h"
#include "comm/comm.h"
#include "cpu/reduce/reduce.h"
#include "cpu/transport/group.h"
#include "device.h"
#include "forced.h"
#include "gpu.h"
#include "pool.h"
#include "ranks.h"
#include "reference.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    GUARD = 64,
    POISON = 0xa5,
    FEW_RANKS = 9,                               /* more do a smaller round */
    PIECE_BYTES = LAYOUT_PIECE_BUFFER_BYTES / 8, /* of the largest arena */
    RING_BYTES = 5 * PIECE_BYTES / 2,            /* two whole pieces of a ring and a part */
    MOST_BYTES = 3 * LAYOUT_EXCHANGE_BYTES,      /* five pieces that two ranks push */
    CUDA_MOST_BYTES = 20 << 20,                  /* a pipeline turns over several times */
    STANDIN_MOST_BYTES = 2 << 20,                /* the same: its devices hold few blocks */
};

/* How an operation is asked for. */
struct way {
    int algo;                                                   /* or a kernel: forced.h */
    enum { COPIES_NEVER, COPIES_ALWAYS, COPIES_RANK_0 } copies; /* rather than zero-copy */
};

static const struct way ways[] = {
    {TUTTI_ALGO_NONE, COPIES_NEVER},
    {TUTTI_ALGO_ONE_SHOT, COPIES_NEVER},
    {TUTTI_ALGO_TWO_SHOT, COPIES_NEVER},
    {TUTTI_ALGO_ONE_SHOT, COPIES_ALWAYS},
    {TUTTI_ALGO_TWO_SHOT, COPIES_ALWAYS},
    {TUTTI_ALGO_TWO_SHOT, COPIES_RANK_0},
    {TUTTI_ALGO_HYBRID_CUBE_MESH, COPIES_NEVER}, /* last: of 8 ranks only */
};

/* On a GPU: by the table, by its rows for one and two hops, and each transport. */
static const struct way cuda_ways[] = {
    {TUTTI_ALGO_NONE, COPIES_NEVER},
    {TUTTI_ALGO_ONE_SHOT, COPIES_NEVER},
    {TUTTI_ALGO_TWO_SHOT, COPIES_NEVER},
    {FORCED(ONE_SHOT_LL), COPIES_NEVER},
    {FORCED(ONE_SHOT_LINES), COPIES_NEVER},
    {FORCED(TWO_SHOT_LINES), COPIES_NEVER},
    {FORCED(TWO_SHOT_PIPELINED), COPIES_NEVER},
    {TUTTI_ALGO_RING, COPIES_NEVER},
    {TUTTI_ALGO_HYBRID_CUBE_MESH, COPIES_NEVER}, /* last, as above */
};

enum {
    WAYS = sizeof ways / sizeof *ways,
    CUDA_WAYS = sizeof cuda_ways / sizeof *cuda_ways,
    MOST_WAYS = CUDA_WAYS,
};

struct context {
    const struct pool *pool;
    const int *leaf_order;
    bool mixed_isa;
    bool symmetric;
};

struct operation {
    const struct way *way;
    int way_index;
    enum tutti_dtype dtype;
    tutti_op_t op;
    size_t count;
    uint64_t random; /* the same on all ranks: where the operands lie */
};

/* One rank's side. */
struct side {
    struct ranks *ranks;
    const struct context *context;
    tutti_comm_t *comm;
    int rank;
    uint64_t random; /* state, the same on all ranks */
    unsigned char *send_memory;
    unsigned char *recv_memory;
    void *scalar;              /* on the device */
    tutti_symm_group_t *group; /* that owns both, or NULL */
    size_t done[MOST_WAYS];    /* operations of each way */
};

static int complain(const struct side *side, const struct operation *o, const char *what,
                    size_t index)
{
    char text[256];
    snprintf(text, sizeof text, "%s of %zu %s, %s (way %d, random %llx): %s at %zu",
             tutti_op_name(o->op), o->count, tutti_dtype_name(o->dtype), forced_name(o->way->algo),
             o->way_index, (unsigned long long)o->random, what, index);
    return ranks_fail(side->ranks, side->rank, __FILE__, __LINE__, text);
}

static bool is_poison(const unsigned char *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (bytes[i] != POISON)
            return false;
    return true;
}

/* In place on all ranks, on none, or on every other one. */
static bool is_in_place(const struct side *side, const struct operation *o)
{
    uint64_t choice = o->random % 3;
    return choice == 2 ? (side->rank + (int)(o->random >> 8)) % 2 : choice == 1;
}

/* The reduction; a premultiplied sum that is to be destroyed: by a number, by a typed scalar, or by
 * one in memory of the device. */
static enum tutti_status op_make(const struct side *side, const struct operation *o, tutti_op_t *op)
{
    uint64_t scalar = 0;
    *op = o->op;
    if (o->op != TUTTI_PREMUL_SUM)
        return TUTTI_OK;
    pool_scalar(o->dtype, &scalar);
    switch (o->random >> 5 & 3) {
    case 0:
        return tutti_op_create_premul_sum_typed(&scalar, o->dtype, op);
    case 1:
        return tutti_op_create_premul_sum(POOL_SCALAR, op);
    default:
        if (!device_is_cuda())
            memcpy(side->scalar, &scalar, sizeof scalar);
        else if (!gpu_copy(side->scalar, &scalar, sizeof scalar))
            return TUTTI_ERR_CUDA;
        return tutti_op_create_premul_sum_device(side->scalar, o->dtype, op);
    }
}

static int operation_run(const struct side *side, const struct operation *o)
{
    const struct pool *pool = side->context->pool;
    size_t width = tutti_dtype_size(o->dtype), bytes = o->count * width, index;
    size_t offset = o->random >> 32;
    uint64_t here = o->random + (uint64_t)side->rank * 7;
    unsigned char *send = side->send_memory + GUARD + (here >> 12) % (GUARD / width) * width;
    unsigned char *recv = side->recv_memory + GUARD + (here >> 18) % (GUARD / width) * width;
    bool in_place = is_in_place(side, o);
    if (in_place)
        recv = send;
    memset(recv - GUARD, POISON, bytes + 2 * GUARD);
    pool_input(pool, side->rank, o->dtype, offset, o->count, send);

    bool copies =
        o->way->copies == COPIES_ALWAYS || (o->way->copies == COPIES_RANK_0 && side->rank == 0);
    struct tutti_call_options options = {.struct_size = sizeof options,
                                         .algo = forced_algo(side->comm, o->way->algo),
                                         .flags = copies ? TUTTI_CALL_NO_ZERO_COPY : 0};
    tutti_op_t op;
    if (op_make(side, o, &op) != TUTTI_OK)
        return complain(side, o, "no operation", 0);
    struct cpu_group *host = cpu_group_of(side->comm->peers);
    if (!device_is_cuda() && host->areas.exchange_bytes && host->areas.piece_buffer_bytes)
        host->limits.pushes = o->random >> 40 & 1;
    if (tutti_all_reduce_with(send, recv, o->count, o->dtype, op, side->comm, TUTTI_STREAM_DEFAULT,
                              &options) != TUTTI_OK)
        return complain(side, o, "failed", 0);
    tutti_op_destroy(op);
    if (!pool_is_result(pool, o->dtype, o->op, offset, o->count, recv, &index))
        return complain(side, o, "another result", index);
    if (!in_place && !pool_is_input(pool, side->rank, o->dtype, offset, o->count, send))
        return complain(side, o, "the input was written", 0);
    if (!is_poison(recv - GUARD, GUARD) || !is_poison(recv + bytes, GUARD))
        return complain(side, o, "written beside the output", 0);
    return 0;
}

/* How many ways the ranks have. */
static int ways_count(const struct side *side)
{
    const int all = device_is_cuda() ? CUDA_WAYS : WAYS;
    return side->ranks->size == 8 ? all : all - 1;
}

/* Whether the communicator takes the operation that way, and to the canonical bits: a transport has
 * its dtypes and sizes, a ring another order. */
static bool is_taken(const struct side *side, const struct operation *o)
{
    if (o->way->algo == TUTTI_ALGO_RING && reference_has_order(o->dtype, o->op))
        return false;
    struct tutti_call_options options = {.struct_size = sizeof options,
                                         .algo = forced_algo(side->comm, o->way->algo)};
    /* A scalar changes nothing about it, and no operation has been created yet. */
    tutti_op_t op = o->op == TUTTI_PREMUL_SUM ? TUTTI_SUM : o->op;
    enum tutti_algo algo;
    return tutti_comm_algorithm(side->comm, o->count, o->dtype, op, &options, &algo, NULL) ==
           TUTTI_OK;
}

/* All ways of one operation. */
static int ways_run(struct side *side, enum tutti_dtype dtype, tutti_op_t op, size_t count)
{
    bool cuda = device_is_cuda();
    for (int w = 0; w < ways_count(side); w++) {
        struct operation operation = {.way = cuda ? &cuda_ways[w] : &ways[w],
                                      .way_index = w,
                                      .dtype = dtype,
                                      .op = op,
                                      .count = count,
                                      .random = pool_random(&side->random)};
        /* Under sanitizers, and with many ranks, a sample. */
        if ((ranks_short() || side->ranks->size > FEW_RANKS) && operation.random >> 20 & 3)
            continue;
        if (cuda && !is_taken(side, &operation))
            continue;
        side->done[w]++;
        int failed = operation_run(side, &operation);
        if (failed)
            return failed;
    }
    return 0;
}

/* Around what fits one unit of each transport, and far beyond. */
static int cuda_counts_run(struct side *side, enum tutti_dtype dtype)
{
    static const size_t bytes[] = {16384, 65536, 131072, 262144, 1 << 20, 2 << 20, 6 << 20};
    const size_t width = tutti_dtype_size(dtype),
                 most = ranks_short() ? STANDIN_MOST_BYTES : CUDA_MOST_BYTES;
    int failed = 0;
    for (size_t i = 0; !failed && i < sizeof bytes / sizeof *bytes && bytes[i] < most; i++) {
        failed = ways_run(side, dtype, TUTTI_SUM, bytes[i] / width);
        if (!failed)
            failed = ways_run(side, dtype, TUTTI_SUM, bytes[i] / width + 1 + i * 2);
    }
    return failed ? failed : ways_run(side, dtype, TUTTI_SUM, most / width - 1);
}

static int counts_run(struct side *side, enum tutti_dtype dtype, tutti_op_t op)
{
    static const size_t small[] = {0, 1, 2, 3, 7, 12, 13, 31, 64, 129, 1000};
    size_t width = tutti_dtype_size(dtype);
    size_t message = (LAYOUT_SMALL_MESSAGE_BYTES - sizeof(struct layout_header)) / width;
    const size_t large[] = {message, message + 1, PIECE_BYTES / width, PIECE_BYTES / width + 1,
                            RING_BYTES / width};
    int failed = 0;
    for (size_t i = 0; !failed && i < sizeof small / sizeof *small; i++)
        failed = ways_run(side, dtype, op, small[i]);
    /* Where the bytes go does not depend on the operation. */
    if (op != TUTTI_SUM || side->ranks->size > FEW_RANKS)
        return failed;
    for (size_t i = 0; !failed && i < sizeof large / sizeof *large; i++)
        failed = ways_run(side, dtype, op, large[i]);
    if (dtype == TUTTI_FLOAT32 && !failed)
        failed = ways_run(side, dtype, op, MOST_BYTES / width);
    if (device_is_cuda() && !failed)
        failed = cuda_counts_run(side, dtype);
    return failed;
}

/* Arenas in the host's memory have no full lines; without arenas there are no transports of
 * devices. */
static bool has_way(const struct side *side, int w)
{
    char text[8192];
    if (!device_is_cuda())
        return true;
    const int algo = cuda_ways[w].algo;
    tutti_comm_describe(side->comm, text, sizeof text);
    if (strstr(text, "arena: none"))
        return algo <= TUTTI_ALGO_TWO_SHOT;
    return !strstr(text, "arena: in the host's memory") ||
           (algo != FORCED(ONE_SHOT_LINES) && algo != FORCED(TWO_SHOT_LINES));
}

static int side_run(struct side *side)
{
    struct ranks *ranks = side->ranks;
    const int rank = side->rank;
    for (int d = 0; d < TUTTI_DTYPE_COUNT; d++) {
        for (int op = 1; op < REFERENCE_OPS; op++) {
            if (!reference_has((enum tutti_dtype)d, (tutti_op_t)(uintptr_t)op))
                continue;
            int failed = counts_run(side, (enum tutti_dtype)d, (tutti_op_t)(uintptr_t)op);
            if (failed)
                return failed;
        }
    }
    for (int w = 0; w < ways_count(side); w++)
        RANKS_CHECK(side->done[w] > 0 || !has_way(side, w));
    return 0;
}

/* Instruction sets that this processor has, in turn. */
static const char *isa_of(int rank)
{
    static const char *const names[] = {"baseline", "avx2", "avx512", "neon"};
    const char *have[4];
    int count = 0;
    for (int i = 0; i < 4; i++)
        if (reduce_isa_named(names[i]))
            have[count++] = names[i];
    return have[rank % count];
}

/* Private memory, or one symmetric allocation for both, or one for each. */
static int memory_open(struct side *side, tutti_store_t *store)
{
    const size_t bytes = (device_is_cuda() ? CUDA_MOST_BYTES : MOST_BYTES) + 4 * GUARD;
    struct ranks *ranks = side->ranks;
    const int rank = side->rank;
    void *send, *recv = NULL;
    side->scalar = device_is_cuda() ? gpu_alloc(8) : malloc(8);
    RANKS_CHECK(side->scalar);
    if (!side->context->symmetric) {
        side->send_memory = aligned_alloc(GUARD, bytes);
        side->recv_memory = aligned_alloc(GUARD, bytes);
        RANKS_CHECK(side->send_memory && side->recv_memory);
        return 0;
    }
    bool two = ranks->size % 2;
    RANKS_CHECK(tutti_symm_group("agree", rank, ranks->size, store, &side->group) == TUTTI_OK);
    RANKS_CHECK(tutti_symm_alloc(side->group, TUTTI_DEVICE_CPU, two ? bytes : 2 * bytes, &send) ==
                TUTTI_OK);
    RANKS_CHECK(tutti_symm_rendezvous(send, RANKS_TIMEOUT_MS, NULL) == TUTTI_OK);
    if (two) {
        RANKS_CHECK(tutti_symm_alloc(side->group, TUTTI_DEVICE_CPU, bytes, &recv) == TUTTI_OK);
        RANKS_CHECK(tutti_symm_rendezvous(recv, RANKS_TIMEOUT_MS, NULL) == TUTTI_OK);
    }
    side->send_memory = send;
    side->recv_memory = two ? recv : side->send_memory + bytes;
    return 0;
}

static void memory_close(struct side *side)
{
    (device_is_cuda() ? gpu_free : free)(side->scalar);
    if (!side->group) {
        free(side->send_memory);
        free(side->recv_memory);
    }
    tutti_symm_group_destroy(side->group);
}

static int agree(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const struct context *context = ranks->context;
    struct tutti_comm_options options = {.struct_size = sizeof options,
                                         .leaf_order = context->leaf_order};
    struct side side = {.ranks = ranks, .context = context, .rank = rank, .random = 42};
    if (context->mixed_isa) {
        setenv("TUTTI_ISA", isa_of(rank), 1);
        char isa[32];
        RANKS_CHECK(tutti_info("isa", isa, sizeof isa) == TUTTI_OK);
        RANKS_CHECK(strcmp(isa, isa_of(rank)) == 0);
    }
    int failed = memory_open(&side, store);
    if (failed)
        return failed;
    RANKS_CHECK(ranks_join(ranks, rank, store, &options, &side.comm) == TUTTI_OK);
    failed = side_run(&side);
    tutti_comm_destroy(side.comm);
    memory_close(&side);
    return failed;
}

static int world_run(const char *kind, int size, const int *leaf_order)
{
    bool threads = strcmp(kind, "threads") == 0;
    struct context context = {.leaf_order = leaf_order,
                              .mixed_isa = strcmp(kind, "isa") == 0,
                              .symmetric = strcmp(kind, "symmetric") == 0};
    struct pool *pool = pool_create(size, leaf_order, (uint64_t)size);
    context.pool = pool;
    struct ranks *ranks = ranks_create(size, threads ? 0 : size, 0);
    ranks->context = &context;
    int failures = ranks_run(ranks, agree);
    ranks_destroy(ranks);
    pool_destroy(pool);
    return failures;
}

int main(int argc, char **argv)
{
    int failures = 0, skip = ranks_skip(2);
    if (argc < 3)
        return 2;
    if (skip)
        return skip;
    if (strcmp(argv[1], "isa") == 0 || strcmp(argv[1], "symmetric") == 0)
        skip = ranks_skip_cuda("of CPU ranks");
    if (skip)
        return skip;
    if (strcmp(argv[1], "isa") == 0 && strcmp(isa_of(0), isa_of(1)) == 0) {
        puts("skipped: this processor has one instruction set only");
        return 77;
    }
    for (int i = 2; i < argc && !failures; i++) {
        int size = atoi(argv[i]), leaf_order[TUTTI_MAX_RANKS];
        if (!ranks_fit(size))
            continue;
        for (int leaf = 0; leaf < size; leaf++) /* 5 has no divisor in common with most sizes */
            leaf_order[leaf] = size % 5 ? (leaf * 5 + 2) % size : size - 1 - leaf;
        failures += world_run(argv[1], size, NULL);
        if (size == 4 || size == 5 || size == 7 || size == 8)
            failures += world_run(argv[1], size, leaf_order);
    }
    return failures ? 1 : 0;
}
