/* SPDX-License-Identifier: MIT */
/*
 * One-shot all-reduce: every rank publishes its whole input once and reduces all inputs itself. One
 * hop.
 *
 * Up to LAYOUT_BODY_BYTES the input is a small message: it travels with the header, and up to 48
 * bytes in the header's own cache line. A message may be overwritten two operations later: when an
 * operation e has ended, all peers have entered e, so all have left e - 1 and its message.
 *
 * Longer inputs go through the piece buffer, one piece a step; two ranks swap them (swap.c). In a
 * step each rank writes its piece there, then reads all pieces. So when all flags have number k,
 * all ranks have left step k - 1 and its pieces.
 *
 * A rank reads its own input in the user's memory. A copy that it has just written may still wait
 * in the store buffer until the peers give up the cache line.
 */
#include "base/point.h"
#include "cpu/algo/all_reduce.h"
#include "cpu/transport/copy.h"
#include "cpu/transport/piece_buffer.h"
#include "cpu/transport/wait.h"

#include <string.h>

void one_shot_reduce(const struct cpu_group *group, const struct request *request, size_t first,
                     size_t count, const void *const *in)
{
    request->reduce(&(struct reduce_call){
        .out = (unsigned char *)request->recv + first * request->element_bytes,
        .in = in,
        .n = group->size,
        .count = count,
        .scalar = request->scalar,
        .divisor = group->size,
    });
}

/* The body of a rank's message. Two ranks swap the bodies of their first messages: swap.c. */
static unsigned char *body_of(const struct cpu_group *group, int rank)
{
    const int odd = (int)(group->op.sequence % LAYOUT_SMALL_MESSAGES);
    return group->size == 2 ? group->arenas[rank ^ odd]->small_messages[0].body
                            : group->arenas[rank]->small_messages[odd].body;
}

static inline void message_send(struct cpu_group *group, const struct request *request)
{
    uint32_t sequence = (uint32_t)group->op.sequence;
    struct layout_small_message *own =
        &group->own->small_messages[sequence % LAYOUT_SMALL_MESSAGES];
    if (request->bytes <= LAYOUT_INLINE_BYTES)
        memcpy(own->u.payload, request->send, request->bytes);
    else
        group->isa->copy(body_of(group, group->rank), request->send, request->bytes);
    POINT("mail.written");
    wait_publish(group, &own->header, sequence, request);
    POINT("mail.published");
}

enum tutti_status one_shot_small(void *opaque, struct request *request, tutti_stream_t stream)
{
    struct cpu_group *group = opaque;
    enum tutti_status status = operation_begin(group);
    (void)stream;
    if (__builtin_expect(status != TUTTI_OK, 0))
        return status;
    const uint32_t sequence = (uint32_t)group->op.sequence;
    const size_t index = sequence % LAYOUT_SMALL_MESSAGES;
    const bool fits = request->bytes <= LAYOUT_INLINE_BYTES;
    const void *in[TUTTI_MAX_RANKS];
    /* The message leaves before the operation is recorded (2 ranks, 8 B near: 71 ns; recorded
     * first: 76 ns). */
    message_send(group, request);
    request_started(request, group->op.sequence, RECORD_CALL, RECORD_RUNNING);
    for (int leaf = 0; leaf < group->size; leaf++) {
        int r = group->ranks.order[leaf];
        const struct layout_small_message *message = &group->arenas[r]->small_messages[index];
        if (r == group->rank) {
            in[leaf] = request->send;
            continue;
        }
        in[leaf] = fits ? message->u.payload : body_of(group, r);
        status = wait_header(group, r, &message->header, sequence, request);
        if (status != TUTTI_OK)
            return status;
    }
    POINT("mail.received");
    request->quick = group->op.deadline == 0;
    const uint64_t environment = reduce_env_begin();
    one_shot_reduce(group, request, 0, request->count, in);
    reduce_env_end(environment);
    return TUTTI_OK;
}

/* Reduces one piece: `count` elements from element `first`. */
static enum tutti_status piece_reduce(struct cpu_group *group, const struct request *request,
                                      size_t first, size_t count)
{
    uint32_t step = ++group->op.step;
    size_t slot = step % LAYOUT_SLOTS;
    size_t at = piece_buffer_take(group, count * request->element_bytes);
    const unsigned char *send =
        (const unsigned char *)request->send + first * request->element_bytes;
    const void *in[TUTTI_MAX_RANKS];

    copy_in(group, group->own->piece_buffer + at, send, count * request->element_bytes);
    POINT("one_shot.filled");
    invalidate_flag(&group->own->part_flags[slot].header, step);
    invalidate_flag(&group->own->out_flags[slot].header, step);
    wait_publish(group, &group->own->in_flags[slot].header, step, request);
    POINT("one_shot.published");

    for (int leaf = 0; leaf < group->size; leaf++) {
        int r = group->ranks.order[leaf];
        in[leaf] = r == group->rank ? send : group->arenas[r]->piece_buffer + at;
        if (r == group->rank)
            continue;
        enum tutti_status status =
            wait_header(group, r, &group->arenas[r]->in_flags[slot].header, step, request);
        if (status != TUTTI_OK)
            return status;
    }
    one_shot_reduce(group, request, first, count, in);
    return TUTTI_OK;
}

enum tutti_status one_shot_pieces(void *group, const struct request *request)
{
    const size_t most = LAYOUT_PIECE_BYTES / request->element_bytes;
    for (size_t first = 0; first < request->count; first += most) {
        size_t left = request->count - first;
        enum tutti_status status = piece_reduce(group, request, first, left < most ? left : most);
        if (status != TUTTI_OK)
            return status;
    }
    return TUTTI_OK;
}
