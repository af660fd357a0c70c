/* SPDX-License-Identifier: MIT */
/* The words of CUDA that the kernels use, for the C++ compiler of the host. It is included before
 * each source of a kernel. */
#ifndef TESTS_CUDA_EMULATOR_CUDA_H
#define TESTS_CUDA_EMULATOR_CUDA_H

#include "emulator.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

#define __global__
#define __device__
#define __host__
#define __grid_constant__
#define __forceinline__ inline
#define __noinline__    __attribute__((noinline))
#define __launch_bounds__(...)
#define __maxnreg__(registers)
/* What one thread alone uses. The threads of a block share order_block_shared(). */
#define __shared__

#define threadIdx emulated.thread
#define blockIdx  emulated.block
#define blockDim  emulated.block_dim
#define gridDim   emulated.grid_dim

static inline int __ffs(int value)
{
    return __builtin_ffs(value);
}

/* Byte i of the result is the byte of {b, a} that digit i of the selector names. */
static inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t selector)
{
    const uint64_t both = (uint64_t)b << 32 | a;
    uint32_t result = 0;
    for (int i = 0; i < 4; i++)
        result |= (uint32_t)(both >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
    return result;
}

/* All lanes of the warp take part: the masks are ~0. */
static inline bool __any_sync(unsigned, bool vote)
{
    return emulator_warp_any(vote);
}

static inline bool __all_sync(unsigned, bool vote)
{
    return emulator_warp_all(vote);
}

static inline void __syncwarp(void)
{
    emulator_warp_all(true);
}

static inline void __syncthreads(void)
{
    emulator_sync(0, blockDim.x, true);
}

static inline void __nanosleep(unsigned)
{
    emulator_rest();
}

template <typename T, typename V, typename W> static inline T atomicCAS(T *at, V expected, W value)
{
    T seen = (T)expected;
    __atomic_compare_exchange_n(at, &seen, (T)value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return seen;
}

template <typename T> static inline T atomicAdd(T *at, T value)
{
    return __atomic_fetch_add(at, value, __ATOMIC_RELAXED);
}

#endif
