/* SPDX-License-Identifier: MIT */
/* Checks a request, chooses a kernel, launches it. Calls nothing of the driver that waits,
 * allocates or frees. */
#include "base/error.h"
#include "base/order.h"
#include "base/signature.h"
#include "coll/request.h"
#include "cuda/comm/group_internal.h"
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

static enum tutti_status send_recv(void *opaque, struct request *const *requests, int count,
                                   tutti_stream_t stream)
{
    struct cuda_group *group = opaque;
    enum tutti_status status = TUTTI_OK;
    bool pushed;
    for (int i = 0; i < count && status == TUTTI_OK; i++)
        status = cuda_operands_check(group, requests[i], stream);
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

static enum tutti_status send_own(void *opaque, struct request *send, struct request *recv,
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
 * notice. A rank alone only takes the number. */
static enum tutti_status staged_enqueue(struct cuda_group *group, struct request *request,
                                        tutti_stream_t stream)
{
    const struct cuda_task number = {.request = request};
    bool pushed;
    enum tutti_status status = cuda_proxy_enter(group, stream, &pushed);
    if (status != TUTTI_OK)
        return status;
    if (cuda_is_alone(group)) {
        status = cuda_enqueue_eager(group, stream, &number);
    } else if (!group->proxied) {
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

static enum tutti_status barrier(void *opaque, struct request *request, tutti_stream_t stream)
{
    const struct cuda_group *group = opaque;
    request->choice.launch = barrier_launch;
    return (cuda_has_kernels(group) ? run
            : group->proxied        ? staged
                                    : copy)(opaque, request, stream);
}

static enum tutti_status message(void *opaque, struct request *request, tutti_stream_t stream)
{
    return send_recv(opaque, &request, 1, stream);
}

static const struct algorithm messages = {.run = message};
static const struct algorithm kernels = {.run = run}, barriers = {.run = barrier},
                              staged_ones = {.run = staged}, copies = {.run = copy},
                              exchanges = {.run = exchange},
                              counted_ones = {.run = counted,
                                              .run_several = counted_several,
                                              .several = EXCHANGE_CALLS},
                              varied_ones = {.run = reduce_varied},
                              reduce_counted_ones = {.run = reduce_counted}, pushes = {.run = push};

/* Chooses for a rank alone. A float may be rounded, or be a NaN that is not canonical, a bool may
 * have any bits, and a scalar changes each input: these are reduced as on CPU. `algo` is what the
 * call or strict mode asks for. */
static void alone_choose(const struct cuda_group *group, const struct choice_call *call,
                         enum tutti_algo algo, struct choice *choice)
{
    const bool reduces =
        coll_rows[call->collective].reduces &&
        (dtype_is_float(call->dtype) || call->dtype == TUTTI_BOOL || call->op == OP_PREMUL_SUM);
    *choice = (struct choice){
        .run = !reduces       ? &copies
               : group->proxy ? &staged_ones
                              : NULL,
        .algo = algo != TUTTI_ALGO_NONE ? algo
                : reduces               ? TUTTI_ALGO_HOST_STAGED
                                        : TUTTI_ALGO_ONE_SHOT,
        .reason = !reduces       ? "a rank alone copies on its stream"
                  : group->proxy ? "a host thread reduces for a rank alone"
                                 : "a rank alone reduces on its host, and this device's streams "
                                   "cannot wait for a word in memory",
    };
}

/* Returns the blocks of a call for which a kernel may have as many. */
static uint16_t within_limit(const struct choice_call *call, uint16_t blocks)
{
    return call->max_blocks && call->max_blocks < blocks ? (uint16_t)call->max_blocks : blocks;
}

/* Chooses for what the kernel of messages serves: messages, and v-forms that copy. The blocks are a
 * limit: a launch has fewer if it has fewer channels. */
static void exchange_choose(const struct cuda_group *group, const struct choice_call *call,
                            struct choice *choice)
{
    const bool is_message = coll_rows[call->collective].peer == COLL_PARTNER;
    const enum cuda_kernel kernel = call->most ? CUDA_EXCHANGE_COUNTED : CUDA_EXCHANGE;
    *choice =
        (struct choice){.run = is_message   ? &messages
                               : call->most ? &counted_ones
                                            : &exchanges,
                        .algo = TUTTI_ALGO_ONE_SHOT,
                        .launch = {.kernel = (uint8_t)kernel,
                                   .blocks = within_limit(
                                       call, group->plan.choices[CUDA_PLAN_ROWS + kernel].blocks)},
                        .reason = "by the kernel of messages"};
}

/* Chooses for a reduce-scatter of blocks that differ. */
static void varied_choose(const struct cuda_group *group, const struct choice_call *call,
                          struct choice *choice)
{
    const enum cuda_kernel kernel = call->most ? CUDA_REDUCE_COUNTED : CUDA_REDUCE_VARIED;
    const struct cuda_choice *usual = &group->plan.choices[CUDA_PLAN_ROWS + kernel];
    const uint16_t blocks = within_limit(call, usual->blocks);
    const bool is_sum = call->op == OP_SUM &&
                        (blocks == usual->blocks ||
                         cuda_kernel_sums_columns(&cuda_kernel_rows[kernel], group->plan.size)) &&
                        cuda_kernel_has(&cuda_kernel_rows[kernel], group->plan.size, false,
                                        dtype_component(call->dtype), CUDA_SUM);
    *choice = (struct choice){.run = call->most ? &reduce_counted_ones : &varied_ones,
                              .algo = TUTTI_ALGO_ONE_SHOT,
                              .launch = {.kernel = (uint8_t)kernel,
                                         .form = is_sum ? CUDA_SUM : CUDA_ANY,
                                         .workers = usual->threads,
                                         .blocks = blocks,
                                         .columns = usual->blocks},
                              .reason = "by the kernel of blocks that differ"};
}

/* Chooses for any collective except an all-reduce: by kernels that all links serve, else through
 * the hosts. */
static enum tutti_status other_choose(const struct cuda_group *group,
                                      const struct choice_call *call, struct choice *choice)
{
    const struct coll *coll = &coll_rows[call->collective];
    const bool is_message = coll->peer == COLL_PARTNER;
    *choice =
        (struct choice){.algo = TUTTI_ALGO_HOST_STAGED,
                        .reason = "through the hosts, since no kernel serves it on these links"};
    if (call->algo != TUTTI_ALGO_NONE && call->algo != TUTTI_ALGO_HOST_STAGED)
        return error_set(TUTTI_ERR_INVALID,
                         "%s: algorithm %s cannot be forced: pass TUTTI_ALGO_NONE", coll->call,
                         tutti_algo_name(call->algo));
    if ((is_message || coll->varies) && !coll->reduces && group->channels) {
        exchange_choose(group, call, choice);
        return TUTTI_OK;
    }
    const bool has_kernels = cuda_has_kernels(group) && group->rules->paths.all;
    if (coll->varies && coll->reduces && has_kernels && !group->on_host) {
        varied_choose(group, call, choice);
        return TUTTI_OK;
    }
    if (!is_message && !coll->varies && has_kernels && cuda_plan_serves(&group->plan, call)) {
        choice->run = &kernels;
        choice->algo = TUTTI_ALGO_ONE_SHOT;
        const enum tutti_status status = cuda_plan_pick(&group->plan, call, TUTTI_ALGO_NONE, 0,
                                                        &choice->launch, &choice->reason);
        if (status == TUTTI_OK && call->bytes)
            choice->algo = cuda_kernel_rows[choice->launch.kernel].algo;
        return status;
    }
    if (call->most)
        choice->reason = cuda_is_alone(group)
                             ? "counts on the device are read by kernels, and a rank alone has none"
                             : "counts on the device are read by kernels, and no kernel serves the "
                               "call on these links";
    else if (cuda_is_alone(group))
        alone_choose(group, call, TUTTI_ALGO_NONE, choice);
    else if (group->proxy)
        choice->run = is_message ? &messages : &staged_ones;
    else
        choice->reason = "no kernel serves it on these links, and a device's streams cannot wait "
                         "for a word in memory, so it cannot go through the hosts";
    return TUTTI_OK;
}

/* Chooses for a call that writes into the peers' recv. */
static enum tutti_status push_choose(const struct cuda_group *group, const struct choice_call *call,
                                     struct choice *choice)
{
    const bool by_engines = call->flags & TUTTI_CALL_COPY_ENGINE;
    const enum tutti_status status = cuda_push_choose(group, call);
    const char *kernel;
    *choice = (struct choice){
        .run = &pushes,
        .algo = by_engines ? TUTTI_ALGO_COPY_ENGINE : TUTTI_ALGO_SYMMETRIC,
        .reason = by_engines ? "by copy engines, as the call asks"
                             : "into the peers' recv, as the call asks",
    };
    if (status != TUTTI_OK || by_engines || cuda_is_alone(group))
        return status;
    return cuda_plan_pick(&group->plan, call, TUTTI_ALGO_NONE, 0, &choice->launch, &kernel);
}

static enum tutti_status cuda_choose(const void *opaque, const struct choice_call *call,
                                     struct choice *choice)
{
    const struct cuda_group *group = opaque;
    const struct choice_rules *rules = group->rules;
    if (call->flags & CUDA_PUSH_FLAGS)
        return push_choose(group, call, choice);
    if (call->collective != TUTTI_COLLECTIVE_ALL_REDUCE)
        return other_choose(group, call, choice);
    const enum tutti_algo asked = choice_by_rules(rules, call, &choice->reason);
    const bool forced = call->algo != TUTTI_ALGO_NONE || rules->forced != TUTTI_ALGO_NONE;
    const char *reason = choice->reason;
    enum tutti_status status = TUTTI_OK;
    enum tutti_algo algo = asked;
    choice->algo = asked;
    choice->zero_copy = false;
    choice->run = NULL;
    if (asked == TUTTI_ALGO_NONE && rules->strict)
        return TUTTI_OK;
    if (cuda_is_alone(group)) {
        alone_choose(group, call, asked, choice);
        return TUTTI_OK;
    }
    choice->run = group->proxied ? &staged_ones : &kernels;
    if (group->proxied) {
        status = cuda_proxy_algorithm(asked, &algo, &reason);
    } else {
        status = cuda_plan_pick(&group->plan, call, asked, rules->kernel, &choice->launch, &reason);
        if (status == TUTTI_OK && call->bytes)
            algo = cuda_kernel_rows[choice->launch.kernel].algo;
    }
    if (forced || asked == TUTTI_ALGO_NONE) /* else strict mode or the links have their reason */
        choice->reason = reason;
    if (!rules->strict) /* strict mode names what it chose */
        choice->algo = algo;
    return status;
}

const struct backend cuda_backend = {
    .name = "cuda",
    .title = "CUDA",
    .most_ranks = CUDA_RANKS,
    .enqueues = true,
    .create = cpu_group_create,
    .setup_bytes = sizeof(struct cuda_setup),
    .record_make = cuda_record_make,
    .records_compare = cuda_records_compare,
    .links = cuda_records_links,
    .prepare = cuda_prepare,
    .open = cuda_group_open,
    .choose = cuda_choose,
    .barrier = &barriers,
    .send_recv = send_recv,
    .send_own = send_own,
    .rms_norm_rows = cuda_rms_norm_rows,
    .rms_norm = cuda_rms_norm,
    .sequence = cuda_group_sequence,
    .status = cuda_group_status,
    .points = &cuda_points,
    .enter = cuda_enter,
    .leave = cuda_leave,
    .check_split = cuda_check_split,
    .finish = cuda_group_finish,
    .retire = cuda_group_retire,
    .invalidate = cuda_group_invalidate,
    .describe = cuda_group_describe,
    .close = cuda_group_close,
    .forget = cuda_group_forget,
};
