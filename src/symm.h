/* SPDX-License-Identifier: MIT */
/*
 * Symmetric memory as the collectives see it: is an operand in memory that every rank has mapped?
 *
 * symm.c         groups, allocations, views
 * symm_device.c  allocations on a device
 * symm_meet.c    the rendezvous
 * symm_signal.c  signals and the barrier
 */
#ifndef TUTTI_SYMM_H
#define TUTTI_SYMM_H

#include "tutti/tutti.h"

/* Where an operand lies in a rendezvoused allocation. */
struct symm_view {
    uint64_t id; /* of the rendezvous, random, the same on all its ranks, none of layout.h */
    int rank;    /* whose buffer it is: this rank's in the allocation's group */
    int world_size;
    uint64_t offset;      /* of the operand in the buffer, in bytes */
    void *const *buffers; /* world_size addresses in this process; valid until the free */
    size_t buffer_bytes;  /* of each */
};

/*
 * Whether [pointer, pointer + bytes) lies in a buffer of this process that was allocated with
 * tutti_symm_alloc() in host memory and has met its peers. No lock; one load when there is no
 * allocation.
 */
bool symm_find(const void *pointer, size_t bytes, struct symm_view *view);

/* Whether the pointer lies in such a buffer on a device, which the host cannot read. No lock; one
 * load when there is none. */
bool symm_on_device(const void *pointer, int *ordinal);

#endif
