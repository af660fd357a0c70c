/* SPDX-License-Identifier: MIT */
/*
 * Shared memory without a name: sealed memfds that travel as descriptors.
 *
 * A Zen core's first cache finds lines by a hash of the address bits 12 to 27. Two streams whose
 * addresses have one hash evict each other's lines, at half the speed. So the segments of a process
 * that are longer than 128 KiB lie at different multiples of 2 MiB modulo 256 MiB. (Symmetric
 * buffers, 2 near ranks: 1 MiB 27 to 18 us, 16 MiB 758 to 420.)
 */
#ifndef TUTTI_IPC_SEGMENT_H
#define TUTTI_IPC_SEGMENT_H

#include "tutti/tutti.h"

struct segment {
    void *base;   /* page-aligned, read-write, shared; NULL when not mapped */
    size_t bytes; /* a multiple of the page size */
};

/*
 * Creates, allocates (so that a full machine is an error here and not a SIGBUS later), seals
 * (shrink, grow, seal) and maps zeroed shared memory of at least `bytes` bytes. A child of fork()
 * does not inherit the map.
 *
 * - [in] label: shows in /proc/PID/maps; no uniqueness needed
 * - [out] fd: close-on-exec; the caller closes it, the mapping stays
 *
 * Returns NO_MEMORY (naming the bytes asked for and what limits them), SYSTEM.
 */
enum tutti_status segment_create(const char *label, size_t bytes, struct segment *segment, int *fd);

/*
 * Maps a peer's segment. The descriptor is checked first: a memfd with the three seals and exactly
 * `bytes` bytes (rounded up to pages), else INVALID. fd stays the caller's.
 */
enum tutti_status segment_map(int fd, size_t bytes, struct segment *segment);

/* The same, but only the first `part` bytes (rounded up to pages) are mapped. An access to the
 * others faults. */
enum tutti_status segment_map_part(int fd, size_t bytes, size_t part, struct segment *segment);

/* The NUMA nodes of `count` pages that this process has used; -1: the kernel does not tell. A
 * segment lies on the node of the thread that has created it, as long as that node has memory. */
void segment_nodes(const void *const *pages, int count, int *nodes);

/* Also takes a segment that is not mapped. */
void segment_unmap(struct segment *segment);

#endif
