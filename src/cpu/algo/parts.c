/* SPDX-License-Identifier: MIT */
/*
 * The whole operation takes its number and announces itself as any other, but waits for no
 * announcement: an operation of each part does so. So ranks whose calls differ find that out, also
 * if one of them has cut its call and another one has not. docs/ordering.md proves that a place
 * of the whole group may be written again.
 *
 * In a group of calls one thread steps all parts in turn: call_list.c finds after each step which
 * calls may go on, and a team that stays in one operation would hold up the other calls.
 *
 * A send or receive is not cut. The flags of a part have numbers that follow from the number of the
 * collective, and a message takes none, so each part would have to count the messages of each pair
 * of ranks. Both ends of a message copy at the same time already.
 */
#include "cpu/algo/parts.h"

#include "base/point.h"
#include "base/thread.h"
#include "coll/coll.h"
#include "cpu/transport/chunk.h"
#include "cpu/transport/pair.h"

int parts_count(const struct cpu_group *group, const struct choice_call *call,
                const struct algorithm *plain)
{
    const struct coll *coll = &coll_rows[call->collective];
    const size_t blocks = coll->send_all || coll->recv_all ? (size_t)group->peers.size : 1;
    const bool is_cut = plain == &cpu_two_shot.algorithm || plain == group->limits.one_hop ||
                        (plain == &cpu_pair && coll->peer == COLL_ROOT && !coll->varies);
    const size_t lines = call->bytes / LAYOUT_LINE;
    size_t parts = call->bytes * blocks / PART_LEAST_BYTES;
    if (group->parts && coll->varies)
        return group->parts->count;
    if (!group->parts || !is_cut)
        return 1;
    parts = parts < lines ? parts : lines;
    parts = parts < (size_t)group->parts->count ? parts : (size_t)group->parts->count;
    return parts > 1 ? (int)parts : 1;
}

const struct algorithm *parts_plain(const struct cpu_group *group, const struct request *request)
{
    if (request->choice.algo == TUTTI_ALGO_TWO_SHOT)
        return &cpu_two_shot.algorithm;
    const struct coll *coll = &coll_rows[request->collective];
    return coll->peer || coll->varies ? &cpu_pair : group->limits.one_hop;
}

/* The most parts of a block of this rank's operand. */
static int most_parts(const struct cpu_group *group, const struct request *request, bool many,
                      const struct coll_blocks *blocks)
{
    size_t longest = many ? 0 : request->count;
    for (int r = 0; many && blocks->counts && r < group->peers.size; r++) {
        const size_t count = coll_block_count(blocks, r);
        longest = count > longest ? count : longest;
    }
    return block_parts(longest * request->bytes, group->parts->count);
}

/* In how many parts this rank takes part. Of a v-form each block has its own number. */
static int own_parts(const struct cpu_group *group, const struct request *request,
                     const struct algorithm *plain)
{
    const struct coll *coll = &coll_rows[request->collective];
    const struct choice_call call = {.collective = request->collective, .bytes = request->bytes};
    if (!coll->varies)
        return parts_count(group, &call, plain);
    const int sent = most_parts(group, request, coll->send_all, &request->send_blocks);
    const int received = most_parts(group, request, coll->recv_all, &request->recv_blocks);
    return sent > received ? sent : received;
}

/* ---- an operation ---------------------------------------------------------------------------- */

/* The part's operation has the number and the history of the whole. */
static void part_prepare(const struct cpu_group *group, const struct request *whole,
                         const struct algorithm *plain, struct part *part)
{
    struct cpu_group *own = part->group;
    /* The flags' numbers count the whole group's collectives, as pair_begin() has it. */
    const uint64_t between = group->peers.sequence - own->peers.sequence - 1;
    own->counts.step += (uint32_t)between * LAYOUT_SLOTS;
    own->counts.swaps += (uint32_t)between * LAYOUT_HALVES;
    order_store_relaxed_u64(&own->peers.sequence, group->peers.sequence - 1);
    own->counts.history = plain == &cpu_pair ? group->counts.history_before : group->counts.history;
    own->limits.pushes = group->limits.pushes && own->areas.exchange_bytes;
    part->runs_in = own;
    part->status = TUTTI_OK;
    part->ended = false;
    part->request = *whole;
    part->request.choice.run = plain;
    part->request.page = NULL;
    part->request.entry = NULL;
}

/* Elements [first, first + count) of every block. */
static void part_cut(const struct request *whole, size_t first, size_t count, struct part *part)
{
    const size_t at = first * whole->element_bytes;
    part->request.count = count;
    part->request.operands.send += at;
    part->request.operands.recv += at;
    if (whole->send)
        part->request.send = (const unsigned char *)whole->send + at;
    if (whole->recv)
        part->request.recv = (unsigned char *)whole->recv + at;
}

/* Announces the whole operation, and prepares its parts. The first part of a v-form runs in the
 * whole group, where a rank whose blocks are all short runs the whole operation. */
static enum tutti_status begin(struct cpu_group *group, struct request *request)
{
    const struct algorithm *plain = parts_plain(group, request);
    const bool varies = coll_rows[request->collective].varies;
    const int parts = own_parts(group, request, plain);
    const size_t chunk = chunk_elements(request->count, parts, request->element_bytes);
    struct cpu_parts *running = group->parts;
    const enum tutti_status status =
        plain == &cpu_pair ? pair_begin(group, request) : operation_begin(group);
    if (status != TUTTI_OK)
        return status;
    if (!request->choice.zero_copy)
        request->operands = (struct layout_operands){0};
    running->next = 0;
    for (running->used = 0; running->used < parts; running->used++) {
        struct part *part = &running->part[running->used];
        size_t first, count = chunk_of(request->count, chunk, running->used, &first);
        if (!varies && !count)
            break;
        part_prepare(group, request, plain, part);
        if (!varies) {
            part_cut(request, first, count, part);
        } else {
            part->request.choice.part = (uint8_t)running->used;
            part->request.choice.parts = (uint8_t)running->count;
        }
    }
    if (varies) {
        running->part->runs_in = group;
        running->part->request.choice.run = &cpu_pair_begun;
    }
    POINT("parts.entered");
    if (plain != &cpu_pair)
        wait_publish(
            group, announcement_place(&group->peers, group->peers.rank, group->counts.announcement),
            (uint32_t)group->peers.sequence, request); /* M1 */
    request_started(request, group->peers.sequence, RECORD_CALL, RECORD_RUNNING);
    return TUTTI_OK;
}

/* All parts have ended. The first one that has failed is the whole operation's fault. */
static enum tutti_status end(struct cpu_group *group)
{
    if (order_load_relaxed_u32(&group->peers.own->awaits))
        peers_awaits_none(&group->peers);
    for (int i = 0; i < group->parts->used; i++) {
        const struct part *part = &group->parts->part[i];
        if (part->status != TUTTI_OK)
            return order_load_acquire_u32(&part->runs_in->peers.faults.failed) /* A4 pairs F4 */
                       ? peers_fail(&group->peers, &part->runs_in->peers.faults.fault)
                       : peers_status(&group->peers, NULL);
    }
    return TUTTI_OK;
}

/* A task: runs parts until all are taken. The application's progress function belongs to the
 * calling thread. */
static void parts_take(void *argument, int task)
{
    struct cpu_group *group = argument;
    struct cpu_parts *running = group->parts;
    const bool progresses = thread_number() == running->caller;
    (void)task;
    for (uint32_t i; (i = order_fetch_add_u32(&running->next, 1)) < (uint32_t)running->used;) {
        struct part *part = &running->part[i];
        struct peers *peers = &part->runs_in->peers;
        peers->progress = progresses ? running->progress : NULL;
        peers->progress_context = running->progress_context;
        peers->progress_soon = progresses ? running->progress_soon : NULL;
        peers->progress_often = running->progress_often;
        part->status = faults_stand(&group->peers.faults)
                           ? TUTTI_ERR_ABORTED
                           : part->request.choice.run->run(part->runs_in, &part->request,
                                                           TUTTI_STREAM_DEFAULT);
    }
}

static enum tutti_status run(void *opaque, struct request *request, tutti_stream_t stream)
{
    struct cpu_group *group = opaque;
    struct cpu_parts *running = group->parts;
    struct peers *peers = &group->peers;
    const enum tutti_status status = begin(group, request);
    (void)stream;
    if (status != TUTTI_OK)
        return status;
    running->caller = thread_number();
    running->progress = peers->progress;
    running->progress_context = peers->progress_context;
    running->progress_soon = peers->progress_soon;
    running->progress_often = peers->progress_often;
    const int tasks = running->threads < running->used ? running->threads : running->used;
    if (running->parallel && tasks > 1)
        running->parallel(running->context, tasks, parts_take, group);
    parts_take(group, 0);                /* also if the application ran no task */
    peers->progress = running->progress; /* another thread may have run a part in the whole group */
    peers->progress_soon = running->progress_soon;
    return end(group);
}

/* ---- steps ----------------------------------------------------------------------------------- */

static void part_ended(struct part *part, enum tutti_status status)
{
    part->status = status;
    part->ended = true;
}

static enum tutti_status start(void *opaque, struct request *request, void *state)
{
    struct cpu_group *group = opaque;
    const enum tutti_status status = begin(group, request);
    state_init(state);
    if (status != TUTTI_OK)
        return status;
    for (int i = 0; i < group->parts->used; i++) {
        struct part *part = &group->parts->part[i];
        const enum tutti_status started =
            part->request.choice.run->start(part->runs_in, &part->request, part->state);
        if (started != TUTTI_OK)
            part_ended(part, started);
    }
    return TUTTI_OK;
}

/* Whether a part can go on. */
static bool any_goes_on(struct peers *peers, void *state)
{
    const struct cpu_parts *running = cpu_group_of(peers)->parts;
    (void)state;
    for (int i = 0; i < running->used; i++) {
        const struct part *part = &running->part[i];
        const struct cpu_state *waits = part->state;
        if (!part->ended && (!waits->word || order_load_acquire_u32(waits->word) ==
                                                 waits->value)) /* A1 pairs the word's release */
            return true;
    }
    return false;
}

/* Looks for the trouble of each part. The first part that waits is late. */
static bool parts_look(struct peers *peers, void *state, enum wait_depth depth, bool late,
                       struct tutti_fault *fault)
{
    const struct cpu_parts *running = cpu_group_of(peers)->parts;
    (void)state;
    for (int i = 0; i < running->used; i++) {
        const struct part *part = &running->part[i];
        struct peers_wait wait = {.peers = &part->runs_in->peers,
                                  .request = &part->request,
                                  .peer = part->state->peer,
                                  .value = part->state->value,
                                  .word = part->state->word};
        if (part->ended || !wait.word || !wait_look(&wait, depth, late))
            continue;
        *fault = wait.fault;
        return true;
    }
    return false;
}

static const struct wait_poll parts_wait = {.poll = any_goes_on, .look = parts_look};

static enum step_progress step(void *opaque, struct request *request, void *memory)
{
    struct cpu_group *group = opaque;
    struct cpu_state *state = memory;
    bool busy = false;
    (void)request;
    for (int i = 0; i < group->parts->used; i++) {
        struct part *part = &group->parts->part[i];
        if (part->ended)
            continue;
        if (part->request.choice.run->step(part->runs_in, &part->request, part->state) == STEP_DONE)
            part_ended(part, part->state->status);
        else
            busy = true;
        if (part->status != TUTTI_OK)
            return step_end(state, end(group));
    }
    if (!busy)
        return step_end(state, end(group));
    step_polls(group, state, &parts_wait);
    return step_stopped(state);
}

static void leave_failed(void *opaque, const struct request *request, void *state)
{
    struct cpu_group *group = opaque;
    (void)request, (void)state;
    for (int i = 0; i < group->parts->used; i++) {
        const struct part *part = &group->parts->part[i];
        direct_leave_failed(part->runs_in, &part->request, part->state);
    }
}

const struct algorithm cpu_parts = {.state_bytes = sizeof(struct cpu_state),
                                    .start = start,
                                    .step = step,
                                    .run = run,
                                    .leave_failed = leave_failed};
