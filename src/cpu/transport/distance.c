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
    THROWS = 8, /* there and back; the fastest run of 4 counts */
    RUN = 4,
    POLLS = 200,             /* a few microseconds */
    FAR_NS = 200,            /* one L3 is about 100, the next one 350 and more */
    BITS = 6,                /* of a rank */
    WORK_BYTES = 16 << 20,   /* between two probes: a thousandth of the time */
    OPERATION_BYTES = 16384, /* what an operation counts besides its bytes */
};

/* One throw: whoever has the lower rank serves. *caught says whether polling was enough: a partner
 * that shares our core, or has none now, does not come while we poll. */
static enum tutti_status throw_ball(struct cpu_group *group, int partner,
                                    const struct request *request, bool *caught)
{
    uint32_t ball = ++group->balls[partner];
    const uint32_t *theirs = &group->arenas[partner]->probes[group->rank];
    uint32_t *ours = &group->own->probes[partner];
    if (group->rank < partner)
        order_store_release_u32(ours, ball); /* D1 pairs A1 in wait_for() */
    for (int polls = *caught ? POLLS : 0; polls > 0 && order_load_acquire_u32(theirs) != ball;
         polls--)
        order_pause();
    *caught = *caught && order_load_acquire_u32(theirs) == ball;
    enum tutti_status status = wait_for(group, partner, theirs, ball, request);
    if (group->rank > partner)
        order_store_release_u32(ours, ball); /* D1 */
    bell_ring_if_heard(group);
    return status;
}

/* Leaves *round_trip_ns alone when no run was undisturbed. */
static enum tutti_status measure(struct cpu_group *group, int partner,
                                 const struct request *request, int64_t *round_trip_ns)
{
    bool caught = false; /* the first throw only waits until both are here */
    enum tutti_status status = throw_ball(group, partner, request, &caught);
    int64_t best = INT64_MAX;
    caught = true;
    for (int done = 0; done < THROWS && status == TUTTI_OK; done += RUN) {
        int64_t start = deadline_now();
        for (int i = 0; i < RUN && status == TUTTI_OK; i++)
            status = throw_ball(group, partner, request, &caught);
        int64_t time = (deadline_now() - start) / RUN;
        if (caught && time < best)
            best = time;
    }
    if (best != INT64_MAX)
        *round_trip_ns = best;
    return status;
}

static void conclude(struct cpu_group *group)
{
    group->far = false;
    for (int bit = 0; bit < BITS; bit++)
        group->far |= group->round_trip_ns[bit] > FAR_NS;
}

enum tutti_status distance_probe(struct cpu_group *group, const struct request *request)
{
    int bit = group->probe_bit;
    int partner = group->rank ^ 1 << bit;
    enum tutti_status status = TUTTI_OK;
    group->work = 0;
    group->probe_bit = 1 << (bit + 1) < group->size ? bit + 1 : 0;
    if (partner >= group->size)
        return TUTTI_OK;
    status = measure(group, partner, request, &group->round_trip_ns[bit]);
    conclude(group);
    return status;
}

enum tutti_status distance_update(struct cpu_group *group, const struct request *request)
{
    group->work += request->bytes + OPERATION_BYTES;
    return group->work >= WORK_BYTES ? distance_probe(group, request) : TUTTI_OK;
}
