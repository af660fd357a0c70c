/* SPDX-License-Identifier: MIT */
/*
 * Every value of every narrow float, with others of all kinds, through each operation of two ranks:
 * what is read, and how the result is rounded, is the reference's to the bit, on either device.
 */
#include "device.h"
#include "forced.h"
#include "pool.h"
#include "ranks.h"
#include "reference.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SPECIALS = 12, /* fractions of a dtype's codes: zeros, subnormals, ones, infinities, NaNs */
    RANDOMS = 20,
    SHORT_PARTNERS = 4,
};

static const enum tutti_dtype dtypes[] = {TUTTI_FLOAT16, TUTTI_BFLOAT16, TUTTI_FLOAT8_E4M3,
                                          TUTTI_FLOAT8_E5M2};
static const tutti_op_t ops[] = {TUTTI_SUM, TUTTI_PROD, TUTTI_MIN, TUTTI_MAX, TUTTI_AVG};
static const enum tutti_algo algos[] = {TUTTI_ALGO_ONE_SHOT, TUTTI_ALGO_TWO_SHOT};

/* The code of the number-th partner: all of them where there are but 256. */
static uint32_t partner(enum tutti_dtype dtype, int number, uint64_t *random)
{
    if (tutti_dtype_size(dtype) == 1)
        return (uint32_t)number;
    const uint32_t one = reference_encode(dtype, 1.0), inf = reference_encode(dtype, 1e30 * 1e30);
    const uint32_t specials[SPECIALS] = {0,       0x8000, 1,      one / 15, one,     one + 1,
                                         inf - 1, inf,    0x7fff, 0x8001,   one / 2, one | 0x8000};
    return number < SPECIALS ? specials[number] : (uint32_t)(pool_random(random) & 0xffff);
}

static void store_code(enum tutti_dtype dtype, void *to, size_t index, uint32_t code)
{
    if (tutti_dtype_size(dtype) == 1)
        ((uint8_t *)to)[index] = (uint8_t)code;
    else
        ((uint16_t *)to)[index] = (uint16_t)code;
}

/* All codes of rank 0 with one of rank 1, by each operation and, in turn, each algorithm. */
static int partner_run(struct ranks *ranks, int rank, tutti_comm_t *comm, enum tutti_dtype dtype,
                       uint32_t code, int number, void *const *buffers)
{
    const size_t width = tutti_dtype_size(dtype), count = (size_t)1 << (8 * width);
    const bool cuda = device_is_cuda();
    for (size_t i = 0; i < count; i++) {
        store_code(dtype, buffers[0], i, (uint32_t)i);
        store_code(dtype, buffers[1], i, code);
    }
    for (size_t o = 0; o < sizeof ops / sizeof *ops; o++) {
        struct tutti_call_options options = {.struct_size = sizeof options,
                                             .algo = algos[((size_t)number + o) % 2]};
        if (cuda)
            options.algo =
                forced_algo(comm, FORCED_KERNEL + (int)((size_t)number + o) % FORCED_TUNED);
        reference_reduce(buffers[2], (const void *const *)buffers, 2, count, dtype, ops[o], 0);
        RANKS_CHECK(tutti_all_reduce_with(buffers[rank], buffers[3], count, dtype, ops[o], comm,
                                          TUTTI_STREAM_DEFAULT, &options) == TUTTI_OK);
        if (memcmp(buffers[2], buffers[3], count * width) != 0) {
            fprintf(stderr, "%s, %s, with code %#x\n", tutti_dtype_name(dtype),
                    tutti_op_name(ops[o]), (unsigned)code);
            RANKS_CHECK(!"another result");
        }
    }
    return 0;
}

static int convert(struct ranks *ranks, int rank, tutti_store_t *store)
{
    tutti_comm_t *comm;
    void *buffers[4];
    uint64_t random = 7;
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    for (int b = 0; b < 4; b++) {
        buffers[b] = aligned_alloc(64, 2 << 16);
        RANKS_CHECK(buffers[b]);
    }
    for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++) {
        int partners = tutti_dtype_size(dtypes[d]) == 1 ? 256 : SPECIALS + RANDOMS;
        if (ranks_short())
            partners = SHORT_PARTNERS;
        for (int p = 0; p < partners; p++) {
            uint32_t code = partner(dtypes[d], p, &random);
            int failed = partner_run(ranks, rank, comm, dtypes[d], code, p, buffers);
            if (failed)
                return failed;
        }
    }
    for (int b = 0; b < 4; b++)
        free(buffers[b]);
    tutti_comm_destroy(comm);
    return 0;
}

int main(void)
{
    int skip = ranks_skip(2);
    if (skip)
        return skip;
    struct ranks *ranks = ranks_create(2, 0, 0);
    int failures = ranks_run(ranks, convert);
    ranks_destroy(ranks);
    return failures ? 1 : 0;
}
