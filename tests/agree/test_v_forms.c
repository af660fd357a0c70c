/* SPDX-License-Identifier: MIT */
/*
 * A long random life of one communicator: v-forms, and now and then an all-reduce, a broadcast or a
 * message. Random counts (many are 0), dtypes, orders of the blocks in an operand, holes between
 * them; blocks of send that overlap; in place or not. Every element is compared with what its
 * sender had, or with the scalar reference, and what lies between the blocks does not change. Many
 * calls have their counts on the device, in entries of 32 bits on some ranks.
 *
 * usage: test_v_forms threads|processes WORLD_SIZE
 */
#include "device.h"
#include "pool.h"
#include "ranks.h"
#include "reference.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    OPERATIONS = 20000,
    OPERATIONS_SHORT = 2000,
    MOST_BYTES = 100 * 1024, /* of a block */
    SMALL_BYTES = 700,       /* nine of ten operations have smaller ones */
    HOLE = 3,                /* elements between two blocks, the most */
    LINE = 64,
    EMPTY = 0xA5, /* what no block has written */
};

/* Equal on all ranks. */
struct operation {
    enum tutti_collective collective;
    enum tutti_dtype dtype;
    tutti_op_t op;
    size_t counts[TUTTI_MAX_RANKS][TUTTI_MAX_RANKS]; /* [from][to], as an all-to-all has them */
    size_t offset;                                   /* in the pool */
    int root;
    bool in_place, dense, overlaps;
    size_t max_count; /* not 0: counts are on the device */
    size_t shift;     /* of the operands, from a line, in elements */
    uint64_t bits;    /* for what differs between ranks */
};

struct life {
    const struct pool *pool;
    tutti_comm_t *comm;
    int rank, size;
    size_t bytes;               /* of each operand */
    unsigned char *send, *recv; /* room for a block of each rank */
};

static uint64_t below(uint64_t *random, uint64_t bound)
{
    return pool_random(random) % bound;
}

/* A kernel has to read them. */
static bool counts_may_be_on_device(int size)
{
    return !device_is_cuda() || (size > 1 && !device_is_shared());
}

static struct operation operation_make(uint64_t *random, int size)
{
    static const enum tutti_collective kinds[] = {
        TUTTI_COLLECTIVE_ALL_GATHER_V, TUTTI_COLLECTIVE_REDUCE_SCATTER_V,
        TUTTI_COLLECTIVE_ALL_TO_ALL_V, TUTTI_COLLECTIVE_GATHER_V,
        TUTTI_COLLECTIVE_SCATTER_V,    TUTTI_COLLECTIVE_ALL_TO_ALL_V,
        TUTTI_COLLECTIVE_ALL_REDUCE,   TUTTI_COLLECTIVE_BROADCAST,
        TUTTI_COLLECTIVE_SEND};
    struct operation o = {.dtype = TUTTI_DTYPE_COUNT};
    do {
        o.dtype = (enum tutti_dtype)below(random, TUTTI_DTYPE_COUNT);
        o.op = (tutti_op_t)(uintptr_t)(1 + below(random, REFERENCE_OPS - 1));
    } while (!reference_has(o.dtype, o.op) || tutti_op_name(o.op)[0] == 'p');
    o.collective = kinds[below(random, sizeof kinds / sizeof *kinds)];
    const uint64_t most = below(random, 10) ? SMALL_BYTES : MOST_BYTES;
    const bool all_empty = !below(random, 20);
    for (int i = 0; i < size; i++)
        for (int j = 0; j < size; j++)
            o.counts[i][j] = all_empty || !below(random, 3)
                                 ? 0
                                 : below(random, most + 1) / tutti_dtype_size(o.dtype);
    o.offset = below(random, POOL_PERIOD);
    o.root = (int)below(random, (uint64_t)size);
    o.in_place = below(random, 2);
    o.dense = below(random, 2);
    o.overlaps = !below(random, 4);
    o.shift = below(random, LINE) / tutti_dtype_size(o.dtype);
    o.bits = pool_random(random);
    if (below(random, 2) && counts_may_be_on_device(size)) {
        o.max_count = 1 + below(random, 2) * 40;
        for (int i = 0; i < size * size; i++)
            if (o.counts[i / size][i % size] > o.max_count)
                o.max_count = o.counts[i / size][i % size];
    }
    return o;
}

/* Where an operand's blocks lie. */
struct layout {
    size_t counts[TUTTI_MAX_RANKS], displacements[TUTTI_MAX_RANKS];
    int32_t narrow[2][TUTTI_MAX_RANKS]; /* the same */
    const size_t *lengths, *given;      /* what the call gets: counts; displacements, or NULL */
};

/* Each rank chooses for itself. Counts of a call with a root are the host's. */
static bool is_narrow(const struct operation *o, int rank)
{
    return o->max_count && o->collective != TUTTI_COLLECTIVE_GATHER_V &&
           o->collective != TUTTI_COLLECTIVE_SCATTER_V && (o->bits >> 20 ^ (uint64_t)rank) & 1;
}

/* In any order, with holes; dense; or all at the same place. */
static void layout_make(const struct life *life, const struct operation *o, bool overlaps,
                        uint64_t random, struct layout *layout)
{
    const bool narrow = is_narrow(o, life->rank);
    const int size = life->size;
    int order[TUTTI_MAX_RANKS];
    size_t at = 0;
    for (int r = 0; r < size; r++) {
        const int other = (int)below(&random, (uint64_t)r + 1);
        order[r] = order[other];
        order[other] = r;
    }
    for (int i = 0; i < size; i++) {
        const int r = o->dense ? i : order[i];
        layout->displacements[r] = overlaps ? 0 : at;
        at += layout->counts[r] + (o->dense ? 0 : below(&random, HOLE + 1));
    }
    for (int r = 0; r < size; r++) {
        layout->narrow[0][r] = (int32_t)layout->counts[r];
        layout->narrow[1][r] = (int32_t)layout->displacements[r];
    }
    layout->lengths = narrow ? (const size_t *)(const void *)layout->narrow[0] : layout->counts;
    layout->given = o->dense && !overlaps ? NULL
                    : narrow              ? (const size_t *)(const void *)layout->narrow[1]
                                          : layout->displacements;
}

/* The elements from the begin of an operand to the end of its last block, at least 1. */
static size_t extent_of(const struct layout *layout, int size)
{
    size_t extent = 1;
    for (int r = 0; r < size; r++)
        if (layout->counts[r] && layout->displacements[r] + layout->counts[r] > extent)
            extent = layout->displacements[r] + layout->counts[r];
    return extent;
}

/* The options of a call: NULL if its counts are the host's. */
static const struct tutti_call_options *options_of(const struct life *life,
                                                   const struct operation *o, size_t send_extent,
                                                   size_t recv_extent,
                                                   struct tutti_call_options *options)
{
    const uint32_t narrow = is_narrow(o, life->rank) ? TUTTI_CALL_INT32_COUNTS : 0;
    *options = (struct tutti_call_options){.struct_size = sizeof *options,
                                           .flags = TUTTI_CALL_DEVICE_COUNTS | narrow,
                                           .max_count = o->max_count,
                                           .send_extent = send_extent ? send_extent : 1,
                                           .recv_extent = recv_extent ? recv_extent : 1};
    return o->max_count ? options : NULL;
}

/* Where in the pool the block begins that `from` sends to `to`. A reduction's are the same on all
 * ranks, and blocks that overlap are the same for all ranks. */
static size_t offset_of(const struct operation *o, int from, int to)
{
    const bool reduces = o->collective == TUTTI_COLLECTIVE_REDUCE_SCATTER_V;
    return o->offset + (reduces ? 0 : 37 * (size_t)from) + (o->overlaps ? 0 : 101 * (size_t)to);
}

static void block_write(const struct life *life, const struct operation *o, int from, int to,
                        size_t count, unsigned char *at)
{
    pool_input(life->pool, from, o->dtype, offset_of(o, from, to), count, at);
}

/* Compares a block and marks it as empty again. */
static bool block_take(const struct life *life, const struct operation *o, int from, int to,
                       size_t count, unsigned char *at)
{
    size_t index;
    const size_t offset = offset_of(o, from, to);
    const bool is = o->collective == TUTTI_COLLECTIVE_REDUCE_SCATTER_V
                        ? pool_is_result(life->pool, o->dtype, o->op, offset, count, at, &index)
                        : pool_is_input(life->pool, from, o->dtype, offset, count, at);
    memset(at, EMPTY, count * tutti_dtype_size(o->dtype));
    return is;
}

static unsigned char *block_at(const struct operation *o, unsigned char *operand,
                               const struct layout *layout, int r)
{
    return operand + layout->displacements[r] * tutti_dtype_size(o->dtype);
}

/* All-gather and gather; the root of a gather is `root`, of an all-gather -1. */
static bool gather_run(const struct life *life, const struct operation *o, int root,
                       unsigned char *send, unsigned char *recv)
{
    struct layout to;
    const bool receives = root < 0 || root == life->rank;
    bool right = true;
    for (int r = 0; r < life->size; r++)
        to.counts[r] = o->counts[r][0];
    layout_make(life, o, false, o->bits + (uint64_t)life->rank, &to);
    const size_t count = to.counts[life->rank];
    if (o->in_place && receives)
        send = block_at(o, recv, &to, life->rank);
    block_write(life, o, life->rank, 0, count, send);
    struct tutti_call_options given;
    const struct tutti_call_options *options =
        options_of(life, o, count, extent_of(&to, life->size), &given);
    const enum tutti_status status =
        root < 0
            ? tutti_all_gather_v_with(count || options ? send : NULL, count, recv, to.lengths,
                                      to.given, o->dtype, life->comm, TUTTI_STREAM_DEFAULT, options)
            : tutti_gather_v(send, count, receives ? recv : NULL, receives ? to.lengths : NULL,
                             to.given, o->dtype, root, life->comm, TUTTI_STREAM_DEFAULT);
    for (int r = 0; r < life->size && receives; r++)
        right &= block_take(life, o, r, 0, to.counts[r], block_at(o, recv, &to, r));
    memset(send, EMPTY, count * tutti_dtype_size(o->dtype));
    return status == TUTTI_OK && right;
}

/* Writes the blocks that this rank sends. */
static void send_write(const struct life *life, const struct operation *o, bool row,
                       unsigned char *send, struct layout *from)
{
    for (int r = 0; r < life->size; r++)
        from->counts[r] = o->counts[row ? life->rank : 0][r];
    layout_make(life, o, o->overlaps, o->bits + (uint64_t)life->rank, from);
    for (int r = 0; r < life->size; r++)
        block_write(life, o, life->rank, r, from->counts[r], block_at(o, send, from, r));
}

static void send_clear(const struct life *life, const struct operation *o,
                       const struct layout *from, unsigned char *send)
{
    for (int r = 0; r < life->size; r++)
        memset(block_at(o, send, from, r), EMPTY, from->counts[r] * tutti_dtype_size(o->dtype));
}

/* Reduce-scatter, of which the root is -1, and scatter. */
static bool scatter_run(const struct life *life, const struct operation *o, int root,
                        unsigned char *send, unsigned char *recv)
{
    struct layout from;
    const bool sends = root < 0 || root == life->rank;
    const size_t count = o->counts[0][life->rank];
    send_write(life, o, false, send, &from);
    if (o->in_place && sends && !o->overlaps)
        recv = block_at(o, send, &from, life->rank);
    struct tutti_call_options given;
    const enum tutti_status status =
        root < 0 ? tutti_reduce_scatter_v_with(
                       send, from.lengths, from.given, recv, o->dtype, o->op, life->comm,
                       TUTTI_STREAM_DEFAULT,
                       options_of(life, o, extent_of(&from, life->size), count, &given))
                 : tutti_scatter_v(sends ? send : NULL, sends ? from.lengths : NULL, from.given,
                                   recv, count, o->dtype, root, life->comm, TUTTI_STREAM_DEFAULT);
    const bool right = block_take(life, o, root < 0 ? life->rank : root, life->rank, count, recv);
    send_clear(life, o, &from, send);
    return status == TUTTI_OK && right;
}

static bool to_all_run(const struct life *life, const struct operation *o, unsigned char *send,
                       unsigned char *recv)
{
    struct layout from, to;
    bool right = true;
    send_write(life, o, true, send, &from);
    for (int r = 0; r < life->size; r++)
        to.counts[r] = o->counts[r][life->rank];
    layout_make(life, o, false, ~o->bits - (uint64_t)life->rank, &to);
    struct tutti_call_options given;
    const enum tutti_status status = tutti_all_to_all_v_with(
        send, from.lengths, from.given, recv, to.lengths, to.given, o->dtype, life->comm,
        TUTTI_STREAM_DEFAULT,
        options_of(life, o, extent_of(&from, life->size), extent_of(&to, life->size), &given));
    for (int r = 0; r < life->size; r++)
        right &= block_take(life, o, r, life->rank, to.counts[r], block_at(o, recv, &to, r));
    for (int r = 0; r < life->size; r++)
        right &= pool_is_input(life->pool, life->rank, o->dtype, offset_of(o, life->rank, r),
                               from.counts[r], block_at(o, send, &from, r));
    send_clear(life, o, &from, send);
    return status == TUTTI_OK && right;
}

/* Of other kinds: they use the same lane, or the other one. */
static bool plain_run(const struct life *life, const struct operation *o, unsigned char *send,
                      unsigned char *recv)
{
    const size_t count = o->counts[0][0], bytes = count * tutti_dtype_size(o->dtype);
    const int to = (o->root + 1) % life->size;
    enum tutti_status status = TUTTI_OK;
    size_t index;
    bool right = true;
    pool_input(life->pool, life->rank, o->dtype, o->offset, count, send);
    if (o->collective == TUTTI_COLLECTIVE_ALL_REDUCE) {
        status =
            tutti_all_reduce(send, recv, count, o->dtype, o->op, life->comm, TUTTI_STREAM_DEFAULT);
        right = pool_is_result(life->pool, o->dtype, o->op, o->offset, count, recv, &index);
    } else if (o->collective == TUTTI_COLLECTIVE_BROADCAST) {
        status =
            tutti_broadcast(send, recv, count, o->dtype, o->root, life->comm, TUTTI_STREAM_DEFAULT);
        right = pool_is_input(life->pool, o->root, o->dtype, o->offset, count, recv);
    } else if (life->size > 1 && life->rank == o->root) {
        status = tutti_send(send, count, o->dtype, to, life->comm, TUTTI_STREAM_DEFAULT);
    } else if (life->size > 1 && life->rank == to) {
        status = tutti_recv(recv, count, o->dtype, o->root, life->comm, TUTTI_STREAM_DEFAULT);
        right = pool_is_input(life->pool, o->root, o->dtype, o->offset, count, recv);
    }
    memset(send, EMPTY, bytes);
    memset(recv, EMPTY, bytes);
    return status == TUTTI_OK && right;
}

static bool operation_run(const struct life *life, const struct operation *o)
{
    const size_t shift = o->shift * tutti_dtype_size(o->dtype);
    unsigned char *send = life->send + shift, *recv = life->recv + shift;
    switch ((int)o->collective) {
    case TUTTI_COLLECTIVE_ALL_GATHER_V:
        return gather_run(life, o, -1, send, recv);
    case TUTTI_COLLECTIVE_GATHER_V:
        return gather_run(life, o, o->root, send, recv);
    case TUTTI_COLLECTIVE_REDUCE_SCATTER_V:
        return scatter_run(life, o, -1, send, recv);
    case TUTTI_COLLECTIVE_SCATTER_V:
        return scatter_run(life, o, o->root, send, recv);
    case TUTTI_COLLECTIVE_ALL_TO_ALL_V:
        return to_all_run(life, o, send, recv);
    default:
        return plain_run(life, o, send, recv);
    }
}

/* Whether nothing but blocks has been written. */
static bool all_empty(const struct life *life)
{
    for (size_t i = 0; i < life->bytes; i++)
        if (life->send[i] != EMPTY || life->recv[i] != EMPTY)
            return false;
    return true;
}

static int live(struct ranks *ranks, int rank, tutti_store_t *store)
{
    enum { CHECK_EVERY = 50 };
    uint64_t random = 47;
    struct life life = {.pool = ranks->context, .rank = rank, .size = ranks->size};
    life.bytes = (size_t)ranks->size * (MOST_BYTES + LINE) + LINE;
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &life.comm) == TUTTI_OK);
    RANKS_CHECK((life.send = malloc(life.bytes)) && (life.recv = malloc(life.bytes)));
    memset(life.send, EMPTY, life.bytes);
    memset(life.recv, EMPTY, life.bytes);
    const int operations = ranks_operations(OPERATIONS, OPERATIONS_SHORT);
    for (int i = 0; i < operations; i++) {
        const struct operation o = operation_make(&random, ranks->size);
        if (operation_run(&life, &o) && (i % CHECK_EVERY || all_empty(&life)))
            continue;
        char text[256];
        snprintf(text, sizeof text, "operation %d: %s of %s, root %d%s%s%s: %s", i,
                 tutti_collective_name(o.collective), tutti_dtype_name(o.dtype), o.root,
                 o.in_place ? ", in place" : "", o.dense ? ", dense" : "",
                 o.overlaps ? ", overlapping" : "", tutti_last_error());
        return ranks_fail(ranks, rank, __FILE__, __LINE__, text);
    }
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
    struct pool *pool = pool_create(size, NULL, 11);
    struct ranks *ranks = ranks_create(size, strcmp(argv[1], "threads") == 0 ? 0 : size, 0);
    ranks->context = pool;
    const int failures = ranks_run(ranks, live);
    ranks_destroy(ranks);
    pool_destroy(pool);
    return failures ? 1 : 0;
}
