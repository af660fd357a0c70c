/* SPDX-License-Identifier: MIT */
/*
 * Between a test and the library: see device.h. Each CUDA communicator has a stage, device memory
 * for one operation's operands, at the same place in a line as the host's, with guards around.
 */
#include "device.h"

#include "../tools/gpu.h"
#include "base/error.h"
#include "coll/request.h"
#include "comm/comm.h"
#include "cpu/transport/group.h"
#include "cuda/comm/group_internal.h"
#include "tutti/recovery.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COUNTS_BYTES = 4 * TUTTI_MAX_RANKS * sizeof(size_t) };
enum { GUARD_BYTES = 256, POISON = 0xa5, LINE = 256, MOST_STAGES = 256 };

struct stage {
    tutti_comm_t *comm;
    int rank, size;
    tutti_stream_t streams[2];
    unsigned turn;              /* of the streams */
    unsigned char *send, *recv; /* on the device, `bytes` each */
    unsigned char *host;        /* what comes back */
    size_t bytes;
    size_t *counts; /* on the device: four arrays that a kernel reads; NULL: none so far */
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
/* The table of the library, and the one that communicators use: backends_set(). */
extern const struct backend __real_cuda_backend;
extern struct backend __wrap_cuda_backend;
struct backend __wrap_cuda_backend;

static enum tutti_status broken(void)
{
    return error_set(TUTTI_ERR_CUDA, "device_wrap: %s", library_error());
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

/* The stage of this communicator, or of the one that has this group; NULL: there is none. */
static struct stage *stage_find(const tutti_comm_t *comm, const void *group)
{
    struct stage *found = NULL;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MOST_STAGES && !found; i++)
        if (stages[i] && (stages[i]->comm == comm || (group && stages[i]->comm->group == group)))
            found = stages[i];
    pthread_mutex_unlock(&lock);
    return found;
}

/* The communicator's, NULL if it has none: it is no CUDA one. */
static struct stage *stage_of(const tutti_comm_t *comm)
{
    /* Before the lock: tests count those on the way of a CPU operation. */
    return comm && comm->config.device == TUTTI_DEVICE_CUDA ? stage_find(comm, NULL) : NULL;
}

static void stage_open(tutti_comm_t *comm)
{
    struct stage *stage = calloc(1, sizeof *stage);
    int i = 0;
    if (!stage || !gpu_stream_create(&stage->streams[0]) ||
        !gpu_stream_create(&stage->streams[1])) {
        fprintf(stderr, "device_wrap: %s\n", library_error());
        abort();
    }
    stage->comm = comm;
    stage->rank = tutti_comm_rank(comm);
    stage->size = tutti_comm_world_size(comm);
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
    if (stage->counts)
        block_give(stage->counts, COUNTS_BYTES);
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

/* A request of the library, to be captured or not. */
struct call {
    tutti_comm_t *comm;
    const struct algorithm *algorithm;
    struct request request;
};

static enum tutti_status call_make(struct call *call, tutti_stream_t stream)
{
    return call->algorithm->run(call->comm->group, &call->request, stream);
}

static enum tutti_status call_capture(struct call *call, tutti_stream_t stream, void **graph)
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

enum tutti_status device_wait(enum tutti_status status, tutti_comm_t *comm, tutti_stream_t stream)
{
    if (device_enqueued && !status)
        device_enqueued();
    if (!gpu_stream_synchronize(stream) && !status)
        status = broken();
    return status ? status : tutti_comm_status(comm, NULL); /* sets the thread's last error */
}

/* To the end of the stream, and what came of it. */
static enum tutti_status call_run(struct call *call, struct stage *stage)
{
    void *graph = NULL;
    tutti_stream_t stream = stage->streams[takes_turns() ? stage->turn++ % 2 : 0];
    enum tutti_status status =
        launches() ? call_capture(call, stream, &graph) : call_make(call, stream);
    status = device_wait(status, call->comm, stream);
    gpu_graph_destroy(graph);
    return status;
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

/* The bytes of an operand, and where they lie on the device. */
struct span {
    unsigned char *host;
    size_t first, bytes; /* the offset in the operand */
    unsigned char *device;
};

static struct span span_of(const struct call *call, const struct stage *stage, bool is_send)
{
    struct span span = {.host = is_send ? (unsigned char *)(uintptr_t)call->request.send
                                        : call->request.recv};
    span.bytes = request_span(&call->request, is_send, stage->rank, stage->size, &span.first);
    span.host += span.first;
    return span;
}

static bool span_meets(const struct span *a, const struct span *b)
{
    return a->bytes && b->bytes && a->host < b->host + b->bytes && b->host < a->host + a->bytes;
}

/* Puts a span into device memory, between guards. */
static bool span_put(struct span *span, unsigned char *memory, bool is_read)
{
    span->device = memory + GUARD_BYTES + (uintptr_t)span->host % LINE;
    return gpu_fill(span->device - GUARD_BYTES, POISON, span->bytes + 2 * GUARD_BYTES) &&
           (!is_read || !span->bytes || gpu_copy(span->device, span->host, span->bytes));
}

/* Puts the arrays that a kernel reads into device memory. */
static bool counts_put(struct call *call, struct stage *stage)
{
    struct coll_blocks *const send = &call->request.send_blocks, *const recv =
                                                                     &call->request.recv_blocks;
    const void **arrays[] = {&send->counts, &send->displacements, &recv->counts,
                             &recv->displacements};
    if (!stage->counts)
        stage->counts = block_take(COUNTS_BYTES);
    for (int i = 0; i < 4 && stage->counts; i++) {
        size_t *const to = stage->counts + i * TUTTI_MAX_RANKS;
        if (!*arrays[i])
            continue;
        if (!gpu_copy(to, *arrays[i], (size_t)stage->size * coll_entry_bytes(send)))
            return false;
        *arrays[i] = to;
    }
    return stage->counts != NULL;
}

/* Operands in place are parts of one span. Gaps between the blocks of a v-form keep what they
 * have, so they are copied too. */
static enum tutti_status call_staged(struct call *call, struct stage *stage)
{
    struct span send = span_of(call, stage, true), recv = span_of(call, stage, false);
    const bool in_place = span_meets(&send, &recv);
    struct span out = recv;
    if (in_place) {
        unsigned char *end = send.host + send.bytes > recv.host + recv.bytes
                                 ? send.host + send.bytes
                                 : recv.host + recv.bytes;
        out.host = send.host < recv.host ? send.host : recv.host;
        out.bytes = (size_t)(end - out.host);
    }
    const bool varies = coll_rows[call->request.collective].varies, keeps = in_place || varies;
    if (varies && call->request.limits.most && !counts_put(call, stage))
        return broken();
    if (!stage_reserve(stage, send.bytes > out.bytes ? send.bytes : out.bytes) ||
        !span_put(&out, stage->recv, keeps) || (!in_place && !span_put(&send, stage->send, true)))
        return broken();
    if (in_place)
        send.device = out.device + (send.host - out.host);
    call->request.send = send.bytes ? send.device - send.first : NULL;
    call->request.recv = recv.bytes ? out.device + (recv.host - out.host) - recv.first : NULL;
    enum tutti_status status = call_run(call, stage);
    if (!status && out.bytes)
        status = fetch(stage, out.device, out.bytes, out.host);
    if (!status && send.bytes && !in_place)
        status = unchanged(stage, send.device, send.bytes, send.host);
    return status;
}

/* ---- between the communicator and its back end ----------------------------------------------- */

/* An algorithm of the library, and the one that a request of a test has. */
static struct wrapped {
    struct algorithm algorithm;
    const struct algorithm *library;
} wrapped[12];
static _Thread_local bool passes; /* the thread's calls have device operands */

static enum tutti_status run(void *group, struct request *request, tutti_stream_t stream)
{
    const struct wrapped *own = (const struct wrapped *)request->choice.run;
    struct stage *stage = passes ? NULL : stage_find(NULL, group);
    request->choice.run = own->library;
    if (!stage)
        return own->library->run(group, request, stream);
    if (!device_bind(stage->rank)) /* threads that a test starts itself come here unbound */
        return broken();
    struct call call = {.comm = stage->comm, .algorithm = own->library, .request = *request};
    const enum tutti_status status = call_staged(&call, stage);
    request->entry = call.request.entry;
    request->signature = call.request.signature;
    return status;
}

/* With host operands one call after the other. */
static enum tutti_status run_several(void *group, struct request *const *requests, int count,
                                     tutti_stream_t stream)
{
    const struct algorithm *library = ((const struct wrapped *)requests[0]->choice.run)->library;
    const bool is_staged = !passes && stage_find(NULL, group);
    enum tutti_status status = TUTTI_OK;
    for (int i = 0; i < count && status == TUTTI_OK; i++) {
        if (is_staged)
            status = run(group, requests[i], stream);
        else
            requests[i]->choice.run = library;
    }
    return is_staged ? status : library->run_several(group, requests, count, stream);
}

/* Messages lie in blocks of their own. */
struct message {
    struct request *request;
    void *host;
    unsigned char *device;
};

static size_t message_bytes(const struct message *message)
{
    return stage_bytes(message->request->bytes + 1);
}

static bool message_put(struct message *message)
{
    struct request *request = message->request;
    const bool sends = request->collective == TUTTI_COLLECTIVE_SEND;
    message->host = sends ? (void *)(uintptr_t)request->send : request->recv;
    message->device = block_take(message_bytes(message));
    if (!message->device)
        return false;
    request->send = request->recv = message->device;
    return !sends || !request->bytes || gpu_copy(message->device, message->host, request->bytes);
}

static bool message_fetch(struct message *message)
{
    const struct request *request = message->request;
    return request->collective == TUTTI_COLLECTIVE_SEND || !request->bytes ||
           gpu_copy(message->host, message->device, request->bytes);
}

/* Runs messages to their end by a function of the library. */
static enum tutti_status messages_run(struct stage *stage, struct request *const *requests,
                                      int count, bool own)
{
    const tutti_stream_t stream = stage->streams[0];
    struct message *messages = calloc((size_t)count, sizeof *messages);
    bool good = device_bind(stage->rank) && messages;
    for (int i = 0; i < count && good; i++) {
        messages[i].request = requests[i];
        good = message_put(&messages[i]);
    }
    if (!good)
        return broken();
    enum tutti_status status =
        own ? __real_cuda_backend.send_own(stage->comm->group, requests[0], requests[1], stream)
            : __real_cuda_backend.send_recv(stage->comm->group, requests, count, stream);
    if (!gpu_stream_synchronize(stream) && !status)
        status = broken();
    status = status ? status : tutti_comm_status(stage->comm, NULL);
    for (int i = 0; i < count; i++) {
        if (!status && !message_fetch(&messages[i]))
            status = broken();
        block_give(messages[i].device, message_bytes(&messages[i]));
    }
    free(messages);
    return status;
}

static enum tutti_status send_recv(void *group, struct request *const *requests, int count,
                                   tutti_stream_t stream)
{
    struct stage *stage = passes ? NULL : stage_find(NULL, group);
    return stage ? messages_run(stage, requests, count, false)
                 : __real_cuda_backend.send_recv(group, requests, count, stream);
}

static enum tutti_status send_own(void *group, struct request *send, struct request *recv,
                                  tutti_stream_t stream)
{
    struct request *const both[] = {send, recv};
    struct stage *stage = passes ? NULL : stage_find(NULL, group);
    return stage ? messages_run(stage, both, 2, true)
                 : __real_cuda_backend.send_own(group, send, recv, stream);
}

static const struct algorithm *wrap(const struct algorithm *library)
{
    int i = 0;
    pthread_mutex_lock(&lock);
    while (wrapped[i].library && wrapped[i].library != library)
        i++;
    if (i == sizeof wrapped / sizeof *wrapped - 1)
        abort();
    if (!wrapped[i].library) { /* others may use the rows that there are */
        wrapped[i].algorithm = *library;
        wrapped[i].algorithm.run = run;
        wrapped[i].algorithm.run_several = library->run_several ? run_several : NULL;
        wrapped[i].library = library;
    }
    pthread_mutex_unlock(&lock);
    return &wrapped[i].algorithm;
}

static enum tutti_status choose(const void *group, const struct choice_call *call,
                                struct choice *choice)
{
    const enum tutti_status status = __real_cuda_backend.choose(group, call, choice);
    if (status == TUTTI_OK && choice->run)
        choice->run = wrap(choice->run);
    return status;
}

static __attribute__((constructor)) void backend_set(void)
{
    __wrap_cuda_backend = __real_cuda_backend;
    __wrap_cuda_backend.choose = choose;
    __wrap_cuda_backend.send_recv = send_recv;
    __wrap_cuda_backend.send_own = send_own;
    __wrap_cuda_backend.barrier = wrap(__real_cuda_backend.barrier);
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

/* ---- for tests that know of devices ---------------------------------------------------------- */

enum tutti_status device_all_reduce(const void *send, void *recv, size_t count,
                                    enum tutti_dtype dtype, tutti_op_t op, tutti_comm_t *comm,
                                    tutti_stream_t stream, const struct tutti_call_options *options)
{
    passes = true;
    const enum tutti_status status =
        tutti_all_reduce_with(send, recv, count, dtype, op, comm, stream, options);
    passes = false;
    return status;
}

enum tutti_status device_all_reduce_rms_norm(const struct tutti_rms_norm *norm, tutti_comm_t *comm,
                                             tutti_stream_t stream,
                                             const struct tutti_call_options *options)
{
    passes = true;
    const enum tutti_status status = tutti_all_reduce_rms_norm_with(norm, comm, stream, options);
    passes = false;
    return status;
}

enum tutti_status device_barrier(tutti_comm_t *comm, tutti_stream_t stream)
{
    passes = true;
    const enum tutti_status status = tutti_barrier(comm, NULL, 0, stream);
    passes = false;
    return status;
}

/* The rows of the rank's own arena: what its next kernel begins from, whatever its grid. A rank
 * without kernels counts as CPU ranks do. */
static bool rows_set(tutti_comm_t *comm, uint64_t sequence)
{
    const struct cuda_group *group = comm->group;
    if (!cuda_has_kernels(group)) {
        comm->peers->sequence = sequence;
        return true;
    }
    static _Thread_local struct cuda_row rows[CUDA_BLOCKS];
    unsigned char *there =
        /* On the device: not to be read through. */
        (unsigned char *)group->launch.control + offsetof(struct cuda_control, rows);
    if (!gpu_copy(rows, there, sizeof rows))
        return false;
    for (int i = 0; i < CUDA_BLOCKS; i++)
        rows[i].sequence = sequence;
    return gpu_copy(there, rows, sizeof rows);
}

bool device_sequence_set(tutti_comm_t *comm, uint64_t sequence)
{
    if (comm->backend->enqueues)
        return rows_set(comm, sequence);
    comm->peers->sequence = sequence;
    return true;
}
