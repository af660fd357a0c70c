/* SPDX-License-Identifier: MIT */
/* The processor's clock, read by one instruction without a system call. It counts at a constant
 * rate, the same on all cores. Two readings beside CLOCK_MONOTONIC give the length of a tick. */
#ifndef TUTTI_TICKS_H
#define TUTTI_TICKS_H

#include <stdint.h>

static inline uint64_t ticks_now(void)
{
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
    uint64_t ticks;
    __asm__ __volatile__("mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
#endif
}

#endif
