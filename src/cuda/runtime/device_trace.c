/* SPDX-License-Identifier: MIT */
/*
 * The device trace (base/device_trace.h) lies in the rank's recorder, behind the kernels' words for
 * the host, so that a launch needs one address for both. The mapping is separate from the
 * recorder's own, because replays may write there after the communicator is destroyed. If the
 * recorder cannot be mapped for the device, both lie in the pinned page and nobody reads the trace.
 */
#include "base/deadline.h"
#include "base/log.h"
#include "base/order.h"
#include "base/record.h"
#include "cuda/runtime/group_internal.h"

static_assert(offsetof(struct record_page, device_trace) % CUDA_LINE == 0, "whole lines");

void cuda_device_trace_open(struct cuda_group *group, int fd)
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
    struct cuda_host *host = (struct cuda_host *)(void *)page->device_trace.host;
    *host = *group->keep->host;
    group->keep->host = host;
    group->launch.host =
        (struct cuda_host *)(uintptr_t)(recorder->base +
                                        offsetof(struct record_page, device_trace.host));
    group->device_trace = &page->device_trace;
}

/* Notes how far the device's clock is ahead of CLOCK_MONOTONIC. */
static void clocks_compare(struct cuda_group *group, uint64_t device_ns)
{
    struct record_page *page = group->host->record;
    /* Relaxed: one word, for reports. */
    order_store_relaxed_u64((uint64_t *)&page->device_ahead_ns,
                            device_ns - (uint64_t)deadline_now());
}

void cuda_device_trace_begin(struct cuda_group *group)
{
    if (!group->device_trace)
        return;
    /* Relaxed, also below: the device's write is complete, or the word is for reports only. */
    group->looked_ns = order_load_relaxed_u64(&group->device_trace->wait.looked_ns);
    clocks_compare(group, group->looked_ns);
}

void cuda_device_trace_look(struct cuda_group *group)
{
    if (!group->device_trace)
        return;
    const struct device_trace_wait *wait = &group->device_trace->wait;
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
