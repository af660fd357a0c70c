/* SPDX-License-Identifier: MIT */
/*
 * Inputs and expected results of reductions, made once a group. A pool is periodic: element i of an
 * operand that begins at `offset` is element (offset + i) mod POOL_PERIOD, so that a few expected
 * results, made by the scalar reference, serve operands of any length and no two operations need
 * to look alike.
 */
#ifndef TESTS_POOL_H
#define TESTS_POOL_H

#include "tutti/tutti.h"

#include <sys/types.h>

enum { POOL_PERIOD = 1021 }; /* a prime: no line, chunk or slot is a multiple of it */

/* The scalar of all premultiplied sums: a whole number, for integers have it, too. */
#define POOL_SCALAR (-3)

struct pool;

/* leaf_order may be NULL. Constant once made. */
struct pool *pool_create(int size, const int *leaf_order, uint64_t seed);
void pool_destroy(struct pool *pool);

/* Writes POOL_SCALAR as an element of the dtype, of a complex one as an element of its component.
 */
void pool_scalar(enum tutti_dtype dtype, void *to);
/* Writes the rank's operand. */
void pool_input(const struct pool *pool, int rank, enum tutti_dtype dtype, size_t offset,
                size_t count, void *operand);
/* Whether these bytes are that operand, or the result for it. *index is the first element that
 * differs. */
bool pool_is_input(const struct pool *pool, int rank, enum tutti_dtype dtype, size_t offset,
                   size_t count, const void *operand);
bool pool_is_result(const struct pool *pool, enum tutti_dtype dtype, tutti_op_t op, size_t offset,
                    size_t count, const void *result, size_t *index);

/* A rank's call of any collective in tools/collective.h. The blocks of an operand lie one after the
 * other, and have the lengths that collective_call() gives them. */
struct pool_call {
    enum tutti_collective which;
    int rank, root;
    enum tutti_dtype dtype;
    tutti_op_t op;
    size_t offset;        /* of each rank's input, whose blocks lie in the pool as in the operand */
    const size_t *counts; /* of each rank */
};

/* The elements of an operand; 0 if the rank does not have it. */
size_t pool_send_count(const struct pool *pool, const struct pool_call *call);
size_t pool_recv_count(const struct pool *pool, const struct pool_call *call);
/* Elements before the own block in the larger operand, with which the smaller one begins in place.
 */
size_t pool_own_block(const struct pool_call *call);
/* Whether it is the call's result on the rank. */
bool pool_is_collective(const struct pool *pool, const struct pool_call *call, const void *result,
                        size_t *index);

/* The next random number (splitmix64). */
uint64_t pool_random(uint64_t *state);

#endif
