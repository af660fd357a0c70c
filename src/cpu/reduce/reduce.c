/* SPDX-License-Identifier: MIT */
/*
 * The reductions of one instruction set. CMake compiles this file once for each set, with its flags
 * and its name in REDUCE_ISA. The loops are plain C that the compiler vectorises; numeric.h ensures
 * that all give the same bits. The sums of floats (sum, avg, premul_sum) are compiled for each
 * instruction set. All other reductions are compiled once, for the set that every processor has,
 * where REDUCE_ALL is 1; the other sets use those (reduce.h).
 *
 * A reduction of few inputs is one loop from inputs to output. All others go block by block. A few
 * inputs at a time, the fan-in, fold into accumulators, which stay in the first-level cache. The
 * accumulators merge in pairs, which gives the canonical tree. Small floats are widened to blocks
 * of float32 and narrowed at the end, so that they share the loops of float32.
 */
#include "cpu/reduce/reduce.h"
#include "base/numeric.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define PASTE(a, b)      a##b
#define NAMED(prefix, x) PASTE(prefix, x)
#define QUOTE(x)         #x
#define QUOTED(x)        QUOTE(x)

/* The output is an input or disjoint from it, so iterations never depend on each other. With this
 * pragma clang reports a loop that it cannot vectorise. */
#if defined(__clang__)
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

enum {
    LINE_BYTES = 64,
    BLOCK_BYTES = 2048, /* of one accumulator */
    AHEAD_BYTES = 512,  /* prefetched while as many are reduced */
    WIDE = 4,           /* inputs of one loop of a frequent operation */
    NARROW = 2,         /* of a rare operation: keeps the library small */
    FOLDS = 16,         /* blocks for all folds; half blocks for more */
};
_Static_assert(NODE_RANKS <= NARROW * FOLDS * 2, "all folds need room");

typedef unsigned char block[BLOCK_BYTES];

/* A loop over elements at to at + count - 1 of n inputs, n from 1 to the fan-in of its operation.
 */
typedef void tree_fn(void *to, const void *const *in, int n, size_t at, size_t count,
                     const struct reduce_call *call);

/* The loops of one operation. */
struct loops {
    int fan_in; /* inputs of a loop */
    size_t element_bytes;
    size_t block;    /* accumulators in a block */
    tree_fn *direct; /* inputs to result */
    tree_fn *fold;   /* inputs to accumulators */
    /* left = left op right */
    void (*merge)(void *left, const void *right, size_t count);
    /* Two accumulators to result. */
    void (*finish)(void *to, const void *left, const void *right, size_t count,
                   const struct reduce_call *call);
};

/* A float that is reduced by the loops of float32. */
struct format {
    size_t element_bytes;
    void (*widen)(float *to, const void *from, size_t count);
    void (*narrow)(void *to, const float *from, size_t count);
};

/* A stretch of the elements of a call. */
struct part {
    const struct reduce_call *call;
    const struct loops *loops;
    const struct format *format; /* NULL: the loops' own element */
    size_t at;
    size_t count;
};

/* ---- copies ---------------------------------------------------------------------------------- */

/* The widest vector. A non-temporal store goes past the caches; its address is a multiple of the
 * size. */
#if defined(__AVX512F__)
typedef __m512i vector;
#define vector_load(from)        _mm512_loadu_si512(from)
#define vector_store(to, value)  _mm512_storeu_si512(to, value)
#define vector_stream(to, value) _mm512_stream_si512((void *)(to), value)
#elif defined(__AVX2__)
typedef __m256i vector;
#define vector_load(from)        _mm256_loadu_si256((const void *)(from))
#define vector_store(to, value)  _mm256_storeu_si256((void *)(to), value)
#define vector_stream(to, value) _mm256_stream_si256((void *)(to), value)
#elif defined(__x86_64__)
typedef __m128i vector;
#define vector_load(from)        _mm_loadu_si128((const void *)(from))
#define vector_store(to, value)  _mm_storeu_si128((void *)(to), value)
#define vector_stream(to, value) _mm_stream_si128((void *)(to), value)
#elif defined(__aarch64__)
typedef uint8x16x2_t vector;
#define vector_load(from)       vld1q_u8_x2(from)
#define vector_store(to, value) vst1q_u8_x2(to, value)
static inline void vector_stream(unsigned char *to, vector value)
{
    __asm__ volatile("stnp %q1, %q2, [%0]"
                     :
                     : "r"(to), "w"(value.val[0]), "w"(value.val[1])
                     : "memory");
}
#endif

static size_t bytes_to_line(const void *address)
{
    return -(uintptr_t)address % LINE_BYTES;
}

static inline void line_copy(unsigned char *to, const unsigned char *from)
{
    for (size_t i = 0; i < LINE_BYTES; i += sizeof(vector))
        vector_store(to + i, vector_load(from + i));
}

static inline void line_stream(unsigned char *to, const unsigned char *from)
{
    for (size_t i = 0; i < LINE_BYTES; i += sizeof(vector))
        vector_stream(to + i, vector_load(from + i));
}

/*
 * memcpy() serves short copies only: from about 2 KiB on libc may use `rep movsb`, which on Zen is
 * fifteen times slower at some offsets between source and target.
 */
static void plain_copy(void *to, const void *from, size_t bytes)
{
    unsigned char *target = to;
    const unsigned char *source = from;
    if (bytes < 4 * LINE_BYTES) {
        memcpy(to, from, bytes);
        return;
    }
    /* The first and the last line overlap the aligned ones between. */
    line_copy(target, source);
    for (size_t at = bytes_to_line(to); at + LINE_BYTES <= bytes; at += LINE_BYTES)
        line_copy(target + at, source + at);
    line_copy(target + bytes - LINE_BYTES, source + bytes - LINE_BYTES);
}

static void stream_copy(void *to, const void *from, size_t bytes)
{
    unsigned char *target = to;
    const unsigned char *source = from;
    size_t at = bytes_to_line(to);
    if (bytes < at + LINE_BYTES) {
        memcpy(to, from, bytes);
        return;
    }
    memcpy(target, source, at);
    for (; at + LINE_BYTES <= bytes; at += LINE_BYTES)
        line_stream(target + at, source + at);
    memcpy(target + at, source + at, bytes - at);
}

/* ---- blocks ---------------------------------------------------------------------------------- */

/* Runs a loop on inputs first to first + n - 1. */
static void reduce_inputs(void *to, const struct part *part, tree_fn *loop, int first, int n)
{
    const struct format *format = part->format;
    const void *const *in = part->call->in + first;
    if (!format) {
        loop(to, in, n, part->at, part->count, part->call);
        return;
    }
    _Alignas(LINE_BYTES) block wide[WIDE];
    const void *widened[WIDE];
    for (int i = 0; i < n; i++) {
        format->widen((void *)wide[i],
                      (const unsigned char *)in[i] + part->at * format->element_bytes, part->count);
        widened[i] = wide[i];
    }
    loop(to, widened, n, 0, part->count, part->call);
}

/* How many folds the inputs make that are no partial results. */
static int folds_of(const struct reduce_call *call, const struct loops *loops)
{
    return (call->n - call->partials + loops->fan_in - 1) / loops->fan_in;
}

/* The bytes of a fold. */
static size_t fold_bytes(int count)
{
    return count > FOLDS ? BLOCK_BYTES / 2 : BLOCK_BYTES;
}

/* The canonical tree of more inputs than the fan-in, without its root. The folds come in any order.
 * The left side of the root is folds[0]. Returns the right side. */
static const void *reduce_sides(block *folds, const struct part *part)
{
    const struct loops *loops = part->loops;
    const struct reduce_call *call = part->call;
    const int count = folds_of(call, loops), begin = call->begin / loops->fan_in;
    const size_t stride = fold_bytes(count);
    unsigned char *first = folds[0];
    for (int i = 0; i < count; i++) {
        const int g = (begin + i) % count, at = call->partials + g * loops->fan_in;
        const int n = call->n - at < loops->fan_in ? call->n - at : loops->fan_in;
        reduce_inputs(first + (size_t)g * stride, part, loops->fold, at, n);
    }
    int width = 1;
    for (; width * 2 < count; width *= 2)
        for (int g = 0; g + width < count; g += 2 * width)
            loops->merge(first + (size_t)g * stride, first + (size_t)(g + width) * stride,
                         part->count);
    return first + (size_t)width * stride;
}

static void reduce_tree(void *to, const struct part *part)
{
    _Alignas(LINE_BYTES) block folds[FOLDS];
    const void *right = reduce_sides(folds, part);
    part->loops->finish(to, folds[0], right, part->count, part->call);
}

/* The tree of the elements, as accumulators. */
static void reduce_fold(void *to, const struct part *part)
{
    _Alignas(LINE_BYTES) block folds[FOLDS];
    const int first = part->call->partials, n = part->call->n - first;
    if (n <= part->loops->fan_in) {
        reduce_inputs(to, part, part->loops->fold, first, n);
        return;
    }
    part->loops->merge(folds[0], reduce_sides(folds, part), part->count);
    memcpy(to, folds[0], part->count * (BLOCK_BYTES / part->loops->block));
}

/* Combines partial results, and the other inputs' tree, to one partial result or to the result. */
static void reduce_on(void *to, const struct part *part)
{
    _Alignas(LINE_BYTES) block tree;
    const struct reduce_call *call = part->call;
    const size_t width = BLOCK_BYTES / part->loops->block;
    const unsigned char *left = (const unsigned char *)call->in[0] + part->at * width;
    const void *right = tree;
    if (call->n > call->partials)
        reduce_fold(tree, part);
    else
        right = (const unsigned char *)call->in[1] + part->at * width;
    if (!call->out_partial) {
        part->loops->finish(to, left, right, part->count, call);
        return;
    }
    memcpy(to, left, part->count * width);
    part->loops->merge(to, right, part->count);
}

static void reduce_part(void *out, const struct part *part)
{
    _Alignas(LINE_BYTES) block wide;
    const struct reduce_call *call = part->call;
    const struct format *narrowed = call->out_partial ? NULL : part->format;
    void *to = narrowed ? wide : out;
    if (call->partials)
        reduce_on(to, part);
    else if (call->out_partial)
        reduce_fold(to, part);
    else if (call->n <= part->loops->fan_in)
        reduce_inputs(to, part, part->loops->direct, 0, call->n);
    else
        reduce_tree(to, part);
    if (narrowed)
        narrowed->narrow(out, (const void *)wide, part->count);
}

/* Reduces block by block into one or two outputs. */
static void reduce_blocks(const struct reduce_call *call, const struct loops *loops,
                          const struct format *format)
{
    const size_t size = call->out_partial ? BLOCK_BYTES / loops->block
                        : format          ? format->element_bytes
                                          : loops->element_bytes;
    const size_t whole = loops->block * fold_bytes(folds_of(call, loops)) / BLOCK_BYTES;
    struct part part = {call, loops, format, 0, whole};
    /* Each block but the last ends at the end of a cache line of the output. */
    if (call->count > whole)
        part.count -= (whole - bytes_to_line(call->out) / size) % (LINE_BYTES / size);
    for (; part.at < call->count; part.at += part.count, part.count = whole) {
        if (part.count > call->count - part.at)
            part.count = call->count - part.at;
        const size_t offset = part.at * size, bytes = part.count * size;
        unsigned char *result = (unsigned char *)call->out + offset;
        reduce_part(result, &part);
        if (call->copy)
            (call->stream_copy ? stream_copy : plain_copy)((unsigned char *)call->copy + offset,
                                                           result, bytes);
    }
}

/* ---- loops ----------------------------------------------------------------------------------- */

/* How an element becomes an accumulator, and an accumulator the result. */
#define LOAD(T, A, x)  numeric_##T##_load(x)
#define SCALE(T, A, x) numeric_##A##_prod(numeric_##T##_load(x), scalar)
#define KEEP(T, A, x)  (x)
#define STORE(T, A, x) numeric_##T##_store(x)
#define MEAN(T, A, x)  numeric_##T##_store(numeric_##A##_div(x, divisor))

/* The scalar in the accumulation type. */
#define DEFINE_FACTOR(A, accumulator, member)                                                      \
    static inline accumulator factor_##A(const struct reduce_call *call)                           \
    {                                                                                              \
        return (accumulator)call->scalar.member;                                                   \
    }
#define DEFINE_FACTOR_WHOLE(T, type, wide, quotient) DEFINE_FACTOR(T, type, whole)
DEFINE_FACTOR(f32, float, real)
DEFINE_FACTOR(f64, double, real)
#if REDUCE_ALL
NUMERIC_INTEGER_MAP(DEFINE_FACTOR_WHOLE)
#endif

#define LOOP(expression)                                                                           \
    INDEPENDENT                                                                                    \
    for (size_t i = 0; i < count; i++)                                                             \
        to[i] = expression;

/* The loop for two outputs. */
#define PAIR_LOOP(element, expression)                                                             \
    const size_t stride = AHEAD_BYTES / sizeof(element);                                           \
    size_t at = 0;                                                                                 \
    if (call->ahead)                                                                               \
        for (; count - at >= 2 * stride; at += stride) {                                           \
            for (size_t ahead = stride; ahead < 2 * stride; ahead += LINE_BYTES / sizeof(element)) \
                __builtin_prefetch(to + at + ahead, 1);                                            \
            INDEPENDENT                                                                            \
            for (size_t i = at; i < at + stride; i++)                                              \
                to[i] = copy[i] = expression;                                                      \
        }                                                                                          \
    INDEPENDENT                                                                                    \
    for (size_t i = at; i < count; i++)                                                            \
        to[i] = copy[i] = expression;

/* The body of a tree_fn. Scalar and divisor are copied first: as far as the compiler knows, a store
 * might change the struct of the call. */
#define TREE_LOOPS(T, element, A, accumulator, LEAF, combine, RESULT, fan_in)                      \
    const accumulator scalar = factor_##A(call);                                                   \
    const int divisor = call->divisor;                                                             \
    const element *a = (const element *)in[0] + at;                                                \
    const element *b = n > 1 ? (const element *)in[1] + at : a;                                    \
    const element *c = n > 2 ? (const element *)in[2] + at : a;                                    \
    const element *d = n > 3 ? (const element *)in[3] + at : a;                                    \
    (void)scalar, (void)divisor, (void)c, (void)d;                                                 \
    if (n == 1) {                                                                                  \
        LOOP(RESULT(T, A, LEAF(T, A, a[i])))                                                       \
    } else if ((fan_in) == NARROW || n == 2) {                                                     \
        LOOP(RESULT(T, A, combine(LEAF(T, A, a[i]), LEAF(T, A, b[i]))))                            \
    } else if (n == 3) {                                                                           \
        LOOP(RESULT(T, A, combine(combine(LEAF(T, A, a[i]), LEAF(T, A, b[i])), LEAF(T, A, c[i])))) \
    } else {                                                                                       \
        LOOP(RESULT(T, A,                                                                          \
                    combine(combine(LEAF(T, A, a[i]), LEAF(T, A, b[i])),                           \
                            combine(LEAF(T, A, c[i]), LEAF(T, A, d[i])))))                         \
    }

/* Defines A_op_merge. */
#define DEFINE_MERGE(A, accumulator, op)                                                           \
    static void A##_##op##_merge(void *left, const void *right, size_t count)                      \
    {                                                                                              \
        accumulator *to = left;                                                                    \
        const accumulator *from = right;                                                           \
        LOOP(numeric_##A##_##op(to[i], from[i]))                                                   \
    }

/* Defines the reduction T_name and its loops. */
#define DEFINE_REDUCTION(T, name, element, A, accumulator, LEAF, op, RESULT, fan_in)               \
    static void T##_##name##_direct(void *out, const void *const *in, int n, size_t at,            \
                                    size_t count, const struct reduce_call *call)                  \
    {                                                                                              \
        element *to = out;                                                                         \
        TREE_LOOPS(T, element, A, accumulator, LEAF, numeric_##A##_##op, RESULT, fan_in)           \
    }                                                                                              \
    static void T##_##name##_fold(void *out, const void *const *in, int n, size_t at,              \
                                  size_t count, const struct reduce_call *call)                    \
    {                                                                                              \
        accumulator *to = out;                                                                     \
        TREE_LOOPS(T, element, A, accumulator, LEAF, numeric_##A##_##op, KEEP, fan_in)             \
    }                                                                                              \
    static void T##_##name##_finish(void *out, const void *left, const void *right, size_t count,  \
                                    const struct reduce_call *call)                                \
    {                                                                                              \
        element *to = out;                                                                         \
        const accumulator *a = left, *b = right;                                                   \
        const int divisor = call->divisor;                                                         \
        (void)divisor;                                                                             \
        LOOP(RESULT(T, A, numeric_##A##_##op(a[i], b[i])))                                         \
    }                                                                                              \
    static void T##_##name##_pair(const struct reduce_call *call)                                  \
    {                                                                                              \
        const accumulator scalar = factor_##A(call);                                               \
        const int divisor = call->divisor;                                                         \
        const size_t count = call->count;                                                          \
        const element *a = call->in[0], *b = call->in[1];                                          \
        element *to = call->out, *copy = call->copy;                                               \
        (void)scalar, (void)divisor;                                                               \
        PAIR_LOOP(element, RESULT(T, A, numeric_##A##_##op(LEAF(T, A, a[i]), LEAF(T, A, b[i]))))   \
    }                                                                                              \
    static const struct loops T##_##name##_loops = {                                               \
        fan_in,                                                                                    \
        sizeof(element),                                                                           \
        BLOCK_BYTES / sizeof(accumulator),                                                         \
        T##_##name##_direct,                                                                       \
        T##_##name##_fold,                                                                         \
        A##_##op##_merge,                                                                          \
        T##_##name##_finish,                                                                       \
    };                                                                                             \
    static void T##_##name(const struct reduce_call *call)                                         \
    {                                                                                              \
        const bool plain = !call->partials && !call->out_partial && !call->stream_copy;            \
        if (plain && call->n <= (fan_in) && !call->copy)                                           \
            T##_##name##_direct(call->out, call->in, call->n, 0, call->count, call);               \
        else if (plain && call->n == 2)                                                            \
            T##_##name##_pair(call);                                                               \
        else                                                                                       \
            reduce_blocks(call, &T##_##name##_loops, NULL);                                        \
    }

/* ---- float32, float64 and bfloat16 ----------------------------------------------------------- */

#define DEFINE_WIDE_SUMS(T, type)                                                                  \
    DEFINE_MERGE(T, type, sum)                                                                     \
    DEFINE_REDUCTION(T, sum, type, T, type, LOAD, sum, STORE, WIDE)                                \
    DEFINE_REDUCTION(T, avg, type, T, type, LOAD, sum, MEAN, WIDE)                                 \
    DEFINE_REDUCTION(T, premul_sum, type, T, type, SCALE, sum, STORE, NARROW)
DEFINE_WIDE_SUMS(f32, float)
DEFINE_WIDE_SUMS(f64, double)

#if REDUCE_ALL
#define DEFINE_WIDE_REST(T, type)                                                                  \
    DEFINE_MERGE(T, type, prod)                                                                    \
    DEFINE_MERGE(T, type, min)                                                                     \
    DEFINE_MERGE(T, type, max)                                                                     \
    DEFINE_REDUCTION(T, prod, type, T, type, LOAD, prod, STORE, NARROW)                            \
    DEFINE_REDUCTION(T, min, type, T, type, LOAD, min, STORE, NARROW)                              \
    DEFINE_REDUCTION(T, max, type, T, type, LOAD, max, STORE, NARROW)
DEFINE_WIDE_REST(f32, float)
DEFINE_WIDE_REST(f64, double)
#endif

/* The frequent operations of bfloat16 have loops of their own, which saves the pass that widens. */
DEFINE_REDUCTION(bf16, sum, uint16_t, f32, float, LOAD, sum, STORE, WIDE)
DEFINE_REDUCTION(bf16, avg, uint16_t, f32, float, LOAD, sum, MEAN, WIDE)

/* ---- floats that are widened ----------------------------------------------------------------- */

#define DEFINE_WIDEN(T, element)                                                                   \
    static void T##_widen(float *to, const void *elements, size_t count)                           \
    {                                                                                              \
        const element *from = elements;                                                            \
        LOOP(numeric_##T##_load(from[i]))                                                          \
    }
#define DEFINE_NARROW(T, element)                                                                  \
    static void T##_narrow(void *elements, const float *from, size_t count)                        \
    {                                                                                              \
        element *to = elements;                                                                    \
        LOOP(numeric_##T##_store(from[i]))                                                         \
    }
DEFINE_WIDEN(bf16, uint16_t)
DEFINE_NARROW(bf16, uint16_t)
DEFINE_NARROW(e4m3, uint8_t)
DEFINE_NARROW(e5m2, uint8_t)

/* These processors convert float16 exactly as numeric.h does: they keep subnormals, and a NaN that
 * is narrowed is canonical already. */
#if defined(__F16C__)
static void f16_widen(float *to, const void *elements, size_t count)
{
    const uint16_t *from = elements;
    size_t i = 0;
    for (; i + 8 <= count; i += 8)
        _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128((const void *)(from + i))));
    if (i + 4 <= count) {
        _mm_storeu_ps(to + i, _mm_cvtph_ps(_mm_loadl_epi64((const void *)(from + i))));
        i += 4;
    }
    for (; i < count; i++)
        to[i] = _cvtsh_ss(from[i]);
}

static void f16_narrow(void *elements, const float *from, size_t count)
{
    uint16_t *to = elements;
    size_t i = 0;
    for (; i + 8 <= count; i += 8)
        _mm_storeu_si128((void *)(to + i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
    if (i + 4 <= count) {
        _mm_storel_epi64((void *)(to + i),
                         _mm_cvtps_ph(_mm_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
        i += 4;
    }
    for (; i < count; i++)
        to[i] = _cvtss_sh(from[i], _MM_FROUND_TO_NEAREST_INT);
}
#elif defined(__aarch64__)
static void f16_widen(float *to, const void *elements, size_t count)
{
    const uint16_t *from = elements;
    size_t i = 0;
    for (; i + 4 <= count; i += 4)
        vst1q_f32(to + i, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from + i))));
    for (; i < count; i++)
        to[i] = numeric_f16_load(from[i]);
}

static void f16_narrow(void *elements, const float *from, size_t count)
{
    uint16_t *to = elements;
    size_t i = 0;
    for (; i + 4 <= count; i += 4)
        vst1_u16(to + i, vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(from + i))));
    for (; i < count; i++)
        to[i] = numeric_f16_store(from[i]);
}
#else
DEFINE_WIDEN(f16, uint16_t)
DEFINE_NARROW(f16, uint16_t)
#endif

/* A block of float8 is widened to float16 first, which is only a shift. */
#define DEFINE_HALF(T)                                                                             \
    static void T##_half(uint16_t *to, const uint8_t *from, size_t count)                          \
    {                                                                                              \
        LOOP(numeric_##T##_half(from[i]))                                                          \
    }
DEFINE_HALF(e4m3)
DEFINE_HALF(e5m2)

static void e4m3_widen(float *to, const void *elements, size_t count)
{
    uint16_t half[BLOCK_BYTES / sizeof(float)];
    e4m3_half(half, elements, count);
    f16_widen(to, half, count);
    LOOP(to[i] * 256)
}

static void e5m2_widen(float *to, const void *elements, size_t count)
{
    uint16_t half[BLOCK_BYTES / sizeof(float)];
    e5m2_half(half, elements, count);
    f16_widen(to, half, count);
}

#define DEFINE_WIDENED(T, name)                                                                    \
    static void T##_##name(const struct reduce_call *call)                                         \
    {                                                                                              \
        reduce_blocks(call, &f32_##name##_loops, &T##_format);                                     \
    }
/* bf16_sum and bf16_avg stand above. */
#define DEFINE_FORMAT(T, element)                                                                  \
    static const struct format T##_format = {sizeof(element), T##_widen, T##_narrow};              \
    DEFINE_WIDENED(T, premul_sum)
#define DEFINE_WIDENED_SUMS(T)                                                                     \
    DEFINE_WIDENED(T, sum)                                                                         \
    DEFINE_WIDENED(T, avg)
DEFINE_FORMAT(bf16, uint16_t)
DEFINE_FORMAT(f16, uint16_t)
DEFINE_FORMAT(e4m3, uint8_t)
DEFINE_FORMAT(e5m2, uint8_t)
DEFINE_WIDENED_SUMS(f16)
DEFINE_WIDENED_SUMS(e4m3)
DEFINE_WIDENED_SUMS(e5m2)

#if REDUCE_ALL
#define DEFINE_WIDENED_REST(T)                                                                     \
    DEFINE_WIDENED(T, prod)                                                                        \
    DEFINE_WIDENED(T, min)                                                                         \
    DEFINE_WIDENED(T, max)
DEFINE_WIDENED_REST(bf16)
DEFINE_WIDENED_REST(f16)
DEFINE_WIDENED_REST(e4m3)
DEFINE_WIDENED_REST(e5m2)

/* ---- integers and bool ----------------------------------------------------------------------- */

#define DEFINE_INTEGER(T, element, op)                                                             \
    DEFINE_MERGE(T, element, op)                                                                   \
    DEFINE_REDUCTION(T, op, element, T, element, LOAD, op, STORE, NARROW)

/* Operations that give the same bits with and without sign are defined for the unsigned types. */
#define DEFINE_UNSIGNED(T, element)                                                                \
    DEFINE_INTEGER(T, element, sum)                                                                \
    DEFINE_INTEGER(T, element, prod)                                                               \
    DEFINE_INTEGER(T, element, band)                                                               \
    DEFINE_INTEGER(T, element, bor)                                                                \
    DEFINE_INTEGER(T, element, bxor)                                                               \
    DEFINE_REDUCTION(T, premul_sum, element, T, element, SCALE, sum, STORE, NARROW)
DEFINE_UNSIGNED(u8, uint8_t)
DEFINE_UNSIGNED(u16, uint16_t)
DEFINE_UNSIGNED(u32, uint32_t)
DEFINE_UNSIGNED(u64, uint64_t)

#define DEFINE_ORDERED(T, element)                                                                 \
    DEFINE_INTEGER(T, element, min)                                                                \
    DEFINE_INTEGER(T, element, max)                                                                \
    DEFINE_REDUCTION(T, avg, element, T, element, LOAD, sum, MEAN, NARROW)
DEFINE_MERGE(i8, int8_t, sum)
DEFINE_MERGE(i16, int16_t, sum)
DEFINE_MERGE(i32, int32_t, sum)
DEFINE_MERGE(i64, int64_t, sum)
DEFINE_ORDERED(i8, int8_t)
DEFINE_ORDERED(u8, uint8_t)
DEFINE_ORDERED(i16, int16_t)
DEFINE_ORDERED(i32, int32_t)
DEFINE_ORDERED(u32, uint32_t)
DEFINE_ORDERED(i64, int64_t)
DEFINE_ORDERED(u64, uint64_t)

DEFINE_REDUCTION(b8, and, uint8_t, u8, uint8_t, LOAD, band, KEEP, NARROW)
DEFINE_REDUCTION(b8, or, uint8_t, u8, uint8_t, LOAD, bor, KEEP, NARROW)
DEFINE_REDUCTION(b8, xor, uint8_t, u8, uint8_t, LOAD, bxor, KEEP, NARROW)
#endif

/* ---- the functions --------------------------------------------------------------------------- */

#define SUM_CELLS(T) [OP_SUM] = T##_sum, [OP_AVG] = T##_avg, [OP_PREMUL_SUM] = T##_premul_sum

/* clang-format off */
#if REDUCE_ALL
#define FLOAT_ROW(dtype, T, element, A, accumulator)                                               \
    [TUTTI_##dtype] = {SUM_CELLS(T), [OP_PROD] = T##_prod,                                   \
                       [OP_MIN] = T##_min, [OP_MAX] = T##_max},
#define INTEGER_ROW(dtype, T, unsigned_T)                                                          \
    [TUTTI_##dtype] = {[OP_SUM] = unsigned_T##_sum, [OP_PROD] = unsigned_T##_prod,     \
                       [OP_MIN] = T##_min, [OP_MAX] = T##_max,                         \
                       [OP_AVG] = T##_avg, [OP_BAND] = unsigned_T##_band,              \
                       [OP_BOR] = unsigned_T##_bor, [OP_BXOR] = unsigned_T##_bxor,     \
                       [OP_PREMUL_SUM] = unsigned_T##_premul_sum},
#define FUNCTIONS                                                                                  \
    NUMERIC_FLOAT_MAP(FLOAT_ROW)                                                                   \
    INTEGER_ROW(INT8, i8, u8)                                                                      \
    INTEGER_ROW(UINT8, u8, u8)                                                                     \
    INTEGER_ROW(INT16, i16, u16)                                                                   \
    INTEGER_ROW(INT32, i32, u32)                                                                   \
    INTEGER_ROW(INT64, i64, u64)                                                                   \
    INTEGER_ROW(UINT32, u32, u32)                                                                  \
    INTEGER_ROW(UINT64, u64, u64)                                                                  \
    [TUTTI_BOOL] = {[OP_SUM] = b8_or, [OP_PROD] = b8_and, [OP_MIN] = b8_and,     \
                    [OP_MAX] = b8_or, [OP_BAND] = b8_and, [OP_BOR] = b8_or,      \
                    [OP_BXOR] = b8_xor},
#define REST NULL
#else
#define FLOAT_ROW(dtype, T, element, A, accumulator) [TUTTI_##dtype] = {SUM_CELLS(T)},
#define FUNCTIONS                                    NUMERIC_FLOAT_MAP(FLOAT_ROW)
#define REST                                         &reduce_isa_baseline
#endif
/* clang-format on */

extern rms_norm_fn NAMED(rms_norm_rows_, REDUCE_ISA); /* rms_norm.c */

const struct reduce_isa NAMED(reduce_isa_, REDUCE_ISA) = {
    .name = QUOTED(REDUCE_ISA),
    .fn = {FUNCTIONS},
    .rest = REST,
    .copy = plain_copy,
    .copy_stream = stream_copy,
    .rms_norm = NAMED(rms_norm_rows_, REDUCE_ISA),
};
