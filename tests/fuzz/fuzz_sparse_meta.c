/* SPDX-License-Identifier: MIT */
/* The metadata of a peer's sparse tensor: what is accepted fits its bytes, can be addressed, and is
 * encoded to the same bytes again. */
#include "fuzz.h"
#include "pg/sparse.h"

#include <string.h>

static void check_accepted(const struct sparse_shape *shape, size_t nnz, const void *block,
                           size_t size)
{
    const size_t row_bytes = sparse_row_bytes(shape);
    fuzz_check(sparse_shape_check(shape) == TUTTI_OK);
    fuzz_check(sparse_meta_bytes(shape) == size);
    fuzz_check(row_bytes == 0 || nnz <= PTRDIFF_MAX / row_bytes);
    fuzz_check(shape->sparse_dim == 0 || nnz <= PTRDIFF_MAX / 8 / (size_t)shape->sparse_dim);
    for (int dim = 0; dim < shape->sparse_dim; dim++)
        fuzz_check(shape->sizes[dim] > 0 || nnz == 0);
    void *again = malloc(size);
    if (!again)
        return;
    sparse_meta_encode(shape, nnz, again);
    fuzz_check(memcmp(again, block, size) == 0);
    free(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct sparse_shape shape;
    size_t nnz;
    void *block = malloc(size ? size : 1); /* exact and aligned */
    if (!block)
        return 0;
    memcpy(block, bytes, size);
    if (sparse_meta_decode(block, size, 1, &shape, &nnz) == TUTTI_OK)
        check_accepted(&shape, nnz, block, size);
    free(block);
    return 0;
}
