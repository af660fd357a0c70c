/* SPDX-License-Identifier: MIT */
/* The begin and the end of every public call of a collective. */
#ifndef TUTTI_API_CALL_H
#define TUTTI_API_CALL_H

#include "base/invariant.h"
#include "base/order.h"
#include "comm/comm.h"
#include "ipc/fork.h"

/* One caller at a time, on a communicator that has met. Counts the call. If false, see
 * call_refuse_entry(). */
static inline bool call_enter(struct tutti_comm *comm)
{
    if (__builtin_expect(!comm || fork_detected(comm->epoch) || !comm->ready ||
                             order_exchange_u32(&comm->busy, 1), /* C1: pairs call_leave() */
                         0))
        return false;
    order_store_relaxed_u64(&comm->calls, comm->calls + 1);
    return true;
}

static inline void call_leave(struct tutti_comm *comm)
{
    invariant(order_load_relaxed_u32(&comm->busy) == 1);
    order_store_release_u32(&comm->busy, 0); /* C1 */
}

/* Says why a caller may not enter. */
enum tutti_status call_refuse_entry(struct tutti_comm *comm, const char *call);

/* Records a call that was refused. Returns `status`. */
__attribute__((cold)) enum tutti_status call_refused(struct tutti_comm *comm, uint64_t signature,
                                                     enum tutti_status status);

/* The end of an operation. The clock is not read again after a quick operation: it ended when its
 * last rank had started. */
static inline enum tutti_status call_ended(struct tutti_comm *comm, const struct request *request,
                                           enum tutti_status status)
{
    if (__builtin_expect(!request->entry, 0))
        return call_refused(comm, request->signature, status);
    if (comm->cuda) /* the stream runs it */
        return status;
    /* An operation that took a number and failed is not the last one that completed. */
    if (__builtin_expect(status != TUTTI_OK && rank_set_empty(request->subset), 0))
        comm->unfinished = true;
    recorder_end(request->entry, status == TUTTI_OK ? RECORD_DONE : RECORD_FAILED, status,
                 request_kind(request), request->quick && status == TUTTI_OK ? 0 : ticks_now());
    return status;
}

#endif
