/* SPDX-License-Identifier: MIT */
/*
 * The choice of kernel and geometry by size: built in, or measured on the machine and read from a
 * file. Only the reading of the file has side effects; no function needs CUDA.
 *
 * A row is {compute capability, ranks, collective, bytes up to} -> {kernel, units a thread,
 * threads, blocks}. A file (TUTTI_TUNING_FILE, or the cache) replaces the rows of one capability,
 * number of ranks and collective; a row of a file that names no collective is of all_reduce. All
 * ranks have the same rows: they compare a hash; the error for a difference names both sources.
 * Among different devices the rows of the least capability apply. Rows of all_reduce are of floats;
 * integers and bool go by the rows of reduce. A choice by links, or a forced one, has its own
 * geometry.
 *
 *     tutti-tuning 1
 *     sm_90 ranks 4 bytes 32768 kernel one_shot_ll threads 64 blocks 512 units 1
 *     sm_90 ranks 4 bytes rest kernel two_shot_pipelined threads 480 blocks 128 units 1
 *     sm_90 ranks 3 collective all_reduce bytes rest kernel two_shot_pipelined threads ...
 */
#ifndef TUTTI_CUDA_TABLE_H
#define TUTTI_CUDA_TABLE_H

#include "coll/choice.h"
#include "cuda/kernels/rows.h"

enum {
    CUDA_TABLE_ROWS = 640,
    CUDA_SECTION_ROWS = 32,     /* of one capability, world size and collective */
    CUDA_TUNED_COLLECTIVES = 8, /* collectives that tables may have rows of */
    CUDA_PLAN_ROWS = CUDA_SECTION_ROWS * CUDA_TUNED_COLLECTIVES,
    CUDA_PLAN_CHOICES = CUDA_PLAN_ROWS + CUDA_KERNELS,
    CUDA_TABLE_SOURCE_BYTES = 96,
};
#define CUDA_TABLE_REST UINT64_MAX /* a last row's bytes: any size */

/* How to launch one kernel. A thread takes `units` units of the kernel's cut (rows.h). */
struct cuda_choice {
    uint8_t kernel; /* enum cuda_kernel */
    uint8_t units;
    uint16_t threads; /* of a block */
    uint16_t blocks;  /* at most */
};

struct cuda_table_row {
    int16_t capability; /* 10 * major + minor; 0: capabilities without rows of their own */
    int8_t size;        /* ranks */
    uint8_t collective;
    struct cuda_choice choice;
    uint64_t bytes; /* up to these, inclusive */
};

/* Rows of one capability, size and collective are neighbours, in order of bytes, the last one is
 * for the rest. */
struct cuda_table {
    int count;
    uint64_t hash;                        /* of the rows, equal on all ranks */
    char source[CUDA_TABLE_SOURCE_BYTES]; /* "built in", or the file's path (its end) */
    struct cuda_table_row rows[CUDA_TABLE_ROWS];
};

/* The rows of one communicator, and the choices for kernels that no row names for a call. */
struct cuda_plan {
    int size;
    bool on_host; /* arenas are in host memory */
    int count;
    struct cuda_choice choices[CUDA_PLAN_CHOICES]; /* of the rows, then of each kernel */
    uint64_t bytes[CUDA_PLAN_ROWS];
    uint8_t collectives[CUDA_PLAN_ROWS];
};

/* Loads the built-in table, changed by the file of TUTTI_TUNING_FILE or, if that is unset, by the
 * file in the cache if there is one. Returns INVALID (file and line named), SYSTEM. */
enum tutti_status cuda_table_load(struct cuda_table *table);
/* $XDG_CACHE_HOME/tutti/tuning, or ~/.cache/tutti/tuning; "" if there is neither. */
void cuda_table_cache_path(char *path, size_t size);
/*
 * Alters a built-in table by a file's text: the line "tutti-tuning 1", then a line a row as above;
 * '#' begins a comment. "any" instead of sm_XY stands for capabilities without rows of their own,
 * "rest" instead of a number for all larger sizes. Rows of one capability, size and collective
 * stand together and replace those before, in order of bytes, the last one for the rest. Parses
 * bytes from outside; a fuzzer tests it. Returns INVALID, naming the line.
 */
enum tutti_status cuda_table_parse(const char *text, size_t length, const char *source,
                                   struct cuda_table *table);
void cuda_table_built_in(struct cuda_table *table);
/* Sets the hash of the rows as they are now. */
void cuda_table_hash(struct cuda_table *table);

/* Makes the plan for a world size of 2 to 8 on devices of that capability. Arenas in host memory
 * have rows of their own, which no table changes. */
void cuda_plan_make(const struct cuda_table *table, int major, int minor, int size, bool on_host,
                    struct cuda_plan *plan);
/* Returns true if a kernel serves a call that names no algorithm. */
bool cuda_plan_serves(const struct cuda_plan *plan, const struct choice_call *call);
/*
 * The whole choice of CUDA: kernel, form and grid. `asked`: the algorithm that choice_by_rules()
 * returned. `kernel`: rules->kernel, which holds if the algorithm is its own. An operation without
 * data gets a kernel that awaits headers, *reason stays. Else *reason is a static sentence. Returns
 * INVALID, with what serves, if the algorithm that is asked for does not serve the dtype or this
 * size.
 */
enum tutti_status cuda_plan_pick(const struct cuda_plan *plan, const struct choice_call *call,
                                 enum tutti_algo asked, int kernel, struct choice_launch *launch,
                                 const char **reason);

#endif
