/* SPDX-License-Identifier: MIT */
/* Collectives of several hosts that copy. */
#include "base/error.h"
#include "comm/hierarchy.h"
#include "comm/run.h"
#include "cpu/call_list.h"

#include <stdlib.h>
#include <string.h>

enum {
    PIECE_BYTES = 1024 * 1024,
    /* Up to here a root sends to all hosts. Longer broadcasts go from host to host in pieces, so
     * that each link carries them once. */
    DIRECT_BYTES = 64 * 1024,
    SLOTS = 3, /* pieces under way */
};

static enum tutti_status exchange(struct hierarchy *self, int peer)
{
    struct fabric_batch *batch;
    const enum tutti_status status = hierarchy_start(self, &batch);
    return status == TUTTI_OK ? hierarchy_await(self, batch, peer) : status;
}

/* The blocks of this host's ranks, for the node's v-forms. */
struct node_blocks {
    size_t counts[NODE_RANKS], firsts[NODE_RANKS];
};

static struct coll_blocks node_blocks_of(const struct hierarchy *self,
                                         const struct hierarchy_blocks *blocks,
                                         struct node_blocks *node)
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

/* ---- broadcast ------------------------------------------------------------------------------- */

/* The rank that has the data first on the host that is `step` hosts behind the root's. */
static int head_of(const struct hierarchy *self, int root, int step)
{
    const int host = (self->host_of[root] + step) % self->hosts;
    return step == 0 ? root : hierarchy_rank(self, host, 0);
}

enum tutti_status hierarchy_broadcast(struct hierarchy *self, struct request *request)
{
    const int root = request->peer, rank = self->comm->rank;
    const int step = (self->host - self->host_of[root] + self->hosts) % self->hosts;
    const bool direct = request->bytes <= DIRECT_BYTES, is_head = rank == head_of(self, root, step);
    const size_t whole = direct ? request->bytes : PIECE_BYTES;
    const int from = head_of(self, root, direct || step == 0 ? 0 : step - 1);
    unsigned char *const data =
        rank == root ? (unsigned char *)(uintptr_t)request->send : request->recv;
    struct fabric_batch *received, *sent[SLOTS] = {NULL};
    enum tutti_status status = TUTTI_OK;
    size_t i = 0;
    for (size_t at = 0; at < request->bytes && status == TUTTI_OK; at += whole, i++) {
        const size_t left = request->bytes - at, bytes = left < whole ? left : whole;
        const int slot = (int)(i % SLOTS);
        if (is_head && step > 0) {
            hierarchy_add(self, from, false, data + at, bytes);
            status = hierarchy_start(self, &received);
            if (status == TUTTI_OK)
                status = hierarchy_await(self, received, from);
        }
        if (is_head && status == TUTTI_OK)
            status = hierarchy_await(self, sent[slot], hierarchy_elsewhere(self));
        for (int next = step + 1; is_head && next < (step && direct ? 0 : self->hosts); next++) {
            hierarchy_add(self, head_of(self, root, next), true, data + at, bytes);
            if (!direct)
                break;
        }
        if (is_head && status == TUTTI_OK)
            status = hierarchy_start(self, &sent[slot]);
        if (status == TUTTI_OK && hierarchy_ranks(self, self->host) > 1)
            status = hierarchy_node_bytes(self, TUTTI_COLLECTIVE_BROADCAST, data + at, data + at,
                                          bytes, step == 0 ? self->local_of[root] : 0);
    }
    for (int slot = 0; slot < SLOTS && status == TUTTI_OK; slot++)
        status = hierarchy_await(self, sent[slot], hierarchy_elsewhere(self));
    if (status == TUTTI_OK && rank == root && request->recv != request->send && request->bytes)
        memcpy(request->recv, request->send, request->bytes);
    return status;
}

/* ---- all_gather ------------------------------------------------------------------------------ */

/* Passes the blocks of a host's ranks on in the node. Each rank has at most one in each round. */
static enum tutti_status blocks_share(struct hierarchy *self, unsigned char *recv,
                                      const struct hierarchy_blocks *blocks, int host)
{
    const int n = hierarchy_ranks(self, self->host), theirs = hierarchy_ranks(self, host);
    enum tutti_status status = TUTTI_OK;
    for (int first = 0; first < theirs && status == TUTTI_OK; first += n) {
        struct node_blocks node = {{0}, {0}};
        for (int i = 0; i < n && first + i < theirs; i++) {
            const int rank = hierarchy_rank(self, host, first + i);
            node.counts[i] = blocks->bytes[rank];
            node.firsts[i] = blocks->at[rank];
        }
        const struct coll_args args = {
            .send = recv + node.firsts[self->local],
            .recv = recv,
            .count = node.counts[self->local],
            .dtype = TUTTI_UINT8,
            .recv_blocks = {.counts = node.counts, .displacements = node.firsts},
        };
        status = hierarchy_node(self, TUTTI_COLLECTIVE_ALL_GATHER_V, &args);
    }
    return status;
}

enum tutti_status hierarchy_all_gather(struct hierarchy *self, struct request *request)
{
    struct hierarchy_blocks blocks;
    struct fabric_batch *batch;
    unsigned char *const recv = request->recv;
    const int rank = self->comm->rank;
    hierarchy_blocks(self, request, false, &blocks);
    if (blocks.bytes[rank] && recv + blocks.at[rank] != request->send)
        memcpy(recv + blocks.at[rank], request->send, blocks.bytes[rank]);
    for (int host = 0; host < self->hosts; host++)
        if (host != self->host)
            hierarchy_add(self, hierarchy_rank(self, host, hierarchy_keeper(self, host, rank)),
                          true, recv + blocks.at[rank], blocks.bytes[rank]);
    for (int r = 0; r < self->comm->world_size; r++)
        if (self->host_of[r] != self->host && hierarchy_keeper(self, self->host, r) == self->local)
            hierarchy_add(self, r, false, recv + blocks.at[r], blocks.bytes[r]);
    enum tutti_status status = hierarchy_start(self, &batch);
    if (status == TUTTI_OK)
        status = blocks_share(self, recv, &blocks, self->host);
    if (status == TUTTI_OK)
        status = hierarchy_await(self, batch, hierarchy_elsewhere(self));
    for (int host = 0; host < self->hosts && status == TUTTI_OK; host++)
        if (host != self->host)
            status = blocks_share(self, recv, &blocks, host);
    return status;
}

/* ---- all_to_all ------------------------------------------------------------------------------ */

enum tutti_status hierarchy_all_to_all(struct hierarchy *self, struct request *request)
{
    struct hierarchy_blocks sent, received;
    struct node_blocks node_sent, node_received;
    struct fabric_batch *batch;
    unsigned char *send = (unsigned char *)(uintptr_t)request->send, *recv = request->recv;
    hierarchy_blocks(self, request, true, &sent);
    hierarchy_blocks(self, request, false, &received);
    if (send == recv) { /* the peers' blocks come while this rank's own ones leave */
        size_t bytes = 0;
        for (int r = 0; r < self->comm->world_size; r++)
            bytes += sent.bytes[r];
        const enum tutti_status status = hierarchy_reserve(self, bytes);
        if (status != TUTTI_OK)
            return status;
        bytes = 0;
        for (int r = 0; r < self->comm->world_size; r++) {
            if (sent.bytes[r])
                memcpy(self->scratch.bytes + bytes, send + sent.at[r], sent.bytes[r]);
            sent.at[r] = bytes;
            bytes += sent.bytes[r];
        }
        send = self->scratch.bytes;
    }
    for (int r = 0; r < self->comm->world_size; r++) {
        if (self->host_of[r] == self->host)
            continue;
        hierarchy_add(self, r, true, send + sent.at[r], sent.bytes[r]);
        hierarchy_add(self, r, false, recv + received.at[r], received.bytes[r]);
    }
    enum tutti_status status = hierarchy_start(self, &batch);
    const struct coll_args args = {
        .send = send,
        .recv = recv,
        .dtype = TUTTI_UINT8,
        .send_blocks = node_blocks_of(self, &sent, &node_sent),
        .recv_blocks = node_blocks_of(self, &received, &node_received),
    };
    if (status == TUTTI_OK)
        status = hierarchy_node(self, TUTTI_COLLECTIVE_ALL_TO_ALL_V, &args);
    return status == TUTTI_OK ? hierarchy_await(self, batch, hierarchy_elsewhere(self)) : status;
}

/* ---- with a root, and messages --------------------------------------------------------------- */

enum tutti_status hierarchy_gather(struct hierarchy *self, struct request *request)
{
    const int root = request->peer, rank = self->comm->rank;
    struct hierarchy_blocks blocks;
    struct node_blocks node;
    struct fabric_batch *batch;
    unsigned char *const recv = request->recv;
    if (self->host_of[root] != self->host) {
        hierarchy_add(self, root, true, (unsigned char *)(uintptr_t)request->send,
                      own_bytes(request));
        return exchange(self, root);
    }
    if (rank == root)
        hierarchy_blocks(self, request, false, &blocks);
    for (int r = 0; r < self->comm->world_size && rank == root; r++)
        if (self->host_of[r] != self->host)
            hierarchy_add(self, r, false, recv + blocks.at[r], blocks.bytes[r]);
    enum tutti_status status = hierarchy_start(self, &batch);
    struct coll_args args = {.send = request->send,
                             .recv = recv,
                             .count = own_bytes(request),
                             .dtype = TUTTI_UINT8,
                             .peer = self->local_of[root]};
    if (rank == root)
        args.recv_blocks = node_blocks_of(self, &blocks, &node);
    if (status == TUTTI_OK)
        status = hierarchy_node(self, TUTTI_COLLECTIVE_GATHER_V, &args);
    return status == TUTTI_OK ? hierarchy_await(self, batch, hierarchy_elsewhere(self)) : status;
}

enum tutti_status hierarchy_scatter(struct hierarchy *self, struct request *request)
{
    const int root = request->peer, rank = self->comm->rank;
    struct hierarchy_blocks blocks;
    struct node_blocks node;
    struct fabric_batch *batch;
    unsigned char *const send = (unsigned char *)(uintptr_t)request->send;
    if (self->host_of[root] != self->host) {
        hierarchy_add(self, root, false, request->recv, own_bytes(request));
        return exchange(self, root);
    }
    if (rank == root)
        hierarchy_blocks(self, request, true, &blocks);
    for (int r = 0; r < self->comm->world_size && rank == root; r++)
        if (self->host_of[r] != self->host)
            hierarchy_add(self, r, true, send + blocks.at[r], blocks.bytes[r]);
    enum tutti_status status = hierarchy_start(self, &batch);
    struct coll_args args = {.send = send,
                             .recv = request->recv,
                             .count = own_bytes(request),
                             .dtype = TUTTI_UINT8,
                             .peer = self->local_of[root]};
    if (rank == root)
        args.send_blocks = node_blocks_of(self, &blocks, &node);
    if (status == TUTTI_OK)
        status = hierarchy_node(self, TUTTI_COLLECTIVE_SCATTER_V, &args);
    return status == TUTTI_OK ? hierarchy_await(self, batch, hierarchy_elsewhere(self)) : status;
}

/* Those of the node are a list of its own; the others are on their way meanwhile. */
static enum tutti_status messages_run(struct hierarchy *self, struct cpu_call *calls, int count,
                                      struct fabric_batch *batch)
{
    struct cpu_states states = {.memory = NULL};
    enum tutti_status status = TUTTI_OK;
    cpu_call_list_run(count ? calls : NULL, &states);
    free(states.memory);
    for (int i = 0; i < count && status == TUTTI_OK; i++)
        status = calls[i].status;
    return status == TUTTI_OK ? hierarchy_await(self, batch, hierarchy_elsewhere(self)) : status;
}

enum tutti_status hierarchy_messages(struct hierarchy *self, struct request *const *requests,
                                     int count)
{
    struct cpu_call *calls = calloc((size_t)count, sizeof *calls);
    struct fabric_batch *batch = NULL;
    int here = 0;
    if (!calls)
        return error_set(TUTTI_ERR_NO_MEMORY, "no memory for %d messages", count);
    enum tutti_status status = hierarchy_room(self, (size_t)count);
    for (int i = 0; i < count && status == TUTTI_OK; i++) {
        struct request *const request = requests[i];
        const bool is_send = request->collective == TUTTI_COLLECTIVE_SEND;
        const int peer = request->peer;
        unsigned char *const data =
            is_send ? (unsigned char *)(uintptr_t)request->send : request->recv;
        self->request = request;
        request_started(request, self->sequence, RECORD_SUBSET, RECORD_RUNNING);
        if (self->host_of[peer] != self->host) {
            hierarchy_add(self, peer, is_send, data, request->bytes);
            continue;
        }
        calls[here].group = self->node->group;
        status = hierarchy_node_request(self, request->collective, data, request->bytes,
                                        self->local_of[peer], &calls[here].request);
        if (here)
            calls[here - 1].next = &calls[here];
        here++;
    }
    if (status == TUTTI_OK)
        status = hierarchy_start(self, &batch);
    if (status == TUTTI_OK)
        status = messages_run(self, calls, here, batch);
    free(calls);
    return status;
}
