/* SPDX-License-Identifier: MIT */
/*
 * All-reduce with RMSNorm: by one kernel if the ranks' arenas are on devices that all reach each
 * other; else the all-reduce that the ranks have, into norm_out, and a kernel behind it. A rank
 * alone needs that kernel only.
 */
#include "base/rms_norm.h"
#include "base/error.h"
#include "coll/request.h"
#include "cuda/comm/group_internal.h"

static const char call[] = "tutti_all_reduce_rms_norm";

/* The kernels for rows of that length. */
static enum cuda_form form_of(const struct cuda_group *group, enum cuda_kernel kernel,
                              enum tutti_dtype dtype, size_t hidden)
{
    const enum cuda_form form = hidden <= RMS_SHORT_ROW    ? CUDA_SUM_ONCE
                                : hidden <= RMS_MIDDLE_ROW ? CUDA_SUM
                                                           : CUDA_ANY;
    return cuda_kernel_has(&cuda_kernel_rows[kernel], group->launch.size, false, dtype, form)
               ? form
               : CUDA_ANY;
}

/* Whether one kernel does all. A ring would have other bits. Two kernels take less time than one
 * for any number of ranks: 7.0 us for 17.8, 1 row of 16384, 2 H200. */
static bool is_fused(const struct cuda_group *group, const struct tutti_rms_norm *norm)
{
    const enum tutti_algo forced = group->rules->forced;
    return cuda_has_kernels(group) && !group->on_host && group->rules->paths.all &&
           (forced == TUTTI_ALGO_NONE || forced == TUTTI_ALGO_ONE_SHOT ||
            forced == TUTTI_ALGO_TWO_SHOT) &&
           (!norm->norm_out ||
            form_of(group, CUDA_RMS_NORM_LINES, norm->dtype, norm->hidden) != CUDA_ANY);
}

/* The most rows for which a kernel has room. The chunks of two-shot are whole rows. */
static size_t capacity(const struct cuda_group *group, enum cuda_kernel kernel, size_t row_bytes)
{
    const struct cuda_kernel_row *row = &cuda_kernel_rows[kernel];
    const unsigned size = (unsigned)group->launch.size;
    return row->room / (size - 1) / row_bytes * cuda_kernel_parts(row, (int)size);
}

size_t cuda_rms_norm_rows(const void *opaque, const struct tutti_rms_norm *norm)
{
    const struct cuda_group *group = opaque;
    return is_fused(group, norm)
               ? capacity(group, CUDA_RMS_NORM_TWO_SHOT, norm->hidden * dtype_bytes(norm->dtype))
               : norm->tokens;
}

static enum tutti_status operands_check(struct cuda_group *group, const struct tutti_rms_norm *norm,
                                        tutti_stream_t stream)
{
    const size_t count = norm->tokens * norm->hidden, bytes = count * dtype_bytes(norm->dtype);
    const struct {
        const char *what;
        const void *pointer;
        size_t bytes;
    } operands[] = {
        {"input", norm->input, bytes},
        {"residual_in", norm->residual_in, bytes},
        {"residual_out", norm->residual_out, bytes},
        {"weight", norm->weight, norm->hidden * dtype_bytes(norm->weight_dtype)},
        {"norm_out", norm->norm_out, bytes},
        {"quant_out", norm->quant ? norm->quant_out : NULL, count},
        {"scales", norm->quant ? norm->scales : NULL, rms_scales_bytes(norm)},
    };
    enum tutti_status status = cuda_group_check(group);
    for (size_t i = 0; i < sizeof operands / sizeof *operands && status == TUTTI_OK; i++)
        if (operands[i].pointer)
            status = cuda_operand_check(group, call, operands[i].what, operands[i].pointer,
                                        operands[i].bytes, stream);
    return status;
}

static struct cuda_rms_norm args_make(const struct cuda_launch *launch,
                                      const struct tutti_rms_norm *norm)
{
    return (struct cuda_rms_norm){
        .launch = *launch,
        .residual_in = norm->residual_in,
        .weight = norm->weight,
        .residual_out = norm->residual_out,
        .norm_out = norm->norm_out,
        .quant_out = norm->quant_out,
        .scales = norm->scales,
        .tokens = (uint32_t)norm->tokens,
        .hidden = (uint32_t)norm->hidden,
        .token_stride = (uint32_t)norm->scale_token_stride,
        .group_stride = (uint32_t)norm->scale_group_stride,
        .epsilon = norm->epsilon,
        .weight_bias = norm->weight_bias,
        .weight_dtype = (uint8_t)norm->weight_dtype,
        .quant = (uint8_t)norm->quant,
    };
}

static unsigned least(size_t a, size_t b)
{
    return (unsigned)(a < b ? a : b);
}

/* Enqueues a kernel that serves `rows` rows by blocks of their own, within the limits. */
static enum tutti_status kernel_enqueue(struct cuda_group *group, enum cuda_kernel kernel,
                                        const struct request *request, struct cuda_rms_norm *args,
                                        size_t rows, unsigned blocks, tutti_stream_t stream)
{
    const struct cuda_kernel_row *row = &cuda_kernel_rows[kernel];
    const enum cuda_form form = form_of(group, kernel, request->dtype, args->hidden);
    const struct cuda_task task = {
        .function = group->kernels.functions[kernel][request->dtype][form],
        .blocks = least(rows, blocks),
        .threads = row->threads + CUDA_CONTROL_THREADS,
        .launch = &args->launch,
        .request = request,
    };
    return cuda_enqueue(group, stream, &task);
}

/* Sums of rows are in memory. `request`: of the operation, or of nobody but this rank, so that the
 * kernel takes no number. */
static enum tutti_status rows_enqueue(struct cuda_group *group, const struct request *request,
                                      const struct tutti_rms_norm *norm, const void *sums,
                                      tutti_stream_t stream)
{
    enum { BLOCKS_OF_MULTIPROCESSOR = 4 };
    struct cuda_rms_norm args = args_make(&group->launch, norm);
    args.launch.send = sums;
    return kernel_enqueue(group, CUDA_RMS_NORM_ROWS, request, &args, norm->tokens,
                          (unsigned)group->device.multiprocessors * BLOCKS_OF_MULTIPROCESSOR,
                          stream);
}

static enum tutti_status fused(struct cuda_group *group, struct request *request,
                               const struct tutti_rms_norm *norm, unsigned max_blocks,
                               tutti_stream_t stream)
{
    const bool one_shot =
        request->choice.algo == TUTTI_ALGO_ONE_SHOT &&
        norm->tokens <= capacity(group, CUDA_RMS_NORM_LINES, norm->hidden * request->element_bytes);
    const enum cuda_kernel kernel = one_shot ? CUDA_RMS_NORM_LINES : CUDA_RMS_NORM_TWO_SHOT;
    const unsigned blocks = group->plan.choices[CUDA_PLAN_ROWS + kernel].blocks;
    const struct cuda_launch launch =
        cuda_launch_make(group, request, one_shot ? TUTTI_ALGO_ONE_SHOT : TUTTI_ALGO_TWO_SHOT);
    struct cuda_rms_norm args = args_make(&launch, norm);
    request->signature = launch.signature;
    return kernel_enqueue(group, kernel, request, &args, norm->tokens,
                          max_blocks ? least(blocks, max_blocks) : blocks, stream);
}

/* After an all-reduce, which has taken the number and is recorded. */
static enum tutti_status composed(struct cuda_group *group, struct request *request,
                                  const struct tutti_rms_norm *norm, tutti_stream_t stream)
{
    enum tutti_status status = request->choice.run->run(group, request, stream);
    struct request rest = *request;
    rest.subset = rank_set_of(group->launch.rank);
    return status == TUTTI_OK ? rows_enqueue(group, &rest, norm, norm->norm_out, stream) : status;
}

enum tutti_status cuda_rms_norm(void *opaque, struct request *request,
                                const struct tutti_rms_norm *norm, unsigned max_blocks,
                                bool is_more, tutti_stream_t stream)
{
    struct cuda_group *group = opaque;
    const uint64_t former = cuda_group_sequence(group);
    const bool fuses = is_fused(group, norm);
    enum tutti_status status = operands_check(group, norm, stream);
    if (status == TUTTI_OK && !fuses && !cuda_is_alone(group)) {
        if (norm->norm_out)
            return composed(group, request, norm, stream);
        status = error_set(TUTTI_ERR_DECLINED,
                           "%s: norm_out is NULL: on these devices and links, and with this "
                           "algorithm, the sum needs it: pass norm_out",
                           call);
    }
    if (status == TUTTI_OK)
        status = fuses ? fused(group, request, norm, max_blocks, stream)
                       : rows_enqueue(group, request, norm, norm->input, stream);
    status = cuda_operation_ended(group, request, former, status);
    /* The ranks have begun the call, and this one cannot go on. */
    return status != TUTTI_OK && is_more && !cuda_group_has_failed(group)
               ? cuda_launch_failed(group, status, former + 1)
               : status;
}
