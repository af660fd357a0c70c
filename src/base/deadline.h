/* SPDX-License-Identifier: MIT */
/* Deadlines: times of CLOCK_MONOTONIC, in nanoseconds. A nap is a sleep between two looks. */
#ifndef TUTTI_DEADLINE_H
#define TUTTI_DEADLINE_H

#include <limits.h>
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

/* Returns the time in timeout_ms milliseconds; DEADLINE_NEVER if timeout_ms is negative, or too
 * large for the sum. */
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

/* Returns the milliseconds until the deadline, at least 0, or -1 for DEADLINE_NEVER. Rounded up, so
 * that a thread that sleeps for this time does not wake before the deadline. */
static inline int64_t deadline_left_ms(int64_t deadline)
{
    if (deadline == DEADLINE_NEVER)
        return -1;
    int64_t left = deadline - deadline_now();
    return left > 0 ? (left + 999999) / 1000000 : 0;
}

/* The same for a time-out argument, where 0 would mean the default: at least 1. */
static inline int64_t deadline_timeout_ms(int64_t deadline)
{
    int64_t left = deadline_left_ms(deadline);
    return left ? left : 1;
}

/* The time left, as an argument of poll(). */
static inline int deadline_poll_ms(int64_t deadline)
{
    int64_t left_ms = deadline_left_ms(deadline);
    return left_ms > INT_MAX ? INT_MAX : (int)left_ms;
}

static inline int64_t deadline_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline struct timespec deadline_timespec(int64_t deadline)
{
    return (struct timespec){.tv_sec = deadline / 1000000000, .tv_nsec = deadline % 1000000000};
}

/* Sleeps for *nap_ns or until the deadline, then doubles *nap_ns, up to longest_ns. */
static inline void deadline_nap(int64_t deadline, int64_t *nap_ns, int64_t longest_ns)
{
    struct timespec until = deadline_timespec(deadline_min(deadline, deadline_now() + *nap_ns));
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
    *nap_ns = *nap_ns * 2 < longest_ns ? *nap_ns * 2 : longest_ns;
}

#endif
