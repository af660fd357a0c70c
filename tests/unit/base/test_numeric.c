/* SPDX-License-Identifier: MIT */
/*
 * Conversions and operations of numeric.h: every pattern of 8 and 16 bits, every midpoint between
 * neighbours, and floats of every exponent against the reference, which shares no code with it.
 */
#include "base/numeric.h"
#include "reference.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* The small floats behind one signature. */
#define DEFINE_CONVERSIONS(T, element)                                                             \
    static float T##_load(uint32_t code)                                                           \
    {                                                                                              \
        return numeric_##T##_load((element)code);                                                  \
    }                                                                                              \
    static uint32_t T##_store(float value)                                                         \
    {                                                                                              \
        return numeric_##T##_store(value);                                                         \
    }
DEFINE_CONVERSIONS(f16, uint16_t)
DEFINE_CONVERSIONS(bf16, uint16_t)
DEFINE_CONVERSIONS(e4m3, uint8_t)
DEFINE_CONVERSIONS(e5m2, uint8_t)

static const struct format {
    enum tutti_dtype dtype;
    float (*load)(uint32_t code);
    uint32_t (*store)(float value);
    uint32_t sign; /* its bit */
    uint32_t most; /* code of the largest finite number */
    double most_value;
    double least_value; /* of code 1 */
    uint32_t infinity;  /* as what an infinity is stored */
    uint32_t nan;
} formats[] = {
    {TUTTI_FLOAT16, f16_load, f16_store, 0x8000, 0x7bff, 65504, 0x1p-24, 0x7c00, 0x7e00},
    {TUTTI_BFLOAT16, bf16_load, bf16_store, 0x8000, 0x7f7f, 0x1.fep127, 0x1p-133, 0x7f80, 0x7fc0},
    {TUTTI_FLOAT8_E4M3, e4m3_load, e4m3_store, 0x80, 0x7e, 448, 0x1p-9, 0x7e, 0x7f},
    {TUTTI_FLOAT8_E5M2, e5m2_load, e5m2_store, 0x80, 0x7b, 57344, 0x1p-16, 0x7b, 0x7f},
};
enum { FORMATS = sizeof formats / sizeof *formats };

static void same_code(const struct format *f, float value, uint32_t want)
{
    const uint32_t got = f->store(value);
    if (got != want)
        fail_msg("%s: %a (%#x) is stored as %#x, not %#x", tutti_dtype_name(f->dtype), value,
                 numeric_f32_bits(value), got, want);
}

static void landmarks(void **state)
{
    (void)state;
    for (int i = 0; i < FORMATS; i++) {
        const struct format *f = &formats[i];
        assert_true(f->load(f->most) == f->most_value);
        assert_true(f->load(1) == f->least_value);
        assert_true(reference_decode(f->dtype, f->most) == f->most_value);
        assert_true(reference_decode(f->dtype, 1) == f->least_value);
        same_code(f, INFINITY, f->infinity);
        same_code(f, -INFINITY, f->sign | f->infinity);
        same_code(f, 0x1.fffffep127F, f->infinity);
        same_code(f, NAN, f->nan);
        same_code(f, -NAN, f->nan);
        same_code(f, numeric_f32_from_bits(0x7f800001), f->nan);
        same_code(f, -0.0F, f->sign);
        same_code(f, 0x1p-149F, 0);
        same_code(f, -0x1p-149F, f->sign);
    }
    assert_true(f16_load(0x3555) == 0x1.554p-2F);
    assert_true(bf16_load(0x4049) == 3.140625F);
    assert_true(e4m3_load(0x38) == 1.0F);
    assert_true(e5m2_load(0xc0) == -2.0F);
    assert_true(isinf(e5m2_load(0x7c)));
    assert_true(isnan(e4m3_load(0xff)));
}

static void every_pattern(void **state)
{
    (void)state;
    for (int i = 0; i < FORMATS; i++) {
        const struct format *f = &formats[i];
        for (uint32_t code = 0; code < 2 * f->sign; code++) {
            const double want = reference_decode(f->dtype, code);
            const float got = f->load(code);
            if (isnan(want) ? !isnan(got) : got != want || !signbit(got) != !signbit(want))
                fail_msg("%s: %#x is %a, not %a", tutti_dtype_name(f->dtype), code, got, want);
            const uint32_t sign = code & f->sign;
            same_code(f, got, isnan(want) ? f->nan : isinf(want) ? sign | f->infinity : code);
        }
    }
}

/* Between neighbours: ties to the even code, everything else to the nearer one, both signs. */
static void every_midpoint(void **state)
{
    (void)state;
    for (int i = 0; i < FORMATS; i++) {
        const struct format *f = &formats[i];
        for (uint32_t code = 0; code < f->most; code++) {
            const double sum =
                reference_decode(f->dtype, code) + reference_decode(f->dtype, code + 1);
            const float middle = (float)(sum / 2);
            assert_true(middle == sum / 2);
            const uint32_t even = code & 1 ? code + 1 : code;
            same_code(f, middle, even);
            same_code(f, -middle, f->sign | even);
            same_code(f, nextafterf(middle, 0), code);
            same_code(f, -nextafterf(middle, 0), f->sign | code);
            same_code(f, nextafterf(middle, INFINITY), code + 1);
            same_code(f, -nextafterf(middle, INFINITY), f->sign | (code + 1));
        }
    }
}

static void same_as_reference(uint32_t bits)
{
    const float value = numeric_f32_from_bits(bits);
    for (int i = 0; i < FORMATS; i++)
        same_code(&formats[i], value, reference_encode(formats[i].dtype, value));
}

/* Each exponent, both signs, with fractions next to the ends, to each power of two and its half. */
static void every_exponent(void **state)
{
    (void)state;
    for (uint32_t top = 0; top < 512; top++)
        for (int bit = 0; bit < 24; bit++)
            for (int off = -2; off <= 2; off++) {
                const uint32_t fraction = (UINT32_C(1) << bit) + (uint32_t)off;
                same_as_reference(top << 23 | (fraction & 0x7fffff));
                same_as_reference(top << 23 | ((fraction | UINT32_C(0x555555) << bit) & 0x7fffff));
                same_as_reference(top << 23 | (~fraction & 0x7fffff));
            }
}

static void random_floats(void **state)
{
    (void)state;
    uint32_t bits = 1;
    for (int i = 0; i < 1000000; i++) {
        bits = bits * 1664525 + 1013904223;
        same_as_reference(bits ^ bits >> 13);
    }
}

/* ---- operations ------------------------------------------------------------------------------ */

static void nan_is_canonical(void **state)
{
    static const uint32_t nans[] = {0x7f800001, 0x7fc00000, 0x7fffffff, 0xff800001, 0xffc12345};
    (void)state;
    for (size_t i = 0; i < sizeof nans / sizeof *nans; i++) {
        const float single = numeric_f32_from_bits(nans[i]);
        const double real = numeric_f64_from_bits((uint64_t)nans[i] << 32 | 0x00080001);
        assert_int_equal(numeric_f32_bits(numeric_f32_store(single)), 0x7fc00000);
        if (isnan(real))
            assert_true(numeric_f64_bits(numeric_f64_store(real)) == UINT64_C(0x7ff8000000000000));
    }
    const float tiny = numeric_f32_from_bits(0x80000001);
    assert_int_equal(numeric_f32_bits(numeric_f32_store(tiny)), 0x80000001);
}

/* In the order of min and max. */
static void extrema_order_everything(void **state)
{
    static const float ordered[] = {-INFINITY, -0x1.8p3F, -0x1p-149F, -0.0F,
                                    0.0F,      0x1p-149F, 1,          INFINITY};
    enum { COUNT = sizeof ordered / sizeof *ordered };
    (void)state;
    for (int i = 0; i < COUNT; i++) {
        for (int j = 0; j < COUNT; j++) {
            const float low = ordered[i < j ? i : j], high = ordered[i < j ? j : i];
            const float min = numeric_f32_min(ordered[i], ordered[j]);
            const float max = numeric_f32_max(ordered[i], ordered[j]);
            assert_int_equal(numeric_f32_bits(min), numeric_f32_bits(low));
            assert_int_equal(numeric_f32_bits(max), numeric_f32_bits(high));
            const double min64 = numeric_f64_min(ordered[i], ordered[j]);
            const double max64 = numeric_f64_max(ordered[i], ordered[j]);
            assert_true(numeric_f64_bits(min64) == numeric_f64_bits(low));
            assert_true(numeric_f64_bits(max64) == numeric_f64_bits(high));
        }
        assert_true(isnan(numeric_f32_min(NAN, ordered[i])));
        assert_true(isnan(numeric_f32_min(ordered[i], NAN)));
        assert_true(isnan(numeric_f32_max(NAN, ordered[i])));
        assert_true(isnan(numeric_f32_max(ordered[i], NAN)));
        assert_true(isnan(numeric_f64_min(NAN, ordered[i])));
        assert_true(isnan(numeric_f64_max(ordered[i], NAN)));
    }
}

static void integers_wrap(void **state)
{
    (void)state;
    assert_int_equal(numeric_i8_sum(127, 1), -128);
    assert_int_equal(numeric_i8_prod(-128, -1), -128);
    assert_int_equal(numeric_u16_prod(65535, 65535), 1);
    assert_int_equal(numeric_i32_sum(INT32_MAX, 1), INT32_MIN);
    assert_int_equal(numeric_i32_prod(INT32_MIN, -1), INT32_MIN);
    assert_true(numeric_i64_prod(INT64_MIN, -1) == INT64_MIN);
    assert_true(numeric_i64_sum(INT64_MIN, -1) == INT64_MAX);
    assert_int_equal(numeric_i8_div(-7, 2), -3);
    assert_int_equal(numeric_i8_div(-128, 200), 0);
    assert_int_equal(numeric_i32_div(INT32_MIN, 3), -715827882);
    assert_true(numeric_u64_div(UINT64_MAX, 2) == INT64_MAX);
    assert_true(numeric_u32_div(UINT32_MAX, 2) == INT32_MAX);
    assert_int_equal(numeric_i16_min(-1, 1), -1);
    assert_int_equal(numeric_u8_max(255, 1), 255);
    assert_int_equal(numeric_b8_load(0x80), 1);
    assert_int_equal(numeric_b8_load(0), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(landmarks),
        cmocka_unit_test(every_pattern),
        cmocka_unit_test(every_midpoint),
        cmocka_unit_test(every_exponent),
        cmocka_unit_test(random_floats),
        cmocka_unit_test(nan_is_canonical),
        cmocka_unit_test(extrema_order_everything),
        cmocka_unit_test(integers_wrap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
