/* SPDX-License-Identifier: MIT */
/* What api.c hands to an algorithm. */
#ifndef TUTTI_REQUEST_H
#define TUTTI_REQUEST_H

#include "base/layout.h"
#include "base/op.h"
#include "base/reduction.h"
#include "base/timeout_source.h"
#include "tutti/tutti.h"

/* One collective operation, checked and complete; constant from here on. */
struct request {
    const void *send;
    void *recv;
    size_t count;
    size_t bytes;
    reduce_fn *reduce;
    double scalar;
    uint64_t signature; /* signature.h */
    int64_t timeout_ms; /* negative never ends */
    uint32_t parameter; /* hash of the scalar, 0 if none */
    uint32_t flags;     /* enum tutti_call_flags */
    uint32_t element_bytes;
    enum timeout_source timeout_source;
    enum tutti_algo algo;
    enum tutti_dtype dtype;
    enum op_kind op;
    /* Symmetric memory: where the operands lie in their allocations, and every rank's base of
     * those. */
    struct layout_operands operands;
    void *const *send_buffers; /* NULL: offsets are addresses of this process */
    void *const *recv_buffers;
};

#endif
