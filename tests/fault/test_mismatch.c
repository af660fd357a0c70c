/* SPDX-License-Identifier: MIT */
/*
 * One rank makes another call than the others: every rank gets MISMATCH with both sides' values,
 * and the ranks live on elsewhere.
 *
 * usage: test_mismatch threads|processes
 */
#include "../../tools/collective.h"
#include "../../tools/collective_call.h"
#include "device.h"
#include "faults.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MEMORY_BYTES = 4 << 20, BEFORE = 2 };

/* A call; scalar is of a premultiplied sum. */
struct call {
    enum tutti_collective collective;
    enum tutti_dtype dtype;
    tutti_op_t op;
    enum tutti_algo algo;
    size_t count;
    double scalar;
};

#define REDUCE(dtype, op, algo, count, scalar)                                                     \
    {                                                                                              \
        TUTTI_COLLECTIVE_ALL_REDUCE, TUTTI_##dtype, TUTTI_##op, TUTTI_ALGO_##algo, count, scalar   \
    }
#define BLOCKS(collective, dtype, op, count)                                                       \
    {                                                                                              \
        TUTTI_COLLECTIVE_##collective, TUTTI_##dtype, op, TUTTI_ALGO_ONE_SHOT, count, 0            \
    }
#define GATHER(dtype, count)      BLOCKS(ALL_GATHER, dtype, NULL, count)
#define SCATTER(dtype, op, count) BLOCKS(REDUCE_SCATTER, dtype, TUTTI_##op, count)
#define TO_ALL(dtype, count)      BLOCKS(ALL_TO_ALL, dtype, NULL, count)
#define BARRIER                                                                                    \
    {                                                                                              \
        TUTTI_COLLECTIVE_BARRIER, TUTTI_FLOAT32, TUTTI_SUM, TUTTI_ALGO_NONE, 0, 0                  \
    }

/* What the others do, what the victim does. */
static const struct mismatch {
    struct call right, wrong;
} mismatches[] = {
    /* by small message */
    {REDUCE(FLOAT32, SUM, ONE_SHOT, 100, 0), REDUCE(INT32, SUM, ONE_SHOT, 100, 0)},
    {REDUCE(FLOAT32, SUM, ONE_SHOT, 100, 0), REDUCE(FLOAT32, MAX, ONE_SHOT, 100, 0)},
    {REDUCE(FLOAT32, SUM, ONE_SHOT, 100, 0), REDUCE(FLOAT32, SUM, ONE_SHOT, 101, 0)},
    {REDUCE(FLOAT32, SUM, ONE_SHOT, 100, 0), REDUCE(FLOAT32, SUM, TWO_SHOT, 100, 0)},
    {REDUCE(FLOAT32, SUM, ONE_SHOT, 100, 0), REDUCE(FLOAT32, SUM, ONE_SHOT, 0, 0)},
    {REDUCE(FLOAT32, SUM, ONE_SHOT, 100, 0), BARRIER},
    {REDUCE(FLOAT32, PREMUL_SUM, ONE_SHOT, 100, 2), REDUCE(FLOAT32, PREMUL_SUM, ONE_SHOT, 100, 3)},
    {REDUCE(FLOAT32, PREMUL_SUM, ONE_SHOT, 100, 1), REDUCE(FLOAT32, SUM, ONE_SHOT, 100, 0)},
    {BARRIER, REDUCE(FLOAT32, SUM, ONE_SHOT, 100, 0)},
    {BARRIER, REDUCE(FLOAT32, SUM, TWO_SHOT, 900000, 0)},
    {REDUCE(FLOAT32, SUM, ONE_SHOT, 0, 0), BARRIER},
    /* in pieces */
    {REDUCE(FLOAT32, SUM, ONE_SHOT, 900000, 0), REDUCE(INT32, SUM, ONE_SHOT, 900000, 0)},
    {REDUCE(FLOAT32, SUM, ONE_SHOT, 900000, 0), REDUCE(FLOAT32, SUM, TWO_SHOT, 900000, 0)},
    {REDUCE(FLOAT32, SUM, ONE_SHOT, 900000, 0), REDUCE(FLOAT32, SUM, ONE_SHOT, 100, 0)},
    {REDUCE(FLOAT32, SUM, TWO_SHOT, 900000, 0), REDUCE(FLOAT32, SUM, TWO_SHOT, 900001, 0)},
    {REDUCE(FLOAT32, SUM, TWO_SHOT, 900000, 0), REDUCE(FLOAT32, SUM, TWO_SHOT, 10, 0)},
    {REDUCE(FLOAT32, SUM, TWO_SHOT, 900000, 0), REDUCE(FLOAT32, AVG, TWO_SHOT, 900000, 0)},
    {REDUCE(FLOAT32, SUM, TWO_SHOT, 10, 0), REDUCE(FLOAT32, SUM, ONE_SHOT, 900000, 0)},
    {REDUCE(BFLOAT16, PREMUL_SUM, TWO_SHOT, 900000, 2),
     REDUCE(BFLOAT16, PREMUL_SUM, TWO_SHOT, 900000, 4)},
    {REDUCE(FLOAT32, SUM, TWO_SHOT, 900000, 0), BARRIER},
    {REDUCE(COMPLEX64, SUM, ONE_SHOT, 100, 0), REDUCE(FLOAT64, SUM, ONE_SHOT, 100, 0)},
    {REDUCE(FLOAT32, SUM, TWO_SHOT, 900000, 0), REDUCE(COMPLEX64, SUM, TWO_SHOT, 450000, 0)},
    /* blocks, on CPU only */
    {GATHER(FLOAT32, 100), GATHER(INT32, 100)},
    {GATHER(FLOAT32, 50000), GATHER(FLOAT32, 50001)},
    {GATHER(FLOAT32, 100), SCATTER(FLOAT32, SUM, 100)},
    {GATHER(FLOAT32, 100), REDUCE(FLOAT32, SUM, ONE_SHOT, 100, 0)},
    {REDUCE(FLOAT32, SUM, TWO_SHOT, 50000, 0), SCATTER(FLOAT32, SUM, 50000)},
    {SCATTER(FLOAT32, SUM, 100), SCATTER(FLOAT32, MAX, 100)},
    {SCATTER(FLOAT32, SUM, 50000), GATHER(FLOAT32, 50000)},
    {SCATTER(FLOAT32, SUM, 50000), BARRIER},
    {TO_ALL(FLOAT32, 50000), TO_ALL(INT32, 50000)},
    {TO_ALL(FLOAT32, 100), TO_ALL(FLOAT32, 101)},
    {TO_ALL(FLOAT32, 100), GATHER(FLOAT32, 100)},
    {TO_ALL(COMPLEX128, 100), TO_ALL(FLOAT64, 200)},
    {SCATTER(FLOAT32, SUM, 50000), TO_ALL(FLOAT32, 50000)},
    /* from rank to rank */
    {REDUCE(FLOAT32, SUM, RING, 900000, 0), REDUCE(FLOAT32, SUM, RING, 900001, 0)},
    {REDUCE(FLOAT32, SUM, RING, 900000, 0), REDUCE(FLOAT32, SUM, TWO_SHOT, 900000, 0)},
    {REDUCE(FLOAT32, SUM, ONE_SHOT, 100, 0), REDUCE(FLOAT32, SUM, RING, 100, 0)},
    {REDUCE(FLOAT32, SUM, RING, 100, 0), BARRIER},
};

enum { MISMATCHES = sizeof mismatches / sizeof *mismatches };

static bool proxied; /* a host thread stages what processes that share a GPU do */

struct context {
    const struct mismatch *mismatch;
    int victim;
    bool copies; /* rather than zero-copy */
};

/* One hop does not reach as far on a GPU. */
static size_t count_of(const struct call *call)
{
    return device_is_cuda() && call->count > 100000 ? call->count - 880000 : call->count;
}

/* On CPU only so far. */
static bool has_blocks(const struct call *call)
{
    return collective_has_blocks(call->collective);
}

static enum tutti_status call_run(const struct call *call, tutti_comm_t *comm, bool copies,
                                  void *memory)
{
    struct tutti_call_options options = {.struct_size = sizeof options,
                                         .algo = call->algo,
                                         .flags = copies ? TUTTI_CALL_NO_ZERO_COPY : 0};
    tutti_op_t op = call->op;
    if (call->collective == TUTTI_COLLECTIVE_BARRIER)
        return tutti_barrier(comm, NULL, 0, TUTTI_STREAM_DEFAULT);
    if (has_blocks(call)) {
        options.algo = TUTTI_ALGO_NONE;
        return collective_call(call->collective, memory, (char *)memory + MEMORY_BYTES / 2,
                               &call->count, call->dtype, op, 0, comm, &options);
    }
    if (call->op == TUTTI_PREMUL_SUM && tutti_op_create_premul_sum(call->scalar, &op) != TUTTI_OK)
        return TUTTI_ERR_NO_MEMORY;
    enum tutti_status status = tutti_all_reduce_with(memory, memory, count_of(call), call->dtype,
                                                     op, comm, TUTTI_STREAM_DEFAULT, &options);
    tutti_op_destroy(op);
    return status;
}

static bool is_of(const struct tutti_signature *signature, const struct call *call)
{
    /* On a GPU the kernel of barriers serves operations without data. */
    const enum tutti_algo algo =
        device_is_cuda() && !proxied && !call->count ? TUTTI_ALGO_NONE : call->algo;
    if (signature->collective != call->collective)
        return false;
    if (call->collective == TUTTI_COLLECTIVE_BARRIER)
        return true;
    return signature->dtype == call->dtype && signature->op == call->op &&
           signature->algo == algo && signature->count == count_of(call) &&
           (signature->parameter != 0) == (call->op == TUTTI_PREMUL_SUM);
}

/* One side is the victim's, the other another rank's, each with its own values. */
static int check_fault(struct ranks *ranks, int rank, tutti_comm_t *comm)
{
    const struct context *context = ranks->context;
    struct tutti_fault fault = {.struct_size = sizeof fault};
    char text[512];
    RANKS_CHECK(tutti_comm_status(comm, &fault) == TUTTI_ERR_MISMATCH);
    RANKS_CHECK(fault.sequence == BEFORE + 1);
    bool noticed = fault.rank == context->victim;
    RANKS_CHECK(noticed || fault.peer == context->victim);
    RANKS_CHECK(fault.rank != fault.peer);
    const struct tutti_signature *victims = noticed ? &fault.expected : &fault.seen;
    const struct tutti_signature *others = noticed ? &fault.seen : &fault.expected;
    RANKS_CHECK(is_of(victims, &context->mismatch->wrong));
    RANKS_CHECK(is_of(others, &context->mismatch->right));
    RANKS_CHECK(others->parameter != victims->parameter || !others->parameter);
    tutti_fault_format(&fault, text, sizeof text);
    for (int side = 0; side < 2; side++) {
        char name[16];
        snprintf(name, sizeof name, "rank %d has", side ? fault.peer : fault.rank);
        RANKS_CHECK(strstr(text, name));
    }
    RANKS_CHECK(!strstr(text, "subset"));
    return 0;
}

static int disagree(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const struct context *context = ranks->context;
    const struct mismatch *mismatch = context->mismatch;
    struct tutti_comm_options options = {.struct_size = sizeof options, .name = "other"};
    tutti_comm_t *comm, *other;
    void *memory = calloc(1, MEMORY_BYTES);
    RANKS_CHECK(memory);
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    RANKS_CHECK(ranks_join(ranks, rank, store, &options, &other) == TUTTI_OK);
    for (int i = 0; i < BEFORE; i++)
        RANKS_CHECK(call_run(&mismatch->right, comm, context->copies, memory) == TUTTI_OK);
    /* On a GPU a rank that is late would hear of the fault before it looks at these. */
    ranks_raise(ranks, 0);
    RANKS_CHECK(ranks_await(ranks, 0, (uint32_t)ranks->size));

    bool is_victim = rank == context->victim;
    const struct call *own = is_victim ? &mismatch->wrong : &mismatch->right;
    enum tutti_status status = call_run(own, comm, context->copies, memory);
    if (device_is_cuda() &&
        status == TUTTI_OK) /* kernels compare on the next occasion at the latest */
        status = tutti_barrier(comm, NULL, 0, TUTTI_STREAM_DEFAULT);
    RANKS_CHECK(status == TUTTI_ERR_MISMATCH);
    int failed = check_fault(ranks, rank, comm);
    /* It stays so, even if they agree from now on. */
    RANKS_CHECK(call_run(&mismatch->right, comm, context->copies, memory) == TUTTI_ERR_MISMATCH);
    RANKS_CHECK(call_run(&mismatch->right, other, context->copies, memory) == TUTTI_OK);
    tutti_comm_destroy(comm);
    tutti_comm_destroy(other);
    free(memory);
    return failed;
}

static int world_run(const struct context *context, int size, bool processes)
{
    struct ranks *ranks = ranks_create(size, processes ? size : 0, 0);
    ranks->context = context;
    int failures = ranks_run(ranks, disagree);
    if (failures)
        printf("failed: row %d, rank %d of %d, %s\n", (int)(context->mismatch - mismatches),
               context->victim, size, context->copies ? "copying" : "zero-copy");
    ranks_destroy(ranks);
    return failures;
}

/* The ring is a kernel: CPU ranks have none, nor has a host thread. */
static bool has_ring(const struct mismatch *mismatch)
{
    return mismatch->right.algo == TUTTI_ALGO_RING || mismatch->wrong.algo == TUTTI_ALGO_RING;
}

int main(int argc, char **argv)
{
    bool processes = argc == 2 && strcmp(argv[1], "processes") == 0;
    int failures = 0, skip = ranks_skip(2);
    if (skip)
        return skip;
    proxied = processes && device_is_shared();
    for (int i = 0; i < MISMATCHES; i++) {
        for (int size = 2; size <= 4; size++) {
            if (!ranks_fit(size) ||
                (device_is_cuda() &&
                 (has_blocks(&mismatches[i].right) || has_blocks(&mismatches[i].wrong))) ||
                ((!device_is_cuda() || proxied) && has_ring(&mismatches[i])) ||
                (device_is_cuda() && (size != 2 + i % 3 || (ranks_short() && i % 2))))
                continue;
            struct context context = {&mismatches[i], (i + size) % size, processes || i % 2};
            failures += world_run(&context, size, processes);
            context.copies = !context.copies;
            if (!processes && size < 4)
                failures += world_run(&context, size, processes);
        }
    }
    return failures ? 1 : 0;
}
