/* SPDX-License-Identifier: MIT */
/*
 * Sums of sparse tensors in coordinate form (COO): what one rank computes. No threads, no waits;
 * who moves what between ranks is above.
 *
 * A tensor of `sparse_dim` + `dense_dim` dimensions is a list of entries. An entry is an index, one
 * number a sparse dimension, and a row, `dense sizes` elements. Rows of equal indices count as
 * their sum, what has no entry as zero. A tensor is *coalesced* if its indices ascend, each above
 * the one before, lexicographically.
 *
 *     sparse_shape_check(), sparse_check()    at the call: what the user gave can be summed at all
 *     sparse_coalesce()                       a rank's own inputs become one coalesced tensor
 *     sparse_meta_*()                         the ranks tell each other what they have
 *     sparse_union()                          all ranks' tensors become the result, on each rank
 *
 * The numbers
 * - Coalescing adds rows of equal indices one by one, inputs in list order and entries in order of
 *   appearance, in the accumulation type, and rounds once. A row that is alone with its index is no
 *   sum and stays as it is, bit for bit, so that coalescing twice is coalescing once.
 * - The union adds the rows of an index by the canonical tree over all leaves, the absent ones left
 *   out: (0+1)+(2+3) without 1 is 0+(2+3). It rounds once, NaN becomes canonical, e5m2's infinities
 *   and bool's bytes become what a reduction stores: what one rank alone has, too.
 * - So a rank without an entry counts as the number that changes no sum: 0 for integers and bool,
 *   -0 for floats (x + -0 is x for every x, +0 is not: -0 + +0 is +0). -0 stays -0 where it meets
 *   nothing or more of -0 alone, whichever ranks have it and however many do not. A dense
 *   all-reduce, where a rank without the entry holds +0, gives +0 there; in all else the two give
 *   the same bits.
 * - What several entries of several ranks make is so rounded twice: in each rank's own sum, and in
 *   the union. For integers and bool any order gives the same.
 */
#ifndef TUTTI_PG_SPARSE_H
#define TUTTI_PG_SPARSE_H

#include "cpu/reduce.h"

/* What the tensors of one operation have in common. */
struct sparse_shape {
    enum tutti_dtype dtype;
    int sparse_dim;       /* from 0: then there is one index, the empty one */
    int dense_dim;        /* from 0: then a row is one element */
    const int64_t *sizes; /* borrowed: of the sparse dimensions, then of the dense ones; from 0 */
};

/* Entries of a tensor, borrowed. */
struct sparse_entries {
    const int64_t *indices; /* sparse_dim x nnz: all of the first dimension, all of the second... */
    const void *values;     /* nnz rows, aligned to the dtype alone */
    size_t nnz;
};

/* Memory that grows and is used again: fresh pages cost more than most sums. Zero is empty. */
struct sparse_memory {
    void *bytes; /* of malloc()'s family; who takes it away puts NULL here and 0 into size */
    size_t size;
};

/* A tensor and, unless they are someone else's, where its entries lie. Zero is empty. A new result
 * overwrites the old one, so no input of its sum may lie there. */
struct sparse_result {
    struct sparse_entries entries;
    struct sparse_memory memory;
};

/* What computes. Zero it and set isa. */
struct sparse_worker {
    const struct reduce_isa *isa;
    bool stream; /* what coalesces copies rows past the caches: whole lines, for others to read; the
                    caller drains */
    struct sparse_memory scratch;
};

enum { SPARSE_INPUTS = 1 << 16 }; /* tensors of one sum, at most */

void sparse_memory_fini(struct sparse_memory *memory);

/* Bytes of one row of a shape that was checked. */
size_t sparse_row_bytes(const struct sparse_shape *shape);

/* Bytes of nnz entries as results have them: indices, then values on a line of their own; whole
 * lines. False if there is no such size. */
bool sparse_bytes(const struct sparse_shape *shape, size_t nnz, size_t *bytes);
/* They, in memory that begins with a line. */
struct sparse_entries sparse_entries_at(const struct sparse_shape *shape, const void *memory,
                                        size_t nnz);

/* The dtype exists, no number of dimensions or size is negative, and a row can be addressed.
 * INVALID names what is wrong. */
enum tutti_status sparse_shape_check(const struct sparse_shape *shape);

/* The entries, of a shape that was checked, can be addressed, and are not NULL where there are
 * some. Reads none of them. Returns INVALID. */
enum tutti_status sparse_entries_check(const struct sparse_shape *shape,
                                       const struct sparse_entries *entries);
/* That, and each index lies within the sizes. INVALID names dimension, entry and index. One pass.
 */
enum tutti_status sparse_check(const struct sparse_shape *shape,
                               const struct sparse_entries *entries);

/* One pass at most. */
bool sparse_is_coalesced(const struct sparse_shape *shape, const struct sparse_entries *entries);

/*
 * The sum of `count` inputs (1 to SPARSE_INPUTS), coalesced. Shape and inputs have been checked. A
 * single input that is coalesced already is not copied: then result->entries is that input. Returns
 * NO_MEMORY.
 */
enum tutti_status sparse_coalesce(struct sparse_worker *worker, const struct sparse_shape *shape,
                                  const struct sparse_entries *inputs, int count,
                                  struct sparse_result *result);

/*
 * The sum of n (1 to TUTTI_MAX_RANKS) ranks' coalesced tensors, in leaf order; it is coalesced, and
 * in result->memory. Indices that do not ascend or lie outside the sizes, which only a peer that
 * misbehaves can send, give a wrong result, and nothing worse.
 * Returns NO_MEMORY.
 */
enum tutti_status sparse_union(struct sparse_worker *worker, const struct sparse_shape *shape,
                               const struct sparse_entries *parts, int n,
                               struct sparse_result *result);

/* ---- metadata: what the ranks tell each other before their entries --------------------------- */

/* A block is this and then the sizes, int64_t each. Both are aligned to 8 bytes. */
struct sparse_meta {
    uint32_t magic;
    uint32_t bytes; /* of the block: from the first ones a reader knows how many it is to expect */
    uint32_t dtype;
    uint32_t sparse_dim;
    uint32_t dense_dim;
    uint32_t reserved; /* 0 */
    uint64_t nnz;      /* of the coalesced tensor */
};

/* Bytes of a shape's block. */
size_t sparse_meta_bytes(const struct sparse_shape *shape);
void sparse_meta_encode(const struct sparse_shape *shape, size_t nnz, void *block);

/*
 * Reads the block of a rank, trusting none of it. [out] shape has been checked, its sizes point
 * into the block; [out] nnz entries can be addressed, and are no more than there are indices.
 * Returns MISMATCH, saying whose block it is, which field is wrong and what it holds.
 */
enum tutti_status sparse_meta_decode(const void *block, size_t bytes, int rank,
                                     struct sparse_shape *shape, size_t *nnz);

/* Whether the tensors of two ranks can be summed. Returns MISMATCH, which names the first
 * difference with both ranks and both values. */
enum tutti_status sparse_meta_compare(const struct sparse_shape *shape, int rank,
                                      const struct sparse_shape *other, int other_rank);

#endif
