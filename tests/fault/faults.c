/* SPDX-License-Identifier: MIT */
#include "faults.h"

#include "../../tools/collective.h"
#include "../../tools/collective_call.h"
#include "../../tools/gpu.h"
#include "base/deadline.h"
#include "base/layout.h"
#include "base/point.h"
#include "comm/comm.h"
#include "cpu/transport/group.h"
#include "device.h"
#include "forced.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    PIECE_BYTES = LAYOUT_PIECE_BUFFER_BYTES / 8, /* of the largest arena */
    ONE_SHOT_BYTES = 5 * PIECE_BYTES / 2,        /* three pieces */
    SWAP_BYTES = 5 * LAYOUT_SWAP_BYTES / 2,      /* likewise, in halves */
    MEMORY_BYTES = 3 * LAYOUT_EXCHANGE_BYTES,
    ROOTED_PIECES = 10,
    V_PIECES = LAYOUT_WINDOW + 1,
    CUDA_MEMORY_BYTES = 4 << 20,
    CUDA_BLOCK_BYTES = 160 << 10,
    NORM_HIDDEN = 24,
    NORM_ROWS_HIDDEN = 1024,
    NORM_CUDA_ROWS = 32,
    NORM_CUDA_BYTES = (NORM_CUDA_ROWS + 1) * NORM_ROWS_HIDDEN * 2,
};

/* The operation passes these; those that are passed once a piece lie in several pieces. */
static const struct faults_point cpu_points[] = {
    {"small.written", CALL_SMALL, 1, PART_MISSING},
    {"small.published", CALL_SMALL, 1, PART_GIVEN},
    {"small.received", CALL_SMALL, 1, PART_GIVEN},
    {"pieces.filled", CALL_ONE_SHOT, 1, PART_MISSING},
    {"pieces.published", CALL_ONE_SHOT, 1, PART_MISSING},
    {"pieces.filled", CALL_ONE_SHOT, 3, PART_MISSING},
    {"pieces.published", CALL_ONE_SHOT, 3, PART_GIVEN},
    {"swap.filled", CALL_SWAP, 1, PART_MISSING},
    {"swap.published", CALL_SWAP, 1, PART_MISSING},
    {"swap.published", CALL_SWAP, 2, PART_MISSING},
    {"swap.taken", CALL_SWAP, 3, PART_MISSING},
    {"swap.filled", CALL_SWAP, 6, PART_MISSING},
    {"swap.published", CALL_SWAP, 6, PART_GIVEN},
    {"pieces.filled", CALL_GATHER, 1, PART_MISSING},
    {"pieces.published", CALL_GATHER, 3, PART_GIVEN},
    {"pieces.filled", CALL_SCATTER, 3, PART_MISSING},
    {"pieces.published", CALL_SCATTER, 3, PART_GIVEN},
    {"pieces.filled", CALL_TO_ALL, 3, PART_MISSING},
    {"pieces.published", CALL_TO_ALL, 3, PART_GIVEN},
    {"pair.entered", CALL_BROADCAST, 1, PART_MISSING},
    {"pair.sent", CALL_BROADCAST, 1, PART_MISSING},
    {"pair.sent", CALL_BROADCAST, ROOTED_PIECES, PART_GIVEN},
    {"pair.received", CALL_COLLECT, 1, PART_MISSING},
    {"pair.sent", CALL_DEAL, 1, PART_MISSING},
    {"pair.reduced", CALL_REDUCE, 1, PART_MISSING},
    {"pair.offered", CALL_OFFER, 1, PART_UNSURE}, /* the others can read the block */
    {"pair.answered", CALL_TAKE, 1, PART_MISSING},
    {"pair.received", CALL_TAKE, 1, PART_MISSING},
    {"pair.entered", CALL_COLLECT_V, 1, PART_MISSING},
    {"pair.received", CALL_COLLECT_V, 1, PART_MISSING},
    {"pair.entered", CALL_DEAL_V, 1, PART_MISSING},
    {"pair.sent", CALL_DEAL_V, 1, PART_MISSING},
    {"pair.sent", CALL_GATHER_V, 1, PART_MISSING},
    {"pair.reduced", CALL_SCATTER_V, 1, PART_MISSING},
    {"pair.entered", CALL_TO_ALL_V, 1, PART_MISSING},
    {"pair.received", CALL_TO_ALL_V, 1, PART_MISSING},
    {"pair.received", CALL_COUNTED_TO_ALL, 1, PART_MISSING},
    {"pair.reduced", CALL_COUNTED_REDUCE, 1, PART_MISSING},
    {"pair.entered", CALL_SET, 1, PART_MISSING},
    {"pair.sent", CALL_SET, 1, PART_MISSING},
    {"pair.received", CALL_SET, 1, PART_UNSURE}, /* the barrier may have been entered */
    {"two_shot.filled", CALL_TWO_SHOT, 1, PART_MISSING},
    {"two_shot.reduced", CALL_TWO_SHOT, 1, PART_MISSING},
    {"two_shot.filled", CALL_TWO_SHOT, 3, PART_MISSING},
    {"two_shot.collected", CALL_TWO_SHOT, 1, PART_MISSING},
    {"two_shot.reduced", CALL_TWO_SHOT, 5, PART_MISSING},
    {"two_shot.collected", CALL_TWO_SHOT, 5, PART_GIVEN},
    {"small.written", CALL_NORM, 1, PART_MISSING},
    {"two_shot.reduced", CALL_NORM_ROWS, 1, PART_MISSING},
    {"direct.entered", CALL_DIRECT, 1, PART_MISSING},
    {"direct.reduced", CALL_DIRECT, 1, PART_MISSING},
    {"mesh.filled", CALL_MESH, 1, PART_MISSING},
    {"mesh.folded", CALL_MESH, 1, PART_MISSING},
    {"mesh.crossed", CALL_MESH, 1, PART_UNSURE}, /* the other quad has all it needs */
    {"mesh.collected", CALL_MESH, 1, PART_GIVEN},
    {"barrier.entered", CALL_BARRIER, 1, PART_MISSING},
    {"subset.published", CALL_SUBSET, 1, PART_GIVEN},
};

/* On a GPU the points are this file's own: kernels have none. */
static const struct faults_point cuda_points[] = {
    {"call.before", CALL_SMALL, 1, PART_MISSING},
    {"call.enqueued", CALL_SMALL, 1, PART_UNSURE},
    {"call.before", CALL_LINES, 1, PART_MISSING},
    {"call.before", CALL_TWO_SHOT, 1, PART_MISSING},
    {"call.before", CALL_PIPELINED, 1, PART_MISSING},
    {"call.enqueued", CALL_PIPELINED, 1, PART_UNSURE},
    {"call.before", CALL_RING, 1, PART_MISSING},
    {"call.enqueued", CALL_RING, 1, PART_UNSURE},
    {"call.before", CALL_MESH, 1, PART_MISSING},
    {"call.enqueued", CALL_MESH, 1, PART_UNSURE},
    {"call.before", CALL_BARRIER, 1, PART_MISSING},
    {"call.before", CALL_SUBSET, 1, PART_MISSING},
    {"call.before", CALL_TO_ALL_V, 1, PART_MISSING},
    {"call.enqueued", CALL_TO_ALL_V, 1, PART_UNSURE},
    {"call.before", CALL_SCATTER_V, 1, PART_MISSING},
    {"call.before", CALL_COUNTED_TO_ALL, 1, PART_MISSING},
    {"call.enqueued", CALL_COUNTED_TO_ALL, 1, PART_UNSURE},
    {"call.before", CALL_COUNTED_REDUCE, 1, PART_MISSING},
    {"call.before", CALL_NORM, 1, PART_MISSING},
    {"call.enqueued", CALL_NORM_ROWS, 1, PART_UNSURE},
};

enum {
    CPU_POINTS = sizeof cpu_points / sizeof *cpu_points,
    CUDA_POINTS = sizeof cuda_points / sizeof *cuda_points,
};

/* ---- the point ------------------------------------------------------------------------------- */

void (*point_hook)(const char *name);

/* What the calling thread is up to. */
static _Thread_local struct {
    struct faults_rank *self;
    void (*action)(struct faults_rank *self);
    int operation;
    int passage;
} plan;

static void hook(const char *name)
{
    const struct faults_scenario *scenario = plan.self ? plan.self->scenario : NULL;
    if (!scenario || (!scenario->anywhere && plan.operation != FAULT_AT))
        return;
    const struct faults_point *point = scenario->point;
    if (strcmp(name, point->name) != 0 || ++plan.passage != point->passage)
        return;
    /* On a GPU others may still be in the operation before, which must succeed. */
    if (device_is_cuda() && !scenario->anywhere)
        ranks_await(plan.self->ranks, FAULTS_FLAG, (uint32_t)plan.self->ranks->size - 1);
    plan.action(plan.self);
}

static void hook_enqueued(void)
{
    hook("call.enqueued");
}

void faults_arm(struct faults_rank *self, void (*action)(struct faults_rank *self))
{
    plan.self = self;
    plan.action = action;
    plan.operation = 0;
    plan.passage = 0;
}

void faults_happened(struct ranks *ranks)
{
    struct faults_shared *shared = (struct faults_shared *)(void *)ranks->shared;
    __atomic_store_n(&shared->happened_ns, deadline_now(), __ATOMIC_RELEASE);
    __atomic_store_n(&shared->reached, 1, __ATOMIC_RELEASE);
}

/* ---- a rank ---------------------------------------------------------------------------------- */

/* A communicator of all but the victim. */
static enum tutti_status join_others(const struct faults_rank *self, const char *name,
                                     tutti_comm_t **comm)
{
    int victim = self->scenario->victim, rank = self->rank - (self->rank > victim);
    struct tutti_comm_options options = {
        .struct_size = sizeof options, .name = name, .timeout_ms = RANKS_TIMEOUT_MS};
    return tutti_comm_create(self->store, rank, self->ranks->size - 1, &options, comm);
}

int faults_begin(struct faults_rank *self, struct ranks *ranks, int rank, tutti_store_t *store)
{
    *self = (struct faults_rank){
        .ranks = ranks, .scenario = ranks->context, .rank = rank, .store = store};
    const enum faults_call call = self->scenario->point->call;
    if (ranks->processes && (call == CALL_DIRECT || call == CALL_OFFER || call == CALL_TAKE)) {
        RANKS_CHECK(tutti_symm_group("faults", rank, ranks->size, store, &self->group) == TUTTI_OK);
        RANKS_CHECK(tutti_symm_alloc(self->group, TUTTI_DEVICE_CPU, MEMORY_BYTES, &self->memory) ==
                    TUTTI_OK);
        RANKS_CHECK(tutti_symm_rendezvous(self->memory, RANKS_TIMEOUT_MS, NULL) == TUTTI_OK);
    } else {
        self->memory = calloc(1, device_is_cuda() ? CUDA_MEMORY_BYTES : MEMORY_BYTES);
        RANKS_CHECK(self->memory);
    }
    if (device_is_cuda() && (call == CALL_NORM || call == CALL_NORM_ROWS))
        RANKS_CHECK(device_bind(rank) && gpu_stream_create(&self->stream) &&
                    (self->device = gpu_alloc(NORM_CUDA_BYTES)) != NULL);
    return 0;
}

void faults_end(struct faults_rank *self)
{
    if (!self->group)
        free(self->memory);
    if (self->device)
        gpu_free(self->device);
    gpu_stream_destroy(self->stream);
    self->device = NULL;
    self->stream = NULL;
    tutti_symm_group_destroy(self->group);
    self->memory = NULL;
    self->group = NULL;
}

int faults_open(struct faults_rank *self, struct ranks *ranks, int rank, tutti_store_t *store)
{
    int failed = faults_begin(self, ranks, rank, store);
    if (failed)
        return failed;
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &self->comm) == TUTTI_OK);
    if (rank != self->scenario->victim && ranks_fit(ranks->size - 1))
        RANKS_CHECK(join_others(self, "others", &self->others) == TUTTI_OK);
    return 0;
}

void faults_close(struct faults_rank *self)
{
    plan.self = NULL;
    tutti_comm_destroy(self->comm);
    tutti_comm_destroy(self->others);
    faults_end(self);
}

/* Another dtype is one that all transports know. */
static enum tutti_status reduce(struct faults_rank *self, size_t count, enum tutti_dtype dtype,
                                const struct tutti_call_options *options)
{
    if (self->wrong == WRONG_ORDER)
        return tutti_barrier_with(self->comm, NULL, 0, TUTTI_STREAM_DEFAULT, options);
    if (self->wrong == WRONG_COUNT)
        count--;
    if (self->wrong == WRONG_DTYPE)
        dtype = dtype == TUTTI_UINT8 ? TUTTI_INT8 : TUTTI_BFLOAT16;
    return tutti_all_reduce_with(self->memory, self->memory, count, dtype,
                                 self->wrong == WRONG_OP ? TUTTI_MAX : TUTTI_SUM, self->comm,
                                 TUTTI_STREAM_DEFAULT, options);
}

/* Of floats: some kernels know nothing else. Where a host thread stages there are none. */
static enum tutti_status all_reduce_cuda(struct faults_rank *self, int kernel, size_t bytes,
                                         int64_t timeout_ms)
{
    const int forced = device_is_shared() ? TUTTI_ALGO_HOST_STAGED : kernel;
    struct tutti_call_options options = {.struct_size = sizeof options,
                                         .algo = forced_algo(self->comm, forced),
                                         .timeout_ms = timeout_ms};
    return reduce(self, bytes / sizeof(float), TUTTI_FLOAT32, &options);
}

static enum tutti_status all_reduce(struct faults_rank *self, enum tutti_algo algo, size_t bytes,
                                    uint32_t flags, int64_t timeout_ms)
{
    struct tutti_call_options options = {
        .struct_size = sizeof options, .algo = algo, .flags = flags, .timeout_ms = timeout_ms};
    return reduce(self, bytes, TUTTI_UINT8, &options);
}

/* Of blocks in three pieces, in place. */
static enum tutti_status blocks(struct faults_rank *self, enum tutti_collective which,
                                int64_t timeout_ms)
{
    const size_t size = (size_t)self->ranks->size;
    const struct tutti_call_options options = {
        .struct_size = sizeof options, .flags = TUTTI_CALL_NO_ZERO_COPY, .timeout_ms = timeout_ms};
    const enum tutti_dtype dtype = self->wrong == WRONG_DTYPE ? TUTTI_INT8 : TUTTI_UINT8;
    const tutti_op_t op = self->wrong == WRONG_OP ? TUTTI_MAX : TUTTI_SUM;
    const size_t most =
        collectives[which].send_all ? ONE_SHOT_BYTES / size : MEMORY_BYTES / size; /* five fit */
    const size_t count =
        (most < ONE_SHOT_BYTES ? most : ONE_SHOT_BYTES) - (self->wrong == WRONG_COUNT);
    if (self->wrong == WRONG_ORDER)
        return tutti_barrier_with(self->comm, NULL, 0, TUTTI_STREAM_DEFAULT, &options);
    if (self->wrong == WRONG_OP)
        which = TUTTI_COLLECTIVE_REDUCE_SCATTER;
    const struct collective *collective = &collectives[which];
    unsigned char *all = self->memory;
    unsigned char *own = all + (size_t)collective_own_block(collective, self->rank) * count;
    return collective_call(which, collective->send_all ? all : own,
                           collective->recv_all ? all : own, &count, dtype, op, 0, self->comm,
                           &options);
}

/* Of the lane PAIR: more than may be unread. The victim is the root. The blocks of a v-form differ.
 */
static enum tutti_status pairs(struct faults_rank *self, enum tutti_collective which,
                               int64_t timeout_ms)
{
    const enum faults_call call = self->scenario->point->call;
    const bool copies = call != CALL_OFFER && call != CALL_TAKE;
    const bool is_counted = call == CALL_COUNTED_TO_ALL || call == CALL_COUNTED_REDUCE;
    struct tutti_call_options options = {.struct_size = sizeof options,
                                         .flags = copies ? TUTTI_CALL_NO_ZERO_COPY : 0,
                                         .timeout_ms = timeout_ms};
    const bool to_all =
        which == TUTTI_COLLECTIVE_BROADCAST || which == TUTTI_COLLECTIVE_ALL_GATHER_V;
    const bool varies = collectives[which].varies;
    const size_t most = device_is_cuda()
                            ? CUDA_BLOCK_BYTES
                            : cpu_group_of(self->comm->peers)->areas.message_bytes[to_all] *
                                  (size_t)(varies ? V_PIECES : ROOTED_PIECES);
    size_t counts[TUTTI_MAX_RANKS];
    for (size_t r = 0; r < TUTTI_MAX_RANKS; r++)
        counts[r] =
            most - (varies && call != CALL_COUNTED_TO_ALL ? r : 0) - (self->wrong == WRONG_COUNT);
    if (self->wrong == WRONG_ORDER)
        return tutti_barrier_with(self->comm, NULL, 0, TUTTI_STREAM_DEFAULT, &options);
    if (is_counted && !device_is_shared()) { /* kernels alone read counts on a GPU */
        options.flags |= TUTTI_CALL_DEVICE_COUNTS;
        options.max_count = most;
    }
    if (self->wrong == WRONG_OP)
        which = varies ? TUTTI_COLLECTIVE_REDUCE_SCATTER_V : TUTTI_COLLECTIVE_REDUCE;
    /* Five ranks gather more than a half, and two ranks scatter more than a quarter. */
    unsigned char *send = self->memory,
                  *recv = send + MEMORY_BYTES / (collectives[which].send_all ? 2 : 4);
    return collective_call(which, send, recv, counts,
                           self->wrong == WRONG_DTYPE ? TUTTI_INT8 : TUTTI_UINT8,
                           self->wrong == WRONG_OP ? TUTTI_MAX : TUTTI_SUM, self->scenario->victim,
                           self->comm, &options);
}

/* Messages are longer than may be unread. */
static enum tutti_status call_set(struct faults_rank *self, int64_t timeout_ms)
{
    const struct tutti_call_options options = {
        .struct_size = sizeof options, .flags = TUTTI_CALL_NO_ZERO_COPY, .timeout_ms = timeout_ms};
    unsigned char *send = self->memory, *recv = send + MEMORY_BYTES / 2;
    const size_t count = cpu_group_of(self->comm->peers)->areas.message_bytes[0] * ROOTED_PIECES;
    enum tutti_status status = tutti_group_start();
    if (status != TUTTI_OK)
        return status;
    status = collective_send_recv(send, recv, count, TUTTI_UINT8, self->comm, &options);
    if (status == TUTTI_OK)
        status = tutti_all_reduce_with(send + count, recv + count, 100, TUTTI_UINT8, TUTTI_SUM,
                                       self->comm, TUTTI_STREAM_DEFAULT, &options);
    if (status == TUTTI_OK)
        status = tutti_barrier_with(self->comm, NULL, 0, TUTTI_STREAM_DEFAULT, &options);
    const enum tutti_status ended = tutti_group_end();
    return status == TUTTI_OK ? ended : status;
}

/* Five pieces on CPU, whether they are pushed or pulled. */
static size_t two_shot_bytes(const struct faults_rank *self)
{
    const size_t size = (size_t)self->ranks->size;
    return cpu_group_of(self->comm->peers)->limits.pushes
               ? MEMORY_BYTES / 2 / (size - 1) * size - 4096
               : 9 * PIECE_BYTES / 2;
}

static enum tutti_status two_shot(struct faults_rank *self, int64_t timeout_ms)
{
    if (device_is_cuda())
        return all_reduce_cuda(self, FORCED(TWO_SHOT_LINES), 512 * 1024, timeout_ms);
    return all_reduce(self, TUTTI_ALGO_TWO_SHOT, two_shot_bytes(self), TUTTI_CALL_NO_ZERO_COPY,
                      timeout_ms);
}

/* Of rows of bfloat16, in place. A GPU's operands lie in its memory, the weight behind the rows.
 * Threads that share a GPU share its default stream too, on which one's kernel would stand behind
 * the other's. So each has its own stream. */
static enum tutti_status norm(struct faults_rank *self, size_t hidden, size_t tokens,
                              enum tutti_algo algo, int64_t timeout_ms)
{
    static const uint16_t weight[NORM_ROWS_HIDDEN] __attribute__((aligned(16)));
    const bool is_other = self->wrong == WRONG_COUNT;
    char *rows = self->device ? self->device : self->memory;
    const struct tutti_call_options options = {.struct_size = sizeof options,
                                               .algo = device_is_shared() ? TUTTI_ALGO_NONE : algo,
                                               .flags =
                                                   device_is_cuda() ? 0 : TUTTI_CALL_NO_ZERO_COPY,
                                               .timeout_ms = timeout_ms};
    const struct tutti_rms_norm call = {
        .struct_size = sizeof call,
        .tokens = tokens,
        .hidden = hidden - (is_other ? 8 : 0),
        .dtype = self->wrong == WRONG_DTYPE ? TUTTI_FLOAT16 : TUTTI_BFLOAT16,
        .input = rows,
        .norm_out = rows,
        .weight = self->device ? rows + tokens * hidden * sizeof *weight : (const void *)weight,
        .weight_dtype = TUTTI_BFLOAT16,
        .epsilon = self->wrong == WRONG_OP ? 1e-6f : 1e-5f,
    };
    if (self->wrong == WRONG_ORDER)
        return tutti_barrier_with(self->comm, NULL, 0, TUTTI_STREAM_DEFAULT, &options);
    if (!self->device)
        return tutti_all_reduce_rms_norm_with(&call, self->comm, TUTTI_STREAM_DEFAULT, &options);
    return device_wait(device_all_reduce_rms_norm(&call, self->comm, self->stream, &options),
                       self->comm, self->stream);
}

static enum tutti_status norm_rows(struct faults_rank *self, int64_t timeout_ms)
{
    const size_t rows =
        self->device ? NORM_CUDA_ROWS : two_shot_bytes(self) / NORM_ROWS_HIDDEN / sizeof(uint16_t);
    return norm(self, NORM_ROWS_HIDDEN, rows, TUTTI_ALGO_TWO_SHOT, timeout_ms);
}

static enum tutti_status mesh(struct faults_rank *self, int64_t timeout_ms)
{
    if (device_is_cuda())
        return all_reduce_cuda(self, TUTTI_ALGO_HYBRID_CUBE_MESH, CUDA_MEMORY_BYTES / 4,
                               timeout_ms);
    return all_reduce(self, TUTTI_ALGO_HYBRID_CUBE_MESH, 20000, 0, timeout_ms);
}

static const enum tutti_collective collective_of[] = {
    [CALL_GATHER] = TUTTI_COLLECTIVE_ALL_GATHER,
    [CALL_SCATTER] = TUTTI_COLLECTIVE_REDUCE_SCATTER,
    [CALL_TO_ALL] = TUTTI_COLLECTIVE_ALL_TO_ALL,
    [CALL_BROADCAST] = TUTTI_COLLECTIVE_BROADCAST,
    [CALL_COLLECT] = TUTTI_COLLECTIVE_GATHER,
    [CALL_REDUCE] = TUTTI_COLLECTIVE_REDUCE,
    [CALL_DEAL] = TUTTI_COLLECTIVE_SCATTER,
    [CALL_OFFER] = TUTTI_COLLECTIVE_BROADCAST,
    [CALL_TAKE] = TUTTI_COLLECTIVE_GATHER,
    [CALL_COLLECT_V] = TUTTI_COLLECTIVE_GATHER_V,
    [CALL_DEAL_V] = TUTTI_COLLECTIVE_SCATTER_V,
    [CALL_GATHER_V] = TUTTI_COLLECTIVE_ALL_GATHER_V,
    [CALL_SCATTER_V] = TUTTI_COLLECTIVE_REDUCE_SCATTER_V,
    [CALL_TO_ALL_V] = TUTTI_COLLECTIVE_ALL_TO_ALL_V,
    [CALL_COUNTED_TO_ALL] = TUTTI_COLLECTIVE_ALL_TO_ALL_V,
    [CALL_COUNTED_REDUCE] = TUTTI_COLLECTIVE_REDUCE_SCATTER_V,
};

/* Whether the operations pass this rank by. */
static bool is_apart(const struct faults_rank *self)
{
    const int victim = self->scenario->victim;
    return self->scenario->point->call == CALL_SUBSET && self->rank != victim &&
           self->rank != (victim + 1) % self->ranks->size;
}

static enum tutti_status subset(struct faults_rank *self, const struct tutti_call_options *options)
{
    const int size = self->ranks->size, victim = self->scenario->victim;
    const int pair[] = {victim, (victim + 1) % size};
    if (is_apart(self))
        return TUTTI_OK;
    return tutti_barrier_with(self->comm, size > 2 ? pair : NULL, size > 2 ? 2 : 0,
                              TUTTI_STREAM_DEFAULT, options);
}

enum tutti_status faults_call(struct faults_rank *self, int64_t timeout_ms)
{
    const uint32_t copies = TUTTI_CALL_NO_ZERO_COPY;
    struct tutti_call_options options = {.struct_size = sizeof options, .timeout_ms = timeout_ms};
    plan.operation++;
    hook("call.before");
    switch (self->scenario->point->call) {
    case CALL_PIPELINED:
        return all_reduce_cuda(self, FORCED(TWO_SHOT_PIPELINED), CUDA_MEMORY_BYTES, timeout_ms);
    case CALL_LINES:
        return all_reduce_cuda(self, FORCED(ONE_SHOT_LINES), 64 * 1024, timeout_ms);
    case CALL_NORM:
        return norm(self, NORM_HIDDEN, 2, TUTTI_ALGO_ONE_SHOT, timeout_ms);
    case CALL_NORM_ROWS:
        return norm_rows(self, timeout_ms);
    case CALL_SMALL:
        return all_reduce(self, TUTTI_ALGO_ONE_SHOT, 100, 0, timeout_ms);
    case CALL_ONE_SHOT:
        return all_reduce(self, TUTTI_ALGO_ONE_SHOT, ONE_SHOT_BYTES, copies, timeout_ms);
    case CALL_SWAP:
        return all_reduce(self, TUTTI_ALGO_ONE_SHOT, SWAP_BYTES, copies, timeout_ms);
    case CALL_TWO_SHOT:
        return two_shot(self, timeout_ms);
    case CALL_DIRECT:
        return all_reduce(self, TUTTI_ALGO_TWO_SHOT, MEMORY_BYTES, 0, timeout_ms);
    case CALL_RING:
        return all_reduce_cuda(self, TUTTI_ALGO_RING, CUDA_MEMORY_BYTES / 4, timeout_ms);
    case CALL_MESH:
        return mesh(self, timeout_ms);
    case CALL_GATHER:
    case CALL_SCATTER:
    case CALL_TO_ALL:
        return blocks(self, collective_of[self->scenario->point->call], timeout_ms);
    case CALL_BROADCAST:
    case CALL_COLLECT:
    case CALL_DEAL:
    case CALL_REDUCE:
    case CALL_COLLECT_V:
    case CALL_DEAL_V:
    case CALL_GATHER_V:
    case CALL_SCATTER_V:
    case CALL_TO_ALL_V:
    case CALL_COUNTED_TO_ALL:
    case CALL_COUNTED_REDUCE:
    case CALL_OFFER:
    case CALL_TAKE:
        return pairs(self, collective_of[self->scenario->point->call], timeout_ms);
    case CALL_SET:
        return call_set(self, timeout_ms);
    case CALL_BARRIER:
        if (self->wrong == WRONG_ORDER) {
            self->wrong = WRONG_NOTHING;
            return all_reduce(self, TUTTI_ALGO_NONE, 100, 0, timeout_ms);
        }
        break;
    case CALL_SUBSET:
        return subset(self, &options);
    }
    return tutti_barrier_with(self->comm, NULL, 0, TUTTI_STREAM_DEFAULT, &options);
}

/* ---- what must follow ------------------------------------------------------------------------ */

static void note_time(struct ranks *ranks)
{
    struct faults_shared *shared = (struct faults_shared *)(void *)ranks->shared;
    int64_t took = deadline_now() - __atomic_load_n(&shared->happened_ns, __ATOMIC_ACQUIRE);
    int64_t longest = __atomic_load_n(&shared->noticed_ns, __ATOMIC_RELAXED);
    while (took > longest &&
           !__atomic_compare_exchange_n(&shared->noticed_ns, &longest, took, false,
                                        __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
}

uint64_t faults_numbers(const struct faults_rank *self)
{
    const enum faults_call call = self->scenario->point->call;
    return call == CALL_SUBSET ? 0 : call == CALL_SET ? 2 : 1;
}

/* The fault as the communicator tells it, first noticed in an operation from `first` to `last`. */
static int check_fault(struct faults_rank *self, enum tutti_status expected, int first, int last)
{
    struct ranks *ranks = self->ranks;
    const int rank = self->rank, victim = self->scenario->victim;
    const uint64_t numbers = faults_numbers(self);
    struct tutti_fault fault = {.struct_size = sizeof fault};
    char name[16], text[512];
    snprintf(name, sizeof name, "rank %d", victim);
    RANKS_CHECK(strstr(tutti_last_error(), name));
    RANKS_CHECK(tutti_comm_status(self->comm, &fault) == expected);
    RANKS_CHECK(fault.status == expected && fault.peer == victim);
    RANKS_CHECK(fault.rank >= 0 && fault.rank < ranks->size);
    /* The thread of a communicator on CUDA notices an end or an abort between two operations, too.
     * It then names the former. */
    if (device_is_cuda() && (expected == TUTTI_ERR_ABORTED || expected == TUTTI_ERR_PEER_DEAD))
        first--;
    if (numbers)
        RANKS_CHECK(fault.sequence > numbers * (uint64_t)(first - 1) &&
                    fault.sequence <= numbers * (uint64_t)last);
    RANKS_CHECK(tutti_fault_format(&fault, text, sizeof text) > 0 && strstr(text, name));
    return 0;
}

int faults_first(const struct faults_rank *self)
{
    return FAULT_AT + (self->scenario->point->part == PART_GIVEN);
}

int faults_last(const struct faults_rank *self)
{
    return self->scenario->point->part == PART_UNSURE ? FAULT_AT + 1 : faults_first(self);
}

/* Where one of the others has yet to come 20 ms after the first it may never do so, having heard of
 * the victim's end: then the operation to which the victim gave its part fails nevertheless. */
static bool is_late(const struct faults_rank *self, int operation,
                    const struct faults_shared *shared)
{
    enum { LATE_NS = 20000000 };
    return self->scenario->point->part == PART_GIVEN && operation == FAULT_AT &&
           deadline_now() - __atomic_load_n(&shared->begun_ns, __ATOMIC_RELAXED) >= LATE_NS;
}

static void note_begin(const struct faults_rank *self, int operation, struct faults_shared *shared)
{
    int64_t none = 0;
    if (operation == FAULT_AT && self->rank != self->scenario->victim)
        __atomic_compare_exchange_n(&shared->begun_ns, &none, deadline_now(), false,
                                    __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

int faults_suffer(struct faults_rank *self, enum tutti_status expected, int first, int last,
                  int64_t timeout_ms)
{
    struct ranks *ranks = self->ranks;
    struct faults_shared *shared = (struct faults_shared *)(void *)ranks->shared;
    const int rank = self->rank;
    enum tutti_status status = TUTTI_OK;
    int operation = 1;
    for (; status == TUTTI_OK && operation < first && !is_apart(self); operation++) {
        note_begin(self, operation, shared);
        status = faults_call(self, RANKS_TIMEOUT_MS);
        if (status != TUTTI_OK && status == expected && is_late(self, operation, shared))
            __atomic_store_n(&shared->late, 1, __ATOMIC_RELEASE);
        else
            RANKS_CHECK(status == TUTTI_OK);
    }
    if (rank != self->scenario->victim) {
        ranks_raise(ranks, FAULTS_FLAG);
        RANKS_CHECK(ranks_await(ranks, FAULTS_FLAG, (uint32_t)ranks->size - 1));
    }
    if (__atomic_load_n(&shared->late, __ATOMIC_ACQUIRE))
        first = FAULT_AT;
    for (; status == TUTTI_OK && operation <= last && !is_apart(self); operation++)
        status = faults_call(self, timeout_ms);
    if (is_apart(self))
        status = tutti_barrier(self->comm, NULL, 0, TUTTI_STREAM_DEFAULT);
    note_time(ranks);
    RANKS_CHECK(status == expected);
    return check_fault(self, expected, first, last);
}

int faults_survive(struct faults_rank *self, enum tutti_status expected)
{
    struct ranks *ranks = self->ranks;
    const int rank = self->rank;
    tutti_comm_t *comm;
    int64_t start = deadline_now();
    float one = 1, sum;
    RANKS_CHECK(tutti_barrier(self->comm, NULL, 0, TUTTI_STREAM_DEFAULT) == expected);
    RANKS_CHECK(tutti_all_reduce(&one, &sum, 1, TUTTI_FLOAT32, TUTTI_SUM, self->comm,
                                 TUTTI_STREAM_DEFAULT) == expected);
    RANKS_CHECK(deadline_now() - start < (int64_t)FAULT_SOON_MS * 1000000);
    if (!self->others)
        return 0;

    RANKS_CHECK(tutti_all_reduce(&one, &sum, 1, TUTTI_FLOAT32, TUTTI_SUM, self->others,
                                 TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    RANKS_CHECK(sum == (float)(ranks->size - 1));
    tutti_comm_destroy(self->comm);
    self->comm = NULL;
    RANKS_CHECK(join_others(self, "anew", &comm) == TUTTI_OK);
    RANKS_CHECK(tutti_all_reduce(&one, &sum, 1, TUTTI_FLOAT32, TUTTI_SUM, comm,
                                 TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    RANKS_CHECK(sum == (float)(ranks->size - 1));
    tutti_comm_destroy(comm);
    return 0;
}

/* ---- all of them ----------------------------------------------------------------------------- */

static int run_one(const struct faults_scenario *scenario, int size, bool processes, ranks_fn *fn,
                   int64_t *noticed_ns)
{
    struct ranks *ranks = ranks_create(size, processes ? size : 0, sizeof(struct faults_shared));
    const struct faults_shared *shared = (const struct faults_shared *)(void *)ranks->shared;
    ranks->context = scenario;
    ranks->expendable = UINT64_C(1) << scenario->victim;
    int failed = ranks_run(ranks, fn);
    if (!shared->reached)
        failed = printf("the point was not reached\n");
    if (shared->noticed_ns > *noticed_ns)
        *noticed_ns = shared->noticed_ns;
    if (failed)
        printf("failed: rank %d of %d at %s, passage %d\n", scenario->victim, size,
               scenario->point->name, scenario->point->passage);
    ranks_destroy(ranks);
    return failed ? 1 : 0;
}

/* From `least` ranks, unless they are GPUs, whose processes take seconds to start: then as many as
 * fit. A mesh has 8, or, if it should be quick, is left out.
 */
static int least_of(const struct faults_point *point, int *most)
{
    /* The only subset of two ranks is all of them, and their pieces swap. */
    const bool in_pieces = point->call == CALL_ONE_SHOT || point->call == CALL_GATHER ||
                           point->call == CALL_SCATTER || point->call == CALL_TO_ALL;
    int least = point->call == CALL_SUBSET || in_pieces ? 3 : 2;
    if (point->call == CALL_SWAP)
        *most = 2;
    if (point->call == CALL_REDUCE && *most > 4)
        *most = 4; /* more ranks that have a core each reduce by a two-shot: choose.c */
    if (point->call == CALL_MESH) {
        *most = ranks_short() || !ranks_fit(8) ? 0 : 8;
        return 8;
    }
    if (!device_is_cuda())
        return least;
    while (*most >= least && !ranks_fit(*most))
        --*most;
    return *most > least ? *most : least;
}

/* Threads that share a GPU launch together, so they have no kernel of messages. Only that kernel
 * reads the counts of an all-to-all. Without a forced algorithm the counts are the host's. */
static bool is_served(const struct faults_point *point, int size, bool processes)
{
    return processes || point->call != CALL_COUNTED_TO_ALL || device_is_shared() ||
           !device_threads_share(size);
}

int faults_run_all(const char *title, bool processes, int most, ranks_fn *fn,
                   bool (*takes)(const struct faults_point *point))
{
    int failures = 0, runs = 0, count;
    const struct faults_point *points = faults_points(&count);
    int64_t noticed_ns = 0;
    faults_arena_limit();
    faults_watch();
    faults_directory_create();
    if (ranks_short() && most > 3)
        most = 3;
    for (int p = 0; p < count; p++) {
        const struct faults_point *point = &points[p];
        int largest = most, least = least_of(point, &largest);
        for (int size = least; size <= largest && takes(point); size++) {
            for (int victim = 0; victim < size; victim += size - 1) {
                /* On GPUs the first or the last in turn, if it should be quick. */
                if (device_is_cuda() && ranks_short() && (victim == 0) != (p % 2 == 0))
                    continue;
                if (!is_served(point, size, processes))
                    continue;
                struct faults_scenario scenario = {.point = point, .victim = victim};
                runs++;
                failures += run_one(&scenario, size, processes, fn, &noticed_ns);
            }
        }
    }
    failures += faults_directory_check();
    printf("%s: %d runs, %d failed, noticed within %.1f ms\n", title, runs, failures,
           (double)noticed_ns / 1e6);
    return failures || !runs ? 1 : 0;
}

const struct faults_point *faults_points(int *count)
{
    *count = device_is_cuda() ? CUDA_POINTS : CPU_POINTS;
    return device_is_cuda() ? cuda_points : cpu_points;
}

void faults_watch(void)
{
    point_hook = hook;
    device_enqueued = hook_enqueued;
}

void faults_pass(const char *name)
{
    hook(name);
}

bool faults_first_of_call(const struct faults_point *point)
{
    return point == cpu_points || point == cuda_points || point[-1].call != point->call;
}

bool faults_all(const struct faults_point *point)
{
    (void)point;
    return true;
}

/* ---- nothing left ---------------------------------------------------------------------------- */

static char directory[32];

void faults_directory_create(void)
{
    strcpy(directory, "/tmp/tutti-fault-XXXXXX");
    if (!mkdtemp(directory) || setenv("TUTTI_DIR", directory, 1) != 0)
        abort();
}

/* Entries of a directory that begin so. */
static int count_entries(const char *path, const char *beginning)
{
    int count = 0;
    DIR *stream = opendir(path);
    for (struct dirent *entry; stream && (entry = readdir(stream));)
        if (entry->d_name[0] != '.' && strncmp(entry->d_name, beginning, strlen(beginning)) == 0)
            count += printf("left behind: %s/%s\n", path, entry->d_name) > 0;
    if (stream)
        closedir(stream);
    return count;
}

int faults_directory_check(void)
{
    int left = count_entries(directory, "") + count_entries("/dev/shm", "tutti");
    if (waitpid(-1, NULL, WNOHANG) >= 0 || errno != ECHILD)
        left += printf("left behind: a process\n") > 0;
    if (rmdir(directory) != 0)
        perror(directory);
    return left;
}
