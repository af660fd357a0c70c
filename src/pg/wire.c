/* SPDX-License-Identifier: MIT */
#include "pg/wire.h"

#include "base/deadline.h"
#include "base/error.h"
#include "base/order.h"
#include "base/wait.h"
#include "comm/hierarchy_internal.h"
#include "pg/control_ring.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Packets under way to a rank; how often a rank with and without operations looks in the store; how
 * long a close waits. */
enum { PLACES = 4, LOOK_MS = 200, IDLE_LOOK_MS = 1000, CLOSE_MS = 1000 };

/* Of how many ranks a step asks the engine for packets, in turns; and of all in so long a rest. */
enum { FEW = 8, ALL_NS = 250000 };

/* Kinds of packets; those of messages are below. */
enum { ANNOUNCEMENT = 64, VERDICT, END, LEFT };

struct header {
    struct cpu_message message; /* END, LEFT: id: the rank that leaves; parameter: 1 + the cause,
                                 * or 0: the sender stays */
    uint64_t bytes;             /* of the body, which follows */
};

struct packet {
    struct fabric_batch *batch;
    struct header header;
    unsigned char body[PG_WIRE_BYTES];
};

enum awaited { AWAITS_HEADER, AWAITS_BODY, AWAITS_READER, AWAITS_NOTHING };

struct peer {
    struct packet out[PLACES], in;
    uint64_t sent, ended; /* packets */
    enum awaited awaited; /* of `in` */
    bool ends, has_ended; /* this rank is to send END, has sent it */
    uint32_t left;        /* 1 + the cause, from its END; 0: it has not left */
    bool is_confirmed;    /* the leader's LEFT has come */
    struct rank_set tell; /* leader: the ranks of which it has to be told */
    uint32_t posted;      /* announcements or verdicts of it that have come */
    struct layout_control_ring ring;
};

struct pg_wire {
    struct hierarchy *self;
    struct pg_control *control;
    enum tutti_status failed; /* a status of the engine, its text and the rank */
    char failed_text[300];
    int failed_peer;
    bool discards; /* while it closes */
    int64_t looked_at;
    int next;          /* the first rank that the next step asks for */
    int64_t polled_at; /* the end of the last step */
    struct peer peers[];
};

static bool fail(struct pg_wire *wire, enum tutti_status status, int peer)
{
    if (status != TUTTI_OK && wire->failed == TUTTI_OK) {
        wire->failed = status;
        wire->failed_peer = peer;
        snprintf(wire->failed_text, sizeof wire->failed_text, "%s", tutti_last_error());
    }
    return status != TUTTI_OK;
}

/* ---- sending --------------------------------------------------------------------------------- */

bool pg_wire_has_place(const struct pg_wire *wire, int to)
{
    const struct peer *peer = &wire->peers[to];
    return peer->has_ended || (peer->sent - peer->ended < PLACES && wire->failed == TUTTI_OK);
}

bool pg_wire_message_send(struct pg_wire *wire, int to, const struct cpu_message *message,
                          const void *data, size_t bytes)
{
    struct peer *peer = &wire->peers[to];
    struct packet *packet = &peer->out[peer->sent % PLACES];
    if (peer->has_ended || !pg_wire_has_place(wire, to))
        return peer->has_ended;
    packet->header = (struct header){.message = *message, .bytes = bytes};
    if (bytes)
        memcpy(packet->body, data, bytes);
    const struct fabric_transfer transfers[] = {
        {to, HIERARCHY_TAG_PACKET, true, &packet->header, sizeof packet->header},
        {to, HIERARCHY_TAG_PACKET, true, packet->body, bytes}};
    if (fail(wire, fabric_start(wire->self->link, transfers, bytes ? 2 : 1, &packet->batch), to))
        return false;
    peer->sent++;
    return true;
}

bool pg_wire_announce(struct pg_wire *wire, const struct layout_announcement *announcement,
                      size_t bytes)
{
    return pg_wire_message_send(wire, 0, &(struct cpu_message){.kind = ANNOUNCEMENT}, announcement,
                                bytes);
}

bool pg_wire_post(struct pg_wire *wire, int to, const struct layout_verdict *verdict, size_t bytes)
{
    return pg_wire_message_send(wire, to, &(struct cpu_message){.kind = VERDICT}, verdict, bytes);
}

/* Sends what is due: LEFT, then END, which is the last packet. */
static void last_send(struct pg_wire *wire, int to)
{
    struct peer *peer = &wire->peers[to];
    for (int r = rank_set_next(peer->tell, -1); r >= 0; r = rank_set_next(peer->tell, r)) {
        const struct cpu_message message = {.kind = LEFT, .id = (uint64_t)r};
        if (!pg_wire_message_send(wire, to, &message, NULL, 0))
            return;
        rank_set_remove(&peer->tell, r);
    }
    const struct cpu_message message = {.kind = END, .parameter = wire->control->own->left};
    if (peer->ends && !peer->has_ended)
        peer->has_ended = pg_wire_message_send(wire, to, &message, NULL, 0);
}

/* Frees the places of packets that have been sent. Returns whether there were any. */
static bool sent_free(struct pg_wire *wire, int to)
{
    struct peer *peer = &wire->peers[to];
    const uint64_t before = peer->ended;
    bool done = true;
    while (done && peer->ended != peer->sent) {
        struct packet *packet = &peer->out[peer->ended % PLACES];
        if (fail(wire, fabric_test(wire->self->link, packet->batch, &done), to))
            return false;
        peer->ended += done;
    }
    return peer->ended != before;
}

/* ---- receiving ------------------------------------------------------------------------------- */

/* Begins to receive a part of the next packet. */
static void await(struct pg_wire *wire, int from, enum awaited what)
{
    struct peer *peer = &wire->peers[from];
    struct packet *packet = &peer->in;
    const bool is_body = what == AWAITS_BODY;
    const struct fabric_transfer transfer = {
        from, HIERARCHY_TAG_PACKET, false, is_body ? packet->body : (void *)&packet->header,
        is_body ? packet->header.bytes : sizeof packet->header};
    peer->awaited = what;
    (void)fail(wire, fabric_start(wire->self->link, &transfer, 1, &packet->batch), from);
}

/* Marks ranks as left whose END and LEFT have come. */
static void left_mark(struct pg_wire *wire)
{
    const struct pg_control *control = wire->control;
    for (int r = 0; r < control->size; r++) {
        const struct peer *peer = &wire->peers[r];
        if (peer->left && (peer->is_confirmed || control->rank == 0 || wire->peers[0].left))
            order_store_release_u32(&control->rings[r]->left, peer->left); /* H4 pairs H4a */
    }
}

/* `from` sends nothing more. */
static void end_take(struct pg_wire *wire, int from)
{
    struct peer *peer = &wire->peers[from];
    const uint32_t left = peer->in.header.message.parameter;
    peer->awaited = AWAITS_NOTHING;
    peer->ends = true;
    peer->left = left <= (uint32_t)wire->control->size ? left : 1 + (uint32_t)from;
    for (int r = 0; r < wire->control->size && wire->control->rank == 0; r++)
        if (r != from)
            rank_set_add(&wire->peers[r].tell, from);
    left_mark(wire);
}

/* The place of the next post of a rank in its ring; NULL: there is no room yet. `taken`: how many
 * of them have been read. */
static void *post_next(struct peer *peer, void *posts, size_t each, uint32_t taken)
{
    if (peer->posted - taken >= LAYOUT_POSTS)
        return NULL;
    return (char *)posts + (++peer->posted % LAYOUT_POSTS) * each;
}

/* Copies what has come into the ring. The first field is the number, which the reader looks for. */
static bool post_take(struct pg_wire *wire, int from)
{
    struct peer *peer = &wire->peers[from];
    struct layout_control_ring *ring = &peer->ring;
    const struct pg_control *control = wire->control;
    const bool is_verdict = peer->in.header.message.kind == VERDICT;
    const size_t each = is_verdict ? sizeof *ring->verdicts : sizeof *ring->announcements;
    const size_t bytes = peer->in.header.bytes;
    uint32_t *post;
    if ((from != 0 && (is_verdict || control->rank != 0)) || bytes < sizeof *post)
        return true; /* it misbehaves */
    post = post_next(peer, is_verdict ? (void *)ring->verdicts : (void *)ring->announcements, each,
                     is_verdict ? control->verdicts_taken : control->announcements_taken[from]);
    if (!post)
        return false;
    memcpy(post + 1, peer->in.body + sizeof *post, (bytes < each ? bytes : each) - sizeof *post);
    order_store_release_u32(post, peer->posted); /* H1 pairs H1a, H2 pairs H2a */
    return true;
}

/* Takes a packet that is no message's. Returns false if there is no room for it yet. */
static bool packet_take(struct pg_wire *wire, int from)
{
    const struct cpu_message *message = &wire->peers[from].in.header.message;
    if (message->kind == END) {
        end_take(wire, from);
    } else if (message->kind == LEFT && from == 0 && message->id < (uint64_t)wire->control->size) {
        wire->peers[message->id].is_confirmed = true;
        left_mark(wire);
    } else if (message->kind == ANNOUNCEMENT || message->kind == VERDICT) {
        return wire->discards || post_take(wire, from);
    } else {
        return wire->discards;
    }
    return true;
}

/* Takes what has come from a rank. Returns whether there was anything. */
static bool receive(struct pg_wire *wire, int from)
{
    struct peer *peer = &wire->peers[from];
    bool any = false;
    for (;;) {
        bool done = peer->awaited == AWAITS_READER;
        if (wire->failed != TUTTI_OK || peer->awaited == AWAITS_NOTHING ||
            (!done && fail(wire, fabric_test(wire->self->link, peer->in.batch, &done), from)) ||
            !done)
            return any;
        if (peer->awaited == AWAITS_HEADER && peer->in.header.bytes > PG_WIRE_BYTES) {
            const enum tutti_status status =
                error_set(TUTTI_ERR_MISMATCH,
                          "rank %d sent a packet of %" PRIu64 " bytes: expected %d at most", from,
                          peer->in.header.bytes, PG_WIRE_BYTES);
            return !fail(wire, status, from);
        }
        any |= peer->awaited != AWAITS_READER;
        if (peer->awaited == AWAITS_HEADER && peer->in.header.bytes) {
            await(wire, from, AWAITS_BODY);
            continue;
        }
        peer->awaited = AWAITS_READER;
        if (!packet_take(wire, from))
            return any;
        any = true;
        if (peer->awaited == AWAITS_READER)
            await(wire, from, AWAITS_HEADER);
    }
}

bool pg_wire_message_next(const struct pg_wire *wire, int from, struct cpu_message *message)
{
    const struct peer *peer = &wire->peers[from];
    *message = peer->in.header.message;
    return peer->awaited == AWAITS_READER && message->kind < ANNOUNCEMENT;
}

const void *pg_wire_message_data(const struct pg_wire *wire, int from)
{
    return wire->peers[from].in.body;
}

void pg_wire_message_taken(struct pg_wire *wire, int from)
{
    await(wire, from, AWAITS_HEADER);
    (void)receive(wire, from);
}

/*
 * MPI makes progress in each test, which takes .5 to 1 us (63 ranks: 50 us, and .8 ms in Open MPI
 * on shared cores). So a step asks for the leader's packets, for the rest of those that have begun,
 * and for those of a few ranks, so that its time does not grow with the number of ranks. After a
 * rest it asks for those of more.
 */
static int asked(const struct pg_wire *wire)
{
    const int size = wire->control->size;
    const int64_t rest = deadline_now() - wire->polled_at;
    return size <= FEW || rest >= ALL_NS ? size : FEW + (int)((size - FEW) * rest / ALL_NS);
}

bool pg_wire_poll(struct pg_wire *wire)
{
    const int size = wire->control->size;
    const int first = wire->next, few = asked(wire);
    bool any = false;
    for (int r = 0; r < size && wire->failed == TUTTI_OK; r++) {
        if (r == wire->control->rank)
            continue;
        any |= sent_free(wire, r);
        if (r == 0 || wire->peers[r].awaited != AWAITS_HEADER || (r - first + size) % size < few)
            any |= receive(wire, r);
        last_send(wire, r);
    }
    wire->next = (first + few) % size;
    wire->polled_at = deadline_now();
    return any;
}

/* ---- life ------------------------------------------------------------------------------------ */

enum tutti_status pg_wire_open(struct tutti_comm *comm, struct pg_control *control)
{
    struct hierarchy *self = comm->hosts.group;
    if (self->packets)
        return error_set(TUTTI_ERR_CONCURRENT, "communicator \"%s\" has had a process group",
                         comm->name);
    struct pg_wire *wire = calloc(1, sizeof *wire + (size_t)comm->world_size * sizeof *wire->peers);
    if (!wire)
        return error_errno("packets between %d ranks", comm->world_size);
    wire->self = self;
    wire->control = control;
    self->packets = wire;
    control->wire = wire;
    for (int r = 0; r < comm->world_size; r++) {
        control->rings[r] = &wire->peers[r].ring;
        if (r != comm->rank)
            await(wire, r, AWAITS_HEADER);
    }
    control->rings[comm->rank] = &peers_arena(comm->peers, self->local)->control_ring;
    return TUTTI_OK;
}

bool pg_wire_has_failed(struct pg_wire *wire, bool busy)
{
    struct hierarchy *self = wire->self;
    struct peers *const peers = self->comm->peers;
    struct tutti_fault found;
    const struct tutti_fault fault = {.status = wire->failed,
                                      .rank = self->local,
                                      .peer = PEERS_ELSEWHERE + wire->failed_peer,
                                      .sequence = self->sequence};
    const int64_t now = deadline_now(), every = busy ? LOOK_MS : IDLE_LOOK_MS;
    if (peers_check(peers, -1, false, &found))
        return true;
    if (wire->failed != TUTTI_OK) {
        (void)error_set(wire->failed, "%s", wire->failed_text); /* another thread may have met it */
        (void)hierarchy_engine_failed(self, &fault);
    } else if (now - wire->looked_at >= every * 1000000) {
        wire->looked_at = now;
        if (hierarchy_look(self))
            (void)hierarchy_adopt(self);
    }
    return peers_have_failed(peers);
}

static bool has_ended(void *context)
{
    struct pg_wire *wire = context;
    bool ended = true;
    (void)pg_wire_poll(wire);
    for (int r = 0; r < wire->control->size; r++) {
        const struct peer *peer = &wire->peers[r];
        ended &= r == wire->control->rank ||
                 (peer->awaited == AWAITS_NOTHING && peer->has_ended && peer->sent == peer->ended);
    }
    return ended || wire->failed != TUTTI_OK;
}

void pg_wire_close(struct pg_wire *wire, int cause)
{
    wire->discards = true;
    /* H4 pairs H4a: a caller without a thread has not written it */
    order_store_release_u32(&wire->control->own->left,
                            1 + (uint32_t)(cause < 0 ? wire->control->rank : cause));
    for (int r = 0; r < wire->control->size; r++)
        wire->peers[r].ends = true;
    (void)wait_napping(has_ended, wire, deadline_after(CLOSE_MS), WAIT_NAP_NS);
}
