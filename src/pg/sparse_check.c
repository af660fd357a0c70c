/* SPDX-License-Identifier: MIT */
/* Sparse tensors: the checks of inputs, and the metadata that ranks exchange to find out whether
 * they agree. */
#include "base/dtype.h"
#include "base/error.h"
#include "pg/sparse.h"

#include <inttypes.h>
#include <string.h>

enum {
    MAGIC = 0x50535454, /* "TTSP" */
    DIMS_MOST = (INT32_MAX - (int)sizeof(struct sparse_meta)) / (int)sizeof(int64_t),
};

_Static_assert(sizeof(struct sparse_meta) == 32 && offsetof(struct sparse_meta, nnz) == 24,
               "docs/layout.md says so");

static int dims_of(const struct sparse_shape *shape)
{
    return shape->sparse_dim + shape->dense_dim;
}

/* [out] result: the product of `unit` and the sizes from `first` to `end` - 1, none of which is
 * negative. Return false if it overflows. If a size is zero the result is zero, whatever the others
 * are. */
static bool product(const struct sparse_shape *shape, int first, int end, uint64_t unit,
                    uint64_t *result)
{
    *result = 0;
    for (int dim = first; dim < end; dim++)
        if (shape->sizes[dim] == 0)
            return true;
    *result = unit;
    for (int dim = first; dim < end; dim++)
        if (__builtin_mul_overflow(*result, (uint64_t)shape->sizes[dim], result))
            return false;
    return true;
}

/* ---- shape and entries ----------------------------------------------------------------------- */

size_t sparse_row_bytes(const struct sparse_shape *shape)
{
    uint64_t bytes;
    product(shape, shape->sparse_dim, dims_of(shape), dtype_bytes(shape->dtype), &bytes);
    return (size_t)bytes;
}

enum tutti_status sparse_shape_check(const struct sparse_shape *shape)
{
    uint64_t bytes;
    if (dtype_bytes(shape->dtype) == 0)
        return error_set(TUTTI_ERR_INVALID,
                         "a sparse tensor's dtype is %d, which does not exist: expected 0 to %d",
                         (int)shape->dtype, TUTTI_DTYPE_COUNT - 1);
    if (shape->sparse_dim < 0 || shape->dense_dim < 0 || shape->sparse_dim > DIMS_MOST ||
        shape->dense_dim > DIMS_MOST - shape->sparse_dim)
        return error_set(TUTTI_ERR_INVALID,
                         "a sparse tensor has %d sparse and %d dense dimensions: expected 0 or "
                         "more of each, and no more than %d together",
                         shape->sparse_dim, shape->dense_dim, DIMS_MOST);
    if (!shape->sizes && dims_of(shape) > 0)
        return error_set(TUTTI_ERR_INVALID,
                         "the sizes of a sparse tensor of %d dimensions are NULL", dims_of(shape));
    for (int dim = 0; dim < dims_of(shape); dim++)
        if (shape->sizes[dim] < 0)
            return error_set(TUTTI_ERR_INVALID,
                             "the size of dimension %d of a sparse tensor is %" PRId64
                             ": expected 0 or more",
                             dim, shape->sizes[dim]);
    if (!product(shape, shape->sparse_dim, dims_of(shape), dtype_bytes(shape->dtype), &bytes) ||
        bytes > PTRDIFF_MAX)
        return error_set(TUTTI_ERR_INVALID,
                         "a row of a sparse tensor, dimensions %d to %d of %s, has more bytes than "
                         "can be addressed",
                         shape->sparse_dim, dims_of(shape) - 1, tutti_dtype_name(shape->dtype));
    return TUTTI_OK;
}

/* Check that all indices and all rows can be addressed. */
static enum tutti_status nnz_check(const struct sparse_shape *shape, uint64_t nnz)
{
    uint64_t bytes;
    if (__builtin_mul_overflow(nnz, (uint64_t)shape->sparse_dim * sizeof(int64_t), &bytes) ||
        bytes > PTRDIFF_MAX)
        return error_set(TUTTI_ERR_INVALID,
                         "%" PRIu64 " entries of a sparse tensor have more bytes of indices (%d "
                         "dimensions) than can be addressed",
                         nnz, shape->sparse_dim);
    if (__builtin_mul_overflow(nnz, (uint64_t)sparse_row_bytes(shape), &bytes) ||
        bytes > PTRDIFF_MAX)
        return error_set(TUTTI_ERR_INVALID,
                         "%" PRIu64 " entries of a sparse tensor have more bytes of values (%zu a "
                         "row) than can be addressed",
                         nnz, sparse_row_bytes(shape));
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
    enum tutti_status status = nnz_check(shape, nnz);
    if (status != TUTTI_OK)
        return status;
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
        if (size == 0)
            return error_set(
                TUTTI_ERR_INVALID,
                "dimension %d of a sparse tensor has size 0, but there are %zu entries "
                "(the first has index %" PRId64 "): expected none",
                dim, nnz, indices[i]);
        return error_set(TUTTI_ERR_INVALID,
                         "entry %zu of a sparse tensor has index %" PRId64
                         " in dimension %d: expected 0 to %" PRId64,
                         i, indices[i], dim, size - 1);
    }
    return status;
}

/* Whether entry i comes after the one before it. */
static bool ascends(const struct sparse_shape *shape, const struct sparse_entries *entries,
                    size_t i)
{
    for (int dim = 0; dim < shape->sparse_dim; dim++) {
        const int64_t *indices = entries->indices + (size_t)dim * entries->nnz;
        if (indices[i] != indices[i - 1])
            return indices[i] > indices[i - 1];
    }
    return false;
}

bool sparse_is_coalesced(const struct sparse_shape *shape, const struct sparse_entries *entries)
{
    for (size_t i = 1; i < entries->nnz; i++)
        if (!ascends(shape, entries, i))
            return false;
    return true;
}

/* ---- metadata -------------------------------------------------------------------------------- */

size_t sparse_meta_bytes(const struct sparse_shape *shape)
{
    return sizeof(struct sparse_meta) + (size_t)dims_of(shape) * sizeof(int64_t);
}

void sparse_meta_encode(const struct sparse_shape *shape, size_t nnz, void *block)
{
    const struct sparse_meta meta = {
        .magic = MAGIC,
        .bytes = (uint32_t)sparse_meta_bytes(shape),
        .dtype = (uint32_t)shape->dtype,
        .sparse_dim = (uint32_t)shape->sparse_dim,
        .dense_dim = (uint32_t)shape->dense_dim,
        .nnz = nnz,
    };
    memcpy(block, &meta, sizeof meta);
    if (dims_of(shape) > 0)
        memcpy((unsigned char *)block + sizeof meta, shape->sizes,
               sparse_meta_bytes(shape) - sizeof meta);
}

/* Check the fields before the sizes, and the number of sizes. */
static enum tutti_status header_check(const struct sparse_meta *meta, size_t bytes)
{
    if (meta->magic != MAGIC)
        return error_set(TUTTI_ERR_MISMATCH, "its magic is %#" PRIx32 ", not %#x", meta->magic,
                         (unsigned)MAGIC);
    if (meta->bytes != bytes)
        return error_set(TUTTI_ERR_MISMATCH, "it says that it has %" PRIu32 " bytes, but %zu came",
                         meta->bytes, bytes);
    if (meta->dtype >= TUTTI_DTYPE_COUNT)
        return error_set(TUTTI_ERR_MISMATCH, "its dtype is %" PRIu32 ", which does not exist",
                         meta->dtype);
    if (meta->reserved != 0)
        return error_set(TUTTI_ERR_MISMATCH, "its reserved field is %" PRIu32 ", not 0",
                         meta->reserved);
    const uint64_t dims = (uint64_t)meta->sparse_dim + meta->dense_dim;
    if (dims != (bytes - sizeof *meta) / sizeof(int64_t) || bytes % sizeof(int64_t) != 0)
        return error_set(TUTTI_ERR_MISMATCH,
                         "its %" PRIu32 " sparse and %" PRIu32 " dense dimensions do not fill its "
                         "%zu bytes",
                         meta->sparse_dim, meta->dense_dim, bytes);
    return TUTTI_OK;
}

/* Check nnz: a coalesced tensor has each index at most once. */
static enum tutti_status coalesced_nnz_check(const struct sparse_shape *shape, uint64_t nnz)
{
    uint64_t places;
    enum tutti_status status = nnz_check(shape, nnz);
    if (status != TUTTI_OK)
        return status;
    if (product(shape, 0, shape->sparse_dim, 1, &places) && nnz > places)
        return error_set(TUTTI_ERR_MISMATCH,
                         "it has %" PRIu64 " entries, but its sparse sizes leave room for %" PRIu64,
                         nnz, places);
    return TUTTI_OK;
}

enum tutti_status sparse_meta_decode(const void *block, size_t bytes, int rank,
                                     struct sparse_shape *shape, size_t *nnz)
{
    struct sparse_meta meta;
    if (bytes < sizeof meta)
        return error_set(TUTTI_ERR_MISMATCH,
                         "the sparse metadata of rank %d has %zu bytes: expected %zu or more", rank,
                         bytes, sizeof meta);
    memcpy(&meta, block, sizeof meta);
    enum tutti_status status = header_check(&meta, bytes);
    if (status == TUTTI_OK) {
        shape->dtype = (enum tutti_dtype)meta.dtype;
        /* header_check() compared the dimensions with `bytes`, a number of 32 bits, so they fit an
         * int. */
        shape->sparse_dim = (int)meta.sparse_dim;
        shape->dense_dim = (int)meta.dense_dim;
        shape->sizes = (const int64_t *)((const unsigned char *)block + sizeof meta);
        *nnz = (size_t)meta.nnz;
        status = sparse_shape_check(shape);
    }
    if (status == TUTTI_OK)
        status = coalesced_nnz_check(shape, meta.nnz);
    if (status != TUTTI_OK)
        return error_context(TUTTI_ERR_MISMATCH, "the sparse metadata of rank %d is malformed",
                             rank);
    return TUTTI_OK;
}

enum tutti_status sparse_meta_compare(const struct sparse_shape *shape, int rank,
                                      const struct sparse_shape *other, int other_rank)
{
    if (shape->dtype != other->dtype)
        return error_set(TUTTI_ERR_MISMATCH,
                         "the ranks' sparse tensors differ in dtype: rank %d has %s, rank %d has "
                         "%s",
                         rank, tutti_dtype_name(shape->dtype), other_rank,
                         tutti_dtype_name(other->dtype));
    if (shape->sparse_dim != other->sparse_dim || shape->dense_dim != other->dense_dim)
        return error_set(
            TUTTI_ERR_MISMATCH,
            "the ranks' sparse tensors differ in dimensions: rank %d has %d sparse and "
            "%d dense, rank %d has %d sparse and %d dense",
            rank, shape->sparse_dim, shape->dense_dim, other_rank, other->sparse_dim,
            other->dense_dim);
    for (int dim = 0; dim < dims_of(shape); dim++)
        if (shape->sizes[dim] != other->sizes[dim])
            return error_set(TUTTI_ERR_MISMATCH,
                             "the ranks' sparse tensors differ in the size of dimension %d (%s): "
                             "rank %d has %" PRId64 ", rank %d has %" PRId64,
                             dim, dim < shape->sparse_dim ? "sparse" : "dense", rank,
                             shape->sizes[dim], other_rank, other->sizes[dim]);
    return TUTTI_OK;
}
