/* SPDX-License-Identifier: MIT */
/* Messages of a process group, in the queues of the lane PAIR: pair.h. */
#include "cpu/transport/pair.h"

size_t cpu_message_most(const struct cpu_group *group)
{
    return message_bytes(group, false);
}

bool cpu_message_send(struct cpu_group *group, int to, const struct cpu_message *message,
                      const void *data, size_t bytes)
{
    struct cpu_state state;
    if (!place_is_free(group, &state, to, false))
        return false;
    struct layout_message *place = message_next(group, to);
    message_fill(group, to, data, bytes);
    place->order = LAYOUT_GROUP_ORDER | message->kind;
    place->id = message->id;
    message_post(group, to, message->signature, message->parameter);
    return true;
}

bool cpu_message_next(struct cpu_group *group, int from, struct cpu_message *message)
{
    const uint64_t number = *messages_read(group, from, false);
    const struct layout_message *place = message_place(group, from, group->peers.rank, number);
    struct cpu_state state;
    if (!word_arrived(&state, from, &place->header.number, message_number(number)) ||
        !(place->order & LAYOUT_GROUP_ORDER))
        return false;
    *message = (struct cpu_message){.kind = place->order & ~LAYOUT_GROUP_ORDER,
                                    .id = place->id,
                                    .signature = place->header.signature,
                                    .parameter = place->header.parameter};
    return true;
}

const void *cpu_message_data(struct cpu_group *group, int from, size_t bytes)
{
    return message_peek(group, from, false, bytes);
}

void cpu_message_taken(struct cpu_group *group, int from)
{
    message_release(group, from, false);
}

uint64_t cpu_messages_read(const struct cpu_group *group, int from)
{
    return group->counts.received[from];
}

void cpu_group_set_messages(struct cpu_group *group, bool (*take)(void *context, int from),
                            void *context)
{
    group->take_message = take;
    group->take_message_context = context;
}

/* Whether another call of the call list takes the message that stands before the expected one:
 * a receive, or the collective that runs or a later one. The collectives of a call list run
 * one after the other, so none of them waits for the message of another one. */
static bool is_of_another_call(const struct cpu_group *group, uint64_t order, uint64_t expected)
{
    if (group->counts.calls < 2 || order == expected)
        return false;
    if (!order || expected)
        return !order;
    return order == group->counts.order || sequence_of_order(group, order) > group->peers.sequence;
}

/* ---- a process group's message without memory ----------------------------------------------- */

static bool any_is_taken(struct peers *peers, void *state)
{
    const struct cpu_group *group = cpu_group_of(peers);
    (void)state;
    for (int i = 0; i < peers->size - 1; i++)
        if (group->take_message(group->take_message_context, peer_at(group, i)))
            return true;
    return false;
}

static bool lacks_memory(struct peers *peers, void *state, enum wait_depth depth, bool late,
                         struct tutti_fault *fault)
{
    (void)peers, (void)state, (void)depth;
    if (late)
        fault->status = TUTTI_ERR_NO_MEMORY;
    return late;
}

static const struct wait_poll memory_wait = {.poll = any_is_taken, .look = lacks_memory};

bool message_other(struct cpu_group *group, struct cpu_state *state, int from, bool to_all,
                   uint64_t signature, const struct request *request)
{
    const struct layout_message *message = message_front(group, from, to_all);
    const uint64_t order = message->order & ~LAYOUT_OFFER_ORDER;
    if (order == message_order(group, request) && message->header.signature == signature &&
        message->header.parameter == request->parameter)
        return true;
    if (message->order & LAYOUT_GROUP_ORDER && !to_all && group->take_message) {
        if (group->take_message(group->take_message_context, from))
            return message_arrived(group, state, from, to_all, signature, request);
        step_polls(group, state, &memory_wait);
        return false;
    }
    if (is_of_another_call(group, order, message_order(group, request)))
        return false;
    state->status = wait_message_mismatch(group, from, message, signature, request);
    return false;
}
