/* SPDX-License-Identifier: MIT */
#include "coll/region.h"

#include "base/fork_mutex.h"
#include "ipc/fork.h"

/* Slots are written under it. */
static struct fork_mutex lock = FORK_MUTEX(NULL);

/*
 * One region. slot_read() finds it without a lock. The caller that looks up an address keeps the
 * region of that address alive, so this region's slot does not change during the lookup. A slot
 * that changes during the lookup belongs to another region; the lookup skips it and need not read
 * it again.
 */
struct slot {
    uint64_t version; /* odd while the slot is being written */
    uint64_t base;
    uint64_t bytes;  /* 0: the slot is free */
    uint64_t epoch;  /* of the process: a child of fork() may map memory at the same address */
    uint64_t region; /* address of struct region */
};
static struct slot slots[REGION_MAX];
static uint32_t slots_used; /* slots[slots_used] and all after it are free */
uint32_t region_device_count;

static void slot_write(struct slot *slot, const struct region *region)
{
    uint64_t version = slot->version;
    order_store_relaxed_u64(&slot->version, version + 1);
    /* Y3: a reader that sees one of the new fields also sees the odd version. */
    order_store_release_u64(&slot->base, region ? (uintptr_t)region->base : 0);
    order_store_release_u64(&slot->bytes, region ? region->bytes : 0);
    order_store_release_u64(&slot->epoch, region ? region->epoch : 0);
    order_store_release_u64(&slot->region, (uintptr_t)region);
    order_store_release_u64(&slot->version, version + 2);
}

/* Return false if all slots are taken. */
static bool slot_take(const struct region *region)
{
    for (uint32_t i = 0; i < REGION_MAX; i++) {
        if (slots[i].bytes != 0 && !fork_detected((uint32_t)slots[i].epoch))
            continue;
        slot_write(&slots[i], region);
        if (region->ordinal >= 0)
            order_store_relaxed_u32(&region_device_count, region_device_count + 1);
        if (i >= slots_used)
            order_store_release_u32(&slots_used, i + 1); /* Y5 */
        return true;
    }
    return false;
}

bool region_add(struct region *region)
{
    fork_mutex_lock(&lock);
    const bool taken = slot_take(region);
    fork_mutex_unlock(&lock);
    return taken;
}

void region_remove(const struct region *region)
{
    fork_mutex_lock(&lock);
    for (uint32_t i = 0; i < slots_used; i++)
        if (slots[i].region == (uintptr_t)region) {
            slot_write(&slots[i], NULL);
            if (region->ordinal >= 0)
                order_store_relaxed_u32(&region_device_count, region_device_count - 1);
        }
    while (slots_used > 0 && slots[slots_used - 1].bytes == 0)
        order_store_relaxed_u32(&slots_used, slots_used - 1);
    fork_mutex_unlock(&lock);
}

struct region *region_of_group(const void *symm_group)
{
    struct region *found = NULL;
    fork_mutex_lock(&lock);
    for (uint32_t i = 0; i < slots_used && !found; i++) {
        struct region *each = (struct region *)(uintptr_t)slots[i].region;
        found = each && each->symm_group == symm_group ? each : NULL;
    }
    fork_mutex_unlock(&lock);
    return found;
}

/* Return the slot's region if its buffer holds [address, address + bytes), else NULL. */
static struct region *slot_read(const struct slot *slot, uint64_t address, size_t bytes)
{
    uint64_t version = order_load_acquire_u64(&slot->version);
    uint64_t base = order_load_acquire_u64(&slot->base); /* Y3a, also the next three */
    uint64_t size = order_load_acquire_u64(&slot->bytes);
    uint64_t epoch = order_load_acquire_u64(&slot->epoch);
    uint64_t region = order_load_acquire_u64(&slot->region);
    if (address < base || address - base > size || bytes > size - (address - base) || size == 0)
        return NULL;
    if (version % 2 != 0 || order_load_relaxed_u64(&slot->version) != version ||
        fork_detected((uint32_t)epoch))
        return NULL;
    return (struct region *)(uintptr_t)region;
}

struct region *region_lookup(const void *pointer, size_t bytes)
{
    /* Relaxed is enough: whatever gave the caller this pointer also ordered the region, and the
     * store to slots_used, before this load. */
    uint32_t used = order_load_relaxed_u32(&slots_used);
    for (uint32_t i = 0; i < used; i++) {
        struct region *region = slot_read(&slots[i], (uintptr_t)pointer, bytes);
        if (region)
            return region;
    }
    return NULL;
}

static const struct region *find_mapped(const void *pointer, size_t bytes, bool on_device)
{
    const struct region *region = region_lookup(pointer, bytes);
    /* Y4a pairs Y4, at the end of the rendezvous: all addresses are visible. */
    return region && (region->ordinal >= 0) == on_device && order_load_acquire_u32(&region->ready)
               ? region
               : NULL;
}

const struct region *region_find(const void *pointer, size_t bytes)
{
    return find_mapped(pointer, bytes, false);
}

const struct region *region_find_device_memory(const void *pointer, size_t bytes)
{
    return find_mapped(pointer, bytes, true);
}

bool region_find_on_device(const void *pointer, int *ordinal)
{
    const struct region *region = region_lookup(pointer, 1);
    if (!region || region->ordinal < 0)
        return false;
    *ordinal = region->ordinal;
    return true;
}
