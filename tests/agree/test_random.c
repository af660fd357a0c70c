/* SPDX-License-Identifier: MIT */
/*
 * A long random life of one communicator: every collective, v-forms and messages, of random size,
 * dtype, operation, algorithm, root, placement and limit of blocks, with cores far apart and near,
 * with barriers among them, that begin just before the sequence, the step and the counts of the
 * lane PAIR wrap. Every element of every result is compared with the scalar reference.
 *
 * usage: test_random threads|processes|symmetric WORLD_SIZE; TUTTI_TEST_OPERATIONS says how many
 * operations.
 * symmetric: processes whose operands lie in symmetric memory.
 */
#include "../../tools/collective.h"
#include "../../tools/collective_call.h"
#include "comm/comm.h"
#include "cpu/transport/group.h"
#include "cpu/transport/pair.h"
#include "device.h"
#include "forced.h"
#include "pool.h"
#include "ranks.h"
#include "reference.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    OPERATIONS = 100000,
    OPERATIONS_SHORT = 4000,
    MOST_BYTES = 300 * 1024,
    SMALL_BYTES = 4096, /* nine of ten are smaller */
    LINE = 64,
};

struct context {
    const struct pool *pool;
    const int *leaf_order;
    tutti_op_t premul_sum;
    bool symmetric;
};

/* Equal on all ranks. */
struct operation {
    enum tutti_collective collective;
    enum tutti_dtype dtype;
    tutti_op_t op;
    enum tutti_algo algo;
    int kernel;   /* forced half of the time on a GPU */
    size_t count; /* the most that a block has */
    size_t offset;
    int root;
    bool copies;   /* rather than zero-copy, on all ranks or on every other one */
    uint64_t bits; /* for whatever else differs */
};

static uint64_t below(uint64_t *random, uint64_t bound)
{
    return pool_random(random) % bound;
}

/* 0 to most, each binary order of magnitude as likely as the next. */
static size_t bytes_make(uint64_t *random)
{
    uint64_t most = below(random, 10) ? SMALL_BYTES : MOST_BYTES;
    uint64_t bytes = below(random, UINT64_C(1) << (1 + below(random, 20)));
    return bytes % (most + 1);
}

static struct operation operation_make(uint64_t *random, int size)
{
    struct operation o;
    do {
        o.dtype = (enum tutti_dtype)below(random, TUTTI_DTYPE_COUNT);
        o.op = (tutti_op_t)(uintptr_t)(1 + below(random, REFERENCE_OPS - 1));
    } while (!reference_has(o.dtype, o.op));
    o.collective = TUTTI_COLLECTIVE_ALL_REDUCE;
    if (below(random, 4))
        o.collective = collective_draw(pool_random(random));
    o.algo = (enum tutti_algo)below(random, TUTTI_ALGO_TWO_SHOT + 1);
    o.kernel = FORCED_KERNEL + (int)below(random, FORCED_ANY);
    o.count = bytes_make(random) / tutti_dtype_size(o.dtype);
    o.offset = below(random, POOL_PERIOD);
    o.root = (int)below(random, (uint64_t)size);
    o.copies = below(random, 2);
    o.bits = pool_random(random);
    return o;
}

/* A kernel has its dtypes and sizes. */
static bool is_taken(const struct operation *o, tutti_comm_t *comm, int asked)
{
    struct tutti_call_options options = {.struct_size = sizeof options,
                                         .algo = forced_algo(comm, asked)};
    enum tutti_algo algo;
    return tutti_comm_algorithm(comm, o->count, o->dtype, TUTTI_MAX, &options, &algo, NULL) ==
           TUTTI_OK;
}

static enum tutti_algo algo_of(const struct operation *o, tutti_comm_t *comm)
{
    if (!device_is_cuda())
        return o->algo;
    if (o->bits >> 61 & 1 && is_taken(o, comm, o->kernel))
        return forced_algo(comm, o->kernel);
    return is_taken(o, comm, o->algo) ? o->algo : TUTTI_ALGO_NONE;
}

/* Of a v-form a third of the blocks are empty, and the others have any length. */
static void counts_make(const struct operation *o, int size, size_t *counts)
{
    uint64_t random = o->bits;
    for (int r = 0; r < size; r++)
        counts[r] = !collectives[o->collective].varies ? o->count
                    : below(&random, 3)                ? below(&random, o->count + 1)
                                                       : 0;
}

struct operands {
    unsigned char *send, *recv;
};

/* In place on all ranks, on none, or on every other one. */
static struct operands operands_make(const struct operation *o, const struct pool_call *call,
                                     int size, unsigned char *memory)
{
    const size_t unit = tutti_dtype_size(reference_component(o->dtype));
    const struct collective *collective = &collectives[o->collective];
    const uint64_t own = o->bits + (uint64_t)call->rank * 5;
    const bool in_place =
        !collective->apart && (o->bits >> 62 == 3 ? (uint64_t)call->rank : o->bits >> 63) & 1;
    struct operands operands;
    operands.send = memory + own % LINE / unit * unit;
    operands.recv = operands.send + (size_t)size * MOST_BYTES + LINE;
    const size_t first = pool_own_block(call) * tutti_dtype_size(o->dtype);
    if (in_place && collective->recv_all)
        operands.send = operands.recv + first;
    else if (in_place)
        operands.recv = operands.send + first;
    return operands;
}

static bool operation_run(const struct context *context, const struct operation *o, int rank,
                          tutti_comm_t *comm, unsigned char *memory)
{
    const int size = comm->world_size;
    const tutti_op_t op = o->op == TUTTI_PREMUL_SUM ? context->premul_sum : o->op;
    size_t index, counts[TUTTI_MAX_RANKS];
    const struct pool_call call = {o->collective, rank,      o->root, o->dtype,
                                   o->op,         o->offset, counts};
    const bool copies = o->copies && (o->bits >> 22 & 1 || rank % 2);
    struct tutti_call_options options = {.struct_size = sizeof options,
                                         .flags = copies ? TUTTI_CALL_NO_ZERO_COPY : 0};
    if (o->bits >> 58 & 1)
        options.max_blocks = 1 + (int)(((o->bits >> 50) + (uint64_t)rank * 21) & 63);
    counts_make(o, size, counts);
    const size_t sent = pool_send_count(context->pool, &call);
    const size_t received = pool_recv_count(context->pool, &call);
    const struct operands at = operands_make(o, &call, size, memory);
    if (!device_is_cuda()) {
        cpu_group_of(comm->peers)->distance.far =
            ((o->bits >> 20) + (uint64_t)rank) & 1; /* ranks need not agree */
        if (cpu_group_of(comm->peers)->areas.exchange_bytes &&
            cpu_group_of(comm->peers)->areas.piece_buffer_bytes)
            cpu_group_of(comm->peers)->limits.pushes = o->bits >> 21 & 1;
    }
    if (collectives[o->collective].chosen)
        options.algo = algo_of(o, comm);
    memset(at.recv, 0x5a, received * tutti_dtype_size(o->dtype));
    pool_input(context->pool, rank, o->dtype, o->offset, sent, at.send);
    return collective_call(o->collective, sent ? at.send : NULL, received ? at.recv : NULL, counts,
                           o->dtype, op, o->root, comm, &options) == TUTTI_OK &&
           pool_is_collective(context->pool, &call, at.recv, &index);
}

/* Now and then all ranks meet, or two of them. */
static bool barrier_run(const struct operation *o, int rank, tutti_comm_t *comm)
{
    int size = tutti_comm_world_size(comm);
    int pair[] = {(int)(o->bits >> 8) & 1, 2};
    if (o->bits % 16 == 0)
        return tutti_barrier(comm, NULL, 0, TUTTI_STREAM_DEFAULT) == TUTTI_OK;
    if (o->bits % 16 == 1 && size > 2 && (rank == pair[0] || rank == pair[1]))
        return tutti_barrier(comm, pair, 2, TUTTI_STREAM_DEFAULT) == TUTTI_OK;
    return true;
}

/* As if so many messages had gone each way: their numbers wrap after a few more. */
static void messages_set(const tutti_comm_t *comm)
{
    struct cpu_group *group = cpu_group_of(comm->peers);
    const uint64_t messages = LAYOUT_WINDOW * ((UINT64_C(1) << 32) - 4);
    for (int r = 0; r < comm->world_size; r++) {
        group->counts.sent[r] = group->counts.received[r] = group->counts.heard[r] = messages;
        group->counts.offers[r] = group->counts.answers[r] = UINT32_MAX - 4;
        for (uint64_t m = messages; m < messages + LAYOUT_WINDOW; m++) {
            *message_read(group, comm->rank, r, false, m) = message_number(m) - 1;
            *message_read(group, comm->rank, r, true, m) = message_number(m) - 1;
        }
    }
}

static int live(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const struct context *context = ranks->context;
    struct tutti_comm_options options = {.struct_size = sizeof options,
                                         .leaf_order = context->leaf_order};
    const size_t bytes = 2 * ((size_t)ranks->size * MOST_BYTES + 2 * LINE);
    tutti_symm_group_t *group = NULL;
    tutti_comm_t *comm;
    void *memory;
    uint64_t random = 20;
    if (context->symmetric) {
        RANKS_CHECK(tutti_symm_group("random", rank, ranks->size, store, &group) == TUTTI_OK);
        RANKS_CHECK(tutti_symm_alloc(group, TUTTI_DEVICE_CPU, bytes, &memory) == TUTTI_OK);
        RANKS_CHECK(tutti_symm_rendezvous(memory, RANKS_TIMEOUT_MS, NULL) == TUTTI_OK);
    } else {
        memory = malloc(bytes);
        RANKS_CHECK(memory);
    }
    RANKS_CHECK(ranks_join(ranks, rank, store, &options, &comm) == TUTTI_OK);
    const bool has_counts = comm->backend == &cpu_backend; /* and not in the nodes of hosts */
    if (comm->backend->create)
        RANKS_CHECK(device_sequence_set(comm, UINT32_MAX - 200));
    cpu_group_of(comm->peers)->counts.step = UINT32_MAX - 50;
    cpu_group_of(comm->peers)->counts.swaps = UINT32_MAX - 10;
    if (has_counts) {
        messages_set(comm);
        RANKS_CHECK(tutti_barrier(comm, NULL, 0, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    }

    const int operations = ranks_operations(OPERATIONS, OPERATIONS_SHORT);
    for (int i = 0; i < operations; i++) {
        struct operation o = operation_make(&random, ranks->size);
        if (operation_run(context, &o, rank, comm, memory) && barrier_run(&o, rank, comm))
            continue;
        char text[512];
        snprintf(text, sizeof text, "operation %d: %s, %s of %zu %s, root %d, %s%s: %s", i,
                 collective_name(o.collective), tutti_op_name(o.op), o.count,
                 tutti_dtype_name(o.dtype), o.root, tutti_algo_name(o.algo),
                 o.copies ? ", copying" : "", tutti_last_error());
        return ranks_fail(ranks, rank, __FILE__, __LINE__, text);
    }
    RANKS_CHECK(!has_counts || (comm->peers->sequence > UINT32_MAX &&
                                cpu_group_of(comm->peers)->counts.step < UINT32_MAX / 2));
    RANKS_CHECK(!has_counts || ranks->size == 1 ||
                cpu_group_of(comm->peers)->counts.sent[rank] > LAYOUT_WINDOW * (UINT64_C(1) << 32));
    RANKS_CHECK(!has_counts || ranks->size != 2 ||
                cpu_group_of(comm->peers)->counts.swaps < UINT32_MAX / 2);
    tutti_comm_destroy(comm);
    if (!group)
        free(memory);
    tutti_symm_group_destroy(group);
    return 0;
}

int main(int argc, char **argv)
{
    static const int leaf_order[] = {2, 0, 3, 1};
    if (argc != 3)
        return 2;
    int size = atoi(argv[2]);
    int skip = ranks_skip(size);
    if (!skip && strcmp(argv[1], "symmetric") == 0)
        skip = ranks_skip_cuda("of CPU ranks");
    if (skip)
        return skip;
    struct context context = {.leaf_order = size == 4 ? leaf_order : NULL,
                              .symmetric = strcmp(argv[1], "symmetric") == 0};
    struct pool *pool = pool_create(size, context.leaf_order, 7);
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
