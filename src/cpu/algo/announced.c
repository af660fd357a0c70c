/* SPDX-License-Identifier: MIT */
/* What all operations that are longer than a small message have in common. */
#include "cpu/algo/algo.h"

#include "base/invariant.h"
#include "cpu/transport/copy.h"

static const struct announced *way_of(const struct request *request)
{
    return (const struct announced *)request->choice.run;
}

enum tutti_status announced_start(void *opaque, struct request *request, void *state)
{
    struct cpu_group *group = opaque;
    struct announced_op *op = state;
    const enum tutti_status status = operation_begin(group);
    if (status != TUTTI_OK)
        return status;
    const uint32_t sequence = (uint32_t)group->op.sequence;
    op_init(&op->base);
    op->phase = PHASE_PROBE;
    op->probe = distance_begin(group, request);
    request_started(request, group->op.sequence, RECORD_CALL, RECORD_RUNNING);
    small_message_of(group, group->rank)->u.operands =
        request->choice.zero_copy ? request->operands : (struct layout_operands){0};
    wait_publish(group, announcement_place(group, group->rank, group->op.announcement), sequence,
                 request); /* M1 */
    return TUTTI_OK;
}

static void iteration_begin(struct cpu_group *group, const struct request *request,
                            struct announced_op *op)
{
    struct piece *piece = &op->in_flight[op->iteration % PIECES_IN_FLIGHT];
    op->stage = 0;
    op->base.at = 0;
    if (op->iteration >= op->pieces)
        return;
    piece->first = op->iteration * op->whole;
    piece->count =
        request->count - piece->first < op->whole ? request->count - piece->first : op->whole;
    invariant(piece->first < request->count && piece->count > 0);
    way_of(request)->place(group, request, op, piece);
}

static void pieces_begin(struct cpu_group *group, const struct request *request,
                         struct announced_op *op)
{
    op->phase = PHASE_PIECES;
    op->iteration = 0;
    op->whole = way_of(request)->cut(group, request);
    invariant(op->whole > 0 && request->count > 0); /* there is a piece, and none is empty */
    op->pieces = (request->count + op->whole - 1) / op->whole;
    iteration_begin(group, request, op);
}

static enum op_progress pieces_step(struct cpu_group *group, const struct request *request,
                                    struct announced_op *op)
{
    const struct announced *way = way_of(request);
    while (op->iteration < op->pieces + way->last_delay) {
        for (; op->stage < way->stages; op->stage++, op->base.at = 0) {
            const size_t k = op->iteration - way->stage[op->stage].delay;
            if (k < op->pieces && /* also false if the iteration is less than the delay */
                !way->stage[op->stage].run(group, request, op,
                                           &op->in_flight[k % PIECES_IN_FLIGHT]))
                return op_stopped(&op->base);
        }
        op->iteration++;
        iteration_begin(group, request, op);
    }
    return op_end(&op->base, TUTTI_OK);
}

bool own_copy(struct cpu_group *group, const struct request *request, struct announced_op *op,
              const struct piece *piece)
{
    const size_t at = piece->first * request->element_bytes;
    const unsigned char *from = request_sent(request, group->rank) + at;
    unsigned char *to = request_received(request, group->rank) + at;
    (void)op;
    if (!request->reduce && to != from)
        copy_near(group, to, from, piece->count * request->element_bytes);
    return true;
}

static bool is_direct(const struct request *request)
{
    return request->choice.zero_copy && request->operands.send_id != LAYOUT_PRIVATE;
}

/* Whether all peers have done their parts. This rank's part is done already. */
static bool peers_left(struct cpu_group *group, const struct request *request, struct cpu_op *op)
{
    const uint32_t step = group->op.step;
    for (; op->at < group->size - 1; op->at++) {
        const int r = peer_at(group, op->at);
        if (!header_arrived(group, op, r, &group->arenas[r]->out_flags[step % LAYOUT_SLOTS].header,
                            step, request))
            return false;
    }
    return true;
}

/* Called once all ranks have entered. Uses the operands where they lie if every rank can reach
 * all. */
static enum tutti_status enter(struct cpu_group *group, const struct request *request,
                               struct announced_op *op)
{
    bool done;
    const enum tutti_status status = direct_run(group, request, &done);
    if (status != TUTTI_OK)
        return status;
    if (!done) {
        pieces_begin(group, request, op);
        return TUTTI_OK;
    }
    const uint32_t step = ++group->op.step;
    const size_t slot = step % LAYOUT_SLOTS;
    invalidate_flag(&group->own->in_flags[slot].header, step);
    invalidate_flag(&group->own->part_flags[slot].header, step);
    wait_publish(group, &group->own->out_flags[slot].header, step, request); /* Q1 */
    op->phase = PHASE_LEAVE;
    op->base.at = 0;
    return TUTTI_OK;
}

static enum op_progress step(struct cpu_group *group, const struct request *request,
                             struct announced_op *op)
{
    struct cpu_op *base = &op->base;
    if (op->phase == PHASE_PROBE) {
        if (!distance_step(group, base, &op->probe))
            return op_stopped(base);
        if (is_direct(request))
            op->phase = PHASE_ENTER;
        else
            pieces_begin(group, request, op);
    }
    if (op->phase == PHASE_ENTER) {
        if (!all_entered(group, base, request))
            return op_stopped(base);
        const enum tutti_status status = enter(group, request, op);
        if (status != TUTTI_OK)
            return op_end(base, status);
    }
    if (op->phase == PHASE_PIECES)
        return pieces_step(group, request, op);
    return peers_left(group, request, base) ? op_end(base, TUTTI_OK) : op_stopped(base);
}

enum op_progress announced_step(void *group, struct request *request, void *op)
{
    const uint64_t environment = reduce_env_begin();
    const enum op_progress progress = step(group, request, op);
    reduce_env_end(environment);
    return progress;
}

enum tutti_status announced_run(void *group, struct request *request, tutti_stream_t stream)
{
    struct announced_op op;
    (void)stream;
    return operation_run(group, request, &op.base, announced_start, announced_step);
}

enum tutti_status cpu_all_reduce_more(struct cpu_group *group, struct request *request)
{
    struct announced_op op;
    if (request->choice.run == &cpu_small) /* it runs whole operations only */
        request->choice.run = group->table.one_hop;
    op_init(&op.base);
    group->op.deadline = 0;
    pieces_begin(group, request, &op);
    return cpu_steps_run(group, request, &op.base, announced_step);
}
