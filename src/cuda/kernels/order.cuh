/* SPDX-License-Identifier: MIT */
/*
 * All memory ordering of the kernels, as src/base/order.h for the host. A line is one 16-byte store
 * or one 16-byte load. PTX performs a scalar of 128 bits as a single access (memory consistency
 * model; .b128, PTX ISA 8.3). So a line arrives whole or not at all.
 */
#ifndef TUTTI_CUDA_ORDER_CUH
#define TUTTI_CUDA_ORDER_CUH

#include <stdint.h>

/* Between two looks at what may end a wait. */
enum { ORDER_POLLS = 1024 };

struct order_line {
    uint64_t low, high;
};

/* Between devices, relaxed: orders no other access. */
static __device__ __forceinline__ void order_store_line(void *to, order_line line)
{
    asm volatile(
        "{ .reg .b128 v; mov.b128 v, {%1, %2}; st.relaxed.sys.global.b128 [%0], v; }" ::"l"(to),
        "l"(line.low), "l"(line.high)
        : "memory");
}

static __device__ __forceinline__ order_line order_load_line(const void *from)
{
    order_line line;
    asm volatile("{ .reg .b128 v; ld.relaxed.sys.global.b128 v, [%2]; mov.b128 {%0, %1}, v; }"
                 : "=l"(line.low), "=l"(line.high)
                 : "l"(from)
                 : "memory");
    return line;
}

/* The same if wanted, else all zero: a predicate is cheaper than a branch. */
static __device__ __forceinline__ order_line order_load_line_if(bool wanted, const void *from)
{
    order_line line = {0, 0};
    asm volatile("{ .reg .pred p; .reg .b128 v; setp.ne.u32 p, %3, 0; mov.b128 v, {%0, %1};"
                 "@p ld.relaxed.sys.global.b128 v, [%2]; mov.b128 {%0, %1}, v; }"
                 : "+l"(line.low), "+l"(line.high)
                 : "l"(from), "r"((int)wanted)
                 : "memory");
    return line;
}

/* Ordinary memory of this device. */
static __device__ __forceinline__ order_line order_load_plain(const void *from)
{
    order_line line;
    asm volatile("ld.global.v2.u64 {%0, %1}, [%2];"
                 : "=l"(line.low), "=l"(line.high)
                 : "l"(from)
                 : "memory");
    return line;
}

static __device__ __forceinline__ void order_store_plain(void *to, order_line line)
{
    asm volatile("st.global.v2.u64 [%0], {%1, %2};" ::"l"(to), "l"(line.low), "l"(line.high)
                 : "memory");
}

#define ORDER_LOAD(name, memory, type, instruction, class)                                         \
    static __device__ __forceinline__ type name(const memory *from)                                \
    {                                                                                              \
        type value;                                                                                \
        asm volatile(instruction " %0, [%1];" : "=" class(value) : "l"(from) : "memory");          \
        return value;                                                                              \
    }
#define ORDER_STORE(name, memory, type, instruction, class)                                        \
    static __device__ __forceinline__ void name(memory *to, type value)                            \
    {                                                                                              \
        asm volatile(instruction " [%0], %1;" ::"l"(to), class(value) : "memory");                 \
    }

ORDER_LOAD(order_load_plain_u32, void, uint32_t, "ld.global.u32", "r")
ORDER_LOAD(order_load_plain_u64, void, uint64_t, "ld.global.u64", "l")
ORDER_STORE(order_store_plain_u32, void, uint32_t, "st.global.u32", "r")
ORDER_STORE(order_store_plain_u64, void, uint64_t, "st.global.u64", "l")
ORDER_LOAD(order_load_u32, uint32_t, uint32_t, "ld.relaxed.sys.global.u32", "r")
ORDER_LOAD(order_load_u64, uint64_t, uint64_t, "ld.relaxed.sys.global.u64", "l")
ORDER_STORE(order_store_u32, uint32_t, uint32_t, "st.relaxed.sys.global.u32", "r")
/* A release: what this thread wrote or saw before, and through a block's barrier what its block
 * did, comes before. */
ORDER_STORE(order_store_release_u32, uint32_t, uint32_t, "st.release.sys.global.u32", "r")
#undef ORDER_LOAD
#undef ORDER_STORE

/* Barriers of the block: threads that sync wait, threads that arrive do not. */
enum { ORDER_ROW = 1, ORDER_WORKERS, ORDER_EMPTIED, ORDER_FENCED, ORDER_TAKEN };

static __device__ __forceinline__ void order_block_arrive(int barrier)
{
    asm volatile("barrier.cta.arrive %0, %1;" ::"r"(barrier), "r"(blockDim.x) : "memory");
}

static __device__ __forceinline__ void order_block_sync(int barrier)
{
    asm volatile("barrier.cta.sync %0, %1;" ::"r"(barrier), "r"(blockDim.x) : "memory");
}

/* A barrier of the workers (operation.cuh): returns true to all if `well` is true for all. */
static __device__ __forceinline__ bool order_workers_all(bool well)
{
    int all;
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %1, 0; barrier.cta.red.and.pred p, 2, %2, p;"
                 "selp.s32 %0, 1, 0, p; }"
                 : "=r"(all)
                 : "r"((int)well), "r"(blockDim.x - 32)
                 : "memory");
    return all;
}

/* A barrier of the whole block: returns true to all if `well` is true for all. */
static __device__ __forceinline__ bool order_block_all(bool well)
{
    int all;
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %1, 0; barrier.cta.red.and.pred p, 5, %2, p;"
                 "selp.s32 %0, 1, 0, p; }"
                 : "=r"(all)
                 : "r"((int)well), "r"(blockDim.x)
                 : "memory");
    return all;
}

/* Memory that the threads of the block share, one object of each type. Barriers order it. */
template <typename T> static __device__ __forceinline__ T &order_block_shared(void)
{
    __shared__ T shared;
    return shared;
}

/* The value of the thread of this warp whose number differs in the bits of `mask`. All threads of
 * the warp call it. */
static __device__ __forceinline__ uint32_t order_warp_other(uint32_t value, int mask)
{
    return __shfl_xor_sync(~0u, value, mask);
}

/* The release or the acquire of a line that is stored or loaded next to it. */
static __device__ __forceinline__ void order_fence(void)
{
    asm volatile("fence.acq_rel.sys;" ::: "memory");
}

/* Waits until earlier work on the stream is over and visible. Every thread calls this before it
 * touches memory. */
static __device__ __forceinline__ void order_grid_wait(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* The same, but not before `ready`, which is not 0, is known. So the values behind
 * `ready` are computed while earlier work still runs. */
static __device__ __forceinline__ void order_grid_wait_after(uint64_t ready)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("{ .reg .pred p; setp.ne.u64 p, %0, 0; @p griddepcontrol.wait; }" ::"l"(ready)
                 : "memory");
#endif
}

/* Lets the next launch come to the multiprocessors; order_grid_wait() still waits for our end. */
static __device__ __forceinline__ void order_grid_trigger(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Makes the compiler compute an address before what follows, not where it is used. */
template <typename T> static __device__ __forceinline__ T *order_ready(T *&address)
{
    asm volatile("" : "+l"(address)::"memory");
    return address;
}

/* Hides from the compiler where the bits come from, so that it keeps them and not what it has
 * computed from them. */
static __device__ __forceinline__ void order_opaque(uint64_t &bits)
{
    asm volatile("" : "+l"(bits));
}

static __device__ __forceinline__ uint64_t order_time_ns(void)
{
    uint64_t ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns)::"memory");
    return ns;
}

#endif
