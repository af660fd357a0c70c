/* SPDX-License-Identifier: MIT */
/* Deadlines: points in time of CLOCK_MONOTONIC, in nanoseconds. */
#ifndef TUTTI_DEADLINE_H
#define TUTTI_DEADLINE_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#define DEADLINE_NEVER INT64_MAX

static inline int64_t deadline_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* timeout_ms from now; negative, or too far to count, is never. */
static inline int64_t deadline_after(int64_t timeout_ms)
{
    int64_t now = deadline_now();
    if (timeout_ms < 0 || timeout_ms > (DEADLINE_NEVER - now) / 1000000)
        return DEADLINE_NEVER;
    return now + timeout_ms * 1000000;
}

static inline bool deadline_passed(int64_t deadline)
{
    return deadline != DEADLINE_NEVER && deadline_now() >= deadline;
}

/* What is left in milliseconds, rounded up so that nobody wakes too early; -1 is never. */
static inline int64_t deadline_left_ms(int64_t deadline)
{
    if (deadline == DEADLINE_NEVER)
        return -1;
    int64_t left = deadline - deadline_now();
    return left > 0 ? (left + 999999) / 1000000 : 0;
}

/* The same as a time-out argument, where 0 would be the default: at least 1. */
static inline int64_t deadline_timeout_ms(int64_t deadline)
{
    int64_t left = deadline_left_ms(deadline);
    return left ? left : 1;
}

#endif
