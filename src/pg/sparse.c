/* SPDX-License-Identifier: MIT */
/*
 * Sparse tensors, coalesced and united.
 *
 * Everything goes by keys: numbers of 64 bits in the order of the indices. Where the product of the
 * sparse sizes fits, the key of an index is its place among all of them. Where it does not, the
 * index is cut into words that do fit, entries are sorted by the last word, then by the one
 * before..., which keeps the order of the former sorts, and their distinct indices numbered: these
 * numbers are the keys. Nothing else knows the difference.
 *
 * Coalescing sorts {key, position} by radix, which also keeps the order of appearance, and adds the
 * rows of each key. The union does not sort: it merges lists of {key, set of leaves that have it},
 * two at a time, and then walks through all parts at once, each row handed to the loops of
 * cpu/reduce.c as the tree that the absent ones leave of it.
 */
#include "pg/sparse.h"

#include "dtype.h"
#include "error.h"
#include "numeric.h"

#include <stdlib.h>

enum {
    LINE_BYTES = 64,
    FEW = 40,          /* pairs that are sorted by insertion */
    DIGIT_BITS = 11,   /* of the radix, at most */
    CHAIN_BLOCK = 512, /* accumulators that stay in the first cache */
    CHAIN_SHORT = 3,   /* rows whose balanced tree adds them one by one */
};

/* What is sorted and merged: the value is a position among all entries, or a set of leaves. */
struct pair {
    uint64_t key;
    uint64_t value;
};

/* Several inputs as one list, whose positions go on from each to the next. */
struct list {
    const struct sparse_shape *shape;
    const struct sparse_entries *inputs;
    int count;
    size_t nnz;
};

/* ---- memory -----------------------------------------------------------------------------------
 */

void sparse_memory_fini(struct sparse_memory *memory)
{
    free(memory->bytes);
    *memory = (struct sparse_memory){0};
}

/* Appends `count` things of `each` bytes to a plan of memory, on a line of their own: their offset
 * is what *size was. False if there is no such size. */
static bool plan(size_t *size, size_t count, size_t each)
{
    size_t bytes;
    return !__builtin_mul_overflow(count, each, &bytes) &&
           !__builtin_add_overflow(*size, bytes, size) &&
           !__builtin_add_overflow(*size, LINE_BYTES - 1 - (*size + LINE_BYTES - 1) % LINE_BYTES,
                                   size) &&
           *size <= PTRDIFF_MAX;
}

/* What was in it is lost. */
static enum tutti_status reserve(struct sparse_memory *memory, size_t size)
{
    if (size < LINE_BYTES)
        size = LINE_BYTES; /* never NULL */
    if (size <= memory->size)
        return TUTTI_OK;
    sparse_memory_fini(memory);
    memory->bytes = aligned_alloc(LINE_BYTES, size);
    if (!memory->bytes)
        return error_errno("aligned_alloc of %zu bytes for a sparse sum", size);
    memory->size = size;
    return TUTTI_OK;
}

static enum tutti_status no_such_size(size_t nnz)
{
    return error_set(TUTTI_ERR_NO_MEMORY,
                     "the sum of %zu entries of sparse tensors is more than can be addressed", nnz);
}

/* Room for nnz entries, to be written through *indices and *values. */
static enum tutti_status result_reserve(const struct sparse_shape *shape, size_t nnz,
                                        struct sparse_result *result, int64_t **indices,
                                        unsigned char **values)
{
    size_t size = 0;
    bool fits = plan(&size, nnz, (size_t)shape->sparse_dim * sizeof **indices);
    const size_t values_at = size;
    fits = fits && plan(&size, nnz, sparse_row_bytes(shape));
    enum tutti_status status = fits ? reserve(&result->memory, size) : no_such_size(nnz);
    if (status != TUTTI_OK) {
        result->entries = (struct sparse_entries){0};
        return status;
    }
    *indices = result->memory.bytes;
    *values = (unsigned char *)result->memory.bytes + values_at;
    result->entries = (struct sparse_entries){*indices, *values, nnz};
    return TUTTI_OK;
}

/* ---- lists of entries -------------------------------------------------------------------------
 */

static struct list list_of(const struct sparse_shape *shape, const struct sparse_entries *inputs,
                           int count)
{
    struct list list = {shape, inputs, count, 0};
    for (int i = 0; i < count; i++)
        if (__builtin_add_overflow(list.nnz, inputs[i].nnz, &list.nnz))
            list.nnz = SIZE_MAX; /* for which there is no memory */
    return list;
}

/* The input in which a position lies; *position becomes the one in there. */
static const struct sparse_entries *find(const struct list *list, uint64_t *position)
{
    const struct sparse_entries *input = list->inputs;
    while (*position >= input->nnz)
        *position -= input++->nnz;
    return input;
}

static bool same_index(const struct list *list, uint64_t a, uint64_t b)
{
    const struct sparse_entries *of_a = find(list, &a), *of_b = find(list, &b);
    for (size_t dim = 0; dim < (size_t)list->shape->sparse_dim; dim++)
        if (of_a->indices[dim * of_a->nnz + a] != of_b->indices[dim * of_b->nnz + b])
            return false;
    return true;
}

/* Writes the index of an entry as number i of nnz. */
static void index_copy(const struct sparse_shape *shape, int64_t *indices, size_t nnz, size_t i,
                       const struct sparse_entries *from, size_t at)
{
    for (size_t dim = 0; dim < (size_t)shape->sparse_dim; dim++)
        indices[dim * nnz + i] = from->indices[dim * from->nnz + at];
}

/* ---- keys -------------------------------------------------------------------------------------
 */

/* The first dimension of the longest word that ends before dimension `end`, and how many values the
 * word has. An index of no dimensions is a word of one value. */
static int word_begin(const struct sparse_shape *shape, int end, uint64_t *values)
{
    uint64_t longer = 1;
    *values = 1;
    while (end > 0 && !__builtin_mul_overflow(longer, (uint64_t)shape->sizes[end - 1], &longer)) {
        *values = longer;
        end--;
    }
    return end;
}

/* Sets the keys of pairs to the words, dimensions first to end - 1, of the entries in order. */
static void keys_fill(const struct sparse_shape *shape, const struct sparse_entries *entries,
                      int first, int end, struct pair *pairs)
{
    const size_t nnz = entries->nnz;
    for (size_t i = 0; i < nnz; i++)
        pairs[i].key = 0;
    for (int dim = first; dim < end && nnz > 0; dim++) {
        const uint64_t size = (uint64_t)shape->sizes[dim];
        const int64_t *indices = entries->indices + (size_t)dim * nnz;
        for (size_t i = 0; i < nnz; i++)
            pairs[i].key = pairs[i].key * size + (uint64_t)indices[i];
    }
}

static void insertion_sort(struct pair *pairs, size_t count)
{
    for (size_t i = 1; i < count; i++) {
        const struct pair pair = pairs[i];
        size_t at = i;
        for (; at > 0 && pairs[at - 1].key > pair.key; at--)
            pairs[at] = pairs[at - 1];
        pairs[at] = pair;
    }
}

/* One pass of the radix: by `bits` bits from `shift` on, equal ones in the order that they have. */
static void digit_sort(struct pair *to, const struct pair *from, size_t count, int shift, int bits)
{
    size_t place[1 << DIGIT_BITS], next = 0;
    const uint64_t digits = UINT64_C(1) << bits;
    for (uint64_t digit = 0; digit < digits; digit++)
        place[digit] = 0;
    for (size_t i = 0; i < count; i++)
        place[from[i].key >> shift & (digits - 1)]++;
    for (uint64_t digit = 0; digit < digits; digit++) {
        const size_t those = place[digit];
        place[digit] = next;
        next += those;
    }
    for (size_t i = 0; i < count; i++)
        to[place[from[i].key >> shift & (digits - 1)]++] = from[i];
}

/* Sorts keys below `values`, stable. Returns which of the two has the result. */
static struct pair *keys_sort(struct pair *pairs, struct pair *spare, size_t count, uint64_t values)
{
    if (count <= FEW) {
        insertion_sort(pairs, count);
        return pairs;
    }
    const int bits = values > 1 ? 64 - __builtin_clzll(values - 1) : 0;
    const int passes = (bits + DIGIT_BITS - 1) / DIGIT_BITS;
    for (int pass = 0; pass < passes; pass++) {
        const int shift = bits * pass / passes, end = bits * (pass + 1) / passes;
        digit_sort(spare, pairs, count, shift, end - shift);
        struct pair *sorted = spare;
        spare = pairs;
        pairs = sorted;
    }
    return pairs;
}

/* All entries of a list as {key, position}, sorted; equal indices in the order of the list. Returns
 * which of a and b has them. */
static struct pair *list_sort(const struct list *list, struct pair *a, struct pair *b)
{
    int end = list->shape->sparse_dim;
    uint64_t values;
    for (size_t i = 0; i < list->nnz; i++)
        a[i].value = i;
    do {
        const int first = word_begin(list->shape, end, &values);
        struct pair *words = b;
        for (int i = 0; i < list->count; words += list->inputs[i++].nnz)
            keys_fill(list->shape, &list->inputs[i], first, end, words);
        for (size_t i = 0; i < list->nnz; i++)
            a[i].key = b[a[i].value].key;
        struct pair *sorted = keys_sort(a, b, list->nnz, values);
        b = sorted == a ? b : a;
        a = sorted;
        end = first;
    } while (end > 0);
    if (word_begin(list->shape, list->shape->sparse_dim, &values) == 0)
        return a;
    for (size_t i = 0, key = 0; i < list->nnz; i++) {
        key += i > 0 && !same_index(list, a[i - 1].value, a[i].value);
        a[i].key = key;
    }
    return a;
}

/* ---- chains: rows added one by one ------------------------------------------------------------
 */

/* to = round(rows[0] + rows[1] + ...), elements at to at + count - 1, count up to CHAIN_BLOCK. */
typedef void chain_fn(void *to, const void *const *rows, size_t n, size_t at, size_t count);

#define DEFINE_CHAIN(T, element, accumulator, sum, store)                                          \
    static void T##_chain(void *to, const void *const *rows, size_t n, size_t at, size_t count)    \
    {                                                                                              \
        accumulator sums[CHAIN_BLOCK];                                                             \
        const element *row = (const element *)rows[0] + at;                                        \
        element *result = (element *)to + at;                                                      \
        for (size_t i = 0; i < count; i++)                                                         \
            sums[i] = numeric_##T##_load(row[i]);                                                  \
        for (size_t k = 1; k < n; k++) {                                                           \
            row = (const element *)rows[k] + at;                                                   \
            for (size_t i = 0; i < count; i++)                                                     \
                sums[i] = sum(sums[i], numeric_##T##_load(row[i]));                                \
        }                                                                                          \
        for (size_t i = 0; i < count; i++)                                                         \
            result[i] = store(sums[i]);                                                            \
    }
#define DEFINE_FLOAT_CHAIN(dtype, T, element, A, accumulator)                                      \
    DEFINE_CHAIN(T, element, accumulator, numeric_##A##_sum, numeric_##T##_store)
#define DEFINE_INTEGER_CHAIN(dtype, T, element)                                                    \
    DEFINE_CHAIN(T, element, element, numeric_##T##_sum, numeric_##T##_store)
/* X(dtype, T, element) */
#define INTEGER_MAP(X)                                                                             \
    X(INT8, i8, int8_t)                                                                            \
    X(UINT8, u8, uint8_t)                                                                          \
    X(INT16, i16, int16_t)                                                                         \
    X(INT32, i32, int32_t)                                                                         \
    X(INT64, i64, int64_t)                                                                         \
    X(UINT32, u32, uint32_t)                                                                       \
    X(UINT64, u64, uint64_t)
NUMERIC_FLOAT_MAP(DEFINE_FLOAT_CHAIN)
INTEGER_MAP(DEFINE_INTEGER_CHAIN)
DEFINE_CHAIN(b8, uint8_t, uint8_t, numeric_u8_bor, numeric_u8_store)

/* clang-format off */
#define CHAIN_ROW(dtype, T, ...) [TUTTI_##dtype] = T##_chain,
static chain_fn *const chains[TUTTI_DTYPE_COUNT] = {
    NUMERIC_FLOAT_MAP(CHAIN_ROW)
    INTEGER_MAP(CHAIN_ROW)
    [TUTTI_BOOL] = b8_chain,
};
/* clang-format on */

/* The sum of n rows of `count` elements, in order. */
static void rows_add(const struct sparse_worker *worker, enum tutti_dtype dtype, void *to,
                     const void *const *rows, size_t n, size_t count)
{
    if (n == 1) {
        worker->isa->copy(to, rows[0], count * dtype_bytes(dtype));
    } else if (n <= CHAIN_SHORT) {
        const struct reduce_call call = {.out = to, .in = rows, .n = (int)n, .count = count};
        worker->isa->fn[dtype][TUTTI_OP_SUM](&call);
    } else {
        for (size_t at = 0; at < count; at += CHAIN_BLOCK)
            chains[dtype](to, rows, n, at, count - at < CHAIN_BLOCK ? count - at : CHAIN_BLOCK);
    }
}

/* ---- coalescing -------------------------------------------------------------------------------
 */

/* The rows of sorted entries, in their order. Returns how many distinct keys there are. */
static size_t rows_find(const struct list *list, const struct pair *sorted, const void **rows)
{
    const size_t row_bytes = sparse_row_bytes(list->shape);
    size_t distinct = 0;
    for (size_t i = 0; i < list->nnz; i++) {
        uint64_t at = sorted[i].value;
        const struct sparse_entries *input = find(list, &at);
        rows[i] = row_bytes > 0 ? (const unsigned char *)input->values + at * row_bytes : NULL;
        distinct += i == 0 || sorted[i].key != sorted[i - 1].key;
    }
    return distinct;
}

/* Writes each distinct index and the sum of its rows. */
static void groups_add(const struct sparse_worker *worker, const struct list *list,
                       const struct pair *sorted, const void *const *rows, size_t distinct,
                       int64_t *indices, unsigned char *values)
{
    const enum tutti_dtype dtype = list->shape->dtype;
    const size_t row_bytes = sparse_row_bytes(list->shape);
    size_t first = 0, end;
    for (size_t i = 0; i < distinct; i++, first = end) {
        uint64_t at = sorted[first].value;
        const struct sparse_entries *input = find(list, &at);
        index_copy(list->shape, indices, distinct, i, input, at);
        for (end = first + 1; end < list->nnz && sorted[end].key == sorted[first].key; end++)
            ;
        if (row_bytes > 0)
            rows_add(worker, dtype, values + i * row_bytes, rows + first, end - first,
                     row_bytes / dtype_bytes(dtype));
    }
}

enum tutti_status sparse_coalesce(struct sparse_worker *worker, const struct sparse_shape *shape,
                                  const struct sparse_entries *inputs, int count,
                                  struct sparse_result *result)
{
    if (count == 1 && sparse_is_coalesced(shape, inputs)) {
        result->entries = inputs[0];
        return TUTTI_OK;
    }
    const struct list list = list_of(shape, inputs, count);
    size_t size = 0;
    bool fits = plan(&size, list.nnz, sizeof(struct pair));
    const size_t spare_at = size;
    fits = fits && plan(&size, list.nnz, sizeof(struct pair));
    const size_t rows_at = size;
    fits = fits && plan(&size, list.nnz, sizeof(void *));
    enum tutti_status status = fits ? reserve(&worker->scratch, size) : no_such_size(list.nnz);
    if (status != TUTTI_OK)
        return status;

    unsigned char *scratch = worker->scratch.bytes, *values;
    int64_t *indices;
    struct pair *sorted = list_sort(&list, (void *)scratch, (void *)(scratch + spare_at));
    const void **rows = (void *)(scratch + rows_at);
    const size_t distinct = rows_find(&list, sorted, rows);
    status = result_reserve(shape, distinct, result, &indices, &values);
    if (status != TUTTI_OK)
        return status;
    const uint64_t environment = reduce_env_begin();
    groups_add(worker, &list, sorted, rows, distinct, indices, values);
    reduce_env_end(environment);
    return TUTTI_OK;
}

/* ---- union ------------------------------------------------------------------------------------
 */

/* Merges two lists of {key, leaves} that ascend. Returns the end of what it wrote. Without branches
 * but for the ends: which list comes next cannot be predicted. */
static struct pair *merge(struct pair *to, const struct pair *a, const struct pair *a_end,
                          const struct pair *b, const struct pair *b_end)
{
    while (a < a_end && b < b_end) {
        const uint64_t from_a = a->key <= b->key, from_b = b->key <= a->key;
        to->key = from_a ? a->key : b->key;
        to->value = (a->value & -from_a) | (b->value & -from_b);
        a += from_a;
        b += from_b;
        to++;
    }
    while (a < a_end)
        *to++ = *a++;
    while (b < b_end)
        *to++ = *b++;
    return to;
}

/* Sets pairs to {key, leaf} of all entries of all parts, part after part. */
static void leaves_fill(const struct list *list, struct pair *pairs, struct pair *spare)
{
    const struct sparse_shape *shape = list->shape;
    uint64_t values;
    const bool one_word = word_begin(shape, shape->sparse_dim, &values) == 0;
    if (!one_word) {
        struct pair *sorted = list_sort(list, pairs, spare);
        struct pair *other = sorted == pairs ? spare : pairs;
        for (size_t i = 0; i < list->nnz; i++)
            other[sorted[i].value].key = sorted[i].key;
        for (size_t i = 0; i < list->nnz; i++)
            pairs[i].key = other[i].key;
    }
    for (int leaf = 0; leaf < list->count; leaf++) {
        const size_t nnz = list->inputs[leaf].nnz;
        if (one_word)
            keys_fill(shape, &list->inputs[leaf], 0, shape->sparse_dim, pairs);
        for (size_t i = 0; i < nnz; i++)
            pairs[i].value = UINT64_C(1) << leaf;
        pairs += nnz;
    }
}

/* Every distinct key of the parts with the leaves that have it, ascending. Returns which of a and b
 * has them, and how many they are. */
static struct pair *leaves_merge(const struct list *list, struct pair *a, struct pair *b,
                                 size_t *distinct)
{
    size_t begins[TUTTI_MAX_RANKS], counts[TUTTI_MAX_RANKS], next = 0;
    leaves_fill(list, a, b);
    for (int i = 0; i < list->count; i++) {
        begins[i] = next;
        counts[i] = list->inputs[i].nnz;
        next += counts[i];
    }
    /* List i and the one `step` on become one, in the room of the first and more. */
    for (int step = 1; step < list->count; step *= 2) {
        for (int i = 0; i < list->count; i += 2 * step) {
            const int j = i + step;
            const struct pair *left = a + begins[i], *right = j < list->count ? a + begins[j] : a;
            const size_t more = j < list->count ? counts[j] : 0;
            struct pair *to = b + begins[i];
            counts[i] = (size_t)(merge(to, left, left + counts[i], right, right + more) - to);
        }
        struct pair *merged = b;
        b = a;
        a = merged;
    }
    *distinct = counts[0];
    return a;
}

/* The leaf without the bits of the levels that are not in `levels`. */
static int slot_of(int leaf, uint64_t levels)
{
    int slot = 0;
    for (int bit = 1; levels; levels &= levels - 1, bit <<= 1)
        if ((uint64_t)leaf & levels & -levels)
            slot |= bit;
    return slot;
}

/*
 * The canonical tree that is left of the leaves `present`, as inputs of a reduction. A leaf's bits
 * are its way through the tree; where two present neighbours differ first, the tree has a node that
 * both sides reach. Levels without such a node only pass rows on and are left out; what is still
 * missing then is the neutral row. Returns the number of inputs.
 */
static int tree_of(uint64_t present, const unsigned char *const *rows, const void *neutral,
                   const void **in)
{
    uint64_t levels = 0;
    int last = __builtin_ctzll(present);
    for (uint64_t rest = present & (present - 1); rest; rest &= rest - 1) {
        const int leaf = __builtin_ctzll(rest);
        levels |= UINT64_C(1) << (31 - __builtin_clz((unsigned)(leaf ^ last)));
        last = leaf;
    }
    const int n = slot_of(last, levels) + 1;
    for (int i = 0; i < n; i++)
        in[i] = neutral;
    for (uint64_t rest = present; rest; rest &= rest - 1) {
        const int leaf = __builtin_ctzll(rest);
        in[slot_of(leaf, levels)] = rows[leaf];
    }
    return n;
}

/* The row that changes no sum: -0 for floats, which are the first dtypes, else 0. */
static void neutral_fill(enum tutti_dtype dtype, unsigned char *row, size_t row_bytes)
{
    const size_t size = dtype_bytes(dtype);
    memset(row, 0, row_bytes);
    for (size_t i = size - 1; dtype <= TUTTI_FLOAT8_E5M2 && i < row_bytes; i += size)
        row[i] = 0x80;
}

/* Walks through all parts: row by row of the result, the next row of each leaf that has it. */
static void leaves_add(const struct sparse_worker *worker, const struct list *list,
                       const struct pair *merged, size_t distinct, const void *neutral,
                       int64_t *indices, unsigned char *values)
{
    const struct sparse_shape *shape = list->shape;
    const size_t row_bytes = sparse_row_bytes(shape);
    reduce_fn *const reduce = worker->isa->fn[shape->dtype][TUTTI_OP_SUM];
    const unsigned char *rows[TUTTI_MAX_RANKS];
    size_t at[TUTTI_MAX_RANKS] = {0};
    const void *in[TUTTI_MAX_RANKS];
    struct reduce_call call = {.in = in, .count = row_bytes / dtype_bytes(shape->dtype)};
    for (int leaf = 0; leaf < list->count; leaf++)
        rows[leaf] = row_bytes > 0 ? list->inputs[leaf].values : neutral;
    for (size_t i = 0; i < distinct; i++) {
        const uint64_t present = merged[i].value;
        const int first = __builtin_ctzll(present);
        index_copy(shape, indices, distinct, i, &list->inputs[first], at[first]);
        if (row_bytes > 0) {
            call.out = values + i * row_bytes;
            call.n = tree_of(present, rows, neutral, in);
            reduce(&call);
        }
        for (uint64_t rest = present; rest; rest &= rest - 1) {
            const int leaf = __builtin_ctzll(rest);
            at[leaf]++;
            rows[leaf] += row_bytes;
        }
    }
}

enum tutti_status sparse_union(struct sparse_worker *worker, const struct sparse_shape *shape,
                               const struct sparse_entries *parts, int n,
                               struct sparse_result *result)
{
    const struct list list = list_of(shape, parts, n);
    const size_t row_bytes = sparse_row_bytes(shape);
    size_t size = 0, distinct;
    bool fits = plan(&size, list.nnz, sizeof(struct pair));
    const size_t spare_at = size;
    fits = fits && plan(&size, list.nnz, sizeof(struct pair));
    const size_t neutral_at = size;
    fits = fits && plan(&size, 1, row_bytes);
    enum tutti_status status = fits ? reserve(&worker->scratch, size) : no_such_size(list.nnz);
    if (status != TUTTI_OK)
        return status;

    unsigned char *scratch = worker->scratch.bytes, *neutral = scratch + neutral_at, *values;
    int64_t *indices;
    struct pair *merged =
        leaves_merge(&list, (void *)scratch, (void *)(scratch + spare_at), &distinct);
    status = result_reserve(shape, distinct, result, &indices, &values);
    if (status != TUTTI_OK)
        return status;
    neutral_fill(shape->dtype, neutral, row_bytes);
    const uint64_t environment = reduce_env_begin();
    leaves_add(worker, &list, merged, distinct, neutral, indices, values);
    reduce_env_end(environment);
    return TUTTI_OK;
}
