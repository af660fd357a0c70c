/* SPDX-License-Identifier: MIT */
/*
 * Coalescing and union. Every index becomes a key of 64 bits: its position among all indices, in
 * their order.
 *
 * Coalescing and union are one algorithm: all entries as {key, position}, sorted by a stable radix
 * sort; then the rows of each key are summed, by a chain or a tree. (Merging the ranks' sorted
 * lists was slower even for two: each step waits for the one before.)
 *
 * - Coalescing adds the rows of one index one by one, inputs in list order, entries in order of
 *   appearance, in the accumulation type, and rounds once. A single row of an index is copied bit
 *   for bit, so coalescing twice equals coalescing once.
 * - The union adds the rows of one index by the canonical tree over all leaves, without the absent
 *   ones: (0+1)+(2+3) without 1 is 0+(2+3). It rounds once. NaN, e5m2's infinities and bool's bytes
 *   become what a reduction stores, also for a row that only one rank has.
 * - So an absent rank counts as the number that changes no sum: 0 for integers and bool, -0 for
 *   floats (x + -0 is x for every x; -0 + +0 is +0). -0 stays -0 if no rank has anything but -0. A
 *   dense all-reduce, in which absent entries are +0, gives +0 there. Otherwise both give the
 *   same bits.
 * - So a float is rounded twice: in each rank's own sum, and in the union. Integers and bool give
 *   the same result in any order.
 */
#include "pg/sparse.h"

#include "base/dtype.h"
#include "base/error.h"
#include "base/rank_set.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
    LINE_BYTES = 64,
    SHORT_MOST = 1024, /* below so many pairs a digit has at most SHORT_BITS */
    SHORT_BITS = 8,
    DIGIT_BITS = 11,   /* otherwise: the counters of a digit stay in the L1 cache */
    CHAIN_BLOCK = 512, /* elements of a partial result that stays in the L1 cache */
    CHAIN_SHORT = 3,   /* up to so many rows the balanced tree equals a chain */
    ENTRY_BITS = 48,   /* bits of a position for the entry's number */
};

/* The unit of sorting. A position is the number of the input and the number of the entry in that
 * input. */
struct pair {
    uint64_t key;
    uint64_t position;
};

/* Several inputs as one list. */
struct list {
    const struct sparse_shape *shape;
    const struct sparse_entries *inputs;
    int count;
    size_t nnz; /* of all inputs */
    size_t row_bytes;
    enum tutti_dtype dtype; /* of what is summed: the shape's, or its components */
    const void *neutral;    /* union only: the row of an absent rank */
};

/* to = the sum of the rows of entries with equal keys. A row has at least one byte. */
typedef void sum_fn(const struct sparse_worker *worker, const struct list *list,
                    const struct pair *equal, size_t n, void *to);

/* ---- memory ---------------------------------------------------------------------------------- */

void sparse_memory_fini(struct sparse_memory *memory)
{
    free(memory->bytes);
    *memory = (struct sparse_memory){0};
}

static size_t whole_lines(size_t bytes)
{
    return (bytes + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
}

/* Make room for `size` bytes. The old contents are lost. */
static enum tutti_status reserve(struct sparse_memory *memory, size_t size)
{
    if (size < LINE_BYTES)
        size = LINE_BYTES; /* never NULL */
    if (size <= memory->size)
        return TUTTI_OK;
    sparse_memory_fini(memory);
    errno = ENOMEM;
    memory->bytes = size <= SPARSE_MOST ? aligned_alloc(LINE_BYTES, size) : NULL;
    if (!memory->bytes)
        return error_errno("aligned_alloc of %zu bytes for a sparse sum", size);
    memory->size = size;
    return TUTTI_OK;
}

/* Return where the values of nnz entries begin, after their indices. */
static size_t values_offset(const struct sparse_shape *shape, size_t nnz)
{
    return whole_lines(nnz * (size_t)shape->sparse_dim * sizeof(int64_t));
}

size_t sparse_bytes(const struct sparse_shape *shape, size_t nnz)
{
    return values_offset(shape, nnz) + whole_lines(nnz * sparse_row_bytes(shape));
}

struct sparse_entries sparse_entries_at(const struct sparse_shape *shape, const void *memory,
                                        size_t nnz)
{
    return (struct sparse_entries){memory,
                                   (const unsigned char *)memory + values_offset(shape, nnz), nnz};
}

/* ---- lists of entries ------------------------------------------------------------------------ */

static struct list list_of(const struct sparse_shape *shape, const struct sparse_entries *inputs,
                           int count)
{
    struct list list = {
        shape, inputs, count, 0, sparse_row_bytes(shape), dtype_component(shape->dtype), NULL};
    for (int i = 0; i < count; i++)
        list.nnz += inputs[i].nnz;
    return list;
}

static int input_of(uint64_t position)
{
    return (int)(position >> ENTRY_BITS);
}

static size_t entry_of(uint64_t position)
{
    return position & ((UINT64_C(1) << ENTRY_BITS) - 1);
}

static const unsigned char *row_of(const struct list *list, uint64_t position)
{
    return (const unsigned char *)list->inputs[input_of(position)].values +
           entry_of(position) * list->row_bytes;
}

static int64_t index_of(const struct list *list, uint64_t position, int dim)
{
    const struct sparse_entries *input = &list->inputs[input_of(position)];
    return input->indices[(size_t)dim * input->nnz + entry_of(position)];
}

/* ---- keys ------------------------------------------------------------------------------------ */

/* Return the number of indices, 0 if a size is 0. */
static uint64_t index_count(const struct sparse_shape *shape)
{
    uint64_t count = 1;
    for (int dim = 0; dim < shape->sparse_dim; dim++)
        count *= (uint64_t)shape->sizes[dim];
    return count;
}

/* Make pairs of all entries, in order. */
static void pairs_make(const struct list *list, struct pair *pairs)
{
    for (int input = 0; input < list->count; input++) {
        const size_t nnz = list->inputs[input].nnz;
        for (size_t i = 0; i < nnz; i++)
            pairs[i] = (struct pair){0, (uint64_t)input << ENTRY_BITS | i};
        for (int dim = 0; dim < list->shape->sparse_dim && nnz > 0; dim++) {
            const uint64_t size = (uint64_t)list->shape->sizes[dim];
            const int64_t *indices = list->inputs[input].indices + (size_t)dim * nnz;
            for (size_t i = 0; i < nnz; i++)
                pairs[i].key = pairs[i].key * size + (uint64_t)indices[i];
        }
        pairs += nnz;
    }
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

/* One pass of the radix sort, by `bits` bits from `shift` on. It is stable. */
static void digit_sort(struct pair *to, const struct pair *from, size_t count, int shift, int bits)
{
    size_t position[1 << DIGIT_BITS], next = 0;
    const uint64_t digits = UINT64_C(1) << bits;
    for (uint64_t digit = 0; digit < digits; digit++)
        position[digit] = 0;
    for (size_t i = 0; i < count; i++)
        position[from[i].key >> shift & (digits - 1)]++;
    for (uint64_t digit = 0; digit < digits; digit++) {
        const size_t those = position[digit];
        position[digit] = next;
        next += those;
    }
    for (size_t i = 0; i < count; i++)
        to[position[from[i].key >> shift & (digits - 1)]++] = from[i];
}

/* Sort by keys, which are below `values`; stable. Return the array that has the result. */
static struct pair *keys_sort(struct pair *pairs, struct pair *spare, size_t count, uint64_t values)
{
    const int bits = values > 1 ? 64 - __builtin_clzll(values - 1) : 0;
    const int most = count < SHORT_MOST ? SHORT_BITS : DIGIT_BITS,
              passes = (bits + most - 1) / most;
    for (int pass = 0; pass < passes; pass++) {
        const int shift = bits * pass / passes, end = bits * (pass + 1) / passes;
        digit_sort(spare, pairs, count, shift, end - shift);
        struct pair *sorted = spare;
        spare = pairs;
        pairs = sorted;
    }
    return pairs;
}

/* ---- chains: rows added one by one ----------------------------------------------------------- */

/* to = round(row + row + ...) of `count` elements from byte `at` of each row on. A dtype that is
 * its own accumulation type needs no partial results; then two rows are added in one call. */
static void chain(reduce_fn *sum, const struct list *list, const struct pair *equal, size_t n,
                  size_t at, size_t count, void *to)
{
    _Alignas(LINE_BYTES) uint64_t partial[CHAIN_BLOCK];
    const enum tutti_dtype dtype = list->dtype;
    const bool widened = reduce_partial_bytes(dtype) != dtype_bytes(dtype);
    const void *in[CHAIN_SHORT];
    struct reduce_call call = {.in = in, .count = count};
    for (size_t i = 0; i < n; i += (size_t)call.n - (i > 0)) {
        const size_t most = widened && i > 0 ? 1 : CHAIN_SHORT - (i > 0);
        const size_t rows = n - i < most ? n - i : most;
        for (size_t k = 0; k < rows; k++)
            in[k + (i > 0)] = row_of(list, equal[i + k].position) + at;
        call.n = (int)rows + (i > 0);
        call.partials = widened && i > 0;
        call.out_partial = widened && i + rows < n;
        call.out = call.out_partial ? (void *)partial : to;
        sum(&call);
        in[0] = call.out;
    }
}

/* Sum of a rank's own entries: a chain. A single row is copied as it is. */
static void chain_sum(const struct sparse_worker *worker, const struct list *list,
                      const struct pair *equal, size_t n, void *to)
{
    const size_t size = dtype_bytes(list->dtype), block = CHAIN_BLOCK * size;
    reduce_fn *sum = reduce_function(worker->isa, list->dtype, OP_SUM);
    if (n == 1) {
        copy_fn *copy = worker->stream ? worker->isa->copy_stream : worker->isa->copy;
        copy(to, row_of(list, equal->position), list->row_bytes);
    } else {
        for (size_t at = 0; at < list->row_bytes; at += block) {
            const size_t left = list->row_bytes - at;
            chain(sum, list, equal, n, at, (left < block ? left : block) / size,
                  (unsigned char *)to + at);
        }
    }
}

/* ---- trees: the rows of several leaves ------------------------------------------------------- */

/* Return the leaf's bits at the levels in `levels`, packed. */
static int compressed_leaf(int leaf, unsigned levels)
{
    int slot = 0;
    for (int bit = 1; levels; levels &= levels - 1, bit <<= 1)
        if ((unsigned)leaf & levels & -levels)
            slot |= bit;
    return slot;
}

/*
 * Build the canonical tree over the leaves in `present`, as inputs of a reduction. The bits of a
 * leaf are its path through the tree. Where the paths of two neighbouring present leaves separate,
 * the tree has a node with two operands. Levels without such a node only pass rows on and are left
 * out. Inputs that are then still missing become the neutral row. Return the number of inputs.
 */
static int tree_of(struct rank_set present, const void *const *rows, const void *neutral,
                   const void **in)
{
    unsigned levels = 0;
    int last = rank_set_next(present, -1);
    for (int leaf; (leaf = rank_set_next(present, last)) >= 0; last = leaf)
        levels |= 1u << (31 - __builtin_clz((unsigned)(leaf ^ last)));
    const int n = compressed_leaf(last, levels) + 1;
    for (int i = 0; i < n; i++)
        in[i] = neutral;
    for (int leaf = rank_set_next(present, -1); leaf >= 0; leaf = rank_set_next(present, leaf))
        in[compressed_leaf(leaf, levels)] = rows[leaf];
    return n;
}

/* Fill the row that changes no sum: -0 for floats, which are the first dtypes, otherwise 0. */
static void neutral_fill(enum tutti_dtype dtype, unsigned char *row, size_t row_bytes)
{
    const size_t size = dtype_bytes(dtype);
    memset(row, 0, row_bytes);
    for (size_t i = size - 1; dtype <= TUTTI_FLOAT8_E5M2 && i < row_bytes; i += size)
        row[i] = 0x80;
}

/* The sum of more inputs than a reduction takes: of the largest power of two, and of the rest. */
static void tree_halves(reduce_fn *sum, enum tutti_dtype dtype, struct reduce_call call)
{
    _Alignas(LINE_BYTES) uint64_t halves[2][CHAIN_BLOCK];
    const void *const both[] = {halves[0], halves[1]};
    int left = NODE_RANKS;
    if (call.n <= NODE_RANKS) {
        sum(&call);
        return;
    }
    while (2 * left < call.n)
        left *= 2;
    for (int i = 0; i < 2; i++) {
        struct reduce_call half = call;
        half.in = call.in + (i ? left : 0);
        half.n = i ? call.n - left : left;
        half.out = halves[i];
        half.out_partial = reduce_partial_bytes(dtype) != dtype_bytes(dtype);
        tree_halves(sum, dtype, half);
    }
    call.in = both;
    call.n = 2;
    call.partials = reduce_partial_bytes(dtype) != dtype_bytes(dtype) ? 2 : 0;
    sum(&call);
}

/* The same block by block, of rows of any length. */
static void tree_blocks(reduce_fn *sum, enum tutti_dtype dtype, const struct reduce_call *whole)
{
    const size_t size = dtype_bytes(dtype);
    const void *in[WORLD_RANKS];
    for (size_t at = 0; at < whole->count; at += CHAIN_BLOCK) {
        struct reduce_call call = *whole;
        const size_t left = whole->count - at;
        call.count = left < CHAIN_BLOCK ? left : CHAIN_BLOCK;
        call.out = (unsigned char *)whole->out + at * size;
        call.in = in;
        for (int i = 0; i < call.n; i++)
            in[i] = (const unsigned char *)whole->in[i] + at * size;
        tree_halves(sum, dtype, call);
    }
}

/* Sum of the entries of several ranks: a tree. If a faulty rank has an index twice, its last entry
 * counts. */
static void tree_sum(const struct sparse_worker *worker, const struct list *list,
                     const struct pair *equal, size_t n, void *to)
{
    const enum tutti_dtype dtype = list->dtype;
    const void *rows[WORLD_RANKS], *in[WORLD_RANKS];
    struct reduce_call call = {
        .out = to, .in = in, .n = 1, .count = list->row_bytes / dtype_bytes(dtype)};
    in[0] = row_of(list, equal[0].position);
    if (n > 1) {
        struct rank_set present = rank_set_none;
        for (size_t i = 0; i < n; i++) {
            const int leaf = input_of(equal[i].position);
            rank_set_add(&present, leaf);
            rows[leaf] = row_of(list, equal[i].position);
        }
        call.n = tree_of(present, rows, list->neutral, in);
    }
    reduce_fn *sum = reduce_function(worker->isa, dtype, OP_SUM);
    if (call.n > NODE_RANKS)
        tree_blocks(sum, dtype, &call);
    else
        sum(&call);
}

/* ---- sums of a list -------------------------------------------------------------------------- */

static size_t count_distinct(const struct pair *sorted, size_t count)
{
    size_t distinct = count > 0;
    for (size_t i = 1; i < count; i++)
        distinct += sorted[i].key != sorted[i - 1].key;
    return distinct;
}

/* Write each distinct index and the sum of its rows. */
static void sums_write(const struct sparse_worker *worker, const struct list *list,
                       const struct pair *sorted, size_t distinct, sum_fn *sum, int64_t *indices,
                       unsigned char *values)
{
    const uint64_t environment = reduce_env_begin();
    const struct pair *equal = sorted, *next, *const end = sorted + list->nnz;
    for (size_t i = 0; i < distinct; i++, equal = next) {
        for (next = equal + 1; next < end && next->key == equal->key; next++)
            ;
        for (int dim = 0; dim < list->shape->sparse_dim; dim++)
            indices[(size_t)dim * distinct + i] = index_of(list, equal->position, dim);
        if (list->row_bytes > 0)
            sum(worker, list, equal, (size_t)(next - equal), values + i * list->row_bytes);
    }
    reduce_env_end(environment);
}

/* Sum a list. neutral_bytes: the size of the neutral row, 0 if `sum` needs none. */
static enum tutti_status list_sum(struct sparse_worker *worker, struct list *list, sum_fn *sum,
                                  size_t neutral_bytes, struct sparse_result *result)
{
    const size_t pairs = whole_lines(list->nnz * sizeof(struct pair));
    enum tutti_status status = reserve(&worker->scratch, 2 * pairs + whole_lines(neutral_bytes));
    if (status != TUTTI_OK)
        return status;
    unsigned char *scratch = worker->scratch.bytes, *neutral = scratch + 2 * pairs;
    list->neutral = neutral;
    neutral_fill(list->dtype, neutral, neutral_bytes);
    pairs_make(list, (void *)scratch);
    const struct pair *sorted =
        keys_sort((void *)scratch, (void *)(scratch + pairs), list->nnz, index_count(list->shape));
    const size_t distinct = count_distinct(sorted, list->nnz);
    result->entries = (struct sparse_entries){0};
    status = reserve(&result->memory, sparse_bytes(list->shape, distinct));
    if (status != TUTTI_OK)
        return status;
    unsigned char *memory = result->memory.bytes;
    result->entries = sparse_entries_at(list->shape, memory, distinct);
    sums_write(worker, list, sorted, distinct, sum, result->memory.bytes,
               memory + values_offset(list->shape, distinct));
    return TUTTI_OK;
}

enum tutti_status sparse_coalesce(struct sparse_worker *worker, const struct sparse_shape *shape,
                                  const struct sparse_entries *inputs, int count,
                                  struct sparse_result *result)
{
    if (count == 1 && sparse_is_coalesced(shape, inputs)) {
        result->entries = inputs[0];
        return TUTTI_OK;
    }
    struct list list = list_of(shape, inputs, count);
    return list_sum(worker, &list, chain_sum, 0, result);
}

enum tutti_status sparse_union(struct sparse_worker *worker, const struct sparse_shape *shape,
                               const struct sparse_entries *parts, int n,
                               struct sparse_result *result)
{
    struct list list = list_of(shape, parts, n);
    return list_sum(worker, &list, tree_sum, list.nnz > 0 ? list.row_bytes : 0, result);
}
