/* SPDX-License-Identifier: MIT */
/*
 * What the operations of several hosts consist of: operations of the node, and lists of messages.
 *
 * The first rank of a host sends a header of each collective to that of the next host in a ring. If
 * not all hosts make the same call, some two neighbours differ, and the store tells the others. A
 * rank compares the header while it waits for anything, or before its next collective, so that
 * headers cost no wait of their own.
 */
#include "base/deadline.h"
#include "base/error.h"
#include "base/log.h"
#include "base/signature.h"
#include "comm/hierarchy_internal.h"
#include "comm/run.h"
#include "peers/wait.h"
#include "store/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LOOK_NS = 200000000, /* how often a rank that waits looks in the store */
    TELL_MS = 500,       /* in which a rank that fails has written there */
};

/* ---- faults ---------------------------------------------------------------------------------- */

/* Where the store keeps no wills, ranks of other hosts notice a death by the engine, or by their
 * time-outs. */
void hierarchy_will(struct hierarchy *self, const struct comm_assembly *how)
{
    struct tutti_store view = store_bounded(&self->store, how->deadline, how->interrupt);
    const int rank = self->comm->rank;
    char key[HIERARCHY_KEY_BYTES];
    struct tutti_fault fault;
    memset(&fault, 0, sizeof fault);
    fault.status = TUTTI_ERR_PEER_DEAD;
    fault.rank = fault.peer = rank;
    hierarchy_key(HIERARCHY_DEAD_KEY, rank, key);
    enum tutti_status status = store_will(&view, key, "", 0);
    if (status == TUTTI_OK)
        status = store_will(&view, HIERARCHY_DEAD_KEY, "", 0);
    if (status == TUTTI_OK)
        status = store_will(&view, "fault", &fault, sizeof fault);
    if (status != TUTTI_OK)
        log_write(TUTTI_LOG_INFO, rank,
                  "other hosts notice the death of a last rank of this one by the fabric, or by "
                  "their time-outs: %s",
                  tutti_last_error());
}

static void tell(struct hierarchy *self, const struct tutti_fault *fault)
{
    pthread_mutex_lock(&self->lock);
    self->foreign = *fault;
    pthread_mutex_unlock(&self->lock);
}

/* The store has ended with the process that served it. */
static bool server_has_died(struct hierarchy *self)
{
    if (self->server < 0 || self->host_of[self->server] == self->host ||
        !store_server_has_died(&self->store))
        return false;
    const struct tutti_fault fault = {.struct_size = sizeof fault,
                                      .status = TUTTI_ERR_PEER_DEAD,
                                      .rank = self->comm->rank,
                                      .peer = self->server};
    tell(self, &fault);
    return true;
}

bool hierarchy_look(struct hierarchy *self)
{
    struct tutti_store view = store_bounded(&self->store, deadline_after(STORE_GRACE_MS), NULL);
    struct tutti_fault found;
    bool there = false;
    pthread_mutex_lock(&self->lock);
    self->looked_at = deadline_now();
    pthread_mutex_unlock(&self->lock);
    if (store_look_up(&view, "fault", &found, sizeof found, &there) != TUTTI_OK || !there)
        return server_has_died(self);
    const int size = self->comm->world_size; /* the store's content comes from other processes */
    if (found.rank < 0 || found.rank >= size || found.peer < 0 || found.peer >= size)
        return false;
    found.status = error_told((int32_t)found.status);
    if (found.status == TUTTI_ERR_PEER_DEAD && found.rank == found.peer)
        found.rank = self->comm->rank; /* a will: no other rank has noticed it */
    tell(self, &found);
    return true;
}

bool hierarchy_fault_found(struct hierarchy *self)
{
    pthread_mutex_lock(&self->lock);
    const bool found = self->foreign.status != TUTTI_OK;
    pthread_mutex_unlock(&self->lock);
    return found;
}

static bool is_look_due(struct hierarchy *self)
{
    pthread_mutex_lock(&self->lock);
    const bool due = deadline_now() - self->looked_at >= LOOK_NS;
    pthread_mutex_unlock(&self->lock);
    return due;
}

/* Whether a rank has left without having begun this operation. */
static bool has_left(struct hierarchy *self, int rank)
{
    struct tutti_store view = store_bounded(&self->store, deadline_after(STORE_GRACE_MS), NULL);
    char key[HIERARCHY_KEY_BYTES];
    uint64_t last = 0;
    bool there = false;
    hierarchy_key(HIERARCHY_LEFT_KEY, rank, key);
    return store_look_up(&view, key, &last, sizeof last, &there) == TUTTI_OK && there &&
           last < self->sequence;
}

/* Adds the ranks of other hosts that have a key of this kind, if any rank has one. */
static void add_those_with(struct hierarchy *self, struct tutti_store *view, const char *what,
                           struct rank_set *ranks)
{
    bool any = false;
    if (store_has(view, what, &any) != TUTTI_OK)
        any = false;
    for (int r = 0; r < self->comm->world_size && any; r++) {
        char key[HIERARCHY_KEY_BYTES];
        bool there = false;
        hierarchy_key(what, r, key);
        if (self->host_of[r] != self->host && !rank_set_has(*ranks, r) &&
            store_has(view, key, &there) == TUTTI_OK && there)
            rank_set_add(ranks, r);
    }
}

/* All ranks that agree ask this again and again, and a look has a request for each rank. So a rank
 * looks for a tenth of the time at most, and else returns what it has found. */
struct rank_set hierarchy_left(void *opaque)
{
    enum { REST = 9 };
    struct hierarchy *self = opaque;
    struct tutti_store view = store_bounded(&self->store, deadline_after(STORE_GRACE_MS), NULL);
    const int64_t begun = deadline_now();
    pthread_mutex_lock(&self->lock);
    struct rank_set left = self->left;
    const bool due = begun >= self->left_due;
    pthread_mutex_unlock(&self->lock);
    if (due) {
        add_those_with(self, &view, HIERARCHY_LEFT_KEY, &left);
        add_those_with(self, &view, HIERARCHY_DEAD_KEY, &left);
        pthread_mutex_lock(&self->lock);
        self->left = left = rank_set_union(left, self->left);
        self->left_due = deadline_now() + REST * (deadline_now() - begun);
        pthread_mutex_unlock(&self->lock);
    }
    if (server_has_died(self))
        rank_set_add(&left, self->server);
    return left;
}

/* The fault that was found in the store, as this rank's. */
static struct tutti_fault foreign_fault(struct hierarchy *self)
{
    pthread_mutex_lock(&self->lock);
    struct tutti_fault fault = self->foreign;
    pthread_mutex_unlock(&self->lock);
    fault.rank += PEERS_ELSEWHERE;
    fault.peer += PEERS_ELSEWHERE;
    return fault;
}

enum tutti_status hierarchy_adopt(struct hierarchy *self)
{
    const struct tutti_fault fault = foreign_fault(self);
    return peers_fail(self->comm->peers, &fault);
}

/* Whether the ranks of this host have failed, or one is dead, or a rank has told of a fault. */
static bool fault_is_known(void *opaque)
{
    struct hierarchy *self = opaque;
    return peers_status(self->comm->peers, NULL) != TUTTI_OK || hierarchy_look(self);
}

enum tutti_status hierarchy_engine_failed(struct hierarchy *self, const struct tutti_fault *fault)
{
    struct peers *const peers = self->comm->peers;
    char text[512];
    snprintf(text, sizeof text, "%s", tutti_last_error());
    if (wait_napping(fault_is_known, self, deadline_after(TELL_MS), LOOK_NS / 20))
        return peers_have_failed(peers) ? peers_status(peers, NULL) : hierarchy_adopt(self);
    log_write(TUTTI_LOG_WARN, self->comm->rank, "%s", text);
    return peers_fail(peers, fault);
}

static enum tutti_status engine_failed(const struct hierarchy_state *state,
                                       enum tutti_status status, int peer)
{
    const struct tutti_fault fault =
        wait_fault(state->self->comm->peers, status, PEERS_ELSEWHERE + peer, state->request);
    return hierarchy_engine_failed(state->self, &fault);
}

/* Adds a message to the list that is being made. */
static void add(struct hierarchy *self, int rank, int tag, bool is_send, void *buffer, size_t bytes)
{
    invariant(self->transfer_count < self->transfer_room);
    self->transfers[self->transfer_count++] = (struct fabric_transfer){
        .peer = rank, .tag = tag, .is_send = is_send, .buffer = buffer, .bytes = bytes};
}

/* ---- headers --------------------------------------------------------------------------------- */

/* The first rank of the host that lies `by` hosts behind this one. */
static int neighbour(const struct hierarchy *self, int by)
{
    return hierarchy_rank(self, (self->host + self->hosts + by) % self->hosts, 0);
}

enum tutti_status hierarchy_headers_compare(struct hierarchy *self)
{
    const struct hierarchy_header *theirs = &self->last_header;
    if (memcmp(theirs, &self->own_header, sizeof *theirs) == 0)
        return TUTTI_OK;
    struct tutti_fault fault =
        wait_fault(self->comm->peers, TUTTI_ERR_MISMATCH, PEERS_ELSEWHERE + neighbour(self, -1),
                   &self->header_request);
    fault.seen = signature_unpack(theirs->signature, theirs->parameter);
    return peers_fail(self->comm->peers, &fault);
}

enum tutti_status hierarchy_headers_start(struct hierarchy_state *state)
{
    struct hierarchy *self = state->self;
    const struct request *request = state->request;
    self->header_request = *request;
    self->own_header = (struct hierarchy_header){.sequence = self->sequence,
                                                 .signature = request->signature,
                                                 .parameter = request->parameter};
    add(self, neighbour(self, 1), HIERARCHY_TAG_HEADER, true, &self->own_header,
        sizeof self->own_header);
    add(self, neighbour(self, -1), HIERARCHY_TAG_HEADER, false, &self->last_header,
        sizeof self->last_header);
    return hierarchy_start(state, &self->header_batch);
}

bool hierarchy_headers_await(struct hierarchy_state *state)
{
    struct hierarchy *self = state->self;
    if (!self->header_batch)
        return false;
    hierarchy_await(state, self->header_batch, neighbour(self, -1));
    state->batch_ms = HIERARCHY_HEADERS_MS;
    self->header_batch = NULL;
    return true;
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

void hierarchy_add(struct hierarchy_state *state, int rank, bool is_send, void *buffer,
                   size_t bytes)
{
    if (bytes)
        add(state->self, rank, state->tag, is_send, buffer, bytes);
}

enum tutti_status hierarchy_start(struct hierarchy_state *state, struct fabric_batch **batch)
{
    struct hierarchy *self = state->self;
    const int count = self->transfer_count;
    *batch = NULL;
    self->transfer_count = 0;
    if (!count)
        return TUTTI_OK;
    const enum tutti_status status = fabric_start(self->link, self->transfers, count, batch);
    return status == TUTTI_OK ? TUTTI_OK : engine_failed(state, status, self->transfers[0].peer);
}

void hierarchy_await(struct hierarchy_state *state, struct fabric_batch *batch, int peer)
{
    state->batch = batch;
    state->batch_ms = HIERARCHY_MESSAGES_MS;
    state->peer = peer;
    state->self->comm->peers->deadline = 0;
}

enum tutti_status hierarchy_exchange(struct hierarchy_state *state, int peer)
{
    struct fabric_batch *batch;
    const enum tutti_status status = hierarchy_start(state, &batch);
    hierarchy_await(state, batch, peer);
    return status;
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

/* Begins the request in state->node. */
static enum tutti_status node_start(struct hierarchy_state *state)
{
    const struct request *whole = state->request;
    struct request *request = &state->node;
    request->page = NULL;
    request->signature = whole->signature;
    request->parameter = whole->parameter;
    request->timeout_ms = whole->timeout_ms;
    request->timeout_source = whole->timeout_source;
    const enum tutti_status status =
        request->choice.run->start(state->self->node->group, request, state->node_state);
    state->in_node = status == TUTTI_OK;
    state->node_ms = state->behind ? HIERARCHY_BEHIND_MS : HIERARCHY_NODE_MS;
    state->behind = true;
    return status;
}

enum tutti_status hierarchy_node(struct hierarchy_state *state, enum tutti_collective which,
                                 const struct coll_args *args)
{
    const struct tutti_call_options options = {0};
    struct tutti_comm *const node = state->self->node;
    const enum tutti_status status =
        request_make(node, which, args, TUTTI_STREAM_DEFAULT, &options, node->rank, &state->node);
    return status == TUTTI_OK ? node_start(state) : status;
}

enum tutti_status hierarchy_node_bytes(struct hierarchy_state *state, enum tutti_collective which,
                                       const void *send, void *recv, size_t bytes, int peer)
{
    const struct coll_args args = coll_args_make(send, recv, bytes, TUTTI_UINT8, NULL, peer);
    return hierarchy_node(state, which, &args);
}

enum tutti_status hierarchy_node_meet(struct hierarchy_state *state, struct rank_set ranks)
{
    state->node = *state->request;
    state->node.subset = ranks;
    state->node.choice.run = state->self->node->backend->barrier;
    return node_start(state);
}

/* ---- waits ----------------------------------------------------------------------------------- */

static bool is_done(struct hierarchy *self, struct fabric_batch *batch, enum tutti_status *status)
{
    bool done = false;
    *status = fabric_test(self->link, batch, &done);
    return done || *status != TUTTI_OK;
}

static bool batch_poll(struct peers *peers, void *opaque)
{
    struct hierarchy_state *state = opaque;
    (void)peers;
    if (state->batch && is_done(state->self, state->batch, &state->engine))
        state->batch = NULL;
    return !state->batch;
}

/* Whether a header has come that shows a mismatch: then the ranks have failed. */
static bool headers_look(struct hierarchy *self)
{
    enum tutti_status status;
    if (!self->header_batch || !is_done(self, self->header_batch, &status))
        return false;
    self->header_batch = NULL;
    return status == TUTTI_OK && hierarchy_headers_compare(self) != TUTTI_OK;
}

/* Headers may show a mismatch, the kernel a dead rank of this host, the store another host's fault.
 */
static bool batch_look(struct peers *peers, void *opaque, enum wait_depth depth, bool late,
                       struct tutti_fault *fault)
{
    const struct hierarchy_state *state = opaque;
    struct hierarchy *self = state->self;
    struct rank_set left, dead = rank_set_none;
    if (headers_look(self))
        return true;
    if (late || depth == WAIT_ALL)
        peers_exited(peers, &left, &dead);
    if (!rank_set_empty(dead))
        return peers_check(peers, rank_set_next(dead, -1), true, fault);
    const bool looks = late || (depth == WAIT_ALL && is_look_due(self));
    if (looks && hierarchy_look(self)) {
        *fault = foreign_fault(self);
        return true;
    }
    fault->peer = PEERS_ELSEWHERE + state->peer;
    if (looks && has_left(self, state->peer)) {
        fault->status = TUTTI_ERR_PEER_DEAD;
        return true;
    }
    fault->seen.count = (uint64_t)state->request->timeout_ms & SIGNATURE_COUNT_MAX;
    fault->seen.parameter = (uint32_t)state->request->timeout_source;
    return late;
}

static int batch_peer(const void *opaque)
{
    const struct hierarchy_state *state = opaque;
    return PEERS_ELSEWHERE + state->peer;
}

static const struct wait_poll batch_waits = {
    .poll = batch_poll, .look = batch_look, .peer = batch_peer};

void hierarchy_state_init(struct hierarchy *self, struct request *request,
                          enum tutti_status (*next)(struct hierarchy_state *state),
                          struct hierarchy_state *state)
{
    const bool is_message = coll_rows[request->collective].peer == COLL_PARTNER;
    state_init(&state->base);
    state->self = self;
    state->request = request;
    state->next = next;
    state->tag = is_message ? HIERARCHY_TAG_MESSAGE : HIERARCHY_TAG_COLLECTIVE;
    state->batch = NULL;
    state->engine = TUTTI_OK;
    state->uncounted = state->in_node = state->behind = false;
}

/* The node's operation. A failed one stays the running one. */
static bool node_waits(struct hierarchy_state *state, enum tutti_status *status)
{
    struct tutti_comm *const node = state->self->node;
    const struct cpu_state *theirs = (const struct cpu_state *)(const void *)state->node_state;
    const bool waits =
        state->node.choice.run->step(node->group, &state->node, state->node_state) == STEP_BUSY;
    *status = theirs->status;
    if (waits) {
        state->base = *theirs;
        node->peers->later_ms = state->node_ms;
    }
    if (waits || *status != TUTTI_OK)
        return waits;
    state->in_node = false;
    *status = lane_begin(node->peers, LANE_NONE);
    return false;
}

static bool batch_waits_on(struct hierarchy_state *state, enum tutti_status *status)
{
    if (!batch_poll(state->self->comm->peers, state)) {
        step_polls(state->self->node->group, &state->base, &batch_waits);
        state->self->comm->peers->later_ms = state->batch_ms;
        return true;
    }
    *status = state->engine;
    if (*status != TUTTI_OK)
        *status = engine_failed(state, *status, state->peer);
    return false;
}

bool hierarchy_waits(struct hierarchy_state *state, enum tutti_status *status)
{
    *status = TUTTI_OK;
    if (state->in_node && node_waits(state, status))
        return true;
    return *status == TUTTI_OK && batch_waits_on(state, status);
}
