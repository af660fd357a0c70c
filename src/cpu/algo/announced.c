/* SPDX-License-Identifier: MIT */
/* What all operations that are longer than a small message have in common. */
#include "cpu/algo/algo.h"

#include "base/invariant.h"
#include "cpu/transport/copy.h"

static const struct announced *announced_of(const struct request *request)
{
    return (const struct announced *)request->choice.run;
}

enum tutti_status announced_start(void *opaque, struct request *request, void *memory)
{
    struct cpu_group *group = opaque;
    struct announced_state *state = memory;
    const enum tutti_status status = operation_begin(group);
    if (status != TUTTI_OK)
        return status;
    const uint32_t sequence = (uint32_t)group->peers.sequence;
    state_init(&state->base);
    state->phase = PHASE_PROBE;
    state->probe = distance_begin(group, request);
    request_started(request, group->peers.sequence, RECORD_CALL, RECORD_RUNNING);
    small_message_of(group, group->peers.rank)->u.operands =
        request->choice.zero_copy ? request->operands : (struct layout_operands){0};
    wait_publish(group,
                 announcement_place(&group->peers, group->peers.rank, group->counts.announcement),
                 sequence, request); /* M1 */
    return TUTTI_OK;
}

static void iteration_begin(struct cpu_group *group, const struct request *request,
                            struct announced_state *state)
{
    struct piece *piece = &state->in_flight[state->iteration % PIECES_IN_FLIGHT];
    state->pass = 0;
    state->base.at = 0;
    if (state->iteration >= state->pieces)
        return;
    piece->first = state->iteration * state->whole;
    piece->count =
        request->count - piece->first < state->whole ? request->count - piece->first : state->whole;
    invariant(piece->first < request->count && piece->count > 0);
    announced_of(request)->place(group, request, state, piece);
}

static void pieces_begin(struct cpu_group *group, const struct request *request,
                         struct announced_state *state)
{
    state->phase = PHASE_PIECES;
    state->iteration = 0;
    state->whole = announced_of(request)->cut(group, request);
    invariant(state->whole > 0 && request->count > 0); /* there is a piece, and none is empty */
    state->pieces = (request->count + state->whole - 1) / state->whole;
    iteration_begin(group, request, state);
}

static enum step_progress pieces_step(struct cpu_group *group, const struct request *request,
                                      struct announced_state *state)
{
    const struct announced *announced = announced_of(request);
    while (state->iteration < state->pieces + announced->last_delay) {
        for (; state->pass < announced->passes; state->pass++, state->base.at = 0) {
            const size_t k = state->iteration - announced->pass[state->pass].delay;
            if (k < state->pieces && /* also false if the iteration is less than the delay */
                !announced->pass[state->pass].run(group, request, state,
                                                  &state->in_flight[k % PIECES_IN_FLIGHT]))
                return step_stopped(&state->base);
        }
        state->iteration++;
        iteration_begin(group, request, state);
    }
    return step_end(&state->base, TUTTI_OK);
}

bool own_copy(struct cpu_group *group, const struct request *request, struct announced_state *state,
              const struct piece *piece)
{
    const size_t at = piece->first * request->element_bytes;
    const unsigned char *from = request_sent(request, group->peers.rank) + at;
    unsigned char *to = request_received(request, group->peers.rank) + at;
    (void)state;
    if (!request->reduce && to != from)
        copy_near(group, to, from, piece->count * request->element_bytes);
    return true;
}

static bool is_direct(const struct request *request)
{
    return request->choice.zero_copy && request->operands.send_id != LAYOUT_PRIVATE;
}

/* Whether all peers have done their parts. This rank's part is done already. */
static bool peers_left(struct cpu_group *group, const struct request *request,
                       struct cpu_state *state)
{
    const uint32_t step = group->counts.step;
    for (; state->at < group->peers.size - 1; state->at++) {
        const int r = peer_at(group, state->at);
        if (!header_arrived(group, state, r,
                            &group->peers.arenas[r]->out_flags[step % LAYOUT_SLOTS].header, step,
                            request))
            return false;
    }
    return true;
}

/* Called once all ranks have entered. Uses the operands where they lie if every rank can reach
 * all. */
static enum tutti_status enter(struct cpu_group *group, const struct request *request,
                               struct announced_state *state)
{
    bool done;
    const enum tutti_status status = direct_run(group, request, &done);
    if (status != TUTTI_OK)
        return status;
    if (!done) {
        pieces_begin(group, request, state);
        return TUTTI_OK;
    }
    const uint32_t step = ++group->counts.step;
    const size_t slot = step % LAYOUT_SLOTS;
    invalidate_flag(&group->peers.own->in_flags[slot].header, step);
    invalidate_flag(&group->peers.own->part_flags[slot].header, step);
    wait_publish(group, &group->peers.own->out_flags[slot].header, step, request); /* Q1 */
    state->phase = PHASE_LEAVE;
    state->base.at = 0;
    return TUTTI_OK;
}

static enum step_progress step(struct cpu_group *group, const struct request *request,
                               struct announced_state *state)
{
    struct cpu_state *base = &state->base;
    if (state->phase == PHASE_PROBE) {
        if (!distance_step(group, base, &state->probe))
            return step_stopped(base);
        if (is_direct(request))
            state->phase = PHASE_ENTER;
        else
            pieces_begin(group, request, state);
    }
    if (state->phase == PHASE_ENTER) {
        if (!all_entered(group, base, request))
            return step_stopped(base);
        const enum tutti_status status = enter(group, request, state);
        if (status != TUTTI_OK)
            return step_end(base, status);
    }
    if (state->phase == PHASE_PIECES)
        return pieces_step(group, request, state);
    return peers_left(group, request, base) ? step_end(base, TUTTI_OK) : step_stopped(base);
}

enum step_progress announced_step(void *group, struct request *request, void *state)
{
    const uint64_t environment = reduce_env_begin();
    const enum step_progress progress = step(group, request, state);
    reduce_env_end(environment);
    return progress;
}

enum tutti_status announced_run(void *group, struct request *request, tutti_stream_t stream)
{
    struct announced_state state;
    (void)stream;
    return operation_run(group, request, &state.base, announced_start, announced_step, false);
}

enum tutti_status announced_more(struct cpu_group *group, struct request *request)
{
    struct announced_state state;
    state_init(&state.base);
    group->peers.deadline = 0;
    pieces_begin(group, request, &state);
    return cpu_steps_run(group, request, &state.base, announced_step, false);
}
