/* SPDX-License-Identifier: MIT */
/* Symmetric memory: groups, allocations and typed views. */
#include "symm/symm.h"

#include "base/error.h"
#include "base/fd.h"
#include "base/fork_mutex.h"
#include "base/options.h"
#include "base/order.h"
#include "ipc/fork.h"
#include "peers/segments.h"
#include "store/status_agree.h"
#include "store/store.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- groups ---------------------------------------------------------------------------------- */

static struct fork_mutex lock = FORK_MUTEX(NULL); /* of the list */
static struct tutti_symmetric_group *groups;

/* Return false if this process has registered that rank of a group of that name. */
static bool group_add(struct tutti_symmetric_group *new)
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

static void group_remove(struct tutti_symmetric_group *group)
{
    fork_mutex_lock(&lock);
    struct tutti_symmetric_group **link = &groups;
    while (*link != group)
        link = &(*link)->next;
    *link = group->next;
    fork_mutex_unlock(&lock);
}

static enum tutti_status group_check(const char *name, int rank, int world_size,
                                     tutti_store_t *store, tutti_symm_group_t **group)
{
    if (!group)
        return error_set(TUTTI_ERR_INVALID, "tutti_symm_group: group is NULL");
    if (!name || !*name || strlen(name) >= SYMM_NAME_BYTES)
        return error_set(TUTTI_ERR_INVALID,
                         "tutti_symm_group: name \"%.80s\": expected 1 to %d bytes",
                         name ? name : "", SYMM_NAME_BYTES - 1);
    if (world_size < 1 || world_size > NODE_RANKS || rank < 0 || rank >= world_size)
        return error_set(TUTTI_ERR_INVALID,
                         "tutti_symm_group \"%s\": rank %d of %d: expected 1 to %d ranks, numbered "
                         "from 0",
                         name, rank, world_size, NODE_RANKS);
    return store_check(store, "tutti_symm_group");
}

static void group_free(struct tutti_symmetric_group *group)
{
    tutti_comm_destroy(group->comm);
    pthread_mutex_destroy(&group->rendezvous_lock);
    free(group);
}

enum tutti_status tutti_symm_group(const char *name, int rank, int world_size, tutti_store_t *store,
                                   tutti_symm_group_t **group)
{
    int64_t timeout_ms = 0;
    char prefixed[SYMM_NAME_BYTES + 8];
    if (group)
        *group = NULL;
    enum tutti_status status = group_check(name, rank, world_size, store, group);
    if (status == TUTTI_OK)
        status = store_default_timeout(&timeout_ms);
    if (status != TUTTI_OK)
        return status;
    const size_t bytes = sizeof(struct tutti_symmetric_group) +
                         (size_t)world_size * (sizeof(struct status_report) + SYMM_OFFER_BYTES);
    struct tutti_symmetric_group *new = calloc(1, bytes);
    if (!new)
        return error_set(TUTTI_ERR_NO_MEMORY, "tutti_symm_group: no memory for %zu bytes", bytes);
    snprintf(prefixed, sizeof prefixed, "symm/%s", name);
    status = comm_create_plain(store, prefixed, rank, world_size, &new->comm);
    if (status != TUTTI_OK) {
        free(new);
        return error_context(status, "tutti_symm_group");
    }
    new->rank = rank;
    new->world_size = world_size;
    new->timeout_ms = timeout_ms;
    memcpy(new->name, name, strlen(name) + 1);
    pthread_mutex_init(&new->rendezvous_lock, NULL);

    if (!group_add(new)) {
        group_free(new);
        return error_set(TUTTI_ERR_INVALID,
                         "tutti_symm_group: rank %d of group \"%s\" is already registered in this "
                         "process: destroy that group first or use another name",
                         rank, name);
    }
    *group = new;
    return TUTTI_OK;
}

static struct symm_allocation *allocation_of(struct region *region)
{
    return (struct symm_allocation *)(void *)region;
}

/* The peers' memory, then this rank's own. */
static void unmap(struct symm_allocation *allocation)
{
    const struct tutti_symmetric_group *group = allocation->group;
    if (allocation->cuda) {
        cuda_symm_destroy(allocation->cuda);
        return;
    }
    for (int r = 0; r < group->world_size; r++)
        if (allocation->buffers[r])
            segments_leave(allocation->buffers[r], allocation->segment.bytes);
}

static void allocation_destroy(struct symm_allocation *allocation)
{
    region_remove(&allocation->region);
    if (!allocation->cuda)
        order_store_release_u32(&symm_tail(allocation, allocation->segment.base)->left, 1); /* Y6 */
    unmap(allocation);
    fd_drop(&allocation->fd);
    free(allocation);
}

void tutti_symm_group_destroy(tutti_symm_group_t *group)
{
    /* A child of fork() has neither the memory nor usable locks. It leaves its copy of the group
     * as it is. */
    if (!group || fork_detected(group->comm->epoch))
        return;
    group_remove(group);
    for (struct region *each; (each = region_of_group(group));)
        allocation_destroy(allocation_of(each));
    group_free(group);
}

/* ---- allocations ----------------------------------------------------------------------------- */

static size_t round_up(size_t bytes)
{
    return (bytes + SYMM_PAGE - 1) / SYMM_PAGE * SYMM_PAGE;
}

static enum tutti_status alloc_check(const tutti_symm_group_t *group, enum tutti_device device,
                                     size_t bytes, void **buffer)
{
    if (!group || !buffer)
        return error_set(TUTTI_ERR_INVALID, "tutti_symm_alloc: %s is NULL",
                         group ? "buffer" : "group");
    if (fork_detected(group->comm->epoch))
        return error_set(TUTTI_ERR_INVALID,
                         "tutti_symm_alloc: group \"%s\" belongs to the parent process: register a "
                         "group after fork()",
                         group->name);
    if (device != TUTTI_DEVICE_CPU && device != TUTTI_DEVICE_CUDA)
        return error_set(TUTTI_ERR_INVALID,
                         "tutti_symm_alloc: device %d: expected a value of enum tutti_device",
                         (int)device);
    if (bytes == 0 || bytes > INT64_MAX / 2)
        return error_set(bytes ? TUTTI_ERR_NO_MEMORY : TUTTI_ERR_INVALID,
                         "tutti_symm_alloc: %zu bytes: expected at least 1, and no more than the "
                         "machine has",
                         bytes);
    return TUTTI_OK;
}

static enum tutti_status host_create(struct symm_allocation *new, size_t bytes)
{
    enum tutti_status status =
        segments_create("tutti-symm", bytes, &new->segment, &new->fd, &new->id);
    new->buffers[new->group->rank] = new->segment.base;
    return status;
}

static enum tutti_status device_create(struct symm_allocation *new)
{
    const struct tutti_symmetric_group *group = new->group;
    const struct cuda_symm_config config = {
        .rank = group->rank,
        .size = group->world_size,
        .pad_offset = new->pad_offset,
        .tail_offset = new->pad_offset + new->pad_bytes,
        .timeout_ms = group->timeout_ms,
        .peers = group->comm->peers,
    };
    struct cuda_device device;
    if (group->world_size > CUDA_RANKS)
        return error_set(TUTTI_ERR_DECLINED,
                         "group \"%s\" has %d ranks: symmetric memory on a device is for groups of "
                         "at most %d",
                         group->name, group->world_size, CUDA_RANKS);
    enum tutti_status status =
        cuda_symm_create(&config, &device, &new->cuda, &new->segment.base, &new->fd);
    if (status != TUTTI_OK)
        return status;
    new->region.ordinal = device.ordinal;
    memcpy(new->uuid, device.uuid, sizeof new->uuid);
    return TUTTI_OK;
}

/* Compute the layout and create the memory. It is no region yet. */
static enum tutti_status allocation_init(tutti_symm_group_t *group, enum tutti_device device,
                                         size_t bytes, struct symm_allocation *new)
{
    size_t signal_bytes =
        (size_t)SYMM_CHANNELS * (size_t)group->world_size * SYMM_LINE_WORDS * sizeof(uint32_t);
    new->group = group;
    new->device = device;
    new->region = (struct region){
        .bytes = bytes,
        .epoch = group->comm->epoch,
        .ordinal = -1,
        .rank = group->rank,
        .world_size = group->world_size,
        .symm_group = group,
        .buffers = new->buffers,
    };
    new->pad_offset = round_up(bytes);
    new->pad_bytes = round_up(signal_bytes + SYMM_FREE_PAD_BYTES);
    enum tutti_status status =
        device == TUTTI_DEVICE_CUDA
            ? device_create(new)
            : host_create(new, new->pad_offset + new->pad_bytes + sizeof(struct symm_tail));
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

    new->region.base = new->segment.base;
    if (!region_add(&new->region)) {
        status = error_set(TUTTI_ERR_NO_MEMORY,
                           "tutti_symm_alloc: this process already has %d symmetric buffers, the "
                           "most that are allowed: free some, or put several tensors in one buffer",
                           REGION_MAX);
        goto err_unmap;
    }
    *buffer = new->segment.base;
    return TUTTI_OK;

err_unmap:
    unmap(new);
    close(new->fd);
err_free:
    free(new);
    return status;
}

struct symm_allocation *symm_allocation_get(const void *buffer, const char *call)
{
    struct region *region = buffer ? region_lookup(buffer, 0) : NULL;
    if (region && region->base == buffer && region->symm_group)
        return allocation_of(region);
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
    if (allocation && !order_load_acquire_u32(&allocation->region.ready)) {
        error_set(TUTTI_ERR_INVALID,
                  "%s: the peers' buffers are not mapped yet: call tutti_symm_rendezvous() first",
                  call);
        return NULL;
    }
    return allocation;
}

enum tutti_status tutti_symm_free(void *buffer)
{
    if (!buffer)
        return TUTTI_OK;
    struct symm_allocation *allocation = symm_allocation_get(buffer, "tutti_symm_free");
    if (!allocation)
        return TUTTI_ERR_INVALID;
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
        .buffer_bytes = allocation->region.bytes,
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
    if (status == TUTTI_OK && !order_load_acquire_u32(&allocation->region.ready))
        status = symm_meet(allocation, timeout_ms);
    return status == TUTTI_OK ? info_write(allocation, info) : status;
}

/* ---- views ----------------------------------------------------------------------------------- */

/* Return the buffer's allocation if its ranks are mapped and `rank` is one of them, else NULL. */
static const struct symm_allocation *view_check(void *buffer, int rank, const void *view,
                                                const char *call)
{
    const struct symm_allocation *allocation =
        view ? symm_allocation_get_mapped(buffer, call) : NULL;
    if (!view)
        error_set(TUTTI_ERR_INVALID, "%s: view is NULL", call);
    if (!allocation || (rank >= 0 && rank < allocation->group->world_size))
        return allocation;
    error_set(TUTTI_ERR_INVALID, "%s: rank %d: expected 0 to %d", call, rank,
              allocation->group->world_size - 1);
    return NULL;
}

/* Check that [offset, offset + count) lies within `limit` elements or words (`things`). No sum here
 * can overflow. */
static enum tutti_status check_range(int64_t offset, int64_t count, size_t limit, int rank,
                                     const char *call, const char *things, const char *where)
{
    if (offset < 0 || count < 0)
        return error_set(TUTTI_ERR_INVALID, "%s: %s %" PRId64 " is negative", call,
                         offset < 0 ? "offset" : "count", offset < 0 ? offset : count);
    if ((uint64_t)offset > limit || (uint64_t)count > limit - (uint64_t)offset)
        return error_set(TUTTI_ERR_INVALID,
                         "%s: %" PRId64 " %s from offset %" PRId64
                         " extend past the end of rank %d's %s, which holds %zu",
                         call, count, things, offset, rank, where, limit);
    return TUTTI_OK;
}

/* Set *count to the product of the extents, or to INT64_MAX if that is less. */
static enum tutti_status count_elements(const int64_t *sizes, int dims, int64_t *count)
{
    static const char call[] = "tutti_symm_buffer";
    if (dims < 0 || (dims > 0 && !sizes))
        return error_set(TUTTI_ERR_INVALID, "%s: %d dimensions%s", call, dims,
                         dims < 0 ? ": expected 0 or more" : " but sizes is NULL");
    *count = 1;
    for (int i = 0; i < dims; i++) {
        if (sizes[i] < 0)
            return error_set(TUTTI_ERR_INVALID, "%s: sizes[%d] is %" PRId64 ": negative", call, i,
                             sizes[i]);
        if (__builtin_mul_overflow(*count, sizes[i], count))
            *count = INT64_MAX;
    }
    return TUTTI_OK;
}

enum tutti_status tutti_symm_buffer(void *buffer, int rank, const int64_t *sizes, int dims,
                                    enum tutti_dtype dtype, int64_t storage_offset, void **view)
{
    static const char call[] = "tutti_symm_buffer";
    int64_t count = 0;
    size_t width = tutti_dtype_size(dtype);
    if (view)
        *view = NULL;
    const struct symm_allocation *allocation = view_check(buffer, rank, view, call);
    if (!allocation)
        return TUTTI_ERR_INVALID;
    if (width == 0)
        return error_set(TUTTI_ERR_INVALID, "%s: %d is not a value of enum tutti_dtype", call,
                         (int)dtype);
    enum tutti_status status = count_elements(sizes, dims, &count);
    if (status == TUTTI_OK)
        status = check_range(storage_offset, count, allocation->region.bytes / width, rank, call,
                             tutti_dtype_name(dtype), "buffer");
    if (status == TUTTI_OK)
        *view = (char *)allocation->buffers[rank] + (size_t)storage_offset * width;
    return status;
}

enum tutti_status tutti_symm_signal_pad(void *buffer, int rank, int64_t offset, int64_t count,
                                        uint32_t **view)
{
    static const char call[] = "tutti_symm_signal_pad";
    if (view)
        *view = NULL;
    const struct symm_allocation *allocation = view_check(buffer, rank, view, call);
    if (!allocation)
        return TUTTI_ERR_INVALID;
    enum tutti_status status = check_range(offset, count, allocation->pad_bytes / sizeof(uint32_t),
                                           rank, call, "words", "signal pad");
    if (status == TUTTI_OK)
        *view = allocation->pads[rank] + offset;
    return status;
}
