/* SPDX-License-Identifier: MIT */
/* How elements are divided among the ranks. */
#ifndef TUTTI_CPU_CHUNK_H
#define TUTTI_CPU_CHUNK_H

#include "base/layout.h"

#include <stdbool.h>

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

/* No part of an operation is shorter, over all blocks; of a v-form no part of a block. (2 ranks, 16
 * threads each, 32 KiB: 4.3 us, in two parts 5.1; 256 KiB: 26.7 and 21.8.) */
enum { PART_LEAST_BYTES = 32 * 1024 };

/* In how many parts, up to `most`, a block of a v-form goes. Both its ranks know its length. */
static inline int block_parts(size_t bytes, int most)
{
    const size_t parts = bytes / PART_LEAST_BYTES;
    return parts < 2 ? 1 : parts < (size_t)most ? (int)parts : most;
}

/* Cuts a block, of which this is part `part` of up to `most`. Returns whether the block has it. */
static inline bool block_cut(int part, int most, size_t *at, size_t *bytes)
{
    const int parts = block_parts(*bytes, most);
    size_t first = 0;
    if (part < parts)
        *bytes = chunk_of(*bytes, chunk_elements(*bytes, parts, 1), part, &first);
    else
        *bytes = 0;
    *at += first;
    return part < parts;
}

#endif
