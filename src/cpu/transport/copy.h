/* SPDX-License-Identifier: MIT */
/* Copies of operands, through the caches or past them. */
#ifndef TUTTI_CPU_COPY_H
#define TUTTI_CPU_COPY_H

#include "base/order.h"
#include "cpu/reduce/reduce.h"
#include "cpu/transport/group.h"

enum {
    COPY_FAR_BYTES = 1024, /* shorter copies always go through the caches */
    /* From this size on `rep movsb` copies, if the processor does that quickly: isa.c. (4 KiB: near
     * a fifth slower, far a quarter faster; 8 KiB: faster by a quarter.) */
    COPY_STRING_BYTES = 8 * 1024,
};

/* Through the caches. Complete before a later release. */
static inline void copy_near(const struct cpu_group *group, void *to, const void *from,
                             size_t bytes)
{
    (bytes < REDUCE_LONG_BYTES ? group->isa->copy : group->copy_long)(to, from, bytes);
}

/* Into lines that the peers read and do not write. Complete before a later release. `rep movsb` is
 * at least as fast as the faster of the other two ways (Zen 5, a message of 64 KiB, near: 2.5 us
 * through the caches, 3.8 past them, 1.6 by `rep movsb`; far: 10.7, 4.0, 3.6). */
static inline void copy_in(const struct cpu_group *group, void *to, const void *from, size_t bytes)
{
    if (bytes >= COPY_STRING_BYTES && group->copy_long != group->isa->copy) {
        group->copy_long(to, from, bytes);
    } else if (group->distance.far && bytes >= COPY_FAR_BYTES) {
        group->isa->copy_stream(to, from, bytes);
        order_drain_streams();
    } else {
        group->isa->copy(to, from, bytes);
    }
}

#endif
