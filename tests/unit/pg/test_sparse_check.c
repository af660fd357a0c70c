/* SPDX-License-Identifier: MIT */
/* Sparse tensors that are refused, and the error texts. */
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
    static const int64_t rows[] = {INT64_C(1) << 16, INT64_C(1) << 47};
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
        {{TUTTI_INT8, TUTTI_MAX_DIMS - 1, 2, zero}, "no more than 16"},
        {{TUTTI_INT8, 1, 0, NULL}, "of 1 dimensions are NULL"},
        {{TUTTI_INT8, 2, 1, negative}, "dimension 2 of a sparse tensor is -4"},
        {{TUTTI_INT8, 1, 2, large}, "dimensions 1 to 2 of int8"},
        {{TUTTI_FLOAT32, 2, 1, large}, "dimensions 2 to 2 of float32"},
        {{TUTTI_INT8, 1, 1, rows}, "dimensions 1 to 1 of int8"},
        {{TUTTI_INT8, 2, 1, large}, "dimensions 2 to 2 of int8"},
        {{TUTTI_FLOAT64, 3, 0, large}, "product of the 3 sparse sizes"},
        {{TUTTI_FLOAT64, 2, 0, rows}, "product of the 2 sparse sizes"},
        {{TUTTI_FLOAT64, 2, 0, large}, NULL},
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
    static const int64_t sizes[] = {4, 3, 2}, huge[] = {4, INT64_C(1) << 40}, empty[] = {4, 0};
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
         "entry 1 of a sparse tensor has index -2 in dimension 1, whose size is 3"},
        {{TUTTI_FLOAT32, 2, 1, sizes},
         {over, values, 2},
         "entry 1 of a sparse tensor has index 4 in dimension 0, whose size is 4"},
        {{TUTTI_FLOAT32, 2, 1, sizes},
         {NULL, values, 2},
         "indices of 2 entries of a sparse tensor are NULL"},
        {{TUTTI_FLOAT32, 2, 1, sizes},
         {fine, NULL, 2},
         "values of 2 entries of a sparse tensor are NULL"},
        {{TUTTI_FLOAT32, 2, 0, empty},
         {fine, values, 2},
         "entry 0 of a sparse tensor has index 0 in dimension 1, whose size is 0"},
        {{TUTTI_FLOAT32, 1, 1, huge},
         {fine, values, 64},
         "a row of 4398046511104 bytes, are more than"},
        {{TUTTI_FLOAT32, 2, 1, sizes}, {fine, values, SIZE_MAX}, "each with 2 indices"},
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes_are_checked),
        cmocka_unit_test(entries_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
