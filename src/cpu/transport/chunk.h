/* SPDX-License-Identifier: MIT */
/* How elements are dealt out to the ranks. */
#ifndef TUTTI_CPU_CHUNK_H
#define TUTTI_CPU_CHUNK_H

#include "base/layout.h"

/* Elements of the chunk that one of `size` ranks owns of `count` elements: whole lines, so that no
 * line has two owners. */
static inline size_t chunk_elements(size_t count, int size, size_t element_bytes)
{
    size_t lines = (count * element_bytes + LAYOUT_LINE - 1) / LAYOUT_LINE;
    return (lines + (size_t)size - 1) / (size_t)size * (LAYOUT_LINE / element_bytes);
}

/* A rank's part of `count` elements cut into chunks: its first element in *first, its length
 * returned. */
static inline size_t chunk_of(size_t count, size_t chunk, int rank, size_t *first)
{
    *first = chunk * (size_t)rank < count ? chunk * (size_t)rank : count;
    return count - *first < chunk ? count - *first : chunk;
}

#endif
