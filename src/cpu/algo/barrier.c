/* SPDX-License-Identifier: MIT */
/*
 * Barriers. Of all ranks: each announces itself, one hop. Of a subset: the other ranks take no
 * part, so the sequence stays, and each pair of ranks counts its own meetings. Two entries are
 * enough: a rank that enters meeting m + 2 has seen the peer enter m + 1, so the peer has left m.
 */
#include "base/point.h"
#include "coll/request.h"
#include "cpu/transport/wait.h"

static enum tutti_status subset_run(struct cpu_group *group, struct request *request)
{
    const uint64_t others = request->subset & ~(UINT64_C(1) << group->rank);
    if (cpu_group_has_failed(group))
        return cpu_group_status(group, NULL);
    group->op.announced = false;
    group->op.deadline = 0;
    request_started(request, group->op.sequence, RECORD_SUBSET, RECORD_RUNNING);
    for (uint64_t rest = others; rest; rest &= rest - 1) {
        int peer = __builtin_ctzll(rest);
        uint32_t count = ++group->op.meetings[peer];
        struct layout_meeting *own = &group->own->meetings[peer][count % 2];
        own->subset = request->parameter;
        order_store_release_u32(&own->count, count); /* B1 pairs A1 in wait_for() */
    }
    POINT("subset.published");
    bell_ring_if_heard(group);

    for (uint64_t rest = others; rest; rest &= rest - 1) {
        int peer = __builtin_ctzll(rest);
        uint32_t count = group->op.meetings[peer];
        const struct layout_meeting *theirs =
            &group->arenas[peer]->meetings[group->rank][count % 2];
        enum tutti_status status = wait_for(group, peer, &theirs->count, count, request);
        if (status != TUTTI_OK)
            return status;
        if (theirs->subset != request->parameter) {
            struct layout_header header = {.signature = request->signature,
                                           .parameter = theirs->subset};
            return wait_mismatch(group, peer, &header, request);
        }
    }
    request->quick = group->op.deadline == 0;
    return TUTTI_OK;
}

enum tutti_status cpu_barrier(void *opaque, struct request *request, tutti_stream_t stream)
{
    struct cpu_group *group = opaque;
    if (request->subset)
        return subset_run(group, request);
    enum tutti_status status = operation_begin(group);
    (void)stream;
    if (status != TUTTI_OK)
        return status;
    uint32_t sequence = (uint32_t)group->op.sequence;
    request_started(request, group->op.sequence, RECORD_CALL, RECORD_RUNNING);
    POINT("barrier.entered");
    wait_publish(group, announcement_place(group, group->rank, sequence), sequence, request);
    status = wait_all_enter(group, request);
    request->quick = group->op.deadline == 0;
    return status;
}
