/* SPDX-License-Identifier: MIT */
/* What sparse sums must give, bit for bit: by a sort of all entries and reference.h, row by row. */
#ifndef TUTTI_TESTS_SPARSE_REFERENCE_H
#define TUTTI_TESTS_SPARSE_REFERENCE_H

#include "pg/sparse.h"

struct sparse_reference {
    struct sparse_entries entries;
    int64_t *indices;
    unsigned char *values;
};

/* A rank's own inputs. Rows have up to 1200 elements. */
struct sparse_reference sparse_reference_coalesce(const struct sparse_shape *shape,
                                                  const struct sparse_entries *inputs, int count);
/* The ranks' coalesced tensors, in leaf order. */
struct sparse_reference sparse_reference_unite(const struct sparse_shape *shape,
                                               const struct sparse_entries *parts, int n);
void sparse_reference_free(struct sparse_reference *reference);

#endif
