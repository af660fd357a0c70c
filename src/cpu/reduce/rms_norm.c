/* SPDX-License-Identifier: MIT */
/*
 * What tutti_all_reduce_rms_norm() does behind the sum, for one instruction set: compiled as
 * reduce.c. A row goes piece by piece through float32. It is read twice, three times if a scale of
 * the whole row is written: the rounded values come from memory each time.
 */
#include "base/rms_norm.h"
#include "cpu/reduce/reduce.h"

#define PASTE(a, b)      a##b
#define NAMED(prefix, x) PASTE(prefix, x)

enum { PIECE = 512, ACCUMULATORS = RMS_LANES * RMS_UNIT };
_Static_assert(PIECE % TUTTI_NORM_GROUP == 0 && ACCUMULATORS % PIECE == 0, "pieces");

/* A row of one call. */
struct row {
    const struct tutti_rms_norm *norm;
    size_t at;        /* its first element, in all tensors */
    const void *sums; /* the row's */
    size_t element;   /* bytes */
    float factor;
};

#define DEFINE_CONVERT(dtype, T, type, A, acc)                                                     \
    static void T##_widen(const void *from, float *to, size_t count)                               \
    {                                                                                              \
        const type *in = from;                                                                     \
        for (size_t i = 0; i < count; i++)                                                         \
            to[i] = (float)numeric_##T##_load(in[i]);                                              \
    }                                                                                              \
    static void T##_narrow(const float *from, void *to, size_t count)                              \
    {                                                                                              \
        type *out = to;                                                                            \
        for (size_t i = 0; i < count; i++)                                                         \
            out[i] = numeric_##T##_store(from[i]);                                                 \
    }
DEFINE_CONVERT(FLOAT32, f32, float, f32, float)
DEFINE_CONVERT(FLOAT16, f16, uint16_t, f32, float)
DEFINE_CONVERT(BFLOAT16, bf16, uint16_t, f32, float)

static void widen(enum tutti_dtype dtype, const void *from, float *to, size_t count)
{
    (dtype == TUTTI_FLOAT32   ? f32_widen
     : dtype == TUTTI_FLOAT16 ? f16_widen
                              : bf16_widen)(from, to, count);
}

static void narrow(enum tutti_dtype dtype, const float *from, void *to, size_t count)
{
    (dtype == TUTTI_FLOAT32   ? f32_narrow
     : dtype == TUTTI_FLOAT16 ? f16_narrow
                              : bf16_narrow)(from, to, count);
}

/* The address of an element of this row in a tensor of the dtype. */
static void *tensor_at(const struct row *row, const void *tensor, size_t i)
{
    return (char *)(uintptr_t)tensor + (row->at + i) * row->element;
}

/* Writes residual_out. Sets x[i] to the values to be normed from element `first` on. */
static void residual_add(const struct row *row, size_t first, float *x, size_t count)
{
    const struct tutti_rms_norm *norm = row->norm;
    float residual[PIECE];
    widen(norm->dtype, (const char *)row->sums + first * row->element, x, count);
    if (norm->residual_in) {
        widen(norm->dtype, tensor_at(row, norm->residual_in, first), residual, count);
        for (size_t i = 0; i < count; i++)
            x[i] += residual[i];
    }
    if (!norm->residual_out)
        return;
    narrow(norm->dtype, x, tensor_at(row, norm->residual_out, first), count);
    widen(norm->dtype, tensor_at(row, norm->residual_out, first), x, count);
}

/* The sum of the squares, in the order of fused.h. */
static float squares_sum(const float *sums, size_t used)
{
    float lanes[RMS_LANES], warps[RMS_WARPS];
    for (size_t l = 0; l < RMS_LANES; l++)
        lanes[l] = l * RMS_UNIT < used ? rms_add_eight(sums + l * RMS_UNIT) : 0;
    for (int w = 0; w < RMS_WARPS; w++) {
        float *lane = lanes + (ptrdiff_t)w * RMS_WARP;
        for (int apart = RMS_WARP / 2; apart; apart /= 2)
            for (int l = 0; l < apart; l++)
                lane[l] += lane[l + apart];
        warps[w] = lane[0];
    }
    return rms_add_warps(warps);
}

static float row_factor(const struct row *row)
{
    const size_t hidden = row->norm->hidden, used = hidden < ACCUMULATORS ? hidden : ACCUMULATORS;
    float sums[ACCUMULATORS], x[PIECE];
    for (size_t i = 0; i < used; i++)
        sums[i] = 0;
    for (size_t first = 0; first < hidden; first += PIECE) {
        const size_t count = hidden - first < PIECE ? hidden - first : PIECE;
        float *to = sums + first % ACCUMULATORS;
        residual_add(row, first, x, count);
        for (size_t i = 0; i < count; i++)
            to[i] = rms_square_add(to[i], x[i]);
    }
    return rms_factor(squares_sum(sums, used), (int)hidden, row->norm->epsilon);
}

/* Sets y[i] to the normed values from element `first` on. */
static void row_values(const struct row *row, size_t first, float *y, size_t count)
{
    const struct tutti_rms_norm *norm = row->norm;
    const size_t width = norm->weight_dtype == TUTTI_FLOAT32 ? sizeof(float) : sizeof(uint16_t);
    float weight[PIECE];
    widen(norm->weight_dtype, (const char *)norm->weight + first * width, weight, count);
    widen(norm->dtype,
          norm->residual_out ? tensor_at(row, norm->residual_out, first)
                             : (const char *)row->sums + first * row->element,
          y, count);
    for (size_t i = 0; i < count; i++)
        y[i] = rms_value(y[i], row->factor, rms_weight(weight[i], norm->weight_bias));
}

static uint32_t magnitude_of(const float *y, size_t count, uint32_t most)
{
    for (size_t i = 0; i < count; i++) {
        const uint32_t magnitude = rms_magnitude(y[i]);
        most = magnitude > most ? magnitude : most;
    }
    return most;
}

static void quantise(enum tutti_quant quant, const float *y, float scale, uint8_t *to, size_t count)
{
    const float inverse = 1.0f / scale;
    if (quant == TUTTI_QUANT_INT8_TOKEN)
        for (size_t i = 0; i < count; i++)
            to[i] = rms_to_int8(y[i], inverse);
    else
        for (size_t i = 0; i < count; i++)
            to[i] = rms_to_e4m3(y[i], inverse);
}

/* Quantises the groups of a piece, and writes their scales. */
static void groups_quantise(const struct row *row, size_t first, const float *y, uint8_t *to,
                            size_t count)
{
    const struct tutti_rms_norm *norm = row->norm;
    const size_t token = row->at / norm->hidden, groups = norm->hidden / TUTTI_NORM_GROUP;
    for (size_t i = 0; i < count; i += TUTTI_NORM_GROUP) {
        const size_t group = (first + i) / TUTTI_NORM_GROUP;
        float scale = rms_scale(magnitude_of(y + i, TUTTI_NORM_GROUP, 0), rms_limit(norm->quant));
        if (norm->quant == TUTTI_QUANT_FP8_GROUP_UE8M0) {
            const uint8_t exponent = rms_exponent(scale);
            rms_exponent_store((uint32_t *)norm->scales + token * norm->scale_token_stride +
                                   group / RMS_GROUPS_OF_WORD * norm->scale_group_stride,
                               (uint32_t)group, (uint32_t)groups, exponent);
            scale = rms_power(exponent);
        } else {
            ((float *)norm
                 ->scales)[token * norm->scale_token_stride + group * norm->scale_group_stride] =
                scale;
        }
        quantise(norm->quant, y + i, scale, to + i, TUTTI_NORM_GROUP);
    }
}

/* The scale of the whole row. */
static float row_scale(const struct row *row)
{
    const struct tutti_rms_norm *norm = row->norm;
    float y[PIECE], *scales = norm->scales;
    uint32_t most = 0;
    if (!rms_is_by_token(norm->quant))
        return norm->quant == TUTTI_QUANT_FP8_TENSOR ? *scales : 1;
    for (size_t first = 0; first < norm->hidden; first += PIECE) {
        const size_t count = norm->hidden - first < PIECE ? norm->hidden - first : PIECE;
        row_values(row, first, y, count);
        most = magnitude_of(y, count, most);
    }
    return scales[row->at / norm->hidden] = rms_scale(most, rms_limit(norm->quant));
}

static void row_norm(struct row *row)
{
    const struct tutti_rms_norm *norm = row->norm;
    row->factor = row_factor(row);
    const float scale = row_scale(row);
    for (size_t first = 0; first < norm->hidden; first += PIECE) {
        const size_t count = norm->hidden - first < PIECE ? norm->hidden - first : PIECE;
        uint8_t *to = (uint8_t *)norm->quant_out + row->at + first;
        float y[PIECE];
        row_values(row, first, y, count);
        if (norm->norm_out)
            narrow(norm->dtype, y, tensor_at(row, norm->norm_out, first), count);
        if (rms_is_by_group(norm->quant))
            groups_quantise(row, first, y, to, count);
        else if (norm->quant)
            quantise(norm->quant, y, scale, to, count);
    }
}

extern rms_norm_fn NAMED(rms_norm_rows_, REDUCE_ISA);

void NAMED(rms_norm_rows_, REDUCE_ISA)(const struct tutti_rms_norm *norm, const void *sums)
{
    const size_t element = norm->dtype == TUTTI_FLOAT32 ? sizeof(float) : sizeof(uint16_t);
    const uint64_t saved = reduce_env_begin();
    for (size_t token = 0; token < norm->tokens; token++) {
        struct row row = {.norm = norm,
                          .at = token * norm->hidden,
                          .sums = (const char *)sums + token * norm->hidden * element,
                          .element = element};
        row_norm(&row);
    }
    reduce_env_end(saved);
}
