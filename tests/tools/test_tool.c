/* SPDX-License-Identifier: MIT */
/* Values of the command line, sizes in words, percentiles, shares of the cores. */
#include "placement.h"
#include "stats.h"
#include "tool.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void sizes_are_parsed(void **state)
{
    static const struct {
        const char *text;
        size_t bytes;
    } good[] = {
        {"0", 0},          {"8", 8},         {"64K", 65536},     {"64k", 65536},
        {"1.5M", 3 << 19}, {"1G", 1u << 30}, {"2T", 2ull << 40}, {"8B", 8},
        {"4KiB", 4096},    {"4KB", 4096},    {"0.5K", 512},      {"3000000000", 3000000000},
    };
    static const char *const bad[] = {"",   "K",   "-1",  "+1",  " 1",  "1 ",    "1KK", "0.3",
                                      "1Q", "0x8", "1e3", "nan", "inf", "1KiBB", "1iB", "9999999T"};
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        size_t bytes = 77;
        assert_true(parse_size(good[i].text, &bytes));
        assert_int_equal(bytes, good[i].bytes);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        size_t bytes = 77;
        if (parse_size(bad[i], &bytes))
            fail_msg("'%s' was taken for a size", bad[i]);
        assert_int_equal(bytes, 77);
    }
}

static void integers_have_bounds(void **state)
{
    long value = 0;
    (void)state;
    assert_true(parse_integer("64", 1, 64, &value));
    assert_int_equal(value, 64);
    assert_true(parse_integer("-3", -3, 0, &value));
    assert_int_equal(value, -3);
    assert_false(parse_integer("65", 1, 64, &value));
    assert_false(parse_integer("0", 1, 64, &value));
    assert_false(parse_integer("", 0, 9, &value));
    assert_false(parse_integer("4x", 0, 9, &value));
    assert_false(parse_integer("99999999999999999999", 0, 9, &value));
}

static void names_are_parsed(void **state)
{
    enum tutti_dtype dtype;
    tutti_op_t op;
    enum tutti_algo algo;
    enum tutti_collective collective;
    (void)state;
    for (int i = 0; i < TUTTI_DTYPE_COUNT; i++) {
        assert_true(parse_dtype(tutti_dtype_name((enum tutti_dtype)i), &dtype));
        assert_int_equal(dtype, i);
    }
    assert_true(parse_dtype("half", &dtype));
    assert_int_equal(dtype, TUTTI_FLOAT16);
    assert_false(parse_dtype("float31", &dtype));
#define ROW(name, value, text)                                                                     \
    assert_true(parse_op(text, &op));                                                              \
    assert_ptr_equal(op, TUTTI_##name);                                                            \
    assert_int_equal((uintptr_t)op, value);                                                        \
    assert_string_equal(tutti_op_name(op), text);
    TUTTI_OP_MAP(ROW)
#undef ROW
    assert_false(parse_op("unknown", &op));
    assert_true(parse_algo("two_shot", &algo));
    assert_int_equal(algo, TUTTI_ALGO_TWO_SHOT);
    assert_true(parse_algo("ring", &algo));
    assert_int_equal(algo, TUTTI_ALGO_RING);
    assert_false(parse_algo("tree", &algo));
    assert_true(parse_collective("barrier", &collective));
    assert_int_equal(collective, TUTTI_COLLECTIVE_BARRIER);
    assert_true(parse_collective("send_recv", &collective));
    assert_int_equal(collective, TUTTI_COLLECTIVE_SEND);
    assert_true(parse_collective("scatter_v", &collective));
    assert_int_equal(collective, TUTTI_COLLECTIVE_SCATTER_V);
    assert_false(parse_collective("gathers", &collective));
    assert_false(parse_collective("recv", &collective));
    assert_false(parse_collective("split", &collective));
}

static void sizes_are_written(void **state)
{
    char text[32];
    (void)state;
    format_size(100, text, sizeof text);
    assert_string_equal(text, "100 B");
    format_size(1536, text, sizeof text);
    assert_string_equal(text, "1.5 KiB");
    format_size((size_t)64 << 20, text, sizeof text);
    assert_string_equal(text, "64 MiB");
}

static void percentiles_are_values(void **state)
{
    double values[200];
    (void)state;
    for (int i = 0; i < 200; i++)
        values[i] = (i * 7) % 200 + 1; /* 1 to 200, shuffled */
    struct stats stats = stats_of(values, 200);
    assert_true(stats.mean == 100.5 && stats.p50 == 100 && stats.p99 == 198);
    double one = 3;
    stats = stats_of(&one, 1);
    assert_true(stats.mean == 3 && stats.p50 == 3 && stats.p99 == 3);
    stats = stats_of(values, 0);
    assert_true(stats.mean == 0 && stats.p50 == 0 && stats.p99 == 0);
    double two[] = {5, 1};
    assert_true(stats_of(two, 2).p50 == 1 && stats_of(two, 2).p99 == 5);
    assert_true(stats_percentile(two, 2, 0) == 1 && stats_percentile(two, 2, 100) == 5);
}

static double median_of(const double *values, size_t count)
{
    struct samples samples = {0};
    for (size_t i = 0; i < count; i++)
        assert_int_equal(samples_add(&samples, values[i]), 0);
    double median = samples_median(&samples);
    samples_fini(&samples);
    assert_int_equal(samples.count, 0);
    return median;
}

static void median_is_the_middle(void **state)
{
    double many[101];
    (void)state;
    for (int i = 0; i < 101; i++)
        many[i] = (i * 37) % 101; /* 0 to 100 in disorder */
    assert_true(isnan(median_of(NULL, 0)));
    assert_true(median_of((const double[]){7}, 1) == 7);
    assert_true(median_of((const double[]){9, 1}, 2) == 1);
    assert_true(median_of((const double[]){1e9, 2, 1}, 3) == 2);
    assert_true(median_of(many, 101) == 50);
}

/* The shares follow each other, none is empty, and they differ by one core at most. */
static void shares_cover_all_cores(void **state)
{
    (void)state;
    for (int cores = 1; cores <= 300; cores += cores < 10 ? 1 : 29)
        for (int ranks = 1; ranks <= TUTTI_MAX_RANKS && ranks <= cores; ranks++) {
            int next = 0, first;
            for (int rank = 0; rank < ranks; rank++) {
                int count = placement_share(cores, ranks, rank, &first);
                assert_int_equal(first, next);
                assert_in_range(count, cores / ranks, (cores + ranks - 1) / ranks);
                next += count;
            }
            assert_int_equal(next, cores);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_are_parsed),       cmocka_unit_test(integers_have_bounds),
        cmocka_unit_test(names_are_parsed),       cmocka_unit_test(sizes_are_written),
        cmocka_unit_test(percentiles_are_values), cmocka_unit_test(median_is_the_middle),
        cmocka_unit_test(shares_cover_all_cores),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
