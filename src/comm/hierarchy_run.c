/* SPDX-License-Identifier: MIT */
/* The operations of several hosts: which one a request is, and how the parts follow each other. */
#include "base/deadline.h"
#include "base/error.h"
#include "base/interrupt.h"
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
    if (!has_subset && !state->uncounted)
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

/* Prepares an operation, of which nothing has begun. */
static enum tutti_status prepare(struct hierarchy *self, struct request *request,
                                 struct hierarchy_state *state)
{
    if (!first_parts[request->collective])
        return error_set(TUTTI_ERR_DECLINED, "%s is not there between hosts yet",
                         coll_rows[request->collective].call);
    enum tutti_status status = lane_begin(self->comm->peers, LANE_NONE);
    if (status == TUTTI_OK)
        status = hierarchy_room(self, LIST_LEAST * (size_t)self->comm->world_size);
    if (status == TUTTI_OK)
        hierarchy_state_init(self, request, first_parts[request->collective], state);
    return status;
}

/* Begins an operation that is prepared. */
static enum tutti_status begin(struct hierarchy *self, struct request *request,
                               struct hierarchy_state *state)
{
    if (coll_rows[request->collective].peer == COLL_PARTNER) {
        request_started(request, self->sequence, RECORD_SUBSET, RECORD_RUNNING);
        return TUTTI_OK;
    }
    state->next = headers_come;
    return hierarchy_headers_await(state) ? TUTTI_OK : collective_begin(state);
}

static enum tutti_status start(void *opaque, struct request *request, void *memory)
{
    const enum tutti_status status = prepare(opaque, request, memory);
    return status == TUTTI_OK ? begin(opaque, request, memory) : status;
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

/* Runs an operation that has begun, outside of a group of calls. */
static enum tutti_status finish(struct hierarchy *self, struct request *request,
                                struct hierarchy_state *state)
{
    enum tutti_status status = TUTTI_OK;
    while (status == TUTTI_OK && step(self, request, state) == STEP_BUSY)
        status = await(state);
    if (status == TUTTI_OK)
        status = state->base.status;
    if (status != TUTTI_OK)
        leave_failed(self, request, state);
    return status;
}

static enum tutti_status run(void *opaque, struct request *request, tutti_stream_t stream)
{
    struct hierarchy *self = opaque;
    (void)stream;
    const enum tutti_status status = start(self, request, self->running);
    return status == TUTTI_OK ? finish(self, request, self->running) : status;
}

/* The operation's headers have been exchanged already. */
enum tutti_status hierarchy_run_more(void *opaque, struct request *request)
{
    struct hierarchy *self = opaque;
    const enum tutti_status status = prepare(self, request, self->running);
    return status == TUTTI_OK ? finish(self, request, self->running) : status;
}

static enum tutti_status ask_for_fault(void *opaque)
{
    const struct hierarchy *self = opaque;
    struct peers *const peers = self->comm->peers;
    return peers_have_failed(peers) ? peers_status(peers, NULL) : TUTTI_OK;
}

/* A fabric of devices moves nothing between the hosts' memories. The devices' watch looks for
 * faults of other hosts meanwhile. */
static enum tutti_status values_by_store(struct hierarchy *self, const void *own, size_t bytes,
                                         void *all, int64_t timeout_ms)
{
    const struct interrupt interrupt = {.ask = ask_for_fault, .context = self};
    const int64_t deadline = deadline_after(timeout_ms);
    struct tutti_store view = store_bounded(&self->store, deadline, &interrupt);
    char prefix[40];
    struct tutti_exchanger exchanger = {.struct_size = sizeof exchanger,
                                        .store = &view,
                                        .prefix = prefix,
                                        .rank = self->comm->rank,
                                        .size = self->comm->world_size};
    snprintf(prefix, sizeof prefix, "values/%llu", (unsigned long long)++self->values);
    const enum tutti_status status =
        tutti_exchanger_all_gather(&exchanger, own, bytes, all, timeout_ms);
    if (status == TUTTI_OK)
        exchanger_end(&exchanger, deadline);
    return status;
}

enum tutti_status hierarchy_values_gather(struct hierarchy *self, const void *own, size_t bytes,
                                          void *all, int64_t timeout_ms)
{
    if (self->comm->hosts.link)
        return values_by_store(self, own, bytes, all, timeout_ms);
    struct request request = {
        .choice.run = &hierarchy_algorithm,
        .collective = TUTTI_COLLECTIVE_SPLIT,
        .dtype = TUTTI_UINT8,
        .recv_all = true,
        .send = own,
        .recv = all,
        .count = bytes,
        .bytes = bytes,
        .element_bytes = 1,
        .timeout_ms = timeout_ms,
        .timeout_source = self->comm->timeout_source,
        .signature = signature_pack(TUTTI_COLLECTIVE_SPLIT, TUTTI_UINT8, (enum op_kind)0,
                                    TUTTI_ALGO_NONE, bytes),
    };
    enum tutti_status status = prepare(self, &request, self->running);
    self->running->uncounted = true;
    if (status == TUTTI_OK)
        status = begin(self, &request, self->running);
    return status == TUTTI_OK ? finish(self, &request, self->running) : status;
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
