/* SPDX-License-Identifier: MIT */
/*
 * Messages of the lane PAIR: from one rank to one other, or to all others. Each such pair of sender
 * and readers has a queue of LAYOUT_WINDOW places in the sender's arena. Message n lies in place n
 * mod LAYOUT_WINDOW and has the number 1 + n / LAYOUT_WINDOW. A reader that has read the message
 * writes that number into its own arena. Once all readers have done so, the sender fills the place
 * again. So a sender is at most LAYOUT_WINDOW messages ahead of its readers, and no rank sees
 * messages for other ranks. docs/ordering.md (X1, X2) has the proof, docs/models/pair.pml the
 * model.
 *
 * Rooted collectives and v-forms also take a number of the communicator's order. Each rank
 * publishes it with the signature in its log, so that a waiting rank sees which collectives the
 * others have called. Each message has the number, too, so that an old message that nobody took is
 * not mistaken for a later one. And it has the sender's history, a hash of all collectives of this
 * lane that the sender has called: ranks that disagreed about a root have other histories, also if
 * none of them had to wait.
 *
 * A process group sends messages of its own between those of collectives (message.c). If a rank
 * finds one inside a collective, it takes this message first.
 */
#ifndef TUTTI_CPU_PAIR_H
#define TUTTI_CPU_PAIR_H

#include "cpu/transport/copy.h"
#include "cpu/transport/step.h"

/* The place of message n of a queue: from a rank to `to`, or to all others if `to` is that rank
 * itself. */
static inline struct layout_message *message_place(const struct cpu_group *group, int from, int to,
                                                   uint64_t message)
{
    return (struct layout_message *)(void *)(area_of(group, from, group->areas.pair) +
                                             group->areas.pair_messages) +
           (uint32_t)to * LAYOUT_WINDOW + message % LAYOUT_WINDOW;
}

/* The most bytes of a piece in a message to one rank or to all. */
static inline size_t message_bytes(const struct cpu_group *group, bool to_all)
{
    return group->areas.message_bytes[to_all];
}

/* The address of a piece of that length. */
static inline unsigned char *message_data(const struct cpu_group *group, int from, int to,
                                          uint64_t message, size_t bytes)
{
    const struct areas *areas = &group->areas;
    if (bytes <= LAYOUT_MESSAGE_BYTES)
        return message_place(group, from, to, message)->u.payload;
    const size_t queue =
        to == from ? 0
                   : LAYOUT_WINDOW * (areas->message_bytes[1] +
                                      (size_t)(to - (to > from)) * areas->message_bytes[0]);
    return area_of(group, from, areas->pair) + areas->pair_places + queue +
           message % LAYOUT_WINDOW * areas->message_bytes[to == from];
}

/* What `reader` has told `from`. */
static inline struct layout_read *reads_of(const struct cpu_group *group, int reader, int from)
{
    struct layout_pair *pair =
        (struct layout_pair *)(void *)area_of(group, reader, group->areas.pair);
    return &pair->read[from];
}

/* The word by which `reader` tells `from` which message of that place it has read. */
static inline uint32_t *message_read(const struct cpu_group *group, int reader, int from,
                                     bool to_all, uint64_t message)
{
    struct layout_read *read = reads_of(group, reader, from);
    return &(to_all ? read->all : read->pair)[message % LAYOUT_WINDOW];
}

static inline uint32_t message_number(uint64_t message)
{
    return (uint32_t)(1 + message / LAYOUT_WINDOW);
}

/* Whether the place of this rank's next message is free: `reader` has read the former one. If not,
 * the step returns step_stopped(). */
static inline bool place_is_free(const struct cpu_group *group, struct cpu_state *state, int reader,
                                 bool to_all)
{
    const uint64_t message = group->counts.sent[to_all ? group->peers.rank : reader];
    return word_arrived(state, reader,
                        message_read(group, reader, group->peers.rank, to_all, message),
                        message_number(message) - 1);
}

/* The value that distinguishes a message of this operation from an unread one of another
 * operation. */
static inline uint64_t message_order(const struct cpu_group *group, const struct request *request)
{
    return rank_set_empty(request->subset) ? group->counts.order : 0;
}

/* Where the next message to a rank, or to all, lies. */
static inline struct layout_message *message_next(struct cpu_group *group, int to)
{
    return message_place(group, group->peers.rank, to, group->counts.sent[to]);
}

/* Fills the place of the next message, which must be free. Write the fields of its line afterwards,
 * all at once: the reader polls that line and would take it in between. Short operations do not
 * measure the distance, so a short message goes through the caches: stores past the caches would
 * cost it the most if the reader has come near.
 */
static inline void message_fill(struct cpu_group *group, int to, const void *data, size_t bytes)
{
    void *place = message_data(group, group->peers.rank, to, group->counts.sent[to], bytes);
    if (bytes >= REDUCE_LONG_BYTES)
        copy_in(group, place, data, bytes);
    else if (bytes)
        group->isa->copy(place, data, bytes);
}

/* Sends the next message. Its place and its `order` are filled already. */
static inline void message_post(struct cpu_group *group, int to, uint64_t signature,
                                uint32_t parameter)
{
    struct layout_header *header = &message_next(group, to)->header;
    header->signature = signature;
    header->parameter = parameter;
    const uint32_t number = message_number(group->counts.sent[to]++);
    order_store_release_u32(&header->number, number); /* X1 pairs A1 */
    bell_ring_if_heard(&group->peers);
}

/* Fills and sends the next message. `signature`: in a v-form that of the block. */
static inline void message_send(struct cpu_group *group, int to, const unsigned char *data,
                                size_t bytes, uint64_t signature, const struct request *request)
{
    message_fill(group, to, data, bytes);
    message_next(group, to)->order = message_order(group, request);
    message_post(group, to, signature, request->parameter);
}

/* How many messages of a queue this rank has read. */
static inline uint64_t *messages_read(struct cpu_group *group, int from, bool to_all)
{
    return &(to_all ? group->counts.heard : group->counts.received)[from];
}

/* Called if the next message is no piece of the expected block. Returns whether it is an offer of
 * the block. Takes it if it is a process group's, and returns whether the expected one follows.
 * Leaves it if another call of the call list may take it. Else the operation fails. */
bool message_other(struct cpu_group *group, struct cpu_state *state, int from, bool to_all,
                   uint64_t signature, const struct request *request);

/* The next message of a queue. */
static inline const struct layout_message *message_front(struct cpu_group *group, int from,
                                                         bool to_all)
{
    return message_place(group, from, to_all ? from : group->peers.rank,
                         *messages_read(group, from, to_all));
}

/* Whether the next message of that queue has arrived. If not, the step returns step_stopped(). */
static inline bool message_arrived(struct cpu_group *group, struct cpu_state *state, int from,
                                   bool to_all, uint64_t signature, const struct request *request)
{
    const uint64_t number = *messages_read(group, from, to_all);
    const struct layout_message *message = message_front(group, from, to_all);
    if (!word_arrived(state, from, &message->header.number, message_number(number)))
        return false;
    return __builtin_expect(message->header.signature == signature &&
                                message->header.parameter == request->parameter &&
                                message->order == message_order(group, request),
                            1)
               ? true
               : message_other(group, state, from, to_all, signature, request);
}

/* The data of the next message, which has arrived. */
static inline const unsigned char *message_peek(struct cpu_group *group, int from, bool to_all,
                                                size_t bytes)
{
    return message_data(group, from, to_all ? from : group->peers.rank,
                        *messages_read(group, from, to_all), bytes);
}

/* Acknowledges the next message: the sender may fill its place again. */
static inline void message_release(struct cpu_group *group, int from, bool to_all)
{
    const uint64_t message = (*messages_read(group, from, to_all))++;
    uint32_t *read = message_read(group, group->peers.rank, from, to_all, message);
    order_store_release_u32(read, message_number(message)); /* X2 pairs A1 */
    bell_ring_if_heard(&group->peers);
}

/* Begins an operation of this lane. A collective takes a number; a send or receive, whose request
 * has a subset, does not. */
static inline enum tutti_status pair_begin(struct cpu_group *group, const struct request *request)
{
    const enum tutti_status status = lane_begin(&group->peers, LANE_PAIR);
    if (status != TUTTI_OK || !rank_set_empty(request->subset))
        return status;
    number_take(&group->peers);
    /* With this the numbers of the lane ALL's flags also count the collectives of this lane. Steps
     * of whole rounds keep the order of the places. */
    group->counts.step += LAYOUT_SLOTS;
    group->counts.swaps += LAYOUT_HALVES;
    group->counts.history_before = group->counts.history;
    group->counts.history =
        signature_history(group->counts.history, request->signature, request->parameter);
    group->counts.order = LAYOUT_COLLECTIVE_ORDER | (uint64_t)(group->counts.history >> 3) << 32 |
                          (uint32_t)group->peers.sequence;
    struct layout_logged *entry = log_entry(group, group->peers.rank, group->peers.sequence);
    /* A reader that sees a field of the new entry also sees that the old number has gone. */
    order_store_relaxed_u64(&entry->sequence, 0);
    order_store_release_u64(&entry->signature, request->signature);   /* X3 pairs X3a, all these */
    order_store_release_u32(&entry->parameter, request->parameter);   /* X3 */
    order_store_release_u32(&entry->history, group->counts.history);  /* X3 */
    order_store_release_u64(&entry->sequence, group->peers.sequence); /* X3 pairs X3a */
    return TUTTI_OK;
}

#endif
