/* SPDX-License-Identifier: MIT */
/* Checks a request and launches the kernel that was chosen for it (choose.c). Calls nothing of the
 * driver that waits, allocates or frees. */
#include "base/error.h"
#include "base/signature.h"
#include "coll/request.h"
#include "cuda/comm/fabric.h"
#include "cuda/comm/push.h"
#include "cuda/kernels/exchange.h"

#include <stdio.h>

/* Returns true if the context is broken: then every driver call fails, even one that only asks. */
static bool context_is_broken(struct cuda_group *group)
{
    const struct cuda_driver *driver = group->driver;
    struct cuda_visit visit;
    if (cuda_visit_begin(driver, group->resources->context, &visit) != TUTTI_OK)
        return true;
    const CUresult result = driver->event_query(group->event);
    cuda_visit_end(driver, &visit);
    return result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY;
}

/* Ends a call that failed. The peers wait for this rank's operation. In a broken context the
 * operation never comes, so the communicator fails. */
static __attribute__((cold, noinline)) enum tutti_status refused(struct cuda_group *group,
                                                                 enum tutti_status status)
{
    char why[300];
    if ((status != TUTTI_ERR_CUDA && status != TUTTI_ERR_NO_MEMORY) ||
        peers_have_failed(group->peers))
        return status;
    snprintf(why, sizeof why, "%s", tutti_last_error());
    const bool broken = context_is_broken(group);
    error_set(status, "%s", why);
    return broken ? cuda_launch_failed(group, status, cuda_group_sequence(group) + 1) : status;
}

/* The blocks of a collective, also of an all-reduce by a kernel on blocks. An own block that is
 * already where it belongs is not copied. */
static void launch_moves(const struct request *request, struct cuda_launch *launch)
{
    const struct coll *coll = &coll_rows[request->collective];
    const int root = request->peer;
    const bool sends = coll_has(coll->send, launch->rank, root);
    const bool receives = coll_has(coll->recv, launch->rank, root);
    launch->count = coll->reduces ? request->count : request->bytes;
    launch->moves = (struct cuda_moves){.send_stride = coll->send_all ? request->bytes : 0,
                                        .recv_stride = coll->recv_all ? request->bytes : 0};
    for (int p = 0; p < launch->size; p++) {
        const int rank = launch->ranks[p];
        if (p == 0 && request_sent(request, rank) == request_received(request, rank))
            continue;
        if (sends && coll_has(coll->recv, rank, root))
            launch->moves.sends |= (uint8_t)(1 << p);
        if (receives && coll_has(coll->send, rank, root))
            launch->moves.receives |= (uint8_t)(1 << p);
    }
}

struct cuda_launch cuda_launch_make(const struct cuda_group *group, const struct request *request,
                                    enum tutti_algo algo)
{
    struct cuda_launch launch = group->launch;
    launch.send = request->send;
    launch.recv = request->recv;
    launch.count = request->count;
    launch.signature = signature_set_algo(request->signature, algo);
    launch.scalar = request->scalar;
    launch.parameter = request->parameter;
    launch.tag = signature_hash(launch.signature ^ launch.parameter) >> 16;
    launch.op = (int32_t)request->op + request->scalar_in_memory;
    launch.subset = cuda_rank_bits(request->subset);
    if (algo == TUTTI_ALGO_HYBRID_CUBE_MESH)
        launch.mesh = group->mesh;
    else if (algo == TUTTI_ALGO_RING)
        launch.ring = group->ring;
    else if (request->bytes && (request->collective != TUTTI_COLLECTIVE_ALL_REDUCE ||
                                cuda_kernel_rows[request->choice.launch.kernel].all_reduces))
        launch_moves(request, &launch);
    if (__builtin_expect(request->timeout_ms != group->default_timeout_ms, 0))
        launch.timeout_ns = cuda_timeout_ns(request->timeout_ms);
    return launch;
}

enum tutti_status cuda_operation_ended(struct cuda_group *group, struct request *request,
                                       uint64_t former, enum tutti_status status)
{
    if (__builtin_expect(status != TUTTI_OK, 0))
        return refused(group, status);
    const uint64_t sequence = cuda_group_sequence(group);
    const enum record_kind kind = !rank_set_empty(request->subset) ? RECORD_SUBSET
                                  : sequence == former             ? RECORD_CAPTURED
                                                                   : RECORD_CALL;
    request_started(request, sequence, kind, RECORD_ENQUEUED);
    return TUTTI_OK;
}

static const struct choice_launch barrier_launch = {.kernel = CUDA_BARRIER, .blocks = 1};

/* `copies`: before the kernel, or NULL. `enqueue`: cuda_enqueue(), or cuda_enqueue_eager() */
static inline enum tutti_status kernel_enqueue(struct cuda_group *group, struct request *request,
                                               const struct cuda_copies *copies,
                                               tutti_stream_t stream, cuda_enqueue_fn *enqueue)
{
    const struct choice_launch *choice = &request->choice.launch;
    const struct cuda_kernel_row *row = &cuda_kernel_rows[choice->kernel];
    struct cuda_launch launch = cuda_launch_make(group, request, row->algo);
    if (cuda_kernel_pairs_columns(row))
        launch.columns = (uint8_t)choice->columns;
    request->signature = launch.signature;
    request->parameter = launch.parameter;
    const struct cuda_task task = {
        .function = group->kernels
                        .functions[choice->kernel][row->dtypes ? request->dtype : 0][choice->form],
        .blocks = choice->blocks,
        .threads = choice->workers + CUDA_CONTROL_THREADS,
        .launch = &launch,
        .copies = copies,
        .request = request,
    };
    return enqueue(group, stream, &task);
}

/* Notes messages that were enqueued. They have no number. */
static enum tutti_status messages_ended(struct cuda_group *group, struct request *const *requests,
                                        int count, enum tutti_status status)
{
    if (status != TUTTI_OK)
        return refused(group, status);
    for (int i = 0; i < count; i++)
        request_started(requests[i], cuda_group_sequence(group), RECORD_SUBSET, RECORD_ENQUEUED);
    return TUTTI_OK;
}

enum tutti_status cuda_send_recv(void *opaque, struct request *const *requests, int count,
                                 tutti_stream_t stream)
{
    struct cuda_group *group = opaque;
    enum tutti_status status = TUTTI_OK;
    bool pushed;
    for (int i = 0; i < count && status == TUTTI_OK; i++)
        status = cuda_operands_check(group, requests[i], stream);
    if (group->fabric) {
        if (status == TUTTI_OK)
            status = cuda_fabric_send_recv(group, requests, count, stream);
        return messages_ended(group, requests, count, status);
    }
    if (group->channels) {
        if (status == TUTTI_OK)
            status = cuda_exchange_enqueue(group, requests, count, stream);
        return messages_ended(group, requests, count, status);
    }
    if (status == TUTTI_OK)
        status = cuda_proxy_enter(group, stream, &pushed);
    if (status == TUTTI_OK) {
        status = cuda_proxy_send_recv(group, requests, count, stream);
        cuda_leave(group, pushed);
    }
    return messages_ended(group, requests, count, status);
}

enum tutti_status cuda_send_own(void *opaque, struct request *send, struct request *recv,
                                tutti_stream_t stream)
{
    struct cuda_group *group = opaque;
    struct request *const both[] = {send, recv};
    const struct cuda_task task = {.to = cuda_address(recv->recv),
                                   .from = cuda_address(send->send),
                                   .bytes = recv->bytes,
                                   .request = recv};
    enum tutti_status status = cuda_operands_check(group, send, stream);
    if (status == TUTTI_OK)
        status = cuda_operands_check(group, recv, stream);
    if (status == TUTTI_OK)
        status = cuda_enqueue(group, stream, &task);
    return messages_ended(group, both, 2, status);
}

/* Enqueues a collective that goes through the hosts. If others have kernels, a barrier with the
 * collective's signature comes first: it takes the number, and kernels that run another operation
 * notice. */
static enum tutti_status staged_enqueue(struct cuda_group *group, struct request *request,
                                        tutti_stream_t stream)
{
    bool pushed;
    enum tutti_status status = cuda_proxy_enter(group, stream, &pushed);
    if (status != TUTTI_OK)
        return status;
    if (!group->proxied) {
        request->choice.launch = barrier_launch;
        status = kernel_enqueue(group, request, NULL, stream, cuda_enqueue_eager);
    }
    if (request->collective != TUTTI_COLLECTIVE_BARRIER)
        request->signature = signature_set_algo(request->signature, request->choice.algo);
    if (status == TUTTI_OK)
        status = cuda_proxy_enqueue(group, request, stream);
    cuda_leave(group, pushed);
    return status;
}

/* A collective that goes through the hosts. */
static enum tutti_status staged(void *opaque, struct request *request, tutti_stream_t stream)
{
    struct cuda_group *group = opaque;
    const uint64_t former = cuda_group_sequence(group);
    enum tutti_status status = cuda_operands_check(group, request, stream);
    if (status == TUTTI_OK)
        status = staged_enqueue(group, request, stream);
    return cuda_operation_ended(group, request, former, status);
}

static enum tutti_status run(void *opaque, struct request *request, tutti_stream_t stream)
{
    struct cuda_group *group = opaque;
    const uint64_t former = cuda_group_sequence(group);
    enum tutti_status status = cuda_operands_check(group, request, stream);
    if (status == TUTTI_OK)
        status = kernel_enqueue(group, request, NULL, stream, cuda_enqueue);
    return cuda_operation_ended(group, request, former, status);
}

/* By copy engines: engines.h. Once the barrier is enqueued the peers wait for the end, so a failure
 * behind it is the communicator's. */
static enum tutti_status by_engines(struct cuda_group *group, struct request *request,
                                    const struct cuda_copies *copies, tutti_stream_t stream)
{
    const uint64_t former = cuda_group_sequence(group);
    struct request end;
    enum tutti_status status = cuda_engines_ensure(group, copies->count, cuda_stream_of(stream));
    request->choice.launch = barrier_launch;
    if (status == TUTTI_OK)
        status = kernel_enqueue(group, request, NULL, stream, cuda_enqueue);
    if (status != TUTTI_OK)
        return status;
    end = *request;
    end.subset = rank_set_all(group->launch.size);
    status = kernel_enqueue(group, &end, copies, stream, cuda_enqueue);
    if (status != TUTTI_OK && cuda_group_sequence(group) != former && !cuda_group_has_failed(group))
        status = cuda_launch_failed(group, status, cuda_group_sequence(group));
    return status;
}

/* By the kernel of symmetric operands. Without data it is a barrier. */
static enum tutti_status by_kernel(struct cuda_group *group, struct request *request,
                                   const struct cuda_copies *copies, tutti_stream_t stream)
{
    const struct choice_launch *choice = &request->choice.launch;
    struct cuda_push push;
    if (!request->bytes)
        return kernel_enqueue(group, request, NULL, stream, cuda_enqueue);
    push.launch = cuda_launch_make(group, request, request->choice.algo);
    push.launch.columns = (uint8_t)choice->columns;
    push.copies = *copies;
    request->signature = push.launch.signature;
    const struct cuda_task task = {
        .function = group->kernels.functions[choice->kernel][0][CUDA_ANY],
        .blocks = choice->blocks,
        .threads = choice->workers + CUDA_CONTROL_THREADS,
        .launch = &push.launch,
        .request = request,
    };
    return cuda_enqueue(group, stream, &task);
}

/* A rank alone copies its one block. */
static enum tutti_status by_copy(struct cuda_group *group, struct request *request,
                                 const struct cuda_copies *copies, tutti_stream_t stream)
{
    const struct cuda_task task = {.to = copies->copies[0].to,
                                   .from = copies->copies[0].from,
                                   .bytes = copies->count ? copies->bytes : 0,
                                   .request = request};
    return cuda_enqueue(group, stream, &task);
}

/* Into the peers' recv: push.h. */
static enum tutti_status push(void *opaque, struct request *request, tutti_stream_t stream)
{
    struct cuda_group *group = opaque;
    const uint64_t former = cuda_group_sequence(group);
    struct cuda_copies copies;
    enum tutti_status status = cuda_operands_check(group, request, stream);
    if (status == TUTTI_OK)
        status = cuda_push_prepare(group, request, &copies);
    if (status == TUTTI_OK)
        status = (cuda_is_alone(group) ? by_copy
                  : request->choice.algo == TUTTI_ALGO_COPY_ENGINE
                      ? by_engines
                      : by_kernel)(group, request, &copies, stream);
    return cuda_operation_ended(group, request, former, status);
}

/* A v-form that copies. */
static enum tutti_status exchange(void *opaque, struct request *request, tutti_stream_t stream)
{
    struct cuda_group *group = opaque;
    const uint64_t former = cuda_group_sequence(group);
    enum tutti_status status = cuda_operands_check(group, request, stream);
    if (status == TUTTI_OK) {
        const struct cuda_launch launch = cuda_launch_make(group, request, request->choice.algo);
        request->signature = launch.signature;
        request->parameter = launch.parameter;
        status = cuda_exchange_collective(group, request, &launch, stream);
    }
    return cuda_operation_ended(group, request, former, status);
}

/* V-forms that copy, whose counts are in memory of the device, as one operation. Its signature is
 * that of the first one; the parameter has all. */
static enum tutti_status counted_several(void *opaque, struct request *const *requests, int count,
                                         tutti_stream_t stream)
{
    struct cuda_group *group = opaque;
    const uint64_t former = cuda_group_sequence(group);
    enum tutti_status status = TUTTI_OK;
    for (int i = 0; i < count && status == TUTTI_OK; i++)
        status = cuda_operands_check(group, requests[i], stream);
    if (status == TUTTI_OK) {
        struct cuda_launch launch = cuda_launch_make(group, requests[0], requests[0]->choice.algo);
        for (int i = 0; i < count; i++) {
            requests[i]->signature =
                signature_set_algo(requests[i]->signature, requests[0]->choice.algo);
            if (i > 0)
                launch.parameter = signature_hash(requests[i]->signature ^ requests[i]->parameter ^
                                                  (uint64_t)launch.parameter << 32);
        }
        requests[0]->parameter = launch.parameter;
        status = cuda_exchange_counted(group, requests, count, &launch, stream);
    }
    status = cuda_operation_ended(group, requests[0], former, status);
    for (int i = 1; i < count && status == TUTTI_OK; i++)
        request_started(requests[i], cuda_group_sequence(group), RECORD_SUBSET, RECORD_ENQUEUED);
    return status;
}

static enum tutti_status counted(void *opaque, struct request *request, tutti_stream_t stream)
{
    return counted_several(opaque, &request, 1, stream);
}

/* Fills the blocks of a reduce-scatter whose blocks differ. Returns the bytes of the largest one.
 */
static size_t varied_fill(const struct request *request, struct cuda_varied *varied)
{
    struct cuda_launch *launch = &varied->launch;
    const struct coll_blocks *blocks = &request->send_blocks;
    const size_t components = request->bytes / request->element_bytes; /* of an element */
    size_t starts[CUDA_RANKS], next = 0;
    for (int r = 0; r < launch->size; r++)
        starts[r] = coll_block_start(blocks, r, &next);
    launch->count = 0;
    launch->moves = (struct cuda_moves){.sends = 0};
    for (int p = 0; p < launch->size; p++) {
        const int rank = launch->ranks[p];
        varied->firsts[p] = starts[rank] * components;
        varied->counts[p] = coll_block_count(blocks, rank) * components;
        if (varied->counts[p] > launch->count)
            launch->count = varied->counts[p];
        if (varied->counts[p])
            launch->moves.sends |= (uint8_t)(1 << p);
    }
    if (varied->counts[0])
        launch->moves.receives = (uint8_t)((1 << launch->size) - 1);
    return launch->count * request->element_bytes;
}

/* Enqueues the kernel of a reduce-scatter whose largest block has `bytes`. */
static enum tutti_status varied_enqueue(struct cuda_group *group, struct request *request,
                                        struct cuda_launch *launch, size_t bytes,
                                        tutti_stream_t stream)
{
    const struct choice_launch *choice = &request->choice.launch;
    const size_t column = (size_t)choice->workers * CUDA_LINE,
                 columns = (bytes + column - 1) / column;
    request->signature = launch->signature;
    request->parameter = launch->parameter;
    launch->columns = (uint8_t)(columns < 1                 ? 1
                                : columns < choice->columns ? columns
                                                            : choice->columns);
    const struct cuda_task task = {
        .function = group->kernels.functions[choice->kernel][request->dtype][choice->form],
        .blocks = launch->columns < choice->blocks ? launch->columns : choice->blocks,
        .threads = choice->workers + CUDA_CONTROL_THREADS,
        .launch = launch,
        .request = request,
    };
    return cuda_enqueue(group, stream, &task);
}

/* A reduce-scatter of blocks that differ. All ranks know all counts, so they have as many columns.
 */
static enum tutti_status reduce_varied(void *opaque, struct request *request, tutti_stream_t stream)
{
    struct cuda_group *group = opaque;
    const uint64_t former = cuda_group_sequence(group);
    enum tutti_status status = cuda_operands_check(group, request, stream);
    if (status == TUTTI_OK) {
        struct cuda_varied varied = {.launch =
                                         cuda_launch_make(group, request, request->choice.algo)};
        const size_t bytes = varied_fill(request, &varied);
        status = varied_enqueue(group, request, &varied.launch, bytes, stream);
    }
    return cuda_operation_ended(group, request, former, status);
}

/* The same with counts in memory of the device. All ranks have one max_count. */
static enum tutti_status reduce_counted(void *opaque, struct request *request,
                                        tutti_stream_t stream)
{
    struct cuda_group *group = opaque;
    const uint64_t former = cuda_group_sequence(group);
    const struct coll_limits *limits = &request->limits;
    enum tutti_status status = cuda_operands_check(group, request, stream);
    if (status == TUTTI_OK) {
        struct cuda_counted args = {
            .launch = cuda_launch_make(group, request, request->choice.algo),
            .counts = (uintptr_t)request->send_blocks.counts,
            .displacements = (uintptr_t)request->send_blocks.displacements,
            .most = limits->most,
            .extents = {limits->send_extent, limits->recv_extent},
            .components = (uint32_t)(request->bytes / request->element_bytes),
            .width = (uint16_t)request->bytes,
            .is_narrow = request->send_blocks.is_narrow,
        };
        status =
            varied_enqueue(group, request, &args.launch, limits->most * request->bytes, stream);
    }
    return cuda_operation_ended(group, request, former, status);
}

/* An operation of a rank alone whose result has the bits of the input. A graph may capture it. */
static enum tutti_status copy(void *opaque, struct request *request, tutti_stream_t stream)
{
    struct cuda_group *group = opaque;
    const uint64_t former = cuda_group_sequence(group);
    size_t from, to;
    struct cuda_task task = {.bytes = request_span(request, true, 0, 1, &from), .request = request};
    (void)request_span(request, false, 0, 1, &to);
    task.from = cuda_address(request->send) + from;
    task.to = cuda_address(request->recv) + to;
    if (task.from == task.to)
        task.bytes = 0;
    request->signature = signature_set_algo(request->signature, request->choice.algo);
    enum tutti_status status = cuda_operands_check(group, request, stream);
    if (status == TUTTI_OK)
        status = cuda_enqueue(group, stream, &task);
    return cuda_operation_ended(group, request, former, status);
}

/* A collective of ranks that a fabric joins. */
static enum tutti_status by_fabric(void *opaque, struct request *request, tutti_stream_t stream)
{
    struct cuda_group *group = opaque;
    const uint64_t former = cuda_group_sequence(group);
    enum tutti_status status = cuda_operands_check(group, request, stream);
    if (status == TUTTI_OK)
        status = cuda_fabric_collective(group, request, stream);
    return cuda_operation_ended(group, request, former, status);
}

/* Any other reduction of a rank alone. Without elements it only takes the number. */
static enum tutti_status reduce_alone(void *opaque, struct request *request, tutti_stream_t stream)
{
    struct cuda_group *group = opaque;
    const uint64_t former = cuda_group_sequence(group);
    const unsigned threads = cuda_kernel_rows[CUDA_REDUCE_ALONE].threads;
    struct cuda_launch launch = cuda_launch_make(group, request, request->choice.algo);
    size_t from, to;
    const size_t bytes = request_span(request, true, 0, 1, &from),
                 blocks = bytes / CUDA_LINE / threads + 1;
    (void)request_span(request, false, 0, 1, &to);
    launch.send = (const char *)request->send + from;
    launch.recv = (char *)request->recv + to;
    launch.count = bytes / request->element_bytes;
    request->signature = launch.signature;
    const struct cuda_task task = {
        .function =
            bytes ? group->kernels.functions[CUDA_REDUCE_ALONE][request->dtype][CUDA_ANY] : NULL,
        .blocks = blocks < request->choice.launch.blocks ? (unsigned)blocks
                                                         : request->choice.launch.blocks,
        .threads = threads,
        .launch = &launch,
        .request = request,
    };
    enum tutti_status status = cuda_operands_check(group, request, stream);
    if (status == TUTTI_OK)
        status = cuda_enqueue(group, stream, &task);
    return cuda_operation_ended(group, request, former, status);
}

static enum tutti_status barrier(void *opaque, struct request *request, tutti_stream_t stream)
{
    const struct cuda_group *group = opaque;
    request->choice.launch = barrier_launch;
    return (cuda_has_kernels(group) ? run
            : group->fabric         ? by_fabric
            : group->proxied        ? staged
                                    : copy)(opaque, request, stream);
}

static enum tutti_status message(void *opaque, struct request *request, tutti_stream_t stream)
{
    return cuda_send_recv(opaque, &request, 1, stream);
}

const struct algorithm cuda_algo_kernel = {.run = run}, cuda_algo_barrier = {.run = barrier},
                       cuda_algo_staged = {.run = staged}, cuda_algo_copy = {.run = copy},
                       cuda_algo_message = {.run = message}, cuda_algo_exchange = {.run = exchange},
                       cuda_algo_exchange_counted = {.run = counted,
                                                     .run_several = counted_several,
                                                     .several = EXCHANGE_CALLS},
                       cuda_algo_reduce_varied = {.run = reduce_varied},
                       cuda_algo_reduce_counted = {.run = reduce_counted},
                       cuda_algo_reduce_alone = {.run = reduce_alone},
                       cuda_algo_push = {.run = push}, cuda_algo_fabric = {.run = by_fabric};
