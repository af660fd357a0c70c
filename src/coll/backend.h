/* SPDX-License-Identifier: MIT */
/* The functions of a device for communicators. `group` belongs to the back end: struct cpu_group or
 * struct cuda_group. */
#ifndef TUTTI_BACKEND_H
#define TUTTI_BACKEND_H

#include "coll/request.h"

struct backend {
    /* How a collective runs: a pure function of the call and of what the ranks have agreed on.
     * CUDA returns INVALID if the forced algorithm cannot run the call. */
    enum tutti_status (*choose)(const void *group, const struct choice_call *call,
                                struct choice *choice);
    const struct algorithm *barrier;
    /* The number of the last operation that this rank began or enqueued. */
    uint64_t (*sequence)(const void *group);
    /* The fault that stands: OK when there is none. Any thread may call it. */
    enum tutti_status (*status)(void *group, struct tutti_fault *fault);
    /* Lets the operations that were enqueued end, until the time-out (negative: none). Returns the
     * fault that stands, TIMEOUT, CONCURRENT, CUDA. */
    enum tutti_status (*finish)(void *group, int64_t timeout_ms);
    /* Writes lines of "key: value", as snprintf() does. May be NULL. */
    int (*describe)(const void *group, char *text, size_t size);
    /* Ends the group. Sets *fault if there is a fault that the caller has not asked for.
     * May be NULL. */
    void (*close)(void *group, struct tutti_fault *fault);
};

extern const struct backend cpu_backend, cuda_backend;

#endif
