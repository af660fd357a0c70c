/* SPDX-License-Identifier: MIT */
/*
 * A row a kernel, with every fact about the kernel that the host needs. The driver's room finds the
 * functions by the row, the tuning room chooses among the rows. A new kernel is a .cu, a line of
 * CUDA_KERNEL_MAP and a row in rows.c.
 */
#ifndef TUTTI_CUDA_ROWS_H
#define TUTTI_CUDA_ROWS_H

#include "cuda/kernels/launch.h"
#include "tutti/tutti.h"

#include <stdbool.h>

/* X(constant, name): the name is that of the .cu, and what tuning files, TUTTI_ALGO and messages
 * call the kernel. src/cuda/CMakeLists.txt reads these lines. Of the kernels of one algorithm, one
 * that is faster for few bytes comes first. */
#define CUDA_KERNEL_MAP(X)                                                                         \
    X(ONE_SHOT_LL, one_shot_ll)                                                                    \
    X(ONE_SHOT_LINES, one_shot_lines)                                                              \
    X(TWO_SHOT_LINES, two_shot_lines)                                                              \
    X(TWO_SHOT_PIPELINED, two_shot_pipelined)                                                      \
    X(TWO_SHOT_RELAYED, two_shot_relayed)                                                          \
    X(MESH, mesh)                                                                                  \
    X(RING, ring)                                                                                  \
    X(COPY_LL, copy_ll)                                                                            \
    X(COPY_LINES, copy_lines)                                                                      \
    X(COPY_PIPELINED, copy_pipelined)                                                              \
    X(COPY_RELAYED, copy_relayed)                                                                  \
    X(COPY_SYMMETRIC, copy_symmetric)                                                              \
    X(REDUCE_LL, reduce_ll)                                                                        \
    X(REDUCE_LINES, reduce_lines)                                                                  \
    X(REDUCE_PIPELINED, reduce_pipelined)                                                          \
    X(REDUCE_RELAYED, reduce_relayed)                                                              \
    X(REDUCE_VARIED, reduce_varied)                                                                \
    X(REDUCE_COUNTED, reduce_counted)                                                              \
    X(EXCHANGE, exchange)                                                                          \
    X(EXCHANGE_COUNTED, exchange_counted)                                                          \
    X(RMS_NORM_LINES, rms_norm_lines)                                                              \
    X(RMS_NORM_TWO_SHOT, rms_norm_two_shot)                                                        \
    X(BARRIER, barrier)                                                                            \
    X(SYMM, symm)                                                                                  \
    X(STREAM_WAIT, stream_wait)                                                                    \
    X(RMS_NORM_ROWS, rms_norm_rows)                                                                \
    X(COMBINE, combine)                                                                            \
    X(REDUCE_ALONE, reduce_alone)

enum cuda_kernel {
#define CUDA_KERNEL_ENUM(NAME, name) CUDA_##NAME,
    CUDA_KERNEL_MAP(CUDA_KERNEL_ENUM)
#undef CUDA_KERNEL_ENUM
        CUDA_KERNELS
};

/* Forms of a kernel: for any op and 2 to 8 ranks; for the sum of a fixed number of ranks; for that
 * sum where every thread has at most one whole, aligned unit. */
enum cuda_form { CUDA_ANY, CUDA_SUM, CUDA_SUM_ONCE, CUDA_FORMS };

/* Parts of the arena, as bits. An arena in host memory ends behind the tiles. In the parts that it
 * lacks, a NaN that no result has means "not here yet". */
enum cuda_region {
    CUDA_REGION_FLAGGED = 1,
    CUDA_REGION_TILES = 2,
    CUDA_REGION_ONE_SHOT = 4,
    CUDA_REGION_TWO_SHOT = 8,
    CUDA_REGION_PIPES = 16,
    CUDA_REGION_COPIES = 32,
    CUDA_REGION_MESSAGES = 64,
    CUDA_REGION_ON_HOST = CUDA_REGION_FLAGGED | CUDA_REGION_TILES, /* also in host memory */
};

/* The parts into which an operation is cut: as many as ranks. */
enum { CUDA_BY_RANK = 0 };

struct cuda_kernel_row {
    const char *name;
    const unsigned char *fatbin; /* fatbins.S */
    /* The beginning of the functions' names for arenas in host memory, of any dtype, without sums.
     * NULL: the kernel does not serve such arenas. */
    const char *other;
    /* What this kernel serves too is cut as by that one, up to its capacity. */
    const struct cuda_kernel_row *small;
    uint32_t collectives; /* bit c: serves enum tutti_collective c; 0: no communicator's kernel */
    uint32_t dtypes; /* bit d: has functions for enum tutti_dtype d; 0: one function, `name`, which
                      * knows no dtypes */
    uint32_t sums;   /* bit d: has sums of it, if the forms have sums; 0: of all dtypes with sums */
    uint32_t all_reduces; /* bit d: serves all-reduces of enum tutti_dtype d as operations on blocks
                           * (blocks.cuh): each rank sends its one block to all */
    uint32_t room;        /* bytes of a hop's region for one operation; 0: serves any size */
    enum tutti_algo algo; /* the algorithm that a user may ask for; NONE: none */
    uint8_t forms;        /* bit f: enum cuda_form */
    uint8_t regions;      /* enum cuda_region, not of `other` */
    uint8_t unit_bytes;   /* of the input that a line carries */
    uint8_t parts;        /* of an operation */
    uint8_t least;        /* ranks; 0: any number */
    bool packed;          /* the owner has no room in its own region */
    bool ring;            /* a block takes a tile of the ring instead of units for its threads */
    bool symmetric;       /* serves calls with TUTTI_CALL_SYMMETRIC, and no others */
    /* Waits for the headers of all peers, and so serves operations without data. The other kernels
     * wait for data, which proves that the peer has entered. */
    bool awaits_headers;
    uint16_t threads, blocks; /* the grid where no tuning row has another one; blocks: the most */
};

extern const struct cuda_kernel_row cuda_kernel_rows[CUDA_KERNELS];

/* Returns the kernel of that name, in lower or upper case, if it is tuned; else CUDA_KERNELS. */
enum cuda_kernel cuda_kernel_find(const char *name);
/* Returns true if some kernel serves the collective. */
bool cuda_kernel_serves(enum tutti_collective collective);
/* The most bytes that a kernel serves among `size` ranks. */
uint64_t cuda_kernel_capacity(const struct cuda_kernel_row *row, int size);
/* Returns true if the function exists; for complex dtypes only if the kernel knows no dtypes.
 * `on_host`: the arenas are in host memory. */
bool cuda_kernel_has(const struct cuda_kernel_row *row, int size, bool on_host,
                     enum tutti_dtype dtype, enum cuda_form form);

/* Returns true if the dtype has the kernel's own functions rather than those of row->other. */
static inline bool cuda_kernel_is_own(const struct cuda_kernel_row *row, bool on_host,
                                      enum tutti_dtype dtype)
{
    return row->dtypes >> dtype & 1 && !(on_host && row->regions & ~CUDA_REGION_ON_HOST);
}

/* Returns true if a row of a tuning table may name the kernel: it needs all links. */
static inline bool cuda_kernel_is_tuned(const struct cuda_kernel_row *row)
{
    return row->algo == TUTTI_ALGO_ONE_SHOT || row->algo == TUTTI_ALGO_TWO_SHOT;
}

/* Returns true if a column of a rank exchanges data with the same column of another rank
 * (operation.cuh). The places of other regions do not depend on the number of columns. */
static inline bool cuda_kernel_pairs_columns(const struct cuda_kernel_row *row)
{
    return row->regions & (CUDA_REGION_TILES | CUDA_REGION_PIPES | CUDA_REGION_COPIES);
}

/* Returns true if a sum of so many ranks has a function for blocks with several columns. In sums of
 * 8 ranks no registers are left for them: the function for any op serves such blocks. */
static inline bool cuda_kernel_sums_columns(const struct cuda_kernel_row *row, int size)
{
    return !cuda_kernel_pairs_columns(row) || size < CUDA_RANKS;
}

static inline unsigned cuda_kernel_parts(const struct cuda_kernel_row *row, int size)
{
    return row->parts == CUDA_BY_RANK ? (unsigned)size : row->parts;
}

#endif
