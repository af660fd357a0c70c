/* SPDX-License-Identifier: MIT */
/*
 * Checks a call and cuts it into operations of some rows. Each is an all-reduce to its back end:
 * the request of one, with another signature. What follows the sum runs on the device behind the
 * back end, or, on CPU, here. On CPU the sum goes to norm_out, or to a scratch buffer.
 */
#include "comm/rms_norm.h"

#include "base/options.h"
#include "base/rms_norm.h"
#include "comm/run.h"

#include <inttypes.h>
#include <stdlib.h>

enum { SCRATCH_BYTES = 256 * 1024, ALIGNMENT = 16, STRIDE_MAX = INT32_MAX };
static_assert(SCRATCH_BYTES >= TUTTI_NORM_HIDDEN_MAX * sizeof(float), "a row");

static const char call[] = "tutti_all_reduce_rms_norm";

/* ---- the checks ------------------------------------------------------------------------------ */

static bool is_served(enum tutti_dtype dtype)
{
    return dtype == TUTTI_FLOAT32 || dtype == TUTTI_FLOAT16 || dtype == TUTTI_BFLOAT16;
}

static enum tutti_status dtypes_check(const struct tutti_rms_norm *norm)
{
    const bool is_data = !is_served(norm->dtype);
    if (!is_data && is_served(norm->weight_dtype))
        return TUTTI_OK;
    return error_set(TUTTI_ERR_INVALID, "%s: %s %s: expected float32, float16 or bfloat16", call,
                     is_data ? "dtype" : "weight_dtype",
                     tutti_dtype_name(is_data ? norm->dtype : norm->weight_dtype));
}

static enum tutti_status shape_check(const struct tutti_rms_norm *norm)
{
    const size_t most = SIGNATURE_COUNT_MAX / TUTTI_NORM_HIDDEN_MAX / sizeof(float);
    if (norm->hidden < RMS_UNIT || norm->hidden > TUTTI_NORM_HIDDEN_MAX || norm->hidden % RMS_UNIT)
        return error_set(TUTTI_ERR_INVALID, "%s: hidden %zu: expected a multiple of %d up to %d",
                         call, norm->hidden, RMS_UNIT, TUTTI_NORM_HIDDEN_MAX);
    if (norm->tokens > most)
        return error_set(TUTTI_ERR_INVALID, "%s: tokens %zu: expected %zu at most", call,
                         norm->tokens, most);
    if (!(norm->epsilon >= 0))
        return error_set(TUTTI_ERR_INVALID, "%s: epsilon %g: expected 0 or more", call,
                         (double)norm->epsilon);
    return TUTTI_OK;
}

static enum tutti_status quant_check(const struct tutti_rms_norm *norm)
{
    if ((unsigned)norm->quant > TUTTI_QUANT_INT8_TOKEN)
        return error_set(TUTTI_ERR_INVALID, "%s: quant %d: expected a value of enum tutti_quant",
                         call, (int)norm->quant);
    if (!norm->quant && !norm->norm_out)
        return error_set(TUTTI_ERR_INVALID,
                         "%s: there is no output: pass norm_out, or quant and quant_out", call);
    if (!rms_is_by_group(norm->quant))
        return TUTTI_OK;
    if (norm->hidden % TUTTI_NORM_GROUP)
        return error_set(TUTTI_ERR_INVALID,
                         "%s: hidden %zu with scales by group: expected a multiple of %d", call,
                         norm->hidden, TUTTI_NORM_GROUP);
    if (norm->scale_token_stride < 1 || norm->scale_group_stride < 1 ||
        norm->scale_token_stride > STRIDE_MAX || norm->scale_group_stride > STRIDE_MAX)
        return error_set(TUTTI_ERR_INVALID,
                         "%s: scale_token_stride %zu and scale_group_stride %zu: expected 1 to %d, "
                         "or 0 and 0",
                         call, norm->scale_token_stride, norm->scale_group_stride, STRIDE_MAX);
    return TUTTI_OK;
}

/* One operand: first those that are only read. */
struct operand {
    const char *name;
    const void *pointer;
    size_t bytes; /* 0: the call has no such operand */
    bool is_optional;
};

enum {
    INPUT,
    RESIDUAL_IN,
    WEIGHT,
    RESIDUAL_OUT,
    NORM_OUT,
    QUANT_OUT,
    SCALES, /* read only if there is one scale */
    OPERANDS
};

static void operands_list(const struct tutti_rms_norm *norm, struct operand list[OPERANDS])
{
    const size_t count = norm->tokens * norm->hidden, bytes = count * dtype_bytes(norm->dtype);
    const size_t weights = norm->hidden * dtype_bytes(norm->weight_dtype);
    const struct operand all[OPERANDS] = {
        [INPUT] = {"input", norm->input, bytes, false},
        [RESIDUAL_IN] = {"residual_in", norm->residual_in, bytes, true},
        [WEIGHT] = {"weight", norm->weight, weights, false},
        [RESIDUAL_OUT] = {"residual_out", norm->residual_out, bytes, !norm->residual_in},
        [NORM_OUT] = {"norm_out", norm->norm_out, bytes, true},
        [QUANT_OUT] = {"quant_out", norm->quant ? norm->quant_out : NULL, norm->quant ? count : 0,
                       false},
        [SCALES] = {"scales", norm->quant ? norm->scales : NULL, rms_scales_bytes(norm), false},
    };
    memcpy(list, all, sizeof all);
}

/* Whether an output may have the address of another operand. */
static bool may_be(int output, int other)
{
    return (output == RESIDUAL_OUT && (other == RESIDUAL_IN || other == INPUT)) ||
           (output == NORM_OUT && other == INPUT);
}

static bool has_overlap(const struct operand *a, const struct operand *b)
{
    const uintptr_t one = (uintptr_t)a->pointer, other = (uintptr_t)b->pointer;
    return one && other && one < other + b->bytes && other < one + a->bytes;
}

static enum tutti_status operands_check(const struct tutti_rms_norm *norm, bool on_device)
{
    struct operand list[OPERANDS];
    const int outputs = norm->quant == TUTTI_QUANT_FP8_TENSOR ? SCALES : OPERANDS;
    operands_list(norm, list);
    for (int i = 0; i < OPERANDS; i++) {
        const struct operand *operand = &list[i];
        const uintptr_t unit = i == SCALES ? sizeof(float) : ALIGNMENT;
        int ordinal;
        if (operand->bytes && !operand->pointer && !operand->is_optional)
            return error_set(TUTTI_ERR_INVALID, "%s: %s is NULL", call, operand->name);
        if ((uintptr_t)operand->pointer % unit)
            return error_set(TUTTI_ERR_INVALID,
                             "%s: %s %p: expected an address that is a multiple of %d", call,
                             operand->name, operand->pointer, (int)unit);
        if (operand->pointer && !on_device && region_on_device(operand->pointer, &ordinal))
            return call_refuse_device(call, operand->name, operand->pointer, ordinal);
    }
    for (int i = RESIDUAL_OUT; i < outputs; i++)
        for (int j = 0; j < OPERANDS; j++)
            if (i != j && has_overlap(&list[i], &list[j]) &&
                !(list[i].pointer == list[j].pointer && (may_be(i, j) || may_be(j, i))))
                return error_set(TUTTI_ERR_INVALID,
                                 "%s: %s and %s overlap: residual_out may be residual_in or input, "
                                 "norm_out may be input; all else must be disjoint",
                                 call, list[i].name, list[j].name);
    return TUTTI_OK;
}

/* Copies the caller's struct, with all strides set, and checks it. */
static enum tutti_status norm_read(const struct tutti_rms_norm *from, bool on_device,
                                   struct tutti_rms_norm *norm)
{
    if (!from)
        return error_set(TUTTI_ERR_INVALID, "%s: norm is NULL", call);
    enum tutti_status status = options_copy(call, "tutti_rms_norm", from, norm, sizeof *norm);
    if (status == TUTTI_OK)
        status = dtypes_check(norm);
    if (status == TUTTI_OK)
        status = shape_check(norm);
    if (status == TUTTI_OK && !norm->scale_token_stride && !norm->scale_group_stride) {
        norm->scale_token_stride = rms_groups(norm);
        norm->scale_group_stride = 1;
    }
    if (status == TUTTI_OK)
        status = quant_check(norm);
    return status == TUTTI_OK && norm->tokens ? operands_check(norm, on_device) : status;
}

/* ---- operations ------------------------------------------------------------------------------ */

static void *advance(const void *tensor, size_t bytes)
{
    return tensor ? (char *)(uintptr_t)tensor + bytes : NULL;
}

/* Some rows of the call. */
static struct tutti_rms_norm part_of(const struct tutti_rms_norm *norm, size_t first, size_t rows)
{
    const size_t count = first * norm->hidden, bytes = count * dtype_bytes(norm->dtype);
    struct tutti_rms_norm part = *norm;
    part.tokens = rows;
    part.input = advance(norm->input, bytes);
    part.residual_in = advance(norm->residual_in, bytes);
    part.residual_out = advance(norm->residual_out, bytes);
    part.norm_out = advance(norm->norm_out, bytes);
    part.quant_out = advance(norm->quant_out, count);
    if (norm->quant != TUTTI_QUANT_FP8_TENSOR)
        part.scales = advance(norm->scales,
                              first * sizeof(float) *
                                  (rms_is_by_group(norm->quant) ? norm->scale_token_stride : 1));
    return part;
}

/* All on which the ranks must agree, except for what the signature has. */
static uint32_t parameter_of(const struct tutti_rms_norm *norm)
{
    const uint64_t words[] = {
        norm->hidden << 32 | (uint64_t)norm->quant << 16 | (uint64_t)norm->weight_dtype << 8 |
            (uint64_t)(norm->residual_in != NULL) << 1 | (norm->norm_out != NULL),
        (uint64_t)numeric_f32_bits(norm->epsilon) << 32 | numeric_f32_bits(norm->weight_bias),
    };
    return signature_hash(words[1] ^ (uint64_t)signature_hash(words[0]) << 32);
}

static uint64_t signature_of(const struct tutti_rms_norm *norm, enum tutti_algo algo)
{
    return signature_pack(TUTTI_COLLECTIVE_ALL_REDUCE_RMS_NORM,
                          is_served(norm->dtype) ? norm->dtype : SIGNATURE_NO_DTYPE, OP_SUM, algo,
                          norm->tokens * norm->hidden & SIGNATURE_COUNT_MAX);
}

/* Where a CPU communicator's sum goes, and the rows for which there is room. */
static enum tutti_status scratch_ensure(struct tutti_comm *comm)
{
    if (!comm->norm_scratch)
        comm->norm_scratch = aligned_alloc(64, SCRATCH_BYTES);
    return comm->norm_scratch
               ? TUTTI_OK
               : error_set(TUTTI_ERR_NO_MEMORY, "%s: no memory for %d bytes", call, SCRATCH_BYTES);
}

static size_t rows_of(const struct tutti_comm *comm, const struct tutti_rms_norm *norm)
{
    if (comm->backend->rms_norm_rows)
        return comm->backend->rms_norm_rows(comm->group, norm);
    return norm->norm_out ? norm->tokens
                          : SCRATCH_BYTES / (norm->hidden * dtype_bytes(norm->dtype));
}

/* Runs one operation. */
static enum tutti_status part_run(struct tutti_comm *comm, const struct tutti_rms_norm *part,
                                  bool is_more, tutti_stream_t stream,
                                  const struct tutti_call_options *options)
{
    const bool enqueues = comm->backend->enqueues;
    void *sums = part->norm_out ? part->norm_out
                 : enqueues     ? advance(part->input, 0)
                                : comm->norm_scratch;
    const struct coll_args args = coll_args_make(part->input, sums, part->tokens * part->hidden,
                                                 part->dtype, op_known(TUTTI_SUM), 0);
    struct request request;
    enum tutti_status status = request_make(comm, TUTTI_COLLECTIVE_ALL_REDUCE, &args, stream,
                                            options, comm->rank, &request);
    if (status != TUTTI_OK)
        return call_refused(comm, signature_of(part, TUTTI_ALGO_NONE), status);
    request.recv = enqueues ? part->norm_out : sums;
    request.signature = signature_of(part, enqueues ? TUTTI_ALGO_NONE : request.choice.algo);
    request.parameter = parameter_of(part);
    if (enqueues && part->tokens)
        return call_ended(comm, &request,
                          comm->backend->rms_norm(comm->group, &request, part,
                                                  (unsigned)options->max_blocks, is_more, stream));
    if (enqueues)
        request.choice.run = comm->backend->barrier;
    status = call_ended(comm, &request, request.choice.run->run(comm->group, &request, stream));
    if (status == TUTTI_OK && part->tokens)
        comm->isa->rms_norm(part, sums);
    return status;
}

enum tutti_status comm_rms_norm(struct tutti_comm *comm, const struct tutti_rms_norm *from,
                                tutti_stream_t stream, const struct tutti_call_options *given)
{
    struct tutti_call_options options = {.flags = 0};
    struct tutti_rms_norm norm = {.dtype = (enum tutti_dtype)SIGNATURE_NO_DTYPE};
    enum tutti_status status = norm_read(from, comm->backend->enqueues, &norm);
    if (status == TUTTI_OK && given)
        status = call_options_read(comm, TUTTI_COLLECTIVE_ALL_REDUCE, given, call, &options);
    if (status == TUTTI_OK && !norm.norm_out && !comm->backend->enqueues)
        status = scratch_ensure(comm);
    if (status != TUTTI_OK)
        return call_refused(comm, signature_of(&norm, TUTTI_ALGO_NONE), status);
    const size_t most = rows_of(comm, &norm);
    size_t first = 0;
    do {
        const size_t left = norm.tokens - first, rows = left < most ? left : most;
        const struct tutti_rms_norm part = part_of(&norm, first, rows);
        status = part_run(comm, &part, first > 0, stream, &options);
        first += rows;
    } while (status == TUTTI_OK && first < norm.tokens);
    return status;
}
