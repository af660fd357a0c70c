/* SPDX-License-Identifier: MIT */
/* The request that comm/run.h hands to a back end, and the functions that run it. */
#ifndef TUTTI_REQUEST_H
#define TUTTI_REQUEST_H

#include "base/layout.h"
#include "base/op.h"
#include "base/rank_set.h"
#include "base/record_write.h"
#include "base/reduction.h"
#include "base/signature.h"
#include "base/timeout_source.h"
#include "coll/choice.h"
#include "coll/coll.h"
#include "tutti/tutti.h"

/* One collective operation, checked and complete. Constant for the algorithms, except for the
 * fields that an algorithm sets. */
struct request {
    struct choice choice;
    enum tutti_collective collective;
    enum tutti_dtype dtype; /* of an element; in a complex call a component is an element */
    enum op_kind op;
    bool send_all, recv_all; /* the operand has a block for each rank: coll.h */
    const void *send;
    void *recv;
    struct coll_blocks send_blocks, recv_blocks; /* set for a v-form only */
    struct coll_limits limits;                   /* the same */
    size_t count; /* elements of a block; in a v-form: numbers of this rank's own block */
    size_t bytes; /* of a block; in a v-form: of one such number, complex or real */
    union op_scalar scalar;
    bool scalar_in_memory;  /* of the device; else the caller's value */
    struct rank_set subset; /* the ranks of a barrier, or of a message; empty: all ranks */
    int64_t timeout_ms;     /* negative never ends */
    enum timeout_source timeout_source;
    uint32_t flags;         /* enum tutti_call_flags */
    int peer;               /* the root, or the other rank of a message; else undefined */
    uint32_t element_bytes; /* 0 for a barrier */
    reduce_fn *reduce;      /* NULL: the collective copies */
    uint64_t signature;     /* signature.h; CUDA adds the algorithm to it */
    uint32_t parameter; /* hash of the scalar, the counts or the subset, and the root; 0: none */
    /* Set if choice.zero_copy. Of operands in symmetric memory: their offsets in their allocations,
     * and the base addresses of each allocation on all ranks. */
    struct layout_operands operands;
    void *const *send_buffers; /* NULL: offsets are addresses of this process */
    void *const *recv_buffers;
    /* Whether the kernel can read `send`, and write `recv`, from another process. */
    bool shows_send, shows_recv;
    /* Where the operation is recorded. */
    struct record_page *page;   /* NULL: nowhere */
    uint64_t *numbers;          /* counts the page's entries */
    struct record_entry *entry; /* set by request_started() */
    bool quick; /* set by the algorithm: no wait was slow, so the clock is not read again */
};

/* Sets the ranks of a barrier, and their hash, which is the same on all ranks. */
static inline void request_set_subset(struct request *request, struct rank_set ranks)
{
    request->subset = ranks;
    request->parameter = 0;
    for (int i = 0; i < RANK_SET_WORDS; i++)
        request->parameter = signature_hash(ranks.words[i] ^ request->parameter);
}

/* The data that goes to rank r. */
static inline const unsigned char *request_sent(const struct request *request, int r)
{
    return (const unsigned char *)request->send +
           (request->send_all ? (size_t)r * request->bytes : 0);
}

/* Where the data from rank r goes, or the result of the reduction. */
static inline unsigned char *request_received(const struct request *request, int r)
{
    return (unsigned char *)request->recv + (request->recv_all ? (size_t)r * request->bytes : 0);
}

/* The bytes of an operand on one of `size` ranks, from its first to its last one, and the offset of
 * the first one. 0: the rank does not have the operand, or it is empty. Defined in coll.c. */
size_t request_span(const struct request *request, bool is_send, int rank, int size, size_t *first);

enum step_progress { STEP_BUSY, STEP_DONE };

/*
 * How an operation runs. start() takes the operation's number, records its start by
 * request_started() and publishes what it can; it does not wait. An operation that is refused is
 * not recorded. step() goes on as far as it can without a wait. It returns STEP_BUSY, or STEP_DONE
 * with the status in the state, which is state_bytes of memory, not initialised before start().
 *
 * run() calls start(), then steps and waits until the end. On CUDA it enqueues the operation, and
 * all others are NULL. run_several(), which may be NULL, enqueues up to `several` calls that
 * follow each other in a group as one operation; the choice and the time-out of the first one hold.
 */
struct algorithm {
    size_t state_bytes;
    enum tutti_status (*start)(void *group, struct request *request, void *state);
    enum step_progress (*step)(void *group, struct request *request, void *state);
    enum tutti_status (*run)(void *group, struct request *request, tutti_stream_t stream);
    /* Whether the operation sends messages of the lane PAIR, so that it is kept in order with
     * others that do: cpu/call_list.h. NULL: it does not. */
    bool (*sends)(const void *group, const struct request *request);
    /* Called after a started operation has failed. Returns once no thread of this process uses the
     * operands. NULL: none does. */
    void (*leave_failed)(void *group, const struct request *request, void *state);
    enum tutti_status (*run_several)(void *group, struct request *const *requests, int count,
                                     tutti_stream_t stream);
    int several;
};

/* The kind of an operation in the recorder. */
static inline enum record_kind request_kind(const struct request *request)
{
    return rank_set_empty(request->subset) ? RECORD_CALL : RECORD_SUBSET;
}

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
