/* SPDX-License-Identifier: MIT */
/*
 * The distance between the ranks' cores decides how to copy. A round trip takes about 100 ns inside
 * one last-level cache, and at least 350 ns between two. More than 200 ns is far. A rank that is
 * far writes lines that a peer only reads past the caches, unless the processor copies them by `rep
 * movsb` (copy.h). Small messages, pushed results and copies below 1 KiB always go through the
 * caches.
 *
 * Hypervisors move virtual cores, so a rank measures after every 16 MiB, inside an operation, which
 * is the same one on all ranks. It makes 8 round trips with the rank whose number differs in one
 * bit, each time in another bit. In an operation with a root only the root and its partner do so. A
 * rank is far if one of its partners is. The result concerns only how the rank writes its own
 * arena, so ranks need not agree.
 *
 * Each of the two ranks writes its own word and waits for the other's. The words are counts that
 * only grow.
 */
#include "cpu/transport/distance.h"

#include "base/deadline.h"
#include "cpu/transport/step.h"

enum {
    RUN = 4,                 /* round trips; the fastest run counts */
    POLLS = 200,             /* a few microseconds */
    FAR_NS = 200,            /* within one L3 cache about 100, else 350 and more */
    WORK_BYTES = 16 << 20,   /* between two probes, which then take 0.1 % of the time */
    OPERATION_BYTES = 16384, /* an operation counts as its bytes and these */
};

static void far_update(struct cpu_group *group)
{
    group->distance.far = false;
    for (int bit = 0; bit < DISTANCE_BITS; bit++)
        group->distance.far |= group->distance.round_trip_ns[bit] > FAR_NS;
}

/* Begins the measurement of the next partner. Measures none if no rank has that number. */
static struct distance_probe probe_begin(struct cpu_group *group)
{
    struct cpu_distance *distance = &group->distance;
    struct distance_probe probe = {.bit = distance->probe_bit, .done = -1, .best = INT64_MAX};
    probe.partner = group->peers.rank ^ 1 << probe.bit;
    distance->work = 0;
    distance->probe_bit = 1 << (probe.bit + 1) < group->peers.size ? probe.bit + 1 : 0;
    if (probe.partner >= group->peers.size)
        probe.done = DISTANCE_PING_PONGS;
    return probe;
}

struct distance_probe distance_begin(struct cpu_group *group, const struct request *request)
{
    group->distance.work += request->bytes + OPERATION_BYTES;
    return group->distance.work >= WORK_BYTES
               ? probe_begin(group)
               : (struct distance_probe){.done = DISTANCE_PING_PONGS};
}

/* One round trip; the lower rank begins. If polling is not enough, the partner shares this core or
 * does not run, and the time is not used. */
static bool ping_pong(struct cpu_group *group, struct cpu_state *state,
                      struct distance_probe *probe)
{
    const int partner = probe->partner;
    const uint32_t *theirs = &group->peers.arenas[partner]->probes[group->peers.rank];
    uint32_t *ours = &group->peers.own->probes[partner];
    if (!probe->begun) {
        probe->begun = true;
        group->distance.ping_pongs[partner]++;
        if (group->peers.rank < partner) {
            order_store_release_u32(ours, group->distance.ping_pongs[partner]); /* D1 pairs A1 */
            bell_ring_if_heard(&group->peers);
        }
    }
    const uint32_t count = group->distance.ping_pongs[partner];
    if (probe->done >= 0 && !probe->disturbed)
        wait_polls(theirs, count, POLLS);
    if (!word_arrived(state, partner, theirs, count)) {
        probe->disturbed = true;
        return false;
    }
    if (group->peers.rank > partner) {
        order_store_release_u32(ours, count); /* D1 */
        bell_ring_if_heard(&group->peers);
    }
    probe->begun = false;
    return true;
}

bool distance_step(struct cpu_group *group, struct cpu_state *state, struct distance_probe *probe)
{
    for (; probe->done < DISTANCE_PING_PONGS; probe->done++) {
        if (!probe->begun && probe->done % RUN == 0) {
            probe->disturbed = false;
            probe->start = deadline_now();
        }
        if (!ping_pong(group, state, probe))
            return false;
        if (probe->done % RUN != RUN - 1 || probe->disturbed)
            continue;
        const int64_t time = (deadline_now() - probe->start) / RUN;
        probe->best = time < probe->best ? time : probe->best;
        group->distance.round_trip_ns[probe->bit] = probe->best;
        far_update(group);
    }
    return true;
}

enum tutti_status distance_measure(struct cpu_group *group, const struct request *request)
{
    struct cpu_state state;
    struct distance_probe probe = probe_begin(group);
    enum tutti_status status = TUTTI_OK;
    state_init(&state);
    while (status == TUTTI_OK && !distance_step(group, &state, &probe))
        status = wait_for(&group->peers, state.peer, state.word, state.value, request);
    return status;
}
