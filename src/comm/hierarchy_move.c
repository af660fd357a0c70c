/* SPDX-License-Identifier: MIT */
/* Operations of several hosts that copy or only meet, part by part: struct hierarchy_state. */
#include "comm/hierarchy_internal.h"
#include "comm/run.h"

#include <string.h>

enum {
    PIECE_BYTES = 1024 * 1024,
    /* Up to here a root sends to all hosts. Longer broadcasts go from host to host in pieces, so
     * that each link carries them once. */
    DIRECT_BYTES = 64 * 1024,
    SLOTS = 3, /* pieces under way */
};

static struct coll_blocks node_blocks_of(const struct hierarchy *self,
                                         const struct hierarchy_blocks *blocks,
                                         struct hierarchy_node_blocks *node)
{
    for (int i = 0; i < hierarchy_ranks(self, self->host); i++) {
        const int rank = hierarchy_rank(self, self->host, i);
        node->counts[i] = blocks->bytes[rank];
        node->firsts[i] = blocks->at[rank];
    }
    return (struct coll_blocks){.counts = node->counts, .displacements = node->firsts};
}

/* The bytes of an operand that is one block. */
static size_t own_bytes(const struct request *request)
{
    return coll_rows[request->collective].varies ? request->count * request->bytes : request->bytes;
}

static unsigned char *send_of(const struct request *request)
{
    return (unsigned char *)(uintptr_t)request->send;
}

/* ---- barrier --------------------------------------------------------------------------------- */

/* The members of a host; *head: the first of them, or -1. */
static struct rank_set members_on(const struct hierarchy_state *state, int host, int *head)
{
    const struct hierarchy *self = state->self;
    const struct rank_set members = state->request->subset;
    struct rank_set locals = rank_set_none;
    *head = -1;
    for (int i = hierarchy_ranks(self, host) - 1; i >= 0; i--) {
        if (!rank_set_empty(members) && !rank_set_has(members, hierarchy_rank(self, host, i)))
            continue;
        rank_set_add(&locals, i);
        *head = hierarchy_rank(self, host, i);
    }
    return locals;
}

static enum tutti_status members_meet(struct hierarchy_state *state)
{
    int head;
    state->next = NULL;
    return hierarchy_node_meet(state, members_on(state, state->self->host, &head));
}

/* The first members of the hosts meet. */
static enum tutti_status heads_meet(struct hierarchy_state *state)
{
    const struct hierarchy *self = state->self;
    unsigned char *const empty = state->own;
    int head, other = -1;
    state->next = members_meet;
    (void)members_on(state, self->host, &head);
    if (head != self->comm->rank)
        return TUTTI_OK;
    empty[0] = 0;
    for (int host = 0; host < self->hosts; host++) {
        if (host == self->host)
            continue;
        (void)members_on(state, host, &head);
        if (head < 0)
            continue;
        other = head;
        hierarchy_add(state, head, true, &empty[0], 1);
        hierarchy_add(state, head, false, &empty[1], 1);
    }
    return hierarchy_exchange(state, other);
}

/* The members of each host meet, then the first ones of the hosts, then the members again. */
enum tutti_status hierarchy_barrier(struct hierarchy_state *state)
{
    const enum tutti_status status = members_meet(state);
    state->next = heads_meet;
    return status;
}

/* ---- broadcast ------------------------------------------------------------------------------- */

struct broadcast {
    size_t at;    /* of the piece */
    size_t whole; /* bytes of a piece */
    int slot;
    int step; /* hosts behind the root's */
    bool direct, is_head;
    struct fabric_batch *sent[SLOTS];
};
static_assert(sizeof(struct broadcast) <= HIERARCHY_OWN_BYTES, "a state has room for it");

static struct broadcast *broadcast_of(struct hierarchy_state *state)
{
    return (struct broadcast *)(void *)state->own;
}

/* The rank that has the data first on the host that is `step` hosts behind the root's. */
static int head_of(const struct hierarchy *self, int root, int step)
{
    const int host = (self->host_of[root] + step) % self->hosts;
    return step == 0 ? root : hierarchy_rank(self, host, 0);
}

static unsigned char *broadcast_data(const struct hierarchy_state *state)
{
    const struct request *request = state->request;
    return state->self->comm->rank == request->peer ? send_of(request) : request->recv;
}

static size_t broadcast_piece(struct hierarchy_state *state)
{
    const struct broadcast *work = broadcast_of(state);
    const size_t left = state->request->bytes - work->at;
    return left < work->whole ? left : work->whole;
}

static enum tutti_status broadcast_receive(struct hierarchy_state *state);

/* Passes a piece on: the buffers of those before in its slot may be used again. */
static enum tutti_status broadcast_pass(struct hierarchy_state *state)
{
    const struct hierarchy *self = state->self;
    const int root = state->request->peer;
    struct broadcast *work = broadcast_of(state);
    unsigned char *const data = broadcast_data(state) + work->at;
    const size_t bytes = broadcast_piece(state);
    const int end = work->step && work->direct ? 0 : self->hosts;
    enum tutti_status status = TUTTI_OK;
    for (int next = work->step + 1; work->is_head && next < end; next++) {
        hierarchy_add(state, head_of(self, root, next), true, data, bytes);
        if (!work->direct)
            break;
    }
    if (work->is_head)
        status = hierarchy_start(state, &work->sent[work->slot]);
    work->at += bytes;
    work->slot = (work->slot + 1) % SLOTS;
    state->next = broadcast_receive;
    if (status != TUTTI_OK || hierarchy_ranks(self, self->host) == 1)
        return status;
    return hierarchy_node_bytes(state, TUTTI_COLLECTIVE_BROADCAST, data, data, bytes,
                                work->step == 0 ? self->local_of[root] : 0);
}

static enum tutti_status slot_await(struct hierarchy_state *state)
{
    struct broadcast *work = broadcast_of(state);
    hierarchy_await(state, work->sent[work->slot], hierarchy_elsewhere(state->self));
    work->sent[work->slot] = NULL;
    state->next = broadcast_pass;
    return TUTTI_OK;
}

/* The last pieces are sent. */
static enum tutti_status broadcast_end(struct hierarchy_state *state)
{
    const struct request *request = state->request;
    struct broadcast *work = broadcast_of(state);
    for (int slot = 0; slot < SLOTS; slot++) {
        if (!work->sent[slot])
            continue;
        hierarchy_await(state, work->sent[slot], hierarchy_elsewhere(state->self));
        work->sent[slot] = NULL;
        return TUTTI_OK;
    }
    state->next = NULL;
    if (state->self->comm->rank == request->peer && request->recv != request->send &&
        request->bytes)
        memcpy(request->recv, request->send, request->bytes);
    return TUTTI_OK;
}

static enum tutti_status broadcast_receive(struct hierarchy_state *state)
{
    const struct hierarchy *self = state->self;
    const struct broadcast *work = broadcast_of(state);
    const int from =
        head_of(self, state->request->peer, work->direct || work->step == 0 ? 0 : work->step - 1);
    state->next = work->at < state->request->bytes ? slot_await : broadcast_end;
    if (state->next == broadcast_end || !work->is_head || work->step == 0)
        return TUTTI_OK;
    hierarchy_add(state, from, false, broadcast_data(state) + work->at, broadcast_piece(state));
    return hierarchy_exchange(state, from);
}

enum tutti_status hierarchy_broadcast(struct hierarchy_state *state)
{
    const struct hierarchy *self = state->self;
    const struct request *request = state->request;
    const int root = request->peer;
    const int step = (self->host - self->host_of[root] + self->hosts) % self->hosts;
    const bool direct = request->bytes <= DIRECT_BYTES;
    *broadcast_of(state) = (struct broadcast){
        .whole = direct ? request->bytes : PIECE_BYTES,
        .step = step,
        .direct = direct,
        .is_head = self->comm->rank == head_of(self, root, step),
    };
    state->behind = step > 0;
    return broadcast_receive(state);
}

/* ---- all_gather ------------------------------------------------------------------------------ */

/* The ranks whose blocks are passed on in the node, at most one of each rank there. */
struct all_gather {
    int host, first;
};

static struct all_gather *all_gather_of(struct hierarchy_state *state)
{
    return (struct all_gather *)(void *)state->own;
}

/* Passes blocks on in the node. */
static enum tutti_status blocks_share(struct hierarchy_state *state, int host, int first)
{
    struct hierarchy *self = state->self;
    const int n = hierarchy_ranks(self, self->host), theirs = hierarchy_ranks(self, host);
    unsigned char *const recv = state->request->recv;
    struct hierarchy_node_blocks *node = &state->received;
    struct hierarchy_blocks blocks;
    hierarchy_blocks(self, state->request, false, &blocks);
    *node = (struct hierarchy_node_blocks){{0}, {0}};
    for (int i = 0; i < n && first + i < theirs; i++) {
        const int rank = hierarchy_rank(self, host, first + i);
        node->counts[i] = blocks.bytes[rank];
        node->firsts[i] = blocks.at[rank];
    }
    const struct coll_args args = {
        .send = recv + node->firsts[self->local],
        .recv = recv,
        .count = node->counts[self->local],
        .dtype = TUTTI_UINT8,
        .recv_blocks = {.counts = node->counts, .displacements = node->firsts},
    };
    return hierarchy_node(state, TUTTI_COLLECTIVE_ALL_GATHER_V, &args);
}

/* The other hosts' blocks, which have come. */
static enum tutti_status all_gather_share(struct hierarchy_state *state)
{
    const struct hierarchy *self = state->self;
    struct all_gather *work = all_gather_of(state);
    while (work->host < self->hosts &&
           (work->host == self->host || work->first >= hierarchy_ranks(self, work->host)))
        *work = (struct all_gather){.host = work->host + 1};
    if (work->host == self->hosts) {
        state->next = NULL;
        return TUTTI_OK;
    }
    const int first = work->first;
    work->first += hierarchy_ranks(self, self->host);
    return blocks_share(state, work->host, first);
}

enum tutti_status hierarchy_all_gather(struct hierarchy_state *state)
{
    struct hierarchy *self = state->self;
    const struct request *request = state->request;
    struct hierarchy_blocks blocks;
    unsigned char *const recv = request->recv;
    const int rank = self->comm->rank;
    hierarchy_blocks(self, request, false, &blocks);
    if (blocks.bytes[rank] && recv + blocks.at[rank] != request->send)
        memcpy(recv + blocks.at[rank], request->send, blocks.bytes[rank]);
    for (int host = 0; host < self->hosts; host++)
        if (host != self->host)
            hierarchy_add(state, hierarchy_rank(self, host, hierarchy_keeper(self, host, rank)),
                          true, recv + blocks.at[rank], blocks.bytes[rank]);
    for (int r = 0; r < self->comm->world_size; r++)
        if (self->host_of[r] != self->host && hierarchy_keeper(self, self->host, r) == self->local)
            hierarchy_add(state, r, false, recv + blocks.at[r], blocks.bytes[r]);
    const enum tutti_status status = hierarchy_exchange(state, hierarchy_elsewhere(self));
    *all_gather_of(state) = (struct all_gather){.host = 0};
    state->next = all_gather_share;
    return status == TUTTI_OK ? blocks_share(state, self->host, 0) : status;
}

/* ---- all_to_all ------------------------------------------------------------------------------ */

/* Copies the blocks that this rank sends into scratch memory: the peers' come while they leave. */
static enum tutti_status blocks_keep(struct hierarchy *self, const unsigned char *send,
                                     struct hierarchy_blocks *sent)
{
    size_t bytes = 0;
    for (int r = 0; r < self->comm->world_size; r++)
        bytes += sent->bytes[r];
    const enum tutti_status status = hierarchy_reserve(self, bytes);
    bytes = 0;
    for (int r = 0; r < self->comm->world_size && status == TUTTI_OK; r++) {
        if (sent->bytes[r])
            memcpy(self->scratch.bytes + bytes, send + sent->at[r], sent->bytes[r]);
        sent->at[r] = bytes;
        bytes += sent->bytes[r];
    }
    return status;
}

enum tutti_status hierarchy_all_to_all(struct hierarchy_state *state)
{
    struct hierarchy *self = state->self;
    const struct request *request = state->request;
    struct hierarchy_blocks sent, received;
    unsigned char *send = send_of(request), *recv = request->recv;
    enum tutti_status status = TUTTI_OK;
    hierarchy_blocks(self, request, true, &sent);
    hierarchy_blocks(self, request, false, &received);
    if (send == recv) {
        status = blocks_keep(self, send, &sent);
        send = self->scratch.bytes;
    }
    if (status != TUTTI_OK)
        return status;
    for (int r = 0; r < self->comm->world_size; r++) {
        if (self->host_of[r] == self->host)
            continue;
        hierarchy_add(state, r, true, send + sent.at[r], sent.bytes[r]);
        hierarchy_add(state, r, false, recv + received.at[r], received.bytes[r]);
    }
    status = hierarchy_exchange(state, hierarchy_elsewhere(self));
    const struct coll_args args = {
        .send = send,
        .recv = recv,
        .dtype = TUTTI_UINT8,
        .send_blocks = node_blocks_of(self, &sent, &state->sent),
        .recv_blocks = node_blocks_of(self, &received, &state->received),
    };
    state->next = NULL;
    return status == TUTTI_OK ? hierarchy_node(state, TUTTI_COLLECTIVE_ALL_TO_ALL_V, &args)
                              : status;
}

/* ---- with a root, and messages --------------------------------------------------------------- */

/* The root's messages with ranks of other hosts, whose blocks lie in `operand`. */
static void root_add(struct hierarchy_state *state, const struct hierarchy_blocks *blocks,
                     bool is_send, unsigned char *operand)
{
    const struct hierarchy *self = state->self;
    for (int r = 0; r < self->comm->world_size; r++)
        if (self->host_of[r] != self->host)
            hierarchy_add(state, r, is_send, operand + blocks->at[r], blocks->bytes[r]);
}

/* A gather, or the reverse of it, a scatter. */
static enum tutti_status root_move(struct hierarchy_state *state, bool scatters)
{
    struct hierarchy *self = state->self;
    const struct request *request = state->request;
    const int root = request->peer;
    state->next = NULL;
    if (self->host_of[root] != self->host) {
        hierarchy_add(state, root, !scatters, scatters ? request->recv : send_of(request),
                      own_bytes(request));
        return hierarchy_exchange(state, root);
    }
    struct coll_args args = {.send = request->send,
                             .recv = request->recv,
                             .count = own_bytes(request),
                             .dtype = TUTTI_UINT8,
                             .peer = self->local_of[root]};
    if (self->comm->rank == root) {
        struct hierarchy_blocks blocks;
        hierarchy_blocks(self, request, scatters, &blocks);
        root_add(state, &blocks, scatters, scatters ? send_of(request) : request->recv);
        *(scatters ? &args.send_blocks : &args.recv_blocks) =
            node_blocks_of(self, &blocks, scatters ? &state->sent : &state->received);
    }
    const enum tutti_status status = hierarchy_exchange(state, hierarchy_elsewhere(self));
    return status == TUTTI_OK
               ? hierarchy_node(state,
                                scatters ? TUTTI_COLLECTIVE_SCATTER_V : TUTTI_COLLECTIVE_GATHER_V,
                                &args)
               : status;
}

enum tutti_status hierarchy_gather(struct hierarchy_state *state)
{
    return root_move(state, false);
}

enum tutti_status hierarchy_scatter(struct hierarchy_state *state)
{
    return root_move(state, true);
}

enum tutti_status hierarchy_message(struct hierarchy_state *state)
{
    const struct hierarchy *self = state->self;
    const struct request *request = state->request;
    const bool is_send = request->collective == TUTTI_COLLECTIVE_SEND;
    unsigned char *const data = is_send ? send_of(request) : request->recv;
    state->next = NULL;
    if (self->host_of[request->peer] == self->host)
        return hierarchy_node_bytes(state, request->collective, data, data, request->bytes,
                                    self->local_of[request->peer]);
    hierarchy_add(state, request->peer, is_send, data, request->bytes);
    return hierarchy_exchange(state, request->peer);
}
