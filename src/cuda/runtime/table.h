/* SPDX-License-Identifier: MIT */
/*
 * The choice of kernel and geometry by size: built in, or measured on the machine and read from a
 * file. Only the reading of the file has side effects; no function needs CUDA.
 *
 * A row is {compute capability, ranks, bytes up to} -> {kernel, units a thread, threads, blocks}. A
 * file (TUTTI_TUNING_FILE, or the cache) replaces the rows of one capability and number of ranks.
 * All ranks have the same rows: they compare a hash; the error for a difference names both sources.
 * Among different devices the rows of the least capability apply. Only floats travel in full lines;
 * other dtypes take lines with flags up to their capacity, then tiles. A choice by links, or a
 * forced one, has its own geometry.
 *
 *     tutti-tuning 1
 *     sm_90 ranks 4 bytes 32768 kernel one_shot_ll threads 64 blocks 512 units 1
 *     sm_90 ranks 4 bytes rest kernel two_shot_pipelined threads 480 blocks 128 units 1
 */
#ifndef TUTTI_CUDA_TABLE_H
#define TUTTI_CUDA_TABLE_H

#include "base/dtype.h"
#include "cuda/kernels/launch.h"
#include "tutti/tutti.h"

#include <stdbool.h>

enum {
    CUDA_TABLE_ROWS = 512,
    CUDA_PLAN_ROWS = 32, /* of one capability and world size */
    CUDA_PLAN_CHOICES = CUDA_PLAN_ROWS + CUDA_KERNELS,
    CUDA_TABLE_SOURCE_BYTES = 96,
    CUDA_TABLE_KERNELS = CUDA_HYBRID_CUBE_MESH, /* kernels of tables are before this one */
};
#define CUDA_TABLE_REST UINT64_MAX /* a last row's bytes: any size */

/* How to launch one kernel. A thread takes `units` units: 8 bytes of the input in one_shot_ll, 16
 * in one_shot_lines, 16 bytes of a chunk in the two-shots. The kernels for few links have tiles
 * instead. */
struct cuda_choice {
    uint8_t kernel; /* enum cuda_kernel */
    uint8_t units;
    uint16_t threads; /* of a block */
    uint16_t blocks;  /* at most */
};

struct cuda_table_row {
    int16_t capability; /* 10 * major + minor; 0: capabilities without rows of their own */
    int16_t size;       /* ranks */
    struct cuda_choice choice;
    uint64_t bytes; /* up to these, inclusive */
};

/* Rows of one capability and size are neighbours, in order of bytes, the last one is for the rest.
 */
struct cuda_table {
    int count;
    uint64_t hash;                        /* of the rows, equal on all ranks */
    char source[CUDA_TABLE_SOURCE_BYTES]; /* "built in", or the file's path (its end) */
    struct cuda_table_row rows[CUDA_TABLE_ROWS];
};

/* The rows of one communicator, and the choices for kernels that are forced. */
struct cuda_plan {
    int size;
    bool staged; /* arenas are in host memory, which has no room for full lines */
    int count;
    struct cuda_choice choices[CUDA_PLAN_CHOICES]; /* of the rows, then of forced kernels */
    uint64_t bytes[CUDA_PLAN_ROWS];
};

/* The choice for a kernel that is forced, or chosen instead of a row's kernel. */
static inline const struct cuda_choice *cuda_plan_forced(const struct cuda_plan *plan,
                                                         enum cuda_kernel kernel)
{
    return &plan->choices[CUDA_PLAN_ROWS + kernel];
}

/* Loads the built-in table, changed by the file of TUTTI_TUNING_FILE or, if that is unset, by the
 * file in the cache if there is one. Returns INVALID (file and line named), SYSTEM. */
enum tutti_status cuda_table_load(struct cuda_table *table);
/* $XDG_CACHE_HOME/tutti/tuning, or ~/.cache/tutti/tuning; "" if there is neither. */
void cuda_table_cache_path(char *path, size_t size);
/*
 * Alters a built-in table by a file's text: the line "tutti-tuning 1", then a line a row as above;
 * '#' begins a comment. "any" instead of sm_XY stands for capabilities without rows of their own,
 * "rest" instead of a number for all larger sizes. Rows of one capability and size stand together
 * and replace those before, in order of bytes, the last one for the rest. Parses bytes from
 * outside; a fuzzer tests it. Returns INVALID, naming the line.
 */
enum tutti_status cuda_table_parse(const char *text, size_t length, const char *source,
                                   struct cuda_table *table);
void cuda_table_built_in(struct cuda_table *table);
/* Sets the hash of the rows as they are now. */
void cuda_table_hash(struct cuda_table *table);

/* Makes the plan for a world size of 2 to 8 on devices of that capability. Arenas in host memory
 * have rows of their own, which no table changes. */
void cuda_plan_make(const struct cuda_table *table, int major, int minor, int size, bool staged,
                    struct cuda_plan *plan);
/* Returns true if the plan may choose the kernel. */
bool cuda_plan_has(const struct cuda_plan *plan, enum cuda_kernel kernel);
/*
 * The choice for an operation of 1 or more bytes. *choice points into the plan; *reason is a static
 * sentence. Returns INVALID, with what serves, if the algorithm that is asked for does not serve
 * the dtype or this size.
 */
enum tutti_status cuda_plan_pick(const struct cuda_plan *plan, enum tutti_algo asked,
                                 enum tutti_dtype dtype, size_t bytes,
                                 const struct cuda_choice **choice, const char **reason);

/* The most bytes that a kernel serves among `size` ranks. */
uint64_t cuda_kernel_capacity(enum cuda_kernel kernel, int size);
/* The grid of an operation of 1 or more bytes: as many blocks as have work, within the choice's. */
unsigned cuda_choice_blocks(const struct cuda_choice *choice, int size, size_t bytes);

/* Returns true if each thread has at most one unit, whole and aligned, and all ranks have equally
 * many units: the form without loops then serves. Ranks may differ in this. */
bool cuda_choice_is_once(const struct cuda_choice *choice, int size, const void *send,
                         const void *recv, size_t bytes, unsigned blocks);

/* Returns true for kernels with full lines, where a NaN that no result has means "not here yet":
 * for floats alone, and not in host memory. */
static inline bool cuda_kernel_has_lines(enum cuda_kernel kernel)
{
    return kernel == CUDA_ONE_SHOT_LINES || kernel == CUDA_TWO_SHOT_LINES;
}

static inline enum tutti_algo cuda_kernel_algo(enum cuda_kernel kernel)
{
#define KERNEL_ALGO(NAME, name, text) [CUDA_##NAME] = TUTTI_ALGO_##NAME,
    static const uint8_t algos[CUDA_KERNELS] = {CUDA_KERNEL_MAP(KERNEL_ALGO)};
#undef KERNEL_ALGO
    return (enum tutti_algo)algos[kernel];
}

#endif
