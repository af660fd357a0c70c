/* SPDX-License-Identifier: MIT */
/*
 * Messages by the kernel exchange: groups in a ring and among all, of all sizes and bits, captured
 * and replayed, more than fit into a launch; limits of blocks; ranks that disagree, or do not come.
 */
#include "device.h"

#include "tutti/collectives.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 600000, MANY = 300, GUARD = 64, PATIENCE_MS = 500, LATE_US = 100000 };

static const size_t sizes[] = {0,    1,     15,    16,    17,     511,    8191,   8192,
                               8193, 32768, 32769, 65535, 131072, 131073, 262144, MOST};

/* Byte i of message m. Some lines are all ones, some look like an escape of a line. */
static unsigned char value(int from, int to, int m, size_t i)
{
    const size_t line = i / 16 + (size_t)m;
    if (line % 3 == 0)
        return 0xff;
    if (line % 3 == 1)
        return i % 16 == 8 ? (unsigned char)(0xff - line % 40) : 0xff;
    return (unsigned char)(i * 7 + (size_t)(from * 31 + to * 5 + m));
}

struct side {
    struct ranks *ranks;
    int rank;
    tutti_comm_t *comm;
    unsigned char *send, *recv;
    int limit; /* of blocks, of calls */
};

static int open_side(struct side *self, struct ranks *ranks, int rank, tutti_store_t *store,
                     int max_blocks)
{
    const struct tutti_comm_options options = {.struct_size = sizeof options,
                                               .max_blocks = max_blocks};
    *self = (struct side){.ranks = ranks, .rank = rank};
    RANKS_CHECK(device_join(ranks, rank, store, &options, &self->comm) == TUTTI_OK);
    self->send = device_alloc((size_t)ranks->size * (MOST + 2 * GUARD));
    self->recv = device_alloc((size_t)ranks->size * (MOST + 2 * GUARD));
    return 0;
}

static void close_side(struct side *self)
{
    tutti_comm_destroy(self->comm);
    device_free(self->send);
    device_free(self->recv);
}

static unsigned char *block(unsigned char *of, int peer, size_t shift)
{
    return of + (size_t)peer * (MOST + 2 * GUARD) + GUARD + shift % GUARD;
}

static void fill(const struct side *self, int peer, int m, size_t bytes)
{
    unsigned char *to = block(self->send, peer, (size_t)m * 3);
    for (size_t i = 0; i < bytes; i++)
        to[i] = value(self->rank, peer, m, i);
    memset(block(self->recv, peer, 0) - GUARD, 0x5a, bytes + 2 * GUARD);
}

static int check(const struct side *self, int peer, int m, size_t bytes)
{
    struct ranks *ranks = self->ranks;
    const int rank = self->rank;
    const unsigned char *from = block(self->recv, peer, (size_t)m * 5);
    RANKS_CHECK(from[-1] == 0x5a && from[bytes] == 0x5a);
    for (size_t i = 0; i < bytes; i++)
        RANKS_CHECK(from[i] == value(peer, rank, m, i));
    return 0;
}

/* A message to each peer and one from each. */
static enum tutti_status exchange(const struct side *self, int m, size_t bytes,
                                  tutti_stream_t stream)
{
    const struct tutti_call_options options = {.struct_size = sizeof options,
                                               .max_blocks = self->limit};
    enum tutti_status status = tutti_group_start();
    for (int p = 1; p < self->ranks->size && status == TUTTI_OK; p++) {
        const int to = (self->rank + p) % self->ranks->size;
        const int from = (self->rank + self->ranks->size - p) % self->ranks->size;
        status = tutti_send_with(block(self->send, to, (size_t)m * 3), bytes, TUTTI_UINT8, to,
                                 self->comm, stream, &options);
        if (status == TUTTI_OK)
            status = tutti_recv_with(block(self->recv, from, (size_t)m * 5), bytes, TUTTI_UINT8,
                                     from, self->comm, stream, p == 1 ? NULL : &options);
    }
    const enum tutti_status ended = tutti_group_end();
    return status == TUTTI_OK ? ended : status;
}

static int exchange_check(const struct side *self, int m, size_t bytes, CUgraphExec exec)
{
    struct ranks *ranks = self->ranks;
    const int rank = self->rank;
    int failed = 0;
    for (int peer = 0; peer < ranks->size; peer++)
        if (peer != rank)
            fill(self, peer, m, bytes);
    if (exec)
        RANKS_CHECK(cuGraphLaunch(exec, CU_STREAM_PER_THREAD) == CUDA_SUCCESS);
    else
        RANKS_CHECK(exchange(self, m, bytes, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    RANKS_CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
    for (int peer = 0; peer < ranks->size && !failed; peer++)
        if (peer != rank)
            failed = check(self, peer, m, bytes);
    return failed;
}

static struct standin_launch last_launch(void)
{
    struct standin_launch launch = {.grid = 0};
    (void)standin_launches(&launch, 1);
    return launch;
}

static int all_sizes(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct side self;
    int failed = open_side(&self, ranks, rank, store, 0);
    for (int m = 0; m < (int)(sizeof sizes / sizeof *sizes) && !failed; m++) {
        standin_forget();
        failed = exchange_check(&self, m, sizes[m], NULL);
        struct standin_launch all[2];
        RANKS_CHECK(failed ||
                    (standin_launches(all, 2) == 1 && strcmp(all[0].name, "exchange") == 0));
    }
    close_side(&self);
    return failed;
}

/* In a graph, between eager groups. */
static int replays(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct side self;
    CUstream stream;
    CUgraph graph;
    CUgraphExec exec;
    int failed = open_side(&self, ranks, rank, store, 0);
    if (failed)
        return failed;
    RANKS_CHECK(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0) == CUDA_SUCCESS);
    RANKS_CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
    RANKS_CHECK(exchange(&self, 4, 70000, device_stream(stream)) == TUTTI_OK);
    RANKS_CHECK(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
    RANKS_CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0) == CUDA_SUCCESS);
    for (int turn = 0; turn < 5 && !failed; turn++) {
        failed = exchange_check(&self, 4, 70000, exec);
        if (!failed)
            failed = exchange_check(&self, 5, 1000, NULL);
    }
    cuGraphExecDestroy(exec);
    cuGraphDestroy(graph);
    cuStreamDestroy_v2(stream);
    close_side(&self);
    return failed;
}

/* More messages than a launch has room for, in one direction and in another order on the peer. */
static int many(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct side self;
    const int next = (rank + 1) % ranks->size, last = (rank + ranks->size - 1) % ranks->size;
    int failed = open_side(&self, ranks, rank, store, 0);
    if (failed)
        return failed;
    unsigned char *const out = self.send, *const in = self.recv;
    for (int m = 0; m < MANY; m++)
        for (int i = 0; i < m; i++)
            out[m * MANY + i] = value(rank, next, m, (size_t)i);
    RANKS_CHECK(tutti_group_start() == TUTTI_OK);
    for (int m = 0; m < MANY && rank % 2; m++)
        RANKS_CHECK(tutti_recv(in + m * MANY, (size_t)m, TUTTI_UINT8, last, self.comm,
                               TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    for (int m = 0; m < MANY; m++)
        RANKS_CHECK(tutti_send(out + m * MANY, (size_t)m, TUTTI_UINT8, next, self.comm,
                               TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    for (int m = 0; m < MANY && rank % 2 == 0; m++)
        RANKS_CHECK(tutti_recv(in + m * MANY, (size_t)m, TUTTI_UINT8, last, self.comm,
                               TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    RANKS_CHECK(tutti_group_end() == TUTTI_OK);
    RANKS_CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
    for (int m = 0; m < MANY; m++)
        for (int i = 0; i < m; i++)
            RANKS_CHECK(in[m * MANY + i] == value(last, rank, m, (size_t)i));
    close_side(&self);
    return 0;
}

/* The limits of a communicator, of which the least holds, and of calls, of which each rank has its
 * own, below one block for each message, too. */
static int limits(struct ranks *ranks, int rank, tutti_store_t *store)
{
    static const int of_comm[] = {0, 6, 1}, of_calls[] = {1, 3, 8, 0};
    struct side self;
    int failed = 0;
    for (size_t c = 0; c < sizeof of_comm / sizeof *of_comm && !failed; c++) {
        failed = open_side(&self, ranks, rank, store, rank ? 0 : of_comm[c]);
        unsigned usual = 0;
        for (size_t i = 0; i < 5 && !failed; i++) {
            self.limit = i ? of_calls[(i + (size_t)rank) % 4] : 0;
            standin_forget();
            failed = exchange_check(&self, (int)i, i % 2 ? 40000 : MOST / 2, NULL);
            const unsigned grid = last_launch().grid;
            usual = i == 0 ? grid : usual;
            RANKS_CHECK(failed || (i == 0 && !of_comm[c]) || grid <= (unsigned)of_comm[c] ||
                        !of_comm[c]);
            RANKS_CHECK(failed || !self.limit || grid <= (unsigned)self.limit);
            RANKS_CHECK(failed || i % 2 || !self.limit ||
                        grid == (usual < (unsigned)self.limit ? usual : (unsigned)self.limit));
        }
        close_side(&self);
    }
    return failed;
}

/* Rank 0's one block has to send while it still receives from rank 2, which sends at the end. */
static int one_block(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const struct tutti_call_options options = {.struct_size = sizeof options, .max_blocks = 1};
    const int to = (rank + 1) % 3, from = (rank + 2) % 3, m = 4;
    struct side self;
    int failed = open_side(&self, ranks, rank, store, 0);
    if (failed)
        return failed;
    fill(&self, to, m, MOST);
    RANKS_CHECK(rank || tutti_group_start() == TUTTI_OK);
    RANKS_CHECK(tutti_recv_with(block(self.recv, from, 5 * m), MOST, TUTTI_UINT8, from, self.comm,
                                TUTTI_STREAM_DEFAULT, &options) == TUTTI_OK);
    RANKS_CHECK(tutti_send_with(block(self.send, to, 3 * m), MOST, TUTTI_UINT8, to, self.comm,
                                TUTTI_STREAM_DEFAULT, &options) == TUTTI_OK);
    RANKS_CHECK(rank || tutti_group_end() == TUTTI_OK);
    RANKS_CHECK(last_launch().grid == 1);
    RANKS_CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
    unsigned char *const in = block(self.recv, from, 5 * m);
    for (size_t i = 0; i < MOST; i++)
        RANKS_CHECK(in[i] == value(from, rank, m, i));
    close_side(&self);
    return 0;
}

/* The receiver comes late, so the sender fills all slots of its one channel and waits. */
static int late(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct side self;
    int failed = open_side(&self, ranks, rank, store, 2);
    if (failed)
        return failed;
    fill(&self, !rank, 2, MOST);
    if (rank == 0) {
        RANKS_CHECK(tutti_send(block(self.send, 1, 6), MOST, TUTTI_UINT8, 1, self.comm,
                               TUTTI_STREAM_DEFAULT) == TUTTI_OK);
        ranks_raise(ranks, 1);
    } else {
        RANKS_CHECK(ranks_await(ranks, 1, 1));
        usleep(LATE_US);
        RANKS_CHECK(tutti_recv(block(self.recv, 0, 10), MOST, TUTTI_UINT8, 0, self.comm,
                               TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    }
    RANKS_CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
    failed = rank ? check(&self, 0, 2, MOST) : 0;
    close_side(&self);
    return failed;
}

/* Rank 2 has not read rank 0's message when rank 1 sends to it in a v-form of fewer channels. */
static int limited_later(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const struct tutti_call_options options = {.struct_size = sizeof options, .max_blocks = 4};
    enum { M = 3, BLOCK = 100000 };
    const size_t counts[] = {BLOCK, BLOCK, BLOCK};
    struct side self;
    int failed = open_side(&self, ranks, rank, store, 0);
    if (failed)
        return failed;
    unsigned char *const all = device_alloc(3 * BLOCK);
    fill(&self, 2, M, MOST);
    fill(&self, 0, M, MOST);
    if (rank == 0)
        RANKS_CHECK(tutti_send(block(self.send, 2, 3 * M), MOST, TUTTI_UINT8, 2, self.comm,
                               TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    if (rank == 2) {
        RANKS_CHECK(ranks_await(ranks, 1, 2));
        usleep(LATE_US);
        RANKS_CHECK(tutti_recv(block(self.recv, 0, 5 * M), MOST, TUTTI_UINT8, 0, self.comm,
                               TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    }
    RANKS_CHECK(tutti_all_gather_v_with(block(self.send, 2, 3 * M), BLOCK, all, counts, NULL,
                                        TUTTI_UINT8, self.comm, TUTTI_STREAM_DEFAULT,
                                        &options) == TUTTI_OK);
    ranks_raise(ranks, 1);
    RANKS_CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
    failed = rank == 2 ? check(&self, 0, M, MOST) : 0;
    for (size_t i = 0; i < sizeof counts / sizeof *counts * BLOCK && !failed; i++)
        RANKS_CHECK(all[i] == value((int)(i / BLOCK), 2, M, i % BLOCK));
    device_free(all);
    close_side(&self);
    return failed;
}

/* Rank 1 makes another call than rank 0, or none. */
static int wrong(struct ranks *ranks, int rank, tutti_store_t *store, enum tutti_status expected,
                 int how)
{
    struct side self;
    struct tutti_fault fault = {.struct_size = sizeof fault};
    const struct tutti_call_options options = {.struct_size = sizeof options,
                                               .timeout_ms = how == 2 ? PATIENCE_MS : 0};
    int failed = open_side(&self, ranks, rank, store, 0);
    if (failed)
        return failed;
    if (rank == 0)
        RANKS_CHECK(tutti_recv_with(self.recv, 40000, TUTTI_UINT8, 1, self.comm,
                                    TUTTI_STREAM_DEFAULT, &options) == TUTTI_OK);
    else if (how == 0)
        RANKS_CHECK(tutti_send(self.send, 50, TUTTI_UINT8, 0, self.comm, TUTTI_STREAM_DEFAULT) ==
                    TUTTI_OK);
    else if (how == 1)
        RANKS_CHECK(tutti_all_reduce(self.send, self.recv, 4, TUTTI_INT32, TUTTI_SUM, self.comm,
                                     TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    RANKS_CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
    ranks_raise(ranks, 1);
    RANKS_CHECK(ranks_await(ranks, 1, 2));
    if (rank == 0) {
        RANKS_CHECK(tutti_comm_status(self.comm, &fault) == expected);
        RANKS_CHECK(fault.peer == 1);
    }
    close_side(&self);
    return 0;
}

static int other_size(struct ranks *ranks, int rank, tutti_store_t *store)
{
    return wrong(ranks, rank, store, TUTTI_ERR_MISMATCH, 0);
}

static int other_call(struct ranks *ranks, int rank, tutti_store_t *store)
{
    return wrong(ranks, rank, store, TUTTI_ERR_MISMATCH, 1);
}

static int no_call(struct ranks *ranks, int rank, tutti_store_t *store)
{
    return wrong(ranks, rank, store, TUTTI_ERR_TIMEOUT, 2);
}

/* Of 32 channels the last one has no unit of the first message, and some of the next one. */
static int empty_channel(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct side self;
    int failed = open_side(&self, ranks, rank, store, 0);
    for (int m = 0; m < 6 && !failed; m++)
        failed = exchange_check(&self, m, 16 * (m % 2 ? 16000 : 15400), NULL);
    RANKS_CHECK(failed || last_launch().grid == 64);
    close_side(&self);
    return failed;
}

int main(void)
{
    static const struct ranks_part wide[] = {{"empty channel", empty_channel, {2}}};
    static const struct ranks_part parts[] = {{"all sizes", all_sizes, {2, 3, 4}},
                                              {"replays", replays, {2, 3}},
                                              {"many", many, {2, 4}},
                                              {"limits", limits, {2, 4}},
                                              {"one block", one_block, {3}},
                                              {"late", late, {2}},
                                              {"limited later", limited_later, {3}},
                                              {"other size", other_size, {2}},
                                              {"other call", other_call, {2}},
                                              {"no call", no_call, {2}}};
    device_setup();
    setenv("TUTTI_STANDIN_MULTIPROCESSORS", "8", 1);
    int failed = ranks_run_parts(parts, sizeof parts / sizeof *parts);
    setenv("TUTTI_STANDIN_MULTIPROCESSORS", "32", 1);
    failed += ranks_run_parts(wide, sizeof wide / sizeof *wide);
    return failed ? 1 : 0;
}
