/* SPDX-License-Identifier: MIT */
/*
 * Symmetric memory for the collectives, which ask whether an operand lies in memory that every rank
 * has mapped, and where. registry.c knows the buffers of this process, meet.c maps those of the
 * peers, symm.c has the calls for groups, allocations and views, signal.c those for signals and the
 * barrier.
 *
 * An allocation is one sealed memfd, or one exported allocation of a device: the buffer, the signal
 * pad, and a tail that says that the owner has freed it. A group meets once. Then each allocation
 * has a round of its own.
 *
 * A collective finds the allocation of an address without a lock, in a table of 1024 slots. Only
 * two-shots and longer one-shots look. Each announcement has the random ids that rank 0 gave to the
 * two allocations, so each rank sees whether all ranks use the same ones. On CUDA an operand in
 * symmetric memory is memory of the device like any other.
 */
#ifndef TUTTI_SYMM_H
#define TUTTI_SYMM_H

#include "base/order.h"
#include "tutti/tutti.h"

#include <stdbool.h>
#include <stdint.h>

/* Where an operand lies. Its allocation is mapped by all ranks. */
struct symm_view {
    uint64_t id; /* of the allocation: random, equal on all ranks, never a constant of layout.h */
    int rank;    /* the caller's, in the allocation's group */
    int world_size;
    uint64_t offset;      /* of the operand from the start of the caller's buffer, in bytes */
    void *const *buffers; /* by rank: addresses in this process, valid until the free */
    size_t buffer_bytes;  /* of each rank's buffer */
};

/*
 * Return true and fill *view if [pointer, pointer + bytes) lies in host memory that this process
 * allocated with tutti_symm_alloc() and whose rendezvous has succeeded. Takes no lock. Costs one
 * load if the process has no allocation.
 */
bool symm_find(const void *pointer, size_t bytes, struct symm_view *view);

/* Slots of device memory in the table, the parent's before fork() included. */
extern uint32_t symm_device_slots;
bool symm_find_on_device(const void *pointer, int *ordinal);
/* Return true and set *ordinal to the device's if the pointer lies in a symmetric buffer in a
 * device's memory. Takes no lock. Costs one load if the process has no such buffer. */
static inline bool symm_on_device(const void *pointer, int *ordinal)
{
    /* Relaxed for the reason given in lookup(). */
    return __builtin_expect(order_load_relaxed_u32(&symm_device_slots) != 0, 0) &&
           symm_find_on_device(pointer, ordinal);
}

#endif
