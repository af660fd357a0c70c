/* SPDX-License-Identifier: MIT */
/* How a group ends: its fault, its aborts, and where to report them. */
#ifndef TUTTI_CPU_FAULTS_H
#define TUTTI_CPU_FAULTS_H

#include "base/interrupt.h"
#include "base/order.h"

struct record_page;

struct cpu_faults {
    uint32_t failed;  /* `fault` is written: release F4 pairs A4 */
    uint32_t aborted; /* by tutti_comm_abort() in this process */
    uint32_t claimed; /* the first thread that fails writes `fault` */
    uint32_t open;    /* the arenas are there: release G1 pairs A7 */
    uint32_t quit;    /* by cpu_group_quit() */
    struct tutti_fault fault;
    struct record_page *record;        /* the communicator's recorder; NULL: it has none */
    void (*on_failure)(void *context); /* called once the fault stands; may be NULL */
    void *context;
    const struct interrupt *interrupt; /* during the opening; else NULL */
};

/* Whether no operation may begin any more: a fault stands, or this process has aborted the group.
 */
static inline bool faults_stand(const struct cpu_faults *faults)
{
    return order_load_acquire_u32(&faults->failed) || /* A4 pairs F4 */
           order_load_relaxed_u32(&faults->aborted);
}

#endif
