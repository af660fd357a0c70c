/* SPDX-License-Identifier: MIT */
/* Symmetric memory: groups, allocations and typed views. */
#include "symm/symm.h"

#include "base/env.h"
#include "base/error.h"
#include "base/options.h"
#include "base/order.h"
#include "ipc/channel.h"
#include "ipc/fork.h"
#include "store/store.h"
#include "symm/symm_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DEFAULT_TIMEOUT_MS = 600000 };

/* ---- registry -------------------------------------------------------------------------------- */

/* Protects the lists of groups and allocations. Slots are written under it. */
static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER;
static struct tutti_symm_group *groups;
static pthread_once_t once = PTHREAD_ONCE_INIT;

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
static uint32_t slots_used;   /* slots[slots_used] and all after it are free */
static uint32_t device_slots; /* slots of device memory, the parent's before fork() included */

static void slot_write(struct slot *slot, struct symm_allocation *allocation)
{
    uint64_t version = slot->version;
    order_store_relaxed_u64(&slot->version, version + 1);
    /* Y3: a reader that sees one of the new fields also sees the odd version. */
    order_store_release_u64(&slot->base, allocation ? (uintptr_t)allocation->segment.base : 0);
    order_store_release_u64(&slot->bytes, allocation ? allocation->bytes : 0);
    order_store_release_u64(&slot->epoch, allocation ? allocation->group->epoch : 0);
    order_store_release_u64(&slot->allocation, (uintptr_t)allocation);
    order_store_release_u64(&slot->version, version + 2);
}

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

/* Called under the lock. Return false if all slots are taken. */
static bool slot_take(struct symm_allocation *allocation)
{
    for (uint32_t i = 0; i < SYMM_MAX_ALLOCATIONS; i++) {
        if (slots[i].bytes != 0 && !fork_detected((uint32_t)slots[i].epoch))
            continue;
        slot_write(&slots[i], allocation);
        if (allocation->cuda)
            order_store_relaxed_u32(&device_slots, device_slots + 1);
        if (i >= slots_used)
            order_store_release_u32(&slots_used, i + 1); /* Y5 */
        return true;
    }
    return false;
}

/* Called under the lock. */
static void slot_release(const struct symm_allocation *allocation)
{
    for (uint32_t i = 0; i < slots_used; i++)
        if (slots[i].allocation == (uintptr_t)allocation) {
            slot_write(&slots[i], NULL);
            if (allocation->cuda)
                order_store_relaxed_u32(&device_slots, device_slots - 1);
        }
    while (slots_used > 0 && slots[slots_used - 1].bytes == 0)
        order_store_relaxed_u32(&slots_used, slots_used - 1);
}

static void lock_registry(void)
{
    pthread_mutex_lock(&registry_lock);
}

static void unlock_registry(void)
{
    pthread_mutex_unlock(&registry_lock);
}

static void install_fork_handlers(void)
{
    (void)pthread_atfork(lock_registry, unlock_registry, unlock_registry);
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

bool symm_on_device(const void *pointer, int *ordinal)
{
    /* Relaxed for the reason given in lookup(). */
    if (__builtin_expect(order_load_relaxed_u32(&device_slots) == 0, 1))
        return false;
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

/* ---- groups ---------------------------------------------------------------------------------- */

static enum tutti_status group_check(const char *name, int rank, int world_size,
                                     tutti_store_t *store, tutti_symm_group_t **group)
{
    if (!group)
        return error_set(TUTTI_ERR_INVALID, "tutti_symm_group: group is NULL");
    if (!name || !*name || strlen(name) >= SYMM_NAME_BYTES)
        return error_set(TUTTI_ERR_INVALID,
                         "tutti_symm_group: name \"%.80s\": expected 1 to %d bytes",
                         name ? name : "", SYMM_NAME_BYTES - 1);
    if (world_size < 1 || world_size > TUTTI_MAX_RANKS || rank < 0 || rank >= world_size)
        return error_set(TUTTI_ERR_INVALID,
                         "tutti_symm_group \"%s\": rank %d of %d: expected 1 to %d ranks, numbered "
                         "from 0",
                         name, rank, world_size, TUTTI_MAX_RANKS);
    return store_check(store, "tutti_symm_group");
}

/* Called under the lock. */
static bool is_registered(const struct tutti_symm_group *new)
{
    for (const struct tutti_symm_group *old = groups; old; old = old->next)
        if (old->rank == new->rank && strcmp(old->name, new->name) == 0 &&
            !fork_detected(old->epoch))
            return true;
    return false;
}

enum tutti_status tutti_symm_group(const char *name, int rank, int world_size, tutti_store_t *store,
                                   tutti_symm_group_t **group)
{
    uint32_t epoch;
    int64_t timeout_ms = DEFAULT_TIMEOUT_MS;
    if (group)
        *group = NULL;
    enum tutti_status status = group_check(name, rank, world_size, store, group);
    if (status == TUTTI_OK)
        status = env_int64("TUTTI_TIMEOUT_MS", INT64_MIN, &timeout_ms);
    if (status == TUTTI_OK)
        status = fork_epoch(&epoch);
    if (status != TUTTI_OK)
        return status;
    pthread_once(&once, install_fork_handlers);

    struct tutti_symm_group *new = calloc(1, sizeof *new);
    if (!new)
        return error_set(TUTTI_ERR_NO_MEMORY, "tutti_symm_group: no memory for %zu bytes",
                         sizeof *new);
    new->epoch = epoch;
    new->rank = rank;
    new->world_size = world_size;
    new->store = store;
    new->timeout_ms = timeout_ms ? timeout_ms : DEFAULT_TIMEOUT_MS;
    memcpy(new->name, name, strlen(name) + 1);
    pthread_mutex_init(&new->rendezvous_lock, NULL);

    lock_registry();
    bool duplicate = is_registered(new);
    if (!duplicate) {
        new->next = groups;
        groups = new;
    }
    unlock_registry();
    if (duplicate) {
        pthread_mutex_destroy(&new->rendezvous_lock);
        free(new);
        return error_set(TUTTI_ERR_INVALID,
                         "tutti_symm_group: rank %d of group \"%s\" is already registered in this "
                         "process: destroy that group first or use another name",
                         rank, name);
    }
    *group = new;
    return TUTTI_OK;
}

/* The allocation is no longer in the registry. */
static void allocation_destroy(struct symm_allocation *allocation)
{
    if (!allocation->cuda)
        order_store_release_u32(&symm_tail(allocation, allocation->segment.base)->left, 1); /* Y6 */
    symm_unmap(allocation);
    if (allocation->fd >= 0)
        close(allocation->fd);
    free(allocation);
}

void tutti_symm_group_destroy(tutti_symm_group_t *group)
{
    /* A child of fork() has neither the memory nor usable locks. It leaves its copy of the group
     * as it is. */
    if (!group || fork_detected(group->epoch))
        return;
    lock_registry();
    for (struct tutti_symm_group **link = &groups; *link; link = &(*link)->next)
        if (*link == group) {
            *link = group->next;
            break;
        }
    for (struct symm_allocation *each = group->allocations; each; each = each->next)
        slot_release(each);
    unlock_registry();

    while (group->allocations) {
        struct symm_allocation *first = group->allocations;
        group->allocations = first->next;
        allocation_destroy(first);
    }
    cuda_symm_watch_close(group->watch);
    channel_close(group->channel);
    pthread_mutex_destroy(&group->rendezvous_lock);
    free(group);
}

/* ---- allocations ----------------------------------------------------------------------------- */

static size_t round_up(size_t bytes)
{
    return (bytes + SYMM_PAGE - 1) / SYMM_PAGE * SYMM_PAGE;
}

struct symm_tail *symm_tail(const struct symm_allocation *allocation, void *buffer)
{
    return (struct symm_tail *)(void *)((char *)buffer + allocation->pad_offset +
                                        allocation->pad_bytes);
}

static enum tutti_status alloc_check(const tutti_symm_group_t *group, enum tutti_device device,
                                     size_t bytes, void **buffer)
{
    if (!group || !buffer)
        return error_set(TUTTI_ERR_INVALID, "tutti_symm_alloc: %s is NULL",
                         group ? "buffer" : "group");
    if (fork_detected(group->epoch))
        return error_set(TUTTI_ERR_INVALID,
                         "tutti_symm_alloc: group \"%s\" belongs to the parent process: register a "
                         "group after fork()",
                         group->name);
    if (device != TUTTI_DEVICE_CPU && device != TUTTI_DEVICE_CUDA)
        return error_set(TUTTI_ERR_INVALID,
                         "tutti_symm_alloc: device %d: expected a value of enum tutti_device",
                         (int)device);
    if (bytes == 0)
        return error_set(TUTTI_ERR_INVALID, "tutti_symm_alloc: 0 bytes: ask for at least 1");
    if (bytes > INT64_MAX / 2)
        return error_set(TUTTI_ERR_NO_MEMORY,
                         "tutti_symm_alloc: %zu bytes are more than any machine has", bytes);
    return TUTTI_OK;
}

/* Compute the layout and create the segment. The registry does not know it yet. */
static enum tutti_status allocation_init(tutti_symm_group_t *group, enum tutti_device device,
                                         size_t bytes, struct symm_allocation *new)
{
    size_t signal_bytes =
        (size_t)SYMM_CHANNELS * (size_t)group->world_size * SYMM_LINE_WORDS * sizeof(uint32_t);
    new->group = group;
    new->device = device;
    new->ordinal = -1;
    new->bytes = bytes;
    new->pad_offset = round_up(bytes);
    new->pad_bytes = round_up(signal_bytes + SYMM_FREE_PAD_BYTES);
    size_t total = new->pad_offset + new->pad_bytes + sizeof(struct symm_tail);
    enum tutti_status status = device == TUTTI_DEVICE_CUDA
                                   ? symm_device_create(new)
                                   : segment_create("tutti-symm", total, &new->segment, &new->fd);
    return status == TUTTI_OK ? status
                              : error_context(status, "tutti_symm_alloc of %zu bytes", bytes);
}

enum tutti_status tutti_symm_alloc(tutti_symm_group_t *group, enum tutti_device device,
                                   size_t bytes, void **buffer)
{
    if (buffer)
        *buffer = NULL;
    enum tutti_status status = alloc_check(group, device, bytes, buffer);
    if (status != TUTTI_OK)
        return status;
    struct symm_allocation *new = calloc(1, sizeof *new);
    if (!new)
        return error_set(TUTTI_ERR_NO_MEMORY, "tutti_symm_alloc: no memory for %zu bytes",
                         sizeof *new);
    status = allocation_init(group, device, bytes, new);
    if (status != TUTTI_OK)
        goto err_free;

    lock_registry();
    bool taken = slot_take(new);
    if (taken) {
        new->next = group->allocations;
        group->allocations = new;
    }
    unlock_registry();
    if (!taken) {
        status = error_set(TUTTI_ERR_NO_MEMORY,
                           "tutti_symm_alloc: this process already has %d symmetric buffers, the "
                           "most that are allowed: free some, or put several tensors in one buffer",
                           SYMM_MAX_ALLOCATIONS);
        goto err_unmap;
    }
    *buffer = new->segment.base;
    return TUTTI_OK;

err_unmap:
    symm_unmap(new);
    close(new->fd);
err_free:
    free(new);
    return status;
}

enum tutti_status tutti_symm_free(void *buffer)
{
    if (!buffer)
        return TUTTI_OK;
    struct symm_allocation *allocation = symm_allocation_get(buffer, "tutti_symm_free");
    if (!allocation)
        return TUTTI_ERR_INVALID;
    lock_registry();
    slot_release(allocation);
    for (struct symm_allocation **link = &allocation->group->allocations; *link;
         link = &(*link)->next)
        if (*link == allocation) {
            *link = allocation->next;
            break;
        }
    unlock_registry();
    allocation_destroy(allocation);
    return TUTTI_OK;
}

static enum tutti_status info_write(const struct symm_allocation *allocation,
                                    struct tutti_symm_info *info)
{
    if (!info)
        return TUTTI_OK;
    struct tutti_symm_info own = {
        .rank = allocation->group->rank,
        .world_size = allocation->group->world_size,
        .buffer_bytes = allocation->bytes,
        .signal_pad_bytes = allocation->pad_bytes,
        .buffers = allocation->buffers,
        .signal_pads = allocation->pads,
        .channels = SYMM_CHANNELS,
        .device = allocation->device,
        .device_buffers = allocation->device_buffers,
        .device_signal_pads = allocation->device_pads,
    };
    options_copy_out(info, &own, sizeof own);
    return TUTTI_OK;
}

enum tutti_status tutti_symm_rendezvous(void *buffer, int64_t timeout_ms,
                                        struct tutti_symm_info *info)
{
    struct symm_allocation *allocation = symm_allocation_get(buffer, "tutti_symm_rendezvous");
    if (!allocation)
        return TUTTI_ERR_INVALID;
    enum tutti_status status =
        options_check_out("tutti_symm_rendezvous: info", "tutti_symm_info", info, sizeof *info);
    if (status == TUTTI_OK && !order_load_acquire_u32(&allocation->ready))
        status = symm_meet(allocation, timeout_ms);
    return status == TUTTI_OK ? info_write(allocation, info) : status;
}

/* ---- views ----------------------------------------------------------------------------------- */

static enum tutti_status check_rank(const struct symm_allocation *allocation, int rank,
                                    const char *call)
{
    if (rank < 0 || rank >= allocation->group->world_size)
        return error_set(TUTTI_ERR_INVALID, "%s: rank %d: expected 0 to %d", call, rank,
                         allocation->group->world_size - 1);
    return TUTTI_OK;
}

/* Check that [offset, offset + count) lies within `limit` elements or words (`things`). `count` is
 * not negative. No sum here can overflow. */
static enum tutti_status check_range(int64_t offset, int64_t count, size_t limit, int rank,
                                     const char *call, const char *things, const char *where)
{
    if (offset < 0)
        return error_set(TUTTI_ERR_INVALID, "%s: offset %" PRId64 " is negative", call, offset);
    if ((uint64_t)offset > limit || (uint64_t)count > limit - (uint64_t)offset)
        return error_set(TUTTI_ERR_INVALID,
                         "%s: %" PRId64 " %s from offset %" PRId64
                         " extend past the end of rank %d's %s, which holds %zu",
                         call, count, things, offset, rank, where, limit);
    return TUTTI_OK;
}

/* Set *count to the product of the extents: 0 if any extent is 0, however large the others are. */
static enum tutti_status count_elements(const int64_t *sizes, int dims, int64_t *count)
{
    static const char call[] = "tutti_symm_buffer";
    if (dims < 0 || (dims > 0 && !sizes))
        return error_set(TUTTI_ERR_INVALID, "%s: %d dimensions%s", call, dims,
                         dims < 0 ? ": expected 0 or more" : " but sizes is NULL");
    bool empty = false;
    for (int i = 0; i < dims; i++) {
        if (sizes[i] < 0)
            return error_set(TUTTI_ERR_INVALID, "%s: sizes[%d] is %" PRId64 ": negative", call, i,
                             sizes[i]);
        empty |= sizes[i] == 0;
    }
    *count = empty ? 0 : 1;
    for (int i = 0; i < dims && !empty; i++) {
        int64_t before = *count;
        if (__builtin_mul_overflow(before, sizes[i], count))
            return error_set(TUTTI_ERR_INVALID,
                             "%s: sizes[%d] is %" PRId64
                             ": the product with the extents before it, "
                             "%" PRId64 ", overflows",
                             call, i, sizes[i], before);
    }
    return TUTTI_OK;
}

enum tutti_status tutti_symm_buffer(void *buffer, int rank, const int64_t *sizes, int dims,
                                    enum tutti_dtype dtype, int64_t storage_offset, void **view)
{
    static const char call[] = "tutti_symm_buffer";
    int64_t count = 0;
    size_t width = tutti_dtype_size(dtype);
    if (!view)
        return error_set(TUTTI_ERR_INVALID, "%s: view is NULL", call);
    *view = NULL;
    const struct symm_allocation *allocation = symm_allocation_get_mapped(buffer, call);
    if (!allocation)
        return TUTTI_ERR_INVALID;
    if (width == 0)
        return error_set(TUTTI_ERR_INVALID, "%s: %d is not a value of enum tutti_dtype", call,
                         (int)dtype);
    enum tutti_status status = check_rank(allocation, rank, call);
    if (status == TUTTI_OK)
        status = count_elements(sizes, dims, &count);
    if (status == TUTTI_OK)
        status = check_range(storage_offset, count, allocation->bytes / width, rank, call,
                             tutti_dtype_name(dtype), "buffer");
    if (status == TUTTI_OK)
        *view = (char *)allocation->buffers[rank] + (size_t)storage_offset * width;
    return status;
}

enum tutti_status tutti_symm_signal_pad(void *buffer, int rank, int64_t offset, int64_t count,
                                        uint32_t **view)
{
    static const char call[] = "tutti_symm_signal_pad";
    if (!view)
        return error_set(TUTTI_ERR_INVALID, "%s: view is NULL", call);
    *view = NULL;
    const struct symm_allocation *allocation = symm_allocation_get_mapped(buffer, call);
    if (!allocation)
        return TUTTI_ERR_INVALID;
    enum tutti_status status = check_rank(allocation, rank, call);
    if (status == TUTTI_OK && count < 0)
        status = error_set(TUTTI_ERR_INVALID, "%s: count %" PRId64 " is negative", call, count);
    if (status == TUTTI_OK)
        status = check_range(offset, count, allocation->pad_bytes / sizeof(uint32_t), rank, call,
                             "words", "signal pad");
    if (status == TUTTI_OK)
        *view = allocation->pads[rank] + offset;
    return status;
}
