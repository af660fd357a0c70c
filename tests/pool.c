/* SPDX-License-Identifier: MIT */
#include "pool.h"

#include "../tools/collective.h"
#include "random.h"
#include "reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WIDEST = 16 };

struct pool {
    int size;
    /* One period each. */
    unsigned char inputs[TUTTI_DTYPE_COUNT][TUTTI_MAX_RANKS][POOL_PERIOD * WIDEST];
    unsigned char results[TUTTI_DTYPE_COUNT][REFERENCE_OPS][POOL_PERIOD * WIDEST];
};

uint64_t pool_random(uint64_t *state)
{
    return random_next(state);
}

/* Mostly plain numbers, whose sums need rounding, and a few of every odd kind. */
static double real_make(uint64_t *state)
{
    static const double odd[] = {0.0,    -0.0,  INFINITY, -INFINITY, NAN,   1e-40,
                                 -3e-42, 1e-45, 3e38,     -448,      60000, 6e-8};
    uint64_t random = pool_random(state);
    if (random % 16 == 0)
        return odd[(random >> 8) % (sizeof odd / sizeof *odd)];
    double unit = (double)(random >> 11) / (double)(UINT64_C(1) << 53);
    return ldexp(unit - 0.5, (int)(random % 7));
}

static void element_make(enum tutti_dtype dtype, uint64_t *state, unsigned char *to)
{
    if (reference_component(dtype) != dtype) {
        dtype = reference_component(dtype);
        element_make(dtype, state, to);
        to += tutti_dtype_size(dtype);
    }
    uint64_t bits = pool_random(state);
    double value = real_make(state);
    float single = (float)value;
    if (dtype == TUTTI_FLOAT64)
        memcpy(&bits, &value, sizeof bits);
    else if (dtype == TUTTI_FLOAT32)
        memcpy(&bits, &single, sizeof single);
    else if (dtype <= TUTTI_FLOAT8_E5M2)
        bits = reference_encode(dtype, value);
    else if (dtype == TUTTI_BOOL)
        bits = bits % 8 == 0 ? bits >> 8 : bits & 1; /* any byte but 0 is true */
    memcpy(to, &bits, tutti_dtype_size(dtype));
}

static void results_make(struct pool *pool, const int *leaf_order, enum tutti_dtype dtype)
{
    const void *in[TUTTI_MAX_RANKS];
    for (int leaf = 0; leaf < pool->size; leaf++)
        in[leaf] = pool->inputs[dtype][leaf_order ? leaf_order[leaf] : leaf];
    for (int op = 1; op < REFERENCE_OPS; op++)
        if (reference_has(dtype, (tutti_op_t)(uintptr_t)op))
            reference_reduce(pool->results[dtype][(uintptr_t)op], in, pool->size, POOL_PERIOD,
                             dtype, (tutti_op_t)(uintptr_t)op, POOL_SCALAR);
}

void pool_scalar(enum tutti_dtype dtype, void *to)
{
    const enum tutti_dtype component = reference_component(dtype);
    const uint64_t bits = reference_is_float(component) ? reference_bits(component, POOL_SCALAR)
                                                        : (uint64_t)(int64_t)POOL_SCALAR;
    memcpy(to, &bits, tutti_dtype_size(component));
}

struct pool *pool_create(int size, const int *leaf_order, uint64_t seed)
{
    struct pool *pool = calloc(1, sizeof *pool);
    if (!pool)
        abort();
    pool->size = size;
    for (int d = 0; d < TUTTI_DTYPE_COUNT; d++) {
        size_t width = tutti_dtype_size((enum tutti_dtype)d);
        for (int r = 0; r < size; r++)
            for (size_t i = 0; i < POOL_PERIOD; i++)
                element_make((enum tutti_dtype)d, &seed, pool->inputs[d][r] + i * width);
        results_make(pool, leaf_order, (enum tutti_dtype)d);
    }
    return pool;
}

void pool_destroy(struct pool *pool)
{
    free(pool);
}

/* Bytes of the run from byte `at` of an operand to the end of the period or of the operand. */
static size_t run_of(size_t at, size_t start, size_t bytes, size_t period, size_t *phase)
{
    *phase = (start + at) % period;
    return bytes - at < period - *phase ? bytes - at : period - *phase;
}

void pool_input(const struct pool *pool, int rank, enum tutti_dtype dtype, size_t offset,
                size_t count, void *operand)
{
    size_t width = tutti_dtype_size(dtype), bytes = count * width, run, phase;
    for (size_t at = 0; at < bytes; at += run) {
        run = run_of(at, offset * width, bytes, POOL_PERIOD * width, &phase);
        memcpy((char *)operand + at, pool->inputs[dtype][rank] + phase, run);
    }
}

/* Whether `bytes` bytes repeat the period from byte `start` on; *wrong is the first that does not.
 */
static bool repeats(const void *got, const unsigned char *period, size_t period_bytes, size_t start,
                    size_t bytes, size_t *wrong)
{
    size_t run, phase;
    for (size_t at = 0; at < bytes; at += run) {
        run = run_of(at, start, bytes, period_bytes, &phase);
        const unsigned char *bytes_got = (const unsigned char *)got + at;
        if (memcmp(bytes_got, period + phase, run) == 0)
            continue;
        size_t i = 0;
        while (bytes_got[i] == period[phase + i])
            i++;
        *wrong = at + i;
        return false;
    }
    return true;
}

bool pool_is_input(const struct pool *pool, int rank, enum tutti_dtype dtype, size_t offset,
                   size_t count, const void *operand)
{
    size_t width = tutti_dtype_size(dtype), wrong;
    return repeats(operand, pool->inputs[dtype][rank], POOL_PERIOD * width, offset * width,
                   count * width, &wrong);
}

bool pool_is_result(const struct pool *pool, enum tutti_dtype dtype, tutti_op_t op, size_t offset,
                    size_t count, const void *result, size_t *index)
{
    size_t width = tutti_dtype_size(dtype), wrong = 0;
    bool is = repeats(result, pool->results[dtype][(uintptr_t)op], POOL_PERIOD * width,
                      offset * width, count * width, &wrong);
    *index = wrong / width;
    return is;
}

/* ---- any collective -------------------------------------------------------------------------- */

/* The elements of the blocks of ranks below r. */
static size_t before(const struct pool_call *call, int r)
{
    size_t count = 0;
    for (int i = 0; i < r; i++)
        count += call->counts[i];
    return count;
}

size_t pool_send_count(const struct pool *pool, const struct pool_call *call)
{
    const struct collective *collective = &collectives[call->which];
    if (collective->send_at_root && call->rank != call->root)
        return 0;
    return collective->send_all ? before(call, pool->size) : call->counts[call->rank];
}

size_t pool_recv_count(const struct pool *pool, const struct pool_call *call)
{
    const struct collective *collective = &collectives[call->which];
    const size_t own = call->counts[call->rank];
    if (collective->recv_at_root && call->rank != call->root)
        return 0;
    if (!collective->recv_all)
        return own;
    return collective->send_all ? own * (size_t)pool->size : before(call, pool->size);
}

size_t pool_own_block(const struct pool_call *call)
{
    const struct collective *collective = &collectives[call->which];
    return collective->send_all != collective->recv_all ? before(call, call->rank) : 0;
}

/* The rank that sends block `block` of the result. */
static int sender_of(const struct pool *pool, const struct pool_call *call, int block)
{
    if (call->which == TUTTI_COLLECTIVE_SEND)
        return (call->rank + pool->size - 1) % pool->size;
    return collectives[call->which].send_at_root ? call->root : block;
}

bool pool_is_collective(const struct pool *pool, const struct pool_call *call, const void *result,
                        size_t *index)
{
    const struct collective *collective = &collectives[call->which];
    const size_t own = call->counts[call->rank], width = tutti_dtype_size(call->dtype);
    const size_t offset = call->offset + (collective->send_all ? before(call, call->rank) : 0);
    const int blocks = collective_recv_blocks(collective, pool->size);
    *index = 0;
    if (pool_recv_count(pool, call) == 0)
        return true;
    if (collective->reduces)
        return pool_is_result(pool, call->dtype, call->op, offset, own, result, index);
    const unsigned char *at = result;
    for (int r = 0; r < blocks; r++) {
        const size_t count = collective->send_all || blocks == 1 ? own : call->counts[r];
        if (!pool_is_input(pool, sender_of(pool, call, r), call->dtype, offset, count, at))
            return false;
        at += count * width;
    }
    return true;
}
