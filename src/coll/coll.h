/* SPDX-License-Identifier: MIT */
/*
 * The collectives: one row each. All else that concerns one collective is its algorithms, in cpu/
 * and cuda/.
 *
 * A call has `count` elements of a dtype: a block. An operand is one block, or one block for each
 * rank, in rank order.
 */
#ifndef TUTTI_COLL_H
#define TUTTI_COLL_H

#include "base/dtype.h"
#include "base/op.h"
#include "base/signature.h"
#include "tutti/tutti.h"

struct coll {
    const char *call; /* the name of the public function, for messages */
    bool send_all;    /* the operand has a block for each rank */
    bool recv_all;
    bool reduces; /* takes an operation */
};

/* In the header, so that the checks of each collective are compiled for it alone. */
static const struct coll coll_rows[] = {
    [TUTTI_COLLECTIVE_ALL_REDUCE] = {"tutti_all_reduce", false, false, true},
    [TUTTI_COLLECTIVE_BARRIER] = {"tutti_barrier", false, false, false},
    [TUTTI_COLLECTIVE_ALL_GATHER] = {"tutti_all_gather", false, true, false},
    [TUTTI_COLLECTIVE_REDUCE_SCATTER] = {"tutti_reduce_scatter", true, false, true},
};

/* What a caller gave. `op`: as op_known() returned it; NULL unless the collective reduces. */
struct coll_args {
    const void *send;
    void *recv;
    size_t count;
    enum tutti_dtype dtype;
    tutti_op_t op;
};

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
    COLL_COUNT,
    COLL_NULL,
    COLL_ALIGNMENT,
    COLL_OVERLAP,
};

/* Without a look at the operands. `width`: dtype_bytes(args->dtype). */
static inline enum coll_error coll_kind_check(const struct coll *coll, const struct coll_args *args,
                                              size_t width)
{
    if (!width)
        return COLL_DTYPE;
    if (coll->reduces && !op_kind(args->op))
        return COLL_OP;
    if (coll->reduces && !op_serves(op_kind(args->op), args->dtype))
        return COLL_UNDEFINED;
    return args->count > SIGNATURE_COUNT_MAX || args->count > SIZE_MAX / TUTTI_MAX_RANKS / width
               ? COLL_COUNT
               : COLL_GOOD;
}

/* In place is the same address, or, if only one operand has a block for each rank, the rank's own
 * block in it. Inlined, so that each collective has its own check. */
static inline __attribute__((always_inline)) enum coll_error
coll_check(const struct coll *coll, const struct coll_args *args, size_t width, int rank,
           int world_size)
{
    const enum coll_error error = coll_kind_check(coll, args, width);
    if (error || !args->count)
        return error;
    const size_t block = args->count * width;
    const uintptr_t send = (uintptr_t)args->send, recv = (uintptr_t)args->recv;
    const size_t own = coll->send_all != coll->recv_all ? block * (size_t)rank : 0;
    if (!send || !recv)
        return COLL_NULL;
    if ((send | recv) & (width - 1))
        return COLL_ALIGNMENT;
    if (coll->recv_all ? send == recv + own : recv == send + own)
        return COLL_GOOD;
    return send < recv + block * coll_recv_blocks(coll, world_size) &&
                   recv < send + block * coll_send_blocks(coll, world_size)
               ? COLL_OVERLAP
               : COLL_GOOD;
}

/* Sets the error's message, which begins with the name of the call if that is not NULL. Returns
 * INVALID. `send`: the name that the caller knows the first operand by. */
enum tutti_status coll_explain(const char *call, const struct coll *coll,
                               const struct coll_args *args, enum coll_error error, int world_size,
                               const char *send);

#endif
