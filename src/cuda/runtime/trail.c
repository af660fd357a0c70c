/* SPDX-License-Identifier: MIT */
/*
 * The trail of the kernels in the rank's recorder (trail.h), beside their words for the host: one
 * address serves both. It is a mapping of its own of the recorder's memory, for replays may write
 * there after the communicator is gone. Where there is none, or the device cannot have it, both lie
 * in the pinned page, and nobody reads the trail.
 */
#include "base/deadline.h"
#include "base/log.h"
#include "base/order.h"
#include "base/record.h"
#include "cuda/runtime/group_internal.h"

static_assert(offsetof(struct record_page, trail) % CUDA_LINE == 0, "whole lines");

void cuda_trail_open(struct cuda_group *group, int fd)
{
    struct cuda_memory *recorder = &group->keep->recorder;
    if (fd < 0)
        return;
    if (cuda_memory_map_host(group->driver, fd, sizeof(struct record_page), recorder) != TUTTI_OK) {
        log_write(TUTTI_LOG_WARN, group->launch.rank,
                  "dumps will not have what the device does: %s", tutti_last_error());
        return;
    }
    struct record_page *page = recorder->segment.base;
    struct cuda_host *host = (struct cuda_host *)(void *)page->trail.host;
    *host = *group->keep->host;
    group->keep->host = host;
    group->launch.host =
        (struct cuda_host *)(uintptr_t)(recorder->base + offsetof(struct record_page, trail.host));
    group->trail = &page->trail;
}

/* What the device's clock says beyond ours. */
static void clocks_compare(struct cuda_group *group, uint64_t device_ns)
{
    struct record_page *page = group->host->record;
    /* Relaxed: one word, for reports. */
    order_store_relaxed_u64((uint64_t *)&page->device_ahead_ns,
                            device_ns - (uint64_t)deadline_now());
}

void cuda_trail_begin(struct cuda_group *group)
{
    if (!group->trail)
        return;
    /* Relaxed, also below: what the device wrote is over here, or for reports. */
    group->looked_ns = order_load_relaxed_u64(&group->trail->wait.looked_ns);
    clocks_compare(group, group->looked_ns);
}

void cuda_trail_look(struct cuda_group *group)
{
    if (!group->trail)
        return;
    const struct trail_wait *wait = &group->trail->wait;
    const uint64_t looked_ns = order_load_relaxed_u64(&wait->looked_ns);
    const int peer = order_load_relaxed_u64(&wait->of) & 0xff;
    if (looked_ns == group->looked_ns || peer >= group->launch.size) {
        cpu_group_awaits_none(group->host);
        return;
    }
    group->looked_ns = looked_ns;
    clocks_compare(group, looked_ns);
    cpu_group_awaits(group->host, peer);
}
