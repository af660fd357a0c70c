/* SPDX-License-Identifier: MIT */
#include "sparse_reference.h"

#include "base/rank_set.h"
#include "reference.h"

#include <stdlib.h>
#include <string.h>

enum { ROW = 1200 }; /* elements of a row, at most */

static void require(bool holds)
{
    if (!holds)
        abort();
}

/* One entry of one of several tensors. */
struct entry {
    const struct sparse_shape *shape;
    const struct sparse_entries *of;
    size_t at;    /* in it */
    size_t order; /* among all */
    int tensor;
};

static int index_compare(const struct entry *a, const struct entry *b)
{
    for (int dim = 0; dim < a->shape->sparse_dim; dim++) {
        const int64_t left = a->of->indices[(size_t)dim * a->of->nnz + a->at];
        const int64_t right = b->of->indices[(size_t)dim * b->of->nnz + b->at];
        if (left != right)
            return left < right ? -1 : 1;
    }
    return 0;
}

static int entry_compare(const void *left, const void *right)
{
    const struct entry *a = left, *b = right;
    const int order = index_compare(a, b);
    return order != 0 ? order : a->order < b->order ? -1 : a->order > b->order;
}

static const void *row_of(const struct entry *entry)
{
    const size_t bytes = sparse_row_bytes(entry->shape);
    return bytes > 0 ? (const unsigned char *)entry->of->values + entry->at * bytes : NULL;
}

/* Small floats as float32 and back; the others as they are. */
static bool is_small(enum tutti_dtype dtype)
{
    return dtype >= TUTTI_FLOAT16 && dtype <= TUTTI_FLOAT8_E5M2;
}

static void widen(void *to, const unsigned char *from, enum tutti_dtype dtype, size_t count)
{
    const size_t size = tutti_dtype_size(dtype);
    if (!is_small(dtype))
        memcpy(to, from, count * size);
    for (size_t i = 0; is_small(dtype) && i < count; i++) {
        uint32_t code = 0;
        memcpy(&code, from + i * size, size);
        ((float *)to)[i] = (float)reference_decode(dtype, code);
    }
}

static void narrow(unsigned char *to, const void *from, enum tutti_dtype dtype, size_t count)
{
    const size_t size = tutti_dtype_size(dtype);
    if (!is_small(dtype))
        memcpy(to, from, count * size);
    for (size_t i = 0; is_small(dtype) && i < count; i++) {
        const uint32_t code = reference_encode(dtype, ((const float *)from)[i]);
        memcpy(to + i * size, &code, size);
    }
}

/* One by one, in the accumulation type. */
static void group_chain(unsigned char *to, const struct entry *group, size_t n, int leaves)
{
    double sums[2 * ROW], row[2 * ROW]; /* a complex number has two */
    (void)leaves;
    const enum tutti_dtype dtype = group->shape->dtype, wide = is_small(dtype) ? 0 : dtype;
    const size_t count = sparse_row_bytes(group->shape) / tutti_dtype_size(dtype);
    const void *in[] = {sums, row};
    require(count <= ROW);
    if (n == 1) {
        memcpy(to, row_of(group), sparse_row_bytes(group->shape));
        return;
    }
    widen(sums, row_of(group), dtype, count);
    for (size_t i = 1; i < n; i++) {
        widen(row, row_of(&group[i]), dtype, count);
        reference_reduce(sums, in, 2, count, wide, TUTTI_SUM, 0);
    }
    narrow(to, sums, dtype, count);
}

/* By the whole tree, with -0 or 0 for who is absent. */
static void group_tree(unsigned char *to, const struct entry *group, size_t n, int leaves)
{
    unsigned char absent[ROW * 16];
    const enum tutti_dtype dtype = reference_component(group->shape->dtype);
    const size_t size = tutti_dtype_size(dtype), bytes = sparse_row_bytes(group->shape);
    const float single = -0.0f;
    const double real = -0.0;
    uint64_t bits = 0;
    if (is_small(dtype))
        bits = reference_encode(dtype, -0.0);
    else if (dtype == TUTTI_FLOAT32)
        memcpy(&bits, &single, sizeof single);
    else if (dtype == TUTTI_FLOAT64)
        memcpy(&bits, &real, sizeof real);
    require(bytes <= sizeof absent);
    for (size_t at = 0; at < bytes; at += size)
        memcpy(absent + at, &bits, size);
    const void *in[WORLD_RANKS];
    for (int leaf = 0; leaf < leaves; leaf++)
        in[leaf] = absent;
    for (size_t i = 0; i < n; i++)
        in[group[i].tensor] = row_of(&group[i]);
    reference_reduce(to, in, leaves, bytes / size, dtype, TUTTI_SUM, 0);
}

typedef void group_fn(unsigned char *to, const struct entry *group, size_t n, int leaves);

static void *allocated(size_t size)
{
    void *bytes = malloc(size ? size : 1);
    require(bytes != NULL);
    return bytes;
}

/* The inputs' distinct indices in order, and what `sum` makes of their rows. */
static struct sparse_reference sum_groups(const struct sparse_shape *shape,
                                          const struct sparse_entries *inputs, int count,
                                          group_fn *sum)
{
    const size_t bytes = sparse_row_bytes(shape), dims = (size_t)shape->sparse_dim;
    size_t total = 0, distinct = 0, end;
    for (int i = 0; i < count; i++)
        total += inputs[i].nnz;
    struct entry *entries = allocated(total * sizeof *entries), *next = entries;
    struct sparse_reference result = {.indices = allocated(total * dims * sizeof(int64_t)),
                                      .values = allocated(total * bytes)};
    for (int i = 0; i < count; i++)
        for (size_t at = 0; at < inputs[i].nnz; at++, next++)
            *next = (struct entry){shape, &inputs[i], at, (size_t)(next - entries), i};
    qsort(entries, total, sizeof *entries, entry_compare);
    const struct entry **firsts = allocated(total * sizeof(const struct entry *));
    for (size_t first = 0; first < total; first = end, distinct++) {
        for (end = first; end < total && index_compare(&entries[first], &entries[end]) == 0; end++)
            ;
        firsts[distinct] = &entries[first];
        if (bytes > 0)
            sum(result.values + distinct * bytes, &entries[first], end - first, count);
    }
    for (size_t dim = 0; dim < dims; dim++)
        for (size_t at = 0; at < distinct; at++) {
            const struct entry *first = firsts[at];
            result.indices[dim * distinct + at] =
                first->of->indices[dim * first->of->nnz + first->at];
        }
    result.entries = (struct sparse_entries){result.indices, result.values, distinct};
    free(firsts);
    free(entries);
    return result;
}

struct sparse_reference sparse_reference_coalesce(const struct sparse_shape *shape,
                                                  const struct sparse_entries *inputs, int count)
{
    return sum_groups(shape, inputs, count, group_chain);
}

struct sparse_reference sparse_reference_unite(const struct sparse_shape *shape,
                                               const struct sparse_entries *parts, int n)
{
    return sum_groups(shape, parts, n, group_tree);
}

void sparse_reference_free(struct sparse_reference *reference)
{
    free(reference->indices);
    free(reference->values);
}
