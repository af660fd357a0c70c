/* SPDX-License-Identifier: MIT */
/*
 * All-reduce with RMSNorm: every byte of every operand, and around them, is that of a reference
 * which follows tutti/fused.h alone. All dtypes, weights, quantised outputs, hidden sizes, in place
 * or not, captured or not, by one-shot and two-shot; what is refused; ranks that disagree.
 *
 * usage: test_rms_norm threads|processes WORLD_SIZE [programmatic]
 */
#include "device.h"
#include "random.h"
#include "ranks.h"
#include "reference.h"

#include "../tools/gpu.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    POISON = 0xa5,
    GUARD = 256, /* bytes between two operands */
    LANES = 512,
    UNIT = 8,
    GROUP = TUTTI_NORM_GROUP,
    CALLS = 100,
    CALLS_SHORT = 40,
    MOST_ELEMENTS = 1 << 18, /* of all ranks' inputs; one row may have more */
    MOST_ELEMENTS_SHORT = 1 << 16,
    DEVICE_BYTES = 8 << 20, /* for an image; freed at the end, since that waits for all kernels */
};

static const enum tutti_dtype dtypes[] = {TUTTI_BFLOAT16, TUTTI_FLOAT16, TUTTI_FLOAT32};
static bool programmatic;

enum place { APART, AT_RESIDUAL, AT_INPUT, ABSENT };

/* Equal on all ranks, but for the places and max_blocks. */
struct call {
    size_t tokens, hidden;
    enum tutti_dtype dtype, weight_dtype;
    enum tutti_quant quant;
    bool has_residual, is_captured, by_columns;
    enum place residual_out, norm_out;
    float bias, epsilon;
    enum tutti_algo algo;
    int max_blocks;
    uint64_t seed;
};

/* An operand is `bytes` from an offset of the image. */
struct operand {
    size_t at, bytes;
    bool is_there;
};

enum { INPUT, RESIDUAL, WEIGHT, RESIDUAL_OUT, NORM_OUT, QUANT_OUT, SCALES, OPERANDS };

struct image {
    struct operand operands[OPERANDS];
    size_t bytes;
    size_t token_stride, group_stride;
    unsigned char *host, *expected, *device;
};

/* ---- values ---------------------------------------------------------------------------------- */

static float value_get(enum tutti_dtype dtype, const unsigned char *from, size_t i)
{
    float value;
    uint16_t code;
    if (dtype == TUTTI_FLOAT32) {
        memcpy(&value, from + i * sizeof value, sizeof value);
        return value;
    }
    memcpy(&code, from + i * sizeof code, sizeof code);
    return (float)reference_decode(dtype, code);
}

static void value_put(enum tutti_dtype dtype, unsigned char *to, size_t i, float value)
{
    const uint64_t bits = reference_bits(dtype, (double)value);
    memcpy(to + i * tutti_dtype_size(dtype), &bits, tutti_dtype_size(dtype));
}

/* Rows differ in size; some are zero, some have what is not finite, or is very small. */
static float value_make(uint64_t seed, size_t row, size_t i)
{
    uint64_t state = seed + row * 0x10001 + i * 0x9e3779b9;
    const uint64_t bits = random_next(&state);
    static const float odd[] = {INFINITY, NAN, 1e-40f, 60000, -60000, 1e-20f, -0.0f, 0};
    if (row % 9 == 8)
        return 0;
    if (row % 7 == 6 && bits % 61 == 0)
        return odd[bits >> 32 & 7];
    return ldexpf((float)((int)(bits >> 40 & 0xffff) - 32768) / 16384, (int)(row % 5) - 2);
}

static void tensor_make(enum tutti_dtype dtype, uint64_t seed, size_t rows, size_t columns,
                        unsigned char *to)
{
    for (size_t row = 0; row < rows; row++)
        for (size_t i = 0; i < columns; i++)
            value_put(dtype, to, row * columns + i, value_make(seed, row, i));
}

/* ---- the reference --------------------------------------------------------------------------- */

/* Adds x[i] and x[i + apart] for each `apart` in turn. */
static float add_apart(float *x, int count, const int *aparts)
{
    for (; *aparts; aparts++)
        for (int i = 0; i + *aparts < count; i++)
            if (!(i & *aparts))
                x[i] = x[i] + x[i + *aparts];
    return x[0];
}

static float squares_sum(const float *x, size_t hidden)
{
    static const int in_lane[] = {4, 2, 1, 0}, lanes[] = {16, 8, 4, 2, 1, 256, 128, 64, 32, 0};
    static _Thread_local float sums[LANES][UNIT], lane[LANES];
    memset(sums, 0, sizeof sums);
    for (size_t i = 0; i < hidden; i++) {
        float *sum = &sums[i / UNIT % LANES][i % UNIT];
        const float square = x[i] * x[i];
        *sum = *sum + square;
    }
    for (int l = 0; l < LANES; l++)
        lane[l] = add_apart(sums[l], UNIT, in_lane);
    return add_apart(lane, LANES, lanes);
}

static float scale_make(const float *y, size_t count, float limit)
{
    float most = 0;
    for (size_t i = 0; i < count; i++)
        most = isnan(y[i]) || isnan(most) ? NAN : fabsf(y[i]) > most ? fabsf(y[i]) : most;
    const float scale = most / limit;
    return most == 0 ? 1 : scale < ldexpf(1, -126) ? ldexpf(1, -126) : scale;
}

static void quantise(bool is_int8, const float *y, size_t count, float scale, unsigned char *to)
{
    const float inverse = 1 / scale;
    for (size_t i = 0; i < count; i++) {
        const float value = y[i] * inverse;
        if (!is_int8)
            to[i] = (unsigned char)reference_encode(TUTTI_FLOAT8_E4M3, (double)value);
        else
            to[i] = (unsigned char)(isnan(value)    ? 0
                                    : value >= 127  ? 127
                                    : value <= -128 ? -128
                                                    : (int)nearbyintf(value));
    }
}

static void group_put(const struct call *call, const struct image *image, size_t token,
                      size_t group, float *scale)
{
    unsigned char *scales = image->expected + image->operands[SCALES].at;
    const bool is_power = call->quant == TUTTI_QUANT_FP8_GROUP_UE8M0;
    unsigned char *to = scales + 4 * (token * image->token_stride +
                                      (is_power ? group / 4 : group) * image->group_stride);
    if (!is_power) {
        value_put(TUTTI_FLOAT32, to, 0, *scale);
        return;
    }
    int exponent;
    const float fraction = isfinite(*scale) ? frexpf(*scale, &exponent) : 0;
    const int byte = !isfinite(*scale) ? 255 : exponent - (fraction == 0.5f) + 127;
    *scale = byte == 255 ? NAN : ldexpf(1, byte - 127);
    to[group % 4] = (unsigned char)byte;
    for (size_t b = group % 4 + 1; group + 1 == call->hidden / GROUP && b < 4; b++)
        to[b] = 0;
}

static void quant_expect(const struct call *call, const struct image *image, size_t token,
                         const float *y)
{
    unsigned char *to = image->expected + image->operands[QUANT_OUT].at + token * call->hidden;
    unsigned char *scales = image->expected + image->operands[SCALES].at;
    const bool is_int8 = call->quant == TUTTI_QUANT_INT8_TOKEN;
    float scale = 0;
    switch (call->quant) {
    case TUTTI_QUANT_NONE:
        return;
    case TUTTI_QUANT_FP8_TENSOR:
        quantise(false, y, call->hidden, value_get(TUTTI_FLOAT32, scales, 0), to);
        return;
    case TUTTI_QUANT_FP8_TOKEN:
    case TUTTI_QUANT_INT8_TOKEN:
        scale = scale_make(y, call->hidden, is_int8 ? 127 : 448);
        value_put(TUTTI_FLOAT32, scales, token, scale);
        quantise(is_int8, y, call->hidden, scale, to);
        return;
    case TUTTI_QUANT_FP8_GROUP:
    case TUTTI_QUANT_FP8_GROUP_UE8M0:
        for (size_t i = 0; i < call->hidden; i += GROUP) {
            scale = scale_make(y + i, GROUP, 448);
            group_put(call, image, token, i / GROUP, &scale);
            quantise(false, y + i, GROUP, scale, to + i);
        }
        return;
    }
}

/* Writes what one row's outputs should be. `sum`: the row's. */
static void row_expect(const struct call *call, const struct image *image, size_t token,
                       const unsigned char *sum)
{
    static _Thread_local float x[TUTTI_NORM_HIDDEN_MAX], y[TUTTI_NORM_HIDDEN_MAX];
    const size_t first = token * call->hidden;
    const unsigned char *residual = image->host + image->operands[RESIDUAL].at;
    const unsigned char *weight = image->host + image->operands[WEIGHT].at;
    unsigned char rounded[8];
    for (size_t i = 0; i < call->hidden; i++) {
        x[i] = value_get(call->dtype, sum, i);
        if (call->has_residual)
            x[i] = x[i] + value_get(call->dtype, residual, first + i);
        value_put(call->dtype, rounded, 0, x[i]);
        x[i] = value_get(call->dtype, rounded, 0);
    }
    const float mean = squares_sum(x, call->hidden) / (float)call->hidden;
    const float factor = 1 / sqrtf(mean + call->epsilon);
    for (size_t i = 0; i < call->hidden; i++) {
        const float w = value_get(call->weight_dtype, weight, i) + call->bias;
        const float scaled = x[i] * factor;
        y[i] = scaled * w;
        if (image->operands[RESIDUAL_OUT].is_there)
            value_put(call->dtype, image->expected + image->operands[RESIDUAL_OUT].at, first + i,
                      x[i]);
        if (image->operands[NORM_OUT].is_there)
            value_put(call->dtype, image->expected + image->operands[NORM_OUT].at, first + i, y[i]);
    }
    quant_expect(call, image, token, y);
}

/* ---- images ---------------------------------------------------------------------------------- */

static void image_place(struct image *image, int operand, size_t bytes)
{
    image->operands[operand] = (struct operand){image->bytes, bytes, true};
    image->bytes += (bytes + GUARD + 15) / 16 * 16;
}

static void image_layout(const struct call *call, struct image *image)
{
    const size_t count = call->tokens * call->hidden, bytes = count * tutti_dtype_size(call->dtype);
    const size_t groups = call->hidden / GROUP,
                 words = call->quant == TUTTI_QUANT_FP8_GROUP_UE8M0 ? (groups + 3) / 4 : groups;
    *image = (struct image){.bytes = GUARD};
    image->token_stride = call->by_columns ? 1 : words;
    image->group_stride = call->by_columns ? call->tokens + 3 : 1;
    image_place(image, INPUT, bytes);
    if (call->has_residual)
        image_place(image, RESIDUAL, bytes);
    image_place(image, WEIGHT, call->hidden * tutti_dtype_size(call->weight_dtype));
    if (call->residual_out == APART)
        image_place(image, RESIDUAL_OUT, bytes);
    else if (call->residual_out != ABSENT)
        image->operands[RESIDUAL_OUT] =
            image->operands[call->residual_out == AT_INPUT ? INPUT : RESIDUAL];
    if (call->norm_out == APART)
        image_place(image, NORM_OUT, bytes);
    else if (call->norm_out == AT_INPUT)
        image->operands[NORM_OUT] = image->operands[INPUT];
    if (call->quant) {
        image_place(image, QUANT_OUT, count);
        image_place(image, SCALES, 4 * (call->tokens + 4) * (words ? words : 1));
    }
}

/* The input of any rank; other operands are the rank's own. */
static void input_make(const struct call *call, int rank, unsigned char *to)
{
    tensor_make(call->dtype, call->seed + 77 * (uint64_t)rank, call->tokens, call->hidden, to);
}

static void image_fill(const struct call *call, struct image *image, int rank)
{
    const uint64_t seed = call->seed + 1000 + (uint64_t)rank % 2;
    memset(image->host, POISON, image->bytes);
    input_make(call, rank, image->host + image->operands[INPUT].at);
    if (call->has_residual)
        tensor_make(call->dtype, seed, call->tokens, call->hidden,
                    image->host + image->operands[RESIDUAL].at);
    tensor_make(call->weight_dtype, seed + 7, 1, call->hidden,
                image->host + image->operands[WEIGHT].at);
    if (call->quant == TUTTI_QUANT_FP8_TENSOR)
        value_put(TUTTI_FLOAT32, image->host + image->operands[SCALES].at, 0, 0.0123f);
}

static void image_expect(const struct call *call, struct image *image, int size)
{
    const size_t bytes = call->tokens * call->hidden * tutti_dtype_size(call->dtype);
    unsigned char *inputs = malloc((size_t)(size + 1) * bytes + 1), *sums = inputs + size * bytes;
    const void *in[TUTTI_MAX_RANKS];
    if (!inputs)
        abort();
    memcpy(image->expected, image->host, image->bytes);
    for (int r = 0; r < size; r++) {
        in[r] = inputs + (size_t)r * bytes;
        input_make(call, r, inputs + (size_t)r * bytes);
    }
    reference_reduce(sums, in, size, call->tokens * call->hidden, call->dtype, TUTTI_SUM, 0);
    for (size_t token = 0; token < call->tokens; token++)
        row_expect(call, image, token, sums + token * call->hidden * tutti_dtype_size(call->dtype));
    free(inputs);
}

/* ---- calls ----------------------------------------------------------------------------------- */

static struct tutti_rms_norm norm_of(const struct call *call, const struct image *image,
                                     unsigned char *base)
{
    void *at[OPERANDS];
    for (int o = 0; o < OPERANDS; o++)
        at[o] = image->operands[o].is_there ? base + image->operands[o].at : NULL;
    return (struct tutti_rms_norm){
        .struct_size = sizeof(struct tutti_rms_norm),
        .tokens = call->tokens,
        .hidden = call->hidden,
        .dtype = call->dtype,
        .input = at[INPUT],
        .residual_in = at[RESIDUAL],
        .residual_out = at[RESIDUAL_OUT],
        .weight = at[WEIGHT],
        .weight_dtype = call->weight_dtype,
        .weight_bias = call->bias,
        .epsilon = call->epsilon,
        .norm_out = at[NORM_OUT],
        .quant = call->quant,
        .quant_out = at[QUANT_OUT],
        .scales = at[SCALES],
        .scale_token_stride = call->by_columns ? image->token_stride : 0,
        .scale_group_stride = call->by_columns ? image->group_stride : 0,
    };
}

static enum tutti_status call_enqueue(const struct tutti_rms_norm *norm, tutti_comm_t *comm,
                                      tutti_stream_t stream,
                                      const struct tutti_call_options *options, bool is_captured)
{
    if (!is_captured)
        return device_all_reduce_rms_norm(norm, comm, stream, options);
    if (!gpu_capture_begin(stream))
        return TUTTI_ERR_CUDA;
    enum tutti_status status = device_all_reduce_rms_norm(norm, comm, stream, options);
    void *graph = gpu_capture_end(stream);
    if (status == TUTTI_OK && (!graph || !gpu_graph_launch(graph, stream)))
        status = TUTTI_ERR_CUDA;
    if (!gpu_stream_synchronize(stream))
        status = TUTTI_ERR_CUDA;
    gpu_graph_destroy(graph);
    return status;
}

/* Runs the call on the rank's device. Afterwards image->host has the result. */
static enum tutti_status call_run(const struct call *call, struct image *image, tutti_comm_t *comm,
                                  tutti_stream_t stream)
{
    const struct tutti_call_options options = {
        .struct_size = sizeof options, .algo = call->algo, .max_blocks = call->max_blocks};
    const struct tutti_rms_norm norm =
        norm_of(call, image, device_is_cuda() ? image->device : image->host);
    if (!device_is_cuda())
        return tutti_all_reduce_rms_norm_with(&norm, comm, TUTTI_STREAM_DEFAULT, &options);
    if (!gpu_copy(image->device, image->host, image->bytes))
        return TUTTI_ERR_CUDA;
    enum tutti_status status = call_enqueue(&norm, comm, stream, &options, call->is_captured);
    if (!gpu_stream_synchronize(stream) || !gpu_copy(image->host, image->device, image->bytes))
        status = TUTTI_ERR_CUDA;
    return status == TUTTI_OK ? tutti_comm_status(comm, NULL) : status;
}

static struct call call_make(uint64_t *random, int rank, int size, bool needs_norm_out)
{
    static const size_t hiddens[] = {8, 128, 136, 1024, 2880, 4096, 4104, 7168, 16384};
    static const size_t most_tokens[] = {130, 3, 17};
    const size_t most = (ranks_short() ? MOST_ELEMENTS_SHORT : MOST_ELEMENTS) / (size_t)size;
    struct call call = {
        .hidden = hiddens[random_below(random, sizeof hiddens / sizeof *hiddens)],
        .dtype = dtypes[random_below(random, 3)],
        .weight_dtype = dtypes[random_below(random, 3)],
        .quant = (enum tutti_quant)random_below(random, TUTTI_QUANT_INT8_TOKEN + 1),
        .has_residual = random_below(random, 3) > 0,
        .bias = random_below(random, 2) ? 1 : 0,
        .epsilon = random_below(random, 4) ? 1e-5f : 0,
        .algo = random_below(random, 3)
                    ? (enum tutti_algo)(TUTTI_ALGO_ONE_SHOT + random_below(random, 2))
                    : TUTTI_ALGO_NONE,
        .seed = random_next(random),
    };
    call.tokens = (size_t)random_below(random, (int)most_tokens[random_below(random, 3)] + 1);
    if (call.tokens * call.hidden > most)
        call.tokens = most < call.hidden ? 1 : most / call.hidden;
    if (call.hidden % GROUP &&
        (call.quant == TUTTI_QUANT_FP8_GROUP || call.quant == TUTTI_QUANT_FP8_GROUP_UE8M0))
        call.quant = TUTTI_QUANT_FP8_TENSOR;
    call.by_columns = call.quant >= TUTTI_QUANT_FP8_GROUP && call.quant < TUTTI_QUANT_INT8_TOKEN &&
                      random_below(random, 2);
    call.is_captured = device_is_cuda() && random_below(random, 2) && !device_is_shared();
    call.norm_out = call.quant && !random_below(random, 3) && !needs_norm_out ? ABSENT : APART;
    /* Each rank chooses for itself where its outputs are. */
    uint64_t own = call.seed + (uint64_t)rank;
    call.residual_out = (enum place)random_below(&own, 4);
    call.max_blocks = random_below(&own, 2) ? 1 + random_below(&own, 20) : 0;
    if (call.residual_out == AT_RESIDUAL && !call.has_residual)
        call.residual_out = APART;
    if (call.residual_out == ABSENT && call.has_residual)
        call.residual_out = AT_RESIDUAL;
    if (call.norm_out == APART && call.residual_out != AT_INPUT && random_below(&own, 2))
        call.norm_out = AT_INPUT;
    return call;
}

static int differs(struct ranks *ranks, int rank, const struct call *call,
                   const struct image *image, size_t at)
{
    static const char *const names[] = {"input",    "residual",  "weight", "residual_out",
                                        "norm_out", "quant_out", "scales"};
    char text[400];
    const char *name = "a guard";
    size_t offset = at;
    for (int o = 0; o < OPERANDS; o++)
        if (image->operands[o].is_there && at - image->operands[o].at < image->operands[o].bytes) {
            name = names[o];
            offset = at - image->operands[o].at;
        }
    snprintf(text, sizeof text,
             "%s, byte %zu is %#x, not %#x: [%zu, %zu] of %s, weights %s, quant %s, residual %d "
             "(out %d), norm_out %d, captured %d, algorithm %s",
             name, offset, image->host[at], image->expected[at], call->tokens, call->hidden,
             tutti_dtype_name(call->dtype), tutti_dtype_name(call->weight_dtype),
             tutti_quant_name(call->quant), call->has_residual, (int)call->residual_out,
             (int)call->norm_out, call->is_captured, tutti_algo_name(call->algo));
    return ranks_fail(ranks, rank, __FILE__, __LINE__, text);
}

static int call_check(struct ranks *ranks, int rank, tutti_comm_t *comm, tutti_stream_t stream,
                      unsigned char *device, const struct call *call)
{
    struct image image;
    image_layout(call, &image);
    image.host = aligned_alloc(64, (image.bytes + 63) / 64 * 64);
    image.expected = malloc(image.bytes);
    image.device = device;
    RANKS_CHECK(image.host && image.expected && image.bytes <= DEVICE_BYTES);
    image_fill(call, &image, rank);
    image_expect(call, &image, ranks->size);
    RANKS_CHECK(call_run(call, &image, comm, stream) == TUTTI_OK);
    for (size_t i = 0; i < image.bytes; i++)
        if (image.host[i] != image.expected[i])
            return differs(ranks, rank, call, &image, i);
    free(image.host);
    free(image.expected);
    return 0;
}

/* Whether calls without norm_out are declined, as where an all-reduce and a kernel do the work. */
static int norm_out_check(struct ranks *ranks, int rank, tutti_comm_t *comm, tutti_stream_t stream,
                          unsigned char *device, bool *needs_norm_out)
{
    const struct call call = {.tokens = 1,
                              .hidden = GROUP,
                              .residual_out = ABSENT,
                              .norm_out = ABSENT,
                              .quant = TUTTI_QUANT_FP8_GROUP};
    unsigned char host[8 * GROUP * sizeof(float)] = {0};
    struct image image;
    image_layout(&call, &image);
    image.host = host;
    image.device = device;
    RANKS_CHECK(image.bytes <= sizeof host);
    const enum tutti_status status = call_run(&call, &image, comm, stream);
    *needs_norm_out = status == TUTTI_ERR_DECLINED;
    RANKS_CHECK(status == TUTTI_OK || (*needs_norm_out && device_is_cuda() && ranks->size > 1));
    RANKS_CHECK(!*needs_norm_out || strstr(tutti_last_error(), "norm_out is NULL"));
    return 0;
}

static int agree(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const struct tutti_comm_options options = {
        .struct_size = sizeof options,
        .programmatic_launch = programmatic ? TUTTI_PROGRAMMATIC_ON : TUTTI_PROGRAMMATIC_AUTO};
    const int calls = ranks_operations(CALLS, CALLS_SHORT);
    uint64_t random = 41;
    tutti_stream_t stream = TUTTI_STREAM_DEFAULT;
    tutti_comm_t *comm;
    unsigned char *device = NULL;
    int failed = 0;
    RANKS_CHECK(ranks_join(ranks, rank, store, &options, &comm) == TUTTI_OK);
    if (device_is_cuda()) {
        device = gpu_alloc(DEVICE_BYTES);
        RANKS_CHECK(device && gpu_stream_create(&stream));
    }
    bool needs_norm_out = false;
    failed = norm_out_check(ranks, rank, comm, stream, device, &needs_norm_out);
    for (int i = 0; i < calls && !failed; i++) {
        const struct call call = call_make(&random, rank, ranks->size, needs_norm_out);
        failed = call_check(ranks, rank, comm, stream, device, &call);
    }
    if (failed)
        return failed;
    tutti_comm_destroy(comm);
    if (device_is_cuda()) {
        gpu_stream_destroy(stream);
        gpu_free(device);
    }
    return 0;
}

/* More rows than a kernel has room for: several operations. A row has the bits that it has alone.
 */
static int pieces(struct ranks *ranks, int rank, tutti_store_t *store)
{
    enum { ROWS = 260, HIDDEN = TUTTI_NORM_HIDDEN_MAX, ROW_BYTES = 2 * HIDDEN };
    static const size_t rows[] = {0, 127, 143, 144, 167, 168, 191, 192, 255, 256, ROWS - 1};
    const size_t bytes = (size_t)ROWS * ROW_BYTES;
    const bool cuda = device_is_cuda();
    tutti_comm_t *comm;
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    unsigned char *host = malloc(2 * bytes + 2 * ROW_BYTES), *memory = host;
    RANKS_CHECK(host && (!cuda || (memory = gpu_alloc(2 * bytes + 2 * ROW_BYTES))));
    for (size_t i = 0; i < (bytes + ROW_BYTES) / 2; i++) { /* bfloat16 from 1 to 4 */
        const uint16_t code = (uint16_t)(0x3f80 + (i * 2654435761u >> 20 & 0xff) + (size_t)rank);
        memcpy(host + 2 * i, &code, sizeof code);
    }
    RANKS_CHECK(!cuda || gpu_copy(memory, host, bytes + ROW_BYTES));
    struct tutti_rms_norm norm = {.struct_size = sizeof norm,
                                  .tokens = ROWS,
                                  .hidden = HIDDEN,
                                  .dtype = TUTTI_BFLOAT16,
                                  .input = memory,
                                  .weight = memory + bytes,
                                  .weight_dtype = TUTTI_BFLOAT16,
                                  .norm_out = memory + bytes + ROW_BYTES};
    unsigned char *one = memory + 2 * bytes + ROW_BYTES;
    RANKS_CHECK(device_all_reduce_rms_norm(&norm, comm, TUTTI_STREAM_DEFAULT, NULL) == TUTTI_OK);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        norm.tokens = 1;
        norm.input = memory + rows[i] * ROW_BYTES;
        norm.norm_out = one;
        RANKS_CHECK(device_all_reduce_rms_norm(&norm, comm, TUTTI_STREAM_DEFAULT, NULL) ==
                    TUTTI_OK);
        RANKS_CHECK(tutti_barrier(comm, NULL, 0, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
        RANKS_CHECK(!cuda || gpu_copy(host, memory, 2 * bytes + 2 * ROW_BYTES));
        RANKS_CHECK(memcmp(host + 2 * bytes + ROW_BYTES,
                           host + bytes + ROW_BYTES + rows[i] * ROW_BYTES, ROW_BYTES) == 0);
    }
    RANKS_CHECK(tutti_comm_status(comm, NULL) == TUTTI_OK);
    tutti_comm_destroy(comm);
    if (cuda)
        gpu_free(memory);
    free(host);
    return 0;
}

/* ---- what is refused, and ranks that disagree ------------------------------------------------ */

/* A call of [2, 256] whose operands lie in `memory`. */
static struct tutti_rms_norm plain(unsigned char *memory)
{
    enum { BYTES = 2 * 256 * 2 };
    return (struct tutti_rms_norm){
        .struct_size = sizeof(struct tutti_rms_norm),
        .tokens = 2,
        .hidden = 256,
        .dtype = TUTTI_BFLOAT16,
        .input = memory,
        .residual_in = memory + BYTES,
        .residual_out = memory + 2 * BYTES,
        .weight = memory + 3 * BYTES,
        .weight_dtype = TUTTI_BFLOAT16,
        .norm_out = memory + 4 * BYTES,
        .quant_out = memory + 5 * BYTES,
        .scales = memory + 6 * BYTES,
    };
}

static bool is_refused(tutti_comm_t *comm, const struct tutti_rms_norm *norm, const char *text)
{
    if (device_all_reduce_rms_norm(norm, comm, TUTTI_STREAM_DEFAULT, NULL) == TUTTI_ERR_INVALID &&
        strstr(tutti_last_error(), text))
        return true;
    fprintf(stderr, "expected '%s': %s\n", text, tutti_last_error());
    return false;
}

#define REFUSED(text, ...)                                                                         \
    do {                                                                                           \
        struct tutti_rms_norm norm = plain(memory);                                                \
        __VA_ARGS__;                                                                               \
        RANKS_CHECK(is_refused(comm, &norm, text));                                                \
    } while (0)

static int refuse(struct ranks *ranks, int rank, tutti_store_t *store)
{
    static unsigned char host[8][DEVICE_BYTES / 64] __attribute__((aligned(16)));
    unsigned char *memory = host[rank % 8];
    tutti_comm_t *comm;
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    if (device_is_cuda())
        RANKS_CHECK((memory = gpu_alloc(DEVICE_BYTES / 64)) != NULL);
    REFUSED("struct_size", norm.struct_size = 0);
    REFUSED("dtype float64: expected", norm.dtype = TUTTI_FLOAT64);
    REFUSED("weight_dtype int8: expected", norm.weight_dtype = TUTTI_INT8);
    REFUSED("hidden 12: expected a multiple of 8", norm.hidden = 12);
    REFUSED("hidden 0: expected", norm.hidden = 0);
    REFUSED("hidden 16392: expected", norm.hidden = 16392);
    REFUSED("tokens ", norm.tokens = SIZE_MAX / 256);
    REFUSED("epsilon", norm.epsilon = -1);
    REFUSED("epsilon", norm.epsilon = NAN);
    REFUSED("quant 6: expected", norm.quant = (enum tutti_quant)6);
    REFUSED("there is no output", norm.norm_out = NULL);
    REFUSED("a multiple of 128", norm.hidden = 136; norm.quant = TUTTI_QUANT_FP8_GROUP);
    REFUSED("scale_group_stride 0: expected", norm.scale_token_stride = 2;
            norm.quant = TUTTI_QUANT_FP8_GROUP);
    REFUSED("input is NULL", norm.input = NULL);
    REFUSED("weight is NULL", norm.weight = NULL);
    REFUSED("residual_out is NULL", norm.residual_out = NULL);
    REFUSED("quant_out is NULL", norm.quant = TUTTI_QUANT_FP8_TOKEN; norm.quant_out = NULL);
    REFUSED("scales is NULL", norm.quant = TUTTI_QUANT_FP8_TENSOR; norm.scales = NULL);
    REFUSED("multiple of 16", norm.input = memory + 8);
    REFUSED("multiple of 4", norm.quant = TUTTI_QUANT_FP8_TOKEN;
            norm.scales = (char *)norm.scales + 2);
    REFUSED("residual_out and residual_in overlap",
            norm.residual_out = (char *)(uintptr_t)norm.residual_in + 16);
    REFUSED("norm_out and residual_in overlap",
            norm.norm_out = (char *)(uintptr_t)norm.residual_in);
    REFUSED("residual_out and norm_out overlap", norm.norm_out = norm.residual_out);
    REFUSED("quant_out and weight overlap", norm.quant = TUTTI_QUANT_FP8_TOKEN;
            norm.quant_out = (char *)(uintptr_t)norm.weight);
    REFUSED("scales and input overlap", norm.quant = TUTTI_QUANT_INT8_TOKEN;
            norm.scales = (char *)(uintptr_t)norm.input);
    RANKS_CHECK(tutti_all_reduce_rms_norm(NULL, comm, TUTTI_STREAM_DEFAULT) == TUTTI_ERR_INVALID);
    RANKS_CHECK(tutti_group_start() == TUTTI_OK);
    REFUSED("cannot be one of a group", (void)0);
    RANKS_CHECK(tutti_group_end() == TUTTI_ERR_INVALID);
    struct tutti_rms_norm norm = plain(memory); /* the communicator works */
    RANKS_CHECK(device_all_reduce_rms_norm(&norm, comm, TUTTI_STREAM_DEFAULT, NULL) == TUTTI_OK);
    RANKS_CHECK(tutti_barrier(comm, NULL, 0, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    tutti_comm_destroy(comm);
    if (device_is_cuda())
        gpu_free(memory);
    return 0;
}

/* The last rank makes another call. Where the lines of both are as many, the next operation
 * notices. */
static int disagree(struct ranks *ranks, int rank, tutti_store_t *store)
{
    enum { WAYS = 7 };
    static unsigned char host[8][DEVICE_BYTES / 64] __attribute__((aligned(16)));
    unsigned char *memory = host[rank % 8];
    if (device_is_cuda())
        RANKS_CHECK(device_bind(rank) && (memory = gpu_alloc(DEVICE_BYTES / 64)) != NULL);
    for (int way = 0; way < WAYS && ranks->size > 1; way++) {
        tutti_comm_t *comm;
        enum tutti_status status = TUTTI_OK;
        struct tutti_rms_norm norm = plain(memory);
        char name[16];
        snprintf(name, sizeof name, "way-%d", way);
        const struct tutti_comm_options options = {.struct_size = sizeof options, .name = name};
        RANKS_CHECK(ranks_join(ranks, rank, store, &options, &comm) == TUTTI_OK);
        const bool differs = rank == ranks->size - 1;
        if (differs && way == 0)
            norm.hidden = 512, norm.tokens = 1;
        if (differs && way == 1)
            norm.epsilon = 1e-6f;
        if (differs && way == 2)
            norm.residual_in = NULL;
        if (differs && way == 3)
            norm.weight_dtype = TUTTI_FLOAT16;
        if (differs && way == 4)
            norm.quant = TUTTI_QUANT_INT8_TOKEN;
        if (differs && way == 5)
            norm.tokens = 1;
        if (differs && way == 6)
            status = device_all_reduce(memory, memory, 512, TUTTI_BFLOAT16, TUTTI_SUM, comm,
                                       TUTTI_STREAM_DEFAULT, NULL);
        else
            status = device_all_reduce_rms_norm(&norm, comm, TUTTI_STREAM_DEFAULT, NULL);
        if (status == TUTTI_OK)
            status = tutti_barrier(comm, NULL, 0, TUTTI_STREAM_DEFAULT);
        if (status != TUTTI_ERR_MISMATCH)
            fprintf(stderr, "way %d: %s: %s\n", way, tutti_status_name(status), tutti_last_error());
        RANKS_CHECK(status == TUTTI_ERR_MISMATCH);
        RANKS_CHECK(strstr(tutti_last_error(), "all_reduce_rms_norm"));
        tutti_comm_destroy(comm);
    }
    if (device_is_cuda())
        gpu_free(memory);
    return 0;
}

/* The last rank does not come: the others' time-out ends the call, and its buffers are theirs. */
static int late(struct ranks *ranks, int rank, tutti_store_t *store)
{
    static unsigned char host[8][DEVICE_BYTES / 64] __attribute__((aligned(16)));
    const struct tutti_call_options options = {.struct_size = sizeof options, .timeout_ms = 200};
    unsigned char *memory = host[rank % 8];
    tutti_stream_t stream = TUTTI_STREAM_DEFAULT;
    tutti_comm_t *comm;
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    if (device_is_cuda())
        RANKS_CHECK((memory = gpu_alloc(DEVICE_BYTES / 64)) != NULL && gpu_stream_create(&stream));
    if (rank < ranks->size - 1) {
        const struct tutti_rms_norm norm = plain(memory);
        enum tutti_status status = device_all_reduce_rms_norm(&norm, comm, stream, &options);
        if (status == TUTTI_OK && device_is_cuda() && gpu_stream_synchronize(stream))
            status = tutti_comm_status(comm, NULL);
        RANKS_CHECK(status == TUTTI_ERR_TIMEOUT);
        ranks_raise(ranks, 0);
    } else {
        RANKS_CHECK(ranks_await(ranks, 0, (uint32_t)ranks->size - 1));
    }
    tutti_comm_destroy(comm);
    if (device_is_cuda()) {
        gpu_stream_destroy(stream);
        gpu_free(memory);
    }
    return 0;
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    const int size = atoi(argv[2]);
    const int skip = ranks_skip(size);
    if (skip)
        return skip;
    programmatic = argc > 3 && strcmp(argv[3], "programmatic") == 0;
    struct ranks *ranks = ranks_create(size, strcmp(argv[1], "threads") == 0 ? 0 : size, 0);
    int failures = ranks_run(ranks, agree);
    if (!programmatic)
        failures +=
            ranks_run(ranks, pieces) + ranks_run(ranks, refuse) + ranks_run(ranks, disagree);
    if (!programmatic && size > 1 && !device_is_shared())
        failures += ranks_run(ranks, late);
    ranks_destroy(ranks);
    return failures ? 1 : 0;
}
