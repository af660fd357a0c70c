/* SPDX-License-Identifier: MIT */
/*
 * CUDA communicators from end to end: the same bits as a CPU communicator's, eager and replayed, on
 * any stream, of any size, dtype and operation; created and destroyed in any order; nothing left.
 * Arguments: processes or threads.
 */
#include "device.h"

#include "pool.h"

#include <stdio.h>
#include <string.h>

enum { MOST = 300000, REPLAYS = 5 };

struct rank {
    struct ranks *ranks;
    int rank;
    tutti_comm_t *cuda, *cpu;
    struct pool *pool;
    unsigned char *send, *recv, *golden; /* of device memory */
    CUstream stream;
};

/* One operation on both devices: the same bits. */
static int check(struct rank *self, enum tutti_dtype dtype, tutti_op_t op, size_t count,
                 size_t offset, bool in_place)
{
    struct ranks *ranks = self->ranks;
    const int rank = self->rank;
    size_t bytes = count * tutti_dtype_size(dtype);
    unsigned char *send = self->send + offset * tutti_dtype_size(dtype);
    unsigned char *recv = in_place ? send : self->recv;
    pool_input(self->pool, rank, dtype, offset, count, send);
    memset(self->recv, 0x5a, bytes + 64);
    RANKS_CHECK(tutti_all_reduce(send, self->golden, count, dtype, op, self->cpu,
                                 TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    RANKS_CHECK(tutti_all_reduce(send, recv, count, dtype, op, self->cuda,
                                 device_stream(self->stream)) == TUTTI_OK);
    RANKS_CHECK(cuStreamSynchronize(self->stream) == CUDA_SUCCESS);
    RANKS_CHECK(memcmp(recv, self->golden, bytes) == 0);
    return 0;
}

static int check_all(struct rank *self)
{
    static const size_t counts[] = {0, 1, 3, 64, 1021, 5000, MOST / 16};
    const tutti_op_t ops[] = {TUTTI_SUM, TUTTI_PROD, TUTTI_MIN, TUTTI_MAX, TUTTI_AVG, TUTTI_BXOR};
    struct ranks *ranks = self->ranks;
    const int rank = self->rank;
    enum tutti_algo algo;
    int turn = 0;
    for (int dtype = 0; dtype < TUTTI_DTYPE_COUNT; dtype++) {
        for (size_t o = 0; o < sizeof ops / sizeof *ops; o++) {
            if (tutti_comm_algorithm(self->cpu, 1, (enum tutti_dtype)dtype, ops[o], NULL, &algo,
                                     NULL) != TUTTI_OK) {
                RANKS_CHECK(tutti_all_reduce(self->send, self->recv, 1, (enum tutti_dtype)dtype,
                                             ops[o], self->cuda,
                                             TUTTI_STREAM_DEFAULT) == TUTTI_ERR_INVALID);
                continue;
            }
            for (size_t c = 0; c < sizeof counts / sizeof *counts; c++, turn++) {
                int failed = check(self, (enum tutti_dtype)dtype, ops[o], counts[c],
                                   (size_t)turn % 7, turn % 2);
                if (failed)
                    return failed;
            }
        }
    }
    return 0;
}

/* Two graphs, replayed in turn with each other and with eager calls. */
static int replay(struct rank *self)
{
    struct ranks *ranks = self->ranks;
    const int rank = self->rank;
    CUgraph graphs[2];
    CUgraphExec execs[2];
    float *data = (float *)(void *)self->recv;
    for (int g = 0; g < 2; g++) {
        RANKS_CHECK(cuStreamBeginCapture_v2(self->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) ==
                    CUDA_SUCCESS);
        for (int i = 0; i <= g; i++)
            RANKS_CHECK(tutti_all_reduce(data, data, (size_t)(100 + 30000 * g), TUTTI_FLOAT32,
                                         TUTTI_MAX, self->cuda,
                                         device_stream(self->stream)) == TUTTI_OK);
        RANKS_CHECK(tutti_barrier(self->cuda, NULL, 0, device_stream(self->stream)) == TUTTI_OK);
        RANKS_CHECK(cuStreamEndCapture(self->stream, &graphs[g]) == CUDA_SUCCESS);
        RANKS_CHECK(cuGraphInstantiateWithFlags(&execs[g], graphs[g], 0) == CUDA_SUCCESS);
    }
    for (int i = 0; i < REPLAYS; i++) {
        for (int j = 0; j < 30100; j++)
            data[j] = (float)(i * 1000 + self->rank + j % 7);
        RANKS_CHECK(cuGraphLaunch(execs[i % 2], self->stream) == CUDA_SUCCESS);
        RANKS_CHECK(cuStreamSynchronize(self->stream) == CUDA_SUCCESS);
        for (int j = 0; j < 100 + 30000 * (i % 2); j++)
            RANKS_CHECK(data[j] == (float)(i * 1000 + ranks->size - 1 + j % 7));
        int failed = check(self, TUTTI_BFLOAT16, TUTTI_SUM, 777, 0, false);
        if (failed)
            return failed;
    }
    for (int g = 0; g < 2; g++) {
        RANKS_CHECK(cuGraphExecDestroy(execs[g]) == CUDA_SUCCESS);
        RANKS_CHECK(cuGraphDestroy(graphs[g]) == CUDA_SUCCESS);
    }
    return 0;
}

static int describe(struct rank *self)
{
    static const char *const words[] = {
        "device: cuda\n",          "device_name: Stand-in", "device_uuid: ",
        "compute_capability: 9.0", "plan: one_shot_ll",     "plan: two_shot_pipelined up to any",
        "device_arena_bytes: ",    "state: ready",          "programmatic_launch: on"};
    struct ranks *ranks = self->ranks;
    const int rank = self->rank;
    char text[4096], cut[200];
    int length = tutti_comm_describe(self->cuda, text, sizeof text);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        RANKS_CHECK(strstr(text, words[i]));
    RANKS_CHECK(length == (int)strlen(text));
    RANKS_CHECK(tutti_comm_describe(self->cuda, NULL, 0) == length);
    RANKS_CHECK(tutti_comm_describe(self->cuda, cut, sizeof cut) == length);
    RANKS_CHECK(strncmp(cut, text, sizeof cut - 1) == 0 && strlen(cut) == sizeof cut - 1);
    return 0;
}

static int subset(struct rank *self)
{
    struct ranks *ranks = self->ranks;
    const int rank = self->rank;
    const int pair[] = {ranks->size - 1, 0};
    for (int i = 0; i < 5 && (rank == pair[0] || rank == pair[1]); i++)
        RANKS_CHECK(tutti_barrier(self->cuda, pair, 2, device_stream(self->stream)) == TUTTI_OK);
    RANKS_CHECK(cuStreamSynchronize(self->stream) == CUDA_SUCCESS);
    return check(self, TUTTI_INT64, TUTTI_SUM, 100, 0, true);
}

static int live(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct tutti_comm_options options = {.struct_size = sizeof options, .name = "golden"};
    int order[CUDA_RANKS];
    for (int leaf = 0; leaf < ranks->size; leaf++)
        order[leaf] = ranks->size - 1 - leaf;
    options.leaf_order = order;
    struct rank self = {.ranks = ranks, .rank = rank};
    RANKS_CHECK(ranks_join(ranks, rank, store, &options, &self.cpu) == TUTTI_OK);
    options.name = "device";
    RANKS_CHECK(device_join(ranks, rank, store, &options, &self.cuda) == TUTTI_OK);
    RANKS_CHECK(cuStreamCreateWithPriority(&self.stream, CU_STREAM_NON_BLOCKING, 0) ==
                CUDA_SUCCESS);
    self.pool = pool_create(ranks->size, order, 77);
    self.send = device_alloc(MOST + 128);
    self.recv = device_alloc(MOST + 128);
    self.golden = device_alloc(MOST + 128);
    int failed = check_all(&self);
    if (!failed)
        failed = replay(&self);
    if (!failed)
        failed = subset(&self);
    if (!failed)
        failed = describe(&self);
    RANKS_CHECK(failed || standin_late_loads() == 0);
    RANKS_CHECK(failed || tutti_comm_status(self.cuda, NULL) == TUTTI_OK);
    tutti_comm_destroy(self.cpu);
    tutti_comm_destroy(self.cuda);
    cuStreamDestroy_v2(self.stream);
    device_free(self.send);
    device_free(self.recv);
    device_free(self.golden);
    pool_destroy(self.pool);
    RANKS_CHECK(failed || ranks->processes == 0 || device_left() == 0);
    return failed;
}

/* Several at once, destroyed in different orders by the ranks, used until the end. */
static int many(struct ranks *ranks, int rank, tutti_store_t *store)
{
    enum { COMMS = 4 };
    tutti_comm_t *comms[COMMS];
    RANKS_CHECK(device_enter(rank));
    int32_t *data = device_alloc(64);
    for (int i = 0; i < COMMS; i++)
        RANKS_CHECK(device_join(ranks, rank, store, NULL, &comms[i]) == TUTTI_OK);
    for (int i = 0; i < COMMS; i++) {
        data[0] = 1;
        RANKS_CHECK(tutti_all_reduce(data, data, 1, TUTTI_INT32, TUTTI_SUM, comms[i],
                                     TUTTI_STREAM_PER_THREAD) == TUTTI_OK);
        RANKS_CHECK(cuStreamSynchronize(CU_STREAM_PER_THREAD) == CUDA_SUCCESS);
        RANKS_CHECK(data[0] == ranks->size);
    }
    for (int i = 0; i < COMMS; i++)
        tutti_comm_destroy(comms[rank % 2 ? i : COMMS - 1 - i]);
    device_free(data);
    return 0;
}

static int run(int size, int processes, ranks_fn *fn)
{
    struct ranks *ranks = ranks_create(size, processes, 0);
    int failures = ranks_run(ranks, fn);
    ranks_destroy(ranks);
    return failures;
}

int main(int argc, char **argv)
{
    int failures = 0;
    if (argc != 2)
        return 2;
    device_setup();
    bool threads = strcmp(argv[1], "threads") == 0;
    for (int size = 2; size <= (ranks_short() ? 3 : 4); size++) {
        failures += run(size, threads ? 0 : size, live);
        failures += run(size, threads ? 0 : size, many);
    }
    failures += run(8, threads ? 0 : 4, many);
    if (threads && device_left() != 0)
        failures++;
    return failures ? 1 : 0;
}
