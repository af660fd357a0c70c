/* SPDX-License-Identifier: MIT */
/* Sparse tensors that are refused, and what is said of them; their metadata, whole, spoilt field by
 * field, cut short, compared. */
#include "pg/sparse.h"

#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- what is refused ------------------------------------------------------------------------- */

static void said(const char *text)
{
    if (!strstr(tutti_last_error(), text))
        fail_msg("\"%s\" does not say \"%s\"", tutti_last_error(), text);
}

static void shapes_are_checked(void **state)
{
    static const int64_t negative[] = {2, 3, -4}, large[] = {1, INT64_MAX, INT64_MAX};
    static const int64_t zero[] = {INT64_MAX, INT64_MAX, 0};
    static const struct {
        struct sparse_shape shape;
        const char *says;
    } cases[] = {
        {{(enum tutti_dtype)99, 1, 0, zero}, "dtype is 99"},
        {{(enum tutti_dtype) - 1, 1, 0, zero}, "dtype is -1"},
        {{TUTTI_INT8, -1, 0, zero}, "-1 sparse and 0 dense"},
        {{TUTTI_INT8, 1, -2, zero}, "1 sparse and -2 dense"},
        {{TUTTI_INT8, INT_MAX, INT_MAX, zero}, "no more than"},
        {{TUTTI_INT8, INT_MAX / 8 - 5, INT_MAX / 8, zero}, "no more than"},
        {{TUTTI_INT8, 1, 0, NULL}, "of 1 dimensions are NULL"},
        {{TUTTI_INT8, 2, 1, negative}, "dimension 2 of a sparse tensor is -4"},
        {{TUTTI_INT8, 1, 2, large}, "dimensions 1 to 2 of int8"},
        {{TUTTI_FLOAT32, 2, 1, large}, "dimensions 2 to 2 of float32"},
        {{TUTTI_INT8, 2, 1, large}, NULL},
        {{TUTTI_FLOAT64, 3, 0, large}, NULL},
        {{TUTTI_FLOAT64, 0, 3, zero}, NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const enum tutti_status status = sparse_shape_check(&cases[i].shape);
        assert_int_equal(status, cases[i].says ? TUTTI_ERR_INVALID : TUTTI_OK);
        if (cases[i].says)
            said(cases[i].says);
    }
}

static void entries_are_checked(void **state)
{
    static const int64_t sizes[] = {4, 3, 2}, huge[] = {4, INT64_MAX / 64}, empty[] = {4, 0};
    static const int64_t fine[] = {3, 0, 0, 2}, negative[] = {3, 0, 0, -2}, over[] = {3, 4, 0, 1};
    static const float values[4];
    static const struct {
        struct sparse_shape shape;
        struct sparse_entries entries;
        const char *says;
    } cases[] = {
        {{TUTTI_FLOAT32, 2, 1, sizes}, {fine, values, 2}, NULL},
        {{TUTTI_FLOAT32, 2, 1, sizes}, {NULL, NULL, 0}, NULL},
        {{TUTTI_FLOAT32, 2, 1, sizes},
         {negative, values, 2},
         "entry 1 of a sparse tensor has index -2 in dimension 1: expected 0 to 2"},
        {{TUTTI_FLOAT32, 2, 1, sizes},
         {over, values, 2},
         "entry 1 of a sparse tensor has index 4 in dimension 0: expected 0 to 3"},
        {{TUTTI_FLOAT32, 2, 1, sizes},
         {NULL, values, 2},
         "indices of 2 entries of a sparse tensor are NULL"},
        {{TUTTI_FLOAT32, 2, 1, sizes},
         {fine, NULL, 2},
         "values of 2 entries of a sparse tensor are NULL"},
        {{TUTTI_FLOAT32, 2, 0, empty},
         {fine, values, 2},
         "dimension 1 of a sparse tensor has size 0"},
        {{TUTTI_FLOAT32, 1, 1, huge}, {fine, values, 64}, "more bytes of values"},
        {{TUTTI_FLOAT32, 2, 1, sizes}, {fine, values, SIZE_MAX}, "more bytes of indices (2"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(sparse_shape_check(&cases[i].shape), TUTTI_OK);
        const enum tutti_status status = sparse_check(&cases[i].shape, &cases[i].entries);
        assert_int_equal(status, cases[i].says ? TUTTI_ERR_INVALID : TUTTI_OK);
        if (cases[i].says)
            said(cases[i].says);
    }
}

/* ---- metadata -------------------------------------------------------------------------------- */

enum { SIZES = 3, BLOCK = (int)sizeof(struct sparse_meta) + SIZES * 8 };
#define SIZE(dim) (sizeof(struct sparse_meta) + 8 * (dim))

union block {
    struct sparse_meta meta;
    int64_t words[BLOCK / 8 + 1];
};

static void metadata_comes_back(void **state)
{
    static const int64_t sizes[] = {4, INT64_MAX, 1, 0, 7, 2};
    (void)state;
    for (int dtype = 0; dtype < TUTTI_DTYPE_COUNT; dtype++)
        for (int dims = 0; dims <= 6 * 6; dims++) {
            const struct sparse_shape shape = {(enum tutti_dtype)dtype, dims / 6, dims % 6,
                                               dims ? sizes : NULL};
            if (shape.sparse_dim + shape.dense_dim > 6 || sparse_shape_check(&shape) != TUTTI_OK)
                continue;
            const size_t bytes = sparse_meta_bytes(&shape), nnz = shape.sparse_dim < 4;
            struct sparse_meta *block = malloc(bytes);
            struct sparse_shape got;
            size_t got_nnz;
            assert_non_null(block);
            sparse_meta_encode(&shape, nnz, block);
            assert_int_equal(block->bytes, bytes);
            assert_int_equal(sparse_meta_decode(block, bytes, 1, &got, &got_nnz), TUTTI_OK);
            assert_int_equal(got_nnz, nnz);
            assert_int_equal(sparse_meta_compare(&shape, 0, &got, 1), TUTTI_OK);
            free(block);
        }
}

/* A word of 32 bits in the header, or a size, and what is said where it holds that. */
static const struct spoiler {
    size_t offset;
    int64_t value;
    const char *says;
} spoilers[] = {
#define FIELD(name) offsetof(struct sparse_meta, name)
    {FIELD(magic), 0, "its magic is 0"},
    {FIELD(bytes), 55, "it has 55 bytes, but 56 came"},
    {FIELD(bytes), 64, "it has 64 bytes, but 56 came"},
    {FIELD(dtype), TUTTI_DTYPE_COUNT, "its dtype is 14"},
    {FIELD(dtype), UINT32_MAX, "its dtype is 4294967295"},
    {FIELD(sparse_dim), 3, "3 sparse and 1 dense"},
    {FIELD(sparse_dim), UINT32_MAX, "4294967295 sparse and 1 dense"},
    {FIELD(dense_dim), 2, "2 sparse and 2 dense"},
    {FIELD(reserved), 1, "reserved field is 1"},
    {FIELD(nnz), 7, "7 entries, but its sparse sizes leave room for 6"},
    {FIELD(nnz), -1, "more bytes of indices"},
    {SIZE(0), -1, "size of dimension 0 of a sparse tensor is -1"},
    {SIZE(0), 0, "6 entries, but its sparse sizes leave room for 0"},
    {SIZE(2), INT64_MIN, "size of dimension 2 of a sparse tensor is -9"},
    {SIZE(2), INT64_MAX, "dimensions 2 to 2 of float32"},
    {SIZE(2), INT64_MAX / 16, "more bytes of values"},
#undef FIELD
};

static void spoil(void *block, const struct spoiler *spoiler)
{
    /* Both supported architectures are little-endian. */
    memcpy((unsigned char *)block + spoiler->offset, &spoiler->value,
           spoiler->offset < offsetof(struct sparse_meta, nnz) ? 4 : 8);
}

static void metadata_is_not_trusted(void **state)
{
    static const int64_t sizes[] = {2, 3, 5};
    static const struct sparse_shape shape = {TUTTI_FLOAT32, 2, 1, sizes};
    struct sparse_shape got;
    union block block;
    size_t nnz;
    (void)state;
    assert_int_equal(sparse_meta_bytes(&shape), BLOCK);
    sparse_meta_encode(&shape, 6, &block);
    assert_int_equal(sparse_meta_decode(&block, BLOCK, 4, &got, &nnz), TUTTI_OK);
    for (size_t i = 0; i < sizeof spoilers / sizeof *spoilers; i++) {
        sparse_meta_encode(&shape, 6, &block);
        spoil(&block, &spoilers[i]);
        assert_int_equal(sparse_meta_decode(&block, BLOCK, 4, &got, &nnz), TUTTI_ERR_MISMATCH);
        said(spoilers[i].says);
        said("rank 4");
    }
}

/* Cut short or longer by less than a size, with and without saying so. */
static void metadata_of_other_lengths(void **state)
{
    static const int64_t sizes[] = {2, 3, 5};
    static const struct sparse_shape shape = {TUTTI_FLOAT32, 2, 1, sizes};
    struct sparse_shape got;
    size_t nnz;
    (void)state;
    for (size_t bytes = 0; bytes < BLOCK + 8; bytes++) {
        if (bytes == BLOCK)
            continue;
        for (int says = 0; says < 2; says++) {
            union block block = {.words = {0}};
            void *other = malloc(bytes ? bytes : 1); /* exact, for the sanitizers */
            assert_non_null(other);
            sparse_meta_encode(&shape, 6, &block);
            if (says)
                block.meta.bytes = (uint32_t)bytes;
            memcpy(other, &block, bytes);
            assert_int_equal(sparse_meta_decode(other, bytes, 4, &got, &nnz), TUTTI_ERR_MISMATCH);
            said("rank 4");
            free(other);
        }
    }
}

static void differences_are_named(void **state)
{
    static const int64_t sizes[] = {2, 3, 5}, other[] = {2, 3, 6}, first[] = {9, 3, 5};
    static const struct sparse_shape shape = {TUTTI_FLOAT32, 2, 1, sizes};
    static const struct {
        struct sparse_shape shape;
        const char *says;
    } cases[] = {
        {{TUTTI_FLOAT16, 2, 1, sizes}, "dtype: rank 3 has float32, rank 5 has float16"},
        {{TUTTI_FLOAT32, 1, 2, sizes},
         "rank 3 has 2 sparse and 1 dense, rank 5 has 1 sparse and 2"},
        {{TUTTI_FLOAT32, 2, 0, sizes},
         "rank 3 has 2 sparse and 1 dense, rank 5 has 2 sparse and 0"},
        {{TUTTI_FLOAT32, 2, 1, other}, "dimension 2 (dense): rank 3 has 5, rank 5 has 6"},
        {{TUTTI_FLOAT32, 2, 1, first}, "dimension 0 (sparse): rank 3 has 2, rank 5 has 9"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(sparse_meta_compare(&shape, 3, &cases[i].shape, 5), TUTTI_ERR_MISMATCH);
        said(cases[i].says);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes_are_checked),        cmocka_unit_test(entries_are_checked),
        cmocka_unit_test(metadata_comes_back),       cmocka_unit_test(metadata_is_not_trusted),
        cmocka_unit_test(metadata_of_other_lengths), cmocka_unit_test(differences_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
