/* SPDX-License-Identifier: MIT */
/* Symmetric memory on a device: what differs from host memory. */
#include "base/error.h"
#include "ipc/channel.h"
#include "symm/symm_internal.h"

#include <string.h>
#include <unistd.h>

enum tutti_status symm_device_create(struct symm_allocation *allocation)
{
    const struct tutti_symm_group *group = allocation->group;
    const struct cuda_symm_config config = {
        .rank = group->rank,
        .size = group->world_size,
        .pad_offset = allocation->pad_offset,
        .tail_offset = allocation->pad_offset + allocation->pad_bytes,
        .timeout_ms = group->timeout_ms,
    };
    struct cuda_device device;
    if (group->world_size > CUDA_RANKS)
        return error_set(TUTTI_ERR_DECLINED,
                         "group \"%s\" has %d ranks: symmetric memory on a device is for groups of "
                         "at most %d",
                         group->name, group->world_size, CUDA_RANKS);
    enum tutti_status status = cuda_symm_create(&config, &device, &allocation->cuda,
                                                &allocation->segment.base, &allocation->fd);
    if (status != TUTTI_OK)
        return status;
    allocation->segment.bytes = config.tail_offset + sizeof(struct cuda_symm_tail);
    allocation->ordinal = device.ordinal;
    memcpy(allocation->uuid, device.uuid, sizeof allocation->uuid);
    return TUTTI_OK;
}

static enum tutti_status watch_peers(struct symm_allocation *allocation)
{
    struct tutti_symm_group *group = allocation->group;
    enum tutti_status status = TUTTI_OK;
    /* A rank of this process reports its own end; only other processes need the watch. */
    if (!group->channel)
        return TUTTI_OK;
    if (!group->watch)
        status = cuda_symm_watch_open(group->channel, group->remote, &group->watch);
    if (status == TUTTI_OK)
        cuda_symm_watch_add(group->watch, allocation->cuda);
    return status;
}

enum tutti_status symm_device_map(struct symm_allocation *allocation, const int *fds,
                                  int64_t deadline)
{
    struct tutti_symm_group *group = allocation->group;
    struct cuda_symm_places places;
    int sent[TUTTI_MAX_RANKS], all[CUDA_RANKS];
    enum tutti_status status = TUTTI_OK;
    memset(sent, -1, sizeof sent);
    if (group->channel)
        status = channel_all_gather_fds(group->channel, allocation->fd, sent,
                                        deadline_timeout_ms(deadline));
    for (int r = 0; r < group->world_size; r++)
        all[r] = symm_is_remote(group, r) ? sent[r] : fds[r];
    if (status == TUTTI_OK)
        status = cuda_symm_join(allocation->cuda, all, deadline, &places);
    for (int r = 0; r < group->world_size; r++)
        if (sent[r] >= 0)
            close(sent[r]);
    if (status == TUTTI_OK)
        status = watch_peers(allocation);
    if (status != TUTTI_OK)
        return status;
    memcpy(allocation->buffers, places.buffers, (size_t)group->world_size * sizeof(void *));
    allocation->device_buffers = places.device_buffers;
    allocation->device_pads = places.device_pads;
    return TUTTI_OK;
}

/* Set the thread's last error to the fault. */
static enum tutti_status fault_report(const struct symm_allocation *allocation,
                                      const struct cuda_symm_fault *fault)
{
    static const char *const calls[] = {
        [CUDA_SYMM_BARRIER] = "tutti_symm_barrier",
        [CUDA_SYMM_PUT] = "tutti_symm_put_signal",
        [CUDA_SYMM_WAIT] = "tutti_symm_wait_signal",
    };
    return symm_wait_error(fault->status, allocation->group, calls[fault->call],
                           fault->raised ? "raised its signal" : "taken the previous signal",
                           fault->peer, fault->channel,
                           ". This rank's buffer can no longer signal: free it on all ranks and "
                           "allocate a new one");
}

enum tutti_status symm_device_status(const struct symm_allocation *allocation,
                                     struct tutti_fault *fault)
{
    struct cuda_symm_fault found;
    if (!cuda_symm_failed(allocation->cuda, &found))
        return TUTTI_OK;
    fault->peer = found.peer;
    fault->expected.parameter = (uint32_t)found.channel;
    return fault_report(allocation, &found);
}

enum tutti_status symm_device_call(struct symm_allocation *allocation, enum cuda_symm_call call,
                                   int peer, int channel, int64_t timeout_ms, tutti_stream_t stream)
{
    struct cuda_symm_fault found;
    if (cuda_symm_failed(allocation->cuda, &found))
        return fault_report(allocation, &found);
    return cuda_symm_enqueue(allocation->cuda, call, peer, channel, timeout_ms, stream);
}
