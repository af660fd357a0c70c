/* SPDX-License-Identifier: MIT */
/* Checks a request, chooses a kernel, launches it. Calls nothing of the driver that waits,
 * allocates or frees. */
#include "base/error.h"
#include "base/order.h"
#include "base/signature.h"
#include "coll/backend.h"
#include "cuda/runtime/group_internal.h"

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
        cpu_group_has_failed(group->host))
        return status;
    snprintf(why, sizeof why, "%s", tutti_last_error());
    const bool broken = context_is_broken(group);
    error_set(status, "%s", why);
    return broken ? cuda_launch_failed(group, status, cuda_group_sequence(group) + 1) : status;
}

/* Completes the launch template. For a request with the communicator's own time-out, kernels read
 * the time-out from the page, so that a graph does not keep it. */
static struct cuda_launch launch_make(const struct cuda_group *group, const struct request *request)
{
    struct cuda_launch launch = group->launch;
    launch.send = request->send;
    launch.recv = request->recv;
    launch.count = request->count;
    launch.signature = request->signature;
    launch.scalar = request->scalar;
    launch.parameter = request->parameter;
    launch.op = (int32_t)request->op;
    if (__builtin_expect(request->timeout_ms != group->default_timeout_ms, 0))
        launch.timeout_ns = cuda_timeout_ns(request->timeout_ms);
    return launch;
}

static CUfunction function_of(const struct cuda_group *group, const struct cuda_choice *choice,
                              const struct request *request, unsigned blocks)
{
    const CUfunction *functions = group->kernels.all_reduce[choice->kernel][request->dtype];
    if (request->op != OP_SUM || !functions[CUDA_SUM])
        return functions[CUDA_ANY];
    if (functions[CUDA_SUM_ONCE] && cuda_choice_is_once(choice, group->plan.size, request->send,
                                                        request->recv, request->bytes, blocks))
        return functions[CUDA_SUM_ONCE];
    return functions[CUDA_SUM];
}

/* Enqueues a barrier, also for an all-reduce without elements. */
static enum tutti_status barrier_enqueue(struct cuda_group *group, const struct request *request,
                                         tutti_stream_t stream)
{
    struct cuda_launch launch = launch_make(group, request);
    launch.subset = cuda_rank_bits(request->subset);
    return cuda_enqueue(group, stream,
                        &(struct cuda_task){
                            .function = group->kernels.barrier,
                            .blocks = 1,
                            .threads = CUDA_CONTROL_THREADS,
                            .launch = &launch,
                            .request = request,
                        });
}

/* Records an operation if it was enqueued. A captured operation has no number; its record has the
 * sequence before the call. */
static inline enum tutti_status ended(struct cuda_group *group, struct request *request,
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

static enum tutti_status all_reduce(void *opaque, struct request *request, tutti_stream_t stream)
{
    struct cuda_group *group = opaque;
    const struct cuda_choice *choice = request->choice.launch;
    const uint64_t former = cuda_group_sequence(group);
    enum tutti_status status = cuda_operands_check(group, request, stream);
    if (status != TUTTI_OK)
        return refused(group, status);
    if (cuda_is_proxied(group))
        return ended(group, request, former, cuda_proxy_enqueue(group, request, stream));
    if (request->count == 0)
        return ended(group, request, former, barrier_enqueue(group, request, stream));
    request->signature =
        signature_set_algo(request->signature, cuda_kernel_algo((enum cuda_kernel)choice->kernel));
    struct cuda_launch launch = launch_make(group, request);
    launch.tag = signature_hash(launch.signature ^ launch.parameter) >> 16;
    const unsigned blocks = cuda_choice_blocks(choice, group->plan.size, request->bytes);
    const struct cuda_task task = {
        .function = function_of(group, choice, request, blocks),
        .blocks = blocks,
        .threads = choice->threads + CUDA_CONTROL_THREADS,
        .launch = &launch,
        .request = request,
    };
    return ended(group, request, former, cuda_enqueue(group, stream, &task));
}

static enum tutti_status barrier(void *opaque, struct request *request, tutti_stream_t stream)
{
    struct cuda_group *group = opaque;
    const uint64_t former = cuda_group_sequence(group);
    enum tutti_status status = cuda_group_check(group);
    if (status == TUTTI_OK)
        status = cuda_is_proxied(group) ? cuda_proxy_enqueue(group, request, stream)
                                        : barrier_enqueue(group, request, stream);
    return ended(group, request, former, status);
}

static const struct algorithm all_reduces = {.run = all_reduce}, barriers = {.run = barrier};

static enum tutti_status cuda_choose(const void *opaque, const struct choice_call *call,
                                     struct choice *choice)
{
    const struct cuda_group *group = opaque;
    const struct choice_rules *rules = group->rules;
    if (call->collective != TUTTI_COLLECTIVE_ALL_REDUCE) {
        *choice = (struct choice){.reason = "CUDA communicators have no such collective yet"};
        return TUTTI_OK;
    }
    enum tutti_algo algo = choice_by_rules(rules, call, &choice->reason);
    const char *table_reason = NULL;
    enum tutti_status status = TUTTI_OK;
    choice->algo = algo;
    choice->zero_copy = false;
    choice->launch = NULL;
    choice->run = algo == TUTTI_ALGO_NONE && rules->strict ? NULL : &all_reduces;
    if (!choice->run)
        return TUTTI_OK;
    if (cuda_is_proxied(group)) {
        status = cuda_proxy_algorithm(choice->algo, &algo, &table_reason);
    } else if (call->bytes) {
        status = cuda_plan_pick(&group->plan, choice->algo, call->dtype, call->bytes,
                                &choice->launch, &table_reason);
        if (status == TUTTI_OK)
            algo = cuda_kernel_algo((enum cuda_kernel)choice->launch->kernel);
    }
    if (choice->algo == TUTTI_ALGO_NONE && table_reason)
        choice->reason = table_reason;
    if (!rules->strict) /* strict mode names one_shot or two_shot, no kernel */
        choice->algo = algo;
    return status;
}

const struct backend cuda_backend = {
    .choose = cuda_choose,
    .barrier = &barriers,
    .sequence = cuda_group_sequence,
    .status = cuda_group_status,
    .finish = cuda_group_finish,
    .describe = cuda_group_describe,
    .close = cuda_group_close,
};
