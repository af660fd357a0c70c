/* SPDX-License-Identifier: MIT */
/* The groups and allocations of this process. */
#include "base/error.h"
#include "base/fork_mutex.h"
#include "base/order.h"
#include "ipc/fork.h"
#include "symm/symm.h"
#include "symm/symm_internal.h"

#include <string.h>

/* Protects the list of groups. Slots are written under it. */
static struct fork_mutex lock = FORK_MUTEX(NULL);
static struct tutti_symmetric_group *groups;

/*
 * One live allocation. slot_read() finds it without a lock. The caller that looks up an address
 * keeps the allocation of that address alive, so this allocation's slot does not change during the
 * lookup. A slot that changes during the lookup belongs to another allocation; the lookup skips it
 * and need not read it again.
 */
struct slot {
    uint64_t version; /* odd while the slot is being written */
    uint64_t base;
    uint64_t bytes; /* 0: the slot is free */
    uint64_t epoch; /* of the process (ipc/fork.h): a child may map memory at the same address */
    uint64_t allocation; /* address of struct symm_allocation */
};
static struct slot slots[SYMM_MAX_ALLOCATIONS];
static uint32_t slots_used; /* slots[slots_used] and all after it are free */
uint32_t symm_device_slots;

static void slot_write(struct slot *slot, struct symm_allocation *allocation)
{
    uint64_t version = slot->version;
    order_store_relaxed_u64(&slot->version, version + 1);
    /* Y3: a reader that sees one of the new fields also sees the odd version. */
    order_store_release_u64(&slot->base, allocation ? (uintptr_t)allocation->segment.base : 0);
    order_store_release_u64(&slot->bytes, allocation ? allocation->bytes : 0);
    order_store_release_u64(&slot->epoch, allocation ? allocation->group->comm->epoch : 0);
    order_store_release_u64(&slot->allocation, (uintptr_t)allocation);
    order_store_release_u64(&slot->version, version + 2);
}

/* Return false if all slots are taken. */
static bool slot_take(struct symm_allocation *allocation)
{
    for (uint32_t i = 0; i < SYMM_MAX_ALLOCATIONS; i++) {
        if (slots[i].bytes != 0 && !fork_detected((uint32_t)slots[i].epoch))
            continue;
        slot_write(&slots[i], allocation);
        if (allocation->cuda)
            order_store_relaxed_u32(&symm_device_slots, symm_device_slots + 1);
        if (i >= slots_used)
            order_store_release_u32(&slots_used, i + 1); /* Y5 */
        return true;
    }
    return false;
}

static void slot_release(const struct symm_allocation *allocation)
{
    for (uint32_t i = 0; i < slots_used; i++)
        if (slots[i].allocation == (uintptr_t)allocation) {
            slot_write(&slots[i], NULL);
            if (allocation->cuda)
                order_store_relaxed_u32(&symm_device_slots, symm_device_slots - 1);
        }
    while (slots_used > 0 && slots[slots_used - 1].bytes == 0)
        order_store_relaxed_u32(&slots_used, slots_used - 1);
}

/* ---- lists ----------------------------------------------------------------------------------- */

bool symm_group_add(struct tutti_symmetric_group *new)
{
    fork_mutex_lock(&lock);
    const struct tutti_symmetric_group *old = groups;
    while (old && (old->rank != new->rank || strcmp(old->name, new->name) != 0 ||
                   fork_detected(old->comm->epoch)))
        old = old->next;
    if (!old) {
        new->next = groups;
        groups = new;
    }
    fork_mutex_unlock(&lock);
    return !old;
}

void symm_group_remove(struct tutti_symmetric_group *group)
{
    fork_mutex_lock(&lock);
    struct tutti_symmetric_group **link = &groups;
    while (*link != group)
        link = &(*link)->next;
    *link = group->next;
    fork_mutex_unlock(&lock);
}

bool symm_allocation_add(struct symm_allocation *new)
{
    fork_mutex_lock(&lock);
    const bool taken = slot_take(new);
    fork_mutex_unlock(&lock);
    return taken;
}

void symm_allocation_remove(const struct symm_allocation *allocation)
{
    fork_mutex_lock(&lock);
    slot_release(allocation);
    fork_mutex_unlock(&lock);
}

struct symm_allocation *symm_allocation_of(const struct tutti_symmetric_group *group)
{
    struct symm_allocation *found = NULL;
    fork_mutex_lock(&lock);
    for (uint32_t i = 0; i < slots_used && !found; i++) {
        struct symm_allocation *each = (struct symm_allocation *)(uintptr_t)slots[i].allocation;
        found = each && each->group == group ? each : NULL;
    }
    fork_mutex_unlock(&lock);
    return found;
}

/* ---- look-ups -------------------------------------------------------------------------------- */

/* Return the slot's allocation if its buffer holds [address, address + bytes), else NULL. */
static struct symm_allocation *slot_read(const struct slot *slot, uint64_t address, size_t bytes)
{
    uint64_t version = order_load_acquire_u64(&slot->version);
    uint64_t base = order_load_acquire_u64(&slot->base); /* Y3a, also the next three */
    uint64_t size = order_load_acquire_u64(&slot->bytes);
    uint64_t epoch = order_load_acquire_u64(&slot->epoch);
    uint64_t allocation = order_load_acquire_u64(&slot->allocation);
    if (address < base || address - base > size || bytes > size - (address - base) || size == 0)
        return NULL;
    if (version % 2 != 0 || order_load_relaxed_u64(&slot->version) != version ||
        fork_detected((uint32_t)epoch))
        return NULL;
    return (struct symm_allocation *)(uintptr_t)allocation;
}

static struct symm_allocation *lookup(const void *pointer, size_t bytes)
{
    /* Relaxed is enough: whatever gave the caller this pointer also ordered the allocation, and
     * the store to slots_used, before this load. */
    uint32_t used = order_load_relaxed_u32(&slots_used);
    for (uint32_t i = 0; i < used; i++) {
        struct symm_allocation *allocation = slot_read(&slots[i], (uintptr_t)pointer, bytes);
        if (allocation)
            return allocation;
    }
    return NULL;
}

bool symm_find(const void *pointer, size_t bytes, struct symm_view *view)
{
    struct symm_allocation *allocation = lookup(pointer, bytes);
    /* Y4a pairs Y4, at the end of the rendezvous: all addresses are visible. */
    if (!allocation || allocation->cuda || !order_load_acquire_u32(&allocation->ready))
        return false;
    *view = (struct symm_view){
        .id = allocation->id,
        .rank = allocation->group->rank,
        .world_size = allocation->group->world_size,
        .offset = (uintptr_t)pointer - (uintptr_t)allocation->segment.base,
        .buffers = allocation->buffers,
        .buffer_bytes = allocation->bytes,
    };
    return true;
}

bool symm_find_on_device(const void *pointer, int *ordinal)
{
    const struct symm_allocation *allocation = lookup(pointer, 1);
    if (!allocation || !allocation->cuda)
        return false;
    *ordinal = allocation->ordinal;
    return true;
}

struct symm_allocation *symm_allocation_get(const void *buffer, const char *call)
{
    struct symm_allocation *allocation = buffer ? lookup(buffer, 0) : NULL;
    if (allocation && allocation->segment.base == buffer)
        return allocation;
    error_set(TUTTI_ERR_INVALID,
              "%s: %p is not a symmetric buffer of this process: pass an address that "
              "tutti_symm_alloc() returned and that is not freed; a child of fork() cannot use its "
              "parent's buffers",
              call, buffer);
    return NULL;
}

struct symm_allocation *symm_allocation_get_mapped(const void *buffer, const char *call)
{
    struct symm_allocation *allocation = symm_allocation_get(buffer, call);
    if (allocation && !order_load_acquire_u32(&allocation->ready)) {
        error_set(TUTTI_ERR_INVALID,
                  "%s: the peers' buffers are not mapped yet: call tutti_symm_rendezvous() first",
                  call);
        return NULL;
    }
    return allocation;
}
