/* SPDX-License-Identifier: MIT */
/*
 * Blocks of every collective, moved or reduced, with the bits that are special to kernels: all
 * ones, and words that differ from these in the last bits only (src/cuda/kernels/lines.cuh). Sizes
 * that each kernel serves, whole and not, on addresses that are aligned and not, in place and not.
 * All-reduces of integers and bool by each operation and each kernel that has them, in many turns.
 *
 * usage: test_bits threads|processes WORLD_SIZE
 */
#include "../../tools/collective_call.h"
#include "base/dtype.h"
#include "device.h"
#include "forced.h"
#include "ranks.h"
#include "reference.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    WORD = 16,            /* bytes of a line */
    ESCAPES = 33,         /* special lines, and one that is not */
    MOST_BYTES = 5 << 20, /* of a block */
    MOST_SHORT = 700 << 10,
    INTEGERS_BYTES = 128 << 10,
    SHIFT = 3,
    ROOM = 8 * WORD, /* for shifts, and elements that are whole */
};

/* What the block from one rank to another has. */
enum pattern { ALL_ONES, IN_TURN, MIXED, ONE_OF_EACH, PATTERNS };

/* The number that stands in the last eight bytes of a line, inverted; the first eight are ones. */
static uint64_t special(enum pattern pattern, uint64_t line, int from, int to)
{
    const uint64_t hash =
        (line + (uint64_t)from * 77 + (uint64_t)to * 31) * UINT64_C(0x9e3779b97f4a7c15) >> 33;
    if (pattern == IN_TURN)
        return line % ESCAPES;
    if (pattern == MIXED)
        return hash % 3 ? hash : hash % ESCAPES;
    if (pattern == ONE_OF_EACH) /* one of each 32 lines looks empty, the others are escapes */
        return line % 32 ? line % 32 + (line % 32 >= (unsigned)(from + to) % 32) : 0;
    return 0;
}

static void block_fill(unsigned char *block, size_t bytes, enum pattern pattern, int from, int to)
{
    for (size_t at = 0; at < bytes; at += WORD) {
        const uint64_t words[2] = {UINT64_MAX, ~special(pattern, at / WORD, from, to)};
        memcpy(block + at, words, bytes - at < WORD ? bytes - at : WORD);
    }
}

static bool block_is(const unsigned char *block, size_t bytes, enum pattern pattern, int from,
                     int to, unsigned char *expected)
{
    block_fill(expected, bytes, pattern, from, to);
    return memcmp(block, expected, bytes) == 0;
}

struct life {
    struct ranks *ranks;
    tutti_comm_t *comm;
    int rank, size;
    unsigned char *send, *recv, *expected, *inputs;
};

struct trial {
    enum tutti_collective collective;
    size_t bytes; /* of a block */
    int root;
    enum pattern pattern;
    bool in_place;
    enum tutti_dtype dtype; /* UINT8 if nothing is reduced */
    tutti_op_t op;
    size_t shift; /* of both addresses */
    int forced;   /* FORCED(a kernel), or 0 */
};

static bool reduces(const struct trial *t)
{
    return t->collective == TUTTI_COLLECTIVE_REDUCE_SCATTER ||
           t->collective == TUTTI_COLLECTIVE_REDUCE || t->collective == TUTTI_COLLECTIVE_ALL_REDUCE;
}

/* Whether a rank's operand has a block for each rank. */
static bool sends_to_each(const struct trial *t)
{
    return t->collective == TUTTI_COLLECTIVE_ALL_TO_ALL ||
           t->collective == TUTTI_COLLECTIVE_SCATTER ||
           t->collective == TUTTI_COLLECTIVE_REDUCE_SCATTER;
}

static bool receives_from_each(const struct trial *t)
{
    return t->collective == TUTTI_COLLECTIVE_ALL_TO_ALL ||
           t->collective == TUTTI_COLLECTIVE_ALL_GATHER || t->collective == TUTTI_COLLECTIVE_GATHER;
}

static bool receives(const struct trial *t, int rank)
{
    return (t->collective != TUTTI_COLLECTIVE_GATHER && t->collective != TUTTI_COLLECTIVE_REDUCE) ||
           rank == t->root;
}

static bool is_reduced(const struct life *life, const struct trial *t, const unsigned char *recv)
{
    const void *inputs[TUTTI_MAX_RANKS];
    const int to = sends_to_each(t) ? life->rank : 0;
    for (int r = 0; r < life->size; r++) {
        unsigned char *input = life->inputs + (size_t)r * t->bytes;
        block_fill(input, t->bytes, t->pattern, r, to);
        inputs[r] = input;
    }
    reference_reduce(life->expected, inputs, life->size, t->bytes / tutti_dtype_size(t->dtype),
                     t->dtype, t->op, 0);
    return memcmp(recv, life->expected, t->bytes) == 0;
}

static bool is_moved(const struct life *life, const struct trial *t, const unsigned char *recv)
{
    bool well = true;
    for (int from = 0; from < life->size && well; from++)
        well = block_is(recv + (receives_from_each(t) ? (size_t)from * t->bytes : 0), t->bytes,
                        t->pattern, receives_from_each(t) ? from : t->root,
                        sends_to_each(t) ? life->rank : 0, life->expected);
    return well;
}

/* Returns false, with a text, if a block is wrong. */
static bool run(const struct life *life, const struct trial *t, char *text, size_t text_bytes)
{
    const int rank = life->rank, size = life->size;
    const bool to_each = sends_to_each(t), from_each = receives_from_each(t);
    unsigned char *recv = life->recv + t->shift, *send = life->send + t->shift;
    const size_t own = (size_t)rank * t->bytes, count = t->bytes / tutti_dtype_size(t->dtype);
    if (t->in_place && to_each == from_each)
        recv = send;
    else if (t->in_place && from_each && receives(t, rank))
        send = recv + own;
    else if (t->in_place && to_each &&
             (rank == t->root || t->collective != TUTTI_COLLECTIVE_SCATTER))
        recv = send + own;
    if (receives(t, rank))
        memset(recv, 0, t->bytes * (from_each ? (size_t)size : 1));
    for (int to = 0; to < (to_each ? size : 1); to++)
        block_fill(send + (size_t)to * t->bytes, t->bytes, t->pattern, rank, to_each ? to : 0);
    const struct tutti_call_options options = {.struct_size = sizeof options,
                                               .algo = forced_algo(life->comm, t->forced),
                                               .max_blocks = t->forced ? 1 + rank : 0};
    const enum tutti_status status = collective_call(t->collective, send, recv, &count, t->dtype,
                                                     t->op, t->root, life->comm, &options);
    const bool well = status == TUTTI_OK &&
                      (!receives(t, rank) || (reduces(t) ? is_reduced : is_moved)(life, t, recv));
    snprintf(text, text_bytes,
             "%s of %zu bytes, root %d, pattern %d%s, shifted by %zu, %s of %s: %s",
             tutti_collective_name(t->collective), t->bytes, t->root, (int)t->pattern,
             t->in_place ? ", in place" : "", t->shift, reduces(t) ? tutti_op_name(t->op) : "copy",
             tutti_dtype_name(t->dtype), status == TUTTI_OK ? "wrong" : tutti_last_error());
    return well;
}

/* Sets the n-th pair of a dtype and an operation that has no scalar. */
static void set_reduction(struct trial *t, size_t n)
{
    do {
        t->dtype = (enum tutti_dtype)(n % TUTTI_DTYPE_COUNT);
        t->op = (tutti_op_t)(uintptr_t)(n / TUTTI_DTYPE_COUNT % REFERENCE_OPS);
        n++;
    } while (!t->op || t->op == TUTTI_PREMUL_SUM || !reference_has(t->dtype, t->op));
}

/* The i-th trial. A reduction has whole elements, and addresses that are aligned to these only. */
static struct trial trial_make(enum tutti_collective collective, size_t bytes, enum pattern pattern,
                               size_t i, int size)
{
    struct trial t = {.collective = collective,
                      .bytes = bytes,
                      .root = (int)(i % (size_t)size),
                      .pattern = pattern,
                      .in_place = i % 3 == 1,
                      .dtype = TUTTI_UINT8,
                      .shift = i % 4 == 3 ? SHIFT : 0};
    if (!reduces(&t))
        return t;
    set_reduction(&t, i);
    const size_t width = tutti_dtype_size(t.dtype);
    t.bytes = (bytes + width - 1) / width * width;
    t.shift = t.shift ? tutti_dtype_size(reference_component(t.dtype)) : 0;
    return t;
}

/* Every integer dtype by every operation: each kernel in turn, in one block, with each pattern in
 * turn. */
static bool integers(const struct life *life, char *text, size_t text_bytes)
{
    static const int kernels[] = {FORCED(ONE_SHOT_LL), FORCED(REDUCE_LINES),
                                  FORCED(REDUCE_PIPELINED), FORCED(TWO_SHOT_RELAYED)};
    bool well = life->size > 1 && device_is_cuda();
    for (size_t i = 0, n = 0; i < (size_t)TUTTI_DTYPE_COUNT * REFERENCE_OPS && well; i++) {
        struct trial t = trial_make(TUTTI_COLLECTIVE_ALL_REDUCE, INTEGERS_BYTES - 5,
                                    (enum pattern)(i / 3 % PATTERNS), i, life->size);
        if (dtype_is_float(reference_component(t.dtype)))
            continue;
        t.forced = kernels[n++ % 4];
        well = run(life, &t, text, text_bytes);
    }
    return well || life->size == 1 || !device_is_cuda();
}

static int live(struct ranks *ranks, int rank, tutti_store_t *store)
{
    static const enum tutti_collective which[] = {
        TUTTI_COLLECTIVE_ALL_GATHER,     TUTTI_COLLECTIVE_ALL_TO_ALL, TUTTI_COLLECTIVE_BROADCAST,
        TUTTI_COLLECTIVE_GATHER,         TUTTI_COLLECTIVE_REDUCE,     TUTTI_COLLECTIVE_SCATTER,
        TUTTI_COLLECTIVE_REDUCE_SCATTER, TUTTI_COLLECTIVE_ALL_REDUCE};
    static const size_t sizes[] = {1,     8,      15,     16,      513,           4096,      4099,
                                   40000, 131072, 262151, 1 << 20, (1 << 20) + 5, MOST_BYTES};
    const size_t most = ranks_short() ? MOST_SHORT : MOST_BYTES;
    const size_t room = (size_t)ranks->size * most + ROOM;
    struct life life = {.ranks = ranks, .rank = rank, .size = ranks->size};
    char text[400];
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &life.comm) == TUTTI_OK);
    RANKS_CHECK((life.send = malloc(room)) && (life.recv = malloc(room)) &&
                (life.inputs = malloc(room)) && (life.expected = malloc(room)));
    for (size_t s = 0, i = 0; s < sizeof sizes / sizeof *sizes && sizes[s] <= most; s++)
        for (int pattern = 0; pattern < PATTERNS; pattern++)
            for (size_t c = 0; c < sizeof which / sizeof *which; c++, i++) {
                const struct trial t =
                    trial_make(which[c], sizes[s], (enum pattern)pattern, i, ranks->size);
                if (!run(&life, &t, text, sizeof text))
                    return ranks_fail(ranks, rank, __FILE__, __LINE__, text);
            }
    if (!integers(&life, text, sizeof text))
        return ranks_fail(ranks, rank, __FILE__, __LINE__, text);
    RANKS_CHECK(tutti_barrier(life.comm, NULL, 0, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    tutti_comm_destroy(life.comm);
    free(life.send);
    free(life.recv);
    free(life.inputs);
    free(life.expected);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    const int size = atoi(argv[2]), skip = ranks_skip(size);
    if (skip)
        return skip;
    struct ranks *ranks = ranks_create(size, strcmp(argv[1], "threads") == 0 ? 0 : size, 0);
    const int failures = ranks_run(ranks, live);
    ranks_destroy(ranks);
    return failures ? 1 : 0;
}
