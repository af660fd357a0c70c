/* SPDX-License-Identifier: MIT */
/*
 * V-forms whose counts and displacements are in memory of the device: the same bits as with counts
 * of the host, eager and in a graph that is replayed with other counts each time, alone and several
 * in one launch; counts that are wrong, or about which ranks disagree; calls that are refused.
 *
 * usage: test_device_counts threads|processes
 */
#include "device.h"
#include "random.h"

#include "tutti/collectives.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    TENSORS = 3,
    CALLS = 2 * TENSORS, /* all-to-alls, then all-gathers */
    MOST = 6000,         /* elements of a block */
    GUARD = 64,          /* bytes */
    EMPTY = 0x5a,
    TURNS = 6,
};

static const enum tutti_dtype dtypes[TENSORS] = {TUTTI_UINT8, TUTTI_FLOAT32, TUTTI_COMPLEX128};
static const size_t shifts[TENSORS] = {3, 4, 8}; /* bytes; the operands need no other alignment */

/* On the device, in both widths: mirror(). */
struct arrays {
    size_t counts[TUTTI_MAX_RANKS], displacements[TUTTI_MAX_RANKS];
    int32_t narrow[2][TUTTI_MAX_RANKS];
};

/* Of one call. */
struct operands {
    unsigned char *send, *recv, *expected; /* the last two begin with a guard */
    struct arrays *from, *to;
};

struct side {
    struct ranks *ranks;
    int rank, size;
    tutti_comm_t *comm;
    size_t extent; /* elements of an operand */
    struct operands calls[CALLS];
};

static bool gathers(int c)
{
    return c >= TENSORS;
}

static size_t width_of(int c)
{
    return tutti_dtype_size(dtypes[c % TENSORS]);
}

static int open_side(struct side *self, struct ranks *ranks, int rank, tutti_store_t *store)
{
    *self = (struct side){.ranks = ranks, .rank = rank, .size = ranks->size};
    self->extent = (size_t)self->size * MOST;
    RANKS_CHECK(device_join(ranks, rank, store, NULL, &self->comm) == TUTTI_OK);
    for (int c = 0; c < CALLS; c++) {
        const size_t bytes = self->extent * width_of(c) + 2 * GUARD;
        self->calls[c] = (struct operands){.send = device_alloc(bytes),
                                           .recv = device_alloc(bytes),
                                           .expected = device_alloc(bytes),
                                           .from = device_alloc(sizeof(struct arrays)),
                                           .to = device_alloc(sizeof(struct arrays))};
    }
    return 0;
}

static void close_side(struct side *self)
{
    tutti_comm_destroy(self->comm);
    for (int c = 0; c < CALLS; c++) {
        device_free(self->calls[c].send);
        device_free(self->calls[c].recv);
        device_free(self->calls[c].expected);
        device_free(self->calls[c].from);
        device_free(self->calls[c].to);
    }
}

/* The length of a block in a turn, the same on all ranks: none, few, all. */
static size_t length(int c, int from, int to, int turn)
{
    uint64_t state = (uint64_t)(1 + turn * 1000 + c * 100 + from * 10 + (gathers(c) ? 0 : to));
    const uint64_t bits = random_next(&state) >> 20;
    if (turn == 0)
        return MOST;
    if (turn == 1 || bits % 5 == 0)
        return 0;
    return bits % 3 == 0 ? MOST - bits % 7 : bits % 400;
}

/* Blocks with holes between them, the last one first, and in odd turns the others as they come. */
static void places(struct arrays *arrays, int size, int turn)
{
    size_t at = 0;
    for (int i = 0; i < size; i++) {
        const int r = turn % 2 ? i : size - 1 - i;
        arrays->displacements[r] = at;
        at += arrays->counts[r];
        if (at + 3 + MOST * (size_t)(size - 1 - i) < MOST * (size_t)size)
            at += 3;
    }
}

/* Copies the arrays of 64 bits to those of 32. */
static void mirror(struct arrays *arrays)
{
    for (int r = 0; r < TUTTI_MAX_RANKS; r++) {
        arrays->narrow[0][r] = (int32_t)arrays->counts[r];
        arrays->narrow[1][r] = (int32_t)arrays->displacements[r];
    }
}

static const size_t *counts_of(const struct arrays *arrays, bool is_narrow)
{
    return is_narrow ? (const size_t *)(const void *)arrays->narrow[0] : arrays->counts;
}

static const size_t *displacements_of(const struct arrays *arrays, bool is_narrow)
{
    return is_narrow ? (const size_t *)(const void *)arrays->narrow[1] : arrays->displacements;
}

static void fill(const struct side *self, int c, int turn)
{
    const struct operands *call = &self->calls[c];
    const size_t bytes = self->extent * width_of(c);
    for (int r = 0; r < self->size; r++) {
        call->from->counts[r] = length(c, self->rank, r, turn);
        call->to->counts[r] = length(c, r, self->rank, turn);
    }
    places(call->from, self->size, turn);
    places(call->to, self->size, turn + 1);
    mirror(call->from);
    mirror(call->to);
    for (size_t i = 0; i < bytes; i++)
        call->send[i] =
            (unsigned char)(i / 16 % 3 ? i * 7 + (size_t)(self->rank * 31 + turn + c) : 0xff);
    memset(call->recv, EMPTY, bytes + 2 * GUARD);
    memset(call->expected, EMPTY, bytes + 2 * GUARD);
}

/* options == NULL: counts of the host. */
static enum tutti_status call(const struct side *self, int c, unsigned char *recv,
                              bool places_given, tutti_stream_t stream,
                              const struct tutti_call_options *options)
{
    const struct operands *its = &self->calls[c];
    const enum tutti_dtype dtype = dtypes[c % TENSORS];
    const bool is_narrow = options && options->flags & TUTTI_CALL_INT32_COUNTS;
    const size_t *to = places_given ? displacements_of(its->to, is_narrow) : NULL,
                 *from = places_given ? displacements_of(its->from, is_narrow) : NULL;
    unsigned char *const at = recv + GUARD + shifts[c % TENSORS];
    if (gathers(c))
        return tutti_all_gather_v_with(its->send, options ? 0 : its->to->counts[self->rank], at,
                                       counts_of(its->to, is_narrow), to, dtype, self->comm, stream,
                                       options);
    return tutti_all_to_all_v_with(its->send, counts_of(its->from, is_narrow), from, at,
                                   counts_of(its->to, is_narrow), to, dtype, self->comm, stream,
                                   options);
}

static struct tutti_call_options options_make(bool is_narrow)
{
    return (struct tutti_call_options){.struct_size = sizeof(struct tutti_call_options),
                                       .flags = TUTTI_CALL_DEVICE_COUNTS |
                                                (is_narrow ? TUTTI_CALL_INT32_COUNTS : 0),
                                       .max_count = MOST};
}

/* Compares with the result of counts of the host. */
static int check(const struct side *self, int c, bool places_given)
{
    struct ranks *ranks = self->ranks;
    const int rank = self->rank;
    const struct operands *its = &self->calls[c];
    RANKS_CHECK(call(self, c, its->expected, places_given, TUTTI_STREAM_DEFAULT, NULL) == TUTTI_OK);
    RANKS_CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
    RANKS_CHECK(memcmp(its->recv, its->expected, self->extent * width_of(c) + 2 * GUARD) == 0);
    return 0;
}

static int eager(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct side self;
    struct tutti_call_options options;
    int failed = open_side(&self, ranks, rank, store);
    for (int turn = 0; turn < TURNS && !failed; turn++)
        for (int c = 0; c < CALLS && !failed; c++) {
            struct standin_launch last = {.grid = 0};
            const bool given = (turn + c) % 2;
            options = options_make((turn + rank) % 3 == 0); /* differs between ranks */
            options.max_blocks = turn == 3 ? 1 + rank : 0;  /* fewer than channels */
            fill(&self, c, turn);
            standin_forget();
            RANKS_CHECK(call(&self, c, self.calls[c].recv, given, TUTTI_STREAM_DEFAULT, &options) ==
                        TUTTI_OK);
            RANKS_CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
            RANKS_CHECK(ranks->processes == 0 || standin_launches(&last, 1) == 1);
            RANKS_CHECK(ranks->processes == 0 || strcmp(last.name, "exchange_counted") == 0);
            RANKS_CHECK(!options.max_blocks || ranks->processes == 0 ||
                        last.grid == 1 + (unsigned)rank);
            failed = check(&self, c, given);
        }
    close_side(&self);
    return failed;
}

/* A graph of single calls, replayed with other counts each time, between eager calls of both kinds.
 */
static int replays(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct side self;
    CUstream stream;
    CUgraph graph;
    CUgraphExec exec;
    int failed = open_side(&self, ranks, rank, store);
    if (failed)
        return failed;
    RANKS_CHECK(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0) == CUDA_SUCCESS);
    RANKS_CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) ==
                CUDA_SUCCESS);
    for (int c = 0; c < CALLS; c++) {
        const struct tutti_call_options options = options_make(c % 3 == 1);
        RANKS_CHECK(call(&self, c, self.calls[c].recv, c % 2, device_stream(stream), &options) ==
                    TUTTI_OK);
    }
    RANKS_CHECK(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
    RANKS_CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0) == CUDA_SUCCESS);
    for (int turn = 0; turn < TURNS && !failed; turn++) {
        for (int c = 0; c < CALLS; c++)
            fill(&self, c, turn);
        RANKS_CHECK(cuGraphLaunch(exec, CU_STREAM_PER_THREAD) == CUDA_SUCCESS);
        RANKS_CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
        for (int c = 0; c < CALLS && !failed; c++)
            failed = check(&self, c, c % 2);
    }
    cuGraphExecDestroy(exec);
    cuGraphDestroy(graph);
    cuStreamDestroy_v2(stream);
    close_side(&self);
    return failed;
}

/* All calls in a group, which is one launch; twice, which is two: 8 calls fit in one. */
static enum tutti_status group_run(const struct side *self, int times, tutti_stream_t stream)
{
    enum tutti_status status = tutti_group_start();
    for (int c = 0; c < times * CALLS && status == TUTTI_OK; c++) {
        const struct tutti_call_options options = options_make(c % 3 == 2);
        status = call(self, c % CALLS, self->calls[c % CALLS].recv, c % 2, stream, &options);
    }
    const enum tutti_status ended = tutti_group_end();
    return status == TUTTI_OK ? ended : status;
}

static int groups(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct side self;
    struct standin_launch last[3];
    CUstream stream;
    CUgraph graph;
    CUgraphExec exec;
    int failed = open_side(&self, ranks, rank, store);
    if (failed)
        return failed;
    RANKS_CHECK(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0) == CUDA_SUCCESS);
    RANKS_CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) ==
                CUDA_SUCCESS);
    standin_forget();
    RANKS_CHECK(group_run(&self, 1, device_stream(stream)) == TUTTI_OK);
    RANKS_CHECK(ranks->processes == 0 || standin_launches(last, 3) == 1);
    RANKS_CHECK(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
    RANKS_CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0) == CUDA_SUCCESS);
    for (int turn = 0; turn < TURNS && !failed; turn++) {
        for (int c = 0; c < CALLS; c++)
            fill(&self, c, turn);
        standin_forget();
        if (turn % 3 == 1) {
            RANKS_CHECK(group_run(&self, 2, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
            RANKS_CHECK(ranks->processes == 0 || standin_launches(last, 3) == 2);
        } else {
            RANKS_CHECK(cuGraphLaunch(exec, CU_STREAM_PER_THREAD) == CUDA_SUCCESS);
        }
        RANKS_CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
        for (int c = 0; c < CALLS && !failed; c++)
            failed = check(&self, c, c % 2);
    }
    cuGraphExecDestroy(exec);
    cuGraphDestroy(graph);
    cuStreamDestroy_v2(stream);
    close_side(&self);
    return failed;
}

/* In place, send of an all-gather is the own block. */
static int in_place(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const struct tutti_call_options options = options_make(false);
    struct side self;
    const int c = TENSORS;
    int failed = open_side(&self, ranks, rank, store);
    if (failed)
        return failed;
    struct operands *const its = &self.calls[c];
    fill(&self, c, 5);
    its->to->counts[rank] = its->to->counts[0] = its->to->counts[1] = 70;
    places(its->to, ranks->size, 5);
    unsigned char *const own =
        its->recv + GUARD + shifts[0] + its->to->displacements[rank] * width_of(c);
    memcpy(own, its->send, 70 * width_of(c));
    unsigned char *const send = its->send;
    its->send = own;
    RANKS_CHECK(call(&self, c, its->recv, true, TUTTI_STREAM_DEFAULT, &options) == TUTTI_OK);
    RANKS_CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
    its->send = send;
    failed = check(&self, c, true);
    close_side(&self);
    return failed;
}

/* ---- reduce-scatter -------------------------------------------------------------------------- */

/* The second call's operands have room for all of these. */
static const struct {
    enum tutti_dtype dtype;
    tutti_op_t op;
} reductions[] = {{TUTTI_FLOAT32, TUTTI_SUM},
                  {TUTTI_BFLOAT16, TUTTI_AVG},
                  {TUTTI_INT32, TUTTI_MAX},
                  {TUTTI_UINT8, TUTTI_SUM},
                  {TUTTI_BFLOAT16, TUTTI_SUM}};
enum { REDUCTIONS = sizeof reductions / sizeof *reductions };

static enum tutti_status reduce(const struct side *self, int k, unsigned char *recv,
                                bool places_given, tutti_stream_t stream,
                                const struct tutti_call_options *options)
{
    const struct operands *its = &self->calls[1];
    const bool is_narrow = options && options->flags & TUTTI_CALL_INT32_COUNTS;
    return tutti_reduce_scatter_v_with(its->send, counts_of(its->from, is_narrow),
                                       places_given ? displacements_of(its->from, is_narrow) : NULL,
                                       recv, reductions[k].dtype, reductions[k].op, self->comm,
                                       stream, options);
}

/* Fills the operands for blocks that all ranks know. Every byte is less than 0x40, so that no float
 * is a NaN. */
static void reduce_fill(const struct side *self, int turn)
{
    const struct operands *its = &self->calls[1];
    fill(self, 1, turn);
    for (int r = 0; r < self->size; r++)
        its->from->counts[r] = length(TENSORS, r, 0, turn);
    places(its->from, self->size, turn);
    mirror(its->from);
    for (size_t i = 0; i < self->extent * width_of(1); i++)
        its->send[i] &= 0x3f;
}

static int reduce_check(const struct side *self, int k, bool places_given)
{
    struct ranks *ranks = self->ranks;
    const int rank = self->rank;
    const struct operands *its = &self->calls[1];
    RANKS_CHECK(reduce(self, k, its->expected + GUARD, places_given, TUTTI_STREAM_DEFAULT, NULL) ==
                TUTTI_OK);
    RANKS_CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
    RANKS_CHECK(memcmp(its->recv, its->expected, self->extent * width_of(1)) == 0);
    return 0;
}

static int reduces(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct tutti_call_options options;
    struct side self;
    CUstream stream;
    CUgraph graph;
    CUgraphExec exec[REDUCTIONS];
    int failed = open_side(&self, ranks, rank, store);
    if (failed)
        return failed;
    unsigned char *const recv = self.calls[1].recv + GUARD;
    RANKS_CHECK(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0) == CUDA_SUCCESS);
    for (int k = 0; k < REDUCTIONS; k++) {
        RANKS_CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) ==
                    CUDA_SUCCESS);
        options = options_make(k % 2);
        RANKS_CHECK(reduce(&self, k, recv, k % 2, device_stream(stream), &options) == TUTTI_OK);
        RANKS_CHECK(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
        RANKS_CHECK(cuGraphInstantiateWithFlags(&exec[k], graph, 0) == CUDA_SUCCESS);
        cuGraphDestroy(graph);
    }
    for (int turn = 0; turn < TURNS && !failed; turn++)
        for (int k = 0; k < REDUCTIONS && !failed; k++) {
            struct standin_launch last = {.grid = 0};
            options = options_make((turn + k + rank) % 2);
            options.max_blocks = turn == 2 ? 1 + rank : 0;
            reduce_fill(&self, turn);
            standin_forget();
            RANKS_CHECK((turn + k) % 3 == 0
                            ? reduce(&self, k, recv, k % 2, TUTTI_STREAM_DEFAULT, &options) ==
                                  TUTTI_OK
                            : cuGraphLaunch(exec[k], CU_STREAM_PER_THREAD) == CUDA_SUCCESS);
            RANKS_CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
            const bool is_alone = ranks->processes && (turn + k) % 3 == 0;
            RANKS_CHECK(!is_alone || standin_launches(&last, 1) == 1);
            RANKS_CHECK(!is_alone || strncmp(last.name, "reduce_counted_", 15) == 0);
            RANKS_CHECK(!is_alone || !options.max_blocks || last.grid <= 1 + (unsigned)rank);
            failed = reduce_check(&self, k, k % 2);
        }
    for (int k = 0; k < REDUCTIONS; k++)
        cuGraphExecDestroy(exec[k]);
    cuStreamDestroy_v2(stream);
    close_side(&self);
    return failed;
}

/* ---- what is wrong --------------------------------------------------------------------------- */

enum wrong {
    ABOVE,
    NEGATIVE,
    NEGATIVE_INT32,
    BEYOND,
    OWN,
    OVERLAP,
    REDUCE_ABOVE,
    REDUCE_BEYOND,
    REDUCE_OVERLAP,
    DISAGREE,
    OTHER_MOST,
    NO_FLAG,
    REDUCE_DISAGREE
};

static void spoil(const struct side *self, enum wrong how, int c,
                  struct tutti_call_options *options)
{
    struct arrays *const from = self->calls[c].from, *const to = self->calls[c].to;
    const int peer = !self->rank;
    if (how == ABOVE || how == REDUCE_ABOVE)
        from->counts[peer] = MOST + 1;
    else if (how == NEGATIVE || how == NEGATIVE_INT32)
        to->counts[peer] = (size_t)-5;
    else if (how == BEYOND)
        to->displacements[peer] = self->extent - to->counts[peer] + 1;
    else if (how == OWN)
        from->counts[self->rank]++;
    else if (how == REDUCE_BEYOND)
        from->displacements[peer] = (size_t)-7;
    else if (how == DISAGREE || how == REDUCE_DISAGREE)
        from->counts[peer]--;
    else if (how == OTHER_MOST)
        options->max_count = MOST - 1;
    else if (how == NO_FLAG)
        *options = (struct tutti_call_options){.struct_size = sizeof *options};
    mirror(from);
    mirror(to);
}

static enum tutti_status wrong_call(const struct side *self, enum wrong how, int c,
                                    const struct tutti_call_options *options)
{
    const struct operands *its = &self->calls[c];
    unsigned char *recv = its->recv + GUARD;
    const bool reduces = (how >= REDUCE_ABOVE && how < DISAGREE) || how == REDUCE_DISAGREE;
    if (how == REDUCE_OVERLAP && self->rank == 1)
        recv = its->send + 40;
    return reduces ? reduce(self, 0, recv, true, TUTTI_STREAM_DEFAULT, options)
                   : call(self, c, its->recv, true, TUTTI_STREAM_DEFAULT, options);
}

static const char *const texts[] = {
    [ABOVE] = "block 0 of send has 6001 elements, and max_count is 6000",
    [NEGATIVE] = "block 0 of recv has -5 elements, and max_count is 6000",
    [NEGATIVE_INT32] = "block 0 of recv has -5 elements, and max_count is 6000",
    [BEYOND] = "block 0 of recv ends behind 12001 elements, and the operand has 12000",
    [OWN] = "rank 1 sends 101 elements to itself and expects 100",
    [OVERLAP] = "send and recv overlap in part at block 0",
    [REDUCE_ABOVE] = "block 0 of send has 6001 elements, and max_count is 6000",
    [REDUCE_BEYOND] = "block 0 of send begins at element -7",
    [REDUCE_OVERLAP] = "send and recv overlap in part at block 0",
    [REDUCE_DISAGREE] = "counts hash",
    [DISAGREE] = "99 float32",
    [OTHER_MOST] = "max_count hash",
    [NO_FLAG] = "max_count hash",
};

/* Rank 1 is wrong. It stores nothing, and nobody writes outside of recv. */
static int wrong(struct ranks *ranks, int rank, tutti_store_t *store, enum wrong how)
{
    const bool is_invalid = how < DISAGREE;
    const int c = how == OVERLAP ? TENSORS + 1 : 1;
    struct tutti_call_options options = options_make(how == NEGATIVE_INT32);
    struct tutti_fault fault = {.struct_size = sizeof fault};
    struct side self;
    char text[512];
    int failed = open_side(&self, ranks, rank, store);
    if (failed)
        return failed;
    struct operands *const its = &self.calls[c];
    unsigned char *const send = its->send;
    fill(&self, c, 1);
    for (int r = 0; r < ranks->size; r++)
        its->from->counts[r] = its->to->counts[r] = 100;
    places(its->from, ranks->size, 1);
    places(its->to, ranks->size, 1);
    mirror(its->from);
    mirror(its->to);
    if (rank == 1)
        spoil(&self, how, c, &options);
    if (rank == 1 && how == OVERLAP)
        its->send = its->recv + GUARD + shifts[1] + 50 * width_of(c);
    /* Rank 1 may have failed before this rank makes its call. */
    const enum tutti_status status = wrong_call(&self, how, c, &options);
    RANKS_CHECK(status == TUTTI_OK || (is_invalid && rank != 1 && status == TUTTI_ERR_INVALID));
    if (how >= OTHER_MOST) /* noticed by the next operation */
        RANKS_CHECK(tutti_barrier(self.comm, NULL, 0, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    RANKS_CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
    (void)tutti_comm_status(self.comm, &fault); /* the peer learns what this rank has found */
    ranks_raise(ranks, 1);
    RANKS_CHECK(ranks_await(ranks, 1, (uint32_t)ranks->size));
    RANKS_CHECK(tutti_comm_status(self.comm, &fault) ==
                (is_invalid ? TUTTI_ERR_INVALID : TUTTI_ERR_MISMATCH));
    tutti_fault_format(&fault, text, sizeof text);
    if (!strstr(text, texts[how]))
        fprintf(stderr, "rank %d: %s\n", rank, text);
    RANKS_CHECK(strstr(text, texts[how]));
    RANKS_CHECK(fault.sequence == 1);
    RANKS_CHECK(!is_invalid || (fault.rank == 1 && fault.peer == 1));
    for (size_t i = 0; i < self.extent * width_of(c) + 2 * GUARD; i++)
        if (is_invalid ? rank == 1 : i < GUARD || i >= self.extent * width_of(c) + 2 * GUARD - 16)
            RANKS_CHECK(its->recv[i] == EMPTY);
    /* The call that follows returns the fault, too. */
    RANKS_CHECK(wrong_call(&self, how, c, &options) ==
                (is_invalid ? TUTTI_ERR_INVALID : TUTTI_ERR_MISMATCH));
    RANKS_CHECK(strstr(tutti_last_error(), texts[how]));
    its->send = send;
    close_side(&self);
    return failed;
}

#define WRONG(name, HOW)                                                                           \
    static int name(struct ranks *ranks, int rank, tutti_store_t *store)                           \
    {                                                                                              \
        return wrong(ranks, rank, store, HOW);                                                     \
    }
WRONG(above, ABOVE)
WRONG(negative, NEGATIVE)
WRONG(negative_int32, NEGATIVE_INT32)
WRONG(beyond, BEYOND)
WRONG(own, OWN)
WRONG(overlap, OVERLAP)
WRONG(reduce_above, REDUCE_ABOVE)
WRONG(reduce_beyond, REDUCE_BEYOND)
WRONG(reduce_overlap, REDUCE_OVERLAP)
WRONG(reduce_disagree, REDUCE_DISAGREE)
WRONG(disagree, DISAGREE)
WRONG(other_most, OTHER_MOST)
WRONG(no_flag, NO_FLAG)

/* Rank 0 makes its calls in a group, rank 1 does not. */
static int ungrouped(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const struct tutti_call_options options = options_make(false);
    struct tutti_fault fault = {.struct_size = sizeof fault};
    struct side self;
    int failed = open_side(&self, ranks, rank, store);
    if (failed)
        return failed;
    for (int c = 0; c < CALLS; c++)
        fill(&self, c, 1);
    RANKS_CHECK(rank || group_run(&self, 1, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    for (int c = 0; c < CALLS && rank; c++)
        RANKS_CHECK(call(&self, c, self.calls[c].recv, c % 2, TUTTI_STREAM_DEFAULT, &options) !=
                    TUTTI_ERR_INVALID);
    (void)tutti_barrier(self.comm, NULL, 0, TUTTI_STREAM_DEFAULT);
    RANKS_CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
    (void)tutti_comm_status(self.comm, &fault);
    ranks_raise(ranks, 1);
    RANKS_CHECK(ranks_await(ranks, 1, (uint32_t)ranks->size));
    RANKS_CHECK(tutti_comm_status(self.comm, &fault) == TUTTI_ERR_MISMATCH);
    close_side(&self);
    return 0;
}

/* A wrong count in a replay. */
static int replay_wrong(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct tutti_call_options options = options_make(false);
    struct side self;
    CUstream stream;
    CUgraph graph;
    CUgraphExec exec;
    int failed = open_side(&self, ranks, rank, store);
    if (failed)
        return failed;
    RANKS_CHECK(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0) == CUDA_SUCCESS);
    RANKS_CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) ==
                CUDA_SUCCESS);
    RANKS_CHECK(call(&self, 1, self.calls[1].recv, false, device_stream(stream), &options) ==
                TUTTI_OK);
    RANKS_CHECK(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
    RANKS_CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0) == CUDA_SUCCESS);
    for (int turn = 2; turn < 5; turn++) {
        fill(&self, 1, turn);
        if (turn == 4 && rank == 1)
            spoil(&self, ABOVE, 1, &options);
        RANKS_CHECK(cuGraphLaunch(exec, CU_STREAM_PER_THREAD) == CUDA_SUCCESS);
        RANKS_CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
    }
    (void)tutti_comm_status(self.comm, NULL);
    ranks_raise(ranks, 1);
    RANKS_CHECK(ranks_await(ranks, 1, (uint32_t)ranks->size));
    RANKS_CHECK(tutti_comm_status(self.comm, NULL) == TUTTI_ERR_INVALID);
    RANKS_CHECK(strstr(tutti_last_error(), "in operation 3, all_to_all_v: block 0 of send has"));
    cuGraphExecDestroy(exec);
    cuGraphDestroy(graph);
    cuStreamDestroy_v2(stream);
    close_side(&self);
    return 0;
}

/* ---- what is refused ------------------------------------------------------------------------- */

static enum tutti_status to_all(const struct side *self, const unsigned char *send,
                                const size_t *counts, unsigned char *recv,
                                const struct tutti_call_options *options)
{
    return tutti_all_to_all_v_with(send, counts, NULL, recv, self->calls[1].to->counts, NULL,
                                   TUTTI_FLOAT32, self->comm, TUTTI_STREAM_DEFAULT, options);
}

static int refused(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct tutti_call_options options = options_make(false);
    struct side self;
    int failed = open_side(&self, ranks, rank, store);
    if (failed)
        return failed;
    const struct operands *const its = &self.calls[1];
    const size_t host[TUTTI_MAX_RANKS] = {0};
    fill(&self, 1, 2);
#define REFUSED(text)                                                                              \
    RANKS_CHECK(call(&self, 1, its->recv, true, TUTTI_STREAM_DEFAULT, &options) ==                 \
                TUTTI_ERR_INVALID);                                                                \
    RANKS_CHECK(strstr(tutti_last_error(), text))
#define REFUSED_TO_ALL(operand, lengths, result, text)                                             \
    RANKS_CHECK(to_all(&self, operand, lengths, result, &options) == TUTTI_ERR_INVALID);           \
    RANKS_CHECK(strstr(tutti_last_error(), text))
    options.max_count = 0;
    REFUSED("max_count 0: expected the most elements of a block");
    options.max_count = SIZE_MAX / 8;
    REFUSED("max_count");
    options.max_count = MOST;
    options.flags = 0;
    REFUSED("belong to TUTTI_CALL_DEVICE_COUNTS");
    options = (struct tutti_call_options){.struct_size = sizeof options,
                                          .flags = TUTTI_CALL_INT32_COUNTS};
    REFUSED("belong to TUTTI_CALL_DEVICE_COUNTS");
    options = options_make(true);
    REFUSED_TO_ALL(its->send, (const size_t *)(const void *)((const char *)host + 2), its->recv,
                   "not aligned to 4 bytes");
    options = options_make(false);
    options.recv_extent = (size_t)1 << 40;
    REFUSED("recv");
    options.recv_extent = 0;
    REFUSED_TO_ALL(its->send, NULL, its->recv, "the counts of send are NULL");
    REFUSED_TO_ALL(its->send, host, its->recv, "counts");
    REFUSED_TO_ALL(its->send, (const size_t *)((const char *)its->from->counts + 4), its->recv,
                   "not aligned to 8 bytes");
    REFUSED_TO_ALL(NULL, its->from->counts, its->recv, "send is NULL");
    REFUSED_TO_ALL(its->send + 1, its->from->counts, its->recv, "is not aligned to the elements");
    REFUSED_TO_ALL(its->send, its->from->counts, its->send + 400, "overlap");
    RANKS_CHECK(tutti_gather_v_with(its->send, 1, its->recv, its->to->counts, NULL, TUTTI_UINT8, 0,
                                    self.comm, TUTTI_STREAM_DEFAULT,
                                    &options) == TUTTI_ERR_INVALID);
    RANKS_CHECK(strstr(tutti_last_error(), "is for all_gather_v, reduce_scatter_v and"));
    /* All that is as before. */
    RANKS_CHECK(call(&self, 1, its->recv, true, TUTTI_STREAM_DEFAULT, &options) == TUTTI_OK);
    RANKS_CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
    failed = check(&self, 1, true);
    close_side(&self);
    return failed;
}

/* A rank alone has no kernels. */
static int alone(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const struct tutti_call_options options = options_make(false);
    struct side self;
    const int failed = open_side(&self, ranks, rank, store);
    if (failed)
        return failed;
    RANKS_CHECK(call(&self, 0, self.calls[0].recv, false, TUTTI_STREAM_DEFAULT, &options) ==
                TUTTI_ERR_DECLINED);
    RANKS_CHECK(strstr(tutti_last_error(), "no kernel of a rank alone reads counts"));
    close_side(&self);
    return 0;
}

int main(int argc, char **argv)
{
    static const struct ranks_part parts[] = {
        {"eager", eager, {2, 3, 4}},
        {"replays", replays, {2, 3, 4}},
        {"groups", groups, {2, 3, 4}},
        {"reduces", reduces, {2, 3, 4}},
        {"in place", in_place, {2}},
        {"above", above, {2}},
        {"negative", negative, {2}},
        {"negative int32", negative_int32, {2}},
        {"beyond", beyond, {2}},
        {"own", own, {2}},
        {"overlap", overlap, {2}},
        {"reduce above", reduce_above, {2}},
        {"reduce beyond", reduce_beyond, {2}},
        {"reduce overlap", reduce_overlap, {2}},
        {"reduce disagree", reduce_disagree, {2}},
        {"disagree", disagree, {2}},
        {"other most", other_most, {2}},
        {"no flag", no_flag, {2}},
        {"replay wrong", replay_wrong, {2}},
        {"ungrouped", ungrouped, {2}},
        {"refused", refused, {2}},
        {"alone", alone, {1}},
    };
    int failed = 0;
    if (argc != 2)
        return 2;
    device_setup();
    setenv("TUTTI_STANDIN_MULTIPROCESSORS", "8", 1);
    if (strcmp(argv[1], "threads") != 0)
        return ranks_run_parts(parts, sizeof parts / sizeof *parts) ? 1 : 0;
    for (size_t p = 0; p < 5; p++) {
        struct ranks *ranks = ranks_create(parts[p].sizes[0], 0, 0);
        const int here = ranks_run(ranks, parts[p].fn);
        if (here)
            fprintf(stderr, "%s failed\n", parts[p].name);
        failed += here;
        ranks_destroy(ranks);
    }
    return failed ? 1 : 0;
}
