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
    return rank_set_next(rank_set_minus(request->subset, rank_set_of(group->peers.rank)), rank);
}

static enum tutti_status subset_start(struct cpu_group *group, struct request *request,
                                      struct cpu_state *state)
{
    const enum tutti_status status = lane_begin(&group->peers, LANE_SUBSET);
    if (status != TUTTI_OK)
        return status;
    request_started(request, group->peers.sequence, RECORD_SUBSET, RECORD_RUNNING);
    for (int r = next_other(group, request, -1); r >= 0; r = next_other(group, request, r))
        meeting_enter(&group->peers, r, request->parameter);
    state->at = next_other(group, request, -1);
    POINT("subset.published");
    bell_ring_if_heard(&group->peers);
    return TUTTI_OK;
}

static bool subset_entered(struct cpu_group *group, struct cpu_state *state,
                           const struct request *request)
{
    for (; state->at >= 0; state->at = next_other(group, request, state->at)) {
        const struct layout_meeting *theirs = meeting_of(&group->peers, state->at);
        if (!word_arrived(state, state->at, &theirs->count, group->peers.meetings[state->at]))
            return false;
        if (theirs->subset != request->parameter) {
            state->status =
                wait_mismatch(group, state->at, request->signature, theirs->subset, request);
            return false;
        }
    }
    return true;
}

static enum tutti_status start(void *opaque, struct request *request, void *memory)
{
    struct cpu_group *group = opaque;
    struct cpu_state *state = memory;
    state_init(state);
    if (!rank_set_empty(request->subset))
        return subset_start(group, request, state);
    const enum tutti_status status = operation_begin(group);
    if (status != TUTTI_OK)
        return status;
    const uint32_t sequence = (uint32_t)group->peers.sequence;
    request_started(request, group->peers.sequence, RECORD_CALL, RECORD_RUNNING);
    POINT("barrier.entered");
    wait_publish(group,
                 announcement_place(&group->peers, group->peers.rank, group->counts.announcement),
                 sequence, request);
    return TUTTI_OK;
}

static enum step_progress step(void *opaque, struct request *request, void *memory)
{
    struct cpu_group *group = opaque;
    struct cpu_state *state = memory;
    if (!(rank_set_empty(request->subset) ? all_entered : subset_entered)(group, state, request))
        return step_stopped(state);
    request->quick = group->peers.deadline == 0;
    return step_end(state, TUTTI_OK);
}

enum tutti_status cpu_barrier(void *group, struct request *request, tutti_stream_t stream)
{
    struct cpu_state state;
    const enum tutti_status status = start(group, request, &state);
    (void)stream;
    return status == TUTTI_OK ? cpu_steps_run(group, request, &state, step, false) : status;
}

const struct algorithm cpu_meeting = {
    .state_bytes = sizeof(struct cpu_state), .start = start, .step = step, .run = cpu_barrier};
