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
 *     sparse_meta_*()                         the metadata that ranks exchange and compare
 *     sparse_union()                          all ranks' tensors become the result, on each rank
 *
 * sparse.c states the numerical rules.
 */
#ifndef TUTTI_PG_SPARSE_H
#define TUTTI_PG_SPARSE_H

#include "cpu/reduce/reduce.h"

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

enum { SPARSE_INPUTS = 1 << 16 }; /* the largest number of tensors in one sum */

void sparse_memory_fini(struct sparse_memory *memory);

/* Return the bytes of one row. The shape has been checked. */
size_t sparse_row_bytes(const struct sparse_shape *shape);

/* [out] bytes: the size of nnz entries in the layout of results: indices, then values, which begin
 * on a cache line; whole lines. Return false if it overflows. */
bool sparse_bytes(const struct sparse_shape *shape, size_t nnz, size_t *bytes);
/* Return the entries that lie in `memory` in that layout. The memory is aligned to a cache line. */
struct sparse_entries sparse_entries_at(const struct sparse_shape *shape, const void *memory,
                                        size_t nnz);

/* Check that the dtype exists, that no size or number of dimensions is negative, and that a row can
 * be addressed. INVALID names the wrong field. */
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
 * Sum `count` inputs (1 to SPARSE_INPUTS) into one coalesced tensor. Shape and inputs have been
 * checked. A single input that is already coalesced is not copied: result->entries is then that
 * input. Returns NO_MEMORY.
 */
enum tutti_status sparse_coalesce(struct sparse_worker *worker, const struct sparse_shape *shape,
                                  const struct sparse_entries *inputs, int count,
                                  struct sparse_result *result);

/*
 * Sum the coalesced tensors of n ranks (1 to TUTTI_MAX_RANKS), given in leaf order. The result is
 * coalesced and lies in result->memory. A faulty peer may send indices that do not ascend or lie
 * outside the sizes: the result is then wrong, but no memory outside it is touched. Returns
 * NO_MEMORY.
 */
enum tutti_status sparse_union(struct sparse_worker *worker, const struct sparse_shape *shape,
                               const struct sparse_entries *parts, int n,
                               struct sparse_result *result);

/* ---- metadata: what ranks exchange before their entries -------------------------------------- */

/* A block of metadata is this struct, then the sizes, int64_t each. Both are aligned to 8 bytes. */
struct sparse_meta {
    uint32_t magic;
    uint32_t bytes; /* of the whole block, so that a reader knows how many to expect */
    uint32_t dtype;
    uint32_t sparse_dim;
    uint32_t dense_dim;
    uint32_t reserved; /* 0 */
    uint64_t nnz;      /* entries of the coalesced tensor */
};

/* Return the bytes of a shape's block. */
size_t sparse_meta_bytes(const struct sparse_shape *shape);
void sparse_meta_encode(const struct sparse_shape *shape, size_t nnz, void *block);

/*
 * Read the block of a rank, and check every field. [out] shape has been checked; its sizes point
 * into the block. [out] nnz: the entries can be addressed, and are not more than there are indices.
 * Returns MISMATCH, with the rank, the wrong field and its value.
 */
enum tutti_status sparse_meta_decode(const void *block, size_t bytes, int rank,
                                     struct sparse_shape *shape, size_t *nnz);

/* Check that the tensors of two ranks can be summed. MISMATCH names the first difference, both
 * ranks and both values. */
enum tutti_status sparse_meta_compare(const struct sparse_shape *shape, int rank,
                                      const struct sparse_shape *other, int other_rank);

#endif
