/* SPDX-License-Identifier: MIT */
/*
 * The regions of this process: buffers that all ranks of a group map, so that the ranks can work on
 * operands where they lie. Symmetric memory adds its buffers. A collective asks
 * whether an operand lies in a region; only two-shots and longer one-shots, and messages, ask.
 *
 * A call finds the region of an address without a lock. On CUDA an operand in a region is memory of
 * the device like any other.
 */
#ifndef TUTTI_REGION_H
#define TUTTI_REGION_H

#include "base/order.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { REGION_MAX = 1024 }; /* regions of a process */

/* The owner keeps the struct and the buffer until region_remove(). */
struct region {
    void *base; /* the buffer of this rank */
    size_t bytes;
    uint32_t epoch; /* of the process: ipc/fork.h */
    int ordinal;    /* of the device in whose memory the buffer lies; -1: in the host's */
    int rank;       /* this rank's, in the group */
    int world_size;
    const void *symm_group; /* NULL: the buffer is no symmetric memory */
    uint32_t ready;         /* all ranks have mapped the buffers; the fields below are constant */
    uint64_t id;            /* the same on all ranks, random */
    void *const *buffers;   /* by rank: addresses in this process */
};

/* Returns false if the process has REGION_MAX regions. */
bool region_add(struct region *region);
/* Also takes a region that was not added. */
void region_remove(const struct region *region);
/* Returns a region of the group of symmetric memory; NULL if there is none. */
struct region *region_of_group(const void *symm_group);

/* Returns the region that holds [pointer, pointer + bytes), NULL if none does. Takes no lock. Costs
 * one load if the process has no region. */
struct region *region_lookup(const void *pointer, size_t bytes);
/* The same, for a region that all ranks have mapped: in the host's memory, in a device's. */
const struct region *region_find(const void *pointer, size_t bytes);
const struct region *region_find_device_memory(const void *pointer, size_t bytes);

/* The regions in devices' memory, those of the parent before fork() included. */
extern uint32_t region_device_count;
bool region_find_on_device(const void *pointer, int *ordinal);
/* Returns true and sets *ordinal to the device's if the pointer lies in a region in a device's
 * memory. Takes no lock. Costs one load if the process has no such region. */
static inline bool region_on_device(const void *pointer, int *ordinal)
{
    /* Relaxed for the reason given in region_lookup(). */
    return __builtin_expect(order_load_relaxed_u32(&region_device_count) != 0, 0) &&
           region_find_on_device(pointer, ordinal);
}

#endif
