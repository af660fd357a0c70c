/* SPDX-License-Identifier: MIT */
/*
 * One-shot all-reduce: every rank publishes its whole input once and reduces all inputs itself. One
 * hop.
 *
 * Up to a mail's body the input travels with its header, in the flag's own line while it fits.
 * A mail is free again two operations later: my operation e ended => all peers entered e => all
 * have left e - 1 and its mail. Longer inputs go through the ring, piece by piece, but for those of
 * two ranks (swap.c). In a step each rank puts its piece there, then reads everybody's; so when all
 * flags say k, all have left step k - 1 and its pieces.
 *
 * The own input is read where it lies: a copy made a moment ago may still wait in the store buffer
 * for its line to come back from the peers.
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

/* The body of a rank's mail. Two ranks swap the bodies of their first mails: swap.c. */
static unsigned char *body_of(const struct cpu_group *group, int rank)
{
    const int odd = (int)(group->sequence % LAYOUT_MAILS);
    return group->size == 2 ? group->arenas[rank ^ odd]->mails[0].body
                            : group->arenas[rank]->mails[odd].body;
}

static inline void mail_send(struct cpu_group *group, const struct request *request)
{
    uint32_t sequence = (uint32_t)group->sequence;
    struct layout_mail *own = &group->own->mails[sequence % LAYOUT_MAILS];
    if (request->bytes <= LAYOUT_INLINE_BYTES)
        memcpy(own->u.payload, request->send, request->bytes);
    else
        group->isa->copy(body_of(group, group->rank), request->send, request->bytes);
    POINT("mail.written");
    wait_publish(group, &own->header, sequence, request);
    POINT("mail.published");
}

enum tutti_status one_shot_mail(void *opaque, struct request *request, tutti_stream_t stream)
{
    struct cpu_group *group = opaque;
    enum tutti_status status = operation_begin(group);
    (void)stream;
    if (__builtin_expect(status != TUTTI_OK, 0))
        return status;
    const uint32_t sequence = (uint32_t)group->sequence;
    const size_t index = sequence % LAYOUT_MAILS;
    const bool fits = request->bytes <= LAYOUT_INLINE_BYTES;
    const void *in[TUTTI_MAX_RANKS];
    /* The peers get the mail before the operation is recorded here (2 ranks, 8 B near: 71 ns, and
     * 76 ns the other way). */
    mail_send(group, request);
    request_started(request, group->sequence, RECORD_CALL, RECORD_RUNNING);
    for (int leaf = 0; leaf < group->size; leaf++) {
        int r = group->order[leaf];
        const struct layout_mail *mail = &group->arenas[r]->mails[index];
        if (r == group->rank) {
            in[leaf] = request->send;
            continue;
        }
        in[leaf] = fits ? mail->u.payload : body_of(group, r);
        status = wait_header(group, r, &mail->header, sequence, request);
        if (status != TUTTI_OK)
            return status;
    }
    POINT("mail.received");
    request->quick = group->deadline == 0;
    const uint64_t environment = reduce_env_begin();
    one_shot_reduce(group, request, 0, request->count, in);
    reduce_env_end(environment);
    return TUTTI_OK;
}

/* One piece of `count` elements from element `first`. */
static enum tutti_status piece_reduce(struct cpu_group *group, const struct request *request,
                                      size_t first, size_t count)
{
    uint32_t step = ++group->step;
    size_t slot = step % LAYOUT_SLOTS;
    size_t at = piece_buffer_take(group, count * request->element_bytes);
    const unsigned char *send =
        (const unsigned char *)request->send + first * request->element_bytes;
    const void *in[TUTTI_MAX_RANKS];

    copy_in(group, group->own->ring + at, send, count * request->element_bytes);
    POINT("one_shot.filled");
    wait_void(&group->own->part_flags[slot].header, step);
    wait_void(&group->own->out_flags[slot].header, step);
    wait_publish(group, &group->own->in_flags[slot].header, step, request);
    POINT("one_shot.published");

    for (int leaf = 0; leaf < group->size; leaf++) {
        int r = group->order[leaf];
        in[leaf] = r == group->rank ? send : group->arenas[r]->ring + at;
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
