/* SPDX-License-Identifier: MIT */
/*
 * A long random life of groups of calls on two communicators: messages of random ranks, to oneself
 * too, and collectives, all at the same time. Each rank makes the calls of a group in an order of
 * its own, as far as the contract leaves it free. Every element is compared.
 *
 * usage: test_call_groups threads|processes|alone WORLD_SIZE
 * alone: one thread makes the calls of all ranks, in one group.
 */
#include "pool.h"
#include "ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    GROUPS = 3000,
    GROUPS_SHORT = 300,
    MOST_CALLS = 12,
    COMMS = 2,
    MOST_ELEMENTS = 40000,
    SMALL_ELEMENTS = 100, /* three of four are smaller */
};

/* Equal on all ranks. `root`: the sender of a message, to `to`. */
struct operation {
    enum tutti_collective collective;
    int comm, root, to;
    size_t count;
    uint32_t id;
};

struct rank_life {
    tutti_comm_t *comms[COMMS];
    int32_t *send[MOST_CALLS], *recv[MOST_CALLS];
    size_t *counts[MOST_CALLS]; /* of a v-form */
    int rank, size;
};

static int32_t element(uint32_t id, int rank, size_t i)
{
    return (int32_t)((id * 40503u + (uint32_t)rank * 9176u + (uint32_t)i * 2654435761u) >> 8);
}

static void fill(int32_t *data, uint32_t id, int rank, size_t count)
{
    for (size_t i = 0; i < count; i++)
        data[i] = element(id, rank, i);
}

static bool is_of(const int32_t *data, uint32_t id, int rank, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (data[i] != element(id, rank, i))
            return false;
    return true;
}

static bool is_sum(const int32_t *data, uint32_t id, int size, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t sum = 0;
        for (int r = 0; r < size; r++)
            sum += (uint32_t)element(id, r, i);
        if (data[i] != (int32_t)sum)
            return false;
    }
    return true;
}

static struct operation operation_make(uint64_t *random, int size, uint32_t id)
{
    static const enum tutti_collective collectives[] = {
        TUTTI_COLLECTIVE_SEND,        TUTTI_COLLECTIVE_SEND,    TUTTI_COLLECTIVE_SEND,
        TUTTI_COLLECTIVE_SEND,        TUTTI_COLLECTIVE_SEND,    TUTTI_COLLECTIVE_ALL_REDUCE,
        TUTTI_COLLECTIVE_ALL_GATHER,  TUTTI_COLLECTIVE_BARRIER, TUTTI_COLLECTIVE_BROADCAST,
        TUTTI_COLLECTIVE_GATHER,      TUTTI_COLLECTIVE_REDUCE,  TUTTI_COLLECTIVE_SCATTER,
        TUTTI_COLLECTIVE_ALL_GATHER_V};
    const size_t most = pool_random(random) % 4 ? SMALL_ELEMENTS : MOST_ELEMENTS;
    return (struct operation){
        .collective = collectives[pool_random(random) % (sizeof collectives / sizeof *collectives)],
        .comm = (int)(pool_random(random) % COMMS),
        .root = (int)(pool_random(random) % (uint64_t)size),
        .to = (int)(pool_random(random) % (uint64_t)size),
        .count = pool_random(random) % most,
        .id = id,
    };
}

/* ---- the calls ------------------------------------------------------------------------------- */

/* Of a v-form: the length of rank r's block. */
static size_t block_of(const struct operation *o, int r, int size)
{
    return o->count * (size_t)((r + (int)(o->id % 3)) % size) / (size_t)size;
}

static bool collective_call(const struct rank_life *life, const struct operation *o, int slot,
                            int32_t *send, int32_t *recv)
{
    tutti_comm_t *comm = life->comms[o->comm];
    const bool is_root = life->rank == o->root;
    switch ((int)o->collective) {
    case TUTTI_COLLECTIVE_ALL_REDUCE:
        return tutti_all_reduce(send, recv, o->count, TUTTI_INT32, TUTTI_SUM, comm,
                                TUTTI_STREAM_DEFAULT) == TUTTI_OK;
    case TUTTI_COLLECTIVE_ALL_GATHER:
        return tutti_all_gather(send, recv, o->count, TUTTI_INT32, comm, TUTTI_STREAM_DEFAULT) ==
               TUTTI_OK;
    case TUTTI_COLLECTIVE_ALL_GATHER_V:
        for (int r = 0; r < life->size; r++)
            life->counts[slot][r] = block_of(o, r, life->size);
        return tutti_all_gather_v(send, life->counts[slot][life->rank], recv, life->counts[slot],
                                  NULL, TUTTI_INT32, comm, TUTTI_STREAM_DEFAULT) == TUTTI_OK;
    case TUTTI_COLLECTIVE_BROADCAST:
        return tutti_broadcast(is_root ? send : NULL, recv, o->count, TUTTI_INT32, o->root, comm,
                               TUTTI_STREAM_DEFAULT) == TUTTI_OK;
    case TUTTI_COLLECTIVE_GATHER:
        return tutti_gather(send, is_root ? recv : NULL, o->count, TUTTI_INT32, o->root, comm,
                            TUTTI_STREAM_DEFAULT) == TUTTI_OK;
    case TUTTI_COLLECTIVE_REDUCE:
        return tutti_reduce(send, is_root ? recv : NULL, o->count, TUTTI_INT32, TUTTI_SUM, o->root,
                            comm, TUTTI_STREAM_DEFAULT) == TUTTI_OK;
    case TUTTI_COLLECTIVE_SCATTER:
        return tutti_scatter(is_root ? send : NULL, recv, o->count, TUTTI_INT32, o->root, comm,
                             TUTTI_STREAM_DEFAULT) == TUTTI_OK;
    default:
        return tutti_barrier(comm, NULL, 0, TUTTI_STREAM_DEFAULT) == TUTTI_OK;
    }
}

static bool is_in_place(const struct operation *o)
{
    return o->collective == TUTTI_COLLECTIVE_ALL_GATHER && o->id % 2;
}

/* `receives`: of a message to oneself, which has two calls, the receive. */
static bool call(const struct rank_life *life, const struct operation *o, int slot, bool receives)
{
    int32_t *send = life->send[slot], *recv = life->recv[slot];
    tutti_comm_t *comm = life->comms[o->comm];
    if (o->collective != TUTTI_COLLECTIVE_SEND) {
        if (is_in_place(o))
            send = recv + (size_t)life->rank * o->count;
        for (int r = 0; r < (o->collective == TUTTI_COLLECTIVE_SCATTER ? life->size : 1); r++)
            fill(send + (size_t)r * o->count, o->id,
                 o->collective == TUTTI_COLLECTIVE_SCATTER ? r : life->rank, o->count);
        return collective_call(life, o, slot, send, recv);
    }
    if (receives)
        return tutti_recv(recv, o->count, TUTTI_INT32, o->root, comm, TUTTI_STREAM_DEFAULT) ==
               TUTTI_OK;
    fill(send, o->id, o->root, o->count);
    return tutti_send(send, o->count, TUTTI_INT32, o->to, comm, TUTTI_STREAM_DEFAULT) == TUTTI_OK;
}

static bool is_right(const struct rank_life *life, const struct operation *o, int slot)
{
    const int32_t *recv = life->recv[slot];
    const bool is_root = life->rank == o->root;
    bool right = true;
    switch ((int)o->collective) {
    case TUTTI_COLLECTIVE_SEND:
        return life->rank != o->to || is_of(recv, o->id, o->root, o->count);
    case TUTTI_COLLECTIVE_BROADCAST:
        return is_of(recv, o->id, o->root, o->count);
    case TUTTI_COLLECTIVE_SCATTER:
        return is_of(recv, o->id, life->rank, o->count);
    case TUTTI_COLLECTIVE_ALL_REDUCE:
        return is_sum(recv, o->id, life->size, o->count);
    case TUTTI_COLLECTIVE_REDUCE:
        return !is_root || is_sum(recv, o->id, life->size, o->count);
    case TUTTI_COLLECTIVE_ALL_GATHER_V:
        for (int r = 0; r < life->size; recv += block_of(o, r, life->size), r++)
            right = right && is_of(recv, o->id, r, block_of(o, r, life->size));
        return right;
    case TUTTI_COLLECTIVE_ALL_GATHER:
    case TUTTI_COLLECTIVE_GATHER:
        for (int r = 0; r < life->size; r++)
            right = right && is_of(recv + (size_t)r * o->count, o->id, r, o->count);
        return right || (o->collective == TUTTI_COLLECTIVE_GATHER && !is_root);
    default:
        return true;
    }
}

/* ---- an order of one's own ------------------------------------------------------------------- */

/* A call of an operation: `slot` is its index in the group. */
struct step {
    int slot;
    bool receives;
};

/* Whether the contract gives the order of two calls of one rank. */
static bool keeps_order(const struct operation *operations, struct step a, struct step b)
{
    const struct operation *x = &operations[a.slot], *y = &operations[b.slot];
    const bool x_is_message = x->collective == TUTTI_COLLECTIVE_SEND;
    if (x->comm != y->comm || x_is_message != (y->collective == TUTTI_COLLECTIVE_SEND))
        return false;
    return !x_is_message ||
           (a.receives == b.receives && (a.receives ? x->root == y->root : x->to == y->to));
}

static void shuffle(const struct operation *operations, struct step *steps, int count,
                    uint64_t *random)
{
    for (int swaps = 0; swaps < 4 * count; swaps++) {
        const int i = count > 1 ? (int)(pool_random(random) % (uint64_t)(count - 1)) : 0;
        if (i + 1 >= count || keeps_order(operations, steps[i], steps[i + 1]))
            continue;
        const struct step step = steps[i];
        steps[i] = steps[i + 1];
        steps[i + 1] = step;
    }
}

static int steps_make(const struct operation *operations, int count, int rank, struct step *steps)
{
    int n = 0;
    for (int slot = 0; slot < count; slot++) {
        const struct operation *o = &operations[slot];
        const bool message = o->collective == TUTTI_COLLECTIVE_SEND;
        if (!message || o->root == rank)
            steps[n++] = (struct step){slot, false};
        if (message && o->to == rank)
            steps[n++] = (struct step){slot, true};
    }
    return n;
}

static bool calls_make(const struct rank_life *life, const struct operation *operations, int count,
                       uint64_t *own_random)
{
    struct step steps[2 * MOST_CALLS];
    const int n = steps_make(operations, count, life->rank, steps);
    shuffle(operations, steps, n, own_random);
    for (int i = 0; i < n; i++)
        if (!call(life, &operations[steps[i].slot], steps[i].slot, steps[i].receives))
            return false;
    return true;
}

/* The calls of `lives`, the ranks that this thread is, in one group. */
static bool group_run(const struct rank_life *lives, int ranks, uint64_t *random,
                      uint64_t *own_random, uint32_t group)
{
    struct operation operations[MOST_CALLS];
    const int count = (int)(pool_random(random) % (MOST_CALLS + 1));
    for (int i = 0; i < count; i++)
        operations[i] = operation_make(random, lives->size, group * MOST_CALLS + (uint32_t)i);
    if (tutti_group_start() != TUTTI_OK)
        return false;
    for (int r = 0; r < ranks; r++)
        if (!calls_make(&lives[r], operations, count, own_random))
            return false;
    if (tutti_group_end() != TUTTI_OK)
        return false;
    for (int r = 0; r < ranks; r++)
        for (int i = 0; i < count; i++)
            if (!is_right(&lives[r], &operations[i], i))
                return false;
    return true;
}

/* ---- lives ----------------------------------------------------------------------------------- */

static bool life_make(struct ranks *ranks, int rank, tutti_store_t *store, struct rank_life *life)
{
    const size_t bytes = (size_t)ranks->size * MOST_ELEMENTS * sizeof(int32_t);
    *life = (struct rank_life){.rank = rank, .size = ranks->size};
    for (int c = 0; c < COMMS; c++) {
        const struct tutti_comm_options options = {.struct_size = sizeof options,
                                                   .name = c ? "second" : "first"};
        if (ranks_join(ranks, rank, store, &options, &life->comms[c]) != TUTTI_OK)
            return false;
    }
    for (int i = 0; i < MOST_CALLS; i++)
        if (!(life->send[i] = malloc(bytes)) || !(life->recv[i] = malloc(bytes)) ||
            !(life->counts[i] = calloc((size_t)ranks->size, sizeof(size_t))))
            return false;
    return true;
}

static void life_end(struct rank_life *life)
{
    for (int i = 0; i < MOST_CALLS; i++) {
        free(life->send[i]);
        free(life->recv[i]);
        free(life->counts[i]);
    }
    for (int c = 0; c < COMMS; c++)
        tutti_comm_destroy(life->comms[c]);
}

static int groups_run(struct ranks *ranks, int rank, const struct rank_life *lives, int count)
{
    uint64_t random = 77, own_random = 1000 + (uint64_t)rank;
    const int groups = ranks_operations(GROUPS, GROUPS_SHORT);
    for (int i = 0; i < groups; i++) {
        char text[64];
        if (group_run(lives, count, &random, &own_random, (uint32_t)i))
            continue;
        snprintf(text, sizeof text, "group %d", i);
        return ranks_fail(ranks, rank, __FILE__, __LINE__, text);
    }
    return 0;
}

static int live(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct rank_life life;
    RANKS_CHECK(life_make(ranks, rank, store, &life));
    const int line = groups_run(ranks, rank, &life, 1);
    if (line)
        return line;
    RANKS_CHECK(tutti_barrier(life.comms[0], NULL, 0, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    life_end(&life);
    return 0;
}

static int live_alone(struct ranks *ranks, int rank, tutti_store_t *store)
{
    static struct rank_life lives[TUTTI_MAX_RANKS];
    RANKS_CHECK(life_make(ranks, rank, store, &lives[rank]));
    ranks_raise(ranks, 0);
    if (rank > 0)
        return ranks_await(ranks, 1, 1) ? 0 : __LINE__;
    RANKS_CHECK(ranks_await(ranks, 0, (uint32_t)ranks->size));
    const int line = groups_run(ranks, rank, lives, ranks->size);
    if (line)
        return line;
    for (int r = 0; r < ranks->size; r++)
        life_end(&lives[r]);
    ranks_raise(ranks, 1);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    const int size = atoi(argv[2]);
    int skip = ranks_skip(1);
    if (!skip && strcmp(argv[1], "alone") == 0)
        skip = ranks_skip_cuda("the thread waits for the end of each rank's calls");
    if (skip)
        return skip;
    struct ranks *ranks = ranks_create(size, strcmp(argv[1], "processes") == 0 ? size : 0, 0);
    const int failures = ranks_run(ranks, strcmp(argv[1], "alone") == 0 ? live_alone : live);
    ranks_destroy(ranks);
    return failures ? 1 : 0;
}
