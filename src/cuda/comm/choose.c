/* SPDX-License-Identifier: MIT */
/* Chooses how a call on GPUs runs, of what enqueue.c has; and the back end's functions. */
#include "base/error.h"
#include "coll/request.h"
#include "cpu/group.h"
#include "cuda/comm/fabric.h"
#include "cuda/comm/push.h"

/* Returns the blocks of a call for which a kernel may have as many. */
static uint16_t within_limit(const struct choice_call *call, uint16_t blocks)
{
    return call->max_blocks && call->max_blocks < blocks ? (uint16_t)call->max_blocks : blocks;
}

/* Chooses for a rank alone. A float may be rounded, or be a NaN that is not canonical, a bool may
 * have any bits, and a scalar changes each input: a kernel reduces these. `algo` is what the call
 * or strict mode asks for. */
static void alone_choose(const struct cuda_group *group, const struct choice_call *call,
                         enum tutti_algo algo, struct choice *choice)
{
    const bool reduces =
        coll_rows[call->collective].reduces &&
        (dtype_is_float(call->dtype) || call->dtype == TUTTI_BOOL || call->op == OP_PREMUL_SUM);
    enum { BLOCKS_OF_MULTIPROCESSOR = 8 };
    const int most = group->device.multiprocessors * BLOCKS_OF_MULTIPROCESSOR;
    const int blocks = group->max_blocks && group->max_blocks < most ? group->max_blocks : most;
    *choice = (struct choice){
        .run = reduces ? &cuda_algo_reduce_alone : &cuda_algo_copy,
        .algo = algo != TUTTI_ALGO_NONE ? algo : TUTTI_ALGO_ONE_SHOT,
        .launch = {.kernel = CUDA_REDUCE_ALONE, .blocks = within_limit(call, (uint16_t)blocks)},
        .reason = reduces ? "by the kernel of a rank alone" : "a rank alone copies on its stream",
    };
}

/* Chooses for what the kernel of messages serves: messages, and v-forms that copy. The blocks are a
 * limit: a launch has fewer if it has fewer channels. */
static void exchange_choose(const struct cuda_group *group, const struct choice_call *call,
                            struct choice *choice)
{
    const bool is_message = coll_rows[call->collective].peer == COLL_PARTNER;
    const enum cuda_kernel kernel = call->most ? CUDA_EXCHANGE_COUNTED : CUDA_EXCHANGE;
    *choice =
        (struct choice){.run = is_message   ? &cuda_algo_message
                               : call->most ? &cuda_algo_exchange_counted
                                            : &cuda_algo_exchange,
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
    *choice =
        (struct choice){.run = call->most ? &cuda_algo_reduce_counted : &cuda_algo_reduce_varied,
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
        choice->run = &cuda_algo_kernel;
        choice->algo = TUTTI_ALGO_ONE_SHOT;
        const enum tutti_status status = cuda_plan_pick(&group->plan, call, TUTTI_ALGO_NONE, 0,
                                                        &choice->launch, &choice->reason);
        if (status == TUTTI_OK && call->bytes)
            choice->algo = cuda_kernel_rows[choice->launch.kernel].algo;
        return status;
    }
    if (call->most)
        choice->reason = cuda_is_alone(group)
                             ? "no kernel of a rank alone reads counts on the device"
                             : "counts on the device are read by kernels, and no kernel serves the "
                               "call on these links";
    else if (cuda_is_alone(group))
        alone_choose(group, call, TUTTI_ALGO_NONE, choice);
    else if (group->proxy)
        choice->run = is_message ? &cuda_algo_message : &cuda_algo_staged;
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
        .run = &cuda_algo_push,
        .algo = by_engines ? TUTTI_ALGO_COPY_ENGINE : TUTTI_ALGO_SYMMETRIC,
        .reason = by_engines ? "by copy engines, as the call asks"
                             : "into the peers' recv, as the call asks",
    };
    if (status != TUTTI_OK || by_engines || cuda_is_alone(group))
        return status;
    return cuda_plan_pick(&group->plan, call, TUTTI_ALGO_NONE, 0, &choice->launch, &kernel);
}

/* Chooses for ranks that a fabric joins. */
static enum tutti_status fabric_choose(const struct cuda_group *group,
                                       const struct choice_call *call, struct choice *choice)
{
    const struct coll *coll = &coll_rows[call->collective];
    const bool is_all_reduce = call->collective == TUTTI_COLLECTIVE_ALL_REDUCE;
    const enum tutti_algo asked =
        call->algo != TUTTI_ALGO_NONE || !is_all_reduce ? call->algo : group->rules->forced;
    const bool one_hop = !is_all_reduce || call->bytes <= CUDA_FABRIC_ONE_HOP_BYTES;
    *choice = (struct choice){
        .run = coll->peer == COLL_PARTNER ? &cuda_algo_message : &cuda_algo_fabric,
        .algo = one_hop ? TUTTI_ALGO_ONE_SHOT : TUTTI_ALGO_TWO_SHOT,
        .reason = one_hop ? "one hop by the fabric" : "fewer bytes by the fabric in two hops"};
    if (call->most) {
        choice->run = NULL;
        choice->reason = "counts on the device are read by kernels, and the ranks run on several "
                         "hosts, where no kernel serves the call";
        return TUTTI_OK;
    }
    if (asked == TUTTI_ALGO_NONE)
        return TUTTI_OK;
    if (!is_all_reduce || (asked != TUTTI_ALGO_ONE_SHOT && asked != TUTTI_ALGO_TWO_SHOT))
        return error_set(TUTTI_ERR_INVALID,
                         "%s: algorithm %s cannot be forced between hosts: pass TUTTI_ALGO_NONE",
                         coll->call, tutti_algo_name(asked));
    choice->algo = asked;
    choice->reason = "forced";
    return TUTTI_OK;
}

static enum tutti_status cuda_choose(const void *opaque, const struct choice_call *call,
                                     struct choice *choice)
{
    const struct cuda_group *group = opaque;
    const struct choice_rules *rules = group->rules;
    if (call->flags & CUDA_PUSH_FLAGS)
        return push_choose(group, call, choice);
    if (group->fabric)
        return fabric_choose(group, call, choice);
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
    choice->run = group->proxied ? &cuda_algo_staged : &cuda_algo_kernel;
    if (group->proxied) {
        status = cuda_proxy_algorithm(group, asked, &algo, &reason);
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

/* Any kernel that serves all-reduces and that a row of a tuning table may name. */
static int kernel_find(const char *name, enum tutti_algo *algo, const char **own)
{
    const enum cuda_kernel kernel = cuda_kernel_find(name);
    if (kernel == CUDA_KERNELS ||
        !(cuda_kernel_rows[kernel].collectives >> TUTTI_COLLECTIVE_ALL_REDUCE & 1))
        return 0;
    *algo = cuda_kernel_rows[kernel].algo;
    *own = cuda_kernel_rows[kernel].name;
    return 1 + (int)kernel;
}

const struct backend cuda_backend = {
    .name = "cuda",
    .title = "CUDA",
    .most_ranks = CUDA_RANKS,
    .enqueues = true,
    .kernel_find = kernel_find,
    .create = cpu_group_create,
    .setup_bytes = sizeof(struct cuda_setup),
    .record_make = cuda_record_make,
    .records_compare = cuda_records_compare,
    .links = cuda_records_links,
    .prepare = cuda_prepare,
    .open = cuda_group_open,
    .choose = cuda_choose,
    .barrier = &cuda_algo_barrier,
    .send_recv = cuda_send_recv,
    .send_own = cuda_send_own,
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
