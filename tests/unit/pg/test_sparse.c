/* SPDX-License-Identifier: MIT */
/*
 * Sums of sparse tensors against a scalar reference, bit for bit: random shapes of every dtype,
 * with repetitions, empty ones, sizes of zero, index spaces of 63 bits; what is recognised; signs
 * of zero.
 */
#include "base/rank_set.h"
#include "pg/sparse.h"
#include "reference.h"
#include "sparse_reference.h"

#include <fenv.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { DIMS = 8, ROW = 1200, INPUTS = WORLD_RANKS };

static struct sparse_worker worker;

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

/* ---- tensors --------------------------------------------------------------------------------- */

struct tensor {
    struct sparse_entries entries;
    int64_t *indices; /* exact, so that a read past the end is seen by the sanitizers */
    unsigned char *values;
};

static void *allocated(size_t size)
{
    void *bytes = malloc(size ? size : 1);
    assert_non_null(bytes);
    return bytes;
}

static struct tensor tensor_make(const struct sparse_shape *shape, size_t nnz)
{
    struct tensor t;
    t.indices = allocated(nnz * (size_t)shape->sparse_dim * sizeof(int64_t));
    t.values = allocated(nnz * sparse_row_bytes(shape));
    t.entries = (struct sparse_entries){t.indices, t.values, nnz};
    return t;
}

static void tensor_free(struct tensor *tensors, int count)
{
    for (int i = 0; i < count; i++) {
        free(tensors[i].indices);
        free(tensors[i].values);
    }
}

/* Any bits, but often such that sums are not all of the largest term. */
static void element_fill(unsigned char *to, enum tutti_dtype dtype)
{
    static const float special[] = {0.0f, -0.0f, INFINITY, -INFINITY, NAN, 1e-40f, 0x1p127f};
    if (reference_component(dtype) != dtype) {
        dtype = reference_component(dtype);
        element_fill(to, dtype);
        to += tutti_dtype_size(dtype);
    }
    uint64_t bits = random_next() << 32 ^ random_next();
    const bool any = random_below(4) == 0;
    float single = (float)((double)(random_next() % 20001) / 1000 - 10);
    if (random_below(8) == 0)
        single = special[random_below((int)(sizeof special / sizeof *special))];
    const double real = single;
    if (dtype == TUTTI_FLOAT32 && !any)
        memcpy(&bits, &single, sizeof single);
    else if (dtype == TUTTI_FLOAT64 && !any)
        memcpy(&bits, &real, sizeof real);
    else if (dtype <= TUTTI_FLOAT8_E5M2 && dtype >= TUTTI_FLOAT16 && !any)
        bits = reference_encode(dtype, real);
    else if (dtype == TUTTI_BOOL && !any)
        bits &= 1;
    memcpy(to, &bits, tutti_dtype_size(dtype));
}

/* Indices below `spread` of each end of each dimension. */
static struct tensor tensor_random(const struct sparse_shape *shape, size_t nnz, int64_t spread)
{
    struct tensor t = tensor_make(shape, nnz);
    const size_t size = tutti_dtype_size(shape->dtype);
    for (size_t i = 0; i < nnz * (size_t)shape->sparse_dim; i++) {
        const int64_t most = shape->sizes[i / nnz];
        const int64_t at = (int64_t)(random_next() % (uint64_t)(most < spread ? most : spread));
        t.indices[i] = random_below(2) ? at : most - 1 - at;
    }
    for (size_t at = 0; at < nnz * sparse_row_bytes(shape); at += size)
        element_fill(t.values + at, shape->dtype);
    return t;
}

/* 0 to 6 sparse and 0 to 2 dense dimensions, now and then a size of zero. */
static struct sparse_shape shape_random(enum tutti_dtype dtype, int64_t *sizes)
{
    struct sparse_shape shape = {dtype, random_below(7), random_below(3), sizes};
    for (int dim = 0; dim < DIMS; dim++)
        sizes[dim] = random_below(40) == 0 ? 0 : 1 + random_below(dim < shape.sparse_dim ? 4 : 9);
    return shape;
}

static size_t nnz_random(const struct sparse_shape *shape, int most)
{
    for (int dim = 0; dim < shape->sparse_dim; dim++)
        if (shape->sizes[dim] == 0)
            return 0;
    return random_below(6) == 0 ? (size_t)random_below(2) : (size_t)random_below(most);
}

/* ---- the reference --------------------------------------------------------------------------- */

static void assert_same(const struct sparse_shape *shape, const struct sparse_reference *expected,
                        const struct sparse_entries *result)
{
    const size_t bytes = sparse_row_bytes(shape);
    assert_int_equal(result->nnz, expected->entries.nnz);
    if (result->nnz == 0)
        return;
    if (shape->sparse_dim > 0)
        assert_memory_equal(result->indices, expected->entries.indices,
                            result->nnz * (size_t)shape->sparse_dim * sizeof *result->indices);
    for (size_t at = 0; bytes > 0 && at < result->nnz; at++)
        if (memcmp((const unsigned char *)result->values + at * bytes,
                   (const unsigned char *)expected->entries.values + at * bytes, bytes) != 0)
            fail_msg("%s: entry %zu of %zu differs", tutti_dtype_name(shape->dtype), at,
                     result->nnz);
}

/* ---- sums ------------------------------------------------------------------------------------ */

static void check_coalesce(const struct sparse_shape *shape, const struct sparse_entries *inputs,
                           int count, struct sparse_result *result)
{
    assert_int_equal(sparse_shape_check(shape), TUTTI_OK);
    for (int i = 0; i < count; i++)
        assert_int_equal(sparse_check(shape, &inputs[i]), TUTTI_OK);
    assert_int_equal(sparse_coalesce(&worker, shape, inputs, count, result), TUTTI_OK);
    assert_true(sparse_is_coalesced(shape, &result->entries));
    struct sparse_reference expected = sparse_reference_coalesce(shape, inputs, count);
    assert_same(shape, &expected, &result->entries);
    sparse_reference_free(&expected);
}

/* Coalesces each of n tensors, then unites them. */
static void check_union(const struct sparse_shape *shape, const struct tensor *tensors, int n,
                        struct sparse_result *result)
{
    static struct sparse_result parts[INPUTS];
    struct sparse_entries entries[INPUTS] = {{0}};
    for (int i = 0; i < n; i++) {
        check_coalesce(shape, &tensors[i].entries, 1, &parts[i]);
        entries[i] = parts[i].entries;
    }
    assert_int_equal(sparse_union(&worker, shape, entries, n, result), TUTTI_OK);
    assert_true(sparse_is_coalesced(shape, &result->entries));
    struct sparse_reference expected = sparse_reference_unite(shape, entries, n);
    assert_same(shape, &expected, &result->entries);
    sparse_reference_free(&expected);
    for (int i = 0; i < INPUTS; i++) {
        sparse_memory_fini(&parts[i].memory);
        parts[i] = (struct sparse_result){0};
    }
}

/* Coalesces all of the tensors as one rank's inputs; unites them as that many ranks'. */
static void check_both(const struct sparse_shape *shape, const struct tensor *tensors, int n)
{
    static struct sparse_result result; /* used again and again */
    struct sparse_entries entries[INPUTS] = {{0}};
    for (int i = 0; i < n; i++)
        entries[i] = tensors[i].entries;
    check_coalesce(shape, entries, n, &result);
    check_union(shape, tensors, n, &result);
}

static void random_shapes(void **state)
{
    (void)state;
    for (int dtype = 0; dtype < TUTTI_DTYPE_COUNT; dtype++)
        for (int round = 0; round < 60; round++) {
            int64_t sizes[DIMS];
            struct tensor tensors[INPUTS];
            const struct sparse_shape shape = shape_random((enum tutti_dtype)dtype, sizes);
            const int n = round % 6 == 5 ? 1 + random_below(INPUTS) : 1 + random_below(9);
            for (int i = 0; i < n; i++)
                tensors[i] = tensor_random(&shape, nnz_random(&shape, 60), INT64_MAX);
            check_both(&shape, tensors, n);
            tensor_free(tensors, n);
        }
}

/* Chains longer than a block of accumulators and trees of every set of leaves. */
static void long_rows_and_all_sets(void **state)
{
    (void)state;
    for (int dtype = 0; dtype < TUTTI_DTYPE_COUNT; dtype++) {
        const int64_t sizes[] = {3, 1100};
        const struct sparse_shape shape = {(enum tutti_dtype)dtype, 1, 1, sizes};
        struct tensor tensors[] = {tensor_random(&shape, 9, 3), tensor_random(&shape, 11, 3)};
        check_both(&shape, tensors, 2);
        tensor_free(tensors, 2);
    }
    for (int n = 1; n <= 11; n++) {
        const int64_t sizes[] = {1 << n, 3};
        const struct sparse_shape shape = {n % 2 ? TUTTI_FLOAT32 : TUTTI_FLOAT16, 1, 1, sizes};
        struct tensor tensors[INPUTS];
        for (int i = 0; i < n; i++) {
            size_t at = 0;
            tensors[i] = tensor_random(&shape, (size_t)1 << (n - 1), 1);
            for (int64_t set = 0; set < sizes[0]; set++)
                if (set >> i & 1)
                    tensors[i].indices[at++] = set;
        }
        check_both(&shape, tensors, n);
        tensor_free(tensors, n);
    }
}

/* More leaves than a reduction takes, in rows longer than a block; all have the first index. */
static void many_leaves(void **state)
{
    static const int leaves[] = {NODE_RANKS + 1, 2 * NODE_RANKS, 2 * NODE_RANKS + 1, WORLD_RANKS};
    static const enum tutti_dtype dtypes[] = {TUTTI_FLOAT32, TUTTI_FLOAT16, TUTTI_INT8};
    (void)state;
    for (size_t i = 0; i < sizeof leaves / sizeof *leaves; i++)
        for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++) {
            const int64_t sizes[] = {4, 1100};
            const struct sparse_shape shape = {dtypes[d], 1, 1, sizes};
            struct tensor tensors[INPUTS];
            for (int leaf = 0; leaf < leaves[i]; leaf++) {
                tensors[leaf] = tensor_random(&shape, 2, 4);
                tensors[leaf].indices[0] = 0;
            }
            check_both(&shape, tensors, leaves[i]);
            tensor_free(tensors, leaves[i]);
        }
}

/* Products of sizes just below 2^63, with a size of zero among them, too. */
static void huge_index_spaces(void **state)
{
    static const int64_t spaces[][6] = {
        {INT64_MAX, 1, 1, 1, 1, 1},
        {1, 1, INT64_MAX, 1, 1, 1},
        {3, INT64_MAX / 3, 1, 1, 1, 1},
        {INT64_C(1) << 31, 2, (INT64_C(1) << 31) - 1, 1, 1, 1},
        {2097151, 7, 1 << 20, 1, 1 << 19, 1},
        {INT64_MAX, INT64_MAX, 0, INT64_MAX, INT64_MAX, INT64_MAX},
    };
    (void)state;
    for (size_t space = 0; space < sizeof spaces / sizeof *spaces; space++)
        for (int round = 0; round < 8; round++) {
            const struct sparse_shape shape = {TUTTI_FLOAT32, 6, 0, spaces[space]};
            const int n = 1 + random_below(5);
            struct tensor tensors[INPUTS];
            for (int i = 0; i < n; i++)
                tensors[i] = tensor_random(&shape, nnz_random(&shape, round ? 300 : 20),
                                           round % 2 ? 2 : 1 + random_below(1000));
            check_both(&shape, tensors, n);
            tensor_free(tensors, n);
        }
}

/* Several digits of the radix, of every width. */
static void many_entries(void **state)
{
    static const int64_t most[] = {2, 2047, 2048, 2049, 1 << 20, INT64_C(1) << 33, INT64_MAX};
    (void)state;
    for (size_t i = 0; i < sizeof most / sizeof *most; i++) {
        const struct sparse_shape shape = {TUTTI_BFLOAT16, 1, 0, &most[i]};
        struct tensor tensors[3];
        for (int k = 0; k < 3; k++)
            tensors[k] = tensor_random(&shape, 6000, k ? INT64_MAX : 500);
        check_both(&shape, tensors, 3);
        tensor_free(tensors, 3);
    }
}

static void edges(void **state)
{
    static const int64_t none[] = {0, 0, 0}, mixed[] = {4, 0, INT64_MAX}, one[] = {1, 1, 1};
    static const struct {
        struct sparse_shape shape;
        size_t nnz;
    } cases[] = {
        {{TUTTI_FLOAT32, 0, 0, NULL}, 0},  {{TUTTI_FLOAT32, 0, 0, NULL}, 1},
        {{TUTTI_FLOAT32, 0, 0, NULL}, 50}, {{TUTTI_INT8, 3, 0, one}, 1},
        {{TUTTI_INT8, 3, 0, one}, 77},     {{TUTTI_FLOAT64, 1, 2, none}, 0},
        {{TUTTI_FLOAT64, 0, 3, none}, 3},  {{TUTTI_FLOAT16, 1, 2, mixed}, 0},
        {{TUTTI_FLOAT16, 1, 2, mixed}, 9}, {{TUTTI_BOOL, 0, 1, one}, 5},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tensor tensors[4];
        for (int k = 0; k < 4; k++)
            tensors[k] = tensor_random(&cases[i].shape, k == 2 ? 0 : cases[i].nnz, INT64_MAX);
        for (int n = 1; n <= 4; n++)
            check_both(&cases[i].shape, tensors, n);
        tensor_free(tensors, 4);
    }
}

/* NULL is fine where there is nothing to point at. */
static void null_pointers(void **state)
{
    const int64_t sizes[] = {3, 0};
    const int64_t index = 2;
    const struct sparse_shape shape = {TUTTI_FLOAT32, 1, 1, sizes};
    const struct sparse_entries inputs[] = {{NULL, NULL, 0}, {&index, NULL, 1}};
    struct sparse_result result = {0};
    (void)state;
    check_coalesce(&shape, inputs, 2, &result);
    assert_int_equal(sparse_union(&worker, &shape, inputs, 2, &result), TUTTI_OK);
    assert_int_equal(result.entries.nnz, 1);
    assert_int_equal(result.entries.indices[0], 2);
    assert_int_equal(sparse_union(&worker, &shape, inputs, 1, &result), TUTTI_OK);
    assert_int_equal(result.entries.nnz, 0);
    sparse_memory_fini(&result.memory);
    assert_null(result.memory.bytes);
}

/* ---- what is copied, and what becomes of single values --------------------------------------- */

static void coalesced_input_is_not_copied(void **state)
{
    const int64_t sizes[] = {4, 9};
    const int64_t ascending[] = {0, 1, 1, 3, 8, 2, 3, 0}, equal[] = {0, 1, 1, 3, 8, 2, 2, 0};
    const float values[] = {-0.0f, NAN, 1, 2};
    const struct sparse_shape shape = {TUTTI_FLOAT32, 2, 0, sizes};
    const struct sparse_entries input = {ascending, values, 4}, twice = {equal, values, 4};
    struct sparse_result result = {0}, again = {0};
    (void)state;
    assert_true(sparse_is_coalesced(&shape, &input));
    check_coalesce(&shape, &input, 1, &result);
    assert_ptr_equal(result.entries.indices, ascending);
    assert_ptr_equal(result.entries.values, values);
    assert_null(result.memory.bytes);
    assert_false(sparse_is_coalesced(&shape, &twice));
    check_coalesce(&shape, &twice, 1, &result);
    assert_int_equal(result.entries.nnz, 3);
    assert_non_null(result.memory.bytes);
    check_coalesce(&shape, &result.entries, 1, &again);
    assert_ptr_equal(again.entries.values, result.entries.values);
    sparse_memory_fini(&result.memory);
}

/* An e5m2 infinity and a bool of 2 pass a coalescing as they are, and no union. */
static void alone_a_row_stays_until_the_union(void **state)
{
    static const struct {
        enum tutti_dtype dtype;
        uint8_t value, stored;
    } cases[] = {
        {TUTTI_FLOAT8_E5M2, 0x7c, 0x7b}, {TUTTI_FLOAT8_E4M3, 0xff, 0x7f}, {TUTTI_BOOL, 2, 1}};
    const int64_t size = 5, indices[] = {3, 1};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct sparse_shape shape = {cases[i].dtype, 1, 0, &size};
        const uint8_t values[] = {cases[i].value, 1};
        const struct sparse_entries input = {indices, values, 2};
        struct sparse_result part = {0}, result = {0};
        check_coalesce(&shape, &input, 1, &part);
        assert_int_equal(((const uint8_t *)part.entries.values)[1], cases[i].value);
        assert_int_equal(sparse_union(&worker, &shape, &part.entries, 1, &result), TUTTI_OK);
        assert_int_equal(((const uint8_t *)result.entries.values)[1], cases[i].stored);
        sparse_memory_fini(&part.memory);
        sparse_memory_fini(&result.memory);
    }
}

/* Of n ranks, those of a set have a zero, negative where `negative` says. */
static void check_zero(int n, unsigned set, unsigned negative)
{
    const int64_t size = 1, index = 0;
    const struct sparse_shape shape = {TUTTI_FLOAT32, 1, 0, &size};
    float zeros[INPUTS];
    struct sparse_entries parts[INPUTS];
    struct sparse_result result = {0};
    for (int i = 0; i < n; i++) {
        zeros[i] = negative >> i & 1 ? -0.0f : 0.0f;
        parts[i] = (struct sparse_entries){&index, &zeros[i], set >> i & 1};
    }
    assert_int_equal(sparse_union(&worker, &shape, parts, n, &result), TUTTI_OK);
    assert_int_equal(result.entries.nnz, 1);
    const float sum = *(const float *)result.entries.values;
    assert_true(sum == 0);
    assert_int_equal(signbit(sum) != 0, (set & ~negative) == 0);
    sparse_memory_fini(&result.memory);
}

/* Who is absent never changes the sign of a zero: it is -0 if all that are present have -0. */
static void absent_ranks_keep_the_sign_of_zero(void **state)
{
    (void)state;
    for (int n = 1; n <= 7; n++)
        for (unsigned set = 1; set < 1u << n; set++)
            for (unsigned negative = 0; negative < 1u << n; negative++)
                check_zero(n, set, negative);
}

static void rounding_of_the_caller_does_not_matter(void **state)
{
    static const int roundings[] = {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
    const int64_t sizes[] = {9, 5};
    (void)state;
    for (int dtype = TUTTI_FLOAT32; dtype <= TUTTI_FLOAT8_E5M2; dtype++) {
        const struct sparse_shape shape = {(enum tutti_dtype)dtype, 1, 1, sizes};
        struct tensor t = tensor_random(&shape, 50, 9);
        struct sparse_result expected = {0}, sum = {0};
        check_coalesce(&shape, &t.entries, 1, &expected);
        for (size_t i = 0; i < sizeof roundings / sizeof *roundings; i++) {
            fesetround(roundings[i]);
            enum tutti_status status = sparse_coalesce(&worker, &shape, &t.entries, 1, &sum);
            const int kept = fegetround();
            fesetround(FE_TONEAREST);
            assert_int_equal(status, TUTTI_OK);
            assert_int_equal(kept, roundings[i]);
            assert_memory_equal(sum.entries.values, expected.entries.values,
                                sum.entries.nnz * sparse_row_bytes(&shape));
        }
        sparse_memory_fini(&expected.memory);
        sparse_memory_fini(&sum.memory);
        tensor_free(&t, 1);
    }
}

/* Unsorted, repeated and outside: wrong, but within the memory. */
static void union_survives_what_peers_send(void **state)
{
    static const int64_t spaces[][3] = {{7, 7, 3}, {2, INT64_MAX / 2, 3}};
    (void)state;
    for (int round = 0; round < 200; round++) {
        const struct sparse_shape shape = {TUTTI_INT32, 2, 1, spaces[round % 2]};
        struct tensor tensors[4];
        struct sparse_entries parts[4];
        struct sparse_result result = {0};
        for (int i = 0; i < 4; i++) {
            tensors[i] = tensor_random(&shape, (size_t)random_below(100), 7);
            for (size_t k = 0; k < 2 * tensors[i].entries.nnz; k++)
                if (random_below(3) == 0)
                    tensors[i].indices[k] = (int64_t)(random_next() << 20 ^ random_next());
            parts[i] = tensors[i].entries;
        }
        assert_int_equal(sparse_union(&worker, &shape, parts, 4, &result), TUTTI_OK);
        assert_true(result.entries.nnz <= 400);
        sparse_memory_fini(&result.memory);
        tensor_free(tensors, 4);
    }
}

/* The largest number of entries without bytes: no memory has room for the sort. */
static void sums_without_memory(void **state)
{
    const int64_t zero = 0;
    const struct sparse_shape shape = {TUTTI_FLOAT32, 0, 1, &zero};
    const struct sparse_entries inputs[] = {{NULL, NULL, SPARSE_MOST}, {NULL, NULL, 2}};
    struct sparse_result result = {0};
    (void)state;
    assert_int_equal(sparse_check(&shape, &inputs[0]), TUTTI_OK);
    assert_int_equal(sparse_coalesce(&worker, &shape, inputs, 2, &result), TUTTI_ERR_NO_MEMORY);
    assert_int_equal(sparse_union(&worker, &shape, inputs, 2, &result), TUTTI_ERR_NO_MEMORY);
    assert_null(result.memory.bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_shapes),
        cmocka_unit_test(long_rows_and_all_sets),
        cmocka_unit_test(many_leaves),
        cmocka_unit_test(huge_index_spaces),
        cmocka_unit_test(many_entries),
        cmocka_unit_test(edges),
        cmocka_unit_test(null_pointers),
        cmocka_unit_test(coalesced_input_is_not_copied),
        cmocka_unit_test(alone_a_row_stays_until_the_union),
        cmocka_unit_test(absent_ranks_keep_the_sign_of_zero),
        cmocka_unit_test(rounding_of_the_caller_does_not_matter),
        cmocka_unit_test(union_survives_what_peers_send),
        cmocka_unit_test(sums_without_memory),
    };
    worker.isa = reduce_isa_best();
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    sparse_memory_fini(&worker.scratch);
    return failed;
}
