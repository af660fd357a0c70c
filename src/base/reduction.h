/* SPDX-License-Identifier: MIT */
/* A call of a reduction. Each back end has its own reductions; they give the same bits. */
#ifndef TUTTI_REDUCTION_H
#define TUTTI_REDUCTION_H

#include "base/op.h"
#include "base/ranks.h"
#include "tutti/tutti.h"

struct reduce_call {
    void *out;  /* may equal one of `in`, or be disjoint from all else */
    void *copy; /* NULL, or a second output of the same result, under the same rule */
    const void *const *in;
    int n;                  /* 1 to NODE_RANKS inputs, each aligned to the dtype alone */
    size_t count;           /* elements, from 0 */
    union op_scalar scalar; /* PREMUL_SUM: factor of each input */
    int divisor;            /* AVG: the world size */
    /* The input to read first, from 0. The order of the reads does not change the result. Ranks
     * that begin with different inputs do not read one rank's memory at the same time. */
    int begin;
    /* Bits of one word, so that one test finds that none of them is set. */
    unsigned partials : 2; /* how many of the first inputs are partial results: 0, 1, or 2 of 2 */
    unsigned out_partial : 1; /* the output is a partial result: neither rounded nor divided.
                              Partial results are aligned to the accumulation type */
    unsigned stream_copy : 1; /* non-temporal stores to copy (the caller: order_drain_streams()) */
    unsigned ahead : 1; /* out is one of two inputs, and another core has its lines. Where there is
                           a copy, prefetch these lines for writing before they are read */
};

/* For floats call it between reduce_env_begin() and reduce_env_end(). A few elements of up to four
 * inputs, without copy and streams, take a few nanoseconds. */
typedef void reduce_fn(const struct reduce_call *call);

#endif
