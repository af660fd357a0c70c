/* SPDX-License-Identifier: MIT */
/* The arguments of a kernel, passed by value: valid for every replay. Compiles as C11 and as
 * CUDA. */
#ifndef TUTTI_CUDA_LAUNCH_H
#define TUTTI_CUDA_LAUNCH_H

#include "base/op.h"
#include "cuda/runtime/arena.h"

#ifdef __CUDACC__
#define LAUNCH_FN static __device__ __forceinline__
#else
#define LAUNCH_FN static inline
#endif

/* The rank in a hybrid cube mesh (mesh.cu), if its communicator has one: its quad is ranks[0] to
 * ranks[3] of the launch, its partner is in the other quad. */
struct cuda_mesh {
    uint8_t quarters[4]; /* the quarter of the quad's sums that each of its ranks makes */
    uint8_t partner;     /* the rank of the other quad that makes the same quarter */
};

/* The rank in a ring (ring.cu), if its communicator has one. */
struct cuda_ring {
    uint8_t place;
    uint8_t before, after; /* ranks */
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
    uint64_t timeout_ns; /* 0: host->timeout_ns applies */
    double scalar;       /* of a premultiplied sum */
    uint32_t parameter;
    int32_t op; /* enum op_kind; kernels for a single op ignore it */
    int32_t rank;
    int32_t size;
    uint16_t subset; /* of a subset barrier: bit r is rank r; 0: all ranks */
    uint16_t marked; /* write a mark of each operation: device_trace.h */
    uint32_t tag;    /* 16 bits of hash of signature and parameter */
    /* The ranks in this rank's order: [0] is this rank. If the size is a power of two, the leaf of
     * [p] is this rank's leaf with the bits of p flipped; else the others follow in leaf order. */
    uint8_t ranks[CUDA_RANKS];
    int32_t place; /* the number of ranks before this one in the tree: launch_leaf() */
    struct cuda_mesh mesh;
    struct cuda_ring ring;
};

/* The entry of ranks[] at leaf l of the tree. If the size is a power of two, that order differs
 * from the communicator's, but has the same pairs at every level, maybe swapped. The bits are the
 * same, since all operations commute. */
LAUNCH_FN int launch_leaf(int l, int place)
{
    return l < place ? l + 1 : l == place ? 0 : l;
}

/* X(name of its algorithm, kernel's name, description). Tuning tables use the first four; the
 * others are forced, or chosen for the links. */
#define CUDA_KERNEL_MAP(X)                                                                         \
    X(ONE_SHOT_LL, one_shot_ll, "one-shot, flags in band")                                         \
    X(ONE_SHOT_LINES, one_shot_lines, "one-shot, full lines")                                      \
    X(TWO_SHOT_LINES, two_shot_lines, "two-shot, full lines")                                      \
    X(TWO_SHOT_PIPELINED, two_shot_pipelined, "two-shot, pipelined")                               \
    X(HYBRID_CUBE_MESH, mesh, "hybrid cube mesh")                                                  \
    X(RING, ring, "chunked ring")

enum cuda_kernel {
#define CUDA_KERNEL_ENUM(NAME, name, text) CUDA_##NAME,
    CUDA_KERNEL_MAP(CUDA_KERNEL_ENUM)
#undef CUDA_KERNEL_ENUM
        CUDA_KERNELS
};

#endif
