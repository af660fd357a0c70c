/* SPDX-License-Identifier: MIT */
/*
 * The v-forms by kernels: one launch each, captured together and replayed with other data, in
 * groups with messages; limits of blocks; ranks that disagree, do not come, or are gone.
 */
#include "coll/coll.h"
#include "device.h"

#include "tutti/collectives.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    ROOT = 1,
    KINDS = 5,
    MOST = 24000, /* elements of a block */
    GAP = 3,      /* elements between blocks of recv */
    PATIENCE_MS = 500,
    EMPTY = 0x5a,
};

static const enum tutti_collective kinds[KINDS] = {
    TUTTI_COLLECTIVE_ALL_TO_ALL_V, TUTTI_COLLECTIVE_ALL_GATHER_V, TUTTI_COLLECTIVE_GATHER_V,
    TUTTI_COLLECTIVE_SCATTER_V, TUTTI_COLLECTIVE_REDUCE_SCATTER_V};

struct side {
    struct ranks *ranks;
    int rank, size;
    tutti_comm_t *comm;
    float *send, *recv; /* for each kind a part */
    size_t part;        /* elements */
    size_t from[KINDS][TUTTI_MAX_RANKS], to[KINDS][TUTTI_MAX_RANKS], starts[KINDS][TUTTI_MAX_RANKS];
};

/* The length of a block: empty ones, one element, and many that no line ends with. */
static size_t length(int kind, int from, int to)
{
    static const size_t lengths[] = {7, MOST, 0, 1, MOST, 64};
    const struct coll *coll = &coll_rows[kinds[kind]];
    const int at = coll->send_all && coll->recv_all ? 2 * from + to : coll->send_all ? to : from;
    return lengths[(at + kind) % (int)(sizeof lengths / sizeof *lengths)];
}

/* Small whole numbers, so that sums are exact. */
static float value(int from, int to, size_t i, int turn)
{
    return (float)(from * 64 + to * 16 + (int)(i % 61) + turn);
}

/* Where a block of an operand begins. */
static size_t start_of(const struct side *self, int kind, bool is_send, int r, size_t *count)
{
    size_t at = is_send ? 0 : GAP;
    for (int b = 0; b <= r; b++) {
        *count = is_send ? length(kind, self->rank, b) : length(kind, b, self->rank);
        at += b < r ? *count + (is_send ? 0 : GAP) : 0;
    }
    return at;
}

static int open_side(struct side *self, struct ranks *ranks, int rank, tutti_store_t *store)
{
    *self = (struct side){.ranks = ranks,
                          .rank = rank,
                          .size = ranks->size,
                          .part = (size_t)ranks->size * (MOST + GAP) + GAP};
    for (int k = 0; k < KINDS; k++)
        for (int r = 0; r < self->size; r++) {
            self->from[k][r] = length(k, rank, r);
            self->starts[k][r] = start_of(self, k, false, r, &self->to[k][r]);
        }
    RANKS_CHECK(device_join(ranks, rank, store, NULL, &self->comm) == TUTTI_OK);
    self->send = device_alloc(KINDS * self->part * sizeof(float));
    self->recv = device_alloc(KINDS * self->part * sizeof(float));
    return 0;
}

static void close_side(struct side *self)
{
    tutti_comm_destroy(self->comm);
    device_free(self->send);
    device_free(self->recv);
}

static void fill(const struct side *self, int kind, int turn)
{
    const struct coll *coll = &coll_rows[kinds[kind]];
    float *const send = self->send + (size_t)kind * self->part;
    for (int r = 0; r < (coll->send_all ? self->size : 1); r++) {
        size_t count, at = start_of(self, kind, true, r, &count);
        for (size_t i = 0; i < count; i++)
            send[at + i] = value(self->rank, coll->send_all ? r : 0, i, turn);
    }
    memset(self->recv + (size_t)kind * self->part, EMPTY, self->part * sizeof(float));
}

static enum tutti_status call(const struct side *self, int kind, tutti_stream_t stream,
                              const struct tutti_call_options *options)
{
    const struct coll *coll = &coll_rows[kinds[kind]];
    float *const send = self->send + (size_t)kind * self->part;
    float *const recv = self->recv + (size_t)kind * self->part;
    const size_t sends = length(kind, self->rank, 0), gets = length(kind, ROOT, self->rank);
    const size_t *const from = self->from[kind], *const to = self->to[kind],
                        *const starts = self->starts[kind];
    tutti_comm_t *const comm = self->comm;
    if (coll->reduces)
        return tutti_reduce_scatter_v_with(send, from, NULL, recv, TUTTI_FLOAT32, TUTTI_SUM, comm,
                                           stream, options);
    if (coll->send_all && coll->recv_all)
        return tutti_all_to_all_v_with(send, from, NULL, recv, to, starts, TUTTI_FLOAT32, comm,
                                       stream, options);
    if (coll->send_all)
        return tutti_scatter_v_with(send, from, NULL, recv, gets, TUTTI_FLOAT32, ROOT, comm, stream,
                                    options);
    return coll->peer ? tutti_gather_v_with(send, sends, recv, to, starts, TUTTI_FLOAT32, ROOT,
                                            comm, stream, options)
                      : tutti_all_gather_v_with(send, sends, recv, to, starts, TUTTI_FLOAT32, comm,
                                                stream, options);
}

static bool is_block(const struct side *self, int kind, const float *block, int from, size_t count,
                     int turn)
{
    const struct coll *coll = &coll_rows[kinds[kind]];
    const int to = coll->send_all ? self->rank : 0;
    for (size_t i = 0; i < count; i++) {
        float expected = value(from, to, i, turn);
        for (int r = 1; r < self->size && coll->reduces; r++)
            expected += value(r, to, i, turn);
        if (block[i] != expected)
            return false;
    }
    return true;
}

/* Compares the blocks, and the bytes between them. */
static int check(const struct side *self, int kind, int turn)
{
    struct ranks *ranks = self->ranks;
    const int rank = self->rank;
    const struct coll *coll = &coll_rows[kinds[kind]];
    float *const recv = self->recv + (size_t)kind * self->part;
    if (!coll_has(coll->recv, rank, ROOT))
        return 0;
    for (int r = 0; r < (coll->recv_all ? self->size : 1); r++) {
        const int from = coll->recv_all || coll->reduces ? r : ROOT;
        size_t count = length(kind, from, rank);
        const size_t at = coll->recv_all ? start_of(self, kind, false, r, &count) : 0;
        RANKS_CHECK(is_block(self, kind, recv + at, from, count, turn));
        memset(recv + at, EMPTY, count * sizeof(float));
    }
    for (size_t i = 0; i < self->part * sizeof(float); i++)
        RANKS_CHECK(((const unsigned char *)recv)[i] == EMPTY);
    return 0;
}

static int one_launch(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct side self;
    int failed = open_side(&self, ranks, rank, store);
    for (int k = 0; k < KINDS && !failed; k++) {
        const char *kernel =
            coll_rows[kinds[k]].reduces ? "reduce_varied_float32_sum_" : "exchange";
        struct standin_launch last[2];
        fill(&self, k, 0);
        standin_forget();
        RANKS_CHECK(call(&self, k, TUTTI_STREAM_DEFAULT, NULL) == TUTTI_OK);
        RANKS_CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
        failed = check(&self, k, 0);
        RANKS_CHECK(failed || standin_launches(last, 2) == 1);
        RANKS_CHECK(failed || strncmp(last[0].name, kernel, strlen(kernel)) == 0);
    }
    close_side(&self);
    return failed;
}

/* All kinds and two messages in a group, of which the ranks have the messages at other places. */
static enum tutti_status all_calls(const struct side *self, tutti_stream_t stream, float *in)
{
    const int next = (self->rank + 1) % self->size,
              last = (self->rank + self->size - 1) % self->size;
    enum tutti_status status = tutti_group_start();
    for (int k = 0; k < KINDS && status == TUTTI_OK; k++) {
        if (k == self->rank)
            status = tutti_send(self->send, 9, TUTTI_FLOAT32, next, self->comm, stream);
        if (status == TUTTI_OK)
            status = call(self, k, stream, NULL);
        if (k == 2 && status == TUTTI_OK)
            status = tutti_recv(in, 9, TUTTI_FLOAT32, last, self->comm, stream);
    }
    const enum tutti_status ended = tutti_group_end();
    return status == TUTTI_OK ? ended : status;
}

/* A group in a graph, replayed with other data, between eager groups. */
static int replays(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct side self;
    CUstream stream;
    CUgraph graph;
    CUgraphExec exec;
    int failed = open_side(&self, ranks, rank, store);
    if (failed)
        return failed;
    const int last = (rank + ranks->size - 1) % ranks->size;
    float *const in = device_alloc(9 * sizeof *in);
    RANKS_CHECK(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0) == CUDA_SUCCESS);
    RANKS_CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
    RANKS_CHECK(all_calls(&self, device_stream(stream), in) == TUTTI_OK);
    RANKS_CHECK(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
    RANKS_CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0) == CUDA_SUCCESS);
    for (int turn = 0; turn < 6 && !failed; turn++) {
        for (int k = 0; k < KINDS; k++)
            fill(&self, k, turn);
        RANKS_CHECK(turn % 2 ? all_calls(&self, TUTTI_STREAM_DEFAULT, in) == TUTTI_OK
                             : cuGraphLaunch(exec, CU_STREAM_PER_THREAD) == CUDA_SUCCESS);
        RANKS_CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
        for (int k = 0; k < KINDS && !failed; k++)
            failed = check(&self, k, turn);
        const size_t sent = length(0, last, 0);
        for (size_t i = 0; i < 9 && i < sent; i++)
            RANKS_CHECK(in[i] == value(last, 0, i, turn));
    }
    cuGraphExecDestroy(exec);
    cuGraphDestroy(graph);
    cuStreamDestroy_v2(stream);
    device_free(in);
    close_side(&self);
    return failed;
}

/* The limits of calls, of which each rank has its own. */
static int limits(struct ranks *ranks, int rank, tutti_store_t *store)
{
    static const int all[] = {1, 3, 8, 0};
    struct side self;
    int failed = open_side(&self, ranks, rank, store);
    for (int k = 0; k < KINDS && !failed; k++) {
        unsigned usual = 0;
        for (size_t i = 0; i < 5 && !failed; i++) {
            const struct tutti_call_options options = {
                .struct_size = sizeof options, .max_blocks = i ? all[(i + (size_t)rank) % 4] : 0};
            const unsigned limit = (unsigned)options.max_blocks;
            struct standin_launch last = {.grid = 0};
            fill(&self, k, 3);
            standin_forget();
            RANKS_CHECK(call(&self, k, TUTTI_STREAM_DEFAULT, &options) == TUTTI_OK);
            RANKS_CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
            (void)standin_launches(&last, 1);
            usual = i ? usual : last.grid;
            RANKS_CHECK(last.grid == (limit && limit < usual ? limit : usual));
            failed = check(&self, k, 3);
        }
    }
    close_side(&self);
    return failed;
}

/* How rank 1 disagrees with rank 0, which calls an all-to-all or, in LENGTHS, a reduce-scatter. */
enum wrong { OTHER_COUNT, OTHER_CALL, A_MESSAGE, LENGTHS, NO_CALL, GONE };

static enum tutti_status wrong_call(const struct side *self, enum wrong how, bool is_wrong,
                                    const struct tutti_call_options *options)
{
    const size_t sent[2] = {30, is_wrong && how == OTHER_COUNT ? 0 : 30}, got[2] = {30, 30};
    const size_t lengths[2] = {5000, is_wrong ? 6000 : 5001};
    if (how == LENGTHS)
        return tutti_reduce_scatter_v_with(self->send, lengths, NULL, self->recv, TUTTI_INT32,
                                           TUTTI_MAX, self->comm, TUTTI_STREAM_DEFAULT, options);
    if (is_wrong && how == OTHER_CALL)
        return tutti_all_reduce(self->send, self->recv, 30, TUTTI_INT32, TUTTI_SUM, self->comm,
                                TUTTI_STREAM_DEFAULT);
    if (is_wrong && how == A_MESSAGE)
        return tutti_send(self->send, 30, TUTTI_INT32, 0, self->comm, TUTTI_STREAM_DEFAULT);
    if (is_wrong && how != OTHER_COUNT)
        return TUTTI_OK;
    /* Rank 1 sends rank 0 what it expects of itself, so that its own counts agree. */
    const size_t from_1[2] = {sent[1], 30};
    return tutti_all_to_all_v_with(self->send, is_wrong ? from_1 : sent, NULL, self->recv, got,
                                   NULL, TUTTI_INT32, self->comm, TUTTI_STREAM_DEFAULT, options);
}

static int wrong(struct ranks *ranks, int rank, tutti_store_t *store, enum wrong how)
{
    static const enum tutti_status expected[] = {TUTTI_ERR_MISMATCH, TUTTI_ERR_MISMATCH,
                                                 TUTTI_ERR_MISMATCH, TUTTI_ERR_MISMATCH,
                                                 TUTTI_ERR_TIMEOUT,  TUTTI_ERR_PEER_DEAD};
    const struct tutti_call_options options = {.struct_size = sizeof options,
                                               .timeout_ms = how == NO_CALL ? PATIENCE_MS : 0};
    struct tutti_fault fault = {.struct_size = sizeof fault};
    struct side self;
    const int failed = open_side(&self, ranks, rank, store);
    if (failed)
        return failed;
    if (how == GONE && rank == 1) {
        close_side(&self);
        return 0;
    }
    RANKS_CHECK(wrong_call(&self, how, rank == 1, &options) == TUTTI_OK);
    RANKS_CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
    (void)tutti_comm_status(self.comm, &fault); /* the peer learns what this rank has found */
    if (how != GONE) {
        ranks_raise(ranks, 1);
        RANKS_CHECK(ranks_await(ranks, 1, 2));
    }
    RANKS_CHECK(tutti_comm_status(self.comm, &fault) == expected[how]);
    RANKS_CHECK(fault.sequence == 1 && (fault.rank != rank || fault.peer == !rank));
    close_side(&self);
    return 0;
}

#define WRONG(name, HOW)                                                                           \
    static int name(struct ranks *ranks, int rank, tutti_store_t *store)                           \
    {                                                                                              \
        return wrong(ranks, rank, store, HOW);                                                     \
    }
WRONG(other_count, OTHER_COUNT)
WRONG(other_call, OTHER_CALL)
WRONG(a_message, A_MESSAGE)
WRONG(lengths, LENGTHS)
WRONG(no_call, NO_CALL)
WRONG(gone, GONE)

int main(void)
{
    static const struct ranks_part parts[] = {{"one launch", one_launch, {2, 3, 4}},
                                              {"replays", replays, {2, 3, 4}},
                                              {"limits", limits, {2, 3}},
                                              {"other count", other_count, {2}},
                                              {"other call", other_call, {2}},
                                              {"a message", a_message, {2}},
                                              {"lengths", lengths, {2}},
                                              {"no call", no_call, {2}},
                                              {"gone", gone, {2}}};
    device_setup();
    setenv("TUTTI_STANDIN_MULTIPROCESSORS", "8", 1);
    return ranks_run_parts(parts, sizeof parts / sizeof *parts) ? 1 : 0;
}
