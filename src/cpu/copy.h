/* SPDX-License-Identifier: MIT */
/* Copies between user memory and arenas: through the caches or past them, as the cores' distance
 * and the size say. */
#ifndef TUTTI_CPU_COPY_H
#define TUTTI_CPU_COPY_H

#include "cpu/group.h"
#include "cpu/reduce.h"
#include "order.h"

/* Shorter copies go through the caches however far the cores are. */
enum { COPY_FAR_BYTES = 1024 };

/* Results of operations from here on would leave the caches before anybody reads them (16 MiB on 2
 * near ranks: 1.44 ms through the caches, 1.30 past them; on far ones it is the other way round).
 */
enum { COPY_OUT_BYTES = 8 << 20 };

/* Into the own arena, for peers to read. Complete before a later release. */
static inline void copy_in(struct cpu_group *group, void *to, const void *from, size_t bytes)
{
    if (group->far && bytes >= COPY_FAR_BYTES) {
        group->isa->copy_stream(to, from, bytes);
        order_drain_streams();
    } else {
        group->isa->copy(to, from, bytes);
    }
}

/* Operations up to here find their operands in the private caches or not far from them. */
enum { COPY_AHEAD_BYTES = 2 << 20 };

/* Before a far peer's lines are worked on: they come sooner while nothing else is read or written
 * (256 KiB on 2 far ranks: 26 us without, 20 with). Near ones do not (12 and 17), nor where the
 * operands come from farther away as well (16 MiB on far ones: 1.56 and 1.77 ms). Of more than two
 * ranks a far one may still have near peers (4 on 2 cores, 1 MiB: 272 and 306). */
static inline void copy_ahead(const struct cpu_group *group, const void *from, size_t bytes,
                              size_t operation_bytes)
{
    const volatile unsigned char *lines = from;
    if (!group->far || group->size > 2 || operation_bytes > COPY_AHEAD_BYTES)
        return;
    for (size_t at = 0; at < bytes; at += LAYOUT_LINE)
        (void)lines[at];
}

/* From a peer's arena to user memory. Complete before a later release. */
static inline void copy_out(struct cpu_group *group, void *to, const void *from, size_t bytes,
                            size_t operation_bytes)
{
    if (operation_bytes >= COPY_OUT_BYTES && !group->far) {
        group->isa->copy_stream(to, from, bytes);
        order_drain_streams();
    } else {
        copy_ahead(group, from, bytes, operation_bytes);
        group->isa->copy(to, from, bytes);
    }
}

#endif
