/* SPDX-License-Identifier: MIT */
/*
 * The reductions of one instruction set. CMake compiles this file once for each, with REDUCE_ISA
 * its name and the compiler's flags for it; the loops below are plain C that the compiler turns
 * into vectors, and numeric.h sees to it that they all mean the same bits.
 *
 * A reduction of up to four inputs is one loop from inputs to output. One of more goes block by
 * block: groups of four inputs are folded into accumulators, and the accumulators merge as the
 * digits of a binary counter carry, which is the canonical tree; all of them stay in the first
 * cache. Results that are to be stored past the caches are made in a block as well and leave it in
 * whole lines.
 */
#include "cpu/reduce.h"
#include "numeric.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define PASTE(a, b)      a##b
#define NAMED(prefix, x) PASTE(prefix, x)
#define QUOTE(x)         #x
#define QUOTED(x)        QUOTE(x)

/* The output is an input or disjoint from it, so that iterations never depend on each other. */
#if defined(__clang__)
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

enum {
    LINE_BYTES = 64,
    GROUP = 4,          /* inputs that one loop takes */
    BLOCK_BYTES = 4096, /* of one accumulator */
    DEPTH = 5,          /* accumulators: the digits of the whole groups before the last, and that */
};
_Static_assert(TUTTI_MAX_RANKS <= GROUP << (DEPTH - 1), "the counter is too short");

/* The loops of one operation on one dtype. Offsets and counts are in elements. */
struct kernel {
    size_t element_bytes;
    size_t accumulator_bytes;
    /* out = the result of all inputs, at most GROUP */
    void (*direct)(void *out, const struct reduce_call *call, size_t at, size_t count);
    /* accumulator = inputs first to first + n - 1, n at most GROUP */
    void (*fold)(void *accumulator, const struct reduce_call *call, int first, int n, size_t at,
                 size_t count);
    /* left = left op right */
    void (*merge)(void *left, const void *right, size_t count);
    /* out = the result of two accumulators */
    void (*finish)(void *out, const void *left, const void *right, const struct reduce_call *call,
                   size_t count);
};

/* ---- copies ---------------------------------------------------------------------------------- */

/* One line, past the caches; `to` is aligned to it. */
static inline void line_stream(unsigned char *to, const unsigned char *from)
{
#if defined(__AVX512F__)
    _mm512_stream_si512((void *)to, _mm512_loadu_si512(from));
#elif defined(__AVX2__)
    for (int i = 0; i < LINE_BYTES; i += 32)
        _mm256_stream_si256((__m256i *)(to + i), _mm256_loadu_si256((const __m256i *)(from + i)));
#elif defined(__x86_64__)
    for (int i = 0; i < LINE_BYTES; i += 16)
        _mm_stream_si128((__m128i *)(to + i), _mm_loadu_si128((const __m128i *)(from + i)));
#elif defined(__aarch64__)
    for (int i = 0; i < LINE_BYTES; i += 32)
        __asm__ volatile("ldp q0, q1, [%1]\n\tstnp q0, q1, [%0]"
                         :
                         : "r"(to + i), "r"(from + i)
                         : "v0", "v1", "memory");
#else
#error "line_stream() needs this architecture's non-temporal stores"
#endif
}

/* libc's is the best plain copy at every size that matters. */
static void plain_copy(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
}

static size_t bytes_to_line(const void *address)
{
    return -(uintptr_t)address % LINE_BYTES;
}

static void stream_copy(void *to, const void *from, size_t bytes)
{
    unsigned char *target = to;
    const unsigned char *source = from;
    const size_t head = bytes_to_line(to);
    if (bytes < head + LINE_BYTES) {
        memcpy(to, from, bytes);
        return;
    }
    memcpy(target, source, head);
    size_t at = head;
    for (; at + LINE_BYTES <= bytes; at += LINE_BYTES)
        line_stream(target + at, source + at);
    memcpy(target + at, source + at, bytes - at);
}

/* ---- blocks ---------------------------------------------------------------------------------- */

typedef unsigned char block[BLOCK_BYTES];

/* The canonical tree of more than GROUP inputs. */
static void reduce_tree(void *out, const struct reduce_call *call, const struct kernel *kernel,
                        size_t at, size_t count)
{
    _Alignas(LINE_BYTES) block stack[DEPTH];
    int depth = 0;
    int first = 0;
    /* All groups but the last are whole: as many equal subtrees merge as the counter carries. */
    for (unsigned groups = 1; first + GROUP < call->n; first += GROUP, groups++) {
        kernel->fold(stack[depth++], call, first, GROUP, at, count);
        for (unsigned digits = groups; (digits & 1) == 0; digits >>= 1, depth--)
            kernel->merge(stack[depth - 2], stack[depth - 1], count);
    }
    kernel->fold(stack[depth++], call, first, call->n - first, at, count);
    for (; depth > 2; depth--)
        kernel->merge(stack[depth - 2], stack[depth - 1], count);
    kernel->finish(out, stack[0], stack[1], call, count);
}

/* Everything that is not one loop: block by block, to one or two places. */
static void reduce_blocks(const struct reduce_call *call, const struct kernel *kernel)
{
    _Alignas(LINE_BYTES) block stage;
    const size_t size = kernel->element_bytes;
    size_t count = BLOCK_BYTES / kernel->accumulator_bytes;
    /* A short first block puts the others on whole lines of the output. */
    const size_t head = bytes_to_line(call->out) / size;
    for (size_t at = 0, next; at < call->count; at = next) {
        next = at == 0 && head > 0 ? head : at + count;
        next = next < call->count ? next : call->count;
        unsigned char *out = (unsigned char *)call->out + at * size;
        unsigned char *result = call->stream_out ? stage : out;
        if (call->n <= GROUP)
            kernel->direct(result, call, at, next - at);
        else
            reduce_tree(result, call, kernel, at, next - at);
        if (call->copy)
            (call->stream_copy ? stream_copy : plain_copy)((unsigned char *)call->copy + at * size,
                                                           result, (next - at) * size);
        if (call->stream_out)
            stream_copy(out, stage, (next - at) * size);
    }
}

/* ---- loops ----------------------------------------------------------------------------------- */

/* How an element becomes an accumulator, and an accumulator the result. */
#define LOAD(T, A, x)  numeric_##T##_load(x)
#define SCALE(T, A, x) numeric_##A##_prod(numeric_##T##_load(x), scalar)
#define KEEP(T, A, x)  (x)
#define STORE(T, A, x) numeric_##T##_store(x)
#define MEAN(T, A, x)  numeric_##T##_store(numeric_##A##_div(x, divisor))

#define LOOP(expression)                                                                           \
    INDEPENDENT                                                                                    \
    for (size_t i = 0; i < count; i++)                                                             \
        to[i] = expression;

/* to[i] = RESULT of the tree of elements `at` + i of n inputs, 1 to GROUP of them. */
#define TREE_LOOPS(T, element, A, inputs, LEAF, combine, RESULT)                                   \
    const element *a = (const element *)(inputs)[0] + at;                                          \
    const element *b = n > 1 ? (const element *)(inputs)[1] + at : a;                              \
    const element *c = n > 2 ? (const element *)(inputs)[2] + at : a;                              \
    const element *d = n > 3 ? (const element *)(inputs)[3] + at : a;                              \
    if (n == 2) {                                                                                  \
        LOOP(RESULT(T, A, combine(LEAF(T, A, a[i]), LEAF(T, A, b[i]))))                            \
    } else if (n == 4) {                                                                           \
        LOOP(RESULT(T, A,                                                                          \
                    combine(combine(LEAF(T, A, a[i]), LEAF(T, A, b[i])),                           \
                            combine(LEAF(T, A, c[i]), LEAF(T, A, d[i])))))                         \
    } else if (n == 3) {                                                                           \
        LOOP(RESULT(T, A, combine(combine(LEAF(T, A, a[i]), LEAF(T, A, b[i])), LEAF(T, A, c[i])))) \
    } else {                                                                                       \
        LOOP(RESULT(T, A, LEAF(T, A, a[i])))                                                       \
    }

/* Defines the reduction T_op. Scalar and divisor are copied first: as far as the compiler knows, a
 * store might change the call. */
#define DEFINE_REDUCTION(T, op, element, A, accumulator, LEAF, combine, RESULT)                    \
    static void T##_##op##_direct(void *out, const struct reduce_call *call, size_t at,            \
                                  size_t count)                                                    \
    {                                                                                              \
        element *to = out;                                                                         \
        const double scalar = call->scalar;                                                        \
        const int divisor = call->divisor, n = call->n;                                            \
        (void)scalar, (void)divisor;                                                               \
        TREE_LOOPS(T, element, A, call->in, LEAF, combine, RESULT)                                 \
    }                                                                                              \
    static void T##_##op##_fold(void *out, const struct reduce_call *call, int first, int n,       \
                                size_t at, size_t count)                                           \
    {                                                                                              \
        accumulator *to = out;                                                                     \
        const double scalar = call->scalar;                                                        \
        (void)scalar;                                                                              \
        TREE_LOOPS(T, element, A, call->in + first, LEAF, combine, KEEP)                           \
    }                                                                                              \
    static void T##_##op##_merge(void *left, const void *right, size_t count)                      \
    {                                                                                              \
        accumulator *to = left;                                                                    \
        const accumulator *from = right;                                                           \
        LOOP(combine(to[i], from[i]))                                                              \
    }                                                                                              \
    static void T##_##op##_finish(void *out, const void *left, const void *right,                  \
                                  const struct reduce_call *call, size_t count)                    \
    {                                                                                              \
        element *to = out;                                                                         \
        const accumulator *a = left, *b = right;                                                   \
        const int divisor = call->divisor;                                                         \
        (void)divisor;                                                                             \
        LOOP(RESULT(T, A, combine(a[i], b[i])))                                                    \
    }                                                                                              \
    static void T##_##op(const struct reduce_call *call)                                           \
    {                                                                                              \
        static const struct kernel kernel = {                                                      \
            sizeof(element), sizeof(accumulator), T##_##op##_direct,                               \
            T##_##op##_fold, T##_##op##_merge,    T##_##op##_finish,                               \
        };                                                                                         \
        if (call->n <= GROUP && !call->copy && !call->stream_out)                                  \
            T##_##op##_direct(call->out, call, 0, call->count);                                    \
        else                                                                                       \
            reduce_blocks(call, &kernel);                                                          \
    }

/* ---- the table ------------------------------------------------------------------------------- */

#define DEFINE_FLOAT(dtype, T, element, A, accumulator)                                            \
    DEFINE_REDUCTION(T, sum, element, A, accumulator, LOAD, numeric_##A##_sum, STORE)              \
    DEFINE_REDUCTION(T, prod, element, A, accumulator, LOAD, numeric_##A##_prod, STORE)            \
    DEFINE_REDUCTION(T, min, element, A, accumulator, LOAD, numeric_##A##_min, STORE)              \
    DEFINE_REDUCTION(T, max, element, A, accumulator, LOAD, numeric_##A##_max, STORE)              \
    DEFINE_REDUCTION(T, avg, element, A, accumulator, LOAD, numeric_##A##_sum, MEAN)               \
    DEFINE_REDUCTION(T, premul_sum, element, A, accumulator, SCALE, numeric_##A##_sum, STORE)
NUMERIC_FLOAT_MAP(DEFINE_FLOAT)

/* What two's complement does alike with and without sign is defined for the types without. */
#define DEFINE_UNSIGNED(T, element)                                                                \
    DEFINE_REDUCTION(T, sum, element, T, element, LOAD, numeric_##T##_sum, STORE)                  \
    DEFINE_REDUCTION(T, prod, element, T, element, LOAD, numeric_##T##_prod, STORE)                \
    DEFINE_REDUCTION(T, band, element, T, element, LOAD, numeric_##T##_band, STORE)                \
    DEFINE_REDUCTION(T, bor, element, T, element, LOAD, numeric_##T##_bor, STORE)                  \
    DEFINE_REDUCTION(T, bxor, element, T, element, LOAD, numeric_##T##_bxor, STORE)
DEFINE_UNSIGNED(u8, uint8_t)
DEFINE_UNSIGNED(u16, uint16_t)
DEFINE_UNSIGNED(u32, uint32_t)
DEFINE_UNSIGNED(u64, uint64_t)

#define DEFINE_ORDERED(T, element)                                                                 \
    DEFINE_REDUCTION(T, min, element, T, element, LOAD, numeric_##T##_min, STORE)                  \
    DEFINE_REDUCTION(T, max, element, T, element, LOAD, numeric_##T##_max, STORE)                  \
    DEFINE_REDUCTION(T, avg, element, T, element, LOAD, numeric_##T##_sum, MEAN)
DEFINE_ORDERED(i8, int8_t)
DEFINE_ORDERED(u8, uint8_t)
DEFINE_ORDERED(i16, int16_t)
DEFINE_ORDERED(i32, int32_t)
DEFINE_ORDERED(u32, uint32_t)
DEFINE_ORDERED(i64, int64_t)
DEFINE_ORDERED(u64, uint64_t)

DEFINE_REDUCTION(b8, and, uint8_t, u8, uint8_t, LOAD, numeric_u8_band, KEEP)
DEFINE_REDUCTION(b8, or, uint8_t, u8, uint8_t, LOAD, numeric_u8_bor, KEEP)
DEFINE_REDUCTION(b8, xor, uint8_t, u8, uint8_t, LOAD, numeric_u8_bxor, KEEP)

#define FLOAT_ROW(dtype, T, element, A, accumulator)                                               \
    [TUTTI_##dtype] = {                                                                            \
        [TUTTI_OP_SUM] = T##_sum, [TUTTI_OP_PROD] = T##_prod,                                      \
        [TUTTI_OP_MIN] = T##_min, [TUTTI_OP_MAX] = T##_max,                                        \
        [TUTTI_OP_AVG] = T##_avg, [TUTTI_OP_PREMUL_SUM] = T##_premul_sum,                          \
    },
#define INTEGER_ROW(dtype, T, unsigned_T)                                                          \
    [TUTTI_##dtype] = {                                                                            \
        [TUTTI_OP_SUM] = unsigned_T##_sum, [TUTTI_OP_PROD] = unsigned_T##_prod,                    \
        [TUTTI_OP_MIN] = T##_min,          [TUTTI_OP_MAX] = T##_max,                               \
        [TUTTI_OP_AVG] = T##_avg,          [TUTTI_OP_BAND] = unsigned_T##_band,                    \
        [TUTTI_OP_BOR] = unsigned_T##_bor, [TUTTI_OP_BXOR] = unsigned_T##_bxor,                    \
    },

const struct reduce_isa
    NAMED(reduce_isa_, REDUCE_ISA) =
        {
            .name = QUOTED(REDUCE_ISA),
            .fn =
                {
                    NUMERIC_FLOAT_MAP(FLOAT_ROW)
                        INTEGER_ROW(INT8, i8, u8)
                            INTEGER_ROW(UINT8, u8, u8)
                                INTEGER_ROW(INT16, i16, u16)
                                    INTEGER_ROW(INT32, i32, u32)
                                        INTEGER_ROW(INT64, i64, u64)
                                            INTEGER_ROW(UINT32, u32, u32)
                                                INTEGER_ROW(UINT64, u64, u64)[TUTTI_BOOL] =
                                                    {
                                                        [TUTTI_OP_SUM] = b8_or,
                                                        [TUTTI_OP_PROD] = b8_and,
                                                        [TUTTI_OP_MIN] = b8_and,
                                                        [TUTTI_OP_MAX] = b8_or,
                                                        [TUTTI_OP_BAND] = b8_and,
                                                        [TUTTI_OP_BOR] = b8_or,
                                                        [TUTTI_OP_BXOR] = b8_xor,
                                                    },
                },
            .copy = plain_copy,
            .copy_stream = stream_copy,
};
