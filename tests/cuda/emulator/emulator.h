/* SPDX-License-Identifier: MIT */
/*
 * Runs the kernels of src/cuda/kernels on the CPU. The C++ compiler compiles their sources: cuda.h
 * stands for the words of CUDA, cuda/kernels/order.cuh and convert.cuh of this folder for the
 * library's files of those names. Every thread of a launch is a fiber with a stack of its own. One
 * thread of the process runs all fibers of a launch in turn. A fiber runs until it polls a place
 * for the second time, or waits in a barrier or for its warp. The launches of other ranks run at
 * the same time in other threads or processes.
 *
 * Memory that the host would have to fill with ones, tens of MiB for each rank, holds the
 * complement of what the kernels load and store: memory of zeros need not be filled.
 *
 * What is not as on a device: the fibers of a launch never run at the same time; memory is that of
 * the CPU. But a line that a fiber stores for a peer becomes visible later, in any order with the
 * fiber's other lines, until a fence or a release. A line at an address that is not a multiple of
 * 16 ends the process.
 */
#ifndef TESTS_CUDA_EMULATOR_H
#define TESTS_CUDA_EMULATOR_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A launch. */
struct emulated_launch {
    void (*call)(const void *kernel, const void *argument); /* runs one thread of the kernel */
    const void *kernel, *argument;
    unsigned grid, block;
    uint32_t order;               /* of fibers and stores: any number */
    const unsigned char *ones[8]; /* memory of complements, of each rank */
    uint64_t ones_bytes;
    /* Not NULL: lines go to this memory alone, and after its first turn the launch stands still
     * until the word is not 0. */
    const unsigned char *only;
    uint64_t only_bytes;
    const uint32_t *stop;
};

/* Returns when all threads have ended; false if the launch stood still. */
bool emulator_run(const struct emulated_launch *launch);

/* ---- for the kernels ------------------------------------------------------------------------- */

struct emulated_index {
    unsigned x;
};

/* The running fiber's. */
struct emulated_indices {
    struct emulated_index thread, block, block_dim, grid_dim;
};
extern __thread struct emulated_indices emulated __attribute__((tls_model("initial-exec")));

void emulator_poll(const void *at);
void emulator_rest(void);
void emulator_store_line(void *to, uint64_t low, uint64_t high);
void emulator_store_plain(void *to, uint64_t low, uint64_t high); /* at once, not in one access */
void emulator_load_line(const void *from, uint64_t line[2]);
void emulator_fence(void);
/* Barriers of the block. A sync returns true to all if `well` was true for all. */
void emulator_arrive(int barrier, unsigned threads);
bool emulator_sync(int barrier, unsigned threads, bool well);
/* The block's object of a type, for which an address stands. */
void *emulator_shared(const void *type, unsigned long bytes);
/* A meeting of the warp: returns whether `vote` was true for all, or for any. */
bool emulator_warp_all(bool vote);
bool emulator_warp_any(bool vote);
uint64_t emulator_time_ns(void);

#ifdef __cplusplus
}
#endif

#endif
