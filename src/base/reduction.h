/* SPDX-License-Identifier: MIT */
/* A call of a reduction. Each back end has its own reductions; they give the same bits. */
#ifndef TUTTI_REDUCTION_H
#define TUTTI_REDUCTION_H

#include "tutti/tutti.h"

struct reduce_call {
    void *out;  /* may equal one of `in`, or be disjoint from all else */
    void *copy; /* NULL, or a second place for the same result, likewise */
    const void *const *in;
    int n;         /* 1 to TUTTI_MAX_RANKS inputs, each aligned to the dtype alone */
    size_t count;  /* elements, from 0 */
    double scalar; /* PREMUL_SUM: factor of each input, rounded to the accumulation type first */
    int divisor;   /* AVG: the world size */
    /* Bits of one word: the shortest way asks for none of them, in one test. */
    unsigned partials : 2;    /* of n inputs, the first so many: 0, 1, or 2 of 2; elements else */
    unsigned out_partial : 1; /* neither rounded nor divided; partial inputs and outputs are aligned
                              to the accumulation type */
    unsigned stream_out : 1;  /* non-temporal stores to out (the caller: order_drain_streams()) */
    unsigned stream_copy : 1; /* likewise to copy */
    unsigned ahead : 1; /* another core has the lines of out, which is one of two inputs: with a
                           copy, asks for them as lines to write before they are read */
};

/* To be called between reduce_env_begin() and reduce_env_end() if the dtype is a float. A few
 * nanoseconds for a few elements of up to four inputs without copy and streams. */
typedef void reduce_fn(const struct reduce_call *call);

#endif
