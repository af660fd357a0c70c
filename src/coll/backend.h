/* SPDX-License-Identifier: MIT */
/* What a device offers to communicators. `group` is the back end's own: struct cpu_group or struct
 * cuda_group. */
#ifndef TUTTI_BACKEND_H
#define TUTTI_BACKEND_H

#include "coll/request.h"

struct backend {
    /* How an all-reduce runs: a pure function of the call and of what the ranks have agreed on.
     * CUDA returns INVALID if what is forced does not serve the call. */
    enum tutti_status (*choose)(const void *group, const struct choice_call *call,
                                struct choice *choice);
    const struct transport *barrier;
    /* The number of the last operation that was begun, or enqueued: the caller's own. */
    uint64_t (*sequence)(const void *group);
    /* The fault that stands: OK when there is none. From any thread. */
    enum tutti_status (*status)(void *group, struct tutti_fault *fault);
};

extern const struct backend cpu_backend, cuda_backend;

#endif
