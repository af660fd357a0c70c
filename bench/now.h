/* SPDX-License-Identifier: MIT */
/* The time of a clock that only goes forward. */
#ifndef BENCH_NOW_H
#define BENCH_NOW_H

#include <stdint.h>
#include <time.h>

static inline int64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static inline double now_us(void)
{
    return (double)now_ns() * 1e-3;
}

#endif
