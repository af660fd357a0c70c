/* SPDX-License-Identifier: MIT */
/* The arguments of a kernel, passed by value: valid for every replay. Compiles as C11 and as
 * CUDA. */
#ifndef TUTTI_CUDA_LAUNCH_H
#define TUTTI_CUDA_LAUNCH_H

#include "base/op.h"
#include "cuda/kernels/arena.h"

#ifdef __CUDACC__
#define LAUNCH_FN static __device__ __forceinline__
#else
#define LAUNCH_FN static inline
#endif

/* A premultiplied sum whose scalar is in memory. */
enum { LAUNCH_MEMORY_PREMUL_SUM = OP_PREMUL_SUM + 1 };
static_assert((int)LAUNCH_MEMORY_PREMUL_SUM == (int)OP_COUNT, "no other operation");

/* The rank in a hybrid cube mesh (mesh.cu): its quad is ranks[0] to ranks[3] of the launch, its
 * partner is in the other quad. */
struct cuda_mesh {
    uint8_t quarters[4]; /* the quarter of the quad's sums that each of its ranks makes */
    uint8_t partner;     /* the rank of the other quad that makes the same quarter */
};

/* The rank in a ring (ring.cu). Without the first byte, kernels load the others at once, and need
 * up to 2 registers more. */
struct cuda_ring {
    uint8_t reserved;
    uint8_t position;
    uint8_t before, after; /* ranks */
};

/* An operation on blocks (blocks.cuh). An operand is one block of `count` elements, of bytes if
 * blocks are moved only, or has a block for each rank. */
struct cuda_moves {
    uint64_t send_stride, recv_stride; /* bytes from one rank's block to the next one's; 0: one */
    uint8_t sends, receives; /* bit p: to and from rank ranks[p]; bit 0: a copy of the own block */
};

struct cuda_launch {
    struct cuda_arena *own;
    struct cuda_control *control;          /* on the device, even if arenas are in host memory */
    struct cuda_arena *peers[CUDA_RANKS];  /* [p] is of rank ranks[p], so [0] is this rank's */
    struct cuda_arena *arenas[CUDA_RANKS]; /* in rank order; all as this rank's device sees them */
    struct cuda_host *host;
    const void *send;
    void *recv;
    uint64_t count; /* elements */
    uint64_t signature;
    uint64_t timeout_ns;    /* 0: host->timeout_ns applies */
    union op_scalar scalar; /* of a premultiplied sum */
    uint32_t parameter;
    int32_t op; /* enum op_kind, or LAUNCH_MEMORY_PREMUL_SUM; kernels for a single op ignore it */
    int32_t rank;
    int32_t size;
    uint16_t subset; /* of a subset barrier: bit r is rank r; 0: all ranks. All bits: a meeting that
                      * ends the last operation */
    uint8_t marked;  /* write a mark of each operation: device_trace.h */
    uint8_t columns; /* of a kernel whose ranks exchange data in pairs of columns: operation.cuh */
    uint32_t tag;    /* 16 bits of hash of signature and parameter */
    /* The ranks in this rank's order: [0] is this rank. If the size is a power of two, the leaf of
     * [p] is this rank's leaf with the bits of p flipped; else the others follow in leaf order. */
    uint8_t ranks[CUDA_RANKS];
    int32_t leaf; /* the number of ranks before this one in the tree: launch_leaf() */
    union {       /* by kernel: mesh.cu, ring.cu, blocks.cuh */
        struct cuda_mesh mesh;
        struct cuda_ring ring;
        struct cuda_moves moves;
    };
};

/* A reduce-scatter of blocks of different lengths (reduce_varied.cuh). `count` of the launch is the
 * largest one. */
struct cuda_varied {
    struct cuda_launch launch;
    uint64_t firsts[CUDA_RANKS], counts[CUDA_RANKS]; /* elements; of the block of ranks[p] */
};

/* The same with lengths in memory (reduce_counted.cu), in elements of the caller's dtype. The
 * arrays are addresses. */
struct cuda_counted {
    struct cuda_launch launch;
    uint64_t counts, displacements; /* displacements 0: each block begins where the last one ends */
    uint64_t most, extents[2];      /* of a block; of send and recv */
    uint32_t components;            /* numbers of an element */
    uint16_t width;                 /* bytes of an element */
    uint16_t is_narrow;             /* the entries of the arrays are of 32 bits */
};

/* All-reduce with RMSNorm (rms_norm.cuh). The launch's `send` is the input, `count` its elements.
 */
struct cuda_rms_norm {
    struct cuda_launch launch;
    const void *residual_in, *weight;
    void *residual_out, *norm_out, *quant_out, *scales;
    uint32_t tokens, hidden;
    uint32_t token_stride, group_stride; /* of scales by group */
    float epsilon, weight_bias;
    uint8_t weight_dtype, quant; /* enum tutti_dtype, enum tutti_quant */
};

/* The entry of ranks[] at leaf l of the tree. If the size is a power of two, that order differs
 * from the communicator's, but has the same pairs at every level, maybe swapped. The bits are the
 * same, since all operations commute. */
LAUNCH_FN int launch_leaf(int l, int own)
{
    return l < own ? l + 1 : l == own ? 0 : l;
}

/* Every launch copies it. A kernel of another kind adds what it needs to the union. */
static_assert(sizeof(struct cuda_launch) == 264, "launch");

#endif
