/* SPDX-License-Identifier: MIT */
/* Collectives fused with what inference engines call next. <tutti/tutti.h> includes this header. */
#ifndef TUTTI_FUSED_H
#define TUTTI_FUSED_H

#include "tutti/tutti.h"

#ifdef __cplusplus
extern "C" {
#endif

struct tutti_call_options; /* collectives.h */

/* ---- all-reduce, residual, RMSNorm, quantisation --------------------------------------------- */

/* X(name, value, text): the quantised output. The text is that of `tutti bench --quant`. */
#define TUTTI_QUANT_MAP(X)                                                                         \
    X(NONE, 0, "none")                                                                             \
    X(FP8_TENSOR, 1, "fp8_tensor")           /* float8_e4m3; one scale, which the caller gives */  \
    X(FP8_TOKEN, 2, "fp8_token")             /* float8_e4m3; a scale for each token is written */  \
    X(FP8_GROUP, 3, "fp8_group")             /* ... for each 128 elements of a token */            \
    X(FP8_GROUP_UE8M0, 4, "fp8_group_ue8m0") /* ... which is a power of two, 4 to a word */        \
    X(INT8_TOKEN, 5, "int8_token")           /* int8; a scale for each token is written */

enum tutti_quant {
#define TUTTI_QUANT_ENUM(name, value, text) TUTTI_QUANT_##name = value,
    TUTTI_QUANT_MAP(TUTTI_QUANT_ENUM)
#undef TUTTI_QUANT_ENUM
};
/* Static: "fp8_token"; "unknown" for another value. */
TUTTI_API const char *tutti_quant_name(enum tutti_quant quant);

#define TUTTI_NORM_HIDDEN_MAX 16384 /* the most elements of a token */
#define TUTTI_NORM_GROUP      128   /* elements that share a scale, by group */

/*
 * The operands of tutti_all_reduce_rms_norm(). "Equal" means equal on all ranks. Every tensor is
 * contiguous. Addresses are multiples of 16 bytes, that of `scales` of 4. All memory is of the
 * communicator's device, as at tutti_all_reduce().
 */
struct tutti_rms_norm {
    size_t struct_size;
    size_t tokens;           /* rows, 0 or more; equal */
    size_t hidden;           /* elements of a row: a multiple of 8, up to 16384; equal */
    enum tutti_dtype dtype;  /* float32, float16 or bfloat16; equal */
    const void *input;       /* [tokens, hidden] of dtype: this rank's part of the sum */
    const void *residual_in; /* [tokens, hidden] of dtype; NULL, on all ranks: no residual */
    void *residual_out;      /* [tokens, hidden] of dtype: the sum, with the residual if there is
                              * one. May be residual_in or input. May be NULL without residual */
    const void *weight;      /* [hidden] of weight_dtype */
    enum tutti_dtype weight_dtype; /* float32, float16 or bfloat16, with any dtype; equal */
    float weight_bias;             /* added to each weight: 1 for Gemma's 1 + w; equal */
    float epsilon;                 /* added to the mean of the squares, 0 or more; equal */
    void *norm_out;         /* [tokens, hidden] of dtype. May be input. NULL, on all ranks: the
                             * quantised output alone */
    enum tutti_quant quant; /* equal */
    void *quant_out;        /* [tokens, hidden] bytes: float8_e4m3 or int8 */
    /* By quant: FP8_TENSOR: one float32, which is read when the operation runs; values are divided
     * by it. Per token: float32, [tokens]. FP8_GROUP: float32, [tokens, hidden / 128]. UE8M0:
     * uint32, [tokens, ceil(hidden / 512)]; byte b of word w is the exponent, plus 127, of the
     * scale of group 4 w + b, 0 if there is no such group. */
    void *scales;
    /* Of scales by group: from one token to the next, and from one group (UE8M0: word) to the next,
     * in float32 or uint32. Both 0: [tokens, groups] without gaps. For DeepGEMM: 1, and tokens
     * rounded up to a multiple of 4. */
    size_t scale_token_stride, scale_group_stride;
};

/*
 * All-reduce (sum) of [tokens, hidden], addition of a residual, RMSNorm and quantisation, in one
 * operation: on CUDA in one launch, eager or captured. For each row:
 *
 *     s = the sum over all ranks' input, with the bits of tutti_all_reduce()
 *     x = residual_out = residual_in ? round(s + residual_in) : s
 *     y = (x * (1 / sqrt(sum(x * x) / hidden + epsilon))) * (weight + weight_bias)
 *     norm_out = round(y)
 *     quant_out = round(y * (1 / scale))
 *
 * *Numerics.* All arithmetic is float32, rounded after each operation, without contraction.
 * round() is to the dtype, to nearest even; a NaN is canonical. quant_out is made from y, not from
 * norm_out; it saturates at 448, or at -128 and 127, and an int8 of NaN is 0. A scale is absmax /
 * 448, of int8 absmax / 127, at least 2^-126; 1 if absmax is 0. absmax is the largest |y| of the
 * token or group. UE8M0 rounds that scale up to a power of two.
 *
 * The squares are added in a fixed order. A unit is 8 consecutive elements. Unit u belongs to lane
 * u mod 512, which has 8 accumulators, one for each place in a unit; a lane adds its units in
 * ascending order. Then the accumulators of a lane are added: those 4 places apart, then 2, then 1.
 * Then the lanes: those 16 apart, then 8, 4, 2, 1 apart, then 256, 128, 64 and 32 apart. A lane
 * without units is 0. So the bits of a row depend on the ranks' rows alone, not on the number of
 * tokens, the grid or the device: CPU and CUDA give the same bits.
 *
 * *Operands.* An output may overlap no other operand, except as struct tutti_rms_norm says. Each
 * rank has its own residual, weight and scales; where they are equal, so are all outputs.
 *
 * *Differences from tutti_all_reduce().* tokens, hidden, dtypes, weight_bias, epsilon, quant, and
 * whether there are a residual and a norm_out, are compared: a difference is MISMATCH. More rows
 * than the kernels or the buffers of a communicator hold run as several operations, in several
 * launches. CUDA runs an all-reduce into norm_out and a kernel behind it if ranks share a device or
 * do not reach each other's, or another algorithm than one-shot and two-shot is forced: norm_out
 * must not be NULL then. With a norm_out it does so, too, for float32, for rows of more than 8192
 * elements and among 5 to 7 ranks. A CPU communicator allocates 256 KiB in its first call without
 * norm_out. The call cannot be made between tutti_group_start() and tutti_group_end(), and has no
 * zero-copy form. All else holds as there: order, streams, captures, faults, options, statuses.
 *
 * Returns INVALID (also: hidden, a dtype, an operand or an address is not as described; quant
 * without quant_out or scales; neither norm_out nor quant; groups with hidden that is no multiple
 * of 128; a call in a group of calls), DECLINED (also: norm_out is NULL where it is needed), and as
 * tutti_all_reduce(), also NO_MEMORY.
 *
 * Example:
 *
 *     const struct tutti_rms_norm norm = {
 *         .struct_size = sizeof norm, .tokens = tokens, .hidden = 4096,
 *         .dtype = TUTTI_BFLOAT16, .input = partial, .residual_in = residual,
 *         .residual_out = residual, .weight = weight, .weight_dtype = TUTTI_BFLOAT16,
 *         .epsilon = 1e-5f, .norm_out = hidden_states,
 *     };
 *
 *     if (tutti_all_reduce_rms_norm(&norm, comm, stream))
 *         errx(1, "%s", tutti_last_error());
 */
TUTTI_API enum tutti_status tutti_all_reduce_rms_norm(const struct tutti_rms_norm *norm,
                                                      tutti_comm_t *comm, tutti_stream_t stream);
TUTTI_API enum tutti_status
tutti_all_reduce_rms_norm_with(const struct tutti_rms_norm *norm, tutti_comm_t *comm,
                               tutti_stream_t stream, const struct tutti_call_options *options);

#ifdef __cplusplus
}
#endif

#endif
