/* SPDX-License-Identifier: MIT */
/* Sparse tensors: the checks of inputs. */
#include "base/dtype.h"
#include "base/error.h"
#include "pg/sparse.h"

#include <inttypes.h>

static int dims_of(const struct sparse_shape *shape)
{
    return shape->sparse_dim + shape->dense_dim;
}

/* [out] result: the product of `unit` and `count` sizes, none of which is negative; zero if a size
 * is zero. Return false if it exceeds `most`. */
static bool product(const int64_t *sizes, int count, uint64_t unit, uint64_t most, uint64_t *result)
{
    *result = 0;
    for (int dim = 0; dim < count; dim++)
        if (sizes[dim] == 0)
            return true;
    *result = unit;
    for (int dim = 0; dim < count; dim++)
        if (__builtin_mul_overflow(*result, (uint64_t)sizes[dim], result) || *result > most)
            return false;
    return true;
}

/* Return false if a row has too many bytes. */
static bool row_bytes(const struct sparse_shape *shape, uint64_t *bytes)
{
    const int64_t *sizes = shape->dense_dim ? shape->sizes + shape->sparse_dim : NULL;
    return product(sizes, shape->dense_dim, dtype_bytes(shape->dtype), SPARSE_MOST, bytes);
}

size_t sparse_row_bytes(const struct sparse_shape *shape)
{
    uint64_t bytes;
    row_bytes(shape, &bytes);
    return (size_t)bytes;
}

bool sparse_nnz_fits(const struct sparse_shape *shape, uint64_t nnz)
{
    const size_t bytes = (size_t)shape->sparse_dim * sizeof(int64_t) + sparse_row_bytes(shape);
    return nnz <= SPARSE_MOST / (bytes ? bytes : 1);
}

enum tutti_status sparse_shape_check(const struct sparse_shape *shape)
{
    const int sparse_dim = shape->sparse_dim, dense_dim = shape->dense_dim;
    uint64_t result;
    if (dtype_bytes(shape->dtype) == 0)
        return error_set(TUTTI_ERR_INVALID,
                         "a sparse tensor's dtype is %d, which does not exist: expected 0 to %d",
                         (int)shape->dtype, TUTTI_DTYPE_COUNT - 1);
    if (sparse_dim < 0 || dense_dim < 0 || sparse_dim > TUTTI_MAX_DIMS ||
        dense_dim > TUTTI_MAX_DIMS - sparse_dim)
        return error_set(TUTTI_ERR_INVALID,
                         "a sparse tensor has %d sparse and %d dense dimensions: expected 0 or "
                         "more of each, and no more than %d together",
                         sparse_dim, dense_dim, TUTTI_MAX_DIMS);
    if (!shape->sizes && dims_of(shape) > 0)
        return error_set(TUTTI_ERR_INVALID,
                         "the sizes of a sparse tensor of %d dimensions are NULL", dims_of(shape));
    for (int dim = 0; dim < dims_of(shape); dim++)
        if (shape->sizes[dim] < 0)
            return error_set(TUTTI_ERR_INVALID,
                             "the size of dimension %d of a sparse tensor is %" PRId64
                             ": expected 0 or more",
                             dim, shape->sizes[dim]);
    if (!product(shape->sizes, sparse_dim, 1, INT64_MAX, &result))
        return error_set(TUTTI_ERR_INVALID,
                         "the product of the %d sparse sizes of a sparse tensor is 2^63 or more",
                         sparse_dim);
    if (!row_bytes(shape, &result))
        return error_set(TUTTI_ERR_INVALID,
                         "a row of a sparse tensor, dimensions %d to %d of %s, has more bytes than "
                         "can be addressed",
                         sparse_dim, dims_of(shape) - 1, tutti_dtype_name(shape->dtype));
    return TUTTI_OK;
}

/* Whether all indices of one dimension are below `size`. A negative index, read as unsigned, is
 * very large. */
static bool within(const int64_t *indices, size_t nnz, int64_t size)
{
    bool outside = false;
    for (size_t i = 0; i < nnz; i++)
        outside |= (uint64_t)indices[i] >= (uint64_t)size;
    return !outside;
}

enum tutti_status sparse_entries_check(const struct sparse_shape *shape,
                                       const struct sparse_entries *entries)
{
    const size_t nnz = entries->nnz;
    if (!sparse_nnz_fits(shape, nnz))
        return error_set(TUTTI_ERR_INVALID,
                         "%zu entries of a sparse tensor, each with %d indices and a row of %zu "
                         "bytes, are more than can be addressed",
                         nnz, shape->sparse_dim, sparse_row_bytes(shape));
    if (nnz > 0 && shape->sparse_dim > 0 && !entries->indices)
        return error_set(TUTTI_ERR_INVALID,
                         "the indices of %zu entries of a sparse tensor are NULL", nnz);
    if (nnz > 0 && sparse_row_bytes(shape) > 0 && !entries->values)
        return error_set(TUTTI_ERR_INVALID, "the values of %zu entries of a sparse tensor are NULL",
                         nnz);
    return TUTTI_OK;
}

enum tutti_status sparse_check(const struct sparse_shape *shape,
                               const struct sparse_entries *entries)
{
    const size_t nnz = entries->nnz;
    enum tutti_status status = sparse_entries_check(shape, entries);
    for (int dim = 0; dim < shape->sparse_dim && status == TUTTI_OK; dim++) {
        const int64_t size = shape->sizes[dim];
        const int64_t *indices = nnz > 0 ? entries->indices + (size_t)dim * nnz : NULL;
        size_t i = 0;
        if (within(indices, nnz, size))
            continue;
        while (indices[i] >= 0 && indices[i] < size)
            i++;
        return error_set(TUTTI_ERR_INVALID,
                         "entry %zu of a sparse tensor has index %" PRId64
                         " in dimension %d, whose size is %" PRId64,
                         i, indices[i], dim, size);
    }
    return status;
}
