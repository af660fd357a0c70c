/* SPDX-License-Identifier: MIT */
/*
 * What the operations of several hosts consist of: operations of the node, and lists of messages.
 *
 * The first ranks of the hosts exchange a header of each collective. They compare it while they
 * wait for anything, or before their next operation, so that the headers cost no wait of their own.
 */
#include "base/deadline.h"
#include "base/error.h"
#include "base/log.h"
#include "base/signature.h"
#include "comm/hierarchy.h"
#include "comm/run.h"
#include "peers/wait.h"
#include "store/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Each pair of ranks has these streams of messages. */
enum { TAG_HEADER, TAG_DATA };

enum {
    LOOK_NS = 200000000, /* how often a rank that waits looks in the store */
    TELL_MS = 500,       /* in which a rank that fails has written there */
};

/* ---- faults ---------------------------------------------------------------------------------- */

/* Reports a fault of the running operation. `peer`: of the whole. */
static enum tutti_status fail(struct hierarchy *self, enum tutti_status status, int peer)
{
    struct tutti_fault fault =
        wait_fault(self->comm->peers, status, PEERS_ELSEWHERE + peer, self->request);
    return peers_fail(self->comm->peers, &fault);
}

bool hierarchy_look(struct hierarchy *self)
{
    struct tutti_store view = store_bounded(&self->store, deadline_after(STORE_GRACE_MS), NULL);
    bool there = false;
    self->looked_at = deadline_now();
    if (store_look_up(&view, "fault", &self->foreign, sizeof self->foreign, &there) != TUTTI_OK ||
        !there)
        return false;
    const int size = self->comm->world_size; /* the store's content comes from other processes */
    if (self->foreign.rank < 0 || self->foreign.rank >= size || self->foreign.peer < 0 ||
        self->foreign.peer >= size)
        return false;
    self->foreign.status = error_told((int32_t)self->foreign.status);
    self->told = true;
    return true;
}

/* Whether a rank has left without having begun this operation. */
static bool has_left(struct hierarchy *self, int rank)
{
    struct tutti_store view = store_bounded(&self->store, deadline_after(STORE_GRACE_MS), NULL);
    char key[HIERARCHY_KEY_BYTES];
    uint64_t last = 0;
    bool there = false;
    hierarchy_left_key(rank, key);
    return store_look_up(&view, key, &last, sizeof last, &there) == TUTTI_OK && there &&
           last < self->sequence;
}

/* The fault that was found in the store, as this rank's. */
static struct tutti_fault foreign_fault(const struct hierarchy *self)
{
    struct tutti_fault fault = self->foreign;
    fault.rank += PEERS_ELSEWHERE;
    fault.peer += PEERS_ELSEWHERE;
    return fault;
}

enum tutti_status hierarchy_adopt(struct hierarchy *self)
{
    const struct tutti_fault fault = foreign_fault(self);
    return peers_fail(self->comm->peers, &fault);
}

static bool fault_is_told(void *hierarchy)
{
    return hierarchy_look(hierarchy);
}

/* The engine has failed. Often that is because a rank has failed, and has told so. */
static enum tutti_status engine_failed(struct hierarchy *self, enum tutti_status status, int peer)
{
    char text[512];
    snprintf(text, sizeof text, "%s", tutti_last_error());
    if (wait_napping(fault_is_told, self, deadline_after(TELL_MS), LOOK_NS / 20))
        return hierarchy_adopt(self);
    log_write(TUTTI_LOG_WARN, self->comm->rank, "%s", text);
    return fail(self, status, peer);
}

/* Adds a message to the list that is being made. */
static void add(struct hierarchy *self, int rank, int tag, bool is_send, void *buffer, size_t bytes)
{
    invariant(self->transfer_count < self->transfer_room);
    self->transfers[self->transfer_count++] = (struct fabric_transfer){
        .peer = rank, .tag = tag, .is_send = is_send, .buffer = buffer, .bytes = bytes};
}

/* ---- headers --------------------------------------------------------------------------------- */

/* Compares the headers, which have come. */
static enum tutti_status headers_compare(struct hierarchy *self)
{
    const struct hierarchy_header *own = &self->own_header;
    for (int host = 0; host < self->hosts; host++) {
        const struct hierarchy_header *theirs = &self->headers[host];
        if (host == self->host || memcmp(theirs, own, sizeof *own) == 0)
            continue;
        struct tutti_fault fault =
            wait_fault(self->comm->peers, TUTTI_ERR_MISMATCH,
                       PEERS_ELSEWHERE + hierarchy_rank(self, host, 0), &self->header_request);
        fault.seen = signature_unpack(theirs->signature, theirs->parameter);
        return peers_fail(self->comm->peers, &fault);
    }
    return TUTTI_OK;
}

enum tutti_status hierarchy_headers_start(struct hierarchy *self)
{
    const struct request *request = self->request;
    self->header_request = *request;
    self->own_header = (struct hierarchy_header){.sequence = self->sequence,
                                                 .signature = request->signature,
                                                 .parameter = request->parameter};
    for (int host = 0; host < self->hosts; host++) {
        if (host == self->host)
            continue;
        const int rank = hierarchy_rank(self, host, 0);
        add(self, rank, TAG_HEADER, true, &self->own_header, sizeof self->own_header);
        add(self, rank, TAG_HEADER, false, &self->headers[host], sizeof self->headers[host]);
    }
    return hierarchy_start(self, &self->header_batch);
}

/* ---- messages -------------------------------------------------------------------------------- */

enum tutti_status hierarchy_room(struct hierarchy *self, size_t transfers)
{
    if (transfers <= (size_t)self->transfer_room)
        return TUTTI_OK;
    struct fabric_transfer *list = realloc(self->transfers, transfers * sizeof *list);
    if (!list)
        return error_set(TUTTI_ERR_NO_MEMORY, "no memory for %zu messages", transfers);
    self->transfers = list;
    self->transfer_room = (int)transfers;
    return TUTTI_OK;
}

enum tutti_status hierarchy_reserve(struct hierarchy *self, size_t bytes)
{
    struct hierarchy_scratch *scratch = &self->scratch;
    if (bytes <= scratch->size)
        return TUTTI_OK;
    bytes = (bytes + LAYOUT_LINE - 1) / LAYOUT_LINE * LAYOUT_LINE;
    unsigned char *more = aligned_alloc(LAYOUT_LINE, bytes);
    if (!more)
        return error_set(TUTTI_ERR_NO_MEMORY, "no memory for %zu bytes", bytes);
    free(scratch->bytes);
    *scratch = (struct hierarchy_scratch){more, bytes};
    return TUTTI_OK;
}

void hierarchy_add(struct hierarchy *self, int rank, bool is_send, void *buffer, size_t bytes)
{
    if (bytes)
        add(self, rank, TAG_DATA, is_send, buffer, bytes);
}

enum tutti_status hierarchy_start(struct hierarchy *self, struct fabric_batch **batch)
{
    const int count = self->transfer_count;
    *batch = NULL;
    self->transfer_count = 0;
    if (!count)
        return TUTTI_OK;
    const enum tutti_status status = fabric_start(self->link, self->transfers, count, batch);
    return status == TUTTI_OK ? TUTTI_OK : engine_failed(self, status, self->transfers[0].peer);
}

/* A wait for a batch. */
struct batch_wait {
    struct hierarchy *self;
    struct fabric_batch *batch;
    enum tutti_status status; /* of the engine */
    int peer;
};

static bool is_done(struct hierarchy *self, struct fabric_batch *batch, enum tutti_status *status)
{
    bool done = false;
    *status = fabric_test(self->link, batch, &done);
    return done || *status != TUTTI_OK;
}

static bool batch_poll(struct peers *peers, void *opaque)
{
    struct batch_wait *wait = opaque;
    (void)peers;
    return is_done(wait->self, wait->batch, &wait->status);
}

/* Whether headers have come that show a mismatch: then the ranks have failed. */
static bool headers_look(struct hierarchy *self)
{
    enum tutti_status status;
    if (!self->header_batch || !is_done(self, self->header_batch, &status))
        return false;
    self->header_batch = NULL;
    return status == TUTTI_OK && headers_compare(self) != TUTTI_OK;
}

/* Headers may show a mismatch, the kernel a dead rank of this host, the store another host's fault.
 */
static bool batch_look(struct peers *peers, void *opaque, enum wait_depth depth, bool late,
                       struct tutti_fault *fault)
{
    struct batch_wait *wait = opaque;
    struct hierarchy *self = wait->self;
    const struct request *request = self->request;
    struct rank_set left, dead = rank_set_none;
    if (self->header_batch != wait->batch && headers_look(self))
        return true;
    if (late || depth == WAIT_ALL)
        peers_exited(peers, &left, &dead);
    if (!rank_set_empty(dead))
        return peers_check(peers, rank_set_next(dead, -1), true, fault);
    const bool looks = late || (depth == WAIT_ALL && deadline_now() - self->looked_at >= LOOK_NS);
    if (looks && hierarchy_look(self)) {
        *fault = foreign_fault(self);
        return true;
    }
    fault->peer = PEERS_ELSEWHERE + wait->peer;
    if (looks && has_left(self, wait->peer)) {
        fault->status = TUTTI_ERR_PEER_DEAD;
        return true;
    }
    fault->seen.count = (uint64_t)request->timeout_ms & SIGNATURE_COUNT_MAX;
    fault->seen.parameter = (uint32_t)request->timeout_source;
    return late;
}

static const struct wait_poll batch_waits = {.poll = batch_poll, .look = batch_look};

enum tutti_status hierarchy_await(struct hierarchy *self, struct fabric_batch *batch, int peer)
{
    struct batch_wait wait = {.self = self, .batch = batch, .peer = peer};
    if (!batch)
        return TUTTI_OK;
    enum tutti_status status = lane_begin(self->comm->peers, LANE_NONE); /* no operation there */
    if (status == TUTTI_OK)
        status = wait_by_poll(self->comm->peers, &batch_waits, &wait, self->request);
    if (status != TUTTI_OK)
        return status;
    return wait.status == TUTTI_OK ? TUTTI_OK : engine_failed(self, wait.status, peer);
}

enum tutti_status hierarchy_headers_finish(struct hierarchy *self)
{
    struct fabric_batch *batch = self->header_batch;
    if (!batch)
        return TUTTI_OK;
    self->request = &self->header_request;
    const enum tutti_status status = hierarchy_await(self, batch, hierarchy_elsewhere(self));
    self->header_batch = NULL;
    return status == TUTTI_OK ? headers_compare(self) : status;
}

void hierarchy_blocks(const struct hierarchy *self, const struct request *request, bool is_send,
                      struct hierarchy_blocks *blocks)
{
    const struct coll_blocks *given = is_send ? &request->send_blocks : &request->recv_blocks;
    const bool varies = coll_rows[request->collective].varies;
    size_t next = 0;
    for (int r = 0; r < self->comm->world_size; r++) {
        blocks->at[r] = varies ? coll_block_start(given, r, &next) * request->bytes
                               : (size_t)r * request->bytes;
        blocks->bytes[r] = varies ? coll_block_count(given, r) * request->bytes : request->bytes;
    }
}

/* ---- the node -------------------------------------------------------------------------------- */

static enum tutti_status node_request(struct hierarchy *self, enum tutti_collective which,
                                      const struct coll_args *args, struct request *request)
{
    const struct tutti_call_options options = {0};
    struct tutti_comm *node = self->node;
    const enum tutti_status status =
        request_make(node, which, args, TUTTI_STREAM_DEFAULT, &options, node->rank, request);
    request->page = NULL;
    request->signature = self->request->signature;
    request->parameter = self->request->parameter;
    request->timeout_ms = self->request->timeout_ms;
    request->timeout_source = self->request->timeout_source;
    return status;
}

enum tutti_status hierarchy_node_request(struct hierarchy *self, enum tutti_collective which,
                                         void *data, size_t bytes, int local,
                                         struct request *request)
{
    const struct coll_args args = coll_args_make(data, data, bytes, TUTTI_UINT8, NULL, local);
    return node_request(self, which, &args, request);
}

enum tutti_status hierarchy_node(struct hierarchy *self, enum tutti_collective which,
                                 const struct coll_args *args)
{
    struct request request;
    const enum tutti_status status = node_request(self, which, args, &request);
    return status == TUTTI_OK
               ? request.choice.run->run(self->node->group, &request, TUTTI_STREAM_DEFAULT)
               : status;
}

enum tutti_status hierarchy_node_bytes(struct hierarchy *self, enum tutti_collective which,
                                       const void *send, void *recv, size_t bytes, int root)
{
    const struct coll_args args = coll_args_make(send, recv, bytes, TUTTI_UINT8, NULL, root);
    return hierarchy_node(self, which, &args);
}
