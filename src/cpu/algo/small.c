/* SPDX-License-Identifier: MIT */
/*
 * Short operations: every rank sends one message with the data that the others need, and reads all
 * messages. One hop. The message has the block that all need, or the blocks for all ranks; with two
 * ranks, only the peer's block.
 *
 * Up to LAYOUT_INLINE_BYTES travel in the header's own cache line, up to LAYOUT_BODY_BYTES in the
 * body. A message may be overwritten two operations later: when an operation e has ended, all peers
 * have entered e, so all have left e - 1 and its message.
 *
 * A rank reads its own input in the user's memory. A copy that it has just written may still wait
 * in the store buffer until the peers give up the cache line.
 */
#include "base/point.h"
#include "cpu/algo/algo.h"

#include <string.h>

enum { MEMCPY_BYTES = 128 }; /* up to this size without an indirect call */

size_t small_bytes(bool send_all, size_t block, int world_size)
{
    return send_all && world_size > 2 ? block * (size_t)world_size : block;
}

/* The body of a rank's message. Two ranks swap the bodies of their first messages: swap.c. */
static unsigned char *body_of(const struct cpu_group *group, int rank)
{
    const int odd = (int)(group->counts.announcement % LAYOUT_SMALL_MESSAGES);
    return group->peers.size == 2 ? group->peers.arenas[rank ^ odd]->small_messages[0].body
                                  : group->peers.arenas[rank]->small_messages[odd].body;
}

/* A message that fits into the header's line. */
static inline void payload_copy(unsigned char *restrict to, const unsigned char *restrict from,
                                size_t bytes)
{
    if (bytes == 8) /* without a call of memcpy() */
        memcpy(to, from, 8);
    else
        memcpy(to, from, bytes);
}

/* Where each leaf's data will be, and the call that reduces them. Filled while the messages travel.
 */
struct small_state {
    struct cpu_state base;
    struct reduce_call reduce;
    const void *in[NODE_RANKS];
};
static_assert(sizeof(struct small_state) <= CPU_STATE_BYTES, "no state is larger");

static inline void prepare(const struct cpu_group *group, const struct request *request,
                           bool is_inline, struct small_state *state)
{
    const size_t offset =
        request->send_all && group->peers.size > 2 ? (size_t)group->peers.rank * request->bytes : 0;
    for (int leaf = 0; leaf < group->peers.size; leaf++) {
        const int r = group->order[leaf];
        if (r == group->peers.rank)
            state->in[leaf] = request_sent(request, r);
        else if (is_inline)
            state->in[leaf] = small_message_of(group, r)->u.payload + offset;
        else
            state->in[leaf] = body_of(group, r) + offset;
    }
    state->reduce = (struct reduce_call){
        .out = request->recv,
        .in = state->in,
        .n = group->peers.size,
        .count = request->count,
        .scalar = request->scalar,
        .divisor = group->peers.size,
        .begin = group->peers.rank,
    };
}

static inline __attribute__((always_inline)) enum tutti_status
start(void *opaque, struct request *request, void *memory)
{
    struct cpu_group *group = opaque;
    struct small_state *state = memory;
    const enum tutti_status status = operation_begin(group);
    if (__builtin_expect(status != TUTTI_OK, 0))
        return status;
    const uint32_t sequence = (uint32_t)group->peers.sequence;
    struct layout_small_message *own = small_message_of(group, group->peers.rank);
    const size_t bytes = small_bytes(request->send_all, request->bytes, group->peers.size);
    const bool is_inline = bytes <= LAYOUT_INLINE_BYTES;
    const unsigned char *send =
        request_sent(request, group->peers.size == 2 ? !group->peers.rank : 0);
    if (is_inline) {
        payload_copy(own->u.payload, send, bytes);
    } else {
        unsigned char *body =
            group->peers.size == 2 ? body_of(group, group->peers.rank) : own->body;
        if (bytes <= MEMCPY_BYTES)
            memcpy(body, send, bytes);
        else
            group->isa->copy(body, send, bytes);
    }
    POINT("small.written");
    wait_publish(group, &own->header, sequence, request);
    POINT("small.published");
    /* Send the message before any other work (2 ranks, 8 B near: 71 ns; recorded first: 76 ns).
     */
    request_started(request, group->peers.sequence, RECORD_CALL, RECORD_RUNNING);
    state_init(&state->base);
    prepare(group, request, is_inline, state);
    return TUTTI_OK;
}

static void blocks_copy(const struct cpu_group *group, const struct request *request,
                        const void *const *in)
{
    for (int leaf = 0; leaf < group->peers.size; leaf++) {
        unsigned char *to = request_received(request, group->order[leaf]);
        if (in[leaf] != to)
            group->isa->copy(to, in[leaf], request->bytes);
    }
}

static inline __attribute__((always_inline)) enum step_progress
step(void *opaque, struct request *request, void *memory)
{
    struct cpu_group *group = opaque;
    struct small_state *state = memory;
    const uint32_t sequence = (uint32_t)group->peers.sequence;
    for (; state->base.at < group->peers.size - 1; state->base.at++) {
        const int r = peer_at(group, state->base.at);
        if (!header_arrived(group, &state->base, r, &small_message_of(group, r)->header, sequence,
                            request))
            return step_stopped(&state->base);
    }
    POINT("small.received");
    request->quick = group->peers.deadline == 0;
    if (request->reduce) {
        const uint64_t environment = reduce_env_begin();
        request->reduce(&state->reduce);
        reduce_env_end(environment);
    } else {
        blocks_copy(group, request, state->in);
    }
    return step_end(&state->base, TUTTI_OK);
}

static enum tutti_status small_start(void *group, struct request *request, void *state)
{
    return start(group, request, state);
}

static enum step_progress small_step(void *group, struct request *request, void *state)
{
    return step(group, request, state);
}

static enum tutti_status small_run(void *group, struct request *request, tutti_stream_t stream)
{
    struct small_state state;
    const enum tutti_status status = start(group, request, &state);
    (void)stream;
    return __builtin_expect(status != TUTTI_OK, 0)
               ? status
               : cpu_steps_run(group, request, &state.base, step, false);
}

const struct algorithm cpu_small = {.state_bytes = sizeof(struct small_state),
                                    .start = small_start,
                                    .step = small_step,
                                    .run = small_run};
