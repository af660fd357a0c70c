/* SPDX-License-Identifier: MIT */
/*
 * How far apart the ranks' cores are decides how to copy. Inside one last-level cache a line takes
 * about 100 ns; from another one it takes 350 ns and more. Over 200 ns is far: then lines that a
 * peer reads, and does not write, are written past the caches. Mails, pushed results and copies
 * below 1 KiB always go through the caches.
 *
 * Virtual machines move cores, so a rank measures after every 16 MiB, inside an operation, at the
 * same place of the sequence on all ranks: 8 round trips with the rank whose number differs in one
 * bit, each time another bit. A rank is far if one of its partners is. The result concerns only how
 * the rank writes its own arena, so ranks need not agree.
 *
 * Each of the two ranks writes its own word and waits for the other's. The words are counts that
 * only grow.
 */
#include "cpu/transport/distance.h"

#include "base/deadline.h"
#include "cpu/transport/wait.h"

enum {
    PING_PONGS = 8, /* round trips; the fastest run of RUN counts */
    RUN = 4,
    POLLS = 200,             /* a few microseconds */
    FAR_NS = 200,            /* within one L3 cache about 100, else 350 and more */
    WORK_BYTES = 16 << 20,   /* between two probes, which then take 0.1 % of the time */
    OPERATION_BYTES = 16384, /* an operation counts as its bytes and these */
};

/* One round trip; the lower rank begins. *polled: in: poll first; out: polling was enough. If not,
 * the partner shares this core or has none, and the time says nothing. */
static enum tutti_status ping_pong(struct cpu_group *group, int partner,
                                   const struct request *request, bool *polled)
{
    uint32_t count = ++group->distance.ping_pongs[partner];
    const uint32_t *theirs = &group->arenas[partner]->probes[group->rank];
    uint32_t *ours = &group->own->probes[partner];
    if (group->rank < partner)
        order_store_release_u32(ours, count); /* D1 pairs A1 in wait_for() */
    for (int polls = *polled ? POLLS : 0; polls > 0 && order_load_acquire_u32(theirs) != count;
         polls--)
        order_pause();
    *polled = *polled && order_load_acquire_u32(theirs) == count;
    enum tutti_status status = wait_for(group, partner, theirs, count, request);
    if (group->rank > partner)
        order_store_release_u32(ours, count); /* D1 */
    bell_ring_if_heard(group);
    return status;
}

/* Leaves *round_trip_ns unchanged if every run was disturbed. */
static enum tutti_status measure(struct cpu_group *group, int partner,
                                 const struct request *request, int64_t *round_trip_ns)
{
    bool polled = false; /* the first one waits until both ranks are here */
    enum tutti_status status = ping_pong(group, partner, request, &polled);
    int64_t best = INT64_MAX;
    polled = true;
    for (int done = 0; done < PING_PONGS && status == TUTTI_OK; done += RUN) {
        int64_t start = deadline_now();
        for (int i = 0; i < RUN && status == TUTTI_OK; i++)
            status = ping_pong(group, partner, request, &polled);
        int64_t time = (deadline_now() - start) / RUN;
        if (polled && time < best)
            best = time;
    }
    if (best != INT64_MAX)
        *round_trip_ns = best;
    return status;
}

static void far_update(struct cpu_group *group)
{
    group->distance.far = false;
    for (int bit = 0; bit < DISTANCE_BITS; bit++)
        group->distance.far |= group->distance.round_trip_ns[bit] > FAR_NS;
}

enum tutti_status distance_probe(struct cpu_group *group, const struct request *request)
{
    int bit = group->distance.probe_bit;
    int partner = group->rank ^ 1 << bit;
    enum tutti_status status = TUTTI_OK;
    group->distance.work = 0;
    group->distance.probe_bit = 1 << (bit + 1) < group->size ? bit + 1 : 0;
    if (partner >= group->size)
        return TUTTI_OK;
    status = measure(group, partner, request, &group->distance.round_trip_ns[bit]);
    far_update(group);
    return status;
}

enum tutti_status distance_update(struct cpu_group *group, const struct request *request)
{
    group->distance.work += request->bytes + OPERATION_BYTES;
    return group->distance.work >= WORK_BYTES ? distance_probe(group, request) : TUTTI_OK;
}
