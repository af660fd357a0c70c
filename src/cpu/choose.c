/* SPDX-License-Identifier: MIT */
#include "cpu/choose.h"

#include "base/error.h"
#include "coll/backend.h"
#include "coll/coll.h"
#include "cpu/algo/parts.h"

#include <string.h>

enum {
    /* With more ranks that have a core each, results are pulled: two_shot.c. Ranks that share a
     * core also share its cache, so they push. */
    PUSH_RANKS = 4,
    /* With more inputs a reduce among many ranks is a two-shot: the root alone would read all of
     * them (Xeon, 16 ranks, 64 KiB: 64 us, and 27 for a whole all-reduce; 32 ranks, 2 KiB: 7.8
     * and 5.5). */
    REDUCE_ALONE_BYTES = 64 * 1024,
    /* From so many ranks on the kernel copies. Of a gather or scatter the root's core moves all
     * bytes otherwise (Xeon, 32 ranks, blocks of 128 KiB: 1.0 and .24 ms); many ranks that exchange
     * blocks share the caches (32 ranks, 128 KiB: 2.3 and 1.2 ms), and a message passes no arena
     * (16 ranks, 1 MiB: .51 and .22 ms). Few ranks send messages, since the kernel copies at a
     * quarter of the speed of this library's loops (Zen 5: 14 and 50 GB/s). Ranks that share cores
     * save turns of the scheduler if the block is longer than the places of a queue, and waits for
     * them: 163 KiB among 12 ranks, 119 KiB among 16 (12 ranks on 2 cores, blocks of 64, 128, 512
     * KiB: scatter by the kernel 245, 400, 1230 us, by messages 77, 195, 2500 us; gather 190, 230,
     * 950 us and 66, 210, 890 us; 8 ranks win nothing at any size). */
    DIRECT_RANKS_FEW = 6,
    DIRECT_RANKS = 9,
    DIRECT_RANKS_OVERSUBSCRIBED = 12,
};

/* From which block on, by enum direct_kind. */
static const size_t direct_few[DIRECT_KINDS] = {256 << 10, 256 << 10, SIZE_MAX, SIZE_MAX, SIZE_MAX};
static const size_t direct_many[DIRECT_KINDS] = {64 << 10, 32 << 10, 32 << 10, 64 << 10, SIZE_MAX};
static const size_t direct_oversubscribed[DIRECT_KINDS] = {64 << 10, 64 << 10, SIZE_MAX, SIZE_MAX,
                                                           SIZE_MAX};
static const size_t direct_never[DIRECT_KINDS] = {SIZE_MAX, SIZE_MAX, SIZE_MAX, SIZE_MAX, SIZE_MAX};

/*
 * Measured (bench/README.md). One-shot moves N - 1 inputs into each rank in one hop, two-shot
 * 2 (N - 1) / N of one input in two hops. So with more ranks one-shot loses at smaller sizes.
 * Two ranks move the same bytes either way. Where ranks share cores a hop costs more. Two-shot has
 * a quicker second hop where results are pushed.
 */
static size_t one_shot_bytes(int world_size, bool oversubscribed)
{
    const int share = oversubscribed ? 64 : world_size <= PUSH_RANKS ? 7 : 20;
    if (world_size == 2)
        return 64 << 10;
    return ((size_t)share << 10) / (size_t)world_size;
}

void cpu_limits_set(const struct choice_rules *rules, int world_size, bool oversubscribed,
                    struct cpu_limits *limits)
{
    *limits = (struct cpu_limits){
        .rules = rules,
        .world_size = world_size,
        .one_shot_bytes = one_shot_bytes(world_size, oversubscribed),
        /* Zero-copy has a second hop. */
        .copied_bytes = oversubscribed ? 2 * LAYOUT_BODY_BYTES : LAYOUT_BODY_BYTES,
        .offered_bytes = oversubscribed ? 32 << 10 : 8 << 10,
        .one_hop = world_size == 2 ? &cpu_swap.algorithm : &cpu_pieces.algorithm,
        .pushes = world_size <= PUSH_RANKS || oversubscribed,
        .small = {.algo = TUTTI_ALGO_ONE_SHOT,
                  .run = &cpu_small,
                  .reason =
                      rules->paths.by_host
                          ? "no links join all ranks, the host's memory does: one hop, up to here"
                          : "one hop is faster up to here"},
        .two_shot_reason =
            rules->paths.by_host
                ? "no links join all ranks, the host's memory does: fewer bytes, from here on"
                : "each rank reduces its own chunk: fewer bytes from here on",
    };
    memcpy(limits->direct_bytes, direct_never, sizeof limits->direct_bytes);
    if (rules->forced == TUTTI_ALGO_NONE && !rules->strict && rules->paths.all)
        limits->small_bytes =
            limits->one_shot_bytes < LAYOUT_BODY_BYTES ? limits->one_shot_bytes : LAYOUT_BODY_BYTES;
}

void cpu_limits_set_direct(struct cpu_limits *limits, bool oversubscribed, size_t queue_bytes,
                           bool always)
{
    const int size = limits->world_size;
    const size_t *bytes = direct_never;
    if (oversubscribed && size >= DIRECT_RANKS_OVERSUBSCRIBED)
        bytes = direct_oversubscribed;
    else if (!oversubscribed && size >= DIRECT_RANKS_FEW)
        bytes = size >= DIRECT_RANKS ? direct_many : direct_few;
    for (int kind = 0; kind < DIRECT_KINDS; kind++) {
        limits->direct_bytes[kind] = always ? limits->offered_bytes : bytes[kind];
        if (!always && oversubscribed && limits->direct_bytes[kind] <= queue_bytes)
            limits->direct_bytes[kind] = queue_bytes + 1;
    }
}

static enum direct_kind direct_kind_of(enum tutti_collective collective)
{
    switch ((int)collective) {
    case TUTTI_COLLECTIVE_GATHER:
        return DIRECT_GATHER;
    case TUTTI_COLLECTIVE_SCATTER:
        return DIRECT_SCATTER;
    case TUTTI_COLLECTIVE_ALL_TO_ALL:
        return DIRECT_ALL_TO_ALL;
    default:
        return coll_rows[collective].peer == COLL_PARTNER ? DIRECT_MESSAGE : DIRECT_OTHER;
    }
}

/* Whether the kernel copies blocks of that size. */
static bool is_direct(const struct cpu_limits *limits, enum tutti_collective collective,
                      size_t bytes)
{
    return !coll_rows[collective].reduces &&
           bytes >= limits->direct_bytes[direct_kind_of(collective)];
}

static enum tutti_algo algo_of(const struct cpu_limits *limits, const struct choice_call *call,
                               const char **reason)
{
    const struct choice_rules *rules = limits->rules;
    const enum tutti_algo algo = choice_by_rules(rules, call, reason);
    if (algo != TUTTI_ALGO_NONE || rules->strict)
        return algo;
    const bool one_shot = call->bytes <= limits->one_shot_bytes;
    *reason = one_shot ? limits->small.reason : limits->two_shot_reason;
    return one_shot ? TUTTI_ALGO_ONE_SHOT : TUTTI_ALGO_TWO_SHOT;
}

/* The algorithm of one hop. */
static const struct algorithm *one_shot_of(const struct cpu_limits *limits,
                                           enum tutti_collective collective, size_t block)
{
    if (small_bytes(coll_rows[collective].send_all, block, limits->world_size) <= LAYOUT_BODY_BYTES)
        return &cpu_small;
    return limits->one_hop;
}

static const struct algorithm *algorithm_of(const struct cpu_limits *limits, enum tutti_algo algo,
                                            const struct choice_call *call)
{
    if (call->bytes == 0)
        return &cpu_meeting;
    if (algo == TUTTI_ALGO_HYBRID_CUBE_MESH)
        return &cpu_mesh.algorithm;
    if (algo == TUTTI_ALGO_TWO_SHOT)
        return &cpu_two_shot.algorithm;
    return one_shot_of(limits, call->collective, call->bytes);
}

/* Chooses for any collective except an all-reduce: there is one algorithm for each size. */
static enum tutti_status other_choose(const struct cpu_limits *limits,
                                      const struct choice_call *call, struct choice *choice)
{
    *choice = (struct choice){.algo = TUTTI_ALGO_ONE_SHOT, .reason = "one hop"};
    if (call->algo != TUTTI_ALGO_NONE)
        return error_set(TUTTI_ERR_INVALID,
                         "%s: algorithm %s cannot be forced: pass TUTTI_ALGO_NONE",
                         coll_rows[call->collective].call, tutti_algo_name(call->algo));
    if (!limits->rules->paths.all) {
        choice->reason = "some two ranks are not linked";
        return TUTTI_OK;
    }
    if (call->collective == TUTTI_COLLECTIVE_REDUCE && !limits->pushes &&
        call->bytes * (size_t)limits->world_size >= REDUCE_ALONE_BYTES) {
        *choice = (struct choice){.algo = TUTTI_ALGO_TWO_SHOT,
                                  .run = &cpu_two_shot.algorithm,
                                  .reason = limits->two_shot_reason};
        return TUTTI_OK;
    }
    if (coll_rows[call->collective].peer || coll_rows[call->collective].varies) {
        choice->run = &cpu_pair;
        /* A root that reduced the blocks where they lie would do all work alone. */
        choice->zero_copy = !coll_rows[call->collective].varies &&
                            !coll_rows[call->collective].reduces &&
                            call->bytes >= limits->offered_bytes;
        choice->direct = choice->zero_copy && is_direct(limits, call->collective, call->bytes);
        return TUTTI_OK;
    }
    choice->run = call->bytes ? one_shot_of(limits, call->collective, call->bytes) : &cpu_meeting;
    choice->zero_copy = call->bytes > limits->copied_bytes;
    choice->direct = choice->zero_copy && is_direct(limits, call->collective, call->bytes);
    return TUTTI_OK;
}

static void all_reduce_choose(const struct cpu_limits *limits, const struct choice_call *call,
                              struct choice *choice)
{
    *choice = (struct choice){.run = NULL};
    choice->algo = algo_of(limits, call, &choice->reason);
    if (choice->algo == TUTTI_ALGO_NONE)
        return;
    choice->run = algorithm_of(limits, choice->algo, call);
    choice->zero_copy =
        call->bytes &&
        (choice->algo == TUTTI_ALGO_TWO_SHOT ||
         (choice->algo == TUTTI_ALGO_ONE_SHOT && call->bytes > limits->copied_bytes));
}

/* Whatever is no small all-reduce. Not inlined, so that a small one saves no registers. */
static __attribute__((noinline)) enum tutti_status
long_choose(const struct cpu_group *group, const struct choice_call *call, struct choice *choice)
{
    enum tutti_status status = TUTTI_OK;
    if (call->collective == TUTTI_COLLECTIVE_ALL_REDUCE)
        all_reduce_choose(&group->limits, call, choice);
    else
        status = other_choose(&group->limits, call, choice);
    /* Where the kernel copies, the idle ranks' cores do that already. */
    if (group->parts && status == TUTTI_OK && !choice->direct &&
        parts_count(group, call, choice->run) > 1)
        choice->run = &cpu_parts;
    return status;
}

enum tutti_status cpu_choose(const void *opaque, const struct choice_call *call,
                             struct choice *choice)
{
    const struct cpu_group *group = opaque;
    const struct cpu_limits *limits = &group->limits;
    announcement_prefetch(group, call->bytes);
    if (call->collective != TUTTI_COLLECTIVE_ALL_REDUCE || call->bytes > limits->small_bytes ||
        !call->bytes || call->algo != TUTTI_ALGO_NONE)
        return long_choose(group, call, choice);
    *choice = limits->small;
    return TUTTI_OK;
}

enum tutti_status cpu_run_more(void *opaque, struct request *request)
{
    struct cpu_group *group = opaque;
    if (request->choice.run == &cpu_parts)
        request->choice.run = parts_plain(group, request);
    if (request->choice.run == &cpu_pair)
        return pair_more(group, request);
    if (request->choice.run == &cpu_small) /* it runs whole operations only */
        request->choice.run = group->limits.one_hop;
    return announced_more(group, request);
}
