/* SPDX-License-Identifier: MIT */
/*
 * Units of 8 or 16 bytes: from the caller's memory, through the canonical tree, and back. numeric.h
 * defines numbers; this file says how numbers lie in a unit. Kernels for one operation and world
 * size are unrolled. The others go through one loop element by element, so that forty operations
 * and dtypes fit into a library.
 */
#ifndef TUTTI_CUDA_REDUCE_CUH
#define TUTTI_CUDA_REDUCE_CUH

#include "base/numeric.h"
#include "cuda/kernels/convert.cuh"
#include "cuda/kernels/launch.h"
#include "cuda/kernels/order.cuh"
#include "tutti/tutti.h"

/* ---- dtypes ---------------------------------------------------------------------------------- */

#define DTYPE_CASE(A, NAME, name)                                                                  \
    case OP_##NAME:                                                                                \
        return numeric_##A##_##name(a, b);
#define DTYPE(T, A, element_type, acc_type, member, divisor, MORE_CASES)                           \
    struct dtype_##T {                                                                             \
        typedef element_type element;                                                              \
        typedef acc_type acc;                                                                      \
        static __device__ __forceinline__ acc load(element x)                                      \
        {                                                                                          \
            return numeric_##T##_load(x);                                                          \
        }                                                                                          \
        static __device__ __forceinline__ element store(acc x)                                     \
        {                                                                                          \
            return numeric_##T##_store(x);                                                         \
        }                                                                                          \
        static __device__ __forceinline__ acc factor(const op_scalar &scalar)                      \
        {                                                                                          \
            return (acc)scalar.member;                                                             \
        }                                                                                          \
        static __device__ __forceinline__ acc scale(acc x, acc factor)                             \
        {                                                                                          \
            return numeric_##A##_prod(x, factor);                                                  \
        }                                                                                          \
        static __device__ __forceinline__ acc mean(acc x, int size)                                \
        {                                                                                          \
            return numeric_##A##_div(x, divisor);                                                  \
        }                                                                                          \
        static __device__ __forceinline__ acc combine(int op, acc a, acc b)                        \
        {                                                                                          \
            switch (op) {                                                                          \
                DTYPE_CASE(A, PROD, prod)                                                          \
                DTYPE_CASE(A, MIN, min)                                                            \
                DTYPE_CASE(A, MAX, max)                                                            \
                MORE_CASES(A)                                                                      \
            default:                                                                               \
                return numeric_##A##_sum(a, b);                                                    \
            }                                                                                      \
        }                                                                                          \
    };

#define DTYPE_NO_CASES(A)
#define DTYPE_FLOAT(dtype, T, element_type, A, acc_type)                                           \
    DTYPE(T, A, element_type, acc_type, real, (acc)size, DTYPE_NO_CASES)
NUMERIC_FLOAT_MAP(DTYPE_FLOAT)

#define DTYPE_BIT_CASES(A)                                                                         \
    DTYPE_CASE(A, BAND, band) DTYPE_CASE(A, BOR, bor) DTYPE_CASE(A, BXOR, bxor)
#define DTYPE_INTEGER(T, type, wide, quotient) DTYPE(T, T, type, type, whole, size, DTYPE_BIT_CASES)
NUMERIC_INTEGER_MAP(DTYPE_INTEGER)

/* After a load every element is 0 or 1. */
struct dtype_b8 : dtype_u8 {
    static __device__ __forceinline__ acc load(element x)
    {
        return numeric_b8_load(x);
    }
    static __device__ __forceinline__ acc combine(int op, acc a, acc b)
    {
        if (op == OP_BXOR)
            return a ^ b;
        return op == OP_PROD || op == OP_MIN || op == OP_BAND ? a & b : a | b;
    }
};

/* The device converts 16-bit floats itself, two at a time. The results are those of
 * numeric.h, except for NaN. */
#define DTYPE_PAIR(convert, nan)                                                                   \
    static __device__ __forceinline__ uint32_t store_pair(acc low, acc high)                       \
    {                                                                                              \
        uint32_t pair = convert(low, high);                                                        \
        pair = low != low ? __byte_perm(pair, nan, 0x3254) : pair;                                 \
        return high != high ? __byte_perm(pair, nan, 0x5410) : pair;                               \
    }

struct dtype_bfloat : dtype_bf16 {
    DTYPE_PAIR(convert_pair_bf16, 0x7fc0)
};

struct dtype_half : dtype_f16 {
    DTYPE_PAIR(convert_pair_f16, 0x7e00)

    static __device__ __forceinline__ acc load(element x)
    {
        return convert_from_f16(x);
    }
    static __device__ __forceinline__ element store(acc x)
    {
        const element value = convert_to_f16(x);
        return x != x ? 0x7e00 : value;
    }
};
#undef DTYPE_PAIR

/* The kernels that exist: X(the dtype's public name, T, world size of a sum or 0, end of the
 * name). */
#define KERNELS_OF_FLOATS(X)                                                                       \
    X(float32, f32, 0, )                                                                           \
    X(float64, f64, 0, )                                                                           \
    X(float16, half, 0, )                                                                          \
    X(bfloat16, bfloat, 0, )                                                                       \
    X(float8_e4m3, e4m3, 0, )                                                                      \
    X(float8_e5m2, e5m2, 0, )
#define KERNELS_OF_INTEGERS(X)                                                                     \
    X(int8, i8, 0, )                                                                               \
    X(uint8, u8, 0, )                                                                              \
    X(int16, i16, 0, )                                                                             \
    X(int32, i32, 0, )                                                                             \
    X(int64, i64, 0, )                                                                             \
    X(uint32, u32, 0, )                                                                            \
    X(uint64, u64, 0, )                                                                            \
    X(bool, b8, 0, )
#define KERNELS_OF_SUM(X, name, T)                                                                 \
    X(name, T, 2, _sum_2)                                                                          \
    X(name, T, 3, _sum_3)                                                                          \
    X(name, T, 4, _sum_4)                                                                          \
    X(name, T, 8, _sum_8)
#define KERNELS_OF_SUMS(X)                                                                         \
    KERNELS_OF_SUM(X, float32, f32)                                                                \
    KERNELS_OF_SUM(X, float16, half)                                                               \
    KERNELS_OF_SUM(X, bfloat16, bfloat)

/* The factor of the inputs; of other operations than a premultiplied sum any value. */
template <typename D>
static __device__ __forceinline__ typename D::acc factor_of(const cuda_launch &launch)
{
    if (launch.op == LAUNCH_MEMORY_PREMUL_SUM)
        return D::load(*(const volatile typename D::element *)launch.scalar.memory);
    return launch.op == OP_PREMUL_SUM ? D::factor(launch.scalar) : typename D::acc{};
}

/* ---- units ----------------------------------------------------------------------------------- */

template <int WORDS> struct unit {
    uint64_t word[WORDS];
};

template <typename D>
static __device__ __forceinline__ typename D::element bits_element(uint64_t bits)
{
    typename D::element element;
    memcpy(&element, &bits, sizeof element);
    return element;
}

template <typename D>
static __device__ __forceinline__ uint64_t element_bits(typename D::element element)
{
    uint64_t bits = 0;
    memcpy(&bits, &element, sizeof element);
    return bits;
}

/* For whole, aligned units. */
template <int WORDS>
static __device__ __forceinline__ unit<WORDS> unit_load(const unsigned char *from)
{
    unit<WORDS> u;
    if (WORDS == 2) {
        order_line line = order_load_plain(from);
        u.word[0] = line.low;
        u.word[WORDS - 1] = line.high;
    } else {
        u.word[0] = order_load_plain_u64(from);
    }
    return u;
}

template <int WORDS>
static __device__ __forceinline__ void unit_store(unsigned char *to, unit<WORDS> u)
{
    if (WORDS == 2)
        order_store_plain(to, {u.word[0], u.word[WORDS - 1]});
    else
        order_store_plain_u64(to, u.word[0]);
}

/* Loads and stores units of the caller's operands. An address that is not aligned to a unit, and
 * the rest of a count, go element by element. */
template <typename D, int WORDS> struct operands {
    static constexpr int ELEMENTS = WORDS * 8 / sizeof(typename D::element);
    const unsigned char *send;
    unsigned char *recv;
    uint64_t count;
    bool whole_send, whole_recv; /* addresses are aligned to the unit */

    __device__ __forceinline__ operands(const void *from, void *to, uint64_t elements)
        : send((const unsigned char *)from), recv((unsigned char *)to), count(elements),
          whole_send((uintptr_t)from % (WORDS * 8) == 0),
          whole_recv((uintptr_t)to % (WORDS * 8) == 0)
    {
    }
    __device__ __forceinline__ operands(const cuda_launch &launch)
        : operands(launch.send, launch.recv, launch.count)
    {
    }

    __device__ __forceinline__ uint64_t units() const
    {
        return (count + ELEMENTS - 1) / ELEMENTS;
    }

    /* Where a unit is, and how many elements it has. */
    struct spot {
        uint64_t offset;
        uint32_t elements; /* 0 behind the end of the operands */

        __device__ __forceinline__ uint64_t ready() const
        {
            return offset | elements;
        }
    };

    /* Where a whole, aligned unit is, if it `is_there`. */
    struct whole_spot {
        const unsigned char *from;
        unsigned char *to;
        bool is_there;

        __device__ __forceinline__ uint64_t ready()
        {
            return (uint64_t)order_ready(from) | (uint64_t)order_ready(to);
        }
    };

    template <bool WHOLE> __device__ __forceinline__ auto spot_of(uint64_t at) const
    {
        const uint64_t first = at * ELEMENTS, left = first < count ? count - first : 0;
        if constexpr (WHOLE)
            return whole_spot{send + at * (WORDS * 8), recv + at * (WORDS * 8),
                              (unsigned)at < (unsigned)(count / ELEMENTS)};
        else
            return spot{at * (WORDS * 8), left < ELEMENTS ? (uint32_t)left : ELEMENTS};
    }

    __device__ __forceinline__ unit<WORDS> load_at_once(uint64_t offset) const
    {
        return unit_load<WORDS>(send + offset);
    }

    __device__ __forceinline__ void store_at_once(uint64_t offset, unit<WORDS> u) const
    {
        unit_store(recv + offset, u);
    }

    __device__ __forceinline__ unit<WORDS> load(const spot &s) const
    {
        if (whole_send && s.elements == ELEMENTS)
            return load_at_once(s.offset);
        return s.elements ? load_apart(send + s.offset, s.elements) : unit<WORDS>{};
    }

    __device__ __forceinline__ void store(const spot &s, unit<WORDS> u) const
    {
        if (whole_recv && s.elements == ELEMENTS)
            store_at_once(s.offset, u);
        else
            store_apart(recv + s.offset, u, s.elements);
    }

    __device__ __forceinline__ unit<WORDS> load(const whole_spot &s) const
    {
        return s.is_there ? unit_load<WORDS>(s.from) : unit<WORDS>{};
    }

    __device__ __forceinline__ void store(const whole_spot &s, unit<WORDS> u) const
    {
        unit_store(s.to, u);
    }

    /* The same, inlined: a call would leave fewer registers for use. */
    __device__ __forceinline__ unit<WORDS> load(uint64_t at) const
    {
        const spot s = spot_of<false>(at);
        if (whole_send && s.elements == ELEMENTS)
            return load_at_once(s.offset);
        return load_elements<1>(send + s.offset, s.elements);
    }

    __device__ __forceinline__ void store(uint64_t at, unit<WORDS> u) const
    {
        const spot s = spot_of<false>(at);
        if (whole_recv && s.elements == ELEMENTS)
            store_at_once(s.offset, u);
        else
            store_elements<1>(recv + s.offset, u, s.elements);
    }

  private:
    static constexpr int PER_WORD = 8 / sizeof(typename D::element);
    static constexpr int BITS = 8 * sizeof(typename D::element);

    /* Loads AT_ONCE elements at once: one at a time, each would take the latency of memory. */
    template <int AT_ONCE>
    static __device__ __forceinline__ unit<WORDS> load_elements(const unsigned char *from,
                                                                uint32_t left)
    {
        const volatile typename D::element *element = (const volatile typename D::element *)from;
        unit<WORDS> u;
#pragma unroll
        for (int w = 0; w < WORDS; w++) {
            u.word[w] = 0;
#pragma unroll AT_ONCE
            for (int e = 0; e < PER_WORD; e++)
                if (w * PER_WORD + e < left)
                    u.word[w] |= element_bits<D>(element[w * PER_WORD + e]) << (e * BITS);
        }
        return u;
    }

    template <int AT_ONCE>
    static __device__ __forceinline__ void store_elements(unsigned char *to, unit<WORDS> u,
                                                          uint32_t left)
    {
        typename D::element *element = (typename D::element *)to;
#pragma unroll
        for (int w = 0; w < WORDS; w++)
#pragma unroll AT_ONCE
            for (int e = 0; e < PER_WORD; e++)
                if (w * PER_WORD + e < left)
                    element[w * PER_WORD + e] = bits_element<D>(u.word[w] >> (e * BITS));
    }

    /* Not inlined, so that whole, aligned units are faster: by 0.1 us in one-shot. */
    static __device__ __noinline__ unit<WORDS> load_apart(const unsigned char *from, uint32_t left)
    {
        return load_elements<PER_WORD>(from, left);
    }

    static __device__ __noinline__ void store_apart(unsigned char *to, unit<WORDS> u, uint32_t left)
    {
        store_elements<PER_WORD>(to, u, left);
    }
};

/* ---- the tree -------------------------------------------------------------------------------- */

/* The tree over the first `size` of the leaves: pairs, then pairs of pairs. So the largest power of
 * two is on the left. Changes the leaves. */
template <typename D, int LEAVES>
static __device__ __forceinline__ typename D::acc tree(typename D::acc (&x)[LEAVES], int size,
                                                       int op)
{
#pragma unroll
    for (int width = 1; width < LEAVES; width *= 2)
#pragma unroll
        for (int l = 0; l + width < LEAVES; l += 2 * width)
            if (l + width < size)
                x[l] = D::combine(op, x[l], x[l + width]);
    return x[0];
}

/* A unit's word of results. */
template <typename D>
static __device__ __forceinline__ uint64_t word_of(const typename D::acc *result)
{
    constexpr int BITS = 8 * sizeof(typename D::element);
    uint64_t word = 0;
#pragma unroll
    for (int e = 0; e < 64 / BITS; e++)
        word |= element_bits<D>(D::store(result[e])) << (e * BITS);
    return word;
}

template <typename D> static __device__ __forceinline__ uint64_t word_of_pairs(const float *result)
{
    return D::store_pair(result[0], result[1]) | (uint64_t)D::store_pair(result[2], result[3])
                                                     << 32;
}

template <> __device__ __forceinline__ uint64_t word_of<dtype_bfloat>(const float *result)
{
    return word_of_pairs<dtype_bfloat>(result);
}

template <> __device__ __forceinline__ uint64_t word_of<dtype_half>(const float *result)
{
    return word_of_pairs<dtype_half>(result);
}

/* The result unit of all ranks; x[p] is of rank launch.ranks[p]. SUM_OF is the world size of a sum,
 * or 0 for any. */
template <typename D, int SUM_OF, int WORDS> struct reduction {
    static constexpr int LEAVES = SUM_OF ? SUM_OF : CUDA_RANKS;
    static constexpr int BITS = 8 * sizeof(typename D::element);

    static constexpr bool IN_PLACE = SUM_OF && (SUM_OF & (SUM_OF - 1)) == 0;

    /* launch_leaf() for values in registers. */
    static __device__ __forceinline__ uint64_t leaf_word(const unit<WORDS> (&x)[LEAVES], int l,
                                                         int w, int position)
    {
        if (l > position)
            return x[l].word[w];
        return l == position ? x[0].word[w] : x[l + 1 < LEAVES ? l + 1 : l].word[w];
    }

    static __device__ __forceinline__ unit<WORDS> reduce(const unit<WORDS> (&x)[LEAVES],
                                                         const cuda_launch &launch)
    {
        unit<WORDS> leaf[LEAVES];
#pragma unroll
        for (int l = 0; l < LEAVES; l++)
#pragma unroll
            for (int w = 0; w < WORDS; w++)
                leaf[l].word[w] = leaf_word(x, l, w, IN_PLACE ? 0 : launch.leaf);
        return reduce_leaves(leaf, launch);
    }

  private:
    static __device__ __forceinline__ unit<WORDS> reduce_leaves(const unit<WORDS> (&leaf)[LEAVES],
                                                                const cuda_launch &launch)
    {
        unit<WORDS> out;
        typename D::acc x[LEAVES];
        if constexpr (SUM_OF) {
#pragma unroll
            for (int w = 0; w < WORDS; w++) {
                typename D::acc result[64 / BITS];
#pragma unroll
                for (int e = 0; e < 64 / BITS; e++) {
#pragma unroll
                    for (int l = 0; l < LEAVES; l++)
                        x[l] = D::load(bits_element<D>(leaf[l].word[w] >> (e * BITS)));
                    result[e] = tree<D>(x, LEAVES, OP_SUM);
                }
                out.word[w] = word_of<D>(result);
            }
        } else {
            const typename D::acc factor = factor_of<D>(launch);
#pragma unroll
            for (int w = 0; w < WORDS; w++) {
                out.word[w] = 0;
#pragma unroll 1
                for (int shift = 0; shift < 64; shift += BITS) {
#pragma unroll
                    for (int l = 0; l < LEAVES; l++) {
                        x[l] = D::load(bits_element<D>(leaf[l].word[w] >> shift));
                        if (launch.op >= OP_PREMUL_SUM)
                            x[l] = D::scale(x[l], factor);
                    }
                    typename D::acc result = tree<D>(x, launch.size, launch.op);
                    if (launch.op == OP_AVG)
                        result = D::mean(result, launch.size);
                    out.word[w] |= element_bits<D>(D::store(result)) << shift;
                }
            }
        }
        return out;
    }
};

/* ---- partial results ------------------------------------------------------------------------- */

/* A unit's elements in the accumulation type. They take WIDER units. */
template <typename D, int WORDS> struct partial {
    static constexpr int WIDER = sizeof(typename D::acc) / sizeof(typename D::element);
    unit<WORDS> part[WIDER];
};

/* Its units lie `plane` bytes apart. */
template <typename D>
static __device__ __forceinline__ partial<D, 2> partial_load(const unsigned char *from,
                                                             uint64_t plane)
{
    partial<D, 2> sum;
#pragma unroll
    for (int i = 0; i < partial<D, 2>::WIDER; i++)
        sum.part[i] = unit_load<2>(from + i * plane);
    return sum;
}

template <typename D>
static __device__ __forceinline__ void partial_store(unsigned char *to, uint64_t plane,
                                                     const partial<D, 2> &sum)
{
#pragma unroll
    for (int i = 0; i < partial<D, 2>::WIDER; i++)
        unit_store(to + i * plane, sum.part[i]);
}

/* Where an element is: in a word of the unit, and in a word of its partial result. */
struct position {
    int word, shift;
    int partial_word, partial_shift;
};

/* Calls for every element: each word of the partial result with a position and a sum of bits. */
template <typename D, int WORDS, typename EACH>
static __device__ __forceinline__ void for_elements(EACH each)
{
    constexpr int WIDER = partial<D, WORDS>::WIDER;
    constexpr int BITS = 8 * sizeof(typename D::element), ACC_BITS = BITS * WIDER;
#pragma unroll
    for (int w = 0; w < WORDS * WIDER; w++)
#pragma unroll 1
        for (int e = 0; e < 64 / ACC_BITS; e++)
            each(position{w / WIDER, w % WIDER * (64 / WIDER) + e * BITS, w, e * ACC_BITS});
}

template <typename D, int WORDS>
static __device__ __forceinline__ typename D::acc partial_at(const partial<D, WORDS> &from,
                                                             const position &at)
{
    typename D::acc value;
    const uint64_t bits =
        from.part[at.partial_word / WORDS].word[at.partial_word % WORDS] >> at.partial_shift;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* An element of an input, premultiplied. `factor`: factor_of() */
template <typename D, int WORDS>
static __device__ __forceinline__ typename D::acc
input_at(const unit<WORDS> &from, const position &at, const cuda_launch &launch,
         typename D::acc factor)
{
    const typename D::acc value = D::load(bits_element<D>(from.word[at.word] >> at.shift));
    return launch.op >= OP_PREMUL_SUM ? D::scale(value, factor) : value;
}

/* The partial result. `value` gives its elements by their positions. */
template <typename D, int WORDS, typename VALUE>
static __device__ __forceinline__ partial<D, WORDS> partial_of(VALUE value)
{
    partial<D, WORDS> to = {};
    for_elements<D, WORDS>([&](const position &at) {
        const typename D::acc acc = value(at);
        uint64_t bits = 0;
        memcpy(&bits, &acc, sizeof acc);
        to.part[at.partial_word / WORDS].word[at.partial_word % WORDS] |= bits << at.partial_shift;
    });
    return to;
}

/* The result. `value` gives its elements, which are then averaged and rounded. */
template <typename D, int WORDS, typename VALUE>
static __device__ __forceinline__ unit<WORDS> result_of(const cuda_launch &launch, VALUE value)
{
    unit<WORDS> to = {};
    for_elements<D, WORDS>([&](const position &at) {
        typename D::acc acc = value(at);
        if (launch.op == OP_AVG)
            acc = D::mean(acc, launch.size);
        to.word[at.word] |= element_bits<D>(D::store(acc)) << at.shift;
    });
    return to;
}

#endif
