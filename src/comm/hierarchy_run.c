/* SPDX-License-Identifier: MIT */
/* The operations of several hosts: which one a request is, and how the parts follow each other. */
#include "base/error.h"
#include "comm/hierarchy_internal.h"
#include "comm/run.h"

enum { LIST_LEAST = 4 }; /* messages a rank, for which each operation has room */

static enum tutti_status (*const first_parts[sizeof coll_rows / sizeof *coll_rows])(
    struct hierarchy_state *) = {
    [TUTTI_COLLECTIVE_BARRIER] = hierarchy_barrier,
    [TUTTI_COLLECTIVE_ALL_REDUCE] = hierarchy_sum,
    [TUTTI_COLLECTIVE_REDUCE] = hierarchy_sum,
    [TUTTI_COLLECTIVE_REDUCE_SCATTER] = hierarchy_sum_scatter,
    [TUTTI_COLLECTIVE_REDUCE_SCATTER_V] = hierarchy_sum_scatter,
    [TUTTI_COLLECTIVE_BROADCAST] = hierarchy_broadcast,
    [TUTTI_COLLECTIVE_ALL_GATHER] = hierarchy_all_gather,
    [TUTTI_COLLECTIVE_ALL_GATHER_V] = hierarchy_all_gather,
    [TUTTI_COLLECTIVE_SPLIT] = hierarchy_all_gather,
    [TUTTI_COLLECTIVE_ALL_TO_ALL] = hierarchy_all_to_all,
    [TUTTI_COLLECTIVE_ALL_TO_ALL_V] = hierarchy_all_to_all,
    [TUTTI_COLLECTIVE_GATHER] = hierarchy_gather,
    [TUTTI_COLLECTIVE_GATHER_V] = hierarchy_gather,
    [TUTTI_COLLECTIVE_SCATTER] = hierarchy_scatter,
    [TUTTI_COLLECTIVE_SCATTER_V] = hierarchy_scatter,
    [TUTTI_COLLECTIVE_SEND] = hierarchy_message,
    [TUTTI_COLLECTIVE_RECV] = hierarchy_message,
};

/* Takes a collective's number. A barrier of a subset has none. */
static enum tutti_status collective_begin(struct hierarchy_state *state)
{
    struct hierarchy *self = state->self;
    struct request *request = state->request;
    const bool has_subset = !rank_set_empty(request->subset);
    if (!has_subset)
        order_store_relaxed_u64(&self->sequence, self->sequence + 1);
    request_started(request, self->sequence, request_kind(request), RECORD_RUNNING);
    state->next = first_parts[request->collective];
    return self->local == 0 && !has_subset ? hierarchy_headers_start(state) : TUTTI_OK;
}

/* The headers of the collective before, for which this rank had to wait, have come. */
static enum tutti_status headers_come(struct hierarchy_state *state)
{
    const enum tutti_status status = hierarchy_headers_compare(state->self);
    return status == TUTTI_OK ? collective_begin(state) : status;
}

static enum tutti_status start(void *opaque, struct request *request, void *memory)
{
    struct hierarchy *self = opaque;
    struct hierarchy_state *state = memory;
    if (!first_parts[request->collective])
        return error_set(TUTTI_ERR_DECLINED, "%s is not there between hosts yet",
                         coll_rows[request->collective].call);
    enum tutti_status status = lane_begin(self->comm->peers, LANE_NONE);
    if (status == TUTTI_OK)
        status = hierarchy_room(self, LIST_LEAST * (size_t)self->comm->world_size);
    if (status != TUTTI_OK)
        return status;
    hierarchy_state_init(self, request, first_parts[request->collective], state);
    if (coll_rows[request->collective].peer == COLL_PARTNER) {
        request_started(request, self->sequence, RECORD_SUBSET, RECORD_RUNNING);
        return TUTTI_OK;
    }
    state->next = headers_come;
    return hierarchy_headers_await(state) ? TUTTI_OK : collective_begin(state);
}

static enum step_progress step(void *opaque, struct request *request, void *memory)
{
    struct hierarchy_state *state = memory;
    enum tutti_status status = TUTTI_OK;
    (void)opaque, (void)request;
    while (status == TUTTI_OK) {
        if (hierarchy_waits(state, &status))
            return STEP_BUSY;
        if (status == TUTTI_OK && !state->next)
            break;
        if (status == TUTTI_OK)
            status = state->next(state);
    }
    return step_end(&state->base, status);
}

static void leave_failed(void *opaque, const struct request *request, void *memory)
{
    const struct hierarchy *self = opaque;
    struct hierarchy_state *state = memory;
    (void)request;
    if (state->in_node && state->node.choice.run->leave_failed)
        state->node.choice.run->leave_failed(self->node->group, &state->node, state->node_state);
}

/* One wait of a call outside of a group of calls. */
static enum tutti_status await(struct hierarchy_state *state)
{
    struct peers *const peers = state->self->comm->peers;
    const struct cpu_state *wait = &state->base;
    const struct request *request = state->in_node ? &state->node : state->request;
    return wait->word ? wait_for(peers, wait->peer, wait->word, wait->value, request)
                      : wait_by_poll(peers, wait->poll, state, request);
}

static enum tutti_status run(void *opaque, struct request *request, tutti_stream_t stream)
{
    struct hierarchy *self = opaque;
    struct hierarchy_state *state = self->running;
    (void)stream;
    enum tutti_status status = start(self, request, state);
    if (status != TUTTI_OK)
        return status;
    while (status == TUTTI_OK && step(self, request, state) == STEP_BUSY)
        status = await(state);
    if (status == TUTTI_OK)
        status = state->base.status;
    if (status != TUTTI_OK)
        leave_failed(self, request, state);
    return status;
}

/* Collectives do, in their nodes, and messages in the node. */
static bool sends(const void *opaque, const struct request *request)
{
    const struct hierarchy *self = opaque;
    return coll_rows[request->collective].peer != COLL_PARTNER ||
           (request->collective == TUTTI_COLLECTIVE_SEND &&
            self->host_of[request->peer] == self->host);
}

const struct algorithm hierarchy_algorithm = {.state_bytes = sizeof(struct hierarchy_state),
                                              .start = start,
                                              .step = step,
                                              .run = run,
                                              .sends = sends,
                                              .leave_failed = leave_failed};
