/* SPDX-License-Identifier: MIT */
/*
 * Collectives into the peers' symmetric recv, by copy engines and by a kernel: bits, in place too,
 * on streams, in graphs and groups, among threads that share a device; what is launched; that no
 * recv is written before its owner has come, and none is read before it is whole; each refusal;
 * ranks that disagree, abort, die or are late in the first or in the second wait; driver calls that
 * fail.
 */
#include "../../tools/collective_call.h"
#include "device.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    MOST = 70000,
    RANKS = 6,
    ROOT = 1,
    OPERAND = RANKS * MOST,
    RECV_AT = 48, /* of the two operands in symmetric memory */
    SEND_AT = OPERAND + 4096,
    BYTES = 2 * SEND_AT,
    GUARD = 0x5a,
    PATIENCE_MS = 500,
    LATE_US = 100000,
};

static const enum tutti_collective moves[] = {
    TUTTI_COLLECTIVE_ALL_GATHER, TUTTI_COLLECTIVE_ALL_TO_ALL, TUTTI_COLLECTIVE_BROADCAST,
    TUTTI_COLLECTIVE_GATHER, TUTTI_COLLECTIVE_SCATTER};
enum { MOVES = sizeof moves / sizeof *moves };

struct side {
    struct ranks *ranks;
    int rank;
    tutti_comm_t *comm;
    tutti_symm_group_t *group;
    unsigned char *buffer, *other; /* symmetric */
    unsigned char *ordinary;
    CUstream stream;
};

/* Of the calls: the copy engines', or the kernel's. */
static uint32_t push_flag;

static bool by_engines(void)
{
    return push_flag == TUTTI_CALL_COPY_ENGINE;
}

static bool says(const char *words)
{
    return strstr(tutti_last_error(), words) != NULL;
}

static int side_open_on(struct side *self, struct ranks *ranks, int rank, tutti_store_t *store,
                        int device)
{
    const struct tutti_comm_options options = {.struct_size = sizeof options,
                                               .device = TUTTI_DEVICE_CUDA};
    *self = (struct side){.ranks = ranks, .rank = rank};
    RANKS_CHECK(device_enter(device));
    RANKS_CHECK(ranks_join(ranks, rank, store, &options, &self->comm) == TUTTI_OK);
    RANKS_CHECK(cuStreamCreateWithPriority(&self->stream, CU_STREAM_NON_BLOCKING, 0) ==
                CUDA_SUCCESS);
    RANKS_CHECK(tutti_symm_group("engines", rank, ranks->size, store, &self->group) == TUTTI_OK);
    for (int i = 0; i < 2; i++) {
        void *buffer;
        RANKS_CHECK(tutti_symm_alloc(self->group, TUTTI_DEVICE_CUDA, BYTES, &buffer) == TUTTI_OK);
        RANKS_CHECK(tutti_symm_rendezvous(buffer, RANKS_TIMEOUT_MS, NULL) == TUTTI_OK);
        *(i ? &self->other : &self->buffer) = buffer;
    }
    self->ordinary = device_alloc(OPERAND);
    return 0;
}

static int side_open(struct side *self, struct ranks *ranks, int rank, tutti_store_t *store)
{
    return side_open_on(self, ranks, rank, store, rank);
}

static void side_close(struct side *self)
{
    tutti_comm_destroy(self->comm);
    tutti_symm_group_destroy(self->group);
    device_free(self->ordinary);
    cuStreamDestroy_v2(self->stream);
}

/* ---- one operation --------------------------------------------------------------------------- */

struct operation {
    enum tutti_collective which;
    size_t bytes; /* of a block */
    bool in_place;
    int turn; /* another one has other data */
    unsigned char *send, *recv;
};

static unsigned char value(const struct operation *operation, int from, int to, size_t i)
{
    const bool one = !collectives[operation->which].send_all;
    return (unsigned char)(i * 7 + i / 251 +
                           (size_t)(from * 31 + (one ? 0 : to) * 5 + operation->turn * 3));
}

static bool has(bool at_root, int rank)
{
    return !at_root || rank == ROOT;
}

/* Writes guards and inputs. In place only the root of a rooted collective. */
static void operation_begin(const struct side *self, struct operation *operation)
{
    const struct collective *row = &collectives[operation->which];
    const size_t bytes = operation->bytes;
    const size_t own = bytes * (size_t)(row->rooted ? ROOT : self->rank);
    const bool alike = !row->rooted || self->rank == ROOT;
    operation->send = self->ordinary;
    operation->recv = self->buffer + RECV_AT;
    if (operation->in_place && row->send_all) {
        operation->recv = self->buffer + SEND_AT + own;
        operation->send = alike ? self->buffer + SEND_AT : self->ordinary;
    } else if (operation->in_place && alike) {
        operation->send = operation->recv + (row->recv_all ? own : 0);
    }
    memset(self->buffer, GUARD, BYTES);
    for (int to = 0; to < collective_send_blocks(row, self->ranks->size); to++)
        for (size_t i = 0; i < bytes && has(row->send_at_root, self->rank); i++)
            operation->send[(size_t)to * bytes + i] = value(operation, self->rank, to, i);
}

static enum tutti_status call(const struct side *self, const struct operation *operation,
                              uint32_t flags, int64_t timeout_ms, tutti_stream_t stream)
{
    const struct tutti_call_options options = {
        .struct_size = sizeof options, .flags = flags, .timeout_ms = timeout_ms};
    return collective_call_on(stream, operation->which, operation->send, operation->recv,
                              &operation->bytes, TUTTI_UINT8, TUTTI_SUM, ROOT, self->comm,
                              &options);
}

static enum tutti_status push(const struct side *self, const struct operation *operation)
{
    return call(self, operation, push_flag, 0, device_stream(self->stream));
}

static int operation_check(const struct side *self, const struct operation *operation)
{
    struct ranks *ranks = self->ranks;
    const int rank = self->rank;
    const struct collective *row = &collectives[operation->which];
    const size_t bytes = operation->bytes;
    const int blocks = collective_recv_blocks(row, ranks->size);
    const unsigned char *recv = operation->recv;
    if (!has(row->recv_at_root, rank)) {
        for (size_t i = 0; i < bytes * (size_t)blocks; i++)
            RANKS_CHECK(recv[i] == GUARD);
        return 0;
    }
    for (int b = 0; b < blocks; b++)
        for (size_t i = 0; i < bytes; i++)
            RANKS_CHECK(recv[(size_t)b * bytes + i] ==
                        value(operation, row->send_at_root ? ROOT : b, rank, i));
    RANKS_CHECK(recv[bytes * (size_t)blocks] == GUARD || (operation->in_place && row->send_all));
    RANKS_CHECK(recv[-1] == GUARD || (operation->in_place && row->send_all));
    return 0;
}

static bool meet(struct ranks *ranks, int flag, int *times)
{
    ranks_raise(ranks, flag);
    return ranks_await(ranks, flag, (uint32_t)(++*times * ranks->size));
}

/* The peers may write as soon as this rank has called, and read until its stream has passed. */
static int run(const struct side *self, struct operation *operation, CUgraphExec exec)
{
    struct ranks *ranks = self->ranks;
    const int rank = self->rank;
    operation_begin(self, operation);
    if (exec)
        RANKS_CHECK(cuGraphLaunch(exec, self->stream) == CUDA_SUCCESS);
    else
        RANKS_CHECK(push(self, operation) == TUTTI_OK);
    RANKS_CHECK(cuStreamSynchronize(self->stream) == CUDA_SUCCESS);
    RANKS_CHECK(tutti_comm_status(self->comm, NULL) == TUTTI_OK);
    return operation_check(self, operation);
}

/* The copies of a rank, the own block too, on its stream and others. */
static uint64_t copies_of(const struct side *self, const struct operation *operation)
{
    const struct collective *row = &collectives[operation->which];
    const bool alike = !row->rooted || self->rank == ROOT;
    const int own = !(operation->in_place && alike);
    if (!has(row->send_at_root, self->rank) || !operation->bytes)
        return 0;
    if (!by_engines() && self->ranks->size > 1)
        return 0;
    return row->recv_at_root ? (uint64_t)(self->rank == ROOT ? own : 1)
                             : (uint64_t)(self->ranks->size - 1 + own);
}

/* What was launched: two barriers around the copies; a kernel with the blocks that the bytes need;
 * a barrier, if there are none. */
static int launches_check(const struct side *self, const struct operation *operation)
{
    struct ranks *ranks = self->ranks;
    const int rank = self->rank;
    const bool is_barrier = by_engines() || !operation->bytes;
    /* of 480 lines; the devices hold four */
    const size_t lines = (operation->bytes + 15) / 16,
                 needed = lines > 3 * 480 ? 4 : (lines + 479) / 480;
    struct standin_launch launches[3];
    const size_t count = standin_launches(launches, 3);
    RANKS_CHECK(standin_calls("cuMemcpyAsync") == copies_of(self, operation));
    RANKS_CHECK(count == (ranks->size == 1 ? 0u : by_engines() ? 2u : 1u));
    for (size_t l = 0; l < count; l++) {
        RANKS_CHECK(strcmp(launches[l].name, is_barrier ? "barrier" : "copy_symmetric") == 0);
        RANKS_CHECK(launches[l].grid == (is_barrier ? 1 : needed));
        RANKS_CHECK(launches[l].block == (is_barrier ? 32 : 512));
        RANKS_CHECK(!launches[l].parameters.subset || !launches[l].attribute_count);
    }
    return 0;
}

static int bits(struct ranks *ranks, int rank, tutti_store_t *store)
{
    static const size_t sizes[] = {0, 1, 17, 4096, MOST};
    struct side self;
    int failed = side_open(&self, ranks, rank, store);
    for (int i = 0; i < 2 * MOVES * 5 && !failed; i++) {
        struct operation operation = {
            .which = moves[i / 10], .bytes = sizes[i % 5], .in_place = i / 5 % 2, .turn = i};
        if (operation.which == TUTTI_COLLECTIVE_ALL_TO_ALL && operation.in_place)
            continue;
        if (ranks->size <= ROOT && collectives[operation.which].rooted)
            continue;
        standin_forget();
        failed = run(&self, &operation, NULL) || launches_check(&self, &operation);
    }
    RANKS_CHECK(failed || cuda_group_sequence(self.comm->group) ==
                              (uint64_t)(ranks->size > ROOT ? 2 * MOVES * 5 - 5 : 15));
    side_close(&self);
    return failed;
}

/* Each rank has its own limit of blocks. */
static int limits(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct side self;
    struct operation operation = {.which = TUTTI_COLLECTIVE_ALL_TO_ALL, .bytes = MOST};
    const struct tutti_call_options options = {
        .struct_size = sizeof options, .flags = push_flag, .max_blocks = rank + 1};
    struct standin_launch launch;
    int failed = side_open(&self, ranks, rank, store);
    RANKS_CHECK(!failed);
    operation_begin(&self, &operation);
    standin_forget();
    RANKS_CHECK(collective_call_on(device_stream(self.stream), operation.which, operation.send,
                                   operation.recv, &operation.bytes, TUTTI_UINT8, TUTTI_SUM, ROOT,
                                   self.comm, &options) == TUTTI_OK);
    RANKS_CHECK(cuStreamSynchronize(self.stream) == CUDA_SUCCESS);
    RANKS_CHECK(standin_launches(&launch, 1) > 0);
    RANKS_CHECK(launch.grid == (by_engines() ? 1u : (unsigned)options.max_blocks));
    failed = operation_check(&self, &operation);
    side_close(&self);
    return failed;
}

/* ---- streams, graphs, groups ----------------------------------------------------------------- */

/* The last node of the capture waits for `chains` copies, and these wait for one node. */
static int graph_check(const struct side *self, size_t chains)
{
    struct ranks *ranks = self->ranks;
    const int rank = self->rank;
    CUstreamCaptureStatus state;
    const CUgraphNode *nodes;
    const CUgraphEdgeData *edges;
    CUgraphNode ends[8], first = NULL, before;
    const int most = 1 + (ranks->size + (int)chains - 1) / (int)chains;
    size_t count = 8;
    uint64_t id;
    RANKS_CHECK(cuStreamGetCaptureInfo_v3(self->stream, &state, &id, NULL, &nodes, &edges,
                                          &count) == CUDA_SUCCESS &&
                count == 1);
    count = 8;
    RANKS_CHECK(cuGraphNodeGetDependencies_v2(nodes[0], ends, NULL, &count) == CUDA_SUCCESS);
    RANKS_CHECK(count == chains);
    for (size_t c = 0; c < chains; c++) {
        int depth = 0;
        for (CUgraphNode node = ends[c]; node; node = count ? before : NULL) {
            count = 1;
            RANKS_CHECK(cuGraphNodeGetDependencies_v2(node, &before, NULL, &count) == CUDA_SUCCESS);
            RANKS_CHECK(depth++ < most);
            if (!count) {
                RANKS_CHECK(!first || node == first);
                first = node;
            }
        }
    }
    return 0;
}

static int replays(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct side self;
    struct operation operation = {.which = TUTTI_COLLECTIVE_ALL_GATHER, .bytes = 3000};
    const size_t chains = ranks->size < CUDA_COPY_CHAINS ? (size_t)ranks->size : CUDA_COPY_CHAINS;
    CUgraph graph;
    CUgraphExec exec;
    int failed = side_open(&self, ranks, rank, store);
    if (failed)
        return failed;
    operation_begin(&self, &operation);
    standin_forget();
    RANKS_CHECK(cuStreamBeginCapture_v2(self.stream, CU_STREAM_CAPTURE_MODE_GLOBAL) ==
                CUDA_SUCCESS);
    RANKS_CHECK(push(&self, &operation) == TUTTI_OK);
    failed = by_engines() && graph_check(&self, chains);
    RANKS_CHECK(failed || push(&self, &operation) == TUTTI_OK);
    RANKS_CHECK(standin_calls("cuStreamCreateWithPriority") == 0);
    RANKS_CHECK(cuStreamEndCapture(self.stream, &graph) == CUDA_SUCCESS);
    RANKS_CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0) == CUDA_SUCCESS);
    for (int turn = 0; turn < 6 && !failed; turn++) {
        operation.turn = turn;
        failed = run(&self, &operation, turn % 3 ? exec : NULL);
    }
    RANKS_CHECK(failed ||
                standin_calls("cuStreamCreateWithPriority") == (by_engines() ? chains - 1 : 0));
    cuGraphExecDestroy(exec);
    cuGraphDestroy(graph);
    side_close(&self);
    return failed;
}

/* Among other operations of the communicator, on other streams and in groups. */
static int mixed(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const int pair[] = {0, 1};
    struct side self;
    struct operation operation = {.which = TUTTI_COLLECTIVE_ALL_TO_ALL, .bytes = 2000};
    int failed = side_open(&self, ranks, rank, store);
    int32_t *ones = (int32_t *)(void *)(self.other + SEND_AT);
    for (int turn = 0; turn < 5 && !failed; turn++) {
        *ones = 1;
        operation.turn = turn;
        operation_begin(&self, &operation);
        RANKS_CHECK(tutti_all_reduce(ones, ones, 1, TUTTI_INT32, TUTTI_SUM, self.comm,
                                     TUTTI_STREAM_PER_THREAD) == TUTTI_OK);
        RANKS_CHECK(rank > 1 || turn % 2 ||
                    tutti_barrier(self.comm, pair, 2, device_stream(self.stream)) == TUTTI_OK);
        RANKS_CHECK(tutti_group_start() == TUTTI_OK);
        RANKS_CHECK(push(&self, &operation) == TUTTI_OK);
        RANKS_CHECK(call(&self, &operation, push_flag | TUTTI_CALL_NO_ZERO_COPY, 0,
                         TUTTI_STREAM_PER_THREAD) == TUTTI_OK);
        RANKS_CHECK(tutti_group_end() == TUTTI_OK);
        RANKS_CHECK(tutti_all_reduce(ones, ones, 1, TUTTI_INT32, TUTTI_SUM, self.comm,
                                     device_stream(self.stream)) == TUTTI_OK);
        RANKS_CHECK(cuStreamSynchronize(self.stream) == CUDA_SUCCESS);
        RANKS_CHECK(tutti_comm_status(self.comm, NULL) == TUTTI_OK);
        RANKS_CHECK(*ones == ranks->size * ranks->size);
        failed = operation_check(&self, &operation);
    }
    side_close(&self);
    return failed;
}

/* ---- order ----------------------------------------------------------------------------------- */

struct watcher {
    const struct side *self;
    bool touched;
};

/* On rank 1's stream before its call: rank 0 has made its own, and must not have written. */
static void look(void *argument)
{
    struct watcher *watcher = argument;
    usleep(LATE_US);
    for (size_t i = 0; i < RECV_AT + OPERAND; i++)
        watcher->touched |= watcher->self->buffer[i] != GUARD;
}

/* `at`: which of rank 0's copies is held. */
static int order_once(const struct side *self, int at, int *times)
{
    struct ranks *ranks = self->ranks;
    const int rank = self->rank;
    struct operation operation = {.which = TUTTI_COLLECTIVE_ALL_GATHER, .bytes = MOST, .turn = at};
    struct watcher watcher = {.self = self};
    operation_begin(self, &operation);
    RANKS_CHECK(meet(ranks, 1, times));
    if (rank == 0)
        standin_hold_copy(at);
    if (rank)
        RANKS_CHECK(cuLaunchHostFunc(self->stream, look, &watcher) == CUDA_SUCCESS);
    RANKS_CHECK(push(self, &operation) == TUTTI_OK);
    RANKS_CHECK(meet(ranks, 1, times));
    usleep(2 * LATE_US); /* rank 0 waits for its copy, rank 1 for rank 0 */
    RANKS_CHECK(!by_engines() || cuStreamQuery(self->stream) == CUDA_ERROR_NOT_READY);
    RANKS_CHECK(meet(ranks, 1, times));
    if (rank == 0)
        standin_hold_copy(0);
    RANKS_CHECK(cuStreamSynchronize(self->stream) == CUDA_SUCCESS);
    RANKS_CHECK(!watcher.touched);
    return operation_check(self, &operation);
}

static int in_order(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct side self;
    int times = 0;
    int failed = side_open(&self, ranks, rank, store);
    for (int turn = 0; turn < 6 && !failed; turn++)
        failed = order_once(&self, 1 + turn % 2, &times);
    side_close(&self);
    return failed;
}

/* ---- refusals -------------------------------------------------------------------------------- */

static int refuses(const struct side *self, struct operation operation, const char *words)
{
    struct ranks *ranks = self->ranks;
    const int rank = self->rank;
    RANKS_CHECK(push(self, &operation) == TUTTI_ERR_INVALID);
    RANKS_CHECK(says(by_engines() ? "TUTTI_CALL_COPY_ENGINE" : "TUTTI_CALL_SYMMETRIC"));
    RANKS_CHECK(says(words) && says("leave the flag out"));
    return 0;
}

static int other_calls(const struct side *self, const struct operation *good)
{
    static const enum tutti_collective others[] = {
        TUTTI_COLLECTIVE_ALL_REDUCE, TUTTI_COLLECTIVE_REDUCE_SCATTER, TUTTI_COLLECTIVE_REDUCE,
        TUTTI_COLLECTIVE_ALL_GATHER_V, TUTTI_COLLECTIVE_SCATTER_V};
    static const char serve[] = "is for all_gather, all_to_all, broadcast, gather and scatter";
    const struct tutti_call_options options = {.struct_size = sizeof options, .flags = push_flag};
    const struct tutti_call_options unknown = {.struct_size = sizeof unknown, .flags = 1 << 20};
    const struct tutti_call_options both = {.struct_size = sizeof both,
                                            .flags = TUTTI_CALL_COPY_ENGINE | TUTTI_CALL_SYMMETRIC};
    struct ranks *ranks = self->ranks;
    const int rank = self->rank;
    tutti_comm_t *comm = self->comm;
    enum tutti_algo algo;
    struct operation bad = *good;
    int failed = 0;
    for (size_t i = 0; i < sizeof others / sizeof *others && !failed; i++) {
        bad.which = others[i];
        failed = refuses(self, bad, serve);
    }
    RANKS_CHECK(!failed);
    RANKS_CHECK(tutti_send_with(good->send, 1, TUTTI_UINT8, !rank, comm, NULL, &options) ==
                TUTTI_ERR_INVALID);
    RANKS_CHECK(says(serve));
    RANKS_CHECK(tutti_barrier_with(comm, NULL, 0, NULL, &options) == TUTTI_ERR_INVALID);
    RANKS_CHECK(says(serve));
    RANKS_CHECK(tutti_comm_algorithm(comm, 1, TUTTI_UINT8, TUTTI_SUM, &options, &algo, NULL) ==
                TUTTI_ERR_INVALID);
    RANKS_CHECK(says(serve));
    RANKS_CHECK(tutti_all_gather_with(good->send, good->recv, 1, TUTTI_UINT8, comm, NULL,
                                      &unknown) == TUTTI_ERR_INVALID);
    RANKS_CHECK(says("flags 0x100000"));
    RANKS_CHECK(tutti_all_gather_with(good->send, good->recv, 1, TUTTI_UINT8, comm, NULL, &both) ==
                TUTTI_ERR_INVALID);
    RANKS_CHECK(says("expected one of them at most"));
    return 0;
}

static int other_operands(const struct side *self, const struct operation *good)
{
    struct operation bad = *good;
    bad.recv = self->ordinary + 1000;
    int failed = refuses(self, bad, "is not in symmetric memory of the 2 ranks");
    bad.recv = self->buffer + BYTES - 199; /* its last byte is outside */
    failed = failed || refuses(self, bad, "is not in symmetric memory");
    bad = *good;
    bad.which = TUTTI_COLLECTIVE_GATHER;
    bad.recv = self->rank == ROOT ? self->ordinary + 1000 : NULL;
    failed = failed || refuses(self, bad, "those that are not the root too");
    bad = *good;
    bad.which = TUTTI_COLLECTIVE_ALL_TO_ALL;
    bad.send = bad.recv;
    return failed || refuses(self, bad, "in place the peers would overwrite");
}

/* Of other ranks, and of ranks that have not met. */
static int other_memory(const struct side *self, const struct operation *good, tutti_store_t *store)
{
    struct ranks *ranks = self->ranks;
    const int rank = self->rank;
    struct operation bad = *good;
    tutti_symm_group_t *alone;
    void *own, *unmet;
    char name[16];
    snprintf(name, sizeof name, "alone-%d", rank);
    RANKS_CHECK(tutti_symm_group(name, 0, 1, store, &alone) == TUTTI_OK);
    RANKS_CHECK(tutti_symm_alloc(alone, TUTTI_DEVICE_CUDA, BYTES, &own) == TUTTI_OK);
    RANKS_CHECK(tutti_symm_rendezvous(own, 0, NULL) == TUTTI_OK);
    RANKS_CHECK(tutti_symm_alloc(self->group, TUTTI_DEVICE_CUDA, BYTES, &unmet) == TUTTI_OK);
    bad.recv = own;
    int failed = refuses(self, bad, "is not in symmetric memory");
    bad.recv = unmet;
    failed = failed || refuses(self, bad, "after tutti_symm_rendezvous()");
    tutti_symm_group_destroy(alone);
    return failed;
}

static int refusals(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct operation good = {.which = TUTTI_COLLECTIVE_ALL_GATHER, .bytes = 100};
    struct side self;
    int failed = side_open(&self, ranks, rank, store);
    failed = failed || run(&self, &good, NULL) || other_calls(&self, &good) ||
             other_operands(&self, &good) || other_memory(&self, &good, store) ||
             run(&self, &good, NULL); /* nothing has happened */
    side_close(&self);
    return failed;
}

/* Communicators that cannot: on the host; of processes that share a device; without links. */
static int cannot(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct tutti_comm_options options = {.struct_size = sizeof options};
    static const char *const names[] = {"cpu", "shared", "apart"};
    static const char *const words[] = {"and this is a CPU communicator",
                                        "(processes share a device)", "cannot map a peer's memory"};
    setenv("TUTTI_STANDIN_NO_PEER", "0-1", 1);
    setenv("TUTTI_ALLOW_OVERLAPPING_DEVICES", "1", 1);
    for (int i = 0; i < 3; i++) {
        struct side self = {.ranks = ranks, .rank = rank};
        const struct operation operation = {.which = TUTTI_COLLECTIVE_ALL_GATHER, .bytes = 1};
        unsigned char memory[2];
        options.device = i ? TUTTI_DEVICE_CUDA : TUTTI_DEVICE_CPU;
        options.name = names[i];
        RANKS_CHECK(device_enter(i == 2 ? rank : 0));
        RANKS_CHECK(ranks_join(ranks, rank, store, &options, &self.comm) == TUTTI_OK);
        struct operation given = operation;
        given.send = given.recv = i ? device_alloc(2) : memory;
        given.send += rank;
        const enum tutti_status status = call(&self, &given, push_flag, 0, NULL);
        RANKS_CHECK(status == (i ? TUTTI_ERR_DECLINED : TUTTI_ERR_INVALID));
        RANKS_CHECK(says(words[i]) && says("leave the flag out"));
        tutti_comm_destroy(self.comm);
        if (i)
            device_free(given.recv);
    }
    return 0;
}

/* ---- what goes wrong --------------------------------------------------------------------------
 */

/* The fault is there once the streams have passed. */
static int suffer(const struct side *self, enum tutti_status expected, int peer, uint64_t sequence,
                  const char *words)
{
    struct ranks *ranks = self->ranks;
    const int rank = self->rank;
    struct tutti_fault fault = {.struct_size = sizeof fault};
    RANKS_CHECK(cuStreamSynchronize(self->stream) == CUDA_SUCCESS);
    for (int i = 0; i < 1000 && tutti_comm_status(self->comm, NULL) == TUTTI_OK; i++)
        usleep(10000);
    RANKS_CHECK(tutti_comm_status(self->comm, &fault) == expected);
    RANKS_CHECK(peer < 0 || fault.peer == peer);
    RANKS_CHECK(fault.sequence == sequence && says(words));
    return 0;
}

/* Ranks differ in the flag, the offset, the allocation, or the root; or have different flags. */
static int disagree(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const char *const words[] = {by_engines() ? "copy_engine, place of recv hash"
                                              : "symmetric, place of recv hash",
                                 "place of recv hash", "place of recv hash",
                                 "root 1, place of recv hash", "copy_engine, place of recv hash"};
    for (int how = 0; how < 5; how++) {
        struct side self;
        struct operation operation = {.which = how == 3 ? TUTTI_COLLECTIVE_BROADCAST
                                                        : TUTTI_COLLECTIVE_ALL_GATHER,
                                      .bytes = 5000};
        const struct tutti_call_options options = {
            .struct_size = sizeof options,
            .flags = how == 0 && rank   ? 0
                     : how == 4 && rank ? push_flag ^ TUTTI_CALL_COPY_ENGINE ^ TUTTI_CALL_SYMMETRIC
                                        : push_flag};
        int failed = side_open(&self, ranks, rank, store);
        if (failed)
            return failed;
        operation_begin(&self, &operation);
        if (how == 1 && rank)
            operation.recv++;
        if (how == 2 && rank)
            operation.recv = self.other + RECV_AT;
        RANKS_CHECK(collective_call_on(device_stream(self.stream), operation.which, operation.send,
                                       operation.recv, &operation.bytes, TUTTI_UINT8, TUTTI_SUM,
                                       how == 3 ? rank : ROOT, self.comm, &options) == TUTTI_OK);
        failed = suffer(&self, TUTTI_ERR_MISMATCH, -1, 1, words[how]);
        side_close(&self);
        RANKS_CHECK(!failed);
        int times = 2 * how;
        RANKS_CHECK(meet(ranks, 1, &times) && meet(ranks, 1, &times));
    }
    return 0;
}

static tutti_comm_t *signalled;

static void on_signal(int number)
{
    (void)number;
    tutti_comm_abort(signalled);
}

enum how { IS_LATE, ABORTS, DIES };

/* What rank 1 does while rank 0 waits for it: in the first wait, when rank 1 has not called; or in
 * the second, when a copy of rank 1 does not end, or its kernel stands still. */
static int leave_alone(struct ranks *ranks, int rank, tutti_store_t *store, bool at_end,
                       enum how how)
{
    static const enum tutti_status faults[] = {TUTTI_ERR_TIMEOUT, TUTTI_ERR_ABORTED,
                                               TUTTI_ERR_PEER_DEAD};
    struct side self;
    struct operation operation = {.which = TUTTI_COLLECTIVE_ALL_GATHER, .bytes = MOST};
    int times = 0;
    int failed = side_open(&self, ranks, rank, store);
    failed = failed || run(&self, &operation, NULL);
    if (failed)
        return failed;
    operation_begin(&self, &operation);
    RANKS_CHECK(meet(ranks, 1, &times));
    if (rank == 1 && by_engines())
        standin_hold_copy(1);
    else if (rank == 1 && at_end)
        standin_stand_still(1);
    if (rank == 0 || at_end)
        RANKS_CHECK(call(&self, &operation, push_flag,
                         rank == 0 && how == IS_LATE ? PATIENCE_MS : 0,
                         device_stream(self.stream)) == TUTTI_OK);
    RANKS_CHECK(meet(ranks, 1, &times));
    usleep(LATE_US);
    if (rank == 1 && how == DIES)
        raise(SIGKILL);
    if (rank == 1 && how == ABORTS) {
        signalled = self.comm;
        signal(SIGUSR1, on_signal);
        raise(SIGUSR1);
    }
    if (rank == 1 && how == IS_LATE)
        RANKS_CHECK(ranks_await(ranks, 2, 1));
    if (rank == 1)
        standin_hold_copy(0);
    failed = suffer(&self, faults[how], 1, how == ABORTS && !at_end && rank ? 1 : 2, "rank 1");
    ranks_raise(ranks, 2);
    side_close(&self);
    return failed;
}

#define LEAVE_ALONE(name, at_end, how)                                                             \
    static int name(struct ranks *ranks, int rank, tutti_store_t *store)                           \
    {                                                                                              \
        ranks->expendable = (how) == DIES ? 2 : 0;                                                 \
        return leave_alone(ranks, rank, store, at_end, how);                                       \
    }
LEAVE_ALONE(late_to_begin, false, IS_LATE)
LEAVE_ALONE(late_to_end, true, IS_LATE)
LEAVE_ALONE(aborts_begin, false, ABORTS)
LEAVE_ALONE(aborts_end, true, ABORTS)
LEAVE_ALONE(dies_at_begin, false, DIES)
LEAVE_ALONE(dies_at_end, true, DIES)

/* Before anything is enqueued a failure is the call's alone; then it is the communicator's. */
static int driver_fails(struct ranks *ranks, int rank, tutti_store_t *store)
{
    static const struct {
        const char *name;
        int at;
        bool harmless;
    } calls[] = {{"cuStreamCreateWithPriority", 1, true},
                 {"cuEventCreate", 1, true},
                 {"cuEventCreate", 2, true},
                 {"cuMemcpyAsync", 1, false},
                 {"cuMemcpyAsync", 2, false},
                 {"cuEventRecord", 1, false},
                 {"cuEventRecord", 2, false},
                 {"cuStreamWaitEvent", 1, false},
                 {"cuStreamWaitEvent", 2, false},
                 {"cuLaunchKernelEx", 1, false},
                 {"cuLaunchKernelEx", 2, false}};
    enum { CALLS = sizeof calls / sizeof *calls, LAUNCHES_AT = CALLS - 2 };
    int times = 0;
    /* The kernel makes no other call than the first launch. */
    for (size_t i = by_engines() ? 0 : LAUNCHES_AT; i < (by_engines() ? CALLS : LAUNCHES_AT + 1);
         i++) {
        struct side self;
        struct operation operation = {.which = TUTTI_COLLECTIVE_ALL_GATHER, .bytes = 5000};
        int failed = side_open(&self, ranks, rank, store);
        if (failed)
            return failed;
        operation_begin(&self, &operation);
        RANKS_CHECK(meet(ranks, 1, &times));
        if (rank == 1) {
            standin_fail(calls[i].name, calls[i].at, CUDA_ERROR_INVALID_VALUE);
            RANKS_CHECK(push(&self, &operation) == TUTTI_ERR_CUDA);
            RANKS_CHECK(says(calls[i].name));
            RANKS_CHECK(calls[i].harmless || says("operation 1 is not enqueued on rank 1"));
            standin_fail(NULL, 0, CUDA_SUCCESS);
        }
        if (rank == 0 || calls[i].harmless) {
            const enum tutti_status status = push(&self, &operation);
            /* Rank 0 may hear of a failure before it begins. */
            RANKS_CHECK(status == TUTTI_OK || (!calls[i].harmless && status == TUTTI_ERR_CUDA));
        }
        if (!calls[i].harmless) {
            failed = suffer(&self, TUTTI_ERR_CUDA, 1, 1, "rank 1");
        } else {
            RANKS_CHECK(cuStreamSynchronize(self.stream) == CUDA_SUCCESS);
            failed = operation_check(&self, &operation);
        }
        RANKS_CHECK(meet(ranks, 1, &times));
        side_close(&self);
        if (failed || device_left() != 0) {
            fprintf(stderr, "%s, call %d\n", calls[i].name, calls[i].at);
            return failed ? failed : 1;
        }
    }
    return 0;
}

/* ---- threads that share a device, and a queue of it -------------------------------------------
 */

static int share(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct side self;
    int failed = side_open_on(&self, ranks, rank, store, 0);
    for (int i = 0; i < 10 && !failed; i++) {
        struct operation operation = {.which = moves[i % MOVES], .bytes = 3000, .turn = i};
        failed = run(&self, &operation, NULL);
    }
    side_close(&self);
    return failed;
}

static int shared(void)
{
    int failed = 0;
    setenv("TUTTI_STANDIN_DEVICES", "1", 1);
    setenv("TUTTI_STANDIN_ONE_CHANNEL", "1", 1);
    setenv("TUTTI_ALLOW_OVERLAPPING_DEVICES", "1", 1);
    setenv("TUTTI_ALGO", "one_shot", 1); /* by kernels */
    for (int size = 2; size <= 4 && !failed; size++) {
        struct ranks *ranks = ranks_create(size, 0, 0);
        failed = ranks_run(ranks, share);
        ranks_destroy(ranks);
        failed += device_left() != 0;
    }
    if (failed)
        fprintf(stderr, "shared failed\n");
    return failed;
}

int main(void)
{
    static const struct ranks_part parts[] = {{"bits", bits, {2, 3, 6}},
                                              {"bits of one", bits, {1}},
                                              {"limits", limits, {2, 3}},
                                              {"replays", replays, {2, 3, 6}},
                                              {"mixed", mixed, {2, 3}},
                                              {"in order", in_order, {2}},
                                              {"refusals", refusals, {2}},
                                              {"cannot", cannot, {2}},
                                              {"disagree", disagree, {2}},
                                              {"late to begin", late_to_begin, {2}},
                                              {"late to end", late_to_end, {2}},
                                              {"aborts the begin", aborts_begin, {2}},
                                              {"aborts the end", aborts_end, {2}},
                                              {"dies at the begin", dies_at_begin, {2}},
                                              {"dies at the end", dies_at_end, {2}},
                                              {"driver fails", driver_fails, {2}}};
    static const uint32_t flags[] = {TUTTI_CALL_COPY_ENGINE, TUTTI_CALL_SYMMETRIC};
    int failures = 0;
    device_setup();
    for (int f = 0; f < 2; f++) {
        push_flag = flags[f];
        failures += ranks_run_parts(parts, sizeof parts / sizeof *parts);
    }
    for (int f = 0; f < 2; f++) {
        push_flag = flags[f];
        failures += shared();
    }
    return failures ? 1 : 0;
}
