/* SPDX-License-Identifier: MIT */
/*
 * A long random life of one CUDA communicator: operations of random size, dtype, operation,
 * algorithm and placement, in two captured graphs and as eager calls, launched in random order
 * without a pause and replayed, with new graphs now and then; begun just before the sequence
 * reaches 2^32, and once more just before it no longer fits a flag. Every element of every result
 * is compared with the scalar reference, which is what the CPU gives.
 *
 * usage: test_random_graphs threads|processes WORLD_SIZE [programmatic]
 * TUTTI_TEST_OPERATIONS says how many operations.
 */
#include "../../tools/gpu.h"
#include "device.h"
#include "pool.h"
#include "ranks.h"
#include "reference.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    OPERATIONS = 100000,
    OPERATIONS_SHORT = 2000,
    MOST_BYTES = 700 * 1024,
    SMALL_BYTES = 16 * 1024, /* nine of ten are smaller */
    REGION_BYTES = 6 << 20,
    BATCH = 24,
    BATCHES = 3,  /* two graphs, and calls */
    ROUNDS = 6,   /* between new batches */
    LAUNCHES = 6, /* of a round */
    GUARD = 64,
    POISON = 0xa5,
};

static const uint64_t starts[] = {UINT32_MAX - 300, (UINT64_C(1) << 48) - 16 - 300};

struct context {
    const struct pool *pool;
    const int *leaf_order;
    tutti_op_t premul_sum;
    bool programmatic;
    int operations;
};

/* Equal on all ranks but for `at` and in_place. */
struct operation {
    enum tutti_dtype dtype;
    tutti_op_t op;
    enum tutti_algo algo;
    size_t count;
    size_t offset;
    size_t at[2];   /* of input and output in their regions */
    int max_blocks; /* 0: no limit */
    bool in_place;
    bool barrier;
};

/* What is enqueued together. */
struct batch {
    struct operation operations[BATCH];
    int count;
    size_t used; /* of the regions */
    bool launched;
    unsigned char *inputs, *outputs; /* on the device */
    unsigned char *host;             /* the inputs */
    void *graph;                     /* NULL: its operations are called one by one */
};

/* One rank. */
struct life {
    struct ranks *ranks;
    const struct context *context;
    int rank;
    tutti_comm_t *comm;
    tutti_stream_t stream;
    struct batch batches[BATCHES];
    unsigned char *fetched;
    unsigned char *scalars;                    /* on the device, one for each dtype */
    tutti_op_t from_memory[TUTTI_DTYPE_COUNT]; /* premultiplied sums by these; of bool none */
    uint64_t random;                           /* the same on all ranks */
    int done;
};

static uint64_t below(uint64_t *random, uint64_t bound)
{
    return pool_random(random) % bound;
}

/* ---- operations ------------------------------------------------------------------------------ */

/* 0 to most, each binary order of magnitude as likely as the next. */
static size_t bytes_make(uint64_t *random)
{
    uint64_t most = below(random, 10) ? SMALL_BYTES : MOST_BYTES;
    uint64_t bytes = below(random, UINT64_C(1) << (1 + below(random, 20)));
    return bytes % (most + 1);
}

static tutti_op_t op_of(const struct life *life, const struct operation *o)
{
    if (o->op != TUTTI_PREMUL_SUM)
        return o->op;
    return o->offset % 2 ? life->from_memory[o->dtype] : life->context->premul_sum;
}

/* The table's choice, one hop, two, or what takes the operation: a ring, too, where the order of
 * the inputs is nothing to the result. */
static enum tutti_algo algo_make(struct life *life, const struct operation *o)
{
    enum tutti_algo algo = (enum tutti_algo)below(&life->random, TUTTI_ALGO_RING + 1);
    struct tutti_call_options options = {.struct_size = sizeof options, .algo = algo};
    if ((algo == TUTTI_ALGO_RING && reference_has_order(o->dtype, o->op)) ||
        tutti_comm_algorithm(life->comm, o->count, o->dtype, op_of(life, o), &options, &algo, NULL))
        return TUTTI_ALGO_NONE;
    return options.algo;
}

static struct operation operation_make(struct life *life)
{
    uint64_t *random = &life->random;
    struct operation o = {.barrier = below(random, 32) == 0};
    do {
        o.dtype = (enum tutti_dtype)below(random, TUTTI_DTYPE_COUNT);
        o.op = (tutti_op_t)(uintptr_t)(1 + below(random, REFERENCE_OPS - 1));
    } while (!reference_has(o.dtype, o.op));
    o.count = o.barrier ? 0 : bytes_make(random) / tutti_dtype_size(o.dtype);
    o.offset = below(random, POOL_PERIOD);
    o.algo = algo_make(life, &o);
    o.max_blocks = below(random, 2) ? 1 + (int)(below(random, 64) + 21 * life->rank) % 64 : 0;
    uint64_t own = pool_random(random) + (uint64_t)life->rank * 5;
    o.in_place = own >> 40 & 1;
    for (int side = 0; side < 2; side++)
        o.at[side] = GUARD + (own >> 6 * side) % GUARD / tutti_dtype_size(o.dtype) *
                                 tutti_dtype_size(o.dtype);
    return o;
}

static enum tutti_status operation_enqueue(const struct life *life, const struct batch *batch,
                                           const struct operation *o)
{
    const unsigned char *send = batch->inputs + o->at[0];
    unsigned char *recv = batch->outputs + o->at[1];
    size_t bytes = o->count * tutti_dtype_size(o->dtype);
    struct tutti_call_options options = {
        .struct_size = sizeof options, .algo = o->algo, .max_blocks = o->max_blocks};
    if (o->barrier)
        return device_barrier(life->comm, life->stream);
    if (o->in_place) {
        if (bytes && !gpu_copy_async(recv, send, bytes, life->stream))
            return TUTTI_ERR_CUDA;
        send = recv;
    }
    return device_all_reduce(send, recv, o->count, o->dtype, op_of(life, o), life->comm,
                             life->stream, &options);
}

/* ---- batches --------------------------------------------------------------------------------- */

static int batch_enqueue(struct life *life, struct batch *batch)
{
    struct ranks *ranks = life->ranks;
    const int rank = life->rank;
    for (int i = 0; i < batch->count; i++)
        RANKS_CHECK(operation_enqueue(life, batch, &batch->operations[i]) == TUTTI_OK);
    return 0;
}

/* New operations and their inputs; in a graph if it has one. */
static int batch_make(struct life *life, struct batch *batch, bool captured)
{
    struct ranks *ranks = life->ranks;
    const int rank = life->rank;
    batch->count = 0;
    batch->used = 0;
    while (batch->count < BATCH) {
        struct operation o = operation_make(life);
        size_t bytes = o.count * tutti_dtype_size(o.dtype);
        if (batch->used + bytes + 4 * GUARD > REGION_BYTES)
            break;
        o.at[0] += batch->used;
        o.at[1] += batch->used;
        pool_input(life->context->pool, rank, o.dtype, o.offset, o.count, batch->host + o.at[0]);
        batch->used += (bytes + 4 * GUARD - 1) / GUARD * GUARD;
        batch->operations[batch->count++] = o;
    }
    RANKS_CHECK(gpu_copy(batch->inputs, batch->host, batch->used));
    gpu_graph_destroy(batch->graph);
    batch->graph = NULL;
    if (!captured)
        return 0;
    RANKS_CHECK(gpu_capture_begin(life->stream));
    int failed = batch_enqueue(life, batch);
    batch->graph = gpu_capture_end(life->stream);
    RANKS_CHECK(failed || batch->graph);
    return failed;
}

static int batch_launch(struct life *life, struct batch *batch)
{
    struct ranks *ranks = life->ranks;
    const int rank = life->rank;
    batch->launched = true;
    life->done += batch->count;
    if (!batch->graph)
        return batch_enqueue(life, batch);
    RANKS_CHECK(gpu_graph_launch(batch->graph, life->stream));
    return 0;
}

static bool is_poison(const unsigned char *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (bytes[i] != POISON)
            return false;
    return true;
}

static const char *operation_wrong(const struct life *life, const struct operation *o,
                                   size_t *index)
{
    size_t bytes = o->count * tutti_dtype_size(o->dtype);
    const unsigned char *result = life->fetched + o->at[1];
    *index = 0;
    if (!pool_is_result(life->context->pool, o->dtype, o->op, o->offset, o->count, result, index))
        return "another result";
    if (!is_poison(result - GUARD / 2, GUARD / 2) || !is_poison(result + bytes, GUARD / 2))
        return "written beside the output";
    return NULL;
}

static int batch_check(struct life *life, const struct batch *batch)
{
    struct ranks *ranks = life->ranks;
    const int rank = life->rank;
    size_t index;
    char text[192];
    RANKS_CHECK(gpu_copy(life->fetched, batch->outputs, batch->used));
    for (int i = 0; i < batch->count; i++) {
        const struct operation *o = &batch->operations[i];
        const char *wrong = operation_wrong(life, o, &index);
        if (!wrong)
            continue;
        snprintf(text, sizeof text,
                 "near operation %d, %s, number %d: %s of %zu %s, %s%s: %s at %zu", life->done,
                 batch->graph ? "graph" : "eager", i, tutti_op_name(o->op), o->count,
                 tutti_dtype_name(o->dtype), tutti_algo_name(o->algo),
                 o->in_place ? ", in place" : "", wrong, index);
        return ranks_fail(ranks, rank, __FILE__, __LINE__, text);
    }
    return 0;
}

/* ---- a life ---------------------------------------------------------------------------------- */

/* The batches in random order, some again, without a pause; then what came of them. */
static int round_run(struct life *life)
{
    struct ranks *ranks = life->ranks;
    const int rank = life->rank;
    int failed = 0;
    for (int b = 0; b < BATCHES; b++) {
        RANKS_CHECK(gpu_fill(life->batches[b].outputs, POISON, life->batches[b].used));
        life->batches[b].launched = false;
    }
    for (int i = 0; i < LAUNCHES && !failed; i++)
        failed = batch_launch(life, &life->batches[below(&life->random, BATCHES)]);
    if (failed)
        return failed;
    RANKS_CHECK(gpu_stream_synchronize(life->stream));
    struct tutti_fault fault = {.struct_size = sizeof fault};
    if (tutti_comm_status(life->comm, &fault)) {
        char text[512];
        tutti_fault_format(&fault, text, sizeof text);
        return ranks_fail(ranks, rank, __FILE__, __LINE__, text);
    }
    for (int b = 0; b < BATCHES && !failed; b++)
        if (life->batches[b].launched)
            failed = batch_check(life, &life->batches[b]);
    return failed;
}

/* Nothing has written to the inputs. */
static int inputs_check(struct life *life)
{
    struct ranks *ranks = life->ranks;
    const int rank = life->rank;
    for (int b = 0; b < BATCHES; b++) {
        const struct batch *batch = &life->batches[b];
        RANKS_CHECK(gpu_copy(life->fetched, batch->inputs, batch->used));
        RANKS_CHECK(memcmp(life->fetched, batch->host, batch->used) == 0);
    }
    return 0;
}

static int life_run(struct life *life, uint64_t start, int operations)
{
    struct ranks *ranks = life->ranks;
    const int rank = life->rank;
    int failed = 0;
    RANKS_CHECK(device_sequence_set(life->comm, start));
    for (life->done = 0; life->done < operations && !failed;) {
        for (int b = 0; b < BATCHES && !failed; b++)
            failed = batch_make(life, &life->batches[b], b < BATCHES - 1);
        for (int i = 0; i < ROUNDS && !failed; i++)
            failed = round_run(life);
        if (!failed)
            failed = inputs_check(life);
    }
    if (!failed && rank == 0)
        printf("%d operations from sequence %llu on\n", life->done, (unsigned long long)start);
    return failed;
}

static int scalars_open(struct life *life)
{
    enum { APART = 16 };
    struct ranks *ranks = life->ranks;
    const int rank = life->rank;
    unsigned char scalars[TUTTI_DTYPE_COUNT * APART] = {0};
    RANKS_CHECK(life->scalars = gpu_alloc(sizeof scalars));
    for (int d = 0; d < TUTTI_DTYPE_COUNT; d++) {
        pool_scalar((enum tutti_dtype)d, scalars + (size_t)d * APART);
        RANKS_CHECK(d == TUTTI_BOOL || tutti_op_create_premul_sum_device(
                                           life->scalars + (size_t)d * APART, (enum tutti_dtype)d,
                                           &life->from_memory[d]) == TUTTI_OK);
    }
    RANKS_CHECK(gpu_copy(life->scalars, scalars, sizeof scalars));
    return 0;
}

static int life_open(struct life *life)
{
    struct ranks *ranks = life->ranks;
    const int rank = life->rank;
    int failed = scalars_open(life);
    if (failed)
        return failed;
    RANKS_CHECK(gpu_stream_create(&life->stream));
    RANKS_CHECK(life->fetched = malloc(REGION_BYTES));
    for (int b = 0; b < BATCHES; b++) {
        struct batch *batch = &life->batches[b];
        RANKS_CHECK(batch->inputs = gpu_alloc(REGION_BYTES));
        RANKS_CHECK(batch->outputs = gpu_alloc(REGION_BYTES));
        RANKS_CHECK(batch->host = calloc(1, REGION_BYTES));
    }
    return 0;
}

static void life_close(struct life *life)
{
    for (int b = 0; b < BATCHES; b++) {
        struct batch *batch = &life->batches[b];
        gpu_graph_destroy(batch->graph);
        gpu_free(batch->inputs);
        gpu_free(batch->outputs);
        free(batch->host);
    }
    for (int d = 0; d < TUTTI_DTYPE_COUNT; d++)
        tutti_op_destroy(life->from_memory[d]);
    gpu_free(life->scalars);
    free(life->fetched);
    gpu_stream_destroy(life->stream);
}

static int live(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const struct context *context = ranks->context;
    struct tutti_comm_options options = {.struct_size = sizeof options,
                                         .leaf_order = context->leaf_order,
                                         .programmatic_launch = context->programmatic
                                                                    ? TUTTI_PROGRAMMATIC_ON
                                                                    : TUTTI_PROGRAMMATIC_OFF};
    struct life life = {.ranks = ranks, .context = context, .rank = rank, .random = 30};
    int lives = sizeof starts / sizeof *starts, failed = life_open(&life);
    for (int i = 0; i < lives && !failed; i++) {
        RANKS_CHECK(ranks_join(ranks, rank, store, &options, &life.comm) == TUTTI_OK);
        failed = life_run(&life, starts[i], context->operations / lives);
        tutti_comm_destroy(life.comm);
    }
    life_close(&life);
    return failed;
}

int main(int argc, char **argv)
{
    static const int leaf_order[] = {2, 0, 3, 1};
    if (argc < 3)
        return 2;
    if (!device_is_cuda()) {
        puts("skipped: of GPUs: set TUTTI_TEST_DEVICE=cuda");
        return 77;
    }
    int size = atoi(argv[2]), skip = ranks_skip(size);
    if (skip)
        return skip;
    struct context context = {
        .leaf_order = size == 4 ? leaf_order : NULL,
        .programmatic = argc > 3 && strcmp(argv[3], "programmatic") == 0,
        .operations = ranks_operations(OPERATIONS, OPERATIONS_SHORT),
    };
    struct pool *pool = pool_create(size, context.leaf_order, 11);
    context.pool = pool;
    if (tutti_op_create_premul_sum(POOL_SCALAR, &context.premul_sum) != TUTTI_OK)
        return 1;
    struct ranks *ranks = ranks_create(size, strcmp(argv[1], "threads") == 0 ? 0 : size, 0);
    ranks->context = &context;
    int failures = ranks_run(ranks, live);
    ranks_destroy(ranks);
    tutti_op_destroy(context.premul_sum);
    pool_destroy(pool);
    return failures ? 1 : 0;
}
