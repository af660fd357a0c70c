/* SPDX-License-Identifier: MIT */
/*
 * The benchmark's inputs show the order of additions, and its comparison counts every wrong
 * element.
 */
#include "reference.h"
#include "reference_table.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A table of one period of the widest element. */
static void *table_create(void)
{
    void *table = calloc(REFERENCE_PERIOD, REFERENCE_WIDEST);
    assert_non_null(table);
    return table;
}

/* The tree is (0+1)+2, never 0+(1+2): with these inputs the two differ somewhere. */
static void order_shows(void **state)
{
    struct reference reference = {.dtype = TUTTI_FLOAT32, .op = TUTTI_SUM, .ranks = 3};
    float *in[3], *expected = table_create();
    int other = 0;
    (void)state;
    for (int rank = 0; rank < 3; rank++) {
        in[rank] = table_create();
        reference_input(&reference, rank, in[rank]);
    }
    reference_expected(&reference, expected);
    for (int i = 0; i < REFERENCE_PERIOD; i++) {
        assert_true(expected[i] == (in[0][i] + in[1][i]) + in[2][i]);
        other += expected[i] != in[0][i] + (in[1][i] + in[2][i]);
    }
    assert_true(other > REFERENCE_PERIOD / 100);
    for (int rank = 0; rank < 3; rank++)
        free(in[rank]);
    free(expected);
}

/* In whatever order a chain goes, and from whichever rank. */
static void chain_agrees(enum tutti_dtype dtype, tutti_op_t op, int ranks, int first, int step)
{
    struct reference reference = {
        .dtype = dtype, .op = op, .scalar = 0.5, .ranks = ranks, .seed = 7, .exact = true};
    const size_t bytes = tutti_dtype_size(dtype);
    char *inputs[TUTTI_MAX_RANKS], *expected = table_create(), chain[8];
    for (int rank = 0; rank < ranks; rank++)
        reference_input(&reference, rank, inputs[rank] = table_create());
    reference_expected(&reference, expected);
    for (size_t i = 0; i < REFERENCE_PERIOD; i++) {
        const void *in[TUTTI_MAX_RANKS];
        for (int k = 0; k < ranks; k++)
            in[k] = inputs[(first + k * step) % ranks] + i * bytes;
        reference_chain(chain, in, ranks, dtype, op, reference.scalar);
        if (memcmp(chain, expected + i * bytes, bytes) != 0)
            fail_msg("%s, operation %d, %d ranks from %d: element %zu differs",
                     tutti_dtype_name(dtype), (int)(uintptr_t)op, ranks, first, i);
    }
    for (int rank = 0; rank < ranks; rank++)
        free(inputs[rank]);
    free(expected);
}

static void exact_inputs_have_no_order(void **state)
{
    (void)state;
    for (int dtype = 0; dtype < TUTTI_DTYPE_COUNT; dtype++)
        for (int op = 1; op < REFERENCE_OPS; op++) {
            if (!reference_has((enum tutti_dtype)dtype, (tutti_op_t)(uintptr_t)op) ||
                !reference_has_order((enum tutti_dtype)dtype, (tutti_op_t)(uintptr_t)op))
                continue;
            for (int first = 0; first < 3; first++)
                chain_agrees((enum tutti_dtype)dtype, (tutti_op_t)(uintptr_t)op, 3, first, 1);
            chain_agrees((enum tutti_dtype)dtype, (tutti_op_t)(uintptr_t)op, 8, 5, 3);
            chain_agrees((enum tutti_dtype)dtype, (tutti_op_t)(uintptr_t)op, TUTTI_MAX_RANKS, 40,
                         63);
        }
}

/* They are not the same number again and again: of the sums of three no value has a third. */
static void exact_inputs_vary(void **state)
{
    struct reference reference = {
        .dtype = TUTTI_FLOAT32, .op = TUTTI_SUM, .ranks = 3, .exact = true};
    float *expected = table_create();
    int counts[43] = {0};
    (void)state;
    reference_expected(&reference, expected);
    for (int i = 0; i < REFERENCE_PERIOD; i++) {
        assert_true(expected[i] >= -21 && expected[i] <= 21 &&
                    expected[i] == (float)(int)expected[i]);
        counts[(int)expected[i] + 21]++;
    }
    for (int i = 0; i < 43; i++)
        assert_true(counts[i] < REFERENCE_PERIOD / 3);
    free(expected);
}

static void seeds_and_ranks_differ(void **state)
{
    struct reference reference = {.dtype = TUTTI_INT64, .op = TUTTI_SUM, .ranks = 2};
    void *a = table_create(), *b = table_create();
    (void)state;
    reference_input(&reference, 0, a);
    reference_input(&reference, 1, b);
    assert_true(reference_differences(a, REFERENCE_PERIOD, 8, b) > REFERENCE_PERIOD - 10);
    reference.seed = 1;
    reference_input(&reference, 0, b);
    assert_true(reference_differences(a, REFERENCE_PERIOD, 8, b) > REFERENCE_PERIOD - 10);
    free(a);
    free(b);
}

static void every_wrong_element_counts(void **state)
{
    enum { COUNT = 3 * REFERENCE_PERIOD + 17 };
    struct reference reference = {.dtype = TUTTI_FLOAT16, .op = TUTTI_SUM, .ranks = 2};
    uint16_t *table = table_create(), *buffer = malloc(COUNT * sizeof *buffer);
    (void)state;
    assert_non_null(buffer);
    reference_expected(&reference, table);
    reference_fill(buffer, COUNT, sizeof *buffer, table);
    assert_int_equal(reference_differences(buffer, COUNT, sizeof *buffer, table), 0);
    for (int i = 0; i < COUNT; i += 13) {
        buffer[i] ^= (uint16_t)(1 << i % 16);
        assert_int_equal(reference_differences(buffer, COUNT, sizeof *buffer, table), 1);
        buffer[i] ^= (uint16_t)(1 << i % 16);
    }
    buffer[0]++, buffer[REFERENCE_PERIOD]++, buffer[COUNT - 1]++;
    assert_int_equal(reference_differences(buffer, COUNT, sizeof *buffer, table), 3);
    assert_int_equal(reference_differences(buffer, COUNT - 1, sizeof *buffer, table), 2);
    assert_int_equal(reference_differences(buffer, 0, sizeof *buffer, table), 0);
    /* A chunk in the place of another one. */
    reference_fill(buffer, COUNT, sizeof *buffer, table);
    memmove(buffer + 4096, buffer, 4096 * sizeof *buffer);
    assert_true(reference_differences(buffer, COUNT, sizeof *buffer, table) > 4000);
    free(table);
    free(buffer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(order_shows),
        cmocka_unit_test(exact_inputs_have_no_order),
        cmocka_unit_test(exact_inputs_vary),
        cmocka_unit_test(seeds_and_ranks_differ),
        cmocka_unit_test(every_wrong_element_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
