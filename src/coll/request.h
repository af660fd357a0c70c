/* SPDX-License-Identifier: MIT */
/* What api.c hands to a back end. */
#ifndef TUTTI_REQUEST_H
#define TUTTI_REQUEST_H

#include "base/layout.h"
#include "base/op.h"
#include "base/record_write.h"
#include "base/reduction.h"
#include "base/timeout_source.h"
#include "coll/choice.h"
#include "tutti/tutti.h"

/* One collective operation, checked and complete. Constant for the algorithms, except for the
 * fields that a transport sets. */
struct request {
    struct choice choice;
    const void *send;
    void *recv;
    size_t count;
    size_t bytes;
    reduce_fn *reduce;
    double scalar;
    uint64_t signature; /* signature.h; CUDA adds the algorithm to it */
    uint64_t subset;    /* of a barrier: its ranks as bits; 0: all ranks */
    int64_t timeout_ms; /* negative never ends */
    uint32_t parameter; /* hash of the scalar or of the subset, 0 if none */
    uint32_t flags;     /* enum tutti_call_flags */
    uint32_t element_bytes;
    enum timeout_source timeout_source;
    enum tutti_dtype dtype;
    enum op_kind op;
    /* Symmetric memory: where the operands lie in their allocations, and every rank's base of
     * those. */
    struct layout_operands operands;
    void *const *send_buffers; /* NULL: offsets are addresses of this process */
    void *const *recv_buffers;
    /* Where the operation is recorded. */
    struct record_page *page;   /* NULL: nowhere */
    uint64_t *numbers;          /* counts the page's entries */
    struct record_entry *entry; /* set by request_started() */
    bool quick; /* set by the transport: no wait was slow, so the clock is not read again */
};

/* How an operation runs: one constant of the back end for each way. */
struct transport {
    /* Takes the operation's number, records its start by request_started(), runs it to its end;
     * CUDA: enqueues it. An operation that is refused is not recorded. */
    enum tutti_status (*run)(void *group, struct request *request, tutti_stream_t stream);
    /* CPU: moves the data of an announced operation through the arenas; NULL: part of `run`. */
    enum tutti_status (*copies)(void *group, const struct request *request);
};

static inline void request_started(struct request *request, uint64_t sequence,
                                   enum record_kind kind, enum record_state state)
{
    const struct recorder_operation operation = {.sequence = sequence,
                                                 .signature = request->signature,
                                                 .parameter = request->parameter,
                                                 .kind = kind};
    if (request->page)
        request->entry =
            record_start(request->page, ++*request->numbers, &operation, state, ticks_now());
}

#endif
