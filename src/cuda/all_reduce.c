/* SPDX-License-Identifier: MIT */
/* What becomes of a request: a choice from the plan, a launch. No call of the driver that waits,
 * allocates or frees. */
#include "algo.h"
#include "cuda/group_internal.h"
#include "order.h"
#include "signature.h"

/* A group that has failed or was aborted enqueues nothing more. */
enum tutti_status cuda_group_check(struct cuda_group *group)
{
    if (__builtin_expect(order_load_acquire_u32(&group->host->failed) || /* A4 pairs F4 */
                             order_load_relaxed_u32(&group->host->aborted) ||
                             order_load_relaxed_u32(&group->keep->host->failed),
                         0))
        return cuda_group_status(group, NULL);
    return TUTTI_OK;
}

enum tutti_status cuda_group_enter(struct cuda_group *group, bool *pushed)
{
    return cuda_enter(group, pushed);
}

void cuda_group_leave(struct cuda_group *group, bool pushed)
{
    cuda_leave(group, pushed);
}

int cuda_group_device(const struct cuda_group *group)
{
    return group->device.ordinal;
}

/* What the template lacks. A time-out that is the communicator's own is left to the page, so that
 * it is none of the graph's. */
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

/* In phases the hosts alone meet where it is a subset's, which has no number. */
static enum tutti_status barrier_enqueue(struct cuda_group *group, struct cuda_launch *launch,
                                         const struct request *request, tutti_stream_t stream)
{
    return cuda_enqueue(group, stream,
                        &(struct cuda_task){
                            .function = group->kernels.barrier,
                            .phased = group->kernels.barrier_phased,
                            .blocks = 1,
                            .threads = CUDA_CLERKS,
                            .launches = launch->subset == 0,
                            .meetings = 1,
                            .launch = launch,
                            .request = request,
                        });
}

static CUfunction function_of(const struct cuda_group *group, const struct cuda_choice *choice,
                              const struct request *request, unsigned blocks)
{
    const CUfunction *functions = group->kernels.all_reduce[choice->kernel][request->dtype];
    if (request->op != TUTTI_OP_SUM || !functions[CUDA_SUM])
        return functions[CUDA_ANY];
    if (functions[CUDA_SUM_ONCE] && cuda_choice_is_once(choice, group->plan.size, request->send,
                                                        request->recv, request->bytes, blocks))
        return functions[CUDA_SUM_ONCE];
    return functions[CUDA_SUM];
}

enum tutti_status cuda_all_reduce(struct cuda_group *group, struct request *request,
                                  tutti_stream_t stream)
{
    const struct cuda_choice *choice;
    const char *reason;
    enum tutti_status status = cuda_group_check(group);
    if (status != TUTTI_OK)
        return status;
    if (cuda_is_proxied(group) && request->count == 0)
        return cuda_proxy_enqueue(group, 0, request, stream);
    struct cuda_launch launch = launch_make(group, request);
    if (request->count == 0) /* of what nobody has all ranks still are to have come */
        return barrier_enqueue(group, &launch, request, stream);

    status = cuda_operand_check(group, "send", request->send, request->bytes);
    if (status == TUTTI_OK && request->recv != request->send)
        status = cuda_operand_check(group, "recv", request->recv, request->bytes);
    if (status == TUTTI_OK && cuda_is_proxied(group))
        return cuda_proxy_enqueue(group, 0, request, stream);
    if (status == TUTTI_OK)
        status = cuda_plan_pick(&group->plan, request->algo, request->dtype, request->bytes,
                                &choice, &reason);
    if (status != TUTTI_OK)
        return status;
    request->signature =
        signature_set_algo(request->signature, cuda_kernel_algo((enum cuda_kernel)choice->kernel));
    launch.signature = request->signature;
    launch.tag = signature_hash(launch.signature ^ launch.parameter) >> 16;
    const unsigned blocks = cuda_choice_blocks(choice, group->plan.size, request->bytes);
    struct cuda_task task = {
        .function = function_of(group, choice, request, blocks),
        .blocks = blocks,
        .threads = choice->threads + CUDA_CLERKS,
        .launch = &launch,
        .request = request,
    };
    if (__builtin_expect(group->phased, 0)) {
        task.phased = group->kernels.phased[choice->kernel][request->dtype];
        task.launches =
            cuda_choice_phases(choice, group->plan.size, request->dtype, request->bytes, blocks);
        task.meetings = task.launches - 1;
    }
    return cuda_enqueue(group, stream, &task);
}

enum tutti_status cuda_barrier(struct cuda_group *group, uint64_t subset,
                               const struct request *request, tutti_stream_t stream)
{
    enum tutti_status status = cuda_group_check(group);
    if (status != TUTTI_OK)
        return status;
    if (cuda_is_proxied(group))
        return cuda_proxy_enqueue(group, subset, request, stream);
    struct cuda_launch launch = launch_make(group, request);
    launch.subset = (uint16_t)subset;
    return barrier_enqueue(group, &launch, request, stream);
}

enum tutti_status cuda_algorithm(const struct cuda_group *group, enum tutti_algo asked,
                                 enum tutti_dtype dtype, size_t bytes, enum tutti_algo *algo,
                                 const char **reason)
{
    const struct cuda_choice *choice;
    if (cuda_is_proxied(group))
        return cuda_proxy_algorithm(asked, algo, reason);
    enum tutti_status status = cuda_plan_pick(&group->plan, asked, dtype, bytes, &choice, reason);
    if (status == TUTTI_OK)
        *algo = cuda_kernel_algo((enum cuda_kernel)choice->kernel);
    return status;
}
