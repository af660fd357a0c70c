/* SPDX-License-Identifier: MIT */
/*
 * What a device tells of its operations, in its rank's recorder (record.h), which is mapped for the
 * device. The host does not see replays of a graph; the kernels do. The device's clock counts.
 * docs/layout.md describes the bytes. Compiles as C11 and as CUDA.
 *
 * - The control warp of block 0 marks each operation of all ranks when it begins: two lines of 16
 *   bytes. Nothing is written at the end, which would cost workers too much. An operation has ended
 *   when the next one has begun. The last one runs if a kernel waits in it; else it counts as
 *   begun.
 * - A kernel whose wait lasts writes for whom it waits, each time that it looks at the host's
 *   words, every 20 us. The watcher sees from the time of that look whether the wait still lasts.
 * - Marks cost 1 to 2.5 % of a small operation and 0.9 us of a barrier. So kernels leave them only
 *   where TUTTI_DUMP was set at the creation; waits are always told.
 * - Nothing is copied off a device, since a spinning kernel or a lock of the driver could block the
 *   copy. Replays may write after the communicator has ended, so the mapping lives as long as the
 *   graphs.
 */
#ifndef TUTTI_TRAIL_H
#define TUTTI_TRAIL_H

#include <assert.h>
#include <stdint.h>

enum {
    TRAIL_MARKS = 1024,
    TRAIL_HOST_BYTES = 128,
};

/* That an operation has begun: two lines of 16 bytes. Each is stored by itself and holds the
 * sequence, so that a reader knows whether they are of one operation. */
struct trail_mark {
    uint64_t signature; /* signature.h */
    uint32_t parameter;
    uint32_t low; /* the sequence's low 32 bits */
    uint64_t begun_ns;
    uint64_t sequence;
};

/* A kernel's wait that lasts; of several the one that looks around for all. One line. At set-up its
 * first word tells the device's time. */
struct trail_wait {
    uint64_t looked_ns; /* when it did so last: stands still once no wait lasts */
    uint64_t of; /* whom it waits for, bits 0-7; the sequence, 8-63: 0 in a subset's barrier */
    uint64_t reserved[6];
};

struct trail {
    unsigned char host[TRAIL_HOST_BYTES]; /* words between kernels and their host: cuda/arena.h */
    struct trail_wait wait;
    struct trail_mark marks[TRAIL_MARKS]; /* [sequence mod TRAIL_MARKS] */
};

static_assert(sizeof(struct trail_mark) == 32, "mark");
static_assert(sizeof(struct trail_wait) == 64, "wait");

#endif
