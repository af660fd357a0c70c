/* SPDX-License-Identifier: MIT */
/* Copies from user memory into this rank's arena, through the caches or past them. */
#ifndef TUTTI_CPU_COPY_H
#define TUTTI_CPU_COPY_H

#include "base/order.h"
#include "cpu/reduce/reduce.h"
#include "cpu/transport/group.h"

/* Shorter copies always go through the caches. */
enum { COPY_FAR_BYTES = 1024 };

/* Through the caches. Complete before a later release. */
static inline void copy_near(struct cpu_group *group, void *to, const void *from, size_t bytes)
{
    (bytes < REDUCE_LONG_BYTES ? group->isa->copy : group->copy_long)(to, from, bytes);
}

/* Into lines that the peers read and do not write. Complete before a later release. */
static inline void copy_in(struct cpu_group *group, void *to, const void *from, size_t bytes)
{
    if (group->distance.far && bytes >= COPY_FAR_BYTES) {
        group->isa->copy_stream(to, from, bytes);
        order_drain_streams();
    } else {
        copy_near(group, to, from, bytes);
    }
}

#endif
