/* SPDX-License-Identifier: MIT */
#include "cpu/choose.h"

#include "coll/backend.h"
#include "cpu/algo/all_reduce.h"

enum {
    /* With more ranks that have a core each, results are pulled: two_shot.c. Ranks that share a
     * core also share its cache, so they push. */
    PUSH_RANKS = 4,
};

static const struct transport transports[CPU_TRANSPORTS] = {
    [CPU_SMALL] = {one_shot_small, NULL},
    [CPU_SWAP] = {cpu_run_announced, swap_pieces},
    [CPU_PIECES] = {cpu_run_announced, one_shot_pieces},
    [CPU_TWO_SHOT_PUSH] = {cpu_run_announced, two_shot_pieces},
    [CPU_TWO_SHOT_PULL] = {cpu_run_announced, two_shot_pieces},
    [CPU_MESH] = {cpu_run_announced, mesh_pieces},
    [CPU_BARRIER] = {cpu_barrier, NULL},
};

/*
 * Measured (bench/README.md). One-shot moves N - 1 inputs into each rank in one hop, two-shot
 * 2 (N - 1) / N of one input in two hops. So the more ranks there are, the sooner one-shot loses.
 * Two ranks move the same bytes either way. Where ranks share cores a hop costs more.
 */
static size_t one_shot_bytes(int world_size, bool oversubscribed)
{
    if (world_size == 2)
        return 64 << 10;
    return ((size_t)(oversubscribed ? 64 : 7) << 10) / (size_t)world_size;
}

void cpu_table_fill(const struct choice_rules *rules, int world_size, bool oversubscribed,
                    struct cpu_table *table)
{
    *table = (struct cpu_table){
        .rules = rules,
        .one_shot_bytes = one_shot_bytes(world_size, oversubscribed),
        /* Zero-copy has a second hop. */
        .copied_bytes = oversubscribed ? 2 * LAYOUT_BODY_BYTES : LAYOUT_BODY_BYTES,
        .one_shot = world_size == 2 ? CPU_SWAP : CPU_PIECES,
        .two_shot =
            world_size <= PUSH_RANKS || oversubscribed ? CPU_TWO_SHOT_PUSH : CPU_TWO_SHOT_PULL,
        .small = {.algo = TUTTI_ALGO_ONE_SHOT,
                  .transport = &transports[CPU_SMALL],
                  .reason =
                      rules->paths.staged
                          ? "no links join all ranks, the host's memory does: one hop, up to here"
                          : "one hop is faster up to here"},
        .two_shot_reason =
            rules->paths.staged
                ? "no links join all ranks, the host's memory does: fewer bytes, from here on"
                : "each rank reduces its own chunk: fewer bytes from here on",
    };
    if (rules->forced == TUTTI_ALGO_NONE && !rules->strict && rules->paths.all)
        table->small_bytes =
            table->one_shot_bytes < LAYOUT_BODY_BYTES ? table->one_shot_bytes : LAYOUT_BODY_BYTES;
}

static enum tutti_algo algo_of(const struct cpu_table *table, const struct choice_call *call,
                               const char **reason)
{
    const struct choice_rules *rules = table->rules;
    const enum tutti_algo algo = choice_by_rules(rules, call, reason);
    if (algo != TUTTI_ALGO_NONE || rules->strict)
        return algo;
    const bool one_shot = call->bytes <= table->one_shot_bytes;
    *reason = one_shot ? table->small.reason : table->two_shot_reason;
    return one_shot ? TUTTI_ALGO_ONE_SHOT : TUTTI_ALGO_TWO_SHOT;
}

static enum cpu_transport transport_of(const struct cpu_table *table, enum tutti_algo algo,
                                       size_t bytes)
{
    if (bytes == 0)
        return CPU_BARRIER;
    if (algo == TUTTI_ALGO_HYBRID_CUBE_MESH)
        return CPU_MESH;
    if (algo == TUTTI_ALGO_TWO_SHOT)
        return table->two_shot;
    return bytes <= LAYOUT_BODY_BYTES ? CPU_SMALL : table->one_shot;
}

enum tutti_status cpu_choose(const void *group, const struct choice_call *call,
                             struct choice *choice)
{
    const struct cpu_table *table = &((const struct cpu_group *)group)->table;
    if (call->bytes <= table->small_bytes && call->bytes && call->algo == TUTTI_ALGO_NONE) {
        *choice = table->small;
        return TUTTI_OK;
    }
    *choice = (struct choice){.transport = NULL};
    choice->algo = algo_of(table, call, &choice->reason);
    if (choice->algo == TUTTI_ALGO_NONE)
        return TUTTI_OK;
    choice->transport = &transports[transport_of(table, choice->algo, call->bytes)];
    choice->zero_copy =
        call->bytes && (choice->algo == TUTTI_ALGO_TWO_SHOT ||
                        (choice->algo == TUTTI_ALGO_ONE_SHOT && call->bytes > table->copied_bytes));
    return TUTTI_OK;
}

enum tutti_status cpu_all_reduce_more(struct cpu_group *group, const struct request *request)
{
    const struct transport *transport = request->choice.transport;
    if (!transport->copies) /* a small message names a whole operation */
        transport = &transports[group->table.one_shot];
    group->op.deadline = 0;
    const uint64_t environment = reduce_env_begin();
    enum tutti_status status = transport->copies(group, request);
    reduce_env_end(environment);
    return status;
}

static enum tutti_status finish(void *group, int64_t timeout_ms)
{
    (void)timeout_ms; /* a call returns when its operation has ended */
    return cpu_group_status(group, NULL);
}

const struct backend cpu_backend = {
    .choose = cpu_choose,
    .barrier = &transports[CPU_BARRIER],
    .sequence = cpu_group_sequence,
    .status = cpu_group_status,
    .finish = finish,
};
