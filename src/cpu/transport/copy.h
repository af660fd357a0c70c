/* SPDX-License-Identifier: MIT */
/* Copies of operands, through the caches or past them. */
#ifndef TUTTI_CPU_COPY_H
#define TUTTI_CPU_COPY_H

#include "base/order.h"
#include "coll/request.h"
#include "cpu/reduce/reduce.h"
#include "cpu/transport/group.h"

enum { COPY_FAR_BYTES = 1024 }; /* shorter copies always go through the caches */

/* Whether `rep movsb` copies from REDUCE_LONG_BYTES on, because this processor does that quickly:
 * isa.c. (Zen 5, 4 KiB: near a fifth slower, far a quarter faster; 8 KiB: faster by a quarter.) */
static inline bool copies_strings(const struct cpu_group *group)
{
    return group->copy_long != group->isa->copy;
}

/* Through the caches. Complete before a later release. */
static inline void copy_near(const struct cpu_group *group, void *to, const void *from,
                             size_t bytes)
{
    (bytes < REDUCE_LONG_BYTES ? group->isa->copy : group->copy_long)(to, from, bytes);
}

/* Past the caches. Complete before a later release. */
static inline void copy_past(const struct cpu_group *group, void *to, const void *from,
                             size_t bytes)
{
    group->isa->copy_stream(to, from, bytes);
    order_drain_streams();
}

/* Into lines that the peers read and do not write. Complete before a later release. `rep movsb` is
 * at least as fast as the faster of the other two ways (Zen 5, a message of 64 KiB, near: 2.5 us
 * through the caches, 3.8 past them, 1.6 by `rep movsb`; far: 10.7, 4.0, 3.6). */
static inline void copy_in(const struct cpu_group *group, void *to, const void *from, size_t bytes)
{
    const size_t least = group->distance.far ? COPY_FAR_BYTES : REDUCE_LONG_BYTES;
    if (bytes >= least && copies_strings(group))
        group->copy_long(to, from, bytes);
    else if (bytes >= least && group->distance.far)
        copy_past(group, to, from, bytes);
    else
        group->isa->copy(to, from, bytes);
}

/* Into the operand that receives. Complete before a later release. If the operands of all ranks do
 * not fit into the last cache, a store through the caches first reads its line from memory. So this
 * copies past the caches, unless the reduction is in place and has read the line (16 ranks on Xeon,
 * 16 MiB: 11.5 ms through the caches, 8.2 past them). */
static inline void copy_out(const struct cpu_group *group, const struct request *request, void *to,
                            const void *from, size_t bytes)
{
    const size_t ranks = (size_t)group->peers.size, blocks = request->recv_all ? ranks : 1;
    const bool was_read = request->reduce && request->send == request->recv;
    if (bytes >= REDUCE_LONG_BYTES && !was_read &&
        request->bytes > group->cache_bytes / (2 * ranks * blocks))
        copy_past(group, to, from, bytes);
    else
        copy_near(group, to, from, bytes);
}

#endif
