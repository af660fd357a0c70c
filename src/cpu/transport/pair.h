/* SPDX-License-Identifier: MIT */
/*
 * Messages of the lane PAIR: from one rank to one other, or to all others. Each such way has
 * LAYOUT_WINDOW places in the sender's arena. Message n lies in place n mod LAYOUT_WINDOW and has
 * the number 1 + n / LAYOUT_WINDOW. Its readers write that number into their own arenas once they
 * have read it, and the sender fills the place again once all have. So a sender is at most
 * LAYOUT_WINDOW messages ahead of its readers, and no rank hears of messages that do not concern
 * it. docs/ordering.md (X1, X2) has the proof, docs/models/pair.pml the model.
 *
 * Rooted collectives and v-forms also take a number of the communicator's order. Each rank
 * publishes it with the signature in its log, so that a rank that waits in vain sees what the
 * others have called. The number is in their messages, too: a message that no rank took is not
 * taken for a later one.
 *
 * A process group sends messages of its own between those of collectives (message.c). A rank inside
 * a collective that finds one takes it first.
 */
#ifndef TUTTI_CPU_PAIR_H
#define TUTTI_CPU_PAIR_H

#include "cpu/transport/copy.h"
#include "cpu/transport/op.h"

/* One way: from a rank to `to`, or, if `to` is that rank itself, to all others. */
static inline struct layout_message *message_place(const struct cpu_group *group, int from, int to,
                                                   uint64_t message)
{
    return (struct layout_message *)(void *)(area_of(group, from, group->areas.pair) +
                                             group->areas.pair_messages) +
           (uint32_t)to * LAYOUT_WINDOW + message % LAYOUT_WINDOW;
}

/* The bytes of a piece, the most, of messages to one rank or to all. */
static inline size_t message_bytes(const struct cpu_group *group, bool to_all)
{
    return group->areas.message_bytes[to_all];
}

/* Where a piece of that length lies. */
static inline unsigned char *message_data(const struct cpu_group *group, int from, int to,
                                          uint64_t message, size_t bytes)
{
    const struct areas *areas = &group->areas;
    if (bytes <= LAYOUT_MESSAGE_BYTES)
        return message_place(group, from, to, message)->payload;
    const size_t way = to == from
                           ? 0
                           : LAYOUT_WINDOW * (areas->message_bytes[1] +
                                              (size_t)(to - (to > from)) * areas->message_bytes[0]);
    return area_of(group, from, areas->pair) + areas->pair_places + way +
           message % LAYOUT_WINDOW * areas->message_bytes[to == from];
}

/* The word by which `reader` tells `from` which message of that place it has read. */
static inline uint32_t *message_read(const struct cpu_group *group, int reader, int from,
                                     bool to_all, uint64_t message)
{
    struct layout_pair *pair =
        (struct layout_pair *)(void *)area_of(group, reader, group->areas.pair);
    struct layout_read *read = &pair->read[from];
    return &(to_all ? read->all : read->pair)[message % LAYOUT_WINDOW];
}

static inline uint32_t message_number(uint64_t message)
{
    return (uint32_t)(1 + message / LAYOUT_WINDOW);
}

/* Whether the place of this rank's next message is free: `reader` has read the former one. If not,
 * the step returns op_stopped(). */
static inline bool place_is_free(const struct cpu_group *group, struct cpu_op *op, int reader,
                                 bool to_all)
{
    const uint64_t message = group->op.sent[to_all ? group->rank : reader];
    return word_arrived(op, reader, message_read(group, reader, group->rank, to_all, message),
                        message_number(message) - 1);
}

/* What tells a message of this operation from one that was sent in another, which nobody read. */
static inline uint64_t message_order(const struct cpu_group *group, const struct request *request)
{
    return rank_set_empty(request->subset) ? group->op.sequence : 0;
}

/* Where the next message to a rank, or to all, lies. */
static inline struct layout_message *message_next(struct cpu_group *group, int to)
{
    return message_place(group, group->rank, to, group->op.sent[to]);
}

/* Fills the place of the next message, which is free. The fields of its line follow, all at once:
 * its reader polls that line and takes it back in between. This lane does not measure the distance,
 * and stores past the caches to a rank that has come near would cost the most in a short message.
 */
static inline void message_fill(struct cpu_group *group, int to, const void *data, size_t bytes)
{
    void *place = message_data(group, group->rank, to, group->op.sent[to], bytes);
    if (bytes >= COPY_STRING_BYTES)
        copy_in(group, place, data, bytes);
    else if (bytes)
        group->isa->copy(place, data, bytes);
}

/* Sends the next message; its place is filled, and the order is there. */
static inline void message_post(struct cpu_group *group, int to, uint64_t signature,
                                uint32_t parameter)
{
    struct layout_header *header = &message_next(group, to)->header;
    header->signature = signature;
    header->parameter = parameter;
    const uint32_t number = message_number(group->op.sent[to]++);
    order_store_release_u32(&header->number, number); /* X1 pairs A1 */
    bell_ring_if_heard(group);
}

/* `signature`: of a v-form, that of the block. */
static inline void message_send(struct cpu_group *group, int to, const unsigned char *data,
                                size_t bytes, uint64_t signature, const struct request *request)
{
    message_fill(group, to, data, bytes);
    message_next(group, to)->order = message_order(group, request);
    message_post(group, to, signature, request->parameter);
}

/* The count of messages of a way that this rank has read. */
static inline uint64_t *messages_read(struct cpu_group *group, int from, bool to_all)
{
    return &(to_all ? group->op.heard : group->op.received)[from];
}

/* The next message has arrived and is not the one that is expected. Takes it if it is a process
 * group's, and returns whether the expected one follows; leaves it if another call of the group of
 * calls may be the one to take it; else the operation has failed. */
bool message_other(struct cpu_group *group, struct cpu_op *op, int from, bool to_all,
                   uint64_t signature, const struct request *request);

/* Whether the next message of that way is there. If not, the step returns op_stopped(). */
static inline bool message_arrived(struct cpu_group *group, struct cpu_op *op, int from,
                                   bool to_all, uint64_t signature, const struct request *request)
{
    const uint64_t number = *messages_read(group, from, to_all);
    const struct layout_message *message =
        message_place(group, from, to_all ? from : group->rank, number);
    if (!word_arrived(op, from, &message->header.number, message_number(number)))
        return false;
    return __builtin_expect(message->header.signature == signature &&
                                message->header.parameter == request->parameter &&
                                message->order == message_order(group, request),
                            1)
               ? true
               : message_other(group, op, from, to_all, signature, request);
}

/* Its data. */
static inline const unsigned char *message_peek(struct cpu_group *group, int from, bool to_all,
                                                size_t bytes)
{
    return message_data(group, from, to_all ? from : group->rank,
                        *messages_read(group, from, to_all), bytes);
}

/* It has been read: its place may be filled again. */
static inline void message_release(struct cpu_group *group, int from, bool to_all)
{
    const uint64_t message = (*messages_read(group, from, to_all))++;
    uint32_t *read = message_read(group, group->rank, from, to_all, message);
    order_store_release_u32(read, message_number(message)); /* X2 pairs A1 */
    bell_ring_if_heard(group);
}

/* An operation of this lane begins. A collective takes a number; a send or receive, whose request
 * has a subset, does not. */
static inline enum tutti_status pair_begin(struct cpu_group *group, const struct request *request)
{
    const enum tutti_status status = lane_begin(group, LANE_PAIR);
    if (status != TUTTI_OK || !rank_set_empty(request->subset))
        return status;
    number_take(group);
    /* So the flags of the lane ALL tell how many collectives of this lane were before them. Whole
     * rounds of their places, whose order stays. */
    group->op.step += LAYOUT_SLOTS;
    group->op.swaps += LAYOUT_HALVES;
    const uint32_t number = (uint32_t)group->op.sequence;
    struct layout_header *entry = log_entry(group, group->rank, number);
    /* A reader that sees a field of the new entry also sees that the old number has gone. Nobody
     * looks for this one here. */
    order_store_relaxed_u32(&entry->number, number + 1);
    order_store_release_u64(&entry->signature, request->signature); /* X3 pairs X3a, all these */
    order_store_release_u32(&entry->parameter, request->parameter); /* X3 */
    order_store_release_u32(&entry->number, number);                /* X3 pairs A1 */
    return TUTTI_OK;
}

#endif
