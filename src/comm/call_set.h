/* SPDX-License-Identifier: MIT */
/* The calls that a thread makes between tutti_group_start() and tutti_group_end(). */
#ifndef TUTTI_COMM_CALL_SET_H
#define TUTTI_COMM_CALL_SET_H

#include "base/order.h"
#include "coll/request.h"

#include <stdbool.h>

struct call_set;
struct tutti_comm;

/* How many threads of the process collect calls. Relaxed: a thread looks for its own set. */
extern uint32_t call_sets_open;

struct call_set *call_set_find(void) __attribute__((cold));

/* The set that collects this thread's calls. NULL: the thread makes its calls at once. */
static inline struct call_set *call_set_of_thread(void)
{
    return __builtin_expect(order_load_relaxed_u32(&call_sets_open) == 0, 1) ? NULL
                                                                             : call_set_find();
}

/* As call_enter(), but the communicator stays entered while the set has a call on it. If the caller
 * may not enter, returns the status of call_refuse_entry(), and the set will start none of its
 * calls. */
enum tutti_status call_set_enter(struct call_set *set, struct tutti_comm *comm, const char *call);
/* Ends a call that has entered. `status` is the result of its checks. If it is OK, the request is
 * complete and choice.run is its algorithm. If not, the call is recorded as refused, with the
 * signature, and the set will start none of its calls. Returns `status`, or NO_MEMORY. */
enum tutti_status call_set_add(struct call_set *set, struct tutti_comm *comm,
                               const struct request *request, tutti_stream_t stream,
                               uint64_t signature, enum tutti_status status);

#endif
