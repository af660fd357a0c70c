/* SPDX-License-Identifier: MIT */
/*
 * A long random life of one communicator: rooted collectives, messages, and now and then an
 * all-reduce or a barrier. Random roots, sizes, dtypes, places; in place or not. The counts of the
 * lane PAIR wrap on the way. Every element is compared with what its sender had, or with the scalar
 * reference.
 *
 * usage: test_rooted threads|processes WORLD_SIZE
 */
#include "comm/comm.h"
#include "cpu/transport/group.h"
#include "cpu/transport/pair.h"
#include "pool.h"
#include "ranks.h"
#include "reference.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    OPERATIONS = 20000,
    OPERATIONS_SHORT = 2000,
    MOST_BYTES = 300 * 1024,
    SMALL_BYTES = 4096, /* nine of ten are smaller */
    LINE = 64,
};

/* Equal on all ranks. */
struct operation {
    enum tutti_collective collective;
    enum tutti_dtype dtype;
    tutti_op_t op;
    size_t count;
    size_t offset;
    int root;
    bool in_place;
    size_t shift; /* of the operands, from a line, in elements */
};

struct life {
    const struct pool *pool;
    tutti_comm_t *comm;
    int rank, size;
    unsigned char *send, *recv; /* room for a block of each rank */
};

static uint64_t below(uint64_t *random, uint64_t bound)
{
    return pool_random(random) % bound;
}

static struct operation operation_make(uint64_t *random, int size)
{
    static const enum tutti_collective collectives[] = {
        TUTTI_COLLECTIVE_BROADCAST,  TUTTI_COLLECTIVE_REDUCE, TUTTI_COLLECTIVE_GATHER,
        TUTTI_COLLECTIVE_SCATTER,    TUTTI_COLLECTIVE_SEND,   TUTTI_COLLECTIVE_SEND,
        TUTTI_COLLECTIVE_ALL_REDUCE, TUTTI_COLLECTIVE_BARRIER};
    struct operation o;
    do {
        o.dtype = (enum tutti_dtype)below(random, TUTTI_DTYPE_COUNT);
        o.op = (tutti_op_t)(uintptr_t)(1 + below(random, REFERENCE_OPS - 1));
    } while (!reference_has(o.dtype, o.op) || tutti_op_name(o.op)[0] == 'p');
    o.collective = collectives[below(random, sizeof collectives / sizeof *collectives)];
    const uint64_t most = below(random, 10) ? SMALL_BYTES : MOST_BYTES;
    const uint64_t bytes = below(random, UINT64_C(1) << (1 + below(random, 20))) % (most + 1);
    o.count = bytes / tutti_dtype_size(o.dtype);
    o.offset = below(random, POOL_PERIOD);
    o.root = (int)below(random, (uint64_t)size);
    o.in_place = below(random, 2);
    o.shift = below(random, LINE) / tutti_dtype_size(o.dtype);
    return o;
}

static void input(const struct life *life, const struct operation *o, int rank, void *operand)
{
    pool_input(life->pool, rank, o->dtype, o->offset, o->count, operand);
}

static bool is_input(const struct life *life, const struct operation *o, int rank,
                     const void *operand)
{
    return pool_is_input(life->pool, rank, o->dtype, o->offset, o->count, operand);
}

static bool is_result(const struct life *life, const struct operation *o, const void *result)
{
    size_t index;
    return pool_is_result(life->pool, o->dtype, o->op, o->offset, o->count, result, &index);
}

static bool broadcast_run(const struct life *life, const struct operation *o, unsigned char *send,
                          unsigned char *recv)
{
    const bool is_root = life->rank == o->root;
    if (is_root && o->in_place)
        send = recv;
    if (is_root)
        input(life, o, o->root, send);
    return tutti_broadcast(is_root ? send : NULL, recv, o->count, o->dtype, o->root, life->comm,
                           TUTTI_STREAM_DEFAULT) == TUTTI_OK &&
           is_input(life, o, o->root, recv) && (!is_root || is_input(life, o, o->root, send));
}

static bool reduce_run(const struct life *life, const struct operation *o, unsigned char *send,
                       unsigned char *recv)
{
    const bool is_root = life->rank == o->root;
    if (is_root && o->in_place)
        send = recv;
    input(life, o, life->rank, send);
    return tutti_reduce(send, is_root ? recv : NULL, o->count, o->dtype, o->op, o->root, life->comm,
                        TUTTI_STREAM_DEFAULT) == TUTTI_OK &&
           (!is_root || is_result(life, o, recv)) &&
           (is_root || is_input(life, o, life->rank, send));
}

static bool gather_run(const struct life *life, const struct operation *o, unsigned char *send,
                       unsigned char *recv)
{
    const bool is_root = life->rank == o->root;
    const size_t block = o->count * tutti_dtype_size(o->dtype);
    if (is_root && o->in_place)
        send = recv + (size_t)life->rank * block;
    input(life, o, life->rank, send);
    if (tutti_gather(send, is_root ? recv : NULL, o->count, o->dtype, o->root, life->comm,
                     TUTTI_STREAM_DEFAULT) != TUTTI_OK)
        return false;
    for (int r = 0; r < life->size && is_root; r++)
        if (!is_input(life, o, r, recv + (size_t)r * block))
            return false;
    return true;
}

static bool scatter_run(const struct life *life, const struct operation *o, unsigned char *send,
                        unsigned char *recv)
{
    const bool is_root = life->rank == o->root;
    const size_t block = o->count * tutti_dtype_size(o->dtype);
    for (int r = 0; r < life->size && is_root; r++)
        input(life, o, r, send + (size_t)r * block);
    if (is_root && o->in_place)
        recv = send + (size_t)life->rank * block;
    return tutti_scatter(is_root ? send : NULL, recv, o->count, o->dtype, o->root, life->comm,
                         TUTTI_STREAM_DEFAULT) == TUTTI_OK &&
           is_input(life, o, life->rank, recv);
}

/* From the root to the next rank; the others do nothing. */
static bool message_run(const struct life *life, const struct operation *o, unsigned char *send,
                        unsigned char *recv)
{
    const int to = (o->root + 1) % life->size;
    if (life->rank == o->root && life->size > 1) {
        input(life, o, o->root, send);
        return tutti_send(send, o->count, o->dtype, to, life->comm, TUTTI_STREAM_DEFAULT) ==
               TUTTI_OK;
    }
    if (life->rank == to && life->size > 1)
        return tutti_recv(recv, o->count, o->dtype, o->root, life->comm, TUTTI_STREAM_DEFAULT) ==
                   TUTTI_OK &&
               is_input(life, o, o->root, recv);
    return true;
}

static bool operation_run(const struct life *life, const struct operation *o)
{
    const size_t shift = o->shift * tutti_dtype_size(o->dtype);
    unsigned char *send = life->send + shift, *recv = life->recv + shift;
    switch ((int)o->collective) {
    case TUTTI_COLLECTIVE_BROADCAST:
        return broadcast_run(life, o, send, recv);
    case TUTTI_COLLECTIVE_REDUCE:
        return reduce_run(life, o, send, recv);
    case TUTTI_COLLECTIVE_GATHER:
        return gather_run(life, o, send, recv);
    case TUTTI_COLLECTIVE_SCATTER:
        return scatter_run(life, o, send, recv);
    case TUTTI_COLLECTIVE_SEND:
        return message_run(life, o, send, recv);
    case TUTTI_COLLECTIVE_ALL_REDUCE:
        input(life, o, life->rank, send);
        return tutti_all_reduce(send, recv, o->count, o->dtype, o->op, life->comm,
                                TUTTI_STREAM_DEFAULT) == TUTTI_OK &&
               is_result(life, o, recv);
    default:
        return tutti_barrier(life->comm, NULL, 0, TUTTI_STREAM_DEFAULT) == TUTTI_OK;
    }
}

/* As if so many messages had gone each way: their numbers wrap after a few more. */
static void counts_set(const struct life *life)
{
    struct cpu_group *group = life->comm->host;
    const uint64_t messages = LAYOUT_WINDOW * ((UINT64_C(1) << 32) - 4);
    for (int r = 0; r < life->size; r++) {
        group->op.sent[r] = group->op.received[r] = group->op.heard[r] = messages;
        for (uint64_t m = messages; m < messages + LAYOUT_WINDOW; m++) {
            *message_read(group, life->rank, r, false, m) = message_number(m) - 1;
            *message_read(group, life->rank, r, true, m) = message_number(m) - 1;
        }
    }
    group->op.sequence = UINT32_MAX - 200;
}

static int live(struct ranks *ranks, int rank, tutti_store_t *store)
{
    uint64_t random = 31;
    const size_t bytes = (size_t)ranks->size * MOST_BYTES + LINE;
    struct life life = {.pool = ranks->context, .rank = rank, .size = ranks->size};
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &life.comm) == TUTTI_OK);
    RANKS_CHECK((life.send = malloc(bytes)) && (life.recv = malloc(bytes)));
    counts_set(&life);
    RANKS_CHECK(tutti_barrier(life.comm, NULL, 0, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    const int operations = ranks_operations(OPERATIONS, OPERATIONS_SHORT);
    for (int i = 0; i < operations; i++) {
        const struct operation o = operation_make(&random, ranks->size);
        if (operation_run(&life, &o))
            continue;
        char text[128];
        snprintf(text, sizeof text, "operation %d: %s of %zu %s, root %d%s", i,
                 tutti_collective_name(o.collective), o.count, tutti_dtype_name(o.dtype), o.root,
                 o.in_place ? ", in place" : "");
        return ranks_fail(ranks, rank, __FILE__, __LINE__, text);
    }
    const struct cpu_group *group = life.comm->host;
    RANKS_CHECK(group->op.sequence > UINT32_MAX);
    RANKS_CHECK(ranks->size == 1 || group->op.sent[rank] > LAYOUT_WINDOW * (UINT64_C(1) << 32));
    RANKS_CHECK(tutti_barrier(life.comm, NULL, 0, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    tutti_comm_destroy(life.comm);
    free(life.send);
    free(life.recv);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    const int size = atoi(argv[2]);
    const int skip = ranks_skip_cuda("rooted collectives are of CPU ranks");
    if (skip)
        return skip;
    struct pool *pool = pool_create(size, NULL, 11);
    struct ranks *ranks = ranks_create(size, strcmp(argv[1], "threads") == 0 ? 0 : size, 0);
    ranks->context = pool;
    const int failures = ranks_run(ranks, live);
    ranks_destroy(ranks);
    pool_destroy(pool);
    return failures ? 1 : 0;
}
