/* SPDX-License-Identifier: MIT */
/* How elements are divided among the ranks. */
#ifndef TUTTI_CPU_CHUNK_H
#define TUTTI_CPU_CHUNK_H

#include "base/layout.h"

/* Elements of a chunk if `size` ranks divide `count` elements: whole cache lines, so that no line
 * has two owners. */
static inline size_t chunk_elements(size_t count, int size, size_t element_bytes)
{
    size_t lines = (count * element_bytes + LAYOUT_LINE - 1) / LAYOUT_LINE;
    return (lines + (size_t)size - 1) / (size_t)size * (LAYOUT_LINE / element_bytes);
}

/* A rank's chunk of `count` elements: *first is its first element. Returns its length. */
static inline size_t chunk_of(size_t count, size_t chunk, int rank, size_t *first)
{
    *first = chunk * (size_t)rank < count ? chunk * (size_t)rank : count;
    return count - *first < chunk ? count - *first : chunk;
}

#endif
