/* SPDX-License-Identifier: MIT */
/*
 * The words that the kernels of a rank's device write into the rank's recorder (record.h). The
 * recorder is mapped for the device, because the host does not see the replays of a graph. All
 * times are those of the device's clock. docs/layout.md explains the fields. Compiles as C11 and as
 * CUDA.
 *
 * - The control warp of block 0 marks each operation of all ranks when it begins: two lines of 16
 *   bytes. Nothing is written at the end, because that would cost the workers too much. An
 *   operation has ended when the next one has begun. The last operation is running if a kernel
 *   waits in it; else its state is "begun".
 * - A kernel that waits for long writes the rank for which it waits, each time that it looks at
 *   the host's words, every 20 us. The time of the last look shows the watcher whether the kernel
 *   still waits.
 * - Marks cost 1 to 2.5 % of a small operation and 0.9 us of a barrier. So kernels leave them only
 *   where TUTTI_DUMP was set at the creation. Waits are always written.
 * - Nothing is copied off a device, since a spinning kernel or a lock of the driver could block the
 *   copy. Replays may write after the communicator has ended, so the mapping lives as long as the
 *   graphs.
 */
#ifndef TUTTI_DEVICE_TRACE_H
#define TUTTI_DEVICE_TRACE_H

#include <assert.h>
#include <stdint.h>

enum {
    DEVICE_TRACE_MARKS = 1024,
    DEVICE_TRACE_HOST_BYTES = 128,
};

/* The begin of one operation: two lines of 16 bytes. The device stores each line at once. Both
 * lines hold the sequence, so that a reader knows whether they belong to one operation. */
struct device_trace_mark {
    uint64_t signature; /* signature.h */
    uint32_t parameter;
    uint32_t low; /* the sequence's low 32 bits */
    uint64_t begun_ns;
    uint64_t sequence;
};

/* A long wait of a kernel, in one line. If several threads wait, the one that polls the host's
 * words for all of them writes it. At set-up the first word holds the device's time. */
struct device_trace_wait {
    uint64_t looked_ns; /* the last poll; it stays the same after the wait has ended */
    uint64_t of; /* the awaited rank, bits 0-7; the sequence, bits 8-63: 0 in a subset's barrier */
    uint64_t reserved[6];
};

struct device_trace {
    unsigned char host[DEVICE_TRACE_HOST_BYTES]; /* struct cuda_host: cuda/kernels/arena.h */
    struct device_trace_wait wait;
    struct device_trace_mark marks[DEVICE_TRACE_MARKS]; /* [sequence mod DEVICE_TRACE_MARKS] */
};

static_assert(sizeof(struct device_trace_mark) == 32, "mark");
static_assert(sizeof(struct device_trace_wait) == 64, "wait");

#endif
