/* SPDX-License-Identifier: MIT */
/*
 * The CPU's algorithms, one file each; choose.c chooses. A short operation sends its data in small
 * messages (small.c). In a longer operation each rank announces the operation and where its
 * operands lie. Then the ranks use the operands where they lie (direct.c), or move them in pieces.
 *
 * An algorithm in pieces has passes. Iteration t runs each pass on piece t - delay, in the order
 * of the passes. A peer that is a little late then costs nothing: meanwhile the rank works on other
 * pieces.
 */
#ifndef TUTTI_CPU_ALGO_H
#define TUTTI_CPU_ALGO_H

#include "cpu/transport/distance.h"
#include "cpu/transport/step.h"

enum { PIECES_IN_FLIGHT = 4 };

/* Where a piece begins and how its elements are divided. If an operand has a block for each rank,
 * elements and offsets are those of one block. */
struct piece {
    size_t first;
    size_t count;
    size_t chunk;    /* elements of each owner */
    size_t own;      /* this rank's chunk: its first element, from the piece's first */
    size_t owned;    /* its elements */
    size_t at;       /* offset in the area that the algorithm uses */
    size_t partials; /* offset of partial sums in that area */
    uint32_t step;
    size_t slot; /* of flags */
};

enum announced_phase { PHASE_PROBE, PHASE_ENTER, PHASE_LEAVE, PHASE_PIECES };

/* The state of an announced operation. */
struct announced_state {
    struct cpu_state base;
    enum announced_phase phase;
    unsigned pass;
    struct distance_probe probe;
    size_t pieces; /* in all */
    size_t whole;  /* elements of a whole piece */
    size_t iteration;
    struct piece in_flight[PIECES_IN_FLIGHT];
};
static_assert(sizeof(struct announced_state) <= CPU_STATE_BYTES, "no state is larger");

/* Returns false if it has to wait or has failed. state->base.at is 0 when the pass begins. */
typedef bool pass_fn(struct cpu_group *group, const struct request *request,
                     struct announced_state *state, const struct piece *piece);

struct announced {
    struct algorithm algorithm;
    /* Cuts the operation into pieces. Returns the elements of a whole piece. */
    size_t (*cut)(const struct cpu_group *group, const struct request *request);
    /* Called once for each piece, in order: sets the fields after `count`. */
    void (*place)(struct cpu_group *group, const struct request *request,
                  const struct announced_state *state, struct piece *piece);
    unsigned passes, last_delay;
    struct {
        unsigned delay;
        pass_fn *run;
    } pass[4];
};

/* small.c; the bytes that a rank sends. */
extern const struct algorithm cpu_small;
size_t small_bytes(bool send_all, size_t block, int world_size);
extern const struct algorithm cpu_pair; /* pair.c: rooted, v-forms, send, receive */
extern const struct algorithm
    cpu_pair_begun; /* the same behind pair_begin(): the first part of a v-form */
extern const struct algorithm cpu_meeting; /* barrier.c: also operations without elements */
extern const struct announced cpu_swap, cpu_pieces, cpu_two_shot, cpu_mesh;

/* announced.c: struct algorithm's functions. `request->choice.run` is a struct announced. */
enum tutti_status announced_start(void *group, struct request *request, void *state);
enum step_progress announced_step(void *group, struct request *request, void *state);
enum tutti_status announced_run(void *group, struct request *request, tutti_stream_t stream);
/* cpu_run_more() of the two lanes. */
enum tutti_status announced_more(struct cpu_group *group, struct request *request);
enum tutti_status pair_more(struct cpu_group *group, struct request *request);
#define ANNOUNCED_ALGORITHM                                                                        \
    {                                                                                              \
        .state_bytes = sizeof(struct announced_state), .start = announced_start,                   \
        .step = announced_step, .run = announced_run, .leave_failed = direct_leave_failed          \
    }

/* A pass: copies the own block, unless the collective reduces. */
pass_fn own_copy;

/* direct.c. Call it once all ranks have announced the operation. Sets *done to true if every rank
 * can reach all operands; then this rank has done its part. Else it does nothing. */
enum tutti_status direct_run(struct cpu_group *group, const struct request *request, bool *done);
/* Begin and end the use of the peers' operands. Both fail if one of `peers` has failed, or any rank
 * in this operation or an earlier one: the operands may then be gone, or written again. [the own
 * rank]: also if any rank has failed in a later one. */
enum tutti_status direct_touch_begin(struct cpu_group *group, struct rank_set peers);
enum tutti_status direct_touch_end(struct cpu_group *group, struct rank_set peers);
/* Copies from an address in a rank's process, by the kernel if that is another process. Fails as
 * direct_touch_end() does. */
enum tutti_status direct_read(struct cpu_group *group, int rank, void *to, uint64_t from,
                              size_t bytes);
/* Copies to an address in a rank's process. Fails as direct_touch_begin() does, before the first
 * byte, or as direct_touch_end(). */
enum tutti_status direct_write(struct cpu_group *group, int rank, uint64_t to, const void *from,
                               size_t bytes);
/* Whether the operands of a call may be used where they lie by address, too. */
static inline bool is_direct_call(const struct request *request)
{
    return request->choice.zero_copy && request->choice.direct &&
           !(request->flags & TUTTI_CALL_NO_ZERO_COPY);
}
/* The address of a rank's operand, from what it has published. */
static inline unsigned char *operand_at(void *const *buffers, int rank, uint64_t offset)
{
    unsigned char *base = buffers ? buffers[rank] : NULL;
    return base ? base + offset : (unsigned char *)(uintptr_t)offset;
}
/* struct algorithm's function. A rank that uses the operands does not wait, so this call ends.
 * `state` is not used. */
void direct_leave_failed(void *group, const struct request *request, void *state);

/* Runs a whole operation whose operands the peers may use where they lie. `state`: the whole
 * state begins with it. */
static inline __attribute__((always_inline)) enum tutti_status
operation_run(struct cpu_group *group, struct request *request, struct cpu_state *state,
              enum tutti_status (*start)(void *group, struct request *request, void *state),
              cpu_step_fn *step, bool polls)
{
    enum tutti_status status = start(group, request, state);
    if (status != TUTTI_OK)
        return status;
    status = cpu_steps_run(group, request, state, step, polls);
    if (status != TUTTI_OK)
        direct_leave_failed(group, request, state);
    return status;
}

/* Takes the next step of the flags for the piece. */
static inline void piece_take_step(struct cpu_group *group, struct piece *piece)
{
    piece->step = ++group->counts.step;
    piece->slot = piece->step % LAYOUT_SLOTS;
}

/* Whether all peers' inputs of a piece have arrived. Checks in leaf order, the order of the
 * reduction. */
static inline bool inputs_arrived(struct cpu_group *group, const struct request *request,
                                  struct announced_state *state, const struct piece *piece)
{
    for (; state->base.at < group->peers.size; state->base.at++) {
        const int r = group->order[state->base.at];
        if (r != group->peers.rank &&
            !header_arrived(group, &state->base, r,
                            &group->peers.arenas[r]->in_flags[piece->slot].header, piece->step,
                            request))
            return false;
    }
    return true;
}

/* Reduces all ranks' inputs of some elements, in leaf order. */
static inline void leaves_reduce(const struct cpu_group *group, const struct request *request,
                                 void *out, size_t count, const void *const *in)
{
    request->reduce(&(struct reduce_call){
        .out = out,
        .in = in,
        .n = group->peers.size,
        .count = count,
        .scalar = request->scalar,
        .divisor = group->peers.size,
        .begin = group->peers.rank,
    });
}

/* Reduces `count` elements of all inputs in[leaf] into all outputs out[rank]. An output may be the
 * input of its rank. `ahead`: reduction.h. */
void owner_reduce(const struct cpu_group *group, const struct request *request,
                  const void *const *in, unsigned char *const *out, size_t count, bool ahead);

#endif
