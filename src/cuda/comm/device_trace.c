/* SPDX-License-Identifier: MIT */
/*
 * The device trace (base/device_trace.h) lies in the rank's recorder, behind the kernels' words for
 * the host, so that a launch needs one address for both. The mapping is separate from the
 * recorder's own, because replays may write there after the communicator is destroyed. If the
 * recorder cannot be mapped for the device, both lie in the pinned page. The watch reads
 * there for which rank a kernel waits.
 */
#include "base/deadline.h"
#include "base/log.h"
#include "base/order.h"
#include "base/record.h"
#include "cuda/comm/group_internal.h"

#include <inttypes.h>
#include <stdio.h>

/* A wait that the kernel has not reported for this many looks is over: one second. */
enum { SILENT_LOOKS = 50 };

static_assert(offsetof(struct record_page, device_trace) % CUDA_LINE == 0, "whole lines");

void cuda_device_trace_open(struct cuda_group *group, int fd)
{
    struct cuda_memory *recorder = &group->resources->recorder;
    if (fd < 0)
        return;
    if (cuda_memory_map_host(group->driver, fd, sizeof(struct record_page), recorder) != TUTTI_OK) {
        log_write(TUTTI_LOG_WARN, group->launch.rank,
                  "dumps will not have what the device does: %s", tutti_last_error());
        return;
    }
    struct record_page *page = recorder->segment.base;
    struct cuda_host *host = (struct cuda_host *)(void *)page->device_trace.host;
    *host = *group->resources->host;
    group->resources->host = host;
    group->launch.host =
        (struct cuda_host *)(uintptr_t)(recorder->base +
                                        offsetof(struct record_page, device_trace.host));
    group->device_trace = &page->device_trace;
}

/* Notes how far the device's clock is ahead of CLOCK_MONOTONIC. */
static void clocks_compare(struct cuda_group *group, uint64_t device_ns)
{
    struct record_page *page = group->resources->recorder.segment.base;
    if (!page)
        return;
    /* Relaxed: one word, for reports. */
    order_store_relaxed_u64((uint64_t *)&page->device_ahead_ns,
                            device_ns - (uint64_t)deadline_now());
}

void cuda_device_trace_begin(struct cuda_group *group)
{
    /* Relaxed, also below: the device has ended its write, or the word is only for reports. */
    group->looked_ns = order_load_relaxed_u64(&group->device_trace->wait.looked_ns);
    clocks_compare(group, group->looked_ns);
    group->silent_looks = SILENT_LOOKS + 1;
}

/* Logs for which rank the kernel waits, if one operation's wait has lasted for long. */
static void wait_log(struct cuda_group *group, uint64_t sequence, int peer)
{
    const int64_t now = deadline_now();
    const int late = peers_late_rank(group->peers, peer);
    char what[64] = "in a barrier of some ranks";
    if (group->silent_looks > SILENT_LOOKS || sequence != group->wait_sequence)
        group->reminder = reminder_start(now);
    group->silent_looks = 0;
    group->wait_sequence = sequence;
    const int waited_s = reminder_due(&group->reminder, now);
    if (!waited_s)
        return;
    if (sequence)
        snprintf(what, sizeof what, "in operation %" PRIu64, sequence);
    log_write(TUTTI_LOG_WARN, group->launch.rank,
              "rank %d has waited %d s %s on device %d for rank %d%s", group->launch.rank, waited_s,
              what, group->device.ordinal, late,
              cuda_is_thread(group, late)
                  ? ", a thread of this process: a call such as cuMemFree or cudaFree waits for "
                    "this operation, see docs/streams.md"
                  : "");
}

void cuda_device_trace_look(struct cuda_group *group)
{
    const struct device_trace_wait *wait = &group->device_trace->wait;
    const uint64_t looked_ns = order_load_relaxed_u64(&wait->looked_ns);
    const uint64_t of = order_load_relaxed_u64(&wait->of);
    const int peer = of & 0xff;
    if (looked_ns == group->looked_ns || peer >= group->launch.size) {
        group->silent_looks++;
        peers_awaits_none(group->peers);
        return;
    }
    group->looked_ns = looked_ns;
    clocks_compare(group, looked_ns);
    peers_awaits(group->peers, peer);
    wait_log(group, of >> 8, peer);
}
