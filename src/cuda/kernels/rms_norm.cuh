/* SPDX-License-Identifier: MIT */
/*
 * What follows the sum in an all-reduce with RMSNorm (tutti/fused.h): residual, norm, quantisation.
 * A block serves whole rows, one after the other, with a worker for each lane of fused.h: worker w
 * has units w, w + RMS_WORKERS, ... of a row. It keeps them in registers from the sum to the end,
 * and writes what it alone has read, so outputs may be inputs. A unit takes about 180 instructions
 * one after the other, and a row as long as its worker with most units: so there are many workers
 * with few units.
 *
 * The workers of a block meet once a row, or twice if a scale of the row is written. A worker that
 * gives up a wait goes on to the meeting, with any values, and there all leave.
 */
#ifndef TUTTI_CUDA_RMS_NORM_CUH
#define TUTTI_CUDA_RMS_NORM_CUH

#include "base/rms_norm.h"
#include "cuda/kernels/lines.cuh"
#include "cuda/kernels/pairs.cuh"

/* Units of a worker: three forms of each kernel. */
enum : unsigned {
    RMS_WORKERS = RMS_LANES,
    RMS_FEW_UNITS = 1,
    RMS_SOME_UNITS = 2,
    RMS_MANY_UNITS = 4
};
static_assert(RMS_MANY_UNITS * RMS_WORKERS * RMS_UNIT == TUTTI_NORM_HIDDEN_MAX, "the longest row");

/* What the warps of a block tell each other, for two rows in turn. */
struct rms_block {
    float sums[2][RMS_WARPS];
    uint32_t most[2][RMS_WARPS];
};

static __device__ __forceinline__ float rms_warp_sum(float x)
{
#pragma unroll
    for (int apart = RMS_WARP / 2; apart; apart /= 2)
        x += numeric_f32_from_bits(order_warp_other(numeric_f32_bits(x), apart));
    return x;
}

/* The largest of `apart` times two threads. */
static __device__ __forceinline__ uint32_t rms_most(uint32_t x, int apart)
{
#pragma unroll
    for (; apart; apart /= 2) {
        const uint32_t other = order_warp_other(x, apart);
        x = other > x ? other : x;
    }
    return x;
}

/* ---- lines of 16-bit floats ------------------------------------------------------------------ */

/* Makes each NaN canonical. They are rare: one test for all. */
template <typename D> static __device__ __forceinline__ void rms_canonical(unit<2> &u)
{
    constexpr bool IS_HALF = std::is_same<D, dtype_half>::value;
    constexpr uint64_t EACH = UINT64_C(0x0001000100010001), SIGNS = EACH << 15,
                       TO_SIGN = EACH * (IS_HALF ? 0x3ff : 0x7f), /* from infinity */
        NAN_BITS = EACH * (IS_HALF ? 0x7e00 : 0x7fc0);
    const uint64_t low = (u.word[0] & ~SIGNS) + TO_SIGN, high = (u.word[1] & ~SIGNS) + TO_SIGN;
    if (!((low | high) & SIGNS))
        return;
    const uint64_t nans[2] = {(low & SIGNS) >> 15, (high & SIGNS) >> 15};
#pragma unroll
    for (int w = 0; w < 2; w++)
        u.word[w] = (u.word[w] & ~(nans[w] * 0xffff)) | (NAN_BITS & (nans[w] * 0xffff));
}

/* The sums, rounded to nearest even. */
template <typename D> static __device__ __forceinline__ unit<2> rms_add(unit<2> a, unit<2> b)
{
    unit<2> sum;
#pragma unroll
    for (int w = 0; w < 2; w++) {
        const auto add = [](uint64_t x, uint64_t y) -> uint64_t {
            return std::is_same<D, dtype_half>::value ? pairs_add_f16((uint32_t)x, (uint32_t)y)
                                                      : pairs_add_bf16((uint32_t)x, (uint32_t)y);
        };
        sum.word[w] = add(a.word[w], b.word[w]) | add(a.word[w] >> 32, b.word[w] >> 32) << 32;
    }
    rms_canonical<D>(sum);
    return sum;
}

/* ---- units ----------------------------------------------------------------------------------- */

/* The elements of consecutive lines. */
template <typename D>
static __device__ __forceinline__ void rms_widen(const unit<2> *u, float (&x)[RMS_UNIT])
{
    constexpr int PER_WORD = 8 / sizeof(typename D::element), BITS = 64 / PER_WORD;
#pragma unroll
    for (int i = 0; i < RMS_UNIT; i++)
        x[i] = D::load(
            bits_element<D>(u[i / PER_WORD / 2].word[i / PER_WORD % 2] >> i % PER_WORD * BITS));
}

template <typename D> static __device__ __forceinline__ uint32_t rms_pair(const float *x)
{
    return std::is_same<D, dtype_half>::value ? convert_pair_f16(x[0], x[1])
                                              : convert_pair_bf16(x[0], x[1]);
}

template <typename D, int LINES>
static __device__ __forceinline__ void rms_narrow(const float (&x)[RMS_UNIT], unit<2> *u)
{
    constexpr int PER_WORD = 8 / sizeof(typename D::element);
#pragma unroll
    for (int w = 0; w < 2 * LINES; w++)
        if constexpr (LINES == 1)
            u->word[w] = rms_pair<D>(x + 4 * w) | (uint64_t)rms_pair<D>(x + 4 * w + 2) << 32;
        else
            u[w / 2].word[w % 2] = word_of<D>(x + w * PER_WORD);
    if constexpr (LINES == 1)
        rms_canonical<D>(*u);
}

/* A worker's part of one row after the other. UNITS: of a row, at most. KEEPS: there are registers
 * for what follows the sum. */
template <typename D, int UNITS, bool KEEPS> struct rms_row {
    static constexpr int LINES = RMS_UNIT * sizeof(typename D::element) / CUDA_LINE, /* of a unit */
        ALL = UNITS * LINES;
    /* The input, the residual and the weights are kept from before the wait on. Else they are
     * loaded where they are used. */
    static constexpr bool FEW = KEEPS && LINES == 1;
    static constexpr int AT_ONCE = ALL < 4     ? ALL
                                   : LINES > 1 ? 1
                                               : 4; /* lines that are loaded before one is used */

    const cuda_rms_norm &norm;
    const unsigned worker, units;
    unsigned turn = 0; /* of struct rms_block */
    bool ok = true;    /* no wait has failed */
    unit<2> x[ALL];
    unit<2> input[FEW ? ALL : 1], residual[FEW ? ALL : 1];
    float weights[FEW ? UNITS : 1][RMS_UNIT]; /* with the bias */

    __device__ __forceinline__ rms_row(const cuda_rms_norm &n)
        : norm(n), worker(threadIdx.x - CUDA_CONTROL_THREADS), units(n.hidden / RMS_UNIT)
    {
    }

    __device__ __forceinline__ bool has(int line) const
    {
        return worker + line / LINES * RMS_WORKERS < units;
    }

    /* The lines of a row, as they travel: those of the first halves of units come first. `offset`:
     * from the worker's first line. */
    __device__ __forceinline__ unsigned row_bytes() const
    {
        return units * (LINES * CUDA_LINE);
    }
    __device__ __forceinline__ unsigned offset(int line) const
    {
        return (line / LINES * RMS_WORKERS + line % LINES * units) * CUDA_LINE;
    }

    /* A line of a tensor of the dtype. */
    __device__ __forceinline__ unsigned char *line_at(const void *tensor, unsigned row,
                                                      int line) const
    {
        return (unsigned char *)tensor +
               (((uint64_t)row * units + worker + line / LINES * RMS_WORKERS) * LINES +
                line % LINES) *
                   CUDA_LINE;
    }

    /* Lines `first` to first + N - 1. */
    template <int N>
    __device__ __forceinline__ void load(const void *tensor, unsigned row, int first,
                                         unit<2> *u) const
    {
#pragma unroll
        for (int n = 0; n < N; n++)
            u[n] = has(first + n) ? unit_load<2>(line_at(tensor, row, first + n)) : unit<2>{};
    }

    /* Those of unit i, with the bias. */
    __device__ __forceinline__ void load_weights_of(int i, float (&w)[RMS_UNIT]) const
    {
        const unsigned at = worker + i * RMS_WORKERS;
        const unsigned char *const from =
            (const unsigned char *)norm.weight +
            (uint64_t)at * (norm.weight_dtype == TUTTI_FLOAT32 ? 2 : 1) * CUDA_LINE;
        unit<2> raw[2] = {};
        if (at < units) {
            raw[0] = unit_load<2>(from);
            if (norm.weight_dtype == TUTTI_FLOAT32)
                raw[1] = unit_load<2>(from + CUDA_LINE);
        }
        if (norm.weight_dtype == TUTTI_FLOAT32)
            rms_widen<dtype_f32>(raw, w);
        else if (norm.weight_dtype == TUTTI_BFLOAT16)
            rms_widen<dtype_bfloat>(raw, w);
        else
            rms_widen<dtype_half>(raw, w);
#pragma unroll
        for (int e = 0; e < RMS_UNIT; e++)
            w[e] = rms_weight(w[e], norm.weight_bias);
    }

    /* Loads the weights that are kept, before the first row. */
    __device__ __forceinline__ void load_weights(void)
    {
#pragma unroll
        for (int i = 0; i < UNITS && FEW; i++)
            load_weights_of(i, weights[FEW ? i : 0]);
    }

    /* Loads what is kept for a row. */
    __device__ __forceinline__ void load_input(unsigned row)
    {
        if (FEW)
            load<FEW ? ALL : 1>(norm.launch.send, row, 0, input);
    }
    __device__ __forceinline__ void load_residual(unsigned row)
    {
        if (FEW && norm.residual_in)
            load<FEW ? ALL : 1>(norm.residual_in, row, 0, residual);
    }

    /* Calls for each line of the input's row with the line. Units are copied, not chosen by their
     * addresses: else the row would lie in memory. */
    template <typename PUSH>
    __device__ __forceinline__ void push(PUSH each, unsigned row, bool is_loaded) const
    {
#pragma unroll
        for (int first = 0; first < ALL; first += AT_ONCE) {
            unit<2> u[AT_ONCE];
            if (!has(first))
                break;
            if (!FEW || !is_loaded) {
                load<AT_ONCE>(norm.launch.send, row, first, u);
            } else {
#pragma unroll
                for (int n = 0; n < AT_ONCE; n++)
                    u[n] = input[FEW ? first + n : 0];
            }
#pragma unroll
            for (int n = 0; n < AT_ONCE; n++)
                if (has(first + n))
                    each(first + n, u[n]);
        }
    }

    __device__ __forceinline__ void values(int i, float factor, float (&y)[RMS_UNIT]) const
    {
        float loaded[RMS_UNIT];
        if (!FEW)
            load_weights_of(i, loaded);
        rms_widen<D>(x + i * LINES, y);
#pragma unroll
        for (int e = 0; e < RMS_UNIT; e++)
            y[e] = rms_value(y[e], factor, FEW ? weights[FEW ? i : 0][e] : loaded[e]);
    }

    /* x: the sums. Adds the residual, and writes the result. Returns the sum of the lane's squares.
     */
    __device__ __forceinline__ float residual_add(unsigned row)
    {
        float sums[RMS_UNIT] = {};
#pragma unroll
        for (int i = 0; i < UNITS; i++) {
            float value[RMS_UNIT];
            if (!has(i * LINES))
                break;
            if (norm.residual_in) {
                unit<2> raw[LINES];
                if (!FEW)
                    load<LINES>(norm.residual_in, row, i * LINES, raw);
                if constexpr (LINES == 1) {
                    x[i] = rms_add<D>(x[i], FEW ? residual[FEW ? i : 0] : raw[0]);
                } else {
                    float other[RMS_UNIT];
                    rms_widen<D>(x + i * LINES, value);
                    rms_widen<D>(raw, other);
#pragma unroll
                    for (int e = 0; e < RMS_UNIT; e++)
                        value[e] += other[e];
                    rms_narrow<D, LINES>(value, x + i * LINES);
                }
            }
            store(norm.residual_out, row, i, x + i * LINES);
            rms_widen<D>(x + i * LINES, value);
#pragma unroll
            for (int e = 0; e < RMS_UNIT; e++)
                sums[e] = rms_square_add(sums[e], value[e]);
        }
        return rms_add_eight(sums);
    }

    /* Unit i. tensor: may be NULL. */
    __device__ __forceinline__ void store(void *tensor, unsigned row, int i, const unit<2> *u) const
    {
        if (!tensor)
            return;
#pragma unroll
        for (int l = 0; l < LINES; l++)
            unit_store(line_at(tensor, row, i * LINES + l), u[l]);
    }

    __device__ __forceinline__ void store_quantised(unsigned row, int i, const float (&y)[RMS_UNIT],
                                                    float inverse) const
    {
        uint64_t word = 0;
        if (norm.quant == TUTTI_QUANT_INT8_TOKEN) {
#pragma unroll
            for (int e = 0; e < RMS_UNIT; e++)
                word |= (uint64_t)rms_to_int8(y[e], inverse) << 8 * e;
        } else {
#pragma unroll
            for (int e = 0; e < RMS_UNIT; e += 2)
                word |= (uint64_t)convert_pair_e4m3(y[e] * inverse, y[e + 1] * inverse) << 8 * e;
        }
        order_store_plain_u64((unsigned char *)norm.quant_out +
                                  ((uint64_t)row * units + worker + i * RMS_WORKERS) * RMS_UNIT,
                              word);
    }

    /* Of unit i's group, which 16 threads of a warp have. Returns its scale; the first thread
     * writes it. All threads of the warp call this. */
    __device__ __forceinline__ float group_scale(unsigned row, int i, uint32_t magnitude) const
    {
        constexpr unsigned THREADS = TUTTI_NORM_GROUP / RMS_UNIT;
        const unsigned u = worker + i * RMS_WORKERS, group = u / THREADS;
        const float scale = rms_scale(rms_most(magnitude, THREADS / 2), rms_limit(QUANT_FP8));
        const bool writes = u < units && u % THREADS == 0;
        uint32_t *const scales = (uint32_t *)norm.scales + (uint64_t)row * norm.token_stride;
        if (norm.quant == TUTTI_QUANT_FP8_GROUP) {
            if (writes)
                order_store_plain_u32(scales + (uint64_t)group * norm.group_stride,
                                      numeric_f32_bits(scale));
            return scale;
        }
        const uint8_t exponent = rms_exponent(scale);
        if (writes)
            rms_exponent_store(scales + (uint64_t)(group / RMS_GROUPS_OF_WORD) * norm.group_stride,
                               group, units / THREADS, exponent);
        return rms_power(exponent);
    }

    /* The meeting of the workers; false: some wait has failed. Over it a worker keeps the units as
     * they are, not the floats: half as many registers. */
    __device__ __forceinline__ bool meet()
    {
        const bool all = order_workers_all(ok);
#pragma unroll
        for (int w = 0; w < 2 * ALL; w++)
            order_opaque(x[w / 2].word[w % 2]);
        return all;
    }

    /* The scale of the row; false: some wait has failed. */
    __device__ __forceinline__ bool row_scale(unsigned row, float factor, float &scale)
    {
        rms_block &block = order_block_shared<rms_block>();
        uint32_t most = 0;
#pragma unroll
        for (int i = 0; i < UNITS; i++)
            if (has(i * LINES)) {
                float y[RMS_UNIT];
                values(i, factor, y);
                most = magnitude_of(y, most);
            }
        most = rms_most(most, RMS_WARP / 2);
        if (worker % RMS_WARP == 0)
            block.most[turn][worker / RMS_WARP] = most;
        if (!meet())
            return false;
        most = 0;
#pragma unroll
        for (int w = 0; w < RMS_WARPS; w++)
            most = block.most[turn][w] > most ? block.most[turn][w] : most;
        scale = rms_scale(most, rms_limit((tutti_quant)norm.quant));
        if (worker == 0)
            order_store_plain_u32((uint32_t *)norm.scales + row, numeric_f32_bits(scale));
        return true;
    }

    static __device__ __forceinline__ uint32_t magnitude_of(const float (&y)[RMS_UNIT],
                                                            uint32_t most)
    {
#pragma unroll
        for (int e = 0; e < RMS_UNIT; e++) {
            const uint32_t magnitude = rms_magnitude(y[e]);
            most = magnitude > most ? magnitude : most;
        }
        return most;
    }

    /* All that follows the sums of a row, which are in x. All workers of the block call it. Returns
     * false to all if some wait has failed. */
    __device__ __forceinline__ bool finish(unsigned row)
    {
        rms_block &block = order_block_shared<rms_block>();
        float sum = residual_add(row);
        sum = rms_warp_sum(sum);
        if (worker % RMS_WARP == 0)
            block.sums[turn][worker / RMS_WARP] = sum;
        if (!meet())
            return false;
        float warps[RMS_WARPS], scale = 1;
#pragma unroll
        for (int w = 0; w < RMS_WARPS; w++)
            warps[w] = block.sums[turn][w];
        const float factor = rms_factor(rms_add_warps(warps), (int)norm.hidden, norm.epsilon);
        const tutti_quant quant = (tutti_quant)norm.quant;
        if (rms_is_by_token(quant) && !row_scale(row, factor, scale))
            return false;
        if (quant == TUTTI_QUANT_FP8_TENSOR)
            scale = numeric_f32_from_bits(order_load_plain_u32(norm.scales));
        float inverse = 1.0f / scale;
#pragma unroll
        for (int i = 0; i < UNITS; i++) {
            float y[RMS_UNIT] = {};
            if (i * RMS_WORKERS >= units)
                break;
            if (has(i * LINES))
                values(i, factor, y);
            if (rms_is_by_group(quant))
                inverse = 1.0f / group_scale(row, i, magnitude_of(y, 0));
            if (!has(i * LINES))
                break;
            if (norm.norm_out) {
                unit<2> u[LINES];
                rms_narrow<D, LINES>(y, u);
                store(norm.norm_out, row, i, u);
            }
            if (quant)
                store_quantised(row, i, y, inverse);
        }
        turn ^= 1;
        return true;
    }

  private:
    static constexpr tutti_quant QUANT_FP8 = TUTTI_QUANT_FP8_TOKEN;
};

#endif
