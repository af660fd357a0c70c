/* SPDX-License-Identifier: MIT */
/*
 * Barriers. In a barrier of all ranks each rank announces itself: one hop. An operation without
 * elements does the same. In a barrier of a subset the other ranks take no part. So it takes no
 * sequence number, and each pair of ranks counts its own meetings. Two entries are enough: a rank
 * that enters meeting m + 2 has seen the peer enter m + 1, so the peer has left m.
 */
#include "base/point.h"
#include "cpu/algo/algo.h"

static int next_other(const struct cpu_group *group, const struct request *request, int rank)
{
    return rank_set_next(rank_set_minus(request->subset, rank_set_of(group->rank)), rank);
}

static enum tutti_status subset_start(struct cpu_group *group, struct request *request,
                                      struct cpu_op *op)
{
    const enum tutti_status status = lane_begin(group, LANE_SUBSET);
    if (status != TUTTI_OK)
        return status;
    request_started(request, group->op.sequence, RECORD_SUBSET, RECORD_RUNNING);
    for (int r = next_other(group, request, -1); r >= 0; r = next_other(group, request, r)) {
        uint32_t count = ++group->op.meetings[r];
        struct layout_meeting *own = &group->own->meetings[r][count % 2];
        own->subset = request->parameter;
        order_store_release_u32(&own->count, count); /* B1 pairs A1 in word_arrived() */
    }
    op->at = next_other(group, request, -1);
    POINT("subset.published");
    bell_ring_if_heard(group);
    return TUTTI_OK;
}

static bool subset_entered(struct cpu_group *group, struct cpu_op *op,
                           const struct request *request)
{
    for (; op->at >= 0; op->at = next_other(group, request, op->at)) {
        const uint32_t count = group->op.meetings[op->at];
        const struct layout_meeting *theirs =
            &group->arenas[op->at]->meetings[group->rank][count % 2];
        if (!word_arrived(op, op->at, &theirs->count, count))
            return false;
        if (theirs->subset != request->parameter) {
            op->status = wait_mismatch(group, op->at, request->signature, theirs->subset, request);
            return false;
        }
    }
    return true;
}

static enum tutti_status start(void *opaque, struct request *request, void *state)
{
    struct cpu_group *group = opaque;
    struct cpu_op *op = state;
    op_init(op);
    if (!rank_set_empty(request->subset))
        return subset_start(group, request, op);
    const enum tutti_status status = operation_begin(group);
    if (status != TUTTI_OK)
        return status;
    const uint32_t sequence = (uint32_t)group->op.sequence;
    request_started(request, group->op.sequence, RECORD_CALL, RECORD_RUNNING);
    POINT("barrier.entered");
    wait_publish(group, announcement_place(group, group->rank, group->op.announcement), sequence,
                 request);
    return TUTTI_OK;
}

static enum op_progress step(void *opaque, struct request *request, void *state)
{
    struct cpu_group *group = opaque;
    struct cpu_op *op = state;
    if (!(rank_set_empty(request->subset) ? all_entered : subset_entered)(group, op, request))
        return op_stopped(op);
    request->quick = group->op.deadline == 0;
    return op_end(op, TUTTI_OK);
}

enum tutti_status cpu_barrier(void *group, struct request *request, tutti_stream_t stream)
{
    struct cpu_op op;
    const enum tutti_status status = start(group, request, &op);
    (void)stream;
    return status == TUTTI_OK ? cpu_steps_run(group, request, &op, step) : status;
}

const struct algorithm cpu_meeting = {sizeof(struct cpu_op), start, step, cpu_barrier};
