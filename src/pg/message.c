/* SPDX-License-Identifier: MIT */
/*
 * Messages: send and receive. They go from rank to rank, not through the leader, as messages of the
 * communicator's lane PAIR between those of its collectives (cpu/transport/message.c).
 *
 *     sender                                       receiver
 *     ANNOUNCED_SHORT, with the data: done    ->   match with a receive, or keep both
 *     SHORT_KEPT more may be sent             <-   TAKEN, after each SHORT_KEPT matched
 *     ANNOUNCED (tag, dtype, count)           ->   match with a receive, or keep the announcement
 *     DATA, a piece each                      <-   GO
 *     MISMATCH                                <-   REFUSED (dtype, count): MISMATCH here, too
 *     WITHDRAWN: the time-out has passed      ->   drop the announcement, or end the receive
 *
 * Announcements of a pair arrive in order. Both sides keep messages of one tag and sender in lines.
 * So messages of one pair and tag do not overtake each other, and the work for a message does not
 * grow with their number. A receiver keeps one announcement for each waiting send. Of announcements
 * with data it keeps at most 2 * SHORT_KEPT of each sender, and has room for SHORT_KEPT at least.
 *
 * A note is a message that is not sent yet: it waits for a place among those to its peer.
 */
#include "base/deadline.h"
#include "base/error.h"
#include "base/order.h"
#include "base/point.h"
#include "base/signature.h"
#include "cpu/group.h"
#include "pg/pg.h"
#include "pg/wire.h"

#include <stdlib.h>
#include <string.h>

enum { SHORT_BYTES = 1024, SHORT_KEPT = 16, RETRY_MS = 50 };

enum kind { ANNOUNCED = 1, ANNOUNCED_SHORT, GO, TAKEN, REFUSED, DATA, WITHDRAWN };

/* ---- what carries messages: the lane PAIR on one host, packets between hosts -------------------
 */

static size_t transport_most(const struct tutti_pg *pg)
{
    return pg->control.wire ? PG_WIRE_BYTES : cpu_message_most(pg->comm->group);
}

static bool transport_send(struct tutti_pg *pg, int to, const struct cpu_message *message,
                           const void *data, size_t bytes)
{
    return pg->control.wire ? pg_wire_message_send(pg->control.wire, to, message, data, bytes)
                            : cpu_message_send(pg->comm->group, to, message, data, bytes);
}

static bool transport_next(struct tutti_pg *pg, int from, struct cpu_message *message)
{
    return pg->control.wire ? pg_wire_message_next(pg->control.wire, from, message)
                            : cpu_message_next(pg->comm->group, from, message);
}

static const void *transport_data(struct tutti_pg *pg, int from, size_t bytes)
{
    return pg->control.wire ? pg_wire_message_data(pg->control.wire, from)
                            : cpu_message_data(pg->comm->group, from, bytes);
}

static void transport_taken(struct tutti_pg *pg, int from)
{
    if (pg->control.wire)
        pg_wire_message_taken(pg->control.wire, from);
    else
        cpu_message_taken(pg->comm->group, from);
}

/* ---- lists ----------------------------------------------------------------------------------- */

static size_t bytes_of(const struct pg_operation *operation)
{
    return operation->args.count * dtype_bytes(operation->args.dtype);
}

static bool is_send(const struct pg_operation *operation)
{
    return operation->work.collective == TUTTI_COLLECTIVE_SEND;
}

static void note_append(struct pg_notes *notes, struct pg_note *note)
{
    note->next = NULL;
    note->before = notes->first ? notes->last : NULL;
    if (notes->first)
        notes->last->next = note;
    else
        notes->first = note;
    notes->last = note;
}

/* Remove a note that is in the list. */
static void note_remove(struct pg_notes *notes, struct pg_note *note)
{
    *(note->before ? &note->before->next : &notes->first) = note->next;
    *(note->next ? &note->next->before : &notes->last) = note->before;
}

/* Queue a note to its peer. */
static void note_queue(struct tutti_pg *pg, struct pg_note *note)
{
    rank_set_add(&pg->noted, note->peer);
    note_append(note->kind == DATA ? &pg->data[note->peer] : &pg->notes[note->peer], note);
}

/* ---- what can be found ----------------------------------------------------------------------- */

/* Make the operation findable by its id: a send for its answer, a receive for its data. `from`: the
 * sender of a receive, -1 for a send. */
static void id_insert(struct tutti_pg *pg, struct pg_operation *operation, int from)
{
    operation->has_id = true;
    operation->by_id = (struct pg_key){.tag = (uint32_t)(from + 1), .sequence = operation->id};
    pg_map_insert(&pg->by_id, &operation->by_id);
}

static struct pg_operation *id_find(const struct tutti_pg *pg, int from, uint64_t id)
{
    struct pg_key *key = pg_map_find(&pg->by_id, (uint32_t)(from + 1), id);
    return key ? (struct pg_operation *)(void *)((char *)key - offsetof(struct pg_operation, by_id))
               : NULL;
}

/* Let a receive wait for an announcement. */
static void wait_begin(struct tutti_pg *pg, struct pg_operation *operation)
{
    operation->is_waiting = true;
    operation->line.key = (struct pg_key){.tag = operation->key.tag,
                                          .sequence = (uint64_t)(operation->args.peer + 1)};
    pg_line_append(&pg->waiting_lines, &operation->line);
}

static void wait_end(struct tutti_pg *pg, struct pg_operation *operation)
{
    if (operation->is_waiting)
        pg_line_remove(&pg->waiting_lines, &operation->line);
    operation->is_waiting = false;
}

/* The receive that has waited longest for such an announcement; NULL: there is none. A receive from
 * any rank stands in the line of sender -1. */
static struct pg_operation *waiting_find(const struct tutti_pg *pg, const struct pg_note *note)
{
    struct pg_operation *first = NULL;
    for (int i = 0; i < 2; i++) {
        const int from = i ? note->peer : TUTTI_ANY_SOURCE;
        struct pg_member *line = pg_line_first(&pg->waiting_lines, note->tag, (uint64_t)(from + 1));
        struct pg_operation *operation =
            line ? (struct pg_operation *)(void *)((char *)line -
                                                   offsetof(struct pg_operation, line))
                 : NULL;
        if (operation && (!first || operation->key.sequence < first->key.sequence))
            first = operation;
    }
    return first;
}

/* Keep an announcement that matches no receive yet. */
static void unmatched_append(struct tutti_pg *pg, struct pg_note *note)
{
    note->arrival = ++pg->arrivals;
    note->line.key = (struct pg_key){.tag = note->tag, .sequence = (uint64_t)note->peer};
    note_append(&pg->unmatched, note);
    pg_line_append(&pg->unmatched_lines, &note->line);
}

static void unmatched_remove(struct tutti_pg *pg, struct pg_note *note)
{
    note_remove(&pg->unmatched, note);
    pg_line_remove(&pg->unmatched_lines, &note->line);
}

static struct pg_note *note_of(struct pg_member *line)
{
    return line ? (struct pg_note *)(void *)((char *)line - offsetof(struct pg_note, line)) : NULL;
}

static struct pg_note *unmatched_first(const struct tutti_pg *pg, uint32_t tag, int from)
{
    return note_of(pg_line_first(&pg->unmatched_lines, tag, (uint64_t)from));
}

/* The oldest announcement that the receive takes; NULL: there is none. */
static struct pg_note *unmatched_find(const struct tutti_pg *pg,
                                      const struct pg_operation *operation)
{
    struct pg_note *first = NULL;
    if (operation->args.peer != TUTTI_ANY_SOURCE)
        return unmatched_first(pg, operation->key.tag, operation->args.peer);
    for (int r = 0; r < pg->control.size; r++) {
        struct pg_note *note = unmatched_first(pg, operation->key.tag, r);
        if (note && (!first || note->arrival < first->arrival))
            first = note;
    }
    return first;
}

/* ---- ends ------------------------------------------------------------------------------------ */

/* Take a message out of its list. It can be found no more. */
static void op_remove(struct tutti_pg *pg, struct pg_operation *operation)
{
    pg_list_remove(is_send(operation) ? &pg->sends : &pg->receives, operation);
    wait_end(pg, operation);
    if (operation->has_id)
        pg_map_take(&pg->by_id, operation->by_id.tag, operation->by_id.sequence);
    operation->has_id = false;
}

static void finish(struct tutti_pg *pg, struct pg_operation *operation,
                   const struct pg_outcome *outcome)
{
    op_remove(pg, operation);
    pg_complete(pg, operation, outcome);
}

static void finish_well(struct tutti_pg *pg, struct pg_operation *operation)
{
    struct pg_outcome outcome = {.rank = pg->control.rank, .peer = -1};
    if (operation->cuda && !is_send(operation))
        outcome.status = pg_staging_message_out(operation);
    if (operation->cuda && !is_send(operation) && outcome.status == TUTTI_OK) {
        op_remove(pg, operation);
        pg_list_append(&pg->copying_out, operation);
    } else {
        finish(pg, operation, &outcome);
    }
}

static void finish_mismatch(struct tutti_pg *pg, struct pg_operation *operation, int peer,
                            uint64_t signature)
{
    struct pg_outcome outcome = {.status = TUTTI_ERR_MISMATCH,
                                 .rank = pg->control.rank,
                                 .peer = peer,
                                 .expected = operation->description,
                                 .seen = operation->description};
    outcome.seen.signature = signature;
    finish(pg, operation, &outcome);
}

/* ---- what is sent ---------------------------------------------------------------------------- */

static bool announcement_send(struct tutti_pg *pg, const struct pg_note *note)
{
    struct pg_operation *operation = note->operation;
    const size_t bytes = bytes_of(operation);
    const bool is_short = bytes <= SHORT_BYTES && bytes <= transport_most(pg) &&
                          pg->short_sent[note->peer] < 2 * SHORT_KEPT;
    const struct cpu_message message = {is_short ? ANNOUNCED_SHORT : ANNOUNCED, note->id,
                                        note->signature, note->tag};
    if (!transport_send(pg, note->peer, &message, pg_staging_message_data(operation),
                        is_short ? bytes : 0))
        return false;
    POINT("message.announced");
    operation->is_announced = true;
    if (is_short) {
        pg->short_sent[note->peer]++;
        finish_well(pg, operation);
    } else {
        id_insert(pg, operation, -1);
    }
    return true;
}

/* Send pieces while there are places. Return true once all are sent; the note's operation has then
 * ended. */
static bool data_send(struct tutti_pg *pg, const struct pg_note *note, bool *any)
{
    struct pg_operation *operation = note->operation;
    const size_t most = transport_most(pg), bytes = bytes_of(operation);
    const struct cpu_message message = {DATA, note->id, 0, 0};
    while (operation->moved < bytes) {
        const size_t left = bytes - operation->moved, piece = left < most ? left : most;
        if (!transport_send(pg, note->peer, &message,
                            (const char *)pg_staging_message_data(operation) + operation->moved,
                            piece))
            return false;
        POINT("message.sent");
        *any = true;
        operation->moved += piece;
        operation->deadline = deadline_after(operation->timeout_ms);
    }
    finish_well(pg, operation);
    return true;
}

/* Return whether the note has been sent completely. *any: something was sent. */
static bool note_send(struct tutti_pg *pg, struct pg_note *note, bool *any)
{
    const struct cpu_message message = {note->kind, note->id, note->signature, note->tag};
    const bool announces = note->kind == ANNOUNCED;
    if (note->kind == DATA)
        return data_send(pg, note, any);
    if (announces ? !announcement_send(pg, note)
                  : !transport_send(pg, note->peer, &message, NULL, 0))
        return false;
    if (!announces)
        free(note);
    return *any = true;
}

/* Send the notes for which there are places, in order. Return whether all have been sent. */
static bool notes_send(struct tutti_pg *pg, struct pg_notes *notes, bool *any)
{
    for (struct pg_note *note, *next; (note = notes->first);) {
        next = note->next; /* a note that has been sent is freed */
        if (!note_send(pg, note, any))
            return false;
        notes->first = next;
        if (next)
            next->before = NULL;
    }
    return true;
}

bool pg_messages_send(struct tutti_pg *pg)
{
    bool sent = false;
    for (int r = rank_set_next(pg->noted, -1); r >= 0; r = rank_set_next(pg->noted, r)) {
        bool any = false;
        if (notes_send(pg, &pg->notes[r], &any) && notes_send(pg, &pg->data[r], &any))
            rank_set_remove(&pg->noted, r);
        if (any)
            pg_control_notify(pg->control.rings[r]);
        sent |= any;
    }
    return sent;
}

/* ---- matching -------------------------------------------------------------------------------- */

/* The rank without which an operation cannot end, if that rank is gone; otherwise -1. */
static int gone_peer(const struct tutti_pg *pg, const struct pg_operation *operation)
{
    const int peer = operation->is_moving && !is_send(operation) ? (int)operation->source - 1
                                                                 : operation->args.peer;
    if (peer != TUTTI_ANY_SOURCE)
        return rank_set_has(pg->gone, peer) ? peer : -1;
    return rank_set_count(pg->gone) == pg->control.size - 1 ? rank_set_next(pg->gone, -1) : -1;
}

/* End the operation if the rank that it needs is gone, and name the rank because of which it is
 * gone. Return whether that rank is gone. */
static bool finish_gone(struct tutti_pg *pg, struct pg_operation *operation)
{
    const int peer = gone_peer(pg, operation);
    if (peer >= 0)
        finish(pg, operation,
               &(struct pg_outcome){.status = TUTTI_ERR_PEER_DEAD,
                                    .rank = pg->control.rank,
                                    .peer = pg_control_exit_cause(&pg->control, peer)});
    return peer >= 0;
}

/* Answer an announcement, or free it. Data that have come with it are in place. */
static void answer(struct tutti_pg *pg, struct pg_operation *operation, struct pg_note *note,
                   bool same)
{
    bool answers = note->peer != pg->control.rank && !rank_set_has(pg->gone, note->peer);
    if (note->kind == ANNOUNCED_SHORT) {
        note->kind = TAKEN;
        answers &= ++pg->short_taken[note->peer] % SHORT_KEPT == 0;
    } else {
        note->kind = same ? GO : REFUSED;
        note->signature = operation->description.signature;
    }
    if (answers)
        note_queue(pg, note);
    else
        free(note);
}

/* Join a receive, which is in the list, and an announcement, which is in no list. The data are
 * there if they came with the announcement, or if the send is this rank's own. */
static void match(struct tutti_pg *pg, struct pg_operation *operation, struct pg_note *note)
{
    const struct tutti_signature sent = signature_unpack(note->signature, 0);
    const uint64_t signature = note->signature, id = note->id;
    const int peer = note->peer;
    const bool same = sent.dtype == operation->args.dtype && sent.count == operation->args.count;
    struct pg_operation *own = note->operation; /* its send, on this rank */
    const bool moves = same && !own && note->kind == ANNOUNCED && bytes_of(operation);
    POINT("message.matched");
    order_store_relaxed_u32(&operation->source, (uint32_t)peer + 1);
    if (same && !moves && bytes_of(operation))
        pg->comm->isa->copy(pg_staging_message_data(operation),
                            own ? pg_staging_message_data(own) : note + 1, bytes_of(operation));
    if (own && same)
        finish_well(pg, own);
    else if (own)
        finish_mismatch(pg, own, peer, operation->description.signature);
    else
        answer(pg, operation, note, same);
    wait_end(pg, operation);
    if (moves) {
        operation->id = id;
        operation->is_moving = true;
        id_insert(pg, operation, peer);
        operation->deadline = deadline_after(operation->timeout_ms);
    } else if (same) {
        finish_well(pg, operation);
    } else {
        finish_mismatch(pg, operation, peer, signature);
    }
}

/* Return whether a receive waits for an announcement. */
static bool announcement_match(struct tutti_pg *pg, struct pg_note *note)
{
    struct pg_operation *operation = waiting_find(pg, note);
    if (operation)
        match(pg, operation, note);
    return operation;
}

/* Announce a send to this rank itself. A copy of short data is kept, so the send ends at once. */
static void send_to_self(struct tutti_pg *pg, struct pg_operation *operation)
{
    const size_t bytes = bytes_of(operation);
    uint32_t *sent = &pg->short_sent[operation->args.peer];
    struct pg_note *note = NULL;
    if (announcement_match(pg, &operation->note))
        return;
    if (bytes <= SHORT_BYTES && *sent - pg->short_taken[operation->args.peer] < SHORT_KEPT)
        note = malloc(sizeof *note + bytes);
    if (!note) {
        unmatched_append(pg, &operation->note);
        return;
    }
    *note = operation->note;
    note->operation = NULL;
    note->kind = ANNOUNCED_SHORT;
    if (bytes)
        memcpy(note + 1, pg_staging_message_data(operation), bytes);
    unmatched_append(pg, note);
    ++*sent;
    finish_well(pg, operation);
}

void pg_message_begin(struct tutti_pg *pg, struct pg_operation *operation)
{
    if (operation->cuda &&
        operation->cuda->status != TUTTI_OK) { /* no memory, or the copy failed */
        pg_complete(pg, operation,
                    &(struct pg_outcome){
                        .status = operation->cuda->status, .rank = pg->control.rank, .peer = -1});
        return;
    }
    pg_record(pg, operation);
    if (operation->deadline < pg->next_deadline)
        pg->next_deadline = operation->deadline;
    if (is_send(operation)) {
        operation->id = ++pg->messages;
        operation->note = (struct pg_note){.peer = operation->args.peer,
                                           .kind = ANNOUNCED,
                                           .id = operation->id,
                                           .tag = operation->key.tag,
                                           .signature = operation->description.signature,
                                           .operation = operation};
        pg_list_append(&pg->sends, operation);
        if (operation->args.peer == pg->control.rank)
            send_to_self(pg, operation);
        else if (!finish_gone(pg, operation))
            note_queue(pg, &operation->note);
        return;
    }
    pg_list_append(&pg->receives, operation);
    struct pg_note *note = unmatched_find(pg, operation);
    if (note) {
        unmatched_remove(pg, note);
        match(pg, operation, note);
    } else if (!finish_gone(pg, operation)) {
        wait_begin(pg, operation);
    }
}

/* ---- what arrives ---------------------------------------------------------------------------- */

/* Return false if there is no memory: the message stays where it is. */
static bool announcement_take(struct tutti_pg *pg, int from, const struct cpu_message *message)
{
    const struct tutti_signature sent = signature_unpack(message->signature, 0);
    const size_t bytes = sent.count * dtype_bytes(sent.dtype);
    const bool is_short = message->kind == ANNOUNCED_SHORT && bytes <= SHORT_BYTES;
    struct pg_note *note = malloc(sizeof *note + (is_short ? bytes : 0));
    if (!note)
        return false;
    *note = (struct pg_note){.peer = from,
                             .kind = is_short ? ANNOUNCED_SHORT : ANNOUNCED,
                             .id = message->id,
                             .tag = message->parameter,
                             .signature = message->signature};
    if (is_short && bytes)
        memcpy(note + 1, transport_data(pg, from, bytes), bytes);
    transport_taken(pg, from);
    if (!announcement_match(pg, note))
        unmatched_append(pg, note);
    return true;
}

static void data_take(struct tutti_pg *pg, int from, uint64_t id)
{
    struct pg_operation *operation = id_find(pg, from, id);
    if (operation) {
        const size_t left = bytes_of(operation) - operation->moved, most = transport_most(pg);
        const size_t piece = left < most ? left : most;
        pg->comm->isa->copy((char *)pg_staging_message_data(operation) + operation->moved,
                            transport_data(pg, from, piece), piece);
        operation->moved += piece;
        operation->deadline = deadline_after(operation->timeout_ms);
        POINT("message.taken");
    }
    transport_taken(pg, from);
    pg_control_notify(pg->control.rings[from]); /* the next piece is copied meanwhile */
    if (operation && operation->moved == bytes_of(operation))
        finish_well(pg, operation);
}

/* The receiver has answered the announcement of a send. */
static void answer_take(struct tutti_pg *pg, int from, const struct cpu_message *message)
{
    struct pg_operation *operation = id_find(pg, -1, message->id);
    transport_taken(pg, from);
    if (message->kind == TAKEN)
        pg->short_sent[from] -= SHORT_KEPT;
    if (message->kind == TAKEN || !operation || operation->args.peer != from ||
        operation->is_moving)
        return;
    if (message->kind == REFUSED) {
        finish_mismatch(pg, operation, from, message->signature);
    } else {
        operation->is_moving = true;
        operation->deadline = deadline_after(operation->timeout_ms);
        operation->note.kind = DATA;
        note_queue(pg, &operation->note);
    }
}

static void withdrawal_take(struct tutti_pg *pg, int from, const struct cpu_message *message)
{
    const struct pg_outcome late = {
        .status = TUTTI_ERR_TIMEOUT, .rank = from, .peer = pg->control.rank};
    struct pg_operation *operation = id_find(pg, from, message->id);
    struct pg_note *note = unmatched_first(pg, message->parameter, from);
    transport_taken(pg, from);
    while (note && note->id != message->id)
        note = note_of(note->line.next);
    if (note)
        unmatched_remove(pg, note);
    free(note);
    if (operation)
        finish(pg, operation, &late);
}

/* Tell a rank that there are places for its messages again, at every second one that was read. A
 * sender that waits for a place has LAYOUT_WINDOW messages to be read, so it is told. */
static void places_tell(struct tutti_pg *pg, int from)
{
    enum { TELL_EVERY = LAYOUT_WINDOW / 2 };
    if (pg->control.wire) /* the sender looks */
        return;
    const uint64_t read = cpu_messages_read(pg->comm->group, from);
    if (read / TELL_EVERY != pg->places_told[from] / TELL_EVERY)
        pg_control_notify(pg->control.rings[from]);
    pg->places_told[from] = read;
}

/* Return false if there is no memory: the message stays where it is. */
static bool message_take(struct tutti_pg *pg, int from, const struct cpu_message *message)
{
    if (message->kind == ANNOUNCED || message->kind == ANNOUNCED_SHORT)
        return announcement_take(pg, from, message);
    if (message->kind == DATA)
        data_take(pg, from, message->id);
    else if (message->kind == WITHDRAWN)
        withdrawal_take(pg, from, message);
    else
        answer_take(pg, from, message);
    return true;
}

/* Take all messages that have come from a rank. Return false if there is none, or no memory. */
static bool messages_take(void *context, int from)
{
    struct tutti_pg *pg = context;
    struct cpu_message message;
    bool any = false;
    while (transport_next(pg, from, &message) && message_take(pg, from, &message))
        any = true;
    if (any)
        places_tell(pg, from);
    return any;
}

/* ---- the engine's ---------------------------------------------------------------------------- */

void pg_messages_open(struct tutti_pg *pg)
{
    if (pg->comm->rules.paths.all && !pg->control.wire)
        cpu_group_set_messages(pg->comm->group, messages_take, pg);
}

void pg_messages_close(struct tutti_pg *pg)
{
    if (pg->control.wire)
        pg_wire_close(pg->control.wire, (int)pg->control.own->left - 1);
    else
        cpu_group_set_messages(pg->comm->group, NULL, NULL);
}

bool pg_messages_take(struct tutti_pg *pg)
{
    bool any = false;
    for (int r = 0; pg->comm->rules.paths.all && r < pg->control.size; r++)
        if (r != pg->control.rank)
            any |= messages_take(pg, r);
    return any;
}

void pg_messages_collective_ended(struct tutti_pg *pg)
{
    for (int r = 0; pg->comm->rules.paths.all && r < pg->control.size; r++)
        if (r != pg->control.rank)
            places_tell(pg, r);
}

/* End a send whose receiver has not answered. Return false if there is no memory to withdraw it. */
static bool withdraw(struct tutti_pg *pg, struct pg_operation *operation)
{
    if (!operation->is_announced) {
        if (operation->args.peer == pg->control.rank)
            unmatched_remove(pg, &operation->note);
        else
            note_remove(&pg->notes[operation->args.peer], &operation->note);
        return true;
    }
    struct pg_note *note = malloc(sizeof *note);
    if (!note)
        return false;
    *note = (struct pg_note){.peer = operation->args.peer,
                             .kind = WITHDRAWN,
                             .id = operation->id,
                             .tag = operation->key.tag};
    note_queue(pg, note);
    return true;
}

/* Return the rank that has stopped inside a message; -1 if there is none. */
static int list_check(struct tutti_pg *pg, struct pg_list *list, int64_t now)
{
    for (struct pg_operation *operation = list->first, *next; operation; operation = next) {
        const int own = pg->control.rank;
        const struct pg_outcome late = {.status = TUTTI_ERR_TIMEOUT,
                                        .rank = own,
                                        .peer = operation->args.peer == own ? -1
                                                                            : operation->args.peer};
        int64_t next_deadline = operation->deadline;
        next = operation->next;
        if (operation->deadline <= now) {
            if (operation->is_moving)
                return is_send(operation) ? operation->args.peer : (int)operation->source - 1;
            if (!is_send(operation) || withdraw(pg, operation)) {
                finish(pg, operation, &late);
                continue;
            }
            next_deadline = now + (int64_t)RETRY_MS * 1000000;
        }
        if (next_deadline < pg->next_deadline)
            pg->next_deadline = next_deadline;
    }
    return -1;
}

int pg_messages_check(struct tutti_pg *pg, int64_t now)
{
    int stopped = list_check(pg, &pg->sends, now);
    if (stopped < 0)
        stopped = list_check(pg, &pg->receives, now);
    (void)pg_messages_send(pg); /* withdrawals: the thread sleeps next */
    return stopped;
}

static void notes_free(struct pg_notes *notes)
{
    for (struct pg_note *note; (note = notes->first);) {
        notes->first = note->next;
        if (!note->operation)
            free(note);
    }
}

/* Forget what is to be sent to these ranks. */
static void queues_drop(struct tutti_pg *pg, struct rank_set ranks)
{
    for (int r = rank_set_next(ranks, -1); r >= 0; r = rank_set_next(ranks, r)) {
        notes_free(&pg->notes[r]);
        notes_free(&pg->data[r]);
    }
    pg->noted = rank_set_minus(pg->noted, ranks);
}

/* Keep announcements that came with their data: these can still be received. */
static void unmatched_drop_gone(struct tutti_pg *pg)
{
    for (struct pg_note *note = pg->unmatched.first, *next; note; note = next) {
        next = note->next;
        if (!rank_set_has(pg->gone, note->peer) || note->kind == ANNOUNCED_SHORT)
            continue;
        unmatched_remove(pg, note);
        if (!note->operation)
            free(note);
    }
}

static void list_drop_gone(struct tutti_pg *pg, struct pg_list *list)
{
    for (struct pg_operation *operation = list->first, *next; operation; operation = next) {
        next = operation->next;
        (void)finish_gone(pg, operation);
    }
}

void pg_messages_drop_gone(struct tutti_pg *pg)
{
    queues_drop(pg, pg->gone);
    unmatched_drop_gone(pg);
    list_drop_gone(pg, &pg->sends);
    list_drop_gone(pg, &pg->receives);
}

void pg_messages_drop(struct tutti_pg *pg)
{
    queues_drop(pg, pg->noted);
    notes_free(&pg->unmatched);
    pg_map_clear(&pg->unmatched_lines);
    pg_map_clear(&pg->waiting_lines);
    pg_map_clear(&pg->by_id);
}
