/* SPDX-License-Identifier: MIT */
/*
 * Sums of sparse tensors in coordinate form (COO): what one rank computes. These functions use no
 * threads and do not wait. sparse_run.c exchanges the data between ranks.
 *
 * A tensor of `sparse_dim` + `dense_dim` dimensions is a list of entries. An entry has an index,
 * one number per sparse dimension, and a row of `dense sizes` elements. The value at an index is
 * the sum of all its rows, and zero without an entry. A tensor is *coalesced* if its indices ascend
 * strictly in lexicographic order.
 *
 *     sparse_shape_check(), sparse_check()    at the call: can the inputs be summed at all?
 *     sparse_coalesce()                       a rank's own inputs become one coalesced tensor
 *     sparse_union()                          all ranks' tensors become the result, on each rank
 *
 * sparse.c states the numerical rules.
 */
#ifndef TUTTI_PG_SPARSE_H
#define TUTTI_PG_SPARSE_H

#include "cpu/reduce/reduce.h"
#include "tutti/pg.h"

/* What all tensors of one operation have in common. */
struct sparse_shape {
    enum tutti_dtype dtype;
    int sparse_dim; /* may be 0: then there is one index, the empty one */
    int dense_dim;  /* may be 0: then a row is one element */
    const int64_t
        *sizes; /* borrowed: sizes of the sparse dimensions, then of the dense ones; may be 0 */
};

/* Entries of a tensor, borrowed. */
struct sparse_entries {
    const int64_t *indices; /* sparse_dim x nnz: the whole first dimension, then the second... */
    const void *values;     /* nnz rows, aligned to the dtype only */
    size_t nnz;
};

/* Memory that grows and is reused: fresh pages cost more than most sums. Zero is empty. */
struct sparse_memory {
    void *bytes; /* from malloc()'s family; to take it away, set this to NULL and size to 0 */
    size_t size;
};

/* A tensor and the memory of its entries, if it owns them. Zero is empty. A new result overwrites
 * the old one, so no input of its sum may lie in `memory`. */
struct sparse_result {
    struct sparse_entries entries;
    struct sparse_memory memory;
};

/* The state of a rank's computation. Zero it and set isa. */
struct sparse_worker {
    const struct reduce_isa *isa;
    bool stream; /* sparse_coalesce() writes rows past the caches, in whole lines, for peers to
                    read; the caller then calls order_drain_streams() */
    struct sparse_memory scratch;
};

/* The most entries of a tensor, and the most bytes of its entries. No process has more memory, and
 * sums of all tensors' sizes do not overflow. */
#define SPARSE_MOST (UINT64_C(1) << 46)

void sparse_memory_fini(struct sparse_memory *memory);

/* Return the bytes of one row. The shape has been checked. */
size_t sparse_row_bytes(const struct sparse_shape *shape);

/* Whether a tensor may have `nnz` entries. */
bool sparse_nnz_fits(const struct sparse_shape *shape, uint64_t nnz);

/* Return the bytes of nnz entries in the layout of results: indices, then values, which begin on a
 * cache line; whole lines. */
size_t sparse_bytes(const struct sparse_shape *shape, size_t nnz);
/* Return the entries that lie in `memory` in that layout. The memory is aligned to a cache line. */
struct sparse_entries sparse_entries_at(const struct sparse_shape *shape, const void *memory,
                                        size_t nnz);

/* Check that the dtype exists, that there are at most TUTTI_MAX_DIMS dimensions, that no size is
 * negative, that a row can be addressed, and that 63 bits count the indices. INVALID names the
 * wrong field. */
enum tutti_status sparse_shape_check(const struct sparse_shape *shape);

/* Check that the entries can be addressed and that no array with elements is NULL. The shape has
 * been checked. Reads no entry. Returns INVALID. */
enum tutti_status sparse_entries_check(const struct sparse_shape *shape,
                                       const struct sparse_entries *entries);
/* The same, and check that each index lies within the sizes, in one pass. INVALID names dimension,
 * entry and index. */
enum tutti_status sparse_check(const struct sparse_shape *shape,
                               const struct sparse_entries *entries);

/* Whether the tensor is coalesced. One pass at most. */
bool sparse_is_coalesced(const struct sparse_shape *shape, const struct sparse_entries *entries);

/*
 * Sum `count` inputs (1 to TUTTI_MAX_TENSORS) into one coalesced tensor. Shape and inputs have been
 * checked. A single input that is already coalesced is not copied: result->entries is then that
 * input. Returns NO_MEMORY.
 */
enum tutti_status sparse_coalesce(struct sparse_worker *worker, const struct sparse_shape *shape,
                                  const struct sparse_entries *inputs, int count,
                                  struct sparse_result *result);

/*
 * Sum the coalesced tensors of n ranks (1 to WORLD_RANKS), given in leaf order. The result is
 * coalesced and lies in result->memory. A faulty peer may send indices that do not ascend or lie
 * outside the sizes: the result is then wrong, but no memory outside it is touched. Returns
 * NO_MEMORY.
 */
enum tutti_status sparse_union(struct sparse_worker *worker, const struct sparse_shape *shape,
                               const struct sparse_entries *parts, int n,
                               struct sparse_result *result);

#endif
