/* SPDX-License-Identifier: MIT */
/* The functions of src/cuda/kernels/order.cuh for the emulator. */
#ifndef TUTTI_CUDA_ORDER_CUH
#define TUTTI_CUDA_ORDER_CUH

#include "emulator.h"

/* Between two looks at what may end a wait. A poll that finds nothing takes longer here. */
enum { ORDER_POLLS = 16 };

struct order_line {
    uint64_t low, high;
};

static inline void order_store_line(void *to, order_line line)
{
    emulator_store_line(to, line.low, line.high);
}

static inline order_line order_load_plain(const void *from)
{
    uint64_t line[2];
    emulator_load_line(from, line);
    return {line[0], line[1]};
}

static inline order_line order_load_line(const void *from)
{
    emulator_poll(from);
    return order_load_plain(from);
}

static inline order_line order_load_line_if(bool wanted, const void *from)
{
    return wanted ? order_load_line(from) : order_line{0, 0};
}

static inline void order_store_plain(void *to, order_line line)
{
    emulator_store_plain(to, line.low, line.high);
}

static inline uint32_t order_load_plain_u32(const void *from)
{
    assert((uintptr_t)from % sizeof(uint32_t) == 0);
    return __atomic_load_n((const uint32_t *)from, __ATOMIC_RELAXED);
}

static inline uint64_t order_load_plain_u64(const void *from)
{
    assert((uintptr_t)from % sizeof(uint64_t) == 0);
    return __atomic_load_n((const uint64_t *)from, __ATOMIC_RELAXED);
}

static inline void order_store_plain_u32(void *to, uint32_t value)
{
    assert((uintptr_t)to % sizeof value == 0);
    __atomic_store_n((uint32_t *)to, value, __ATOMIC_RELAXED);
}

static inline void order_store_plain_u64(void *to, uint64_t value)
{
    assert((uintptr_t)to % sizeof value == 0);
    __atomic_store_n((uint64_t *)to, value, __ATOMIC_RELAXED);
}

static inline uint32_t order_load_u32(const uint32_t *from)
{
    emulator_poll(from);
    return __atomic_load_n(from, __ATOMIC_RELAXED);
}

static inline uint64_t order_load_u64(const uint64_t *from)
{
    emulator_poll(from);
    return __atomic_load_n(from, __ATOMIC_RELAXED);
}

static inline void order_store_u32(uint32_t *to, uint32_t value)
{
    __atomic_store_n(to, value, __ATOMIC_RELAXED);
}

static inline void order_store_release_u32(uint32_t *to, uint32_t value)
{
    emulator_fence();
    __atomic_store_n(to, value, __ATOMIC_RELEASE);
}

enum { ORDER_ROW = 1, ORDER_WORKERS, ORDER_EMPTIED, ORDER_FENCED, ORDER_TAKEN };

static inline void order_block_arrive(int barrier)
{
    emulator_arrive(barrier, blockDim.x);
}

static inline void order_block_sync(int barrier)
{
    emulator_sync(barrier, blockDim.x, true);
}

static inline bool order_workers_all(bool well)
{
    return emulator_sync(ORDER_WORKERS, blockDim.x - 32, well);
}

static inline bool order_block_all(bool well)
{
    return emulator_sync(ORDER_TAKEN, blockDim.x, well);
}

template <typename T> static inline T &order_block_shared(void)
{
    static const char type = 0;
    return *(T *)emulator_shared(&type, sizeof(T));
}

/* A value of each thread of the block. */
struct order_warp_values {
    uint32_t of[512];
};

static inline uint32_t order_warp_other(uint32_t value, int mask)
{
    order_warp_values &values = order_block_shared<order_warp_values>();
    values.of[threadIdx.x] = value;
    emulator_warp_all(true);
    const uint32_t other = values.of[threadIdx.x ^ (unsigned)mask];
    emulator_warp_all(true);
    return other;
}

static inline void order_fence(void)
{
    emulator_fence();
}

/* The launches of a stream run one after the other. */
static inline void order_grid_wait(void)
{
}

static inline void order_grid_wait_after(uint64_t)
{
}

static inline void order_grid_trigger(void)
{
}

template <typename T> static inline T *order_ready(T *&address)
{
    return address;
}

static inline void order_opaque(uint64_t &)
{
}

static inline uint64_t order_time_ns(void)
{
    return emulator_time_ns();
}

#endif
