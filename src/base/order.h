/* SPDX-License-Identifier: MIT */
/*
 * All memory ordering of the library's host code. No other file names a memory order or a fence.
 * Each release names the acquire that it pairs with: docs/ordering.md.
 */
#ifndef TUTTI_ORDER_H
#define TUTTI_ORDER_H

#include <stdbool.h>
#include <stdint.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

static inline uint32_t order_load_acquire_u32(const uint32_t *word)
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static inline uint64_t order_load_acquire_u64(const uint64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static inline uint32_t order_load_relaxed_u32(const uint32_t *word)
{
    return __atomic_load_n(word, __ATOMIC_RELAXED);
}

static inline uint64_t order_load_relaxed_u64(const uint64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_RELAXED);
}

static inline void order_store_release_u32(uint32_t *word, uint32_t value)
{
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

static inline void order_store_release_u64(uint64_t *word, uint64_t value)
{
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

static inline void order_store_relaxed_u32(uint32_t *word, uint32_t value)
{
    __atomic_store_n(word, value, __ATOMIC_RELAXED);
}

static inline void order_store_relaxed_u64(uint64_t *word, uint64_t value)
{
    __atomic_store_n(word, value, __ATOMIC_RELAXED);
}

static inline uint32_t order_fetch_add_u32(uint32_t *word, uint32_t value)
{
    return __atomic_fetch_add(word, value, __ATOMIC_ACQ_REL);
}

static inline uint32_t order_fetch_add_relaxed_u32(uint32_t *word, uint32_t value)
{
    return __atomic_fetch_add(word, value, __ATOMIC_RELAXED);
}

static inline uint64_t order_fetch_add_relaxed_u64(uint64_t *word, uint64_t value)
{
    return __atomic_fetch_add(word, value, __ATOMIC_RELAXED);
}

static inline uint32_t order_exchange_u32(uint32_t *word, uint32_t value)
{
    return __atomic_exchange_n(word, value, __ATOMIC_ACQ_REL);
}

static inline bool order_compare_exchange_u32(uint32_t *word, uint32_t expected, uint32_t desired)
{
    return __atomic_compare_exchange_n(word, &expected, desired, false, __ATOMIC_ACQ_REL,
                                       __ATOMIC_ACQUIRE);
}

/* Orders an earlier store before a later load. Only this function does that. */
static inline void order_fence(void)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

/* Orders earlier non-temporal stores before a later release. The release alone does not, because
 * the memory model does not cover these stores. */
static inline void order_drain_streams(void)
{
#if defined(__x86_64__)
    _mm_sfence();
#endif
}

/* Keeps the compiler from moving memory accesses across this point. The processor may still do so.
 */
static inline void order_compiler(void)
{
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
}

/* Prefetches a line that the thread will read soon. Orders nothing. */
static inline void order_prefetch(const void *line)
{
    __builtin_prefetch(line);
}

/* Prefetches a line that the thread will write soon, for exclusive use. Orders nothing. */
static inline void order_prefetch_for_writing(void *line)
{
#if defined(__x86_64__)
    /* The compiler's builtin asks for a shared copy unless it knows the processor. */
    __asm__ __volatile__("prefetchw %0" : : "m"(*(char *)line));
#else
    __builtin_prefetch(line, 1);
#endif
}

/* Tells the core that the thread spins. */
static inline void order_pause(void)
{
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("isb" ::: "memory");
#endif
}

#endif
