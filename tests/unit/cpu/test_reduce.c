/* SPDX-License-Identifier: MIT */
/*
 * The reductions against the scalar reference, bit for bit: every instruction set that runs here,
 * dtype and operation, by number of inputs, count, alignment, in place or not, with a copy or
 * without, with cached and non-temporal stores; the bytes around the outputs; the caller's
 * floating-point environment.
 */
#include "cpu/reduce/reduce.h"
#include "reference.h"

#include <fenv.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
    MOST = 2600,    /* elements of a case; more than two blocks of the narrowest accumulator */
    SHIFTS = 17,    /* alignments tried, in elements */
    GUARD = 192,    /* bytes around an output */
    PATTERN = 0xa5, /* in them */
    ROOM = (MOST + SHIFTS) * 8 + 2 * GUARD,
};

static const char *const isa_names[] = {"baseline", "avx2", "avx512", "neon"};
enum { ISAS = sizeof isa_names / sizeof *isa_names };
static const int input_counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 33, 64};

static unsigned char inputs[NODE_RANKS][ROOM];
static unsigned char out[ROOM], copy[ROOM], expected[ROOM];

static uint64_t random_next(void)
{
    static uint64_t state = 0x9e3779b97f4a7c15;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state * UINT64_C(0x2545f4914f6cdd1d) >> 8;
}

static int random_below(int limit)
{
    return (int)(random_next() % (unsigned)limit);
}

/* ---- inputs ---------------------------------------------------------------------------------- */

/* One element of a float of 32 or 64 bits: any bits, a special value, or a moderate one. */
static void wide_float(unsigned char *to, enum tutti_dtype dtype)
{
    static const uint32_t special[] = {
        0,          0x80000000, 1,          0x80000001, 0x007fffff, 0x807fffff,
        0x00800000, 0x7f7fffff, 0xff7fffff, 0x7f800000, 0xff800000, 0x7fc00000,
        0xffc00001, 0x7f800001, 0x3f800000, 0xbf800000, 0x33800000, 0x4b800000,
    };
    const uint32_t bits = random_below(8) == 0
                              ? special[random_below((int)(sizeof special / sizeof *special))]
                              : (uint32_t)random_next();
    float single;
    memcpy(&single, &bits, sizeof single);
    if (random_below(2))
        single = (float)((double)(random_next() % 20001) / 1000 - 10);
    const double real = single;
    const uint64_t wide = random_next() << 32 ^ random_next();
    if (dtype == TUTTI_FLOAT32)
        memcpy(to, &single, sizeof single);
    else
        memcpy(to, random_below(4) ? (const void *)&real : (const void *)&wide, sizeof real);
}

static void fill_inputs(enum tutti_dtype dtype, int n)
{
    const size_t size = tutti_dtype_size(dtype);
    for (int k = 0; k < n; k++)
        for (size_t i = 0; i < MOST; i++) {
            unsigned char *element = inputs[k] + i * size;
            uint64_t bits = random_next() << 32 ^ random_next();
            /* Half of the 16-bit floats near one, so that sums are not all of the largest term. */
            if ((dtype == TUTTI_FLOAT16 || dtype == TUTTI_BFLOAT16) && random_below(2))
                bits = (bits & 0x8fff) | 0x3000;
            if (dtype == TUTTI_BOOL && random_below(2))
                bits &= 1;
            memcpy(element, &bits, size);
            if (dtype == TUTTI_FLOAT32 || dtype == TUTTI_FLOAT64)
                wide_float(element, dtype);
        }
}

/* ---- one case -------------------------------------------------------------------------------- */

struct variant {
    int n;
    size_t first; /* element of the inputs where the case begins */
    size_t count;
    int shift;    /* of the output from 64-byte alignment, in elements */
    int in_place; /* the input that is the output, or -1 */
    bool copy;
    bool stream_copy;
};

static void paint(unsigned char *buffer, size_t begin, size_t bytes)
{
    memset(buffer + begin - GUARD, PATTERN, bytes + 2 * GUARD);
}

/* The GUARD bytes before and after the output are as painted. */
static void guards_intact(const unsigned char *buffer, size_t begin, size_t bytes, const char *what)
{
    unsigned char painted[GUARD];
    memset(painted, PATTERN, GUARD);
    if (memcmp(buffer + begin - GUARD, painted, GUARD) == 0 &&
        memcmp(buffer + begin + bytes, painted, GUARD) == 0)
        return;
    for (size_t i = 1; i <= GUARD; i++) {
        if (buffer[begin - i] != PATTERN)
            fail_msg("%s: byte %zu before it changed", what, i);
        if (buffer[begin + bytes + i - 1] != PATTERN)
            fail_msg("%s: byte %zu behind it changed", what, i);
    }
}

static void same_elements(const struct reduce_isa *isa, enum tutti_dtype dtype, enum op_kind op,
                          const struct variant *v, const unsigned char *result)
{
    const size_t size = tutti_dtype_size(dtype);
    if (memcmp(result, expected + v->first * size, v->count * size) == 0)
        return;
    for (size_t i = 0; i < v->count; i++) {
        const unsigned char *want = expected + (v->first + i) * size;
        if (memcmp(result + i * size, want, size) == 0)
            continue;
        uint64_t got_bits = 0, want_bits = 0;
        memcpy(&got_bits, result + i * size, size);
        memcpy(&want_bits, want, size);
        fail_msg("%s %s op %d n %d first %zu count %zu shift %d in place %d copy %d stream %d: "
                 "element %zu is %#llx, not %#llx",
                 isa->name, tutti_dtype_name(dtype), op, v->n, v->first, v->count, v->shift,
                 v->in_place, v->copy, v->stream_copy, i, (unsigned long long)got_bits,
                 (unsigned long long)want_bits);
    }
}

static union op_scalar scalar_of(enum tutti_dtype dtype, double scalar)
{
    return dtype_is_float(dtype) ? (union op_scalar){.real = scalar}
                                 : (union op_scalar){.whole = (uint64_t)(int64_t)scalar};
}

static void check_variant(const struct reduce_isa *isa, enum tutti_dtype dtype, enum op_kind op,
                          const struct variant *v, double scalar)
{
    const size_t size = tutti_dtype_size(dtype), bytes = v->count * size;
    const size_t begin = GUARD + (size_t)v->shift * size;
    const size_t copy_begin = GUARD + (size_t)(SHIFTS - 1 - v->shift) * size;
    const void *in[NODE_RANKS];
    paint(out, begin, bytes);
    paint(copy, copy_begin, v->copy ? bytes : 0);
    for (int k = 0; k < v->n; k++)
        in[k] = inputs[k] + v->first * size;
    if (v->in_place >= 0) {
        memcpy(out + begin, in[v->in_place], bytes);
        in[v->in_place] = out + begin;
    }
    const struct reduce_call call = {
        .out = out + begin,
        .copy = v->copy ? copy + copy_begin : NULL,
        .in = in,
        .n = v->n,
        .count = v->count,
        .scalar = scalar_of(dtype, scalar),
        .divisor = v->n,
        .begin = random_below(v->n),
        .stream_copy = v->stream_copy,
    };
    reduce_function(isa, dtype, op)(&call);
    same_elements(isa, dtype, op, v, out + begin);
    guards_intact(out, begin, bytes, "out");
    if (v->copy)
        same_elements(isa, dtype, op, v, copy + copy_begin);
    guards_intact(copy, copy_begin, v->copy ? bytes : 0, "copy");
}

static struct variant random_variant(int n, size_t count)
{
    return (struct variant){
        .n = n,
        .first = (size_t)random_below((int)(MOST - count) + 1),
        .count = count,
        .shift = random_below(SHIFTS),
        .in_place = random_below(2) ? random_below(n) : -1,
        .copy = random_below(2),
        .stream_copy = random_below(2),
    };
}

static void check_counts(const struct reduce_isa *isa, enum tutti_dtype dtype, enum op_kind op,
                         int n, double scalar)
{
    for (size_t count = 0; count <= 70; count++) {
        struct variant v = random_variant(n, count);
        check_variant(isa, dtype, op, &v, scalar);
    }
    /* Every combination of in place, copy and stream, on a count of several blocks. */
    for (int flags = 0; flags < 8; flags++) {
        struct variant v = random_variant(n, (size_t)(MOST - random_below(MOST / 2)));
        v.first = (size_t)random_below((int)(MOST - v.count) + 1);
        v.in_place = flags & 1 ? random_below(n) : -1;
        v.copy = flags & 2;
        v.stream_copy = flags & 4;
        check_variant(isa, dtype, op, &v, scalar);
    }
}

/* The tree by way of partial results: its left side, then, in two steps, the right one; or both
 * sides, then their root. */
static void check_partials(const struct reduce_isa *isa, enum tutti_dtype dtype, enum op_kind op,
                           int n, double scalar)
{
    static _Alignas(64) unsigned char sums[3][MOST * 8];
    const size_t size = tutti_dtype_size(dtype);
    for (int round = 0; round < 20; round++) {
        struct variant v = random_variant(n, (size_t)random_below(round < 10 ? 70 : MOST));
        v.first = (size_t)random_below((int)(MOST - v.count) + 1);
        const size_t begin = GUARD + (size_t)v.shift * size, bytes = v.count * size;
        const void *in[NODE_RANKS], *rest[NODE_RANKS + 1] = {sums[0]};
        int left = 1;
        while (left * 2 < n)
            left *= 2;
        for (int k = 0; k < n; k++)
            in[k] = inputs[k] + v.first * size;
        struct reduce_call call = {.out = sums[0],
                                   .copy = v.copy ? sums[2] : NULL,
                                   .in = in,
                                   .n = left,
                                   .count = v.count,
                                   .scalar = scalar_of(dtype, scalar),
                                   .divisor = n,
                                   .begin = random_below(n),
                                   .stream_copy = v.stream_copy,
                                   .out_partial = true};
        reduce_function(isa, dtype, op)(&call);
        if (v.copy)
            rest[0] = sums[2];
        memcpy(rest + 1, in + left, (size_t)(n - left) * sizeof *in);
        const void *const sides[] = {rest[0], sums[1]};
        call.copy = NULL;
        call.in = rest;
        call.n = n - left + 1;
        call.partials = 1;
        call.out = out + begin;
        call.out_partial = false;
        if (round % 2) { /* the right side, then both */
            call.in = in + left;
            call.n = n - left;
            call.partials = 0;
            call.out = sums[1];
            call.out_partial = true;
            reduce_function(isa, dtype, op)(&call);
            call.in = sides;
            call.n = call.partials = 2;
            call.out = out + begin;
            call.out_partial = false;
        }
        paint(out, begin, bytes);
        reduce_function(isa, dtype, op)(&call);
        same_elements(isa, dtype, op, &v, out + begin);
        guards_intact(out, begin, bytes, "out");
    }
}

static const struct reduce_isa *found[ISAS];

static void check_operation(enum tutti_dtype dtype, enum op_kind op)
{
    /* The third is infinite and the fourth zero once rounded to float32. */
    static const double scalars[] = {1 / 3., -0.017, 1e39, 1e-60, 0x1.000001p-3, NAN, 1024};
    static const double wholes[] = {-3, 7, 0x1.000001p50, 0, -0x1p63, 1, 255};
    const void *in[NODE_RANKS];
    for (size_t which = 0; which < sizeof input_counts / sizeof *input_counts; which++) {
        const int n = input_counts[which];
        const size_t at = which % (sizeof scalars / sizeof *scalars);
        const double scalar = dtype_is_float(dtype) ? scalars[at] : wholes[at];
        fill_inputs(dtype, n);
        for (int k = 0; k < n; k++)
            in[k] = inputs[k];
        reference_reduce(expected, in, n, MOST, dtype, (tutti_op_t)(uintptr_t)op, scalar);
        for (int i = 0; i < ISAS; i++)
            if (found[i])
                check_counts(found[i], dtype, op, n, scalar);
        for (int i = 0; i < ISAS && n > 1; i++)
            if (found[i])
                check_partials(found[i], dtype, op, n, scalar);
    }
}

static void equals_the_reference(void **state)
{
    (void)state;
    for (int dtype = 0; dtype < DTYPE_REALS; dtype++)
        for (int op = 1; op < OP_COUNT; op++)
            if (reference_has((enum tutti_dtype)dtype, (tutti_op_t)(uintptr_t)op))
                check_operation((enum tutti_dtype)dtype, (enum op_kind)op);
}

static void table_has_what_exists(void **state)
{
    (void)state;
    for (int i = 0; i < ISAS; i++)
        for (int dtype = 0; found[i] && dtype < DTYPE_REALS; dtype++)
            for (int op = 0; op < OP_COUNT; op++)
                assert_int_equal(
                    reduce_function(found[i], dtype, op) != NULL,
                    op != 0 && reference_has((enum tutti_dtype)dtype, (tutti_op_t)(uintptr_t)op));
}

/* ---- copies ---------------------------------------------------------------------------------- */

static void check_copy(copy_fn *function, size_t shift, size_t from, size_t bytes)
{
    paint(out, GUARD + shift, bytes);
    function(out + GUARD + shift, inputs[0] + from, bytes);
    assert_memory_equal(out + GUARD + shift, inputs[0] + from, bytes);
    guards_intact(out, GUARD + shift, bytes, "copy");
}

static void copies_copy(void **state)
{
    (void)state;
    fill_inputs(TUTTI_UINT64, 1);
    for (int i = 0; i < ISAS; i++)
        for (size_t bytes = 0; found[i] && bytes < 1500; bytes += bytes < 300 ? 1 : 97)
            for (size_t shift = 0; shift < 64; shift += 1 + (size_t)random_below(9)) {
                check_copy(found[i]->copy, shift, (size_t)random_below(64), bytes);
                check_copy(found[i]->copy_stream, shift, (size_t)random_below(64), bytes);
                check_copy(reduce_copy_long(found[i]), shift, (size_t)random_below(64), bytes);
            }
}

/* ---- choice ---------------------------------------------------------------------------------- */

static void ignore_line(void *context, enum tutti_log_level level, const char *line)
{
    (void)level;
    assert_non_null(strstr(line, "TUTTI_ISA=sparc"));
    ++*(int *)context;
}

static void environment_names_the_isa(void **state)
{
    (void)state;
    int lines = 0;
    unsetenv("TUTTI_ISA");
    const struct reduce_isa *best = reduce_isa_best();
    assert_non_null(best);
    assert_ptr_equal(reduce_isa_named(best->name), best);
    for (int i = 0; i < ISAS; i++)
        if (found[i]) {
            setenv("TUTTI_ISA", isa_names[i], 1);
            assert_ptr_equal(reduce_isa_best(), found[i]);
            assert_string_equal(found[i]->name, isa_names[i]);
        }
    setenv("TUTTI_ISA", "sparc", 1);
    tutti_log_set(ignore_line, &lines);
    assert_ptr_equal(reduce_isa_best(), best);
    tutti_log_set(NULL, NULL);
    assert_int_equal(lines, 1);
    unsetenv("TUTTI_ISA");
    assert_null(reduce_isa_named("sparc"));
}

/* ---- floating-point environment -------------------------------------------------------------- */

/* Flushing of subnormals, for which C has no name, and the control bits themselves. */
#if defined(__x86_64__)
#include <xmmintrin.h>

static uint64_t control_get(void)
{
    return _mm_getcsr() & 0xffc0;
}

static void control_flush(void)
{
    _mm_setcsr(_mm_getcsr() | 0x8040);
}
#else
static uint64_t control_get(void)
{
    uint64_t value;
    __asm__ volatile("mrs %0, fpcr" : "=r"(value));
    return value;
}

static void control_flush(void)
{
    __asm__ volatile("msr fpcr, %0" : : "r"(control_get() | UINT64_C(1) << 24));
}
#endif

static void check_environment(const struct reduce_isa *isa, enum tutti_dtype dtype, int rounding,
                              bool flush)
{
    const void *in[] = {inputs[0], inputs[1], inputs[2]};
    const struct reduce_call call = {.out = out, .in = in, .n = 3, .count = MOST, .divisor = 3};
    fenv_t before;
    fegetenv(&before);
    fesetround(rounding);
    if (flush)
        control_flush();
    const uint64_t control = control_get();
    const uint64_t saved = reduce_env_begin();
    reduce_function(isa, dtype, OP_AVG)(&call);
    reduce_env_end(saved);
    const bool kept = control_get() == control;
    fesetenv(&before);
    assert_true(kept);
    assert_memory_equal(out, expected, MOST * tutti_dtype_size(dtype));
}

static void environment_neither_matters_nor_leaks(void **state)
{
    static const int roundings[] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
    (void)state;
    for (int dtype = TUTTI_FLOAT32; dtype <= TUTTI_FLOAT8_E5M2; dtype++) {
        const void *in[] = {inputs[0], inputs[1], inputs[2]};
        fill_inputs((enum tutti_dtype)dtype, 3);
        reference_reduce(expected, in, 3, MOST, (enum tutti_dtype)dtype, TUTTI_AVG, 0);
        for (int i = 0; i < ISAS; i++)
            for (int mode = 0; found[i] && mode < 8; mode++)
                check_environment(found[i], (enum tutti_dtype)dtype, roundings[mode / 2], mode & 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table_has_what_exists),
        cmocka_unit_test(equals_the_reference),
        cmocka_unit_test(copies_copy),
        cmocka_unit_test(environment_names_the_isa),
        cmocka_unit_test(environment_neither_matters_nor_leaks),
    };
    setenv("TUTTI_DEBUG", "WARN", 1);
    for (int i = 0; i < ISAS; i++)
        found[i] = reduce_isa_named(isa_names[i]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
