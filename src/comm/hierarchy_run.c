/* SPDX-License-Identifier: MIT */
/* The operations of several hosts: which one a request is, and what they have in common. */
#include "base/error.h"
#include "comm/hierarchy.h"
#include "comm/run.h"

enum { LIST_LEAST = 4 * TUTTI_MAX_RANKS }; /* messages for which each operation has room */

/* A barrier of a subset: the first members of each host meet between two meetings of the node. */
static enum tutti_status barrier_run(struct hierarchy *self, struct request *request)
{
    struct rank_set members = request->subset, here = rank_set_none;
    int heads[TUTTI_MAX_RANKS];
    struct fabric_batch *batch;
    uint8_t empty[2];
    if (rank_set_empty(members))
        members = rank_set_all(self->comm->world_size);
    for (int host = 0; host < self->hosts; host++)
        heads[host] = -1;
    for (int r = rank_set_next(members, -1); r >= 0; r = rank_set_next(members, r)) {
        const int host = self->host_of[r];
        if (heads[host] < 0 || self->local_of[r] < self->local_of[heads[host]])
            heads[host] = r;
        if (host == self->host)
            rank_set_add(&here, self->local_of[r]);
    }
    struct request meeting = *request;
    meeting.page = NULL;
    meeting.subset = here;
    enum tutti_status status = peers_meet(self->comm->peers, &meeting);
    if (heads[self->host] == self->comm->rank && status == TUTTI_OK) {
        int other = -1;
        for (int host = 0; host < self->hosts; host++) {
            if (host == self->host || heads[host] < 0)
                continue;
            other = heads[host];
            hierarchy_add(self, heads[host], true, &empty[0], 1);
            hierarchy_add(self, heads[host], false, &empty[1], 1);
        }
        empty[0] = 0;
        status = hierarchy_start(self, &batch);
        if (status == TUTTI_OK)
            status = hierarchy_await(self, batch, other);
    }
    return status == TUTTI_OK ? peers_meet(self->comm->peers, &meeting) : status;
}

static enum tutti_status collective_run(struct hierarchy *self, struct request *request)
{
    switch (request->collective) {
    case TUTTI_COLLECTIVE_BARRIER:
        return barrier_run(self, request);
    case TUTTI_COLLECTIVE_ALL_REDUCE:
    case TUTTI_COLLECTIVE_REDUCE:
        return hierarchy_sum(self, request);
    case TUTTI_COLLECTIVE_REDUCE_SCATTER:
    case TUTTI_COLLECTIVE_REDUCE_SCATTER_V:
        return hierarchy_sum_scatter(self, request);
    case TUTTI_COLLECTIVE_BROADCAST:
        return hierarchy_broadcast(self, request);
    case TUTTI_COLLECTIVE_ALL_GATHER:
    case TUTTI_COLLECTIVE_ALL_GATHER_V:
        return hierarchy_all_gather(self, request);
    case TUTTI_COLLECTIVE_ALL_TO_ALL:
    case TUTTI_COLLECTIVE_ALL_TO_ALL_V:
        return hierarchy_all_to_all(self, request);
    case TUTTI_COLLECTIVE_GATHER:
    case TUTTI_COLLECTIVE_GATHER_V:
        return hierarchy_gather(self, request);
    case TUTTI_COLLECTIVE_SCATTER:
    case TUTTI_COLLECTIVE_SCATTER_V:
        return hierarchy_scatter(self, request);
    case TUTTI_COLLECTIVE_SEND:
    case TUTTI_COLLECTIVE_RECV:
    case TUTTI_COLLECTIVE_SPLIT:
    case TUTTI_COLLECTIVE_ALL_REDUCE_RMS_NORM:
        break;
    }
    return error_set(TUTTI_ERR_DECLINED, "%s is not there between hosts yet",
                     coll_rows[request->collective].call);
}

/* Before an operation. The headers of the one before have come by then, unless a host is late. */
static enum tutti_status begin(struct hierarchy *self)
{
    if (peers_have_failed(self->comm->peers))
        return peers_status(self->comm->peers, NULL);
    const enum tutti_status status = hierarchy_headers_finish(self);
    return status == TUTTI_OK ? hierarchy_room(self, LIST_LEAST) : status;
}

static enum tutti_status run(void *opaque, struct request *request, tutti_stream_t stream)
{
    struct hierarchy *self = opaque;
    const bool has_subset = !rank_set_empty(request->subset);
    (void)stream;
    enum tutti_status status = begin(self);
    if (status != TUTTI_OK)
        return status;
    if (coll_rows[request->collective].peer == COLL_PARTNER)
        return hierarchy_messages(self, &request, 1);
    self->request = request;
    if (!has_subset)
        order_store_relaxed_u64(&self->sequence, self->sequence + 1);
    request_started(request, self->sequence, request_kind(request), RECORD_RUNNING);
    if (self->local == 0 && !has_subset)
        status = hierarchy_headers_start(self);
    return status == TUTTI_OK ? collective_run(self, request) : status;
}

enum tutti_status hierarchy_send_recv(void *opaque, struct request *const *requests, int count,
                                      tutti_stream_t stream)
{
    struct hierarchy *self = opaque;
    (void)stream;
    const enum tutti_status status = begin(self);
    return status == TUTTI_OK ? hierarchy_messages(self, requests, count) : status;
}

const struct algorithm hierarchy_algorithm = {.run = run};
