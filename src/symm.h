/* SPDX-License-Identifier: MIT */
#ifndef TUTTI_SYMM_H
#define TUTTI_SYMM_H
#include "tutti/tutti.h"
struct symm_view {
    uint64_t id;
    int rank, world_size;
    uint64_t offset;
    void *const *buffers;
    size_t buffer_bytes;
};
bool symm_find(const void *pointer, size_t bytes, struct symm_view *view);
#endif
