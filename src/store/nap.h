/* SPDX-License-Identifier: MIT */
/* Deadlines as system calls want them, and sleeps between two looks. */
#ifndef TUTTI_STORE_NAP_H
#define TUTTI_STORE_NAP_H

#include "base/deadline.h"

#include <limits.h>

static inline int64_t deadline_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* What is left, as poll() and epoll_wait() want it. */
static inline int deadline_poll_ms(int64_t deadline)
{
    int64_t left_ms = deadline_left_ms(deadline);
    return left_ms > INT_MAX ? INT_MAX : (int)left_ms;
}

static inline struct timespec deadline_timespec(int64_t deadline)
{
    return (struct timespec){.tv_sec = deadline / 1000000000, .tv_nsec = deadline % 1000000000};
}

/* Sleeps for *nap_ns or until the deadline, then doubles *nap_ns, up to longest_ns. */
static inline void nap(int64_t deadline, int64_t *nap_ns, int64_t longest_ns)
{
    struct timespec until = deadline_timespec(deadline_min(deadline, deadline_now() + *nap_ns));
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
    *nap_ns = *nap_ns * 2 < longest_ns ? *nap_ns * 2 : longest_ns;
}

#endif
