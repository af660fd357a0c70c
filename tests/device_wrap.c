/* SPDX-License-Identifier: MIT */
/*
 * Between a test and the library: see device.h. Each CUDA communicator has a stage, device memory
 * for one operation's operands, at the same place in a line as the host's, with guards around.
 */
#include "device.h"

#include "../tools/gpu.h"
#include "base/error.h"
#include "comm/comm.h"
#include "cpu/transport/group.h"
#include "cuda/runtime/group_internal.h"
#include "tutti/recovery.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD_BYTES = 256, POISON = 0xa5, LINE = 256, MOST_STAGES = 256 };

struct stage {
    tutti_comm_t *comm;
    tutti_stream_t streams[2];
    unsigned turn;              /* of the streams */
    unsigned char *send, *recv; /* on the device, `bytes` each */
    unsigned char *host;        /* what comes back */
    size_t bytes;
};

/* Device memory that no stage uses. It is not freed: CUDA would wait for all kernels of the
 * process, also for those of ranks that wait for the rank that frees. */
struct block {
    struct block *next;
    size_t bytes;
    int device;
    void *memory;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct stage *stages[MOST_STAGES];
static struct block *blocks;
static uint64_t graphs;

void (*device_enqueued)(void);

/* The library's, by the linker's --wrap. */
enum tutti_status __real_tutti_comm_create(tutti_store_t *store, int rank, int world_size,
                                           const struct tutti_comm_options *options,
                                           tutti_comm_t **comm);
enum tutti_status __real_tutti_comm_rendezvous(tutti_comm_t *comm);
enum tutti_status __real_tutti_comm_shrink(tutti_comm_t *comm, tutti_store_t *store,
                                           const struct tutti_shrink_options *options,
                                           tutti_comm_t **shrunk,
                                           struct tutti_shrink_result *result);
enum tutti_status __real_tutti_comm_split(tutti_comm_t *comm, int color, int key,
                                          const struct tutti_comm_options *options,
                                          tutti_comm_t **sub);
enum tutti_status __real_tutti_comm_dup(tutti_comm_t *comm,
                                        const struct tutti_comm_options *options,
                                        tutti_comm_t **dup);
enum tutti_status __real_tutti_comm_destroy(tutti_comm_t *comm);
enum tutti_status __real_tutti_all_reduce_with(const void *send, void *recv, size_t count,
                                               enum tutti_dtype dtype, tutti_op_t op,
                                               tutti_comm_t *comm, tutti_stream_t stream,
                                               const struct tutti_call_options *options);
enum tutti_status __real_tutti_barrier_with(tutti_comm_t *comm, const int *ranks, int count,
                                            tutti_stream_t stream,
                                            const struct tutti_call_options *options);
/* What the tests call. */
enum tutti_status __wrap_tutti_comm_create(tutti_store_t *store, int rank, int world_size,
                                           const struct tutti_comm_options *options,
                                           tutti_comm_t **comm);
enum tutti_status __wrap_tutti_comm_rendezvous(tutti_comm_t *comm);
enum tutti_status __wrap_tutti_comm_shrink(tutti_comm_t *comm, tutti_store_t *store,
                                           const struct tutti_shrink_options *options,
                                           tutti_comm_t **shrunk,
                                           struct tutti_shrink_result *result);
enum tutti_status __wrap_tutti_comm_split(tutti_comm_t *comm, int color, int key,
                                          const struct tutti_comm_options *options,
                                          tutti_comm_t **sub);
enum tutti_status __wrap_tutti_comm_dup(tutti_comm_t *comm,
                                        const struct tutti_comm_options *options,
                                        tutti_comm_t **dup);
enum tutti_status __wrap_tutti_comm_destroy(tutti_comm_t *comm);
enum tutti_status __wrap_tutti_all_reduce(const void *send, void *recv, size_t count,
                                          enum tutti_dtype dtype, tutti_op_t op, tutti_comm_t *comm,
                                          tutti_stream_t stream);
enum tutti_status __wrap_tutti_all_reduce_with(const void *send, void *recv, size_t count,
                                               enum tutti_dtype dtype, tutti_op_t op,
                                               tutti_comm_t *comm, tutti_stream_t stream,
                                               const struct tutti_call_options *options);
enum tutti_status __wrap_tutti_barrier(tutti_comm_t *comm, const int *ranks, int count,
                                       tutti_stream_t stream);
enum tutti_status __wrap_tutti_barrier_with(tutti_comm_t *comm, const int *ranks, int count,
                                            tutti_stream_t stream,
                                            const struct tutti_call_options *options);

/* ---- stages ---------------------------------------------------------------------------------- */

static enum tutti_status broken(void)
{
    return error_set(TUTTI_ERR_CUDA, "device_wrap: %s", gpu_error());
}

/* Of the graph of each call; 0: it is called. */
static int launches(void)
{
    const char *text = getenv("TUTTI_TEST_GRAPH");
    return text ? atoi(text) : 0;
}

/* Whether two streams do. */
static bool takes_turns(void)
{
    const char *text = getenv("TUTTI_TEST_STREAMS");
    return text && strcmp(text, "2") == 0;
}

/* The communicator's, NULL if it has none: it is no CUDA one. */
static struct stage *stage_of(const tutti_comm_t *comm)
{
    struct stage *found = NULL;
    /* Before the lock: tests count those on the way of a CPU operation. */
    if (!comm || comm->config.device != TUTTI_DEVICE_CUDA)
        return NULL;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MOST_STAGES; i++)
        if (stages[i] && stages[i]->comm == comm)
            found = stages[i];
    pthread_mutex_unlock(&lock);
    return found;
}

static void stage_open(tutti_comm_t *comm)
{
    struct stage *stage = calloc(1, sizeof *stage);
    int i = 0;
    if (!stage || !gpu_stream_create(&stage->streams[0]) ||
        !gpu_stream_create(&stage->streams[1])) {
        fprintf(stderr, "device_wrap: %s\n", gpu_error());
        abort();
    }
    stage->comm = comm;
    pthread_mutex_lock(&lock);
    while (i < MOST_STAGES && stages[i])
        i++;
    if (i == MOST_STAGES)
        abort();
    stages[i] = stage;
    pthread_mutex_unlock(&lock);
}

static void block_give(void *memory, size_t bytes)
{
    struct block *block = malloc(sizeof *block);
    if (!block)
        abort();
    pthread_mutex_lock(&lock);
    *block = (struct block){blocks, bytes, device_bound(), memory};
    blocks = block;
    pthread_mutex_unlock(&lock);
}

/* Of the thread's GPU. */
static void *block_take(size_t bytes)
{
    struct block **link = &blocks, *block;
    pthread_mutex_lock(&lock);
    while ((block = *link) && (block->device != device_bound() || block->bytes != bytes))
        link = &block->next;
    if (block)
        *link = block->next;
    pthread_mutex_unlock(&lock);
    if (!block)
        return gpu_alloc(bytes);
    void *memory = block->memory;
    free(block);
    return memory;
}

static void stage_free(struct stage *stage)
{
    if (stage->send)
        block_give(stage->send, stage->bytes);
    if (stage->recv)
        block_give(stage->recv, stage->bytes);
    free(stage->host);
    stage->send = stage->recv = stage->host = NULL;
    stage->bytes = 0;
}

static void stage_close(struct stage *stage)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MOST_STAGES; i++)
        if (stages[i] == stage)
            stages[i] = NULL;
    pthread_mutex_unlock(&lock);
    gpu_stream_destroy(stage->streams[0]);
    gpu_stream_destroy(stage->streams[1]);
    stage_free(stage);
    free(stage);
}

/* Few sizes in all, so that blocks are used again. */
static size_t stage_bytes(size_t bytes)
{
    size_t rounded = getenv("TUTTI_ALLOW_OVERLAPPING_DEVICES") ? (size_t)64 << 20 : 65536;
    while (rounded < bytes)
        rounded *= 4;
    return rounded;
}

static bool stage_reserve(struct stage *stage, size_t bytes)
{
    bytes += 2 * GUARD_BYTES + LINE;
    if (bytes <= stage->bytes)
        return true;
    stage_free(stage);
    bytes = stage_bytes(bytes);
    stage->send = block_take(bytes);
    stage->recv = block_take(bytes);
    stage->host = malloc(bytes);
    stage->bytes = bytes;
    return stage->send && stage->recv && stage->host;
}

/* ---- one operation --------------------------------------------------------------------------- */

/* A call of the library, to be captured or not. */
struct call {
    tutti_comm_t *comm;
    const struct tutti_call_options *options;
    const int *ranks; /* of a barrier */
    bool barrier;
    const void *send;
    void *recv;
    size_t count;
    enum tutti_dtype dtype;
    tutti_op_t op;
};

static enum tutti_status call_make(const struct call *call, tutti_stream_t stream)
{
    if (call->barrier)
        return __real_tutti_barrier_with(call->comm, call->ranks, (int)call->count, stream,
                                         call->options);
    return __real_tutti_all_reduce_with(call->send, call->recv, call->count, call->dtype, call->op,
                                        call->comm, stream, call->options);
}

static enum tutti_status call_capture(const struct call *call, tutti_stream_t stream, void **graph)
{
    if (!gpu_capture_begin(stream))
        return broken();
    enum tutti_status status = call_make(call, stream);
    *graph = gpu_capture_end(stream);
    if (status)
        return status;
    for (int i = 0, count = launches(); i < count; i++)
        if (!*graph || !gpu_graph_launch(*graph, stream))
            return broken();
    __atomic_add_fetch(&graphs, 1, __ATOMIC_RELAXED);
    return TUTTI_OK;
}

uint64_t device_graphs(void)
{
    return __atomic_load_n(&graphs, __ATOMIC_RELAXED);
}

/* The fault that stands, as the thread's last error. */
static enum tutti_status fault_of(tutti_comm_t *comm)
{
    struct tutti_fault fault = {.struct_size = sizeof fault};
    char text[512];
    enum tutti_status status = tutti_comm_status(comm, &fault);
    if (!status)
        return TUTTI_OK;
    tutti_fault_format(&fault, text, sizeof text);
    return error_set(status, "%s", text);
}

/* To the end of the stream, and what came of it. */
static enum tutti_status call_run(const struct call *call, struct stage *stage)
{
    void *graph = NULL;
    tutti_stream_t stream = stage->streams[takes_turns() ? stage->turn++ % 2 : 0];
    enum tutti_status status =
        launches() ? call_capture(call, stream, &graph) : call_make(call, stream);
    if (device_enqueued && !status)
        device_enqueued();
    if (!gpu_stream_synchronize(stream) && !status)
        status = broken();
    gpu_graph_destroy(graph);
    return status ? status : fault_of(call->comm);
}

static bool is_poison(const unsigned char *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (bytes[i] != POISON)
            return false;
    return true;
}

/* Brings the result to the host and looks at what must not have changed. */
static enum tutti_status fetch(struct stage *stage, const unsigned char *device, size_t bytes,
                               void *result)
{
    if (!gpu_copy(stage->host, device - GUARD_BYTES, bytes + 2 * GUARD_BYTES))
        return broken();
    if (!is_poison(stage->host, GUARD_BYTES) ||
        !is_poison(stage->host + GUARD_BYTES + bytes, GUARD_BYTES))
        return error_set(TUTTI_ERR_CUDA, "device_wrap: written beside the output");
    memcpy(result, stage->host + GUARD_BYTES, bytes);
    return TUTTI_OK;
}

static enum tutti_status unchanged(struct stage *stage, const unsigned char *device, size_t bytes,
                                   const void *send)
{
    if (!gpu_copy(stage->host, device, bytes))
        return broken();
    if (memcmp(stage->host, send, bytes) != 0)
        return error_set(TUTTI_ERR_CUDA, "device_wrap: the input was written");
    return TUTTI_OK;
}

static enum tutti_status all_reduce_staged(struct stage *stage, struct call *call)
{
    const void *send = call->send;
    void *recv = call->recv;
    size_t bytes = call->count * tutti_dtype_size(call->dtype);
    bool in_place = send == recv;
    if (!stage_reserve(stage, bytes))
        return broken();
    unsigned char *to = stage->recv + GUARD_BYTES + (uintptr_t)recv % LINE;
    unsigned char *from = in_place ? to : stage->send + GUARD_BYTES + (uintptr_t)send % LINE;
    if (!gpu_fill(to - GUARD_BYTES, POISON, bytes + 2 * GUARD_BYTES) ||
        !gpu_copy(from, send, bytes))
        return broken();
    call->send = from;
    call->recv = to;
    enum tutti_status status = call_run(call, stage);
    if (!status)
        status = fetch(stage, to, bytes, recv);
    if (!status && !in_place)
        status = unchanged(stage, from, bytes, send);
    return status;
}

/* ---- what the tests call --------------------------------------------------------------------- */

enum tutti_status __wrap_tutti_comm_create(tutti_store_t *store, int rank, int world_size,
                                           const struct tutti_comm_options *options,
                                           tutti_comm_t **comm)
{
    struct tutti_comm_options own = {.struct_size = sizeof own};
    if (!device_is_cuda())
        return __real_tutti_comm_create(store, rank, world_size, options, comm);
    if (!device_bind(rank)) /* threads that a test starts itself come here unbound */
        return broken();
    if (options)
        own = *options;
    own.device = TUTTI_DEVICE_CUDA;
    enum tutti_status status = __real_tutti_comm_create(store, rank, world_size, &own, comm);
    if (!status)
        stage_open(*comm);
    return status;
}

enum tutti_status __wrap_tutti_comm_rendezvous(tutti_comm_t *comm)
{
    if (stage_of(comm) && !device_bind(tutti_comm_rank(comm)))
        return broken();
    return __real_tutti_comm_rendezvous(comm);
}

enum tutti_status __wrap_tutti_comm_shrink(tutti_comm_t *comm, tutti_store_t *store,
                                           const struct tutti_shrink_options *options,
                                           tutti_comm_t **shrunk,
                                           struct tutti_shrink_result *result)
{
    bool cuda = stage_of(comm) != NULL;
    if (cuda && !device_bind(tutti_comm_rank(comm)))
        return broken();
    enum tutti_status status = __real_tutti_comm_shrink(comm, store, options, shrunk, result);
    if (cuda && !status)
        stage_open(*shrunk);
    return status;
}

enum tutti_status __wrap_tutti_comm_split(tutti_comm_t *comm, int color, int key,
                                          const struct tutti_comm_options *options,
                                          tutti_comm_t **sub)
{
    const enum tutti_status status = __real_tutti_comm_split(comm, color, key, options, sub);
    if (status == TUTTI_OK && *sub && stage_of(comm))
        stage_open(*sub);
    return status;
}

enum tutti_status __wrap_tutti_comm_dup(tutti_comm_t *comm,
                                        const struct tutti_comm_options *options,
                                        tutti_comm_t **dup)
{
    const enum tutti_status status = __real_tutti_comm_dup(comm, options, dup);
    if (status == TUTTI_OK && stage_of(comm))
        stage_open(*dup);
    return status;
}

enum tutti_status __wrap_tutti_comm_destroy(tutti_comm_t *comm)
{
    struct stage *stage = stage_of(comm);
    bool bound = stage && device_bind(tutti_comm_rank(comm));
    /* Before the stream of its last operation goes. */
    const enum tutti_status status = __real_tutti_comm_destroy(comm);
    if (bound && status == TUTTI_OK)
        stage_close(stage);
    return status;
}

enum tutti_status __wrap_tutti_all_reduce_with(const void *send, void *recv, size_t count,
                                               enum tutti_dtype dtype, tutti_op_t op,
                                               tutti_comm_t *comm, tutti_stream_t stream,
                                               const struct tutti_call_options *options)
{
    struct stage *stage = stage_of(comm);
    struct call call = {.comm = comm,
                        .options = options,
                        .send = send,
                        .recv = recv,
                        .count = count,
                        .dtype = dtype,
                        .op = op};
    if (!stage)
        return __real_tutti_all_reduce_with(send, recv, count, dtype, op, comm, stream, options);
    if (!device_bind(tutti_comm_rank(comm)))
        return broken();
    if (!send || !recv || !count)
        return call_run(&call, stage);
    return all_reduce_staged(stage, &call);
}

enum tutti_status __wrap_tutti_all_reduce(const void *send, void *recv, size_t count,
                                          enum tutti_dtype dtype, tutti_op_t op, tutti_comm_t *comm,
                                          tutti_stream_t stream)
{
    return __wrap_tutti_all_reduce_with(send, recv, count, dtype, op, comm, stream, NULL);
}

enum tutti_status __wrap_tutti_barrier_with(tutti_comm_t *comm, const int *ranks, int count,
                                            tutti_stream_t stream,
                                            const struct tutti_call_options *options)
{
    struct stage *stage = stage_of(comm);
    struct call call = {
        .comm = comm, .options = options, .barrier = true, .ranks = ranks, .count = (size_t)count};
    if (!stage)
        return __real_tutti_barrier_with(comm, ranks, count, stream, options);
    return device_bind(tutti_comm_rank(comm)) ? call_run(&call, stage) : broken();
}

enum tutti_status __wrap_tutti_barrier(tutti_comm_t *comm, const int *ranks, int count,
                                       tutti_stream_t stream)
{
    return __wrap_tutti_barrier_with(comm, ranks, count, stream, NULL);
}

/* ---- for tests that know of devices ---------------------------------------------------------- */

enum tutti_status device_all_reduce(const void *send, void *recv, size_t count,
                                    enum tutti_dtype dtype, tutti_op_t op, tutti_comm_t *comm,
                                    tutti_stream_t stream, const struct tutti_call_options *options)
{
    return __real_tutti_all_reduce_with(send, recv, count, dtype, op, comm, stream, options);
}

enum tutti_status device_barrier(tutti_comm_t *comm, tutti_stream_t stream)
{
    return __real_tutti_barrier_with(comm, NULL, 0, stream, NULL);
}

/* The rows of the rank's own arena: what its next kernel begins from, whatever its grid. A host
 * thread counts as CPU ranks do. */
static bool rows_set(tutti_comm_t *comm, uint64_t sequence)
{
    if (comm->cuda->proxy) {
        comm->host->op.sequence = sequence;
        return true;
    }
    static _Thread_local struct cuda_row rows[CUDA_BLOCKS];
    unsigned char *there =
        /* On the device: not to be read through. */
        (unsigned char *)comm->cuda->launch.control + offsetof(struct cuda_control, rows);
    if (!gpu_copy(rows, there, sizeof rows))
        return false;
    for (int i = 0; i < CUDA_BLOCKS; i++)
        rows[i].sequence = sequence;
    return gpu_copy(there, rows, sizeof rows);
}

bool device_sequence_set(tutti_comm_t *comm, uint64_t sequence)
{
    if (comm->cuda)
        return rows_set(comm, sequence);
    comm->host->op.sequence = sequence;
    return true;
}
