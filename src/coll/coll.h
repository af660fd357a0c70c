/* SPDX-License-Identifier: MIT */
/*
 * The collectives: one row each. Only the algorithms in cpu/ and cuda/ have other code for one
 * collective.
 *
 * A call has `count` elements of a dtype: a block. An operand is one block, or one block for each
 * rank, in rank order. A v-form has blocks of different lengths, at offsets that the caller names.
 */
#ifndef TUTTI_COLL_H
#define TUTTI_COLL_H

#include "base/dtype.h"
#include "base/op.h"
#include "base/rank_set.h"
#include "base/signature.h"
#include "tutti/tutti.h"

/* Which ranks have an operand. */
enum coll_use { COLL_OF_ALL, COLL_OF_ROOT, COLL_OF_NONE };

enum coll_peer {
    COLL_NO_PEER,
    COLL_ROOT,   /* the root: the same on all ranks */
    COLL_PARTNER /* the other rank of a message; no other rank takes part */
};

struct coll {
    const char *call; /* the name of the public function, for messages */
    bool send_all;    /* the operand has a block for each rank */
    bool recv_all;
    bool reduces; /* takes an operation */
    bool varies;  /* a v-form */
    enum coll_peer peer;
    enum coll_use send, recv;
};

/* In the header, so that the compiler makes a copy of the checks for each collective. */
#define COLL_ROW(NAME, name, ...) [TUTTI_COLLECTIVE_##NAME] = {.call = "tutti_" #name, __VA_ARGS__}
static const struct coll coll_rows[] = {
    COLL_ROW(ALL_REDUCE, all_reduce, .reduces = true),
    COLL_ROW(BARRIER, barrier, .reduces = false),
    COLL_ROW(ALL_GATHER, all_gather, .recv_all = true),
    COLL_ROW(REDUCE_SCATTER, reduce_scatter, .send_all = true, .reduces = true),
    COLL_ROW(ALL_TO_ALL, all_to_all, .send_all = true, .recv_all = true),
    COLL_ROW(BROADCAST, broadcast, .peer = COLL_ROOT, .send = COLL_OF_ROOT),
    COLL_ROW(REDUCE, reduce, .reduces = true, .peer = COLL_ROOT, .recv = COLL_OF_ROOT),
    COLL_ROW(GATHER, gather, .recv_all = true, .peer = COLL_ROOT, .recv = COLL_OF_ROOT),
    COLL_ROW(SCATTER, scatter, .send_all = true, .peer = COLL_ROOT, .send = COLL_OF_ROOT),
    COLL_ROW(SEND, send, .peer = COLL_PARTNER, .recv = COLL_OF_NONE),
    COLL_ROW(RECV, recv, .peer = COLL_PARTNER, .send = COLL_OF_NONE),
    COLL_ROW(ALL_GATHER_V, all_gather_v, .recv_all = true, .varies = true),
    COLL_ROW(REDUCE_SCATTER_V, reduce_scatter_v, .send_all = true, .reduces = true, .varies = true),
    COLL_ROW(ALL_TO_ALL_V, all_to_all_v, .send_all = true, .recv_all = true, .varies = true),
    COLL_ROW(GATHER_V, gather_v, .recv_all = true, .varies = true, .peer = COLL_ROOT,
             .recv = COLL_OF_ROOT),
    COLL_ROW(SCATTER_V, scatter_v, .send_all = true, .varies = true, .peer = COLL_ROOT,
             .send = COLL_OF_ROOT),
    COLL_ROW(SPLIT, comm_split, .recv_all = true),
    COLL_ROW(ALL_REDUCE_RMS_NORM, all_reduce_rms_norm, .reduces = true),
};
#undef COLL_ROW

/* Whether a collective has a root. The value may be no collective. */
static inline bool coll_is_rooted(enum tutti_collective collective)
{
    return (size_t)collective < sizeof coll_rows / sizeof *coll_rows &&
           coll_rows[collective].peer == COLL_ROOT;
}

static inline bool coll_varies(enum tutti_collective collective)
{
    return (size_t)collective < sizeof coll_rows / sizeof *coll_rows &&
           coll_rows[collective].varies;
}

/* Whether all ranks of a v-form pass the same counts, whose hash is its parameter. */
static inline bool coll_has_common_counts(enum tutti_collective collective)
{
    return coll_varies(collective) && !coll_rows[collective].peer &&
           coll_rows[collective].send_all != coll_rows[collective].recv_all;
}

/* Whether a collective of all ranks only moves blocks, of one length. */
static inline bool coll_moves(enum tutti_collective collective)
{
    const struct coll *coll = &coll_rows[collective];
    return (coll->send_all || coll->recv_all || coll->peer == COLL_ROOT) && !coll->reduces &&
           !coll->varies && collective != TUTTI_COLLECTIVE_SPLIT;
}

/* The blocks of an operand of a v-form: a count and a displacement for each rank, in elements.
 * displacements is NULL if each block follows the previous one. The entries of both arrays are of
 * size_t, or, if is_narrow, of int32_t. */
struct coll_blocks {
    const void *counts, *displacements;
    bool is_narrow;
};

static inline size_t coll_entry_bytes(const struct coll_blocks *blocks)
{
    return blocks->is_narrow ? sizeof(int32_t) : sizeof(size_t);
}

/* Entry b of one of the arrays. A negative one is too large for any memory. */
static inline size_t coll_entry(const struct coll_blocks *blocks, const void *array, int b)
{
    return blocks->is_narrow ? (size_t)((const int32_t *)array)[b] : ((const size_t *)array)[b];
}

static inline size_t coll_block_count(const struct coll_blocks *blocks, int b)
{
    return coll_entry(blocks, blocks->counts, b);
}

/* What TUTTI_CALL_DEVICE_COUNTS adds to a v-form, in elements. */
struct coll_limits {
    size_t most; /* of a block; 0: the call has no such flag */
    size_t send_extent, recv_extent;
};

/* The first element of block b. Called for each block in turn, with *next 0 before the first one.
 */
static inline size_t coll_block_start(const struct coll_blocks *blocks, int b, size_t *next)
{
    const size_t start =
        blocks->displacements ? coll_entry(blocks, blocks->displacements, b) : *next;
    *next += coll_block_count(blocks, b);
    return start;
}

/* The arguments of a call. `op`: as op_known() returned it; NULL unless the collective reduces. */
struct coll_args {
    const void *send;
    void *recv;
    size_t count; /* of a block; in a v-form of the operand that is one block */
    enum tutti_dtype dtype;
    tutti_op_t op;
    int peer;                                    /* the root, or the other rank of a message */
    struct coll_blocks send_blocks, recv_blocks; /* of a v-form's operands with many blocks */
    struct coll_limits limits;
};

/* The arguments of a call that is no v-form. */
static inline struct coll_args coll_args_make(const void *send, void *recv, size_t count,
                                              enum tutti_dtype dtype, tutti_op_t op, int peer)
{
    return (struct coll_args){
        .send = send, .recv = recv, .count = count, .dtype = dtype, .op = op, .peer = peer};
}

static inline size_t coll_send_blocks(const struct coll *coll, int world_size)
{
    return coll->send_all ? (size_t)world_size : 1;
}

static inline size_t coll_recv_blocks(const struct coll *coll, int world_size)
{
    return coll->recv_all ? (size_t)world_size : 1;
}

/* The first thing that is wrong with a call. */
enum coll_error {
    COLL_GOOD,
    COLL_DTYPE,
    COLL_OP,
    COLL_UNDEFINED,
    COLL_SCALAR,
    COLL_BAD_PEER,
    COLL_COUNT,
    COLL_NULL,
    COLL_ALIGNMENT,
    COLL_OVERLAP,
    COLL_NO_COUNTS, /* this one and the following: only in v-forms */
    COLL_OWN_COUNT, /* the rank's own block has two lengths */
    COLL_OUTPUTS_OVERLAP,
    COLL_ABOVE_MOST, /* the last two: only with limits */
    COLL_BEYOND_EXTENT,
};

/* Checks a call without its operands. `width`: dtype_bytes(args->dtype). */
static inline enum coll_error coll_kind_check(const struct coll *coll, const struct coll_args *args,
                                              size_t width)
{
    if (!width)
        return COLL_DTYPE;
    if (coll->reduces && !op_kind(args->op))
        return COLL_OP;
    if (coll->reduces && !op_serves(op_kind(args->op), args->dtype))
        return COLL_UNDEFINED;
    if (coll->reduces && op_kind(args->op) == OP_PREMUL_SUM &&
        !op_has_scalar(args->op, args->dtype))
        return COLL_SCALAR;
    if (coll->varies) /* coll_blocks_check() */
        return COLL_GOOD;
    return args->count > SIGNATURE_COUNT_MAX || args->count > SIZE_MAX / WORLD_RANKS / width
               ? COLL_COUNT
               : COLL_GOOD;
}

/* Whether the rank has an operand of that use. */
static inline bool coll_has(enum coll_use use, int rank, int root)
{
    return use == COLL_OF_ALL || (use == COLL_OF_ROOT && rank == root);
}

/* `address`: that of one operand, or the bitwise or of several. */
static inline bool coll_is_misaligned(uintptr_t address, enum tutti_dtype dtype, size_t width)
{
    return address & ((width >> dtype_is_complex(dtype)) - 1);
}

/* The elements of a rank's own block in a v-form. The counts must not be NULL. */
static inline size_t coll_own_count(const struct coll *coll, const struct coll_args *args, int rank)
{
    const bool from_counts = coll->send_all && coll->send == COLL_OF_ALL;
    return from_counts ? coll_block_count(&args->send_blocks, rank) : args->count;
}

/* The first thing that is wrong with the operands of a v-form. */
enum coll_error coll_blocks_check(const struct coll *coll, const struct coll_args *args, int rank,
                                  int world_size);

/* An operation is in place if both operands have the same address, or, if only one has a block for
 * each rank, if the other is the rank's own block in it. Inlined, so that each collective has its
 * own check. */
static inline __attribute__((always_inline)) enum coll_error
coll_check(const struct coll *coll, const struct coll_args *args, size_t width, int rank,
           int world_size)
{
    const enum coll_error error = coll_kind_check(coll, args, width);
    if (error)
        return error;
    if (coll->peer && ((unsigned)args->peer >= (unsigned)world_size ||
                       (coll->peer == COLL_PARTNER && args->peer == rank)))
        return COLL_BAD_PEER;
    if (coll->varies)
        return coll_blocks_check(coll, args, rank, world_size);
    if (!args->count)
        return COLL_GOOD;
    const size_t block = args->count * width;
    const bool sends = coll_has(coll->send, rank, args->peer);
    const bool receives = coll_has(coll->recv, rank, args->peer);
    const uintptr_t send = sends ? (uintptr_t)args->send : 0;
    const uintptr_t recv = receives ? (uintptr_t)args->recv : 0;
    const size_t own = coll->send_all != coll->recv_all ? block * (size_t)rank : 0;
    if ((sends && !send) || (receives && !recv))
        return COLL_NULL;
    if (coll_is_misaligned(send | recv, args->dtype, width))
        return COLL_ALIGNMENT;
    if (!sends || !receives)
        return COLL_GOOD;
    if (coll->recv_all ? send == recv + own : recv == send + own)
        return COLL_GOOD;
    return send < recv + block * coll_recv_blocks(coll, world_size) &&
                   recv < send + block * coll_send_blocks(coll, world_size)
               ? COLL_OVERLAP
               : COLL_GOOD;
}

/* Checks a v-form whose counts are in memory of the device: all but the contents of the arrays.
 * Sets the error's message. Returns INVALID. */
enum tutti_status coll_counted_check(const struct coll *coll, const struct coll_args *args,
                                     int rank, int world_size);

/* Sets the error's message, which begins with `call` if that is not NULL. Returns INVALID. `send`:
 * the caller's name for the first operand. */
enum tutti_status coll_explain(const char *call, const struct coll *coll,
                               const struct coll_args *args, enum coll_error error, int rank,
                               int world_size, const char *send);

#endif
