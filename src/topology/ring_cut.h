/* SPDX-License-Identifier: MIT */
/*
 * How the chunked ring cuts an operation: into pieces, and these into a chunk a rank. In which
 * chunk an element lies says with which rank's input its sum begins, so that all devices must cut
 * alike to give the same bits. Compiles as C11 and as CUDA.
 */
#ifndef TUTTI_RING_CUT_H
#define TUTTI_RING_CUT_H

#include <stdint.h>

#ifdef __CUDACC__
#define RING_CUT_FN static __host__ __device__ __forceinline__
#else
#define RING_CUT_FN static inline
#endif

enum {
    RING_CUT_LINE_BYTES = 64,         /* chunks begin at multiples of it */
    RING_CUT_CHUNK_BYTES = 64 * 1024, /* of partial results, at most */
};

/* All in elements. */
struct ring_cut {
    uint64_t piece;      /* `size` chunks */
    uint64_t chunk;      /* of every piece but the last */
    uint64_t last_first; /* where the last piece begins */
    uint64_t last_chunk;
};

RING_CUT_FN uint64_t ring_cut_up(uint64_t count, uint64_t by)
{
    return (count + by - 1) / by;
}

/* Of one or more elements among so many ranks. */
RING_CUT_FN struct ring_cut ring_cut_make(uint64_t count, uint64_t size, uint64_t element_bytes,
                                          uint64_t partial_bytes)
{
    const uint64_t line = RING_CUT_LINE_BYTES / element_bytes;
    const uint64_t most = RING_CUT_CHUNK_BYTES / partial_bytes / line * line * size;
    const uint64_t each = ring_cut_up(count, ring_cut_up(count, most));
    struct ring_cut cut;
    cut.chunk = ring_cut_up(ring_cut_up(each, line), size) * line;
    cut.piece = cut.chunk * size;
    cut.last_first = (count - 1) / cut.piece * cut.piece;
    cut.last_chunk = ring_cut_up(ring_cut_up(count - cut.last_first, line), size) * line;
    return cut;
}

#endif
